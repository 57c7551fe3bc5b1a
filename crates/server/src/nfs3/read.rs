//! READ.

use proto::nfs3::{Attributes, ReadArgs, ReadOk, ReadReply, Reply};
use proto::xdr::{Encode, Writer};

use super::{NFS3_OK, convert, failed, refused};
use crate::dispatch::Request;
use crate::payload::Payload;
use crate::trace::Event;
use crate::vfs::ReadDone;

/// READ, RFC 1813 §3.3.6. The data is returned, to be sent from the buffer it was read into.
pub(super) async fn read(
    request: &Request<'_>,
    args: ReadArgs,
    reply: &mut Writer,
) -> Option<Payload> {
    let ReadArgs { file, offset, count } = &args;
    request.trace_start(Event::ReadStart, file, *offset, *count);
    let (result, data) = match perform(request, &args).await {
        Ok((attributes, done)) => {
            let read = u32::try_from(done.count()).expect("at most what was asked for");
            reply.u32(NFS3_OK);
            ReadOk::encode_head(attributes.as_ref(), read, done.eof, reply);
            (Ok(read), done.data)
        }
        Err(failure) => {
            ReadReply::encode(&Err(failure), reply);
            (Err(failure.status), None)
        }
    };
    request.trace_done(Event::ReadDone, file, *offset, *count, result);
    data
}

async fn perform(
    request: &Request<'_>,
    args: &ReadArgs,
) -> Reply<(Option<Attributes>, ReadDone), Option<Attributes>> {
    let (caller, object) = match request.resolve(&args.file) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let answer = request.service.vfs.read(&caller, &object, args.offset, args.count).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    match answer.result {
        Ok(done) => Ok((attributes, done)),
        Err(status) => failed(status, attributes),
    }
}
