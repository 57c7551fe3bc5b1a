//! Finding the services of a server, and a flavor of authentication, before the first call.

use proto::mount3::{self as wire, DirectoryArgs, MountOk, MountReply};
use proto::nfs3::{self, FileHandle};
use proto::oncrpc::AcceptStat;
use proto::portmap::{self as mapper, Address, Mapping, RpcbEntry};
use proto::xdr::{Encode, Writer, decode_all};
use rustix::io::Errno;
use spillway_client::mount3::{self, Mount3, Mounted};
use spillway_client::{Error, NfsUrl, Result, portmap};

use crate::fixture::{options, root_user};
use crate::peer::{Peer, within};

fn encoded(results: &impl Encode) -> Vec<u8> {
    let mut w = Writer::new();
    results.encode(&mut w);
    w.into_vec()
}

#[tokio::test]
async fn the_portmapper_is_asked_over_ipv4() {
    let peer = Peer::new().await;
    for (answer, expected) in [(2050, Some(2050)), (0, None), (70_000, None)] {
        let call = tokio::spawn(portmap::port_from(peer.address(), 100_003, 3));
        let mut connected = peer.accept().await;
        let received = connected.receive().await;
        assert_eq!((received.program, received.procedure), (mapper::PROGRAM, 3));
        let asked = Mapping { program: 100_003, version: 3, protocol: 6, port: 0 };
        assert_eq!(received.arguments, encoded(&asked));
        connected.answer(&received, &encoded(&answer)).await;
        assert_eq!(within(call).await.unwrap().unwrap(), expected);
    }
}

#[tokio::test]
async fn the_portmapper_is_asked_over_ipv6() {
    let peer = Peer::on("[::1]:0").await;
    for (answer, expected) in [(&b"::.8.2"[..], Some(2050)), (b"", None), (b"nonsense", None)] {
        let call = tokio::spawn(portmap::port_from(peer.address(), 100_003, 3));
        let mut connected = peer.accept().await;
        let received = connected.receive().await;
        assert_eq!((received.program, received.procedure), (mapper::PROGRAM, 3));
        let asked: RpcbEntry<'_> = decode_all(&received.arguments).unwrap();
        assert_eq!((asked.program, asked.version, asked.netid), (100_003, 3, &b"tcp6"[..]));
        connected.answer(&received, &encoded(&Address { address: answer })).await;
        assert_eq!(within(call).await.unwrap().unwrap(), expected);
    }
}

/// A URL whose NFS and MOUNT services are two peers.
fn url(nfs: &Peer, mount: &Peer) -> NfsUrl {
    let (nfs, mount) = (nfs.address().port(), mount.address().port());
    format!("nfs://127.0.0.1:{nfs}/export?mountport={mount}").parse().unwrap()
}

/// Mounts from a server that offers these flavors.
async fn mount_offering(flavors: &[u32]) -> (Result<Mounted>, Peer) {
    mount_of(b"root", flavors).await
}

/// The same with this root handle.
async fn mount_of(root: &[u8], flavors: &[u32]) -> (Result<Mounted>, Peer) {
    let (nfs, mount) = (Peer::new().await, Peer::new().await);
    let url = url(&nfs, &mount);
    let serve = async {
        let mut connected = mount.accept().await;
        let received = connected.receive().await;
        assert_eq!((received.program, received.procedure), (wire::PROGRAM, 1));
        assert_eq!(received.arguments, encoded(&DirectoryArgs { directory: b"/export" }));
        let file_handle = FileHandle::new(root).unwrap();
        let ok = MountOk { file_handle, auth_flavors: flavors.into() };
        connected.answer(&received, &encoded(&MountReply::Ok(ok))).await;
    };
    let (options, user) = (options(), root_user());
    let (mounted, ()) = tokio::join!(within(mount3::mount(&url, &options, &user)), serve);
    (mounted, nfs)
}

#[tokio::test]
async fn calls_carry_a_flavor_that_the_server_takes() {
    for (offered, expected) in [(&[6, 1][..], 1), (&[], 1), (&[0, 1], 1), (&[0], 0), (&[6, 0], 0)] {
        let (mounted, nfs) = mount_offering(offered).await;
        let mounted = mounted.unwrap();
        assert_eq!(mounted.root.as_bytes(), b"root");
        let mut connected = nfs.accept().await;
        let call = tokio::spawn(mounted.nfs.null());
        let received = connected.receive().await;
        assert_eq!((received.program, received.procedure), (nfs3::PROGRAM, 0));
        assert_eq!(received.flavor, expected, "{offered:?}");
        connected.answer(&received, &[]).await;
        within(call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn root_handle_without_bytes_is_refused() {
    match mount_of(b"", &[1]).await.0.unwrap_err() {
        Error::Malformed { error, .. } => assert_eq!(error.what, "nfs_fh3"),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn unsupported_requirements_of_a_server_are_named() {
    let error = mount_offering(&[390_003, 390_005]).await.0.unwrap_err();
    let Error::Flavor { server, .. } = &error else { panic!("{error}") };
    assert_eq!(server.host, "127.0.0.1");
    let what = "requires an unsupported authentication flavor, one of [390003, 390005]";
    assert_eq!(error.to_string(), format!("{server} {what}"));
}

#[tokio::test]
async fn mount_is_tried_on_the_nfs_port_first_and_then_by_the_portmapper() {
    let peer = Peer::new().await;
    let url: NfsUrl = format!("nfs://{}/export", peer.address()).parse().unwrap();
    let (options, user) = (options(), root_user());
    let serve = async {
        let mut connected = peer.accept().await;
        let received = connected.receive().await;
        assert_eq!((received.program, received.procedure), (wire::PROGRAM, 0));
        connected.refuse(received.xid, AcceptStat::ProgUnavail).await;
    };
    let (found, ()) = tokio::join!(within(Mount3::find(&url, &options, &user)), serve);
    // Whether this machine has a portmapper or not, it does not know of this peer; if it has a
    // MOUNT service by chance, that is found.
    if let Err(error) = found {
        let text = error.to_string();
        assert!(matches!(error, Error::Connection { .. }), "{text}");
        assert!(
            text.starts_with("cannot connect to 127.0.0.1:111: ") || text.contains("portmapper"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_mount_service_that_is_not_there_is_named_with_its_port() {
    let nfs = Peer::new().await;
    // Bound and not listening, so that no other process gets it meanwhile.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let mut url: NfsUrl = format!("nfs://{}/export", nfs.address()).parse().unwrap();
    url.mount_port = Some(port);
    let error = mount3::mount(&url, &options(), &root_user()).await.unwrap_err();
    assert_eq!(error.errno(), Errno::CONNREFUSED);
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot connect to 127.0.0.1:{port}: ")), "{text}");
}

#[tokio::test]
async fn a_host_that_has_no_address_is_named() {
    let url: NfsUrl = "nfs://no-such-host.invalid/export".parse().unwrap();
    let error = mount3::mount(&url, &options(), &root_user()).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot reach no-such-host.invalid: "), "{error}");
}
