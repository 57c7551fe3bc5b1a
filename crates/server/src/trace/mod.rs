//! Trace events: the steps of one READ, WRITE, COMMIT or listing, and the start and end of each
//! call, as lines on standard error.
//!
//! An event has the name, fields and field order of the Linux NFS server's trace point (mainline's
//! `fs/nfsd/trace.h`), without the prefix `nfsd_`, so one script can parse both. Mainline has no
//! counterpart of `read_vector_dio`, which was proposed on its mailing list and not merged, nor of
//! `read_ahead`, `write_split`, `readdir_enter`, `readdir_exit`, `call_start` and `call_done`,
//! which are Spillway's.
//!
//! An event goes to the standard error if it is [printed](Tracer::set), to each command that
//! [follows](Tracer::follow) it, and to the static [`probes`]. One that is used by none costs two
//! relaxed loads.

mod follow;
mod probes;
mod recorder;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::trace::EventSwitch;
pub use ::trace::handle_hash;
use io::WidenedRead;

use crate::moment::Moment;
pub(crate) use follow::{FOLLOWERS_BYTES_MAX, FOLLOWERS_MAX};
use follow::{Feed, Happened};
pub(crate) use follow::{Filter, Followed, Follower};
pub(crate) use recorder::{Begun, Outcome, RECORDER_BYTES, RecordId, Recorded, Recorder};

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
    /// A call of any procedure was received. Not in mainline.
    CallStart => "call_start",
    /// The reply to a call of any procedure was encoded. Not in mainline.
    CallDone => "call_done",
}

/// A set of the server's events.
pub type Events = ::trace::Events<Event>;
/// A text that names no event of the server.
pub type NoSuchEvent = ::trace::NoSuchEvent<Event>;

impl Event {
    /// The first word of its name, which the events of a procedure have in common.
    #[must_use]
    pub fn subsystem(self) -> &'static str {
        self.name().split('_').next().unwrap_or_default()
    }
}

/// The events that words name: events, subsystems, or `all`.
///
/// # Errors
/// A word names none.
pub fn events_of<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Events, NoSuchEvent> {
    let of_word = |word: &str| {
        let of_subsystem = Event::ALL.iter().filter(|event| event.subsystem() == word);
        let found: Events = of_subsystem.map(|event| Events::from(*event)).collect();
        if found.is_empty() { word.parse() } else { Ok(found) }
    };
    words.into_iter().map(of_word).collect()
}

/// Passes events that are on to the standard error, to followers and to probes.
#[derive(Default)]
pub struct Tracer {
    /// All that are printed or followed.
    on: EventSwitch<Event>,
    printed: ::trace::Tracer<Event>,
    followers: RwLock<Vec<Arc<Feed>>>,
    pub(crate) recorder: Recorder,
}

impl Tracer {
    /// Prints `events` and no others from now on, also of calls in progress.
    pub(crate) fn set(&self, events: Events) {
        self.printed.set(events);
        self.update(&self.followers.read().unwrap_or_else(PoisonError::into_inner));
    }

    /// The events that are printed.
    pub(crate) fn events(&self) -> Events {
        self.printed.events()
    }

    /// Whether any event is printed, followed, or attached to.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        !self.on.events().is_empty() || io::probe::is_attached()
    }

    /// Whether an event is printed or followed, or any attached to.
    #[inline]
    pub(crate) fn is_on(&self, event: Event) -> bool {
        self.on.events().contains(event) || io::probe::is_attached()
    }

    /// Records `event`, and reports it if it is on: the call it belongs to, `len` bytes at
    /// `offset`, and more fields. What `detail` borrows is computed before.
    #[inline]
    pub(crate) fn emit<'a>(
        &self,
        event: Event,
        call: CallId,
        offset: u64,
        len: u64,
        detail: impl Into<Detail<'a>>,
    ) {
        self.recorder.note(call.record, event);
        if self.is_on(event) {
            self.report(event, &call, (offset, len), &detail.into());
        }
    }

    #[cold]
    fn report(&self, event: Event, call: &CallId, range: (u64, u64), detail: &Detail<'_>) {
        probes::fire(event, call, range, detail);
        let (offset, len) = range;
        match detail {
            Detail::Text(text) => self.printed.emit(event, call, offset, len, *text),
            detail => self.printed.emit(event, call, offset, len, format_args!("{detail}")),
        }
        let followers = self.followers.read().unwrap_or_else(PoisonError::into_inner);
        if !followers.is_empty() {
            let latency = call.received.elapsed();
            let happened = Happened { event, call, range, latency };
            followers.iter().for_each(|feed| feed.offer(&happened, detail));
        }
    }

    /// Ends a call that was answered `latency` after its last byte.
    #[inline]
    pub(crate) fn end(&self, call: CallKey, latency: Duration) {
        if !self.on.events().is_empty() {
            let followers = self.followers.read().unwrap_or_else(PoisonError::into_inner);
            followers.iter().for_each(|feed| feed.end(call, latency));
        }
    }

    /// Follows events from now on, until what is returned is dropped. `None` if there are
    /// [`FOLLOWERS_MAX`] already.
    pub(crate) fn follow(self: &Arc<Self>, events: Events, filter: Filter) -> Option<Follower> {
        let mut followers = self.followers.write().unwrap_or_else(PoisonError::into_inner);
        if followers.len() >= FOLLOWERS_MAX {
            return None;
        }
        let feed = Arc::new(Feed::new(events, filter));
        followers.push(Arc::clone(&feed));
        self.update(&followers);
        Some(Follower { tracer: Arc::clone(self), feed })
    }

    fn forget(&self, feed: &Arc<Feed>) {
        let mut followers = self.followers.write().unwrap_or_else(PoisonError::into_inner);
        followers.retain(|other| !Arc::ptr_eq(other, feed));
        self.update(&followers);
    }

    fn update(&self, followers: &[Arc<Feed>]) {
        let followed = followers.iter().map(|feed| feed.events());
        self.on.set(followed.fold(self.printed.events(), Events::union));
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("printed", &self.events()).finish_non_exhaustive()
    }
}

/// The call that an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    /// The transaction id of the call (RFC 5531 §9).
    pub(crate) xid: u32,
    /// [`handle_hash`] of the object; 0 for a call that came before the first event was on.
    pub(crate) fh_hash: u32,
    /// The export that the handle claims to be of.
    pub(crate) export_id: Option<u32>,
    pub(crate) client: IpAddr,
    /// When its last byte was there.
    pub(crate) received: Moment,
    pub(crate) record: RecordId,
    /// Whether the work may outlast the call: it is no part of the call's record and latency.
    pub(crate) outlasts: bool,
}

/// One call, as no other has all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallKey {
    pub(crate) xid: u32,
    pub(crate) client: IpAddr,
    pub(crate) received: Moment,
}

impl CallId {
    pub(crate) fn key(&self) -> CallKey {
        CallKey { xid: self.xid, client: self.client, received: self.received }
    }

    /// For work that the call has caused and does not wait for.
    pub(crate) fn outlasting(self) -> Self {
        Self { record: RecordId::NONE, outlasts: true, ..self }
    }

    /// A call of no client.
    #[cfg(test)]
    pub(crate) fn local(xid: u32, fh_hash: u32) -> Self {
        let client = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let (received, record) = (Moment::now(), RecordId::NONE);
        Self { xid, fh_hash, export_id: None, client, received, record, outlasts: false }
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xid=0x{:08x} fh_hash=0x{:08x}", self.xid, self.fh_hash)
    }
}

/// The fields of an event behind its range.
#[derive(Clone, Copy)]
pub(crate) enum Detail<'a> {
    /// Of the form `name=value`, or none.
    Text(fmt::Arguments<'a>),
    /// The range that a direct read is widened to.
    Widened(WidenedRead),
    /// How a call ended: its status with its name, and how much was done.
    Done { status: u32, name: &'static str, count: u32 },
    /// A whole call: its procedure, or the first operation of a COMPOUND that works on files.
    Call { program: &'static str, procedure: &'static str, end: Option<CallEnd> },
}

/// How a whole call ended.
#[derive(Clone, Copy)]
pub(crate) struct CallEnd {
    /// As the recorder has it.
    pub(crate) status: u32,
    pub(crate) name: &'static str,
    /// The wait for the thread that began the work.
    pub(crate) queue_us: u64,
}

impl<'a> From<fmt::Arguments<'a>> for Detail<'a> {
    fn from(text: fmt::Arguments<'a>) -> Self {
        Self::Text(text)
    }
}

impl From<WidenedRead> for Detail<'_> {
    fn from(widened: WidenedRead) -> Self {
        Self::Widened(widened)
    }
}

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.fmt(f),
            Self::Widened(widened) => widened.fmt(f),
            Self::Done { name, count, .. } => write!(f, "status={name} count={count}"),
            Self::Call { program, procedure, end } => {
                write!(f, "program={program} procedure={procedure}")?;
                let Some(CallEnd { name, queue_us, .. }) = end else { return Ok(()) };
                write!(f, " status={name} queue={queue_us}us")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::trace::line;

    #[test]
    fn lines_have_the_fields_of_the_linux_server() {
        let call = CallId::local(0x5dcf_019c, 0xe4da_db60);
        let align = io::DioAlign::new(512, 512, 512).unwrap();
        let widened = align.widen_read(io::ByteRange::new(47008, 47008).unwrap()).unwrap();
        assert_eq!(
            line(
                Event::ReadVectorDio,
                call,
                47008,
                47008,
                format_args!("{}", Detail::from(widened))
            ),
            "read_vector_dio: xid=0x5dcf019c fh_hash=0xe4dadb60 offset=47008 len=47008 \
             start=46592+416 end=94208-192\n"
        );
        let small = CallId::local(1, 0);
        assert_eq!(
            line(Event::ReadIoDone, small, 0, 47008, format_args!("")),
            "read_io_done: xid=0x00000001 fh_hash=0x00000000 offset=0 len=47008\n"
        );
    }

    #[test]
    fn a_subsystem_names_its_events() {
        let readdir = events_of(["readdir"]).unwrap();
        assert_eq!(readdir.to_string(), "readdir_enter,readdir_exit");
        assert_eq!(
            events_of(["commit_done", "readdir"]).unwrap().to_string().split(',').count(),
            3
        );
        assert!(events_of(["read"]).unwrap().contains(Event::ReadAhead));
        assert!(events_of(["reading"]).is_err());
    }

    #[test]
    fn an_event_is_on_while_it_is_printed_or_followed() {
        let tracer = Arc::new(Tracer::default());
        assert!(!tracer.is_used());
        tracer.set(Event::ReadDone.into());
        let follow = |event: Event| tracer.follow(event.into(), Filter::default());
        let (a, b) = (follow(Event::WriteDone).unwrap(), follow(Event::WriteDone).unwrap());
        assert!(tracer.is_on(Event::ReadDone) && tracer.is_on(Event::WriteDone));
        drop(a);
        tracer.set(Events::default());
        assert!(!tracer.is_on(Event::ReadDone) && tracer.is_on(Event::WriteDone));
        let others: Vec<_> = (1..FOLLOWERS_MAX).map(|_| follow(Event::ReadDone).unwrap()).collect();
        assert!(follow(Event::ReadDone).is_none());
        drop((b, others));
        assert!(!tracer.is_used());
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
        assert!(error.starts_with("`read` is not a trace event; the events are all, read_start, "));
        assert!(Event::ALL.iter().all(|event| error.contains(event.name())), "{error}");
    }
}
