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
            let sent = cache.sending(now, Effect::Nothing);
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
        let sent = cache.sending(start + DELAY * n / 100, Effect::Nothing);
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
        let sent = cache.sending(start + secs(at), Effect::Nothing);
        cache.learn(&attributes(7, 1), sent);
        cache.fresh_for(start + secs(at))
    })
}

#[test]
fn the_timeout_counts_from_the_sending_of_the_call() {
    let start = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), start);
    let sent = cache.sending(start + secs(10), Effect::Nothing);
    cache.learn(&attributes(1, 1), sent);
    assert_eq!(cache.fresh_for(start + secs(10) + DELAY), secs(3) - DELAY);
}

#[test]
fn a_late_reply_does_not_revert_the_attributes() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
    let [one, two, three] = [(); 3].map(|()| cache.sending(now, Effect::Nothing));
    assert!(cache.learn(&attributes(20, 2), two));
    assert!(!cache.learn(&attributes(10, 1), one));
    assert_eq!(cache.latest().size, 20);
    assert!(cache.learn(&attributes(30, 3), three));
    assert!(!cache.learn(&attributes(20, 2), two));
    assert_eq!(cache.latest().size, 30);
    // A call sent now wins, even if the server's clock went back.
    let sent = cache.sending(now, Effect::Nothing);
    assert!(cache.learn(&attributes(5, 1), sent));
    assert_eq!(cache.latest().size, 5);
}

#[test]
fn expired_attributes_stay_expired_until_a_call_sent_since() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
    valid_for(&mut cache, now, &attributes(0, 0));
    let now = now + secs(200);
    let before = cache.sending(now, Effect::Nothing);
    cache.expire();
    assert_eq!(cache.fresh(now), None);
    assert!(!cache.learn(&attributes(9, 0), sent_first(before)), "older than the expiry");
    assert!(cache.learn(&attributes(1, 1), before), "newer than all that is known");
    assert_eq!(cache.fresh(now), None, "but not known to be new enough");
    let after = cache.sending(now, Effect::Nothing);
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
    let sent = cache.sending(now, Effect::Nothing);
    assert!(cache.learn(&attributes(7, 2), sent));
    cache.note_set(&cut);
    assert_eq!(cache.fresh(now).map(|shown| shown.size), Some(7));
}

#[test]
fn overlapping_calls_that_differ_within_a_tick_expire_the_attributes() {
    let now = Instant::now();
    for effects in
        [[Effect::Nothing, Effect::Change], [Effect::Growth, Effect::Change], [Effect::Change; 2]]
    {
        let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
        let [one, two] = effects.map(|effect| cache.sending(now, effect));
        assert!(cache.learn(&attributes(1, 1), one));
        assert!(cache.fresh(now).is_some());
        cache.learn(&attributes(2, 1), two);
        assert_eq!(cache.fresh(now), None, "{effects:?}");
        let [one, two] = [(); 2].map(|()| cache.sending(now, Effect::Nothing));
        assert!(cache.learn(&attributes(3, 1), one), "sent after both replies");
        let later = Attributes { atime: Time { seconds: 9, nseconds: 0 }, ..attributes(3, 1) };
        assert!(cache.learn(&later, two), "atime has no effect on ctime");
        assert_eq!(cache.fresh(now), Some(&later));
    }
}

#[test]
fn overlapping_reads_that_show_two_modes_within_a_tick_expire_the_attributes() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
    let [one, two] = [(); 2].map(|()| cache.sending(now, Effect::Nothing));
    let shown = attributes(1, 1);
    assert!(cache.learn(&shown, one));
    assert!(!cache.learn(&Attributes { mode: shown.mode ^ 0o100, ..shown }, two));
    assert_eq!(cache.fresh(now), None);
}

#[test]
fn of_a_write_and_a_change_within_a_tick_the_larger_size_is_shown_until_a_later_call() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
    let effects = [Effect::Change, Effect::Growth, Effect::Growth];
    // The server executes them in this order.
    let [link, one, two] = effects.map(|effect| cache.sending(now, effect));
    assert!(cache.learn(&attributes(8, 1), one));
    let linked = Attributes { nlink: 2, ..attributes(4, 1) };
    assert!(cache.learn(&linked, link));
    assert_eq!((cache.latest().nlink, cache.latest().size), (2, 8));
    let getattr = cache.sending(now, Effect::Nothing);
    cache.learn(&attributes(12, 1), two);
    assert_eq!(cache.latest().size, 12);
    cache.learn(&attributes(12, 1), getattr);
    assert_eq!(cache.latest().size, 12);
    assert_eq!(cache.fresh(now), None, "sent before the reply to the second WRITE");
}

#[test]
fn a_size_from_before_a_change_is_not_taken_for_growth_after_it() {
    let now = Instant::now();
    for effect in [Effect::Nothing, Effect::Growth] {
        let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
        let first = cache.sending(now, effect);
        let truncation = cache.sending(now, Effect::Change);
        assert!(cache.learn(&attributes(4, 1), truncation));
        let write = cache.sending(now, Effect::Growth);
        assert!(cache.learn(&attributes(6, 1), write));
        cache.learn(&attributes(8, 1), first);
        assert_eq!(cache.fresh(now), None);
    }
}

#[test]
fn attributes_of_a_cached_listing_do_not_expire_later_ones_of_the_same_tick() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 1), timeouts(), now);
    let write = cache.sending(now, Effect::Growth);
    assert!(cache.learn(&attributes(8, 1), write));
    for _ in 0..3 {
        assert!(!cache.learn(&attributes(0, 1), Sent::before_all(now)));
        assert_eq!(cache.fresh(now), Some(&attributes(8, 1)));
    }
}

#[test]
fn overlapping_reads_and_writes_within_a_tick_leave_the_larger_size() {
    let now = Instant::now();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
        let calls = [(4, Effect::Growth), (12, Effect::Growth), (8, Effect::Nothing)]
            .map(|(size, effect)| (cache.sending(now, effect), attributes(size, 1)));
        for reply in order {
            let (sent, shown) = &calls[reply];
            cache.learn(shown, *sent);
            assert!(cache.fresh(now).is_some(), "{order:?}");
        }
        assert_eq!(cache.latest().size, 12, "{order:?}");
    }
}

#[test]
fn a_reply_that_was_overtaken_ends_an_expiry_from_before_its_call() {
    let now = Instant::now();
    let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
    cache.expire();
    let [one, two] = [(); 2].map(|()| cache.sending(now, Effect::Nothing));
    let before = cache.sending(now, Effect::Nothing);
    cache.expire();
    assert!(cache.learn(&attributes(1, 1), before));
    assert_eq!(cache.fresh(now), None);
    let after = cache.sending(now, Effect::Nothing);
    assert!(cache.learn(&attributes(2, 2), two));
    assert_eq!(cache.fresh(now), None, "sent before the expiry");
    assert!(cache.learn(&attributes(3, 3), after));
    assert!(cache.fresh(now).is_some());
    assert!(!cache.learn(&attributes(1, 1), one));
    assert!(cache.fresh(now).is_some());
}

proptest! {
    /// A server whose clock may be coarse executes calls in any order, and replies arrive in any
    /// order. Once all have arrived, the attributes are the object's or have expired.
    #[test]
    fn fresh_attributes_are_the_latest(
        steps in proptest::collection::vec(
            (0..3_u8, any::<prop::sample::Index>(), (0..3_u64, any::<bool>()), 0..2_u32),
            1..60,
        ),
    ) {
        let now = Instant::now();
        let mut cache = AttributeCache::new(&attributes(0, 0), timeouts(), now);
        let mut object = attributes(0, 0);
        let (mut sent, mut replies) = (Vec::new(), Vec::new());
        let (len, index) = (steps.len(), steps[0].1);
        let rest = [1, 2].into_iter().flat_map(|step| vec![(step, index, (0, false), 0); len]);
        for (step, index, (size, is_write), tick) in steps.into_iter().chain(rest) {
            match step {
                0 => {
                    let effect = match (size, is_write) {
                        (0, _) => Effect::Nothing,
                        (_, true) => Effect::Growth,
                        (_, false) => Effect::Change,
                    };
                    sent.push((cache.sending(now, effect), size, tick));
                }
                1 if !sent.is_empty() => {
                    let (call, size, tick) = sent.swap_remove(index.index(sent.len()));
                    let ctime = object.ctime.seconds + tick;
                    object = match call.effect {
                        Effect::Nothing => object,
                        Effect::Growth => attributes(object.size + size, ctime),
                        Effect::Change => attributes(size, ctime),
                    };
                    replies.push((call, object));
                }
                2 if !replies.is_empty() => {
                    let (call, shown) = replies.swap_remove(index.index(replies.len()));
                    cache.learn(&shown, call);
                }
                _ => {}
            }
            if sent.is_empty() && replies.is_empty() {
                prop_assert!(cache.fresh(now).is_none_or(|fresh| *fresh == object));
            }
        }
        prop_assert!(sent.is_empty() && replies.is_empty());
        let sent = cache.sending(now, Effect::Nothing);
        prop_assert!(cache.learn(&object, sent));
        prop_assert!(cache.fresh(now) == Some(&object));
    }
}
