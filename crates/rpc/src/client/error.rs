//! Why a call has no results.

use std::sync::Arc;

use proto::oncrpc::{AcceptStat, RejectStat};
use proto::xdr::DecodeError;

use crate::record::TooLong;

/// The results of a call, or the reason why it has none.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call has no results. Cloned where several wait for one connection.
#[derive(thiserror::Error, Clone, Debug)]
pub enum Error {
    /// The server accepted the call and could not execute it.
    #[error("the server cannot execute the call: {0:?}")]
    Accept(AcceptStat),
    /// The server refuses calls with this credential or RPC version.
    #[error("the server refuses the call: {0:?}")]
    Reject(RejectStat),
    /// The header of a reply is malformed (RFC 5531 §9).
    #[error("the server's reply is malformed: {0}")]
    Decode(#[from] DecodeError),
    /// No connection, or it broke and a soft call gives up.
    #[error("{what}: {source}")]
    Connection {
        /// The failure, with the server's address.
        what: String,
        /// Why it failed.
        source: Arc<std::io::Error>,
    },
    /// A soft call got no reply in its time.
    #[error("no reply from {server}")]
    TimedOut {
        /// The server's address.
        server: String,
    },
    /// The call does not fit into a record; nothing was sent.
    #[error("a call of {} bytes is too long for a record", .0.bytes)]
    TooLong(TooLong),
}

impl From<TooLong> for Error {
    fn from(too_long: TooLong) -> Self {
        Self::TooLong(too_long)
    }
}
