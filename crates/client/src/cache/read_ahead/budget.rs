//! The memory of all chunks of a mount.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bounds the bytes of all files' chunks, fetched or in flight.
///
/// A file that is being read gets at most an equal share, so that the first does not take all. The
/// chunks of a file that was not read for a while are dropped when another file needs the room.
/// Data returned to a reader is not included.
pub(crate) struct ReadAheadBudget {
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

/// Identifies a file in the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seat(u64);

struct FileUse {
    /// Makes the file drop its chunks.
    give_up: GiveUp,
    used_bytes: usize,
    /// When it last asked for room; `None` for never.
    asked_at: Option<Instant>,
}

type GiveUp = Arc<dyn Fn() + Send + Sync>;

impl ReadAheadBudget {
    /// A bound of `bytes_max`; 0 disables read-ahead.
    #[must_use]
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Self::with_idle_after(bytes_max, IDLE_AFTER)
    }

    pub(super) fn with_idle_after(bytes_max: usize, idle_after: Duration) -> Arc<Self> {
        Arc::new(Self { bytes_max, idle_after, seats: Mutex::default() })
    }

    /// Bytes in use now.
    #[must_use]
    pub(crate) fn used_bytes(&self) -> usize {
        self.lock().used_bytes
    }

    /// Adds a file. `give_up` makes it drop its chunks; it is called without locks.
    pub(super) fn seat(&self, give_up: impl Fn() + Send + Sync + 'static) -> Seat {
        let mut seats = self.lock();
        let seat = Seat(seats.next);
        seats.next += 1;
        let give_up: GiveUp = Arc::new(give_up);
        seats.files.insert(seat, FileUse { give_up, used_bytes: 0, asked_at: None });
        seat
    }

    /// Removes a file, which has returned its room.
    pub(super) fn leave(&self, seat: Seat) {
        self.lock().files.remove(&seat);
    }

    /// Reserves `bytes` for a file, if there is room.
    pub(super) fn room(self: &Arc<Self>, seat: Seat, bytes: usize) -> Option<Room> {
        let now = Instant::now();
        if !self.take(seat, bytes, now) {
            // Without the lock, because each dropped chunk returns its room.
            for give_up in self.idle(seat, now) {
                give_up();
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
        // One chunk is allowed even if the share is smaller.
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

    /// The files with chunks that were not read for a while.
    fn idle(&self, except: Seat, now: Instant) -> Vec<GiveUp> {
        let seats = self.lock();
        let others = seats.files.iter().filter(|(seat, file)| {
            **seat != except && file.used_bytes > 0 && self.is_idle(file, now)
        });
        others.map(|(_, file)| Arc::clone(&file.give_up)).collect()
    }

    fn give_back(&self, seat: Seat, bytes: usize) {
        let mut seats = self.lock();
        seats.used_bytes -= bytes;
        if let Some(own) = seats.files.get_mut(&seat) {
            own.used_bytes -= bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        // The seats are consistent between any two statements that can panic.
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

/// Reserved bytes, returned to the budget on drop.
#[derive(Debug)]
pub(super) struct Room {
    budget: Arc<ReadAheadBudget>,
    seat: Seat,
    bytes: usize,
}

impl Room {
    /// Returns all but `bytes`.
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

/// A file that has not asked for room for this time is idle.
const IDLE_AFTER: Duration = Duration::from_secs(2);
