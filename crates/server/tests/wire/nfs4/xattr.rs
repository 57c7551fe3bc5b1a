//! Extended attributes, and the other attributes of version 4.2.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proto::nfs4::*;
use proto::xdr::{Decode, Encode, Writer};
use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::client::{ALL_VERSIONS, Operations, Results, Session, open_args};
use crate::client::Ids;
use crate::fixture::{Fixture, Mounted, is_root, set_mode};
use crate::skip::skip_in_ci_too;

/// A client with a file.
struct Bed {
    fixture: Fixture,
    session: Session,
    file: FileHandle,
}

impl Bed {
    fn new() -> Self {
        Self::of(Fixture::with(ALL_VERSIONS))
    }

    fn of(fixture: Fixture) -> Self {
        let mut session = Session::of(&fixture, b"client", 2);
        let export = session.export();
        let (file, _) = session.open(export, b"file");
        Self { fixture, session, file }
    }

    fn perform(&mut self, operation: OperationCode, args: &impl Encode) -> Results {
        let mut results = self.session.call(&Operations::new().at(self.file).op(operation, args));
        results.skip(&[OperationCode::Putfh]);
        results
    }

    fn set(&mut self, option: SetxattrOption, name: &[u8], value: &[u8]) -> Reply<ChangeInfo> {
        let args = SetxattrArgs { option, name, value };
        let changed = self.perform(OperationCode::Setxattr, &args);
        { changed }.next::<ChangedOk>(OperationCode::Setxattr).map(|done| done.change)
    }

    fn get(&mut self, name: &[u8]) -> Reply<Vec<u8>> {
        let mut found = self.perform(OperationCode::Getxattr, &NameArgs { name });
        found.next_with(OperationCode::Getxattr, |r| GetxattrOk::decode(r).unwrap().value.to_vec())
    }

    fn remove(&mut self, name: &[u8]) -> Reply<ChangeInfo> {
        let mut removed = self.perform(OperationCode::Removexattr, &NameArgs { name });
        removed.next::<ChangedOk>(OperationCode::Removexattr).map(|done| done.change)
    }

    /// Names, the cookie behind them, and whether they are the last.
    fn list(&mut self, cookie: u64, bytes_max: u32) -> Reply<(Vec<Vec<u8>>, u64, bool)> {
        let args = ListxattrsArgs { cookie, bytes_max };
        let mut listed = self.perform(OperationCode::Listxattrs, &args);
        listed.next_with(OperationCode::Listxattrs, |r| {
            let ListxattrsOk { cookie, names, eof } = ListxattrsOk::decode(r).unwrap();
            (names.iter().map(|name| name.name.to_vec()).collect(), cookie, eof)
        })
    }

    fn attributes(&mut self, wanted: &[u32]) -> Vec<u8> {
        let mut results = self.session.ok(&Operations::new().at(self.file).getattr(wanted));
        results.skip(&[OperationCode::Putfh]);
        results.next_with(OperationCode::Getattr, |_| ()).unwrap();
        results.rest().to_vec()
    }

    fn change(&mut self) -> u64 {
        let encoded = self.attributes(&[attribute::CHANGE]);
        decoded(&encoded).change.unwrap()
    }
}

fn decoded(encoded: &[u8]) -> Attributes<'_> {
    Attributes::decode(&mut proto::xdr::Reader::new(encoded)).unwrap()
}

/// On tmpfs an attribute takes the space of inodes.
#[test]
fn attribute_that_lacks_space_gets_that_of_a_deleted_file() {
    let over = |dir: &Path| Mounted::tmpfs_of_inodes(&dir.join("export"), 16);
    let Some((fixture, _mount)) = Fixture::over(ALL_VERSIONS, over) else { return };
    let mut bed = Bed::of(fixture);
    if bed.set(SetxattrOption::Create, b"small", b"").map(drop) == Err(Status::Notsupp) {
        return skip_in_ci_too("no extended attributes on tmpfs");
    }
    // The server opens a file, and keeps it open when another program deletes it.
    let (export, path) = (bed.session.export(), bed.fixture.exported("deleted"));
    std::fs::write(&path, "").unwrap();
    bed.session.ok(&Operations::new().at(export).lookup(b"deleted"));
    std::fs::remove_file(&path).unwrap();
    let create = |number: u32| File::create_new(bed.fixture.exported(&format!("filler {number}")));
    assert!((0..).any(|number| create(number).is_err()));
    assert_eq!(bed.set(SetxattrOption::Create, b"a", &[7; 1500]).map(drop), Ok(()));
}

#[test]
fn names_that_fill_a_kept_reply_leave_room_for_an_operation() {
    let mut bed = Bed::new();
    for number in 0..40 {
        let name = format!("{number:052}");
        assert_eq!(bed.set(SetxattrOption::Create, name.as_bytes(), b"").map(drop), Ok(()));
    }
    bed.session.cache_this = true;
    // A name takes 56 bytes, and each operation in front 8 of the room.
    for in_front in 0..=4 {
        let call = (0..in_front).fold(Operations::new(), |call, _| call.root()).at(bed.file);
        let args = ListxattrsArgs { cookie: 0, bytes_max: 8192 };
        let call = call.op(OperationCode::Listxattrs, &args).getattr(&[]);
        let mut results = bed.session.call(&call);
        results.skip(&vec![OperationCode::Putrootfh; in_front]).skip(&[OperationCode::Putfh]);
        let listed =
            results.next_with(OperationCode::Listxattrs, |r| ListxattrsOk::decode(r).unwrap().eof);
        let found = results.next_with(OperationCode::Getattr, |_| ());
        assert_eq!((listed, found), (Ok(false), Ok(())), "behind {in_front} operations");
    }
}

#[test]
fn a_value_that_fills_a_kept_reply_leaves_room_for_an_operation() {
    let mut bed = Bed::new();
    bed.session.cache_this = true;
    let mut refused = 0;
    for len in (1000..2048).step_by(8) {
        bed.set(SetxattrOption::Either, b"long", &vec![7; len]).unwrap();
        let args = NameArgs { name: b"long" };
        let get = Operations::new().at(bed.file).op(OperationCode::Getxattr, &args).getattr(&[]);
        let mut results = bed.session.call(&get);
        results.skip(&[OperationCode::Putfh]);
        let got = results
            .next_with(OperationCode::Getxattr, |r| GetxattrOk::decode(r).unwrap().value.len());
        match got {
            Ok(_) => {
                let found = results.next_with(OperationCode::Getattr, |_| ());
                assert_eq!(found, Ok(()), "a value of {len} bytes");
            }
            status => {
                assert_eq!(status, Err(Status::RepTooBigToCache));
                refused += 1;
            }
        }
    }
    assert!((1..131).contains(&refused), "{refused} of 131 values were refused");
}

#[test]
fn extended_attributes_are_set_read_listed_and_removed() {
    let mut bed = Bed::new();
    let path = bed.fixture.exported("file");
    assert_eq!(bed.get(b"colour"), Err(Status::Noxattr));
    let before = bed.change();
    let info = bed.set(SetxattrOption::Either, b"colour", b"green").unwrap();
    assert!(info.atomic && info.before == before && info.after != before, "{info:?}");
    assert_eq!(bed.change(), info.after);
    let mut local = [0; 16];
    assert_eq!(getxattr(&path, "user.colour", &mut local[..]), Ok(5), "local programs see it");
    assert_eq!(bed.get(b"colour"), Ok(b"green".to_vec()));
    assert_eq!(bed.set(SetxattrOption::Create, b"colour", b"red"), Err(Status::Exist));
    assert!(bed.set(SetxattrOption::Replace, b"colour", b"").is_ok());
    assert_eq!(bed.get(b"colour"), Ok(Vec::new()));
    assert_eq!(bed.set(SetxattrOption::Replace, b"shape", b"round"), Err(Status::Noxattr));
    assert_eq!(
        bed.list(0, 4096).map(|(names, _, eof)| (names, eof)),
        Ok((vec![b"colour".to_vec()], true))
    );
    assert!(bed.remove(b"colour").is_ok());
    assert_eq!(bed.remove(b"colour"), Err(Status::Noxattr));
    assert_eq!(bed.list(0, 4096).map(|(names, ..)| names), Ok(Vec::new()));
}

#[test]
fn names_and_values_of_extended_attributes_are_bounded() {
    let mut bed = Bed::new();
    let either = SetxattrOption::Either;
    assert_eq!(bed.set(either, b"", b"x"), Err(Status::Inval));
    assert_eq!(bed.set(either, b"a\0b", b"x"), Err(Status::Badchar));
    assert_eq!(bed.set(either, &[b'n'; 251], b"x"), Err(Status::Nametoolong));
    assert!(bed.set(either, &[b'n'; 250], b"x").is_ok());
    let head = SetxattrHead { option: either, name: b"large", value_len: 65_537 };
    let (file, value) = (bed.file, vec![7; 65_540]);
    let call = Operations::new().at(file).op(OperationCode::Setxattr, &Raw(&head, &value));
    let mut results = bed.session.call(&call);
    results.skip(&[OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Setxattr), Err(Status::Xattr2Big));
}

/// Arguments with data behind them.
struct Raw<'a>(&'a SetxattrHead<'a>, &'a [u8]);

impl Encode for Raw<'_> {
    fn encode(&self, w: &mut Writer) {
        self.0.encode(w);
        w.array(self.1);
    }
}

/// Longer than the head of a call may be.
#[test]
fn long_values_of_extended_attributes_are_kept() {
    let mut bed = Bed::new();
    let value: Vec<u8> = (0..65_536_u32).map(|at| at.to_be_bytes()[3]).collect();
    let path = bed.fixture.exported("probe");
    std::fs::write(&path, b"").unwrap();
    // Some file systems hold a block of attributes alone.
    let fits = |len: &usize| setxattr(&path, "user.x", &value[..*len], XattrFlags::empty()).is_ok();
    let len = [65_536, 30_000, 3000].into_iter().find(fits).expect("some value fits");
    assert!(bed.set(SetxattrOption::Either, b"long", &value[..len]).is_ok());
    assert_eq!(bed.get(b"long").unwrap(), value[..len]);
    bed.session.cache_this = true;
    assert_eq!(bed.get(b"long"), Err(Status::RepTooBigToCache));
}

#[test]
fn a_list_of_extended_attributes_comes_in_parts() {
    let mut bed = Bed::new();
    let mut all: Vec<_> = (0..40).map(|at| format!("attribute {at:02}").into_bytes()).collect();
    for name in &all {
        bed.set(SetxattrOption::Either, name, b"x").unwrap();
    }
    assert_eq!(bed.list(0, 15), Err(Status::Toosmall));
    assert_eq!(bed.list(0, 20), Err(Status::Toosmall));
    let (mut seen, mut cookie) = (Vec::new(), 0);
    loop {
        let (names, next, eof) = bed.list(cookie, 100).unwrap();
        assert!(eof || names.len() == 5, "{names:?}");
        seen.extend(names);
        cookie = next;
        if eof {
            break;
        }
        // The removal of a name does not move the other names.
        bed.remove(seen.last().unwrap()).unwrap();
    }
    seen.sort_unstable();
    all.sort_unstable();
    assert_eq!(seen, all);
    assert_eq!(
        bed.list(u64::MAX, 4096).map(|(names, _, eof)| (names, eof)),
        Ok((Vec::new(), true))
    );
}

#[test]
fn extended_attributes_need_the_rights_of_the_file() {
    if !is_root() {
        return;
    }
    let mut bed = Bed::new();
    bed.set(SetxattrOption::Either, b"colour", b"green").unwrap();
    set_mode(&bed.fixture.exported("file"), 0o604);
    let Bed { fixture, session, file } = bed;
    let client = session.client.becoming(Ids::user(1000));
    let mut bed = Bed { fixture, session: Session { client, ..session }, file };
    assert_eq!(bed.get(b"colour"), Ok(b"green".to_vec()));
    assert_eq!(bed.set(SetxattrOption::Either, b"colour", b"red"), Err(Status::Access));
    assert_eq!(bed.remove(b"colour"), Err(Status::Access));
    assert_eq!(access(&mut bed), ACCESS_XAREAD | ACCESS_XALIST);
    set_mode(&bed.fixture.exported("file"), 0o602);
    assert_eq!(bed.get(b"colour"), Err(Status::Access));
    assert_eq!(bed.list(0, 4096), Err(Status::Access));
    assert!(bed.set(SetxattrOption::Either, b"colour", b"red").is_ok());
    assert_eq!(access(&mut bed), ACCESS_XAWRITE);
}

fn access(bed: &mut Bed) -> u32 {
    let all = ACCESS_XAREAD | ACCESS_XAWRITE | ACCESS_XALIST;
    let mut results = bed.perform(OperationCode::Access, &AccessArgs { access: all });
    let AccessOk { supported, access } = results.next(OperationCode::Access).unwrap();
    assert_eq!(supported, all);
    access
}

#[test]
fn a_read_only_export_changes_no_extended_attribute() {
    let config = ALL_VERSIONS.replace("sync = false", "read_only = true");
    let fixture = Fixture::prepared(&config, |dir| {
        std::fs::write(dir.join("export/file"), b"").unwrap();
        let file = dir.join("export/file");
        setxattr(file, "user.colour", b"green", XattrFlags::empty()).unwrap();
    });
    let mut session = Session::of(&fixture, b"client", 2);
    let export = session.export();
    let mut results = session.ok(&Operations::new().at(export).lookup(b"file").getfh());
    let file = results.skip(&[OperationCode::Putfh, OperationCode::Lookup]).handle();
    let mut bed = Bed { fixture, session, file };
    assert_eq!(bed.set(SetxattrOption::Either, b"colour", b"red"), Err(Status::Rofs));
    assert_eq!(bed.remove(b"colour"), Err(Status::Rofs));
    assert_eq!(bed.get(b"colour"), Ok(b"green".to_vec()));
    assert_eq!(access(&mut bed), ACCESS_XAREAD | ACCESS_XALIST);
}

#[test]
fn a_directory_above_the_exports_has_no_extended_attributes() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::of(&fixture, b"client", 2);
    let mut results = session.ok(&Operations::new().root().getfh());
    let file = results.skip(&[OperationCode::Putrootfh]).handle();
    let mut bed = Bed { fixture, session, file };
    // A mount that begins here asks no other directory.
    assert_eq!(decoded(&bed.attributes(&[attribute::XATTR_SUPPORT])).xattr_support, Some(true));
    assert_eq!(access(&mut bed), ACCESS_XAREAD | ACCESS_XALIST);
    assert_eq!(bed.get(b"colour"), Err(Status::Noxattr));
    assert_eq!(bed.set(SetxattrOption::Either, b"colour", b"red"), Err(Status::Rofs));
    assert_eq!(bed.list(0, 4096).map(|(names, _, eof)| (names, eof)), Ok((Vec::new(), true)));
}

#[test]
fn attributes_of_minor_version_2_are_not_those_of_1() {
    let of_minor_2 = [
        attribute::CLONE_BLKSIZE,
        attribute::SPACE_FREED,
        attribute::CHANGE_ATTR_TYPE,
        attribute::MODE_UMASK,
        attribute::XATTR_SUPPORT,
        attribute::OPEN_ARGUMENTS,
    ];
    let readable: Vec<_> =
        of_minor_2.into_iter().filter(|number| *number != attribute::MODE_UMASK).collect();
    let mut bed = Bed::new();
    std::fs::write(bed.fixture.exported("file"), vec![1; 100_000]).unwrap();
    let encoded = bed.attributes(&readable);
    let found = decoded(&encoded);
    let local = bed.fixture.exported("file").metadata().unwrap();
    assert_eq!(found.clone_block_bytes, u32::try_from(local.blksize()).ok());
    assert_eq!(found.space_freed, Some(local.blocks() * 512));
    assert_eq!(found.xattr_support, Some(true));
    assert_eq!(found.change_attr_type, Some(ChangeAttributeType::TimeMetadata));
    for minor_version in [1, 2] {
        bed.session.minor_version = minor_version;
        let encoded = bed.attributes(&[attribute::SUPPORTED_ATTRS, attribute::SUPPATTR_EXCLCREAT]);
        let (has, found) = (minor_version == 2, decoded(&encoded));
        let supported = found.supported.unwrap();
        assert!(of_minor_2.iter().all(|number| supported.contains(*number) == has));
        let exclusive = found.suppattr_exclcreat.unwrap();
        assert_eq!(exclusive.contains(attribute::MODE_UMASK), has);
    }
    bed.session.minor_version = 1;
    let mut results = bed.perform(OperationCode::Getxattr, &NameArgs { name: b"colour" });
    assert_eq!(results.next::<()>(OperationCode::Illegal), Err(Status::OpIllegal));
}

/// How an OPEN makes a file with these attributes.
type How = for<'a> fn(RawAttributes<'a>) -> OpenHow<'a>;

fn unchecked(attributes: RawAttributes<'_>) -> OpenHow<'_> {
    OpenHow::Unchecked(attributes)
}

fn guarded(attributes: RawAttributes<'_>) -> OpenHow<'_> {
    OpenHow::Guarded(attributes)
}

fn exclusive(attributes: RawAttributes<'_>) -> OpenHow<'_> {
    OpenHow::Exclusive { verifier: Verifier([1; 8]), attributes: Some(attributes) }
}

fn open_with(session: &mut Session, dir: FileHandle, name: &[u8], how: How) {
    let values = [0o666_u32, 0o027].map(u32::to_be_bytes).concat();
    let bitmap = Bitmap::of(&[attribute::MODE_UMASK]);
    let raw = RawAttributes { bitmap, values: &values };
    let args = open_args(ShareAccess::Both, how(raw), OpenClaim::Null(name));
    session.ok(&Operations::new().at(dir).op(OperationCode::Open, &args));
}

#[test]
fn a_default_access_control_list_takes_the_place_of_the_umask() {
    let hows = [("unchecked", unchecked as How), ("guarded", guarded), ("exclusive", exclusive)];
    let mut bed = Bed::new();
    let export = bed.session.export();
    let mode = |bed: &Bed, name: &str| {
        bed.fixture.exported(name).metadata().unwrap().permissions().mode() & 0o7777
    };
    for (name, how) in hows {
        open_with(&mut bed.session, export, name.as_bytes(), how);
        assert_eq!(mode(&bed, name), 0o640, "{name}");
    }
    // user::rwx, group::rwx, other::r-x
    let entry = |tag: u16, bits: u16| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
    };
    let list = [2_u32.to_le_bytes().to_vec(), entry(1, 7), entry(4, 7), entry(0x20, 5)].concat();
    let dir = bed.fixture.exported("");
    if setxattr(&dir, "system.posix_acl_default", &list, XattrFlags::empty()).is_err() {
        return skip_in_ci_too("the file system has no access control lists");
    }
    for (name, how) in hows {
        let name = format!("{name} with a list");
        open_with(&mut bed.session, export, name.as_bytes(), how);
        assert_eq!(mode(&bed, &name), 0o664, "{name}");
    }
}

#[test]
fn a_umask_belongs_to_a_creation_alone() {
    let mut bed = Bed::new();
    let values = [0o666_u32, 0o027].map(u32::to_be_bytes).concat();
    let bitmap = Bitmap::of(&[attribute::MODE_UMASK]);
    let attributes = RawAttributes { bitmap, values: &values };
    let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attributes };
    let mut results = bed.perform(OperationCode::Setattr, &args);
    assert_eq!(results.next::<()>(OperationCode::Setattr), Err(Status::Inval));
    let mut results = bed.perform(OperationCode::Getattr, &GetattrArgs { wanted: bitmap });
    assert_eq!(results.next::<()>(OperationCode::Getattr), Err(Status::Inval));
}
