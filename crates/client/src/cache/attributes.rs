//! The attribute cache of one object: which reply has the latest attributes, and when they expire.
//!
//! Every reply has attributes, and replies overtake each other. The reply to a call sent after the
//! last update is accepted. Of other replies the one with the later ctime wins and, within one tick
//! of the server's clock, the one whose call was sent later; so a delayed reply never reverts the
//! object to an older state.
//!
//! Attributes expire as nfs(5) describes for `acregmin`, `acregmax`, `acdirmin` and `acdirmax`:
//! after the minimum since a change, and after twice as long each time the object is unchanged
//! after that, up to the maximum. The time counts from the sending of the call, because the client
//! does not know when the server read the attributes. The cache itself has no clock.

use std::time::{Duration, Instant};

use proto::nfs3::{Attributes, FileType, SetAttributes};

use crate::cache::change::Change;
use crate::options::MountOptions;

/// How long attributes are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttributeTimeouts {
    /// For all types but directories.
    pub(crate) file: TimeoutBounds,
    /// For directories.
    pub(crate) dir: TimeoutBounds,
}

impl AttributeTimeouts {
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

/// Bounds of an adaptive timeout. With `max` below `min` it is always `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeoutBounds {
    /// After a change.
    pub(crate) min: Duration,
    /// After any time without a change.
    pub(crate) max: Duration,
}

/// When a call was sent whose reply has attributes; from [`AttributeCache::sending`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    order: u64,
    at: Instant,
}

impl Sent {
    /// A call sent at `at`, whose order among the events of the object is unknown.
    #[must_use]
    pub(crate) fn before_all(at: Instant) -> Self {
        Self { order: 0, at }
    }

    /// When the call was sent.
    #[must_use]
    pub(crate) fn at(self) -> Instant {
        self.at
    }
}

/// The attributes of one object.
#[derive(Debug)]
pub(crate) struct AttributeCache {
    attributes: Attributes,
    timeouts: AttributeTimeouts,
    /// When the latest call was sent that returned `attributes`.
    confirmed_at: Instant,
    /// How long they are valid from then on.
    timeout: Duration,
    /// When `timeout` was set. It doubles once in its own duration, not with each reply.
    timeout_since: Instant,
    /// The attributes are invalid until the reply to a call sent after this was set.
    expired: bool,
    /// Counts the events: calls sent, and updates by a reply or by [`expire`](Self::expire).
    order: u64,
    /// The call that returned `attributes`.
    sent: u64,
    /// The latest update.
    updated: u64,
}

impl AttributeCache {
    /// The attributes from the first reply for an object, to a call sent at `at`.
    #[must_use]
    pub(crate) fn new(attributes: &Attributes, timeouts: AttributeTimeouts, at: Instant) -> Self {
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
            updated: 1,
        }
    }

    /// The latest known attributes, even if they have expired.
    #[must_use]
    pub(crate) fn latest(&self) -> &Attributes {
        &self.attributes
    }

    /// The attributes, unless they have expired.
    #[must_use]
    pub(crate) fn fresh(&self, now: Instant) -> Option<&Attributes> {
        (!self.fresh_for(now).is_zero()).then_some(&self.attributes)
    }

    /// Time until the attributes expire.
    #[must_use]
    pub(crate) fn fresh_for(&self, now: Instant) -> Duration {
        match self.expired {
            true => Duration::ZERO,
            false => (self.confirmed_at + self.timeout).saturating_duration_since(now),
        }
    }

    /// To be called before a call is sent whose reply has attributes of this object.
    pub(crate) fn sending(&mut self, now: Instant) -> Sent {
        self.order += 1;
        Sent { order: self.order, at: now }
    }

    /// Updates the attributes from the reply to a call. Returns whether they are accepted: not if
    /// they are older than the known ones. The same attributes may be given again.
    pub(crate) fn learn(&mut self, attributes: &Attributes, sent: Sent) -> bool {
        let known = &self.attributes;
        let overtaken = sent.order < self.updated;
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
        (self.sent, self.updated) = (sent.order, self.order);
        true
    }

    /// Makes the attributes expire, because the object has changed and the reply had no attributes,
    /// as after RENAME of the object. Replies to calls sent before do not make them valid again.
    pub(crate) fn expire(&mut self) {
        self.expired = true;
        self.order += 1;
        self.updated = self.order;
    }

    /// Notes the values that a SETATTR has set whose reply had no attributes: the cached ones stay
    /// expired, but show them. Not if the reply to a later call has replaced them.
    pub(crate) fn note_set(&mut self, new: &SetAttributes) {
        if !self.expired {
            return;
        }
        let Attributes { mode, uid, gid, size, .. } = &mut self.attributes;
        *mode = new.mode.unwrap_or(*mode);
        *uid = new.uid.unwrap_or(*uid);
        *gid = new.gid.unwrap_or(*gid);
        *size = new.size.unwrap_or(*size);
    }
}

#[cfg(test)]
mod tests;
