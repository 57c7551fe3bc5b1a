//! Stamps of an inode that never claim more than the data shows.
//!
//! A client keeps what it has cached of a file for as long as size, mtime and ctime stay what they
//! were when the data was read. The kernel renews both times when a write *begins*. Attributes read
//! while a change is at work may so have the times that the change leaves behind, and the data read
//! with them is from before it: a client that caches the two together never sees the change.
//!
//! So while a change is at work, everybody else sees a [`Stamp`] from before it, which is
//! [published](ChangeStamps::begin_exclusive) for that time. [`ChangeStamps::seen`] decides which
//! of the two counts, after the attributes were read and never before: a change that is at work
//! then, or has ended since shortly before the reading, hides what was read.
//!
//! Changes that share the inode take effect one after the other, each at its end. The one that ends
//! last leaves the kernel's times behind. The others' ends are shown with a ctime of their own, one
//! nanosecond after the one shown before: later than what is known to clients, and earlier than any
//! time that the kernel has given the inode since, because the kernel's clock goes on by more than
//! that between two calls. So no stamp that clients have seen during the changes equals the one
//! that the last change leaves. The length shown is that of the changes that have ended: the one
//! that the kernel shows may include data of a change at work, which no client has.
//!
//! The kernel's clock may go on in steps: of 1 to 10 ms before Linux 6.13, of one or two seconds on
//! some file systems. Two changes within a step have one ctime, and a client that has read in
//! between would never see the second. So a change that ends with a ctime which was shown before is
//! shown with a later one, [`STEP`] after it, until the kernel's has passed that. Only this server
//! knows it. Where another client than the one that made the change has seen the ctime, the
//! kernel's is to be renewed once its clock has gone on ([`ChangeStamps::is_behind`]).
//!
//! A local process may change the inode meanwhile, and its change counts at once. What was read is
//! its work where no change of this server explains it: a length that none of those at work leads
//! to ([`Lengths`]), or a time at which none of their system calls can have stamped the inode
//! ([`CallTimes`]). Such attributes are shown with a ctime made as above.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::ClientId;
use crate::sync::{Mutex, MutexGuard};

/// The longest time from the start of a system call until it stamps the inode, or from the end of
/// one that it waits for: a processor, a lock of the kernel's, the journal. Also the longest time
/// from an end until it is noted. A stamp at another time is taken for that of a local process. If
/// it is not, clients read again what they have cached, and no reply is wrong.
const STAMP_DELAY: Duration = Duration::from_millis(100);

/// The time from a ctime that was shown to that of the next change, where the kernel has given both
/// the same. There is room in it for the stamps between the changes of one turn.
const STEP: Duration = Duration::from_micros(1);

/// The longest step of a kernel's clock for files: of vfat, two seconds.
const CLOCK_STEP_MAX: Duration = Duration::from_secs(2);

/// Attempts to renew a ctime, one in a second. The clock has gone on by the third, but where the
/// system refuses it, or keeps no ctime, none succeeds.
const RENEWALS_MAX: u8 = 4;

/// Seconds since 1970 and nanoseconds below 1,000,000,000.
pub type StampTime = (i64, u32);

/// Nanoseconds since 1970.
fn nanoseconds((seconds, nanoseconds): StampTime) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

/// The attributes by which a client detects a change of an inode (RFC 1813 §2.6, `wcc_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Length in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: StampTime,
    /// Last change of data or attributes.
    pub ctime: StampTime,
}

impl Stamp {
    /// The same with the first times after `earlier`. The mtime is one of these too: the kernel's
    /// may be that of a change that was at work meanwhile. A client that had it would take that
    /// change for one of attributes alone when it next sees another ctime, after a LINK of its own.
    fn right_after(self, earlier: &Self) -> Self {
        let ctime = after(earlier.ctime, 1);
        Self { mtime: ctime, ctime, ..self }
    }
}

/// The time so many nanoseconds, less than a second, after `earlier`.
fn after((seconds, nanoseconds): StampTime, more: u32) -> StampTime {
    match nanoseconds + more {
        sum @ ..1_000_000_000 => (seconds, sum),
        sum => (seconds.saturating_add(1), sum - 1_000_000_000),
    }
}

/// The lengths in bytes that a change may give an inode, besides the one it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    min: u64,
    max: u64,
}

impl Lengths {
    /// Those of a change that keeps the length.
    pub const KEPT: Self = Self { min: u64::MAX, max: 0 };
    /// Those of a change of a directory, whose length is the file system's affair.
    pub const ANY: Self = Self { min: 0, max: u64::MAX };

    /// Those of a WRITE up to `end`.
    #[must_use]
    pub fn up_to(end: u64) -> Self {
        Self { min: u64::MAX, max: end }
    }

    /// Those of a change that sets the length.
    #[must_use]
    pub fn set_to(len: u64) -> Self {
        Self { min: len, max: len }
    }

    /// Those of two changes together.
    fn and(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Whether such changes may lead from the length `from` to the length `to`.
    fn lead(self, from: u64, to: u64) -> bool {
        (self.min.min(from)..=self.max.max(from)).contains(&to)
    }
}

/// The attributes before and after a change, as `wcc_data` returns them. Nothing but the change
/// lies between the two.
pub type Pair = (Stamp, Stamp);

/// The stamps between `count` changes that were made one after the other and together have this
/// pair: `count - 1` of them, each one nanosecond after the one before, so that the pairs form a
/// chain and none covers another's change. All are those of the pair if the kernel's clock has not
/// gone on, as they would have been with a look after each change. `None` if there is no room.
#[must_use]
pub fn stamps_between((before, after): Pair, count: usize) -> Option<Vec<Stamp>> {
    let between = count.saturating_sub(1);
    if before == after {
        return Some(vec![after; between]);
    }
    let next = |stamp: &Stamp| Some(after.right_after(stamp));
    let stamps: Vec<_> = std::iter::successors(next(&before), next).take(between).collect();
    let has_room = stamps.last().is_none_or(|last| after.ctime > last.ctime);
    has_room.then_some(stamps)
}

/// Clients that have seen a stamp, or have made a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// None.
    #[default]
    None,
    /// One.
    One(ClientId),
    /// Several, or not known which.
    Many,
}

impl Clients {
    /// These and another; 0 for one that is not known.
    #[must_use]
    pub fn and(self, client: ClientId) -> Self {
        match self {
            _ if client == 0 => Self::Many,
            Self::None => Self::One(client),
            Self::One(one) if one == client => self,
            Self::One(_) | Self::Many => Self::Many,
        }
    }

    fn and_all(self, others: Self) -> Self {
        match others {
            Self::None => self,
            Self::One(one) => self.and(one),
            Self::Many => Self::Many,
        }
    }

    /// Whether there may be one among them that is not the only one of `others`.
    fn has_other_than(self, others: Self) -> bool {
        match (self, others) {
            (Self::None, _) => false,
            (Self::One(one), Self::One(other)) => one != other,
            (Self::One(_) | Self::Many, _) => true,
        }
    }
}

/// The mtime that a change leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtime {
    /// The kernel renews it with the ctime: data or names have changed.
    Renewed,
    /// The one that the inode had.
    Kept,
    /// One that the change sets.
    Set,
}

/// The authors of a change and what it does to the mtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Those that have made it; several if WRITEs were made as one.
    pub by: Clients,
    /// See there.
    pub mtime: Mtime,
}

/// Counts the changes that have ended or are about to, of all inodes.
#[derive(Debug, Default)]
pub struct ChangeClock(AtomicU64);

/// A point on a [`ChangeClock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl ChangeClock {
    /// A clock at its beginning.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The moment now, to be taken before attributes are read.
    pub fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::SeqCst))
    }

    /// The moment of an end: not before any that [`Self::now`] has returned so far, and before all
    /// that it will return.
    fn end(&self) -> Moment {
        Moment(self.0.fetch_add(1, Ordering::SeqCst))
    }

    /// A moment after all that [`Self::now`] has returned so far.
    fn next(&self) -> Moment {
        Moment(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// Which stamp of one inode others may see.
#[derive(Debug, Default)]
pub struct ChangeStamps {
    state: Mutex<State>,
    /// Renewals that are to be attempted, see [`Self::is_behind`].
    renewals: AtomicU8,
}

#[derive(Debug, Default)]
struct State {
    /// Changes at work: one alone, or any number that share the inode.
    at_work: usize,
    /// Lengths and times that those can give the inode; kept when the last one has ended.
    own: Option<Own>,
    /// The stamp shown while a change is in progress. Kept after it, for replies whose attributes
    /// were read before it ended.
    shown: Option<Shown>,
    /// When the last change ended.
    ended: Option<Moment>,
    /// The stamp that is shown in the place of the kernel's, of an earlier time.
    raised: Option<Raised>,
    /// It is of a change in progress that no [`ChangeStamps::settle`] has followed.
    is_unsettled: bool,
    /// Clients that have seen the present stamp, or one since the last change that has settled.
    seen_by: Clients,
}

/// The stamp of a change whose ctime the kernel had given to one before it.
#[derive(Clone, Copy, Debug)]
struct Raised {
    stamp: Stamp,
    /// The kernel's.
    live: Stamp,
}

/// Lengths and times that the changes at work can give the inode.
#[derive(Clone, Debug)]
struct Own {
    lengths: Lengths,
    /// `None` before the first system call.
    calls: Option<CallTimes>,
}

/// When system calls of the changes at work can have stamped the inode: within [`STAMP_DELAY`] of
/// the start of one, or of the end of one, for which another may have waited. In nanoseconds since
/// 1970.
#[derive(Clone, Debug)]
struct CallTimes {
    /// The last time before `until` in which none can have.
    pause: Range<i128>,
    until: i128,
}

/// The stamp that others see while a change is at work.
#[derive(Clone, Copy, Debug)]
struct Shown {
    stamp: Stamp,
    /// The kernel's, of which this was made.
    live: Stamp,
    /// From before that was read.
    since: Moment,
}

impl ChangeStamps {
    /// Begins a change that excludes all others and may give the inode `lengths`. `before` is the
    /// stamp from before it, read after `since` while the caller excluded the others. Returns it as
    /// it is shown meanwhile.
    pub fn begin_exclusive(&self, (before, since): (Stamp, Moment), lengths: Lengths) -> Stamp {
        let mut state = self.lock();
        debug_assert_eq!(state.at_work, 0, "two changes at once, one of them exclusive");
        let stamp = self.visible(&mut state, before);
        state.begin_one(Shown { stamp, live: before, since }, lengths);
        stamp
    }

    /// Begins a change that shares the inode with others begun by this method and may give it
    /// `lengths`. `look` reads the attributes, at once; `stamp` is theirs, read after a moment.
    /// Returns what it read and the stamp that is shown meanwhile.
    ///
    /// # Errors
    /// The errors of `look`; no change has begun then.
    pub fn begin_shared<A, E>(
        &self,
        lengths: Lengths,
        look: impl FnOnce() -> Result<A, E>,
        stamp: impl FnOnce(&A) -> (Stamp, Moment),
    ) -> Result<(A, Stamp), E> {
        // Under the lock: no change may end between reading the first stamp and publishing it.
        let mut state = self.lock();
        let seen = look()?;
        let shown = match state.shown {
            Some(shown) if state.at_work > 0 => shown,
            _ => {
                let (live, since) = stamp(&seen);
                Shown { stamp: self.visible(&mut state, live), live, since }
            }
        };
        state.begin_one(shown, lengths);
        Ok((seen, shown.stamp))
    }

    /// Notes that a system call of a change at work begins or has ended. `now` reads the clock by
    /// which the kernel stamps inodes.
    pub fn note_call(&self, now: impl FnOnce() -> StampTime) {
        // Under the lock, so that the times are in order.
        if let Some(own) = &mut self.lock().own {
            own.note_call(nanoseconds(now()));
        }
    }

    /// The stamps before and after a change that is alone; `None` of the latter if `now`, the
    /// kernel's, could not be read. The former is not the one that the change began with if a local
    /// process's change was shown meanwhile: the pair must not cover that. `done` is `None` for a
    /// change that was refused, and has changed nothing. `clock` is that by which the kernel stamps
    /// inodes.
    pub fn pair_exclusive(
        &self,
        done: Option<Done>,
        now: Option<Stamp>,
        clock: impl FnOnce() -> StampTime,
    ) -> (Stamp, Option<Stamp>) {
        let mut state = self.lock();
        let shown = state.shown.expect("it was published when the change began");
        let after = now.map(|now| match done {
            Some(done) if !is_of_old(&now, &shown, clock) => {
                self.settle(&mut state, &shown, now, done)
            }
            Some(_) | None => self.visible(&mut state, now),
        });
        (shown.stamp, after)
    }

    /// Ends a change of data by these clients that shares the inode and has all of it in place, up
    /// to the offset `end`. `look` reads the stamp, at once. Returns the stamps before and after,
    /// or `None` if `look` failed.
    pub fn end_shared(
        &self,
        clock: &ChangeClock,
        by: Clients,
        end: u64,
        look: impl FnOnce() -> Option<Stamp>,
    ) -> Option<Pair> {
        // Under the lock: no other change may end between reading the stamp and publishing it.
        let mut state = self.lock();
        let mut shown = state.shown.expect("it was published when the change began");
        // Attributes that others read from here on may be later than those that are read here.
        let since = clock.next();
        let now = look();
        let after = if state.at_work > 1 {
            let live = now.unwrap_or(shown.live);
            if live != shown.live && !state.explains(&shown.stamp, &live) {
                // A local process's change comes first, so that the pair does not cover it.
                shown.stamp = live.right_after(&shown.stamp);
            }
            let size = shown.stamp.size.max(end).min(live.size);
            let stamp = Stamp { size, ..shown.stamp }.right_after(&shown.stamp);
            let since = if now.is_some() { since } else { shown.since };
            state.show(Shown { stamp, live, since });
            state.seen_by = state.seen_by.and_all(by);
            now.map(|_| stamp)
        } else {
            let done = Done { by, mtime: Mtime::Renewed };
            now.map(|now| self.settle(&mut state, &shown, now, done))
        };
        self.end_one(&mut state, clock);
        after.map(|after| (shown.stamp, after))
    }

    /// Ends a change that is alone, or one that shares the inode and has changed nothing.
    pub fn end(&self, clock: &ChangeClock) {
        self.end_one(&mut self.lock(), clock);
    }

    /// The stamp for a reply to `client`, of one that was read after `since`: itself, unless it may
    /// be that of a change that was at work when it was read, or has the time of one before it.
    pub fn seen(&self, read: Stamp, since: Moment, client: ClientId) -> Stamp {
        let mut state = self.lock();
        state.seen_by = state.seen_by.and(client);
        let has_ended = state.ended.is_some_and(|ended| ended >= since);
        let shown = match state.shown {
            Some(shown) if state.at_work > 0 || has_ended => shown,
            _ => return self.visible(&mut state, read),
        };
        let is_newer = shown.since > since || read.ctime < shown.live.ctime;
        if is_newer || read == shown.live || state.explains(&shown.stamp, &read) {
            return shown.stamp;
        }
        let stamp = read.right_after(&shown.stamp);
        if state.at_work > 0 {
            state.show(Shown { stamp, live: read, since });
        }
        stamp
    }

    /// Whether a change hides what was read after `since`, or may.
    pub fn may_hide(&self, since: Moment) -> bool {
        let state = self.lock();
        state.at_work > 0 || state.ended.is_some_and(|ended| ended >= since)
    }

    /// Whether the kernel's ctime was shown to a client before a change by another, which left it
    /// as it was. Until it is renewed, only this server distinguishes the two.
    pub fn is_behind(&self) -> bool {
        self.renewals.load(Ordering::Relaxed) > 0
    }

    /// Notes that the kernel's ctime is about to be renewed, within a change that is refused.
    /// `false` if that is not needed.
    pub fn begin_renewal(&self) -> bool {
        let less = |renewals: u8| renewals.checked_sub(1);
        self.renewals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// The stamp after a change, all of which is done. `now` is the kernel's.
    fn settle(&self, state: &mut State, shown: &Shown, now: Stamp, done: Done) -> Stamp {
        let seen_by = std::mem::replace(&mut state.seen_by, done.by);
        state.is_unsettled = false;
        if now.ctime > shown.stamp.ctime {
            state.raised = None;
            self.renewals.store(0, Ordering::Relaxed);
            return now;
        }
        if seen_by.has_other_than(done.by) {
            self.renewals.store(RENEWALS_MAX, Ordering::Relaxed);
        }
        let ctime = after(shown.stamp.ctime, STEP.subsec_nanos());
        let mtime = match done.mtime {
            Mtime::Renewed => ctime,
            Mtime::Kept if now.mtime == shown.live.mtime => shown.stamp.mtime,
            Mtime::Kept | Mtime::Set => now.mtime,
        };
        let stamp = Stamp { size: now.size, mtime, ctime };
        state.raised = Some(Raised { stamp, live: now });
        stamp
    }

    fn end_one(&self, state: &mut State, clock: &ChangeClock) {
        state.at_work -= 1;
        state.ended = Some(clock.end());
        // The last one was not performed: what those before it have shown is all that there is.
        if state.at_work == 0 && std::mem::take(&mut state.is_unsettled) {
            self.renewals.store(RENEWALS_MAX, Ordering::Relaxed);
        }
    }

    /// The stamp to be shown for `live`, the kernel's, while no change is at work.
    fn visible(&self, state: &mut State, live: Stamp) -> Stamp {
        let Some(raised) = &mut state.raised else { return live };
        if live.ctime != raised.live.ctime {
            self.renewals.store(0, Ordering::Relaxed);
            if live.ctime > raised.stamp.ctime {
                state.raised = None;
                return live;
            }
            // A local process's change, or a renewal, after the clock was set back.
            raised.stamp.ctime = after(raised.stamp.ctime, 1);
            raised.live.ctime = live.ctime;
        }
        let is_kept = live.mtime == raised.live.mtime;
        let mtime = if is_kept { raised.stamp.mtime } else { live.mtime };
        Stamp { size: live.size, mtime, ctime: raised.stamp.ctime }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn begin_one(&mut self, shown: Shown, lengths: Lengths) {
        self.own = Some(match self.own.take() {
            Some(own) if self.at_work > 0 => Own { lengths: own.lengths.and(lengths), ..own },
            _ => Own { lengths, calls: None },
        });
        self.shown = Some(shown);
        self.at_work += 1;
    }

    /// Shows a stamp from now on. One of a time that the kernel has not given the inode yet stays
    /// shown until it has.
    fn show(&mut self, shown: Shown) {
        let Shown { stamp, live, .. } = shown;
        self.shown = Some(shown);
        if stamp.ctime > live.ctime {
            self.raised = Some(Raised { stamp, live });
            self.is_unsettled = true;
        }
    }

    /// Whether the changes at work may have made `read` out of `shown`.
    fn explains(&self, shown: &Stamp, read: &Stamp) -> bool {
        self.own.as_ref().is_some_and(|Own { lengths, calls }| {
            let is_in_time = |calls: &CallTimes| calls.contain(nanoseconds(read.ctime));
            calls.as_ref().is_some_and(is_in_time) && lengths.lead(shown.size, read.size)
        })
    }
}

impl Own {
    fn note_call(&mut self, now: i128) {
        let delay = i128::try_from(STAMP_DELAY.as_nanos()).expect("100 ms");
        let pause = match self.calls.take() {
            None => i128::MIN..now - delay,
            Some(CallTimes { pause, until }) => match until + 1..now - delay {
                next if !next.is_empty() => next,
                // The clock was set back.
                _ if now < pause.end => 0..0,
                _ => pause,
            },
        };
        self.calls = Some(CallTimes { pause, until: now + delay });
    }
}

impl CallTimes {
    fn contain(&self, time: i128) -> bool {
        time <= self.until && !self.pause.contains(&time)
    }
}

/// Whether nothing can have given the inode this stamp since the change began with it: an operation
/// that succeeds and changes nothing.
fn is_of_old(now: &Stamp, shown: &Shown, clock: impl FnOnce() -> StampTime) -> bool {
    let age = || nanoseconds(clock()) - nanoseconds(now.ctime);
    let step_max = i128::try_from(CLOCK_STEP_MAX.as_nanos()).expect("two seconds");
    *now == shown.live && age() > step_max
}

#[cfg(shuttle)]
#[cfg(test)]
mod interleavings;
#[cfg(not(shuttle))]
#[cfg(test)]
mod tests;
