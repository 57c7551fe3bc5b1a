//! Entry points of the fuzz targets, one for each family of decoders, shared with the tests that
//! replay the corpus.
//!
//! Except where noted, the first byte of an input chooses a decoder of the family and the rest is
//! what it decodes. Each target panics when a decoder does, and when an accepted input breaks what
//! the codec promises: that encoding takes as many bytes as were decoded, and that decoding those
//! gives an equal value.

use crate::xdr::{Decode, Encode, Reader, Writer, decode_all, padded};
use crate::{mount3, nfs3, nfs4, oncrpc, portmap};

/// Every target by its name, which is also that of its folder of seeds.
pub const TARGETS: &[Target] = &[
    ("rpc_call", rpc_call),
    ("rpc_reply", rpc_reply),
    ("portmap", portmap),
    ("universal_address", universal_address),
    ("mount3", mount3),
    ("nfs3_attr", nfs3_attr),
    ("nfs3_namespace", nfs3_namespace),
    ("nfs3_readdir", nfs3_readdir),
    ("nfs3_readdir_builder", nfs3_readdir_builder),
    ("nfs3_read", nfs3_read),
    ("nfs3_write", nfs3_write),
    ("nfs3_write_scan", nfs3_write_scan),
    ("nfs3_fsinfo", nfs3_fsinfo),
    ("nfs4_compound", nfs4_compound),
    ("nfs4_attr", nfs4_attr),
    ("nfs4_namespace", nfs4_namespace),
    ("nfs4_data", nfs4_data),
    ("nfs4_xattr", nfs4_xattr),
    ("nfs4_session", nfs4_session),
    ("nfs4_state", nfs4_state),
];

/// A name and the function to feed.
pub type Target = (&'static str, fn(&[u8]));

/// A call header and whatever follows it; no byte chooses.
pub fn rpc_call(bytes: &[u8]) {
    // As received bit by bit.
    let (target, header_len) = (oncrpc::call_target(bytes), oncrpc::call_header_len(bytes));
    let mut r = Reader::new(bytes);
    let Ok(call) = oncrpc::decode_call(&mut r) else { return };
    assert_eq!(target, Some((call.program, call.version, call.procedure)));
    assert_eq!(header_len, r.position(), "the length of the header");
    let mut w = Writer::new();
    call.encode(&mut w);
    // The verifier's body is dropped, so the header may shrink.
    assert!(w.len() <= r.position(), "a call header grew");
    assert_eq!(oncrpc::decode_call(&mut Reader::new(w.as_slice())), Ok(call));
}

/// A reply header and whatever follows it; no byte chooses.
pub fn rpc_reply(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    let Ok(reply) = oncrpc::ReplyHeader::decode(&mut r) else { return };
    let mut w = Writer::new();
    reply.encode(&mut w);
    assert!(w.len() <= r.position(), "a reply header grew");
    assert_eq!(decode_all(w.as_slice()), Ok(reply));
}

/// A universal address as text; no byte chooses.
pub fn universal_address(bytes: &[u8]) {
    if let Some(address) = portmap::parse_universal_address(bytes) {
        let text = portmap::universal_address(address);
        assert_eq!(portmap::parse_universal_address(text.as_bytes()), Some(address));
    }
}

/// A READDIR and a READDIRPLUS reply built under limits, from names cut out of the input: three
/// bytes each limit, then for each entry the length of its name, and the name.
pub fn nfs3_readdir_builder(bytes: &[u8]) {
    let Some((&[a, b, c, d, e, f], names)) = bytes.split_first_chunk() else { return };
    let limits = nfs3::ListingLimits {
        dir_bytes: u32::from_be_bytes([0, a, b, c]),
        bytes: u32::from_be_bytes([0, d, e, f]),
    };
    build_readdirplus(split_names(names), limits);
    build_readdir(split_names(names), limits);
}

fn build_readdirplus<'a>(
    names: impl Iterator<Item = &'a [u8]> + Clone,
    limits: nfs3::ListingLimits,
) {
    let handle = nfs3::FileHandle::new(&[1, 2, 3]);
    let (built, pushed) = build(names.clone(), limits, |encoder, cookie, name| {
        let (fileid, attributes) = (cookie, None);
        encoder.encode_plus(&nfs3::EntryPlus { fileid, name, cookie, attributes, handle })
    });
    let ok: nfs3::ReaddirplusOk<'_> = decode_all(&built).expect("what was built decodes");
    assert!(ok.entries.iter().map(|entry| entry.name).eq(names.take(pushed)));
    let dir_bytes = ok.entries.iter().map(|entry| 20 + padded(entry.name.len())).sum();
    assert!(pushed == 1 || within(dir_bytes, limits.dir_bytes), "dir_bytes was exceeded");
}

fn build_readdir<'a>(names: impl Iterator<Item = &'a [u8]> + Clone, limits: nfs3::ListingLimits) {
    let (built, pushed) = build(names.clone(), limits, |encoder, cookie, name| {
        encoder.encode(&nfs3::Entry { fileid: cookie, name, cookie })
    });
    let ok: nfs3::ReaddirOk<'_> = decode_all(&built).expect("what was built decodes");
    assert!(ok.entries.iter().map(|entry| entry.name).eq(names.take(pushed)));
}

/// A whole result with as many names as fit, and how many that are.
fn build<'a>(
    names: impl Iterator<Item = &'a [u8]>,
    limits: nfs3::ListingLimits,
    encode: impl for<'e> Fn(&'e mut nfs3::EntryEncoder, u64, &[u8]) -> Option<&'e [u8]>,
) -> (Vec<u8>, usize) {
    let mut w = Writer::new();
    nfs3::encode_listing_head(&mut w, None, nfs3::CookieVerifier([7; 8]));
    let mut encoder = nfs3::EntryEncoder::new(limits);
    let mut pushed = 0;
    for (cookie, name) in (1..).zip(names) {
        let Some(entry) = encode(&mut encoder, cookie, name) else { break };
        w.array(entry);
        pushed += 1;
    }
    w.array(&nfs3::listing_end(true));
    assert!(pushed == 0 || within(w.len(), limits.bytes), "the limit was exceeded");
    (w.into_vec(), pushed)
}

/// A length byte and so many bytes, again and again, until too few are left.
fn split_names(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        bytes = rest;
        Some(name)
    })
}

fn within(bytes_len: usize, limit: u32) -> bool {
    u32::try_from(bytes_len).is_ok_and(|len| len <= limit)
}

/// The arguments of a COMPOUND, received bit by bit and then decoded operation by operation; no
/// byte chooses.
pub fn nfs4_compound(bytes: &[u8]) {
    let (found, have) = scan_in_steps(bytes, |have| match nfs4::scan_payload(have) {
        nfs4::PayloadScan::Needs(needed) => Err(needed),
        nfs4::PayloadScan::Found(payload) => Ok(Some(payload)),
        nfs4::PayloadScan::Nothing => Ok(None),
    });
    if let Some(Some(payload)) = found {
        assert!(have <= payload.at, "a part of the payload was asked for with the head");
        assert!(payload.at <= bytes.len(), "the payload begins behind what was looked at");
        let file = payload.file(bytes);
        assert!(file.is_none_or(|file| file.len() <= nfs4::FILE_HANDLE_BYTES_MAX));
    }
    let outline = nfs4::Outline::of(bytes);
    assert!(outline.handle.is_none_or(|handle| handle.len() <= nfs4::FILE_HANDLE_BYTES_MAX));
    walk(bytes);
}

/// Decodes the operations of a COMPOUND up to the first that cannot be decoded. Returns how many
/// there are, and how many were decoded.
fn walk(arguments: &[u8]) -> (u32, u32) {
    let mut r = Reader::new(arguments);
    let Ok(head) = nfs4::CompoundHead::decode(&mut r) else { return (0, 0) };
    let mut decoded = 0;
    while decoded < head.operations {
        let Ok(Ok(operation)) = nfs4::next_operation(&mut r) else { break };
        if !skip_arguments(operation, &mut r) {
            break;
        }
        decoded += 1;
    }
    (head.operations, decoded)
}

/// The arguments of a WRITE, received bit by bit and then decoded; no byte chooses.
pub fn nfs3_write_scan(bytes: &[u8]) {
    let (found, have) = scan_in_steps(bytes, |have| match nfs3::WriteHead::scan(have) {
        nfs3::WriteScan::Needs(needed) => Err(needed),
        nfs3::WriteScan::Head(head) => Ok(Ok(head)),
        nfs3::WriteScan::Malformed(error) => Ok(Err(error)),
    });
    let whole = nfs3::WriteHead::decode(&mut Reader::new(bytes)).ok();
    assert_eq!(found.and_then(Result::ok), whole, "the head that a decoder of the whole finds");
    if let Some(head) = whole {
        assert_eq!(have, head.wire_bytes(), "the bytes that were asked for");
    }
}

/// Scans as a receiver does, which asks for no more bytes than are needed: an `Err` of the scan.
/// Returns how many it has asked for too; `None` if there are not so many.
fn scan_in_steps<T>(bytes: &[u8], scan: impl Fn(&[u8]) -> Result<T, usize>) -> (Option<T>, usize) {
    let mut have = 0;
    loop {
        match scan(&bytes[..have]) {
            Ok(found) => return (Some(found), have),
            Err(needed) => {
                assert!(needed > have, "a scan that does not advance");
                if needed > bytes.len() {
                    return (None, have);
                }
                have = needed;
            }
        }
    }
}

/// Whether the arguments of an operation could be decoded. Those of operations that the server does
/// not perform cannot.
fn skip_arguments(operation: nfs4::OperationCode, r: &mut Reader<'_>) -> bool {
    use nfs4::OperationCode as Op;
    match operation {
        Op::Access => nfs4::AccessArgs::decode(r).is_ok(),
        Op::Allocate | Op::Deallocate => nfs4::AllocateArgs::decode(r).is_ok(),
        Op::BackchannelCtl => nfs4::BackchannelCtlArgs::decode(r).is_ok(),
        Op::BindConnToSession => nfs4::BindConnToSession::decode(r).is_ok(),
        Op::Clone => nfs4::CloneArgs::decode(r).is_ok(),
        Op::Close => nfs4::CloseArgs::decode(r).is_ok(),
        Op::Commit => nfs4::CommitArgs::decode(r).is_ok(),
        Op::Copy => nfs4::CopyArgs::decode(r).is_ok(),
        Op::Create => nfs4::CreateArgs::decode(r).is_ok(),
        Op::CreateSession => nfs4::CreateSessionArgs::decode(r).is_ok(),
        Op::Delegreturn | Op::FreeStateid => nfs4::OneStateid::decode(r).is_ok(),
        Op::DestroyClientid => nfs4::DestroyClientidArgs::decode(r).is_ok(),
        Op::DestroySession => nfs4::DestroySessionArgs::decode(r).is_ok(),
        Op::ExchangeId => nfs4::ExchangeIdArgs::decode(r).is_ok(),
        Op::Getattr => nfs4::GetattrArgs::decode(r).is_ok(),
        Op::Link | Op::Lookup | Op::Remove | Op::Secinfo | Op::Getxattr | Op::Removexattr => {
            nfs4::NameArgs::decode(r).is_ok()
        }
        Op::Listxattrs => nfs4::ListxattrsArgs::decode(r).is_ok(),
        Op::Lock => nfs4::LockArgs::decode(r).is_ok(),
        Op::Lockt => nfs4::LocktArgs::decode(r).is_ok(),
        Op::Locku => nfs4::LockuArgs::decode(r).is_ok(),
        Op::Open => nfs4::OpenArgs::decode(r).is_ok(),
        Op::OpenDowngrade => nfs4::OpenDowngradeArgs::decode(r).is_ok(),
        Op::Putfh => nfs4::Handle::decode(r).is_ok(),
        Op::Read => nfs4::ReadArgs::decode(r).is_ok(),
        Op::Readdir => nfs4::ReaddirArgs::decode(r).is_ok(),
        Op::ReclaimComplete => nfs4::ReclaimCompleteArgs::decode(r).is_ok(),
        Op::Rename => nfs4::RenameArgs::decode(r).is_ok(),
        Op::SecinfoNoName => nfs4::SecinfoNoNameArgs::decode(r).is_ok(),
        Op::Seek => nfs4::SeekArgs::decode(r).is_ok(),
        Op::Sequence => nfs4::SequenceArgs::decode(r).is_ok(),
        Op::Setattr => nfs4::SetattrArgs::decode(r).is_ok(),
        Op::Setxattr => nfs4::SetxattrArgs::decode(r).is_ok(),
        Op::TestStateid => nfs4::TestStateidArgs::decode(r).is_ok(),
        Op::Verify | Op::Nverify => nfs4::RawAttributes::decode(r).is_ok(),
        Op::Write => nfs4::WriteArgs::decode(r).is_ok(),
        Op::Getfh
        | Op::Lookupp
        | Op::Putpubfh
        | Op::Putrootfh
        | Op::Readlink
        | Op::Restorefh
        | Op::Savefh => true,
        _ => false,
    }
}

/// Declares a target that tries one of several types, chosen by the first byte. Types that `shrink`
/// pass over what they do not use, so that they may be encoded in fewer bytes.
macro_rules! family {
    ($(#[$doc:meta])* $name:ident shrink: $($decoded:ty),+ $(,)?) => {
        $(#[$doc])*
        pub fn $name(bytes: &[u8]) {
            const DECODERS: &[fn(&[u8])] = &[$(|bytes| {
                let Ok(value) = decode_all::<$decoded>(bytes) else { return };
                let mut w = Writer::new();
                value.encode(&mut w);
                assert!(w.len() <= bytes.len(), "{value:?} grew");
                assert_eq!(decode_all::<$decoded>(w.as_slice()), Ok(value));
            }),+];
            if let Some((choice, bytes)) = bytes.split_first() {
                DECODERS[usize::from(*choice) % DECODERS.len()](bytes);
            }
        }
    };
    ($(#[$doc:meta])* $name:ident: $($decoded:ty),+ $(,)?) => {
        $(#[$doc])*
        pub fn $name(bytes: &[u8]) {
            const DECODERS: &[fn(&[u8])] = &[$(|bytes| {
                let Ok(value) = decode_all::<$decoded>(bytes) else { return };
                let mut w = Writer::new();
                value.encode(&mut w);
                assert_eq!(w.len(), bytes.len(), "{value:?} changed its length");
                assert_eq!(decode_all::<$decoded>(w.as_slice()), Ok(value));
            }),+];
            if let Some((choice, bytes)) = bytes.split_first() {
                DECODERS[usize::from(*choice) % DECODERS.len()](bytes);
            }
        }
    };
}

family! {
    /// PORTMAP and RPCBIND arguments and results.
    portmap:
        portmap::Mapping,
        portmap::MappingList<'_>,
        portmap::RpcbEntry<'_>,
        portmap::RpcbEntryList<'_>,
        portmap::Address<'_>,
}

family! {
    /// MOUNT arguments and results.
    mount3:
        mount3::DirectoryArgs<'_>,
        mount3::MountReply<'_>,
        mount3::MountList<'_>,
        mount3::ExportList<'_>,
}

family! {
    /// GETATTR, SETATTR and ACCESS.
    nfs3_attr:
        nfs3::GetattrArgs,
        nfs3::GetattrReply,
        nfs3::SetattrArgs,
        nfs3::SetattrReply,
        nfs3::AccessArgs,
        nfs3::AccessReply,
}

family! {
    /// LOOKUP, READLINK and everything that makes or removes a name.
    nfs3_namespace:
        nfs3::LookupArgs<'_>,
        nfs3::LookupReply,
        nfs3::ReadlinkArgs,
        nfs3::ReadlinkReply<'_>,
        nfs3::CreateArgs<'_>,
        nfs3::MkdirArgs<'_>,
        nfs3::SymlinkArgs<'_>,
        nfs3::MknodArgs<'_>,
        nfs3::CreatedReply,
        nfs3::RemoveArgs<'_>,
        nfs3::RmdirArgs<'_>,
        nfs3::RemovedReply,
        nfs3::RenameArgs<'_>,
        nfs3::RenameReply,
        nfs3::LinkArgs<'_>,
        nfs3::LinkReply,
}

family! {
    /// READDIR and READDIRPLUS.
    nfs3_readdir:
        nfs3::ReaddirArgs,
        nfs3::ReaddirReply<'_>,
        nfs3::ReaddirplusArgs,
        nfs3::ReaddirplusReply<'_>,
}

family! {
    /// READ.
    nfs3_read:
        nfs3::ReadArgs,
        nfs3::ReadReply<'_>,
}

family! {
    /// WRITE and COMMIT.
    nfs3_write:
        nfs3::WriteArgs<'_>,
        nfs3::WriteHead,
        nfs3::WriteReply,
        nfs3::CommitArgs,
        nfs3::CommitReply,
}

family! {
    /// FSSTAT, FSINFO and PATHCONF.
    nfs3_fsinfo:
        nfs3::FsstatArgs,
        nfs3::FsstatReply,
        nfs3::FsinfoArgs,
        nfs3::FsinfoReply,
        nfs3::PathconfArgs,
        nfs3::PathconfReply,
}

family! {
    /// GETATTR, SETATTR, VERIFY and ACCESS.
    nfs4_attr shrink:
        nfs4::Attributes<'_>,
        nfs4::GetattrArgs,
        nfs4::SetattrArgs<'_>,
        nfs4::RawAttributes<'_>,
        nfs4::AccessArgs,
        nfs4::Reply<nfs4::AccessOk>,
        nfs4::Bitmap,
}

family! {
    /// LOOKUP, READLINK, READDIR, SECINFO and the operations that change names.
    nfs4_namespace shrink:
        nfs4::Handle,
        nfs4::NameArgs<'_>,
        nfs4::CreateArgs<'_>,
        nfs4::Reply<nfs4::CreateOk>,
        nfs4::RenameArgs<'_>,
        nfs4::Reply<nfs4::RenameOk>,
        nfs4::Reply<nfs4::ChangedOk>,
        nfs4::Reply<nfs4::ReadlinkOk<'_>>,
        nfs4::Reply<nfs4::SecinfoOk<'_>>,
        nfs4::SecinfoNoNameArgs,
        nfs4::ReaddirArgs,
        nfs4::Reply<nfs4::ReaddirOk<'_>>,
}

family! {
    /// READ, WRITE, COMMIT, SEEK and the operations on ranges.
    nfs4_data shrink:
        nfs4::ReadArgs,
        nfs4::Reply<nfs4::ReadOk<'_>>,
        nfs4::WriteArgs<'_>,
        nfs4::WriteHead,
        nfs4::Reply<nfs4::WriteOk>,
        nfs4::CommitArgs,
        nfs4::Reply<nfs4::CommitOk>,
        nfs4::SeekArgs,
        nfs4::Reply<nfs4::SeekOk>,
        nfs4::AllocateArgs,
        nfs4::CloneArgs,
        nfs4::CopyArgs,
        nfs4::Reply<nfs4::CopyOk>,
}

family! {
    /// Extended attributes.
    nfs4_xattr shrink:
        nfs4::Reply<nfs4::GetxattrOk<'_>>,
        nfs4::SetxattrHead<'_>,
        nfs4::SetxattrArgs<'_>,
        nfs4::ListxattrsArgs,
        nfs4::Reply<nfs4::ListxattrsOk<'_>>,
}

family! {
    /// Clients and sessions.
    nfs4_session shrink:
        nfs4::ExchangeIdArgs<'_>,
        nfs4::Reply<nfs4::ExchangeIdOk<'_>>,
        nfs4::CreateSessionArgs<'_>,
        nfs4::Reply<nfs4::CreateSessionOk>,
        nfs4::SequenceArgs,
        nfs4::Reply<nfs4::SequenceOk>,
        nfs4::BindConnToSession,
        nfs4::BackchannelCtlArgs<'_>,
        nfs4::DestroySessionArgs,
        nfs4::DestroyClientidArgs,
        nfs4::ReclaimCompleteArgs,
        nfs4::CompoundHead<'_>,
        nfs4::CompoundResult<'_>,
        nfs4::CallbackHead<'_>,
        nfs4::CallbackSequenceArgs,
        nfs4::CallbackNotifyLockArgs<'_>,
        nfs4::CallbackRecallArgs,
}

family! {
    /// Opens and locks.
    nfs4_state shrink:
        nfs4::OpenArgs<'_>,
        nfs4::Reply<nfs4::OpenOk>,
        nfs4::OpenDowngradeArgs,
        nfs4::CloseArgs,
        nfs4::Reply<nfs4::OneStateid>,
        nfs4::LockArgs<'_>,
        nfs4::LockDenied<'_>,
        nfs4::LocktArgs<'_>,
        nfs4::LockuArgs,
        nfs4::TestStateidArgs<'_>,
        nfs4::Reply<nfs4::TestStateidOk<'_>>,
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::{fs, io};

    use super::*;

    #[test]
    fn a_walk_passes_over_each_operation_of_the_golden_vectors() -> io::Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/nfs4/compound");
        for path in fs::read_dir(folder)? {
            let path = path?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("args-") && name.ends_with(".bin") {
                let (operations, decoded) = walk(&fs::read(&path)?);
                assert!(operations > 0 && decoded == operations, "{decoded} of {name}");
            }
        }
        Ok(())
    }
}
