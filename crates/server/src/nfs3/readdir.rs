//! READDIR and READDIRPLUS.

use std::ffi::CStr;

use proto::nfs3::{
    Attributes, CookieVerifier, ReaddirArgs, ReaddirBuilder, ReaddirReply, ReaddirplusArgs,
    ReaddirplusBuilder, ReaddirplusLimits, ReaddirplusReply, Reply,
};
use proto::xdr::{Encode, Writer};

use super::{NFS3_OK, convert, failed, refused};
use crate::counters::Counter;
use crate::dispatch::Request;
use crate::file_handle::sealed_len;
use crate::trace::Event;
use crate::vfs::{Found, ListingRoom, Status};

/// The longest reply to a listing: a client may ask for more and gets this much.
const REPLY_BYTES_MAX: u32 = 1024 * 1024;
/// Bytes of a result before and after its entries: attributes, verifier, end of list, eof.
const FRAME_BYTES: usize = 104;
/// Bytes of a READDIR entry besides its name.
const ENTRY_BYTES: usize = 24;
/// What attributes and a handle add to an entry, besides the bytes of the handle: a mark for each,
/// `fattr3`, the handle's length.
const OBJECT_BYTES: usize = 4 + 84 + 4 + 4;
/// The two marks that stand for "no attributes" and "no handle".
const NO_OBJECT_BYTES: usize = 8;
/// Cookies are the kernel's offsets and good for as long as the directory lives, so one verifier
/// fits all. A client that presents an older one must not be sent back to the start.
const VERIFIER: CookieVerifier = CookieVerifier([0; 8]);

/// READDIR, RFC 1813 §3.3.16.
pub(super) async fn readdir(request: &Request<'_>, args: ReaddirArgs, reply: &mut Writer) {
    request.trace_start(Event::ReaddirEnter, &args.dir, args.cookie, args.count);
    count(request, args.cookie);
    let listed = list(request, &args, reply).await;
    if let Err(failure) = listed {
        ReaddirReply::encode(&Err(failure), reply);
    }
    let result = listed.map_err(|failure| failure.status);
    request.trace_done(Event::ReaddirExit, &args.dir, args.cookie, args.count, result);
}

/// What clients do that list: whether they go on where they were, or begin again.
fn count(request: &Request<'_>, cookie: u64) {
    request.service.counters.add(Counter::Readdirs, 1);
    if cookie == 0 {
        request.service.counters.add(Counter::ReaddirsFromStart, 1);
    }
}

/// Writes the results if there are any, and says how many names they hold.
async fn list(
    request: &Request<'_>,
    args: &ReaddirArgs,
    reply: &mut Writer,
) -> Reply<u32, Option<Attributes>> {
    let (caller, object) = match request.resolve(&args.dir) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let count = args.count.min(REPLY_BYTES_MAX);
    let room = ListingRoom {
        bytes_max: entry_room(count),
        name_bytes_max: usize::MAX,
        entry_bytes: |name, _| ENTRY_BYTES + padded_len(name),
        name_bytes,
        with_objects: false,
    };
    let answer = request.service.vfs.readdir(&caller, &object, args.cookie, room).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let listing = match answer.result {
        Ok(listing) => listing,
        Err(status) => return failed(status, attributes),
    };
    let start = reply.len();
    reply.u32(NFS3_OK);
    let mut page = ReaddirBuilder::new(reply, attributes.as_ref(), VERIFIER, count);
    let all = listing.entries.iter().all(|e| page.push(e.fileid, e.name.to_bytes(), e.cookie));
    if page.entries() == 0 && !all {
        reply.truncate(start);
        return failed(Status::TooSmall, attributes);
    }
    let names = u32::try_from(page.entries()).expect("each takes bytes of the reply");
    page.finish(listing.eof && all);
    Ok(names)
}

/// READDIRPLUS, RFC 1813 §3.3.17.
pub(super) async fn readdirplus(request: &Request<'_>, args: ReaddirplusArgs, reply: &mut Writer) {
    request.trace_start(Event::ReaddirEnter, &args.dir, args.cookie, args.max_count);
    count(request, args.cookie);
    let listed = list_plus(request, &args, reply).await;
    if let Err(failure) = listed {
        ReaddirplusReply::encode(&Err(failure), reply);
    }
    let result = listed.map_err(|failure| failure.status);
    request.trace_done(Event::ReaddirExit, &args.dir, args.cookie, args.max_count, result);
}

/// Writes the results if there are any, and says how many names they hold.
async fn list_plus(
    request: &Request<'_>,
    args: &ReaddirplusArgs,
    reply: &mut Writer,
) -> Reply<u32, Option<Attributes>> {
    let (caller, object) = match request.resolve(&args.dir) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let limits = ReaddirplusLimits {
        dir_count: args.dir_count.min(REPLY_BYTES_MAX),
        max_count: args.max_count.min(REPLY_BYTES_MAX),
    };
    let room = ListingRoom {
        bytes_max: entry_room(limits.max_count),
        name_bytes_max: usize::try_from(limits.dir_count).unwrap_or(usize::MAX),
        entry_bytes: entry_plus_bytes,
        name_bytes,
        with_objects: true,
    };
    let answer = request.service.vfs.readdir(&caller, &object, args.cookie, room).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let listing = match answer.result {
        Ok(listing) => listing,
        Err(status) => return failed(status, attributes),
    };
    let start = reply.len();
    reply.u32(NFS3_OK);
    let mut page = ReaddirplusBuilder::new(reply, attributes.as_ref(), VERIFIER, limits);
    let all = listing.entries.iter().all(|entry| {
        let known = entry.object.as_ref();
        let handle = known.map(|found| request.service.seal(object.root.id, found.handle));
        let attributes = known.map(|found| convert::attributes(&object, &found.attributes));
        let name = entry.name.to_bytes();
        page.push(entry.fileid, name, entry.cookie, attributes.as_ref(), handle.as_ref())
    });
    if page.entries() == 0 && !all {
        reply.truncate(start);
        return failed(Status::TooSmall, attributes);
    }
    let names = u32::try_from(page.entries()).expect("each takes bytes of the reply");
    page.finish(listing.eof && all);
    Ok(names)
}

/// Bytes of a READDIRPLUS entry (RFC 1813 §3.3.17, `entryplus3`). What is sent must be exactly what
/// was read, or the next call would have to go back in the directory.
fn entry_plus_bytes(name: &CStr, object: Option<&Found>) -> usize {
    let object_bytes = object.map_or(NO_OBJECT_BYTES, |found| {
        OBJECT_BYTES + sealed_len(&found.handle).next_multiple_of(4)
    });
    ENTRY_BYTES + padded_len(name) + object_bytes
}

/// What `dircount` counts of an entry: inode number, name with its length, cookie.
fn name_bytes(name: &CStr) -> usize {
    8 + 4 + padded_len(name) + 8
}

fn padded_len(name: &CStr) -> usize {
    name.to_bytes().len().next_multiple_of(4)
}

fn entry_room(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(FRAME_BYTES)
}
