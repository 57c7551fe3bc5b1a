//! Files that are not delegated again yet, because delegations of them were recalled.
//!
//! An entry counts for the address of the client that had the delegation. So one address leaves
//! room for the files of others, however many of its own are recalled.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::FileId;

/// The entries: one at most for a file and an address.
#[derive(Debug)]
pub(super) struct HoldOffs {
    entries: BTreeMap<(FileId, IpAddr), HoldOff>,
    /// Those of each address, in the order of the recalls.
    by_peer: HashMap<IpAddr, BTreeSet<(Duration, FileId)>>,
    entries_max: usize,
    peer_entries_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct HoldOff {
    /// The last time.
    recalled_at: Duration,
    until: Duration,
}

impl HoldOffs {
    /// None. An address may have half of all.
    pub(super) fn new(entries_max: usize) -> Self {
        let peer_entries_max = entries_max.div_ceil(2);
        let (entries, by_peer) = (BTreeMap::new(), HashMap::new());
        Self { entries, by_peer, entries_max, peer_entries_max }
    }

    /// Whether a file is not to be delegated yet.
    pub(super) fn contains(&self, file: FileId, now: Duration) -> bool {
        self.entries.range(entries_of(file)).any(|(_, entry)| now < entry.until)
    }

    /// Adds a file for the address that a delegation of it is recalled from. At the bound of the
    /// address, or of all, the oldest entry of the address goes; at that of all, an address without
    /// any gets none.
    pub(super) fn add(&mut self, file: FileId, peer: IpAddr, (now, until): (Duration, Duration)) {
        self.remove(file, peer);
        let own = self.by_peer.get(&peer);
        let count = own.map_or(0, BTreeSet::len);
        if count >= self.peer_entries_max || self.entries.len() >= self.entries_max {
            let Some((_, oldest)) = own.and_then(BTreeSet::first).copied() else { return };
            self.remove(oldest, peer);
        }
        self.entries.insert((file, peer), HoldOff { recalled_at: now, until });
        self.by_peer.entry(peer).or_default().insert((now, file));
    }

    /// Ends the time of a file at `until`, if it does not end before.
    pub(super) fn shorten(&mut self, file: FileId, until: Duration) {
        for (_, entry) in self.entries.range_mut(entries_of(file)) {
            entry.until = until.min(entry.until);
        }
    }

    /// Removes the entries whose time is over.
    pub(super) fn expire(&mut self, now: Duration) {
        let over = self.entries.iter().filter(|(_, entry)| entry.until <= now);
        for (file, peer) in over.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.remove(file, peer);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.by_peer.is_empty()
    }

    fn remove(&mut self, file: FileId, peer: IpAddr) {
        let Some(entry) = self.entries.remove(&(file, peer)) else { return };
        let own = self.by_peer.get_mut(&peer).expect("it has this entry");
        own.remove(&(entry.recalled_at, file));
        if own.is_empty() {
            self.by_peer.remove(&peer);
        }
    }
}

/// The keys of a file's entries, of all addresses.
fn entries_of(file: FileId) -> RangeInclusive<(FileId, IpAddr)> {
    let (first, last) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::from_bits(u128::MAX).into());
    (file, first)..=(file, last)
}

/// Entries of all addresses, about 200 bytes each.
pub(super) const HELD_OFF_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::config;
    use super::*;

    const MAX: usize = 4;
    const FILES: u64 = 6;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// The files of 0 to 6 that are held off.
    fn held_off(hold_offs: &HoldOffs, now: Duration) -> Vec<u64> {
        (0..FILES).filter(|file| hold_offs.contains(FileId(*file), now)).collect()
    }

    #[test]
    fn an_address_at_its_bound_loses_its_own_oldest_file() {
        for (recalls, left) in [
            (&[(1, 0), (1, 1)][..], &[0, 1][..]),
            (&[(1, 0), (1, 1), (1, 2)], &[1, 2]),
            (&[(1, 0), (1, 1), (1, 0), (1, 2)], &[0, 2]),
            (&[(1, 0), (1, 0), (1, 1), (1, 1)], &[0, 1]),
            (&[(2, 5), (1, 0), (1, 1), (1, 2), (1, 3)], &[2, 3, 5]),
            // The other address holds the file off too.
            (&[(2, 0), (1, 0), (1, 1), (1, 2)], &[0, 1, 2]),
            (&[(1, 0), (1, 1), (2, 2), (2, 3), (3, 4)], &[0, 1, 2, 3]),
            (&[(1, 0), (3, 4), (2, 2), (2, 3), (3, 5)], &[0, 2, 3, 5]),
        ] {
            let mut hold_offs = HoldOffs::new(MAX);
            for (second, (address, file)) in (0..).zip(recalls) {
                hold_offs.add(FileId(*file), peer(*address), (at(second), at(100)));
            }
            assert_eq!(held_off(&hold_offs, at(99)), left, "{recalls:?}");
            assert_eq!(held_off(&hold_offs, at(100)), [0; 0]);
            hold_offs.expire(at(100));
            assert!(hold_offs.is_empty());
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Action {
        Recall { file: u64, address: u8, secs: u64 },
        Shorten { file: u64, secs: u64 },
        Expire,
    }

    fn any_action() -> impl Strategy<Value = Action> {
        prop_oneof![
            6 => (0..FILES, 1..4u8, 1..30u64)
                .prop_map(|(file, address, secs)| Action::Recall { file, address, secs }),
            2 => (0..FILES, 1..10u64).prop_map(|(file, secs)| Action::Shorten { file, secs }),
            1 => Just(Action::Expire),
        ]
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn files_are_held_off_as_in_a_list_for_each_address(
            actions in prop::collection::vec(any_action(), 1..80)
        ) {
            let mut hold_offs = HoldOffs::new(MAX);
            // Address, file and end, in the order of the recalls.
            let mut list: Vec<(u8, u64, u64)> = Vec::new();
            let mut second = 0;
            for action in actions {
                second += 1;
                let now = at(second);
                match action {
                    Action::Recall { file, address, secs } => {
                        let until = second + secs;
                        hold_offs.add(FileId(file), peer(address), (now, at(until)));
                        list.retain(|entry| (entry.0, entry.1) != (address, file));
                        let count = list.iter().filter(|entry| entry.0 == address).count();
                        let oldest = list.iter().position(|entry| entry.0 == address);
                        let is_full = count == MAX / 2 || list.len() == MAX;
                        match oldest.filter(|_| is_full) {
                            Some(oldest) => drop(list.remove(oldest)),
                            None if is_full => continue,
                            None => {}
                        }
                        list.push((address, file, until));
                    }
                    Action::Shorten { file, secs } => {
                        hold_offs.shorten(FileId(file), at(second + secs));
                        let of_file = list.iter_mut().filter(|entry| entry.1 == file);
                        of_file.for_each(|entry| entry.2 = entry.2.min(second + secs));
                    }
                    Action::Expire => {
                        hold_offs.expire(now);
                        list.retain(|entry| second < entry.2);
                    }
                }
                prop_assert_eq!(hold_offs.entries.len(), list.len());
                let is_held = |file: &u64| list.iter().any(|e| e.1 == *file && second < e.2);
                let expected: Vec<_> = (0..FILES).filter(is_held).collect();
                prop_assert_eq!(held_off(&hold_offs, now), expected);
            }
            hold_offs.expire(at(second + 30));
            prop_assert!(hold_offs.is_empty());
        }
    }
}
