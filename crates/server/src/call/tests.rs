use proptest::prelude::*;
use proto::nfs3::{FileHandle, GetattrArgs, Procedure as P, StableHow, WriteArgs};
use proto::nfs4::{CompoundHead, OperationCode};
use proto::oncrpc::{AuthSys, CallHeader, Credential, Gids};
use proto::xdr::{Encode, Writer};
use proto::{mount3, portmap};

use super::*;
use crate::config::NfsVersions;
use crate::counters::Operation as Counted;
use crate::placement;
use crate::procedures::Thread;

const FILES: Programs = Programs::Files(NfsVersions::V3);
const NFS: (u32, u32) = (nfs3::PROGRAM, nfs3::VERSION);

fn call((program, version): (u32, u32), code: u32, args: &impl Encode) -> Vec<u8> {
    let gids = Gids::new(&[1, 2, 3]).unwrap();
    let sys = AuthSys { stamp: 5, machine_name: b"client", uid: 1, gid: 2, gids };
    let credential = Credential::Sys(sys);
    let mut w = Writer::new();
    CallHeader { xid: 7, program, version, procedure: code, credential, verifier_flavor: 0 }
        .encode(&mut w);
    args.encode(&mut w);
    w.into_vec()
}

/// A call whose arguments are those of a WRITE, whatever its program and version, and the length of
/// its head.
fn write_call(version: (u32, u32)) -> (Vec<u8>, usize) {
    let file = FileHandle::new(&[9; 30]).unwrap();
    let args =
        WriteArgs { file, offset: 5, count: 13, stable: StableHow::Unstable, data: &[7; 13] };
    let call = call(version, P::Write.code(), &args);
    let head_bytes = call.len() - 16;
    (call, head_bytes)
}

fn no_device(_: &[u8]) -> DeviceNumber {
    (0, 0)
}

/// A record without a payload.
fn record(head: Vec<u8>) -> Record {
    let bytes = head.len() as u64;
    Record { head, payload: None, moved_bytes: 0, trailing_bytes: 0, bytes }
}

fn received(head: Vec<u8>) -> Call {
    let mut incoming = Incoming::new(FILES);
    incoming.layout(&head, no_device);
    incoming.finish(record(head), None).unwrap()
}

#[test]
fn a_write_head_is_found_from_as_much_of_it_as_is_there() {
    let (call, whole) = write_call(NFS);
    let mut incoming = Incoming::new(FILES);
    let mut before = 0;
    for len in CREDENTIAL_AT..whole {
        let Layout::HeadUntil(shown) = incoming.layout(&call[..len], no_device) else {
            panic!("{len} bytes are no head");
        };
        assert!(shown >= before && shown <= whole, "{len} bytes: {shown}");
        assert!(shown > len, "more follows {len} bytes");
        before = shown;
    }
    let payload =
        Layout::Payload { head_bytes: whole, len: 13, offset: 5, device: (0, 0), has_tail: false };
    assert_eq!(incoming.layout(&call, no_device), payload, "with the data");
    assert_eq!(incoming.layout(&call[..whole], no_device), payload);
    let head = call[..whole].to_vec();
    let call = incoming.finish(record(head), None).unwrap();
    let write = call.write.expect("decoded once");
    assert_eq!((write.file.as_bytes(), write.offset, write.count), (&[9; 30][..], 5, 13));
}

#[test]
fn arguments_of_a_write_that_cannot_be_decoded_have_no_payload() {
    let (call, whole) = write_call(NFS);
    let head = &call[..whole];
    let change = |at: usize, value: u32| {
        let mut head = head.to_vec();
        head[at..at + 4].copy_from_slice(&value.to_be_bytes());
        Incoming::new(FILES).layout(&head, no_device)
    };
    let handle_len_at = call_header_len(head);
    assert_eq!(change(handle_len_at, 65), Layout::Head);
    assert_eq!(change(handle_len_at, u32::MAX), Layout::Head);
    assert_eq!(change(whole - 4, 12), Layout::Head, "count and data differ");
    assert_eq!(change(whole - 8, 3), Layout::Head, "no such stable_how");
    // A credential over its bound: refused when the header is decoded.
    assert_eq!(change(CREDENTIAL_AT - 4, 401), Layout::Head);
}

#[test]
fn versions_that_are_not_served_are_never_taken_for_served_ones() {
    let others = [
        (nfs3::PROGRAM, 2),
        (nfs3::PROGRAM, 4),
        (nfs3::PROGRAM, u32::MAX),
        (mount3::PROGRAM, 4),
        (portmap::PROGRAM, 3),
    ];
    for version in others {
        for code in 0..30 {
            let call = call(version, code, &GetattrArgs { object: FileHandle::new(&[1]).unwrap() });
            let call = received(call);
            assert!(call.procedure.is_err() && call.nfs3().is_none(), "{version:?} {code}");
            assert_eq!(
                placement::thread(&call, &call.outline(), true),
                Thread::Network,
                "{version:?} {code}"
            );
        }
        let (call, _) = write_call(version);
        assert_eq!(Incoming::new(FILES).layout(&call, no_device), Layout::Head, "{version:?}");
        assert!(received(call).write.is_none());
    }
}

#[test]
fn the_header_is_kept_with_the_call() {
    let handle = FileHandle::new(&[9; 33]).unwrap();
    let call = received(call(NFS, P::Getattr.code(), &GetattrArgs { object: handle }));
    assert_eq!((call.xid, call.program, call.version, call.code), (7, nfs3::PROGRAM, 3, 1));
    assert_eq!(call.machine_name(), Some(&b"client"[..]));
    let super::Credential::Sys(sys) = &call.credential else { panic!("AUTH_SYS") };
    assert_eq!((sys.uid, sys.gid, &*sys.gids), (1, 2, &[1, 2, 3][..]));
    assert_eq!(call.arguments().len(), 4 + 36);
    assert_eq!(call.nfs3(), Some(P::Getattr));
}

#[test]
fn a_handle_is_found_in_whole_arguments_only() {
    let handle = [9; 33];
    let whole =
        call(NFS, P::Getattr.code(), &GetattrArgs { object: FileHandle::new(&handle).unwrap() });
    let arguments_at = whole.len() - 40;
    let found = |bytes: &[u8]| received(bytes.to_vec()).outline().handle.map(<[u8]>::to_vec);
    assert_eq!(found(&whole), Some(handle.to_vec()));
    for len in arguments_at..whole.len() {
        assert_eq!(found(&whole[..len]), None, "{len} bytes");
    }
    let too_long = [&whole[..arguments_at], &[0xff; 40]].concat();
    assert_eq!(found(&too_long), None);
    let null =
        call(NFS, P::Null.code(), &GetattrArgs { object: FileHandle::new(&handle).unwrap() });
    assert_eq!(found(&null), None);
}

/// Checks what the outline of a call has: the handle, the range, and the bytes of a READ.
#[track_caller]
fn assert_outline(
    procedure: P,
    args: &impl Encode,
    handle: &FileHandle,
    (range, read_bytes): (Option<(u64, u32)>, Option<u32>),
) {
    let call = received(call(NFS, procedure.code(), args));
    let (operation, handle) = (Some(Counted::nfs3(procedure)), Some(handle.as_bytes()));
    let expected = Outline { operation, work: None, handle, current: handle, range, read_bytes };
    assert_eq!(call.outline(), expected);
}

#[test]
fn an_outline_has_handle_and_range() {
    let dir = FileHandle::new(b"directory").unwrap();
    let file = FileHandle::new(b"file").unwrap();
    let read = nfs3::ReadArgs { file, offset: 4096, count: 10 };
    assert_outline(P::Read, &read, &file, (Some((4096, 10)), Some(10)));
    let commit = nfs3::CommitArgs { file, offset: 4096, count: 10 };
    assert_outline(P::Commit, &commit, &file, (Some((4096, 10)), None));
    let (stable, data) = (StableHow::Unstable, &[7; 13][..]);
    let write = WriteArgs { file, offset: 5, count: 13, stable, data };
    assert_outline(P::Write, &write, &file, (Some((5, 13)), None));
    let lookup = nfs3::LookupArgs { what: nfs3::DirOp { dir, name: b"name" } };
    assert_outline(P::Lookup, &lookup, &dir, (None, None));
    let verifier = nfs3::CookieVerifier([0; 8]);
    let readdir = nfs3::ReaddirArgs { dir, cookie: 7, verifier, count: 512 };
    assert_outline(P::Readdir, &readdir, &dir, (Some((7, 512)), None));
    let (dir_count, max_count) = (512, 8192);
    let readdir = nfs3::ReaddirplusArgs { dir, cookie: 7, verifier, dir_count, max_count };
    assert_outline(P::Readdirplus, &readdir, &dir, (Some((7, 8192)), None));
}

#[test]
fn an_outline_of_a_compound_has_the_range_of_its_work() {
    let range = |operation: OperationCode, args: &dyn Encode| {
        let mut arguments = Writer::new();
        CompoundHead { tag: b"", minor_version: 1, operations: 1 }.encode(&mut arguments);
        arguments.u32(operation.code());
        args.encode(&mut arguments);
        nfs4::Outline::of(arguments.as_slice()).range
    };
    let commit = nfs4::CommitArgs { offset: 4096, count: 10 };
    assert_eq!(range(OperationCode::Commit, &commit), Some((4096, 10)));
    let stateid = nfs4::Stateid { seqid: 0, other: [0; 12] };
    let read = nfs4::ReadArgs { stateid, offset: 1 << 40, count: 7 };
    assert_eq!(range(OperationCode::Read, &read), Some((1 << 40, 7)));
    let verifier = nfs4::Verifier([0; 8]);
    let wanted = nfs4::Bitmap::EMPTY;
    let readdir =
        nfs4::ReaddirArgs { cookie: 9, verifier, dir_bytes: 512, bytes_max: 8192, wanted };
    assert_eq!(range(OperationCode::Readdir, &readdir), Some((9, 8192)));
    assert_eq!(range(OperationCode::Lookup, &nfs4::NameArgs { name: b"name" }), None);
}

#[test]
fn a_read_begins_by_its_length() {
    let thread = |count, alone| {
        let file = FileHandle::new(&[1]).unwrap();
        let call = received(call(NFS, P::Read.code(), &nfs3::ReadArgs { file, offset: 0, count }));
        placement::thread(&call, &call.outline(), alone)
    };
    let small = 64 * 1024;
    assert_eq!(thread(small, false), Thread::NetworkThenData);
    assert_eq!(thread(small + 1, false), Thread::Data);
    assert_eq!(thread(small + 1, true), Thread::NetworkThenData);
}

proptest! {
    #[test]
    fn any_bytes_have_a_bounded_head(bytes in proptest::collection::vec(any::<u8>(), 32..200)) {
        let mut incoming = Incoming::new(FILES);
        if let Layout::HeadUntil(len) = incoming.layout(&bytes, no_device) {
            prop_assert!(len > bytes.len() && len < 2048);
        }
        let _ = incoming.finish(record(bytes), None);
    }

    #[test]
    fn any_arguments_of_a_write_have_a_bounded_head(
        arguments in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let head = [call(NFS, P::Write.code(), &()), arguments].concat();
        if let Layout::HeadUntil(len) = Incoming::new(FILES).layout(&head, no_device) {
            prop_assert!(len > head.len() && len < 2048);
        }
    }
}
