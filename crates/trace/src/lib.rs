//! Trace events: the steps of one call or of the work on one file, as lines on standard error.
//!
//! A program lists its events with [`events!`], holds the enabled ones in a [`Tracer`], and emits
//! them with [`Tracer::emit`]. Names and fields are those of the Linux kernel's trace points where
//! it has them, so one script can parse both. A disabled event costs one relaxed load.
//!
//! ```
//! spillway_trace::events! {
//!     /// A train arrived.
//!     Arrived => "train_arrived",
//!     /// A train left.
//!     Left => "train_left",
//! }
//!
//! let tracer = spillway_trace::Tracer::<Event>::default();
//! tracer.set("train_left".parse()?);
//! assert!(tracer.is_on(Event::Left) && !tracer.is_on(Event::Arrived));
//! tracer.emit(Event::Left, "platform=3", 0, 12, format_args!("late={}s", 20));
//! # Ok::<(), spillway_trace::NoSuchEvent<Event>>(())
//! ```
#![forbid(unsafe_code)]

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The events of one program: an enum made by [`events!`].
pub trait TraceEvent: Copy + Eq + fmt::Debug + 'static {
    /// All of them, in the order in which they are listed; at most 64.
    const ALL: &'static [Self];

    /// The name in lines, configurations and on the command line.
    fn name(self) -> &'static str;

    /// The place in [`ALL`](Self::ALL).
    fn index(self) -> u32;
}

/// Lists the events of a program once: the variant, its name, and when it happens. Makes `Event`
/// and its [`TraceEvent`].
#[macro_export]
macro_rules! events {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// A trace event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Event {
            /// All of them, in the order in which they are listed.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in lines, configurations and on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// When it happens.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }

        impl $crate::TraceEvent for Event {
            const ALL: &'static [Self] = {
                assert!(Event::ALL.len() <= 64, "a set of events is a word");
                Event::ALL
            };

            fn name(self) -> &'static str {
                Event::name(self)
            }

            fn index(self) -> u32 {
                self as u32
            }
        }
    };
}

/// A set of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events<E> {
    bits: u64,
    of: PhantomData<E>,
}

impl<E: TraceEvent> Events<E> {
    /// Whether `event` is one of them.
    #[must_use]
    pub fn contains(self, event: E) -> bool {
        self.bits & Self::from(event).bits != 0
    }

    /// These and `other`.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self::of_bits(self.bits | other.bits)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.bits == 0
    }

    fn of_bits(bits: u64) -> Self {
        Self { bits, of: PhantomData }
    }
}

impl<E: TraceEvent> Default for Events<E> {
    fn default() -> Self {
        Self::of_bits(0)
    }
}

impl<E: TraceEvent> From<E> for Events<E> {
    fn from(event: E) -> Self {
        Self::of_bits(1 << event.index())
    }
}

impl<E: TraceEvent> FromIterator<Self> for Events<E> {
    fn from_iter<I: IntoIterator<Item = Self>>(sets: I) -> Self {
        Self::of_bits(sets.into_iter().fold(0, |bits, set| bits | set.bits))
    }
}

/// The names, separated by commas; `no event` for none.
impl<E: TraceEvent> fmt::Display for Events<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = E::ALL.iter().filter(|event| self.contains(**event)).map(|e| e.name());
        f.write_str(names.next().unwrap_or("no event"))?;
        names.try_for_each(|name| write!(f, ",{name}"))
    }
}

/// Reads the name of one event, or `all`.
impl<E: TraceEvent> FromStr for Events<E> {
    type Err = NoSuchEvent<E>;

    fn from_str(text: &str) -> Result<Self, NoSuchEvent<E>> {
        if text == ALL {
            return Ok(E::ALL.iter().copied().map(Self::from).collect());
        }
        match E::ALL.iter().find(|event| event.name() == text) {
            Some(event) => Ok(Self::from(*event)),
            None => Err(NoSuchEvent { text: text.to_owned(), of: PhantomData }),
        }
    }
}

/// A text that names no event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSuchEvent<E> {
    text: String,
    of: PhantomData<E>,
}

impl<E: TraceEvent> std::error::Error for NoSuchEvent<E> {}

impl<E: TraceEvent> fmt::Display for NoSuchEvent<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a trace event; the events are {ALL}", self.text.escape_debug())?;
        E::ALL.iter().try_for_each(|event| write!(f, ", {}", event.name()))
    }
}

/// The CRC-32 of a file handle as it is on the wire: the same as in the lines of the Linux kernel,
/// and what Wireshark shows as the hash of a handle.
#[must_use]
pub fn handle_hash(handle: &[u8]) -> u32 {
    // Bit by bit, without a table: only a traced call pays for it.
    !handle.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { CRC32_POLYNOMIAL } else { 0 }
        })
    })
}

/// A set of events that threads read while it is changed.
pub struct EventSwitch<E> {
    bits: AtomicU64,
    of: PhantomData<E>,
}

impl<E: TraceEvent> EventSwitch<E> {
    /// Replaces the set.
    pub fn set(&self, events: Events<E>) {
        self.bits.store(events.bits, Ordering::Relaxed);
    }

    /// The set: one relaxed load.
    #[inline]
    #[must_use]
    pub fn events(&self) -> Events<E> {
        Events::of_bits(self.bits.load(Ordering::Relaxed))
    }
}

impl<E> Default for EventSwitch<E> {
    fn default() -> Self {
        Self { bits: AtomicU64::new(0), of: PhantomData }
    }
}

/// Prints enabled events, or passes them to a listener.
pub struct Tracer<E> {
    enabled: EventSwitch<E>,
    listener: OnceLock<Listener<E>>,
}

/// Called with an event, its offset and its length.
type Listener<E> = Box<dyn Fn(E, u64, u64) + Send + Sync>;

impl<E: TraceEvent> Tracer<E> {
    /// Enables `events` and disables all others, also for calls in progress.
    pub fn set(&self, events: Events<E>) {
        self.enabled.set(events);
    }

    /// The events that are on.
    #[must_use]
    pub fn events(&self) -> Events<E> {
        self.enabled.events()
    }

    /// Whether `event` is on.
    #[inline]
    #[must_use]
    pub fn is_on(&self, event: E) -> bool {
        self.events().contains(event)
    }

    /// Replaces printing: `listener` is called with each enabled event, its offset and its length,
    /// on the emitting thread, often under a lock. Set once; later ones are ignored.
    pub fn listen(&self, listener: impl Fn(E, u64, u64) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Prints `event` if it is enabled: its subject, `len` bytes at `offset`, and `detail`, fields
    /// of the form `name=value` or nothing. `subject` and `detail` are formatted only when they are
    /// printed, but what they borrow is computed before.
    #[inline]
    pub fn emit(
        &self,
        event: E,
        subject: impl fmt::Display,
        offset: u64,
        len: u64,
        detail: fmt::Arguments<'_>,
    ) {
        if self.is_on(event) {
            match self.listener.get() {
                Some(listener) => listener(event, offset, len),
                None => print(&line(event, subject, offset, len, detail)),
            }
        }
    }
}

impl<E: TraceEvent> Default for Tracer<E> {
    fn default() -> Self {
        Self { enabled: EventSwitch::default(), listener: OnceLock::new() }
    }
}

impl<E: TraceEvent> fmt::Debug for Tracer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("events", &self.events()).finish_non_exhaustive()
    }
}

/// The line that [`Tracer::emit`] prints: `NAME: SUBJECT offset=N len=N DETAIL` and a newline.
#[must_use]
pub fn line<E: TraceEvent>(
    event: E,
    subject: impl fmt::Display,
    offset: u64,
    len: u64,
    detail: fmt::Arguments<'_>,
) -> String {
    let mut line = format!("{}: {subject} offset={offset} len={len}", event.name());
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
    // A closed standard error leaves no way to report it.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// The word for all events.
const ALL: &str = "all";

/// The polynomial of IEEE 802.3, its bits in the order in which they are received.
const CRC32_POLYNOMIAL: u32 = 0xedb8_8320;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[expect(unreachable_pub, reason = "the enum is made for crates that publish it")]
    mod sample {
        crate::events! {
            /// First.
            First => "first",
            /// Second.
            Second => "second",
            /// Third.
            Third => "third",
        }
    }
    use sample::Event;

    #[test]
    fn the_hash_is_crc_32() {
        // The check value of the catalogue of CRC algorithms, and of the empty message.
        assert_eq!(handle_hash(b"123456789"), 0xcbf4_3926);
        assert_eq!(handle_hash(b""), 0);
    }

    #[test]
    fn a_line_ends_with_the_detail_if_there_is_one() {
        assert_eq!(
            line(Event::First, "subject=7", 1, 2, format_args!("a={} b={}", 3, 4)),
            "first: subject=7 offset=1 len=2 a=3 b=4\n"
        );
        assert_eq!(
            line(Event::Second, "subject=7", u64::MAX, 0, format_args!("")),
            "second: subject=7 offset=18446744073709551615 len=0\n"
        );
    }

    #[test]
    fn names_are_read_back() {
        for event in Event::ALL {
            let events: Events<Event> = event.name().parse().unwrap();
            assert_eq!(events, Events::from(*event));
            assert_eq!(events.to_string(), event.name());
        }
        let all: Events<Event> = "all".parse().unwrap();
        assert_eq!(all.to_string(), "first,second,third");
        assert_eq!(
            "fir".parse::<Events<Event>>().unwrap_err().to_string(),
            "`fir` is not a trace event; the events are all, first, second, third"
        );
    }

    #[test]
    fn an_event_has_a_sentence_of_help() {
        assert_eq!(Event::Second.help(), "Second.");
    }

    #[test]
    fn only_the_set_events_are_enabled() {
        let tracer = Tracer::default();
        assert!(Event::ALL.iter().all(|event| !tracer.is_on(*event)));
        let set: Events<Event> =
            [Event::First, Event::Third].map(Events::from).into_iter().collect();
        tracer.set(set);
        for event in Event::ALL {
            assert_eq!(tracer.is_on(*event), set.contains(*event), "{event:?}");
        }
        assert_eq!(set.to_string(), "first,third");
        tracer.set(Events::default());
        assert!(tracer.events().is_empty());
        assert_eq!(tracer.events().to_string(), "no event");
    }

    #[test]
    fn a_listener_is_called_in_place_of_a_line() {
        let (received, tracer) = (Arc::<Mutex<Vec<_>>>::default(), Tracer::default());
        let noted = Arc::clone(&received);
        tracer.listen(move |event, offset, len| noted.lock().unwrap().push((event, offset, len)));
        tracer.set(Event::Second.into());
        tracer.emit(Event::First, Never, 1, 2, format_args!("{Never}"));
        tracer.emit(Event::Second, Never, 3, 4, format_args!("{Never}"));
        assert_eq!(*received.lock().unwrap(), [(Event::Second, 3, 4)]);
    }

    /// A value that must not be formatted.
    struct Never;

    impl fmt::Display for Never {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("formatted");
        }
    }

    #[test]
    fn a_disabled_event_is_not_formatted() {
        let tracer = Tracer::default();
        tracer.set(Event::First.into());
        tracer.emit(Event::Second, Never, 0, 0, format_args!("{Never}"));
    }
}
