//! The node numbers of the kernel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::nfs3::FileHandle;

/// The root of a mount, `FUSE_ROOT_ID`.
pub(super) const ROOT: u64 = 1;

/// Node numbers and their values, as long as the kernel counts a lookup of the node.
///
/// A file has one number for all its names. A number is never reused, so that a request in progress
/// while its node is forgotten finds no node rather than another file; generations are not needed.
#[derive(Debug)]
pub(super) struct Nodes<T> {
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    by_number: HashMap<u64, Node<T>>,
    by_handle: HashMap<FileHandle, u64>,
    next: u64,
}

#[derive(Debug)]
struct Node<T> {
    handle: FileHandle,
    kept: Arc<T>,
    lookups: u64,
}

impl<T> Nodes<T> {
    /// A table with the root alone, which the kernel never forgets.
    pub(super) fn new(handle: FileHandle, root: T) -> Self {
        let node = Node { handle, kept: Arc::new(root), lookups: 1 };
        let table = Table {
            by_number: HashMap::from([(ROOT, node)]),
            by_handle: HashMap::from([(handle, ROOT)]),
            next: ROOT + 1,
        };
        Self { table: Mutex::new(table) }
    }

    /// Counts a lookup of the file with `handle`; `make` returns the value of a new one. To be
    /// called immediately before the number is sent to the kernel.
    pub(super) fn count_lookup(
        &self,
        handle: FileHandle,
        make: impl FnOnce() -> T,
    ) -> (u64, Arc<T>) {
        let mut table = self.lock();
        if let Some(&number) = table.by_handle.get(&handle) {
            let node = table.by_number.get_mut(&number).expect("both maps hold the same nodes");
            node.lookups += 1;
            return (number, Arc::clone(&node.kept));
        }
        let number = table.next;
        table.next += 1;
        let kept = Arc::new(make());
        table.by_handle.insert(handle, number);
        table.by_number.insert(number, Node { handle, kept: Arc::clone(&kept), lookups: 1 });
        (number, kept)
    }

    /// The value of `number`.
    pub(super) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.lock().by_number.get(&number).map(|node| Arc::clone(&node.kept))
    }

    /// The number and value of the file with `handle`, if the kernel has it.
    pub(super) fn find(&self, handle: FileHandle) -> Option<(u64, Arc<T>)> {
        let table = self.lock();
        let number = *table.by_handle.get(&handle)?;
        Some((number, Arc::clone(&table.by_number.get(&number)?.kept)))
    }

    /// Subtracts `lookups` from the count, and removes the node with the last one.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        if number == ROOT {
            return;
        }
        let mut table = self.lock();
        let Some(node) = table.by_number.get_mut(&number) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 {
            return;
        }
        let node = table.by_number.remove(&number);
        if let Some(node) = &node {
            table.by_handle.remove(&node.handle);
        }
        // Dropped without the lock: the drop of the value may take long.
        drop(table);
        drop(node);
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(byte: u8) -> FileHandle {
        FileHandle::new(&[byte; 8]).unwrap()
    }

    fn nodes() -> Nodes<&'static str> {
        Nodes::new(handle(0), "root")
    }

    #[test]
    fn a_file_has_one_number_for_all_its_names() {
        let nodes = nodes();
        let (first, _) = nodes.count_lookup(handle(1), || "file");
        let (again, kept) = nodes.count_lookup(handle(1), || panic!("already kept"));
        assert_eq!((first, *kept), (again, "file"));
        let (other, _) = nodes.count_lookup(handle(2), || "other");
        assert_ne!(first, other);
        assert_eq!(nodes.count_lookup(handle(0), || "not this").0, ROOT);
        assert_eq!(nodes.find(handle(2)).map(|(number, _)| number), Some(other));
        assert!(nodes.find(handle(3)).is_none());
    }

    #[test]
    fn a_node_is_removed_with_its_last_lookup() {
        let nodes = nodes();
        let (number, _) = nodes.count_lookup(handle(1), || "file");
        nodes.count_lookup(handle(1), || "file");
        nodes.count_lookup(handle(1), || "file");
        nodes.forget(number, 2);
        assert!(nodes.get(number).is_some());
        nodes.forget(number, 1);
        assert!(nodes.get(number).is_none());
        nodes.forget(number, 1);
    }

    #[test]
    fn no_number_is_reused() {
        let nodes = nodes();
        let (first, _) = nodes.count_lookup(handle(1), || "file");
        nodes.forget(first, 1);
        let (second, kept) = nodes.count_lookup(handle(1), || "again");
        assert_ne!(first, second);
        assert_eq!(*kept, "again");
        assert!(nodes.get(first).is_none());
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let nodes = nodes();
        nodes.forget(ROOT, u64::MAX);
        assert_eq!(nodes.get(ROOT).as_deref(), Some(&"root"));
    }

    #[test]
    fn forgetting_too_much_forgets_once() {
        let nodes = nodes();
        let (number, _) = nodes.count_lookup(handle(1), || "file");
        nodes.forget(number, 1000);
        assert!(nodes.get(number).is_none());
        assert_eq!(*nodes.count_lookup(handle(1), || "new").1, "new");
    }
}
