//! A server, in this process or elsewhere, with a tap in front of it.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use proto::nfs3::Status;
use server::Server;
use server::config::{Config, Overrides};
use spillway_client::{FileSystem, Identity, Inode, MountOptions, NfsUrl};
use tempfile::TempDir;

use crate::tap::{Seen, Tap};

const CONFIG: &str = r#"
    [[export]]
    path = "$DIR/export"
    name = "/export"
    squash = "none"
    sync = false
"#;

/// The server, relay and options of an experiment.
pub(crate) struct Bed {
    /// In this process.
    own: Option<(Server, TempDir)>,
    tap: Tap,
    /// Of the server itself.
    url: NfsUrl,
}

impl Bed {
    pub(crate) async fn new() -> Self {
        let (own, url) = match std::env::var("SPILLWAY_EXPERIMENT_URL") {
            Ok(url) => (None, url.parse::<NfsUrl>().unwrap()),
            Err(_) => {
                let (server, dir) = start().await;
                let url = format!("nfs://{}/export", server.local_addrs()[0]);
                (Some((server, dir)), url.parse().unwrap())
            }
        };
        let address = (url.host.as_str(), url.port.unwrap_or(NFS_PORT));
        let address = address.to_socket_addrs().unwrap().next().unwrap();
        Self { own, tap: Tap::new(address).await, url }
    }

    /// Mounts the export through the tap.
    pub(crate) async fn mount(&self, options: &MountOptions) -> FileSystem {
        let tapped = NfsUrl { port: Some(self.tap.address().port()), ..self.url.clone() };
        mount(&tapped, options).await
    }

    /// Mounts the export as another client does, past the tap.
    pub(crate) async fn mount_elsewhere(&self) -> FileSystem {
        mount(&self.url, &options()).await
    }

    /// The calls since this was last asked.
    pub(crate) fn seen(&self) -> Seen {
        self.tap.take()
    }

    /// One of the server's figures, if it is one that has them.
    pub(crate) fn figure(&self, name: &str) -> Option<u64> {
        let figures = self.own.as_ref()?.0.figures();
        Some(figures.into_iter().find(|(other, _)| *other == name).unwrap().1)
    }

    /// A new directory of this name. What a former experiment left of it at a server that stays is
    /// not emptied.
    pub(crate) async fn make_dir(&self, name: &str) {
        let file_system = self.mount_elsewhere().await;
        let root = file_system.root();
        match file_system.make_dir(&root, name.as_bytes(), 0o755).await {
            Err(error) if error.is(Status::Exist) => panic!("{name} is there; remove it first"),
            made => made.unwrap(),
        };
    }

    /// Fills a directory: with symbolic links, because Ganesha keeps open what it creates.
    pub(crate) async fn fill(&self, dir: &str, names: impl Iterator<Item = String>) {
        if let Some((_, export)) = &self.own {
            let dir = export.path().join("export").join(dir);
            for name in names {
                std::os::unix::fs::symlink(TARGET, dir.join(name)).unwrap();
            }
            return;
        }
        let file_system = self.mount_elsewhere().await;
        let dir = lookup(&file_system, dir).await;
        let mut names: Vec<_> = names.collect();
        let mut tasks = tokio::task::JoinSet::new();
        while !names.is_empty() {
            let part = names.split_off(names.len().saturating_sub(FILLED_BY_A_TASK));
            let (file_system, dir) = (file_system.clone(), Arc::clone(&dir));
            while tasks.len() >= FILLING_TASKS {
                tasks.join_next().await.unwrap().unwrap();
            }
            tasks.spawn(async move {
                for name in part {
                    let target = TARGET.as_bytes();
                    file_system.symlink(&dir, name.as_bytes(), target).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
    }
}

async fn start() -> (Server, TempDir) {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("export")).unwrap();
    let overrides = Overrides {
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        state_dir: Some(dir.path().join("state")),
        ..Overrides::default()
    };
    let text = CONFIG.replace("$DIR", dir.path().to_str().unwrap());
    let config = Config::parse(&text, Path::new("experiment.toml"), &overrides).unwrap();
    (Server::start(config).await.unwrap(), dir)
}

async fn mount(url: &NfsUrl, options: &MountOptions) -> FileSystem {
    let root = Arc::new(Identity { uid: 0, gid: 0, groups: Vec::new() });
    FileSystem::mount(url, &root, options, Arc::default()).await.unwrap()
}

/// The object of this name in the root directory.
pub(crate) async fn lookup(file_system: &FileSystem, name: &str) -> Arc<Inode> {
    file_system.lookup(&file_system.root(), name.as_bytes()).await.unwrap()
}

/// Options that find out soon when something does not work.
pub(crate) fn options() -> MountOptions {
    MountOptions {
        timeout: Duration::from_secs(20),
        reserved_port: false,
        ..MountOptions::default()
    }
}

/// A number from the environment, for experiments by hand.
pub(crate) fn knob<T: FromStr<Err: Display>>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => default,
    }
}

/// Where the links lead.
const TARGET: &str = "nowhere";
const NFS_PORT: u16 = 2049;
const FILLING_TASKS: usize = 32;
const FILLED_BY_A_TASK: usize = 500;
