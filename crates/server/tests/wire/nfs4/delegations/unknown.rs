//! Delegations that their clients do not know, or do not know by a recall while they return them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use super::*;

/// Answers the callbacks to a holder from now on: a recall by BAD_STATEID, or by NFS4_OK if
/// `accepts` holds of it. Returns the recalled stateids.
fn answer_all(
    holder: &mut Holder,
    fixture: &Fixture,
    accepts: impl Fn(Stateid) -> bool + Send + 'static,
) -> mpsc::Receiver<Stateid> {
    let id = holder.session.id;
    let mut back = std::mem::replace(&mut holder.back, fixture.client());
    let (recalled, recalls) = mpsc::channel();
    thread::spawn(move || {
        while let Some(record) = back.receive_record() {
            let (xid, asked) = decode(&record, id);
            let (status, results) = match asked {
                Asked::Nothing => (NFS4_OK, 1),
                Asked::Recall { stateid, .. } => {
                    // The test may be over.
                    let _ = recalled.send(stateid);
                    let is_accepted = accepts(stateid);
                    (if is_accepted { NFS4_OK } else { Status::BadStateid.code() }, 2)
                }
            };
            let mut w = Writer::new();
            ReplyHeader::Accepted { xid, stat: AcceptStat::Success }.encode(&mut w);
            CompoundResult { status, tag: b"", results }.encode(&mut w);
            back.send_record(w.as_slice());
        }
    });
    recalls
}

#[test]
fn a_delegation_that_its_client_does_not_know_is_soon_out_of_the_way() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut other = Session::of(&fixture, b"other", 1);
    let (_, delegation) = holder.delegated(b"a");
    let export = holder.export;
    let _recalls = answer_all(&mut holder, &fixture, |_| false);
    let began = Instant::now();
    let mut write = || open(&mut other, export, b"a", ShareAccess::Write).map(drop);
    while let Err(status) = write() {
        assert_eq!(status, Status::Delay);
        assert!(began.elapsed() < Duration::from_secs(60), "it is in the way");
        thread::sleep(Duration::from_millis(100));
    }
    // The client could be returning it for as long.
    let waited = began.elapsed();
    assert!(waited > Duration::from_secs(30), "{waited:?}");
    assert_eq!(holder.test(delegation), Status::DelegRevoked.code());
    assert_ne!(holder.status_flags() & SEQ4_STATUS_RECALLABLE_STATE_REVOKED, 0);
    assert_eq!(fixture.figure("nfs4_delegations_revoked"), 1);
}

/// Linux answers BAD_STATEID from the moment that it begins to return a delegation, by a recall or
/// by itself, until it has claimed its opens and locks.
#[test]
fn a_client_has_time_to_claim_its_opens_and_locks_before_it_returns_a_delegation() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut other = Session::of(&fixture, b"other", 1);
    let (file, by_recall) = holder.delegated(b"a");
    let (elsewhere, by_itself) = holder.delegated(b"b");
    let export = holder.export;
    let is_first = AtomicBool::new(true);
    let accepts = move |stateid| stateid == by_recall && is_first.swap(false, Ordering::Relaxed);
    let recalls = answer_all(&mut holder, &fixture, accepts);
    for name in [b"a", b"b"] {
        let denied = open(&mut other, export, name, ShareAccess::Write).map(drop);
        assert_eq!(denied, Err(Status::Delay));
    }
    thread::sleep(Duration::from_secs(12));
    for (file, stateid) in [(file, by_recall), (elsewhere, by_itself)] {
        let claim = OpenClaim::DelegateCurrentHandle(stateid);
        let args = open_args(ShareAccess::Read, OpenHow::NoCreate, claim);
        holder.session.ok(&Operations::new().at(file).op(OperationCode::Open, &args));
        assert_eq!(holder.give_back(file, stateid), Ok(()));
    }
    for name in [b"a", b"b"] {
        open(&mut other, export, name, ShareAccess::Write).unwrap();
    }
    let repeated = recalls.try_iter().filter(|stateid| *stateid == by_recall).count();
    assert!(repeated > 3, "{repeated} recalls");
    assert_eq!(fixture.figure("nfs4_delegations_revoked"), 0);
}
