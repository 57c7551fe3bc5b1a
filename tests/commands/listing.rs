//! `ls`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use proto::nfs3::{Failure, Procedure, ReadlinkReply, Status};
use proto::oncrpc::encode_success;
use proto::xdr::Encode;
use rpc::record;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::fixture::{
    Server, assert_exit, bytes_path, coreutils, on_terminal, run, spillway, succeeded, text,
};
use crate::relay::intercept;
use crate::skip::skip;

/// A directory with what listings are about: types, sizes, times, links, hidden names.
fn furnished() -> Server {
    let server = Server::start();
    for name in ["plain", "Upper", ".hidden", "with space", "a-much-longer-name-than-the-others"] {
        server.put(name, name);
    }
    fs::create_dir_all(server.path("dir/below")).unwrap();
    fs::create_dir(server.path("empty")).unwrap();
    server.put("dir/one", vec![1; 70_000]);
    server.put("dir/below/two", "");
    symlink("plain", server.path("link")).unwrap();
    symlink("dir", server.path("dirlink")).unwrap();
    symlink("nowhere", server.path("dangling")).unwrap();
    fs::hard_link(server.path("plain"), server.path("dir/again")).unwrap();
    mknodat(CWD, server.path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    for (name, minor) in [("null", 3), ("tty64", 64)] {
        let (path, mode) = (server.path(name), Mode::from_raw_mode(0o666));
        let device = FileType::CharacterDevice;
        if let Err(error) = mknodat(CWD, path, device, mode, makedev(4, minor)) {
            skip(format_args!("the devices of the listing: {error}"));
        }
    }
    fs::set_permissions(server.path("plain"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(server.path("dir"), fs::Permissions::from_mode(0o1777)).unwrap();
    let year = Duration::from_secs(31_556_952);
    for (name, age) in [("Upper", year), ("with space", year / 3), ("dir/one", 40 * year)] {
        let file = File::options().write(true).open(server.path(name)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }
    server
}

#[test]
fn link_that_cannot_be_read_is_reported_as_an_argument_and_in_a_directory() {
    let server = Server::start();
    symlink("target", server.path("link")).unwrap();
    let url = intercept(&server, Procedure::Readlink, |xid, _| {
        Some(record::encode(|w| {
            encode_success(w, xid);
            ReadlinkReply::Err(Failure { status: Status::Io, body: None }).encode(w);
        }))
    });
    let link = format!("{url}/link");
    let line = format!("spillway ls: cannot access '{link}': Input/output error\n");
    for (argument, status) in [(&link, 2), (&url, 1)] {
        let output = run(["ls", "-l", argument]);
        assert_eq!((text(&output.stderr), output.status.code()), (&line[..], Some(status)));
        assert!(text(&output.stdout).trim_end().ends_with("link"), "without its target");
    }
}

#[test]
fn listings_are_those_of_coreutils() {
    let server = furnished();
    for flags in [
        "", "-1", "-a", "-A", "-r", "-t", "-tr", "-S", "-R", "-aR", "-l", "-lA", "-ln", "-lh",
        "-lS", "-lR", "-ltr", "-d", "-ld", "-n", "-1l", "-l1",
    ] {
        for path in ["", "/dir", "/plain", "/link", "/dirlink", "/dangling", "/dir/one"] {
            if path.is_empty() && flags.contains('a') {
                // Above the export nothing is shown, and here its parent is.
                continue;
            }
            let flags: &[&str] = if flags.is_empty() { &[] } else { &[flags] };
            let url = server.url(path.trim_start_matches('/'));
            let ours = succeeded(run([&["ls"], flags, &[&url]].concat()));
            let place =
                format!("{}{path}", server.path("").to_str().unwrap().trim_end_matches('/'));
            let theirs = coreutils("ls").args(flags).arg(&place).output().unwrap();
            assert_eq!(ours, text(&theirs.stdout).replace(&place, &url), "{flags:?} {path}");
        }
    }
}

#[test]
fn columns_are_those_of_coreutils() {
    let server = furnished();
    for width in ["200", "80", "50", "20", "1"] {
        let output = spillway().env("COLUMNS", width).args(["ls", "-C", &server.url("")]).output();
        let mut ls = coreutils("ls");
        // A terminal makes ls quote names; there is none.
        ls.args(["-C", "-T0", "--quoting-style=shell-escape", "-w", width]);
        let theirs = ls.current_dir(server.path("")).output().unwrap();
        assert_eq!(succeeded(output.unwrap()), text(&theirs.stdout), "{width}");
    }
}

#[test]
fn several_arguments_are_files_first_and_then_directories_with_headers() {
    let server = furnished();
    let [dir, empty, plain] = ["dir", "empty", "plain"].map(|name| server.url(name));
    let output = run(["ls", &empty, &plain, &dir, &server.url("nope")]);
    assert_eq!(text(&output.stdout), format!("{plain}\n\n{dir}:\nagain\nbelow\none\n\n{empty}:\n"));
    let nope = server.url("nope");
    let complaint = format!("spillway ls: cannot access '{nope}': No such file or directory\n");
    assert_eq!((text(&output.stderr), output.status.code()), (&complaint[..], Some(2)));
}

#[test]
fn failures_to_list_are_reported() {
    let server = furnished();
    let sentences = [
        ("nope", "No such file or directory"),
        ("plain/x", "Not a directory"),
        ("plain/", "Not a directory"),
        ("dangling/", "No such file or directory"),
    ];
    for (path, reason) in sentences {
        let url = server.url(path);
        let line = format!("spillway ls: cannot access '{url}': {reason}");
        assert_exit(&run(["ls", &url]), 2, &line);
    }
    // Mode 0 excludes every user, and also root when it is squashed.
    fs::set_permissions(server.path("dir"), fs::Permissions::from_mode(0o000)).unwrap();
    let url = server.url("dir?uid=4711&gid=4711");
    let line = format!("spillway ls: cannot open directory '{url}': Permission denied");
    assert_exit(&run(["ls", &url]), 2, &line);
    // Below the argument it is a lesser failure, and the rest is listed.
    let output = run(["ls", "-R", &server.url("?uid=4711&gid=4711").replace("/?", "?")]);
    assert!(text(&output.stderr).ends_with("': Permission denied\n"));
    assert!(text(&output.stdout).contains("/empty?uid=4711&gid=4711:\n"));
    assert_eq!(output.status.code(), Some(1));
    fs::set_permissions(server.path("dir"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn names_are_bytes() {
    let server = Server::start();
    let names: [&[u8]; 9] = [
        b"line\nbreak",
        b"\xff\xfe",
        b"-dash",
        b"50%",
        b"a%41",
        b"what?x=1",
        b"#hash",
        b"it's",
        b"tab\there",
    ];
    for name in names {
        server.put(bytes_path(name), name);
    }
    let listed = run(["ls", &server.url("")]).stdout;
    let theirs = coreutils("ls").current_dir(server.path("")).output().unwrap().stdout;
    assert_eq!(listed, theirs);
    // With what a URL reads as something else escaped, each name leads to its file.
    for name in names {
        let escaped = name.iter().flat_map(|byte| match byte {
            b'%' | b'?' => format!("%{byte:02X}").into_bytes(),
            byte => vec![*byte],
        });
        let url = server.raw_url(&escaped.collect::<Vec<_>>());
        let output = run(["cat".as_ref(), url.as_os_str()]);
        assert_eq!((output.stdout.as_slice(), output.status.code()), (name, Some(0)));
    }
    // A message can be given to a shell again.
    let output = run(["ls".as_ref(), server.raw_url(b"no\nsuch").as_os_str()]);
    let expected = format!("cannot access '{}/no'$'\\n''such': No such", server.url(""));
    assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
}

#[test]
fn ten_thousand_entries_are_listed_once_each() {
    let server = Server::start();
    fs::create_dir(server.path("many")).unwrap();
    let names: Vec<_> = (0..10_000).map(|i| format!("entry-with-a-number-{i:05}")).collect();
    for name in &names {
        server.put(format!("many/{name}"), "");
    }
    let url = server.url("many");
    let sorted = succeeded(run(["ls", &url]));
    assert!(sorted.lines().eq(&names), "sorted, and each once");
    let unsorted = succeeded(run(["ls", "-U", &url]));
    assert_eq!(unsorted.lines().count(), names.len());
    let set: BTreeSet<_> = unsorted.lines().collect();
    assert!(set.into_iter().eq(&names));
    let long = succeeded(run(["ls", "-lU", &url]));
    assert_eq!(long.lines().count(), names.len(), "no total, which would come too late");
    assert!(long.lines().all(|line| line.starts_with("-rw")));
}

#[test]
fn a_reader_that_leaves_ends_the_listing_quietly() {
    let server = Server::start();
    for i in 0..5000 {
        server.put(format!("a-name-of-which-some-do-not-fit-into-a-pipe-{i}"), "");
    }
    let mut ls = spillway();
    let mut child = ls.args(["ls", &server.url("")]);
    child = child.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(141)));
}

#[test]
fn a_full_disk_under_stdout_is_reported() {
    let server = Server::start();
    server.put("a", "");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = spillway().args(["ls", &server.url("")]).stdout(full).output().unwrap();
    assert_exit(&output, 1, "spillway ls: write error: No space left on device");
}

#[test]
fn a_terminal_gets_columns_and_quotes() {
    let server = Server::start();
    for name in ["plain", "with space"] {
        server.put(name, "");
    }
    if let Some(printed) = on_terminal(&["ls", &server.url("")]) {
        assert_eq!(printed, " plain  'with space'\r\n");
    }
}
