//! From a call to a reply: program, procedure, reply cache (RFC 5531).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::WriteData;
use proto::oncrpc::{AcceptStat, CallError, RPC_VERSION, RejectStat, ReplyHeader, encode_success};
use proto::xdr::{Encode, Reader, Writer};
use proto::{nfs3, nfs4};
use rpc::record::MARK_ROOM;
use rpc::server::{Link, Reply};

use crate::call::Call;
use crate::call_log::{self, Line};
use crate::call_trace::{self, Traced};
use crate::counters::{Counter, CounterSet, Operation as Counted, Tally};
use crate::export;
use crate::memory_plan::REPLY_HEAD_BYTES;
use crate::moment::Moment;
use crate::nfs3::{self as nfs, Arguments, Executed};
use crate::procedures::{Operation, Procedure, Programs};
use crate::reply_cache::{Begin, Replay, Wait};
use crate::request::{Fault, Handled, Moved, Origin, Refusal, Request, credential};
use crate::service::Service;
use crate::trace::{CallKey, Outcome};
use crate::{mount3 as mount, nfs4 as compound, portmap as mapper};

/// The pause between two questions for a reply's delivery. The acknowledgement of a peer that has
/// nothing to send is delayed by 40 ms or more.
const DELIVERY_POLL: Duration = Duration::from_millis(10);

/// The outcome of a record.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each call")]
pub(crate) enum Verdict {
    /// Answer it.
    Reply(Reply),
    /// Send nothing: an earlier copy of the call is at work and will be answered over the same
    /// connection.
    Drop,
    /// It was no call; the peer does not speak this protocol.
    Close,
}

impl Verdict {
    /// The length of the reply; 0 if there is none.
    pub(crate) fn reply_bytes(&self) -> u64 {
        match self {
            Self::Reply(reply) => reply.bytes(),
            Self::Drop | Self::Close => 0,
        }
    }
}

/// The status of a call for the recorder: that of its results, or what was done in their place.
fn recorded_status(done: &Result<Handled, Refusal>, results: &[u8]) -> u32 {
    match done {
        // A procedure without a status has results that begin with 0 or 1, or none.
        Ok(Handled::Executed { .. }) => {
            results.first_chunk().map_or(0, |status| u32::from_be_bytes(*status))
        }
        Ok(Handled::FromReplyCache(_) | Handled::FromSlot) => Outcome::Replayed as u32,
        Ok(Handled::InProgress) => Outcome::Dropped as u32,
        Err(Refusal::Denied(_)) => Outcome::Denied as u32,
        Err(Refusal::NotExecuted(_)) => Outcome::NotExecuted as u32,
    }
}

/// Answers a record whose header is not that of a call to be executed.
pub(crate) fn refuse(
    service: &Service,
    client: SocketAddr,
    received: Moment,
    error: &CallError,
) -> Verdict {
    let (xid, stat) = match *error {
        CallError::Malformed(_) | CallError::NotACall => return Verdict::Close,
        CallError::RpcMismatch { xid } => {
            (xid, RejectStat::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION })
        }
        CallError::BadCredential { xid, stat } => (xid, RejectStat::AuthError(stat)),
    };
    call_trace::denied(service, xid, client, received);
    denied(xid, stat)
}

/// Facts about a call that was executed, for counters, traces and limits.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) at: Option<Moment>,
    /// Its wait for threads, if it was handed to any.
    pub(crate) queue_ns: Option<u64>,
    /// The counters of the export that it was about, if it is timed.
    pub(crate) export: Option<Arc<CounterSet>>,
    /// The bytes that its operations have moved, if it is a COMPOUND.
    pub(crate) moved: Moved,
}

/// Answers a call. `ended.at` and `ended.queue_ns` are set.
pub(crate) async fn answer(
    service: &Arc<Service>,
    origin: Origin<'_>,
    call: &mut Call,
    ended: &mut Ended,
) -> Verdict {
    let mut reply = Writer::with_capacity(REPLY_HEAD_BYTES);
    reply.array(&MARK_ROOM);
    encode_success(&mut reply, call.xid);
    let payload = call.payload.take();
    let call = &*call;
    let line = Line { service, peer: origin.peer, call };
    call_log::begins(&line);
    let (results_at, start) = (reply.len(), call_log::start());
    let done = execute(service, origin, call, payload, &mut reply, ended).await;
    let queue_ns = origin.queue_ns();
    ended.queue_ns = queue_ns;
    let ended = *ended.at.get_or_insert_with(Moment::now);
    let status = recorded_status(&done, &reply.as_slice()[results_at..]);
    let latency_ns = ended.nanoseconds_since(origin.received);
    service.tracer.recorder.end(origin.record, status, queue_ns.unwrap_or(0), latency_ns);
    let (client, received) = (origin.peer.address, origin.received);
    call_trace::done(Traced { service, call, client, received }, status, queue_ns.unwrap_or(0));
    service.tracer.end(key(call.xid, &origin), Duration::from_nanos(latency_ns));
    if let Some(start) = start {
        call_log::ended(&line, start, &done, &reply.as_slice()[results_at..]);
    }
    match done {
        Ok(Handled::Executed { payload, tail, charge, receipt }) => {
            let reply = Reply::with_tail(reply.into_vec(), payload, tail);
            Verdict::Reply(reply.charged(charge).with_receipt(receipt))
        }
        Ok(Handled::FromReplyCache(Replay { reply, receipt })) => {
            service.counters.add(Counter::Replays, 1);
            Verdict::Reply(Reply::new(reply, None).with_receipt(Some(receipt)))
        }
        Ok(Handled::FromSlot) => {
            service.counters.add(Counter::Replays, 1);
            Verdict::Reply(Reply::new(reply.into_vec(), None))
        }
        Ok(Handled::InProgress) => {
            service.counters.add(Counter::DroppedRetransmissions, 1);
            Verdict::Drop
        }
        Err(Refusal::Denied(stat)) => denied(call.xid, stat),
        Err(Refusal::NotExecuted(stat)) => {
            if stat == AcceptStat::GarbageArgs {
                service.counters.add(Counter::GarbageCalls, 1);
            }
            plain(&ReplyHeader::Accepted { xid: call.xid, stat })
        }
    }
}

fn key(xid: u32, origin: &Origin<'_>) -> CallKey {
    CallKey { xid, client: origin.peer.address.ip().to_canonical(), received: origin.received }
}

fn denied(xid: u32, stat: RejectStat) -> Verdict {
    plain(&ReplyHeader::Denied(xid, stat))
}

fn plain(header: &ReplyHeader) -> Verdict {
    let mut w = Writer::with_capacity(64);
    w.array(&MARK_ROOM);
    header.encode(&mut w);
    Verdict::Reply(Reply::new(w.into_vec(), None))
}

/// Runs the call and writes its results behind the reply header; what may be long is returned in
/// memory of the budget. `ended` is set as far as the call is timed.
async fn execute(
    service: &Arc<Service>,
    origin: Origin<'_>,
    call: &Call,
    payload: Option<WriteData>,
    reply: &mut Writer,
    ended: &mut Ended,
) -> Result<Handled, Refusal> {
    let (peer, results_at) = (origin.peer, reply.len());
    let row = call.procedure.map_err(Refusal::NotExecuted)?;
    if call.trailing_bytes > 0 {
        return Err(Refusal::NotExecuted(AcceptStat::GarbageArgs));
    }
    match row.operation {
        Operation::Nfs3(procedure) => {
            let request = request(service, origin, row, call)?;
            let done = if row.is_idempotent {
                let mut arguments = Arguments { payload, ..Arguments::of(call) };
                let executed = nfs::execute(&request, procedure, &mut arguments, reply).await?;
                Ok(Handled::executed(executed.payload()))
            } else {
                Box::pin(execute_once(&request, row, procedure, call, origin.link, reply)).await
            };
            if matches!(done, Ok(Handled::Executed { .. })) {
                let status = Counted::nfs3(procedure).status_in(&reply.as_slice()[results_at..]);
                request.tally.count(
                    Counted::nfs3(procedure),
                    status,
                    origin.time_ns(&mut ended.at),
                );
            }
            note_end(request, &Line { service, peer, call }, ended);
            done
        }
        Operation::Nfs4(nfs4::Procedure::Null) => {
            credential(call)?;
            Reader::new(call.arguments()).finish()?;
            Ok(Handled::executed(None))
        }
        Operation::Nfs4(nfs4::Procedure::Compound) => {
            let request = request(service, origin, row, call)?;
            let done =
                compound::execute(&request, peer, call, payload, (reply, &mut ended.moved)).await;
            note_end(request, &Line { service, peer, call }, ended);
            done
        }
        Operation::Mount3(procedure) => {
            let request = request(service, origin, row, call)
                .inspect_err(|_| mount::log_flavor(&peer, procedure, call))?;
            // Boxed, or the future of every call would have the size of this rare one's.
            let done = Box::pin(mount::execute(&request, procedure, call.arguments(), reply));
            let payload = done.await?;
            let operation = Counted::mount3(procedure);
            let status = operation.status_in(&reply.as_slice()[results_at..]);
            request.tally.count(operation, status, origin.time_ns(&mut ended.at));
            Ok(Handled::executed(payload))
        }
        Operation::Portmap(_) | Operation::Rpcbind(_) => {
            credential(call)?;
            let Programs::Portmapper(mapped) = peer.programs else {
                return Err(Refusal::NotExecuted(AcceptStat::ProgUnavail));
            };
            mapper::execute(&mapped, row, call.arguments(), reply)?;
            Ok(Handled::executed(None))
        }
    }
}

/// Logs the fault of a request, if it has one, and notes its export.
fn note_end(request: Request<'_>, line: &Line<'_>, ended: &mut Ended) {
    if let Some(fault) = request.fault.status() {
        call_log::failed(line, fault);
    }
    ended.export = request.tally.into_export();
}

fn request<'a>(
    service: &'a Arc<Service>,
    origin: Origin<'a>,
    row: &Procedure,
    call: &'a Call,
) -> Result<Request<'a>, Refusal> {
    let (flavor, credential) = credential(call)?;
    let (address, purpose) = (origin.peer.address, row.purpose);
    let peer = export::Peer { address, purpose };
    let (fault, tally) = (Fault::default(), Tally::new(&service.counters, origin.client));
    let (xid, received, record) = (call.xid, origin.received, origin.record);
    Ok(Request { service, xid, received, record, peer, flavor, credential, fault, tally })
}

/// Runs an NFSv3 procedure that must not run twice, unless the call repeats another.
///
/// A repetition over another connection than its first copy waits here for the first copy's end and
/// is answered over its own connection. It holds a slot of that connection meanwhile.
async fn execute_once(
    request: &Request<'_>,
    row: &Procedure,
    procedure: nfs3::Procedure,
    call: &Call,
    link: &Arc<Link>,
    reply: &mut Writer,
) -> Result<Handled, Refusal> {
    let cache = &request.service.reply_cache;
    let key = cache.key(request.peer.address.ip(), row, call);
    let mut has_waited = false;
    loop {
        let wait = match cache.begin(key, link, Instant::now()) {
            Begin::Run(running) => {
                let arguments = &mut Arguments::of(call);
                return Ok(match nfs::execute(request, procedure, arguments, reply).await? {
                    Executed::NotAdmitted => Handled::executed(None),
                    Executed::Done(payload) => {
                        let receipt = Some(running.complete(reply.as_slice(), Instant::now()));
                        let (tail, charge) = (Vec::new(), Vec::new());
                        Handled::Executed { payload, tail, charge, receipt }
                    }
                });
            }
            Begin::Replay(replay) => return Ok(Handled::FromReplyCache(replay)),
            Begin::Duplicate => return Ok(Handled::InProgress),
            Begin::Wait(wait) => wait,
        };
        if !std::mem::replace(&mut has_waited, true) {
            request.service.counters.add(Counter::AwaitedRetransmissions, 1);
        }
        match wait {
            Wait::End(ended) => drop(ended.await),
            Wait::Delivery => request.service.vfs.sleep(DELIVERY_POLL).await,
        }
    }
}

#[cfg(test)]
mod tests;
