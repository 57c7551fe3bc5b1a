//! The backchannel of a session, RFC 8881 §2.10.3.1: its connections, its slot, and the notices that
//! wait for the slot.
//!
//! One slot is enough: a notice is a hint, and a client that misses it repeats its request all the
//! same. So a client that does not answer costs others nothing, and itself only the notices.

use std::collections::VecDeque;
use std::sync::Arc;

use proto::nfs4::{FileHandle, SequenceId};

use super::ConnectionId;
use super::waiting::Counted;

/// How callbacks are to be sent: CREATE_SESSION's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallbackParameters {
    /// That of the client's COMPOUNDs.
    pub(crate) minor_version: u32,
    /// `csa_cb_program`.
    pub(crate) program: u32,
    /// User and group of AUTH_SYS; AUTH_NONE without.
    pub(crate) ids: Option<(u32, u32)>,
}

/// CB_NOTIFY_LOCK: a lock that an owner waits for can be granted.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    pub(crate) object: FileHandle,
    pub(crate) owner: Arc<[u8]>,
    /// Counts its request until the notice is gone too.
    pub(super) _counted: Arc<Counted>,
}

impl PartialEq for Notice {
    fn eq(&self, other: &Self) -> bool {
        (self.object, &self.owner) == (other.object, &other.owner)
    }
}

impl Eq for Notice {}

/// A callback to be sent on the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Callback {
    pub(crate) connection: ConnectionId,
    pub(crate) parameters: CallbackParameters,
    pub(crate) sequence: SequenceId,
    pub(crate) notice: Notice,
}

/// What became of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallbackEnd {
    /// CB_SEQUENCE succeeded.
    Performed,
    /// The client has another number in its slot.
    Misordered,
    /// There was no answer, or another error.
    Lost,
}

#[derive(Debug)]
pub(super) struct Backchannel {
    /// Connections bound to it, the latest last.
    connections: Vec<ConnectionId>,
    /// `None` if the client takes no callbacks of a flavor that this server has.
    parameters: Option<CallbackParameters>,
    /// The number of the slot's next callback.
    next: SequenceId,
    /// The last callback was lost: the client may have performed it.
    is_uncertain: bool,
    is_busy: bool,
    waiting: VecDeque<Notice>,
}

impl Backchannel {
    pub(super) fn new(parameters: Option<CallbackParameters>) -> Self {
        Self {
            connections: Vec::new(),
            parameters,
            next: SequenceId(1),
            is_uncertain: false,
            is_busy: false,
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn set_parameters(&mut self, parameters: Option<CallbackParameters>) {
        self.parameters = parameters;
    }

    /// Whether callbacks can be sent once a connection is bound.
    pub(super) fn is_usable(&self) -> bool {
        self.parameters.is_some()
    }

    /// Whether callbacks can be sent.
    pub(super) fn has_path(&self) -> bool {
        self.is_usable() && !self.connections.is_empty()
    }

    pub(super) fn bind(&mut self, connection: ConnectionId) {
        self.unbind(connection);
        if self.connections.len() == CONNECTIONS_MAX {
            self.connections.remove(0);
        }
        self.connections.push(connection);
    }

    pub(super) fn unbind(&mut self, connection: ConnectionId) {
        self.connections.retain(|bound| *bound != connection);
    }

    /// Queues a notice, if there is room. Returns the callback to be sent now.
    pub(super) fn notify(&mut self, notice: Notice) -> Option<Callback> {
        if self.waiting.len() < NOTICES_MAX && !self.waiting.contains(&notice) {
            self.waiting.push_back(notice);
        }
        if self.is_busy { None } else { self.begin() }
    }

    /// Ends the callback on the slot. Returns the next one.
    pub(super) fn end(&mut self, callback: Callback, end: CallbackEnd) -> Option<Callback> {
        self.is_busy = false;
        match end {
            CallbackEnd::Performed => {
                self.next = self.next.next();
                self.is_uncertain = false;
            }
            CallbackEnd::Misordered if self.is_uncertain => {
                self.next = self.next.next();
                self.is_uncertain = false;
                self.waiting.push_front(callback.notice);
            }
            CallbackEnd::Misordered | CallbackEnd::Lost => {
                self.unbind(callback.connection);
                self.is_uncertain = true;
                // Requests are repeated before the client has another path.
                self.waiting.clear();
            }
        }
        self.begin()
    }

    fn begin(&mut self) -> Option<Callback> {
        let connection = *self.connections.last()?;
        let parameters = self.parameters?;
        let notice = self.waiting.pop_front()?;
        self.is_busy = true;
        Some(Callback { connection, parameters, sequence: self.next, notice })
    }

    #[cfg(test)]
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        self.connections.last().copied()
    }
}

/// Connections of a backchannel. Linux opens at most 16 to a server.
const CONNECTIONS_MAX: usize = 16;
/// Notices that wait for the slot of a session.
const NOTICES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(owner: u8) -> Notice {
        let _counted = Arc::default();
        Notice {
            object: FileHandle::new(b"file").unwrap(),
            owner: [owner].as_slice().into(),
            _counted,
        }
    }

    fn bound() -> Backchannel {
        let parameters = CallbackParameters { minor_version: 1, program: 7, ids: None };
        let mut channel = Backchannel::new(Some(parameters));
        channel.bind(ConnectionId(1));
        channel
    }

    #[test]
    fn notices_go_one_after_the_other_and_are_bounded() {
        let mut channel = bound();
        let mut sent = channel.notify(notice(0));
        for owner in 0..=u8::MAX {
            assert_eq!(channel.notify(notice(owner)), None, "the slot is taken");
        }
        assert_eq!(channel.waiting.len(), NOTICES_MAX);
        let mut sequence = 1;
        while let Some(callback) = sent {
            assert_eq!(callback.sequence, SequenceId(sequence));
            sent = channel.end(callback, CallbackEnd::Performed);
            sequence += 1;
        }
        assert_eq!(sequence, 2 + u32::try_from(NOTICES_MAX).unwrap());
    }

    #[test]
    fn a_lost_callback_ends_the_path_until_another_is_bound() {
        let mut channel = bound();
        let lost = channel.notify(notice(1)).unwrap();
        assert_eq!(channel.notify(notice(2)), None);
        assert_eq!(channel.end(lost, CallbackEnd::Lost), None);
        assert!(!channel.has_path());
        assert_eq!(channel.notify(notice(3)), None);
        channel.bind(ConnectionId(2));
        // The client has performed the lost one, or not: its answer shows which.
        let again = channel.notify(notice(3)).unwrap();
        assert_eq!((again.connection, again.sequence), (ConnectionId(2), SequenceId(1)));
        let next = channel.end(again.clone(), CallbackEnd::Misordered).unwrap();
        assert_eq!(next, Callback { sequence: SequenceId(2), ..again });
        assert_eq!(channel.end(next, CallbackEnd::Misordered), None, "not twice");
        assert!(!channel.has_path());
    }
}
