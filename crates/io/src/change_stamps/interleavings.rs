//! Changes and readers of one inode, on a kernel that stamps a write at its beginning: no client is
//! left with old data under the stamp that the inode ends with, and what a local process has done
//! is seen at once.

use std::panic::catch_unwind;

use shuttle::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use shuttle::thread;

use super::*;
use crate::sync::Mutex;
use crate::sync::checker::check;

/// Each writer has one block.
const WRITERS: usize = 3;
/// Of all changes.
const CLIENT: ClientId = 1;
const WRITTEN: Done = Done { by: Clients::One(CLIENT), mtime: Mtime::Renewed };
/// Nanoseconds between two readings of the kernel's clock.
const TICK: u32 = 1_000_000;
/// The first of the lengths that no WRITE leads to.
const LOCAL_LEN: u64 = 100;

type Data = [u32; WRITERS];

/// A fault that is injected, to check that the test detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Readers ask whether a change is at work before they read the attributes.
    SeenFirst,
    /// WRITEs that share the inode show what the kernel shows.
    SharersShown,
    /// A WRITE that shares the inode claims all change since it began.
    PairFromBeginning,
    /// A WRITE is taken for the cause of any length.
    LocalHidden,
    /// A WRITE that shares the inode shows the length that the kernel shows.
    LengthOfOthers,
    /// A WRITE that shares the inode reads the attributes before its end begins.
    LookBeforeEnd,
    /// A WRITE is shown with the time that one before it has.
    StepShown,
}

/// A kernel's inode.
#[derive(Clone, Copy)]
struct Kernel {
    ticks: u32,
    stamp: Stamp,
    data: Data,
}

struct Server {
    /// All WRITEs are within one step of the kernel's clock.
    is_one_step: bool,
    kernel: Mutex<Kernel>,
    order: RwLock<()>,
    stamps: ChangeStamps,
    clock: ChangeClock,
    fault: Fault,
}

#[expect(dead_code, reason = "held")]
enum Held<'a> {
    Alone(RwLockWriteGuard<'a, ()>),
    Shared(RwLockReadGuard<'a, ()>),
}

/// A client's cache of a file.
#[derive(Clone, Copy)]
struct Cache {
    known: Stamp,
    data: Data,
}

impl Server {
    fn new(fault: Fault, is_one_step: bool) -> Self {
        let stamp = Stamp { size: 0, mtime: (1, 0), ctime: (1, 0) };
        Self {
            is_one_step,
            kernel: Mutex::new(Kernel { ticks: 0, stamp, data: [0; WRITERS] }),
            order: RwLock::new(()),
            stamps: ChangeStamps::default(),
            clock: ChangeClock::new(),
            fault,
        }
    }

    fn kernel(&self) -> crate::sync::MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    /// write(2): the times first, then the data, then the length.
    fn kernel_write(&self, block: usize, value: u32) {
        {
            let mut kernel = self.kernel();
            kernel.ticks += u32::from(!self.is_one_step);
            let now = (1, kernel.ticks * TICK);
            (kernel.stamp.mtime, kernel.stamp.ctime) = (now, now);
        }
        self.kernel().data[block] = value;
        let mut kernel = self.kernel();
        kernel.stamp.size = kernel.stamp.size.max(end_of(block));
    }

    /// ftruncate(2) by a local process, which leaves the data alone.
    fn set_len_locally(&self, size: u64) {
        let mut kernel = self.kernel();
        kernel.ticks += 1;
        let now = (1, kernel.ticks * TICK);
        kernel.stamp = Stamp { size, mtime: now, ctime: now };
    }

    /// The lengths that the WRITEs lead to.
    fn lengths(&self) -> Lengths {
        let is_hidden = self.fault == Fault::LocalHidden;
        if is_hidden { Lengths::ANY } else { Lengths::up_to(WRITERS as u64) }
    }

    fn note_call(&self) {
        let ticks = self.kernel().ticks;
        self.stamps.note_call(|| (1, ticks * TICK));
    }

    /// statx(2), after which the thread may be interrupted.
    fn live(&self) -> Stamp {
        let read = self.kernel().stamp;
        thread::yield_now();
        read
    }

    /// GETATTR.
    fn attributes(&self) -> Stamp {
        let since = self.clock.now();
        if self.fault == Fault::SeenFirst {
            let nothing = Stamp { size: u64::MAX, mtime: (0, 0), ctime: (0, 0) };
            let shown = self.stamps.seen(nothing, since, CLIENT);
            let read = self.live();
            return if shown == nothing { read } else { shown };
        }
        let read = self.live();
        self.stamps.seen(read, since, CLIENT)
    }

    /// READ.
    fn read(&self) -> Cache {
        let known = self.attributes();
        Cache { known, data: std::array::from_fn(|block| self.kernel().data[block]) }
    }

    /// WRITE of one block. Returns the pair of its reply.
    fn write(&self, shared: bool, block: usize, value: u32) -> Option<Pair> {
        if !shared {
            let _alone = Held::Alone(self.order.write().unwrap());
            let since = self.clock.now();
            let before = self.live();
            self.stamps.begin_exclusive((before, since), self.lengths());
            self.note_call();
            self.kernel_write(block, value);
            let now = Some(self.live());
            let done = (self.fault != Fault::StepShown).then_some(WRITTEN);
            let (before, after) = self.stamps.pair_exclusive(done, now, || (1, 0));
            self.stamps.end(&self.clock);
            return after.map(|after| (before, after));
        }
        let _shared = Held::Shared(self.order.read().unwrap());
        if self.fault == Fault::SharersShown {
            let before = self.live();
            self.kernel_write(block, value);
            return Some((before, self.live()));
        }
        let look = || Ok::<_, ()>((self.clock.now(), self.live()));
        let stamp = |&(since, live): &(Moment, Stamp)| (live, since);
        let (_, begun) = self.stamps.begin_shared(self.lengths(), look, stamp).unwrap();
        self.note_call();
        self.kernel_write(block, value);
        let end = if self.fault == Fault::LengthOfOthers { u64::MAX } else { end_of(block) };
        let early = (self.fault == Fault::LookBeforeEnd).then(|| self.live());
        let look = || early.or_else(|| Some(self.live()));
        let pair = self.stamps.end_shared(&self.clock, WRITTEN.by, end, look);
        match (self.fault, pair) {
            (Fault::PairFromBeginning, Some((_, after))) => Some((begun, after)),
            _ => pair,
        }
    }
}

/// Where a block ends.
fn end_of(block: usize) -> u64 {
    block as u64 + 1
}

impl Cache {
    /// Applies the reply to an own WRITE as RFC 1813 §2.6 has it.
    fn wrote(mut self, server: &Server, (block, value): (usize, u32), pair: Option<Pair>) -> Self {
        match pair {
            Some((before, after)) if before == self.known => {
                // Between the two lengths the client has its own data alone.
                let own = before.size.max(end_of(block));
                let is_own = after.size == own || after.size >= LOCAL_LEN;
                assert!(is_own, "{} after a WRITE of {block} at {}", after.size, before.size);
                self.data[block] = value;
                Self { known: after, ..self }
            }
            _ => server.read(),
        }
    }
}

/// Writers that cache, one that reads only, and a local process. Each WRITE is alone or shared, as
/// its turn has it.
fn clients_end_without_stale_data(fault: Fault, shared: [bool; WRITERS], is_one_step: bool) {
    let server = Arc::new(Server::new(fault, is_one_step));
    let writers = (0..WRITERS).map(|block| {
        let server = Arc::clone(&server);
        thread::spawn(move || {
            let mut cache = server.read();
            for value in 1..=2 {
                let pair = server.write(shared[block], block, value);
                cache = cache.wrote(&server, (block, value), pair);
            }
            vec![cache]
        })
    });
    let reader = {
        let server = Arc::clone(&server);
        thread::spawn(move || (0..3).map(|_| server.read()).collect())
    };
    let local = {
        let server = Arc::clone(&server);
        thread::spawn(move || {
            if matches!(fault, Fault::LengthOfOthers | Fault::StepShown) {
                // A length beyond all WRITEs, or a time, would hide the fault.
                return Vec::new();
            }
            for len in LOCAL_LEN..LOCAL_LEN + 3 {
                server.set_len_locally(len);
                assert_eq!(server.attributes().size, len, "the local change is hidden");
            }
            Vec::new()
        })
    };
    let threads: Vec<_> = writers.chain([reader, local]).collect();
    let caches: Vec<Cache> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let last = *server.kernel();
    let shown = server.attributes();
    let is_raised = is_one_step && shown.ctime > last.stamp.ctime;
    let is_last = shown == last.stamp || is_raised && shown.size == last.stamp.size;
    assert!(is_last, "{shown:?} hides {:?} for good", last.stamp);
    for Cache { known, data } in caches {
        assert!(known != shown || data == last.data, "{data:?} under the last stamp");
    }
}

#[test]
fn no_interleaving_leaves_a_client_with_stale_data() {
    for shared in [[true, true, true], [true, true, false], [false, false, false]] {
        for is_one_step in [false, true] {
            check(500, move || clients_end_without_stale_data(Fault::None, shared, is_one_step));
        }
    }
}

#[test]
fn each_fault_has_an_interleaving_that_shows_it() {
    for (fault, shared) in [
        (Fault::SeenFirst, false),
        (Fault::SharersShown, true),
        (Fault::PairFromBeginning, true),
        (Fault::LocalHidden, false),
        (Fault::LocalHidden, true),
        (Fault::LengthOfOthers, true),
        (Fault::LookBeforeEnd, true),
        (Fault::StepShown, false),
    ] {
        let is_one_step = fault == Fault::StepShown;
        let run = move || clients_end_without_stale_data(fault, [shared; WRITERS], is_one_step);
        let search = || check(2_000, run);
        assert!(catch_unwind(search).is_err(), "{fault:?} is not found");
    }
}
