//! The backchannel of a session, RFC 8881 §2.10.3.1: its connections, its slot, and the messages
//! that wait for the slot.
//!
//! One slot is enough. A message goes to the next connection when one loses it. Without another, a
//! notice is dropped: it is a hint, and a client that misses it repeats its request all the same. A
//! recall is repeated by [`State::expire`](super::State::expire) until the client has returned the
//! delegation.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use proto::nfs4::{FileHandle, SequenceId, Stateid};

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

/// CB_RECALL: a delegation is to be returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recall {
    pub(crate) stateid: Stateid,
    /// The file as the client names it.
    pub(crate) object: FileHandle,
}

/// The content of a callback: the operation behind CB_SEQUENCE, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Whether the client answers: CB_SEQUENCE alone.
    Probe,
    NotifyLock(Notice),
    Recall(Recall),
}

/// The number of a binding of a connection, which another binding of the connection has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BindingId(u64);

/// A callback to be sent on the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Callback {
    pub(crate) connection: ConnectionId,
    /// That of the connection which it is sent by: its end concerns no later one.
    binding: BindingId,
    pub(crate) parameters: CallbackParameters,
    pub(crate) sequence: SequenceId,
    pub(crate) message: Message,
}

/// The outcome of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallbackEnd {
    /// All succeeded.
    Performed,
    /// CB_SEQUENCE succeeded, and the client does not know what the message names: it answered
    /// `NFS4ERR_BADHANDLE` or `NFS4ERR_BAD_STATEID`.
    Unknown,
    /// CB_SEQUENCE succeeded, and the operation behind it failed by another error.
    Refused,
    /// The client has not performed it, and asks to wait: CB_SEQUENCE failed with `NFS4ERR_DELAY`.
    Delayed,
    /// The client has not performed it: it has used its number before.
    Used,
    /// There was no answer, or another error.
    Lost,
}

#[derive(Debug)]
pub(super) struct Backchannel {
    /// Connections bound to it, the latest last.
    connections: Vec<Bound>,
    /// The number of the latest binding.
    last_binding: u64,
    /// `None` if the client takes no callbacks of a flavor that this server has.
    parameters: Option<CallbackParameters>,
    /// The number of the slot's next callback.
    next: SequenceId,
    /// The last callback was lost: the client may have performed it.
    is_uncertain: bool,
    /// The message of the slot's callback.
    at_work: Option<Message>,
    notices: VecDeque<Notice>,
    /// By their stateids: as many as the client has delegations that are not revoked, and one that
    /// was at work, at most.
    recalls: BTreeMap<[u8; 12], Recall>,
    /// The stateid of the recall that was answered last: the next is the one behind it, so that
    /// those that come again do not hold up the others.
    last_recalled: [u8; 12],
    wants_probe: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    connection: ConnectionId,
    binding: BindingId,
    /// A callback over it was answered.
    is_proved: bool,
}

impl Backchannel {
    pub(super) fn new(parameters: Option<CallbackParameters>) -> Self {
        Self {
            connections: Vec::new(),
            last_binding: 0,
            parameters,
            next: SequenceId(1),
            is_uncertain: false,
            at_work: None,
            notices: VecDeque::new(),
            recalls: BTreeMap::new(),
            last_recalled: [0; 12],
            wants_probe: false,
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

    /// Whether the client has answered a callback over a connection that is still bound.
    pub(super) fn is_proved(&self) -> bool {
        self.is_usable() && self.connections.iter().any(|bound| bound.is_proved)
    }

    pub(super) fn bind(&mut self, connection: ConnectionId) {
        self.unbind(connection);
        if self.connections.len() == CONNECTIONS_MAX {
            self.connections.remove(0);
        }
        self.last_binding += 1;
        let binding = BindingId(self.last_binding);
        self.connections.push(Bound { connection, binding, is_proved: false });
    }

    pub(super) fn unbind(&mut self, connection: ConnectionId) {
        self.connections.retain(|bound| bound.connection != connection);
    }

    /// Queues a message: a notice if there is room. Returns the callback to be sent now.
    pub(super) fn notify(&mut self, message: Message) -> Option<Callback> {
        let is_at_work = self.at_work.as_ref() == Some(&message);
        match message {
            Message::NotifyLock(notice) => {
                if self.notices.len() < NOTICES_MAX && !self.notices.contains(&notice) {
                    self.notices.push_back(notice);
                }
            }
            Message::Probe | Message::Recall(_) if is_at_work => {}
            Message::Recall(recall) => drop(self.recalls.insert(recall.stateid.other, recall)),
            Message::Probe => self.wants_probe = true,
        }
        if self.at_work.is_some() { None } else { self.begin() }
    }

    /// Ends the callback on the slot. Returns the next one.
    pub(super) fn end(&mut self, callback: Callback, end: CallbackEnd) -> Option<Callback> {
        self.at_work = None;
        let is_probe = callback.message == Message::Probe;
        match end {
            CallbackEnd::Performed | CallbackEnd::Unknown | CallbackEnd::Refused => {
                self.next = self.next.next();
                self.is_uncertain = false;
                if let Message::Recall(recall) = &callback.message {
                    self.last_recalled = recall.stateid.other;
                }
                let bound = self.connections.iter_mut();
                bound
                    .filter(|bound| bound.binding == callback.binding)
                    .for_each(|bound| bound.is_proved = true);
            }
            // The client would delay the messages that wait, too. Recalls are repeated, and a
            // client repeats its request. Its slot is as it was, with a lost callback or without.
            CallbackEnd::Delayed => self.forget_waiting(),
            CallbackEnd::Used if self.is_uncertain => {
                self.next = self.next.next();
                self.is_uncertain = false;
                self.requeue(callback.message);
            }
            CallbackEnd::Used | CallbackEnd::Lost => {
                self.connections.retain(|bound| bound.binding != callback.binding);
                self.is_uncertain = true;
                if self.has_path() {
                    self.requeue(callback.message);
                } else {
                    // Requests are repeated before the client has another path. Recalls come again,
                    // perhaps over another session.
                    self.forget_waiting();
                }
            }
        }
        // It has proved no binding that is left, and no other probe was queued meanwhile.
        let is_bound = self.connections.iter().any(|bound| bound.binding == callback.binding);
        if is_probe && !is_bound && self.has_path() && !self.is_proved() {
            self.wants_probe = true;
        }
        self.begin()
    }

    /// Takes a recall out of the queue: its delegation has ended.
    pub(super) fn forget_recall(&mut self, stateid: &Stateid) {
        self.recalls.remove(&stateid.other);
    }

    fn requeue(&mut self, message: Message) {
        match message {
            Message::Probe => self.wants_probe = true,
            Message::NotifyLock(notice) => self.notices.push_front(notice),
            Message::Recall(recall) => drop(self.recalls.insert(recall.stateid.other, recall)),
        }
    }

    fn forget_waiting(&mut self) {
        self.notices.clear();
        self.recalls.clear();
        self.wants_probe = false;
    }

    /// Recalls first: others wait for them. A proved connection, if there is one.
    fn begin(&mut self) -> Option<Callback> {
        let proved = self.connections.iter().rfind(|bound| bound.is_proved);
        let Bound { connection, binding, .. } = *proved.or(self.connections.last())?;
        let parameters = self.parameters?;
        let message = match self.next_recall() {
            Some(recall) => Message::Recall(recall),
            None => match self.notices.pop_front() {
                Some(notice) => Message::NotifyLock(notice),
                None if std::mem::take(&mut self.wants_probe) => Message::Probe,
                None => return None,
            },
        };
        self.at_work = Some(message.clone());
        Some(Callback { connection, binding, parameters, sequence: self.next, message })
    }

    /// Takes the next recall out of the queue: they take turns.
    fn next_recall(&mut self) -> Option<Recall> {
        let behind = (Excluded(self.last_recalled), Unbounded);
        let next = self.recalls.range(behind).next().or(self.recalls.first_key_value());
        let stateid = *next?.0;
        self.recalls.remove(&stateid)
    }

    #[cfg(test)]
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        self.connections.last().map(|bound| bound.connection)
    }
}

/// Connections of a backchannel. Linux opens at most 16 to a server.
const CONNECTIONS_MAX: usize = 16;
/// Notices that wait for the slot of a session.
const NOTICES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(owner: u8) -> Message {
        let (object, _counted) = (FileHandle::new(b"file").unwrap(), Arc::default());
        Message::NotifyLock(Notice { object, owner: [owner].as_slice().into(), _counted })
    }

    fn recall(number: u8) -> Message {
        let object = FileHandle::new(b"file").unwrap();
        let stateid = Stateid { seqid: 1, other: [number; 12] };
        Message::Recall(Recall { stateid, object })
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
        assert_eq!(channel.notices.len(), NOTICES_MAX);
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
        let next = channel.end(again.clone(), CallbackEnd::Used).unwrap();
        assert_eq!(next, Callback { sequence: SequenceId(2), ..again });
        assert_eq!(channel.end(next, CallbackEnd::Used), None, "not twice");
        assert!(!channel.has_path());
    }

    /// Linux delays a callback while it is performing the lost one with the same number.
    #[test]
    fn a_lost_callback_stays_in_doubt_while_the_client_delays_the_next() {
        let mut channel = bound();
        let lost = channel.notify(notice(1)).unwrap();
        assert_eq!(channel.end(lost, CallbackEnd::Lost), None);
        channel.bind(ConnectionId(2));
        let delayed = channel.notify(notice(2)).unwrap();
        assert_eq!(channel.end(delayed, CallbackEnd::Delayed), None);
        let refused = channel.notify(notice(3)).unwrap();
        assert_eq!(refused.sequence, SequenceId(1));
        let again = channel.end(refused.clone(), CallbackEnd::Used).unwrap();
        assert_eq!(again, Callback { sequence: SequenceId(2), ..refused });
    }

    #[test]
    fn a_lost_message_and_those_behind_it_go_to_the_next_connection() {
        for message in [notice(1), recall(1)] {
            let mut channel = bound();
            channel.bind(ConnectionId(2));
            let lost = channel.notify(message).unwrap();
            assert_eq!(channel.notify(notice(2)), None);
            let again = channel.end(lost.clone(), CallbackEnd::Lost).unwrap();
            assert_eq!(again.connection, ConnectionId(1));
            assert_eq!((again.sequence, &again.message), (lost.sequence, &lost.message));
            let next = channel.end(again, CallbackEnd::Performed).unwrap();
            assert_eq!(next.message, notice(2));
            assert_eq!(channel.end(next, CallbackEnd::Lost), None, "no path is left");
        }
    }

    #[test]
    fn a_lost_recall_goes_before_those_that_wait() {
        let mut channel = bound();
        channel.bind(ConnectionId(2));
        let lost = channel.notify(recall(1)).unwrap();
        assert_eq!(channel.notify(recall(2)), None);
        assert_eq!(channel.notify(notice(1)), None);
        assert_eq!(lost.connection, ConnectionId(2));
        let again = channel.end(lost.clone(), CallbackEnd::Lost).unwrap();
        assert_eq!((again.connection, &again.message), (ConnectionId(1), &lost.message));
        let next = channel.end(again, CallbackEnd::Performed).unwrap();
        assert_eq!(next.message, recall(2));
        let last = channel.end(next, CallbackEnd::Performed).unwrap();
        assert_eq!(last.message, notice(1));
    }

    #[test]
    fn a_lost_callback_leaves_a_later_binding_of_its_connection() {
        let mut channel = bound();
        let lost = channel.notify(recall(1)).unwrap();
        // The client binds the connection again before the time for an answer is over.
        channel.bind(ConnectionId(1));
        let again = channel.end(lost.clone(), CallbackEnd::Lost).unwrap();
        assert_eq!((again.connection, &again.message), (ConnectionId(1), &lost.message));
        assert_eq!(channel.end(again, CallbackEnd::Lost), None);
        assert!(!channel.has_path());
    }

    /// A client may be so slow that a recall is due again before the others were sent.
    #[test]
    fn recalls_that_come_again_do_not_hold_up_others() {
        let mut channel = bound();
        let mut next = channel.notify(recall(1));
        for number in 2..=9 {
            assert_eq!(channel.notify(recall(number)), None);
        }
        let mut sent = Vec::new();
        for _ in 0..2 * 9 {
            let callback = next.unwrap();
            let message = callback.message.clone();
            next = channel.end(callback, CallbackEnd::Unknown);
            assert_eq!(channel.notify(message.clone()), None);
            sent.push(message);
        }
        let each: Vec<_> = (1..=9).map(recall).collect();
        assert_eq!(sent, [&each[..], &each].concat());
    }

    #[test]
    fn a_connection_that_is_bound_during_a_probe_is_probed_after_it() {
        for end in [CallbackEnd::Performed, CallbackEnd::Delayed, CallbackEnd::Lost] {
            let mut channel = bound();
            let probe = channel.notify(Message::Probe).unwrap();
            channel.bind(ConnectionId(1));
            assert_eq!(channel.notify(Message::Probe), None);
            let again = channel.end(probe, end).unwrap();
            assert_eq!((again.connection, &again.message), (ConnectionId(1), &Message::Probe));
            assert_eq!(channel.end(again, CallbackEnd::Performed), None);
            assert!(channel.is_proved(), "{end:?}");
        }
    }

    #[test]
    fn recalls_go_first_and_once() {
        let mut channel = bound();
        let first = channel.notify(notice(1)).unwrap();
        for message in [notice(2), recall(9), recall(9), Message::Probe, recall(3)] {
            assert_eq!(channel.notify(message), None);
        }
        let mut sent = Vec::new();
        let mut next = channel.end(first, CallbackEnd::Performed);
        while let Some(callback) = next {
            assert_eq!(channel.notify(callback.message.clone()), None, "it is at work");
            channel.notices.retain(|again| callback.message != Message::NotifyLock(again.clone()));
            sent.push(callback.message.clone());
            next = channel.end(callback, CallbackEnd::Performed);
        }
        assert_eq!(sent, [recall(3), recall(9), notice(2), Message::Probe]);
    }

    #[test]
    fn a_connection_is_proved_by_an_answer_as_long_as_it_is_bound() {
        let mut channel = bound();
        assert!(channel.has_path() && !channel.is_proved());
        let probe = channel.notify(Message::Probe).unwrap();
        assert_eq!(channel.end(probe, CallbackEnd::Performed), None);
        assert!(channel.is_proved());
        channel.bind(ConnectionId(2));
        let next = channel.notify(recall(1)).unwrap();
        assert_eq!(next.connection, ConnectionId(1), "the proved one");
        assert_eq!(channel.end(next, CallbackEnd::Delayed), None);
        assert!(channel.is_proved());
        channel.bind(ConnectionId(1));
        assert!(!channel.is_proved(), "bound again");
    }
}
