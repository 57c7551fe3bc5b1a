//! Turns to change an object, so that the attributes before and after a change are its own.
//!
//! A client keeps its cache if the attributes that it knows are those before its own change (RFC
//! 1813 §2.6, `wcc_data`). So nearly every change has the object to itself from the look at the
//! attributes before it to the look after it.
//!
//! WRITEs past the page cache would pay the disk's latency one after the other that way, which is
//! all they are slower by. They share a turn instead. Each is taken to happen at the moment of its
//! end: the attributes before it are then those after the one that ended before it, and the answers
//! form a chain without a gap, unless somebody else changed the object. A change by a local process
//! within the time of a WRITE is not told from it; that is so with a turn of its own too.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::vfs::{Attributes, Status};

/// The turns of one object, taken in the order of arrival. Waiting blocks no thread.
#[derive(Default)]
pub(crate) struct Turns {
    order: Arc<RwLock<()>>,
    sharers: Arc<Mutex<Sharers>>,
}

/// Those who share the turn now.
#[derive(Default)]
struct Sharers {
    count: usize,
    /// The attributes after the last one that ended, or before the first that began.
    latest: Option<Attributes>,
}

/// The object to oneself, until it is dropped.
pub(crate) type Alone = OwnedRwLockWriteGuard<()>;

impl Turns {
    /// A turn of one's own.
    pub(crate) async fn alone(&self) -> Alone {
        Arc::clone(&self.order).write_owned().await
    }

    /// A turn shared with others who ask like this. `look` reads the attributes, at once. Each
    /// sharer looks for itself: what those before it have seen says nothing of who may write now.
    ///
    /// # Errors
    /// Those of `look`.
    pub(crate) async fn shared(
        &self,
        look: impl FnOnce() -> Result<Attributes, Status>,
    ) -> Result<Turn, Status> {
        let order = Arc::clone(&self.order).read_owned().await;
        let now = {
            let mut sharers = lock(&self.sharers);
            let now = look()?;
            sharers.latest.get_or_insert(now);
            sharers.count += 1;
            now
        };
        let place = Place { sharers: Arc::clone(&self.sharers), _order: order };
        Ok(Turn { before: now, held: Held::Shared(place) })
    }

    /// Whether both are of one object.
    pub(crate) fn are(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.order, &other.order)
    }

    /// Something to put the turns of several objects in an order.
    pub(crate) fn rank(&self) -> usize {
        Arc::as_ptr(&self.order).addr()
    }
}

/// A turn with the attributes at its beginning.
pub(crate) struct Turn {
    before: Attributes,
    held: Held,
}

enum Held {
    Alone { _turn: Alone },
    Shared(Place),
}

/// A place among the sharers.
struct Place {
    sharers: Arc<Mutex<Sharers>>,
    _order: OwnedRwLockReadGuard<()>,
}

impl Turn {
    /// A turn of one's own, and the attributes read in it.
    pub(crate) fn new(alone: Alone, before: Attributes) -> Self {
        Self { before, held: Held::Alone { _turn: alone } }
    }

    /// The attributes at its beginning, by which it is decided who may, and with which a refusal is
    /// answered.
    pub(crate) fn before(&self) -> &Attributes {
        &self.before
    }

    /// Ends the turn after a change. `look` reads the attributes, at once. Returns those before the
    /// change and after it.
    pub(crate) fn end(
        self,
        look: impl FnOnce() -> Option<Attributes>,
    ) -> (Attributes, Option<Attributes>) {
        match &self.held {
            Held::Alone { .. } => (self.before, look()),
            Held::Shared(place) => {
                // Under the lock, so that no other sharer ends between the look and the note of it.
                let mut sharers = lock(&place.sharers);
                let after = look();
                let before = sharers.latest.unwrap_or(self.before);
                if after.is_some() {
                    sharers.latest = after;
                }
                (before, after)
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sharers = lock(&self.sharers);
        sharers.count -= 1;
        if sharers.count == 0 {
            sharers.latest = None;
        }
    }
}

fn lock(sharers: &Mutex<Sharers>) -> MutexGuard<'_, Sharers> {
    sharers.lock().expect("reading attributes does not panic")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;
    use crate::vfs::attributes_of;

    /// Attributes that are told apart by their size.
    fn look(size: u64) -> Result<Attributes, Status> {
        let file = File::open("/proc/self/exe").unwrap();
        Ok(Attributes { size, ..attributes_of(file).unwrap() })
    }

    async fn shared(turns: &Turns, size: u64) -> Turn {
        turns.shared(|| look(size)).await.unwrap_or_else(|_| panic!("a look that succeeds"))
    }

    fn end(turn: Turn, size: u64) -> (u64, u64) {
        let (before, after) = turn.end(|| look(size).ok());
        (before.size, after.unwrap().size)
    }

    #[tokio::test]
    async fn sharers_answer_with_a_chain() {
        let turns = Turns::default();
        let (a, b, c) =
            (shared(&turns, 1).await, shared(&turns, 99).await, shared(&turns, 99).await);
        assert_eq!(b.before().size, 99, "it has looked for itself");
        assert_eq!(end(b, 2), (1, 2), "but follows those before it");
        let d = shared(&turns, 99).await;
        assert_eq!(end(a, 3), (2, 3));
        drop(c);
        assert_eq!(end(d, 4), (3, 4));
        assert_eq!(shared(&turns, 5).await.before().size, 5, "nobody was left to know");
    }

    #[tokio::test]
    async fn one_alone_waits_for_the_sharers_and_they_for_it() {
        let turns = Turns::default();
        let sharer = shared(&turns, 1).await;
        let wait = Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, turns.alone()).await.is_err());
        drop(sharer);
        let alone = Turn::new(turns.alone().await, look(7).unwrap());
        assert!(tokio::time::timeout(wait, turns.shared(|| look(1))).await.is_err());
        assert_eq!(end(alone, 8), (7, 8));
        assert_eq!(shared(&turns, 9).await.before().size, 9);
    }

    #[tokio::test]
    async fn a_look_that_fails_leaves_nothing_behind() {
        let turns = Turns::default();
        assert!(turns.shared(|| Err(Status::Stale)).await.is_err());
        drop(turns.alone().await);
    }
}
