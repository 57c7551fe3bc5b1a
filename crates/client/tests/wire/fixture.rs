//! A server in this process, on a free port, over a temporary directory.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use server::Server;
use server::config::{Config, Overrides};
use spillway_client::{Identity, MountOptions, NfsUrl};
use tempfile::TempDir;

/// An export that trusts its clients, so that tests see files as they made them, and that does not
/// wait for the disk at each change of a name.
const TRUSTING: &str = r#"
    [[export]]
    path = "$DIR/export"
    name = "/export"
    squash = "none"
    sync = false
"#;

/// A running server, which exports the directory `export`.
pub(crate) struct Fixture {
    dir: TempDir,
    /// Serves until the runtime of the test ends.
    server: Server,
    address: SocketAddr,
}

impl Fixture {
    /// Serves `/export` to clients that are trusted.
    pub(crate) async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let (server, address) = start(dir.path(), 0).await;
        Self { dir, server, address }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `/export` as a URL.
    pub(crate) fn url(&self) -> NfsUrl {
        format!("nfs://{}/export", self.address).parse().unwrap()
    }

    /// One of the server's figures.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let figures = self.server.figures();
        figures.into_iter().find(|(other, _)| *other == name).unwrap().1
    }

    /// A path below the exported directory.
    pub(crate) fn exported(&self, path: &str) -> PathBuf {
        self.dir.path().join("export").join(path)
    }
}

async fn start(dir: &Path, port: u16) -> (Server, SocketAddr) {
    let text = TRUSTING.replace("$DIR", dir.to_str().unwrap());
    let overrides = Overrides {
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))],
        state_dir: Some(dir.join("state")),
        ..Overrides::default()
    };
    let config = Config::parse(&text, Path::new("test.toml"), &overrides).unwrap();
    let server = Server::start(config).await.unwrap();
    let address = server.local_addrs()[0];
    (server, address)
}

/// Root, which the export trusts.
pub(crate) fn root_user() -> Arc<Identity> {
    Arc::new(Identity { uid: 0, gid: 0, groups: Vec::new() })
}

/// Options that find out soon when something does not work.
pub(crate) fn options() -> MountOptions {
    MountOptions {
        timeout: Duration::from_secs(20),
        reserved_port: false,
        ..MountOptions::default()
    }
}
