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

/// From here on the kernel keeps a disk busy by itself. Cold READs of 47,008 bytes that it read
/// ahead, 8 in flight: with `read_ahead_kb` 128 982 MiB/s, 512 1,569, 2,560 1,646 (XFS, Linux 6.18;
/// `spillway bench io`). READs of 1 MiB are long enough themselves: decision
/// `2026-11-28-cold-reads-in-file-order.md`.
const KERNEL_READ_AHEAD_BYTES_MIN: u64 = 512 * 1024;

/// The facts that decide how a READ is done. All but the mode are functions, called only where the
/// plan depends on them: some take a lock or read a clock.
pub(super) struct ReadFacts<DropsBehind, MemoryRoom, IsAhead> {
    pub(super) mode: IoMode,
    /// The file system drops behind (`RWF_DONTCACHE`), as far as is known.
    pub(super) drops_behind: DropsBehind,
    pub(super) room: MemoryRoom,
    /// A part of the range was read ahead.
    pub(super) is_ahead: IsAhead,
}

/// The memory that a file which is read would go into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of the file that are not known to be cached.
    pub(super) uncached_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
}

/// How a READ is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadPlan {
    Settled(ReadFrom),
    /// In `auto` with memory short: from the page cache if all of it is there, else as
    /// [`ReadFrom::of_absent`] has it.
    CacheIfReread {
        /// The page cache is looked at. What was read ahead comes first.
        looks_in_cache: bool,
    },
}

/// Where the data of a READ comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFrom {
    /// Through the page cache, which is left to the kernel: the mode is `buffered`.
    Buffered,
    /// Through the page cache, where it stays.
    Cache(CachedWhy),
    /// Through the page cache, which is left as it was.
    DropBehind,
    /// Past the page cache. As `DropBehind` if the file does no direct I/O.
    Direct {
        /// Read-ahead takes a range from the page cache if all of it is there.
        unless_resident: bool,
    },
}

/// Why `auto` reads through the page cache to stay there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CachedWhy {
    /// Memory is free.
    FreeMemory,
    /// It is read again, so caching it pays.
    ReadAgain,
}

impl<DropsBehind, MemoryRoom, IsAhead> ReadFacts<DropsBehind, MemoryRoom, IsAhead>
where
    DropsBehind: Fn() -> bool,
    MemoryRoom: Fn() -> Room,
    IsAhead: Fn() -> bool,
{
    pub(super) fn plan(&self) -> ReadPlan {
        use ReadPlan::{CacheIfReread, Settled};
        match self.mode {
            IoMode::Buffered => Settled(ReadFrom::Buffered),
            IoMode::DontCache if (self.drops_behind)() => Settled(ReadFrom::DropBehind),
            IoMode::DontCache => Settled(ReadFrom::Direct { unless_resident: true }),
            IoMode::Direct => Settled(ReadFrom::Direct { unless_resident: false }),
            IoMode::Auto if (self.room)().suffices() => {
                Settled(ReadFrom::Cache(CachedWhy::FreeMemory))
            }
            IoMode::Auto => CacheIfReread { looks_in_cache: !(self.is_ahead)() },
        }
    }
}

impl ReadPlan {
    /// Whether what is read stays in the page cache, also if it was not there.
    pub(super) fn keeps_in_cache(self) -> bool {
        match self {
            Self::Settled(ReadFrom::Buffered | ReadFrom::Cache(_)) => true,
            Self::Settled(ReadFrom::DropBehind | ReadFrom::Direct { .. }) => false,
            Self::CacheIfReread { .. } => false,
        }
    }
}

impl Room {
    fn suffices(self) -> bool {
        fits(self.uncached_bytes, self.free_bytes, self.total_bytes)
    }
}

impl ReadFrom {
    /// For a READ under [`ReadPlan::CacheIfReread`] that the page cache did not have, or was not
    /// looked at for. `is_reread`: the range was read not long ago.
    pub(super) fn of_absent(looks_in_cache: bool, is_reread: bool) -> Self {
        if looks_in_cache && is_reread {
            Self::Cache(CachedWhy::ReadAgain)
        } else {
            Self::Direct { unless_resident: true }
        }
    }
}

impl CachedWhy {
    pub(super) fn counter(self) -> Counter {
        match self {
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
    /// They are small, most leave gaps or fill some, and few wait together.
    pub(super) come_alone: bool,
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
    /// Whole pages past the page cache, ragged ends through the window. As `Window(NoDirect)` if
    /// the file does no direct I/O.
    Split,
}

/// Why a WRITE stays in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptWhy {
    /// The mode is `buffered`.
    Mode,
    /// Memory is free, and the window would not be faster.
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
    /// write each of their records by itself, where the kernel can wait for those between them. And
    /// so are small WRITEs of several writers that come one at a time: each would wait for the
    /// processor and the locks of the write-back beside it.
    fn automatic(&self) -> WritePlan {
        let is_stream = self.stream_bytes >= STREAM_BYTES_MIN;
        if is_stream && !self.outreaches_window && !self.come_alone {
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
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// All facts of a READ, by their values.
    #[derive(Clone, Copy, Debug)]
    struct Read {
        mode: IoMode,
        is_ahead: bool,
        drops_behind: bool,
        room: Room,
    }

    impl Read {
        fn plan(self) -> ReadPlan {
            let Self { mode, is_ahead, drops_behind, room } = self;
            let (drops_behind, room, is_ahead) = (|| drops_behind, || room, || is_ahead);
            ReadFacts { mode, drops_behind, room, is_ahead }.plan()
        }

        /// As [`Self::plan`], in the end.
        fn from(self, is_reread: bool) -> ReadFrom {
            match self.plan() {
                ReadPlan::Settled(from) => from,
                ReadPlan::CacheIfReread { looks_in_cache } => {
                    ReadFrom::of_absent(looks_in_cache, is_reread)
                }
            }
        }
    }

    fn read(mode: IoMode) -> Read {
        let room = Room { uncached_bytes: GIB, free_bytes: 0, total_bytes: 8 * GIB };
        Read { mode, is_ahead: false, drops_behind: true, room }
    }

    fn write(mode: IoMode) -> WriteFacts {
        WriteFacts {
            mode,
            len: MIB,
            stream_bytes: 0,
            come_alone: false,
            outreaches_window: false,
            free_bytes: 4 * GIB,
            total_bytes: 8 * GIB,
        }
    }

    #[test]
    fn plans_of_reads() {
        use ReadFrom::{Buffered, Cache, Direct, DropBehind};
        use ReadPlan::{CacheIfReread, Settled};
        let (dontcache, auto) = (read(IoMode::DontCache), read(IoMode::Auto));
        let with = |free_bytes| Read { room: Room { free_bytes, ..auto.room }, ..auto };
        let free = Settled(Cache(CachedWhy::FreeMemory));
        let half = Room { uncached_bytes: GIB / 2, ..with(GIB).room };
        let table = [
            (read(IoMode::Buffered), Settled(Buffered)),
            (dontcache, Settled(DropBehind)),
            (Read { drops_behind: false, ..dontcache }, Settled(Direct { unless_resident: true })),
            (read(IoMode::Direct), Settled(Direct { unless_resident: false })),
            (auto, CacheIfReread { looks_in_cache: true }),
            (Read { is_ahead: true, ..auto }, CacheIfReread { looks_in_cache: false }),
            (with(2 * GIB), free),
            // Chunks are left alone where data stays in free memory.
            (Read { is_ahead: true, ..with(2 * GIB) }, free),
            // Nothing to spare.
            (with(GIB), CacheIfReread { looks_in_cache: true }),
            // The rest of a file that is cached in part still fits.
            (Read { room: half, ..auto }, free),
        ];
        for (facts, plan) in table {
            assert_eq!(facts.plan(), plan, "{facts:?}");
        }
    }

    #[test]
    fn reads_of_absent_data_are_cached_if_it_was_looked_for_and_read_before() {
        let direct = ReadFrom::Direct { unless_resident: true };
        let table = [
            (true, true, ReadFrom::Cache(CachedWhy::ReadAgain)),
            (true, false, direct),
            (false, true, direct),
            (false, false, direct),
        ];
        for (looks_in_cache, is_reread, from) in table {
            let found = ReadFrom::of_absent(looks_in_cache, is_reread);
            assert_eq!(found, from, "{looks_in_cache} {is_reread}");
        }
    }

    #[test]
    fn facts_are_found_out_only_where_the_plan_depends_on_them() {
        let asked = |mode, free_bytes| {
            let asked = RefCell::new(Vec::new());
            let note = |fact| asked.borrow_mut().push(fact);
            let facts = ReadFacts {
                mode,
                drops_behind: || {
                    note("drops_behind");
                    true
                },
                room: || {
                    note("room");
                    Room { free_bytes, ..read(mode).room }
                },
                is_ahead: || {
                    note("is_ahead");
                    true
                },
            };
            facts.plan();
            asked.into_inner()
        };
        assert!(asked(IoMode::Buffered, 0).is_empty());
        assert!(asked(IoMode::Direct, 0).is_empty());
        assert_eq!(asked(IoMode::DontCache, 0), ["drops_behind"]);
        assert_eq!(asked(IoMode::Auto, 2 * GIB), ["room"]);
        assert_eq!(asked(IoMode::Auto, 0), ["room", "is_ahead"]);
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
            (WriteFacts { come_alone: true, ..stream }, Cached(KeptWhy::FreeMemory)),
            (
                WriteFacts { come_alone: true, free_bytes: 100 * MIB, ..stream },
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
        ) -> Read {
            let room = Room { uncached_bytes, free_bytes, total_bytes };
            Read { mode, is_ahead, drops_behind, room }
        }
    }

    prop_compose! {
        fn any_write()(
            mode in any_mode(),
            len in 0..8 * MIB,
            stream_bytes in 0..2 * STREAM_BYTES_MIN,
            come_alone: bool,
            outreaches_window: bool,
            free_bytes: u64,
            total_bytes: u64,
        ) -> WriteFacts {
            WriteFacts {
                mode,
                len,
                stream_bytes,
                come_alone,
                outreaches_window,
                free_bytes,
                total_bytes,
            }
        }
    }

    proptest! {
        /// Only `auto` depends on memory, and it never fills memory that is in use, except with
        /// what is read again.
        #[test]
        fn reads_stay_in_the_cache_by_mode_or_in_free_memory(facts in any_read(), is_reread: bool) {
            let Room { uncached_bytes, free_bytes, .. } = facts.room;
            match facts.from(is_reread) {
                ReadFrom::Buffered => prop_assert!(facts.mode == IoMode::Buffered),
                ReadFrom::Cache(CachedWhy::FreeMemory) => {
                    prop_assert!(facts.mode == IoMode::Auto && uncached_bytes <= free_bytes);
                }
                ReadFrom::Cache(CachedWhy::ReadAgain) => {
                    prop_assert!(facts.mode == IoMode::Auto && is_reread && !facts.is_ahead);
                }
                ReadFrom::DropBehind => {
                    prop_assert!(facts.mode == IoMode::DontCache && facts.drops_behind);
                }
                ReadFrom::Direct { unless_resident } => {
                    prop_assert!(facts.mode != IoMode::Buffered);
                    prop_assert_eq!(unless_resident, facts.mode != IoMode::Direct);
                }
            }
        }

        /// A smaller rest of the file, or more free memory, never ends caching it.
        #[test]
        fn more_room_keeps_reads_in_the_cache(facts in any_read(), less: u64, more: u64) {
            let room = Room {
                uncached_bytes: facts.room.uncached_bytes.saturating_sub(less),
                free_bytes: facts.room.free_bytes.saturating_add(more),
                ..facts.room
            };
            let plan = facts.plan();
            if matches!(plan, ReadPlan::Settled(ReadFrom::Buffered | ReadFrom::Cache(_))) {
                prop_assert_eq!(Read { room, ..facts }.plan(), plan);
            }
        }

        /// The page cache is looked at before the disk only where READs may stay in it, and only if
        /// there are no chunks.
        #[test]
        fn the_modes_that_pass_by_the_cache_do_not_look_at_it(facts in any_read()) {
            if let ReadPlan::CacheIfReread { looks_in_cache } = facts.plan() {
                prop_assert!(facts.mode == IoMode::Auto);
                prop_assert_eq!(looks_in_cache, !facts.is_ahead);
            }
        }

        /// Data past the page cache only in `direct`; data left in it only in `buffered` and
        /// `auto`.
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
