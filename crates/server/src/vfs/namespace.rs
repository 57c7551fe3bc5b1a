//! LOOKUP, READLINK and the operations that add and remove names; those that make objects stand in
//! `create`. All of them run as the caller, so that the kernel checks permissions, sticky bits and
//! quotas as for a local user. Operations that change a directory have its lock (`Inode::lock`)
//! from the attributes before to the attributes after.

mod create;
mod delegated;
mod opening;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use io::{Lengths, Mtime};
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;

use super::{
    Answer, Attributes, Caller, Found, Object, Status, Vfs, Wcc, attributes_of, component,
};
use crate::export::ExportRoot;
use crate::fs::proc_path;
use crate::inode_cache::{Change, ExclusiveGuard, Inode, InodeKey, InodeLock};

use delegated::NameChanger;
use opening::{find_in_memory, open_child, open_entry, open_if_there};

pub(crate) use create::{CreateMode, Created, NodeKind};

/// A directory and a name in it.
#[derive(Clone, Copy)]
pub(crate) struct EntryName<'a> {
    pub(crate) dir: &'a Object,
    pub(crate) name: &'a [u8],
}

impl Vfs {
    /// LOOKUP, RFC 1813 §3.3.3. `..` of the export's root is the root.
    pub(crate) async fn lookup(
        &self,
        caller: &Caller,
        dir: &Object,
        name: &[u8],
    ) -> Answer<Option<Attributes>, Found> {
        let directory = match self.hold(dir).await {
            Ok(directory) => directory,
            Err(status) => return Answer::refused(status),
        };
        let component = component(name);
        let in_memory =
            component.as_deref().ok().and_then(|name| find_in_memory(caller, &directory, name));
        if let Some((fd, Some((attributes, found)))) = in_memory {
            self.keep(&directory, &found, Opened::path_only(fd)).await;
            return Answer { attributes: Some(attributes), result: Ok(found) };
        }
        self.engine.ask_for_metadata_thread().await;
        if let Some((fd, _)) = in_memory {
            // If its last name is gone meanwhile, closing it may wait for the disk.
            let close = move || {
                drop(fd);
                Ok(())
            };
            self.in_metadata_lane(io::Identity::Server, close).await.ok();
        }
        let (opened, identity) = (Arc::clone(&directory), caller.identity.clone());
        let job = move || {
            // Before the name is looked up: a change that comes between makes them too old, and
            // never newer than the object found.
            let live = unless_gone(opened.live_attributes())?;
            let attributes = live.map(|live| opened.lock.attributes(live));
            let name = component.as_deref().map_err(|status| *status);
            let found = unless_descriptors_lack(name.and_then(|name| open_child(&opened, name)))?;
            if matches!(found, Err(Status::NoEntry)) {
                // A directory that was removed meanwhile has no names.
                unless_gone(opened.live_attributes())?;
            }
            if let (Some(live), true) = (live, found.is_ok()) {
                opened.learn_to_search(&identity, &live);
            }
            Ok((attributes, found))
        };
        match self.open_in_metadata_lane(dir.root().device(), &caller.identity, job).await {
            Ok((attributes, Ok((found, fd)))) => {
                // The parent of a directory that was moved out of the export is not part of it.
                let fd = if name == b".." { self.in_export(dir.root(), fd).await } else { Ok(fd) };
                let result = match fd {
                    Ok(fd) => {
                        self.keep(&directory, &found, Opened::path_only(fd)).await;
                        Ok(found)
                    }
                    Err(status) => Err(status),
                };
                Answer { attributes, result }
            }
            Ok((attributes, Err(status))) => Answer { attributes, result: Err(status) },
            Err(status) => self.refused_by(&directory, status),
        }
    }

    /// The descriptor of a directory, if that lies below its export.
    ///
    /// # Errors
    /// `Stale`.
    async fn in_export(&self, root: &Arc<ExportRoot>, fd: OwnedFd) -> Result<OwnedFd, Status> {
        let (root, device, fd) = (Arc::clone(root), root.device(), Mutex::new(Some(fd)));
        let job = move || {
            let mut fd = fd.lock().unwrap_or_else(PoisonError::into_inner);
            let is_below = fd.as_ref().map_or(Ok(false), |fd| root.is_above(fd.as_fd()))?;
            fd.take_if(|_| is_below).ok_or(Status::Stale)
        };
        self.open_in_metadata_lane(device, &io::Identity::Server, job).await
    }

    /// READLINK, RFC 1813 §3.3.5.
    pub(crate) async fn readlink(&self, object: &Object) -> Answer<Option<Attributes>, Vec<u8>> {
        let link = match self.hold(object).await {
            Ok(link) => link,
            Err(status) => return Answer::refused(status),
        };
        if link.file_type() != FileType::Symlink {
            let attributes = unless_gone(self.attributes(&link).await);
            return attributes.map(|attributes| (attributes, Err(Status::Invalid))).into();
        }
        let opened = Arc::clone(&link);
        let job = move || {
            let attributes = unless_gone(opened.attributes())?;
            let target = rustix::fs::readlinkat(opened.fd(), c"", Vec::new());
            Ok((attributes, target.map(CString::into_bytes).map_err(Status::from)))
        };
        match self.in_metadata_lane(io::Identity::Server, job).await {
            Ok((attributes, result)) => Answer { attributes, result },
            Err(status) => self.refused_by(&link, status),
        }
    }

    /// The answer to an operation that has found no attributes of an open object, which is given up
    /// if it is gone.
    fn refused_by<A: Default, T>(&self, file: &Inode, status: Status) -> Answer<A, T> {
        if status == Status::Stale {
            self.inode_cache.forget(&file.key());
        }
        Answer::refused(status)
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
        let by = NameChanger::of(caller);
        let job = move |directory: &Inode, Removed { object, frees_much }: &mut Removed| {
            *object = open_if_there(directory, &name)?;
            let victim = object.as_ref();
            let _change = by.begin_removal(directory, victim, is_directory)?;
            match rustix::fs::unlinkat(directory.fd(), &name, flags) {
                Ok(()) => {
                    Ok(victim.and_then(|fd| last_link_gone(directory, &name, fd, frees_much)))
                }
                // POSIX permits EPERM for unlink() of a directory; Linux returns EISDIR, others
                // differ.
                Err(Errno::PERM) if is_a_directory(victim) && !is_directory => {
                    Err(Status::IsDirectory)
                }
                Err(errno) => Err(errno.into()),
            }
        };
        let answer = self.change_directory(caller, dir, job, |_| true).await;
        let result = match answer.result {
            Ok((_, Some(gone))) => {
                self.let_go(&gone).await;
                Ok(())
            }
            Ok((_, None)) => Ok(()),
            Err(status) => Err(status),
        };
        Answer { attributes: answer.attributes, result }
    }

    /// RENAME, RFC 1813 §3.3.14. The attributes are those of the two directories.
    pub(crate) async fn rename(
        &self,
        caller: &Caller,
        from: EntryName<'_>,
        to: EntryName<'_>,
    ) -> Answer<(Wcc, Wcc), ()> {
        if from.dir.root().device() != to.dir.root().device() {
            // Neither device waits for the other: without attributes, which are on both.
            return Answer::refused(Status::CrossDevice);
        }
        let names = Arc::new(names_to_rename(caller, from, to));
        let (from_dir, to_dir) = match (self.hold(from.dir).await, self.hold(to.dir).await) {
            (Ok(from_dir), Ok(to_dir)) => (from_dir, to_dir),
            (Err(status), _) | (_, Err(status)) => return Answer::refused(status),
        };
        let attempt = || {
            let (from, to) = (Arc::clone(&from_dir), Arc::clone(&to_dir));
            self.rename_once(caller, from, to, Arc::clone(&names))
        };
        let failures = (from_dir.failures(), to_dir.failures());
        let Answer { attributes, result } = self.attempt_name_change(to.dir, attempt).await;
        let result = match result {
            Ok(replaced) => {
                if let Some(replaced) = replaced {
                    self.let_go(&replaced).await;
                }
                let settled = self.settle(&from_dir, from.dir.sync, failures.0).await;
                settled.and(self.settle(&to_dir, to.dir.sync, failures.1).await)
            }
            Err(status) => Err(status),
        };
        Answer { attributes, result }
    }

    /// An attempt of RENAME: the attributes of both directories, and the object that the name
    /// replaced, if it was its last name.
    async fn rename_once(
        &self,
        caller: &Caller,
        from: Arc<Inode>,
        to: Arc<Inode>,
        names: Arc<Result<(CString, CString), Status>>,
    ) -> Result<((Wcc, Wcc), Result<Option<InodeKey>, Status>), Status> {
        self.engine.ask_for_metadata_thread().await;
        let (from_guard, to_guard) = lock_both(&from.lock, &to.lock).await;
        let by = NameChanger::of(caller);
        let job = move || {
            let mut replaced = Removed::default();
            let from_change = begin_directory(from_guard, &from)?;
            let to_change = to_guard.map(|guard| begin_directory(guard, &to)).transpose()?;
            let result = match &*names {
                Ok((from_name, to_name)) => {
                    rename_child((&from, from_name), (&to, to_name), &by, &mut replaced)
                }
                Err(status) => Err(*status),
            };
            let result = unless_descriptors_lack(result)?;
            let end = |change: Change, of: &Inode| match result {
                Ok(_) => end_changed(change, of),
                Err(_) => change.end_refused(of.live_attributes().ok()),
            };
            let from_wcc = end(from_change, &from);
            let to_wcc = to_change.map(|change| end(change, &to));
            Ok(((from_wcc, to_wcc.unwrap_or(from_wcc)), result))
        };
        self.in_metadata_lane(caller.identity.clone(), job).await
    }

    /// LINK, RFC 1813 §3.3.15. The attributes are those of the file and of the directory.
    pub(crate) async fn link(
        &self,
        caller: &Caller,
        object: &Object,
        dir: &Object,
        name: &[u8],
    ) -> Answer<(Option<Attributes>, Wcc), ()> {
        if object.root().device() != dir.root().device() {
            // As in RENAME.
            return Answer::refused(Status::CrossDevice);
        }
        let file = match self.hold(object).await {
            Ok(file) => file,
            Err(status) => return Answer::refused(status),
        };
        let name = match new_component(name) {
            Ok(_) if object.root().id != dir.root().id => Err(Status::CrossDevice),
            name => name,
        };
        let (linked, by) = (Arc::clone(&file), NameChanger::of(caller));
        let job = move |directory: &Inode, _: &mut Removed| {
            let name = name.as_deref().map_err(|status| *status)?;
            let _change = by.begin_link(directory, &linked, name)?;
            // linkat() of a descriptor needs a privilege; the magic link does not, and the kernel
            // applies its rules for hard links to the caller.
            let follow = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, proc_path(linked.fd()), directory.fd(), name, follow)?;
            directory.root().remember(*linked.handle(), directory.handle(), name);
            Ok(())
        };
        let answer = self.change_directory(caller, dir, job, |_| true).await;
        let attributes = (self.attributes(&file).await.ok(), answer.attributes);
        Answer { attributes, result: answer.result.map(|_| ()) }
    }

    /// Releases an object that has lost its last name, so that its blocks are free before the
    /// reply. Calls in progress keep it until they end, and opens until they are closed.
    pub(crate) async fn let_go(&self, key: &InodeKey) {
        self.inode_cache.close_removed(key, &self.engine).await;
    }

    /// Runs a change of one directory as the caller, between its attributes before and after, and
    /// makes it durable where the export promises that. `job` is repeated as
    /// [`Self::attempt_name_change`] demands. `has_changed`: by its result, the directory is not as
    /// it was.
    async fn change_directory<T: Send + 'static>(
        &self,
        caller: &Caller,
        dir: &Object,
        job: impl Fn(&Inode, &mut Removed) -> Result<T, Status> + Send + Sync + 'static,
        has_changed: impl Fn(&T) -> bool + Copy + Send + 'static,
    ) -> Answer<Wcc, (Arc<Inode>, T)> {
        let directory = match self.hold(dir).await {
            Ok(directory) => directory,
            Err(status) => return Answer::refused(status),
        };
        let allowed = caller.may_change().and(if directory.file_type() == FileType::Directory {
            Ok(())
        } else {
            Err(Status::NotDirectory)
        });
        let job = Arc::new(job);
        let attempt = || {
            let (opened, job) = (Arc::clone(&directory), Arc::clone(&job));
            async move {
                // Others would wait for the directory while the job is in its client's queue.
                self.engine.ask_for_metadata_thread().await;
                let guard = opened.lock.exclusive().await;
                let job = move || {
                    let mut removed = Removed::default();
                    let change = begin_directory(guard, &opened)?;
                    let result = allowed.and_then(|()| job(&opened, &mut removed));
                    let result = unless_descriptors_lack(result)?;
                    let wcc = if result.as_ref().is_ok_and(has_changed) {
                        end_changed(change, &opened)
                    } else {
                        change.end_refused(opened.live_attributes().ok())
                    };
                    Ok((wcc, result))
                };
                self.in_metadata_lane(caller.identity.clone(), job).await
            }
        };
        let failures = directory.failures();
        let Answer { attributes, result } = self.attempt_name_change(dir, attempt).await;
        let result = match result {
            Ok(done) => match self.settle(&directory, dir.sync, failures).await {
                Ok(()) => Ok((directory, done)),
                Err(status) => Err(status),
            },
            Err(status) => Err(status),
        };
        Answer { attributes, result }
    }

    /// The answer to a change that is refused before it starts: still with the object's attributes,
    /// which clients use.
    pub(crate) async fn refuse_change<T>(&self, object: &Object, status: Status) -> Answer<Wcc, T> {
        match self.getattr(object).await {
            Ok(now) => {
                let attributes = Wcc { before: Some(now), after: Some(now) };
                Answer { attributes, result: Err(status) }
            }
            Err(gone) => Answer::refused(gone),
        }
    }

    /// Puts a descriptor that an operation has opened into the cache: the next request for the
    /// object is most likely on its way.
    async fn keep(&self, directory: &Inode, found: &Found, opened: Opened) -> Arc<Inode> {
        let Opened { base, writer } = opened;
        let root = Arc::clone(directory.root());
        let key = InodeKey::new(&root, found.handle);
        let file = match self.inode_cache.find(&key) {
            Some(file) => file,
            None => {
                let room = self.room(&key, root.device()).await;
                let (handle, file_type) = (found.handle, found.attributes.file_type);
                self.inode_cache.add(root, handle, file_type, (base, room))
            }
        };
        // Also where a LOOKUP of another client has put the file into the cache.
        if let Some(writer) = writer {
            file.keep_created(writer);
        }
        file
    }
}

/// A descriptor of the object that a change of names takes a name from. A variable that is declared
/// before the [`Change`], so that it is closed after the lock is released: the last close of an
/// object without a name frees its blocks, which may take seconds.
#[derive(Default)]
struct Removed {
    object: Option<OwnedFd>,
    /// Closing it may take longer than waking another thread.
    frees_much: bool,
}

/// Fewer bytes of blocks than these are freed soon.
const MUCH_BYTES: u64 = 1 << 20;

impl Drop for Removed {
    fn drop(&mut self) {
        if self.frees_much {
            // The task that was given the lock does not wait for this thread.
            io::rouse_owed();
        }
    }
}

/// The descriptors that an operation leaves behind.
struct Opened {
    /// Good for attributes and as the start of a path.
    base: OwnedFd,
    /// Another one, for reading and writing, by which the file was created: it may be closed before
    /// the object.
    writer: Option<OwnedFd>,
}

impl Opened {
    fn path_only(base: OwnedFd) -> Self {
        Self { base, writer: None }
    }
}

/// A name that is to be made: `.` and `..` exist already.
fn new_component(name: &[u8]) -> Result<CString, Status> {
    if matches!(name, b"." | b"..") { Err(Status::Exists) } else { component(name) }
}

fn rename_component(name: &[u8]) -> Result<CString, Status> {
    if matches!(name, b"." | b"..") { Err(Status::Invalid) } else { component(name) }
}

/// The names that RENAME removes and makes, if the caller may change the directories.
fn names_to_rename(
    caller: &Caller,
    from: EntryName<'_>,
    to: EntryName<'_>,
) -> Result<(CString, CString), Status> {
    caller.may_change()?;
    if from.dir.root().id != to.dir.root().id {
        return Err(Status::CrossDevice);
    }
    Ok((rename_component(from.name)?, rename_component(to.name)?))
}

/// Locks two directories, which may be one, always in the same order.
async fn lock_both(a: &InodeLock, b: &InodeLock) -> (ExclusiveGuard, Option<ExclusiveGuard>) {
    if a.is(b) {
        return (a.exclusive().await, None);
    }
    if a.rank() < b.rank() {
        let first = a.exclusive().await;
        (first, Some(b.exclusive().await))
    } else {
        let first = b.exclusive().await;
        (a.exclusive().await, Some(first))
    }
}

/// Begins a change of a directory, whose system calls follow.
fn begin_directory(guard: ExclusiveGuard, directory: &Inode) -> Result<Change, Status> {
    let change = Change::begin(guard, attributes_of(directory.fd())?, Lengths::ANY);
    change.system_calls().note();
    Ok(change)
}

/// Ends a change of a directory whose names are not what they were. Counted under the lock: a call
/// that finds a new name flushes it before its reply, too.
fn end_changed(change: Change, directory: &Inode) -> Wcc {
    directory.note_change();
    change.end(directory.fd(), Mtime::Renewed)
}

fn rename_child(
    (from, from_name): (&Inode, &CStr),
    (to, to_name): (&Inode, &CStr),
    by: &NameChanger,
    Removed { object, frees_much }: &mut Removed,
) -> Result<Option<InodeKey>, Status> {
    *object = open_if_there(to, to_name)?;
    let target = object.as_ref();
    let moved = unless_descriptors_lack(open_entry(from, from_name))?;
    let moved = moved.as_ref().map_err(|status| *status);
    let _changes = by.begin_rename((from, moved), (to, target))?;
    rustix::fs::renameat(from.fd(), from_name, to.fd(), to_name)?;
    let gone = target.and_then(|fd| last_link_gone(to, to_name, fd, frees_much));
    if let Ok(moved) = moved {
        let (before, after) = ((*from.handle(), from_name), (*to.handle(), to_name));
        to.root().note_renamed(before, after, moved.as_fd());
    }
    Ok(gone)
}

/// Attributes for a reply, which can do without; not that of an object that is gone.
///
/// # Errors
/// `Stale`.
fn unless_gone<T>(attributes: Result<T, Status>) -> Result<Option<T>, Status> {
    match attributes {
        Err(Status::Stale) => Err(Status::Stale),
        attributes => Ok(attributes.ok()),
    }
}

/// Takes `NoDescriptor` out of the results of an attempt: it is to be repeated, whatever else would
/// be in its answer.
fn unless_descriptors_lack<T>(result: Result<T, Status>) -> Result<Result<T, Status>, Status> {
    match result {
        Err(Status::NoDescriptor) => Err(Status::NoDescriptor),
        result => Ok(result),
    }
}

/// The cache key of an object that has lost its last name, `name`, so that its blocks are given
/// back now. Its place is forgotten; that of one with other names is another.
fn last_link_gone(
    directory: &Inode,
    name: &CStr,
    fd: &OwnedFd,
    frees_much: &mut bool,
) -> Option<InodeKey> {
    let attributes = super::attributes_of_linked_or_not(fd).ok()?;
    let root = directory.root();
    if attributes.nlink > 0 {
        root.forget_name(directory.handle(), name, fd.as_fd());
        return None;
    }
    *frees_much = attributes.used >= MUCH_BYTES;
    let handle = root.identify(fd.as_fd()).ok()?;
    root.forget_child(&handle);
    Some(InodeKey::new(root, handle))
}

fn is_a_directory(fd: Option<&OwnedFd>) -> bool {
    fd.is_some_and(|fd| attributes_of(fd).is_ok_and(|attributes| attributes.is_directory()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;

    use super::*;
    use crate::test_server::directory;
    use crate::vfs::readable::{object, open, root_caller, serve};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A descriptor whose close waits until the other one is closed.
    fn closes_slowly() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        slow.set_nonblocking(true).unwrap();
        while slow.write(&[0; 1 << 16]).is_ok() {}
        set_socket_linger(&slow, Some(PATIENCE)).unwrap();
        (slow.into(), peer)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn removed_object_is_freed_when_its_directory_is_not_locked() {
        let dir = directory();
        let server = serve(dir.path()).await;
        let inode = open(&server, &dir.path().join("export")).await;
        let parent = object(&server, &inode);
        let (slow, peer) = closes_slowly();
        let (removed, ended) = (Arc::new(Mutex::new(Some(slow))), Arc::new(AtomicUsize::new(0)));
        let lock = inode.lock.exclusive().await;
        let vfs = &server.service().vfs;
        let share = io::Share::new(&vfs.engine.device(parent.root().device()), 1);
        for _ in 0..2 {
            let (removed, ended) = (Arc::clone(&removed), Arc::clone(&ended));
            let (service, parent) = (Arc::clone(server.service()), parent.clone());
            let change = async move {
                let job = move |_: &Inode, of_job: &mut Removed| {
                    of_job.object = removed.lock().unwrap().take();
                    of_job.frees_much = of_job.object.is_some();
                    Ok(())
                };
                let caller = root_caller();
                let change = service.vfs.change_directory(&caller, &parent, job, |()| true);
                assert_eq!(change.await.result.map(drop), Ok(()));
                ended.fetch_add(1, Ordering::SeqCst);
            };
            share.begin_metadata(change).await;
        }
        // Both wait for the lock, most likely: one is given it by the other, which has the object.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(lock);
        eventually(|| ended.load(Ordering::SeqCst) == 1).await;
        assert_eq!(inode.changes(), 2, "the reply to the first waits");
        drop(peer);
        eventually(|| ended.load(Ordering::SeqCst) == 2).await;
    }

    async fn eventually(holds: impl Fn() -> bool) {
        let wait = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE / 2, wait).await.expect("it does not come");
    }
}
