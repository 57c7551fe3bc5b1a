//! Clients and sessions: RFC 8881 §18.33 to §18.37, §18.46, §18.50 and §18.51.

use std::fmt;

use super::types::{
    ClientId, ClientOwner, OPAQUE_BYTES_MAX, SequenceId, SessionId, SlotId, StateProtectHow, Time,
};
use crate::oncrpc::Gids;
use crate::xdr::{
    Array, Decode, DecodeError, Encode, Reader, UNBOUNDED, Writer, xdr_enum, xdr_struct,
};

/// The client ID may be moved to another server. `EXCHGID4_FLAG_*`, §18.35.1.
pub const EXCHGID_SUPP_MOVED_REFER: u32 = 0x1;
/// The client ID may be migrated.
pub const EXCHGID_SUPP_MOVED_MIGR: u32 = 0x2;
/// The data servers are fenced off as LAYOUTRETURN has it: of minor version 2, RFC 7862 §14.1.
pub const EXCHGID_SUPP_FENCE_OPS: u32 = 0x4;
/// Stateids are bound to principals.
pub const EXCHGID_BIND_PRINC_STATEID: u32 = 0x100;
/// The server is no metadata server.
pub const EXCHGID_USE_NON_PNFS: u32 = 0x1_0000;
/// It is a metadata server.
pub const EXCHGID_USE_PNFS_MDS: u32 = 0x2_0000;
/// It is a data server.
pub const EXCHGID_USE_PNFS_DS: u32 = 0x4_0000;
/// The call updates a confirmed record.
pub const EXCHGID_UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
/// The reply: the record is confirmed.
pub const EXCHGID_CONFIRMED_R: u32 = 0x8000_0000;
/// The flags that a call of minor version 1 may have.
pub const EXCHGID_CALL_FLAGS: u32 = EXCHGID_SUPP_MOVED_REFER
    | EXCHGID_SUPP_MOVED_MIGR
    | EXCHGID_BIND_PRINC_STATEID
    | EXCHGID_USE_NON_PNFS
    | EXCHGID_USE_PNFS_MDS
    | EXCHGID_USE_PNFS_DS
    | EXCHGID_UPD_CONFIRMED_REC_A;

/// The reply cache outlives the server. `CREATE_SESSION4_FLAG_*`, §18.36.1.
pub const CREATE_SESSION_PERSIST: u32 = 1;
/// The connection carries callbacks too.
pub const CREATE_SESSION_CONN_BACK_CHAN: u32 = 2;
/// The connection would change to RDMA.
pub const CREATE_SESSION_CONN_RDMA: u32 = 4;

/// All callback paths are down. `SEQ4_STATUS_*`, §18.46.1.
pub const SEQ4_STATUS_CB_PATH_DOWN: u32 = 0x1;
/// The administrator took state away.
pub const SEQ4_STATUS_ADMIN_STATE_REVOKED: u32 = 0x20;
/// Delegations were revoked.
pub const SEQ4_STATUS_RECALLABLE_STATE_REVOKED: u32 = 0x40;
/// The server has restarted, and the client must reclaim.
pub const SEQ4_STATUS_RESTART_RECLAIM_NEEDED: u32 = 0x100;
/// The session has no callback path.
pub const SEQ4_STATUS_CB_PATH_DOWN_SESSION: u32 = 0x200;

/// Operations of a state protection, `state_protect_ops4`: two bitmaps, which are passed over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProtectedOperations {
    /// `spo_must_enforce`.
    pub enforced: super::Bitmap,
    /// `spo_must_allow`.
    pub allowed: super::Bitmap,
}

xdr_struct!(ProtectedOperations { enforced, allowed });

/// `state_protect4_a` as far as the server has to understand it, §18.35.1. The rest of `SP4_SSV`,
/// which is refused, cannot be passed over and ends the COMPOUND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateProtection {
    /// `SP4_NONE`.
    None,
    /// `SP4_MACH_CRED`.
    MachCred(ProtectedOperations),
    /// `SP4_SSV`, whose parameters are not decoded.
    Ssv,
}

impl Decode<'_> for StateProtection {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match StateProtectHow::decode(r)? {
            StateProtectHow::None => Self::None,
            StateProtectHow::MachCred => Self::MachCred(Decode::decode(r)?),
            StateProtectHow::Ssv => Self::Ssv,
        })
    }
}

impl Encode for StateProtection {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::None => StateProtectHow::None.encode(w),
            Self::MachCred(operations) => {
                StateProtectHow::MachCred.encode(w);
                operations.encode(w);
            }
            Self::Ssv => StateProtectHow::Ssv.encode(w),
        }
    }
}

/// `nfs_impl_id4`, §3.3.19.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ImplementationId<'a> {
    /// A DNS domain.
    pub domain: &'a [u8],
    /// Name and version.
    pub name: &'a [u8],
    /// When it was built.
    pub date: Time,
}

xdr_struct!(ImplementationId<'a> {
    domain: opaque(OPAQUE_BYTES_MAX),
    name: opaque(OPAQUE_BYTES_MAX),
    date,
});

/// Arguments of `EXCHANGE_ID`, §18.35.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExchangeIdArgs<'a> {
    /// The client.
    pub owner: ClientOwner<'a>,
    /// `EXCHGID_*`.
    pub flags: u32,
    /// How the client's state is to be protected.
    pub protection: StateProtection,
}

/// The implementation's name follows unless the protection is `SP4_SSV`; it is passed over.
impl<'a> Decode<'a> for ExchangeIdArgs<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let owner = Decode::decode(r)?;
        let flags = r.u32("ExchangeIdArgs.flags")?;
        let protection = Decode::decode(r)?;
        if protection != StateProtection::Ssv {
            // An array of one at most goes as optional data does.
            Option::<ImplementationId<'_>>::decode(r)?;
        }
        Ok(Self { owner, flags, protection })
    }
}

impl Encode for ExchangeIdArgs<'_> {
    fn encode(&self, w: &mut Writer) {
        self.owner.encode(w);
        w.u32(self.flags);
        self.protection.encode(w);
        if self.protection != StateProtection::Ssv {
            w.bool(false);
        }
    }
}

impl fmt::Debug for ExchangeIdArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangeIdArgs")
            .field("owner", &self.owner)
            .field("flags", &self.flags)
            .field("protection", &self.protection)
            .finish()
    }
}

/// Result of `EXCHANGE_ID` without state protection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExchangeIdOk<'a> {
    /// The client's incarnation.
    pub client: ClientId,
    /// For the next `CREATE_SESSION`.
    pub sequence: SequenceId,
    /// `EXCHGID_*`.
    pub flags: u32,
    /// Always [`StateProtectHow::None`].
    pub protection: StateProtectHow,
    /// `so_minor_id`.
    pub server_minor: u64,
    /// `so_major_id`: equal where connections may be trunked.
    pub server_major: &'a [u8],
    /// Equal where locks are shared.
    pub server_scope: &'a [u8],
    /// `eir_server_impl_id`: an array of one at most, which goes as optional data does.
    pub implementation: Option<ImplementationId<'a>>,
}

xdr_struct!(ExchangeIdOk<'a> {
    client,
    sequence,
    flags: u32,
    protection,
    server_minor: u64,
    server_major: opaque(OPAQUE_BYTES_MAX),
    server_scope: opaque(OPAQUE_BYTES_MAX),
    implementation,
});

/// `channel_attrs4`, §18.36.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChannelAttributes {
    /// `ca_headerpadsize`.
    pub header_pad_bytes: u32,
    /// The longest call, with its RPC header.
    pub request_bytes_max: u32,
    /// The longest reply, with its RPC header.
    pub response_bytes_max: u32,
    /// The longest reply that a slot keeps, with its RPC header.
    pub cached_bytes_max: u32,
    /// Operations of one COMPOUND.
    pub operations_max: u32,
    /// Slots.
    pub requests_max: u32,
    /// `ca_rdma_ird`: an array of one at most, which goes as optional data does.
    pub rdma_ird: Option<u32>,
}

xdr_struct!(ChannelAttributes {
    header_pad_bytes: u32,
    request_bytes_max: u32,
    response_bytes_max: u32,
    cached_bytes_max: u32,
    operations_max: u32,
    requests_max: u32,
    rdma_ird,
});

/// `callback_sec_parms4`, §18.33.1: what callbacks may come as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackSecurity {
    /// `AUTH_NONE`.
    None,
    /// `AUTH_SYS` with these ids.
    Sys {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// `RPCSEC_GSS`, passed over.
    Gss,
}

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
const RPCSEC_GSS: u32 = 6;

impl Decode<'_> for CallbackSecurity {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "callback_sec_parms4", at_byte: r.position() };
        match r.u32(failure.what)? {
            AUTH_NONE => Ok(Self::None),
            AUTH_SYS => {
                r.u32("authsys_parms.stamp")?;
                r.opaque(255, "authsys_parms.machinename")?;
                let (uid, gid) = (r.u32("authsys_parms.uid")?, r.u32("authsys_parms.gid")?);
                Gids::decode(r)?;
                Ok(Self::Sys { uid, gid })
            }
            RPCSEC_GSS => {
                r.u32("gss_cb_handles4.service")?;
                r.opaque(UNBOUNDED, "gss_cb_handles4.server")?;
                r.opaque(UNBOUNDED, "gss_cb_handles4.client")?;
                Ok(Self::Gss)
            }
            _ => Err(failure),
        }
    }
}

impl Encode for CallbackSecurity {
    fn encode(&self, w: &mut Writer) {
        match *self {
            Self::None => w.u32(AUTH_NONE),
            Self::Sys { uid, gid } => {
                w.u32(AUTH_SYS);
                // Stamp, no machine name, ids, no groups.
                [0, 0, uid, gid, 0].iter().for_each(|word| w.u32(*word));
            }
            Self::Gss => {
                w.u32(RPCSEC_GSS);
                [1, 0, 0].iter().for_each(|word| w.u32(*word));
            }
        }
    }
}

/// Flavours that a client offers for callbacks.
pub const CALLBACK_SECURITY_MAX: usize = 8;

/// Arguments of `CREATE_SESSION`, §18.36.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CreateSessionArgs<'a> {
    /// From `EXCHANGE_ID`.
    pub client: ClientId,
    /// From `EXCHANGE_ID`, or one more than that of the last `CREATE_SESSION`.
    pub sequence: SequenceId,
    /// `CREATE_SESSION_*`.
    pub flags: u32,
    /// Of calls.
    pub fore: ChannelAttributes,
    /// Of callbacks.
    pub back: ChannelAttributes,
    /// The program number of callbacks.
    pub callback_program: u32,
    /// The credentials that callbacks may have, at most [`CALLBACK_SECURITY_MAX`].
    pub callback_security: Array<'a, CallbackSecurity, CALLBACK_SECURITY_MAX>,
}

xdr_struct!(CreateSessionArgs<'a> {
    client,
    sequence,
    flags: u32,
    fore,
    back,
    callback_program: u32,
    callback_security,
});

/// Result of `CREATE_SESSION`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CreateSessionOk {
    /// The session.
    pub session: SessionId,
    /// That of the call.
    pub sequence: SequenceId,
    /// `CREATE_SESSION_*`.
    pub flags: u32,
    /// Of calls.
    pub fore: ChannelAttributes,
    /// Of callbacks.
    pub back: ChannelAttributes,
}

xdr_struct!(CreateSessionOk { session, sequence, flags: u32, fore, back });

/// Arguments of `DESTROY_SESSION`, §18.37.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DestroySessionArgs {
    /// The session.
    pub session: SessionId,
}

xdr_struct!(DestroySessionArgs { session });

/// Arguments of `DESTROY_CLIENTID`, §18.50.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DestroyClientidArgs {
    /// The client.
    pub client: ClientId,
}

xdr_struct!(DestroyClientidArgs { client });

xdr_enum! {
    /// `channel_dir_from_client4` and `channel_dir_from_server4`, §18.34.1. As a call, `Both` is
    /// `CDFC4_FORE_OR_BOTH`, and [`ChannelDirection::BackOrBoth`] exists.
    pub enum ChannelDirection: "channel_dir4" {
        /// Calls.
        Fore = 1 "CDF4_FORE",
        /// Callbacks.
        Back = 2 "CDF4_BACK",
        /// Both; in a call: calls, and callbacks if the server likes.
        Both = 3 "CDF4_BOTH",
        /// In a call: callbacks, and calls if the server likes.
        BackOrBoth = 7 "CDFC4_BACK_OR_BOTH",
    }
}

/// Arguments and result of `BIND_CONN_TO_SESSION`, §18.34.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BindConnToSession {
    /// The session.
    pub session: SessionId,
    /// The channels that the connection is to carry, or carries.
    pub direction: ChannelDirection,
    /// The connection is to change to RDMA, or will.
    pub use_rdma: bool,
}

xdr_struct!(BindConnToSession { session, direction, use_rdma: bool });

/// Arguments of `BACKCHANNEL_CTL`, §18.33.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BackchannelCtlArgs<'a> {
    /// The program number of callbacks.
    pub callback_program: u32,
    /// The credentials that callbacks may have, at most [`CALLBACK_SECURITY_MAX`].
    pub callback_security: Array<'a, CallbackSecurity, CALLBACK_SECURITY_MAX>,
}

xdr_struct!(BackchannelCtlArgs<'a> { callback_program: u32, callback_security });

/// Arguments of SEQUENCE, §18.46.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SequenceArgs {
    /// The session.
    pub session: SessionId,
    /// One more than that of the slot's last call, or the same for a retry.
    pub sequence: SequenceId,
    /// The slot.
    pub slot: SlotId,
    /// The highest slot that the client uses.
    pub highest_slot: SlotId,
    /// The reply is to be kept for a retry.
    pub cache_this: bool,
}

xdr_struct!(SequenceArgs { session, sequence, slot, highest_slot, cache_this: bool });

/// Result of SEQUENCE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SequenceOk {
    /// The session.
    pub session: SessionId,
    /// That of the call.
    pub sequence: SequenceId,
    /// That of the call.
    pub slot: SlotId,
    /// The highest slot that the server accepts.
    pub highest_slot: SlotId,
    /// The highest slot that the server would like to be used.
    pub target_highest_slot: SlotId,
    /// `SEQ4_STATUS_*`.
    pub status_flags: u32,
}

xdr_struct!(SequenceOk {
    session,
    sequence,
    slot,
    highest_slot,
    target_highest_slot,
    status_flags: u32,
});

/// Arguments of `RECLAIM_COMPLETE`, §18.51.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReclaimCompleteArgs {
    /// Only for the file system of the current filehandle.
    pub one_fs: bool,
}

xdr_struct!(ReclaimCompleteArgs { one_fs: bool });
