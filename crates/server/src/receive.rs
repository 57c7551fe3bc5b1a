//! From socket bytes to records (RFC 5531 §11), with the data of a WRITE put where it belongs.
//!
//! A call's head (record mark, RPC header, arguments up to the data) is read and parsed first; then
//! the data of a WRITE is received straight into a pool buffer, at the address that is congruent to
//! its file offset modulo [`BUFFER_ALIGN`]: what is aligned in the file is aligned in memory, and
//! direct I/O needs no copy. The heads of one client's WRITEs are all of one length, so after the
//! first one exactly that much is asked of the socket, and no data comes along with it.
//!
//! ```text
//!   | mark | RPC header, arguments, data length |              data              | pad |
//!   '-------------- Record::head ---------------'------- Record::payload --------'
//! ```

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use io::{BUFFER_ALIGN, Buffer, BufferPool};
use proto::nfs3::{self, WriteHead};
use proto::oncrpc::{RPC_VERSION, RecordMark, decode_call};
use proto::xdr::{Decode, Reader};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, Sleep};

use crate::counters::{Counter, Counters};
use crate::pace::{Pace, WINDOW};
use crate::payload::Payload;
use crate::write_order::WriteOrder;

const RECORD_MARK_BYTES: usize = 4;
/// Socket bytes held before they are parsed: many small calls of a busy client at once.
const STAGING_BYTES: usize = 16 * 1024;
/// The longest head that is kept. Calls other than WRITE are all head; the longest of these carry
/// two path names (RENAME, SYMLINK), four kilobytes each at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a call up to and including the length of its credential's body.
const CALL_BYTES_MIN: usize = 32;
/// How long a peer may take between two parts of one record.
const STALL_MAX: Duration = Duration::from_secs(30);

/// One call as it came.
pub(crate) struct Record {
    /// The message without the data of a WRITE. Cut at `HEAD_BYTES_MAX`, where no valid call is as
    /// long: what is cut fails to decode.
    pub(crate) head: Vec<u8>,
    /// The data of a WRITE; `None` when there is none, or more than the server takes.
    pub(crate) payload: Option<Payload>,
    /// Bytes that followed where the arguments should have ended.
    pub(crate) trailing_bytes: u64,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("the socket failed: {0}")]
    Socket(#[from] std::io::Error),
    #[error("the peer closed the connection within a record")]
    Cut,
    #[error("the peer sent nothing for {} seconds", .0.as_secs())]
    Silent(Duration),
    #[error("the peer sends data so slowly that others wait for the memory it is meant for")]
    TooSlow,
    #[error("a record is longer than {record_bytes_max} bytes")]
    TooLong { record_bytes_max: u64 },
    #[error("a fragment of no bytes that is not the last")]
    EmptyFragment,
}

/// What a receiver may use.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// The longest data of a WRITE.
    pub(crate) transfer_bytes_max: u32,
    /// How long a connection may be idle between two calls.
    pub(crate) idle_timeout: Duration,
}

/// The receiving side of a connection.
pub(crate) struct Receiver {
    socket: OwnedReadHalf,
    alarm: Alarm,
    buffers: Arc<BufferPool>,
    counters: Arc<Counters>,
    write_order: Arc<WriteOrder>,
    limits: Limits,
    staging: Box<[u8]>,
    /// The part of `staging` that is filled and not yet taken.
    staged: std::ops::Range<usize>,
    /// Of the current fragment, not yet taken.
    fragment_left: u64,
    fragment_is_last: bool,
    /// Of the current record, announced so far.
    record_bytes: u64,
    /// The length of the last WRITE's mark and head; 0 after any other call.
    write_head_bytes: usize,
}

impl Receiver {
    pub(crate) fn new(
        socket: OwnedReadHalf,
        buffers: Arc<BufferPool>,
        counters: Arc<Counters>,
        write_order: Arc<WriteOrder>,
        limits: Limits,
    ) -> Self {
        Self {
            socket,
            alarm: Alarm::new(limits.idle_timeout),
            buffers,
            counters,
            write_order,
            limits,
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            staged: 0..0,
            fragment_left: 0,
            fragment_is_last: false,
            record_bytes: 0,
            write_head_bytes: 0,
        }
    }

    /// The next call; `None` when the peer closed the connection between two.
    ///
    /// # Errors
    /// Any of [`ReceiveError`]; the connection is of no more use then.
    pub(crate) async fn next(&mut self) -> Result<Option<Record>, ReceiveError> {
        if !self.begin_record().await? {
            return Ok(None);
        }
        let mut head = Vec::with_capacity(256);
        self.extend(&mut head, CALL_BYTES_MIN).await?;
        let payload = if is_write(&head) {
            self.receive_write(&mut head).await?
        } else {
            self.write_head_bytes = 0;
            self.extend(&mut head, HEAD_BYTES_MAX).await?;
            None
        };
        let trailing_bytes = self.discard_rest().await?;
        Ok(Some(Record { head, payload, trailing_bytes }))
    }

    /// Waits for a record and reads its first mark.
    async fn begin_record(&mut self) -> Result<bool, ReceiveError> {
        self.record_bytes = 0;
        self.fragment_is_last = false;
        if self.staged.is_empty() {
            let limit = match self.write_head_bytes {
                0 => STAGING_BYTES,
                expected => expected,
            };
            match self.stage(limit, self.limits.idle_timeout).await {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                // Some clients end a connection by dropping it.
                Err(ReceiveError::Socket(error)) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.read_mark().await?;
        Ok(true)
    }

    async fn read_mark(&mut self) -> Result<(), ReceiveError> {
        while self.staged.len() < RECORD_MARK_BYTES {
            self.stage_more(RECORD_MARK_BYTES - self.staged.len()).await?;
        }
        let at = self.staged.start;
        let bytes = self.staging[at..at + RECORD_MARK_BYTES].try_into().expect("four bytes");
        self.staged.start += RECORD_MARK_BYTES;
        let mark = RecordMark::from_bytes(bytes);
        if mark.len == 0 && !mark.last {
            return Err(ReceiveError::EmptyFragment);
        }
        self.fragment_left = mark.len.into();
        self.fragment_is_last = mark.last;
        self.record_bytes += self.fragment_left;
        let record_bytes_max = u64::from(self.limits.transfer_bytes_max) + HEAD_BYTES_MAX as u64;
        if self.record_bytes > record_bytes_max {
            return Err(ReceiveError::TooLong { record_bytes_max });
        }
        Ok(())
    }

    /// Steps to the next fragment when the current one is used up; `false` at the record's end.
    async fn in_record(&mut self) -> Result<bool, ReceiveError> {
        while self.fragment_left == 0 {
            if self.fragment_is_last {
                return Ok(false);
            }
            self.read_mark().await?;
        }
        Ok(true)
    }

    /// Appends bytes of the record until `head` is `len` long or the record ends.
    async fn extend(&mut self, head: &mut Vec<u8>, len: usize) -> Result<(), ReceiveError> {
        while head.len() < len && self.in_record().await? {
            let wanted = (len - head.len()).min(within(self.fragment_left));
            if self.staged.is_empty() {
                // A WRITE's head is asked for to the byte, lest data come along with it.
                let limit = if is_write(head) { wanted } else { STAGING_BYTES };
                self.stage_more(limit).await?;
            }
            let taken = wanted.min(self.staged.len());
            let from = self.staged.start;
            head.extend_from_slice(&self.staging[from..from + taken]);
            self.staged.start += taken;
            self.fragment_left -= taken as u64;
        }
        Ok(())
    }

    /// Reads the rest of a WRITE's head, and its data into a pool buffer.
    async fn receive_write(&mut self, head: &mut Vec<u8>) -> Result<Option<Payload>, ReceiveError> {
        loop {
            let needed = write_head_len(head);
            if head.len() >= needed.min(HEAD_BYTES_MAX) {
                break;
            }
            let before = head.len();
            self.extend(head, needed.min(HEAD_BYTES_MAX)).await?;
            if head.len() == before {
                return Ok(None);
            }
        }
        let Some(args) = decode_write_head(head) else { return Ok(None) };
        if self.write_order.is_late(&args.file, args.offset, args.count) {
            self.counters.add(Counter::WritesOutOfOrder, 1);
        }
        self.write_head_bytes = RECORD_MARK_BYTES + head.len();
        if args.data_len > self.limits.transfer_bytes_max {
            self.discard_rest().await?;
        }
        if args.data_len == 0 || args.data_len > self.limits.transfer_bytes_max {
            return Ok(None);
        }
        let len = usize::try_from(args.data_len).expect("checked against the limit");
        let start = usize::try_from(args.offset % BUFFER_ALIGN as u64).expect("below a page");
        let padded = len.next_multiple_of(4);
        // Waiting here stops the reading of this socket, and TCP makes the client wait.
        let Ok(mut buffer) = self.buffers.take(start + padded).await else { return Ok(None) };
        let received = self.fill(&mut buffer, start, padded).await?;
        self.counters.add(Counter::PayloadBytes, len as u64);
        Ok((received == padded).then(|| Payload::new(buffer, start, len)))
    }

    /// Receives `len` bytes of the record into the buffer, or what the record has left.
    async fn fill(
        &mut self,
        buffer: &mut Buffer,
        start: usize,
        len: usize,
    ) -> Result<usize, ReceiveError> {
        let began = Instant::now().into_std();
        let (mut pace, mut last_byte_at) = (Pace::new(began, 0), began);
        let mut filled = 0;
        while filled < len && self.in_record().await? {
            let wanted = (len - filled).min(within(self.fragment_left));
            let target = &mut buffer.as_mut_slice()[start + filled..][..wanted];
            let taken = self.take_data(target).await?;
            filled += taken;
            self.fragment_left -= taken as u64;
            if taken < wanted {
                let now = Instant::now().into_std();
                last_byte_at = if taken > 0 { now } else { last_byte_at };
                if now - last_byte_at > STALL_MAX {
                    return Err(ReceiveError::Silent(STALL_MAX));
                }
                if pace.is_too_slow(now, filled as u64, self.buffers.waiters() > 0) {
                    return Err(ReceiveError::TooSlow);
                }
            }
        }
        Ok(filled)
    }

    /// Takes data of the record, staged or from the socket; nothing when none comes for a while.
    async fn take_data(&mut self, target: &mut [u8]) -> Result<usize, ReceiveError> {
        if self.staged.is_empty() {
            return match self.alarm.read(&mut self.socket, target, WINDOW).await {
                Ok(0) => Err(ReceiveError::Cut),
                Err(ReceiveError::Silent(_)) => Ok(0),
                read => read,
            };
        }
        let taken = target.len().min(self.staged.len());
        let from = self.staged.start;
        target[..taken].copy_from_slice(&self.staging[from..from + taken]);
        self.staged.start += taken;
        self.counters.add(Counter::PayloadMovedBytes, taken as u64);
        Ok(taken)
    }

    /// Skips to the end of the record and says how much that was.
    async fn discard_rest(&mut self) -> Result<u64, ReceiveError> {
        let mut discarded = 0;
        while self.in_record().await? {
            if self.staged.is_empty() {
                self.stage_more(within(self.fragment_left)).await?;
            }
            let skipped = self.staged.len().min(within(self.fragment_left));
            self.staged.start += skipped;
            self.fragment_left -= skipped as u64;
            discarded += skipped as u64;
        }
        Ok(discarded)
    }

    async fn stage_more(&mut self, limit: usize) -> Result<(), ReceiveError> {
        match self.stage(limit, STALL_MAX).await? {
            0 => Err(ReceiveError::Cut),
            _ => Ok(()),
        }
    }

    /// Reads at most `limit` bytes more from the socket into the staging area.
    async fn stage(&mut self, limit: usize, patience: Duration) -> Result<usize, ReceiveError> {
        if self.staged.is_empty() {
            self.staged = 0..0;
        } else if self.staged.end == STAGING_BYTES {
            self.staging.copy_within(self.staged.clone(), 0);
            self.staged = 0..self.staged.len();
        }
        let end = STAGING_BYTES.min(self.staged.end + limit);
        let target = &mut self.staging[self.staged.end..end];
        let read = self.alarm.read(&mut self.socket, target, patience).await?;
        self.staged.end += read;
        Ok(read)
    }
}

/// Bounds how long a read may wait.
///
/// A timer of its own for each read would cost more than a small call. This one stays where it is
/// while calls come and go: only when it goes off is it looked at how long the read has really
/// waited, and the timer set anew.
struct Alarm {
    timer: Pin<Box<Sleep>>,
}

impl Alarm {
    fn new(patience: Duration) -> Self {
        Self { timer: Box::pin(tokio::time::sleep(patience)) }
    }

    /// Reads what there is into `target`, waiting at most `patience` for the first byte.
    async fn read(
        &mut self,
        socket: &mut OwnedReadHalf,
        target: &mut [u8],
        patience: Duration,
    ) -> Result<usize, ReceiveError> {
        let mut deadline = None;
        poll_fn(|cx| {
            let mut buffer = ReadBuf::new(target);
            if let Poll::Ready(result) = Pin::new(&mut *socket).poll_read(cx, &mut buffer) {
                return Poll::Ready(result.map(|()| buffer.filled().len()).map_err(Into::into));
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + patience);
            if self.timer.deadline() > deadline {
                self.timer.as_mut().reset(deadline);
            }
            while self.timer.as_mut().poll(cx).is_ready() {
                if Instant::now() >= deadline {
                    return Poll::Ready(Err(ReceiveError::Silent(patience)));
                }
                self.timer.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }
}

/// A length in memory terms; what does not fit is cut, for the caller takes a part of it anyway.
fn within(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// The four bytes at `at` of a call's head as a number.
pub(crate) fn word(head: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?))
}

/// Whether the call is NFSv3's WRITE, from the fixed first words of its header.
fn is_write(head: &[u8]) -> bool {
    const CALL: u32 = 0;
    let write = [CALL, RPC_VERSION, nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Write.code()];
    write.iter().enumerate().all(|(i, value)| word(head, 4 + 4 * i) == Some(*value))
}

/// How long the head of a WRITE is, as far as its bytes tell so far: each of the three lengths in it
/// (credential, verifier, file handle) says where the next one is.
fn write_head_len(head: &[u8]) -> usize {
    let mut end = CALL_BYTES_MIN;
    // Behind the credential: the verifier's flavor and length. Behind that: the handle's length.
    // Behind that: offset, count, stable_how and the length of the data.
    for fixed_behind in [8, 4, 8 + 4 + 4 + 4] {
        let Some(len) = word(head, end - 4) else { break };
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(HEAD_BYTES_MAX);
        end += len.next_multiple_of(4) + fixed_behind;
    }
    end
}

fn decode_write_head(head: &[u8]) -> Option<WriteHead> {
    let mut reader = Reader::new(head);
    decode_call(&mut reader).ok()?;
    let args = WriteHead::decode(&mut reader).ok()?;
    reader.finish().is_ok().then_some(args)
}

#[cfg(test)]
mod tests;
