//! The latest steps of the workload, for the report of a wrong byte.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Enough to go back about a second.
const ENTRIES_MAX: usize = 1 << 14;
/// As many of them are worth reading.
const SHOWN_MAX: usize = 60;

struct Entry {
    at: Duration,
    /// The file and its bytes that it touches; none for what touches all of them.
    touches: Option<(usize, Range<u64>)>,
    what: String,
}

pub(crate) struct Journal {
    started: Instant,
    entries: Mutex<VecDeque<Entry>>,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), entries: Mutex::new(VecDeque::new()) }
    }

    /// Notes a step that touches bytes of a file.
    pub(crate) fn note(&self, file: usize, bytes: Range<u64>, what: fmt::Arguments<'_>) {
        self.push(Some((file, bytes)), what);
    }

    /// Notes a step that touches everything.
    pub(crate) fn note_all(&self, what: fmt::Arguments<'_>) {
        self.push(None, what);
    }

    fn push(&self, touches: Option<(usize, Range<u64>)>, what: fmt::Arguments<'_>) {
        let thread = std::thread::current();
        let what = format!("{}: {what}", thread.name().unwrap_or("main"));
        let mut entries = self.entries.lock().expect("nothing here panics");
        if entries.len() == ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(Entry { at: self.started.elapsed(), touches, what });
    }

    /// The last steps that touched any of these bytes of a file, or the page around them.
    pub(crate) fn around(&self, file: usize, bytes: &Range<u64>) -> String {
        let pages = bytes.start / 4096 * 4096..bytes.end.next_multiple_of(4096);
        let touches = |entry: &&Entry| match &entry.touches {
            None => true,
            Some((of, range)) => *of == file && range.start < pages.end && pages.start < range.end,
        };
        let entries = self.entries.lock().expect("nothing here panics");
        let near: Vec<_> = entries.iter().filter(touches).collect();
        let mut text = String::new();
        for entry in &near[near.len().saturating_sub(SHOWN_MAX)..] {
            let range = entry.touches.as_ref().map_or_else(String::new, |(_, range)| {
                format!(" [{}..{})", range.start, range.end)
            });
            let _ = writeln!(text, "  {:.6} {}{range}", entry.at.as_secs_f64(), entry.what);
        }
        text
    }
}
