//! `spillway trace`: events of a running server, followed through its control socket.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use proto::nfs3::{AccessArgs, DirOp, FileHandle, LookupArgs, Procedure, ReadArgs};
use proto::nfs4::{self, OperationCode as Op};
use proto::{mount3, nfs3};
use rustix::process::Signal;
use serde_json::Value;
use server::trace::{Event, handle_hash};

use crate::client::{Client, make_file};
use crate::fixture::{PATIENCE, Place, Running, assert_exit, run, serve_directory, spillway};
use crate::session::{Session, operation};

/// A command that follows events, once the server has begun with it.
struct Following {
    child: Child,
    lines: Receiver<String>,
}

impl Following {
    fn start(place: &Place, running: &Running, words: &[&str]) -> Self {
        let mut command = spillway();
        command.args(["trace", "--socket", &place.text("state")]).args(words);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, lines) = channel();
        thread::spawn(move || printed.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        running.wait_for("trace events followed");
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("an event is printed")
    }

    /// Lines that are certain to come. They are read before the server stops, which does not wait
    /// for a follower that lags behind.
    fn next(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    /// The lines that are left after the server has stopped.
    fn rest(mut self) -> Vec<String> {
        let lines = self.lines.iter().collect();
        assert!(self.child.wait().unwrap().success());
        lines
    }
}

fn make_files(place: &Place) {
    for name in ["one", "two"] {
        fs::write(place.path("a").join(name), vec![7; 1 << 20]).unwrap();
    }
}

fn read(client: &mut Client, file: FileHandle, offset: u64, count: u32) {
    client.call(Procedure::Read, &ReadArgs { file, offset, count });
}

const DUMP: (u32, u32, u32) = (mount3::PROGRAM, mount3::VERSION, mount3::Procedure::Dump.code());

#[test]
fn events_are_listed_by_subsystem_with_their_meaning() {
    let text = String::from_utf8(run(&["trace"]).stdout).unwrap();
    for event in Event::ALL {
        assert!(text.contains(&format!("{:<16} {}\n", event.name(), event.help())), "{text}");
    }
    let subsystems: Vec<_> = text.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(subsystems, ["read", "", "write", "", "commit", "", "readdir", "", "call"]);
    let json: Value = serde_json::from_slice(&run(&["trace", "--json"]).stdout).unwrap();
    assert_eq!(json[0]["event"], "read_start");
    assert_eq!(json.as_array().unwrap().len(), Event::ALL.len());
}

#[test]
fn several_commands_follow_the_events_that_each_asks_for() {
    let place = Place::new();
    make_files(&place);
    let mut command = serve_directory(&place);
    command.args(["--read-mode", "direct", "--no-read-ahead"]);
    let running = Running::start(command, 1);
    let mut client = Client::connect(&running);
    let ((_, one), (_, two)) = (client.find("/data", "one"), client.find("/data", "two"));
    let hash = format!("0x{:08x}", handle_hash(two.as_bytes()));
    let path = place.text("a/one");
    let of_one = Following::start(&place, &running, &["read", "--file", &path, "--json"]);
    let of_two = Following::start(
        &place,
        &running,
        &["read_start,write", "--file", &hash, "--client", "127.0.0.1", "--export", "/data"],
    );
    let slow = Following::start(&place, &running, &["all", "--min-latency", "300s"]);
    let other = Following::start(&place, &running, &["all", "--client", "192.0.2.1"]);
    read(&mut client, one, 47008, 47008);
    read(&mut client, two, 0, 512);
    let events: Vec<Value> =
        (0..5).map(|_| serde_json::from_str(&of_one.line()).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["read_start", "read_vector_dio", "read_direct", "read_io_done", "read_done"]
    );
    assert_eq!((&events[1]["offset"], &events[1]["len"]), (&47008.into(), &47008.into()));
    assert_eq!(events[1]["fh_hash"], format!("0x{:08x}", handle_hash(one.as_bytes())));
    assert!(events[1]["start"].as_str().unwrap().contains('+'), "{}", events[1]);
    assert_eq!((&events[4]["status"], &events[4]["count"]), (&"NFS3_OK".into(), &47008.into()));
    assert_eq!(
        (&events[4]["client"], &events[4]["export"]),
        (&"127.0.0.1".into(), &"/data".into())
    );

    // NAME-TID [CPU] SECONDS: EVENT: FIELDS
    let line = of_two.line();
    let (head, fields) = line.split_once(": read_start: xid=0x").unwrap();
    assert!(head.trim_start().starts_with("spillway-net-") && head.contains("] "), "{head}");
    let expected =
        format!(" fh_hash={hash} offset=0 len=512 client=127.0.0.1 export=/data latency=");
    assert!(fields.contains(&expected), "{fields}");
    running.stop(Signal::TERM);
    for following in [of_one, of_two, slow, other] {
        assert_eq!(following.rest(), Vec::<String>::new());
    }
}

/// A COMPOUND that lists the export, and one that works on the file in it; their transaction ids.
fn list_write_commit_and_read(session: &mut Session<'_>) -> [String; 2] {
    let stateid = nfs4::Stateid::ANONYMOUS;
    let verifier = nfs4::Verifier([0; 8]);
    let wanted = nfs4::Bitmap::default();
    let listing = nfs4::ReaddirArgs { cookie: 0, verifier, dir_bytes: 0, bytes_max: 4096, wanted };
    let stable = nfs4::StableHow::Unstable;
    let write = nfs4::WriteArgs { stateid, offset: 5, stable, data: b"12345" };
    let lookup = |name| operation(Op::Lookup, &nfs4::NameArgs { name });
    let on_export = |operations: Vec<Vec<u8>>| {
        [vec![operation(Op::Putrootfh, &()), lookup(b"data")], operations].concat()
    };
    let of_listing = on_export(vec![operation(Op::Readdir, &listing)]);
    let of_file = on_export(vec![
        lookup(b"file"),
        operation(Op::Write, &write),
        operation(Op::Commit, &nfs4::CommitArgs { offset: 0, count: 0 }),
        operation(Op::Read, &nfs4::ReadArgs { stateid, offset: 7, count: 10 }),
    ]);
    [of_listing, of_file].map(|operations| {
        session.succeed(&operations);
        format!("0x{:08x}", session.client.xid)
    })
}

#[test]
fn operations_of_a_compound_have_events_of_their_own() {
    let place = Place::new();
    make_file(&place);
    let mut command = serve_directory(&place);
    command.args(["--read-mode", "buffered", "--write-mode", "buffered", "--no-splice"]);
    let running = Running::start(command, 1);
    let mut client = Client::connect(&running);
    let mut session = Session::create(&mut client);
    let file = place.text("a/file");
    let steps = ["read", "write", "commit", "readdir", "--json"];
    let all = Following::start(&place, &running, &steps);
    let of_file = Following::start(&place, &running, &["all", "--file", &file]);
    // Each call takes longer than a microsecond, and none of the test takes five minutes.
    let slow = Following::start(&place, &running, &["all", "--min-latency", "1us"]);
    let hung = Following::start(&place, &running, &["all", "--min-latency", "300s"]);
    let [listing_xid, xid] = list_write_commit_and_read(&mut session);
    let events: Vec<Value> = (0..10).map(|_| serde_json::from_str(&all.line()).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let expected = [
        "readdir_enter",
        "readdir_exit",
        "write_start",
        "write_vector",
        "write_io_done",
        "write_done",
        "commit_start",
        "commit_done",
        "read_start",
        "read_vector",
    ];
    assert_eq!(names, expected);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["xid"], *if number < 2 { &listing_xid } else { &xid }, "{event}");
        assert_eq!((&event["client"], &event["export"]), (&"127.0.0.1".into(), &"/data".into()));
    }
    assert_eq!((&events[1]["status"], &events[1]["count"]), (&"NFS4_OK".into(), &1.into()));
    assert_eq!((&events[5]["offset"], &events[5]["count"]), (&5.into(), &5.into()));
    assert_eq!((&events[9]["offset"], &events[9]["len"]), (&7.into(), &10.into()));
    assert_ne!(events[1]["fh_hash"], events[2]["fh_hash"], "directory and file");
    let names = ["read_io_done", "read_done"];
    assert!(names.iter().all(|name| all.line().contains(&format!("\"event\":\"{name}\""))));

    // Whole calls are events too. Neither call has a handle, so they are about no file.
    let (lines_of_file, slow_lines) = (of_file.next(10), slow.next(16));
    assert!(lines_of_file[0].contains(": write_start: "), "{lines_of_file:#?}");
    assert!(slow_lines[1].contains(": readdir_enter: "), "{slow_lines:#?}");
    assert!(slow_lines[15].contains(": call_done: "), "{slow_lines:#?}");
    running.stop(Signal::TERM);
    for following in [of_file, slow, hung] {
        assert_eq!(following.rest(), Vec::<String>::new());
    }
}

/// The fields of an event by name; `fh_hash` as a number.
fn members(line: &str, names: [&str; 5]) -> [Value; 5] {
    let event: Value = serde_json::from_str(line).unwrap();
    names.map(|name| event[name].clone())
}

#[test]
fn calls_without_io_are_followed_and_filtered() {
    let place = Place::new();
    make_files(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let ((root, one), (_, two)) = (client.find("/data", "one"), client.find("/data", "two"));
    let calls = Following::start(&place, &running, &["call", "--json"]);
    let path = place.text("a/two");
    let of_two = Following::start(&place, &running, &["call_done", "--file", &path]);
    let of_export = Following::start(&place, &running, &["call_start", "--export", "/data"]);
    let xid = (client.xid + 2).to_string();
    let of_one_call = Following::start(&place, &running, &["call", "--xid", &xid]);
    let slow = Following::start(&place, &running, &["call", "--min-latency", "300s"]);
    let first = client.xid + 1;
    client.call(Procedure::Getattr, &one);
    client.call(Procedure::Lookup, &LookupArgs { what: DirOp { dir: root, name: b"missing" } });
    client.call(Procedure::Access, &AccessArgs { object: two, access: 1 });
    client.exchange(DUMP, &());
    client.exchange((nfs3::PROGRAM, nfs3::VERSION, 99), &());
    let names = ["event", "xid", "fh_hash", "procedure", "status"];
    let hash = |handle: &FileHandle| handle_hash(handle.as_bytes());
    for (xid, fh_hash, procedure, status) in [
        (first, hash(&one), "GETATTR", "NFS3_OK"),
        (first + 1, hash(&root), "LOOKUP", "NFS3ERR_NOENT"),
        (first + 2, hash(&two), "ACCESS", "NFS3_OK"),
        (first + 3, 0, "DUMP", "OK"),
        (first + 4, 0, "-", "not_executed"),
    ] {
        let hex = |number: u32| Value::from(format!("0x{number:08x}"));
        let null = Value::Null;
        let of =
            |event: &str, status| [event.into(), hex(xid), hex(fh_hash), procedure.into(), status];
        assert_eq!(members(&calls.line(), names), of("call_start", null));
        let line = calls.line();
        assert_eq!(members(&line, names), of("call_done", status.into()));
        let names = ["client", "export", "program", "queue_us", "latency_us"];
        let [client, export, program, queue_us, latency_us] = members(&line, names);
        let expected = if fh_hash == 0 { Value::Null } else { "/data".into() };
        assert_eq!((client, export), ("127.0.0.1".into(), expected), "{line}");
        assert!(program.is_string() && queue_us.is_u64(), "{line}");
        assert!(latency_us.as_u64().unwrap() < 300_000_000, "{line}");
    }

    let line = of_two.line();
    let fields = " offset=0 len=0 program=nfs3 procedure=ACCESS status=NFS3_OK queue=";
    assert!(line.contains(": call_done: xid=") && line.contains(fields), "{line}");
    for (following, count) in [(&of_export, 3), (&of_one_call, 2)] {
        let lines = following.next(count);
        assert!(lines.iter().all(|line| line.contains(": call_")), "{lines:?}");
    }
    running.stop(Signal::TERM);
    for following in [of_two, of_export, of_one_call, slow] {
        assert_eq!(following.rest(), Vec::<String>::new());
    }
}

#[test]
fn a_compound_is_one_call_named_after_its_first_operation_on_files() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let mut session = Session::create(&mut client);
    let calls = Following::start(&place, &running, &["call_done", "--json"]);
    list_write_commit_and_read(&mut session);
    let names = ["event", "program", "procedure", "status", "xid"];
    let done = |line: String| members(&line, names);
    let first = done(calls.line());
    assert_eq!(first[..4], ["call_done", "nfs4", "LOOKUP", "NFS4_OK"].map(Value::from));
    assert_ne!(first[4], done(calls.line())[4]);
    running.stop(Signal::TERM);
    assert_eq!(calls.rest(), Vec::<String>::new());
}

#[test]
fn unknown_events_and_filters_are_refused() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let missing = place.text("a/missing");
    let nowhere = place.text("b/file");
    for (words, sentence) in [
        (&["reed"][..], "`reed` is not a trace event; the events are all, read_start, ".to_owned()),
        (&["all", "--export", "/x"], "there is no export /x; the exports are /data".to_owned()),
        (
            &["all", "--file", "0xzz"],
            "`0xzz` is not the hash of a handle, such as 0xe4dadb60".to_owned(),
        ),
        (&["all", "--file", &missing], format!("{missing}: No such file or directory")),
        (&["all", "--file", &nowhere], format!("{nowhere} is in no export")),
    ] {
        let socket = place.text("state");
        let output = run(&[&["trace", "--socket", &socket], words].concat());
        assert_exit(&output, 1, &sentence);
    }
    running.stop(Signal::TERM);
}

/// The last calls, as JSON.
fn requests(place: &Place) -> Vec<Value> {
    let output = run(&["requests", "--socket", &place.text("state"), "--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_last_calls_are_recorded_though_nothing_is_traced() {
    let place = Place::new();
    make_files(&place);
    let mut command = serve_directory(&place);
    command.args(["--read-mode", "buffered", "--no-splice"]);
    let running = Running::start(command, 1);
    let mut client = Client::connect(&running);
    let (root, file) = client.find("/data", "one");
    read(&mut client, file, 4096, 512);
    read(&mut client, root, 7, 8);
    let calls = requests(&place);
    let names: Vec<_> = calls.iter().map(|call| call["procedure"].as_str().unwrap()).collect();
    assert!(names.ends_with(&["LOOKUP", "READ", "READ"]), "{names:?}");
    assert_eq!(names[0], "MNT");
    let [.., call, failed] = calls.as_slice() else { panic!("{calls:?}") };
    let expected = serde_json::json!({
        "procedure": "READ", "program": "nfs3", "export": "/data", "xid": client.xid - 1,
        "fh_hash": handle_hash(file.as_bytes()), "offset": 4096, "len": 512,
        "io": ["read_vector", "read_io_done"], "status": "OK",
    });
    for (member, value) in expected.as_object().unwrap() {
        assert_eq!(call[member], *value, "{member} of {call}");
    }
    assert!(call["time_us"].as_u64().unwrap() >= call["queue_us"].as_u64().unwrap());
    assert_eq!(
        (&failed["status"], &failed["io"]),
        (&"NFS3ERR_ISDIR".into(), &serde_json::json!([]))
    );
    let text = String::from_utf8(run(&["requests", "--socket", &place.text("state")]).stdout);
    let text = text.unwrap();
    let line = text.lines().nth_back(1).unwrap();
    assert!(line.contains("Z READ client=127.0.0.1:"), "{line}");
    assert!(line.contains(" export=/data fh_hash=0x"), "{line}");
    assert!(
        line.contains(" offset=4096 count=512 io=read_vector,read_io_done status=OK queue="),
        "{line}"
    );
    let socket = place.text("state");
    let slow = ["requests", "--socket", &socket, "--min-latency"];
    assert_eq!(run(&[&slow[..], &["300s"]].concat()).stdout, b"");
    let all = String::from_utf8(run(&[&slow[..], &["0us"]].concat()).stdout).unwrap();
    assert_eq!(all.lines().count(), text.lines().count());
    let sentence =
        "invalid value '5' for '--min-latency <TIME>': a time is a number with us, ms or s";
    assert_exit(&run(&[&slow[..], &["5"]].concat()), 2, sentence);
    running.stop(Signal::TERM);
}

#[test]
#[cfg(debug_assertions)]
fn a_panic_writes_the_last_calls_into_the_state_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    make_files(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "one");
    read(&mut client, file, 4096, 512);
    let mut stream = UnixStream::connect(place.path("state/spillway.sock")).unwrap();
    stream.write_all(b"{\"version\":1,\"command\":\"panic\"}\n").unwrap();
    running.wait_for("calls are in ");
    let path = place.path("state/requests-at-panic.txt");
    let text = fs::read_to_string(&path).unwrap();
    let (panic, calls) = text.split_once('\n').unwrap();
    assert!(panic.contains("panicked at"), "{panic}");
    assert!(calls.contains(" READ client=127.0.0.1:"), "{calls}");
    assert!(calls.contains(" offset=4096 count=512 "), "{calls}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    read(&mut client, file, 0, 16);
    running.stop(Signal::TERM);
}

#[test]
fn a_stalled_follower_delays_no_call_and_gets_the_count_of_lost_events() {
    const READS: u64 = 3000;
    let place = Place::new();
    make_files(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "one");
    let mut stream = UnixStream::connect(place.path("state/spillway.sock")).unwrap();
    stream
        .write_all(
            b"{\"version\":1,\"command\":\"trace\",\"events\":[\"read_start\",\"read_done\"]}\n",
        )
        .unwrap();
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "{\"version\":1,\"result\":null}\n");
    for number in 0..READS {
        read(&mut client, file, number * 16, 16);
    }
    let (mut received, mut lost) = (0, 0);
    let mut lines = lines.lines();
    while received + lost < 2 * READS {
        let line = lines.next().unwrap().unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        match message["lost"].as_u64() {
            Some(count) => lost += count,
            None => received += 1,
        }
    }
    assert_eq!(received + lost, 2 * READS);
    assert!(lost > 0 && received > 0, "{received} events and {lost} lost");
    running.stop(Signal::TERM);
}
