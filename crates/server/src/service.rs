//! What all connections share: the exports, the file operations below them, and the caches.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use io::{
    BufferPool, Engine, EngineConfig, Identity, Memory, PipePool, ReadAheadBudget, WriteBehind,
    WriteBehindConfig,
};
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::counters::{Counter, Counters};
use crate::directory_stream::LISTINGS_MAX;
use crate::export_root::ExportRoot;
use crate::export_table::{self, Access, Credential, Export, ExportTable, Flavor};
use crate::file_handle::{FileHandle, HandleKey};
use crate::known_handles::KnownHandles;
use crate::mount3::MountList;
use crate::open_files::OpenFiles;
use crate::reply_cache::ReplyCache;
use crate::trace::{Tracer, handle_hash};
use crate::vfs::{Caller, Object, PIPES_MAX, Status, Switches, Vfs};
use crate::write_order::WriteOrder;

/// Jobs that may wait for a thread of a lane before callers wait for a place in the queue.
const QUEUE_MAX: usize = 1024;
/// Descriptors left to sockets, directory walks and the rest of the process.
const DESCRIPTORS_RESERVED: usize = 512;
/// Chunks that are read ahead take at most this part of the memory: enough for several streams, and
/// most is left to requests.
const READ_AHEAD_PART: usize = 4;
/// Descriptors for open files, however few there are: two objects in each part of the cache.
const FILE_DESCRIPTORS_MIN: usize = 64;

/// The state of one server.
pub(crate) struct Service {
    /// The file operations, with the engine, the memory and the open files below them.
    pub(crate) vfs: Vfs,
    /// What is served to whom; a reload puts another generation in its place.
    pub(crate) exports: ArcSwap<Exports>,
    /// What makes file handles authentic.
    pub(crate) handle_key: HandleKey,
    /// Replies to calls that must not run twice.
    pub(crate) reply_cache: ReplyCache,
    /// What clients said they have mounted.
    pub(crate) mounts: MountList,
    /// What was done since the start.
    pub(crate) counters: Arc<Counters>,
    /// Which files are being written to, and where.
    pub(crate) write_order: Arc<WriteOrder>,
    /// How long a connection may go without a call.
    pub(crate) idle_timeout: Duration,
    /// Whether threads can act as the users that clients name.
    assumes_users: bool,
}

/// One generation of the configuration: policy, and the directory behind each export.
pub(crate) struct Exports {
    pub(crate) table: Arc<ExportTable>,
    roots: HashMap<u32, (PathBuf, Arc<ExportRoot>)>,
}

/// An export's directory that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {} as {name}: {error}", path.display())]
pub struct ExportError {
    /// The name clients would mount.
    pub name: String,
    /// The directory.
    pub path: PathBuf,
    /// What the system said.
    pub error: std::io::Error,
}

impl Exports {
    /// Opens the directories of `table`. One that an earlier generation has open under the same id
    /// and path is taken over, with its write verifier.
    ///
    /// # Errors
    /// The first directory that cannot be served.
    pub(crate) fn open(
        table: Arc<ExportTable>,
        earlier: Option<&Self>,
    ) -> Result<Self, ExportError> {
        let mut roots = HashMap::new();
        for export in table.iter() {
            let known = earlier
                .and_then(|earlier| earlier.roots.get(&export.id))
                .filter(|(path, _)| *path == export.path);
            let root = match known {
                Some((_, root)) => Arc::clone(root),
                None => Arc::new(open_root(export)?),
            };
            roots.insert(export.id, (export.path.clone(), root));
        }
        Ok(Self { table, roots })
    }

    /// The root of an export of this generation.
    pub(crate) fn root(&self, export: &Export) -> &Arc<ExportRoot> {
        &self.roots[&export.id].1
    }
}

/// The window of the configured size; small ones write in smaller runs.
fn window_config(config: &Config) -> WriteBehindConfig {
    let window_bytes = config.window_bytes() as u64;
    let usual = WriteBehindConfig::default();
    WriteBehindConfig { window_bytes, run_bytes: usual.run_bytes.min(window_bytes / 8), ..usual }
}

fn open_root(export: &Export) -> Result<ExportRoot, ExportError> {
    let root = ExportRoot::open_path(export.id, &export.path).map_err(|error| ExportError {
        name: export.name.clone(),
        path: export.path.clone(),
        error,
    })?;
    if !root.opens_by_handle() {
        tracing::warn!(
            export = export.name,
            "file handles cannot be opened here (CAP_DAC_READ_SEARCH is missing, or the file \
             system has none): serving by remembered paths"
        );
    }
    Ok(root)
}

impl Service {
    pub(crate) fn new(config: &Config, exports: Exports, handle_key: HandleKey) -> Self {
        let counters = Arc::new(Counters::default());
        if let Err(error) = io::survive_file_size_limit() {
            tracing::warn!(%error, "a WRITE past the limit on file sizes will end the server");
        }
        let descriptors = usize::try_from(io::raise_open_file_limit()).unwrap_or(usize::MAX);
        let sockets = config.connections_max().min(descriptors / 4);
        let reserved = DESCRIPTORS_RESERVED + LISTINGS_MAX + 2 * PIPES_MAX + sockets;
        let transfer_bytes_max = config.max_transfer_bytes();
        let assumes_users = io::can_assume_users();
        if !assumes_users {
            tracing::warn!(
                "this process cannot act as other users (CAP_SETUID and CAP_SETGID are missing): \
                 all clients act as the user it runs as"
            );
        }
        let engine = Engine::new(EngineConfig {
            data_threads: config.data_threads(),
            metadata_threads: config.metadata_threads(),
            queue_max: QUEUE_MAX,
        });
        let tracer = Arc::new(Tracer::default());
        tracer.set(config.trace());
        Self {
            vfs: Vfs {
                engine: Arc::new(engine),
                // What the window holds is page cache, and within the same bound.
                buffers: BufferPool::new(config.memory_bytes() - config.window_bytes()),
                pipes: PipePool::new(
                    PIPES_MAX,
                    usize::try_from(transfer_bytes_max).unwrap_or(usize::MAX),
                ),
                open_files: OpenFiles::new(
                    descriptors.saturating_sub(reserved).max(FILE_DESCRIPTORS_MIN),
                ),
                listings: Arc::new(Semaphore::new(LISTINGS_MAX)),
                known_handles: Arc::new(KnownHandles::new()),
                counters: Arc::clone(&counters),
                tracer,
                switches: Switches::new(config.read_ahead(), config.splice()),
                memory: Memory::new(),
                window: WriteBehind::new(window_config(config)),
                read_ahead: ReadAheadBudget::new(config.memory_bytes() / READ_AHEAD_PART),
                uncached_bytes: AtomicU64::new(0),
                transfer_bytes_max,
            },
            exports: ArcSwap::from_pointee(exports),
            handle_key,
            reply_cache: ReplyCache::new(),
            mounts: MountList::default(),
            counters,
            write_order: Arc::new(WriteOrder::new()),
            idle_timeout: config.idle_timeout(),
            assumes_users,
        }
    }

    /// Puts the settings that are not of an export in force, as far as a running server can change
    /// them, and says which changed.
    pub(crate) fn switch(&self, config: &Config) -> Vec<String> {
        let Vfs { switches, tracer, .. } = &self.vfs;
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

    /// Whether there is any export that admits a peer.
    pub(crate) fn knows(&self, address: SocketAddr) -> bool {
        let peer = export_table::Peer { address };
        self.exports.load().table.iter().any(|export| export.admit(&peer, Flavor::Sys).is_ok())
    }

    /// The gate: every operation of every program comes through here.
    ///
    /// # Errors
    /// `Access` for a peer or flavour that the export does not admit.
    pub(crate) fn admit(
        &self,
        export: &Export,
        peer: &export_table::Peer,
        flavor: Flavor,
    ) -> Result<Access, Status> {
        export.admit(peer, flavor).map_err(|denied| {
            self.counters.add(Counter::DeniedCalls, 1);
            tracing::debug!(client = %peer.address, export = export.name, ?denied, "denied");
            Status::Access
        })
    }

    /// The object behind a wire handle and what its export makes of the caller.
    ///
    /// # Errors
    /// `BadHandle` for a handle that this server did not make, `Stale` for an export that is gone,
    /// `Access` from the gate.
    pub(crate) fn resolve(
        &self,
        xid: u32,
        handle: &[u8],
        peer: &export_table::Peer,
        flavor: Flavor,
        credential: Option<Credential<'_>>,
    ) -> Result<(Caller, Object), Status> {
        let traced = !self.vfs.tracer.events().is_empty();
        let fh_hash = if traced { handle_hash(handle) } else { 0 };
        let handle = self.handle_key.open(handle).ok_or(Status::BadHandle)?;
        let exports = self.exports.load();
        let export = exports.table.by_id(handle.export_id).ok_or(Status::Stale)?;
        let access = self.admit(export, peer, flavor)?;
        let root = Arc::clone(exports.root(export));
        let (sync, policy) = (export.sync, export.policy);
        let object = Object { root, handle: handle.kernel, sync, policy, fh_hash };
        Ok((self.caller(xid, &access, credential), object))
    }

    /// The wire handle of an object.
    pub(crate) fn seal(&self, export_id: u32, kernel: io::KernelHandle) -> proto::nfs3::FileHandle {
        let sealed = self.handle_key.seal(&FileHandle { export_id, kernel });
        proto::nfs3::FileHandle::new(sealed.as_bytes()).expect("a sealed handle fits 64 bytes")
    }

    /// Who `credential` is once the export has squashed it, and what threads work as for them.
    pub(crate) fn caller(
        &self,
        xid: u32,
        access: &Access,
        credential: Option<Credential<'_>>,
    ) -> Caller {
        let read_only = access.read_only;
        if !self.assumes_users {
            let uid = rustix::process::geteuid().as_raw();
            let gid = rustix::process::getegid().as_raw();
            let identity = Identity::Server;
            return Caller { xid, uid, gid, groups: Arc::default(), read_only, identity };
        }
        let ids = access.identity(credential);
        let groups: Arc<[u32]> = Arc::from(&*ids.groups);
        let identity = Identity::User { uid: ids.uid, gid: ids.gid, groups: Arc::clone(&groups) };
        Caller { xid, uid: ids.uid, gid: ids.gid, groups, read_only, identity }
    }
}
