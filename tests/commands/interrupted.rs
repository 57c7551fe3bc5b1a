//! `cp` when something ends in the middle: the copy, or the server.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use proto::nfs3::{self, Procedure, WriteArgs};
use proto::xdr::Decode;

use crate::fixture::{
    Server, assert_exit, assert_same_data, pattern, run, spillway, succeeded, text, wait_for,
};
use crate::gate::Gate;
use crate::relay::{Message, relay};
use crate::skip::skip;

const MIB: u64 = 1 << 20;
/// Bytes that `cp` commits at once.
const PIECE: u64 = 32 * MIB;

fn begin(args: &[&str]) -> Child {
    let mut command = spillway();
    command.args(args).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Waits until `path` has grown to `bytes`. A [`Gate`] holds the copy before its end meanwhile.
fn wait_for_size(path: &Path, bytes: u64) {
    wait_for("growth", || (size(path) >= bytes).then_some(()));
}

fn make_older(path: &Path, age: Duration) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

fn byte_at(path: &Path, offset: u64) -> u8 {
    let mut byte = [0];
    File::open(path).unwrap().read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

fn flip_byte_at(path: &Path, offset: u64) {
    let flipped = !byte_at(path, offset);
    File::options().write(true).open(path).unwrap().write_all_at(&[flipped], offset).unwrap();
}

#[test]
fn a_killed_copy_is_resumed() {
    let server = Server::start();
    let (here, there) = (server.beside("here"), server.path("there"));
    fs::write(&here, pattern(160 << 20)).unwrap();
    make_older(&here, Duration::from_secs(60));
    let here_text = here.to_str().unwrap();

    let gate = Gate::new(&server, 140 * MIB);
    let mut up = begin(&["cp", here_text, &gate.url("there")]);
    wait_for_size(&there, 120 * MIB);
    up.kill().unwrap();
    up.wait().unwrap();
    // One byte of what is kept is made wrong, to see that it is not sent again.
    flip_byte_at(&there, 7);
    succeeded(run(["cp", "--resume", here_text, &server.url("there")]));
    assert_ne!(byte_at(&there, 7), byte_at(&here, 7), "the beginning was sent again");
    flip_byte_at(&there, 7);
    assert_same_data(&here, &there);

    // A source that was changed since begins anew.
    fs::write(&here, pattern((160 << 20) + 5)).unwrap();
    flip_byte_at(&here, 9);
    make_older(&there, Duration::from_secs(60));
    succeeded(run(["cp", "--resume", here_text, &server.url("there")]));
    assert_same_data(&here, &there);
}

#[test]
fn a_killed_copy_from_a_server_is_resumed() {
    let server = Server::start();
    let (here, there) = (server.beside("here"), server.path("there"));
    server.put("there", pattern(96 << 20));
    make_older(&there, Duration::from_secs(60));
    let here_text = here.to_str().unwrap();
    let gate = Gate::new(&server, 70 * MIB);
    let mut down = begin(&["cp", &gate.url("there"), here_text]);
    wait_for_size(&here, 50 * MIB);
    down.kill().unwrap();
    down.wait().unwrap();
    flip_byte_at(&here, 7);
    succeeded(run(["cp", "--resume", "-p", &server.url("there"), here_text]));
    assert_ne!(byte_at(&there, 7), byte_at(&here, 7), "the beginning was fetched again");
    flip_byte_at(&here, 7);
    assert_same_data(&there, &here);
    // A file that does not begin as its source does is copied anew.
    let file = File::options().write(true).open(&here).unwrap();
    file.write_all_at(&vec![0; 64 << 20], 0).unwrap();
    succeeded(run(["cp", "--resume", &server.url("there"), here_text]));
    assert_same_data(&there, &here);
}

#[test]
fn files_copied_with_their_time_are_not_copied_again() {
    let server = Server::start();
    let here = server.beside("here");
    fs::create_dir(&here).unwrap();
    fs::write(here.join("a"), "first").unwrap();
    fs::write(here.join("b"), "first").unwrap();
    let here_text = here.to_str().unwrap();
    succeeded(run(["cp", "-a", here_text, &server.url("there")]));
    fs::write(here.join("b"), "other").unwrap();
    fs::write(here.join("c"), "third").unwrap();
    let said =
        succeeded(run(["cp", "-av", "--resume", &format!("{here_text}/."), &server.url("there")]));
    let mut said: Vec<_> = said.lines().map(|line| line.rsplit('/').next().unwrap()).collect();
    said.sort_unstable();
    assert_eq!(said, ["b'", "c'"]);
    assert_same_data(here.join("b"), server.path("there/b"));
}

/// The server dies while it is sent a file, and loses what was not committed; the copy waits for it
/// to come back, and sends that again.
#[test]
fn data_lost_by_a_server_is_sent_again() {
    let mut server = Server::start();
    let (here, there) = (server.beside("here"), server.path("there"));
    fs::write(&here, pattern(160 << 20)).unwrap();
    let gate = Gate::new(&server, 60 * MIB);
    let mut up = begin(&["cp", "-o", "timeo=20", here.to_str().unwrap(), &gate.url("there")]);
    wait_for_size(&there, 40 * MIB);
    server.kill();
    assert_eq!(up.try_wait().unwrap(), None, "the server died in the middle");
    // The piece that was being written has not been committed.
    let end = size(&there);
    let lost = end / PIECE * PIECE..end;
    assert!(!lost.is_empty(), "something is lost, of {end} bytes");
    let file = File::options().write(true).open(&there).unwrap();
    file.set_len(lost.start).unwrap();
    file.set_len(end).unwrap();
    server.restart();
    gate.open();
    let output = up.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_same_data(&here, &there);
}

/// Files are made while the server dies again and again. What it has made and not answered is asked
/// for once more, and it no longer knows that.
#[test]
fn a_tree_arrives_at_a_server_that_is_started_anew_again_and_again() {
    let mut server = Server::start();
    let here = server.beside("here");
    for dir in 0..20 {
        fs::create_dir_all(here.join(format!("{dir}"))).unwrap();
        for file in 0..100 {
            fs::write(here.join(format!("{dir}/{file}")), format!("{dir} {file}")).unwrap();
        }
        symlink(format!("{dir}"), here.join(format!("{dir}/link"))).unwrap();
    }
    let here_text = here.to_str().unwrap();
    let mut up = begin(&["cp", "-r", "-o", "timeo=20", here_text, &server.url("there")]);
    for dir in ["0", "4", "9", "14"] {
        let seen = wait_for("progress", || {
            let done = up.try_wait().unwrap().is_some();
            let count = fs::read_dir(server.path("there")).map_or(0, Iterator::count);
            let wanted: usize = dir.parse().unwrap();
            (done || count > wanted).then_some(done)
        });
        if seen {
            break;
        }
        server.kill();
        server.restart();
    }
    let output = up.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference"]).arg(&here).arg(server.path("there"));
    assert_eq!(text(&diff.output().unwrap().stdout), "");
}

#[test]
fn a_soft_copy_fails_if_the_server_stays_down() {
    let mut server = Server::start();
    let (here, there) = (server.beside("here"), server.path("there"));
    fs::write(&here, pattern(96 << 20)).unwrap();
    // A call fails after ten seconds: no server that is alive takes that long under load.
    let options = "soft,timeo=50,retrans=1";
    let mut gate = Gate::new(&server, 40 * MIB);
    let url = gate.url("there");
    let up = begin(&["cp", "-o", options, here.to_str().unwrap(), &url]);
    wait_for_size(&there, 20 * MIB);
    gate.remove();
    server.kill();
    let output = up.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("spillway cp: error writing '{url}': ")), "{stderr}");
}

#[test]
fn a_resumed_copy_that_replaces_its_target_begins_at_the_beginning() {
    if !rustix::process::geteuid().is_root() {
        return skip("to run as another user needs root");
    }
    let server = Server::start();
    server.put("there", pattern(48 << 20));
    make_older(&server.path("there"), Duration::from_secs(60));
    let here = server.beside("own/here");
    fs::create_dir(here.parent().unwrap()).unwrap();
    fs::write(&here, pattern(40 << 20)).unwrap();
    // Readable and not writable: a part could be kept, and -f replaces it.
    fs::set_permissions(&here, fs::Permissions::from_mode(0o444)).unwrap();
    for path in [here.parent().unwrap(), &here] {
        std::os::unix::fs::chown(path, Some(4711), Some(4711)).unwrap();
    }
    // A copy, because the user may not be allowed into the directory that the program was built in.
    // It is made by a process of its own: a child of another test could inherit the descriptor that
    // is open for writing, and then the copy cannot be executed.
    let program = server.beside("own/spillway");
    succeeded(Command::new("cp").arg(spillway().get_program()).arg(&program).output().unwrap());
    let mut command = Command::new(program);
    command.args(["cp", "-f", "--resume", &server.url("there"), here.to_str().unwrap()]);
    succeeded(command.env_remove("RUST_LOG").uid(4711).gid(4711).output().unwrap());
    assert_same_data(server.path("there"), here);
}

#[test]
fn a_read_only_part_on_a_server_is_resumed_and_a_longer_file_kept() {
    if !rustix::process::geteuid().is_root() {
        return skip("files of others need root");
    }
    let server = Server::start();
    let (here, there) = (server.beside("here"), server.path("there"));
    fs::write(&here, pattern(48 << 20)).unwrap();
    make_older(&here, Duration::from_secs(60));
    let url = server.url("there?uid=4711&gid=4711");
    let resume = || run(["cp", "--resume", here.to_str().unwrap(), &url]);
    let leave = |content: Vec<u8>| {
        let _ = fs::remove_file(&there);
        fs::write(&there, content).unwrap();
        std::os::unix::fs::chown(&there, Some(4711), Some(4711)).unwrap();
        fs::set_permissions(&there, fs::Permissions::from_mode(0o444)).unwrap();
    };
    for len in [0, 40 << 20] {
        leave(pattern(len));
        succeeded(resume());
        assert_same_data(&here, &there);
    }
    // Longer than the source, which no interrupted copy leaves.
    leave(vec![0; 50 << 20]);
    let line = format!("spillway cp: cannot create regular file '{url}': Permission denied");
    assert_exit(&resume(), 1, &line);
    assert!(fs::read(&there).unwrap() == vec![0; 50 << 20]);
}

/// `--resume` looks for lost data at the end of a file alone.
#[test]
fn write_behind_a_large_hole_awaits_the_commit_of_the_data_before_it() {
    const HOLE_END: u64 = 128 * MIB;
    let server = Server::start();
    let here = server.beside("here");
    let file = File::create(&here).unwrap();
    for offset in [0, HOLE_END] {
        file.write_all_at(b"data", offset).unwrap();
    }
    let commit = Mutex::new(None);
    let is_committed = AtomicBool::new(false);
    let early = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&early);
    let url = relay(&server, move |message| {
        match message {
            Message::Call { xid, program: nfs3::PROGRAM, procedure, mut arguments, .. } => {
                if procedure == Procedure::Commit as u32 {
                    *commit.lock().unwrap() = Some(xid);
                } else if procedure == Procedure::Write as u32 {
                    let offset = WriteArgs::decode(&mut arguments).unwrap().offset;
                    let is_early = offset >= HOLE_END && !is_committed.load(Ordering::Relaxed);
                    seen.fetch_or(is_early, Ordering::Relaxed);
                }
            }
            Message::Reply { xid } if *commit.lock().unwrap() == Some(xid) => {
                is_committed.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        None
    });
    succeeded(run(["cp", here.to_str().unwrap(), &format!("{url}/there")]));
    assert!(!early.load(Ordering::Relaxed), "the hole was passed before the COMMIT");
    assert_same_data(here, server.path("there"));
}
