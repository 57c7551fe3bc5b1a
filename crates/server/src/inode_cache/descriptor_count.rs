//! The descriptors that open objects have, of all exports, and their bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Descriptors that are open, and how many may be.
pub(super) struct DescriptorCount {
    open: Arc<AtomicUsize>,
    max: usize,
}

/// Descriptors that count as open until this is dropped.
pub(crate) struct Counted {
    /// At most what `open` has.
    number: AtomicUsize,
    open: Arc<AtomicUsize>,
}

impl DescriptorCount {
    /// None is open.
    pub(super) fn new(max: usize) -> Self {
        Self { open: Arc::default(), max }
    }

    /// Room for one more, if there is any.
    pub(super) fn room(&self) -> Option<Counted> {
        let one_more = |open| (open < self.max).then_some(open + 1);
        self.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(Counted { number: AtomicUsize::new(1), open: Arc::clone(&self.open) })
    }

    /// One more, whether there is room or not.
    pub(super) fn one_more(&self) -> Counted {
        self.open.fetch_add(1, Ordering::SeqCst);
        Counted { number: AtomicUsize::new(1), open: Arc::clone(&self.open) }
    }

    /// How many more there may be.
    pub(super) fn left(&self) -> usize {
        self.max.saturating_sub(self.open.load(Ordering::SeqCst))
    }

    /// How many there may be.
    pub(super) fn max(&self) -> usize {
        self.max
    }
}

impl Counted {
    /// They are `number` now. Those who call this for one object do so one after the other.
    pub(super) fn set(&self, number: usize) {
        let before = self.number.swap(number, Ordering::SeqCst);
        self.open.fetch_add(number.saturating_sub(before), Ordering::SeqCst);
        self.open.fetch_sub(before.saturating_sub(number), Ordering::SeqCst);
    }

    /// How many they are.
    #[cfg(test)]
    pub(super) fn number(&self) -> usize {
        self.number.load(Ordering::SeqCst)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.fetch_sub(*self.number.get_mut(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_descriptor_counts_until_it_is_closed() {
        let count = DescriptorCount::new(4);
        let object = count.room().unwrap();
        object.set(4);
        assert_eq!((object.number(), count.left()), (4, 0));
        object.set(3);
        assert_eq!((object.number(), count.left()), (3, 1));
        let other = count.room().unwrap();
        assert!(count.room().is_none());
        let beyond = count.one_more();
        drop(object);
        assert_eq!(count.left(), 2);
        drop((other, beyond));
        assert_eq!(count.left(), 4);
    }

    #[test]
    fn threads_that_grow_one_object_count_its_descriptors_once() {
        let count = DescriptorCount::new(100);
        let object = count.room().unwrap();
        let number = Mutex::new(1);
        std::thread::scope(|scope| {
            for _ in 1..6 {
                scope.spawn(|| {
                    let mut number = number.lock().unwrap();
                    *number += 1;
                    object.set(*number);
                });
            }
        });
        assert_eq!(count.left(), 94);
    }
}
