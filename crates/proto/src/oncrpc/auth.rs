//! Credentials and their refusal, RFC 5531 §8.2, §9 and appendix A.

use std::fmt;
use std::ops::Deref;

use crate::xdr::{
    Decode, DecodeError, Encode, Escaped, Reader, Writer, decode_all, xdr_enum, xdr_struct,
};

/// The caller's identity as the caller claims it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Credential<'a> {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys<'a>),
    /// A flavor this crate does not look into.
    Other {
        /// The flavor's number; neither AUTH_NONE nor AUTH_SYS.
        flavor: u32,
        /// Its body, at most [`AUTH_BODY_BYTES_MAX`].
        body: &'a [u8],
    },
}

impl<'a> Credential<'a> {
    /// The flavor's number on the wire.
    #[must_use]
    pub const fn flavor(&self) -> u32 {
        match self {
            Self::None => FLAVOR_NONE,
            Self::Sys(_) => FLAVOR_SYS,
            Self::Other { flavor, .. } => *flavor,
        }
    }

    /// Interprets an `opaque_auth` whose bounds already hold.
    ///
    /// An AUTH_NONE with a body is refused: its meaning is undefined (RFC 5531 §10.1) and no client
    /// sends one.
    pub(super) fn from_parts(flavor: u32, body: &'a [u8]) -> Result<Self, DecodeError> {
        match flavor {
            FLAVOR_NONE => decode_all(body).map(|()| Self::None),
            FLAVOR_SYS => decode_all(body).map(Self::Sys),
            _ => Ok(Self::Other { flavor, body }),
        }
    }
}

impl Encode for Credential<'_> {
    fn encode(&self, w: &mut Writer) {
        w.u32(self.flavor());
        match self {
            Self::None => w.opaque(&[]),
            Self::Sys(sys) => {
                let len_at = w.len();
                w.u32(0);
                sys.encode(w);
                let len = w.len() - len_at - 4;
                w.patch_u32(len_at, u32::try_from(len).expect("an AUTH_SYS body is small"));
            }
            Self::Other { body, .. } => w.opaque(body),
        }
    }
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Sys(sys) => f.debug_tuple("Sys").field(sys).finish(),
            Self::Other { flavor, body } => f
                .debug_struct("Other")
                .field("flavor", flavor)
                .field("body", &Escaped(body))
                .finish(),
        }
    }
}

/// `authsys_parms`, RFC 5531 appendix A: a claim that only the network's trust stands behind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// An arbitrary number of the caller's.
    pub stamp: u32,
    /// The caller's host name, at most [`MACHINE_NAME_BYTES_MAX`].
    pub machine_name: &'a [u8],
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub gids: Gids,
}

xdr_struct!(AuthSys<'a> {
    stamp: u32,
    machine_name: opaque(MACHINE_NAME_BYTES_MAX),
    uid: u32,
    gid: u32,
    gids,
});

/// Up to [`GIDS_MAX`] supplementary groups, held inline.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gids {
    /// Zero behind the first `len`, so that the derived equality is that of the lists.
    gids: [u32; GIDS_MAX],
    len: usize,
}

impl Gids {
    /// Copies a list; `None` when it is longer than AUTH_SYS can carry.
    #[must_use]
    pub fn new(list: &[u32]) -> Option<Self> {
        let mut gids = [0; GIDS_MAX];
        gids.get_mut(..list.len())?.copy_from_slice(list);
        Some(Self { gids, len: list.len() })
    }
}

impl Deref for Gids {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.gids[..self.len]
    }
}

impl fmt::Debug for Gids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Decode<'_> for Gids {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "AuthSys.gids", at_byte: r.position() };
        let len = usize::try_from(r.u32(failure.what)?).map_err(|_| failure)?;
        let mut gids = [0; GIDS_MAX];
        for gid in gids.get_mut(..len).ok_or(failure)? {
            *gid = r.u32(failure.what)?;
        }
        Ok(Self { gids, len })
    }
}

impl Encode for Gids {
    fn encode(&self, w: &mut Writer) {
        w.u32(u32::try_from(self.len).expect("at most 16 groups"));
        for gid in self.iter() {
            w.u32(*gid);
        }
    }
}

xdr_enum! {
    /// `auth_stat`, RFC 5531 §9: why a credential or verifier was refused.
    pub enum AuthStat: "auth_stat" {
        /// Success; never sent in a refusal.
        Ok = 0 "AUTH_OK",
        /// The credential is not well formed.
        BadCred = 1 "AUTH_BADCRED",
        /// The client must begin a new session.
        RejectedCred = 2 "AUTH_REJECTEDCRED",
        /// The verifier is not well formed.
        BadVerf = 3 "AUTH_BADVERF",
        /// The verifier expired or was replayed.
        RejectedVerf = 4 "AUTH_REJECTEDVERF",
        /// The flavor is too weak for what was asked.
        TooWeak = 5 "AUTH_TOOWEAK",
        /// The server's verifier is not valid.
        InvalidResp = 6 "AUTH_INVALIDRESP",
        /// Any other reason.
        Failed = 7 "AUTH_FAILED",
        /// Kerberos: generic error.
        KerbGeneric = 8 "AUTH_KERB_GENERIC",
        /// Kerberos: the credential's time is over.
        TimeExpire = 9 "AUTH_TIMEEXPIRE",
        /// Kerberos: trouble with the ticket file.
        TktFile = 10 "AUTH_TKT_FILE",
        /// Kerberos: the authenticator cannot be decoded.
        Decode = 11 "AUTH_DECODE",
        /// Kerberos: wrong network address in the ticket.
        NetAddr = 12 "AUTH_NET_ADDR",
        /// RPCSEC_GSS: no credentials for the user.
        GssCredProblem = 13 "RPCSEC_GSS_CREDPROBLEM",
        /// RPCSEC_GSS: trouble with the context.
        GssCtxProblem = 14 "RPCSEC_GSS_CTXPROBLEM",
    }
}

/// AUTH_NONE.
pub const FLAVOR_NONE: u32 = 0;
/// AUTH_SYS, once called AUTH_UNIX.
pub const FLAVOR_SYS: u32 = 1;
/// AUTH_SHORT.
pub const FLAVOR_SHORT: u32 = 2;
/// RPCSEC_GSS, RFC 2203.
pub const FLAVOR_RPCSEC_GSS: u32 = 6;
/// Bound of an `opaque_auth` body, RFC 5531 §8.2.
pub const AUTH_BODY_BYTES_MAX: usize = 400;
/// Bound of `machinename`, RFC 5531 appendix A.
pub const MACHINE_NAME_BYTES_MAX: usize = 255;
/// Bound of `gids`, RFC 5531 appendix A.
pub const GIDS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_auth_sys_body_has_to_be_exact() {
        // stamp 1, machine "ab", uid 2, gid 3, one group 4.
        let body = [
            0, 0, 0, 1, 0, 0, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0,
            4,
        ];
        let gids = Gids::new(&[4]).unwrap();
        let sys = AuthSys { stamp: 1, machine_name: b"ab", uid: 2, gid: 3, gids };
        assert_eq!(Credential::from_parts(FLAVOR_SYS, &body), Ok(Credential::Sys(sys)));
        let what = "AuthSys.gids";
        let short = Credential::from_parts(FLAVOR_SYS, &body[..24]);
        assert_eq!(short, Err(DecodeError { what, at_byte: 24 }));
        let longer = [body.as_slice(), &[0; 4]].concat();
        let long = Credential::from_parts(FLAVOR_SYS, &longer);
        assert_eq!(long, Err(DecodeError { what: "end of record", at_byte: 28 }));
    }

    #[test]
    fn groups_are_at_most_sixteen() {
        let list: Vec<u32> = (0..17).collect();
        assert_eq!(Gids::new(&list), None);
        assert_eq!(&*Gids::new(&list[..16]).unwrap(), &list[..16]);

        let mut w = Writer::new();
        w.u32(17);
        list.iter().for_each(|gid| w.u32(*gid));
        let failure = DecodeError { what: "AuthSys.gids", at_byte: 0 };
        assert_eq!(decode_all::<Gids>(w.as_slice()), Err(failure));
        w.patch_u32(0, u32::MAX);
        assert_eq!(decode_all::<Gids>(w.as_slice()), Err(failure));
    }

    #[test]
    fn auth_none_has_no_body() {
        assert_eq!(Credential::from_parts(FLAVOR_NONE, &[]), Ok(Credential::None));
        assert!(Credential::from_parts(FLAVOR_NONE, &[0; 4]).is_err());
    }
}
