//! The sending side of a connection: replies in the order of their completion.
//!
//! The thread that completes a request sends its reply at once, without a task switch; while one is
//! sending, others leave their replies in its queue. A thread that completes several requests in a
//! row sends their replies after the last. When the stream is full, a task of the connection
//! continues. The number of replies here is bounded by the number of requests that a connection may
//! have in flight.
//!
//! While calls that have come together are answered at once, one after the other, their replies
//! leave together too ([`ReplyQueue::cork`]): a system call for each would cost more than the
//! answers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io::{BufferPool, ClientId, Engine};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::delivery::Link;
use super::pace::{Pace, WINDOW};
use super::reply::Reply;
use super::transport::Transport;

/// How long a peer may leave a full stream unread.
const STALL_MAX: Duration = Duration::from_secs(60);
/// How often an acknowledgement is looked for.
const ACKNOWLEDGEMENT_INTERVAL: Duration = Duration::from_millis(5);
/// Replies that one system call sends, at most.
const BATCH_REPLIES_MAX: usize = 16;
/// A reply as long as this is sent at once: the system call is a small part of what it costs.
const CORKED_BYTES_MAX: usize = 16 * 1024;

/// Notes that `sent` bytes more are gone, and removes the replies that are gone whole.
fn remove_sent(batch: &mut VecDeque<Reply>, mut sent: usize) {
    while let Some(reply) = batch.front_mut() {
        let left = reply.unsent_bytes();
        if sent < left {
            reply.add_sent(sent);
            return;
        }
        sent -= left;
        batch.pop_front();
    }
}

/// The replies of one connection on their way out.
pub struct ReplyQueue {
    transport: Arc<dyn Transport>,
    state: Mutex<State>,
    /// The connection, for calls that outlive it.
    link: Arc<Link>,
    /// Whose share of the buffers replies take.
    client: ClientId,
    /// The memory that replies are held in.
    buffers: Arc<BufferPool>,
    /// More replies follow soon; see [`Self::cork`].
    corked: AtomicBool,
    /// Wakes the connection's task when the stream is full or broken.
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
    StreamFull,
    Broken,
}

impl ReplyQueue {
    /// Nothing to send yet. Replies are held in memory of `buffers`, in the share of `client`.
    pub fn new(
        peer: SocketAddr,
        client: ClientId,
        transport: Arc<dyn Transport>,
        buffers: Arc<BufferPool>,
    ) -> Self {
        let link = Arc::new(Link::new(peer, Arc::downgrade(&transport)));
        let state =
            State { waiting: VecDeque::new(), queued_bytes: 0, sending: false, broken: false };
        Self {
            transport,
            state: Mutex::new(state),
            link,
            client,
            buffers,
            corked: AtomicBool::new(false),
            blocked: Notify::new(),
        }
    }

    /// The connection that replies leave by.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Whether no reply reaches the peer any more: it was given up, or has closed or reset the
    /// connection. One that has ended its own side alone still gets its replies.
    pub fn has_lost_peer(&self) -> bool {
        self.lock().broken || self.transport.has_hung_up()
    }

    /// Waits until the peer has acknowledged more of the replies than now, or all. `false` if it is
    /// lost, or acknowledges nothing for as long as a full stream may stay unread: not for long if
    /// others want the memory that its next call holds (`holds_memory`). Runs on any thread, with
    /// the timers of `timers`.
    pub async fn reach_peer(&self, holds_memory: bool, timers: &Handle) -> bool {
        let (transport, began) = (&self.transport, Instant::now());
        // A stream that does not know them is taken for one that has none left.
        let acknowledged = || transport.acknowledged_bytes().unwrap_or(u64::MAX);
        let is_all_acknowledged = || transport.unacknowledged_bytes().unwrap_or(0) == 0;
        let before = acknowledged();
        loop {
            let is_reached = is_all_acknowledged() || acknowledged() > before;
            let is_wanted = holds_memory && self.buffers.has_waiters_for(self.client);
            let at_most = if is_wanted { WINDOW } else { STALL_MAX };
            if self.has_lost_peer() || began.elapsed() > at_most {
                return false;
            }
            if is_reached {
                return true;
            }
            let sleep = {
                let _entered = timers.enter();
                Box::pin(tokio::time::sleep(ACKNOWLEDGEMENT_INTERVAL))
            };
            sleep.await;
        }
    }

    /// Sends a reply, or leaves it to the current sender, or to [`flush`](Self::flush).
    pub fn send(self: &Arc<Self>, reply: Reply) {
        let is_short = reply.len() < CORKED_BYTES_MAX;
        {
            let mut state = self.lock();
            if state.broken {
                return;
            }
            state.queued_bytes += reply.len() as u64;
            reply.ends_at(state.queued_bytes);
            state.waiting.push_back(reply);
            let others_follow = self.corked.load(Ordering::Relaxed);
            let is_full = state.waiting.len() >= BATCH_REPLIES_MAX;
            if state.sending || others_follow && is_short && !is_full {
                return;
            }
            state.sending = true;
        }
        let queue = Arc::clone(self);
        Engine::after_tasks_woken_here(move || queue.send_all());
    }

    /// Whether more replies follow at once, so that short ones wait for them, up to a batch. To be
    /// set by the connection's task, which calls [`flush`](Self::flush) before it waits for
    /// anything.
    pub fn cork(&self, others_follow: bool) {
        self.corked.store(others_follow, Ordering::Relaxed);
    }

    /// Sends what waits, unless another thread does, and ends the waiting for others.
    pub fn flush(&self) {
        // A reply queued before the lock is taken is sent here; a later one finds the flag cleared.
        self.cork(false);
        {
            let mut state = self.lock();
            if state.sending || state.broken || state.waiting.is_empty() {
                return;
            }
            state.sending = true;
        }
        self.send_all();
    }

    /// Only for the one that has set `sending`.
    fn send_all(&self) {
        match self.send_waiting() {
            Progress::Done => {}
            Progress::StreamFull | Progress::Broken => self.blocked.notify_one(),
        }
    }

    /// Ends the connection: what the peer sends is not this protocol.
    pub fn close(&self) {
        self.give_up();
        self.blocked.notify_one();
    }

    /// Goes on where the stream was full. Ends when the connection is broken.
    pub async fn run(&self) {
        loop {
            self.blocked.notified().await;
            self.drain().await;
            if self.lock().broken {
                return;
            }
        }
    }

    /// Sends as the stream takes it, until nothing waits or the peer is given up.
    async fn drain(&self) {
        let mut pace = Pace::new(Instant::now(), self.sent_bytes());
        let (mut stalled_at, mut stalled_since) = (self.sent_bytes(), Instant::now());
        while !self.lock().broken {
            let writable = poll_fn(|cx| self.transport.poll_writable(cx));
            if let Ok(Err(_)) = tokio::time::timeout(WINDOW, writable).await {
                self.give_up();
            }
            if matches!(self.send_waiting(), Progress::Done) {
                return;
            }
            let (now, sent) = (Instant::now(), self.sent_bytes());
            if sent > stalled_at {
                (stalled_at, stalled_since) = (sent, now);
            }
            let others_wait = || self.holds_memory() && self.buffers.has_waiters_for(self.client);
            if now - stalled_since > STALL_MAX || pace.is_too_slow(now, sent, others_wait) {
                self.give_up();
            }
        }
    }

    fn sent_bytes(&self) -> u64 {
        self.link.sent_bytes()
    }

    /// Whether a reply that waits keeps memory of the buffers.
    fn holds_memory(&self) -> bool {
        self.lock().waiting.iter().any(Reply::holds_memory)
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

    /// Sends until nothing waits or the stream is full. Only for the one that has set `sending`.
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
                    return Progress::StreamFull;
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
            let sent = match first.next_pipe() {
                Some((pipe, goes_on)) => {
                    self.transport.try_send_pipe(pipe, goes_on || others_follow)
                }
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

    /// Sends what is in memory, up to data in a pipe, as far as the stream takes it.
    fn try_send_memory(&self, batch: &VecDeque<Reply>) -> std::io::Result<usize> {
        let mut slices = Vec::with_capacity(3 * batch.len());
        let pipe_follows = batch.iter().any(|reply| reply.append_slices(&mut slices));
        self.transport.try_send(&slices, pipe_follows)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReplyQueue {
    fn drop(&mut self) {
        self.link.end();
    }
}

#[cfg(test)]
mod tests;
