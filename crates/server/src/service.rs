//! The state that all connections share: the exports, the file operations below them, and the
//! caches.

mod gate;
mod nfs4;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use io::{
    Buffer, BufferPool, BufferTooLarge, Engine, EngineConfig, Identity, ProbeFailure, Share,
    WriteBehindConfig,
};
use tokio::runtime::Handle;

use crate::busy_poll::BusyPolls;
use crate::callbacks::Callbacks;
use crate::config::Config;
use crate::connections::Connections;
use crate::counters::Counters;
use crate::descriptor_plan::DescriptorPlan;
use crate::export::{Exports, HandleKey, Object};
use crate::held_files::HeldFiles;
use crate::local_conflicts::{self, LocalConflicts};
use crate::memory_plan::{Budget, MemoryPlan};
use crate::mount_list::MountList;
use crate::rate_limits::RateLimits;
use crate::recovery::{Recovered, Recovery};
use crate::reply_cache::ReplyCache;
use crate::settlement::Settlement;
use crate::state::{State, Step};
use crate::stay_permits::StayPermits;
use crate::trace::Tracer;
use crate::vfs::{Switches, Vfs};
use crate::write_order::WriteOrder;

/// Jobs that may wait for a thread of a lane before callers wait for a place in the queue.
const QUEUE_MAX: usize = 1024;
/// Descriptors that the kernel's table has room for from the start: 1 MiB. As many as the
/// connections that may be asked for, and as many again.
const TABLE_DESCRIPTORS: usize = 2 * 65_536;

/// The state of one server.
pub(crate) struct Service {
    /// The file operations.
    pub(crate) vfs: Vfs,
    /// The threads on which calls are executed.
    pub(crate) engine: Arc<Engine>,
    /// Memory of requests and replies.
    pub(crate) buffers: Arc<BufferPool>,
    /// The bounds of all memory.
    pub(crate) memory: MemoryPlan,
    /// Reports the trace events that are on.
    pub(crate) tracer: Arc<Tracer>,
    /// The current exports; a reload replaces them by another generation.
    pub(crate) exports: ArcSwap<Exports>,
    /// The connections that are open.
    pub(crate) connections: Arc<Connections>,
    /// The key of the MAC of file handles.
    pub(crate) handle_key: HandleKey,
    /// Replies to calls that must not run twice.
    pub(crate) reply_cache: ReplyCache,
    /// The mounts that clients have reported.
    pub(crate) mounts: MountList,
    /// The counters since the start.
    pub(crate) counters: Arc<Counters>,
    /// The threads that poll for calls.
    pub(crate) busy_polls: Arc<BusyPolls>,
    /// The permits of threads to stay with a connection.
    pub(crate) stays: StayPermits,
    /// The use of the limits of exports.
    pub(crate) rate_limits: RateLimits,
    /// Which files are being written to, and where.
    pub(crate) write_order: Arc<WriteOrder>,
    /// How long a connection may go without a call.
    pub(crate) idle_timeout: Duration,
    /// Clients, sessions, opens and locks of version 4.
    pub(crate) state: Arc<State>,
    /// The files that are open in it.
    pub(crate) held_files: Arc<HeldFiles>,
    /// The connections that callbacks can be sent over.
    pub(crate) callbacks: Arc<Callbacks>,
    /// The work that remains after changes of `state`.
    pub(crate) settlement: Arc<Settlement>,
    /// Detects local programs that conflict with delegations; `None` if none are given.
    local_conflicts: Option<Arc<LocalConflicts>>,
    /// Whether clients could reclaim state of version 4 a second ago.
    was_in_grace: AtomicBool,
    /// The clock of `state`.
    started: Instant,
    /// Distinguishes this server from those before it, in samples.
    pub(crate) start_ns: u64,
    /// Whether threads can act as the users that clients name.
    assumes_users: bool,
    /// The runtime whose timers calls use on threads that have none.
    pub(crate) timers: Handle,
}

/// The engine of a server.
///
/// # Errors
/// The system refuses its first threads.
pub(crate) fn engine(config: &Config) -> std::io::Result<Engine> {
    Engine::new(EngineConfig {
        data_threads: config.data_threads(),
        metadata_threads: config.metadata_threads(),
        queue_max: QUEUE_MAX,
    })
}

/// The descriptors that this process may open, as many as its hard limit allows. Makes room for
/// them before anything waits for it.
fn divide_descriptors(config: &Config) -> DescriptorPlan {
    let limit = usize::try_from(io::raise_open_file_limit()).unwrap_or(usize::MAX);
    let window_files_max = WriteBehindConfig::default().files_max;
    let serves_v4 = config.nfs_versions().serves_v4();
    let plan = DescriptorPlan::new(limit, config.connections_max(), window_files_max, serves_v4);
    if plan.sockets < config.connections_max() {
        let sockets = plan.sockets;
        tracing::info!("at most {sockets} connections: this process may open {limit} descriptors");
    }
    if let Err(error) = io::reserve_descriptors(limit.min(TABLE_DESCRIPTORS)) {
        tracing::warn!(%error, "calls will wait while the kernel's descriptor table grows");
    }
    plan
}

/// Logs it if threads may not act as the users that clients name.
///
/// # Errors
/// They may, and cannot.
pub(crate) fn check_users() -> Result<(), ProbeFailure> {
    if !io::probe_users()? {
        let uid = Identity::Server.uid();
        tracing::warn!(
            "this process cannot act as other users (which takes user 0 with CAP_SETUID and \
             CAP_SETGID, and a user namespace that maps others): all clients act as the user it \
             runs as, {uid}, whatever their squash"
        );
    }
    Ok(())
}

/// How long the calls of a client that is dropped may take to end. The program that asks waits for
/// 70 seconds.
const DROP_WAIT_MAX: Duration = Duration::from_secs(60);

/// The outcome of dropping a client, in numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropped {
    pub(crate) connections: usize,
    pub(crate) nfs4_clients: usize,
    pub(crate) calls_in_progress: usize,
}

impl Service {
    /// Serves `exports`; `recovery` has the records of clients, if version 4 is served.
    ///
    /// # Errors
    /// Those of the kernel's random source, and of starting a thread.
    pub(crate) fn new(
        config: &Config,
        engine: Engine,
        exports: Exports,
        handle_key: HandleKey,
        recovery: Option<(Recovery, Recovered)>,
        counters: Arc<Counters>,
    ) -> std::io::Result<Self> {
        if let Err(error) = io::survive_file_size_limit() {
            tracing::warn!(%error, "cannot ignore SIGXFSZ: a WRITE beyond the file size limit will kill the server");
        }
        let descriptors = divide_descriptors(config);
        let (memory_bytes, window_bytes) = config.memory_of(io::Memory::new().total_bytes());
        let transfer_bytes_max = config.max_transfer_bytes();
        let budget = Budget { memory_bytes, window_bytes, transfer_bytes_max };
        let local_recall = recovery.as_ref().and_then(|_| nfs4::probe_leases(config));
        let limits = nfs4::state_limits(config, &descriptors, local_recall);
        let memory = MemoryPlan::new(budget, &descriptors, recovery.is_some().then_some(&limits));
        tracing::debug!(?memory, outside_bytes = memory.outside_bytes(), ?descriptors, "bounds");
        let processors = available_parallelism().map_or(1, usize::from);
        let engine = Arc::new(engine);
        let (calls_max, tracer) = (memory.connection_calls_max, Arc::new(Tracer::default()));
        let (recovery, recovered) = recovery.unzip();
        let state = Arc::new(nfs4::new_state(recovered.unwrap_or_default(), limits)?);
        let held_files = Arc::new(HeldFiles::new(limits.lock_owners_max));
        let (timers, buffers) = (Handle::current(), BufferPool::new(memory.pool_bytes));
        buffers.set_several_devices(exports.are_on_several_devices());
        let settlement = Settlement::new(&state, &held_files, recovery, &engine, timers.clone());
        tracer.set(config.trace());
        let vfs = Vfs::new(
            &memory,
            &descriptors,
            Arc::clone(&engine),
            Arc::clone(&buffers),
            Arc::clone(&counters),
            Arc::clone(&tracer),
            Switches::new(config.read_ahead(), config.splice()),
        );
        let requests = vfs.recall_requests();
        Ok(Self {
            local_conflicts: local_recall.map(|_| local_conflicts::start(requests)).transpose()?,
            vfs,
            engine,
            buffers,
            memory,
            tracer,
            exports: ArcSwap::from_pointee(exports),
            connections: Connections::new(descriptors.sockets, calls_max, Arc::clone(&counters)),
            handle_key,
            reply_cache: ReplyCache::new(),
            mounts: MountList::default(),
            busy_polls: Arc::new(BusyPolls::new(processors, Arc::clone(&counters))),
            counters,
            stays: StayPermits::new(config.data_threads(), config.metadata_threads(), processors),
            rate_limits: RateLimits::default(),
            write_order: Arc::new(WriteOrder::new()),
            idle_timeout: config.idle_timeout(),
            was_in_grace: AtomicBool::new(state.counts().is_in_grace),
            state,
            held_files,
            settlement,
            callbacks: Arc::default(),
            started: Instant::now(),
            start_ns: wall_clock_ns(),
            assumes_users: io::can_assume_users(),
            timers,
        })
    }

    /// A buffer within the share of the client whose call is at work.
    ///
    /// # Errors
    /// There are no buffers as large.
    pub(crate) async fn take_buffer(&self, len: usize) -> Result<Buffer, BufferTooLarge> {
        self.buffers.take(Share::current_holder(), len).await
    }

    /// As [`Self::take_buffer`], if there is one without waiting.
    pub(crate) fn try_take_buffer(&self, len: usize) -> Option<Buffer> {
        self.buffers.try_take_for(Share::current_holder(), len)
    }

    /// The client's share of the threads that wait for an object's device, where the call at work
    /// has those of another: it may have begun elsewhere.
    pub(crate) fn elsewhere(&self, object: &Object) -> Option<Share> {
        Share::elsewhere(object.root().threads(&self.engine))
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Ends the connections of a client address, and all its state of version 4. It may connect
    /// again at once. The state stays while calls are at work, for [`DROP_WAIT_MAX`] at most: a
    /// WRITE under a lock must not go on after another client has taken the lock. Calls over new
    /// connections wait for the end of the state, if there is any.
    pub(crate) async fn drop_client(&self, address: IpAddr) -> Dropped {
        let mut eviction = self.connections.evict_peer(address);
        let evicted = std::mem::take(&mut eviction.evicted);
        // Without state, new connections wait for nothing, and what they set up stays.
        let eviction = Some(eviction).filter(|_| self.state.has_client_of(address));
        let all_ended = async {
            for activity in &evicted {
                activity.calls_ended().await;
            }
        };
        // Calls that are left are counted.
        let _ = tokio::time::timeout(DROP_WAIT_MAX, all_ended).await;
        let calls_in_progress = evicted.iter().map(|activity| activity.calls()).sum();
        let connections = evicted.len();
        let forget = |state: &State, step: &mut Step| {
            let had_state = eviction.is_some();
            let forgotten = if had_state { state.forget_peer(address, step) } else { 0 };
            // The disk with the records must not hold up the new connections.
            drop(eviction);
            forgotten
        };
        let nfs4_clients = self.change_state(forget).await;
        Dropped { connections, nfs4_clients, calls_in_progress }
    }

    /// Puts the settings that are not of an export in force, as far as a running server can change
    /// them, and returns the changed ones.
    pub(crate) fn switch(&self, config: &Config) -> Vec<String> {
        let (switches, tracer) = (self.vfs.switches(), &self.tracer);
        let mut changes = Vec::new();
        if switches.set_read_ahead(config.read_ahead()) {
            changes.push(format!("read_ahead = {}", config.read_ahead()));
        }
        if switches.set_splice(config.splice()) {
            changes.push(format!("splice = {}", config.splice()));
        }
        if tracer.events() != config.trace() {
            tracer.set(config.trace());
            changes.push(format!("tracing {}", config.trace()));
        }
        changes
    }
}

/// Nanoseconds since 1970.
fn wall_clock_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
