//! The data types that procedures share, RFC 1813 §2.3 to §2.6.

use std::fmt;

use crate::xdr::{
    Decode, DecodeError, Encode, Reader, Writer, xdr_enum, xdr_file_handle, xdr_struct,
};

xdr_enum! {
    /// `nfsstat3` without its success, RFC 1813 §2.6.
    pub enum Status: "nfsstat3" {
        /// Not owner, and not permitted.
        Perm = 1 "NFS3ERR_PERM",
        /// No such file or directory.
        Noent = 2 "NFS3ERR_NOENT",
        /// A hard I/O error.
        Io = 5 "NFS3ERR_IO",
        /// No such device.
        Nxio = 6 "NFS3ERR_NXIO",
        /// Permission denied.
        Acces = 13 "NFS3ERR_ACCES",
        /// The file exists.
        Exist = 17 "NFS3ERR_EXIST",
        /// A link across devices.
        Xdev = 18 "NFS3ERR_XDEV",
        /// The device does not do this.
        Nodev = 19 "NFS3ERR_NODEV",
        /// Not a directory.
        Notdir = 20 "NFS3ERR_NOTDIR",
        /// A directory.
        Isdir = 21 "NFS3ERR_ISDIR",
        /// Invalid or unsupported argument.
        Inval = 22 "NFS3ERR_INVAL",
        /// File too large.
        Fbig = 27 "NFS3ERR_FBIG",
        /// No space left.
        Nospc = 28 "NFS3ERR_NOSPC",
        /// Read-only file system.
        Rofs = 30 "NFS3ERR_ROFS",
        /// Too many links.
        Mlink = 31 "NFS3ERR_MLINK",
        /// Name too long.
        Nametoolong = 63 "NFS3ERR_NAMETOOLONG",
        /// The directory is not empty.
        Notempty = 66 "NFS3ERR_NOTEMPTY",
        /// Quota exceeded.
        Dquot = 69 "NFS3ERR_DQUOT",
        /// The handle's file is gone.
        Stale = 70 "NFS3ERR_STALE",
        /// Too many levels of remote in the path.
        Remote = 71 "NFS3ERR_REMOTE",
        /// The handle fails the server's own checks.
        Badhandle = 10_001 "NFS3ERR_BADHANDLE",
        /// SETATTR's guard does not match.
        NotSync = 10_002 "NFS3ERR_NOT_SYNC",
        /// A READDIR cookie that no longer resolves.
        BadCookie = 10_003 "NFS3ERR_BAD_COOKIE",
        /// The operation is not supported.
        Notsupp = 10_004 "NFS3ERR_NOTSUPP",
        /// The buffer is too small for one entry.
        Toosmall = 10_005 "NFS3ERR_TOOSMALL",
        /// An error that fits no other value.
        Serverfault = 10_006 "NFS3ERR_SERVERFAULT",
        /// An object of this type cannot be created.
        Badtype = 10_007 "NFS3ERR_BADTYPE",
        /// Not now: the client should ask again later.
        Jukebox = 10_008 "NFS3ERR_JUKEBOX",
    }
}

/// A procedure's result: its `resok`, or a status with its `resfail`.
pub type Reply<O, F> = Result<O, Failure<F>>;

/// The failed arm of a result, RFC 1813 §3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<F> {
    /// The error, never NFS3_OK.
    pub status: Status,
    /// The procedure's `resfail`: `()`, attributes, or what surrounds the change.
    pub body: F,
}

impl<'a, O: Decode<'a>, F: Decode<'a>> Decode<'a> for Reply<O, F> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        // NFS3_OK is the one number that is not a `Status`.
        if r.clone().u32("nfsstat3")? == NFS3_OK {
            r.u32("nfsstat3")?;
            return Ok(Ok(O::decode(r)?));
        }
        Ok(Err(Failure { status: Status::decode(r)?, body: F::decode(r)? }))
    }
}

impl<O: Encode, F: Encode> Encode for Reply<O, F> {
    fn encode(&self, w: &mut Writer) {
        match self {
            Ok(ok) => {
                w.u32(NFS3_OK);
                ok.encode(w);
            }
            Err(Failure { status, body }) => {
                status.encode(w);
                body.encode(w);
            }
        }
    }
}

xdr_file_handle! {
    /// `nfs_fh3`: up to [`FILE_HANDLE_BYTES_MAX`] bytes that only the server understands, held
    /// inline. The empty handle is legal: WebNFS uses it (RFC 2055).
    pub struct FileHandle: "nfs_fh3"[FILE_HANDLE_BYTES_MAX]
}

/// `nfstime3`: since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds.
    pub seconds: u32,
    /// Nanoseconds beyond them. The codec does not insist on less than 10^9.
    pub nseconds: u32,
}

xdr_struct!(Time { seconds: u32, nseconds: u32 });

xdr_enum! {
    /// `ftype3`, RFC 1813 §2.3.
    pub enum FileType: "ftype3" {
        /// A file of bytes.
        Regular = 1 "NF3REG",
        /// A directory.
        Directory = 2 "NF3DIR",
        /// A block device.
        BlockDevice = 3 "NF3BLK",
        /// A character device.
        CharacterDevice = 4 "NF3CHR",
        /// A symbolic link.
        Symlink = 5 "NF3LNK",
        /// A socket.
        Socket = 6 "NF3SOCK",
        /// A named pipe.
        Fifo = 7 "NF3FIFO",
    }
}

/// `specdata3`: a device's numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct DeviceSpec {
    /// `specdata1`.
    pub major: u32,
    /// `specdata2`.
    pub minor: u32,
}

xdr_struct!(DeviceSpec { major: u32, minor: u32 });

/// `fattr3`, RFC 1813 §2.3.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Regular file, directory, or another type.
    pub file_type: FileType,
    /// Permission bits, set-id bits and the sticky bit; no type.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Bytes of storage that the file takes.
    pub used: u64,
    /// Numbers of a device file; zero otherwise.
    pub rdev: DeviceSpec,
    /// The file system's number.
    pub fsid: u64,
    /// The file's number within it.
    pub fileid: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
}

xdr_struct!(Attributes {
    file_type,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    used: u64,
    rdev,
    fsid: u64,
    fileid: u64,
    atime,
    mtime,
    ctime,
});

/// `wcc_attr`: the attributes by which a client detects whether its cache is current.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WccAttributes {
    /// Length in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
}

xdr_struct!(WccAttributes { size: u64, mtime, ctime });

impl From<&Attributes> for WccAttributes {
    fn from(attributes: &Attributes) -> Self {
        Self { size: attributes.size, mtime: attributes.mtime, ctime: attributes.ctime }
    }
}

/// `wcc_data`: the state on both sides of a change, for weak cache consistency.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct WccData {
    /// `pre_op_attr`. Only to be given when nothing can have come between it and the change.
    pub before: Option<WccAttributes>,
    /// `post_op_attr`.
    pub after: Option<Attributes>,
}

xdr_struct!(WccData { before, after });

/// `sattr3`: what to set; `None` leaves a field alone.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes: truncates or extends.
    pub size: Option<u64>,
    /// Last read.
    pub atime: SetTime,
    /// Last change of the data.
    pub mtime: SetTime,
}

xdr_struct!(SetAttributes { mode, uid, gid, size, atime, mtime });

/// `set_atime` and `set_mtime`, RFC 1813 §2.6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it alone.
    #[default]
    DontChange,
    /// The server's clock, now.
    ToServerTime,
    /// This time.
    ToClientTime(Time),
}

impl Decode<'_> for SetTime {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "time_how", at_byte: r.position() };
        match r.u32(failure.what)? {
            DONT_CHANGE => Ok(Self::DontChange),
            SET_TO_SERVER_TIME => Ok(Self::ToServerTime),
            SET_TO_CLIENT_TIME => Ok(Self::ToClientTime(Time::decode(r)?)),
            _ => Err(failure),
        }
    }
}

impl Encode for SetTime {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::DontChange => w.u32(DONT_CHANGE),
            Self::ToServerTime => w.u32(SET_TO_SERVER_TIME),
            Self::ToClientTime(time) => {
                w.u32(SET_TO_CLIENT_TIME);
                time.encode(w);
            }
        }
    }
}

xdr_enum! {
    /// `stable_how`, RFC 1813 §3.3.7: how durable a WRITE must be, or was.
    pub enum StableHow: "stable_how" {
        /// In memory is enough until COMMIT.
        Unstable = 0 "UNSTABLE",
        /// The data, and what is needed to find it again.
        DataSync = 1 "DATA_SYNC",
        /// The data and all attributes.
        FileSync = 2 "FILE_SYNC",
    }
}

/// `writeverf3`: changes when unstable data may have been lost (RFC 1813 §3.3.7).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WriteVerifier(pub [u8; 8]);

/// `cookieverf3`: changes when a READDIR cookie becomes invalid (RFC 1813 §3.3.16).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CookieVerifier(pub [u8; 8]);

macro_rules! verifier {
    ($($name:ident $what:literal),*) => { $(
        impl Decode<'_> for $name {
            fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                r.array($what).map(Self)
            }
        }

        impl Encode for $name {
            fn encode(&self, w: &mut Writer) {
                w.array(&self.0);
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:016x})"), u64::from_be_bytes(self.0))
            }
        }
    )* };
}

verifier!(WriteVerifier "writeverf3", CookieVerifier "cookieverf3");

/// `NFS3_FHSIZE`.
pub const FILE_HANDLE_BYTES_MAX: usize = 64;
/// Bound of a `filename3`, which the RFC leaves open. Well above any NAME_MAX, so that a name that
/// is merely too long reaches the server and gets NFS3ERR_NAMETOOLONG instead of GARBAGE_ARGS.
pub const NAME_BYTES_MAX: usize = 4096;
/// Bound of an `nfspath3`, which the RFC leaves open. Twice Linux's PATH_MAX, for the same reason.
pub const SYMLINK_TARGET_BYTES_MAX: usize = 8192;

const NFS3_OK: u32 = 0;
const DONT_CHANGE: u32 = 0;
const SET_TO_SERVER_TIME: u32 = 1;
const SET_TO_CLIENT_TIME: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    #[test]
    fn handles_are_at_most_64_bytes() {
        assert_eq!(FileHandle::new(&[1; 65]), None);
        assert_eq!(FileHandle::new(&[1; 64]).unwrap().as_bytes(), [1; 64]);
        assert_eq!(FileHandle::new(&[]).unwrap().as_bytes(), []);
        assert_ne!(FileHandle::new(&[0]), FileHandle::new(&[0, 0]), "length is part of a handle");

        let mut w = Writer::new();
        w.opaque(&[1; 65]);
        let failure = DecodeError { what: "nfs_fh3", at_byte: 0 };
        assert_eq!(decode_all::<FileHandle>(w.as_slice()), Err(failure));
    }

    #[test]
    fn a_reply_is_a_status_and_one_of_two_bodies() {
        type Words = Reply<u32, u64>;
        let table: [(&[u8], Words); 2] = [
            (&[0, 0, 0, 0, 0, 0, 0, 9], Ok(9)),
            (
                &[0, 0, 0x27, 0x18, 0, 0, 0, 0, 0, 0, 0, 9],
                Err(Failure { status: Status::Jukebox, body: 9 }),
            ),
        ];
        for (bytes, reply) in table {
            assert_eq!(decode_all::<Words>(bytes), Ok(reply));
            let mut w = Writer::new();
            reply.encode(&mut w);
            assert_eq!(w.as_slice(), bytes);
        }
        let unknown = decode_all::<Reply<(), ()>>(&[0, 0, 0, 3]);
        assert_eq!(unknown, Err(DecodeError { what: "nfsstat3", at_byte: 0 }));
    }

    #[test]
    fn failures_name_the_field() {
        let failure = decode_all::<Attributes>(&[0, 0, 0, 1, 0, 0, 1, 0xa4]).unwrap_err();
        assert_eq!(failure, DecodeError { what: "Attributes.nlink", at_byte: 8 });
        let failure = decode_all::<Attributes>(&[0, 0, 0, 8]).unwrap_err();
        assert_eq!(failure, DecodeError { what: "ftype3", at_byte: 0 });
    }
}
