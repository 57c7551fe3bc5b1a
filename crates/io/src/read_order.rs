//! The order in which the cold reads of a file reach the kernel.
//!
//! The kernel reads ahead of a reader that goes through a file in order: with large requests, into
//! large folios. A client with many READs in flight has them performed by many threads, and the
//! kernel sees as many readers, each at another place: it reads each range by itself, page by page.
//! So reads that follow each other take turns. When its turn comes, most of what a read asks for
//! has been read ahead for the one before it.
//!
//! Reads that are far from each other, as those at random are, do not wait for each other, and
//! neither do those of different clients: one that waits for its client's share of the threads must
//! not hold up others.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError};

use crate::byte_range::ByteRange;
use crate::engine::ClientId;
use crate::sync::{Mutex, MutexGuard, oneshot};

/// The cold reads of one file.
#[derive(Default)]
pub struct ReadOrder {
    /// Never held across an await.
    state: Mutex<State>,
}

/// Memory grows with the reads in flight, whose number the caller bounds.
#[derive(Default)]
struct State {
    /// Those that have their turn and those that wait, in file order. A read that waits has another
    /// directly before it; it is examined again when that one ends.
    reads: BTreeMap<Place, Read>,
    next_ticket: u64,
}

/// Where a read is in the order: among those of its client by its offset, and of equal ones by
/// arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    client: ClientId,
    offset: u64,
    ticket: u64,
}

struct Read {
    end: u64,
    /// How far after the end of the read before it this one may begin and still follow it.
    reach_bytes: u64,
    /// Present while it waits.
    turn: Option<oneshot::Sender<()>>,
}

/// The turn of a read, which ends when this is dropped.
#[must_use = "the reads behind it go on once this is dropped"]
pub struct ReadTurn {
    order: Arc<ReadOrder>,
    place: Place,
    has_waited: bool,
}

impl ReadOrder {
    /// The turn of a read of `range` by `client`, once the client's read directly before it in the
    /// file has ended, if that ends no more than `reach_bytes` before this one begins.
    ///
    /// Turns are given in file order, not by arrival, so a read may be overtaken by others of its
    /// client that come later and begin before it.
    ///
    /// Dropping the future gives up the turn. The holder of a turn must not wait for another.
    pub async fn turn(
        self: &Arc<Self>,
        client: ClientId,
        range: ByteRange,
        reach_bytes: u64,
    ) -> ReadTurn {
        let (mut turn, begins) = self.enter(client, range, reach_bytes);
        if let Some(begins) = begins {
            turn.has_waited = true;
            begins.await.expect("a read that waits keeps its sender in the order");
        }
        turn
    }

    fn enter(
        self: &Arc<Self>,
        client: ClientId,
        range: ByteRange,
        reach_bytes: u64,
    ) -> (ReadTurn, Option<oneshot::Receiver<()>>) {
        let mut state = self.lock();
        let place = Place { client, offset: range.offset(), ticket: state.next_ticket };
        state.next_ticket += 1;
        let mut read = Read { end: range.end(), reach_bytes, turn: None };
        let mut begins = None;
        if state.follows_another(place, &read) {
            let (sender, receiver) = oneshot::channel();
            read.turn = Some(sender);
            begins = Some(receiver);
        }
        state.reads.insert(place, read);
        (ReadTurn { order: Arc::clone(self), place, has_waited: false }, begins)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether `read` goes on, or nearly so, where the one directly before it ends.
    fn follows_another(&self, place: Place, read: &Read) -> bool {
        let before = self.reads.range(..place).next_back();
        before.is_some_and(|(its, before)| {
            let reached = before.end.saturating_add(read.reach_bytes);
            its.client == place.client && place.offset <= reached
        })
    }

    /// Takes a read out. Returns the sender of the one behind it, if its turn has come.
    fn remove(&mut self, place: Place) -> Option<oneshot::Sender<()>> {
        self.reads.remove(&place);
        let behind = (Bound::Excluded(place), Bound::Unbounded);
        let (&next, read) = self.reads.range(behind).next()?;
        if read.turn.is_none() || self.follows_another(next, read) {
            return None;
        }
        self.reads.get_mut(&next)?.turn.take()
    }
}

impl ReadTurn {
    /// Whether others came before it. Its data may be in memory now.
    #[must_use]
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }
}

impl Drop for ReadTurn {
    fn drop(&mut self) {
        let next = self.order.lock().remove(self.place);
        if let Some(next) = next {
            // A read that was given up takes itself out, and lets the one behind it go on.
            let _ = next.send(());
        }
    }
}

#[cfg(shuttle)]
#[cfg(test)]
mod interleavings;

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1024;
    /// The largest file offset.
    const END: u64 = i64::MAX as u64;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange::new(offset, len).unwrap()
    }

    type Pending = Pin<Box<dyn Future<Output = ReadTurn>>>;

    /// The turn, or what waits for it.
    fn ask(
        order: &Arc<ReadOrder>,
        range: ByteRange,
        reach_bytes: u64,
    ) -> Result<ReadTurn, Pending> {
        let order = Arc::clone(order);
        let mut pending: Pending = Box::pin(async move { order.turn(1, range, reach_bytes).await });
        poll(&mut pending).ok_or(pending)
    }

    fn poll(pending: &mut Pending) -> Option<ReadTurn> {
        match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    fn block(number: u64) -> ByteRange {
        range(number * 64 * KIB, 64 * KIB)
    }

    #[test]
    fn a_read_waits_for_one_whose_read_ahead_reaches_it() {
        for (first, second, reach_bytes, waits) in [
            (range(0, 64 * KIB), range(64 * KIB, KIB), 0, true),
            (range(0, 64 * KIB), range(64 * KIB, KIB), 128 * KIB, true),
            (range(0, 64 * KIB), range(192 * KIB, KIB), 128 * KIB, true),
            (range(0, 64 * KIB), range(192 * KIB + 1, KIB), 128 * KIB, false),
            // The same data.
            (range(0, 64 * KIB), range(0, 64 * KIB), 0, true),
            // One that begins earlier does not wait, whatever its length.
            (range(64 * KIB, KIB), range(0, 64 * KIB), 128 * KIB, false),
            (range(END - 2 * KIB, KIB), range(END - KIB, KIB), u64::MAX, true),
        ] {
            let order = Arc::new(ReadOrder::default());
            let turn = ask(&order, first, reach_bytes).ok().expect("nothing before it");
            assert!(!turn.has_waited());
            let second_turn = ask(&order, second, reach_bytes);
            assert_eq!(second_turn.is_err(), waits, "{first:?} {second:?} {reach_bytes}");
        }
    }

    #[test]
    fn turns_are_given_in_file_order() {
        let order = Arc::new(ReadOrder::default());
        let first = ask(&order, block(0), 128 * KIB).ok().unwrap();
        let mut third = ask(&order, block(2), 128 * KIB).err().unwrap();
        let mut second = ask(&order, block(1), 128 * KIB).err().unwrap();
        drop(first);
        assert!(poll(&mut third).is_none(), "the second has come before it");
        let second = poll(&mut second).expect("its turn");
        assert!(second.has_waited());
        drop(second);
        assert!(poll(&mut third).is_some());
    }

    #[test]
    fn reads_of_different_clients_do_not_wait_for_each_other() {
        let order = Arc::new(ReadOrder::default());
        let (first, _) = order.enter(1, block(0), 0);
        let (other, begins) = order.enter(2, block(1), 0);
        assert!(begins.is_none());
        let (_second, begins) = order.enter(1, block(1), 0);
        assert!(begins.is_some());
        drop((first, other));
        assert_eq!(order.lock().reads.len(), 1);
    }

    #[test]
    fn one_that_gives_up_lets_the_next_go_on() {
        let order = Arc::new(ReadOrder::default());
        let first = ask(&order, block(0), 0).ok().unwrap();
        let second = ask(&order, block(1), 0).err().unwrap();
        let mut third = ask(&order, block(2), 0).err().unwrap();
        drop(second);
        assert!(poll(&mut third).is_some(), "the first is too far before it");
        drop(first);
        assert!(order.lock().reads.is_empty());
    }

    proptest! {
        /// Whatever comes and goes in whatever order: nothing waits that has none before it to wait
        /// for, and in the end everything has had its turn.
        #[test]
        fn every_read_has_its_turn(
            reads in prop::collection::vec((0u128..2, 0u64..32, 1u64..4, 0u64..4), 1..24),
            ends in prop::collection::vec(any::<prop::sample::Index>(), 24),
        ) {
            let order = Arc::new(ReadOrder::default());
            let mut waiting: Vec<Pending> = Vec::new();
            let mut running: Vec<ReadTurn> = Vec::new();
            for (read, end) in reads.iter().zip(&ends) {
                let (client, offset, len, reach_bytes) = *read;
                let order = Arc::clone(&order);
                waiting.push(Box::pin(async move {
                    order.turn(client, range(offset, len), reach_bytes).await
                }));
                collect(&mut waiting, &mut running);
                if !running.is_empty() && end.index(3) == 0 {
                    drop(running.swap_remove(end.index(running.len())));
                    collect(&mut waiting, &mut running);
                }
                prop_assert!(!running.is_empty() || waiting.is_empty());
            }
            let mut had = 0;
            while !running.is_empty() {
                let end = ends[had % ends.len()].index(running.len());
                drop(running.swap_remove(end));
                had += 1;
                collect(&mut waiting, &mut running);
            }
            prop_assert!(waiting.is_empty());
            prop_assert!(order.lock().reads.is_empty());
        }
    }

    fn collect(waiting: &mut Vec<Pending>, running: &mut Vec<ReadTurn>) {
        let mut at = 0;
        while at < waiting.len() {
            match poll(&mut waiting[at]) {
                Some(turn) => {
                    running.push(turn);
                    drop(waiting.remove(at));
                }
                None => at += 1,
            }
        }
    }
}
