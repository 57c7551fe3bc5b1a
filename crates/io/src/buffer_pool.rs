//! Page-aligned buffers in size classes, under one hard memory budget.
//!
//! The budget counts everything mapped, in use or idle. A caller that finds it exhausted waits its
//! turn; it is the waiting that keeps a flood of requests from turning into a flood of memory.
//!
//! Clients are served in turn, and one client may hold at most three quarters of the budget. So may
//! the data of one device, if there are several, and of that one client three quarters again: a
//! device that does not answer leaves memory for the others, and to its clients for others. What is
//! at its share waits for its own memory and holds up no other.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

use rustix::io::Errno;
use rustix::param::page_size;

use holders::Holders;

use crate::engine::{ClientId, Holder};
use crate::slab::{BUFFER_ALIGN, HUGE_PAGE_BYTES, Slab, Slot};
use crate::sync::{Mutex, MutexGuard, oneshot};

pub use buffer::Buffer;

/// A pool of [`Buffer`]s.
///
/// Idle buffers are kept, because a warm page costs nothing and a fresh one costs a fault and 4096
/// zeroed bytes. Their memory is given back only when the budget is reached and another size is
/// wanted.
///
/// Buffers of a size are neighbours, in huge pages where the system has them and the budget is at
/// least 32 MiB. The unused rest of the last huge page of a size is not counted.
pub struct BufferPool {
    budget_bytes: usize,
    /// Of the slabs that buffers are cut out of, at most.
    slab_bytes: usize,
    class_bytes: [usize; CLASSES],
    state: Mutex<State>,
}

/// The lock covers everything here. It is never held across an await; the longest work under it is
/// giving up idle buffers of a size no longer wanted, which keeps the budget exact.
struct State {
    /// In use and idle together; at most the budget at all times.
    mapped_bytes: usize,
    in_use_bytes: usize,
    /// Idle buffers by class, the most recently used (and so the warmest) last.
    idle: [Vec<Slot>; CLASSES],
    /// The mappings that the buffers of a class were cut from; unmapped with the last of them.
    slabs: [Vec<Weak<Slab>>; CLASSES],
    holders: Holders,
}

struct Waiter {
    class: usize,
    /// Of a buffer of the class.
    bytes: usize,
    grant: oneshot::Sender<Buffer>,
}

type Grant = (Holder, Waiter, Slot);

/// The request is larger than any buffer of this pool can ever be, so waiting would not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a buffer of {len} bytes was asked for; the pool's largest is {max} bytes")]
pub struct BufferTooLarge {
    /// Bytes asked for.
    pub len: usize,
    /// Bytes of the largest buffer within both the size classes and the budget.
    pub max: usize,
}

impl BufferPool {
    /// The part of huge pages that no buffer uses yet, at most: less than one for each size that
    /// lies in huge pages. It is outside the budget.
    pub const SLAB_REST_BYTES_MAX: usize = (CLASSES - 1) * HUGE_PAGE_BYTES;

    /// A pool that maps at most `budget_bytes`, and nothing before the first request.
    pub fn new(budget_bytes: usize) -> Arc<Self> {
        let page_bytes = page_size().max(BUFFER_ALIGN);
        Arc::new(Self {
            budget_bytes,
            slab_bytes: slab_bytes(budget_bytes),
            class_bytes: CLASS_BYTES.map(|bytes| bytes.next_multiple_of(page_bytes)),
            state: Mutex::new(State {
                mapped_bytes: 0,
                in_use_bytes: 0,
                idle: Default::default(),
                slabs: Default::default(),
                holders: Holders::new(budget_bytes),
            }),
        })
    }

    /// A buffer with a capacity of at least `len` bytes, for a client and a device. Waits while the
    /// budget or a share of theirs is used up: clients are served in turn, the requests of one
    /// client for one device in order. Dropping the future gives up the place in the queue, and
    /// nothing else.
    ///
    /// # Errors
    /// [`BufferTooLarge`] at once, when no wait could satisfy the request.
    pub async fn take(
        self: &Arc<Self>,
        holder: Holder,
        len: usize,
    ) -> Result<Buffer, BufferTooLarge> {
        let class = self.class_for(len)?;
        let (taken, grants) = {
            let mut state = self.lock();
            let taken = self.next_in_turn(&mut state, holder, class).ok_or_else(|| {
                let (grant, receiver) = oneshot::channel();
                state.holders.push(holder, Waiter { class, bytes: self.class_bytes[class], grant });
                receiver
            });
            (taken, self.next_grants(&mut state))
        };
        self.deliver(grants);
        let grant = match taken {
            Ok(slot) => return Ok(self.buffer(slot, class, holder)),
            Err(grant) => grant,
        };
        let mut turn = Turn { grant, holder, pool: self };
        let buffer = (&mut turn.grant).await;
        Ok(buffer.expect("a waiter leaves the queue with a buffer or by being dropped here"))
    }

    /// A buffer with a capacity of at least `len` bytes for a client and a device, if one can be
    /// had without waiting and without passing anyone whose turn comes first.
    pub fn try_take_for(self: &Arc<Self>, holder: Holder, len: usize) -> Option<Buffer> {
        let class = self.class_for(len).ok()?;
        let (slot, grants) = {
            let mut state = self.lock();
            let slot = self.next_in_turn(&mut state, holder, class)?;
            (slot, self.next_grants(&mut state))
        };
        self.deliver(grants);
        Some(self.buffer(slot, class, holder))
    }

    /// As [`try_take_for`](Self::try_take_for), for [`Holder::OWN`]: it counts for no share.
    pub fn try_take(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        self.try_take_for(Holder::OWN, len)
    }

    /// Sets whether the pool serves several devices. A single one may hold all of the memory.
    pub fn set_several_devices(self: &Arc<Self>, has_several: bool) {
        let grants = {
            let mut state = self.lock();
            state.holders.set_several_devices(has_several);
            self.next_grants(&mut state)
        };
        self.deliver(grants);
    }

    /// The largest length [`take`](Self::take) accepts, in bytes; 0 if the budget is below the
    /// smallest buffer.
    pub fn len_max(&self) -> usize {
        let affordable = self.class_bytes.iter().filter(|&&bytes| bytes <= self.budget_bytes);
        affordable.max().copied().unwrap_or(0)
    }

    /// Bytes of all buffers on loan, by capacity.
    pub fn bytes_in_use(&self) -> usize {
        self.lock().in_use_bytes
    }

    /// Bytes mapped: on loan and idle. Never above the budget.
    pub fn bytes_mapped(&self) -> usize {
        self.lock().mapped_bytes
    }

    /// The budget, in bytes.
    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// Requests waiting for memory now.
    pub fn waiters(&self) -> usize {
        self.lock().holders.waiters()
    }

    /// Whether a request waits that memory of `client` would serve. It would not serve one of
    /// another client that waits because it holds its own share, nor one for a device at its share
    /// of whose data `client` holds none.
    pub fn has_waiters_for(&self, client: ClientId) -> bool {
        self.lock().holders.has_waiters_for(client)
    }

    /// Takes a buffer's memory back and passes it on if someone waits.
    pub(crate) fn give_back(self: &Arc<Self>, slot: Slot, class: usize, holder: Holder) {
        let grants = {
            let mut state = self.lock();
            self.put_back(&mut state, slot, class, holder);
            self.next_grants(&mut state)
        };
        self.deliver(grants);
    }

    /// The smallest class that holds `len`, if it is smaller than `class`.
    pub(crate) fn smaller_class(&self, class: usize, len: usize) -> Option<usize> {
        self.class_bytes[..class].iter().position(|&bytes| bytes >= len)
    }

    /// Exchanges a buffer for one of a smaller class, ahead of the waiters: it leaves them more
    /// memory than before. Where the system refuses the new memory, the caller gets a buffer of the
    /// old class.
    ///
    /// # Panics
    /// The system refuses that memory too.
    pub(crate) fn exchange(
        self: &Arc<Self>,
        slot: Slot,
        class: usize,
        smaller: usize,
        holder: Holder,
    ) -> (Slot, usize) {
        let (exchanged, grants) = {
            let mut state = self.lock();
            self.put_back(&mut state, slot, class, holder);
            let exchanged = match self.obtain(&mut state, smaller) {
                Some(slot) => (slot, smaller),
                None => {
                    let slot = self.obtain(&mut state, class);
                    (slot.expect("the system gives as much memory as it had given before"), class)
                }
            };
            state.holders.charge(holder, self.class_bytes[exchanged.1]);
            (exchanged, self.next_grants(&mut state))
        };
        self.deliver(grants);
        exchanged
    }

    /// The smallest class that holds `len`, if the budget allows even one buffer of it.
    fn class_for(&self, len: usize) -> Result<usize, BufferTooLarge> {
        let class = self.class_bytes.iter().position(|&bytes| bytes >= len);
        class
            .filter(|&class| self.class_bytes[class] <= self.budget_bytes)
            .ok_or_else(|| BufferTooLarge { len, max: self.len_max() })
    }

    fn next_in_turn(&self, state: &mut State, holder: Holder, class: usize) -> Option<Slot> {
        let bytes = self.class_bytes[class];
        if !state.holders.is_next(holder, bytes) {
            return None;
        }
        let slot = self.obtain(state, class)?;
        state.holders.charge(holder, bytes);
        Some(slot)
    }

    fn put_back(&self, state: &mut State, slot: Slot, class: usize, holder: Holder) {
        let bytes = self.class_bytes[class];
        state.in_use_bytes -= bytes;
        state.idle[class].push(slot);
        state.holders.discharge(holder, bytes);
    }

    fn buffer(self: &Arc<Self>, slot: Slot, class: usize, holder: Holder) -> Buffer {
        Buffer::new(slot, class, holder, Arc::clone(self))
    }

    /// Memory of one class: an idle buffer, else a new one within the budget, else a new one in the
    /// place of idle buffers of other classes.
    fn obtain(&self, state: &mut State, class: usize) -> Option<Slot> {
        let bytes = self.class_bytes[class];
        let slot = match state.idle[class].pop() {
            Some(slot) => slot,
            None => self.add(state, class)?,
        };
        state.in_use_bytes += bytes;
        Some(slot)
    }

    fn add(&self, state: &mut State, class: usize) -> Option<Slot> {
        let bytes = self.class_bytes[class];
        if state.in_use_bytes + bytes > self.budget_bytes {
            return None;
        }
        while state.mapped_bytes + bytes > self.budget_bytes {
            self.give_up_one(state);
        }
        match self.vacant(state, class) {
            Ok(slot) => {
                state.mapped_bytes += bytes;
                Some(slot)
            }
            // The system has less memory than the budget promised: wait for our own buffers, if
            // there are any.
            Err(error) if state.in_use_bytes > 0 => {
                tracing::warn!(%error, bytes, "cannot allocate memory within the budget");
                None
            }
            Err(_) => handle_alloc_error(
                Layout::from_size_align(bytes, BUFFER_ALIGN)
                    .expect("a class size is far from overflow"),
            ),
        }
    }

    /// A slot that is no buffer yet, out of a slab that has one or a new slab.
    fn vacant(&self, state: &mut State, class: usize) -> Result<Slot, Errno> {
        let slabs = &mut state.slabs[class];
        slabs.retain(|slab| slab.strong_count() > 0);
        if let Some(slot) = slabs.iter().filter_map(Weak::upgrade).find_map(|slab| slab.take()) {
            return Ok(slot);
        }
        let bytes = self.class_bytes[class];
        let slots = (self.slab_bytes / bytes).max(1);
        let slab = Slab::map(bytes, slots, slots > 1 && bytes >= HUGE_FROM_BYTES)?;
        slabs.push(Arc::downgrade(&slab));
        Ok(slab.take().expect("a new slab has vacant slots"))
    }

    /// Gives the memory of one idle buffer back, of the class with the most idle bytes: it has the
    /// most to spare.
    fn give_up_one(&self, state: &mut State) {
        let idle_bytes = |&class: &usize| state.idle[class].len() * self.class_bytes[class];
        let class = (0..CLASSES).max_by_key(idle_bytes).expect("there are classes");
        let slot = state.idle[class].pop().expect("mapped memory that is not in use is idle");
        drop(slot);
        state.mapped_bytes -= self.class_bytes[class];
    }

    /// Memory for those whose turn it is, as far as it goes. To be called after each change: also
    /// one that takes memory can bring a request to its turn, by what that request has waited
    /// behind.
    fn next_grants(&self, state: &mut State) -> Vec<Grant> {
        let mut grants = Vec::new();
        while let Some((holder, class)) = state.holders.next() {
            let Some(slot) = self.obtain(state, class) else { break };
            grants.push((holder, state.holders.serve(holder), slot));
        }
        grants
    }

    /// Called without the lock: a waiter gone in the meantime leaves its buffer to be dropped here,
    /// and dropping a buffer takes the lock.
    fn deliver(self: &Arc<Self>, grants: Vec<Grant>) {
        for (holder, waiter, slot) in grants {
            drop(waiter.grant.send(self.buffer(slot, waiter.class, holder)));
        }
    }

    /// Removes a holder's waiters that gave up, one of which may have held up those behind it.
    fn forget_leavers(self: &Arc<Self>, holder: Holder) {
        let grants = {
            let mut state = self.lock();
            state.holders.forget_leavers(holder);
            self.next_grants(&mut state)
        };
        self.deliver(grants);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("BufferPool")
            .field("budget_bytes", &self.budget_bytes)
            .field("mapped_bytes", &state.mapped_bytes)
            .field("in_use_bytes", &state.in_use_bytes)
            .field("waiters", &state.holders.waiters())
            .finish_non_exhaustive()
    }
}

/// A place in the queue, whose early leaving must wake those behind it. (A buffer granted in the
/// meantime is dropped with the receiver, and so goes back to the pool.)
struct Turn<'a> {
    grant: oneshot::Receiver<Buffer>,
    holder: Holder,
    pool: &'a Arc<BufferPool>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.grant.is_terminated() {
            self.grant.close();
            self.pool.forget_leavers(self.holder);
        }
    }
}

/// How large slabs are under a budget: huge pages must not be a large part of it.
fn slab_bytes(budget_bytes: usize) -> usize {
    let share = budget_bytes / 16 / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    share.min(SLAB_BYTES_MAX)
}

/// Large enough that little is left over behind the last slot.
const SLAB_BYTES_MAX: usize = 16 << 20;

/// Smaller buffers are for heads and names, which are few and go to no disk.
const HUGE_FROM_BYTES: usize = 64 * KIB;

const KIB: usize = 1024;

/// Two pages beyond a payload of the nominal size: one because the payload starts anywhere within a
/// page (at the address congruent to its file offset), and one because a read widened to the
/// alignment ends past it.
const SPARE_BYTES: usize = 2 * BUFFER_ALIGN;

const CLASSES: usize = 5;

/// Capacities in bytes, ascending; rounded up to the system page size where that is larger than
/// 4096.
///
/// 8 KiB holds a call without payload, and small directory replies; the others hold one payload of
/// the transfer sizes clients negotiate (64 KiB, 256 KiB, 1 MiB; 4 MiB for a patient one) plus the
/// spare pages. A step of four wastes at most three quarters of address space, but pages never
/// touched are never backed by memory.
const CLASS_BYTES: [usize; CLASSES] = [
    8 * KIB,
    64 * KIB + SPARE_BYTES,
    256 * KIB + SPARE_BYTES,
    1024 * KIB + SPARE_BYTES,
    4096 * KIB + SPARE_BYTES,
];

mod buffer;
mod holders;
#[cfg(shuttle)]
#[cfg(test)]
mod interleavings;
#[cfg(not(shuttle))]
#[cfg(test)]
mod tests;
