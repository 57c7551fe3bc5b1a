//! The descriptors of a server's process by their holders.

/// Descriptors for directory walks, logs, and the rest of the process.
const RESERVED: usize = 512;
/// Connections take at most this part of the descriptors.
const SOCKETS_PART: usize = 4;
/// The window takes at most this part of the descriptors, but not fewer than so many.
const WINDOW_PART: usize = 8;
const WINDOW_FILES_MIN: usize = 16;
/// Listings that a server keeps open between two calls.
const LISTINGS: usize = 256;
/// Pipes for spliced replies, each with two descriptors. One is in use from the reading of the data
/// until the socket has taken it. Slow peers, or the calls of a single one, can have all of them:
/// the data of others is copied then.
const PIPES: usize = 16;
/// Descriptors of open files, however few there are: two objects in each part of the cache.
const FILES_MIN: usize = 64;

/// With version 4, opens take at most this part of what is left to files: what they do not use, all
/// objects may have.
const OPENS_PART: usize = 2;
/// Lock owners and delegations take at most this part each.
const STATE_PART: usize = 8;
/// Descriptors of an open's object, at most.
const OPEN_DESCRIPTORS: usize = 5;
/// Those of a delegation's object, and its lease.
const DELEGATION_DESCRIPTORS: usize = OPEN_DESCRIPTORS + LEASE_DESCRIPTORS;
const LEASE_DESCRIPTORS: usize = 1;
/// Opens, lock owners and delegations, however few descriptors there are.
const STATE_MIN: usize = 8;

/// Numbers of descriptors; of pipes, which take two each, the number of pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorPlan {
    /// One for each connection. Held by its task.
    pub(crate) sockets: usize,
    /// One for each file with data in the window. Held by `WriteBehindFile`. Exceeded as the bytes
    /// of the window are (`MemoryPlan::window_bytes`); the `InodeCache` then makes room.
    pub(crate) window_files: usize,
    /// One for each listing that waits for its next call. Held by `DirectoryStream`.
    pub(crate) listings: usize,
    /// Two for each. Held by `PipePool`, and by the reply whose data is in the pipe.
    pub(crate) pipes: usize,
    /// Five for each, of the object that it pins. Held by `HeldFiles`.
    pub(crate) opens: usize,
    /// One for each lock owner of a file. Held by `HeldFiles`.
    pub(crate) lock_owners: usize,
    /// Six for each: of the object that it pins, and its lease. Held by `HeldFiles`.
    pub(crate) delegations: usize,
    /// One to five for each object that is neither open nor delegated, of which each counts. Held
    /// by the `InodeCache`, as those of `opens` and `delegations` are: see [`Self::objects`].
    pub(crate) files: usize,
}

impl DescriptorPlan {
    /// Divides the `limit` of a process that is to serve `connections_max` connections, with at
    /// most `window_files_max` files in the window, and version 4 if `serves_v4`.
    pub(crate) fn new(
        limit: usize,
        connections_max: usize,
        window_files_max: usize,
        serves_v4: bool,
    ) -> Self {
        let mut others = Self {
            sockets: connections_max.min(limit / SOCKETS_PART).max(1),
            window_files: (limit / WINDOW_PART).clamp(WINDOW_FILES_MIN, window_files_max),
            listings: LISTINGS,
            pipes: PIPES,
            opens: 0,
            lock_owners: 0,
            delegations: 0,
            files: 0,
        };
        if serves_v4 {
            let left = limit.saturating_sub(others.sum());
            let part = left / STATE_PART;
            others.opens = (left / OPENS_PART / OPEN_DESCRIPTORS).max(STATE_MIN);
            others.lock_owners = part.max(STATE_MIN);
            others.delegations = (part / DELEGATION_DESCRIPTORS).max(STATE_MIN);
        }
        let plan = Self { files: limit.saturating_sub(others.sum()).max(FILES_MIN), ..others };
        assert!(plan.sum() <= limit.max(others.sum() + FILES_MIN), "{plan:?} of {limit}");
        plan
    }

    /// Those of all objects in the `InodeCache`. What opens and delegations pin is among them, and
    /// counts there: what they do not pin, other objects may have, which make room when they do.
    pub(crate) fn objects(&self) -> usize {
        let of_delegations = (DELEGATION_DESCRIPTORS - LEASE_DESCRIPTORS) * self.delegations;
        self.files + OPEN_DESCRIPTORS * self.opens + of_delegations
    }

    /// All of them, with what is reserved.
    fn sum(&self) -> usize {
        let Self { sockets, window_files, listings, pipes, opens, lock_owners, delegations, files } =
            self;
        let state = OPEN_DESCRIPTORS * opens + lock_owners + DELEGATION_DESCRIPTORS * delegations;
        RESERVED + sockets + window_files + listings + 2 * pipes + state + files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_of_a_process_are_divided_without_rest() {
        for serves_v4 in [false, true] {
            let plan = DescriptorPlan::new(524_288, 16_384, 16_384, serves_v4);
            assert_eq!((plan.sockets, plan.window_files), (16_384, 16_384));
            assert_eq!((plan.opens > 40_000, plan.lock_owners > 10_000), (serves_v4, serves_v4));
            assert_eq!(plan.sum(), 524_288);
        }
    }

    #[test]
    fn objects_have_what_opens_and_delegations_do_not_pin() {
        let plan = DescriptorPlan::new(20_000, 5_000, 2_500, true);
        assert!(plan.opens > 1_000 && plan.files < 4_000, "{plan:?}");
        assert_eq!(plan.objects(), plan.files + 5 * (plan.opens + plan.delegations));
        assert!(plan.objects() > 9_000, "{plan:?}");
    }

    #[test]
    fn few_descriptors_leave_some_for_each_holder() {
        for limit in [0, 256, 1024, 4096] {
            let plan = DescriptorPlan::new(limit, 16_384, 16_384, true);
            assert!(plan.sockets >= 1 && plan.sockets <= (limit / SOCKETS_PART).max(1), "{plan:?}");
            assert!(plan.opens >= STATE_MIN && plan.lock_owners >= STATE_MIN, "{plan:?}");
            assert!(plan.window_files >= WINDOW_FILES_MIN && plan.files >= FILES_MIN, "{plan:?}");
        }
    }
}
