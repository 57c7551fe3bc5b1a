//! The state of files: their opens and locks, and the stateids that name them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use proto::nfs4::ClientId;
use rustc_hash::FxHashMap;

use super::file_locks::{Denied, FileLocks, Freed, Owner};
use super::lock_states::{LockState, LockStates};
use super::open_rooms::OpenRooms;
use super::ranges::{Range, Ranges};
use super::shares::{Modes, Share, ShareCounts};
use super::waiting::{Counted, Waiting};
use super::writers::Writers;
use super::{Effect, ExportId, FileId, LockId, Step};

/// All opens and locks. The numbers are of this server's making, so a hash without a key is enough.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: FxHashMap<FileId, FileState>,
    opens: FxHashMap<u64, Open>,
    lock_states: LockStates,
    clients: FxHashMap<ClientId, Holdings>,
    /// The opens and lock states of each client in each file.
    of_files: FxHashMap<(FileId, ClientId), FileCounts>,
    writers: Writers,
    ranges: usize,
    /// The names of the owners of opens and lock states.
    names_bytes: usize,
    /// Counts as opens, with names.
    pub(super) rooms: OpenRooms,
    /// Held by each request that waits, in any file.
    waiting: Arc<Waiting>,
    /// The last number given to a state.
    last: u64,
}

#[derive(Debug, Default)]
struct FileState {
    opens: HashMap<Owner, u64>,
    shares: ShareCounts,
    lock_owners: HashMap<Owner, LockId>,
    lock_states: usize,
    locks: FileLocks,
}

/// A file that an owner has open, however many times.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) owner: Owner,
    pub(super) file: FileId,
    pub(super) modes: Modes,
    /// The user who opened it, unless several did, or one without permission.
    pub(super) user: Option<u32>,
    pub(super) seqid: u32,
    /// The lock states below it, by their numbers.
    pub(super) lock_states: BTreeSet<u64>,
}

/// The fields of an open that a further OPEN changes, as they were before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenBefore {
    modes: Modes,
    user: Option<u32>,
    seqid: u32,
}

/// Opens and lock states of a file, of all clients or of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileCounts {
    pub(super) opens: usize,
    pub(super) lock_states: usize,
}

/// How many requests may wait for locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaiterBounds {
    pub(super) all: usize,
    /// Of the client.
    pub(super) client: usize,
    /// Of all clients, for the file.
    pub(super) file: usize,
}

/// The opens of one client, and counts of its other state.
#[derive(Debug, Default)]
struct Holdings {
    opens: BTreeSet<u64>,
    locks: usize,
    ranges: usize,
    names_bytes: usize,
    /// Held by each of its requests that waits.
    waiting: Arc<Waiting>,
}

/// A state that a stateid names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateKey {
    Open(u64),
    Lock(u64),
}

impl Files {
    pub(super) fn open(&self, number: u64) -> &Open {
        &self.opens[&number]
    }

    /// The lock states of all clients.
    pub(super) fn lock_states(&self) -> &LockStates {
        &self.lock_states
    }

    /// The state of a number, if there is one.
    pub(super) fn key(&self, number: u64) -> Option<StateKey> {
        if self.opens.contains_key(&number) {
            return Some(StateKey::Open(number));
        }
        self.lock_states.contains(number).then_some(StateKey::Lock(number))
    }

    /// The client, the file and the seqid of a state.
    pub(super) fn facts(&self, key: StateKey) -> (ClientId, FileId, u32) {
        match key {
            StateKey::Open(number) => {
                let open = self.open(number);
                (open.owner.client, open.file, open.seqid)
            }
            StateKey::Lock(number) => {
                let LockState { lock, seqid, .. } = self.lock_states.get(number);
                let (client, file) = self.lock_states.client_and_file(lock);
                (client, file, seqid)
            }
        }
    }

    /// The number of the open that a state belongs to.
    pub(super) fn open_below(&self, key: StateKey) -> u64 {
        match key {
            StateKey::Open(number) => number,
            StateKey::Lock(number) => self.lock_states.get(number).open,
        }
    }

    pub(super) fn has_state(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Whether a client has bytes locked in a file.
    pub(super) fn has_ranges(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|held| held.ranges > 0)
    }

    /// Opens of all clients, and those that there is room taken for.
    pub(super) fn opens(&self) -> usize {
        self.opens.len() + self.rooms.all().opens
    }

    /// The same of this client.
    pub(super) fn opens_of(&self, client: ClientId) -> usize {
        let opens = self.clients.get(&client).map_or(0, |held| held.opens.len());
        opens + self.rooms.of(client).opens
    }

    /// The files that a client has open.
    pub(super) fn opened_by(&self, client: ClientId) -> impl Iterator<Item = FileId> {
        let opens = self.clients.get(&client).into_iter().flat_map(|held| &held.opens);
        opens.map(|number| self.open(*number).file)
    }

    /// The clients of the opens of a file.
    pub(super) fn openers(&self, file: FileId) -> impl Iterator<Item = ClientId> {
        let opens = self.files.get(&file).into_iter().flat_map(|file| file.opens.keys());
        opens.map(|owner| owner.client)
    }

    /// The opens of a file in an export.
    pub(super) fn opens_in(&self, file: FileId, export: ExportId) -> impl Iterator<Item = u64> {
        let opens = self.files.get(&file).into_iter().flat_map(|file| &file.opens);
        opens.filter(move |(owner, _)| owner.export == export).map(|(_, number)| *number)
    }

    pub(super) fn file_counts(&self, file: FileId) -> FileCounts {
        let counts = |file: &FileState| FileCounts {
            opens: file.opens.len(),
            lock_states: file.lock_states,
        };
        self.files.get(&file).map(counts).unwrap_or_default()
    }

    /// The part of [`Self::file_counts`] that is this client's.
    pub(super) fn file_counts_of(&self, file: FileId, client: ClientId) -> FileCounts {
        self.of_files.get(&(file, client)).copied().unwrap_or_default()
    }

    /// Lock states of this client.
    pub(super) fn lock_states_of(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |held| held.locks)
    }

    /// Lock states and locked ranges of all clients.
    pub(super) fn locks_and_ranges(&self) -> usize {
        self.lock_states.len() + self.ranges
    }

    /// Lock states and locked ranges of this client.
    pub(super) fn locks_and_ranges_of(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |held| held.locks + held.ranges)
    }

    /// The names of the owners of all opens and lock states, in bytes.
    pub(super) fn names_bytes(&self) -> usize {
        self.names_bytes + self.rooms.all().names_bytes
    }

    /// The names of this client's owners, in bytes.
    pub(super) fn names_bytes_of(&self, client: ClientId) -> usize {
        let names_bytes = self.clients.get(&client).map_or(0, |held| held.names_bytes);
        names_bytes + self.rooms.of(client).names_bytes
    }

    /// Blocking requests of this client that wait, or whose notice is under way.
    pub(super) fn waiting_of(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |held| Waiting::count(&held.waiting))
    }

    /// The open of an owner.
    pub(super) fn open_of(&self, file: FileId, owner: &Owner) -> Option<u64> {
        self.files.get(&file)?.opens.get(owner).copied()
    }

    /// The locks of an owner.
    pub(super) fn lock_of(&self, file: FileId, owner: &Owner) -> Option<LockId> {
        self.files.get(&file)?.lock_owners.get(owner).copied()
    }

    /// The lock state of an owner below an open.
    pub(super) fn lock_state_of(&self, open: u64, owner: &Owner) -> Option<u64> {
        let open = self.open(open);
        let lock = self.lock_of(open.file, owner)?;
        open.lock_states.iter().copied().find(|number| self.lock_states.get(*number).lock == lock)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let has_states = !self.opens.is_empty() || !self.lock_states.is_empty();
        let has_room = self.rooms.all().opens > 0;
        let is_counted = self.ranges > 0 || self.names_bytes > 0 || has_room;
        let is_indexed = !self.clients.is_empty() || !self.of_files.is_empty();
        let is_written = !self.writers.is_empty();
        !has_states && self.files.is_empty() && !is_indexed && !is_written && !is_counted
    }

    /// Whether an open other than `own` conflicts with `share`.
    pub(super) fn is_denied(&self, file: FileId, share: Share, own: Option<u64>) -> bool {
        let own = own.map_or(Share::default(), |own| self.open(own).modes.share());
        self.files.get(&file).is_some_and(|file| file.shares.conflicts(share, own))
    }

    /// The clients whose opens other than `own` conflict with `share`.
    pub(super) fn deniers(
        &self,
        file: FileId,
        share: Share,
        own: Option<u64>,
    ) -> BTreeSet<ClientId> {
        let Some(file) = self.files.get(&file) else { return BTreeSet::new() };
        let others = file.opens.iter().filter(|(_, number)| Some(**number) != own);
        let denies = |number: &u64| self.open(*number).modes.share().conflicts(share);
        others.filter(|(_, number)| denies(number)).map(|(owner, _)| owner.client).collect()
    }

    /// Opens a file, or adds to the owner's open of it. Returns its number and whether it is new.
    pub(super) fn add_open(
        &mut self,
        file: FileId,
        owner: Owner,
        share: Share,
        user: Option<u32>,
    ) -> (u64, bool) {
        if let Some(number) = self.open_of(file, &owner) {
            let open = self.opens.get_mut(&number).expect("an open of a file is in the table");
            // An OPEN that adds no access takes no right from the user either.
            if user.is_some() || !open.modes.share().allows(share) {
                open.user = open.user.filter(|opener| user == Some(*opener));
            }
            let mut modes = open.modes;
            modes.insert(share);
            self.set_modes(number, modes);
            return (number, false);
        }
        let number = self.next_number();
        let mut modes = Modes::default();
        modes.insert(share);
        let state = self.files.entry(file).or_default();
        state.shares.add(share);
        self.writers.add((file, owner.client), share);
        state.opens.insert(owner.clone(), number);
        let held = self.clients.entry(owner.client).or_default();
        held.opens.insert(number);
        self.of_files.entry((file, owner.client)).or_default().opens += 1;
        held.names_bytes += owner.name.len();
        self.names_bytes += owner.name.len();
        let lock_states = BTreeSet::new();
        let open = Open { owner, file, modes, user, seqid: 1, lock_states };
        self.opens.insert(number, open);
        (number, true)
    }

    /// Replaces the modes of an open, which counts as a change of it.
    pub(super) fn set_modes(&mut self, number: u64, modes: Modes) {
        let open = self.opens.get_mut(&number).expect("the caller has looked it up");
        let shares = &mut self.files.get_mut(&open.file).expect("an open file has state").shares;
        let of = (open.file, open.owner.client);
        shares.remove(open.modes.share());
        self.writers.remove(of, open.modes.share());
        shares.add(modes.share());
        self.writers.add(of, modes.share());
        open.modes = modes;
        open.seqid = next_seqid(open.seqid);
    }

    /// The present values of an open, for [`Self::restore_open`].
    pub(super) fn before_open(&self, number: u64) -> OpenBefore {
        let Open { modes, user, seqid, .. } = *self.open(number);
        OpenBefore { modes, user, seqid }
    }

    /// Makes an open what it was before an OPEN that has failed.
    pub(super) fn restore_open(&mut self, number: u64, before: OpenBefore) {
        self.set_modes(number, before.modes);
        let open = self.opens.get_mut(&number).expect("its modes were set");
        (open.user, open.seqid) = (before.user, before.seqid);
    }

    /// The numbers of an open and of the lock states that belong to it.
    pub(super) fn states_below(&self, number: u64) -> Vec<u64> {
        std::iter::once(number).chain(self.open(number).lock_states.iter().copied()).collect()
    }

    /// Closes an open, with the locks that belong to it.
    pub(super) fn remove_open(&mut self, number: u64, step: &mut Step) {
        let file = self.open(number).file;
        let freed = self.end_open(number, step);
        self.wake(file, &freed, step);
    }

    /// Closes an open; the caller wakes those that wait for what that frees.
    fn end_open(&mut self, number: u64, step: &mut Step) -> Freed {
        let open = self.opens.get_mut(&number).expect("known");
        let lock_states = std::mem::take(&mut open.lock_states);
        let mut freed = Freed::default();
        let has_waiters = self.locks(self.open(number).file).is_some_and(FileLocks::has_waiters);
        for state in lock_states {
            let ended = self.end_lock_state(state, step);
            if has_waiters {
                freed.add(&ended);
            }
        }
        let open = self.opens.remove(&number).expect("known");
        let Owner { client, export, .. } = open.owner;
        let state = self.files.get_mut(&open.file).expect("an open file has state");
        state.shares.remove(open.modes.share());
        self.writers.remove((open.file, client), open.modes.share());
        state.opens.remove(&open.owner);
        let of_file = self.of_files.get_mut(&(open.file, client)).expect("it holds an open");
        of_file.opens -= 1;
        let is_its = |owner: &Owner| (owner.client, owner.export) == (client, export);
        let has_other = || of_file.opens > 0 && state.opens.keys().any(is_its);
        if state.locks.has_waiters() && !has_other() {
            freed.has_reservation_ended = state.locks.stop_waiting_in(client, export);
        }
        let held = self.clients.get_mut(&open.owner.client).expect("it holds an open");
        held.opens.remove(&number);
        held.names_bytes -= open.owner.name.len();
        self.names_bytes -= open.owner.name.len();
        step.effects.push(Effect::Unpin { file: open.file, export: open.owner.export });
        self.tidy(open.file, open.owner.client);
        freed
    }

    /// Adds the lock state of an owner below an open.
    pub(super) fn add_lock_state(&mut self, open: u64, owner: Owner) -> u64 {
        let (file, number) = (self.open(open).file, self.next_number());
        let new = LockId(self.next_number());
        self.opens.get_mut(&open).expect("known").lock_states.insert(number);
        let state = self.files.get_mut(&file).expect("an open file has state");
        let lock = *state.lock_owners.entry(owner.clone()).or_insert(new);
        state.lock_states += 1;
        let held = self.clients.get_mut(&owner.client).expect("it holds an open");
        held.locks += 1;
        self.of_files.entry((file, owner.client)).or_default().lock_states += 1;
        held.names_bytes += owner.name.len();
        self.names_bytes += owner.name.len();
        self.lock_states.add(number, LockState { lock, open, seqid: 0 }, owner, file);
        number
    }

    /// Whether a lock state cannot end by itself now: its owner has others, and the kernel is asked
    /// for a lock that it has a part in. A denied one leaves them as they were before.
    pub(super) fn is_tied(&self, number: u64) -> bool {
        let holder = self.lock_states.holder(number);
        let (_, file) = self.lock_states.client_and_file(holder.owner);
        self.lock_states.count_of(holder.owner) > 1 && self.files[&file].locks.is_asked_for(holder)
    }

    /// Removes a lock state and unlocks what was locked through it.
    pub(super) fn remove_lock_state(&mut self, number: u64, step: &mut Step) {
        let (_, file) = self.lock_states.client_and_file(self.lock_states.get(number).lock);
        let freed = self.end_lock_state(number, step);
        self.wake(file, &freed, step);
    }

    /// Removes a lock state; the caller wakes those that wait for what that frees.
    fn end_lock_state(&mut self, number: u64, step: &mut Step) -> Freed {
        let LockState { lock, open, .. } = self.lock_states.get(number);
        let holder = self.lock_states.holder(number);
        let is_last = self.lock_states.count_of(lock) == 1;
        let freed = self.change_locks(lock, |locks| locks.end(holder, is_last));
        if let Some(open) = self.opens.get_mut(&open) {
            open.lock_states.remove(&number);
        }
        let (client, file) = self.lock_states.client_and_file(lock);
        let owner = self.lock_states.owner(lock);
        let name_bytes = owner.name.len();
        let state = self.files.get_mut(&file).expect("a locked file has state");
        state.lock_states -= 1;
        if is_last {
            state.lock_owners.remove(owner);
            step.effects.push(Effect::Release { file, lock });
        } else if let Some(range) = freed.ranges.span() {
            step.effects.push(Effect::Unlock { file, lock, range });
        }
        let held = self.clients.get_mut(&client).expect("it holds a lock");
        held.locks -= 1;
        self.of_files.get_mut(&(file, client)).expect("it holds a lock").lock_states -= 1;
        held.names_bytes -= name_bytes;
        self.names_bytes -= name_bytes;
        self.lock_states.remove(number);
        self.tidy(file, client);
        freed
    }

    /// The locks of an owner within a range: none, if it has no lock state any more.
    pub(super) fn held(&self, lock: LockId, range: Range) -> Ranges {
        if !self.lock_states.has(lock) {
            return Ranges::default();
        }
        let (_, file) = self.lock_states.client_and_file(lock);
        self.files[&file].locks.within(lock, range)
    }

    /// The ranges that were locked through a lock state.
    pub(super) fn ranges(&self, number: u64) -> Option<&Ranges> {
        let holder = self.lock_states.holder(number);
        let (_, file) = self.lock_states.client_and_file(holder.owner);
        self.files[&file].locks.of(holder)
    }

    /// Changes the locks of an owner.
    pub(super) fn change_locks<T>(
        &mut self,
        id: LockId,
        change: impl FnOnce(&mut FileLocks) -> T,
    ) -> T {
        let (client, file) = self.lock_states.client_and_file(id);
        let locks = &mut self.files.get_mut(&file).expect("a locked file has state").locks;
        let before = locks.count_of(id);
        let changed = change(locks);
        let grown = locks.count_of(id).cast_signed() - before.cast_signed();
        let held = self.clients.get_mut(&client).expect("it holds a lock");
        let add = |count: usize| count.checked_add_signed(grown).expect("ranges are counted");
        (held.ranges, self.ranges) = (add(held.ranges), add(self.ranges));
        changed
    }

    /// Counts a change of a lock state; returns its stateid's new seqid.
    pub(super) fn advance_lock_state(&mut self, number: u64) -> u32 {
        let seqid = next_seqid(self.lock_states.get(number).seqid);
        self.lock_states.set_seqid(number, seqid);
        seqid
    }

    /// The locks and waiting requests of a file.
    pub(super) fn locks(&self, file: FileId) -> Option<&FileLocks> {
        Some(&self.files.get(&file)?.locks)
    }

    /// Whether the kernel is still asked for a lock of the owner in the range.
    pub(super) fn is_unconfirmed(&self, file: FileId, owner: &Owner, range: Range) -> bool {
        let lock = self.lock_of(file, owner);
        lock.zip(self.locks(file)).is_some_and(|(lock, locks)| locks.is_unconfirmed(lock, range))
    }

    /// Notes a denied request for a file, unless as many as `bounds` allow wait already. Notifies
    /// those that have waited for it, if it was notified itself.
    pub(super) fn wait(
        &mut self,
        file: FileId,
        denied: Denied,
        bounds: WaiterBounds,
        step: &mut Step,
    ) {
        let Some(held) = self.clients.get(&denied.owner.client) else { return };
        let Some(state) = self.files.get_mut(&file) else { return };
        let (all, own) = (&self.waiting, &held.waiting);
        let may_wait = Waiting::count(all) < bounds.all && Waiting::count(own) < bounds.client;
        let counted = may_wait.then(|| Counted::new(all, own));
        if state.locks.wait(denied, (counted, bounds.file), step.now) {
            self.wake(file, &Freed::turn(), step);
        }
    }

    /// Blocking requests that wait, or whose notice is under way.
    pub(super) fn waiting(&self) -> usize {
        Waiting::count(&self.waiting)
    }

    /// Forgets the requests that their clients have not repeated, and notifies those that have
    /// waited for others whose clients did not come.
    pub(super) fn expire_waiters(&mut self, step: &mut Step) {
        if self.waiting() == 0 {
            return;
        }
        let files = self.files.iter_mut();
        let ended =
            files.filter_map(|(id, file)| file.locks.end_reservations(step.now).then_some(*id));
        for file in ended.collect::<Vec<_>>() {
            self.wake(file, &Freed::turn(), step);
        }
    }

    /// Notifies the requests that can be granted now because of what is freed.
    pub(super) fn wake(&mut self, file: FileId, freed: &Freed, step: &mut Step) {
        let Some(state) = self.files.get_mut(&file) else { return };
        let FileState { lock_owners, locks, .. } = state;
        let woken = locks.wake(freed, step.now, |owner| lock_owners.get(owner).copied());
        let notify = |(client, notice)| Effect::NotifyLock { client, notice };
        step.effects.extend(woken.into_iter().map(notify));
    }

    /// Removes all that a client holds.
    pub(super) fn remove_client(&mut self, client: ClientId, step: &mut Step) {
        let Some(held) = self.clients.get(&client) else { return };
        let opens: Vec<_> = held.opens.iter().copied().collect();
        let (mut files, begun) = (BTreeMap::<_, Freed>::new(), step.effects.len());
        for number in opens {
            let file = self.open(number).file;
            let freed = self.end_open(number, step);
            files.entry(file).or_default().add(&freed);
        }
        assert!(!self.clients.contains_key(&client), "all its state hangs on its opens");
        // The last lock state of each owner releases what the others held too.
        let is_unlock = |effect: &mut Effect| matches!(effect, Effect::Unlock { .. });
        step.effects.extract_if(begun.., is_unlock).for_each(drop);
        // Each file once, when all is freed.
        files.into_iter().for_each(|(file, freed)| self.wake(file, &freed, step));
    }

    /// Forgets a file and a client that hold nothing any more.
    fn tidy(&mut self, file: FileId, client: ClientId) {
        let is_unused = |state: &FileState| state.opens.is_empty() && state.lock_owners.is_empty();
        if self.files.get(&file).is_some_and(is_unused) {
            self.files.remove(&file);
        }
        if self.file_counts_of(file, client) == FileCounts::default() {
            self.of_files.remove(&(file, client));
        }
        if self.clients.get(&client).is_some_and(|held| held.opens.is_empty()) {
            self.clients.remove(&client);
        }
    }

    /// The clients that have a file open for writing.
    pub(super) fn writers(&self, file: FileId) -> impl Iterator<Item = ClientId> {
        self.writers.of(file)
    }

    /// Whether a client has a file open for writing by a user. Looks at all opens of the file.
    pub(super) fn is_writer(&self, client: ClientId, file: FileId, user: u32) -> bool {
        if !self.writers.has((file, client)) {
            return false;
        }
        let Some(file) = self.files.get(&file) else { return false };
        let own = file.opens.iter().filter(|(owner, _)| owner.client == client);
        let mut opens = own.map(|(_, number)| self.open(*number));
        opens.any(|open| open.user == Some(user) && open.modes.share().writes())
    }

    /// A number for a state, which no other has.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// The seqid after `seqid`; zero is passed over, because it means the latest (RFC 8881 §8.2.2).
fn next_seqid(seqid: u32) -> u32 {
    seqid.wrapping_add(1).max(1)
}
