//! READDIR, RFC 8881 §18.23.

use super::attr::Attributes;
use super::types::{Bitmap, NAME_BYTES_MAX, Verifier};
use crate::xdr::{Encode, List, Writer, padded, xdr_struct};

/// Arguments of READDIR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReaddirArgs {
    /// Where to continue; 0 for the start. 1 and 2 are reserved.
    pub cookie: u64,
    /// That of the reply which the cookie is from.
    pub verifier: Verifier,
    /// Bytes of names and cookies that the client would like, or 0.
    pub dir_bytes: u32,
    /// Bytes of the result.
    pub bytes_max: u32,
    /// Attributes of each entry.
    pub wanted: Bitmap,
}

xdr_struct!(ReaddirArgs { cookie: u64, verifier, dir_bytes: u32, bytes_max: u32, wanted });

/// An entry of a listing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where a listing continues after it.
    pub cookie: u64,
    /// Its name.
    pub name: &'a [u8],
    /// The attributes that were asked for.
    pub attributes: Attributes<'a>,
}

xdr_struct!(Entry<'a> { cookie: u64, name: opaque(NAME_BYTES_MAX), attributes });

/// Result of READDIR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReaddirOk<'a> {
    /// For the next call.
    pub verifier: Verifier,
    /// In the server's order.
    pub entries: List<'a, Entry<'a>>,
    /// Nothing comes after them.
    pub eof: bool,
}

xdr_struct!(ReaddirOk<'a> { verifier, entries, eof: bool });

/// Encodes the entries of a listing one by one while there is room.
#[derive(Debug)]
pub struct EntryEncoder {
    bytes_left: usize,
    dir_bytes_left: usize,
    is_empty: bool,
    encoded: Writer,
}

impl EntryEncoder {
    /// With room for a result of `bytes_max`, of which names and cookies take about `dir_bytes`; 0
    /// is no limit.
    #[must_use]
    pub fn new(bytes_max: u32, dir_bytes: u32) -> Self {
        let limit = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            bytes_left: limit(bytes_max).saturating_sub(LISTING_HEAD_BYTES + LISTING_END_BYTES),
            dir_bytes_left: if dir_bytes == 0 { usize::MAX } else { limit(dir_bytes) },
            is_empty: true,
            encoded: Writer::new(),
        }
    }

    /// The entry as it goes into the list; `None` when there is no room for it. The first one may
    /// exceed the limit on names, which is a hint. `attributes` is a `fattr4`.
    pub fn encode(&mut self, cookie: u64, name: &[u8], attributes: &impl Encode) -> Option<&[u8]> {
        self.encoded.truncate(0);
        self.encoded.bool(true);
        self.encoded.u64(cookie);
        self.encoded.opaque(name);
        attributes.encode(&mut self.encoded);
        let dir_bytes = ENTRY_DIR_BYTES + padded(name.len());
        let left = self.bytes_left.checked_sub(self.encoded.len())?;
        let dir_left = self.dir_bytes_left.checked_sub(dir_bytes);
        if dir_left.is_none() && !self.is_empty {
            return None;
        }
        (self.bytes_left, self.dir_bytes_left) = (left, dir_left.unwrap_or(0));
        self.is_empty = false;
        Some(self.encoded.as_slice())
    }
}

/// The bytes behind the last entry: FALSE, which ends the list, and `eof`.
#[must_use]
pub fn listing_end(eof: bool) -> [u8; LISTING_END_BYTES] {
    let mut end = [0; LISTING_END_BYTES];
    end[LISTING_END_BYTES - 1] = u8::from(eof);
    end
}

/// The end of the list, and whether nothing follows.
pub const LISTING_END_BYTES: usize = 8;
/// The verifier.
const LISTING_HEAD_BYTES: usize = 8;
/// A cookie and the length of a name.
const ENTRY_DIR_BYTES: usize = 12;
