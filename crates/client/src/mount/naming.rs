//! Calls that give a name, whose effect is not known for certain.

use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;

use super::operations::Operations;
use super::reply::Answer;
use super::request::{Head, Name, Operation};

/// A call that gives a name in a directory. Dropped before its [`end`](Self::end), its caller was
/// killed. The server may have executed the call all the same, and the kernel may have cached that
/// there is no such name: it has to look it up again. If that LOOKUP overtakes the call, the kernel
/// caches again that there is none.
pub(super) struct Naming(Option<Given>);

struct Given {
    operations: Arc<Operations>,
    dir: u64,
    name: Bytes,
}

impl Operations {
    /// To be called before `operation`, which need not give a name.
    pub(super) fn begin_naming(self: &Arc<Self>, head: &Head, operation: &Operation) -> Naming {
        Naming(given(head, operation).map(|(dir, Name(name))| Given {
            operations: Arc::clone(self),
            dir,
            name: Bytes::copy_from_slice(name),
        }))
    }
}

impl Naming {
    /// The kernel gets `answer`. After EIO the server may have executed the call: its reply did not
    /// arrive or is malformed, or the object that it has created could not be looked at.
    pub(super) fn end(mut self, answer: &Answer) {
        if answer.error != Some(Errno::IO) {
            self.0 = None;
        }
    }
}

impl Drop for Naming {
    fn drop(&mut self) {
        if let Some(Given { operations, dir, name }) = self.0.take() {
            operations.expire_names(dir, vec![name]);
        }
    }
}

/// The directory and the name that `operation` gives.
fn given<'a>(head: &Head, operation: &'a Operation) -> Option<(u64, &'a Name)> {
    match operation {
        Operation::Create { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Mknod { name, .. }
        | Operation::Symlink { name, .. }
        | Operation::Link { new_name: name, .. } => Some((head.node, name)),
        Operation::Rename { new_dir, new_name, .. } => Some((*new_dir, new_name)),
        _ => None,
    }
}
