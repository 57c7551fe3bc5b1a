//! Keeps changes of an object apart from read delegations of it, over any protocol version and
//! export.
//!
//! A delegation is given to a client while its caller has the inode to itself (`InodeLock`), and
//! every change of data or attributes checks the gate under that lock. REMOVE, RENAME, LINK and the
//! creation of a file take the locks of directories instead: they are counted, and no delegation of
//! what may be their object is given meanwhile.

use std::collections::BTreeMap;
use std::mem;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The part of an object that is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changing {
    /// An empty SETATTR: there is nothing to return a delegation for.
    Nothing,
    /// The data, by a descriptor that is open for writing: it would break the server's own lease.
    Data,
    /// The attributes or the names. A client may do so beside its own delegation, through the
    /// export that it has it of: what two exports show are two files to it.
    Attributes,
}

/// A client of version 4 in an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) client: NonZeroU64,
    /// [`Inode::root_address`](super::Inode::root_address).
    pub(crate) export: u64,
}

/// The clients that have a file delegated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holders {
    None,
    One(Holder),
    Several,
}

/// Of one object.
#[derive(Default)]
pub(super) struct DelegationGate {
    /// [`NO_CLIENT`], a client, or [`SEVERAL`].
    client: AtomicU64,
    /// The export of the client, if it is one. It is set before the client, so that a reader of
    /// both may take a holder for another, which recalls one delegation too many, and not the
    /// reverse.
    export: AtomicU64,
    /// Changes of its names at work, and makers that are still to open it.
    pub(super) name_changes: AtomicUsize,
}

impl DelegationGate {
    /// Sets who has the object delegated. Returns whether it was delegated.
    pub(super) fn set(&self, holders: Holders) -> bool {
        let new = match holders {
            Holders::None => NO_CLIENT,
            Holders::One(holder) => {
                self.export.store(holder.export, Ordering::SeqCst);
                holder.client.get()
            }
            Holders::Several => SEVERAL,
        };
        self.client.swap(new, Ordering::SeqCst) != NO_CLIENT
    }

    /// Whether a call, of this client of version 4 if it is one, may change the object.
    pub(super) fn admits(&self, by: Option<Holder>, what: Changing) -> bool {
        let client = self.client.load(Ordering::SeqCst);
        let export = self.export.load(Ordering::SeqCst);
        let is_own = by.is_some_and(|by| by.client.get() == client && by.export == export);
        client == NO_CLIENT
            || match what {
                Changing::Nothing => true,
                Changing::Attributes => is_own,
                Changing::Data => false,
            }
    }
}

const NO_CLIENT: u64 = 0;
const SEVERAL: u64 = u64::MAX;

/// Of all objects.
#[derive(Default)]
pub(super) struct DelegationGates {
    /// Objects that are delegated.
    pub(super) delegated: AtomicUsize,
    /// Changes of the names of objects that are not known to be delegated.
    pub(super) name_changes: AtomicUsize,
    pub(super) creations: Creations,
    pub(super) requests: Arc<RecallRequests>,
}

/// Creations of files at work, numbered from 1 in the order in which they begin.
///
/// A file shows its name before its maker can count it by itself. But its state cannot be made
/// before its creation has begun. So a state that has noted how many had begun when it was made is
/// not of a file that a later one makes.
#[derive(Default)]
pub(super) struct Creations {
    begun: AtomicU64,
    /// The file systems, by their addresses in memory: one for each thread that makes a file.
    at_work: Mutex<BTreeMap<u64, usize>>,
}

impl Creations {
    /// How many have begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Begins the next one, and returns its number.
    pub(super) fn begin(&self, file_system: usize) -> u64 {
        let mut at_work = self.lock();
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        at_work.insert(number, file_system);
        number
    }

    pub(super) fn end(&self, number: u64) {
        self.lock().remove(&number);
    }

    /// Whether one at work may make the object of a state of this file system that was made when
    /// `begun` had begun.
    pub(super) fn may_make(&self, file_system: usize, begun: u64) -> bool {
        self.lock().range(..=begun).any(|(_, other)| *other == file_system)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files whose delegations are to be recalled, by their addresses ([`Inode::address`]), each
/// with whether a local program waits. As many as were delegated, at most.
#[derive(Default)]
pub(crate) struct RecallRequests {
    files: Mutex<BTreeMap<usize, bool>>,
    came: tokio::sync::Notify,
}

impl RecallRequests {
    /// Asks for a recall.
    pub(crate) fn add(&self, file: usize, is_local: bool) {
        *self.lock().entry(file).or_default() |= is_local;
        self.came.notify_one();
    }

    /// Waits for requests, and takes all.
    pub(crate) async fn next(&self) -> BTreeMap<usize, bool> {
        loop {
            self.came.notified().await;
            let files = mem::take(&mut *self.lock());
            if !files.is_empty() {
                return files;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, bool>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
