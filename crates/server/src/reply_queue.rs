//! The sending side of a connection: replies in the order of their completion.
//!
//! The thread that completes a request sends its reply at once, without a task switch; while one is
//! sending, others leave their replies in its queue. When the socket is full, a task of the
//! connection continues. The number of replies here is bounded by the number of requests that a
//! connection may have in flight.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io::{BufferPool, Pipe};
use rpc::record::put_mark;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::delivery::{Link, Receipt};
use crate::pace::{Pace, WINDOW};
use crate::payload::Payload;

/// How long a peer may leave a full socket unread.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Replies that one system call sends, at most.
const BATCH_REPLIES_MAX: usize = 16;
const PADDING: [u8; 4] = [0; 4];

/// A reply ready to be sent.
pub(crate) struct Reply {
    /// Record mark, reply header and results up to the data.
    head: Vec<u8>,
    /// The data of a READ.
    payload: Option<Payload>,
    /// Bytes already sent.
    sent: usize,
    /// Held until the reply is gone, so that a client that does not read its replies cannot ask on.
    _slot: Option<OwnedSemaphorePermit>,
    /// Where the reply cache looks up whether it has arrived.
    receipt: Option<Arc<Receipt>>,
}

impl Reply {
    /// A reply from its head, which begins with [`rpc::record::MARK_ROOM`], and the data that follows
    /// it.
    pub(crate) fn new(mut head: Vec<u8>, payload: Option<Payload>) -> Self {
        put_mark(&mut head, padded_len(payload.as_ref()))
            .expect("a reply is shorter than a fragment may be");
        Self { head, payload, sent: 0, _slot: None, receipt: None }
    }

    /// The same reply, which keeps `slot` from the client's next call until it is gone.
    pub(crate) fn holding(self, slot: OwnedSemaphorePermit) -> Self {
        Self { _slot: Some(slot), ..self }
    }

    /// The same reply, whose place among the bytes of the connection goes to `receipt`.
    pub(crate) fn with_receipt(self, receipt: Option<Arc<Receipt>>) -> Self {
        Self { receipt, ..self }
    }

    fn len(&self) -> usize {
        self.head.len() + padded_len(self.payload.as_ref())
    }

    /// Where its data begins and where its padding does, in bytes from its start.
    fn data_range(&self) -> Range<usize> {
        let start = self.head.len();
        start..start + self.payload.as_ref().map_or(0, Payload::len)
    }

    /// The parts that are still to be sent, up to data in a pipe. Returns whether a pipe comes
    /// next.
    fn append_slices<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>) -> bool {
        let Range { start, end } = self.data_range();
        let padding = &PADDING[..self.len() - end];
        let mut append = |part_start: usize, part: &'a [u8]| {
            let skipped = self.sent.saturating_sub(part_start).min(part.len());
            if skipped < part.len() {
                slices.push(IoSlice::new(&part[skipped..]));
            }
        };
        append(0, &self.head);
        if let Some(payload) = &self.payload {
            match payload.in_memory() {
                Some(data) => append(start, data),
                None if self.sent < end => return true,
                None => {}
            }
        }
        append(end, padding);
        false
    }

    /// The pipe whose data comes next.
    fn next_pipe(&mut self) -> Option<&mut Pipe> {
        if self.sent < self.head.len() { None } else { self.payload.as_mut()?.unsent_pipe() }
    }
}

/// Notes that `sent` bytes more are gone, and removes the replies that are gone whole.
fn remove_sent(batch: &mut VecDeque<Reply>, mut sent: usize) {
    while let Some(reply) = batch.front_mut() {
        let left = reply.len() - reply.sent;
        if sent < left {
            reply.sent += sent;
            return;
        }
        sent -= left;
        batch.pop_front();
    }
}

/// The bytes that data takes in a reply (RFC 4506 §4.10).
fn padded_len(data: Option<&Payload>) -> usize {
    data.map_or(0, |data| data.len().next_multiple_of(4))
}

/// The replies of one connection on their way out.
pub(crate) struct ReplyQueue {
    socket: Arc<OwnedWriteHalf>,
    state: Mutex<State>,
    /// The connection, for calls that outlive it.
    link: Arc<Link>,
    /// The memory that replies are held in.
    buffers: Arc<BufferPool>,
    /// Wakes the connection's task when the socket is full or broken.
    blocked: Notify,
}

struct State {
    waiting: VecDeque<Reply>,
    /// The bytes of all replies that were put here.
    queued_bytes: u64,
    /// A thread is sending, or the connection's task will.
    sending: bool,
    broken: bool,
}

enum Progress {
    Done,
    SocketFull,
    Broken,
}

impl ReplyQueue {
    pub(crate) fn new(peer: SocketAddr, socket: OwnedWriteHalf, buffers: Arc<BufferPool>) -> Self {
        let socket = Arc::new(socket);
        let link = Arc::new(Link::new(peer, &socket));
        let state =
            State { waiting: VecDeque::new(), queued_bytes: 0, sending: false, broken: false };
        Self { socket, state: Mutex::new(state), link, buffers, blocked: Notify::new() }
    }

    /// The connection that replies leave by.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Sends a reply, or leaves it to the current sender.
    pub(crate) fn send(&self, reply: Reply) {
        {
            let mut state = self.lock();
            if state.broken {
                return;
            }
            state.queued_bytes += reply.len() as u64;
            if let Some(receipt) = &reply.receipt {
                receipt.ends_at(state.queued_bytes);
            }
            state.waiting.push_back(reply);
            if state.sending {
                return;
            }
            state.sending = true;
        }
        match self.send_waiting() {
            Progress::Done => {}
            Progress::SocketFull | Progress::Broken => self.blocked.notify_one(),
        }
    }

    /// Ends the connection: what the peer sends is not this protocol.
    pub(crate) fn close(&self) {
        self.give_up();
        self.blocked.notify_one();
    }

    /// Goes on where the socket was full. Ends when the connection is broken.
    pub(crate) async fn run(&self) {
        loop {
            self.blocked.notified().await;
            self.drain().await;
            if self.lock().broken {
                return;
            }
        }
    }

    /// Sends as the socket takes it, until nothing waits or the peer is given up.
    async fn drain(&self) {
        let mut pace = Pace::new(Instant::now(), self.sent_bytes());
        let (mut stalled_at, mut stalled_since) = (self.sent_bytes(), Instant::now());
        while !self.lock().broken {
            if let Ok(Err(_)) = tokio::time::timeout(WINDOW, self.socket.writable()).await {
                self.give_up();
            }
            if matches!(self.send_waiting(), Progress::Done) {
                return;
            }
            let (now, sent) = (Instant::now(), self.sent_bytes());
            if sent > stalled_at {
                (stalled_at, stalled_since) = (sent, now);
            }
            let others_wait = self.buffers.waiters() > 0;
            if now - stalled_since > STALL_MAX || pace.is_too_slow(now, sent, others_wait) {
                self.give_up();
            }
        }
    }

    fn sent_bytes(&self) -> u64 {
        self.link.sent_bytes()
    }

    /// Drops all replies: their client is gone, and their buffers are needed.
    fn give_up(&self) {
        let waiting = {
            let mut state = self.lock();
            state.broken = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    /// Sends until nothing waits or the socket is full. Only for the one that has set `sending`.
    fn send_waiting(&self) -> Progress {
        let mut batch = VecDeque::new();
        loop {
            {
                let mut state = self.lock();
                while batch.len() < BATCH_REPLIES_MAX
                    && let Some(reply) = state.waiting.pop_front()
                {
                    batch.push_back(reply);
                }
                if batch.is_empty() {
                    state.sending = false;
                    return Progress::Done;
                }
            }
            match self.send_batch(&mut batch) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut state = self.lock();
                    // Given up meanwhile: what is left goes with the rest, and its memory.
                    if state.broken {
                        return Progress::Broken;
                    }
                    while let Some(reply) = batch.pop_back() {
                        state.waiting.push_front(reply);
                    }
                    return Progress::SocketFull;
                }
                Err(_) => {
                    self.give_up();
                    return Progress::Broken;
                }
            }
        }
    }

    /// Sends the whole batch, removing what is gone.
    fn send_batch(&self, batch: &mut VecDeque<Reply>) -> std::io::Result<()> {
        loop {
            let others_follow = batch.len() > 1;
            let Some(first) = batch.front_mut() else { return Ok(()) };
            let more = others_follow || first.data_range().end < first.len();
            let sent = match first.next_pipe() {
                Some(pipe) => self.try_send(|socket| pipe.send_to(socket, more)),
                None => self.try_send_memory(batch),
            };
            match sent {
                Ok(sent) => {
                    self.link.add_sent(sent as u64);
                    remove_sent(batch, sent);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends what is in memory, up to data in a pipe, as far as the socket takes it.
    fn try_send_memory(&self, batch: &VecDeque<Reply>) -> std::io::Result<usize> {
        let mut slices = Vec::with_capacity(3 * batch.len());
        let pipe_follows = batch.iter().any(|reply| reply.append_slices(&mut slices));
        let flags = if pipe_follows { SendFlags::MORE } else { SendFlags::empty() };
        self.try_send(|socket| {
            Ok(sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)?)
        })
    }

    /// Tries to send if the socket has room as far as is known. When it turns out to be full,
    /// `writable` waits until it has room again.
    fn try_send(
        &self,
        send: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        let socket: &TcpStream = OwnedWriteHalf::as_ref(&self.socket);
        socket.try_io(Interest::WRITABLE, || send(socket.as_fd()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReplyQueue {
    fn drop(&mut self) {
        self.link.end(&self.socket);
    }
}

#[cfg(test)]
mod tests;
