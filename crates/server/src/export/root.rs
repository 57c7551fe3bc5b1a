//! The directory behind an export, and how a handle becomes an open object below it.
//!
//! With the capability to open by handle (CAP_DAC_READ_SEARCH) the kernel does all of it, and a
//! handle lives as long as its inode. Without it (an ordinary user, most containers) the server
//! remembers under which name it last met each inode and opens by path; see `docs/rootless.md`.

use std::ffi::CStr;
use std::hash::Hasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use io::{Device, Engine, KernelHandle, KernelReadAhead};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, statx};
use rustix::io::Errno;
use siphasher::sip::SipHasher24;

use super::kind::Kind;
use super::places::{DEPTH_MAX, Places, is_no_evidence};
use super::{FileSystem, FileSystems, IoSupport};
use crate::counters::CounterSet;
use crate::fs::{
    LiveAttributes, PATH_ONLY, Status, Timestamp, attributes_and_birth_of, attributes_of,
    attributes_of_linked_or_not,
};
use crate::random::random_u64;

/// The types of the handles that the server makes itself, where the file system has none: of inode
/// number and birth time, or of inode number and generation (`generations`). The kernel's own types
/// are small and positive.
const BIRTH_HANDLE_KIND: i32 = -1;
const GENERATION_HANDLE_KIND: i32 = -2;

/// The root of an export as the kernel sees it. Lives as long as the export keeps its directory and
/// id, over reloads of the configuration, so that what is open stays open.
pub(crate) struct ExportRoot {
    /// The id in file handles; also the file system id that clients see, stable over restarts.
    pub(crate) id: u32,
    /// Distinguishes handles of this directory tree from those of another one that was or will be
    /// at the same path. The same for one directory over restarts, remounts and renames.
    pub(crate) tree: u32,
    /// The name that clients mount, for messages.
    name: Mutex<String>,
    /// The handle of the root itself.
    pub(crate) handle: KernelHandle,
    /// The state shared with the other exports of its file system.
    pub(crate) file_system: Arc<FileSystem>,
    /// Whether `statx` of an open file answers from memory, so that it may be called on a thread
    /// that must not block. True for the local file systems known to do so.
    pub(crate) attributes_in_memory: bool,
    /// Whether every change of a file renews its change time or raises an event, stores through
    /// mappings included.
    pub(crate) shows_changes: bool,
    /// The features that its file system lacks.
    pub(crate) io_support: IoSupport,
    /// How the kernel reads from its device into the page cache; `None` where that is not known.
    pub(crate) kernel_read_ahead: Option<KernelReadAhead>,
    /// A number that no other root has had, not even one of the same path: between the two there
    /// may have been another file system of the same device number.
    serial: u64,
    /// The counts of the export while this root serves it.
    pub(crate) counters: Arc<CounterSet>,
    directory: OwnedFd,
    device: (u32, u32),
    threads: OnceLock<Device>,
    /// The mount through which it was opened, where the kernel reports it.
    mount: Option<u64>,
    /// The export leads elsewhere now, or is gone, and no call is at work in it.
    retired: AtomicBool,
    /// Whether objects of this one file system show different devices.
    has_layers: bool,
    /// Inode number.
    pub(crate) fileid: u64,
    kernel_names_inodes: bool,
    /// Whether an inode keeps one handle from its birth, which `statx` reports, to its end.
    handles_last: bool,
    /// `None` where the kernel opens handles.
    places: Option<Places>,
}

impl ExportRoot {
    /// Opens the directory `path` as the root of export `id`, on one of `file_systems`.
    ///
    /// # Errors
    /// `path` is not a directory that the server may read.
    pub(crate) fn open_path(
        id: u32,
        path: &Path,
        file_systems: &FileSystems,
        counters: Arc<CounterSet>,
    ) -> std::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        let attributes = attributes_of(&directory)
            .map_err(|_| std::io::Error::other("the directory has no attributes"))?;
        let kernel_names_inodes = match io::name_to_handle(directory.as_fd(), None) {
            Ok(_) => true,
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => false,
            // A kernel handle too long for an NFSv3 handle: as good as none.
            Err(error) if error.raw_os_error() == Some(Errno::OVERFLOW.raw_os_error()) => false,
            Err(error) => return Err(error),
        };
        let by_handle = kernel_names_inodes && io::can_open_by_handle(directory.as_fd());
        let handle = handle_of_root(directory.as_fd(), kernel_names_inodes)?;
        let kind = Kind::of(directory.as_fd());
        let has_layers = kind.is_overlay();
        Ok(Self {
            id,
            tree: tree_of(directory.as_fd(), kind, &handle)?,
            name: Mutex::new(path.display().to_string()),
            handle,
            file_system: file_systems.on(attributes.device)?,
            attributes_in_memory: kind.answers_from_memory(),
            shows_changes: kind.shows_changes(),
            io_support: if has_layers { IoSupport::of_layers() } else { IoSupport::default() },
            kernel_read_ahead: KernelReadAhead::of(attributes.device),
            serial: random_u64()?,
            counters,
            device: attributes.device,
            threads: OnceLock::new(),
            mount: mount_of(directory.as_fd())?,
            retired: AtomicBool::new(false),
            has_layers,
            fileid: attributes.fileid,
            handles_last: kind.keeps_handles(),
            directory,
            kernel_names_inodes,
            places: (!by_handle).then(Places::default),
        })
    }

    /// Whether `other` was opened as the same directory through the same mount, and this one was
    /// not removed. No other file gets its inode number while it is open.
    pub(crate) fn is_same_directory(&self, other: &Self) -> bool {
        let place = |root: &Self| (root.device, root.fileid, root.mount);
        place(self) == place(other) && attributes_of(&self.directory).is_ok()
    }

    /// Notes that no call can reach it any more: what is open in it is flushed and closed at the
    /// next sweep, and what clients hold in it is revoked.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether it was retired.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// The export's name for messages: its path until [`Self::set_name`].
    pub(crate) fn name(&self) -> String {
        self.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the export's name, which a reload may change.
    pub(crate) fn set_name(&self, name: &str) {
        let mut own = self.name.lock().unwrap_or_else(PoisonError::into_inner);
        name.clone_into(&mut own);
    }

    /// Whether handles are opened by the kernel rather than by remembered paths.
    pub(crate) fn opens_by_handle(&self) -> bool {
        self.places.is_none()
    }

    /// The descriptor of the root directory.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The threads for calls that may wait for its device.
    pub(crate) fn threads<'a>(&'a self, engine: &'a Engine) -> &'a Device {
        if let Some(threads) = self.threads.get() {
            return threads;
        }
        let threads = engine.device(self.device);
        // Those of no device are for the time until the system has threads again.
        if threads.number() == self.device {
            self.threads.get_or_init(|| threads)
        } else {
            engine.own_device()
        }
    }

    /// The device that the root lies on: major and minor number.
    pub(crate) fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Whether an object with these attributes lies on the export's file system. A file system
    /// mounted below an export is not part of it.
    pub(crate) fn contains(&self, attributes: &LiveAttributes) -> bool {
        (attributes.device == self.device || self.has_layers)
            && (!attributes.is_mount_root || attributes.fileid == self.fileid)
    }

    /// Opens the object behind a handle as an `O_PATH` descriptor; its attributes then. To be
    /// called with the server's own identity.
    ///
    /// # Errors
    /// `Stale` when the object is gone or no longer lies below the export.
    pub(crate) fn open(&self, handle: &KernelHandle) -> Result<(OwnedFd, LiveAttributes), Status> {
        if *handle == self.handle {
            let fd = openat(&self.directory, c".", PATH_ONLY, Mode::empty())?;
            let attributes = attributes_of(&fd)?;
            return Ok((fd, attributes));
        }
        let fd = match &self.places {
            None => io::open_by_handle(self.directory.as_fd(), handle, PATH_ONLY)
                .map_err(gone_is_stale)?,
            Some(places) => self.open_by_place(places, handle)?,
        };
        let attributes = attributes_of(&fd)?;
        if !self.contains(&attributes) {
            return Err(Status::Stale);
        }
        // A remembered path leads below the root.
        if self.opens_by_handle() && attributes.is_directory() && !self.is_above(fd.as_fd())? {
            return Err(Status::Stale);
        }
        Ok((fd, attributes))
    }

    /// The handle of an open object.
    ///
    /// # Errors
    /// As `name_to_handle_at`.
    pub(crate) fn identify(&self, fd: BorrowedFd<'_>) -> Result<KernelHandle, Status> {
        if self.kernel_names_inodes {
            return Ok(io::name_to_handle(fd, None)?);
        }
        let now = SystemTime::now();
        let (attributes, birth) = attributes_and_birth_of(fd)?;
        if (attributes.device, attributes.fileid) == (self.device, self.fileid) {
            return Ok(self.handle);
        }
        Ok(match birth {
            Some(birth) => handle_by_birth(attributes.fileid, Some(birth)),
            None => {
                let generation = self.file_system.generations.of(&attributes, now)?;
                handle_by_generation(attributes.fileid, generation)
            }
        })
    }

    /// Notes that an object is kept open until [`Self::note_closed`].
    pub(crate) fn note_open(&self, handle: &KernelHandle, fd: BorrowedFd<'_>) {
        if let Some(places) = &self.places {
            places.note_open(handle);
        }
        if let Some(generation) = generation_in(handle)
            && let Ok(attributes) = attributes_of_linked_or_not(fd)
        {
            self.file_system.generations.note_open(&attributes, generation);
        }
    }

    /// Notes that an object that was kept open is about to be closed.
    pub(crate) fn note_closed(&self, handle: &KernelHandle, fd: BorrowedFd<'_>) {
        if let Some(places) = &self.places {
            places.note_closed(handle);
        }
        let Some(generation) = generation_in(handle) else { return };
        let now = SystemTime::now();
        if let Ok(attributes) = attributes_of_linked_or_not(fd) {
            self.file_system.generations.note_closed(&attributes, generation, now);
        }
    }

    /// Whether a handle is good although nothing keeps its object open. Others are not given out by
    /// listings.
    pub(crate) fn lasts_unopened(&self, handle: &KernelHandle) -> bool {
        generation_in(handle).is_none()
    }

    /// The handle of an object met as `name` in `parent`.
    ///
    /// # Errors
    /// As `name_to_handle_at`.
    pub(crate) fn identify_child(
        &self,
        parent: &KernelHandle,
        name: &CStr,
        fd: BorrowedFd<'_>,
    ) -> Result<KernelHandle, Status> {
        let handle = self.identify(fd)?;
        self.remember(handle, parent, name);
        Ok(handle)
    }

    /// Notes that the object with this handle has the name `name` in `parent`.
    pub(crate) fn remember(&self, handle: KernelHandle, parent: &KernelHandle, name: &CStr) {
        if let Some(places) = &self.places {
            places.remember(handle, *parent, name);
        }
    }

    /// Notes that an object was renamed, by directories and names. One that cannot be identified is
    /// not remembered, and clients look it up again.
    pub(crate) fn note_renamed(
        &self,
        from: (KernelHandle, &CStr),
        to: (KernelHandle, &CStr),
        fd: BorrowedFd<'_>,
    ) {
        if let Some(places) = &self.places
            && let Ok(handle) = self.identify(fd)
        {
            places.note_renamed(handle, from, to);
        }
    }

    /// Notes that an object has lost the name `name` in `parent`, and has others.
    pub(crate) fn forget_name(&self, parent: &KernelHandle, name: &CStr, fd: BorrowedFd<'_>) {
        if let Some(places) = &self.places
            && let Ok(handle) = self.identify(fd)
        {
            places.forget_name(&handle, *parent, name);
        }
    }

    /// Forgets where an object was that has lost its last name.
    pub(crate) fn forget_child(&self, handle: &KernelHandle) {
        if let Some(places) = &self.places {
            places.forget(handle);
        }
    }

    /// A number that no other root has had, not even one of the same path.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether an inode keeps one handle from its birth, which `statx` reports, to its end.
    pub(crate) fn keeps_handles(&self) -> bool {
        self.handles_last
    }

    /// Whether a directory that is open with this handle still lies below the root: by
    /// [`Self::is_above`], or by its remembered path, which needs no permission to search the
    /// directory itself. A server without privileges may have let a client take that away.
    ///
    /// # Errors
    /// `Stale` when the directory was removed; `Access`.
    pub(crate) fn has_below(
        &self,
        handle: &KernelHandle,
        directory: BorrowedFd<'_>,
    ) -> Result<bool, Status> {
        match (self.is_above(directory), &self.places) {
            (Err(Status::Access), Some(places)) => {
                let found = self.open_remembered(places, handle)?;
                found.map(|_| true).ok_or(Status::Access)
            }
            (is_above, _) => is_above,
        }
    }

    /// Whether a directory lies below the root, by climbing towards it. The kernel opens handles of
    /// anything on the file system, also of what was moved out of the exported part of it. A caller
    /// may have no way through the directories between, which the server has.
    ///
    /// # Errors
    /// `Stale` when the directory was removed; `Access`.
    pub(crate) fn is_above(&self, directory: BorrowedFd<'_>) -> Result<bool, Status> {
        let up = PATH_ONLY | OFlags::DIRECTORY;
        let (mut opened, mut attributes) = (None::<OwnedFd>, attributes_of(directory)?);
        for _ in 0..DEPTH_MAX {
            if (attributes.device, attributes.fileid) == (self.device, self.fileid) {
                return Ok(true);
            }
            let here = opened.as_ref().map_or(directory, AsFd::as_fd);
            // Of a bind mount of a part of the file system, the kernel does not open what is above
            // it.
            let parent = match openat(here, c"..", up, Mode::empty()) {
                Err(Errno::NOENT) => return Ok(false),
                opened => opened?,
            };
            let above = attributes_of(&parent)?;
            if above.fileid == attributes.fileid {
                return Ok(false);
            }
            (opened, attributes) = (Some(parent), above);
        }
        Ok(false)
    }

    fn open_by_place(&self, places: &Places, handle: &KernelHandle) -> Result<OwnedFd, Status> {
        if let Some(fd) = self.open_remembered(places, handle)? {
            return Ok(fd);
        }
        // After a restart nothing is remembered; a rename behind the server's back makes what is
        // remembered wrong. One walk of the tree mends both.
        let walked = places.walk_once(self.directory(), self.handle, |fd, attributes| {
            if self.contains(attributes) { self.identify(fd).map(Some) } else { Ok(None) }
        });
        match self.open_remembered(places, handle)? {
            Some(fd) => Ok(fd),
            None => walked.and(Err(Status::Stale)),
        }
    }

    /// Opens the remembered path of `handle`; `None` if it leads to no object, or to another one.
    ///
    /// # Errors
    /// Those that are [no evidence](is_no_evidence) that the object is gone.
    fn open_remembered(
        &self,
        places: &Places,
        handle: &KernelHandle,
    ) -> Result<Option<OwnedFd>, Status> {
        let Some(path) = places.path(handle, &self.handle) else { return Ok(None) };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let found = openat2(&self.directory, path, PATH_ONLY, Mode::empty(), resolve)
            .map_err(Status::from)
            .and_then(|fd| Ok((self.identify(fd.as_fd())?, fd)));
        match found {
            Ok((found, fd)) => Ok((found == *handle).then_some(fd)),
            Err(status) if is_no_evidence(status) => Err(status),
            Err(_) => Ok(None),
        }
    }
}

/// The status for an object that the kernel cannot open by its handle.
fn gone_is_stale(error: std::io::Error) -> Status {
    let gone = [Errno::NOENT, Errno::INVAL, Errno::STALE, Errno::OVERFLOW];
    if Errno::from_io_error(&error).is_some_and(|errno| gone.contains(&errno)) {
        Status::Stale
    } else {
        Status::from(error)
    }
}

/// The kernel's handle of an export's root, or one made of inode number and birth time where the
/// file system has none. Without a birth time it is the number alone: the handle means the export's
/// root, whichever directory is that.
fn handle_of_root(fd: BorrowedFd<'_>, kernel_names_inodes: bool) -> std::io::Result<KernelHandle> {
    if kernel_names_inodes {
        return io::name_to_handle(fd, None);
    }
    let (attributes, birth) = attributes_and_birth_of(fd)
        .map_err(|_| std::io::Error::other("the directory has no attributes"))?;
    Ok(handle_by_birth(attributes.fileid, birth))
}

fn handle_by_birth(fileid: u64, birth: Option<Timestamp>) -> KernelHandle {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&fileid.to_be_bytes());
    if let Some(birth) = birth {
        bytes[8..16].copy_from_slice(&birth.seconds.to_be_bytes());
        bytes[16..].copy_from_slice(&birth.nanoseconds.to_be_bytes());
    }
    KernelHandle::from_parts(BIRTH_HANDLE_KIND, &bytes).expect("20 bytes fit a handle")
}

fn handle_by_generation(fileid: u64, generation: u64) -> KernelHandle {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&fileid.to_be_bytes());
    bytes[8..].copy_from_slice(&generation.to_be_bytes());
    KernelHandle::from_parts(GENERATION_HANDLE_KIND, &bytes).expect("16 bytes fit a handle")
}

/// The generation in a handle of [`handle_by_generation`].
fn generation_in(handle: &KernelHandle) -> Option<u64> {
    if handle.kind() != GENERATION_HANDLE_KIND {
        return None;
    }
    handle.bytes().last_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// See [`ExportRoot::tree`]. Handle and birth time alone do not do: the roots of two ext4 file
/// systems have one handle, and may be made in the same second.
fn tree_of(directory: BorrowedFd<'_>, kind: Kind, handle: &KernelHandle) -> std::io::Result<u32> {
    let birth = statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
    let mut hasher = SipHasher24::new();
    hasher.write_i32(handle.kind());
    hasher.write(handle.bytes());
    if birth.stx_mask & StatxFlags::BTIME.bits() != 0 {
        hasher.write_i64(birth.stx_btime.tv_sec);
        hasher.write_u32(birth.stx_btime.tv_nsec);
    }
    if kind.has_lasting_id() {
        hasher.write_u64(rustix::fs::fstatvfs(directory)?.f_fsid);
    }
    let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
    Ok(u32::from_be_bytes([a, b, c, d]))
}

/// The mount that a descriptor was opened through; `None` before Linux 5.8. The number is never
/// given twice from Linux 6.8 on.
fn mount_of(directory: BorrowedFd<'_>) -> std::io::Result<Option<u64>> {
    /// `STATX_MNT_ID_UNIQUE`, which rustix does not name yet. A kernel that does not know it
    /// answers as to `STATX_MNT_ID`, if it knows that.
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let wanted = StatxFlags::MNT_ID | UNIQUE;
    let stat = statx(directory, c"", AtFlags::EMPTY_PATH, wanted)?;
    Ok((stat.stx_mask & wanted.bits() != 0).then_some(stat.stx_mnt_id))
}
