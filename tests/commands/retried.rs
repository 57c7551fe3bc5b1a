//! Calls whose effect is there already: the reply to an earlier copy of the call was lost, or
//! another client has done the same.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::nfs3::{Failure, Procedure, RemovedReply, RmdirArgs, Status, WccData};
use proto::oncrpc::encode_success;
use proto::xdr::{Decode, Encode};
use rpc::record;

use crate::fixture::{Server, assert_exit, run, succeeded};
use crate::relay::intercept;

/// The reply to REMOVE or RMDIR of a name that does not exist.
fn missing(xid: u32) -> Vec<u8> {
    record::encode(|w| {
        encode_success(w, xid);
        let body = WccData::default();
        RemovedReply::Err(Failure { status: Status::Noent, body }).encode(w);
    })
}

#[test]
fn rm_removes_the_tree_above_a_directory_whose_rmdir_is_answered_noent() {
    let server = Server::start();
    for options in ["-r", "-rf"] {
        let sub = server.path("d/sub");
        fs::create_dir_all(&sub).unwrap();
        server.put("d/sub/file", "");
        let url = intercept(&server, Procedure::Rmdir, move |xid, mut arguments| {
            let name = RmdirArgs::decode(&mut arguments).unwrap().object.name;
            (name == b"sub").then(|| {
                fs::remove_dir(&sub).unwrap();
                missing(xid)
            })
        });
        succeeded(run(["rm", options, &format!("{url}/d")]));
        assert!(!server.path("d").exists(), "{options}");
    }
}

/// A tree `/d` of which `removed` is removed when that is about to be read, as the listing of
/// this number; the URL of `/d`.
fn race(server: &Server, removed: &str, number: usize) -> String {
    fs::create_dir_all(server.path("d/sub")).unwrap();
    server.put("d/file", "");
    server.put("d/sub/file", "");
    let (removed, listings) = (server.path(removed), AtomicUsize::new(0));
    let url = intercept(server, Procedure::Readdirplus, move |_, _| {
        if listings.fetch_add(1, Ordering::Relaxed) == number {
            fs::remove_dir_all(&removed).unwrap();
        }
        None
    });
    format!("{url}/d")
}

#[test]
fn rm_goes_on_above_a_directory_that_another_client_removes() {
    let server = Server::start();
    for options in ["-r", "-rf"] {
        succeeded(run(["rm", options, &race(&server, "d/sub", 1)]));
        assert!(!server.path("d").exists(), "{options}");
    }
    succeeded(run(["rm", "-rf", &race(&server, "d", 0)]));
    let url = race(&server, "d", 0);
    let line = format!("spillway rm: cannot remove '{url}': No such file or directory");
    assert_exit(&run(["rm", "-r", &url]), 1, &line);
}
