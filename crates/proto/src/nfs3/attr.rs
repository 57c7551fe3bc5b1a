//! GETATTR, SETATTR and ACCESS: RFC 1813 §3.3.1, §3.3.2 and §3.3.4.

use super::types::{Attributes, FileHandle, Reply, SetAttributes, Time, WccData};
use crate::xdr::xdr_struct;

/// Arguments of GETATTR, RFC 1813 §3.3.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GetattrArgs {
    /// The file asked about.
    pub object: FileHandle,
}

xdr_struct!(GetattrArgs { object });

/// Result of GETATTR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GetattrOk {
    /// The file as it is.
    pub attributes: Attributes,
}

xdr_struct!(GetattrOk { attributes });

/// `GETATTR3res`.
pub type GetattrReply = Reply<GetattrOk, ()>;

/// Arguments of SETATTR, RFC 1813 §3.3.2.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SetattrArgs {
    /// The file to change.
    pub object: FileHandle,
    /// The attributes to set; absent ones stay as they are.
    pub new_attributes: SetAttributes,
    /// `sattrguard3`: change only a file whose ctime is this, else answer NFS3ERR_NOT_SYNC.
    pub guard: Option<Time>,
}

xdr_struct!(SetattrArgs { object, new_attributes, guard });

/// Result of SETATTR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SetattrOk {
    /// The file on both sides of the change.
    pub wcc: WccData,
}

xdr_struct!(SetattrOk { wcc });

/// `SETATTR3res`.
pub type SetattrReply = Reply<SetattrOk, WccData>;

/// Arguments of ACCESS, RFC 1813 §3.3.4.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessArgs {
    /// The file asked about.
    pub object: FileHandle,
    /// The `ACCESS_*` bits asked about.
    pub access: u32,
}

xdr_struct!(AccessArgs { object, access: u32 });

/// Result of ACCESS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessOk {
    /// The file as it is.
    pub attributes: Option<Attributes>,
    /// Those of the bits asked about that are granted.
    pub access: u32,
}

xdr_struct!(AccessOk { attributes, access: u32 });

/// `ACCESS3res`.
pub type AccessReply = Reply<AccessOk, Option<Attributes>>;

/// Read a file's data or a directory.
pub const ACCESS_READ: u32 = 0x01;
/// Look a name up in a directory.
pub const ACCESS_LOOKUP: u32 = 0x02;
/// Rewrite existing data or entries.
pub const ACCESS_MODIFY: u32 = 0x04;
/// Write new data or add entries.
pub const ACCESS_EXTEND: u32 = 0x08;
/// Delete an entry of a directory.
pub const ACCESS_DELETE: u32 = 0x10;
/// Execute a file.
pub const ACCESS_EXECUTE: u32 = 0x20;
