//! The bound on what all files of a mount hold ahead.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::chunks::Shared;

/// Bytes that are fetched ahead or on their way, of all files together.
///
/// Files that read at the same time have equal shares of it at most, so that the first does not take
/// all. What a file holds that has not been read for a while goes when another needs the room. Data
/// that was handed to a reader no longer counts.
pub struct ReadAheadBudget {
    bytes_max: usize,
    idle_after: Duration,
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    used_bytes: usize,
    next: u64,
    files: BTreeMap<Seat, FileUse>,
}

/// A file's place in the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seat(u64);

struct FileUse {
    file: Weak<Shared>,
    used_bytes: usize,
    /// When it last asked for room; None for never.
    asked_at: Option<Instant>,
}

impl ReadAheadBudget {
    /// A bound of `bytes_max`; with 0 nothing is fetched ahead.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Self::with_idle_after(bytes_max, IDLE_AFTER)
    }

    pub(super) fn with_idle_after(bytes_max: usize, idle_after: Duration) -> Arc<Self> {
        Arc::new(Self { bytes_max, idle_after, seats: Mutex::default() })
    }

    /// Bytes in use now.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.lock().used_bytes
    }

    pub(super) fn seat(&self, file: Weak<Shared>) -> Seat {
        let mut seats = self.lock();
        let seat = Seat(seats.next);
        seats.next += 1;
        seats.files.insert(seat, FileUse { file, used_bytes: 0, asked_at: None });
        seat
    }

    /// The file of `seat` is closed, and has given back its room.
    pub(super) fn leave(&self, seat: Seat) {
        self.lock().files.remove(&seat);
    }

    /// Room for `bytes`, if there is any for this file.
    pub(super) fn room(self: &Arc<Self>, seat: Seat, bytes: usize) -> Option<Room> {
        let now = Instant::now();
        if !self.take(seat, bytes, now) {
            // Other files give up their chunks with the seats unlocked, as each gives back its room.
            for file in self.idle(seat, now) {
                file.give_up();
            }
            if !self.take(seat, bytes, now) {
                return None;
            }
        }
        Some(Room { budget: Arc::clone(self), seat, bytes })
    }

    fn take(&self, seat: Seat, bytes: usize, now: Instant) -> bool {
        let mut seats = self.lock();
        let Seats { used_bytes, files, .. } = &mut *seats;
        let Some(own) = files.get_mut(&seat) else { return false };
        own.asked_at = Some(now);
        let own_bytes = own.used_bytes;
        let active = files.values().filter(|file| !self.is_idle(file, now)).count();
        // A single chunk is no unfair share.
        let share = self.bytes_max / active.max(1);
        let fits =
            *used_bytes + bytes <= self.bytes_max && (own_bytes == 0 || own_bytes + bytes <= share);
        if fits {
            *used_bytes += bytes;
            files.entry(seat).and_modify(|own| own.used_bytes += bytes);
        }
        fits
    }

    fn is_idle(&self, file: &FileUse, now: Instant) -> bool {
        file.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= self.idle_after)
    }

    /// The files that hold room and have not been read for a while.
    fn idle(&self, except: Seat, now: Instant) -> Vec<Arc<Shared>> {
        let seats = self.lock();
        let others = seats.files.iter().filter(|(seat, file)| {
            **seat != except && file.used_bytes > 0 && self.is_idle(file, now)
        });
        others.filter_map(|(_, file)| file.file.upgrade()).collect()
    }

    fn give_back(&self, seat: Seat, bytes: usize) {
        let mut seats = self.lock();
        seats.used_bytes -= bytes;
        if let Some(own) = seats.files.get_mut(&seat) {
            own.used_bytes -= bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        // What the lock guards is whole between any two statements that can panic.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ReadAheadBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadAheadBudget")
            .field("bytes_max", &self.bytes_max)
            .field("used_bytes", &self.used_bytes())
            .finish_non_exhaustive()
    }
}

/// A part of the budget; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    budget: Arc<ReadAheadBudget>,
    seat: Seat,
    bytes: usize,
}

impl Room {
    /// Gives back what is more than `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.budget.give_back(self.seat, surplus);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.give_back(self.seat, self.bytes);
    }
}

/// A file that has not asked for room for so long holds nothing back from others.
const IDLE_AFTER: Duration = Duration::from_secs(2);
