//! The errors of operations, sorted by their cause.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use proto::mount3::MountStatus;
use proto::nfs3::{Procedure, Status};
use proto::oncrpc::{AcceptStat, RejectStat};
use proto::xdr::DecodeError;
use rustix::io::Errno;

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. Cloned if several tasks wait for one call.
#[derive(thiserror::Error, Clone, Debug)]
pub enum Error {
    /// The server returned a status other than NFS3_OK.
    #[error("{}: {}", procedure.name(), status_text(*status))]
    Nfs {
        /// The procedure.
        procedure: Procedure,
        /// The status.
        status: Status,
    },
    /// The server refuses the mount.
    #[error("{}", errno_text(errno_of_mount(*status)))]
    Mount {
        /// The status.
        status: MountStatus,
    },
    /// The server accepted the call and could not execute it: unknown program, version or
    /// procedure, or malformed arguments.
    #[error("the server cannot execute the call: {0:?}")]
    Accept(AcceptStat),
    /// The server refuses calls with this credential or RPC version.
    #[error("the server refuses the call: {0:?}")]
    Reject(RejectStat),
    /// The header of a reply violates RFC 5531 §9.
    #[error("the server's reply is malformed: {0}")]
    Decode(#[from] DecodeError),
    /// The results of a procedure violate the protocol.
    #[error("the server's reply to {procedure} is malformed: {error}")]
    Malformed {
        /// The RFC's name of the procedure.
        procedure: &'static str,
        /// The invalid item.
        error: DecodeError,
    },
    /// There is no connection, or it broke on a soft mount.
    #[error("{attempt} {server}: {source}")]
    Connection {
        /// The failed step.
        attempt: Attempt,
        /// The service.
        server: ServerName,
        /// Why it failed.
        source: Arc<std::io::Error>,
    },
    /// A soft mount got no reply in time.
    #[error("no reply from {server}")]
    TimedOut {
        /// The service.
        server: ServerName,
    },
    /// The server accepts none of the supported authentication flavors.
    #[error("{server} requires an unsupported authentication flavor, one of {flavors:?}")]
    Flavor {
        /// The NFS service.
        server: ServerName,
        /// The flavors of RFC 5531 §13.4 that it accepts.
        flavors: Vec<u32>,
    },
    /// The cookies of a listing loop, so that it would never end.
    #[error("readdir loop: the server returned cookie {cookie} twice")]
    ListingLoop {
        /// The repeated cookie.
        cookie: u64,
    },
    /// The write verifier changed each time before the data was committed.
    #[error("the server lost uncommitted data {times} times")]
    Forgetful {
        /// How often the data was lost.
        times: u32,
    },
    /// An object was created, but the call for the handle or the attributes that the reply left
    /// out failed.
    #[error(
        "{}: {} was created, but cannot be looked at: {cause}",
        procedure.name(),
        name.escape_ascii()
    )]
    CreatedUnseen {
        /// The procedure that created it.
        procedure: Procedure,
        /// The name of the object.
        name: Bytes,
        /// The error of the call that failed.
        cause: Box<Self>,
    },
    /// The arguments are invalid; no call was sent.
    #[error("{}", errno_text(*.0))]
    Refused(Errno),
}

impl Error {
    /// The errno of a corresponding system call.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Nfs { status, .. } => errno_of_status(*status),
            Self::Mount { status } => errno_of_mount(*status),
            Self::Accept(stat) => errno_of_accept(*stat),
            Self::Reject(_) => Errno::ACCESS,
            Self::Decode(_)
            | Self::Malformed { .. }
            | Self::Forgetful { .. }
            | Self::CreatedUnseen { .. } => Errno::IO,
            Self::Connection { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            Self::Flavor { .. } => Errno::ACCESS,
            Self::TimedOut { .. } => Errno::TIMEDOUT,
            Self::ListingLoop { .. } => Errno::LOOP,
            Self::Refused(errno) => *errno,
        }
    }

    /// The error of GETATTR or LOOKUP after `procedure` has created `name`.
    #[must_use]
    pub fn after_creation(self, procedure: Procedure, name: &[u8]) -> Self {
        let (name, cause) = (Bytes::copy_from_slice(name), Box::new(self));
        Self::CreatedUnseen { procedure, name, cause }
    }

    /// Names the host of a connection that failed.
    pub(crate) fn at_host(mut self, name: &str) -> Self {
        if let Self::Connection { server, .. } | Self::TimedOut { server } = &mut self {
            name.clone_into(&mut server.host);
        }
        self
    }

    /// Adds the procedure to the error of a malformed reply.
    pub(crate) fn in_reply_to(self, procedure: &'static str) -> Self {
        match self {
            Self::Decode(error) => Self::Malformed { procedure, error },
            other => other,
        }
    }

    /// Whether the names that the failed call was to change refer to the same objects as before.
    /// Not with NFS3ERR_NOENT and NFS3ERR_EXIST, which can be the answer to a retransmission, or
    /// show that another client has changed the name; nor with NFS3ERR_JUKEBOX, after which the
    /// server may complete what it has begun; nor with errors of the disk, which can follow the
    /// change.
    #[must_use]
    pub fn leaves_names(&self) -> bool {
        let refusals = [
            Status::Perm,
            Status::Acces,
            Status::Xdev,
            Status::Inval,
            Status::Rofs,
            Status::Mlink,
            Status::Nametoolong,
            Status::Notempty,
            Status::Notsupp,
        ];
        refusals.into_iter().any(|refusal| self.is(refusal))
    }

    /// Whether the server returned `status`.
    #[must_use]
    pub fn is(&self, status: Status) -> bool {
        matches!(self, Self::Nfs { status: answer, .. } if *answer == status)
    }
}

/// A step of a call that fails without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Finding the host's address or its service.
    Find,
    /// Connecting.
    Connect,
    /// Waiting for a reply.
    Call,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Find => "cannot reach",
            Self::Connect => "cannot connect to",
            Self::Call => "no reply from",
        })
    }
}

/// A service by the name of its host in a URL or mount source. Formatted as `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// TCP port of the service, if it is known.
    pub port: Option<u16>,
}

impl From<SocketAddr> for ServerName {
    fn from(address: SocketAddr) -> Self {
        Self { host: address.ip().to_string(), port: Some(address.port()) }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match host.contains(':') {
            true => write!(f, "[{host}]")?,
            false => f.write_str(host)?,
        }
        port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Error {
    /// The error of `attempt` at `server`.
    #[must_use]
    pub fn of_rpc(error: rpc::client::Error, attempt: Attempt, server: &ServerName) -> Self {
        use rpc::client::Error as E;
        let server = || server.clone();
        match error {
            E::Accept(stat) => Self::Accept(stat),
            E::Reject(stat) => Self::Reject(stat),
            E::Decode(error) => Self::Decode(error),
            E::Connection { source, .. } => Self::Connection { attempt, server: server(), source },
            E::TimedOut { .. } => Self::TimedOut { server: server() },
            E::TooLong(_) => Self::Refused(Errno::INVAL),
        }
    }
}

/// The errno for `accept_stat`, RFC 5531 §9.
const fn errno_of_accept(stat: AcceptStat) -> Errno {
    match stat {
        AcceptStat::ProgUnavail | AcceptStat::ProgMismatch { .. } | AcceptStat::ProcUnavail => {
            Errno::OPNOTSUPP
        }
        // Not EOPNOTSUPP, after which programs do without the operation. SUCCESS is no error.
        AcceptStat::Success | AcceptStat::GarbageArgs | AcceptStat::SystemErr => Errno::IO,
    }
}

/// The errno for `nfsstat3`, RFC 1813 §2.6.
const fn errno_of_status(status: Status) -> Errno {
    match status {
        Status::Perm => Errno::PERM,
        Status::Noent => Errno::NOENT,
        // Not ENOENT, which readdir(3) takes for the end of the directory.
        Status::Io | Status::Serverfault | Status::BadCookie => Errno::IO,
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
        Status::Notsupp => Errno::OPNOTSUPP,
        Status::Toosmall => Errno::INVAL,
    }
}

/// The errno for `mountstat3`, RFC 1813 §5.1.5.
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

/// The system's text for the errno of `status`.
fn status_text(status: Status) -> String {
    errno_text(errno_of_status(status))
}

/// The C library's text for an errno, without the number.
#[must_use]
pub fn errno_text(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_that_the_server_refuses_is_no_missing_name() {
        assert_eq!(errno_of_status(Status::BadCookie), Errno::IO);
        assert_eq!(errno_of_status(Status::Noent), Errno::NOENT);
    }

    #[test]
    fn only_what_a_server_does_not_serve_is_unsupported() {
        use AcceptStat::*;
        for (stat, errno) in [
            (ProgUnavail, Errno::OPNOTSUPP),
            (ProgMismatch { low: 2, high: 2 }, Errno::OPNOTSUPP),
            (ProcUnavail, Errno::OPNOTSUPP),
            (GarbageArgs, Errno::IO),
            (SystemErr, Errno::IO),
        ] {
            assert_eq!(Error::Accept(stat).errno(), errno, "{stat:?}");
        }
    }
}
