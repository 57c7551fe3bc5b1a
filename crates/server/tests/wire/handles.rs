//! File handles: what they survive, what they refuse, and where they end.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use proto::nfs3::*;

use crate::client::{Client, ok, refusal};
use crate::fixture::{Fixture, Mounted, TRUSTING, is_root, run_or_skip, set_mode};
use crate::local_file::{eventually, is_open_below};
use crate::skip::skip;

#[test]
fn handles_survive_rename_link_and_restart() {
    let mut fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    let file = client.create(dir, "f");
    ok(client.write_stable(file, 0, b"data", StableHow::FileSync));
    ok(client.link(file, root, b"second"));
    assert_eq!(client.find(root, "second"), file);
    ok(client.rename((dir, b"f"), (root, b"g")));
    ok(client.rename((root, b"d"), (root, b"e")));
    let before = client.getattr(file).unwrap();
    fixture.restart();
    let mut client = fixture.client();
    assert_eq!(client.getattr(file), Ok(before), "without another MNT or LOOKUP");
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
    client.create(dir, "h");
    assert_eq!(client.mnt("/export"), root);
    assert_eq!(client.find(root, "g"), file);
    assert_eq!(client.find(root, "e"), dir);
    // A move on the server's own machine is a rename like any other.
    std::fs::rename(fixture.exported("g"), fixture.exported("e/moved")).unwrap();
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
}

/// The status of every procedure that takes one handle, called with this one.
fn statuses(client: &mut Client, handle: FileHandle) -> Vec<(&'static str, Status)> {
    let how = CreateHow::Unchecked(SetAttributes::default());
    let fifo = MknodData::Fifo(SetAttributes::default());
    let name = b"f";
    vec![
        ("GETATTR", client.getattr(handle).unwrap_err()),
        ("SETATTR", refusal(client.setattr(handle, SetAttributes::default()))),
        ("LOOKUP", refusal(client.lookup(handle, name))),
        ("ACCESS", refusal(client.access(handle, 0x3f))),
        ("READLINK", client.readlink(handle).unwrap_err()),
        ("READ", client.read(handle, 0, 10).unwrap_err()),
        ("WRITE", refusal(client.write(handle, 0, b"x"))),
        ("CREATE", refusal(client.create_how(handle, name, how))),
        ("MKDIR", refusal(client.try_mkdir(handle, name, SetAttributes::default()))),
        ("SYMLINK", refusal(client.symlink(handle, name, b"t"))),
        ("MKNOD", refusal(client.mknod(handle, name, fifo))),
        (
            "MKNOD of a file",
            refusal(client.mknod(handle, name, MknodData::Other(FileType::Regular))),
        ),
        ("REMOVE", refusal(client.remove(handle, name))),
        ("RMDIR", refusal(client.rmdir(handle, name))),
        ("RENAME", refusal(client.rename((handle, name), (handle, b"g")))),
        ("LINK", refusal(client.link(handle, handle, name))),
        ("READDIR", client.readdir(handle, 0, 4096).unwrap_err()),
        ("READDIRPLUS", client.readdirplus(handle, 0, (4096, 4096)).unwrap_err()),
        ("FSSTAT", refusal(client.fsstat(handle))),
        ("FSINFO", refusal(client.fsinfo(handle))),
        ("PATHCONF", refusal(client.pathconf(handle))),
        ("COMMIT", refusal(client.commit(handle))),
    ]
}

#[track_caller]
pub(crate) fn all_refuse(client: &mut Client, handle: FileHandle, expected: Status) {
    for (procedure, status) in statuses(client, handle) {
        assert_eq!(status, expected, "{procedure} of {handle:?}");
    }
}

#[test]
fn forged_handles_are_refused_by_every_procedure() {
    let (fixture, other_server) = (Fixture::new(), Fixture::new());
    let (mut client, root) = fixture.mounted();
    let bytes = root.as_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut forged = bytes.to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        let forged = FileHandle::new(&forged).unwrap();
        // Format and length are first.
        let status = if bit < 16 { Status::Badhandle } else { Status::Stale };
        assert_eq!(client.getattr(forged), Err(status), "bit {bit}");
    }
    for len in 0..bytes.len() {
        let cut = FileHandle::new(&bytes[..len]).unwrap();
        assert_eq!(client.getattr(cut), Err(Status::Badhandle), "{len} bytes");
    }
    let (_, others_root) = other_server.mounted();
    assert_ne!(others_root, root);
    all_refuse(&mut client, others_root, Status::Stale);
    all_refuse(&mut client, FileHandle::new(&[]).unwrap(), Status::Badhandle);
    all_refuse(&mut client, FileHandle::new(&[0xff; 64]).unwrap(), Status::Badhandle);
    // In second place, too.
    let file = client.create(root, "f");
    assert_eq!(refusal(client.rename((root, b"f"), (others_root, b"g"))), Status::Stale);
    assert_eq!(refusal(client.link(file, others_root, b"g")), Status::Stale);
}

#[test]
fn a_deleted_object_is_stale() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let by_client = client.create(root, "a");
    let by_machine = client.create(root, "b");
    let directory = client.mkdir(root, "c");
    std::fs::write(fixture.exported("d"), "").unwrap();
    let listed = client.list_plus(root);
    let never_cached = listed.iter().find(|entry| entry.name == b"d").unwrap().handle.unwrap();
    ok(client.remove(root, b"a"));
    std::fs::remove_file(fixture.exported("b")).unwrap();
    std::fs::remove_dir(fixture.exported("c")).unwrap();
    std::fs::remove_file(fixture.exported("d")).unwrap();
    for handle in [by_client, by_machine, directory, never_cached] {
        all_refuse(&mut client, handle, Status::Stale);
    }
    // A new file of the same name, and most likely the same inode, is another file.
    let again = client.create(root, "a");
    assert_ne!(again, by_client);
    assert_eq!(client.getattr(by_client), Err(Status::Stale));
}

/// After NOENT a client would keep the directory, and remember that the name is not in it.
#[test]
fn the_first_call_after_a_local_removal_finds_the_object_stale() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (directory, file) = (client.mkdir(root, "d"), client.create(root, "f"));
    let link = ok(client.symlink(root, b"l", b"target")).object.unwrap();
    std::fs::remove_dir(fixture.exported("d")).unwrap();
    std::fs::remove_file(fixture.exported("f")).unwrap();
    std::fs::remove_file(fixture.exported("l")).unwrap();
    assert_eq!(refusal(client.lookup(directory, b"f")), Status::Stale);
    assert_eq!(client.readlink(link), Err(Status::Stale));
    assert_eq!(client.readlink(file), Err(Status::Stale));
}

/// A file system without kernel handles and without birth times: an overlay over ext4 with inodes
/// of 128 bytes.
fn mount_without_identities(fixture: &Fixture) -> Option<(Mounted, Mounted)> {
    let (image, disk) = (fixture.path("image"), fixture.path("disk"));
    std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    std::fs::create_dir(&disk).unwrap();
    if !run_or_skip("mkfs.ext4", &["-q", "-I", "128", image.to_str().unwrap()]) {
        return None;
    }
    let below = Mounted::image(&image, &disk)?;
    let above = Mounted::overlay(&fixture.path("lower"), &disk, &fixture.exported(""))?;
    Some((above, below))
}

#[test]
fn a_handle_without_kernel_handle_and_birth_time_opens_no_other_file() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::with(TRUSTING);
    let Some(_mounts) = mount_without_identities(&fixture) else { return };
    fixture.reload(TRUSTING);
    let (mut client, root) = fixture.mounted();
    let inode = |name: &str| std::fs::metadata(fixture.exported(name)).unwrap().ino();
    std::fs::write(fixture.exported("old"), "old data").unwrap();
    let (old, number) = (client.find(root, "old"), inode("old"));
    // While the server has it open, it is one object through all changes.
    std::fs::write(fixture.exported("old"), "OLD DATA").unwrap();
    assert_eq!(client.find(root, "old"), old);
    assert_eq!(client.read(old, 0, 100).unwrap().data, b"OLD DATA");
    let dir = client.mkdir(root, "d");
    let file = client.create(dir, "f");
    ok(client.rename((dir, b"f"), (root, b"g")));
    assert_eq!(client.find(root, "g"), file);
    // A listing keeps nothing open, so it gives out no handle.
    assert!(
        client
            .list_plus(root)
            .iter()
            .all(|entry| entry.name == b"." || entry.handle.is_none() || entry.name == b"..")
    );

    fixture.stop();
    std::fs::remove_file(fixture.exported("old")).unwrap();
    let names: Vec<_> = (0..100).map(|i| format!("new-{i}")).collect();
    names.iter().for_each(|name| std::fs::write(fixture.exported(name), "another file").unwrap());
    let inode = |name: &String| std::fs::metadata(fixture.exported(name)).unwrap().ino();
    assert!(names.iter().any(|name| inode(name) == number), "the inode number is used again");
    fixture.restart();
    let mut client = fixture.client();
    all_refuse(&mut client, old, Status::Stale);
    all_refuse(&mut client, dir, Status::Stale);
    assert_eq!(client.mnt("/export"), root, "the root is the export's, not the inode's");
    let found = client.find(root, "new-0");
    assert_eq!(client.read(found, 0, 100).unwrap().data, b"another file");
}

#[test]
fn a_directory_moved_out_of_the_export_is_stale() {
    let mut fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    let inner = client.mkdir(dir, "e");
    client.create(inner, "f");
    std::fs::rename(fixture.exported("d"), fixture.path("outside")).unwrap();
    // The server may serve what it has open a moment longer, but never what lies above.
    if let Ok(page) = client.readdirplus(dir, 0, (4096, 4096)) {
        let above = page.names.iter().find(|entry| entry.name == b"..").unwrap();
        assert_eq!((above.handle, above.attributes), (None, None));
    }
    let above = client.lookup(dir, b"..").map(|found| found.object);
    if let Ok(above) = above {
        assert_eq!(above, root, "nothing outside may be reached");
    }
    for moved in [dir, inner] {
        assert!(eventually(|| client.getattr(moved) == Err(Status::Stale)), "{moved:?}");
        all_refuse(&mut client, moved, Status::Stale);
    }
    fixture.restart();
    let mut client = fixture.client();
    all_refuse(&mut client, inner, Status::Stale);
    // It comes back as what it was.
    std::fs::rename(fixture.path("outside"), fixture.exported("back")).unwrap();
    assert_eq!(client.find(root, "back"), dir);
    assert_eq!(client.find(dir, "e"), inner);
}

#[test]
fn a_file_that_loses_one_of_its_names_keeps_its_handle() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    // Without privileges: the one walk over the export is over before the files are there.
    let gone = client.create(root, "gone");
    ok(client.remove(root, b"gone"));
    assert_eq!(client.getattr(gone), Err(Status::Stale));
    let mut linked = |name: &str, second: &[u8]| {
        let file = client.create(root, name);
        ok(client.link(file, root, second));
        file
    };
    let (removed, replaced) = (linked("a", b"b"), linked("c", b"d"));
    let renamed = linked("e", b"f");
    ok(client.remove(root, b"b"));
    ok(client.rename((root, b"f"), (root, b"d")));
    ok(client.remove(root, b"d"));
    // Given up unused, and to be opened by its handle.
    let is_open = |name| is_open_below(&fixture.exported(name));
    assert!(eventually(|| !["a", "c", "e"].into_iter().any(is_open)));
    for file in [removed, replaced, renamed] {
        client.getattr(file).unwrap();
    }
}

#[test]
fn a_directory_without_permissions_gets_its_mode_back() {
    let mut fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    for is_restarted in [false, true] {
        ok(client.setattr(dir, crate::client::mode(0)));
        if is_restarted {
            fixture.restart();
            client = fixture.client();
        } else {
            // Until it is due to be checked that it lies below the export.
            std::thread::sleep(Duration::from_millis(1100));
        }
        assert_eq!(client.getattr(dir).unwrap().mode & 0o7777, 0);
        ok(client.setattr(dir, crate::client::mode(0o700)));
    }
}

#[test]
fn a_directory_moved_out_of_an_export_that_is_a_bind_mount_is_stale() {
    if !is_root() {
        return;
    }
    let mut mounted = None;
    let fixture = Fixture::prepared(TRUSTING, |dir| {
        std::fs::create_dir_all(dir.join("disk/part")).unwrap();
        set_mode(&dir.join("disk/part"), 0o777);
        mounted = Mounted::bind(&dir.join("disk/part"), &dir.join("export"));
    });
    let _mounted = mounted.expect("root may mount");
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    let inner = client.mkdir(dir, "e");
    std::fs::rename(fixture.path("disk/part/d"), fixture.path("disk/outside")).unwrap();
    for moved in [dir, inner] {
        assert!(eventually(|| client.getattr(moved) == Err(Status::Stale)), "{moved:?}");
        all_refuse(&mut client, moved, Status::Stale);
    }
}

#[test]
fn symbolic_links_lead_nowhere_on_the_server() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    std::fs::write(fixture.path("secret"), "secret").unwrap();
    symlink("../secret", fixture.exported("l")).unwrap();
    symlink("..", fixture.exported("up")).unwrap();
    let link = client.find(root, "l");
    assert_eq!(client.getattr(link).unwrap().file_type, FileType::Symlink);
    assert_eq!(client.read(link, 0, 10).unwrap_err(), Status::Inval);
    refusal(client.write(link, 0, b"x"));
    refusal(client.setattr(link, crate::client::size(0)));
    let up = client.find(root, "up");
    assert_eq!(client.readdir(up, 0, 4096).unwrap_err(), Status::Notdir);
    // CREATE over a link must not follow it either.
    let how = CreateHow::Unchecked(crate::client::size(0));
    assert_eq!(refusal(client.create_how(root, b"l", how)), Status::Exist);
    assert_eq!(std::fs::read(fixture.path("secret")).unwrap(), b"secret");
    // Attributes of a link are its own.
    set_mode(&fixture.path("secret"), 0o640);
    refusal(client.setattr(link, crate::client::mode(0o777)));
    let mode = std::fs::metadata(fixture.path("secret")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
}

#[test]
fn a_file_system_mounted_below_an_export_is_not_entered() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    client.create(dir, "below");
    let Some(_mount) = Mounted::tmpfs(&fixture.exported("d"), 64) else { return };
    std::fs::write(fixture.exported("d/inside"), "other file system").unwrap();
    assert_eq!(refusal(client.lookup(root, b"d")), Status::Acces);
    assert_eq!(client.try_mnt("/export/d").unwrap_err(), proto::mount3::MountStatus::Acces);
    assert_eq!(refusal(client.rmdir(root, b"d")), Status::Acces);
    assert_eq!(refusal(client.rename((root, b"d"), (root, b"e"))), Status::Acces);
    let listed = client.list_plus(root);
    let entry = listed.iter().find(|entry| entry.name == b"d").unwrap();
    assert_eq!((entry.handle, entry.attributes), (None, None));
    // The directory below the mount point is still the export's.
    assert_eq!(refusal(client.lookup(dir, b"inside")), Status::Noent);
    ok(client.lookup(dir, b"below"));
}

#[test]
fn blocks_of_a_file_deleted_by_a_local_process_are_freed_at_once() {
    let memory = Path::new("/dev/shm");
    if !memory.exists() {
        return skip("no /dev/shm");
    }
    let dir = tempfile::tempdir_in(memory).unwrap();
    set_mode(dir.path(), 0o777);
    let config = format!(
        "[[export]]\npath = {:?}\nname = \"/export\"\nsquash = \"none\"\nsync = false",
        dir.path()
    );
    let fixture = Fixture::with(&config);
    let (mut client, root) = fixture.mounted();
    let path = dir.path().join("f");
    std::fs::write(&path, "data").unwrap();
    // Open for reading alone, so that it would stay open unused for twice the time waited below.
    let file = client.find(root, "f");
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
    assert!(is_open_below(&path));
    std::fs::remove_file(&path).unwrap();
    // With the last descriptor the blocks are free. The free space of a file system that others use
    // does not show it.
    let deleted = dir.path().join("f (deleted)");
    assert!(eventually(|| !is_open_below(&deleted)), "the server keeps the deleted file");
    assert_eq!(client.getattr(file), Err(Status::Stale));
}
