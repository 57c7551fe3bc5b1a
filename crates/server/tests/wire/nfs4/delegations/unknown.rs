//! Delegations that their clients do not know.

use super::*;

/// Answers a callback: a recall by BAD_STATEID.
fn refuse(back: &mut Client, session: SessionId, record: &[u8]) {
    let (xid, asked) = decode(record, session);
    let mut w = Writer::new();
    ReplyHeader::Accepted { xid, stat: AcceptStat::Success }.encode(&mut w);
    let (status, results) = match asked {
        Asked::Nothing => (NFS4_OK, 1),
        Asked::Recall { .. } => (Status::BadStateid.code(), 2),
    };
    CompoundResult { status, tag: b"", results }.encode(&mut w);
    back.send_record(w.as_slice());
}

#[test]
fn a_delegation_that_its_client_does_not_know_is_soon_out_of_the_way() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut other = Session::of(&fixture, b"other", 1);
    let (_, delegation) = holder.delegated(b"a");
    let (id, export) = (holder.session.id, holder.export);
    let mut back = std::mem::replace(&mut holder.back, fixture.client());
    thread::spawn(move || {
        while let Some(record) = back.receive_record() {
            refuse(&mut back, id, &record);
        }
    });
    let began = Instant::now();
    let write = || open(&mut other, export, b"a", ShareAccess::Write).map(drop);
    assert_eq!(patiently(&Status::Delay, write), Ok(()));
    let waited = began.elapsed();
    // The reply with the delegation could be on its way for as long.
    assert!(waited > Duration::from_secs(4), "{waited:?}");
    assert_eq!(holder.test(delegation), Status::DelegRevoked.code());
    assert_ne!(holder.status_flags() & SEQ4_STATUS_RECALLABLE_STATE_REVOKED, 0);
    assert_eq!(fixture.figure("nfs4_delegations_revoked"), 1);
}
