//! PORTMAP version 2 and RPCBIND versions 3 and 4, RFC 1833.

use std::net::{IpAddr, SocketAddr};

use crate::xdr::{List, xdr_enum, xdr_struct};

xdr_enum! {
    /// The procedures of version 2, RFC 1833 §3.1.
    pub enum PortmapProcedure: "PMAP procedure" {
        /// Do nothing.
        Null = 0 "NULL",
        /// Register a [`Mapping`]; answers a boolean.
        Set = 1 "SET",
        /// Remove each mapping of a program and version; answers a boolean.
        Unset = 2 "UNSET",
        /// Ask for the port of a [`Mapping`]; answers a number, zero when there is none.
        Getport = 3 "GETPORT",
        /// List each [`Mapping`].
        Dump = 4 "DUMP",
        /// Call another program through the mapper. An amplifier; named here to be refused.
        Callit = 5 "CALLIT",
    }
}

xdr_enum! {
    /// The procedures of versions 3 and 4, RFC 1833 §2.1. Those past TADDR2UADDR are version 4
    /// only.
    pub enum RpcbindProcedure: "RPCBPROC" {
        /// Do nothing.
        Null = 0 "NULL",
        /// Register an [`RpcbEntry`]; answers a boolean.
        Set = 1 "SET",
        /// Remove an [`RpcbEntry`]; answers a boolean.
        Unset = 2 "UNSET",
        /// Ask for the universal address of an [`RpcbEntry`]; answers an [`Address`], empty when
        /// there is none.
        Getaddr = 3 "GETADDR",
        /// List each [`RpcbEntry`].
        Dump = 4 "DUMP",
        /// CALLIT in version 3, BCAST in version 4: call another program through the mapper.
        Callit = 5 "CALLIT",
        /// Answers seconds since 1970.
        Gettime = 6 "GETTIME",
        /// From a universal address to a transport's own.
        Uaddr2taddr = 7 "UADDR2TADDR",
        /// From a transport's own address to a universal one.
        Taddr2uaddr = 8 "TADDR2UADDR",
        /// As GETADDR, but for exactly the version asked for.
        Getversaddr = 9 "GETVERSADDR",
        /// As CALLIT, but with errors answered.
        Indirect = 10 "INDIRECT",
        /// List the addresses of a program on each transport.
        Getaddrlist = 11 "GETADDRLIST",
        /// The mapper's own statistics.
        Getstat = 12 "GETSTAT",
    }
}

/// `mapping`, RFC 1833 §3.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The program's number.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// [`PROTOCOL_TCP`] or [`PROTOCOL_UDP`].
    pub protocol: u32,
    /// The port; ignored in what a caller of GETPORT sends.
    pub port: u32,
}

xdr_struct!(Mapping { program: u32, version: u32, protocol: u32, port: u32 });

/// Result of DUMP in version 2. A server may write the same with [`crate::xdr::encode_list`].
pub type MappingList<'a> = List<'a, Mapping>;

/// `rpcb`, RFC 1833 §2.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RpcbEntry<'a> {
    /// The program's number.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The transport: `tcp`, `udp`, `tcp6`, `udp6`.
    pub netid: &'a [u8],
    /// A universal address, see [`universal_address`].
    pub address: &'a [u8],
    /// The name of the user that registered it.
    pub owner: &'a [u8],
}

xdr_struct!(RpcbEntry<'a> {
    program: u32,
    version: u32,
    netid: opaque(STRING_BYTES_MAX),
    address: opaque(STRING_BYTES_MAX),
    owner: opaque(STRING_BYTES_MAX),
});

/// Result of DUMP in versions 3 and 4. A server may write the same with
/// [`crate::xdr::encode_list`].
pub type RpcbEntryList<'a> = List<'a, RpcbEntry<'a>>;

/// Result of GETADDR and GETVERSADDR: a universal address, empty when nothing is registered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address<'a> {
    /// Its text.
    pub address: &'a [u8],
}

xdr_struct!(Address<'a> { address: opaque(STRING_BYTES_MAX) });

/// A socket's address as RPCBIND writes it, RFC 5665 §5.2.3: the host, then the two bytes of the
/// port as decimals, each behind a dot. `127.0.0.1:2049` is `127.0.0.1.8.1`. A scope id is lost.
#[must_use]
pub fn universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// Reads a universal address; `None` when the text is not one.
#[must_use]
pub fn parse_universal_address(text: &[u8]) -> Option<SocketAddr> {
    let text = str::from_utf8(text).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let port = u16::from_be_bytes([decimal_byte(high)?, decimal_byte(low)?]);
    Some(SocketAddr::new(host.parse::<IpAddr>().ok()?, port))
}

/// Digits alone: `u8::from_str` would also take a plus sign.
fn decimal_byte(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The port mapper's own program number.
pub const PROGRAM: u32 = 100_000;
/// PORTMAP.
pub const VERSION_PORTMAP: u32 = 2;
/// RPCBIND version 3.
pub const VERSION_RPCBIND_3: u32 = 3;
/// RPCBIND version 4.
pub const VERSION_RPCBIND_4: u32 = 4;
/// Where it listens, on TCP and UDP.
pub const PORT: u16 = 111;
/// `IPPROTO_TCP`.
pub const PROTOCOL_TCP: u32 = 6;
/// `IPPROTO_UDP`.
pub const PROTOCOL_UDP: u32 = 17;
/// Bound of the strings of RPCBIND, which the RFC leaves open. Netids and addresses are far
/// shorter.
pub const STRING_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_addresses_both_ways() {
        let table = [
            ("127.0.0.1:2049", "127.0.0.1.8.1"),
            ("0.0.0.0:111", "0.0.0.0.0.111"),
            ("192.0.2.7:65535", "192.0.2.7.255.255"),
            ("[::]:2049", "::.8.1"),
            ("[2001:db8::1]:20048", "2001:db8::1.78.80"),
            ("[::ffff:192.0.2.7]:256", "::ffff:192.0.2.7.1.0"),
        ];
        for (socket, universal) in table {
            let socket: SocketAddr = socket.parse().unwrap();
            assert_eq!(universal_address(socket), universal);
            assert_eq!(parse_universal_address(universal.as_bytes()), Some(socket));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            ".",
            "..",
            "8.1",
            "127.0.0.1",
            "127.0.0.1.8",
            "127.0.0.1.8.256",
            "127.0.0.1.8.-1",
            "127.0.0.1.+8.1",
            "127.0.0.1.8.1.",
            "127.0.0.1.8.1 ",
            "127.0.0.1..1",
            "host.8.1",
            "[::1].8.1",
            "::1",
        ] {
            assert_eq!(parse_universal_address(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_universal_address(b"127.0.0.1.8.\xff"), None);
    }
}
