//! The times of calls that are timed: until the reply is ready, and until it is sent.

use std::sync::Arc;

use rpc::server::SendObserver;

use crate::counters::{CallKind, ClientCounters, CounterSet, Phase};
use crate::dispatch::{Ended, Verdict};
use crate::moment::Moment;
use crate::service::Service;

/// The kinds of calls, of which tokens name one.
const KINDS: u64 = CallKind::ALL.len() as u64;

/// A call that is timed, when it was executed.
pub(super) struct Timed {
    pub(super) kind: CallKind,
    pub(super) received: Moment,
    pub(super) ended: Ended,
}

impl Timed {
    /// Notes the call's times so far, and has the time noted that its reply takes to send.
    pub(super) fn note(
        self,
        service: &Service,
        client: &Arc<ClientCounters>,
        verdict: Verdict,
    ) -> Verdict {
        let Self { kind, received, ended } = self;
        let times = ended.export.unwrap_or_else(|| Arc::clone(service.counters.general()));
        if let Some(nanoseconds) = ended.queue_ns {
            times.note_phase(kind, Phase::Queue, nanoseconds);
            client.note_phase(Phase::Queue, nanoseconds);
        }
        let Verdict::Reply(reply) = verdict else { return verdict };
        let Some(ended) = ended.at else { return Verdict::Reply(reply) };
        client.note_time(ended.nanoseconds_since(received));
        let token = send_token(kind, ended);
        if !service.counters.timing.is_watched() {
            return Verdict::Reply(reply.observed(times, token));
        }
        let sent = Sent { times, client: Arc::clone(client) };
        Verdict::Reply(reply.observed(Arc::new(sent), token))
    }
}

/// The kind of a call, in the lowest bits, and when its reply was ready to be sent.
fn send_token(kind: CallKind, ready: Moment) -> u64 {
    ready.nanoseconds() * KINDS + kind as u64
}

/// Where the time is counted that a reply takes to send.
struct Sent {
    times: Arc<CounterSet>,
    client: Arc<ClientCounters>,
}

impl SendObserver for Sent {
    fn reply_is_gone(&self, token: u64) {
        let (kind, nanoseconds) = time_to_send(token);
        self.times.note_phase(kind, Phase::Send, nanoseconds);
        self.client.note_phase(Phase::Send, nanoseconds);
    }
}

impl SendObserver for CounterSet {
    fn reply_is_gone(&self, token: u64) {
        let (kind, nanoseconds) = time_to_send(token);
        self.note_phase(kind, Phase::Send, nanoseconds);
    }
}

fn time_to_send(token: u64) -> (CallKind, u64) {
    let kind = CallKind::ALL[usize::from((token % KINDS) as u8)];
    (kind, Moment::now().nanoseconds().saturating_sub(token / KINDS))
}
