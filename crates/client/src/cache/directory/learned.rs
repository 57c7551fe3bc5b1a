//! Chooses between READDIR and READDIRPLUS for a directory.
//!
//! Attributes make the server read the inode of each entry, which costs ten times as much as the
//! name, or more. But if a program needs them and the listing lacks them, each costs a call. The
//! client cannot know beforehand. So the first reply for a new directory has the attributes of a
//! few entries. If some of these are looked up during the listing, the rest is fetched by
//! READDIRPLUS too, from the reader's position on. Most directories fit in the first reply.

use std::time::Duration;

use tokio::time::Instant;

use crate::options::UseReaddirplus;

/// How the entries of a directory were used.
#[derive(Debug)]
pub(super) struct Learned {
    policy: UseReaddirplus,
    /// The server answered READDIRPLUS with NFS3ERR_NOTSUPP.
    refused: bool,
    /// The directory was listed before.
    listed: bool,
    /// Number of entries looked up since the listing began.
    lookups: u32,
    /// When entries were last returned or looked up.
    last_use: Option<Instant>,
    /// Whether the first reply of a listing has attributes, of few entries.
    first: bool,
    /// Whether all replies have attributes.
    rest: bool,
}

impl Learned {
    pub(super) fn new(policy: UseReaddirplus) -> Self {
        Self {
            policy,
            refused: false,
            listed: false,
            lookups: 0,
            last_use: None,
            first: true,
            rest: false,
        }
    }

    /// Begins a listing while no other is active: evaluates the lookups of the last one.
    pub(super) fn begin(&mut self) {
        if self.listed {
            self.first = self.lookups > 0;
            self.rest = self.lookups >= LOOKUPS_OF_LISTING;
        }
        self.listed = true;
        self.lookups = 0;
    }

    /// Notes that entries are returned to a reader.
    pub(super) fn hand_out(&mut self, now: Instant) {
        self.last_use = Some(now);
    }

    /// Notes that the handle or the attributes of an entry were needed.
    pub(super) fn look_up(&mut self, now: Instant) {
        let follows = self.last_use.is_some_and(|last| now.duration_since(last) <= FOLLOWS_MAX);
        if !follows {
            // A file opened by its path does not follow from a listing.
            return;
        }
        self.last_use = Some(now);
        self.lookups = self.lookups.saturating_add(1);
        self.rest |= self.lookups >= LOOKUPS_OF_LISTING;
    }

    /// Notes that the server does not support READDIRPLUS here.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
    }

    /// Whether pages need attributes.
    pub(super) fn wants_plus(&self) -> bool {
        let wants = match self.policy {
            UseReaddirplus::Always => true,
            UseReaddirplus::Never => false,
            UseReaddirplus::Learned => self.rest,
        };
        wants && !self.refused
    }

    /// Whether to sample, with a reply of a few entries, if attributes are needed.
    pub(super) fn samples(&self, cookie: u64) -> bool {
        let learns = self.policy == UseReaddirplus::Learned && !self.refused;
        learns && cookie == 0 && self.first && !self.rest
    }
}

/// From this number of lookups on, a program stats the entries, rather than opening a few files.
const LOOKUPS_OF_LISTING: u32 = 8;
/// A lookup that comes later than this after the last entries does not follow from the listing.
const FOLLOWS_MAX: Duration = Duration::from_secs(1);
