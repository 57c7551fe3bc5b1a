//! The state as a whole: what clients see of it, and random sequences of everything against a
//! model.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use proto::nfs4::{
    ClientId, FileHandle, LockRange, LockType, SEQ4_STATUS_ADMIN_STATE_REVOKED,
    SEQ4_STATUS_CB_PATH_DOWN, SEQ4_STATUS_CB_PATH_DOWN_SESSION, SEQ4_STATUS_RESTART_RECLAIM_NEEDED,
    SequenceId, ShareAccess, ShareDeny, SlotId, Stateid, Status, Verifier,
};

use proptest::test_runner::Config as ProptestConfig;

use super::file_locks::PEER_WAITERS_MAX;
use super::open::{IoState, Opened};
use super::registry::StateCounts;
use super::session::Session;
use super::*;

mod courtesy;
mod delegations;
mod grace;
mod lock_states;
mod model;

/// Failures are reproduced by the printed input, not by files in the source tree.
pub(super) fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

pub(super) const LEASE: Duration = Duration::from_secs(90);

pub(super) const CHANNEL: ChannelAttributes = ChannelAttributes {
    request_bytes_max: 1 << 20,
    response_bytes_max: 1 << 20,
    cached_bytes_max: 1 << 12,
    operations_max: 8,
    slots_max: 100,
};

pub(super) fn state_with(limits: Limits, recorded: Vec<ClientRecord>) -> State {
    let recorded = recorded.into_iter().map(|client| (client, SystemTime::UNIX_EPOCH));
    State::new(limits, 7, (1, 2), recorded.collect(), Duration::ZERO)
}

pub(super) fn exchange(
    state: &State,
    (owner, verifier, principal): (&[u8], u8, Principal),
    is_update: bool,
    now: Duration,
) -> Result<ExchangedId, Status> {
    let peer = peer_of(owner);
    let call = ExchangeId { owner, verifier: Verifier([verifier; 8]), is_update, principal, peer };
    state.exchange_id(&call, &mut Step::new(now))
}

/// The address of a client: those whose owners begin alike have the same.
pub(super) fn peer_of(owner: &[u8]) -> IpAddr {
    IpAddr::from([10, 0, 0, owner[0]])
}

/// The handle by which clients name the file.
pub(super) fn object() -> FileHandle {
    FileHandle::new(b"file").unwrap()
}

/// For the lock owner of a client.
fn notice() -> Notice {
    Notice { object: object(), owner: b"l".as_slice().into(), _counted: Arc::default() }
}

/// The first CREATE_SESSION of a client of root.
pub(super) fn call_of(client: ClientId) -> CreateSession {
    CreateSession {
        client,
        sequence: SequenceId(1),
        fore: CHANNEL,
        back: CHANNEL,
        wants_backchannel: false,
        callbacks: Some(CallbackParameters { minor_version: 1, program: 7, ids: None }),
        principal: Principal::User(0),
        connection: ConnectionId(1),
        within: None,
    }
}

/// An OPEN of [`FILE`] for reading and writing.
pub(super) fn open_call(client: ClientId) -> OpenFile<'static> {
    OpenFile {
        client,
        owner: b"o",
        file: FILE,
        export: EXPORT,
        access: ShareAccess::Both,
        deny: ShareDeny::None,
        cuts: false,
        is_reclaim: false,
        user: Some(0),
    }
}

/// A state, with its time and the effects so far.
struct Bed {
    state: State,
    step: Step,
}

const FILE: FileId = FileId(1);
pub(super) const EXPORT: ExportId = ExportId(0);
const ALL: LockRange = LockRange { offset: 0, length: u64::MAX };

impl Bed {
    fn new(limits: Limits, recorded: Vec<ClientRecord>) -> Self {
        let state = state_with(limits, recorded);
        Self { state, step: Step::new(Duration::ZERO) }
    }

    /// A confirmed client with a session.
    fn begin_client(&mut self, owner: &[u8]) -> (ClientId, Arc<Session>) {
        let user = Principal::User(0);
        let client = exchange(&self.state, (owner, 1, user), false, self.step.now).unwrap().client;
        let made = self.state.create_session(&call_of(client), &mut self.step);
        (client, self.state.session(made.unwrap().session).unwrap())
    }

    /// A client that has the file open for reading and writing.
    fn client_with_open(&mut self, owner: &[u8]) -> (ClientId, Stateid) {
        let client = self.client(owner);
        (client, self.open(client, ShareAccess::Both, ShareDeny::None).stateid)
    }

    /// A confirmed client with a session that may open files.
    fn client(&mut self, owner: &[u8]) -> ClientId {
        let (client, _) = self.begin_client(owner);
        self.reclaim_complete(client).unwrap();
        client
    }

    fn reclaim_complete(&mut self, client: ClientId) -> Result<(), Status> {
        self.state.reclaim_complete(client, false, &mut self.step)
    }

    fn open_as(
        &mut self,
        client: ClientId,
        share: (ShareAccess, ShareDeny),
        is_reclaim: bool,
    ) -> Result<Opened, Status> {
        let (access, deny) = share;
        let call = OpenFile { access, deny, is_reclaim, ..open_call(client) };
        self.state.open(&call, &mut self.step).map_err(Status::from)
    }

    fn open(&mut self, client: ClientId, access: ShareAccess, deny: ShareDeny) -> Opened {
        self.open_as(client, (access, deny), false).unwrap()
    }

    fn lock(
        &mut self,
        client: ClientId,
        open: &Stateid,
        kind: LockType,
        range: LockRange,
    ) -> Result<Stateid, LockFailure> {
        self.lock_as(b"l", client, open, kind, range)
    }

    fn lock_as(
        &mut self,
        owner: &[u8],
        client: ClientId,
        open: &Stateid,
        kind: LockType,
        range: LockRange,
    ) -> Result<Stateid, LockFailure> {
        let target = LockTarget::New { open, owner };
        let call =
            Lock { client, target, file: FILE, object: object(), range, kind, is_reclaim: false };
        let grant = self.state.lock_range(&call, &mut self.step)?;
        Ok(self.state.confirm_lock(grant, &mut self.step)?)
    }

    fn unlock(&mut self, client: ClientId, lock: &Stateid, range: LockRange) {
        let latest = Stateid { seqid: 0, ..*lock };
        self.state.unlock_range(client, &latest, FILE, range, &mut self.step).unwrap();
    }

    /// Lock owners that were asked for a conflict since the last call.
    fn visits(&self) -> usize {
        self.state.lock().files.locks(FILE).unwrap().visits.take()
    }

    fn check_io(
        &mut self,
        client: ClientId,
        stateid: &Stateid,
        access: ShareAccess,
    ) -> Result<IoState, Status> {
        self.state.check_io(client, stateid, FILE, (access, 0), &mut self.step)
    }

    fn close(&mut self, client: ClientId, stateid: &Stateid) -> Result<Stateid, Status> {
        self.state.close(client, stateid, FILE, &mut self.step)
    }

    /// The clients that are to be notified since the last call.
    fn notified(&mut self) -> Vec<ClientId> {
        let notified = |effect: Effect| match effect {
            Effect::NotifyLock { client, .. } => Some(client),
            _ => None,
        };
        self.taken().into_iter().filter_map(notified).collect()
    }

    /// The effects since the last call.
    fn taken(&mut self) -> Effects {
        std::mem::take(&mut self.step.effects)
    }
}

#[test]
fn an_open_grows_shrinks_and_ends() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let client = bed.client(b"c");
    let first = bed.open(client, ShareAccess::Read, ShareDeny::None);
    assert!(first.is_new);
    assert_eq!(first.stateid.seqid, 1);
    assert_eq!(bed.check_io(client, &first.stateid, ShareAccess::Write), Err(Status::Openmode));
    let second = bed.open(client, ShareAccess::Write, ShareDeny::None);
    assert!(!second.is_new);
    assert_eq!(second.stateid, Stateid { seqid: 2, ..first.stateid });
    let write = ShareAccess::Write;
    assert_eq!(bed.check_io(client, &first.stateid, write), Err(Status::OldStateid));
    let latest = Stateid { seqid: 0, ..first.stateid };
    for stateid in [second.stateid, latest] {
        assert_eq!(bed.check_io(client, &stateid, write), Ok(IoState::Opened));
    }
    let future = Stateid { seqid: 3, ..first.stateid };
    assert_eq!(bed.check_io(client, &future, write), Err(Status::BadStateid));

    let downgrade = |stateid: &Stateid, access| {
        bed.state.open_downgrade(client, stateid, FILE, access, ShareDeny::None)
    };
    assert_eq!(downgrade(&first.stateid, write), Err(Status::OldStateid));
    let third = downgrade(&second.stateid, write).unwrap();
    assert_eq!(third.seqid, 3);
    assert_eq!(downgrade(&third, ShareAccess::Both), Err(Status::Inval));
    assert_eq!(bed.check_io(client, &third, ShareAccess::Read), Ok(IoState::Unchecked));
    assert_eq!(bed.close(client, &third), Ok(Stateid::INVALID));
    assert_eq!(bed.close(client, &third), Err(Status::BadStateid));
    assert_eq!(
        bed.taken(),
        [
            Effect::Records,
            Effect::Records,
            Effect::Records,
            Effect::Records,
            Effect::Unpin { file: FILE, export: EXPORT }
        ]
    );
}

#[test]
fn a_stateid_is_of_no_use_to_another_client_or_for_another_file() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (owner, other) = (bed.client(b"owner"), bed.client(b"other"));
    let open = bed.open(owner, ShareAccess::Both, ShareDeny::None).stateid;
    let lock = bed.lock(owner, &open, LockType::Write, ALL).unwrap();
    for stateid in [open, lock] {
        let bad = Err(Status::BadStateid);
        assert_eq!(bed.check_io(other, &stateid, ShareAccess::Read), bad.clone());
        assert_eq!(bed.close(other, &stateid).map(drop), Err(Status::BadStateid));
        assert_eq!(bed.state.test_stateid(other, &stateid), Err(Status::BadStateid));
        let step = &mut bed.step;
        let unlocked = bed.state.unlock_range(other, &stateid, FILE, ALL, step);
        assert_eq!(unlocked, Err(Status::BadStateid));
        let freed = bed.state.free_stateid(other, &stateid, step);
        assert_eq!(freed, Err(Status::BadStateid));
        let elsewhere =
            bed.state.check_io(owner, &stateid, FileId(2), (ShareAccess::Read, 0), step);
        assert_eq!(elsewhere, bad);
    }
    let later = State::new(Limits::default(), 8, (1, 2), Vec::new(), bed.step.now);
    assert_eq!(later.test_stateid(owner, &open), Err(Status::BadStateid), "another epoch");
}

#[test]
fn special_stateids_respect_denials_except_the_bypass() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, other) = (bed.client(b"holder"), bed.client(b"other"));
    bed.open(holder, ShareAccess::Read, ShareDeny::Both);
    let (read, write) = (ShareAccess::Read, ShareAccess::Write);
    let [anonymous, bypass] = [Stateid::ANONYMOUS, Stateid::READ_BYPASS];
    assert_eq!(bed.check_io(other, &anonymous, read), Err(Status::Locked));
    assert_eq!(bed.check_io(other, &anonymous, write), Err(Status::Locked));
    assert_eq!(bed.check_io(other, &bypass, read), Ok(IoState::Unchecked));
    assert_eq!(bed.check_io(other, &bypass, write), Err(Status::Locked));
    for invalid in [Stateid::CURRENT, Stateid::INVALID] {
        assert_eq!(bed.check_io(other, &invalid, read), Err(Status::BadStateid));
    }
    bed.step.now = LEASE * 2;
    assert_eq!(bed.check_io(other, &anonymous, write), Ok(IoState::Unchecked), "it expired");
}

#[test]
fn reads_through_an_open_for_writing_respect_denials_of_others() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (writer, denier) = (bed.client(b"a writer"), bed.client(b"denier"));
    let (read, write) = (ShareAccess::Read, ShareAccess::Write);
    let open = bed.open(writer, write, ShareDeny::Read).stateid;
    assert_eq!(bed.check_io(writer, &open, read), Ok(IoState::Unchecked), "it denies others");
    bed.close(writer, &open).unwrap();
    let open = bed.open(writer, write, ShareDeny::None).stateid;
    let lock = bed.lock(writer, &open, LockType::Write, ALL).unwrap();
    bed.open(denier, write, ShareDeny::Read);
    for stateid in [open, lock] {
        assert_eq!(bed.check_io(writer, &stateid, read), Err(Status::Locked));
        assert_eq!(bed.check_io(writer, &stateid, write), Ok(IoState::Opened));
    }
    bed.step.now = LEASE * 2;
    assert_eq!(bed.check_io(writer, &open, read), Ok(IoState::Unchecked), "it expired");
}

#[test]
fn locks_need_an_open_of_their_mode_and_end_with_it() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (reader, writer) = (bed.client(b"reader"), bed.client(b"writer"));
    let read = bed.open(reader, ShareAccess::Read, ShareDeny::None).stateid;
    let write = bed.open(writer, ShareAccess::Write, ShareDeny::None).stateid;
    let openmode = || Err(LockFailure::Status(Status::Openmode));
    assert_eq!(bed.lock(reader, &read, LockType::Write, ALL), openmode());
    assert_eq!(bed.lock(writer, &write, LockType::Read, ALL), openmode());
    let held = bed.lock(reader, &read, LockType::Read, ALL).unwrap();
    assert_eq!(bed.check_io(reader, &held, ShareAccess::Read), Ok(IoState::Opened));
    let Err(LockFailure::Denied(conflict)) = bed.lock(writer, &write, LockType::Write, ALL) else {
        panic!("a shared lock is in the way");
    };
    assert_eq!((conflict.client, &*conflict.owner), (reader, b"l".as_slice()));
    assert_eq!((conflict.piece.range.to_wire(), conflict.kind()), (ALL, LockType::Read));
    bed.taken();
    bed.close(reader, &read).unwrap();
    let effects = bed.taken();
    assert!(
        matches!(
            effects[..],
            [Effect::Release { .. }, Effect::Unpin { file: FILE, export: EXPORT }]
        ),
        "{effects:?}"
    );
    assert_eq!(bed.check_io(reader, &held, ShareAccess::Read), Err(Status::BadStateid));
    bed.lock(writer, &write, LockType::Write, ALL).unwrap();
}

#[test]
fn free_stateid_ends_lock_states_without_locks() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both, ShareDeny::None).stateid;
    let lock = bed.lock(client, &open, LockType::Write, ALL).unwrap();
    let mut free = |stateid| bed.state.free_stateid(client, stateid, &mut bed.step);
    assert_eq!(free(&open), Err(Status::LocksHeld));
    assert_eq!(free(&lock), Err(Status::LocksHeld));
    let unlocked = bed.state.unlock_range(client, &lock, FILE, ALL, &mut bed.step);
    let unlocked = unlocked.unwrap();
    assert_eq!(unlocked.seqid, lock.seqid + 1);
    assert_eq!(bed.state.test_stateid(client, &unlocked), Ok(()));
    assert_eq!(bed.state.test_stateid(client, &lock), Err(Status::OldStateid));
    bed.state.free_stateid(client, &unlocked, &mut bed.step).unwrap();
    assert_eq!(bed.state.test_stateid(client, &unlocked), Err(Status::BadStateid));
    assert_eq!(bed.state.counts().locks, 0);
}

#[test]
fn a_lock_that_the_kernel_denies_leaves_what_was_there() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both, ShareDeny::None).stateid;
    let target = LockTarget::New { open: &open, owner: b"l" };
    let (file, kind) = (FILE, LockType::Write);
    let call = Lock { client, target, file, object: object(), range: ALL, kind, is_reclaim: false };
    let grant = bed.state.lock_range(&call, &mut bed.step).unwrap();
    bed.state.undo_lock(grant, &mut bed.step);
    assert_eq!(bed.state.counts().locks, 0, "the new lock state is gone too");
    assert!(matches!(bed.taken()[..], [.., Effect::Release { .. }]));

    let low = LockRange { offset: 0, length: 10 };
    let held = bed.lock(client, &open, LockType::Read, low).unwrap();
    let grant = bed.state.lock_range(&call, &mut bed.step).unwrap();
    bed.state.undo_lock(grant, &mut bed.step);
    assert_eq!(bed.state.test_stateid(client, &held), Ok(()), "its seqid did not change");
    assert_eq!(bed.state.counts().locks, 2, "a lock state and a range");

    let grant = bed.state.lock_range(&call, &mut bed.step).unwrap();
    bed.close(client, &open).unwrap();
    bed.taken();
    let confirmed = bed.state.confirm_lock(grant, &mut bed.step);
    assert_eq!(confirmed, Err(Status::BadStateid));
    assert!(matches!(bed.taken()[..], [Effect::Release { .. }]), "the kernel's lock goes too");
}

#[test]
fn a_blocking_lock_is_notified_and_served_before_newcomers() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let clients = [b"a", b"b", b"c"].map(|owner| bed.client(owner));
    let [(a, open_a), (b, open_b), (c, open_c)] = clients
        .map(|client| (client, bed.open(client, ShareAccess::Both, ShareDeny::None).stateid));
    let held = bed.lock(a, &open_a, LockType::Write, ALL).unwrap();
    let (blocking, trying) = (LockType::WriteBlocking, LockType::Write);
    assert!(matches!(bed.lock(b, &open_b, blocking, ALL), Err(LockFailure::Denied(_))));
    bed.taken();
    bed.state.unlock_range(a, &held, FILE, ALL, &mut bed.step).unwrap();
    let effect = Effect::NotifyLock { client: b, notice: notice() };
    assert_eq!(bed.taken().last(), Some(&effect));
    let Err(LockFailure::Denied(conflict)) = bed.lock(c, &open_c, blocking, ALL) else {
        panic!("it is reserved");
    };
    assert_eq!(conflict.client, b);
    bed.lock(b, &open_b, blocking, ALL).unwrap();
    assert!(matches!(bed.lock(c, &open_c, trying, ALL), Err(LockFailure::Denied(_))));
    bed.taken();
    bed.close(b, &open_b).unwrap();
    let effect = Effect::NotifyLock { client: c, notice: notice() };
    assert!(bed.taken().contains(&effect));
    bed.lock(a, &open_a, trying, ALL).expect("a request that does not block takes its chance");
}

#[test]
fn an_expired_client_keeps_its_state_until_another_needs_it() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (late, session) = bed.begin_client(b"late");
    bed.reclaim_complete(late).unwrap();
    let open = bed.open(late, ShareAccess::Both, ShareDeny::Write).stateid;
    let idle = bed.client(b"idle");
    bed.step.now = LEASE + Duration::from_secs(1);
    bed.state.expire(&mut bed.step);
    assert_eq!(bed.check_io(late, &open, ShareAccess::Read), Ok(IoState::Opened));
    assert_eq!(bed.state.test_stateid(idle, &open), Err(Status::BadStateid));
    assert_eq!(bed.state.counts().clients, 1, "a client without state is forgotten");

    let other = bed.client(b"other");
    bed.taken();
    bed.open(other, ShareAccess::Write, ShareDeny::None);
    assert_eq!(
        bed.taken(),
        [Effect::Unpin { file: FILE, export: EXPORT }, Effect::Records, Effect::Records]
    );
    assert_eq!(bed.check_io(late, &open, ShareAccess::Read), Err(Status::BadStateid));
    let call = Sequence {
        slot: SlotId(0),
        sequence: SequenceId(1),
        highest_slot: SlotId(0),
        cache_this: true,
    };
    let begun = session.begin(&call, 1, ConnectionId(1), bed.step.now);
    assert_eq!(begun.unwrap_err(), Status::Badsession);
}

#[test]
fn a_call_renews_the_lease_even_after_it_ran_out() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (late, session) = bed.begin_client(b"late");
    bed.reclaim_complete(late).unwrap();
    bed.open(late, ShareAccess::Read, ShareDeny::Write);
    let other = bed.client(b"other");
    bed.step.now = LEASE * 2;
    let call = Sequence {
        slot: SlotId(0),
        sequence: SequenceId(1),
        highest_slot: SlotId(0),
        cache_this: true,
    };
    let Ok(Begin::Run(running)) = session.begin(&call, 1, ConnectionId(1), bed.step.now) else {
        panic!("a new call");
    };
    let write = (ShareAccess::Write, ShareDeny::None);
    bed.step.now = LEASE * 4;
    assert_eq!(bed.open_as(other, write, false).map(drop), Err(Status::ShareDenied), "at work");
    running.complete(b"reply", bed.step.now);
    assert_eq!(bed.open_as(other, write, false).map(drop), Err(Status::ShareDenied));
    bed.step.now += LEASE;
    bed.open(other, ShareAccess::Write, ShareDeny::None);
}

#[test]
fn a_client_that_boots_again_waits_for_its_old_calls_for_a_minute_at_most() {
    for ends in [true, false] {
        let mut bed = Bed::new(Limits::default(), Vec::new());
        let (old, session) = bed.begin_client(b"boots");
        bed.reclaim_complete(old).unwrap();
        bed.open(old, ShareAccess::Both, ShareDeny::Write);
        let other = bed.client(b"other");
        let (slot, sequence) = (SlotId(0), SequenceId(1));
        let call = Sequence { slot, sequence, highest_slot: slot, cache_this: true };
        let begun = session.begin(&call, 1, ConnectionId(1), bed.step.now);
        let Ok(Begin::Run(running)) = begun else { panic!("{begun:?}") };
        let boot = |bed: &mut Bed, verifier| {
            let introduced = (b"boots".as_slice(), verifier, Principal::User(0));
            let new = exchange(&bed.state, introduced, false, bed.step.now).unwrap().client;
            bed.state.create_session(&call_of(new), &mut bed.step).map(drop)
        };
        let write = (ShareAccess::Write, ShareDeny::None);
        for (secs, verifier) in [(0, 2), (1, 3), (60, 3)] {
            bed.step.now = Duration::from_secs(secs);
            assert_eq!(boot(&mut bed, verifier), Err(Status::Delay), "a WRITE may be at work");
            assert_eq!(bed.open_as(other, write, false).map(drop), Err(Status::ShareDenied));
        }
        if ends {
            running.complete(b"reply", bed.step.now);
        } else {
            bed.step.now = Duration::from_secs(61);
        }
        assert_eq!(boot(&mut bed, 3), Ok(()));
        bed.open(other, ShareAccess::Write, ShareDeny::None);
    }
}

#[test]
fn a_client_whose_lease_has_expired_does_not_count_as_a_writer() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let late = bed.client(b"late");
    let open = bed.open(late, ShareAccess::Both, ShareDeny::None).stateid;
    let before = LEASE - Duration::from_secs(1);
    assert!(bed.state.has_writer(FILE, before));
    assert!(!bed.state.has_writer(FILE, LEASE));
    bed.step.now = LEASE;
    let client = bed.client(b"other");
    bed.open(client, ShareAccess::Read, ShareDeny::None);
    let (object, user, is_reclaim) = (object(), 0, false);
    let call = Delegate { client, file: FILE, export: EXPORT, object, user, is_reclaim };
    bed.state.delegate(&call, bed.step.now).expect("the writer is expired");
    let locked = bed.lock(late, &open, LockType::Write, LockRange { offset: 0, length: 1 });
    assert_eq!(locked.unwrap_err(), LockFailure::Delegated);
    let is_recall = |effect: &Effect| matches!(effect, Effect::Recall { .. });
    assert!(bed.step.effects.iter().any(is_recall), "{:?}", bed.step);
    let write = bed.check_io(late, &open, ShareAccess::Write);
    assert_eq!(write, Ok(IoState::Opened), "it keeps its open as a courtesy");
    bed.open(client, ShareAccess::Read, ShareDeny::None);
    let again = bed.open_as(late, (ShareAccess::Read, ShareDeny::None), false).unwrap().stateid;
    let (read, none) = (ShareAccess::Read, ShareDeny::None);
    bed.state.open_downgrade(late, &again, FILE, read, none).unwrap();
    assert!(!bed.state.has_writer(FILE, Duration::ZERO), "it is not open for writing any more");
}

#[test]
fn a_call_that_is_refused_does_not_renew_the_lease() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (late, session) = bed.begin_client(b"late");
    bed.reclaim_complete(late).unwrap();
    bed.open(late, ShareAccess::Read, ShareDeny::Write);
    let other = bed.client(b"other");
    let begin = |sequence, now| {
        let (slot, sequence) = (SlotId(0), SequenceId(sequence));
        let call = Sequence { slot, sequence, highest_slot: slot, cache_this: true };
        session.begin(&call, 1, ConnectionId(1), now)
    };
    let Ok(Begin::Run(running)) = begin(1, bed.step.now) else { panic!("a new call") };
    running.complete(b"reply", bed.step.now);
    let write = (ShareAccess::Write, ShareDeny::None);
    let replayed_at = LEASE - Duration::from_secs(1);
    assert!(matches!(begin(1, replayed_at), Ok(Begin::Replay(_))));
    bed.step.now = LEASE * 2 - Duration::from_secs(2);
    assert_eq!(bed.open_as(other, write, false).map(drop), Err(Status::ShareDenied), "a retry");
    assert_eq!(begin(5, bed.step.now).unwrap_err(), Status::SeqMisordered);
    bed.step.now = replayed_at + LEASE;
    bed.open(other, ShareAccess::Write, ShareDeny::None);
    assert_eq!(begin(5, bed.step.now).unwrap_err(), Status::Badsession);
}

#[test]
fn courtesy_is_bounded_in_time_and_number() {
    let limits = Limits { courteous_max: 2, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    for (at, owner) in [b"a", b"b", b"c"].iter().enumerate() {
        bed.step.now = Duration::from_secs(at as u64);
        let client = bed.client(*owner);
        bed.open(client, ShareAccess::Read, ShareDeny::None);
    }
    bed.step.now = LEASE * 2;
    bed.state.expire(&mut bed.step);
    assert_eq!(bed.state.counts().clients, 2);
    bed.step.now = LEASE + limits.courtesy + Duration::from_secs(2);
    bed.state.expire(&mut bed.step);
    assert_eq!(bed.state.counts().clients, 1);
    bed.step.now += Duration::from_secs(1);
    bed.state.expire(&mut bed.step);
    assert_eq!(bed.state.counts(), StateCounts::default());
}

#[test]
fn sessions_share_the_slots_and_replies_of_others_are_forgotten() {
    let reply_bytes = 4 << 10;
    let fore = ChannelAttributes { cached_bytes_max: reply_bytes, ..Limits::default().fore };
    let replies_bytes_max = 4 * 6 * reply_bytes as usize;
    let limits = Limits { replies_bytes_max, fore, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let (_, session) = bed.begin_client(b"a");
    let call = |slot, sequence, highest| Sequence {
        slot: SlotId(slot),
        sequence: SequenceId(sequence),
        highest_slot: SlotId(highest),
        cache_this: true,
    };
    let now = bed.step.now;
    let run = |call: Sequence| {
        let begun = session.begin(&call, 1, ConnectionId(1), now);
        let Ok(Begin::Run(running)) = begun else { panic!("{begun:?}") };
        let sequenced = running.sequenced();
        running.complete(b"reply", now);
        sequenced.target_highest_slot
    };
    let taken = || bed.state.counts().replies_bytes;
    assert_eq!(run(call(0, 1, 6)), SlotId(6), "an address has a quarter");
    assert_eq!(taken(), 0, "the first slot has its reply beside the budget");
    assert_eq!(run(call(6, 1, 6)), SlotId(6));
    assert_eq!(taken(), reply_bytes as usize);
    // Another client of the same address.
    let client = exchange(&bed.state, (b"a2", 1, Principal::User(0)), false, now).unwrap().client;
    let made = bed.state.create_session(&call_of(client), &mut Step::new(now)).unwrap();
    assert_eq!(made.fore.slots_max, fore.slots_max, "it can have more when others end");
    assert_eq!(run(call(0, 2, 6)), SlotId(3));
    let replay = |call| session.begin(&call, 1, ConnectionId(2), now);
    assert!(matches!(replay(call(6, 1, 6)), Ok(Begin::Replay(body)) if *body == *b"reply"));
    run(call(0, 3, 3));
    assert_eq!(taken(), 0, "the session uses fewer slots");
    assert_eq!(replay(call(6, 1, 6)).unwrap_err(), Status::RetryUncachedRep);
    assert_eq!(run(call(6, 2, 6)), SlotId(3), "the number goes on");
}

#[test]
fn a_call_sent_before_its_client_knew_of_fewer_slots_forgets_no_reply() {
    let reply_bytes = 4 << 10;
    let fore = ChannelAttributes { cached_bytes_max: reply_bytes, ..Limits::default().fore };
    let replies_bytes_max = 4 * 12 * reply_bytes as usize;
    let limits = Limits { replies_bytes_max, fore, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let (_, session) = bed.begin_client(b"a");
    let begin = |slot, sequence| {
        let (sequence, highest_slot) = (SequenceId(sequence), SlotId(slot));
        let call = Sequence { slot: SlotId(slot), sequence, highest_slot, cache_this: true };
        session.begin(&call, 1, ConnectionId(1), Duration::ZERO)
    };
    let run = |slot, sequence| {
        let Ok(Begin::Run(running)) = begin(slot, sequence) else { panic!("a new call") };
        let sequenced = running.sequenced();
        running.complete(b"reply", Duration::ZERO);
        sequenced.target_highest_slot
    };
    assert_eq!(run(0, 1), SlotId(12));
    let (_, second) = bed.begin_client(b"a2");
    // Sent behind the next call of slot 0, which is slow.
    assert_eq!(run(10, 1), SlotId(6));
    assert_eq!(run(0, 2), SlotId(6));
    assert!(matches!(begin(10, 1), Ok(Begin::Replay(_))));
    assert_eq!(run(0, 3), SlotId(6));
    assert_eq!(begin(10, 1).unwrap_err(), Status::RetryUncachedRep, "the client knew");
    // The client's knowledge of fewer slots is void when there were more since.
    bed.state.destroy_session(second.id()).unwrap();
    assert_eq!(run(1, 1), SlotId(12));
    bed.begin_client(b"a3");
    assert_eq!(run(10, 2), SlotId(6));
    assert_eq!(run(0, 4), SlotId(6));
    assert!(matches!(begin(10, 2), Ok(Begin::Replay(_))));
}

#[test]
fn a_call_whose_reply_has_no_room_is_not_begun() {
    let cached_bytes_max = 2 << 10;
    let fore = ChannelAttributes { cached_bytes_max, ..Limits::default().fore };
    let replies_bytes_max = 4 * 2 * cached_bytes_max as usize;
    let limits = Limits { replies_bytes_max, fore, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let (_, first) = bed.begin_client(b"a1");
    let (_, second) = bed.begin_client(b"a2");
    let (_, other) = bed.begin_client(b"b");
    let begin = |session: &Arc<Session>, slot, cache_this| {
        let (slot, highest_slot) = (SlotId(slot), SlotId(slot));
        let call = Sequence { slot, sequence: SequenceId(1), highest_slot, cache_this };
        session.begin(&call, 1, ConnectionId(1), Duration::ZERO)
    };
    let runs = |begun| matches!(begun, Ok(Begin::Run(_)));
    // The first client began when it was alone, and uses more than its share now.
    assert!(runs(begin(&first, 1, true)) && runs(begin(&first, 2, true)));
    assert_eq!(begin(&second, 1, true).unwrap_err(), Status::Delay);
    assert!(runs(begin(&second, 1, false)), "a reply that is not kept needs no room");
    assert!(runs(begin(&second, 0, true)), "the first slot always has some");
    assert!(runs(begin(&other, 1, true)), "another address has its own part");
    bed.state.destroy_session(first.id()).unwrap();
    drop(first);
    let (slot, highest_slot) = (SlotId(1), SlotId(1));
    let call = Sequence { slot, sequence: SequenceId(2), highest_slot, cache_this: true };
    assert!(runs(second.begin(&call, 1, ConnectionId(1), Duration::ZERO)));
}

#[test]
fn waiting_locks_are_bounded_for_each_client_and_in_all_files() {
    let limits = Limits { waiters_max: 3, client_waiters_max: 2, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let holder = bed.client(b"h");
    let open = |state: &State, client, file| {
        let call = OpenFile { file, ..open_call(client) };
        state.open(&call, &mut Step::new(Duration::ZERO)).unwrap().stateid
    };
    let lock = |state: &State, client, file, kind, now| {
        let stateid = open(state, client, file);
        let target = LockTarget::New { open: &stateid, owner: b"l" };
        let call =
            Lock { client, target, file, object: object(), range: ALL, kind, is_reclaim: false };
        state.lock_range(&call, &mut Step::new(now))
    };
    let files = [FileId(1), FileId(2), FileId(3)];
    for file in files {
        let grant = lock(&bed.state, holder, file, LockType::Write, bed.step.now).unwrap();
        bed.state.confirm_lock(grant, &mut Step::new(bed.step.now)).unwrap();
    }
    let [a, b] = [b"a", b"b"].map(|owner| bed.client(owner));
    let wait = |client, now| {
        for file in files {
            let denied = lock(&bed.state, client, file, LockType::WriteBlocking, now);
            assert!(matches!(denied, Err(LockFailure::Denied(_))), "{denied:?}");
        }
        bed.state.counts().waiting
    };
    assert_eq!(wait(a, bed.step.now), 2, "two for a client");
    assert_eq!(wait(b, bed.step.now), 3, "three for all");
    assert_eq!(wait(a, bed.step.now), 3, "a repeated request counts once");
    let late = Duration::from_secs(61);
    for client in [holder, a, b] {
        bed.state.lock().clients.get(client).unwrap().lease.renew(late);
    }
    bed.state.expire(&mut Step::new(late));
    assert_eq!(bed.state.counts().waiting, 0, "lost requests of all files are forgotten");
    assert_eq!(wait(b, late), 2);
}

/// `sr_status_flags` of the next SEQUENCE of a session.
fn status_flags(session: &Arc<Session>, sequence: u32, now: Duration) -> u32 {
    let (slot, sequence) = (SlotId(0), SequenceId(sequence));
    let call = Sequence { slot, sequence, highest_slot: slot, cache_this: false };
    let begun = session.begin(&call, 1, ConnectionId(9), now);
    let Ok(Begin::Run(running)) = begun else { panic!("{begun:?}") };
    running.sequenced().status_flags
}

#[test]
fn state_of_a_retired_export_is_revoked_until_it_is_freed() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, session) = bed.begin_client(b"c");
    bed.reclaim_complete(client).unwrap();
    let other = bed.client(b"other");
    let open = bed.open(client, ShareAccess::Both, ShareDeny::None).stateid;
    let lock = bed.lock(client, &open, LockType::Write, ALL).unwrap();
    let (export, now) = (ExportId(7), bed.step.now);
    let call = OpenFile { export, ..open_call(client) };
    let kept = bed.state.open(&call, &mut bed.step).unwrap();
    assert!(kept.is_new, "an owner has an open in each export");
    bed.taken();
    bed.state.release_files(&[(FILE, EXPORT)], &mut bed.step);
    let effects = bed.taken();
    let unpin = Effect::Unpin { file: FILE, export: EXPORT };
    let [Effect::Release { .. }, last, Effect::Records] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(*last, unpin);
    assert_eq!(status_flags(&session, 1, now), SEQ4_STATUS_ADMIN_STATE_REVOKED);
    for stateid in [open, lock] {
        let revoked = Err(Status::AdminRevoked);
        assert_eq!(bed.state.test_stateid(client, &stateid), revoked);
        assert_eq!(bed.check_io(client, &stateid, ShareAccess::Both).map(drop), revoked);
        assert_eq!(bed.state.test_stateid(other, &stateid), Err(Status::BadStateid));
        let freed = |client| bed.state.free_stateid(client, &stateid, &mut Step::new(now));
        assert_eq!(freed(other), Err(Status::BadStateid));
        assert_eq!(freed(client), Ok(()));
        assert_eq!(freed(client), Err(Status::BadStateid));
        assert_eq!(bed.state.test_stateid(client, &stateid), Err(Status::BadStateid));
    }
    assert_eq!(status_flags(&session, 2, now), 0);
    assert_eq!(bed.state.test_stateid(client, &kept.stateid), Ok(()));
    // Revoked state that is not freed is forgotten after a while.
    bed.state.release_files(&[(FILE, export)], &mut bed.step);
    assert_eq!(status_flags(&session, 3, now), SEQ4_STATUS_ADMIN_STATE_REVOKED);
    let late = Duration::from_secs(181);
    assert!(session.lease.renew(late));
    bed.step.now = late;
    bed.state.expire(&mut bed.step);
    assert_eq!(status_flags(&session, 4, late), 0);
    assert_eq!(bed.state.test_stateid(client, &kept.stateid), Err(Status::BadStateid));
}

#[test]
fn a_lost_backchannel_is_reported_until_another_is_bound() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let user = Principal::User(0);
    let client = exchange(&bed.state, (b"c", 1, user), false, bed.step.now).unwrap().client;
    let call = CreateSession { wants_backchannel: true, ..call_of(client) };
    let made = bed.state.create_session(&call, &mut bed.step).unwrap();
    let session = bed.state.session(made.session).unwrap();
    let mut sequence = SequenceId(0);
    let mut flags = || {
        sequence = sequence.next();
        let (slot, highest_slot) = (SlotId(0), SlotId(0));
        let call = Sequence { slot, sequence, highest_slot, cache_this: false };
        let begun = session.begin(&call, 1, ConnectionId(9), Duration::ZERO);
        let Ok(Begin::Run(running)) = begun else { panic!("{begun:?}") };
        running.sequenced().status_flags
    };
    assert_eq!(flags(), 0);
    bed.state.connection_closed(ConnectionId(1));
    assert_eq!(flags(), SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION);
    assert_eq!(session.callback_connection(), None);
    // Another session of the client has a path.
    let (sequence, connection) = (SequenceId(2), ConnectionId(3));
    let call = CreateSession { sequence, connection, ..call };
    let second = bed.state.create_session(&call, &mut bed.step).unwrap().session;
    assert_eq!(flags(), SEQ4_STATUS_CB_PATH_DOWN_SESSION);
    bed.state.destroy_session(second).unwrap();
    assert_eq!(flags(), SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION);
    bed.state.bind_backchannel(made.session, ConnectionId(2)).unwrap();
    assert_eq!(flags(), 0);
    assert_eq!(session.callback_connection(), Some(ConnectionId(2)));
}

#[test]
fn a_dropped_call_frees_its_slot_and_is_not_run_again() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (_, session) = bed.begin_client(b"c");
    let call = |sequence| Sequence {
        slot: SlotId(0),
        sequence: SequenceId(sequence),
        highest_slot: SlotId(0),
        cache_this: true,
    };
    let begin = |sequence| session.begin(&call(sequence), 1, ConnectionId(1), Duration::ZERO);
    drop(begin(1).unwrap());
    assert_eq!(begin(1).unwrap_err(), Status::RetryUncachedRep);
    assert!(matches!(begin(2), Ok(Begin::Run(_))));
}

#[test]
fn opens_and_locks_of_a_client_are_bounded() {
    let limits = Limits { peer_opens_max: 2, peer_locks_max: 8, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let client = bed.client(b"c");
    let open = |file| {
        let call = OpenFile { file, ..open_call(client) };
        let opened = bed.state.open(&call, &mut Step::new(Duration::ZERO));
        Ok::<_, Status>(opened?.stateid)
    };
    open(FileId(2)).unwrap();
    open(FileId(1)).unwrap();
    assert_eq!(open(FileId(3)), Err(Status::Delay));
    let mut step = Step::new(Duration::ZERO);
    let refused = OpenFile { file: FileId(3), ..open_call(client) };
    bed.state.open(&refused, &mut step).unwrap_err();
    let put_off = Effect::NoRoom { address: peer_of(b"c"), of: Bounded::Opens };
    assert_eq!(step.into_effects(), [put_off]);
    let stateid = open(FileId(1)).expect("no open is added");
    let byte = |offset| LockRange { offset, length: 1 };
    let granted = (0..20u64)
        .take_while(|at| bed.lock(client, &stateid, LockType::Write, byte(2 * at)).is_ok())
        .count();
    assert!(granted < 8 && bed.state.counts().locks <= 8, "{granted}");
    let other = bed.client(b"other");
    let open = bed.open(other, ShareAccess::Both, ShareDeny::None).stateid;
    bed.lock(other, &open, LockType::Write, byte(100)).expect("others are not bounded by it");
}

#[test]
fn unlocking_holes_is_bounded_too() {
    let limits = Limits { peer_locks_max: 8, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both, ShareDeny::None).stateid;
    let mut lock = bed.lock(client, &open, LockType::Write, ALL).unwrap();
    let mut refused = None;
    for at in 0..20 {
        let hole = LockRange { offset: 10 * at + 5, length: 1 };
        match bed.state.unlock_range(client, &lock, FILE, hole, &mut bed.step) {
            Ok(stateid) => lock = stateid,
            Err(status) => refused = refused.or(Some(status)),
        }
    }
    assert_eq!(refused, Some(Status::Delay));
    assert!(bed.state.counts().locks <= 8);
    bed.state.unlock_range(client, &lock, FILE, ALL, &mut bed.step).unwrap();
}

#[test]
fn room_that_was_taken_for_an_open_goes_to_no_other() {
    let limits = Limits { peer_opens_max: 2, peer_names_bytes_max: 9, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let client = bed.client(b"c");
    let call = |owner: &'static [u8], file| OpenFile { owner, file, ..open_call(client) };
    let state = &bed.state;
    let open = |owner, file| {
        let opened = state.open(&call(owner, file), &mut Step::new(Duration::ZERO));
        opened.map(drop).map_err(Status::from)
    };
    let take =
        |name_bytes| state.take_open_room(client, name_bytes, &mut Step::new(Duration::ZERO));
    open(b"o", FileId(1)).unwrap();
    let room = take(4).unwrap();
    assert_eq!(open(b"o", FileId(2)), Err(Status::Delay), "the opens");
    assert_eq!(take(1).unwrap_err(), Status::Delay);
    let opened = room.open(&call(b"name", FileId(2)), &mut Step::new(Duration::ZERO));
    assert!(opened.unwrap().is_new);
    assert_eq!(take(1).unwrap_err(), Status::Delay, "it is used");
    let closed =
        state.close(client, &opened.unwrap().stateid, FileId(2), &mut Step::new(Duration::ZERO));
    closed.unwrap();
    let room = take(8).unwrap();
    assert_eq!(open(b"oo", FileId(3)), Err(Status::Delay), "the names");
    drop(room);
    open(b"oo", FileId(3)).expect("it is given back");
}

#[test]
fn owners_of_a_file_are_bounded() {
    let limits = Limits { file_opens_max: 2, file_lock_owners_max: 2, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let client = bed.client(b"c");
    let open = |file, owner: &[u8]| {
        let call = OpenFile { owner, file, ..open_call(client) };
        let opened = bed.state.open(&call, &mut Step::new(Duration::ZERO));
        Ok::<_, Status>(opened?.stateid)
    };
    open(FILE, b"a").unwrap();
    let stateid = open(FILE, b"b").unwrap();
    assert_eq!(open(FILE, b"c"), Err(Status::Delay));
    open(FileId(2), b"c").expect("another file");
    let lock = |owner: &[u8], offset| {
        let target = LockTarget::New { open: &stateid, owner };
        let (kind, range) = (LockType::Write, LockRange { offset, length: 1 });
        let call =
            Lock { client, target, file: FILE, object: object(), range, kind, is_reclaim: false };
        let step = &mut Step::new(Duration::ZERO);
        let grant = bed.state.lock_range(&call, step)?;
        Ok(bed.state.confirm_lock(grant, step).map(drop)?)
    };
    lock(b"a", 0).unwrap();
    lock(b"b", 1).unwrap();
    assert_eq!(lock(b"c", 2), Err(LockFailure::Status(Status::Delay)));
    lock(b"a", 2).expect("no owner is added");
}

#[test]
fn one_address_leaves_opens_and_locks_of_a_file_to_others() {
    let limits = Limits::default().with_clients(1 << 11, 1 << 12);
    let (opens, lock_owners) = (limits.file_opens_max, limits.file_lock_owners_max);
    assert!(opens >= limits.clients_max, "all clients can run one program");
    let mut bed = Bed::new(limits, Vec::new());
    let [greedy, other] = [b"g", b"o"].map(|owner| bed.client(owner));
    let open = |bed: &mut Bed, owner: usize| {
        let call = OpenFile { owner: &owner.to_be_bytes(), ..open_call(greedy) };
        bed.state.open(&call, &mut bed.step)
    };
    let first = open(&mut bed, 0).unwrap().stateid;
    let opened = (1..opens).take_while(|owner| open(&mut bed, *owner).is_ok()).count();
    assert_eq!(opened + 1, opens / 2);
    let lock = |bed: &mut Bed, owner: usize| {
        let (name, client, file) = (owner.to_be_bytes(), greedy, FILE);
        let target = LockTarget::New { open: &first, owner: &name };
        let range = LockRange { offset: owner as u64, length: 1 };
        let (kind, is_reclaim) = (LockType::Write, false);
        let call = Lock { client, target, file, object: object(), range, kind, is_reclaim };
        let grant = bed.state.lock_range(&call, &mut bed.step)?;
        Ok::<_, LockFailure>(bed.state.confirm_lock(grant, &mut bed.step)?)
    };
    let locked = (0..lock_owners).take_while(|owner| lock(&mut bed, *owner).is_ok()).count();
    assert_eq!(locked, lock_owners / 2);
    let own = bed.open(other, ShareAccess::Both, ShareDeny::None).stateid;
    let beyond = LockRange { offset: 1 << 40, length: 1 };
    bed.lock(other, &own, LockType::Write, beyond).unwrap();
}

#[test]
fn one_address_leaves_room_to_wait_for_a_lock_to_others() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let [(holder, of_holder), (greedy, of_greedy), (other, of_other)] =
        [b"h", b"g", b"o"].map(|owner| bed.client_with_open(owner));
    bed.lock(holder, &of_holder, LockType::Write, ALL).unwrap();
    for offset in 0..1000 {
        let byte = LockRange { offset, length: 1 };
        bed.lock(greedy, &of_greedy, LockType::WriteBlocking, byte).unwrap_err();
    }
    let before = bed.state.counts().waiting;
    assert_eq!(before, PEER_WAITERS_MAX);
    bed.lock(other, &of_other, LockType::WriteBlocking, ALL).unwrap_err();
    assert_eq!(bed.state.counts().waiting, before + 1);
}

#[test]
fn a_client_at_its_own_bound_costs_no_other_its_courtesy() {
    let limits = Limits { peer_opens_max: 1, sessions_max: 2, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let late = bed.client(b"late");
    let stateid = bed.open(late, ShareAccess::Read, ShareDeny::None).stateid;
    bed.step.now = LEASE * 2;
    let client = bed.client(b"c");
    bed.open(client, ShareAccess::Read, ShareDeny::None);
    let call = OpenFile { owner: b"p", access: ShareAccess::Read, ..open_call(client) };
    let refused = bed.state.open(&call, &mut bed.step);
    assert_eq!(refused, Err(OpenFailure::Status(Status::Delay)));
    assert_eq!(bed.check_io(late, &stateid, ShareAccess::Read), Ok(IoState::Opened));
    bed.begin_client(b"third");
    assert_eq!(bed.state.counts().sessions, 2, "the session of the expired client made room");
}

#[test]
fn expired_clients_make_room_at_the_bounds_of_their_address() {
    let limits = Limits::default();
    for limits in [
        Limits { peer_clients_max: 1, ..limits },
        Limits { peer_sessions_max: 1, ..limits },
        Limits { peer_opens_max: 1, ..limits },
        Limits { peer_file_opens_max: 1, ..limits },
        // The names of an open and of a lock owner.
        Limits { peer_names_bytes_max: 2, ..limits },
        Limits { peer_locks_max: 6, ..limits },
        Limits { peer_lock_owners_max: 1, ..limits },
        Limits { peer_file_lock_owners_max: 1, ..limits },
    ] {
        let mut bed = Bed::new(limits, Vec::new());
        let holder = |bed: &mut Bed, owner: &[u8], offset| {
            let (client, open) = bed.client_with_open(owner);
            let byte = LockRange { offset, length: 1 };
            bed.lock(client, &open, LockType::Write, byte).unwrap();
            (client, open)
        };
        holder(&mut bed, b"a1", 0);
        let (elsewhere, open) = holder(&mut bed, b"b1", 1);
        bed.step.now = LEASE * 2;
        holder(&mut bed, b"a2", 2);
        assert_eq!(bed.check_io(elsewhere, &open, ShareAccess::Read), Ok(IoState::Opened));
    }
}

#[test]
fn a_host_that_boots_is_not_put_off_at_the_bounds_of_its_address() {
    let limits = Limits { peer_clients_max: 2, peer_sessions_max: 2, ..Limits::default() };
    let mut bed = Bed::new(Limits { sessions_max: 2, ..limits }, Vec::new());
    for owner in [b"a1", b"a2"] {
        bed.begin_client(owner);
    }
    let (now, user) = (bed.step.now, Principal::User(0));
    let third = exchange(&bed.state, (b"a3", 1, user), false, now);
    assert_eq!(third, Err(Status::Delay), "two hosts are there");
    let booted = exchange(&bed.state, (b"a1", 2, user), false, now).unwrap().client;
    let third = exchange(&bed.state, (b"a3", 1, user), false, now);
    assert_eq!(third, Err(Status::Delay), "it takes no place of a host that boots");
    bed.state.create_session(&call_of(booted), &mut bed.step).unwrap();
    let counts = bed.state.counts();
    assert_eq!((counts.clients, counts.sessions), (2, 2));
}

#[test]
fn a_client_without_a_session_leaves_its_place_beside_a_host_that_boots() {
    let limits = Limits { peer_clients_max: 2, clients_max: 2, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    bed.begin_client(b"a1");
    let (now, user) = (bed.step.now, Principal::User(0));
    let ask = |owner, verifier| exchange(&bed.state, (owner, verifier, user), false, now);
    ask(b"a2", 1).unwrap();
    let booted = ask(b"a1", 2).expect("it takes the place that it has, at both bounds").client;
    assert_eq!(ask(b"a3", 1), Err(Status::Delay), "at the bound of all it waits");
    bed.state.create_session(&call_of(booted), &mut bed.step).unwrap();
    let third = exchange(&bed.state, (b"a3", 1, user), false, bed.step.now);
    assert!(third.is_ok(), "it takes the place of a2");
}

#[test]
fn a_denied_lock_of_a_closed_file_is_released() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let client = bed.client(b"c");
    let open = bed.open(client, ShareAccess::Both, ShareDeny::None).stateid;
    let target = LockTarget::New { open: &open, owner: b"l" };
    let (file, kind) = (FILE, LockType::Write);
    let call = Lock { client, target, file, object: object(), range: ALL, kind, is_reclaim: false };
    let grant = bed.state.lock_range(&call, &mut bed.step).unwrap();
    bed.close(client, &open).unwrap();
    bed.taken();
    bed.state.undo_lock(grant, &mut bed.step);
    assert!(matches!(bed.taken()[..], [Effect::Release { .. }]));
    let open = bed.open(client, ShareAccess::Both, ShareDeny::None).stateid;
    let lock = bed.lock(client, &open, LockType::Write, ALL).unwrap();
    bed.taken();
    bed.state.unlock_range(client, &lock, FILE, ALL, &mut bed.step).unwrap();
    assert!(matches!(bed.taken()[..], [Effect::Unlock { .. }]), "the lock state lives on");
}

#[test]
fn names_of_owners_are_bounded_for_each_address_and_in_total() {
    let limits = Limits { names_bytes_max: 400, peer_names_bytes_max: 200, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let [a, a2, b, c] = [&b"a"[..], b"a2", b"b", b"c"].map(|owner| bed.client(owner));
    let name = [7; 100];
    let open = |client, owner, file| {
        let call = OpenFile { owner, file: FileId(file), ..open_call(client) };
        let opened = bed.state.open(&call, &mut Step::new(Duration::ZERO));
        Ok::<_, Status>(opened?.stateid)
    };
    let stateid = open(a, &name, 1).unwrap();
    open(a2, &name, 1).unwrap();
    assert_eq!(open(a, &name[..1], 2), Err(Status::Delay), "the address has its half");
    assert_eq!(open(a2, &name[..1], 2), Err(Status::Delay), "its other client too");
    open(a, &name, 1).expect("no name is added");
    open(b, &name, 2).unwrap();
    let last = open(c, &name[..99], 2).unwrap();
    assert_eq!(open(c, b"xy", 3), Err(Status::Delay), "all have as much as there is");
    open(c, b"x", 3).unwrap();
    let lock = |client, open: &Stateid, file| {
        let target = LockTarget::New { open, owner: b"l" };
        let (file, kind, range) = (FileId(file), LockType::Read, ALL);
        let call = Lock { client, target, file, object: object(), range, kind, is_reclaim: false };
        bed.state.lock_range(&call, &mut Step::new(Duration::ZERO))
    };
    assert_eq!(lock(c, &last, 2).map(drop), Err(LockFailure::Status(Status::Delay)));
    bed.state.close(a, &stateid, FILE, &mut Step::new(Duration::ZERO)).unwrap_err();
    let stateid = Stateid { seqid: 0, ..stateid };
    bed.state.close(a, &stateid, FILE, &mut Step::new(Duration::ZERO)).unwrap();
    drop(lock(c, &last, 2).expect("there is room again"));
}

#[test]
fn a_notice_that_is_not_taken_counts_as_the_request_that_it_is_for() {
    let limits = Limits { waiters_max: 2, peer_waiters_max: 2, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let [holder, waiting] = [b"h", b"w"].map(|owner| bed.client(owner));
    let open = bed.open(holder, ShareAccess::Both, ShareDeny::None).stateid;
    let own = bed.open(waiting, ShareAccess::Both, ShareDeny::None).stateid;
    let mut notices = Vec::new();
    for _ in 0..4 {
        let held = bed.lock(holder, &open, LockType::Write, ALL).unwrap();
        bed.lock(waiting, &own, LockType::WriteBlocking, ALL).unwrap_err();
        bed.taken();
        bed.state.unlock_range(holder, &held, FILE, ALL, &mut bed.step).unwrap();
        let effects = bed.taken();
        notices.extend(effects.into_iter().filter(|e| matches!(e, Effect::NotifyLock { .. })));
        bed.step.now += Duration::from_secs(2);
    }
    assert!(notices.len() <= 2, "{notices:?}");
    assert!(bed.state.counts().waiting <= 2);
    notices.clear();
    assert_eq!(bed.state.counts().waiting, 1);
}

#[test]
fn a_waiter_that_does_not_take_its_turn_lets_the_next_pass() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let [(holder, of_holder), (gone, of_gone), (next, of_next)] =
        [b"h", b"g", b"n"].map(|owner| bed.client_with_open(owner));
    let blocking = LockType::WriteBlocking;
    let held = bed.lock(holder, &of_holder, LockType::Write, ALL).unwrap();
    bed.lock(gone, &of_gone, blocking, ALL).unwrap_err();
    bed.lock(next, &of_next, blocking, ALL).unwrap_err();
    bed.taken();
    bed.state.unlock_range(holder, &held, FILE, ALL, &mut bed.step).unwrap();
    assert_eq!(bed.notified(), [gone]);
    let mut notified = Vec::new();
    for _ in 0..5 {
        bed.step.now += Duration::from_secs(1);
        bed.state.expire(&mut bed.step);
        notified.extend(bed.notified());
    }
    assert_eq!(notified, [next], "once, after the reservation of the first");
    let held = bed.lock(next, &of_next, blocking, ALL).unwrap();
    bed.state.unlock_range(next, &held, FILE, ALL, &mut bed.step).unwrap();
    assert_eq!(bed.notified(), [gone], "it may have missed the notice");
}

#[test]
fn a_waiter_that_is_denied_again_lets_those_pass_that_waited_for_it() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let [(holder, of_holder), (first, of_first), (second, of_second), (other, of_other)] =
        [b"h", b"f", b"s", b"o"].map(|owner| bed.client_with_open(owner));
    let [begin, end] = [0, 50].map(|offset| LockRange { offset, length: 10 });
    let blocking = LockType::WriteBlocking;
    let held = bed.lock(holder, &of_holder, LockType::Write, ALL).unwrap();
    bed.lock(first, &of_first, blocking, ALL).unwrap_err();
    bed.taken();
    bed.state.unlock_range(holder, &held, FILE, ALL, &mut bed.step).unwrap();
    assert_eq!(bed.notified(), [first]);
    bed.lock(second, &of_second, blocking, end).unwrap_err();
    bed.lock(other, &of_other, LockType::Write, begin).unwrap();
    assert_eq!(bed.notified(), [], "the first comes before the second");
    bed.lock(first, &of_first, blocking, ALL).unwrap_err();
    assert_eq!(bed.notified(), [second]);
}

#[test]
fn an_unlock_searches_all_locks_once_however_many_requests_wait() {
    const OWNERS: usize = 400;
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let [(readers, of_readers), (holder, of_holder), (waiting, of_waiting)] =
        [b"r", b"h", b"w"].map(|owner| bed.client_with_open(owner));
    let byte = |offset| LockRange { offset, length: 1 };
    let beyond: Vec<_> = (0..OWNERS)
        .map(|owner| {
            let (name, at) = (owner.to_be_bytes(), byte(1000 + owner as u64));
            bed.lock_as(&name, readers, &of_readers, LockType::Read, at).unwrap()
        })
        .collect();
    let [first, second] = [b"1", b"2"]
        .map(|owner| bed.lock_as(owner, holder, &of_holder, LockType::Read, byte(0)).unwrap());
    for owner in 0..PEER_WAITERS_MAX {
        let (name, kind) = (owner.to_be_bytes(), LockType::WriteBlocking);
        bed.lock_as(&name, waiting, &of_waiting, kind, byte(0)).unwrap_err();
    }
    bed.visits();
    bed.unlock(readers, &beyond[OWNERS - 1], ALL);
    assert_eq!(bed.visits(), 0, "none waits for what it frees");
    bed.unlock(holder, &first, byte(7));
    assert_eq!(bed.visits(), 0, "it frees nothing");
    for (owner, held) in [(b"1", first), (b"2", second)] {
        bed.unlock(holder, &held, byte(0));
        let visits = bed.visits();
        assert!(visits <= OWNERS + 2 + 3 * PEER_WAITERS_MAX, "{visits}");
        assert_eq!(bed.notified(), [], "another owner is in the way");
        bed.lock_as(owner, holder, &of_holder, LockType::Read, byte(0)).unwrap();
        bed.visits();
    }
    bed.close(holder, &of_holder).unwrap();
    assert_eq!(bed.notified(), [waiting], "the first of those that wait");
}

#[test]
fn requests_of_a_client_end_with_its_last_open_of_the_file() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let [(holder, of_holder), (gone, of_gone), (next, of_next)] =
        [b"h", b"g", b"n"].map(|owner| bed.client_with_open(owner));
    let blocking = LockType::WriteBlocking;
    let held = bed.lock(holder, &of_holder, LockType::Write, ALL).unwrap();
    bed.lock(gone, &of_gone, blocking, ALL).unwrap_err();
    bed.lock(next, &of_next, blocking, ALL).unwrap_err();
    bed.close(gone, &of_gone).unwrap();
    assert_eq!(bed.state.counts().waiting, 1);
    bed.taken();
    bed.state.unlock_range(holder, &held, FILE, ALL, &mut bed.step).unwrap();
    assert_eq!(bed.notified(), [next]);
}
