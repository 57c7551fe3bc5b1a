//! Trace events: what the server does with one READ or WRITE, step by step, as lines on standard
//! error.
//!
//! Names, fields and their order are those of the Linux NFS server's trace points, less their
//! prefix `nfsd_`, so that what reads one reads the other. While no event is on an event costs one
//! relaxed load.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lists the events once: the variant, its name, and when it happens.
macro_rules! events {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// Something that happens to a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Event {
            /// All of them, in the order in which they befall a call.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in lines, configurations and on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

events! {
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

impl Event {
    fn bit(self) -> u64 {
        const { assert!(Event::ALL.len() <= 64, "a set of events is a word") };
        1 << (self as u32)
    }
}

/// A set of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u64);

impl Events {
    /// Whether `event` is one of them.
    #[must_use]
    pub fn contains(self, event: Event) -> bool {
        self.0 & event.bit() != 0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl From<Event> for Events {
    fn from(event: Event) -> Self {
        Self(event.bit())
    }
}

impl FromIterator<Self> for Events {
    fn from_iter<I: IntoIterator<Item = Self>>(sets: I) -> Self {
        Self(sets.into_iter().fold(0, |bits, Self(set)| bits | set))
    }
}

/// The names, separated by commas; `no event` for none.
impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Event::ALL.iter().filter(|event| self.contains(**event)).map(|e| e.name());
        f.write_str(names.next().unwrap_or("no event"))?;
        names.try_for_each(|name| write!(f, ",{name}"))
    }
}

/// Reads the name of one event, or `all`.
impl FromStr for Events {
    type Err = NoSuchEvent;

    fn from_str(text: &str) -> Result<Self, NoSuchEvent> {
        if text == ALL {
            return Ok(Event::ALL.iter().copied().map(Self::from).collect());
        }
        match Event::ALL.iter().find(|event| event.name() == text) {
            Some(event) => Ok(Self::from(*event)),
            None => Err(NoSuchEvent { text: text.to_owned() }),
        }
    }
}

/// A text that names no event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSuchEvent {
    text: String,
}

impl std::error::Error for NoSuchEvent {}

impl fmt::Display for NoSuchEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no trace event; the events are {ALL}", self.text.escape_debug())?;
        Event::ALL.iter().try_for_each(|event| write!(f, ", {}", event.name()))
    }
}

/// Which call an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    /// The client's number for the call (RFC 5531 §9).
    pub xid: u32,
    /// [`handle_hash`] of the object.
    pub fh_hash: u32,
}

/// The CRC-32 of a file handle as it is on the wire: the same as in the lines of the Linux NFS
/// server, and what Wireshark shows as the hash of a handle.
#[must_use]
pub fn handle_hash(handle: &[u8]) -> u32 {
    // Bit by bit, without a table: only a traced call pays for it.
    !handle.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { CRC32_POLYNOMIAL } else { 0 }
        })
    })
}

/// Prints the events that are on.
#[derive(Debug, Default)]
pub struct Tracer {
    /// [`Events`].
    enabled: AtomicU64,
}

impl Tracer {
    /// Switches on `events`, and all others off. Calls at work notice.
    pub fn set(&self, events: Events) {
        self.enabled.store(events.0, Ordering::Relaxed);
    }

    /// The events that are on.
    #[must_use]
    pub fn events(&self) -> Events {
        Events(self.enabled.load(Ordering::Relaxed))
    }

    /// Whether `event` is on.
    #[inline]
    #[must_use]
    pub fn is_on(&self, event: Event) -> bool {
        self.events().contains(event)
    }

    /// Prints `event` if it is on: the call, `len` bytes at `offset` of its object, and `detail`,
    /// fields of the form `name=value` or nothing. `detail` is formatted only when it is printed,
    /// but what it borrows is computed before.
    #[inline]
    pub fn emit(
        &self,
        event: Event,
        call: CallId,
        offset: u64,
        len: u64,
        detail: fmt::Arguments<'_>,
    ) {
        if self.is_on(event) {
            print(&line(event, call, offset, len, detail));
        }
    }
}

fn line(event: Event, call: CallId, offset: u64, len: u64, detail: fmt::Arguments<'_>) -> String {
    let CallId { xid, fh_hash } = call;
    let name = event.name();
    let mut line =
        format!("{name}: xid=0x{xid:08x} fh_hash=0x{fh_hash:08x} offset={offset} len={len}");
    if detail.as_str() != Some("") {
        write!(line, " {detail}").expect("a String takes all that is written");
    }
    line.push('\n');
    line
}

/// Writes a line whole. Standard error has no buffer, so this is one system call, and its lock
/// keeps other lines out.
#[cold]
fn print(line: &str) {
    // Nobody is left to tell if standard error is closed.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// The word for all events.
const ALL: &str = "all";

/// The polynomial of IEEE 802.3, its bits in the order in which they are received.
const CRC32_POLYNOMIAL: u32 = 0xedb8_8320;

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_hash_is_crc_32() {
        // The check value of the catalogue of CRC algorithms, and of the empty message.
        assert_eq!(handle_hash(b"123456789"), 0xcbf4_3926);
        assert_eq!(handle_hash(b""), 0);
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

    #[test]
    fn only_what_is_set_is_on() {
        let tracer = Tracer::default();
        assert!(Event::ALL.iter().all(|event| !tracer.is_on(*event)));
        let set: Events =
            [Event::ReadDone, Event::ReaddirExit].map(Events::from).into_iter().collect();
        tracer.set(set);
        for event in Event::ALL {
            assert_eq!(tracer.is_on(*event), set.contains(*event), "{event:?}");
        }
        assert_eq!(set.to_string(), "read_done,readdir_exit");
        tracer.set(Events::default());
        assert_eq!(tracer.events().to_string(), "no event");
    }
}
