//! The file handles (`fh`) of the kernel for open files and directories.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Open objects by `fh`. No number is reused.
#[derive(Debug)]
pub(super) struct Handles<T> {
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    open: HashMap<u64, Arc<T>>,
    next: u64,
    /// [`Handles::take_all`] was called.
    is_closed: bool,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { table: Mutex::new(Table { open: HashMap::new(), next: 1, is_closed: false }) }
    }
}

impl<T> Handles<T> {
    /// Adds `opened`, and returns its `fh`. Drops it after [`take_all`](Self::take_all).
    pub(super) fn insert(&self, opened: T) -> Option<u64> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.is_closed {
            return None;
        }
        let fh = table.next;
        table.next += 1;
        table.open.insert(fh, Arc::new(opened));
        Some(fh)
    }

    /// The open object of `fh`.
    pub(super) fn get(&self, fh: u64) -> Option<Arc<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).open.get(&fh).cloned()
    }

    /// Removes it. Operations in progress continue.
    pub(super) fn remove(&self, fh: u64) -> Option<Arc<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&fh)
    }

    /// The results of `part` for the open objects. These are not borrowed beyond this call, so that
    /// a [`remove`](Self::remove) meanwhile returns the only reference.
    pub(super) fn collect<R, C: FromIterator<R>>(&self, part: impl Fn(&T) -> Option<R>) -> C {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.open.values().filter_map(|opened| part(opened)).collect()
    }

    /// Removes and returns all open objects. None is added from now on.
    pub(super) fn take_all(&self) -> Vec<Arc<T>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.is_closed = true;
        table.open.drain().map(|(_, opened)| opened).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_refers_to_its_object_until_it_is_removed() {
        let handles = Handles::default();
        let (one, two) = (handles.insert("one").unwrap(), handles.insert("two").unwrap());
        assert_eq!(handles.get(one).as_deref(), Some(&"one"));
        assert_eq!(handles.remove(one).as_deref(), Some(&"one"));
        assert!(handles.get(one).is_none() && handles.remove(one).is_none());
        assert_ne!(handles.insert("three"), Some(one));
        assert_eq!(handles.get(two).as_deref(), Some(&"two"));
        assert_eq!(handles.take_all().len(), 2);
        assert!(handles.get(two).is_none());
    }

    #[test]
    fn no_object_is_added_after_all_were_taken() {
        let (handles, opened) = (Handles::default(), Arc::new(()));
        assert!(handles.insert(Arc::clone(&opened)).is_some());
        assert_eq!(handles.take_all().len(), 1);
        assert_eq!(handles.insert(Arc::clone(&opened)), None);
        assert_eq!(Arc::strong_count(&opened), 1, "it is dropped");
        assert!(handles.take_all().is_empty());
    }
}
