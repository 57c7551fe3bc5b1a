//! The directory behind an export, and how a handle becomes an open object below it.
//!
//! With the capability to open by handle (CAP_DAC_READ_SEARCH) the kernel does all of it, and a
//! handle lives as long as its inode. Without it (an ordinary user, most containers) the server
//! remembers under which name it last met each inode and opens by path; see `docs/rootless.md`.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::SystemTime;

use io::KernelHandle;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, StatxFlags, openat, openat2, statx,
};
use rustix::io::Errno;

use crate::io_support::IoSupport;
use crate::known_handles::{BirthTime, InodeNumber, KnownHandles};
use crate::vfs::{Attributes, Found, Status, attributes_and_birth_at, attributes_of};
use crate::write_verifier::{WriteVerifier, random_u64};

/// How deep a directory may lie below its export before it counts as outside of it. Longer than
/// any path that PATH_MAX (4,096 bytes) allows.
const DEPTH_MAX: usize = 2048;
/// Objects remembered by path when handles cannot be opened; about 150 bytes each.
const PLACES_MAX: usize = 1_000_000;
/// Bytes of names that one system call of a walk reads.
const WALK_BUFFER_BYTES: usize = 32 * 1024;
/// The type of the handles that the server makes itself, where the file system has none. The
/// kernel's own types are small and positive.
const OWN_HANDLE_KIND: i32 = -1;

/// Opens an object for its attributes and as the start of a path, not for data; never through a
/// symbolic link.
pub(crate) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The root of an export as the kernel sees it. Lives as long as the export keeps its path and id,
/// over reloads of the configuration, so that the write verifier does not change for nothing.
pub(crate) struct ExportRoot {
    /// The id in file handles; also the file system id that clients see, stable over restarts.
    pub(crate) id: u32,
    /// The handle of the root itself.
    pub(crate) handle: KernelHandle,
    /// The write verifier of all files in this export.
    pub(crate) verifier: WriteVerifier,
    /// Whether `statx` of an open file answers from memory, so that it may be called on a thread
    /// that must not block. True for the local file systems known to do so.
    pub(crate) attributes_in_memory: bool,
    /// What its file system does not do.
    pub(crate) io_support: IoSupport,
    /// A number that no other root has had, not even one of the same path: between the two there may
    /// have been another file system of the same device number.
    serial: u64,
    directory: OwnedFd,
    device: (u32, u32),
    /// Whether objects of this one file system show different devices.
    has_layers: bool,
    fileid: u64,
    kernel_names_inodes: bool,
    /// Whether an inode keeps one handle from its birth, which `statx` tells, to its end.
    handles_last: bool,
    /// `None` where the kernel opens handles.
    places: Option<Places>,
}

impl ExportRoot {
    /// Opens the directory `path` as the root of export `id`.
    ///
    /// # Errors
    /// `path` is not a directory that the server may read.
    pub(crate) fn open_path(id: u32, path: &Path) -> std::io::Result<Self> {
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
        let handle = identify(directory.as_fd(), kernel_names_inodes)?;
        let has_layers = is_overlay(directory.as_fd());
        Ok(Self {
            id,
            handle,
            verifier: WriteVerifier::new()?,
            attributes_in_memory: answers_from_memory(directory.as_fd()),
            io_support: if has_layers { IoSupport::of_layers() } else { IoSupport::default() },
            serial: random_u64()?,
            device: attributes.device,
            has_layers,
            fileid: attributes.fileid,
            handles_last: keeps_handles(directory.as_fd()),
            directory,
            kernel_names_inodes,
            places: (!by_handle).then(Places::default),
        })
    }

    /// Whether handles are opened by the kernel rather than by remembered paths.
    pub(crate) fn opens_by_handle(&self) -> bool {
        self.places.is_none()
    }

    /// The descriptor of the root directory.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Whether an object with these attributes lies on the export's file system. What is mounted
    /// below an export is not part of it.
    pub(crate) fn contains(&self, attributes: &Attributes) -> bool {
        (attributes.device == self.device || self.has_layers)
            && (!attributes.is_mount_root || attributes.fileid == self.fileid)
    }

    /// Opens the object behind a handle as an `O_PATH` descriptor. To be called with the server's
    /// own identity.
    ///
    /// # Errors
    /// `Stale` when the object is gone or no longer lies below the export.
    pub(crate) fn open(&self, handle: &KernelHandle) -> Result<OwnedFd, Status> {
        if *handle == self.handle {
            return Ok(openat(&self.directory, c".", PATH_ONLY, Mode::empty())?);
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
        if attributes.is_directory() && !self.is_above(fd.as_fd())? {
            return Err(Status::Stale);
        }
        Ok(fd)
    }

    /// The handle of an open object.
    ///
    /// # Errors
    /// As `name_to_handle_at`.
    pub(crate) fn identify(&self, fd: BorrowedFd<'_>) -> Result<KernelHandle, Status> {
        Ok(identify(fd, self.kernel_names_inodes)?)
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
        if let Some(places) = &self.places {
            places.remember(handle, *parent, name);
        }
        Ok(handle)
    }

    /// Handle and attributes of a name without a descriptor; `None` where this cannot be had or
    /// might mix two objects. `fileid` is what the name was listed with.
    pub(crate) fn find_by_name(
        &self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        fileid: u64,
        known: &KnownHandles,
    ) -> Option<Found> {
        if self.places.is_some() {
            return None;
        }
        self.find_known(directory, name, fileid, known)
            .or_else(|| self.find_and_remember(directory, name, known))
    }

    /// One call, if the handle is remembered. What the name has now counts: the inode of these
    /// attributes is the one whose handle it is.
    fn find_known(
        &self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        fileid: u64,
        known: &KnownHandles,
    ) -> Option<Found> {
        let (known_birth, handle) = known.find(self.inode(fileid))?;
        let (attributes, birth) = attributes_and_birth_at(directory, name).ok()?;
        let same = attributes.fileid == fileid
            && birth.and_then(BirthTime::new) == Some(known_birth)
            && self.contains(&attributes);
        same.then_some(Found { handle, attributes })
    }

    /// Two calls. A name may change hands between them, and the inode number with it; but an inode
    /// that is settled at a moment before both is the one that had the number in both.
    fn find_and_remember(
        &self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        known: &KnownHandles,
    ) -> Option<Found> {
        let began = SystemTime::now();
        let handle = io::name_to_handle(directory, Some(name)).ok()?;
        let (attributes, birth) = attributes_and_birth_at(directory, name).ok()?;
        if handle.inode() != Some(attributes.fileid) || !self.contains(&attributes) {
            return None;
        }
        if self.handles_last
            && let Some(birth) = birth.and_then(BirthTime::new)
            && birth.is_settled(began)
        {
            known.remember(self.inode(attributes.fileid), birth, &handle);
        }
        Some(Found { handle, attributes })
    }

    /// Forgets a handle that proved stale, if it is remembered.
    pub(crate) fn forget(&self, handle: &KernelHandle, known: &KnownHandles) {
        if let Some(fileid) = handle.inode() {
            known.forget(self.inode(fileid), handle);
        }
    }

    fn inode(&self, fileid: u64) -> InodeNumber {
        InodeNumber { root: self.serial, fileid }
    }

    /// Whether a directory lies below the root, by climbing towards it. The kernel opens handles of
    /// anything on the file system, also of what was moved out of the exported part of it. To be
    /// called with the server's own identity, for a caller may have no way through the directories
    /// between.
    ///
    /// # Errors
    /// `Stale` when the directory was removed.
    pub(crate) fn is_above(&self, directory: BorrowedFd<'_>) -> Result<bool, Status> {
        let up = PATH_ONLY | OFlags::DIRECTORY;
        let mut here = openat(directory, c".", up, Mode::empty())?;
        for _ in 0..DEPTH_MAX {
            let attributes = attributes_of(&here)?;
            if (attributes.device, attributes.fileid) == (self.device, self.fileid) {
                return Ok(true);
            }
            let parent = openat(&here, c"..", up, Mode::empty())?;
            if attributes_of(&parent)?.fileid == attributes.fileid {
                return Ok(false);
            }
            here = parent;
        }
        Ok(false)
    }

    fn open_by_place(&self, places: &Places, handle: &KernelHandle) -> Result<OwnedFd, Status> {
        if let Some(fd) = self.open_remembered(places, handle) {
            return Ok(fd);
        }
        // After a restart nothing is remembered; a rename behind the server's back makes what is
        // remembered wrong. One walk of the tree mends both.
        places.walk_once(self)?;
        self.open_remembered(places, handle).ok_or(Status::Stale)
    }

    /// Opens what is remembered of `handle`, if it is still the same object.
    fn open_remembered(&self, places: &Places, handle: &KernelHandle) -> Option<OwnedFd> {
        let path = places.path(handle, &self.handle)?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let fd = openat2(&self.directory, path, PATH_ONLY, Mode::empty(), resolve).ok()?;
        (identify(fd.as_fd(), self.kernel_names_inodes).ok()? == *handle).then_some(fd)
    }
}

/// An object that the kernel cannot find again has no other name for it than "stale".
fn gone_is_stale(error: std::io::Error) -> Status {
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::INVAL | Errno::STALE | Errno::OVERFLOW) => Status::Stale,
        _ => Status::from(error),
    }
}

/// The kernel's handle of an object, or one made of inode number and birth time where the file
/// system has none.
fn identify(fd: BorrowedFd<'_>, kernel_names_inodes: bool) -> std::io::Result<KernelHandle> {
    if kernel_names_inodes {
        return io::name_to_handle(fd, None);
    }
    let flags = StatxFlags::INO | StatxFlags::BTIME;
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, flags)?;
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&stat.stx_ino.to_be_bytes());
    if stat.stx_mask & StatxFlags::BTIME.bits() != 0 {
        bytes[8..16].copy_from_slice(&stat.stx_btime.tv_sec.to_be_bytes());
        bytes[16..].copy_from_slice(&stat.stx_btime.tv_nsec.to_be_bytes());
    }
    Ok(KernelHandle::from_parts(OWN_HANDLE_KIND, &bytes).expect("20 bytes fit a handle"))
}

/// Whether this is overlayfs. Files there have the device of the layer that holds them where layers
/// lie on different file systems, so that only the root of a mount tells that another one begins.
fn is_overlay(directory: BorrowedFd<'_>) -> bool {
    magic_of(directory) == Some(magic::OVERLAYFS)
}

/// Whether `statx` of an open file on this file system never waits for a device or a daemon.
fn answers_from_memory(directory: BorrowedFd<'_>) -> bool {
    let local = [magic::EXT4, magic::XFS, magic::BTRFS, magic::TMPFS, magic::F2FS];
    magic_of(directory).is_some_and(|magic| local.contains(&magic))
}

/// Whether an inode of this file system has one handle for life, and a birth time that comes from
/// this machine's clock. True for those known to do so: FUSE may give out an inode number, birth
/// time and handle in any combination, and tmpfs has handles that do not tell the inode.
fn keeps_handles(directory: BorrowedFd<'_>) -> bool {
    let known = [magic::EXT4, magic::XFS, magic::BTRFS];
    magic_of(directory).is_some_and(|magic| known.contains(&magic))
}

/// The kind of file system: one of [`magic`], or another.
fn magic_of(directory: BorrowedFd<'_>) -> Option<u64> {
    u64::try_from(rustix::fs::fstatfs(directory).ok()?.f_type).ok()
}

/// Kinds of file systems, as numbered in `linux/magic.h`.
mod magic {
    pub(super) const BTRFS: u64 = 0x9123_683e;
    pub(super) const EXT4: u64 = 0xef53;
    pub(super) const F2FS: u64 = 0xf2f5_2010;
    pub(super) const OVERLAYFS: u64 = 0x794c_7630;
    pub(super) const TMPFS: u64 = 0x0102_1994;
    pub(super) const XFS: u64 = 0x5846_5342;
}

/// Where each object was last met, for servers that may not open handles.
#[derive(Default)]
struct Places {
    by_handle: Mutex<HashMap<KernelHandle, Place>>,
    /// Held over the walk, so that those who come meanwhile find what it finds.
    walked: Mutex<bool>,
}

struct Place {
    parent: KernelHandle,
    name: Box<CStr>,
}

impl Places {
    fn remember(&self, handle: KernelHandle, parent: KernelHandle, name: &CStr) {
        let mut by_handle = self.lock();
        if by_handle.len() >= PLACES_MAX && !by_handle.contains_key(&handle) {
            return;
        }
        by_handle.insert(handle, Place { parent, name: name.into() });
    }

    /// The path from `root` to `handle`; `None` when a part of it is not known.
    fn path(&self, handle: &KernelHandle, root: &KernelHandle) -> Option<CString> {
        let by_handle = self.lock();
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = handle;
        while at != root {
            let place = by_handle.get(at)?;
            names.push(place.name.to_bytes());
            if names.len() > DEPTH_MAX {
                return None;
            }
            at = &place.parent;
        }
        names.reverse();
        CString::new(names.join(&b'/')).ok()
    }

    /// Walks the whole export, once in the life of the server: enough to find every handle of the
    /// time before the restart, and not a tool to keep the disk busy with made-up handles.
    fn walk_once(&self, root: &ExportRoot) -> Result<(), Status> {
        let mut walked = self.walked.lock().expect("no walk panics");
        if std::mem::replace(&mut *walked, true) {
            return Ok(());
        }
        let start = openat(&root.directory, c".", directory_flags(), Mode::empty())?;
        let mut unread = vec![(start, root.handle)];
        while let Some((directory, handle)) = unread.pop() {
            self.walk_directory(root, &directory, &handle, &mut unread);
            if self.lock().len() >= PLACES_MAX {
                break;
            }
        }
        Ok(())
    }

    fn walk_directory(
        &self,
        root: &ExportRoot,
        directory: &OwnedFd,
        handle: &KernelHandle,
        unread: &mut Vec<(OwnedFd, KernelHandle)>,
    ) {
        let mut buffer = Vec::with_capacity(WALK_BUFFER_BYTES);
        let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Ok(child) = openat(directory, name, PATH_ONLY, Mode::empty()) else { continue };
            let Ok(attributes) = attributes_of(&child) else { continue };
            if !root.contains(&attributes) {
                continue;
            }
            let Ok(known) = root.identify_child(handle, name, child.as_fd()) else { continue };
            if attributes.file_type == FileType::Directory
                && let Ok(opened) = openat(&child, c".", directory_flags(), Mode::empty())
            {
                unread.push((opened, known));
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<KernelHandle, Place>> {
        self.by_handle.lock().expect("no code panics while it holds the places")
    }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Timestamp;
    use std::time::Duration;

    /// An export with a file `f` that is old enough to be remembered; `None` where handles are not
    /// kept, with the reason printed.
    fn export_with_settled_file() -> Option<(tempfile::TempDir, ExportRoot)> {
        let dir = tempfile::tempdir().unwrap();
        let root = ExportRoot::open_path(1, dir.path()).unwrap();
        if !root.handles_last || !root.opens_by_handle() {
            eprintln!("skipped: no handles are kept on this file system, or for this user");
            return None;
        }
        std::fs::write(dir.path().join("f"), "").unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        Some((dir, root))
    }

    fn inode_of(root: &ExportRoot, name: &CStr) -> (u64, Option<BirthTime>) {
        let (attributes, birth) = attributes_and_birth_at(root.directory(), name).unwrap();
        (attributes.fileid, birth.and_then(BirthTime::new))
    }

    #[test]
    fn a_remembered_handle_is_given_for_its_inode_alone() {
        let Some((dir, root)) = export_with_settled_file() else { return };
        let known = KnownHandles::new();
        let (fileid, birth) = inode_of(&root, c"f");
        let find = |name, fileid| root.find_by_name(root.directory(), name, fileid, &known);
        let truth = find(c"f", fileid).unwrap().handle;
        assert_eq!(known.find(root.inode(fileid)), Some((birth.unwrap(), truth)));
        // A handle that the kernel never gave shows who answers.
        let planted = KernelHandle::from_parts(1, b"planted!").unwrap();
        let plant = |birth| known.remember(root.inode(fileid), birth, &planted);
        plant(birth.unwrap());
        assert_eq!(find(c"f", fileid).unwrap().handle, planted);
        // Listed with a number that the name no longer has.
        assert_eq!(find(c"f", fileid + 1).unwrap().handle, truth);
        // An earlier inode of this number, born a nanosecond before.
        let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 1 };
        plant(BirthTime::new(time).unwrap());
        assert_eq!(find(c"f", fileid).unwrap().handle, truth);
        // The name has gone to another inode.
        plant(birth.unwrap());
        std::fs::write(dir.path().join("g"), "").unwrap();
        std::fs::rename(dir.path().join("g"), dir.path().join("f")).unwrap();
        assert_eq!(
            find(c"f", fileid).unwrap().handle,
            io::name_to_handle(root.directory(), Some(c"f")).unwrap()
        );
    }

    #[test]
    fn what_was_just_made_is_not_remembered() {
        let Some((dir, root)) = export_with_settled_file() else { return };
        let known = KnownHandles::new();
        std::fs::write(dir.path().join("new"), "").unwrap();
        let (fileid, _) = inode_of(&root, c"new");
        assert!(root.find_by_name(root.directory(), c"new", fileid, &known).is_some());
        assert_eq!(known.find(root.inode(fileid)), None);
    }

    #[test]
    fn a_handle_that_proved_stale_is_forgotten() {
        let Some((_dir, root)) = export_with_settled_file() else { return };
        let known = KnownHandles::new();
        let (fileid, _) = inode_of(&root, c"f");
        let handle = root.find_by_name(root.directory(), c"f", fileid, &known).unwrap().handle;
        root.forget(&handle, &known);
        assert_eq!(known.find(root.inode(fileid)), None);
    }

    #[test]
    fn two_roots_of_one_directory_share_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let open = || ExportRoot::open_path(1, dir.path()).unwrap();
        assert_ne!(open().serial, open().serial);
    }
}
