//! Callbacks: CB_COMPOUND with CB_SEQUENCE, CB_NOTIFY_LOCK and CB_RECALL, RFC 8881 §20. The result
//! of CB_COMPOUND has the form of [`CompoundResult`](super::CompoundResult).

use super::attr::NoItems;
use super::types::{
    FileHandle, LockOwner, OPAQUE_BYTES_MAX, SequenceId, SessionId, SlotId, Stateid,
};
use crate::xdr::xdr_struct;

/// `CB_COMPOUND4args` up to the operations, which follow one by one: a number and its arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CallbackHead<'a> {
    /// For the server's use; comes back in the reply.
    pub tag: &'a [u8],
    /// That of the session's COMPOUNDs.
    pub minor_version: u32,
    /// Of minor version 0; zero.
    pub callback_ident: u32,
    /// The operations that follow.
    pub operations: u32,
}

xdr_struct!(CallbackHead<'a> {
    tag: opaque(OPAQUE_BYTES_MAX),
    minor_version: u32,
    callback_ident: u32,
    operations: u32,
});

/// Arguments of CB_SEQUENCE, §20.9.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CallbackSequenceArgs {
    /// The session.
    pub session: SessionId,
    /// One more than that of the slot's last callback.
    pub sequence: SequenceId,
    /// The slot.
    pub slot: SlotId,
    /// The highest slot that the server uses.
    pub highest_slot: SlotId,
    /// The reply is to be kept for a retry.
    pub cache_this: bool,
    /// Calls that the callback refers to.
    pub referring: NoItems,
}

xdr_struct!(CallbackSequenceArgs {
    session,
    sequence,
    slot,
    highest_slot,
    cache_this: bool,
    referring,
});

/// Arguments of CB_NOTIFY_LOCK, §20.11.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CallbackNotifyLockArgs<'a> {
    /// The file.
    pub object: FileHandle,
    /// Whose request can be granted now.
    pub owner: LockOwner<'a>,
}

xdr_struct!(CallbackNotifyLockArgs<'a> { object, owner });

/// Arguments of CB_RECALL, §20.2.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CallbackRecallArgs {
    /// The delegation.
    pub stateid: Stateid,
    /// The file is about to be cut to nothing: of a delegation for writing.
    pub truncate: bool,
    /// The file.
    pub object: FileHandle,
}

xdr_struct!(CallbackRecallArgs { stateid, truncate: bool, object });

/// The version of the callback program. §18.36.3 has 4 where the protocol's XDR, and clients, have
/// 1.
pub const CALLBACK_VERSION: u32 = 1;
/// CB_COMPOUND, §19.2.
pub const CB_COMPOUND: u32 = 1;
/// CB_RECALL, §20.2.
pub const CB_RECALL: u32 = 4;
/// CB_SEQUENCE, §20.9.
pub const CB_SEQUENCE: u32 = 11;
/// CB_NOTIFY_LOCK, §20.11.
pub const CB_NOTIFY_LOCK: u32 = 13;
