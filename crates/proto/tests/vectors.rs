//! The golden vectors: `vectors/<program>/<procedure>/<kind>.bin` is one whole RPC record without
//! its record mark, `<kind>` begins with `call`, `reply-ok` or `reply-err`; or it is the arguments
//! or the results alone of a COMPOUND or CB_COMPOUND, and `<kind>` begins with `args` or `results`.
//! Beside it `<kind>.txt` describes it and names its origin in lines that begin with `#`, then
//! shows it as decoded.
//!
//! Most were captured from clients and servers that others wrote (Linux, libnfs, nfs-ganesha,
//! nfs-utils, rpcbind), with `vectors/capture.py`; their kind ends in who sent them. The rest,
//! forms that none of these sends, was packed by hand from the RFCs, those of version 4 by
//! `vectors/pack.py`. A captured record that does not encode to the same bytes is a fault of ours,
//! not of the vector.
//!
//! Set `REWRITE_VECTORS` to write the renderings anew; the `#` lines stay. Then review the
//! difference.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proto::oncrpc::{AcceptStat, ReplyHeader, decode_call};
use proto::xdr::{Decode, DecodeError, Encode, Reader, Writer};
use proto::{mount3, nfs3, nfs4, portmap};

/// The steps for the bytes behind an RPC header: decode, encode again, render.
type Body = fn(&mut Reader<'_>, &mut Writer) -> Result<String, DecodeError>;

struct Procedure {
    /// `<program>/<procedure>`, as the folder.
    folder: &'static str,
    program: u32,
    procedure: u32,
    call: Body,
    reply: Body,
}

macro_rules! body {
    ($type:ty) => {
        |r, w| {
            let value = <$type>::decode(r)?;
            value.encode(w);
            Ok(format!("{value:#?}"))
        }
    };
}

macro_rules! procedures {
    ($($folder:literal $program:expr, $procedure:expr, $call:ty => $reply:ty;)*) => {
        const PROCEDURES: &[Procedure] = &[$(Procedure {
            folder: $folder,
            program: $program,
            procedure: $procedure.code(),
            call: body!($call),
            reply: body!($reply),
        }),*];
    };
}

use mount3::Procedure as M;
use nfs3::Procedure as N;
use portmap::{PortmapProcedure as P, RpcbindProcedure as R};

procedures! {
    "portmap/null" portmap::PROGRAM, P::Null, () => ();
    "portmap/set" portmap::PROGRAM, P::Set, portmap::Mapping => bool;
    "portmap/unset" portmap::PROGRAM, P::Unset, portmap::Mapping => bool;
    "portmap/getport" portmap::PROGRAM, P::Getport, portmap::Mapping => u32;
    "portmap/dump" portmap::PROGRAM, P::Dump, () => portmap::MappingList<'_>;
    "rpcbind/set" portmap::PROGRAM, R::Set, portmap::RpcbEntry<'_> => bool;
    "rpcbind/unset" portmap::PROGRAM, R::Unset, portmap::RpcbEntry<'_> => bool;
    "rpcbind/getaddr" portmap::PROGRAM, R::Getaddr, portmap::RpcbEntry<'_> => portmap::Address<'_>;
    "rpcbind/dump" portmap::PROGRAM, R::Dump, () => portmap::RpcbEntryList<'_>;
    "mount3/null" mount3::PROGRAM, M::Null, () => ();
    "mount3/mnt" mount3::PROGRAM, M::Mnt, mount3::DirectoryArgs<'_> => mount3::MountReply<'_>;
    "mount3/dump" mount3::PROGRAM, M::Dump, () => mount3::MountList<'_>;
    "mount3/umnt" mount3::PROGRAM, M::Umnt, mount3::DirectoryArgs<'_> => ();
    "mount3/umntall" mount3::PROGRAM, M::Umntall, () => ();
    "mount3/export" mount3::PROGRAM, M::Export, () => mount3::ExportList<'_>;
    "nfs3/null" nfs3::PROGRAM, N::Null, () => ();
    "nfs3/getattr" nfs3::PROGRAM, N::Getattr, nfs3::GetattrArgs => nfs3::GetattrReply;
    "nfs3/setattr" nfs3::PROGRAM, N::Setattr, nfs3::SetattrArgs => nfs3::SetattrReply;
    "nfs3/lookup" nfs3::PROGRAM, N::Lookup, nfs3::LookupArgs<'_> => nfs3::LookupReply;
    "nfs3/access" nfs3::PROGRAM, N::Access, nfs3::AccessArgs => nfs3::AccessReply;
    "nfs3/readlink" nfs3::PROGRAM, N::Readlink, nfs3::ReadlinkArgs => nfs3::ReadlinkReply<'_>;
    "nfs3/read" nfs3::PROGRAM, N::Read, nfs3::ReadArgs => nfs3::ReadReply<'_>;
    "nfs3/write" nfs3::PROGRAM, N::Write, nfs3::WriteArgs<'_> => nfs3::WriteReply;
    "nfs3/create" nfs3::PROGRAM, N::Create, nfs3::CreateArgs<'_> => nfs3::CreatedReply;
    "nfs3/mkdir" nfs3::PROGRAM, N::Mkdir, nfs3::MkdirArgs<'_> => nfs3::CreatedReply;
    "nfs3/symlink" nfs3::PROGRAM, N::Symlink, nfs3::SymlinkArgs<'_> => nfs3::CreatedReply;
    "nfs3/mknod" nfs3::PROGRAM, N::Mknod, nfs3::MknodArgs<'_> => nfs3::CreatedReply;
    "nfs3/remove" nfs3::PROGRAM, N::Remove, nfs3::RemoveArgs<'_> => nfs3::RemovedReply;
    "nfs3/rmdir" nfs3::PROGRAM, N::Rmdir, nfs3::RmdirArgs<'_> => nfs3::RemovedReply;
    "nfs3/rename" nfs3::PROGRAM, N::Rename, nfs3::RenameArgs<'_> => nfs3::RenameReply;
    "nfs3/link" nfs3::PROGRAM, N::Link, nfs3::LinkArgs<'_> => nfs3::LinkReply;
    "nfs3/readdir" nfs3::PROGRAM, N::Readdir, nfs3::ReaddirArgs => nfs3::ReaddirReply<'_>;
    "nfs3/readdirplus" nfs3::PROGRAM, N::Readdirplus,
        nfs3::ReaddirplusArgs => nfs3::ReaddirplusReply<'_>;
    "nfs3/fsstat" nfs3::PROGRAM, N::Fsstat, nfs3::FsstatArgs => nfs3::FsstatReply;
    "nfs3/fsinfo" nfs3::PROGRAM, N::Fsinfo, nfs3::FsinfoArgs => nfs3::FsinfoReply;
    "nfs3/pathconf" nfs3::PROGRAM, N::Pathconf, nfs3::PathconfArgs => nfs3::PathconfReply;
    "nfs3/commit" nfs3::PROGRAM, N::Commit, nfs3::CommitArgs => nfs3::CommitReply;
}

/// An operation of version 4, and what to do with its arguments and its result.
struct Operation {
    code: nfs4::OperationCode,
    args: Body,
    result: Body,
}

macro_rules! operations {
    ($($operation:ident $args:ty => $result:ty;)*) => {
        const OPERATIONS: &[Operation] = &[$(Operation {
            code: nfs4::OperationCode::$operation,
            args: body!($args),
            result: body!(nfs4::Reply<$result>),
        }),*];
    };
}

operations! {
    Access nfs4::AccessArgs => nfs4::AccessOk;
    Close nfs4::CloseArgs => nfs4::OneStateid;
    Commit nfs4::CommitArgs => nfs4::CommitOk;
    Create nfs4::CreateArgs<'_> => nfs4::CreateOk;
    Delegreturn nfs4::OneStateid => ();
    Getattr nfs4::GetattrArgs => nfs4::Attributes<'_>;
    Getfh () => nfs4::Handle;
    Link nfs4::NameArgs<'_> => nfs4::ChangedOk;
    Lock nfs4::LockArgs<'_> => nfs4::OneStateid;
    Lockt nfs4::LocktArgs<'_> => ();
    Locku nfs4::LockuArgs => nfs4::OneStateid;
    Lookup nfs4::NameArgs<'_> => ();
    Lookupp () => ();
    Nverify nfs4::RawAttributes<'_> => ();
    Open nfs4::OpenArgs<'_> => nfs4::OpenOk;
    OpenDowngrade nfs4::OpenDowngradeArgs => nfs4::OneStateid;
    Putfh nfs4::Handle => ();
    Putpubfh () => ();
    Putrootfh () => ();
    Read nfs4::ReadArgs => nfs4::ReadOk<'_>;
    Readdir nfs4::ReaddirArgs => nfs4::ReaddirOk<'_>;
    Readlink () => nfs4::ReadlinkOk<'_>;
    Remove nfs4::NameArgs<'_> => nfs4::ChangedOk;
    Rename nfs4::RenameArgs<'_> => nfs4::RenameOk;
    Restorefh () => ();
    Savefh () => ();
    Secinfo nfs4::NameArgs<'_> => nfs4::SecinfoOk<'_>;
    Setattr nfs4::SetattrArgs<'_> => ();
    Verify nfs4::RawAttributes<'_> => ();
    Write nfs4::WriteArgs<'_> => nfs4::WriteOk;
    BackchannelCtl nfs4::BackchannelCtlArgs<'_> => ();
    BindConnToSession nfs4::BindConnToSession => nfs4::BindConnToSession;
    ExchangeId nfs4::ExchangeIdArgs<'_> => nfs4::ExchangeIdOk<'_>;
    CreateSession nfs4::CreateSessionArgs<'_> => nfs4::CreateSessionOk;
    DestroySession nfs4::DestroySessionArgs => ();
    FreeStateid nfs4::OneStateid => ();
    SecinfoNoName nfs4::SecinfoNoNameArgs => nfs4::SecinfoOk<'_>;
    Sequence nfs4::SequenceArgs => nfs4::SequenceOk;
    TestStateid nfs4::TestStateidArgs<'_> => nfs4::TestStateidOk<'_>;
    DestroyClientid nfs4::DestroyClientidArgs => ();
    ReclaimComplete nfs4::ReclaimCompleteArgs => ();
    Allocate nfs4::AllocateArgs => ();
    Copy nfs4::CopyArgs => nfs4::CopyOk;
    Deallocate nfs4::AllocateArgs => ();
    Seek nfs4::SeekArgs => nfs4::SeekOk;
    Clone nfs4::CloneArgs => ();
    Getxattr nfs4::NameArgs<'_> => nfs4::GetxattrOk<'_>;
    Setxattr nfs4::SetxattrArgs<'_> => nfs4::ChangedOk;
    Listxattrs nfs4::ListxattrsArgs => nfs4::ListxattrsOk<'_>;
    Removexattr nfs4::NameArgs<'_> => nfs4::ChangedOk;
}

/// Replies for which the procedure does not matter, because the call never reached it.
const REFUSALS: &str = "oncrpc/";
const CALLBACKS: &str = "nfs4/cb_compound";

#[test]
fn every_vector_is_read_written_and_rendered_as_recorded() {
    let mut faults = String::new();
    for path in vector_files() {
        let bytes = fs::read(&path).unwrap();
        let (folder, kind) = folder_and_kind(&path);
        match rendered(&folder, &kind, &bytes) {
            Ok(rendering) => faults.push_str(&compared(&path, &rendering)),
            Err(fault) => writeln!(faults, "{}: {fault}", path.display()).unwrap(),
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}

#[test]
fn every_procedure_has_its_vectors() {
    let present: BTreeSet<(String, String)> =
        vector_files().iter().map(|path| folder_and_kind(path)).collect();
    let has =
        |folder: &str, kind: &str| present.iter().any(|(f, k)| f == folder && k.starts_with(kind));
    for Procedure { folder, .. } in PROCEDURES {
        assert!(has(folder, "call"), "{folder} lacks a call");
        assert!(has(folder, "reply-ok"), "{folder} lacks a successful reply");
        let can_fail =
            *folder == "mount3/mnt" || folder.starts_with("nfs3/") && *folder != "nfs3/null";
        assert!(!can_fail || has(folder, "reply-err"), "{folder} lacks a failed reply");
    }
    for procedure in N::ALL {
        let folder = format!("nfs3/{}", procedure.name().to_lowercase());
        assert!(PROCEDURES.iter().any(|p| p.folder == folder), "{folder} is not in the table");
    }
}

#[test]
fn every_operation_has_its_vectors() {
    let renderings: Vec<_> = vector_files().iter().map(|path| path.with_extension("txt")).collect();
    for Operation { code, .. } in OPERATIONS {
        for kind in ["args-", "results-"] {
            let shows = |path: &PathBuf| {
                folder_and_kind(path).1.starts_with(kind)
                    && fs::read_to_string(path).unwrap().contains(&format!("\n{code:?} "))
            };
            assert!(renderings.iter().any(shows), "{code:?} lacks {kind}");
        }
    }
}

/// SETXATTR is decoded by its head where the value is still in the socket.
#[test]
fn the_head_of_setxattr_is_the_beginning_of_its_arguments() {
    let (option, name, value) = (nfs4::SetxattrOption::Replace, &b"colour"[..], &b"green"[..]);
    let mut w = Writer::new();
    nfs4::SetxattrArgs { option, name, value }.encode(&mut w);
    let mut r = Reader::new(w.as_slice());
    let head = nfs4::SetxattrHead::decode(&mut r);
    assert_eq!(head, Ok(nfs4::SetxattrHead { option, name, value_len: 5 }));
    assert_eq!(&w.as_slice()[r.position()..], b"green\0\0\0");
}

#[test]
fn a_vector_with_a_byte_too_many_or_too_few_is_refused() {
    for path in vector_files() {
        let (folder, kind) = folder_and_kind(&path);
        let mut bytes = fs::read(&path).unwrap();
        for len in 0..bytes.len() {
            let shorter = rendered(&folder, &kind, &bytes[..len]);
            assert!(shorter.is_err(), "{} cut to {len} bytes", path.display());
        }
        bytes.push(0);
        assert!(rendered(&folder, &kind, &bytes).is_err(), "{} and a byte", path.display());
    }
}

/// Decodes a whole record, checks that it encodes to itself, and shows it.
fn rendered(folder: &str, kind: &str, bytes: &[u8]) -> Result<String, String> {
    let mut r = Reader::new(bytes);
    let mut w = Writer::new();
    let mut text = if kind.starts_with("args") && folder == CALLBACKS {
        callback(&mut r, &mut w).map_err(|failure| failure.to_string())?
    } else if kind.starts_with("args") {
        compound(&mut r, &mut w).map_err(|failure| failure.to_string())?
    } else if kind.starts_with("results") {
        results(&mut r, &mut w).map_err(|failure| failure.to_string())?
    } else if kind.starts_with("call") {
        call(folder, &mut r, &mut w)?
    } else {
        reply(folder, kind, &mut r, &mut w)?
    };
    r.finish().map_err(|failure| failure.to_string())?;
    text.push('\n');
    // EXCHANGE_ID and CREATE_SESSION pass over names that the server does not use.
    let is_shorter = kind.starts_with("args") && w.len() < bytes.len();
    if is_shorter && rendered(folder, kind, w.as_slice())? == text {
        return Ok(text);
    }
    if w.as_slice() != bytes {
        return Err(format!("encodes to other bytes:\n{:02x?}\n{bytes:02x?}", w.as_slice()));
    }
    Ok(text)
}

/// The arguments of a COMPOUND.
fn compound(r: &mut Reader<'_>, w: &mut Writer) -> Result<String, DecodeError> {
    let head = nfs4::CompoundHead::decode(r)?;
    head.encode(w);
    let mut text = format!("{head:#?}");
    for _ in 0..head.operations {
        let operation = next_operation(r, w)?;
        let args = (operation.args)(r, w)?;
        write!(text, "\n{:?} {args}", operation.code).expect("a String takes all");
    }
    Ok(text)
}

/// The results of a COMPOUND.
fn results(r: &mut Reader<'_>, w: &mut Writer) -> Result<String, DecodeError> {
    let head = nfs4::CompoundResult::decode(r)?;
    head.encode(w);
    let mut text = format!("{head:#?}");
    for _ in 0..head.results {
        let operation = next_operation(r, w)?;
        let status = r.clone().u32("nfsstat4")?;
        let result = (operation.result)(r, w)?;
        write!(text, "\n{:?} {result}", operation.code).expect("a String takes all");
        // SETATTR's attrsset, which follows any status, and LOCK4denied are not part of `result`.
        let rest: Option<Body> = match operation.code {
            nfs4::OperationCode::Setattr => Some(body!(nfs4::Bitmap)),
            nfs4::OperationCode::Lock | nfs4::OperationCode::Lockt
                if status == nfs4::Status::Denied.code() =>
            {
                Some(body!(nfs4::LockDenied<'_>))
            }
            _ => None,
        };
        if let Some(rest) = rest {
            write!(text, " {}", rest(r, w)?).expect("a String takes all");
        }
    }
    Ok(text)
}

fn next_operation(r: &mut Reader<'_>, w: &mut Writer) -> Result<&'static Operation, DecodeError> {
    let code = nfs4::next_operation(r)?.expect("the operations of the vectors are known");
    code.encode(w);
    let found = OPERATIONS.iter().find(|operation| operation.code == code);
    Ok(found.expect("the operations of the vectors are in the table"))
}

/// The arguments of a CB_COMPOUND.
fn callback(r: &mut Reader<'_>, w: &mut Writer) -> Result<String, DecodeError> {
    let head = nfs4::CallbackHead::decode(r)?;
    head.encode(w);
    let mut text = format!("{head:#?}");
    for _ in 0..head.operations {
        let code = r.u32("nfs_cb_opnum4")?;
        w.u32(code);
        let args: Body = match code {
            nfs4::CB_SEQUENCE => body!(nfs4::CallbackSequenceArgs),
            nfs4::CB_RECALL => body!(nfs4::CallbackRecallArgs),
            nfs4::CB_NOTIFY_LOCK => body!(nfs4::CallbackNotifyLockArgs<'_>),
            _ => panic!("{code} is not among the callbacks"),
        };
        write!(text, "\n{}", args(r, w)?).expect("a String takes all");
    }
    Ok(text)
}

fn call(folder: &str, r: &mut Reader<'_>, w: &mut Writer) -> Result<String, String> {
    let procedure = procedure(folder)?;
    let header = decode_call(r).map_err(|fault| fault.to_string())?;
    if (header.program, header.procedure) != (procedure.program, procedure.procedure) {
        return Err(format!("calls another procedure: {header:?}"));
    }
    header.encode(w);
    let args = (procedure.call)(r, w).map_err(|failure| failure.to_string())?;
    Ok(format!("{header:#?}\n{args}"))
}

fn reply(folder: &str, kind: &str, r: &mut Reader<'_>, w: &mut Writer) -> Result<String, String> {
    let header = ReplyHeader::decode(r).map_err(|failure| failure.to_string())?;
    header.encode(w);
    let executed = matches!(header, ReplyHeader::Accepted { stat: AcceptStat::Success, .. });
    if folder.starts_with(REFUSALS) {
        return if executed { Err("is not a refusal".into()) } else { Ok(format!("{header:#?}")) };
    }
    if !executed {
        return Err(format!("was not executed: {header:?}"));
    }
    let body = (procedure(folder)?.reply)(r, w).map_err(|failure| failure.to_string())?;
    if body.starts_with("Err(") != kind.starts_with("reply-err") {
        return Err(format!("is not a {kind}: {body}"));
    }
    Ok(format!("{header:#?}\n{body}"))
}

fn procedure(folder: &str) -> Result<&'static Procedure, String> {
    let found = PROCEDURES.iter().find(|procedure| procedure.folder == folder);
    found.ok_or_else(|| format!("no procedure is called {folder}"))
}

/// Holds the rendering against the `.txt`, or rewrites it; the result is empty or names the
/// difference.
fn compared(path: &Path, rendering: &str) -> String {
    let text_path = path.with_extension("txt");
    let recorded = fs::read_to_string(&text_path).unwrap_or_default();
    let is_remark = |line: &&str| line.starts_with('#');
    let remarks: String = recorded.split_inclusive('\n').take_while(is_remark).collect();
    if !remarks.contains("Origin: ") {
        return format!("{}: no line names the origin\n", text_path.display());
    }
    let current = format!("{remarks}{rendering}");
    if current == recorded {
        String::new()
    } else if std::env::var_os("REWRITE_VECTORS").is_some() {
        fs::write(&text_path, current).expect("the vectors can be rewritten");
        String::new()
    } else {
        format!("{}: recorded\n{recorded}but decoded\n{current}\n", text_path.display())
    }
}

fn vector_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let mut files = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the vectors' folder can be listed") {
            let path = entry.expect("the vectors' folder can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "bin") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// `…/vectors/nfs3/read/call.bin` is `nfs3/read` and `call`.
fn folder_and_kind(path: &Path) -> (String, String) {
    let kind = path.file_stem().and_then(OsStr::to_str).expect("vectors have plain names");
    let folder = path.parent().and_then(|procedure| {
        let program = procedure.parent()?.file_name()?.to_str()?;
        Some(format!("{program}/{}", procedure.file_name()?.to_str()?))
    });
    (folder.expect("a vector lies in the folder of its procedure"), kind.to_owned())
}
