//! The portmapper (RFC 1833): serves the ports of NFS and MOUNT on port 111. Where an rpcbind has
//! that port, [`registration`] has it do so.

pub(crate) mod registration;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use proto::oncrpc::{AcceptStat, ReplyHeader, decode_call, encode_success};
use proto::portmap::{
    Address, Mapping, PORT, PROGRAM, PROTOCOL_TCP, PROTOCOL_UDP, PortmapProcedure, RpcbEntry,
    RpcbindProcedure, VERSION_PORTMAP, VERSION_RPCBIND_3, VERSION_RPCBIND_4, universal_address,
};
use proto::xdr::{Encode, Reader, Writer, decode_all, encode_list};
use proto::{mount3, nfs3};
use tokio::net::UdpSocket;

use crate::procedures::{Operation, Procedure, Programs};
use crate::request::Refusal;

/// The longest datagram that can be a call of the portmapper.
const DATAGRAM_BYTES_MAX: usize = 4096;
/// The programs that clients need.
const PROGRAMS: [(u32, u32); 2] =
    [(nfs3::PROGRAM, nfs3::VERSION), (mount3::PROGRAM, mount3::VERSION)];

/// Answers a call, writing the results behind the reply header.
pub(crate) fn execute(
    nfs_port: u16,
    procedure: &Procedure,
    args: &[u8],
    reply: &mut Writer,
) -> Result<(), Refusal> {
    match procedure.operation {
        Operation::Portmap(procedure) => execute_portmap(nfs_port, procedure, args, reply),
        Operation::Rpcbind(procedure) => execute_rpcbind(nfs_port, procedure, args, reply),
        Operation::Nfs3(_) | Operation::Nfs4(_) | Operation::Mount3(_) => {
            Err(Refusal::NotExecuted(AcceptStat::ProgUnavail))
        }
    }
}

fn execute_portmap(
    nfs_port: u16,
    procedure: PortmapProcedure,
    args: &[u8],
    reply: &mut Writer,
) -> Result<(), Refusal> {
    match procedure {
        PortmapProcedure::Null => Reader::new(args).finish()?,
        PortmapProcedure::Getport => {
            let asked: Mapping = decode_all(args)?;
            let port = find(nfs_port, asked.program, asked.version, asked.protocol);
            reply.u32(port.unwrap_or(0).into());
        }
        PortmapProcedure::Dump => {
            Reader::new(args).finish()?;
            encode_list(reply, mappings(nfs_port));
        }
        // This mapper speaks for its own server only.
        PortmapProcedure::Set | PortmapProcedure::Unset => {
            decode_all::<Mapping>(args)?;
            reply.bool(false);
        }
        PortmapProcedure::Callit => return Err(Refusal::NotExecuted(AcceptStat::ProcUnavail)),
    }
    Ok(())
}

fn execute_rpcbind(
    nfs_port: u16,
    procedure: RpcbindProcedure,
    args: &[u8],
    reply: &mut Writer,
) -> Result<(), Refusal> {
    match procedure {
        RpcbindProcedure::Null => Reader::new(args).finish()?,
        RpcbindProcedure::Getaddr | RpcbindProcedure::Getversaddr => {
            getaddr(nfs_port, args, reply)?;
        }
        RpcbindProcedure::Dump => {
            Reader::new(args).finish()?;
            dump_rpcbind(nfs_port, reply);
        }
        RpcbindProcedure::Set | RpcbindProcedure::Unset => {
            decode_all::<RpcbEntry<'_>>(args)?;
            reply.bool(false);
        }
        RpcbindProcedure::Gettime => {
            Reader::new(args).finish()?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            reply.u32(u32::try_from(now.as_secs()).unwrap_or(u32::MAX));
        }
        RpcbindProcedure::Callit
        | RpcbindProcedure::Uaddr2taddr
        | RpcbindProcedure::Taddr2uaddr
        | RpcbindProcedure::Indirect
        | RpcbindProcedure::Getaddrlist
        | RpcbindProcedure::Getstat => return Err(Refusal::NotExecuted(AcceptStat::ProcUnavail)),
    }
    Ok(())
}

/// GETADDR answers with the unspecified address: clients keep the one they asked and take the port.
fn getaddr(nfs_port: u16, args: &[u8], reply: &mut Writer) -> Result<(), Refusal> {
    let asked: RpcbEntry<'_> = decode_all(args)?;
    let protocol = match asked.netid {
        b"tcp" | b"tcp6" => PROTOCOL_TCP,
        b"udp" | b"udp6" => PROTOCOL_UDP,
        _ => 0,
    };
    let address =
        find(nfs_port, asked.program, asked.version, protocol).map_or_else(String::new, anywhere);
    Address { address: address.as_bytes() }.encode(reply);
    Ok(())
}

fn dump_rpcbind(nfs_port: u16, reply: &mut Writer) {
    for mapping in mappings(nfs_port) {
        let netid: &[u8] = if mapping.protocol == PROTOCOL_UDP { b"udp" } else { b"tcp" };
        let address = anywhere(u16::try_from(mapping.port).expect("made from a port"));
        let (program, version) = (mapping.program, mapping.version);
        reply.bool(true);
        RpcbEntry { program, version, netid, address: address.as_bytes(), owner: b"superuser" }
            .encode(reply);
    }
    reply.bool(false);
}

fn anywhere(port: u16) -> String {
    universal_address(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
}

fn mappings(nfs_port: u16) -> impl Iterator<Item = Mapping> {
    let own = [VERSION_RPCBIND_4, VERSION_RPCBIND_3, VERSION_PORTMAP].into_iter();
    let own = own.flat_map(|version| {
        [PROTOCOL_TCP, PROTOCOL_UDP].map(|protocol| Mapping {
            program: PROGRAM,
            version,
            protocol,
            port: PORT.into(),
        })
    });
    own.chain(PROGRAMS.map(|(program, version)| mapping(program, version, nfs_port)))
}

fn mapping(program: u32, version: u32, port: u16) -> Mapping {
    Mapping { program, version, protocol: PROTOCOL_TCP, port: port.into() }
}

/// The port of a program; as rpcbind does, another version's where the one asked for is missing, so
/// that the client gets the mismatch from the program itself.
fn find(nfs_port: u16, program: u32, version: u32, protocol: u32) -> Option<u16> {
    let candidates =
        || mappings(nfs_port).filter(move |m| m.program == program && m.protocol == protocol);
    let exact = candidates().find(|mapping| mapping.version == version);
    let port = exact.or_else(|| candidates().next())?.port;
    u16::try_from(port).ok()
}

/// Answers datagrams until the socket fails.
pub(crate) async fn serve_datagrams(socket: std::net::UdpSocket, nfs_port: u16) {
    let socket = match UdpSocket::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!(%error, "cannot use the portmapper's socket"),
    };
    let mut datagram = [0; DATAGRAM_BYTES_MAX];
    loop {
        let (len, from) = match socket.recv_from(&mut datagram).await {
            Ok(received) => received,
            // An earlier answer met a closed port; that is between the kernel and the client.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return tracing::error!(%error, "the portmapper's socket failed"),
        };
        if let Some(reply) = answer_datagram(&datagram[..len], nfs_port) {
            // A lost answer is asked for again.
            drop(socket.send_to(&reply, from).await);
        }
    }
}

/// Whether a procedure is served over UDP too: those by which clients find a port. The sender of a
/// datagram may have forged its address, so no answer may be longer than its call, as that to DUMP
/// is.
fn is_served_by_datagrams(operation: Operation) -> bool {
    use {PortmapProcedure as Portmap, RpcbindProcedure as Rpcbind};
    matches!(
        operation,
        Operation::Portmap(Portmap::Null | Portmap::Getport)
            | Operation::Rpcbind(Rpcbind::Null | Rpcbind::Getaddr | Rpcbind::Getversaddr)
    )
}

fn answer_datagram(datagram: &[u8], nfs_port: u16) -> Option<Vec<u8>> {
    let mut args = Reader::new(datagram);
    let call = decode_call(&mut args).ok()?;
    let programs = Programs::Portmapper { nfs_port };
    let stat = match programs.find(call.program, call.version, call.procedure) {
        Ok(procedure) if !is_served_by_datagrams(procedure.operation) => AcceptStat::ProcUnavail,
        Ok(procedure) => {
            let mut reply = Writer::with_capacity(512);
            encode_success(&mut reply, call.xid);
            match execute(nfs_port, procedure, &datagram[args.position()..], &mut reply) {
                Ok(()) => return Some(reply.into_vec()),
                Err(Refusal::NotExecuted(stat)) => stat,
                Err(Refusal::Denied(_)) => return None,
            }
        }
        Err(stat) => stat,
    };
    let mut reply = Writer::with_capacity(64);
    ReplyHeader::Accepted { xid: call.xid, stat }.encode(&mut reply);
    Some(reply.into_vec())
}

#[cfg(test)]
mod tests {
    use proto::oncrpc::{CallHeader, Credential};

    use super::*;

    const NFS_PORT: u16 = 2049;
    const NFS: Mapping =
        Mapping { program: nfs3::PROGRAM, version: nfs3::VERSION, protocol: PROTOCOL_TCP, port: 0 };

    fn call(version: u32, procedure: u32, args: &impl Encode) -> Vec<u8> {
        let (program, credential) = (PROGRAM, Credential::None);
        let mut call = Writer::new();
        CallHeader { xid: 7, program, version, procedure, credential, verifier_flavor: 0 }
            .encode(&mut call);
        args.encode(&mut call);
        call.into_vec()
    }

    fn answer(call: &[u8]) -> Vec<u8> {
        answer_datagram(call, NFS_PORT).unwrap()
    }

    #[test]
    fn no_datagram_is_answered_by_a_longer_one() {
        let (program, version) = (NFS.program, NFS.version);
        let entry = RpcbEntry { program, version, netid: b"tcp", address: b"", owner: b"" };
        for version in 0..6 {
            for procedure in 0..14 {
                let without = call(version, procedure, &());
                let (mapping, entry) =
                    (call(version, procedure, &NFS), call(version, procedure, &entry));
                for call in [without, mapping, entry] {
                    assert!(answer(&call).len() <= call.len(), "{version}: {procedure}");
                }
            }
        }
    }

    #[test]
    fn dump_is_not_answered_over_udp_and_getport_is() {
        let mut unavailable = Writer::new();
        ReplyHeader::Accepted { xid: 7, stat: AcceptStat::ProcUnavail }.encode(&mut unavailable);
        let unavailable = unavailable.into_vec();
        for version in [VERSION_PORTMAP, VERSION_RPCBIND_3, VERSION_RPCBIND_4] {
            assert_eq!(answer(&call(version, PortmapProcedure::Dump.code(), &())), unavailable);
        }
        let getport = call(VERSION_PORTMAP, PortmapProcedure::Getport.code(), &NFS);
        assert!(answer(&getport).ends_with(&u32::from(NFS_PORT).to_be_bytes()));
    }
}
