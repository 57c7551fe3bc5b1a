//! Receives records (RFC 5531 §11), and the payload of a call at its place in memory.
//!
//! The program finds the payload: it is asked with the first bytes of the head, which is the record
//! mark, the RPC header and the arguments up to the payload ([`Layout`]). The payload is then
//! received straight into a pool buffer, at an address that is congruent to its file offset modulo
//! [`BUFFER_ALIGN`]: data that is aligned in the file is aligned in memory, and direct I/O needs no
//! copy. The heads of a client's WRITEs have the same length, so after the first one exactly that
//! many bytes are read from the socket, and no data with them.
//!
//! ```text
//!   | mark | RPC header, arguments, data length |              data              | pad |
//!   '-------------- Record::head ---------------'------- Record::payload --------'
//! ```

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use io::{BUFFER_ALIGN, Buffer, BufferPool, ClientId, DeviceNumber, Holder, WriteData};
use proto::oncrpc::{CREDENTIAL_AT, RecordMark};
use tokio::time::{Instant, Sleep};

use super::pace::{Pace, WINDOW};
use super::peer_wait::PeerWait;
use super::slots::Slots;
use super::source::Source;
use super::staging::{STAGING_BYTES, Staging};
use crate::record::{Fragments, MARK_ROOM, Next, TooLong};

/// The longest head that is kept. Calls without a payload are all head; the longest of these carry
/// two path names (RENAME, SYMLINK), four kilobytes each at most.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long a peer may take between two parts of one record.
const STALL_MAX: Duration = Duration::from_secs(30);
/// While calls are at work, their end is looked for so often within the time that a connection may
/// be idle, which begins then.
const BUSY_CHECKS: u32 = 8;

/// The division of a record into head and payload, as far as the received bytes show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All of it is head.
    Head,
    /// The head has at least this many bytes, more than were received: the layout is determined
    /// then.
    HeadUntil(usize),
    /// The head ends, and `len` bytes of payload and their padding follow.
    Payload {
        /// Bytes of the head in front of it, no more than there are.
        head_bytes: usize,
        /// Bytes of it.
        len: u32,
        /// Where in a file the payload belongs.
        offset: u64,
        /// The device of that file, whose share of the memory the payload takes; (0, 0) for none.
        device: DeviceNumber,
        /// The head continues behind the payload. Otherwise nothing may follow.
        has_tail: bool,
    },
}

/// One received call.
pub struct Record {
    /// The message without the payload, of which the tail follows at once. Cut at
    /// `HEAD_BYTES_MAX`: the rest is counted as trailing.
    pub head: Vec<u8>,
    /// `None` when there is none, or more than the server takes.
    pub payload: Option<WriteData>,
    /// Bytes of the payload that were received with the head, and moved to their place.
    pub moved_bytes: usize,
    /// Bytes that followed where the record should have ended.
    pub trailing_bytes: u64,
    /// Length of the message as it came, all of the above together, whatever its words claim.
    pub bytes: u64,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The stream failed.
    #[error("the socket failed: {0}")]
    Socket(#[from] std::io::Error),
    /// The stream ended within a record.
    #[error("the peer closed the connection within a record")]
    Cut,
    /// No call came for so long. This is how clients leave that do not close their connections.
    #[error("no call for {} seconds", .0.as_secs())]
    Idle(Duration),
    /// Nothing came for so long within a record.
    #[error("the peer sent nothing for {} seconds", .0.as_secs())]
    Silent(Duration),
    /// A record comes too slowly while other calls wait for the memory that it holds.
    #[error("the peer sends data too slowly while other calls wait for memory")]
    TooSlow,
    /// The marks announce more than any call may have.
    #[error("a record is longer than {record_bytes_max} bytes")]
    TooLong {
        /// The length of the longest record that a call may have.
        record_bytes_max: u64,
    },
    /// A peer could send these without end.
    #[error("an empty fragment that is not the last of its record")]
    EmptyFragment,
}

/// The part of a record that comes while the record holds a buffer.
struct Held {
    pace: Pace,
    /// Bytes received so far, marks included.
    bytes: u64,
}

/// The receiving side of a connection over a stream of bytes.
pub struct Receiver<S> {
    stream: S,
    alarm: Alarm,
    /// Whose share of the buffers payloads take.
    client: ClientId,
    buffers: Arc<BufferPool>,
    /// How long the connection may be idle between two calls.
    idle_timeout: Duration,
    /// It is not idle while one of its calls is at work.
    slots: Arc<Slots>,
    staging: Staging,
    /// The longest payload of the current record.
    payload_bytes_max: u32,
    /// Of the current record.
    fragments: Fragments,
    /// Of its payload.
    moved_bytes: usize,
    /// Set while it holds a buffer.
    held: Option<Held>,
    /// The length of the mark and the head of the last call if a payload followed them; else 0.
    expected_bytes: usize,
}

impl<S: Source> Receiver<S> {
    /// Of a connection of `client`, whose waits for the peer are noted in `peer_wait`. It may be
    /// idle for `idle_timeout` between two calls, of which those that are at work have `slots`.
    pub fn new(
        stream: S,
        client: ClientId,
        buffers: Arc<BufferPool>,
        peer_wait: Arc<PeerWait>,
        idle_timeout: Duration,
        slots: Arc<Slots>,
    ) -> Self {
        Self {
            stream,
            alarm: Alarm::new(idle_timeout, peer_wait),
            client,
            buffers,
            idle_timeout,
            slots,
            staging: Staging::default(),
            payload_bytes_max: 0,
            fragments: Fragments::new(0),
            moved_bytes: 0,
            held: None,
            expected_bytes: 0,
        }
    }

    /// The next call; `None` when the peer closed the connection between two. `payload_bytes_max`
    /// is asked for the longest payload of the call when its first bytes are there. `layout` is
    /// called when the first [`CREDENTIAL_AT`] bytes of the head are there, and again as it
    /// requests; it is shown all that has come, which may be more than the head.
    ///
    /// # Errors
    /// Any of [`ReceiveError`]; the connection is unusable then.
    pub async fn next(
        &mut self,
        payload_bytes_max: impl FnOnce() -> u32,
        mut layout: impl FnMut(&[u8]) -> Layout,
    ) -> Result<Option<Record>, ReceiveError> {
        if !self.begin_record(payload_bytes_max).await? {
            return Ok(None);
        }
        let mut head = Vec::with_capacity(256);
        let mut payload = None;
        // A head in front of a payload is read to the byte, so that no data is read with it.
        let mut is_exact = std::mem::take(&mut self.expected_bytes) > 0;
        // Mostly the whole head is staged: then `layout` is called once.
        let mut found = match self.staged() {
            staged if staged.len() < CREDENTIAL_AT => Layout::HeadUntil(CREDENTIAL_AT),
            staged => layout(staged),
        };
        loop {
            match found {
                Layout::HeadUntil(len) if head.len() < len.min(HEAD_BYTES_MAX) => {
                    let wanted = len.min(HEAD_BYTES_MAX);
                    self.extend(&mut head, wanted, is_exact || wanted > CREDENTIAL_AT).await?;
                    if head.len() < wanted {
                        break;
                    }
                    found = layout(&head);
                    is_exact = true;
                }
                Layout::HeadUntil(_) => break,
                Layout::Head => {
                    self.extend(&mut head, HEAD_BYTES_MAX, false).await?;
                    break;
                }
                Layout::Payload { head_bytes, len, offset, device, has_tail } => {
                    debug_assert!(head.len() <= head_bytes, "layout asked for the payload as head");
                    self.extend(&mut head, head_bytes, true).await?;
                    self.expected_bytes = RecordMark::BYTES + head.len();
                    payload = self.receive_payload(device, len, offset).await?;
                    if has_tail {
                        // To the byte: the data of the next call must not be read with it.
                        self.extend(&mut head, HEAD_BYTES_MAX, true).await?;
                    }
                    break;
                }
            }
        }
        let trailing_bytes = self.discard_rest().await?;
        self.held = None;
        self.alarm.peer_wait.end();
        let (moved_bytes, bytes) = (self.moved_bytes, self.fragments.bytes());
        Ok(Some(Record { head, payload, moved_bytes, trailing_bytes, bytes }))
    }

    /// Whether the beginning of the next record was received already.
    pub fn has_more(&self) -> bool {
        !self.staging.is_empty()
    }

    /// Waits for a record and reads its first mark.
    async fn begin_record(
        &mut self,
        payload_bytes_max: impl FnOnce() -> u32,
    ) -> Result<bool, ReceiveError> {
        self.moved_bytes = 0;
        if self.staging.is_empty() {
            let limit = match self.expected_bytes {
                0 => STAGING_BYTES,
                expected => expected,
            };
            match self.stage(limit).await {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                // Some clients end a connection by dropping it.
                Err(ReceiveError::Socket(error)) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(false);
                }
                Err(ReceiveError::Silent(patience)) => return Err(ReceiveError::Idle(patience)),
                Err(error) => return Err(error),
            }
        }
        self.payload_bytes_max = payload_bytes_max();
        let record_bytes_max = u64::from(self.payload_bytes_max) + HEAD_BYTES_MAX as u64;
        self.fragments = Fragments::new(record_bytes_max);
        self.read_mark().await?;
        Ok(true)
    }

    async fn read_mark(&mut self) -> Result<(), ReceiveError> {
        let (mut bytes, mut have) = (MARK_ROOM, 0);
        while have < RecordMark::BYTES {
            if self.staging.is_empty() {
                self.stage_more(RecordMark::BYTES - have).await?;
            }
            have += self.staging.take(&mut bytes[have..]);
        }
        let mark = RecordMark::from_bytes(bytes);
        if mark.len == 0 && !mark.last {
            return Err(ReceiveError::EmptyFragment);
        }
        let too_long =
            |TooLong { bytes_max, .. }| ReceiveError::TooLong { record_bytes_max: bytes_max };
        self.fragments.take_mark(mark).map_err(too_long)
    }

    /// The bytes of the record that come next, behind a mark if one is first; 0 at the record's
    /// end.
    async fn bytes_next(&mut self) -> Result<usize, ReceiveError> {
        loop {
            match self.fragments.next() {
                Next::Mark => self.read_mark().await?,
                Next::Bytes(len) => return Ok(len),
                Next::End => return Ok(0),
            }
        }
    }

    /// The bytes of the current fragment that are staged.
    fn staged(&self) -> &[u8] {
        let staged = self.staging.as_slice();
        match self.fragments.next() {
            Next::Bytes(left) => &staged[..staged.len().min(left)],
            Next::Mark | Next::End => &[],
        }
    }

    /// Appends bytes of the record until `head` is `len` long or the record ends. `is_exact` asks
    /// no more of the socket than that.
    async fn extend(
        &mut self,
        head: &mut Vec<u8>,
        len: usize,
        is_exact: bool,
    ) -> Result<(), ReceiveError> {
        while head.len() < len {
            let wanted = (len - head.len()).min(self.bytes_next().await?);
            if wanted == 0 {
                break;
            }
            if self.staging.is_empty() {
                self.stage_more(if is_exact { wanted } else { STAGING_BYTES }).await?;
            }
            let staged = self.staging.as_slice();
            let taken = wanted.min(staged.len());
            head.extend_from_slice(&staged[..taken]);
            self.staging.skip(taken);
            self.fragments.take(taken);
        }
        Ok(())
    }

    /// Receives `len` bytes into a pool buffer, and skips their padding. `None` when the record
    /// ends before they do, or when they are not accepted.
    async fn receive_payload(
        &mut self,
        device: DeviceNumber,
        len: u32,
        offset: u64,
    ) -> Result<Option<WriteData>, ReceiveError> {
        if len > self.payload_bytes_max {
            self.discard_rest().await?;
            return Ok(None);
        }
        if len == 0 {
            return Ok(None);
        }
        let len = usize::try_from(len).expect("checked against the limit");
        let start = usize::try_from(offset % BUFFER_ALIGN as u64).expect("below a page");
        let padded = len.next_multiple_of(4);
        self.alarm.peer_wait.end();
        // Waiting here stops the reading of this stream, and TCP makes the client wait.
        let holder = Holder { client: self.client, device };
        let taken = self.buffers.take(holder, start + padded).await;
        let Ok(mut buffer) = taken else { return Ok(None) };
        // Others wait for it until the record is there to its end.
        self.held = Some(Held { pace: Pace::new(Instant::now().into_std(), 0), bytes: 0 });
        let received = self.fill(&mut buffer, start, padded).await?;
        Ok((received == padded).then(|| WriteData::new(buffer, start, len)))
    }

    /// Receives `len` bytes of the record into the buffer, or what the record has left.
    async fn fill(
        &mut self,
        buffer: &mut Buffer,
        start: usize,
        len: usize,
    ) -> Result<usize, ReceiveError> {
        let mut filled = 0;
        while filled < len {
            let next = self.bytes_next().await?;
            let wanted = (len - filled).min(next);
            if wanted == 0 {
                break;
            }
            let target = &mut buffer.as_mut_slice()[start + filled..][..wanted];
            let taken = self.take_data(target, next - wanted).await?;
            filled += taken;
            self.fragments.take(taken);
        }
        Ok(filled)
    }

    /// Takes data of the record, staged or from the stream. `behind` bytes of the record follow,
    /// which are staged if they are received with it.
    async fn take_data(&mut self, target: &mut [u8], behind: usize) -> Result<usize, ReceiveError> {
        if self.staging.is_empty() {
            return self
                .receive(|stream, staging, cx| staging.poll_fill_behind(stream, cx, target, behind))
                .await;
        }
        let taken = self.staging.take(target);
        self.moved_bytes += taken;
        Ok(taken)
    }

    /// Skips to the end of the record; returns the bytes skipped.
    async fn discard_rest(&mut self) -> Result<u64, ReceiveError> {
        let mut discarded = 0;
        loop {
            let left = self.bytes_next().await?;
            if left == 0 {
                return Ok(discarded);
            }
            if self.staging.is_empty() {
                self.stage_more(left).await?;
            }
            let skipped = self.staging.as_slice().len().min(left);
            self.staging.skip(skipped);
            self.fragments.take(skipped);
            discarded += skipped as u64;
        }
    }

    /// Reads at most `limit` bytes of the record into the empty staging area.
    async fn stage_more(&mut self, limit: usize) -> Result<(), ReceiveError> {
        self.receive(|stream, staging, cx| staging.poll_fill(stream, cx, limit)).await.map(drop)
    }

    /// Receives bytes of the record by `read`, one at least. While the record holds a buffer, the
    /// peer has to keep up a pace. It is judged when there is nothing to be read, for what has come
    /// waited for this thread.
    async fn receive(
        &mut self,
        mut read: impl FnMut(&mut S, &mut Staging, &mut Context<'_>) -> Poll<std::io::Result<usize>>,
    ) -> Result<usize, ReceiveError> {
        let Self { stream, alarm, staging, held, buffers, client, .. } = self;
        let mut silent = Duration::ZERO;
        loop {
            let patience = if held.is_some() { WINDOW } else { STALL_MAX };
            let mut is_too_slow = false;
            let read_or_judge = |cx: &mut Context<'_>| {
                let read = read(stream, staging, cx);
                if read.is_pending()
                    && let Some(Held { pace, bytes }) = held
                {
                    let now = Instant::now().into_std();
                    let others_wait = || buffers.has_waiters_for(*client);
                    is_too_slow = pace.is_too_slow(now, *bytes, others_wait);
                }
                if is_too_slow { Poll::Ready(Ok(0)) } else { read }
            };
            match alarm.wait(patience, || false, read_or_judge).await {
                Ok(0) if is_too_slow => return Err(ReceiveError::TooSlow),
                Ok(0) => return Err(ReceiveError::Cut),
                Ok(received) => {
                    if let Some(held) = held {
                        held.bytes += received as u64;
                    }
                    return Ok(received);
                }
                Err(ReceiveError::Silent(_)) => {}
                Err(error) => return Err(error),
            }
            silent += patience;
            if silent >= STALL_MAX {
                return Err(ReceiveError::Silent(STALL_MAX));
            }
        }
    }

    /// Reads at most `limit` bytes from the stream into the empty staging area, between two
    /// records.
    async fn stage(&mut self, limit: usize) -> Result<usize, ReceiveError> {
        let Self { stream, alarm, staging, idle_timeout, slots, .. } = self;
        let is_busy = || slots.calls() > 0;
        alarm.wait(*idle_timeout, is_busy, |cx| staging.poll_fill(stream, cx, limit)).await
    }
}

/// Bounds how long a read may wait.
///
/// A timer of its own for each read would cost more than a small call. This one is not reset by
/// each call: when it fires, the real waiting time is computed and the timer set anew.
struct Alarm {
    timer: Pin<Box<Sleep>>,
    peer_wait: Arc<PeerWait>,
}

impl Alarm {
    fn new(patience: Duration, peer_wait: Arc<PeerWait>) -> Self {
        Self { timer: Box::pin(tokio::time::sleep(patience)), peer_wait }
    }

    /// Polls `read` until it is ready, waiting at most `patience`, from when `is_busy` is not.
    async fn wait(
        &mut self,
        patience: Duration,
        is_busy: impl Fn() -> bool,
        mut read: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<usize>>,
    ) -> Result<usize, ReceiveError> {
        let period = |is_busy| if is_busy { patience / BUSY_CHECKS } else { patience };
        let (mut deadline, mut was_busy) = (None, false);
        poll_fn(|cx| {
            if let Poll::Ready(result) = read(cx) {
                return Poll::Ready(result.map_err(Into::into));
            }
            let deadline = deadline.get_or_insert_with(|| {
                let now = Instant::now();
                self.peer_wait.begin(now);
                was_busy = is_busy();
                now + period(was_busy)
            });
            if self.timer.deadline() > *deadline {
                self.timer.as_mut().reset(*deadline);
            }
            while self.timer.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                if now >= *deadline {
                    if !was_busy {
                        return Poll::Ready(Err(ReceiveError::Silent(patience)));
                    }
                    was_busy = is_busy();
                    *deadline = now + period(was_busy);
                }
                self.timer.as_mut().reset(*deadline);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests;
