//! The portmapper, RFC 1833: on which TCP port a program is served.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use proto::oncrpc::Credential;
use proto::portmap::{
    Address, Mapping, PORT, PROGRAM, PROTOCOL_TCP, PortmapProcedure, RpcbEntry, RpcbindProcedure,
    VERSION_PORTMAP, VERSION_RPCBIND_3, parse_universal_address,
};
use proto::xdr::{Encode, decode_all};
use rpc::client::{Route, Rpc, RpcOptions, Target};

use crate::error::{Attempt, ServerName};
use crate::{Error, Recovery, Result};

/// Time limit for the portmapper. If a firewall drops the packets, the default port is tried after
/// this.
const PATIENCE: Duration = Duration::from_secs(3);

/// The TCP port of a program, from the portmapper of the host that has the address `service`, of
/// any port; `None` if it is not registered.
///
/// # Errors
/// Those of [`Rpc::connect`] and [`Rpc::call`]: many hosts have no portmapper.
pub async fn port_of(service: SocketAddr, program: u32, version: u32) -> Result<Option<u16>> {
    port_from(on_port(service, PORT), program, version).await
}

/// Another service of the host. A link-local address keeps its scope id, without which it leads
/// nowhere.
pub(crate) fn on_port(mut service: SocketAddr, port: u16) -> SocketAddr {
    service.set_port(port);
    service
}

/// Like [`port_of`], for a portmapper at another address.
///
/// # Errors
/// Those of [`port_of`].
pub async fn port_from(mapper: SocketAddr, program: u32, version: u32) -> Result<Option<u16>> {
    let options = RpcOptions {
        connections: 1,
        timeout: PATIENCE,
        retransmissions: 0,
        recovery: Recovery::Soft,
        reserved_port: false,
    };
    let server = ServerName::from(mapper);
    let rpc = Rpc::connect(mapper, &options)
        .await
        .map_err(|error| Error::of_rpc(error, Attempt::Connect, &server))?;
    let portmapper = Portmapper { rpc, server };
    // Version 2 has no IPv6, and rpcbind does not serve it there.
    let port = match mapper {
        SocketAddr::V4(_) => portmapper.getport(program, version).await?,
        SocketAddr::V6(_) => portmapper.getaddr(program, version).await?,
    };
    Ok(port.filter(|port| *port != 0))
}

struct Portmapper {
    rpc: Rpc,
    server: ServerName,
}

impl Portmapper {
    /// GETPORT, RFC 1833 §3.1.
    async fn getport(&self, program: u32, version: u32) -> Result<Option<u16>> {
        let procedure = PortmapProcedure::Getport;
        let asked = Mapping { program, version, protocol: PROTOCOL_TCP, port: 0 };
        let results = self.call(VERSION_PORTMAP, procedure.code(), &asked).await?;
        let port = decode_all::<u32>(&results)
            .map_err(|error| Error::from(error).in_reply_to(procedure.name()))?;
        Ok(u16::try_from(port).ok())
    }

    /// GETADDR of version 3, RFC 1833 §2.2.1. Only the port of the result is used.
    async fn getaddr(&self, program: u32, version: u32) -> Result<Option<u16>> {
        let procedure = RpcbindProcedure::Getaddr;
        let asked = RpcbEntry { program, version, netid: b"tcp6", address: b"", owner: b"" };
        let results = self.call(VERSION_RPCBIND_3, procedure.code(), &asked).await?;
        let answer = decode_all::<Address<'_>>(&results)
            .map_err(|error| Error::from(error).in_reply_to(procedure.name()))?;
        Ok(parse_universal_address(answer.address).map(|address| address.port()))
    }

    /// Makes a call of a version of the portmapper and returns its results.
    async fn call(
        &self,
        version: u32,
        procedure: u32,
        arguments: &(impl Encode + Sync),
    ) -> Result<Bytes> {
        let target = Target { program: PROGRAM, version, procedure };
        let failed = |error| Error::of_rpc(error, Attempt::Call, &self.server);
        let call = self.rpc.call(Route::Any, target, &Credential::None, arguments, Bytes::new());
        call.map_err(failed)?.await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_of_a_link_local_address_are_found_on_its_link() {
        let nfs: SocketAddr = "[fe80::1%3]:2049".parse().unwrap();
        assert_eq!(on_port(nfs, PORT), "[fe80::1%3]:111".parse().unwrap());
    }
}
