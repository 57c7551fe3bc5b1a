//! The server's counters since its start.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lists the counters once: the variant, its name for people and machines, and what it counts.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// One of the counters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Counter {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name, with its unit last.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

counters! {
    /// Calls taken from connections.
    Calls => "calls",
    /// Calls answered from the reply cache.
    Replays => "replays",
    /// Retransmissions over the connection of a call that is still at work, which were dropped.
    DroppedRetransmissions => "dropped_retransmissions",
    /// Retransmissions over another connection that waited for the first copy's end or delivery.
    AwaitedRetransmissions => "awaited_retransmissions",
    /// Calls whose arguments could not be decoded.
    GarbageCalls => "garbage_calls",
    /// Calls refused by the export table.
    DeniedCalls => "denied_calls",
    /// Connections accepted.
    Connections => "connections",
    /// Connections closed because the peer sent nonsense, or stopped within a call, or took nothing.
    BrokenConnections => "broken_connections",
    /// Idle connections closed to make room for others.
    ConnectionsEvicted => "connections_evicted",
    /// Connections refused because their peer, or all strangers, had too many at work.
    ConnectionsRefused => "connections_refused",
    /// Bytes returned by READ.
    ReadBytes => "read_bytes",
    /// READs served from the page cache on the connection's thread.
    ReadsInline => "reads_inline",
    /// READs handed to a data thread.
    ReadsQueued => "reads_queued",
    /// READs through the page cache because their export's mode is `buffered`.
    ReadsCachedByMode => "reads_cached_by_mode",
    /// READs through the page cache because there was free memory to cache them in (`auto`).
    ReadsCachedInFreeMemory => "reads_cached_in_free_memory",
    /// READs through the page cache because the range had been read before (`auto`).
    ReadsCachedAsReread => "reads_cached_as_reread",
    /// READs answered from the page cache, where others had left the range (`auto`).
    ReadsResident => "reads_resident",
    /// READs through the page cache that left it as it was.
    ReadsDontcache => "reads_dontcache",
    /// READs past the page cache.
    ReadsDirect => "reads_direct",
    /// Of these, READs whose range had to be widened to the alignment.
    ReadsWidened => "reads_widened",
    /// READs answered from what had been read ahead past the page cache.
    ReadsFromReadAhead => "reads_from_read_ahead",
    /// Bytes read ahead past the page cache.
    ReadAheadBytes => "read_ahead_bytes",
    /// Chunks that were to be read ahead and could not be had or kept.
    ReadAheadAbandoned => "read_ahead_abandoned",
    /// Chunks that were not read ahead because the kernel refused a watch of the file.
    ReadAheadUnwatched => "read_ahead_unwatched",
    /// READs whose chunks were outdated by a change since.
    ReadAheadOutdated => "read_ahead_outdated",
    /// READs that were to go past the page cache and could not, because the file does no direct I/O.
    ReadsWithoutDirect => "reads_without_direct",
    /// READs spliced from the page cache to the socket.
    ReadsSpliced => "reads_spliced",
    /// READs and WRITEs whose direct I/O the kernel refused, and which went through the page cache.
    DirectRefused => "direct_refused",
    /// WRITEs through the page cache because their export's mode is `buffered`.
    WritesCachedByMode => "writes_cached_by_mode",
    /// WRITEs left in the page cache because there was free memory (`auto`).
    WritesCachedInFreeMemory => "writes_cached_in_free_memory",
    /// WRITEs through the write-behind window because their export's mode is `dontcache`.
    WritesWindowByMode => "writes_window_by_mode",
    /// WRITEs through the window because they were too small to be split (`direct`).
    WritesWindowAsSmall => "writes_window_as_small",
    /// WRITEs through the window because the file does no direct I/O (`direct`).
    WritesWindowWithoutDirect => "writes_window_without_direct",
    /// WRITEs through the window because they were part of a long stream (`auto`).
    WritesWindowAsStream => "writes_window_as_stream",
    /// WRITEs through the window because memory was short (`auto`).
    WritesWindowUnderPressure => "writes_window_under_pressure",
    /// WRITEs past the page cache, as a whole or in their middle.
    WritesDirect => "writes_direct",
    /// Of these, WRITEs with a ragged end.
    WritesSplit => "writes_split",
    /// Turns on a file that several WRITEs had together, because they waited for it.
    WriteBatches => "write_batches",
    /// WRITEs in these turns.
    WritesInBatches => "writes_in_batches",
    /// Bytes of these WRITEs.
    WriteBatchBytes => "write_batch_bytes",
    /// Of these, WRITEs that were performed as one with their neighbours in the file.
    WritesVectored => "writes_vectored",
    /// WRITEs that reached the server behind their neighbour further on in the file.
    WritesOutOfOrder => "writes_out_of_order",
    /// Bytes taken by WRITE.
    WriteBytes => "write_bytes",
    /// Payload bytes of WRITE calls received.
    PayloadBytes => "payload_bytes",
    /// Of these, the bytes that came along with a call's head and had to be moved to their buffer.
    PayloadMovedBytes => "payload_moved_bytes",
    /// COMMIT calls.
    Commits => "commits",
    /// READDIR and READDIRPLUS calls.
    Readdirs => "readdirs",
    /// Of these, calls that begin at the beginning of the directory.
    ReaddirsFromStart => "readdirs_from_start",
    /// READDIR and READDIRPLUS calls whose reply ended early because it took too long.
    ReaddirsCutShort => "readdirs_cut_short",
}

/// The counters of one server.
#[derive(Debug)]
pub struct Counters([AtomicU64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Counter::ALL.len()])
    }
}

impl Counters {
    /// Adds to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.0[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// The value of a counter.
    pub fn value(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}
