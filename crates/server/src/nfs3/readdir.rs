//! READDIR and READDIRPLUS.
//!
//! The entries of a reply lie in a buffer of the memory budget: it is reserved before anything is
//! listed, the entries are encoded into it one by one as they are listed, and it is sent as the
//! reply's payload.

use std::sync::Arc;

use io::{Buffer, Payload};
use proto::nfs3::{
    Attributes, CookieVerifier, Entry, EntryEncoder, EntryPlus, FileHandle, LIST_END_BYTES,
    ListingLimits, ReaddirArgs, ReaddirplusArgs, encode_listing_head, listing_end,
};

use super::{Executed, NFS3_OK, Outcome, Refused, Results, convert};
use crate::export::Object;
use crate::fs::Status;
use crate::request::Request;
use crate::service::Service;
use crate::trace::Event;
use crate::vfs::{DirectoryEntry, Listing, Objects, Pushed};

/// Cookies are the kernel's offsets and good for as long as the directory lives, so one verifier
/// fits all. A client that presents an older one must not be sent back to the start.
const VERIFIER: CookieVerifier = CookieVerifier([0; 8]);

/// READDIR, RFC 1813 §3.3.16. The entries are sent behind the head.
pub(super) async fn readdir(results: Results<'_>, args: ReaddirArgs) -> Executed {
    let ReaddirArgs { dir, cookie, count, .. } = args;
    let limits = ListingLimits { bytes: count, dir_bytes: u32::MAX };
    list(results, &dir, cookie, limits, Kind::Names).await
}

/// READDIRPLUS, RFC 1813 §3.3.17. The entries are sent behind the head.
pub(super) async fn readdirplus(results: Results<'_>, args: ReaddirplusArgs) -> Executed {
    let ReaddirplusArgs { dir, cookie, dir_count, max_count, .. } = args;
    let limits = ListingLimits { bytes: max_count, dir_bytes: dir_count };
    list(results, &dir, cookie, limits, Kind::Objects).await
}

async fn list(
    results: Results<'_>,
    dir: &FileHandle,
    cookie: u64,
    limits: ListingLimits,
    kind: Kind,
) -> Executed {
    let (request, range) = (results.request, (cookie, limits.bytes));
    request.trace_start(Event::ReaddirEnter, dir, range);
    let outcome = perform(request, dir, cookie, limits, kind).await;
    request.trace_done(Event::ReaddirExit, dir, range, &outcome, |listed| listed.names);
    results.put_with(outcome, |listed, reply| {
        reply.u32(NFS3_OK);
        encode_listing_head(reply, listed.attributes.as_ref(), VERIFIER);
        Some(listed.entries)
    })
}

/// A part of a listing.
struct Listed {
    /// Of the directory.
    attributes: Option<Attributes>,
    names: u32,
    /// The entries and the end of the list, encoded.
    entries: Payload,
}

async fn perform(
    request: &Request<'_>,
    dir: &FileHandle,
    cookie: u64,
    limits: ListingLimits,
    kind: Kind,
) -> Outcome<Listed, Option<Attributes>> {
    let (caller, object) = request.resolve(dir)?;
    let service = request.service;
    let bytes = limits.bytes.min(service.memory.listing_bytes_max);
    // Before any descriptor or thread is taken: a call that waits for memory holds nothing else.
    let buffer = service.take_buffer(usize::try_from(bytes).unwrap_or(usize::MAX)).await;
    let page = ReplyPage {
        service: Arc::clone(service),
        object: object.clone(),
        kind,
        encoder: EntryEncoder::new(ListingLimits { bytes, ..limits }),
        buffer: buffer.map_err(|_| Status::Delay)?,
        filled: 0,
        names: 0,
    };
    let objects = if kind == Kind::Objects { Objects::All } else { Objects::None };
    let answer =
        service.vfs.readdir(&caller, &object, cookie, objects, page, ReplyPage::push).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let Listing { page, eof } = answer.result.map_err(Refused::with(attributes))?;
    Ok(Listed { attributes, names: page.names, entries: page.finish(eof) })
}

/// The kind of a listing's entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// READDIR: inode numbers.
    Names,
    /// READDIRPLUS: attributes and handles too.
    Objects,
}

/// The encoded entries of a reply.
struct ReplyPage {
    service: Arc<Service>,
    /// The directory.
    object: Object,
    kind: Kind,
    encoder: EntryEncoder,
    /// Holds what the encoder's limits let through, and the end of the list.
    buffer: Buffer,
    filled: usize,
    names: u32,
}

impl ReplyPage {
    fn push(&mut self, entry: &DirectoryEntry<'_>) -> Pushed {
        let DirectoryEntry { fileid, cookie, .. } = *entry;
        let name = entry.name.to_bytes();
        let encoded = match self.kind {
            Kind::Names => self.encoder.encode(&Entry { fileid, name, cookie }),
            Kind::Objects => {
                let found = entry.object.as_ref().and_then(|found| found.as_ref().ok());
                let (object, service) = (&self.object, &self.service);
                self.encoder.encode_plus(&EntryPlus {
                    fileid,
                    name,
                    cookie,
                    attributes: found.map(|found| convert::attributes(object, &found.attributes)),
                    handle: found.map(|found| service.seal(object.root(), found.handle)),
                })
            }
        };
        let Some(encoded) = encoded else { return Pushed::Full };
        self.buffer.as_mut_slice()[self.filled..][..encoded.len()].copy_from_slice(encoded);
        self.filled += encoded.len();
        self.names += 1;
        Pushed::Taken
    }

    /// Ends the list. A client may ask for much more than there is, so what is not needed goes back
    /// to the pool: the rest is held until the client has taken it.
    fn finish(mut self, eof: bool) -> Payload {
        let len = self.filled + LIST_END_BYTES;
        self.buffer.as_mut_slice()[self.filled..len].copy_from_slice(&listing_end(eof));
        Payload::new(self.buffer.trimmed(len), 0, len)
    }
}
