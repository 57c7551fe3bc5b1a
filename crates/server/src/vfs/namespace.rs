//! LOOKUP, READLINK and the operations that add and remove names; those that make objects stand in
//! `create`.
//!
//! All of them run as the caller, so that the kernel checks permissions, sticky bits and quotas as
//! for a local user. Those that change a directory hold its turn (`OpenFile::turns`) from the
//! attributes before to the attributes after.

mod create;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, openat};
use rustix::io::Errno;

use super::{
    Answer, Attributes, Caller, Found, Object, Status, Vfs, Wcc, attributes_of, component,
};
use crate::export_root::PATH_ONLY;
use crate::open_files::{FileKey, OpenFile, proc_path};
use crate::turns::{Alone, Turns};

pub(crate) use create::{CreateMode, NodeKind};

impl Vfs {
    /// LOOKUP, RFC 1813 §3.3.3. `..` of the export's root is the root.
    pub(crate) async fn lookup(
        &self,
        caller: &Caller,
        dir: &Object,
        name: &[u8],
    ) -> Answer<Option<Attributes>, Found> {
        let directory = match self.open(dir).await {
            Ok(directory) => directory,
            Err(status) => return Answer::refused(status),
        };
        let (opened, component) = (Arc::clone(&directory), component(name));
        let job = move || {
            let result = component.and_then(|name| find_child(&opened, &name));
            Ok((attributes_of(opened.fd()).ok(), result))
        };
        match self.in_metadata_lane(caller.identity.clone(), job).await {
            Ok((attributes, Ok((found, fd)))) => {
                let file = self.keep(&directory, &found, fd).await;
                // What lies above a directory that was moved out of the export is not part of it.
                let place = if name == b".." { self.check_place(&file).await } else { Ok(()) };
                Answer { attributes, result: place.map(|()| found) }
            }
            Ok((attributes, Err(status))) => Answer { attributes, result: Err(status) },
            Err(status) => Answer::refused(status),
        }
    }

    /// READLINK, RFC 1813 §3.3.5.
    pub(crate) async fn readlink(&self, object: &Object) -> Answer<Option<Attributes>, Vec<u8>> {
        let link = match self.open(object).await {
            Ok(link) => link,
            Err(status) => return Answer::refused(status),
        };
        if link.file_type() != FileType::Symlink {
            let attributes = self.attributes(&link).await.ok();
            return Answer { attributes, result: Err(Status::Invalid) };
        }
        let job = move || {
            let target = rustix::fs::readlinkat(link.fd(), c"", Vec::new());
            let result = target.map(CString::into_bytes).map_err(Status::from);
            Ok((attributes_of(link.fd()).ok(), result))
        };
        match self.in_metadata_lane(io::Identity::Server, job).await {
            Ok((attributes, result)) => Answer { attributes, result },
            Err(status) => Answer::refused(status),
        }
    }

    /// REMOVE (`is_directory` false) and RMDIR (true), RFC 1813 §3.3.12 and §3.3.13.
    pub(crate) async fn remove(
        &self,
        caller: &Caller,
        dir: &Object,
        name: &[u8],
        is_directory: bool,
    ) -> Answer<Wcc, ()> {
        let name = match (name, is_directory) {
            (b".", _) => Err(Status::Invalid),
            (b"..", true) => Err(Status::Exists),
            (b"..", false) => Err(Status::IsDirectory),
            _ => component(name),
        };
        let name = match name {
            Ok(name) => name,
            Err(status) => return self.refuse_change(dir, status).await,
        };
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let job = move |directory: &OpenFile| {
            let victim = openat(directory.fd(), &name, PATH_ONLY, Mode::empty()).ok();
            match rustix::fs::unlinkat(directory.fd(), &name, flags) {
                Ok(()) => Ok(victim.and_then(|fd| last_link_gone(directory, &fd))),
                // POSIX lets unlink() of a directory be EPERM; Linux says EISDIR, others differ.
                Err(Errno::PERM) if is_a_directory(victim.as_ref()) && !is_directory => {
                    Err(Status::IsDirectory)
                }
                Err(errno) => Err(errno.into()),
            }
        };
        let answer = self.change_directory(caller, dir, job).await;
        let result = answer.result.map(|(_, gone)| {
            if let Some(key) = gone {
                self.open_files.forget(&key);
            }
        });
        Answer { attributes: answer.attributes, result }
    }

    /// RENAME, RFC 1813 §3.3.14. The attributes are those of the two directories.
    pub(crate) async fn rename(
        &self,
        caller: &Caller,
        from: (&Object, &[u8]),
        to: (&Object, &[u8]),
    ) -> Answer<(Wcc, Wcc), ()> {
        let names = rename_component(from.1).and_then(|f| Ok((f, rename_component(to.1)?)));
        let allowed = caller.may_change().and(if from.0.root.id == to.0.root.id {
            Ok(())
        } else {
            Err(Status::CrossDevice)
        });
        let opened = match (self.open(from.0).await, self.open(to.0).await) {
            (Ok(from), Ok(to)) => Ok((from, to)),
            (Err(status), _) | (_, Err(status)) => Err(status),
        };
        let (from_dir, to_dir) = match opened {
            Ok(opened) => opened,
            Err(status) => return Answer::refused(status),
        };
        let turns = turns_of_both(&from_dir.turns, &to_dir.turns).await;
        let (from_in, to_in) = (Arc::clone(&from_dir), Arc::clone(&to_dir));
        let job = move || {
            let before = (attributes_of(from_in.fd()).ok(), attributes_of(to_in.fd()).ok());
            let result =
                allowed.and(names).and_then(|(f, t)| rename_child(&from_in, &f, &to_in, &t));
            let after = (attributes_of(from_in.fd()).ok(), attributes_of(to_in.fd()).ok());
            drop(turns);
            let wcc = |before, after| Wcc { before, after };
            Ok(((wcc(before.0, after.0), wcc(before.1, after.1)), result))
        };
        let (attributes, result) = match self.in_metadata_lane(caller.identity.clone(), job).await {
            Ok(done) => done,
            Err(status) => return Answer::refused(status),
        };
        let result = match result {
            Ok(replaced) => {
                replaced.inspect(|key| self.open_files.forget(key));
                let settled = self.settle(&from_dir, from.0.sync).await;
                settled.and(self.settle(&to_dir, to.0.sync).await)
            }
            Err(status) => Err(status),
        };
        Answer { attributes, result }
    }

    /// LINK, RFC 1813 §3.3.15. The attributes are those of the file and of the directory.
    pub(crate) async fn link(
        &self,
        caller: &Caller,
        object: &Object,
        dir: &Object,
        name: &[u8],
    ) -> Answer<(Option<Attributes>, Wcc), ()> {
        let file = match self.open(object).await {
            Ok(file) => file,
            Err(status) => return Answer::refused(status),
        };
        let name = match new_component(name) {
            Ok(_) if object.root.id != dir.root.id => Err(Status::CrossDevice),
            name => name,
        };
        let linked = Arc::clone(&file);
        let job = move |directory: &OpenFile| {
            let name = name?;
            // linkat() of a descriptor needs a privilege; the magic link does not, and the kernel
            // applies its rules for hard links to the caller.
            let follow = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, proc_path(linked.fd()), directory.fd(), &name, follow)?;
            directory.root().identify_child(directory.handle(), &name, linked.fd())?;
            Ok(())
        };
        let answer = self.change_directory(caller, dir, job).await;
        let attributes = (self.attributes(&file).await.ok(), answer.attributes);
        Answer { attributes, result: answer.result.map(|_| ()) }
    }

    /// Runs a change of one directory as the caller, between its attributes before and after, and
    /// makes it durable where the export promises that.
    async fn change_directory<T: Send + 'static>(
        &self,
        caller: &Caller,
        dir: &Object,
        job: impl FnOnce(&OpenFile) -> Result<T, Status> + Send + 'static,
    ) -> Answer<Wcc, (Arc<OpenFile>, T)> {
        let directory = match self.open(dir).await {
            Ok(directory) => directory,
            Err(status) => return Answer::refused(status),
        };
        let allowed = caller.may_change().and(if directory.file_type() == FileType::Directory {
            Ok(())
        } else {
            Err(Status::NotDirectory)
        });
        let turn = directory.turns.alone().await;
        let opened = Arc::clone(&directory);
        let job = move || {
            let before = attributes_of(opened.fd())?;
            let result = allowed.and_then(|()| job(&opened));
            let after = attributes_of(opened.fd()).ok();
            drop(turn);
            Ok((Wcc { before: Some(before), after }, result))
        };
        let (attributes, result) = match self.in_metadata_lane(caller.identity.clone(), job).await {
            Ok(done) => done,
            Err(status) => return Answer::refused(status),
        };
        let result = match result {
            Ok(done) => match self.settle(&directory, dir.sync).await {
                Ok(()) => Ok((directory, done)),
                Err(status) => Err(status),
            },
            Err(status) => Err(status),
        };
        Answer { attributes, result }
    }

    /// The answer to a change that is refused before it starts: still with the directory's
    /// attributes, which clients use.
    async fn refuse_change<T>(&self, dir: &Object, status: Status) -> Answer<Wcc, T> {
        match self.getattr(dir).await {
            Ok(now) => {
                let attributes = Wcc { before: Some(now), after: Some(now) };
                Answer { attributes, result: Err(status) }
            }
            Err(gone) => Answer::refused(gone),
        }
    }

    /// Puts a descriptor that an operation has opened into the cache: the next request for the
    /// object is most likely on its way.
    async fn keep(&self, directory: &OpenFile, found: &Found, fd: Opened) -> Arc<OpenFile> {
        let root = Arc::clone(directory.root());
        let key = FileKey::new(&root, found.handle);
        if let Some(file) = self.open_files.find(&key) {
            return file;
        }
        self.open_files.make_room(&key, &self.engine).await;
        self.open_files.insert(match fd {
            Opened::PathOnly(fd) => {
                OpenFile::new(root, found.handle, found.attributes.file_type, fd)
            }
            Opened::Writable(fd) => OpenFile::created(root, found.handle, fd),
        })
    }
}

/// A descriptor that an operation leaves behind.
enum Opened {
    /// Good for attributes and as the start of a path.
    PathOnly(OwnedFd),
    /// Opened for reading and writing, by creating the file.
    Writable(OwnedFd),
}

/// A name that is to be made: `.` and `..` exist already.
fn new_component(name: &[u8]) -> Result<CString, Status> {
    if matches!(name, b"." | b"..") { Err(Status::Exists) } else { component(name) }
}

fn rename_component(name: &[u8]) -> Result<CString, Status> {
    if matches!(name, b"." | b"..") { Err(Status::Invalid) } else { component(name) }
}

/// Two turns, always in the same order of the same two directories.
async fn turns_of_both(a: &Turns, b: &Turns) -> (Alone, Option<Alone>) {
    if a.are(b) {
        return (a.alone().await, None);
    }
    let (first, second) = if a.rank() < b.rank() { (a, b) } else { (b, a) };
    (first.alone().await, Some(second.alone().await))
}

fn find_child(directory: &OpenFile, name: &CStr) -> Result<(Found, Opened), Status> {
    let (found, fd) = open_child(directory, name)?;
    Ok((found, Opened::PathOnly(fd)))
}

fn open_child(directory: &OpenFile, name: &CStr) -> Result<(Found, OwnedFd), Status> {
    if directory.file_type() != FileType::Directory {
        return Err(Status::NotDirectory);
    }
    let root = directory.root();
    let at_root = directory.handle() == &root.handle;
    let stays = name == c"." || (name == c".." && at_root);
    let name = if stays { c"." } else { name };
    let fd = openat(directory.fd(), name, PATH_ONLY, Mode::empty())?;
    let attributes = attributes_of(&fd)?;
    if !root.contains(&attributes) {
        return Err(Status::Access);
    }
    let handle = match name {
        _ if stays => *directory.handle(),
        // Not a name to remember the parent by.
        name if name == c".." => root.identify(fd.as_fd())?,
        name => root.identify_child(directory.handle(), name, fd.as_fd())?,
    };
    Ok((Found { handle, attributes }, fd))
}

fn rename_child(
    from: &OpenFile,
    from_name: &CStr,
    to: &OpenFile,
    to_name: &CStr,
) -> Result<Option<FileKey>, Status> {
    let target = openat(to.fd(), to_name, PATH_ONLY, Mode::empty()).ok();
    rustix::fs::renameat(from.fd(), from_name, to.fd(), to_name)?;
    let replaced = target.and_then(|fd| last_link_gone(to, &fd));
    if let Ok(moved) = openat(to.fd(), to_name, PATH_ONLY, Mode::empty()) {
        to.root().identify_child(to.handle(), to_name, moved.as_fd())?;
    }
    Ok(replaced)
}

/// The cache key of an object that has lost its last name, so that its blocks are given back now.
fn last_link_gone(directory: &OpenFile, fd: &OwnedFd) -> Option<FileKey> {
    let attributes = super::attributes_of_linked_or_not(fd).ok()?;
    if attributes.nlink > 0 {
        return None;
    }
    let handle = directory.root().identify(fd.as_fd()).ok()?;
    Some(FileKey::new(directory.root(), handle))
}

fn is_a_directory(fd: Option<&OwnedFd>) -> bool {
    fd.is_some_and(|fd| attributes_of(fd).is_ok_and(|attributes| attributes.is_directory()))
}
