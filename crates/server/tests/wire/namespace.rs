//! The procedures that find, make and remove names (RFC 1813 §3.3.3, §3.3.5, §3.3.8 to §3.3.15),
//! and the attributes that come with them.

use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proto::nfs3::*;

use crate::client::{Client, Ids, mode, ok, refusal, size};
use crate::fixture::{Fixture, is_root, set_mode};
use crate::skip::skip_in_ci_too;

#[test]
fn lookup_finds_existing_names() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    std::fs::write(fixture.exported("f"), "hello").unwrap();
    let found = ok(client.lookup(root, b"f"));
    let attributes = found.object_attributes.unwrap();
    let on_disk = std::fs::metadata(fixture.exported("f")).unwrap();
    assert_eq!(attributes.file_type, FileType::Regular);
    assert_eq!((attributes.size, attributes.fileid), (5, on_disk.ino()));
    assert_eq!(attributes.mode, on_disk.mode() & 0o7777);
    assert_eq!(client.getattr(found.object), Ok(attributes));
    assert_eq!(found.dir_attributes, Some(client.getattr(root).unwrap()));
    let failure = client.lookup(root, b"nothing").unwrap_err();
    assert_eq!(failure.status, Status::Noent);
    assert!(failure.body.is_some(), "the directory's attributes come with a refusal too");
    assert_eq!(refusal(client.lookup(found.object, b"x")), Status::Notdir);
}

#[test]
fn dot_is_the_directory_and_nothing_is_above_the_root() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    let deeper = client.mkdir(dir, "e");
    assert_eq!(ok(client.lookup(root, b".")).object, root);
    assert_eq!(ok(client.lookup(root, b"..")).object, root);
    assert_eq!(ok(client.lookup(dir, b".")).object, dir);
    assert_eq!(ok(client.lookup(dir, b"..")).object, root);
    assert_eq!(ok(client.lookup(deeper, b"..")).object, dir);
    let through_root = ok(client.lookup(root, b"..")).object_attributes.unwrap();
    let fileid = client.getattr(root).unwrap().fileid;
    assert_eq!(through_root.fileid, fileid);
    let listed = |client: &mut Client| {
        let page = client.readdir(root, 0, 4096).unwrap();
        page.names.iter().find(|entry| entry.name == b"..").unwrap().fileid
    };
    assert_eq!(listed(&mut client), fileid);
    if is_root() {
        let mut other = fixture.client().becoming(Ids::user(1000));
        set_mode(&fixture.exported(""), 0o744);
        assert_eq!(listed(&mut other), fileid, "to whom may not search it");
    }
}

#[test]
fn impossible_names_are_refused_by_every_procedure() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let long = vec![b'n'; 256];
    for (name, status) in [
        (&long[..], Status::Nametoolong),
        (b"", Status::Inval),
        (b"a/b", Status::Inval),
        (b"../escape", Status::Inval),
        (b"a\0b", Status::Inval),
    ] {
        let shown = name.escape_ascii();
        let unchecked = CreateHow::Unchecked(mode(0o600));
        assert_eq!(refusal(client.lookup(root, name)), status, "LOOKUP {shown}");
        assert_eq!(refusal(client.create_how(root, name, unchecked)), status, "CREATE {shown}");
        assert_eq!(refusal(client.try_mkdir(root, name, mode(0o700))), status, "MKDIR {shown}");
        assert_eq!(refusal(client.symlink(root, name, b"t")), status, "SYMLINK {shown}");
        let fifo = MknodData::Fifo(mode(0o600));
        assert_eq!(refusal(client.mknod(root, name, fifo)), status, "MKNOD {shown}");
        assert_eq!(refusal(client.remove(root, name)), status, "REMOVE {shown}");
        assert_eq!(refusal(client.rmdir(root, name)), status, "RMDIR {shown}");
        assert_eq!(refusal(client.rename((root, name), (root, b"x"))), status, "RENAME {shown}");
        assert_eq!(refusal(client.rename((root, b"f"), (root, name))), status, "RENAME to {shown}");
        assert_eq!(refusal(client.link(file, root, name)), status, "LINK {shown}");
    }
    let names: Vec<_> = std::fs::read_dir(fixture.exported("")).unwrap().collect();
    assert_eq!(names.len(), 1, "none of these left anything behind");
    let longest = vec![b'n'; 255];
    ok(client.create_how(root, &longest, CreateHow::Guarded(mode(0o600))));
    ok(client.lookup(root, &longest));
}

#[test]
fn dot_and_dot_dot_cannot_be_made_removed_or_renamed() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    let file = client.create(dir, "f");
    for name in [&b"."[..], b".."] {
        let how = CreateHow::Guarded(mode(0o600));
        assert_eq!(refusal(client.create_how(dir, name, how)), Status::Exist);
        assert_eq!(refusal(client.try_mkdir(dir, name, mode(0o700))), Status::Exist);
        assert_eq!(refusal(client.symlink(dir, name, b"t")), Status::Exist);
        assert_eq!(refusal(client.link(file, dir, name)), Status::Exist);
        assert_eq!(refusal(client.rename((dir, name), (root, b"x"))), Status::Inval);
        assert_eq!(refusal(client.rename((root, b"d"), (dir, name))), Status::Inval);
        refusal(client.remove(dir, name));
    }
    assert_eq!(refusal(client.rmdir(dir, b".")), Status::Inval);
    assert_eq!(refusal(client.rmdir(dir, b"..")), Status::Exist);
    assert_eq!(ok(client.lookup(root, b"d")).object, dir);
}

#[test]
fn create_sets_the_requested_attributes() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let time = Time { seconds: 1_000_000_007, nseconds: 123_456_789 };
    let set = SetAttributes {
        mode: Some(0o1754),
        size: Some(4097),
        atime: SetTime::ToClientTime(time),
        mtime: SetTime::ToClientTime(time),
        ..SetAttributes::default()
    };
    let made = ok(client.create_how(root, b"f", CreateHow::Guarded(set)));
    let attributes = made.attributes.unwrap();
    assert_eq!(attributes.mode, 0o1754);
    assert_eq!(attributes.size, 4097);
    assert_eq!((attributes.atime, attributes.mtime), (time, time));
    assert_eq!(client.getattr(made.object.unwrap()), Ok(attributes));
    let how = CreateHow::Guarded(mode(0o600));
    assert_eq!(refusal(client.create_how(root, b"f", how)), Status::Exist);
}

#[test]
fn unchecked_create_opens_an_existing_file() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    ok(client.write(file, 0, b"twelve bytes"));
    let again = ok(client.create_how(root, b"f", CreateHow::Unchecked(mode(0o600))));
    assert_eq!(again.object, Some(file));
    assert_eq!(again.attributes.unwrap().size, 12);
    assert_eq!(again.attributes.unwrap().mode, 0o666, "an existing file keeps its mode");
    for len in [5, 0] {
        let cut = ok(client.create_how(root, b"f", CreateHow::Unchecked(size(len))));
        assert_eq!(cut.attributes.unwrap().size, len);
        assert_eq!(client.getattr(file).unwrap().size, len);
    }
    client.mkdir(root, "d");
    let how = CreateHow::Unchecked(mode(0o600));
    assert_eq!(refusal(client.create_how(root, b"d", how)), Status::Isdir);
    ok(client.symlink(root, b"l", b"f"));
    assert_eq!(refusal(client.create_how(root, b"l", how)), Status::Exist);
}

#[test]
fn exclusive_create_compares_all_eight_bytes_of_the_verifier() {
    let mut fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let verifier = [0x80, 2, 3, 4, 0xff, 6, 7, 8];
    let how = CreateHow::Exclusive(verifier);
    let file = ok(client.create_how(root, b"f", how)).object.unwrap();
    assert_eq!(ok(client.create_how(root, b"f", how)).object, Some(file));
    for byte in 0..8 {
        for bit in [0, 7] {
            let mut other = verifier;
            other[byte] ^= 1 << bit;
            let status = refusal(client.create_how(root, b"f", CreateHow::Exclusive(other)));
            assert_eq!(status, Status::Exist, "bit {bit} of byte {byte} counts");
        }
    }
    fixture.restart();
    let (mut client, root) = fixture.mounted();
    assert_eq!(ok(client.create_how(root, b"f", how)).object, Some(file));
    ok(client.setattr(file, mode(0o640)));
    ok(client.write(file, 0, b"x"));
    assert_eq!(refusal(client.create_how(root, b"f", how)), Status::Exist, "it is in use now");
    client.mkdir(root, "d");
    assert_eq!(refusal(client.create_how(root, b"d", how)), Status::Exist);
}

#[test]
fn exclusive_create_shows_no_name_without_its_verifier() {
    use std::os::unix::fs::MetadataExt;
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY;
    let mode = rustix::fs::Mode::RUSR;
    if let Err(error) = rustix::fs::open(fixture.exported(""), flags, mode) {
        return skip_in_ci_too(error);
    }
    let paths: Vec<_> = (0..200).map(|i| fixture.exported(&format!("f{i}"))).collect();
    let watcher = std::thread::spawn(move || {
        let seen = |path| {
            loop {
                match std::fs::metadata(path) {
                    Ok(metadata) => return (metadata.atime(), metadata.mtime()),
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
                }
            }
        };
        paths.iter().all(|path| seen(path) == (0x0102_0304, 0x0506_0708))
    });
    let how = CreateHow::Exclusive([1, 2, 3, 4, 5, 6, 7, 8]);
    for i in 0..200 {
        ok(client.create_how(root, format!("f{i}").as_bytes(), how));
    }
    assert!(watcher.join().unwrap(), "a name was there before its verifier");
}

#[test]
fn a_creation_that_fails_leaves_nothing() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    // Larger than ext4 supports, which it reports only when the existing file is given its length.
    let too_large = size(1 << 62);
    if client.create_how(root, b"probe", CreateHow::Guarded(too_large)).is_ok() {
        return skip_in_ci_too("files on this file system can have any length");
    }
    for how in [CreateHow::Guarded(too_large), CreateHow::Unchecked(too_large)] {
        assert_eq!(refusal(client.create_how(root, b"f", how)), Status::Fbig);
        assert_eq!(refusal(client.lookup(root, b"f")), Status::Noent);
    }
    // An existing file is not removed.
    let file = client.create(root, "f");
    ok(client.write(file, 0, b"data"));
    let cut = CreateHow::Unchecked(too_large);
    assert_eq!(refusal(client.create_how(root, b"f", cut)), Status::Fbig);
    assert_eq!(client.find(root, "f"), file);
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
}

#[test]
fn mkdir_and_rmdir() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let made = ok(client.try_mkdir(root, b"d", mode(0o1751)));
    let attributes = made.attributes.unwrap();
    assert_eq!((attributes.file_type, attributes.mode), (FileType::Directory, 0o1751));
    // Two on most file systems, one on btrfs.
    let local = std::fs::metadata(fixture.exported("d")).unwrap();
    assert_eq!(u64::from(attributes.nlink), local.nlink());
    let dir = made.object.unwrap();
    assert_eq!(refusal(client.try_mkdir(root, b"d", mode(0o700))), Status::Exist);
    client.create(dir, "f");
    assert_eq!(refusal(client.rmdir(root, b"d")), Status::Notempty);
    assert_eq!(refusal(client.rmdir(dir, b"f")), Status::Notdir);
    assert_eq!(refusal(client.remove(root, b"d")), Status::Isdir);
    ok(client.remove(dir, b"f"));
    ok(client.rmdir(root, b"d"));
    assert_eq!(refusal(client.rmdir(root, b"d")), Status::Noent);
    assert_eq!(refusal(client.remove(root, b"d")), Status::Noent);
    assert_eq!(client.getattr(dir), Err(Status::Stale));
    assert_eq!(refusal(client.lookup(dir, b"f")), Status::Stale);
    assert_eq!(client.readdir(dir, 0, 4096).unwrap_err(), Status::Stale);
}

#[test]
fn symlinks_keep_their_target_byte_for_byte() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    // XFS keeps fewer than 1,024 bytes (`XFS_SYMLINK_MAXLEN`), the others what a path may have.
    let path_bytes_max = 4095;
    let is_kept = symlink("t".repeat(path_bytes_max), fixture.exported("longest")).is_ok();
    let longest = vec![b't'; if is_kept { path_bytes_max } else { 1023 }];
    for (i, target) in
        [&b"f"[..], b"/etc/passwd", b"../../up", b"with\xffbytes \n", &longest].iter().enumerate()
    {
        let made = ok(client.symlink(root, format!("l{i}").as_bytes(), target));
        assert_eq!(made.attributes.unwrap().file_type, FileType::Symlink);
        assert_eq!(client.readlink(made.object.unwrap()), Ok(target.to_vec()));
        assert_eq!(client.read(made.object.unwrap(), 0, 10).unwrap_err(), Status::Inval);
    }
    let too_long = vec![b't'; 4096];
    assert_eq!(refusal(client.symlink(root, b"x", &too_long)), Status::Nametoolong);
    assert_eq!(refusal(client.symlink(root, b"l0", b"t")), Status::Exist);
    let file = client.create(root, "f");
    assert_eq!(client.readlink(file), Err(Status::Inval));
    // A lookup through a link is the client's business.
    ok(client.symlink(root, b"to-dir", b"."));
    let link = client.find(root, "to-dir");
    assert_eq!(refusal(client.lookup(link, b"f")), Status::Notdir);
}

#[test]
fn mknod_makes_each_kind_and_nothing_else() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let attributes = mode(0o640);
    let spec = DeviceSpec { major: 1, minor: 259 };
    let kinds = [
        ("b", MknodData::BlockDevice { attributes, spec }, FileType::BlockDevice),
        ("c", MknodData::CharacterDevice { attributes, spec }, FileType::CharacterDevice),
        ("s", MknodData::Socket(attributes), FileType::Socket),
        ("p", MknodData::Fifo(attributes), FileType::Fifo),
    ];
    for (name, what, file_type) in kinds {
        let made = ok(client.mknod(root, name.as_bytes(), what));
        let found = made.attributes.unwrap();
        assert_eq!((found.file_type, found.mode), (file_type, 0o640), "{name}");
        let is_device = matches!(name, "b" | "c");
        assert_eq!(found.rdev, if is_device { spec } else { DeviceSpec::default() }, "{name}");
        let object = made.object.unwrap();
        // Neither may block or reach the device.
        assert_eq!(client.read(object, 0, 10).unwrap_err(), Status::Inval, "{name}");
        assert_eq!(refusal(client.write(object, 0, b"x")), Status::Inval, "{name}");
        assert_eq!(refusal(client.setattr(object, size(0))), Status::Inval, "{name}");
        assert_eq!(refusal(client.commit(object)), Status::Inval, "{name}");
        ok(client.setattr(object, mode(0o600)));
        assert_eq!(refusal(client.mknod(root, name.as_bytes(), what)), Status::Exist, "{name}");
    }
    assert!(std::fs::metadata(fixture.exported("p")).unwrap().file_type().is_fifo());
    for file_type in [FileType::Regular, FileType::Directory, FileType::Symlink] {
        let status = refusal(client.mknod(root, b"x", MknodData::Other(file_type)));
        assert_eq!(status, Status::Badtype);
    }
    // The kernel would make /dev/null of both.
    for (major, minor) in [(1, 0x10_0003), (0x1001, 3)] {
        let spec = DeviceSpec { major, minor };
        let status =
            refusal(client.mknod(root, b"x", MknodData::CharacterDevice { attributes, spec }));
        assert_eq!(status, Status::Inval, "{spec:?}");
    }
    let mut user = fixture.client().becoming(Ids::user(1000));
    let device = MknodData::CharacterDevice { attributes, spec };
    assert_eq!(refusal(user.mknod(root, b"x", device)), Status::Perm);
    ok(user.mknod(root, b"x", MknodData::Fifo(attributes)));
}

#[test]
fn rename_moves_within_and_across_directories() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (a, b) = (client.mkdir(root, "a"), client.mkdir(root, "b"));
    let file = client.create(a, "f");
    ok(client.write(file, 0, b"data"));
    ok(client.rename((a, b"f"), (a, b"g")));
    ok(client.rename((a, b"g"), (b, b"h")));
    assert_eq!(ok(client.lookup(b, b"h")).object, file, "the handle is the file's, not the name's");
    assert_eq!(refusal(client.lookup(a, b"g")), Status::Noent);
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
    // Onto itself and onto another name of the same file: nothing is done, and that is success.
    ok(client.rename((b, b"h"), (b, b"h")));
    ok(client.link(file, a, b"second"));
    ok(client.rename((b, b"h"), (a, b"second")));
    assert_eq!(client.getattr(file).unwrap().nlink, 2);
    // Over an existing file, which is then gone.
    let replaced = client.create(b, "old");
    ok(client.write(replaced, 0, b"old data"));
    ok(client.rename((a, b"second"), (b, b"old")));
    assert_eq!(client.getattr(replaced), Err(Status::Stale));
    assert_eq!(client.read(replaced, 0, 10).unwrap_err(), Status::Stale);
    assert_eq!(ok(client.lookup(b, b"old")).object, file);
}

#[test]
fn rename_keeps_the_rules_for_directories() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (a, b) = (client.mkdir(root, "a"), client.mkdir(root, "b"));
    let inner = client.mkdir(a, "inner");
    client.create(root, "f");
    client.create(b, "full");
    let mut status = |from, to| refusal(client.rename(from, to));
    assert_eq!(status((root, b"nothing"), (root, b"x")), Status::Noent);
    assert_eq!(status((root, b"a"), (root, b"f")), Status::Notdir);
    assert_eq!(status((root, b"f"), (root, b"a")), Status::Isdir);
    // ENOTEMPTY on ext4, EEXIST on XFS; rename(2) and RFC 1813 §3.3.14 permit both.
    let not_empty = status((root, b"a"), (root, b"b"));
    assert!(matches!(not_empty, Status::Notempty | Status::Exist), "{not_empty:?}");
    assert_eq!(status((root, b"a"), (inner, b"x")), Status::Inval);
    ok(client.rename((a, b"inner"), (root, b"up")));
    assert_eq!(ok(client.lookup(inner, b"..")).object, root);
    ok(client.rename((root, b"up"), (root, b"a")));
    assert_eq!(client.getattr(a), Err(Status::Stale), "an empty directory is replaced");
}

#[test]
fn link_adds_a_name() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    let file = client.create(root, "f");
    let linked = ok(client.link(file, dir, b"g"));
    assert_eq!(linked.file_attributes.unwrap().nlink, 2);
    assert_eq!(ok(client.lookup(dir, b"g")).object, file);
    assert_eq!(refusal(client.link(file, root, b"f")), Status::Exist);
    let failure = client.link(dir, root, b"x").unwrap_err();
    assert!(matches!(failure.status, Status::Perm | Status::Isdir), "{failure:?}");
    assert_eq!(refusal(client.link(file, file, b"x")), Status::Notdir);
    ok(client.remove(root, b"f"));
    assert_eq!(client.getattr(file).unwrap().nlink, 1, "it lives by its other name");
    ok(client.remove(dir, b"g"));
    assert_eq!(client.getattr(file), Err(Status::Stale));
}

#[test]
fn setattr_sets_each_attribute_alone_and_keeps_nanoseconds() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let keep = SetAttributes::default();
    let at = Time { seconds: 4_000_000_000, nseconds: 999_999_999 };
    let before = client.getattr(file).unwrap();
    ok(client.setattr(file, SetAttributes { mtime: SetTime::ToClientTime(at), ..keep }));
    let after = client.getattr(file).unwrap();
    assert_eq!((after.mtime, after.atime), (at, before.atime));
    ok(client.setattr(file, SetAttributes { atime: SetTime::ToClientTime(at), ..keep }));
    assert_eq!(client.getattr(file).unwrap().atime, at);
    ok(client.setattr(file, SetAttributes { mtime: SetTime::ToServerTime, ..keep }));
    let now = client.getattr(file).unwrap();
    assert!(now.mtime < at && now.mtime >= before.mtime, "{:?}", now.mtime);
    for len in [10_000, 3, 0, 1 << 40] {
        let wcc = ok(client.setattr(file, size(len))).wcc;
        assert_eq!(wcc.after.unwrap().size, len);
    }
    ok(client.setattr(file, mode(0o4711)));
    assert_eq!(client.getattr(file).unwrap().mode, 0o4711);
    assert_eq!(refusal(client.setattr(file, size(1 << 63))), Status::Fbig);
    assert_eq!(refusal(client.setattr(root, size(0))), Status::Isdir);
    // Nothing to set is not an error.
    ok(client.setattr(file, keep));
}

#[test]
fn times_that_are_no_times_are_refused() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let before = client.getattr(file).unwrap();
    // The last two mean "now" and "leave it" to the kernel, but not to a client.
    for nseconds in [1_000_000_000, u32::MAX, (1 << 30) - 1, (1 << 30) - 2] {
        let time = SetTime::ToClientTime(Time { seconds: 5, nseconds });
        let set = SetAttributes { mtime: time, ..SetAttributes::default() };
        assert_eq!(refusal(client.setattr(file, set)), Status::Inval, "{nseconds} ns");
    }
    assert_eq!(client.getattr(file).unwrap().mtime, before.mtime);
}

#[test]
fn the_guard_of_setattr_must_be_the_ctime() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let ctime = client.getattr(file).unwrap().ctime;
    let mut guarded = |guard| -> SetattrReply {
        let args = SetattrArgs { object: file, new_attributes: mode(0o600), guard: Some(guard) };
        client.call(Procedure::Setattr, &args)
    };
    let other = Time { nseconds: ctime.nseconds ^ 1, ..ctime };
    let failure = guarded(other).unwrap_err();
    assert_eq!(failure.status, Status::NotSync);
    assert_eq!(failure.body.after.unwrap().mode, 0o666);
    let wcc = guarded(ctime).unwrap().wcc;
    assert_eq!(wcc.before.unwrap().ctime, ctime);
    assert_eq!(wcc.after.unwrap().mode, 0o600);
}

#[test]
fn access_distinguishes_directories_from_files() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let all = 0x3f;
    let of_directory = ok(client.access(root, all)).access;
    assert_eq!(of_directory, all & !ACCESS_EXECUTE);
    let of_file = ok(client.access(file, all));
    assert!(of_file.attributes.is_some());
    assert_eq!(of_file.access, ACCESS_READ | ACCESS_MODIFY | ACCESS_EXTEND);
    ok(client.setattr(file, mode(0o755)));
    assert_eq!(ok(client.access(file, all)).access & ACCESS_EXECUTE, ACCESS_EXECUTE);
    assert_eq!(ok(client.access(file, ACCESS_READ)).access, ACCESS_READ, "only what was asked");
}

#[test]
fn file_system_questions_have_answers() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let info = ok(client.fsinfo(root));
    assert!(info.attributes.is_some());
    assert_eq!((info.rtmax, info.wtmax), (1 << 20, 1 << 20));
    assert!(info.properties & FSF_CANSETTIME != 0);
    let stat = ok(client.fsstat(root));
    assert!(stat.attributes.is_some());
    assert!(stat.tbytes >= stat.fbytes && stat.fbytes >= stat.abytes && stat.tbytes > 0);
    let limits = ok(client.pathconf(root));
    assert!(limits.attributes.is_some());
    assert_eq!((limits.name_max, limits.no_trunc), (255, true));
}

#[test]
fn read_returns_the_existing_bytes() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let data: Vec<u8> = (0..3_000_001).map(|i: u32| i.to_le_bytes()[1]).collect();
    for (i, part) in data.chunks(1 << 20).enumerate() {
        assert_eq!(ok(client.write(file, (i as u64) << 20, part)).count as usize, part.len());
    }
    let len = data.len() as u64;
    for (offset, count) in
        [(0, 1), (1, 4095), (4095, 70_001), (1_000_001, 1 << 20), (len - 5, 5), (len - 5, 4)]
    {
        let read = client.read(file, offset, count).unwrap();
        let start = usize::try_from(offset).unwrap();
        assert_eq!(read.data, data[start..start + count as usize], "{count} at {offset}");
        assert_eq!(read.eof, offset + u64::from(count) == len, "{count} at {offset}");
        assert_eq!(read.attributes.unwrap().size, len);
    }
    let beyond = client.read(file, len - 5, 1000).unwrap();
    assert_eq!((beyond.data.len(), beyond.eof), (5, true));
    for offset in [len, len + 1, u64::MAX, 1 << 63] {
        let nothing = client.read(file, offset, 1000).unwrap();
        assert_eq!((nothing.data.len(), nothing.eof), (0, true), "at {offset}");
    }
    // More than the server gives at once is a short read, not an error.
    let most = client.read(file, 0, u32::MAX).unwrap();
    assert_eq!((most.data.len(), most.eof), (1 << 20, false));
    let none = client.read(file, 0, 0).unwrap();
    assert_eq!((none.data.len(), none.eof), (0, false));
    assert_eq!(client.read(root, 0, 10).unwrap_err(), Status::Isdir);
}

#[test]
fn write_puts_bytes_where_they_belong() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    assert_eq!(ok(client.write(file, 10, b"ten")).count, 3);
    assert_eq!(ok(client.write(file, 4095, b"edge")).count, 4);
    let on_disk = std::fs::read(fixture.exported("f")).unwrap();
    assert_eq!(on_disk.len(), 4099);
    assert_eq!((&on_disk[..13], &on_disk[4095..]), (&b"\0\0\0\0\0\0\0\0\0\0ten"[..], &b"edge"[..]));
    let nothing = ok(client.write(file, 9000, b""));
    assert_eq!(nothing.count, 0);
    assert_eq!(nothing.wcc.after.unwrap().size, 4099, "no data, no growth");
    assert_eq!(refusal(client.write(file, u64::MAX, b"x")), Status::Fbig);
    assert_eq!(refusal(client.write(file, i64::MAX as u64, b"x")), Status::Fbig);
    assert_eq!(refusal(client.write(root, 0, b"x")), Status::Isdir);
}

#[test]
fn attributes_are_those_of_the_disk() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    ok(client.write(file, 0, &[1; 10_000]));
    let attributes = client.getattr(file).unwrap();
    let on_disk = std::fs::metadata(fixture.exported("f")).unwrap();
    assert_eq!(attributes.size, on_disk.size());
    assert_eq!(attributes.used, on_disk.blocks() * 512);
    assert_eq!(attributes.fileid, on_disk.ino());
    assert_eq!(i64::from(attributes.mtime.seconds), on_disk.mtime());
    assert_eq!(i64::from(attributes.mtime.nseconds), on_disk.mtime_nsec());
    assert_eq!(attributes.fsid, client.getattr(root).unwrap().fsid);
    // A change behind the server's back shows at once.
    std::fs::write(fixture.exported("f"), "short").unwrap();
    assert_eq!(client.getattr(file).unwrap().size, 5);
    assert_eq!(client.read(file, 0, 100).unwrap().data, b"short");
}

#[test]
fn deep_trees_keep_their_handles() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let chain = |client: &mut Client| {
        (0..60).fold(root, |dir, i| ok(client.lookup(dir, format!("d{i}").as_bytes())).object)
    };
    let made = (0..60).fold(root, |dir, i| client.mkdir(dir, &format!("d{i}")));
    assert_eq!(chain(&mut client), made);
    client.create(made, "leaf");
}

#[test]
fn lookup_beside_renames_over_a_name_always_finds_it() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (is_over, stops) = (AtomicBool::new(false), Duration::from_millis(700));
    client.create(root, "name");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut renaming = fixture.client();
            let started = Instant::now();
            while started.elapsed() < stops {
                renaming.create(root, "new");
                ok(renaming.rename((root, b"new"), (root, b"name")));
            }
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            ok(client.lookup(root, b"name"));
        }
    });
}
