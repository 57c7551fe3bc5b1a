//! For each type: decoding what was encoded gives the value back, any strict prefix fails cleanly
//! and so does anything that trails.

use std::fmt::Debug;
use std::net::SocketAddr;

use proptest::array::uniform8;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use proto::mount3::{
    self, DirectoryArgs, ExportNode, Group, MountEntry, MountOk, MountReply, MountStatus,
};
use proto::nfs3::*;
use proto::oncrpc::{
    AcceptStat, AuthStat, AuthSys, CallError, CallHeader, Credential, GIDS_MAX, Gids, RecordMark,
    RejectStat, ReplyHeader, decode_call,
};
use proto::portmap::{Address, Mapping, RpcbEntry, parse_universal_address, universal_address};
use proto::xdr::{Array, DecodeError, Encode, List, Writer, decode_all, encode_list};

/// Encodes `$value` and holds the codec's promises against it. The type is given again because a
/// borrowed value decodes to the same type with another lifetime.
macro_rules! round_trip {
    ($type:ty, $value:expr) => {{
        let value: $type = $value;
        let bytes = encoded(&value);
        assert_eq!(decode_all::<$type>(&bytes).as_ref(), Ok(&value));
        for cut in 0..bytes.len() {
            let failure = decode_all::<$type>(&bytes[..cut]).expect_err("a prefix decoded");
            assert!(failure.at_byte <= cut, "{failure} lies behind a record of {cut} bytes");
        }
        for trailing in [1, 4] {
            let mut longer = bytes.clone();
            longer.resize(bytes.len() + trailing, 0);
            let failure = DecodeError { what: "end of record", at_byte: bytes.len() };
            assert_eq!(decode_all::<$type>(&longer), Err(failure));
        }
    }};
}

fn encoded(value: &(impl Encode + Debug)) -> Vec<u8> {
    let mut w = Writer::from_vec(b"in front".to_vec());
    value.encode(&mut w);
    let bytes = w.into_vec().split_off(8);
    assert_eq!(bytes.len() % 4, 0, "{value:?} is not whole XDR units");
    bytes
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn file_handle() -> impl Strategy<Value = FileHandle> {
    vec(any::<u8>(), 0..=FILE_HANDLE_BYTES_MAX)
        .prop_map(|bytes| FileHandle::new(&bytes).expect("not over the bound"))
}

fn time() -> impl Strategy<Value = Time> {
    any::<(u32, u32)>().prop_map(|(seconds, nseconds)| Time { seconds, nseconds })
}

fn device() -> impl Strategy<Value = DeviceSpec> {
    any::<(u32, u32)>().prop_map(|(major, minor)| DeviceSpec { major, minor })
}

fn one_of<T: Copy + Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    proptest::sample::select(all)
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let times = (time(), time(), time());
    let numbers = (any::<[u32; 4]>(), any::<[u64; 4]>());
    (one_of(FileType::ALL), numbers, device(), times).prop_map(
        |(file_type, (small, large), rdev, (atime, mtime, ctime))| {
            let [mode, nlink, uid, gid] = small;
            let [size, used, fsid, fileid] = large;
            Attributes {
                file_type,
                mode,
                nlink,
                uid,
                gid,
                size,
                used,
                rdev,
                fsid,
                fileid,
                atime,
                mtime,
                ctime,
            }
        },
    )
}

fn post_op() -> impl Strategy<Value = Option<Attributes>> {
    option::of(attributes())
}

fn wcc() -> impl Strategy<Value = WccData> {
    let before = (any::<u64>(), time(), time()).prop_map(|(size, mtime, ctime)| WccAttributes {
        size,
        mtime,
        ctime,
    });
    (option::of(before), post_op()).prop_map(|(before, after)| WccData { before, after })
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![
        Just(SetTime::DontChange),
        Just(SetTime::ToServerTime),
        time().prop_map(SetTime::ToClientTime),
    ]
}

fn set_attributes() -> impl Strategy<Value = SetAttributes> {
    (any::<[Option<u32>; 3]>(), any::<Option<u64>>(), set_time(), set_time()).prop_map(
        |([mode, uid, gid], size, atime, mtime)| SetAttributes {
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
        },
    )
}

fn failure<F: Debug>(body: impl Strategy<Value = F>) -> impl Strategy<Value = Failure<F>> {
    (one_of(Status::ALL), body).prop_map(|(status, body)| Failure { status, body })
}

fn create_how() -> impl Strategy<Value = CreateHow> {
    prop_oneof![
        set_attributes().prop_map(CreateHow::Unchecked),
        set_attributes().prop_map(CreateHow::Guarded),
        any::<[u8; 8]>().prop_map(CreateHow::Exclusive),
    ]
}

fn mknod_data() -> impl Strategy<Value = MknodData> {
    prop_oneof![
        (set_attributes(), device())
            .prop_map(|(attributes, spec)| MknodData::BlockDevice { attributes, spec }),
        (set_attributes(), device())
            .prop_map(|(attributes, spec)| MknodData::CharacterDevice { attributes, spec }),
        set_attributes().prop_map(MknodData::Socket),
        set_attributes().prop_map(MknodData::Fifo),
        one_of(&[FileType::Regular, FileType::Directory, FileType::Symlink])
            .prop_map(MknodData::Other),
    ]
}

/// Few cases, because each tries every prefix; no files beside the tests.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn shared_types(
        handle in file_handle(),
        attributes in attributes(),
        wcc in wcc(),
        set in set_attributes(),
        verifier in any::<[u8; 8]>(),
    ) {
        round_trip!(FileHandle, handle);
        round_trip!(Attributes, attributes);
        round_trip!(WccAttributes, WccAttributes::from(&attributes));
        round_trip!(WccData, wcc);
        round_trip!(SetAttributes, set);
        round_trip!(WriteVerifier, WriteVerifier(verifier));
        round_trip!(CookieVerifier, CookieVerifier(verifier));
    }

    #[test]
    fn attr(
        object in file_handle(),
        attributes in attributes(),
        new_attributes in set_attributes(),
        guard in option::of(time()),
        access in any::<u32>(),
        wcc in wcc(),
        post_op in post_op(),
        failed in failure(Just(())),
        failed_post_op in failure(post_op()),
        failed_wcc in failure(self::wcc()),
    ) {
        round_trip!(GetattrArgs, GetattrArgs { object });
        round_trip!(GetattrReply, Ok(GetattrOk { attributes }));
        round_trip!(GetattrReply, Err(failed));
        round_trip!(SetattrArgs, SetattrArgs { object, new_attributes, guard });
        round_trip!(SetattrReply, Ok(SetattrOk { wcc }));
        round_trip!(SetattrReply, Err(failed_wcc));
        round_trip!(AccessArgs, AccessArgs { object, access });
        round_trip!(AccessReply, Ok(AccessOk { attributes: post_op, access }));
        round_trip!(AccessReply, Err(failed_post_op));
    }

    #[test]
    fn lookup_and_readlink(
        dir in file_handle(),
        name in bytes(),
        object in file_handle(),
        object_attributes in post_op(),
        dir_attributes in post_op(),
        failed in failure(post_op()),
    ) {
        round_trip!(LookupArgs<'_>, LookupArgs { what: DirOp { dir, name: &name } });
        round_trip!(LookupReply, Ok(LookupOk { object, object_attributes, dir_attributes }));
        round_trip!(LookupReply, Err(failed));
        round_trip!(ReadlinkArgs, ReadlinkArgs { symlink: object });
        let ok = ReadlinkOk { attributes: object_attributes, target: &name };
        round_trip!(ReadlinkReply<'_>, Ok(ok));
        round_trip!(ReadlinkReply<'_>, Err(failed));
    }

    #[test]
    fn create_mkdir_symlink_mknod(
        dir in file_handle(),
        name in bytes(),
        target in bytes(),
        attributes in set_attributes(),
        how in create_how(),
        what in mknod_data(),
        object in option::of(file_handle()),
        post_op in post_op(),
        dir_wcc in wcc(),
        failed in failure(wcc()),
    ) {
        let where_ = DirOp { dir, name: &name };
        round_trip!(CreateArgs<'_>, CreateArgs { where_, how });
        round_trip!(MkdirArgs<'_>, MkdirArgs { where_, attributes });
        round_trip!(SymlinkArgs<'_>, SymlinkArgs { where_, attributes, target: &target });
        round_trip!(MknodArgs<'_>, MknodArgs { where_, what });
        round_trip!(CreatedReply, Ok(CreatedOk { object, attributes: post_op, dir_wcc }));
        round_trip!(CreatedReply, Err(failed));
    }

    #[test]
    fn remove_rmdir_rename_link(
        dir in file_handle(),
        file in file_handle(),
        from_name in bytes(),
        to_name in bytes(),
        file_attributes in post_op(),
        from_wcc in wcc(),
        to_wcc in wcc(),
        status in one_of(Status::ALL),
    ) {
        let from = DirOp { dir, name: &from_name };
        let to = DirOp { dir: file, name: &to_name };
        round_trip!(RemoveArgs<'_>, RemoveArgs { object: from });
        round_trip!(RmdirArgs<'_>, RmdirArgs { object: to });
        round_trip!(RemovedReply, Ok(RemovedOk { dir_wcc: from_wcc }));
        round_trip!(RemovedReply, Err(Failure { status, body: from_wcc }));
        round_trip!(RenameArgs<'_>, RenameArgs { from, to });
        round_trip!(RenameReply, Ok(RenameOk { from_wcc, to_wcc }));
        round_trip!(RenameReply, Err(Failure { status, body: RenameFailure { from_wcc, to_wcc } }));
        round_trip!(LinkArgs<'_>, LinkArgs { file, link: from });
        round_trip!(LinkReply, Ok(LinkOk { file_attributes, dir_wcc: to_wcc }));
        let body = LinkFailure { file_attributes, dir_wcc: to_wcc };
        round_trip!(LinkReply, Err(Failure { status, body }));
    }

    #[test]
    fn readdir_and_readdirplus(
        dir in file_handle(),
        [cookie, fileid] in any::<[u64; 2]>(),
        verifier in uniform8(any::<u8>()).prop_map(CookieVerifier),
        [count, dir_count, max_count] in any::<[u32; 3]>(),
        names in vec(bytes(), 0..4),
        dir_attributes in post_op(),
        attributes in post_op(),
        handle in option::of(file_handle()),
        eof in any::<bool>(),
        failed in failure(post_op()),
    ) {
        round_trip!(ReaddirArgs, ReaddirArgs { dir, cookie, verifier, count });
        let args = ReaddirplusArgs { dir, cookie, verifier, dir_count, max_count };
        round_trip!(ReaddirplusArgs, args);
        let entries: Vec<_> = names.iter().map(|name| Entry { fileid, name, cookie }).collect();
        let entries = List::from(entries.as_slice());
        round_trip!(ReaddirReply<'_>, Ok(ReaddirOk { dir_attributes, verifier, entries, eof }));
        round_trip!(ReaddirReply<'_>, Err(failed));
        let entries: Vec<_> = names
            .iter()
            .map(|name| EntryPlus { fileid, name, cookie, attributes, handle })
            .collect();
        let entries = List::from(entries.as_slice());
        let ok = ReaddirplusOk { dir_attributes, verifier, entries, eof };
        round_trip!(ReaddirplusReply<'_>, Ok(ok));
        round_trip!(ReaddirplusReply<'_>, Err(failed));
    }

    #[test]
    fn entry_encoder_writes_what_the_types_do(
        verifier in uniform8(any::<u8>()).prop_map(CookieVerifier),
        names in vec(bytes(), 0..6),
        dir_attributes in attributes().prop_map(Some),
        attributes in post_op(),
        handle in option::of(file_handle()),
        [dir_count, max_count] in [0_u32..400, 0_u32..900],
        eof in any::<bool>(),
    ) {
        let all: Vec<_> = names
            .iter()
            .zip(1..)
            .map(|(name, cookie)| EntryPlus { fileid: cookie, name, cookie, attributes, handle })
            .collect();
        let mut w = Writer::new();
        encode_listing_head(&mut w, dir_attributes.as_ref(), verifier);
        let limits = ListingLimits { bytes: max_count, dir_bytes: dir_count };
        let mut encoder = EntryEncoder::new(limits);
        let pushed = all
            .iter()
            .take_while(|entry| encoder.encode_plus(entry).map(|bytes| w.array(bytes)).is_some())
            .count();
        w.array(&listing_end(eof));
        let body = w.as_slice();

        let size_of = |n: usize| {
            let entries = List::from(&all[..n]);
            encoded(&ReaddirplusOk { dir_attributes, verifier, entries, eof })
        };
        let dir_bytes_of = |n: usize| -> usize {
            all[..n].iter().map(|e| 8 + 4 + e.name.len().div_ceil(4) * 4 + 8).sum()
        };
        assert_eq!(body, size_of(pushed));
        // The first entry may exceed dir_count.
        let fits = |n: usize| {
            size_of(n).len() <= max_count as usize
                && (n == 1 || dir_bytes_of(n) <= dir_count as usize)
        };
        assert!(pushed == 0 || fits(pushed), "a limit is broken");
        assert!(pushed == all.len() || !fits(pushed + 1), "an entry that fits was refused");
    }

    #[test]
    fn read_write_commit(
        file in file_handle(),
        offset in any::<u64>(),
        count in any::<u32>(),
        stable in one_of(StableHow::ALL),
        data in bytes(),
        eof in any::<bool>(),
        attributes in post_op(),
        wcc in wcc(),
        verifier in uniform8(any::<u8>()).prop_map(WriteVerifier),
        failed in failure(post_op()),
        failed_wcc in failure(self::wcc()),
    ) {
        let data_len = u32::try_from(data.len()).unwrap();
        round_trip!(ReadArgs, ReadArgs { file, offset, count });
        let ok = ReadOk { attributes, count: data_len, eof, data: &data };
        round_trip!(ReadReply<'_>, Ok(ok));
        round_trip!(ReadReply<'_>, Err(failed));
        let args = WriteArgs { file, offset, count: data_len, stable, data: &data };
        round_trip!(WriteArgs<'_>, args);
        let head = WriteHead { file, offset, count: data_len, stable, data_len };
        round_trip!(WriteHead, head);
        assert!(encoded(&args).starts_with(&encoded(&head)));
        round_trip!(WriteReply, Ok(WriteOk { wcc, count, committed: stable, verifier }));
        round_trip!(WriteReply, Err(failed_wcc));
        round_trip!(CommitArgs, CommitArgs { file, offset, count });
        round_trip!(CommitReply, Ok(CommitOk { wcc, verifier }));
        round_trip!(CommitReply, Err(failed_wcc));

        let mut w = Writer::new();
        ReadOk::encode_head(attributes.as_ref(), data_len, eof, &mut w);
        w.array(&data);
        assert_eq!(w.into_vec(), encoded(&ok), "head and payload are the whole");
    }

    #[test]
    fn fsinfo(
        object in file_handle(),
        attributes in post_op(),
        large in any::<[u64; 6]>(),
        small in any::<[u32; 9]>(),
        flags in any::<[bool; 4]>(),
        time_delta in time(),
        failed in failure(post_op()),
    ) {
        round_trip!(FsstatArgs, FsstatArgs { fsroot: object });
        round_trip!(FsinfoArgs, FsinfoArgs { fsroot: object });
        round_trip!(PathconfArgs, PathconfArgs { object });
        let [tbytes, fbytes, abytes, tfiles, ffiles, afiles] = large;
        let [rtmax, rtpref, rtmult, wtmax, wtpref, wtmult, dtpref, properties, invarsec] = small;
        let fsstat =
            FsstatOk { attributes, tbytes, fbytes, abytes, tfiles, ffiles, afiles, invarsec };
        round_trip!(FsstatReply, Ok(fsstat));
        round_trip!(FsstatReply, Err(failed));
        let fsinfo = FsinfoOk {
            attributes,
            rtmax,
            rtpref,
            rtmult,
            wtmax,
            wtpref,
            wtmult,
            dtpref,
            maxfilesize: tbytes,
            time_delta,
            properties,
        };
        round_trip!(FsinfoReply, Ok(fsinfo));
        round_trip!(FsinfoReply, Err(failed));
        let [no_trunc, chown_restricted, case_insensitive, case_preserving] = flags;
        let pathconf = PathconfOk {
            attributes,
            linkmax: rtmax,
            name_max: rtpref,
            no_trunc,
            chown_restricted,
            case_insensitive,
            case_preserving,
        };
        round_trip!(PathconfReply, Ok(pathconf));
        round_trip!(PathconfReply, Err(failed));
    }

    #[test]
    fn mount(
        file_handle in file_handle(),
        flavors in vec(any::<u32>(), 0..5),
        status in one_of(MountStatus::ALL),
        names in vec(bytes(), 0..4),
        directory in bytes(),
    ) {
        round_trip!(DirectoryArgs<'_>, DirectoryArgs { directory: &directory });
        let auth_flavors = Array::from(flavors.as_slice());
        round_trip!(MountReply<'_>, Ok(MountOk { file_handle, auth_flavors }));
        round_trip!(MountReply<'_>, Err(status));
        let entries: Vec<_> =
            names.iter().map(|name| MountEntry { hostname: name, directory: &directory }).collect();
        round_trip!(mount3::MountList<'_>, List::from(entries.as_slice()));
        let groups: Vec<_> = names.iter().map(|name| Group { name }).collect();
        let node = ExportNode { directory: &directory, groups: List::from(groups.as_slice()) };
        let nodes = [node, node];
        round_trip!(mount3::ExportList<'_>, List::from(nodes.as_slice()));
    }

    #[test]
    fn portmap(
        numbers in any::<[u32; 4]>(),
        strings in [bytes(), bytes(), bytes()],
        address in any::<SocketAddr>(),
    ) {
        let [program, version, protocol, port] = numbers;
        let mapping = Mapping { program, version, protocol, port };
        round_trip!(Mapping, mapping);
        let mappings = [mapping; 3];
        round_trip!(proto::portmap::MappingList<'_>, List::from(mappings.as_slice()));
        let [netid, text, owner] = strings.each_ref().map(Vec::as_slice);
        let entry = RpcbEntry { program, version, netid, address: text, owner };
        round_trip!(RpcbEntry<'_>, entry);
        let entries = [entry; 2];
        round_trip!(proto::portmap::RpcbEntryList<'_>, List::from(entries.as_slice()));
        round_trip!(Address<'_>, Address { address: owner });

        let parsed = parse_universal_address(universal_address(address).as_bytes()).unwrap();
        assert_eq!((parsed.ip(), parsed.port()), (address.ip(), address.port()));
        let _ = parse_universal_address(text);
    }

    #[test]
    fn call_headers(
        numbers in any::<[u32; 6]>(),
        machine_name in vec(any::<u8>(), 0..=255),
        gids in vec(any::<u32>(), 0..=GIDS_MAX),
        flavor in 2_u32..,
        body in vec(any::<u8>(), 0..=400),
    ) {
        let [xid, program, version, procedure, uid, gid] = numbers;
        let gids = Gids::new(&gids).unwrap();
        let sys = AuthSys { stamp: xid, machine_name: &machine_name, uid, gid, gids };
        let other = Credential::Other { flavor, body: &body };
        for credential in [Credential::None, Credential::Sys(sys), other] {
            let call = CallHeader {
                xid,
                program,
                version,
                procedure,
                credential,
                verifier_flavor: 0,
            };
            let mut bytes = encoded(&call);
            for cut in 0..bytes.len() {
                let cut_short = decode_call(&mut proto::xdr::Reader::new(&bytes[..cut]));
                assert!(matches!(cut_short, Err(CallError::Malformed(_))), "{cut_short:?}");
            }
            let header_len = bytes.len();
            bytes.extend_from_slice(b"arguments");
            let mut r = proto::xdr::Reader::new(&bytes);
            assert_eq!(decode_call(&mut r), Ok(call));
            assert_eq!(r.position(), header_len, "the reader is at the arguments");
        }
    }

    #[test]
    fn reply_headers(xid in any::<u32>(), low in any::<u32>(), high in any::<u32>()) {
        for stat in [
            AcceptStat::Success,
            AcceptStat::ProgUnavail,
            AcceptStat::ProgMismatch { low, high },
            AcceptStat::ProcUnavail,
            AcceptStat::GarbageArgs,
            AcceptStat::SystemErr,
        ] {
            round_trip!(ReplyHeader, ReplyHeader::Accepted { xid, stat });
        }
        round_trip!(ReplyHeader, ReplyHeader::Denied(xid, RejectStat::RpcMismatch { low, high }));
        for stat in AuthStat::ALL {
            round_trip!(ReplyHeader, ReplyHeader::Denied(xid, RejectStat::AuthError(*stat)));
        }
    }

    #[test]
    fn record_marks(bytes in any::<[u8; 4]>()) {
        assert_eq!(RecordMark::from_bytes(bytes).to_bytes(), bytes);
    }

    #[test]
    fn a_list_from_an_iterator_is_that_of_a_slice(numbers in vec(any::<u32>(), 0..9)) {
        let mut w = Writer::new();
        encode_list(&mut w, &numbers);
        assert_eq!(w.into_vec(), encoded(&List::from(numbers.as_slice())));
    }
}
