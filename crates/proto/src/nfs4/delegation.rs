//! Delegations in the arguments and results of OPEN, RFC 8881 §18.16 and RFC 9754.

use super::types::Stateid;
use crate::xdr::{Decode, DecodeError, Encode, Reader, Writer, xdr_enum};

/// The bits that say which delegation is wanted, §18.16.1.
pub const SHARE_WANT_MASK: u32 = 0xff00;
/// One for reading is wanted: `OPEN4_SHARE_ACCESS_WANT_READ_DELEG`.
pub const SHARE_WANT_READ_DELEGATION: u32 = 0x100;
/// One for writing: `OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG`.
pub const SHARE_WANT_WRITE_DELEGATION: u32 = 0x200;
/// Any: `OPEN4_SHARE_ACCESS_WANT_ANY_DELEG`.
pub const SHARE_WANT_ANY_DELEGATION: u32 = 0x300;
/// None: `OPEN4_SHARE_ACCESS_WANT_NO_DELEG`.
pub const SHARE_WANT_NO_DELEGATION: u32 = 0x400;
/// The client waits for none any more: `OPEN4_SHARE_ACCESS_WANT_CANCEL`.
pub const SHARE_WANT_CANCEL: u32 = 0x500;
/// The wants that come with conditions, and those of RFC 9754.
pub const SHARE_WHEN_MASK: u32 = 0x3f_0000;

xdr_enum! {
    /// `open_delegation_type4`, §18.16.1 and RFC 9754 §5.
    pub enum DelegationType: "open_delegation_type4" {
        /// None.
        None = 0 "OPEN_DELEGATE_NONE",
        /// For reading.
        Read = 1 "OPEN_DELEGATE_READ",
        /// For writing.
        Write = 2 "OPEN_DELEGATE_WRITE",
        /// None, with a reason.
        NoneExt = 3 "OPEN_DELEGATE_NONE_EXT",
    }
}

xdr_enum! {
    /// `why_no_delegation4`, §18.16.2.
    pub enum WhyNoDelegation: "why_no_delegation4" {
        /// It was not wanted.
        NotWanted = 0 "WND4_NOT_WANTED",
        /// Others use the file in a way that conflicts with it, or did lately.
        Contention = 1 "WND4_CONTENTION",
        /// The server has no means to give it, or no more of them.
        Resource = 2 "WND4_RESOURCE",
        /// The server does not delegate this kind of file.
        NotSupported = 3 "WND4_NOT_SUPP_FTYPE",
        /// The server does not delegate this kind of file for writing.
        WriteNotSupported = 4 "WND4_WRITE_DELEG_NOT_SUPP_FTYPE",
        /// The client has one for reading, which cannot become one for writing.
        NoUpgrade = 5 "WND4_NOT_SUPP_UPGRADE",
        /// The client has one for writing, which cannot become one for reading.
        NoDowngrade = 6 "WND4_NOT_SUPP_DOWNGRADE",
        /// It was being asked for while it was cancelled.
        Cancelled = 7 "WND4_CANCELLED",
        /// Directories have delegations of their own.
        IsDirectory = 8 "WND4_IS_DIR",
    }
}

impl WhyNoDelegation {
    /// Whether it comes with a promise to tell the client when that changes.
    fn has_promise(self) -> bool {
        matches!(self, Self::Contention | Self::Resource)
    }
}

/// `open_delegation4` as this server gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenDelegation {
    /// `OPEN_DELEGATE_NONE`.
    None,
    /// `OPEN_DELEGATE_READ`. Its access control entry permits nothing: the client asks by ACCESS
    /// who may open the file.
    Read {
        /// The delegation.
        stateid: Stateid,
        /// The server wants it back at once.
        recall: bool,
    },
    /// `OPEN_DELEGATE_NONE_EXT`, to a client that said which it wants. No promise to tell it when
    /// that changes.
    Why(WhyNoDelegation),
}

impl Decode<'_> for OpenDelegation {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "open_delegation4", at_byte: r.position() };
        match DelegationType::decode(r)? {
            DelegationType::None => Ok(Self::None),
            DelegationType::Read => {
                let (stateid, recall) = (Decode::decode(r)?, r.bool("recall")?);
                for (part, name) in PERMISSIONS {
                    if r.u32(name)? != part {
                        return Err(failure);
                    }
                }
                let who = r.opaque(EVERYONE.len(), "nfsace4.who")?;
                if who == EVERYONE { Ok(Self::Read { stateid, recall }) } else { Err(failure) }
            }
            DelegationType::NoneExt => {
                let why = WhyNoDelegation::decode(r)?;
                if why.has_promise() {
                    r.bool("ond_server_will_push_deleg")?;
                }
                Ok(Self::Why(why))
            }
            DelegationType::Write => Err(failure),
        }
    }
}

impl Encode for OpenDelegation {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::None => DelegationType::None.encode(w),
            Self::Read { stateid, recall } => {
                DelegationType::Read.encode(w);
                stateid.encode(w);
                w.bool(*recall);
                PERMISSIONS.iter().for_each(|(part, _)| w.u32(*part));
                w.opaque(EVERYONE);
            }
            Self::Why(why) => {
                DelegationType::NoneExt.encode(w);
                why.encode(w);
                if why.has_promise() {
                    w.bool(false);
                }
            }
        }
    }
}

/// An `nfsace4` that allows (§6.2.1.1), has no flags, and permits nothing.
const PERMISSIONS: [(u32, &str); 3] =
    [(0, "nfsace4.type"), (0, "nfsace4.flag"), (0, "nfsace4.access_mask")];
const EVERYONE: &[u8] = b"EVERYONE@";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    fn encoded(delegation: &OpenDelegation) -> Vec<u8> {
        let mut w = Writer::new();
        delegation.encode(&mut w);
        w.into_vec()
    }

    #[test]
    fn every_reason_is_read_back() {
        let whys = WhyNoDelegation::ALL.iter().map(|why| OpenDelegation::Why(*why));
        let read = OpenDelegation::Read { stateid: Stateid::ANONYMOUS, recall: true };
        for delegation in whys.chain([OpenDelegation::None, read]) {
            assert_eq!(decode_all(&encoded(&delegation)), Ok(delegation));
        }
        let contention = encoded(&OpenDelegation::Why(WhyNoDelegation::Contention));
        assert_eq!(contention, [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0], "with no promise");
    }

    #[test]
    fn an_entry_that_permits_something_is_not_ours() {
        let mut bytes =
            encoded(&OpenDelegation::Read { stateid: Stateid::ANONYMOUS, recall: false });
        let mask = bytes.len() - (4 + EVERYONE.len().next_multiple_of(4)) - 1;
        bytes[mask] = 1;
        assert!(decode_all::<OpenDelegation>(&bytes).is_err());
    }
}
