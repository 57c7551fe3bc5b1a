//! CREATE, MKDIR, SYMLINK and MKNOD: the operations that make an object.
//!
//! Attributes that the kernel sets at creation stay as they are; the others that the client
//! requests are set in a second step, by the same job, and flushed as the object's own. If that
//! step fails, the object is removed again: a call that fails leaves nothing behind. An exclusive
//! CREATE gives the file its name last, so that a killed server leaves none without its verifier.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use io::KernelHandle;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, getxattr_query, linkat, openat};
use rustix::io::Errno;

use super::opening::{find_child, open_child};
use super::{Opened, Removed, new_component};
use crate::fs::proc_path;
use crate::inode_cache::{Inode, NameChange};
use crate::vfs::attr::{Applied, apply, set_owner};
use crate::vfs::{
    Answer, AttributeChange, Caller, Found, LiveAttributes, Object, SetTime, Status, Timestamp,
    Vfs, Wcc, attributes_and_birth_at, attributes_of, attributes_of_linked_or_not,
};

/// How often CREATE tries a name that local programs make and remove at the same time.
const ATTEMPTS: usize = 8;

/// How CREATE treats a name that exists (RFC 1813 §3.3.8, `createmode3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateMode {
    /// Take what exists, and cut it if a length is given.
    Unchecked(AttributeChange),
    /// Fail.
    Guarded(AttributeChange),
    /// Take it if it was made with the same verifier: a retransmission, not a second caller. The
    /// times of a new file hold the verifier.
    Exclusive([u8; 8], AttributeChange),
}

impl CreateMode {
    /// The attributes of a new file.
    pub(crate) fn change(&self) -> AttributeChange {
        match *self {
            Self::Unchecked(change) | Self::Guarded(change) => change,
            Self::Exclusive(verifier, change) => exclusive_change(verifier, change),
        }
    }
}

/// The kind of object that MKDIR, SYMLINK or MKNOD makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A block device node.
    BlockDevice(u32, u32),
    /// A character device node.
    CharacterDevice(u32, u32),
    /// A socket's name.
    Socket,
    /// A named pipe.
    Fifo,
}

impl Vfs {
    /// CREATE, RFC 1813 §3.3.8.
    pub(crate) async fn create(
        &self,
        caller: &Caller,
        dir: &Object,
        name: &[u8],
        mode: CreateMode,
    ) -> Answer<Wcc, Created> {
        let checked = mode.change().check().and_then(|()| new_component(name));
        let name = match checked {
            Ok(name) => name,
            Err(status) => return self.refuse_change(dir, status).await,
        };
        let is_new = |(made, _): &(Made, _)| matches!(made, Made::New(_));
        let job = move |directory: &Inode, _: &mut Removed| {
            let make = || create_file(directory, &name, mode);
            let done = match mode {
                CreateMode::Guarded(_) => directory.make_undelegated(make, Made::new_handle)?,
                // A retry takes what was made.
                CreateMode::Unchecked(_) | CreateMode::Exclusive(..) => (make()?, None),
            };
            if !is_new(&done) {
                directory.note_earlier_changes();
            }
            Ok(done)
        };
        let answer = self.change_directory(caller, dir, job, is_new).await;
        let (directory, (made, undelegated)) = match answer.result {
            Ok(done) => done,
            Err(status) => return Answer { attributes: answer.attributes, result: Err(status) },
        };
        let (mut found, size) = match made {
            Made::New(new) => {
                let kept = self.keep_new(&directory, new, dir.sync).await;
                let result = kept.map(|found| Created { found, undelegated });
                return Answer { attributes: answer.attributes, result };
            }
            Made::Existing(found, fd, size) => {
                self.keep(&directory, &found, fd).await;
                (found, size)
            }
        };
        // An existing file is cut as by SETATTR, with its own lock and permission check.
        if let Some(size) = size {
            let object = dir.found(found.handle);
            let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
            let cut = self.setattr(caller, &object, change, None, |_| false).await;
            if let Err(status) = cut.result {
                return Answer { attributes: answer.attributes, result: Err(status) };
            }
            found.attributes = cut.attributes.0.after.unwrap_or(found.attributes);
        }
        let result = Ok(Created { found, undelegated: None });
        Answer { attributes: answer.attributes, result }
    }

    /// MKDIR, SYMLINK and MKNOD, RFC 1813 §3.3.9 to §3.3.11.
    pub(crate) async fn make_node(
        &self,
        caller: &Caller,
        dir: &Object,
        name: &[u8],
        kind: NodeKind,
        change: AttributeChange,
    ) -> Answer<Wcc, Found> {
        let name = match change.check().and_then(|()| new_component(name)) {
            Ok(name) => name,
            Err(status) => return self.refuse_change(dir, status).await,
        };
        let job =
            move |directory: &Inode, _: &mut Removed| make_child(directory, &name, &kind, change);
        let answer = self.change_directory(caller, dir, job, |_| true).await;
        let result = match answer.result {
            Ok((directory, new)) => self.keep_new(&directory, new, dir.sync).await,
            Err(status) => Err(status),
        };
        Answer { attributes: answer.attributes, result }
    }

    /// Keeps a new object open. The directory's flush has covered its entry; what was set in a
    /// second step is the object's own.
    async fn keep_new(&self, directory: &Inode, new: New, sync: bool) -> Result<Found, Status> {
        let file = self.keep(directory, &new.found, new.fd).await;
        if new.changed_since {
            file.note_change();
            // No flush of it had failed when it was made.
            self.settle(&file, sync, 0).await?;
        }
        Ok(new.found)
    }
}

/// The file that CREATE has made or found.
pub(crate) struct Created {
    pub(crate) found: Found,
    /// Keeps clients from a delegation of a file that was made by `Guarded`.
    pub(crate) undelegated: Option<NameChange>,
}

/// An object that was made.
struct New {
    found: Found,
    fd: Opened,
    /// Attributes were set after it had come into being.
    changed_since: bool,
}

enum Made {
    New(New),
    /// The length to cut it to, if one was asked for.
    Existing(Found, Opened, Option<u64>),
}

impl Made {
    fn new_handle(&self) -> Option<KernelHandle> {
        match self {
            Self::New(new) => Some(new.found.handle),
            Self::Existing(..) => None,
        }
    }
}

/// CREATE as the identity of this thread.
fn create_file(directory: &Inode, name: &CStr, how: CreateMode) -> Result<Made, Status> {
    let change = unmasked(directory, how.change());
    for _ in 0..ATTEMPTS {
        if let Some(made) = create_or_take(directory, name, how, &change)? {
            return Ok(made);
        }
    }
    Err(Status::Delay)
}

/// A name that exists is tried second: creating needs no lookup first, and CREATE of an existing
/// file needs no permission on the directory. `None` if a local program has removed the name
/// between the two.
fn create_or_take(
    directory: &Inode,
    name: &CStr,
    how: CreateMode,
    change: &AttributeChange,
) -> Result<Option<Made>, Status> {
    match how {
        CreateMode::Exclusive(..) => match create_unnamed(directory, name, change)? {
            Exclusive::Made(new) => return Ok(Some(Made::New(new))),
            Exclusive::NameExists => return take_existing(directory, name, how),
            Exclusive::Unsupported => {}
        },
        CreateMode::Unchecked(_) | CreateMode::Guarded(_) => {}
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(change.mode.unwrap_or(0) & 0o7777);
    match openat(directory.fd(), name, flags, mode) {
        Ok(fd) => adopt_new_file(directory, name, fd, change).map(|new| Some(Made::New(new))),
        Err(Errno::EXIST) => take_existing(directory, name, how),
        Err(errno) => Err(errno.into()),
    }
}

/// The attributes of a new object with the caller's umask applied, which a default access control
/// list takes the place of (RFC 8275 §6.2).
fn unmasked(directory: &Inode, change: AttributeChange) -> AttributeChange {
    if change.umask == 0 {
        return change;
    }
    let has_list = getxattr_query(proc_path(directory.fd()), DEFAULT_LIST).is_ok_and(|len| len > 0);
    let umask = if has_list { 0 } else { change.umask };
    AttributeChange { mode: change.mode.map(|mode| mode & !umask), umask: 0, ..change }
}

/// The extended attribute of a directory that holds its default access control list.
const DEFAULT_LIST: &CStr = c"system.posix_acl_default";

enum Exclusive {
    Made(New),
    NameExists,
    /// The file system has no files without a name, or gives them none.
    Unsupported,
}

/// Creates a file without a name, stores the verifier in its times and links it to its name. A
/// repeated call finds the name with the verifier or not at all, whenever the server was killed.
///
/// The name is looked up first: on a lock file that exists, a file without a name would be made and
/// freed in vain at each attempt.
fn create_unnamed(
    directory: &Inode,
    name: &CStr,
    change: &AttributeChange,
) -> Result<Exclusive, Status> {
    match find_child(directory, name) {
        Ok(_) => return Ok(Exclusive::NameExists),
        Err(Status::NoEntry) => {}
        Err(status) => return Err(status),
    }
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(change.mode.unwrap_or(0) & 0o7777);
    let writer = match openat(directory.fd(), c".", flags, mode) {
        Ok(writer) => writer,
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => return Ok(Exclusive::Unsupported),
        Err(errno) => return Err(errno.into()),
    };
    let rest = left_to_set(change, &attributes_of_linked_or_not(&writer)?);
    set_rest(writer.as_fd(), &rest)?;
    // As for LINK: linkat() of a descriptor needs a privilege, the magic link does not.
    let (from, follow) = (proc_path(writer.as_fd()), AtFlags::SYMLINK_FOLLOW);
    match linkat(CWD, from, directory.fd(), name, follow) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(Exclusive::NameExists),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Exclusive::Unsupported),
        Err(errno) => return Err(errno.into()),
    }
    let named = adopt_new_file(directory, name, writer, &AttributeChange::default())?;
    Ok(Exclusive::Made(New { changed_since: true, ..named }))
}

/// Makes a file that was created under a name the client's own. A local program may have taken the
/// name from it: `Stale` would mean the directory.
fn adopt_new_file(
    directory: &Inode,
    name: &CStr,
    writer: OwnedFd,
    change: &AttributeChange,
) -> Result<New, Status> {
    let finish = || {
        let made = attributes_of_linked_or_not(&writer)?;
        let rest = left_to_set(change, &made);
        // It stays when the one for writing is closed.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let base = openat(CWD, proc_path(writer.as_fd()), flags, Mode::empty())?;
        let handle = directory.root().identify_child(directory.handle(), name, writer.as_fd())?;
        let changed_since = set_rest(writer.as_fd(), &rest)?;
        let attributes = if changed_since { attributes_of_linked_or_not(&writer)? } else { made };
        Ok((Found::new(directory, handle, attributes), base, changed_since))
    };
    match finish() {
        Ok((found, base, changed_since)) => {
            Ok(New { found, fd: Opened { base, writer: Some(writer) }, changed_since })
        }
        Err(status) => {
            remove_new(directory, name, Some(writer.as_fd()), AtFlags::empty());
            Err(status)
        }
    }
}

/// Sets what creating an object has left; returns whether that was anything.
///
/// An owner or group that the caller may not give is left as the kernel chose it, as the Linux
/// server does: some clients send both with every creation, macOS with the group of the directory.
fn set_rest(fd: BorrowedFd<'_>, rest: &AttributeChange) -> Result<bool, Status> {
    if *rest == AttributeChange::default() {
        return Ok(false);
    }
    if let Some(size) = rest.size {
        rustix::fs::ftruncate(fd, size)?;
    }
    let mut given = set_owner(fd, rest.uid, rest.gid);
    if given.is_err_and(is_not_given) && rest.uid.is_some() && rest.gid.is_some() {
        given = set_owner(fd, None, rest.gid);
    }
    match given {
        Err(errno) if !is_not_given(errno) => return Err(errno.into()),
        Ok(()) | Err(_) => {}
    }
    apply(fd, &AttributeChange { uid: None, gid: None, ..*rest }, &mut Applied::default())?;
    Ok(true)
}

/// Whether an owner or group is refused: to this caller, or because the server's user name space or
/// the mount has no such id.
fn is_not_given(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::INVAL | Errno::OVERFLOW)
}

/// Removes an object that was made by a call that fails now, if the name is still its own. `made`
/// is `None` if it could not be opened: then the name is taken for its own. The directory's lock
/// keeps other calls from the name; a local program may take it between the two steps here.
fn remove_new(directory: &Inode, name: &CStr, made: Option<BorrowedFd<'_>>, flags: AtFlags) {
    let inode = |attributes: LiveAttributes| (attributes.device, attributes.fileid);
    let is_named = made.is_none_or(|made| {
        let named = attributes_and_birth_at(directory.fd(), name).map(|(named, _)| inode(named));
        named.is_ok() && named == attributes_of(made).map(inode)
    });
    if is_named && let Err(errno) = rustix::fs::unlinkat(directory.fd(), name, flags) {
        let export = directory.root().id;
        tracing::debug!(export, %errno, "cannot remove the object that a failed call created");
    }
}

/// The file of this name, where `how` takes one that exists; `None` if there is none any more.
fn take_existing(directory: &Inode, name: &CStr, how: CreateMode) -> Result<Option<Made>, Status> {
    let look = || match find_child(directory, name) {
        Err(Status::NoEntry) => Ok(None),
        found => found.map(Some),
    };
    match how {
        CreateMode::Guarded(_) => Err(Status::Exists),
        CreateMode::Unchecked(change) => match look()? {
            None => Ok(None),
            Some((found, _)) if found.attributes.is_directory() => Err(Status::IsDirectory),
            Some((found, _)) if !found.attributes.is_regular() => Err(Status::Exists),
            Some((found, fd)) => Ok(Some(Made::Existing(found, fd, change.size))),
        },
        CreateMode::Exclusive(verifier, change) => {
            let Some((found, fd)) = look()? else { return Ok(None) };
            let made_by_same = found.attributes.is_regular()
                && found.attributes.size == change.size.unwrap_or(0)
                && verifier_in(&found.attributes) == Some(verifier);
            if made_by_same {
                Ok(Some(Made::Existing(found, fd, None)))
            } else {
                Err(Status::Exists)
            }
        }
    }
}

/// The verifier of an exclusive create is kept in the file's times, where it survives a restart of
/// the server (RFC 1813 §3.3.8 suggests it). Signed 32-bit seconds fit every Linux file system.
fn exclusive_change(verifier: [u8; 8], change: AttributeChange) -> AttributeChange {
    let [a0, a1, a2, a3, m0, m1, m2, m3] = verifier;
    let at = |seconds: [u8; 4]| {
        let seconds = i64::from(i32::from_be_bytes(seconds));
        SetTime::At(Timestamp { seconds, nanoseconds: 0 })
    };
    AttributeChange {
        // A client of version 3 sets the mode with the SETATTR that follows; until then it is its
        // owner's.
        mode: change.mode.or(Some(0o600)),
        atime: at([a0, a1, a2, a3]),
        mtime: at([m0, m1, m2, m3]),
        ..change
    }
}

fn verifier_in(attributes: &LiveAttributes) -> Option<[u8; 8]> {
    let mut verifier = [0; 8];
    let seconds = |time: Timestamp| i32::try_from(time.seconds).ok().map(i32::to_be_bytes);
    verifier[..4].copy_from_slice(&seconds(attributes.atime)?);
    verifier[4..].copy_from_slice(&seconds(attributes.mtime)?);
    Some(verifier)
}

fn make_child(
    directory: &Inode,
    name: &CStr,
    kind: &NodeKind,
    change: AttributeChange,
) -> Result<New, Status> {
    let change = unmasked(directory, change);
    make_entry(directory.fd(), name, kind, change.mode.unwrap_or(0))?;
    let is_directory = matches!(kind, NodeKind::Directory);
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    let opened = open_child(directory, name);
    let (mut found, fd) = opened.inspect_err(|_| remove_new(directory, name, None, flags))?;
    let rest = match kind {
        NodeKind::Symlink(_) => AttributeChange::default(),
        _ => AttributeChange { size: None, ..left_to_set(&change, &found.attributes) },
    };
    let set = set_rest(fd.as_fd(), &rest).and_then(|changed_since| {
        if changed_since {
            found = Found::new(directory, found.handle, attributes_of_linked_or_not(&fd)?);
        }
        Ok(changed_since)
    });
    let changed_since = set.inspect_err(|_| {
        remove_new(directory, name, Some(fd.as_fd()), flags);
    })?;
    Ok(New { found, fd: Opened::path_only(fd), changed_since })
}

fn make_entry(at: BorrowedFd<'_>, name: &CStr, kind: &NodeKind, mode: u32) -> Result<(), Status> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    match kind {
        NodeKind::Directory => rustix::fs::mkdirat(at, name, mode)?,
        NodeKind::Symlink(target) => {
            let target = CString::new(target.as_slice()).map_err(|_| Status::Invalid)?;
            rustix::fs::symlinkat(target, at, name)?;
        }
        NodeKind::BlockDevice(major, minor) => {
            rustix::fs::mknodat(at, name, FileType::BlockDevice, mode, device(*major, *minor)?)?;
        }
        NodeKind::CharacterDevice(major, minor) => {
            rustix::fs::mknodat(
                at,
                name,
                FileType::CharacterDevice,
                mode,
                device(*major, *minor)?,
            )?;
        }
        NodeKind::Socket => rustix::fs::mknodat(at, name, FileType::Socket, mode, 0)?,
        NodeKind::Fifo => rustix::fs::mknodat(at, name, FileType::Fifo, mode, 0)?,
    }
    Ok(())
}

/// A device number.
///
/// # Errors
/// `Invalid` if the kernel, which has 12 bits for the major and 20 for the minor number, would take
/// it for another one.
fn device(major: u32, minor: u32) -> Result<u64, Status> {
    let is_known = major < 1 << 12 && minor < 1 << 20;
    is_known.then(|| rustix::fs::makedev(major, minor)).ok_or(Status::Invalid)
}

/// The attributes that creation has not set yet. The permission bits stay as the kernel set them by
/// the default access control list, the set-group-id directory and the caller's rights. Only
/// special bits are left: those that mkdir() does not take, and those of a file that setting its
/// owner or its length clears.
fn left_to_set(change: &AttributeChange, made: &LiveAttributes) -> AttributeChange {
    let uid = change.uid.filter(|uid| *uid != made.uid);
    let gid = change.gid.filter(|gid| *gid != made.gid);
    let special = change.mode.unwrap_or(0) & 0o7000;
    let not_taken = made.is_directory() && special & !made.mode != 0;
    let size = change.size.filter(|size| *size != made.size);
    let cleared = special != 0 && (uid.is_some() || gid.is_some() || size.is_some());
    let mode = (not_taken || cleared).then_some(made.mode | special);
    AttributeChange { mode, uid, gid, size, ..*change }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fs::PATH_ONLY;
    use crate::vfs::readable::{open, serve};

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_descriptor_that_created_a_file_is_kept_where_a_lookup_came_first() {
        let dir = tempfile::tempdir().unwrap();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let path = export.join("f");
        let created = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
        let writer = OwnedFd::from(created.unwrap());
        let base = rustix::fs::open(&path, PATH_ONLY, Mode::empty()).unwrap();
        let server = serve(dir.path()).await;
        let directory = open(&server, &export).await;
        let file = open(&server, &path).await;
        assert!(!file.is_writable());
        let found = Found::new(&directory, *file.handle(), attributes_of(&writer).unwrap());
        let opened = Opened { base, writer: Some(writer) };
        let kept = server.service().vfs.keep(&directory, &found, opened).await;
        assert!(Arc::ptr_eq(&kept, &file) && file.is_writable());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn file_that_a_local_program_removes_while_it_is_created_is_not_stale() {
        let dir = tempfile::tempdir().unwrap();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let server = serve(dir.path()).await;
        let directory = open(&server, &export).await;
        let path = export.join("f");
        for change in [SetTime::Keep, SetTime::Now] {
            let change = AttributeChange { mtime: change, ..AttributeChange::default() };
            let created =
                std::fs::File::options().read(true).write(true).create_new(true).open(&path);
            std::fs::remove_file(&path).unwrap();
            let new = adopt_new_file(&directory, c"f", created.unwrap().into(), &change).unwrap();
            assert_eq!(new.found.attributes.nlink, 0);
        }
    }
}
