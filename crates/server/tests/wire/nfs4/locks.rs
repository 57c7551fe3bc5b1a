//! Byte-range locks of clients, and of local programs on the same files.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::chown;

use io::{OfdLock, set_ofd_lock};
use proto::nfs4::*;
use proto::xdr::decode_all;

use super::client::{ALL_VERSIONS, CHANNEL, Operations, Session, open_args};
use crate::client::Ids;
use crate::fixture::{Fixture, Mounted, is_root, run_or_skip, set_mode};
use crate::limits::Exhausted;
use crate::own_process::ran_in_own_process;

/// A client with a file open, as the owner of locks in it.
struct Locking {
    session: Session,
    file: FileHandle,
    open: Stateid,
    held: Option<Stateid>,
    owner: Vec<u8>,
}

fn range(offset: u64, length: u64) -> LockRange {
    LockRange { offset, length }
}

const ALL: LockRange = LockRange { offset: 0, length: u64::MAX };

impl Locking {
    fn new(fixture: &Fixture, owner: &[u8]) -> Self {
        Self::over(Session::of(fixture, owner, 2))
    }

    fn over(mut session: Session) -> Self {
        let export = session.export();
        let (file, open) = session.open(export, b"file");
        Self { session, file, open, held: None, owner: b"locker".into() }
    }

    /// The range in the way, if the lock is denied.
    fn lock(&mut self, kind: LockType, range: LockRange) -> Result<(), LockRange> {
        self.try_lock(kind, range).unwrap()
    }

    fn try_lock(
        &mut self,
        kind: LockType,
        range: LockRange,
    ) -> Result<Result<(), LockRange>, Status> {
        let owner = LockOwner { client: ClientId(0), owner: &self.owner };
        let locker = match self.held {
            Some(stateid) => Locker::Existing { stateid, lock_seqid: 0 },
            None => Locker::New { open_seqid: 0, open: self.open, lock_seqid: 0, owner },
        };
        let args = LockArgs { kind, reclaim: false, range, locker };
        let call = Operations::new().at(self.file).op(OperationCode::Lock, &args);
        let mut results = self.session.call(&call);
        results.skip(&[OperationCode::Putfh]);
        match results.next::<OneStateid>(OperationCode::Lock) {
            Ok(held) => {
                self.held = Some(held.stateid);
                Ok(Ok(()))
            }
            Err(Status::Denied) => {
                Ok(Err(decode_all::<LockDenied<'_>>(results.rest()).unwrap().range))
            }
            Err(status) => Err(status),
        }
    }

    fn test(&mut self, kind: LockType, range: LockRange) -> Result<(), LockRange> {
        let owner = LockOwner { client: ClientId(0), owner: &self.owner };
        let args = LocktArgs { kind, range, owner };
        let call = Operations::new().at(self.file).op(OperationCode::Lockt, &args);
        let mut results = self.session.call(&call);
        results.skip(&[OperationCode::Putfh]);
        match results.next::<()>(OperationCode::Lockt) {
            Ok(()) => Ok(()),
            Err(Status::Denied) => Err(decode_all::<LockDenied<'_>>(results.rest()).unwrap().range),
            Err(status) => panic!("{status:?}"),
        }
    }

    /// The status of a test for a lock by this user.
    fn test_as(&mut self, user: u32) -> Result<(), Status> {
        self.session.client.ids = Some(Ids::user(user));
        let owner = LockOwner { client: ClientId(0), owner: b"tester" };
        let args = LocktArgs { kind: LockType::Write, range: ALL, owner };
        let call = Operations::new().at(self.file).op(OperationCode::Lockt, &args);
        self.session.call(&call).skip(&[OperationCode::Putfh]).next(OperationCode::Lockt)
    }

    fn unlock(&mut self, range: LockRange) {
        let stateid = self.held.expect("it holds a lock");
        let args = LockuArgs { kind: LockType::Write, seqid: 0, stateid, range };
        let call = Operations::new().at(self.file).op(OperationCode::Locku, &args);
        let mut results = self.session.ok(&call);
        let held: OneStateid =
            results.skip(&[OperationCode::Putfh]).next(OperationCode::Locku).unwrap();
        self.held = Some(held.stateid);
    }

    fn close(&mut self) {
        let args = CloseArgs { seqid: 0, stateid: self.open };
        self.session.ok(&Operations::new().at(self.file).op(OperationCode::Close, &args));
    }
}

fn local(fixture: &Fixture) -> File {
    OpenOptions::new().read(true).write(true).open(fixture.exported("file")).unwrap()
}

fn locally(file: &File, (first, last): (u64, u64), lock: OfdLock) -> bool {
    set_ofd_lock(file.as_fd(), (first, last), lock).unwrap()
}

#[test]
fn locks_are_shown_to_users_of_the_data_to_its_owner_and_to_openers() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut one = Locking::new(&fixture, b"one");
    let path = fixture.exported("file");
    chown(&path, Some(1001), Some(1002)).unwrap();
    set_mode(&path, 0o604);
    one.lock(LockType::Write, ALL).unwrap();
    let mut other = Session::of(&fixture, b"other", 2);
    other.client.ids = Some(Ids::user(1003));
    let export = other.export();
    let open = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"));
    other.ok(&Operations::new().at(export).op(OperationCode::Open, &open));
    let owner = b"tester".into();
    let mut other = Locking { session: other, file: one.file, open: one.open, held: None, owner };
    assert_eq!(other.test_as(1004), Err(Status::Denied), "it may read");
    for (mode, group) in [(0o000, Err(Status::Access)), (0o020, Err(Status::Denied))] {
        set_mode(&path, mode);
        assert_eq!(other.test_as(1004), Err(Status::Access));
        assert_eq!(other.test_as(1002), group, "{mode:o}");
        assert_eq!(other.test_as(1001), Err(Status::Denied), "the owner");
        assert_eq!(other.test_as(1003), Err(Status::Denied), "it has the file open");
    }
}

#[test]
fn ranges_split_and_merge() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Locking::new(&fixture, b"one"), Locking::new(&fixture, b"two"));
    one.lock(LockType::Write, range(0, 30)).unwrap();
    one.unlock(range(10, 10));
    assert_eq!(two.lock(LockType::Read, ALL), Err(range(0, 10)));
    two.lock(LockType::Write, range(10, 10)).unwrap();
    assert_eq!(one.test(LockType::Read, range(5, 10)), Err(range(10, 10)));
    two.unlock(ALL);
    one.lock(LockType::Write, range(10, 10)).unwrap();
    assert_eq!(two.test(LockType::Read, range(15, 1)), Err(range(0, 30)), "one range again");
    assert_eq!(two.test(LockType::Write, range(30, u64::MAX)), Ok(()));
}

#[test]
fn a_lock_is_taken_though_a_long_owner_of_another_would_not_fit_the_reply() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut holder = Locking::new(&fixture, b"holder");
    let fore = ChannelAttributes { cached_bytes_max: 400, ..CHANNEL };
    let mut one = Locking::over(Session::over(fixture.client(), b"one", 2, fore));
    one.session.cache_this = true;
    assert_eq!(one.try_lock(LockType::Write, range(0, 10)), Ok(Ok(())));
    holder.lock(LockType::Write, range(10, 10)).unwrap();
    assert_eq!(one.try_lock(LockType::Write, ALL), Ok(Err(range(10, 10))));
    holder.unlock(ALL);
    (holder.held, holder.owner) = (None, vec![b'x'; 1000]);
    holder.lock(LockType::Write, range(10, 10)).unwrap();
    assert_eq!(one.try_lock(LockType::Write, ALL), Err(Status::RepTooBigToCache));
    one.session.cache_this = false;
    assert_eq!(one.try_lock(LockType::Write, ALL), Ok(Err(range(10, 10))));
    one.session.cache_this = true;
    holder.unlock(ALL);
    assert_eq!(one.try_lock(LockType::Write, ALL), Ok(Ok(())));
}

#[test]
fn a_lock_is_upgraded_and_downgraded_in_place() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Locking::new(&fixture, b"one"), Locking::new(&fixture, b"two"));
    let local = local(&fixture);
    one.lock(LockType::Read, ALL).unwrap();
    two.lock(LockType::Read, range(0, 1)).unwrap();
    assert_eq!(one.lock(LockType::Write, ALL), Err(range(0, 1)));
    assert!(!locally(&local, (5, 5), OfdLock::Write), "it still has the shared lock");
    two.unlock(ALL);
    one.lock(LockType::Write, ALL).unwrap();
    assert!(!locally(&local, (0, 0), OfdLock::Read));
    one.lock(LockType::Read, ALL).unwrap();
    assert!(locally(&local, (0, 0), OfdLock::Read));
    two.lock(LockType::Read, range(0, 1)).unwrap();
}

#[test]
fn clients_and_local_programs_see_each_others_locks() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut client = Locking::new(&fixture, b"client");
    let local = local(&fixture);
    assert!(locally(&local, (5, 9), OfdLock::Write));
    assert_eq!(client.lock(LockType::Read, ALL), Err(range(5, 5)));
    assert_eq!(client.test(LockType::Read, range(9, 1)), Err(range(5, 5)));
    client.lock(LockType::Write, range(10, u64::MAX)).unwrap();
    assert!(!locally(&local, (10, 10), OfdLock::Read));
    assert!(locally(&local, (5, 9), OfdLock::Unlock));
    client.lock(LockType::Write, ALL).unwrap();
    assert_eq!(client.test(LockType::Write, ALL), Ok(()), "its own lock is not in the way");
    client.close();
    assert!(locally(&local, (0, u64::MAX), OfdLock::Write));
}

#[test]
fn close_of_one_open_keeps_what_its_lock_owner_has_locked_through_another() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut client, local) = (Locking::new(&fixture, b"client"), local(&fixture));
    client.lock(LockType::Write, range(0, 10)).unwrap();
    let export = client.session.export();
    let owner = OpenOwner { client: ClientId(0), owner: b"another owner" };
    let claim = OpenClaim::Null(b"file");
    let args = OpenArgs { owner, ..open_args(ShareAccess::Both, OpenHow::NoCreate, claim) };
    let open = Operations::new().at(export).op(OperationCode::Open, &args);
    let mut results = client.session.ok(&open);
    let opened: OpenOk = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
    let first = std::mem::replace(&mut client.open, opened.stateid);
    client.held = None;
    client.lock(LockType::Write, range(5, 10)).expect("an owner is not in its own way");
    client.open = first;
    client.close();
    assert!(locally(&local, (0, 4), OfdLock::Write));
    assert!(!locally(&local, (5, 5), OfdLock::Read), "its last LOCK was through the other open");
    assert!(!locally(&local, (14, 14), OfdLock::Read));
    client.unlock(range(5, 5));
    assert!(locally(&local, (0, 9), OfdLock::Write));
    assert!(!locally(&local, (10, 10), OfdLock::Read));
}

#[test]
fn a_blocking_lock_is_granted_when_it_is_repeated() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let (mut one, mut two) = (Locking::new(&fixture, b"one"), Locking::new(&fixture, b"two"));
    one.lock(LockType::Write, ALL).unwrap();
    assert_eq!(two.lock(LockType::WriteBlocking, ALL), Err(ALL));
    one.unlock(ALL);
    let waiting = one.lock(LockType::WriteBlocking, ALL);
    assert_eq!(waiting, Err(ALL), "the other client waits longer");
    two.lock(LockType::WriteBlocking, ALL).unwrap();
}

#[test]
fn a_lock_of_a_file_that_is_open_in_a_read_only_mount_too_may_exclude_others() {
    let read_only = "[[export]]\npath = \"$DIR/read-only\"\nname = \"/read-only\"\n";
    let over = Fixture::over(&format!("{ALL_VERSIONS}\n{read_only}"), |dir| {
        let at = dir.join("read-only");
        std::fs::create_dir(&at).unwrap();
        std::fs::write(dir.join("export/file"), b"").unwrap();
        set_mode(&dir.join("export/file"), 0o666);
        let mounted = Mounted::bind(&dir.join("export"), &at)?;
        run_or_skip("mount", &["-o", "remount,bind,ro", at.to_str().unwrap()]).then_some(mounted)
    });
    let Some((fixture, _mount)) = over else { return };
    // The first open of the file.
    let open = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"file"));
    let open = Operations::new().root().lookup(b"read-only").op(OperationCode::Open, &open);
    Session::of(&fixture, b"reader", 2).ok(&open);
    let mut client = Locking::new(&fixture, b"client");
    client.lock(LockType::Read, range(0, 1)).unwrap();
    client.lock(LockType::Write, ALL).unwrap();
    assert!(!locally(&local(&fixture), (0, 0), OfdLock::Read));
}

#[test]
fn an_unlinked_file_stays_usable_while_it_is_open() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut client = Locking::new(&fixture, b"client");
    std::fs::write(fixture.exported("file"), b"data").unwrap();
    let export = client.session.export();
    let remove =
        Operations::new().at(export).op(OperationCode::Remove, &NameArgs { name: b"file" });
    client.session.ok(&remove);
    let read = ReadArgs { stateid: client.open, offset: 0, count: 4 };
    let read = Operations::new().at(client.file).op(OperationCode::Read, &read);
    client.session.ok(&read);
    client.lock(LockType::Write, ALL).unwrap();
    client.close();
    let gone = client.session.call(&Operations::new().at(client.file).getattr(&[attribute::SIZE]));
    assert_eq!(gone.status, Err(Status::Stale));
}

#[test]
fn locks_make_room_when_there_is_no_descriptor_left() {
    if ran_in_own_process("nfs4::locks::locks_make_room_when_there_is_no_descriptor_left") {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut client = Locking::new(&fixture, b"client");
    let export = client.session.export();
    let names: Vec<_> = (0..20).map(|number| format!("unused {number}")).collect();
    for name in &names {
        std::fs::write(fixture.exported(name), "").unwrap();
    }
    // The server can close the files that it has open and no call uses.
    let open_some = |client: &mut Locking| {
        for name in &names {
            let call = Operations::new().at(export).lookup(name.as_bytes());
            client.session.ok(&call.getattr(&[attribute::SIZE]));
        }
    };
    open_some(&mut client);
    let exhausted = Exhausted::new();
    let tested = client.test(LockType::Write, ALL);
    drop(exhausted);
    assert_eq!(tested, Ok(()));
    open_some(&mut client);
    let exhausted = Exhausted::new();
    let locked = client.lock(LockType::Write, ALL);
    drop(exhausted);
    assert_eq!(locked, Ok(()));
}
