//! The static probes (USDT) of the provider `spillway`: one for each event, with its fields.

use io::{WidenedRead, probe};

use super::{CallEnd, CallId, Detail, Event};

/// Fires the probe of an event. The arguments are `xid`, `fh_hash`, `offset` and `len`, and of an
/// event that ends a call `status` and `count`. As bpftrace takes six, those of `read_vector_dio`
/// are `xid`, `fh_hash`, `start`, `start_extra`, `end` and `end_extra`, which give the range, and
/// those of `call_done` `xid`, `fh_hash`, the address and length of the procedure's name, `status`
/// and `latency_us`.
pub(super) fn fire(event: Event, call: &CallId, (offset, len): (u64, u64), detail: &Detail<'_>) {
    let (xid, hash) = (u64::from(call.xid), u64::from(call.fh_hash));
    let (status, count) = match detail {
        Detail::Done { status, count, .. } => (u64::from(*status), u64::from(*count)),
        Detail::Text(_) | Detail::Widened(_) | Detail::Call { .. } => (0, 0),
    };
    match event {
        Event::ReadStart => probe!(read_start, xid, hash, offset, len),
        Event::ReadVectorDio => {
            if let Detail::Widened(WidenedRead { start, start_extra, end, end_extra, .. }) = *detail
            {
                probe!(read_vector_dio, xid, hash, start, start_extra, end, end_extra);
            }
        }
        Event::ReadDirect => probe!(read_direct, xid, hash, offset, len),
        Event::ReadVector => probe!(read_vector, xid, hash, offset, len),
        Event::ReadSplice => probe!(read_splice, xid, hash, offset, len),
        Event::ReadAhead => probe!(read_ahead, xid, hash, offset, len),
        Event::ReadIoDone => probe!(read_io_done, xid, hash, offset, len),
        Event::ReadDone => probe!(read_done, xid, hash, offset, len, status, count),
        Event::WriteStart => probe!(write_start, xid, hash, offset, len),
        Event::WriteSplit => probe!(write_split, xid, hash, offset, len),
        Event::WriteVector => probe!(write_vector, xid, hash, offset, len),
        Event::WriteDirect => probe!(write_direct, xid, hash, offset, len),
        Event::WriteIoDone => probe!(write_io_done, xid, hash, offset, len),
        Event::WriteDone => probe!(write_done, xid, hash, offset, len, status, count),
        Event::CommitStart => probe!(commit_start, xid, hash, offset, len),
        Event::CommitDone => probe!(commit_done, xid, hash, offset, len, status, count),
        Event::ReaddirEnter => probe!(readdir_enter, xid, hash, offset, len),
        Event::ReaddirExit => probe!(readdir_exit, xid, hash, offset, len, status, count),
        Event::CallStart => probe!(call_start, xid, hash, offset, len),
        Event::CallDone => {
            if let Detail::Call { procedure, end: Some(CallEnd { status, .. }), .. } = *detail {
                let (name, name_len) = (procedure.as_ptr().addr() as u64, procedure.len() as u64);
                let latency_us = call.received.elapsed().as_micros();
                let latency_us = u64::try_from(latency_us).unwrap_or(u64::MAX);
                probe!(call_done, xid, hash, name, name_len, u64::from(status), latency_us);
            }
        }
    }
}
