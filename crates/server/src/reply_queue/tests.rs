use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;

use io::{ByteRange, PipePool};
use rpc::record::{MARK_ROOM, in_fragments};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

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
        server_side.set_nodelay(true).unwrap();
        let buffers = BufferPool::new(64 << 20);
        let (_, socket) = server_side.into_split();
        let queue = Arc::new(ReplyQueue::new(address, socket, Arc::clone(&buffers)));
        let task = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.run().await }
        });
        let content: Vec<u8> = (0..=250).cycle().take(FILE_BYTES).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let data = Data { buffers, pipes: PipePool::new(PIPES_MAX, LONGEST), file, content };
        Self { peer, queue, task, data }
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

fn marked(head: &[u8]) -> Vec<u8> {
    [&MARK_ROOM[..], head].concat()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
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
