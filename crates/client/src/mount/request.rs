//! Decodes the requests on `/dev/fuse` (`linux/fuse.h`, protocol 7.31 and later).
//!
//! The kernel is trusted, but may be of another version: a message that is too short is an error,
//! and unknown trailing fields are ignored.

use std::fmt;

use super::buffer::Payload;

/// The head of each message, `struct fuse_in_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The operation, see [`Operation`].
    opcode: u32,
    /// Identifies the request in the reply.
    pub(super) unique: u64,
    /// The node number of the file.
    pub(super) node: u64,
    /// File system user id of the caller.
    pub(super) uid: u32,
    /// File system group id of the caller.
    pub(super) gid: u32,
    /// The calling thread; 0 if it is not in a visible PID namespace.
    pub(super) pid: u32,
}

/// A request with its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Lookup {
        name: Name,
    },
    /// Has no reply, as `BatchForget` and `Interrupt`.
    Forget {
        lookups: u64,
    },
    /// Pairs of node and lookups.
    BatchForget {
        nodes: Vec<(u64, u64)>,
    },
    Getattr,
    Setattr(Setattr),
    Readlink,
    Symlink {
        name: Name,
        target: Name,
    },
    Mknod {
        name: Name,
        mode: u32,
        rdev: u32,
    },
    Mkdir {
        name: Name,
        mode: u32,
    },
    Unlink {
        name: Name,
    },
    Rmdir {
        name: Name,
    },
    Rename {
        name: Name,
        new_dir: u64,
        new_name: Name,
        flags: u32,
    },
    Link {
        node: u64,
        new_name: Name,
    },
    Open {
        flags: u32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
    },
    Write {
        fh: u64,
        offset: u64,
        write_flags: u32,
        /// Those of open(2), as fcntl(2) may have changed them.
        flags: u32,
        data: Payload,
    },
    Statfs,
    Release {
        fh: u64,
    },
    Fsync {
        fh: u64,
    },
    Flush {
        fh: u64,
    },
    Opendir,
    Readdir {
        fh: u64,
        cookie: u64,
        size: u32,
        plus: bool,
    },
    Releasedir {
        fh: u64,
    },
    Fsyncdir,
    Access {
        mask: u32,
    },
    Create {
        name: Name,
        mode: u32,
        flags: u32,
    },
    Interrupt {
        unique: u64,
    },
    /// The last request of a mount.
    Destroy,
    /// Unsupported by NFS version 3, or unknown.
    Unknown,
}

/// Arguments of SETATTR: the valid fields of `struct fuse_setattr_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Setattr {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) atime: Option<When>,
    pub(super) mtime: Option<When>,
    /// The open file that is used.
    pub(super) fh: Option<u64>,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// By the clock of the server.
    Now,
    /// Since 1970; seconds may be negative.
    At { seconds: i64, nseconds: u32 },
}

/// A name in a directory, or the target of a symbolic link; no NUL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Name(pub(super) Box<[u8]>);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// A message that is shorter than its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truncated;

impl Head {
    /// Decodes the head, the first [`HEAD_BYTES`] bytes.
    pub(super) fn decode(message: &[u8]) -> Result<Self, Truncated> {
        let mut fields = Fields(message);
        let _len = fields.u32()?;
        let opcode = fields.u32()?;
        let (unique, node) = (fields.u64()?, fields.u64()?);
        let (uid, gid, pid) = (fields.u32()?, fields.u32()?, fields.u32()?);
        Ok(Self { opcode, unique, node, uid, gid, pid })
    }

    /// Whether the message has data to be left in the receive buffer.
    pub(super) fn is_write(&self) -> bool {
        self.opcode == opcode::WRITE
    }

    /// Decodes the arguments behind the head, except those of a WRITE.
    pub(super) fn operation(&self, message: &[u8]) -> Result<Operation, Truncated> {
        let mut fields = Fields(message.get(HEAD_BYTES..).ok_or(Truncated)?);
        match self.opcode {
            opcode::LOOKUP
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE => self.namespace_operation(&mut fields),
            opcode::FORGET => Ok(Operation::Forget { lookups: fields.u64()? }),
            opcode::BATCH_FORGET => fields.batch_forget(),
            opcode::GETATTR => Ok(Operation::Getattr),
            opcode::SETATTR => fields.setattr(),
            opcode::READLINK => Ok(Operation::Readlink),
            opcode::OPEN => Ok(Operation::Open { flags: fields.u32()? }),
            opcode::READ => {
                let (fh, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
                Ok(Operation::Read { fh, offset, size })
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                let (fh, cookie, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
                let plus = self.opcode == opcode::READDIRPLUS;
                Ok(Operation::Readdir { fh, cookie, size, plus })
            }
            opcode::STATFS => Ok(Operation::Statfs),
            opcode::RELEASE => Ok(Operation::Release { fh: fields.u64()? }),
            opcode::FSYNC => Ok(Operation::Fsync { fh: fields.u64()? }),
            opcode::FLUSH => Ok(Operation::Flush { fh: fields.u64()? }),
            opcode::OPENDIR => Ok(Operation::Opendir),
            opcode::RELEASEDIR => Ok(Operation::Releasedir { fh: fields.u64()? }),
            opcode::FSYNCDIR => Ok(Operation::Fsyncdir),
            opcode::ACCESS => Ok(Operation::Access { mask: fields.u32()? }),
            opcode::INTERRUPT => Ok(Operation::Interrupt { unique: fields.u64()? }),
            opcode::DESTROY => Ok(Operation::Destroy),
            _ => Ok(Operation::Unknown),
        }
    }

    fn namespace_operation(&self, fields: &mut Fields<'_>) -> Result<Operation, Truncated> {
        Ok(match self.opcode {
            opcode::LOOKUP => Operation::Lookup { name: fields.name()? },
            opcode::SYMLINK => Operation::Symlink { name: fields.name()?, target: fields.name()? },
            opcode::MKNOD => {
                let (mode, rdev) = (fields.u32()?, fields.u32()?);
                let (_umask, _padding) = (fields.u32()?, fields.u32()?);
                Operation::Mknod { name: fields.name()?, mode, rdev }
            }
            opcode::MKDIR => {
                let (mode, _umask) = (fields.u32()?, fields.u32()?);
                Operation::Mkdir { name: fields.name()?, mode }
            }
            opcode::UNLINK => Operation::Unlink { name: fields.name()? },
            opcode::RMDIR => Operation::Rmdir { name: fields.name()? },
            opcode::LINK => Operation::Link { node: fields.u64()?, new_name: fields.name()? },
            opcode::CREATE => {
                let (flags, mode) = (fields.u32()?, fields.u32()?);
                let (_umask, _open_flags) = (fields.u32()?, fields.u32()?);
                Operation::Create { name: fields.name()?, mode, flags }
            }
            _ => {
                let new_dir = fields.u64()?;
                let mut flags = 0;
                if self.opcode == opcode::RENAME2 {
                    flags = fields.u32()?;
                    let _padding = fields.u32()?;
                }
                let (name, new_name) = (fields.name()?, fields.name()?);
                Operation::Rename { name, new_dir, new_name, flags }
            }
        })
    }
}

/// The fields of a WRITE, `struct fuse_write_in`; the data follows at [`WRITE_HEAD_BYTES`].
pub(super) struct WriteHead {
    pub(super) fh: u64,
    pub(super) offset: u64,
    pub(super) size: u32,
    pub(super) write_flags: u32,
    pub(super) flags: u32,
}

impl WriteHead {
    pub(super) fn decode(message: &[u8]) -> Result<Self, Truncated> {
        let mut fields = Fields(message.get(HEAD_BYTES..).ok_or(Truncated)?);
        let (fh, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let (write_flags, _lock_owner) = (fields.u32()?, fields.u64()?);
        Ok(Self { fh, offset, size, write_flags, flags: fields.u32()? })
    }
}

/// The rest of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Result<u32, Truncated> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Truncated)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*bytes))
    }

    fn u64(&mut self) -> Result<u64, Truncated> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Truncated)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*bytes))
    }

    /// Up to the next NUL.
    fn name(&mut self) -> Result<Name, Truncated> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Truncated)?;
        let name = Name(self.0[..end].into());
        self.0 = &self.0[end + 1..];
        Ok(name)
    }

    fn batch_forget(&mut self) -> Result<Operation, Truncated> {
        let (count, _dummy) = (self.u32()?, self.u32()?);
        let nodes: Result<_, _> = (0..count).map(|_| Ok((self.u64()?, self.u64()?))).collect();
        Ok(Operation::BatchForget { nodes: nodes? })
    }

    /// `struct fuse_setattr_in`.
    fn setattr(&mut self) -> Result<Operation, Truncated> {
        let (valid, _padding) = (self.u32()?, self.u32()?);
        let (fh, size, _lock_owner) = (self.u64()?, self.u64()?, self.u64()?);
        let (atime, mtime, _ctime) = (self.u64()?, self.u64()?, self.u64()?);
        let (atime_ns, mtime_ns, _ctime_ns) = (self.u32()?, self.u32()?, self.u32()?);
        let (mode, _unused) = (self.u32()?, self.u32()?);
        let (uid, gid) = (self.u32()?, self.u32()?);
        let has = |bit: u32| valid & bit != 0;
        let when = |set: u32, now: u32, seconds: u64, nseconds: u32| match (has(set), has(now)) {
            (false, _) => None,
            (true, true) => Some(When::Now),
            (true, false) => Some(When::At { seconds: seconds.cast_signed(), nseconds }),
        };
        Ok(Operation::Setattr(Setattr {
            mode: has(valid_bit::MODE).then_some(mode),
            uid: has(valid_bit::UID).then_some(uid),
            gid: has(valid_bit::GID).then_some(gid),
            size: has(valid_bit::SIZE).then_some(size),
            atime: when(valid_bit::ATIME, valid_bit::ATIME_NOW, atime, atime_ns),
            mtime: when(valid_bit::MTIME, valid_bit::MTIME_NOW, mtime, mtime_ns),
            fh: has(valid_bit::FH).then_some(fh),
        }))
    }
}

/// Bytes of `struct fuse_in_header`.
pub(super) const HEAD_BYTES: usize = 40;

/// Bytes before the data of a WRITE.
pub(super) const WRITE_HEAD_BYTES: usize = HEAD_BYTES + 40;

/// `FUSE_WRITE_CACHE`: the kernel writes pages that were stored to through a mapping.
pub(super) const WRITE_CACHE: u32 = 1 << 0;

/// `FUSE_WRITE_KILL_SUIDGID`: the write clears set-id bits.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// `enum fuse_opcode`, as far as NFS version 3 supports it.
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const ACCESS: u32 = 34;
    pub(super) const CREATE: u32 = 35;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
}

/// `FATTR_*`: which fields of a SETATTR are valid.
mod valid_bit {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const FH: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as the kernel lays it out.
    fn message(opcode: u32, arguments: &[&[u8]]) -> Vec<u8> {
        let arguments = arguments.concat();
        let len = u32::try_from(HEAD_BYTES + arguments.len()).unwrap();
        let mut bytes = Vec::new();
        for field in [len, opcode] {
            bytes.extend(field.to_ne_bytes());
        }
        for field in [77_u64, 5] {
            bytes.extend(field.to_ne_bytes());
        }
        for field in [1000_u32, 100, 4321, 0] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(arguments);
        bytes
    }

    fn decoded(message: &[u8]) -> Result<Operation, Truncated> {
        Head::decode(message)?.operation(message)
    }

    fn name(text: &str) -> Name {
        Name(text.as_bytes().into())
    }

    #[test]
    fn the_head_has_the_node_and_the_caller() {
        let head = Head::decode(&message(opcode::GETATTR, &[&[0; 16]])).unwrap();
        let expected =
            Head { opcode: opcode::GETATTR, unique: 77, node: 5, uid: 1000, gid: 100, pid: 4321 };
        assert_eq!(head, expected);
    }

    #[test]
    fn names_end_at_nul() {
        let rename = message(
            opcode::RENAME2,
            &[&9_u64.to_ne_bytes(), &1_u32.to_ne_bytes(), &[0; 4], b"from\0to\0"],
        );
        let expected =
            Operation::Rename { name: name("from"), new_dir: 9, new_name: name("to"), flags: 1 };
        assert_eq!(decoded(&rename), Ok(expected));
        let old = message(opcode::RENAME, &[&9_u64.to_ne_bytes(), b"from\0to\0"]);
        assert!(matches!(decoded(&old), Ok(Operation::Rename { flags: 0, .. })));
        let symlink = message(opcode::SYMLINK, &[b"link\0../target\0"]);
        let expected = Operation::Symlink { name: name("link"), target: name("../target") };
        assert_eq!(decoded(&symlink), Ok(expected));
    }

    #[test]
    fn only_valid_fields_of_setattr_are_decoded() {
        let fields: Vec<u8> = [0x1A8_u32, 0]
            .iter()
            .flat_map(|field| field.to_ne_bytes())
            .chain([3, 4096, 0, 11, u64::MAX, 0].iter().flat_map(|f: &u64| f.to_ne_bytes()))
            .chain([1, 2, 0, 0o644, 0, 7, 8, 0].iter().flat_map(|f: &u32| f.to_ne_bytes()))
            .collect();
        let expected = Setattr { size: Some(4096), mtime: Some(When::Now), ..Setattr::default() };
        let valid =
            valid_bit::SIZE | valid_bit::MTIME | valid_bit::MTIME_NOW | valid_bit::ATIME_NOW;
        assert_eq!(valid, 0x1A8);
        let setattr = message(opcode::SETATTR, &[&fields]);
        assert_eq!(decoded(&setattr), Ok(Operation::Setattr(expected)));
    }

    #[test]
    fn times_before_1970_are_negative() {
        let mut fields = vec![0; 88];
        fields[..4].copy_from_slice(&valid_bit::MTIME.to_ne_bytes());
        fields[40..48].copy_from_slice(&(-2_i64).to_ne_bytes());
        fields[60..64].copy_from_slice(&5_u32.to_ne_bytes());
        let Ok(Operation::Setattr(set)) = decoded(&message(opcode::SETATTR, &[&fields])) else {
            panic!("not a SETATTR");
        };
        assert_eq!(set.mtime, Some(When::At { seconds: -2, nseconds: 5 }));
    }

    #[test]
    fn a_batch_of_forgets_is_as_long_as_its_bytes() {
        let pairs: Vec<u8> = [4_u64, 1, 6, 3].iter().flat_map(|f| f.to_ne_bytes()).collect();
        let count = |count: u32| [count.to_ne_bytes(), [0; 4]].concat();
        let batch = message(opcode::BATCH_FORGET, &[&count(2), &pairs]);
        assert_eq!(decoded(&batch), Ok(Operation::BatchForget { nodes: vec![(4, 1), (6, 3)] }));
        let lying = message(opcode::BATCH_FORGET, &[&count(u32::MAX), &pairs]);
        assert_eq!(decoded(&lying), Err(Truncated));
    }

    #[test]
    fn a_truncated_message_is_an_error() {
        let create = message(opcode::CREATE, &[&[1; 16], b"new\0"]);
        assert!(matches!(decoded(&create), Ok(Operation::Create { .. })));
        for len in 0..create.len() {
            assert_eq!(decoded(&create[..len]), Err(Truncated), "{len} bytes");
        }
    }

    #[test]
    fn an_unknown_operation_is_no_error() {
        for opcode in [opcode::MKNOD + 1000, 21, 22, 46, 47, 51, 52] {
            assert_eq!(decoded(&message(opcode, &[&[0; 64]])), Ok(Operation::Unknown));
        }
    }
}
