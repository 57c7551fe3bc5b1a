//! The lock of an inode, under which it is changed, and the attributes that replies may have of it.
//!
//! A client keeps its cache if the attributes that it knows are those before its own change (RFC
//! 1813 §2.6, `wcc_data`). So nearly every change has the inode to itself from reading the
//! attributes before it to reading those after it. All others see the stamp from before it for that
//! long ([`io::ChangeStamps`]).
//!
//! WRITEs past the page cache would pay the disk's latency one after the other that way, which is
//! all they are slower by. They share the inode instead. Each takes effect at its end: the
//! attributes before it are those after the one that ended before it, and the replies form a chain
//! without a gap. A change by a local process during a WRITE is in its pair if nothing
//! distinguishes it (neither length nor time, [`io::ChangeStamps`]), also when the WRITE has the
//! inode to itself.
//!
//! LINK, RENAME and REMOVE change the link count and the ctime of an object whose lock they do not
//! take. A WRITE at work then may claim that ctime. No client loses by it: what it has cached of
//! the data is right, and the link count comes with every reply as it is now.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use io::{ChangeStamps, Clients, Done, Lengths, Mtime, Share, Stamp, StampTime};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::task::coop::unconstrained;

use crate::fs::{CLOCK, LiveAttributes, Status, attributes_of_linked_or_not};

/// The attributes of an object as a reply may have them: size and times never claim a change that
/// the data may not show yet. All else is as it was when they were read. Only the lock of an inode
/// makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes(LiveAttributes);

impl Attributes {
    /// The attributes of an inode that no export has open, so that no change is at work.
    pub(super) fn of_unlocked(live: LiveAttributes) -> Self {
        Self(live)
    }

    fn with(live: LiveAttributes, stamp: Stamp) -> Self {
        Self(live.with_stamp(stamp))
    }
}

impl Deref for Attributes {
    type Target = LiveAttributes;

    fn deref(&self) -> &LiveAttributes {
        &self.0
    }
}

/// Attributes of an object before and after a change to it (RFC 1813 §2.6, `wcc_data`). Both are of
/// the same change: no other operation of this server came between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wcc {
    /// Before the operation.
    pub(crate) before: Option<Attributes>,
    /// After it.
    pub(crate) after: Option<Attributes>,
}

impl Wcc {
    /// Divides the pair of a turn among the changes that were made in it, one after the other, into
    /// a chain: none covers the change of another client, nor what it has added to the length.
    /// `lengths` are those of the file after each. No attributes where there is no such chain,
    /// because the kernel's clock was set back.
    pub(crate) fn divided(self, lengths: &[u64]) -> impl Iterator<Item = Self> {
        let count = lengths.len();
        let stamps = self
            .before
            .zip(self.after)
            .map(|(before, after)| io::stamps_between((before.stamp(), after.stamp()), count));
        let whole = if stamps == Some(None) { Self::default() } else { self };
        let between: Vec<_> = stamps
            .flatten()
            .into_iter()
            .flatten()
            .zip(lengths)
            .map(|(stamp, &size)| Stamp { size: size.min(stamp.size), ..stamp })
            .collect();
        // The attributes after all, with the stamp between this change and the next.
        let after = move |place: usize| Some(Attributes::with(*whole.after?, *between.get(place)?));
        (0..count).map(move |place| {
            let before = place.checked_sub(1).and_then(&after);
            Self { before: before.or(whole.before), after: after(place).or(whole.after) }
        })
    }
}

/// The lock of one inode, taken in the order of arrival. Waiting blocks no thread.
#[derive(Default)]
pub(crate) struct InodeLock {
    order: Arc<RwLock<()>>,
    stamps: Arc<ChangeStamps>,
}

/// A place in the queue of an inode lock.
pub(crate) type Queued = Pin<Box<dyn Future<Output = ExclusiveGuard> + Send>>;

/// The exclusive lock of an inode, until it is dropped.
pub(crate) struct ExclusiveGuard {
    stamps: Arc<ChangeStamps>,
    has_begun: bool,
    _order: OwnedRwLockWriteGuard<()>,
}

impl InodeLock {
    /// Locks the inode for one change.
    pub(crate) async fn exclusive(&self) -> ExclusiveGuard {
        let order = Arc::clone(&self.order).write_owned().await;
        ExclusiveGuard { stamps: Arc::clone(&self.stamps), has_begun: false, _order: order }
    }

    /// A place in the queue of the lock from now on.
    pub(crate) fn queue(&self) -> Queued {
        let (order, stamps) = (Arc::clone(&self.order), Arc::clone(&self.stamps));
        // Whatever the budget of the task is, its first poll takes the place.
        let mut guard: Queued = Box::pin(unconstrained(async move {
            let order = order.write_owned().await;
            ExclusiveGuard { stamps, has_begun: false, _order: order }
        }));
        // If the lock is given to it before the task that waits polls it again, that poll returns
        // it.
        match guard.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Box::pin(std::future::ready(guard)),
            Poll::Pending => guard,
        }
    }

    /// Locks the inode for one change, if it is not locked.
    pub(crate) fn try_exclusive(&self) -> Option<ExclusiveGuard> {
        let order = Arc::clone(&self.order).try_write_owned().ok()?;
        Some(ExclusiveGuard { stamps: Arc::clone(&self.stamps), has_begun: false, _order: order })
    }

    /// Begins a change that shares the inode with others begun by this method and may give it
    /// `lengths`. `look` reads the attributes, at once.
    ///
    /// # Errors
    /// The errors of `look`.
    pub(crate) async fn share(
        &self,
        lengths: Lengths,
        look: impl FnOnce() -> Result<LiveAttributes, Status>,
    ) -> Result<Change, Status> {
        let order = Arc::clone(&self.order).read_owned().await;
        let stamp = |live: &LiveAttributes| (live.stamp(), live.since);
        let (live, shown) = self.stamps.begin_shared(lengths, look, stamp)?;
        let shared =
            SharedGuard { stamps: Arc::clone(&self.stamps), is_over: false, _order: order };
        Ok(Change { before: Attributes::with(live, shown), held: Held::Shared(shared) })
    }

    /// The attributes for a reply, of those that were read.
    pub(crate) fn attributes(&self, live: LiveAttributes) -> Attributes {
        let client = Share::current_client();
        Attributes::with(live, self.stamps.seen(live.stamp(), live.since, client))
    }

    /// Whether a change hides what was read then.
    pub(crate) fn may_hide(&self, live: &LiveAttributes) -> bool {
        self.stamps.may_hide(live.since)
    }

    /// Whether the kernel's ctime is to be renewed, see [`ChangeStamps::is_behind`].
    pub(crate) fn is_behind(&self) -> bool {
        self.stamps.is_behind()
    }

    /// See [`ChangeStamps::begin_renewal`].
    pub(crate) fn begin_renewal(&self) -> bool {
        self.stamps.begin_renewal()
    }

    /// Whether both are of one inode.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.order, &other.order)
    }

    /// Something to put the locks of several inodes in an order.
    pub(crate) fn rank(&self) -> usize {
        Arc::as_ptr(&self.order).addr()
    }
}

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        // Before the next change may begin.
        if self.has_begun {
            self.stamps.end(&CLOCK);
        }
    }
}

/// A change at work, with the attributes at its beginning.
pub(crate) struct Change {
    before: Attributes,
    held: Held,
}

/// The system calls of the changes of an inode.
pub(crate) struct SystemCalls(Arc<ChangeStamps>);

impl SystemCalls {
    /// Notes that one begins or has ended. Without this, all that others see of it is taken for the
    /// work of local processes.
    pub(crate) fn note(&self) {
        self.0.note_call(now);
    }
}

/// The time by the clock that the kernel stamps inodes by.
fn now() -> StampTime {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec, u32::try_from(now.tv_nsec).expect("below a second"))
}

enum Held {
    Exclusive(ExclusiveGuard),
    Shared(SharedGuard),
}

/// The shared lock of an inode, until it is dropped.
struct SharedGuard {
    stamps: Arc<ChangeStamps>,
    is_over: bool,
    _order: OwnedRwLockReadGuard<()>,
}

impl Change {
    /// Begins a change under the exclusive lock. It may give the inode `lengths`; `before` was read
    /// under the lock.
    pub(crate) fn begin(
        mut guard: ExclusiveGuard,
        before: LiveAttributes,
        lengths: Lengths,
    ) -> Self {
        let shown = guard.stamps.begin_exclusive((before.stamp(), before.since), lengths);
        guard.has_begun = true;
        Self { before: Attributes::with(before, shown), held: Held::Exclusive(guard) }
    }

    /// Where its system calls are noted.
    pub(crate) fn system_calls(&self) -> SystemCalls {
        let stamps = match &self.held {
            Held::Exclusive(guard) => &guard.stamps,
            Held::Shared(shared) => &shared.stamps,
        };
        SystemCalls(Arc::clone(stamps))
    }

    /// The attributes at its beginning, by which it is decided who may, and with which a refusal is
    /// answered.
    pub(crate) fn before(&self) -> &Attributes {
        &self.before
    }

    /// The reply of a change that was refused: nothing has changed.
    pub(crate) fn refused(&self) -> Wcc {
        Wcc { before: Some(self.before), after: Some(self.before) }
    }

    /// Ends the change, all of which is done, and which leaves such an mtime. `fd` is the object's,
    /// `O_PATH` or not. Returns the attributes before the change and after it. May block where
    /// `statx` does.
    pub(crate) fn end(self, fd: BorrowedFd<'_>, mtime: Mtime) -> Wcc {
        let by = Clients::None.and(Share::current_client());
        self.end_by(fd, 0, Done { by, mtime })
    }

    /// The same, of WRITEs of these clients up to the offset `written`; 0 if they have written
    /// nothing.
    pub(crate) fn end_written(self, fd: BorrowedFd<'_>, written: u64, by: Clients) -> Wcc {
        match self.held {
            Held::Exclusive(_) if written == 0 => {
                self.end_refused(attributes_of_linked_or_not(fd).ok())
            }
            _ => self.end_by(fd, written, Done { by, mtime: Mtime::Renewed }),
        }
    }

    fn end_by(self, fd: BorrowedFd<'_>, written: u64, done: Done) -> Wcc {
        // The kernel serializes the system calls of changes that share the inode: the next one may
        // start now.
        if matches!(self.held, Held::Shared(_)) {
            self.system_calls().note();
        }
        // A client may have removed the last name and hold the object open.
        let (begun, look) = (self.before, || attributes_of_linked_or_not(fd).ok());
        match self.held {
            Held::Exclusive(guard) => guard.end(begun, Some(done), look()),
            Held::Shared(shared) => shared.end(begun, written, done.by, look),
        }
    }

    /// Ends a change that was refused, with the attributes of the object now: nothing of it is
    /// done.
    pub(crate) fn end_refused(self, now: Option<LiveAttributes>) -> Wcc {
        match self.held {
            Held::Exclusive(guard) => guard.end(self.before, None, now),
            Held::Shared(_) => self.refused(),
        }
    }
}

impl ExclusiveGuard {
    /// `done` as for [`ChangeStamps::pair_exclusive`].
    fn end(self, begun: Attributes, done: Option<Done>, live: Option<LiveAttributes>) -> Wcc {
        let stamp = live.as_ref().map(LiveAttributes::stamp);
        let (before, after) = self.stamps.pair_exclusive(done, stamp, now);
        let before = Some(Attributes::with(*begun, before));
        Wcc { before, after: live.zip(after).map(|(live, after)| Attributes::with(live, after)) }
    }
}

impl SharedGuard {
    fn end(
        mut self,
        begun: Attributes,
        written: u64,
        by: Clients,
        look: impl FnOnce() -> Option<LiveAttributes>,
    ) -> Wcc {
        self.is_over = true;
        let mut live = None;
        let look = || {
            live = look();
            live.as_ref().map(LiveAttributes::stamp)
        };
        // A client that gets only the attributes after takes every change since its last GETATTR
        // for its own.
        let pair = self.stamps.end_shared(&CLOCK, by, written, look);
        live.zip(pair).map_or_else(Wcc::default, |(live, (before, after))| Wcc {
            before: Some(Attributes::with(*begun, before)),
            after: Some(Attributes::with(live, after)),
        })
    }
}

impl Drop for SharedGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.stamps.end(&CLOCK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::fs::attributes_of;

    const DONE: Done = Done { by: Clients::One(1), mtime: Mtime::Renewed };

    fn file() -> File {
        File::open("/proc/self/exe").unwrap()
    }

    /// Attributes with this size and a ctime to match, of an object that has a name.
    fn look(size: u32) -> Result<LiveAttributes, Status> {
        let named = attributes_of(file()).unwrap();
        let time = (5, size * 1000);
        Ok(named.with_stamp(Stamp { size: size.into(), mtime: time, ctime: time }))
    }

    /// Notes a system call at the time of these stamps.
    fn note_call(change: &Change) {
        change.system_calls().0.note_call(|| (5, 0));
    }

    async fn share(lock: &InodeLock, size: u32) -> Change {
        let change = lock.share(Lengths::ANY, || look(size)).await;
        let change = change.unwrap_or_else(|_| panic!("a look that succeeds"));
        note_call(&change);
        change
    }

    fn begin(guard: ExclusiveGuard, size: u32) -> Change {
        let change = Change::begin(guard, look(size).unwrap(), Lengths::ANY);
        note_call(&change);
        change
    }

    fn end(change: Change, size: u32) -> (Stamp, Stamp) {
        let now = look(size).ok();
        let wcc = match change.held {
            Held::Exclusive(guard) => guard.end(change.before, Some(DONE), now),
            Held::Shared(shared) => shared.end(change.before, size.into(), DONE.by, || now),
        };
        (wcc.before.unwrap().stamp(), wcc.after.unwrap().stamp())
    }

    fn seen(lock: &InodeLock, size: u32) -> Stamp {
        lock.attributes(look(size).unwrap()).stamp()
    }

    #[tokio::test]
    async fn sharers_reply_with_a_chain() {
        let lock = InodeLock::default();
        let first = look(1).unwrap().stamp();
        let (a, b, c) = (share(&lock, 1).await, share(&lock, 9).await, share(&lock, 9).await);
        assert_eq!(b.before().stamp(), first, "nothing has ended");
        let (before, after_b) = end(b, 9);
        assert_eq!((before, after_b.size), (first, 9));
        let d = share(&lock, 10).await;
        assert_eq!(d.before().stamp(), after_b);
        let (before, after_a) = end(a, 10);
        assert_eq!(before, after_b);
        drop(c);
        assert_eq!(seen(&lock, 10), after_a);
        assert_eq!(end(d, 11), (after_a, look(11).unwrap().stamp()));
        assert_eq!(seen(&lock, 11), look(11).unwrap().stamp());
    }

    #[tokio::test]
    async fn writes_of_a_file_without_a_name_are_seen_as_they_end() {
        let file = tempfile::tempfile().unwrap();
        let live = || attributes_of_linked_or_not(&file);
        let lock = InodeLock::default();
        let begin = async || lock.share(Lengths::ANY, live).await.ok().unwrap();
        let (first, second) = (begin().await, begin().await);
        file.set_len(100).unwrap();
        let wcc = first.end_written(file.as_fd(), 100, Clients::One(1));
        assert_eq!(wcc.after.unwrap().stamp().size, 100);
        assert_eq!(lock.attributes(live().unwrap()).stamp().size, 100);
        file.set_len(200).unwrap();
        let wcc = second.end_written(file.as_fd(), 200, Clients::One(1));
        assert_eq!(wcc.after.unwrap().stamp().size, 200);
    }

    #[tokio::test]
    async fn exclusive_and_shared_holders_wait_for_each_other() {
        let lock = InodeLock::default();
        let sharer = share(&lock, 1).await;
        let wait = Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, lock.exclusive()).await.is_err());
        drop(sharer);
        let guard = begin(lock.exclusive().await, 7);
        assert!(tokio::time::timeout(wait, lock.share(Lengths::ANY, || look(1))).await.is_err());
        assert_eq!(seen(&lock, 8), look(7).unwrap().stamp(), "it is at work");
        assert_eq!(end(guard, 8), (look(7).unwrap().stamp(), look(8).unwrap().stamp()));
        assert_eq!(share(&lock, 9).await.before().stamp(), look(9).unwrap().stamp());
    }

    #[tokio::test]
    async fn a_change_that_is_dropped_hides_nothing_any_more() {
        let lock = InodeLock::default();
        drop(begin(lock.exclusive().await, 1));
        assert_eq!(seen(&lock, 2), look(2).unwrap().stamp());
        drop(share(&lock, 2).await);
        assert!(lock.share(Lengths::ANY, || Err(Status::Stale)).await.is_err());
        assert_eq!(seen(&lock, 3), look(3).unwrap().stamp());
        drop(lock.exclusive().await);
        assert_eq!(seen(&lock, 4), look(4).unwrap().stamp());
    }
}
