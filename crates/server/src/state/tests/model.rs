//! Random sequences of everything that clients do with two files, against a list of opens and an
//! array of bytes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use self::grants::ModelGrant;
use self::locks::{ModelBytes, ModelLocks};
use super::*;

mod delegations;
mod grants;
mod locks;
mod records;

const CLIENTS: usize = 3;
const FILES: u64 = 2;
/// Bytes of a file in the model.
const BYTES: usize = 12;
/// Opens and locks are bounded so narrowly that the bounds are met.
const LIMITS_OPENS: usize = 7;
const LIMITS_LOCKS: usize = 24;
const LIMITS_DELEGATIONS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Action {
    Open {
        owner: u8,
        access: ShareAccess,
        deny: ShareDeny,
    },
    Downgrade {
        owner: u8,
        access: ShareAccess,
        deny: ShareDeny,
    },
    Close {
        owner: u8,
    },
    Lock {
        owner: u8,
        /// The owner of the open.
        through: u8,
        bytes: (usize, usize),
        kind: LockType,
        /// Whether the kernel grants it; without, it is still to answer.
        kernel_grants: Option<bool>,
    },
    /// The kernel answers the oldest LOCK that it was asked for.
    Answer {
        kernel_grants: bool,
    },
    Test {
        owner: u8,
        bytes: (usize, usize),
        kind: LockType,
    },
    Unlock {
        owner: u8,
        through: u8,
        bytes: (usize, usize),
    },
    Free {
        owner: u8,
        through: u8,
    },
    Read,
    /// A grant after an open for reading; the kernel has no objection.
    Delegate,
    Return,
    /// Something conflicts with all delegations of the file.
    Recall {
        is_local: bool,
    },
    FreeDelegations,
    /// The client boots and comes back.
    Restart,
    /// Time passes, and only the client of the action renews its lease.
    Sleep {
        secs: u64,
    },
    Expire,
}

fn any_access() -> impl Strategy<Value = ShareAccess> {
    prop::sample::select(ShareAccess::ALL)
}

fn any_deny() -> impl Strategy<Value = ShareDeny> {
    prop_oneof![5 => Just(ShareDeny::None), 1 => prop::sample::select(ShareDeny::ALL)]
}

fn any_bytes() -> impl Strategy<Value = (usize, usize)> {
    (0..BYTES, 0..BYTES).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn any_answer() -> impl Strategy<Value = Option<bool>> {
    prop_oneof![4 => Just(Some(true)), 1 => Just(Some(false)), 2 => Just(None)]
}

fn any_action() -> impl Strategy<Value = Action> {
    let kind = || prop::sample::select(LockType::ALL);
    prop_oneof![
        6 => (0..2u8, any_access(), any_deny())
            .prop_map(|(owner, access, deny)| Action::Open { owner, access, deny }),
        2 => (0..2u8, any_access(), any_deny())
            .prop_map(|(owner, access, deny)| Action::Downgrade { owner, access, deny }),
        2 => (0..2u8).prop_map(|owner| Action::Close { owner }),
        9 => (0..2u8, 0..2u8, any_bytes(), kind(), any_answer()).prop_map(
            |(owner, through, bytes, kind, kernel_grants)| {
                Action::Lock { owner, through, bytes, kind, kernel_grants }
            }
        ),
        4 => prop::bool::weighted(0.5).prop_map(|kernel_grants| Action::Answer { kernel_grants }),
        2 => (0..2u8, any_bytes(), kind())
            .prop_map(|(owner, bytes, kind)| Action::Test { owner, bytes, kind }),
        4 => (0..2u8, 0..2u8, any_bytes())
            .prop_map(|(owner, through, bytes)| Action::Unlock { owner, through, bytes }),
        2 => (0..2u8, 0..2u8).prop_map(|(owner, through)| Action::Free { owner, through }),
        2 => Just(Action::Read),
        6 => Just(Action::Delegate),
        2 => Just(Action::Return),
        2 => any::<bool>().prop_map(|is_local| Action::Recall { is_local }),
        1 => Just(Action::FreeDelegations),
        1 => Just(Action::Restart),
        1 => prop_oneof![Just(1), Just(29), Just(50), Just(100)].prop_map(|secs| Action::Sleep { secs }),
        1 => Just(Action::Expire),
    ]
}

/// An owner of opens or of locks: client, file, owner.
type Key = (usize, u64, u8);

#[derive(Clone, Debug)]
struct ModelOpen {
    /// The access and denial of each OPEN, without those that a downgrade has ended.
    shares: BTreeSet<(u32, u32)>,
    stateid: Stateid,
}

impl ModelOpen {
    fn share(&self) -> (u32, u32) {
        self.shares.iter().fold((0, 0), |(a, d), (access, deny)| (a | access, d | deny))
    }
}

/// A delegation that is held or recalled: until when, and until when the file is not delegated
/// again.
#[derive(Clone, Copy, Debug)]
struct ModelDelegation {
    stateid: Stateid,
    ends_at: Option<u64>,
}

struct Model {
    bed: Bed,
    clients: Vec<(ClientId, Arc<Session>)>,
    renewed_at: [u64; CLIENTS],
    boots: [u8; CLIENTS],
    opens: BTreeMap<Key, ModelOpen>,
    locks: BTreeMap<Key, ModelLocks>,
    unconfirmed: Vec<ModelGrant>,
    /// By client and file.
    delegations: BTreeMap<(usize, u64), ModelDelegation>,
    /// By client: revoked, and not freed, with the times at which they were.
    revoked: Vec<(usize, Stateid, u64)>,
    /// Until when a file is not delegated again, by file and client.
    held_off: BTreeMap<(u64, usize), u64>,
    /// Delegations that pin their file.
    granted: BTreeSet<DelegationId>,
    /// New opens, and their ends.
    pins: BTreeMap<u64, i64>,
    /// Lock owners that the kernel knows.
    mirrored: BTreeSet<LockId>,
    /// Clients with a record on the disk.
    recorded: BTreeSet<usize>,
}

fn range_of((first, last): (usize, usize)) -> LockRange {
    LockRange { offset: first as u64, length: (last - first + 1) as u64 }
}

impl Model {
    fn new() -> Self {
        let limits = Limits {
            opens_max: LIMITS_OPENS,
            peer_opens_max: 3,
            locks_max: LIMITS_LOCKS,
            peer_locks_max: 14,
            delegations_max: LIMITS_DELEGATIONS,
            peer_delegations_max: 2,
            ..Limits::default()
        };
        let mut model = Self {
            bed: Bed::new(limits, Vec::new()),
            clients: Vec::new(),
            renewed_at: [0; CLIENTS],
            boots: [0; CLIENTS],
            opens: BTreeMap::new(),
            locks: BTreeMap::new(),
            unconfirmed: Vec::new(),
            delegations: BTreeMap::new(),
            revoked: Vec::new(),
            held_off: BTreeMap::new(),
            granted: BTreeSet::new(),
            pins: BTreeMap::new(),
            mirrored: BTreeSet::new(),
            recorded: BTreeSet::new(),
        };
        model.clients = (0..CLIENTS).map(|at| model.boot(at)).collect();
        model
    }

    /// EXCHANGE_ID with a new verifier, CREATE_SESSION and RECLAIM_COMPLETE.
    fn boot(&mut self, at: usize) -> (ClientId, Arc<Session>) {
        self.boots[at] += 1;
        self.renewed_at[at] = self.bed.step.now.as_secs();
        let (owner, user) = ([u8::try_from(at).unwrap()], Principal::User(0));
        let exchanged =
            exchange(&self.bed.state, (&owner, self.boots[at], user), false, self.bed.step.now);
        let client = exchanged.unwrap().client;
        let Bed { state, step } = &mut self.bed;
        let made = state.create_session(&call_of(client), step).unwrap();
        state.reclaim_complete(client, false, step).unwrap();
        let session = state.session(made.session).unwrap();
        (client, session)
    }

    fn is_expired(&self, client: usize) -> bool {
        self.bed.step.now.as_secs() - self.renewed_at[client] >= LEASE.as_secs()
    }

    fn forget(&mut self, client: usize) {
        self.opens.retain(|key, _| key.0 != client);
        self.locks.retain(|key, _| key.0 != client);
        self.delegations.retain(|key, _| key.0 != client);
        self.revoked.retain(|(holder, ..)| *holder != client);
    }

    /// The client renews its lease, or boots if the server has forgotten it.
    fn wake_client(&mut self, at: usize) {
        if self.clients[at].1.lease.renew(self.bed.step.now) {
            self.renewed_at[at] = self.bed.step.now.as_secs();
            return;
        }
        self.clients[at] = self.boot(at);
    }

    /// The clients that the server forgot by itself must have been expired.
    fn note_forgotten(&mut self) -> Result<(), TestCaseError> {
        for at in 0..CLIENTS {
            let is_known = self.bed.state.session(self.clients[at].1.id()).is_ok();
            if !is_known {
                prop_assert!(self.is_expired(at), "only an expired client is forgotten");
                self.forget(at);
            }
        }
        Ok(())
    }

    /// Performs the effects, as the server does.
    fn perform_effects(&mut self) -> Result<(), TestCaseError> {
        for effect in self.bed.taken() {
            match effect {
                Effect::Unpin { file, .. } => *self.pins.entry(file.0).or_default() -= 1,
                Effect::Release { lock, .. } => drop(self.mirrored.remove(&lock)),
                Effect::Unlock { lock, .. } => prop_assert!(self.mirrored.contains(&lock)),
                Effect::Records => self.change_records(),
                Effect::EndDelegation { delegation, .. } => {
                    prop_assert!(self.granted.remove(&delegation), "it ends once");
                }
                Effect::Recall { recall, client } => {
                    // It may have ended since.
                    let mut known = self.delegations.iter();
                    if let Some((holder, held)) = known.find(|(_, h)| h.stateid == recall.stateid) {
                        prop_assert!(held.ends_at.is_some());
                        prop_assert_eq!(self.clients[holder.0].0, client);
                    }
                }
                Effect::NotifyLock { .. } | Effect::NoRoom { .. } => {}
            }
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.bed.step.now.as_secs()
    }

    fn open(
        &mut self,
        (client, file, owner): Key,
        access: ShareAccess,
        deny: ShareDeny,
    ) -> Result<(), TestCaseError> {
        let call = OpenFile {
            owner: &[owner],
            file: FileId(file),
            access,
            deny,
            ..open_call(self.clients[client].0)
        };
        let result = self.bed.state.open(&call, &mut self.bed.step);
        self.note_forgotten()?;
        let key = (client, file, owner);
        let (access, deny) = (access.code(), deny.code());
        let denies = |(other, open): (&Key, &ModelOpen)| {
            let (others, denied) = open.share();
            let is_other = *other != key && other.1 == file && !self.is_expired(other.0);
            is_other && (access & denied) | (deny & others) != 0
        };
        let is_denied = self.opens.iter().any(denies);
        let conflicts = |at: usize| access & 2 != 0 || (deny & 1 != 0 && at != client);
        let held = self.delegations.keys();
        let must_return = held.clone().any(|(at, of)| *of == file && conflicts(*at));
        if !is_denied {
            let within = self.bed.state.limits.recall;
            self.note_recall(file, within, conflicts);
        }
        match result {
            Ok(opened) => {
                prop_assert!(!is_denied && !must_return);
                prop_assert_eq!(opened.is_new, !self.opens.contains_key(&key));
                *self.pins.entry(file).or_default() += i64::from(opened.is_new);
                let shares = BTreeSet::new();
                let new = ModelOpen { shares, stateid: opened.stateid };
                let open = self.opens.entry(key).or_insert(new);
                open.shares.insert((access, deny));
                open.stateid = opened.stateid;
            }
            Err(OpenFailure::Status(Status::ShareDenied)) => prop_assert!(is_denied),
            Err(OpenFailure::Delegated) => prop_assert!(must_return && !is_denied),
            Err(OpenFailure::Status(status)) => {
                prop_assert_eq!(status, Status::Delay);
                let own = self.opens.keys().filter(|other| other.0 == client).count();
                prop_assert!(own == 3 || self.opens.len() == LIMITS_OPENS);
            }
        }
        Ok(())
    }

    fn downgrade(
        &mut self,
        key: Key,
        access: ShareAccess,
        deny: ShareDeny,
    ) -> Result<(), TestCaseError> {
        let Some(open) = self.opens.get_mut(&key) else { return Ok(()) };
        let client = self.clients[key.0].0;
        let result =
            self.bed.state.open_downgrade(client, &open.stateid, FileId(key.1), access, deny);
        let (access, deny) = (access.code(), deny.code());
        let within = |share: &(u32, u32)| share.0 & !access == 0 && share.1 & !deny == 0;
        let shares = open.shares.iter().copied().filter(within).collect();
        let kept = ModelOpen { shares, stateid: open.stateid };
        let is_union = !kept.shares.is_empty() && kept.share() == (access, deny);
        prop_assert_eq!(result.is_ok(), is_union, "{:?}", result);
        if let Ok(stateid) = result {
            *open = ModelOpen { stateid, ..kept };
        }
        Ok(())
    }

    fn close(&mut self, key: Key) -> Result<(), TestCaseError> {
        let Some(open) = self.opens.get(&key) else { return Ok(()) };
        let (client, file, through) = key;
        let Bed { state, step } = &mut self.bed;
        let id = self.clients[client].0;
        let result = state.close(id, &open.stateid, FileId(file), step);
        let hangs_on_it = |(other, locks): &(&Key, &ModelLocks)| {
            (other.0, other.1) == (client, file) && locks.stateids.contains_key(&through)
        };
        let below: Vec<_> = self.locks.iter().filter(hangs_on_it).map(|(key, _)| *key).collect();
        if below.iter().any(|lock| self.is_tied(*lock, through)) {
            prop_assert_eq!(result, Err(Status::Delay));
            return Ok(());
        }
        prop_assert_eq!(result, Ok(Stateid::INVALID));
        self.opens.remove(&key);
        below.into_iter().for_each(|lock| self.end_stateid(lock, through));
        Ok(())
    }

    /// Whether an open other than `own` denies reading a file.
    fn denies_reading(&self, file: u64, own: Option<Key>) -> bool {
        let others = self.opens.iter().filter(|(key, _)| key.1 == file && Some(**key) != own);
        let mut live = others.filter(|(key, _)| !self.is_expired(key.0));
        live.any(|(_, open)| open.share().1 & 1 != 0)
    }

    fn read(&mut self, client: usize, file: u64) -> Result<(), TestCaseError> {
        let id = self.clients[client].0;
        let (read, anonymous) = (ShareAccess::Read, Stateid::ANONYMOUS);
        let Bed { state, step } = &mut self.bed;
        let result = state.check_io(id, &anonymous, FileId(file), (read, 0), step);
        self.note_forgotten()?;
        prop_assert_eq!(result.is_err(), self.denies_reading(file, None));
        let own = self.opens.iter().filter(|(key, _)| key.0 == client);
        let own: Vec<_> = own.map(|(key, open)| (*key, open.clone())).collect();
        for (key, open) in own {
            let expected = match (open.share().0 & 1 != 0, self.denies_reading(key.1, Some(key))) {
                (true, _) => Ok(IoState::Opened),
                (false, true) => Err(Status::Locked),
                (false, false) => Ok(IoState::Unchecked),
            };
            let Bed { state, step } = &mut self.bed;
            let result = state.check_io(id, &open.stateid, FileId(key.1), (read, 0), step);
            self.note_forgotten()?;
            prop_assert_eq!(result, expected);
        }
        self.read_by_delegations(client)
    }

    fn perform(&mut self, at: usize, file: u64, action: Action) -> Result<(), TestCaseError> {
        self.wake_client(at);
        let key = |owner| (at, file, owner);
        match action {
            Action::Open { owner, access, deny } => self.open(key(owner), access, deny)?,
            Action::Downgrade { owner, access, deny } => {
                self.downgrade(key(owner), access, deny)?
            }
            Action::Close { owner } => self.close(key(owner))?,
            Action::Lock { owner, through, bytes, kind, kernel_grants } => {
                self.lock(key(owner), through, (bytes, kind), kernel_grants)?;
            }
            Action::Answer { kernel_grants } => self.answer(kernel_grants)?,
            Action::Test { owner, bytes, kind } => self.test(key(owner), bytes, kind)?,
            Action::Unlock { owner, through, bytes } => self.unlock(key(owner), through, bytes)?,
            Action::Free { owner, through } => self.free(key(owner), through)?,
            Action::Read => self.read(at, file)?,
            Action::Delegate => self.delegate(at, file)?,
            Action::Return => self.give_back(at, file)?,
            Action::Recall { is_local } => self.recall(file, is_local)?,
            Action::FreeDelegations => self.free_delegations(at)?,
            Action::Restart => {
                self.forget(at);
                self.clients[at] = self.boot(at);
            }
            Action::Sleep { secs } => self.bed.step.now += Duration::from_secs(secs),
            Action::Expire => {
                self.bed.state.expire(&mut self.bed.step);
                self.note_forgotten()?;
                self.note_revoked();
            }
        }
        self.perform_effects()?;
        self.check_counts()
    }

    fn check_counts(&self) -> Result<(), TestCaseError> {
        let counts = self.bed.state.counts();
        prop_assert_eq!(counts.opens, self.opens.len());
        prop_assert!(counts.opens <= LIMITS_OPENS && counts.locks <= LIMITS_LOCKS);
        let runs = |bytes: &ModelBytes| {
            bytes.chunk_by(|a, b| a == b).filter(|run| run[0].is_some()).count()
        };
        let locks = self.locks.values().map(|locks| locks.stateids.len() + runs(&locks.bytes));
        let unconfirmed = self.unconfirmed.iter().filter(|grant| self.is_alive(grant));
        let locks = locks.chain(unconfirmed.map(|grant| 1 + runs(&grant.before)));
        prop_assert_eq!(counts.locks, locks.sum::<usize>());
        prop_assert_eq!(counts.delegations, self.delegations.len() + self.revoked.len());
        prop_assert!(counts.delegations <= LIMITS_DELEGATIONS);
        prop_assert_eq!(self.granted.len(), self.delegations.len(), "each pins its file");
        for file in 0..FILES {
            let opens = self.opens.keys().filter(|key| key.1 == file).count();
            let pins = self.pins.get(&file).copied().unwrap_or(0);
            prop_assert_eq!(pins, i64::try_from(opens).unwrap());
        }
        prop_assert_eq!(self.mirrored.len(), self.locks.len(), "a descriptor for each lock owner");
        self.check_records()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..config() })]

    #[test]
    fn state_is_as_lists_of_opens_and_arrays_of_bytes(
        steps in prop::collection::vec((0..CLIENTS, 0..FILES, any_action()), 1..120)
    ) {
        let mut model = Model::new();
        for (client, file, action) in steps {
            model.perform(client, file, action)?;
        }
        model.bed.step.now += LEASE + model.bed.state.limits.courtesy + Duration::from_secs(1);
        model.bed.state.expire(&mut model.bed.step);
        model.perform_effects()?;
        prop_assert_eq!(model.bed.state.counts(), StateCounts::default());
        prop_assert!(model.pins.values().all(|pins| *pins == 0));
        prop_assert!(model.mirrored.is_empty() && model.granted.is_empty());
        prop_assert!(model.bed.state.is_empty(), "no memory is left");
    }
}
