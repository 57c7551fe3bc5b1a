//! The way of a callback to a client.

use std::sync::Arc;

use proto::nfs4::ClientId;

use super::backchannel::{Callback, Message};
use super::registry::State;
use super::session::Session;

impl State {
    /// Notifies a client over one of its sessions with a backchannel. Returns the callback to be sent
    /// now, if any.
    pub(crate) fn notify(
        &self,
        client: ClientId,
        message: Message,
    ) -> Option<(Arc<Session>, Callback)> {
        let sessions = self.lock().clients.get(client)?.sessions.clone();
        let mut sessions = sessions.into_iter().filter_map(|id| self.session(id).ok());
        let session = sessions.find(|session| session.has_callback_path())?;
        let callback = session.notify(message)?;
        Some((session, callback))
    }
}
