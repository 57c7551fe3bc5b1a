//! The attributes of one object as they were last heard of: which reply to believe, and for how
//! long.
//!
//! Every reply brings attributes, and replies overtake each other. One that was sent after the last
//! news arrived is believed as it is. Among others the later ctime wins, and within one tick of the
//! server's clock the call that was sent later; so a reply that was held up never rolls the object
//! back.
//!
//! What is believed is taken for the truth for a while, as nfs(5) says of `acregmin`, `acregmax`,
//! `acdirmin` and `acdirmax`: for the minimum after a change, and for twice as long each time that
//! the object turns out unchanged after that, up to the maximum. Time is counted from the sending of
//! the call, as nobody knows when the server looked. The cache itself has no clock.
//!
//! ```
//! # use std::time::{Duration, Instant};
//! # use proto::nfs3::Attributes;
//! use spillway_client::attribute_cache::{AttributeCache, AttributeTimeouts};
//! use spillway_client::MountOptions;
//!
//! # fn example(first: &Attributes, second: &Attributes) {
//! let timeouts = AttributeTimeouts::from(&MountOptions::default());
//! let now = Instant::now();
//! let mut cache = AttributeCache::new(first, timeouts, now);
//! assert!(cache.fresh(now + Duration::from_secs(2)).is_some());
//!
//! let later = now + Duration::from_secs(4);
//! assert!(cache.fresh(later).is_none());
//! let sent = cache.sending(later);
//! // GETATTR …
//! cache.learn(second, sent);
//! assert_eq!(cache.fresh(later), Some(cache.latest()));
//! # }
//! ```

use std::time::{Duration, Instant};

use proto::nfs3::{Attributes, FileType};

use crate::change::Change;
use crate::options::MountOptions;

/// How long attributes are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeTimeouts {
    /// Of everything but directories.
    pub file: TimeoutBounds,
    /// Of directories.
    pub dir: TimeoutBounds,
}

impl AttributeTimeouts {
    /// `noac`: no longer than the call that asked for them.
    pub const ZERO: Self = Self {
        file: TimeoutBounds { min: Duration::ZERO, max: Duration::ZERO },
        dir: TimeoutBounds { min: Duration::ZERO, max: Duration::ZERO },
    };

    fn of(&self, file_type: FileType) -> TimeoutBounds {
        if file_type == FileType::Directory { self.dir } else { self.file }
    }
}

impl From<&MountOptions> for AttributeTimeouts {
    fn from(options: &MountOptions) -> Self {
        Self {
            file: TimeoutBounds {
                min: options.file_attributes_min,
                max: options.file_attributes_max,
            },
            dir: TimeoutBounds { min: options.dir_attributes_min, max: options.dir_attributes_max },
        }
    }
}

/// A timeout that adapts. With `max` below `min` it is always `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutBounds {
    /// After a change.
    pub min: Duration,
    /// However long nothing changes.
    pub max: Duration,
}

/// When a call was sent that brings attributes; from [`AttributeCache::sending`].
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    order: u64,
    at: Instant,
}

impl Sent {
    /// A call sent `at`, of which it is not known which events of the object it came behind.
    #[must_use]
    pub fn before_all(at: Instant) -> Self {
        Self { order: 0, at }
    }

    /// When.
    #[must_use]
    pub fn at(self) -> Instant {
        self.at
    }
}

/// Attributes of one object.
#[derive(Debug)]
pub struct AttributeCache {
    attributes: Attributes,
    timeouts: AttributeTimeouts,
    /// When the call was sent that showed `attributes`, or that they still hold.
    confirmed_at: Instant,
    /// How long they are believed from then on.
    timeout: Duration,
    /// When `timeout` was set. It doubles once in its own length, not with each of many replies.
    timeout_since: Instant,
    /// Nothing is believed until the next reply to a call that was sent after this was set.
    expired: bool,
    /// Counts calls sent, and news: attributes believed, and [`expire`](Self::expire).
    order: u64,
    /// The call that brought `attributes`.
    sent: u64,
    /// The latest news.
    news: u64,
}

impl AttributeCache {
    /// An object that is heard of for the first time, in the reply to a call sent `at`.
    #[must_use]
    pub fn new(attributes: &Attributes, timeouts: AttributeTimeouts, at: Instant) -> Self {
        let TimeoutBounds { min, max } = timeouts.of(attributes.file_type);
        Self {
            attributes: *attributes,
            timeouts,
            confirmed_at: at,
            timeout: min.min(max),
            timeout_since: at,
            expired: false,
            order: 1,
            sent: 1,
            news: 1,
        }
    }

    /// The attributes as they were last heard of, however long ago.
    #[must_use]
    pub fn latest(&self) -> &Attributes {
        &self.attributes
    }

    /// The attributes, if they are still to be believed.
    #[must_use]
    pub fn fresh(&self, now: Instant) -> Option<&Attributes> {
        (!self.fresh_for(now).is_zero()).then_some(&self.attributes)
    }

    /// How much longer the attributes are to be believed.
    #[must_use]
    pub fn fresh_for(&self, now: Instant) -> Duration {
        match self.expired {
            true => Duration::ZERO,
            false => (self.confirmed_at + self.timeout).saturating_duration_since(now),
        }
    }

    /// A call is about to be sent whose reply has attributes of this object.
    pub fn sending(&mut self, now: Instant) -> Sent {
        self.order += 1;
        Sent { order: self.order, at: now }
    }

    /// Attributes in the reply to a call. Whether they are believed; if not, they are older than
    /// what is known. The same attributes again do no harm.
    pub fn learn(&mut self, attributes: &Attributes, sent: Sent) -> bool {
        let known = &self.attributes;
        let overtaken = sent.order < self.news;
        if overtaken && (attributes.ctime, sent.order) <= (known.ctime, self.sent) {
            return false;
        }
        let bounds = self.timeouts.of(attributes.file_type);
        if self.expired || Change::from(attributes) != Change::from(known) {
            self.timeout = bounds.min.min(bounds.max);
            self.timeout_since = sent.at;
        } else if sent.at.saturating_duration_since(self.timeout_since) >= self.timeout {
            self.timeout = (self.timeout * 2).min(bounds.max);
            self.timeout_since = sent.at;
        }
        self.attributes = *attributes;
        self.confirmed_at = self.confirmed_at.max(sent.at);
        self.expired &= overtaken;
        self.order += 1;
        (self.sent, self.news) = (sent.order, self.order);
        true
    }

    /// The object has changed, and the attributes are not known: an own RENAME of it, a reply
    /// without attributes, a change that somebody else reported. Replies to calls that were sent
    /// before do not make the attributes fresh again.
    pub fn expire(&mut self) {
        self.expired = true;
        self.order += 1;
        self.news = self.order;
    }
}

#[cfg(test)]
mod tests;
