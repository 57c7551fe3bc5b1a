//! Write-back: the written data of a file, until the server has committed it.
//!
//! Writes of any size are gathered into WRITEs as large as the server takes, aligned to their own
//! size, and sent in the order of the file: the more of them are under way at once, the better, as
//! one task makes all calls of a file and the connection keeps their order. Data is kept until
//! COMMIT confirms the verifier of its WRITE, and sent again when a restarted server has lost it.
//!
//! ```
//! # use bytes::Bytes;
//! # use proto::nfs3::{CommitOk, StableHow, WccData, WriteOk, WriteVerifier};
//! # use spillway_client::{Result, trace::Tracer, write_back::*};
//! # #[derive(Clone)]
//! # struct Target;
//! # impl WriteTarget for Target {
//! #     async fn write(&self, _: u64, data: Bytes, committed: StableHow) -> Result<WriteOk> {
//! #         let (count, verifier) = (data.len() as u32, WriteVerifier([0; 8]));
//! #         Ok(WriteOk { wcc: WccData::default(), count, committed, verifier })
//! #     }
//! #     async fn commit(&self, _: u64, _: u32) -> Result<CommitOk> {
//! #         Ok(CommitOk { wcc: WccData::default(), verifier: WriteVerifier([0; 8]) })
//! #     }
//! #     fn same_user(&self, _: &Self) -> bool { true }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! let (budget, kept) = (WriteBudget::new(64 << 20), KeptBudget::new(64 << 20));
//! let config = WriteBackConfig { write_bytes: 1 << 20, writes_in_flight: 16, sync: false };
//! # let (tracer, fileid) = (std::sync::Arc::new(Tracer::default()), 42);
//! # let handle = proto::nfs3::FileHandle::new(b"handle").expect("it is short");
//! let file = WriteBack::new(config, &budget, &kept, TracedFile { tracer, fileid, handle });
//!
//! let opened = file.open(Target);
//! for offset in 0..100_000 {
//!     file.write(&opened, offset, b"x").await?;
//! }
//! file.sync(&opened).await?;
//! assert!(file.is_clean());
//! # Ok(())
//! # }
//! ```
//!
//! # Reading what is being written
//!
//! What is held is newer than what the server answers to a READ. But while a READ is under way,
//! data can be sent, committed and let go of, and the answer, made before that, lacks it. So a
//! reader takes a [`ReadMark`] before it asks, which keeps such data, and lays it over the answer:
//!
//! ```no_run
//! # use spillway_client::{Result, write_back::*};
//! # async fn read<T: WriteTarget>(file: &WriteBack<T>, offset: u64, buf: &mut [u8]) -> Result<()> {
//! # async fn ask_the_server(_: &mut [u8]) -> Result<()> { Ok(()) }
//! let mark = file.mark();
//! if !mark.fill(offset, buf) {
//!     ask_the_server(buf).await?;
//!     mark.overlay(offset, buf);
//! }
//! # Ok(())
//! # }
//! ```

mod budget;
mod dispatch;
mod epochs;
mod errors;
mod extents;
mod kept;
mod retired;
mod unsent;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use proto::nfs3::{CommitOk, FileHandle, StableHow, WriteOk};
use rustix::io::Errno;
use tokio::sync::Notify;

use self::budget::{Account, Reclaim, Room, Rooms};
use self::dispatch::{Answer, Dispatch};
use self::errors::{ErrorCursor, Errors};
use self::extents::{Action, Extents, Goal, Limits};
use self::unsent::Caller;
use crate::error::{Error, Result};
use crate::trace::{Event, Object, Tracer};

pub use self::budget::WriteBudget;
pub use self::kept::KeptBudget;

/// A file of a server, as one caller.
pub trait WriteTarget: Clone + Send + Sync + 'static {
    /// WRITE, RFC 1813 §3.3.7. Handed over by the first poll, in the order of the first polls.
    ///
    /// An error is final, and loses the data; so what may pass, as NFS3ERR_JUKEBOX, is repeated in
    /// here.
    fn write(
        &self,
        offset: u64,
        data: Bytes,
        stable: StableHow,
    ) -> impl Future<Output = Result<WriteOk>> + Send;

    /// COMMIT, RFC 1813 §3.3.21; `count` 0 is all from `offset` on. As for
    /// [`write`](Self::write).
    fn commit(&self, offset: u64, count: u32) -> impl Future<Output = Result<CommitOk>> + Send;

    /// Whether the server sees the same user behind both: only then do their data share a WRITE.
    fn same_user(&self, other: &Self) -> bool;
}

impl<T: WriteTarget> Caller for T {
    fn same_user(&self, other: &Self) -> bool {
        WriteTarget::same_user(self, other)
    }
}

/// How the data of a file is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBackConfig {
    /// Bytes of a WRITE at most, and what WRITEs are aligned to; at least 1.
    pub write_bytes: u32,
    /// WRITEs that await their reply at once; at least 1.
    pub writes_in_flight: usize,
    /// A write returns when the data is on stable storage.
    pub sync: bool,
}

/// Which file the trace events are about.
#[derive(Clone, Debug)]
pub struct TracedFile {
    /// Prints them.
    pub tracer: Arc<Tracer>,
    /// Its number within the file system.
    pub fileid: u64,
    /// Its handle.
    pub handle: FileHandle,
}

impl TracedFile {
    fn emit(&self, event: Event, offset: u64, len: u64, detail: fmt::Arguments<'_>) {
        let object = Object { fileid: self.fileid, handle: &self.handle };
        self.tracer.emit(event, object, offset, len, detail);
    }
}

/// The written data of one file.
///
/// All calls are made by a task of its own, so that a future of these methods can be dropped at any
/// time and only the waiting ends. The methods that write need the context of a tokio runtime.
///
/// When it is dropped, the task goes on until all is committed, as long as the runtime lives;
/// nobody is told of errors then. [`settle`](Self::settle) before.
pub struct WriteBack<T: WriteTarget> {
    shared: Arc<Shared<T>>,
}

/// A file opened for writing: who writes, and which errors it has been told.
pub struct Writer<T> {
    target: T,
    errors: ErrorCursor,
}

impl<T> Writer<T> {
    /// Who writes.
    #[must_use]
    pub fn target(&self) -> &T {
        &self.target
    }
}

impl<T: WriteTarget> WriteBack<T> {
    /// A file to which nothing is written yet. Costs nothing until the first write.
    ///
    /// # Panics
    /// If a number of `config` is 0.
    #[must_use]
    pub fn new(
        config: WriteBackConfig,
        budget: &WriteBudget,
        kept: &KeptBudget,
        traced: TracedFile,
    ) -> Self {
        let WriteBackConfig { write_bytes, writes_in_flight, sync } = config;
        assert!(write_bytes > 0 && writes_in_flight > 0, "{config:?} sends nothing");
        let limits = Limits {
            write_bytes,
            in_flight_max: writes_in_flight,
            commit_bytes: (budget.bytes_max() as u64 / COMMIT_SHARE).max(1),
        };
        let state = State {
            extents: Extents::new(limits, kept),
            errors: Errors::default(),
            task: Task::Absent,
        };
        Self {
            shared: Arc::new(Shared {
                sync,
                traced,
                account: Account::new(budget),
                state: Mutex::new(state),
                progress: Notify::new(),
            }),
        }
    }

    /// For a file opened now. It is told once of each error that happens from now on, and of an
    /// earlier one that nobody was told of.
    #[must_use]
    pub fn open(&self, target: T) -> Writer<T> {
        Writer { target, errors: self.shared.lock().errors.cursor() }
    }

    /// Writes `data` at `offset`: takes a copy of it, and returns when all is taken. Waits only
    /// while there is no room for more; in a `sync` file, until the data is on stable storage.
    ///
    /// When the future is dropped, a prefix may have been written.
    ///
    /// # Errors
    /// An earlier WRITE or COMMIT failed and `writer` has not been told; nothing is written then.
    /// [`Error::Refused`] with EFBIG beyond the largest offset of a file. In a `sync` file also the
    /// error of this write.
    pub async fn write(&self, writer: &Writer<T>, offset: u64, data: &[u8]) -> Result<()> {
        self.write_from(writer, offset, Data { bytes: data, owned: None }).await
    }

    /// As [`write`](Self::write), but where `data` is what one WRITE is to carry, as long and
    /// aligned as [`write_bytes`](WriteBackConfig::write_bytes) says, it is held instead of a copy.
    /// So it should be no part of larger memory, of which nobody would know.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_bytes(&self, writer: &Writer<T>, offset: u64, data: &Bytes) -> Result<()> {
        self.write_from(writer, offset, Data { bytes: data, owned: Some(data) }).await
    }

    async fn write_from(&self, writer: &Writer<T>, offset: u64, data: Data<'_>) -> Result<()> {
        let len = data.bytes.len() as u64;
        let is_in_range = offset.checked_add(len).is_some_and(|end| end <= OFFSET_MAX);
        if !is_in_range {
            return Err(Error::Refused(Errno::FBIG));
        }
        self.shared.traced.emit(Event::WriteEnter, offset, len, format_args!(""));
        let taken = {
            let mut state = self.shared.lock();
            state.errors.check(&writer.errors)?;
            self.shared.put(&mut state, &writer.target, offset, data, None)
        };
        if let Err(lack) = taken {
            Box::pin(self.write_rest(writer, offset, data, lack)).await;
        }
        if self.shared.sync && len > 0 {
            Box::pin(self.sync(writer)).await?;
        }
        Ok(())
    }

    /// Goes on with a write that lacks room.
    async fn write_rest(
        &self,
        writer: &Writer<T>,
        mut offset: u64,
        mut data: Data<'_>,
        mut lack: Lack,
    ) {
        loop {
            offset += lack.taken as u64;
            data = data.behind(lack.taken);
            let room = self.shared.account.room(lack.room).await;
            let mut state = self.shared.lock();
            match self.shared.put(&mut state, &writer.target, offset, data, Some(room)) {
                Ok(()) => return,
                Err(next) => lack = next,
            }
        }
    }

    /// Waits until the server has answered the WRITEs of all that is written so far. What it was
    /// told it tells everybody, but it may lose it in a crash: see [`sync`](Self::sync).
    ///
    /// # Errors
    /// Data was lost, and `writer` has not been told.
    pub async fn flush(&self, writer: &Writer<T>) -> Result<()> {
        self.reach(Goal::Answered).await;
        self.check(writer)
    }

    /// Waits until the server has all that is written so far on stable storage: what fsync
    /// promises, and close in the Linux client.
    ///
    /// # Errors
    /// Data was lost, and `writer` has not been told.
    pub async fn sync(&self, writer: &Writer<T>) -> Result<()> {
        self.reach(Goal::Committed).await;
        self.check(writer)
    }

    /// As [`flush`](Self::flush), for who did not open the file: errors are left for those who did.
    pub async fn drain(&self) {
        self.reach(Goal::Answered).await;
    }

    /// As [`sync`](Self::sync), for who did not open the file, at the end of a mount.
    ///
    /// # Errors
    /// Data was lost, and nobody was told. Files that are open will be told as well.
    pub async fn settle(&self) -> Result<()> {
        self.reach(Goal::Committed).await;
        self.shared.lock().errors.check_unheard()
    }

    /// Tells `writer` of the latest error, once.
    ///
    /// # Errors
    /// Data was lost, and `writer` has not been told.
    pub fn check(&self, writer: &Writer<T>) -> Result<()> {
        self.shared.lock().errors.check(&writer.errors)
    }

    async fn reach(&self, goal: Goal) {
        let shared = &self.shared;
        let epoch = {
            let mut state = shared.lock();
            if state.extents.is_clean() {
                return;
            }
            let epoch = state.extents.request(goal);
            state.wake();
            epoch
        };
        shared.wait_until(|state| state.extents.is_reached(goal, epoch).then_some(())).await;
    }

    /// Forgets all from `size` on: to be called when the server has cut the file, and after
    /// [`drain`](Self::drain) before it is asked to, or bytes that it is sent later make the file
    /// longer again. Waits for WRITEs that are under way there.
    pub async fn truncate(&self, size: u64) {
        let _pause = Pause::new(&self.shared);
        self.shared.wait_until(|state| state.extents.cut(size).then_some(())).await;
    }

    /// To be taken before a READ, and held until its reply has been used.
    #[must_use]
    pub fn mark(&self) -> ReadMark<T> {
        let mark = self.shared.lock().extents.mark();
        ReadMark { shared: Arc::clone(&self.shared), mark }
    }

    /// Somebody else has changed the file: what is committed is not kept any longer.
    pub fn forget_kept(&self) {
        self.shared.lock().extents.forget_kept();
    }

    /// Where the highest byte ends that the server may not have: the file is at least that long.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.shared.lock().extents.end()
    }

    /// Whether all is committed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.shared.lock().extents.is_clean()
    }
}

impl<T: WriteTarget> Drop for WriteBack<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if !state.extents.is_clean() {
            state.extents.request(Goal::Committed);
            state.wake();
        }
    }
}

impl<T: WriteTarget> fmt::Debug for WriteBack<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBack")
            .field("held_bytes", &self.shared.account.held())
            .field("is_clean", &self.is_clean())
            .finish_non_exhaustive()
    }
}

/// Keeps what is committed from now on, for the reply to a READ that is sent from now on.
pub struct ReadMark<T: WriteTarget> {
    shared: Arc<Shared<T>>,
    mark: u64,
}

impl<T: WriteTarget> ReadMark<T> {
    /// Whether [`fill`](Self::fill) would fill `len` bytes, more than none.
    #[must_use]
    pub fn covers(&self, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        len > 0 && self.shared.lock().extents.held_until(offset) >= end
    }

    /// Fills `buf` with what is at `offset`, if all of it is held or was committed and is kept; no
    /// READ is needed then.
    #[must_use]
    pub fn fill(&self, offset: u64, buf: &mut [u8]) -> bool {
        let state = self.shared.lock();
        let is_held = state.extents.held_until(offset) >= offset.saturating_add(buf.len() as u64);
        if is_held {
            state.extents.overlay(offset, buf, None);
        }
        is_held
    }

    /// Copies into `buf`, what the server says is at `offset`, all that was held since the mark was
    /// taken.
    pub fn overlay(&self, offset: u64, buf: &mut [u8]) {
        self.shared.lock().extents.overlay(offset, buf, Some(self.mark));
    }
}

impl<T: WriteTarget> Drop for ReadMark<T> {
    fn drop(&mut self) {
        self.shared.lock().extents.unmark(self.mark);
    }
}

/// What the file and its task have in common.
struct Shared<T> {
    sync: bool,
    traced: TracedFile,
    account: Arc<Account>,
    state: Mutex<State<T>>,
    /// Told when a call was answered.
    progress: Notify,
}

struct State<T> {
    extents: Extents<T>,
    errors: Errors,
    task: Task,
}

/// The task that makes the calls.
enum Task {
    Absent,
    /// It is at work, and will look at everything before it sleeps.
    Busy,
    Asleep(Waker),
}

/// What is written.
#[derive(Clone, Copy)]
struct Data<'a> {
    bytes: &'a [u8],
    /// The memory of just these bytes, if it may be held.
    owned: Option<&'a Bytes>,
}

impl Data<'_> {
    /// What is left when a prefix is taken.
    fn behind(self, taken: usize) -> Self {
        Self { bytes: &self.bytes[taken..], owned: self.owned.filter(|_| taken == 0) }
    }
}

/// A write that lacks room: how much of it was taken, and what it lacks.
struct Lack {
    taken: usize,
    room: usize,
}

impl<T: WriteTarget> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes as much of `data` as there is room for.
    fn put(
        self: &Arc<Self>,
        state: &mut State<T>,
        target: &T,
        offset: u64,
        data: Data<'_>,
        spare: Option<Room>,
    ) -> std::result::Result<(), Lack> {
        let mut rooms = Rooms::new(&self.account, spare);
        let mut taken = 0;
        while taken < data.bytes.len() {
            let (offset, rest) = (offset + taken as u64, data.behind(taken));
            let adopted = rest.owned.and_then(|owned| {
                state.extents.adopt(target, offset, owned, &mut rooms, Instant::now)
            });
            let placed = adopted.unwrap_or_else(|| {
                state.extents.write(target, offset, rest.bytes, &mut rooms, Instant::now)
            });
            taken += placed.count;
            if placed.is_new || placed.is_complete {
                self.start_task(state);
            }
            if let Some(room) = placed.lacks {
                return Err(Lack { taken, room });
            }
        }
        Ok(())
    }

    /// Makes sure that the task looks at what is new.
    fn start_task(self: &Arc<Self>, state: &mut State<T>) {
        if !matches!(state.task, Task::Absent) {
            return state.wake();
        }
        state.task = Task::Busy;
        let file: Weak<Self> = Arc::downgrade(self);
        self.account.enlist(file);
        tokio::spawn(Dispatch::new(Arc::clone(self)));
    }

    /// The task ends: all is committed.
    fn end_task(&self, state: &mut State<T>) {
        state.task = Task::Absent;
        self.account.withdraw();
    }

    fn trace_call(&self, action: &Action<T>) {
        let traced = &self.traced;
        match action {
            Action::Write { offset, data, stable, again, .. } => {
                let len = data.len() as u64;
                if *again {
                    traced.emit(Event::WriteResend, *offset, len, format_args!(""));
                }
                let stable = stable.name();
                traced.emit(Event::WriteCall, *offset, len, format_args!("stable={stable}"));
            }
            Action::Commit { .. } => traced.emit(Event::CommitCall, 0, 0, format_args!("")),
        }
    }

    fn trace_answer(&self, answer: &Answer) {
        let traced = &self.traced;
        let error = |error: &Error| error.errno().raw_os_error();
        match answer {
            Answer::Written { offset, result: Ok(WriteOk { count, committed, .. }) } => {
                let (count, committed) = (u64::from(*count), committed.name());
                let detail = format_args!("committed={committed}");
                traced.emit(Event::WriteReply, *offset, count, detail);
            }
            Answer::Written { offset, result: Err(e) } => {
                traced.emit(Event::WriteReply, *offset, 0, format_args!("error={}", error(e)));
            }
            Answer::Committed { result: Ok(_) } => {
                traced.emit(Event::CommitReply, 0, 0, format_args!(""));
            }
            Answer::Committed { result: Err(e) } => {
                traced.emit(Event::CommitReply, 0, 0, format_args!("error={}", error(e)));
            }
        }
    }

    fn answered(&self, answer: Answer) {
        self.trace_answer(&answer);
        let mut state = self.lock();
        let now = Instant::now();
        let outcome = match answer {
            Answer::Written { offset, result } => state.extents.written(offset, result, now),
            Answer::Committed { result } => {
                state.extents.committed(result.map(|ok| ok.verifier), now)
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "written data is lost");
            state.errors.record(error);
        }
        drop(state);
        self.progress.notify_waiters();
    }

    /// Waits until `probe`, tried after each answer, returns something.
    async fn wait_until<R>(&self, mut probe: impl FnMut(&mut State<T>) -> Option<R>) -> R {
        loop {
            // Registered before the look, so that no answer slips in between.
            let progress = self.progress.notified();
            if let Some(result) = probe(&mut self.lock()) {
                return result;
            }
            progress.await;
        }
    }
}

impl<T: WriteTarget> State<T> {
    fn wake(&mut self) {
        if let Task::Asleep(_) = self.task
            && let Task::Asleep(waker) = std::mem::replace(&mut self.task, Task::Busy)
        {
            waker.wake();
        }
    }

    fn set_waker(&mut self, waker: &Waker) {
        self.task = Task::Asleep(waker.clone());
    }
}

impl<T: WriteTarget> Reclaim for Shared<T> {
    fn held(&self) -> usize {
        self.account.held()
    }

    fn press(&self) {
        let mut state = self.lock();
        state.extents.request(Goal::Committed);
        state.wake();
    }
}

/// Holds the WRITEs of a file back.
struct Pause<'a, T: WriteTarget>(&'a Shared<T>);

impl<'a, T: WriteTarget> Pause<'a, T> {
    fn new(shared: &'a Shared<T>) -> Self {
        shared.lock().extents.pause();
        Self(shared)
    }
}

impl<T: WriteTarget> Drop for Pause<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.extents.resume();
        state.wake();
        drop(state);
        self.0.progress.notify_waiters();
    }
}

/// A file commits in the background when this part of the budget, one of so many, is unstable: so
/// a long stream gives back room while it goes on, and does not stop for one large COMMIT.
const COMMIT_SHARE: u64 = 4;
/// The largest offset of a file where offsets are signed.
const OFFSET_MAX: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests;
