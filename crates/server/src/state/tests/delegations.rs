//! Delegations: what conflicts with them, and what becomes of those that are not returned.

use proto::nfs4::SEQ4_STATUS_RECALLABLE_STATE_REVOKED;

use super::grace::settled;
use super::*;

impl Bed {
    /// A client that has the file open for reading, and a delegation of it.
    fn delegated(&mut self, owner: &[u8]) -> (ClientId, Arc<Session>, Stateid) {
        let (client, session) = self.begin_client(owner);
        self.reclaim_complete(client).unwrap();
        self.open(client, ShareAccess::Read, ShareDeny::None);
        let stateid = self.delegate(client).unwrap();
        (client, session, stateid)
    }

    fn delegate(&mut self, client: ClientId) -> Result<Stateid, NotDelegated> {
        let (file, object) = (FILE, object());
        let call = Delegate { client, file, export: EXPORT, object, user: 0, is_reclaim: false };
        self.state.delegate(&call, self.step.now).map(|(_, stateid)| stateid)
    }

    fn try_open(&mut self, client: ClientId, access: ShareAccess) -> Result<Opened, Status> {
        self.open_as(client, (access, ShareDeny::None), false)
    }

    fn give_back(&mut self, client: ClientId, stateid: &Stateid) -> Result<(), Status> {
        self.state.return_delegation(client, stateid, FILE, &mut self.step)
    }

    fn pass(&mut self, secs: u64) {
        for _ in 0..secs {
            self.step.now += Duration::from_secs(1);
            self.state.expire(&mut self.step);
        }
    }

    /// The recalls since the last call of this.
    fn recalls(&mut self) -> usize {
        self.taken().iter().filter(|effect| matches!(effect, Effect::Recall { .. })).count()
    }
}

#[test]
fn an_open_for_writing_waits_until_delegations_are_returned() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, _, held) = bed.delegated(b"holder");
    let other = bed.client(b"other");
    bed.taken();
    bed.try_open(other, ShareAccess::Read).expect("reading does not conflict");
    assert_eq!(bed.try_open(other, ShareAccess::Write), Err(Status::Delay));
    let effects = bed.taken();
    let recalled = |effect: &Effect| match effect {
        Effect::Recall { client, recall } => Some((*client, recall.stateid)),
        _ => None,
    };
    assert_eq!(effects.iter().find_map(recalled), Some((holder, held)));
    assert_eq!(bed.try_open(other, ShareAccess::Write), Err(Status::Delay));
    assert_eq!(bed.recalls(), 0, "it is sent once at a time");
    assert_eq!(bed.check_io(holder, &held, ShareAccess::Read), Ok(IoState::Opened));
    bed.give_back(holder, &held).unwrap();
    assert!(matches!(bed.taken()[..], [Effect::EndDelegation { file: FILE, .. }]));
    bed.try_open(other, ShareAccess::Write).expect("it was returned");
    assert_eq!(bed.delegate(holder), Err(NotDelegated::Contention), "another writes");
    assert_eq!(bed.give_back(holder, &held), Err(Status::BadStateid));
    let totals = bed.state.delegation_totals();
    let expected = DelegationTotals { granted: 1, recalled: 1, returned: 1, revoked: 0 };
    assert_eq!(totals, expected);
}

#[test]
fn a_client_returns_its_own_delegation_before_it_writes() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, _, held) = bed.delegated(b"holder");
    let denies_reading = (ShareAccess::Read, ShareDeny::Read);
    bed.open_as(holder, denies_reading, false).expect("it knows of its own opens");
    assert_eq!(bed.try_open(holder, ShareAccess::Both), Err(Status::Delay));
    bed.give_back(holder, &held).unwrap();
    bed.try_open(holder, ShareAccess::Both).unwrap();
}

#[test]
fn a_recall_is_repeated_until_the_delegation_is_revoked() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, session, held) = bed.delegated(b"holder");
    let other = bed.client(b"other");
    bed.taken();
    assert_eq!(bed.try_open(other, ShareAccess::Write), Err(Status::Delay));
    assert_eq!(bed.recalls(), 1);
    let status = |session: &Session| session.lease.status();
    for _ in 0..8 {
        bed.pass(10);
        assert_eq!(bed.recalls(), 5);
        assert!(session.lease.renew(bed.step.now), "it is there, and does not answer");
    }
    assert_eq!(status(&session), 0);
    bed.pass(10);
    assert!(bed.taken().iter().any(|effect| matches!(effect, Effect::EndDelegation { .. })));
    assert_ne!(status(&session) & SEQ4_STATUS_RECALLABLE_STATE_REVOKED, 0);
    for refused in [
        bed.state.test_stateid(holder, &held),
        bed.give_back(holder, &held),
        bed.check_io(holder, &held, ShareAccess::Read).map(drop),
        bed.state.check_delegation(holder, &held, FILE).map(drop),
    ] {
        assert_eq!(refused, Err(Status::DelegRevoked));
    }
    let other = bed.client(b"other");
    bed.try_open(other, ShareAccess::Write).expect("it does not wait any longer");
    assert_eq!(bed.state.counts().delegations, 1);
    assert_eq!(bed.state.free_stateid(holder, &held, &mut bed.step), Ok(()));
    assert_eq!(status(&session) & SEQ4_STATUS_RECALLABLE_STATE_REVOKED, 0);
    assert_eq!(bed.state.test_stateid(holder, &held), Err(Status::BadStateid));
    assert_eq!(bed.state.counts().delegations, 0);
}

#[test]
fn a_client_cannot_reclaim_before_it_has_freed_a_revoked_delegation() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, _, held) = bed.delegated(b"holder");
    let record = settled(&mut bed);
    bed.state.recall(FILE, true, &mut bed.step);
    bed.pass(29);
    assert_eq!(settled(&mut bed), []);
    bed.taken();
    bed.pass(1);
    let effects = bed.taken();
    assert!(effects.contains(&Effect::Records), "before others change the file: {effects:?}");
    assert_eq!(settled(&mut bed), [RecordChange::Remove(b"holder".as_slice().into())]);
    bed.state.free_stateid(holder, &held, &mut bed.step).unwrap();
    assert_eq!((bed.taken(), settled(&mut bed)), (vec![Effect::Records], record));
}

/// Linux does not free a delegation that it does not know.
#[test]
fn a_revoked_delegation_that_is_not_freed_is_forgotten() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, session, held) = bed.delegated(b"holder");
    bed.state.recall(FILE, false, &mut bed.step);
    let mut pass = |secs| {
        bed.step.now += Duration::from_secs(secs);
        assert!(session.lease.renew(bed.step.now));
        bed.state.expire(&mut bed.step);
        let is_shown = session.lease.status() & SEQ4_STATUS_RECALLABLE_STATE_REVOKED != 0;
        (is_shown, bed.state.test_stateid(holder, &held), bed.state.counts().delegations)
    };
    assert_eq!(pass(90), (true, Err(Status::DelegRevoked), 1));
    assert_eq!(pass(180), (true, Err(Status::DelegRevoked), 1));
    assert_eq!(pass(1), (false, Err(Status::BadStateid), 0));
}

#[test]
fn a_local_program_waits_less_long_than_a_client() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, session, held) = bed.delegated(b"holder");
    bed.state.recall(FILE, false, &mut bed.step);
    bed.pass(10);
    bed.state.recall(FILE, true, &mut bed.step);
    bed.pass(29);
    assert_eq!(bed.state.test_stateid(holder, &held), Ok(()));
    // A client that comes in now does not put the end off.
    bed.state.recall(FILE, false, &mut bed.step);
    bed.pass(1);
    assert!(session.lease.renew(bed.step.now));
    assert_eq!(bed.state.test_stateid(holder, &held), Err(Status::DelegRevoked));
}

/// The answer, or the return of the delegation, may lie behind the data of the WRITE.
#[test]
fn a_recall_does_not_run_out_while_a_write_of_its_client_waits_for_memory() {
    // How long the WRITE waits, and how long the client has then.
    for (waits, left) in [(60, 29), (80, 19), (400, 19), (680, 9)] {
        let mut bed = Bed::new(Limits::default(), Vec::new());
        let (holder, session, held) = bed.delegated(b"holder");
        bed.state.recall(FILE, false, &mut bed.step);
        let receiving = Arc::clone(&session).receive_call().unwrap();
        let memory_wait = receiving.wait_for_memory();
        bed.pass(waits);
        drop(memory_wait);
        bed.pass(left);
        assert_eq!(bed.state.test_stateid(holder, &held), Ok(()), "{waits} s");
        bed.pass(1);
        assert_eq!(bed.state.test_stateid(holder, &held), Err(Status::DelegRevoked), "{waits} s");
    }
}

/// It may have WRITEs wait for memory that its own WRITEs take, whose data it sends slowly.
#[test]
fn no_client_keeps_a_delegation_by_writes_that_wait_for_memory() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, session, held) = bed.delegated(b"holder");
    bed.state.recall(FILE, false, &mut bed.step);
    let receiving = Arc::clone(&session).receive_call().unwrap();
    let _memory_wait = receiving.wait_for_memory();
    bed.pass(90 + 10 * 60 - 1);
    assert_eq!(bed.state.test_stateid(holder, &held), Ok(()));
    bed.pass(1);
    assert_eq!(bed.state.test_stateid(holder, &held), Err(Status::DelegRevoked));

    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, session, held) = bed.delegated(b"holder");
    bed.state.recall(FILE, true, &mut bed.step);
    let receiving = Arc::clone(&session).receive_call().unwrap();
    let _memory_wait = receiving.wait_for_memory();
    bed.pass(30);
    let revoked = bed.state.test_stateid(holder, &held);
    assert_eq!(revoked, Err(Status::DelegRevoked), "the kernel lets the local program pass soon");
}

#[test]
fn an_expired_client_loses_its_delegation_to_the_first_conflict() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, session, held) = bed.delegated(b"holder");
    bed.step.now += LEASE + Duration::from_secs(1);
    bed.state.expire(&mut bed.step);
    let other = bed.client(b"other");
    assert_eq!(bed.state.test_stateid(holder, &held), Ok(()), "a courtesy");
    bed.try_open(other, ShareAccess::Write).expect("without waiting");
    assert!(!session.lease.renew(bed.step.now));
    assert!(bed.taken().iter().any(|effect| matches!(effect, Effect::EndDelegation { .. })));
}

#[test]
fn a_file_is_not_delegated_again_soon_after_a_recall() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, _, held) = bed.delegated(b"holder");
    assert_eq!(bed.delegate(holder), Err(NotDelegated::Contention), "it has one");
    bed.state.recall(FILE, false, &mut bed.step);
    bed.pass(3);
    bed.give_back(holder, &held).unwrap();
    assert_eq!(bed.delegate(holder), Err(NotDelegated::Contention));
    bed.pass(29);
    assert_eq!(bed.delegate(holder), Err(NotDelegated::Contention));
    bed.pass(1);
    assert_ne!(bed.delegate(holder), Ok(held));
}

#[test]
fn delegations_have_bounds_in_all_and_for_an_address() {
    let limits = Limits { delegations_max: 3, peer_delegations_max: 2, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let clients: [&[u8]; 4] = [b"a1", b"a2", b"a3", b"b"];
    let [a1, a2, a3, b] = clients.map(|owner| bed.client(owner));
    let first = bed.delegate(a1).unwrap();
    bed.delegate(a2).unwrap();
    assert_eq!(bed.delegate(a3), Err(NotDelegated::Resource), "the address has two");
    bed.delegate(b).unwrap();
    let c = bed.client(b"c");
    assert_eq!(bed.delegate(c), Err(NotDelegated::Resource), "all have three");
    assert_eq!(bed.state.test_stateid(b, &first), Err(Status::BadStateid), "of another client");
    bed.give_back(a1, &first).unwrap();
    bed.delegate(c).unwrap();
}

#[test]
fn delegations_end_with_their_client_and_with_their_export() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, _, held) = bed.delegated(b"a");
    let (other, _, _) = bed.delegated(b"b");
    let user = Principal::User(0);
    let destroyed = bed.state.destroy_clientid(other, user, &mut bed.step);
    assert_eq!(destroyed, Err(Status::ClientidBusy));
    bed.taken();
    bed.state.release_files(&[(FILE, EXPORT)], &mut bed.step);
    let ends = |effects: &Effects| {
        effects.iter().filter(|effect| matches!(effect, Effect::EndDelegation { .. })).count()
    };
    assert_eq!(ends(&bed.taken()), 2);
    assert_eq!(bed.state.test_stateid(client, &held), Err(Status::AdminRevoked));
    let returned = bed.state.return_delegation(client, &held, FILE, &mut bed.step);
    assert_eq!(returned, Err(Status::AdminRevoked));
    let claimed = bed.state.check_delegation(client, &held, FILE);
    assert_eq!(claimed, Err(Status::AdminRevoked));
    assert_eq!(bed.state.free_stateid(client, &held, &mut bed.step), Ok(()));
    bed.delegate(client).unwrap();
    let booted = exchange(&bed.state, (b"a", 2, user), false, bed.step.now).unwrap().client;
    bed.state.create_session(&call_of(booted), &mut bed.step).unwrap();
    assert_eq!(ends(&bed.taken()), 1);
    assert_eq!(bed.state.counts().delegations, 0);
}

#[test]
fn only_reclaims_are_granted_in_the_grace_period() {
    let record = |owner: &[u8]| ClientRecord { owner: owner.into(), principal: Principal::User(0) };
    let mut bed = Bed::new(Limits::default(), vec![record(b"back"), record(b"late")]);
    let (client, _) = bed.begin_client(b"back");
    bed.open_as(client, (ShareAccess::Read, ShareDeny::None), true).unwrap();
    assert_eq!(bed.delegate(client), Err(NotDelegated::Contention));
    let (file, object, user) = (FILE, object(), 0);
    let call = Delegate { client, file, export: EXPORT, object, user, is_reclaim: true };
    bed.state.delegate(&call, bed.step.now).unwrap();
}

/// The reply with the delegation may still be on its way when the first recall arrives, or the
/// client may have begun to return it by itself.
#[test]
fn a_delegation_that_its_client_does_not_know_is_soon_revoked() {
    use CallbackEnd::{Delayed, Lost, Performed, Refused, Unknown};
    // The answers to recalls, one every two seconds, and whether that is enough.
    for (answers, is_revoked) in [
        (&[(Unknown, 17)][..], true),
        (&[(Unknown, 16)], false),
        (&[(Unknown, 1), (Lost, 8), (Delayed, 8), (Unknown, 2)], true),
        (&[(Unknown, 1), (Lost, 16), (Unknown, 1)], false),
        (&[(Unknown, 8), (Refused, 1), (Unknown, 16)], false),
        (&[(Unknown, 1), (Performed, 1), (Unknown, 30)], false),
        (&[(Refused, 30)], false),
    ] {
        let mut bed = Bed::new(Limits::default(), Vec::new());
        let (holder, session, held) = bed.delegated(b"holder");
        let recall = Message::Recall(Recall { stateid: held, object: object() });
        bed.state.recall(FILE, false, &mut bed.step);
        for (answer, count) in answers {
            for _ in 0..*count {
                assert_eq!(bed.state.test_stateid(holder, &held), Ok(()), "{answers:?}");
                session.bind_back(ConnectionId(1)).unwrap();
                let (_, sent) = bed.state.notify(holder, recall.clone()).unwrap();
                assert_eq!(bed.state.end_callback(&session, sent, *answer, bed.step.now), None);
                bed.pass(2);
            }
        }
        let wanted = if is_revoked { Err(Status::DelegRevoked) } else { Ok(()) };
        assert_eq!(bed.state.test_stateid(holder, &held), wanted, "{answers:?}");
    }
}

/// An answer does not show that the delegation will be returned: the recall may have overtaken the
/// reply with the delegation, or its return may fail.
#[test]
fn a_recall_is_repeated_whatever_its_client_answers() {
    use CallbackEnd::{Delayed, Lost, Performed, Refused, Unknown};
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, session, held) = bed.delegated(b"holder");
    bed.taken();
    bed.state.recall(FILE, false, &mut bed.step);
    let recall = Message::Recall(Recall { stateid: held, object: object() });
    for end in [Refused, Delayed, Lost, Performed, Unknown] {
        assert_eq!(bed.recalls(), 1, "before {end:?}");
        session.bind_back(ConnectionId(1)).unwrap();
        let (_, sent) = bed.state.notify(holder, recall.clone()).unwrap();
        assert_eq!(bed.state.end_callback(&session, sent, end, bed.step.now), None);
        bed.pass(2);
    }
    assert_eq!(bed.recalls(), 1);
    bed.pass(79);
    assert_eq!(bed.state.test_stateid(holder, &held), Ok(()));
    assert!(session.lease.renew(bed.step.now));
    bed.pass(1);
    assert_eq!(bed.state.test_stateid(holder, &held), Err(Status::DelegRevoked), "it is late");
}

#[test]
fn a_recall_that_waits_for_the_slot_ends_with_its_delegation() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (holder, session, held) = bed.delegated(b"holder");
    session.bind_back(ConnectionId(1)).unwrap();
    let recall = |stateid| Message::Recall(Recall { stateid, object: object() });
    let (_, probe) = bed.state.notify(holder, Message::Probe).unwrap();
    assert!(bed.state.notify(holder, recall(held)).is_none(), "the slot is taken");
    bed.give_back(holder, &held).unwrap();
    assert!(bed.state.notify(holder, recall(held)).is_none(), "it has ended");
    let ended = bed.state.end_callback(&session, probe, CallbackEnd::Performed, bed.step.now);
    assert_eq!(ended, None);
}
