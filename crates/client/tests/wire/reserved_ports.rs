//! The ports below 1024, which some servers demand.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rpc::client::{RESERVED_PORTS, Rpc, RpcOptions};
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;

use crate::peer::{Peer, answered, ask, hard, within};
use crate::skip::skip;

#[tokio::test]
async fn more_connections_than_there_are_reserved_ports_come_from_them_one_after_another() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root has them");
    }
    let options = RpcOptions { reserved_port: true, ..hard() };
    let peer = Peer::new().await;
    for number in 0..RESERVED_PORTS.end() - RESERVED_PORTS.start() + 40 {
        let rpc = Rpc::connect(peer.address(), &options).await.unwrap();
        let mut connected = peer.accept().await;
        assert!(RESERVED_PORTS.contains(&connected.port), "{}: {number}", connected.port);
        let call = ask(&rpc, 1);
        let received = connected.receive().await;
        connected.echo(&received).await;
        assert_eq!(answered(call).await.unwrap(), 1);
        drop(rpc);
        assert_eq!(connected.try_receive().await, None);
    }
}

#[tokio::test]
async fn a_port_below_1024_is_free_at_once_behind_a_connection_that_owes_nothing() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root has them");
    }
    for (reserved_port, is_answered) in [(true, true), (true, false), (false, true)] {
        let options = RpcOptions { reserved_port, ..hard() };
        let (_peer, rpc, mut connected) = Peer::connected(&options).await;
        let call = ask(&rpc, 1);
        connected.begin().await;
        if is_answered {
            let received = connected.receive().await;
            connected.echo(&received).await;
            assert_eq!(answered(call).await.unwrap(), 1);
        } else {
            drop(call);
        }
        drop(rpc);
        if !is_answered {
            assert_eq!(connected.receive().await.asked(), 1);
        }
        let (port, is_free) = (connected.port, reserved_port && is_answered);
        let end = within(connected.stream.read(&mut [0])).await.map_err(|error| error.kind());
        assert_eq!(end, if is_free { Err(ErrorKind::ConnectionReset) } else { Ok(0) });
        drop(connected);
        assert_eq!(becomes_free(port).await, is_free, "{reserved_port} {is_answered}");
    }
}

/// As at the end of a command.
#[test]
fn the_end_of_its_runtime_frees_the_port_of_a_connection() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root has ports below 1024");
    }
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (runtime_of_peer, runtime_of_client) = (runtime(), runtime());
    let peer = runtime_of_peer.block_on(Peer::new());
    let options = RpcOptions { reserved_port: true, ..hard() };
    let rpc = runtime_of_client.block_on(Rpc::connect(peer.address(), &options)).unwrap();
    runtime_of_client.shutdown_background();
    let port = runtime_of_peer.block_on(async {
        let mut connected = peer.accept().await;
        let end = within(connected.stream.read(&mut [0])).await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        connected.port
    });
    assert!(runtime_of_peer.block_on(becomes_free(port)));
    drop(rpc);
}

/// Whether a socket can be bound to a port long before the end of a minute. Another test may have
/// the port for a moment.
async fn becomes_free(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    for _ in 0..50 {
        if TcpSocket::new_v4().unwrap().bind(address).is_ok() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}
