//! The calls of one connection that await their replies, in the order in which they were handed
//! over. No I/O and no clock: the connection supplies both.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::time::Duration;

use bytes::{Buf, Bytes};
use proto::oncrpc::RecordMark;
use proto::xdr::padded;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Error, Result};
use crate::record::put_mark;

/// Calls on the wire of one connection at a time, at most. Those behind them wait in line: a server
/// works on no more of a connection at once, and each holds memory for its reply.
pub(super) const IN_FLIGHT_MAX: usize = 128;
/// A batch is not made longer than this, so that a call counts as sent only shortly before it is.
const BATCH_BYTES: usize = 1 << 20;
/// Where the transaction id is in a message's head.
const XID_AT: usize = RecordMark::BYTES;

/// A call that has no transaction id yet.
#[derive(Debug)]
pub(super) struct Draft {
    head: Vec<u8>,
    payload: Bytes,
}

impl Draft {
    /// Takes an encoded call whose first four bytes are left for the record mark, and the opaque
    /// data behind it.
    ///
    /// # Errors
    /// [`Error::TooLong`]: a record cannot be that long.
    pub(super) fn new(mut head: Vec<u8>, payload: Bytes) -> Result<Self> {
        put_mark(&mut head, padded(payload.len()))?;
        Ok(Self { head, payload })
    }

    pub(super) fn with_xid(mut self, xid: u32) -> Message {
        self.head[XID_AT..XID_AT + 4].copy_from_slice(&xid.to_be_bytes());
        Message { head: self.head.into(), payload: self.payload }
    }
}

/// A call as it goes to the wire: mark, header and arguments, and a payload that is not copied.
/// Clones share the bytes.
#[derive(Clone, Debug)]
pub(super) struct Message {
    head: Bytes,
    payload: Bytes,
}

impl Message {
    /// The same call, to be made anew.
    pub(super) fn draft(&self) -> Draft {
        Draft { head: self.head.to_vec(), payload: self.payload.clone() }
    }
}

/// The transaction id of the call with this number.
pub(super) fn xid(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).expect("32 bits are left")
}

/// The table of a connection. It holds no more calls than there are callers that wait: who goes
/// away takes the call along.
///
/// Numbers only grow, so a call's place in the order and its transaction id are one thing: the id
/// is the number's low half.
#[derive(Debug)]
pub(super) struct Calls {
    waiting: BTreeMap<u64, Waiting>,
    /// Calls with numbers below this were sent over the present connection; none of the others was.
    unsent_from: u64,
    /// How many of the waiting were sent over the present connection.
    in_flight: usize,
    /// How many calls were sent over the present connection and have no reply, also those whose
    /// callers have gone.
    owed: usize,
    /// When the youngest of all calls that were answered was sent.
    answered_sent: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    message: Message,
    reply: oneshot::Sender<Result<Bytes>>,
    handed_over: Instant,
    /// When it went to the present connection.
    sent: Option<Instant>,
}

impl Calls {
    pub(super) const fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            unsent_from: 0,
            in_flight: 0,
            owed: 0,
            answered_sent: None,
        }
    }

    /// Puts a call at the end of the line. `number` is larger than all before it.
    pub(super) fn add(
        &mut self,
        number: u64,
        message: Message,
        now: Instant,
    ) -> oneshot::Receiver<Result<Bytes>> {
        let (reply, receiver) = oneshot::channel();
        let waiting = Waiting { message, reply, handed_over: now, sent: None };
        let earlier = self.waiting.insert(number, waiting);
        assert!(earlier.is_none(), "no number is given twice");
        receiver
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next calls to be sent, as many as the window lets go. Empty when there are none.
    pub(super) fn next_batch(&mut self, now: Instant) -> Batch {
        let mut batch = Batch::default();
        for (number, waiting) in self.waiting.range_mut(self.unsent_from..) {
            if self.in_flight == IN_FLIGHT_MAX || batch.remaining >= BATCH_BYTES {
                break;
            }
            waiting.sent = Some(now);
            batch.push(&waiting.message);
            self.in_flight += 1;
            self.owed += 1;
            self.unsent_from = number + 1;
        }
        batch
    }

    /// Gives a reply to its call. `false` when no call that was sent awaits it: it was cancelled,
    /// or answered before.
    pub(super) fn answer(&mut self, xid_of_reply: u32, reply: Result<Bytes>) -> bool {
        // A peer that makes up replies harms its own calls alone.
        self.owed = self.owed.saturating_sub(1);
        let Some((&first, _)) = self.waiting.first_key_value() else { return false };
        // All numbers in the table lie within 2^32 of the first, so the low half distinguishes
        // them.
        let number = first + u64::from(xid_of_reply.wrapping_sub(xid(first)));
        if number >= self.unsent_from {
            return false;
        }
        let Some(waiting) = self.take(number) else { return false };
        self.answered_sent = self.answered_sent.max(waiting.sent);
        // The caller may have gone in this moment.
        let _ = waiting.reply.send(reply);
        true
    }

    /// Drops a call whose caller no longer waits. `false` when it is not there any more.
    pub(super) fn forget(&mut self, number: u64) -> bool {
        self.take(number).is_some()
    }

    /// The connection broke: all that is unanswered goes out again over the next, in its order.
    pub(super) fn send_all_again(&mut self) {
        self.unsent_from = 0;
        self.in_flight = 0;
        self.owed = 0;
        for waiting in self.waiting.values_mut() {
            waiting.sent = None;
        }
    }

    /// Whether the peer may have calls of the present connection that it has not read, or owes
    /// replies over it.
    pub(super) fn is_owed(&self) -> bool {
        self.owed > 0
    }

    /// Since when the present connection owes a reply.
    pub(super) fn oldest_sent(&self) -> Option<Instant> {
        // Calls are sent in the order of the table.
        self.waiting.first_key_value()?.1.sent
    }

    /// Whether a call was answered that was sent so much later than the oldest.
    pub(super) fn oldest_is_overtaken(&self, by: Duration) -> bool {
        let both = self.oldest_sent().zip(self.answered_sent);
        both.is_some_and(|(oldest, answered)| oldest + by <= answered)
    }

    /// Since when the longest waiting call waits.
    pub(super) fn oldest_handed_over(&self) -> Option<Instant> {
        Some(self.waiting.first_key_value()?.1.handed_over)
    }

    /// Fails all calls that were handed over at `until` or before.
    pub(super) fn fail_older(&mut self, until: Instant, error: &Error) {
        while let Some(first) = self.waiting.first_entry()
            && first.get().handed_over <= until
        {
            let number = *first.key();
            let waiting = self.take(number).expect("it is the first of the table");
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        if waiting.sent.is_some() {
            self.in_flight -= 1;
        }
        Some(waiting)
    }
}

/// Whole records on their way out, written with as few system calls as the kernel allows. It holds
/// what it sends: a caller that goes away does not cut a record short.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// None of them is empty.
    slices: VecDeque<Bytes>,
    remaining: usize,
}

impl Batch {
    fn push(&mut self, message: &Message) {
        let pad = padded(message.payload.len()) - message.payload.len();
        let pad = Bytes::from_static(&[0; 3]).slice(..pad);
        for slice in [message.head.clone(), message.payload.clone(), pad] {
            if !slice.is_empty() {
                self.remaining += slice.len();
                self.slices.push_back(slice);
            }
        }
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.slices.front().map_or(&[], Bytes::as_ref)
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [IoSlice<'a>]) -> usize {
        let filled = to.iter_mut().zip(&self.slices).map(|(to, from)| *to = IoSlice::new(from));
        filled.count()
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining -= count;
        while count > 0 {
            let first = self.slices.front_mut().expect("no more is written than there is");
            let step = count.min(first.len());
            first.advance(step);
            count -= step;
            if first.is_empty() {
                self.slices.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests;
