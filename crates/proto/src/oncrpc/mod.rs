//! ONC RPC version 2, RFC 5531: record marks, credentials, call and reply headers.

mod auth;
mod message;
mod record;

pub use auth::{
    AUTH_BODY_BYTES_MAX, AuthStat, AuthSys, Credential, FLAVOR_NONE, FLAVOR_RPCSEC_GSS,
    FLAVOR_SHORT, FLAVOR_SYS, GIDS_MAX, Gids, MACHINE_NAME_BYTES_MAX,
};
pub use message::{
    AcceptStat, CREDENTIAL_AT, CallError, CallHeader, RPC_VERSION, RejectStat, ReplyHeader,
    call_header_len, call_target, decode_call, encode_success, is_reply,
};
pub use record::RecordMark;
