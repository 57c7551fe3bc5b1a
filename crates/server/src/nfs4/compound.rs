//! COMPOUND, RFC 8881 §16.2.

use std::hash::Hasher;

use io::WriteData;
use proto::nfs4::{
    Bitmap, CompoundHead, CompoundResult, NFS4_OK, OperationCode, Status, next_operation,
};
use proto::xdr::{Decode, Encode, Reader, Writer};
use rustc_hash::FxHasher;

use super::resolved_handle::{Current, Located, ResolvedHandle};
use super::results::{RESULT_BYTES_MAX, RESULT_BYTES_USUAL, Results};
use super::{Outcome, Refused};
use crate::call::{Call, Credential};
use crate::counters::Operation;
use crate::inode_cache::Attributes;
use crate::moment::Moment;
use crate::procedures::Programs;
use crate::request::{Handled, Moved, Peer, Refusal, Request};
use crate::state::Running;

/// A COMPOUND at work.
pub(super) struct Compound<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) peer: Peer,
    pub(super) call: &'a Call,
    pub(super) minor_version: u32,
    /// The operations of the call.
    pub(super) operations: u32,
    /// Set by SEQUENCE.
    pub(super) running: Option<Running>,
    pub(super) current: Option<Current>,
    pub(super) saved: Option<Current>,
    /// The attributes that the operation before, a WRITE, has left behind.
    pub(super) written: Option<Attributes>,
    pub(super) results: Results<'a>,
    moved: &'a mut Moved,
    /// The bytes of call and reply that [`Self::moved`] is right for.
    noted_bytes: u64,
    /// The data of the first WRITE, which was received apart.
    payload: Option<WriteData>,
}

/// How SEQUENCE goes on.
pub(super) enum Sequenced {
    /// With the next operation, unless there is no room for its result.
    Run(Result<(), Status>),
    /// The call was performed before; its reply is this.
    Replay(std::sync::Arc<[u8]>),
    /// The call is at work, and will be answered.
    Duplicate,
}

/// How a COMPOUND ends.
enum End {
    /// With the results of its operations.
    Results,
    /// As before; the reply was this.
    Replay(std::sync::Arc<[u8]>),
    /// Without a reply, as [`Sequenced::Duplicate`].
    Duplicate,
}

/// Runs the operations of a COMPOUND until one fails, and appends their results to `reply`. Notes
/// in `moved` what they have moved.
///
/// # Errors
/// The head in front of the operations cannot be decoded.
pub(crate) async fn execute(
    request: &Request<'_>,
    peer: Peer,
    call: &Call,
    payload: Option<WriteData>,
    (reply, moved): (&mut Writer, &mut Moved),
) -> Result<Handled, Refusal> {
    let mut reader = Reader::new(call.arguments());
    let CompoundHead { tag, minor_version, operations } = Decode::decode(&mut reader)?;
    let mut results = Results::new(reply);
    CompoundResult { status: NFS4_OK, tag, results: 0 }.encode(results.writer());
    let Programs::Files(served) = peer.programs else { return Ok(Handled::executed(None)) };
    if !served.serves_minor(minor_version) {
        results.patch(0, Status::MinorVersMismatch.code());
        return Ok(Handled::executed(None));
    }
    let mut compound = Compound {
        request,
        peer,
        call,
        minor_version,
        operations,
        running: None,
        current: None,
        saved: None,
        written: None,
        results,
        moved,
        noted_bytes: 0,
        payload,
    };
    let count_at = 8 + tag.len().next_multiple_of(4);
    Ok(match compound.run(&mut reader, count_at).await {
        End::Results => compound.complete(),
        End::Replay(body) => compound.replay(&body),
        End::Duplicate => Handled::InProgress,
    })
}

impl<'a> Compound<'a> {
    /// `count_at` is where the number of results stands among them.
    async fn run(&mut self, reader: &mut Reader<'a>, count_at: usize) -> End {
        let mut status = NFS4_OK;
        let mut start = self.request.tally.start();
        for place in 0..self.operations {
            let next = next_operation(reader).map_err(Refused::from);
            let operation = match &next {
                Ok(Ok(operation)) if self.has(*operation) => *operation,
                _ => OperationCode::Illegal,
            };
            let checked = next.and_then(|known| self.check(known.ok(), place));
            let outcome = match checked {
                Ok(OperationCode::Sequence) => match self.sequence(reader) {
                    Ok(Sequenced::Run(outcome)) => outcome,
                    Ok(Sequenced::Duplicate) => return End::Duplicate,
                    Ok(Sequenced::Replay(body)) => return End::Replay(body),
                    Err(refused) => Err(self.refuse(operation, refused)),
                },
                // The work on a COMPOUND is as large as its largest operation, and its beginning is
                // copied: what does not wait is done without.
                Ok(operation) => match self.perform_on_handles(operation, reader) {
                    Some(outcome) => outcome,
                    None => {
                        // The device of the current object need not be the one that the call began
                        // with, and no device waits for another.
                        let service = self.request.service;
                        let elsewhere =
                            self.located().and_then(|file| service.elsewhere(&file.object));
                        let outcome = match elsewhere {
                            None => self.perform(operation, reader).await,
                            Some(its) => Box::pin(its.run(self.perform(operation, reader))).await,
                        };
                        self.note_moved(reader);
                        outcome
                    }
                },
                Err(refused) => Err(self.refuse(operation, refused)),
            };
            status = outcome.err().map_or(NFS4_OK, Status::code);
            // An operation begins where the one before it ends: one look at the clock for both.
            let now = start.map(|_| Moment::now());
            let time_ns = now.zip(start).map(|(now, start)| now.nanoseconds_since(start));
            start = now;
            self.count(operation, status, time_ns);
            if status != NFS4_OK {
                break;
            }
        }
        self.results.patch(0, status);
        self.results.patch(count_at, self.results.count());
        End::Results
    }

    /// The object that the current filehandle names, if it is one of an export.
    fn located(&self) -> Option<&Located> {
        match self.current_handle() {
            Ok(ResolvedHandle::Object(located)) => Some(located),
            Ok(ResolvedHandle::Pseudo(_)) | Err(_) => None,
        }
    }

    /// Notes on the export that the current filehandle is of what the operation that has ended has
    /// moved, with those before it that have worked on none.
    fn note_moved(&mut self, reader: &Reader<'_>) {
        let Some(Located { object, .. }) = self.located() else { return };
        let (export, is_limited) = (object.root().id, object.is_limited);
        let unread = reader.remaining() + self.payload.as_ref().map_or(0, WriteData::len);
        let bytes = self.call.bytes.saturating_sub(unread as u64) + self.results.len() as u64;
        let before = std::mem::replace(&mut self.noted_bytes, bytes);
        if is_limited {
            self.moved.note(export, bytes.saturating_sub(before));
        }
    }

    /// Counts an operation on the export that the current filehandle is of.
    fn count(&self, operation: OperationCode, status: u32, time_ns: Option<u64>) {
        let set = match self.current.as_ref().map(|current| &current.handle) {
            Some(ResolvedHandle::Object(located)) => Some(&located.object.root().counters),
            Some(ResolvedHandle::Pseudo(_)) | None => None,
        };
        let tally = &self.request.tally;
        if let (Some(set), Some(_)) = (set, time_ns) {
            tally.note_export(set);
        }
        tally.count_on(set.map(|set| &**set), Operation::nfs4(operation), status, time_ns);
    }

    /// Whether an operation belongs to the minor version.
    fn has(&self, operation: OperationCode) -> bool {
        self.minor_version >= 2 || !operation.is_minor_2()
    }

    /// Checks what RFC 8881 §2.10.2 and §15.1.11 demand of an operation's place in the COMPOUND,
    /// and that some export admits the peer: no other gets state.
    fn check(&mut self, operation: Option<OperationCode>, place: u32) -> Outcome<OperationCode> {
        if place == 0 && !self.request.service.knows(&self.request.peer) {
            self.request.service.refuse_stranger(&self.request.peer, Status::Access.name());
            return Err(Status::Access.into());
        }
        let known = operation.filter(|operation| self.has(*operation));
        let operation = known.ok_or(Status::OpIllegal)?;
        let stands_alone = matches!(
            operation,
            OperationCode::ExchangeId
                | OperationCode::CreateSession
                | OperationCode::DestroySession
                | OperationCode::BindConnToSession
                | OperationCode::DestroyClientid
        );
        let status = match (place, operation, &self.running) {
            (0, OperationCode::Sequence, _) => return Ok(operation),
            (_, OperationCode::Sequence, _) => Status::SequencePos,
            (0, _, _) if !stands_alone => Status::OpNotInSession,
            (0, _, _) if self.operations > 1 => Status::NotOnlyOp,
            (_, OperationCode::BindConnToSession, Some(_)) => Status::NotOnlyOp,
            _ if self.results.room() < RESULT_BYTES_MAX => self.results.too_big(),
            _ => {
                self.charge(RESULT_BYTES_USUAL)?;
                return Ok(operation);
            }
        };
        Err(status.into())
    }

    /// Sees to memory of the budget for `bytes` more of results in memory, which a peer could leave
    /// unread.
    ///
    /// # Errors
    /// `Delay` if there is none now: what waits for memory holds none.
    pub(super) fn charge(&mut self, bytes: usize) -> Outcome<()> {
        let service = self.request.service;
        let free_bytes = service.memory.reply_head_bytes_max;
        let is_charged =
            self.results.charge(bytes, free_bytes, |bytes| service.try_take_buffer(bytes));
        if is_charged { Ok(()) } else { Err(Status::Delay.into()) }
    }

    /// Appends the result of an operation that was refused.
    pub(super) fn refuse(&mut self, operation: OperationCode, refused: Refused) -> Status {
        let status = self.put::<()>(operation, Err(refused)).err().unwrap_or(refused.status);
        // The attributes set: of all results, this one alone has a body behind every status.
        if operation == OperationCode::Setattr {
            Bitmap::EMPTY.encode(self.results.writer());
        }
        status
    }

    /// Appends the result of an operation, and notes a fault of the system.
    pub(super) fn put<T: Encode>(
        &mut self,
        operation: OperationCode,
        outcome: Outcome<T>,
    ) -> Result<(), Status> {
        self.put_with(operation, outcome, |value, results| {
            value.encode(results.writer());
            Ok(())
        })
    }

    /// As [`Self::put`]; `encode` appends what stands behind the status of a success.
    pub(super) fn put_with<T>(
        &mut self,
        operation: OperationCode,
        outcome: Outcome<T>,
        encode: impl FnOnce(T, &mut Results<'_>) -> Outcome<()>,
    ) -> Result<(), Status> {
        if let Err(Refused { cause: Some(cause), .. }) = &outcome {
            self.request.fault.note(*cause);
        }
        self.results.put_with(operation, outcome, encode)
    }

    /// The data of the WRITE whose arguments end where the reader is, if it was received apart.
    pub(super) fn take_payload(&mut self, reader: &Reader<'_>) -> Option<Option<WriteData>> {
        let place = self.call.compound_payload?;
        (place.at == reader.position()).then(|| self.payload.take())
    }

    /// A hash that distinguishes a call from another with the same slot and sequence number. A
    /// client that makes two calls of one hash harms itself alone. `sequence_end` is where the
    /// arguments of SEQUENCE end.
    ///
    /// `sa_highest_slotid`, their last word but one, is left out: Linux encodes a retry anew, with
    /// the highest slot that is in use by then.
    pub(super) fn digest(&self, sequence_end: usize) -> u64 {
        let mut hasher = FxHasher::default();
        match &self.call.credential {
            Credential::None => hasher.write_u8(0),
            Credential::Sys(sys) => {
                hasher.write_u32(sys.uid);
                hasher.write_u32(sys.gid);
                sys.gids.iter().for_each(|gid| hasher.write_u32(*gid));
            }
            Credential::Other { flavor } => hasher.write_u32(*flavor),
        }
        let arguments = self.call.arguments();
        hasher.write(&arguments[..sequence_end - 8]);
        hasher.write(&arguments[sequence_end - 4..]);
        hasher.finish()
    }

    /// The length of the whole call as it came (RFC 8881 §18.36.3: the RPC header counts).
    pub(super) fn call_bytes(&self) -> u64 {
        self.call.bytes
    }

    /// Whether the operation at work is the last.
    pub(super) fn is_last(&self) -> bool {
        self.results.count() + 1 == self.operations
    }

    fn complete(self) -> Handled {
        if let Some(running) = self.running {
            let body = self.results.in_memory().unwrap_or_default();
            running.complete(body, self.request.service.now());
        }
        let (payload, tail, charge) = self.results.finish();
        Handled::Executed { payload, tail, charge, receipt: None }
    }

    fn replay(mut self, body: &[u8]) -> Handled {
        self.results.replace(body);
        Handled::FromSlot
    }
}
