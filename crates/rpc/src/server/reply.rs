//! A reply on its way out, in segments.

use std::io::IoSlice;
use std::sync::Arc;

use io::{Buffer, Payload, Pipe};
use proto::xdr::padded;

use super::delivery::Receipt;
use super::slots::Slot;
use crate::record::put_mark;

/// Zero bytes, as many as a word has.
const PADDING: [u8; 4] = [0; 4];

/// A reply ready to be sent.
pub struct Reply {
    /// The record mark, the reply header and the results up to the data, encoded.
    head: Vec<u8>,
    /// The data of a READ, or what else is long.
    data: Option<Payload>,
    /// The results behind the data and its padding.
    tail: Vec<u8>,
    /// Bytes already sent.
    sent: usize,
    /// Held until the reply is gone, so that a client that does not read its replies cannot ask on.
    _slot: Option<Slot>,
    /// Held until the reply is gone: memory of the budget for as much of `head` and `tail` as is
    /// long.
    _charge: Option<Box<Charge>>,
    /// Where the reply cache looks up whether it has arrived.
    receipt: Option<Arc<Receipt>>,
    _observation: Option<Observation>,
}

/// On the heap, as few replies have one, and all are moved some times.
struct Charge {
    _buffers: Vec<Buffer>,
}

/// Learns when replies are gone.
pub trait SendObserver: Send + Sync {
    /// The kernel has all of a reply, or the connection is lost. `token` is the one that
    /// [`Reply::observed`] was given.
    fn reply_is_gone(&self, token: u64);
}

/// Notifies its observer when it is dropped.
struct Observation {
    observer: Arc<dyn SendObserver>,
    token: u64,
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.observer.reply_is_gone(self.token);
    }
}

/// A part of a reply, which is sent from where it lies.
enum Segment<'a> {
    Memory(&'a [u8]),
    /// The bytes that are in a pipe, or were.
    Pipe(usize),
}

impl Segment<'_> {
    /// Its length in bytes, sent or not.
    fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::Pipe(len) => *len,
        }
    }
}

impl Reply {
    /// A reply from its head, which begins with [`crate::record::MARK_ROOM`], and the data that
    /// follows it.
    ///
    /// # Panics
    /// It has 2 GiB or more.
    pub fn new(head: Vec<u8>, data: Option<Payload>) -> Self {
        Self::with_tail(head, data, Vec::new())
    }

    /// As [`Self::new`], with results that follow the data.
    ///
    /// # Panics
    /// It has 2 GiB or more.
    pub fn with_tail(mut head: Vec<u8>, data: Option<Payload>, tail: Vec<u8>) -> Self {
        put_mark(&mut head, padded(data.as_ref().map_or(0, Payload::len)) + tail.len())
            .expect("a reply is shorter than a fragment may be");
        Self {
            head,
            data,
            tail,
            sent: 0,
            _slot: None,
            _charge: None,
            receipt: None,
            _observation: None,
        }
    }

    /// The same reply, which keeps `slot` from the client's next call until it is gone.
    pub fn holding(self, slot: Slot) -> Self {
        Self { _slot: Some(slot), ..self }
    }

    /// The same reply, which keeps this memory of the budget until it is gone, because it is long
    /// itself.
    pub fn charged(self, charge: Vec<Buffer>) -> Self {
        let charge = (!charge.is_empty()).then(|| Box::new(Charge { _buffers: charge }));
        Self { _charge: charge, ..self }
    }

    /// The same reply, whose place among the bytes of the connection goes to `receipt`.
    pub fn with_receipt(self, receipt: Option<Arc<Receipt>>) -> Self {
        Self { receipt, ..self }
    }

    /// The same reply, whose end `observer` learns. `token` is for the observer, which so needs no
    /// memory for each reply.
    pub fn observed(self, observer: Arc<dyn SendObserver>, token: u64) -> Self {
        Self { _observation: Some(Observation { observer, token }), ..self }
    }

    /// Its length on the wire, with the record mark.
    pub fn bytes(&self) -> u64 {
        self.len() as u64
    }

    /// Notes that it ends with the byte `end` of its connection.
    pub(super) fn ends_at(&self, end: u64) {
        if let Some(receipt) = &self.receipt {
            receipt.ends_at(end);
        }
    }

    /// Head, data, the zero bytes that fill up the last word of the data (RFC 4506 §4.10), and
    /// tail.
    fn segments(&self) -> [Segment<'_>; 4] {
        let (data, padding) = match &self.data {
            None => (Segment::Memory(&[]), 0),
            Some(data) => {
                let segment = data.in_memory().map_or(Segment::Pipe(data.len()), Segment::Memory);
                (segment, padded(data.len()) - data.len())
            }
        };
        let (head, padding) = (Segment::Memory(&self.head), Segment::Memory(&PADDING[..padding]));
        [head, data, padding, Segment::Memory(&self.tail)]
    }

    /// Its length in bytes, with the record mark.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, |data| padded(data.len())) + self.tail.len()
    }

    /// Whether it keeps memory of the budget.
    pub(super) fn holds_memory(&self) -> bool {
        let data_is_in_memory = self.data.as_ref().is_some_and(|data| data.in_memory().is_some());
        data_is_in_memory || self._charge.is_some()
    }

    /// Bytes that are still to be sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.len() - self.sent
    }

    /// Notes that `bytes` more are gone.
    pub(super) fn add_sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    /// Appends what is still to be sent, up to data in a pipe. Returns whether a pipe comes next.
    pub(super) fn append_slices<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>) -> bool {
        let mut end = 0;
        for segment in self.segments() {
            let start = end;
            end += segment.len();
            if self.sent < end {
                let Segment::Memory(bytes) = segment else { return true };
                slices.push(IoSlice::new(&bytes[self.sent.saturating_sub(start)..]));
            }
        }
        false
    }

    /// The pipe whose data comes next, and whether a part of the reply follows it.
    pub(super) fn next_pipe(&mut self) -> Option<(&mut Pipe, bool)> {
        if self.sent < self.head.len() {
            return None;
        }
        let data = self.data.as_mut()?;
        let goes_on = padded(data.len()) > data.len() || !self.tail.is_empty();
        Some((data.unsent_pipe()?, goes_on))
    }
}
