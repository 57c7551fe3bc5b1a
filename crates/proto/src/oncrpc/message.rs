//! Call and reply headers, RFC 5531 §9.

use crate::oncrpc::auth::{AUTH_BODY_BYTES_MAX, AuthStat, Credential, FLAVOR_NONE};
use crate::xdr::{Decode, DecodeError, Encode, Reader, Writer};

/// `call_body` and the transaction id in front of it. The procedure's arguments follow on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHeader<'a> {
    /// The caller's number for this call, repeated in the reply.
    pub xid: u32,
    /// Program, such as 100003 for NFS.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of that version.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential<'a>,
    /// Flavor of the verifier. Its body is checked against its bound and dropped: no flavor that is
    /// interpreted here has one.
    pub verifier_flavor: u32,
}

impl Encode for CallHeader<'_> {
    fn encode(&self, w: &mut Writer) {
        for word in [self.xid, CALL, RPC_VERSION, self.program, self.version, self.procedure] {
            w.u32(word);
        }
        self.credential.encode(w);
        w.u32(self.verifier_flavor);
        w.opaque(&[]);
    }
}

/// Why a record is not a call to be dispatched.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The header ends early or is not RPC. There is no transaction id to trust, so no reply.
    #[error("malformed call header: {0}")]
    Malformed(#[from] DecodeError),
    /// A reply came where calls are served.
    #[error("the message is a reply, not a call")]
    NotACall,
    /// Another version of RPC: answer [`RejectStat::RpcMismatch`].
    #[error("call {xid:#010x} is not RPC version 2")]
    RpcMismatch {
        /// The call to answer.
        xid: u32,
    },
    /// Credential or verifier break their own format: answer [`RejectStat::AuthError`].
    #[error("call {xid:#010x} is refused: {}", stat.name())]
    BadCredential {
        /// The call to answer.
        xid: u32,
        /// What to answer.
        stat: AuthStat,
    },
}

/// Decodes a call header and leaves `r` at the procedure's arguments.
///
/// # Errors
/// One [`CallError`] for each thing that the caller must do: drop, or answer with a given refusal.
pub fn decode_call<'a>(r: &mut Reader<'a>) -> Result<CallHeader<'a>, CallError> {
    let xid = r.u32("xid")?;
    let at_byte = r.position();
    match r.u32("msg_type")? {
        CALL => {}
        REPLY => return Err(CallError::NotACall),
        _ => return Err(DecodeError { what: "msg_type", at_byte }.into()),
    }
    if r.u32("rpcvers")? != RPC_VERSION {
        return Err(CallError::RpcMismatch { xid });
    }
    let program = r.u32("prog")?;
    let version = r.u32("vers")?;
    let procedure = r.u32("proc")?;
    let refused = |stat| move |_| CallError::BadCredential { xid, stat };
    let flavor = r.u32("cred")?;
    let body = auth_body(r, "cred")?.map_err(refused(AuthStat::BadCred))?;
    let credential = Credential::from_parts(flavor, body).map_err(refused(AuthStat::BadCred))?;
    let verifier_flavor = r.u32("verf")?;
    auth_body(r, "verf")?.map_err(refused(AuthStat::BadVerf))?;
    Ok(CallHeader { xid, program, version, procedure, credential, verifier_flavor })
}

/// `reply_body` and the transaction id in front of it. After [`AcceptStat::Success`] the procedure's
/// results follow on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// The call was accepted, which does not mean that it was executed.
    Accepted {
        /// The call that this answers.
        xid: u32,
        /// What became of it.
        stat: AcceptStat,
    },
    /// The call with this transaction id was turned away at the door.
    Denied(u32, RejectStat),
}

impl ReplyHeader {
    /// The call that this answers.
    #[must_use]
    pub const fn xid(&self) -> u32 {
        match *self {
            Self::Accepted { xid, .. } | Self::Denied(xid, _) => xid,
        }
    }
}

/// `accept_stat`, RFC 5531 §9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptStat {
    /// Executed; results follow.
    Success,
    /// The program is not served here.
    ProgUnavail,
    /// The program is, but not in this version.
    ProgMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The version has no such procedure.
    ProcUnavail,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The server is at fault, for example out of memory.
    SystemErr,
}

/// `rejected_reply`, RFC 5531 §9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectStat {
    /// The call is not RPC version 2.
    RpcMismatch {
        /// Lowest RPC version spoken.
        low: u32,
        /// Highest RPC version spoken.
        high: u32,
    },
    /// The caller was not authenticated.
    AuthError(AuthStat),
}

/// Appends the header of a successful reply, verifier AUTH_NONE; the results are written next.
pub fn encode_success(w: &mut Writer, xid: u32) {
    ReplyHeader::Accepted { xid, stat: AcceptStat::Success }.encode(w);
}

impl Encode for ReplyHeader {
    fn encode(&self, w: &mut Writer) {
        w.u32(self.xid());
        w.u32(REPLY);
        match self {
            Self::Accepted { stat, .. } => {
                w.u32(MSG_ACCEPTED);
                w.u32(FLAVOR_NONE);
                w.opaque(&[]);
                stat.encode(w);
            }
            Self::Denied(_, stat) => {
                w.u32(MSG_DENIED);
                stat.encode(w);
            }
        }
    }
}

/// The verifier of an accepted reply is checked against its bound and dropped.
impl Decode<'_> for ReplyHeader {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let xid = r.u32("xid")?;
        let failure = |what, r: &Reader<'_>| DecodeError { what, at_byte: r.position() - 4 };
        if r.u32("msg_type")? != REPLY {
            return Err(failure("msg_type", r));
        }
        match r.u32("reply_stat")? {
            MSG_ACCEPTED => {
                r.u32("verf")?;
                r.opaque(AUTH_BODY_BYTES_MAX, "verf")?;
                Ok(Self::Accepted { xid, stat: AcceptStat::decode(r)? })
            }
            MSG_DENIED => Ok(Self::Denied(xid, RejectStat::decode(r)?)),
            _ => Err(failure("reply_stat", r)),
        }
    }
}

impl Encode for AcceptStat {
    fn encode(&self, w: &mut Writer) {
        w.u32(match self {
            Self::Success => SUCCESS,
            Self::ProgUnavail => PROG_UNAVAIL,
            Self::ProgMismatch { .. } => PROG_MISMATCH,
            Self::ProcUnavail => PROC_UNAVAIL,
            Self::GarbageArgs => GARBAGE_ARGS,
            Self::SystemErr => SYSTEM_ERR,
        });
        if let Self::ProgMismatch { low, high } = self {
            w.u32(*low);
            w.u32(*high);
        }
    }
}

impl Decode<'_> for AcceptStat {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at_byte = r.position();
        Ok(match r.u32("accept_stat")? {
            SUCCESS => Self::Success,
            PROG_UNAVAIL => Self::ProgUnavail,
            PROG_MISMATCH => Self::ProgMismatch { low: r.u32("low")?, high: r.u32("high")? },
            PROC_UNAVAIL => Self::ProcUnavail,
            GARBAGE_ARGS => Self::GarbageArgs,
            SYSTEM_ERR => Self::SystemErr,
            _ => return Err(DecodeError { what: "accept_stat", at_byte }),
        })
    }
}

impl Encode for RejectStat {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::RpcMismatch { low, high } => {
                w.u32(RPC_MISMATCH);
                w.u32(*low);
                w.u32(*high);
            }
            Self::AuthError(stat) => {
                w.u32(AUTH_ERROR);
                stat.encode(w);
            }
        }
    }
}

impl Decode<'_> for RejectStat {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at_byte = r.position();
        Ok(match r.u32("reject_stat")? {
            RPC_MISMATCH => Self::RpcMismatch { low: r.u32("low")?, high: r.u32("high")? },
            AUTH_ERROR => Self::AuthError(AuthStat::decode(r)?),
            _ => return Err(DecodeError { what: "reject_stat", at_byte }),
        })
    }
}

/// Reads an `opaque_auth` body. The outer error is a record that ends early, the inner one a body
/// over its bound: the latter is the credential's fault and gets an answer.
fn auth_body<'a>(
    r: &mut Reader<'a>,
    what: &'static str,
) -> Result<Result<&'a [u8], DecodeError>, DecodeError> {
    let too_long = DecodeError { what, at_byte: r.position() };
    let len = r.clone().u32(what)?;
    if usize::try_from(len).is_ok_and(|len| len <= AUTH_BODY_BYTES_MAX) {
        r.opaque(AUTH_BODY_BYTES_MAX, what).map(Ok)
    } else {
        Ok(Err(too_long))
    }
}

/// The one version of RPC, RFC 5531 §9.
pub const RPC_VERSION: u32 = 2;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;
const SUCCESS: u32 = 0;
const PROG_UNAVAIL: u32 = 1;
const PROG_MISMATCH: u32 = 2;
const PROC_UNAVAIL: u32 = 3;
const GARBAGE_ARGS: u32 = 4;
const SYSTEM_ERR: u32 = 5;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;
