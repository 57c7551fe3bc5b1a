//! A running server: start, reload, stop.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet, spawn_blocking};

use crate::config::{Config, NfsVersions, is_v6_only};
use crate::counters::{Counter, Counters};
use crate::export::{ExportError, ExportTable, Exports, HandleKey, HandleKeyError};
use crate::network_threads::NetworkThreads;
use crate::portmap::registration::{self, RPCBIND};
use crate::procedures::{Mapped, Programs};
use crate::recovery::{self, Recovery};
use crate::report::{Monitor, MonitorFacts, figures};
use crate::service::{self, Service};
use crate::state_dir::{StateDir, StateDirError};
use crate::{listener, portmap};

/// How long connections may take to finish what they are at when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(15);
/// The period of the inode cache's tick.
const TICK_PERIOD: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted, at most; net.core.somaxconn (4096) bounds it too. The
/// kernel drops the SYN of any other, and its client waits 1 s, then 3 s, before it sends the next:
/// a few milliseconds of a peer that connects without end fill a short queue.
const BACKLOG: i32 = 4096;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The state directory.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The key that file handles are sealed with.
    #[error(transparent)]
    HandleKey(#[from] HandleKeyError),
    /// The records of clients of version 4 in the state directory.
    #[error("cannot use the records of clients: {0}")]
    Recovery(std::io::Error),
    /// The kernel's random source, which makes the ids of sessions unguessable.
    #[error("cannot read random bytes: {0}")]
    Random(std::io::Error),
    /// A directory to be served.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A listening address.
    #[error("cannot listen on {address}: {error}{}", other_address(error))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// A listening socket that this process inherited.
    #[error("cannot use a listening socket of the service manager: {0}")]
    Inherited(std::io::Error),
    /// The first threads: for sockets, and for calls that wait for a disk.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
    /// Root with the capabilities for it cannot act as other users.
    #[error("cannot act as the users of clients: {0}")]
    Users(#[from] io::ProbeFailure),
    /// Neither is port 111 free nor does an rpcbind there take registrations.
    #[error("can neither serve as portmapper nor register with rpcbind: {0}")]
    Portmap(std::io::Error),
}

/// The advice for an address in use, as the end of the same sentence.
fn other_address(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "; choose another with listen or --listen",
        _ => "",
    }
}

/// Why a new configuration was refused. The old one goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The state directory in use would be exported.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A directory to be served.
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// Some of what was written could not be put on the disk when the server stopped.
#[derive(Debug, thiserror::Error)]
#[error("not all data could be written to disk")]
pub struct ShutdownError;

/// A running server. Stop it with [`Server::shutdown`].
pub struct Server {
    service: Arc<Service>,
    local_addrs: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    threads: Arc<NetworkThreads>,
    tasks: Vec<JoinHandle<()>>,
    /// The task that keeps the inode cache's time, behind the sender that ends it.
    clock: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// Changes with each tick of the inode cache.
    ticks: watch::Receiver<()>,
    /// The addresses registered with rpcbind.
    registered: Vec<SocketAddr>,
    /// Held until the server has stopped.
    state_dir: StateDir,
    versions: NfsVersions,
}

/// A server that has opened its files and bound its addresses, and serves nothing yet.
pub struct PreparedServer {
    config: Config,
    service: Arc<Service>,
    listeners: Vec<(SocketAddr, TcpListener)>,
    state_dir: StateDir,
}

impl PreparedServer {
    /// Blocks for disks.
    fn new(config: Config, inherited: Vec<TcpListener>) -> Result<Self, StartError> {
        rustix::process::umask(rustix::fs::Mode::empty());
        service::check_users()?;
        let state_dir = StateDir::open(config.state_dir())?;
        check_outside(config.exports(), state_dir.path())?;
        let handle_key = HandleKey::load_or_create(state_dir.path())?;
        let counters = Arc::new(Counters::default());
        if config.metrics().is_some() {
            // Before the first connection: a call that is not timed is missing in them for good.
            counters.timing.keep_on();
        }
        let exports = Exports::open(Arc::clone(config.exports()), None, &counters)?;
        let serves_v4 = config.nfs_versions().serves_v4();
        if serves_v4 {
            state_dir.make_directory(recovery::DIRECTORY)?;
        }
        let recovery = serves_v4.then(|| Recovery::open(state_dir.path())).transpose();
        let recovery = recovery.map_err(StartError::Recovery)?;
        let engine = service::engine(&config).map_err(StartError::Threads)?;
        let service = Service::new(&config, engine, exports, handle_key, recovery, counters);
        let service = Arc::new(service.map_err(StartError::Random)?);
        if serves_v4 {
            service.offer_space_in_courtesy();
        }
        let listeners = if inherited.is_empty() {
            bind(config.listen())?
        } else {
            let listening: Result<_, _> = inherited.into_iter().map(listen).collect();
            listening.map_err(StartError::Inherited)?
        };
        Ok(Self { config, service, listeners, state_dir })
    }

    /// The second part of [`Server::start`], which takes seconds if an rpcbind does not answer. It
    /// must not be dropped meanwhile: the rpcbind would keep what is registered.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn start(self) -> Result<Server, StartError> {
        let Self { config, service, listeners, state_dir } = self;
        let (stop, _) = watch::channel(false);
        let (ticked, ticks) = watch::channel(());
        let threads = NetworkThreads::start(&service.busy_polls).map_err(StartError::Threads)?;
        let mut server = Server {
            service,
            local_addrs: listeners.iter().map(|(address, _)| *address).collect(),
            stop,
            threads: Arc::new(threads),
            tasks: Vec::new(),
            clock: None,
            ticks,
            registered: Vec::new(),
            state_dir,
            versions: config.nfs_versions(),
        };
        if config.portmap() {
            server.start_portmap().await?;
        }
        for (_, listener) in listeners {
            server.accept(Programs::Files(config.nfs_versions()), listener);
        }
        let (end, ended) = oneshot::channel();
        let time = keep_time(Arc::clone(&server.service), ticked, ended);
        server.clock = Some((end, server.threads.next().spawn(time)));
        if server.service.gives_delegations() {
            let recalls = Arc::clone(&server.service).recall_delegations();
            server.tasks.push(server.threads.next().spawn(recalls));
        }
        Ok(server)
    }
}

impl Server {
    /// Opens the exports, binds the addresses and serves. The process's umask becomes 0, for the
    /// modes that clients send are meant as they are.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::prepare(config, Vec::new()).await?.start().await
    }

    /// The first part of [`Server::start`], on listening sockets that this process inherited, if
    /// there are any: then no address is bound. Waits for the state directory and the exports,
    /// which may be on disks that do not answer. If it is dropped meanwhile, nothing is served.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn prepare(
        config: Config,
        inherited: Vec<TcpListener>,
    ) -> Result<PreparedServer, StartError> {
        let preparing = spawn_blocking(move || PreparedServer::new(config, inherited));
        preparing.await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
    }

    /// Answers on port 111 of each host that it listens on, or registers with the rpcbind that has
    /// the port. What fails is a warning, unless clients find the server nowhere.
    async fn start_portmap(&mut self) -> Result<(), StartError> {
        let hosts = portmap::hosts(&self.local_addrs);
        let is_v6_only = hosts.iter().any(|host| host.ip().to_canonical().is_ipv4());
        let (mut taken, mut failures) = (Vec::new(), Vec::new());
        let (mut is_found, mut has_rpcbinds_address) = (false, false);
        for nfs in hosts {
            match open_portmapper(nfs, is_v6_only) {
                Ok((listener, socket)) => {
                    let mapped = Mapped { nfs, called: Ipv6Addr::UNSPECIFIED.into() };
                    let answering = portmap::serve_datagrams(socket, mapped);
                    self.tasks.push(self.threads.next().spawn(answering));
                    self.accept(Programs::Portmapper(mapped), listener);
                    is_found = true;
                    has_rpcbinds_address |= takes_ipv4_loopback(nfs.ip(), is_v6_only);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                    taken.push((nfs, error));
                }
                Err(error) => failures.push(error),
            }
        }
        let (taken, errors): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        // No rpcbind answers where this server does.
        if taken.is_empty() || has_rpcbinds_address {
            failures.extend(errors);
        } else {
            match registration::register(RPCBIND, &taken).await {
                Ok(()) => {
                    let left_out = registration::left_out(&taken);
                    failures.extend(left_out.into_iter().map(|address| {
                        std::io::Error::other(format!(
                            "rpcbind has one port of each family, and not that of {address}"
                        ))
                    }));
                    (self.registered, is_found) = (taken, true);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                    failures.insert(0, error);
                }
                // Another program than an rpcbind may have the port.
                Err(error) => failures.extend(errors.into_iter().chain([error])),
            }
        }
        for error in failures {
            if !is_found {
                return Err(StartError::Portmap(error));
            }
            tracing::warn!(%error, "clients do not find the server on some of its addresses");
        }
        Ok(())
    }

    fn accept(&mut self, programs: Programs, socket: TcpListener) {
        self.tasks.push(self.threads.accepting().spawn(listener::accept(
            Arc::clone(&self.service),
            programs,
            socket,
            Arc::clone(&self.threads),
            self.stop.subscribe(),
        )));
    }

    /// Calls `alive` in each `period` in which the inode cache has ticked and every thread that has
    /// sockets has run a task. A server in which one of them hangs is silent. Disks are left out: a
    /// restart does not end the wait for one, and other exports are served meanwhile.
    pub fn watch(&mut self, period: Duration, alive: impl Fn() + Send + 'static) {
        let watching = watch(period, self.ticks.clone(), Arc::clone(&self.threads), alive);
        self.tasks.push(self.threads.accepting().spawn(watching));
    }

    /// The addresses it listens on, with the real port where 0 was asked for.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// The counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.service.counters
    }

    /// The counters since the start and the current use of memory, by name with the unit last.
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        let counters =
            Counter::ALL.iter().map(|counter| (counter.name(), self.counters().value(*counter)));
        let figures = figures(&self.service).into_iter();
        counters.chain(figures.map(|(figure, value)| (figure.name(), value))).collect()
    }

    /// Reports about the server while it runs, from any thread.
    pub fn monitor(&self) -> Monitor {
        Monitor::new(Arc::clone(&self.service), {
            let state_dir = self.state_dir.path().to_owned();
            MonitorFacts { listen: self.local_addrs.clone(), state_dir, versions: self.versions }
        })
    }

    /// Serves the exports of `config` from the next request on, with its switches and trace events,
    /// and returns a summary of the changes. A path that names another directory now (removed and
    /// made again, a file system mounted or unmounted over it) is served anew; what is open in the
    /// one before is flushed and closed about a second after the last call in it.
    ///
    /// Waits for the directories, which may be on disks that do not answer. If it is dropped
    /// meanwhile, everything stays as it was. No other change may be made at the same time.
    ///
    /// # Errors
    /// A directory cannot be opened, or the state directory in use lies in one of them; everything
    /// stays as it was.
    pub async fn reload(&self, config: &Config) -> Result<String, ReloadError> {
        let old = self.service.exports.load_full();
        let (table, earlier) = (Arc::clone(config.exports()), Arc::clone(&old));
        let state_dir = self.state_dir.path().to_owned();
        let counters = Arc::clone(&self.service.counters);
        let opening = spawn_blocking(move || {
            check_outside(&table, &state_dir)?;
            Ok::<_, ReloadError>(Exports::open(table, Some(&earlier), &counters)?)
        });
        let opened = opening.await.unwrap_or_else(|error| resume_unwind(error.into_panic()));
        let new = Arc::new(opened?);
        self.serve_exports(Arc::clone(&new));
        let mut changes = new.replaced(&old);
        if changes.is_empty() || new.table != old.table {
            changes.insert(0, new.table.changes_since(&old.table));
        }
        changes.extend(self.service.switch(config));
        Ok(changes.join(", "))
    }

    /// Serves with the modes and switches of `config` from the next request on, whose exports are
    /// those in force but for them. Unlike [`Self::reload`] it opens nothing, so it waits for no
    /// disk. Returns a summary of the changes.
    pub fn switch(&self, config: &Config) -> String {
        let old = self.service.exports.load_full();
        let new = old.with_table(Arc::clone(config.exports()));
        let mut changes = Vec::new();
        if new.table != old.table {
            changes.push(new.table.changes_since(&old.table));
        }
        self.serve_exports(Arc::new(new));
        changes.extend(self.service.switch(config));
        changes.join(", ")
    }

    /// Serves `exports` from now on, for connected peers too.
    fn serve_exports(&self, exports: Arc<Exports>) {
        let service = &self.service;
        let table = Arc::clone(&exports.table);
        service.buffers.set_several_devices(exports.are_on_several_devices());
        service.exports.store(exports);
        let limits = |id| table.by_id(id).map(|export| export.limits);
        service.rate_limits.retain(|id| limits(id).is_some_and(|limits| limits.are_set()));
        service.connections.find_strangers(|address| !service.knows_address(address));
    }

    /// Accepts nothing new, finishes what was accepted, and puts everything on the disk.
    ///
    /// # Errors
    /// Some of it could not be put there. Clients will find another write verifier and send it
    /// again.
    pub async fn shutdown(mut self) -> Result<(), ShutdownError> {
        let failures = self.service.vfs.failed_flushes();
        self.stop.send_replace(true);
        self.drained(RPCBIND).await;
        for task in &self.tasks {
            task.abort();
        }
        // Not aborted: the kernel reports the error of a flush under way to that flush alone.
        let clock = async {
            let (end, clock) = self.clock.take()?;
            drop(end);
            clock.await.err()
        };
        let (failed, ()) = tokio::join!(clock, self.service.vfs.flush_all());
        if let Some(error) = failed {
            tracing::error!(%error, "the clock of the inode cache has failed");
        }
        self.service.vfs.shutdown().await;
        if self.service.vfs.failed_flushes() == failures { Ok(()) } else { Err(ShutdownError) }
    }

    /// Unregisters from rpcbind and waits until all connections have ended, both within
    /// [`DRAIN_MAX`] in all: what is written is flushed only then, also if rpcbind does not answer.
    async fn drained(&self, rpcbind: SocketAddr) {
        let unregistered = async {
            if !self.registered.is_empty()
                && let Err(error) = registration::unregister(rpcbind, &self.registered).await
            {
                tracing::warn!(%error, "cannot unregister from rpcbind");
            }
        };
        let both = async { tokio::join!(self.service.connections.all_ended(), unregistered) };
        let is_over = tokio::time::timeout(DRAIN_MAX, both).await.is_err();
        if is_over && self.service.connections.open() > 0 {
            tracing::warn!("connections were still active when the server stopped");
        }
    }
}

/// Checks that the state directory in use lies in no export. The configuration is checked for its
/// own, which after a reload can be another.
fn check_outside(exports: &ExportTable, state_dir: &Path) -> Result<(), StateDirError> {
    let path = state_dir.to_owned();
    let real = match fs::canonicalize(state_dir) {
        Ok(real) => real,
        Err(error) => return Err(StateDirError::Io { path, error }),
    };
    match exports.containing(&real) {
        Some(export) => Err(StateDirError::Exported { path, export: export.name.clone() }),
        None => Ok(()),
    }
}

/// Binds and listens on each address.
fn bind(addresses: &[SocketAddr]) -> Result<Vec<(SocketAddr, TcpListener)>, StartError> {
    let bind = |&address: &SocketAddr| {
        let socket = open(address, SocketType::STREAM, is_v6_only(&address, addresses));
        let socket = socket.and_then(|socket| listen(socket.into()));
        socket.map_err(|error| StartError::Listen { address, error })
    };
    addresses.iter().map(bind).collect()
}

/// The sockets of a portmapper beside `nfs`.
fn open_portmapper(nfs: SocketAddr, is_v6_only: bool) -> std::io::Result<(TcpListener, UdpSocket)> {
    let address = portmap::beside(nfs);
    let open = |kind| open(address, kind, is_v6_only);
    let sockets = || {
        let (_, listener) = listen(open(SocketType::STREAM)?.into())?;
        let socket = UdpSocket::from(open(SocketType::DGRAM)?);
        socket.set_nonblocking(true)?;
        Ok((listener, socket))
    };
    let named = |error: std::io::Error| {
        std::io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    };
    sockets().map_err(named)
}

/// Whether a socket bound to `ip` takes what is sent to 127.0.0.1, where an rpcbind answers.
fn takes_ipv4_loopback(ip: IpAddr, is_v6_only: bool) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip == Ipv4Addr::LOCALHOST || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_unspecified() && !is_v6_only,
    }
}

/// A bound socket. With `is_v6_only` `::` does not include IPv4.
fn open(address: SocketAddr, kind: SocketType, is_v6_only: bool) -> std::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if kind == SocketType::STREAM {
        // Connections of a server before may still be in TIME_WAIT.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if is_v6_only && address.ip() == Ipv6Addr::UNSPECIFIED {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    Ok(socket)
}

/// Listens on a bound socket; returns it with its address.
fn listen(socket: TcpListener) -> std::io::Result<(SocketAddr, TcpListener)> {
    net::listen(&socket, BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok((socket.local_addr()?, socket))
}

/// Calls `alive` as [`Server::watch`] describes, until it is aborted.
async fn watch(
    period: Duration,
    mut ticks: watch::Receiver<()>,
    threads: Arc<NetworkThreads>,
    alive: impl Fn(),
) {
    let mut periods = tokio::time::interval(period);
    periods.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        periods.tick().await;
        // An error is the end of the task that keeps the time.
        if ticks.changed().await.is_err() {
            return tracing::error!("the clock of the inode cache has stopped");
        }
        threads.round_trip().await;
        alive();
    }
}

/// Keeps the inode cache's time until `ended`. It waits for nothing but the next tick; what waits
/// for a disk runs in tasks beside it, at most two per device, which have ended when it returns.
async fn keep_time(
    service: Arc<Service>,
    ticked: watch::Sender<()>,
    mut ended: oneshot::Receiver<()>,
) {
    let mut ticks = tokio::time::interval(TICK_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut ended => break,
            _ = ticks.tick() => {}
        }
        ticked.send_replace(());
        service.counters.timing.tick();
        for idle in service.vfs.tick() {
            let service = Arc::clone(&service);
            tasks.spawn(async move { service.close_idle(idle).await });
        }
        for unused in service.vfs.unused() {
            let service = Arc::clone(&service);
            tasks.spawn(async move { service.vfs.close_unlinked(unused).await });
        }
        if service.serves_v4() {
            service.expire();
        }
        while let Some(result) = tasks.try_join_next() {
            log_failure(result);
        }
    }
    while let Some(result) = tasks.join_next().await {
        log_failure(result);
    }
}

fn log_failure(result: Result<(), JoinError>) {
    if let Err(error) = result {
        tracing::error!(%error, "a task of the clock has failed");
    }
}

#[cfg(test)]
impl Server {
    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::config::{ListenAddress, Overrides};
    use crate::export::{Flavor, Object, Peer, Purpose};
    use crate::fs::Caller;
    use crate::moment::Moment;
    use crate::own_process::ran_in_own_process;
    use crate::rate_limits::{ExportLimits, Use};
    use crate::skip::{skip, skip_in_ci_too};
    use crate::test_server::{config, directory, root};
    use io::{IoMode, IoPolicy};
    use proto::nfs3::{self, FileHandle};
    use proto::oncrpc::{CallHeader, Credential};
    use proto::portmap as mapper;
    use proto::xdr::{Encode, Writer};
    use rpc::record::in_fragments;
    use rustix::thread::{CapabilitiesSecureBits, set_capabilities_secure_bits};

    fn resolve(server: &Server, handle: &FileHandle) -> (Caller, Object) {
        let peer = Peer { address: "127.0.0.1:700".parse().unwrap(), purpose: Purpose::Data };
        server.service.resolve(7, handle.as_bytes(), &peer, Flavor::Sys, None).unwrap()
    }

    #[test]
    fn the_wildcards_of_both_families_share_a_port() {
        if TcpListener::bind("[::1]:0").is_err() {
            return skip_in_ci_too("no IPv6");
        }
        let any = || TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap().port();
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = std::iter::repeat_with(any).find(is_free).unwrap();
        let addresses = |hosts: &[&str]| -> Vec<SocketAddr> {
            hosts.iter().map(|host| format!("{host}:{port}").parse().unwrap()).collect()
        };
        for hosts in [&["0.0.0.0", "[::]"], &["[::]", "0.0.0.0"], &["[::]", "127.0.0.1"]] {
            let bound = bind(&addresses(hosts)).unwrap();
            for (address, listener) in &bound {
                let loopback = if address.is_ipv4() { "127.0.0.1" } else { "[::1]" };
                TcpStream::connect(&*addresses(&[loopback])).unwrap();
                listener.set_nonblocking(false).unwrap();
                let (_, peer) = listener.accept().unwrap();
                assert_eq!(peer.is_ipv4(), address.is_ipv4(), "{hosts:?}");
            }
        }
        let bound = bind(&addresses(&["[::]"])).unwrap();
        TcpStream::connect(&*addresses(&["127.0.0.1"])).unwrap();
        bound[0].1.set_nonblocking(false).unwrap();
        assert!(bound[0].1.accept().is_ok(), "IPv4 is included");
    }

    #[test]
    fn addresses_are_accepted_if_the_kernel_takes_them() {
        if TcpListener::bind("[::1]:0").is_err() {
            return skip_in_ci_too("no IPv6");
        }
        let dir = directory();
        let text = format!("[[export]]\npath = {:?}", dir.path().join("export"));
        let accepts = |listen: &[SocketAddr], metrics: Option<SocketAddr>| {
            let state_dir = Some(dir.path().join("state"));
            let (listen, metrics) = (listen.to_vec(), metrics.map(ListenAddress));
            let overrides = Overrides { listen, metrics, state_dir, ..Overrides::default() };
            Config::parse(&text, Path::new("test.toml"), &overrides).is_ok()
        };
        // No port that the kernel gives to another test.
        let ports = (0..).map(|offset| 20_000 + (std::process::id() + offset) % 12_000);
        let is_free = |port: &u32| TcpListener::bind(format!("[::]:{port}")).is_ok();
        let port = ports.take(1000).find(is_free).unwrap();
        let hosts = ["127.0.0.1", "127.0.0.2", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]"];
        let addresses = hosts.map(|host| format!("{host}:{port}").parse::<SocketAddr>().unwrap());
        for (one, other) in addresses.iter().flat_map(|one| addresses.map(|other| (*one, other))) {
            let both = [one, other];
            assert_eq!(accepts(&both, None), bind(&both).is_ok(), "{both:?}");
            let metrics = TcpListener::bind(other).unwrap();
            assert_eq!(accepts(&[one], Some(other)), bind(&[one]).is_ok(), "{both:?}");
            drop(metrics);
        }
    }

    #[test]
    fn root_that_cannot_act_as_its_clients_does_not_start() {
        let test = "server::tests::root_that_cannot_act_as_its_clients_does_not_start";
        if ran_in_own_process(test) {
            return;
        }
        let bits = CapabilitiesSecureBits::NO_SETUID_FIXUP;
        // Only root may.
        if let Err(error) = set_capabilities_secure_bits(bits) {
            return skip(format!("securebits: {error}"));
        }
        let dir = directory();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let started = runtime.block_on(Server::start(config(dir.path(), "", "")));
        assert!(matches!(started.err(), Some(StartError::Users(_))));
    }

    #[tokio::test]
    async fn version_3_alone_keeps_no_records_of_clients() {
        for (versions, keeps_records) in [("\"3\"", false), ("\"3\", \"4.2\"", true)] {
            let dir = directory();
            let settings = format!("nfs_versions = [{versions}]");
            let server = Server::start(config(dir.path(), &settings, "")).await.unwrap();
            assert_eq!(server.service.serves_v4(), keeps_records);
            assert_eq!(dir.path().join("state/nfs4").exists(), keeps_records);
            server.shutdown().await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_rpcbind_that_does_not_answer_adds_no_time_to_that_of_the_last_calls() {
        let dir = directory();
        let mut server = Server::start(config(dir.path(), "", "")).await.unwrap();
        let rpcbind = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        server.registered = server.local_addrs.clone();
        // A connection whose calls do not end.
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 700));
        let permit = server.service.connections.enter(peer, || false).await.unwrap();
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        server.drained(rpcbind.local_addr().unwrap()).await;
        assert_eq!(began.elapsed().as_secs(), DRAIN_MAX.as_secs());
        tokio::time::resume();
        drop(permit);
        server.registered.clear();
        server.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_server_is_watched_while_all_its_threads_run() {
        let dir = directory();
        let mut server = Server::start(config(dir.path(), "", "")).await.unwrap();
        let (alive, mut signs) = tokio::sync::mpsc::unbounded_channel();
        // The clock ticks once in a second, and so a sign comes as often.
        server.watch(Duration::from_millis(10), move || alive.send(()).unwrap());
        for _ in 0..2 {
            signs.recv().await.expect("the server lives");
        }
        let (release, blocked) = std::sync::mpsc::channel();
        // A thread that hangs in a task, as in a lock that is never released.
        server.threads.next().spawn(async move { blocked.recv() });
        // Signs of round trips that began before it may still come.
        tokio::time::sleep(2 * TICK_PERIOD).await;
        while signs.try_recv().is_ok() {}
        let sign = tokio::time::timeout(3 * TICK_PERIOD, signs.recv()).await;
        assert!(sign.is_err(), "a thread hangs, and the server counts as alive");
        release.send(()).unwrap();
        signs.recv().await.expect("the server lives again");
        server.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn the_portmapper_answers_a_client_that_has_used_up_a_limit() {
        let dir = directory();
        let limits = "bytes_per_sec = \"64KiB\"";
        let mut server = Server::start(config(dir.path(), "", limits)).await.unwrap();
        let exports = server.service.exports.load_full();
        let export = exports.table.iter().next().unwrap();
        let client = Ipv4Addr::LOCALHOST.to_ipv6_mapped().to_bits();
        let limited = ExportLimits::of(export).unwrap();
        let taken = Use { calls: 1, bytes: 1 << 20 };
        server.service.rate_limits.charge(limited, client, taken, Moment::now());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let mapped = Mapped { nfs: (Ipv4Addr::LOCALHOST, 2049).into(), called: address.ip() };
        server.accept(Programs::Portmapper(mapped), listener);
        let program = (mapper::PROGRAM, mapper::VERSION_PORTMAP);
        let procedure = mapper::PortmapProcedure::Getport.code();
        let arguments = [nfs3::PROGRAM, nfs3::VERSION, mapper::PROTOCOL_TCP, 0];
        // The mark of the record, the head of the reply, and the port.
        let reply: [u8; 32] = call(address, program, procedure, &arguments);
        assert_eq!(reply[28..], 2049_u32.to_be_bytes());
        server.shutdown().await.unwrap();
    }

    /// Performs one call on a connection of its own.
    fn call<const N: usize>(
        address: SocketAddr,
        (program, version): (u32, u32),
        procedure: u32,
        arguments: &[u32],
    ) -> [u8; N] {
        let credential = Credential::None;
        let call =
            CallHeader { xid: 1, program, version, procedure, credential, verifier_flavor: 0 };
        let mut w = Writer::new();
        call.encode(&mut w);
        arguments.iter().for_each(|word| w.u32(*word));
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        connection.write_all(&in_fragments(w.as_slice(), &[])).unwrap();
        let mut reply = [0; N];
        connection.read_exact(&mut reply).unwrap();
        reply
    }

    #[tokio::test]
    async fn the_first_call_is_timed_if_there_are_metrics() {
        for (settings, timed) in [("metrics = \"127.0.0.1:0\"", 1), ("", 0)] {
            let dir = directory();
            let server = Server::start(config(dir.path(), settings, "")).await.unwrap();
            let (address, program) = (server.local_addrs()[0], (nfs3::PROGRAM, nfs3::VERSION));
            let _: [u8; 28] = call(address, program, nfs3::Procedure::Null.code(), &[]);
            let sent = || {
                let phases = server.monitor().sample().phases;
                phases.iter().find(|phase| phase.name == "send").map_or(0, |phase| phase.timed)
            };
            // A client may have its reply before the server counts it as sent.
            let deadline = Instant::now() + Duration::from_secs(20);
            while sent() < timed && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(sent(), timed, "{settings}");
            server.shutdown().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_reload_that_would_export_the_state_directory_in_use_is_refused() {
        let dir = directory();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let server = Server::start(config(&link, "", "")).await.unwrap();
        let text = format!(
            "state_dir = \"/nonexistent/spillway\"\n[[export]]\npath = {:?}\nname = \"/all\"",
            dir.path()
        );
        let new = Config::parse(&text, Path::new("test.toml"), &Overrides::default()).unwrap();
        let error = server.reload(&new).await.unwrap_err().to_string();
        assert!(error.contains("link/state of this server lies inside the export /all"), "{error}");
        assert!(server.service.exports.load().table.by_name(b"/all").is_none());
        server.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_state_directory_that_its_making_puts_into_an_export_is_refused() {
        let dir = directory();
        let state_dir = dir.path().join("missing/../export/state");
        let export = dir.path().join("export");
        let text = format!(
            "listen = \"127.0.0.1:0\"\nstate_dir = {state_dir:?}\n[[export]]\npath = {export:?}"
        );
        let new = Config::parse(&text, Path::new("test.toml"), &Overrides::default()).unwrap();
        let Err(error) = Server::start(new).await else { panic!("the key is exported") };
        assert!(matches!(error, StartError::StateDir(StateDirError::Exported { .. })), "{error}");
        assert!(!export.join("state/handle-key").exists());
    }

    #[tokio::test]
    async fn a_reload_with_the_new_path_of_a_renamed_directory_keeps_its_root() {
        let dir = directory();
        let [old, new] = ["export", "renamed"].map(|name| dir.path().join(name));
        let at = |path: &Path| {
            let state_dir = dir.path().join("state");
            let text = format!(
                "listen = \"127.0.0.1:0\"\nstate_dir = {state_dir:?}\n[[export]]\n\
                 name = \"/data\"\npath = {path:?}"
            );
            Config::parse(&text, Path::new("test.toml"), &Overrides::default()).unwrap()
        };
        let server = Server::start(at(&old)).await.unwrap();
        let before = root(&server);

        fs::rename(&old, &new).unwrap();
        assert_eq!(server.reload(&at(&new)).await.unwrap(), "changed /data");
        assert!(Arc::ptr_eq(&root(&server), &before), "opens and locks in it are revoked");
        assert!(!before.is_retired());

        fs::create_dir(&old).unwrap();
        assert_eq!(server.reload(&at(&old)).await.unwrap(), "changed /data");
        assert!(!Arc::ptr_eq(&root(&server), &before), "it is another directory");
        assert!(before.is_retired());
        server.shutdown().await.unwrap();
    }

    /// A WRITE could land over the data of a client that gets its lock.
    #[tokio::test]
    async fn what_is_locked_in_a_removed_export_stays_so_while_a_call_is_at_work_in_it() {
        let dir = directory();
        let server = Server::start(config(dir.path(), "", "")).await.unwrap();
        let root = root(&server);
        let (_, object) = resolve(&server, &server.service.seal(&root, root.handle));
        let other = dir.path().join("other");
        fs::create_dir_all(other.join("export")).unwrap();
        server.reload(&config(&other, "", "")).await.unwrap();
        assert!(!root.is_retired(), "a call is at work in it");
        let next = object.found(root.handle);
        drop(object);
        assert!(!root.is_retired(), "the call is at its next object");
        // As a call has it that hangs in another export.
        let above = Arc::clone(&server.service.exports.load().pseudo_root);
        drop(next);
        assert!(root.is_retired());
        drop(above);
        server.shutdown().await.unwrap();
    }

    /// It is the same directory to the stateids of clients.
    #[tokio::test]
    async fn what_is_locked_in_an_export_that_is_served_again_outlasts_the_calls_of_before() {
        // The export is removed, and its path leads to another directory.
        for name in ["", "name = \"/data\""] {
            let dir = directory();
            let server = Server::start(config(dir.path(), "", name)).await.unwrap();
            let before = root(&server);
            let (_, object) = resolve(&server, &server.service.seal(&before, before.handle));
            let others = ["first", "last"].map(|other| dir.path().join(other));
            for other in &others {
                fs::create_dir_all(other.join("export")).unwrap();
                server.reload(&config(other, "", name)).await.unwrap();
                server.switch(&config(other, "", &format!("sync = false\n{name}")));
            }
            let again = config(dir.path(), "", name);
            server.reload(&again).await.unwrap();
            assert!(Arc::ptr_eq(&root(&server), &before));
            drop(object);
            assert!(!before.is_retired(), "it is served");
            server.reload(&again).await.unwrap();
            assert!(Arc::ptr_eq(&root(&server), &before) && !before.is_retired());
            server.shutdown().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_reload_is_in_force_from_the_next_request_on() {
        let dir = directory();
        let server = Server::start(config(dir.path(), "", "")).await.unwrap();
        let root = root(&server);
        let handle = server.service.seal(&root, root.handle);

        let (_, object) = resolve(&server, &handle);
        assert_eq!(object.policy, IoPolicy::default());
        assert!(!server.service.tracer.is_used());
        let switches = server.service.vfs.switches();
        assert!(switches.read_ahead() && switches.splice());

        let settings = "read_ahead = false\nsplice = false\ntrace = [\"write_split\"]";
        let modes = "io_cache_read = \"direct\"\nio_cache_write = \"dontcache\"";
        let changes = server.reload(&config(dir.path(), settings, modes)).await.unwrap();
        let changed = format!("changed {}", root.name());
        let expected = "read_ahead = false, splice = false, tracing write_split";
        assert_eq!(changes, format!("{changed}, {expected}"));
        let (_, object) = resolve(&server, &handle);
        assert_eq!((object.policy.read, object.policy.write), (IoMode::Direct, IoMode::DontCache));
        assert_eq!(server.service.tracer.events().to_string(), "write_split");
        assert!(!switches.read_ahead() && !switches.splice());

        let changes = server.reload(&config(dir.path(), settings, modes)).await.unwrap();
        assert_eq!(changes, "no export changed");
        server.shutdown().await.unwrap();
    }
}
