//! Two connections that write next to each other, on one block, at the same time.
//!
//! Where a write that fills only a part of a block is done by reading the block, changing it and
//! writing it back, two that share a block can undo each other. The lengths are 1.5 KiB, which
//! shares blocks of 1 KiB and of 4 KiB, and longer ones whose middles may pass by the page cache.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs3::{FileHandle, StableHow};
use rustix::fs::{Advice, fadvise, fdatasync};

use crate::client::{Client, ok};
use crate::environment::seed;
use crate::place::Place;
use crate::random::{Random, scramble};
use crate::server::{MODES, ModePair, Server};

const FILE_BYTES: usize = 4 << 20;

/// Length of each write, and in how many rounds for each mode of writing.
const KINDS: [(usize, usize); 3] = [(1536, 10_000), (47_008, 1000), ((1 << 20) - 512, 100)];

/// How much later than the other one a call may leave.
const LAG_MAX_US: u64 = 100;

#[derive(Clone, Copy)]
struct Round {
    number: u64,
    /// Where the left write ends and the right one begins.
    boundary: usize,
    bytes: usize,
    lag: [Duration; 2],
    /// Whether the pages are to be read from the disk first.
    evicts: bool,
}

impl Round {
    fn random(number: u64, bytes: usize, random: &mut Random) -> Self {
        let boundary = if random.percent(70) {
            // An odd multiple of 1.5 KiB is in the middle of a block of 1 KiB.
            let count = random.within(0..((FILE_BYTES - 2 * bytes) / 3072) as u64);
            bytes.next_multiple_of(3072) + 3072 * usize::try_from(count).unwrap() - 1536
        } else {
            bytes + random.index(FILE_BYTES - 2 * bytes)
        };
        let boundary = boundary.clamp(bytes, FILE_BYTES - bytes);
        let mut lag = [Duration::ZERO; 2];
        lag[random.index(2)] = Duration::from_micros(random.within(0..LAG_MAX_US));
        Self { number, boundary, bytes, lag, evicts: random.percent(20) }
    }

    fn place(&self, side: usize) -> Range<usize> {
        let start = self.boundary - self.bytes * (1 - side);
        start..start + self.bytes
    }

    /// The bytes that one side writes: other words in every round.
    fn data(&self, side: usize) -> Vec<u8> {
        let word = scramble(self.number << 1 | side as u64).to_ne_bytes();
        let mut data = word.repeat(self.bytes.div_ceil(word.len()));
        data.truncate(self.bytes);
        data
    }
}

/// One of the two connections.
struct Racer {
    side: usize,
    client: Client,
    file: FileHandle,
}

impl Racer {
    fn new(server: &Server, side: usize) -> Self {
        let (mut client, root) = server.mounted();
        let file = client.find(root, "raced");
        Self { side, client, file }
    }

    fn write(&mut self, round: &Round) {
        let data = round.data(self.side);
        let offset = round.place(self.side).start as u64;
        let called = Instant::now();
        while called.elapsed() < round.lag[self.side] {
            std::hint::spin_loop();
        }
        let flushes = round.number.is_multiple_of(50);
        let stable = if flushes { StableHow::FileSync } else { StableHow::Unstable };
        let done = ok(self.client.write_stable(self.file, offset, &data, stable));
        assert_eq!(usize::try_from(done.count).unwrap(), data.len(), "a short WRITE");
    }
}

/// Runs the rounds of each kind in each mode of writing, a quarter of them for each of reading;
/// afterwards both writes are whole, for the next READ and, in the end, on the disk.
pub(crate) fn race(place: &Place) {
    let mut random = Random::new(seed());
    let path = place.export().join("raced");
    fs::write(&path, vec![0; FILE_BYTES]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let local = File::open(&path).unwrap();
    let mut model = vec![0; FILE_BYTES];
    let server = Server::start(place.export(), ("auto", "auto"));
    let mut racers = [Racer::new(&server, 0), Racer::new(&server, 1)];
    let mut number = 0;
    for write_mode in MODES {
        for (bytes, rounds) in KINDS {
            for read_mode in MODES {
                let modes = (read_mode, write_mode);
                server.switch(modes);
                let mut next = || {
                    number += 1;
                    Round::random(number, bytes, &mut random)
                };
                let rounds: Vec<_> = (0..rounds / MODES.len()).map(|_| next()).collect();
                run(&mut racers, &local, &mut model, &rounds, modes);
            }
        }
        check_disk(&local, &model, write_mode);
    }
    drop(racers);
    server.stop(place.may_lack_direct());
}

/// Where two threads wait for each other. A `Barrier` would hold one for ever when the other has
/// panicked.
struct MeetingPoint {
    arrival: SyncSender<()>,
    partner: Receiver<()>,
}

impl MeetingPoint {
    fn of_two() -> [Self; 2] {
        let (arrival, seen_by_second) = sync_channel(1);
        let (arrival_of_second, partner) = sync_channel(1);
        [Self { arrival, partner }, Self { arrival: arrival_of_second, partner: seen_by_second }]
    }

    /// Waits until both threads are here; `None` if the other one has ended.
    fn wait(&self) -> Option<()> {
        self.arrival.send(()).ok()?;
        self.partner.recv().ok()
    }
}

/// Both sides write in each round; then the left one reads, while the other waits. A side that
/// panics ends the other one.
fn run(racers: &mut [Racer; 2], local: &File, model: &mut [u8], rounds: &[Round], modes: ModePair) {
    let [meeting, meeting_of_right] = MeetingPoint::of_two();
    let [left, right] = racers;
    thread::scope(move |scope| {
        scope.spawn(move || {
            for round in rounds {
                meeting_of_right.wait()?;
                right.write(round);
                meeting_of_right.wait()?;
            }
            Some(())
        });
        for round in rounds {
            if round.evicts {
                fdatasync(local).unwrap();
                fadvise(local, 0, None, Advice::DontNeed).unwrap();
            }
            meeting.wait()?;
            left.write(round);
            meeting.wait()?;
            for side in [0, 1] {
                model[round.place(side)].copy_from_slice(&round.data(side));
            }
            // With a few unwritten bytes on both sides.
            let seen = round.place(0).start.saturating_sub(700)..round.place(1).end + 700;
            let seen = seen.start..seen.end.min(FILE_BYTES);
            let mut read = Vec::new();
            while read.len() < seen.len() {
                let (offset, rest) = (seen.start + read.len(), seen.len() - read.len());
                let count = u32::try_from(rest.min(1 << 20)).unwrap();
                let data = left.client.read(left.file, offset as u64, count).unwrap().data;
                assert!(!data.is_empty(), "the file ends at byte {offset}");
                read.extend(data);
            }
            assert_same(&read, &model[seen.clone()], seen.start, round, modes);
        }
        Some(())
    });
}

fn assert_same(read: &[u8], model: &[u8], start: usize, round: &Round, modes: ModePair) {
    if let Some(at) = first_difference(read, model) {
        let (at, Round { number, boundary, bytes, .. }) = (start + at, round);
        panic!("{modes:?}: byte {at} is wrong after round {number} of {bytes} around {boundary}");
    }
}

fn check_disk(local: &File, model: &[u8], write_mode: &str) {
    fdatasync(local).unwrap();
    fadvise(local, 0, None, Advice::DontNeed).unwrap();
    let mut disk = vec![0; FILE_BYTES];
    local.read_exact_at(&mut disk, 0).unwrap();
    let wrong = first_difference(&disk, model);
    assert_eq!(wrong, None, "a wrong byte on the disk after writing {write_mode}");
}

/// Where two rows of bytes differ first, their lengths included.
pub(crate) fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    // Comparing as a whole comes first, because without optimization the search takes very long.
    if left == right {
        return None;
    }
    let differ = left.iter().zip(right).position(|(left, right)| left != right);
    differ.or(Some(left.len().min(right.len())))
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Two rounds on a busy machine take less.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Races twice on a file of zeros, with what `spoil` has changed; returns the panic. A race
    /// that does not end fails the test, and is left behind.
    fn panic_of_race(spoil: fn(&mut [Racer; 2], &mut [u8])) -> Box<dyn Any + Send> {
        let (ended, end) = sync_channel(1);
        thread::spawn(move || {
            let place = Place::in_directory();
            let path = place.export().join("raced");
            fs::write(&path, vec![0; FILE_BYTES]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            let local = File::open(&path).unwrap();
            let modes = ("buffered", "buffered");
            let server = Server::start(place.export(), modes);
            let mut racers = [Racer::new(&server, 0), Racer::new(&server, 1)];
            let mut model = vec![0; FILE_BYTES];
            spoil(&mut racers, &mut model);
            let mut random = Random::new(1);
            let rounds = [1, 2].map(|number| Round::random(number, 1536, &mut random));
            let raced = catch_unwind(AssertUnwindSafe(|| {
                run(&mut racers, &local, &mut model, &rounds, modes);
            }));
            let _ = ended.send(raced);
        });
        let raced = end.recv_timeout(PATIENCE).expect("the race ends");
        raced.expect_err("the race fails")
    }

    #[test]
    fn a_wrong_byte_ends_the_race() {
        let panic = panic_of_race(|_, model| model.fill(1));
        let sentence = panic.downcast::<String>().unwrap();
        assert!(sentence.contains("is wrong after round 1 of 1536"), "{sentence}");
    }

    #[test]
    fn a_refused_write_ends_the_race() {
        // The root of the export, on which no WRITE is performed.
        panic_of_race(|racers, _| racers[0].file = racers[0].client.mnt("/export"));
        panic_of_race(|racers, _| racers[1].file = racers[1].client.mnt("/export"));
    }
}
