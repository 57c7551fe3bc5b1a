//! The configuration: a TOML file, flags that override it, and the [`Config`] that comes out.
//!
//! A [`Config`] has been checked whole, against itself and against this machine, so the rest of the
//! server does not check it again. Its fields are private; the only ways to one are
//! [`Config::load`], [`Config::parse`] and [`Config::from_flags`]. `docs/configuration.md` is the
//! operator's description of every key.

mod addresses;
mod error;
mod export;
mod raw;
mod setting;
mod state_dir;
mod versions;
mod warnings;

use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use io::IoMode;
use toml::Spanned;

pub(crate) use addresses::is_v6_only;
pub use error::ConfigError;
use error::{Given, Origin, Source};
use export::Resolve;
pub use raw::{ByteSize, ListenAddress, NotASize, NotAnAddress};
use raw::{EventList, RawConfig, RawEvents, TimeSpan, VersionList};
pub use setting::{Setting, SettingError, edited};
pub use state_dir::system_state_dir;
pub use versions::{NfsVersions, NoSuchVersions};

use crate::export::ExportTable;
use crate::trace::Events;

/// All settings of one server, valid and complete.
#[derive(Debug, Clone)]
pub struct Config {
    listen: Vec<SocketAddr>,
    state_dir: PathBuf,
    memory_bytes: usize,
    max_transfer_bytes: u32,
    connections_max: usize,
    idle_timeout: Duration,
    /// As it was asked for, also without version 3.
    portmap: bool,
    nfs_versions: NfsVersions,
    state_limits: StateLimits,
    delegations: bool,
    data_threads: usize,
    metadata_threads: usize,
    window: Window,
    read_ahead: bool,
    splice: bool,
    /// `--no-read-ahead`.
    no_read_ahead: bool,
    /// `--no-splice`.
    no_splice: bool,
    trace: Events,
    metrics: Option<SocketAddr>,
    exports: Arc<ExportTable>,
}

/// The most that all clients of version 4 have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Clients that have introduced themselves.
    pub clients_max: usize,
    /// Sessions.
    pub sessions_max: usize,
    /// Opens.
    pub opens_max: usize,
    /// Byte-range locks.
    pub locks_max: usize,
    /// Delegations.
    pub delegations_max: usize,
}

/// The settings of the command line, which override the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Serve this directory, and no other.
    pub directory: Option<DirectoryExport>,
    /// `--listen`; empty if not given.
    pub listen: Vec<SocketAddr>,
    /// `--state-dir`.
    pub state_dir: Option<PathBuf>,
    /// `--memory`.
    pub memory: Option<ByteSize>,
    /// `--max-transfer`.
    pub max_transfer: Option<ByteSize>,
    /// `--read-only`: makes every export read-only.
    pub read_only: bool,
    /// `--portmap`.
    pub portmap: bool,
    /// `--nfs-versions`.
    pub nfs_versions: Option<NfsVersions>,
    /// `--read-mode`: of every export, overriding the file.
    pub read_mode: Option<IoMode>,
    /// `--write-mode`: of every export, overriding the file.
    pub write_mode: Option<IoMode>,
    /// `--window`.
    pub window: Option<ByteSize>,
    /// `--no-read-ahead`.
    pub no_read_ahead: bool,
    /// `--no-splice`.
    pub no_splice: bool,
    /// `--metrics`.
    pub metrics: Option<ListenAddress>,
    /// `--trace`: these events and no others.
    pub trace: Option<Events>,
}

/// The export that `spillway serve DIR` makes.
#[derive(Debug, Clone)]
pub struct DirectoryExport {
    /// The directory, relative or absolute.
    pub path: PathBuf,
    /// `--as`: what clients mount; without it the absolute path.
    pub name: Option<String>,
    /// `--client`: who may mount, as in `hosts` of the file; empty for this machine only.
    pub clients: Vec<String>,
}

impl Config {
    /// Reads and checks `file`. Blocks: names are resolved, directories opened.
    ///
    /// # Errors [`ConfigError`] with the place of the first error.
    pub fn load(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(file).map_err(|error| ConfigError::File {
            file: file.to_owned(),
            why: format!("cannot be read: {error}"),
        })?;
        Self::parse(&text, file, overrides)
    }

    /// Checks a configuration already read; `file` is only its name in errors.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, file: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        parse_with(Source { file, text }, overrides, &export::resolve)
    }

    /// A configuration without a file: [`Overrides::directory`] and the defaults.
    ///
    /// # Errors
    /// [`ConfigError::Flag`] without a directory; else as [`Config::load`].
    pub fn from_flags(overrides: &Overrides) -> Result<Self, ConfigError> {
        if overrides.directory.is_none() {
            let why = "no directory to serve: give one, or --config FILE".to_owned();
            return Err(ConfigError::Flag { flag: "DIR", why });
        }
        Self::parse("", Path::new("(no file)"), overrides)
    }

    /// Where to accept connections: at least one address, and none that another one includes.
    #[must_use]
    pub fn listen(&self) -> &[SocketAddr] {
        &self.listen
    }

    /// The directory of the handle key; absolute, outside every export, perhaps not there yet.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The memory budget, the window included; at least [`MEMORY_TRANSFERS_MIN`] times the transfer
    /// size.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// The largest READ and WRITE (`rtmax` and `wtmax` of RFC 1813 §3.3.19); a multiple of 4 KiB.
    #[must_use]
    pub fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes
    }

    /// The most connections at once.
    #[must_use]
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// A connection without a request for this long is closed.
    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// Whether clients may find the server through the portmapper on port 111.
    #[must_use]
    pub fn portmap(&self) -> bool {
        // Clients of version 4 need no portmapper, and nothing else is to be found with it.
        self.portmap && self.nfs_versions.v3
    }

    /// The versions of NFS that are served.
    #[must_use]
    pub fn nfs_versions(&self) -> NfsVersions {
        self.nfs_versions
    }

    /// The bounds of the state of version 4.
    #[must_use]
    pub fn state_limits(&self) -> StateLimits {
        self.state_limits
    }

    /// Whether clients of version 4 get read delegations, where the machine can.
    #[must_use]
    pub fn delegations(&self) -> bool {
        self.delegations
    }

    /// Threads that read and write file data.
    #[must_use]
    pub fn data_threads(&self) -> usize {
        self.data_threads
    }

    /// Threads that do everything else to files.
    #[must_use]
    pub fn metadata_threads(&self) -> usize {
        self.metadata_threads
    }

    /// The size of the write-behind window, a part of the memory and at most half of it.
    #[must_use]
    pub fn window_bytes(&self) -> usize {
        self.window.bytes
    }

    /// Memory and window on a machine, or in a control group, with so much memory. A window by
    /// default is smaller where that is little, and so is the memory: the buffers do not get the
    /// difference.
    #[must_use]
    pub fn memory_of(&self, machine_bytes: u64) -> (usize, usize) {
        let bytes_max = (machine_bytes / WINDOW_MACHINE_PART).max(WINDOW_MIN.0);
        let window_bytes = match (self.window.is_default, usize::try_from(bytes_max)) {
            (true, Ok(bytes_max)) => self.window.bytes.min(bytes_max),
            _ => self.window.bytes,
        };
        (self.memory_bytes - (self.window.bytes - window_bytes), window_bytes)
    }

    /// Whether sequential READs past the page cache are read ahead.
    #[must_use]
    pub fn read_ahead(&self) -> bool {
        self.read_ahead
    }

    /// Whether buffered READs are spliced from the page cache to the socket.
    #[must_use]
    pub fn splice(&self) -> bool {
        self.splice
    }

    /// The trace events that are printed.
    #[must_use]
    pub fn trace(&self) -> Events {
        self.trace
    }

    /// Where metrics are served over HTTP.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// The exports: at least one.
    #[must_use]
    pub fn exports(&self) -> &Arc<ExportTable> {
        &self.exports
    }

    /// Consequences of the configuration that its author may not expect, a sentence each: exports
    /// whose rules can be bypassed through another export, a portmapper that stays off. Blocks on
    /// the directories of exports.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut sentences = warnings::bypassed_rules(&self.exports);
        if self.portmap && !self.portmap() {
            let why = "clients of version 4 do not need it";
            sentences.push(format!("the portmapper stays off without NFS version 3: {why}"));
        }
        sentences
    }

    /// The keys in which `new` differs and which a running server cannot change: all but the
    /// exports, `read_ahead`, `splice` and `trace`.
    #[must_use]
    pub fn restart_only_changes(&self, new: &Self) -> Vec<&'static str> {
        let (state, new_state) = (self.state_limits, new.state_limits);
        let changes = [
            ("listen", self.listen != new.listen),
            ("state_dir", self.state_dir != new.state_dir),
            ("memory", self.memory_bytes != new.memory_bytes),
            ("max_transfer", self.max_transfer_bytes != new.max_transfer_bytes),
            ("max_connections", self.connections_max != new.connections_max),
            ("idle_timeout", self.idle_timeout != new.idle_timeout),
            ("portmap", self.portmap() != new.portmap()),
            ("nfs_versions", self.nfs_versions != new.nfs_versions),
            ("max_clients", state.clients_max != new_state.clients_max),
            ("max_sessions", state.sessions_max != new_state.sessions_max),
            ("max_opens", state.opens_max != new_state.opens_max),
            ("max_locks", state.locks_max != new_state.locks_max),
            ("max_delegations", state.delegations_max != new_state.delegations_max),
            ("delegations", self.delegations != new.delegations),
            ("data_threads", self.data_threads != new.data_threads),
            ("metadata_threads", self.metadata_threads != new.metadata_threads),
            ("window", self.window != new.window),
            ("metrics", self.metrics != new.metrics),
        ];
        changes.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }
}

fn parse_with(
    source: Source<'_>,
    overrides: &Overrides,
    resolve: Resolve<'_>,
) -> Result<Config, ConfigError> {
    let raw: RawConfig = toml::from_str(source.text).map_err(|error| source.not_toml(&error))?;
    let state_limits = state_limits(&raw, source)?;
    let max_transfer = max_transfer(raw.max_transfer, overrides, source)?;
    let memory_bytes = memory_bytes(raw.memory, &max_transfer, overrides, source)?;
    let portmap = overrides.portmap.then_some(("--portmap", true));
    let no_read_ahead = overrides.no_read_ahead.then_some(("--no-read-ahead", false));
    let no_splice = overrides.no_splice.then_some(("--no-splice", false));
    let threads = |key, raw, default| count(key, raw, default, 1..=THREADS_MAX, source);
    let nfs_versions = nfs_versions(raw.nfs_versions, overrides, source)?;
    let exports = export::export_table(raw.exports, nfs_versions, overrides, source, resolve)?;
    let listen = addresses::listen(raw.listen, overrides, source)?;
    let metrics = addresses::metrics(raw.metrics, &listen, overrides, source)?;
    Ok(Config {
        listen: listen.value,
        state_dir: state_dir::state_dir(raw.state_dir, overrides, &exports, source)?,
        memory_bytes,
        max_transfer_bytes: max_transfer.value,
        connections_max: count(
            "max_connections",
            raw.max_connections,
            CONNECTIONS_DEFAULT,
            1..=CONNECTIONS_MAX,
            source,
        )?,
        idle_timeout: idle_timeout(raw.idle_timeout, source)?,
        portmap: Given::pick(portmap, raw.portmap, false).value,
        nfs_versions,
        state_limits,
        delegations: raw.delegations.is_none_or(|raw| *raw.get_ref()),
        data_threads: threads("data_threads", raw.data_threads, DATA_THREADS_DEFAULT)?,
        metadata_threads: threads(
            "metadata_threads",
            raw.metadata_threads,
            METADATA_THREADS_DEFAULT,
        )?,
        window: window(raw.window, memory_bytes, overrides, source)?,
        read_ahead: Given::pick(no_read_ahead, raw.read_ahead, true).value,
        splice: Given::pick(no_splice, raw.splice, true).value,
        no_read_ahead: overrides.no_read_ahead,
        no_splice: overrides.no_splice,
        trace: trace(raw.trace, overrides),
        metrics,
        exports: Arc::new(exports),
    })
}

fn state_limits(raw: &RawConfig, source: Source<'_>) -> Result<StateLimits, ConfigError> {
    let count = |key, raw: &Option<Spanned<u32>>, default, range| {
        count(key, raw.clone(), default, range, source)
    };
    let delegations = &raw.max_delegations;
    Ok(StateLimits {
        clients_max: count("max_clients", &raw.max_clients, CLIENTS_DEFAULT, CLIENTS_RANGE)?,
        sessions_max: count("max_sessions", &raw.max_sessions, SESSIONS_DEFAULT, CLIENTS_RANGE)?,
        opens_max: count("max_opens", &raw.max_opens, OPENS_DEFAULT, OPENS_RANGE)?,
        locks_max: count("max_locks", &raw.max_locks, LOCKS_DEFAULT, LOCKS_RANGE)?,
        delegations_max: count("max_delegations", delegations, DELEGATIONS_DEFAULT, OPENS_RANGE)?,
    })
}

fn nfs_versions(
    raw: Option<Spanned<VersionList>>,
    overrides: &Overrides,
    source: Source<'_>,
) -> Result<NfsVersions, ConfigError> {
    if let Some(versions) = overrides.nfs_versions {
        return Ok(versions);
    }
    let Some(raw) = raw else { return Ok(NfsVersions::ALL) };
    let VersionList(versions) = raw.get_ref();
    versions.join(",").parse().map_err(|NoSuchVersions| {
        let why = "give one or more of \"3\", \"4.1\" and \"4.2\"";
        source.at(&raw.span(), why.to_owned())
    })
}

fn max_transfer(
    raw: Option<Spanned<ByteSize>>,
    overrides: &Overrides,
    source: Source<'_>,
) -> Result<Given<u32>, ConfigError> {
    let flag = overrides.max_transfer.map(|size| ("--max-transfer", size));
    let Given { value, origin } = Given::pick(flag, raw, MAX_TRANSFER_DEFAULT);
    let (least, most) = (MAX_TRANSFER_RANGE.start(), MAX_TRANSFER_RANGE.end());
    match u32::try_from(value.0) {
        Ok(bytes) if MAX_TRANSFER_RANGE.contains(&value) && bytes % TRANSFER_UNIT_BYTES == 0 => {
            Ok(Given { value: bytes, origin })
        }
        _ => {
            let why = format!("{value} is not a multiple of 4KiB between {least} and {most}");
            Err(source.blame(&origin, why))
        }
    }
}

fn memory_bytes(
    raw: Option<Spanned<ByteSize>>,
    max_transfer: &Given<u32>,
    overrides: &Overrides,
    source: Source<'_>,
) -> Result<usize, ConfigError> {
    let flag = overrides.memory.map(|size| ("--memory", size));
    let Given { value, origin } = Given::pick(flag, raw, MEMORY_DEFAULT);
    let least = ByteSize(u64::from(max_transfer.value) * MEMORY_TRANSFERS_MIN);
    if value < least {
        // The default is never at fault: then it is the transfer size that was raised.
        let origin = if matches!(origin, Origin::Default) { &max_transfer.origin } else { &origin };
        let transfer = ByteSize(max_transfer.value.into());
        return Err(source.blame(
            origin,
            format!(
                "{value} of memory is too little for transfers of {transfer}; the least is {least}"
            ),
        ));
    }
    addressable(value, &origin, source)
}

/// The part of the memory that is page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    bytes: usize,
    is_default: bool,
}

fn window(
    raw: Option<Spanned<ByteSize>>,
    memory_bytes: usize,
    overrides: &Overrides,
    source: Source<'_>,
) -> Result<Window, ConfigError> {
    let flag = overrides.window.map(|size| ("--window", size));
    let memory = ByteSize(memory_bytes as u64);
    let beside_buffers = memory.0.saturating_sub(BUFFERS_DEFAULT.0);
    let default = beside_buffers.max(memory.0 / WINDOW_DEFAULT_PART).min(WINDOW_DEFAULT_MAX.0);
    let default = ByteSize(default);
    let Given { value, origin } = Given::pick(flag, raw, default);
    let is_default = matches!(origin, Origin::Default);
    if value < WINDOW_MIN && !is_default {
        let why =
            format!("{value} is too little for the write-behind window; the least is {WINDOW_MIN}");
        return Err(source.blame(&origin, why));
    }
    if value.0 > memory.0 / 2 {
        let why = format!("a window of {value} is more than half of the memory, {memory}");
        return Err(source.blame(&origin, why));
    }
    Ok(Window { bytes: addressable(value, &origin, source)?, is_default })
}

fn trace(raw: Option<Spanned<EventList>>, overrides: &Overrides) -> Events {
    let EventList(listed) = raw.map(Spanned::into_inner).unwrap_or_default();
    overrides.trace.unwrap_or_else(|| listed.into_iter().map(|RawEvents(events)| events).collect())
}

fn addressable(size: ByteSize, origin: &Origin, source: Source<'_>) -> Result<usize, ConfigError> {
    usize::try_from(size.0)
        .map_err(|_| source.blame(origin, format!("{size} is more than this machine can address")))
}

fn idle_timeout(
    raw: Option<Spanned<TimeSpan>>,
    source: Source<'_>,
) -> Result<Duration, ConfigError> {
    let Given { value: TimeSpan(time), origin } =
        Given::pick(None, raw, TimeSpan(IDLE_TIMEOUT_DEFAULT));
    if IDLE_TIMEOUT_RANGE.contains(&time) {
        return Ok(time);
    }
    Err(source.blame(&origin, "the idle timeout must be between 1s and 24h".to_owned()))
}

fn count(
    key: &str,
    raw: Option<Spanned<u32>>,
    default: u32,
    range: RangeInclusive<u32>,
    source: Source<'_>,
) -> Result<usize, ConfigError> {
    let Given { value, origin } = Given::pick(None, raw, default);
    if range.contains(&value) {
        return Ok(usize::try_from(value).expect("a usize holds 32 bits on Linux"));
    }
    let why = format!("{key} must be between {} and {}", range.start(), range.end());
    Err(source.blame(&origin, why))
}

/// The memory budget holds at least this many transfers: one being received and one being sent on
/// a few connections at once. With less, requests would wait for memory more than for the disk.
pub const MEMORY_TRANSFERS_MIN: u64 = 8;

/// The least write-behind window that can be asked for. Below it write-back would start in runs too
/// short to merge.
pub const WINDOW_MIN: ByteSize = ByteSize(8 << 20);

/// By default the window has what is left of the memory beside these buffers, between a part of it
/// and a most. Writers that take turns in one file drift apart by 100 MiB and more, and what they
/// write has to wait for its neighbours: with 64 MiB two of them wrote 709 MiB/s in records of
/// 47,008 bytes, with 256 MiB 996, with 1 GiB no more.
const BUFFERS_DEFAULT: ByteSize = ByteSize(256 << 20);
const WINDOW_DEFAULT_MAX: ByteSize = ByteSize(256 << 20);
const WINDOW_DEFAULT_PART: u64 = 4;
/// The part of the machine's memory that a window by default does not exceed.
const WINDOW_MACHINE_PART: u64 = 2;
const MEMORY_DEFAULT: ByteSize = ByteSize(512 << 20);
const MAX_TRANSFER_DEFAULT: ByteSize = ByteSize(1 << 20);
const MAX_TRANSFER_RANGE: RangeInclusive<ByteSize> = ByteSize(64 << 10)..=ByteSize(4 << 20);
/// Transfers of whole pages keep a stream aligned from one request to the next.
const TRANSFER_UNIT_BYTES: u32 = 4096;
const CONNECTIONS_DEFAULT: u32 = 16384;
const CONNECTIONS_MAX: u32 = 65536;
const CLIENTS_DEFAULT: u32 = 4096;
const SESSIONS_DEFAULT: u32 = 8192;
/// Of clients and sessions. With fewer than four, one host would have them all.
const CLIENTS_RANGE: RangeInclusive<u32> = 4..=65_536;
const OPENS_DEFAULT: u32 = 65_536;
const OPENS_RANGE: RangeInclusive<u32> = 16..=(1 << 20);
const LOCKS_DEFAULT: u32 = 1 << 20;
const DELEGATIONS_DEFAULT: u32 = 1 << 14;
const LOCKS_RANGE: RangeInclusive<u32> = 16..=(1 << 24);
const THREADS_MAX: u32 = 1024;
/// One client may hold three quarters of the threads: about 32 requests to a disk and 16 lookups at
/// a time.
const DATA_THREADS_DEFAULT: u32 = 44;
const METADATA_THREADS_DEFAULT: u32 = 22;
/// Above the five minutes after which Linux clients close an idle connection themselves.
const IDLE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(6 * 60);
const IDLE_TIMEOUT_RANGE: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests;
