//! Delegations in the model.

use super::*;

/// How long a file is not delegated again after a recall.
const HOLD_OFF: u64 = 30;
/// How long a revoked one stays known.
const REVOKED_FOR: u64 = 180;

impl Model {
    pub(super) fn delegate(&mut self, at: usize, file: u64) -> Result<(), TestCaseError> {
        let (client, user) = (self.clients[at].0, 0);
        let (file_id, object, is_reclaim) = (FileId(file), object(), false);
        let call = Delegate { client, file: file_id, export: EXPORT, object, user, is_reclaim };
        let result = self.bed.state.delegate(&call, self.bed.step.now);
        let writes = |(key, open): (&Key, &ModelOpen)| {
            key.1 == file && open.share().0 & 2 != 0 && !self.is_expired(key.0)
        };
        let is_in_the_way = |((holder, of), held): (&(usize, u64), &ModelDelegation)| {
            *of == file && (*holder == at || held.ends_at.is_some())
        };
        let is_contended = self.opens.iter().any(writes)
            || self.delegations.iter().any(is_in_the_way)
            || self
                .held_off
                .range((file, 0)..(file, CLIENTS))
                .any(|(_, until)| self.now() < *until);
        let of_client = self.delegations.keys().filter(|(holder, _)| *holder == at).count()
            + self.revoked.iter().filter(|(holder, ..)| *holder == at).count();
        let is_full =
            self.delegations.len() + self.revoked.len() >= LIMITS_DELEGATIONS || of_client >= 2;
        match result {
            Ok((id, stateid)) => {
                prop_assert!(!is_contended && !is_full);
                prop_assert!(self.granted.insert(id));
                self.delegations.insert((at, file), ModelDelegation { stateid, ends_at: None });
            }
            Err(NotDelegated::Contention) => prop_assert!(is_contended),
            Err(NotDelegated::Resource) => prop_assert!(is_full && !is_contended),
        }
        Ok(())
    }

    pub(super) fn give_back(&mut self, at: usize, file: u64) -> Result<(), TestCaseError> {
        let Some(held) = self.delegations.remove(&(at, file)) else { return Ok(()) };
        let client = self.clients[at].0;
        let Bed { state, step } = &mut self.bed;
        let result = state.return_delegation(client, &held.stateid, FileId(file), step);
        prop_assert_eq!(result, Ok(()));
        let again = state.return_delegation(client, &held.stateid, FileId(file), step);
        prop_assert_eq!(again, Err(Status::BadStateid));
        let until = self.now() + HOLD_OFF;
        let of_file = self.held_off.range_mut((file, 0)..(file, CLIENTS));
        of_file.for_each(|(_, at)| *at = until.min(*at));
        Ok(())
    }

    /// Notes that the delegations of a file for which `conflicts` holds are to be returned.
    pub(super) fn note_recall(
        &mut self,
        file: u64,
        within: Duration,
        conflicts: impl Fn(usize) -> bool,
    ) {
        let ends_at = self.now() + within.as_secs();
        let held = self.delegations.iter_mut();
        for ((at, _), held) in held.filter(|((at, of), _)| *of == file && conflicts(*at)) {
            held.ends_at = Some(held.ends_at.map_or(ends_at, |earlier| earlier.min(ends_at)));
            self.held_off.insert((file, *at), ends_at + HOLD_OFF);
        }
    }

    /// Notes what a LOCK by an open for writing recalls. Returns whether another client has a
    /// delegation still.
    pub(super) fn note_lock(&mut self, (at, file, _): Key) -> bool {
        let within = self.bed.state.limits.recall;
        self.note_recall(file, within, |holder| holder != at);
        self.delegations.keys().any(|(holder, of)| *of == file && *holder != at)
    }

    pub(super) fn recall(&mut self, file: u64, is_local: bool) -> Result<(), TestCaseError> {
        let Bed { state, step } = &mut self.bed;
        state.recall(FileId(file), is_local, step);
        let limits = state.limits;
        self.note_forgotten()?;
        let within = if is_local { limits.local_recall } else { limits.recall };
        self.note_recall(file, within, |_| true);
        Ok(())
    }

    /// Delegations that were not returned in time are revoked, and only those; they are forgotten
    /// after a while, in which their client can learn of it.
    pub(super) fn note_revoked(&mut self) {
        let now = self.now();
        let is_cut_off: Vec<_> = (0..CLIENTS).map(|at| self.is_expired(at)).collect();
        let left = self.revoked.iter_mut().filter(|(holder, ..)| is_cut_off[*holder]);
        left.for_each(|(.., since)| *since = now);
        let is_late = |held: &ModelDelegation| held.ends_at.is_some_and(|at| at <= now);
        let late: Vec<_> = self.delegations.iter().filter(|(_, held)| is_late(held)).collect();
        self.revoked.extend(late.iter().map(|((at, _), held)| (*at, held.stateid, now)));
        self.revoked.retain(|(.., at)| now - at <= REVOKED_FOR);
        self.delegations.retain(|_, held| !is_late(held));
        self.held_off.retain(|_, until| now < *until);
    }

    pub(super) fn free_delegations(&mut self, at: usize) -> Result<(), TestCaseError> {
        let client = self.clients[at].0;
        let Bed { state, step } = &mut self.bed;
        for (_, stateid, _) in self.revoked.iter().filter(|(holder, ..)| *holder == at) {
            prop_assert_eq!(state.test_stateid(client, stateid), Err(Status::DelegRevoked));
            prop_assert_eq!(state.free_stateid(client, stateid, step), Ok(()));
            prop_assert_eq!(state.test_stateid(client, stateid), Err(Status::BadStateid));
        }
        for (_, held) in self.delegations.iter().filter(|((holder, _), _)| *holder == at) {
            let freed = state.free_stateid(client, &held.stateid, step);
            prop_assert_eq!(freed, Err(Status::LocksHeld));
        }
        self.revoked.retain(|(holder, ..)| *holder != at);
        Ok(())
    }

    /// Uses the stateids of all delegations as one client.
    pub(super) fn read_by_delegations(&mut self, client: usize) -> Result<(), TestCaseError> {
        let id = self.clients[client].0;
        for ((at, of), held) in &self.delegations {
            let Bed { state, step } = &mut self.bed;
            let file = FileId(*of);
            let (read, write) = (ShareAccess::Read, ShareAccess::Write);
            let mut check = |access| state.check_io(id, &held.stateid, file, (access, 0), step);
            let is_own = *at == client;
            let (reads, writes) = if is_own {
                (Ok(IoState::Opened), Err(Status::Openmode))
            } else {
                (Err(Status::BadStateid), Err(Status::BadStateid))
            };
            prop_assert_eq!((check(read), check(write)), (reads, writes));
        }
        Ok(())
    }
}
