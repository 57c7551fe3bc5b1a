//! Data that WRITEs carry or have carried, and that is not committed.
//!
//! Data that was sent before another client changed the file is *superseded* from the reply to its
//! WRITE on: the server has what both wrote in its order. It is held only to be sent again if the
//! server loses it, and readers get the server's data.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::nfs3::WriteVerifier;

use super::chunk::{copy_overlap, index};
use super::epochs::Epochs;
use super::unsent::{Origin, Run};

/// The data of a file in flight or unstable, by offset. It does not overlap.
pub(super) struct SentData<T> {
    extents: BTreeMap<u64, SentExtent<T>>,
    in_flight: usize,
    in_flight_epochs: Epochs,
    unstable_epochs: Epochs,
    unstable_bytes: u64,
    /// The place of the latest foreign change in the order of events.
    foreign_at: u64,
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
            foreign_at: 0,
        }
    }
}

impl<T: Clone> SentData<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Number of WRITEs in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
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

    /// The caller of the first unstable extent.
    pub(super) fn unstable_caller(&self) -> Option<T> {
        let mut unstable = self.extents.values().filter(|sent| sent.reply.is_some());
        unstable.next().map(|sent| sent.origin.caller.clone())
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

    /// Notes that another client has changed the file. Places begin with 1.
    pub(super) fn note_foreign_change(&mut self, at: u64) {
        self.foreign_at = at;
    }

    /// Whether another client has changed the file since `sent` was sent.
    pub(super) fn precedes_foreign_change(&self, sent: &SentExtent<T>) -> bool {
        sent.sent_at <= self.foreign_at
    }

    /// Whether `sent` belongs over the reply to a READ sent at `read_at`, or is read without one.
    fn is_readable(&self, sent: &SentExtent<T>, read_at: Option<u64>) -> bool {
        let Some(reply) = sent.reply else { return true };
        !self.precedes_foreign_change(sent)
            || read_at.is_some_and(|read_at| reply.ordinal >= read_at)
    }

    /// Adds the data of a WRITE that is sent now.
    pub(super) fn send(&mut self, offset: u64, bytes: Bytes, origin: Origin<T>, sent_at: u64) {
        self.in_flight += 1;
        self.in_flight_epochs.add(origin.epoch);
        self.extents.insert(offset, SentExtent { bytes, origin, sent_at, reply: None });
    }

    /// Removes the data of the WRITE at `offset` after its reply.
    pub(super) fn take_answered(&mut self, offset: u64) -> SentExtent<T> {
        let sent = self.extents.remove(&offset).expect("only a WRITE that was sent is answered");
        self.in_flight -= 1;
        self.in_flight_epochs.remove(sent.origin.epoch);
        sent
    }

    /// Adds data as unstable.
    pub(super) fn add_unstable(&mut self, offset: u64, sent: SentExtent<T>, reply: UnstableReply) {
        self.unstable_epochs.add(sent.origin.epoch);
        self.unstable_bytes += sent.len();
        self.extents.insert(offset, SentExtent { reply: Some(reply), ..sent });
    }

    /// Removes the unstable extent at `offset`.
    pub(super) fn take_unstable(&mut self, offset: u64) -> SentExtent<T> {
        let sent = self.extents.remove(&offset).expect("the caller has found it");
        self.unstable_epochs.remove(sent.origin.epoch);
        self.unstable_bytes -= sent.len();
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

    /// The end of the last byte that is not superseded.
    pub(super) fn end(&self) -> Option<u64> {
        let mut readable = self.extents.iter().filter(|(_, sent)| self.is_readable(sent, None));
        readable.next_back().map(|(offset, sent)| offset + sent.len())
    }

    /// The end of the extent at `offset`, unless it is superseded.
    pub(super) fn covered_until(&self, offset: u64) -> Option<u64> {
        let (start, sent) = self.overlapping(offset, offset.saturating_add(1)).next()?;
        self.is_readable(sent, None).then(|| start + sent.len())
    }

    /// Copies the data at `offset` into `buf`, over the reply to a READ sent at `read_at`. Without
    /// one, and if a WRITE was answered before, the data is left out if it is superseded.
    pub(super) fn overlay(&self, offset: u64, buf: &mut [u8], read_at: Option<u64>) {
        let end = offset.saturating_add(buf.len() as u64);
        for (start, sent) in self.overlapping(offset, end) {
            if self.is_readable(sent, read_at) {
                copy_overlap(offset, buf, start, &sent.bytes);
            }
        }
    }

    /// Panics unless the sums match the extents and these do not overlap.
    #[cfg(test)]
    pub(super) fn verify(&self) {
        let (mut in_flight, mut unstable) = (Epochs::default(), Epochs::default());
        let (mut bytes, mut at) = (0, 0);
        for (offset, sent) in &self.extents {
            assert!(*offset >= at && sent.len() > 0, "sent data overlaps");
            at = offset + sent.len();
            match sent.reply {
                None => in_flight.add(sent.origin.epoch),
                Some(_) => {
                    bytes += sent.len();
                    unstable.add(sent.origin.epoch);
                }
            }
        }
        assert_eq!((bytes, &unstable), (self.unstable_bytes, &self.unstable_epochs));
        assert_eq!(in_flight, self.in_flight_epochs);
    }
}

impl<T: Clone> SentExtent<T> {
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.reply.is_none()
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
