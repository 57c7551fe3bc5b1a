//! Read leases (`F_SETLEASE`, fcntl(2)): the kernel lets no other description be opened for
//! writing, nor the file be cut, before the holder has given the lease up, or
//! `/proc/sys/fs/lease-break-time` is over.
//!
//! It is blind to changes of names and attributes ([`AttributeWatches`](crate::AttributeWatches)).
//! A lease is refused while the file is open for writing, to whom does not own the file without
//! CAP_LEASE, and by some file systems.
//!
//! The kernel reports a break by SIGIO. It is sent to one thread, which blocks it for itself: so no
//! other thread sees it, and whichever signals were merged, that thread asks for the state of every
//! lease.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::time::Duration;

/// The leases of a server, and the thread that sees them broken.
#[derive(Debug)]
pub struct Leases {
    held: Mutex<HashMap<u64, Arc<OwnedFd>>>,
    thread: libc::pid_t,
}

/// A read lease of a file, which ends when it is dropped.
#[derive(Debug)]
pub struct Lease {
    leases: Arc<Leases>,
    file: u64,
    fd: Arc<OwnedFd>,
}

impl Leases {
    /// Starts the thread. It calls `on_break` with the number of a file once a second, and at once
    /// after a signal, as long as another description waits for its lease. It ends within a second
    /// after the last lease and this are dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(on_break: impl Fn(u64) + Send + 'static) -> io::Result<Arc<Self>> {
        let (to_thread, leases) = mpsc::sync_channel::<Weak<Self>>(1);
        let (thread, id) = mpsc::sync_channel(1);
        thread::Builder::new().name("spillway-leases".into()).spawn(move || {
            block_signal();
            let _ = thread.send(rustix::thread::gettid().as_raw_nonzero().get());
            if let Ok(leases) = leases.recv() {
                watch(&leases, on_break);
            }
        })?;
        let thread = id.recv().map_err(|_| io::Error::other("the thread of leases has ended"))?;
        let leases = Arc::new(Self { held: Mutex::default(), thread });
        // It waits for this.
        let _ = to_thread.send(Arc::downgrade(&leases));
        Ok(leases)
    }

    /// Takes a read lease by a descriptor that is open for reading alone; `None` while the file is
    /// open for writing. `file` is its number for `on_break`. An earlier lease of the file is not
    /// watched any more: it is about to be dropped.
    ///
    /// # Errors
    /// `EACCES` for a file of another user without CAP_LEASE; `EINVAL` and others where there are
    /// no leases.
    pub fn take(self: &Arc<Self>, fd: Arc<OwnedFd>, file: u64) -> io::Result<Option<Lease>> {
        own_signals(fd.as_raw_fd(), self.thread)?;
        // In the table first: the lease may be broken at once.
        self.lock().insert(file, Arc::clone(&fd));
        let lease = Lease { leases: Arc::clone(self), file, fd };
        match control(lease.fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) {
            Ok(_) => Ok(Some(lease)),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The files whose leases others wait for.
    fn broken(&self) -> Vec<u64> {
        // While a lease is being broken, the kernel reports what it has to become: none.
        let is_held = |fd: &OwnedFd| {
            control(fd.as_raw_fd(), libc::F_GETLEASE, 0).is_ok_and(|kind| kind == libc::F_RDLCK)
        };
        let held: Vec<_> = self.lock().iter().map(|(file, fd)| (*file, Arc::clone(fd))).collect();
        held.into_iter().filter(|(_, fd)| !is_held(fd)).map(|(file, _)| file).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<OwnedFd>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A lease of the same file may have been taken meanwhile.
        let mut held = self.leases.lock();
        if held.get(&self.file).is_some_and(|fd| Arc::ptr_eq(fd, &self.fd)) {
            held.remove(&self.file);
        }
        drop(held);
        // Also while the thread above looks at the descriptor.
        let _ = control(self.fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
    }
}

/// How long the kernel waits for the holder of a lease before it takes it away.
///
/// # Errors
/// It cannot be read.
pub fn lease_break_time() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/sys/fs/lease-break-time")?;
    let secs = text.trim().parse().map_err(io::Error::other)?;
    Ok(Duration::from_secs(secs))
}

/// Reports broken leases until the table is gone.
fn watch(leases: &Weak<Leases>, on_break: impl Fn(u64)) {
    while let Some(leases) = leases.upgrade() {
        leases.broken().into_iter().for_each(&on_break);
        drop(leases);
        wait_for_signal();
    }
}

fn signals() -> libc::sigset_t {
    // SAFETY: all bits zero are a `sigset_t`, which `sigemptyset` initialises; SIGIO is a signal.
    // The pointers are to a local variable, and neither call keeps them.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGIO);
        set
    }
}

/// Blocks SIGIO for this thread.
fn block_signal() {
    let set = signals();
    // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
    let failed =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    assert_eq!(failed, 0, "SIG_BLOCK with a valid set does not fail");
}

/// Waits for SIGIO, at most a second.
fn wait_for_signal() {
    let (set, second) = (signals(), libc::timespec { tv_sec: 1, tv_nsec: 0 });
    // SAFETY: set and time are initialised and outlive the call; no information is asked for. A
    // failure (EAGAIN, EINTR) is an early return.
    unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const second) };
}

/// `struct f_owner_ex`, fcntl(2).
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// Has the signals of a descriptor sent to one thread. Without this the kernel would send SIGIO to
/// the process, which ends it.
fn own_signals(fd: RawFd, thread: libc::pid_t) -> io::Result<()> {
    let owner = Owner { kind: F_OWNER_TID, id: thread };
    // SAFETY: the caller has the descriptor open; the command reads an `f_owner_ex`, which outlives
    // the call, and keeps none of it.
    let failed = unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn control(fd: RawFd, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the caller has the descriptor open; F_SETLEASE and F_GETLEASE take an integer and
    // touch no memory of this process.
    let result = unsafe { libc::fcntl(fd, command, argument) };
    if result >= 0 { Ok(result) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    use std::path::Path;
    use std::sync::mpsc::{Receiver, RecvTimeoutError};
    use std::time::Instant;

    use tempfile::{NamedTempFile, TempPath};

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn leases() -> (Arc<Leases>, Receiver<u64>) {
        let (broken, breaks) = mpsc::channel();
        (Leases::start(move |file| broken.send(file).unwrap_or(())).unwrap(), breaks)
    }

    /// A file that no description is open for writing of.
    fn file() -> TempPath {
        NamedTempFile::new().unwrap().into_temp_path()
    }

    fn reader(path: &Path) -> Arc<OwnedFd> {
        Arc::new(File::open(path).unwrap().into())
    }

    /// A lease on a file without a writer. A program that another test is starting has all
    /// descriptors until it is executed, those for writing too.
    fn taken(leases: &Arc<Leases>, path: &Path, file: u64) -> Lease {
        let began = Instant::now();
        loop {
            if let Some(lease) = leases.take(reader(path), file).unwrap() {
                return lease;
            }
            assert!(began.elapsed() < SOON, "it has no writer");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn open_for_writing(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)
    }

    #[test]
    fn a_local_open_for_writing_waits_until_the_lease_is_given_up() {
        let (leases, breaks) = leases();
        let [file, other] = [file(), file()];
        let _kept = taken(&leases, &other, 8);
        let lease = taken(&leases, &file, 7);
        File::open(&file).expect("reading breaks nothing");
        assert!(breaks.try_recv().is_err());
        let path = file.to_path_buf();
        let writing = thread::spawn(move || {
            let began = Instant::now();
            OpenOptions::new().write(true).open(path).unwrap();
            began.elapsed()
        });
        assert_eq!(breaks.recv_timeout(SOON), Ok(7));
        drop(lease);
        assert!(writing.join().unwrap() < SOON, "it did not wait for the kernel's time");
        assert!(leases.broken().is_empty());
    }

    #[test]
    fn no_lease_is_granted_beside_a_writer() {
        let (leases, breaks) = leases();
        let file = file();
        let writer = open_for_writing(&file).unwrap();
        assert!(leases.take(reader(&file), 1).unwrap().is_none());
        drop(writer);
        let lease = taken(&leases, &file, 1);
        let refused = open_for_writing(&file).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EWOULDBLOCK));
        assert_eq!(breaks.recv_timeout(SOON), Ok(1));
        drop(lease);
        open_for_writing(&file).unwrap();
        assert!(leases.lock().is_empty());
    }

    #[test]
    fn a_lease_is_watched_though_an_earlier_one_of_the_file_ends_after_it_was_taken() {
        let (leases, breaks) = leases();
        let file = file();
        let earlier = taken(&leases, &file, 1);
        let _lease = taken(&leases, &file, 1);
        drop(earlier);
        open_for_writing(&file).unwrap_err();
        assert_eq!(breaks.recv_timeout(SOON), Ok(1));
    }

    #[test]
    fn changes_of_names_and_attributes_break_nothing() {
        let (leases, _breaks) = leases();
        let file = file();
        let _lease = taken(&leases, &file, 1);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let moved = file.with_extension("moved");
        fs::rename(&file, &moved).unwrap();
        fs::rename(&moved, &file).unwrap();
        assert!(leases.broken().is_empty());
    }

    #[test]
    fn a_lease_ends_with_its_holder_and_the_thread_with_the_table() {
        let (leases, breaks) = leases();
        let file = file();
        let lease = taken(&leases, &file, 1);
        drop((lease, leases));
        open_for_writing(&file).unwrap();
        // The other end is dropped by the thread.
        assert_eq!(breaks.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    }
}
