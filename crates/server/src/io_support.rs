//! What an export's file system turned out not to do, found out by trying, told once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The probe writes 32 MiB and disturbs others for a fifth of a second. Servers that take little
/// through the window, or nothing, are spared it.
const PROBE_AFTER_BYTES: u64 = 512 << 20;

/// One export's findings.
#[derive(Debug, Default)]
pub(crate) struct IoSupport {
    /// A file was met that does no direct I/O.
    lacks_direct: AtomicBool,
    /// `RWF_DONTCACHE` was refused.
    lacks_drop_behind: AtomicBool,
    /// The kernel does not tell what of a file is cached.
    hides_cache: AtomicBool,
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

    /// Whether the kernel tells what of a file is cached, as far as is known.
    pub(crate) fn shows_cache(&self) -> bool {
        !self.hides_cache.load(Ordering::Relaxed)
    }

    /// Notes that it does not.
    pub(crate) fn note_hidden_cache(&self, export: u32) {
        if !self.hides_cache.swap(true, Ordering::Relaxed) {
            tracing::info!(export, "the kernel does not tell what is cached here");
        }
    }

    /// Whether reads can be told to drop what they brought in, as far as is known.
    pub(crate) fn drops_behind(&self) -> bool {
        !self.lacks_drop_behind.load(Ordering::Relaxed)
    }

    /// Whether writes are better left to the kernel's own dropping behind.
    pub(crate) fn drop_behind_writes_pay(&self) -> bool {
        self.drop_behind_writes_pay.load(Ordering::Relaxed)
    }

    /// Counts bytes on their way through the window. Says once, when there were many, that it is
    /// time to probe whether the kernel's own dropping behind is as good.
    pub(crate) fn probe_is_due(&self, bytes: u64) -> bool {
        let before = self.windowed_bytes.fetch_add(bytes, Ordering::Relaxed);
        before < PROBE_AFTER_BYTES && before + bytes >= PROBE_AFTER_BYTES
    }

    /// Notes the outcome of the probe.
    pub(crate) fn set_drop_behind_writes_pay(&self, pay: bool) {
        self.drop_behind_writes_pay.store(pay, Ordering::Relaxed);
    }

    /// Notes that a file does no direct I/O.
    pub(crate) fn note_no_direct(&self, export: u32) {
        if !self.lacks_direct.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                export,
                "direct I/O is not possible here: what was to go past the page cache goes through \
                 it and is dropped afterwards"
            );
        }
    }

    /// Notes that the kernel or the file system does not know `RWF_DONTCACHE`.
    pub(crate) fn note_no_drop_behind(&self, export: u32) {
        if !self.lacks_drop_behind.swap(true, Ordering::Relaxed) {
            tracing::info!(export, "RWF_DONTCACHE is not known here: doing without");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_is_due_once() {
        let support = IoSupport::default();
        let due = |bytes| support.probe_is_due(bytes);
        assert!(!due(PROBE_AFTER_BYTES - 1));
        assert!(due(1));
        assert!(!due(PROBE_AFTER_BYTES));
    }
}
