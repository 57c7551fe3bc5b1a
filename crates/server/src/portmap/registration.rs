//! Registration of the programs with an rpcbind (RFC 1833 §3).

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use proto::oncrpc::{AcceptStat, Credential};
use proto::portmap::{
    PORT, PROGRAM, PROTOCOL_TCP, RpcbEntry, RpcbindProcedure, VERSION_PORTMAP, VERSION_RPCBIND_3,
    universal_address,
};
use proto::xdr::{Encode, decode_all};
use rpc::client::{Error, Recovery, Route, Rpc, RpcOptions, Target};

use super::{PROGRAMS, TRANSPORTS, Transport, mapping};

/// Where the rpcbind of this machine answers.
pub(crate) const RPCBIND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// How long it may take to answer a call.
const PATIENCE: Duration = Duration::from_secs(5);

/// A program on a transport.
struct Entry {
    program: u32,
    version: u32,
    transport: &'static Transport,
    port: u16,
}

/// NFS and MOUNT in each family that sockets on `listening` take, at the port of the first of them:
/// rpcbind has one address for each program and transport.
fn entries(listening: &[SocketAddr]) -> Vec<Entry> {
    let tcp = TRANSPORTS.iter().filter(|transport| transport.protocol == PROTOCOL_TCP);
    let ports = tcp.filter_map(|transport| {
        let first = listening.iter().find(|address| transport.reaches(address.ip()))?;
        Some((transport, first.port()))
    });
    let entries = ports.flat_map(|(transport, port)| {
        PROGRAMS.map(|(program, version)| Entry { program, version, transport, port })
    });
    entries.collect()
}

/// Registers NFS and MOUNT for sockets on `listening`, all of them or none.
///
/// # Errors
/// The portmapper at `address` does not answer, or refuses one of these programs (`AddrInUse`):
/// it has that already, or registers none.
pub(crate) async fn register(address: SocketAddr, listening: &[SocketAddr]) -> io::Result<()> {
    let rpcbind = connect(address).await?;
    let entries = entries(listening);
    for (index, entry) in entries.iter().enumerate() {
        let Entry { program, version, .. } = entry;
        let error = match call(&rpcbind, RpcbindProcedure::Set, entry).await {
            Ok(true) => continue,
            // An rpcbind has an entry of another server; the portmapper of `serve` takes none.
            Ok(false) => io::Error::new(
                ErrorKind::AddrInUse,
                format!(
                    "the portmapper on {address} refused to register program {program}: `rpcinfo -p` \
                     lists the server that has it (if that is gone, run `rpcinfo -d {program} \
                     {version}`), or the portmapper is another `spillway serve --portmap`, which \
                     registers no other server"
                ),
            ),
            Err(error) => error,
        };
        // Not this entry too: rpcbind would remove the other server's.
        if let Err(error) = unset(&rpcbind, &entries[..index]).await {
            tracing::warn!(%error, "cannot unregister from rpcbind");
        }
        return Err(error);
    }
    Ok(())
}

/// Removes the registrations.
///
/// # Errors
/// `rpcbind` does not answer.
pub(crate) async fn unregister(rpcbind: SocketAddr, listening: &[SocketAddr]) -> io::Result<()> {
    unset(&connect(rpcbind).await?, &entries(listening)).await
}

async fn unset(rpcbind: &Rpc, entries: &[Entry]) -> io::Result<()> {
    for entry in entries {
        call(rpcbind, RpcbindProcedure::Unset, entry).await?;
    }
    Ok(())
}

async fn connect(rpcbind: SocketAddr) -> io::Result<Rpc> {
    let options = RpcOptions {
        connections: 1,
        timeout: PATIENCE,
        retransmissions: 0,
        recovery: Recovery::Soft,
        // From there the registration belongs to root, and no other user can remove it.
        reserved_port: true,
    };
    Rpc::connect(rpcbind, &options).await.map_err(io::Error::other)
}

/// SET or UNSET of `entry`; each has one code in all versions. A portmapper without version 3 gets
/// a call of version 2 for IPv4, and none for IPv6, which version 2 does not have.
async fn call(rpcbind: &Rpc, procedure: RpcbindProcedure, entry: &Entry) -> io::Result<bool> {
    let &Entry { program, version, transport, port } = entry;
    let address = universal_address(SocketAddr::new(transport.anywhere, port));
    let (netid, address) = (transport.netid, address.as_bytes());
    // rpcbind determines the owner itself.
    let args = RpcbEntry { program, version, netid, address, owner: b"" };
    let mut answer = call_version(rpcbind, VERSION_RPCBIND_3, procedure, &args).await;
    if let Err(Error::Accept(AcceptStat::ProgMismatch { .. })) = answer {
        let args = mapping(program, version, port);
        answer = match transport.anywhere {
            IpAddr::V4(_) => call_version(rpcbind, VERSION_PORTMAP, procedure, &args).await,
            IpAddr::V6(_) => Ok(true),
        };
    }
    answer.map_err(io::Error::other)
}

/// A call that answers a boolean.
async fn call_version(
    rpcbind: &Rpc,
    version: u32,
    procedure: RpcbindProcedure,
    args: &(impl Encode + Sync),
) -> Result<bool, Error> {
    let target = Target { program: PROGRAM, version, procedure: procedure.code() };
    let call = rpcbind.call(Route::Any, target, &Credential::None, args, Bytes::new());
    Ok(decode_all(&call?.await?)?)
}

#[cfg(test)]
mod tests {
    use proto::oncrpc::{ReplyHeader, decode_call, encode_success};
    use proto::portmap::Mapping;
    use proto::xdr::{Decode, Reader};
    use proto::{mount3, nfs3};
    use rpc::record;
    use std::io::Write;
    use std::net::TcpListener;
    use tokio::task::{JoinHandle, spawn_blocking};

    use super::*;

    /// A call that a portmapper got: version, procedure, program, transport and address.
    type Call = (u32, RpcbindProcedure, u32, String);

    /// Answers the calls of one connection with `answers`, and returns the calls. `None` is
    /// PROG_MISMATCH.
    fn rpcbind(answers: &'static [Option<bool>]) -> (SocketAddr, JoinHandle<Vec<Call>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = spawn_blocking(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answer = |answer: &Option<bool>| {
                let record = record::read_blocking(&mut stream, 1000).unwrap().expect("a call");
                let mut r = Reader::new(&record);
                let call = decode_call(&mut r).unwrap();
                assert_eq!(call.program, PROGRAM);
                let reply = record::encode(|w| match answer {
                    Some(answer) => {
                        encode_success(w, call.xid);
                        w.bool(*answer);
                    }
                    None => {
                        let stat = AcceptStat::ProgMismatch { low: 2, high: 2 };
                        ReplyHeader::Accepted { xid: call.xid, stat }.encode(w);
                    }
                });
                stream.write_all(&reply).unwrap();
                let procedure = RpcbindProcedure::from_code(call.procedure).unwrap();
                let (program, version, place) = argument(call.version, &mut r);
                assert_eq!(version, 3);
                (call.version, procedure, program, place)
            };
            let calls = answers.iter().map(answer).collect();
            assert_eq!(record::read_blocking(&mut stream, 1000).unwrap(), None, "another call");
            calls
        });
        (address, serving)
    }

    /// The program, its version, its transport and address.
    fn argument(version: u32, r: &mut Reader<'_>) -> (u32, u32, String) {
        if version == VERSION_PORTMAP {
            let Mapping { program, version, protocol, port } = Mapping::decode(r).unwrap();
            return (program, version, format!("{protocol} {port}"));
        }
        let RpcbEntry { program, version, netid, address, .. } = RpcbEntry::decode(r).unwrap();
        let [netid, address] = [netid, address].map(String::from_utf8_lossy);
        (program, version, format!("{netid} {address}"))
    }

    fn wanted(procedure: RpcbindProcedure) -> [Call; 2] {
        [nfs3::PROGRAM, mount3::PROGRAM]
            .map(|program| (VERSION_RPCBIND_3, procedure, program, "tcp 0.0.0.0.8.1".into()))
    }

    fn listening(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn both_programs_are_registered_and_removed() {
        let listening = listening(&["127.0.0.1:2049"]);
        let (address, serving) = rpcbind(&[Some(true), Some(true)]);
        register(address, &listening).await.unwrap();
        assert_eq!(serving.await.unwrap(), wanted(RpcbindProcedure::Set));
        let (address, serving) = rpcbind(&[Some(true), Some(false)]);
        unregister(address, &listening).await.unwrap();
        assert_eq!(serving.await.unwrap(), wanted(RpcbindProcedure::Unset));
    }

    #[test]
    fn each_family_that_is_listened_on_has_an_entry_with_its_first_port() {
        let table: [(&[&str], &[&str]); 5] = [
            (&["192.0.2.1:2049"], &["tcp 2049"]),
            (&["[2001:db8::1]:2049"], &["tcp6 2049"]),
            (&["[::]:2049"], &["tcp 2049", "tcp6 2049"]),
            (&["[::1]:2050", "127.0.0.1:2049", "0.0.0.0:2051"], &["tcp 2049", "tcp6 2050"]),
            (&["[::ffff:192.0.2.1]:2049"], &["tcp 2049"]),
        ];
        for (addresses, expected) in table {
            let entries = entries(&listening(addresses));
            let of_nfs = entries.iter().filter(|entry| entry.program == nfs3::PROGRAM);
            let netid = |entry: &Entry| String::from_utf8_lossy(entry.transport.netid);
            let of_nfs: Vec<String> =
                of_nfs.map(|entry| format!("{} {}", netid(entry), entry.port)).collect();
            assert_eq!(of_nfs, expected, "{addresses:?}");
            assert_eq!(entries.len(), 2 * expected.len());
        }
    }

    #[tokio::test]
    async fn without_version_3_ipv4_is_registered_by_version_2() {
        let listening = listening(&["[::]:2049"]);
        let (address, serving) = rpcbind(&[None, Some(true), None, Some(true), None, None]);
        register(address, &listening).await.unwrap();
        let calls = serving.await.unwrap();
        let by_version_2 = calls.iter().filter(|call| call.0 == VERSION_PORTMAP);
        let set = RpcbindProcedure::Set;
        let expected = [nfs3::PROGRAM, mount3::PROGRAM];
        let expected = expected.map(|program| (VERSION_PORTMAP, set, program, "6 2049".into()));
        assert!(by_version_2.eq(&expected), "{calls:?}");
    }

    #[tokio::test]
    async fn program_of_another_server_is_an_error() {
        let (address, serving) = rpcbind(&[Some(false)]);
        let error = register(address, &listening(&["0.0.0.0:2049"])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let head = format!("the portmapper on {address} refused to register program 100003: ");
        let causes = ["`rpcinfo -d 100003 3`", "another `spillway serve --portmap`"];
        let error = error.to_string();
        assert!(error.starts_with(&head), "{error}");
        assert!(causes.iter().all(|cause| error.contains(cause)), "{error}");
        assert_eq!(serving.await.unwrap(), wanted(RpcbindProcedure::Set)[..1]);
    }

    #[tokio::test]
    async fn registration_that_fails_half_way_is_undone() {
        let (address, serving) = rpcbind(&[Some(true), Some(false), Some(true)]);
        let error = register(address, &listening(&["0.0.0.0:2049"])).await.unwrap_err();
        assert!(error.to_string().contains("`rpcinfo -d 100005 3`"), "{error}");
        let [nfs, mount] = wanted(RpcbindProcedure::Set);
        // MOUNT is the other server's.
        let [unset, _] = wanted(RpcbindProcedure::Unset);
        assert_eq!(serving.await.unwrap(), [nfs, mount, unset]);
    }

    #[tokio::test]
    async fn rpcbind_that_does_not_answer_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = register(address, &listening(&["0.0.0.0:2049"])).await.unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
