use std::time::Duration;

use super::*;

/// A table, and the number of its next call.
struct Table {
    calls: Calls,
    next: u64,
    now: Instant,
}

impl Table {
    /// Numbers begin so that transaction ids wrap soon.
    fn new() -> Self {
        Self { calls: Calls::new(), next: (1 << 32) - 2, now: Instant::now() }
    }

    fn add(&mut self, payload: &'static [u8]) -> (u64, oneshot::Receiver<Result<Bytes>>) {
        let number = self.next;
        self.next += 1;
        let draft = Draft::new(vec![0; 12], Bytes::from_static(payload)).unwrap();
        (number, self.calls.add(number, draft.with_xid(xid(number)), self.now))
    }

    /// The transaction ids in the next batch.
    fn send(&mut self) -> Vec<u32> {
        let mut batch = self.calls.next_batch(self.now);
        let mut xids = Vec::new();
        while batch.has_remaining() {
            let mark = RecordMark::from_bytes(batch.get_u32().to_be_bytes());
            assert!(mark.last);
            xids.push(batch.get_u32());
            batch.advance(usize::try_from(mark.len).unwrap() - 4);
        }
        xids
    }
}

fn reply() -> Result<Bytes> {
    Ok(Bytes::from_static(b"reply"))
}

#[test]
fn calls_are_sent_in_order_and_once() {
    let mut table = Table::new();
    let _waiting: Vec<_> = (0..4).map(|_| table.add(b"")).collect();
    assert_eq!(table.send(), [u32::MAX - 1, u32::MAX, 0, 1]);
    assert_eq!(table.send(), []);
}

#[test]
fn replies_find_their_calls_in_any_order_and_over_the_wrap() {
    let mut table = Table::new();
    let (first, mut first_reply) = table.add(b"");
    let (second, mut second_reply) = table.add(b"");
    let (third, mut third_reply) = table.add(b"");
    assert!(!table.calls.answer(xid(first), reply()), "nothing was sent yet");
    table.send();
    assert!(table.calls.answer(xid(third), reply()));
    assert!(table.calls.answer(xid(first), reply()));
    assert!(!table.calls.answer(xid(first), reply()), "it was answered");
    assert!(!table.calls.answer(xid(third + 1), reply()), "there is no such call");
    assert!(!table.calls.answer(xid(first - 1), reply()), "nor was there this one");
    assert!(table.calls.answer(xid(second), reply()));
    for receiver in [&mut first_reply, &mut second_reply, &mut third_reply] {
        assert_eq!(receiver.try_recv().unwrap().unwrap(), "reply");
    }
    assert!(table.calls.is_empty());
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let mut table = Table::new();
    let waiting: Vec<_> = (0..IN_FLIGHT_MAX + 2).map(|_| table.add(b"")).collect();
    assert_eq!(table.send().len(), IN_FLIGHT_MAX);
    assert_eq!(table.send(), []);
    // A reply makes room, and so does a caller who goes away.
    assert!(table.calls.answer(xid(waiting[5].0), reply()));
    assert_eq!(table.send(), [xid(waiting[IN_FLIGHT_MAX].0)]);
    assert!(table.calls.forget(waiting[6].0));
    assert_eq!(table.send(), [xid(waiting[IN_FLIGHT_MAX + 1].0)]);
    assert!(!table.calls.forget(waiting[6].0));
}

#[test]
fn a_call_that_is_cancelled_in_line_is_never_sent() {
    let mut table = Table::new();
    let (first, _) = table.add(b"");
    let (second, _) = table.add(b"");
    assert!(table.calls.forget(first));
    assert_eq!(table.send(), [xid(second)]);
}

#[test]
fn all_that_is_unanswered_is_sent_again_in_its_order() {
    let mut table = Table::new();
    let waiting: Vec<_> = (0..IN_FLIGHT_MAX + 3).map(|_| table.add(b"")).collect();
    table.send();
    for answered in [0, 3, 4] {
        assert!(table.calls.answer(xid(waiting[answered].0), reply()));
    }
    assert!(table.calls.forget(waiting[1].0));
    table.calls.send_all_again();
    assert_eq!(table.calls.oldest_sent(), None);
    // The four that are gone leave room for the three that were in line, and for one more.
    let kept = (0..waiting.len()).filter(|place| ![0, 1, 3, 4].contains(place));
    assert_eq!(table.send(), kept.map(|place| xid(waiting[place].0)).collect::<Vec<_>>());
    let (last, _receiver) = table.add(b"");
    assert_eq!(table.send(), [xid(last)]);
}

#[test]
fn only_old_calls_fail() {
    let mut table = Table::new();
    let begin = table.now;
    let (_, mut old) = table.add(b"");
    table.send();
    table.now = begin + Duration::from_secs(2);
    let (_, mut new) = table.add(b"");
    assert_eq!(table.calls.oldest_handed_over(), Some(begin));
    assert_eq!(table.calls.oldest_sent(), Some(begin));
    table.calls.fail_older(begin + Duration::from_secs(1), &Error::TimedOut { server: "s".into() });
    assert!(matches!(old.try_recv().unwrap(), Err(Error::TimedOut { .. })));
    assert!(new.try_recv().is_err());
    assert_eq!(table.calls.oldest_handed_over(), Some(table.now));
    assert_eq!(table.calls.oldest_sent(), None, "it was never sent");
}

#[test]
fn payloads_are_padded_and_not_copied() {
    let mut table = Table::new();
    let _first = table.add(b"12345");
    let _second = table.add(b"1234");
    let mut batch = table.calls.next_batch(table.now);
    let mut slices = [IoSlice::new(&[]); 8];
    assert_eq!(batch.chunks_vectored(&mut slices), 5);
    assert_eq!(slices[..5].iter().map(|slice| slice.len()).collect::<Vec<_>>(), [12, 5, 3, 12, 4]);
    assert_eq!(batch.remaining(), 36);
    let bytes = batch.copy_to_bytes(36);
    assert_eq!(bytes[..4], [0x80, 0, 0, 16], "the mark counts the padding");
    assert_eq!(bytes[12..20], *b"12345\0\0\0");
    assert_eq!(bytes[20..24], [0x80, 0, 0, 12]);
    assert_eq!(bytes[32..], *b"1234");
}

#[test]
fn a_batch_ends_when_it_is_long() {
    static LONG: [u8; BATCH_BYTES] = [0; BATCH_BYTES];
    let mut table = Table::new();
    let waiting: Vec<_> = [b"".as_slice(), &LONG, b""].map(|payload| table.add(payload)).into();
    let xids: Vec<_> = waiting.iter().map(|(number, _)| xid(*number)).collect();
    assert_eq!(table.send(), xids[..2]);
    assert_eq!(table.send(), xids[2..]);
}

#[test]
fn the_same_call_anew_differs_in_its_id_only() {
    let first = Draft::new(vec![9; 12], Bytes::from_static(b"data")).unwrap().with_xid(1);
    let second = first.draft().with_xid(2);
    assert_eq!(first.head[..4], second.head[..4]);
    assert_eq!(first.head[4..8], [0, 0, 0, 1]);
    assert_eq!(second.head[4..8], [0, 0, 0, 2]);
    assert_eq!(first.head[8..], second.head[8..]);
    assert_eq!(first.payload.as_ptr(), second.payload.as_ptr());
}
