use proptest::prelude::*;
use proto::nfs3::{LinkOk, RenameOk, SetattrOk, StableHow, Time, WccData, WriteOk, WriteVerifier};

use super::evidence::LONE_AFTERS_UNTRUSTED;
use super::*;
use crate::fixture::file_attributes;

fn attributes(size: u64, mtime: u32, ctime: u32) -> Attributes {
    let mtime = Time { seconds: mtime, nseconds: 0 };
    Attributes { mtime, ..file_attributes(size, Time { seconds: ctime, nseconds: 0 }) }
}

/// The object after the `n`th change of a file that grows.
fn state(n: u32) -> Attributes {
    attributes(u64::from(n), n, n)
}

fn stamps(before: Option<WccAttributes>, after: Option<Attributes>) -> Evidence {
    Evidence::of_setattr(&SetattrOk { wcc: WccData { before, after } })
}

fn pair(before: u32, after: u32) -> Evidence {
    stamps(Some((&state(before)).into()), Some(state(after)))
}

fn linked(after: Option<Attributes>) -> Evidence {
    Evidence::of_linked_file(&LinkOk { file_attributes: after, dir_wcc: WccData::default() })
}

fn renamed() -> Evidence {
    let (from_wcc, to_wcc) = (WccData::default(), WccData::default());
    Evidence::of_renamed_file(&RenameOk { from_wcc, to_wcc })
}

fn written(wcc: WccData, pairs: &WritePairs) -> Evidence {
    let (count, verifier) = (1, WriteVerifier::default());
    Evidence::of_write(&WriteOk { wcc, count, committed: StableHow::Unstable, verifier }, pairs)
}

/// The state for a server that never returns the stamp from before a WRITE.
fn without_pairs() -> WritePairs {
    let pairs = WritePairs::default();
    for _ in 0..LONE_AFTERS_UNTRUSTED {
        let _ = written(WccData { before: None, after: Some(state(0)) }, &pairs);
    }
    pairs
}

/// The reply to a WRITE of a server that never returns the stamp from before.
fn only_after(after: Attributes) -> Evidence {
    written(WccData { before: None, after: Some(after) }, &without_pairs())
}

#[test]
fn writes_answered_in_any_order_are_own() {
    let mut tracker = ChangeTracker::new(&state(0));
    let calls = [(); 4].map(|()| tracker.begin());
    let mut calls = calls.into_iter();
    let mut finish = |tracker: &mut ChangeTracker, before| {
        tracker.finish(calls.next().unwrap(), &pair(before, before + 1))
    };
    assert_eq!(finish(&mut tracker, 2), Attribution::Undecided);
    assert_eq!(finish(&mut tracker, 0), Attribution::Undecided);
    assert_eq!(finish(&mut tracker, 3), Attribution::Undecided);
    assert_eq!(finish(&mut tracker, 1), Attribution::Own);
    assert_eq!(tracker.known(), (&state(4)).into());
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(4), sent), Attribution::Unchanged);
}

#[test]
fn a_refused_call_is_no_change_that_a_later_own_one_could_hide() {
    for is_refused in [true, false] {
        let mut tracker = ChangeTracker::new(&attributes(1, 1, 1));
        let call = tracker.begin();
        if is_refused {
            assert_eq!(tracker.refuse(call), Attribution::Unchanged);
        } else {
            drop(call);
        }
        let renaming = tracker.begin();
        assert_eq!(tracker.finish(renaming, &renamed()), Attribution::Unchanged);
        let sent = tracker.moment();
        let expected = if is_refused { Attribution::Own } else { Attribution::Foreign };
        assert_eq!(tracker.observe(&attributes(1, 1, 2), sent), expected);
    }
}

#[test]
fn a_refused_call_decides_about_a_change_that_it_may_have_preceded() {
    let mut tracker = ChangeTracker::new(&state(0));
    let (refused, later) = (tracker.begin(), tracker.begin());
    assert_eq!(tracker.finish(later, &pair(1, 2)), Attribution::Undecided);
    assert_eq!(tracker.refuse(refused), Attribution::Foreign);
}

#[test]
fn a_setattr_behind_writes_is_own_in_any_order_of_replies() {
    // As tar does: the data, then an mtime in the past.
    let dated = attributes(2, 1, 3);
    let setattr = stamps(Some((&state(2)).into()), Some(dated));
    for setattr_first in [false, true] {
        let mut tracker = ChangeTracker::new(&state(0));
        let writes = [tracker.begin(), tracker.begin()];
        let dating = tracker.begin();
        let [one, two] = writes;
        if setattr_first {
            assert_eq!(tracker.finish(dating, &setattr), Attribution::Undecided);
            assert_eq!(tracker.finish(two, &pair(1, 2)), Attribution::Undecided);
            assert_eq!(tracker.finish(one, &pair(0, 1)), Attribution::Own);
        } else {
            assert_eq!(tracker.finish(one, &pair(0, 1)), Attribution::Own);
            assert_eq!(tracker.finish(two, &pair(1, 2)), Attribution::Own);
            assert_eq!(tracker.finish(dating, &setattr), Attribution::Own);
        }
        // The same attributes again, and older ones, have no effect.
        let sent = tracker.moment();
        assert_eq!(tracker.observe(&dated, sent), Attribution::Unchanged);
        let commit = tracker.begin();
        let same = stamps(Some((&dated).into()), Some(dated));
        assert_eq!(tracker.finish(commit, &same), Attribution::Unchanged);
        assert_eq!(tracker.observe(&state(2), sent), Attribution::Undecided);
        assert_eq!(tracker.known(), (&dated).into());
    }
}

#[test]
fn a_change_between_two_own_ones_is_foreign() {
    for reversed in [false, true] {
        let mut tracker = ChangeTracker::new(&state(0));
        let (one, two) = (tracker.begin(), tracker.begin());
        if reversed {
            assert_eq!(tracker.finish(two, &pair(2, 3)), Attribution::Undecided);
            assert_eq!(tracker.finish(one, &pair(0, 1)), Attribution::Foreign);
        } else {
            assert_eq!(tracker.finish(one, &pair(0, 1)), Attribution::Own);
            assert_eq!(tracker.finish(two, &pair(2, 3)), Attribution::Foreign);
        }
        assert_eq!(tracker.known(), (&state(3)).into());
        let sent = tracker.moment();
        assert_eq!(tracker.observe(&state(3), sent), Attribution::Unchanged);
    }
}

#[test]
fn a_gap_is_foreign_while_a_writer_continues() {
    let mut tracker = ChangeTracker::new(&state(0));
    let first = tracker.begin();
    let second = tracker.begin();
    assert_eq!(tracker.finish(second, &pair(2, 3)), Attribution::Undecided);
    // Later calls cannot lead up to a stamp that was seen before they began.
    let later = tracker.begin();
    assert_eq!(tracker.finish(first, &pair(0, 1)), Attribution::Foreign);
    assert_eq!(tracker.finish(later, &pair(3, 4)), Attribution::Own);
}

#[test]
fn a_size_may_come_back_within_a_tick() {
    // The server's clock does not tick while a file is written, truncated and written again.
    let [empty, half, full] = [0, 4, 8].map(|size| attributes(size, 1, 1));
    let step = |from: &Attributes, to: Attributes| stamps(Some(from.into()), Some(to));
    let mut tracker = ChangeTracker::new(&empty);
    let [write, cut, last, commit] = [(); 4].map(|()| tracker.begin());
    assert_eq!(tracker.finish(last, &step(&empty, full)), Attribution::Own);
    assert_eq!(tracker.finish(cut, &step(&half, empty)), Attribution::Undecided);
    assert_eq!(tracker.finish(write, &step(&empty, half)), Attribution::Unchanged);
    assert_eq!(tracker.finish(commit, &step(&half, half)), Attribution::Undecided);
    assert_eq!(tracker.known(), (&full).into());
}

#[test]
fn a_call_that_changes_nothing_detects_foreign_changes() {
    let mut tracker = ChangeTracker::new(&state(0));
    let commit = tracker.begin();
    assert_eq!(tracker.finish(commit, &pair(1, 1)), Attribution::Foreign);
    assert_eq!(tracker.known(), (&state(1)).into());
}

#[test]
fn a_change_between_two_opens_is_foreign() {
    let mut tracker = ChangeTracker::new(&state(0));
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(1), sent), Attribution::Foreign);
    assert_eq!(tracker.observe(&state(1), sent), Attribution::Unchanged);
    // Even if the server's clock went back, or another file has replaced this one.
    assert_eq!(tracker.observe(&state(0), sent), Attribution::Foreign);
    assert_eq!(tracker.known(), (&state(0)).into());
}

#[test]
fn observations_during_own_calls_decide_nothing() {
    let mut tracker = ChangeTracker::new(&state(0));
    let call = tracker.begin();
    let during = tracker.moment();
    assert_eq!(tracker.observe(&state(1), during), Attribution::Undecided);
    assert_eq!(tracker.known(), (&state(0)).into());
    assert_eq!(tracker.finish(call, &pair(0, 1)), Attribution::Own);
    // Sent before the write was executed, and answered after.
    assert_eq!(tracker.observe(&state(0), during), Attribution::Undecided);
    assert_eq!(tracker.known(), (&state(1)).into());
    // Newer than all own changes.
    assert_eq!(tracker.observe(&state(2), during), Attribution::Foreign);
}

#[test]
fn an_observation_is_decided_once_earlier_own_calls_are_answered() {
    // The call that it waits for was executed before a foreign change, and is answered later.
    let mut tracker = ChangeTracker::new(&state(0));
    let own = tracker.begin();
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(2), sent), Attribution::Undecided);
    let next_call = tracker.next_call();
    let later = tracker.begin();
    assert_eq!(tracker.decide_observed(&state(2), next_call), None);
    assert_eq!(tracker.finish(own, &pair(0, 1)), Attribution::Own);
    assert_eq!(tracker.decide_observed(&state(2), next_call), Some(Attribution::Foreign));
    assert_eq!(tracker.finish(later, &pair(2, 3)), Attribution::Own);

    // The observed state is that of the own change.
    let own = tracker.begin();
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(4), sent), Attribution::Undecided);
    let next_call = tracker.next_call();
    assert_eq!(tracker.finish(own, &pair(3, 4)), Attribution::Own);
    let later = tracker.begin();
    assert_eq!(tracker.decide_observed(&state(4), next_call), Some(Attribution::Unchanged));
    // A later own change has overtaken it.
    assert_eq!(tracker.finish(later, &pair(4, 5)), Attribution::Own);
    assert_eq!(tracker.decide_observed(&state(4), next_call), Some(Attribution::Undecided));
}

#[test]
fn without_stamps_before_own_calls_are_trusted() {
    let mut tracker = ChangeTracker::new(&state(0));
    let (one, two) = (tracker.begin(), tracker.begin());
    assert_eq!(tracker.finish(two, &only_after(state(2))), Attribution::Own);
    assert_eq!(tracker.finish(one, &only_after(state(1))), Attribution::Unchanged);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(2), sent), Attribution::Unchanged);
    // A foreign write, which no own write leads up to.
    assert_eq!(tracker.observe(&state(3), sent), Attribution::Foreign);

    // Within one tick of the server's clock the later call wins.
    let mut tracker = ChangeTracker::new(&state(0));
    let (one, two) = (tracker.begin(), tracker.begin());
    let tick = |size| only_after(attributes(size, 1, 1));
    assert_eq!(tracker.finish(two, &tick(8)), Attribution::Own);
    assert_eq!(tracker.finish(one, &tick(4)), Attribution::Unchanged);
    assert_eq!(tracker.known(), (&attributes(8, 1, 1)).into());
}

#[test]
fn a_call_without_a_reply_is_not_trusted() {
    let mut tracker = ChangeTracker::new(&state(0));
    let lost = tracker.begin();
    let next = tracker.begin();
    assert_eq!(tracker.finish(next, &pair(1, 2)), Attribution::Undecided);
    drop(lost);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(2), sent), Attribution::Foreign);
    tracker.forget_dropped();
    assert!(tracker.active.is_empty());

    // Neither is a call whose reply has no stamp.
    let mute = tracker.begin();
    assert_eq!(tracker.finish(mute, &stamps(None, None)), Attribution::Unchanged);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(3), sent), Attribution::Foreign);
}

#[test]
fn an_own_rename_moves_ctime_once() {
    let mut tracker = ChangeTracker::new(&state(1));
    let rename = tracker.begin();
    assert_eq!(tracker.finish(rename, &renamed()), Attribution::Unchanged);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&attributes(1, 1, 2), sent), Attribution::Own);
    assert_eq!(tracker.observe(&attributes(1, 1, 3), sent), Attribution::Foreign);

    // With an earlier write answered after it, and a later write.
    let mut tracker = ChangeTracker::new(&state(0));
    let [before, rename, behind] = [(); 3].map(|()| tracker.begin());
    let written = stamps(Some((&attributes(1, 1, 2)).into()), Some(state(3)));
    assert_eq!(tracker.finish(behind, &written), Attribution::Undecided);
    assert_eq!(tracker.finish(rename, &renamed()), Attribution::Undecided);
    assert_eq!(tracker.finish(before, &pair(0, 1)), Attribution::Own);
    assert_eq!(tracker.known(), (&state(3)).into());
}

#[test]
fn a_foreign_write_before_an_own_link_is_foreign() {
    let mut tracker = ChangeTracker::new(&state(1));
    let link = tracker.begin();
    assert_eq!(tracker.finish(link, &linked(Some(attributes(2, 2, 3)))), Attribution::Foreign);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&attributes(2, 2, 3), sent), Attribution::Unchanged);

    // The same size, written within a tick of the link.
    let mut tracker = ChangeTracker::new(&state(1));
    let link = tracker.begin();
    assert_eq!(tracker.finish(link, &linked(Some(attributes(1, 3, 3)))), Attribution::Foreign);

    // While an own WRITE is in flight, which does not lead up to the stamp.
    let mut tracker = ChangeTracker::new(&state(0));
    let (write, link) = (tracker.begin(), tracker.begin());
    assert_eq!(tracker.finish(link, &linked(Some(attributes(7, 2, 3)))), Attribution::Undecided);
    assert_eq!(tracker.finish(write, &pair(0, 1)), Attribution::Foreign);
}

#[test]
fn a_pair_with_other_data_inside_an_own_change_of_ctime_is_foreign() {
    // Another client writes, own SETATTRs reset size and mtime, and the reply to LINK is first.
    let mut tracker = ChangeTracker::new(&attributes(10, 0, 3));
    let (setattr, link) = (tracker.begin(), tracker.begin());
    assert_eq!(tracker.finish(link, &linked(Some(attributes(10, 0, 8)))), Attribution::Own);
    let set_back = stamps(Some((&attributes(10, 6, 6)).into()), Some(attributes(10, 0, 7)));
    assert_eq!(tracker.finish(setattr, &set_back), Attribution::Foreign);
}

#[test]
fn an_own_link_is_own_in_any_order() {
    let after_link = attributes(1, 1, 2);
    let mut tracker = ChangeTracker::new(&state(1));
    let link = tracker.begin();
    assert_eq!(tracker.finish(link, &linked(Some(after_link))), Attribution::Own);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&after_link, sent), Attribution::Unchanged);

    // Two links, the replies in the wrong order.
    let mut tracker = ChangeTracker::new(&state(1));
    let (one, two) = (tracker.begin(), tracker.begin());
    assert_eq!(tracker.finish(two, &linked(Some(attributes(1, 1, 3)))), Attribution::Own);
    assert_eq!(tracker.finish(one, &linked(Some(after_link))), Attribution::Unchanged);
    assert_eq!(tracker.known(), (&attributes(1, 1, 3)).into());

    // Behind a WRITE that is answered later.
    let mut tracker = ChangeTracker::new(&state(0));
    let (write, link) = (tracker.begin(), tracker.begin());
    assert_eq!(tracker.finish(link, &linked(Some(after_link))), Attribution::Undecided);
    assert_eq!(tracker.finish(write, &pair(0, 1)), Attribution::Own);
    assert_eq!(tracker.known(), (&after_link).into());

    // A server that omits the attributes.
    let mut tracker = ChangeTracker::new(&state(1));
    let link = tracker.begin();
    assert_eq!(tracker.finish(link, &linked(None)), Attribution::Unchanged);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&after_link, sent), Attribution::Own);
}

#[test]
fn a_setattr_without_the_stamp_from_before_is_not_trusted() {
    let mut tracker = ChangeTracker::new(&state(0));
    let call = tracker.begin();
    assert_eq!(tracker.finish(call, &stamps(None, Some(state(2)))), Attribution::Foreign);
}

#[test]
fn a_server_that_gives_pairs_is_not_trusted_without_one() {
    let lone = WccData { before: None, after: Some(state(3)) };
    let both = WccData { before: Some((&state(0)).into()), after: Some(state(1)) };
    for pairs in [WritePairs::default(), without_pairs()] {
        let mut tracker = ChangeTracker::new(&state(0));
        let (one, two) = (tracker.begin(), tracker.begin());
        assert_eq!(tracker.finish(one, &written(both, &pairs)), Attribution::Own);
        assert_eq!(tracker.finish(two, &written(lone, &pairs)), Attribution::Foreign);
    }
}

#[test]
fn a_reply_without_stamps_hides_no_change_of_mtime() {
    // Another client changes the data; the own SETATTR resets mtime, and its reply has no stamp;
    // the rename explains a change of ctime only.
    let mut tracker = ChangeTracker::new(&state(1));
    let (setattr, rename) = (tracker.begin(), tracker.begin());
    assert_eq!(tracker.finish(setattr, &stamps(None, None)), Attribution::Unchanged);
    assert_eq!(tracker.finish(rename, &renamed()), Attribution::Unchanged);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&attributes(1, 1, 4), sent), Attribution::Foreign);
}

#[test]
fn an_older_state_of_the_chain_is_no_foreign_change() {
    let mut tracker = ChangeTracker::new(&state(0));
    let write = tracker.begin();
    assert_eq!(tracker.finish(write, &pair(0, 1)), Attribution::Own);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(0), sent), Attribution::Undecided);
    assert!(tracker.is_past(&state(0)));
    assert_eq!(tracker.known(), (&state(1)).into());
    assert_eq!(tracker.observe(&state(1), sent), Attribution::Unchanged);
    // A file system reverted to a snapshot always returns this stamp.
    for _ in 1..OUTDATED_BELIEVED {
        assert_eq!(tracker.observe(&state(0), sent), Attribution::Undecided);
    }
    assert_eq!(tracker.observe(&state(0), sent), Attribution::Foreign);
    assert!(!tracker.is_past(&state(0)));
}

#[test]
fn an_own_write_before_a_return_to_its_mtime_and_a_link_counts_as_foreign() {
    // The size does not change, so the data's stamp is the same before the WRITE and after SETATTR.
    let [old, written, dated, moved] =
        [(1, 1), (2, 2), (1, 3), (1, 4)].map(|(mtime, ctime)| attributes(0, mtime, ctime));
    let before = |attributes: &Attributes| Some(attributes.into());
    let mut tracker = ChangeTracker::new(&old);
    let [write, setattr, link] = [(); 3].map(|()| tracker.begin());
    // Taken for a change of ctime alone, which the WRITE then contradicts.
    assert_eq!(tracker.finish(link, &linked(Some(moved))), Attribution::Own);
    let write = tracker.finish(write, &stamps(before(&old), Some(written)));
    assert_eq!(write, Attribution::Foreign);
    let _ = tracker.finish(setattr, &stamps(before(&written), Some(dated)));
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&moved, sent), Attribution::Unchanged);
}

#[test]
fn too_many_islands_are_foreign() {
    let mut tracker = ChangeTracker::new(&state(0));
    let first = tracker.begin();
    for n in 0..=u32::try_from(ISLANDS_MAX).unwrap() {
        let call = tracker.begin();
        let attribution = tracker.finish(call, &pair(2 * n + 1, 2 * n + 2));
        let full = usize::try_from(n).unwrap() == ISLANDS_MAX;
        assert_eq!(attribution, if full { Attribution::Foreign } else { Attribution::Undecided });
    }
    drop(first);
}

#[test]
fn stamps_are_written_for_traces() {
    assert_eq!(ChangeText((&attributes(5, 1, 2)).into()).to_string(), "5@1.000000000/2.000000000");
}

/// How the simulated server behaves.
#[derive(Clone, Copy, Debug)]
struct Server {
    /// Every change has a distinct ctime.
    distinct: bool,
    /// The stamps before and after are read under a lock that excludes other changes.
    locked: bool,
    /// WRITE replies have the stamp from before.
    returns_before: bool,
    /// Some replies omit both stamps, or the only one of LINK.
    forgetful: bool,
    /// Each SETATTR sets the same mtime, so that an object can return to an earlier mtime and size.
    /// That can be taken for an own change of ctime alone, and the next such change for a foreign
    /// one. It costs fetching data again, and is allowed.
    same_mtime: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Truncate,
    SetTime,
    Link,
    Rename,
    Commit,
    Getattr,
    /// The server begins a call, and reads the stamp before.
    Begin(usize),
    /// The server executes a call.
    Execute(usize),
    /// A reply arrives.
    Deliver(usize),
    /// The call is dropped; the server has executed it, or still will.
    Lose(usize),
    Foreign,
    /// A foreign change of the data begins. Until it ends, the server returns the stamp from before
    /// it, and omits stamps from the replies to changes.
    ForeignBegins,
    ForeignEnds,
}

fn steps(foreign: bool) -> impl Strategy<Value = Vec<Step>> {
    let seldom = prop_oneof![
        Just(Step::Truncate),
        Just(Step::SetTime),
        Just(Step::Link),
        Just(Step::Rename),
        Just(Step::Commit),
    ];
    let disturbance = prop_oneof![
        Just(Step::Foreign),
        Just(Step::ForeignBegins),
        Just(Step::ForeignEnds),
        any::<usize>().prop_map(Step::Lose),
    ];
    let step = prop_oneof![
        4 => Just(Step::Write),
        4 => seldom,
        2 => Just(Step::Getattr),
        3 => any::<usize>().prop_map(Step::Begin),
        6 => any::<usize>().prop_map(Step::Execute),
        6 => any::<usize>().prop_map(Step::Deliver),
        if foreign { 3 } else { 0 } => disturbance,
    ];
    proptest::collection::vec(step, 1..120)
}

fn servers() -> impl Strategy<Value = Server> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(distinct, locked, returns_before)| {
        // Overlapping pairs, or no pairs, cannot be distinguished within a tick.
        let distinct = distinct || !locked || !returns_before;
        Server { distinct, locked, returns_before, forgetful: false, same_mtime: false }
    })
}

/// A call in flight.
struct Call {
    kind: Step,
    own: Option<OwnCall>,
    sent: Moment,
    before: Option<WccAttributes>,
    /// Without a reply, its change counts as foreign.
    lost: bool,
    /// The number of its change of the object; 0 for none.
    executed: Option<u32>,
    after: Option<Attributes>,
}

/// A server, a network that delays and reorders, and a client with a tracker and a cache.
struct World {
    server: Server,
    object: Attributes,
    /// Changes so far, the last foreign one of them, and the last one that the client has fetched.
    changes: u32,
    foreign: u32,
    fetched: u32,
    /// The object before a foreign change in progress.
    before_foreign: Option<Attributes>,
    /// An own change had no reply or no stamp, so it may count as foreign.
    untraced: bool,
    /// A SETATTR has set the same mtime as others do, see [`Server::same_mtime`].
    returns_to_mtime: bool,
    /// A LINK or RENAME has changed ctime alone.
    moves_ctime: bool,
    pairs: WritePairs,
    calls: Vec<Call>,
    tracker: ChangeTracker,
}

impl World {
    fn new(server: Server) -> Self {
        let object = attributes(10, 1, 1);
        let tracker = ChangeTracker::new(&object);
        let pairs = if server.returns_before { WritePairs::default() } else { without_pairs() };
        Self {
            server,
            object,
            changes: 0,
            foreign: 0,
            fetched: 0,
            before_foreign: None,
            untraced: false,
            returns_to_mtime: false,
            moves_ctime: false,
            pairs,
            calls: Vec::new(),
            tracker,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin(n) => self.with_call(n, Self::begin),
            Step::Execute(n) => self.with_call(n, Self::execute),
            Step::Deliver(n) => self.with_call(n, Self::deliver),
            Step::Lose(n) => self.with_call(n, Self::lose),
            Step::Foreign => self.change_as_other(),
            Step::ForeignBegins => {
                let before = self.object;
                self.change_as_other();
                self.before_foreign.get_or_insert(before);
            }
            Step::ForeignEnds => {
                if self.before_foreign.take().is_some() {
                    self.change_as_other();
                }
            }
            kind => {
                let own = (!matches!(kind, Step::Getattr)).then(|| self.tracker.begin());
                let sent = self.tracker.moment();
                let (before, after) = (None, None);
                let call = Call { kind, own, sent, before, lost: false, executed: None, after };
                self.calls.push(call);
            }
        }
    }

    fn change_as_other(&mut self) {
        self.changes += 1;
        self.foreign = self.changes;
        self.object.size += 1;
        self.tick(true);
    }

    fn with_call(&mut self, n: usize, then: fn(&mut Self, usize)) {
        if !self.calls.is_empty() {
            then(self, n % self.calls.len());
        }
    }

    /// Moves the object's times to now.
    fn tick(&mut self, data: bool) {
        if self.server.distinct || self.object.size.is_multiple_of(3) {
            self.object.ctime.seconds += 1;
        }
        if data {
            self.object.mtime = self.object.ctime;
        }
    }

    fn begin(&mut self, n: usize) {
        let (call, object) = (&mut self.calls[n], self.object);
        match (self.server.locked, call.executed.is_some()) {
            (true, _) => {}
            (false, false) => call.before = call.before.or(Some((&object).into())),
            // Without the stamp from before, a LINK whose stamp includes a later change of the data
            // counts as foreign. It costs fetching data again, and is allowed.
            (false, true) if matches!(call.kind, Step::Link) => {}
            (false, true) => call.after = Some(object),
        }
    }

    fn execute(&mut self, n: usize) {
        if self.calls[n].executed.is_some() {
            return;
        }
        let before = WccAttributes::from(&self.object);
        let kind = self.calls[n].kind;
        match kind {
            Step::Write => {
                self.object.size += u64::from(n.is_multiple_of(2));
                self.tick(true);
            }
            Step::Truncate => {
                self.object.size = self.object.size.saturating_sub(2);
                self.tick(true);
            }
            Step::SetTime => {
                self.tick(false);
                let nseconds = if self.server.same_mtime { 0 } else { self.changes };
                self.object.mtime = Time { seconds: 0, nseconds };
                self.returns_to_mtime |= self.server.same_mtime;
            }
            Step::Link | Step::Rename => {
                self.tick(false);
                self.moves_ctime = true;
            }
            _ => {}
        }
        let returns_before = self.server.returns_before || !matches!(kind, Step::Write);
        let call = &mut self.calls[n];
        // A change of ctime alone does not change the data.
        let changed = (before.size, before.mtime) != (self.object.size, self.object.mtime);
        self.changes += u32::from(changed);
        let number = if changed { self.changes } else { 0 };
        call.executed = Some(number);
        call.before = returns_before.then(|| call.before.unwrap_or(before));
        call.after = Some(self.object);
        let is_change = !matches!(kind, Step::Getattr | Step::Commit);
        if is_change && (self.before_foreign.is_some() || self.server.forgetful && n % 5 == 1) {
            (call.before, call.after) = (None, None);
            self.untraced = true;
        } else if let Some(shown) = self.before_foreign {
            (call.before, call.after) = (Some((&shown).into()), Some(shown));
        }
        if call.lost {
            self.foreign = self.foreign.max(number);
        }
    }

    fn lose(&mut self, n: usize) {
        let call = &mut self.calls[n];
        if call.own.take().is_some() {
            call.lost = true;
            self.untraced = true;
            self.foreign = self.foreign.max(call.executed.unwrap_or(0));
        }
    }

    fn deliver(&mut self, n: usize) {
        if self.calls[n].executed.is_none() {
            return;
        }
        let Call { kind, own, sent, before, lost, after, .. } = self.calls.swap_remove(n);
        if lost {
            return;
        }
        let evidence = match kind {
            Step::Write => written(WccData { before, after }, &self.pairs),
            Step::Link => linked(after),
            Step::Rename => renamed(),
            _ => stamps(before, after),
        };
        let attribution = match own {
            Some(own) => self.tracker.finish(own, &evidence),
            None => self.tracker.observe(&after.unwrap(), sent),
        };
        self.process(attribution);
    }

    fn process(&mut self, attribution: Attribution) {
        if attribution == Attribution::Foreign {
            let may_err = self.untraced || self.returns_to_mtime && self.moves_ctime;
            assert!(self.foreign > 0 || may_err, "no other client changed it");
            self.fetched = self.changes;
        }
    }

    /// Answers all calls in some order, and opens the file.
    fn settle(&mut self, order: &mut impl FnMut() -> usize) {
        self.step(Step::ForeignEnds);
        while !self.calls.is_empty() {
            self.step(Step::Execute(order()));
            self.step(Step::Deliver(order()));
        }
        let sent = self.tracker.moment();
        let attribution = self.tracker.observe(&self.object, sent);
        self.process(attribution);
        assert_ne!(attribution, Attribution::Undecided);
        assert_eq!(self.tracker.known(), (&self.object).into());
    }
}

fn run(server: Server, steps: Vec<Step>, seed: usize) -> World {
    let mut world = World::new(server);
    steps.into_iter().for_each(|step| world.step(step));
    let mut state = seed;
    world.settle(&mut || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        state >> 33
    });
    world
}

proptest! {
    #[test]
    fn own_changes_never_count_as_foreign(
        server in servers(),
        steps in steps(false),
        seed in any::<usize>(),
    ) {
        let world = run(server, steps, seed);
        prop_assert_eq!(world.foreign, 0);
    }

    #[test]
    fn foreign_changes_are_found(
        steps in steps(true),
        forgetful in any::<bool>(),
        seed in any::<usize>(),
    ) {
        let (distinct, locked, returns_before, same_mtime) = (true, true, true, true);
        let server = Server { distinct, locked, returns_before, forgetful, same_mtime };
        let world = run(server, steps, seed);
        prop_assert!(world.fetched >= world.foreign);
    }
}
