//! The slots of a session: each runs one call at a time and keeps its reply, RFC 8881 §2.10.6.

use std::sync::Arc;

use proto::nfs4::{SequenceId, SlotId, Status};

use super::ConnectionId;
use super::replies::ReplyRoom;

/// SEQUENCE's arguments but the session, RFC 8881 §18.46.1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub(crate) slot: SlotId,
    pub(crate) sequence: SequenceId,
    /// The highest slot that the client waits for.
    pub(crate) highest_slot: SlotId,
    /// Whether the reply must be kept.
    pub(crate) cache_this: bool,
}

/// The decision on a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is new: run it, and [complete](Slots::complete) the slot.
    Run,
    /// It ran before: send this reply again.
    Replay(Arc<[u8]>),
    /// Its first copy, over the same connection, is at work and will be answered.
    Duplicate,
}

/// A slot table. An error leaves it as it was, but for what is known of the last reply's arrival.
#[derive(Debug)]
pub(super) struct Slots {
    /// Those used so far; a slot is made when a call first names it.
    slots: Vec<Slot>,
    /// The negotiated number of slots.
    slots_max: u32,
    /// The highest slot that the client should use, as the last reply has it.
    target: SlotId,
    /// How often the target has sunk.
    generation: u64,
}

#[derive(Debug, Default)]
struct Slot {
    /// Of the last call that began; zero before the first.
    sequence: SequenceId,
    content: Content,
    /// Room for replies, taken by the first call whose reply is to be kept. The first slot needs
    /// none.
    room: Option<ReplyRoom>,
    /// That of the target in the last reply; `None` if that did not reach the client.
    generation: Option<u64>,
}

#[derive(Clone, Debug, Default)]
enum Content {
    #[default]
    Unused,
    Busy {
        digest: u64,
        connection: ConnectionId,
    },
    Done {
        digest: u64,
        reply: Option<Arc<[u8]>>,
    },
}

impl Slots {
    /// `slots_max` slots, none used.
    pub(super) fn new(slots_max: u32) -> Self {
        let target = SlotId(slots_max.saturating_sub(1));
        Self { slots: Vec::new(), slots_max, target, generation: 0 }
    }

    /// The negotiated number of slots.
    pub(super) fn slots_max(&self) -> u32 {
        self.slots_max
    }

    /// Decides on a call by its slot and sequence number. `digest` is that of its credential and of
    /// its arguments but the highest slot; `room` takes room for a reply, and is called before a
    /// call whose reply must be kept.
    ///
    /// # Errors
    /// `Badslot`, `BadHighSlot`, `SeqMisordered`; `SeqFalseRetry` for other arguments under a used
    /// number; `RetryUncachedRep`; `Delay` for a call that is at work for another connection, and
    /// when there is no room for the reply.
    pub(super) fn begin(
        &mut self,
        call: &Sequence,
        digest: u64,
        connection: ConnectionId,
        room: impl FnOnce() -> Option<ReplyRoom>,
    ) -> Result<Decision, Status> {
        if call.slot.0 >= self.slots_max {
            return Err(Status::Badslot);
        }
        if call.highest_slot.0 >= self.slots_max {
            return Err(Status::BadHighSlot);
        }
        let index = index(call.slot);
        let (last, content) = match self.slots.get(index) {
            Some(slot) => (slot.sequence, slot.content.clone()),
            None => (SequenceId::default(), Content::Unused),
        };
        match content {
            Content::Busy { digest: own, connection: first } if call.sequence == last => {
                match (own == digest, first == connection) {
                    (false, _) => Err(Status::SeqFalseRetry),
                    (true, true) => Ok(Decision::Duplicate),
                    (true, false) => Err(Status::Delay),
                }
            }
            Content::Done { digest: own, reply } if call.sequence == last => {
                if own != digest {
                    return Err(Status::SeqFalseRetry);
                }
                if reply.is_none() {
                    self.slots[index].generation = None;
                }
                reply.map(Decision::Replay).ok_or(Status::RetryUncachedRep)
            }
            Content::Unused | Content::Done { .. } if call.sequence == last.next() => {
                let has_room = index == 0 || self.slots.get(index).is_some_and(Slot::has_room);
                let room = match call.cache_this && !has_room {
                    true => Some(room().ok_or(Status::Delay)?),
                    false => None,
                };
                let slot = self.slot(index);
                slot.sequence = call.sequence;
                slot.content = Content::Busy { digest, connection };
                slot.room = room.or(slot.room.take());
                Ok(Decision::Run)
            }
            Content::Unused | Content::Busy { .. } | Content::Done { .. } => {
                Err(Status::SeqMisordered)
            }
        }
    }

    /// Ends the call that runs in `slot`; the reply is replayed to its retries.
    ///
    /// # Panics
    /// No call runs there.
    pub(super) fn complete(&mut self, slot: SlotId, reply: Option<Arc<[u8]>>) {
        let content = &mut self.slots[index(slot)].content;
        let Content::Busy { digest, .. } = *content else { panic!("no call runs in {slot:?}") };
        *content = Content::Done { digest, reply };
    }

    /// Sets the target that the reply to a call at work carries. Forgets replies behind it that the
    /// client does not wait for.
    pub(super) fn set_target(&mut self, call: &Sequence, target: SlotId) {
        self.generation += u64::from(target < self.target);
        self.target = target;
        let slot = &mut self.slots[index(call.slot)];
        let known = slot.generation.replace(self.generation);
        // Calls are not begun in the order in which they were sent: one that was sent before its
        // client knew of the target does not count the slots used since. The next call on a slot is
        // sent when the reply to the last one is there, and within a generation the target only
        // rises.
        if known == Some(self.generation) && target.0 + 1 < self.slots_max {
            self.forget_replies_behind(target.max(call.highest_slot));
        }
    }

    /// Forgets the replies of slots behind `last`, and gives their room back. Their sequence
    /// numbers stay, because the client goes on counting.
    fn forget_replies_behind(&mut self, last: SlotId) {
        for slot in self.slots.iter_mut().skip(index(last) + 1) {
            if let Content::Done { reply, .. } = &mut slot.content {
                *reply = None;
                slot.room = None;
            }
        }
    }

    fn slot(&mut self, index: usize) -> &mut Slot {
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }
}

impl Slot {
    fn has_room(&self) -> bool {
        self.room.is_some()
    }
}

fn index(slot: SlotId) -> usize {
    usize::try_from(slot.0).expect("a slot number fits an index on Linux")
}

#[cfg(test)]
mod tests;
