//! Calls whose effect is there already: the reply to an earlier copy of the call was lost, or
//! another client has done the same.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::nfs3::{
    CreatedReply, Failure, Procedure, RemovedReply, RenameArgs, RenameFailure, RenameReply,
    RmdirArgs, Status, WccData,
};
use proto::oncrpc::encode_success;
use proto::xdr::{Decode, Encode};
use rpc::record;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::fixture::{Server, assert_exit, run, succeeded, text};
use crate::relay::intercept;

/// The reply to REMOVE or RMDIR of a name that does not exist.
fn missing(xid: u32) -> Vec<u8> {
    record::encode(|w| {
        encode_success(w, xid);
        let body = WccData::default();
        RemovedReply::Err(Failure { status: Status::Noent, body }).encode(w);
    })
}

/// The reply to RENAME with this status.
fn not_renamed(xid: u32, status: Status) -> Vec<u8> {
    record::encode(|w| {
        encode_success(w, xid);
        let body = RenameFailure { from_wcc: WccData::default(), to_wcc: WccData::default() };
        RenameReply::Err(Failure { status, body }).encode(w);
    })
}

/// The reply to MKDIR of a name that exists.
fn made_before(xid: u32) -> Vec<u8> {
    record::encode(|w| {
        encode_success(w, xid);
        CreatedReply::Err(Failure { status: Status::Exist, body: WccData::default() }).encode(w);
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

/// Copies a link to `target` or, without one, a pipe to `/to`, where `make` has made something when
/// the call to make it arrives.
fn copy_onto(
    server: &Server,
    target: Option<&str>,
    make: impl Fn(&Path) + Send + Sync + 'static,
) -> Output {
    let (here, there) = (server.beside("here"), server.path("to"));
    for path in [&here, &there] {
        // From the copy before this one.
        let _ = fs::remove_file(path);
    }
    let procedure = match target {
        Some(target) => {
            symlink(target, &here).unwrap();
            Procedure::Symlink
        }
        None => {
            make_pipe(&here);
            Procedure::Mknod
        }
    };
    let url = intercept(server, procedure, move |_, _| {
        make(&there);
        None
    });
    run(["cp", "-r", here.to_str().unwrap(), &format!("{url}/to")])
}

pub(crate) fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn cp_takes_the_link_or_pipe_of_a_call_that_was_sent_twice() {
    let server = Server::start();
    succeeded(copy_onto(&server, Some("a"), |path| symlink("a", path).unwrap()));
    assert_eq!(fs::read_link(server.path("to")).unwrap(), Path::new("a"));
    succeeded(copy_onto(&server, None, make_pipe));
    assert!(fs::symlink_metadata(server.path("to")).unwrap().file_type().is_fifo());
}

#[test]
fn cp_refuses_what_another_client_makes_in_the_place_of_a_link_or_pipe() {
    let server = Server::start();
    for (output, what) in [
        (copy_onto(&server, Some("a"), |path| symlink("b", path).unwrap()), "symbolic link"),
        (copy_onto(&server, Some("a"), make_pipe), "symbolic link"),
        (copy_onto(&server, None, |path| symlink("a", path).unwrap()), "special file"),
    ] {
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with(&format!("spillway cp: cannot create {what} '")), "{stderr}");
        assert!(stderr.ends_with("/to': File exists\n"), "{stderr}");
    }
}

#[test]
fn cp_replaces_a_file_whose_remove_is_answered_noent() {
    let server = Server::start();
    let (here, there) = (server.beside("here"), server.path("to"));
    symlink("a", &here).unwrap();
    server.put("to", "");
    let removed = there.clone();
    let url = intercept(&server, Procedure::Remove, move |xid, _| {
        fs::remove_file(&removed).unwrap();
        Some(missing(xid))
    });
    succeeded(run(["cp", "-r", here.to_str().unwrap(), &format!("{url}/to")]));
    assert_eq!(fs::read_link(there).unwrap(), Path::new("a"));
}

#[test]
fn mv_finds_the_file_that_a_rename_answered_noent_has_moved() {
    let server = Server::start();
    let (from, to) = (server.path("from"), server.path("to"));
    // A directory that is there would be the one to move into.
    for (is_dir, has_target) in [(false, false), (false, true), (true, false)] {
        let make = |path| if is_dir { fs::create_dir(path) } else { fs::write(path, "") };
        make(&from).unwrap();
        if has_target {
            make(&to).unwrap();
        }
        let (moved, target) = (from.clone(), to.clone());
        let url = intercept(&server, Procedure::Rename, move |xid, _| {
            fs::rename(&moved, &target).unwrap();
            Some(not_renamed(xid, Status::Noent))
        });
        let (old, new) = (format!("{url}/from"), format!("{url}/to"));
        let printed = succeeded(run(["mv", "-v", &old, &new]));
        assert_eq!(printed, format!("renamed '{old}' -> '{new}'\n"));
        let remove = if is_dir { fs::remove_dir } else { fs::remove_file };
        remove(&to).unwrap();
    }
}

#[test]
fn mv_reports_a_file_that_another_client_removes_meanwhile() {
    let server = Server::start();
    for has_target in [false, true] {
        server.put("from", "");
        if has_target {
            server.put("to", "");
        }
        let removed = server.path("from");
        let url = intercept(&server, Procedure::Rename, move |_, _| {
            fs::remove_file(&removed).unwrap();
            None
        });
        let (old, new) = (format!("{url}/from"), format!("{url}/to"));
        let why = "No such file or directory";
        let line = format!("spillway mv: cannot move '{old}' to '{new}': {why}");
        assert_exit(&run(["mv", &old, &new]), 1, &line);
    }
}

#[test]
fn mv_does_not_replace_a_file_that_a_call_with_an_error_may_have_moved() {
    for (status, moves, in_the_end) in [
        (Status::Io, true, "a"),
        (Status::Jukebox, true, "a"),
        (Status::Noent, false, "old"),
        (Status::Acces, false, "b"),
    ] {
        let server = Server::start();
        for dir in ["a", "b", "c"] {
            fs::create_dir(server.path(dir)).unwrap();
            server.put(format!("{dir}/f"), if dir == "c" { "old" } else { dir });
        }
        let (from, to) = (server.path("a/f"), server.path("c/f"));
        let first = Mutex::new(None);
        let url = intercept(&server, Procedure::Rename, move |xid, mut arguments| {
            let from_dir = RenameArgs::decode(&mut arguments).unwrap().from.dir;
            let is_first = *first.lock().unwrap().get_or_insert(from_dir) == from_dir;
            if is_first && moves && from.exists() {
                fs::rename(&from, &to).unwrap();
            }
            is_first.then(|| not_renamed(xid, status))
        });
        let [a, b, c] = ["a/f", "b/f", "c"].map(|path| format!("{url}/{path}"));
        // A call fails after five seconds, in which a busy machine answers it, too.
        let output = run(["mv", "-o", "soft,timeo=25,retrans=1", &a, &b, &c]);
        assert_eq!(output.status.code(), Some(1), "{status:?}");
        assert_eq!(fs::read(server.path("c/f")).unwrap(), in_the_end.as_bytes(), "{status:?}");
        let refusal = format!("will not overwrite just-created '{c}/f' with '{b}'");
        assert_eq!(text(&output.stderr).contains(&refusal), in_the_end != "b", "{status:?}");
    }
}

#[test]
fn mkdir_p_m_sets_the_mode_of_a_directory_that_an_earlier_call_has_made() {
    let server = Server::start();
    let made = server.path("new");
    let url = intercept(&server, Procedure::Mkdir, move |xid, _| {
        fs::create_dir(&made).unwrap();
        fs::set_permissions(&made, fs::Permissions::from_mode(0o755)).unwrap();
        Some(made_before(xid))
    });
    succeeded(run(["mkdir", "-p", "-m", "2770", &format!("{url}/new")]));
    let mode = fs::metadata(server.path("new")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o2770);
}
