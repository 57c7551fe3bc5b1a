//! The flight recorder: what the last calls did, whether or not anything was traced.
//!
//! Each thread writes to the ring of its stripe. A record is written twice, when a call arrives and
//! when it ends, and each I/O event between them sets a bit, so that a call in progress is in it
//! too. All words are atomic. By the first one a reader, and a writer whose call was overtaken by a
//! whole ring of others, detect that the record is another call's by now.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use super::Event;
use crate::counters::{Operation, STRIPES, own_stripe};
use crate::moment::Moment;

/// Records of each stripe.
const RECORDS: usize = 512;
/// Words of a record: two pairs of cache lines hold it.
const WORDS: usize = 15;
/// Of them, those of the handle.
const HANDLE_WORDS: usize = 8;
/// Memory of all records, in bytes.
pub(crate) const RECORDER_BYTES: usize = STRIPES * RECORDS * (WORDS + 1) * 8;

/// In the first word: the number of the call in its stripe is in front of these.
const NUMBER_AT: u32 = 24;
/// The other words are being written.
const IS_BEING_WRITTEN: u64 = 1 << 23;
/// The call has ended.
const HAS_ENDED: u64 = 1 << 22;
const EVENTS: u64 = HAS_ENDED - 1;
/// Numbers go on from 0 after this.
const NUMBERS: u64 = u64::MAX >> NUMBER_AT;
/// No procedure that is counted.
const OTHER: u64 = 0xff;

/// The last calls of all threads.
pub(crate) struct Recorder(Box<[Stripe]>);

#[repr(align(128))]
struct Stripe {
    next: AtomicU64,
    records: Box<[Record]>,
}

#[repr(align(128))]
struct Record {
    state: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The record of a call: its number in the stripe, and the stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordId(u64);

impl RecordId {
    /// That of a call that has none.
    pub(crate) const NONE: Self = Self(u64::MAX);

    fn number(self) -> u64 {
        self.0 / STRIPES as u64
    }

    fn stripe(self) -> usize {
        usize::try_from(self.0 % STRIPES as u64).expect("it is less than STRIPES")
    }
}

/// How a call ended that has no results, as a status that no protocol has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Outcome {
    /// Answered from the reply cache.
    Replayed = 0xffff_ff00,
    /// Not answered, because a copy of it is at work.
    Dropped,
    /// `MSG_DENIED`, RFC 5531 §9.
    Denied,
    /// Accepted and not executed.
    NotExecuted,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Replayed, Self::Dropped, Self::Denied, Self::NotExecuted];

    /// The outcome that a recorded status means, if it is none of a protocol.
    pub(crate) fn of(status: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| *outcome as u32 == status)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Dropped => "dropped",
            Self::Denied => "denied",
            Self::NotExecuted => "not_executed",
        }
    }
}

/// A call that has arrived.
pub(crate) struct Begun<'a> {
    /// When its last byte was there.
    pub(crate) received: Moment,
    pub(crate) client: SocketAddr,
    pub(crate) xid: u32,
    /// `None` for what is not counted by procedure.
    pub(crate) operation: Option<Operation>,
    /// As it was received.
    pub(crate) handle: &'a [u8],
    /// Bytes of the file, or the cookie of a listing.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u32,
}

/// A call in the recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) received: Moment,
    pub(crate) queue: Duration,
    pub(crate) client: SocketAddr,
    pub(crate) xid: u32,
    pub(crate) operation: Option<Operation>,
    /// The beginning of it.
    pub(crate) handle: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The I/O of it, in the order of the events' table.
    pub(crate) events: Vec<Event>,
    /// Its status, and the time from its last byte to the reply; `None` while it is in progress.
    pub(crate) end: Option<(u32, Duration)>,
}

impl Default for Recorder {
    fn default() -> Self {
        let record =
            || Record { state: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] };
        let stripe = || Stripe {
            next: AtomicU64::new(1),
            records: (0..RECORDS).map(|_| record()).collect(),
        };
        Self((0..STRIPES).map(|_| stripe()).collect())
    }
}

impl Recorder {
    /// Records the arrival of a call in place of the oldest of the stripe.
    pub(crate) fn begin(&self, call: &Begun<'_>) -> RecordId {
        let stripe = own_stripe();
        let ring = &self.0[stripe];
        let number = ring.next.fetch_add(1, Ordering::Relaxed) & NUMBERS;
        let record = &ring.records[place_of(number)];
        let before = record.state.load(Ordering::Relaxed);
        // Another thread of the stripe, which was overtaken by all others, is in there.
        if before & IS_BEING_WRITTEN != 0 || !record.claim(before, number) {
            return RecordId::NONE;
        }
        let [high, low] = words_of(call.client.ip());
        let handle = &call.handle[..call.handle.len().min(8 * HANDLE_WORDS)];
        let operation = call.operation.map_or(OTHER, |operation| operation.place() as u64);
        let names = [
            u64::from(call.xid) << 32,
            u64::from(call.client.port()) << 16,
            (handle.len() as u64) << 8,
            operation,
        ];
        let head = [
            call.received.0,
            0,
            high,
            low,
            names.iter().fold(0, |word, part| word | part),
            call.offset,
            u64::from(call.len) << 32,
        ];
        let (words, handle_words) = record.words.split_at(WORDS - HANDLE_WORDS);
        words.iter().zip(head).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let (whole, rest) = handle.as_chunks();
        for (word, bytes) in handle_words.iter().zip(whole) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            handle_words[whole.len()].store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        record.state.store(number << NUMBER_AT, Ordering::Release);
        RecordId(number * STRIPES as u64 + stripe as u64)
    }

    /// Notes an event of a call, unless its record is gone.
    pub(crate) fn note(&self, id: RecordId, event: Event) {
        let Some(record) = self.record(id) else { return };
        let mut state = record.state.load(Ordering::Relaxed);
        while state >> NUMBER_AT == id.number() && state & IS_BEING_WRITTEN == 0 {
            let next = state | 1 << (event as u32);
            match record.state.compare_exchange_weak(
                state,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }

    /// Records how a call ended, unless its record is gone.
    pub(crate) fn end(&self, id: RecordId, status: u32, queue_ns: u64, latency_ns: u64) {
        let Some(record) = self.record(id) else { return };
        // A thread for which the call does not wait may note an event of it meanwhile.
        let state = loop {
            let state = record.state.load(Ordering::Relaxed);
            let is_own = state >> NUMBER_AT == id.number() && state & IS_BEING_WRITTEN == 0;
            if !is_own {
                return;
            }
            if record.replace(state, state | IS_BEING_WRITTEN) {
                break state;
            }
        };
        let (times, range) = (&record.words[1], &record.words[6]);
        times.store(microseconds(queue_ns) << 32 | microseconds(latency_ns), Ordering::Relaxed);
        range.store(range.load(Ordering::Relaxed) | u64::from(status), Ordering::Relaxed);
        record.state.store(state | HAS_ENDED, Ordering::Release);
    }

    /// The calls in the recorder, by the time of their arrival.
    pub(crate) fn calls(&self) -> Vec<Recorded> {
        let records = self.0.iter().flat_map(|stripe| &stripe.records);
        let mut calls: Vec<_> = records.filter_map(Record::read).collect();
        calls.sort_by_key(|call| call.received);
        calls
    }

    fn record(&self, id: RecordId) -> Option<&Record> {
        (id != RecordId::NONE).then(|| &self.0[id.stripe()].records[place_of(id.number())])
    }
}

impl Record {
    fn claim(&self, before: u64, number: u64) -> bool {
        self.replace(before, number << NUMBER_AT | IS_BEING_WRITTEN)
    }

    fn replace(&self, before: u64, after: u64) -> bool {
        // The words are written after it, as a reader that sees them must see the state too.
        let replaced =
            self.state.compare_exchange(before, after, Ordering::Acquire, Ordering::Relaxed);
        fence(Ordering::Release);
        replaced.is_ok()
    }

    /// `None` for one that is empty, or changed meanwhile.
    fn read(&self) -> Option<Recorded> {
        let state = self.state.load(Ordering::Acquire);
        if state == 0 || state & IS_BEING_WRITTEN != 0 {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let after = self.state.load(Ordering::Relaxed);
        if after >> NUMBER_AT != state >> NUMBER_AT || (after ^ state) & !EVENTS != 0 {
            return None;
        }
        let [received, times, high, low, names, offset, range, ..] = words;
        let handle = words[WORDS - HANDLE_WORDS..].iter().flat_map(|word| word.to_le_bytes());
        let handle_bytes = usize::from(low_u8(names >> 8));
        let address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        let has_happened = |event: &Event| after & 1 << (*event as u32) != 0;
        Some(Recorded {
            received: Moment(received),
            queue: Duration::from_micros(times >> 32),
            client: SocketAddr::new(IpAddr::V6(address).to_canonical(), low_u16(names >> 16)),
            xid: low_u32(names >> 32),
            operation: Operation::at_place(low_u8(names)),
            handle: handle.take(handle_bytes).collect(),
            offset,
            len: low_u32(range >> 32),
            events: Event::ALL.iter().copied().filter(has_happened).collect(),
            end: (state & HAS_ENDED != 0)
                .then(|| (low_u32(range), Duration::from_micros(u64::from(low_u32(times))))),
        })
    }
}

fn place_of(number: u64) -> usize {
    usize::try_from(number % RECORDS as u64).expect("it is less than RECORDS")
}

/// An address as one of version 6.
fn words_of(address: IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(address) => [0, 0xffff << 32 | u64::from(address.to_bits())],
        IpAddr::V6(address) => {
            let [high, low] = *address.octets().as_chunks::<8>().0 else { return [0; 2] };
            [high, low].map(u64::from_be_bytes)
        }
    }
}

fn low_u32(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).expect("32 bits are left")
}

fn low_u16(word: u64) -> u16 {
    u16::try_from(word & u64::from(u16::MAX)).expect("16 bits are left")
}

fn low_u8(word: u64) -> u8 {
    u8::try_from(word & u64::from(u8::MAX)).expect("8 bits are left")
}

/// At most the 71 minutes that 32 bits hold.
fn microseconds(nanoseconds: u64) -> u64 {
    (nanoseconds / 1000).min(u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use proto::nfs3;

    use super::*;

    fn begun(xid: u32, handle: &[u8]) -> Begun<'_> {
        Begun {
            received: Moment(u64::from(xid)),
            client: "[2001:db8::1]:700".parse().unwrap(),
            xid,
            operation: Some(Operation::nfs3(nfs3::Procedure::Read)),
            handle,
            offset: 1 << 40,
            len: 4096,
        }
    }

    #[test]
    fn a_call_is_recorded_from_its_arrival_to_its_end() {
        for handle in [&[][..], b"handle", &[7; 16], &[9; 64], &[9; 100]] {
            let recorder = Recorder::default();
            let id = recorder.begin(&begun(1, handle));
            recorder.note(id, Event::ReadIoDone);
            recorder.note(id, Event::ReadDirect);
            let expected = Recorded {
                received: Moment(1),
                queue: Duration::ZERO,
                client: "[2001:db8::1]:700".parse().unwrap(),
                xid: 1,
                operation: Some(Operation::nfs3(nfs3::Procedure::Read)),
                handle: handle[..handle.len().min(64)].to_vec(),
                offset: 1 << 40,
                len: 4096,
                events: vec![Event::ReadDirect, Event::ReadIoDone],
                end: None,
            };
            assert_eq!(recorder.calls(), std::slice::from_ref(&expected));
            let (queue, latency) = (Duration::from_micros(5), Duration::from_micros(70));
            recorder.end(id, 70, 5_000, 70_999);
            let ended = Recorded { queue, end: Some((70, latency)), ..expected };
            assert_eq!(recorder.calls(), [ended]);
        }
    }

    #[test]
    fn an_address_of_version_4_and_an_unknown_procedure_are_read_back() {
        let recorder = Recorder::default();
        let client = "192.0.2.1:65535".parse().unwrap();
        recorder.begin(&Begun { client, operation: None, ..begun(u32::MAX, b"") });
        let calls = recorder.calls();
        assert_eq!((calls[0].client, calls[0].operation), (client, None));
        assert_eq!(calls[0].xid, u32::MAX);
    }

    #[test]
    fn a_call_that_was_overtaken_changes_no_record_of_another() {
        let recorder = Recorder::default();
        let slow = recorder.begin(&begun(0, b"slow"));
        let others: Vec<_> = (1..=RECORDS).map(|_| recorder.begin(&begun(1, b"other"))).collect();
        recorder.note(slow, Event::ReadDirect);
        recorder.end(slow, 5, 0, 1_000_000);
        let calls = recorder.calls();
        assert_eq!(calls.len(), RECORDS);
        assert!(
            calls.iter().all(|call| call.xid == 1 && call.events.is_empty() && call.end.is_none())
        );
        recorder.end(others[0], 0, 0, 0);
        assert_eq!(recorder.calls().iter().filter(|call| call.end.is_some()).count(), 1);
    }

    #[test]
    fn a_call_ends_while_another_thread_notes_its_events() {
        let recorder = Recorder::default();
        for round in 0..200 {
            let ids: Vec<_> = (0..RECORDS).map(|_| recorder.begin(&begun(round, b""))).collect();
            std::thread::scope(|scope| {
                for event in [Event::ReadAhead, Event::ReadDirect] {
                    let (recorder, ids) = (&recorder, &ids);
                    scope.spawn(move || ids.iter().for_each(|id| recorder.note(*id, event)));
                }
                ids.iter().for_each(|id| recorder.end(*id, 0, 0, 0));
            });
            let in_progress = recorder.calls().into_iter().filter(|call| call.end.is_none());
            assert_eq!(in_progress.count(), 0, "in round {round}");
        }
    }

    #[test]
    fn readers_see_whole_records_while_threads_write() {
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for number in 0..20_000_u32 {
                        let xid = number * 4 + thread;
                        let handle = xid.to_le_bytes().repeat(8);
                        let id = recorder.begin(&Begun { len: xid, ..begun(xid, &handle) });
                        recorder.end(id, xid, 0, 0);
                    }
                });
            }
            for _ in 0..50 {
                for call in recorder.calls() {
                    assert_eq!(call.handle, call.xid.to_le_bytes().repeat(8));
                    assert!(call.len == call.xid && call.received.0 == u64::from(call.xid));
                    assert!(call.end.is_none_or(|(status, _)| status == call.xid));
                }
            }
        });
    }
}
