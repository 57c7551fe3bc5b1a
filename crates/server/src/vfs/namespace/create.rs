//! CREATE, MKDIR, SYMLINK and MKNOD: the operations that make an object.
//!
//! What the kernel sets while it makes one stands as the kernel gave it; the rest of what the client
//! wants is set in a second step, by the same job, and flushed as the object's own.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use super::{Opened, find_child, new_component, open_child};
use crate::open_files::OpenFile;
use crate::vfs::attr::apply;
use crate::vfs::{
    Answer, AttributeChange, Attributes, Caller, Found, Object, SetTime, Status, Timestamp, Vfs,
    Wcc, attributes_of,
};

/// How CREATE treats a name that exists (RFC 1813 §3.3.8, `createmode3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateMode {
    /// Take what exists, and cut it if a length is given.
    Unchecked(AttributeChange),
    /// Fail.
    Guarded(AttributeChange),
    /// Take it if it was made with the same verifier: a retransmission, not a second caller.
    Exclusive([u8; 8]),
}

impl CreateMode {
    /// The attributes of a new file.
    fn change(&self) -> AttributeChange {
        match *self {
            Self::Unchecked(change) | Self::Guarded(change) => change,
            Self::Exclusive(verifier) => exclusive_change(verifier),
        }
    }
}

/// What MKDIR, SYMLINK and MKNOD make.
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
    ) -> Answer<Wcc, Found> {
        let checked = mode.change().check().and_then(|()| new_component(name));
        let name = match checked {
            Ok(name) => name,
            Err(status) => return self.refuse_change(dir, status).await,
        };
        let job = move |directory: &OpenFile| create_file(directory, &name, mode);
        let answer = self.change_directory(caller, dir, job).await;
        let (directory, made) = match answer.result {
            Ok(done) => done,
            Err(status) => return Answer { attributes: answer.attributes, result: Err(status) },
        };
        let (mut found, size) = match made {
            Made::New(new) => {
                let result = self.keep_new(&directory, new, dir.sync).await;
                return Answer { attributes: answer.attributes, result };
            }
            Made::Existing(found, fd, size) => {
                self.keep(&directory, &found, fd).await;
                (found, size)
            }
        };
        // An existing file is cut as by SETATTR, with its own turn and permission check.
        if let Some(size) = size {
            let object = Object { handle: found.handle, ..dir.clone() };
            let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
            let cut = self.setattr(caller, &object, change, None).await;
            if let Err(status) = cut.result {
                return Answer { attributes: answer.attributes, result: Err(status) };
            }
            found.attributes = cut.attributes.after.unwrap_or(found.attributes);
        }
        Answer { attributes: answer.attributes, result: Ok(found) }
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
        let job = move |directory: &OpenFile| make_child(directory, &name, &kind, change);
        let answer = self.change_directory(caller, dir, job).await;
        let result = match answer.result {
            Ok((directory, new)) => self.keep_new(&directory, new, dir.sync).await,
            Err(status) => Err(status),
        };
        Answer { attributes: answer.attributes, result }
    }

    /// Keeps a new object open. The directory's flush has covered its entry; what was set in a
    /// second step is the object's own.
    async fn keep_new(&self, directory: &OpenFile, new: New, sync: bool) -> Result<Found, Status> {
        let file = self.keep(directory, &new.found, new.fd).await;
        if new.changed_since {
            self.settle(&file, sync).await?;
        }
        Ok(new.found)
    }
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

/// CREATE as the identity of this thread. A name that exists is tried second: creating needs no
/// look first, and a client that creates what exists needs no permission on the directory.
fn create_file(directory: &OpenFile, name: &CStr, how: CreateMode) -> Result<Made, Status> {
    let change = how.change();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(change.mode.unwrap_or(0) & 0o7777);
    match openat(directory.fd(), name, flags, mode) {
        Ok(fd) => adopt_new_file(directory, name, fd, &change),
        Err(Errno::EXIST) => take_existing(directory, name, how),
        Err(errno) => Err(errno.into()),
    }
}

fn adopt_new_file(
    directory: &OpenFile,
    name: &CStr,
    writer: OwnedFd,
    change: &AttributeChange,
) -> Result<Made, Status> {
    let mut attributes = attributes_of(&writer)?;
    let rest = left_to_set(change, &attributes);
    let handle = directory.root().identify_child(directory.handle(), name, writer.as_fd())?;
    let changed_since = rest != AttributeChange::default();
    if changed_since {
        if let Some(size) = rest.size {
            rustix::fs::ftruncate(&writer, size)?;
        }
        apply(writer.as_fd(), &rest)?;
        attributes = attributes_of(&writer)?;
    }
    let found = Found { handle, attributes };
    Ok(Made::New(New { found, fd: Opened::Writable(writer), changed_since }))
}

fn take_existing(directory: &OpenFile, name: &CStr, how: CreateMode) -> Result<Made, Status> {
    let (found, fd) = find_child(directory, name)?;
    match how {
        CreateMode::Guarded(_) => Err(Status::Exists),
        CreateMode::Unchecked(_) if found.attributes.is_directory() => Err(Status::IsDirectory),
        CreateMode::Unchecked(_) if !found.attributes.is_regular() => Err(Status::Exists),
        CreateMode::Unchecked(change) => Ok(Made::Existing(found, fd, change.size)),
        CreateMode::Exclusive(verifier) => {
            let made_by_same = found.attributes.is_regular()
                && found.attributes.size == 0
                && verifier_in(&found.attributes) == Some(verifier);
            if made_by_same { Ok(Made::Existing(found, fd, None)) } else { Err(Status::Exists) }
        }
    }
}

/// The verifier of an exclusive create is kept in the file's times, where it survives a restart of
/// the server (RFC 1813 §3.3.8 suggests it). Signed 32-bit seconds fit every Linux file system.
fn exclusive_change(verifier: [u8; 8]) -> AttributeChange {
    let [a0, a1, a2, a3, m0, m1, m2, m3] = verifier;
    let at = |seconds: [u8; 4]| {
        let seconds = i64::from(i32::from_be_bytes(seconds));
        SetTime::At(Timestamp { seconds, nanoseconds: 0 })
    };
    AttributeChange {
        // The client sets the real mode with the SETATTR that follows; until then it is its owner's.
        mode: Some(0o600),
        atime: at([a0, a1, a2, a3]),
        mtime: at([m0, m1, m2, m3]),
        ..AttributeChange::default()
    }
}

fn verifier_in(attributes: &Attributes) -> Option<[u8; 8]> {
    let mut verifier = [0; 8];
    let seconds = |time: Timestamp| i32::try_from(time.seconds).ok().map(i32::to_be_bytes);
    verifier[..4].copy_from_slice(&seconds(attributes.atime)?);
    verifier[4..].copy_from_slice(&seconds(attributes.mtime)?);
    Some(verifier)
}

fn make_child(
    directory: &OpenFile,
    name: &CStr,
    kind: &NodeKind,
    change: AttributeChange,
) -> Result<New, Status> {
    let at = directory.fd();
    let mode = Mode::from_raw_mode(change.mode.unwrap_or(0) & 0o7777);
    let device = rustix::fs::makedev;
    match kind {
        NodeKind::Directory => rustix::fs::mkdirat(at, name, mode)?,
        NodeKind::Symlink(target) => {
            let target = CString::new(target.as_slice()).map_err(|_| Status::Invalid)?;
            rustix::fs::symlinkat(target, at, name)?;
        }
        NodeKind::BlockDevice(major, minor) => {
            rustix::fs::mknodat(at, name, FileType::BlockDevice, mode, device(*major, *minor))?;
        }
        NodeKind::CharacterDevice(major, minor) => {
            rustix::fs::mknodat(at, name, FileType::CharacterDevice, mode, device(*major, *minor))?;
        }
        NodeKind::Socket => rustix::fs::mknodat(at, name, FileType::Socket, mode, 0)?,
        NodeKind::Fifo => rustix::fs::mknodat(at, name, FileType::Fifo, mode, 0)?,
    }
    let (mut found, fd) = open_child(directory, name)?;
    let rest = AttributeChange { size: None, ..left_to_set(&change, &found.attributes) };
    let changed_since = rest != AttributeChange::default() && !matches!(kind, NodeKind::Symlink(_));
    if changed_since {
        apply(fd.as_fd(), &rest)?;
        found.attributes = attributes_of(&fd)?;
    }
    Ok(New { found, fd: Opened::PathOnly(fd), changed_since })
}

/// What creating an object has not set yet. The permission bits stand as the kernel gave them:
/// a default access control list, a set-group-id directory and the caller's rights have had their
/// say. Only special bits are left: those that mkdir() does not take, and those of a file that
/// setting its owner or its length clears.
fn left_to_set(change: &AttributeChange, made: &Attributes) -> AttributeChange {
    let uid = change.uid.filter(|uid| *uid != made.uid);
    let gid = change.gid.filter(|gid| *gid != made.gid);
    let special = change.mode.unwrap_or(0) & 0o7000;
    let not_taken = made.is_directory() && special & !made.mode != 0;
    let size = change.size.filter(|size| *size != made.size);
    let cleared = special != 0 && (uid.is_some() || gid.is_some() || size.is_some());
    let mode = (not_taken || cleared).then_some(made.mode | special);
    AttributeChange { mode, uid, gid, size, ..*change }
}
