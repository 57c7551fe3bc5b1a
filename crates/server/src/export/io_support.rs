//! Features that an export's file system lacks, detected by trying, logged once.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The probe writes 32 MiB and disturbs others for a fifth of a second. Servers that take little
/// through the window, or nothing, are spared it.
const PROBE_AFTER_BYTES: u64 = 512 << 20;

/// READs in sequence that go without chunks after the kernel refused a watch, before it is asked
/// again.
const READS_WITHOUT_WATCH: u32 = 1000;

/// One export's findings.
#[derive(Debug, Default)]
pub(crate) struct IoSupport {
    /// A file was met that does no direct I/O.
    lacks_direct: AtomicBool,
    /// `RWF_DONTCACHE` was refused.
    lacks_drop_behind: AtomicBool,
    /// The kernel reports of no file which pages are cached.
    hides_cache: AtomicBool,
    /// The kernel refused a watch of a file.
    lacks_watch: AtomicBool,
    /// READs until it is asked again.
    reads_without_watch: AtomicU32,
    /// Bytes that went through the write-behind window, until the probe is due.
    windowed_bytes: AtomicU64,
    /// `RWF_DONTCACHE` writes are no slower than the write-behind window.
    drop_behind_writes_pay: AtomicBool,
}

impl IoSupport {
    /// The findings for a file system that shows the files of others, with none of its own behind
    /// them (overlayfs): it answers that nothing is cached.
    pub(crate) fn of_layers() -> Self {
        Self { hides_cache: AtomicBool::new(true), ..Self::default() }
    }

    /// Whether the kernel reports which pages of a file are cached, as far as is known.
    pub(crate) fn shows_cache(&self) -> bool {
        !self.hides_cache.load(Ordering::Relaxed)
    }

    /// Notes that it does not.
    pub(crate) fn note_hidden_cache(&self, export: impl FnOnce() -> String) {
        if !self.hides_cache.swap(true, Ordering::Relaxed) {
            tracing::info!(
                export = export(),
                "the kernel does not report which pages are cached here"
            );
        }
    }

    /// Whether to ask the kernel for a watch of a file, which every chunk takes that is read ahead.
    pub(crate) fn may_watch(&self) -> bool {
        if self.reads_without_watch.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let less = |reads: u32| reads.checked_sub(1);
        self.reads_without_watch.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
    }

    /// Notes that the kernel refused one.
    pub(crate) fn note_no_watch(&self, export: u32, error: &std::io::Error) {
        self.reads_without_watch.store(READS_WITHOUT_WATCH, Ordering::Relaxed);
        if !self.lacks_watch.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                export,
                %error,
                "cannot watch a file for changes (fs.inotify.max_user_watches and \
                 max_user_instances limit that): read-ahead is off for it"
            );
        }
    }

    /// Whether reads can drop the pages that they brought in, as far as is known.
    pub(crate) fn drops_behind(&self) -> bool {
        !self.lacks_drop_behind.load(Ordering::Relaxed)
    }

    /// Whether writes are better left to the kernel's own dropping behind.
    pub(crate) fn drop_behind_writes_pay(&self) -> bool {
        self.drop_behind_writes_pay.load(Ordering::Relaxed)
    }

    /// Counts bytes on their way through the window. Returns `true` once, when there were many: it
    /// is time to probe whether the kernel's own drop-behind is as good.
    pub(crate) fn probe_is_due(&self, bytes: u64) -> bool {
        let before = self.windowed_bytes.fetch_add(bytes, Ordering::Relaxed);
        before < PROBE_AFTER_BYTES && before + bytes >= PROBE_AFTER_BYTES
    }

    /// Notes the outcome of the probe.
    pub(crate) fn set_drop_behind_writes_pay(&self, pay: bool) {
        self.drop_behind_writes_pay.store(pay, Ordering::Relaxed);
    }

    /// Notes that a file does no direct I/O.
    pub(crate) fn note_no_direct(&self, export: impl FnOnce() -> String) {
        if !self.lacks_direct.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                export = export(),
                "direct I/O is not supported here: direct READs and WRITEs use the page cache, and \
                 their pages are dropped afterwards"
            );
        }
    }

    /// Notes that the kernel or the file system does not know `RWF_DONTCACHE`.
    pub(crate) fn note_no_drop_behind(&self, export: impl FnOnce() -> String) {
        if !self.lacks_drop_behind.swap(true, Ordering::Relaxed) {
            tracing::info!(export = export(), "RWF_DONTCACHE is not supported here");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_watch_is_asked_for_again_after_a_number_of_reads() {
        let support = IoSupport::default();
        assert!(support.may_watch());
        support.note_no_watch(1, &std::io::Error::other("none left"));
        let refused = (0..).take_while(|_| !support.may_watch()).count();
        assert_eq!(refused, READS_WITHOUT_WATCH as usize);
        assert!(support.may_watch());
    }

    #[test]
    fn the_probe_is_due_once() {
        let support = IoSupport::default();
        let due = |bytes| support.probe_is_due(bytes);
        assert!(!due(PROBE_AFTER_BYTES - 1));
        assert!(due(1));
        assert!(!due(PROBE_AFTER_BYTES));
    }
}
