//! The answers that a file operation can end in, free of any protocol version.

use rustix::io::Errno;

/// Why a file operation was not done. Each protocol version maps it to its own status, once,
/// in an exhaustive function; the variants are those that both versions can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The caller does not own the object (EPERM).
    NotOwner,
    /// No such name.
    NoEntry,
    /// The disk failed.
    Io,
    /// No such device or address.
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
    /// The file type cannot be made here.
    BadType,
    /// Try again later.
    Delay,
}

impl From<Errno> for Status {
    /// Sorts the kernel's error numbers. What no file operation should return is `Io`, like a disk
    /// that fails: the client must see an error. The number goes no further, so it is logged here.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PERM => Self::NotOwner,
            Errno::NOENT => Self::NoEntry,
            Errno::NXIO | Errno::NODEV => Self::NoDevice,
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
            // Out of descriptors or memory, or a lease being recalled: true for now only.
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::BUSY => Self::Delay,
            _ => {
                tracing::warn!(%errno, "a file operation failed");
                Self::Io
            }
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
            (Errno::IO, Status::Io),
            (Errno::STALE, Status::Stale),
            (Errno::ROFS, Status::ReadOnly),
            (Errno::MFILE, Status::Delay),
        ];
        for (errno, status) in cases {
            assert_eq!(Status::from(errno), status, "{errno:?}");
            assert_eq!(Status::from(std::io::Error::from(errno)), status, "{errno:?}");
        }
    }
}
