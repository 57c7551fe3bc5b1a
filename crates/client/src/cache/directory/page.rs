//! A page: the entries of one reply.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use proto::nfs3::{Attributes, CookieVerifier, FileHandle, Procedure};
use proto::xdr::DecodeError;
use tokio::time::Instant;

use crate::cache::change::Change;
use crate::error::{Error, Result};
use crate::nfs3::{Listing, Name};

/// The entries of one reply, packed.
///
/// A received entry takes about 230 bytes, most of them for attributes and a handle that READDIR
/// does not return, and keeps its record allocated. A packed entry takes 24 bytes, its name and
/// handle, and 88 bytes of attributes after READDIRPLUS: 500,000 names from READDIR take 18 MB
/// instead of 115 MB. There is no allocation per entry.
pub(crate) struct Page {
    pub(super) start_cookie: u64,
    entries: Box<[PackedEntry]>,
    /// The names, each followed by the handle of the entry.
    bytes: Box<[u8]>,
    /// One for each entry; empty after READDIR.
    attributes: Box<[Option<Attributes>]>,
    pub(super) plus: bool,
    pub(super) eof: bool,
    /// Whether the cookies ascend, so that they can be searched.
    pub(super) ascending: bool,
    pub(super) verifier: CookieVerifier,
    /// The change stamp of the directory when it had these entries. `None` if it changed during the
    /// call, or if the reply had no attributes.
    pub(super) stamp: Option<Change>,
    /// When the call was sent, counted in events of the directory. Unique.
    pub(super) issued: u64,
    /// When the call was sent.
    pub(super) sent_at: Instant,
    /// Position in the order of the budget; 0 for none. Protected by the budget's lock.
    pub(super) place: AtomicU64,
    /// Hash of a name and index of its entry, ascending. Built by the first lookup.
    by_name: OnceLock<Box<[(u32, u32)]>>,
}

/// The call that a page comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Provenance {
    pub(super) start_cookie: u64,
    pub(super) plus: bool,
    pub(super) stamp: Option<Change>,
    pub(super) issued: u64,
    pub(super) sent_at: Instant,
}

struct PackedEntry {
    fileid: u64,
    cookie: u64,
    /// Offset of the name in the page's bytes.
    name_at: u32,
    name_len: u16,
    /// Length of the handle behind the name, or [`NO_HANDLE`].
    handle_len: u8,
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The file id.
    pub fileid: u64,
    /// The name: not empty, and without `/` and NUL. Some servers list `.` and `..` too.
    pub name: &'a [u8],
    /// The position behind this entry.
    pub cookie: u64,
    /// The attributes, if the server returned them.
    pub attributes: Option<&'a Attributes>,
    /// The file handle, if the server returned it.
    pub handle: Option<FileHandle>,
}

impl Page {
    /// # Errors
    /// [`Error::Malformed`] for a reply without entries and without `eof`. [`Error::ListingLoop`]
    /// for a reply that ends with the cookie where it begins, or with the cookie 0 of the beginning
    /// of the directory, and for one with a cookie twice.
    pub(super) fn new(listing: &Listing, provenance: Provenance) -> Result<Self> {
        let Listing { names, verifier, eof, .. } = listing;
        if names.is_empty() && !eof {
            return Err(malformed(provenance, "entries of a page before the last"));
        }
        // Also in the last page: a reader continues behind its last entry to find the end. Entries
        // before that may have such a cookie: some servers give 0 to `.`.
        if let Some(&Name { cookie, .. }) = names.last()
            && (cookie == 0 || cookie == provenance.start_cookie)
        {
            return Err(Error::ListingLoop { cookie });
        }
        let bytes_len = names.iter().map(|name| name.name.len() + handle_bytes(name).len());
        let mut bytes = Vec::with_capacity(bytes_len.sum());
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            entries.push(PackedEntry {
                fileid: name.fileid,
                cookie: name.cookie,
                name_at: bytes.len().try_into().map_err(|_| malformed(provenance, "entries"))?,
                name_len: name
                    .name
                    .len()
                    .try_into()
                    .map_err(|_| malformed(provenance, "filename3"))?,
                handle_len: match name.handle {
                    None => NO_HANDLE,
                    Some(handle) => u8::try_from(handle.as_bytes().len())
                        .expect("FILE_HANDLE_BYTES_MAX is below NO_HANDLE"),
                },
            });
            bytes.extend_from_slice(&name.name);
            bytes.extend_from_slice(handle_bytes(name));
        }
        let attributes: Box<[_]> = match provenance.plus {
            true => names.iter().map(|name| name.attributes).collect(),
            false => Box::default(),
        };
        let ascending = entries.is_sorted_by(|a, b| a.cookie < b.cookie);
        if !ascending {
            check_distinct(&entries)?;
        }
        Ok(Self {
            start_cookie: provenance.start_cookie,
            ascending,
            entries: entries.into_boxed_slice(),
            bytes: bytes.into_boxed_slice(),
            attributes,
            plus: provenance.plus,
            eof: *eof,
            verifier: *verifier,
            stamp: provenance.stamp,
            issued: provenance.issued,
            sent_at: provenance.sent_at,
            place: AtomicU64::new(0),
            by_name: OnceLock::new(),
        })
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The position behind the page.
    pub(super) fn last_cookie(&self) -> u64 {
        self.entries.last().map_or(self.start_cookie, |entry| entry.cookie)
    }

    /// Bytes of memory of the page, including the index of names if it can get one.
    pub(super) fn memory_bytes(&self) -> usize {
        let index_bytes = if self.plus { self.len() * size_of::<(u32, u32)>() } else { 0 };
        size_of::<Self>()
            + size_of_val(&*self.entries)
            + self.bytes.len()
            + size_of_val(&*self.attributes)
            + index_bytes
    }

    /// The index of the entry behind `cookie`, if `cookie` is in the page and the page has the
    /// entry behind it, or the end. `hint` is the index to search from if the cookies do not
    /// ascend.
    pub(super) fn position_after(&self, cookie: u64, hint: usize) -> Option<usize> {
        let next = match cookie == self.start_cookie {
            true => 0,
            false => self.find_cookie(cookie, hint)? + 1,
        };
        (next < self.len() || self.eof).then_some(next)
    }

    /// Whether `cookie` is in the page or the one behind which it begins.
    pub(super) fn contains(&self, cookie: u64) -> bool {
        cookie == self.last_cookie() || self.position_after(cookie, 0).is_some()
    }

    fn find_cookie(&self, cookie: u64, hint: usize) -> Option<usize> {
        if self.ascending {
            return self.entries.binary_search_by_key(&cookie, |entry| entry.cookie).ok();
        }
        let hint = hint.min(self.len());
        let (before, behind) = self.entries.split_at(hint);
        let is_it = |entry: &PackedEntry| entry.cookie == cookie;
        match behind.iter().position(is_it) {
            Some(at) => Some(hint + at),
            None => before.iter().position(is_it),
        }
    }

    /// The entry of an index below [`Page::len`].
    pub(super) fn entry(&self, at: usize) -> Entry<'_> {
        let packed = &self.entries[at];
        let handle_at = name_end(packed);
        let handle = match packed.handle_len {
            NO_HANDLE => None,
            len => FileHandle::new(&self.bytes[handle_at..handle_at + usize::from(len)]),
        };
        Entry {
            fileid: packed.fileid,
            name: self.name(packed),
            cookie: packed.cookie,
            attributes: self.attributes.get(at).and_then(Option::as_ref),
            handle,
        }
    }

    fn name(&self, packed: &PackedEntry) -> &[u8] {
        &self.bytes[packed.name_at as usize..name_end(packed)]
    }

    /// The index of the entry with this name; `likely` is tried first, then the one before it.
    /// `hasher` must be the same in all calls.
    pub(super) fn find_name(
        &self,
        name: &[u8],
        likely: usize,
        hasher: &RandomState,
    ) -> Option<usize> {
        for at in [likely, likely.wrapping_sub(1)] {
            if self.entries.get(at).is_some_and(|packed| self.name(packed) == name) {
                return Some(at);
            }
        }
        let by_name = self.by_name.get_or_init(|| self.index_names(hasher));
        let hash = short_hash(hasher, name);
        let first = by_name.partition_point(|(other, _)| *other < hash);
        let same = by_name[first..].iter().take_while(|(other, _)| *other == hash);
        same.map(|(_, at)| *at as usize).find(|at| self.name(&self.entries[*at]) == name)
    }

    fn index_names(&self, hasher: &RandomState) -> Box<[(u32, u32)]> {
        let hashes = self.entries.iter().map(|packed| short_hash(hasher, self.name(packed)));
        let mut by_name: Box<[_]> = hashes.zip(0..).collect();
        by_name.sort_unstable();
        by_name
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("start_cookie", &self.start_cookie)
            .field("last_cookie", &self.last_cookie())
            .field("len", &self.len())
            .field("plus", &self.plus)
            .field("eof", &self.eof)
            .field("issued", &self.issued)
            .finish_non_exhaustive()
    }
}

/// The entries of a page from an index on. Holds a reference to the page.
#[derive(Clone, Debug)]
pub struct PageSlice {
    pub(super) page: Arc<Page>,
    pub(super) entries: Range<usize>,
}

impl PageSlice {
    pub(super) fn new(page: Arc<Page>, first: usize) -> Self {
        let entries = first..page.len();
        Self { page, entries }
    }

    /// Whether there are no entries: the end of the directory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the directory ends behind these entries.
    #[must_use]
    pub fn eof(&self) -> bool {
        self.page.eof
    }

    /// Whether the entries are from READDIRPLUS.
    #[must_use]
    pub fn plus(&self) -> bool {
        self.page.plus
    }

    /// When the call was sent that returned these entries: their attributes may be as old.
    #[must_use]
    pub fn sent_at(&self) -> std::time::Instant {
        self.page.sent_at.into_std()
    }

    /// The cookie behind the last entry.
    #[must_use]
    pub fn last_cookie(&self) -> u64 {
        self.page.last_cookie()
    }

    /// The reply that the entries are from.
    pub(super) fn page(&self) -> &Page {
        &self.page
    }

    /// The entries, in the server's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.entries.clone().map(|at| self.page.entry(at))
    }
}

fn handle_bytes(name: &Name) -> &[u8] {
    name.handle.as_ref().map_or(&[], FileHandle::as_bytes)
}

fn name_end(packed: &PackedEntry) -> usize {
    packed.name_at as usize + usize::from(packed.name_len)
}

/// 32 bits are enough within a page: the names are compared too.
#[expect(clippy::cast_possible_truncation, reason = "the lower half of a hash is a hash")]
fn short_hash(hasher: &RandomState, name: &[u8]) -> u32 {
    hasher.hash_one(name) as u32
}

/// Rejects entries with equal cookies: a reader could not continue behind one of them.
fn check_distinct(entries: &[PackedEntry]) -> Result<()> {
    let mut cookies: Vec<_> = entries.iter().map(|entry| entry.cookie).collect();
    cookies.sort_unstable();
    match cookies.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::ListingLoop { cookie: pair[0] }),
        None => Ok(()),
    }
}

fn malformed(provenance: Provenance, what: &'static str) -> Error {
    let procedure = match provenance.plus {
        true => Procedure::Readdirplus.name(),
        false => Procedure::Readdir.name(),
    };
    Error::Malformed { procedure, error: DecodeError { what, at_byte: 0 } }
}

/// No handle is so long.
const NO_HANDLE: u8 = u8::MAX;
