//! The symbolic links that a copy made, through which it must not write: a server that lists a name
//! twice, as a link and as a file, would choose the file that is overwritten.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::entry::{Entry, FileId};

/// Links that are remembered: some 40 MiB. Beyond that, every link counts as made by the copy.
const LINKS_MAX: usize = 1 << 20;

/// The links of a copy, by file system and number.
///
/// Many links are made at once, but none while one is followed: a link that is visible and was made
/// by the copy is remembered by then, and one that was there before is not replaced.
#[derive(Default)]
pub(super) struct MadeLinks {
    ids: RwLock<Mutex<HashSet<FileId>>>,
}

/// Held while a link is made.
pub(super) struct Making<'a>(RwLockReadGuard<'a, Mutex<HashSet<FileId>>>);

/// Held while a link is followed.
pub(super) struct Following<'a>(RwLockWriteGuard<'a, Mutex<HashSet<FileId>>>);

impl MadeLinks {
    /// Waits while a link is followed.
    pub(super) async fn make(&self) -> Making<'_> {
        Making(self.ids.read().await)
    }

    /// Waits while links are made.
    pub(super) async fn follow(&self) -> Following<'_> {
        Following(self.ids.write().await)
    }
}

impl Making<'_> {
    pub(super) fn remember(&self, link: &Entry) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() < LINKS_MAX {
            ids.insert(link.id());
        }
    }
}

impl Following<'_> {
    /// Whether the copy made the link, as far as it remembers.
    pub(super) fn is_made(&mut self, link: FileId) -> bool {
        let ids = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        ids.contains(&link) || ids.len() == LINKS_MAX
    }
}
