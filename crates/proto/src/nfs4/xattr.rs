//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS and REMOVEXATTR, RFC 8276 §8.4.
//!
//! GETXATTR and REMOVEXATTR take a name, [`NameArgs`](super::NameArgs), and the operations that
//! change an attribute return [`ChangedOk`](super::ChangedOk).

use super::types::NAME_BYTES_MAX;
use crate::xdr::{Array, xdr_enum, xdr_struct};

xdr_enum! {
    /// `setxattr_option4`, RFC 8276 §8.4.2.
    pub enum SetxattrOption: "setxattr_option4" {
        /// Make the attribute, or replace its value.
        Either = 0 "SETXATTR4_EITHER",
        /// Make it; fail if it exists.
        Create = 1 "SETXATTR4_CREATE",
        /// Replace its value; fail if it does not exist.
        Replace = 2 "SETXATTR4_REPLACE",
    }
}

/// Result of GETXATTR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GetxattrOk<'a> {
    /// `xattrvalue4`.
    pub value: &'a [u8],
}

xdr_struct!(GetxattrOk<'a> { value: opaque(XATTR_BYTES_MAX) });

/// Arguments of SETXATTR up to the value: `value_len` bytes and their padding follow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SetxattrHead<'a> {
    /// Whether the attribute may, or must, exist.
    pub option: SetxattrOption,
    /// `xattrkey4`: the name without its namespace.
    pub name: &'a [u8],
    /// Length of the opaque value that follows.
    pub value_len: u32,
}

xdr_struct!(SetxattrHead<'a> { option, name: opaque(NAME_BYTES_MAX), value_len: u32 });

/// Arguments of SETXATTR with the value in the record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SetxattrArgs<'a> {
    /// Whether the attribute may, or must, exist.
    pub option: SetxattrOption,
    /// `xattrkey4`: the name without its namespace.
    pub name: &'a [u8],
    /// `xattrvalue4`.
    pub value: &'a [u8],
}

xdr_struct!(SetxattrArgs<'a> {
    option,
    name: opaque(NAME_BYTES_MAX),
    value: opaque(XATTR_BYTES_MAX),
});

/// Arguments of LISTXATTRS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListxattrsArgs {
    /// Zero, or the cookie of the reply before.
    pub cookie: u64,
    /// The longest result in bytes, with its cookie and its end.
    pub bytes_max: u32,
}

xdr_struct!(ListxattrsArgs { cookie: u64, bytes_max: u32 });

/// An `xattrkey4` of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct XattrName<'a> {
    /// The name without its namespace.
    pub name: &'a [u8],
}

xdr_struct!(XattrName<'a> { name: opaque(NAME_BYTES_MAX) });

/// Result of LISTXATTRS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListxattrsOk<'a> {
    /// Where the list goes on.
    pub cookie: u64,
    /// Names.
    pub names: Array<'a, XattrName<'a>, XATTR_NAMES_MAX>,
    /// No name follows.
    pub eof: bool,
}

xdr_struct!(ListxattrsOk<'a> { cookie: u64, names, eof: bool });

/// The longest value, as in Linux (`XATTR_SIZE_MAX`).
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Names of one list: Linux keeps 64 KiB of them (`XATTR_LIST_MAX`), each with its namespace.
pub const XATTR_NAMES_MAX: usize = 16 << 10;
