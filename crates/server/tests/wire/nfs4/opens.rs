//! OPEN, CLOSE, share reservations and byte-range locks.

use std::os::unix::process::CommandExt;

use proto::nfs4::*;

use proto::xdr::Decode;

use super::client::{ALL_VERSIONS, Operations, Session, compound, open_args};
use crate::client::Ids;
use crate::fixture::{Fixture, is_root, set_mode};

fn open(session: &mut Session, dir: FileHandle, args: &OpenArgs<'_>) -> Reply<OpenOk> {
    let call = Operations::new().at(dir).op(OperationCode::Open, args);
    session.call(&call).skip(&[OperationCode::Putfh]).next(OperationCode::Open)
}

fn lock_args<'a>(kind: LockType, stateid: Stateid, owner: &'a [u8]) -> LockArgs<'a> {
    let owner = LockOwner { client: ClientId(0), owner };
    let locker = Locker::New { open_seqid: 0, open: stateid, lock_seqid: 0, owner };
    LockArgs { kind, reclaim: false, range: LockRange { offset: 0, length: 10 }, locker }
}

#[test]
fn opens_are_found_by_their_stateids_until_they_are_closed() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let close = CloseArgs { seqid: 0, stateid };
    session.ok(&Operations::new().at(file).op(OperationCode::Close, &close));
    let read = ReadArgs { stateid, offset: 0, count: 1 };
    let mut results = session.call(&Operations::new().at(file).op(OperationCode::Read, &read));
    results.skip(&[OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Read), Err(Status::BadStateid));
}

#[test]
fn guarded_and_exclusive_opens_make_a_file_once() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let none = RawAttributes { bitmap: Bitmap::EMPTY, values: &[] };
    let guarded = open_args(ShareAccess::Both, OpenHow::Guarded(none), OpenClaim::Null(b"g"));
    assert!(open(&mut session, export, &guarded).is_ok());
    assert_eq!(open(&mut session, export, &guarded), Err(Status::Exist));
    let exclusive =
        |verifier| OpenHow::Exclusive { verifier: Verifier([verifier; 8]), attributes: Some(none) };
    let args = |verifier| open_args(ShareAccess::Both, exclusive(verifier), OpenClaim::Null(b"e"));
    let made = open(&mut session, export, &args(1)).unwrap();
    assert!(made.attributes_set.contains(attribute::TIME_MODIFY), "the client resets the times");
    assert!(open(&mut session, export, &args(1)).is_ok(), "a retry");
    assert_eq!(open(&mut session, export, &args(2)), Err(Status::Exist));
}

#[test]
fn the_claims_of_open_arguments_are_those_that_open_supports() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::of(&fixture, b"client", 2);
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let args = GetattrArgs { wanted: Bitmap::of(&[attribute::OPEN_ARGUMENTS]) };
    let mut results = session.ok(&Operations::new().at(file).op(OperationCode::Getattr, &args));
    let understood = results
        .skip(&[OperationCode::Putfh])
        .next_with(OperationCode::Getattr, |r| Attributes::decode(r).unwrap().open_arguments);
    let claims = understood.unwrap().unwrap().open_claim;
    let of_open = [
        (export, OpenClaim::Null(b"file")),
        (file, OpenClaim::Previous(DelegationType::None)),
        (export, OpenClaim::DelegateCurrent(stateid, b"file")),
        (export, OpenClaim::DelegatePrevious(b"file")),
        (file, OpenClaim::Handle),
        (file, OpenClaim::DelegateCurrentHandle(stateid)),
        (file, OpenClaim::DelegatePreviousHandle),
    ];
    for (number, (at, claim)) in (0..).zip(of_open) {
        let args = open_args(ShareAccess::Read, OpenHow::NoCreate, claim);
        let is_unsupported = open(&mut session, at, &args) == Err(Status::Notsupp);
        assert_eq!(is_unsupported, !claims.contains(number), "{number}");
    }
}

#[test]
fn a_guarded_open_without_room_for_its_state_makes_no_file() {
    let fixture = Fixture::with(&format!("max_opens = 16\n{ALL_VERSIONS}"));
    let mut session = Session::new(&fixture);
    let export = session.export();
    let none = RawAttributes { bitmap: Bitmap::EMPTY, values: &[] };
    let mut guarded = |name: &str| {
        let how = OpenHow::Guarded(none);
        let args = open_args(ShareAccess::Both, how, OpenClaim::Null(name.as_bytes()));
        open(&mut session, export, &args)
    };
    let mut names = (0..=16).map(|number| format!("file {number}"));
    let (refused, name) = names.find_map(|name| Some((guarded(&name).err()?, name))).unwrap();
    assert_eq!(refused, Status::Delay);
    assert!(!fixture.exported(&name).exists(), "the retry would find {name}");
    assert_eq!(fixture.figure("nfs4_calls_put_off"), 1);
}

#[test]
fn an_unchecked_open_without_room_for_its_state_makes_no_file() {
    let fixture = Fixture::with(&format!("max_opens = 16\n{ALL_VERSIONS}"));
    let mut session = Session::new(&fixture);
    let export = session.export();
    let none = RawAttributes { bitmap: Bitmap::EMPTY, values: &[] };
    let mut unchecked = |name: &str| {
        let how = OpenHow::Unchecked(none);
        let args = open_args(ShareAccess::Both, how, OpenClaim::Null(name.as_bytes()));
        open(&mut session, export, &args)
    };
    let mut names = (0..=16).map(|number| format!("file {number}"));
    let (refused, name) = names.find_map(|name| Some((unchecked(&name).err()?, name))).unwrap();
    assert_eq!(refused, Status::Delay);
    assert!(!fixture.exported(&name).exists(), "the mode of {name} may forbid the retry");
    assert!(unchecked("file 0").is_ok(), "the owner has it open");
}

#[test]
fn an_exclusive_open_of_a_file_of_another_user_needs_permission() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    set_mode(&fixture.exported(""), 0o777);
    let none = RawAttributes { bitmap: Bitmap::EMPTY, values: &[] };
    let how = OpenHow::Exclusive { verifier: Verifier([1; 8]), attributes: Some(none) };
    let args = open_args(ShareAccess::Both, how, OpenClaim::Null(b"e"));
    session.client.ids = Some(Ids::user(1001));
    assert!(open(&mut session, export, &args).is_ok());
    session.client.ids = Some(Ids::user(1002));
    assert_eq!(open(&mut session, export, &args), Err(Status::Access));
    session.client.ids = Some(Ids::user(1001));
    set_mode(&fixture.exported("e"), 0o400);
    assert!(open(&mut session, export, &args).is_ok(), "a retry of the owner");
}

#[test]
fn only_files_are_opened() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    std::fs::create_dir(fixture.exported("dir")).unwrap();
    std::os::unix::fs::symlink("to", fixture.exported("link")).unwrap();
    for (name, status) in
        [(&b"dir"[..], Status::Isdir), (b"link", Status::Symlink), (b"none", Status::Noent)]
    {
        let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(name));
        assert_eq!(open(&mut session, export, &args), Err(status), "{name:?}");
    }
}

#[test]
fn share_reservations_hold_between_clients() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Session::of(&fixture, b"one", 1), Session::of(&fixture, b"two", 2));
    let export = one.export();
    std::fs::write(fixture.exported("file"), b"x").unwrap();
    let args = |access, deny: ShareDeny| OpenArgs {
        share_deny: deny.code(),
        ..open_args(access, OpenHow::NoCreate, OpenClaim::Null(b"file"))
    };
    let read = args(ShareAccess::Read, ShareDeny::Write);
    let opened = open(&mut one, export, &read).unwrap();
    let write = args(ShareAccess::Write, ShareDeny::None);
    assert_eq!(open(&mut two, export, &write), Err(Status::ShareDenied));
    let other = Operations::new().at(export).lookup(b"file");
    let data = WriteArgs {
        stateid: Stateid::ANONYMOUS,
        offset: 0,
        stable: StableHow::FileSync,
        data: b"y",
    };
    let mut results = two.call(&other.clone().op(OperationCode::Write, &data));
    results.skip(&[OperationCode::Putfh, OperationCode::Lookup]);
    assert_eq!(results.next::<()>(OperationCode::Write), Err(Status::Locked));
    let close = CloseArgs { seqid: 0, stateid: opened.stateid };
    one.ok(&other.op(OperationCode::Close, &close));
    assert!(open(&mut two, export, &write).is_ok());
}

#[test]
fn an_open_that_is_denied_does_not_cut_the_file() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Session::of(&fixture, b"one", 1), Session::of(&fixture, b"two", 1));
    let export = one.export();
    std::fs::write(fixture.exported("file"), b"content").unwrap();
    let name = OpenClaim::Null(b"file");
    let deny = OpenArgs {
        share_deny: ShareDeny::Write.code(),
        ..open_args(ShareAccess::Read, OpenHow::NoCreate, name)
    };
    let denying = open(&mut one, export, &deny).unwrap().stateid;
    let empty = RawAttributes { bitmap: Bitmap::of(&[attribute::SIZE]), values: &[0; 8] };
    let cut = open_args(ShareAccess::Both, OpenHow::Unchecked(empty), name);
    assert_eq!(open(&mut two, export, &cut), Err(Status::ShareDenied));
    assert_eq!(std::fs::read(fixture.exported("file")).unwrap(), b"content");
    let close = CloseArgs { seqid: 0, stateid: denying };
    one.ok(&Operations::new().at(export).lookup(b"file").op(OperationCode::Close, &close));
    let opened = open(&mut two, export, &cut).unwrap();
    assert!(opened.attributes_set.contains(attribute::SIZE));
    assert_eq!(std::fs::read(fixture.exported("file")).unwrap(), b"");
}

#[test]
fn an_open_for_reading_does_not_write() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    std::fs::write(fixture.exported("file"), b"x").unwrap();
    let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"));
    let stateid = open(&mut session, export, &args).unwrap().stateid;
    let stable = StableHow::FileSync;
    let write = WriteArgs { stateid, offset: 0, stable, data: b"y" };
    let call = Operations::new().at(export).lookup(b"file").op(OperationCode::Write, &write);
    let mut results = session.call(&call);
    results.skip(&[OperationCode::Putfh, OperationCode::Lookup]);
    assert_eq!(results.next::<()>(OperationCode::Write), Err(Status::Openmode));
}

#[test]
fn the_current_stateid_is_that_of_the_open() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    std::fs::write(fixture.exported("file"), b"data").unwrap();
    let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"));
    let read = ReadArgs { stateid: Stateid::CURRENT, offset: 0, count: 4 };
    let close = CloseArgs { seqid: 0, stateid: Stateid::CURRENT };
    let call = Operations::new()
        .at(export)
        .op(OperationCode::Open, &args)
        .op(OperationCode::Read, &read)
        .op(OperationCode::Close, &close);
    session.ok(&call);
    let mut results = session.call(&Operations::new().at(export).op(OperationCode::Close, &close));
    results.skip(&[OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Close), Err(Status::BadStateid));
}

#[test]
fn locks_of_two_clients_exclude_each_other() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Session::of(&fixture, b"one", 1), Session::of(&fixture, b"two", 1));
    let export = one.export();
    let (file, first) = one.open(export, b"file");
    let (_, second) = two.open(export, b"file");
    let lock = |stateid| {
        let args = lock_args(LockType::Write, stateid, b"locker");
        Operations::new().at(file).op(OperationCode::Lock, &args)
    };
    let mut results = one.ok(&lock(first));
    let held: OneStateid = results.skip(&[OperationCode::Putfh]).next(OperationCode::Lock).unwrap();
    let mut results = two.call(&lock(second));
    results.skip(&[OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Lock), Err(Status::Denied));
    let denied: LockDenied<'_> = proto::xdr::decode_all(results.rest()).unwrap();
    assert_eq!((denied.range.length, denied.owner.owner), (10, &b"locker"[..]));
    let range = LockRange { offset: 0, length: u64::MAX };
    let unlock = LockuArgs { kind: LockType::Write, seqid: 0, stateid: held.stateid, range };
    one.ok(&Operations::new().at(file).op(OperationCode::Locku, &unlock));
    two.ok(&lock(second));
}

#[test]
fn a_conflict_that_does_not_fit_in_the_reply_is_too_big() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut holder = Session::of(&fixture, b"holder", 1);
    let mut session = Session::with_replies(&fixture, b"client", 1, 1100);
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let args = lock_args(LockType::Write, stateid, b"locker");
    let test = LocktArgs {
        kind: args.kind,
        range: args.range,
        owner: LockOwner { client: ClientId(0), owner: b"other" },
    };
    let calls = [
        Operations::new().at(file).op(OperationCode::Lockt, &test),
        Operations::new().at(file).op(OperationCode::Lock, &args),
    ];
    let (_, stateid) = holder.open(export, b"file");
    let held = lock_args(LockType::Write, stateid, &[b'x'; OPAQUE_BYTES_MAX]);
    let mut results = holder.ok(&Operations::new().at(file).op(OperationCode::Lock, &held));
    let held: OneStateid = results.skip(&[OperationCode::Putfh]).next(OperationCode::Lock).unwrap();
    for call in &calls {
        let mut results = session.call(call);
        results.skip(&[OperationCode::Putfh]);
        assert_eq!(results.next::<()>(call.codes()[1]), Err(Status::RepTooBig));
    }
    let range = LockRange { offset: 0, length: u64::MAX };
    let unlock = LockuArgs { kind: LockType::Write, seqid: 0, stateid: held.stateid, range };
    holder.ok(&Operations::new().at(file).op(OperationCode::Locku, &unlock));
    calls.iter().for_each(|call| drop(session.ok(call)));
}

#[test]
fn an_open_keeps_its_permission_until_the_export_forbids_it() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    std::fs::write(fixture.exported("file"), b"data").unwrap();
    set_mode(&fixture.exported("file"), 0o666);
    let session = Session::new(&fixture);
    let client = session.client.becoming(Ids::user(1000));
    let mut session = Session { client, ..session };
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    set_mode(&fixture.exported("file"), 0o600);
    let read = |session: &mut Session, stateid| {
        let args = ReadArgs { stateid, offset: 0, count: 4 };
        let mut results = session.call(&Operations::new().at(file).op(OperationCode::Read, &args));
        results.skip(&[OperationCode::Putfh]);
        results.next_with(OperationCode::Read, |_| ())
    };
    let write = |session: &mut Session| {
        let stable = StableHow::Unstable;
        let args = WriteArgs { stateid, offset: 0, stable, data: b"more" };
        let mut results = session.call(&Operations::new().at(file).op(OperationCode::Write, &args));
        results.skip(&[OperationCode::Putfh]);
        results.next::<WriteOk>(OperationCode::Write).map(|done| done.count)
    };
    let commit = |session: &mut Session| {
        let args = CommitArgs { offset: 0, count: 0 };
        let mut results =
            session.call(&Operations::new().at(file).op(OperationCode::Commit, &args));
        results.skip(&[OperationCode::Putfh]);
        results.next::<CommitOk>(OperationCode::Commit).map(drop)
    };
    assert_eq!(read(&mut session, stateid), Ok(()));
    assert_eq!(write(&mut session), Ok(4));
    assert_eq!(commit(&mut session), Ok(()));
    assert_eq!(read(&mut session, Stateid::ANONYMOUS), Err(Status::Access), "nothing is open");
    let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"));
    assert_eq!(open(&mut session, export, &args).map(drop), Err(Status::Access), "a second open");
    // Another user of the client has not opened it.
    let client = session.client.becoming(Ids::user(1001));
    let mut session = Session { client, ..session };
    assert_eq!(read(&mut session, stateid), Err(Status::Access));
    assert_eq!(commit(&mut session), Err(Status::Access));
    let client = session.client.becoming(Ids::user(1000));
    let mut session = Session { client, ..session };
    fixture.reload(&ALL_VERSIONS.replace("sync = false", "sync = false\nread_only = true"));
    assert_eq!(write(&mut session), Err(Status::Rofs));
    assert_eq!(commit(&mut session), Err(Status::Rofs));
    assert_eq!(read(&mut session, stateid), Ok(()));
    fixture.reload(&ALL_VERSIONS.replace("squash = \"none\"", "squash = \"all\""));
    assert_eq!(read(&mut session, stateid), Err(Status::Access));
    assert_eq!(write(&mut session), Err(Status::Access));
    assert_eq!(commit(&mut session), Err(Status::Access));
    fixture.reload(ALL_VERSIONS);
    assert_eq!(commit(&mut session), Ok(()));
    let close = CloseArgs { seqid: 0, stateid };
    session.ok(&Operations::new().at(file).op(OperationCode::Close, &close));
    assert_eq!(commit(&mut session), Err(Status::Access), "nothing is open");
}

#[test]
fn an_open_reports_why_it_delegates_nothing_to_a_client_that_asked() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    session.open(export, b"file");
    let table = [
        (0, OpenDelegation::None),
        // It has no backchannel.
        (SHARE_WANT_READ_DELEGATION, OpenDelegation::Why(WhyNoDelegation::Resource)),
        (SHARE_WANT_WRITE_DELEGATION, OpenDelegation::Why(WhyNoDelegation::WriteNotSupported)),
        (SHARE_WANT_ANY_DELEGATION, OpenDelegation::Why(WhyNoDelegation::Resource)),
        (SHARE_WANT_NO_DELEGATION, OpenDelegation::Why(WhyNoDelegation::NotWanted)),
        (SHARE_WANT_CANCEL, OpenDelegation::Why(WhyNoDelegation::Cancelled)),
    ];
    for (want, delegation) in table {
        let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"));
        let args = OpenArgs { share_access: args.share_access | want, ..args };
        let opened = open(&mut session, export, &args).unwrap();
        assert_eq!(opened.delegation, delegation, "{want:#x}");
    }
}

#[test]
fn opens_of_an_export_that_is_not_served_any_more_end() {
    let rest = r#"
        nfs_versions = ["4.1"]
        [[export]]
        path = "$DIR/other"
        name = "/other"
        squash = "none"
    "#;
    let both = format!(
        "{rest}\n[[export]]\npath = \"$DIR/export\"\nsquash = \"none\"\nname = \"/export\""
    );
    let fixture = Fixture::prepared(&both, |dir| std::fs::create_dir(dir.join("other")).unwrap());
    let mut session = Session::new(&fixture);
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let lock = Operations::new()
        .at(file)
        .op(OperationCode::Lock, &lock_args(LockType::Write, stateid, b"l"));
    session.ok(&lock);
    let call = Operations::new().root().lookup(b"other").getfh();
    let passed = [OperationCode::Putrootfh, OperationCode::Lookup];
    let other = session.ok(&call).skip(&passed).handle();
    let (kept, kept_stateid) = session.open(other, b"file");
    fixture.reload(rest);
    while fixture.figure("nfs4_opens") > 1 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(fixture.figure("nfs4_locks"), 0);
    let mut results = session.call(&Operations::new().at(file));
    assert_eq!(results.next::<()>(OperationCode::Putfh), Err(Status::Stale));
    let close = CloseArgs { seqid: 0, stateid: kept_stateid };
    session.ok(&Operations::new().at(kept).op(OperationCode::Close, &close));
}

/// `sr_status_flags` of a SEQUENCE, and the status of a stateid by TEST_STATEID.
fn holder_state(session: &mut Session, stateid: Stateid) -> (u32, u32) {
    let stateids = &[stateid][..];
    let test = TestStateidArgs { stateids: stateids.into() };
    session.sequence += 1;
    let call = session.sequenced(&Operations::new().op(OperationCode::TestStateid, &test));
    let mut results = compound(&mut session.client, session.minor_version, &call);
    let sequenced: SequenceOk = results.next(OperationCode::Sequence).unwrap();
    let status = results.next_with(OperationCode::TestStateid, |r| {
        TestStateidOk::decode(r).unwrap().statuses.iter().next().unwrap()
    });
    (sequenced.status_flags, status.unwrap())
}

#[test]
fn opens_of_a_retired_export_end_while_another_has_the_file_open() {
    let rest = r#"
        nfs_versions = ["4.1"]
        [[export]]
        path = "$DIR/export"
        name = "/kept"
        squash = "none"
    "#;
    let retired = "[[export]]\npath = \"$DIR/export\"\nsquash = \"none\"\nname = \"/retired\"";
    let fixture = Fixture::with(&format!("{rest}\n{retired}"));
    let [mut holder, mut other] =
        [&b"holder"[..], b"other"].map(|owner| Session::of(&fixture, owner, 1));
    let root = |session: &mut Session, name: &[u8]| {
        let call = Operations::new().root().lookup(name).getfh();
        let passed = [OperationCode::Putrootfh, OperationCode::Lookup];
        session.ok(&call).skip(&passed).handle()
    };
    let export = root(&mut holder, b"retired");
    let (file, stateid) = holder.open(export, b"file");
    let lock = |file, stateid| {
        let args = lock_args(LockType::Write, stateid, b"l");
        Operations::new().at(file).op(OperationCode::Lock, &args)
    };
    let mut locked = holder.ok(&lock(file, stateid));
    locked.skip(&[OperationCode::Putfh]);
    let retired_lock = locked.next::<OneStateid>(OperationCode::Lock).unwrap().stateid;
    let retired_stateid = stateid;
    // The owner has it open in the other export too, which stays.
    let export = root(&mut holder, b"kept");
    let (kept, kept_stateid) = holder.open(export, b"file");
    assert_ne!(kept_stateid.other, stateid.other);
    let export = root(&mut other, b"kept");
    let (file, stateid) = other.open(export, b"file");
    let call = lock(file, stateid);
    let is_denied = |other: &mut Session| other.call(&call).status == Err(Status::Denied);
    assert!(is_denied(&mut other));
    fixture.reload(rest);
    while fixture.figure("nfs4_opens") > 2 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!is_denied(&mut other), "the lock has ended with its export");
    let revoked = holder_state(&mut holder, retired_stateid);
    assert_eq!(revoked, (SEQ4_STATUS_ADMIN_STATE_REVOKED, Status::AdminRevoked.code()));
    for stateid in [retired_stateid, retired_lock] {
        let free = OneStateid { stateid };
        holder.ok(&Operations::new().op(OperationCode::FreeStateid, &free));
    }
    let freed = holder_state(&mut holder, retired_stateid);
    assert_eq!(freed, (0, Status::BadStateid.code()));
    let close = CloseArgs { seqid: 0, stateid: kept_stateid };
    holder.ok(&Operations::new().at(kept).op(OperationCode::Close, &close));
}

/// UNCHECKED4 with a length.
fn cut_to<'a>(size: &'a [u8; 8], access: ShareAccess) -> OpenArgs<'a> {
    let size = RawAttributes { bitmap: Bitmap::of(&[attribute::SIZE]), values: size };
    open_args(access, OpenHow::Unchecked(size), OpenClaim::Null(b"file"))
}

#[test]
fn an_open_for_reading_does_not_cut_a_file_that_another_keeps_from_writers() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Session::of(&fixture, b"one", 1), Session::of(&fixture, b"two", 1));
    let export = one.export();
    std::fs::write(fixture.exported("file"), b"content").unwrap();
    let deny = OpenArgs {
        share_deny: ShareDeny::Write.code(),
        ..open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"))
    };
    let denying = open(&mut one, export, &deny).unwrap().stateid;
    let cut = cut_to(&[0; 8], ShareAccess::Read);
    assert_eq!(open(&mut two, export, &cut), Err(Status::ShareDenied));
    assert_eq!(std::fs::read(fixture.exported("file")).unwrap(), b"content");
    let close = CloseArgs { seqid: 0, stateid: denying };
    one.ok(&Operations::new().at(export).lookup(b"file").op(OperationCode::Close, &close));
    let opened = open(&mut two, export, &cut).unwrap().stateid;
    assert_eq!(std::fs::read(fixture.exported("file")).unwrap(), b"");
    assert!(open(&mut one, export, &deny).is_ok(), "the other reads");
    let close = CloseArgs { seqid: 0, stateid: opened };
    two.ok(&Operations::new().at(export).lookup(b"file").op(OperationCode::Close, &close));
}

/// RFC 8881 §18.16.3: of an existing file, no attribute is used but a size of zero.
#[test]
fn an_open_of_an_existing_file_leaves_it_as_it_is_unless_the_size_is_zero() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Session::of(&fixture, b"one", 1), Session::of(&fixture, b"two", 1));
    let export = one.export();
    std::fs::write(fixture.exported("file"), b"content").unwrap();
    let deny = OpenArgs {
        share_deny: ShareDeny::Write.code(),
        ..open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"))
    };
    open(&mut one, export, &deny).unwrap();
    for size in [3_u64, 7, 8, 1 << 40, u64::MAX] {
        let size = size.to_be_bytes();
        // The other open does not deny reading, and nothing is cut.
        let opened = open(&mut two, export, &cut_to(&size, ShareAccess::Read)).unwrap();
        assert_eq!(opened.attributes_set, Bitmap::EMPTY, "{size:?}");
        assert_eq!(std::fs::read(fixture.exported("file")).unwrap(), b"content", "{size:?}");
    }
}

#[test]
fn an_open_that_cannot_cut_the_file_changes_nothing() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Session::of(&fixture, b"one", 1), Session::of(&fixture, b"two", 1));
    let export = one.export();
    // The kernel lets no one write to a program that runs.
    std::fs::copy("/bin/sleep", fixture.exported("file")).unwrap();
    let mut program = started(&fixture.exported("file"));
    let read = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"));
    let opened = open(&mut one, export, &read).unwrap().stateid;
    let deny = ShareDeny::Write.code();
    let cut = OpenArgs { share_deny: deny, ..cut_to(&[0; 8], ShareAccess::Both) };
    let refused = open(&mut one, export, &cut);
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(refused.unwrap_err(), Status::Access);
    assert_ne!(fixture.exported("file").metadata().unwrap().len(), 0);
    let write = open_args(ShareAccess::Write, OpenHow::NoCreate, OpenClaim::Null(b"file"));
    assert!(open(&mut two, export, &write).is_ok(), "the failed OPEN denies nothing");
    let data = WriteArgs { stateid: opened, offset: 0, stable: StableHow::FileSync, data: b"y" };
    let file = Operations::new().at(export).lookup(b"file");
    let mut results = one.call(&file.clone().op(OperationCode::Write, &data));
    results.skip(&[OperationCode::Putfh, OperationCode::Lookup]);
    assert_eq!(results.next::<()>(OperationCode::Write), Err(Status::Openmode));
    let again = open(&mut one, export, &read).unwrap().stateid;
    assert_eq!(again.seqid, opened.seqid + 1);
}

/// A copy of `sleep` that runs for a minute. It goes by that name, as it may be one of many
/// programs in a file. While another test starts one, it holds for a moment the descriptor through
/// which this one was written.
fn started(program: &std::path::Path) -> std::process::Child {
    for _ in 0..200 {
        match std::process::Command::new(program).arg0("sleep").arg("60").spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            started => return started.unwrap(),
        }
    }
    panic!("{} stays busy", program.display());
}
