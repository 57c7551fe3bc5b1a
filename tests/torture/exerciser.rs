//! Random operations of one client, each compared with a model in memory, in the manner of fsx.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;

use proto::nfs3::{FileHandle, StableHow};
use rustix::fs::{Advice, fadvise, fdatasync};

use crate::client::{Client, ok, size};
use crate::environment::seed;
use crate::place::Place;
use crate::race::first_difference;
use crate::random::Random;
use crate::server::{ModePair, Server, mode_pairs};

const FILE_BYTES_MAX: usize = 3 << 20;
/// The number of last operations that are printed with a failure.
const PRINTED_MAX: usize = 25;

struct Exerciser {
    /// Operations alternate between two connections, of which none knows what the other did.
    clients: [Client; 2],
    file: FileHandle,
    local: File,
    model: Vec<u8>,
    /// Random bytes. Each WRITE takes its data from another place in them.
    noise: Vec<u8>,
    random: Random,
    modes: ModePair,
    last: VecDeque<String>,
}

/// Does so many operations in each pair of modes.
pub(crate) fn exercise(place: &Place, operations: usize) {
    let mut random = Random::new(seed());
    let noise = (0..FILE_BYTES_MAX / 4).flat_map(|_| random.next().to_ne_bytes()).collect();
    let path = place.export().join("exercised");
    fs::write(&path, b"").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let server = Server::start(place.export(), ("auto", "auto"));
    let (mut client, root) = server.mounted();
    let mut exerciser = Exerciser {
        file: client.find(root, "exercised"),
        clients: [client, server.mounted().0],
        local: File::open(&path).unwrap(),
        model: Vec::new(),
        noise,
        random,
        modes: ("auto", "auto"),
        last: VecDeque::new(),
    };
    for modes in mode_pairs() {
        server.switch(modes);
        exerciser.modes = modes;
        for _ in 0..operations {
            exerciser.step();
        }
        exerciser.check_whole();
        exerciser.compare("file", 0, &fs::read(&path).unwrap(), usize::MAX);
    }
    exerciser.evict();
    exerciser.compare("disk", 0, &fs::read(&path).unwrap(), usize::MAX);
    drop(exerciser);
    server.stop(place.may_lack_direct());
}

impl Exerciser {
    fn step(&mut self) {
        match self.random.index(100) {
            0..30 => self.read_once(),
            30..35 => self.read_stream(),
            35..70 => self.write_once(),
            70..75 => self.write_stream(),
            75..88 => self.set_len(),
            88..92 => self.commit(),
            92..94 => self.evict(),
            _ => self.check_len(),
        }
    }

    fn client(&mut self) -> &mut Client {
        let which = self.random.index(2);
        &mut self.clients[which]
    }

    /// Mostly short, sometimes long enough to pass by the page cache.
    fn bytes(&mut self) -> usize {
        match self.random.index(8) {
            0..=3 => self.random.index(8192) + 1,
            4 => 47_008,
            5 => 65_536,
            6 => self.random.index(300_000) + 1,
            _ => (1 << 20) - self.random.index(2) * self.random.index(5000),
        }
    }

    /// Anywhere in the file or a little behind its end.
    fn offset(&mut self) -> usize {
        let around = (self.model.len() + 20_000).min(FILE_BYTES_MAX);
        let offset = self.random.index(around);
        if self.random.percent(30) { offset / 4096 * 4096 } else { offset }
    }

    fn note(&mut self, what: String) {
        if self.last.len() == PRINTED_MAX {
            self.last.pop_front();
        }
        self.last.push_back(what);
    }

    fn read_once(&mut self) {
        let (offset, bytes) = (self.offset(), self.bytes());
        self.read(offset, bytes);
    }

    fn read_stream(&mut self) {
        let (mut offset, bytes) = (self.offset(), self.bytes());
        for _ in 0..20 {
            self.read(offset, bytes);
            offset += bytes;
            if offset > self.model.len() {
                break;
            }
        }
    }

    fn read(&mut self, offset: usize, bytes: usize) {
        self.note(format!("READ {bytes} at {offset}"));
        let (file, count) = (self.file, u32::try_from(bytes).unwrap());
        let read = self.client().read(file, offset as u64, count).unwrap();
        self.compare("READ", offset, &read.data, bytes);
        let ends = offset + bytes >= self.model.len();
        assert_eq!(read.eof, ends, "{:?}: {:#?}", self.modes, self.last);
    }

    fn write_once(&mut self) {
        let (offset, bytes) = (self.offset(), self.bytes());
        self.write(offset, bytes);
    }

    fn write_stream(&mut self) {
        let (mut offset, bytes) = (self.offset(), self.bytes());
        for _ in 0..10 {
            self.write(offset, bytes);
            offset += bytes;
        }
    }

    fn write(&mut self, offset: usize, bytes: usize) {
        let bytes = bytes.min(FILE_BYTES_MAX.saturating_sub(offset));
        let stable = match self.random.index(12) {
            0 => StableHow::FileSync,
            1 => StableHow::DataSync,
            _ => StableHow::Unstable,
        };
        self.note(format!("WRITE {stable:?} {bytes} at {offset}"));
        let first = self.random.index(self.noise.len() - bytes);
        let (file, data) = (self.file, self.noise[first..first + bytes].to_vec());
        let done = ok(self.client().write_stable(file, offset as u64, &data, stable));
        assert_eq!(usize::try_from(done.count).unwrap(), bytes, "a short WRITE");
        if bytes > 0 {
            let end = offset + bytes;
            self.set_model_len(self.model.len().max(end));
            self.model[offset..end].copy_from_slice(&data);
        }
    }

    fn set_len(&mut self) {
        let len = if self.random.percent(60) {
            self.random.index(self.model.len() + 1)
        } else {
            self.random.index(FILE_BYTES_MAX)
        };
        self.note(format!("SETATTR size {len}"));
        let file = self.file;
        ok(self.client().setattr(file, size(len as u64)));
        self.set_model_len(len);
    }

    fn set_model_len(&mut self, len: usize) {
        self.model.truncate(len);
        // Without optimization, `resize` takes as long as the server with its part.
        self.model.append(&mut vec![0; len - self.model.len()]);
    }

    fn commit(&mut self) {
        self.note("COMMIT".to_owned());
        let file = self.file;
        ok(self.client().commit(file));
    }

    fn evict(&mut self) {
        self.note("evict".to_owned());
        fdatasync(&self.local).unwrap();
        fadvise(&self.local, 0, None, Advice::DontNeed).unwrap();
    }

    fn check_len(&mut self) {
        let file = self.file;
        let reported = self.client().getattr(file).unwrap().size;
        assert_eq!(reported, self.model.len() as u64, "{:?}: {:#?}", self.modes, self.last);
    }

    fn check_whole(&mut self) {
        for offset in (0..self.model.len()).step_by(1 << 20) {
            self.read(offset, 1 << 20);
        }
    }

    /// The bytes read at `offset` must be all that the model has there, up to `bytes`.
    fn compare(&self, what: &str, offset: usize, read: &[u8], bytes: usize) {
        let start = offset.min(self.model.len());
        let model =
            &self.model[start..offset.saturating_add(bytes).min(self.model.len()).max(start)];
        if let Some(at) = first_difference(read, model) {
            let (at, lens, modes) = (start + at, (read.len(), model.len()), self.modes);
            panic!("{modes:?}: {what}: wrong at {at}, lengths {lens:?}: {:#?}", self.last);
        }
    }
}
