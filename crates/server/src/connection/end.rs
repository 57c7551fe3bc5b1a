//! The end of a connection: the last replies, and what was opened for it.

use std::sync::Arc;
use std::time::Duration;

use rpc::server::{ReplyQueue, Socket};
use tokio::task::AbortHandle;

use crate::connections::Activity;
use crate::service::Service;
use crate::state::ConnectionId;

/// How long the last calls may take to be answered.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// How long the last replies may take to reach the peer.
const FINISH_MAX: Duration = Duration::from_secs(1);

/// Has accepted calls completed and answered, if the peer still reads.
pub(super) async fn drain(socket: &Socket, activity: &Activity) {
    match tokio::time::timeout(DRAIN_MAX, activity.calls_ended()).await {
        // It was idle: nothing unread makes the kernel drop its last replies.
        Ok(()) if activity.makes_room() && !socket.has_unread_bytes() => {}
        Ok(()) => socket.finish(FINISH_MAX).await,
        // The peer has to learn of the end, to repeat its calls over another connection.
        Err(_) => socket.end(),
    }
}

/// Ends what serves an open connection beside its task, also when that panics: the socket would
/// stay open with no task that reads it.
pub(super) struct Open<'a> {
    pub(super) service: &'a Service,
    pub(super) connection: ConnectionId,
    pub(super) replies: Arc<ReplyQueue>,
    pub(super) sender: AbortHandle,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.sender.abort();
        self.replies.close();
        self.service.callbacks.remove(self.connection);
        self.service.state.connection_closed(self.connection);
    }
}
