//! Permission to use the data of a file, and its descriptors, which only a [`Permitted`] caller
//! gets.
//!
//! Namespace operations run as the caller, and the kernel decides. READ and WRITE go through
//! descriptors that the server opened, so they are decided here, each time anew from the inode as
//! it is now: a chown or chmod on the server fences at once, except from what a client of version 4
//! has open, as POSIX has it. Mode bits alone do not show what an access control list grants; where
//! there is one, the kernel is asked.
//!
//! A descriptor open for writing makes a program impossible to execute (`ETXTBSY`), so one must not
//! be opened for a caller who is then refused.

use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

use io::{DioAlign, Engine, Identity};
use rustix::fs::{Access, Advice, OFlags, fgetxattr_query, getxattr_query};
use rustix::io::Errno;

use super::Inode;
use super::data_descriptors::{DataDescriptors, DirectFile, Use};
use super::file::{File, FileState};
use super::inode::Contents;
use crate::fs::{Caller, LiveAttributes, Status, proc_path};

/// The extended attribute that holds a POSIX access control list.
const ACCESS_LIST: &std::ffi::CStr = c"system.posix_acl_access";

/// How the descriptor for writing is opened.
pub(super) const WRITER_FLAGS: OFlags = OFlags::RDWR.union(OFlags::NONBLOCK);

/// A use of data: reading or writing.
pub(crate) trait DataUse: Send + 'static {
    /// The same as a value.
    const USE: Use;
    /// The permissions of which one is enough. That to execute also permits reading, because a
    /// client pages a program in with READ (RFC 1813 §4.4).
    const NEEDED: Access;
}

/// READ.
pub(crate) enum Reading {}

/// WRITE, COMMIT, and setting the length.
pub(crate) enum Writing {}

impl DataUse for Reading {
    const USE: Use = Use::Read;
    const NEEDED: Access = Access::READ_OK.union(Access::EXEC_OK);
}

impl DataUse for Writing {
    const USE: Use = Use::Write;
    const NEEDED: Access = Access::WRITE_OK;
}

/// A regular file that a caller may use for `U`. Only [`Self::check`] makes one, and descriptors
/// for data are opened and given out through it alone.
pub(crate) struct Permitted<U> {
    file: Arc<Inode>,
    wanted: PhantomData<fn() -> U>,
}

impl<U> Permitted<U> {
    fn new(file: &Arc<Inode>) -> Self {
        Self { file: Arc::clone(file), wanted: PhantomData }
    }

    /// The state of the file, which all exports share.
    pub(crate) fn data(&self) -> &FileState {
        &self.regular().state
    }

    fn regular(&self) -> &File {
        self.file.file().expect("only a regular file is permitted")
    }

    fn descriptors(&self) -> MutexGuard<'_, DataDescriptors> {
        self.regular().descriptors()
    }
}

impl<U> Clone for Permitted<U> {
    fn clone(&self) -> Self {
        Self::new(&self.file)
    }
}

impl<U> Deref for Permitted<U> {
    type Target = Arc<Inode>;

    fn deref(&self) -> &Arc<Inode> {
        &self.file
    }
}

/// The verdict of the mode bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
    /// The bits of a class that an access control list may widen or narrow.
    UnlessList(bool),
    /// The mode is not enough to decide.
    AskKernel,
}

impl<U: DataUse> Permitted<U> {
    /// Permits `caller` to read or write the data of a file with these attributes now. An open of
    /// version 4 that was permitted stays so. The owner
    /// always may: a client checks the mode when it opens the file, and goes on writing after a
    /// chmod that would forbid a second open.
    ///
    /// # Errors
    /// `Access`; `IsDirectory` or `Invalid` for what has no data; `ReadOnly` for writing to an
    /// export that the caller may only read.
    pub(crate) async fn check(
        caller: &Caller,
        file: &Arc<Inode>,
        attributes: &LiveAttributes,
        engine: &Engine,
    ) -> Result<Self, Status> {
        if U::USE == Use::Write {
            caller.may_change()?;
        }
        file.file()?;
        let was_allowed = match U::USE {
            Use::Read => caller.opened.reading,
            Use::Write => caller.opened.writing,
        };
        let identity = &caller.identity;
        let allowed = match by_mode(identity, attributes, U::NEEDED) {
            _ if was_allowed => true,
            Verdict::Allowed => true,
            Verdict::Denied => false,
            Verdict::UnlessList(allowed) if file.has_no_access_list_in_memory() => allowed,
            _ if file.is_known_to_grant(identity, U::NEEDED, attributes) => true,
            verdict => {
                let (file, live, asker) = (Arc::clone(file), *attributes, identity.clone());
                let job = move || match verdict {
                    Verdict::UnlessList(allowed) if !file.has_access_list() => Ok(allowed),
                    _ => file.ask_to_grant(&asker, U::NEEDED, &live),
                };
                let answer = engine.metadata(identity.clone(), job);
                Box::pin(answer).await.unwrap_or_else(|error| Err(Status::no_identity(&error)))?
            }
        };
        if U::USE == Use::Write {
            file.file()?.note_writer(caller, allowed);
        }
        if allowed { Ok(Self::new(file)) } else { Err(Status::Access) }
    }
}

impl Permitted<Reading> {
    /// The descriptor for reading, if one is open.
    pub(crate) fn reader(&self) -> Option<Arc<OwnedFd>> {
        self.regular().any_reader()
    }

    /// Opens the object for reading. To be called with the server's own identity, where blocking
    /// is allowed.
    ///
    /// # Errors
    /// `Access` where the server's own user may not, `NoDescriptor`, `Io`.
    pub(crate) fn open_reader(&self) -> Result<Arc<OwnedFd>, Status> {
        self.open_for_reading().expect("only a regular file is permitted")
    }

    /// The descriptor for reading just what is asked for, if it is open.
    pub(crate) fn quiet_reader(&self) -> Option<Arc<OwnedFd>> {
        self.descriptors().quiet.clone()
    }

    /// Opens the object for reading without the kernel's read-ahead; `None` where the server's own
    /// user may not open it now. To be called as [`Self::open_reader`].
    ///
    /// # Errors
    /// `NoDescriptor`, `ReadOnly`, `Io`.
    pub(crate) fn open_quiet_reader(&self) -> Result<Option<Arc<OwnedFd>>, Status> {
        let opened = self.reopen_raw(OFlags::RDONLY | OFlags::NONBLOCK);
        let Some(fd) = unless_forbidden(opened)? else { return Ok(None) };
        rustix::fs::fadvise(&fd, 0, None, Advice::Random)?;
        let kept = self.descriptors().quiet.get_or_insert_with(|| Arc::new(fd)).clone();
        self.file.count_descriptors();
        Ok(Some(kept))
    }
}

impl Permitted<Writing> {
    /// The descriptor for writing, if one is open. To be called within a change of the object:
    /// under its lock none is closed.
    pub(crate) fn writer(&self) -> Option<Arc<OwnedFd>> {
        self.regular().note_write();
        self.descriptors().write.clone()
    }

    /// Opens the object for reading and writing. To be called as [`Self::writer`], with the
    /// server's own identity, where blocking is allowed.
    ///
    /// # Errors
    /// As [`Permitted::open_reader`], and `ReadOnly` of the file system; `Delay` while a local
    /// program is executed from a file that was closed for writing because it was not written.
    pub(crate) fn open_writer(&self) -> Result<Arc<OwnedFd>, Status> {
        self.open_for_writing()
    }
}

impl<U: DataUse> Permitted<U> {
    /// The state of direct I/O: the descriptor, `Some(None)` where it is not possible, and `None`
    /// before [`Self::open_direct`].
    pub(crate) fn direct(&self) -> Option<Option<DirectFile>> {
        self.descriptors().direct(U::USE)
    }

    /// Opens the object for direct I/O; `None` where that is not possible, or the server's own user
    /// may not open it now. To be called with the server's own identity, where blocking is allowed.
    ///
    /// # Errors
    /// `NoDescriptor`, `ReadOnly`, `Io`.
    pub(crate) fn open_direct(&self) -> Result<Option<DirectFile>, Status> {
        let known = self.descriptors().align();
        let found = match known {
            Some(align) => Some(align),
            None => io::dio_align(self.fd())?,
        };
        let Some(align) = self.descriptors().set_align(found) else { return Ok(None) };
        let access = match U::USE {
            Use::Read => OFlags::RDONLY,
            Use::Write => OFlags::RDWR,
        };
        let opened = self.reopen_raw(access | OFlags::NONBLOCK | OFlags::DIRECT);
        // The inode's alignment does not hold for the file system above it.
        if matches!(opened, Err(Errno::INVAL)) {
            self.descriptors().set_align(None);
            return Ok(None);
        }
        let Some(fd) = unless_forbidden(opened)? else { return Ok(None) };
        let fd = self.descriptors().keep_direct(U::USE, fd);
        self.file.count_descriptors();
        Ok(Some(DirectFile { fd, align }))
    }
}

impl Inode {
    /// Whether direct writes are known to be possible, with a descriptor open for them.
    pub(crate) fn has_direct_writer(&self) -> bool {
        let direct = self.file().map(|file| file.descriptors().direct(Use::Write));
        matches!(direct, Ok(Some(Some(_))))
    }

    /// Takes an alignment for that which the kernel reports.
    #[cfg(test)]
    pub(crate) fn believe_align(&self, align: DioAlign) {
        self.file().unwrap().descriptors().set_align(Some(align));
    }

    /// Notes that the kernel refused a direct request that fits the alignment it had reported.
    /// Returns whether that ended direct I/O for this file.
    pub(crate) fn direct_refused(&self, used: DioAlign) -> bool {
        let Ok(file) = self.file() else { return false };
        let align = io::dio_align(self.fd()).unwrap_or(None);
        let mut descriptors = file.descriptors();
        descriptors.refused(used, align);
        descriptors.align().is_none()
    }

    /// Whether it is known that it has no POSIX access control list beyond its mode bits. Waits for
    /// nothing.
    pub(super) fn has_no_access_list_in_memory(&self) -> bool {
        self.is_access_list_in_memory.load(Relaxed) && !self.has_access_list()
    }

    /// Whether it has a POSIX access control list beyond its mode bits. Opens nothing. May block
    /// the first time: on a file system with its attributes in memory the kernel keeps the answer
    /// with the inode, which lasts as long as it is open.
    pub(super) fn has_access_list(&self) -> bool {
        let found = match self.any_reader() {
            Some(fd) => fgetxattr_query(&*fd, ACCESS_LIST),
            // An `O_PATH` descriptor is refused by fgetxattr.
            None => getxattr_query(proc_path(self.fd()), ACCESS_LIST),
        };
        // After another error the kernel keeps nothing.
        let is_kept = matches!(found, Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP));
        let is_in_memory = is_kept && self.root.attributes_in_memory;
        self.is_access_list_in_memory.store(is_in_memory, Relaxed);
        match found {
            Ok(len) => len > 0,
            Err(Errno::NODATA | Errno::OPNOTSUPP) => false,
            // Unreadable: assume one.
            Err(_) => true,
        }
    }

    /// A descriptor to flush through: one that is open, in this export or another, or a new one for
    /// reading. `None` where there can be none now. To one opened after another process has flushed
    /// the file the kernel does not report the errors that this process got.
    pub(super) fn descriptor_for_flush(&self) -> Option<Arc<OwnedFd>> {
        let writer = self.file().ok().and_then(|file| file.state.oldest_writer());
        if let Some(fd) = writer.or_else(|| self.any_reader()) {
            return Some(fd);
        }
        let opened = self.open_for_reading()?;
        opened.inspect_err(|status| tracing::debug!(?status, "cannot open a file to flush it")).ok()
    }

    /// Opens the descriptor that a flush takes. To be called with the server's own identity, where
    /// blocking is allowed.
    ///
    /// # Errors
    /// As [`Permitted::open_reader`]. The flush can do without.
    pub(crate) fn open_for_flush(&self) -> Result<(), Status> {
        self.open_for_reading().unwrap_or(Err(Status::Invalid)).map(drop)
    }

    /// Whether [`Self::open_for_flush`] is to be called before a flush.
    pub(crate) fn needs_descriptor_for_flush(&self) -> bool {
        let can_be_opened = !matches!(self.contents, Contents::Other);
        self.is_dirty() && can_be_opened && self.any_reader().is_none()
    }

    /// Whether a regular file that the server does not have open for writing may be written by a
    /// client: one for which it was open until it was not written for a while, or one of version 4
    /// that has it open for writing by `has_writer`.
    pub(crate) fn may_miss_writer(&self, has_writer: impl FnOnce(&Self) -> bool) -> bool {
        let is_missed =
            |file: &File| file.is_closed_for_writing() || (!file.is_writable() && has_writer(self));
        self.file().is_ok_and(is_missed)
    }

    /// Keeps the descriptor, open for reading and writing, that has created this file, unless it is
    /// open for writing already: by its mode the server may not be able to open another one.
    pub(crate) fn keep_created(&self, writer: OwnedFd) {
        if let Ok(file) = self.file() {
            self.keep_for_writing(file, writer);
        }
    }

    /// Opens a regular file for writing for [`Permitted::writer`] to give out. To be called within
    /// a change of the object, with the server's own identity, where blocking is allowed.
    ///
    /// # Errors
    /// As [`Permitted::open_writer`].
    pub(crate) fn keep_writer(&self) -> Result<(), Status> {
        self.open_for_writing().map(drop)
    }

    pub(super) fn open_for_writing(&self) -> Result<Arc<OwnedFd>, Status> {
        let file = self.file()?;
        let opened = self.reopen_raw(WRITER_FLAGS);
        // A program could be executed from it only after the server had closed it, and after any
        // other error a client drops what it was to write.
        if matches!(opened, Err(Errno::TXTBSY)) && file.is_closed_for_writing() {
            return Err(Status::Delay);
        }
        Ok(self.keep_for_writing(file, opened?))
    }

    /// Keeps a descriptor for writing, unless there is one; returns the one kept.
    fn keep_for_writing(&self, file: &File, fd: OwnedFd) -> Arc<OwnedFd> {
        let kept = file.descriptors().write.get_or_insert_with(|| Arc::new(fd)).clone();
        file.note_write();
        file.state.note_writer(&kept);
        self.count_descriptors();
        kept
    }

    /// Whether a descriptor is open for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.file().is_ok_and(File::is_writable)
    }

    fn any_reader(&self) -> Option<Arc<OwnedFd>> {
        match &self.contents {
            Contents::File(file) => file.any_reader(),
            Contents::Directory(directory) => directory.reader.get().cloned(),
            Contents::Other => None,
        }
    }

    /// Opens a file or a directory for reading; `None` for what cannot be opened to be read or
    /// flushed.
    fn open_for_reading(&self) -> Option<Result<Arc<OwnedFd>, Status>> {
        let reopen = |flags| self.reopen(flags).map(Arc::new);
        let opened = match &self.contents {
            Contents::File(file) => Some(reopen(OFlags::RDONLY | OFlags::NONBLOCK).map(|fd| {
                let kept = file.descriptors().read.get_or_insert(fd).clone();
                file.state.note_reader(&kept);
                kept
            })),
            Contents::Directory(directory) => Some(
                reopen(OFlags::RDONLY | OFlags::DIRECTORY)
                    .map(|fd| directory.reader.get_or_init(|| fd).clone()),
            ),
            Contents::Other => None,
        };
        self.count_descriptors();
        opened
    }
}

/// Takes a refusal out of the result of opening a file once more for a caller who is permitted. The
/// mode, or an attribute as `chattr +i`, may forbid that to the server after another descriptor was
/// opened, which serves then.
fn unless_forbidden(opened: Result<OwnedFd, Errno>) -> Result<Option<OwnedFd>, Status> {
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::ACCESS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Decides from owner, group and mode whether one of the permissions `needed` is granted.
///
/// Of the server's own user only what its supplementary groups and capabilities have no part in is
/// decided: a container or a unit may have given it any. Nor is anything decided by an id that
/// stands for others in a user namespace.
fn by_mode(identity: &Identity, attributes: &LiveAttributes, needed: Access) -> Verdict {
    let (owner, group) = (attributes.uid, attributes.gid);
    let Some(is_owner) = identity.is_owner(owner) else { return Verdict::AskKernel };
    if is_owner || identity.has_overrides(owner, group) {
        return Verdict::Allowed;
    }
    let in_group = identity.is_in_group(group);
    let grants = |class: u32| class & 7 & needed.bits() != 0;
    let (group, others) = (attributes.mode >> 3, attributes.mode);
    match (identity, in_group) {
        (Identity::Server, _) if grants(group) && (grants(others) || in_group == Some(true)) => {
            Verdict::UnlessList(true)
        }
        (Identity::Server | Identity::User { uid: 0, .. }, _) => Verdict::AskKernel,
        // With no permission in the group bits, which are then the list's mask, and none for
        // others, no list can grant anything.
        (Identity::User { .. }, _) if attributes.mode & 0o077 == 0 => Verdict::Denied,
        (Identity::User { .. }, None) => Verdict::AskKernel,
        (Identity::User { .. }, Some(true)) => Verdict::UnlessList(grants(group)),
        (Identity::User { .. }, Some(false)) => Verdict::UnlessList(grants(others)),
    }
}

/// Asks the kernel, as the identity of this thread.
///
/// # Errors
/// Any other than a refusal: a disk that fails denies no caller access.
pub(crate) fn kernel_allows(file: &Inode, wanted: Access) -> Result<bool, Status> {
    match io::check_access(file.fd(), wanted).map_err(Status::from) {
        Ok(()) => Ok(true),
        Err(Status::Access | Status::NotOwner | Status::ReadOnly) => Ok(false),
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FileType;

    use super::*;
    use crate::fs::Timestamp;

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Identity {
        Identity::User { uid, gid, groups: groups.into() }
    }

    fn file(mode: u32) -> LiveAttributes {
        let zero = Timestamp { seconds: 0, nanoseconds: 0 };
        LiveAttributes {
            file_type: FileType::RegularFile,
            mode,
            nlink: 1,
            uid: 10,
            gid: 20,
            size: 0,
            used: 0,
            rdev: (0, 0),
            device: (0, 0),
            fileid: 1,
            atime: zero,
            mtime: zero,
            ctime: zero,
            is_mount_root: false,
            is_dax: false,
            since: io::Moment::default(),
        }
    }

    #[test]
    fn mode_bits_decide_by_class() {
        use Verdict::{Allowed, Denied, UnlessList};
        let (read, write) = (Reading::NEEDED, Writing::NEEDED);
        let cases = [
            (user(0, 0, &[]), 0o000, write, Allowed),
            (user(10, 1, &[]), 0o000, write, Allowed),
            (user(11, 20, &[]), 0o640, read, UnlessList(true)),
            (user(11, 20, &[]), 0o640, write, UnlessList(false)),
            (user(11, 1, &[5, 20]), 0o660, write, UnlessList(true)),
            (user(11, 1, &[]), 0o604, read, UnlessList(true)),
            (user(11, 1, &[]), 0o711, read, UnlessList(true)),
            (user(11, 1, &[]), 0o600, read, Denied),
            // The group class hides the class of others.
            (user(11, 20, &[]), 0o606, write, UnlessList(false)),
        ];
        for (user, mode, wanted, verdict) in cases {
            assert_eq!(by_mode(&user, &file(mode), wanted), verdict, "{mode:o} {wanted:?}");
        }
    }

    #[test]
    fn mode_bits_decide_for_the_server_where_its_groups_do_not_matter() {
        use Verdict::{Allowed, AskKernel, UnlessList};
        let (read, write) = (Reading::NEEDED, Writing::NEEDED);
        let (own, group) = (Identity::Server.uid(), Identity::Server.gid());
        let cases = [
            (own, group + 1, 0o000, write, Allowed),
            (own + 1, group + 1, 0o644, read, UnlessList(true)),
            (own + 1, group + 1, 0o711, read, UnlessList(true)),
            (own + 1, group + 1, 0o644, write, AskKernel),
            (own + 1, group + 1, 0o660, write, AskKernel),
            (own + 1, group + 1, 0o606, write, AskKernel),
            (own + 1, group + 1, 0o600, read, AskKernel),
            (own + 1, group, 0o660, write, UnlessList(true)),
            (own + 1, group, 0o606, write, AskKernel),
        ];
        for (uid, gid, mode, wanted, verdict) in cases {
            let file = LiveAttributes { uid, gid, ..file(mode) };
            assert_eq!(by_mode(&Identity::Server, &file, wanted), verdict, "{mode:o} {wanted:?}");
        }
    }
}
