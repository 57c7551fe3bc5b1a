//! The hold of delegations on a file: a lease for local programs, and the gate for changes by this
//! server.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proto::nfs4::{ClientId, Stateid};

use super::{Held, HeldFiles, Pin};
use crate::fs::{LiveAttributes, Status};
use crate::inode_cache::{ExclusiveGuard, Holder, Holders, Inode};
use crate::local_conflicts::{LocalConflicts, LocalHold};
use crate::state::{Delegate, DelegationId, ExportId, FileId, NotDelegated, State};

/// The delegations of a file.
#[derive(Default)]
pub(super) struct Delegated {
    clients: HashMap<DelegationId, (ClientId, ExportId)>,
    /// One is about to be given to this client in this export.
    granting: Option<(ClientId, ExportId)>,
    /// While there is one of these.
    lease: Option<LocalHold>,
}

impl Delegated {
    fn is_unused(&self) -> bool {
        self.clients.is_empty() && self.granting.is_none()
    }

    fn holders(&self) -> Holders {
        let mut holders = self.clients.values().copied().chain(self.granting);
        let Some(first) = holders.next() else { return Holders::None };
        let is_one = holders.all(|holder| holder == first);
        match NonZeroU64::new(first.0.0) {
            Some(client) if is_one => Holders::One(Holder { client, export: first.1.0 }),
            _ => Holders::Several,
        }
    }
}

impl Held {
    /// Shows the holders to the changes of the file.
    fn show_holders(&self) {
        self.inodes[0].0.set_holders(self.delegations.holders());
    }
}

impl HeldFiles {
    /// Gives a client a delegation of a file that the caller has to itself. To be called as the
    /// server's user; may block.
    ///
    /// # Errors
    /// As [`State::delegate`]; `Contention` while the file is open for writing, also by a local
    /// program, while its names change, and for a reclaim if the file may have changed since the
    /// restart; `Resource` where there is no lease to be had.
    pub(crate) fn delegate(
        &self,
        (state, local_conflicts): (&State, &LocalConflicts),
        inode: &Arc<Inode>,
        _guard: ExclusiveGuard,
        call: &Delegate,
        now: Duration,
    ) -> Result<Stateid, NotDelegated> {
        let pin = self.pin(inode);
        let granting = Granting::begin(self, pin, call.client);
        // Those that begin from here on see the holder.
        if inode.has_name_changes() {
            return Err(NotDelegated::Contention);
        }
        granting.take_lease(local_conflicts, inode)?;
        if call.is_reclaim && !is_as_recorded(state, inode, call.client) {
            return Err(NotDelegated::Contention);
        }
        let (id, stateid) = state.delegate(call, now)?;
        granting.keep(id);
        if let Some(lease) =
            self.lock().files.get(&call.file).and_then(|held| held.delegations.lease.as_ref())
        {
            local_conflicts.recall_if_changed(lease, inode.address());
        }
        if !state.has_delegation(id) {
            // The effect that ended it may have come before. The caller has the inode too.
            drop(self.end_delegation(call.file, id));
        }
        Ok(stateid)
    }

    /// Lets changes of a file pass that a delegation kept away, if it was the last. Returns the
    /// inodes that are not held any more.
    pub(super) fn end_delegation(&self, file: FileId, id: DelegationId) -> Vec<Arc<Inode>> {
        let ended = {
            let mut table = self.lock();
            let held = table.files.get_mut(&file);
            held.and_then(|held| held.delegations.clients.remove(&id))
        };
        let Some((_, export)) = ended else { return Vec::new() };
        self.release_unused_lease(file);
        self.unpin(file, export)
    }

    /// The lease goes first: the server's own descriptors would break it.
    fn release_unused_lease(&self, file: FileId) {
        let lease = {
            let mut table = self.lock();
            let held = table.files.get_mut(&file).filter(|held| held.delegations.is_unused());
            held.and_then(|held| held.delegations.lease.take())
        };
        drop(lease);
        if let Some(held) = self.lock().files.get(&file) {
            held.show_holders();
        }
    }
}

/// Whether a file is as it was when a client that reclaims was recorded, and so as the client has
/// it in its cache: before the restart its delegations kept all changes away, and afterwards none.
/// A record from later than now is of a clock that was set back.
fn is_as_recorded(state: &State, inode: &Inode, client: ClientId) -> bool {
    let Some(recorded_at) = state.recorded_at(client) else { return false };
    let is_older = |live: LiveAttributes| live.ctime.is_settled(recorded_at);
    recorded_at <= SystemTime::now() && inode.live_attributes().is_ok_and(is_older)
}

/// A delegation that is being given. There is one at a time, because the caller has the file to
/// itself.
struct Granting<'a> {
    held: &'a HeldFiles,
    pin: Option<Pin<'a>>,
    file: FileId,
    export: ExportId,
    client: ClientId,
}

impl<'a> Granting<'a> {
    fn begin(held: &'a HeldFiles, pin: Pin<'a>, client: ClientId) -> Self {
        let (file, export) = (pin.file(), pin.export());
        let granting = Self { held, pin: Some(pin), file, export, client };
        granting.change(|held| held.delegations.granting = Some((client, export)));
        granting
    }

    fn take_lease(
        &self,
        local_conflicts: &LocalConflicts,
        inode: &Inode,
    ) -> Result<(), NotDelegated> {
        let has_lease = self.change(|held| held.delegations.lease.is_some());
        if has_lease {
            return Ok(());
        }
        let refused = |error: &dyn std::fmt::Display| {
            tracing::debug!(%error, "cannot take a lease");
            NotDelegated::Resource
        };
        let fd = inode.open_for_lease().map_err(|status| {
            if status == Status::Delay {
                // A local program has a lease for writing, which this breaks.
                return NotDelegated::Contention;
            }
            refused(&format_args!("{status:?}"))
        })?;
        let lease = local_conflicts.hold(fd, inode.address()).map_err(|error| refused(&error))?;
        let lease = lease.ok_or(NotDelegated::Contention)?;
        self.change(|held| held.delegations.lease = Some(lease));
        Ok(())
    }

    /// The delegation is given: it has the pin.
    fn keep(mut self, id: DelegationId) {
        let holder = (self.client, self.export);
        self.change(|held| {
            held.delegations.granting = None;
            held.delegations.clients.insert(id, holder);
        });
        if let Some(pin) = self.pin.take() {
            pin.keep();
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        let mut table = self.held.lock();
        let held = table.files.get_mut(&self.file).expect("it is pinned");
        let result = change(held);
        held.show_holders();
        result
    }
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        // With the pin the delegation was given, and may have ended since.
        if self.pin.is_some() {
            self.change(|held| held.delegations.granting = None);
            self.held.release_unused_lease(self.file);
        }
    }
}
