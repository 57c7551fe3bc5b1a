//! Why something did not work, here or on a server, in coreutils' words.

use std::fmt;
use std::io;

use client::Error;
use client::error::errno_text;
use rustix::io::Errno;

use crate::exit::io_reason;

/// A failure of either side of a copy.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server's, or of the way to it.
    Remote(Error),
    /// This machine's.
    Local(io::Error),
}

/// The result of a step of a command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The error number that it comes to.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Remote(error) => error.errno(),
            Self::Local(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
        }
    }

    /// Whether it is this machine's, or has this number.
    pub(crate) fn is_local_or(&self, errno: Errno) -> bool {
        matches!(self, Self::Local(_)) || self.errno() == errno
    }

    /// Whether the server refused the call, and has changed no name.
    pub(crate) fn leaves_names(&self) -> bool {
        matches!(self, Self::Remote(error) if error.leaves_names())
    }

    /// The operation is impossible; no call was made.
    pub(crate) fn refused(errno: Errno) -> Self {
        Self::Remote(Error::Refused(errno))
    }
}

/// The reason alone, as it stands behind the colon of a message.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A failed call of the protocol reads as the failed system call that it stands for.
            Self::Remote(error @ (Error::Nfs { .. } | Error::Refused(_) | Error::Mount { .. })) => {
                f.write_str(&errno_text(error.errno()))
            }
            Self::Remote(Error::Connection { attempt, server, source }) => {
                write!(f, "{attempt} {server}: {}", io_reason(source))
            }
            Self::Remote(error) => error.fmt(f),
            Self::Local(error) => f.write_str(&io_reason(error)),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Remote(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Local(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Local(errno.into())
    }
}
