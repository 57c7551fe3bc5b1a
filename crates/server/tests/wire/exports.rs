//! MOUNT (RFC 1813 Appendix I), and exports that come, change and go.

use proto::mount3::{DirectoryArgs, ExportList, MountList, MountStatus, Procedure};
use proto::nfs3::*;
use proto::xdr::decode_all;

use crate::client::{Client, Ids, mode, ok, refusal};
use crate::fixture::{Fixture, Mounted, is_root, run_or_skip};
use crate::handles::all_refuse;
use crate::local_file::{eventually, is_open_below};

const TWO: &str = r#"
    [[export]]
    path = "$DIR/export"
    name = "/srv/data"
    squash = "none"

    [[export]]
    path = "$DIR/export/deeper"
    name = "/srv/data/deeper"
    squash = "none"
    read_only = true
    [[export.client]]
    hosts = ["127.0.0.0/8", "192.0.2.1"]
"#;

fn two_exports() -> Fixture {
    Fixture::prepared(TWO, |dir| {
        std::fs::create_dir_all(dir.join("export/deeper/inner")).unwrap();
        std::fs::create_dir_all(dir.join("export/other/sub")).unwrap();
        std::fs::write(dir.join("export/file"), "data").unwrap();
        std::fs::create_dir(dir.join("outside")).unwrap();
        std::os::unix::fs::symlink("../outside", dir.join("export/link")).unwrap();
    })
}

#[test]
fn mnt_finds_exports_and_what_is_below_them() {
    let fixture = two_exports();
    let mut client = fixture.client();
    let root = client.mnt("/srv/data");
    let deeper = client.mnt("/srv/data/deeper");
    assert_eq!(client.mnt("/srv/data/"), root);
    let sub = client.mnt("/srv/data/other/sub");
    let other = client.find(root, "other");
    assert_eq!(client.find(other, "sub"), sub);
    let inner = client.mnt("/srv/data/deeper/inner");
    assert_eq!(client.find(deeper, "inner"), inner);
    let as_part = client.find(root, "deeper");
    assert_ne!(as_part, deeper, "each export has handles of its own");
    assert_ne!(client.getattr(root).unwrap().fsid, client.getattr(deeper).unwrap().fsid);
    for (path, status) in [
        ("/srv", MountStatus::Noent),
        ("/", MountStatus::Noent),
        ("", MountStatus::Noent),
        ("srv/data", MountStatus::Noent),
        ("/srv/database", MountStatus::Noent),
        ("/srv/data/nothing", MountStatus::Noent),
        ("/srv/data/file", MountStatus::Notdir),
        ("/srv/data/file/x", MountStatus::Notdir),
        ("/srv/data/link", MountStatus::Notdir),
        ("/srv/data/link/x", MountStatus::Notdir),
        ("/srv/data/..", MountStatus::Acces),
        ("/srv/data/../../etc", MountStatus::Acces),
        ("/srv/data/other/../other", MountStatus::Acces),
    ] {
        assert_eq!(client.try_mnt(path), Err(status), "{path:?}");
    }
    let long = format!("/srv/data/{}", "n".repeat(300));
    assert_eq!(client.try_mnt(&long), Err(MountStatus::Nametoolong));
    assert_eq!(client.try_mnt("/srv/data/other\0/sub"), Err(MountStatus::Inval));
}

#[test]
fn two_exports_of_one_tree_keep_their_own_policies() {
    let fixture = two_exports();
    let mut client = fixture.client();
    let (root, deeper) = (client.mnt("/srv/data"), client.mnt("/srv/data/deeper"));
    let as_part = client.find(root, "deeper");
    let file = client.create(as_part, "f");
    ok(client.write(file, 0, b"data"));
    let same_file = client.find(deeper, "f");
    assert_ne!(file, same_file);
    assert_eq!(client.read(same_file, 0, 10).unwrap().data, b"data");
    assert_eq!(refusal(client.write(same_file, 0, b"x")), Status::Rofs);
    assert_eq!(refusal(client.remove(deeper, b"f")), Status::Rofs);
    // Moving and linking between them would get around the policy.
    assert_eq!(refusal(client.link(same_file, root, b"x")), Status::Xdev);
    assert_eq!(refusal(client.rename((deeper, b"f"), (root, b"f"))), Status::Xdev);
    assert_eq!(refusal(client.rename((root, b"file"), (deeper, b"f"))), Status::Rofs);
    assert_eq!(ok(client.lookup(deeper, b"..")).object, deeper);
    ok(client.remove(as_part, b"f"));
    assert_eq!(client.getattr(same_file), Err(Status::Stale));
}

fn dump(client: &mut Client) -> Vec<(String, String)> {
    let results = client.mount_raw(Procedure::Dump, &());
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let list: MountList<'_> = decode_all(&results).unwrap();
    list.iter().map(|entry| (text(entry.hostname), text(entry.directory))).collect()
}

#[test]
fn dump_lists_what_was_mounted_until_it_is_unmounted() {
    let fixture = two_exports();
    let mut client = fixture.client();
    assert_eq!(dump(&mut client), []);
    client.mnt("/srv/data");
    client.mnt("/srv/data/deeper");
    client.mnt("/srv/data");
    client.try_mnt("/nothing").unwrap_err();
    let entry = |path: &str| ("127.0.0.1".to_owned(), path.to_owned());
    assert_eq!(dump(&mut client), [entry("/srv/data/deeper"), entry("/srv/data")]);
    let unmount = DirectoryArgs { directory: b"/srv/data" };
    assert!(client.mount_raw(Procedure::Umnt, &unmount).is_empty());
    assert_eq!(dump(&mut client), [entry("/srv/data/deeper")]);
    // No host unmounts for another.
    let elsewhere = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let mut other = Client::connect_from(elsewhere, fixture.address());
    assert!(other.mount_raw(Procedure::Umntall, &()).is_empty());
    assert_eq!(dump(&mut client).len(), 1);
    assert!(client.mount_raw(Procedure::Umntall, &()).is_empty());
    assert_eq!(dump(&mut client), []);
}

#[test]
fn the_list_of_mounts_is_bounded() {
    let fixture = two_exports();
    let mut client = fixture.client();
    for i in 0..1100 {
        std::fs::create_dir(fixture.exported(&format!("m{i}"))).unwrap();
        client.mnt(&format!("/srv/data/m{i}"));
    }
    assert_eq!(dump(&mut client).len(), 1024);
}

#[test]
fn export_lists_names_and_hosts() {
    let fixture = two_exports();
    let results = fixture.client().mount_raw(Procedure::Export, &());
    let list: ExportList<'_> = decode_all(&results).unwrap();
    let shown: Vec<_> = list
        .iter()
        .map(|node| {
            let groups: Vec<_> = node.groups.iter().map(|group| group.name).collect();
            (node.directory, groups)
        })
        .collect();
    let expected: Vec<(&[u8], Vec<&[u8]>)> = vec![
        (b"/srv/data", vec![b"127.0.0.0/8", b"::1"]),
        (b"/srv/data/deeper", vec![b"127.0.0.0/8", b"192.0.2.1"]),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn mount_leads_nowhere_that_the_caller_may_not_go() {
    if !is_root() {
        return;
    }
    let fixture =
        Fixture::prepared("[[export]]\npath = \"$DIR/export\"\nname = \"/export\"", |dir| {
            std::fs::create_dir_all(dir.join("export/private/home")).unwrap();
            std::os::unix::fs::chown(dir.join("export/private/home"), Some(1001), None).unwrap();
            crate::fixture::set_mode(&dir.join("export/private"), 0o700);
            std::os::unix::fs::chown(dir.join("export/private"), Some(1001), None).unwrap();
        });
    // The client's root is squashed, and the anonymous user may not search another user's private
    // directory.
    let refused = fixture.client().try_mnt("/export/private/home");
    assert_eq!(refused, Err(proto::mount3::MountStatus::Acces));
    let mut owner = fixture.client().becoming(Ids::user(1001));
    let home = owner.mnt("/export/private/home");
    owner.create(home, "f");
}

const A: &str = "[[export]]\npath = \"$DIR/export\"\nname = \"/a\"\nsquash = \"none\"\n";
const B: &str = "[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\nsquash = \"none\"\n";

#[test]
fn a_reload_adds_removes_and_changes() {
    let fixture = Fixture::prepared(A, |dir| {
        std::fs::create_dir(dir.join("b")).unwrap();
        std::fs::create_dir(dir.join("b/in-b")).unwrap();
    });
    let mut client = fixture.client();
    let a = client.mnt("/a");
    let file = client.create(a, "f");
    let dir = client.mkdir(a, "d");
    let verifier = ok(client.write(file, 0, b"data")).verifier;
    assert_eq!(client.try_mnt("/b"), Err(MountStatus::Noent));

    assert_eq!(fixture.reload(&format!("{A}{B}")), "added /b");
    let b = client.mnt("/b");
    client.create(b, "g");
    assert_eq!(ok(client.commit(file)).verifier, verifier, "an export untouched loses no data");

    assert_eq!(fixture.reload(&format!("{A}read_only = true\n{B}")), "changed /a");
    assert_eq!(refusal(client.write(file, 0, b"x")), Status::Rofs);
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
    client.create(b, "h");

    assert_eq!(fixture.reload(B), "removed /a");
    for handle in [a, file, dir] {
        all_refuse(&mut client, handle, Status::Stale);
    }
    assert_eq!(client.try_mnt("/a"), Err(MountStatus::Noent));
    client.create(b, "i");

    fixture.reload(&format!("{A}{B}"));
    assert_eq!(client.mnt("/a"), a, "the same name has the same handles again");
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
}

#[test]
fn a_name_that_moves_to_another_directory_leaves_the_old_tree() {
    let fixture = Fixture::prepared(A, |dir| std::fs::create_dir(dir.join("b")).unwrap());
    let mut client = fixture.client();
    let root = client.mnt("/a");
    let dir = client.mkdir(root, "d");
    client.create(dir, "f");
    fixture.reload("[[export]]\npath = \"$DIR/b\"\nname = \"/a\"\nsquash = \"none\"\n");
    // An open object of the old tree is not served as part of the new one.
    assert_eq!(client.getattr(root), Err(Status::Stale));
    assert_eq!(client.getattr(dir), Err(Status::Stale));
    assert_eq!(refusal(client.lookup(dir, b"f")), Status::Stale);
    let new_root = client.mnt("/a");
    assert_ne!(new_root, root);
    ok(client.create_how(new_root, b"g", CreateHow::Guarded(mode(0o600))));
    assert!(fixture.path("b/g").exists());
}

#[test]
fn a_reload_serves_the_directory_that_is_at_the_path_now() {
    let fixture = Fixture::with(A);
    let mut client = fixture.client();
    let root = client.mnt("/a");
    let (file, dir) = (client.create(root, "f"), client.mkdir(root, "d"));
    let verifier = ok(client.write(file, 0, b"old")).verifier;
    assert_eq!(fixture.reload(A), "no export changed");
    assert_eq!(ok(client.write(file, 0, b"OLD")).verifier, verifier);

    let moved = fixture.path("moved");
    std::fs::rename(fixture.exported(""), &moved).unwrap();
    std::fs::create_dir(fixture.exported("")).unwrap();
    assert_eq!(fixture.reload(A), "another directory behind /a");
    for handle in [root, file, dir] {
        all_refuse(&mut client, handle, Status::Stale);
    }
    let root = client.mnt("/a");
    let file = client.create(root, "f");
    ok(client.write(file, 0, b"new"));
    assert_eq!(std::fs::read(fixture.exported("f")).unwrap(), b"new");
    assert_eq!(std::fs::read(moved.join("f")).unwrap(), b"OLD");
    assert!(eventually(|| !is_open_below(&moved)));

    // Removed and made again, most likely with the same inode number.
    std::fs::remove_dir_all(fixture.exported("")).unwrap();
    std::fs::create_dir(fixture.exported("")).unwrap();
    assert_eq!(client.getattr(root), Err(Status::Stale));
    assert_eq!(fixture.reload(A), "another directory behind /a");
    all_refuse(&mut client, file, Status::Stale);
    let root = client.mnt("/a");
    client.create(root, "g");
    assert!(fixture.exported("g").exists());

    // The first one comes back, and with it what its handles name.
    std::fs::rename(fixture.exported(""), fixture.path("third")).unwrap();
    std::fs::rename(&moved, fixture.exported("")).unwrap();
    fixture.reload(A);
    assert_eq!(client.getattr(root), Err(Status::Stale));
    let root = client.mnt("/a");
    assert_eq!(client.find(root, "d"), dir);
}

#[test]
fn a_reload_is_refused_when_a_path_is_gone() {
    let fixture = Fixture::with(A);
    let mut client = fixture.client();
    let root = client.mnt("/a");
    let file = client.create(root, "f");
    std::fs::rename(fixture.exported(""), fixture.path("moved")).unwrap();
    let refusal = fixture.refused_reload(A);
    let path = fixture.path("export");
    assert!(refusal.contains(path.to_str().unwrap()), "{refusal}");
    assert!(refusal.contains("No such file or directory"), "{refusal}");
    ok(client.write(file, 0, b"served on"));
    assert_eq!(std::fs::read(fixture.path("moved/f")).unwrap(), b"served on");
}

#[test]
fn a_reload_notices_what_was_mounted_and_unmounted_over_an_export() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(A);
    let mut client = fixture.client();
    let below = client.mnt("/a");
    let file_below = client.create(below, "below");
    let Some(mount) = Mounted::tmpfs(&fixture.exported(""), 64) else { return };
    ok(client.write(file_below, 0, b"until the reload"));
    assert_eq!(fixture.reload(A), "another directory behind /a");
    all_refuse(&mut client, below, Status::Stale);
    all_refuse(&mut client, file_below, Status::Stale);
    let root = client.mnt("/a");
    let file = client.create(root, "above");
    assert!(fixture.exported("above").exists());

    // The server has it open, so it can only be detached, and is served until the reload.
    drop(mount);
    ok(client.write(file, 0, b"detached"));
    assert_eq!(fixture.reload(A), "another directory behind /a");
    all_refuse(&mut client, root, Status::Stale);
    all_refuse(&mut client, file, Status::Stale);
    assert_eq!(client.mnt("/a"), below, "the directory below, with the handles it had");
    assert_eq!(client.read(file_below, 0, 100).unwrap().data, b"until the reload");
}

#[test]
fn a_handle_of_one_file_system_opens_nothing_on_the_next() {
    if !is_root() {
        return;
    }
    // To the kernel the roots of all ext4 file systems have the same handle.
    let over = Fixture::over(A, |dir| {
        let make = |image: &str| {
            let image = dir.join(image);
            std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
            run_or_skip("mkfs.ext4", &["-q", image.to_str().unwrap()]).then_some(image)
        };
        let [first, second] = [make("first")?, make("second")?];
        Some((Mounted::image(&first, &dir.join("export"))?, second))
    });
    let Some((fixture, (_first, second))) = over else { return };
    let mut client = fixture.client();
    let root = client.mnt("/a");
    let _second = Mounted::image(&second, &fixture.exported("")).unwrap();
    fixture.reload(A);
    assert_ne!(client.mnt("/a"), root);
    all_refuse(&mut client, root, Status::Stale);
}
