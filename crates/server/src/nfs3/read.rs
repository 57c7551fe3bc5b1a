//! READ.

use proto::nfs3::{Attributes, ReadArgs, ReadOk};

use super::{Executed, NFS3_OK, Outcome, Refused, Results, convert};
use crate::request::Request;
use crate::trace::Event;
use crate::vfs::ReadDone;

/// READ, RFC 1813 §3.3.6. The data is sent from the buffer that it was read into.
pub(super) async fn read(results: Results<'_>, args: ReadArgs) -> Executed {
    let (ReadArgs { file, offset, count }, request) = (&args, results.request);
    request.trace_start(Event::ReadStart, file, (*offset, *count));
    let outcome = perform(request, &args).await;
    let read = |done: &ReadDone| u32::try_from(done.count()).expect("at most what was asked for");
    request.trace_done(Event::ReadDone, file, (*offset, *count), &outcome, |(_, done)| read(done));
    results.put_with(outcome, |(attributes, done), reply| {
        reply.u32(NFS3_OK);
        ReadOk::encode_head(attributes.as_ref(), read(&done), done.eof, reply);
        done.data
    })
}

async fn perform(
    request: &Request<'_>,
    args: &ReadArgs,
) -> Outcome<(Option<Attributes>, ReadDone), Option<Attributes>> {
    let (caller, object) = request.resolve(&args.file)?;
    let (vfs, call) = (&request.service.vfs, request.call_id(|| args.file));
    let held = vfs.hold(&object).await?;
    let answer = vfs.read(&caller, (&object, &held), call, args.offset, args.count).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    Ok((attributes, answer.result.map_err(Refused::with(attributes))?))
}
