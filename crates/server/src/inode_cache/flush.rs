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
        flushed.map_err(Status::of_flush)
    }
}

#[cfg(test)]
impl Inode {
    /// Makes each flush of a regular file fail, as a disk that takes nothing does, while what this
    /// returns is held: `fsync` refuses a pipe, which is its descriptor for writing from now on.
    pub(super) fn fail_flushes(&self) -> Arc<std::os::fd::OwnedFd> {
        self.write_with(rustix::pipe::pipe().unwrap().1)
    }

    /// Has a regular file written, and flushed, by this descriptor from now on.
    fn write_with(&self, writer: std::os::fd::OwnedFd) -> Arc<std::os::fd::OwnedFd> {
        let (file, writer) = (self.file().unwrap(), Arc::new(writer));
        file.state.note_writer(&writer);
        file.descriptors().write = Some(Arc::clone(&writer));
        writer
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use std::fs::File;
    use std::path::Path;
    use std::process::Command;

    use super::super::InodeCache;
    use super::super::two_devices::{TestExport, engine};
    use super::*;
    use crate::skip::skip;

    #[tokio::test]
    async fn error_of_a_flush_is_a_fault_whatever_its_number() {
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &std::env::temp_dir());
        let file = files.find(&export.file).unwrap();
        let _writer = file.fail_flushes();
        file.note_change();
        assert_eq!(file.flush(&engine, Flush::All).await, Err(Status::Io(Errno::INVAL)));
    }

    /// A file system on a loop device, until this is dropped.
    struct Mounted<'a>(&'a Path);

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            run("umount", &["--lazy".as_ref(), self.0]);
        }
    }

    fn run(program: &str, args: &[&Path]) -> bool {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    }

    #[tokio::test]
    async fn flush_fails_with_an_io_error_after_the_file_system_has_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("mounted"));
        std::fs::create_dir(&at).unwrap();
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        if !run("mkfs.ext4", &["-q".as_ref(), &image])
            || !run("mount", &["-o".as_ref(), "loop".as_ref(), &image, &at])
        {
            return skip("no ext4 can be mounted");
        }
        let _mounted = Mounted(&at);
        let (files, engine) = (InodeCache::new(1000), engine(1));
        let export = TestExport::in_directory(&files, 1, &at);
        let file = files.find(&export.file).unwrap();
        let writer = File::options().write(true).open(export.file_path()).unwrap();
        let _writer = file.write_with(writer.into());
        // As after an error of the disk.
        if !run("mount", &["-o".as_ref(), "remount,abort".as_ref(), &at]) {
            return skip("an ext4 cannot be stopped");
        }
        file.note_change();
        assert_eq!(file.flush(&engine, Flush::All).await, Err(Status::Io(Errno::ROFS)));
    }
}
