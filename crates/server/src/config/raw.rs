//! The configuration file as it is written: every key optional, nothing checked but its type.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use io::IoMode;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::export::Squash;
use crate::trace::{Events, NoSuchEvent};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) listen: Option<Spanned<ListenList>>,
    pub(super) state_dir: Option<Spanned<PathBuf>>,
    pub(super) memory: Option<Spanned<ByteSize>>,
    pub(super) max_transfer: Option<Spanned<ByteSize>>,
    pub(super) max_connections: Option<Spanned<u32>>,
    pub(super) idle_timeout: Option<Spanned<TimeSpan>>,
    pub(super) portmap: Option<Spanned<bool>>,
    pub(super) nfs_versions: Option<Spanned<VersionList>>,
    pub(super) max_clients: Option<Spanned<u32>>,
    pub(super) max_sessions: Option<Spanned<u32>>,
    pub(super) max_opens: Option<Spanned<u32>>,
    pub(super) max_locks: Option<Spanned<u32>>,
    pub(super) max_delegations: Option<Spanned<u32>>,
    pub(super) delegations: Option<Spanned<bool>>,
    pub(super) data_threads: Option<Spanned<u32>>,
    pub(super) metadata_threads: Option<Spanned<u32>>,
    pub(super) window: Option<Spanned<ByteSize>>,
    pub(super) read_ahead: Option<Spanned<bool>>,
    pub(super) splice: Option<Spanned<bool>>,
    pub(super) trace: Option<Spanned<EventList>>,
    pub(super) metrics: Option<Spanned<ListenAddress>>,
    #[serde(default, rename = "export", deserialize_with = "exports")]
    pub(super) exports: Vec<RawExport>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExport {
    pub(super) path: Spanned<PathBuf>,
    pub(super) name: Option<Spanned<String>>,
    pub(super) id: Option<Spanned<u32>>,
    #[serde(default = "yes")]
    pub(super) sync: bool,
    #[serde(default)]
    pub(super) file_sync_writes: bool,
    pub(super) io_cache_read: Option<RawMode>,
    pub(super) io_cache_write: Option<RawMode>,
    pub(super) read_ahead: Option<bool>,
    pub(super) splice: Option<bool>,
    pub(super) calls_per_sec: Option<Spanned<u32>>,
    pub(super) bytes_per_sec: Option<Spanned<ByteSize>>,
    pub(super) client_calls_per_sec: Option<Spanned<u32>>,
    pub(super) client_bytes_per_sec: Option<Spanned<ByteSize>>,
    pub(super) read_only: Option<bool>,
    pub(super) squash: Option<Spanned<RawSquash>>,
    pub(super) anonymous_uid: Option<Spanned<u32>>,
    pub(super) anonymous_gid: Option<Spanned<u32>>,
    pub(super) secure_ports: Option<bool>,
    pub(super) profile: Option<Spanned<RawProfile>>,
    pub(super) metadata_servers: Option<Spanned<HostList>>,
    #[serde(default, rename = "client", deserialize_with = "clients")]
    pub(super) clients: Vec<RawClient>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClient {
    pub(super) hosts: Spanned<HostList>,
    pub(super) read_only: Option<bool>,
    pub(super) squash: Option<Spanned<RawSquash>>,
    pub(super) anonymous_uid: Option<Spanned<u32>>,
    pub(super) anonymous_gid: Option<Spanned<u32>>,
    pub(super) secure_ports: Option<bool>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawProfile {
    DataServer,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawSquash {
    None,
    Root,
    All,
}

impl From<RawSquash> for Squash {
    fn from(raw: RawSquash) -> Self {
        match raw {
            RawSquash::None => Self::None,
            RawSquash::Root => Self::Root,
            RawSquash::All => Self::All,
        }
    }
}

/// An I/O mode by its name.
#[derive(Clone, Copy)]
pub(super) struct RawMode(pub(super) IoMode);

impl FromStr for RawMode {
    type Err = io::NotAnIoMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A trace event by its name, or all of them.
#[derive(Clone, Copy)]
pub(super) struct RawEvents(pub(super) Events);

impl FromStr for RawEvents {
    type Err = NoSuchEvent;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

fn exports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RawExport>, D::Error> {
    deserializer.deserialize_any(Tables("[[export]]", PhantomData))
}

fn clients<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RawClient>, D::Error> {
    deserializer.deserialize_any(Tables("[[export.client]]", PhantomData))
}

/// Reads an array of tables, each with this header.
struct Tables<T>(&'static str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Tables<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tables that begin with {}", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vec<T>, A::Error> {
        collect(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, _table: A) -> Result<Vec<T>, A::Error> {
        let header = self.0;
        Err(A::Error::custom(format!("there can be several of this table: write {header}")))
    }
}

fn collect<'de, T, A>(mut seq: A) -> Result<Vec<T>, A::Error>
where
    T: Deserialize<'de>,
    A: SeqAccess<'de>,
{
    let mut elements = Vec::new();
    while let Some(element) = seq.next_element()? {
        elements.push(element);
    }
    Ok(elements)
}

/// Reads a list. A text without brackets is refused with the list that it would be.
fn list<'de, T, D>(deserializer: D, expected: &'static str) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct List<T>(&'static str, PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
            // Flags separate the elements by commas.
            let elements: Vec<_> = text.split(',').map(str::trim).collect();
            Err(E::custom(format!("the value is a list: write {elements:?}")))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vec<T>, A::Error> {
            collect(seq)
        }
    }

    deserializer.deserialize_any(List(expected, PhantomData))
}

/// The hosts of a rule.
pub(super) struct HostList(pub(super) Vec<Spanned<String>>);

impl<'de> Deserialize<'de> for HostList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        list(deserializer, "a list of hosts, such as [\"10.0.0.0/8\"]").map(Self)
    }
}

/// Versions of NFS, not yet parsed.
pub(super) struct VersionList(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for VersionList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        list(deserializer, "a list of versions, such as [\"3\", \"4.2\"]").map(Self)
    }
}

/// Trace events.
#[derive(Default)]
pub(super) struct EventList(pub(super) Vec<RawEvents>);

impl<'de> Deserialize<'de> for EventList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        list(deserializer, "a list of trace events, such as [\"all\"]").map(Self)
    }
}

/// One address, or a list of them.
pub(super) struct ListenList(pub(super) Vec<ListenText>);

/// An address not yet parsed: only the checker of the whole file knows an error's place.
pub(super) struct ListenText {
    pub(super) text: String,
    /// Bytes of the file, in a list; an address without a list has the place of its key.
    pub(super) span: Option<Range<usize>>,
}

impl<'de> Deserialize<'de> for ListenList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = ListenList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address with a port, such as \"127.0.0.1:2049\", or a list of them")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ListenList, E> {
                Ok(ListenList(vec![ListenText { text: text.to_owned(), span: None }]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ListenList, A::Error> {
                let mut addresses = Vec::new();
                while let Some(address) = seq.next_element::<Spanned<String>>()? {
                    let span = Some(address.span());
                    addresses.push(ListenText { text: address.into_inner(), span });
                }
                Ok(ListenList(addresses))
            }
        }

        deserializer.deserialize_any(OneOrMany)
    }
}

/// An IP address and a TCP port: `127.0.0.1:2049`, `[::1]:2049`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

impl FromStr for ListenAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        text.parse().map(Self).map_err(|_| NotAnAddress { text: text.to_owned() })
    }
}

/// A text that is not an address with a port.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is not an IP address with a port, such as 127.0.0.1:2049 or [::]:2049", text.escape_debug())]
pub struct NotAnAddress {
    text: String,
}

/// A number of bytes, written with its unit: `512KiB`, `1MiB`, `2GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        scaled(text, &BYTE_UNITS).map(Self).ok_or_else(|| NotASize { text: text.to_owned() })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |&&(_, bytes): &&(&str, u64)| self.0 >= bytes && self.0.is_multiple_of(bytes);
        match BYTE_UNITS.iter().find(whole) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// A text that is not a number of bytes.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is not a size with a unit, such as 512KiB, 1MiB or 2GiB", text.escape_debug())]
pub struct NotASize {
    text: String,
}

/// A length of time, written with its unit: `30s`, `5min`, `1h`.
pub(super) struct TimeSpan(pub(super) Duration);

impl FromStr for TimeSpan {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let secs = scaled(text, &TIME_UNITS).ok_or_else(|| NotATime { text: text.to_owned() })?;
        Ok(Self(Duration::from_secs(secs)))
    }
}

/// A text that is not a length of time.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is not a time with a unit, such as 30s, 5min or 1h", text.escape_debug())]
pub(super) struct NotATime {
    text: String,
}

/// Reads a string through [`FromStr`]. TOML integers are refused: a bare number hides its unit.
fn from_text<'de, T, D>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    struct Text<T>(&'static str, PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    deserializer.deserialize_str(Text(expected, PhantomData))
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, "a size with a unit, such as \"1MiB\"")
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, "a time with a unit, such as \"30s\"")
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, "an address with a port, such as \"127.0.0.1:9469\"")
    }
}

impl<'de> Deserialize<'de> for RawMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, "buffered, dontcache, direct or auto")
    }
}

impl<'de> Deserialize<'de> for RawEvents {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, "the name of a trace event")
    }
}

/// Largest first, so that a size is displayed in the largest unit that divides it.
const BYTE_UNITS: [(&str, u64); 4] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Seconds per unit.
const TIME_UNITS: [(&str, u64); 3] = [("s", 1), ("min", 60), ("h", 3600)];

/// The number at the start of `text` times its unit; `None` if either is missing or it overflows.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim_start_matches(' '))?;
    number.parse::<u64>().ok()?.checked_mul(*scale)
}

fn yes() -> bool {
    true
}
