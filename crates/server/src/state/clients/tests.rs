//! EXCHANGE_ID and CREATE_SESSION against a list of client records, as RFC 8881 §18.35.4 describes
//! the cases.

use proptest::prelude::*;

use super::super::tests::{CHANNEL, LEASE, call_of, config, exchange, open_call, state_with};
use super::super::{ChannelAttributes, CreateSession, Limits, State, Step};
use super::*;

#[derive(Clone, Debug)]
struct Record {
    owner: u8,
    verifier: u8,
    principal: u32,
    id: ClientId,
    is_confirmed: bool,
    sessions: Vec<SessionId>,
    /// The number of the next CREATE_SESSION, and the result of the last.
    next: u32,
    last: Option<Result<CreatedSession, Status>>,
    renewed_at: u64,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Exchange {
        owner: u8,
        verifier: u8,
        principal: u32,
        is_update: bool,
    },
    /// With the `client`-th id that was ever returned, and a number this far from the next.
    Create {
        client: usize,
        distance: u32,
        principal: u32,
    },
    DestroySession {
        session: usize,
    },
    DestroyClient {
        client: usize,
        principal: u32,
    },
    Sleep {
        secs: u64,
    },
    Expire,
}

fn any_action() -> impl Strategy<Value = Action> {
    let exchange = (0..2u8, 0..2u8, 0..2u32, prop::bool::weighted(0.2)).prop_map(
        |(owner, verifier, principal, is_update)| Action::Exchange {
            owner,
            verifier,
            principal,
            is_update,
        },
    );
    let distance =
        prop_oneof![6 => Just(0), 2 => Just(u32::MAX), 1 => Just(1), 1 => Just(u32::MAX - 1)];
    let create = (0..6usize, distance, 0..2u32)
        .prop_map(|(client, distance, principal)| Action::Create { client, distance, principal });
    prop_oneof![
        5 => exchange,
        5 => create,
        1 => (0..4usize).prop_map(|session| Action::DestroySession { session }),
        2 => (0..6usize, 0..2u32)
            .prop_map(|(client, principal)| Action::DestroyClient { client, principal }),
        1 => prop_oneof![Just(1), Just(60), Just(100)].prop_map(|secs| Action::Sleep { secs }),
        1 => Just(Action::Expire),
    ]
}

/// The model beside the state.
struct Pair {
    state: State,
    records: Vec<Record>,
    /// Every id that was ever returned, the latest first.
    ids: Vec<ClientId>,
    now: u64,
}

impl Pair {
    fn find(&self, owner: u8, is_confirmed: bool) -> Option<&Record> {
        self.records.iter().find(|r| r.owner == owner && r.is_confirmed == is_confirmed)
    }

    fn is_expired(&self, record: &Record) -> bool {
        self.now - record.renewed_at >= LEASE.as_secs()
    }

    /// The case of the RFC, and the result but for the id of a new client.
    fn expected(
        &self,
        (owner, verifier, principal): (u8, u8, u32),
        is_update: bool,
    ) -> (u8, Result<Option<ClientId>, Status>) {
        let confirmed = self.find(owner, true);
        if is_update {
            return match confirmed {
                None => (7, Err(Status::Noent)),
                Some(old) if old.verifier != verifier => (8, Err(Status::NotSame)),
                Some(old) if old.principal != principal => (9, Err(Status::Perm)),
                Some(old) => (6, Ok(Some(old.id))),
            };
        }
        match confirmed {
            None if self.find(owner, false).is_some() => (4, Ok(None)),
            None => (1, Ok(None)),
            Some(old) if old.principal != principal => {
                let is_in_use = !old.sessions.is_empty() && !self.is_expired(old);
                (3, if is_in_use { Err(Status::ClidInuse) } else { Ok(None) })
            }
            Some(old) if old.verifier == verifier => (2, Ok(Some(old.id))),
            Some(_) => (5, Ok(None)),
        }
    }

    fn exchange(
        &mut self,
        (owner, verifier, principal): (u8, u8, u32),
        is_update: bool,
    ) -> Result<(), TestCaseError> {
        let (case, expected) = self.expected((owner, verifier, principal), is_update);
        let now = Duration::from_secs(self.now);
        let user = Principal::User(principal);
        let result = exchange(&self.state, (&[owner], verifier, user), is_update, now);
        match (expected, result) {
            (Err(expected), result) => prop_assert_eq!(result, Err(expected)),
            (Ok(Some(id)), result) => {
                let next = self.records.iter().find(|r| r.id == id).map_or(0, |r| r.next);
                let sequence = SequenceId(next);
                let known = ExchangedId { client: id, sequence, is_confirmed: true };
                prop_assert_eq!(result, Ok(known));
            }
            (Ok(None), result) => {
                let made = result.map_err(|s| TestCaseError::fail(format!("{s:?}")))?;
                prop_assert!(!made.is_confirmed);
                prop_assert!(!self.ids.contains(&made.client), "a new id");
                let goes = |r: &Record| r.owner == owner && (case == 3 || !r.is_confirmed);
                self.records.retain(|record| !goes(record));
                self.ids.insert(0, made.client);
                self.records.push(Record {
                    owner,
                    verifier,
                    principal,
                    id: made.client,
                    is_confirmed: false,
                    sessions: Vec::new(),
                    next: made.sequence.0,
                    last: None,
                    renewed_at: self.now,
                });
            }
        }
        Ok(())
    }

    fn create(
        &mut self,
        client: ClientId,
        distance: u32,
        principal: u32,
    ) -> Result<(), TestCaseError> {
        let now = Duration::from_secs(self.now);
        let found = self.records.iter().position(|record| record.id == client);
        let next = found.map_or(1, |at| self.records[at].next);
        let call = CreateSession {
            sequence: SequenceId(next.wrapping_add(distance)),
            principal: Principal::User(principal),
            ..call_of(client)
        };
        let result = self.state.create_session(&call, &mut Step::new(now));
        let Some(at) = found else {
            prop_assert_eq!(result, Err(Status::StaleClientid));
            return Ok(());
        };
        let record = self.records[at].clone();
        if record.principal != principal {
            prop_assert_eq!(result, Err(Status::ClidInuse));
        } else if distance == u32::MAX && record.last.is_some() {
            prop_assert_eq!(Some(result), record.last);
        } else if distance != 0 {
            prop_assert_eq!(result, Err(Status::SeqMisordered));
        } else {
            let made = result.map_err(|status| TestCaseError::fail(format!("{status:?}")))?;
            let replaced = |r: &Record| r.owner == record.owner && r.id != client && r.is_confirmed;
            self.records.retain(|record| !replaced(record));
            let record = self.records.iter_mut().find(|r| r.id == client).unwrap();
            record.is_confirmed = true;
            record.sessions.push(made.session);
            record.renewed_at = self.now;
            (record.next, record.last) = (next.wrapping_add(1), Some(result));
        }
        Ok(())
    }

    fn destroy_client(&mut self, client: ClientId, principal: u32) -> Result<(), TestCaseError> {
        let (now, user) = (Duration::from_secs(self.now), Principal::User(principal));
        let result = self.state.destroy_clientid(client, user, &mut Step::new(now));
        let record = self.records.iter().find(|record| record.id == client);
        let expected = match record {
            None => Err(Status::StaleClientid),
            Some(record) if record.principal != principal => Err(Status::WrongCred),
            Some(record) if !record.sessions.is_empty() => Err(Status::ClientidBusy),
            Some(_) => Ok(()),
        };
        prop_assert_eq!(result, expected);
        if result.is_ok() {
            self.records.retain(|record| record.id != client);
        }
        Ok(())
    }

    fn perform(&mut self, action: Action) -> Result<(), TestCaseError> {
        match action {
            Action::Exchange { owner, verifier, principal, is_update } => {
                self.exchange((owner, verifier, principal), is_update)?;
            }
            Action::Create { client, distance, principal } => {
                if let Some(id) = self.ids.get(client) {
                    self.create(*id, distance, principal)?;
                }
            }
            Action::DestroySession { session } => {
                let mut sessions = self.records.iter_mut().flat_map(|record| &mut record.sessions);
                if let Some(id) = sessions.nth(session).map(|id| *id) {
                    let destroy = || self.state.destroy_session(id);
                    prop_assert_eq!(destroy(), Ok(()));
                    prop_assert_eq!(destroy(), Err(Status::Badsession));
                    self.records.iter_mut().for_each(|r| r.sessions.retain(|other| *other != id));
                }
            }
            Action::DestroyClient { client, principal } => {
                if let Some(id) = self.ids.get(client) {
                    self.destroy_client(*id, principal)?;
                }
            }
            Action::Sleep { secs } => self.now += secs,
            Action::Expire => {
                self.state.expire(&mut Step::new(Duration::from_secs(self.now)));
                let records = std::mem::take(&mut self.records);
                self.records = records.into_iter().filter(|r| !self.is_expired(r)).collect();
            }
        }
        let counts = self.state.counts();
        prop_assert_eq!(counts.clients, self.records.len());
        let sessions: usize = self.records.iter().map(|record| record.sessions.len()).sum();
        prop_assert_eq!(counts.sessions, sessions);
        Ok(())
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn clients_are_as_a_list_of_records(actions in prop::collection::vec(any_action(), 1..80)) {
        let state = state_with(Limits::default(), Vec::new());
        let mut pair = Pair { state, records: Vec::new(), ids: Vec::new(), now: 0 };
        for action in actions {
            pair.perform(action)?;
        }
    }
}

#[test]
fn a_rebooted_client_loses_its_old_state_when_the_new_incarnation_is_confirmed() {
    let state = state_with(Limits::default(), Vec::new());
    let (now, root) = (Duration::ZERO, Principal::User(0));
    let mut step = Step::new(Duration::ZERO);
    let old = exchange(&state, (b"c", 1, root), false, now).unwrap().client;
    let session = state.create_session(&call_of(old), &mut step).unwrap().session;
    let new = exchange(&state, (b"c", 2, root), false, now).unwrap().client;
    assert!(state.session(session).is_ok(), "not before it is confirmed");
    state.create_session(&call_of(new), &mut step).unwrap();
    assert_eq!(state.session(session).unwrap_err(), Status::Badsession);
    assert_eq!(state.create_session(&call_of(old), &mut step), Err(Status::StaleClientid));
}

#[test]
fn small_channels_are_refused_and_the_refusal_is_replayed() {
    let state = state_with(Limits::default(), Vec::new());
    let (now, root) = (Duration::ZERO, Principal::User(0));
    let client = exchange(&state, (b"c", 1, root), false, now).unwrap().client;
    let mut call = call_of(client);
    for small in [
        ChannelAttributes { request_bytes_max: 100, ..CHANNEL },
        ChannelAttributes { response_bytes_max: 100, ..CHANNEL },
        ChannelAttributes { operations_max: 1, ..CHANNEL },
    ] {
        for _ in 0..2 {
            let small = CreateSession { fore: small, ..call };
            let result = state.create_session(&small, &mut Step::new(now));
            assert_eq!(result, Err(Status::Toosmall));
        }
        call.sequence = call.sequence.next();
    }
    let made = state.create_session(&call, &mut Step::new(now)).unwrap();
    assert_eq!(made.fore.slots_max, Limits::default().fore.slots_max);
}

#[test]
fn sessions_are_bounded_for_each_client_and_in_total() {
    let limits = Limits { client_sessions_max: 2, sessions_max: 3, ..Limits::default() };
    let state = state_with(limits, Vec::new());
    let (now, root) = (Duration::ZERO, Principal::User(0));
    let [a, b] = [b"a", b"b"].map(|o| exchange(&state, (o, 1, root), false, now).unwrap().client);
    let create = |client, sequence| {
        let call = CreateSession { sequence: SequenceId(sequence), ..call_of(client) };
        state.create_session(&call, &mut Step::new(now)).map(|made| made.session)
    };
    let first = create(a, 1).unwrap();
    create(a, 2).unwrap();
    assert_eq!(create(a, 3), Err(Status::Nospc));
    create(b, 1).unwrap();
    assert_eq!(create(b, 2), Err(Status::Delay));
    state.destroy_session(first).unwrap();
    create(b, 2).unwrap();
}

#[test]
fn unconfirmed_clients_make_room_for_others() {
    let limits = Limits { clients_max: 2, ..Limits::default() };
    let state = state_with(limits, Vec::new());
    let (now, root) = (Duration::ZERO, Principal::User(0));
    let make = |owner: &[u8]| exchange(&state, (owner, 1, root), false, now).map(|c| c.client);
    let confirm = |id| state.create_session(&call_of(id), &mut Step::new(now));
    let first = make(b"1").unwrap();
    let second = make(b"2").unwrap();
    let third = make(b"3").unwrap();
    assert_eq!(confirm(first), Err(Status::StaleClientid));
    confirm(second).unwrap();
    confirm(third).unwrap();
    assert_eq!(make(b"4"), Err(Status::Delay));
    let later = LEASE * 2;
    let fourth = exchange(&state, (b"4", 1, root), false, later).unwrap();
    assert!(!fourth.is_confirmed);
    assert_eq!(state.counts().clients, 1, "expired clients leave");
}

#[test]
fn new_owners_of_one_address_neither_fill_the_table_nor_cost_others_their_state() {
    let limits = Limits { peer_clients_max: 2, ..Limits::default().with_clients(4, 8) };
    let state = state_with(limits, Vec::new());
    let root = Principal::User(0);
    let make = |owner: &[u8], now| exchange(&state, (owner, 1, root), false, now).map(|c| c.client);
    let confirm = |id, now| state.create_session(&call_of(id), &mut Step::new(now));
    let late = make(b"late", Duration::ZERO).unwrap();
    confirm(late, Duration::ZERO).unwrap();
    let mut step = Step::new(Duration::ZERO);
    state.reclaim_complete(late, false, &mut step).unwrap();
    state.open(&open_call(late), &mut step).unwrap();
    // It is late now, and stays as a courtesy.
    let now = LEASE * 2;
    let waiting = make(b"waiting", now).unwrap();
    for number in 0..100u8 {
        make(&[b'e', number], now).unwrap();
    }
    assert_eq!(state.counts().clients, 2 + 2);
    confirm(waiting, now).expect("it is not driven out before it is confirmed");
    let [first, second] = [200, 201].map(|number| make(&[b'e', number], now).unwrap());
    confirm(first, now).unwrap();
    confirm(second, now).unwrap();
    assert_eq!(make(&[b'e', 202], now), Err(Status::Delay));
    assert_eq!(state.counts().opens, 1, "the late client keeps its state");
}

#[test]
fn calls_at_a_bound_search_all_clients_once_a_second() {
    let limits = Limits { clients_max: 2, ..Limits::default() };
    let state = state_with(limits, Vec::new());
    let root = Principal::User(0);
    let make = |owner: &[u8], now| exchange(&state, (owner, 1, root), false, now).map(|c| c.client);
    let confirm = |id, now| state.create_session(&call_of(id), &mut Step::new(now)).unwrap();
    let ms = Duration::from_millis;
    confirm(make(b"a", ms(0)).unwrap(), ms(0));
    confirm(make(b"b", ms(0)).unwrap(), ms(0));
    assert_eq!(make(b"c", LEASE - ms(1)), Err(Status::Delay));
    assert_eq!(make(b"c", LEASE + ms(998)), Err(Status::Delay), "the search was just made");
    make(b"c", LEASE + ms(999)).unwrap();
    assert_eq!(state.counts().clients, 1, "expired clients leave");
}
