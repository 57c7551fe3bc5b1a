//! NFS version 4, minor versions 1 and 2: RFC 8881, RFC 7862, RFC 8276 and RFC 9754.
//!
//! A name such as [`OpenArgs`] is the RFC's `OPEN4args`; the RFC's name stands in the doc comment
//! where the two differ by more than spelling.

mod attr;
mod callback;
mod compound;
mod copy;
mod delegation;
mod namespace;
mod operation;
mod read;
mod readdir;
mod session;
mod state;
mod status;
mod types;
mod write;
mod xattr;

pub use attr::{
    ACCESS_DELETE, ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ,
    ACCESS_XALIST, ACCESS_XAREAD, ACCESS_XAWRITE, ATTRIBUTES_BYTES_MAX, AccessArgs, AccessOk,
    Attributes, ChangeAttributeType, GetattrArgs, KNOWN_ATTRIBUTES, ModeUmask, NoItems,
    OpenArguments, Principal, RawAttributes, SetTime, SetattrArgs, attribute, encode_attributes,
};
pub use callback::{
    CALLBACK_VERSION, CB_COMPOUND, CB_NOTIFY_LOCK, CB_RECALL, CB_SEQUENCE, CallbackHead,
    CallbackNotifyLockArgs, CallbackRecallArgs, CallbackSequenceArgs,
};
pub use compound::{
    CompoundHead, CompoundResult, Outline, encode_result, encode_success, next_operation,
};
pub use copy::{AllocateArgs, CloneArgs, CopyArgs, CopyOk};
pub use delegation::*;
pub use namespace::{
    ChangedOk, CreateArgs, CreateKind, CreateOk, FLAVORS_MAX, Handle, NameArgs, ReadlinkOk,
    RenameArgs, RenameOk, SecinfoNoNameArgs, SecinfoOk, SecinfoStyle,
};
pub use operation::OperationCode;
pub use read::{Content, ReadArgs, ReadOk, SeekArgs, SeekOk};
pub use readdir::{Entry, EntryEncoder, LISTING_END_BYTES, ReaddirArgs, ReaddirOk, listing_end};
pub use session::*;
pub use state::*;
pub use status::Status;
pub use types::{
    BITMAP_WORDS, BITMAP_WORDS_MAX, Bitmap, ChangeInfo, ClientId, ClientOwner, DeviceSpec,
    FILE_HANDLE_BYTES_MAX, FileHandle, FileType, Fsid, LockOwner, LockRange, LockType,
    NAME_BYTES_MAX, NFS4_OK, OPAQUE_BYTES_MAX, OpenOwner, Reply, SESSION_ID_BYTES,
    STATEID_OTHER_BYTES, SYMLINK_TARGET_BYTES_MAX, SequenceId, SessionId, ShareAccess, ShareDeny,
    SlotId, StableHow, StateProtectHow, Stateid, Time, VERIFIER_BYTES, Verifier, status_code,
};
pub use write::{
    CommitArgs, CommitOk, PayloadScan, SCAN_OPERATIONS_MAX, WriteArgs, WriteHead, WriteOk,
    WritePayload, scan_payload,
};
pub use xattr::{
    GetxattrOk, ListxattrsArgs, ListxattrsOk, SetxattrArgs, SetxattrHead, SetxattrOption,
    XATTR_BYTES_MAX, XATTR_NAMES_MAX, XattrName,
};

use crate::xdr::xdr_enum;

/// The NFS program, RFC 8881 §1.
pub const PROGRAM: u32 = 100_003;
/// The version described here.
pub const VERSION: u32 = 4;

xdr_enum! {
    /// The procedures of NFS version 4, RFC 8881 §16.
    pub enum Procedure: "NFS4 procedure" {
        /// NULL, §16.1: do nothing.
        Null = 0 "NULL",
        /// COMPOUND, §16.2.
        Compound = 1 "COMPOUND",
    }
}
