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
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { table: Mutex::new(Table { open: HashMap::new(), next: 1 }) }
    }
}

impl<T> Handles<T> {
    /// Adds `opened`, and returns its `fh`.
    pub(super) fn insert(&self, opened: T) -> u64 {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let fh = table.next;
        table.next += 1;
        table.open.insert(fh, Arc::new(opened));
        fh
    }

    /// The open object of `fh`.
    pub(super) fn get(&self, fh: u64) -> Option<Arc<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).open.get(&fh).cloned()
    }

    /// Removes it. Operations in progress continue.
    pub(super) fn remove(&self, fh: u64) -> Option<Arc<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&fh)
    }

    /// What `part` returns of each open object. They are not borrowed beyond this call, so that a
    /// [`remove`](Self::remove) meanwhile returns the only reference.
    pub(super) fn collect<R, C: FromIterator<R>>(&self, part: impl Fn(&T) -> Option<R>) -> C {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.open.values().filter_map(|opened| part(opened)).collect()
    }

    /// Removes and returns all open objects.
    pub(super) fn take_all(&self) -> Vec<Arc<T>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.open.drain().map(|(_, opened)| opened).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_refers_to_its_object_until_it_is_removed() {
        let handles = Handles::default();
        let (one, two) = (handles.insert("one"), handles.insert("two"));
        assert_eq!(handles.get(one).as_deref(), Some(&"one"));
        assert_eq!(handles.remove(one).as_deref(), Some(&"one"));
        assert!(handles.get(one).is_none() && handles.remove(one).is_none());
        assert_ne!(handles.insert("three"), one);
        assert_eq!(handles.get(two).as_deref(), Some(&"two"));
        assert_eq!(handles.take_all().len(), 2);
        assert!(handles.get(two).is_none());
    }
}
