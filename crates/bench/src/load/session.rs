//! Sessions of versions 4.1 and 4.2, RFC 8881 §2.10: one call in flight on each slot.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proto::nfs4::{
    Bitmap, CallbackSecurity, ChannelAttributes, ClientId, ClientOwner, CompoundHead,
    CompoundResult, CreateSessionArgs, CreateSessionOk, DestroyClientidArgs, DestroySessionArgs,
    ExchangeIdArgs, ExchangeIdOk, GetattrArgs, OperationCode, PROGRAM, Procedure,
    ReclaimCompleteArgs, SequenceArgs, SequenceId, SequenceOk, SessionId, SlotId, StateProtection,
    Status, VERSION, Verifier, next_operation,
};
use proto::oncrpc::{AcceptStat, AuthSys, CallHeader, Credential, ReplyHeader};
use proto::xdr::{Decode, DecodeError, Encode, Reader, Writer, padded};

use super::call::{Answer, Broken, CallResult, Refusal, Xids, finish_call, slot_of, until_taken};
use crate::record_stream::RecordStream;

/// An operation and its arguments.
pub(super) type Operation<'a> = (OperationCode, &'a dyn Encode);

/// Behind WRITE: change, size, space, ctime and mtime.
const WRITE_ATTRIBUTES: GetattrArgs =
    GetattrArgs { wanted: Bitmap::from_words([0x18, 0x0030_2000, 0]) };
/// The GETATTR behind a WRITE's data; a multiple of four bytes.
pub(super) static BEHIND_DATA: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut w = Writer::new();
    OperationCode::Getattr.encode(&mut w);
    WRITE_ATTRIBUTES.encode(&mut w);
    w.into_vec()
});
/// The most bytes of a call or reply beside the data of READ or WRITE.
const HEAD_BYTES_MAX: u32 = 1024;
/// The least that a session's calls and replies are granted: lists of attributes are short.
const CALL_BYTES_MIN: u32 = 64 << 10;
/// Operations of a COMPOUND at most: SEQUENCE, PUTFH, OPEN, GETFH, ACCESS, GETATTR.
const OPERATIONS_MAX: u32 = 8;
/// The longest reply that the server keeps.
const CACHED_BYTES_MAX: u32 = 2048;

/// A session on one connection. Its client has no other.
pub(crate) struct Session<'a> {
    caller: AuthSys<'a>,
    minor_version: u32,
    xids: Xids,
    pub(super) client: ClientId,
    id: SessionId,
    slots: Vec<Slot>,
    /// The highest slot that the server wants to be used, by its last reply.
    target: SlotId,
}

#[derive(Clone)]
struct Slot {
    /// That of the next call.
    sequence: SequenceId,
    is_in_use: bool,
}

/// Why no further result of a COMPOUND can be had.
pub(super) enum Stop {
    Malformed(DecodeError),
    Refused(Status),
}

impl From<DecodeError> for Stop {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

/// The results of a COMPOUND, one by one.
pub(super) struct Results<'r, 'a>(&'r mut Reader<'a>);

impl<'a> Results<'_, 'a> {
    pub(super) fn next<T: Decode<'a>>(&mut self, operation: OperationCode) -> Result<T, Stop> {
        let failure = DecodeError { what: "nfs_resop4", at_byte: self.0.position() };
        if next_operation(self.0)? != Ok(operation) {
            return Err(failure.into());
        }
        Result::<T, Status>::decode(self.0)?.map_err(Stop::Refused)
    }

    /// Passes over PUTFH.
    pub(super) fn put(&mut self) -> Result<(), Stop> {
        self.next(OperationCode::Putfh)
    }
}

impl<'a> Session<'a> {
    /// Introduces a client of its own to the server and begins a session with `slots`, for calls
    /// and replies with up to `payload_bytes` of data.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn begin(
        stream: &mut RecordStream,
        caller: AuthSys<'a>,
        minor_version: u32,
        slots: usize,
        payload_bytes: u32,
        timeout: Duration,
    ) -> Result<Self, Broken> {
        let mut session = Self {
            caller,
            minor_version,
            xids: Xids::new(),
            client: ClientId(0),
            id: SessionId([0; 16]),
            slots: vec![Slot { sequence: SequenceId(1), is_in_use: false }; slots],
            target: SlotId(u32::MAX),
        };
        let sequence = named("EXCHANGE_ID", session.exchange_id(stream))?;
        let bytes = payload_bytes.max(CALL_BYTES_MIN) + HEAD_BYTES_MAX;
        let created = session.create_session(stream, sequence, bytes);
        let granted = named("CREATE_SESSION", created)?.fore;
        let slots_granted = usize::try_from(granted.requests_max).unwrap_or(usize::MAX);
        if slots_granted < slots {
            let what = format!("the server grants {slots_granted} slots, not {slots}");
            return Err(Broken(what));
        }
        let bytes_granted = granted.request_bytes_max.min(granted.response_bytes_max);
        if bytes_granted < bytes {
            let what = format!("the server grants calls of {bytes_granted} bytes, not {bytes}");
            return Err(Broken(what));
        }
        let complete: Operation<'_> =
            (OperationCode::ReclaimComplete, &ReclaimCompleteArgs { one_fs: false });
        let mut again = 0;
        let done = until_taken(timeout, &mut again, || {
            session.call(stream, true, &[complete], |results| {
                results.next::<()>(OperationCode::ReclaimComplete)
            })
        });
        named("RECLAIM_COMPLETE", done)?;
        Ok(session)
    }

    fn exchange_id(&mut self, stream: &mut RecordStream) -> CallResult<SequenceId> {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
        let owner = format!("spillway-bench {} {number} {}", std::process::id(), self.xids.0);
        let args = ExchangeIdArgs {
            owner: ClientOwner { verifier: Verifier([1; 8]), owner_id: owner.as_bytes() },
            flags: 0,
            protection: StateProtection::None,
        };
        let answer = self.call_alone(stream, (OperationCode::ExchangeId, &args), |results| {
            let ok: ExchangeIdOk<'_> = results.next(OperationCode::ExchangeId)?;
            Ok((ok.client, ok.sequence))
        })?;
        Ok(answer.map(|(client, sequence)| {
            self.client = client;
            sequence
        }))
    }

    fn create_session(
        &mut self,
        stream: &mut RecordStream,
        sequence: SequenceId,
        bytes_max: u32,
    ) -> CallResult<CreateSessionOk> {
        let channel = |requests_max, bytes_max| ChannelAttributes {
            header_pad_bytes: 0,
            request_bytes_max: bytes_max,
            response_bytes_max: bytes_max,
            cached_bytes_max: CACHED_BYTES_MAX,
            operations_max: OPERATIONS_MAX,
            requests_max,
            rdma_ird: None,
        };
        let slots = u32::try_from(self.slots.len()).expect("no more than calls in flight");
        let args = CreateSessionArgs {
            client: self.client,
            sequence,
            flags: 0,
            fore: channel(slots, bytes_max),
            back: channel(1, 4096),
            callback_program: 0x4000_0000,
            callback_security: [CallbackSecurity::None][..].into(),
        };
        let answer = self.call_alone(stream, (OperationCode::CreateSession, &args), |results| {
            results.next::<CreateSessionOk>(OperationCode::CreateSession)
        })?;
        Ok(answer.inspect(|ok| self.id = ok.session))
    }

    /// Ends the session and its client, which has no state.
    pub(crate) fn end(&mut self, stream: &mut RecordStream) -> CallResult<()> {
        let (session, client) = (self.id, self.client);
        let session = DestroySessionArgs { session };
        let ended =
            self.call_alone(stream, (OperationCode::DestroySession, &session), |results| {
                results.next(OperationCode::DestroySession)
            })?;
        if ended.is_err() {
            return Ok(ended);
        }
        let client = DestroyClientidArgs { client };
        self.call_alone(stream, (OperationCode::DestroyClientid, &client), |results| {
            results.next(OperationCode::DestroyClientid)
        })
    }

    /// The slots that the server has: calls are made on those with smaller numbers. At least 1.
    pub(super) fn slots_max(&self) -> usize {
        usize::try_from(self.target.0).map_or(usize::MAX, |target| target.saturating_add(1))
    }

    /// One call on the first slot; no other is in flight.
    pub(super) fn call<T>(
        &mut self,
        stream: &mut RecordStream,
        cache_this: bool,
        operations: &[Operation<'_>],
        parse: impl Fn(&mut Results<'_, '_>) -> Result<T, Stop>,
    ) -> CallResult<T> {
        let xid = self.xids.next(0);
        self.queue(stream, xid, cache_this, operations, 0);
        finish_call(stream, xid, |stream| self.reply(stream, parse))
    }

    /// One call outside the session.
    fn call_alone<T>(
        &mut self,
        stream: &mut RecordStream,
        (code, args): Operation<'_>,
        parse: impl Fn(&mut Results<'_, '_>) -> Result<T, Stop>,
    ) -> CallResult<T> {
        let xid = self.xids.next(0);
        stream.queue(0, |w| {
            self.encode_head(w, xid, 1);
            code.encode(w);
            args.encode(w);
        });
        finish_call(stream, xid, |stream| {
            let decoded = stream.decode(|r| decode(r, &parse))?;
            Ok(decoded?)
        })
    }

    fn encode_head(&self, w: &mut Writer, xid: u32, operations: u32) {
        CallHeader {
            xid,
            program: PROGRAM,
            version: VERSION,
            procedure: Procedure::Compound.code(),
            credential: Credential::Sys(self.caller),
            verifier_flavor: 0,
        }
        .encode(w);
        CompoundHead { tag: b"", minor_version: self.minor_version, operations }.encode(w);
    }

    /// Puts a COMPOUND on the slot of `xid` in the queue. If `data_bytes` are to follow, so is
    /// [`BEHIND_DATA`].
    pub(super) fn queue(
        &mut self,
        to: &mut RecordStream,
        xid: u32,
        cache_this: bool,
        operations: &[Operation<'_>],
        data_bytes: usize,
    ) {
        let slot = slot_of(xid);
        let slot_id = |slot| SlotId(u32::try_from(slot).expect("less than 256"));
        self.slots[slot].is_in_use = true;
        let highest = self.slots.iter().rposition(|slot| slot.is_in_use).expect("this one is");
        let sequence = SequenceArgs {
            session: self.id,
            sequence: self.slots[slot].sequence,
            slot: slot_id(slot),
            highest_slot: slot_id(highest),
            cache_this,
        };
        let (behind_bytes, behind) =
            if data_bytes > 0 { (padded(data_bytes) + BEHIND_DATA.len(), 1) } else { (0, 0) };
        let count = u32::try_from(operations.len()).expect("few") + 1 + behind;
        to.queue(behind_bytes, |w| {
            self.encode_head(w, xid, count);
            OperationCode::Sequence.encode(w);
            sequence.encode(w);
            for (code, args) in operations {
                code.encode(w);
                args.encode(w);
            }
        });
    }

    /// Takes in a reply, up to where `parse` ends.
    pub(super) fn reply<T>(
        &mut self,
        from: &mut RecordStream,
        parse: impl Fn(&mut Results<'_, '_>) -> Result<T, Stop>,
    ) -> Result<Answer<T>, Broken> {
        let decoded = from.decode(|r| {
            decode(r, |results| {
                let sequence: SequenceOk = results.next(OperationCode::Sequence)?;
                match parse(results) {
                    Ok(value) => Ok((sequence, Ok(value))),
                    Err(Stop::Refused(status)) => Ok((sequence, Err(status.into()))),
                    Err(malformed @ Stop::Malformed(_)) => Err(malformed),
                }
            })
        })?;
        let (xid, answer) = decoded?;
        let slot = self.slots.get_mut(slot_of(xid)).filter(|slot| slot.is_in_use);
        let Some(slot) = slot else {
            return Err(Broken("the server answers for a slot that was not used".into()));
        };
        slot.is_in_use = false;
        // A call that SEQUENCE refused has not used its sequence id.
        let (sequence, answer) = match answer {
            Ok(passed) => passed,
            Err(refusal) => return Ok((xid, Err(refusal))),
        };
        let is_for_this = (sequence.session, sequence.sequence) == (self.id, slot.sequence)
            && usize::try_from(sequence.slot.0) == Ok(slot_of(xid));
        if !is_for_this {
            return Err(Broken("the server answers for a slot that was not used".into()));
        }
        slot.sequence = slot.sequence.next();
        self.target = sequence.target_highest_slot;
        Ok((xid, answer))
    }
}

/// Decodes a reply's header and as many results as `parse` takes.
fn decode<'a, T>(
    r: &mut Reader<'a>,
    parse: impl Fn(&mut Results<'_, 'a>) -> Result<T, Stop>,
) -> Result<Answer<T>, DecodeError> {
    let header = ReplyHeader::decode(r)?;
    let ReplyHeader::Accepted { xid, stat: AcceptStat::Success } = header else {
        return Ok((header.xid(), Err(Refusal::Header(header))));
    };
    let compound = CompoundResult::decode(r)?;
    if let (0, Some(status)) = (compound.results, Status::from_code(compound.status)) {
        return Ok((xid, Err(status.into())));
    }
    match parse(&mut Results(r)) {
        Ok(value) => Ok((xid, Ok(value))),
        Err(Stop::Refused(status)) => Ok((xid, Err(status.into()))),
        Err(Stop::Malformed(error)) => Err(error),
    }
}

/// Any failure, with the call's name.
pub(super) fn named<T>(call: &str, result: CallResult<T>) -> Result<T, Broken> {
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(refusal)) => Err(Broken(format!("{call}: {refusal}"))),
        Err(Broken(why)) => Err(Broken(format!("{call}: {why}"))),
    }
}
