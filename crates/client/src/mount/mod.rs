//! The FUSE mount: a [`FileSystem`] as a directory of this machine.
//!
//! The kernel keeps pages and names, and asks us for the rest: `request` says what it may ask,
//! `reply` what it is told, `session` carries the conversation on, and `operations` and its
//! neighbours turn one into the other. Of fuser we use the mounting and the agreement with the
//! kernel; its requests and replies have no room for a type of file that is not known, for numbers
//! of files that are not those of the kernel, and for callers that are killed.

mod attr;
mod buffer;
mod callers;
mod file;
mod grants;
mod handles;
mod kernel;
mod namespace;
mod nodes;
mod operations;
mod readdir;
mod reply;
mod request;
mod session;

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
use kernel::{Kernel, REQUEST_BYTES_MAX, Unmounter};
pub use kernel::{MountError, Unmounted};
use operations::{Operations, Rules};
use session::Session;

/// A file system that is mounted on a directory, and served as long as this exists.
pub struct Mount {
    file_system: FileSystem,
    operations: Arc<Operations>,
    unmounter: Unmounter,
    /// One for each thread that serves; it says how it ended.
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
    /// [`MountError`] says what stands in the way.
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
            let served =
                serve_all(&kernel, &operations).map_err(|source| MountError::Device { source })?;
            kernel::widen_read_ahead(kernel.dir(), REQUEST_BYTES_MAX);
            Ok((kernel, operations, served))
        });
        let (mut kernel, operations, served) = mounted.await.expect("mounting does not panic")?;
        let (unmounter, dir) = (kernel.unmounter(), kernel.dir().to_owned());
        Ok(Self { file_system, operations, unmounter, served, kernel: Some(kernel), dir })
    }

    /// Where it is mounted; absolute.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until somebody has unmounted the file system.
    ///
    /// # Errors
    /// The kernel broke the conversation off.
    pub async fn ended(&mut self) -> io::Result<()> {
        let mut outcome = Ok(());
        for served in &mut self.served {
            // A thread that panicked has said so.
            let one = served.await.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            outcome = outcome.and(one);
        }
        self.served.clear();
        if let Some(kernel) = self.kernel.take() {
            kernel.leave();
        }
        outcome
    }

    /// Sends everything that was written to the server and has it committed, so that the file
    /// system may be unmounted.
    ///
    /// # Errors
    /// Of the first file whose data the server does not take.
    pub async fn sync(&self) -> Result<()> {
        self.file_system.sync().await
    }

    /// Closes what the kernel had not closed yet when it went, which a mount in use is full of, and
    /// sends everything to the server.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub async fn finish(&self) -> Result<()> {
        let closed = self.operations.close_all().await;
        self.sync().await.and(closed)
    }

    /// Unmounts; where programs still use the file system it is detached. Blocks.
    ///
    /// # Errors
    /// The kernel or `fusermount` refuses.
    pub fn unmount(&mut self) -> io::Result<Unmounted> {
        self.unmounter.unmount()
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("dir", &self.dir()).finish_non_exhaustive()
    }
}

/// What the options and the server say about answers.
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

/// How a thread that serves ended.
type Served = oneshot::Receiver<io::Result<()>>;

/// Begins to serve the mount on threads of their own.
fn serve_all(kernel: &Kernel, operations: &Arc<Operations>) -> io::Result<Vec<Served>> {
    let runtime = Handle::current();
    operations.notify_through(kernel.notifier());
    let listener = Arc::downgrade(operations);
    let listening_on = runtime.clone();
    operations.file_system.on_foreign_change(move |inode| {
        if let Some(operations) = listener.upgrade() {
            operations.changed_by_others(inode, &listening_on);
        }
    });
    let write_bytes_max = usize::try_from(REQUEST_BYTES_MAX).expect("1 MiB");
    let session = Session::new(kernel.device()?, Arc::clone(operations), runtime, write_bytes_max);
    let serve = |number| {
        let session = Arc::clone(&session);
        let (sender, receiver) = oneshot::channel();
        thread::Builder::new().name(format!("fuse-{number}")).spawn(move || {
            // Nobody listens once the mount is dropped.
            let _ = sender.send(session.serve());
        })?;
        Ok(receiver)
    };
    (0..SERVING_THREADS).map(serve).collect()
}

/// Threads that read requests. What waits for the server is on none of them, so that two are as
/// good as many: one reads while another copies data.
const SERVING_THREADS: usize = 2;

/// `st_blksize` at least.
const BLOCK_BYTES_MIN: u32 = 4096;

/// Bytes of a name at most where the server does not say.
const NAME_BYTES_USUAL: u32 = 255;
