//! Connections as NFS servers expect them from clients: from a reserved port where that is
//! permitted, for some servers take calls from no other.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// Ports from which a server that checks them takes calls: below 665 well-known services live.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

/// Connects within `timeout`.
pub(super) fn from_reserved_port(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    for port in RESERVED_PORTS.rev() {
        match from_port(address, port, timeout) {
            Ok(stream) => return Ok(stream),
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            // Not root: no other port will do either.
            Err(Errno::ACCESS | Errno::PERM) => break,
            // What connecting says when the socket's timeout for sending is over.
            Err(Errno::INPROGRESS | Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    TcpStream::connect_timeout(&address, timeout)
}

fn from_port(address: SocketAddr, port: u16, timeout: Duration) -> Result<TcpStream, Errno> {
    let (family, from) = match address {
        SocketAddr::V4(_) => (AddressFamily::INET, (Ipv4Addr::UNSPECIFIED, port).into()),
        SocketAddr::V6(_) => (AddressFamily::INET6, (Ipv6Addr::UNSPECIFIED, port).into()),
    };
    let from: SocketAddr = from;
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    // A connection of an earlier phase may have the port for a minute yet (TIME_WAIT); whether it
    // is in the way, connecting tells.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &from)?;
    connect(&socket, &address)?;
    Ok(socket.into())
}
