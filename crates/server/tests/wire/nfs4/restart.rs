//! Restarts of the server and of clients: what is reclaimed, and who has to wait.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::Path;

use io::{OfdLock, set_ofd_lock};
use proto::nfs4::*;

use super::client::{
    ALL_VERSIONS, Operations, Session, compound, create_session_args, exchange_id, open_args,
};
use crate::fixture::{Fixture, Mounted, set_mode};
use crate::local_file::eventually;

/// A session of a client that has not reclaimed yet.
pub(super) fn connect(fixture: &Fixture, owner: &[u8], verifier: u8) -> Session {
    let mut client = fixture.client();
    let (client_id, sequence, _) = exchange_id(&mut client, owner, verifier).unwrap();
    let args = create_session_args(client_id, sequence);
    let call = Operations::new().op(OperationCode::CreateSession, &args);
    let made: CreateSessionOk =
        compound(&mut client, 1, &call).next(OperationCode::CreateSession).unwrap();
    let (id, fore) = (made.session, made.fore);
    Session { client, id, minor_version: 1, client_id, fore, sequence: 0, cache_this: false }
}

pub(super) fn reclaim_complete(session: &mut Session) {
    let done = ReclaimCompleteArgs { one_fs: false };
    session.ok(&Operations::new().op(OperationCode::ReclaimComplete, &done));
}

/// Opens a file by its handle.
fn open(session: &mut Session, file: FileHandle, claim: OpenClaim<'_>) -> Reply<Stateid> {
    let args = open_args(ShareAccess::Both, OpenHow::NoCreate, claim);
    let call = Operations::new().at(file).op(OperationCode::Open, &args);
    let mut results = session.call(&call);
    let opened: OpenOk = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open)?;
    Ok(opened.stateid)
}

fn lock(session: &mut Session, file: FileHandle, open: Stateid, reclaim: bool) -> Reply<Stateid> {
    let owner = LockOwner { client: ClientId(0), owner: b"locker" };
    let locker = Locker::New { open_seqid: 0, open, lock_seqid: 0, owner };
    let range = LockRange { offset: 0, length: u64::MAX };
    let args = LockArgs { kind: LockType::Write, reclaim, range, locker };
    let call = Operations::new().at(file).op(OperationCode::Lock, &args);
    let mut results = session.call(&call);
    let held: OneStateid = results.skip(&[OperationCode::Putfh]).next(OperationCode::Lock)?;
    Ok(held.stateid)
}

/// A new file that a client has locked.
fn locked_file(fixture: &Fixture) -> FileHandle {
    let mut holder = connect(fixture, b"holder", 1);
    reclaim_complete(&mut holder);
    let export = holder.export();
    let (file, stateid) = holder.open(export, b"file");
    lock(&mut holder, file, stateid, false).unwrap();
    file
}

const PREVIOUS: OpenClaim<'_> = OpenClaim::Previous(DelegationType::None);

#[test]
fn a_client_reclaims_its_lock_before_others_can_have_it() {
    let mut fixture = Fixture::with(ALL_VERSIONS);
    let file = locked_file(&fixture);
    fixture.restart();

    let mut other = connect(&fixture, b"other", 1);
    assert_eq!(open(&mut other, file, PREVIOUS), Err(Status::ReclaimBad));
    reclaim_complete(&mut other);
    assert_eq!(open(&mut other, file, OpenClaim::Handle), Err(Status::Grace));
    let mut holder = connect(&fixture, b"holder", 1);
    let stateid = open(&mut holder, file, PREVIOUS).unwrap();
    lock(&mut holder, file, stateid, true).unwrap();
    assert_eq!(open(&mut other, file, OpenClaim::Handle), Err(Status::Grace));
    reclaim_complete(&mut holder);
    assert_eq!(open(&mut holder, file, PREVIOUS), Err(Status::NoGrace));

    let stateid = open(&mut other, file, OpenClaim::Handle).expect("all have reclaimed");
    assert_eq!(lock(&mut other, file, stateid, false), Err(Status::Denied));
}

/// Fills the file system of a file.
fn fill(filler: &mut File) {
    while filler.write_all(&[1; 4096]).is_ok() {}
}

#[test]
fn a_server_that_starts_on_a_full_state_directory_has_the_clients_on_record_reclaim() {
    let mount = |dir: &Path| {
        let state = dir.join("state");
        fs::create_dir(&state).unwrap();
        let mounted = Mounted::tmpfs(&state, 256);
        set_mode(&state, 0o700);
        mounted
    };
    let Some((mut fixture, _state)) = Fixture::over(ALL_VERSIONS, mount) else { return };
    let file = locked_file(&fixture);
    fixture.stop();
    let [epoch, boot, lock_file, filler] =
        ["nfs4/epoch", "nfs4/boot", "lock", "filler"].map(|name| fixture.path("state").join(name));
    let epoch = || fs::read_to_string(&epoch).unwrap();
    let before = epoch();
    fs::write(&lock_file, "1\n").unwrap();
    // As after a start of the machine.
    fs::write(&boot, "another\n").unwrap();
    let mut filler = File::create(filler).unwrap();
    fill(&mut filler);
    for holder_number in [format!("{}\n", std::process::id()), String::new()] {
        fixture.start();
        assert_eq!(fs::read_to_string(&lock_file).unwrap(), holder_number);
        assert_eq!(epoch(), before);
        assert!(!boot.exists(), "the next start may not trust the times of records");
        // It has left the space of the boot.
        fill(&mut filler);
        let mut other = connect(&fixture, b"other", 1);
        assert_eq!(open(&mut other, file, PREVIOUS), Err(Status::ReclaimBad), "not on record");
        reclaim_complete(&mut other);
        let mut holder = connect(&fixture, b"holder", 1);
        let stateid = open(&mut holder, file, PREVIOUS).unwrap();
        lock(&mut holder, file, stateid, true).unwrap();
        reclaim_complete(&mut holder);
        let stateid = open(&mut other, file, OpenClaim::Handle).expect("all have reclaimed");
        assert_eq!(lock(&mut other, file, stateid, false), Err(Status::Denied));
        fixture.stop();
        fs::write(&lock_file, "").unwrap();
        fill(&mut filler);
    }
    filler.set_len(0).unwrap();
    fixture.start();
    assert_ne!(epoch(), before);
    assert!(boot.exists());
}

#[test]
fn a_reclaim_conflicts_with_a_lock_that_a_local_program_took_meanwhile() {
    let mut fixture = Fixture::with(ALL_VERSIONS);
    let file = locked_file(&fixture);
    fixture.stop();
    let local = File::open(fixture.exported("file")).unwrap();
    assert!(set_ofd_lock(local.as_fd(), (0, 9), OfdLock::Read).unwrap());
    fixture.restart();

    let mut holder = connect(&fixture, b"holder", 1);
    let stateid = open(&mut holder, file, PREVIOUS).unwrap();
    assert_eq!(lock(&mut holder, file, stateid, true), Err(Status::ReclaimConflict));
    // A program that another test is starting keeps what is closed until it is executed.
    assert!(set_ofd_lock(local.as_fd(), (0, 9), OfdLock::Unlock).unwrap());
    lock(&mut holder, file, stateid, true).expect("it is free, and the client may still reclaim");
}

#[test]
fn state_that_was_revoked_before_a_restart_is_not_reclaimed() {
    let rest = r#"
        nfs_versions = ["4.1"]
        [[export]]
        path = "$DIR/export"
        name = "/rest"
        squash = "none"
    "#;
    let retired = "[[export]]\npath = \"$DIR/export\"\nsquash = \"none\"\nname = \"/export\"";
    let mut fixture = Fixture::with(&format!("{rest}\n{retired}"));
    let file = locked_file(&fixture);
    let directory = fixture.path("state/nfs4");
    let has_record = || {
        let mut names = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap());
        names.any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"client-"))
    };
    assert!(has_record());
    fixture.reload(rest);
    assert!(eventually(|| !has_record()), "other clients may have the file");
    fixture.restart();
    let mut holder = connect(&fixture, b"holder", 1);
    assert_eq!(open(&mut holder, file, PREVIOUS), Err(Status::NoGrace));
}

#[test]
fn sessions_and_stateids_of_before_a_restart_are_unknown() {
    let mut fixture = Fixture::with(ALL_VERSIONS);
    let mut before = Session::of(&fixture, b"holder", 1);
    let export = before.export();
    let (file, stateid) = before.open(export, b"file");
    fixture.restart();
    before.client = fixture.client();
    before.sequence += 1;
    let call = before.sequenced(&Operations::new());
    let mut results = compound(&mut before.client, 1, &call);
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::Badsession));

    let mut after = Session::of(&fixture, b"holder", 1);
    assert_ne!(after.client_id, before.client_id);
    let read = ReadArgs { stateid, offset: 0, count: 1 };
    let mut results = after.call(&Operations::new().at(file).op(OperationCode::Read, &read));
    results.skip(&[OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Read), Err(Status::BadStateid));
}

#[test]
fn no_grace_period_begins_if_no_client_held_state() {
    let mut fixture = Fixture::with(ALL_VERSIONS);
    let mut before = Session::of(&fixture, b"gone", 1);
    let destroy = DestroySessionArgs { session: before.id };
    before.ok(&Operations::new().op(OperationCode::DestroySession, &destroy));
    let destroy = DestroyClientidArgs { client: before.client_id };
    let call = Operations::new().op(OperationCode::DestroyClientid, &destroy);
    assert_eq!(compound(&mut before.client, 1, &call).status, Ok(()));
    fixture.restart();
    let mut session = Session::of(&fixture, b"new", 1);
    let export = session.export();
    session.open(export, b"file");
}

#[test]
fn a_client_that_boots_loses_its_locks() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut holder = connect(&fixture, b"holder", 1);
    reclaim_complete(&mut holder);
    let export = holder.export();
    let (file, stateid) = holder.open(export, b"file");
    lock(&mut holder, file, stateid, false).unwrap();
    let mut other = Session::of(&fixture, b"other", 1);
    let stateid = open(&mut other, file, OpenClaim::Handle).unwrap();
    assert_eq!(lock(&mut other, file, stateid, false), Err(Status::Denied));

    let mut booted = connect(&fixture, b"holder", 2);
    lock(&mut other, file, stateid, false).expect("the old incarnation is forgotten");
    reclaim_complete(&mut booted);
    let stateid = open(&mut booted, file, OpenClaim::Handle).unwrap();
    assert_eq!(lock(&mut booted, file, stateid, false), Err(Status::Denied));
}
