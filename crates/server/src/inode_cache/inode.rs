//! An object that is kept open in one export.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use io::{KernelHandle, RangeLock};
use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use super::closings::Closing;
use super::descriptor_count::Counted;
use super::file::File;
use super::known_rights::KnownRights;
use super::state::{InodeState, InodeStates};
use super::{Attributes, DirectoryStreams, WriteQueue};
use crate::export::ExportRoot;
use crate::fs::{Caller, LiveAttributes, Status, attributes_of_linked_or_not, proc_path};

/// The key of an object in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct InodeKey {
    /// Where its export's root is in memory, which stays the root's alone while the object is open:
    /// a reload may give the same export id to another directory.
    root: usize,
    handle: KernelHandle,
}

impl InodeKey {
    /// The key of the object with this handle in an export.
    pub(crate) fn new(root: &Arc<ExportRoot>, handle: KernelHandle) -> Self {
        Self { root: Arc::as_ptr(root).addr(), handle }
    }
}

/// An object that is kept open in one export. It can be used as its [`InodeState`], which all
/// exports share.
pub(crate) struct Inode {
    // Constant.
    pub(super) root: Arc<ExportRoot>,
    pub(super) handle: KernelHandle,
    pub(super) file_type: FileType,
    pub(super) base: Arc<OwnedFd>,
    pub(super) state: Arc<InodeState>,

    pub(super) contents: Contents,
    pub(super) rights: KnownRights,
    /// The kernel has it in memory whether there is an access control list.
    pub(super) is_access_list_in_memory: AtomicBool,

    // Atomic.
    pub(super) referenced: AtomicBool,
    pub(super) used_at_tick: AtomicU64,
    /// When a directory was last known to lie below the export, in seconds of the table's clock.
    pub(super) placed_at_secs: AtomicU64,

    // The last fields: what they count counts until the descriptors are closed.
    /// Set when it was given to a thread of its device to be closed.
    pub(super) closing: OnceLock<Closing>,
    /// Its descriptors.
    counted: Counted,
}

/// The part of an inode that depends on its type.
pub(super) enum Contents {
    File(File),
    Directory(Directory),
    /// Symbolic links, pipes, sockets and devices: nothing but their attributes.
    Other,
}

/// A directory in one export.
#[derive(Default)]
pub(super) struct Directory {
    streams: Mutex<DirectoryStreams>,
    /// Opened when it is first flushed.
    pub(super) reader: OnceLock<Arc<OwnedFd>>,
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.root.note_closed(&self.handle, self.base.as_fd());
    }
}

impl Deref for Inode {
    type Target = InodeState;

    fn deref(&self) -> &InodeState {
        &self.state
    }
}

impl Inode {
    /// An object known by a descriptor, which may be an `O_PATH` one.
    pub(super) fn new(
        states: &Arc<InodeStates>,
        root: Arc<ExportRoot>,
        handle: KernelHandle,
        file_type: FileType,
        (base, counted): (OwnedFd, Counted),
    ) -> Self {
        root.note_open(&handle, base.as_fd());
        let state = states.state(&root.file_system, handle, file_type);
        let contents = match (file_type, &state.file) {
            (_, Some(file)) => Contents::File(File::new(file)),
            (FileType::Directory, None) => Contents::Directory(Directory::default()),
            (_, None) => Contents::Other,
        };
        Self {
            state,
            root,
            handle,
            file_type,
            base: Arc::new(base),
            contents,
            rights: KnownRights::default(),
            is_access_list_in_memory: AtomicBool::new(false),
            referenced: AtomicBool::new(false),
            used_at_tick: AtomicU64::new(0),
            placed_at_secs: AtomicU64::new(0),
            closing: OnceLock::new(),
            counted,
        }
    }

    /// The export it belongs to.
    pub(crate) fn root(&self) -> &Arc<ExportRoot> {
        &self.root
    }

    /// Where the root of its export is in memory, which is its own while the object is open.
    pub(crate) fn root_address(&self) -> u64 {
        let address = Arc::as_ptr(&self.root).addr();
        u64::try_from(address).expect("an address has at most 64 bits")
    }

    /// The kernel's handle.
    pub(crate) fn handle(&self) -> &KernelHandle {
        &self.handle
    }

    /// Regular file, directory, …
    pub(crate) fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Its attributes now, for a reply. May block.
    ///
    /// # Errors
    /// As [`Self::live_attributes`].
    pub(crate) fn attributes(&self) -> Result<Attributes, Status> {
        Ok(self.state.lock.attributes(self.live_attributes()?))
    }

    /// Its attributes as the kernel has them. May block.
    ///
    /// # Errors
    /// Those of `statx`; `Stale` without a name left, unless a client has it open.
    pub(crate) fn live_attributes(&self) -> Result<LiveAttributes, Status> {
        let attributes = attributes_of_linked_or_not(self.fd())?;
        let is_gone = attributes.nlink == 0 && !self.is_held();
        if is_gone { Err(Status::Stale) } else { Ok(attributes) }
    }

    /// A descriptor good for attributes and as the start of a path, not for data.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.base.as_fd()
    }

    /// Counts the descriptors that it has now. To be called when one was opened or closed.
    pub(super) fn count_descriptors(&self) {
        match &self.contents {
            Contents::File(file) => {
                // Counted under their lock: an older number must not come last.
                let descriptors = file.descriptors();
                self.counted.set(1 + descriptors.number_beside(&self.base));
            }
            // Opened once and kept.
            Contents::Directory(directory) if directory.reader.get().is_some() => {
                self.counted.set(2);
            }
            Contents::Directory(_) | Contents::Other => {}
        }
    }

    /// The descriptors that it has.
    #[cfg(test)]
    pub(super) fn descriptors_open(&self) -> usize {
        self.counted.number()
    }

    /// The part that only a regular file has.
    ///
    /// # Errors
    /// `IsDirectory`, or `Invalid` for any other type.
    pub(super) fn file(&self) -> Result<&File, Status> {
        match &self.contents {
            Contents::File(file) => Ok(file),
            Contents::Directory(_) => Err(Status::IsDirectory),
            Contents::Other => Err(Status::Invalid),
        }
    }

    /// The WRITEs of a regular file that wait for the inode lock.
    pub(crate) fn writes(&self) -> Option<&Arc<WriteQueue>> {
        self.file().ok().map(|file| &file.writes)
    }

    /// Whether a WRITE of this caller will most likely be permitted, for the last one was.
    pub(crate) fn expects_writer(&self, caller: &Caller) -> bool {
        !caller.read_only && self.file().is_ok_and(|file| file.has_last_writer(caller))
    }

    /// The lock that keeps cached and direct I/O on the pages of a regular file apart.
    pub(crate) fn ranges(&self) -> Option<&Arc<RangeLock>> {
        self.file().ok().map(|file| &file.state.ranges)
    }

    /// Keeps WRITEs that come later behind a change that is about to wait for the inode lock.
    pub(crate) fn close_write_batch(&self) {
        if let Some(writes) = self.writes() {
            writes.close();
        }
    }

    /// A descriptor of its own for listing a directory, as the identity of this thread.
    ///
    /// # Errors
    /// As [`Self::open_reader`].
    pub(crate) fn open_stream(&self) -> Result<OwnedFd, Status> {
        self.reopen(OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// A directory's listings in progress.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub(crate) fn streams(&self) -> Result<MutexGuard<'_, DirectoryStreams>, Status> {
        let Contents::Directory(directory) = &self.contents else {
            return Err(Status::NotDirectory);
        };
        Ok(directory.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a tick of a directory's listings. Whether no call has continued one of them for more
    /// than so many, as far as can be seen without waiting.
    pub(super) fn tick_streams(&self, idle_ticks_max: u64) -> bool {
        let Contents::Directory(directory) = &self.contents else { return false };
        match directory.streams.try_lock() {
            Ok(mut streams) => streams.tick(idle_ticks_max),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().tick(idle_ticks_max),
            // It is in use, by a call that may wait for the disk.
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Closes the listings that no call has continued for more than so many ticks. May wait for the
    /// disk.
    pub(super) fn close_idle_streams(&self, idle_ticks_max: u64) {
        // Closed when others may use the rest.
        drop(self.streams().map(|mut streams| streams.take_idle(idle_ticks_max)));
    }

    /// A descriptor for a read lease, and for nothing else: as the server's user. May block.
    ///
    /// # Errors
    /// `IsDirectory` or `Invalid` for what has no data, and those of open(2).
    pub(crate) fn open_for_lease(&self) -> Result<OwnedFd, Status> {
        self.file()?;
        self.reopen(OFlags::RDONLY | OFlags::NONBLOCK)
    }

    pub(super) fn reopen(&self, flags: OFlags) -> Result<OwnedFd, Status> {
        Ok(self.reopen_raw(flags)?)
    }

    pub(super) fn reopen_raw(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(CWD, proc_path(self.fd()), flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Where it is now, in printable characters, for messages.
    pub(crate) fn shown_path(&self) -> Option<String> {
        let path = io::path_of(self.fd())?;
        Some(path.as_os_str().as_encoded_bytes().escape_ascii().to_string())
    }

    /// Where the state that all exports share is in memory: its own as long as the object is open.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.state).addr()
    }

    /// Whether no other export has the object open.
    pub(super) fn has_state_alone(&self) -> bool {
        Arc::strong_count(&self.state) == 1
    }

    /// Its key in the cache.
    pub(crate) fn key(&self) -> InodeKey {
        InodeKey::new(&self.root, self.handle)
    }
}
