//! WRITE and COMMIT.

use proto::nfs3::{
    CommitArgs, CommitOk, CommitReply, StableHow, WriteHead, WriteOk, WriteReply, WriteVerifier,
};

use super::{convert, failed, refused};
use crate::dispatch::Request;
use crate::payload::Payload;
use crate::trace::Event;
use crate::vfs::{Stability, Status};

/// WRITE, RFC 1813 §3.3.7.
pub(super) async fn write(
    request: &Request<'_>,
    args: WriteHead,
    payload: Option<Payload>,
) -> WriteReply {
    let WriteHead { file, offset, data_len, .. } = &args;
    request.trace_start(Event::WriteStart, file, *offset, *data_len);
    let reply = perform_write(request, &args, payload).await;
    let result = reply.as_ref().map(|ok| ok.count).map_err(|failure| failure.status);
    request.trace_done(Event::WriteDone, file, *offset, *data_len, result);
    reply
}

async fn perform_write(
    request: &Request<'_>,
    args: &WriteHead,
    payload: Option<Payload>,
) -> WriteReply {
    let (caller, object) = match request.resolve(&args.file) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let vfs = &request.service.vfs;
    if args.data_len > vfs.transfer_bytes_max {
        // Received and thrown away: the client was told the limit by FSINFO (wtmax).
        return refused(Status::Invalid);
    }
    let stability = match args.stable {
        StableHow::Unstable => Stability::Unstable,
        StableHow::DataSync => Stability::DataSync,
        StableHow::FileSync => Stability::FileSync,
    };
    let answer = vfs.write(&caller, &object, args.offset, payload, stability).await;
    let wcc = convert::wcc(&object, &answer.attributes);
    match answer.result {
        Ok(done) => Ok(WriteOk {
            wcc,
            count: u32::try_from(done.count).expect("at most what was sent"),
            committed: match done.committed {
                Stability::Unstable => StableHow::Unstable,
                Stability::DataSync => StableHow::DataSync,
                Stability::FileSync => StableHow::FileSync,
            },
            verifier: WriteVerifier(done.verifier),
        }),
        Err(status) => failed(status, wcc),
    }
}

/// COMMIT, RFC 1813 §3.3.21.
pub(super) async fn commit(request: &Request<'_>, args: CommitArgs) -> CommitReply {
    let CommitArgs { file, offset, count } = &args;
    request.trace_start(Event::CommitStart, file, *offset, *count);
    let reply = perform_commit(request, &args).await;
    let result = reply.as_ref().map(|_| *count).map_err(|failure| failure.status);
    request.trace_done(Event::CommitDone, file, *offset, *count, result);
    reply
}

async fn perform_commit(request: &Request<'_>, args: &CommitArgs) -> CommitReply {
    let (caller, object) = match request.resolve(&args.file) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let answer = request.service.vfs.commit(&caller, &object).await;
    let wcc = convert::wcc(&object, &answer.attributes);
    match answer.result {
        Ok(verifier) => Ok(CommitOk { wcc, verifier: WriteVerifier(verifier) }),
        Err(status) => failed(status, wcc),
    }
}
