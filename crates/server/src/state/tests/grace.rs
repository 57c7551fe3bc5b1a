//! Restarts: who may reclaim, who has to wait, and which records remain.

use super::*;

fn record(owner: &[u8]) -> ClientRecord {
    ClientRecord { owner: owner.into(), principal: Principal::User(0) }
}

const READ: (ShareAccess, ShareDeny) = (ShareAccess::Read, ShareDeny::None);

/// The changes of records so far, which are then on the disk.
pub(super) fn settled(bed: &mut Bed) -> Vec<RecordChange> {
    let changes = bed.state.record_changes();
    bed.state.records_changed(&changes);
    changes
}

#[test]
fn a_client_is_recorded_before_its_first_state() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, _) = bed.begin_client(b"c");
    assert_eq!(bed.open_as(client, READ, false).map(drop), Err(Status::Grace));
    assert_eq!(settled(&mut bed), []);
    bed.reclaim_complete(client).unwrap();
    assert_eq!(bed.taken(), [Effect::Records]);
    assert_eq!(bed.reclaim_complete(client), Err(Status::CompleteAlready));
    assert_eq!(settled(&mut bed), [RecordChange::Write(record(b"c"))]);
    let stateid = bed.open_as(client, READ, false).unwrap().stateid;
    assert_eq!(bed.open_as(client, READ, true).map(drop), Err(Status::NoGrace));
    assert_eq!(bed.taken(), [], "the record is on the disk");
    bed.close(client, &stateid).unwrap();
    let user = Principal::User(0);
    let busy = bed.state.destroy_clientid(client, user, &mut bed.step);
    assert_eq!(busy, Err(Status::ClientidBusy));
}

/// The record of a client that denied writing would let it deny that again after a crash, as if no
/// other client had written meanwhile.
#[test]
fn anonymous_io_waits_until_records_are_removed() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let denier = bed.client(b"denier");
    bed.open(denier, ShareAccess::Read, ShareDeny::Write);
    bed.step.now = LEASE * 2;
    let other = bed.client(b"other");
    settled(&mut bed);
    bed.taken();
    for call in ["that forgets the denier", "after it"] {
        let checked = bed.check_io(other, &Stateid::ANONYMOUS, ShareAccess::Write);
        assert_eq!(checked, Ok(IoState::Unchecked), "the call {call}");
        assert!(bed.taken().contains(&Effect::Records), "the call {call}");
    }
    assert_eq!(settled(&mut bed), [RecordChange::Remove(b"denier".as_slice().into())]);
    let checked = bed.check_io(other, &Stateid::ANONYMOUS, ShareAccess::Write);
    assert_eq!((checked, bed.taken()), (Ok(IoState::Unchecked), vec![]));
}

#[test]
fn only_recorded_clients_reclaim_and_all_others_wait_for_them() {
    let mut bed = Bed::new(Limits::default(), vec![record(b"a"), record(b"b")]);
    let stranger = bed.client(b"stranger");
    assert_eq!(bed.open_as(stranger, READ, true).map(drop), Err(Status::NoGrace));
    assert_eq!(bed.open_as(stranger, READ, false).map(drop), Err(Status::Grace));
    let (newcomer, _) = bed.begin_client(b"newcomer");
    assert_eq!(bed.open_as(newcomer, READ, true).map(drop), Err(Status::ReclaimBad));
    let anonymous = Stateid::ANONYMOUS;
    assert_eq!(bed.check_io(stranger, &anonymous, ShareAccess::Read), Err(Status::Grace));
    let imposter = exchange(&bed.state, (b"a", 1, Principal::User(5)), false, bed.step.now);
    assert_eq!(imposter, Err(Status::ClidInuse));

    let [(a, _), (b, _)] = [b"a", b"b"].map(|owner| bed.begin_client(owner));
    let open = bed.open_as(a, (ShareAccess::Both, ShareDeny::Both), true).unwrap().stateid;
    assert_eq!(bed.open_as(b, READ, true).map(drop), Err(Status::ReclaimConflict));
    let target = LockTarget::New { open: &open, owner: b"l" };
    let (file, kind) = (FILE, LockType::Write);
    let call =
        Lock { client: a, target, file, object: object(), range: ALL, kind, is_reclaim: true };
    let grant = bed.state.lock_range(&call, &mut bed.step).unwrap();
    bed.state.confirm_lock(grant, &mut bed.step).unwrap();

    settled(&mut bed);
    bed.reclaim_complete(a).unwrap();
    assert_eq!(bed.open_as(a, READ, true).map(drop), Err(Status::NoGrace));
    assert_eq!(bed.open_as(a, READ, false).map(drop), Err(Status::Grace), "b is missing");
    assert!(bed.state.counts().is_in_grace);
    bed.reclaim_complete(b).unwrap();
    assert!(!bed.state.counts().is_in_grace);
    assert_eq!(settled(&mut bed), [], "both were on record, and stay so");
    assert_eq!(bed.open_as(b, READ, false).map(drop), Err(Status::ShareDenied));
}

#[test]
fn clients_that_do_not_reclaim_lose_their_records_before_others_get_state() {
    let mut bed = Bed::new(Limits::default(), vec![record(b"gone"), record(b"slow")]);
    let other = bed.client(b"other");
    assert_eq!(settled(&mut bed), [RecordChange::Write(record(b"other"))]);
    let (slow, _) = bed.begin_client(b"slow");
    bed.open_as(slow, READ, true).unwrap();
    bed.taken();
    bed.step.now = Limits::default().grace - Duration::from_secs(1);
    bed.state.expire(&mut bed.step);
    assert!(bed.state.counts().is_in_grace);
    bed.step.now += Duration::from_secs(1);
    let (still_here, _) = (other, ());
    bed.state.expire(&mut bed.step);
    assert!(bed.taken().contains(&Effect::Records));
    let mut removed = bed.state.record_changes();
    let owner = |change: &RecordChange| format!("{change:?}");
    removed.sort_by_key(owner);
    let remove = |owner: &[u8]| RecordChange::Remove(owner.into());
    // The lease of `other` ran out too, and it had no state.
    let mut expected = [remove(b"gone"), remove(b"slow"), remove(b"other")];
    expected.sort_by_key(owner);
    assert_eq!(removed, expected);
    assert_eq!(bed.open_as(still_here, READ, false).map(drop), Err(Status::Badsession));

    let newcomer = bed.client(b"newcomer");
    bed.taken();
    bed.open_as(newcomer, READ, false).unwrap();
    assert_eq!(bed.taken(), [Effect::Records], "until they are removed, each grant waits");
    settled(&mut bed);
    bed.open_as(newcomer, (ShareAccess::Write, ShareDeny::None), false).unwrap();
    assert_eq!(bed.taken(), []);

    bed.reclaim_complete(slow).unwrap();
    assert_eq!(settled(&mut bed), [RecordChange::Write(record(b"slow"))]);
}

#[test]
fn a_dropped_client_that_was_not_confirmed_yet_has_nothing_to_reclaim() {
    let mut bed = Bed::new(Limits::default(), vec![record(b"c"), record(b"other")]);
    exchange(&bed.state, (b"c", 1, Principal::User(0)), false, bed.step.now).unwrap();
    assert_eq!(bed.state.forget_peer(peer_of(b"c"), &mut bed.step), 1);
    assert_eq!(bed.taken(), [Effect::Records]);
    assert_eq!(settled(&mut bed), [RecordChange::Remove(b"c".as_slice().into())]);
    let (again, _) = bed.begin_client(b"c");
    assert_eq!(bed.open_as(again, READ, true).map(drop), Err(Status::ReclaimBad));
    let (other, _) = bed.begin_client(b"other");
    bed.open_as(other, READ, true).unwrap();
}

#[test]
fn a_dropped_client_takes_nothing_from_the_confirmed_one_of_its_name() {
    let mut bed = Bed::new(Limits::default(), vec![record(b"c")]);
    let (confirmed, _) = bed.begin_client(b"c");
    let (peer, principal) = (peer_of(b"elsewhere"), Principal::User(0));
    let verifier = Verifier([2; 8]);
    let call = ExchangeId { owner: b"c", verifier, is_update: false, principal, peer };
    bed.state.exchange_id(&call, &mut bed.step).unwrap();
    assert_eq!(bed.state.forget_peer(peer, &mut bed.step), 1);
    bed.open_as(confirmed, READ, true).unwrap();
    assert_eq!(settled(&mut bed), []);
}

#[test]
fn a_client_that_reboots_has_nothing_to_reclaim() {
    let mut bed = Bed::new(Limits::default(), vec![record(b"c")]);
    let (old, _) = bed.begin_client(b"c");
    bed.open_as(old, READ, true).unwrap();
    let user = Principal::User(0);
    let new = exchange(&bed.state, (b"c", 2, user), false, bed.step.now).unwrap().client;
    bed.state.create_session(&call_of(new), &mut bed.step).unwrap();
    assert_eq!(settled(&mut bed), [RecordChange::Remove(b"c".as_slice().into())]);
    assert_eq!(bed.open_as(new, READ, true).map(drop), Err(Status::ReclaimBad));
    bed.reclaim_complete(new).unwrap();
    assert_eq!(settled(&mut bed), [RecordChange::Write(record(b"c"))]);
    assert!(!bed.state.counts().is_in_grace);
}

#[test]
fn a_client_cannot_reclaim_before_it_has_freed_what_was_revoked() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, open) = bed.client_with_open(b"c");
    let lock = bed.lock(client, &open, LockType::Write, ALL).unwrap();
    assert_eq!(settled(&mut bed), [RecordChange::Write(record(b"c"))]);
    bed.taken();
    bed.state.release_files(&[(FILE, EXPORT)], &mut bed.step);
    assert!(bed.taken().contains(&Effect::Records), "before others get the lock");
    assert_eq!(settled(&mut bed), [RecordChange::Remove(b"c".as_slice().into())]);
    bed.open(client, ShareAccess::Read, ShareDeny::None);
    bed.state.free_stateid(client, &open, &mut bed.step).unwrap();
    assert_eq!((bed.taken(), settled(&mut bed)), (Vec::new(), Vec::new()), "the lock is left");
    bed.state.free_stateid(client, &lock, &mut bed.step).unwrap();
    assert_eq!(bed.taken(), [Effect::Records]);
    assert_eq!(settled(&mut bed), [RecordChange::Write(record(b"c"))]);
}

#[test]
fn a_client_that_is_cut_off_has_time_to_free_what_was_revoked_when_it_is_back() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, session) = bed.begin_client(b"c");
    bed.reclaim_complete(client).unwrap();
    bed.open(client, ShareAccess::Read, ShareDeny::None);
    let call = |export| OpenFile { export, access: ShareAccess::Read, ..open_call(client) };
    let retired = ExportId(7);
    let stateid = bed.state.open(&call(retired), &mut bed.step).unwrap().stateid;
    settled(&mut bed);
    bed.state.release_files(&[(FILE, retired)], &mut bed.step);
    assert_eq!(settled(&mut bed), [RecordChange::Remove(b"c".as_slice().into())]);
    let mut pass = |secs, is_there: bool| {
        bed.step.now += Duration::from_secs(secs);
        assert!(!is_there || session.lease.renew(bed.step.now));
        bed.state.expire(&mut bed.step);
        (bed.state.test_stateid(client, &stateid), settled(&mut bed))
    };
    assert_eq!(pass(1000, false), (Err(Status::AdminRevoked), Vec::new()));
    assert_eq!(pass(180, true), (Err(Status::AdminRevoked), Vec::new()));
    let written = vec![RecordChange::Write(record(b"c"))];
    assert_eq!(pass(1, true), (Err(Status::BadStateid), written));
}

#[test]
fn a_client_that_loses_state_in_the_grace_period_reclaims_the_rest_once() {
    let mut bed = Bed::new(Limits::default(), vec![record(b"a"), record(b"b")]);
    let [(a, _), (b, _)] = [b"a", b"b"].map(|owner| bed.begin_client(owner));
    let open = bed.open_as(a, READ, true).unwrap().stateid;
    bed.state.release_files(&[(FILE, EXPORT)], &mut bed.step);
    assert_eq!(settled(&mut bed), [RecordChange::Remove(b"a".as_slice().into())]);
    bed.open_as(a, READ, true).expect("no other has got state");
    bed.reclaim_complete(a).unwrap();
    assert_eq!(settled(&mut bed), [], "it has still to free what was revoked");
    bed.state.free_stateid(a, &open, &mut bed.step).unwrap();
    assert_eq!(settled(&mut bed), [RecordChange::Write(record(b"a"))]);

    bed.open_as(b, READ, true).unwrap();
    bed.state.release_files(&[(FILE, EXPORT)], &mut bed.step);
    let new = exchange(&bed.state, (b"b", 2, Principal::User(0)), false, bed.step.now).unwrap();
    bed.state.create_session(&call_of(new.client), &mut bed.step).unwrap();
    assert_eq!(bed.open_as(new.client, READ, true).map(drop), Err(Status::ReclaimBad));
}

#[test]
fn reclaim_complete_of_one_file_system_changes_nothing() {
    let mut bed = Bed::new(Limits::default(), vec![record(b"c")]);
    let (client, _) = bed.begin_client(b"c");
    bed.state.reclaim_complete(client, true, &mut bed.step).unwrap();
    assert!(bed.state.counts().is_in_grace);
    bed.reclaim_complete(client).unwrap();
}

#[test]
fn a_client_that_has_to_reclaim_sees_it_until_it_has() {
    let mut bed = Bed::new(Limits::default(), vec![record(b"a")]);
    let ((client, session), (_, newcomer)) = (bed.begin_client(b"a"), bed.begin_client(b"b"));
    let needed = SEQ4_STATUS_RESTART_RECLAIM_NEEDED;
    assert_eq!(status_flags(&session, 1, bed.step.now), needed);
    assert_eq!(status_flags(&newcomer, 1, bed.step.now), 0);
    bed.open_as(client, READ, true).unwrap();
    assert_eq!(status_flags(&session, 2, bed.step.now), needed);
    bed.reclaim_complete(client).unwrap();
    assert_eq!(status_flags(&session, 3, bed.step.now), 0);
}
