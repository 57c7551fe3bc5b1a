//! Registration of the programs with an rpcbind (RFC 1833 §3).

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use proto::oncrpc::{AcceptStat, Credential};
use proto::portmap::{
    PORT, PROGRAM, PROTOCOL_TCP, RpcbEntry, RpcbindProcedure, VERSION_PORTMAP, VERSION_RPCBIND_3,
    parse_universal_address, universal_address,
};
use proto::xdr::{Decode, DecodeError, Encode, List, Reader, decode_all};
use rpc::client::{Error, Recovery, Route, Rpc, RpcOptions, Target};
use tokio::net::TcpSocket;

use super::{PROGRAMS, TRANSPORTS, Transport, mapping};

/// Where the rpcbind of this machine answers.
pub(crate) const RPCBIND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// How long it may take to answer a call.
const PATIENCE: Duration = Duration::from_secs(5);

/// A program on a transport, and its address.
struct Entry {
    program: u32,
    version: u32,
    transport: &'static Transport,
    address: SocketAddr,
}

impl Entry {
    /// Whether this is the transport of the same program in the list of an rpcbind.
    fn is_that_of(&self, listed: &RpcbEntry<'_>) -> bool {
        let Self { program, version, transport, .. } = self;
        (listed.program, listed.version) == (*program, *version) && listed.netid == transport.netid
    }
}

/// An entry in the list of an rpcbind. Any local user chooses its strings, so the record alone
/// bounds them: one that cannot be decoded would hide all.
#[derive(Clone, Copy)]
struct Listed<'a>(RpcbEntry<'a>);

impl<'a> Decode<'a> for Listed<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self(RpcbEntry {
            program: r.u32("program")?,
            version: r.u32("version")?,
            netid: r.opaque(usize::MAX, "netid")?,
            address: r.opaque(usize::MAX, "address")?,
            owner: r.opaque(usize::MAX, "owner")?,
        }))
    }
}

/// NFS and MOUNT in each family that sockets on `listening` take, at the first address there:
/// rpcbind has one for each program and transport.
fn entries(listening: &[SocketAddr]) -> Vec<Entry> {
    let tcp = TRANSPORTS.iter().filter(|transport| transport.protocol == PROTOCOL_TCP);
    let addresses = tcp.filter_map(|transport| Some((transport, first(transport, listening)?)));
    let entries = addresses.flat_map(|(transport, address)| {
        PROGRAMS.map(|(program, version)| Entry { program, version, transport, address })
    });
    entries.collect()
}

/// The address to register for a transport. It is the wildcard only if a socket has that: rpcbind
/// takes the address that it has from another server too, and only where each server registers its
/// own is that refused, and the entry of one not removed by another.
fn first(transport: &Transport, listening: &[SocketAddr]) -> Option<SocketAddr> {
    // Beside an address of IPv4, `::` takes IPv6 alone.
    let own = listening.iter().find(|address| transport.has(address.ip()));
    let first = own.or_else(|| listening.iter().find(|address| transport.reaches(address.ip())))?;
    let host = if first.ip().is_unspecified() { transport.anywhere } else { first.ip() };
    Some(SocketAddr::new(host.to_canonical(), first.port()))
}

/// Those of `listening` at another port than the registered one of their family.
pub(crate) fn left_out(listening: &[SocketAddr]) -> Vec<SocketAddr> {
    let entries = entries(listening);
    let is_found = |address: &SocketAddr| {
        let mut entries = entries.iter().filter(|entry| entry.transport.has(address.ip()));
        entries.any(|entry| entry.address.port() == address.port())
    };
    listening.iter().filter(|address| !is_found(address)).copied().collect()
}

/// Registers NFS and MOUNT for sockets on `listening`, all of them or none. The entry of a server
/// that is gone is replaced. That of one which runs at the same port stays, with a warning: rpcbind
/// gives the port alone, and clients connect to it at the host that they have called.
///
/// # Errors
/// The portmapper at `address` does not answer, or refuses one of these programs (`AddrInUse`):
/// another server has registered it at another port, or it registers none.
pub(crate) async fn register(address: SocketAddr, listening: &[SocketAddr]) -> io::Result<()> {
    let rpcbind = connect(address).await?;
    let (mut registered, mut holders) = (Vec::new(), Vec::new());
    for entry in entries(listening) {
        let error = match set(&rpcbind, &entry, listening).await {
            Ok(Set::Registered) => {
                registered.push(entry);
                continue;
            }
            Ok(Set::HeldBy(Some(holder))) if holder.port() == entry.address.port() => {
                let own = entry.address;
                if !holders.contains(&holder) {
                    holders.push(holder);
                    tracing::warn!(
                        %holder, %own,
                        "rpcbind lists another server with this port: clients find this server \
                         until that one stops"
                    );
                }
                continue;
            }
            Ok(Set::HeldBy(holder)) => refused(address, &entry, holder),
            Err(error) => error,
        };
        // Not this entry too: rpcbind would remove the other server's.
        if let Err(error) = unset(&rpcbind, &registered).await {
            tracing::warn!(%error, "cannot unregister from rpcbind");
        }
        return Err(error);
    }
    Ok(())
}

/// The outcome of the registration of an entry.
enum Set {
    Registered,
    /// By the server at this address, if the portmapper lists it.
    HeldBy(Option<SocketAddr>),
}

async fn set(rpcbind: &Rpc, entry: &Entry, listening: &[SocketAddr]) -> io::Result<Set> {
    if call(rpcbind, RpcbindProcedure::Set, entry).await? {
        return Ok(Set::Registered);
    }
    let holder = holder(rpcbind, entry).await;
    if holder.is_some_and(|holder| is_own(holder, entry.transport, listening) || is_free(holder)) {
        // The entry of a server that was killed, or of one that registered the wildcard.
        call(rpcbind, RpcbindProcedure::Unset, entry).await?;
        if call(rpcbind, RpcbindProcedure::Set, entry).await? {
            return Ok(Set::Registered);
        }
    }
    Ok(Set::HeldBy(holder))
}

/// The address that an rpcbind lists for the program and transport of `entry`.
async fn holder(rpcbind: &Rpc, entry: &Entry) -> Option<SocketAddr> {
    let listed = dump(rpcbind).await.ok()??;
    let listed = decode_all::<List<'_, Listed<'_>>>(&listed).ok()?;
    let Listed(holder) = listed.iter().find(|Listed(other)| entry.is_that_of(other))?;
    parse_universal_address(holder.address)
}

/// Whether the sockets on `listening` take connections to `address`, or some of them where that is
/// the wildcard. A server that has registered the wildcard, and listens on another address at this
/// port, loses its entry then.
fn is_own(address: SocketAddr, transport: &Transport, listening: &[SocketAddr]) -> bool {
    let at_port = || listening.iter().filter(|own| own.port() == address.port());
    // Beside an address of IPv4, `::` takes IPv6 alone.
    let has_family = at_port().any(|own| transport.has(own.ip()));
    let mut own = at_port().filter(|own| match has_family {
        true => transport.has(own.ip()),
        false => transport.reaches(own.ip()),
    });
    own.any(|own| {
        let is_wide = own.ip().is_unspecified() || address.ip().is_unspecified();
        is_wide || own.ip().to_canonical() == address.ip()
    })
}

/// Whether no socket of this machine listens on `address`, as far as this process can find out. The
/// wildcard is free if no address is listened on at its port, which no connection could find out.
fn is_free(address: SocketAddr) -> bool {
    let bind = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Of the sockets of earlier servers, those that listen alone are in the way then.
        socket.set_reuseaddr(true)?;
        socket.bind(address)
    };
    match bind() {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::AddrNotAvailable,
    }
}

/// The error of an entry that the portmapper at `address` has refused.
fn refused(address: SocketAddr, entry: &Entry, holder: Option<SocketAddr>) -> io::Error {
    let Entry { program, version, .. } = entry;
    let reason = match holder {
        Some(holder) => format!(
            "another server has registered it at {holder} (if that is gone, run `rpcinfo -d \
             {program} {version}`)"
        ),
        None => format!(
            "`rpcinfo -p` lists the server that has it (if that is gone, run `rpcinfo -d {program} \
             {version}`), or the portmapper is another `spillway serve --portmap`, which registers \
             no other server"
        ),
    };
    let sentence = format!("the portmapper on {address} refused to register program {program}: ");
    io::Error::new(ErrorKind::AddrInUse, sentence + &reason)
}

/// Removes the registrations that are still those of `listening`: rpcbind would remove those of
/// another server too.
///
/// # Errors
/// `rpcbind` does not answer.
pub(crate) async fn unregister(rpcbind: SocketAddr, listening: &[SocketAddr]) -> io::Result<()> {
    let rpcbind = connect(rpcbind).await?;
    let mut entries = entries(listening);
    // A portmapper of version 2 alone has no addresses to compare.
    if let Some(listed) = dump(&rpcbind).await.map_err(unreadable)? {
        let listed: List<'_, Listed<'_>> =
            decode_all(&listed).map_err(|error| unreadable(io::Error::other(error)))?;
        entries.retain(|entry| {
            let address = universal_address(entry.address);
            let is_same = |Listed(listed): Listed<'_>| {
                entry.is_that_of(&listed) && listed.address == address.as_bytes()
            };
            listed.iter().any(is_same)
        });
    }
    unset(&rpcbind, &entries).await
}

fn unreadable(error: io::Error) -> io::Error {
    let commands = PROGRAMS.map(|(program, version)| format!("`rpcinfo -d {program} {version}`"));
    let commands = commands.join(" and ");
    let sentence = format!("cannot read its list ({error}); {commands} remove what is left");
    io::Error::new(error.kind(), sentence)
}

async fn unset(rpcbind: &Rpc, entries: &[Entry]) -> io::Result<()> {
    for entry in entries {
        call(rpcbind, RpcbindProcedure::Unset, entry).await?;
    }
    Ok(())
}

/// The encoded list of all that is registered; `None` without version 3.
async fn dump(rpcbind: &Rpc) -> io::Result<Option<Bytes>> {
    match results(rpcbind, VERSION_RPCBIND_3, RpcbindProcedure::Dump, &()).await {
        Err(Error::Accept(AcceptStat::ProgMismatch { .. })) => Ok(None),
        listed => listed.map(Some).map_err(io::Error::other),
    }
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
    let &Entry { program, version, transport, address } = entry;
    let port = address.port();
    let address = universal_address(address);
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
    Ok(decode_all(&results(rpcbind, version, procedure, args).await?)?)
}

async fn results(
    rpcbind: &Rpc,
    version: u32,
    procedure: RpcbindProcedure,
    args: &(impl Encode + Sync),
) -> Result<Bytes, Error> {
    let target = Target { program: PROGRAM, version, procedure: procedure.code() };
    rpcbind.call(Route::Any, target, &Credential::None, args, Bytes::new())?.await
}

#[cfg(test)]
mod tests {
    use proto::oncrpc::{ReplyHeader, decode_call, encode_success};
    use proto::portmap::Mapping;
    use proto::xdr::{Decode, Reader, Writer, encode_list};
    use proto::{mount3, nfs3};
    use rpc::record;
    use std::io::Write;
    use std::net::TcpListener;
    use tokio::task::{JoinHandle, spawn_blocking};

    use super::*;

    /// A call that a portmapper got: version, procedure, program, transport and address.
    type Call = (u32, RpcbindProcedure, u32, String);

    #[derive(Clone, Copy)]
    enum Answer {
        Bool(bool),
        /// NFS and MOUNT over TCP, at this address, and an entry of a local user.
        Listed(&'static str),
        /// A list without its end.
        Unreadable,
        ProgMismatch,
    }
    use Answer::{Bool, Listed, ProgMismatch, Unreadable};

    impl Answer {
        fn encode(self, xid: u32, w: &mut Writer) {
            match self {
                Bool(answer) => {
                    encode_success(w, xid);
                    w.bool(answer);
                }
                Listed(address) => {
                    encode_success(w, xid);
                    let (netid, address) = (b"tcp".as_slice(), address.as_bytes());
                    let entry = |(program, version)| RpcbEntry {
                        program,
                        version,
                        netid,
                        address,
                        owner: b"superuser",
                    };
                    let long = [b'x'; 2000];
                    let foreign = RpcbEntry { address: &long, ..entry((400_000, 1)) };
                    let entries = PROGRAMS.into_iter().map(entry);
                    encode_list(w, std::iter::once(foreign).chain(entries));
                }
                Unreadable => {
                    encode_success(w, xid);
                    w.bool(true);
                }
                ProgMismatch => {
                    let stat = AcceptStat::ProgMismatch { low: 2, high: 2 };
                    ReplyHeader::Accepted { xid, stat }.encode(w);
                }
            }
        }
    }

    /// Answers the calls of one connection with `answers`, and returns the calls.
    fn rpcbind(answers: &'static [Answer]) -> (SocketAddr, JoinHandle<Vec<Call>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = spawn_blocking(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answer = |answer: &Answer| {
                let record = record::read_blocking(&mut stream, 1000).unwrap().expect("a call");
                let mut r = Reader::new(&record);
                let call = decode_call(&mut r).unwrap();
                assert_eq!(call.program, PROGRAM);
                let reply = record::encode(|w| answer.encode(call.xid, w));
                stream.write_all(&reply).unwrap();
                let procedure = RpcbindProcedure::from_code(call.procedure).unwrap();
                if procedure == RpcbindProcedure::Dump {
                    return (call.version, procedure, 0, String::new());
                }
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

    /// SET or UNSET of both programs for 192.0.2.1:2049.
    fn wanted(procedure: RpcbindProcedure) -> [Call; 2] {
        [nfs3::PROGRAM, mount3::PROGRAM]
            .map(|program| (VERSION_RPCBIND_3, procedure, program, "tcp 192.0.2.1.8.1".into()))
    }

    fn dumped() -> Call {
        (VERSION_RPCBIND_3, RpcbindProcedure::Dump, 0, String::new())
    }

    fn listening(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn both_programs_are_registered_and_removed() {
        let listening = listening(&["192.0.2.1:2049"]);
        let (address, serving) = rpcbind(&[Bool(true), Bool(true)]);
        register(address, &listening).await.unwrap();
        assert_eq!(serving.await.unwrap(), wanted(RpcbindProcedure::Set));
        let (address, serving) = rpcbind(&[Listed("192.0.2.1.8.1"), Bool(true), Bool(false)]);
        unregister(address, &listening).await.unwrap();
        let [nfs, mount] = wanted(RpcbindProcedure::Unset);
        assert_eq!(serving.await.unwrap(), [dumped(), nfs, mount]);
    }

    #[tokio::test]
    async fn registration_of_another_server_is_not_removed() {
        for listed in ["192.0.2.2.8.1", "0.0.0.0.8.1", "192.0.2.1.8.2"] {
            let answers = Box::leak(Box::new([Listed(listed)]));
            let (address, serving) = rpcbind(answers);
            unregister(address, &listening(&["192.0.2.1:2049"])).await.unwrap();
            assert_eq!(serving.await.unwrap(), [dumped()]);
        }
    }

    #[test]
    fn each_family_that_is_listened_on_has_an_entry_with_its_first_address() {
        let table: [(&[&str], &[&str], &[&str]); 8] = [
            (&["192.0.2.1:2049"], &["tcp 192.0.2.1:2049"], &[]),
            (&["[2001:db8::1]:2049"], &["tcp6 [2001:db8::1]:2049"], &[]),
            (&["0.0.0.0:2049"], &["tcp 0.0.0.0:2049"], &[]),
            (&["[::]:2049"], &["tcp 0.0.0.0:2049", "tcp6 [::]:2049"], &[]),
            (&["[::]:2049", "192.0.2.1:2049"], &["tcp 192.0.2.1:2049", "tcp6 [::]:2049"], &[]),
            (
                &["[::1]:2050", "127.0.0.1:2049", "127.0.0.2:2051", "127.0.0.3:2049"],
                &["tcp 127.0.0.1:2049", "tcp6 [::1]:2050"],
                &["127.0.0.2:2051"],
            ),
            (&["[::1]:2050", "[::2]:2049"], &["tcp6 [::1]:2050"], &["[::2]:2049"]),
            (&["[::ffff:192.0.2.1]:2049"], &["tcp 192.0.2.1:2049"], &[]),
        ];
        for (addresses, expected, out) in table {
            let addresses = listening(addresses);
            let entries = entries(&addresses);
            let of_nfs = entries.iter().filter(|entry| entry.program == nfs3::PROGRAM);
            let netid = |entry: &Entry| String::from_utf8_lossy(entry.transport.netid);
            let of_nfs: Vec<String> =
                of_nfs.map(|entry| format!("{} {}", netid(entry), entry.address)).collect();
            assert_eq!(of_nfs, expected, "{addresses:?}");
            assert_eq!(entries.len(), 2 * expected.len());
            assert_eq!(left_out(&addresses), listening(out), "{addresses:?}");
        }
    }

    #[tokio::test]
    async fn without_version_3_ipv4_is_registered_by_version_2() {
        let listening = listening(&["[::]:2049"]);
        const TRUE: Answer = Bool(true);
        let (address, serving) =
            rpcbind(&[ProgMismatch, TRUE, ProgMismatch, TRUE, ProgMismatch, ProgMismatch]);
        register(address, &listening).await.unwrap();
        let calls = serving.await.unwrap();
        let by_version_2 = |calls: Vec<Call>| -> Vec<Call> {
            calls.into_iter().filter(|call| call.0 == VERSION_PORTMAP).collect()
        };
        let expected = |procedure| {
            [nfs3::PROGRAM, mount3::PROGRAM]
                .map(|program| (VERSION_PORTMAP, procedure, program, "6 2049".into()))
        };
        assert_eq!(by_version_2(calls), expected(RpcbindProcedure::Set));
        let (address, serving) = rpcbind(&[
            ProgMismatch,
            ProgMismatch,
            TRUE,
            ProgMismatch,
            TRUE,
            ProgMismatch,
            ProgMismatch,
        ]);
        unregister(address, &listening).await.unwrap();
        assert_eq!(by_version_2(serving.await.unwrap()), expected(RpcbindProcedure::Unset));
    }

    /// A socket that listens as that of another server, and its universal address.
    fn another() -> (TcpListener, SocketAddr, &'static str) {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address, universal_address(address).leak())
    }

    #[tokio::test]
    async fn program_of_another_server_at_another_port_is_an_error() {
        let (_socket, holder, listed) = another();
        let answers = Box::leak(Box::new([Bool(false), Listed(listed)]));
        let (address, serving) = rpcbind(answers);
        let error = register(address, &listening(&["192.0.2.1:2049"])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let expected = format!(
            "the portmapper on {address} refused to register program 100003: another server has \
             registered it at {holder} (if that is gone, run `rpcinfo -d 100003 3`)"
        );
        assert_eq!(error.to_string(), expected);
        let [nfs, _] = wanted(RpcbindProcedure::Set);
        assert_eq!(serving.await.unwrap(), [nfs, dumped()]);

        let (address, serving) = rpcbind(&[Bool(false), ProgMismatch]);
        let error = register(address, &listening(&["192.0.2.1:2049"])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let error = error.to_string();
        assert!(
            error.contains("or the portmapper is another `spillway serve --portmap`"),
            "{error}"
        );
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn registration_that_fails_half_way_is_undone() {
        let (_socket, _, listed) = another();
        let answers = Box::leak(Box::new([Bool(true), Bool(false), Listed(listed), Bool(true)]));
        let (address, serving) = rpcbind(answers);
        let error = register(address, &listening(&["192.0.2.1:2049"])).await.unwrap_err();
        assert!(error.to_string().contains("`rpcinfo -d 100005 3`"), "{error}");
        let [nfs, mount] = wanted(RpcbindProcedure::Set);
        // MOUNT is the other server's.
        let [unset, _] = wanted(RpcbindProcedure::Unset);
        assert_eq!(serving.await.unwrap(), [nfs, mount, dumped(), unset]);
    }

    #[tokio::test]
    async fn registration_of_a_server_that_is_gone_is_replaced() {
        let (socket, free, listed) = another();
        drop(socket);
        assert!(is_free(free));
        // An address that no socket of this machine can have, and an older version's wildcard.
        for listed in [listed, "198.51.100.7.8.1", "0.0.0.0.8.1"] {
            let (refused, listed) = (Bool(false), Listed(listed));
            let answers = [refused, listed, Bool(true), Bool(true)];
            let answers = Box::leak(Box::new([answers, answers].concat()));
            let (address, serving) = rpcbind(answers);
            register(address, &listening(&["192.0.2.1:2049"])).await.unwrap();
            let set = wanted(RpcbindProcedure::Set);
            let unset = wanted(RpcbindProcedure::Unset);
            let expected = set.into_iter().zip(unset);
            let expected: Vec<_> =
                expected.flat_map(|(set, unset)| [set.clone(), dumped(), unset, set]).collect();
            assert_eq!(serving.await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn registration_of_a_server_that_runs_at_the_same_port_stays() {
        let (_socket, holder, listed) = another();
        let (refused, listed) = (Bool(false), Listed(listed));
        let answers = Box::leak(Box::new([refused, listed, refused, listed]));
        let (address, serving) = rpcbind(answers);
        let beside = SocketAddr::new([127, 0, 0, 2].into(), holder.port());
        register(address, &[beside]).await.unwrap();
        let procedures: Vec<_> = serving.await.unwrap().iter().map(|call| call.1).collect();
        let [set, dump] = [RpcbindProcedure::Set, RpcbindProcedure::Dump];
        assert_eq!(procedures, [set, dump, set, dump]);
    }

    #[test]
    fn no_other_server_listens_where_this_one_does() {
        let [v4, v6] = [0, 2].map(|index| &TRANSPORTS[index]);
        let table: [(&str, &Transport, &[&str], bool); 9] = [
            ("127.0.0.1:2049", v4, &["127.0.0.2:2049", "127.0.0.1:2049"], true),
            ("127.0.0.1:2049", v4, &["127.0.0.2:2049", "127.0.0.1:2050"], false),
            ("127.0.0.1:2049", v4, &["[::]:2049"], true),
            ("127.0.0.1:2049", v4, &["[::]:2049", "127.0.0.2:2049"], false),
            ("0.0.0.0:2049", v4, &["127.0.0.2:2049"], true),
            ("0.0.0.0:2049", v4, &["127.0.0.2:2050"], false),
            ("[::1]:2049", v6, &["[::2]:2049", "0.0.0.0:2049"], false),
            ("[::]:2049", v6, &["[::2]:2049"], true),
            ("127.0.0.1:2049", v4, &["[::ffff:127.0.0.1]:2049"], true),
        ];
        for (holder, transport, own, expected) in table {
            let found = is_own(holder.parse().unwrap(), transport, &listening(own));
            assert_eq!(found, expected, "{holder} {own:?}");
        }
    }

    #[test]
    fn a_wildcard_is_free_where_no_address_is_listened_on() {
        let (socket, address, _) = another();
        let wildcard = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert_eq!([address, wildcard].map(is_free), [false; 2]);
        drop(socket);
    }

    #[tokio::test]
    async fn unreadable_list_leaves_the_registration_and_the_error_names_the_command() {
        let (address, serving) = rpcbind(&[Unreadable]);
        let error = unregister(address, &listening(&["192.0.2.1:2049"])).await.unwrap_err();
        let expected = "; `rpcinfo -d 100003 3` and `rpcinfo -d 100005 3` remove what is left";
        assert!(error.to_string().ends_with(expected), "{error}");
        assert_eq!(serving.await.unwrap(), [dumped()]);
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
