//! Figures of a server beside its counters: present amounts, and the counts of the window.

/// Whether a figure only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// It only grows, from the start of the server.
    Counter,
    /// It is what there is now.
    Gauge,
}

/// Lists the figures once: the variant, its name, its kind, and what it is.
macro_rules! figures {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal $kind:ident,)+) => {
        /// One of the figures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Figure {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Figure {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name, with its unit last.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Its description, in a sentence.
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// Whether it only grows.
            pub fn kind(self) -> FigureKind {
                match self { $(Self::$variant => FigureKind::$kind,)+ }
            }
        }
    };
}

figures! {
    /// Written data in the window: dirty, or not yet dropped from the page cache.
    WindowBytes => "window_bytes" Gauge,
    /// The most that the window holds.
    WindowBytesMax => "window_max_bytes" Gauge,
    /// Files with data in the window.
    WindowFiles => "window_files" Gauge,
    /// WRITEs through the window that came behind data further on in the file.
    WindowOutOfOrderWrites => "window_out_of_order_writes" Counter,
    /// WRITEs through the window that met data further on in the file before it went to the disk.
    WindowWritesPutInOrder => "window_writes_put_in_order" Counter,
    /// Ranges whose write-back was begun, each in one piece.
    WindowRuns => "window_runs" Counter,
    /// Bytes of the ranges whose write-back was begun.
    WindowWrittenBackBytes => "window_written_back_bytes" Counter,
    /// Bytes dropped from the page cache when they were clean.
    WindowDroppedBytes => "window_dropped_bytes" Counter,
    /// Bytes left in the page cache because they were there before they were written.
    WindowKeptBytes => "window_kept_bytes" Counter,
    /// Bytes that could not be dropped: mapped by a process, in a folio with others, or in use.
    WindowStuckBytes => "window_stuck_bytes" Counter,
    /// Bytes forgotten because their file system offers no way to write them back early.
    WindowForgottenBytes => "window_forgotten_bytes" Counter,
    /// Pages filled only in part that later WRITEs have filled in the window, about.
    WindowEdgesFilled => "window_edges_filled" Counter,
    /// Pages written back though they were filled only in part.
    WindowEdgesGivenUp => "window_edges_given_up" Counter,
    /// WRITEs that had to wait for room in the window.
    WindowThrottledWrites => "window_throttled_writes" Counter,
    /// Write-backs of the window that failed.
    WindowErrors => "window_errors" Counter,
    /// Clients of version 4.
    Nfs4Clients => "nfs4_clients" Gauge,
    /// Sessions of version 4.
    Nfs4Sessions => "nfs4_sessions" Gauge,
    /// Opens of version 4.
    Nfs4Opens => "nfs4_opens" Gauge,
    /// Lock states and locked ranges of version 4.
    Nfs4Locks => "nfs4_locks" Gauge,
    /// Delegations of version 4, also revoked ones that are still known.
    Nfs4Delegations => "nfs4_delegations" Gauge,
    /// Delegations that were given.
    Nfs4DelegationsGranted => "nfs4_delegations_granted" Counter,
    /// Delegations that were recalled, each once.
    Nfs4DelegationsRecalled => "nfs4_delegations_recalled" Counter,
    /// Delegations that their clients have returned.
    Nfs4DelegationsReturned => "nfs4_delegations_returned" Counter,
    /// Delegations that were revoked, because their clients did not return them in time, or did not
    /// know them.
    Nfs4DelegationsRevoked => "nfs4_delegations_revoked" Counter,
    /// Requests for locks of version 4 that wait.
    Nfs4WaitingLocks => "nfs4_waiting_locks" Gauge,
    /// Memory of the replies that slots of version 4 keep.
    Nfs4RepliesBytes => "nfs4_replies_bytes" Gauge,
    /// Whether clients of version 4 may reclaim state now: 1, or 0.
    Nfs4InGrace => "nfs4_in_grace" Gauge,
    /// Connections that are open.
    ConnectionsOpen => "connections_open" Gauge,
    /// The most connections that may be open.
    ConnectionsMax => "connections_max" Gauge,
    /// Calls in progress, from their first byte to the last of their reply.
    CallsInFlight => "calls_in_flight" Gauge,
    /// Objects that the server has open between calls.
    OpenObjects => "open_objects" Gauge,
    /// Buffers in use.
    BuffersInUseBytes => "buffers_in_use_bytes" Gauge,
    /// Buffers that have memory, in use or not.
    BuffersMappedBytes => "buffers_mapped_bytes" Gauge,
    /// The most memory that buffers take.
    BuffersMaxBytes => "buffers_max_bytes" Gauge,
    /// Calls that wait for a buffer.
    BufferWaiters => "buffer_waiters" Gauge,
    /// Memory that the page cache may still grow into.
    MemoryFreeBytes => "memory_free_bytes" Gauge,
    /// Seconds since the start.
    UptimeSeconds => "uptime_seconds" Gauge,
}
