//! The user and group ids that exist in the process's user namespace.

use std::fs;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// The anonymous id of most systems, and the one that the kernel shows in the place of
/// one without a mapping if it is not set to show another.
const OVERFLOW_ID: u32 = 65_534;

/// The ids with a mapping in the process's user namespace, user_namespaces(7). To the kernel no
/// file belongs to any other id.
#[derive(Debug)]
pub(super) struct IdMap {
    mapped: Vec<RangeInclusive<u32>>,
    /// The id that stat shows in the place of one without a mapping; `None` where all have one.
    overflow: Option<u32>,
}

impl IdMap {
    /// User ids. Read once: a map that was written cannot be changed.
    pub(super) fn of_users() -> &'static Self {
        static USERS: OnceLock<IdMap> = OnceLock::new();
        USERS.get_or_init(|| Self::read("uid"))
    }

    /// Group ids, as [`Self::of_users`].
    pub(super) fn of_groups() -> &'static Self {
        static GROUPS: OnceLock<IdMap> = OnceLock::new();
        GROUPS.get_or_init(|| Self::read("gid"))
    }

    /// A kernel without user namespaces has no such file.
    fn read(kind: &str) -> Self {
        let overflow = fs::read_to_string(format!("/proc/sys/kernel/overflow{kind}"));
        let overflow = overflow.ok().and_then(|id| id.trim().parse().ok()).unwrap_or(OVERFLOW_ID);
        let map = fs::read_to_string(format!("/proc/self/{kind}_map"));
        Self::of(map.as_deref().unwrap_or("0 0 4294967295"), overflow)
    }

    /// Of lines with the first id in the namespace, that outside, and their number.
    fn of(map: &str, overflow: u32) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
            let (first, _, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
            Some(first..=first.checked_add(count.checked_sub(1)?)?)
        };
        let mapped: Vec<_> = map.lines().filter_map(range).collect();
        let overflow = (mapped != [0..=u32::MAX - 1]).then_some(overflow);
        Self { mapped, overflow }
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.mapped.iter().any(|range| range.contains(&id))
    }

    /// Whether a file that stat shows to be this id's belongs to it: it may belong to any id
    /// without a mapping instead.
    pub(super) fn is_certain(&self, shown: u32) -> bool {
        self.overflow != Some(shown)
    }

    /// An id that is not 0, if there is one.
    pub(super) fn other_than_root(&self) -> Option<u32> {
        let mut last = self.mapped.iter().map(|range| *range.end());
        if self.contains(OVERFLOW_ID) { Some(OVERFLOW_ID) } else { last.find(|id| *id != 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_all_ranges_of_a_map_are_in_it() {
        let map = IdMap::of(
            "         0     100000       1000\n      5000   1000          1\n",
            OVERFLOW_ID,
        );
        let is_mapped = [0, 999, 1000, 4999, 5000, 5001, 100_000, OVERFLOW_ID, u32::MAX]
            .map(|id| map.contains(id));
        assert_eq!(is_mapped, [true, true, false, false, true, false, false, false, false]);
        assert_eq!(map.other_than_root(), Some(999));
    }

    #[test]
    fn the_first_namespace_has_all_ids_and_an_empty_map_none() {
        let map = IdMap::of("         0          0 4294967295\n", OVERFLOW_ID);
        assert!(map.contains(0) && map.contains(u32::MAX - 1) && !map.contains(u32::MAX));
        assert_eq!(map.other_than_root(), Some(OVERFLOW_ID));
        assert!(map.is_certain(OVERFLOW_ID));
        assert!(!IdMap::of("", OVERFLOW_ID).contains(0));
    }

    #[test]
    fn a_map_of_root_alone_has_no_other_id() {
        let map = IdMap::of("         0       1000          1\n", OVERFLOW_ID);
        assert_eq!(map.other_than_root(), None);
        let map = IdMap::of("0 1000 1\n1 100000 10\n", OVERFLOW_ID);
        assert_eq!(map.other_than_root(), Some(10));
    }

    #[test]
    fn the_id_that_stands_for_others_is_not_certain_where_some_have_no_mapping() {
        let map = IdMap::of("0 0 65535\n", OVERFLOW_ID);
        assert!(!map.is_certain(OVERFLOW_ID) && map.is_certain(1000));
        let map = IdMap::of("0 0 65535\n", 1000);
        assert!(map.is_certain(OVERFLOW_ID) && !map.is_certain(1000));
    }
}
