//! Whether a directory is listed with attributes: READDIR or READDIRPLUS.
//!
//! Attributes cost a server an inode of each entry, ten times the price of its name or more; but
//! where they are wanted, each of them costs a call of its own if the listing did not bring it.
//! Nobody says beforehand which it will be. So the first reply of a directory that is not known
//! brings attributes of few entries, and what is done with them decides: when some are looked up
//! while the listing goes on, the rest of it comes with attributes too, from the entry on where
//! the reader is. Most directories are small and done with their first reply.

use std::time::Duration;

use tokio::time::Instant;

use crate::options::UseReaddirplus;

/// The habits of a directory's users.
#[derive(Debug)]
pub(super) struct Learned {
    policy: UseReaddirplus,
    /// The server answered READDIRPLUS with NFS3ERR_NOTSUPP.
    refused: bool,
    /// It was listed before.
    listed: bool,
    /// Entries looked up since the listing began.
    lookups: u32,
    /// When entries were handed out or looked up last.
    last_use: Option<Instant>,
    /// The first reply of a listing brings attributes, of few entries.
    first: bool,
    /// All replies bring attributes.
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

    /// A listing begins, and no other is going on: judges what became of the last one.
    pub(super) fn begin(&mut self) {
        if self.listed {
            self.first = self.lookups > 0;
            self.rest = self.lookups >= LOOKUPS_TELL;
        }
        self.listed = true;
        self.lookups = 0;
    }

    /// Entries go to a reader.
    pub(super) fn hand_out(&mut self, now: Instant) {
        self.last_use = Some(now);
    }

    /// An entry's handle or attributes are wanted.
    pub(super) fn look_up(&mut self, now: Instant) {
        let follows = self.last_use.is_some_and(|last| now.duration_since(last) <= FOLLOWS_MAX);
        if !follows {
            // Somebody opens a file by its path: that says nothing about listings.
            return;
        }
        self.last_use = Some(now);
        self.lookups = self.lookups.saturating_add(1);
        self.rest |= self.lookups >= LOOKUPS_TELL;
    }

    /// The server does not do READDIRPLUS here.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
    }

    /// Whether a page without attributes will not do.
    pub(super) fn wants_plus(&self) -> bool {
        let wants = match self.policy {
            UseReaddirplus::Always => true,
            UseReaddirplus::Never => false,
            UseReaddirplus::Learned => self.rest,
        };
        wants && !self.refused
    }

    /// Whether to find out, with a reply of a few entries, if attributes are wanted.
    pub(super) fn samples(&self, cookie: u64) -> bool {
        let learns = self.policy == UseReaddirplus::Learned && !self.refused;
        learns && cookie == 0 && self.first && !self.rest
    }
}

/// So many lookups are a program that looks at every entry, rather than a few files being opened.
const LOOKUPS_TELL: u32 = 8;
/// A lookup that comes later than this after entries were handed out is not one of them.
const FOLLOWS_MAX: Duration = Duration::from_secs(1);
