//! READDIR.
//!
//! As in version 3, the entries lie in a buffer of the memory budget, which is reserved before
//! anything is listed, and are sent as the reply's payload.

use std::sync::Arc;

use io::{Buffer, Payload};
use proto::nfs4::{
    Attributes, Bitmap, EntryEncoder, FileHandle, FileType, LISTING_END_BYTES, NFS4_OK,
    OperationCode, ReaddirArgs, Status, Verifier, attribute, listing_end,
};
use proto::xdr::{Encode, Reader, Writer};

use super::Outcome;
use super::attr::{Described, Description, WRITE_ONLY};
use super::compound::Compound;
use super::convert;
use super::operation::decoded;
use super::resolved_handle::{Located, Pseudo, ResolvedHandle};
use super::results::Results;
use crate::export::Object;
use crate::fs;
use crate::service::Service;
use crate::trace::Event;
use crate::vfs::{DirectoryEntry, Found, Objects, Pushed};

/// Cookies are of the kernel's offsets and good for as long as the directory lives, so one verifier
/// fits all.
const VERIFIER: Verifier = Verifier([0; 8]);
/// The shortest listing: one entry with a long name and all attributes.
const LISTING_BYTES_MIN: usize = 64;
/// The verifier in front of the entries.
const HEAD_BYTES: usize = 8;
/// Attributes of an entry that need no object.
const WITHOUT_OBJECT: Bitmap =
    Bitmap::of(&[attribute::RDATTR_ERROR, attribute::FILEID, attribute::MOUNTED_ON_FILEID]);
/// Attributes of an export's place that are known while its root is open: it is a directory, and
/// keeps its number.
const WITHOUT_ROOT: Bitmap = Bitmap::of(&[
    attribute::RDATTR_ERROR,
    attribute::TYPE,
    attribute::FILEID,
    attribute::MOUNTED_ON_FILEID,
]);
/// The first cookies are reserved (RFC 8881 §18.23.3).
const COOKIE_MIN: u64 = 3;
/// A bit that no offset has which lseek(2) takes. It is set in the cookie of an offset whose value
/// is reserved for cookies, as file systems in user space have them.
const RESERVED_OFFSET: u64 = 1 << 63;

/// The cookie of the kernel's offset after an entry.
fn cookie_of(offset: u64) -> u64 {
    if (1..COOKIE_MIN).contains(&offset) { offset | RESERVED_OFFSET } else { offset }
}

/// The kernel's offset that a cookie is of.
fn offset_of(cookie: u64) -> u64 {
    let offset = cookie & !RESERVED_OFFSET;
    if cookie_of(offset) == cookie { offset } else { cookie }
}

/// A part of a listing: the verifier, the entries and the end of the list, encoded.
struct Listed {
    buffer: Buffer,
    len: usize,
    names: u32,
}

impl<'a> Compound<'a> {
    /// READDIR, RFC 8881 §18.23.
    pub(super) async fn readdir(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let args: ReaddirArgs = match decoded(reader) {
            Ok(args) => args,
            Err(refused) => return self.put::<()>(OperationCode::Readdir, Err(refused)),
        };
        let range = (args.cookie, args.bytes_max);
        self.trace_start(Event::ReaddirEnter, range);
        let outcome = self.list(args).await;
        let names = outcome.as_ref().map_or(0, |listed| listed.names);
        let put = self.put_with(OperationCode::Readdir, outcome, |listed, results| {
            send(results, listed.buffer, listed.len);
            Ok(())
        });
        self.trace_done(Event::ReaddirExit, range, put.map(|()| names));
        put
    }

    async fn list(&mut self, args: ReaddirArgs) -> Outcome<Listed> {
        if !args.wanted.intersection(WRITE_ONLY).is_empty() {
            return Err(Status::Inval.into());
        }
        if matches!(args.cookie, 1 | 2) {
            return Err(Status::BadCookie.into());
        }
        let service = self.request.service;
        let room = self.results.data_room()?;
        let wanted_bytes = args.bytes_max.min(service.memory.listing_bytes_max);
        let wanted_bytes = usize::try_from(wanted_bytes).unwrap_or(usize::MAX);
        let bytes = room.min(wanted_bytes);
        // A client that reads this asks for more bytes, which help if it has asked for too few.
        let too_small = if room < wanted_bytes { self.results.too_big() } else { Status::Toosmall };
        if bytes < LISTING_BYTES_MIN {
            return Err(too_small.into());
        }
        let buffer = service.take_buffer(bytes).await.map_err(|_| Status::Delay)?;
        let bytes_max = u32::try_from(bytes).expect("at most what was asked for");
        let wanted = args.wanted.intersection(self.supported());
        let mut page = Page {
            service: Arc::clone(service),
            minor_version: self.minor_version,
            object: None,
            mounts: Vec::new(),
            wanted,
            encoder: EntryEncoder::new(bytes_max, args.dir_bytes),
            buffer,
            filled: HEAD_BYTES,
            names: 0,
        };
        page.buffer.as_mut_slice()[..HEAD_BYTES].copy_from_slice(&VERIFIER.0);
        let listed = match self.current_handle()?.clone() {
            ResolvedHandle::Pseudo(pseudo) => self.list_pseudo(&pseudo, args.cookie, page).await,
            ResolvedHandle::Object(located) => {
                page.object = Some(located.object.clone());
                page.mounts = self.mounts_in(&located, wanted).await?;
                self.list_directory(&located, &args, page).await
            }
        };
        listed.map_err(|refused| match refused.status {
            Status::Toosmall => too_small.into(),
            _ => refused,
        })
    }

    async fn list_directory(
        &self,
        located: &Located,
        args: &ReaddirArgs,
        page: Page,
    ) -> Outcome<Listed> {
        let Located { caller, object } = located;
        let (service, offset) = (self.request.service, offset_of(args.cookie));
        let is_without = page.wanted.difference(WITHOUT_OBJECT).is_empty();
        let objects = if is_without { Objects::None } else { Objects::OfNames };
        let answer = service.vfs.readdir(caller, object, offset, objects, page, Page::push).await;
        let listing = answer.result?;
        Ok(listing.page.finish(listing.eof))
    }

    async fn list_pseudo(&self, pseudo: &Pseudo, cookie: u64, mut page: Page) -> Outcome<Listed> {
        let mut eof = true;
        for child in &pseudo.node().children {
            let child = pseudo.at(*child);
            if child.node().cookie() <= cookie || !self.is_visible(&child) {
                continue;
            }
            let attributes = self.describe_child(&child, page.wanted).await?;
            let name = child.node().name.clone();
            if page.put(child.node().cookie(), name.as_bytes(), &attributes) == Pushed::Full {
                eof = false;
                break;
            }
        }
        if page.names == 0 && !eof {
            return Err(fs::Status::TooSmall.into());
        }
        Ok(page.finish(eof))
    }

    /// The exports that LOOKUP finds in a directory in place of its own entries: those that are
    /// named one component below it, if it is an export's root.
    async fn mounts_in(&self, directory: &Located, wanted: Bitmap) -> Outcome<Vec<Mount>> {
        let mut mounts = Vec::new();
        let pseudo = directory.is_root().then(|| self.pseudo_of(directory)).flatten();
        let Some(pseudo) = pseudo else { return Ok(mounts) };
        for child in &pseudo.node().children {
            let child = pseudo.at(*child);
            if child.node().export.is_none() {
                continue;
            }
            let attributes = if self.is_visible(&child) {
                let mut w = Writer::new();
                self.describe_child(&child, wanted).await?.encode(&mut w);
                Some(Encoded(w.into_vec()))
            } else {
                None
            };
            mounts.push(Mount { name: child.node().name.clone(), attributes });
        }
        Ok(mounts)
    }

    /// The attributes of what LOOKUP finds at a place: the root of the export, or the directory
    /// above others. The client sees by them where a file system begins. If it asks for
    /// `rdattr_error`, a root whose attributes may not be in memory is not read, so that the
    /// listing does not wait for another machine.
    ///
    /// # Errors
    /// Those of the root, if the client does not want them as an attribute (RFC 8881 §18.23.3).
    async fn describe_child(&self, child: &Pseudo, wanted: Bitmap) -> Outcome<Description<'a>> {
        let takes_errors = wanted.contains(attribute::RDATTR_ERROR);
        let mut opened = None;
        let described = match self.handle_at(child) {
            Ok(ResolvedHandle::Object(root)) => {
                let root = &*opened.insert(root);
                if wanted.difference(WITHOUT_ROOT).is_empty() {
                    return Ok(unread(child, Some(root), NFS4_OK, wanted));
                }
                if takes_errors && !root.object.root().attributes_in_memory {
                    return Ok(unread(child, Some(root), Status::Delay.code(), wanted));
                }
                self.describe_root(root.clone(), wanted).await
            }
            Ok(handle) => self.describe(&handle, wanted, None).await,
            Err(refused) => Err(refused),
        };
        match described {
            Err(refused) if takes_errors => {
                if let Some(cause) = refused.cause {
                    self.request.fault.note(cause);
                }
                Ok(unread(child, opened.as_ref(), refused.status.code(), wanted))
            }
            described => described,
        }
    }

    /// On the threads of the root's device, as between the operations of a COMPOUND.
    async fn describe_root(&self, root: Located, wanted: Bitmap) -> Outcome<Description<'a>> {
        let its = self.request.service.elsewhere(&root.object);
        let root = ResolvedHandle::Object(root);
        match its {
            Some(its) => Box::pin(its.run(self.describe(&root, wanted, None))).await,
            None => Box::pin(self.describe(&root, wanted, None)).await,
        }
    }
}

/// The description of an export's place by what is known of its root without reading it; nothing,
/// if the root is not open.
fn unread<'a>(
    child: &Pseudo,
    root: Option<&Located>,
    status: u32,
    wanted: Bitmap,
) -> Description<'a> {
    let known = root.map(|root| (root.object.root().fileid, Some(FileType::Directory)));
    Description::Pseudo(Box::new(without_object(known, child.node().id, status, wanted)))
}

/// An export in the place of a directory's entry.
struct Mount {
    name: String,
    /// `None` if it is not shown to the client.
    attributes: Option<Encoded>,
}

/// Attributes that are encoded already.
struct Encoded(Vec<u8>);

impl Encode for Encoded {
    fn encode(&self, w: &mut Writer) {
        w.array(&self.0);
    }
}

/// The attributes of an entry whose object is not read: a status, which is not
/// [`NFS4_OK`](proto::nfs4::NFS4_OK) if more of the object is wanted, the number and type of the
/// object if they are known, and its number in the directory.
fn without_object(
    known: Option<(u64, Option<FileType>)>,
    mounted_on: u64,
    status: u32,
    wanted: Bitmap,
) -> Attributes<'static> {
    let mut attributes = Attributes {
        rdattr_error: Some(status),
        fileid: known.map(|(fileid, _)| fileid),
        file_type: known.and_then(|(_, file_type)| file_type),
        mounted_on_fileid: Some(mounted_on),
        ..Attributes::default()
    };
    attributes.keep(wanted);
    attributes
}

fn send(results: &mut Results<'_>, buffer: Buffer, len: usize) {
    if results.sends_payload() {
        results.set_payload(Payload::new(buffer.trimmed(len), 0, len));
    } else {
        results.writer().array(&buffer.as_slice()[..len]);
        results.note_inline(len);
    }
}

/// The encoded entries of a reply.
struct Page {
    service: Arc<Service>,
    minor_version: u32,
    /// The directory.
    object: Option<Object>,
    /// The exports in the place of its entries.
    mounts: Vec<Mount>,
    wanted: Bitmap,
    encoder: EntryEncoder,
    /// Holds what the encoder's limits let through, and the end of the list.
    buffer: Buffer,
    filled: usize,
    names: u32,
}

impl Page {
    fn push(&mut self, entry: &DirectoryEntry<'_>) -> Pushed {
        let (name, cookie) = (entry.name.to_bytes(), cookie_of(entry.cookie));
        if matches!(name, b"." | b"..") {
            return Pushed::Skipped;
        }
        if let Some(at) = self.mounts.iter().position(|mount| mount.name.as_bytes() == name) {
            let Some(attributes) = self.mounts[at].attributes.take() else {
                return Pushed::Skipped;
            };
            let pushed = self.put(cookie, name, &attributes);
            self.mounts[at].attributes = Some(attributes);
            return pushed;
        }
        let service = Arc::clone(&self.service);
        let status = match (&entry.object, &self.object) {
            (Some(Ok(found)), Some(object)) => {
                let described = self.describe(&service, object, found);
                return self.put(cookie, name, &described);
            }
            (Some(Err(status)), _) => convert::status(*status).code(),
            // Nothing of an object is asked for.
            (None | Some(Ok(_)), _) => NFS4_OK,
        };
        self.put(cookie, name, &self.unread_entry(entry, status))
    }

    /// The attributes of an entry whose object cannot be read, for which there is this status. With
    /// the type from the directory nothing may be missing; then there is no error to report, for
    /// which FreeBSD would hide the name.
    fn unread_entry(&self, entry: &DirectoryEntry<'_>, status: u32) -> Attributes<'static> {
        let (fileid, kind) = (entry.fileid, entry.file_type);
        let is_listed = kind != rustix::fs::FileType::Unknown;
        let known = (fileid, is_listed.then(|| convert::file_type(kind)));
        let mut attributes = without_object(Some(known), fileid, status, self.wanted);
        if self.wanted.difference(attributes.present()).is_empty() {
            attributes.rdattr_error = attributes.rdattr_error.map(|_| NFS4_OK);
        }
        attributes
    }

    /// The attributes of an entry's object.
    fn describe<'s>(&self, service: &'s Service, object: &Object, found: &Found) -> Described<'s> {
        let handle = self.wanted.contains(attribute::FILEHANDLE).then(|| {
            let sealed = service.seal(object.root(), found.handle);
            FileHandle::new(sealed.as_bytes()).expect("version 4 has longer handles")
        });
        Described {
            service,
            minor_version: self.minor_version,
            wanted: self.wanted,
            attributes: found.attributes,
            export_id: object.root().id,
            mounted_on: None,
            handle,
            space: None,
            limits: None,
            supports_xattrs: None,
        }
    }

    fn put(&mut self, cookie: u64, name: &[u8], attributes: &impl Encode) -> Pushed {
        let Some(encoded) = self.encoder.encode(cookie, name, attributes) else {
            return Pushed::Full;
        };
        self.buffer.as_mut_slice()[self.filled..][..encoded.len()].copy_from_slice(encoded);
        self.filled += encoded.len();
        self.names += 1;
        Pushed::Taken
    }

    fn finish(mut self, eof: bool) -> Listed {
        let len = self.filled + LISTING_END_BYTES;
        self.buffer.as_mut_slice()[self.filled..len].copy_from_slice(&listing_end(eof));
        Listed { buffer: self.buffer, len, names: self.names }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cookie_is_reserved_and_each_leads_back_to_its_offset() {
        let offsets = (0..10).chain([RESERVED_OFFSET - 2, RESERVED_OFFSET - 1]);
        let cookies: Vec<u64> = offsets.clone().map(cookie_of).collect();
        assert!(!cookies.contains(&1) && !cookies.contains(&2));
        assert!(cookies.iter().map(|cookie| offset_of(*cookie)).eq(offsets));
    }
}
