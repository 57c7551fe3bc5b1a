use proptest::prelude::*;
use proto::nfs3::Time;

use super::*;
use crate::fixture::file_attributes;

fn attributes(size: u64, ctime: u32) -> Attributes {
    file_attributes(size, Time { seconds: ctime, nseconds: 0 })
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The time between the sending of a call and its reply.
const DELAY: Duration = Duration::from_millis(500);

fn timeouts() -> AttributeTimeouts {
    AttributeTimeouts::from(&MountOptions::default())
}

/// Revalidates the attributes whenever they expire, and returns how many seconds they were valid
/// each time.
fn valid_for(cache: &mut AttributeCache, start: Instant, shown: &Attributes) -> Vec<u64> {
    let mut now = start;
    (0..6)
        .map(|_| {
            let sent = cache.sending(now);
            assert!(cache.learn(shown, sent));
            let believed = cache.fresh_for(now);
            assert_eq!(cache.fresh(now + believed), None);
            assert!(cache.fresh(now + believed - Duration::from_nanos(1)).is_some());
            now += believed;
            believed.as_secs()
        })
        .collect()
}

#[test]
fn timeouts_double_while_nothing_changes() {
    let start = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), start);
    let shown = attributes(1, 1);
    assert_eq!(valid_for(&mut cache, start, &shown), [3, 6, 12, 24, 48, 60]);
    let later = start + secs(1000);
    let shown = attributes(1, 2);
    assert_eq!(valid_for(&mut cache, later, &shown)[..2], [3, 6], "a change");

    let dir = Attributes { file_type: FileType::Directory, ..attributes(0, 0) };
    let mut cache = AttributeCache::new(&dir, timeouts(), start);
    assert_eq!(cache.fresh_for(start), secs(30));
    let shown = Attributes { file_type: FileType::Directory, ..attributes(1, 1) };
    assert_eq!(valid_for(&mut cache, start, &shown)[..3], [30, 60, 60]);
}

#[test]
fn many_replies_at_once_do_not_double_the_timeout() {
    let start = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), start);
    for n in 0..100 {
        let sent = cache.sending(start + DELAY * n / 100);
        assert!(cache.learn(&attributes(0, 0), sent));
    }
    assert!(cache.fresh_for(start) < secs(4));
}

#[test]
fn noac_expires_at_once() {
    let start = Instant::now();
    let zero = TimeoutBounds { min: Duration::ZERO, max: Duration::ZERO };
    let timeouts = AttributeTimeouts { file: zero, dir: zero };
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts, start);
    assert_eq!(cache.fresh(start), None);
    assert_eq!(valid_zero(&mut cache, start), [secs(0); 3]);
    assert_eq!(cache.latest().size, 7, "which does not keep it from being known");
}

fn valid_zero(cache: &mut AttributeCache, start: Instant) -> [Duration; 3] {
    [0, 1, 100].map(|at| {
        let sent = cache.sending(start + secs(at));
        cache.learn(&attributes(7, 1), sent);
        cache.fresh_for(start + secs(at))
    })
}

#[test]
fn the_timeout_counts_from_the_sending_of_the_call() {
    let start = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), start);
    let sent = cache.sending(start + secs(10));
    cache.learn(&attributes(1, 1), sent);
    assert_eq!(cache.fresh_for(start + secs(10) + DELAY), secs(3) - DELAY);
}

#[test]
fn a_late_reply_does_not_revert_the_attributes() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
    let [one, two, three] = [(); 3].map(|()| cache.sending(now));
    assert!(cache.learn(&attributes(20, 2), two));
    assert!(!cache.learn(&attributes(10, 1), one));
    assert_eq!(cache.latest().size, 20);
    // Within a tick of the server's clock, the order of sending decides.
    assert!(cache.learn(&attributes(30, 2), three));
    assert!(!cache.learn(&attributes(20, 2), two));
    assert_eq!(cache.latest().size, 30);
    // A call sent now wins, even if the server's clock went back.
    let sent = cache.sending(now);
    assert!(cache.learn(&attributes(5, 1), sent));
    assert_eq!(cache.latest().size, 5);
}

#[test]
fn expired_attributes_stay_expired_until_a_call_sent_since() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
    valid_for(&mut cache, now, &attributes(0, 0));
    let now = now + secs(200);
    let before = cache.sending(now);
    cache.expire();
    assert_eq!(cache.fresh(now), None);
    assert!(!cache.learn(&attributes(9, 0), sent_first(before)), "older than the expiry");
    assert!(cache.learn(&attributes(1, 1), before), "newer than all that is known");
    assert_eq!(cache.fresh(now), None, "but not known to be new enough");
    let after = cache.sending(now);
    assert!(cache.learn(&attributes(1, 1), after));
    assert_eq!(cache.fresh_for(now), secs(3), "from the minimum again");
}

/// A call sent before all others.
fn sent_first(sent: Sent) -> Sent {
    Sent { order: 0, ..sent }
}

#[test]
fn values_that_were_set_are_shown_until_a_later_reply() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(5, 1), timeouts(), now);
    let cut = SetAttributes { size: Some(2), ..SetAttributes::default() };
    cache.expire();
    cache.note_set(&cut);
    assert_eq!((cache.latest().size, cache.fresh(now)), (2, None));
    let sent = cache.sending(now);
    assert!(cache.learn(&attributes(7, 2), sent));
    cache.note_set(&cut);
    assert_eq!(cache.fresh(now).map(|shown| shown.size), Some(7));
}

proptest! {
    /// Calls read and change an object at a server whose clock may be coarse; replies arrive in any
    /// order.
    #[test]
    fn the_newest_attributes_are_accepted(
        calls in proptest::collection::vec((any::<prop::sample::Index>(), 0..2_u32), 1..40),
    ) {
        let now = Instant::now();
        let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
        let mut ctime = 0;
        // The server executes the calls in the order of sending; the size counts them.
        let mut replies: Vec<_> = (1..)
            .zip(&calls)
            .map(|(size, (_, tick))| {
                ctime += tick;
                (cache.sending(now), attributes(size, ctime))
            })
            .collect();
        let newest = attributes(u64::try_from(calls.len()).unwrap(), ctime);
        for (at, _) in &calls {
            let (sent, shown) = replies.swap_remove(at.index(replies.len()));
            let before = *cache.latest();
            let believed = cache.learn(&shown, sent);
            prop_assert_eq!(believed, shown.size > before.size);
            prop_assert_eq!(cache.latest().size, shown.size.max(before.size));
        }
        prop_assert!(*cache.latest() == newest);
    }
}
