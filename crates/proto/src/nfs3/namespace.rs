//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK: RFC 1813
//! §3.3.3, §3.3.5 and §3.3.8 to §3.3.15.

use super::types::{
    Attributes, DeviceSpec, FileHandle, FileType, NAME_BYTES_MAX, Reply, SYMLINK_TARGET_BYTES_MAX,
    SetAttributes, WccData,
};
use crate::xdr::{Decode, DecodeError, Encode, Reader, Writer, xdr_struct};

/// `diropargs3`: a name in a directory.
///
/// Any bytes may come as a name, up to [`NAME_BYTES_MAX`]: empty, `..`, with slashes or NULs. What
/// the file system accepts is the server's question.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DirOp<'a> {
    /// The directory.
    pub dir: FileHandle,
    /// The name in it.
    pub name: &'a [u8],
}

xdr_struct!(DirOp<'a> { dir, name: opaque(NAME_BYTES_MAX) });

/// Arguments of LOOKUP, RFC 1813 §3.3.3.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LookupArgs<'a> {
    /// The name to resolve.
    pub what: DirOp<'a>,
}

xdr_struct!(LookupArgs<'a> { what });

/// Result of LOOKUP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LookupOk {
    /// The handle of the file that the name resolves to.
    pub object: FileHandle,
    /// That file as it is.
    pub object_attributes: Option<Attributes>,
    /// The directory as it is.
    pub dir_attributes: Option<Attributes>,
}

xdr_struct!(LookupOk { object, object_attributes, dir_attributes });

/// `LOOKUP3res`; a failure carries the directory's attributes.
pub type LookupReply = Reply<LookupOk, Option<Attributes>>;

/// Arguments of READLINK, RFC 1813 §3.3.5.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReadlinkArgs {
    /// The symbolic link.
    pub symlink: FileHandle,
}

xdr_struct!(ReadlinkArgs { symlink });

/// Result of READLINK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReadlinkOk<'a> {
    /// The link as it is.
    pub attributes: Option<Attributes>,
    /// Where it points, at most [`SYMLINK_TARGET_BYTES_MAX`].
    pub target: &'a [u8],
}

xdr_struct!(ReadlinkOk<'a> { attributes, target: opaque(SYMLINK_TARGET_BYTES_MAX) });

/// `READLINK3res`.
pub type ReadlinkReply<'a> = Reply<ReadlinkOk<'a>, Option<Attributes>>;

/// Arguments of CREATE, RFC 1813 §3.3.8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CreateArgs<'a> {
    /// The name to create.
    pub where_: DirOp<'a>,
    /// The mode, and the new file's attributes or verifier.
    pub how: CreateHow,
}

xdr_struct!(CreateArgs<'a> { where_, how });

/// `createhow3`, RFC 1813 §3.3.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// A file that exists already is as good.
    Unchecked(SetAttributes),
    /// A file that exists already is an error.
    Guarded(SetAttributes),
    /// A file that exists already is an error, unless this verifier created it: a retransmission
    /// must find its own work.
    Exclusive([u8; 8]),
}

impl Decode<'_> for CreateHow {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "createmode3", at_byte: r.position() };
        match r.u32(failure.what)? {
            UNCHECKED => Ok(Self::Unchecked(SetAttributes::decode(r)?)),
            GUARDED => Ok(Self::Guarded(SetAttributes::decode(r)?)),
            EXCLUSIVE => Ok(Self::Exclusive(r.array("createverf3")?)),
            _ => Err(failure),
        }
    }
}

impl Encode for CreateHow {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Unchecked(attributes) => {
                w.u32(UNCHECKED);
                attributes.encode(w);
            }
            Self::Guarded(attributes) => {
                w.u32(GUARDED);
                attributes.encode(w);
            }
            Self::Exclusive(verifier) => {
                w.u32(EXCLUSIVE);
                w.array(verifier);
            }
        }
    }
}

/// Arguments of MKDIR, RFC 1813 §3.3.9.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MkdirArgs<'a> {
    /// The name to create.
    pub where_: DirOp<'a>,
    /// The new directory's attributes.
    pub attributes: SetAttributes,
}

xdr_struct!(MkdirArgs<'a> { where_, attributes });

/// Arguments of SYMLINK, RFC 1813 §3.3.10.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SymlinkArgs<'a> {
    /// The name to create.
    pub where_: DirOp<'a>,
    /// The new link's attributes.
    pub attributes: SetAttributes,
    /// Where it shall point, at most [`SYMLINK_TARGET_BYTES_MAX`].
    pub target: &'a [u8],
}

xdr_struct!(SymlinkArgs<'a> { where_, attributes, target: opaque(SYMLINK_TARGET_BYTES_MAX) });

/// Arguments of MKNOD, RFC 1813 §3.3.11.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MknodArgs<'a> {
    /// The name to create.
    pub where_: DirOp<'a>,
    /// The type of the new node, its attributes, and the numbers of a device.
    pub what: MknodData,
}

xdr_struct!(MknodArgs<'a> { where_, what });

/// `mknoddata3`, RFC 1813 §3.3.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MknodData {
    /// A block device.
    BlockDevice {
        /// Its attributes.
        attributes: SetAttributes,
        /// Its numbers.
        spec: DeviceSpec,
    },
    /// A character device.
    CharacterDevice {
        /// Its attributes.
        attributes: SetAttributes,
        /// Its numbers.
        spec: DeviceSpec,
    },
    /// A socket.
    Socket(SetAttributes),
    /// A named pipe.
    Fifo(SetAttributes),
    /// A regular file, directory or symbolic link, which MKNOD must answer with NFS3ERR_BADTYPE.
    Other(FileType),
}

impl MknodData {
    /// The discriminant.
    #[must_use]
    pub const fn file_type(&self) -> FileType {
        match self {
            Self::BlockDevice { .. } => FileType::BlockDevice,
            Self::CharacterDevice { .. } => FileType::CharacterDevice,
            Self::Socket(_) => FileType::Socket,
            Self::Fifo(_) => FileType::Fifo,
            Self::Other(file_type) => *file_type,
        }
    }
}

impl Decode<'_> for MknodData {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match FileType::decode(r)? {
            FileType::BlockDevice => {
                Self::BlockDevice { attributes: Decode::decode(r)?, spec: Decode::decode(r)? }
            }
            FileType::CharacterDevice => {
                Self::CharacterDevice { attributes: Decode::decode(r)?, spec: Decode::decode(r)? }
            }
            FileType::Socket => Self::Socket(Decode::decode(r)?),
            FileType::Fifo => Self::Fifo(Decode::decode(r)?),
            other @ (FileType::Regular | FileType::Directory | FileType::Symlink) => {
                Self::Other(other)
            }
        })
    }
}

/// # Panics
/// [`MknodData::Other`] holds a type that has an arm of its own.
impl Encode for MknodData {
    fn encode(&self, w: &mut Writer) {
        self.file_type().encode(w);
        match self {
            Self::BlockDevice { attributes, spec } | Self::CharacterDevice { attributes, spec } => {
                attributes.encode(w);
                spec.encode(w);
            }
            Self::Socket(attributes) | Self::Fifo(attributes) => attributes.encode(w),
            Self::Other(file_type) => assert!(
                matches!(file_type, FileType::Regular | FileType::Directory | FileType::Symlink),
                "{file_type:?} has an arm of its own"
            ),
        }
    }
}

/// Result of CREATE, MKDIR, SYMLINK and MKNOD, which share one layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CreatedOk {
    /// `post_op_fh3` of the new file.
    pub object: Option<FileHandle>,
    /// The new file as it is.
    pub attributes: Option<Attributes>,
    /// The directory on both sides of the change.
    pub dir_wcc: WccData,
}

xdr_struct!(CreatedOk { object, attributes, dir_wcc });

/// `CREATE3res`, `MKDIR3res`, `SYMLINK3res` and `MKNOD3res`.
pub type CreatedReply = Reply<CreatedOk, WccData>;

/// Arguments of REMOVE, RFC 1813 §3.3.12.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoveArgs<'a> {
    /// The name to remove.
    pub object: DirOp<'a>,
}

xdr_struct!(RemoveArgs<'a> { object });

/// Arguments of RMDIR, RFC 1813 §3.3.13.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RmdirArgs<'a> {
    /// The name to remove.
    pub object: DirOp<'a>,
}

xdr_struct!(RmdirArgs<'a> { object });

/// Result of REMOVE and RMDIR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemovedOk {
    /// The directory on both sides of the change.
    pub dir_wcc: WccData,
}

xdr_struct!(RemovedOk { dir_wcc });

/// `REMOVE3res` and `RMDIR3res`.
pub type RemovedReply = Reply<RemovedOk, WccData>;

/// Arguments of RENAME, RFC 1813 §3.3.14.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RenameArgs<'a> {
    /// The name that goes.
    pub from: DirOp<'a>,
    /// The name that comes, replacing what had it.
    pub to: DirOp<'a>,
}

xdr_struct!(RenameArgs<'a> { from, to });

/// Result of RENAME.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RenameOk {
    /// The directory it left, on both sides of the change.
    pub from_wcc: WccData,
    /// The directory it came to, on both sides of the change.
    pub to_wcc: WccData,
}

xdr_struct!(RenameOk { from_wcc, to_wcc });

/// `RENAME3resfail`, laid out as the success is.
pub type RenameFailure = RenameOk;

/// `RENAME3res`.
pub type RenameReply = Reply<RenameOk, RenameFailure>;

/// Arguments of LINK, RFC 1813 §3.3.15.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkArgs<'a> {
    /// The file that gets another name.
    pub file: FileHandle,
    /// That name.
    pub link: DirOp<'a>,
}

xdr_struct!(LinkArgs<'a> { file, link });

/// Result of LINK.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkOk {
    /// The file as it is.
    pub file_attributes: Option<Attributes>,
    /// The directory on both sides of the change.
    pub dir_wcc: WccData,
}

xdr_struct!(LinkOk { file_attributes, dir_wcc });

/// `LINK3resfail`, laid out as the success is.
pub type LinkFailure = LinkOk;

/// `LINK3res`.
pub type LinkReply = Reply<LinkOk, LinkFailure>;

const UNCHECKED: u32 = 0;
const GUARDED: u32 = 1;
const EXCLUSIVE: u32 = 2;
