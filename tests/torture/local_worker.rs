//! A thread that uses the files as any program of this machine does.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use crate::random::Random;
use crate::workload::{Workload, anywhere, count, read_fully, transfer_bytes};

pub(crate) struct LocalWorker<'a> {
    workload: &'a Workload,
    files: Vec<File>,
    random: Random,
}

impl<'a> LocalWorker<'a> {
    pub(crate) fn new(workload: &'a Workload, random: Random) -> Self {
        let open = |path| OpenOptions::new().read(true).write(true).open(path).unwrap();
        Self { workload, files: workload.paths.iter().map(open).collect(), random }
    }

    pub(crate) fn run(&mut self) {
        while self.workload.goes_on() {
            let file = self.workload.any_file(&mut self.random);
            if self.workload.is_quiet(file) || self.random.percent(60) {
                self.read(file);
            } else {
                self.write(file);
            }
        }
    }

    fn read(&mut self, file: usize) {
        let oracle = &self.workload.layouts[file].oracle;
        let (offset, bytes) = anywhere(oracle.end(), &mut self.random);
        let look = oracle.look(offset, bytes);
        let data = read_fully(&self.files[file], offset, bytes);
        self.workload.judge(file, look.check(&data), format_args!("pread of {bytes} at {offset}"));
        count(&self.workload.done.local_reads);
    }

    fn write(&mut self, file: usize) {
        let layout = &self.workload.layouts[file];
        let Some(owned) = layout.own_shared(&mut self.random) else { return };
        let units = owned.part(transfer_bytes(&mut self.random), &mut self.random);
        let data = layout.oracle.begin_writing(&units);
        self.workload.note_units(file, &units, format_args!("pwrite"));
        self.files[file].write_all_at(&data, layout.oracle.position(units.start)).unwrap();
        owned.acknowledge(units.clone());
        self.workload.note_units(file, &units, format_args!("pwritten"));
        count(&self.workload.done.local_writes);
    }
}
