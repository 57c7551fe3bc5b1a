//! Listing the directory, and what each part of it cost.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::nfs3::Listing;
use client::trace::{Event, Events, Tracer};
use client::{MountOptions, UseReaddirplus};
use proto::nfs3::CookieVerifier;
use server::config::ByteSize;

use super::Options;
use super::changer::Changer;
use super::changes::Changes;
use super::entries::number;
use crate::experiments::export::Export;
use crate::experiments::meter::Spent;
use crate::experiments::scratch_directory::ScratchDirectory;
use crate::figure::Figure;
use crate::numeral::mib;
use crate::record::Position;
use crate::stage::mount_options;
use crate::{Error, Result};

/// The entries of one listing, and its calls, times and cost.
pub(super) struct Listed {
    /// Entries in the order in which they came, less `.` and `..`; `None` for names that are not of
    /// the experiment.
    pub(super) numbers: Vec<Option<u32>>,
    /// Changes by the other client meanwhile, if there is one.
    pub(super) changes: Option<Changes>,
    /// Bytes of a reply that were asked for at most.
    pub(super) reply_bytes_max: u64,
    parts: Vec<Part>,
    calls: u64,
    calls_from_start: u64,
    /// Of the results; where the calls are seen.
    reply_bytes: Option<u64>,
    pub(super) spent: Spent,
}

/// Entries that came in one reply.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    /// Entries before it.
    first: usize,
    entries: usize,
    took: Duration,
}

/// The wait after the first entries, which is not measured: a change happens during the listing,
/// however fast that is.
#[derive(Clone, Copy)]
pub(super) enum Pause<'a> {
    For(Duration),
    UntilChange(&'a Changer),
}

impl Pause<'_> {
    async fn wait(self) {
        match self {
            Self::For(time) => tokio::time::sleep(time).await,
            Self::UntilChange(changer) => changer.next().await,
        }
    }

    fn times(self) -> (u32, u32) {
        match self {
            Self::For(_) => (0, 0),
            Self::UntilChange(changer) => changer.times(),
        }
    }

    /// The changes begun so far, less the first `done`; `None` without another client.
    fn changes_since(self, done: u32) -> Option<Changes> {
        match self {
            Self::For(_) => None,
            Self::UntilChange(changer) => Some(changer.changes(done..changer.times().0)),
        }
    }
}

/// Notes parts as they come.
struct Course {
    numbers: Vec<Option<u32>>,
    parts: Vec<Part>,
    /// When entries came last.
    at: Instant,
    has_paused: bool,
}

impl Course {
    fn begin() -> Self {
        Self { numbers: Vec::new(), parts: Vec::new(), at: Instant::now(), has_paused: false }
    }

    /// Entries of another reply have come.
    fn note<'a>(&mut self, names: impl Iterator<Item = &'a [u8]>) {
        self.parts.push(Part { first: self.numbers.len(), entries: 0, took: Duration::ZERO });
        self.note_more(names);
    }

    /// More entries of the last reply have come.
    fn note_more<'a>(&mut self, names: impl Iterator<Item = &'a [u8]>) {
        let (now, first) = (Instant::now(), self.numbers.len());
        self.numbers.extend(names.filter(|name| !matches!(*name, b"." | b"..")).map(number));
        if let Some(part) = self.parts.last_mut() {
            part.entries += self.numbers.len() - first;
            part.took += now - self.at;
        }
        self.at = now;
    }

    /// Waits for what is not measured, once.
    async fn pause(&mut self, pause: Pause<'_>) {
        if !std::mem::replace(&mut self.has_paused, true) {
            let before = Instant::now();
            pause.wait().await;
            self.at += before.elapsed();
        }
    }
}

/// Lists by one call after the other, each from the last cookie on.
pub(super) async fn raw(
    export: &Export<'_>,
    directory: &ScratchDirectory,
    options: &Options,
    pause: Pause<'_>,
) -> Result<Listed> {
    let refused = || Error::call(format!("cannot list {}", directory.name()));
    let (nfs, dir) = (export.mount_plain().await?.nfs, directory.handle());
    let preferred = nfs.fsinfo(dir).await.map_err(refused())?.dtpref;
    let bytes_max = bytes_max(options).unwrap_or(preferred);
    let (mut cookie, mut verifier) = (0, CookieVerifier::default());
    let (mut calls_from_start, mut reply_bytes) = (0, 0);
    let (_, done_before) = pause.times();
    let meter = export.begin()?;
    let mut course = Course::begin();
    loop {
        calls_from_start += u64::from(cookie == 0);
        let listed = if options.plus {
            nfs.readdirplus(dir, cookie, verifier, bytes_max, bytes_max).await
        } else {
            nfs.readdir(dir, cookie, verifier, bytes_max).await
        };
        let page = listed.map_err(|error| refused()(error))?;
        course.note(page.names.iter().map(|entry| &entry.name[..]));
        reply_bytes += result_bytes(&page, options.plus);
        let last = page.names.last().map(|entry| entry.cookie);
        let (false, Some(last)) = (page.eof, last) else { break };
        (cookie, verifier) = (last, page.verifier);
        course.pause(pause).await;
    }
    let spent = meter.end()?;
    Ok(Listed {
        changes: pause.changes_since(done_before),
        reply_bytes_max: bytes_max.into(),
        calls: course.parts.len() as u64,
        calls_from_start,
        reply_bytes: Some(reply_bytes),
        spent,
        numbers: course.numbers,
        parts: course.parts,
    })
}

/// Lists as a program does that takes some entries at a time, through Spillway's client. The
/// attributes of the directory are never believed: they have always expired.
pub(super) async fn by_client(
    export: &Export<'_>,
    directory: &ScratchDirectory,
    options: &Options,
    pause: Pause<'_>,
) -> Result<Listed> {
    let refused = || Error::call(format!("cannot list {}", directory.name()));
    let seen = Arc::<Seen>::default();
    let file_system = export.mount(&impatient(options), seen.tracer()).await?;
    let dir = file_system.lookup(&file_system.root(), directory.name().as_bytes()).await;
    let dir = dir.map_err(refused())?;
    let (_, done_before) = pause.times();
    let meter = export.begin()?;
    let (mut course, mut cookie, mut last_sent) = (Course::begin(), 0, None);
    let opened = file_system.open_dir(&dir).await.map_err(refused())?;
    loop {
        let page = opened.entries_after(cookie).await.map_err(|error| refused()(error))?;
        if page.is_empty() {
            break;
        }
        let taken = || page.iter().take(ENTRIES_AT_ONCE);
        if last_sent == Some(page.sent_at()) {
            course.note_more(taken().map(|entry| entry.name));
        } else {
            course.note(taken().map(|entry| entry.name));
        }
        last_sent = Some(page.sent_at());
        cookie = taken().last().map_or(cookie, |entry| entry.cookie);
        course.pause(pause).await;
    }
    let spent = meter.end()?;
    Ok(Listed {
        changes: pause.changes_since(done_before),
        reply_bytes_max: seen.bytes_max.load(Ordering::Relaxed),
        calls: seen.calls.load(Ordering::Relaxed),
        calls_from_start: seen.calls_from_start.load(Ordering::Relaxed),
        reply_bytes: None,
        spent,
        numbers: course.numbers,
        parts: course.parts,
    })
}

/// About what fits the buffer that the C library lists with.
const ENTRIES_AT_ONCE: usize = 500;

fn bytes_max(options: &Options) -> Option<u32> {
    options.reply.map(|ByteSize(bytes)| u32::try_from(bytes).expect("it is at most 1 MiB"))
}

/// Attributes of directories are never believed.
fn impatient(options: &Options) -> MountOptions {
    let readdirplus = if options.plus { UseReaddirplus::Always } else { UseReaddirplus::Never };
    MountOptions {
        dir_attributes_min: Duration::ZERO,
        dir_attributes_max: Duration::ZERO,
        rsize: bytes_max(options),
        readdirplus,
        ..mount_options()
    }
}

/// Calls that the client has sent.
#[derive(Default)]
struct Seen {
    calls: AtomicU64,
    calls_from_start: AtomicU64,
    /// Asked for in a call.
    bytes_max: AtomicU64,
}

impl Seen {
    fn tracer(self: &Arc<Self>) -> Arc<Tracer> {
        let (tracer, seen) = (Tracer::default(), Arc::clone(self));
        tracer.set(Events::from(Event::ReaddirCall));
        tracer.listen(move |_, cookie, bytes_max| {
            seen.calls.fetch_add(1, Ordering::Relaxed);
            seen.calls_from_start.fetch_add(u64::from(cookie == 0), Ordering::Relaxed);
            seen.bytes_max.fetch_max(bytes_max, Ordering::Relaxed);
        });
        Arc::new(tracer)
    }
}

/// Bytes of the results that `listing` came in (RFC 1813 §3.3.16 and §3.3.17), without the head of
/// the reply.
fn result_bytes(listing: &Listing, plus: bool) -> u64 {
    const WORD: usize = 4;
    const ATTRIBUTES: usize = 84;
    let attributes = |has: bool| WORD + if has { ATTRIBUTES } else { 0 };
    let opaque = |len: usize| WORD + len.next_multiple_of(WORD);
    // Status, attributes, verifier; no further entry, and whether this is the end.
    let head = WORD + attributes(listing.dir_attributes.is_some()) + 2 * WORD + 2 * WORD;
    let entries = listing.names.iter().map(|entry| {
        // An entry follows; file number, name and cookie.
        let bare = WORD + 2 * WORD + opaque(entry.name.len()) + 2 * WORD;
        let handle = entry.handle.map_or(0, |handle| opaque(handle.as_bytes().len()));
        let more = attributes(entry.attributes.is_some()) + WORD + handle;
        if plus { bare + more } else { bare }
    });
    (head + entries.sum::<usize>()) as u64
}

impl Listed {
    fn took(&self) -> Duration {
        self.parts.iter().map(|part| part.took).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(super) fn figures(&self) -> BTreeMap<Figure, f64> {
        let (secs, entries) = (self.took().as_secs_f64(), self.numbers.len() as f64);
        let mut figures: BTreeMap<_, _> = [
            (Figure::Secs, secs),
            (Figure::Entries, entries),
            (Figure::OperationsPerSec, entries / secs),
            (Figure::Calls, self.calls as f64),
            (Figure::CallsFromStart, self.calls_from_start as f64),
            (Figure::GeneratorUsPerOperation, self.spent.own.total() * 1e6 / entries),
        ]
        .into();
        if let Some(server) = self.spent.server {
            figures.insert(Figure::ServerUsPerOperation, server.total() * 1e6 / entries);
        }
        if let Some(bytes) = self.spent.server_rss_bytes_max {
            figures.insert(Figure::ServerRssMibMax, mib(bytes));
        }
        if let Some(bytes) = self.reply_bytes {
            // Then each part is a call.
            figures.insert(Figure::RepliesMib, mib(bytes));
            let mut took_us: Vec<_> = self.parts.iter().map(|part| micros(part.took)).collect();
            took_us.sort_by(f64::total_cmp);
            for (figure, percent) in LATENCIES {
                figures.insert(figure, nearest_rank(&took_us, percent));
            }
        }
        let total = self.numbers.len();
        let tenth = total / 10;
        let first = self.us_per_entry(0..tenth);
        // Fewer replies than tenths tell nothing of one.
        if self.parts.len() >= 10 && first > 0.0 {
            let last = self.us_per_entry(total - tenth..total);
            figures.insert(Figure::LastTenthToFirst, last / first);
        }
        figures
    }

    /// Cost of entries by their position, in at most [`POSITIONS`] steps and a rest, or as many as
    /// there were parts.
    pub(super) fn positions(&self) -> Vec<Position> {
        let step = (self.numbers.len() / POSITIONS).max(1);
        let mut positions = Vec::new();
        let (mut first, mut end, mut took) = (0, 0, Duration::ZERO);
        for part in &self.parts {
            end = part.first + part.entries;
            took += part.took;
            if end - first >= step {
                positions.push(position(first, end, took));
                (first, took) = (end, Duration::ZERO);
            }
        }
        if end > first {
            positions.push(position(first, end, took));
        }
        positions
    }

    /// Time of each entry in a range, as if those that came together had come one by one.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn us_per_entry(&self, range: Range<usize>) -> f64 {
        let took = self.parts.iter().filter(|part| part.entries > 0).map(|part| {
            let (begin, end) =
                (part.first.max(range.start), (part.first + part.entries).min(range.end));
            micros(part.took) * end.saturating_sub(begin) as f64 / part.entries as f64
        });
        took.sum::<f64>() / range.len() as f64
    }
}

/// Steps in which costs by position are recorded.
const POSITIONS: usize = 100;

const LATENCIES: [(Figure, usize); 3] =
    [(Figure::LatencyP50Us, 50), (Figure::LatencyP95Us, 95), (Figure::LatencyMaxUs, 100)];

/// The smallest of the ascending values that so many of 100 do not exceed.
fn nearest_rank(ascending: &[f64], percent: usize) -> f64 {
    let rank = (ascending.len() * percent).div_ceil(100).max(1);
    ascending.get(rank - 1).copied().unwrap_or(0.0)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn position(first: usize, end: usize, took: Duration) -> Position {
    Position { entry: first as u64, us_per_entry: micros(took) / (end - first) as f64 }
}

#[cfg(test)]
mod tests;
