//! Trace events: what the server does with one READ or WRITE, step by step, as lines on standard
//! error.
//!
//! Names, fields and their order are those of the Linux NFS server's trace points, less their
//! prefix `nfsd_`, so that what reads one reads the other. While no event is on an event costs one
//! relaxed load.

use std::fmt;

pub use ::trace::handle_hash;

::trace::events! {
    /// A READ was decoded: what the client asks for.
    ReadStart => "read_start",
    /// A READ is served past the page cache: how its range was widened to the alignment, as
    /// `start=FIRST+EXTRA end=END-EXTRA`.
    ReadVectorDio => "read_vector_dio",
    /// The read that goes to the file system, with its real range.
    ReadVector => "read_vector",
    /// The range goes from the page cache to the socket without a copy.
    ReadSplice => "read_splice",
    /// The range is fetched before a client asks for it.
    ReadAhead => "read_ahead",
    /// The data is there: what the reply will hold.
    ReadIoDone => "read_io_done",
    /// A READ is answered.
    ReadDone => "read_done",
    /// A WRITE was decoded.
    WriteStart => "write_start",
    /// A WRITE is divided into a middle that goes past the page cache and ragged ends.
    WriteSplit => "write_split",
    /// A segment goes through the page cache.
    WriteVector => "write_vector",
    /// A segment goes past the page cache.
    WriteVectorDio => "write_vector_dio",
    /// The kernel took the data.
    WriteIoDone => "write_io_done",
    /// A WRITE is answered.
    WriteDone => "write_done",
    /// A COMMIT was decoded.
    CommitStart => "commit_start",
    /// A COMMIT is answered.
    CommitDone => "commit_done",
    /// A READDIR or READDIRPLUS was decoded; the offset is the cookie.
    ReaddirEnter => "readdir_enter",
    /// A READDIR or READDIRPLUS is answered; the count is of names.
    ReaddirExit => "readdir_exit",
}

/// A set of the server's events.
pub type Events = ::trace::Events<Event>;
/// A text that names no event of the server.
pub type NoSuchEvent = ::trace::NoSuchEvent<Event>;
/// Prints the events that are on. The subject of each is a [`CallId`].
pub type Tracer = ::trace::Tracer<Event>;

/// Which call an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    /// The client's number for the call (RFC 5531 §9).
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
    fn lines_are_those_of_the_linux_server() {
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
