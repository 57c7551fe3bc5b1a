//! Changes of attributes and names of single files by other processes: fanotify(7) with file
//! handles.
//!
//! The kernel reports who made a change, so that those of this process are left out. It reports it
//! after the fact: who reads the events knows of a change a moment after it was made.
//!
//! Without CAP_SYS_ADMIN the kernel bounds the number of watches of a user
//! (`fs.fanotify.max_user_marks`), and reports no other processes by name, which is enough.
//!
//! The mark of a file can be removed only by a process that may read the file, which another user
//! or the server's own may have changed since it was set. Such a mark stays with the file, until
//! the kernel drops the inode from memory. So that their number is bounded, the marks of the other
//! files are set anew in another fanotify group from time to time, and the group with the abandoned
//! marks is closed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::kernel_handle::{KernelHandle, name_to_handle};

/// Link counts are among the attributes, so that a removed or replaced name counts too.
const CHANGES: u64 = libc::FAN_ATTRIB | libc::FAN_MOVE_SELF;
/// Bytes of events that one system call returns: about 60 of them.
const EVENT_BUFFER_BYTES: usize = 4096;

/// The group is replaced if there is an abandoned mark for each so many watched inodes: an
/// abandoned mark then costs so many system calls at most.
const WATCHED_FOR_ABANDONED: usize = 16;
/// Sooner it is not replaced, because it may be refused.
const RENEWAL_MIN: Duration = Duration::from_secs(1);
/// An abandoned mark stays this long at most.
const RENEWAL_MAX: Duration = Duration::from_secs(60);

/// The watches of a process, and the thread that reads their events.
#[derive(Debug)]
pub struct AttributeWatches {
    /// Held over the system calls that add and remove marks, none of which waits for a disk.
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// Replaced only by the thread that reads its events.
    group: Arc<OwnedFd>,
    /// Files of different file systems can have one handle: a snapshot beside its origin.
    watched: HashMap<KernelHandle, Vec<Watched>>,
    /// Inodes that have a mark in the group though nothing watches them. The kernel may have
    /// dropped some of these marks.
    abandoned: HashSet<InodeId>,
}

/// Device and inode number.
type InodeId = (u64, u64);

#[derive(Debug)]
struct Watched {
    file: u64,
    /// The kernel has one mark of an inode for all that watch it.
    inode: InodeId,
    /// Keeps the inode in memory, and so the mark.
    fd: Arc<OwnedFd>,
    has_changed: Arc<AtomicBool>,
}

/// A watch of one file, until it is dropped.
pub struct AttributeWatch {
    watches: Arc<AttributeWatches>,
    handle: KernelHandle,
    fd: Arc<OwnedFd>,
    has_changed: Arc<AtomicBool>,
}

impl AttributeWatches {
    /// Starts the thread. It calls `on_change` with the number of each watched file that another
    /// process has changed, and of all if events are lost. It ends within a second after this and
    /// the last watch are dropped.
    ///
    /// # Errors
    /// `EPERM` or `EINVAL` where the kernel lacks it (before Linux 5.13 without CAP_SYS_ADMIN),
    /// `EMFILE` at the limit of groups of a user; the thread cannot be started.
    pub fn start(on_change: impl Fn(u64) + Send + 'static) -> io::Result<Arc<Self>> {
        let group = Arc::new(new_group()?);
        let (watched, abandoned) = (HashMap::new(), HashSet::new());
        let watches = Arc::new(Self { table: Mutex::new(Table { group, watched, abandoned }) });
        let weak = Arc::downgrade(&watches);
        let report = move || attend(&weak, on_change);
        thread::Builder::new().name("spillway-watches".into()).spawn(report)?;
        Ok(watches)
    }

    /// Watches the file of `fd`. `file` is its number for `on_change`.
    ///
    /// # Errors
    /// Those of `fstat`; `ENOSPC` at the limit of watches; `ENODEV`, `EOPNOTSUPP` or `EXDEV` where
    /// the file system has no handles or no number.
    pub fn watch(self: &Arc<Self>, fd: Arc<OwnedFd>, file: u64) -> io::Result<AttributeWatch> {
        let handle = name_to_handle(fd.as_fd(), None)?;
        let stat = fstat(&fd)?;
        let inode = (stat.st_dev, stat.st_ino);
        let mut table = self.lock();
        add_mark(&table.group, &fd)?;
        table.abandoned.remove(&inode);
        let watch = AttributeWatch {
            watches: Arc::clone(self),
            handle,
            fd: Arc::clone(&fd),
            has_changed: Arc::default(),
        };
        let has_changed = Arc::clone(&watch.has_changed);
        table.watched.entry(handle).or_default().push(Watched { file, inode, fd, has_changed });
        drop(table);
        Ok(watch)
    }

    /// Reports the changes in the queue of a group.
    fn report(&self, group: &OwnedFd, on_change: &impl Fn(u64)) {
        let mut buffer = [0; EVENT_BUFFER_BYTES];
        loop {
            match rustix::io::read(group, &mut buffer) {
                Ok(0) | Err(Errno::AGAIN) => return,
                Ok(len) => {
                    let files = self.changed(&buffer[..len]);
                    files.into_iter().for_each(on_change);
                }
                Err(Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "cannot read fanotify events"),
            }
        }
    }

    /// Whether the group has abandoned marks to be got rid of. It was replaced so long ago.
    fn is_renewal_due(&self, since: Duration) -> bool {
        let table = self.lock();
        let abandoned = table.abandoned.len();
        let is_many = abandoned * WATCHED_FOR_ABANDONED >= table.watched.len();
        abandoned > 0 && (since >= RENEWAL_MAX || since >= RENEWAL_MIN && is_many)
    }

    /// Replaces the group by one without abandoned marks. A file that may not be marked again
    /// counts as changed: its permissions were.
    ///
    /// # Errors
    /// `EMFILE` at the limit of groups or descriptors, `ENOSPC` at that of watches, of which it
    /// takes as many again. The old group stays.
    fn renew(&self, on_change: &impl Fn(u64)) -> io::Result<()> {
        let group = Arc::new(new_group()?);
        let mut unmarked = Vec::new();
        let mut table = self.lock();
        let marked = table.watched.values().flatten().try_for_each(|watched| {
            match add_mark(&group, &watched.fd) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    unmarked.push(watched.note());
                    Ok(())
                }
                outcome => outcome,
            }
        });
        let old = marked.map(|()| {
            table.abandoned.clear();
            std::mem::replace(&mut table.group, group)
        });
        drop(table);
        // Also where the old group stays: what was noted must be reported.
        unmarked.into_iter().for_each(on_change);
        // It reported changes until the other one did.
        let old = old?;
        self.report(&old, on_change);
        Ok(())
    }

    /// The files that others have changed, by these events.
    fn changed(&self, mut events: &[u8]) -> Vec<u64> {
        let table = self.lock();
        let watched = &table.watched;
        let mut files = Vec::new();
        while let Some((event, rest)) = Event::split(events) {
            events = rest;
            let is_lost = event.mask & libc::FAN_Q_OVERFLOW != 0;
            if !is_lost && event.pid == process::id() {
                continue;
            }
            match event.handle() {
                Some(handle) if !is_lost => {
                    files.extend(watched.get(&handle).into_iter().flatten().map(Watched::note));
                }
                // Without memory for a handle the kernel reports a change without it.
                _ => return watched.values().flatten().map(Watched::note).collect(),
            }
        }
        files
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    /// Notes a change of the file; returns its number.
    fn note(&self) -> u64 {
        self.has_changed.store(true, Ordering::Release);
        self.file
    }
}

impl AttributeWatch {
    /// Whether a change has been reported since the watch began. Who relies on the file from now on
    /// was not there to take notice of it.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Acquire)
    }
}

/// Reports changes until the watches are gone.
fn attend(watches: &Weak<AttributeWatches>, on_change: impl Fn(u64)) {
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut renewed = Instant::now();
    while let Some(watches) = watches.upgrade() {
        if watches.is_renewal_due(renewed.elapsed()) {
            renewed = Instant::now();
            if let Err(error) = watches.renew(&on_change) {
                tracing::debug!(%error, "cannot replace a fanotify group");
            }
        }
        let group = Arc::clone(&watches.lock().group);
        watches.report(&group, &on_change);
        // An interrupted wait is an early one.
        let _ = poll(&mut [PollFd::new(&group, PollFlags::IN)], Some(&second));
    }
}

/// One event, `struct fanotify_event_metadata` with what follows it.
struct Event<'a> {
    mask: u64,
    pid: u32,
    information: &'a [u8],
}

impl<'a> Event<'a> {
    /// The first of the events in a buffer, and the others.
    fn split(buffer: &'a [u8]) -> Option<(Self, &'a [u8])> {
        type Head = libc::fanotify_event_metadata;
        let len = usize::try_from(word(buffer, offset_of!(Head, event_len))?).ok()?;
        let head = size_of::<Head>();
        let (event, rest) = (buffer.get(..len.max(head))?, buffer.get(len.max(head)..)?);
        let mask = *event.get(offset_of!(Head, mask)..)?.first_chunk()?;
        let pid = word(event, offset_of!(Head, pid))?;
        Some((Self { mask: u64::from_ne_bytes(mask), pid, information: &event[head..] }, rest))
    }

    /// The handle in `struct fanotify_event_info_fid`: a head of 4 bytes, the number of the file
    /// system in 8, and a `struct file_handle`.
    fn handle(&self) -> Option<KernelHandle> {
        if *self.information.first()? != libc::FAN_EVENT_INFO_TYPE_FID {
            return None;
        }
        let len = usize::try_from(word(self.information, 12)?).ok()?;
        let kind = word(self.information, 16)?.cast_signed();
        KernelHandle::from_parts(kind, self.information.get(20..20 + len)?)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A fanotify group without marks. Its queue has a limit, and its marks have one where the process
/// is unprivileged.
fn new_group() -> io::Result<OwnedFd> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID;
    let flags = flags | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    // SAFETY: the call takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::fanotify_init(flags, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Marks a file. The mark goes with the inode when the kernel needs the memory, which it does not
/// while the file is open.
fn add_mark(group: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    match mark(group, libc::FAN_MARK_ADD | libc::FAN_MARK_EVICTABLE, fd.as_raw_fd()) {
        // Before Linux 5.19 the flag is unknown, and the mark keeps the inode.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            mark(group, libc::FAN_MARK_ADD, fd.as_raw_fd())
        }
        outcome => outcome,
    }
}

fn mark(group: &OwnedFd, how: libc::c_uint, file: RawFd) -> io::Result<()> {
    // SAFETY: both descriptors are open. Without a path the mark is of the descriptor's own file,
    // and the kernel reads no memory of this process.
    let failed =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), how, CHANGES, file, std::ptr::null()) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Drop for AttributeWatch {
    fn drop(&mut self) {
        let mut table = self.watches.lock();
        let Entry::Occupied(mut same_handle) = table.watched.entry(self.handle) else { return };
        let others = same_handle.get_mut();
        let Some(place) = others.iter().position(|one| Arc::ptr_eq(&one.fd, &self.fd)) else {
            return;
        };
        let Watched { inode, .. } = others.swap_remove(place);
        let is_watched = others.iter().any(|other| other.inode == inode);
        if others.is_empty() {
            same_handle.remove();
        }
        if is_watched {
            return;
        }
        match mark(&table.group, libc::FAN_MARK_REMOVE, self.fd.as_raw_fd()) {
            Ok(()) => {}
            // The kernel has removed it with the last name.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot remove the fanotify mark of a file yet");
                table.abandoned.insert(inode);
            }
        }
    }
}

impl fmt::Debug for AttributeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttributeWatch").field("handle", &self.handle).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;
    use std::sync::mpsc::{self, Receiver};

    use tempfile::NamedTempFile;

    use super::*;
    use crate::identity::{self, Identity};
    use crate::skip::{skip, skip_in_ci_too};

    const SOON: Duration = Duration::from_secs(10);

    /// `None` where this process may not watch files.
    fn watches() -> Option<(Arc<AttributeWatches>, Receiver<u64>)> {
        let (changed, changes) = mpsc::channel();
        match AttributeWatches::start(move |file| changed.send(file).unwrap_or(())) {
            Ok(watches) => Some((watches, changes)),
            Err(error) => {
                skip(format_args!("no watches: {error}"));
                None
            }
        }
    }

    fn opened(file: &NamedTempFile) -> Arc<OwnedFd> {
        Arc::new(File::open(file).unwrap().into())
    }

    fn run(program: &str, arguments: &[&std::path::Path]) {
        assert!(Command::new(program).args(arguments).status().unwrap().success());
    }

    #[test]
    fn changes_of_names_and_attributes_by_others_are_reported() {
        let Some((watches, changes)) = watches() else { return };
        let [file, other] = [(); 2].map(|()| NamedTempFile::new().unwrap());
        let _other = watches.watch(opened(&other), 1).unwrap();
        let watch = watches.watch(opened(&file), 2).unwrap();
        let moved = file.path().with_extension("moved");
        run("chmod", &["600".as_ref(), file.path()]);
        assert_eq!(changes.recv_timeout(SOON), Ok(2));
        run("mv", &[file.path(), &moved]);
        assert_eq!(changes.recv_timeout(SOON), Ok(2));
        fs::write(file.path(), "new").unwrap();
        run("mv", &[file.path(), &moved]);
        assert_eq!(changes.recv_timeout(SOON), Ok(2), "it was replaced");
        drop(watch);
        run("rm", &[&moved]);
        run("touch", &[other.path()]);
        assert_eq!(changes.recv_timeout(SOON), Ok(1));
        assert!(changes.try_recv().is_err());
    }

    #[test]
    fn a_file_is_watched_until_the_last_watch_of_it_is_dropped() {
        let Some((watches, changes)) = watches() else { return };
        let file = NamedTempFile::new().unwrap();
        let first = watches.watch(opened(&file), 1).unwrap();
        let second = watches.watch(opened(&file), 2).unwrap();
        drop(first);
        assert!(!second.has_changed());
        run("chmod", &["600".as_ref(), file.path()]);
        assert_eq!(changes.recv_timeout(SOON), Ok(2));
        assert!(second.has_changed());
        drop(second);
        assert!(watches.lock().watched.is_empty());
    }

    #[test]
    fn a_change_without_a_handle_is_reported_of_all() {
        let Some((watches, _)) = watches() else { return };
        let files = [(); 2].map(|()| NamedTempFile::new().unwrap());
        let _held = [0, 1].map(|at| watches.watch(opened(&files[at]), at as u64).unwrap());
        let mut event = [0; size_of::<libc::fanotify_event_metadata>()];
        event[0] = u8::try_from(event.len()).unwrap();
        let mut changed = watches.changed(&event);
        changed.sort_unstable();
        assert_eq!(changed, [0, 1]);
    }

    #[test]
    fn own_changes_are_not_reported() {
        let Some((watches, changes)) = watches() else { return };
        let file = NamedTempFile::new().unwrap();
        let _watch = watches.watch(opened(&file), 1).unwrap();
        let moved = file.path().with_extension("moved");
        fs::set_permissions(file.path(), fs::metadata(file.path()).unwrap().permissions()).unwrap();
        fs::rename(file.path(), &moved).unwrap();
        fs::rename(&moved, file.path()).unwrap();
        assert!(changes.recv_timeout(Duration::from_millis(200)).is_err());
        run("touch", &[file.path()]);
        assert_eq!(changes.recv_timeout(SOON), Ok(1));
    }

    /// Runs `act` as a user who is not root; `None`, with the reason printed, if there is none who
    /// may not read `unreadable`.
    fn unprivileged<T: Send>(
        unreadable: &NamedTempFile,
        act: impl FnOnce() -> T + Send,
    ) -> Option<T> {
        let run = || {
            if identity::can_assume_users() {
                let (uid, gid, groups) = (65_534, 65_534, Arc::new([]) as Arc<[u32]>);
                identity::assume(&Identity::User { uid, gid, groups }).unwrap();
            }
            File::open(unreadable).is_err().then(act)
        };
        let acted = thread::scope(|scope| scope.spawn(run).join().unwrap());
        if acted.is_none() {
            skip("this user may read any file");
        }
        acted
    }

    /// The flags of the marks in the group.
    fn marks(watches: &AttributeWatches) -> Vec<u32> {
        let fd = watches.lock().group.as_raw_fd();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let flags = info.lines().filter_map(|line| line.split_once("mflags:"));
        flags.map(|(_, rest)| rest.split(' ').next().unwrap()).map(hexadecimal).collect()
    }

    fn hexadecimal(text: &str) -> u32 {
        u32::from_str_radix(text, 16).unwrap()
    }

    #[test]
    fn mark_of_an_unwatched_file_is_removed_although_the_file_became_unreadable() {
        let Some((watches, changes)) = watches() else { return };
        let [file, other] = [(); 2].map(|()| NamedTempFile::new().unwrap());
        let _other = watches.watch(opened(&other), 1).unwrap();
        let watch = watches.watch(opened(&file), 2).unwrap();
        fs::set_permissions(file.path(), Permissions::from_mode(0o000)).unwrap();
        if unprivileged(&file, || drop(watch)).is_none() {
            return;
        }
        let deadline = Instant::now() + SOON;
        while marks(&watches).len() > 1 {
            assert!(Instant::now() < deadline, "the mark stays: {:?}", watches.lock());
            thread::sleep(Duration::from_millis(20));
        }
        run("chmod", &["600".as_ref(), file.path()]);
        run("touch", &[other.path()]);
        assert_eq!(changes.recv_timeout(SOON), Ok(1));
        assert!(changes.try_recv().is_err());
    }

    #[test]
    fn no_change_is_missed_while_the_group_is_replaced() {
        let Some((watches, changes)) = watches() else { return };
        let files = [(); 2].map(|()| NamedTempFile::new().unwrap());
        let held = [0, 1].map(|at| watches.watch(opened(&files[at]), at as u64).unwrap());
        for (file, mode) in files.iter().zip([0o000, 0o644]) {
            fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        }
        let unmarked = Mutex::new(Vec::new());
        let renew = || watches.renew(&|file| unmarked.lock().unwrap().push(file)).unwrap();
        if unprivileged(&files[0], renew).is_none() {
            return;
        }
        assert_eq!(unmarked.into_inner().unwrap(), [0], "it may not be marked again");
        assert!(held[0].has_changed() && !held[1].has_changed());
        run("touch", &[files[1].path()]);
        assert_eq!(changes.recv_timeout(SOON), Ok(1));
    }

    #[test]
    fn marks_do_not_keep_inodes_in_memory() {
        let Some((watches, _)) = watches() else { return };
        let file = NamedTempFile::new().unwrap();
        let plain = new_group().unwrap();
        let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_EVICTABLE;
        if let Err(error) = mark(&plain, flags, file.as_file().as_raw_fd()) {
            return skip_in_ci_too(format_args!("no evictable marks: {error}"));
        }
        let _watch = watches.watch(opened(&file), 1).unwrap();
        assert!(marks(&watches).iter().all(|flags| flags & libc::FAN_MARK_EVICTABLE != 0));
    }

    #[test]
    fn file_whose_last_name_is_gone_leaves_no_mark() {
        let Some((watches, _)) = watches() else { return };
        let file = NamedTempFile::new().unwrap();
        let watch = watches.watch(opened(&file), 1).unwrap();
        fs::remove_file(file.path()).unwrap();
        drop(watch);
        assert!(marks(&watches).is_empty() && watches.lock().abandoned.is_empty());
    }

    #[test]
    fn a_file_is_watched_though_an_earlier_watch_of_it_ends() {
        let Some((watches, changes)) = watches() else { return };
        let file = NamedTempFile::new().unwrap();
        let earlier = watches.watch(opened(&file), 1).unwrap();
        let _later = watches.watch(opened(&file), 2).unwrap();
        drop(earlier);
        run("touch", &[file.path()]);
        assert_eq!(changes.recv_timeout(SOON), Ok(2));
    }
}
