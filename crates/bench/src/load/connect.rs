//! Connections as NFS servers expect them from clients: from a reserved port where that is
//! permitted, for some servers take calls from no other.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rpc::client::RESERVED_PORTS;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout, set_tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// Connects within `timeout`, from an address of this machine that the system chooses.
pub(crate) fn from_reserved_port(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    from_reserved_port_of(any, address, timeout)
}

/// As [`from_reserved_port`], from the address `source`.
pub(crate) fn from_reserved_port_of(
    source: IpAddr,
    address: SocketAddr,
    timeout: Duration,
) -> io::Result<TcpStream> {
    for port in RESERVED_PORTS.rev() {
        match from_port(SocketAddr::new(source, port), address, timeout) {
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            // Not root: no other port will do either.
            Err(Errno::ACCESS | Errno::PERM) => break,
            done => return done.map_err(timed_out),
        }
    }
    from_port(SocketAddr::new(source, 0), address, timeout).map_err(timed_out)
}

/// Connects from `source`; port 0 is any.
fn from_port(
    source: SocketAddr,
    address: SocketAddr,
    timeout: Duration,
) -> Result<TcpStream, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    send_unpaced(&socket)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    // A connection of an earlier phase may have the port for a minute yet (TIME_WAIT); whether it
    // is in the way, connecting fails.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &source)?;
    connect(&socket, &address)?;
    Ok(socket.into())
}

/// Has a socket that is not connected yet, or those that it will accept, send as fast as the peer
/// takes it (`TCP_CONGESTION`, tcp(7)). Where the system's choice is bbr, the timers that pace what
/// is sent double the cost of a large WRITE on loopback: the load's cost, not the server's. Reno is
/// in every kernel.
pub(crate) fn send_unpaced(socket: impl AsFd) -> Result<(), Errno> {
    set_tcp_congestion(socket, "reno")
}

/// The error of connecting when the socket's timeout for sending is over.
fn timed_out(errno: Errno) -> io::Error {
    match errno {
        Errno::INPROGRESS | Errno::AGAIN => ErrorKind::TimedOut.into(),
        errno => errno.into(),
    }
}
