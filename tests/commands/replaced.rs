//! `cp -r` of a tree of this machine that another user changes between its listing and its copy, so
//! that a path leads to what that user cannot read.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Mutex;

use proto::nfs3::{LookupArgs, Procedure};
use proto::xdr::Decode;

use crate::fixture::{Server, assert_exit, run, succeeded};
use crate::relay::intercept;
use crate::retried::make_pipe;

/// Makes a part of a tree, or replaces it.
type Change = fn(&Path);

/// Copies the tree of `make`, in which `replace` changes something once its entry `x` is listed,
/// and expects that the step `what` refuses it. What `replace` leads to is in the tree `private`.
fn assert_refused(make: Change, replace: Change, what: &str) {
    let server = Server::start();
    let here = server.beside("here");
    let (tree, private) = (here.join("tree"), here.join("private"));
    for dir in [&tree, &private] {
        fs::create_dir_all(dir.join("sub")).unwrap();
        make(&dir.join("sub"));
        fs::write(dir.join("kept"), "kept").unwrap();
    }
    fs::create_dir_all(server.path("to/tree/sub")).unwrap();
    let replacement = Mutex::new(Some((here.clone(), replace)));
    let url = intercept(&server, Procedure::Lookup, move |_, mut arguments| {
        if LookupArgs::decode(&mut arguments).unwrap().what.name == b"x"
            && let Some((here, replace)) = replacement.lock().unwrap().take()
        {
            replace(&here);
        }
        None
    });
    let output = run(["cp", "-a", tree.to_str().unwrap(), &format!("{url}/to")]);
    let path = tree.join("sub/x");
    let line = format!(
        "spillway cp: {} it was replaced while being copied",
        what.replace('X', &format!("'{}'", path.display()))
    );
    assert_exit(&output, 1, &line);
    assert_eq!(fs::read(server.path("to/tree/kept")).unwrap(), b"kept");
    let copied = server.path("to/tree/sub/x");
    let is_empty_dir = fs::read_dir(&copied).is_ok_and(|mut names| names.next().is_none());
    assert!(is_empty_dir || fs::symlink_metadata(copied).is_err());
}

/// Leads the path of the directory of `x` elsewhere.
fn replace_parent(here: &Path) {
    fs::rename(here.join("tree/sub"), here.join("old")).unwrap();
    symlink(here.join("private/sub"), here.join("tree/sub")).unwrap();
}

/// Leads the path of `x` elsewhere.
fn replace_by_link(here: &Path) {
    fs::rename(here.join("tree/sub/x"), here.join("old")).unwrap();
    symlink(here.join("private/sub/x"), here.join("tree/sub/x")).unwrap();
}

#[test]
fn a_file_that_is_replaced_after_it_was_listed_is_not_copied() {
    let make = |dir: &Path| fs::write(dir.join("x"), "data").unwrap();
    let replace_by_file = |here: &Path| {
        fs::rename(here.join("private/sub/x"), here.join("tree/sub/x")).unwrap();
    };
    let replace_by_pipe = |here: &Path| {
        fs::remove_file(here.join("tree/sub/x")).unwrap();
        make_pipe(&here.join("tree/sub/x"));
    };
    for replace in [replace_by_link, replace_parent, replace_by_file, replace_by_pipe] {
        assert_refused(make, replace, "cannot open X for reading:");
    }
}

#[test]
fn a_directory_that_is_replaced_after_it_was_listed_is_not_read() {
    let make = |dir: &Path| {
        fs::create_dir(dir.join("x")).unwrap();
        fs::write(dir.join("x/data"), "data").unwrap();
    };
    for replace in [replace_by_link, replace_parent] {
        assert_refused(make, replace, "cannot access X:");
    }
}

#[test]
fn a_link_in_a_directory_that_is_replaced_is_not_read() {
    let make = |dir: &Path| symlink(dir, dir.join("x")).unwrap();
    assert_refused(make, replace_parent, "cannot read symbolic link X:");
}

#[test]
fn p_keeps_the_mode_that_a_file_or_directory_has_when_it_is_opened() {
    let server = Server::start();
    let here = server.beside("here");
    fs::create_dir_all(here.join("dir")).unwrap();
    fs::write(here.join("file"), "data").unwrap();
    fs::create_dir(server.path("to")).unwrap();
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["dir", "file"] {
        let path = here.join(name);
        set_mode(&path, 0o755);
        let listed = path.clone();
        let url = intercept(&server, Procedure::Lookup, move |_, mut arguments| {
            if LookupArgs::decode(&mut arguments).unwrap().what.name == name.as_bytes() {
                set_mode(&listed, 0o700);
            }
            None
        });
        succeeded(run(["cp", "-a", path.to_str().unwrap(), &format!("{url}/to")]));
        let copy = fs::metadata(server.path("to").join(name)).unwrap();
        assert_eq!(copy.mode() & 0o7777, 0o700, "{name}");
    }
}

#[test]
fn a_slash_after_a_link_to_a_tree_follows_it() {
    let server = Server::start();
    let here = server.beside("here");
    fs::create_dir(&here).unwrap();
    fs::write(here.join("file"), "data").unwrap();
    symlink(&here, server.beside("link")).unwrap();
    let link = format!("{}/", server.beside("link").to_str().unwrap());
    succeeded(run(["cp", "-r", &link, &server.url("to")]));
    assert_eq!(fs::read(server.path("to/file")).unwrap(), b"data");
}
