//! Which way a READ or WRITE goes, and why: plain decisions on plain facts.

use io::{DioAlign, IoMode};

use crate::counters::Counter;

/// The smallest WRITE that `direct` splits. From here on that takes less of the server's processor
/// than the window: per GiB of misaligned WRITEs, split and through the window, 128 KiB 0.68 s and
/// 0.57, 256 KiB 0.47 and 0.44, 512 KiB 0.38 and 0.44, 1 MiB 0.37 and 0.44 (XFS, Linux 6.18, depth
/// 1; `bench/io-modes --only split`). The window's rate is the higher one at every size.
pub(super) const SPLIT_BYTES_MIN: usize = 512 * 1024;
/// Bytes that a writer must have written in sequence before `auto` takes it for a stream whose pages
/// nobody needs soon. Smaller files are often read back at once.
pub(super) const STREAM_BYTES_MIN: u64 = 8 * 1024 * 1024;
/// One part in so many of the memory stays free when `auto` fills the rest with what it reads. Past
/// that the kernel begins to reclaim.
const FREE_PART: u64 = 32;

/// What decides the way of a READ.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadFacts {
    pub(super) mode: IoMode,
    /// Bytes of the file that are not known to be cached.
    pub(super) uncached_bytes: u64,
    /// What direct I/O on the file needs, if it is possible.
    pub(super) align: Option<DioAlign>,
    /// The file system drops behind (`RWF_DONTCACHE`), as far as is known.
    pub(super) drops_behind: bool,
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
    /// The range was read not long ago, and not cached.
    pub(super) read_again: bool,
}

/// The way of a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadRoute {
    /// Through the page cache.
    Cached(CachedWhy),
    /// Through the page cache, which is left as it was.
    DontCache,
    /// Past the page cache.
    Direct(DioAlign),
}

/// Why a READ goes through the page cache to stay there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CachedWhy {
    /// The mode says so.
    Mode,
    /// There is memory that nobody uses.
    FreeMemory,
    /// It is read again, so caching it pays.
    ReadAgain,
}

impl ReadFacts {
    /// The way, and the counter that says why.
    pub(super) fn route(&self) -> ReadRoute {
        match self.mode {
            IoMode::Buffered => ReadRoute::Cached(CachedWhy::Mode),
            IoMode::Direct => self.past_the_cache(),
            IoMode::DontCache if self.drops_behind => ReadRoute::DontCache,
            IoMode::DontCache => self.past_the_cache(),
            IoMode::Auto if fits(self.uncached_bytes, self.free_bytes, self.total_bytes) => {
                ReadRoute::Cached(CachedWhy::FreeMemory)
            }
            IoMode::Auto if self.read_again => ReadRoute::Cached(CachedWhy::ReadAgain),
            IoMode::Auto => self.past_the_cache(),
        }
    }

    fn past_the_cache(&self) -> ReadRoute {
        self.align.map_or(ReadRoute::DontCache, ReadRoute::Direct)
    }
}

impl ReadRoute {
    pub(super) fn counter(self) -> Counter {
        match self {
            Self::Cached(CachedWhy::Mode) => Counter::ReadsCachedByMode,
            Self::Cached(CachedWhy::FreeMemory) => Counter::ReadsCachedInFreeMemory,
            Self::Cached(CachedWhy::ReadAgain) => Counter::ReadsCachedAsReread,
            Self::DontCache => Counter::ReadsDontcache,
            Self::Direct(_) => Counter::ReadsDirect,
        }
    }
}

/// What decides the way of a WRITE.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteFacts {
    pub(super) mode: IoMode,
    /// Bytes to write.
    pub(super) len: u64,
    /// What direct I/O on the file needs, if it is possible.
    pub(super) align: Option<DioAlign>,
    /// Bytes that were written in sequence up to and with this one; 0 when it is none.
    pub(super) stream_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
}

/// The way of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteRoute {
    /// Through the page cache, and left to the kernel.
    Cached(KeptWhy),
    /// Through the page cache and the write-behind window.
    Window(WindowWhy),
    /// Whole pages past the page cache, ragged ends through the window.
    Split(DioAlign),
}

/// Why a WRITE stays in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptWhy {
    /// The mode says so.
    Mode,
    /// There is memory that nobody uses, and it is no long stream.
    FreeMemory,
}

/// Why a WRITE goes through the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowWhy {
    /// The mode says so.
    Mode,
    /// Too small to be split.
    Small,
    /// Direct I/O is not possible.
    NoDirect,
    /// Part of a long stream.
    Stream,
    /// Memory is short.
    Pressure,
}

impl WriteFacts {
    /// Whether it is large enough for direct I/O.
    pub(super) fn is_worth_splitting(&self) -> bool {
        self.len >= SPLIT_BYTES_MIN as u64
    }

    /// The way.
    pub(super) fn route(&self) -> WriteRoute {
        match (self.mode, self.align) {
            (IoMode::Buffered, _) => WriteRoute::Cached(KeptWhy::Mode),
            (IoMode::DontCache, _) => WriteRoute::Window(WindowWhy::Mode),
            (IoMode::Direct, _) if !self.is_worth_splitting() => {
                WriteRoute::Window(WindowWhy::Small)
            }
            (IoMode::Direct, None) => WriteRoute::Window(WindowWhy::NoDirect),
            (IoMode::Direct, Some(align)) => WriteRoute::Split(align),
            (IoMode::Auto, _) => self.automatic(),
        }
    }

    /// A long stream gains from the window whatever memory there is, because its pages are used
    /// again while they are warm; all else is absorbed by free memory best.
    fn automatic(&self) -> WriteRoute {
        if self.stream_bytes >= STREAM_BYTES_MIN {
            WriteRoute::Window(WindowWhy::Stream)
        } else if fits(self.len, self.free_bytes, self.total_bytes) {
            WriteRoute::Cached(KeptWhy::FreeMemory)
        } else {
            WriteRoute::Window(WindowWhy::Pressure)
        }
    }
}

impl WriteRoute {
    pub(super) fn counter(self) -> Counter {
        match self {
            Self::Cached(KeptWhy::Mode) => Counter::WritesCachedByMode,
            Self::Cached(KeptWhy::FreeMemory) => Counter::WritesCachedInFreeMemory,
            Self::Window(WindowWhy::Mode) => Counter::WritesWindowByMode,
            Self::Window(WindowWhy::Small) => Counter::WritesWindowAsSmall,
            Self::Window(WindowWhy::NoDirect) => Counter::WritesWindowWithoutDirect,
            Self::Window(WindowWhy::Stream) => Counter::WritesWindowAsStream,
            Self::Window(WindowWhy::Pressure) => Counter::WritesWindowUnderPressure,
            Self::Split(_) => Counter::WritesDirect,
        }
    }
}

/// Whether so many bytes go into free memory with some to spare.
fn fits(bytes: u64, free_bytes: u64, total_bytes: u64) -> bool {
    bytes.saturating_add(total_bytes / FREE_PART) <= free_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn align() -> DioAlign {
        DioAlign::new(512, 512, 512).unwrap()
    }

    fn read(mode: IoMode) -> ReadFacts {
        ReadFacts {
            mode,
            uncached_bytes: GIB,
            align: Some(align()),
            drops_behind: true,
            free_bytes: 0,
            total_bytes: 8 * GIB,
            read_again: false,
        }
    }

    fn write(mode: IoMode) -> WriteFacts {
        WriteFacts {
            mode,
            len: MIB,
            align: Some(align()),
            stream_bytes: 0,
            free_bytes: 4 * GIB,
            total_bytes: 8 * GIB,
        }
    }

    #[test]
    fn a_mode_is_a_promise() {
        let direct = ReadRoute::Direct(align());
        for free_bytes in [0, 4 * GIB] {
            let read = |mode| ReadFacts { free_bytes, ..read(mode) };
            assert_eq!(read(IoMode::Buffered).route(), ReadRoute::Cached(CachedWhy::Mode));
            assert_eq!(read(IoMode::DontCache).route(), ReadRoute::DontCache);
            assert_eq!(read(IoMode::Direct).route(), direct);
            let none = ReadFacts { align: None, ..read(IoMode::Direct) };
            assert_eq!(none.route(), ReadRoute::DontCache);
            let old = ReadFacts { drops_behind: false, ..read(IoMode::DontCache) };
            assert_eq!(old.route(), direct);
        }
    }

    #[test]
    fn automatic_reads_use_free_memory_and_otherwise_leave_the_cache_alone() {
        let facts = read(IoMode::Auto);
        let direct = ReadRoute::Direct(align());
        assert_eq!(facts.route(), direct);
        let plenty = ReadFacts { free_bytes: 2 * GIB, ..facts };
        assert_eq!(plenty.route(), ReadRoute::Cached(CachedWhy::FreeMemory));
        assert_eq!(ReadFacts { free_bytes: GIB, ..facts }.route(), direct, "nothing to spare");
        let begun = ReadFacts { free_bytes: GIB, uncached_bytes: GIB / 2, ..facts };
        assert_eq!(begun.route(), plenty.route(), "the rest fits as it did before");
        let again = ReadFacts { read_again: true, ..facts };
        assert_eq!(again.route(), ReadRoute::Cached(CachedWhy::ReadAgain));
        assert_eq!(ReadFacts { align: None, ..facts }.route(), ReadRoute::DontCache);
    }

    #[test]
    fn writes_go_where_they_cost_least() {
        let split = WriteRoute::Split(align());
        assert_eq!(write(IoMode::Buffered).route(), WriteRoute::Cached(KeptWhy::Mode));
        assert_eq!(write(IoMode::DontCache).route(), WriteRoute::Window(WindowWhy::Mode));
        let direct = write(IoMode::Direct);
        assert_eq!(direct.route(), split);
        let small = WriteFacts { len: 47_008, ..direct };
        assert_eq!(small.route(), WriteRoute::Window(WindowWhy::Small));
        let none = WriteFacts { align: None, ..direct };
        assert_eq!(none.route(), WriteRoute::Window(WindowWhy::NoDirect));
        let auto = write(IoMode::Auto);
        assert_eq!(auto.route(), WriteRoute::Cached(KeptWhy::FreeMemory));
        let stream = WriteFacts { stream_bytes: STREAM_BYTES_MIN, ..auto };
        assert_eq!(stream.route(), WriteRoute::Window(WindowWhy::Stream));
        let short = WriteFacts { free_bytes: 100 * MIB, ..auto };
        assert_eq!(short.route(), WriteRoute::Window(WindowWhy::Pressure));
    }
}
