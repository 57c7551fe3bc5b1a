//! LOOKUP, READLINK, CREATE, REMOVE, RENAME, LINK, and the security of names: RFC 8881 §18.

use super::attr::RawAttributes;
use super::types::{
    Bitmap, ChangeInfo, DeviceSpec, FileHandle, FileType, NAME_BYTES_MAX, SYMLINK_TARGET_BYTES_MAX,
};
use crate::xdr::{Array, Decode, DecodeError, Encode, Reader, Writer, xdr_enum, xdr_struct};

/// Arguments of PUTFH, §18.19, and result of GETFH, §18.8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// The handle.
    pub object: FileHandle,
}

xdr_struct!(Handle { object });

/// Arguments of LOOKUP, §18.13, of REMOVE, §18.25, and of SECINFO, §18.29.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NameArgs<'a> {
    /// A name in the current directory.
    pub name: &'a [u8],
}

xdr_struct!(NameArgs<'a> { name: opaque(NAME_BYTES_MAX) });

/// `createtype4`, §18.4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateKind<'a> {
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(&'a [u8]),
    /// A block device.
    BlockDevice(DeviceSpec),
    /// A character device.
    CharacterDevice(DeviceSpec),
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
    /// A type that CREATE does not make.
    Other(FileType),
}

impl<'a> Decode<'a> for CreateKind<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match FileType::decode(r)? {
            FileType::Directory => Self::Directory,
            FileType::Symlink => {
                Self::Symlink(r.opaque(SYMLINK_TARGET_BYTES_MAX, "createtype4.linkdata")?)
            }
            FileType::BlockDevice => Self::BlockDevice(Decode::decode(r)?),
            FileType::CharacterDevice => Self::CharacterDevice(Decode::decode(r)?),
            FileType::Socket => Self::Socket,
            FileType::Fifo => Self::Fifo,
            other @ (FileType::Regular
            | FileType::AttributeDirectory
            | FileType::NamedAttribute) => Self::Other(other),
        })
    }
}

impl Encode for CreateKind<'_> {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Directory => FileType::Directory.encode(w),
            Self::Symlink(target) => {
                FileType::Symlink.encode(w);
                w.opaque(target);
            }
            Self::BlockDevice(spec) => {
                FileType::BlockDevice.encode(w);
                spec.encode(w);
            }
            Self::CharacterDevice(spec) => {
                FileType::CharacterDevice.encode(w);
                spec.encode(w);
            }
            Self::Socket => FileType::Socket.encode(w),
            Self::Fifo => FileType::Fifo.encode(w),
            Self::Other(other) => other.encode(w),
        }
    }
}

/// Arguments of CREATE, §18.4.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CreateArgs<'a> {
    /// The type of the object, with the target of a link or the numbers of a device.
    pub kind: CreateKind<'a>,
    /// Its name in the current directory.
    pub name: &'a [u8],
    /// Its attributes.
    pub attributes: RawAttributes<'a>,
}

xdr_struct!(CreateArgs<'a> { kind, name: opaque(NAME_BYTES_MAX), attributes });

/// Result of CREATE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CreateOk {
    /// Of the directory.
    pub change: ChangeInfo,
    /// The attributes that were set.
    pub attributes_set: Bitmap,
}

xdr_struct!(CreateOk { change, attributes_set });

/// Result of REMOVE, §18.25, and of LINK, §18.9.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChangedOk {
    /// Of the directory.
    pub change: ChangeInfo,
}

xdr_struct!(ChangedOk { change });

/// Arguments of RENAME, §18.26: from the saved directory to the current one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RenameArgs<'a> {
    /// The name in the saved directory.
    pub old: &'a [u8],
    /// The name in the current directory.
    pub new: &'a [u8],
}

xdr_struct!(RenameArgs<'a> { old: opaque(NAME_BYTES_MAX), new: opaque(NAME_BYTES_MAX) });

/// Result of RENAME.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RenameOk {
    /// Of the directory that the name left.
    pub source: ChangeInfo,
    /// Of the directory that it came into.
    pub target: ChangeInfo,
}

xdr_struct!(RenameOk { source, target });

/// Result of READLINK, §18.24.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReadlinkOk<'a> {
    /// The target.
    pub target: &'a [u8],
}

xdr_struct!(ReadlinkOk<'a> { target: opaque(SYMLINK_TARGET_BYTES_MAX) });

xdr_enum! {
    /// `secinfo_style4`, §18.45.
    pub enum SecinfoStyle: "secinfo_style4" {
        /// Of the current filehandle.
        CurrentFh = 0 "SECINFO_STYLE4_CURRENT_FH",
        /// Of its parent.
        Parent = 1 "SECINFO_STYLE4_PARENT",
    }
}

/// Arguments of `SECINFO_NO_NAME`, §18.45.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecinfoNoNameArgs {
    /// Whose security is asked for.
    pub style: SecinfoStyle,
}

xdr_struct!(SecinfoNoNameArgs { style });

/// Result of SECINFO and `SECINFO_NO_NAME`: RPC flavours without parameters, as `RPCSEC_GSS` is not
/// spoken here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecinfoOk<'a> {
    /// In the server's order of preference.
    pub flavors: Array<'a, u32, FLAVORS_MAX>,
}

xdr_struct!(SecinfoOk<'a> { flavors });

/// Flavours that one SECINFO lists.
pub const FLAVORS_MAX: usize = 8;
