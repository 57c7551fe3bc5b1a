//! OPEN, OPEN_DOWNGRADE, CLOSE, and the check of stateids by operations on data.

use std::time::Duration;

use proto::nfs4::{ClientId, ShareAccess, ShareDeny, Stateid, Status};

use super::file_locks::Owner;
use super::files::{Files, OpenBefore, StateKey};
use super::open_rooms::RoomSize;
use super::registry::{State, Table};
use super::shares::Share;
use super::{Bounded, ExportId, FileId, Step};

/// OPEN's arguments on an existing file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile<'a> {
    /// Of the session: the one in `open_owner4` is ignored (RFC 8881 §18.16.3).
    pub(crate) client: ClientId,
    pub(crate) owner: &'a [u8],
    /// Pinned by the caller, until the effect [`Unpin`](super::Effect::Unpin) if the open is new.
    pub(crate) file: FileId,
    /// The export that it is opened in. An owner has an open for each.
    pub(crate) export: ExportId,
    pub(crate) access: ShareAccess,
    pub(crate) deny: ShareDeny,
    /// It is to cut the file, which no other may deny then, whatever the access is.
    pub(crate) cuts: bool,
    /// `CLAIM_PREVIOUS`.
    pub(crate) is_reclaim: bool,
    /// The user, if permission was checked.
    pub(crate) user: Option<u32>,
}

/// An open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) stateid: Stateid,
    /// The owner did not have the file open.
    pub(crate) is_new: bool,
    /// The open before it, for [`State::undo_open`]; `None` for a new one.
    before: Option<OpenBefore>,
}

/// Why a file is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenFailure {
    /// Delegations conflict with it, and are recalled: `NFS4ERR_DELAY` if they are not returned
    /// soon.
    Delegated,
    Status(Status),
}

impl From<Status> for OpenFailure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<OpenFailure> for Status {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Delegated => Self::Delay,
            OpenFailure::Status(status) => status,
        }
    }
}

/// The right of an operation on data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoState {
    /// The file was opened for it by this user, and permission was decided then.
    Opened,
    /// Permission is still to be checked: the stateid is special, that of another user's open, or
    /// that of an open for writing alone in a READ.
    Unchecked,
}

/// Room for one open of a client, of a file that is still to be made. It is given back when this is
/// dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct OpenRoom<'a> {
    state: &'a State,
    client: ClientId,
    size: RoomSize,
}

impl State {
    /// Checks whether a client may open or lock now. To be called before an OPEN creates or opens
    /// anything.
    ///
    /// # Errors
    /// For a reclaim, `NoGrace` without a grace period or after RECLAIM_COMPLETE, and `ReclaimBad`
    /// for a client without a record. Otherwise `Grace` in the grace period and before
    /// RECLAIM_COMPLETE. `Badsession` if the client was forgotten meanwhile.
    pub(crate) fn check_claim(&self, client: ClientId, is_reclaim: bool) -> Result<(), Status> {
        self.lock().check_claim(client, is_reclaim)
    }

    /// Takes room for an open by an owner with a name of so many bytes.
    ///
    /// # Errors
    /// `Delay` for too many opens; `Badsession` if the client was forgotten meanwhile.
    pub(crate) fn take_open_room(
        &self,
        client: ClientId,
        name_bytes: usize,
        step: &mut Step,
    ) -> Result<OpenRoom<'_>, Status> {
        let mut table = self.lock();
        table.check_known(client)?;
        let made = self.make_room_for_open(&mut table, (client, name_bytes), None, step);
        table.settle_records(step);
        made?;
        let size = RoomSize { opens: 1, names_bytes: name_bytes };
        table.files.rooms.take(client, size);
        Ok(OpenRoom { state: self, client, size })
    }

    /// OPEN of a file, RFC 8881 §18.16. An owner that has it open adds to its share.
    ///
    /// # Errors
    /// As [`Self::check_claim`]; `ShareDenied`, or `ReclaimConflict` for a reclaim; `Delay` for too
    /// many opens; `Delegated` until delegations are returned that it conflicts with.
    pub(crate) fn open(&self, call: &OpenFile<'_>, step: &mut Step) -> Result<Opened, OpenFailure> {
        self.open_in(&mut self.lock(), call, step)
    }

    /// As [`Self::open`], in the table that the caller has locked.
    pub(super) fn open_in(
        &self,
        table: &mut Table,
        call: &OpenFile<'_>,
        step: &mut Step,
    ) -> Result<Opened, OpenFailure> {
        table.check_claim(call.client, call.is_reclaim)?;
        let share = Share::new(call.access, call.deny);
        let OpenFile { client, export, .. } = *call;
        let owner = Owner { client, export, name: call.owner.into() };
        let own = table.files.open_of(call.file, &owner);
        let used = if call.cuts { share.with_writing() } else { share };
        if !self.is_admitted(table, (call.client, call.file), used, own, step) {
            let denied =
                if call.is_reclaim { Status::ReclaimConflict } else { Status::ShareDenied };
            return Err(denied.into());
        }
        // A client's own delegation does not cover its writing: a local program would not see it.
        let conflicts =
            |holder: ClientId| share.writes() || (share.denies_reading() && holder != call.client);
        let due = self.due(step);
        if self.recall_where(table, call.file, due, conflicts, step) {
            return Err(OpenFailure::Delegated);
        }
        if own.is_none() {
            let owner = (client, call.owner.len());
            self.make_room_for_open(table, owner, Some(call.file), step)?;
        }
        let before = own.map(|number| table.files.before_open(number));
        let (number, is_new) = table.files.add_open(call.file, owner, share, call.user);
        let stateid = self.stateid(number, table.files.open(number).seqid);
        table.settle_records(step);
        Ok(Opened { stateid, is_new, before })
    }

    /// Takes back an OPEN that has failed after all, RFC 8881 §8.2.2: neither the share nor the
    /// seqid changes. Does nothing when another call has changed or ended the open since, or has
    /// locked through it: its client has guessed the stateid of a new open, and may close it.
    pub(crate) fn undo_open(
        &self,
        client: ClientId,
        opened: &Opened,
        file: FileId,
        step: &mut Step,
    ) {
        let mut table = self.lock();
        let Ok(number) = self.open_number(&table, client, &opened.stateid, file) else { return };
        match opened.before {
            Some(before) => table.files.restore_open(number, before),
            None if table.files.open(number).lock_states.is_empty() => {
                table.files.remove_open(number, step);
            }
            None => {}
        }
    }

    /// Whether no other open of the file denies `share` to a client, after others that have expired
    /// have made way.
    fn is_admitted(
        &self,
        table: &mut Table,
        (client, file): (ClientId, FileId),
        share: Share,
        own: Option<u64>,
        step: &mut Step,
    ) -> bool {
        let is_denied = |table: &Table| table.files.is_denied(file, share, own);
        if is_denied(table) {
            let mut deniers = table.files.deniers(file, share, own);
            deniers.retain(|denier| *denier != client);
            self.forget_expired(table, deniers, step);
        }
        !is_denied(table)
    }

    pub(super) fn make_room_for_open(
        &self,
        table: &mut Table,
        (client, name_bytes): (ClientId, usize),
        file: Option<FileId>,
        step: &mut Step,
    ) -> Result<(), Status> {
        let is_peer_full_in = |table: &Table, file| {
            let all = table.files.file_counts(file).opens;
            let own = |files: &Files, client| files.file_counts_of(file, client).opens;
            table.is_peer_full(client, all, self.limits.peer_file_opens_max, own)
        };
        let is_peer_full = |table: &Table| {
            let all = table.files.opens();
            table.is_peer_full(client, all, self.limits.peer_opens_max, Files::opens_of)
                || file.is_some_and(|file| is_peer_full_in(table, file))
                || self.is_peer_full_of_names(table, client, name_bytes)
        };
        let is_full = |table: &Table| {
            let all = table.files.opens();
            let of_file = file.map_or(0, |file| table.files.file_counts(file).opens);
            all >= self.limits.opens_max
                || of_file >= self.limits.file_opens_max
                || self.is_full_of_names(table, name_bytes)
        };
        self.make_room(table, client, Bounded::Opens, (is_peer_full, is_full), step)
    }

    /// Whether the names of owners leave no room for another.
    pub(super) fn is_full_of_names(&self, table: &Table, name_bytes: usize) -> bool {
        table.files.names_bytes() + name_bytes > self.limits.names_bytes_max
    }

    /// As [`Self::is_full_of_names`], for those of a client's address.
    pub(super) fn is_peer_full_of_names(
        &self,
        table: &Table,
        client: ClientId,
        name_bytes: usize,
    ) -> bool {
        let peer_max = (self.limits.peer_names_bytes_max + 1).saturating_sub(name_bytes);
        table.is_peer_full(client, table.files.names_bytes(), peer_max, Files::names_bytes_of)
    }

    /// Whether a client whose lease has not expired has a file open for writing.
    pub(crate) fn has_writer(&self, file: FileId, now: Duration) -> bool {
        self.has_writer_in(&self.lock(), file, now)
    }

    /// As [`Self::has_writer`], in the table that the caller has locked.
    pub(super) fn has_writer_in(&self, table: &Table, file: FileId, now: Duration) -> bool {
        let is_expired = |client| {
            let lease = table.clients.get(client).map(|client| &client.lease);
            lease.is_none_or(|lease| lease.expired_for(now, self.limits.lease).is_some())
        };
        table.files.writers(file).any(|client| !is_expired(client))
    }

    /// Whether this client has a file open for writing by this user: the right of an operation that
    /// has no stateid to [check](Self::check_io).
    pub(crate) fn is_writer(&self, client: ClientId, file: FileId, user: u32) -> bool {
        self.lock().files.is_writer(client, file, user)
    }

    /// Whether this client has a file open in an export by this user. Looks at all its opens.
    pub(crate) fn is_opener(
        &self,
        client: ClientId,
        (file, export): (FileId, ExportId),
        user: u32,
    ) -> bool {
        let table = self.lock();
        let mut opens = table.files.opens_in(file, export).map(|number| table.files.open(number));
        opens.any(|open| open.owner.client == client && open.user == Some(user))
    }

    /// OPEN_DOWNGRADE, RFC 8881 §18.18.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`; `Inval` unless the share is a union of those of earlier OPENs.
    pub(crate) fn open_downgrade(
        &self,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
        access: ShareAccess,
        deny: ShareDeny,
    ) -> Result<Stateid, Status> {
        let mut table = self.lock();
        let number = self.open_number(&table, client, stateid, file)?;
        let modes = table.files.open(number).modes.downgraded(Share::new(access, deny));
        table.files.set_modes(number, modes.ok_or(Status::Inval)?);
        Ok(self.stateid(number, table.files.open(number).seqid))
    }

    /// CLOSE, RFC 8881 §18.2. What was locked through the open is released. The stateid that it
    /// returns is not valid for anything.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`; `Delay` while the kernel is asked for a lock through this open,
    /// or for one that has taken ranges from it, of an owner that locks through others too.
    pub(crate) fn close(
        &self,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
        step: &mut Step,
    ) -> Result<Stateid, Status> {
        let mut table = self.lock();
        let number = self.open_number(&table, client, stateid, file)?;
        if table.files.open(number).lock_states.iter().any(|state| table.files.is_tied(*state)) {
            return Err(Status::Delay);
        }
        table.files.remove_open(number, step);
        Ok(Stateid::INVALID)
    }

    /// Revokes the opens of files in exports that are not served any more, with the locks below
    /// them, and their delegations. Their clients find the filehandles stale, and SEQUENCE reports
    /// it.
    pub(crate) fn release_files(&self, files: &[(FileId, ExportId)], step: &mut Step) {
        let mut table = self.lock();
        let opens = files.iter().flat_map(|(file, export)| table.files.opens_in(*file, *export));
        for number in opens.collect::<Vec<_>>() {
            let client = table.files.open(number).owner.client;
            let states = table.files.states_below(number);
            table.files.remove_open(number, step);
            states.into_iter().for_each(|state| table.revoked.add(client, state, step.now));
            table.revise_client(client);
        }
        for (file, export) in files {
            for (client, id) in table.delegations.remove_file(*file, *export, step) {
                self.forget_recall(&table, client, id);
                table.revoked.add(client, id.0, step.now);
                table.revise_client(client);
            }
        }
        table.settle_records(step);
    }

    pub(super) fn open_number(
        &self,
        table: &Table,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
    ) -> Result<u64, Status> {
        match self.key_of(table, client, stateid, file)? {
            StateKey::Open(number) => Ok(number),
            StateKey::Lock(_) => Err(Status::BadStateid),
        }
    }

    /// Checks the stateid of READ, WRITE, SETATTR of the size and their like, RFC 8881 §8.2.5 and
    /// §9.1.2, by a user. The current stateid has to be replaced before.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`, `DelegRevoked`; `Openmode`; for special stateids `Grace`, and
    /// `Locked` when an open denies the access, also to a READ through an open for writing alone.
    pub(crate) fn check_io(
        &self,
        client: ClientId,
        stateid: &Stateid,
        file: FileId,
        (access, user): (ShareAccess, u32),
        step: &mut Step,
    ) -> Result<IoState, Status> {
        let mut table = self.lock();
        let wanted = Share::of_access(access);
        if *stateid == Stateid::READ_BYPASS && !access.writes() {
            return Ok(IoState::Unchecked);
        }
        if *stateid == Stateid::ANONYMOUS || *stateid == Stateid::READ_BYPASS {
            self.check_anonymous(&mut table, file, wanted, step)?;
            return Ok(IoState::Unchecked);
        }
        let writes = access.writes();
        if let Some(found) = self.delegated_user(&table, (client, file), stateid, writes) {
            let is_opener = found? == user;
            return Ok(if is_opener { IoState::Opened } else { IoState::Unchecked });
        }
        let key = self.key_of(&table, client, stateid, file)?;
        let number = table.files.open_below(key);
        let open = table.files.open(number);
        if open.modes.share().allows(wanted) {
            let is_opener = open.user == Some(user);
            return Ok(if is_opener { IoState::Opened } else { IoState::Unchecked });
        }
        if access.writes() {
            return Err(Status::Openmode);
        }
        // A client reads around what it writes, unless another open denies it, RFC 8881 §9.1.2.
        if !self.is_admitted(&mut table, (client, file), wanted, Some(number), step) {
            return Err(Status::Locked);
        }
        table.settle_records(step);
        Ok(IoState::Unchecked)
    }

    fn check_anonymous(
        &self,
        table: &mut Table,
        file: FileId,
        wanted: Share,
        step: &mut Step,
    ) -> Result<(), Status> {
        if table.grace.is_active() {
            return Err(Status::Grace);
        }
        if table.files.is_denied(file, wanted, None) {
            let deniers = table.files.deniers(file, wanted, None);
            self.forget_expired(table, deniers, step);
        }
        if table.files.is_denied(file, wanted, None) {
            return Err(Status::Locked);
        }
        table.settle_records(step);
        Ok(())
    }
}

impl Table {
    /// # Errors
    /// See [`State::check_claim`].
    pub(super) fn check_claim(&self, id: ClientId, is_reclaim: bool) -> Result<(), Status> {
        let client = self.clients.get(id).ok_or(Status::Badsession)?;
        let in_grace = self.grace.is_active();
        match (is_reclaim, in_grace, client.has_reclaimed) {
            (true, false, _) | (true, true, true) => Err(Status::NoGrace),
            (true, true, false) => {
                let may_reclaim = self.grace.may_reclaim(&client.owner, client.principal);
                if may_reclaim { Ok(()) } else { Err(Status::ReclaimBad) }
            }
            (false, true, _) | (false, false, false) => Err(Status::Grace),
            (false, false, true) => Ok(()),
        }
    }

    /// # Errors
    /// `Badsession` for a client that was forgotten.
    pub(super) fn check_known(&self, id: ClientId) -> Result<(), Status> {
        self.clients.get(id).map(drop).ok_or(Status::Badsession)
    }
}

impl OpenRoom<'_> {
    /// OPEN of the file that was made.
    ///
    /// # Errors
    /// As [`State::open`].
    pub(crate) fn open(self, call: &OpenFile<'_>, step: &mut Step) -> Result<Opened, OpenFailure> {
        let Self { state, client, size } = self;
        std::mem::forget(self);
        // Under one lock, so that no other takes the room meanwhile.
        let mut table = state.lock();
        table.files.rooms.give_back(client, size);
        state.open_in(&mut table, call, step)
    }
}

impl Drop for OpenRoom<'_> {
    fn drop(&mut self) {
        self.state.lock().files.rooms.give_back(self.client, self.size);
    }
}
