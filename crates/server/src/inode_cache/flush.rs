//! Making the changes of an object durable.

use std::sync::Arc;

use io::Engine;

use super::{Flush, Inode};
use crate::fs::Status;

impl Inode {
    /// Makes every change counted so far durable. Callers that come while a flush runs share the
    /// next one; where nothing is dirty, nothing is flushed.
    ///
    /// # Errors
    /// The disk's error, once. The file system's write verifier is then another one, because the
    /// kernel forgets which pages it could not write.
    pub(crate) async fn flush(
        self: &Arc<Self>,
        engine: &Engine,
        what: Flush,
    ) -> Result<(), Status> {
        let wanted = self.state.changes();
        let mut flushed = self.state.flushed.lock().await;
        let done = match what {
            Flush::Data => flushed.data.max(flushed.all),
            Flush::All => flushed.all,
        };
        if done >= wanted {
            return Ok(());
        }
        let covered = self.state.changes();
        // Other flushes wait for this one, and would for all work of its client.
        engine.move_to_data_thread().await;
        let file = Arc::clone(self);
        let result = engine.data(move || file.flush_now(what)).await;
        if let Err(status) = result {
            // The status goes to the caller, who logs it.
            let (export, path) = (self.root.name(), self.shown_path().unwrap_or_default());
            tracing::info!(export, path, "a flush failed: the write verifier changes");
            self.state.note_failure();
            return Err(status);
        }
        match what {
            Flush::Data => flushed.data = covered,
            Flush::All => {
                flushed.all = covered;
                self.state.note_durable(covered);
            }
        }
        Ok(())
    }

    /// A flush that no client asked for; whether it has succeeded. Its error has changed the
    /// verifier, by which clients detect the loss.
    pub(super) async fn flush_before_leaving(self: &Arc<Self>, engine: &Engine) -> bool {
        let flushed = self.flush(engine, Flush::All).await;
        flushed.inspect_err(|status| self.log_loss(*status)).is_ok()
    }

    /// Logs that a flush failed for which no line of a call is logged.
    pub(crate) fn log_loss(&self, status: Status) {
        let (export, path) = (self.root.name(), self.shown_path().unwrap_or_default());
        tracing::error!(export, path, error = %status, "a flush failed: unstable data is lost");
    }

    /// Flushes on this thread, which may block. An object that cannot be opened (for want of a
    /// permission or of a descriptor, or because of its type) is flushed with its whole file
    /// system, which takes no other descriptor than the root's. So an error is always that of a
    /// flush, and means that data may be lost.
    fn flush_now(&self, what: Flush) -> Result<(), Status> {
        let fd = self.descriptor_for_flush();
        let flush = || match (&fd, what) {
            (Some(fd), Flush::Data) => rustix::fs::fdatasync(&**fd),
            (Some(fd), Flush::All) => rustix::fs::fsync(&**fd),
            (None, _) => rustix::fs::syncfs(self.root.directory()),
        };
        // The window waits for write-back on the same descriptor: each takes errors of the other.
        let flushed = self.state.flush_with_window(|| Ok(flush()?));
        if flushed.is_err() {
            self.state.discard_errors();
        }
        Ok(flushed?)
    }
}

#[cfg(test)]
impl Inode {
    /// Makes each flush of a regular file fail, as a disk that takes nothing does, while what this
    /// returns is held: `fsync` refuses a pipe, which is its descriptor for writing from now on.
    pub(super) fn fail_flushes(&self) -> Arc<std::os::fd::OwnedFd> {
        let file = self.file().unwrap();
        let writer = Arc::new(rustix::pipe::pipe().unwrap().1);
        file.state.note_writer(&writer);
        file.descriptors().write = Some(Arc::clone(&writer));
        writer
    }
}
