//! Version 4: changes of its state with their effects, callbacks, and what clients hold of files.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::nfs4::Stateid;

use super::Service;
use crate::config::Config;
use crate::counters::Counter;
use crate::descriptor_plan::DescriptorPlan;
use crate::export::Object;
use crate::fs::{Caller, Status, Timestamp};
use crate::held_files::{NotMirrored, Removed, file_id};
use crate::inode_cache::{IdleInodes, Inode, Wcc};
use crate::local_conflicts;
use crate::random::random_u64;
use crate::recovery::Recovered;
use crate::state::{
    Callback, ChannelAttributes, Delegate, Effect, FileId, Limits, LockGrant, Message,
    NotDelegated, Piece, Session, State, Step, TestedLock,
};
use crate::vfs::{Answer, Applied, AttributeChange, RETURN_PAUSES, SpaceWanted};

/// Bytes of a COMPOUND besides the data of a READ or WRITE, at most, in each direction.
const COMPOUND_BYTES_MAX: u32 = 8 * 1024;

/// The bounds of the state of version 4.
pub(super) fn state_limits(
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

/// How long clients have to return a delegation that a local program waits for; `None` if there are
/// to be none.
pub(super) fn probe_leases(config: &Config) -> Option<Duration> {
    if !config.delegations() {
        return None;
    }
    let log = |error: &std::io::Error| {
        tracing::info!(%error, "delegations are off: local programs would not wait for their return");
    };
    local_conflicts::probe(config.state_dir()).inspect_err(log).ok()
}

/// The state of version 4 with what an earlier server has left.
pub(super) fn new_state(recovered: Recovered, limits: Limits) -> std::io::Result<State> {
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
            let (notices, effects): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_notice);
            self.settlement.settle(effects).await;
            notices.into_iter().for_each(|notice| self.notify(notice));
        }
        changed
    }

    /// As [`Self::change_state`], and again for a moment while it fails as `delegated`: delegations
    /// conflict with it, which have been recalled.
    pub(crate) async fn change_state_undelegated<T, E: PartialEq>(
        &self,
        mut change: impl FnMut(&State, &mut Step) -> Result<T, E>,
        delegated: &E,
    ) -> Result<T, E> {
        let mut changed = self.change_state(&mut change).await;
        for pause in RETURN_PAUSES {
            if changed.as_ref().err() != Some(delegated) {
                break;
            }
            self.vfs.sleep(pause).await;
            changed = self.change_state(&mut change).await;
        }
        changed
    }

    /// As [`Self::change_state`], for what no call waits for: the threads of the devices perform
    /// the effects.
    pub(crate) fn change_state_settle_later(&self, change: impl FnOnce(&State, &mut Step)) {
        let mut step = Step::new(self.now());
        change(&self.state, &mut step);
        let effects = step.into_effects().into_iter();
        let (notices, effects): (Vec<_>, Vec<_>) = effects.partition(is_notice);
        self.settlement.settle_later(effects);
        notices.into_iter().for_each(|notice| self.notify(notice));
    }

    /// Calls a client back, or logs that one has to wait. Waits for nothing.
    fn notify(&self, effect: Effect) {
        let (client, message) = match effect {
            Effect::NotifyLock { client, notice } => (client, Message::NotifyLock(notice)),
            Effect::Recall { client, recall } => (client, Message::Recall(recall)),
            Effect::NoRoom { address, of } => {
                self.counters.add(Counter::Nfs4CallsPutOff, 1);
                let of = of.name();
                tracing::warn!(client = %address, "too many {of}: calls wait until others end");
                return;
            }
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
        let (callbacks, state) = (Arc::clone(&self.callbacks), Arc::clone(&self.state));
        let started = self.started;
        let send = async move {
            callbacks.send(&state, &session, first, || started.elapsed()).await;
        };
        drop(self.timers.spawn(send));
    }

    /// Takes a lock that [`Self::state`] has granted for local programs too.
    ///
    /// # Errors
    /// As [`HeldFiles::mirror`](crate::held_files::HeldFiles::mirror). The grant comes back in any
    /// case.
    pub(crate) async fn mirror(
        &self,
        grant: LockGrant,
    ) -> (LockGrant, Result<Option<Piece>, NotMirrored>) {
        let device = self.held_files.device(grant.file);
        let (grant, mirrored) = self.mirror_once(grant).await;
        let lacks_descriptor = mirrored == Err(Status::NoDescriptor.into());
        let Some(device) = device.filter(|_| lacks_descriptor) else {
            return (grant, mirrored);
        };
        self.vfs.close_unused(device).await;
        self.mirror_once(grant).await
    }

    async fn mirror_once(
        &self,
        grant: LockGrant,
    ) -> (LockGrant, Result<Option<Piece>, NotMirrored>) {
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
    /// As [`HeldFiles::foreign_lock`](crate::held_files::HeldFiles::foreign_lock).
    pub(crate) async fn foreign_lock(
        &self,
        inode: Arc<Inode>,
        tested: TestedLock,
    ) -> Result<Option<Piece>, Status> {
        let attempt = || {
            let (held, inode) = (Arc::clone(&self.held_files), Arc::clone(&inode));
            let state = Arc::clone(&self.state);
            self.engine.data(move || held.foreign_lock(&state, &inode, tested))
        };
        self.vfs.with_descriptors(inode.root().device(), attempt).await
    }

    /// Ends the leases that have run out, and the state of files whose exports are not served any
    /// more. To be called once a second. Waits for nothing.
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

    /// Has calls that lack space get that of removed files which clients keep as a courtesy. To be
    /// called once.
    pub(crate) fn offer_space_in_courtesy(self: &Arc<Self>) {
        let service = Arc::downgrade(self);
        self.vfs.held_space().set(move |wanted| {
            let service = service.upgrade();
            Box::pin(async move {
                match service {
                    Some(service) => service.free_space_in_courtesy(wanted).await,
                    None => false,
                }
            })
        });
    }

    /// Ends the courtesy of clients that alone keep removed files whose space a call lacks, if it
    /// is enough. Returns whether some came free. Waits for the records of the clients, and for the
    /// files to be closed. A client loses all its state, so this is the last attempt.
    async fn free_space_in_courtesy(&self, wanted: SpaceWanted) -> bool {
        let files = self.state.files_in_courtesy(self.now());
        if files.is_empty() {
            return false;
        }
        let held = Arc::clone(&self.held_files);
        let Removed { files, lacking } =
            self.engine.data(move || held.removed(&files, &wanted)).await;
        // Their names are their own as long as they are open here.
        let sizes: Vec<_> =
            files.iter().map(|file| (file_id(&file.inodes[0]), file.bytes)).collect();
        let end = |state: &State, step: &mut Step| state.end_courtesy(&sizes, lacking, step);
        let frees = self.change_state(end).await;
        for inode in files.into_iter().flat_map(|file| file.inodes) {
            let gone = (!inode.is_held()).then(|| inode.key());
            self.settlement.close(inode);
            if let Some(gone) = gone {
                self.vfs.let_go(&gone).await;
            }
        }
        frees
    }

    /// Whether clients are given delegations.
    pub(crate) fn gives_delegations(&self) -> bool {
        self.local_conflicts.is_some()
    }

    /// Gives a client a delegation of a file that it has opened.
    ///
    /// # Errors
    /// As [`HeldFiles::delegate`](crate::held_files::HeldFiles::delegate); `Contention` while the
    /// file is being changed.
    pub(crate) async fn delegate(
        &self,
        inode: &Arc<Inode>,
        call: Delegate,
    ) -> Result<Stateid, NotDelegated> {
        let local_conflicts = self.local_conflicts.clone().ok_or(NotDelegated::Resource)?;
        let (state, held, now) =
            (Arc::clone(&self.state), Arc::clone(&self.held_files), self.now());
        let inode = Arc::clone(inode);
        let job = move || {
            // Not before a thread has the job, or changes would wait for it in the queue.
            let guard = inode.lock.try_exclusive().ok_or(NotDelegated::Contention)?;
            held.delegate((&state, &local_conflicts), &inode, guard, &call, now)
        };
        self.engine.data(job).await
    }

    /// Recalls the delegations of files that something conflicts with, until it is aborted.
    pub(crate) async fn recall_delegations(self: Arc<Self>) {
        let requests = Arc::clone(self.vfs.recall_requests());
        loop {
            let conflicts = requests.next().await;
            self.change_state_settle_later(|state, step| {
                for (file, is_local) in conflicts {
                    let file = FileId(u64::try_from(file).expect("an address has at most 64 bits"));
                    state.recall(file, is_local, step);
                }
            });
        }
    }

    /// Flushes and closes idle objects of one device. A file that a client of version 4 has open
    /// for writing stays so until its lease expires: the client may write it whatever its mode is
    /// by then, and the server may not open it again. Waits for the disk.
    pub(crate) async fn close_idle(&self, idle: IdleInodes) {
        let (state, now) = (Arc::clone(&self.state), self.now());
        let is_held_for_writing = move |inode: &Inode| state.has_writer(file_id(inode), now);
        self.vfs.close_idle(idle, is_held_for_writing).await;
    }

    /// [`Vfs::setattr`](crate::vfs::Vfs::setattr) of a file that clients of version 4 may have open
    /// for writing.
    pub(crate) async fn setattr(
        &self,
        caller: &Caller,
        object: &Object,
        change: AttributeChange,
        guard: Option<Timestamp>,
    ) -> Answer<(Wcc, Applied), ()> {
        let has_writer = |inode: &Inode| self.state.has_writer(file_id(inode), self.now());
        self.vfs.setattr(caller, object, change, guard, has_writer).await
    }
}

/// Whether a client is to be called back, or the administrator to be notified.
fn is_notice(effect: &Effect) -> bool {
    matches!(effect, Effect::NotifyLock { .. } | Effect::Recall { .. } | Effect::NoRoom { .. })
}
