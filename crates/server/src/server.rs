//! A running server: start, reload, stop.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use proto::portmap::PORT;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::counters::{Counter, Counters};
use crate::dispatch::Programs;
use crate::file_handle::{HandleKey, HandleKeyError};
use crate::network_threads::NetworkThreads;
use crate::service::{ExportError, Exports, Service};
use crate::{listener, portmap};

/// How long connections may take to finish what they are at when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(15);
/// The period of the open-file cache's sweep.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The key that file handles are sealed with.
    #[error(transparent)]
    HandleKey(#[from] HandleKeyError),
    /// A directory to be served.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A listening address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// The threads that sockets live on.
    #[error("cannot start threads for connections: {0}")]
    Threads(std::io::Error),
    /// Neither is port 111 free nor does an rpcbind there take registrations.
    #[error("cannot answer as portmapper nor register with rpcbind: {0}")]
    Portmap(std::io::Error),
}

/// Why a new configuration was refused. The old one goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A directory to be served.
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// Some of what was written could not be put on the disk when the server stopped.
#[derive(Debug, thiserror::Error)]
#[error("not everything could be written to the disk")]
pub struct ShutdownError;

/// A running server. Stop it with [`Server::shutdown`].
pub struct Server {
    service: Arc<Service>,
    local_addrs: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    /// One permit per connection that may still come.
    connections: Arc<Semaphore>,
    connections_max: u32,
    threads: Arc<NetworkThreads>,
    tasks: Vec<JoinHandle<()>>,
    /// The port that rpcbind knows, if it was told.
    registered_port: Option<u16>,
}

impl Server {
    /// Opens the exports, binds the addresses and serves. The process's umask becomes 0, for the
    /// modes that clients send are meant as they are.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        rustix::process::umask(rustix::fs::Mode::empty());
        let handle_key = HandleKey::load_or_create(config.state_dir())?;
        let exports = Exports::open(Arc::clone(config.exports()), None)?;
        let service = Arc::new(Service::new(&config, exports, handle_key));
        let mut listeners = Vec::new();
        for address in config.listen() {
            let address = *address;
            let fail = |error| StartError::Listen { address, error };
            let listener = TcpListener::bind(address).map_err(fail)?;
            listener.set_nonblocking(true).map_err(fail)?;
            listeners.push((listener.local_addr().map_err(fail)?, listener));
        }
        let connections_max = u32::try_from(config.connections_max()).unwrap_or(u32::MAX);
        let (stop, _) = watch::channel(false);
        let mut server = Self {
            service,
            local_addrs: listeners.iter().map(|(address, _)| *address).collect(),
            stop,
            connections: Arc::new(Semaphore::new(config.connections_max())),
            connections_max,
            threads: Arc::new(NetworkThreads::start().map_err(StartError::Threads)?),
            tasks: Vec::new(),
            registered_port: None,
        };
        if config.portmap() {
            server.start_portmap().await?;
        }
        for (_, listener) in listeners {
            server.accept(Programs::Files, listener);
        }
        server.tasks.push(server.threads.next().spawn(sweep(Arc::clone(&server.service))));
        Ok(server)
    }

    /// Answers on port 111, or registers with the rpcbind that has it.
    async fn start_portmap(&mut self) -> Result<(), StartError> {
        let Some(first) = self.local_addrs.first() else { return Ok(()) };
        let (nfs_port, address) = (first.port(), SocketAddr::new(first.ip(), PORT));
        match TcpListener::bind(address) {
            Ok(listener) => {
                listener.set_nonblocking(true).map_err(StartError::Portmap)?;
                let socket = UdpSocket::bind(address).map_err(StartError::Portmap)?;
                socket.set_nonblocking(true).map_err(StartError::Portmap)?;
                let answering = portmap::serve_datagrams(socket, nfs_port);
                self.tasks.push(self.threads.next().spawn(answering));
                self.accept(Programs::Portmapper { nfs_port }, listener);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                portmap::register(nfs_port).await.map_err(StartError::Portmap)?;
                self.registered_port = Some(nfs_port);
            }
            Err(error) => return Err(StartError::Portmap(error)),
        }
        Ok(())
    }

    fn accept(&mut self, programs: Programs, socket: TcpListener) {
        self.tasks.push(self.threads.next().spawn(listener::accept(
            Arc::clone(&self.service),
            programs,
            socket,
            Arc::clone(&self.threads),
            Arc::clone(&self.connections),
            self.stop.subscribe(),
        )));
    }

    /// The addresses it listens on, with the real port where 0 was asked for.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// What was done since the start.
    pub fn counters(&self) -> &Counters {
        &self.service.counters
    }

    /// What was done since the start, and what is held now, by name with the unit last.
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        let (counters, vfs) = (self.counters(), &self.service.vfs);
        let mut figures: Vec<_> =
            Counter::ALL.iter().map(|counter| (counter.name(), counters.value(*counter))).collect();
        let window = vfs.window.counts();
        figures.extend([
            ("window_bytes", vfs.window.bytes()),
            ("window_out_of_order_writes", window.out_of_order),
            ("window_writes_put_in_order", window.put_in_order),
            ("window_runs", window.runs),
            ("window_written_back_bytes", window.bytes_written_back),
            ("window_dropped_bytes", window.bytes_dropped),
            ("window_kept_bytes", window.bytes_kept),
            ("window_stuck_bytes", window.bytes_stuck),
            ("window_forgotten_bytes", window.bytes_forgotten),
            ("window_throttled_writes", window.throttled),
            ("window_errors", window.errors),
            ("buffers_in_use_bytes", vfs.buffers.bytes_in_use() as u64),
            ("buffers_mapped_bytes", vfs.buffers.bytes_mapped() as u64),
        ]);
        figures
    }

    /// Serves the exports of `config` from the next request on, with its switches and trace events,
    /// and says what changed.
    ///
    /// # Errors
    /// A directory cannot be opened; everything stays as it was.
    pub fn reload(&self, config: Config) -> Result<String, ReloadError> {
        let old = self.service.exports.load_full();
        let new = Exports::open(Arc::clone(config.exports()), Some(&old))?;
        let mut changes = vec![new.table.changes_since(&old.table)];
        self.service.exports.store(Arc::new(new));
        changes.extend(self.service.switch(&config));
        Ok(changes.join(", "))
    }

    /// Accepts nothing new, finishes what was accepted, and puts everything on the disk.
    ///
    /// # Errors
    /// Some of it could not be put there. Clients will find another write verifier and send it again.
    pub async fn shutdown(self) -> Result<(), ShutdownError> {
        self.stop.send_replace(true);
        if let Some(port) = self.registered_port
            && let Err(error) = portmap::unregister(port).await
        {
            tracing::warn!(%error, "rpcbind still has this server registered");
        }
        let drained = self.connections.acquire_many(self.connections_max);
        if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
            tracing::warn!("connections were still at work when the server stopped");
        }
        for task in &self.tasks {
            task.abort();
        }
        let vfs = &self.service.vfs;
        let flushed = vfs.open_files.flush_all(&vfs.engine).await;
        let service = Arc::clone(&self.service);
        vfs.engine.data(move || service.vfs.window.shutdown()).await;
        vfs.engine.shutdown().await;
        flushed.map_err(|_| ShutdownError)
    }
}

/// Keeps the open-file cache's time, until it is ended.
async fn sweep(service: Arc<Service>) {
    let mut ticks = tokio::time::interval(SWEEP_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        service.vfs.open_files.sweep(&service.vfs.engine).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use io::{IoMode, IoPolicy};
    use proto::nfs3::FileHandle;
    use tempfile::TempDir;

    use super::*;
    use crate::config::Overrides;
    use crate::export_table::{Flavor, Peer};
    use crate::trace::{CallId, handle_hash};
    use crate::vfs::{Caller, Object};

    fn config(dir: &Path, settings: &str, modes: &str) -> Config {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nstate_dir = {:?}\n{settings}\n[[export]]\npath = {:?}\n{modes}",
            dir.join("state"),
            dir.join("export"),
        );
        Config::parse(&text, Path::new("test.toml"), &Overrides::default()).unwrap()
    }

    fn resolve(server: &Server, handle: &FileHandle) -> (Caller, Object) {
        let peer = Peer { address: "127.0.0.1:700".parse().unwrap() };
        server.service.resolve(7, handle.as_bytes(), &peer, Flavor::Sys, None).unwrap()
    }

    #[tokio::test]
    async fn a_reload_is_in_force_from_the_next_request_on() {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("export")).unwrap();
        let server = Server::start(config(dir.path(), "", "")).await.unwrap();
        let exports = server.service.exports.load_full();
        let export = exports.table.iter().next().unwrap();
        let handle = server.service.seal(export.id, exports.root(export).handle);

        let (caller, object) = resolve(&server, &handle);
        assert_eq!(object.policy, IoPolicy { read: IoMode::Auto, write: IoMode::Auto });
        assert_eq!(object.call_id(&caller), CallId { xid: 7, fh_hash: 0 });
        let switches = &server.service.vfs.switches;
        assert!(switches.read_ahead() && switches.splice());

        let settings = "read_ahead = false\nsplice = false\ntrace = [\"write_split\"]";
        let modes = "io_cache_read = \"direct\"\nio_cache_write = \"dontcache\"";
        let changes = server.reload(config(dir.path(), settings, modes)).unwrap();
        let changed = format!("changed {}", export.name);
        let expected = "read_ahead = false, splice = false, tracing write_split";
        assert_eq!(changes, format!("{changed}, {expected}"));
        let (caller, object) = resolve(&server, &handle);
        assert_eq!(object.policy, IoPolicy { read: IoMode::Direct, write: IoMode::DontCache });
        let fh_hash = handle_hash(handle.as_bytes());
        assert_eq!(object.call_id(&caller), CallId { xid: 7, fh_hash });
        assert!(!switches.read_ahead() && !switches.splice());

        let changes = server.reload(config(dir.path(), settings, modes)).unwrap();
        assert_eq!(changes, "no export changed");
        server.shutdown().await.unwrap();
    }
}
