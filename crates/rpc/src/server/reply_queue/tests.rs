use std::fs::File;
use std::io::{IoSlice, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::task::{Context, Poll, Waker};

use io::{ByteRange, Holder, Payload, Pipe, PipePool};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::record::{MARK_ROOM, in_fragments};
use crate::server::delivery::{Delivery, Receipt};
use crate::server::{SendObserver, Socket};

/// The length of the file that reply data is read from.
const FILE_BYTES: usize = 3 << 20;
const LONGEST: usize = 512 << 10;
/// The number of replies of [`LONGEST`] bytes that exceed the socket buffers of an unread
/// connection.
const PIPES: usize = 12;
/// Small enough for all tests side by side to stay below what one user's pipes may hold.
const PIPES_MAX: usize = 16;
const SOON: Duration = Duration::from_secs(10);

/// A queue whose connection's task runs, and its peer.
struct Rig {
    peer: TcpStream,
    queue: Arc<ReplyQueue>,
    task: JoinHandle<()>,
    data: Data,
}

/// A file, and how it comes into replies.
struct Data {
    buffers: Arc<BufferPool>,
    pipes: Arc<PipePool>,
    file: File,
    content: Vec<u8>,
}

impl Rig {
    async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (peer, (server_side, _)) = (peer.unwrap(), accepted.unwrap());
        let buffers = BufferPool::new(64 << 20);
        let socket = Socket::new(server_side.into_std().unwrap()).unwrap();
        let queue = Arc::new(ReplyQueue::new(address, 1, socket, Arc::clone(&buffers)));
        let task = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.run().await }
        });
        Self { peer, queue, task, data: Data::new(buffers) }
    }

    /// Sends replies from pipes, more than the socket takes.
    fn fill_socket_from_pipes(&self) {
        let spliced = |_| self.data.spliced(b"head", 0, LONGEST);
        let replies: Vec<Reply> = (0..PIPES).map(spliced).collect();
        replies.into_iter().for_each(|reply| self.queue.send(reply));
    }

    async fn receives(&mut self, expected: &[u8]) {
        let mut received = vec![0xff; expected.len()];
        timeout(SOON, self.peer.read_exact(&mut received)).await.expect("it comes").unwrap();
        let differs = received.iter().zip(expected).position(|(a, b)| a != b);
        assert_eq!(differs, None, "of {} bytes", expected.len());
    }
}

impl Data {
    fn new(buffers: Arc<BufferPool>) -> Self {
        let content: Vec<u8> = (0..=250).cycle().take(FILE_BYTES).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        Self { buffers, pipes: PipePool::new(PIPES_MAX, LONGEST), file, content }
    }

    /// A reply whose data is in a pipe.
    fn spliced(&self, head: &[u8], offset: usize, len: usize) -> Reply {
        let range = ByteRange::new(offset as u64, len as u64).unwrap();
        let mut pipe = self.pipes.try_take(range).unwrap();
        assert_eq!(pipe.fill_from(self.file.as_fd(), range).unwrap(), len);
        Reply::new(marked(head), Some(Payload::in_pipe(pipe)))
    }

    /// A reply whose data is in a buffer.
    fn copied(&self, head: &[u8], offset: usize, len: usize) -> Reply {
        let mut buffer = self.buffers.try_take(len + 1).unwrap();
        buffer.as_mut_slice()[1..=len].copy_from_slice(&self.content[offset..offset + len]);
        Reply::new(marked(head), Some(Payload::new(buffer, 1, len)))
    }

    /// The bytes of either, as the peer is to see them.
    fn expected(&self, head: &[u8], offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = [head, &self.content[offset..offset + len]].concat();
        bytes.resize(head.len() + len.next_multiple_of(4), 0);
        in_fragments(&bytes, &[])
    }
}

/// A stream in memory, which takes as many bytes as the test grants.
#[derive(Default)]
struct Memory(Mutex<MemoryState>);

#[derive(Default)]
struct MemoryState {
    taken: Vec<u8>,
    room: usize,
    acknowledged: usize,
    has_hung_up: bool,
    waker: Option<Waker>,
}

impl Memory {
    fn grant(&self, bytes: usize) {
        let mut state = self.0.lock().unwrap();
        state.room += bytes;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn taken(&self) -> Vec<u8> {
        self.0.lock().unwrap().taken.clone()
    }
}

impl MemoryState {
    fn take(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.room -= bytes.len();
        self.taken.extend(bytes);
        if bytes.is_empty() { Err(ErrorKind::WouldBlock.into()) } else { Ok(bytes.len()) }
    }
}

impl Transport for Memory {
    fn try_send(&self, parts: &[IoSlice<'_>], _: bool) -> std::io::Result<usize> {
        let mut state = self.0.lock().unwrap();
        let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        bytes.truncate(state.room);
        state.take(&bytes)
    }

    fn try_send_pipe(&self, pipe: &mut Pipe, _: bool) -> std::io::Result<usize> {
        let mut state = self.0.lock().unwrap();
        let mut bytes = vec![0; state.room.min(pipe.len())];
        let len = if bytes.is_empty() { 0 } else { pipe.read(&mut bytes)? };
        state.take(&bytes[..len])
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let mut state = self.0.lock().unwrap();
        state.waker = Some(context.waker().clone());
        if state.room > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn unacknowledged_bytes(&self) -> std::io::Result<u64> {
        let state = self.0.lock().unwrap();
        Ok((state.taken.len() - state.acknowledged) as u64)
    }

    fn acknowledged_bytes(&self) -> std::io::Result<u64> {
        Ok(self.0.lock().unwrap().acknowledged as u64)
    }

    fn has_hung_up(&self) -> bool {
        self.0.lock().unwrap().has_hung_up
    }

    fn unread_bytes(&self) -> std::io::Result<u64> {
        Ok(0)
    }
}

fn marked(head: &[u8]) -> Vec<u8> {
    [&MARK_ROOM[..], head].concat()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

#[test]
fn replies_are_sent_whole_over_a_stream_that_accepts_little() {
    run(async {
        let data = Data::new(BufferPool::new(1 << 20));
        for step in 1..=40 {
            let stream = Arc::new(Memory::default());
            let peer = (Ipv4Addr::LOCALHOST, 700).into();
            let queue = Arc::new(ReplyQueue::new(
                peer,
                1,
                Arc::clone(&stream) as _,
                Arc::clone(&data.buffers),
            ));
            let task = tokio::spawn({
                let queue = Arc::clone(&queue);
                async move { queue.run().await }
            });
            let mut expected = Vec::new();
            for (offset, len) in [(0, 5), (1, 13), (4095, 2), (7, 8), (0, 1)] {
                queue.send(data.spliced(b"pipe", offset, len));
                expected.extend(data.expected(b"pipe", offset, len));
                queue.send(Reply::new(marked(b"head"), None));
                expected.extend(data.expected(b"head", 0, 0));
                queue.send(data.copied(b"copied", offset, len));
                expected.extend(data.expected(b"copied", offset, len));
            }
            let mut granted = 0;
            while granted < expected.len() {
                stream.grant(step);
                granted += step;
                let taken = granted.min(expected.len());
                while stream.taken().len() < taken {
                    tokio::task::yield_now().await;
                }
                assert_eq!(stream.taken(), expected[..taken], "by {step} bytes");
            }
            task.abort();
        }
        assert_eq!(data.buffers.bytes_in_use(), 0);
    });
}

#[test]
fn a_reply_is_delivered_when_its_last_byte_is_acknowledged() {
    run(async {
        let stream = Arc::new(Memory::default());
        let peer = (Ipv4Addr::LOCALHOST, 700).into();
        let buffers = BufferPool::new(1 << 20);
        let queue = Arc::new(ReplyQueue::new(peer, 1, Arc::clone(&stream) as _, buffers));
        let receipts = [(); 2].map(|()| Arc::new(Receipt::new(Arc::clone(queue.link()))));
        stream.grant(100);
        for receipt in &receipts {
            let reply = Reply::new(marked(b"head"), None).with_receipt(Some(Arc::clone(receipt)));
            queue.send(reply);
        }
        let delivery = || [0, 1].map(|i: usize| receipts[i].delivery());
        assert_eq!(stream.taken().len(), 16);
        assert_eq!(delivery(), [Delivery::Pending; 2]);
        for (acknowledged, first) in [(7, Delivery::Pending), (8, Delivery::Acknowledged)] {
            stream.0.lock().unwrap().acknowledged = acknowledged;
            assert_eq!(delivery(), [first, Delivery::Pending]);
        }
        // The stream's last count of acknowledged bytes is remembered.
        stream.0.lock().unwrap().acknowledged = 15;
        drop(queue);
        drop(stream);
        assert_eq!(delivery(), [Delivery::Acknowledged, Delivery::Lost]);
    });
}

#[test]
fn a_peer_is_reached_when_it_acknowledges_more_and_not_when_it_hangs_up() {
    run(async {
        let (stream, queue) = in_memory();
        let timers = Handle::current();
        let is_reached = || queue.reach_peer(false, &timers);
        assert!(is_reached().await, "there is nothing to acknowledge");
        queue.send(reply(64));
        for acknowledged in [8, 64] {
            // Begun on a thread without timers.
            let mut reached = Box::pin(is_reached());
            std::thread::scope(|scope| {
                let begun =
                    scope.spawn(|| reached.as_mut().poll(&mut Context::from_waker(Waker::noop())));
                assert!(begun.join().unwrap().is_pending());
            });
            assert!(timeout(5 * ACKNOWLEDGEMENT_INTERVAL, &mut reached).await.is_err());
            stream.0.lock().unwrap().acknowledged = acknowledged;
            assert!(timeout(SOON, reached).await.unwrap());
        }
        queue.send(reply(64));
        stream.0.lock().unwrap().has_hung_up = true;
        assert!(!timeout(SOON, is_reached()).await.unwrap());
    });
}

/// Remembers which replies are gone.
#[derive(Default)]
struct Observer(Mutex<Vec<u64>>);

impl SendObserver for Observer {
    fn reply_is_gone(&self, token: u64) {
        self.0.lock().unwrap().push(token);
    }
}

#[test]
fn the_end_of_each_reply_is_observed_once() {
    let (stream, queue) = in_memory();
    let observer = Arc::new(Observer::default());
    let observed = |token| reply(64).observed(Arc::clone(&observer) as _, token);
    let gone = || observer.0.lock().unwrap().clone();
    queue.cork(true);
    queue.send(observed(1));
    assert_eq!(gone(), [], "it waits for others");
    queue.flush();
    assert_eq!((stream.taken().len(), gone()), (64, vec![1]));
    // Lost with the connection.
    queue.cork(true);
    queue.send(observed(2));
    drop(queue);
    assert_eq!((stream.taken().len(), gone()), (64, vec![1, 2]));
}

/// A queue before a stream in memory that takes what it gets.
fn in_memory() -> (Arc<Memory>, Arc<ReplyQueue>) {
    let stream = Arc::new(Memory::default());
    stream.grant(1 << 20);
    let peer = (Ipv4Addr::LOCALHOST, 700).into();
    let queue = ReplyQueue::new(peer, 1, Arc::clone(&stream) as _, BufferPool::new(1 << 20));
    (stream, Arc::new(queue))
}

/// A reply of so many bytes, with its record mark.
fn reply(len: usize) -> Reply {
    Reply::new(marked(&vec![7; len - MARK_ROOM.len()]), None)
}

#[test]
fn replies_that_others_follow_leave_together() {
    let (stream, queue) = in_memory();
    queue.cork(true);
    (0..3).for_each(|_| queue.send(reply(64)));
    assert_eq!(stream.taken().len(), 0);
    queue.flush();
    assert_eq!(stream.taken().len(), 3 * 64);
    // Nothing follows any more.
    queue.send(reply(64));
    assert_eq!(stream.taken().len(), 4 * 64);
}

#[test]
fn a_whole_batch_and_a_long_reply_wait_for_no_others() {
    let (stream, queue) = in_memory();
    queue.cork(true);
    (0..=BATCH_REPLIES_MAX).for_each(|_| queue.send(reply(64)));
    assert_eq!(stream.taken().len(), BATCH_REPLIES_MAX * 64);
    queue.send(reply(CORKED_BYTES_MAX));
    assert_eq!(stream.taken().len(), (BATCH_REPLIES_MAX + 1) * 64 + CORKED_BYTES_MAX);
}

#[test]
fn data_from_a_pipe_is_padded_and_exact() {
    run(async {
        let mut rig = Rig::new().await;
        for (offset, len) in
            [(0, 1), (1, 2), (4095, 3), (4096, 4), (47008, 47008), (0, LONGEST), (13, LONGEST - 1)]
        {
            rig.queue.send(rig.data.spliced(b"head", offset, len));
            rig.receives(&rig.data.expected(b"head", offset, len)).await;
        }
        assert_eq!(rig.data.pipes.pipes_open(), 1, "an empty pipe serves the next reply");
    });
}

#[test]
fn replies_of_both_kinds_leave_in_order() {
    run(async {
        let mut rig = Rig::new().await;
        // The first fill the socket, so that the others wait and are sent in batches. `run` has no
        // other thread: nothing of it runs before the first await below.
        let mut expected = Vec::new();
        let lens = [LONGEST, LONGEST - 1, 5, 4096, 0, 7, 100_002, 1, 0, 8, 65_537, 3];
        for round in 0..2 {
            for (i, len) in lens.into_iter().enumerate() {
                let head = vec![u8::try_from(16 * round + i).unwrap(); 4 * (i + 1)];
                let offset = 1000 * i + round;
                expected.extend(rig.data.expected(&head, offset, len));
                rig.queue.send(match (i % 3, len) {
                    (_, 0) => Reply::new(marked(&head), None),
                    (2, _) => rig.data.copied(&head, offset, len),
                    _ => rig.data.spliced(&head, offset, len),
                });
            }
        }
        rig.receives(&expected).await;
        assert_eq!(rig.data.buffers.bytes_in_use(), 0);
    });
}

#[test]
fn a_slow_reader_gets_every_byte() {
    run(async {
        let mut rig = Rig::new().await;
        let mut expected = Vec::new();
        for i in 0..PIPES {
            rig.queue.send(rig.data.spliced(b"slow", i, LONGEST - i));
            expected.extend(rig.data.expected(b"slow", i, LONGEST - i));
        }
        assert!(!rig.queue.lock().waiting.is_empty(), "the socket is full");
        for part in expected.chunks(200_003) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            rig.receives(part).await;
        }
        assert!(rig.queue.lock().waiting.is_empty());
        assert_eq!(rig.queue.sent_bytes(), expected.len() as u64);
    });
}

#[test]
fn pipes_of_a_lost_connection_are_closed() {
    run(async {
        let mut rig = Rig::new().await;
        rig.fill_socket_from_pipes();
        assert!(!rig.queue.lock().waiting.is_empty(), "the socket is full");
        assert_eq!(rig.data.pipes.pipes_open(), PIPES);
        drop(rig.peer);
        timeout(SOON, &mut rig.task).await.expect("the connection's task ends").unwrap();
        // Pipes sent whole are kept empty for others; the rest is closed.
        let kept = rig.data.pipes.pipes_open();
        assert!(kept < PIPES, "{kept}");
        let range = ByteRange::new(0, 1).unwrap();
        let taken: Vec<_> = (0..PIPES).map(|_| rig.data.pipes.try_take(range).unwrap()).collect();
        assert!(taken.iter().all(io::Pipe::is_empty));
        // A reply to the broken connection is dropped too.
        drop(taken);
        assert_eq!(rig.data.pipes.pipes_open(), PIPES);
        rig.queue.send(rig.data.spliced(b"head", 0, LONGEST));
        assert_eq!(rig.data.pipes.pipes_open(), PIPES - 1);
    });
}

/// Whether a peer, client 1, that takes nothing of a reply is given up, while each of `requests`
/// takes a quarter of the memory.
async fn is_given_up(reply_holds_memory: bool, requests: &[ClientId]) -> bool {
    let data = Data::new(BufferPool::new(1 << 20));
    let reply = if reply_holds_memory { data.copied(b"head", 0, 100) } else { reply(64) };
    for &client in requests {
        let buffers = Arc::clone(&data.buffers);
        tokio::spawn(async move {
            let _held = buffers.take(Holder::of(client), 256 * 1024).await.unwrap();
            std::future::pending::<()>().await;
        });
    }
    let (peer, stream) = ((Ipv4Addr::LOCALHOST, 700).into(), Arc::new(Memory::default()));
    let queue = Arc::new(ReplyQueue::new(peer, 1, stream, data.buffers));
    queue.send(reply);
    timeout(3 * WINDOW, queue.run()).await.is_ok()
}

#[test]
fn a_peer_is_given_up_when_others_wait_for_memory_that_its_replies_hold() {
    run(async {
        let within_their_shares = [2, 3, 4, 5];
        let given_up = tokio::join!(
            is_given_up(true, &within_their_shares),
            is_given_up(false, &within_their_shares),
            is_given_up(true, &[1; 3]),
            is_given_up(true, &[2; 3]),
        );
        assert_eq!(given_up, (true, false, true, false));
    });
}

#[test]
fn giving_a_peer_up_closes_its_pipes() {
    run(async {
        let rig = Rig::new().await;
        rig.fill_socket_from_pipes();
        let waiting = rig.queue.lock().waiting.len();
        assert!(waiting > 0);
        rig.queue.close();
        assert_eq!(rig.data.pipes.pipes_open(), PIPES - waiting);
        timeout(SOON, rig.task).await.expect("the connection's task ends").unwrap();
    });
}

#[test]
fn a_file_that_is_cut_does_not_shorten_a_reply() {
    run(async {
        let mut rig = Rig::new().await;
        let reply = rig.data.spliced(b"head", 4096, 8192);
        rig.data.file.set_len(4096 + 100).unwrap();
        rig.queue.send(reply);
        rig.queue.send(rig.data.copied(b"next", 0, 3));
        // The content of the pages is not guaranteed, only the length.
        let mut received = vec![0; rig.data.expected(b"head", 4096, 8192).len()];
        timeout(SOON, rig.peer.read_exact(&mut received)).await.unwrap().unwrap();
        assert!(received[..108] == rig.data.expected(b"head", 4096, 8192)[..108]);
        rig.receives(&rig.data.expected(b"next", 0, 3)).await;
    });
}
