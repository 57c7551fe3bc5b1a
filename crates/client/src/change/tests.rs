use proptest::prelude::*;
use proto::nfs3::{DeviceSpec, FileType, Time};

use super::*;

fn attributes(size: u64, mtime: u32, ctime: u32) -> Attributes {
    Attributes {
        file_type: FileType::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size,
        used: size,
        rdev: DeviceSpec::default(),
        fsid: 1,
        fileid: 2,
        atime: Time::default(),
        mtime: Time { seconds: mtime, nseconds: 0 },
        ctime: Time { seconds: ctime, nseconds: 0 },
    }
}

/// The object after the `n`th change of a file that grows.
fn state(n: u32) -> Attributes {
    attributes(u64::from(n), n, n)
}

fn pair(before: u32, after: u32) -> WccData {
    WccData { before: Some((&state(before)).into()), after: Some(state(after)) }
}

fn only_after(after: u32) -> WccData {
    WccData { before: None, after: Some(state(after)) }
}

#[test]
fn writes_answered_in_any_order_are_own() {
    let mut tracker = ChangeTracker::new(&state(0));
    let calls = [(); 4].map(|()| tracker.begin());
    let mut calls = calls.into_iter();
    let mut finish = |tracker: &mut ChangeTracker, before| {
        tracker.finish(calls.next().unwrap(), &pair(before, before + 1))
    };
    assert_eq!(finish(&mut tracker, 2), Verdict::Undecided);
    assert_eq!(finish(&mut tracker, 0), Verdict::Undecided);
    assert_eq!(finish(&mut tracker, 3), Verdict::Undecided);
    assert_eq!(finish(&mut tracker, 1), Verdict::Own);
    assert_eq!(tracker.known(), (&state(4)).into());
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(4), sent), Verdict::Unchanged);
}

#[test]
fn a_setattr_behind_writes_is_own_whatever_comes_first() {
    // As tar does: the data, then the time of the archive, which lies in the past.
    let dated = attributes(2, 1, 3);
    let setattr = WccData { before: Some((&state(2)).into()), after: Some(dated) };
    for setattr_first in [false, true] {
        let mut tracker = ChangeTracker::new(&state(0));
        let writes = [tracker.begin(), tracker.begin()];
        let dating = tracker.begin();
        let [one, two] = writes;
        if setattr_first {
            assert_eq!(tracker.finish(dating, &setattr), Verdict::Undecided);
            assert_eq!(tracker.finish(two, &pair(1, 2)), Verdict::Undecided);
            assert_eq!(tracker.finish(one, &pair(0, 1)), Verdict::Own);
        } else {
            assert_eq!(tracker.finish(one, &pair(0, 1)), Verdict::Own);
            assert_eq!(tracker.finish(two, &pair(1, 2)), Verdict::Own);
            assert_eq!(tracker.finish(dating, &setattr), Verdict::Own);
        }
        // The same attributes once more do no harm, nor do those of before.
        let sent = tracker.moment();
        assert_eq!(tracker.observe(&dated, sent), Verdict::Unchanged);
        let commit = tracker.begin();
        let same = WccData { before: Some((&dated).into()), after: Some(dated) };
        assert_eq!(tracker.finish(commit, &same), Verdict::Unchanged);
        assert_eq!(tracker.observe(&state(2), sent), Verdict::Undecided);
        assert_eq!(tracker.known(), (&dated).into());
    }
}

#[test]
fn a_change_between_two_own_ones_is_foreign() {
    for reversed in [false, true] {
        let mut tracker = ChangeTracker::new(&state(0));
        let (one, two) = (tracker.begin(), tracker.begin());
        if reversed {
            assert_eq!(tracker.finish(two, &pair(2, 3)), Verdict::Undecided);
            assert_eq!(tracker.finish(one, &pair(0, 1)), Verdict::Foreign);
        } else {
            assert_eq!(tracker.finish(one, &pair(0, 1)), Verdict::Own);
            assert_eq!(tracker.finish(two, &pair(2, 3)), Verdict::Foreign);
        }
        assert_eq!(tracker.known(), (&state(3)).into());
        let sent = tracker.moment();
        assert_eq!(tracker.observe(&state(3), sent), Verdict::Unchanged);
    }
}

#[test]
fn a_gap_is_foreign_while_a_writer_goes_on() {
    let mut tracker = ChangeTracker::new(&state(0));
    let first = tracker.begin();
    let second = tracker.begin();
    assert_eq!(tracker.finish(second, &pair(2, 3)), Verdict::Undecided);
    // Later calls cannot have led up to what was seen before they began.
    let later = tracker.begin();
    assert_eq!(tracker.finish(first, &pair(0, 1)), Verdict::Foreign);
    assert_eq!(tracker.finish(later, &pair(3, 4)), Verdict::Own);
}

#[test]
fn a_size_may_come_back_within_a_tick() {
    // The server's clock stands still while a file is written, cut off and written again.
    let [empty, half, full] = [0, 4, 8].map(|size| attributes(size, 1, 1));
    let step =
        |from: &Attributes, to: Attributes| WccData { before: Some(from.into()), after: Some(to) };
    let mut tracker = ChangeTracker::new(&empty);
    let [write, cut, last, commit] = [(); 4].map(|()| tracker.begin());
    assert_eq!(tracker.finish(last, &step(&empty, full)), Verdict::Own);
    assert_eq!(tracker.finish(cut, &step(&half, empty)), Verdict::Undecided);
    assert_eq!(tracker.finish(write, &step(&empty, half)), Verdict::Unchanged);
    assert_eq!(tracker.finish(commit, &step(&half, half)), Verdict::Undecided);
    assert_eq!(tracker.known(), (&full).into());
}

#[test]
fn a_call_that_changes_nothing_shows_what_others_changed() {
    let mut tracker = ChangeTracker::new(&state(0));
    let commit = tracker.begin();
    assert_eq!(tracker.finish(commit, &pair(1, 1)), Verdict::Foreign);
    assert_eq!(tracker.known(), (&state(1)).into());
}

#[test]
fn a_change_between_two_opens_is_foreign() {
    let mut tracker = ChangeTracker::new(&state(0));
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(1), sent), Verdict::Foreign);
    assert_eq!(tracker.observe(&state(1), sent), Verdict::Unchanged);
    // Even if the server's clock went back, or a file was put in place of another.
    assert_eq!(tracker.observe(&state(0), sent), Verdict::Foreign);
    assert_eq!(tracker.known(), (&state(0)).into());
}

#[test]
fn what_is_seen_during_own_calls_tells_nothing() {
    let mut tracker = ChangeTracker::new(&state(0));
    let call = tracker.begin();
    let during = tracker.moment();
    assert_eq!(tracker.observe(&state(1), during), Verdict::Undecided);
    assert_eq!(tracker.known(), (&state(0)).into());
    assert_eq!(tracker.finish(call, &pair(0, 1)), Verdict::Own);
    // Sent before the write was done, and answered after.
    assert_eq!(tracker.observe(&state(0), during), Verdict::Undecided);
    assert_eq!(tracker.known(), (&state(1)).into());
    // Newer than all that this client did.
    assert_eq!(tracker.observe(&state(2), during), Verdict::Foreign);
}

#[test]
fn without_stamps_before_own_calls_are_trusted() {
    let mut tracker = ChangeTracker::new(&state(0));
    let (one, two) = (tracker.begin(), tracker.begin());
    assert_eq!(tracker.finish(two, &only_after(2)), Verdict::Own);
    assert_eq!(tracker.finish(one, &only_after(1)), Verdict::Unchanged);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(2), sent), Verdict::Unchanged);
    // The write of somebody else, to which no own one led.
    assert_eq!(tracker.observe(&state(3), sent), Verdict::Foreign);

    // Within one tick of the server's clock the later call is believed.
    let mut tracker = ChangeTracker::new(&state(0));
    let (one, two) = (tracker.begin(), tracker.begin());
    let tick = |size| WccData { before: None, after: Some(attributes(size, 1, 1)) };
    assert_eq!(tracker.finish(two, &tick(8)), Verdict::Own);
    assert_eq!(tracker.finish(one, &tick(4)), Verdict::Unchanged);
    assert_eq!(tracker.known(), (&attributes(8, 1, 1)).into());
}

#[test]
fn a_call_without_a_reply_is_not_trusted() {
    let mut tracker = ChangeTracker::new(&state(0));
    let lost = tracker.begin();
    let next = tracker.begin();
    assert_eq!(tracker.finish(next, &pair(1, 2)), Verdict::Undecided);
    drop(lost);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(2), sent), Verdict::Foreign);
    assert!(!tracker.is_active());

    // Neither is one whose reply says nothing.
    let mute = tracker.begin();
    assert_eq!(tracker.finish(mute, &WccData::default()), Verdict::Unchanged);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&state(3), sent), Verdict::Foreign);
}

#[test]
fn an_own_rename_moves_ctime_once() {
    let mut tracker = ChangeTracker::new(&state(1));
    let rename = tracker.begin();
    assert_eq!(tracker.finish_silent(rename), Verdict::Unchanged);
    let sent = tracker.moment();
    assert_eq!(tracker.observe(&attributes(1, 1, 2), sent), Verdict::Own);
    assert_eq!(tracker.observe(&attributes(1, 1, 3), sent), Verdict::Foreign);

    // With a write before it that is answered after it, and one behind it.
    let mut tracker = ChangeTracker::new(&state(0));
    let [before, rename, behind] = [(); 3].map(|()| tracker.begin());
    let written = WccData { before: Some((&attributes(1, 1, 2)).into()), after: Some(state(3)) };
    assert_eq!(tracker.finish(behind, &written), Verdict::Undecided);
    assert_eq!(tracker.finish_silent(rename), Verdict::Undecided);
    assert_eq!(tracker.finish(before, &pair(0, 1)), Verdict::Own);
    assert_eq!(tracker.known(), (&state(3)).into());
}

#[test]
fn too_many_islands_are_foreign() {
    let mut tracker = ChangeTracker::new(&state(0));
    let first = tracker.begin();
    for n in 0..=u32::try_from(ISLANDS_MAX).unwrap() {
        let call = tracker.begin();
        let verdict = tracker.finish(call, &pair(2 * n + 1, 2 * n + 2));
        let full = usize::try_from(n).unwrap() == ISLANDS_MAX;
        assert_eq!(verdict, if full { Verdict::Foreign } else { Verdict::Undecided });
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
    /// Every change has a ctime of its own.
    distinct: bool,
    /// The stamps before and after are taken while others are kept out.
    locked: bool,
    /// WRITE replies say what was before.
    says_before: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Truncate,
    SetTime,
    Commit,
    Getattr,
    /// The server looks at a call that it has, and takes the stamp before.
    Look(usize),
    /// The server carries out a call.
    Execute(usize),
    /// A reply arrives.
    Deliver(usize),
    /// Nobody waits for the reply any more; the server has carried the call out, or still will.
    Lose(usize),
    Foreign,
}

fn steps(foreign: bool) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Write),
        1 => Just(Step::Truncate),
        1 => Just(Step::SetTime),
        1 => Just(Step::Commit),
        2 => Just(Step::Getattr),
        3 => any::<usize>().prop_map(Step::Look),
        6 => any::<usize>().prop_map(Step::Execute),
        6 => any::<usize>().prop_map(Step::Deliver),
        u32::from(foreign) => Just(Step::Foreign),
        u32::from(foreign) => any::<usize>().prop_map(Step::Lose),
    ];
    proptest::collection::vec(step, 1..120)
}

fn servers() -> impl Strategy<Value = Server> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(distinct, locked, says_before)| {
        // Overlapping pairs, or none at all, cannot be told apart within a tick.
        Server { distinct: distinct || !locked || !says_before, locked, says_before }
    })
}

/// A call on its way.
struct Call {
    kind: Step,
    own: Option<OwnCall>,
    sent: Moment,
    before: Option<WccAttributes>,
    /// Without a reply, what it changes counts as foreign.
    lost: bool,
    /// Which of the object's changes it was; 0 for none.
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
    calls: Vec<Call>,
    tracker: ChangeTracker,
}

impl World {
    fn new(server: Server) -> Self {
        let object = attributes(10, 1, 1);
        let tracker = ChangeTracker::new(&object);
        let calls = Vec::new();
        Self { server, object, changes: 0, foreign: 0, fetched: 0, calls, tracker }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Look(n) => self.with_call(n, Self::look),
            Step::Execute(n) => self.with_call(n, Self::execute),
            Step::Deliver(n) => self.with_call(n, Self::deliver),
            Step::Lose(n) => self.with_call(n, Self::lose),
            Step::Foreign => {
                self.changes += 1;
                self.foreign = self.changes;
                self.object.size += 1;
                self.tick(true);
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

    fn look(&mut self, n: usize) {
        let (call, object) = (&mut self.calls[n], self.object);
        match (self.server.locked, call.executed.is_some()) {
            (true, _) => {}
            (false, false) => call.before = call.before.or(Some((&object).into())),
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
                self.object.mtime = Time::default();
            }
            _ => {}
        }
        let says_before = self.server.says_before || !matches!(kind, Step::Write);
        let call = &mut self.calls[n];
        let changed = before != (&self.object).into();
        self.changes += u32::from(changed);
        let number = if changed { self.changes } else { 0 };
        call.executed = Some(number);
        call.before = says_before.then(|| call.before.unwrap_or(before));
        call.after = Some(self.object);
        if call.lost {
            self.foreign = self.foreign.max(number);
        }
    }

    fn lose(&mut self, n: usize) {
        let call = &mut self.calls[n];
        if call.own.take().is_some() {
            call.lost = true;
            self.foreign = self.foreign.max(call.executed.unwrap_or(0));
        }
    }

    fn deliver(&mut self, n: usize) {
        if self.calls[n].executed.is_none() {
            return;
        }
        let Call { own, sent, before, lost, after, .. } = self.calls.swap_remove(n);
        if lost {
            return;
        }
        let verdict = match own {
            Some(own) => self.tracker.finish(own, &WccData { before, after }),
            None => self.tracker.observe(&after.unwrap(), sent),
        };
        self.hear(verdict);
    }

    fn hear(&mut self, verdict: Verdict) {
        if verdict == Verdict::Foreign {
            assert!(self.foreign > 0, "nobody else changed it");
            self.fetched = self.changes;
        }
    }

    /// Answers all calls in some order, and opens the file.
    fn settle(&mut self, order: &mut impl FnMut() -> usize) {
        while !self.calls.is_empty() {
            self.step(Step::Execute(order()));
            self.step(Step::Deliver(order()));
        }
        let sent = self.tracker.moment();
        let verdict = self.tracker.observe(&self.object, sent);
        self.hear(verdict);
        assert_ne!(verdict, Verdict::Undecided);
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
    fn own_changes_never_look_foreign(
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
        seed in any::<usize>(),
    ) {
        let server = Server { distinct: true, locked: true, says_before: true };
        let world = run(server, steps, seed);
        prop_assert!(world.fetched >= world.foreign);
    }
}
