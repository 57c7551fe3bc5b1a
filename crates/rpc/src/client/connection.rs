//! One TCP connection and the tasks that keep it: calls go out, replies come in, and when it breaks
//! it is made again for what is unanswered.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;

use super::calls::{Calls, Draft, Message, xid};
use super::connect::{self, HeldPort};
use super::reply::parse;
use super::{Error, REPLY_BYTES_MIN, Recovery, Result, RpcOptions};
use crate::record;

/// The unit of nfs(5)'s `timeo`.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Longer makes no difference, but times must not overflow.
const TIMEOUT_MAX: Duration = Duration::from_secs(86400);
/// A server that has answered nothing for this long, although a call waits, is reported. Less than
/// programs are left without an explanation.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The pause before a connection is made again: none the first time, then this, doubled each time
/// until a call is answered.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// A pause is not made longer than this.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Bytes that a reply may have beside those asked for: its header, attributes, an entry's handle.
const REPLY_HEAD_BYTES: usize = 64 << 10;
/// How often the calls of a `soft` mount that are over their time wait for the rest of what has
/// arrived. A server that sends without a pause does not keep them.
const LOOKS_MAX: usize = 64;
/// Bytes of replies that came in so short a time: there may be more in the socket.
const READ_JUST_NOW: Duration = Duration::from_millis(10);
/// Small replies are read together. Larger than this, the rest of a reply is read to its place.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// State that the connections to one server share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pub(super) options: RpcOptions,
    /// The number of the next call. Starts anywhere, so that a server does not take the calls of
    /// this process for those of one before it.
    next_number: AtomicU64,
    /// Longest record taken.
    record_bytes_max: AtomicUsize,
    /// Whether it was reported that the server does not respond.
    not_responding: AtomicBool,
    started: Instant,
    /// When the latest reply to a call came, in [`Self::now_ms`].
    replied_ms: AtomicU64,
}

impl Shared {
    pub(super) fn new(address: SocketAddr, mut options: RpcOptions) -> Self {
        options.timeout = options.timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        Self {
            address,
            options,
            next_number: AtomicU64::new(super::random() & u64::from(u32::MAX)),
            record_bytes_max: AtomicUsize::new(REPLY_BYTES_MIN + REPLY_HEAD_BYTES),
            not_responding: AtomicBool::new(false),
            started: Instant::now(),
            replied_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn expect_reply_bytes(&self, bytes: usize) {
        let record_bytes = bytes.saturating_add(REPLY_HEAD_BYTES);
        self.record_bytes_max.fetch_max(record_bytes, Ordering::Relaxed);
    }

    /// Worded as the Linux client does, for those who look for it.
    pub(super) fn note_silence(&self) {
        if !self.not_responding.swap(true, Ordering::Relaxed) {
            tracing::warn!("server {} not responding, still trying", self.address);
        }
    }

    /// Milliseconds since `started`.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn note_reply(&self) {
        self.replied_ms.store(self.now_ms(), Ordering::Relaxed);
        let silent = self.not_responding.load(Ordering::Relaxed);
        if silent && self.not_responding.swap(false, Ordering::Relaxed) {
            tracing::info!("server {} OK", self.address);
        }
    }

    /// When the latest reply to a call came over any connection; the start before the first.
    fn replied_at(&self) -> Instant {
        self.started + Duration::from_millis(self.replied_ms.load(Ordering::Relaxed))
    }

    /// How long the server may be silent until that is reported.
    fn silence_max(&self) -> Duration {
        SILENCE_MAX.min(self.options.patience())
    }
}

/// A handle on a connection. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Connection {
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Connection {
    /// Begins with a connection that is there, or with none until a call wants one.
    pub(super) fn start(shared: Arc<Shared>, stream: Option<TcpStream>) -> Self {
        let state = Arc::new(State {
            shared,
            calls: Mutex::new(Calls::new()),
            outstanding: AtomicUsize::new(0),
            work: Notify::new(),
            replied: AtomicBool::new(false),
            heard_ms: AtomicU64::new(0),
            last_error: Mutex::new(None),
        });
        let task = tokio::spawn({
            let state = Arc::clone(&state);
            let stream = stream.map(|tcp| Stream::new(tcp, &state));
            async move {
                // Replies that have arrived come before the loss of their calls: a program that was
                // stopped for long finds both at once. The calls of a server that sends without a
                // pause are lost in their time all the same.
                tokio::join!(biased; state.serve(stream), unconstrained(state.watch()));
            }
        });
        Self { state, task }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.state.shared
    }

    pub(super) fn add(&self, draft: Draft) -> (u64, Message, oneshot::Receiver<Result<Bytes>>) {
        self.state.outstanding.fetch_add(1, Ordering::Relaxed);
        let mut calls = self.state.calls();
        // Taken under the lock, so that numbers are in the order of the line.
        let number = self.state.shared.next_number.fetch_add(1, Ordering::Relaxed);
        let message = draft.with_xid(xid(number));
        let reply = calls.add(number, message.clone(), Instant::now());
        drop(calls);
        self.state.work.notify_one();
        (number, message, reply)
    }

    /// The caller waits no longer, because it went away or has its reply.
    pub(super) fn release(&self, number: u64) {
        self.state.outstanding.fetch_sub(1, Ordering::Relaxed);
        if self.state.calls().forget(number) {
            self.state.work.notify_one();
        }
    }

    /// Calls handed over whose callers wait.
    pub(super) fn outstanding(&self) -> usize {
        self.state.outstanding.load(Ordering::Relaxed)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct State {
    shared: Arc<Shared>,
    calls: Mutex<Calls>,
    outstanding: AtomicUsize,
    /// There may be something to send. One task waits for it.
    work: Notify,
    /// A call has been answered over the present connection.
    replied: AtomicBool,
    /// When the latest bytes of replies came, in [`Shared::now_ms`].
    heard_ms: AtomicU64,
    /// Why there is no connection.
    last_error: Mutex<Option<Arc<io::Error>>>,
}

/// The present connection. It is closed when this is dropped, with its task too.
struct Stream {
    tcp: TcpStream,
    state: Arc<State>,
    is_lost: bool,
}

impl Stream {
    fn new(tcp: TcpStream, state: &Arc<State>) -> Self {
        Self { tcp, state: Arc::clone(state), is_lost: false }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_lost {
            // Its port is wanted again, and its calls are sent again.
            connect::reset_when_closed(&self.tcp);
        } else if !self.state.calls().is_owed() {
            // A call whose caller has gone may still be on its way: a reset would discard it.
            connect::free_port_when_closed(&self.tcp);
        }
    }
}

impl State {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends and receives for ever, over one connection after the other.
    async fn serve(self: &Arc<Self>, mut stream: Option<Stream>) {
        let mut port: Option<HeldPort> = None;
        let mut pause = Duration::ZERO;
        loop {
            let mut connected = match stream.take() {
                Some(stream) => stream,
                None => Stream::new(self.connect(port.as_ref(), &mut pause).await, self),
            };
            if !port.as_ref().is_some_and(|port| port.is_of(&connected.tcp)) {
                port = HeldPort::of(&connected.tcp);
            }
            let error = self.exchange(&mut connected.tcp).await;
            connected.is_lost = true;
            drop(connected);
            if self.replied.swap(false, Ordering::Relaxed) {
                pause = Duration::ZERO;
            }
            self.report_loss(&error);
            self.note_failure(error);
            self.calls().send_all_again();
        }
    }

    /// Connections come and go, but a peer that does not speak RPC is a mistake in an address or a
    /// server.
    fn report_loss(&self, error: &io::Error) {
        let server = self.shared.address;
        if error.kind() == ErrorKind::InvalidData {
            tracing::warn!(%server, %error, "connection closed");
        } else {
            tracing::debug!(%server, %error, "connection lost");
        }
    }

    async fn wait_for_calls(&self) {
        while self.calls().is_empty() {
            self.work.notified().await;
        }
    }

    /// Tries until there is a connection, with growing pauses, and only while a call wants it.
    async fn connect(&self, port: Option<&HeldPort>, pause: &mut Duration) -> TcpStream {
        let Shared { address, options, .. } = &*self.shared;
        loop {
            self.wait_for_calls().await;
            tokio::time::sleep(*pause).await;
            *pause = (*pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            match connect::connect(*address, port, options).await {
                Ok(stream) => return stream,
                Err(error) => {
                    tracing::debug!(server = %address, %error, "no connection");
                    self.note_failure(error);
                }
            }
        }
    }

    /// Sends and receives until the connection breaks; returns the reason.
    async fn exchange(&self, stream: &mut TcpStream) -> io::Error {
        let (reader, writer) = stream.split();
        tokio::select! {
            // Replies that have arrived are read before the connection is given up. It does not
            // keep calls from being sent: replies alone use up the task's budget of polls.
            biased;
            error = self.read_replies(reader) => error,
            error = unconstrained(self.write_calls(writer)) => error,
            error = unconstrained(self.await_overdue()) => error,
        }
    }

    async fn write_calls(&self, mut to: impl AsyncWrite + Unpin) -> io::Error {
        loop {
            let mut batch = self.calls().next_batch(Instant::now());
            if !batch.has_remaining() {
                self.work.notified().await;
            } else if let Err(error) = to.write_all_buf(&mut batch).await {
                return error;
            }
        }
    }

    async fn read_replies(&self, from: impl AsyncRead + Unpin) -> io::Error {
        let from = Heard { from, state: self };
        let mut from = BufReader::with_capacity(READ_BUFFER_BYTES, from);
        loop {
            let bytes_max = self.shared.record_bytes_max.load(Ordering::Relaxed);
            let before_ms = self.heard_ms.load(Ordering::Relaxed);
            let answered = match record::read(&mut from, bytes_max).await {
                Ok(record) => self.answer(record),
                Err(error) => Err(error),
            };
            match answered {
                Ok(true) => self.note_bytes(),
                Ok(false) => self.heard_ms.store(before_ms, Ordering::Relaxed),
                Err(error) => return error,
            }
        }
    }

    /// Notes that bytes of a reply have come.
    fn note_bytes(&self) {
        self.heard_ms.store(self.shared.now_ms(), Ordering::Relaxed);
    }

    /// When the latest bytes of replies came; the start before the first.
    fn heard_at(&self) -> Instant {
        self.shared.started + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// Gives a reply to its call. `false` if none waits for it. Fails when the record is no reply.
    fn answer(&self, record: Bytes) -> io::Result<bool> {
        let (xid, reply) = parse(record)?;
        // A reply without a waiting call is late: the call was cancelled. Or the peer has made it
        // up, so that it is no sign of a server that works.
        if !self.calls().answer(xid, reply) {
            return Ok(false);
        }
        if !self.replied.swap(true, Ordering::Relaxed) {
            *self.last_error() = None;
        }
        self.shared.note_reply();
        self.work.notify_one();
        Ok(true)
    }

    /// Waits until a reply is overdue: a call was sent over this connection, and no bytes of
    /// replies have come for too long, or those to calls that were sent so much later. A slow link
    /// delivers the replies to calls of one time for longer than that.
    async fn await_overdue(&self) -> io::Error {
        let timeout = self.shared.options.timeout;
        loop {
            let now = Instant::now();
            let (oldest, is_overtaken) = {
                let calls = self.calls();
                (calls.oldest_sent(), calls.oldest_is_overtaken(timeout))
            };
            // No call that is sent from now on can be due before this.
            let due = oldest.map_or(now, |sent| sent.max(self.heard_at())) + timeout;
            if oldest.is_some() && due <= now || is_overtaken {
                return Errno::TIMEDOUT.into();
            }
            tokio::time::sleep_until(due).await;
        }
    }

    /// Looks after calls that have waited too long, for ever.
    async fn watch(&self) {
        let options = &self.shared.options;
        let (patience, silence_max) = (options.patience(), self.shared.silence_max());
        loop {
            let now = Instant::now();
            let oldest = self.calls().oldest_handed_over();
            let Some(oldest) = oldest else {
                // No call that is handed over from now on can be due before this.
                tokio::time::sleep(silence_max).await;
                continue;
            };
            if options.recovery == Recovery::Soft && oldest + patience <= now {
                // More replies may have arrived than the budget of polls allows to read.
                for _ in 0..LOOKS_MAX {
                    if self.heard_at().elapsed() > READ_JUST_NOW {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                self.give_up(now - patience);
                continue;
            }
            let heard = self.shared.replied_at().max(self.heard_at());
            let mut silent_at = oldest.max(heard) + silence_max;
            if silent_at <= now {
                self.shared.note_silence();
                silent_at = now + silence_max;
            }
            let due = match options.recovery {
                Recovery::Soft => silent_at.min(oldest + patience),
                Recovery::Hard => silent_at,
            };
            tokio::time::sleep_until(due).await;
        }
    }

    /// Fails the calls that were handed over at `until` or before.
    fn give_up(&self, until: Instant) {
        let server = self.shared.address.to_string();
        let error = match self.last_error().clone() {
            Some(source) => Error::Connection { what: format!("no reply from {server}"), source },
            None => Error::TimedOut { server },
        };
        self.calls().fail_older(until, &error);
        self.work.notify_one();
    }

    fn last_error(&self) -> MutexGuard<'_, Option<Arc<io::Error>>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps why there are no replies. Silence is the reason that needs no words.
    fn note_failure(&self, error: io::Error) {
        let said = error.kind() != ErrorKind::TimedOut;
        *self.last_error() = said.then(|| Arc::new(error));
    }
}

/// The replies of a connection as they come. Notes when bytes do.
struct Heard<'a, R> {
    from: R,
    state: &'a State,
}

impl<R: AsyncRead + Unpin> AsyncRead for Heard<'_, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.from).poll_read(context, buffer))?;
        self.state.note_bytes();
        Poll::Ready(Ok(()))
    }
}
