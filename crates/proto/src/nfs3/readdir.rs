//! READDIR and READDIRPLUS: RFC 1813 §3.3.16 and §3.3.17.
//!
//! A server does not know how many entries fit until it has tried, so a reply is built entry by
//! entry, and each is refused before it is written when it would break the client's limit.

use super::types::{Attributes, CookieVerifier, FileHandle, NAME_BYTES_MAX, Reply};
use crate::xdr::{Encode, List, Writer, padded, xdr_struct};

/// Arguments of READDIR, RFC 1813 §3.3.16.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReaddirArgs {
    /// The directory to read.
    pub dir: FileHandle,
    /// Where to go on: 0, or the cookie of the last entry received.
    pub cookie: u64,
    /// Zero, or the verifier that came with that cookie.
    pub verifier: CookieVerifier,
    /// Most bytes of `READDIR3resok`.
    pub count: u32,
}

xdr_struct!(ReaddirArgs { dir, cookie: u64, verifier, count: u32 });

/// Result of READDIR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReaddirOk<'a> {
    /// The directory as it is.
    pub dir_attributes: Option<Attributes>,
    /// To be sent back with any of the cookies.
    pub verifier: CookieVerifier,
    /// The entries, in the server's order.
    pub entries: List<'a, Entry<'a>>,
    /// Whether the last entry of the directory is among them.
    pub eof: bool,
}

xdr_struct!(ReaddirOk<'a> { dir_attributes, verifier, entries, eof: bool });

/// `READDIR3res`.
pub type ReaddirReply<'a> = Reply<ReaddirOk<'a>, Option<Attributes>>;

/// `entry3`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The file's number.
    pub fileid: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Where the entry after this one is found.
    pub cookie: u64,
}

xdr_struct!(Entry<'a> { fileid: u64, name: opaque(NAME_BYTES_MAX), cookie: u64 });

/// Arguments of READDIRPLUS, RFC 1813 §3.3.17.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReaddirplusArgs {
    /// The directory to read.
    pub dir: FileHandle,
    /// Where to go on: 0, or the cookie of the last entry received.
    pub cookie: u64,
    /// Zero, or the verifier that came with that cookie.
    pub verifier: CookieVerifier,
    /// Most bytes of file numbers, names and cookies.
    pub dir_count: u32,
    /// Most bytes of `READDIRPLUS3resok`.
    pub max_count: u32,
}

xdr_struct!(ReaddirplusArgs { dir, cookie: u64, verifier, dir_count: u32, max_count: u32 });

/// Result of READDIRPLUS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReaddirplusOk<'a> {
    /// The directory as it is.
    pub dir_attributes: Option<Attributes>,
    /// To be sent back with any of the cookies.
    pub verifier: CookieVerifier,
    /// The entries, in the server's order.
    pub entries: List<'a, EntryPlus<'a>>,
    /// Whether the last entry of the directory is among them.
    pub eof: bool,
}

xdr_struct!(ReaddirplusOk<'a> { dir_attributes, verifier, entries, eof: bool });

/// `READDIRPLUS3res`.
pub type ReaddirplusReply<'a> = Reply<ReaddirplusOk<'a>, Option<Attributes>>;

/// `entryplus3`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EntryPlus<'a> {
    /// The file's number.
    pub fileid: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Where the entry after this one is found.
    pub cookie: u64,
    /// `name_attributes`: the file as it is.
    pub attributes: Option<Attributes>,
    /// `name_handle`.
    pub handle: Option<FileHandle>,
}

xdr_struct!(EntryPlus<'a> {
    fileid: u64,
    name: opaque(NAME_BYTES_MAX),
    cookie: u64,
    attributes,
    handle,
});

/// Writes a `READDIR3resok` that never exceeds the client's `count`.
///
/// The reply header and the status may already be in the writer: bytes count from where the builder
/// begins. Dropping it without [`ReaddirBuilder::finish`] leaves an unfinished list behind, so a
/// server that gives up truncates the writer.
#[derive(Debug)]
pub struct ReaddirBuilder<'w> {
    page: Page<'w>,
}

impl<'w> ReaddirBuilder<'w> {
    /// Writes what comes before the entries. `count` is the client's limit in bytes, clamped by the
    /// server before.
    #[must_use]
    pub fn new(
        w: &'w mut Writer,
        dir_attributes: Option<&Attributes>,
        verifier: CookieVerifier,
        count: u32,
    ) -> Self {
        Self { page: Page::new(w, dir_attributes, verifier, count) }
    }

    /// Appends an entry, unless it and the list's end would exceed `count`: then writes nothing and
    /// says `false`.
    #[must_use]
    pub fn push(&mut self, fileid: u64, name: &[u8], cookie: u64) -> bool {
        self.page.push(&Entry { fileid, name, cookie })
    }

    /// Entries written. When the first was refused, the answer is NFS3ERR_TOOSMALL.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.page.entries
    }

    /// Ends the list; `eof` says whether the directory ends with it.
    pub fn finish(self, eof: bool) {
        self.page.finish(eof);
    }
}

/// The limits of a READDIRPLUS, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaddirplusLimits {
    /// Of file numbers, names and cookies.
    pub dir_count: u32,
    /// Of the whole `READDIRPLUS3resok`.
    pub max_count: u32,
}

/// Writes a `READDIRPLUS3resok` that exceeds neither of the client's limits.
///
/// Bytes count as in [`ReaddirBuilder`]. `dir_count` covers each entry's file number, name and
/// cookie only, so that a client can bound the directory pages that a reply will fill.
#[derive(Debug)]
pub struct ReaddirplusBuilder<'w> {
    page: Page<'w>,
    /// What is left of `dir_count`.
    dir_bytes_left: usize,
}

impl<'w> ReaddirplusBuilder<'w> {
    /// Writes what comes before the entries. The limits are the client's, in bytes, clamped by the
    /// server before.
    #[must_use]
    pub fn new(
        w: &'w mut Writer,
        dir_attributes: Option<&Attributes>,
        verifier: CookieVerifier,
        limits: ReaddirplusLimits,
    ) -> Self {
        let page = Page::new(w, dir_attributes, verifier, limits.max_count);
        Self { page, dir_bytes_left: byte_limit(limits.dir_count) }
    }

    /// Appends an entry, unless it would exceed a limit: then writes nothing and says `false`.
    #[must_use]
    pub fn push(
        &mut self,
        fileid: u64,
        name: &[u8],
        cookie: u64,
        attributes: Option<&Attributes>,
        handle: Option<&FileHandle>,
    ) -> bool {
        let dir_bytes = FILEID_BYTES + NAME_LEN_BYTES + padded(name.len()) + COOKIE_BYTES;
        let Some(dir_bytes_left) = self.dir_bytes_left.checked_sub(dir_bytes) else {
            return false;
        };
        let (attributes, handle) = (attributes.copied(), handle.copied());
        let pushed = self.page.push(&EntryPlus { fileid, name, cookie, attributes, handle });
        if pushed {
            self.dir_bytes_left = dir_bytes_left;
        }
        pushed
    }

    /// Entries written. When the first was refused, the answer is NFS3ERR_TOOSMALL.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.page.entries
    }

    /// Ends the list; `eof` says whether the directory ends with it.
    pub fn finish(self, eof: bool) {
        self.page.finish(eof);
    }
}

/// What both builders share: a list of entries that stays within `bytes_max` from `start` on.
#[derive(Debug)]
struct Page<'w> {
    w: &'w mut Writer,
    start: usize,
    bytes_max: usize,
    entries: usize,
}

impl<'w> Page<'w> {
    fn new(
        w: &'w mut Writer,
        dir_attributes: Option<&Attributes>,
        verifier: CookieVerifier,
        count: u32,
    ) -> Self {
        let start = w.len();
        dir_attributes.encode(w);
        verifier.encode(w);
        Self { w, start, bytes_max: byte_limit(count), entries: 0 }
    }

    /// Writes first and measures then, so that no second description of an entry's size can differ
    /// from its encoding. The writer grows by one entry beyond the limit at most.
    fn push(&mut self, entry: &impl Encode) -> bool {
        let before = self.w.len();
        self.w.bool(true);
        entry.encode(self.w);
        let fits = self.w.len() - self.start + LIST_END_BYTES <= self.bytes_max;
        if fits {
            self.entries += 1;
        } else {
            self.w.truncate(before);
        }
        fits
    }

    fn finish(self, eof: bool) {
        self.w.bool(false);
        self.w.bool(eof);
    }
}

fn byte_limit(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

const FILEID_BYTES: usize = 8;
const NAME_LEN_BYTES: usize = 4;
const COOKIE_BYTES: usize = 8;
/// The list's terminator and `eof`.
const LIST_END_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    /// Without attributes: 4 for their absence, 8 for the verifier, 8 for the list's end.
    const EMPTY_BYTES: u32 = 4 + 8 + 8;
    /// An entry whose name takes four bytes: TRUE, fileid, length, name, cookie.
    const ENTRY_BYTES: u32 = 4 + 8 + 4 + 4 + 8;
    /// The part of it that `dir_count` counts.
    const DIR_BYTES: u32 = ENTRY_BYTES - 4;
    /// What READDIRPLUS adds for no attributes and no handle.
    const PLUS_BYTES: u32 = 4 + 4;

    fn pushed(count: u32) -> usize {
        let mut w = Writer::from_vec(vec![0xee; 28]);
        let mut reply = ReaddirBuilder::new(&mut w, None, CookieVerifier::default(), count);
        while reply.entries() < 3 && reply.push(1, b"name", 2) {}
        let entries = reply.entries();
        reply.finish(true);
        let ok: ReaddirOk<'_> = decode_all(&w.as_slice()[28..]).unwrap();
        assert_eq!(ok.entries.iter().count(), entries);
        entries
    }

    #[test]
    fn readdir_fills_its_count_to_the_byte() {
        let table = [
            (0, 0),
            (EMPTY_BYTES, 0),
            (EMPTY_BYTES + ENTRY_BYTES - 1, 0),
            (EMPTY_BYTES + ENTRY_BYTES, 1),
            (EMPTY_BYTES + 2 * ENTRY_BYTES - 1, 1),
            (EMPTY_BYTES + 2 * ENTRY_BYTES, 2),
            (u32::MAX, 3),
        ];
        for (count, entries) in table {
            assert_eq!(pushed(count), entries, "count {count}");
        }
    }

    fn pushed_plus(limits: ReaddirplusLimits) -> usize {
        let mut w = Writer::new();
        let mut reply = ReaddirplusBuilder::new(&mut w, None, CookieVerifier::default(), limits);
        while reply.entries() < 3 && reply.push(1, b"name", 2, None, None) {}
        let entries = reply.entries();
        reply.finish(false);
        let ok: ReaddirplusOk<'_> = decode_all(w.as_slice()).unwrap();
        assert_eq!(ok.entries.iter().count(), entries);
        entries
    }

    #[test]
    fn readdirplus_keeps_both_limits() {
        let max_count = EMPTY_BYTES + 2 * (ENTRY_BYTES + PLUS_BYTES);
        let table = [
            (0, u32::MAX, 0),
            (DIR_BYTES - 1, u32::MAX, 0),
            (DIR_BYTES, u32::MAX, 1),
            (2 * DIR_BYTES, u32::MAX, 2),
            (u32::MAX, max_count - 1, 1),
            (u32::MAX, max_count, 2),
            (DIR_BYTES, max_count, 1),
            (u32::MAX, u32::MAX, 3),
        ];
        for (dir_count, max_count, entries) in table {
            let limits = ReaddirplusLimits { dir_count, max_count };
            assert_eq!(pushed_plus(limits), entries, "{limits:?}");
        }
    }

    #[test]
    fn a_smaller_entry_still_fits_after_a_refusal() {
        let mut w = Writer::new();
        let count = EMPTY_BYTES + ENTRY_BYTES;
        let mut reply = ReaddirBuilder::new(&mut w, None, CookieVerifier::default(), count);
        assert!(!reply.push(1, b"longer name", 1));
        assert!(reply.push(2, b"name", 2));
        reply.finish(false);
        let ok: ReaddirOk<'_> = decode_all(w.as_slice()).unwrap();
        assert!(ok.entries.iter().eq([Entry { fileid: 2, name: b"name", cookie: 2 }]));
    }
}
