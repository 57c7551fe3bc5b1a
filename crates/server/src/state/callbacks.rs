//! The way of a callback to a client, and of its answer.

use std::sync::Arc;
use std::time::Duration;

use proto::nfs4::ClientId;

use super::DelegationId;
use super::backchannel::{Callback, CallbackEnd, Message};
use super::registry::{State, Table};
use super::session::Session;

impl State {
    /// Notifies a client over one of its sessions with a backchannel. Returns the callback to be
    /// sent now, if any. A delegation that has ended is not recalled.
    pub(crate) fn notify(
        &self,
        client: ClientId,
        message: Message,
    ) -> Option<(Arc<Session>, Callback)> {
        // Held until the message is queued: a recall that comes to the queue later than the end of
        // its delegation would stay there.
        let table = self.lock();
        if let Message::Recall(recall) = &message {
            self.delegation(&table, client, &recall.stateid)?.ok()?;
        }
        let mut sessions = self.sessions_of(&table, client);
        let session = sessions.find(|session| session.has_callback_path())?;
        let callback = session.notify(message)?;
        Some((session, callback))
    }

    /// Ends the callback at work of a session. Returns the next one.
    pub(crate) fn end_callback(
        &self,
        session: &Session,
        callback: Callback,
        end: CallbackEnd,
        now: Duration,
    ) -> Option<Callback> {
        if let Message::Recall(recall) = &callback.message {
            let mut table = self.lock();
            if let Some(Ok(id)) = self.delegation(&table, session.client(), &recall.stateid) {
                table.delegations.note_answer(id, end, now);
            }
        }
        session.end_callback(callback, end)
    }

    /// Takes the recall of a delegation that has ended out of the queues of its client's sessions.
    pub(super) fn forget_recall(&self, table: &Table, client: ClientId, id: DelegationId) {
        let stateid = self.delegation_stateid(id);
        self.sessions_of(table, client).for_each(|session| session.forget_recall(&stateid));
    }

    fn sessions_of(&self, table: &Table, client: ClientId) -> impl Iterator<Item = Arc<Session>> {
        let sessions = table.clients.get(client).map(|client| client.sessions.clone());
        sessions.into_iter().flatten().filter_map(|id| self.session(id).ok())
    }
}
