//! The FUSE mount: a [`FileSystem`] as a directory of this machine.
//!
//! The kernel caches pages and names, and sends requests for the rest: `request` decodes requests,
//! `reply` encodes replies, `session` reads and writes them, and `operations` and the modules
//! beside it execute them. Of fuser only mounting and the negotiation with the kernel are used: its
//! requests and replies do not support unknown file types, file ids other than the kernel's node
//! numbers, and callers that are killed.

mod attr;
mod buffer;
mod callers;
mod file;
mod grants;
mod guards;
mod handles;
mod kernel;
mod kernel_view;
mod mount_table;
mod namespace;
mod naming;
mod nodes;
mod operations;
mod readdir;
mod remount;
mod reply;
mod request;
mod session;
mod short_write;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task;

use crate::error::Result;
use crate::file_system::FileSystem;
use crate::mount_options::{FuseOptions, MountRequest};
use kernel::{Kernel, REQUEST_BYTES_MAX};
pub use kernel::{MountError, Unmounted};
use operations::{Operations, Rules};
pub use remount::remount;
use session::Session;

/// A file system that is mounted on a directory, and served as long as this exists.
pub struct Mount {
    file_system: FileSystem,
    operations: Arc<Operations>,
    session: Arc<Session>,
    /// The outcome of each serving thread.
    served: Vec<Served>,
    /// None once the file system is unmounted.
    kernel: Option<Kernel>,
    dir: PathBuf,
}

impl Mount {
    /// Mounts `file_system` on `dir`. `source` is what mount(8) shows, unless the options name it.
    /// To be called in a Tokio runtime of several threads.
    ///
    /// # Errors
    /// [`MountError`] with the reason.
    pub async fn new(
        file_system: FileSystem,
        source: &str,
        dir: &Path,
        request: &MountRequest,
    ) -> std::result::Result<Self, MountError> {
        let rules = rules(&file_system, &request.fuse).await;
        let operations = Arc::new(Operations::new(file_system.clone(), rules));
        let (dir, source, request) = (dir.to_owned(), source.to_owned(), request.clone());
        let mounted = task::spawn_blocking(move || {
            let kernel = Kernel::mount(&dir, &source, &request.nfs, &request.fuse)?;
            let (session, served) =
                serve_all(&kernel, &operations).map_err(|source| MountError::Device { source })?;
            Ok((kernel, operations, session, served))
        });
        let (kernel, operations, session, served) =
            mounted.await.expect("mounting does not panic")?;
        let dir = kernel.dir().to_owned();
        let kernel = Some(kernel);
        let mount = Self { file_system, operations, session, served, kernel, dir: dir.clone() };
        // It waits for the server, and a caller that does not wait longer unmounts.
        let widened =
            task::spawn_blocking(move || kernel::widen_read_ahead(&dir, REQUEST_BYTES_MAX));
        widened.await.expect("setting the read-ahead does not panic");
        Ok(mount)
    }

    /// The mount point, as an absolute path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until the file system is unmounted.
    ///
    /// # Errors
    /// The kernel aborted the connection.
    pub async fn ended(&mut self) -> io::Result<()> {
        let mut outcome = Ok(());
        for served in &mut self.served {
            // The panic hook has reported a thread that panicked.
            let one = served.await.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            outcome = outcome.and(one);
        }
        self.served.clear();
        if let Some(kernel) = self.kernel.take() {
            kernel.leave();
        }
        outcome
    }

    /// Sends and commits all written data, also what programs have stored through mappings, so that
    /// the file system may be unmounted. If this is dropped, [`abandon`](Self::abandon) comes next.
    ///
    /// # Errors
    /// The error of the first file whose data was lost.
    pub async fn sync(&self) -> Result<()> {
        self.operations.write_mappings_back().await;
        self.file_system.sync().await
    }

    /// Closes the files that the kernel had open when a mount in use was unmounted, and sends and
    /// commits all written data, also what programs have stored through mappings since
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync).
    pub async fn finish(&self) -> Result<()> {
        // An unmount by another process has ended the connection, and with it the mappings.
        if !self.served.is_empty() {
            self.operations.write_mappings_back().await;
        }
        self.operations.finish().await
    }

    /// The result of [`finish`](Self::finish) as far as it is known, for a caller that waits no
    /// longer: `None` if there is data that is not committed. Deleted files may remain to be
    /// removed.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<()>> {
        // In this order, so that no error is recorded in between.
        let is_clean = !self.operations.is_written_to() && self.file_system.is_clean();
        is_clean.then(|| self.file_system.check_lost())
    }

    /// Ends what a dropped [`sync`](Self::sync) or [`finish`](Self::finish) has begun in the
    /// kernel, whose threads cannot be killed while they wait for a page: READs and WRITEs fail
    /// from now on. Returns whether there was such a thing, whose data is lost.
    pub async fn abandon(&self) -> bool {
        let is_begun = self.operations.is_kernel_writing_back().await;
        if is_begun {
            self.session.refuse();
            self.operations.written_back().await;
        }
        is_begun
    }

    /// Unmounts; where programs still use the file system it is detached. Blocks.
    ///
    /// # Errors
    /// The kernel or `fusermount` refuses; or the mount point has another path by now.
    pub fn unmount(&mut self) -> io::Result<Unmounted> {
        let Some(kernel) = &self.kernel else { return Ok(Unmounted::Gone) };
        let unmounted = kernel.unmount()?;
        if let Some(kernel) = self.kernel.take() {
            kernel.leave();
        }
        Ok(unmounted)
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("dir", &self.dir()).finish_non_exhaustive()
    }
}

/// The rules of replies, from the options and the server.
async fn rules(file_system: &FileSystem, fuse: &FuseOptions) -> Rules {
    let block_bytes = file_system.info().wtmax.clamp(BLOCK_BYTES_MIN, REQUEST_BYTES_MAX);
    let limits = file_system.nfs().pathconf(file_system.root().handle()).await;
    Rules {
        ask_before_search: fuse.allow_other && !fuse.default_permissions,
        lookup_cache: fuse.lookup_cache,
        block_bytes: 1 << block_bytes.ilog2(),
        name_max: limits.map_or(NAME_BYTES_USUAL, |limits| limits.name_max),
    }
}

/// The outcome of a serving thread.
type Served = oneshot::Receiver<io::Result<()>>;

/// Starts the serving threads of the mount.
fn serve_all(
    kernel: &Kernel,
    operations: &Arc<Operations>,
) -> io::Result<(Arc<Session>, Vec<Served>)> {
    let runtime = Handle::current();
    operations.notify_through(kernel.notifier()?, kernel.maps_direct_files());
    let listener = Arc::downgrade(operations);
    let listening_on = runtime.clone();
    operations.file_system.on_foreign_change(move |handle| {
        if let Some(operations) = listener.upgrade() {
            operations.changed_by_others(handle, &listening_on);
        }
    });
    let write_bytes_max = usize::try_from(REQUEST_BYTES_MAX).expect("1 MiB");
    let session = Session::new(kernel.device()?, Arc::clone(operations), runtime, write_bytes_max);
    let serve = |number| {
        let session = Arc::clone(&session);
        let (sender, receiver) = oneshot::channel();
        thread::Builder::new().name(format!("fuse-{number}")).spawn(move || {
            // The receiver is dropped with the mount.
            let _ = sender.send(session.serve());
        })?;
        Ok(receiver)
    };
    let served = (0..SERVING_THREADS).map(serve).collect::<io::Result<_>>()?;
    Ok((session, served))
}

/// Threads that read requests. They do not wait for the server, so two are enough: one reads while
/// the other copies data.
const SERVING_THREADS: usize = 2;

/// Minimum of `st_blksize`.
const BLOCK_BYTES_MIN: u32 = 4096;

/// Maximum bytes of a name, if the server does not return it.
const NAME_BYTES_USUAL: u32 = 255;

#[cfg(test)]
mod tests;
