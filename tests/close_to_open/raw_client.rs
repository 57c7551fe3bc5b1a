//! A client of one connection that caches data as any NFSv3 client may.
//!
//! It keeps, for each item of each file, the version it saw, under one stamp for the file.

use std::ops::Range;

use proto::nfs3::*;

use crate::client::{Client, mode, ok, size};
use crate::file::{File, Kind, part};
use crate::random::Random;
use crate::trust::{Change, Stamp, Trust};
use crate::versions::{CELLS, Floors, size as item_bytes};
use crate::workload::{Workload, count};

const STABLE_HOWS: [StableHow; 4] =
    [StableHow::Unstable, StableHow::Unstable, StableHow::DataSync, StableHow::FileSync];
const READS_BYTES: [usize; 4] = [4096, 65_536, 1 << 20, 4 << 20];

/// Of one open, so that short READs do not take all the time.
const READS_MAX: usize = 8;

/// A client's cache of one file: its stamp, and the versions of the items that were read.
struct Cache {
    stamp: Stamp,
    seen: Vec<Option<u32>>,
}

pub(crate) struct RawClient<'a> {
    workload: &'a Workload,
    client: Client,
    root: FileHandle,
    links: FileHandle,
    trust: Trust,
    handles: Vec<FileHandle>,
    caches: Vec<Cache>,
    random: Random,
    links_made: u64,
}

impl<'a> RawClient<'a> {
    /// One that uses the export by one of its names, counted around.
    pub(crate) fn new(workload: &'a Workload, export: usize, trust: Trust, random: Random) -> Self {
        let (mut client, root) = workload.server.mounted_at(export);
        let links = client.find(root, "links");
        let handles = workload.files.iter().map(|file| client.find(root, &file.name)).collect();
        let cache =
            |file: &File| Cache { stamp: Stamp::default(), seen: vec![None; file.versions.len()] };
        let caches = workload.files.iter().map(cache).collect();
        Self { workload, client, root, links, trust, handles, caches, random, links_made: 0 }
    }

    pub(crate) fn run(&mut self) {
        while self.workload.goes_on() {
            let number = self.workload.any_file(&mut self.random);
            match self.random.index(20) {
                0..=8 => self.open_and_read(number),
                9..=13 => self.write(number),
                14 | 15 => self.write_together(),
                16 => self.commit(number),
                17 => self.cut(number),
                18 => self.change_mode(number),
                _ => self.link(number),
            }
        }
    }

    /// Opens a file, looks at all that is cached of it, and reads a part from the server.
    fn open_and_read(&mut self, number: usize) {
        let file = &self.workload.files[number];
        let floors = file.versions.floors();
        let (attributes, how) = self.attributes_of(number);
        if self.caches[number].stamp.seen(&attributes, how) {
            self.judge_cache(number, &floors);
            count(&self.workload.done.kept);
        } else {
            self.caches[number].drop_all();
        }
        let items = file.any_items(&mut self.random);
        let read_bytes = self.random.one_of(&READS_BYTES);
        let per_read = if items.start < CELLS { CELLS } else { read_bytes / item_bytes(CELLS) };
        for start in items.clone().step_by(per_read).take(READS_MAX) {
            self.read(number, start..(start + per_read).min(items.end), &floors);
        }
        count(&self.workload.done.opens);
    }

    /// The attributes that an open is decided by, from one of the replies that have them.
    fn attributes_of(&mut self, number: usize) -> (Attributes, &'static str) {
        let handle = self.handles[number];
        let name = &self.workload.files[number].name;
        let found = match self.random.index(4) {
            0 => (ok(self.client.lookup(self.root, name.as_bytes())).object_attributes, "LOOKUP"),
            1 => (ok(self.client.access(handle, 0x3f)).attributes, "ACCESS"),
            _ => (None, ""),
        };
        match found {
            (Some(attributes), how) => (attributes, how),
            (None, _) => (self.client.getattr(handle).unwrap(), "GETATTR"),
        }
    }

    fn judge_cache(&self, number: usize, floors: &Floors) {
        let file = &self.workload.files[number];
        for (item, version) in self.caches[number].seen.iter().enumerate() {
            if let Some(version) = version
                && let Err(wrong) = file.versions.judge_cached(item, *version, floors)
            {
                let what = format!("stale after an open ({:?})", self.trust);
                self.workload.fail(number, &wrong, &what, &self.caches[number].stamp.history());
            }
        }
    }

    /// Reads items that are all cells or all units. What a local change overlapped is judged, but
    /// not kept.
    fn read(&mut self, number: usize, items: Range<usize>, floors: &Floors) {
        let file = &self.workload.files[number];
        let bytes = file.versions.bytes(&items);
        let rest = file.gate().rest();
        let wanted = u32::try_from(bytes.end - bytes.start).unwrap();
        let read = self.client.read(self.handles[number], bytes.start, wanted).unwrap();
        assert!(read.eof || !read.data.is_empty(), "nothing, and not the end of the file");
        let cache = &mut self.caches[number];
        if let Some(attributes) = &read.attributes
            && !cache.stamp.seen(attributes, "READ")
        {
            cache.drop_all();
        }
        let mut data = read.data.as_slice();
        for item in items {
            if data.is_empty() && !read.eof {
                break;
            }
            let found = data.split_off(..item_bytes(item).min(data.len())).expect("as many");
            if found.len() < item_bytes(item) && !read.eof {
                break;
            }
            match file.versions.judge(item, found, floors) {
                Ok(version) => {
                    cache.seen[item] = Some(version).filter(|_| rest.is_some());
                }
                Err(wrong) => {
                    let what = format!("READ after an open ({:?})", self.trust);
                    self.workload.fail(number, &wrong, &what, &cache.stamp.history());
                }
            }
        }
        if rest != file.gate().rest() {
            cache.drop_all();
        }
        count(&self.workload.done.reads);
    }

    /// One WRITE of anything from a byte to as much as the server takes at once.
    fn write(&mut self, number: usize) {
        let kinds = [Kind::Cells, Kind::Plain, Kind::Plain, Kind::Tail];
        let Some(owned) = self.workload.files[number].own(&kinds, &mut self.random) else { return };
        let items = part(&owned.items, &mut self.random);
        self.write_items(number, items);
    }

    /// The longest WRITE while another client does the same to another part of the file, of which
    /// something is cached here.
    fn write_together(&mut self) {
        let number = self.workload.file_to_meet_at();
        let file = &self.workload.files[number];
        self.open_and_read(number);
        let floors = file.versions.floors();
        for first in file.first_items(Kind::Plain) {
            self.read(number, first..first + 8, &floors);
        }
        let Some(owned) = file.own(&[Kind::Plain], &mut self.random) else { return };
        self.workload.meet();
        self.write_items(number, owned.items.clone());
        drop(owned);
        self.open_and_read(number);
    }

    /// Writes items of a region that this client owns.
    fn write_items(&mut self, number: usize, mut items: Range<usize>) {
        let file = &self.workload.files[number];
        let cells = items.start < CELLS;
        items.end = items.end.min(items.start + if cells { 1 } else { self.workload.write_units });
        let gate = file.gate().remote();
        let data = file.versions.begin_writing(&items);
        let offset = file.versions.position(items.start);
        let stable = self.random.one_of(&STABLE_HOWS);
        self.workload.note(number, &items, &format!("WRITE {stable:?}"));
        let reply = self.client.write_stable(self.handles[number], offset, &data, stable);
        let done = ok(reply);
        assert_eq!(usize::try_from(done.count).unwrap(), data.len(), "a short WRITE");
        file.versions.acknowledge(&items);
        drop(gate);
        let cache = &mut self.caches[number];
        cache.change(&done.wcc, self.trust, "WRITE", || {
            items.clone().map(|item| (item, file.versions.newest(item))).collect()
        });
        self.workload.note(number, &items, "written");
        count(&self.workload.done.writes);
    }

    fn commit(&mut self, number: usize) {
        let gate = self.workload.files[number].gate().remote();
        let done = ok(self.client.commit(self.handles[number]));
        drop(gate);
        self.caches[number].change(&done.wcc, Trust::Pairs, "COMMIT", Vec::new);
    }

    /// Cuts or extends the file within its tail.
    fn cut(&mut self, number: usize) {
        let file = &self.workload.files[number];
        let Some(owned) = file.own(&[Kind::Tail], &mut self.random) else { return };
        let first = owned.items.start + self.random.index(owned.items.len());
        let holes = first..owned.items.end;
        let gate = file.gate().remote();
        file.versions.begin_cutting(&holes);
        self.workload.note(number, &holes, "SETATTR of the size");
        let len = file.versions.position(first);
        let done = ok(self.client.setattr(self.handles[number], size(len)));
        file.versions.acknowledge(&holes);
        drop(gate);
        self.caches[number].change(&done.wcc, Trust::Pairs, "SETATTR of the size", || {
            holes.clone().map(|item| (item, file.versions.newest(item))).collect()
        });
        self.workload.note(number, &holes, "cut");
    }

    fn change_mode(&mut self, number: usize) {
        let gate = self.workload.files[number].gate().remote();
        let bits = self.random.one_of(&[0o666, 0o777]);
        let done = ok(self.client.setattr(self.handles[number], mode(bits)));
        drop(gate);
        self.caches[number].change(&done.wcc, Trust::Pairs, "SETATTR of the mode", Vec::new);
    }

    /// Makes another name of a file, which changes its ctime, and opens the file before that name
    /// goes again: the change must not hide one of others.
    fn link(&mut self, number: usize) {
        self.links_made += 1;
        let name = format!("{}-{}", self.client.next_xid, self.links_made);
        let gate = self.workload.files[number].gate().remote();
        let done = ok(self.client.link(self.handles[number], self.links, name.as_bytes()));
        if let Some(attributes) = &done.file_attributes
            && !self.caches[number].stamp.seen(attributes, "LINK")
        {
            self.caches[number].drop_all();
        }
        self.open_and_read(number);
        ok(self.client.remove(self.links, name.as_bytes()));
        drop(gate);
    }
}

impl Cache {
    fn drop_all(&mut self) {
        self.seen.fill(None);
    }

    /// Takes the reply to an own change, which left `items` at these versions.
    fn change(
        &mut self,
        wcc: &WccData,
        trust: Trust,
        how: &str,
        items: impl FnOnce() -> Vec<(usize, u32)>,
    ) {
        match self.stamp.changed(wcc, trust, how) {
            Change::Foreign => self.drop_all(),
            Change::Own => {
                for (item, version) in items() {
                    self.seen[item] = Some(version);
                }
            }
        }
    }
}
