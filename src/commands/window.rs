//! Several things under way at once, finished in order.

use std::collections::VecDeque;
use std::pin::Pin;

/// Futures in the order in which they began, a bounded number of them. Meant for what goes on
/// without being polled: calls that are on the wire, and tasks.
pub(crate) struct Window<T> {
    pending: VecDeque<Pin<Box<dyn Future<Output = T> + Send>>>,
    len_max: usize,
}

impl<T> Window<T> {
    /// Room for `len_max` futures, at least one.
    pub(crate) fn new(len_max: usize) -> Self {
        Self { pending: VecDeque::new(), len_max: len_max.max(1) }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= self.len_max
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds what has begun. The caller has seen that there is room.
    pub(crate) fn push(&mut self, future: impl Future<Output = T> + Send + 'static) {
        assert!(!self.is_full(), "the caller makes room before it adds");
        self.pending.push_back(Box::pin(future));
    }

    /// The result of the oldest; none when nothing is under way.
    pub(crate) async fn next(&mut self) -> Option<T> {
        let result = self.pending.front_mut()?.await;
        self.pending.pop_front();
        Some(result)
    }

    /// The result of the oldest, if another would not fit beside it.
    pub(crate) async fn make_room(&mut self) -> Option<T> {
        if self.is_full() { self.next().await } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_come_in_the_order_of_the_beginnings() {
        let mut window = Window::new(2);
        assert_eq!(window.make_room().await, None);
        window.push(async { 1 });
        assert_eq!(window.make_room().await, None);
        window.push(async { 2 });
        assert!(window.is_full());
        assert_eq!(window.make_room().await, Some(1));
        assert_eq!(window.next().await, Some(2));
        assert!(window.is_empty());
        assert_eq!(window.next().await, None);
    }
}
