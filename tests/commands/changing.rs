//! `chmod`, `chown`, `touch`, `ln`, `mkdir`, `rmdir` and `du`: what is not as with coreutils on
//! local files.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use proto::nfs3::{
    Attributes, CreatedOk, CreatedReply, DeviceSpec, FileType, MkdirArgs, Procedure, Time, WccData,
};
use proto::oncrpc::encode_success;
use proto::xdr::{Decode, Encode};
use rpc::record;

use crate::fixture::{Server, assert_exit, run, spillway, succeeded, text};
use crate::relay::intercept;
use crate::skip::skip;

/// A user who is not the one of this process.
const OTHER: u32 = 4711;
const AS_OTHER: &str = "?uid=4711&gid=4711";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A directory of user [`OTHER`], with a file of that user and a file and a directory of root in
/// it; none without the right to make them.
fn of_others() -> Option<Server> {
    let server = Server::start();
    if !rustix::process::geteuid().is_root() {
        skip("files of others need root");
        return None;
    }
    fs::create_dir_all(server.path("dir/roots")).unwrap();
    server.put("dir/file", "");
    server.put("dir/roots/file", "");
    server.put("dir/own", "");
    set_mode(&server.path("dir/file"), 0o644);
    set_mode(&server.path("dir/own"), 0o600);
    set_mode(&server.path("dir/roots"), 0o700);
    for path in ["dir", "dir/own"] {
        chown(server.path(path), Some(OTHER), Some(OTHER)).unwrap();
    }
    Some(server)
}

#[test]
fn refused_changes_are_reported_by_operation_and_file() {
    let Some(server) = of_others() else { return };
    let [file, own, roots, below, new] =
        ["dir/file", "dir/own", "dir/roots", "dir/roots/file", "new"]
            .map(|path| server.url(&format!("{path}{AS_OTHER}")));
    let copy = server.beside("copy").display().to_string();
    let top = server.url("top").replace("/top", AS_OTHER);
    let not_permitted = "Operation not permitted";
    let denied = "Permission denied";
    let cases: &[(&[&str], String)] = &[
        (&["chmod", "600", &file], format!("changing permissions of '{file}': {not_permitted}")),
        (&["chmod", "600", &below], format!("cannot access '{below}': {denied}")),
        (&["chown", "4711", &file], format!("changing ownership of '{file}': {not_permitted}")),
        (&["chown", ":4711", &file], format!("changing group of '{file}': {not_permitted}")),
        (&["touch", &file], format!("setting times of '{file}': {denied}")),
        (&["touch", "-d", "@5", &file], format!("setting times of '{file}': {not_permitted}")),
        (&["touch", &new], format!("cannot touch '{new}': {denied}")),
        (&["ln", &own, &new], format!("failed to create hard link '{new}' => '{own}': {denied}")),
        (&["ln", "-s", "x", &new], format!("failed to create symbolic link '{new}': {denied}")),
        (&["cp", "-r", &roots, &copy], format!("cannot access '{roots}': {denied}")),
        (&["rmdir", &roots], format!("failed to remove '{roots}': Directory not empty")),
        (&["rmdir", &top], format!("failed to remove '{top}': Device or resource busy")),
    ];
    for (command, why) in cases {
        assert_exit(&run(*command), 1, &format!("spillway {}: {why}", command[0]));
    }
}

#[test]
fn refused_directory_does_not_end_a_walk() {
    let Some(server) = of_others() else { return };
    chown(server.path("dir/file"), Some(OTHER), Some(OTHER)).unwrap();
    let (url, roots) = (server.url("dir") + AS_OTHER, server.url("dir/roots") + AS_OTHER);
    let unreadable = format!("cannot read directory '{roots}': Permission denied\n");

    let output = run(["chmod", "-R", "755", &url]);
    let expected = format!(
        "spillway chmod: changing permissions of '{roots}': Operation not permitted\n\
         spillway chmod: {unreadable}"
    );
    assert_eq!((text(&output.stderr), output.status.code()), (&expected[..], Some(1)));
    for (path, expected) in [("dir", 0o755), ("dir/own", 0o755), ("dir/roots", 0o700)] {
        assert_eq!(mode(&server.path(path)), expected, "{path}");
    }

    let output = run(["du", "-a", &url]);
    let expected = format!("spillway du: {unreadable}");
    assert_eq!((text(&output.stderr), output.status.code()), (&expected[..], Some(1)));
    let paths: Vec<_> = text(&output.stdout).lines().map(|line| line.split('\t').nth(1)).collect();
    assert_eq!(paths.len(), 4, "dir, dir/own, dir/file and dir/roots: {paths:?}");
    assert_eq!(paths[2..], [Some(&roots[..]), Some(&url[..])]);
}

#[test]
fn chmod_changes_a_directory_before_it_is_read_and_chown_after_that() {
    let Some(server) = of_others() else { return };
    fs::create_dir(server.path("dir/locked")).unwrap();
    server.put("dir/locked/file", "");
    set_mode(&server.path("dir/locked/file"), 0o640);
    for path in ["dir/locked/file", "dir/locked"] {
        chown(server.path(path), Some(OTHER), Some(OTHER)).unwrap();
    }
    set_mode(&server.path("dir/locked"), 0);
    let url = server.url("dir/locked") + AS_OTHER;
    succeeded(run(["chmod", "-R", "a+rX,u+w", &url]));
    assert_eq!(mode(&server.path("dir/locked")), 0o755);
    assert_eq!(mode(&server.path("dir/locked/file")), 0o644);

    // The group lets its members in, and others not.
    set_mode(&server.path("dir/locked"), 0o070);
    let url = server.url("dir/locked") + AS_OTHER;
    let output = run(["chown", "-R", ":4711", &url]);
    let complaint = format!("spillway chown: cannot read directory '{url}': Permission denied");
    assert_exit(&output, 1, &complaint);
}

/// Handles lead to files wherever they are, so that a walk is not led astray.
#[test]
fn directory_that_is_moved_meanwhile_is_changed_where_it_is() {
    let server = Server::start();
    fs::create_dir_all(server.path("tree/dir/sub")).unwrap();
    server.put("tree/dir/sub/last", "");
    // The lines about these files are more than a pipe holds, and come before those about `sub`.
    for number in 0..300 {
        server.put(format!("tree/dir/{number:0250}"), "");
    }
    set_mode(&server.path("tree/dir/sub"), 0o755);
    let mut command = spillway();
    command.args(["chmod", "-Rv", "704", &server.url("tree")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    for _ in 0..3 {
        stdout.read_line(&mut lines).unwrap();
    }
    assert_eq!(mode(&server.path("tree/dir/sub")), 0o755, "the command waits for its reader");
    fs::rename(server.path("tree/dir"), server.path("moved")).unwrap();
    stdout.read_to_string(&mut lines).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)));
    assert_eq!(lines.lines().count(), 304);
    for path in ["moved", "moved/sub", "moved/sub/last"] {
        assert_eq!(mode(&server.path(path)), 0o704, "{path}");
    }
}

#[test]
fn touch_takes_times_and_makes_files_with_them() {
    let server = Server::start();
    server.put("old", "");
    let [old, new, link] = ["old", "new", "link"].map(|name| server.url(name));
    succeeded(run(["touch", "-d", "2001-02-03T04:05:06.123456789Z", &old]));
    succeeded(run(["touch", "-a", "-d", "@7", &old]));
    symlink("old", server.path("link")).unwrap();
    succeeded(run(["touch", "-r", &link, &new]));
    for path in ["old", "new"] {
        let found = fs::metadata(server.path(path)).unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (981_173_106, 123_456_789), "{path}");
        assert_eq!((found.atime(), found.atime_nsec()), (7, 0), "{path}");
    }
    // Without a time, both are those of now.
    succeeded(run(["touch", &old]));
    let found = fs::metadata(server.path("old")).unwrap();
    assert!(found.atime() > 1_500_000_000 && found.mtime() > 1_500_000_000);
    let nope = server.url("nope");
    let line =
        format!("spillway touch: failed to get attributes of '{nope}': No such file or directory");
    assert_exit(&run(["touch", "-r", &nope, &new]), 1, &line);
    // No file is made where a link leads and nothing is.
    symlink("nowhere", server.path("dangling")).unwrap();
    let dangling = server.url("dangling");
    let line = format!("spillway touch: cannot touch '{dangling}': No such file or directory");
    assert_exit(&run(["touch", &dangling]), 1, &line);
    assert!(!server.path("nowhere").exists());
}

#[test]
fn hard_links_stay_in_their_export() {
    let (one, other) = (Server::start(), Server::start());
    one.put("file", "");
    let (from, to) = (one.url("file"), other.url("link"));
    let line = format!("spillway ln: cannot link to '{from}': it is in another export");
    assert_exit(&run(["ln", &from, &to]), 1, &line);
}

#[test]
fn du_counts_a_file_with_several_names_once() {
    let server = Server::start();
    fs::create_dir_all(server.path("dir/sub")).unwrap();
    server.put("dir/one", vec![1; 1 << 20]);
    fs::hard_link(server.path("dir/one"), server.path("dir/sub/two")).unwrap();
    fs::hard_link(server.path("dir/one"), server.path("three")).unwrap();
    let bytes = |path: &str| fs::metadata(server.path(path)).unwrap().blocks() * 512;
    let all = bytes("dir") + bytes("dir/sub") + bytes("dir/one");
    let [dir, three] = ["dir", "three"].map(|path| server.url(path));
    let expected = format!("{}\t{dir}\n", all / 1024);
    assert_eq!(succeeded(run(["du", "-s", &dir])), expected);
    assert_eq!(succeeded(run(["du", "-s", &dir, &three])), expected);
}

/// A MKDIR as of Linux, whose vfs_mkdir() takes the set-id bits out of the mode, of the directory
/// `new`; with the attributes in the reply or not.
fn without_set_id(server: &Server, has_attributes: bool) -> String {
    let path = server.path("new");
    intercept(server, Procedure::Mkdir, move |xid, mut arguments| {
        let wanted = MkdirArgs::decode(&mut arguments).unwrap().attributes.mode.unwrap();
        fs::create_dir(&path).unwrap();
        set_mode(&path, wanted & 0o1777);
        let metadata = fs::metadata(&path).unwrap();
        let time = Time { seconds: 0, nseconds: 0 };
        let attributes = has_attributes.then(|| Attributes {
            file_type: FileType::Directory,
            mode: wanted & 0o1777,
            nlink: 2,
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: metadata.size(),
            used: 0,
            rdev: DeviceSpec { major: 0, minor: 0 },
            fsid: metadata.dev(),
            fileid: metadata.ino(),
            atime: time,
            mtime: time,
            ctime: time,
        });
        Some(record::encode(|w| {
            encode_success(w, xid);
            let made = CreatedOk { object: None, attributes, dir_wcc: WccData::default() };
            CreatedReply::Ok(made).encode(w);
        }))
    })
}

#[test]
fn mkdir_m_sets_the_set_id_bits_that_mkdir_of_the_server_leaves_out() {
    for (given, expected) in [("2750", 0o2750), ("u=rwxs,go=", 0o4700), ("6711", 0o6711)] {
        for has_attributes in [false, true] {
            let server = Server::start();
            let url = without_set_id(&server, has_attributes);
            succeeded(run(["mkdir", "-m", given, &format!("{url}/new")]));
            assert_eq!(mode(&server.path("new")), expected, "{given}");
        }
    }
}

#[test]
fn mkdir_m_makes_no_directory_that_others_can_write_to_without_its_special_bits() {
    let server = Server::start();
    let called = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&called);
    let url = intercept(&server, Procedure::Mkdir, move |_, mut arguments| {
        seen.lock().unwrap().push(MkdirArgs::decode(&mut arguments).unwrap().attributes.mode);
        None
    });
    for (given, in_call) in [("2775", 0o2755), ("1777", 0o1755), ("6700", 0o6700), ("777", 0o777)] {
        succeeded(run(["mkdir", "-m", given, &format!("{url}/{given}")]));
        assert_eq!(called.lock().unwrap().pop(), Some(Some(in_call)), "{given}");
        let expected = u32::from_str_radix(given, 8).unwrap();
        assert_eq!(mode(&server.path(given)), expected);
    }
}

#[test]
fn mkdir_m_changes_no_file_that_has_the_name_of_the_directory() {
    let server = Server::start();
    let path = server.path("new");
    let url = intercept(&server, Procedure::Mkdir, move |xid, _| {
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o600);
        Some(record::encode(|w| {
            encode_success(w, xid);
            let dir_wcc = WccData::default();
            CreatedReply::Ok(CreatedOk { object: None, attributes: None, dir_wcc }).encode(w);
        }))
    });
    let new = format!("{url}/new");
    let line = format!("spillway mkdir: cannot change permissions of '{new}': Not a directory");
    assert_exit(&run(["mkdir", "-m", "2755", &new]), 1, &line);
    assert_eq!(mode(&server.path("new")), 0o600);
}
