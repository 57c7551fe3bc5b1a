//! What the server did, counted since its start.

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
    /// Retransmissions dropped because the first call is still at work.
    DroppedRetransmissions => "dropped_retransmissions",
    /// Calls whose arguments could not be decoded.
    GarbageCalls => "garbage_calls",
    /// Calls refused by the export table.
    DeniedCalls => "denied_calls",
    /// Connections accepted.
    Connections => "connections",
    /// Connections closed because the peer sent nonsense or nothing, or took nothing.
    BrokenConnections => "broken_connections",
    /// Bytes returned by READ.
    ReadBytes => "read_bytes",
    /// READs served from the page cache on the connection's thread.
    ReadsInline => "reads_inline",
    /// READs handed to a data thread.
    ReadsQueued => "reads_queued",
    /// Bytes taken by WRITE.
    WriteBytes => "write_bytes",
    /// Payload bytes of WRITE calls received.
    PayloadBytes => "payload_bytes",
    /// Of these, the bytes that came along with a call's head and had to be moved to their buffer.
    PayloadMovedBytes => "payload_moved_bytes",
    /// COMMIT calls.
    Commits => "commits",
}

/// The counters of one server.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; Counter::ALL.len()]);

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
