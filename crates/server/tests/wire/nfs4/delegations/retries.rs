//! Retries of a call that waits for the return of a delegation.

use super::*;

/// Linux encodes a retry anew, with the highest slot that is in use by then.
#[test]
fn a_retry_over_another_connection_is_delayed_whatever_slots_are_in_use() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut session = Session::of(&fixture, b"another", 1);
    session.cache_this = true;
    let mut second = fixture.client();
    // On a busy machine the call may be over before its second copy is received.
    let mut is_delayed = |name: &[u8]| {
        let (file, delegation) = holder.delegated(name);
        session.sequence += 1;
        let call = session.sequenced(&chmod(file, 0o600));
        let retry = session.sequenced_below(SlotId(1), &chmod(file, 0o600));
        let (first, mut retried) = thread::scope(|scope| {
            let first = scope.spawn(|| compound(&mut session.client, 1, &call));
            // The call is at work when the delegation is recalled.
            assert_eq!(holder.answer(), Asked::Recall { stateid: delegation, object: file });
            let retried = compound(&mut second, 1, &retry);
            (first.join().unwrap(), retried)
        });
        assert_eq!(first.status, Err(Status::Delay), "the delegation is not returned");
        assert_eq!(holder.give_back(file, delegation), Ok(()));
        if retried == first {
            return false;
        }
        assert_eq!(retried.next::<()>(OperationCode::Sequence), Err(Status::Delay));
        true
    };
    assert!([b"a", b"b", b"c", b"d"].iter().any(|name| is_delayed(&name[..])));
}
