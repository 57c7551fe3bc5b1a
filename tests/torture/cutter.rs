//! The worker that moves the ends of the files: by SETATTR, by `ftruncate`, by WRITEs behind the
//! end.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::thread;
use std::time::Duration;

use proto::nfs3::{FileHandle, SetAttributes};

use crate::client::{Client, ok, size};
use crate::layout::OwnedShape;
use crate::random::Random;
use crate::workload::{Workload, count, transfer_bytes};

const STEPS_MAX: u64 = 5;

pub(crate) struct Cutter<'a> {
    workload: &'a Workload,
    client: Client,
    /// For what has to happen at the same time.
    other: Client,
    handles: Vec<FileHandle>,
    files: Vec<File>,
    random: Random,
}

impl<'a> Cutter<'a> {
    pub(crate) fn new(workload: &'a Workload, random: Random) -> Self {
        let (mut client, root) = workload.server.mounted();
        let (other, _) = workload.server.mounted();
        let find = |name: &String| client.find(root, name);
        let handles = workload.layouts.iter().map(|layout| &layout.name).map(find).collect();
        let open = |path| OpenOptions::new().write(true).open(path).unwrap();
        let files = workload.paths.iter().map(open).collect();
        Self { workload, client, other, handles, files, random }
    }

    pub(crate) fn run(&mut self) {
        while self.workload.goes_on() {
            let file = self.workload.any_file(&mut self.random);
            if self.workload.is_quiet(file) {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            let shape = self.workload.layouts[file].own_shape();
            for _ in 0..self.random.within(1..STEPS_MAX) {
                match self.random.index(8) {
                    0..=2 => self.set_len(file, &shape),
                    3 => self.set_len_locally(file, &shape),
                    4 | 5 => self.write_behind(file, &shape),
                    _ => self.write_while_cutting(file, &shape),
                }
                self.check_len(file, &shape);
            }
            drop(shape);
            thread::sleep(Duration::from_millis(self.random.within(0..20)));
        }
    }

    /// A SETATTR that cuts the file or lets it grow.
    fn set_len(&mut self, file: usize, shape: &OwnedShape<'_>) {
        let oracle = &self.workload.layouts[file].oracle;
        let unit = shape.unit(&mut self.random);
        self.begin_cutting(file, unit, "SETATTR");
        let len = oracle.position(unit);
        ok(self.client.setattr(self.handles[file], size(len)));
        oracle.acknowledge_cut(unit);
        shape.set_len(len);
        count(&self.workload.done.cuts);
    }

    fn set_len_locally(&mut self, file: usize, shape: &OwnedShape<'_>) {
        let oracle = &self.workload.layouts[file].oracle;
        let unit = shape.unit(&mut self.random);
        self.begin_cutting(file, unit, "ftruncate");
        let len = oracle.position(unit);
        self.files[file].set_len(len).unwrap();
        oracle.acknowledge_cut(unit);
        shape.set_len(len);
        count(&self.workload.done.cuts);
    }

    fn begin_cutting(&self, file: usize, unit: usize, how: &str) {
        let oracle = &self.workload.layouts[file].oracle;
        oracle.begin_cutting(unit);
        let gone = oracle.position(unit)..oracle.end();
        self.workload.journal.note(file, gone, format_args!("{how}"));
    }

    /// A WRITE anywhere in the tail, mostly leaving a hole before it.
    fn write_behind(&mut self, file: usize, shape: &OwnedShape<'_>) {
        let oracle = &self.workload.layouts[file].oracle;
        let units = self.some_units(file, shape);
        let data = oracle.begin_writing(&units);
        self.workload.note_units(file, &units, format_args!("WRITE in the tail"));
        let offset = oracle.position(units.start);
        let done = ok(self.client.write(self.handles[file], offset, &data));
        assert_eq!(usize::try_from(done.count).unwrap(), data.len(), "a short WRITE");
        oracle.acknowledge(units.clone());
        shape.set_len(shape.len().max(oracle.position(units.end)));
    }

    /// A WRITE and a SETATTR of the length at the same time, in whichever order the server takes
    /// them.
    fn write_while_cutting(&mut self, file: usize, shape: &OwnedShape<'_>) {
        let oracle = &self.workload.layouts[file].oracle;
        let (units, cut) = (self.some_units(file, shape), shape.unit(&mut self.random));
        let data = oracle.begin_writing_and_cutting(&units, cut);
        self.workload.note_units(file, &units, format_args!("WRITE while cutting at {cut}"));
        let (handle, len) = (self.handles[file], oracle.position(cut));
        let (offset, end) = (oracle.position(units.start), oracle.position(units.end));
        let (client, other) = (&mut self.client, &mut self.other);
        let new_attributes: SetAttributes = size(len);
        thread::scope(|scope| {
            scope.spawn(|| ok(other.setattr(handle, new_attributes)));
            let done = ok(client.write(handle, offset, &data));
            assert_eq!(usize::try_from(done.count).unwrap(), data.len(), "a short WRITE");
        });
        oracle.acknowledge(units);
        oracle.acknowledge_cut(cut);
        let now = self.client.getattr(handle).unwrap().size;
        assert!(now == len || now == len.max(end), "{now} bytes after {len} and {end}");
        shape.set_len(now);
        count(&self.workload.done.races);
    }

    fn some_units(&mut self, file: usize, shape: &OwnedShape<'_>) -> Range<usize> {
        let oracle = &self.workload.layouts[file].oracle;
        let last = oracle.unit_from(oracle.end());
        let start = shape.unit(&mut self.random).min(last - 1);
        let len = transfer_bytes(&mut self.random);
        let end = oracle.unit_from(oracle.position(start) + len as u64);
        start..end.min(last)
    }

    /// No other worker changes the length now, so exactly one is right.
    fn check_len(&mut self, file: usize, shape: &OwnedShape<'_>) {
        let reported = self.client.getattr(self.handles[file]).unwrap().size;
        assert_eq!(reported, shape.len(), "length by GETATTR");
        assert_eq!(self.files[file].metadata().unwrap().len(), shape.len(), "length by stat");
    }
}
