//! The courtesy of clients that keep the space of removed files.

use std::collections::BTreeSet;
use std::time::Duration;

use proto::nfs4::ClientId;

use super::registry::{State, Table};
use super::{FileId, Step};

impl State {
    /// The files that expired clients have open or delegated, and no other client has. Each with
    /// the number of its opens and delegations.
    pub(crate) fn files_in_courtesy(&self, now: Duration) -> Vec<(FileId, usize)> {
        let table = self.lock();
        let expired = table.clients.iter().filter(|(_, client)| {
            let expired_for = client.lease.expired_for(now, self.limits.lease);
            expired_for.is_some()
        });
        let files: BTreeSet<_> = expired.flat_map(|(id, _)| table.files_of(id)).collect();
        let in_courtesy = files.into_iter().filter_map(|file| {
            let holders = self.expired_holders(&table, file, now)?;
            Some((file, holders.len()))
        });
        in_courtesy.collect()
    }

    /// Forgets the holders of one after the other of those of the files that are still in courtesy,
    /// until as many of their bytes have come free as others lack; of at least one. Of none, if all
    /// together would not be enough. Returns whether space came free.
    pub(crate) fn end_courtesy(
        &self,
        files: &[(FileId, u64)],
        lacking: u64,
        step: &mut Step,
    ) -> bool {
        let mut table = self.lock();
        let in_courtesy = files.iter().filter_map(|(file, bytes)| {
            let holders = self.expired_holders(&table, *file, step.now)?;
            Some((holders, *bytes))
        });
        let in_courtesy: Vec<_> = in_courtesy.collect();
        if in_courtesy.iter().map(|(_, bytes)| bytes).sum::<u64>() < lacking {
            return false;
        }
        let mut freed = 0;
        for (holders, bytes) in in_courtesy {
            self.forget_expired(&mut table, holders, step);
            freed += bytes;
            if freed >= lacking {
                break;
            }
        }
        freed > 0
    }

    /// The clients of the opens and delegations of a file, if all of them are expired.
    fn expired_holders(&self, table: &Table, file: FileId, now: Duration) -> Option<Vec<ClientId>> {
        let delegated = table.delegations.of_file(file).map(|(_, found)| found.client);
        let holders: Vec<_> = table.files.openers(file).chain(delegated).collect();
        let is_expired = |id: &ClientId| {
            let client = table.clients.get(*id);
            client.is_some_and(|client| client.lease.expired_for(now, self.limits.lease).is_some())
        };
        holders.iter().all(is_expired).then_some(holders)
    }
}

impl Table {
    /// The files that a client has open or delegated.
    fn files_of(&self, client: ClientId) -> impl Iterator<Item = FileId> {
        self.files.opened_by(client).chain(self.delegations.files_of(client))
    }
}
