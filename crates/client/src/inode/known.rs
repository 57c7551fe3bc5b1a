//! An object as replies show it.

use std::time::Instant;

use proto::nfs3::{Attributes, FileType};

use super::Inode;
use crate::cache::attributes::{self, AttributeCache, AttributeTimeouts, Effect};
use crate::cache::change::{Attribution, Change, ChangeTracker, Moment};

/// The attributes of an object, and the order and attribution of its changes.
pub(super) struct Known {
    pub(super) attributes: AttributeCache,
    pub(super) tracker: ChangeTracker,
    /// Time of the last event: a reply, the beginning of an own change, or an expiry.
    pub(super) disturbed_at: Instant,
    /// As [`Inode::foreign_change_at`].
    foreign_change_at: Option<Instant>,
    /// Own changes can be distinguished from foreign ones: not in a directory if the reply to the
    /// last own change in it had no stamp from before it.
    pub(super) is_attributing: bool,
    /// This client has removed the last name: no attributes are asked for any more.
    is_removed: bool,
}

/// The change stamp of an object and the number of foreign changes before a call, for
/// [`Known::is_latest`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownBefore {
    change: Change,
    foreign_changes: u64,
}

/// When a call was sent, for the attributes in its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// At this time. The object was not known yet, as with LOOKUP.
    At(Instant),
    /// At this place in the order of the object's events.
    InOrder(Moment, attributes::Sent),
}

impl Sent {
    /// For a call to be sent now, for an object that is not known yet.
    pub(crate) fn now() -> Self {
        Self::At(Instant::now())
    }

    pub(super) fn at(self) -> Instant {
        match self {
            Self::At(at) => at,
            Self::InOrder(_, sent) => sent.at(),
        }
    }
}

impl Known {
    /// An object that the reply to a call sent at `sent` shows for the first time.
    pub(super) fn new(attributes: &Attributes, timeouts: AttributeTimeouts, sent: Sent) -> Self {
        Self {
            attributes: AttributeCache::new(attributes, timeouts, sent.at()),
            tracker: ChangeTracker::new(attributes),
            disturbed_at: Instant::now(),
            foreign_change_at: None,
            is_attributing: true,
            is_removed: false,
        }
    }

    /// The last event, if this client has changed the object and not removed it.
    pub(super) fn changed_until(&self) -> Option<Instant> {
        let is_changed = self.tracker.has_own_calls() && !self.is_removed;
        is_changed.then_some(self.disturbed_at)
    }

    /// Notes the time of a foreign change, unless it can be an own one.
    pub(super) fn note_foreign_change(&mut self) {
        if self.is_attributing {
            self.foreign_change_at = Some(Instant::now());
        }
    }

    /// For a call to be sent now.
    pub(super) fn sending(&mut self) -> Sent {
        let sent = self.attributes.sending(Instant::now(), Effect::Nothing);
        Sent::InOrder(self.tracker.moment(), sent)
    }

    /// For a call to be sent now.
    pub(super) fn before_call(&self) -> KnownBefore {
        KnownBefore {
            change: self.attributes.latest().into(),
            foreign_changes: self.tracker.foreign_changes(),
        }
    }

    /// As [`Inode::is_latest`](super::Inode::is_latest).
    pub(super) fn is_latest(&self, before: KnownBefore, in_reply: Option<&Attributes>) -> bool {
        let latest = Change::from(self.attributes.latest());
        // The tracker can have gone back to an earlier stamp of a late reply, which the attributes
        // have not: they are those from before the call all the same.
        before.foreign_changes == self.tracker.foreign_changes()
            && (latest == before.change
                || latest == self.tracker.known()
                || in_reply.is_some_and(|attributes| Change::from(attributes) == latest))
    }

    /// Processes attributes from a reply. Returns the attribution of a change, and the change
    /// stamps before and after it.
    pub(super) fn observe(
        &mut self,
        attributes: &Attributes,
        sent: Sent,
    ) -> (Attribution, Change, Change) {
        let from = self.tracker.known();
        let (moment, sent) = self.in_order(sent);
        let attribution = self.tracker.observe(attributes, moment);
        self.learn(attributes, sent, attribution);
        self.disturbed_at = Instant::now();
        (attribution, from, self.tracker.known())
    }

    /// Updates the attributes from the reply to a call, after the tracker.
    pub(super) fn learn(
        &mut self,
        attributes: &Attributes,
        sent: attributes::Sent,
        attribution: Attribution,
    ) {
        let is_accepted =
            !self.tracker.is_past(attributes) && self.attributes.learn(attributes, sent);
        if !is_accepted && attribution == Attribution::Foreign {
            // Another client may have made the file shorter between two replies of one tick.
            self.attributes.expire();
        }
    }

    /// The place of a call in the order of the object's events. A call sent at a time comes after
    /// all events if it was sent later than the last, otherwise before all.
    fn in_order(&mut self, sent: Sent) -> (Moment, attributes::Sent) {
        match sent {
            Sent::InOrder(moment, sent) => (moment, sent),
            Sent::At(at) if at > self.disturbed_at => {
                (self.tracker.moment(), self.attributes.sending(at, Effect::Nothing))
            }
            Sent::At(at) => (Moment::BEFORE_ALL, attributes::Sent::before_all(at)),
        }
    }
}

impl Inode {
    /// To be called when this client has removed a name of the object.
    pub(crate) fn note_removed_name(&self) {
        let mut known = self.known();
        let Attributes { file_type, nlink, .. } = *known.attributes.latest();
        known.is_removed = file_type == FileType::Directory || nlink <= 1;
    }

    /// When another client's change was last noticed. Of a directory only if the server returns the
    /// stamps from before own changes, which count as foreign otherwise.
    pub(crate) fn foreign_change_at(&self) -> Option<Instant> {
        self.known().foreign_change_at
    }
}
