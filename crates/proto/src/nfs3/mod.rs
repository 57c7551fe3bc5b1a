//! NFS version 3, RFC 1813. The files part the procedures by subject, as everywhere in Spillway.
//!
//! A name such as [`ReadArgs`] is the RFC's `READ3args`; the RFC's name stands in the doc comment
//! where the two differ by more than spelling.

mod attr;
mod fsinfo;
mod namespace;
mod read;
mod readdir;
mod types;
mod write;

pub use attr::{
    ACCESS_DELETE, ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ,
    AccessArgs, AccessOk, AccessReply, GetattrArgs, GetattrOk, GetattrReply, SetattrArgs,
    SetattrOk, SetattrReply,
};
pub use fsinfo::{
    FSF_CANSETTIME, FSF_HOMOGENEOUS, FSF_LINK, FSF_SYMLINK, FsinfoArgs, FsinfoOk, FsinfoReply,
    FsstatArgs, FsstatOk, FsstatReply, PathconfArgs, PathconfOk, PathconfReply,
};
pub use namespace::{
    CreateArgs, CreateHow, CreatedOk, CreatedReply, DirOp, LinkArgs, LinkFailure, LinkOk,
    LinkReply, LookupArgs, LookupOk, LookupReply, MkdirArgs, MknodArgs, MknodData, ReadlinkArgs,
    ReadlinkOk, ReadlinkReply, RemoveArgs, RemovedOk, RemovedReply, RenameArgs, RenameFailure,
    RenameOk, RenameReply, RmdirArgs, SymlinkArgs,
};
pub use read::{ReadArgs, ReadOk, ReadReply};
pub use readdir::{
    Entry, EntryEncoder, EntryPlus, LIST_END_BYTES, ListingLimits, ReaddirArgs, ReaddirOk,
    ReaddirReply, ReaddirplusArgs, ReaddirplusOk, ReaddirplusReply, encode_listing_head,
    listing_end,
};
pub use types::{
    Attributes, CookieVerifier, DeviceSpec, FILE_HANDLE_BYTES_MAX, Failure, FileHandle, FileType,
    NAME_BYTES_MAX, Reply, SYMLINK_TARGET_BYTES_MAX, SetAttributes, SetTime, StableHow, Status,
    Time, WccAttributes, WccData, WriteVerifier,
};
pub use write::{
    CommitArgs, CommitOk, CommitReply, WriteArgs, WriteHead, WriteOk, WriteReply, WriteScan,
};

use crate::xdr::xdr_enum;

/// The NFS program, RFC 1813 §2.1.
pub const PROGRAM: u32 = 100_003;
/// The version described here.
pub const VERSION: u32 = 3;

xdr_enum! {
    /// The procedures of NFS version 3, RFC 1813 §3.3.
    pub enum Procedure: "NFS3 procedure" {
        /// NULL, §3.3.0: do nothing.
        Null = 0 "NULL",
        /// GETATTR, §3.3.1.
        Getattr = 1 "GETATTR",
        /// SETATTR, §3.3.2.
        Setattr = 2 "SETATTR",
        /// LOOKUP, §3.3.3.
        Lookup = 3 "LOOKUP",
        /// ACCESS, §3.3.4.
        Access = 4 "ACCESS",
        /// READLINK, §3.3.5.
        Readlink = 5 "READLINK",
        /// READ, §3.3.6.
        Read = 6 "READ",
        /// WRITE, §3.3.7.
        Write = 7 "WRITE",
        /// CREATE, §3.3.8.
        Create = 8 "CREATE",
        /// MKDIR, §3.3.9.
        Mkdir = 9 "MKDIR",
        /// SYMLINK, §3.3.10.
        Symlink = 10 "SYMLINK",
        /// MKNOD, §3.3.11.
        Mknod = 11 "MKNOD",
        /// REMOVE, §3.3.12.
        Remove = 12 "REMOVE",
        /// RMDIR, §3.3.13.
        Rmdir = 13 "RMDIR",
        /// RENAME, §3.3.14.
        Rename = 14 "RENAME",
        /// LINK, §3.3.15.
        Link = 15 "LINK",
        /// READDIR, §3.3.16.
        Readdir = 16 "READDIR",
        /// READDIRPLUS, §3.3.17.
        Readdirplus = 17 "READDIRPLUS",
        /// FSSTAT, §3.3.18.
        Fsstat = 18 "FSSTAT",
        /// FSINFO, §3.3.19.
        Fsinfo = 19 "FSINFO",
        /// PATHCONF, §3.3.20.
        Pathconf = 20 "PATHCONF",
        /// COMMIT, §3.3.21.
        Commit = 21 "COMMIT",
    }
}
