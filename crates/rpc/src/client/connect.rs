//! Making a TCP connection the way NFS servers expect it from a client: from a reserved port, and
//! from the same port again.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Once;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};

use super::RpcOptions;

/// Ports from which a server that checks them takes calls, those that the Linux client uses:
/// below 1024 only root may bind, and below 665 well-known services live.
pub const RESERVED_PORTS: RangeInclusive<u16> = 665..=1023;
/// A process reports once that none of them is free.
static NONE_IS_FREE: Once = Once::new();
/// When a connection has been silent for this long, the kernel asks whether the peer is there, and
/// asks so often, so far apart.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_PROBES: u32 = 3;

/// A port of this host, held from one connection to the next: while neither is there, no other
/// socket can take the port.
#[derive(Debug)]
pub(super) struct HeldPort {
    number: u16,
    /// Bound and never connected. The kernel gives its port to no other socket, except to one that
    /// asks for this number and shares it.
    _holder: TcpSocket,
}

impl HeldPort {
    /// Holds the port of a connection; `None`, and the connection is as good, where that fails.
    pub(super) fn of(stream: &TcpStream) -> Option<Self> {
        let hold = || {
            let address = stream.local_addr()?;
            // Bound without it, so that no other connection had the port. Both have to share now.
            sockopt::set_socket_reuseaddr(stream, true)?;
            let holder = bind(address, address.port(), true)?;
            Ok(Self { number: address.port(), _holder: holder })
        };
        hold().inspect_err(|error: &io::Error| tracing::debug!(%error, "port not held")).ok()
    }

    /// Whether `stream` is a connection from this port.
    pub(super) fn is_of(&self, stream: &TcpStream) -> bool {
        stream.local_addr().is_ok_and(|address| address.port() == self.number)
    }
}

/// Connects within the timeout of the options.
///
/// `port_before` is the port of a connection that this one replaces: some servers, Linux among
/// them, know a call that is sent again by the port it comes from (`nfsd_cacherep_alloc` keeps it
/// in the key). Where it is not to be had, any port is better than none.
pub(super) async fn connect(
    address: SocketAddr,
    port_before: Option<&HeldPort>,
    options: &RpcOptions,
) -> io::Result<TcpStream> {
    let attempt = async {
        if let Some(port) = port_before
            && let Some(stream) = connect_from(address, port.number, true).await?
        {
            return Ok(stream);
        }
        if options.reserved_port
            && let Some(stream) = connect_from_reserved(address).await?
        {
            return Ok(stream);
        }
        // Bound first: a port that the kernel chooses while it connects cannot be held.
        bind(address, 0, false)?.connect(address).await
    };
    let stream = tokio::time::timeout(options.timeout, attempt)
        .await
        .map_err(|_| io::Error::from(Errno::TIMEDOUT))??;
    // Calls are whole when they are sent: holding them back would only delay them.
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
    Ok(stream)
}

/// Has a connection that the peer owes nothing leave its reserved port free when it is closed. One
/// that is closed in order keeps it for a minute (TIME_WAIT), and another socket can be bound to it
/// only if it shares it, whatever server that one is for.
pub(super) fn free_port_when_closed(stream: &TcpStream) {
    if stream.local_addr().is_ok_and(|local| RESERVED_PORTS.contains(&local.port())) {
        // At once: a server that does not know that its last reply has arrived keeps it for a
        // repetition of the call.
        let _ = sockopt::set_tcp_quickack(stream, true);
        reset_when_closed(stream);
    }
}

/// Has a connection end with a reset when it is closed, so that its port can be used again at once.
pub(super) fn reset_when_closed(stream: &TcpStream) {
    // It is only closed in order where that fails, and another port is taken.
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

async fn connect_from_reserved(address: SocketAddr) -> io::Result<Option<TcpStream>> {
    let count = RESERVED_PORTS.end() - RESERVED_PORTS.start() + 1;
    // Mounts that begin at one time do not all try the same ports.
    let first = u16::try_from(super::random() % u64::from(count)).expect("less than the count");
    for step in 0..count {
        let port = RESERVED_PORTS.start() + (first + step) % count;
        match connect_from(address, port, false).await {
            Ok(None) => {}
            // Not root: no other port will do either.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
            result => return result,
        }
    }
    NONE_IS_FREE.call_once(|| {
        tracing::warn!(
            "no port from {} to {} is free; a server that demands one refuses the calls",
            RESERVED_PORTS.start(),
            RESERVED_PORTS.end()
        );
    });
    Ok(None)
}

/// Connects from a port of this host; `None` when the port is taken.
async fn connect_from(
    address: SocketAddr,
    port: u16,
    shared: bool,
) -> io::Result<Option<TcpStream>> {
    let socket = match bind(address, port, shared) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
        bound => bound?,
    };
    match socket.connect(address).await {
        Ok(stream) => Ok(Some(stream)),
        // Another connection to this address has the port. A port that is not shared has none: the
        // host has no address of its own to connect from.
        Err(error) if shared && error.kind() == ErrorKind::AddrNotAvailable => Ok(None),
        Err(error) => Err(error),
    }
}

/// A socket on `port` of this host, or on a free one for 0, in the address family of `like`.
///
/// `shared`: another socket may be bound to the port if it shares it, too.
fn bind(like: SocketAddr, port: u16, shared: bool) -> io::Result<TcpSocket> {
    let (socket, any) = match like {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    socket.set_reuseaddr(shared)?;
    socket.bind(SocketAddr::new(any, port))?;
    Ok(socket)
}
