//! What an export's file system turned out not to do, found out by trying, told once.

use std::sync::atomic::{AtomicBool, Ordering};

/// One export's findings.
#[derive(Debug, Default)]
pub(crate) struct IoSupport {
    /// A file was met that does no direct I/O.
    lacks_direct: AtomicBool,
    /// `RWF_DONTCACHE` was refused.
    lacks_drop_behind: AtomicBool,
    /// `RWF_DONTCACHE` writes are no slower than the write-behind window.
    drop_behind_writes_pay: AtomicBool,
}

impl IoSupport {
    /// Whether reads can be told to drop what they brought in, as far as is known.
    pub(crate) fn drops_behind(&self) -> bool {
        !self.lacks_drop_behind.load(Ordering::Relaxed)
    }

    /// Whether writes are better left to the kernel's own dropping behind.
    pub(crate) fn drop_behind_writes_pay(&self) -> bool {
        self.drop_behind_writes_pay.load(Ordering::Relaxed)
    }

    /// Notes the outcome of the probe at the start.
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
