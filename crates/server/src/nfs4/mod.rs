//! NFS version 4.1 and 4.2 (RFC 8881, RFC 7862): the operations of a COMPOUND, one after the other.
//!
//! An operation takes arguments from the call, makes one call of `vfs` or `state`, and appends its
//! result to the reply. It returns an [`Outcome`], so that `?` ends it, and with it the COMPOUND.

mod attr;
mod compound;
mod convert;
mod delegation;
mod extension;
mod filehandle;
mod lock;
mod namespace;
mod open;
mod operation;
mod read;
mod readdir;
mod resolved_handle;
mod results;
mod session;
mod stateid;
mod write;
mod xattr;

pub(crate) use compound::execute;

use proto::nfs4::Status;
use proto::xdr::DecodeError;

use crate::fs;
use crate::state::OpenFailure;

/// The results of an operation, or why there are none.
type Outcome<T> = Result<T, Refused>;

/// Why an operation has no results.
#[derive(Clone, Copy, Debug)]
struct Refused {
    status: Status,
    /// The error of the file operation behind it.
    cause: Option<fs::Status>,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self { status, cause: None }
    }
}

impl From<fs::Status> for Refused {
    fn from(cause: fs::Status) -> Self {
        Self { status: convert::status(cause), cause: Some(cause) }
    }
}

impl From<OpenFailure> for Refused {
    fn from(failure: OpenFailure) -> Self {
        Status::from(failure).into()
    }
}

impl From<DecodeError> for Refused {
    fn from(error: DecodeError) -> Self {
        tracing::debug!(%error, "cannot decode an operation");
        Status::Badxdr.into()
    }
}
