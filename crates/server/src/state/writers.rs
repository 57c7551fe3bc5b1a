//! The clients that have files open for writing.

use std::collections::BTreeMap;

use proto::nfs4::ClientId;

use super::FileId;
use super::shares::Share;

/// How often each client has a file open for writing.
#[derive(Debug, Default)]
pub(super) struct Writers(BTreeMap<(FileId, ClientId), usize>);

impl Writers {
    pub(super) fn add(&mut self, of: (FileId, ClientId), share: Share) {
        if share.writes() {
            *self.0.entry(of).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, of: (FileId, ClientId), share: Share) {
        if share.writes() {
            let opens = self.0.get_mut(&of).expect("it was added");
            *opens -= 1;
            if *opens == 0 {
                self.0.remove(&of);
            }
        }
    }

    /// Whether a client has a file open for writing.
    pub(super) fn has(&self, of: (FileId, ClientId)) -> bool {
        self.0.contains_key(&of)
    }

    /// The clients that have a file open for writing.
    pub(super) fn of(&self, file: FileId) -> impl Iterator<Item = ClientId> {
        let all = (file, ClientId(0))..=(file, ClientId(u64::MAX));
        self.0.range(all).map(|((_, client), _)| *client)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
