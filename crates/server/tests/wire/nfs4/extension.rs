//! SEEK, ALLOCATE, DEALLOCATE, COPY and CLONE of version 4.2.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use proto::nfs4::*;
use proto::xdr::{Decode, Encode};

use super::client::{ALL_VERSIONS, Operations, Session, open_args};
use crate::fixture::{Fixture, Mounted, is_root, set_mode};
use crate::local_file::{LocalFile, assert_same, content};
use crate::skip::skip_in_ci_too;

const BLOCK: usize = 64 << 10;
/// The time after which a COPY begins no further slice.
const COPY_TIME_MAX: Duration = Duration::from_secs(1);

/// A client with two files open.
struct Bed {
    fixture: Fixture,
    session: Session,
    source: (FileHandle, Stateid),
    target: (FileHandle, Stateid),
}

impl Bed {
    fn new() -> Self {
        Self::of(Fixture::with(ALL_VERSIONS))
    }

    fn of(fixture: Fixture) -> Self {
        let mut session = Session::of(&fixture, b"client", 2);
        let export = session.export();
        let (source, target) = (session.open(export, b"source"), session.open(export, b"target"));
        Self { fixture, session, source, target }
    }

    fn write(&self, name: &str, offset: usize, data: &[u8]) {
        let file = std::fs::OpenOptions::new().write(true).open(self.fixture.exported(name));
        file.unwrap().write_all_at(data, offset as u64).unwrap();
    }

    fn set_source_length(&self, length: u64) {
        let file = std::fs::OpenOptions::new().write(true).open(self.fixture.exported("source"));
        file.unwrap().set_len(length).unwrap();
    }

    fn contents(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.fixture.exported(name)).unwrap()
    }

    fn perform<T: for<'a> Decode<'a>>(
        &mut self,
        operation: OperationCode,
        file: FileHandle,
        args: &impl Encode,
    ) -> Reply<T> {
        let mut results = self.session.call(&Operations::new().at(file).op(operation, args));
        results.skip(&[OperationCode::Putfh]).next(operation)
    }

    fn seek(&mut self, offset: u64, what: u32) -> Reply<SeekOk> {
        let (file, stateid) = self.source;
        self.perform(OperationCode::Seek, file, &SeekArgs { stateid, offset, what })
    }

    fn allocate(&mut self, operation: OperationCode, offset: u64, length: u64) -> Reply<()> {
        let (file, stateid) = self.source;
        self.perform(operation, file, &AllocateArgs { stateid, offset, length })
    }

    fn range(&self, source_offset: u64, destination_offset: u64, count: u64) -> CloneArgs {
        CloneArgs {
            source_stateid: self.source.1,
            destination_stateid: self.target.1,
            source_offset,
            destination_offset,
            count,
        }
    }

    /// From one of the files to another, by their handles.
    fn copy(&mut self, range: CloneArgs, from: FileHandle, to: FileHandle) -> Reply<CopyOk> {
        let args =
            CopyArgs { range, consecutive: true, synchronous: true, is_between_servers: false };
        let call = Operations::new().at(from).op(OperationCode::Savefh, &()).at(to);
        let mut results = self.session.call(&call.op(OperationCode::Copy, &args));
        results.skip(&[OperationCode::Putfh, OperationCode::Savefh, OperationCode::Putfh]);
        results.next(OperationCode::Copy)
    }
}

#[test]
fn seek_finds_data_and_the_hole_at_the_end() {
    let mut bed = Bed::new();
    bed.write("source", 16 * BLOCK, &[1; BLOCK]);
    let size = 17 * BLOCK as u64;
    let found = bed.seek(0, Content::Data.code()).unwrap();
    assert!(!found.eof && found.offset <= size - BLOCK as u64, "{found:?}");
    let found = bed.seek(found.offset, Content::Hole.code()).unwrap();
    assert_eq!(found, SeekOk { eof: true, offset: size });
    assert_eq!(bed.seek(size, Content::Data.code()), Err(Status::Nxio));
    assert_eq!(bed.seek(u64::MAX, Content::Hole.code()), Err(Status::Nxio));
    assert_eq!(bed.seek(0, 7), Err(Status::UnionNotsupp));
}

#[test]
fn allocate_grows_a_file_and_deallocate_punches_a_hole() {
    let mut bed = Bed::new();
    bed.write("source", 0, &[1; 3 * BLOCK]);
    let end = 4 * BLOCK as u64;
    match bed.allocate(OperationCode::Allocate, 0, end) {
        Err(Status::Notsupp) => return skip_in_ci_too("no fallocate on this file system"),
        result => result.unwrap(),
    }
    let metadata = std::fs::metadata(bed.fixture.exported("source")).unwrap();
    assert_eq!(metadata.len(), end);
    assert!(metadata.blocks() * 512 >= end);
    match bed.allocate(OperationCode::Deallocate, BLOCK as u64, BLOCK as u64) {
        Err(Status::Notsupp) => return skip_in_ci_too("no holes on this file system"),
        result => result.unwrap(),
    }
    bed.allocate(OperationCode::Deallocate, end, end).unwrap();
    let expected = [[1; BLOCK], [0; BLOCK], [1; BLOCK], [0; BLOCK]].concat();
    assert!(bed.contents("source") == expected);
    assert_eq!(bed.allocate(OperationCode::Allocate, 0, 0), Err(Status::Inval));
    assert_eq!(bed.allocate(OperationCode::Allocate, 1, u64::MAX), Err(Status::Fbig));
}

#[test]
fn operations_that_lack_space_get_that_of_deleted_files() {
    let over = Fixture::over(ALL_VERSIONS, |dir| Mounted::tmpfs_export(dir, 2 << 10));
    let Some((fixture, _mount)) = over else { return };
    let mut bed = Bed::of(fixture);
    // More than half of the disk, so that there is room for it once.
    let length = 20 * BLOCK;
    // The server opens a file to read it, and keeps it open when another program deletes it.
    let delete = |bed: &mut Bed| {
        let (export, path) = (bed.session.export(), bed.fixture.exported("deleted"));
        std::fs::write(&path, vec![7; length]).unwrap();
        let (offset, count) = (0, 4096);
        let read = ReadArgs { stateid: Stateid::READ_BYPASS, offset, count };
        let call = Operations::new().at(export).lookup(b"deleted");
        bed.session.ok(&call.op(OperationCode::Read, &read));
        std::fs::remove_file(&path).unwrap();
    };
    delete(&mut bed);
    bed.allocate(OperationCode::Allocate, 0, length as u64).unwrap();
    bed.allocate(OperationCode::Deallocate, 0, length as u64).unwrap();
    // A hole takes no space, but its copy does.
    bed.write("source", 0, &[7; BLOCK]);
    delete(&mut bed);
    let range = bed.range(0, 19 * BLOCK as u64, BLOCK as u64);
    let filler = std::fs::File::create(bed.fixture.exported("filler")).unwrap();
    let full = (0..).find(|page| filler.write_all_at(&[7; 4096], page * 4096).is_err());
    assert!(full.is_some());
    let (source, target) = (bed.source.0, bed.target.0);
    bed.copy(range, source, target).unwrap();
}

#[test]
fn a_read_after_deallocate_has_zeros() {
    let mut bed = Bed::new();
    bed.write("source", 0, &[1; 4 * BLOCK]);
    let (file, stateid) = bed.source;
    let read = ReadArgs { stateid, offset: BLOCK as u64, count: 4096 };
    let read = Operations::new().at(file).op(OperationCode::Read, &read);
    let data = |bed: &mut Bed| {
        let mut results = bed.session.ok(&read);
        results
            .skip(&[OperationCode::Putfh])
            .next_with(OperationCode::Read, |r| ReadOk::decode(r).unwrap().data.to_vec())
    };
    assert_eq!(data(&mut bed), Ok(vec![1; 4096]));
    match bed.allocate(OperationCode::Deallocate, 0, 4 * BLOCK as u64) {
        Err(Status::Notsupp) => return skip_in_ci_too("no holes on this file system"),
        result => result.unwrap(),
    }
    assert_eq!(data(&mut bed), Ok(vec![0; 4096]));
}

#[test]
fn copy_takes_bytes_from_one_file_to_another() {
    let mut bed = Bed::new();
    let data: Vec<u8> = (0..5 * BLOCK).map(|at| u8::try_from(at % 251).unwrap()).collect();
    bed.write("source", 0, &data);
    let (source, target) = (bed.source.0, bed.target.0);
    let count = 2 * BLOCK as u64;
    let done = bed.copy(bed.range(100, 7, count), source, target).unwrap();
    assert_eq!(done.count, count);
    assert!(bed.contents("target")[7..] == data[100..100 + 2 * BLOCK]);
    // To the end of the source.
    let done = bed.copy(bed.range(BLOCK as u64, 0, 0), source, target).unwrap();
    assert_eq!(done.count, 4 * BLOCK as u64);
    assert!(bed.contents("target") == data[BLOCK..]);
    let beyond = bed.range(1, 0, data.len() as u64);
    assert_eq!(bed.copy(beyond, source, target), Err(Status::Inval));
}

#[test]
fn a_copy_is_as_stable_as_an_unstable_write() {
    let promoted = format!("{ALL_VERSIONS}    file_sync_writes = true\n");
    let mut bed = Bed::of(Fixture::with(&promoted));
    bed.write("source", 0, &[7; BLOCK]);
    let (source, target) = (bed.source.0, bed.target.0);
    for (config, committed) in
        [(&promoted[..], StableHow::FileSync), (ALL_VERSIONS, StableHow::Unstable)]
    {
        bed.fixture.reload(config);
        let done = bed.copy(bed.range(0, 0, 0), source, target).unwrap();
        assert_eq!((done.count, done.committed), (BLOCK as u64, committed));
    }
}

#[test]
fn a_copy_that_fails_midway_counts_what_is_copied() {
    // A hole takes no space, but its copy does. The third slice fails at its first byte.
    const SOURCE_BYTES: u64 = 16 << 20;
    const DISK_BYTES: u64 = 8 << 20;
    let over = Fixture::over(ALL_VERSIONS, |dir| Mounted::tmpfs_export(dir, 8 << 10));
    let Some((fixture, _mount)) = over else { return };
    let mut bed = Bed::of(fixture);
    let (source, target) = (bed.source.0, bed.target.0);
    bed.set_source_length(SOURCE_BYTES);
    let begun = Instant::now();
    let mut done = bed.copy(bed.range(0, 0, 0), source, target).unwrap().count;
    assert!(done == DISK_BYTES || begun.elapsed() >= COPY_TIME_MAX, "{done} bytes");
    let mut failed = None;
    while failed.is_none() {
        match bed.copy(bed.range(done, done, 0), source, target) {
            Ok(copied) => done += copied.count,
            Err(status) => failed = Some(status),
        }
        assert_eq!(bed.contents("target").len() as u64, done);
    }
    assert_eq!(failed, Some(Status::Nospc));
    assert_eq!(done, DISK_BYTES);
}

#[test]
fn a_copy_that_is_flushed_before_its_reply_ends_after_64_mib() {
    const FLUSHED_BYTES_MAX: u64 = 64 << 20;
    let promoted = format!("{ALL_VERSIONS}    file_sync_writes = true\n");
    // Where a flush takes no time.
    let over = Fixture::over(&promoted, |dir| Mounted::tmpfs_export(dir, 128 << 10));
    let Some((fixture, _mount)) = over else { return };
    let mut bed = Bed::of(fixture);
    bed.set_source_length(FLUSHED_BYTES_MAX + BLOCK as u64);
    let (source, target) = (bed.source.0, bed.target.0);
    let begun = Instant::now();
    let done = bed.copy(bed.range(0, 0, 0), source, target).unwrap().count;
    let is_late = done < FLUSHED_BYTES_MAX && begun.elapsed() >= COPY_TIME_MAX;
    assert!(done == FLUSHED_BYTES_MAX || is_late, "{done} bytes");
}

#[test]
fn copy_leaves_the_page_cache_of_its_source_as_it_was() {
    const FILE_BYTES: usize = 8 << 20;
    // Of pages that were in use when they were dropped.
    const REMAINS_MAX: u64 = 128 << 10;
    let data = content(1, 0, FILE_BYTES);
    for mode in ["dontcache", "direct"] {
        let config = format!("{ALL_VERSIONS}    io_cache_read = \"{mode}\"");
        let mut bed = Bed::of(Fixture::with(&config));
        bed.write("source", 0, &data);
        let local = LocalFile::open(&bed.fixture.exported("source"));
        if !local.is_on_disk() {
            return;
        }
        local.forget();
        local.forbid_read_ahead();
        local.read(1 << 20, BLOCK);
        let (before, before_bytes) = (local.residency(), local.cached_bytes());
        let (source, target) = (bed.source.0, bed.target.0);
        let mut done = 0;
        while done < FILE_BYTES as u64 {
            done += bed.copy(bed.range(done, done, 0), source, target).unwrap().count;
        }
        assert_same(&bed.contents("target"), &data, mode);
        let left = local.cached_bytes();
        assert!(left <= before_bytes + REMAINS_MAX, "{mode}: {left} bytes are cached");
        let dropped = local.dropped_pages(&before);
        assert!(dropped.is_empty(), "{mode}: of {before:?}, {dropped:?} is gone");
    }
}

#[test]
fn copy_within_a_file_needs_ranges_apart() {
    let mut bed = Bed::new();
    bed.write("source", 0, &[[1; BLOCK], [2; BLOCK]].concat());
    let (file, stateid) = bed.source;
    let within = |to, count| CloneArgs {
        source_stateid: stateid,
        destination_stateid: stateid,
        source_offset: 0,
        destination_offset: to,
        count,
    };
    let block = BLOCK as u64;
    assert_eq!(bed.copy(within(block - 1, block), file, file), Err(Status::Inval));
    assert_eq!(bed.copy(within(block, block), file, file).unwrap().count, block);
    assert!(bed.contents("source") == [1; 2 * BLOCK]);
}

#[test]
fn copy_within_a_file_needs_all_bytes_apart_when_it_copies_only_some() {
    let mut bed = Bed::new();
    // A COPY copies 4 MiB at a time.
    let part = 4 << 20;
    let data = [vec![1; part], vec![2; part], vec![3; part], vec![4; part]].concat();
    bed.write("source", 0, &data);
    let (file, stateid) = bed.source;
    let part = part as u64;
    for (source_offset, destination_offset, count) in
        [(0, part, 2 * part), (part, 0, 2 * part), (0, part, 0), (part, 0, 0)]
    {
        let (source_stateid, destination_stateid) = (stateid, stateid);
        let range = CloneArgs {
            source_stateid,
            destination_stateid,
            source_offset,
            destination_offset,
            count,
        };
        assert_eq!(bed.copy(range, file, file), Err(Status::Inval), "{range:?}");
    }
    assert!(bed.contents("source") == data);
}

#[test]
fn copies_in_opposite_directions_end() {
    let bed = Bed::new();
    let block = BLOCK as u64;
    bed.write("source", 0, &[1; BLOCK]);
    bed.write("target", 0, &[2; BLOCK]);
    let (source, target) = (bed.source, bed.target);
    let fixture = &bed.fixture;
    std::thread::scope(|scope| {
        for ((from, _), (to, _)) in [(source, target), (target, source)] {
            scope.spawn(move || {
                let mut session = Session::of(fixture, from.as_bytes(), 2);
                let export = session.export();
                let files = [b"source", b"target"].map(|name| session.open(export, name));
                let stateid = |file| files.iter().find(|(own, _)| *own == file).unwrap().1;
                let range = CloneArgs {
                    source_stateid: stateid(from),
                    destination_stateid: stateid(to),
                    source_offset: 0,
                    destination_offset: 0,
                    count: block,
                };
                let (consecutive, synchronous) = (true, false);
                let args = CopyArgs { range, consecutive, synchronous, is_between_servers: false };
                let call = Operations::new().at(from).op(OperationCode::Savefh, &()).at(to);
                let call = call.op(OperationCode::Copy, &args);
                for _ in 0..50 {
                    session.ok(&call);
                }
            });
        }
    });
    assert!(bed.contents("source") == bed.contents("target"));
}

#[test]
fn clone_shares_blocks_or_is_not_supported() {
    let mut bed = Bed::new();
    bed.write("source", 0, &[7; BLOCK]);
    let range = bed.range(0, 0, 0);
    let call = Operations::new().at(bed.source.0).op(OperationCode::Savefh, &()).at(bed.target.0);
    let mut results = bed.session.call(&call.op(OperationCode::Clone, &range));
    results.skip(&[OperationCode::Putfh, OperationCode::Savefh, OperationCode::Putfh]);
    match results.next::<()>(OperationCode::Clone) {
        Ok(()) => assert!(bed.contents("target") == [7; BLOCK]),
        status => assert_eq!(status, Err(Status::Notsupp)),
    }
}

#[test]
fn an_open_for_reading_is_no_destination() {
    let mut bed = Bed::new();
    bed.write("source", 0, &[7; BLOCK]);
    std::fs::write(bed.fixture.exported("other"), b"").unwrap();
    let export = bed.session.export();
    let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"other"));
    let call = Operations::new().at(export).op(OperationCode::Open, &args).getfh();
    let mut results = bed.session.ok(&call);
    let opened: OpenOk = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
    let other = results.handle();
    let range = CloneArgs { destination_stateid: opened.stateid, ..bed.range(0, 0, 0) };
    assert_eq!(bed.copy(range, bed.source.0, other), Err(Status::Openmode));
}

#[test]
fn a_copy_reads_with_the_rights_that_the_export_of_the_source_gives() {
    if !is_root() {
        return;
    }
    let squashed = "[[export]]\npath = \"$DIR/squashed\"\nname = \"/squashed\"\nsync = false\n";
    let fixture = Fixture::prepared(&format!("{ALL_VERSIONS}\n{squashed}"), |dir| {
        std::fs::create_dir(dir.join("squashed")).unwrap();
        for (name, mode) in [("private", 0o600), ("public", 0o666)] {
            std::fs::write(dir.join("squashed").join(name), name).unwrap();
            set_mode(&dir.join("squashed").join(name), mode);
        }
    });
    let mut bed = Bed::of(fixture);
    set_mode(&bed.fixture.exported("source"), 0o600);
    let mut find = |name: &[u8]| {
        let call = Operations::new().root().lookup(b"squashed").lookup(name).getfh();
        let mut results = bed.session.ok(&call);
        results.skip(&[OperationCode::Putrootfh, OperationCode::Lookup, OperationCode::Lookup]);
        results.handle()
    };
    let (private, public) = (find(b"private"), find(b"public"));
    let (source, target) = (bed.source.0, bed.target.0);
    let anonymous = |range| CloneArgs {
        source_stateid: Stateid::ANONYMOUS,
        destination_stateid: Stateid::ANONYMOUS,
        ..range
    };
    let range = CloneArgs { source_stateid: Stateid::ANONYMOUS, ..bed.range(0, 0, 0) };
    assert_eq!(bed.copy(range, private, target), Err(Status::Access));
    let call = Operations::new().at(private).op(OperationCode::Savefh, &()).at(target);
    let mut results = bed.session.call(&call.op(OperationCode::Clone, &range));
    results.skip(&[OperationCode::Putfh, OperationCode::Savefh, OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Clone), Err(Status::Access));
    assert_eq!(bed.contents("target"), b"");
    // The other way, root reads its own file, and writes as anyone may.
    bed.write("source", 0, b"of root");
    let range = anonymous(bed.range(0, 0, 0));
    assert_eq!(bed.copy(range, source, public).unwrap().count, 7);
    let copied = std::fs::read(bed.fixture.path("squashed/public")).unwrap();
    assert_eq!(copied, b"of root");
}

#[test]
fn version_4_1_does_not_have_them() {
    let mut bed = Bed::new();
    bed.session.minor_version = 1;
    let (file, stateid) = bed.source;
    let args = SeekArgs { stateid, offset: 0, what: 0 };
    let mut results = bed.session.call(&Operations::new().at(file).op(OperationCode::Seek, &args));
    results.skip(&[OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Illegal), Err(Status::OpIllegal));
}

#[test]
fn a_clone_to_the_end_of_an_empty_file_changes_nothing() {
    let mut bed = Bed::new();
    bed.write("target", 0, b"kept");
    let call = Operations::new().at(bed.source.0).op(OperationCode::Savefh, &()).at(bed.target.0);
    let range = bed.range(0, 0, 0);
    bed.session.ok(&call.op(OperationCode::Clone, &range));
    assert_eq!(bed.contents("target"), b"kept");
}
