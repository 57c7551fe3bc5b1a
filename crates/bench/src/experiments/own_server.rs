//! For tests: a server in this process, and relays in front of it that take their time or refuse.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Args, Parser};
use client::NfsUrl;
use server::Server;
use server::config::{Config, Overrides};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::export::Export;
use super::servers::Experiment;
use crate::load::Version;
use crate::record::{Measurement, Record};
use crate::stop::Stop;

/// The server, and what it serves.
pub(crate) struct OwnServer {
    server: Server,
    directory: TempDir,
    _runtime: Runtime,
}

impl OwnServer {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::create_dir(directory.path().join("export")).unwrap();
        let text = format!(
            "listen = \"127.0.0.1:0\"\nstate_dir = {:?}\nnfs_versions = [\"3\", \"4.2\"]\n\
             [[export]]\npath = {:?}\nname = \"/export\"\nsquash = \"none\"\nsync = false",
            directory.path().join("state"),
            directory.path().join("export"),
        );
        let config = Config::parse(&text, Path::new("test.toml"), &Overrides::default()).unwrap();
        let runtime = super::export::runtime().unwrap();
        let server = runtime.block_on(Server::start(config)).unwrap();
        Self { server, directory, _runtime: runtime }
    }

    /// The directory of its export.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("export")
    }

    /// Its export.
    pub(crate) fn url(&self) -> NfsUrl {
        url_at(self.server.local_addrs()[0])
    }

    pub(super) fn export(&self) -> Export<'_> {
        self.export_at(self.server.local_addrs()[0])
    }

    /// The same behind a relay that hands each piece of a call or reply on after `delay`.
    pub(super) fn delayed(&self, delay: Duration) -> Export<'_> {
        let at_once = |client, server| relay(client, server, Duration::ZERO);
        self.export_at(self.relayed(at_once, move |server, client| relay(server, client, delay)))
    }

    /// Its export behind a relay that makes each WRITE a call of a procedure that is not there.
    pub(super) fn refusing_writes(&self) -> NfsUrl {
        let at_once = |server, client| relay(server, client, Duration::ZERO);
        url_at(self.relayed(without_writes, at_once))
    }

    /// The address of a relay that hands calls on by `forward`, and replies by `back`.
    fn relayed(
        &self,
        forward: impl Fn(TcpStream, TcpStream) + Copy + Send + 'static,
        back: impl Fn(TcpStream, TcpStream) + Copy + Send + 'static,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, server) = (listener.local_addr().unwrap(), self.server.local_addrs()[0]);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || forward(client, server));
                let (client, server) = ends;
                thread::spawn(move || back(server, client));
            }
        });
        address
    }

    fn export_at(&self, address: SocketAddr) -> Export<'_> {
        Export {
            name: String::new(),
            url: url_at(address),
            directory: "bench".to_owned(),
            version: Version::V3,
            watched: None,
            files: Some(self.path()),
            counters: Box::new(|| Ok(self.counters())),
            stop: Stop::default(),
        }
    }

    /// Its counters since its start, by name.
    pub(super) fn counters(&self) -> BTreeMap<String, u64> {
        self.server.figures().into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

fn url_at(address: SocketAddr) -> NfsUrl {
    format!("nfs://{address}/export").parse().unwrap()
}

/// An experiment's own options as a command line gives them.
pub(super) fn options<T: Args>(line: &str) -> Result<T, clap::Error> {
    #[derive(Parser)]
    struct Line<T: Args> {
        #[command(flatten)]
        own: T,
    }

    Line::try_parse_from(["test"].into_iter().chain(line.split_whitespace())).map(|line| line.own)
}

/// All measurements of rounds on a server.
pub(super) fn measure(
    experiment: &impl Experiment,
    rounds: u32,
    export: &Export<'_>,
) -> Vec<Measurement> {
    let mut all = Vec::new();
    let mut record = |measurement| {
        all.push(measurement);
        Ok(())
    };
    experiment.carry_out(1..=rounds, export, &mut record).unwrap();
    all
}

/// The measurements in a file of records.
pub(super) fn measurements_in(file: &Path) -> Vec<Measurement> {
    let records = std::fs::read_to_string(file).unwrap();
    let measurement = |line| match serde_json::from_str(line).unwrap() {
        Record::Measurement(measurement) => Some(measurement),
        Record::Run(_) => None,
    };
    records.lines().filter_map(measurement).collect()
}

/// Hands calls on until either side closes; in a WRITE of version 3 the procedure is another.
fn without_writes(mut from: TcpStream, mut to: TcpStream) {
    to.set_nodelay(true).unwrap();
    let mut mark = [0; 4];
    while from.read_exact(&mut mark).is_ok() {
        let call_bytes = u32::from_be_bytes(mark) & !(1 << 31);
        let mut call = vec![0; usize::try_from(call_bytes).unwrap()];
        if from.read_exact(&mut call).is_err() {
            break;
        }
        // Behind xid, direction and version of RPC: program, version and procedure.
        let called = &mut call[12..24];
        if called == WRITE {
            called[8..].copy_from_slice(&u32::MAX.to_be_bytes());
        }
        if to.write_all(&mark).and_then(|()| to.write_all(&call)).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// Program 100003 in version 3, procedure 7.
const WRITE: &[u8] = &[0, 1, 0x86, 0xa3, 0, 0, 0, 3, 0, 0, 0, 7];

/// Ends when either side closes, and closes the other.
fn relay(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    to.set_nodelay(true).unwrap();
    let mut piece = vec![0; 1 << 20];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        thread::sleep(delay);
        if to.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}
