//! FSSTAT, FSINFO and PATHCONF: RFC 1813 §3.3.18 to §3.3.20. Fields keep the RFC's names.

use super::types::{Attributes, FileHandle, Reply, Time};
use crate::xdr::xdr_struct;

/// Arguments of FSSTAT, RFC 1813 §3.3.18.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FsstatArgs {
    /// Any file of the file system.
    pub fsroot: FileHandle,
}

xdr_struct!(FsstatArgs { fsroot });

/// Result of FSSTAT: what changes with use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FsstatOk {
    /// The file asked about, as it is.
    pub attributes: Option<Attributes>,
    /// Bytes in all.
    pub tbytes: u64,
    /// Bytes free.
    pub fbytes: u64,
    /// Bytes free to the caller.
    pub abytes: u64,
    /// File slots in all.
    pub tfiles: u64,
    /// File slots free.
    pub ffiles: u64,
    /// File slots free to the caller.
    pub afiles: u64,
    /// Seconds for which this is not expected to change; a hint.
    pub invarsec: u32,
}

xdr_struct!(FsstatOk {
    attributes,
    tbytes: u64,
    fbytes: u64,
    abytes: u64,
    tfiles: u64,
    ffiles: u64,
    afiles: u64,
    invarsec: u32,
});

/// `FSSTAT3res`.
pub type FsstatReply = Reply<FsstatOk, Option<Attributes>>;

/// Arguments of FSINFO, RFC 1813 §3.3.19.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FsinfoArgs {
    /// The root handle that MOUNT gave.
    pub fsroot: FileHandle,
}

xdr_struct!(FsinfoArgs { fsroot });

/// Result of FSINFO: what does not change while the server runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FsinfoOk {
    /// The file asked about, as it is.
    pub attributes: Option<Attributes>,
    /// Most bytes in one READ.
    pub rtmax: u32,
    /// Preferred bytes of a READ.
    pub rtpref: u32,
    /// Suggested multiple of a READ, in bytes.
    pub rtmult: u32,
    /// Most bytes in one WRITE.
    pub wtmax: u32,
    /// Preferred bytes of a WRITE.
    pub wtpref: u32,
    /// Suggested multiple of a WRITE, in bytes.
    pub wtmult: u32,
    /// Preferred bytes of a READDIR.
    pub dtpref: u32,
    /// Largest possible file, in bytes.
    pub maxfilesize: u64,
    /// Granularity of the server's times.
    pub time_delta: Time,
    /// The `FSF_*` bits that hold.
    pub properties: u32,
}

xdr_struct!(FsinfoOk {
    attributes,
    rtmax: u32,
    rtpref: u32,
    rtmult: u32,
    wtmax: u32,
    wtpref: u32,
    wtmult: u32,
    dtpref: u32,
    maxfilesize: u64,
    time_delta,
    properties: u32,
});

/// `FSINFO3res`.
pub type FsinfoReply = Reply<FsinfoOk, Option<Attributes>>;

/// Arguments of PATHCONF, RFC 1813 §3.3.20.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PathconfArgs {
    /// The file asked about.
    pub object: FileHandle,
}

xdr_struct!(PathconfArgs { object });

/// Result of PATHCONF.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PathconfOk {
    /// The file asked about, as it is.
    pub attributes: Option<Attributes>,
    /// Most hard links to one file.
    pub linkmax: u32,
    /// Longest name, in bytes.
    pub name_max: u32,
    /// Whether a longer name is an error rather than cut.
    pub no_trunc: bool,
    /// Whether only a privileged user may give files away.
    pub chown_restricted: bool,
    /// Whether names that differ in case are the same.
    pub case_insensitive: bool,
    /// Whether names keep the case they were created with.
    pub case_preserving: bool,
}

xdr_struct!(PathconfOk {
    attributes,
    linkmax: u32,
    name_max: u32,
    no_trunc: bool,
    chown_restricted: bool,
    case_insensitive: bool,
    case_preserving: bool,
});

/// `PATHCONF3res`.
pub type PathconfReply = Reply<PathconfOk, Option<Attributes>>;

/// Hard links exist.
pub const FSF_LINK: u32 = 0x01;
/// Symbolic links exist.
pub const FSF_SYMLINK: u32 = 0x02;
/// PATHCONF answers the same for each file.
pub const FSF_HOMOGENEOUS: u32 = 0x08;
/// SETATTR can set times.
pub const FSF_CANSETTIME: u32 = 0x10;
