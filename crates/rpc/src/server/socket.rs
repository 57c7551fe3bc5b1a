//! A TCP socket that a runtime watches, or a thread of its own.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::io::{Pipe, acknowledged_bytes, unacknowledged_bytes, watch_socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, Interest, ReadBuf};

use super::source::Source;
use super::transport::Transport;

/// How often the acknowledgement of a stream's end is looked for.
const FINISH_INTERVAL: Duration = Duration::from_millis(5);
/// Reads in a row that throw away what a peer sends: more at once would hold up the thread.
const DISCARDS_MAX: usize = 16;

/// A connected TCP socket.
///
/// While a runtime watches it, a call that comes in wakes the thread of that runtime. A thread that
/// waits for the next call by itself ([`wait_readable`](Self::wait_readable)) takes the socket from
/// the runtime for so long: two threads would be woken for each call otherwise.
pub struct Socket {
    stream: Arc<TcpStream>,
    /// The runtime's watch; `None` while a thread has the socket for itself.
    watch: RwLock<Option<AsyncFd<Arc<TcpStream>>>>,
}

/// The receiving side of a socket.
pub struct SocketReader(Arc<Socket>);

impl Socket {
    /// A socket that the current runtime watches.
    ///
    /// # Errors
    /// Why it cannot be watched.
    pub fn new(stream: TcpStream) -> io::Result<Arc<Self>> {
        stream.set_nonblocking(true)?;
        // Replies are whole when they are sent: holding them back would only delay them.
        stream.set_nodelay(true)?;
        let socket = Arc::new(Self { stream: Arc::new(stream), watch: RwLock::new(None) });
        socket.watch()?;
        Ok(socket)
    }

    /// Its receiving side; there must be one only.
    pub fn reader(self: &Arc<Self>) -> SocketReader {
        SocketReader(Arc::clone(self))
    }

    /// Has the current runtime watch it, if none does.
    ///
    /// # Errors
    /// Why it cannot be watched.
    pub fn watch(&self) -> io::Result<()> {
        let mut watch = self.watch.write().unwrap_or_else(PoisonError::into_inner);
        if watch.is_none() {
            *watch = Some(watch_socket(Arc::clone(&self.stream))?);
        }
        Ok(())
    }

    /// No runtime watches it from now on. A read that finds nothing is pending then and never
    /// woken; for the thread that calls [`wait_readable`](Self::wait_readable).
    pub fn stop_watching(&self) {
        let mut watch = self.watch.write().unwrap_or_else(PoisonError::into_inner);
        drop(watch.take());
    }

    /// Waits until there is something to be received, or the stream has ended or is broken; at most
    /// so long. Whether there is.
    pub fn wait_readable(&self, at_most: Duration) -> bool {
        let mut descriptors = [PollFd::new(&self.stream, PollFlags::IN)];
        let timeout = Timespec::try_from(at_most).ok();
        // An interrupted wait is a short one.
        poll(&mut descriptors, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Whether the peer has ended its side of the stream.
    pub fn sends_no_more(&self) -> bool {
        self.shows(PollFlags::RDHUP)
    }

    /// Whether something that the peer has sent was not received yet.
    pub fn has_unread_bytes(&self) -> bool {
        self.unread_bytes().is_ok_and(|bytes| bytes > 0)
    }

    /// Whether poll(2) reports one of these now.
    fn shows(&self, flags: PollFlags) -> bool {
        let mut descriptors = [PollFd::new(&self.stream, flags)];
        let polled = poll(&mut descriptors, Some(&Timespec::default()));
        polled.is_ok() && descriptors[0].revents().intersects(flags)
    }

    /// Sends the end of the stream and waits until the peer has acknowledged all that was sent, or
    /// has ended its side, or has acknowledged nothing more for `stall_max`. What it sends
    /// meanwhile is thrown away.
    ///
    /// A socket that is closed with unread bytes is reset instead, and all that is still to be sent
    /// is lost.
    pub async fn finish(&self, stall_max: Duration) {
        let is_acknowledged = || self.unacknowledged_bytes().is_ok_and(|bytes| bytes == 0);
        // No wait for a peer that is gone, where nothing can be lost.
        if is_acknowledged() && self.unread_bytes().is_ok_and(|bytes| bytes == 0) {
            return;
        }
        if self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let (mut acknowledged, mut since) = (self.acknowledged_bytes().ok(), Instant::now());
        // Bytes that are not acknowledged by then may be lost.
        while !is_acknowledged() && self.discard() && since.elapsed() < stall_max {
            tokio::time::sleep(FINISH_INTERVAL).await;
            let now = self.acknowledged_bytes().ok();
            if now != acknowledged {
                (acknowledged, since) = (now, Instant::now());
            }
        }
    }

    /// Ends the stream in both directions, while others still have the socket.
    pub fn end(&self) {
        // A peer that is gone knows.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Throws received bytes away. Whether the peer may send more.
    fn discard(&self) -> bool {
        let mut bytes = [0; 16 * 1024];
        for _ in 0..DISCARDS_MAX {
            match retried(|| (&*self.stream).read(&mut bytes)) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn watched(&self) -> RwLockReadGuard<'_, Option<AsyncFd<Arc<TcpStream>>>> {
        self.watch.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads at most `wanted` bytes.
    fn poll_read(
        &self,
        context: &mut Context<'_>,
        wanted: usize,
        mut read: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let watch = self.watched();
        let Some(watch) = &*watch else {
            return match retried(|| read(&self.stream)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
                outcome => Poll::Ready(outcome),
            };
        };
        loop {
            let mut ready = ready!(watch.poll_read_ready(context))?;
            match retried(|| read(&self.stream)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
                outcome => {
                    if outcome.as_ref().is_ok_and(|&len| 0 < len && len < wanted) {
                        // There was no more: the next read need not find that out.
                        ready.clear_ready();
                    }
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    /// Writes if the socket has room as far as is known, and notes it if there is none.
    fn try_write(
        &self,
        write: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match &*self.watched() {
            Some(watch) => watch.try_io(Interest::WRITABLE, |stream| write(stream.as_fd())),
            None => write(self.stream.as_fd()),
        }
    }
}

/// Repeats what a signal has interrupted.
fn retried(mut act: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match act() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

impl AsyncRead for SocketReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let target = buffer.initialize_unfilled();
        let read = self.0.poll_read(context, target.len(), |mut stream| stream.read(target));
        let len = ready!(read)?;
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl Source for SocketReader {
    fn poll_read_both(
        &mut self,
        context: &mut Context<'_>,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let wanted = first.len() + second.len();
        self.0.poll_read(context, wanted, |mut stream| {
            stream.read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])
        })
    }
}

impl Transport for Socket {
    fn try_send(&self, parts: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
        let mut control = SendAncillaryBuffer::default();
        self.try_write(|socket| Ok(sendmsg(socket, parts, &mut control, flags)?))
    }

    fn try_send_pipe(&self, pipe: &mut Pipe, more: bool) -> io::Result<usize> {
        self.try_write(|socket| pipe.send_to(socket, more))
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The thread that has it for itself does not wait for room.
        self.watch()?;
        match &*self.watched() {
            Some(watch) => watch.poll_write_ready(context).map_ok(drop),
            // Taken away once more; the next to find it full asks again.
            None => Poll::Ready(Ok(())),
        }
    }

    fn unacknowledged_bytes(&self) -> io::Result<u64> {
        unacknowledged_bytes(self.stream.as_fd())
    }

    fn acknowledged_bytes(&self) -> io::Result<u64> {
        acknowledged_bytes(self.stream.as_fd())
    }

    fn has_hung_up(&self) -> bool {
        self.shows(PollFlags::HUP | PollFlags::ERR)
    }

    fn unread_bytes(&self) -> io::Result<u64> {
        Ok(ioctl_fionread(&self.stream)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const STALL_MAX: Duration = Duration::from_millis(600);
    const READS: usize = 40;
    const READ_INTERVAL: Duration = Duration::from_millis(60);

    /// A socket whose peer has not read anything yet, and how much it can read.
    fn full() -> (Arc<Socket>, TcpStream, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(bytes) = stream.write(&[7; 64 * 1024]) {
            sent += bytes;
        }
        (Socket::new(stream).unwrap(), peer, sent)
    }

    #[tokio::test]
    async fn a_slow_peer_that_still_sends_gets_all_replies() {
        let (socket, mut peer, sent) = full();
        let reader = thread::spawn(move || {
            let mut received = 0;
            let mut bytes = vec![0; sent.div_ceil(READS)];
            loop {
                // Unread, it would reset the connection at a close.
                let _ = peer.write(&[1]);
                match peer.read(&mut bytes).unwrap() {
                    0 => return received,
                    count => received += count,
                }
                thread::sleep(READ_INTERVAL);
            }
        });
        let began = Instant::now();
        socket.finish(STALL_MAX).await;
        drop(socket);
        assert!(began.elapsed() > STALL_MAX, "the peer was not slow");
        assert_eq!(reader.join().unwrap(), sent);
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_is_not_waited_for() {
        let (socket, _peer, _) = full();
        let began = Instant::now();
        socket.finish(READ_INTERVAL).await;
        assert!(began.elapsed() < 10 * STALL_MAX, "{:?}", began.elapsed());
    }
}
