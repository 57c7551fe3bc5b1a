//! Permissions: the kernel decides about names, the server about data, by a client's ids after
//! squashing.

use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use proto::mount3::MountStatus;
use proto::nfs3::*;
use rustix::fs::{XattrFlags, setxattr};

use crate::client::{Client, Ids, mode, ok, refusal, size};
use crate::fixture::{Fixture, access_list, is_root, run, set_access_list, set_mode};
use crate::handles::all_refuse;
use crate::skip::skip_in_ci_too;
use crate::user_namespace::ran_in_user_namespace;

/// A client with the credential of this user, and the root of `/export`.
fn user(fixture: &Fixture, id: u32) -> (Client, FileHandle) {
    let mut client = fixture.client().becoming(Ids::user(id));
    let root = client.mnt("/export");
    (client, root)
}

#[test]
fn new_objects_belong_to_the_caller() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let mut client = fixture.client().becoming(Ids { uid: 1001, gid: 1002, groups: vec![5, 6, 7] });
    let root = client.mnt("/export");
    let how = CreateHow::Guarded(mode(0o644));
    let made = [
        ok(client.create_how(root, b"f", how)),
        ok(client.create_how(root, b"x", CreateHow::Exclusive([7; 8]))),
        ok(client.try_mkdir(root, b"d", mode(0o755))),
        ok(client.symlink(root, b"l", b"t")),
        ok(client.mknod(root, b"p", MknodData::Fifo(mode(0o600)))),
    ];
    for made in made {
        let attributes = made.attributes.unwrap();
        assert_eq!((attributes.uid, attributes.gid), (1001, 1002), "{:?}", attributes.file_type);
    }
    // A supplementary group may be given to one's own file, another group may not.
    let file = client.find(root, "f");
    let gid = |gid| SetAttributes { gid: Some(gid), ..SetAttributes::default() };
    ok(client.setattr(file, gid(6)));
    assert_eq!(refusal(client.setattr(file, gid(99))), Status::Perm);
    let to_another = SetAttributes { uid: Some(1), ..SetAttributes::default() };
    assert_eq!(refusal(client.setattr(file, to_another)), Status::Perm);
    // To the kernel this id means "leave it".
    let no_id = SetAttributes { uid: Some(u32::MAX), ..SetAttributes::default() };
    assert_eq!(refusal(client.setattr(file, no_id)), Status::Inval);
    let how = CreateHow::Guarded(no_id);
    assert_eq!(refusal(client.create_how(root, b"never", how)), Status::Inval);
    assert_eq!(refusal(client.lookup(root, b"never")), Status::Noent, "nothing was made");
}

/// The owner and group of objects that `client` makes in each way with these attributes.
fn owners_of_new(client: &mut Client, dir: FileHandle, set: SetAttributes) -> Vec<(u32, u32)> {
    let made = [
        client.create_how(dir, b"guarded", CreateHow::Guarded(set)),
        client.create_how(dir, b"unchecked", CreateHow::Unchecked(set)),
        client.try_mkdir(dir, b"directory", set),
        client.mknod(dir, b"fifo", MknodData::Fifo(set)),
        client.symlink_with(dir, b"link", b"target", set),
    ];
    let owner = |made: CreatedReply| {
        let attributes = ok(made).attributes.unwrap();
        (attributes.uid, attributes.gid)
    };
    made.map(owner).to_vec()
}

#[test]
fn creation_ignores_an_owner_and_group_that_the_caller_may_not_give() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let mut user = fixture.client().becoming(Ids { uid: 1001, gid: 1002, groups: vec![5] });
    let mut root_user = fixture.client();
    let root = root_user.mnt("/export");
    let own = (1001, 1002);
    // A symbolic link has the owner and group that the kernel gives it, whatever is sent.
    let cases = [
        (Some(1003), None, own, own),
        (None, Some(99), own, own),
        (Some(1003), Some(99), own, own),
        (Some(1003), Some(5), (1001, 5), own),
        (Some(1001), Some(5), (1001, 5), own),
        (Some(1001), Some(1002), own, own),
    ];
    for (i, (uid, gid, expected, of_link)) in cases.into_iter().enumerate() {
        let dir = root_user.mkdir(root, &i.to_string());
        let set = SetAttributes { uid, gid, ..mode(0o777) };
        let owners = owners_of_new(&mut user, dir, set);
        assert_eq!(owners, [expected, expected, expected, expected, of_link], "{uid:?} {gid:?}");
    }
    // A caller who may give objects away still does.
    let dir = root_user.mkdir(root, "by-root");
    let set = SetAttributes { uid: Some(1003), gid: Some(99), ..mode(0o777) };
    assert_eq!(owners_of_new(&mut root_user, dir, set)[..4], [(1003, 99); 4]);
}

#[test]
fn names_are_the_kernels_to_guard() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut owner, root) = user(&fixture, 1001);
    let (mut other, _) = user(&fixture, 1002);
    let private = ok(owner.try_mkdir(root, b"private", mode(0o700))).object.unwrap();
    let file = owner.create(private, "f");
    assert_eq!(refusal(other.lookup(private, b"f")), Status::Acces);
    assert_eq!(refusal(other.lookup(private, b"..")), Status::Acces);
    assert_eq!(other.readdir(private, 0, 4096).unwrap_err(), Status::Acces);
    assert_eq!(other.readdirplus(private, 0, (4096, 4096)).unwrap_err(), Status::Acces);
    let how = CreateHow::Unchecked(mode(0o600));
    assert_eq!(refusal(other.create_how(private, b"x", how)), Status::Acces);
    assert_eq!(refusal(other.remove(private, b"f")), Status::Acces);
    assert_eq!(refusal(other.rename((private, b"f"), (root, b"f"))), Status::Acces);
    assert_eq!(refusal(other.link(file, private, b"x")), Status::Acces);
    assert_eq!(refusal(other.setattr(file, mode(0o777))), Status::Perm);
    assert_eq!(ok(other.access(private, 0x3f)).access, 0);
    assert_eq!(ok(owner.access(private, 0x3f)).access, 0x1f);
    // The sticky bit keeps names to their owners.
    let shared = ok(owner.try_mkdir(root, b"shared", mode(0o1777))).object.unwrap();
    owner.create(shared, "g");
    assert!(matches!(refusal(other.remove(shared, b"g")), Status::Perm | Status::Acces));
    // A directory that may be passed but not listed.
    ok(owner.setattr(private, mode(0o711)));
    ok(other.lookup(private, b"f"));
    assert_eq!(other.readdir(private, 0, 4096).unwrap_err(), Status::Acces);
}

#[test]
fn unchecked_create_of_an_existing_file_needs_no_permission_on_the_directory() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut owner, root) = user(&fixture, 1001);
    let (mut other, _) = user(&fixture, 1002);
    let dir = ok(owner.try_mkdir(root, b"d", mode(0o755))).object.unwrap();
    let file = owner.create(dir, "f");
    ok(owner.write(file, 0, b"data"));
    let unchecked = CreateHow::Unchecked(mode(0o666));
    assert_eq!(ok(other.create_how(dir, b"f", unchecked)).object, Some(file));
    ok(other.create_how(dir, b"f", CreateHow::Unchecked(size(0))));
    assert_eq!(owner.getattr(file).unwrap().size, 0, "everyone may write this one");
    assert_eq!(refusal(other.create_how(dir, b"new", unchecked)), Status::Acces);
    // But cutting needs the permission to write.
    ok(owner.write(file, 0, b"data"));
    ok(owner.setattr(file, mode(0o644)));
    assert_eq!(refusal(other.create_how(dir, b"f", CreateHow::Unchecked(size(0)))), Status::Acces);
    assert_eq!(owner.getattr(file).unwrap().size, 4);
}

#[test]
fn a_writer_may_set_times_to_now_and_only_the_owner_to_others() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut owner, root) = user(&fixture, 1001);
    let file = owner.create(root, "f");
    ok(owner.setattr(file, mode(0o660)));
    let mut member = fixture.client().becoming(Ids { uid: 1002, gid: 1001, groups: vec![] });
    let (mut other, _) = user(&fixture, 1003);
    let (keep, now) = (SetTime::DontChange, SetTime::ToServerTime);
    let old = SetTime::ToClientTime(Time { seconds: 1000, nseconds: 0 });
    let times = |atime, mtime| SetAttributes { atime, mtime, ..SetAttributes::default() };
    for (atime, mtime) in [(keep, now), (now, now)] {
        ok(owner.setattr(file, times(old, old)));
        ok(member.setattr(file, times(atime, mtime)));
        let set = owner.getattr(file).unwrap();
        let is_set = [set.atime.seconds > 1000, set.mtime.seconds > 1000];
        assert!(is_set[0] || atime == keep, "{set:?}");
        assert!(is_set[1] || mtime == keep, "{set:?}");
        // As an open with O_TRUNC of a file that is empty, or not.
        for len in [0, 10] {
            ok(member.setattr(file, SetAttributes { size: Some(len), ..times(atime, mtime) }));
        }
        assert_eq!(refusal(other.setattr(file, times(atime, mtime))), Status::Acces);
        assert_eq!(refusal(member.setattr(file, times(atime, old))), Status::Perm);
        assert_eq!(refusal(member.setattr(file, times(old, mtime))), Status::Perm);
    }
    assert_eq!(refusal(member.setattr(file, times(now, keep))), Status::Perm, "as here");
}

#[test]
fn data_is_guarded_by_the_mode_as_it_is_now() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut owner, root) = user(&fixture, 1001);
    let file = owner.create(root, "f");
    ok(owner.write(file, 0, b"data"));
    let mut member = fixture.client().becoming(Ids { uid: 1002, gid: 9, groups: vec![3, 1001] });
    let (mut other, _) = user(&fixture, 1003);
    let may = |client: &mut Client| {
        (client.read(file, 0, 4).is_ok(), client.write(file, 0, b"D").is_ok())
    };
    for (bits, by_member, by_other) in [
        (0o666, (true, true), (true, true)),
        (0o600, (false, false), (false, false)),
        (0o640, (true, false), (false, false)),
        (0o664, (true, true), (true, false)),
        (0o604, (false, false), (true, false)),
        (0o602, (false, false), (false, true)),
        // Execute permission suffices to read: a client pages programs in with READ.
        (0o711, (true, false), (true, false)),
    ] {
        // Once by the client and once behind the server's back.
        ok(owner.setattr(file, mode(0o000)));
        set_mode(&fixture.exported("f"), bits);
        assert_eq!(may(&mut member), by_member, "{bits:o}, group");
        assert_eq!(may(&mut other), by_other, "{bits:o}, others");
        assert_eq!(may(&mut owner), (true, true), "the owner has the file open: {bits:o}");
    }
    assert_eq!(other.read(file, 0, 4).map(|_| ()), Ok(()));
    set_mode(&fixture.exported("f"), 0o600);
    assert_eq!(other.read(file, 0, 4).unwrap_err(), Status::Acces);
    assert_eq!(refusal(other.write(file, 0, b"x")), Status::Acces);
    assert_eq!(refusal(other.commit(file)), Status::Acces);
    assert_eq!(refusal(other.setattr(file, size(0))), Status::Acces);
    // A change of owner fences the old one at once.
    chown(fixture.exported("f"), Some(1003), Some(1003)).unwrap();
    assert_eq!(may(&mut owner), (false, false));
    assert_eq!(may(&mut other), (true, true));
}

#[test]
fn a_refused_write_leaves_a_program_executable() {
    if !is_root() {
        return;
    }
    for write_mode in ["buffered", "direct"] {
        let fixture = Fixture::in_modes("", "buffered", write_mode);
        let program = fixture.exported("program");
        let path = program.to_str().unwrap();
        // Made by another process: this one may fork, in another test, while it has a file open.
        run("cp", &["/bin/true", path]).and_then(|()| run("chmod", &["755", path])).unwrap();
        let (mut user, root) = user(&fixture, 1000);
        let file = user.find(root, "program");
        let large = vec![b'x'; 1 << 20];
        assert_eq!(refusal(user.write(file, 0, b"x")), Status::Acces);
        assert!(run(path, &[]).is_ok(), "after a WRITE, {write_mode}");
        assert_eq!(refusal(user.write(file, 0, &large)), Status::Acces);
        assert!(run(path, &[]).is_ok(), "after a large WRITE, {write_mode}");
        assert_eq!(refusal(user.commit(file)), Status::Acces);
        assert!(run(path, &[]).is_ok(), "after COMMIT, {write_mode}");
        assert_eq!(refusal(user.setattr(file, size(0))), Status::Acces);
        assert!(run(path, &[]).is_ok(), "after SETATTR, {write_mode}");
        let cut = CreateHow::Unchecked(size(0));
        assert_eq!(refusal(user.create_how(root, b"program", cut)), Status::Acces);
        assert!(run(path, &[]).is_ok(), "after CREATE, {write_mode}");
        assert_eq!(user.read(file, 0, 4).unwrap().data, b"\x7fELF");
    }
}

#[test]
fn the_owner_writes_on_after_a_chmod() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut owner, root) = user(&fixture, 1001);
    let file = owner.create(root, "f");
    ok(owner.setattr(file, mode(0o444)));
    ok(owner.write_stable(file, 0, b"still mine", StableHow::FileSync));
    ok(owner.setattr(file, size(5)));
    ok(owner.setattr(file, mode(0o000)));
    assert_eq!(owner.read(file, 0, 10).unwrap().data, b"still");
    // ACCESS reports the permissions of a new open.
    assert_eq!(ok(owner.access(file, 0x3f)).access, 0);
    // As a file made with such a mode, and filled by its maker (tar and cp do this).
    let how = CreateHow::Guarded(mode(0o400));
    let made = ok(owner.create_how(root, b"g", how)).object.unwrap();
    ok(owner.write(made, 0, b"data"));
}

#[test]
fn access_control_lists_count() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut owner, root) = user(&fixture, 1001);
    let file = owner.create(root, "f");
    ok(owner.write(file, 0, b"data"));
    let path = fixture.exported("f");
    set_mode(&path, 0o600);
    if !set_access_list(&path, 0o600, &[(1002, 4), (1003, 6)]) {
        return skip_in_ci_too("the file system has none");
    }
    let (mut reader, _) = user(&fixture, 1002);
    let (mut writer, _) = user(&fixture, 1003);
    let (mut stranger, _) = user(&fixture, 1004);
    assert_eq!(reader.read(file, 0, 4).unwrap().data, b"data");
    assert_eq!(refusal(reader.write(file, 0, b"x")), Status::Acces);
    ok(writer.write(file, 0, b"DATA"));
    assert_eq!(stranger.read(file, 0, 4).unwrap_err(), Status::Acces);
    assert_eq!(ok(reader.access(file, 0x3f)).access, ACCESS_READ);
    // A list can also take away what the bits of others give.
    assert!(set_access_list(&path, 0o666, &[(1004, 0)]));
    assert_eq!(stranger.read(file, 0, 4).unwrap_err(), Status::Acces);
    assert_eq!(refusal(stranger.write(file, 0, b"x")), Status::Acces);
    // The first to ask is refused or served by the list too, before the server has opened the file.
    for (name, user, bits) in [("grants", (1002, 4), 0o640), ("denies", (1004, 0), 0o666)] {
        let path = fixture.exported(name);
        std::fs::write(&path, "data").unwrap();
        assert!(set_access_list(&path, bits, &[user]));
    }
    let granting = reader.find(root, "grants");
    assert_eq!(reader.read(granting, 0, 4).unwrap().data, b"data");
    let denying = stranger.find(root, "denies");
    assert_eq!(refusal(stranger.write(denying, 0, b"x")), Status::Acces);
    // A default list of a directory reaches what is made in it.
    let dir = ok(owner.try_mkdir(root, b"d", mode(0o755))).object.unwrap();
    let dir_path = fixture.exported("d");
    let list = access_list(0o755, &[(1002, 6)]);
    setxattr(&dir_path, "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
    let inherited = owner.create(dir, "g");
    ok(reader.write(inherited, 0, b"x"));
}

#[test]
fn root_is_squashed_by_default_and_everyone_on_demand() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(
        r#"
        [[export]]
        path = "$DIR/export"
        name = "/default"

        [[export]]
        path = "$DIR/export"
        name = "/all"
        squash = "all"
        anonymous_uid = 1234
        anonymous_gid = 1235
        "#,
    );
    let how = CreateHow::Guarded(mode(0o600));
    let made_as = |export: &str, name: &[u8], ids: Option<Ids>| {
        let mut client = fixture.client();
        client.ids = ids;
        let root = client.mnt(export);
        let made = ok(client.create_how(root, name, how)).attributes.unwrap();
        (made.uid, made.gid)
    };
    let user = Ids { uid: 1001, gid: 1002, groups: vec![] };
    assert_eq!(made_as("/default", b"a", Some(Ids::root())), (65534, 65534));
    assert_eq!(made_as("/default", b"b", Some(user.clone())), (1001, 1002));
    assert_eq!(made_as("/default", b"c", None), (65534, 65534));
    assert_eq!(made_as("/default", b"d", Some(Ids { gid: 0, ..user.clone() })), (1001, 65534));
    let minus_one = Ids { uid: u32::MAX, gid: u32::MAX, groups: vec![u32::MAX] };
    assert_eq!(made_as("/default", b"e", Some(minus_one)), (65534, 65534));
    assert_eq!(made_as("/all", b"f", Some(user)), (1234, 1235));
    assert_eq!(made_as("/all", b"g", Some(Ids::root())), (1234, 1235));
    assert_eq!(made_as("/all", b"h", None), (1234, 1235));
    // A squashed root gets no more than anyone, whatever export the file came from.
    std::fs::write(fixture.exported("secret"), "secret").unwrap();
    set_mode(&fixture.exported("secret"), 0o600);
    let mut client = fixture.client();
    let root = client.mnt("/default");
    let secret = client.find(root, "secret");
    assert_eq!(client.read(secret, 0, 10).unwrap_err(), Status::Acces);
    assert_eq!(refusal(client.write(secret, 0, b"x")), Status::Acces);
    assert_eq!(refusal(client.setattr(secret, mode(0o666))), Status::Perm);
    // A supplementary group 0 is squashed with the rest.
    chown(fixture.exported("secret"), None, Some(0)).unwrap();
    set_mode(&fixture.exported("secret"), 0o640);
    let mut wheel = fixture.client().becoming(Ids { uid: 1001, gid: 1001, groups: vec![0] });
    assert_eq!(wheel.read(secret, 0, 10).unwrap_err(), Status::Acces);
}

#[test]
fn create_keeps_the_special_bits_that_its_own_steps_clear() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut owner, root) = user(&fixture, 1001);
    // Setting a length or an owner clears these bits; the client asked for all of it.
    let with_size = CreateHow::Guarded(SetAttributes { size: Some(100), ..mode(0o6755) });
    let made = ok(owner.create_how(root, b"f", with_size)).attributes.unwrap();
    assert_eq!((made.mode, made.size), (0o6755, 100));
    let mut client = fixture.client();
    let given_away = SetAttributes { uid: Some(1001), gid: Some(1002), ..mode(0o6755) };
    let made = ok(client.create_how(root, b"g", CreateHow::Guarded(given_away)));
    let attributes = made.attributes.unwrap();
    assert_eq!((attributes.mode, attributes.uid, attributes.gid), (0o6755, 1001, 1002));
}

#[test]
fn a_write_of_another_clears_set_user_id() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut owner, root) = user(&fixture, 1001);
    let (mut other, _) = user(&fixture, 1002);
    let file = owner.create(root, "f");
    let setuid = |owner: &mut Client| ok(owner.setattr(file, mode(0o6777)));
    setuid(&mut owner);
    ok(other.write(file, 0, b"x"));
    assert_eq!(owner.getattr(file).unwrap().mode, 0o777);
    setuid(&mut owner);
    ok(other.setattr(file, size(0)));
    assert_eq!(owner.getattr(file).unwrap().mode, 0o777);
    setuid(&mut owner);
    ok(owner.setattr(file, SetAttributes { gid: Some(1001), ..SetAttributes::default() }));
    assert_eq!(owner.getattr(file).unwrap().mode & 0o4000, 0, "a chown clears it as well");
}

#[test]
fn read_only_refuses_every_change() {
    let fixture = Fixture::prepared(
        r#"
        [[export]]
        path = "$DIR/export"
        name = "/export"
        squash = "none"
        [[export.client]]
        hosts = ["127.0.0.2"]
        [[export.client]]
        hosts = ["127.0.0.0/8"]
        read_only = true
        "#,
        |dir| {
            std::fs::write(dir.join("export/f"), "data").unwrap();
            std::fs::create_dir(dir.join("export/d")).unwrap();
        },
    );
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
    assert_eq!(client.list(root).len(), 4);
    let access = ok(client.access(root, 0x3f)).access;
    assert_eq!(access, ACCESS_READ | ACCESS_LOOKUP, "ACCESS knows it too");
    let how = CreateHow::Guarded(mode(0o600));
    let existing = CreateHow::Unchecked(mode(0o600));
    let fifo = MknodData::Fifo(mode(0o600));
    for (procedure, status) in [
        ("SETATTR", refusal(client.setattr(file, mode(0o600)))),
        ("SETATTR of the length", refusal(client.setattr(file, size(0)))),
        ("WRITE", refusal(client.write(file, 0, b"x"))),
        ("WRITE of nothing", refusal(client.write(file, 0, b""))),
        ("CREATE", refusal(client.create_how(root, b"x", how))),
        ("CREATE of what exists", refusal(client.create_how(root, b"f", existing))),
        ("EXCLUSIVE CREATE", refusal(client.create_how(root, b"x", CreateHow::Exclusive([1; 8])))),
        ("MKDIR", refusal(client.try_mkdir(root, b"x", mode(0o700)))),
        ("SYMLINK", refusal(client.symlink(root, b"x", b"t"))),
        ("MKNOD", refusal(client.mknod(root, b"x", fifo))),
        ("REMOVE", refusal(client.remove(root, b"f"))),
        ("RMDIR", refusal(client.rmdir(root, b"d"))),
        ("RENAME", refusal(client.rename((root, b"f"), (root, b"g")))),
        ("LINK", refusal(client.link(file, root, b"g"))),
    ] {
        assert_eq!(status, Status::Rofs, "{procedure}");
    }
    assert_eq!(std::fs::metadata(fixture.exported("f")).unwrap().size(), 4);
    // The same export for another host.
    let mut writer = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), fixture.address());
    ok(writer.write(file, 0, b"DATA"));
}

#[test]
fn a_host_that_is_not_listed_gets_nothing_even_with_a_handle() {
    let fixture = Fixture::with(
        r#"
        [[export]]
        path = "$DIR/export"
        name = "/export"
        squash = "none"
        [[export.client]]
        hosts = ["127.0.0.1"]
        "#,
    );
    let (mut admitted, root) = fixture.mounted();
    let file = admitted.create(root, "f");
    let mut thief = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), fixture.address());
    assert_eq!(thief.try_mnt("/export").unwrap_err(), MountStatus::Acces);
    for handle in [root, file] {
        all_refuse(&mut thief, handle, Status::Acces);
    }
    thief.null();
    thief.ids = None;
    all_refuse(&mut thief, root, Status::Acces);
    assert_eq!(admitted.getattr(file).unwrap().size, 0);
}

#[test]
fn ordinary_ports_are_refused_where_the_export_asks_for_others() {
    let fixture = Fixture::with(
        r#"
        [[export]]
        path = "$DIR/export"
        name = "/export"
        secure_ports = true
        "#,
    );
    let mut client = fixture.client();
    assert_eq!(client.try_mnt("/export").unwrap_err(), MountStatus::Acces);
}

#[test]
fn a_user_that_the_user_namespace_does_not_map_gets_nothing() {
    let test = "identity::a_user_that_the_user_namespace_does_not_map_gets_nothing";
    if ran_in_user_namespace(test, ["0 0 65535"; 2], "allow", |_| {}) {
        return;
    }
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    ok(client.setattr(file, mode(0o666)));
    ok(client.write(file, 0, b"data"));
    // Has the kernel asked for an access control list.
    let (mut mapped, _) = user(&fixture, 1000);
    assert_eq!(mapped.read(file, 0, 10).unwrap().data, b"data");
    let unmapped = [Ids { gid: 1000, ..Ids::user(70_000) }, Ids { uid: 1000, ..Ids::user(70_000) }];
    for ids in unmapped {
        let mut client = fixture.client().becoming(ids);
        assert_eq!(client.try_mnt("/export").unwrap_err(), MountStatus::Acces);
        all_refuse(&mut client, file, Status::Acces);
    }
    let groups = Ids { groups: vec![70_000], ..Ids::user(1000) };
    let mut client = fixture.client().becoming(groups);
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
    assert_eq!(ok(client.access(file, ACCESS_MODIFY)).access, ACCESS_MODIFY);
}

/// Such files are shown as those of the anonymous user and its group.
#[test]
fn a_squashed_user_is_no_owner_of_files_of_users_that_the_user_namespace_does_not_map() {
    let test = "identity::a_squashed_user_is_no_owner_of_files_of_users_that_the_user_namespace_does_not_map";
    let prepare = |dir: &Path| {
        set_mode(dir, 0o777);
        for (name, owner, group) in [("group", 0, 70_000), ("owner", 70_000, 0)] {
            let path = dir.join(name);
            std::fs::write(&path, "data").unwrap();
            chown(&path, Some(owner), Some(group)).unwrap();
            set_mode(&path, 0o660);
        }
    };
    if ran_in_user_namespace(test, ["0 0 65535"; 2], "allow", prepare) {
        return;
    }
    let dir = std::env::current_dir().unwrap();
    let text = format!("[[export]]\npath = {dir:?}\nname = \"/export\"\nsync = false");
    let fixture = Fixture::with(&text);
    for ids in [Ids::root(), Ids::user(65_534), Ids { groups: vec![65_534], ..Ids::user(1000) }] {
        let mut client = fixture.client().becoming(ids.clone());
        let root = client.mnt("/export");
        for name in ["group", "owner"] {
            let file = client.find(root, name);
            let attributes = client.getattr(file).unwrap();
            assert!([attributes.uid, attributes.gid].contains(&65_534), "{attributes:?}");
            assert_eq!(ok(client.access(file, ACCESS_READ | ACCESS_MODIFY)).access, 0);
            assert_eq!(client.read(file, 0, 10).unwrap_err(), Status::Acces, "{name} {ids:?}");
            assert_eq!(refusal(client.write(file, 0, b"x")), Status::Acces, "{name} {ids:?}");
            assert_eq!(refusal(client.setattr(file, size(0))), Status::Acces, "{name} {ids:?}");
            assert_eq!(refusal(client.setattr(file, mode(0o666))), Status::Perm, "{name} {ids:?}");
            assert_eq!(std::fs::read(dir.join("group")).unwrap(), b"data");
        }
    }
    // A file that the kernel permits is served.
    let mut client = fixture.client();
    let root = client.mnt("/export");
    let file = client.create(root, "new");
    ok(client.write(file, 0, b"data"));
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"data");
}
