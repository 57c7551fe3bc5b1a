//! Registration of the programs with an rpcbind (RFC 1833 §3).

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use proto::oncrpc::Credential;
use proto::portmap::{Mapping, PORT, PROGRAM, PortmapProcedure, VERSION_PORTMAP};
use proto::xdr::decode_all;
use rpc::client::{Recovery, Route, Rpc, RpcOptions, Target};

use super::{PROGRAMS, mapping};

/// Where the rpcbind of this machine answers.
pub(crate) const RPCBIND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// How long it may take to answer a call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Registers NFS and MOUNT at `nfs_port`, both or none.
///
/// # Errors
/// `rpcbind` does not answer, or it has one of these programs already (`AddrInUse`).
pub(crate) async fn register(rpcbind: SocketAddr, nfs_port: u16) -> io::Result<()> {
    let rpcbind = connect(rpcbind).await?;
    for (index, (program, version)) in PROGRAMS.into_iter().enumerate() {
        let wanted = mapping(program, version, nfs_port);
        let error = match call(&rpcbind, PortmapProcedure::Set, &wanted).await {
            Ok(true) => continue,
            Ok(false) => io::Error::new(
                ErrorKind::AddrInUse,
                format!(
                    "rpcbind has program {program} registered for another server; if that is gone, \
                     run `rpcinfo -d {program} {version}`"
                ),
            ),
            Err(error) => error,
        };
        // Not this program too: rpcbind would remove the other server's.
        if let Err(error) = unset(&rpcbind, &PROGRAMS[..index], nfs_port).await {
            tracing::warn!(%error, "cannot unregister from rpcbind");
        }
        return Err(error);
    }
    Ok(())
}

/// Takes the registrations back.
///
/// # Errors
/// `rpcbind` does not answer.
pub(crate) async fn unregister(rpcbind: SocketAddr, nfs_port: u16) -> io::Result<()> {
    unset(&connect(rpcbind).await?, &PROGRAMS, nfs_port).await
}

async fn unset(rpcbind: &Rpc, programs: &[(u32, u32)], nfs_port: u16) -> io::Result<()> {
    for &(program, version) in programs {
        call(rpcbind, PortmapProcedure::Unset, &mapping(program, version, nfs_port)).await?;
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

/// A call of portmapper version 2 that answers a boolean.
async fn call(rpcbind: &Rpc, procedure: PortmapProcedure, args: &Mapping) -> io::Result<bool> {
    let procedure = procedure.code();
    let target = Target { program: PROGRAM, version: VERSION_PORTMAP, procedure };
    let call = rpcbind.call(Route::Any, target, &Credential::None, args, Bytes::new());
    let results = call.map_err(io::Error::other)?.await.map_err(io::Error::other)?;
    decode_all(&results).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use proto::oncrpc::{decode_call, encode_success};
    use proto::portmap::PROTOCOL_TCP;
    use proto::xdr::{Decode, Reader};
    use proto::{mount3, nfs3};
    use rpc::record;
    use std::io::Write;
    use std::net::TcpListener;
    use tokio::task::{JoinHandle, spawn_blocking};

    use super::*;

    /// A call that an rpcbind got: procedure, program, version, port.
    type Call = (PortmapProcedure, u32, u32, u32);

    /// Answers the calls of one connection with `answers`, and returns the calls.
    fn rpcbind(answers: &'static [bool]) -> (SocketAddr, JoinHandle<Vec<Call>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = spawn_blocking(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answer = |answer: &bool| {
                let record = record::read_blocking(&mut stream, 1000).unwrap().expect("a call");
                let mut r = Reader::new(&record);
                let call = decode_call(&mut r).unwrap();
                assert_eq!((call.program, call.version), (PROGRAM, VERSION_PORTMAP));
                let reply = record::encode(|w| {
                    encode_success(w, call.xid);
                    w.bool(*answer);
                });
                stream.write_all(&reply).unwrap();
                let procedure = PortmapProcedure::from_code(call.procedure).unwrap();
                let Mapping { program, version, protocol, port } = Mapping::decode(&mut r).unwrap();
                assert_eq!(protocol, PROTOCOL_TCP);
                (procedure, program, version, port)
            };
            let calls = answers.iter().map(answer).collect();
            assert_eq!(record::read_blocking(&mut stream, 1000).unwrap(), None, "another call");
            calls
        });
        (address, serving)
    }

    fn wanted(procedure: PortmapProcedure) -> [Call; 2] {
        [(procedure, nfs3::PROGRAM, 3, 2049), (procedure, mount3::PROGRAM, 3, 2049)]
    }

    #[tokio::test]
    async fn both_programs_are_registered_and_taken_back() {
        let (address, serving) = rpcbind(&[true, true]);
        register(address, 2049).await.unwrap();
        assert_eq!(serving.await.unwrap(), wanted(PortmapProcedure::Set));
        let (address, serving) = rpcbind(&[true, false]);
        unregister(address, 2049).await.unwrap();
        assert_eq!(serving.await.unwrap(), wanted(PortmapProcedure::Unset));
    }

    #[tokio::test]
    async fn program_of_another_server_is_an_error() {
        let (address, serving) = rpcbind(&[false]);
        let error = register(address, 2049).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains("`rpcinfo -d 100003 3`"), "{error}");
        assert_eq!(serving.await.unwrap(), wanted(PortmapProcedure::Set)[..1]);
    }

    #[tokio::test]
    async fn registration_that_fails_half_way_is_taken_back() {
        let (address, serving) = rpcbind(&[true, false, true]);
        let error = register(address, 2049).await.unwrap_err();
        assert!(error.to_string().contains("`rpcinfo -d 100005 3`"), "{error}");
        let [nfs, mount] = wanted(PortmapProcedure::Set);
        // MOUNT is the other server's.
        let [unset, _] = wanted(PortmapProcedure::Unset);
        assert_eq!(serving.await.unwrap(), [nfs, mount, unset]);
    }

    #[tokio::test]
    async fn rpcbind_that_does_not_answer_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = register(address, 2049).await.unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
