//! The portmapper (RFC 1833): serves the ports of NFS and MOUNT on port 111. Where an rpcbind has
//! that port, [`registration`] has it do so.

mod datagrams;
pub(crate) mod registration;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::oncrpc::{AcceptStat, ReplyHeader, decode_call, encode_success};
use proto::portmap::{
    Address, Mapping, PORT, PROGRAM, PROTOCOL_TCP, PROTOCOL_UDP, PortmapProcedure, RpcbEntry,
    RpcbindProcedure, VERSION_PORTMAP, VERSION_RPCBIND_3, VERSION_RPCBIND_4,
    parse_universal_address, universal_address,
};
use proto::xdr::{Encode, Reader, Writer, decode_all, encode_list};
use proto::{mount3, nfs3};

use crate::procedures::{Mapped, Operation, Procedure, Programs};
use crate::request::Refusal;
use datagrams::Datagrams;

/// The longest datagram that can be a call of the portmapper.
const DATAGRAM_BYTES_MAX: usize = 4096;
/// How long to wait after a failed receive: the system is out of memory, and asking again at once
/// would only burn the processor.
const RETRY: Duration = Duration::from_millis(100);
/// The programs that clients need.
const PROGRAMS: [(u32, u32); 2] =
    [(nfs3::PROGRAM, nfs3::VERSION), (mount3::PROGRAM, mount3::VERSION)];

/// A transport (RFC 5665 §5.1) on which clients look for a program.
struct Transport {
    netid: &'static [u8],
    protocol: u32,
    /// The wildcard of its family.
    anywhere: IpAddr,
}

const TRANSPORTS: [Transport; 4] = {
    let v4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    [
        Transport { netid: b"tcp", protocol: PROTOCOL_TCP, anywhere: v4 },
        Transport { netid: b"udp", protocol: PROTOCOL_UDP, anywhere: v4 },
        Transport { netid: b"tcp6", protocol: PROTOCOL_TCP, anywhere: v6 },
        Transport { netid: b"udp6", protocol: PROTOCOL_UDP, anywhere: v6 },
    ]
};

impl Transport {
    /// Whether a socket that listens on `address` takes connections of the family.
    fn reaches(&self, address: IpAddr) -> bool {
        address == Ipv6Addr::UNSPECIFIED || self.has(address)
    }

    /// Whether `address` is of the family.
    fn has(&self, address: IpAddr) -> bool {
        self.anywhere.is_ipv4() == address.to_canonical().is_ipv4()
    }
}

/// The first listening address of each host, on all of which a portmapper has to answer. A wildcard
/// includes the hosts of its family, and `::` those of IPv4 too, unless an IPv4 address has its
/// port: then its socket takes IPv6 alone.
pub(crate) fn hosts(listening: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_v4 = |address: &SocketAddr| address.ip().to_canonical().is_ipv4();
    let takes_v4 = |wide: &SocketAddr| {
        is_v4(wide) || !listening.iter().any(|other| is_v4(other) && other.port() == wide.port())
    };
    let covers = |wide: &SocketAddr, address: &SocketAddr| {
        let takes = if is_v4(address) { takes_v4(wide) } else { !is_v4(wide) };
        wide.ip().is_unspecified() && wide.ip() != address.ip() && takes
    };
    let mut hosts: Vec<SocketAddr> = Vec::new();
    for address in listening {
        let is_covered = listening.iter().any(|wide| covers(wide, address));
        if !is_covered && hosts.iter().all(|host| beside(*host) != beside(*address)) {
            hosts.push(*address);
        }
    }
    hosts
}

/// Where a portmapper answers for the host of `address`.
pub(crate) fn beside(mut address: SocketAddr) -> SocketAddr {
    address.set_port(PORT);
    address
}

/// Answers a call, writing the results behind the reply header.
pub(crate) fn execute(
    mapped: &Mapped,
    procedure: &Procedure,
    args: &[u8],
    reply: &mut Writer,
) -> Result<(), Refusal> {
    match procedure.operation {
        Operation::Portmap(procedure) => execute_portmap(mapped.nfs.port(), procedure, args, reply),
        Operation::Rpcbind(procedure) => execute_rpcbind(mapped, procedure, args, reply),
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
    mapped: &Mapped,
    procedure: RpcbindProcedure,
    args: &[u8],
    reply: &mut Writer,
) -> Result<(), Refusal> {
    match procedure {
        RpcbindProcedure::Null => Reader::new(args).finish()?,
        RpcbindProcedure::Getaddr => getaddr(mapped, find, args, reply)?,
        RpcbindProcedure::Getversaddr => getaddr(mapped, find_version, args, reply)?,
        RpcbindProcedure::Dump => {
            Reader::new(args).finish()?;
            dump_rpcbind(mapped, reply);
        }
        RpcbindProcedure::Set | RpcbindProcedure::Unset => {
            decode_all::<RpcbEntry<'_>>(args)?;
            reply.bool(false);
        }
        // The addresses of all transports may be longer than the call. Clients that get none of
        // theirs ask for it by GETADDR; after PROC_UNAVAIL some give up.
        RpcbindProcedure::Getaddrlist => {
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
        | RpcbindProcedure::Getstat => return Err(Refusal::NotExecuted(AcceptStat::ProcUnavail)),
    }
    Ok(())
}

/// GETADDR, and GETVERSADDR, which find ports by `find`. The host is of the netid's family: clients
/// on other systems than Linux connect to it, or refuse it. It is the one to which the client has
/// sent its call, as far as that is known.
fn getaddr(mapped: &Mapped, find: Find, args: &[u8], reply: &mut Writer) -> Result<(), Refusal> {
    let asked: RpcbEntry<'_> = decode_all(args)?;
    let address = served(mapped).find(|transport| transport.netid == asked.netid);
    let address = address.and_then(|transport| {
        let port = find(mapped.nfs.port(), asked.program, asked.version, transport.protocol)?;
        let called = parse_universal_address(asked.address).map(|address| address.ip());
        let known = called.into_iter().chain([mapped.called]);
        let mut known = known.map(|host| host.to_canonical());
        let host = known.find(|host| transport.has(*host) && !host.is_unspecified());
        Some(universal_address(SocketAddr::new(host.unwrap_or(transport.anywhere), port)))
    });
    Address { address: address.unwrap_or_default().as_bytes() }.encode(reply);
    Ok(())
}

fn dump_rpcbind(mapped: &Mapped, reply: &mut Writer) {
    for mapping in mappings(mapped.nfs.port()) {
        let port = u16::try_from(mapping.port).expect("made from a port");
        let (program, version, owner) = (mapping.program, mapping.version, b"superuser");
        for transport in served(mapped).filter(|served| served.protocol == mapping.protocol) {
            let address = universal_address(SocketAddr::new(transport.anywhere, port));
            let (netid, address) = (transport.netid, address.as_bytes());
            reply.bool(true);
            RpcbEntry { program, version, netid, address, owner }.encode(reply);
        }
    }
    reply.bool(false);
}

/// The transports of the families that the listening address takes.
fn served(mapped: &Mapped) -> impl Iterator<Item = &'static Transport> {
    let listen = mapped.nfs.ip();
    TRANSPORTS.iter().filter(move |transport| transport.reaches(listen))
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
    let other = || mappings(nfs_port).find(|m| (m.program, m.protocol) == (program, protocol));
    let exact = find_version(nfs_port, program, version, protocol);
    exact.or_else(|| u16::try_from(other()?.port).ok())
}

/// The port of a version of a program.
fn find_version(nfs_port: u16, program: u32, version: u32, protocol: u32) -> Option<u16> {
    let asked = (program, version, protocol);
    let exact = mappings(nfs_port).find(|m| (m.program, m.version, m.protocol) == asked);
    u16::try_from(exact?.port).ok()
}

/// Finds the port of a program, a version and a protocol, if the server has the one given first.
type Find = fn(u16, u32, u32, u32) -> Option<u16>;

/// Answers datagrams until the server stops.
pub(crate) async fn serve_datagrams(socket: std::net::UdpSocket, mapped: Mapped) {
    let mut datagrams = match Datagrams::of(socket) {
        Ok(datagrams) => datagrams,
        Err(error) => return tracing::error!(%error, "cannot use the portmapper's socket"),
    };
    let mut datagram = [0; DATAGRAM_BYTES_MAX];
    let mut has_failed = false;
    loop {
        let (len, caller) = match datagrams.receive(&mut datagram).await {
            Ok(received) => {
                has_failed = false;
                received
            }
            // An earlier answer met a closed port; that is between the kernel and the client.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(%error, "cannot receive calls to the portmapper over UDP");
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        if let Some(reply) = answer_datagram(&datagram[..len], mapped) {
            // A lost answer is asked for again.
            drop(datagrams.answer(&caller, &reply).await);
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
            | Operation::Rpcbind(
                Rpcbind::Null | Rpcbind::Getaddr | Rpcbind::Getversaddr | Rpcbind::Getaddrlist
            )
    )
}

fn answer_datagram(datagram: &[u8], mapped: Mapped) -> Option<Vec<u8>> {
    let mut args = Reader::new(datagram);
    let call = decode_call(&mut args).ok()?;
    let programs = Programs::Portmapper(mapped);
    let stat = match programs.find(call.program, call.version, call.procedure) {
        Ok(procedure) if !is_served_by_datagrams(procedure.operation) => AcceptStat::ProcUnavail,
        Ok(procedure) => {
            let mut reply = Writer::with_capacity(512);
            encode_success(&mut reply, call.xid);
            match execute(&mapped, procedure, &datagram[args.position()..], &mut reply) {
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
    use proto::portmap::RpcbEntryList;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    use std::net::UdpSocket;

    use super::*;
    use crate::skip::skip_in_ci_too;

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
        let (nfs, called) = ((Ipv6Addr::UNSPECIFIED, NFS_PORT).into(), unknown());
        answer_datagram(call, Mapped { nfs, called }).unwrap()
    }

    fn unknown() -> IpAddr {
        Ipv4Addr::UNSPECIFIED.into()
    }

    fn entry<'a>(netid: &'a [u8], address: &'a [u8]) -> RpcbEntry<'a> {
        RpcbEntry { program: NFS.program, version: NFS.version, netid, address, owner: b"" }
    }

    #[test]
    fn no_datagram_is_answered_by_a_longer_one() {
        let entries = [
            entry(b"tcp", b""),
            entry(b"tcp6", b""),
            entry(b"tcp6", b"2001:db8::1.0.1"),
            entry(b"udp6", b"1:2:3:4:5:6:7:8.0.1"),
        ];
        for version in 0..6 {
            for procedure in 0..14 {
                let entries = entries.iter().map(|entry| call(version, procedure, entry));
                let others = [call(version, procedure, &()), call(version, procedure, &NFS)];
                for call in entries.chain(others) {
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

    #[test]
    fn getaddr_answers_in_the_family_of_the_netid_with_the_address_that_was_called() {
        let wildcard: SocketAddr = "[::]:2049".parse().unwrap();
        let v4: SocketAddr = "192.0.2.1:2049".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::1]:2049".parse().unwrap();
        let (of_v4, of_v6) = ("::ffff:192.0.2.1", "2001:db8::1");
        let table = [
            (wildcard, of_v6, "tcp6", "2001:db8::7.0.111", "2001:db8::7.8.1"),
            (wildcard, of_v6, "tcp6", "", "2001:db8::1.8.1"),
            (wildcard, of_v6, "tcp6", "::.0.111", "2001:db8::1.8.1"),
            (wildcard, of_v6, "tcp6", "192.0.2.7.0.111", "2001:db8::1.8.1"),
            (wildcard, of_v4, "tcp6", "", "::.8.1"),
            (wildcard, of_v4, "tcp", "192.0.2.7.0.111", "192.0.2.7.8.1"),
            (wildcard, of_v4, "tcp", "", "192.0.2.1.8.1"),
            (wildcard, of_v6, "tcp", "", "0.0.0.0.8.1"),
            (wildcard, of_v6, "udp6", "", ""),
            (v4, of_v4, "tcp", "not an address", "192.0.2.1.8.1"),
            (v4, of_v4, "tcp6", "2001:db8::7.0.111", ""),
            (v6, of_v6, "tcp6", "", "2001:db8::1.8.1"),
            (v6, of_v6, "tcp", "", ""),
        ];
        for (nfs, called, netid, asked, expected) in table {
            let mapped = Mapped { nfs, called: called.parse().unwrap() };
            let (mut args, mut reply, mut answer) = (Writer::new(), Writer::new(), Writer::new());
            entry(netid.as_bytes(), asked.as_bytes()).encode(&mut args);
            assert!(getaddr(&mapped, find, args.as_slice(), &mut reply).is_ok());
            Address { address: expected.as_bytes() }.encode(&mut answer);
            assert_eq!(reply.as_slice(), answer.as_slice(), "{nfs} {called} {netid} {asked}");
        }
    }

    #[test]
    fn getversaddr_answers_for_the_version_alone_that_is_asked_for() {
        for (version, is_known) in [(NFS.version, true), (1, false)] {
            let entry = RpcbEntry { version, ..entry(b"tcp", b"") };
            let found = |procedure: RpcbindProcedure| {
                let answer = answer(&call(VERSION_RPCBIND_4, procedure.code(), &entry));
                !answer.ends_with(&[0; 4])
            };
            assert!(found(RpcbindProcedure::Getaddr), "of {version}, or another");
            assert_eq!(found(RpcbindProcedure::Getversaddr), is_known, "{version}");
        }
    }

    #[test]
    fn dump_lists_the_netids_of_the_families_that_are_served() {
        let netids_of_nfs = |nfs: &str| {
            let mapped = Mapped { nfs: nfs.parse().unwrap(), called: unknown() };
            let mut reply = Writer::new();
            dump_rpcbind(&mapped, &mut reply);
            let entries: RpcbEntryList<'_> = decode_all(reply.as_slice()).unwrap();
            let of_nfs = entries.iter().filter(|entry| entry.program == NFS.program);
            of_nfs.map(|entry| (entry.netid.to_vec(), entry.address.to_vec())).collect::<Vec<_>>()
        };
        let v4 = (b"tcp".to_vec(), b"0.0.0.0.8.1".to_vec());
        let v6 = (b"tcp6".to_vec(), b"::.8.1".to_vec());
        assert_eq!(netids_of_nfs("0.0.0.0:2049"), std::slice::from_ref(&v4));
        assert_eq!(netids_of_nfs("[2001:db8::1]:2049"), std::slice::from_ref(&v6));
        assert_eq!(netids_of_nfs("[::]:2049"), [v4, v6]);
    }

    #[test]
    fn each_host_that_is_listened_on_is_answered_on_once() {
        let table: [(&[&str], &[&str]); 9] = [
            (&["127.0.0.1:2049"], &["127.0.0.1:2049"]),
            (&["127.0.0.1:1", "127.0.0.1:2"], &["127.0.0.1:1"]),
            (&["192.0.2.1:1", "[2001:db8::1]:1"], &["192.0.2.1:1", "[2001:db8::1]:1"]),
            (&["192.0.2.1:1", "0.0.0.0:2", "[::1]:1"], &["0.0.0.0:2", "[::1]:1"]),
            (&["[::1]:1", "[::]:2", "192.0.2.1:1"], &["[::]:2"]),
            (&["0.0.0.0:1", "[::]:2"], &["[::]:2"]),
            // With one port `::` takes IPv6 alone.
            (&["0.0.0.0:1", "[::]:1"], &["0.0.0.0:1", "[::]:1"]),
            (&["[::]:1", "192.0.2.1:1", "[::1]:2"], &["[::]:1", "192.0.2.1:1"]),
            (&["[fe80::1%1]:1", "[fe80::1%2]:1"], &["[fe80::1%1]:1", "[fe80::1%2]:1"]),
        ];
        for (listening, expected) in table {
            let addresses = |texts: &[&str]| -> Vec<SocketAddr> {
                texts.iter().map(|text| text.parse().unwrap()).collect()
            };
            assert_eq!(hosts(&addresses(listening)), addresses(expected), "{listening:?}");
        }
    }

    #[tokio::test]
    async fn datagrams_are_answered_from_the_address_that_was_called() {
        let getport = call(VERSION_PORTMAP, PortmapProcedure::Getport.code(), &NFS);
        let v6 = || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0));
        for socket in [UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)), v6()] {
            let Ok(socket) = socket else { return skip_in_ci_too("no IPv6") };
            socket.set_nonblocking(true).unwrap();
            let own = socket.local_addr().unwrap();
            let serving = tokio::spawn(serve_datagrams(
                socket,
                Mapped { nfs: (own.ip(), NFS_PORT).into(), called: unknown() },
            ));
            for called in ["127.0.0.1", "127.0.0.2", "::1"].map(|ip| ip.parse::<IpAddr>().unwrap())
            {
                if own.is_ipv4() && called.is_ipv6() {
                    continue;
                }
                let client = tokio::net::UdpSocket::bind((called, 0)).await.unwrap();
                // The kernel discards what comes from another address.
                client.connect((called, own.port())).await.unwrap();
                client.send(&getport).await.unwrap();
                assert_is_answered(&client, &format!("{called} of {own}")).await;
            }
            let client = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            client.set_broadcast(true).unwrap();
            // The broadcast address of the loopback interface is not one that answers can have.
            client.send_to(&getport, ("127.255.255.255", own.port())).await.unwrap();
            assert_is_answered(&client, &format!("a broadcast to {own}")).await;
            serving.abort();
        }
    }

    #[tokio::test]
    async fn a_failed_receive_does_not_end_the_portmapper_over_udp() {
        // Of a socket that is not connected.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        let mapped = Mapped { nfs: (Ipv4Addr::LOCALHOST, NFS_PORT).into(), called: unknown() };
        let serving = tokio::spawn(serve_datagrams(socket.into(), mapped));
        tokio::time::sleep(3 * RETRY).await;
        assert!(!serving.is_finished());
        serving.abort();
    }

    async fn assert_is_answered(client: &tokio::net::UdpSocket, what: &str) {
        let mut answer = [0; 100];
        let answering = client.recv(&mut answer);
        let answered = tokio::time::timeout(Duration::from_secs(20), answering).await;
        let len = answered.unwrap_or_else(|_| panic!("{what}: no answer")).unwrap();
        assert!(answer[..len].ends_with(&u32::from(NFS_PORT).to_be_bytes()), "{what}");
    }

    #[test]
    fn getaddrlist_over_udp_is_answered_with_an_empty_list() {
        let mut empty = Writer::new();
        encode_success(&mut empty, 7);
        empty.bool(false);
        let code = RpcbindProcedure::Getaddrlist.code();
        let asked = call(VERSION_RPCBIND_4, code, &entry(b"tcp6", b"::1.0.111"));
        assert_eq!(answer(&asked), empty.into_vec());
    }
}
