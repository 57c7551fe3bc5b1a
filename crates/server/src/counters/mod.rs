//! The server's counters since its start, by export, procedure and client.
//!
//! [`Counter`] is the one table of what is counted: names, help texts, and the place of each in the
//! metrics. A [`CounterSet`] has all counters of one export, or of what belongs to none.

mod clients;
mod figures;
mod histogram;
mod operations;
mod phase_timer;
mod sets;
mod striped;
mod tally;
mod timing;

pub(crate) use clients::{CLIENTS_BYTES_MAX, ClientCounters, ClientTable};
pub use figures::{Figure, FigureKind};
pub(crate) use histogram::{BOUNDS_US, HistogramValue};
pub(crate) use operations::Operation;
pub(crate) use phase_timer::PhaseTimer;
pub use sets::Counters;
pub(crate) use sets::{CounterSet, OperationValue};
pub(crate) use striped::{STRIPES, assign_stripe, next_stripes, own_stripe};
pub(crate) use tally::Tally;
pub(crate) use timing::{CallKind, Phase};

/// Lists the counters once: the variant, its name for people and machines, what it counts, `of
/// server` if it belongs to the server as a whole and not to an export, and, for one of several
/// that a label distinguishes, the metric and the labels.
macro_rules! counters {
    (@is_of_server server) => { true };
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal $(of $owner:ident)?
        $(in $metric:literal { $($label:literal: $value:literal),+ })?,)+) => {
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

            /// Its description, in a sentence.
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// Whether it belongs to the server as a whole, and not to an export.
            pub fn is_of_server(self) -> bool {
                match self {
                    $($(Self::$variant => counters!(@is_of_server $owner),)?)+
                    _ => false,
                }
            }

            /// The name of the metric that it is a part of, without prefix and suffix, and the
            /// labels that distinguish it there.
            pub fn metric(self) -> (&'static str, &'static [(&'static str, &'static str)]) {
                match self {
                    $($(Self::$variant => ($metric, &[$(($label, $value)),+]),)?)+
                    _ => (self.name(), &[]),
                }
            }
        }
    };
}

counters! {
    /// Calls taken from connections.
    Calls => "calls" of server,
    /// Calls answered from the reply cache, or from the slot of a session.
    Replays => "replays" of server,
    /// Retransmissions over the connection of a call that is still at work, which were dropped.
    DroppedRetransmissions => "dropped_retransmissions" of server,
    /// Retransmissions over another connection that waited for the first copy's end or delivery.
    AwaitedRetransmissions => "awaited_retransmissions" of server,
    /// Calls whose arguments could not be decoded.
    GarbageCalls => "garbage_calls" of server,
    /// Calls refused by the export table.
    DeniedCalls => "denied_calls" of server,
    /// Connections accepted.
    Connections => "connections" of server,
    /// Connections closed because the peer sent nonsense, or stopped within a call, or took
    /// nothing.
    BrokenConnections => "broken_connections" of server,
    /// Times that a connection waited because a limit of an export was reached.
    LimitWaits => "limit_waits" of server,
    /// Idle connections closed to make room for others.
    ConnectionsEvicted => "connections_evicted" of server,
    /// Connections refused because their peer, or all strangers, had too many at work.
    ConnectionsRefused => "connections_refused" of server,
    /// Calls of version 4 put off because there were too many clients, sessions, opens or locks.
    Nfs4CallsPutOff => "nfs4_calls_put_off" of server,
    /// Bytes returned by READ.
    ReadBytes => "read_bytes",
    /// Bytes of READs that went through the page cache, or were there.
    ReadPageCacheBytes => "read_page_cache_bytes"
        in "io_bytes" { "direction": "read", "mode": "page_cache" },
    /// Bytes of READs that went through the page cache and left it as it was.
    ReadDropBehindBytes => "read_drop_behind_bytes"
        in "io_bytes" { "direction": "read", "mode": "drop_behind" },
    /// Bytes of READs that went past the page cache.
    ReadDirectBytes => "read_direct_bytes"
        in "io_bytes" { "direction": "read", "mode": "direct" },
    /// Bytes of READs that had been read ahead past the page cache.
    ReadFromReadAheadBytes => "read_from_read_ahead_bytes"
        in "io_bytes" { "direction": "read", "mode": "read_ahead" },
    /// READs whose data was in the page cache and was taken without a wait, on any thread.
    ReadsInline => "reads_inline",
    /// Jobs of READs that could wait for the disk. A READ that is refused or fails past
    /// the page cache has two.
    ReadsQueued => "reads_queued",
    /// READs through the page cache because their export's mode is `buffered`.
    ReadsCachedByMode => "reads_cached_by_mode"
        in "read_choices" { "source": "page_cache", "reason": "mode" },
    /// READs through the page cache because there was free memory to cache them in (`auto`).
    ReadsCachedInFreeMemory => "reads_cached_in_free_memory"
        in "read_choices" { "source": "page_cache", "reason": "free_memory" },
    /// READs through the page cache because the range had been read before (`auto`).
    ReadsCachedAsReread => "reads_cached_as_reread"
        in "read_choices" { "source": "page_cache", "reason": "read_again" },
    /// READs answered from the page cache, where others had left the range (`auto`).
    ReadsResident => "reads_resident"
        in "read_choices" { "source": "page_cache", "reason": "resident" },
    /// READs through the page cache that left it as it was.
    ReadsDontcache => "reads_dontcache"
        in "read_choices" { "source": "drop_behind", "reason": "plan" },
    /// READs past the page cache.
    ReadsDirect => "reads_direct"
        in "read_choices" { "source": "direct", "reason": "plan" },
    /// READs past the page cache whose range had to be widened to the alignment.
    ReadsWidened => "reads_widened",
    /// READs answered from what had been read ahead past the page cache.
    ReadsFromReadAhead => "reads_from_read_ahead"
        in "read_choices" { "source": "read_ahead", "reason": "sequential" },
    /// Bytes read ahead past the page cache.
    ReadAheadBytes => "read_ahead_bytes",
    /// Bytes that the kernel was made to read into the page cache for streams of READs.
    PrefetchedBytes => "prefetched_bytes",
    /// Chunks that were to be read ahead and could not be had or kept.
    ReadAheadAbandoned => "read_ahead_abandoned",
    /// Chunks that were not read ahead because the kernel refused a watch of the file.
    ReadAheadUnwatched => "read_ahead_unwatched",
    /// Sequential READs that found no room for chunks to be read ahead.
    ReadAheadWithoutRoom => "read_ahead_without_room",
    /// READs whose chunks were outdated by a change since.
    ReadAheadOutdated => "read_ahead_outdated",
    /// READs that were to go past the page cache and could not, because the file does no direct
    /// I/O.
    ReadsWithoutDirect => "reads_without_direct",
    /// READs spliced from the page cache to the socket.
    ReadsSpliced => "reads_spliced",
    /// READs that failed past the page cache, and went through it.
    DirectReadsFailed => "direct_reads_failed",
    /// READs and WRITEs whose direct I/O the kernel refused, and which went through the page cache.
    DirectRefused => "direct_refused",
    /// WRITEs through the page cache because their export's mode is `buffered`.
    WritesCachedByMode => "writes_cached_by_mode"
        in "write_choices" { "target": "page_cache", "reason": "mode" },
    /// WRITEs left in the page cache because there was free memory (`auto`).
    WritesCachedInFreeMemory => "writes_cached_in_free_memory"
        in "write_choices" { "target": "page_cache", "reason": "free_memory" },
    /// WRITEs through the write-behind window because their export's mode is `dontcache`.
    WritesWindowByMode => "writes_window_by_mode"
        in "write_choices" { "target": "window", "reason": "mode" },
    /// WRITEs through the window because they were too small to be split (`direct`).
    WritesWindowAsSmall => "writes_window_as_small"
        in "write_choices" { "target": "window", "reason": "small" },
    /// WRITEs through the window because the file does no direct I/O (`direct`).
    WritesWindowWithoutDirect => "writes_window_without_direct"
        in "write_choices" { "target": "window", "reason": "no_direct_io" },
    /// WRITEs through the window because they were part of a long stream (`auto`).
    WritesWindowAsStream => "writes_window_as_stream"
        in "write_choices" { "target": "window", "reason": "stream" },
    /// WRITEs through the window because memory was short (`auto`).
    WritesWindowUnderPressure => "writes_window_under_pressure"
        in "write_choices" { "target": "window", "reason": "memory_pressure" },
    /// WRITEs past the page cache, as a whole or in their middle.
    WritesDirect => "writes_direct"
        in "write_choices" { "target": "direct", "reason": "plan" },
    /// WRITEs past the page cache with a ragged end.
    WritesSplit => "writes_split",
    /// Turns on a file that several WRITEs had together, because they waited for it.
    WriteBatches => "write_batches",
    /// WRITEs in turns on a file that several had together.
    WritesInBatches => "writes_in_batches",
    /// Bytes of the WRITEs in turns on a file that several had together.
    WriteBatchBytes => "write_batch_bytes",
    /// WRITEs that were performed as one with their neighbours in the file.
    WritesVectored => "writes_vectored",
    /// WRITEs performed by a data thread that stayed with their connection.
    WritesByStayingThread => "writes_by_staying_thread" of server,
    /// READs performed by a data thread that stayed with their connection.
    ReadsByStayingThread => "reads_by_staying_thread" of server,
    /// Calls about names and attributes performed by a thread that stayed with their connection.
    MetadataCallsByStayingThread => "metadata_calls_by_staying_thread" of server,
    /// Calls for which a staying thread polled, and that came before it slept.
    CallsFoundByPolling => "calls_found_by_polling" of server,
    /// WRITEs that reached the server behind their neighbour further on in the file.
    WritesOutOfOrder => "writes_out_of_order" of server,
    /// Bytes that WRITE has put in files, also those whose flush failed then.
    WriteBytes => "write_bytes",
    /// Bytes of WRITEs that went to the page cache to stay there.
    WritePageCacheBytes => "write_page_cache_bytes"
        in "io_bytes" { "direction": "write", "mode": "page_cache" },
    /// Bytes of WRITEs that went through the write-behind window.
    WriteWindowBytes => "write_window_bytes"
        in "io_bytes" { "direction": "write", "mode": "window" },
    /// Bytes of WRITEs that went past the page cache, as a whole or in their middle.
    WriteDirectBytes => "write_direct_bytes"
        in "io_bytes" { "direction": "write", "mode": "direct" },
    /// Payload bytes of WRITE calls received.
    PayloadBytes => "payload_bytes" of server,
    /// Payload bytes that came along with a call's head and had to be moved to their buffer.
    PayloadMovedBytes => "payload_moved_bytes" of server,
    /// COMMIT calls.
    Commits => "commits",
    /// READDIR and READDIRPLUS calls.
    Readdirs => "readdirs",
    /// READDIR and READDIRPLUS calls that begin at the beginning of the directory.
    ReaddirsFromStart => "readdirs_from_start",
    /// READDIR and READDIRPLUS calls whose reply ended early because it took too long.
    ReaddirsCutShort => "readdirs_cut_short",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_figure_has_its_name_and_a_sentence_of_help() {
        let counters = Counter::ALL.iter().map(|counter| (counter.name(), counter.help()));
        let figures = Figure::ALL.iter().map(|figure| (figure.name(), figure.help()));
        let all: Vec<_> = counters.chain(figures).collect();
        let names: BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), all.len());
        for (name, help) in all {
            assert!(help.ends_with('.') && !help.contains("  "), "{name}: {help:?}");
            // Metrics are sorted by name, so there is no line that it could refer to.
            assert!(!help.to_lowercase().contains("these"), "{name}: {help:?}");
        }
    }
}
