//! The reply to a COMPOUND while it grows.

use io::{Buffer, Payload};
use proto::nfs4::{NFS4_OK, OperationCode, Status};
use proto::xdr::{Encode, Writer};

use super::{Outcome, Refused};

/// Data of READ, READDIR and READLINK that a reply carries in memory, where a slot has to keep it,
/// and of LISTXATTRS.
const INLINE_BYTES_MAX: usize = 8 * 1024;
/// Room that an operation needs to begin: the longest result of one that changes something.
pub(super) const RESULT_BYTES_MAX: usize = 256;
/// Bytes of a result beside its data: the operation, the status, and the most that stands around
/// the data, the cookie, the count and the end of LISTXATTRS.
const DATA_FRAME_BYTES: usize = 24;
/// The longest result in memory: a LOCK that is denied, with the name of the owner. Data is apart.
pub(super) const RESULT_BYTES_USUAL: usize = 1280;
/// Bytes of results that are charged at once.
const CHARGE_BYTES: usize = 8 * 1024;

/// The results of a COMPOUND: the first long data is sent from where it lies, between two parts.
pub(super) struct Results<'a> {
    head: &'a mut Writer,
    /// Where in `head` the results of the call begin.
    start: usize,
    payload: Option<Payload>,
    /// Behind the payload.
    tail: Writer,
    /// Memory of the budget in the place of long results in memory. It is not used itself.
    charge: Vec<Buffer>,
    /// The longest reply; its RPC header counts.
    bytes_max: usize,
    inline_left: usize,
    /// The slot has to keep the reply, so it has no payload.
    is_cached: bool,
    /// Results so far.
    count: u32,
}

impl<'a> Results<'a> {
    pub(super) fn new(head: &'a mut Writer) -> Self {
        let start = head.len();
        Self {
            head,
            start,
            payload: None,
            tail: Writer::new(),
            charge: Vec::new(),
            bytes_max: usize::MAX,
            inline_left: INLINE_BYTES_MAX,
            is_cached: false,
            count: 0,
        }
    }

    /// Bounds the reply by what the session takes, or keeps.
    pub(super) fn limit(&mut self, bytes_max: u32, is_cached: bool) {
        self.bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        self.is_cached = is_cached;
    }

    /// The bytes that still fit.
    pub(super) fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.len())
    }

    /// Charges the results that exceed `free_bytes`, `bytes` more included, to the budget. `take`
    /// gives memory of so many bytes. Returns false if there was none.
    pub(super) fn charge(
        &mut self,
        bytes: usize,
        free_bytes: usize,
        mut take: impl FnMut(usize) -> Option<Buffer>,
    ) -> bool {
        let wanted = (self.head.len() + self.tail.len() + bytes).min(self.bytes_max);
        while wanted > free_bytes + self.charge.len() * CHARGE_BYTES {
            let Some(buffer) = take(CHARGE_BYTES) else { return false };
            self.charge.push(buffer);
        }
        true
    }

    /// The status of a result that does not fit.
    pub(super) fn too_big(&self) -> Status {
        if self.is_cached { Status::RepTooBigToCache } else { Status::RepTooBig }
    }

    /// The bytes of data that an operation may return: in a payload, or in memory if the reply is
    /// to be kept. They leave room for the rest of the result and for one more operation. Call this
    /// before the result is begun: a begun result takes room itself.
    ///
    /// # Errors
    /// There is no room, or memory is held already: see [`Self::check_holds_none`].
    pub(super) fn data_room(&self) -> Outcome<usize> {
        self.check_holds_none()?;
        if self.sends_payload() { self.check_data(self.free()) } else { self.inline_room() }
    }

    /// Whether data that an operation returns is sent as a payload.
    pub(super) fn sends_payload(&self) -> bool {
        !self.is_cached
    }

    /// The bytes of data that an operation may return in memory. They leave the same room.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn inline_room(&self) -> Outcome<usize> {
        self.check_data(self.free().min(self.inline_left))
    }

    fn check_data(&self, room: usize) -> Outcome<usize> {
        if room == 0 { Err(self.too_big().into()) } else { Ok(room) }
    }

    /// Whole XDR units, as data is padded.
    fn free(&self) -> usize {
        self.room().saturating_sub(DATA_FRAME_BYTES + RESULT_BYTES_MAX) / 4 * 4
    }

    /// Checks that the reply holds no memory of the budget. To be called before waiting for some:
    /// calls that hold some while they wait for more would wait for each other.
    ///
    /// # Errors
    /// As for a result that does not fit: the client sends the operation again in another COMPOUND.
    pub(super) fn check_holds_none(&self) -> Outcome<()> {
        let holds_some = self.payload.is_some() || !self.charge.is_empty();
        if holds_some { Err(self.too_big().into()) } else { Ok(()) }
    }

    /// Where the next result goes.
    pub(super) fn writer(&mut self) -> &mut Writer {
        if self.payload.is_some() { &mut self.tail } else { self.head }
    }

    /// Appends the result of an operation; `encode` appends what stands behind the status of a
    /// success.
    ///
    /// # Errors
    /// The status that was appended: the COMPOUND ends with it.
    pub(super) fn put_with<T>(
        &mut self,
        operation: OperationCode,
        outcome: Outcome<T>,
        encode: impl FnOnce(T, &mut Self) -> Outcome<()>,
    ) -> Result<(), Status> {
        let (head, tail) = (self.head.len(), self.tail.len());
        let outcome = outcome.and_then(|value| {
            operation.encode(self.writer());
            self.writer().u32(NFS4_OK);
            encode(value, self)
        });
        let outcome = match outcome {
            Ok(()) if self.len() > self.bytes_max => Err(Refused::from(self.too_big())),
            outcome => outcome,
        };
        if let Err(Refused { status, .. }) = outcome {
            if self.payload.is_some() && tail == 0 && self.head.len() > head {
                self.payload = None;
            }
            self.head.truncate(head);
            self.tail.truncate(tail);
            operation.encode(self.writer());
            status.encode(self.writer());
        }
        self.count += 1;
        outcome.map_err(|refused| refused.status)
    }

    /// Puts `data` behind what was appended.
    pub(super) fn set_payload(&mut self, data: Payload) {
        debug_assert!(self.payload.is_none() && self.tail.is_empty());
        self.payload = Some(data);
    }

    /// Appends `data` as opaque data, in place of a payload.
    pub(super) fn put_inline(&mut self, data: &[u8]) {
        self.inline_left = self.inline_left.saturating_sub(data.len());
        self.writer().opaque(data);
    }

    /// Notes that so much data was appended in place of a payload.
    pub(super) fn note_inline(&mut self, bytes: usize) {
        self.inline_left = self.inline_left.saturating_sub(bytes);
    }

    /// The results so far.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The results from the beginning, if all of them are in memory.
    pub(super) fn in_memory(&self) -> Option<&[u8]> {
        self.payload.is_none().then(|| &self.head.as_slice()[self.start..])
    }

    /// Takes all results back, and puts `body` in their place.
    pub(super) fn replace(&mut self, body: &[u8]) {
        self.head.truncate(self.start);
        self.head.array(body);
    }

    /// Sets a word of the results' head, `at` bytes from its beginning.
    pub(super) fn patch(&mut self, at: usize, value: u32) {
        self.head.patch_u32(self.start + at, value);
    }

    /// The payload, what follows it, and what is charged for the rest.
    pub(super) fn finish(self) -> (Option<Payload>, Vec<u8>, Vec<Buffer>) {
        (self.payload, self.tail.into_vec(), self.charge)
    }

    /// The bytes of the reply so far.
    pub(super) fn len(&self) -> usize {
        let payload = self.payload.as_ref().map_or(0, |payload| payload.len().next_multiple_of(4));
        self.head.len() + payload + self.tail.len()
    }
}
