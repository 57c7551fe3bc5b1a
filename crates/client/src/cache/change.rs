//! Distinguishes own changes of a file or directory from foreign changes, by `wcc_data`.
//!
//! The caches of an object are valid for one [`Change`] stamp. In NFS version 3 the reply to a
//! modifying call has the stamp from before and after it (`wcc_data`, RFC 1813 §2.6). Put end to
//! end, these pairs form a chain from the stamp for which the caches were valid to the current
//! stamp of the server. A chain without a gap consists of own changes, and the caches stay valid; a
//! gap is a foreign change, and the caches are dropped.
//!
//! Replies arrive in any order, so a pair that does not continue the chain is not yet a gap: a
//! later reply may fill it. Such pairs are islands. They join each other and the chain as replies
//! arrive. An island is a foreign change when no call is left that could join it: none that began
//! before the island was seen.
//!
//! # Which stamp is trusted
//!
//! The stamp after an own change includes all foreign changes up to it. It is trusted only with
//! [`Evidence`]:
//!
//! - The reply has the stamp from before as well, and the pair joins the chain.
//! - LINK returns no stamp of the file from before; RENAME and REMOVE return none. These calls
//!   change ctime alone, so the change is own only if size and mtime are those of the chain's end
//!   and ctime is later.
//! - WRITE of a server that never returns the stamp from before (stock Linux NFSD). Linux's client
//!   trusts the stamp from after as well; otherwise a client would read back all data that it
//!   writes. If a server returns pairs, and one reply lacks the stamp from before, that reply is
//!   not trusted; see [`WritePairs`].
//! - A SETATTR or CREATE reply without the stamp from before counts as an observed stamp. A reply
//!   without the stamp from after counts as no reply.
//!
//! A stamp that the chain has passed is outdated, even in the reply to a call sent later: a server
//! may return the state from before a change while a foreign change is in progress. It is not a
//! foreign change and does not replace newer attributes. A server whose file system was reverted to
//! a snapshot also returns such a stamp, so it is accepted after [`OUTDATED_BELIEVED`] observations
//! in a row.
//!
//! # Undetected and misjudged changes
//!
//! - A foreign WRITE among own WRITEs in flight, at a server that never returns the stamp from
//!   before, is not detected.
//! - A server may read the stamps without excluding other changes. Its pairs overlap: a pair that
//!   begins inside the chain continues it.
//! - A foreign change in the same tick of the server's clock as an own one, with the same size, has
//!   no stamp of its own and is not detected.
//! - Nor is a foreign change of data after which mtime is reset and the size is the same, together
//!   with an own LINK, RENAME or REMOVE.
//! - While own calls are in flight, a stamp from GETATTR, LOOKUP or READ proves nothing, because it
//!   may or may not include their effect. Their replies decide.
//! - An own LINK whose stamp was read after a later own WRITE, at a server that does not exclude
//!   other changes, counts as foreign.
//! - Own WRITEs and a SETATTR that returns to the mtime from before them, at the same size, count
//!   as foreign if the reply to an own LINK, RENAME or REMOVE after these comes first.
//!
//! In doubt a change is [`Attribution::Foreign`]: that costs fetching data again, the opposite
//! mistake returns wrong data.

mod evidence;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use proto::nfs3::{Attributes, WccAttributes};

use evidence::Stamps;
pub(crate) use evidence::{Evidence, WritePairs};

/// Identifies one state of an object: `wcc_attr`, the size and the times of the last change of data
/// (which programs can set back) and of anything (by the server's clock).
pub(crate) type Change = WccAttributes;

/// A stamp as `SIZE@MTIME/CTIME`, for trace lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeText(pub(crate) Change);

impl fmt::Display for ChangeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Change { size, mtime, ctime }) = self;
        write!(f, "{size}@{}.{:09}", mtime.seconds, mtime.nseconds)?;
        write!(f, "/{}.{:09}", ctime.seconds, ctime.nseconds)
    }
}

/// Which client has changed an object, according to a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a foreign change is reported once, and the caches must be dropped then"]
pub(crate) enum Attribution {
    /// There is no change.
    Unchanged,
    /// All changes are this client's.
    Own,
    /// Another client has changed the object, and the caches are invalid. Reported once; from here
    /// on the object is known by its current stamp.
    Foreign,
    /// This reply does not decide, or not before later ones. The caches stay valid meanwhile.
    Undecided,
}

/// An own modifying call in flight, between [`ChangeTracker::begin`] and [`ChangeTracker::finish`].
///
/// Dropped, it is a call without a reply. Whether and when the server executes it is unknown, so a
/// difference that is found later counts as foreign.
#[derive(Debug)]
pub(crate) struct OwnCall {
    sequence: u64,
    /// The tracker's moment right after this call began.
    begun: Moment,
    /// The tracker holds a weak reference to it.
    _alive: Arc<()>,
}

/// A point in the order of events of a [`ChangeTracker`]; see [`ChangeTracker::moment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Before all own calls: the moment is unknown.
    pub(crate) const BEFORE_ALL: Self = Self(0);
}

/// Tracks the changes of one object. Pure: fed with the beginning and the reply of each call.
#[derive(Debug)]
pub(crate) struct ChangeTracker {
    /// The end of the chain: the stamp for which the caches are valid.
    known: Change,
    /// The sequence of the call whose reply had `known`; 0 for none.
    known_from: u64,
    /// Own changes that the chain has not reached; at most [`ISLANDS_MAX`].
    islands: Vec<Island>,
    /// Own calls in flight, the oldest first.
    active: Vec<(u64, Weak<()>)>,
    /// The sequence of the next call.
    next: u64,
    /// Counts the beginnings and ends of own calls.
    moment: Moment,
    /// Own calls without a stamp that may have changed ctime, and ctime alone.
    ctime_moves: u32,
    /// An own call ended without a stamp. Its change, a reset mtime for instance, cannot be
    /// distinguished from a change of ctime alone.
    untraced: bool,
    /// Stamps that the chain has passed, the oldest first; at most [`PAST_MAX`].
    past: VecDeque<Change>,
    /// A reply had a stamp of other data between two stamps of the chain that differ in ctime
    /// alone: the change between these was not an own change of ctime.
    contradicted: bool,
    /// Undisturbed observations in a row of a stamp in `past`.
    outdated_observations: u32,
    /// Counts the foreign changes.
    foreign_changes: u64,
}

/// Own changes from one stamp to another that the chain has not reached.
#[derive(Debug)]
struct Island {
    from: Start,
    to: Change,
    from_call: u64,
    /// Calls with smaller sequences had begun when `from` was seen, and may lead up to it.
    begun_before: u64,
}

/// Where an own change began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// At this stamp.
    At(Change),
    /// At the same size and mtime as it ended, with an earlier ctime.
    CtimeBefore,
}

impl Start {
    /// Whether a change from here to `to` changes ctime alone.
    fn leaves_data(self, to: Change) -> bool {
        match self {
            Self::At(from) => from.size == to.size && from.mtime == to.mtime,
            Self::CtimeBefore => true,
        }
    }
}

/// Where an own change begins, relative to the end of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Junction {
    /// At the end: it continues the chain.
    AtEnd,
    /// Behind the end, after an own change of ctime without a stamp.
    AfterCtimeMove,
    /// Before the end: the chain has passed it.
    Inside,
    /// Behind the end: the chain has not reached it.
    Ahead,
}

impl ChangeTracker {
    /// An object whose caches are empty or valid for `attributes`.
    #[must_use]
    pub(crate) fn new(attributes: &Attributes) -> Self {
        Self {
            known: attributes.into(),
            known_from: 0,
            islands: Vec::new(),
            active: Vec::new(),
            next: 1,
            // Behind `Moment::BEFORE_ALL`.
            moment: Moment(1),
            ctime_moves: 0,
            untraced: false,
            past: VecDeque::new(),
            contradicted: false,
            outdated_observations: 0,
            foreign_changes: 0,
        }
    }

    /// The stamp for which the caches are valid.
    #[must_use]
    pub(crate) fn known(&self) -> Change {
        self.known
    }

    /// The number of foreign changes so far.
    #[must_use]
    pub(crate) fn foreign_changes(&self) -> u64 {
        self.foreign_changes
    }

    /// The current moment, to be taken before a call is sent that changes nothing, for
    /// [`observe`](Self::observe).
    pub(crate) fn moment(&mut self) -> Moment {
        self.forget_dropped();
        self.moment
    }

    /// To be called before a modifying call is sent: WRITE, SETATTR, or one that changes this
    /// directory.
    #[must_use = "dropped, the call counts as one without a reply"]
    pub(crate) fn begin(&mut self) -> OwnCall {
        self.forget_dropped();
        let (sequence, alive) = (self.next, Arc::new(()));
        self.next += 1;
        self.moment.0 += 1;
        self.active.push((sequence, Arc::downgrade(&alive)));
        OwnCall { sequence, begun: self.moment, _alive: alive }
    }

    /// Processes the reply to `call`.
    pub(crate) fn finish(&mut self, call: OwnCall, evidence: &Evidence) -> Attribution {
        let OwnCall { sequence, begun, .. } = call;
        let was = self.known;
        let alone = self.end(sequence, begun);
        match evidence.stamps() {
            // A call that changed nothing, as a WRITE within one tick of the server's clock, is an
            // observation. Its order among the other calls does not matter.
            Stamps::Pair(before, after) if before == after => {
                return self.observe_stamp(after, alone);
            }
            Stamps::Pair(before, after) => self.link(Start::At(before), after, sequence),
            Stamps::TrustedAfter(after) => self.trust(after, sequence),
            Stamps::After(after) => return self.observe_stamp(after, alone),
            Stamps::CtimeAfter(after) => self.link(Start::CtimeBefore, after, sequence),
            Stamps::CtimeMoved => {
                self.ctime_moves += 1;
                self.absorb_islands();
            }
            Stamps::Nothing => self.untraced = true,
        }
        self.decide(was)
    }

    /// Processes the refusal of `call`, which counts as no change.
    pub(crate) fn refuse(&mut self, call: OwnCall) -> Attribution {
        let OwnCall { sequence, begun, .. } = call;
        self.end(sequence, begun);
        self.decide(self.known)
    }

    /// Processes attributes from the reply to a call that changes nothing, such as GETATTR, LOOKUP,
    /// ACCESS, READ or READDIR, sent at `sent`. They may be older than the known ones.
    ///
    /// [`Attribution::Unchanged`] for the call of an open means that the caches are valid. After
    /// `Undecided` the open waits for [`decide_observed`](Self::decide_observed).
    pub(crate) fn observe(&mut self, attributes: &Attributes, sent: Moment) -> Attribution {
        self.forget_dropped();
        let undisturbed = sent == self.moment;
        self.observe_stamp(attributes.into(), undisturbed)
    }

    /// Whether there was an own call since the object became known.
    pub(crate) fn has_own_calls(&self) -> bool {
        self.next > 1
    }

    /// The sequence of the next own call, for [`decide_observed`](Self::decide_observed):
    /// attributes that have arrived have the effect of earlier calls at most.
    pub(crate) fn next_call(&self) -> u64 {
        self.next
    }

    /// Processes attributes again that [`observe`](Self::observe) has left undecided. `None` while
    /// a call before `next_call` is in flight: without its reply, its change and a foreign one
    /// after it look alike. `Undecided` means that the caches are valid.
    pub(crate) fn decide_observed(
        &mut self,
        attributes: &Attributes,
        next_call: u64,
    ) -> Option<Attribution> {
        self.forget_dropped();
        if self.active.first().is_some_and(|(sequence, _)| *sequence < next_call) {
            return None;
        }
        let seen = attributes.into();
        if self.has_foreign() {
            return Some(self.foreign(newer(self.known, seen)));
        }
        Some(self.compare(seen, false))
    }

    /// Whether the chain has passed the stamp of these attributes, so that the known ones are
    /// newer, whenever the call was sent.
    #[must_use]
    pub(crate) fn is_past(&self, attributes: &Attributes) -> bool {
        self.has_passed(attributes.into())
    }

    fn has_passed(&self, seen: Change) -> bool {
        seen.ctime < self.known.ctime && self.past.contains(&seen)
    }

    /// A stamp that the object had at some time. With `undisturbed`, no own call was under way
    /// between the sending and the reply of the call that saw it.
    fn observe_stamp(&mut self, seen: Change, undisturbed: bool) -> Attribution {
        if self.has_foreign() {
            return self.foreign(newer(self.known, seen));
        }
        if !self.active.is_empty() {
            return Attribution::Undecided;
        }
        self.compare(seen, undisturbed)
    }

    /// Compares a stamp with the chain, which has all own calls whose effect the stamp can have.
    fn compare(&mut self, seen: Change, undisturbed: bool) -> Attribution {
        if seen == self.known {
            if undisturbed {
                // The effect of all own calls is in it.
                (self.ctime_moves, self.outdated_observations) = (0, 0);
            }
            return Attribution::Unchanged;
        }
        if self.junction(Start::At(seen), seen) == Junction::AfterCtimeMove {
            self.continue_to(seen, self.known_from);
            self.ctime_moves = if undisturbed { 0 } else { self.ctime_moves - 1 };
            return Attribution::Own;
        }
        if self.has_passed(seen) && self.outdated_observations + 1 < OUTDATED_BELIEVED {
            self.outdated_observations += u32::from(undisturbed);
            return Attribution::Undecided;
        }
        // All own calls are answered, so their effect is in the chain. What is older than its end
        // may have been overtaken on the way; what is newer was not this client.
        if undisturbed || seen.ctime > self.known.ctime {
            return self.foreign(seen);
        }
        Attribution::Undecided
    }

    /// Adds an own change from `start` to `after`.
    fn link(&mut self, start: Start, after: Change, sequence: u64) {
        match self.junction(start, after) {
            Junction::Ahead => self.add_island(start, after, sequence),
            junction => {
                self.continue_from(start, junction, after, sequence);
                self.absorb_islands();
            }
        }
    }

    /// Adds an own change to `after` from an unknown stamp.
    fn trust(&mut self, after: Change, sequence: u64) {
        // Within one tick of the server's clock the order of sending decides.
        if (after.ctime, sequence) > (self.known.ctime, self.known_from) {
            self.continue_to(after, sequence);
            self.absorb_islands();
        }
    }

    /// Where a change from `start` to `after` begins.
    fn junction(&self, start: Start, after: Change) -> Junction {
        match start {
            Start::At(before) if before == self.known => Junction::AtEnd,
            Start::At(before) if self.ctime_moves > 0 && self.only_ctime_moved(before) => {
                Junction::AfterCtimeMove
            }
            // A pair of a server that reads the stamps without excluding other changes.
            Start::At(before) if before.ctime < self.known.ctime => Junction::Inside,
            Start::CtimeBefore if after == self.known || self.only_ctime_moved(after) => {
                Junction::AtEnd
            }
            // Within one tick of the server's clock it may be either. The end of the chain stays,
            // so the next observation or pair still detects a foreign change.
            Start::CtimeBefore if after.ctime <= self.known.ctime => Junction::Inside,
            Start::At(_) | Start::CtimeBefore => Junction::Ahead,
        }
    }

    /// Whether `seen` differs from the end of the chain by a later ctime alone, and no own call
    /// without a stamp could have reset mtime.
    fn only_ctime_moved(&self, seen: Change) -> bool {
        let Change { size, mtime, ctime } = self.known;
        !self.untraced && seen.size == size && seen.mtime == mtime && seen.ctime > ctime
    }

    /// Continues the chain with a change from `start`, at `junction`, to `to`.
    fn continue_from(&mut self, start: Start, junction: Junction, to: Change, sequence: u64) {
        if junction == Junction::Inside {
            let from = match start {
                Start::At(from) => Some(from),
                Start::CtimeBefore => None,
            };
            self.contradicted |= from.into_iter().chain([to]).any(|seen| self.contradicts(seen));
        }
        match (junction, start) {
            (Junction::AtEnd, _) => self.continue_to(to, sequence),
            (Junction::AfterCtimeMove, start) => {
                self.ctime_moves -= 1;
                if let Start::At(from) = start {
                    self.continue_to(from, sequence);
                }
                self.continue_to(to, sequence);
            }
            (Junction::Inside, Start::At(_)) if to.ctime > self.known.ctime => {
                self.continue_to(to, sequence);
            }
            // The chain passed it on account of another call, whose change of ctime is still to
            // come.
            (Junction::Inside, start) if start.leaves_data(to) => self.ctime_moves += 1,
            (Junction::Inside | Junction::Ahead, _) => {}
        }
    }

    /// Whether `seen` lies between two stamps of the chain that differ in ctime alone, and has
    /// other data than these.
    fn contradicts(&self, seen: Change) -> bool {
        let data = |stamp: &Change| (stamp.size, stamp.mtime);
        let ends = self.past.iter().skip(1).chain([&self.known]);
        self.past.iter().zip(ends).any(|(from, to)| {
            from.ctime < seen.ctime
                && seen.ctime < to.ctime
                && data(from) == data(to)
                && data(&seen) != data(from)
        })
    }

    fn continue_to(&mut self, to: Change, sequence: u64) {
        if to != self.known {
            self.note_past();
        }
        (self.known, self.known_from) = (to, sequence);
        self.outdated_observations = 0;
    }

    /// Adds the end of the chain to `past`, before it moves.
    fn note_past(&mut self) {
        if self.past.len() == PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back(self.known);
    }

    /// Joins the islands to the chain that it has reached.
    fn absorb_islands(&mut self) {
        while let Some((reached, junction)) =
            self.islands.iter().enumerate().find_map(|(at, island)| {
                let junction = self.junction(island.from, island.to);
                (junction != Junction::Ahead).then_some((at, junction))
            })
        {
            let Island { from, to, from_call, .. } = self.islands.swap_remove(reached);
            self.continue_from(from, junction, to, from_call);
        }
    }

    fn add_island(&mut self, from: Start, to: Change, from_call: u64) {
        let mut island = Island { from, to, from_call, begun_before: self.next };
        // The start of a change of ctime alone is known by its end only, so it stays separate.
        if from != Start::CtimeBefore {
            self.merge_neighbours(&mut island);
        }
        // An island that ends where it began is no change. Within one tick of the server's clock
        // the size can return to what it was, and the chain can continue without this detour.
        if island.from != Start::At(island.to) {
            self.islands.push(island);
        }
    }

    /// Merges the islands before and behind `island` into it.
    fn merge_neighbours(&mut self, island: &mut Island) {
        let behind = |other: &Island| other.from == Start::At(island.to);
        if let Some(behind) = self.islands.iter().position(behind) {
            let behind = self.islands.swap_remove(behind);
            (island.to, island.from_call) = (behind.to, behind.from_call);
        }
        let ahead =
            |other: &Island| other.from != Start::CtimeBefore && Start::At(other.to) == island.from;
        if let Some(ahead) = self.islands.iter().position(ahead) {
            let ahead = self.islands.swap_remove(ahead);
            (island.from, island.begun_before) = (ahead.from, ahead.begun_before);
        }
    }

    /// The attribution by the chain and the islands; `was` is the end of the chain before the
    /// reply.
    fn decide(&mut self, was: Change) -> Attribution {
        if self.has_foreign() {
            self.foreign(self.known)
        } else if !self.islands.is_empty() {
            Attribution::Undecided
        } else if self.known == was {
            Attribution::Unchanged
        } else {
            Attribution::Own
        }
    }

    /// Whether there is an island that no reply can join to the chain, or too many islands.
    fn has_foreign(&self) -> bool {
        let oldest = self.active.first().map_or(self.next, |(sequence, _)| *sequence);
        self.contradicted
            || self.islands.len() > ISLANDS_MAX
            || self.islands.iter().any(|island| island.begun_before <= oldest)
    }

    /// Begins a new chain at the latest stamp seen, after a foreign change.
    fn foreign(&mut self, seen: Change) -> Attribution {
        let newest = std::mem::take(&mut self.islands).into_iter().map(|island| island.to);
        let newest = newest.fold(seen, newer);
        self.continue_to(newest, 0);
        self.past.clear();
        (self.ctime_moves, self.untraced, self.contradicted) = (0, false, false);
        self.foreign_changes += 1;
        Attribution::Foreign
    }

    /// Removes a call from those in flight. Returns whether no other was in flight since it began.
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
            self.untraced = true;
        }
    }
}

fn newer(one: Change, other: Change) -> Change {
    if other.ctime > one.ctime { other } else { one }
}

/// Maximum of islands. Each needs at least one call in flight, so more of them without a foreign
/// change would need more calls in flight for one object.
const ISLANDS_MAX: usize = 64;

/// Stamps of the chain that are remembered: as many own changes may end while a foreign one is in
/// progress. Older stamps count as foreign.
const PAST_MAX: usize = 8;

/// Undisturbed observations of one outdated stamp until it is accepted.
pub(crate) const OUTDATED_BELIEVED: u32 = 4;

#[cfg(test)]
mod tests;
