//! Read delegations, RFC 8881 §10.2 to §10.4: while a client holds one, no other opens the file for
//! writing or changes it before the client has returned it.
//!
//! A delegation is held, then recalled when something conflicts with it, and revoked when the
//! client does not return it in time, or does not know it. A recall is repeated until then, so that
//! it does not matter which connection loses it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use proto::nfs4::{ClientId, FileHandle, Stateid};

use super::backchannel::{CallbackEnd, Recall};
use super::hold_offs::{HELD_OFF_MAX, HoldOffs};
use super::revoked::Revoked;
use super::{DelegationId, Effect, ExportId, FileId, Step};

/// A delegation to be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegate {
    pub(crate) client: ClientId,
    /// Pinned by the caller, until the effect [`EndDelegation`](Effect::EndDelegation).
    pub(crate) file: FileId,
    /// The export that it was opened in.
    pub(crate) export: ExportId,
    /// The file as the client names it.
    pub(crate) object: FileHandle,
    /// The user whose permission was checked.
    pub(crate) user: u32,
    /// It is one of before a restart.
    pub(crate) is_reclaim: bool,
}

/// Why a delegation is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDelegated {
    /// Others use the file in a way that conflicts with it, or did lately.
    Contention,
    /// There are too many, or the server has no means to.
    Resource,
}

/// The number of delegations, and what has become of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DelegationTotals {
    pub(crate) granted: u64,
    /// Each counted once, however often it was repeated.
    pub(crate) recalled: u64,
    /// By DELEGRETURN.
    pub(crate) returned: u64,
    pub(crate) revoked: u64,
}

/// All delegations.
#[derive(Debug)]
pub(super) struct Delegations {
    /// Those that are held or recalled.
    by_id: BTreeMap<DelegationId, Delegation>,
    by_file: HashMap<FileId, BTreeSet<DelegationId>>,
    by_client: HashMap<ClientId, BTreeSet<DelegationId>>,
    /// The recalled ones.
    recalled: BTreeSet<DelegationId>,
    /// Those that were taken away from their clients.
    pub(super) revoked: Revoked,
    hold_offs: HoldOffs,
    totals: DelegationTotals,
}

#[derive(Debug)]
pub(super) struct Delegation {
    pub(super) client: ClientId,
    /// The address of the client.
    peer: IpAddr,
    pub(super) file: FileId,
    export: ExportId,
    object: FileHandle,
    pub(super) user: u32,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    Recalled { due: Due, sent_at: Option<Duration>, answer: RecallAnswer },
}

/// When a delegation that is recalled and not returned is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    at: Duration,
    /// Not later than this, however long the server does not read what the client sends.
    latest: Duration,
}

impl Due {
    /// That of a recall because of another client's call.
    pub(super) fn within(time: Duration, now: Duration) -> Self {
        Self { at: now + time, latest: now + time + MEMORY_WAITS_MAX }
    }

    /// That of a recall because of a local program, which the kernel lets pass whatever the server
    /// waits for.
    pub(super) fn within_local(time: Duration, now: Duration) -> Self {
        Self::exactly(now + time)
    }

    fn exactly(at: Duration) -> Self {
        Self { at, latest: at }
    }

    fn earlier(self, other: Self) -> Self {
        Self { at: self.at.min(other.at), latest: self.latest.min(other.latest) }
    }

    /// Leaves time for an answer that was not read before now.
    fn put_off(self, now: Duration) -> Self {
        Self { at: self.at.max(self.latest.min(now + ANSWER_MAX)), ..self }
    }
}

/// The answers of a client to the recalls of a delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecallAnswer {
    /// The client has not answered, or its last answer was an error that it may get over.
    Pending,
    /// The last `count` answers, from `since` on, were that it does not know the delegation.
    Unknown { count: u32, since: Duration },
    /// `NFS4_OK`: the client returns the delegation. Linux does not know it by a recall from then
    /// on, so further answers show nothing.
    Accepted,
}

impl RecallAnswer {
    fn after(self, end: CallbackEnd, now: Duration) -> Self {
        match (self, end) {
            (Self::Accepted, _) | (_, CallbackEnd::Performed) => Self::Accepted,
            (Self::Unknown { count, since }, CallbackEnd::Unknown) => {
                Self::Unknown { count: count + 1, since }
            }
            (Self::Pending, CallbackEnd::Unknown) => Self::Unknown { count: 1, since: now },
            (_, CallbackEnd::Refused) => Self::Pending,
            (_, CallbackEnd::Delayed | CallbackEnd::Used | CallbackEnd::Lost) => self,
        }
    }

    /// Whether the client will not return the delegation, because it never got it.
    fn is_final(self, now: Duration) -> bool {
        matches!(self, Self::Unknown { count, since }
            if count >= UNKNOWN_ANSWERS && now.saturating_sub(since) > UNKNOWN_FOR)
    }
}

impl Delegations {
    /// None. As many as there may be can be revoked.
    pub(super) fn new(delegations_max: usize) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_file: HashMap::new(),
            by_client: HashMap::new(),
            recalled: BTreeSet::new(),
            revoked: Revoked::new(delegations_max),
            hold_offs: HoldOffs::new(HELD_OFF_MAX),
            totals: DelegationTotals::default(),
        }
    }

    pub(super) fn get(&self, id: DelegationId) -> Option<&Delegation> {
        self.by_id.get(&id)
    }

    /// Whether one was recalled and not returned in time.
    pub(super) fn is_late(&self, id: DelegationId, now: Duration) -> bool {
        let phase = self.by_id.get(&id).map(|delegation| delegation.phase);
        matches!(phase, Some(Phase::Recalled { due, .. }) if due.at <= now)
    }

    /// The recalled ones.
    pub(super) fn recalled(&self) -> Vec<DelegationId> {
        self.recalled.iter().copied().collect()
    }

    /// Whether a file is not to be delegated again yet, because it was recalled.
    pub(super) fn is_held_off(&self, file: FileId, now: Duration) -> bool {
        self.hold_offs.contains(file, now)
    }

    /// Notes that a file was returned in time, if it was recalled.
    pub(super) fn note_returned(&mut self, file: FileId, now: Duration) {
        self.totals.returned += 1;
        self.hold_offs.shorten(file, now + HOLD_OFF);
    }

    /// Forgets what was recalled long ago.
    pub(super) fn end_hold_offs(&mut self, now: Duration) {
        self.hold_offs.expire(now);
    }

    /// All that the server keeps in mind, revoked ones too.
    pub(super) fn len(&self) -> usize {
        self.by_id.len() + self.revoked.len()
    }

    /// The same of a client.
    pub(super) fn of_client(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len) + self.revoked.of_client(client)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_unused = self.by_file.is_empty() && self.by_client.is_empty();
        self.len() == 0 && is_unused && self.recalled.is_empty() && self.hold_offs.is_empty()
    }

    pub(super) fn totals(&self) -> DelegationTotals {
        self.totals
    }

    pub(super) fn of_file(
        &self,
        file: FileId,
    ) -> impl Iterator<Item = (DelegationId, &Delegation)> {
        let ids = self.by_file.get(&file).into_iter().flatten();
        ids.map(|id| (*id, &self.by_id[id]))
    }

    /// The files that a client has delegated.
    pub(super) fn files_of(&self, client: ClientId) -> impl Iterator<Item = FileId> {
        let ids = self.by_client.get(&client).into_iter().flatten();
        ids.map(|id| self.by_id[id].file)
    }

    /// Whether a client holds one that is not revoked.
    pub(super) fn has_live(&self, client: ClientId) -> bool {
        self.by_client.contains_key(&client)
    }

    /// Adds a delegation. Its client has this address.
    pub(super) fn add(&mut self, id: DelegationId, call: &Delegate, peer: IpAddr) {
        let Delegate { client, file, export, object, user, .. } = *call;
        let phase = Phase::Held;
        self.by_id.insert(id, Delegation { client, peer, file, export, object, user, phase });
        self.by_file.entry(file).or_default().insert(id);
        self.by_client.entry(client).or_default().insert(id);
        self.totals.granted += 1;
    }

    /// Takes a delegation away that was not returned in time. Its client learns of it by SEQUENCE.
    pub(super) fn revoke(&mut self, id: DelegationId, step: &mut Step) {
        let client = self.by_id[&id].client;
        self.remove(id, step);
        self.revoked.add(client, id.0, step.now);
        self.totals.revoked += 1;
    }

    /// Removes a delegation that is not revoked: nothing conflicts with it any more.
    pub(super) fn remove(&mut self, id: DelegationId, step: &mut Step) {
        let Delegation { client, file, .. } = self.by_id.remove(&id).expect("it is known");
        self.recalled.remove(&id);
        let of_file = self.by_file.get_mut(&file).expect("the file has this one");
        of_file.remove(&id);
        if of_file.is_empty() {
            self.by_file.remove(&file);
        }
        let of_client = self.by_client.get_mut(&client).expect("the client has this one");
        of_client.remove(&id);
        if of_client.is_empty() {
            self.by_client.remove(&client);
        }
        step.effects.push(Effect::EndDelegation { file, delegation: id });
    }

    /// Removes all of a client, revoked ones too.
    pub(super) fn remove_client(&mut self, client: ClientId, step: &mut Step) {
        let ids = self.by_client.get(&client).cloned().unwrap_or_default();
        ids.into_iter().for_each(|id| self.remove(id, step));
        self.revoked.forget_client(client);
    }

    /// Removes all of a file in an export. Returns them, with their clients.
    pub(super) fn remove_file(
        &mut self,
        file: FileId,
        export: ExportId,
        step: &mut Step,
    ) -> Vec<(ClientId, DelegationId)> {
        let of_file = self.of_file(file).filter(|(_, found)| found.export == export);
        let removed: Vec<_> = of_file.map(|(id, found)| (found.client, id)).collect();
        removed.iter().for_each(|(_, id)| self.remove(*id, step));
        removed
    }

    /// Recalls a delegation.
    pub(super) fn recall(&mut self, id: DelegationId, now: Duration, due: Due) {
        let delegation = self.by_id.get_mut(&id).expect("the caller has looked it up");
        match &mut delegation.phase {
            Phase::Held => {
                let answer = RecallAnswer::Pending;
                delegation.phase = Phase::Recalled { due, sent_at: None, answer };
                self.recalled.insert(id);
                self.totals.recalled += 1;
            }
            Phase::Recalled { due: before, .. } => *before = before.earlier(due),
        }
        self.hold_offs.add(delegation.file, delegation.peer, (now, due.at + HOLD_OFF));
    }

    /// Puts the end of a recalled delegation off: the server does not read what its client sends.
    pub(super) fn put_off(&mut self, id: DelegationId, now: Duration) {
        let Some(delegation) = self.by_id.get_mut(&id) else { return };
        let Phase::Recalled { due, .. } = &mut delegation.phase else { return };
        let before = std::mem::replace(due, due.put_off(now));
        if *due != before {
            self.hold_offs.add(delegation.file, delegation.peer, (now, due.at + HOLD_OFF));
        }
    }

    /// Notes the end of a recall. A delegation that its client never got is over soon.
    pub(super) fn note_answer(&mut self, id: DelegationId, end: CallbackEnd, now: Duration) {
        let Some(delegation) = self.by_id.get_mut(&id) else { return };
        let Phase::Recalled { due, answer, .. } = &mut delegation.phase else { return };
        *answer = answer.after(end, now);
        if answer.is_final(now) {
            *due = due.earlier(Due::exactly(now));
            self.hold_offs.shorten(delegation.file, now + HOLD_OFF);
        }
    }

    /// The client to be called, and the recall, if it is time to send it.
    pub(super) fn due_recall(
        &mut self,
        id: DelegationId,
        stateid: Stateid,
        now: Duration,
    ) -> Option<(ClientId, Recall)> {
        let delegation = self.by_id.get_mut(&id)?;
        let Phase::Recalled { sent_at, .. } = &mut delegation.phase else { return None };
        if sent_at.is_some_and(|at| now < at + REPEAT_AFTER) {
            return None;
        }
        *sent_at = Some(now);
        Some((delegation.client, Recall { stateid, object: delegation.object }))
    }
}

/// While a WRITE of a client waits for memory, what the client has sent behind it is not read: an
/// answer, or the return of a delegation. Its recalls do not run out then, and not for so long
/// after the last such wait: ...
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// ... but all such waits together put a recall off by no more than this. A client can make its own
/// WRITEs wait, by others that it sends slowly.
pub(crate) const MEMORY_WAITS_MAX: Duration = Duration::from_secs(10 * 60);
/// A recall is repeated until the delegation is returned, also after NFS4_OK: FreeBSD answers so
/// before it has received the delegation, and Linux can give up its return.
const REPEAT_AFTER: Duration = Duration::from_secs(2);
/// A client that does not know a delegation has answered so often, over a longer time than this.
/// The reply with the delegation may still be on its way. And Linux answers so, too, while it
/// returns a delegation by itself, until it has claimed its opens and locks, each by a call: the
/// time is enough for 500 at 60 ms.
const UNKNOWN_ANSWERS: u32 = 3;
const UNKNOWN_FOR: Duration = Duration::from_secs(30);
/// A file is not delegated again for so long after a recall: what conflicted is likely to come
/// again.
const HOLD_OFF: Duration = Duration::from_secs(30);
