//! READ.

use proto::nfs3::{ReadArgs, ReadOk, ReadReply};
use proto::xdr::{Encode, Writer};

use super::{NFS3_OK, convert, failed, refused};
use crate::dispatch::Request;
use crate::payload::Payload;

/// READ, RFC 1813 §3.3.6. The data is returned, to be sent from the buffer it was read into.
pub(super) async fn read(
    request: &Request<'_>,
    args: ReadArgs,
    reply: &mut Writer,
) -> Option<Payload> {
    let (caller, object) = match request.resolve(&args.file) {
        Ok(resolved) => resolved,
        Err(status) => {
            ReadReply::encode(&refused(status), reply);
            return None;
        }
    };
    let answer = request.service.vfs.read(&caller, &object, args.offset, args.count).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    match answer.result {
        Ok(done) => {
            let count = u32::try_from(done.count()).expect("at most what was asked for");
            reply.u32(NFS3_OK);
            ReadOk::encode_head(attributes.as_ref(), count, done.eof, reply);
            done.data
        }
        Err(status) => {
            ReadReply::encode(&failed(status, attributes), reply);
            None
        }
    }
}
