//! Trace events: what the client does with one file or directory, step by step, as lines on
//! standard error.
//!
//! A line is `NAME: fileid=N fh_hash=0x… offset=N len=N DETAIL`, the server's with the number of
//! the file in place of that of the call. Names are those of the Linux NFS client's trace points
//! where it has one, less their prefix `nfs_`; the details are described at each event. While no
//! event is on an event costs one relaxed load.
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
    /// A program asks for names of a directory: `offset` is the cookie to continue from, `len` the
    /// bytes it has room for.
    ReaddirEnter => "readdir_enter",
    /// It has them: `offset` is the cookie to continue from next, `len` the number of names;
    /// `page=` the index of the last page used, `eof=`.
    ReaddirExit => "readdir_exit",
    /// A page of names was in the cache: `offset` is the cookie it begins behind, `len` the number
    /// of names; `page=` its index.
    ReaddirCacheHit => "readdir_cache_hit",
    /// READDIR or READDIRPLUS is sent: `offset` is the cookie, `len` the bytes wanted; `plus=`.
    ReaddirCall => "readdir_call",
    /// Its reply: `offset` is the cookie, `len` the number of names; `eof=`, or `error=`.
    ReaddirReply => "readdir_reply",
    /// A cached listing is no longer believed: `offset` is the cookie from which on, `len` the
    /// number of names; `why=`.
    ReaddirInvalidate => "readdir_invalidate",
    /// A directory is opened.
    Opendir => "opendir",
    /// A directory is closed.
    Closedir => "closedir",
    /// A program seeks in a directory: `offset` is the cookie.
    LlseekDir => "llseek_dir",
    /// A program syncs a directory.
    FsyncDir => "fsync_dir",
    /// LOOKUP is sent, for a name in the directory: `name=`.
    LookupCall => "lookup_call",
    /// A name is found, or known to be absent, without asking the server: `name=`, `found=`.
    LookupCached => "lookup_cached",
    /// GETATTR is sent.
    GetattrCall => "getattr_call",
    /// SETATTR is sent.
    SetattrCall => "setattr_call",
    /// A file is opened: `kept=1` when what is cached of it is still believed, else `kept=0`.
    OpenFile => "open_file",
    /// A file is closed.
    CloseFile => "close_file",
    /// What is cached of an object is dropped because somebody else changed it: `from=` and `to=`
    /// are the change stamps.
    CacheInvalidate => "cache_invalidate",
    /// A change turns out to be this client's own: `from=` and `to=` are the change stamps.
    OwnChange => "own_change",
    /// A program writes.
    WriteEnter => "write_enter",
    /// WRITE is sent: `stable=`.
    WriteCall => "write_call",
    /// Its reply: `committed=`, or `error=`.
    WriteReply => "write_reply",
    /// Data goes to the server again because its write verifier changed.
    WriteResend => "write_resend",
    /// COMMIT is sent.
    CommitCall => "commit_call",
    /// Its reply; `error=` if it failed.
    CommitReply => "commit_reply",
    /// A program reads.
    ReadEnter => "read_enter",
    /// READ is sent for a program that waits.
    ReadCall => "read_call",
    /// READ is sent before a program asks.
    ReadAhead => "read_ahead",
    /// The reply of either: `len` bytes; `eof=`, or `error=`.
    ReadReply => "read_reply",
}

/// A set of the client's events.
pub type Events = ::trace::Events<Event>;
/// A text that names no event of the client.
pub type NoSuchEvent = ::trace::NoSuchEvent<Event>;
/// Prints the events that are on. The subject of each is an [`Object`].
pub type Tracer = ::trace::Tracer<Event>;

/// Which file or directory an event is about. Its handle is hashed only for an event that is on.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// Its number within the file system.
    pub fileid: u64,
    /// Its handle.
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
