//! Whose change it was: tells a client's own changes of a file or directory from those of others.
//!
//! What is cached of an object is good for one state of it, its [`Change`] stamp. NFS version 3 says
//! in the reply to a modifying call what the stamp was before and after it (`wcc_data`, RFC 1813
//! §2.6). Put end to end, these pairs are a chain from the stamp that the cache was good for to the
//! one that the server shows now. A chain without a gap is made of own changes only, and the cache
//! stays; a gap is somebody else's change, and the cache goes.
//!
//! Replies come in any order, so a pair that does not continue the chain says nothing yet: what is
//! missing may be in a reply that is still to come. Such pairs are islands. They join each other
//! and the chain as replies arrive, and an island is a foreign change only when no call is left
//! that could join it: none that had begun before it was seen.
//!
//! ```
//! use proto::nfs3::{Attributes, WccData};
//! use spillway_client::change::{ChangeTracker, Verdict};
//!
//! # fn example(opened: &Attributes, first: &WccData, second: &WccData, reopened: &Attributes) {
//! let mut tracker = ChangeTracker::new(opened);
//! let (one, two) = (tracker.begin(), tracker.begin());
//! // Two WRITE replies, the second first.
//! assert_eq!(tracker.finish(two, second), Verdict::Undecided);
//! assert_eq!(tracker.finish(one, first), Verdict::Own);
//! // The GETATTR of the next open.
//! let sent = tracker.moment();
//! assert_eq!(tracker.observe(reopened, sent), Verdict::Unchanged);
//! # }
//! ```
//!
//! # What cannot be told
//!
//! - A server need not say what the stamp was before; stock Linux NFSD does not for WRITE. Then own
//!   changes are trusted: all that happened up to such a reply counts as own. A foreign write that
//!   falls between own ones that are under way is missed.
//! - A server may take the stamps without keeping others out meanwhile. Its pairs overlap, which is
//!   taken as it comes: a pair that begins inside the chain continues it.
//! - A foreign change within the same tick of the server's clock as an own one, which leaves the
//!   size as it is, has no stamp of its own.
//! - While own calls are under way a stamp seen by GETATTR, LOOKUP or READ tells nothing, because
//!   their effect may or may not be in it. The replies themselves tell.
//!
//! In doubt the answer is [`Verdict::Foreign`]: it costs data fetched again, the other mistake costs
//! wrong data.

use std::fmt;
use std::sync::{Arc, Weak};

use proto::nfs3::{Attributes, WccAttributes, WccData};

/// What distinguishes one state of an object from another: `wcc_attr`, its size and the times of the
/// last change of data (which programs can set back) and of anything (by the server's clock).
pub type Change = WccAttributes;

/// A stamp as `SIZE@MTIME/CTIME`, for trace lines.
#[derive(Clone, Copy, Debug)]
pub struct ChangeText(pub Change);

impl fmt::Display for ChangeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Change { size, mtime, ctime }) = self;
        write!(f, "{size}@{}.{:09}", mtime.seconds, mtime.nseconds)?;
        write!(f, "/{}.{:09}", ctime.seconds, ctime.nseconds)
    }
}

/// What a reply says about the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a foreign change is told once, and what is cached must go then"]
pub enum Verdict {
    /// It is as it was known.
    Unchanged,
    /// It changed, and all of it was this client.
    Own,
    /// Somebody else changed it: what is cached is worth nothing. Said once; the object is known
    /// from here on as the server shows it now.
    Foreign,
    /// Not to be told from this reply, or not before others: what is cached stays meanwhile.
    Undecided,
}

/// An own modifying call under way, between [`ChangeTracker::begin`] and
/// [`ChangeTracker::finish`].
///
/// Dropped, it is a call without a reply. Whether the server carries it out, and when, is unknown,
/// so a difference that is found later counts as foreign.
#[derive(Debug)]
pub struct OwnCall {
    sequence: u64,
    /// The tracker's moment right after this call began.
    begun: Moment,
    /// Seen from the tracker as long as this is alive.
    _alive: Arc<()>,
}

/// A point in the order of events of a [`ChangeTracker`]; see [`ChangeTracker::moment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

impl Moment {
    /// When nothing is known of the moment: before all own calls.
    pub const BEFORE_ALL: Self = Self(0);
}

/// Tells own changes of one object from foreign ones. It makes no call and knows no time: it is told
/// of each call and reply.
#[derive(Debug)]
pub struct ChangeTracker {
    /// The end of the chain: the last stamp that is known to be own or to have been cached under.
    known: Change,
    /// The call whose reply `known` comes from, by its sequence; 0 for no call.
    known_from: u64,
    /// Own changes that do not join the chain yet; at most [`ISLANDS_MAX`].
    islands: Vec<Island>,
    /// Own calls under way, the oldest first.
    active: Vec<(u64, Weak<()>)>,
    /// The sequence of the next call.
    next: u64,
    /// Counts the beginnings and ends of own calls.
    moment: Moment,
    /// An own call may have moved ctime, and nothing but ctime, without a stamp of it.
    ctime_moved: bool,
}

/// Own changes from one stamp to another, which the chain has not reached.
#[derive(Debug)]
struct Island {
    from: Change,
    to: Change,
    from_call: u64,
    /// Calls with smaller sequences had begun when `from` was seen, and may lead up to it.
    begun_before: u64,
}

impl ChangeTracker {
    /// An object whose cache is empty, or good for `attributes`.
    #[must_use]
    pub fn new(attributes: &Attributes) -> Self {
        Self {
            known: attributes.into(),
            known_from: 0,
            islands: Vec::new(),
            active: Vec::new(),
            next: 1,
            moment: Moment(0),
            ctime_moved: false,
        }
    }

    /// The stamp that the cache is good for.
    #[must_use]
    pub fn known(&self) -> Change {
        self.known
    }

    /// Whether own modifying calls are under way.
    pub fn is_active(&mut self) -> bool {
        self.forget_dropped();
        !self.active.is_empty()
    }

    /// Now. Taken when a call that only looks is sent, for [`observe`](Self::observe).
    pub fn moment(&mut self) -> Moment {
        self.forget_dropped();
        self.moment
    }

    /// A modifying call is about to be sent: WRITE, SETATTR, COMMIT, or one that changes this
    /// directory. To be called before it is sent.
    #[must_use = "dropped, the call counts as one without a reply"]
    pub fn begin(&mut self) -> OwnCall {
        self.forget_dropped();
        let (sequence, alive) = (self.next, Arc::new(()));
        self.next += 1;
        self.moment.0 += 1;
        self.active.push((sequence, Arc::downgrade(&alive)));
        OwnCall { sequence, begun: self.moment, _alive: alive }
    }

    /// The reply to `call`, a failed one as well: what it says of the stamp before and after.
    pub fn finish(&mut self, call: OwnCall, wcc: &WccData) -> Verdict {
        let OwnCall { sequence, begun, .. } = call;
        let was = self.known;
        let alone = self.end(sequence, begun);
        match (wcc.before, wcc.after.as_ref().map(Change::from)) {
            // What changed nothing is a look, and its place among the others does not matter:
            // COMMIT, a write of nothing, or one within a tick of the server's clock.
            (Some(before), Some(after)) if before == after => return self.look(after, alone),
            (Some(before), Some(after)) => self.link(before, after, sequence),
            (None, Some(after)) => self.trust(after, sequence),
            // As good as no reply.
            (_, None) => {}
        }
        self.decide(was)
    }

    /// The reply to `call`, one that moves the object's ctime without a word about it: RENAME of it,
    /// LINK to it, REMOVE of one of its names. The next stamp that differs in ctime only, and
    /// forwards, is taken as own.
    pub fn finish_silent(&mut self, call: OwnCall) -> Verdict {
        let was = self.known;
        self.end(call.sequence, call.begun);
        self.ctime_moved = true;
        self.absorb_islands();
        self.decide(was)
    }

    /// Attributes in the reply to a call that changes nothing, such as GETATTR, LOOKUP, ACCESS,
    /// READ or READDIR, which was sent at `sent`. They may be older than what is known.
    ///
    /// [`Verdict::Unchanged`] to the GETATTR of an open says that what is cached may stay; so does
    /// `Undecided`, until the own calls that it waits for have been answered.
    pub fn observe(&mut self, attributes: &Attributes, sent: Moment) -> Verdict {
        self.forget_dropped();
        let undisturbed = sent == self.moment;
        self.look(attributes.into(), undisturbed)
    }

    /// A stamp that the object had at some time. With `undisturbed`, no own call was under way
    /// between the sending and the reply of the call that saw it.
    fn look(&mut self, seen: Change, undisturbed: bool) -> Verdict {
        if self.has_foreign() {
            return self.foreign(newer(self.known, seen));
        }
        if !self.active.is_empty() {
            return Verdict::Undecided;
        }
        if seen == self.known {
            return Verdict::Unchanged;
        }
        if self.follows(seen) {
            self.continue_from(seen, seen, self.known_from);
            return Verdict::Own;
        }
        // All own calls are answered, so their effect is in the chain. What is older than its end
        // may have been overtaken on the way; what is newer was not this client.
        if undisturbed || seen.ctime > self.known.ctime {
            return self.foreign(seen);
        }
        Verdict::Undecided
    }

    /// An own change from `before` to `after`.
    fn link(&mut self, before: Change, after: Change, sequence: u64) {
        // What begins inside the chain is a pair of a server that takes the stamp before without
        // keeping others out.
        if self.follows(before) || before.ctime < self.known.ctime {
            self.continue_from(before, after, sequence);
            self.absorb_islands();
        } else {
            self.add_island(before, after, sequence);
        }
    }

    /// An own change up to `after`, from nobody knows where.
    fn trust(&mut self, after: Change, sequence: u64) {
        // Within a tick of the server's clock the order of sending is the best there is.
        if (after.ctime, sequence) > (self.known.ctime, self.known_from) {
            (self.known, self.known_from) = (after, sequence);
            self.absorb_islands();
        }
    }

    /// Whether a change from `before` continues the chain.
    fn follows(&self, before: Change) -> bool {
        let Change { size, mtime, ctime } = self.known;
        let only_ctime = before.size == size && before.mtime == mtime && before.ctime > ctime;
        before == self.known || (self.ctime_moved && only_ctime)
    }

    /// Continues the chain with a change from its end, or from inside it, to `to`.
    fn continue_from(&mut self, from: Change, to: Change, sequence: u64) {
        if self.follows(from) {
            self.ctime_moved &= from == self.known;
        } else if to.ctime <= self.known.ctime {
            return;
        }
        (self.known, self.known_from) = (to, sequence);
    }

    /// Joins to the chain what it has reached by now.
    fn absorb_islands(&mut self) {
        while let Some(reached) = self
            .islands
            .iter()
            .position(|island| self.follows(island.from) || island.from.ctime < self.known.ctime)
        {
            let Island { from, to, from_call, .. } = self.islands.swap_remove(reached);
            self.continue_from(from, to, from_call);
        }
    }

    fn add_island(&mut self, from: Change, to: Change, from_call: u64) {
        let mut island = Island { from, to, from_call, begun_before: self.next };
        if let Some(behind) = self.islands.iter().position(|other| other.from == island.to) {
            let behind = self.islands.swap_remove(behind);
            (island.to, island.from_call) = (behind.to, behind.from_call);
        }
        if let Some(ahead) = self.islands.iter().position(|other| other.to == island.from) {
            let ahead = self.islands.swap_remove(ahead);
            (island.from, island.begun_before) = (ahead.from, ahead.begun_before);
        }
        // What ends where it began is no change. Within a tick of the server's clock a size can
        // come back, and the chain can have gone on without this detour.
        if island.from != island.to {
            self.islands.push(island);
        }
    }

    /// What the chain and the islands say now; `was` is its end before the reply.
    fn decide(&mut self, was: Change) -> Verdict {
        if self.has_foreign() {
            self.foreign(self.known)
        } else if !self.islands.is_empty() {
            Verdict::Undecided
        } else if self.known == was {
            Verdict::Unchanged
        } else {
            Verdict::Own
        }
    }

    /// Whether there is an island that no reply can join to the chain any more, or too many.
    fn has_foreign(&self) -> bool {
        let oldest = self.active.first().map_or(self.next, |(sequence, _)| *sequence);
        self.islands.len() > ISLANDS_MAX
            || self.islands.iter().any(|island| island.begun_before <= oldest)
    }

    /// Somebody else changed the object: begins a new chain at the latest stamp that was seen.
    fn foreign(&mut self, seen: Change) -> Verdict {
        let newest = std::mem::take(&mut self.islands).into_iter().map(|island| island.to);
        self.known = newest.fold(seen, newer);
        self.known_from = 0;
        self.ctime_moved = false;
        Verdict::Foreign
    }

    /// Takes the call out of those under way. Whether no other was under way since it began.
    fn end(&mut self, sequence: u64, begun: Moment) -> bool {
        self.active.retain(|(active, _)| *active != sequence);
        self.forget_dropped();
        let alone = begun == self.moment && self.active.is_empty();
        self.moment.0 += 1;
        alone
    }

    fn forget_dropped(&mut self) {
        let before = self.active.len();
        self.active.retain(|(_, alive)| alive.strong_count() > 0);
        if self.active.len() != before {
            self.moment.0 += 1;
        }
    }
}

fn newer(one: Change, other: Change) -> Change {
    if other.ctime > one.ctime { other } else { one }
}

/// Islands at most. Between two of them is at least one call under way, so that more calls of one
/// object would have to be under way to have more without a foreign change.
const ISLANDS_MAX: usize = 64;

#[cfg(test)]
mod tests;
