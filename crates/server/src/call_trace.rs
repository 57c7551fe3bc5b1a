//! Whole calls in the flight recorder and the trace events, of all procedures alike: those without
//! I/O have no other events.

use std::net::SocketAddr;
use std::time::Duration;

use crate::call::{Call, Outline};
use crate::counters::Operation as Counted;
use crate::export::claimed_export_id;
use crate::moment::Moment;
use crate::service::Service;
use crate::trace::{Begun, CallEnd, CallId, Detail, Event, Outcome, RecordId, handle_hash};

/// Records the arrival of a call.
pub(crate) fn record(traced: Traced<'_>, outline: &Outline<'_>) -> RecordId {
    let Traced { service, call, client, received } = traced;
    let (operation, handle) = (outline.operation, outline.handle.unwrap_or_default());
    let (xid, (offset, len)) = (call.xid, outline.range.unwrap_or_default());
    service.tracer.recorder.begin(&Begun { received, client, xid, operation, handle, offset, len })
}

/// A call that events are about, as it was received.
#[derive(Clone, Copy)]
pub(crate) struct Traced<'a> {
    pub(crate) service: &'a Service,
    pub(crate) call: &'a Call,
    pub(crate) client: SocketAddr,
    /// When its last byte was there.
    pub(crate) received: Moment,
}

/// Reports that a call was received: two loads if nothing listens.
#[inline]
pub(crate) fn start(traced: Traced<'_>) {
    if traced.service.tracer.is_on(Event::CallStart) {
        report(traced, Event::CallStart, None);
    }
}

/// Reports that the reply to a call was encoded, or that it gets none: two loads if nothing
/// listens. `status` is as the recorder has it, `queue_ns` the wait for threads.
#[inline]
pub(crate) fn done(traced: Traced<'_>, status: u32, queue_ns: u64) {
    if traced.service.tracer.is_on(Event::CallDone) {
        report(traced, Event::CallDone, Some((status, queue_ns)));
    }
}

/// Records and reports a call that is denied by its header, which names no procedure to be shown.
#[cold]
pub(crate) fn denied(service: &Service, xid: u32, client: SocketAddr, received: Moment) {
    let (recorder, status) = (&service.tracer.recorder, Outcome::Denied as u32);
    let (operation, handle, offset, len) = (None, &[][..], 0, 0);
    let begun = Begun { received, client, xid, operation, handle, offset, len };
    let record = recorder.begin(&begun);
    let latency_ns = Moment::now().nanoseconds_since(received);
    recorder.end(record, status, 0, latency_ns);
    let (client, record) = (client.ip().to_canonical(), RecordId::NONE);
    let outlasts = false;
    let id = CallId { xid, fh_hash: 0, export_id: None, client, received, record, outlasts };
    let end = CallEnd { status, name: Outcome::Denied.name(), queue_us: 0 };
    for (event, end) in [(Event::CallStart, None), (Event::CallDone, Some(end))] {
        let detail = Detail::Call { program: "-", procedure: "-", end };
        service.tracer.emit(event, id, 0, 0, detail);
    }
    service.tracer.end(id.key(), Duration::from_nanos(latency_ns));
}

#[cold]
fn report(traced: Traced<'_>, event: Event, end: Option<(u32, u64)>) {
    let Traced { service, call, client, received } = traced;
    let Outline { operation, handle, range, .. } = call.outline();
    let (offset, len) = range.unwrap_or_default();
    let id = CallId {
        xid: call.xid,
        fh_hash: handle.map_or(0, handle_hash),
        export_id: handle.and_then(claimed_export_id),
        client: client.ip().to_canonical(),
        received,
        // The recorder has the whole call without them.
        record: RecordId::NONE,
        outlasts: false,
    };
    let row = call.procedure.ok();
    let procedure = operation.map(|operation| operation.name()).or(row.map(|row| row.name));
    let detail = Detail::Call {
        program: operation.map_or("-", |operation| operation.program()),
        procedure: procedure.unwrap_or("-"),
        end: end.map(|(status, queue_ns)| CallEnd {
            status,
            name: status_name(operation, status),
            queue_us: queue_ns / 1000,
        }),
    };
    service.tracer.emit(event, id, offset, len.into(), detail);
}

fn status_name(operation: Option<Counted>, status: u32) -> &'static str {
    match (Outcome::of(status), operation) {
        (Some(outcome), _) => outcome.name(),
        (None, Some(operation)) if status != 0 => operation.status_name(status),
        (None, operation) => operation.map_or("OK", Counted::success_name),
    }
}
