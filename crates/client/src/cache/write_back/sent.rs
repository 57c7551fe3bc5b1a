//! Data that WRITEs carry or have carried, and that is not committed.
//!
//! Data that was sent before another client's change of the file was noticed may be older than that
//! change, or lost: the change may be the restart of a server that shows the file as it was before
//! the WRITE. COMMIT decides. Until then the data is read as any other; once it is committed, it is
//! read from the server, which has what both clients wrote in its order.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::nfs3::WriteVerifier;

use super::chunk::{copy_overlap, index};
use super::epochs::Epochs;
use super::unsent::{Caller, Origin, Run};

/// The data of a file in flight or unstable, by offset. It does not overlap.
pub(super) struct SentData<T> {
    extents: BTreeMap<u64, SentExtent<T>>,
    in_flight: usize,
    in_flight_epochs: Epochs,
    unstable_epochs: Epochs,
    unstable_bytes: u64,
    /// The places in the order of events at which the data was sent.
    sent_at: Epochs,
}

/// The data of one WRITE, or the rest of it that newer data has not replaced.
pub(super) struct SentExtent<T> {
    pub(super) bytes: Bytes,
    pub(super) origin: Origin<T>,
    /// The place of its sending in the order of events.
    sent_at: u64,
    /// `None` while the WRITE is in flight.
    reply: Option<UnstableReply>,
}

/// The reply to a WRITE with `committed` UNSTABLE.
#[derive(Clone, Copy)]
pub(super) struct UnstableReply {
    pub(super) verifier: WriteVerifier,
    /// Its place in the order of events.
    pub(super) ordinal: u64,
}

impl<T> Default for SentData<T> {
    fn default() -> Self {
        Self {
            extents: BTreeMap::new(),
            in_flight: 0,
            in_flight_epochs: Epochs::default(),
            unstable_epochs: Epochs::default(),
            unstable_bytes: 0,
            sent_at: Epochs::default(),
        }
    }
}

impl<T: Caller> SentData<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Number of WRITEs in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Number of unstable extents.
    pub(super) fn unstable_pieces(&self) -> usize {
        self.extents.len() - self.in_flight
    }

    pub(super) fn unstable_bytes(&self) -> u64 {
        self.unstable_bytes
    }

    /// Whether data up to `epoch` is in flight.
    pub(super) fn has_in_flight(&self, epoch: u64) -> bool {
        self.in_flight_epochs.reach(epoch)
    }

    /// Whether data up to `epoch` is unstable.
    pub(super) fn has_unstable(&self, epoch: u64) -> bool {
        self.unstable_epochs.reach(epoch)
    }

    /// A caller of each user of unstable data.
    pub(super) fn unstable_callers(&self) -> Vec<T> {
        let mut callers: Vec<T> = Vec::new();
        for SentExtent { origin, .. } in self.extents.values().filter(|sent| !sent.is_in_flight()) {
            if !callers.iter().any(|caller| caller.same_user(&origin.caller)) {
                callers.push(origin.caller.clone());
            }
        }
        callers
    }

    /// The offsets of the unstable extents whose reply `selects` accepts, ascending.
    pub(super) fn unstable(&self, selects: impl Fn(UnstableReply) -> bool) -> Vec<u64> {
        let selected = self.extents.iter().filter(|(_, sent)| sent.reply.is_some_and(&selects));
        selected.map(|(offset, _)| *offset).collect()
    }

    /// The extents that overlap `start..end`.
    pub(super) fn overlapping(
        &self,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, &SentExtent<T>)> {
        let from = self.extents.range(..=start).next_back().map_or(start, |(offset, _)| *offset);
        let sent = self.extents.range(from..end).map(|(offset, sent)| (*offset, sent));
        sent.filter(move |(offset, sent)| offset + sent.len() > start)
    }

    /// Whether there is data that was sent before `place` in the order of events.
    pub(super) fn has_sent_before(&self, place: u64) -> bool {
        self.sent_at.oldest().is_some_and(|oldest| oldest < place)
    }

    /// Adds the data of a WRITE that is sent now.
    pub(super) fn send(&mut self, offset: u64, bytes: Bytes, origin: Origin<T>, sent_at: u64) {
        self.in_flight += 1;
        self.in_flight_epochs.add(origin.epoch);
        self.sent_at.add(sent_at);
        self.extents.insert(offset, SentExtent { bytes, origin, sent_at, reply: None });
    }

    /// Removes the data of the WRITE at `offset` after its reply.
    pub(super) fn take_answered(&mut self, offset: u64) -> SentExtent<T> {
        let sent = self.extents.remove(&offset).expect("only a WRITE that was sent is answered");
        self.in_flight -= 1;
        self.in_flight_epochs.remove(sent.origin.epoch);
        self.sent_at.remove(sent.sent_at);
        sent
    }

    /// Adds data as unstable.
    pub(super) fn add_unstable(&mut self, offset: u64, sent: SentExtent<T>, reply: UnstableReply) {
        self.unstable_epochs.add(sent.origin.epoch);
        self.unstable_bytes += sent.len();
        self.sent_at.add(sent.sent_at);
        self.extents.insert(offset, SentExtent { reply: Some(reply), ..sent });
    }

    /// Removes the unstable extent at `offset`.
    pub(super) fn take_unstable(&mut self, offset: u64) -> SentExtent<T> {
        let sent = self.extents.remove(&offset).expect("the caller has found it");
        self.unstable_epochs.remove(sent.origin.epoch);
        self.unstable_bytes -= sent.len();
        self.sent_at.remove(sent.sent_at);
        sent
    }

    /// Removes the unstable data under `run`, and returns the oldest epoch of it.
    pub(super) fn replace(&mut self, run: Run) -> u64 {
        let beneath: Vec<u64> =
            self.overlapping(run.start, run.end).map(|(offset, _)| offset).collect();
        let mut epoch = u64::MAX;
        for offset in beneath {
            let old = self.take_unstable(offset);
            epoch = epoch.min(old.origin.epoch);
            let end = offset + old.len();
            if offset < run.start {
                self.put_rest(offset, old.part(0, run.start - offset));
            }
            if end > run.end {
                self.put_rest(run.end, old.part(run.end - offset, end - offset));
            }
        }
        epoch
    }

    /// Adds what is left of an unstable extent.
    fn put_rest(&mut self, offset: u64, rest: SentExtent<T>) {
        let reply = rest.reply.expect("it was unstable");
        self.add_unstable(offset, rest, reply);
    }

    /// Drops all data from `size` on. Returns `false`, and drops nothing, if a WRITE behind `size`
    /// is in flight.
    pub(super) fn cut(&mut self, size: u64) -> bool {
        if self.overlapping(size, u64::MAX).any(|(_, sent)| sent.is_in_flight()) {
            return false;
        }
        let beyond: Vec<u64> = self.overlapping(size, u64::MAX).map(|(offset, _)| offset).collect();
        for offset in beyond {
            let sent = self.take_unstable(offset);
            if offset < size {
                self.put_rest(offset, sent.part(0, size - offset));
            }
        }
        true
    }

    /// The end of the last byte.
    pub(super) fn end(&self) -> Option<u64> {
        self.extents.last_key_value().map(|(offset, sent)| offset + sent.len())
    }

    /// The end of the extent at `offset`.
    pub(super) fn covered_until(&self, offset: u64) -> Option<u64> {
        let (start, sent) = self.overlapping(offset, offset.saturating_add(1)).next()?;
        Some(start + sent.len())
    }

    /// Copies the data at `offset` into `buf`.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8]) {
        let end = offset.saturating_add(buf.len() as u64);
        for (start, sent) in self.overlapping(offset, end) {
            copy_overlap(offset, buf, start, &sent.bytes);
        }
    }

    /// Panics unless the sums match the extents and these do not overlap.
    #[cfg(test)]
    pub(super) fn verify(&self) {
        let (mut in_flight, mut unstable) = (Epochs::default(), Epochs::default());
        let mut sent_at = Epochs::default();
        let (mut bytes, mut at) = (0, 0);
        for (offset, sent) in &self.extents {
            assert!(*offset >= at && sent.len() > 0, "sent data overlaps");
            at = offset + sent.len();
            sent_at.add(sent.sent_at);
            match sent.reply {
                None => in_flight.add(sent.origin.epoch),
                Some(_) => {
                    bytes += sent.len();
                    unstable.add(sent.origin.epoch);
                }
            }
        }
        assert_eq!((bytes, &unstable), (self.unstable_bytes, &self.unstable_epochs));
        assert_eq!((&in_flight, &sent_at), (&self.in_flight_epochs, &self.sent_at));
    }
}

impl<T: Clone> SentExtent<T> {
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.reply.is_none()
    }

    /// Whether it was sent before `place` in the order of events.
    pub(super) fn was_sent_before(&self, place: u64) -> bool {
        self.sent_at < place
    }

    /// The place of the reply in the order of events.
    pub(super) fn answered_at(&self) -> Option<u64> {
        self.reply.map(|reply| reply.ordinal)
    }

    /// The bytes `from..to` of it.
    pub(super) fn part(&self, from: u64, to: u64) -> Self {
        let bytes = self.bytes.slice(index(from)..index(to));
        Self { bytes, origin: self.origin.clone(), ..*self }
    }
}
