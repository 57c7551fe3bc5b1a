//! The memory of a server by its holders. Each part of the server takes its bound from here.

use io::BufferPool;
use rpc::server::{HEAD_BYTES_MAX, STAGING_BYTES};
use rustix::param::page_size;

use crate::connections::{CALLS_MAX, CALLS_MIN};
use crate::counters::CLIENTS_BYTES_MAX;
use crate::descriptor_plan::DescriptorPlan;
use crate::reply_cache;
use crate::state::Limits;
use crate::trace::{FOLLOWERS_BYTES_MAX, RECORDER_BYTES};

/// The pool holds at least so many of the largest transfers: a few of each kind are always at work,
/// and each returns its buffer to those that wait.
const POOL_TRANSFERS_MIN: usize = 4;
/// Chunks take at most this part of the budget: enough for several streams, and most is left to
/// requests.
const CHUNKS_PART: usize = 4;
/// One connection's calls hold at most this part of the pool, so that a client that stops reading
/// its replies leaves enough for the others until it is given up.
const CONNECTION_PART: usize = 4;
/// Calls of one connection at work at a time, at most. Linux asks for up to 128 at once.
const CONNECTION_CALLS_MAX: usize = 128;
/// The longest reply to READDIR or READDIRPLUS, in bytes: a client may ask for more and gets this
/// much.
const LISTING_BYTES_MAX: u32 = 1024 * 1024;
/// The head of a reply, mostly.
pub(crate) const REPLY_HEAD_BYTES: usize = 512;
/// The longest head of a reply outside the budget.
const REPLY_HEAD_BYTES_MAX: usize = 2048;
/// Names of one `getdents64` call.
pub(crate) const KERNEL_BUFFER_BYTES: usize = 32 * 1024;
/// Inodes in the cache of handles.
pub(crate) const CACHED_HANDLES_MAX: usize = 160 * 1024;
/// Memory of one of them.
pub(crate) const CACHED_HANDLE_BYTES: usize = 48;

/// The settings of the configuration that bound memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// `memory`.
    pub(crate) memory_bytes: usize,
    /// `window`; at most half of it.
    pub(crate) window_bytes: usize,
    /// `max_transfer`; at most an eighth of it.
    pub(crate) transfer_bytes_max: u32,
}

/// The bound of each holder of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    // The two terms of the budget (`memory` in the configuration).
    /// Page cache that was written and is not clean yet. Held by the window (`WriteBehind`) from
    /// before `pwrite` to the end of write-back. Divided among the devices that have some; what one
    /// has filled alone it keeps when others come, so that they exceed this until its disk takes
    /// it. A single WRITE that is larger is admitted while its device has nothing in the window.
    pub(crate) window_bytes: usize,
    /// Page-aligned buffers, idle ones too. Held by the `BufferPool`, and by
    ///
    /// - a WRITE, from the first byte of its data to the end of `pwrite`;
    /// - a READ, from before `pread` to the last byte sent;
    /// - a listing, a long link target, a list of MOUNT or the results of a long COMPOUND, from
    ///   before it is made to the last byte sent;
    /// - a chunk that was read ahead, until it leaves.
    ///
    /// A client address holds at most three quarters of it, chunks apart, and the data of a device
    /// if the exports lie on several.
    pub(crate) pool_bytes: usize,

    // Bounds within the pool. They are no reservations, and overlap.
    /// Chunks that were read ahead, of all files. Held by the `ReadAhead` of an inode.
    pub(crate) chunks_bytes: usize,
    /// One READ or WRITE.
    pub(crate) transfer_bytes_max: u32,
    /// One listing. Not more than a transfer, which the calls of a connection are computed from.
    pub(crate) listing_bytes_max: u32,
    /// Calls of one connection at work: as many transfers as its part of the pool holds, but at
    /// least two.
    pub(crate) connection_calls_max: usize,

    // Terms outside the budget. A peer reaches the bounds of the first two only with heads of the
    // greatest length, in as many connections as there may be.
    /// Bytes received and not parsed yet. Held by the `Receiver` of a connection that has some.
    pub(crate) staging_bytes: usize,
    /// Heads of calls and of replies. Held by the calls at work; mostly about 700 bytes each.
    pub(crate) heads_bytes: usize,
    /// The head of one reply; what is longer is charged to the budget.
    pub(crate) reply_head_bytes_max: usize,
    /// Page cache that spliced replies pin until they are sent. Held by the pipes of the
    /// `PipePool`.
    pub(crate) pipes_bytes: usize,
    /// Names read from the kernel and not listed yet. Held by a `DirectoryStream` between two
    /// calls.
    pub(crate) names_bytes: usize,
    /// Replies to calls that must not run twice. Held by the `ReplyCache` for two minutes.
    pub(crate) replies_bytes: usize,
    /// Sessions of version 4, each with its slots and one reply. Held by `State`.
    pub(crate) sessions_bytes: usize,
    /// Replies that the other slots of all sessions keep. Held by `State`, as its `ReplyBudget`.
    pub(crate) slot_replies_bytes: usize,
    /// Clients, opens, locks, and waiting locks with their notices, of version 4. Held by `State`,
    /// and by the backchannels of sessions.
    pub(crate) owners_bytes: usize,
    /// Delegations of version 4. Held by `State` and `HeldFiles`.
    pub(crate) delegations_bytes: usize,
    /// Handles of listed inodes. Held by the `HandleCache`, which allocates each 64th part when it
    /// is first used.
    pub(crate) handles_bytes: usize,
    /// Trace events that a command follows and has not taken yet. Held by its `Follower`.
    pub(crate) followers_bytes: usize,
    /// Counters of client addresses. Held by the `ClientTable`.
    pub(crate) client_counters_bytes: usize,
    /// The last calls. Held by the `Recorder`.
    pub(crate) recorder_bytes: usize,
    /// The rest of a huge page for each size of buffers. Held by the `BufferPool`.
    pub(crate) slab_rest_bytes: usize,
}

impl MemoryPlan {
    /// Divides the budget of a process with these descriptors. `state` has the bounds of version 4,
    /// if it is served.
    ///
    /// # Panics
    /// The terms do not add up to the budget, or a bound within the pool is larger than the pool.
    /// Neither happens with a valid configuration.
    pub(crate) fn new(
        budget: Budget,
        descriptors: &DescriptorPlan,
        state: Option<&Limits>,
    ) -> Self {
        let Budget { memory_bytes, window_bytes, transfer_bytes_max } = budget;
        let pool_bytes = memory_bytes.saturating_sub(window_bytes);
        let transfer_bytes = usize::try_from(transfer_bytes_max).expect("a usize has 32 bits");
        let connection_calls = pool_bytes / CONNECTION_PART / transfer_bytes;
        let calls_max = CALLS_MAX.max(CALLS_MIN * descriptors.sockets);
        let plan = Self {
            window_bytes,
            pool_bytes,
            chunks_bytes: memory_bytes / CHUNKS_PART,
            transfer_bytes_max,
            listing_bytes_max: LISTING_BYTES_MAX.min(transfer_bytes_max),
            connection_calls_max: connection_calls.clamp(CALLS_MIN, CONNECTION_CALLS_MAX),
            staging_bytes: descriptors.sockets * STAGING_BYTES,
            heads_bytes: calls_max * (HEAD_BYTES_MAX + REPLY_HEAD_BYTES_MAX),
            reply_head_bytes_max: REPLY_HEAD_BYTES_MAX,
            pipes_bytes: descriptors.pipes * (transfer_bytes + page_size()),
            names_bytes: descriptors.listings * KERNEL_BUFFER_BYTES,
            replies_bytes: reply_cache::BYTES_MAX,
            sessions_bytes: state.map_or(0, Limits::sessions_bytes),
            slot_replies_bytes: state.map_or(0, |limits| limits.replies_bytes_max),
            owners_bytes: state.map_or(0, Limits::owners_bytes),
            delegations_bytes: state.map_or(0, Limits::delegations_bytes),
            handles_bytes: CACHED_HANDLES_MAX * CACHED_HANDLE_BYTES,
            followers_bytes: FOLLOWERS_BYTES_MAX,
            client_counters_bytes: CLIENTS_BYTES_MAX,
            recorder_bytes: RECORDER_BYTES,
            slab_rest_bytes: BufferPool::SLAB_REST_BYTES_MAX,
        };
        assert_eq!(plan.window_bytes + plan.pool_bytes, memory_bytes, "{plan:?}");
        assert!(plan.pool_bytes >= POOL_TRANSFERS_MIN * transfer_bytes, "{plan:?}");
        assert!(plan.chunks_bytes <= plan.pool_bytes, "{plan:?}");
        assert!(plan.connection_calls_max * transfer_bytes <= plan.pool_bytes, "{plan:?}");
        plan
    }

    /// All that lies outside the budget, in bytes.
    pub(crate) fn outside_bytes(&self) -> usize {
        self.staging_bytes
            + self.heads_bytes
            + self.pipes_bytes
            + self.names_bytes
            + self.replies_bytes
            + self.sessions_bytes
            + self.slot_replies_bytes
            + self.owners_bytes
            + self.delegations_bytes
            + self.handles_bytes
            + self.followers_bytes
            + self.client_counters_bytes
            + self.recorder_bytes
            + self.slab_rest_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    const DEFAULT: Budget =
        Budget { memory_bytes: 256 * MIB, window_bytes: 64 * MIB, transfer_bytes_max: 1 << 20 };

    fn plan(budget: Budget, connections_max: usize) -> MemoryPlan {
        let descriptors = DescriptorPlan::new(524_288, connections_max, 16_384, false);
        MemoryPlan::new(budget, &descriptors, None)
    }

    #[test]
    fn the_default_budget_is_the_window_and_the_pool() {
        let plan = plan(DEFAULT, 16_384);
        assert_eq!((plan.window_bytes, plan.pool_bytes), (64 * MIB, 192 * MIB));
        assert_eq!((plan.chunks_bytes, plan.connection_calls_max), (64 * MIB, 48));
        assert_eq!((plan.transfer_bytes_max, plan.listing_bytes_max), (1 << 20, 1 << 20));
    }

    #[test]
    fn the_plan_holds_at_the_limits_of_the_configuration() {
        for (memory_bytes, window_bytes, transfer_bytes_max, calls) in [
            (512 * KIB, 256 * KIB, 64 << 10, 2),
            (32 * MIB, 16 * MIB, 4 << 20, 2),
            (64 * 1024 * MIB, 64 * MIB, 64 << 10, CONNECTION_CALLS_MAX),
        ] {
            let plan = plan(Budget { memory_bytes, window_bytes, transfer_bytes_max }, 16_384);
            assert_eq!(plan.connection_calls_max, calls, "{plan:?}");
            assert!(plan.listing_bytes_max <= plan.transfer_bytes_max, "{plan:?}");
        }
    }

    #[test]
    fn memory_outside_the_budget_is_bounded() {
        let plan = plan(DEFAULT, 16);
        assert!(plan.outside_bytes() - plan.heads_bytes < 64 * MIB, "{plan:?}");
        let counters_bytes = plan.client_counters_bytes;
        assert!((MIB / 2..2 * MIB).contains(&counters_bytes), "docs/limits.md: {counters_bytes}");
    }

    #[test]
    fn version_4_adds_its_state() {
        let descriptors = DescriptorPlan::new(524_288, 16, 16_384, true);
        let limits = Limits::default().with_files(10_000, 10_000, 1 << 20);
        let plan = MemoryPlan::new(DEFAULT, &descriptors, Some(&limits));
        let added = plan.outside_bytes() - self::plan(DEFAULT, 16).outside_bytes();
        let state = plan.sessions_bytes
            + plan.slot_replies_bytes
            + plan.owners_bytes
            + plan.delegations_bytes;
        assert_eq!(added, state);
        assert!(plan.sessions_bytes + plan.slot_replies_bytes <= 96 * MIB, "{plan:?}");
        assert!(plan.owners_bytes <= 160 * MIB, "{plan:?}");
        let plan = MemoryPlan::new(DEFAULT, &descriptors, Some(&Limits::default()));
        assert!(plan.owners_bytes <= 232 * MIB, "docs/limits.md: {plan:?}");
        assert!(plan.delegations_bytes <= 16 * MIB, "{plan:?}");
    }

    #[test]
    #[should_panic = "window_bytes"]
    fn a_window_beyond_the_budget_is_no_plan() {
        plan(Budget { window_bytes: 512 * MIB, ..DEFAULT }, 16);
    }
}
