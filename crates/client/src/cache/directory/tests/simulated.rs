//! A simulated directory on a server: names are added and removed, cookies do not change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use proto::nfs3::{Attributes, CookieVerifier, FileHandle, FileType, Procedure, Status, Time};

use super::super::*;
use crate::cache::change::Change;
use crate::error::{Error, Result};
use crate::fixture::file_attributes;
use crate::nfs3::{Listing, Name};

/// Clones refer to the same directory.
#[derive(Clone)]
pub(super) struct Simulated(Arc<Mutex<Sim>>);

/// Called with each call.
type Hook = Box<dyn FnMut(&mut Sim) + Send>;

pub(super) struct Sim {
    /// File ids by position. A position is never reused.
    entries: BTreeMap<u64, u64>,
    /// When each removed file was removed.
    pub(super) removed: BTreeMap<u64, u64>,
    /// Counts changes; returned as mtime.
    pub(super) time: u64,
    last_fileid: u64,
    pub(super) calls: Vec<ListingRequest>,
    /// Entries of a reply at most.
    pub(super) page_len: usize,
    /// A call takes a random number of turns below this. Replies can be short at random.
    pub(super) turns_max: u64,
    pub(super) short_replies: bool,
    pub(super) cookies: Cookies,
    pub(super) verifiers: Verifiers,
    /// The error of the next calls.
    pub(super) failures: Vec<Error>,
    pub(super) refuses_plus: bool,
    pub(super) on_call: Option<Hook>,
    pub(super) random: Random,
}

/// How positions become cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cookies {
    Ascending,
    /// From 2^63 on, as some servers' hashes are.
    High,
    /// In no order.
    Scrambled,
}

/// The cookie verifiers, and how old ones are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verifiers {
    Constant,
    /// Each change makes another one; only the newest and zeros are accepted.
    OfChange,
    /// Only cookie 0 is accepted.
    Forgetful,
}

/// xorshift64*: reproducible.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// Free positions between the entries of a new directory.
const GAP: u64 = 1 << 16;

impl Simulated {
    /// `len` files in replies of at most `page_len`.
    pub(super) fn new(len: u64, page_len: usize) -> Self {
        Self(Arc::new(Mutex::new(Sim {
            entries: (1..=len).map(|fileid| (fileid * GAP, fileid)).collect(),
            removed: BTreeMap::new(),
            time: 1,
            last_fileid: len,
            calls: Vec::new(),
            page_len,
            turns_max: 3,
            short_replies: false,
            cookies: Cookies::Ascending,
            verifiers: Verifiers::Constant,
            failures: Vec::new(),
            refuses_plus: false,
            on_call: None,
            random: Random::new(7),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Sim> {
        self.0.lock().unwrap()
    }

    /// The change stamp that GETATTR returns.
    #[expect(clippy::unnecessary_wraps, reason = "it is what a reader is opened with")]
    pub(super) fn change(&self) -> Option<Change> {
        Some(Change::from(&self.lock().attributes()))
    }

    /// The calls since the last use of this.
    pub(super) fn take_calls(&self) -> Vec<ListingRequest> {
        std::mem::take(&mut self.lock().calls)
    }

    /// The number of references: readers, calls, and the test.
    pub(super) fn clones(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    async fn take_turns(&self) {
        let turns = {
            let mut sim = self.lock();
            let turns_max = sim.turns_max;
            sim.random.below(turns_max.max(1))
        };
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }
}

impl Sim {
    pub(super) fn fileids(&self) -> BTreeSet<u64> {
        self.entries.values().copied().collect()
    }

    /// A random position.
    pub(super) fn add(&mut self) -> u64 {
        self.time += 1;
        self.last_fileid += 1;
        let span = (self.entries.len() as u64 + 2) * GAP;
        let mut position = self.random.below(span) + 1;
        // The position of a removed file is not reused: a reader may hold its cookie.
        while self.entries.contains_key(&position) || position.is_multiple_of(GAP) {
            position += 1;
        }
        self.entries.insert(position, self.last_fileid);
        self.last_fileid
    }

    pub(super) fn remove(&mut self, fileid: u64) {
        self.time += 1;
        self.entries.retain(|_, other| *other != fileid);
        self.removed.insert(fileid, self.time);
    }

    /// Any file, unless there is none.
    pub(super) fn remove_any(&mut self) -> Option<u64> {
        let len = self.entries.len() as u64;
        let nth = self.random.below(len.max(1));
        let fileid = *self.entries.values().nth(usize::try_from(nth).unwrap())?;
        self.remove(fileid);
        Some(fileid)
    }

    pub(super) fn attributes(&self) -> Attributes {
        Attributes { file_type: FileType::Directory, ..attributes(2, self.time) }
    }

    /// A bijection, so that it can be undone.
    fn cookie(&self, position: u64) -> u64 {
        match self.cookies {
            Cookies::Ascending => position,
            Cookies::High => position | 1 << 63,
            Cookies::Scrambled => position.wrapping_mul(SCRAMBLE),
        }
    }

    fn position(&self, cookie: u64) -> u64 {
        match self.cookies {
            Cookies::Ascending => cookie,
            Cookies::High => cookie & !(1 << 63),
            Cookies::Scrambled => cookie.wrapping_mul(inverse(SCRAMBLE)),
        }
    }

    fn verifier(&self) -> CookieVerifier {
        match self.verifiers {
            Verifiers::Constant | Verifiers::Forgetful => CookieVerifier(*b"constant"),
            Verifiers::OfChange => CookieVerifier(self.time.to_be_bytes()),
        }
    }

    fn refusal(&mut self, request: ListingRequest) -> Option<Error> {
        let known = match self.verifiers {
            Verifiers::Constant => true,
            Verifiers::OfChange => {
                request.verifier == self.verifier() || request.verifier == CookieVerifier::default()
            }
            Verifiers::Forgetful => request.cookie == 0,
        };
        if !known {
            return Some(error(Status::BadCookie));
        }
        if request.plus && self.refuses_plus {
            return Some(error(Status::Notsupp));
        }
        self.failures.pop()
    }

    fn names(&mut self, request: ListingRequest) -> (Vec<Name>, bool) {
        let full = match request.bytes_max < FULL_REPLY_BYTES {
            true => self.page_len.div_ceil(4),
            false => self.page_len,
        };
        let len = match self.short_replies {
            true => usize::try_from(self.random.below(full as u64)).unwrap() + 1,
            false => full,
        };
        let mut behind = self.entries.range(self.position(request.cookie) + 1..);
        let names = behind.by_ref().take(len).map(|(position, fileid)| Name {
            fileid: *fileid,
            name: Bytes::from(name(*fileid)),
            cookie: self.cookie(*position),
            attributes: request.plus.then(|| attributes(*fileid, *fileid)),
            handle: request.plus.then(|| handle(*fileid)),
        });
        (names.collect(), behind.next().is_none())
    }
}

impl ListingSource for Simulated {
    async fn list(
        &self,
        request: ListingRequest,
        note: impl FnOnce(Change) + Send,
    ) -> Result<Listing> {
        let hook = {
            let mut sim = self.lock();
            sim.calls.push(request);
            sim.on_call.take()
        };
        if let Some(mut hook) = hook {
            hook(&mut self.lock());
            self.lock().on_call.get_or_insert(hook);
        }
        self.take_turns().await;
        let (names, eof, verifier) = {
            let mut sim = self.lock();
            if let Some(error) = sim.refusal(request) {
                return Err(error);
            }
            let (names, eof) = sim.names(request);
            (names, eof, sim.verifier())
        };
        // Servers read the attributes after the entries, when the directory may have changed.
        self.take_turns().await;
        let dir_attributes = self.lock().attributes();
        self.take_turns().await;
        note(Change::from(&dir_attributes));
        Ok(Listing { dir_attributes: Some(dir_attributes), verifier, names, eof })
    }
}

pub(super) fn name(fileid: u64) -> Vec<u8> {
    format!("file{fileid}").into_bytes()
}

pub(super) fn handle(fileid: u64) -> FileHandle {
    FileHandle::new(&fileid.to_be_bytes()).unwrap()
}

pub(super) fn error(status: Status) -> Error {
    Error::Nfs { procedure: Procedure::Readdir, status }
}

pub(super) fn attributes(fileid: u64, mtime: u64) -> Attributes {
    let time = Time { seconds: u32::try_from(mtime).unwrap(), nseconds: 0 };
    Attributes { fileid, ..file_attributes(0, time) }
}

/// Of a reply that is not a sample.
pub(super) const FULL_REPLY_BYTES: u32 = 1 << 20;
/// Odd, so that multiplying by it can be undone.
const SCRAMBLE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Newton's iteration doubles the right bits: 3, 6, 12, 24, 48, 96.
fn inverse(odd: u64) -> u64 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
}
