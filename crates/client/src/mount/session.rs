//! Reads the kernel's requests, executes them at once or as tasks, and sends the replies.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::warn;

use super::buffer::{Buffer, BufferPool, Payload};
use super::callers::is_killed;
use super::naming::Naming;
use super::operations::Operations;
use super::reply::Answer;
use super::request::{HEAD_BYTES, Head, Operation, Truncated, WRITE_HEAD_BYTES, WriteHead};

/// The session of one mount.
pub(super) struct Session {
    device: OwnedFd,
    operations: Arc<Operations>,
    runtime: Handle,
    buffers: Arc<BufferPool>,
    /// Requests that wait for the server, by their `unique`.
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// Set under the lock of `waiting`.
    is_refusing: AtomicBool,
}

/// A request that waits.
struct Waiting {
    /// The calling thread.
    pid: u32,
    is_release: bool,
    task: JoinHandle<()>,
}

pub(super) type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Session {
    /// A session on `device`, whose kernel writes at most `write_bytes_max` at once.
    pub(super) fn new(
        device: OwnedFd,
        operations: Arc<Operations>,
        runtime: Handle,
        write_bytes_max: usize,
    ) -> Arc<Self> {
        // The kernel requires room for the largest WRITE in every read.
        let buffers = BufferPool::new(WRITE_HEAD_BYTES + write_bytes_max);
        let (waiting, is_refusing) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { device, operations, runtime, buffers, waiting, is_refusing })
    }

    /// Answers all requests that wait for the server with EIO, now and from now on.
    pub(super) fn refuse(&self) {
        let refused: Vec<_> = {
            let mut waiting = self.waiting();
            self.is_refusing.store(true, Ordering::Release);
            waiting.extract_if(|_, waiting| !waiting.is_release).collect()
        };
        for (unique, waiting) in refused {
            waiting.task.abort();
            self.send(unique, Answer::error(Errno::IO));
        }
    }

    /// Serves until the file system is unmounted. Several threads may serve one session.
    ///
    /// # Errors
    /// The device failed, or a request is malformed.
    pub(super) fn serve(self: &Arc<Self>) -> io::Result<()> {
        let _runtime = self.runtime.enter();
        let ended = self.run_loop();
        // These have no caller any more, and on a hard mount they might wait for ever. RELEASE
        // never had one: it commits data and removes deleted files, and `Mount::finish` waits for
        // it.
        for (_, waiting) in self.waiting().drain().filter(|(_, waiting)| !waiting.is_release) {
            waiting.task.abort();
        }
        ended
    }

    fn run_loop(self: &Arc<Self>) -> io::Result<()> {
        loop {
            let mut buffer = self.buffers.take();
            match rustix::io::read(&self.device, spare_capacity(buffer.clear())) {
                Ok(_) => {}
                // The request was aborted before it was read; signals.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                // Unmounted; or aborted, with `umount -f` or through sysfs.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
            let head = Head::decode(&buffer).map_err(malformed)?;
            match decode(&head, buffer) {
                Ok(Operation::Destroy) => {
                    self.send(head.unique, Answer::done());
                    return Ok(());
                }
                Ok(operation) => self.accept(head, operation),
                Err(Truncated) => {
                    warn!(?head, "truncated request from the kernel");
                    self.send(head.unique, Answer::error(Errno::IO));
                }
            }
        }
    }

    fn accept(self: &Arc<Self>, head: Head, operation: Operation) {
        match operation {
            Operation::Forget { lookups } => self.operations.forget(head.node, lookups),
            Operation::BatchForget { nodes } => {
                for (node, lookups) in nodes {
                    self.operations.forget(node, lookups);
                }
            }
            Operation::Interrupt { unique } => self.interrupt(&head, unique),
            operation => self.run(&head, operation),
        }
    }

    /// Performs the operation of a request.
    fn run(self: &Arc<Self>, head: &Head, operation: Operation) {
        let is_release = matches!(operation, Operation::Release { .. });
        let naming = self.operations.begin_naming(head, &operation);
        let work = Box::pin(Arc::clone(&self.operations).perform(*head, operation));
        self.carry_out(head, is_release, naming, work);
    }

    /// Executes a request on this thread as far as it goes without waiting, which saves two context
    /// switches. The rest runs as a task.
    pub(super) fn carry_out(
        self: &Arc<Self>,
        head: &Head,
        is_release: bool,
        naming: Naming,
        mut work: Work,
    ) {
        // Wakeups of this waker are lost, so the task polls again with its own.
        if let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            naming.end(&answer);
            return self.send(head.unique, answer);
        }
        let unique = head.unique;
        let session = Arc::clone(self);
        // The task removes itself, so it must not end before it is inserted.
        let mut waiting = self.waiting();
        if self.is_refusing.load(Ordering::Acquire) && !is_release {
            drop(waiting);
            return self.send(unique, Answer::error(Errno::IO));
        }
        let task = self.runtime.spawn(async move {
            let answer = work.await;
            if session.waiting().remove(&unique).is_some() {
                naming.end(&answer);
                session.send(unique, answer);
            } else {
                session.take_back(answer);
            }
        });
        waiting.insert(unique, Waiting { pid: head.pid, is_release, task });
    }

    /// The caller of request `unique` got a signal. Only one that kills it ends the request, as
    /// with the kernel's NFS client: programs do not expect EINTR from files. The kernel reports
    /// only the first signal, so the caller is checked from then on.
    fn interrupt(self: &Arc<Self>, head: &Head, unique: u64) {
        let session = Arc::clone(self);
        let interrupt = head.unique;
        self.runtime.spawn(async move {
            let Some(pid) = session.waiting().get(&unique).map(|waiting| waiting.pid) else {
                // Answered already; or another thread has just read it, and then the kernel
                // retries.
                tokio::time::sleep(INTERRUPT_RETRY).await;
                return session.send(interrupt, Answer::error(Errno::AGAIN));
            };
            while session.waiting().contains_key(&unique) {
                if is_killed(pid) {
                    return session.abandon(unique).await;
                }
                tokio::time::sleep(KILLED_POLL).await;
            }
        });
    }

    /// Answers a request whose caller was killed, unless it has ended. If it is about to end, its
    /// own answer is taken back.
    pub(super) async fn abandon(&self, unique: u64) {
        let waiting = self.waiting().remove(&unique);
        if let Some(waiting) = waiting {
            waiting.task.abort();
            // Only then are its guards dropped, which must not be after a request that the kernel
            // sends because of this reply.
            let _ = waiting.task.await;
            self.send(unique, Answer::error(Errno::INTR));
        }
    }

    fn send(&self, unique: u64, answer: Answer) {
        let sent = answer.send(unique, |parts| rustix::io::writev(&self.device, parts));
        if let Err(errno) = sent {
            // The caller was killed or the file system unmounted: the reply was not accepted.
            if !matches!(errno, Errno::NOENT | Errno::NODEV) {
                warn!(%errno, "the kernel rejected a reply");
            }
            self.take_back(answer);
        }
    }

    fn take_back(&self, answer: Answer) {
        self.operations.unsettle_sizes(&answer.granted);
        let operations = Arc::clone(&self.operations);
        if answer.granted.is_something() {
            self.runtime.spawn(async move { operations.take_back(answer.granted).await });
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decodes the operation from `buffer`, which it keeps only for large data.
fn decode(head: &Head, buffer: Buffer) -> Result<Operation, Truncated> {
    if !head.is_write() {
        return head.operation(&buffer);
    }
    let WriteHead { fh, offset, size, write_flags, flags } = WriteHead::decode(&buffer)?;
    let end = usize::try_from(size).ok().and_then(|size| WRITE_HEAD_BYTES.checked_add(size));
    let range = WRITE_HEAD_BYTES..end.ok_or(Truncated)?;
    let data = Payload::cut(&mut Some(buffer), range).ok_or(Truncated)?;
    Ok(Operation::Write { fh, offset, write_flags, flags, data })
}

fn malformed(Truncated: Truncated) -> io::Error {
    io::Error::other(format!("a message on /dev/fuse is shorter than its {HEAD_BYTES} byte head"))
}

/// How often a caller that got a signal is checked for being killed.
const KILLED_POLL: Duration = Duration::from_millis(200);

/// Maximum time that a thread needs to register a request that it has read.
const INTERRUPT_RETRY: Duration = Duration::from_millis(5);
