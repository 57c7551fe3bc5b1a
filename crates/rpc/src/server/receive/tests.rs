use std::future::Future;
use std::task::ready;

use proptest::prelude::*;
use proto::nfs3::{self, FileHandle, StableHow, WriteArgs, WriteHead, WriteScan};
use proto::oncrpc::{AuthSys, CallHeader, Credential, Gids, call_header_len, call_target};
use proto::xdr::{Encode, Writer};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::record::in_fragments;
use crate::server::staging::poll_read;

/// The capacity of the stream between a receiver and its peer, in each direction.
const STREAM_BYTES: usize = 256 * 1024;
const TRANSFER_MAX: u32 = 64 * 1024;
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

impl Source for DuplexStream {
    fn poll_read_both(
        &mut self,
        context: &mut Context<'_>,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        let read = ready!(poll_read(self, context, first))?;
        if read < first.len() {
            return Poll::Ready(Ok(read));
        }
        match poll_read(self, context, second) {
            Poll::Ready(more) => Poll::Ready(more.map(|more| read + more)),
            Poll::Pending => Poll::Ready(Ok(read)),
        }
    }
}

/// A receiver and its peer.
struct Rig {
    peer: DuplexStream,
    receiver: Receiver<DuplexStream>,
    buffers: Arc<BufferPool>,
    slots: Arc<Slots>,
}

impl Rig {
    fn new() -> Self {
        Self::with(IDLE_TIMEOUT)
    }

    fn with(idle_timeout: Duration) -> Self {
        let (peer, stream) = duplex(STREAM_BYTES);
        let buffers = BufferPool::new(1 << 20);
        let peer_wait = Arc::new(PeerWait::new(Instant::now()));
        let slots = Slots::new(2);
        let receiver = Receiver::new(
            stream,
            1,
            Arc::clone(&buffers),
            peer_wait,
            idle_timeout,
            Arc::clone(&slots),
        );
        Self { peer, receiver, buffers, slots }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.peer.write_all(bytes).await.unwrap();
    }

    /// Sends while the record is received, for it may not fit the stream.
    async fn exchange(&mut self, bytes: &[u8]) -> Result<Option<Record>, ReceiveError> {
        let (_, record) = tokio::join!(self.peer.write_all(bytes), next_of(&mut self.receiver));
        record
    }

    async fn next(&mut self) -> Record {
        next_of(&mut self.receiver).await.unwrap().expect("a record")
    }
}

async fn next_of(receiver: &mut Receiver<DuplexStream>) -> Result<Option<Record>, ReceiveError> {
    receiver.next(|| TRANSFER_MAX, layout).await
}

/// Finds the data of a WRITE.
fn layout(head: &[u8]) -> Layout {
    let write = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Write.code());
    if call_target(head) != Some(write) {
        return Layout::Head;
    }
    let arguments_at = call_header_len(head);
    let Some(arguments) = head.get(arguments_at..) else {
        return Layout::HeadUntil(arguments_at);
    };
    match WriteHead::scan(arguments) {
        WriteScan::Needs(len) => Layout::HeadUntil(arguments_at + len),
        WriteScan::Head(write) => {
            let head_bytes = arguments_at + write.wire_bytes();
            let (len, offset) = (write.data_len, write.offset);
            Layout::Payload { head_bytes, len, offset, device: (0, 0), has_tail: false }
        }
        WriteScan::Malformed(_) => Layout::Head,
    }
}

/// As [`layout`], of a call that goes on behind the data.
fn with_tail(head: &[u8]) -> Layout {
    match layout(head) {
        Layout::Payload { head_bytes, len, offset, .. } => {
            Layout::Payload { head_bytes, len, offset, device: (0, 0), has_tail: true }
        }
        other => other,
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn call(procedure: nfs3::Procedure, args: &impl Encode) -> Vec<u8> {
    let gids = Gids::new(&[1, 2, 3]).unwrap();
    let sys = AuthSys { stamp: 0, machine_name: b"client", uid: 1, gid: 1, gids };
    let credential = Credential::Sys(sys);
    let (program, version, procedure) = (nfs3::PROGRAM, nfs3::VERSION, procedure.code());
    let mut w = Writer::new();
    CallHeader { xid: 7, program, version, procedure, credential, verifier_flavor: 0 }
        .encode(&mut w);
    args.encode(&mut w);
    w.into_vec()
}

fn write_call(offset: u64, data: &[u8]) -> Vec<u8> {
    let file = FileHandle::new(&[9; 30]).unwrap();
    let (count, stable) = (u32::try_from(data.len()).unwrap(), StableHow::Unstable);
    call(nfs3::Procedure::Write, &WriteArgs { file, offset, count, stable, data })
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251).to_le_bytes()[0] + 1).collect()
}

/// Bytes of `write_call` in front of the data.
fn head_len(call: &[u8], data: &[u8]) -> usize {
    call.len() - data.len().next_multiple_of(4)
}

#[track_caller]
fn assert_is_write(record: &Record, call: &[u8], offset: u64, data: &[u8]) {
    assert_eq!(record.head, call[..head_len(call, data)]);
    assert_eq!(record.trailing_bytes, 0);
    let payload = record.payload.as_ref().expect("the data");
    assert_eq!(payload.as_slice(), data);
    let address = payload.as_slice().as_ptr().addr();
    assert_eq!(address % BUFFER_ALIGN, usize::try_from(offset).unwrap() % BUFFER_ALIGN);
}

#[test]
fn a_write_in_two_fragments_is_the_same_wherever_it_is_cut() {
    run(async {
        let mut rig = Rig::new();
        let data = data(13);
        let call = write_call(5, &data);
        for cut in 1..=call.len() {
            rig.send(&in_fragments(&call, &[cut])).await;
            assert_is_write(&rig.next().await, &call, 5, &data);
        }
        let every: Vec<usize> = (1..call.len()).collect();
        rig.send(&in_fragments(&call, &every)).await;
        assert_is_write(&rig.next().await, &call, 5, &data);
    });
}

#[test]
fn a_write_in_two_segments_is_the_same_wherever_it_is_cut() {
    run(async {
        let mut rig = Rig::new();
        let data = data(13);
        let call = write_call(5, &data);
        // Marks are cut as well: the record is in two fragments.
        let bytes = in_fragments(&call, &[call.len() - 6]);
        for cut in 1..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let (peer, receiver) = (&mut rig.peer, &mut rig.receiver);
            let send = async {
                peer.write_all(first).await.unwrap();
                // The receiver takes the first part meanwhile.
                tokio::task::yield_now().await;
                peer.write_all(second).await.unwrap();
            };
            let ((), record) = tokio::join!(send, next_of(receiver));
            assert_is_write(&record.unwrap().unwrap(), &call, 5, &data);
        }
    });
}

#[test]
fn data_is_received_congruent_to_its_offset() {
    run(async {
        let mut rig = Rig::new();
        for offset in [0, 1, 511, 512, 4095, 4096, 4097, 1 << 40, (1 << 40) + 47_008] {
            for len in [1, 4, 4096, 5000, 65_536] {
                let data = data(len);
                let call = write_call(offset, &data);
                let record = rig.exchange(&in_fragments(&call, &[])).await.unwrap().unwrap();
                assert_is_write(&record, &call, offset, &data);
            }
        }
        assert_eq!(rig.buffers.bytes_in_use(), 0);
    });
}

#[test]
fn only_the_first_write_of_a_stream_is_moved() {
    run(async {
        let mut rig = Rig::new();
        let data = data(40_000);
        let mut offset = 0;
        for i in 0..20 {
            let call = write_call(offset, &data);
            let record = rig.exchange(&in_fragments(&call, &[])).await.unwrap().unwrap();
            assert_is_write(&record, &call, offset, &data);
            offset += data.len() as u64;
            let moved_bytes_max = if i == 0 { STAGING_BYTES } else { 0 };
            assert!(record.moved_bytes <= moved_bytes_max, "WRITE {i} of one client at depth 1");
        }
    });
}

#[test]
fn writes_that_wait_in_the_stream_are_not_moved_either() {
    run(async {
        let mut rig = Rig::new();
        let data = data(20_000);
        let call = write_call(0, &data);
        rig.exchange(&in_fragments(&call, &[])).await.unwrap().unwrap();
        rig.send(&in_fragments(&call, &[]).repeat(10)).await;
        for _ in 0..10 {
            let record = rig.next().await;
            assert_is_write(&record, &call, 0, &data);
            assert_eq!(record.moved_bytes, 0);
        }
    });
}

#[test]
fn calls_of_all_kinds_follow_each_other() {
    run(async {
        let mut rig = Rig::new();
        let null = call(nfs3::Procedure::Null, &());
        let (small, large) = (data(3), data(30_000));
        let writes = [write_call(1, &small), write_call(4096, &large)];
        let mut bytes = Vec::new();
        for _ in 0..5 {
            bytes.extend(in_fragments(&null, &[]));
            bytes.extend(in_fragments(&writes[0], &[]));
            bytes.extend(in_fragments(&null, &[4, 24]));
            bytes.extend(in_fragments(&writes[1], &[10_000]));
        }
        let (peer, receiver) = (&mut rig.peer, &mut rig.receiver);
        let receive = async {
            for _ in 0..5 {
                let record = next_of(receiver).await.unwrap().unwrap();
                assert_eq!((record.head, record.trailing_bytes), (null.clone(), 0));
                let record = next_of(receiver).await.unwrap().unwrap();
                assert_is_write(&record, &writes[0], 1, &small);
                let record = next_of(receiver).await.unwrap().unwrap();
                assert_eq!((record.head, record.payload.is_none()), (null.clone(), true));
                let record = next_of(receiver).await.unwrap().unwrap();
                assert_is_write(&record, &writes[1], 4096, &large);
            }
        };
        let (sent, ()) = tokio::join!(peer.write_all(&bytes), receive);
        sent.unwrap();
    });
}

#[test]
fn a_write_without_data_has_no_payload() {
    run(async {
        let mut rig = Rig::new();
        let call = write_call(5, &[]);
        rig.send(&in_fragments(&call, &[])).await;
        let record = rig.next().await;
        assert_eq!((record.head, record.trailing_bytes), (call, 0));
        assert!(record.payload.is_none());
    });
}

#[test]
fn more_data_than_the_server_takes_is_skipped() {
    run(async {
        let mut rig = Rig::new();
        let most = data(usize::try_from(TRANSFER_MAX).unwrap());
        let call = write_call(1, &most);
        let record = rig.exchange(&in_fragments(&call, &[])).await.unwrap().unwrap();
        assert_is_write(&record, &call, 1, &most);
        drop(record);
        let more = [&most[..], &[1]].concat();
        let call = write_call(1, &more);
        let record = rig.exchange(&in_fragments(&call, &[])).await.unwrap().unwrap();
        assert!(record.payload.is_none());
        assert_eq!(record.trailing_bytes, 0, "a valid call, only too long");
        assert_eq!(rig.buffers.bytes_in_use(), 0, "no memory is taken for it");
        let call = write_call(1, b"next");
        rig.send(&in_fragments(&call, &[])).await;
        assert_is_write(&rig.next().await, &call, 1, b"next");
    });
}

#[test]
fn a_record_that_cannot_be_a_call_ends_the_connection_at_its_mark() {
    run(async {
        let max = TRANSFER_MAX + u32::try_from(HEAD_BYTES_MAX).unwrap();
        for (first, second) in [(max + 1, None), (max, Some(1)), (0x7fff_ffff, None)] {
            let mut rig = Rig::new();
            let bytes = match second {
                None => RecordMark { last: false, len: first }.to_bytes().to_vec(),
                Some(len) => {
                    let first = usize::try_from(first).unwrap();
                    let mut bytes = in_fragments(&vec![0; first], &[first]);
                    bytes.truncate(4 + first);
                    bytes.extend(RecordMark { last: true, len }.to_bytes());
                    bytes
                }
            };
            let result = rig.exchange(&bytes).await;
            assert!(matches!(result, Err(ReceiveError::TooLong { .. })), "{first} {second:?}");
        }
        let mut rig = Rig::new();
        rig.send(&[0; 4]).await;
        assert!(matches!(next_of(&mut rig.receiver).await, Err(ReceiveError::EmptyFragment)));
    });
}

#[test]
fn a_long_call_is_cut_and_the_rest_counted() {
    run(async {
        let mut rig = Rig::new();
        let mut null = call(nfs3::Procedure::Null, &());
        null.resize(HEAD_BYTES_MAX + 1000, 7);
        let record = rig.exchange(&in_fragments(&null, &[])).await.unwrap().unwrap();
        assert_eq!(record.head, null[..HEAD_BYTES_MAX]);
        assert_eq!(record.trailing_bytes, 1000);
    });
}

#[test]
fn a_record_that_ends_early_yields_the_received_bytes() {
    run(async {
        let mut rig = Rig::new();
        let data = data(13);
        let call = write_call(5, &data);
        for len in 0..call.len() {
            rig.send(&in_fragments(&call[..len], &[])).await;
            let record = rig.next().await;
            assert!(record.payload.is_none(), "{len} bytes of the call are no WRITE");
            assert_eq!(record.head, call[..len.min(head_len(&call, &data))]);
            assert_eq!(record.trailing_bytes, 0);
        }
        rig.send(&in_fragments(&call, &[])).await;
        assert_is_write(&rig.next().await, &call, 5, &data);
        assert_eq!(rig.buffers.bytes_in_use(), 0);
    });
}

#[test]
fn a_connection_that_ends_within_a_record_is_cut() {
    run(async {
        let call = write_call(5, &data(13));
        let bytes = in_fragments(&call, &[40]);
        for len in 0..bytes.len() {
            let mut rig = Rig::new();
            rig.send(&bytes[..len]).await;
            rig.peer.shutdown().await.unwrap();
            match next_of(&mut rig.receiver).await {
                Ok(None) => assert_eq!(len, 0),
                Err(ReceiveError::Cut) => assert_ne!(len, 0),
                other => panic!("{len} bytes: {:?}", other.map(|record| record.is_some())),
            }
            assert_eq!(rig.buffers.bytes_in_use(), 0);
        }
    });
}

#[test]
fn peer_without_calls_is_idle() {
    run(async {
        let idle_timeout = Duration::from_millis(20);
        let mut rig = Rig::with(idle_timeout);
        let end = next_of(&mut rig.receiver).await;
        assert!(matches!(end, Err(ReceiveError::Idle(patience)) if patience == idle_timeout));
    });
}

#[test]
fn peer_is_idle_from_the_end_of_its_last_call_on() {
    let ms = Duration::from_millis;
    run(async {
        tokio::time::pause();
        // A call that ends before the time is over, and one that takes longer.
        for call_ms in [15, 55] {
            let mut rig = Rig::with(ms(20));
            let mut call = rig.slots.take(0).await;
            call.begin_call();
            let began = Instant::now();
            let ending = async {
                tokio::time::sleep(ms(call_ms)).await;
                drop(call);
            };
            let (end, ()) = tokio::join!(next_of(&mut rig.receiver), ending);
            assert!(matches!(end, Err(ReceiveError::Idle(patience)) if patience == ms(20)));
            let idle = began.elapsed() - ms(call_ms);
            assert!(idle >= ms(20), "closed after {idle:?}");
            // The end of a call is seen a little later, and timers have milliseconds.
            assert!(idle <= ms(20 + 3 + 4), "closed after {idle:?}");
        }
    });
}

#[test]
fn without_memory_the_peer_waits() {
    run(async {
        let mut rig = Rig::new();
        let all: Vec<_> =
            std::iter::from_fn(|| rig.buffers.try_take(usize::try_from(TRANSFER_MAX).unwrap()))
                .collect();
        assert!(!all.is_empty());
        let data = data(60_000);
        let call = write_call(0, &data);
        rig.send(&in_fragments(&call, &[])).await;
        let mut receive = std::pin::pin!(next_of(&mut rig.receiver));
        let waited = tokio::time::timeout(Duration::from_millis(30), &mut receive).await;
        assert!(waited.is_err(), "there is no buffer to receive into");
        drop(all);
        assert_is_write(&receive.await.unwrap().unwrap(), &call, 0, &data);
    });
}

proptest! {
    #[test]
    fn any_fragments_give_the_same_record(
        mut cuts in proptest::collection::vec(1..9_000usize, 0..12),
        offset in any::<u64>(),
        len in 1..9_000usize,
    ) {
        let data = data(len);
        let call = write_call(offset, &data);
        cuts.retain(|cut| *cut <= call.len());
        cuts.sort_unstable();
        cuts.dedup();
        run(async {
            let mut rig = Rig::new();
            let record = rig.exchange(&in_fragments(&call, &cuts)).await.unwrap().unwrap();
            assert_is_write(&record, &call, offset, &data);
        });
    }
}

#[test]
fn a_head_goes_on_behind_the_payload_where_the_layout_has_a_tail() {
    run(async {
        let mut rig = Rig::new();
        let data = data(10_001);
        let mut call = write_call(4096, &data);
        let head_len = head_len(&call, &data);
        call.extend(*b"the tail");
        let null = self::call(nfs3::Procedure::Null, &());
        for _ in 0..2 {
            let records = [in_fragments(&call, &[]), in_fragments(&null, &[])].concat();
            rig.send(&records).await;
            let record = rig.receiver.next(|| TRANSFER_MAX, with_tail).await.unwrap().unwrap();
            assert_eq!(record.head, [&call[..head_len], b"the tail"].concat());
            assert_eq!(record.trailing_bytes, 0);
            assert_eq!(record.payload.unwrap().as_slice(), data);
            assert_eq!(rig.next().await.head, null);
        }
    });
}

#[test]
fn a_complete_head_is_parsed_once() {
    run(async {
        let mut rig = Rig::new();
        let data = data(100);
        let bytes = in_fragments(&write_call(5, &data), &[]);
        for _ in 0..3 {
            rig.send(&bytes).await;
            let mut looks = 0;
            let counted = |head: &[u8]| {
                looks += 1;
                layout(head)
            };
            let record = rig.receiver.next(|| TRANSFER_MAX, counted).await.unwrap().unwrap();
            assert_eq!(record.payload.unwrap().as_slice(), data);
            assert_eq!(looks, 1);
        }
    });
}

#[test]
fn bytes_behind_the_payload_are_received_with_it_and_no_further() {
    run(async {
        let mut rig = Rig::new();
        let data = data(10_000);
        let mut call = write_call(4096, &data);
        let head_len = head_len(&call, &data);
        call.extend(*b"the tail");
        let bytes = in_fragments(&call, &[]);
        rig.send(&bytes).await;
        drop(rig.receiver.next(|| TRANSFER_MAX, with_tail).await.unwrap().unwrap());
        // From the second WRITE on the head alone is staged, then data and tail come at once.
        rig.send(&[&bytes[..], &bytes[..]].concat()).await;
        assert!(rig.receiver.begin_record(|| TRANSFER_MAX).await.unwrap());
        assert_eq!(rig.receiver.staged(), &call[..head_len]);
        let mut head = Vec::new();
        rig.receiver.extend(&mut head, head_len, true).await.unwrap();
        drop(rig.receiver.receive_payload((0, 0), 10_000, 4096).await.unwrap().unwrap());
        assert_eq!(rig.receiver.staged(), b"the tail");
        assert_eq!(rig.receiver.staging.as_slice(), b"the tail", "nothing of the next call");
    });
}

/// Requests of clients within their share, for more memory than the pool has.
const OTHERS: [ClientId; 8] = [2, 3, 4, 5, 6, 7, 8, 9];

/// Sends the first `at_once` bytes of a WRITE, cut into fragments at `cuts` and followed by some
/// more, and then a byte in 20 seconds. Whether its receiver gives up in half a minute, while each
/// of `requests` takes a quarter of the pool.
async fn is_given_up(
    find: fn(&[u8]) -> Layout,
    (cuts, at_once): (&[usize], usize),
    requests: &[ClientId],
) -> bool {
    let Rig { mut peer, mut receiver, buffers, .. } = Rig::with(Duration::from_secs(60));
    let mut call = write_call(0, &data(1000));
    call.extend([0; 100]);
    let bytes = in_fragments(&call, cuts);
    let sender = async {
        peer.write_all(&bytes[..at_once]).await.unwrap();
        for byte in &bytes[at_once..] {
            tokio::time::sleep(Duration::from_secs(20)).await;
            if peer.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
    };
    let began = Instant::now();
    let other = async {
        while buffers.bytes_in_use() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for &client in requests {
            let buffers = Arc::clone(&buffers);
            tokio::spawn(async move {
                let _held = buffers.take(Holder::of(client), 256 * 1024).await.unwrap();
                std::future::pending::<()>().await;
            });
        }
    };
    let next = async {
        let next = receiver.next(|| TRANSFER_MAX, find).await;
        drop(receiver);
        next
    };
    let (next, (), ()) = tokio::join!(next, sender, other);
    match next {
        Ok(Some(_)) => false,
        Err(ReceiveError::TooSlow) => began.elapsed() < Duration::from_secs(30),
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_keeps_up_a_pace_until_the_end_of_a_record_while_it_holds_memory_that_others_need() {
    let data = data(1000);
    let call = write_call(0, &data);
    let head = head_len(&call, &data);
    let fragments: Vec<usize> = (head..call.len()).collect();
    for (requests, others_wait) in [(&[][..], false), (&OTHERS, true)] {
        let is_given_up = |find, cuts, at_once| is_given_up(find, (cuts, at_once), requests);
        let mark = RecordMark::BYTES;
        assert_eq!(is_given_up(layout, &[], mark + head + 10).await, others_wait, "data");
        let at_once = mark + head;
        assert_eq!(is_given_up(layout, &fragments, at_once).await, others_wait, "fragments");
        let at_once = mark + call.len();
        assert_eq!(is_given_up(layout, &[], at_once).await, others_wait, "bytes behind the call");
        assert_eq!(is_given_up(with_tail, &[], at_once).await, others_wait, "a tail");
        let cut = [call.len()];
        assert_eq!(is_given_up(with_tail, &cut, at_once).await, others_wait, "a tail's mark");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_may_be_slow_while_another_client_waits_at_its_own_share() {
    let at_once = RecordMark::BYTES + head_len(&write_call(0, &data(1000)), &data(1000)) + 10;
    for (requests, is_cut) in [([2; 3], false), ([1; 3], true)] {
        assert_eq!(is_given_up(layout, (&[], at_once), &requests).await, is_cut, "{requests:?}");
    }
}
