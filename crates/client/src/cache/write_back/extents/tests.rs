use proptest::prelude::*;
use proptest::sample::Index;
use proto::nfs3::{Procedure, Status, WccData};

use super::super::budget::{Account, WriteBudget};
use super::*;

const BLOCK: u32 = 16;
const SIZE: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User(u8);

impl Caller for User {
    fn same_user(&self, other: &Self) -> bool {
        self == other
    }
}

const ANNA: User = User(0);
const BELA: User = User(1);

/// Extents with a manual clock.
struct Bench {
    extents: Extents<User>,
    account: std::sync::Arc<Account>,
    now: Instant,
}

impl Bench {
    fn new(in_flight_max: usize) -> Self {
        Self::keeping(in_flight_max, 0)
    }

    /// Also keeps committed data, up to `kept_bytes`.
    fn keeping(in_flight_max: usize, kept_bytes: usize) -> Self {
        let limits = Limits {
            write_bytes: BLOCK,
            in_flight_max,
            commit_bytes: 1 << 20,
            pieces_max: 1 << 20,
        };
        let account = Account::new(&WriteBudget::new(1 << 20));
        Self {
            extents: Extents::new(limits, &KeptBudget::new(kept_bytes)),
            account,
            now: Instant::now(),
        }
    }

    fn write(&mut self, user: User, offset: u64, data: &[u8]) {
        let mut rooms = Rooms::new(&self.account, None);
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let placed = self.extents.write(&user, at, &data[done..], &mut rooms, || self.now);
            assert!(placed.count > 0 && placed.lacks.is_none());
            done += placed.count;
        }
        self.extents.verify();
    }

    /// Offers a block for adoption. Returns whether it was adopted.
    fn give(&mut self, user: User, offset: u64, data: &Bytes) -> bool {
        let mut rooms = Rooms::new(&self.account, None);
        let placed = self.extents.adopt(&user, offset, data, &mut rooms, || self.now);
        assert!(placed.is_none_or(|placed| placed.count == data.len() && placed.is_complete));
        self.extents.verify();
        placed.is_some()
    }

    /// The WRITEs that can be made now, as offset and length.
    fn calls(&mut self) -> Vec<(u64, usize)> {
        let mut calls = Vec::new();
        while let Some(action) = self.extents.next(self.now) {
            self.extents.verify();
            match action {
                Action::Write { offset, data, .. } => calls.push((offset, data.len())),
                Action::Commit { .. } => panic!("an unexpected COMMIT"),
            }
        }
        calls
    }

    fn written(&mut self, offset: u64, count: u32, committed: StableHow, verifier: u8) {
        let answer = write_ok(count, committed, WriteVerifier([verifier; 8]));
        self.extents.written(offset, Ok(answer), self.now).unwrap();
        self.extents.verify();
    }

    /// Whether the next call is a COMMIT.
    fn commits(&mut self) -> bool {
        matches!(self.extents.next(self.now), Some(Action::Commit { .. }))
    }

    fn committed(&mut self, verifier: u8) -> Result<()> {
        let result = self.extents.committed(Ok(WriteVerifier([verifier; 8])), self.now);
        self.extents.verify();
        result
    }
}

fn write_ok(count: u32, committed: StableHow, verifier: WriteVerifier) -> WriteOk {
    WriteOk { wcc: WccData::default(), count, committed, verifier }
}

#[test]
fn small_writes_become_full_aligned_ones() {
    let mut bench = Bench::new(4);
    for offset in 0..40 {
        bench.write(ANNA, offset, b"x");
    }
    assert_eq!(bench.calls(), [(0, 16), (16, 16)]);
    bench.extents.request(Goal::Answered);
    assert_eq!(bench.calls(), [(32, 8)]);
}

#[test]
fn an_adopted_block_is_not_copied() {
    let mut bench = Bench::new(4);
    let block = Bytes::from(vec![7; 16]);
    assert!(bench.give(ANNA, 16, &block));
    assert!(bench.account.held() >= 16);
    assert!(bench.give(ANNA, 0, &block));
    for _ in 0..2 {
        let Some(Action::Write { data, .. }) = bench.extents.next(bench.now) else { panic!() };
        assert_eq!((data.as_ptr(), data.len()), (block.as_ptr(), 16));
    }
    bench.written(16, 16, StableHow::FileSync, 1);
    bench.written(0, 16, StableHow::FileSync, 1);
    assert_eq!(bench.account.held(), 0);
}

#[test]
fn only_a_whole_block_without_other_data_is_adopted() {
    let mut bench = Bench::new(4);
    let block = Bytes::from(vec![7; 32]);
    assert!(!bench.give(ANNA, 8, &block.slice(..16)), "not aligned");
    assert!(!bench.give(ANNA, 0, &block), "two blocks");
    assert!(!bench.give(ANNA, 0, &block.slice(..15)), "not all of a block");
    bench.write(ANNA, 3, b"x");
    assert!(!bench.give(ANNA, 0, &block.slice(..16)), "there is something");
    let all = bench.account.try_room((1 << 20) - bench.account.held());
    assert!(!bench.give(ANNA, 16, &block.slice(..16)), "no room");
    drop(all);
    assert!(bench.give(ANNA, 16, &block.slice(..16)));
}

/// The writer and calls share the memory.
#[test]
fn an_adopted_block_is_not_modified() {
    let mut bench = Bench::new(4);
    let block = Bytes::from(vec![7; 16]);
    assert!(bench.give(ANNA, 0, &block));
    bench.write(ANNA, 4, &[1; 4]);
    assert_eq!(block, vec![7; 16]);
    let mut seen = [0; 16];
    bench.extents.overlay(0, &mut seen, None);
    assert_eq!(seen, [7, 7, 7, 7, 1, 1, 1, 1, 7, 7, 7, 7, 7, 7, 7, 7]);
    assert_eq!(bench.calls(), [(0, 4), (4, 4), (8, 8)]);
}

#[test]
fn writes_that_begin_within_a_block_are_aligned_from_the_next_on() {
    let mut bench = Bench::new(4);
    bench.write(ANNA, 10, &[1; 30]);
    bench.now += NEIGHBOUR_WAIT;
    assert_eq!(bench.calls(), [(10, 6), (16, 16)]);
}

#[test]
fn calls_in_flight_are_limited_and_ascend() {
    let mut bench = Bench::new(2);
    bench.write(ANNA, 0, &[1; 64]);
    assert_eq!(bench.calls(), [(0, 16), (16, 16)]);
    bench.written(16, 16, StableHow::FileSync, 1);
    assert_eq!(bench.calls(), [(32, 16)]);
    bench.written(0, 16, StableHow::FileSync, 1);
    bench.written(32, 16, StableHow::FileSync, 1);
    assert_eq!(bench.calls(), [(48, 16)]);
    bench.written(48, 16, StableHow::FileSync, 1);
    assert!(bench.extents.is_clean());
}

#[test]
fn a_complete_block_waits_briefly_for_its_predecessors() {
    let mut bench = Bench::new(4);
    bench.write(ANNA, 16, &[2; 16]);
    assert_eq!(bench.calls(), []);
    assert_eq!(bench.extents.wake_at(), Some(bench.now + NEIGHBOUR_WAIT));
    bench.write(ANNA, 0, &[1; 16]);
    assert_eq!(bench.calls(), [(0, 16), (16, 16)]);

    bench.write(ANNA, 48, &[4; 16]);
    assert_eq!(bench.calls(), []);
    bench.now += NEIGHBOUR_WAIT;
    assert_eq!(bench.calls(), [(48, 16)]);
    // A distant block does not wait.
    let far = 48 + 16 + (NEIGHBOUR_BLOCKS + 1) * 16;
    bench.write(ANNA, far, &[5; 16]);
    assert_eq!(bench.calls(), [(far, 16)]);
}

#[test]
fn blocks_written_slightly_out_of_order_are_sent_in_order() {
    for in_flight_max in [1, 2, 4, 20, 64] {
        let mut bench = Bench::new(in_flight_max);
        let (mut sent, mut answered) = (Vec::new(), 0);
        for block in (0..40).step_by(4).flat_map(|group| [3, 1, 0, 2].map(|at| group + at)) {
            bench.write(ANNA, block * 16, &[7; 16]);
            bench.now += NEIGHBOUR_WAIT / 8;
            sent.extend(bench.calls());
            if block % 3 == 0 && answered < sent.len() {
                bench.written(sent[answered].0, 16, StableHow::FileSync, 1);
                answered += 1;
            }
        }
        while answered < sent.len() {
            bench.written(sent[answered].0, 16, StableHow::FileSync, 1);
            answered += 1;
            sent.extend(bench.calls());
        }
        let wanted: Vec<_> = (0..40).map(|block| (block * 16, 16)).collect();
        assert_eq!(sent, wanted, "{in_flight_max} in flight");
    }
}

#[test]
fn a_partial_block_is_sent_when_it_is_old() {
    let mut bench = Bench::new(4);
    bench.write(ANNA, 3, b"abc");
    let begun = bench.now;
    assert_eq!((bench.calls(), bench.extents.wake_at()), (vec![], Some(begun + AGE_MAX)));
    bench.now += AGE_MAX / 2;
    bench.write(ANNA, 40, b"d");
    bench.write(ANNA, 6, b"e");
    bench.now = begun + AGE_MAX;
    assert_eq!(bench.calls(), [(3, 4)]);
    bench.now += AGE_MAX / 2;
    assert_eq!(bench.calls(), [(40, 1)]);
    assert_eq!(bench.extents.wake_at(), None);
    // And it is committed when it is old.
    bench.written(3, 4, StableHow::Unstable, 1);
    bench.written(40, 1, StableHow::Unstable, 1);
    assert_eq!(bench.extents.wake_at(), Some(bench.now + AGE_MAX));
    assert!(!bench.commits());
    bench.now += AGE_MAX;
    assert!(bench.commits() && !bench.commits());
    bench.committed(1).unwrap();
    assert!(bench.extents.is_clean());
}

#[test]
fn adjacent_pieces_are_sent_together_in_any_order_of_writing() {
    let mut bench = Bench::new(8);
    for offset in [5, 4, 9, 0, 8, 6] {
        bench.write(ANNA, offset, &[b'a' + u8::try_from(offset).unwrap()]);
    }
    bench.extents.request(Goal::Answered);
    assert_eq!(bench.calls(), [(0, 1), (4, 3), (8, 2)]);
    let mut bench = Bench::new(8);
    for offset in (0..16).rev() {
        bench.write(ANNA, offset, &[0]);
    }
    // The first piece reached the end of its block, so it was taken as complete.
    bench.now += NEIGHBOUR_WAIT;
    assert_eq!(bench.calls(), [(0, 16)]);
}

#[test]
fn data_of_two_users_never_shares_a_write() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 8]);
    bench.write(BELA, 8, &[2; 4]);
    bench.write(BELA, 2, &[3; 2]);
    bench.write(ANNA, 12, &[4; 4]);
    bench.extents.request(Goal::Answered);
    let mut sent = Vec::new();
    while let Some(Action::Write { caller, offset, data, .. }) = bench.extents.next(bench.now) {
        sent.push((caller, offset, data.to_vec()));
    }
    let [one, two, three, four] = [1, 2, 3, 4];
    assert_eq!(
        sent,
        [
            (ANNA, 0, vec![one; 2]),
            (BELA, 2, vec![three; 2]),
            (ANNA, 4, vec![one; 4]),
            (BELA, 8, vec![two; 4]),
            (ANNA, 12, vec![four; 4]),
        ]
    );
}

#[test]
fn a_write_over_data_in_flight_is_sent_after_its_reply() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 16]);
    assert_eq!(bench.calls(), [(0, 16)]);
    bench.write(ANNA, 4, &[2; 4]);
    bench.extents.request(Goal::Answered);
    assert_eq!(bench.calls(), []);
    let mut seen = [0; 16];
    bench.extents.overlay(0, &mut seen, None);
    assert_eq!(seen, [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]);
    bench.written(0, 16, StableHow::Unstable, 1);
    assert_eq!(bench.calls(), [(4, 4)]);
}

#[test]
fn the_rest_of_a_short_write_is_sent_again() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 16]);
    assert_eq!(bench.calls(), [(0, 16)]);
    bench.written(0, 5, StableHow::Unstable, 1);
    assert_eq!(bench.calls(), [(5, 11)]);
    bench.write(ANNA, 6, &[2; 2]);
    bench.written(5, 4, StableHow::Unstable, 1);
    assert_eq!(bench.calls(), [(6, 2), (9, 7)]);
    for count in [0, 17] {
        let mut bench = Bench::new(8);
        bench.write(ANNA, 0, &[1; 16]);
        assert_eq!(bench.calls(), [(0, 16)]);
        let answer = write_ok(count, StableHow::FileSync, WriteVerifier::default());
        let outcome = bench.extents.written(0, Ok(answer), bench.now);
        assert!(matches!(outcome, Err(Error::Malformed { .. })), "{count}: {outcome:?}");
        assert!(bench.extents.is_clean());
    }
}

#[test]
fn data_lost_by_a_restarted_server_is_sent_again() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 48]);
    assert_eq!(bench.calls().len(), 3);
    bench.written(0, 16, StableHow::Unstable, 1);
    // The next reply shows the restart.
    bench.written(16, 16, StableHow::Unstable, 2);
    assert_eq!(bench.calls(), [(0, 16)]);
    bench.written(32, 16, StableHow::DataSync, 2);
    bench.written(0, 16, StableHow::Unstable, 2);
    bench.extents.request(Goal::Committed);
    assert!(bench.commits());
    // And the reply to the COMMIT shows another one.
    bench.committed(3).unwrap();
    assert_eq!(bench.calls(), [(0, 16), (16, 16)]);
    bench.written(0, 16, StableHow::Unstable, 3);
    bench.written(16, 16, StableHow::Unstable, 3);
    assert!(bench.commits());
    bench.committed(3).unwrap();
    assert!(bench.extents.is_clean());
}

#[test]
fn repeated_loss_is_an_error() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 16]);
    bench.write(ANNA, 20, &[1; 1]);
    bench.extents.request(Goal::Committed);
    for round in 0.. {
        assert!(round <= LOSSES_MAX);
        for (offset, len) in bench.calls() {
            bench.written(offset, u32::try_from(len).unwrap(), StableHow::Unstable, 0);
        }
        assert!(bench.commits());
        if let Err(error) = bench.committed(1) {
            assert!(matches!(error, Error::Forgetful { times } if times == LOSSES_MAX + 1));
            break;
        }
    }
    assert!(bench.extents.is_clean());
    assert_eq!(bench.extents.superseded(), Some(ANNA), "readers may have cached it");
}

#[test]
fn pieces_that_short_replies_leave_are_committed_before_they_are_too_many() {
    let mut bench = Bench::new(8);
    bench.extents.limits.pieces_max = 4;
    bench.write(ANNA, 0, &[1; 16]);
    for (offset, len) in [(0, 16), (1, 15), (2, 14), (3, 13)] {
        if offset == 2 {
            assert!(bench.commits());
        }
        assert_eq!(bench.calls(), [(offset, len)]);
        bench.written(offset, 1, StableHow::Unstable, 1);
    }
    assert_eq!(bench.calls(), []);
    bench.committed(1).unwrap();
    assert!(bench.commits());
    assert_eq!(bench.calls(), [(4, 12)]);
}

#[test]
fn a_commit_covers_the_writes_answered_before_it() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 32]);
    assert_eq!(bench.calls().len(), 2);
    bench.written(0, 16, StableHow::Unstable, 1);
    bench.now += AGE_MAX;
    assert!(bench.commits());
    bench.written(16, 16, StableHow::Unstable, 1);
    bench.committed(1).unwrap();
    assert_eq!((bench.extents.held_until(0), bench.extents.held_until(16)), (0, 32));
    assert!(!bench.extents.is_clean());
}

#[test]
fn a_single_write_needs_no_commit() {
    let stable = |bench: &mut Bench| match bench.extents.next(bench.now) {
        Some(Action::Write { stable, .. }) => stable,
        _ => panic!("no WRITE"),
    };
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 3]);
    bench.extents.request(Goal::Committed);
    assert_eq!(stable(&mut bench), StableHow::FileSync);
    // The first is still in flight: a COMMIT can cover both.
    bench.write(ANNA, 20, &[1; 3]);
    bench.extents.request(Goal::Committed);
    assert_eq!(stable(&mut bench), StableHow::Unstable);
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 3]);
    bench.extents.request(Goal::Answered);
    assert_eq!(stable(&mut bench), StableHow::Unstable);
}

#[test]
fn a_failed_write_or_commit_drops_its_data() {
    let refusal = |status| Error::Nfs { procedure: Procedure::Write, status };
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 32]);
    assert_eq!(bench.calls().len(), 2);
    let outcome = bench.extents.written(0, Err(refusal(Status::Nospc)), bench.now);
    assert!(outcome.unwrap_err().is(Status::Nospc));
    assert_eq!((bench.extents.held_until(0), bench.extents.held_until(16)), (0, 32));
    bench.written(16, 16, StableHow::Unstable, 1);
    bench.extents.request(Goal::Committed);
    assert!(bench.commits());
    let outcome = bench.extents.committed(Err(refusal(Status::Io)), bench.now);
    assert!(outcome.unwrap_err().is(Status::Io));
    assert!(bench.extents.is_clean());
}

#[test]
fn a_continuous_writer_does_not_delay_a_request() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 16]);
    assert_eq!(bench.calls(), [(0, 16)]);
    let [flush, sync] = [Goal::Answered, Goal::Committed].map(|goal| bench.extents.request(goal));
    bench.write(ANNA, 0, &[2; 16]);
    bench.written(0, 16, StableHow::Unstable, 1);
    assert!(bench.extents.is_reached(Goal::Answered, flush));
    // Newer data is not sent over the data that the request will commit.
    assert!(bench.commits());
    assert_eq!(bench.calls(), []);
    bench.committed(1).unwrap();
    assert!(bench.extents.is_reached(Goal::Committed, sync));
    assert_eq!(bench.calls(), [(0, 16)]);
}

#[test]
fn the_end_and_the_held_ranges_are_known() {
    let mut bench = Bench::new(8);
    assert_eq!((bench.extents.end(), bench.extents.held_until(7)), (None, 7));
    bench.write(ANNA, 10, &[1; 30]);
    bench.now += NEIGHBOUR_WAIT;
    assert_eq!(bench.calls(), [(10, 6), (16, 16)]);
    assert_eq!((bench.extents.end(), bench.extents.held_until(10)), (Some(40), 40));
    assert_eq!((bench.extents.held_until(9), bench.extents.held_until(40)), (9, 40));
    assert!(!bench.extents.cut(20), "a WRITE beyond is under way");
    bench.written(16, 16, StableHow::Unstable, 1);
    assert!(bench.extents.cut(20));
    bench.extents.verify();
    assert_eq!((bench.extents.end(), bench.extents.held_until(10)), (Some(20), 20));
}

#[test]
fn data_sent_before_a_foreign_change_is_read_from_the_server_once_it_is_committed() {
    let overlaid = |bench: &Bench, mark| {
        let mut seen = [9; 48];
        bench.extents.overlay(0, &mut seen, mark);
        [seen[0], seen[16], seen[32]]
    };
    let mut bench = Bench::keeping(8, 1000);
    bench.write(ANNA, 0, &[1; 48]);
    assert_eq!(bench.calls().len(), 3);
    bench.written(0, 16, StableHow::Unstable, 1);
    let early = bench.extents.mark();
    bench.extents.note_foreign_change();
    let place = bench.extents.await_foreign_change();
    // The server may have lost it.
    assert!(bench.commits(), "without a request");
    bench.written(32, 16, StableHow::Unstable, 1);
    assert_eq!((bench.extents.held_until(0), bench.extents.end()), (48, Some(48)));
    assert_eq!(overlaid(&bench, None), [1; 3]);
    bench.committed(1).unwrap();
    assert_eq!(overlaid(&bench, None), [9, 1, 1]);
    assert_eq!(bench.extents.superseded(), Some(ANNA));
    bench.extents.superseded_noted();
    assert!(bench.extents.hides(place));
    // The COMMIT did not cover the third WRITE, and the second is in flight.
    assert!(bench.commits());
    bench.committed(1).unwrap();
    bench.written(16, 16, StableHow::FileSync, 1);
    let late = bench.extents.mark();
    assert!(bench.extents.hides(place), "caches of it");
    bench.extents.superseded_noted();
    assert!(!bench.extents.hides(place) && bench.extents.is_clean());
    assert_eq!((overlaid(&bench, None), bench.extents.end()), ([9; 3], None), "nothing is kept");
    assert_eq!(overlaid(&bench, Some(early)), [9, 1, 1], "its reply may lack two WRITEs");
    assert_eq!(overlaid(&bench, Some(late)), [9; 3]);
    bench.extents.unmark(early);
    bench.extents.unmark(late);

    // Later data is kept.
    bench.write(ANNA, 0, &[2; 3]);
    bench.extents.request(Goal::Committed);
    assert_eq!(bench.calls(), [(0, 3)]);
    assert!(!bench.extents.hides(place));
    bench.written(0, 3, StableHow::FileSync, 1);
    assert_eq!((overlaid(&bench, None), bench.extents.superseded()), ([2, 9, 9], None));
}

#[test]
fn data_committed_during_a_read_is_not_copied_over_a_reply_that_has_it() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 32]);
    assert_eq!(bench.calls().len(), 2);
    bench.written(0, 16, StableHow::Unstable, 1);
    let mark = bench.extents.mark();
    bench.written(16, 16, StableHow::Unstable, 1);
    bench.extents.request(Goal::Committed);
    assert!(bench.commits());
    bench.committed(1).unwrap();
    // Another client has written before the server executes the READ, whose reply shows it.
    bench.extents.note_foreign_change();
    let mut seen = [9; 32];
    bench.extents.overlay(0, &mut seen, Some(mark));
    assert_eq!(seen, [[9; 16], [1; 16]].concat()[..]);
    bench.extents.unmark(mark);
}

#[test]
fn data_lost_before_a_foreign_change_is_read_and_sent_again() {
    let mut bench = Bench::new(8);
    bench.write(ANNA, 0, &[1; 32]);
    assert_eq!(bench.calls().len(), 2);
    bench.written(0, 16, StableHow::Unstable, 1);
    bench.extents.note_foreign_change();
    let place = bench.extents.await_foreign_change();
    bench.written(16, 16, StableHow::Unstable, 1);
    assert!(bench.commits());
    // Newer data beside it, and the reply of the restarted server.
    bench.write(BELA, 8, &[2; 4]);
    bench.extents.request(Goal::Answered);
    bench.committed(2).unwrap();
    assert_eq!((bench.extents.held_until(0), bench.extents.end()), (32, Some(32)));
    assert!(!bench.extents.hides(place), "what is sent again is newer");
    assert_eq!(bench.calls(), [(0, 8), (8, 4), (12, 4), (16, 16)]);
    for (offset, count) in [(0, 8), (8, 4), (12, 4), (16, 16)] {
        bench.written(offset, count, StableHow::Unstable, 2);
    }
    assert_eq!((bench.extents.held_until(0), bench.extents.superseded()), (32, None));
}

/// A server in memory that loses unstable data in a restart.
#[derive(Clone)]
struct Server {
    stable: Vec<u8>,
    now: Vec<u8>,
    verifier: u8,
}

#[derive(Clone, Debug)]
enum Op {
    Write { user: u8, offset: usize, len: usize },
    Give { user: u8, block: usize },
    Call,
    Answer { which: Index, keep: Index, stable: bool },
    Commit,
    Restart,
    ForeignChange,
    Request(bool),
    Wait(Duration),
    Cut(usize),
    BeginRead,
    EndRead(Index),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..2u8, 0..SIZE, 1..40usize).prop_map(|(user, offset, len)| {
            Op::Write { user, offset, len: len.min(SIZE - offset) }
        }),
        4 => (0..2u8, 0..SIZE / 16).prop_map(|(user, block)| Op::Give { user, block }),
        6 => Just(Op::Call),
        6 => (any::<Index>(), any::<Index>(), prop::bool::weighted(0.2))
            .prop_map(|(which, keep, stable)| Op::Answer { which, keep, stable }),
        4 => Just(Op::Commit),
        1 => Just(Op::Restart),
        1 => Just(Op::ForeignChange),
        2 => any::<bool>().prop_map(Op::Request),
        1 => prop_oneof![Just(NEIGHBOUR_WAIT), Just(AGE_MAX)].prop_map(Op::Wait),
        1 => (0..SIZE).prop_map(Op::Cut),
        1 => Just(Op::BeginRead),
        1 => any::<Index>().prop_map(Op::EndRead),
    ]
}

/// A file, its server, and the expected state.
struct World {
    bench: Bench,
    server: Server,
    /// The file as written. The data of a write is its number, so of two bytes the larger is newer.
    file: Vec<u8>,
    users: Vec<User>,
    /// WRITEs in flight.
    writes: Vec<(u64, Bytes, StableHow)>,
    commit: Commit,
    /// Requests, and the data to be stable when they are fulfilled.
    requests: Vec<(Goal, u64, Vec<u8>)>,
    /// READs in flight, with the server's data.
    reads: Vec<(Mark, Vec<u8>)>,
}

/// The COMMIT in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commit {
    None,
    Sent,
    /// Executed, under this verifier. It does not cover data written until its reply.
    Done(u8),
}

impl World {
    fn new(in_flight_max: usize) -> Self {
        let mut bench = Bench::keeping(in_flight_max, 100);
        bench.extents.limits.pieces_max = 8;
        let server = Server { stable: vec![0; SIZE], now: vec![0; SIZE], verifier: 0 };
        Self {
            bench,
            server,
            file: vec![0; SIZE],
            users: vec![ANNA],
            writes: Vec::new(),
            commit: Commit::None,
            requests: Vec::new(),
            reads: Vec::new(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write { user, offset, len } => self.write(User(user), offset, len),
            Op::Give { user, block } => self.give(User(user), block * 16),
            Op::Call => self.call(),
            Op::Answer { which, keep, stable } if !self.writes.is_empty() => {
                let which = which.index(self.writes.len());
                let count = keep.index(self.writes[which].1.len() * 3) + 1;
                self.answer(which, count, stable);
            }
            Op::Commit => self.advance_commit(),
            Op::Answer { .. } => {}
            // Of something else in the file, or it is a restart.
            Op::ForeignChange => self.bench.extents.note_foreign_change(),
            Op::Restart => {
                self.server.now = self.server.stable.clone();
                self.server.verifier += 1;
            }
            Op::Request(commit) => {
                let goal = if commit { Goal::Committed } else { Goal::Answered };
                let epoch = self.bench.extents.request(goal);
                self.requests.push((goal, epoch, self.file.clone()));
            }
            Op::Wait(time) => self.bench.now += time,
            Op::Cut(size) => self.cut(size),
            Op::BeginRead => {
                self.reads.push((self.bench.extents.mark(), self.server.now.clone()));
            }
            Op::EndRead(which) if !self.reads.is_empty() => {
                let (mark, mut seen) = self.reads.swap_remove(which.index(self.reads.len()));
                self.bench.extents.overlay(0, &mut seen, Some(mark));
                assert_eq!(seen, self.file, "an old answer was not brought up to date");
                self.bench.extents.unmark(mark);
            }
            Op::EndRead(_) => {}
        }
        self.check();
    }

    fn write(&mut self, user: User, offset: usize, len: usize) {
        let number = u8::try_from(self.users.len()).expect("a test has no more than 255 writes");
        self.users.push(user);
        self.file[offset..offset + len].fill(number);
        self.bench.write(user, offset as u64, &vec![number; len]);
    }

    /// Offers a block for adoption, otherwise writes it.
    fn give(&mut self, user: User, offset: usize) {
        let number = u8::try_from(self.users.len()).expect("a test has no more than 255 writes");
        let data = Bytes::from(vec![number; 16]);
        if self.bench.give(user, offset as u64, &data) {
            self.users.push(user);
            self.file[offset..offset + 16].fill(number);
        } else {
            self.write(user, offset, 16);
        }
    }

    fn call(&mut self) {
        match self.bench.extents.next(self.bench.now) {
            Some(Action::Write { caller, offset, data, stable, .. }) => {
                let end = offset + data.len() as u64;
                assert!(!data.is_empty() && offset / 16 == (end - 1) / 16);
                for (other, bytes, _) in &self.writes {
                    let apart = end <= *other || *other + bytes.len() as u64 <= offset;
                    assert!(apart, "two WRITEs of the same bytes are in flight");
                }
                let is_own = |number: &u8| self.users[usize::from(*number)] == caller;
                assert!(data.iter().all(is_own), "data of another user");
                self.writes.push((offset, data, stable));
                assert!(self.writes.len() <= self.bench.extents.limits.in_flight_max);
            }
            Some(Action::Commit { .. }) => {
                assert!(self.commit == Commit::None);
                self.commit = Commit::Sent;
            }
            None => {}
        }
    }

    /// The server executes a WRITE, the first `count` bytes of it.
    fn answer(&mut self, which: usize, count: usize, stable: bool) {
        let (offset, data, wanted) = self.writes.swap_remove(which);
        let count = count.min(data.len());
        let range = index(offset)..index(offset) + count;
        self.server.now[range.clone()].copy_from_slice(&data[..count]);
        let committed = if stable { StableHow::DataSync } else { wanted };
        if committed != StableHow::Unstable {
            self.server.stable[range].copy_from_slice(&data[..count]);
        }
        let count = u32::try_from(count).unwrap();
        let answer = write_ok(count, committed, WriteVerifier([self.server.verifier; 8]));
        match self.bench.extents.written(offset, Ok(answer), self.bench.now) {
            Ok(()) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn advance_commit(&mut self) {
        self.commit = match self.commit {
            Commit::None => Commit::None,
            Commit::Sent => {
                self.server.stable = self.server.now.clone();
                Commit::Done(self.server.verifier)
            }
            Commit::Done(verifier) => {
                let verifier = WriteVerifier([verifier; 8]);
                self.bench.extents.committed(Ok(verifier), self.bench.now).unwrap();
                Commit::None
            }
        };
    }

    fn cut(&mut self, size: usize) {
        if !self.bench.extents.cut(size as u64) {
            return;
        }
        let reads = self.reads.iter_mut().map(|(_, seen)| seen);
        let wanted = self.requests.iter_mut().map(|(_, _, wanted)| wanted);
        let Server { stable, now, .. } = &mut self.server;
        for bytes in reads.chain(wanted).chain([stable, now, &mut self.file]) {
            bytes[size..].fill(0);
        }
    }

    /// Checks the invariants.
    fn check(&mut self) {
        self.bench.extents.verify();
        let mut seen = self.server.now.clone();
        self.bench.extents.overlay(0, &mut seen, None);
        assert_eq!(seen, self.file, "a reader does not see what was written");
        let extents = &self.bench.extents;
        self.requests.retain(|(goal, epoch, wanted)| {
            let is_reached = extents.is_reached(*goal, *epoch);
            if is_reached && *goal == Goal::Committed {
                let is_newer = |(stable, wanted): (&u8, &u8)| stable >= wanted;
                assert!(self.server.stable.iter().zip(wanted).all(is_newer), "a sync lied");
            }
            !is_reached
        });
    }

    /// Makes and answers all calls until no data is left.
    fn finish(mut self) {
        self.apply(&Op::Request(true));
        for _ in 0..1000 {
            self.call();
            if self.commit != Commit::None {
                self.advance_commit();
            } else if !self.writes.is_empty() {
                self.answer(0, usize::MAX, false);
            }
            self.check();
            if self.bench.extents.is_clean() {
                assert_eq!(self.server.stable, self.file);
                assert!(self.requests.is_empty());
                self.reads.drain(..).for_each(|(mark, _)| self.bench.extents.unmark(mark));
                assert_eq!(self.bench.account.held(), 0, "room is not given back");
                return;
            }
        }
        panic!("it does not come to an end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn data_is_not_lost_reordered_or_hidden(
        ops in prop::collection::vec(op(), 1..200),
        in_flight_max in 1..6usize,
    ) {
        let mut world = World::new(in_flight_max);
        // More losses are an error, which another test covers.
        let mut restarts = LOSSES_MAX;
        for op in &ops {
            restarts -= u32::from(matches!(op, Op::Restart) && restarts > 0);
            if restarts > 0 || !matches!(op, Op::Restart) {
                world.apply(op);
            }
        }
        world.finish();
    }
}
