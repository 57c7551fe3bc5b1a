//! Stamps of an inode that never claim more than the data shows.
//!
//! A client keeps what it has cached of a file for as long as size, mtime and ctime stay what they
//! were when the data was read. The kernel renews both times when a write *begins*. Attributes read
//! while a change is at work may so have the times that the change leaves behind, and the data read
//! with them is from before it: a client that caches the two together never sees the change.
//!
//! So while a change is at work, everybody else sees a [`Stamp`] from before it, which is
//! [published](ChangeStamps::begin_alone) for that time. [`ChangeStamps::seen`] decides which of the
//! two counts, after the attributes were read and never before: a change that is at work then, or has
//! ended since shortly before the reading, hides what was read.
//!
//! Changes that share the inode take effect one after the other, each at its end. The one that ends
//! last leaves the kernel's times behind. The others' ends are shown with a ctime of their own, one
//! nanosecond after the one shown before: later than what is known to clients, and earlier than any
//! time that the kernel has given the inode since, because the kernel's clock goes on by more than
//! that between two calls. So no stamp that clients have seen during the changes equals the one
//! that the last change leaves.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{Mutex, MutexGuard};

/// Seconds since 1970 and nanoseconds below 1,000,000,000.
pub type StampTime = (i64, u32);

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
    /// Whether a client that knows `earlier` sees by the order of the two what has changed since.
    fn follows(&self, earlier: &Self) -> bool {
        self == earlier || self.ctime > earlier.ctime
    }

    /// The same with the first ctime after `earlier`.
    fn right_after(self, earlier: &Self) -> Self {
        let (seconds, nanoseconds) = earlier.ctime;
        let ctime = match nanoseconds {
            ..999_999_999 => (seconds, nanoseconds + 1),
            999_999_999.. => (seconds.saturating_add(1), 0),
        };
        Self { ctime, ..self }
    }
}

/// The attributes before and after a change, as `wcc_data` returns them. Nothing but the change lies
/// between the two.
pub type Pair = (Stamp, Stamp);

/// Counts the changes that have ended, of all inodes.
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
}

/// Which stamp of one inode others may see.
#[derive(Debug, Default)]
pub struct ChangeStamps(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Changes at work: one alone, or any number that share the inode.
    at_work: usize,
    /// The stamp shown while a change is in progress. Kept after it, for replies whose attributes
    /// were read before it ended.
    shown: Option<Stamp>,
    /// When the last change ended.
    ended: Option<Moment>,
}

impl ChangeStamps {
    /// Begins a change that has the inode to itself. `before` is the stamp from before it, read while
    /// the caller kept all other changes away.
    pub fn begin_alone(&self, before: Stamp) {
        let mut state = self.lock();
        debug_assert_eq!(state.at_work, 0, "two changes at once, one of them alone");
        state.at_work = 1;
        state.shown = Some(before);
    }

    /// Begins a change that shares the inode with others begun by this method. `look` reads the
    /// attributes, at once. Returns what it read and the stamp that is shown meanwhile.
    ///
    /// # Errors
    /// The errors of `look`; no change has begun then.
    pub fn begin_shared<A, E>(
        &self,
        look: impl FnOnce() -> Result<A, E>,
        stamp: impl FnOnce(&A) -> Stamp,
    ) -> Result<(A, Stamp), E> {
        // Under the lock: no change may end between reading the first stamp and publishing it.
        let mut state = self.lock();
        let seen = look()?;
        let shown = match state.shown {
            Some(shown) if state.at_work > 0 => shown,
            _ => stamp(&seen),
        };
        state.shown = Some(shown);
        state.at_work += 1;
        Ok((seen, shown))
    }

    /// Ends a change that shares the inode and has all its data in place. `look` reads the stamp,
    /// at once; `renew` has the kernel renew the ctime, which is needed where its clock is so
    /// coarse, or was set back, that the stamp is not later than the one shown. Returns the stamps
    /// before and after, or `None` where no pair would be true: `look` failed, or the clock stands
    /// still.
    pub fn end_shared(
        &self,
        clock: &ChangeClock,
        look: impl Fn() -> Option<Stamp>,
        renew: impl FnOnce(),
    ) -> Option<Pair> {
        // Under the lock: no other change may end between reading the stamp and publishing it.
        let mut state = self.lock();
        let shown = state.shown.expect("it was published when the change began");
        let mut now = look();
        let after = if state.at_work > 1 {
            let after = now.unwrap_or(shown).right_after(&shown);
            state.shown = Some(after);
            now.map(|_| after)
        } else {
            if now.is_some_and(|now| !now.follows(&shown)) {
                renew();
                now = look();
            }
            now
        };
        state.end_one(clock);
        after.filter(|after| after.follows(&shown)).map(|after| (shown, after))
    }

    /// Ends a change that is alone, or one that shares the inode and has changed nothing.
    pub fn end(&self, clock: &ChangeClock) {
        self.lock().end_one(clock);
    }

    /// The stamp for a reply, of one that was read after `since`: itself, unless it may be that of a
    /// change that was at work when it was read.
    pub fn seen(&self, read: Stamp, since: Moment) -> Stamp {
        let state = self.lock();
        let may_be_torn = state.at_work > 0 || state.ended.is_some_and(|ended| ended >= since);
        match state.shown {
            Some(shown) if may_be_torn => shown,
            _ => read,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end_one(&mut self, clock: &ChangeClock) {
        self.at_work -= 1;
        self.ended = Some(clock.end());
    }
}

#[cfg(shuttle)]
#[cfg(test)]
mod interleavings;
#[cfg(not(shuttle))]
#[cfg(test)]
mod tests;
