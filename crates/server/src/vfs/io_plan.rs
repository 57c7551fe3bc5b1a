//! How a READ or WRITE is done, and why: pure functions of facts that are known without waiting.

use io::IoMode;

use crate::counters::Counter;

/// The smallest WRITE that `direct` splits. From here on that takes less of the server's processor
/// than the window: per GiB of misaligned WRITEs, split and through the window, 128 KiB 0.68 s and
/// 0.57, 256 KiB 0.47 and 0.44, 512 KiB 0.38 and 0.44, 1 MiB 0.37 and 0.44 (XFS, Linux 6.18, depth
/// 1; `spillway bench io` in pairs). The window's rate is the higher one at every size.
pub(super) const SPLIT_BYTES_MIN: usize = 512 * 1024;
/// Bytes that a writer must have written in sequence before `auto` takes it for a stream whose
/// pages are not needed soon. Smaller files are often read back at once.
pub(super) const STREAM_BYTES_MIN: u64 = 8 * 1024 * 1024;
/// One part in so many of the memory stays free when `auto` fills the rest with what it reads. Past
/// that the kernel begins to reclaim.
const FREE_PART: u64 = 32;

/// From here on the kernel keeps a disk busy by itself. Cold READs of 47,008 bytes that it read ahead,
/// 8 in flight: with `read_ahead_kb` 128 982 MiB/s, 512 1,569, 2,560 1,646 (XFS, Linux 6.18;
/// `spillway bench io`). READs of 1 MiB are long enough themselves: decision
/// `2026-11-28-cold-reads-in-file-order.md`.
const KERNEL_READ_AHEAD_BYTES_MIN: u64 = 512 * 1024;

/// The facts that decide how a READ is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadFacts {
    pub(super) mode: IoMode,
    /// A part of the range was read ahead.
    pub(super) is_ahead: bool,
    /// Bytes of the file that are not known to be cached.
    pub(super) uncached_bytes: u64,
    /// The file system drops behind (`RWF_DONTCACHE`), as far as is known.
    pub(super) drops_behind: bool,
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
}

/// How a READ is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadPlan {
    /// What is in the page cache is taken from there, whatever `from` is.
    pub(super) looks_in_cache: bool,
    /// For what the page cache did not have.
    pub(super) from: ReadFrom,
}

/// Where the data of a READ comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFrom {
    /// Through the page cache, where it stays.
    Cache(CachedWhy),
    /// As `Cache(ReadAgain)` if the range was read not long ago, otherwise as `Direct`.
    CacheIfReread,
    /// Through the page cache, which is left as it was.
    DropBehind,
    /// Past the page cache. As `DropBehind` if the file does no direct I/O.
    Direct,
}

/// Why a READ goes through the page cache to stay there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CachedWhy {
    /// The mode is `buffered`.
    Mode,
    /// Memory is free.
    FreeMemory,
    /// It is read again, so caching it pays.
    ReadAgain,
}

impl ReadFacts {
    pub(super) fn plan(&self) -> ReadPlan {
        let has_room = fits(self.uncached_bytes, self.free_bytes, self.total_bytes);
        let from = match self.mode {
            IoMode::Buffered => ReadFrom::Cache(CachedWhy::Mode),
            IoMode::DontCache if self.drops_behind => ReadFrom::DropBehind,
            IoMode::DontCache | IoMode::Direct => ReadFrom::Direct,
            IoMode::Auto if has_room => ReadFrom::Cache(CachedWhy::FreeMemory),
            IoMode::Auto => ReadFrom::CacheIfReread,
        };
        let looks_in_cache = match from {
            ReadFrom::Cache(_) => true,
            ReadFrom::CacheIfReread => !self.is_ahead,
            ReadFrom::DropBehind | ReadFrom::Direct => false,
        };
        ReadPlan { looks_in_cache, from }
    }
}

impl CachedWhy {
    pub(super) fn counter(self) -> Counter {
        match self {
            Self::Mode => Counter::ReadsCachedByMode,
            Self::FreeMemory => Counter::ReadsCachedInFreeMemory,
            Self::ReadAgain => Counter::ReadsCachedAsReread,
        }
    }
}

/// The facts that decide how a WRITE is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteFacts {
    pub(super) mode: IoMode,
    /// Bytes to write.
    pub(super) len: u64,
    /// Bytes that were written in sequence up to and with this one; 0 when it is none. Only `auto`
    /// takes this and what follows into account.
    pub(super) stream_bytes: u64,
    /// The stream leaves gaps for others to fill, and they are too far away for the window to wait.
    pub(super) outreaches_window: bool,
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
}

/// How a WRITE is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WritePlan {
    /// Through the page cache, and left to the kernel.
    Cached(KeptWhy),
    /// Through the page cache and the write-behind window.
    Window(WindowWhy),
    /// Whole pages past the page cache, ragged ends through the window. As `Window(NoDirect)` if the
    /// file does no direct I/O.
    Split,
}

/// Why a WRITE stays in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptWhy {
    /// The mode is `buffered`.
    Mode,
    /// Memory is free, and it is no long stream.
    FreeMemory,
}

/// Why a WRITE goes through the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowWhy {
    /// The mode is `dontcache`.
    Mode,
    /// Too small to be split.
    Small,
    /// The file does no direct I/O.
    NoDirect,
    /// Part of a long stream.
    Stream,
    /// Memory is short.
    Pressure,
}

impl WriteFacts {
    pub(super) fn plan(&self) -> WritePlan {
        match self.mode {
            IoMode::Buffered => WritePlan::Cached(KeptWhy::Mode),
            IoMode::DontCache => WritePlan::Window(WindowWhy::Mode),
            IoMode::Direct if self.len < SPLIT_BYTES_MIN as u64 => {
                WritePlan::Window(WindowWhy::Small)
            }
            IoMode::Direct => WritePlan::Split,
            IoMode::Auto => self.automatic(),
        }
    }

    /// A long stream gains from the window whatever memory there is, because its pages are used
    /// again while they are warm; all else is absorbed by free memory best. So are several streams
    /// that take turns in one file and have drifted further apart than the window reaches: it would
    /// write each of their records by itself, where the kernel can wait for those between them.
    fn automatic(&self) -> WritePlan {
        if self.stream_bytes >= STREAM_BYTES_MIN && !self.outreaches_window {
            WritePlan::Window(WindowWhy::Stream)
        } else if fits(self.len, self.free_bytes, self.total_bytes) {
            WritePlan::Cached(KeptWhy::FreeMemory)
        } else {
            WritePlan::Window(WindowWhy::Pressure)
        }
    }
}

impl WritePlan {
    pub(super) fn counter(self) -> Counter {
        match self {
            Self::Cached(KeptWhy::Mode) => Counter::WritesCachedByMode,
            Self::Cached(KeptWhy::FreeMemory) => Counter::WritesCachedInFreeMemory,
            Self::Window(WindowWhy::Mode) => Counter::WritesWindowByMode,
            Self::Window(WindowWhy::Small) => Counter::WritesWindowAsSmall,
            Self::Window(WindowWhy::NoDirect) => Counter::WritesWindowWithoutDirect,
            Self::Window(WindowWhy::Stream) => Counter::WritesWindowAsStream,
            Self::Window(WindowWhy::Pressure) => Counter::WritesWindowUnderPressure,
            Self::Split => Counter::WritesDirect,
        }
    }
}

/// Whether the kernel, which reads so many bytes at once, needs no help to keep a disk busy.
pub(super) fn kernel_reads_ahead(kernel_reads_bytes: u64) -> bool {
    kernel_reads_bytes >= KERNEL_READ_AHEAD_BYTES_MIN
}

/// Whether so many bytes go into free memory with some to spare.
fn fits(bytes: u64, free_bytes: u64, total_bytes: u64) -> bool {
    bytes.saturating_add(total_bytes / FREE_PART) <= free_bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn read(mode: IoMode) -> ReadFacts {
        ReadFacts {
            mode,
            is_ahead: false,
            uncached_bytes: GIB,
            drops_behind: true,
            free_bytes: 0,
            total_bytes: 8 * GIB,
        }
    }

    fn write(mode: IoMode) -> WriteFacts {
        WriteFacts {
            mode,
            len: MIB,
            stream_bytes: 0,
            outreaches_window: false,
            free_bytes: 4 * GIB,
            total_bytes: 8 * GIB,
        }
    }

    #[test]
    fn plans_of_reads() {
        use ReadFrom::{Cache, CacheIfReread, Direct, DropBehind};
        let (dontcache, auto) = (read(IoMode::DontCache), read(IoMode::Auto));
        let free = Cache(CachedWhy::FreeMemory);
        let table = [
            (read(IoMode::Buffered), true, Cache(CachedWhy::Mode)),
            (dontcache, false, DropBehind),
            (ReadFacts { drops_behind: false, ..dontcache }, false, Direct),
            (read(IoMode::Direct), false, Direct),
            (auto, true, CacheIfReread),
            (ReadFacts { is_ahead: true, ..auto }, false, CacheIfReread),
            (ReadFacts { free_bytes: 2 * GIB, ..auto }, true, free),
            // Chunks are left alone where data stays in free memory.
            (ReadFacts { free_bytes: 2 * GIB, is_ahead: true, ..auto }, true, free),
            // Nothing to spare.
            (ReadFacts { free_bytes: GIB, ..auto }, true, CacheIfReread),
            // The rest of a file that is cached in part still fits.
            (ReadFacts { free_bytes: GIB, uncached_bytes: GIB / 2, ..auto }, true, free),
        ];
        for (facts, looks_in_cache, from) in table {
            assert_eq!(facts.plan(), ReadPlan { looks_in_cache, from }, "{facts:?}");
        }
    }

    #[test]
    fn plans_of_writes() {
        use WritePlan::{Cached, Split, Window};
        let (direct, auto) = (write(IoMode::Direct), write(IoMode::Auto));
        let stream = WriteFacts { stream_bytes: STREAM_BYTES_MIN, ..auto };
        let table = [
            (write(IoMode::Buffered), Cached(KeptWhy::Mode)),
            (write(IoMode::DontCache), Window(WindowWhy::Mode)),
            (direct, Split),
            (WriteFacts { len: SPLIT_BYTES_MIN as u64, ..direct }, Split),
            (WriteFacts { len: SPLIT_BYTES_MIN as u64 - 1, ..direct }, Window(WindowWhy::Small)),
            (auto, Cached(KeptWhy::FreeMemory)),
            (stream, Window(WindowWhy::Stream)),
            (WriteFacts { outreaches_window: true, ..stream }, Cached(KeptWhy::FreeMemory)),
            (
                WriteFacts { outreaches_window: true, free_bytes: 100 * MIB, ..stream },
                Window(WindowWhy::Pressure),
            ),
            (WriteFacts { free_bytes: 100 * MIB, ..auto }, Window(WindowWhy::Pressure)),
        ];
        for (facts, plan) in table {
            assert_eq!(facts.plan(), plan, "{facts:?}");
        }
    }

    fn any_mode() -> impl Strategy<Value = IoMode> {
        prop::sample::select(vec![
            IoMode::Buffered,
            IoMode::DontCache,
            IoMode::Direct,
            IoMode::Auto,
        ])
    }

    prop_compose! {
        fn any_read()(
            mode in any_mode(),
            is_ahead: bool,
            drops_behind: bool,
            uncached_bytes: u64,
            free_bytes: u64,
            total_bytes: u64,
        ) -> ReadFacts {
            ReadFacts {
                mode,
                is_ahead,
                uncached_bytes,
                drops_behind,
                free_bytes,
                total_bytes,
            }
        }
    }

    prop_compose! {
        fn any_write()(
            mode in any_mode(),
            len in 0..8 * MIB,
            stream_bytes in 0..2 * STREAM_BYTES_MIN,
            outreaches_window: bool,
            free_bytes: u64,
            total_bytes: u64,
        ) -> WriteFacts {
            WriteFacts { mode, len, stream_bytes, outreaches_window, free_bytes, total_bytes }
        }
    }

    proptest! {
        /// Only `auto` depends on memory, and it never fills memory that is in use.
        #[test]
        fn reads_stay_in_the_cache_by_mode_or_in_free_memory(facts in any_read()) {
            let stays = matches!(facts.plan().from, ReadFrom::Cache(_));
            match facts.mode {
                IoMode::Buffered => prop_assert!(stays),
                IoMode::DontCache | IoMode::Direct => prop_assert!(!stays),
                IoMode::Auto => {
                    prop_assert!(!stays || facts.uncached_bytes <= facts.free_bytes);
                }
            }
        }

        /// A smaller rest of the file, or more free memory, never ends caching it.
        #[test]
        fn more_room_keeps_reads_in_the_cache(facts in any_read(), less: u64, more: u64) {
            let roomier = ReadFacts {
                uncached_bytes: facts.uncached_bytes.saturating_sub(less),
                free_bytes: facts.free_bytes.saturating_add(more),
                ..facts
            };
            if let ReadFrom::Cache(why) = facts.plan().from {
                prop_assert_eq!(roomier.plan().from, ReadFrom::Cache(why));
            }
        }

        /// The page cache is looked at before the disk only where READs may stay in it.
        #[test]
        fn the_modes_that_pass_by_the_cache_do_not_look_at_it(facts in any_read()) {
            let plan = facts.plan();
            let looks = plan.looks_in_cache;
            prop_assert!(!looks || matches!(facts.mode, IoMode::Buffered | IoMode::Auto));
            let chunks_come_first = plan.from == ReadFrom::CacheIfReread && facts.is_ahead;
            prop_assert!(!looks || !chunks_come_first);
        }

        /// Data past the page cache only in `direct`; data left in it only in `buffered` and `auto`.
        #[test]
        fn writes_go_where_their_mode_allows(facts in any_write()) {
            match facts.plan() {
                WritePlan::Split => prop_assert!(facts.mode == IoMode::Direct),
                WritePlan::Cached(KeptWhy::Mode) => prop_assert!(facts.mode == IoMode::Buffered),
                WritePlan::Cached(KeptWhy::FreeMemory) => {
                    prop_assert!(facts.mode == IoMode::Auto && facts.len <= facts.free_bytes);
                }
                WritePlan::Window(why) => {
                    prop_assert!(facts.mode != IoMode::Buffered);
                    prop_assert!(why != WindowWhy::NoDirect, "known only when it was opened");
                }
            }
        }
    }
}
