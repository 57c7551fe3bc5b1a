//! A slow network in the kernel: two network name spaces of our own, joined by a link with delay
//! and rate (`veth` and `netem`).

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use super::limits::NetworkLimits;
use super::program;
use super::undo::Undo;
use crate::{Error, Result};

/// No other host is in these name spaces, so any address is free.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const INTERFACE: &str = "bench0";

/// Removes the name spaces `$1` and `$2`, and with the first one the link.
const REMOVE: &str = r#"
for name in "$1" "$2"; do
    [ ! -e "/run/netns/$name" ] || ip netns delete "$name"
done"#;

/// The queue of a link without a rate is sized for this one.
const BYTES_PER_SEC_MAX: u64 = 1_250_000_000;
/// The default limit of netem's queue, in packets.
const QUEUE_PACKETS_MIN: u64 = 1000;
const PACKET_BYTES: u64 = 1500;

/// A network name space.
#[derive(Debug, PartialEq, Eq)]
pub struct NetworkNamespace {
    name: String,
}

impl NetworkNamespace {
    /// One that is there.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }

    /// As in `ip netns list`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The words before a command that is to run in the name space. `ip netns exec` would mount
    /// `/sys` anew, which hides the cgroups; `nsenter` leaves the mounts alone.
    #[must_use]
    pub fn prefix(&self) -> [OsString; 2] {
        ["nsenter".into(), format!("--net=/run/netns/{}", self.name).into()]
    }
}

/// Two name spaces and the link between them. Removed when dropped, also if this process is
/// killed; processes in them go on without a network.
#[derive(Debug)]
pub struct NetworkLink {
    client: NetworkNamespace,
    server: NetworkNamespace,
    _undo: Undo,
}

impl NetworkLink {
    /// Where a server has to listen.
    pub const SERVER_ADDRESS: IpAddr = IpAddr::V4(SERVER);

    /// Makes them. Delay and rate are those of each direction; a round trip takes the delay twice.
    /// When the queue of the link is full, packets are lost.
    ///
    /// # Errors
    /// [`Error::Machine`]: this kernel has no netem. [`Error::Program`]: `ip` or `tc` is missing,
    /// or refused, mostly because only root may.
    pub fn create(limits: &NetworkLimits) -> Result<Self> {
        let named = |side: &str| NetworkNamespace {
            name: format!("spillway-bench-{}-{side}", std::process::id()),
        };
        let (client, server) = (named("client"), named("server"));
        let undo = Undo::new(REMOVE, &[&client.name, &server.name])?;
        for namespace in [&client, &server] {
            program::run("ip", &["netns", "add", &namespace.name])?;
            program::run("ip", &["-n", &namespace.name, "link", "set", "lo", "up"])?;
        }
        let peer = ["peer", "name", INTERFACE, "netns", &server.name];
        let veth = ["-n", &client.name, "link", "add", INTERFACE, "type", "veth"];
        program::run("ip", &[&veth[..], &peer].concat())?;
        for (namespace, address) in [(&client, CLIENT), (&server, SERVER)] {
            let address = format!("{address}/24");
            let name = &namespace.name;
            program::run("ip", &["-n", name, "address", "add", &address, "dev", INTERFACE])?;
            program::run("ip", &["-n", name, "link", "set", INTERFACE, "up"])?;
            slow_down(namespace, limits)?;
        }
        Ok(Self { client, server, _undo: undo })
    }

    /// Where the load belongs.
    #[must_use]
    pub fn client_namespace(&self) -> &NetworkNamespace {
        &self.client
    }

    /// Where the server belongs.
    #[must_use]
    pub fn server_namespace(&self) -> &NetworkNamespace {
        &self.server
    }
}

/// Puts netem on what leaves `namespace`.
fn slow_down(namespace: &NetworkNamespace, limits: &NetworkLimits) -> Result<()> {
    if limits.is_none() {
        return Ok(());
    }
    let add = ["-n", &namespace.name, "qdisc", "add", "dev", INTERFACE, "root"];
    let words: Vec<String> = add.map(str::to_owned).into_iter().chain(netem(limits)).collect();
    match program::run("tc", &words) {
        Ok(_) => Ok(()),
        Err(Error::Program(words)) if is_unknown(&words) => Err(Error::Machine {
            what:
                "this kernel cannot delay packets: it has no `netem` (CONFIG_NET_SCH_NETEM, module \
                   sch_netem); the relay can slow the connections down instead"
                    .to_owned(),
            source: io::ErrorKind::Unsupported.into(),
        }),
        Err(error) => Err(error),
    }
}

/// Whether `tc` reports that there is no such queue; the second way is that of old kernels.
fn is_unknown(words: &str) -> bool {
    words.contains("qdisc kind is unknown") || words.contains("No such file or directory")
}

/// The words of `tc` for it.
fn netem(limits: &NetworkLimits) -> Vec<String> {
    let mut words = vec!["netem".to_owned(), "limit".to_owned(), queue_packets(limits).to_string()];
    if let Some(delay) = limits.delay {
        words.extend(["delay".to_owned(), format!("{}us", delay.0.as_micros())]);
    }
    if let Some(rate) = limits.rate {
        words.extend(["rate".to_owned(), format!("{}bps", rate.0)]);
    }
    words
}

/// The limit of netem's queue: twice the packets that fill the delay at the full rate, and the
/// default on top.
fn queue_packets(limits: &NetworkLimits) -> u64 {
    let bytes_per_sec = limits.rate.map_or(BYTES_PER_SEC_MAX, |rate| rate.0.min(BYTES_PER_SEC_MAX));
    let micros = limits.delay.map_or(0, |delay| delay.0.as_micros());
    let micros = u64::try_from(micros).expect("a delay is at most 10 s");
    QUEUE_PACKETS_MIN + 2 * (bytes_per_sec * micros / 1_000_000).div_ceil(PACKET_BYTES)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::skip::{skip, skip_in_ci_too};

    fn limits(delay: &str, rate: &str) -> NetworkLimits {
        NetworkLimits { delay: delay.parse().ok(), rate: rate.parse().ok() }
    }

    /// `None`, with the reason printed, if it is not available.
    fn link(limits: &NetworkLimits) -> Option<NetworkLink> {
        if !rustix::process::geteuid().is_root() {
            skip("only root makes network name spaces");
            return None;
        }
        match NetworkLink::create(limits) {
            Ok(link) => Some(link),
            // Without netem.
            Err(error @ Error::Machine { .. }) => {
                skip_in_ci_too(error);
                None
            }
            Err(error) => {
                skip(error);
                None
            }
        }
    }

    fn in_namespace(namespace: &NetworkNamespace, words: &[&str]) -> Command {
        let [program, flag] = namespace.prefix();
        let mut command = Command::new(program);
        command.arg(flag).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    #[test]
    fn the_words_of_tc_are_exact() {
        let words = |delay, rate| netem(&limits(delay, rate)).join(" ");
        assert_eq!(words("5ms", "100mbit"), "netem limit 1084 delay 5000us rate 12500000bps");
        assert_eq!(words("100us", ""), "netem limit 1168 delay 100us");
        assert_eq!(words("", "1gbit"), "netem limit 1000 rate 125000000bps");
    }

    // One test, because the names are those of this process.
    #[test]
    fn a_link_joins_its_ends_and_is_as_slow_as_asked() {
        let Some(plain) = link(&NetworkLimits::default()) else { return };
        let names =
            [&plain.client.name, &plain.server.name].map(|name| format!("/run/netns/{name}"));
        assert!(names.iter().all(|name| PathBuf::from(name).exists()));
        ping(&plain, Duration::ZERO);
        drop(plain);
        assert!(!names.iter().any(|name| PathBuf::from(name).exists()));

        let Some(slow) = link(&limits("20ms", "10MiB/s")) else { return };
        ping(&slow, Duration::from_millis(40));
        transfer(&slow);
    }

    /// A connection, a byte there and a byte back: two round trips, of which each takes `least`.
    fn ping(link: &NetworkLink, least: Duration) {
        let took = exchange(link, "c.sendall(b'x'); c.recv(1)", "c.sendall(c.recv(1))");
        assert!(took >= least * 2, "{took:?}");
    }

    /// 4 MiB at 10 MiB/s, less what the first packets save.
    fn transfer(link: &NetworkLink) {
        let send = "c.sendall(bytes(4 << 20)); c.shutdown(1); c.recv(1)";
        let took = exchange(link, send, "[None for _ in iter(lambda: c.recv(1 << 20), b'')]");
        assert!(took >= Duration::from_millis(300), "{took:?}");
    }

    /// Runs two lines of Python on a connection `c` from client to server; the client's time.
    fn exchange(link: &NetworkLink, client: &str, server: &str) -> Duration {
        let address = NetworkLink::SERVER_ADDRESS;
        let listen = format!(
            "import socket; s = socket.create_server(('{address}', 2049)); print(flush=True)\n\
             c = s.accept()[0]; {server}"
        );
        let mut serving = in_namespace(&link.server, &["python3", "-c", &listen]).spawn().unwrap();
        let mut ready = [0];
        std::io::Read::read_exact(serving.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let connect = format!(
            "import socket, time; start = time.monotonic()\n\
             c = socket.create_connection(('{address}', 2049)); {client}\n\
             print(time.monotonic() - start)"
        );
        let start = Instant::now();
        let output = in_namespace(&link.client, &["python3", "-c", &connect]).output().unwrap();
        assert!(output.status.success() && serving.wait().unwrap().success());
        let printed = String::from_utf8(output.stdout).unwrap();
        let secs = printed.lines().last().unwrap().parse().unwrap();
        println!("{client}: {secs} s of {:?}", start.elapsed());
        Duration::from_secs_f64(secs)
    }
}
