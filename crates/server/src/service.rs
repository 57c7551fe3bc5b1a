//! The state that all connections share: the exports, the file operations below them, and the
//! caches.

mod gate;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use io::{Buffer, BufferPool, BufferTooLarge, Engine, EngineConfig, Share, WriteBehindConfig};
use tokio::runtime::Handle;

use crate::busy_poll::BusyPolls;
use crate::callbacks::Callbacks;
use crate::config::Config;
use crate::connections::Connections;
use crate::counters::Counters;
use crate::descriptor_plan::DescriptorPlan;
use crate::export::{Exports, HandleKey, Object};
use crate::fs::Status;
use crate::held_files::HeldFiles;
use crate::inode_cache::Inode;
use crate::leases::{self, LocalConflicts};
use crate::memory_plan::{Budget, MemoryPlan};
use crate::mount_list::MountList;
use crate::random::random_u64;
use crate::rate_limits::RateLimits;
use crate::recovery::{Recovered, Recovery};
use crate::reply_cache::ReplyCache;
use crate::settlement::Settlement;
use crate::state::{
    Callback, ChannelAttributes, Effect, Limits, LockGrant, LockId, Message, Piece, Session, State,
    Step,
};
use crate::stays::Stays;
use crate::trace::Tracer;
use crate::vfs::{Switches, Vfs};
use crate::write_order::WriteOrder;

/// What a COMPOUND has besides the data of a READ or WRITE, in both directions.
const COMPOUND_BYTES_MAX: u32 = 8 * 1024;
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
    /// The threads that may stay with a connection.
    pub(crate) stays: Stays,
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
    /// What remains to be done after changes of `state`.
    pub(crate) settlement: Arc<Settlement>,
    /// What local programs break delegations by, if any are given.
    pub(crate) leases: Option<Arc<LocalConflicts>>,
    /// Whether clients could reclaim state of version 4 a second ago.
    was_in_grace: AtomicBool,
    /// The clock of `state`.
    started: Instant,
    /// Whether threads can act as the users that clients name.
    assumes_users: bool,
    /// The runtime whose timers calls use on threads that have none.
    timers: Handle,
}

/// The descriptors that this process may open, as many as its hard limit allows. Makes room for them
/// before anything waits for it.
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

/// Whether threads can act as the users that clients name; logs it if they cannot.
fn can_assume_users() -> bool {
    let can_assume = io::can_assume_users();
    if !can_assume {
        tracing::warn!(
            "this process cannot act as other users (CAP_SETUID and CAP_SETGID are missing): all \
             clients act as the user it runs as"
        );
    }
    can_assume
}

/// The bounds of the state of version 4.
fn state_limits(
    config: &Config,
    descriptors: &DescriptorPlan,
    local_recall: Option<Duration>,
) -> Limits {
    let set = config.state_limits();
    let limits = Limits::default().with_clients(set.clients_max, set.sessions_max).with_files(
        set.opens_max.min(descriptors.opens),
        set.opens_max.min(descriptors.lock_owners),
        set.locks_max,
    );
    let limits = limits.with_delegations(set.delegations_max.min(descriptors.delegations));
    let bytes_max = config.max_transfer_bytes() + COMPOUND_BYTES_MAX;
    let fore = ChannelAttributes {
        request_bytes_max: bytes_max,
        response_bytes_max: bytes_max,
        ..limits.fore
    };
    let local_recall = local_recall.unwrap_or(limits.local_recall);
    Limits { fore, local_recall, ..limits }
}

/// What a client has lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropped {
    pub(crate) connections: usize,
    pub(crate) nfs4_clients: usize,
}

/// How long clients have to return a delegation that a local program waits for; `None` if there are to
/// be none.
fn probe_leases(config: &Config) -> Option<Duration> {
    if !config.delegations() {
        return None;
    }
    let log = |error: &std::io::Error| {
        tracing::info!(%error, "delegations are off: local programs would not wait for their return");
    };
    leases::probe(config.state_dir()).inspect_err(log).ok()
}

/// Whether a client is to be called back.
fn is_callback(effect: &Effect) -> bool {
    matches!(effect, Effect::NotifyLock { .. } | Effect::Recall { .. })
}

/// The state of version 4 with what an earlier server has left.
fn new_state(recovered: Recovered, limits: Limits) -> std::io::Result<State> {
    let Recovered { epoch, clients } = recovered;
    if !clients.is_empty() {
        let (clients, seconds) = (clients.len(), limits.grace.as_secs());
        tracing::info!(
            "the grace period of version 4 begins: {clients} clients may reclaim state for {seconds} \
             seconds"
        );
    }
    let session_key = (random_u64()?, random_u64()?);
    Ok(State::new(limits, epoch, session_key, clients, Duration::ZERO))
}

impl Service {
    /// Serves `exports`; `recovery` has the records of clients, if version 4 is served.
    ///
    /// # Errors
    /// Those of the kernel's random source, and of starting a thread.
    pub(crate) fn new(
        config: &Config,
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
        let local_recall = recovery.as_ref().and_then(|_| probe_leases(config));
        let limits = state_limits(config, &descriptors, local_recall);
        let memory = MemoryPlan::new(budget, &descriptors, recovery.is_some().then_some(&limits));
        tracing::debug!(?memory, outside_bytes = memory.outside_bytes(), ?descriptors, "bounds");
        let processors = available_parallelism().map_or(1, usize::from);
        let engine = Arc::new(Engine::new(EngineConfig {
            data_threads: config.data_threads(),
            metadata_threads: config.metadata_threads(),
            queue_max: QUEUE_MAX,
        }));
        let buffers = BufferPool::new(memory.pool_bytes);
        let calls_max = memory.connection_calls_max;
        let tracer = Arc::new(Tracer::default());
        let (recovery, recovered) = recovery.unzip();
        let state = Arc::new(new_state(recovered.unwrap_or_default(), limits)?);
        let held_files = Arc::new(HeldFiles::new(limits.lock_owners_max));
        let timers = Handle::current();
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
        Ok(Self {
            leases: local_recall.map(|_| leases::start(vfs.recall_requests())).transpose()?,
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
            stays: Stays::new(config.data_threads(), config.metadata_threads(), processors),
            rate_limits: RateLimits::default(),
            write_order: Arc::new(WriteOrder::new()),
            idle_timeout: config.idle_timeout(),
            was_in_grace: AtomicBool::new(state.counts().is_in_grace),
            state,
            held_files,
            settlement,
            callbacks: Arc::default(),
            started: Instant::now(),
            assumes_users: can_assume_users(),
            timers,
        })
    }

    /// A buffer within the share of the client whose call is at work.
    ///
    /// # Errors
    /// There are no buffers as large.
    pub(crate) async fn take_buffer(&self, len: usize) -> Result<Buffer, BufferTooLarge> {
        self.buffers.take(Share::current_client(), len).await
    }

    /// As [`Self::take_buffer`], if there is one without waiting.
    pub(crate) fn try_take_buffer(&self, len: usize) -> Option<Buffer> {
        self.buffers.try_take_for(Share::current_client(), len)
    }

    /// The client's share of the threads that wait for an object's device, where the call at work has
    /// those of another: it may have begun elsewhere.
    pub(crate) fn elsewhere(&self, object: &Object) -> Option<Share> {
        Share::elsewhere(object.root().threads(&self.engine))
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Ends the connections of a client address, and all its state of version 4. It may connect again
    /// at once.
    pub(crate) async fn drop_client(&self, address: IpAddr) -> Dropped {
        let connections = self.connections.evict_peer(address);
        let nfs4_clients = self.change_state(|state, step| state.forget_peer(address, step)).await;
        Dropped { connections, nfs4_clients }
    }

    /// Whether version 4 is served.
    pub(crate) fn serves_v4(&self) -> bool {
        self.settlement.has_records()
    }

    /// How long state of version 4 lasts without a call of its client.
    pub(crate) fn lease(&self) -> Duration {
        Limits::default().lease
    }

    /// The name of this server in EXCHANGE_ID, which lasts as long as its state directory.
    pub(crate) fn server_id(&self) -> String {
        let pseudo_root = self.exports.load().pseudo_root.node(0).handle();
        let sealed = self.handle_key.seal(&pseudo_root);
        let mac = sealed.as_bytes().iter().rev().take(8);
        mac.fold(String::from("spillway-"), |id, byte| format!("{id}{byte:02x}"))
    }

    /// Changes [`Self::state`], and performs the effects of that before it returns.
    pub(crate) async fn change_state<'a, T>(
        &'a self,
        change: impl FnOnce(&'a State, &mut Step) -> T,
    ) -> T {
        let mut step = Step::new(self.now());
        let changed = change(&self.state, &mut step);
        let effects = step.into_effects();
        // Nearly all READs and WRITEs have none.
        if !effects.is_empty() {
            let (callbacks, effects): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_callback);
            self.settlement.settle(effects).await;
            callbacks.into_iter().for_each(|callback| self.notify(callback));
        }
        changed
    }

    /// As [`Self::change_state`], for what no call waits for: the threads of the devices perform the
    /// effects.
    pub(crate) fn change_state_settle_later(&self, change: impl FnOnce(&State, &mut Step)) {
        let mut step = Step::new(self.now());
        change(&self.state, &mut step);
        let effects = step.into_effects().into_iter();
        let (callbacks, effects): (Vec<_>, Vec<_>) = effects.partition(is_callback);
        self.settlement.settle_later(effects);
        callbacks.into_iter().for_each(|callback| self.notify(callback));
    }

    /// Calls a client back. Waits for nothing.
    fn notify(&self, effect: Effect) {
        let (client, message) = match effect {
            Effect::NotifyLock { client, notice } => (client, Message::NotifyLock(notice)),
            Effect::Recall { client, recall } => (client, Message::Recall(recall)),
            _ => return,
        };
        if let Some((session, first)) = self.state.notify(client, message) {
            self.send(session, first);
        }
    }

    /// Probes the backchannel of a session by a call.
    pub(crate) fn probe(&self, session: &Arc<Session>) {
        if let Some(first) = session.notify(Message::Probe) {
            self.send(Arc::clone(session), first);
        }
    }

    fn send(&self, session: Arc<Session>, first: Callback) {
        let callbacks = Arc::clone(&self.callbacks);
        drop(self.timers.spawn(async move { callbacks.send(&session, first).await }));
    }

    /// Takes a lock that [`Self::state`] has granted for local programs too.
    ///
    /// # Errors
    /// As [`HeldFiles::mirror`]. The grant comes back in any case.
    pub(crate) async fn mirror(
        &self,
        grant: LockGrant,
    ) -> (LockGrant, Result<Option<Piece>, Status>) {
        let device = self.held_files.device(grant.file);
        let (grant, mirrored) = self.mirror_once(grant).await;
        let Some(device) = device.filter(|_| mirrored == Err(Status::NoDescriptor)) else {
            return (grant, mirrored);
        };
        self.vfs.close_unused(device).await;
        self.mirror_once(grant).await
    }

    async fn mirror_once(&self, grant: LockGrant) -> (LockGrant, Result<Option<Piece>, Status>) {
        let (state, held) = (Arc::clone(&self.state), Arc::clone(&self.held_files));
        let job = move || {
            let mirrored = held.mirror(&state, &grant);
            (grant, mirrored)
        };
        self.engine.data(job).await
    }

    /// The lock of a local program in the way of one that [`Self::state`] would grant.
    ///
    /// # Errors
    /// As [`HeldFiles::foreign_lock`].
    pub(crate) async fn foreign_lock(
        &self,
        inode: Arc<Inode>,
        (wanted, lock): (Piece, Option<LockId>),
    ) -> Result<Option<Piece>, Status> {
        let attempt = || {
            let (held, inode) = (Arc::clone(&self.held_files), Arc::clone(&inode));
            let state = Arc::clone(&self.state);
            self.engine.data(move || held.foreign_lock(&state, &inode, lock, wanted))
        };
        self.vfs.with_descriptors(inode.root().device(), attempt).await
    }

    /// Ends the leases that have run out, and the state of files whose exports are not served any more.
    /// To be called once a second. Waits for nothing.
    pub(crate) fn expire(&self) {
        self.change_state_settle_later(|state, step| {
            state.expire(step);
            state.release_files(&self.held_files.retired(), step);
        });
        let is_in_grace = self.state.counts().is_in_grace;
        if self.was_in_grace.swap(is_in_grace, Ordering::Relaxed) && !is_in_grace {
            tracing::info!("the grace period of version 4 is over");
        }
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
