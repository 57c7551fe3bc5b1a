//! Locks of NFSv4 clients beside those of local programs, on real files.

use std::fs::{File, OpenOptions};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::nfs4::{
    ClientId, FileHandle, LockRange, LockType, SequenceId, SessionId, ShareAccess, ShareDeny,
    Stateid, Verifier,
};
use rustix::fs::{CWD, Mode, openat};
use tempfile::TempDir;

use super::*;
use crate::export::{ExportRoot, FileSystems};
use crate::fs::{PATH_ONLY, attributes_of};
use crate::inode_cache::InodeCache;
use crate::state::{
    Bounded, ChannelAttributes, ConnectionId, CreateSession, ExchangeId, Limits, Lock, LockFailure,
    LockTarget, OpenFile, Principal, Step, TestedLock,
};

const NOW: Duration = Duration::ZERO;
pub(crate) const ALL: LockRange = LockRange { offset: 0, length: u64::MAX };
const OWNERS_MAX: usize = 4;

/// A file, and the state of clients that use it.
pub(crate) struct Bed {
    dir: TempDir,
    systems: FileSystems,
    cache: InodeCache,
    pub(crate) inode: Arc<Inode>,
    pub(crate) state: Arc<State>,
    pub(crate) held: Arc<HeldFiles>,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (systems, cache) = (FileSystems::default(), InodeCache::new(1000));
        let inode = inode_in_export(1, dir.path(), &systems, &cache);
        let state = Arc::new(State::new(Limits::default(), 1, (1, 2), Vec::new(), NOW));
        Self { dir, systems, cache, inode, state, held: Arc::new(HeldFiles::new(OWNERS_MAX)) }
    }

    /// The file in another export of its directory.
    pub(super) fn in_other_export(&self) -> Arc<Inode> {
        inode_in_export(2, self.dir.path(), &self.systems, &self.cache)
    }

    /// Gives an inode up to those that use it.
    pub(crate) fn forget(&self, inode: &Inode) {
        drop(self.cache.take(&inode.key()));
    }

    /// A file in an export of another directory.
    pub(crate) fn elsewhere(&self, dir: &Path) -> Arc<Inode> {
        inode_in_export(3, dir, &self.systems, &self.cache)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    pub(crate) fn client(&self, owner: &[u8]) -> ClientId {
        let mut step = Step::new(NOW);
        let client = self.boot(owner, 0, &mut step);
        self.state.reclaim_complete(client, false, &mut step).unwrap();
        client
    }

    /// A client that has begun with this verifier: what it held before has ended.
    pub(crate) fn boot(&self, owner: &[u8], verifier: u8, step: &mut Step) -> ClientId {
        boot(&self.state, owner, verifier, Principal::None, step).0
    }

    fn open(&self, client: ClientId, access: ShareAccess) -> Stateid {
        self.open_in(client, &self.inode, access)
    }

    pub(crate) fn open_in(
        &self,
        client: ClientId,
        inode: &Arc<Inode>,
        access: ShareAccess,
    ) -> Stateid {
        self.open_by((client, b"o"), inode, access)
    }

    fn open_by(
        &self,
        (client, owner): (ClientId, &[u8]),
        inode: &Arc<Inode>,
        access: ShareAccess,
    ) -> Stateid {
        let pin = self.held.pin(inode);
        let (file, export, deny) = (pin.file(), pin.export(), ShareDeny::None);
        let is_reclaim = false;
        let call = OpenFile {
            client,
            owner,
            file,
            export,
            access,
            deny,
            cuts: false,
            is_reclaim,
            user: Some(0),
        };
        let opened = self.state.open(&call, &mut Step::new(NOW)).unwrap();
        if opened.is_new {
            pin.keep();
        }
        opened.stateid
    }

    fn perform(&self, step: Step) {
        let perform = |effect: &Effect| drop(self.held.perform(&self.state, effect));
        step.into_effects().iter().for_each(perform);
    }

    /// The stateid, or the lock of a local program.
    fn lock(
        &self,
        client: ClientId,
        target: LockTarget<'_>,
        kind: LockType,
        range: LockRange,
    ) -> Result<Stateid, Piece> {
        self.lock_in(client, &self.inode, target, kind, range)
    }

    pub(crate) fn lock_in(
        &self,
        client: ClientId,
        inode: &Inode,
        target: LockTarget<'_>,
        kind: LockType,
        range: LockRange,
    ) -> Result<Stateid, Piece> {
        let (file, mut step) = (file_id(inode), Step::new(NOW));
        let object = FileHandle::new(b"file").unwrap();
        let call = Lock { client, target, file, object, range, kind, is_reclaim: false };
        let grant = match self.state.lock_range(&call, &mut step) {
            Ok(grant) => grant,
            Err(LockFailure::Denied(conflict)) => return Err(conflict.piece),
            Err(failure) => panic!("{failure:?}"),
        };
        let result = match self.held.mirror(&self.state, &grant).unwrap() {
            None => Ok(self.state.confirm_lock(grant, &mut step).unwrap()),
            Some(conflict) => {
                self.state.undo_lock(grant, &mut step);
                Err(conflict)
            }
        };
        self.perform(step);
        result
    }

    fn unlock(&self, client: ClientId, stateid: &Stateid, range: LockRange) -> Stateid {
        let (file, mut step) = (file_id(&self.inode), Step::new(NOW));
        let unlocked = self.state.unlock_range(client, stateid, file, range, &mut step).unwrap();
        self.perform(step);
        unlocked
    }

    fn close(&self, client: ClientId, stateid: &Stateid) {
        let mut step = Step::new(NOW);
        let file = file_id(&self.inode);
        self.state.close(client, stateid, file, &mut step).unwrap();
        self.perform(step);
    }

    pub(crate) fn local_file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.path()).unwrap()
    }
}

/// EXCHANGE_ID and CREATE_SESSION.
pub(crate) fn boot(
    state: &State,
    owner: &[u8],
    verifier: u8,
    principal: Principal,
    step: &mut Step,
) -> (ClientId, SessionId) {
    let (verifier, is_update) = (Verifier([verifier; 8]), false);
    let peer = Ipv4Addr::LOCALHOST.into();
    let call = ExchangeId { owner, verifier, is_update, principal, peer };
    let client = state.exchange_id(&call, step).unwrap().client;
    let channel = ChannelAttributes {
        request_bytes_max: 4096,
        response_bytes_max: 4096,
        cached_bytes_max: 4096,
        operations_max: 8,
        slots_max: 1,
    };
    let call = CreateSession {
        client,
        sequence: SequenceId(1),
        fore: channel,
        back: channel,
        wants_backchannel: false,
        callbacks: None,
        principal,
        connection: ConnectionId(1),
        within: None,
    };
    (client, state.create_session(&call, step).unwrap().session)
}

/// The file `file` in an export of a directory.
fn inode_in_export(id: u32, dir: &Path, systems: &FileSystems, cache: &InodeCache) -> Arc<Inode> {
    let root = Arc::new(ExportRoot::open_path(id, dir, systems, Arc::default()).unwrap());
    let path = dir.join("file");
    if !path.exists() {
        std::fs::write(&path, "data").unwrap();
    }
    let fd = openat(CWD, path, PATH_ONLY, Mode::empty()).unwrap();
    let handle = root.identify(fd.as_fd()).unwrap();
    let file_type = attributes_of(&fd).unwrap().file_type;
    let room = cache.any_room();
    cache.add(root, handle, file_type, (fd, room))
}

pub(crate) fn locally(file: &File, (first, last): (u64, u64), wanted: OfdLock) -> bool {
    io::set_ofd_lock(file.as_fd(), (first, last), wanted).unwrap()
}

pub(crate) fn new(open: &Stateid) -> LockTarget<'_> {
    LockTarget::New { open, owner: b"l" }
}

fn piece(first: u64, last: u64, kind: LockKind) -> Piece {
    Piece { range: Range { first, last }, kind }
}

#[test]
fn local_programs_see_the_locks_of_clients() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both);
    let local = bed.local_file();
    let low = LockRange { offset: 0, length: 10 };
    let held = bed.lock(client, new(&open), LockType::Write, low).unwrap();
    assert!(!locally(&local, (9, 9), OfdLock::Read));
    assert!(locally(&local, (10, 20), OfdLock::Write));
    let middle = LockRange { offset: 4, length: 2 };
    let held = bed.unlock(client, &held, middle);
    assert!(locally(&local, (4, 5), OfdLock::Write));
    assert!(!locally(&local, (6, 6), OfdLock::Read));
    bed.unlock(client, &held, ALL);
    assert!(locally(&local, (0, u64::MAX), OfdLock::Write));
}

#[test]
fn clients_see_the_locks_of_local_programs() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both);
    let local = bed.local_file();
    assert!(locally(&local, (5, 9), OfdLock::Write));
    let in_the_way = Err(piece(5, 9, LockKind::Write));
    assert_eq!(bed.lock(client, new(&open), LockType::Read, ALL), in_the_way);
    let wanted = piece(0, u64::MAX, LockKind::Read);
    let foreign = |own| {
        let tested = TestedLock { wanted, own };
        bed.held.foreign_lock(&bed.state, &bed.inode, tested).unwrap()
    };
    assert_eq!(foreign(None), in_the_way.err());
    assert!(locally(&local, (5, 9), OfdLock::Unlock));
    bed.lock(client, new(&open), LockType::Write, ALL).unwrap();
    let (file, mut step) = (file_id(&bed.inode), Step::new(NOW));
    let owner = (client, export_id(&bed.inode), b"l".as_slice());
    let tested = bed.state.test_lock(owner, file, ALL, LockType::Read, &mut step).unwrap();
    assert_eq!(foreign(tested.own), None, "its own lock is not in the way");
}

#[test]
fn a_denied_lock_leaves_the_kernel_as_the_table() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both);
    let local = bed.local_file();
    let low = LockRange { offset: 0, length: 10 };
    let held = bed.lock(client, new(&open), LockType::Read, low).unwrap();
    assert!(locally(&local, (5, 20), OfdLock::Read));
    let denied = bed.lock(client, LockTarget::Known(&held), LockType::Write, ALL);
    assert_eq!(denied, Err(piece(5, 20, LockKind::Read)));
    assert!(!locally(&local, (0, 0), OfdLock::Write), "the shared lock is still there");
    assert!(locally(&local, (10, 20), OfdLock::Write), "and nothing else");
    bed.unlock(client, &held, ALL);
    assert!(locally(&local, (0, u64::MAX), OfdLock::Write));
}

#[test]
fn shared_locks_survive_the_change_to_a_descriptor_that_can_write() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let reader = bed.open(client, ShareAccess::Read);
    let at = |offset| LockRange { offset, length: 1 };
    let first = bed.lock(client, new(&reader), LockType::Read, at(0)).unwrap();
    bed.lock(client, LockTarget::Known(&first), LockType::Read, at(2)).unwrap();
    // The same open owner opens the file for writing too.
    let both = bed.open(client, ShareAccess::Write);
    bed.lock(client, new(&both), LockType::Write, at(2)).unwrap();
    let local = bed.local_file();
    assert!(!locally(&local, (0, 0), OfdLock::Write));
    assert!(locally(&local, (0, 0), OfdLock::Read), "it is shared");
    assert!(!locally(&local, (2, 2), OfdLock::Read), "it is exclusive");
    assert!(locally(&local, (1, 1), OfdLock::Write), "it is not locked");
}

#[test]
fn a_reader_does_not_open_the_file_for_writing() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Read);
    bed.lock(client, new(&open), LockType::Read, ALL).unwrap();
    let table = bed.held.lock();
    let owners = table.files.values().flat_map(|held| held.locks.values());
    let writable = owners.filter_map(|owner| Some(owner.0.lock().unwrap().as_ref()?.is_writable()));
    assert_eq!(writable.collect::<Vec<_>>(), [false]);
}

#[test]
fn owners_have_locks_of_their_own_which_end_with_their_open() {
    let bed = Bed::new();
    let [a, b] = [b"a", b"b"].map(|owner| bed.client(owner));
    let (open_a, open_b) = (bed.open(a, ShareAccess::Both), bed.open(b, ShareAccess::Both));
    bed.lock(a, new(&open_a), LockType::Read, ALL).unwrap();
    bed.lock(b, new(&open_b), LockType::Read, ALL).unwrap();
    let local = bed.local_file();
    bed.close(a, &open_a);
    assert!(!locally(&local, (0, 0), OfdLock::Write), "the other client's lock");
    bed.close(b, &open_b);
    assert!(locally(&local, (0, u64::MAX), OfdLock::Write));
    assert!(bed.held.lock().files.is_empty());
}

#[test]
fn an_owner_keeps_its_descriptor_when_one_of_its_opens_is_closed() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let reader = bed.open(client, ShareAccess::Read);
    let writer = bed.open_by((client, b"writer"), &bed.inode, ShareAccess::Both);
    let at = |offset, length| LockRange { offset, length };
    bed.lock(client, new(&reader), LockType::Read, at(0, 10)).unwrap();
    let held = bed.lock(client, new(&writer), LockType::Write, at(5, 10)).unwrap();
    assert_eq!(bed.held.lock().owners, 1);
    let local = bed.local_file();
    assert!(locally(&local, (0, 0), OfdLock::Read), "it is shared");
    bed.close(client, &reader);
    assert!(locally(&local, (0, 4), OfdLock::Write));
    assert!(!locally(&local, (5, 5), OfdLock::Read), "it was locked through the other open last");
    assert!(!locally(&local, (14, 14), OfdLock::Read));
    // The range of a LOCK that the kernel denies goes back to the open that it was locked through.
    let second = bed.open_by((client, b"second"), &bed.inode, ShareAccess::Both);
    let denied = bed.lock(client, new(&second), LockType::Read, ALL);
    assert_eq!(denied, Err(piece(0, 4, LockKind::Write)));
    bed.close(client, &second);
    assert!(!locally(&local, (5, 5), OfdLock::Read));
    bed.unlock(client, &held, ALL);
    assert!(locally(&local, (0, u64::MAX), OfdLock::Write));
    bed.close(client, &writer);
    assert!(bed.held.lock().files.is_empty());
}

#[test]
fn a_local_program_gets_the_locks_of_a_client_after_a_short_courtesy() {
    let bed = Bed::new();
    let [locker, opener] = [b"l", b"o"].map(|owner| bed.client(owner));
    let open = bed.open(locker, ShareAccess::Both);
    bed.lock(locker, new(&open), LockType::Write, ALL).unwrap();
    let kept = bed.open(opener, ShareAccess::Read);
    let local = bed.local_file();
    let Limits { lease, lock_courtesy, .. } = Limits::default();
    let last = lease + lock_courtesy;
    for (now, is_free) in [(last, false), (last + Duration::from_secs(1), true)] {
        let mut step = Step::new(now);
        bed.state.expire(&mut step);
        bed.perform(step);
        assert_eq!(locally(&local, (0, u64::MAX), OfdLock::Write), is_free, "{now:?}");
    }
    let known = bed.state.test_stateid(opener, &kept);
    known.expect("a client without locks keeps its state");
}

#[test]
fn a_client_that_is_forgotten_leaves_no_lock_in_the_kernel() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both);
    let (file, mut step) = (file_id(&bed.inode), Step::new(NOW));
    let (target, kind) = (new(&open), LockType::Write);
    let object = FileHandle::new(b"file").unwrap();
    let call = Lock { client, target, file, object, range: ALL, kind, is_reclaim: false };
    let grant = bed.state.lock_range(&call, &mut step).unwrap();
    // It is forgotten before its lock is mirrored, while another client has the file open.
    let other = bed.client(b"other");
    bed.open(other, ShareAccess::Both);
    bed.close(client, &open);
    bed.held.mirror(&bed.state, &grant).unwrap();
    bed.state.confirm_lock(grant, &mut step).unwrap_err();
    bed.perform(step);
    assert!(locally(&bed.local_file(), (0, u64::MAX), OfdLock::Write));
}

#[test]
fn an_open_file_stays_when_its_last_name_is_removed() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both);
    std::fs::remove_file(bed.path()).unwrap();
    let key = bed.inode.key();
    let Bed { cache, inode, state, held, dir, systems } = bed;
    drop(inode);
    assert!(cache.unused().is_empty(), "the open uses it");
    let inode = cache.find(&key).expect("the open holds it");
    let bed = Bed { cache, inode, state, held, dir, systems };
    bed.lock(client, new(&open), LockType::Write, ALL).unwrap();
    bed.close(client, &open);
    assert!(bed.held.lock().files.is_empty());
}

#[test]
fn locks_of_a_retired_export_end_while_another_has_the_file_open() {
    let bed = Bed::new();
    let [a, b] = [b"a", b"b"].map(|owner| bed.client(owner));
    let other = bed.in_other_export();
    assert_eq!(file_id(&other), file_id(&bed.inode), "it is one file");
    let (open, kept) = (bed.open(a, ShareAccess::Both), bed.open_in(b, &other, ShareAccess::Both));
    bed.lock(a, new(&open), LockType::Write, ALL).unwrap();
    bed.inode.root().retire();
    let mut step = Step::new(NOW);
    bed.state.release_files(&bed.held.retired(), &mut step);
    bed.perform(step);
    let low = LockRange { offset: 0, length: 10 };
    bed.lock(b, new(&kept), LockType::Write, low).expect("it is released");
    assert!(locally(&bed.local_file(), (10, u64::MAX), OfdLock::Write), "in the kernel too");
    assert!(bed.held.retired().is_empty());
    let key = bed.inode.key();
    let Bed { cache, inode, state, held, dir, systems } = bed;
    drop(inode);
    cache.take(&key);
    assert!(cache.find(&key).is_none(), "nothing holds the inode of the retired export");
    let bed = Bed { cache, inode: other, state, held, dir, systems };
    bed.close(b, &kept);
    assert!(bed.held.lock().files.is_empty());
}

#[test]
fn a_lock_that_has_ended_denies_nothing_while_it_waits_to_be_released() {
    let bed = Bed::new();
    let [a, b] = [b"a", b"b"].map(|owner| bed.client(owner));
    let (ended, open) = (bed.open(a, ShareAccess::Both), bed.open(b, ShareAccess::Both));
    bed.lock(a, new(&ended), LockType::Write, ALL).unwrap();
    let (file, mut later) = (file_id(&bed.inode), Step::new(NOW));
    bed.state.close(a, &ended, file, &mut later).unwrap();
    let held = bed.lock(b, new(&open), LockType::Write, ALL).expect("it has ended");
    bed.perform(later);
    assert!(!locally(&bed.local_file(), (0, 0), OfdLock::Read), "the new lock stays");
    bed.unlock(b, &held, ALL);
    assert_eq!(bed.held.lock().owners, 1);
}

#[test]
fn locks_that_wait_to_be_released_count_until_then() {
    let bed = Bed::new();
    let local = bed.local_file();
    let mut later = Step::new(NOW);
    for owner in 0..u8::try_from(OWNERS_MAX).unwrap() {
        let client = bed.client(&[owner]);
        let open = bed.open(client, ShareAccess::Both);
        let at = LockRange { offset: owner.into(), length: 1 };
        bed.lock(client, new(&open), LockType::Write, at).unwrap();
        bed.state.close(client, &open, file_id(&bed.inode), &mut later).unwrap();
    }
    let client = bed.client(b"late");
    let open = bed.open(client, ShareAccess::Both);
    let (file, object) = (file_id(&bed.inode), FileHandle::new(b"file").unwrap());
    let (target, range, kind) = (new(&open), LockRange { offset: 99, length: 1 }, LockType::Write);
    let call = Lock { client, target, file, object, range, kind, is_reclaim: false };
    let grant = bed.state.lock_range(&call, &mut later).unwrap();
    assert_eq!(bed.held.mirror(&bed.state, &grant), Err(NotMirrored::NoRoom));
    let mut step = Step::new(NOW);
    let put_off = bed.state.put_off_lock(client, grant, &mut step);
    assert_eq!(put_off, proto::nfs4::Status::Delay);
    let effects = step.into_effects();
    let logged = Effect::NoRoom { address: Ipv4Addr::LOCALHOST.into(), of: Bounded::LockOwners };
    assert!(effects.contains(&logged), "{effects:?}");
    effects.iter().for_each(|effect| drop(bed.held.perform(&bed.state, effect)));
    bed.perform(later);
    bed.lock(client, new(&open), LockType::Write, range).expect("there is room");
    assert!(locally(&local, (0, 98), OfdLock::Write));
}

fn call<'a>(
    bed: &Bed,
    (client, target): (ClientId, LockTarget<'a>),
    kind: LockType,
    range: LockRange,
) -> Lock<'a> {
    let (file, object) = (file_id(&bed.inode), FileHandle::new(b"file").unwrap());
    Lock { client, target, file, object, range, kind, is_reclaim: false }
}

#[test]
fn a_range_that_was_unlocked_denies_nothing_while_the_kernel_is_to_be_asked() {
    let bed = Bed::new();
    let [a, b] = [b"a", b"b"].map(|owner| bed.client(owner));
    let (of_a, of_b) = (bed.open(a, ShareAccess::Both), bed.open(b, ShareAccess::Both));
    let held = bed.lock(a, new(&of_a), LockType::Write, ALL).unwrap();
    let (file, mut later) = (file_id(&bed.inode), Step::new(NOW));
    let low = LockRange { offset: 0, length: 10 };
    bed.state.unlock_range(a, &held, file, low, &mut later).unwrap();
    let wanted = piece(0, 9, LockKind::Write);
    assert_eq!(
        bed.held.foreign_lock(&bed.state, &bed.inode, TestedLock { wanted, own: None }),
        Ok(None)
    );
    bed.lock(b, new(&of_b), LockType::WriteBlocking, low).expect("it is free");
    bed.perform(later);
    let local = bed.local_file();
    assert!(!locally(&local, (0, 0), OfdLock::Read), "the new lock stays");
    assert!(!locally(&local, (10, 10), OfdLock::Read), "what was not unlocked too");
}

#[test]
fn unlocking_leaves_what_the_owner_has_locked_again() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both);
    let held = bed.lock(client, new(&open), LockType::Write, ALL).unwrap();
    let (file, mut later) = (file_id(&bed.inode), Step::new(NOW));
    let held = bed.state.unlock_range(client, &held, file, ALL, &mut later).unwrap();
    let low = LockRange { offset: 0, length: 10 };
    bed.lock(client, LockTarget::Known(&held), LockType::Write, low).unwrap();
    bed.perform(later);
    let local = bed.local_file();
    assert!(!locally(&local, (9, 9), OfdLock::Read), "it is locked again");
    assert!(locally(&local, (10, u64::MAX), OfdLock::Write));
}

#[test]
fn a_shared_lock_waits_until_the_kernel_has_made_the_exclusive_one_shared() {
    let bed = Bed::new();
    let [a, b] = [b"a", b"b"].map(|owner| bed.client(owner));
    let (of_a, of_b) = (bed.open(a, ShareAccess::Both), bed.open(b, ShareAccess::Both));
    let held = bed.lock(a, new(&of_a), LockType::Write, ALL).unwrap();
    let shared = call(&bed, (a, LockTarget::Known(&held)), LockType::Read, ALL);
    let mut step = Step::new(NOW);
    let grant = bed.state.lock_range(&shared, &mut step).unwrap();
    let low = LockRange { offset: 0, length: 10 };
    let denied = bed.lock(b, new(&of_b), LockType::ReadBlocking, low);
    assert_eq!(denied, Err(piece(0, u64::MAX, LockKind::Write)));
    assert_eq!(bed.held.mirror(&bed.state, &grant), Ok(None));
    bed.state.confirm_lock(grant, &mut step).unwrap();
    let is_notified =
        |effect: &Effect| matches!(effect, Effect::NotifyLock { client, .. } if *client == b);
    let effects = step.into_effects();
    assert!(effects.iter().any(is_notified), "{effects:?}");
    bed.lock(b, new(&of_b), LockType::ReadBlocking, low).expect("it is shared");
}

#[test]
fn unlocking_a_range_that_is_being_locked_leaves_no_lock() {
    for (is_denied, is_performed_first) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let bed = Bed::new();
        let client = bed.client(b"c");
        let open = bed.open(client, ShareAccess::Both);
        let local = bed.local_file();
        assert!(locally(&local, (20, 20), OfdLock::Read));
        let held = bed.lock(client, new(&open), LockType::Read, ALL).unwrap();
        let range = if is_denied { ALL } else { LockRange { offset: 0, length: 10 } };
        let exclusive = call(&bed, (client, LockTarget::Known(&held)), LockType::Write, range);
        let (file, mut step) = (file_id(&bed.inode), Step::new(NOW));
        let grant = bed.state.lock_range(&exclusive, &mut step).unwrap();
        bed.state.unlock_range(client, &held, file, ALL, &mut step).unwrap();
        if is_performed_first {
            bed.perform(std::mem::replace(&mut step, Step::new(NOW)));
        }
        let found = bed.held.mirror(&bed.state, &grant).unwrap();
        assert_eq!(found.is_some(), is_denied);
        if is_denied {
            bed.state.undo_lock(grant, &mut step);
        } else {
            bed.state.confirm_lock(grant, &mut step).unwrap();
        }
        bed.perform(step);
        assert_eq!(bed.state.counts().locks, 1, "the lock state without a range");
        assert!(locally(&local, (0, u64::MAX), OfdLock::Write), "the kernel has none either");
    }
}

#[test]
fn a_lock_waits_for_another_of_its_owner_that_overlaps_it() {
    let bed = Bed::new();
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both);
    let at = |offset| LockRange { offset, length: 10 };
    let first = call(&bed, (client, new(&open)), LockType::Write, at(0));
    let mut step = Step::new(NOW);
    let grant = bed.state.lock_range(&first, &mut step).unwrap();
    let second = call(&bed, (client, new(&open)), LockType::Read, at(9));
    let delayed = bed.state.lock_range(&second, &mut step).map(drop);
    assert_eq!(delayed, Err(LockFailure::Status(proto::nfs4::Status::Delay)));
    bed.lock(client, new(&open), LockType::Read, at(10)).expect("it does not overlap");
    bed.state.undo_lock(grant, &mut step);
    bed.perform(step);
    bed.lock(client, new(&open), LockType::Read, at(9)).unwrap();
}
