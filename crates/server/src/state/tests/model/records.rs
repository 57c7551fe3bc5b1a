//! Records of clients in the model: which of them could reclaim if the server crashed now.

use super::*;

impl Model {
    /// Has the records on the disk changed.
    pub(super) fn change_records(&mut self) {
        let changes = self.bed.state.record_changes();
        self.bed.state.records_changed(&changes);
        for change in changes {
            let at = usize::from(change.owner()[0]);
            match change {
                RecordChange::Write(_) => self.recorded.insert(at),
                RecordChange::Remove(_) => self.recorded.remove(&at),
            };
        }
    }

    /// A client that has lost anything and does not know it must not reclaim, and every other one
    /// may.
    pub(super) fn check_records(&self) -> Result<(), TestCaseError> {
        for at in 0..CLIENTS {
            let is_known = self.bed.state.session(self.clients[at].1.id()).is_ok();
            let has_lost = self.revoked.iter().any(|(holder, ..)| *holder == at);
            prop_assert_eq!(self.recorded.contains(&at), is_known && !has_lost);
        }
        Ok(())
    }
}
