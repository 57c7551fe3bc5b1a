//! WRITE and COMMIT.

use io::WriteData;
use proto::nfs3::{CommitArgs, CommitOk, WccData, WriteHead, WriteOk, WriteVerifier};

use super::{Outcome, Refused, convert};
use crate::fs::Status;
use crate::request::Request;
use crate::trace::Event;

/// WRITE, RFC 1813 §3.3.7.
pub(super) async fn write(
    request: &Request<'_>,
    args: &WriteHead,
    payload: &mut Option<WriteData>,
) -> Outcome<WriteOk, WccData> {
    let WriteHead { file, offset, data_len, .. } = args;
    request.trace_start(Event::WriteStart, file, (*offset, *data_len));
    let outcome = perform_write(request, args, payload).await;
    request.trace_done(Event::WriteDone, file, (*offset, *data_len), &outcome, |ok| ok.count);
    outcome
}

async fn perform_write(
    request: &Request<'_>,
    args: &WriteHead,
    payload: &mut Option<WriteData>,
) -> Outcome<WriteOk, WccData> {
    let (caller, object) = request.resolve(&args.file)?;
    if args.data_len > request.service.memory.transfer_bytes_max {
        // Received and discarded: FSINFO reported the limit to the client (wtmax).
        return Err(Status::Invalid.into());
    }
    let stability = convert::stability(args.stable);
    let (vfs, call) = (&request.service.vfs, request.call_id(|| args.file));
    let held = vfs.hold(&object).await?;
    let object = (&object, &held);
    let answer = vfs.write(&caller, object, call, args.offset, payload, stability).await;
    let wcc = convert::wcc(object.0, &answer.attributes);
    let done = answer.result.map_err(Refused::with(wcc))?;
    Ok(WriteOk {
        wcc,
        count: u32::try_from(done.count).expect("at most what was sent"),
        committed: convert::committed(done.committed),
        verifier: WriteVerifier(done.verifier),
    })
}

/// COMMIT, RFC 1813 §3.3.21.
pub(super) async fn commit(request: &Request<'_>, args: CommitArgs) -> Outcome<CommitOk, WccData> {
    let CommitArgs { file, offset, count } = &args;
    request.trace_start(Event::CommitStart, file, (*offset, *count));
    let outcome = perform_commit(request, &args).await;
    request.trace_done(Event::CommitDone, file, (*offset, *count), &outcome, |_| *count);
    outcome
}

async fn perform_commit(request: &Request<'_>, args: &CommitArgs) -> Outcome<CommitOk, WccData> {
    let (caller, object) = request.resolve(&args.file)?;
    let answer = request.service.vfs.commit(&caller, &object).await;
    let wcc = convert::wcc(&object, &answer.attributes);
    let verifier = answer.result.map_err(Refused::with(wcc))?;
    Ok(CommitOk { wcc, verifier: WriteVerifier(verifier) })
}
