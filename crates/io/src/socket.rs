//! The kernel's state of a connected TCP socket, and its watch by a runtime.

use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;

/// Has the current runtime watch a socket that does not block.
///
/// # Errors
/// The runtime's poll descriptor refuses it.
pub fn watch_socket(socket: Arc<TcpStream>) -> io::Result<AsyncFd<Arc<TcpStream>>> {
    // SAFETY: the descriptor stays the same, and open, as long as the `Arc` lives, which the watch
    // owns.
    let watched = unsafe { AsyncFd::register(socket) };
    watched.map_err(Into::into)
}

/// The bytes written to a TCP socket that its peer has not acknowledged yet (`SIOCOUTQ`, tcp(7)).
/// After a reset it is the number at that moment.
///
/// # Errors
/// The errors of ioctl(2).
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, whose number is TIOCOUTQ's, stores one int where its argument points, and
    // that is a live local of this type. The descriptor is borrowed, so it stays open.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    u64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// The bytes written to a TCP socket that its peer has acknowledged (`tcpi_bytes_acked` of
/// `TCP_INFO`, tcp(7)). Exact also while other threads write.
///
/// # Errors
/// The errors of getsockopt(2).
pub fn acknowledged_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len =
        libc::socklen_t::try_from(size_of::<libc::tcp_info>()).map_err(io::Error::other)?;
    // SAFETY: the kernel stores at most `len` bytes where the pointer points, and that is a live
    // local of this size. The descriptor is borrowed, so it stays open.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it consists of integers, for which all bytes are valid, and was zeroed.
    Ok(unsafe { info.assume_init() }.tcpi_bytes_acked)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use rustix::net::sockopt::set_socket_linger;

    use super::*;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn received_bytes_become_acknowledged() {
        let (mut near, mut far) = connected();
        let before = acknowledged_bytes(near.as_fd()).unwrap();
        near.write_all(b"twelve bytes").unwrap();
        far.read_exact(&mut [0; 12]).unwrap();
        let begun = Instant::now();
        while unacknowledged_bytes(near.as_fd()).unwrap() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert_eq!(acknowledged_bytes(near.as_fd()).unwrap() - before, 12);
    }

    #[test]
    fn bytes_that_a_reset_cut_off_stay_unacknowledged() {
        let (mut near, far) = connected();
        far.set_nonblocking(true).unwrap();
        // More than the receiver's buffer takes.
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 1 << 16]).is_ok() {}
        set_socket_linger(&far, Some(Duration::ZERO)).unwrap();
        drop(far);
        let begun = Instant::now();
        while near.take_error().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert!(unacknowledged_bytes(near.as_fd()).unwrap() > 0);
    }
}
