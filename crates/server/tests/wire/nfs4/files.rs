//! Data and attributes of files.

use std::os::unix::fs::PermissionsExt;

use proto::nfs4::*;
use proto::xdr::{Decode, Encode, Reader, Writer};

use spillway_server::counters::Counter;

use super::client::{ALL_VERSIONS, Operations, Results, Session, compound, open_args};
use crate::client::Ids;
use crate::fixture::{Fixture, Mounted, is_root, set_mode};

fn read_data(results: &mut Results) -> Reply<(bool, Vec<u8>)> {
    results.next_with(OperationCode::Read, |r| {
        let ok = ReadOk::decode(r).unwrap();
        (ok.eof, ok.data.to_vec())
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect()
}

#[test]
fn a_write_with_operations_behind_it_is_received_as_in_version_3() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let before = fixture.counter(Counter::PayloadBytes);
    for len in [1, 3, 4096, 100_001, 1 << 20] {
        let data = pattern(len);
        let args = WriteArgs { stateid, offset: 4096, stable: StableHow::FileSync, data: &data };
        let write = Operations::new().at(file).op(OperationCode::Write, &args);
        let mut results = session.ok(&write.getattr(&[attribute::SIZE]));
        let written: WriteOk =
            results.skip(&[OperationCode::Putfh]).next(OperationCode::Write).unwrap();
        assert_eq!(usize::try_from(written.count).unwrap(), len);
        assert_eq!(written.committed, StableHow::FileSync);
        let size = results
            .next_with(OperationCode::Getattr, |r| Attributes::decode(r).unwrap().size.unwrap());
        assert_eq!(size, Ok(4096 + len as u64));
        assert_eq!(std::fs::read(fixture.exported("file")).unwrap()[4096..], data);
        std::fs::write(fixture.exported("file"), b"").unwrap();
    }
    let apart = fixture.counter(Counter::PayloadBytes) - before;
    assert_eq!(apart, 1 + 3 + 4096 + 100_001 + (1 << 20), "the data was received apart");
}

#[test]
fn a_local_change_of_a_warm_name_is_seen_by_the_next_lookup() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let local = |name: &str| fixture.exported(name);
    std::fs::write(local("name"), "").unwrap();
    let mut find = |name: &[u8]| {
        let call = Operations::new().at(export).lookup(name).getfh();
        let mut results = session.call(&call.getattr(&[attribute::SIZE]));
        let found = results.skip(&[OperationCode::Putfh]).next::<()>(OperationCode::Lookup);
        found.map(|()| {
            let handle = results.handle();
            let size = |r: &mut Reader<'_>| Attributes::decode(r).unwrap().size.unwrap();
            (handle, results.next_with(OperationCode::Getattr, size).unwrap())
        })
    };
    for (round, pause) in [1100, 0, 1100, 0].into_iter().enumerate() {
        std::thread::sleep(std::time::Duration::from_millis(pause));
        let first = find(b"name").unwrap().0;
        assert_eq!(find(b"name").unwrap().0, first);
        std::fs::write(local("name"), vec![b'x'; round + 1]).unwrap();
        assert_eq!(find(b"name"), Ok((first, round as u64 + 1)));
        std::fs::write(local("new"), b"").unwrap();
        std::fs::rename(local("new"), local("name")).unwrap();
        let second = find(b"name").unwrap().0;
        assert_ne!(second, first);
        std::fs::rename(local("name"), local("away")).unwrap();
        assert_eq!(find(b"name"), Err(Status::Noent));
        assert_eq!(find(b"away").unwrap().0, second);
        std::fs::remove_file(local("away")).unwrap();
        assert_eq!(find(b"away"), Err(Status::Noent));
        std::fs::write(local("name"), b"").unwrap();
        assert_ne!(find(b"name").unwrap().0, second);
    }
}

#[test]
fn a_second_write_of_a_compound_is_written_too() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let write = |ops: Operations, offset, data: &[u8]| {
        let stable = StableHow::Unstable;
        ops.op(OperationCode::Write, &WriteArgs { stateid, offset, stable, data })
    };
    session.ok(&write(write(Operations::new().at(file), 0, b"one"), 3, b"two"));
    let commit = CommitArgs { offset: 0, count: 0 };
    session.ok(&Operations::new().at(file).op(OperationCode::Commit, &commit));
    assert_eq!(std::fs::read(fixture.exported("file")).unwrap(), b"onetwo");
}

#[test]
fn a_read_with_operations_behind_it_carries_its_data() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let data = pattern(300_003);
    std::fs::write(fixture.exported("file"), &data).unwrap();
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    // With and without padding.
    for (count, spliced) in [(5_u32, 0), (4096, 0), (65_537, 1), (300_003, 1)] {
        let before = fixture.counter(Counter::ReadsSpliced);
        let read = ReadArgs { stateid, offset: 0, count };
        let call = Operations::new().at(file).op(OperationCode::Read, &read);
        let (_, alone) = read_data(session.ok(&call).skip(&[OperationCode::Putfh])).unwrap();
        assert!(alone == data[..usize::try_from(count).unwrap()], "{count} bytes");
        assert_eq!(fixture.counter(Counter::ReadsSpliced) - before, spliced, "{count} bytes");
        let mut results = session.ok(&call.getattr(&[attribute::SIZE]));
        let (eof, read) = read_data(results.skip(&[OperationCode::Putfh])).unwrap();
        assert_eq!(eof, count == 300_003);
        assert!(read == data[..usize::try_from(count).unwrap()], "{count} bytes");
        let size = results
            .next_with(OperationCode::Getattr, |r| Attributes::decode(r).unwrap().size.unwrap());
        assert_eq!(size, Ok(300_003));
        assert!(results.rest().is_empty());
        assert_eq!(fixture.counter(Counter::ReadsSpliced) - before, spliced, "copied");
    }
}

#[test]
fn a_read_returns_the_data_from_before_the_operations_behind_it() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let data = pattern(300_003);
    std::fs::write(fixture.exported("file"), &data).unwrap();
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let read = ReadArgs { stateid, offset: 0, count: 65_536 };
    let size = 1000_u64.to_be_bytes();
    let attributes = RawAttributes { bitmap: Bitmap::of(&[attribute::SIZE]), values: &size };
    let cut = SetattrArgs { stateid, attributes };
    let call = Operations::new().at(file).op(OperationCode::Read, &read);
    let mut results = session.ok(&call.op(OperationCode::Setattr, &cut));
    let (_, read) = read_data(results.skip(&[OperationCode::Putfh])).unwrap();
    assert!(read == data[..65_536]);
    assert!(std::fs::read(fixture.exported("file")).unwrap() == data[..1000]);
}

#[test]
fn late_writes_are_counted_as_in_version_3() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    for (offset, late) in [(0, 0), (100, 0), (300, 0), (400, 0), (200, 1)] {
        let stable = StableHow::Unstable;
        let args = WriteArgs { stateid, offset, stable, data: &[1; 100] };
        let write = Operations::new().at(file).op(OperationCode::Write, &args);
        session.ok(&write.getattr(&[attribute::SIZE]));
        assert_eq!(fixture.counter(Counter::WritesOutOfOrder), late, "at {offset}");
    }
}

#[test]
fn operations_that_need_memory_end_a_compound_that_holds_some() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let data = pattern(100_000);
    std::fs::write(fixture.exported("file"), &data).unwrap();
    std::os::unix::fs::symlink("t".repeat(1000), fixture.exported("link")).unwrap();
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let read = ReadArgs { stateid, offset: 0, count: 50_000 };
    let list = ReaddirArgs {
        cookie: 0,
        verifier: Verifier([0; 8]),
        dir_bytes: 4096,
        bytes_max: 4096,
        wanted: Bitmap::EMPTY,
    };
    let write = WriteArgs { stateid, offset: 0, stable: StableHow::FileSync, data: b"new" };
    let holding = || Operations::new().at(file).op(OperationCode::Read, &read).at(export);
    let needing = [
        (holding().at(file).op(OperationCode::Read, &read), OperationCode::Read),
        (holding().op(OperationCode::Readdir, &list), OperationCode::Readdir),
        (holding().lookup(b"link").op(OperationCode::Readlink, &()), OperationCode::Readlink),
        (holding().at(file).op(OperationCode::Write, &write), OperationCode::Write),
    ];
    for (call, last) in needing {
        let mut results = session.call(&call);
        let (_, first) = read_data(results.skip(&[OperationCode::Putfh])).unwrap();
        assert!(first == data[..50_000]);
        let between = &call.codes()[2..call.codes().len() - 1];
        assert_eq!(results.skip(between).next::<()>(last), Err(Status::RepTooBig), "{last:?}");
    }
    // A listing holds memory, too.
    let call = Operations::new().at(export).op(OperationCode::Readdir, &list).at(file);
    let results = session.call(&call.op(OperationCode::Read, &read));
    assert_eq!(results.status, Err(Status::RepTooBig));
    assert!(std::fs::read(fixture.exported("file")).unwrap() == data, "nothing was written");
}

#[test]
fn attributes_come_back_as_they_were_set() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let (file, stateid) = session.open(export, b"file");
    let time = Time { seconds: -5, nseconds: 7 };
    let set = Attributes {
        mode: Some(0o640),
        size: Some(9),
        time_modify_set: Some(SetTime::ToClientTime(time)),
        ..Attributes::default()
    };
    let mut w = Writer::new();
    stateid.encode(&mut w);
    set.encode(&mut w);
    let args = Encoded(w.into_vec());
    let wanted = [attribute::MODE, attribute::SIZE, attribute::TIME_MODIFY, attribute::CHANGE];
    let call = Operations::new().at(file).getattr(&wanted).op(OperationCode::Setattr, &args);
    let mut results = session.ok(&call.getattr(&wanted));
    results.skip(&[OperationCode::Putfh]);
    let attributes = |results: &mut Results| {
        let decode = |r: &mut proto::xdr::Reader<'_>| {
            let a = Attributes::decode(r).unwrap();
            (a.mode.unwrap(), a.size.unwrap(), a.time_modify.unwrap(), a.change.unwrap())
        };
        results.next_with(OperationCode::Getattr, decode).unwrap()
    };
    let before = attributes(&mut results);
    let done: Bitmap = results.next(OperationCode::Setattr).unwrap();
    assert_eq!(done, set.present());
    let after = attributes(&mut results);
    assert_eq!((after.0, after.1, after.2), (0o640, 9, time));
    assert_ne!(after.3, before.3);
}

#[test]
fn only_attributes_that_exist_can_be_set() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    for (bit, status) in [
        (attribute::FILEID, Status::Inval),
        (12, Status::Attrnotsupp),
        (Bitmap::UNKNOWN, Status::Attrnotsupp),
    ] {
        let bitmap = Bitmap::of(&[bit]);
        let attributes = RawAttributes { bitmap, values: &[0; 8] };
        let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attributes };
        let mut results =
            session.call(&Operations::new().at(export).op(OperationCode::Setattr, &args));
        results.skip(&[OperationCode::Putfh]);
        assert_eq!(results.next::<()>(OperationCode::Setattr), Err(status), "attribute {bit}");
        assert_eq!(results.rest(), [0; 4], "no attribute was set");
    }
}

#[test]
fn operations_on_data_name_the_type_of_what_is_no_regular_file() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::of(&fixture, b"client", 2);
    let export = session.export();
    let (file, _) = session.open(export, b"file");
    std::fs::create_dir(fixture.exported("directory")).unwrap();
    std::os::unix::fs::symlink("file", fixture.exported("link")).unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o666));
    let pipe = fixture.exported("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, pipe, kind, mode, 0).unwrap();
    let stateid = Stateid::ANONYMOUS;
    let read = ReadArgs { stateid, offset: 0, count: 1 };
    let write = WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: b"x" };
    let commit = CommitArgs { offset: 0, count: 0 };
    let (range, owner) = (LockRange { offset: 0, length: 1 }, b"owner");
    let owner = LockOwner { client: ClientId(0), owner };
    let lock = LocktArgs { kind: LockType::Write, range, owner };
    let seek = SeekArgs { stateid, offset: 0, what: Content::Data.code() };
    let allocate = AllocateArgs { stateid, offset: 0, length: 1 };
    let clone = CloneArgs {
        source_stateid: stateid,
        destination_stateid: stateid,
        source_offset: 0,
        destination_offset: 0,
        count: 0,
    };
    let copy =
        CopyArgs { range: clone, consecutive: true, synchronous: true, is_between_servers: false };
    for (name, status) in
        [("directory", Status::Isdir), ("link", Status::Symlink), ("pipe", Status::WrongType)]
    {
        let find = Operations::new().at(export).lookup(name.as_bytes()).getfh();
        let mut found = session.ok(&find);
        let object = found.skip(&[OperationCode::Putfh, OperationCode::Lookup]).handle();
        let at = || Operations::new().at(object);
        let ends = |from, to| Operations::new().at(from).op(OperationCode::Savefh, &()).at(to);
        for (call, expected) in [
            (at().op(OperationCode::Read, &read), status),
            (at().op(OperationCode::Write, &write), status),
            (at().op(OperationCode::Commit, &commit), status),
            (at().op(OperationCode::Lockt, &lock), status),
            (at().op(OperationCode::Seek, &seek), Status::WrongType),
            (at().op(OperationCode::Allocate, &allocate), Status::WrongType),
            (at().op(OperationCode::Deallocate, &allocate), Status::WrongType),
            (ends(object, file).op(OperationCode::Copy, &copy), Status::WrongType),
            (ends(file, object).op(OperationCode::Copy, &copy), Status::WrongType),
            (ends(object, file).op(OperationCode::Clone, &clone), Status::WrongType),
            (ends(file, object).op(OperationCode::Clone, &clone), Status::WrongType),
        ] {
            let refused = session.call(&call).status;
            assert_eq!(refused, Err(expected), "{name}: {:?}", call.codes());
        }
    }
}

/// The values of attributes, as arguments have them.
fn values(set: &Attributes<'_>) -> Vec<u8> {
    let mut encoded = Writer::new();
    set.encode(&mut encoded);
    let mut reader = Reader::new(encoded.as_slice());
    RawAttributes::decode(&mut reader).unwrap().values.to_vec()
}

#[test]
fn attrset_has_what_a_new_object_was_given() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    set_mode(&fixture.exported(""), 0o777);
    session.client.ids = Some(Ids::user(1001));
    let time = SetTime::ToClientTime(Time { seconds: 5, nseconds: 7 });
    let given = |owner, group| Attributes {
        mode: Some(0o640),
        owner: Some(Principal::Id(owner)),
        owner_group: Some(Principal::Id(group)),
        time_modify_set: Some(time),
        ..Attributes::default()
    };
    let (owner, group) = (attribute::OWNER, attribute::OWNER_GROUP);
    let of_link = [attribute::MODE, attribute::TIME_MODIFY_SET];
    let cases: [(&[u8], CreateKind<'_>, _, &[u32]); 4] = [
        (b"own", CreateKind::Directory, given(1001, 1001), &[]),
        (b"others", CreateKind::Directory, given(1002, 1001), &[owner]),
        (b"nothing", CreateKind::Fifo, given(1002, 1002), &[owner, group]),
        (b"link", CreateKind::Symlink(b"to"), given(1001, 1001), &of_link),
    ];
    for (name, kind, set, ignored) in cases {
        let values = values(&set);
        let attributes = RawAttributes { bitmap: set.present(), values: &values };
        let args = CreateArgs { kind, name, attributes };
        let call = Operations::new().at(export).op(OperationCode::Create, &args);
        let mut results = session.ok(&call);
        let made: CreateOk =
            results.skip(&[OperationCode::Putfh]).next(OperationCode::Create).unwrap();
        let wanted = set.present().difference(Bitmap::of(ignored));
        assert_eq!(made.attributes_set, wanted, "{}", name.escape_ascii());
    }
    let set = given(1002, 1001);
    let values = values(&set);
    let raw = RawAttributes { bitmap: set.present(), values: &values };
    let args = open_args(ShareAccess::Both, OpenHow::Guarded(raw), OpenClaim::Null(b"file"));
    let mut results = session.ok(&Operations::new().at(export).op(OperationCode::Open, &args));
    let opened: OpenOk = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
    assert_eq!(opened.attributes_set, set.present().difference(Bitmap::of(&[owner])));
}

/// RFC 8881 §18.30.3.
#[test]
fn attrsset_has_what_a_setattr_did_before_it_failed() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    set_mode(&fixture.exported(""), 0o777);
    session.client.ids = Some(Ids::user(1001));
    let (file, stateid) = session.open(export, b"file");
    let set = Attributes {
        size: Some(3),
        mode: Some(0o600),
        owner: Some(Principal::Id(1002)),
        ..Attributes::default()
    };
    let values = values(&set);
    let attributes = RawAttributes { bitmap: set.present(), values: &values };
    let args = SetattrArgs { stateid, attributes };
    let mut results = session.call(&Operations::new().at(file).op(OperationCode::Setattr, &args));
    let status = results.skip(&[OperationCode::Putfh]).next::<()>(OperationCode::Setattr);
    let done: Bitmap = proto::xdr::decode_all(results.rest()).unwrap();
    assert_eq!((status, done), (Err(Status::Perm), Bitmap::of(&[attribute::SIZE])));
    let shown = fixture.exported("file").metadata().unwrap();
    assert_eq!((shown.len(), shown.permissions().mode() & 0o777), (3, 0o644));
}

/// `SETATTR4res` is no union: `attrsset` follows every status.
#[test]
fn a_setattr_that_is_refused_before_it_begins_has_set_nothing() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let attributes = RawAttributes { bitmap: Bitmap::EMPTY, values: &[] };
    let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attributes };
    let setattr = Operations::new().op(OperationCode::Setattr, &args);
    let mut results = compound(&mut session.client, 1, &setattr);
    let status = results.next::<()>(OperationCode::Setattr);
    assert_eq!((status, results.rest()), (Err(Status::OpNotInSession), &[0; 4][..]));

    let cut_off = Operations::new().root().op(OperationCode::Setattr, &Encoded(vec![0; 8]));
    let mut results = session.call(&cut_off);
    let status = results.skip(&[OperationCode::Putrootfh]).next::<()>(OperationCode::Setattr);
    assert_eq!((status, results.rest()), (Err(Status::Badxdr), &[0; 4][..]));
}

#[test]
fn verify_compares_attributes() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let is = Attributes { file_type: Some(FileType::Directory), ..Attributes::default() };
    let is_not = Attributes { file_type: Some(FileType::Regular), ..Attributes::default() };
    let mut status = |operation, attributes: &Attributes<'_>| {
        let call = Operations::new().at(export).op(operation, attributes);
        session.call(&call).skip(&[OperationCode::Putfh]).next::<()>(operation)
    };
    assert_eq!(status(OperationCode::Verify, &is), Ok(()));
    assert_eq!(status(OperationCode::Verify, &is_not), Err(Status::NotSame));
    assert_eq!(status(OperationCode::Nverify, &is), Err(Status::Same));
    assert_eq!(status(OperationCode::Nverify, &is_not), Ok(()));
}

#[test]
fn names_are_made_moved_and_removed() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    // An ordinary user needs the permission.
    let mode = 0o700_u32.to_be_bytes();
    let attributes = RawAttributes { bitmap: Bitmap::of(&[attribute::MODE]), values: &mode };
    let make = |kind, name| CreateArgs { kind, name, attributes };
    let at = || Operations::new().at(export);
    session.ok(&at().op(OperationCode::Create, &make(CreateKind::Directory, b"dir")).getfh());
    session.ok(&at().op(OperationCode::Create, &make(CreateKind::Symlink(b"to"), b"link")));
    let mut results = session.ok(&at().lookup(b"link").op(OperationCode::Readlink, &()));
    results.skip(&[OperationCode::Putfh, OperationCode::Lookup]);
    let target = results
        .next_with(OperationCode::Readlink, |r| ReadlinkOk::decode(r).unwrap().target.to_vec());
    assert_eq!(target, Ok(b"to".to_vec()));

    let rename = RenameArgs { old: b"link", new: b"moved" };
    let save = |ops: Operations| ops.op(OperationCode::Savefh, &());
    let moved = save(at()).lookup(b"dir").op(OperationCode::Rename, &rename);
    let mut results = session.ok(&moved);
    results.skip(&[OperationCode::Putfh, OperationCode::Savefh, OperationCode::Lookup]);
    let changed: RenameOk = results.next(OperationCode::Rename).unwrap();
    assert!(changed.source.atomic && changed.source.after > changed.source.before);
    assert!(fixture.exported("dir/moved").symlink_metadata().is_ok());

    let remove = |name| NameArgs { name };
    let mut results = session.call(&at().op(OperationCode::Remove, &remove(b"dir")));
    results.skip(&[OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Remove), Err(Status::Notempty));
    session.ok(&at().lookup(b"dir").op(OperationCode::Remove, &remove(b"moved")));
    session.ok(&at().op(OperationCode::Remove, &remove(b"dir")));
    assert!(!fixture.exported("dir").exists());

    for (name, status) in [
        (&b""[..], Status::Inval),
        (b"..", Status::Badname),
        (b"a/b", Status::Badchar),
        (&[b'x'; 300], Status::Nametoolong),
        (&[b'x'; 4096], Status::Nametoolong),
    ] {
        let mut results = session.call(&at().lookup(name));
        results.skip(&[OperationCode::Putfh]);
        assert_eq!(results.next::<()>(OperationCode::Lookup), Err(status), "{name:?}");
    }
}

/// The status of a listing from its start, which has no names, and whether it ends there.
fn list_nothing(session: &mut Session, dir: FileHandle, bytes_max: u32) -> Reply<bool> {
    let args = ReaddirArgs {
        cookie: 0,
        verifier: Verifier::default(),
        dir_bytes: 0,
        bytes_max,
        wanted: Bitmap::EMPTY,
    };
    let mut results = session.call(&Operations::new().at(dir).op(OperationCode::Readdir, &args));
    results.skip(&[OperationCode::Putfh]).next_with(OperationCode::Readdir, |r| {
        let ok = ReaddirOk::decode(r).unwrap();
        assert_eq!(ok.entries.iter().count(), 0);
        ok.eof
    })
}

#[test]
fn a_listing_shows_why_an_entry_has_no_attributes() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    let dir = fixture.exported("dir");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("file"), b"").unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o744)).unwrap();
    let mut session = Session::new(&fixture);
    session.client.ids = Some(Ids::user(1000));
    let export = session.export();
    let args = ReaddirArgs {
        cookie: 0,
        verifier: Verifier::default(),
        dir_bytes: 0,
        bytes_max: 4096,
        wanted: Bitmap::of(&[attribute::RDATTR_ERROR, attribute::SIZE]),
    };
    let at = Operations::new().at(export).lookup(b"dir");
    let mut results = session.ok(&at.clone().op(OperationCode::Readdir, &args));
    let listed = results.skip(&at.codes()).next_with(OperationCode::Readdir, |r| {
        let ok = ReaddirOk::decode(r).unwrap();
        let entry = ok.entries.iter().next().unwrap();
        (entry.name.to_vec(), entry.attributes.rdattr_error, entry.attributes.size)
    });
    // As LOOKUP finds it.
    assert_eq!(listed, Ok((b"file".to_vec(), Some(Status::Access.code()), None)));
    let mut results = session.call(&at.lookup(b"file"));
    assert_eq!(
        results
            .skip(&[OperationCode::Putfh, OperationCode::Lookup])
            .next::<()>(OperationCode::Lookup),
        Err(Status::Access)
    );
}

#[test]
fn a_listing_without_room_for_a_name_is_too_small() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    // `.` and `..`, which version 4 does not list, may come first or last.
    assert_eq!(list_nothing(&mut session, export, 128), Ok(true));
    for first in b'a'..=b'h' {
        let name = char::from(first).to_string().repeat(200);
        std::fs::write(fixture.exported(&name), b"").unwrap();
        let listed = list_nothing(&mut session, export, 128);
        assert_eq!(listed, Err(Status::Toosmall), "{name}");
        std::fs::remove_file(fixture.exported(&name)).unwrap();
    }
}

/// Bytes that are encoded already.
struct Encoded(Vec<u8>);

impl Encode for Encoded {
    fn encode(&self, w: &mut Writer) {
        w.array(&self.0);
    }
}

#[test]
fn space_of_a_removed_file_is_free_when_its_last_open_is_closed() {
    let over = Fixture::over(ALL_VERSIONS, |dir| Mounted::tmpfs_export(dir, 2 << 10));
    let Some((fixture, _mount)) = over else { return };
    let mut session = Session::new(&fixture);
    let export = session.export();
    let (other, other_stateid) = session.open(export, b"other");
    let free = || rustix::fs::statvfs(fixture.exported("")).unwrap().f_bfree;
    let write = |session: &mut Session, file, stateid, blocks: u64| {
        let data = vec![7; 4096];
        (0..blocks).find_map(|block| {
            let (offset, stable) = (block * 4096, StableHow::Unstable);
            let args = WriteArgs { stateid, offset, stable, data: &data };
            let mut results =
                session.call(&Operations::new().at(file).op(OperationCode::Write, &args));
            results.skip(&[OperationCode::Putfh]).next::<WriteOk>(OperationCode::Write).err()
        })
    };
    // Several times, because the server also looks for removed files once a second.
    for round in 0..5 {
        let (file, stateid) = session.open(export, b"file");
        let blocks = free();
        assert_eq!(write(&mut session, file, stateid, blocks), None);
        session.ok(&Operations::new()
            .at(export)
            .op(OperationCode::Remove, &NameArgs { name: b"file" }));
        assert_eq!(write(&mut session, other, other_stateid, 1), Some(Status::Nospc), "{round}");
        let close = CloseArgs { seqid: 0, stateid };
        session.ok(&Operations::new().at(file).op(OperationCode::Close, &close));
        assert!(free() >= blocks, "{} of {blocks} blocks are free in round {round}", free());
        assert_eq!(write(&mut session, other, other_stateid, 1), None, "{round}");
        std::fs::write(fixture.exported("other"), b"").unwrap();
    }
}
