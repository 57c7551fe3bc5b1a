//! The log: its levels while the server runs, and its form in the journal.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::process::{Output, Stdio};

use proto::mount3;
use proto::nfs3::{Procedure, ReadArgs};
use rustix::process::{Pid, Signal, kill_process};
use server::trace::handle_hash;

use crate::client::{Client, MNT, make_file};
use crate::fixture::{Place, Running, assert_exit, run, serve_directory};

fn log(place: &Place, words: &[&str]) -> Output {
    run(&[&["log", "--socket", &place.text("state")], words].concat())
}

#[track_caller]
fn levels(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn levels_of_parts_change_while_the_server_runs() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    assert_eq!(levels(log(&place, &[])), "info");
    client.find("/data", "file");
    let set = levels(log(&place, &["calls=debug"]));
    assert_eq!(set, "info,spillway_server::call_log=debug");
    let before = running.lines_to("log levels set");
    assert!(before.iter().all(|line| !line.contains("LOOKUP client=")), "{before:?}");
    client.find("/data", "file");
    running.wait_for("LOOKUP client=");
    // A call only: the connection of it is another part.
    let _other = Client::connect(&running);
    assert_eq!(levels(log(&place, &["connections=debug", "calls=off"])).matches(',').count(), 2);
    let _third = Client::connect(&running);
    let lines = running.lines_to(": connected client=");
    assert!(lines.iter().all(|line| !line.contains("LOOKUP client=")), "{lines:?}");
    assert_eq!(levels(log(&place, &["error", "vfs=trace"])).split(',').next(), Some("error"));
    assert_eq!(levels(log(&place, &["default"])), "info");
    let _set = running.lines_to("log levels set");
    // The program is not the crates of the server, whose names begin in the same way.
    assert_eq!(levels(log(&place, &["program=debug"])), "info,spillway::=debug");
    client.find("/data", "file");
    assert_eq!(levels(log(&place, &["default"])), "info");
    let lines: Vec<_> = (0..2).flat_map(|_| running.lines_to("log levels set")).collect();
    assert!(lines.iter().all(|line| !line.contains("LOOKUP client=")), "{lines:?}");
    for (word, sentence) in [
        (
            "vfs=loud",
            "`loud` is not a level; the levels are off, error, warn, info, debug and trace",
        ),
        ("vsf=debug", "there is no part vsf; the parts are calls, connections, "),
    ] {
        assert_exit(&log(&place, &["warn", word]), 1, sentence);
    }
    assert_eq!(levels(log(&place, &[])), "info", "nothing was changed");
    running.stop(Signal::TERM);
}

/// A log that goes to the journal: of refused mounts of a name of control characters.
fn journal_of_refused_mounts(count: u32, words: &[&str]) -> Vec<String> {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let stat = rustix::fs::fstat(writer.as_fd()).unwrap();
    let mut command = serve_directory(&place);
    command.env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino)).args(words);
    let mut child = command.stdout(Stdio::piped()).stderr(writer).spawn().unwrap();
    drop(command);
    let mut announced = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = announced.next().unwrap().unwrap();
    let address = address.strip_prefix("listening on ").unwrap();
    let mut client = Client::over(TcpStream::connect(address).unwrap());
    let hostile = mount3::DirectoryArgs { directory: "/x\n<0>\u{1b}[31m\u{202e}".as_bytes() };
    for _ in 0..count {
        client.exchange(MNT, &hostile);
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let lines: Vec<_> = BufReader::new(reader).lines().map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success());
    lines
}

#[test]
fn lines_for_the_journal_have_a_priority_and_no_time() {
    let lines = journal_of_refused_mounts(1, &[]);
    for line in &lines {
        let level = line.get(..9).unwrap_or(line);
        assert!(["<6> INFO ", "<4> WARN "].contains(&level), "{lines:#?}");
    }
    let refused = lines.iter().find(|line| line.contains("mount refused")).unwrap();
    assert!(refused.starts_with("<6> INFO spillway_server::mount3: mount refused "), "{refused}");
    assert!(refused.contains(r"path=/x\n<0>\x1b[31m\xe2\x80\xae status="), "{refused}");
}

#[test]
fn lines_of_json_have_the_same_fields_escapes_and_bound() {
    let lines = journal_of_refused_mounts(30, &["--log-format", "json"]);
    let objects: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| {
            assert!(line.is_ascii() && (line.starts_with("<6>{") || line.starts_with("<4>{")));
            serde_json::from_str(&line[3..]).unwrap()
        })
        .collect();
    let of = |message: &str| -> Vec<_> {
        objects.iter().filter(|line| line["message"] == message).collect()
    };
    let refused = of("mount refused")[0];
    for (member, value) in [
        ("level", "INFO"),
        ("target", "spillway_server::mount3"),
        ("client", "127.0.0.1"),
        ("path", r"/x\n<0>\x1b[31m\xe2\x80\xae"),
    ] {
        assert_eq!(refused[member], value, "{refused}");
    }
    assert!(refused["timestamp"].as_str().unwrap().ends_with('Z'), "{refused}");
    assert_eq!(of("mount refused").len(), 20, "{lines:#?}");
    assert_eq!(of("10 similar messages suppressed").len(), 1, "{lines:#?}");
}

#[test]
fn calls_are_lines_of_json_with_v() {
    let place = Place::new();
    make_file(&place);
    let mut command = serve_directory(&place);
    command.args(["-v", "--log-format=json"]);
    let running = Running::start(command, 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    client.call(Procedure::Read, &ReadArgs { file, offset: 47008, count: 10 });
    let line = running.wait_for("\"message\":\"READ\"");
    let mut line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let members = line.as_object_mut().unwrap();
    assert!(members.remove("time_us").unwrap().is_u64() && members.remove("timestamp").is_some());
    let expected = serde_json::json!({
        "level": "DEBUG", "target": "spillway_server::call_log", "message": "READ",
        "client": client.stream.local_addr().unwrap().to_string(), "xid": "0x00000003",
        "export": "/data", "fh_hash": format!("0x{:08x}", handle_hash(file.as_bytes())),
        "offset": 47008, "count": 10, "status": "NFS3_OK",
    });
    assert_eq!(line, expected);
    running.stop(Signal::TERM);
    let output = run(&["serve", "--log-format", "xml", "."]);
    assert_exit(&output, 2, "invalid value 'xml' for '--log-format <FORMAT>'");
}

#[test]
fn a_journal_that_stderr_does_not_go_to_changes_nothing() {
    let place = Place::new();
    let mut command = serve_directory(&place);
    command.env("JOURNAL_STREAM", "1:2");
    let running = Running::start(command, 1);
    Client::connect(&running).root("/data");
    let line = running.wait_for("mounted");
    assert!(line.starts_with("20") && line.contains("Z  INFO "), "{line}");
    running.stop(Signal::TERM);
}
