//! Trace events: the operations of the client on a file or directory, as lines on standard error.
//!
//! A line is `NAME: fileid=N fh_hash=0x… offset=N len=N DETAIL`, as the server's with the file id
//! in place of the xid. The names are those of the Linux NFS client's trace points where it has
//! one, without the prefix `nfs_`; the details are documented at each event. While no event is
//! enabled, an event costs one relaxed load.
//!
//! ```
//! use spillway_client::trace::{Event, Object, Tracer};
//!
//! let tracer = Tracer::default();
//! tracer.set("readdir_call".parse()?);
//! let handle = proto::nfs3::FileHandle::new(b"handle").expect("it is short");
//! let dir = Object { fileid: 2, handle: &handle };
//! let (cookie, room) = (0, 65_536);
//! tracer.emit(Event::ReaddirCall, dir, cookie, room, format_args!("plus=1"));
//! # Ok::<(), spillway_client::trace::NoSuchEvent>(())
//! ```

use std::fmt;

pub use ::trace::handle_hash;
use proto::nfs3::FileHandle;

::trace::events! {
    /// A program reads a directory: `offset` is the cookie to continue from.
    ReaddirEnter => "readdir_enter",
    /// It gets entries: `offset` is the cookie to continue from next, `len` the number of names;
    /// `page=` the index of the page, `eof=`.
    ReaddirExit => "readdir_exit",
    /// A page is cached: `offset` is the cookie behind which it begins, `len` the number of names.
    ReaddirCacheHit => "readdir_cache_hit",
    /// READDIR or READDIRPLUS is sent: `offset` is the cookie, `len` the count; `plus=`.
    ReaddirCall => "readdir_call",
    /// Its reply: `offset` is the cookie, `len` the number of names; `eof=`, or `error=`.
    ReaddirReply => "readdir_reply",
    /// A cached page is invalidated: `offset` is the cookie behind which it begins, `len` the
    /// number of names; or a whole listing: both are 0. `why=`.
    ReaddirInvalidate => "readdir_invalidate",
    /// A directory is opened.
    Opendir => "opendir",
    /// A directory is closed.
    Closedir => "closedir",
    /// A program seeks in a directory: `offset` is the cookie.
    LlseekDir => "llseek_dir",
    /// LOOKUP is sent, for a name in the directory: `name=`.
    LookupCall => "lookup_call",
    /// A name is found in a listing, without a call: `name=`.
    LookupCached => "lookup_cached",
    /// GETATTR is sent.
    GetattrCall => "getattr_call",
    /// SETATTR is sent.
    SetattrCall => "setattr_call",
    /// A file is opened: `kept=1` if its cached data is still valid, otherwise `kept=0`.
    OpenFile => "open_file",
    /// A file is closed.
    CloseFile => "close_file",
    /// The caches of an object are dropped after a foreign change: `from=` and `to=` are the change
    /// stamps.
    CacheInvalidate => "cache_invalidate",
    /// A change is this client's own: `from=` and `to=` are the change stamps.
    OwnChange => "own_change",
    /// A program writes.
    WriteEnter => "write_enter",
    /// WRITE is sent: `stable=`.
    WriteCall => "write_call",
    /// Its reply: `committed=`, or `error=`.
    WriteReply => "write_reply",
    /// Data is sent again because the write verifier has changed.
    WriteResend => "write_resend",
    /// COMMIT is sent.
    CommitCall => "commit_call",
    /// Its reply; `error=` if it failed.
    CommitReply => "commit_reply",
    /// A program reads.
    ReadEnter => "read_enter",
    /// READ is sent for a waiting program.
    ReadCall => "read_call",
    /// READ is sent for read-ahead.
    ReadAhead => "read_ahead",
    /// The reply of either: `len` bytes; `eof=`, or `error=`.
    ReadReply => "read_reply",
}

/// A set of the client's events.
pub type Events = ::trace::Events<Event>;
/// The error for the name of an unknown event.
pub type NoSuchEvent = ::trace::NoSuchEvent<Event>;
/// Prints the enabled events. The subject of each is an [`Object`].
pub type Tracer = ::trace::Tracer<Event>;

/// The subject of an event. The handle is hashed only for an enabled event.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// The file id.
    pub fileid: u64,
    /// The file handle.
    pub handle: &'a FileHandle,
}

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = handle_hash(self.handle.as_bytes());
        write!(f, "fileid={} fh_hash=0x{hash:08x}", self.fileid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_the_file_and_its_handle() {
        let handle = FileHandle::new(b"123456789").unwrap();
        let object = Object { fileid: 42, handle: &handle };
        assert_eq!(
            ::trace::line(Event::ReaddirCall, object, 7, 65_536, format_args!("plus={}", 1)),
            "readdir_call: fileid=42 fh_hash=0xcbf43926 offset=7 len=65536 plus=1\n"
        );
    }

    #[test]
    fn names_are_read_back() {
        let all: Events = "all".parse().unwrap();
        for event in Event::ALL {
            assert_eq!(event.name().parse(), Ok(Events::from(*event)));
            assert!(all.contains(*event));
        }
    }
}
