//! READDIR and READDIRPLUS: RFC 1813 §3.3.16 and §3.3.17.
//!
//! A server does not know how many entries fit until it has tried, so [`EntryEncoder`] encodes
//! entry by entry, and refuses each that would exceed the client's limits. It holds one entry at a
//! time: where the entries of a reply are kept is the server's choice.

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

/// The limits of a READDIR or READDIRPLUS, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingLimits {
    /// Of the whole `READDIR3resok` or `READDIRPLUS3resok`: `count` or `maxcount`.
    pub bytes: u32,
    /// Of file numbers, names and cookies: `dircount`. READDIR has no such limit. The first entry
    /// may exceed it: a listing could not go on behind a longer name.
    pub dir_bytes: u32,
}

/// Encodes the entries of one reply, as many as stay within the client's limits.
///
/// The reply is [`encode_listing_head`], the encoded entries, and [`listing_end`]. The room for
/// head and end is counted from the beginning, with the directory's attributes in the head.
#[derive(Debug)]
pub struct EntryEncoder {
    entry: Writer,
    bytes_left: usize,
    dir_bytes_left: usize,
    has_entries: bool,
}

impl EntryEncoder {
    /// An encoder for a reply without entries so far. The limits are the client's, clamped by the
    /// server before.
    #[must_use]
    pub fn new(limits: ListingLimits) -> Self {
        Self {
            entry: Writer::new(),
            bytes_left: byte_limit(limits.bytes).saturating_sub(HEAD_BYTES + LIST_END_BYTES),
            dir_bytes_left: byte_limit(limits.dir_bytes),
            has_entries: false,
        }
    }

    /// The bytes of an entry of READDIR; `None` when it would exceed a limit. When that is the
    /// first entry, the answer is NFS3ERR_TOOSMALL.
    pub fn encode(&mut self, entry: &Entry<'_>) -> Option<&[u8]> {
        self.encode_within(entry, entry.name)
    }

    /// As [`EntryEncoder::encode`], for READDIRPLUS.
    pub fn encode_plus(&mut self, entry: &EntryPlus<'_>) -> Option<&[u8]> {
        self.encode_within(entry, entry.name)
    }

    /// Encodes first and measures then, so that no second description of an entry's size can differ
    /// from its encoding.
    fn encode_within(&mut self, entry: &impl Encode, name: &[u8]) -> Option<&[u8]> {
        let dir_bytes = FILEID_BYTES + NAME_LEN_BYTES + padded(name.len()) + COOKIE_BYTES;
        let dir_bytes_left = match self.dir_bytes_left.checked_sub(dir_bytes) {
            None if self.has_entries => return None,
            left => left.unwrap_or(0),
        };
        self.entry.truncate(0);
        self.entry.bool(true);
        entry.encode(&mut self.entry);
        self.bytes_left = self.bytes_left.checked_sub(self.entry.len())?;
        self.dir_bytes_left = dir_bytes_left;
        self.has_entries = true;
        Some(self.entry.as_slice())
    }
}

/// Writes what comes before the entries of a `READDIR3resok` or `READDIRPLUS3resok`.
pub fn encode_listing_head(
    w: &mut Writer,
    dir_attributes: Option<&Attributes>,
    verifier: CookieVerifier,
) {
    dir_attributes.encode(w);
    verifier.encode(w);
}

/// The part of the results behind the entries; `eof`: the directory ends with them.
#[must_use]
pub fn listing_end(eof: bool) -> [u8; LIST_END_BYTES] {
    let mut end = [0; LIST_END_BYTES];
    end[LIST_END_BYTES - 1] = u8::from(eof);
    end
}

fn byte_limit(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Attributes of the directory behind their mark, and the verifier.
const HEAD_BYTES: usize = 4 + 84 + 8;
/// The list's terminator and `eof`.
pub const LIST_END_BYTES: usize = 8;
const FILEID_BYTES: usize = 8;
const NAME_LEN_BYTES: usize = 4;
const COOKIE_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs3::{DeviceSpec, FileType, Time};
    use crate::xdr::decode_all;

    /// A result without entries.
    const EMPTY_BYTES: u32 = 4 + 84 + 8 + 8;
    /// An entry whose name takes four bytes: TRUE, fileid, length, name, cookie.
    const ENTRY_BYTES: u32 = 4 + 8 + 4 + 4 + 8;
    /// The part of it that `dircount` counts.
    const DIR_BYTES: u32 = ENTRY_BYTES - 4;
    /// Bytes that READDIRPLUS adds for absent attributes and an absent handle.
    const PLUS_BYTES: u32 = 4 + 4;

    fn attributes() -> Attributes {
        let time = Time { seconds: 0, nseconds: 0 };
        Attributes {
            file_type: FileType::Directory,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            rdev: DeviceSpec { major: 0, minor: 0 },
            fsid: 0,
            fileid: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    /// A whole result, with up to three entries that `next` encodes.
    fn result(
        limits: ListingLimits,
        mut next: impl FnMut(&mut EntryEncoder) -> Option<Vec<u8>>,
    ) -> Vec<u8> {
        let mut w = Writer::new();
        encode_listing_head(&mut w, Some(&attributes()), CookieVerifier::default());
        let mut result = w.into_vec();
        let mut encoder = EntryEncoder::new(limits);
        for _ in 0..3 {
            let Some(entry) = next(&mut encoder) else { break };
            result.extend(entry);
        }
        result.extend(listing_end(true));
        result
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
        for (bytes, entries) in table {
            let entry = Entry { fileid: 1, name: b"name", cookie: 2 };
            let limits = ListingLimits { bytes, dir_bytes: u32::MAX };
            let result = result(limits, |encoder| encoder.encode(&entry).map(<[u8]>::to_vec));
            let ok: ReaddirOk<'_> = decode_all(&result).unwrap();
            assert_eq!(ok.entries.iter().count(), entries, "count {bytes}");
            assert!(ok.eof && ok.entries.iter().all(|decoded| decoded == entry));
            assert!(entries == 0 || result.len() <= byte_limit(bytes));
        }
    }

    #[test]
    fn readdirplus_keeps_both_limits_but_dircount_for_the_first_entry() {
        let bytes = EMPTY_BYTES + 2 * (ENTRY_BYTES + PLUS_BYTES);
        let table = [
            (0, u32::MAX, 1),
            (DIR_BYTES - 1, u32::MAX, 1),
            (DIR_BYTES, u32::MAX, 1),
            (2 * DIR_BYTES - 1, u32::MAX, 1),
            (2 * DIR_BYTES, u32::MAX, 2),
            (0, EMPTY_BYTES + ENTRY_BYTES + PLUS_BYTES - 1, 0),
            (u32::MAX, bytes - 1, 1),
            (u32::MAX, bytes, 2),
            (DIR_BYTES, bytes, 1),
            (u32::MAX, u32::MAX, 3),
        ];
        for (dir_bytes, bytes, entries) in table {
            let (attributes, handle) = (None, None);
            let entry = EntryPlus { fileid: 1, name: b"name", cookie: 2, attributes, handle };
            let limits = ListingLimits { bytes, dir_bytes };
            let result = result(limits, |encoder| encoder.encode_plus(&entry).map(<[u8]>::to_vec));
            let ok: ReaddirplusOk<'_> = decode_all(&result).unwrap();
            assert_eq!(ok.entries.iter().count(), entries, "{limits:?}");
        }
    }

    #[test]
    fn a_smaller_entry_still_fits_after_a_refusal() {
        let limits = ListingLimits { bytes: EMPTY_BYTES + ENTRY_BYTES, dir_bytes: u32::MAX };
        let mut encoder = EntryEncoder::new(limits);
        assert!(encoder.encode(&Entry { fileid: 1, name: b"longer name", cookie: 1 }).is_none());
        assert!(encoder.encode(&Entry { fileid: 2, name: b"name", cookie: 2 }).is_some());
    }
}
