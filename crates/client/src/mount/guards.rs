//! Guards of calls in progress, by whose end the `KernelView` of a file changes.

use std::sync::Arc;
use std::time::Instant;

use super::operations::{Node, Operations};
use crate::inode::Inode;

/// A call that removes a name of a file, until it is about to be answered. Dropped without
/// [`finish`](Self::finish), the name stays.
pub(super) struct NameRemoval {
    /// The file, if the kernel has it and the name is known.
    node: Option<Arc<Node>>,
    is_removed: bool,
}

impl NameRemoval {
    /// The name is removed.
    pub(super) fn finish(mut self) {
        self.is_removed = true;
    }
}

impl Drop for NameRemoval {
    fn drop(&mut self) {
        if let Some(node) = &self.node {
            node.view().end_name_removal(self.is_removed);
        }
    }
}

/// A GETATTR that is being answered.
pub(super) struct GetattrGuard<'a>(&'a Node);

impl Drop for GetattrGuard<'_> {
    fn drop(&mut self) {
        self.0.view().end_getattr();
    }
}

/// A READ or WRITE that is being answered.
pub(super) struct TransferGuard<'a> {
    node: &'a Node,
    number: u64,
}

impl Drop for TransferGuard<'_> {
    fn drop(&mut self) {
        self.node.view().end_transfer(self.number, Instant::now());
    }
}

/// The growth of a file by a WRITE, until that is about to be answered. Dropped without
/// [`finish`](Self::finish), the kernel may not extend the file.
pub(super) struct Growth<'a>(Option<&'a Node>);

impl Growth<'_> {
    /// The reply is about to be sent. Returns whether the kernel extends the file with it.
    pub(super) fn finish(mut self) -> bool {
        self.0.take().is_some()
    }
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.0 {
            node.view().unsettle_size(Instant::now());
        }
    }
}

impl Operations {
    /// To be called before the call that removes `name` from `dir`, or replaces what it refers to.
    pub(super) fn begin_name_removal(&self, dir: &Inode, name: &[u8]) -> NameRemoval {
        let child = dir.child(name);
        let node = child.and_then(|child| self.nodes.find(child.handle())).map(|(_, node)| node);
        if let Some(node) = &node {
            node.view().begin_name_removal();
        }
        NameRemoval { node, is_removed: false }
    }
}

impl Node {
    /// A GETATTR is being answered until the guard is dropped.
    pub(super) fn begin_getattr(&self) -> GetattrGuard<'_> {
        self.view().begin_getattr();
        GetattrGuard(self)
    }

    /// A READ or WRITE is being answered until the guard is dropped.
    pub(super) fn begin_transfer(&self) -> TransferGuard<'_> {
        TransferGuard { node: self, number: self.view().begin_transfer(Instant::now()) }
    }

    /// A WRITE up to `end` is being answered.
    pub(super) fn begin_growth(&self, end: u64) -> Growth<'_> {
        let is_longer = self.view().note_written(end);
        Growth(is_longer.then_some(self))
    }
}
