//! OPEN, CREATE, READ, WRITE, FLUSH, FSYNC and RELEASE.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{FileHandle, Status};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::time::timeout_at;
use tracing::debug;

use super::callers::{is_exiting, is_exiting_by_signal, process_of};
use super::operations::{OpenFile, Operations, Outcome, Refusal, is_set_id};
use super::reply::{
    Answer, MODE_BITS, OPEN_DIRECT_IO, OPEN_KEEP_CACHE, OPEN_NO_FLUSH, OPEN_PARALLEL_DIRECT_WRITES,
};
use super::request::{Head, Name, WRITE_CACHE, WRITE_KILL_SUIDGID};
use super::short_write::ShortWrite;
use crate::error::{Error, Result};
use crate::file::{File, OpenFlags};

/// Maximum of files whose mappings are written back at the same time: each takes a thread.
const WRITING_BACK_MAX: usize = 16;

/// How long the exit of a program that a signal has ended waits for the server.
pub(super) const EXIT_WAIT_MAX: Duration = Duration::from_secs(5);

/// A WRITE of a file of which the kernel may have pages that are older. They are dropped as after a
/// change by another client.
struct StalePages<'a> {
    operations: &'a Arc<Operations>,
    handle: FileHandle,
}

impl Drop for StalePages<'_> {
    fn drop(&mut self) {
        // None while the mount ends.
        if let Ok(runtime) = Handle::try_current() {
            self.operations.changed_by_others(self.handle, &runtime);
        }
    }
}

impl Operations {
    /// OPEN. ACCESS checks the caller's permission, because later requests may be answered from
    /// caches; its attributes revalidate the caches for close-to-open consistency. With `O_TRUNC`
    /// the kernel sends a SETATTR next.
    pub(super) async fn open(&self, head: &Head, flags: u32) -> Outcome {
        let node = self.node(head.node)?;
        let caller = self.as_caller(head);
        let before = node.inode.attributes();
        let file = if flags & FMODE_EXEC == 0 {
            let file = caller.open(&node.inode, open_flags(flags)).await?;
            // For the SETATTR of O_TRUNC.
            if file.flags().write {
                node.note_granted(&caller, before.ctime, file.flags().wanted());
            }
            file
        } else {
            let program = caller.open_program(&node.inode, open_flags(flags)).await?;
            // The kernel has asked for the mode before, and got it from the cache. Another client
            // may have written the file since.
            if node.view().has_other_set_id(&before, &node.inode.attributes()) {
                // A path is looked up again after ESTALE; a descriptor is not, and the next try
                // asks for the mode only if the kernel does not believe what it has.
                node.view().discard_attributes();
                self.invalidate_attributes(head.node);
                return Err(Refusal(Errno::STALE));
            }
            program
        };
        // Pages are dropped before the reply and not during the GETATTR of the next read, see
        // `kernel_view`.
        node.pages_dropped().await;
        let bypasses_pages = self.must_bypass_pages(&node, file.flags().read);
        let keeps_pages = self.prepare_open(head.node, &node);
        let reply_flags = reply_flags(&file, flags, keeps_pages, bypasses_pages);
        let short_write = ShortWrite::default();
        let open = OpenFile { file, keeps_pages, bypasses_pages, short_write };
        let fh = self.files.insert(open).ok_or(Refusal(Errno::NOTCONN))?;
        Ok(Answer::opened(fh, reply_flags))
    }

    /// CREATE: creates a file that does not exist, and opens it. Its mode does not restrict this
    /// open.
    pub(super) async fn create(
        &self,
        head: &Head,
        Name(name): &Name,
        mode: u32,
        flags: u32,
    ) -> Outcome {
        let dir = self.node(head.node)?;
        let caller = self.as_caller(head);
        let mode = mode & MODE_BITS;
        let before = dir.inode.before_call();
        let inode = if flags & O_EXCL != 0 {
            caller.create(&dir.inode, name, mode, true).await?
        } else {
            let created = caller.create_for_open(&dir.inode, name, mode).await;
            created.map_err(created_meanwhile)?
        };
        let file = caller.open_created(&inode, open_flags(flags))?;
        let ttl = self.believed_ttl(&dir.inode, before, None);
        let entry = self.entry(&dir.inode, &inode, ttl, Duration::MAX);
        let node = self.node(entry.node)?;
        let bypasses_pages = self.must_bypass_pages(&node, file.flags().read);
        let keeps_pages = node.view().open(inode.foreign_change_at(), Instant::now());
        let reply_flags = reply_flags(&file, flags, keeps_pages, bypasses_pages);
        let short_write = ShortWrite::default();
        let open = OpenFile { file, keeps_pages, bypasses_pages, short_write };
        let Some(fh) = self.files.insert(open) else {
            self.forget(entry.node, 1);
            return Err(Refusal(Errno::NOTCONN));
        };
        Ok(Answer::created(&entry, fh, reply_flags))
    }

    pub(super) async fn read(&self, head: &Head, fh: u64, offset: u64, size: u32) -> Outcome {
        let node = self.node(head.node)?;
        let _answered = node.begin_transfer();
        let size = usize::try_from(size).expect("a usize has at least 32 bits");
        Ok(Answer::data(self.file(fh)?.file.read_at(offset, size).await?))
    }

    /// WRITE. An error of an earlier one ends the caller's write(2), see [`ShortWrite`].
    pub(super) async fn write(
        self: &Arc<Self>,
        head: &Head,
        fh: u64,
        offset: u64,
        write_flags: u32,
        flags: u32,
        data: &Bytes,
    ) -> Outcome {
        // Before the file is looked up, which `finish` takes away.
        let _performed = self.writes.read().await;
        let open = self.file(fh)?;
        let node = self.node(head.node)?;
        let _answered = node.begin_transfer();
        // Behind a mapping there is no write(2). FSYNC and FLUSH report the error.
        let is_write = write_flags & WRITE_CACHE == 0;
        let bypasses_pages = open.bypasses_pages || open.file.flags().direct;
        if is_write && open.short_write.take(head.pid) {
            return_earlier_error(head, &open).await?;
        }
        let mut count = data.len();
        if is_write && open.file.has_failed() {
            count = open.short_write.cut(head.pid, offset, count);
        }
        let is_append = is_write && flags & O_APPEND != 0;
        if is_append {
            node.earlier_parts_appended(offset).await;
        }
        // Until the data is in the file: the parts of an asynchronous write(2) come at once.
        let appending = if is_append { Some(node.appending.lock().await) } else { None };
        let at = match &appending {
            Some(_) => node.append_offset(&self.as_caller(head), offset).await?,
            None => offset,
        };
        // The kernel may have cached pages at either offset. For O_DIRECT it drops them before the
        // first WRITE of a write(2) and, up to Linux 6.17 and for asynchronous writes, not after
        // the last: others may have read them again in between. Also if the caller is killed.
        let is_direct = is_write && open.file.flags().direct;
        let _stale = (open.bypasses_pages || is_direct || at != offset)
            .then(|| StalePages { operations: self, handle: node.inode.handle() });
        // The kernel extends the file by itself.
        let growth = node.begin_growth(offset + count as u64);
        open.file.write_bytes_at(at, &data.slice(..count)).await?;
        drop(appending);
        // RWF_DSYNC or `remount,sync`. For a file in the page cache the kernel sends FSYNC instead.
        if is_write && bypasses_pages && flags & O_DSYNC != 0 {
            open.file.inode().written()?.commit().await;
        }
        // The server clears set-id bits with the WRITE, and stat(2) after write(2) must show that.
        if write_flags & WRITE_KILL_SUIDGID != 0 && is_set_id(&node.inode) {
            open.file.inode().send_written().await;
        }
        // The error of this WRITE, in a file whose writes wait for the server.
        let is_cut = is_write && count == data.len() && open.file.has_failed();
        let grown = if is_cut {
            count = open.short_write.cut(head.pid, offset, count);
            drop(growth);
            None
        } else {
            growth.finish().then_some(head.node)
        };
        Ok(Answer::written(u32::try_from(count).expect("a WRITE is below 4 GiB"), grown))
    }

    /// FLUSH, which is close(2) of a descriptor of an open file. As [`sync`](Self::sync), but the
    /// error is left for FSYNC and the next FLUSH: execve(2) and dup2(2) close descriptors too and
    /// ignore the result, and the program that wrote can have another. RELEASE counts it as
    /// reported.
    ///
    /// When a process exits with open descriptors, the error is left for the next open and for
    /// [`finish`](Self::finish) as well, also if an earlier FLUSH has returned it. A process that a
    /// signal ends waits for the server for [`EXIT_WAIT_MAX`] only, for all its files, because no
    /// further signal would end that wait: RELEASE commits.
    pub(super) async fn flush(&self, head: &Head, fh: u64) -> Outcome {
        let open = self.file(fh)?;
        // Only a FLUSH that returns the error counts, see `Session::abandon` as well.
        open.file.unpeek();
        let written = open.file.inode().written()?;
        if written.is_clean() || !is_exiting_by_signal(head.pid) {
            written.commit().await;
        } else {
            let deadline = self.callers.exit_deadline(head.pid, EXIT_WAIT_MAX);
            if timeout_at(deadline.into(), written.commit()).await.is_err() {
                return Ok(Answer::done());
            }
        }
        let has_error = open.file.has_failed() || open.short_write.has_returned();
        if !has_error {
            return Ok(Answer::done());
        }
        if is_exiting(head.pid) {
            // Another FLUSH can have returned the error meanwhile.
            open.file.unpeek();
            return Ok(Answer::done());
        }
        let returned = open.short_write.take_returned_to(process_of(head.pid));
        open.file.peek()?;
        returned.map_or_else(|| Ok(Answer::done()), |errno| Err(Refusal(errno)))
    }

    /// FSYNC. Sends and commits all data, and returns the error of an earlier write that has not
    /// been reported, or was by a WRITE.
    pub(super) async fn sync(&self, fh: u64) -> Outcome {
        let open = self.file(fh)?;
        let returned = open.short_write.take_returned();
        open.file.sync().await?;
        match returned {
            Some(errno) => Err(Refusal(errno)),
            None => Ok(Answer::done()),
        }
    }

    /// RELEASE: the last descriptor and the last mapping are gone. The kernel ignores the result,
    /// so write errors are left for the next open and for [`finish`](Self::finish).
    pub(super) async fn release(&self, fh: u64) {
        // The request of a killed caller can still hold the file, and closes it when it ends.
        if let Some(open) = self.files.remove(fh).and_then(Arc::into_inner) {
            open.file.release().await;
        }
    }

    /// Closes all open files, and sends and commits all written data. OPEN and CREATE fail with
    /// ENOTCONN from now on, as they do once this process has ended: what is written after this
    /// would be lost with it.
    ///
    /// # Errors
    /// Losses that were reported to no program, or not to one that has the file open for writing
    /// still.
    pub(super) async fn finish(&self) -> Result<()> {
        // Before the closes, which wait for the REMOVE of deleted files, too.
        self.file_system.commit().await;
        let mut checked = Ok(());
        for open in self.files.take_all() {
            if open.file.flags().write {
                checked = checked.and(open.file.check_closing());
            }
            // As in `release`.
            if let Some(open) = Arc::into_inner(open) {
                open.file.release().await;
            }
        }
        // WRITEs that had found their file: what they store is synced too.
        drop(self.writes.write().await);
        // RELEASEs in progress, and UNLINKs and RENAMEs whose callers were killed, which the end of
        // the process would abort.
        self.file_system.root().superblock().closes_ended().await;
        let synced = self.file_system.sync().await;
        checked.and(synced)
    }

    /// Has the kernel write back what programs have stored through mappings, as neither the unmount
    /// of a file system in use nor the end of this process does. Waits for the server first, and
    /// for the WRITEs.
    pub(super) async fn write_mappings_back(&self) {
        let Some(notifier) = self.notifier.get() else { return };
        let written: HashSet<_> = self.files.collect(|open| {
            let inode = open.file.inode();
            open.file.flags().write.then(|| inode.handle())
        });
        self.is_writing_back.store(true, Ordering::Release);
        if !written.is_empty() {
            // A thread that waits in the kernel cannot be killed, and the connection to a killed
            // process does not end before it. An error is an answer, or a soft mount's, where
            // WRITEs end too.
            let _ = self.file_system.revalidate(&self.file_system.root()).await;
        }
        // Stays if this future is dropped.
        let mut dropping = self.dropping_mappings.lock().await;
        for (number, _) in written.into_iter().filter_map(|handle| self.nodes.find(handle)) {
            if dropping.len() >= WRITING_BACK_MAX {
                dropping.join_next().await;
            }
            let notifier = notifier.clone();
            dropping.spawn_blocking(move || {
                if let Err(error) = notifier.invalidate(number, 0) {
                    debug!(%error, "cannot have the kernel write back a mapping");
                }
            });
        }
        while dropping.join_next().await.is_some() {}
        self.is_writing_back.store(false, Ordering::Release);
    }

    /// Whether data may still come to the file system: by a WRITE that is being performed, or since
    /// a [`write_mappings_back`](Self::write_mappings_back) was dropped before it had ended, and
    /// none has ended since.
    pub(super) fn is_written_to(&self) -> bool {
        self.writes.try_write().is_err() || self.is_writing_back.load(Ordering::Acquire)
    }

    /// Whether the kernel still writes mappings back, after that.
    pub(super) async fn is_kernel_writing_back(&self) -> bool {
        !self.dropping_mappings.lock().await.is_empty()
    }

    /// Waits until the kernel has ended that.
    pub(super) async fn written_back(&self) {
        while self.dropping_mappings.lock().await.join_next().await.is_some() {}
    }

    /// The kernel has refused the reply to an OPEN by which it would have dropped the file's pages.
    pub(super) fn reconsider_pages(self: &Arc<Self>, fh: u64) {
        if let Some(open) = self.files.get(fh)
            && !open.keeps_pages
        {
            self.changed_by_others(open.file.inode().handle(), &Handle::current());
        }
    }

    fn file(&self, fh: u64) -> std::result::Result<Arc<OpenFile>, Refusal> {
        self.files.get(fh).ok_or(Refusal(Errno::BADF))
    }
}

/// Returns the error of an earlier WRITE. If there was no space, the data written meanwhile is
/// lost with the same report, as with the kernel's NFS client: programs that use the open file
/// later have not lost it.
async fn return_earlier_error(head: &Head, open: &OpenFile) -> std::result::Result<(), Refusal> {
    let Err(error) = open.file.check() else { return Ok(()) };
    let Refusal(errno) = error.into();
    if matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG) {
        open.file.inode().send_written().await;
        // Reported as `errno`.
        let _ = open.file.check();
    }
    open.short_write.note_returned(process_of(head.pid), errno);
    Err(Refusal(errno))
}

/// The error of a CREATE without `O_EXCL`. Another client may have created the name since the
/// kernel's LOOKUP. After ESTALE the kernel looks it up again and opens what it finds, with the
/// caller's permissions.
fn created_meanwhile(error: Error) -> Refusal {
    if error.is(Status::Exist) { Refusal(Errno::STALE) } else { error.into() }
}

fn open_flags(flags: u32) -> OpenFlags {
    let mode = flags & O_ACCMODE;
    OpenFlags {
        read: mode != O_WRONLY,
        write: mode != O_RDONLY,
        sync: flags & O_DSYNC != 0,
        direct: flags & O_DIRECT != 0,
    }
}

/// The flags of the reply to an OPEN, by which the kernel uses its page cache.
fn reply_flags(file: &File, flags: u32, keeps_pages: bool, bypasses_pages: bool) -> u32 {
    let direct = match (flags & O_DIRECT != 0, bypasses_pages) {
        (true, _) => OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES,
        (false, true) => OPEN_DIRECT_IO,
        (false, false) => 0,
    };
    let kept = if keeps_pages { OPEN_KEEP_CACHE } else { 0 };
    // A file opened for reading alone has no errors to report.
    let quiet = if file.flags().write { 0 } else { OPEN_NO_FLUSH };
    direct | kept | quiet
}

/// The flags of open(2) on this architecture.
const O_ACCMODE: u32 = rustix::fs::OFlags::ACCMODE.bits();
const O_RDONLY: u32 = rustix::fs::OFlags::RDONLY.bits();
const O_WRONLY: u32 = rustix::fs::OFlags::WRONLY.bits();
const O_EXCL: u32 = rustix::fs::OFlags::EXCL.bits();
const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();
const O_APPEND: u32 = rustix::fs::OFlags::APPEND.bits();
/// Set in O_SYNC as well.
const O_DSYNC: u32 = rustix::fs::OFlags::DSYNC.bits();

/// `FMODE_EXEC` of the kernel, which it sets among the flags when a program is run.
pub(super) const FMODE_EXEC: u32 = 1 << 5;
