//! Opens and locks: RFC 8881 §18.2, §18.6, §18.10 to §18.12, §18.16, §18.18, §18.38 and §18.48.

use super::attr::RawAttributes;
use super::delegation::{DelegationType, OpenDelegation};
use super::types::{
    Bitmap, ChangeInfo, LockOwner, LockRange, LockType, NAME_BYTES_MAX, OpenOwner, Stateid,
    Verifier,
};
use crate::xdr::{Array, Decode, DecodeError, Encode, Reader, Writer, xdr_struct};

/// The bits of a share access that are the access itself, §18.16.1; the others are wants.
pub const SHARE_ACCESS_MASK: u32 = 0x3;
/// `openflag4` and `createhow4`, §18.16.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow<'a> {
    /// The file must exist.
    NoCreate,
    /// Take what exists, and cut it if a length is given.
    Unchecked(RawAttributes<'a>),
    /// The file must not exist.
    Guarded(RawAttributes<'a>),
    /// As [`OpenHow::Exclusive`], with attributes to set.
    Exclusive {
        /// A file that was made with it is taken.
        verifier: Verifier,
        /// For a new file; empty for `EXCLUSIVE4`.
        attributes: Option<RawAttributes<'a>>,
    },
}

const UNCHECKED4: u32 = 0;
const GUARDED4: u32 = 1;
const EXCLUSIVE4: u32 = 2;
const EXCLUSIVE4_1: u32 = 3;

impl<'a> Decode<'a> for OpenHow<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if !r.bool("opentype4")? {
            return Ok(Self::NoCreate);
        }
        let failure = DecodeError { what: "createmode4", at_byte: r.position() };
        Ok(match r.u32(failure.what)? {
            UNCHECKED4 => Self::Unchecked(Decode::decode(r)?),
            GUARDED4 => Self::Guarded(Decode::decode(r)?),
            EXCLUSIVE4 => Self::Exclusive { verifier: Decode::decode(r)?, attributes: None },
            EXCLUSIVE4_1 => Self::Exclusive {
                verifier: Decode::decode(r)?,
                attributes: Some(Decode::decode(r)?),
            },
            _ => return Err(failure),
        })
    }
}

impl Encode for OpenHow<'_> {
    fn encode(&self, w: &mut Writer) {
        w.bool(*self != Self::NoCreate);
        match self {
            Self::NoCreate => {}
            Self::Unchecked(attributes) => {
                w.u32(UNCHECKED4);
                attributes.encode(w);
            }
            Self::Guarded(attributes) => {
                w.u32(GUARDED4);
                attributes.encode(w);
            }
            Self::Exclusive { verifier, attributes } => {
                w.u32(if attributes.is_some() { EXCLUSIVE4_1 } else { EXCLUSIVE4 });
                verifier.encode(w);
                if let Some(attributes) = attributes {
                    attributes.encode(w);
                }
            }
        }
    }
}

/// `open_claim4`, §18.16.1: how the file is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenClaim<'a> {
    /// By its name in the current directory.
    Null(&'a [u8]),
    /// The current filehandle is the file, which was open before the server restarted.
    Previous(DelegationType),
    /// By its name, under a delegation that the client holds.
    DelegateCurrent(Stateid, &'a [u8]),
    /// By its name, under a delegation of before the restart.
    DelegatePrevious(&'a [u8]),
    /// The current filehandle is the file.
    Handle,
    /// The current filehandle is the file, under a delegation that the client holds.
    DelegateCurrentHandle(Stateid),
    /// The current filehandle is the file, under a delegation of before the restart.
    DelegatePreviousHandle,
}

impl<'a> Decode<'a> for OpenClaim<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "open_claim_type4", at_byte: r.position() };
        let claim = r.u32(failure.what)?;
        let name = |r: &mut Reader<'a>| r.opaque(NAME_BYTES_MAX, "open_claim4.file");
        Ok(match claim {
            0 => Self::Null(name(r)?),
            1 => Self::Previous(Decode::decode(r)?),
            2 => Self::DelegateCurrent(Decode::decode(r)?, name(r)?),
            3 => Self::DelegatePrevious(name(r)?),
            4 => Self::Handle,
            5 => Self::DelegateCurrentHandle(Decode::decode(r)?),
            6 => Self::DelegatePreviousHandle,
            _ => return Err(failure),
        })
    }
}

impl Encode for OpenClaim<'_> {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Null(name) => {
                w.u32(0);
                w.opaque(name);
            }
            Self::Previous(delegation) => {
                w.u32(1);
                delegation.encode(w);
            }
            Self::DelegateCurrent(stateid, name) => {
                w.u32(2);
                stateid.encode(w);
                w.opaque(name);
            }
            Self::DelegatePrevious(name) => {
                w.u32(3);
                w.opaque(name);
            }
            Self::Handle => w.u32(4),
            Self::DelegateCurrentHandle(stateid) => {
                w.u32(5);
                stateid.encode(w);
            }
            Self::DelegatePreviousHandle => w.u32(6),
        }
    }
}

/// Arguments of OPEN, §18.16. The sequence number of minor version 0 in front of them is ignored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenArgs<'a> {
    /// Not used by minor version 1.
    pub seqid: u32,
    /// A [`ShareAccess`](super::ShareAccess) and wants.
    pub share_access: u32,
    /// A [`ShareDeny`](super::ShareDeny).
    pub share_deny: u32,
    /// The owner of the open.
    pub owner: OpenOwner<'a>,
    /// Whether to make the file.
    pub how: OpenHow<'a>,
    /// Which file.
    pub claim: OpenClaim<'a>,
}

xdr_struct!(OpenArgs<'a> {
    seqid: u32,
    share_access: u32,
    share_deny: u32,
    owner,
    how,
    claim,
});

/// Locks behave as POSIX has it. `OPEN4_RESULT_*`, §18.16.2.
pub const OPEN_RESULT_LOCKTYPE_POSIX: u32 = 4;
/// The server may send `CB_NOTIFY_LOCK`.
pub const OPEN_RESULT_MAY_NOTIFY_LOCK: u32 = 0x20;

/// Result of OPEN.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenOk {
    /// The open.
    pub stateid: Stateid,
    /// Of the directory; all zero if the claim names none.
    pub change: ChangeInfo,
    /// `OPEN_RESULT_*`.
    pub flags: u32,
    /// The attributes that were set.
    pub attributes_set: Bitmap,
    /// A delegation, or none.
    pub delegation: OpenDelegation,
}

xdr_struct!(OpenOk { stateid, change, flags: u32, attributes_set, delegation });

/// Arguments of `OPEN_DOWNGRADE`, §18.18.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenDowngradeArgs {
    /// The open.
    pub stateid: Stateid,
    /// Not used by minor version 1.
    pub seqid: u32,
    /// A [`ShareAccess`](super::ShareAccess) and wants.
    pub share_access: u32,
    /// A [`ShareDeny`](super::ShareDeny).
    pub share_deny: u32,
}

xdr_struct!(OpenDowngradeArgs { stateid, seqid: u32, share_access: u32, share_deny: u32 });

/// Arguments of CLOSE, §18.2.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CloseArgs {
    /// Not used by minor version 1.
    pub seqid: u32,
    /// The open.
    pub stateid: Stateid,
}

xdr_struct!(CloseArgs { seqid: u32, stateid });

/// Arguments of `FREE_STATEID`, §18.38, and of DELEGRETURN, §18.6; result of CLOSE, LOCK, LOCKU and
/// `OPEN_DOWNGRADE`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OneStateid {
    /// The state.
    pub stateid: Stateid,
}

xdr_struct!(OneStateid { stateid });

/// Stateids of one `TEST_STATEID`.
pub const TEST_STATEIDS_MAX: usize = 256;

/// Arguments of `TEST_STATEID`, §18.48.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TestStateidArgs<'a> {
    /// The stateids to test, at most [`TEST_STATEIDS_MAX`].
    pub stateids: Array<'a, Stateid, TEST_STATEIDS_MAX>,
}

xdr_struct!(TestStateidArgs<'a> { stateids });

/// Result of `TEST_STATEID`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TestStateidOk<'a> {
    /// An `nfsstat4` for each.
    pub statuses: Array<'a, u32, TEST_STATEIDS_MAX>,
}

xdr_struct!(TestStateidOk<'a> { statuses });

/// `locker4`, §18.10.1: whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locker<'a> {
    /// The owner's first lock of the file.
    New {
        /// Not used by minor version 1.
        open_seqid: u32,
        /// The open.
        open: Stateid,
        /// Not used by minor version 1.
        lock_seqid: u32,
        /// The owner of the lock.
        owner: LockOwner<'a>,
    },
    /// A further one.
    Existing {
        /// The owner's locks of the file.
        stateid: Stateid,
        /// Not used by minor version 1.
        lock_seqid: u32,
    },
}

impl<'a> Decode<'a> for Locker<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match r.bool("locker4")? {
            true => Self::New {
                open_seqid: r.u32("open_to_lock_owner4.open_seqid")?,
                open: Decode::decode(r)?,
                lock_seqid: r.u32("open_to_lock_owner4.lock_seqid")?,
                owner: Decode::decode(r)?,
            },
            false => Self::Existing {
                stateid: Decode::decode(r)?,
                lock_seqid: r.u32("exist_lock_owner4.lock_seqid")?,
            },
        })
    }
}

impl Encode for Locker<'_> {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::New { open_seqid, open, lock_seqid, owner } => {
                w.bool(true);
                w.u32(*open_seqid);
                open.encode(w);
                w.u32(*lock_seqid);
                owner.encode(w);
            }
            Self::Existing { stateid, lock_seqid } => {
                w.bool(false);
                stateid.encode(w);
                w.u32(*lock_seqid);
            }
        }
    }
}

/// Arguments of LOCK, §18.10.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LockArgs<'a> {
    /// Shared or exclusive.
    pub kind: LockType,
    /// The lock was held before the server restarted.
    pub reclaim: bool,
    /// The bytes to lock.
    pub range: LockRange,
    /// For whom.
    pub locker: Locker<'a>,
}

xdr_struct!(LockArgs<'a> { kind, reclaim: bool, range, locker });

/// `LOCK4denied`, §18.10.2: the lock in the way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LockDenied<'a> {
    /// The bytes that it covers.
    pub range: LockRange,
    /// Shared or exclusive.
    pub kind: LockType,
    /// Whose it is.
    pub owner: LockOwner<'a>,
}

xdr_struct!(LockDenied<'a> { range, kind, owner });

/// Arguments of LOCKT, §18.11.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LocktArgs<'a> {
    /// Shared or exclusive.
    pub kind: LockType,
    /// The bytes to test for a lock in the way.
    pub range: LockRange,
    /// For whom.
    pub owner: LockOwner<'a>,
}

xdr_struct!(LocktArgs<'a> { kind, range, owner });

/// Arguments of LOCKU, §18.12.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LockuArgs {
    /// Ignored (§18.12.3).
    pub kind: LockType,
    /// Not used by minor version 1.
    pub seqid: u32,
    /// The owner's locks of the file.
    pub stateid: Stateid,
    /// The bytes to unlock.
    pub range: LockRange,
}

xdr_struct!(LockuArgs { kind, seqid: u32, stateid, range });
