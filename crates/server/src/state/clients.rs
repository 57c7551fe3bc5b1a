//! Clients: each owner has a confirmed incarnation, an unconfirmed one, or both, RFC 8881 §18.35.4.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::nfs4::{ClientId, SequenceId, SessionId, Status, Verifier};

use super::lease::Lease;
use super::replies::ReplyBudget;
use super::{ClientRecord, CreatedSession, Principal};

/// EXCHANGE_ID's arguments that choose its case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeId<'a> {
    /// `co_ownerid`.
    pub(crate) owner: &'a [u8],
    pub(crate) verifier: Verifier,
    /// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`.
    pub(crate) is_update: bool,
    pub(crate) principal: Principal,
    /// The address that the call came from.
    pub(crate) peer: IpAddr,
}

/// EXCHANGE_ID's results that depend on its case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangedId {
    pub(crate) client: ClientId,
    /// The number of the next CREATE_SESSION.
    pub(crate) sequence: SequenceId,
    /// `EXCHGID4_FLAG_CONFIRMED_R`.
    pub(crate) is_confirmed: bool,
}

/// The effect of an EXCHANGE_ID on the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// A retry, trunking, or an update: the confirmed client.
    Known(ClientId),
    /// A new unconfirmed client, after these are forgotten.
    New { replaces: [Option<ClientId>; 2] },
}

/// An incarnation of a client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) owner: Arc<[u8]>,
    pub(super) verifier: Verifier,
    pub(super) principal: Principal,
    /// The address that it introduced itself from, which its state is counted for.
    pub(super) peer: IpAddr,
    pub(super) is_confirmed: bool,
    pub(super) lease: Arc<Lease>,
    pub(super) sessions: Vec<SessionId>,
    pub(super) has_reclaimed: bool,
    /// Whether its record is on the disk, or about to be.
    pub(super) is_recorded: bool,
    /// The verifier of the incarnation that waits for its calls, and since when.
    pub(super) awaited_by: Option<(Verifier, Duration)>,
    slot: CreateSessionSlot,
}

/// CREATE_SESSION's own slot, RFC 8881 §18.36.4.
#[derive(Debug)]
struct CreateSessionSlot {
    /// The number of the next call.
    next: SequenceId,
    /// The result of the last one.
    last: Option<Result<CreatedSession, Status>>,
}

impl Client {
    /// The record that lets it reclaim after a restart.
    pub(super) fn record(&self) -> ClientRecord {
        ClientRecord { owner: Arc::clone(&self.owner), principal: self.principal }
    }

    /// Checks the number of a CREATE_SESSION. Returns the result to replay.
    ///
    /// # Errors
    /// `SeqMisordered`.
    pub(super) fn replay(
        &self,
        sequence: SequenceId,
    ) -> Result<Option<Result<CreatedSession, Status>>, Status> {
        match self.slot.last {
            _ if sequence == self.slot.next => Ok(None),
            Some(last) if sequence.next() == self.slot.next => Ok(Some(last)),
            _ => Err(Status::SeqMisordered),
        }
    }

    /// Keeps the result of a CREATE_SESSION for replays.
    pub(super) fn keep(&mut self, result: Result<CreatedSession, Status>) {
        self.slot = CreateSessionSlot { next: self.slot.next.next(), last: Some(result) };
    }
}

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    epoch: u32,
    last: u32,
    by_id: HashMap<ClientId, Client>,
    by_owner: HashMap<Arc<[u8]>, Incarnations>,
    by_peer: HashMap<IpAddr, PeerClients>,
    /// In the order of their introduction.
    unconfirmed: BTreeSet<ClientId>,
    /// Of all clients.
    replies: Arc<ReplyBudget>,
}

/// The clients of an address: at least one.
#[derive(Debug)]
struct PeerClients {
    ids: BTreeSet<ClientId>,
    /// In the order of their introduction.
    unconfirmed: BTreeSet<ClientId>,
    /// Sessions of all these clients.
    sessions: usize,
    replies: Arc<ReplyBudget>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Incarnations {
    confirmed: Option<ClientId>,
    unconfirmed: Option<ClientId>,
}

impl Clients {
    /// Clients with ids of this epoch.
    pub(super) fn new(epoch: u32, replies: Arc<ReplyBudget>) -> Self {
        let (by_id, by_owner, by_peer) = (HashMap::new(), HashMap::new(), HashMap::new());
        let unconfirmed = BTreeSet::new();
        Self { epoch, last: 0, by_id, by_owner, by_peer, unconfirmed, replies }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_indexed = !self.by_owner.is_empty() || !self.by_peer.is_empty();
        self.by_id.is_empty() && !is_indexed && self.unconfirmed.is_empty()
    }

    pub(super) fn get(&self, id: ClientId) -> Option<&Client> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.by_id.iter().map(|(id, client)| (*id, client))
    }

    /// The clients of an address.
    pub(super) fn of_peer(&self, peer: IpAddr) -> impl Iterator<Item = ClientId> {
        self.by_peer.get(&peer).into_iter().flat_map(|peer| peer.ids.iter().copied())
    }

    /// The clients of the address that this one has.
    pub(super) fn of_same_peer(&self, id: ClientId) -> impl Iterator<Item = ClientId> {
        self.get(id).into_iter().flat_map(|client| self.of_peer(client.peer))
    }

    /// How many clients an address has.
    pub(super) fn count_of_peer(&self, peer: IpAddr) -> usize {
        self.by_peer.get(&peer).map_or(0, |of_peer| of_peer.ids.len())
    }

    /// Whether an owner has a confirmed incarnation.
    pub(super) fn has_confirmed(&self, owner: &[u8]) -> bool {
        self.by_owner.get(owner).is_some_and(|found| found.confirmed.is_some())
    }

    /// Whether it has one at an address.
    pub(super) fn is_confirmed_at(&self, owner: &[u8], peer: IpAddr) -> bool {
        let confirmed = self.by_owner.get(owner).and_then(|found| found.confirmed);
        confirmed.is_some_and(|id| self.by_id[&id].peer == peer)
    }

    /// The sessions of an address.
    pub(super) fn sessions_of_peer(&self, peer: IpAddr) -> usize {
        self.by_peer.get(&peer).map_or(0, |of_peer| of_peer.sessions)
    }

    /// The client that waits longest to be confirmed, and has no session therefore.
    pub(super) fn oldest_unconfirmed(&self) -> Option<ClientId> {
        self.unconfirmed.first().copied()
    }

    /// The same among the clients of an address, but for those that replace one unless they count
    /// too.
    pub(super) fn oldest_unconfirmed_of(
        &self,
        peer: IpAddr,
        or_replaces: bool,
    ) -> Option<ClientId> {
        let mut unconfirmed = self.by_peer.get(&peer)?.unconfirmed.iter().copied();
        unconfirmed.find(|id| or_replaces || self.predecessor(*id).is_none())
    }

    /// Adds a session to a client.
    pub(super) fn add_session(&mut self, id: ClientId, session: SessionId) {
        let client = self.by_id.get_mut(&id).expect("the caller has looked it up");
        client.sessions.push(session);
        self.by_peer.get_mut(&client.peer).expect("it has this client").sessions += 1;
    }

    /// Removes a session from a client, if it has it.
    pub(super) fn remove_session(&mut self, id: ClientId, session: SessionId) {
        let Some(client) = self.by_id.get_mut(&id) else { return };
        let before = client.sessions.len();
        client.sessions.retain(|other| *other != session);
        let removed = before - client.sessions.len();
        self.by_peer.get_mut(&client.peer).expect("it has this client").sessions -= removed;
    }

    /// The memory for replies to a client, which is that of its address.
    pub(super) fn replies_of(&self, id: ClientId) -> Arc<ReplyBudget> {
        Arc::clone(&self.by_peer[&self.by_id[&id].peer].replies)
    }

    /// The case of an EXCHANGE_ID, numbered as in RFC 8881 §18.35.4. `is_in_use` is whether a
    /// client has an unexpired lease with sessions or state.
    ///
    /// # Errors
    /// `ClidInuse`; for updates `Noent`, `NotSame` and `Perm`.
    pub(super) fn case(
        &self,
        call: &ExchangeId<'_>,
        is_in_use: impl Fn(&Client, ClientId) -> bool,
    ) -> Result<Case, Status> {
        let Incarnations { confirmed, unconfirmed } =
            self.by_owner.get(call.owner).copied().unwrap_or_default();
        let Some(id) = confirmed else {
            // 7, and 1 or 4.
            let new = Case::New { replaces: [None, unconfirmed] };
            return if call.is_update { Err(Status::Noent) } else { Ok(new) };
        };
        let client = &self.by_id[&id];
        let is_same_boot = client.verifier == call.verifier;
        let is_same_principal = client.principal == call.principal;
        match (call.is_update, is_same_boot, is_same_principal) {
            // 2 and 6.
            (_, true, true) => Ok(Case::Known(id)),
            // 8 and 9.
            (true, false, _) => Err(Status::NotSame),
            (true, true, false) => Err(Status::Perm),
            // 3.
            (false, _, false) if is_in_use(client, id) => Err(Status::ClidInuse),
            (false, _, false) => Ok(Case::New { replaces: [confirmed, unconfirmed] }),
            // 5: the old incarnation keeps its state until the new one is confirmed.
            (false, false, true) => Ok(Case::New { replaces: [None, unconfirmed] }),
        }
    }

    /// Adds an unconfirmed client.
    pub(super) fn add(&mut self, call: &ExchangeId<'_>, now: Duration) -> ClientId {
        let id = self.unused_id();
        let owner: Arc<[u8]> = call.owner.into();
        self.by_owner.entry(Arc::clone(&owner)).or_default().unconfirmed = Some(id);
        let new = || PeerClients {
            ids: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            sessions: 0,
            replies: Arc::new(ReplyBudget::of_peer(&self.replies)),
        };
        let of_peer = self.by_peer.entry(call.peer).or_insert_with(new);
        of_peer.ids.insert(id);
        of_peer.unconfirmed.insert(id);
        self.unconfirmed.insert(id);
        self.by_id.insert(
            id,
            Client {
                owner,
                verifier: call.verifier,
                principal: call.principal,
                peer: call.peer,
                is_confirmed: false,
                lease: Arc::new(Lease::new(now)),
                sessions: Vec::new(),
                has_reclaimed: false,
                is_recorded: false,
                awaited_by: None,
                slot: CreateSessionSlot { next: SequenceId(1), last: None },
            },
        );
        id
    }

    /// The confirmed incarnation that `id` takes the place of when it is confirmed.
    pub(super) fn predecessor(&self, id: ClientId) -> Option<ClientId> {
        let client = self.get(id).filter(|client| !client.is_confirmed)?;
        self.by_owner.get(&client.owner)?.confirmed
    }

    /// Confirms a client, whose predecessor is forgotten.
    pub(super) fn confirm(&mut self, id: ClientId) {
        let client = self.by_id.get_mut(&id).expect("the caller has looked it up");
        client.is_confirmed = true;
        self.unconfirmed.remove(&id);
        let of_peer = self.by_peer.get_mut(&client.peer).expect("it has this client");
        of_peer.unconfirmed.remove(&id);
        let incarnations = Incarnations { confirmed: Some(id), unconfirmed: None };
        self.by_owner.insert(Arc::clone(&client.owner), incarnations);
    }

    /// Notes that the owner's record is removed.
    pub(super) fn forget_records(&mut self, owner: &[u8]) {
        let Some(incarnations) = self.by_owner.get(owner) else { return };
        for id in [incarnations.confirmed, incarnations.unconfirmed].into_iter().flatten() {
            self.by_id.get_mut(&id).expect("an incarnation is a client").is_recorded = false;
        }
    }

    /// The result of EXCHANGE_ID for a client.
    pub(super) fn exchanged(&self, id: ClientId) -> ExchangedId {
        let client = &self.by_id[&id];
        let (sequence, is_confirmed) = (client.slot.next, client.is_confirmed);
        ExchangedId { client: id, sequence, is_confirmed }
    }

    /// Removes a client, whose lease ends.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.by_id.remove(&id)?;
        client.lease.revoke();
        let of_peer = self.by_peer.get_mut(&client.peer).expect("it has this client");
        of_peer.ids.remove(&id);
        of_peer.unconfirmed.remove(&id);
        of_peer.sessions -= client.sessions.len();
        self.unconfirmed.remove(&id);
        if of_peer.ids.is_empty() {
            self.by_peer.remove(&client.peer);
        }
        if let Some(incarnations) = self.by_owner.get_mut(&client.owner) {
            for place in [&mut incarnations.confirmed, &mut incarnations.unconfirmed] {
                *place = place.filter(|other| *other != id);
            }
            if incarnations.confirmed.is_none() && incarnations.unconfirmed.is_none() {
                self.by_owner.remove(&client.owner);
            }
        }
        Some(client)
    }

    fn unused_id(&mut self) -> ClientId {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = ClientId((u64::from(self.epoch) << 32) | u64::from(self.last));
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests;
