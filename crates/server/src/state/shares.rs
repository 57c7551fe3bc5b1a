//! Share reservations of one file, RFC 8881 §9.7: what its opens allow themselves and deny others.

use proto::nfs4::{ShareAccess, ShareDeny};

/// The access of an open and what it denies to others. Bit 0 is reading, bit 1 is writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    access: u8,
    deny: u8,
}

impl Share {
    pub(super) fn new(access: ShareAccess, deny: ShareDeny) -> Self {
        let bits = |code: u32| u8::try_from(code).expect("two bits");
        Self { access: bits(access.code()), deny: bits(deny.code()) }
    }

    /// An access that denies nothing.
    pub(super) fn of_access(access: ShareAccess) -> Self {
        Self::new(access, ShareDeny::None)
    }

    /// Whether the access includes that of `other`.
    pub(super) fn allows(self, other: Self) -> bool {
        self.access & other.access == other.access
    }

    pub(super) fn with_writing(self) -> Self {
        Self { access: self.access | WRITE, ..self }
    }

    pub(super) fn writes(self) -> bool {
        self.access & WRITE != 0
    }

    pub(super) fn denies_reading(self) -> bool {
        self.deny & READ != 0
    }

    /// Whether two owners cannot hold these at the same time.
    pub(super) fn conflicts(self, other: Self) -> bool {
        self.access & other.deny != 0 || self.deny & other.access != 0
    }

    fn union(self, other: Self) -> Self {
        Self { access: self.access | other.access, deny: self.deny | other.deny }
    }

    fn is_within(self, other: Self) -> bool {
        self.union(other) == other
    }
}

/// The shares that an owner's OPENs of a file have asked for. OPEN_DOWNGRADE may return to a union
/// of some of them (RFC 8881 §18.18.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Modes {
    /// One bit for each combination of access and deny.
    asked: u16,
}

impl Modes {
    pub(super) fn insert(&mut self, share: Share) {
        self.asked |= 1 << ((share.access << 2) | share.deny);
    }

    /// The share that the open holds.
    pub(super) fn share(self) -> Share {
        self.iter().fold(Share::default(), Share::union)
    }

    /// The modes within `share`, if their union is `share`.
    pub(super) fn downgraded(self, share: Share) -> Option<Self> {
        let mut kept = Self::default();
        self.iter().filter(|mode| mode.is_within(share)).for_each(|mode| kept.insert(mode));
        (kept.asked != 0 && kept.share() == share).then_some(kept)
    }

    fn iter(self) -> impl Iterator<Item = Share> {
        (0..16u8)
            .filter(move |bit| self.asked & (1 << bit) != 0)
            .map(|bit| Share { access: bit >> 2, deny: bit & 3 })
    }
}

/// The number of a file's opens by each bit of their shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShareCounts {
    readers: u32,
    writers: u32,
    deny_read: u32,
    deny_write: u32,
}

impl ShareCounts {
    pub(super) fn add(&mut self, share: Share) {
        self.each(share, |count| *count += 1);
    }

    /// # Panics
    /// No such share was added.
    pub(super) fn remove(&mut self, share: Share) {
        self.each(share, |count| *count -= 1);
    }

    /// Whether `share` conflicts with an open other than the one that holds `own`.
    pub(super) fn conflicts(mut self, share: Share, own: Share) -> bool {
        self.remove(own);
        let bits =
            |read: u32, write: u32| (u8::from(read > 0) * READ) | (u8::from(write > 0) * WRITE);
        let others = Share {
            access: bits(self.readers, self.writers),
            deny: bits(self.deny_read, self.deny_write),
        };
        share.conflicts(others)
    }

    fn each(&mut self, share: Share, change: impl Fn(&mut u32)) {
        for (bits, read, write) in [
            (share.access, &mut self.readers, &mut self.writers),
            (share.deny, &mut self.deny_read, &mut self.deny_write),
        ] {
            if bits & READ != 0 {
                change(read);
            }
            if bits & WRITE != 0 {
                change(write);
            }
        }
    }
}

const READ: u8 = 1;
const WRITE: u8 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::config;
    use super::*;

    fn any_share() -> impl Strategy<Value = Share> {
        (1..4u8, 0..4u8).prop_map(|(access, deny)| Share { access, deny })
    }

    /// Adds and removes opens, and asks for a share.
    fn any_steps() -> impl Strategy<Value = Vec<(Option<usize>, Share)>> {
        prop::collection::vec((prop::option::of(0..8usize), any_share()), 1..60)
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn counts_decide_as_a_list_of_opens_does(steps in any_steps()) {
            let (mut counts, mut list) = (ShareCounts::default(), Vec::<Share>::new());
            for (remove, share) in steps {
                if let Some(at) = remove.filter(|at| *at < list.len()) {
                    counts.remove(list.swap_remove(at));
                }
                let refuses = |other: &Share| {
                    (share.access & other.deny) | (share.deny & other.access) != 0
                };
                let nothing = Share::default();
                prop_assert_eq!(counts.conflicts(share, nothing), list.iter().any(refuses));
                if let Some((own, others)) = list.split_first() {
                    prop_assert_eq!(counts.conflicts(share, *own), others.iter().any(refuses));
                }
                counts.add(share);
                list.push(share);
            }
            list.into_iter().for_each(|share| counts.remove(share));
            prop_assert_eq!(counts, ShareCounts::default());
        }

        #[test]
        fn a_downgrade_is_a_union_of_earlier_opens(
            asked in prop::collection::vec(any_share(), 1..5),
            wanted in any_share(),
        ) {
            let mut modes = Modes::default();
            asked.iter().for_each(|share| modes.insert(*share));
            let unions = (1..1usize << asked.len()).map(|subset| {
                let chosen = asked.iter().enumerate().filter(|(at, _)| subset >> at & 1 == 1);
                chosen.fold(Share::default(), |union, (_, share)| union.union(*share))
            });
            let is_union = unions.collect::<Vec<_>>().contains(&wanted);
            let kept = modes.downgraded(wanted);
            prop_assert_eq!(kept.is_some(), is_union);
            prop_assert!(kept.is_none_or(|kept| kept.share() == wanted));
        }
    }
}
