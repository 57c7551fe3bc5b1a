//! `cat`, `stat`, `df` and `exports`, and what all commands have in common.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

use crate::fixture::{
    Server, assert_exit, coreutils, feed, on_terminal, pattern, run, spillway, succeeded, text,
};
use crate::gate::Gate;

#[test]
fn cat_writes_files_and_stdin_in_order_and_goes_on_after_failures() {
    let server = Server::start();
    let data = pattern(5_000_001);
    server.put("big", &data);
    server.put("small", "small\n");
    server.put("empty", "");
    fs::create_dir(server.path("dir")).unwrap();
    let [big, small, empty, dir, nope] =
        ["big", "small", "empty", "dir", "nope"].map(|name| server.url(name));
    let output = run(["cat", &big, &empty, &small]);
    assert_eq!(output.stdout.len(), data.len() + 6);
    assert!(output.stdout == [&data[..], b"small\n"].concat());

    let mut command = spillway();
    command.args(["cat", &small, "-", &nope, &dir, &small]);
    let output = feed(command, b"from stdin\n");
    assert_eq!(text(&output.stdout), "small\nfrom stdin\nsmall\n");
    let complaints = format!(
        "spillway cat: {nope}: No such file or directory\nspillway cat: {dir}: Is a directory\n"
    );
    assert_eq!((text(&output.stderr), output.status.code()), (&complaints[..], Some(1)));
}

#[test]
fn cat_ends_quietly_when_its_reader_leaves() {
    let server = Server::start();
    server.put("big", pattern(3 << 20));
    let mut command = spillway();
    command.args(["cat", &server.url("big")]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(141)));
}

#[test]
fn stat_prints_the_same_as_coreutils() {
    let server = Server::start();
    server.put("file", vec![7; 12_345]);
    server.put("empty", "");
    fs::create_dir(server.path("dir")).unwrap();
    symlink("file", server.path("link")).unwrap();
    // A link that was read after its last change, which reading does not change.
    let mut touch = coreutils("touch");
    touch.args(["-h", "-a", "-d", "2040-01-02 03:04:05.678901234"]).arg(server.path("link"));
    assert!(touch.status().unwrap().success());
    fs::set_permissions(server.path("file"), fs::Permissions::from_mode(0o2640)).unwrap();
    // All that does not depend on where the file is looked at from.
    let format = "%a|%A|%b|%B|%f|%F|%g|%G|%h|%i|%s|%t|%T|%u|%U|%x|%X|%y|%Y|%z|%Z|%%|%q";
    for path in ["file", "empty", "dir", "link"] {
        for flags in [&["-c", format][..], &["-L", "-c", format]] {
            let ours = succeeded(run([&["stat"], flags, &[&server.url(path)]].concat()));
            let theirs = coreutils("stat").args(flags).arg(server.path(path)).output().unwrap();
            assert_eq!(ours, text(&theirs.stdout), "{flags:?} {path}");
        }
        let ours = succeeded(run(["stat", &server.url(path)]));
        let theirs = coreutils("stat").arg(server.path(path)).output().unwrap();
        let ours: Vec<_> = ours.lines().collect();
        let theirs: Vec<_> = text(&theirs.stdout).lines().collect();
        // Name, preferred size and device are the server's own, and NFS knows no birth.
        assert_eq!(ours[3..7], theirs[3..7], "{path}");
        assert_eq!((ours[0].len() > 8, ours[7]), (true, " Birth: -"));
        let words = |line: &str, count| {
            line.split_whitespace().take(count).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(ours[1], 4), words(theirs[1], 4), "{path}");
    }
    let link = server.url("link");
    assert_eq!(succeeded(run(["stat", "-c", "%N", &link])), format!("'{link}' -> 'file'\n"));
    let nope = server.url("nope");
    let line = format!("spillway stat: cannot statx '{nope}': No such file or directory");
    assert_exit(&run(["stat", &nope]), 1, &line);
}

#[test]
fn df_has_the_numbers_of_the_file_system() {
    let server = Server::start();
    server.put("file", "");
    for (flags, column) in [(&[][..], "size"), (&["-h"], "size"), (&["-i"], "itotal")] {
        let output = succeeded(run([&["df"], flags, &[&server.url("file")]].concat()));
        let mut theirs = coreutils("df");
        theirs.args(flags.iter().filter(|flag| **flag != "-i")).arg(format!("--output={column}"));
        let theirs = theirs.arg(server.path("")).output().unwrap();
        let lines: Vec<Vec<_>> =
            output.lines().map(|line| line.split_whitespace().collect()).collect();
        let [header, row] = &lines[..] else { panic!("{output}") };
        assert_eq!(header[..1], ["Filesystem"]);
        assert_eq!(header[4..], [if flags == ["-i"] { "IUse%" } else { "Use%" }, "Mounted", "on"]);
        let total = text(&theirs.stdout).lines().nth(1).unwrap().trim();
        assert_eq!((row[0], row[1]), ("127.0.0.1:/e", total), "{flags:?}");
        assert_eq!(row[5], server.url("file"));
    }
    let nope = server.url("nope");
    let output = run(["df", &nope]);
    assert_exit(&output, 1, &format!("spillway df: {nope}: No such file or directory"));
}

#[test]
fn file_names_do_not_control_a_terminal() {
    let server = Server::start();
    fs::create_dir(server.path("\x1b[31mred")).unwrap();
    let (root, red) = (server.url(""), server.url("\x1b[31mred"));
    let shown = format!("'{root}/'$'\\033''[31mred'");
    assert_eq!(succeeded(run(["stat", "-c", "%n", &red])), format!("{red}\n"));
    assert!(succeeded(run(["du", &root])).contains(&format!("\t{red}\n")));
    let commands: [&[&str]; 5] = [
        &["du", &root],
        &["df", &red],
        &["stat", &red],
        &["stat", "-c", "%n", &red],
        &["ls", "-R", &root],
    ];
    for command in commands {
        let Some(printed) = on_terminal(command) else { return };
        assert!(!printed.contains('\x1b') && printed.contains(&shown), "{command:?}: {printed:?}");
    }
    let output = run(["cat", &format!("{red}/\nnope")]);
    let shown = shown.trim_end_matches('\'');
    let line = format!("spillway cat: {shown}/'$'\\n''nope': No such file or directory");
    assert_exit(&output, 1, &line);
}

#[test]
fn exports_are_listed_as_showmount_does() {
    let server = Server::start();
    let host = format!("127.0.0.1:{}", server.port());
    let expected = format!("Export list for {host}:\n/e 127.0.0.1\n");
    assert_eq!(succeeded(run(["exports", &host])), expected);
    assert_eq!(succeeded(run(["exports", &format!("nfs://{host}/e")])), expected);
    assert_eq!(succeeded(run(["exports", "--no-headers", &host])), "/e 127.0.0.1\n");
}

#[test]
fn links_and_dots_lead_through_the_export_and_not_out_of_it() {
    let server = Server::start();
    fs::create_dir_all(server.path("a/b")).unwrap();
    server.put("top", "top");
    server.put("a/mid", "mid");
    symlink("../mid", server.path("a/b/up")).unwrap();
    symlink("/e/top", server.path("a/b/server")).unwrap();
    symlink("/top", server.path("a/b/root")).unwrap();
    symlink("../../../../../../top", server.path("a/b/out")).unwrap();
    symlink("a/b", server.path("short")).unwrap();
    symlink("loop", server.path("loop")).unwrap();
    for (path, expected) in [
        ("a/b/up", "mid"),
        ("a/b/server", "top"),
        ("a/b/root", "top"),
        ("a/b/out", "top"),
        ("short/../mid", "mid"),
        ("short/up", "mid"),
        ("a//./b/../../top", "top"),
    ] {
        assert_eq!(succeeded(run(["cat", &server.url(path)])), expected, "{path}");
    }
    let url = server.url("loop/x");
    let line = format!("spillway cat: {url}: Too many levels of symbolic links");
    assert_exit(&run(["cat", &url]), 1, &line);
}

#[test]
fn an_unreachable_server_is_reported() {
    // Bound and not listening: no other socket can be behind this port.
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&bound, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = SocketAddrV4::try_from(getsockname(&bound).unwrap()).unwrap().port();
    let url = format!("nfs://127.0.0.1:{port}/e");
    let output = run(["ls", &url]);
    let line = format!(
        "spillway ls: cannot access '{url}': cannot connect to 127.0.0.1:{port}: \
         Connection refused"
    );
    assert_exit(&output, 1, &line);
}

#[test]
fn network_errors_name_the_server_as_it_was_typed() {
    // Bound and not listening: no other socket can be behind this port.
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&bound, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = SocketAddrV4::try_from(getsockname(&bound).unwrap()).unwrap().port();
    each_command_reports(port, &format!("cannot connect to localhost:{port}: Connection refused"));
    // Connections are accepted, and calls are not answered.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    each_command_reports(port, &format!("no reply from localhost:{port}\n"));
}

/// Runs each command on a server on `port` of `localhost` that cannot be used for `reason`.
fn each_command_reports(port: u16, reason: &str) {
    let (url, local) = (format!("nfs://localhost:{port}/e/file"), tempfile::tempdir().unwrap());
    let [here, there] = ["here", "there"].map(|name| local.path().join(name));
    fs::write(&here, "content").unwrap();
    let (here, there) = (here.to_str().unwrap(), there.to_str().unwrap());
    let other = format!("{url}2");
    let by_options = format!("port={port},mountport={port}");
    let cases: &[&[&str]] = &[
        &["ls", &url],
        &["cat", &url],
        &["stat", &url],
        &["df", &url],
        &["rm", &url],
        &["mkdir", &url],
        &["mv", &url, &other],
        &["rmdir", &url],
        &["ln", &url, &other],
        &["touch", &url],
        &["chmod", "600", &url],
        &["chown", "0", &url],
        &["du", &url],
        &["cp", &url, there],
        &["cp", here, &url],
        &["exports", &format!("localhost:{port}")],
        &["mount", "--foreground", &url, local.path().to_str().unwrap()],
        &[
            "mount",
            "--foreground",
            "-o",
            &by_options,
            "localhost:/e",
            local.path().to_str().unwrap(),
        ],
    ];
    for arguments in cases {
        let (command, rest) = arguments.split_first().unwrap();
        let mut spillway = spillway();
        let output =
            spillway.args([command, "-o", "soft,timeo=2,retrans=0"]).args(rest).output().unwrap();
        let stderr = text(&output.stderr).replace(" (os error 111)", "");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
        assert!(!output.status.success(), "{arguments:?}");
    }
}

#[test]
fn network_error_of_a_transfer_names_the_server_as_it_was_typed() {
    let server = Server::start();
    server.put("big", pattern(3 << 20));
    let gate = Gate::new(&server, 1 << 20);
    let url = gate.url("big").replace("127.0.0.1", "localhost");
    // The calls before the transfer are answered in this time on a busy machine, too.
    let output = run(["cat", "-o", "soft,timeo=50,retrans=0", &url]);
    let authority = url.strip_prefix("nfs://").unwrap().split('/').next().unwrap();
    let stderr = text(&output.stderr);
    assert!(stderr.contains(&format!(": no reply from {authority}")), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_path_that_is_not_exported_is_reported() {
    let server = Server::start();
    let url = format!("nfs://127.0.0.1:{}/other/file", server.port());
    let output = run(["cat", &url]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with(&format!("spillway cat: {url}: ")), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn options_that_concern_mounts_alone_are_refused() {
    let server = Server::start();
    let url = server.url("new");
    let output = run(["touch", "-o", "soft,ro", &url]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(": option ro: only for `spillway mount`\n"), "{stderr}");
    assert!(!server.path("new").exists());
    succeeded(run(["touch", "-o", "soft,rw,vers=3", &url]));
}

#[test]
fn misuse_exits_2_with_one_sentence_and_a_hint() {
    let cases: &[(&[&str], &str)] = &[
        (&["ls"], "the following required arguments were not provided: <URL>..."),
        (
            &["ls", "/srv"],
            "invalid value '/srv' for '<URL>...': the URL does not begin with nfs://",
        ),
        (
            &["ls", "nfs://h/e?x=1"],
            "invalid value 'nfs://h/e?x=1' for '<URL>...': unknown option `x=1`",
        ),
        (&["ls", "-o", "sorft", "nfs://h/e"], "invalid value 'sorft' for '-o <OPTION"),
        (&["rm"], "the following required arguments were not provided: <URL>..."),
        (
            &["mkdir", "-m", "9", "nfs://h/e"],
            "invalid value '9' for '--mode <MODE>': `9` is not a mode",
        ),
        (&["cp", "nfs://h/e/a"], "2 values required by '<FILE> <FILE>...'; only 1 was provided"),
        (
            &["cp", "--jobs", "0", "nfs://h/e/a", "b"],
            "invalid value '0' for '--jobs <N>': `0` is not a whole number from 1 to 256",
        ),
        (
            &["cp", "--jobs", "abc", "nfs://h/e/a", "b"],
            "invalid value 'abc' for '--jobs <N>': `abc` is not a whole number from 1 to 256",
        ),
        (&["rmdir", "-q", "nfs://h/e/d"], "unexpected argument '-q' found"),
        (&["ln", "nfs://h/e/a"], "2 values required by '<FILE> <FILE>...'; only 1 was provided"),
        (
            &["touch", "-d", "soon", "nfs://h/e/a"],
            "invalid value 'soon' for '--date <TIME>': `soon` is not a time between 1970 and 2106",
        ),
        (
            &["touch", "-d", "@0", "-r", "nfs://h/e/a", "nfs://h/e/b"],
            "the argument '--date <TIME>' cannot be used with '--reference <URL>'",
        ),
        (&["chmod", "-q", "nfs://h/e/a"], "invalid value '-q' for '<MODE>': `-q` is not a mode"),
        (&["chmod", "644"], "the following required arguments were not provided: <URL>..."),
        (
            &["chown", "no such", "nfs://h/e/a"],
            "invalid value 'no such' for '<OWNER>': there is no user `no such`",
        ),
        (
            &["chown", "0:no such", "nfs://h/e/a"],
            "invalid value '0:no such' for '<OWNER>': there is no group `no such`",
        ),
        (&["du", "-sa", "nfs://h/e/a"], "the argument '--summarize' cannot be used with '--all'"),
        (&["exports"], "the following required arguments were not provided: <HOST>"),
    ];
    for (args, sentence) in cases {
        let output = run(*args);
        let stderr = text(&output.stderr);
        assert!(stderr.starts_with(&format!("spillway: {sentence}")), "{args:?}: {stderr}");
        let hint = format!("\nTry `spillway {} --help`.\n", args[0]);
        assert!(stderr.ends_with(&hint), "{stderr}");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let output = run(["cp", "a", "b"]);
    assert_exit(&output, 2, "spillway cp: one of the files has to be a URL, nfs://HOST/PATH");
    let output = run(["ln", "nfs://h/e/a", "b"]);
    assert_exit(&output, 2, "spillway ln: all files have to be a URL, nfs://HOST/PATH");
    let output = run(["ln", "-s", "a", "b"]);
    assert_exit(&output, 2, "spillway ln: the new name has to be a URL, nfs://HOST/PATH");
    let output = run(["ln", "-s", "nfs://h/e/a", "nfs://h/e/b"]);
    assert_exit(&output, 2, "spillway ln: a symbolic link holds a path of the server, not a URL");
    let help = succeeded(run(["ls", "--help"]));
    assert!(help.contains("--human-readable"), "{help}");
    assert_eq!(succeeded(run(["rm", "-f"])), "");
}

#[test]
fn warning_has_no_escape_sequences_where_stderr_is_no_terminal() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nfs://{}/e", listener.local_addr().unwrap());
    let mut child = spillway().args(["exports", &url]).stderr(Stdio::piped()).spawn().unwrap();
    // A record with the mark of a reply and no reply in it: the client warns about its sender.
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&[0x80, 0, 0, 4, 0, 0, 0, 0]).unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("server="), "{line:?}");
    assert!(!line.contains('\x1b'), "{line:?}");
}

#[test]
fn silent_server_is_reported_and_its_return_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut command = spillway();
    command.args(["exports", &format!("nfs://{address}/e")]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut call = [0; 8];
    stream.read_exact(&mut call).unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    let silent = format!("spillway exports: server {address} not responding, still trying");
    assert_eq!(stderr.next().unwrap().unwrap(), silent);
    // PROG_UNAVAIL, RFC 5531 section 9.
    let (mark, xid) = ([0x80, 0, 0, 24], &call[4..]);
    let words = [1, 0, 0, 0, 1].map(u32::to_be_bytes).concat();
    stream.write_all(&[&mark, xid, &words].concat()).unwrap();
    assert_eq!(stderr.next().unwrap().unwrap(), format!("spillway exports: server {address} OK"));
    child.kill().unwrap();
    child.wait().unwrap();
}
