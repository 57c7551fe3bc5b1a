//! The answers that a file operation can end in, free of any protocol version.

use std::fmt;

use rustix::io::Errno;

/// Why a file operation was not done. Each protocol version maps it to its own status, once, in an
/// exhaustive function; the variants are those that both versions can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The caller does not own the object (EPERM).
    NotOwner,
    /// No such name.
    NoEntry,
    /// The disk failed, or the system returned an error that no file operation should end in. The
    /// log line of the call shows it.
    Io(Errno),
    /// No data or hole at the offset or behind it: the answer of SEEK (ENXIO).
    NoDevice,
    /// The caller may not do this (EACCES).
    Access,
    /// The name exists.
    Exists,
    /// The two objects are on different file systems or exports.
    CrossDevice,
    /// Not a directory where one is needed.
    NotDirectory,
    /// A directory where none may be.
    IsDirectory,
    /// An argument that no server could honour.
    Invalid,
    /// Beyond the largest file that the file system holds.
    TooLarge,
    /// No space on the device.
    NoSpace,
    /// The object has no such extended attribute.
    NoAttribute,
    /// The value of an extended attribute is longer than the file system, or the reply, takes.
    AttributeTooLarge,
    /// The export or its file system is read-only.
    ReadOnly,
    /// Too many hard links.
    TooManyLinks,
    /// A name or path longer than the file system takes.
    NameTooLong,
    /// The directory is not empty.
    NotEmpty,
    /// The caller's quota is used up.
    Quota,
    /// The object behind the handle is gone.
    Stale,
    /// The handle was not made by this server.
    BadHandle,
    /// The guard of a SETATTR does not match.
    NotSync,
    /// The directory cookie leads nowhere.
    BadCookie,
    /// The file system cannot do this.
    NotSupported,
    /// The client's buffer holds not even one entry.
    TooSmall,
    /// The server broke one of its own rules.
    ServerFault,
    /// The thread could not assume the caller's identity.
    Identity(Errno),
    /// The file type cannot be made here.
    BadType,
    /// A mount point, which cannot be removed or renamed (EBUSY).
    Busy,
    /// Try again later.
    Delay,
    /// A client of version 4 has it delegated, and has to return that first.
    Delegated,
    /// The process or the system has no descriptor left (EMFILE, ENFILE).
    NoDescriptor,
}

impl Status {
    /// True for an error of the server or of the system below it: the operator has to hear of it.
    pub(crate) fn is_fault(self) -> bool {
        match self {
            Self::Io(_) | Self::ServerFault | Self::Identity(_) => true,
            Self::NotOwner
            | Self::NoEntry
            | Self::NoDevice
            | Self::Access
            | Self::Exists
            | Self::CrossDevice
            | Self::NotDirectory
            | Self::IsDirectory
            | Self::Invalid
            | Self::TooLarge
            | Self::NoSpace
            | Self::NoAttribute
            | Self::AttributeTooLarge
            | Self::ReadOnly
            | Self::TooManyLinks
            | Self::NameTooLong
            | Self::NotEmpty
            | Self::Quota
            | Self::Stale
            | Self::BadHandle
            | Self::NotSync
            | Self::BadCookie
            | Self::NotSupported
            | Self::TooSmall
            | Self::BadType
            | Self::Busy
            | Self::Delay
            | Self::Delegated
            | Self::NoDescriptor => false,
        }
    }
}

impl From<Errno> for Status {
    /// Maps the kernel's error numbers. A number that no file operation should return is `Io`, like
    /// that of a failing disk: the client must see an error.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PERM => Self::NotOwner,
            Errno::NOENT => Self::NoEntry,
            Errno::ACCESS => Self::Access,
            Errno::EXIST => Self::Exists,
            Errno::XDEV => Self::CrossDevice,
            Errno::NOTDIR => Self::NotDirectory,
            Errno::ISDIR => Self::IsDirectory,
            Errno::INVAL | Errno::ILSEQ => Self::Invalid,
            Errno::FBIG | Errno::OVERFLOW => Self::TooLarge,
            Errno::NOSPC => Self::NoSpace,
            Errno::ROFS => Self::ReadOnly,
            Errno::MLINK => Self::TooManyLinks,
            Errno::NAMETOOLONG => Self::NameTooLong,
            Errno::NOTEMPTY => Self::NotEmpty,
            Errno::DQUOT => Self::Quota,
            Errno::STALE => Self::Stale,
            Errno::OPNOTSUPP | Errno::NOSYS => Self::NotSupported,
            // A name that is a symbolic link where O_NOFOLLOW met it: the client should have
            // followed it itself.
            Errno::LOOP => Self::Invalid,
            Errno::TXTBSY => Self::Access,
            // Out of memory, or a lease being recalled: true for now only.
            Errno::NOMEM | Errno::AGAIN => Self::Delay,
            Errno::BUSY => Self::Busy,
            Errno::MFILE | Errno::NFILE => Self::NoDescriptor,
            // ENXIO and ENODEV of a device that is gone too: no procedure that names or opens an
            // object may end in them.
            Errno::IO | Errno::NXIO | Errno::NODEV => Self::Io(errno),
            // Numbers of other subsystems, and those that a mistake of the server's own brings
            // (EBADF, EFAULT).
            unexpected => Self::Io(unexpected),
        }
    }
}

impl From<io::DataError> for Status {
    /// Maps the errors of reading and writing. A number keeps its meaning where no failure of a
    /// device has it, or where it is true of that failure as well (no space, no memory), and where
    /// READ and WRITE may end in it. The arguments of the calls have been checked, so `EINVAL` is a
    /// failure too.
    fn from(io::DataError(errno): io::DataError) -> Self {
        match errno {
            Errno::ROFS | Errno::ACCESS | Errno::TXTBSY | Errno::MFILE | Errno::NFILE => {
                Self::from(errno)
            }
            // A file that was made immutable after it was opened.
            Errno::PERM => Self::Access,
            errno => Self::of_flush(io::DataError(errno)),
        }
    }
}

impl Status {
    /// Maps the errors of a flush. The data was accepted, so a number that is about permission is a
    /// failure as well, and COMMIT may not end in it: `EROFS` of an ext4 that has stopped after an
    /// error of its disk.
    pub(crate) fn of_flush(io::DataError(errno): io::DataError) -> Self {
        match errno {
            Errno::NOSPC
            | Errno::DQUOT
            | Errno::FBIG
            | Errno::STALE
            | Errno::NOMEM
            | Errno::AGAIN => Self::from(errno),
            failure => Self::Io(failure),
        }
    }

    /// Whether a call has failed for want of space, on the disk or in the quota of a user.
    pub(crate) fn lacks_space(self) -> bool {
        matches!(self, Self::NoSpace | Self::Quota)
    }

    /// A job did not run because its thread could not act as the user that it was for.
    pub(crate) fn no_identity(error: &std::io::Error) -> Self {
        Errno::from_io_error(error).map_or(Self::ServerFault, Self::Identity)
    }
}

impl fmt::Display for Status {
    /// For the log: the system's text for an errno, otherwise the name of the variant.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(errno) => errno.fmt(f),
            Self::Identity(errno) => {
                write!(f, "a thread cannot assume the caller's identity: {errno}")
            }
            status => fmt::Debug::fmt(status, f),
        }
    }
}

impl From<std::io::Error> for Status {
    fn from(error: std::io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => Self::from(errno),
            None => Self::ServerFault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_errors_keep_their_meaning() {
        let cases = [
            (Errno::NOSPC, Status::NoSpace),
            (Errno::DQUOT, Status::Quota),
            (Errno::IO, Status::Io(Errno::IO)),
            (Errno::BADF, Status::Io(Errno::BADF)),
            (Errno::STALE, Status::Stale),
            (Errno::ROFS, Status::ReadOnly),
            (Errno::MFILE, Status::NoDescriptor),
            (Errno::BUSY, Status::Busy),
            (Errno::AGAIN, Status::Delay),
        ];
        for (errno, status) in cases {
            assert_eq!(Status::from(errno), status, "{errno:?}");
            assert_eq!(Status::from(std::io::Error::from(errno)), status, "{errno:?}");
        }
    }

    /// Those of `blk_errors` in the kernel's `block/blk-core.c`.
    #[test]
    fn failures_of_a_device_are_faults_of_data_calls() {
        let failures = [
            Errno::OPNOTSUPP,
            Errno::TIMEDOUT,
            Errno::NOLINK,
            Errno::REMOTEIO,
            Errno::BADE,
            Errno::NODATA,
            Errno::ILSEQ,
            Errno::BUSY,
            Errno::NODEV,
            Errno::REMCHG,
            Errno::TOOMANYREFS,
            Errno::OVERFLOW,
            Errno::TIME,
            Errno::INVAL,
            Errno::IO,
        ];
        for errno in failures {
            let status = Status::from(io::DataError(errno));
            assert_eq!((status, status.is_fault()), (Status::Io(errno), true), "{errno:?}");
            assert_eq!(Status::of_flush(io::DataError(errno)), status, "{errno:?}");
        }
        let true_of_others = [
            (Errno::NOSPC, Status::NoSpace),
            (Errno::NOMEM, Status::Delay),
            (Errno::AGAIN, Status::Delay),
            (Errno::DQUOT, Status::Quota),
            (Errno::FBIG, Status::TooLarge),
            (Errno::STALE, Status::Stale),
        ];
        for (errno, status) in true_of_others {
            assert_eq!(Status::from(io::DataError(errno)), status, "{errno:?}");
            assert_eq!(Status::of_flush(io::DataError(errno)), status, "{errno:?}");
        }
        let true_before_a_flush = [
            (Errno::ROFS, Status::ReadOnly),
            (Errno::ACCESS, Status::Access),
            (Errno::PERM, Status::Access),
            (Errno::TXTBSY, Status::Access),
            (Errno::MFILE, Status::NoDescriptor),
            (Errno::NFILE, Status::NoDescriptor),
        ];
        for (errno, status) in true_before_a_flush {
            assert_eq!(Status::from(io::DataError(errno)), status, "{errno:?}");
            assert_eq!(Status::of_flush(io::DataError(errno)), Status::Io(errno), "{errno:?}");
        }
    }

    #[test]
    fn only_errors_of_the_system_are_faults() {
        for errno in [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::BADF, Errno::FAULT, Errno::PROTO]
        {
            assert!(Status::from(errno).is_fault(), "{errno:?}");
        }
        for errno in [Errno::NOSPC, Errno::STALE, Errno::ACCESS, Errno::MFILE, Errno::NOENT] {
            assert!(!Status::from(errno).is_fault(), "{errno:?}");
        }
        let short = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        assert!(Status::from(short).is_fault());
    }
}
