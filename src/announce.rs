//! The start-up message: the addresses that the server listens on, and how to mount from there.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use server::config::NfsVersions;
use server::export::{Export, ExportTable, Flavor, Peer, Purpose};

use crate::stdout;

/// Prints `text` to stdout and flushes it: a script may be waiting for it through a pipe.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = stdout::lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// The addresses, then for each export the lines for mount(8), that of version 4 first, and a URL
/// for libnfs, ready to paste.
pub(crate) fn announcement(
    addresses: &[SocketAddr],
    exports: &ExportTable,
    versions: NfsVersions,
) -> String {
    let mut text = String::new();
    for address in addresses {
        text += &format!("listening on {address}\n");
    }
    for export in exports.iter() {
        text += &format!("export {}\n", export.name);
        for address in addresses {
            let host = host_to_name(*address, export);
            let written = write_mount(&mut text, host, &export.name, of_export(export, versions));
            written.expect("a String takes all that is written");
        }
    }
    text
}

/// The versions that an export is served over.
fn of_export(export: &Export, versions: NfsVersions) -> NfsVersions {
    match export.metadata_servers {
        Some(_) => NfsVersions { v4_1: false, v4_2: false, ..versions },
        None => versions,
    }
}

/// Writes the ways to mount `name`. Version 4 needs the port alone, and its own not even that.
/// Those of version 3 name the ports: without the portmapper a client would not find MOUNT.
/// `nolock` because there is no lock manager.
fn write_mount(
    text: &mut String,
    host: SocketAddr,
    name: &str,
    versions: NfsVersions,
) -> std::fmt::Result {
    let port = host.port();
    let (proto, host) = match host {
        SocketAddr::V4(host) => ("tcp", host.ip().to_string()),
        SocketAddr::V6(host) if host.scope_id() == 0 => ("tcp6", format!("[{}]", host.ip())),
        // Without its scope a link-local address leads nowhere.
        SocketAddr::V6(host) => ("tcp6", format!("[{}%{}]", host.ip(), host.scope_id())),
    };
    let source = shell_quoted(&format!("{host}:{name}"));
    if versions.v4_1 || versions.v4_2 {
        let options = if port == NFS_PORT { String::new() } else { format!("-o port={port} ") };
        writeln!(text, "    mount -t nfs {options}{source} /mnt")?;
    }
    if !versions.v3 {
        return Ok(());
    }
    let options =
        format!("vers=3,proto={proto},port={port},mountport={port},mountproto={proto},nolock");
    writeln!(text, "    mount -t nfs -o {options} {source} /mnt")?;
    let path = url_path(name);
    writeln!(text, "    nfs://{host}{path}?version=3&nfsport={port}&mountport={port}")
}

/// The host for the mount line. A wildcard address is not one to connect to: in its place stands
/// the address of this machine that leads outside, or loopback where the export admits only that.
fn host_to_name(listening: SocketAddr, export: &Export) -> SocketAddr {
    if !listening.ip().is_unspecified() {
        return listening;
    }
    let loopback: IpAddr = match listening {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let loopback = SocketAddr::new(loopback, listening.port());
    // A source port below 1024 satisfies `secure_ports`; here only the address matters.
    let admits = |mut address: SocketAddr| {
        address.set_port(1023);
        export.admit(&Peer { address, purpose: Purpose::Data }, Flavor::Sys).is_ok()
    };
    match outward_address(listening) {
        Some(outward) if admits(outward) || !admits(loopback) => outward,
        _ => loopback,
    }
}

/// The address this machine would use towards the outside, of the wildcard's family and with its
/// port. Connecting a UDP socket only consults the routing table; nothing is sent to the
/// documentation address (RFC 5737, RFC 3849).
fn outward_address(wildcard: SocketAddr) -> Option<SocketAddr> {
    let outside: IpAddr = match wildcard {
        SocketAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        SocketAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let socket = UdpSocket::bind((wildcard.ip(), 0)).ok()?;
    socket.connect((outside, DISCARD_PORT)).ok()?;
    let mut outward = socket.local_addr().ok()?;
    outward.set_port(wildcard.port());
    if let SocketAddr::V6(address) = &mut outward
        && address.ip().is_unicast_link_local()
    {
        // The only address of some machines. A socket that is not bound to a link has no scope.
        let table = fs::read_to_string(ADDRESSES).ok()?;
        address.set_scope_id(link_of(address.ip(), &table)?);
    }
    Some(outward)
}

/// The number of the link with this address in the kernel's table; `None` if several have it.
fn link_of(address: &Ipv6Addr, table: &str) -> Option<u32> {
    let digits = format!("{:032x}", address.to_bits());
    let mut links = table.lines().filter_map(|line| line.strip_prefix(&digits));
    let (link, other) = (links.next()?, links.next());
    let number = u32::from_str_radix(link.split_whitespace().next()?, 16).ok()?;
    other.is_none().then_some(number)
}

/// `text` as one word of a POSIX shell.
fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/.:_-+@%[]".contains(c);
    if text.chars().all(|c| plain(c) && !"[]".contains(c)) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `name` as the path of a URL (RFC 3986 §3.3), everything doubtful percent-encoded.
fn url_path(name: &str) -> String {
    let mut path = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path += &format!("%{byte:02X}");
        }
    }
    path
}

/// The port that clients of version 4 connect to (RFC 8881 §2.9.3).
const NFS_PORT: u16 = 2049;
/// The IPv6 addresses of this machine: digits, number of the link, length of the prefix.
const ADDRESSES: &str = "/proc/net/if_inet6";
/// Port 9, "discard": never used, but a connected socket wants one.
const DISCARD_PORT: u16 = 9;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use server::export::{Access, HostSpec, Rule};

    use super::*;

    fn export(name: &str, rule: Rule) -> Export {
        Export {
            id: 1,
            name: name.to_owned(),
            path: PathBuf::from("/"),
            sync: true,
            file_sync_writes: false,
            policy: Default::default(),
            limits: Default::default(),
            rules: vec![rule],
            metadata_servers: None,
        }
    }

    fn everyone() -> Rule {
        Rule { hosts: vec![HostSpec::Any], access: Access::default() }
    }

    #[test]
    fn the_announcement_can_be_pasted() {
        let table = ExportTable::new(vec![export("/data", everyone())]).unwrap();
        let address = "127.0.0.1:40961".parse().unwrap();
        let expected = "listening on 127.0.0.1:40961\n\
            export /data\n    \
            mount -t nfs -o vers=3,proto=tcp,port=40961,mountport=40961,mountproto=tcp,nolock \
            127.0.0.1:/data /mnt\n    \
            nfs://127.0.0.1/data?version=3&nfsport=40961&mountport=40961\n";
        assert_eq!(announcement(&[address], &table, NfsVersions::V3), expected);
    }

    #[test]
    fn the_line_for_version_4_comes_first_and_is_short() {
        let table = ExportTable::new(vec![export("/data", everyone())]).unwrap();
        let [other, usual] = ["127.0.0.1:40961", "127.0.0.1:2049"].map(|a| a.parse().unwrap());
        let text = announcement(&[other], &table, "3,4.2".parse().unwrap());
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        assert_eq!(lines[2], "mount -t nfs -o port=40961 127.0.0.1:/data /mnt");
        assert!(lines[3].starts_with("mount -t nfs -o vers=3,"), "{text}");
        let text = announcement(&[usual], &table, "4.1".parse().unwrap());
        assert!(text.ends_with("export /data\n    mount -t nfs 127.0.0.1:/data /mnt\n"), "{text}");
    }

    #[test]
    fn odd_names_and_ipv6_are_quoted() {
        let table = ExportTable::new(vec![export("/it's a $name", everyone())]).unwrap();
        let text = announcement(&["[::1]:2049".parse().unwrap()], &table, NfsVersions::V3);
        assert!(text.contains(r"'[::1]:/it'\''s a $name' /mnt"), "{text}");
        assert!(text.contains("proto=tcp6,port=2049"), "{text}");
        assert!(text.contains("nfs://[::1]/it%27s%20a%20%24name?"), "{text}");
    }

    #[test]
    fn the_scope_of_a_link_local_address_stays() {
        let table = ExportTable::new(vec![export("/data", everyone())]).unwrap();
        let address = "[fe80::1%2]:2049".parse().unwrap();
        let expected = "listening on [fe80::1%2]:2049\n\
            export /data\n    \
            mount -t nfs '[fe80::1%2]:/data' /mnt\n    \
            mount -t nfs -o vers=3,proto=tcp6,port=2049,mountport=2049,mountproto=tcp6,nolock \
            '[fe80::1%2]:/data' /mnt\n    \
            nfs://[fe80::1%2]/data?version=3&nfsport=2049&mountport=2049\n";
        assert_eq!(announcement(&[address], &table, "3,4.2".parse().unwrap()), expected);
    }

    #[test]
    fn a_link_local_address_has_the_scope_of_its_only_link() {
        let table = "fe80000000000000000000000000000b 1a 40 20 80    wlan0\n\
                     fe800000000000000000000000000001 02 40 20 80     eth0\n\
                     fe800000000000000000000000000001 03 40 20 80     eth1\n";
        let link = |address: &str| link_of(&address.parse().unwrap(), table);
        assert_eq!(["fe80::b", "fe80::1", "fe80::2"].map(link), [Some(26), None, None]);
    }

    #[test]
    fn a_wildcard_address_becomes_one_to_connect_to() {
        let local = export("/a", Rule::loopback(Access::default()));
        for (any, loopback) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1")] {
            let [any, loopback] = [any, loopback].map(|address| address.parse().unwrap());
            assert_eq!(host_to_name(any, &local), loopback);
            let host = host_to_name(any, &export("/b", everyone()));
            assert!(!host.ip().is_unspecified() && host.port() == 1, "{host}");
        }
    }
}
