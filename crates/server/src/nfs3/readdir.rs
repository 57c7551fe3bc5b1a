//! READDIR and READDIRPLUS.

use proto::nfs3::{
    CookieVerifier, ReaddirArgs, ReaddirBuilder, ReaddirReply, ReaddirplusArgs,
    ReaddirplusBuilder, ReaddirplusLimits, ReaddirplusReply,
};
use proto::xdr::{Encode, Writer};

use super::{convert, failed, refused};
use crate::dispatch::Request;
use crate::vfs::{ListingRoom, Status};

/// The longest reply to a listing: a client may ask for more and gets this much.
const REPLY_BYTES_MAX: u32 = 1024 * 1024;
/// Bytes of a result before and after its entries: attributes, verifier, end of list, eof.
const FRAME_BYTES: usize = 104;
/// Bytes of a READDIR entry besides its name.
const ENTRY_BYTES: usize = 24;
/// What READDIRPLUS adds to it at least: attributes and a handle of the shortest common kind.
const OBJECT_BYTES: usize = 88 + 36;
/// Cookies are the kernel's offsets and good for as long as the directory lives, so one verifier
/// fits all. A client that presents an older one must not be sent back to the start.
const VERIFIER: CookieVerifier = CookieVerifier([0; 8]);
const NFS3_OK: u32 = 0;

/// READDIR, RFC 1813 §3.3.16.
pub(super) async fn readdir(request: &Request<'_>, args: ReaddirArgs, reply: &mut Writer) {
    let (caller, object) = match request.resolve(&args.dir) {
        Ok(resolved) => resolved,
        Err(status) => return ReaddirReply::encode(&refused(status), reply),
    };
    let count = args.count.min(REPLY_BYTES_MAX);
    let room = ListingRoom {
        bytes_max: entry_room(count),
        name_bytes_max: usize::MAX,
        entry_bytes: ENTRY_BYTES,
        with_objects: false,
    };
    let answer = request.service.vfs.readdir(&caller, &object, args.cookie, room).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let listing = match answer.result {
        Ok(listing) => listing,
        Err(status) => return ReaddirReply::encode(&failed(status, attributes), reply),
    };
    let start = reply.len();
    reply.u32(NFS3_OK);
    let mut page = ReaddirBuilder::new(reply, attributes.as_ref(), VERIFIER, count);
    let all = listing.entries.iter().all(|e| page.push(e.fileid, &e.name, e.cookie));
    if page.entries() == 0 && !all {
        reply.truncate(start);
        return ReaddirReply::encode(&failed(Status::TooSmall, attributes), reply);
    }
    page.finish(listing.eof && all);
}

/// READDIRPLUS, RFC 1813 §3.3.17.
pub(super) async fn readdirplus(request: &Request<'_>, args: ReaddirplusArgs, reply: &mut Writer) {
    let (caller, object) = match request.resolve(&args.dir) {
        Ok(resolved) => resolved,
        Err(status) => return ReaddirplusReply::encode(&refused(status), reply),
    };
    let limits = ReaddirplusLimits {
        dir_count: args.dir_count.min(REPLY_BYTES_MAX),
        max_count: args.max_count.min(REPLY_BYTES_MAX),
    };
    let room = ListingRoom {
        bytes_max: entry_room(limits.max_count),
        name_bytes_max: usize::try_from(limits.dir_count).unwrap_or(usize::MAX),
        entry_bytes: ENTRY_BYTES + OBJECT_BYTES,
        with_objects: true,
    };
    let answer = request.service.vfs.readdir(&caller, &object, args.cookie, room).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let listing = match answer.result {
        Ok(listing) => listing,
        Err(status) => return ReaddirplusReply::encode(&failed(status, attributes), reply),
    };
    let start = reply.len();
    reply.u32(NFS3_OK);
    let mut page = ReaddirplusBuilder::new(reply, attributes.as_ref(), VERIFIER, limits);
    let all = listing.entries.iter().all(|entry| {
        let known = entry.object.as_ref();
        let handle = known.map(|(handle, _)| request.service.seal(object.root.id, *handle));
        let attributes = known.map(|(_, a)| convert::attributes(&object, a));
        page.push(entry.fileid, &entry.name, entry.cookie, attributes.as_ref(), handle.as_ref())
    });
    if page.entries() == 0 && !all {
        reply.truncate(start);
        return ReaddirplusReply::encode(&failed(Status::TooSmall, attributes), reply);
    }
    page.finish(listing.eof && all);
}

fn entry_room(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(FRAME_BYTES)
}
