//! Listening sockets: each accepted connection becomes a task.

use std::io::Result;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::connection;
use crate::network_threads::NetworkThreads;
use crate::procedures::Programs;
use crate::service::Service;

/// How long to wait after a failed accept: it is out of descriptors, and asking again at once would
/// only burn the processor.
const RETRY: Duration = Duration::from_millis(100);
/// The congestion control (tcp(7)) of connections within this machine, in every kernel. There is no
/// network to share, and where the system's choice is bbr, its timers send instead of the server's
/// threads, in an order that does not know clients (figures: docs/decisions, "local-connections").
const WITHIN_MACHINE: &str = "reno";

/// The congestion control of accepted connections.
struct CongestionControl {
    /// That of connections to other machines: the system's choice.
    system: String,
}

impl CongestionControl {
    /// The sockets that `listener` accepts begin [`WITHIN_MACHINE`], because one that has begun to
    /// pace goes on with it. `None` if another was chosen for this listener, as a socket unit can.
    fn of(listener: impl AsFd) -> Result<Option<Self>> {
        let new = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let system = tcp_congestion(new)?;
        let chosen = tcp_congestion(&listener)?;
        if chosen != system && chosen != WITHIN_MACHINE {
            return Ok(None);
        }
        set_tcp_congestion(listener, WITHIN_MACHINE)?;
        Ok(Some(Self { system }))
    }

    /// Sets that of an accepted connection, unless its route has one.
    fn set(&self, stream: &TcpStream, peer: SocketAddr) -> Result<()> {
        let is_chosen = tcp_congestion(stream)? != WITHIN_MACHINE;
        if is_chosen || is_within_machine(stream.local_addr()?.ip(), peer.ip()) {
            return Ok(());
        }
        Ok(set_tcp_congestion(stream, &self.system)?)
    }
}

/// Whether both ends of a connection are on this machine.
fn is_within_machine(near: IpAddr, far: IpAddr) -> bool {
    let (near, far) = (near.to_canonical(), far.to_canonical());
    near == far || far.is_loopback()
}

/// Accepts connections until the server stops. While all places are taken by connections at work,
/// new ones wait in the kernel's queue.
pub(crate) async fn accept(
    service: Arc<Service>,
    programs: Programs,
    listener: std::net::TcpListener,
    threads: Arc<NetworkThreads>,
    mut stop: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot use a listening socket"),
    };
    let congestion = CongestionControl::of(&listener).unwrap_or_else(|error| {
        tracing::debug!(%error, "the congestion control is the system's choice");
        None
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                service.connections.evict_one();
                service.vfs.close_some();
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let permit = tokio::select! {
            permit = service.connections.enter(address, || !service.knows_address(address)) => permit,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        // It came in on this thread and lives on another.
        let (Some(permit), Ok(stream)) = (permit, stream.into_std()) else { continue };
        if let Some(Err(error)) = congestion.as_ref().map(|control| control.set(&stream, address)) {
            tracing::debug!(client = %address, %error, "cannot set the congestion control");
        }
        let programs = stream.local_addr().map_or(programs, |called| programs.called_at(called));
        let service = Arc::clone(&service);
        let (thread, flow) = threads.join(permit.activity.client());
        thread.spawn(connection::serve(
            service,
            programs,
            stream,
            (permit, flow),
            stop.clone(),
            connection::LAST_CALLS_MAX,
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn both_ends_are_on_this_machine_if_they_have_one_address_or_loopback_ones() {
        let cases = [
            ("127.0.0.1", "127.0.0.2", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.1", "127.0.0.1", true),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("2001:db8::1", "2001:db8::2", false),
        ];
        for (near, far, expected) in cases {
            let (near, far) = (near.parse().unwrap(), far.parse().unwrap());
            assert_eq!(is_within_machine(near, far), expected, "{near} {far}");
        }
    }

    #[test]
    fn only_connections_to_other_machines_have_the_system_s_congestion_control() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let system = tcp_congestion(&listener).unwrap();
        let control = CongestionControl::of(&listener).unwrap().unwrap();
        let _far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, peer) = listener.accept().unwrap();
        control.set(&near, peer).unwrap();
        assert_eq!(tcp_congestion(&near).unwrap(), WITHIN_MACHINE);
        control.set(&near, SocketAddr::from(([192, 0, 2, 1], 800))).unwrap();
        assert_eq!(tcp_congestion(&near).unwrap(), system);
        // A server that inherits the socket of another, later.
        assert_eq!(CongestionControl::of(&listener).unwrap().unwrap().system, system);
    }
}
