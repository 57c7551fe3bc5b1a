//! The command line and the configuration file: help, misuse, and `check`.

use std::fs;
use std::process::{Command, Output};

use rustix::process::Signal;

use crate::fixture::{
    ONE_EXPORT, Place, Running, assert_exit, run, serve_config, serve_directory, spillway,
    without_environment,
};

#[test]
fn help_and_version_succeed_on_stdout() {
    for (args, expected) in [
        (&["--help"][..], "Commands:"),
        (&["serve", "--help"], "[default: 127.0.0.1:2049]"),
        (&["check", "--help"], "--config <FILE>"),
        (&["--version"], concat!("spillway ", env!("CARGO_PKG_VERSION"), "\n")),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(expected), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn misuse_exits_2_with_one_sentence_and_a_hint() {
    let place = Place::new();
    let (a, state) = (&place.text("a"), &place.text("state"));
    let config = &place.configure("state_dir = \"$DIR/state\"\n[[export]]\npath = \"$DIR/b\"");
    let cases: &[(&[&str], &str)] = &[
        (&[], "a command is missing, like serve, mount or cp"),
        (&["sevre"], "unrecognized subcommand 'sevre'"),
        (&["check"], "the following required arguments were not provided: <FILE>"),
        (&["check", "a", "--config", "b"], "the argument '[FILE]' cannot be used with '--config"),
        (
            &["bench"],
            "bench: one of io, uncached, readdir, writeback, threads, names, clients, report or \
             compare is missing",
        ),
        (
            &["bench", "threads", "--rounds", "abc", "/"],
            "invalid value 'abc' for '--rounds <COUNT>': a whole number is expected",
        ),
        (
            &["mount", "--trace", "all", "nfs://filer/export", a],
            "--trace: a mount in the background prints events to a file only: add --log FILE, or \
             --foreground",
        ),
        (
            &["mount", "nfs://filer/export?uid=1000", a],
            "nfs://filer/export?uid=1000: uid and gid cannot be set: a mount makes each call as the \
             user of the program that uses it",
        ),
        (&["serve"], "DIR: no directory to serve: give one, or --config FILE"),
        (&["serve", a, "--color"], "unexpected argument '--color' found"),
        (&["serve", a, a], "unexpected argument "),
        (&["serve", a, "--memory", "3"], "invalid value '3' for '--memory <SIZE>': `3` is not a"),
        (&["serve", a, "--memory", "1MiB"], "--memory: 1MiB of memory is too little"),
        (&["serve", a, "--max-transfer", "1KiB"], "--max-transfer: 1KiB is not a multiple of"),
        (&["serve", a, "--window", "4MiB"], "--window: 4MiB is too little for the write-behind"),
        (
            &["serve", a, "--read-mode", "fast"],
            "invalid value 'fast' for '--read-mode <MODE>' [possible values: buffered, dontcache, \
             direct, auto]",
        ),
        (
            &["serve", a, "--trace", "read_start,reed"],
            "invalid value 'reed' for '--trace <EVENT[,EVENT...]>': `reed` is not a trace event; the \
             events are all, read_start, read_vector_dio, ",
        ),
        (&["serve", a, "--trace", ""], "invalid value '' for '--trace "),
        (&["serve", a, "--listen", "127.0.0.1"], "invalid value '127.0.0.1' for '--listen"),
        (&["serve", a, "--as", "data"], "--as: the export name `data` does not begin with a"),
        (&["serve", a, "--client", "10.0.0.1/8"], "--client: `10.0.0.1/8` has bits beyond"),
        (
            &["serve", "--config", config, "--as", "/x"],
            "--as: it names DIR; write `name` in an [[export]] of ",
        ),
        (
            &["serve", "--config", config, "--client", "*"],
            "--client: it is for DIR; write hosts in",
        ),
        (&["serve", "--client", "*"], "DIR: no directory to serve: give one, or --config FILE"),
        (&["serve", a, "--config", config], &format!("DIR: {config} has exports of its own")),
        (&["serve", a, "--state-dir", a], "--state-dir: the state directory "),
    ];
    for (args, sentence) in cases {
        let state: &[&str] = match args.first() {
            Some(&"serve") if !args.contains(&"--state-dir") => &["--state-dir", state],
            _ => &[],
        };
        assert_exit(&run(&[args, state].concat()), 2, sentence);
    }
}

#[test]
fn misuse_points_at_the_help_of_the_command() {
    for (args, command) in [
        (&["--color"][..], "spillway"),
        (&["ls", "--colour"], "spillway ls"),
        (&["serve"], "spillway serve"),
        (&["set", "/data"], "spillway set"),
        (&["bench"], "spillway bench"),
        (&["bench", "io", "--colour"], "spillway bench io"),
        (&["bench", "report"], "spillway bench report"),
    ] {
        let output = run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.lines().last(), Some(&*format!("Try `{command} --help`.")), "{stderr}");
        assert_eq!(output.status.code(), Some(2), "{stderr}");
    }
}

#[test]
fn a_stdout_that_takes_nothing_is_an_error() {
    let place = Place::new();
    let file = place.configure(ONE_EXPORT);
    let cases: [&[&str]; 4] = [&["--help"], &["--version"], &["ls", "--help"], &["check", &file]];
    for args in cases {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = spillway().args(args).stdout(full).output().unwrap();
        assert_exit(&output, 1, "write error: No space left on device");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = spillway().args(args).stdout(writer).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((&*stderr, output.status.code()), ("", Some(128 + 13)), "{args:?}");
    }
}

#[test]
fn check_takes_the_file_without_a_flag() {
    let place = Place::new();
    let file = place.configure(ONE_EXPORT);
    let (short, long) = (run(&["check", &file]), run(&["check", "--config", &file]));
    assert_eq!(short.status.code(), Some(0));
    assert_eq!(short, long);
}

#[test]
fn a_filter_that_cannot_be_read_is_misuse() {
    let place = Place::new();
    let output = spillway().args(["serve", &place.text("a")]).env("RUST_LOG", "=x=").output();
    assert_exit(&output.unwrap(), 2, "RUST_LOG: ");
}

#[test]
fn a_missing_file_exits_1() {
    let place = Place::new();
    let (gone, state) = (&place.text("gone"), &place.text("state"));
    let output = run(&["serve", gone, "--state-dir", state]);
    assert_exit(&output, 1, &format!("cannot export {gone}: No such file or directory"));
    let output = run(&["check", "--config", gone]);
    assert_exit(&output, 1, &format!("{gone}: cannot be read: No such file or directory"));
    let output = run(&["serve", "--config", gone]);
    assert_exit(&output, 1, &format!("{gone}: cannot be read: No such file or directory"));
    let output = run(&["bench", "compare", gone]);
    let why = "No such file or directory";
    assert_exit(&output, 1, &format!("cannot read the records in {gone}: {why}"));
    let (a, host) = (&place.text("a"), "nothing.invalid");
    let output = run(&["serve", a, "--client", host, "--state-dir", state]);
    assert_exit(&output, 1, &format!("--client: cannot resolve {host}: "));
}

#[test]
fn check_prints_what_a_good_file_means() {
    let place = Place::new();
    let output = place.check(
        "listen = [\"0.0.0.0:2049\", \"[::]:2049\"]\nstate_dir = \"$DIR/state\"\n\
         window = \"8MiB\"\nread_ahead = false\ntrace = [\"read_done\", \"read_start\"]\n\
         delegations = false\nnfs_versions = [\"3\", \"4.2\"]\nportmap = true\nmetrics = \"127.0.0.1:9100\"\n\
         [[export]]\npath = \"$DIR/a\"\nname = \"/a\"\nid = 7\nio_cache_read = \"direct\"\ncalls_per_sec = 1\n\
         [[export.client]]\nhosts = [\"10.0.0.0/8\", \"localhost\"]\nsquash = \"all\"\n\
         [[export.client]]\nhosts = [\"*\"]\nread_only = true\nsecure_ports = true\n\
         [[export]]\npath = \"$DIR/b\"\nname = \"/b\"\nid = 8\nsync = false\n\
         file_sync_writes = true\nio_cache_write = \"dontcache\"\n",
    );
    let expected = format!(
        "valid: 2 exports on 0.0.0.0:2049 and [::]:2049, 512MiB of memory, a window of 8MiB, \
         transfers up to 1MiB, no read-ahead, no delegations, \
         tracing read_start,read_done\n\
         NFS 3,4.2, state in {}, the portmapper protocol, metrics on 127.0.0.1:9100\n\
         /a from {}, sync, reads direct, writes auto, id 7\n    \
         at most 1 call per second\n    \
         10.0.0.0/8 localhost: read-write, all squashed to 65534:65534\n    \
         *: read-only, root squashed to 65534:65534, source ports below 1024 only\n\
         /b from {}, async, reads auto, writes dontcache as FILE_SYNC, id 8\n    \
         127.0.0.0/8 ::1: read-write, root squashed to 65534:65534\n",
        place.text("state"),
        place.text("a"),
        place.text("b"),
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
}

#[test]
fn rules_that_another_export_bypasses_are_warned_of() {
    let place = Place::new();
    fs::create_dir(place.path("a/in")).unwrap();
    let text = format!("{ONE_EXPORT}[[export.client]]\nhosts = [\"*\"]\n[[export]]\n");
    let text = text + "path = \"$DIR/a/in\"\nname = \"/in\"\n";
    let output = place.check(&text);
    let warning = "the directory of the export /in is part of that of /a: ";
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(0), 1), "{stderr}");
    assert!(stderr.starts_with(&format!("spillway: warning: {warning}")), "{stderr}");
    assert!(output.stdout.starts_with(b"valid: 2 exports "));

    let config = place.configure(ONE_EXPORT);
    let running = Running::start(serve_config(&config), 1);
    place.configure(&text);
    running.signal(Signal::HUP);
    assert!(running.wait_for(warning).contains("WARN"));
    running.stop(Signal::TERM);
    let running = Running::start(serve_config(&config), 2);
    running.wait_for(warning);
    running.stop(Signal::TERM);
}

#[test]
fn check_reports_line_and_column_of_the_first_error() {
    let place = Place::new();
    let file = place.text("spillway.toml");
    let cases = [
        ("lisen = 1", "1:1: unknown key `lisen`, expected one of `listen`"),
        ("[[export]]\npath = \"$DIR/a\"\nreadonly = true", "3:1: unknown key `readonly`"),
        ("[[export]]\npath = \"$DIR/gone\"", "2:8: cannot export "),
        ("[[export]]\npath = \"$DIR/a\"\n[[export]]\npath = \"$DIR/a\"", "4:8: another export is"),
        (
            "[[export]]\npath = \"$DIR/a\"\nio_cache_write = \"fast\"",
            "3:18: `fast` is not an I/O mode; the modes are buffered, dontcache, direct and auto",
        ),
        (
            "trace = [\"reed\"]",
            "1:10: `reed` is not a trace event; the events are all, read_start, ",
        ),
        ("[[export]\n", "1:10: "),
        (
            "[export]\npath = \"$DIR/a\"",
            "1:1: there can be several of this table: write [[export]]",
        ),
    ];
    for (text, expected) in cases {
        let output = place.check(&format!("state_dir = \"/nonexistent\"\n{text}"));
        // The state directory is on the first line, so each place is one line further down.
        let (line, rest) = expected.split_once(':').unwrap();
        let line = line.parse::<u32>().unwrap() + 1;
        assert_exit(&output, 1, &format!("{file}:{line}:{rest}"));
    }
    assert_exit(&place.check(""), 1, &format!("{file}: there is no [[export]]"));
}

#[test]
fn a_stdout_that_is_closed_is_an_error_for_what_prints() {
    let place = Place::new();
    fs::write(place.path("a/file"), b"data").unwrap();
    let running = Running::start(serve_directory(&place), 1);
    let url = format!("nfs://{}/data", running.address);
    let (file, copy) = (format!("{url}/file"), place.text("copy"));
    let config = place.configure(ONE_EXPORT);
    let cases: &[&[&str]] = &[
        &["ls", &url],
        &["ls", "-lR", &url],
        &["cat", &file],
        &["stat", &file],
        &["du", &url],
        &["df", &url],
        &["exports", &url],
        &["cp", "-v", &file, &copy],
        &["--help"],
        &["completions", "bash"],
        &["check", &config],
    ];
    for args in cases {
        let output = run_without_stdout(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        let sentence = "write error: Bad file descriptor";
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.ends_with(&format!(": {sentence}\n")), "{args:?}: {stderr}");
    }
    // A command that prints nothing needs no stdout.
    let output = run_without_stdout(&["cp", &file, &copy]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Runs the program as a shell does with `>&-`.
fn run_without_stdout(args: &[&str]) -> Output {
    let mut shell = without_environment(Command::new("sh"));
    let program = env!("CARGO_BIN_EXE_spillway");
    shell.args(["-c", "exec \"$@\" >&-", "sh", program]).args(args).output().unwrap()
}

#[test]
fn a_host_without_address_exits_1() {
    let place = Place::new();
    let url = "nfs://nothing.invalid/x";
    let [from, to] = [format!("{url}/from"), format!("{url}/to")];
    let (local, dir) = (&place.configure(ONE_EXPORT), &place.text("a"));
    let cases: &[&[&str]] = &[
        &["ls", url],
        &["cat", url],
        &["cp", url, dir],
        &["cp", local, url],
        &["rm", &from],
        &["mkdir", &from],
        &["rmdir", &from],
        &["mv", &from, &to],
        &["ln", &from, &to],
        &["ln", "-s", "target", &to],
        &["touch", &from],
        &["chmod", "644", &from],
        &["chown", "1", &from],
        &["stat", url],
        &["du", url],
        &["df", url],
        &["exports", url],
        &["mount", url, dir],
    ];
    for args in cases {
        let output = run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("cannot reach nothing.invalid: "), "{args:?}: {stderr}");
    }
}
