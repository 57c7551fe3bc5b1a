//! Trace events: the steps of one READ, WRITE, COMMIT or listing, as lines on standard error.
//!
//! An event has the name, fields and field order of the Linux NFS server's trace point (mainline's
//! `fs/nfsd/trace.h`), without the prefix `nfsd_`, so one script can parse both. Mainline has no
//! counterpart of `read_vector_dio`, which was proposed on its mailing list and not merged, nor of
//! `read_ahead`, `write_split`, `readdir_enter` and `readdir_exit`, which are Spillway's.
//!
//! A disabled event costs one relaxed load.

use std::fmt;

pub use ::trace::handle_hash;

::trace::events! {
    /// A READ was decoded.
    ReadStart => "read_start",
    /// A direct read is issued; the range is the client's. Its widening to the alignment follows
    /// as `start=FIRST+EXTRA end=END-EXTRA`. Not in mainline.
    ReadVectorDio => "read_vector_dio",
    /// A direct read is issued; the range is the client's.
    ReadDirect => "read_direct",
    /// A read through the page cache is issued.
    ReadVector => "read_vector",
    /// The range is spliced from the page cache to the socket.
    ReadSplice => "read_splice",
    /// A range is read before a client asks for it. Not in mainline.
    ReadAhead => "read_ahead",
    /// The read completed; the range is that of the reply.
    ReadIoDone => "read_io_done",
    /// The reply to a READ was encoded.
    ReadDone => "read_done",
    /// A WRITE was decoded.
    WriteStart => "write_start",
    /// A WRITE is split into an aligned middle and one or two misaligned ends. Not in mainline.
    WriteSplit => "write_split",
    /// A segment is written through the page cache.
    WriteVector => "write_vector",
    /// A segment is written directly.
    WriteDirect => "write_direct",
    /// The write completed.
    WriteIoDone => "write_io_done",
    /// The reply to a WRITE was encoded.
    WriteDone => "write_done",
    /// A COMMIT was decoded.
    CommitStart => "commit_start",
    /// The reply to a COMMIT was encoded.
    CommitDone => "commit_done",
    /// A READDIR or READDIRPLUS was decoded; the offset is the cookie. Not in mainline.
    ReaddirEnter => "readdir_enter",
    /// The reply to a READDIR or READDIRPLUS was encoded; the count is of names. Not in mainline.
    ReaddirExit => "readdir_exit",
}

/// A set of the server's events.
pub type Events = ::trace::Events<Event>;
/// A text that names no event of the server.
pub type NoSuchEvent = ::trace::NoSuchEvent<Event>;
/// Prints the events that are on. The subject of each is a [`CallId`].
pub type Tracer = ::trace::Tracer<Event>;

/// The call that an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    /// The transaction id of the call (RFC 5531 §9).
    pub xid: u32,
    /// [`handle_hash`] of the object.
    pub fh_hash: u32,
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xid=0x{:08x} fh_hash=0x{:08x}", self.xid, self.fh_hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::trace::line;

    const CALL: CallId = CallId { xid: 0x5dcf_019c, fh_hash: 0xe4da_db60 };

    #[test]
    fn lines_have_the_fields_of_the_linux_server() {
        let extra = format_args!("start={}+{} end={}-{}", 46592, 416, 94208, 192);
        assert_eq!(
            line(Event::ReadVectorDio, CALL, 47008, 47008, extra),
            "read_vector_dio: xid=0x5dcf019c fh_hash=0xe4dadb60 offset=47008 len=47008 \
             start=46592+416 end=94208-192\n"
        );
        let small = CallId { xid: 1, fh_hash: 0 };
        assert_eq!(
            line(Event::ReadIoDone, small, 0, 47008, format_args!("")),
            "read_io_done: xid=0x00000001 fh_hash=0x00000000 offset=0 len=47008\n"
        );
    }

    #[test]
    fn names_are_read_back() {
        for event in Event::ALL {
            let events: Events = event.name().parse().unwrap();
            assert_eq!(events, Events::from(*event));
            assert_eq!(events.to_string(), event.name());
        }
        let all: Events = "all".parse().unwrap();
        assert!(Event::ALL.iter().all(|event| all.contains(*event)));
        let error = "read".parse::<Events>().unwrap_err().to_string();
        assert!(error.starts_with("`read` is no trace event; the events are all, read_start, "));
        assert!(Event::ALL.iter().all(|event| error.contains(event.name())), "{error}");
    }
}
