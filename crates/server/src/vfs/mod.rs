//! File operations, free of any protocol version: objects and callers in, attributes and results
//! out. NFSv3 sits on top of it; nothing below knows of NFS.

mod access;
mod attr;
mod attributes;
mod fsinfo;
mod io_plan;
mod namespace;
mod read;
mod read_ahead;
mod readdir;
mod splice;
mod status;
mod switches;
mod write;
mod write_data;

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use io::{
    BufferPool, Engine, Identity, IoPolicy, KernelHandle, Memory, PipePool, ReadAheadBudget,
    WriteBehind,
};
use tokio::sync::Semaphore;

use crate::counters::Counters;
use crate::export_root::ExportRoot;
use crate::known_handles::KnownHandles;
use crate::open_files::{FileKey, Flush, OpenFile, OpenFiles};
use crate::trace::{CallId, Tracer};
use crate::turns::Turn;

pub(crate) use access::AccessRights;
pub(crate) use attr::{AttributeChange, SetTime};
pub(crate) use attributes::{
    Attributes, Timestamp, attributes_and_birth_at, attributes_of, attributes_of_linked_or_not,
};
pub(crate) use namespace::{CreateMode, NodeKind};
pub(crate) use read::ReadDone;
pub(crate) use readdir::ListingRoom;
pub(crate) use splice::PIPES_MAX;
pub(crate) use status::Status;
pub(crate) use switches::Switches;
pub(crate) use write::Stability;

/// How often an operation that found no free descriptor is tried again, after making room.
const DESCRIPTOR_RETRIES: usize = 3;
/// The longest file name of any Linux file system, in bytes (`NAME_MAX`, limits.h).
const NAME_BYTES_MAX: usize = 255;

/// The file operations of the server.
pub(crate) struct Vfs {
    /// Runs what may block.
    pub(crate) engine: Arc<Engine>,
    /// Payload memory.
    pub(crate) buffers: Arc<BufferPool>,
    /// Pipes for replies whose data is not copied.
    pub(crate) pipes: Arc<PipePool>,
    /// Objects open between requests.
    pub(crate) open_files: OpenFiles,
    /// Places for listings that wait for their next call.
    pub(crate) listings: Arc<Semaphore>,
    /// Handles of what was listed.
    pub(crate) known_handles: Arc<KnownHandles>,
    /// What was done, counted.
    pub(crate) counters: Arc<Counters>,
    /// Prints what is done, where that was asked for.
    pub(crate) tracer: Arc<Tracer>,
    /// What may be done, for all exports.
    pub(crate) switches: Switches,
    /// What memory there is for the page cache.
    pub(crate) memory: Memory,
    /// Data that was written and leaves the page cache behind the writer.
    pub(crate) window: WriteBehind,
    /// Room for chunks that are read ahead.
    pub(crate) read_ahead: ReadAheadBudget,
    /// Bytes that `auto` read from the disk: the clock of what is read again.
    pub(crate) uncached_bytes: AtomicU64,
    /// The most bytes that one READ returns or one WRITE takes.
    pub(crate) transfer_bytes_max: u32,
}

/// An object that an authentic handle of a served export names.
#[derive(Clone)]
pub(crate) struct Object {
    /// The export's root.
    pub(crate) root: Arc<ExportRoot>,
    /// The kernel's handle.
    pub(crate) handle: KernelHandle,
    /// Metadata operations are durable before they are answered.
    pub(crate) sync: bool,
    /// How READs and WRITEs treat the page cache.
    pub(crate) policy: IoPolicy,
    /// [`handle_hash`](crate::trace::handle_hash) of the wire handle. Computed only while an event
    /// is on, so 0 for a call that came before the first was switched on.
    pub(crate) fh_hash: u32,
}

/// Who asks, after squashing, and what the export lets them do.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The client's number for the call.
    pub(crate) xid: u32,
    /// User id of file operations.
    pub(crate) uid: u32,
    /// Primary group.
    pub(crate) gid: u32,
    /// Supplementary groups.
    pub(crate) groups: Arc<[u32]>,
    /// The export is read-only for this caller.
    pub(crate) read_only: bool,
    /// What threads work as. [`Identity::Server`] where the server cannot assume other users.
    pub(crate) identity: Identity,
}

/// Attributes of an object before and after a change to it (RFC 1813 §2.6, `wcc_data`). Both are of
/// the same change: no other operation of this server came between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wcc {
    /// Before the operation.
    pub(crate) before: Option<Attributes>,
    /// After it.
    pub(crate) after: Option<Attributes>,
}

/// The answer to an operation: attributes that the client is to have whether it succeeded or not,
/// and the result.
pub(crate) struct Answer<A, T> {
    /// Attributes of the object or directory the operation was on.
    pub(crate) attributes: A,
    /// What came of it.
    pub(crate) result: Result<T, Status>,
}

impl<A: Default, T> Answer<A, T> {
    fn refused(status: Status) -> Self {
        Self { attributes: A::default(), result: Err(status) }
    }
}

/// An object found or made under a name.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// Its handle.
    pub(crate) handle: KernelHandle,
    /// Its attributes.
    pub(crate) attributes: Attributes,
}

impl Object {
    fn key(&self) -> FileKey {
        FileKey::new(&self.root, self.handle)
    }

    /// What trace events call an operation of `caller` on this object.
    pub(crate) fn call_id(&self, caller: &Caller) -> CallId {
        CallId { xid: caller.xid, fh_hash: self.fh_hash }
    }
}

impl Caller {
    fn may_change(&self) -> Result<(), Status> {
        if self.read_only { Err(Status::ReadOnly) } else { Ok(()) }
    }
}

impl Vfs {
    /// The open object behind a handle.
    ///
    /// # Errors
    /// `Stale` when it is gone.
    async fn open(&self, object: &Object) -> Result<Arc<OpenFile>, Status> {
        let key = object.key();
        if let Some(file) = self.open_files.find(&key) {
            if self.open_files.place_is_due(&file) {
                self.check_place(&file).await?;
            }
            return Ok(file);
        }
        self.open_files.make_room(&key, &self.engine).await;
        let opened = self
            .with_descriptors(|| {
                let root = Arc::clone(&object.root);
                let handle = object.handle;
                self.engine.metadata(Identity::Server, move || {
                    let fd = root.open(&handle)?;
                    let attributes = attributes_of(&fd)?;
                    Ok((fd, attributes))
                })
            })
            .await;
        if opened.as_ref().is_err_and(|status| *status == Status::Stale) {
            object.root.forget(&object.handle, &self.known_handles);
        }
        let (fd, attributes) = opened?;
        let root = Arc::clone(&object.root);
        let file = OpenFile::new(root, object.handle, attributes.file_type, fd);
        Ok(self.open_files.insert(file))
    }

    /// Makes sure that an open directory still lies below its export.
    ///
    /// # Errors
    /// `Stale` when it was moved out or removed.
    async fn check_place(&self, file: &Arc<OpenFile>) -> Result<(), Status> {
        let directory = Arc::clone(file);
        let job = move || directory.root().is_above(directory.fd());
        if self.in_metadata_lane(Identity::Server, job).await? {
            return Ok(());
        }
        self.open_files.forget(&file.key());
        Err(Status::Stale)
    }

    /// The attributes of an open object. Answered on this thread where the file system keeps them
    /// in memory.
    async fn attributes(&self, file: &Arc<OpenFile>) -> Result<Attributes, Status> {
        let result = if file.root().attributes_in_memory {
            attributes_of(file.fd())
        } else {
            let file = Arc::clone(file);
            self.in_metadata_lane(Identity::Server, move || attributes_of(file.fd())).await
        };
        if result == Err(Status::Stale) {
            self.open_files.forget(&file.key());
        }
        result
    }

    /// Runs a blocking operation as `identity`.
    async fn in_metadata_lane<T: Send + 'static>(
        &self,
        identity: Identity,
        job: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.engine.metadata(identity, job).await.unwrap_or_else(|error| Err(no_identity(&error)))
    }

    /// Runs an operation that opens descriptors. When the process or the system has none left,
    /// cached ones are given up and it is tried again: the limit is never the client's problem.
    async fn with_descriptors<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, Status>
    where
        F: Future<Output = std::io::Result<Result<T, Status>>>,
    {
        for _ in 0..DESCRIPTOR_RETRIES {
            match attempt().await {
                Ok(Err(Status::Delay)) => self.open_files.shrink(&self.engine).await,
                Ok(result) => return result,
                Err(error) => return Err(no_identity(&error)),
            }
        }
        Err(Status::Delay)
    }

    /// The open object behind a handle, and the turn to change it.
    ///
    /// # Errors
    /// `Stale` when it is gone.
    async fn take_turn(&self, object: &Object) -> Result<(Arc<OpenFile>, Turn), Status> {
        let file = self.open(object).await?;
        let alone = file.turns.alone().await;
        let before = self.attributes(&file).await?;
        Ok((file, Turn::new(alone, before)))
    }

    /// Makes a change of `file` durable where the export promises that.
    async fn settle(&self, file: &Arc<OpenFile>, sync: bool) -> Result<(), Status> {
        file.note_change();
        if sync { file.flush(&self.engine, Flush::All).await } else { Ok(()) }
    }
}

/// A job did not run because its thread could not act as the user it was for.
fn no_identity(error: &std::io::Error) -> Status {
    tracing::error!(%error, "a thread could not take on the caller's identity");
    Status::ServerFault
}

/// Checks one path component that a client sent.
///
/// # Errors
/// `NameTooLong`, or `Invalid` for what can be no name: empty, with a slash or a NUL.
fn component(name: &[u8]) -> Result<CString, Status> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') {
        return Err(Status::Invalid);
    }
    CString::new(name).map_err(|_| Status::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_one_name() {
        assert!(component(b"a").is_ok());
        assert!(component(&[b'a'; 255]).is_ok());
        assert_eq!(component(&[b'a'; 256]), Err(Status::NameTooLong));
        for bad in [&b""[..], b"a/b", b"/", b"a\0b"] {
            assert_eq!(component(bad), Err(Status::Invalid), "{bad:?}");
        }
    }
}
