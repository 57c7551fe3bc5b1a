//! Records over TCP by blocking calls, at little cost: payloads are sent from where they lie, and
//! discarded, without being copied.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ::io::{ByteRange, Pipe, PipePool};
use proto::oncrpc::RecordMark;
use proto::xdr::{Reader, Writer, padded};
use rpc::record::{Fragments, MARK_ROOM, Next, put_mark};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Payloads up to this size are copied, which costs less than system calls of their own.
pub(crate) const COPIED_BYTES_MAX: usize = 16 * 1024;
/// The largest pipe that Linux grants everybody (`fs.pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;
/// Bytes read from the socket at once where payloads are small.
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes read at once where payloads are large: most heads, and little beyond them.
const AHEAD_OF_PAYLOAD_BYTES: usize = 192;
/// Longest beginning of a record that is kept to be decoded.
const KEPT_BYTES_MAX: usize = 8 * 1024;
/// So much of a record becomes its head at a time: the rest may be payload.
const HEAD_STEP_BYTES: usize = 256;
/// The usual number of pieces of a record, head and payload: the clock is read before others.
const PIECES_UNTIMED: u32 = 2;
/// Fragments of one record: a peer that sends empty ones for ever is not waited for.
const FRAGMENTS_MAX: u32 = 1 << 16;

/// A connection that carries records both ways.
pub(crate) struct RecordStream {
    stream: TcpStream,
    /// How long the peer may take for a record, or to take what is sent.
    patience: Option<Duration>,
    /// The record that is being received.
    course: Course,
    /// Read from the socket and not yet parsed: `start..end`.
    received: Box<[u8]>,
    start: usize,
    end: usize,
    /// The record that is being received, and how many marks it had so far.
    fragments: Fragments,
    marks: u32,
    record_bytes_max: u64,
    head: Vec<u8>,
    /// Bytes of `head` that were decoded or passed on; payload follows them.
    head_used: usize,
    /// Bytes of the record's payload so far, which decide how much is read from the socket at once.
    payload_bytes: usize,
    ahead_bytes: usize,
    /// Passed to the kernel as the place of data that it discards. Never accessed.
    unread: Box<[u8]>,
    unsent: Vec<u8>,
    /// Carries large payloads, if the system grants one; else they are copied.
    pipe: Option<Pipe>,
}

impl RecordStream {
    /// Takes a connection over. Records with payloads of more than `payload_bytes_max` are errors.
    /// `patience` is how long a record may take.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn new(
        stream: TcpStream,
        payload_bytes_max: usize,
        patience: Option<Duration>,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(patience)?;
        let mut records = Self {
            stream,
            patience,
            course: Course::begin(),
            received: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            fragments: Fragments::new(0),
            marks: 0,
            record_bytes_max: (payload_bytes_max + KEPT_BYTES_MAX) as u64,
            head: Vec::with_capacity(HEAD_STEP_BYTES),
            head_used: 0,
            payload_bytes: payload_bytes_max,
            ahead_bytes: 0,
            unread: vec![0; payload_bytes_max].into(),
            unsent: Vec::new(),
            pipe: pipe(),
        };
        records.set_patience(patience)?;
        Ok(records)
    }

    /// How long each record from now on may take; `None` is no limit.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.patience = patience;
        self.stream.set_read_timeout(patience)
    }

    /// Whether there are received bytes that are not parsed yet.
    #[must_use]
    pub(crate) fn has_received(&self) -> bool {
        self.start < self.end
    }

    /// Whether there are received bytes that are not parsed yet. Receives without waiting.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn has_received_more(&mut self) -> io::Result<bool> {
        if self.has_received() {
            return Ok(true);
        }
        (self.start, self.end) = (0, 0);
        let room = self.ahead_bytes;
        match rustix::net::recv(&self.stream, &mut self.received[..room], RecvFlags::DONTWAIT) {
            // An end or an error within a record is reported by the call that waits.
            Ok((_, len)) => self.end = len,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(self.has_received())
    }

    /// Waits until there are received bytes, or the peer has closed the connection, for which
    /// [`RecordStream::next_record`] need not wait then; `false` if it is `end` before.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn wait_until(&self, end: Instant) -> io::Result<bool> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.has_received() || left.is_zero() {
                return Ok(self.has_received());
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&left)) {
                Ok(ready) if ready > 0 => return Ok(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for the next record. `false` when the peer closed the connection instead.
    ///
    /// # Errors
    /// Those of the socket; `TimedOut` when the peer sends nothing.
    pub(crate) fn next_record(&mut self) -> io::Result<bool> {
        self.course = Course::begin();
        self.head.clear();
        self.head_used = 0;
        self.fragments = Fragments::new(self.record_bytes_max);
        self.marks = 0;
        // Records that follow each other are mostly of a kind.
        let large = self.payload_bytes > COPIED_BYTES_MAX;
        self.ahead_bytes = if large { AHEAD_OF_PAYLOAD_BYTES } else { BUFFER_BYTES };
        self.payload_bytes = 0;
        match self.next_mark() {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && !self.has_received() => {
                Ok(false)
            }
            result => result.map(|()| true),
        }
    }

    /// Decodes the beginning of the record; what follows it is the payload. The inner error is that
    /// of `parse`, given all of the record that may be a head.
    ///
    /// # Errors
    /// Those of the socket, and of a record that is too long.
    pub(crate) fn decode<T, E>(
        &mut self,
        parse: impl Fn(&mut Reader<'_>) -> Result<T, E>,
    ) -> io::Result<Result<T, E>> {
        if self.head.is_empty() {
            self.lengthen_head()?;
        }
        loop {
            let mut reader = Reader::new(&self.head);
            match parse(&mut reader) {
                Ok(value) => {
                    self.head_used = reader.position();
                    return Ok(Ok(value));
                }
                Err(error) if !self.lengthen_head()? => return Ok(Err(error)),
                Err(_) => {}
            }
        }
    }

    /// Receives `data.len()` bytes of payload.
    ///
    /// # Errors
    /// Those of the socket, and of a record that ends before.
    pub(crate) fn receive(&mut self, data: &mut [u8]) -> io::Result<()> {
        self.pass(data.len(), Some(data))
    }

    /// Discards `len` bytes of payload.
    ///
    /// # Errors
    /// As of [`RecordStream::receive`].
    pub(crate) fn discard(&mut self, len: usize) -> io::Result<()> {
        self.pass(len, None)
    }

    /// Discards what is left of the record: padding, mostly.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.head_used = self.head.len();
        loop {
            match self.fragments.next() {
                Next::End => return Ok(()),
                Next::Mark => self.next_mark()?,
                Next::Bytes(len) => self.pass(len, None)?,
            }
        }
    }

    fn pass(&mut self, len: usize, mut into: Option<&mut [u8]>) -> io::Result<()> {
        let held = len.min(self.head.len() - self.head_used);
        if let Some(into) = &mut into {
            into[..held].copy_from_slice(&self.head[self.head_used..][..held]);
        }
        self.head_used += held;
        self.payload_bytes += len;
        let mut passed = held;
        while passed < len {
            let there = match self.fragments.next() {
                Next::End => return Err(malformed("a record ends within its payload")),
                Next::Mark => {
                    self.next_mark()?;
                    continue;
                }
                Next::Bytes(there) => there,
            };
            let wanted = (len - passed).min(there);
            let buffered = wanted.min(self.end - self.start);
            let took = match &mut into {
                Some(into) if buffered > 0 => {
                    let from = &self.received[self.start..][..buffered];
                    into[passed..][..buffered].copy_from_slice(from);
                    self.start += buffered;
                    buffered
                }
                None if buffered > 0 => {
                    self.start += buffered;
                    buffered
                }
                Some(into) => {
                    let into = &mut into[passed..][..wanted];
                    self.course.go_on(self.patience)?;
                    receive(&self.stream, into, RecvFlags::WAITALL)?
                }
                None => {
                    // With this flag TCP drops the data without copying it (tcp(7)).
                    let flags = RecvFlags::WAITALL | RecvFlags::TRUNC;
                    let wanted = wanted.min(self.unread.len());
                    self.course.go_on(self.patience)?;
                    receive(&self.stream, &mut self.unread[..wanted], flags)?
                }
            };
            self.fragments.take(took);
            passed += took;
        }
        Ok(())
    }

    /// Adds what has come of the record to its head. `false` when no more of it can be a head.
    fn lengthen_head(&mut self) -> io::Result<bool> {
        let there = loop {
            match self.fragments.next() {
                Next::End => return Ok(false),
                Next::Mark => self.next_mark()?,
                Next::Bytes(there) => break there,
            }
        };
        if !self.has_received() {
            self.fill(1)?;
        }
        let room = HEAD_STEP_BYTES.min(KEPT_BYTES_MAX - self.head.len());
        let len = room.min(self.end - self.start).min(there);
        self.head.extend_from_slice(&self.received[self.start..][..len]);
        self.start += len;
        self.fragments.take(len);
        Ok(len > 0)
    }

    fn next_mark(&mut self) -> io::Result<()> {
        self.fill(RecordMark::BYTES)?;
        let mark = self.received[self.start..].first_chunk().expect("so much was waited for");
        let mark = RecordMark::from_bytes(*mark);
        self.start += RecordMark::BYTES;
        self.marks += 1;
        let is_taken = self.fragments.take_mark(mark).is_ok() && self.marks <= FRAGMENTS_MAX;
        is_taken
            .then_some(())
            .ok_or_else(|| malformed("a record is longer than any expected reply"))
    }

    /// Receives until at least `len` bytes are held.
    fn fill(&mut self, len: usize) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.received.len() - self.start < RecordMark::BYTES {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < len {
            let room = self.ahead_bytes.min(self.received.len() - self.end);
            let into = &mut self.received[self.end..][..room];
            self.course.go_on(self.patience)?;
            self.end += receive(&self.stream, into, RecvFlags::empty())?;
        }
        Ok(())
    }

    /// Puts a record's beginning in the queue to be sent; `payload_bytes` and their padding are to
    /// follow by [`RecordStream::queue_payload`] or [`RecordStream::send_payload`]. With a tail,
    /// `payload_bytes` are those of the padded payload and of the tail.
    ///
    /// # Panics
    /// The record has 2 GiB or more.
    pub(crate) fn queue(&mut self, payload_bytes: usize, encode: impl FnOnce(&mut Writer)) {
        let mark_at = self.unsent.len();
        let mut writer = Writer::from_vec(std::mem::take(&mut self.unsent));
        writer.array(&MARK_ROOM);
        encode(&mut writer);
        self.unsent = writer.into_vec();
        put_mark(&mut self.unsent[mark_at..], padded(payload_bytes))
            .expect("records that are sent are small");
    }

    /// Puts the payload of the record that was queued last in the queue, its padding, and `tail`,
    /// which is a multiple of four bytes long.
    pub(crate) fn queue_payload(&mut self, data: &[u8], tail: &[u8]) {
        self.unsent.extend_from_slice(data);
        self.queue_behind(data.len(), tail);
    }

    /// Sends the queue, and `data` as the payload of the record that was queued last. Its padding
    /// and `tail`, as of [`RecordStream::queue_payload`], are left in the queue. The peer may get
    /// what is stored in `data` later.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn send_payload(&mut self, data: &[u8], tail: &[u8]) -> io::Result<()> {
        let Some(mut pipe) = self.pipe.take() else {
            self.queue_payload(data, tail);
            return self.flush();
        };
        self.send(SendFlags::MORE)?;
        let mut course = Course::begin();
        let mut rest = data;
        while !rest.is_empty() {
            let Ok(filled) = pipe.fill_with(rest) else {
                // The system does not support it: the pipe is not put back.
                self.unsent.extend_from_slice(rest);
                self.queue_behind(data.len(), tail);
                return self.flush();
            };
            rest = &rest[filled..];
            while !pipe.is_empty() {
                course.go_on(self.patience)?;
                let more = !rest.is_empty() || !tail.is_empty();
                match pipe.send_to(self.stream.as_fd(), more) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        self.pipe = Some(pipe);
        self.queue_behind(data.len(), tail);
        Ok(())
    }

    /// Sends what is in the queue.
    ///
    /// # Errors
    /// Those of the socket; `TimedOut` when the peer does not take it.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.send(SendFlags::empty())
    }

    fn send(&mut self, flags: SendFlags) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let mut course = Course::begin();
        let mut sent = 0;
        while sent < self.unsent.len() {
            course.go_on(self.patience)?;
            let rest = &self.unsent[sent..];
            match rustix::net::send(&self.stream, rest, flags | SendFlags::NOSIGNAL) {
                Ok(len) => sent += len,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(timed_out(errno)),
            }
        }
        self.unsent.clear();
        Ok(())
    }

    fn queue_behind(&mut self, payload_bytes: usize, tail: &[u8]) {
        let len = self.unsent.len() + padded(payload_bytes) - payload_bytes;
        self.unsent.resize(len, 0);
        self.unsent.extend_from_slice(tail);
    }
}

/// A pipe for payloads of all lengths: longer ones go through it by parts.
fn pipe() -> Option<Pipe> {
    let range = ByteRange::between(0, PIPE_BYTES as u64);
    PipePool::new(1, PIPE_BYTES).try_take(range)
}

/// One call of the socket, which waits until something is there.
fn receive(stream: &TcpStream, into: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    loop {
        match rustix::net::recv(stream, &mut *into, flags) {
            Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((_, len)) => return Ok(len),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(timed_out(errno)),
        }
    }
}

/// The progress of a record that is received or sent. Each call of the socket has `patience` as its
/// timeout; a peer that takes nearly as long for every byte is waited for at most twice as long.
struct Course {
    began: Instant,
    pieces: u32,
}

impl Course {
    fn begin() -> Self {
        Self { began: Instant::now(), pieces: 0 }
    }

    /// Before each piece.
    fn go_on(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.pieces += 1;
        let is_timed = self.pieces > PIECES_UNTIMED;
        if is_timed && patience.is_some_and(|patience| self.began.elapsed() > patience) {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

/// EAGAIN from a socket with a timeout is the end of that time.
fn timed_out(errno: Errno) -> io::Error {
    if errno == Errno::AGAIN { ErrorKind::TimedOut.into() } else { errno.into() }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    #[test]
    fn a_peer_that_dribbles_is_not_waited_for() {
        use std::io::Write as _;
        const PATIENCE: Duration = Duration::from_millis(50);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        let mut data = [0; 2000];
        let mut receiver = RecordStream::new(stream, data.len(), Some(PATIENCE)).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let len = u32::try_from(data.len()).unwrap();
                peer.write_all(&RecordMark { last: true, len }.to_bytes()).unwrap();
                peer.set_nodelay(true).unwrap();
                // All of it would take 20 s.
                while peer.write_all(&[7]).is_ok() {
                    thread::sleep(PATIENCE / 5);
                }
            });
            let began = Instant::now();
            assert!(receiver.next_record().unwrap());
            let error = receiver.receive(&mut data).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert!(began.elapsed() < 100 * PATIENCE, "{:?}", began.elapsed());
            drop(receiver);
        });
    }

    #[test]
    fn the_wait_for_a_record_ends_with_its_time_with_bytes_and_with_the_connection() {
        use std::io::Write as _;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        let mut receiver = RecordStream::new(stream, 0, None).unwrap();
        let end = Instant::now() + Duration::from_millis(20);
        assert!(!receiver.wait_until(end).unwrap());
        assert!(Instant::now() >= end);
        let far = Instant::now() + Duration::from_secs(3600);
        peer.write_all(&RecordMark { last: true, len: 0 }.to_bytes()).unwrap();
        assert!(receiver.wait_until(far).unwrap());
        assert!(receiver.next_record().unwrap());
        drop(peer);
        assert!(receiver.wait_until(far).unwrap());
        receiver.finish().unwrap();
        assert!(!receiver.next_record().unwrap());
    }

    #[test]
    fn payloads_of_all_lengths_arrive_whole_with_a_pipe_and_without() {
        const TAILS: [&[u8]; 6] = [b"", b"tail", b"", b"ends", b"finished", b"last"];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        let lengths = [1, 16 * 1024 + 1, 47_008, PIPE_BYTES, PIPE_BYTES + 1, 3 * PIPE_BYTES + 5];
        let longest = lengths[5];
        // No pipe is whole pages of data that begins anywhere.
        let data: Vec<u8> = (0..=250).cycle().take(longest + 3).collect();
        let payloads = || lengths.map(|len| &data[3..][..len]);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut sender = RecordStream::new(stream, longest, None).unwrap();
                assert!(sender.pipe.is_some());
                for without in [false, true] {
                    if without {
                        sender.pipe = None;
                    }
                    for (payload, tail) in payloads().into_iter().zip(TAILS) {
                        sender.queue(padded(payload.len()) + tail.len(), |w| w.u32(7));
                        sender.send_payload(payload, tail).unwrap();
                        assert_eq!(sender.pipe.is_none(), without);
                    }
                }
                sender.flush().unwrap();
            });
            let mut receiver = RecordStream::new(peer, longest, None).unwrap();
            let mut received = vec![0; longest];
            let tails = TAILS.into_iter().cycle();
            for (payload, tail) in payloads().into_iter().chain(payloads()).zip(tails) {
                assert!(receiver.next_record().unwrap());
                assert_eq!(receiver.decode(|r| r.u32("word")).unwrap().unwrap(), 7);
                let received = &mut received[..payload.len()];
                receiver.receive(received).unwrap();
                assert!(received == payload, "{} bytes", payload.len());
                let mut behind = [0; 11];
                let behind = &mut behind[..padded(payload.len()) - payload.len() + tail.len()];
                receiver.receive(behind).unwrap();
                assert!(behind.ends_with(tail), "{behind:?}");
                receiver.finish().unwrap();
            }
            assert!(!receiver.next_record().unwrap());
        });
    }
}
