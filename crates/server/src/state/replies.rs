//! The memory for the replies that slots keep: what all sessions have of it, and the sessions of
//! one address.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes that sessions share. The first slot of a session has its reply beside it, so
/// that no session is without.
#[derive(Debug)]
pub(super) struct ReplyBudget {
    bytes_max: usize,
    /// A reply of the greatest length, by which the budget is divided into slots.
    reply_bytes_max: usize,
    bytes: AtomicUsize,
    sessions: AtomicUsize,
    /// The budget that this one is a part of.
    whole: Option<Arc<Self>>,
}

/// Room for the reply of a slot. It is given back when dropped.
#[derive(Debug)]
pub(super) struct ReplyRoom {
    budget: Arc<ReplyBudget>,
    bytes: usize,
}

impl ReplyBudget {
    /// The budget of all sessions.
    pub(super) fn new(bytes_max: usize, reply_bytes_max: u32) -> Self {
        let reply_bytes_max = usize::try_from(reply_bytes_max).unwrap_or(usize::MAX).max(1);
        let (bytes, sessions) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { bytes_max, reply_bytes_max, bytes, sessions, whole: None }
    }

    /// The budget of an address.
    pub(super) fn of_peer(whole: &Arc<Self>) -> Self {
        let (bytes, sessions) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let bytes_max = whole.bytes_max / PEER_PART;
        Self { bytes_max, bytes, sessions, whole: Some(Arc::clone(whole)), ..**whole }
    }

    /// Takes room for a reply, if there is as much.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<ReplyRoom> {
        if !self.add(bytes) {
            return None;
        }
        if self.whole.as_ref().is_some_and(|whole| !whole.add(bytes)) {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        Some(ReplyRoom { budget: Arc::clone(self), bytes })
    }

    fn add(&self, bytes: usize) -> bool {
        let order = Ordering::Relaxed;
        let added = |held: usize| held.checked_add(bytes).filter(|held| *held <= self.bytes_max);
        self.bytes.fetch_update(order, order, added).is_ok()
    }

    /// The slots that each session can use if all use as many: at least one.
    pub(super) fn slots_each(&self) -> u32 {
        let sessions = self.sessions.load(Ordering::Relaxed).max(1);
        let slots = 1 + self.bytes_max / self.reply_bytes_max / sessions;
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        self.whole.as_ref().map_or(slots, |whole| slots.min(whole.slots_each()))
    }

    /// Counts a session.
    pub(super) fn begin_session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.begin_session());
    }

    /// Counts the end of a session.
    pub(super) fn end_session(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.end_session());
    }

    /// Bytes that are taken.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for ReplyRoom {
    fn drop(&mut self) {
        for budget in [Some(&self.budget), self.budget.whole.as_ref()].into_iter().flatten() {
            budget.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// An address has this part of the budget.
const PEER_PART: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_takes_a_quarter_and_all_take_no_more_than_there_is() {
        let whole = Arc::new(ReplyBudget::new(4000, 100));
        let peers = [(); 5].map(|()| Arc::new(ReplyBudget::of_peer(&whole)));
        let mut rooms: Vec<_> = (0..10).filter_map(|_| peers[0].take(100)).collect();
        assert_eq!(rooms.len(), 10);
        assert!(peers[0].take(1).is_none(), "a quarter");
        for peer in &peers[1..4] {
            rooms.push(peer.take(1000).expect("its quarter"));
        }
        assert!(peers[4].take(1).is_none(), "all is taken");
        assert_eq!((whole.bytes(), peers[4].bytes()), (4000, 0));
        rooms.clear();
        assert_eq!((whole.bytes(), peers[0].bytes()), (0, 0));
    }

    #[test]
    fn sessions_share_the_slots() {
        let whole = Arc::new(ReplyBudget::new(4000, 100));
        let peers = [(); 2].map(|()| ReplyBudget::of_peer(&whole));
        assert_eq!(peers[0].slots_each(), 1 + 10);
        (0..5).for_each(|_| peers[0].begin_session());
        assert_eq!((peers[0].slots_each(), peers[1].slots_each()), (1 + 2, 1 + 8));
        (0..95).for_each(|_| peers[1].begin_session());
        assert_eq!(peers[0].slots_each(), 1, "each session has one");
        (0..95).for_each(|_| peers[1].end_session());
        assert_eq!(peers[1].slots_each(), 1 + 8);
    }
}
