//! `ln -f` where a step is refused, or sent twice because its first reply was lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::nfs3::{
    CreatedReply, Failure, LinkArgs, LinkOk, LinkReply, Procedure, RenameArgs, RenameOk,
    RenameReply, Status, WccData,
};
use proto::oncrpc::encode_success;
use proto::xdr::{Decode, Encode, Reader};
use rpc::record;

use crate::fixture::{Server, bytes_path, run, succeeded, text};
use crate::relay::intercept;

/// A server with the files `/file` and `/to`.
fn with_files() -> Server {
    let server = Server::start();
    server.put("file", "new");
    server.put("to", "old");
    server
}

/// Links `/to` to `/file`, and passes the call of this number of a procedure to `watch`.
fn link(
    server: &Server,
    options: &str,
    procedure: Procedure,
    number: usize,
    watch: impl Fn(u32, Reader<'_>) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> Output {
    let calls = AtomicUsize::new(0);
    let url = intercept(server, procedure, move |xid, arguments| {
        if calls.fetch_add(1, Ordering::Relaxed) == number { watch(xid, arguments) } else { None }
    });
    let from = if options.contains('s') { "file".to_owned() } else { format!("{url}/file") };
    run(["ln", options, &from, &format!("{url}/to")])
}

/// The reply that refuses a call.
pub(crate) fn refused(xid: u32, reply: &impl Encode) -> Vec<u8> {
    record::encode(|w| {
        encode_success(w, xid);
        reply.encode(w);
    })
}

fn refused_link(xid: u32) -> Vec<u8> {
    let body = LinkOk { file_attributes: None, dir_wcc: WccData::default() };
    refused(xid, &LinkReply::Err(Failure { status: Status::Perm, body }))
}

fn refused_symlink(xid: u32) -> Vec<u8> {
    refused(xid, &CreatedReply::Err(Failure { status: Status::Perm, body: WccData::default() }))
}

fn refused_rename(xid: u32) -> Vec<u8> {
    let body = RenameOk { from_wcc: WccData::default(), to_wcc: WccData::default() };
    refused(xid, &RenameReply::Err(Failure { status: Status::Perm, body }))
}

/// Expects no other names than those of [`with_files`].
#[track_caller]
fn assert_nothing_left(server: &Server) {
    let mut names = fs::read_dir(server.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect::<Vec<_>>();
    names.sort();
    assert_eq!(names, ["file", "to"]);
}

/// Expects that `/to` was kept because a link could not be made.
#[track_caller]
fn assert_kept(server: &Server, output: &Output) {
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("spillway ln: failed to create "), "{stderr}");
    assert!(stderr.ends_with(": Operation not permitted\n"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read(server.path("to")).unwrap(), b"old");
    assert_nothing_left(server);
}

/// Expects that `/to` is a hard link to `/file`.
#[track_caller]
fn assert_linked(server: &Server, output: Output) {
    succeeded(output);
    assert_eq!(fs::read(server.path("to")).unwrap(), b"new");
    assert_nothing_left(server);
}

#[test]
fn f_keeps_the_file_where_no_link_can_be_made() {
    let server = with_files();
    // The first call is answered by EXIST.
    let refuse = |xid, _: Reader<'_>| Some(refused_link(xid));
    assert_kept(&server, &link(&server, "-f", Procedure::Link, 1, refuse));
    let refuse = |xid, _: Reader<'_>| Some(refused_symlink(xid));
    assert_kept(&server, &link(&server, "-sf", Procedure::Symlink, 1, refuse));
}

#[test]
fn f_removes_the_link_that_cannot_be_renamed() {
    let server = with_files();
    for options in ["-f", "-sf"] {
        let refuse = |xid, _: Reader<'_>| Some(refused_rename(xid));
        assert_kept(&server, &link(&server, options, Procedure::Rename, 0, refuse));
    }
}

#[test]
fn f_leaves_a_name_that_is_a_link_to_the_file_already() {
    let server = with_files();
    fs::remove_file(server.path("to")).unwrap();
    fs::hard_link(server.path("file"), server.path("to")).unwrap();
    let refuse = |xid, _: Reader<'_>| Some(refused_link(xid));
    assert_linked(&server, link(&server, "-f", Procedure::Link, 1, refuse));
}

#[test]
fn f_takes_the_link_of_a_call_that_was_sent_twice() {
    // The link itself, where no file has the name, and the one that is to be renamed.
    for number in 0..2 {
        let server = with_files();
        if number == 0 {
            fs::remove_file(server.path("to")).unwrap();
        }
        let root = server.path("");
        let make = move |_, mut arguments: Reader<'_>| {
            let name = LinkArgs::decode(&mut arguments).unwrap().link.name;
            fs::hard_link(root.join("file"), in_dir(&root, name)).unwrap();
            None
        };
        assert_linked(&server, link(&server, "-f", Procedure::Link, number, make));
    }
}

#[test]
fn f_takes_the_effect_of_a_rename_that_was_sent_twice() {
    for options in ["-f", "-sf"] {
        let server = with_files();
        let root = server.path("");
        let rename = move |_, mut arguments: Reader<'_>| {
            let RenameArgs { from, to } = RenameArgs::decode(&mut arguments).unwrap();
            fs::rename(in_dir(&root, from.name), in_dir(&root, to.name)).unwrap();
            None
        };
        assert_linked(&server, link(&server, options, Procedure::Rename, 0, rename));
    }
}

fn in_dir(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(bytes_path(name))
}
