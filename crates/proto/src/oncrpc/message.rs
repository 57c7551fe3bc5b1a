//! Call and reply headers, RFC 5531 §9.

use crate::oncrpc::auth::{AUTH_BODY_BYTES_MAX, AuthStat, Credential, FLAVOR_NONE};
use crate::xdr::{Decode, DecodeError, Encode, Reader, Writer, padded};

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
    /// The identity that the caller claims.
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
        /// The `auth_stat` of the answer.
        stat: AuthStat,
    },
}

/// Whether a message is a reply, by its first words.
#[must_use]
pub fn is_reply(message: &[u8]) -> bool {
    message.get(4..8).is_some_and(|kind| *kind == REPLY.to_be_bytes())
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

/// The program, version and procedure of a call, from the first words of its header. `None` if they
/// are not all there or it is not a call of RPC version 2.
#[must_use]
pub fn call_target(head: &[u8]) -> Option<(u32, u32, u32)> {
    let is_call = (word(head, 4)?, word(head, 8)?) == (CALL, RPC_VERSION);
    is_call.then_some((word(head, 12)?, word(head, 16)?, word(head, 20)?))
}

/// The bytes of a call's header as far as its beginning shows: the lengths of credential and
/// verifier are in front of each. A `head` of at least as many bytes holds the whole header, or
/// enough of it for [`decode_call`] to refuse it.
#[must_use]
pub fn call_header_len(head: &[u8]) -> usize {
    let mut end = CREDENTIAL_AT;
    // The verifier's flavor and length follow the credential, the arguments follow the verifier.
    for fixed_behind in [8, 0] {
        let Some(len) = word(head, end - 4).and_then(|len| usize::try_from(len).ok()) else {
            break;
        };
        if len > AUTH_BODY_BYTES_MAX {
            break;
        }
        end += padded(len) + fixed_behind;
    }
    end
}

/// The four bytes at `at` as a number.
fn word(head: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*head.get(at..)?.first_chunk()?))
}

/// `reply_body` and the transaction id in front of it. After [`AcceptStat::Success`] the
/// procedure's results follow on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// The call was accepted, which does not mean that it was executed.
    Accepted {
        /// The call that this answers.
        xid: u32,
        /// Success, or the reason why the server cannot execute the call.
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

/// Where the body of a call's credential begins: behind six words of the header, its flavor and its
/// length. No call is shorter.
pub const CREDENTIAL_AT: usize = 32;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    /// A call's words up to and including the verifier, AUTH_NONE on both.
    const NULL_CALL: [u32; 10] = [0x1234, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
    const XID: u32 = NULL_CALL[0];

    fn call_with(change: impl Fn(&mut Vec<u32>)) -> Vec<u8> {
        let mut words = NULL_CALL.to_vec();
        change(&mut words);
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn decoded(bytes: &[u8]) -> Result<CallHeader<'_>, CallError> {
        decode_call(&mut Reader::new(bytes))
    }

    #[test]
    fn a_null_call() {
        let bytes = call_with(|_| ());
        let header = CallHeader {
            xid: XID,
            program: 100_003,
            version: 3,
            procedure: 0,
            credential: Credential::None,
            verifier_flavor: 0,
        };
        assert_eq!(decoded(&bytes), Ok(header));
        let mut w = Writer::new();
        header.encode(&mut w);
        assert_eq!(w.into_vec(), bytes);
    }

    #[test]
    fn the_target_is_read_from_the_first_words_of_a_call() {
        let bytes = call_with(|words| words[4] = 4);
        assert_eq!(call_target(&bytes), Some((100_003, 4, 0)));
        for len in 0..24 {
            assert_eq!(call_target(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(call_target(&call_with(|words| words[1] = 1)), None, "a reply");
        assert_eq!(call_target(&call_with(|words| words[2] = 3)), None, "RPC version 3");
    }

    #[test]
    fn the_header_length_grows_with_the_bytes_that_show_it() {
        let bytes = call_with(|words| {
            words.splice(6..10, [6, 7, 0x0102_0304, 0x0506_0700, 0, 5, 0, 0]);
        });
        let mut before = 0;
        for len in 0..=bytes.len() {
            let shown = call_header_len(&bytes[..len]);
            assert!(shown >= before && shown <= bytes.len(), "{len} bytes: {shown}");
            assert!(shown > len || len == bytes.len(), "more follows {len} bytes");
            before = shown;
        }
        assert_eq!(before, bytes.len());
        let too_long = call_with(|words| words[7] = u32::MAX);
        assert_eq!(call_header_len(&too_long), CREDENTIAL_AT);
        assert!(decoded(&too_long[..CREDENTIAL_AT]).is_err());
    }

    #[test]
    fn each_fault_gets_its_own_answer() {
        let refused = |stat| CallError::BadCredential { xid: XID, stat };
        let malformed = |what, at_byte| CallError::Malformed(DecodeError { what, at_byte });
        // Word 1 is the type, 2 the RPC version, 6 and 7 the credential, 8 and 9 the verifier.
        type Change = fn(&mut Vec<u32>);
        let table: [(Change, CallError); 10] = [
            (|words| words.truncate(1), malformed("msg_type", 4)),
            (|words| words[1] = 1, CallError::NotACall),
            (|words| words[1] = 2, malformed("msg_type", 4)),
            (|words| words[2] = 3, CallError::RpcMismatch { xid: XID }),
            // Credentials over their bound, whether or not the record holds so much.
            (|words| words[7] = 401, refused(AuthStat::BadCred)),
            (|words| words[7] = u32::MAX, refused(AuthStat::BadCred)),
            (|words| words[9] = 401, refused(AuthStat::BadVerf)),
            // AUTH_SYS with an empty body.
            (|words| words[6] = 1, refused(AuthStat::BadCred)),
            // A body within its bound that the record does not hold.
            (|words| words[9] = 400, malformed("verf", 36)),
            (|words| words.truncate(9), malformed("verf", 36)),
        ];
        for (change, expected) in table {
            assert_eq!(decoded(&call_with(change)), Err(expected));
        }
    }

    #[test]
    fn an_unknown_flavor_is_handed_on_with_its_body() {
        let bytes = call_with(|words| {
            words.splice(6..8, [6, 8, 0x0102_0304, 0x0506_0708]);
        });
        let body: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];
        let credential = Credential::Other { flavor: 6, body };
        assert_eq!(decoded(&bytes).map(|call| call.credential), Ok(credential));
    }

    #[test]
    fn replies_word_by_word() {
        let accepted = |stat| ReplyHeader::Accepted { xid: XID, stat };
        let denied = |stat| ReplyHeader::Denied(XID, stat);
        let table: [(ReplyHeader, &[u32]); 5] = [
            (accepted(AcceptStat::Success), &[XID, 1, 0, 0, 0, 0]),
            (accepted(AcceptStat::GarbageArgs), &[XID, 1, 0, 0, 0, 4]),
            (accepted(AcceptStat::ProgMismatch { low: 3, high: 4 }), &[XID, 1, 0, 0, 0, 2, 3, 4]),
            (denied(RejectStat::RpcMismatch { low: 2, high: 2 }), &[XID, 1, 1, 0, 2, 2]),
            (denied(RejectStat::AuthError(AuthStat::TooWeak)), &[XID, 1, 1, 1, 5]),
        ];
        for (header, words) in table {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let mut w = Writer::new();
            header.encode(&mut w);
            assert_eq!(w.as_slice(), bytes);
            assert_eq!(decode_all(&bytes), Ok(header));
        }
        let mut w = Writer::new();
        encode_success(&mut w, XID);
        assert_eq!(decode_all(w.as_slice()), Ok(accepted(AcceptStat::Success)));
    }

    #[test]
    fn a_call_is_not_decoded_as_a_reply() {
        let table: [(&[u32], &str, usize); 5] = [
            (&[XID, 0, 0, 0, 0, 0], "msg_type", 4),
            (&[XID, 1, 2, 0, 0, 0], "reply_stat", 8),
            (&[XID, 1, 0, 0, 0, 6], "accept_stat", 20),
            (&[XID, 1, 1, 2, 0], "reject_stat", 12),
            (&[XID, 1, 0, 0, 401, 0], "verf", 16),
        ];
        for (words, what, at_byte) in table {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            assert_eq!(decode_all::<ReplyHeader>(&bytes), Err(DecodeError { what, at_byte }));
        }
    }
}
