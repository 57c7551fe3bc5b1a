//! The holders of a pool's memory: how much each one has, and whose turn it is to get more.

use std::collections::btree_map::{Entry, OccupiedEntry};
use std::collections::{BTreeMap, VecDeque};

use super::Waiter;
use crate::engine::{ClientId, DeviceNumber, Holder};

/// A client, or a device of several, may hold this part of the budget, and a client this part of
/// what a device may hold: the rest stays for the others, ...
const SHARE_PARTS: usize = 3;
/// ... of so many parts.
const PARTS: usize = 4;

/// Whether the first request of a holder can be served, as far as shares go, or the share of its
/// own that it waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Ready,
    AtClientShare,
    AtDeviceShare,
    /// At both; or its client is at its share of the device.
    AtBoth,
}

/// Those that hold memory or wait for it.
pub(super) struct Holders {
    /// Bytes that one client may hold, and one device of several.
    share_bytes: usize,
    /// One for each that holds a buffer or waits, and that of [`Holder::OWN`], so that the first
    /// buffer of a client allocates no node. Those of a client are neighbours.
    accounts: BTreeMap<Holder, Account>,
    /// The bytes of all accounts of a device, if it has any.
    devices: Vec<(DeviceNumber, usize)>,
    has_several_devices: bool,
    /// The holders with waiters, the next to be served first.
    turns: VecDeque<Holder>,
}

#[derive(Default)]
struct Account {
    held_bytes: usize,
    /// Served strictly in order: a large request is not starved by small ones that would fit
    /// before it.
    waiters: VecDeque<Waiter>,
}

impl Account {
    fn is_empty(&self) -> bool {
        self.held_bytes == 0 && self.waiters.is_empty()
    }
}

impl Holders {
    pub(super) fn new(budget_bytes: usize) -> Self {
        Self {
            share_bytes: budget_bytes / PARTS * SHARE_PARTS,
            accounts: BTreeMap::from([(Holder::OWN, Account::default())]),
            devices: Vec::new(),
            has_several_devices: false,
            turns: VecDeque::new(),
        }
    }

    /// Sets whether there is another device for which memory is to be left.
    pub(super) fn set_several_devices(&mut self, has_several: bool) {
        self.has_several_devices = has_several;
    }

    /// Whether a request of `bytes` may be served now without passing any that waits, see
    /// [`Self::next`].
    pub(super) fn is_next(&self, holder: Holder, bytes: usize) -> bool {
        let precedes = |waiting: &Holder| {
            let (same_client, same_device) =
                (waiting.client == holder.client, waiting.device == holder.device);
            match (same_client || same_device).then(|| self.standing_of_first(*waiting)).flatten() {
                Some(Standing::AtClientShare) => same_client,
                Some(Standing::AtDeviceShare) => same_device,
                Some(Standing::AtBoth) => same_client && same_device,
                Some(Standing::Ready) => true,
                None => false,
            }
        };
        self.standing(holder, bytes) == Standing::Ready
            && !self.turns.iter().any(precedes)
            && self.next().is_none()
    }

    /// Notes that a holder has `bytes` more.
    pub(super) fn charge(&mut self, holder: Holder, bytes: usize) {
        self.accounts.entry(holder).or_default().held_bytes += bytes;
        match self.device(holder.device) {
            Some(at) => self.devices[at].1 += bytes,
            None => self.devices.push((holder.device, bytes)),
        }
    }

    /// Notes that a holder has `bytes` less.
    pub(super) fn discharge(&mut self, holder: Holder, bytes: usize) {
        let Entry::Occupied(mut account) = self.accounts.entry(holder) else {
            unreachable!("a holder of memory is known");
        };
        account.get_mut().held_bytes -= bytes;
        forget_if_empty(account);
        let at = self.device(holder.device).expect("its bytes were added");
        self.devices[at].1 -= bytes;
        if self.devices[at].1 == 0 {
            self.devices.swap_remove(at);
        }
    }

    /// Appends a request to those of a holder.
    pub(super) fn push(&mut self, holder: Holder, waiter: Waiter) {
        let account = self.accounts.entry(holder).or_default();
        if account.waiters.is_empty() {
            self.turns.push_back(holder);
        }
        account.waiters.push_back(waiter);
    }

    /// The holder whose turn it is and the size class that it waits for. Those that wait for memory
    /// of their own client or device keep their turn and are skipped. Behind one of them its
    /// client, or its device, waits too: small requests would use up what a large one waits for.
    /// One that waits for both holds up no other, so that no client waits for a device that does
    /// not answer with what it has elsewhere.
    pub(super) fn next(&self) -> Option<(Holder, usize)> {
        self.find_waiting(|holder, standing| {
            let waiter = self.first(holder)?;
            (standing == Standing::Ready).then_some((holder, waiter.class))
        })
    }

    /// The first result of `find` among the holders that wait, without those behind others.
    fn find_waiting<R>(&self, find: impl Fn(Holder, Standing) -> Option<R>) -> Option<R> {
        if self.turns.is_empty() {
            return None;
        }
        let (mut clients, mut devices) = (Vec::new(), Vec::new());
        for &holder in &self.turns {
            if clients.contains(&holder.client) || devices.contains(&holder.device) {
                continue;
            }
            let Some(standing) = self.standing_of_first(holder) else { continue };
            match standing {
                Standing::AtClientShare => clients.push(holder.client),
                Standing::AtDeviceShare => devices.push(holder.device),
                Standing::AtBoth | Standing::Ready => {}
            }
            if let Some(found) = find(holder, standing) {
                return Some(found);
            }
        }
        None
    }

    /// Removes the first request of a holder that [`next`](Self::next) returned, which gets the
    /// memory that it waited for. The others are served before it again.
    pub(super) fn serve(&mut self, holder: Holder) -> Waiter {
        let account = self.accounts.get_mut(&holder).expect("a holder that waits is known");
        let waiter = account.waiters.pop_front().expect("it waits");
        let waits = !account.waiters.is_empty();
        self.charge(holder, waiter.bytes);
        self.turns.retain(|other| *other != holder);
        if waits {
            self.turns.push_back(holder);
        }
        waiter
    }

    /// Removes the requests of a holder that were given up.
    pub(super) fn forget_leavers(&mut self, holder: Holder) {
        let Entry::Occupied(mut account) = self.accounts.entry(holder) else { return };
        account.get_mut().waiters.retain(|waiter| !waiter.grant.is_closed());
        if account.get().waiters.is_empty() {
            self.turns.retain(|other| *other != holder);
        }
        forget_if_empty(account);
    }

    /// Requests that wait.
    pub(super) fn waiters(&self) -> usize {
        self.turns.iter().map(|holder| self.accounts[holder].waiters.len()).sum()
    }

    /// Whether a request waits that memory of `client` would serve.
    pub(super) fn has_waiters_for(&self, client: ClientId) -> bool {
        let is_served = |waiting: Holder, standing| {
            let has_of_device = || self.held(Holder { client, device: waiting.device }) > 0;
            let is_served = match standing {
                Standing::Ready => true,
                Standing::AtClientShare => waiting.client == client,
                Standing::AtDeviceShare => has_of_device(),
                Standing::AtBoth => waiting.client == client && has_of_device(),
            };
            is_served.then_some(())
        };
        self.find_waiting(is_served).is_some()
    }

    fn held(&self, holder: Holder) -> usize {
        self.accounts.get(&holder).map_or(0, |account| account.held_bytes)
    }

    fn held_by_client(&self, client: ClientId) -> usize {
        let from_first = self.accounts.range(Holder::of(client)..);
        let own = from_first.take_while(|(holder, _)| holder.client == client);
        own.map(|(_, account)| account.held_bytes).sum()
    }

    fn held_by_device(&self, device: DeviceNumber) -> usize {
        self.device(device).map_or(0, |at| self.devices[at].1)
    }

    /// The place of a device among those that have memory.
    fn device(&self, device: DeviceNumber) -> Option<usize> {
        self.devices.iter().position(|(number, _)| *number == device)
    }

    fn first(&self, holder: Holder) -> Option<&Waiter> {
        self.accounts.get(&holder)?.waiters.front()
    }

    fn standing_of_first(&self, holder: Holder) -> Option<Standing> {
        Some(self.standing(holder, self.first(holder)?.bytes))
    }

    /// A client or device that holds nothing may have a buffer of any size, however small the
    /// budget. A single device may hold all.
    fn standing(&self, holder: Holder, bytes: usize) -> Standing {
        let fits = |held: usize, share: usize| held == 0 || held + bytes <= share;
        let is_own = holder.client == Holder::OWN.client;
        let has_device = self.has_several_devices && holder.device != Holder::OWN.device;
        let fits_client = is_own || fits(self.held_by_client(holder.client), self.share_bytes);
        let fits_device = !has_device || fits(self.held_by_device(holder.device), self.share_bytes);
        let fits_both = is_own
            || !has_device
            || fits(self.held(holder), self.share_bytes / PARTS * SHARE_PARTS);
        match (fits_client, fits_device) {
            _ if !fits_both => Standing::AtBoth,
            (true, true) => Standing::Ready,
            (false, true) => Standing::AtClientShare,
            (true, false) => Standing::AtDeviceShare,
            (false, false) => Standing::AtBoth,
        }
    }
}

fn forget_if_empty(account: OccupiedEntry<'_, Holder, Account>) {
    if account.get().is_empty() && *account.key() != Holder::OWN {
        account.remove();
    }
}
