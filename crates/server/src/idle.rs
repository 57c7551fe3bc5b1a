//! Closing what was not used for a while, but for what clients of version 4 hold.

use std::sync::Arc;

use crate::held_files::file_id;
use crate::inode_cache::{IdleInodes, Inode};
use crate::service::Service;

impl Service {
    /// Flushes and closes idle objects of one device. A file that a client of version 4 has open for
    /// writing stays so: the client may write it whatever its mode is by then, and the server may not
    /// open it again. Waits for the disk.
    pub(crate) async fn close_idle(&self, idle: IdleInodes) {
        let state = Arc::clone(&self.state);
        let is_held_for_writing = move |inode: &Inode| state.has_writer(file_id(inode));
        self.vfs.close_idle(idle, is_held_for_writing).await;
    }
}
