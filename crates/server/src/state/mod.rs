//! The state of NFS version 4: clients, sessions, opens, locks, and the grace period, RFC 8881
//! §2.10, §8 and §9.
//!
//! Nothing here performs I/O or reads a clock: a [`Step`] brings the time, and takes back the
//! effects that remain to be performed. The caller performs them in order, without a lock of this
//! module, and before anything else: before a granted lock is mirrored to the kernel, and before
//! the reply.
//!
//! A client whose lease ran out keeps its state until another client needs it, as a courtesy. Then
//! it is forgotten as a whole, never in part. A stateid is revoked by itself when its export is not
//! served any more, and that of a delegation when its client does not return it in time.
//!
//! Locks: one for the sessions by id, one for each session's slots, one for all else. Under the
//! last one of the others may be taken, and nothing else is waited for under any.

mod administration;
mod backchannel;
mod callbacks;
mod clients;
mod courtesy;
mod create_session;
mod delegation;
mod delegation_table;
mod file_locks;
mod files;
mod grace;
mod hold_offs;
mod lease;
mod limits;
mod lock;
mod lock_states;
mod open;
mod open_rooms;
mod ranges;
mod registry;
mod replies;
mod revoked;
mod session;
mod shares;
mod slots;
mod stateids;
#[cfg(test)]
mod tests;
mod waiting;
mod writers;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::nfs4::{ClientId, SequenceId, SessionId, Status};

pub(crate) use backchannel::{Callback, CallbackEnd, CallbackParameters, Message, Notice, Recall};
pub(crate) use clients::{ExchangeId, ExchangedId};
pub(crate) use create_session::CreateSession;
#[cfg(test)]
pub(crate) use delegation_table::DelegationTotals;
pub(crate) use delegation_table::{Delegate, MEMORY_WAITS_MAX, NotDelegated};
pub(crate) use limits::Limits;
pub(crate) use lock::{Conflict, Lock, LockFailure, LockGrant, LockTarget, TestedLock};
pub(crate) use open::{IoState, OpenFailure, OpenFile, OpenRoom};
pub(crate) use ranges::{LockKind, Piece, Range};
pub(crate) use registry::State;
pub(crate) use session::{Begin, ChannelAttributes, Receiving, Running, Session};
pub(crate) use slots::Sequence;

/// The authenticated user behind a call. AUTH_SYS names it by the user id: the groups of a user may
/// change while it holds state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Principal {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    User(u32),
}

/// A TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// A file, by a number that is its own as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId(pub(crate) u64);

/// An export, by a number that is its own as long as a file is open in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExportId(pub(crate) u64);

/// A lock owner's grip on a file, through all its opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockId(pub(crate) u64);

/// A delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DelegationId(pub(crate) u64);

/// A client that may reclaim its state after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientRecord {
    /// `co_ownerid`.
    pub(crate) owner: Arc<[u8]>,
    pub(crate) principal: Principal,
}

/// A change of the records on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordChange {
    Write(ClientRecord),
    /// Remove the record of this owner.
    Remove(Arc<[u8]>),
}

impl RecordChange {
    pub(crate) fn owner(&self) -> &Arc<[u8]> {
        match self {
            Self::Write(client) => &client.owner,
            Self::Remove(owner) => owner,
        }
    }
}

/// CREATE_SESSION's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreatedSession {
    pub(crate) session: SessionId,
    pub(crate) sequence: SequenceId,
    pub(crate) fore: ChannelAttributes,
    pub(crate) back: ChannelAttributes,
    /// `CREATE_SESSION4_FLAG_CONN_BACK_CHAN`: the connection is bound in both directions.
    pub(crate) has_backchannel: bool,
}

/// An action that remains to be done after a change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Records have to change: perform [`State::record_changes`]. A client's record must be on the
    /// disk before its first state, and gone before others get what it lost.
    Records,
    /// An open ended: it pins its file no longer in the export.
    Unpin { file: FileId, export: ExportId },
    /// The parts of the range that the lock owner does not hold any more are to be unlocked.
    Unlock { file: FileId, lock: LockId, range: Range },
    /// The last lock state of an owner in a file ended: its ranges are unlocked and its descriptor
    /// closed.
    Release { file: FileId, lock: LockId },
    /// The owner's blocking request can be granted now: CB_NOTIFY_LOCK.
    NotifyLock { client: ClientId, notice: Notice },
    /// The client has to return a delegation: CB_RECALL.
    Recall { client: ClientId, recall: Recall },
    /// A delegation ended: it pins its file no longer, and nothing conflicts with it.
    EndDelegation { file: FileId, delegation: DelegationId },
    /// A call of a client from this address was put off for want of room.
    NoRoom { address: IpAddr, of: Bounded },
}

/// A kind of state whose amount [`Limits`] bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounded {
    Clients,
    Sessions,
    Opens,
    LockOwners,
    Locks,
}

impl Bounded {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Sessions => "sessions",
            Self::Opens => "opens",
            Self::LockOwners => "lock owners",
            Self::Locks => "locks",
        }
    }
}

/// Effects in the order in which they are to be performed.
pub(crate) type Effects = Vec<Effect>;

/// One change of the state, or several at the same time.
#[derive(Debug)]
#[must_use = "its effects have to be performed"]
pub(crate) struct Step {
    /// The time since the server's start.
    now: Duration,
    effects: Effects,
}

impl Step {
    pub(crate) fn new(now: Duration) -> Self {
        Self { now, effects: Effects::new() }
    }

    /// Reports a call that is put off for want of room.
    fn put_off(&mut self, address: IpAddr, of: Bounded) -> Status {
        self.effects.push(Effect::NoRoom { address, of });
        Status::Delay
    }

    /// The actions that remain to be done.
    pub(crate) fn into_effects(self) -> Effects {
        self.effects
    }
}
