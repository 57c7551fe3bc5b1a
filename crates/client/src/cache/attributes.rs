//! The attribute cache of one object: which reply has the latest attributes, and when they expire.
//!
//! Every reply has attributes, and replies overtake each other. The reply to a call sent after the
//! last update is accepted. Of other replies the one with the later ctime wins, so a delayed reply
//! never reverts the object to an older state. Within one tick of the server's clock the order of
//! two overlapping calls is unknown: a server may execute the later one first. If their attributes
//! differ, these expire, and only a call sent after both replies makes them valid again. Sizes are
//! the exception if both calls read or WRITE, because a file only grows by these: the larger is the
//! later. It is not if another client makes the file shorter between them in the same tick; that is
//! noticed by the attributes from before a WRITE alone.
//!
//! Attributes expire as nfs(5) describes for `acregmin`, `acregmax`, `acdirmin` and `acdirmax`:
//! after the minimum since a change, and after twice as long each time the object is unchanged
//! after that, up to the maximum. The time counts from the sending of the call, because the client
//! does not know when the server read the attributes. The cache itself has no clock.

use std::cmp::Ordering;
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
    effect: Effect,
}

/// The effect of a call on the attributes of an object. Where the order of two calls is unknown,
/// the greater effect is shown: a program that has made a change sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effect {
    /// None: the call reads them.
    Nothing,
    /// That of a WRITE, which never makes the file shorter.
    Growth,
    /// Any other.
    Change,
}

impl Sent {
    /// A call sent at `at`, whose order among the events of the object is unknown.
    #[must_use]
    pub(crate) fn before_all(at: Instant) -> Self {
        Self { order: 0, at, effect: Effect::Nothing }
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
    /// When the attributes expired before their time: they are invalid until the reply to a call
    /// sent after this event.
    expired: Option<u64>,
    /// Counts the events: calls sent, and updates by a reply or by [`expire`](Self::expire).
    order: u64,
    /// The call that returned `attributes`.
    sent: Sent,
    /// The latest reply with the ctime of `attributes`, or expiry.
    updated: u64,
    /// The latest reply to a call with [`Effect::Change`], or expiry by [`expire`](Self::expire).
    changed: u64,
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
            expired: None,
            order: 1,
            sent: Sent { order: 1, at, effect: Effect::Nothing },
            updated: 1,
            changed: 0,
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

    /// Whether the attributes expired before their time.
    #[must_use]
    pub(crate) fn has_expired_early(&self) -> bool {
        self.expired.is_some()
    }

    /// Time until the attributes expire.
    #[must_use]
    pub(crate) fn fresh_for(&self, now: Instant) -> Duration {
        match self.expired {
            Some(_) => Duration::ZERO,
            None => (self.confirmed_at + self.timeout).saturating_duration_since(now),
        }
    }

    /// To be called before a call is sent whose reply has attributes of this object.
    pub(crate) fn sending(&mut self, now: Instant, effect: Effect) -> Sent {
        self.order += 1;
        Sent { order: self.order, at: now, effect }
    }

    /// Updates the attributes from the reply to a call. Returns whether they are accepted: not if
    /// they are older than the known ones. The same attributes may be given again.
    pub(crate) fn learn(&mut self, attributes: &Attributes, sent: Sent) -> bool {
        let order = self.order_of(attributes, sent);
        let mut attributes = *attributes;
        if order.is_none() {
            self.invalidate();
            if [sent.effect, self.sent.effect].contains(&Effect::Growth) {
                // An append at the smaller size could overwrite what the WRITE has written.
                attributes.size = attributes.size.max(self.attributes.size);
                self.attributes.size = attributes.size;
            }
        }
        if sent.effect == Effect::Change {
            self.order += 1;
            self.changed = self.order;
        }
        if !order.map_or(sent.effect > self.sent.effect, Ordering::is_gt) {
            if sent.order != 0 && attributes.ctime == self.attributes.ctime {
                // A call sent before this reply need not show a later state.
                self.order += 1;
                self.updated = self.order;
            }
            return false;
        }
        let known = &self.attributes;
        let bounds = self.timeouts.of(attributes.file_type);
        if self.expired.is_some() || Change::from(&attributes) != Change::from(known) {
            self.timeout = bounds.min.min(bounds.max);
            self.timeout_since = sent.at;
        } else if sent.at.saturating_duration_since(self.timeout_since) >= self.timeout {
            self.timeout = (self.timeout * 2).min(bounds.max);
            self.timeout_since = sent.at;
        }
        self.attributes = attributes;
        self.confirmed_at = self.confirmed_at.max(sent.at);
        self.expired = self.expired.filter(|expired| sent.order < *expired);
        self.order += 1;
        (self.sent, self.updated) = (sent, self.order);
        true
    }

    /// The order of the state in a reply and the known one. `None` if it is unknown and they
    /// differ.
    fn order_of(&self, attributes: &Attributes, sent: Sent) -> Option<Ordering> {
        if sent.order >= self.updated {
            return Some(Ordering::Greater);
        }
        let known = &self.attributes;
        let by_ctime = attributes.ctime.cmp(&known.ctime);
        if by_ctime != Ordering::Equal {
            return Some(by_ctime);
        }
        if sent.order == 0 {
            // A cached listing gives the same attributes with each lookup.
            return Some(Ordering::Less);
        }
        // These two change without a change of ctime.
        let Attributes { atime, used, .. } = *known;
        let others = Attributes { atime, used, ..*attributes };
        if others == *known {
            return Some(sent.order.cmp(&self.sent.order));
        }
        // A call sent before the reply to a change can show the size from before the change.
        let has_only_grown = sent.effect.max(self.sent.effect) < Effect::Change
            && sent.order > self.changed
            && Attributes { size: known.size, ..others } == *known;
        has_only_grown.then(|| attributes.size.cmp(&known.size))
    }

    /// Makes the attributes expire, because the object has changed and the reply had no attributes,
    /// as after RENAME of the object. Replies to calls sent before do not make them valid again.
    pub(crate) fn expire(&mut self) {
        self.invalidate();
        self.changed = self.order;
    }

    fn invalidate(&mut self) {
        self.order += 1;
        self.updated = self.order;
        self.expired = Some(self.order);
    }

    /// Notes the values that a SETATTR has set whose reply had no attributes: the cached ones stay
    /// expired, but show them. Not if the reply to a later call has replaced them.
    pub(crate) fn note_set(&mut self, new: &SetAttributes) {
        if self.expired.is_none() {
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
