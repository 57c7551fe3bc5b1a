//! Programs of the server's machine that change the files without the server.

use std::fs::{File as Opened, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use crate::file::{File, Kind, pages, part};
use crate::mapping::Mapping;
use crate::random::Random;
use crate::workload::{Workload, count};

const PAGE_BYTES: usize = 4096;

/// How a local change is made.
#[derive(Clone, Copy, Debug)]
enum Way {
    Write,
    Direct,
    Store,
    Cut,
}

pub(crate) struct Local<'a> {
    workload: &'a Workload,
    files: Vec<Opened>,
    /// Empty where the file system does no direct I/O.
    direct: Vec<Opened>,
    /// Empty without a program that maps files.
    mappings: Vec<Mapping>,
    random: Random,
}

impl<'a> Local<'a> {
    pub(crate) fn new(workload: &'a Workload, random: Random, maps: bool) -> Self {
        let open = |file: &File, flags: rustix::fs::OFlags| {
            let flags = i32::try_from(flags.bits()).unwrap();
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(&file.path)
        };
        let files = &workload.files;
        let plain = |file| open(file, rustix::fs::OFlags::empty()).unwrap();
        let direct = files.iter().map(|file| open(file, rustix::fs::OFlags::DIRECT));
        let map = |file: &File| Mapping::of(&file.path, file.mapped_bytes());
        let mappings = if maps { files.iter().map(map).collect() } else { None };
        Self {
            workload,
            files: files.iter().map(plain).collect(),
            direct: direct.collect::<Result<_, _>>().unwrap_or_default(),
            mappings: mappings.unwrap_or_default(),
            random,
        }
    }

    pub(crate) fn run(&mut self) {
        while self.workload.goes_on() {
            let number = self.workload.any_file(&mut self.random);
            match self.random.index(5) {
                0 | 1 => self.change(number, Way::Write),
                2 if !self.direct.is_empty() => self.change(number, Way::Direct),
                3 if !self.mappings.is_empty() => self.change(number, Way::Store),
                _ => self.change(number, Way::Cut),
            }
            thread::sleep(Duration::from_millis(self.random.within(0..15)));
        }
    }

    fn change(&mut self, number: usize, way: Way) {
        let file = &self.workload.files[number];
        let kinds: &[Kind] = match way {
            Way::Write => &[Kind::Cells, Kind::Plain, Kind::Plain, Kind::Tail],
            Way::Direct | Way::Store => &[Kind::Pages],
            Way::Cut => &[Kind::Tail],
        };
        let Some(owned) = file.own(kinds, &mut self.random) else { return };
        let items = match way {
            Way::Write | Way::Store => part(&owned.items, &mut self.random),
            Way::Direct => pages(&owned.items, &mut self.random),
            Way::Cut => owned.items.start + self.random.index(owned.items.len())..owned.items.end,
        };
        let change = file.gate().local();
        self.workload.note(number, &items, &format!("local {way:?}"));
        self.perform(number, way, &items);
        // The kernel gives a change its time before its data, and stores through a mapping often
        // none; with another time behind them no client takes data read meanwhile for the result.
        if file.mounted || matches!(way, Way::Store) {
            self.touch(number);
        }
        file.versions.acknowledge(&items);
        self.workload.note(number, &items, "local change done");
        drop(change);
        count(&self.workload.done.local_changes);
    }

    fn perform(&mut self, number: usize, way: Way, items: &Range<usize>) {
        let versions = &self.workload.files[number].versions;
        if let Way::Cut = way {
            versions.begin_cutting(items);
            return self.files[number].set_len(versions.position(items.start)).unwrap();
        }
        let offset = versions.position(items.start);
        let data = versions.begin_writing(items);
        match way {
            Way::Direct => write_aligned(&self.direct[number], offset, &data),
            Way::Store => self.mappings[number].write(offset, &data),
            Way::Write | Way::Cut => self.files[number].write_all_at(&data, offset).unwrap(),
        }
    }

    fn touch(&self, number: usize) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let now = Timestamps { last_access: now, last_modification: now };
        futimens(&self.files[number], &now).unwrap();
    }
}

/// Writes from memory that is aligned as direct I/O wants it.
fn write_aligned(file: &Opened, offset: u64, data: &[u8]) {
    let mut memory = vec![0; data.len() + PAGE_BYTES];
    let start = memory.as_ptr().align_offset(PAGE_BYTES);
    memory[start..start + data.len()].copy_from_slice(data);
    file.write_all_at(&memory[start..start + data.len()], offset).unwrap();
}
