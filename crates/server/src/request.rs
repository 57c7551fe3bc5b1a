//! A call on its way through the programs, and what becomes of it.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use io::{Buffer, Payload, Share};
use proto::nfs3::FileHandle;
use proto::oncrpc::{AcceptStat, AuthStat, RejectStat};
use proto::xdr::DecodeError;
use rpc::server::{Link, Receipt};

use crate::call::{Call, Credential};
use crate::counters::{ClientCounters, Tally};
use crate::export::{self, claimed_export_id};
use crate::fs::Status;
use crate::moment::Moment;
use crate::procedures::Programs;
use crate::reply_cache::Replay;
use crate::service::Service;
use crate::state::ConnectionId;
use crate::trace::{CallId, Detail, Event, RecordId, handle_hash};

/// The other end of a connection, and the programs that answer there.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The connection, by a number that no other has had since the start.
    pub(crate) connection: ConnectionId,
    pub(crate) programs: Programs,
}

/// A call whose program and procedure are known, with its credential.
pub(crate) struct Request<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) xid: u32,
    /// When the call's last byte was there.
    pub(crate) received: Moment,
    pub(crate) record: RecordId,
    pub(crate) peer: export::Peer,
    pub(crate) flavor: export::Flavor,
    pub(crate) credential: Option<export::Credential<'a>>,
    /// The fault that the call ends in.
    pub(crate) fault: Fault,
    /// The counters of what the call does.
    pub(crate) tally: Tally<'a>,
}

impl Request<'_> {
    /// The subject of trace events of this call on the object of a wire handle. The handle is
    /// looked at only while an event is on.
    pub(crate) fn call_id(&self, handle: impl FnOnce() -> FileHandle) -> CallId {
        let call = self.call_id_without_handle();
        if !self.service.tracer.is_used() {
            return call;
        }
        let handle = handle();
        let handle = handle.as_bytes();
        CallId { fh_hash: handle_hash(handle), export_id: claimed_export_id(handle), ..call }
    }

    /// Traces an event of an operation that begins somewhere and asks for so much.
    pub(crate) fn trace(
        &self,
        event: Event,
        call: impl FnOnce() -> CallId,
        (offset, len): (u64, u32),
        detail: Detail<'_>,
    ) {
        let tracer = &self.service.tracer;
        if tracer.is_on(event) {
            tracer.emit(event, call(), offset, len.into(), detail);
        }
    }

    /// The subject of trace events of this call on no object.
    pub(crate) fn call_id_without_handle(&self) -> CallId {
        CallId {
            xid: self.xid,
            fh_hash: 0,
            export_id: None,
            client: self.peer.address.ip().to_canonical(),
            received: self.received,
            record: self.record,
            outlasts: false,
        }
    }
}

/// The flavor of a call's credential, and the ids in it. A flavor that is not interpreted is
/// denied.
pub(crate) fn credential(
    call: &Call,
) -> Result<(export::Flavor, Option<export::Credential<'_>>), Refusal> {
    match &call.credential {
        Credential::None => Ok((export::Flavor::None, None)),
        Credential::Sys(sys) => {
            let ids = export::Credential { uid: sys.uid, gid: sys.gid, groups: &sys.gids };
            Ok((export::Flavor::Sys, Some(ids)))
        }
        Credential::Other { .. } => {
            Err(Refusal::Denied(RejectStat::AuthError(AuthStat::RejectedCred)))
        }
    }
}

/// Where a call comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) peer: Peer,
    /// The connection that its reply goes to.
    pub(crate) link: &'a Arc<Link>,
    /// The counters of the peer's address.
    pub(crate) client: &'a ClientCounters,
    /// When its last byte was there.
    pub(crate) received: Moment,
    pub(crate) is_timed: bool,
    /// From there to the thread that begins the work, if it was handed to one.
    pub(crate) queue_ns: Option<u64>,
    pub(crate) record: RecordId,
}

impl Origin<'_> {
    /// How long the call has waited for threads, now that it ends, if it was handed to any: before
    /// the work began, and since then where it came to what a network thread must not wait for.
    pub(crate) fn queue_ns(&self) -> Option<u64> {
        let asked = u64::try_from(Share::current_wait().as_nanos()).unwrap_or(u64::MAX);
        let asked = (asked > 0).then_some(asked);
        self.queue_ns.map_or(asked, |begun| Some(begun.saturating_add(asked.unwrap_or(0))))
    }

    /// The time of the whole call, which ends now, if it is timed.
    pub(crate) fn time_ns(&self, ended: &mut Option<Moment>) -> Option<u64> {
        let now = || ended.insert(Moment::now()).nanoseconds_since(self.received);
        self.is_timed.then(now)
    }
}

/// The first [fault](Status::is_fault) of a call.
#[derive(Default)]
pub(crate) struct Fault(OnceLock<Status>);

impl Fault {
    /// Notes the status of a call if it is a fault.
    pub(crate) fn note(&self, status: Status) {
        if status.is_fault() {
            self.0.get_or_init(|| status);
        }
    }

    pub(crate) fn status(&self) -> Option<Status> {
        self.0.get().copied()
    }
}

/// The bytes that operations of a COMPOUND have moved, for each export with limits.
#[derive(Debug, Default)]
pub(crate) struct Moved(Vec<(u32, u64)>);

impl Moved {
    /// Notes what an operation on an export has moved.
    pub(crate) fn note(&mut self, export: u32, bytes: u64) {
        match self.0.iter_mut().find(|(id, _)| *id == export) {
            Some((_, sum)) => *sum += bytes,
            None => self.0.push((export, bytes)),
        }
    }

    /// The ids of the exports, and the bytes.
    pub(crate) fn exports(&self) -> &[(u32, u64)] {
        &self.0
    }
}

/// Why a call is not answered with results.
pub(crate) enum Refusal {
    /// Refused at the door.
    Denied(RejectStat),
    /// Accepted and not executed.
    NotExecuted(AcceptStat),
}

/// The outcome of a call that was not refused.
pub(crate) enum Handled {
    /// It was executed. Its results stand in the reply's head, the data of a READ comes behind
    /// them, and then the tail; `charge` is held for long ones; the receipt is that of a stored
    /// reply.
    Executed {
        payload: Option<Payload>,
        tail: Vec<u8>,
        charge: Vec<Buffer>,
        receipt: Option<Arc<Receipt>>,
    },
    /// It repeats a call that was executed.
    FromReplyCache(Replay),
    /// It repeats a COMPOUND that was executed. The results that its slot has kept stand in the
    /// reply's head.
    FromSlot,
    /// It repeats a call of the same connection that is at work.
    InProgress,
}

impl Handled {
    /// An executed call whose reply is not stored.
    pub(crate) const fn executed(payload: Option<Payload>) -> Self {
        Self::Executed { payload, tail: Vec::new(), charge: Vec::new(), receipt: None }
    }
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        tracing::debug!(%error, "cannot decode the arguments");
        Self::NotExecuted(AcceptStat::GarbageArgs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_of_a_call_is_noted() {
        let fault = Fault::default();
        fault.note(Status::NoEntry);
        assert_eq!(fault.status(), None);
        fault.note(Status::Io(rustix::io::Errno::IO));
        fault.note(Status::ServerFault);
        assert_eq!(fault.status(), Some(Status::Io(rustix::io::Errno::IO)));
    }

    #[test]
    fn what_was_moved_is_summed_for_each_export() {
        let mut moved = Moved::default();
        for (export, bytes) in [(1, 10), (2, 5), (1, 7)] {
            moved.note(export, bytes);
        }
        assert_eq!(moved.exports(), [(1, 17), (2, 5)]);
    }
}
