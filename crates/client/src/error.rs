//! What can go wrong with an operation, sorted by whose fault it is.

use std::sync::Arc;

use proto::mount3::MountStatus;
use proto::nfs3::{Procedure, Status};
use proto::oncrpc::{AcceptStat, RejectStat};
use proto::xdr::DecodeError;
use rustix::io::Errno;

/// What an operation of the client returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. Cloned where several wait for one call.
#[derive(thiserror::Error, Clone, Debug)]
pub enum Error {
    /// The server carried the procedure out and refused.
    #[error("{}: {}", procedure.name(), status_text(*status))]
    Nfs {
        /// What was asked for.
        procedure: Procedure,
        /// Its answer.
        status: Status,
    },
    /// The server does not let this client mount the path.
    #[error("{}", errno_text(errno_of_mount(*status)))]
    Mount {
        /// Its answer.
        status: MountStatus,
    },
    /// The server accepted the call and could not carry it out: no such program, version or
    /// procedure, or arguments it does not understand.
    #[error("the server cannot do this call: {0:?}")]
    Accept(AcceptStat),
    /// The server refuses calls with this credential or RPC version.
    #[error("the server refuses the call: {0:?}")]
    Reject(RejectStat),
    /// The server's bytes are not what the protocol says they should be.
    #[error("the server's reply is malformed: {0}")]
    Decode(#[from] DecodeError),
    /// No connection, or it broke and a soft mount gives up.
    #[error("{what}: {source}")]
    Connection {
        /// What was tried, with the address.
        what: String,
        /// Why it failed.
        source: Arc<std::io::Error>,
    },
    /// A soft mount got no reply in its time.
    #[error("no reply from {server}")]
    TimedOut {
        /// The server's address.
        server: String,
    },
    /// The server restarted, or said so, each time before it had committed the data.
    #[error("the server lost the data that it had accepted {times} times")]
    Forgetful {
        /// How often it was sent.
        times: u32,
    },
    /// The caller asks for what cannot be; nothing was sent.
    #[error("{}", errno_text(*.0))]
    Refused(Errno),
}

impl Error {
    /// The error number that a system call would have failed with.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Nfs { status, .. } => errno_of_status(*status),
            Self::Mount { status } => errno_of_mount(*status),
            Self::Accept(_) => Errno::OPNOTSUPP,
            Self::Reject(_) => Errno::ACCESS,
            Self::Decode(_) | Self::Forgetful { .. } => Errno::IO,
            Self::Connection { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            Self::TimedOut { .. } => Errno::TIMEDOUT,
            Self::Refused(errno) => *errno,
        }
    }

    /// Whether the server said `status`.
    #[must_use]
    pub fn is(&self, status: Status) -> bool {
        matches!(self, Self::Nfs { status: answer, .. } if *answer == status)
    }
}

/// The error number for `nfsstat3`, RFC 1813 §2.6.
const fn errno_of_status(status: Status) -> Errno {
    match status {
        Status::Perm => Errno::PERM,
        Status::Noent => Errno::NOENT,
        Status::Io | Status::Serverfault => Errno::IO,
        Status::Nxio => Errno::NXIO,
        Status::Acces => Errno::ACCESS,
        Status::Exist => Errno::EXIST,
        Status::Xdev => Errno::XDEV,
        Status::Nodev => Errno::NODEV,
        Status::Notdir => Errno::NOTDIR,
        Status::Isdir => Errno::ISDIR,
        Status::Inval | Status::Badtype => Errno::INVAL,
        Status::Fbig => Errno::FBIG,
        Status::Nospc => Errno::NOSPC,
        Status::Rofs => Errno::ROFS,
        Status::Mlink => Errno::MLINK,
        Status::Nametoolong => Errno::NAMETOOLONG,
        Status::Notempty => Errno::NOTEMPTY,
        Status::Dquot => Errno::DQUOT,
        Status::Stale | Status::Badhandle => Errno::STALE,
        Status::Remote => Errno::REMOTE,
        Status::NotSync | Status::Jukebox => Errno::AGAIN,
        Status::BadCookie => Errno::NOENT,
        Status::Notsupp => Errno::OPNOTSUPP,
        Status::Toosmall => Errno::INVAL,
    }
}

/// The error number for `mountstat3`, RFC 1813 §5.1.5.
const fn errno_of_mount(status: MountStatus) -> Errno {
    match status {
        MountStatus::Perm => Errno::PERM,
        MountStatus::Noent => Errno::NOENT,
        MountStatus::Io | MountStatus::Serverfault => Errno::IO,
        MountStatus::Acces => Errno::ACCESS,
        MountStatus::Notdir => Errno::NOTDIR,
        MountStatus::Inval => Errno::INVAL,
        MountStatus::Nametoolong => Errno::NAMETOOLONG,
        MountStatus::Notsupp => Errno::OPNOTSUPP,
    }
}

/// The words of the system for the error number that `status` becomes.
fn status_text(status: Status) -> String {
    errno_text(errno_of_status(status))
}

/// What the C library says of an error number, without the number behind it.
#[must_use]
pub fn errno_text(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
