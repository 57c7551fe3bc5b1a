//! The user and group ids that exist in the process's user namespace.

use std::fs;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// The id that the kernel shows in the place of one without a mapping, and that of the user
/// `nobody` of most systems.
const OVERFLOW_ID: u32 = 65_534;

/// The ids with a mapping in the process's user namespace, user_namespaces(7). Of all others no
/// file that the process can reach is the user's or the group's.
#[derive(Debug)]
pub(super) struct IdMap(Vec<RangeInclusive<u32>>);

impl IdMap {
    /// User ids. Read once: a map that was written cannot be changed.
    pub(super) fn of_users() -> &'static Self {
        static USERS: OnceLock<IdMap> = OnceLock::new();
        USERS.get_or_init(|| Self::read("/proc/self/uid_map"))
    }

    /// Group ids, as [`Self::of_users`].
    pub(super) fn of_groups() -> &'static Self {
        static GROUPS: OnceLock<IdMap> = OnceLock::new();
        GROUPS.get_or_init(|| Self::read("/proc/self/gid_map"))
    }

    /// A kernel without user namespaces has no such file.
    fn read(path: &str) -> Self {
        fs::read_to_string(path).map_or_else(|_| Self(vec![0..=u32::MAX - 1]), |map| Self::of(&map))
    }

    /// Of lines with the first id in the namespace, that outside, and their number.
    fn of(map: &str) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
            let (first, _, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
            Some(first..=first.checked_add(count.checked_sub(1)?)?)
        };
        Self(map.lines().filter_map(range).collect())
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.0.iter().any(|range| range.contains(&id))
    }

    /// An id that is not 0, if there is one.
    pub(super) fn other_than_root(&self) -> Option<u32> {
        let mut last = self.0.iter().map(|range| *range.end());
        if self.contains(OVERFLOW_ID) { Some(OVERFLOW_ID) } else { last.find(|id| *id != 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_all_ranges_of_a_map_are_in_it() {
        let map = IdMap::of("         0     100000       1000\n      5000   1000          1\n");
        let is_mapped = [0, 999, 1000, 4999, 5000, 5001, 100_000, OVERFLOW_ID, u32::MAX]
            .map(|id| map.contains(id));
        assert_eq!(is_mapped, [true, true, false, false, true, false, false, false, false]);
        assert_eq!(map.other_than_root(), Some(999));
    }

    #[test]
    fn the_first_namespace_has_all_ids_and_an_empty_map_none() {
        let map = IdMap::of("         0          0 4294967295\n");
        assert!(map.contains(0) && map.contains(u32::MAX - 1) && !map.contains(u32::MAX));
        assert_eq!(map.other_than_root(), Some(OVERFLOW_ID));
        assert!(!IdMap::of("").contains(0));
    }

    #[test]
    fn a_map_of_root_alone_has_no_other_id() {
        assert_eq!(IdMap::of("         0       1000          1\n").other_than_root(), None);
        let map = IdMap::of("0 1000 1\n1 100000 10\n");
        assert_eq!(map.other_than_root(), Some(10));
    }
}
