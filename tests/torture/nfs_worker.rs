//! A client with one connection that reads anything and writes what it owns.

use std::ops::Range;

use proto::nfs3::*;
use proto::oncrpc::{AcceptStat, ReplyHeader};
use proto::xdr::{Encode, decode_all};

use crate::client::{Client, encoded, ok, split};
use crate::layout::Owned;
use crate::oracle::Look;
use crate::random::Random;
use crate::workload::{Workload, anywhere, count, transfer_bytes};

/// Calls of one stream at most, so that a worker does other things too.
const STREAM_CALLS_MAX: usize = 64;
/// Calls sent before the first reply is read.
const BURST_CALLS_MAX: usize = 12;

const STABLE_HOWS: [StableHow; 4] =
    [StableHow::Unstable, StableHow::Unstable, StableHow::DataSync, StableHow::FileSync];

pub(crate) struct NfsWorker<'a> {
    workload: &'a Workload,
    client: Client,
    files: Vec<FileHandle>,
    random: Random,
}

/// Units that a WRITE was sent for.
struct SentWrite {
    xid: u32,
    units: Range<usize>,
    bytes: usize,
    stable: StableHow,
}

impl<'a> NfsWorker<'a> {
    pub(crate) fn new(workload: &'a Workload, random: Random) -> Self {
        let (mut client, root) = workload.server.mounted();
        let find = |name: &String| client.find(root, name);
        let files = workload.layouts.iter().map(|layout| &layout.name).map(find).collect();
        Self { workload, client, files, random }
    }

    pub(crate) fn run(&mut self) {
        while self.workload.goes_on() {
            let file = self.workload.any_file(&mut self.random);
            let end = self.workload.layouts[file].oracle.end();
            let (offset, bytes) = anywhere(end, &mut self.random);
            // Streams are what a quiet file is good for.
            let quiet = self.workload.is_quiet(file);
            let actions = if quiet { 5 } else { 10 };
            match self.random.index(actions) {
                0..=2 if quiet && self.random.percent(70) => self.read_stream(file, 0, bytes),
                0..=2 => drop(self.read(file, offset, bytes)),
                3 if self.random.percent(50) => self.read_stream(file, 0, bytes),
                3 => self.read_stream(file, offset, bytes),
                4 => self.read_burst(file, offset, bytes.min(1 << 16)),
                5 | 6 => self.write_once(file, bytes),
                7 => self.write_stream(file),
                8 => self.write_burst(file),
                _ => self.commit(file),
            }
        }
    }

    /// One READ; returns how many bytes came.
    fn read(&mut self, file: usize, offset: u64, bytes: usize) -> usize {
        let look = self.workload.layouts[file].oracle.look(offset, bytes);
        let xid = self.send_read(file, offset, bytes);
        let (answered, results) = self.receive();
        assert_eq!(answered, xid);
        self.check_read(file, (offset, bytes), &look, &results)
    }

    /// READs in sequence, one at a time, a while or to the end of the file.
    fn read_stream(&mut self, file: usize, from: u64, bytes: usize) {
        let mut offset = from;
        for _ in 0..STREAM_CALLS_MAX {
            let done = self.read(file, offset, bytes);
            offset += done as u64;
            if done < bytes {
                break;
            }
        }
    }

    /// READs of `bytes` from the first byte to the last.
    pub(crate) fn read_whole(&mut self, file: usize, bytes: usize) {
        let mut offset = 0;
        while offset < self.workload.layouts[file].oracle.end() {
            let done = self.read(file, offset, bytes);
            offset += done as u64;
            if done < bytes {
                break;
            }
        }
    }

    /// READs in sequence, all sent at once.
    fn read_burst(&mut self, file: usize, from: u64, bytes: usize) {
        let workload = self.workload;
        let mut sent = Vec::new();
        for i in 0..BURST_CALLS_MAX {
            let offset = from + (i * bytes) as u64;
            let look = workload.layouts[file].oracle.look(offset, bytes);
            sent.push((self.send_read(file, offset, bytes), offset, look));
        }
        while !sent.is_empty() {
            let (answered, results) = self.receive();
            let which = sent.iter().position(|(xid, ..)| *xid == answered).unwrap();
            let (_, offset, look) = sent.swap_remove(which);
            self.check_read(file, (offset, bytes), &look, &results);
        }
    }

    fn check_read(
        &self,
        file: usize,
        (offset, bytes): (u64, usize),
        look: &Look<'_>,
        results: &[u8],
    ) -> usize {
        let read = match decode_all::<ReadReply<'_>>(results).unwrap() {
            Ok(read) => read,
            Err(failure) => panic!("READ of {bytes} at {offset}: {:?}", failure.status),
        };
        let len = read.data.len();
        let described = format_args!("READ of {bytes} at {offset}");
        self.workload.judge(file, look.check(read.data), described);
        // A READ that met the end of a file that has grown since is short and not at the end; the
        // client asks for the rest. Without a byte it would ask for ever.
        if read.eof || len < bytes {
            self.workload.judge(file, look.check_eof(len), described);
        }
        assert!(read.eof || len > 0, "{described}: nothing, and not the end of the file");
        count(&self.workload.done.nfs_reads);
        len
    }

    /// One WRITE into a region, and sometimes a READ of it before anyone else may write there.
    fn write_once(&mut self, file: usize, bytes: usize) {
        let layout = &self.workload.layouts[file];
        let Some(owned) = layout.own_shared(&mut self.random) else { return };
        let units = owned.part(bytes, &mut self.random);
        let sent = self.send_write(file, units.clone());
        self.receive_writes(file, &owned, vec![sent]);
        if self.random.percent(30) {
            let start = layout.oracle.position(units.start);
            self.read(file, start, bytes);
        }
    }

    /// WRITEs in sequence, one at a time, and a COMMIT.
    fn write_stream(&mut self, file: usize) {
        let layout = &self.workload.layouts[file];
        let Some(owned) = layout.own_shared(&mut self.random) else { return };
        let bytes = transfer_bytes(&mut self.random);
        for units in owned.pieces(bytes).take(STREAM_CALLS_MAX) {
            let sent = self.send_write(file, units);
            self.receive_writes(file, &owned, vec![sent]);
        }
        self.commit(file);
    }

    /// WRITEs in sequence, all sent at once, sometimes out of order.
    fn write_burst(&mut self, file: usize) {
        let layout = &self.workload.layouts[file];
        let Some(owned) = layout.own_shared(&mut self.random) else { return };
        let bytes = transfer_bytes(&mut self.random).min(1 << 17);
        let mut pieces: Vec<_> = owned.pieces(bytes).take(BURST_CALLS_MAX).collect();
        if self.random.percent(50) {
            for i in (1..pieces.len()).rev() {
                pieces.swap(i, self.random.index(i + 1));
            }
        }
        let sent = pieces.into_iter().map(|units| self.send_write(file, units)).collect();
        self.receive_writes(file, &owned, sent);
    }

    fn commit(&mut self, file: usize) {
        let commit = ok(self.client.commit(self.files[file]));
        self.workload.check_verifier(commit.verifier);
        count(&self.workload.done.commits);
    }

    fn send_read(&mut self, file: usize, offset: u64, bytes: usize) -> u32 {
        let count = u32::try_from(bytes).unwrap();
        self.send(Procedure::Read, &ReadArgs { file: self.files[file], offset, count })
    }

    fn send_write(&mut self, file: usize, units: Range<usize>) -> SentWrite {
        let oracle = &self.workload.layouts[file].oracle;
        let data = oracle.begin_writing(&units);
        let stable = self.random.one_of(&STABLE_HOWS);
        self.workload.note_units(file, &units, format_args!("WRITE {stable:?}"));
        let args = WriteArgs {
            file: self.files[file],
            offset: oracle.position(units.start),
            count: u32::try_from(data.len()).unwrap(),
            stable,
            data: &data,
        };
        SentWrite { xid: self.send(Procedure::Write, &args), units, bytes: data.len(), stable }
    }

    fn receive_writes(&mut self, file: usize, owned: &Owned<'_>, mut sent: Vec<SentWrite>) {
        while !sent.is_empty() {
            let (answered, results) = self.receive();
            let which = sent.iter().position(|write| write.xid == answered).unwrap();
            let write = sent.swap_remove(which);
            let done = ok(decode_all::<WriteReply>(&results).unwrap());
            assert_eq!(usize::try_from(done.count).unwrap(), write.bytes, "a short WRITE");
            assert!(done.committed as u32 >= write.stable as u32, "less stable than asked for");
            self.workload.check_verifier(done.verifier);
            owned.acknowledge(write.units.clone());
            self.workload.note_units(file, &write.units, format_args!("written"));
            count(&self.workload.done.nfs_writes);
        }
    }

    fn send(&mut self, procedure: Procedure, args: &impl Encode) -> u32 {
        let xid = self.client.xid();
        let call = self.client.encode(xid, (PROGRAM, VERSION, procedure.code()), &encoded(args));
        self.client.send_record(&call);
        xid
    }

    /// The next reply, whichever call it answers.
    fn receive(&mut self) -> (u32, Vec<u8>) {
        let record = self.client.receive_record().expect("the server answers");
        let (header, results) = split(&record);
        let accepted = matches!(header, ReplyHeader::Accepted { stat: AcceptStat::Success, .. });
        assert!(accepted, "{header:?}");
        (header.xid(), results)
    }
}
