//! Trace events, counters and the log of a running server.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread;

use proto::nfs3::{
    CommitArgs, CookieVerifier, FileHandle, Procedure, ReadArgs, ReaddirArgs, ReaddirplusArgs,
    StableHow, WriteArgs,
};
use proto::nfs4::{NameArgs, OperationCode, Status};
use proto::oncrpc::Credential;
use proto::xdr::Reader;
use proto::{mount3, nfs3};
use rustix::process::Signal;
use server::counters::Counter;
use server::trace::handle_hash;
use tempfile::TempDir;

use crate::client::{Client, MNT, make_file};
use crate::fixture::{ONE_EXPORT, PATIENCE, Place, Running, serve_config, serve_directory};
use crate::session::{Session, compound, exchange_id, operation};
use crate::skip::skip_in_ci_too;

#[test]
fn events_are_printed_with_their_call() {
    let place = Place::new();
    make_file(&place);
    let mut command = serve_directory(&place);
    command.args(["--trace", "read_start,read_done,write_start,write_done"]);
    command.args(["--trace", "commit_start,commit_done,readdir_enter,readdir_exit"]);
    let running = Running::start(command, 1);
    let mut client = Client::connect(&running);
    let (root, file) = client.find("/data", "file");
    running.wait_for("mounted");
    let expect =
        |client: &Client, [first, last]: [&str; 2], handle: &FileHandle, rest: [&str; 2]| {
            let fh_hash = handle_hash(handle.as_bytes());
            let call = format!("xid=0x{:08x} fh_hash=0x{fh_hash:08x} {}", client.xid, rest[0]);
            let expected = [format!("{first}: {call}"), format!("{last}: {call} {}", rest[1])];
            assert_eq!(running.lines_to(&format!("{last}: ")), expected);
        };
    let read = ["read_start", "read_done"];
    client.xid = 0x5dcf_019b;
    client.call(Procedure::Read, &ReadArgs { file, offset: 47008, count: 47008 });
    expect(&client, read, &file, ["offset=47008 len=47008", "status=NFS3_OK count=47008"]);
    // The end of the file.
    client.call(Procedure::Read, &ReadArgs { file, offset: 94016, count: 47008 });
    expect(&client, read, &file, ["offset=94016 len=47008", "status=NFS3_OK count=5984"]);
    client.call(Procedure::Read, &ReadArgs { file: root, offset: u64::MAX, count: 1 });
    let rest = ["offset=18446744073709551615 len=1", "status=NFS3ERR_ISDIR count=0"];
    expect(&client, read, &root, rest);
    let forged = FileHandle::new(b"forged").unwrap();
    client.call(Procedure::Read, &ReadArgs { file: forged, offset: 0, count: 1 });
    expect(&client, read, &forged, ["offset=0 len=1", "status=NFS3ERR_BADHANDLE count=0"]);

    let stable = StableHow::Unstable;
    client.call(Procedure::Write, &WriteArgs { file, offset: 3, count: 5, stable, data: b"12345" });
    let rest = ["offset=3 len=5", "status=NFS3_OK count=5"];
    expect(&client, ["write_start", "write_done"], &file, rest);
    client.call(Procedure::Commit, &CommitArgs { file, offset: 3, count: 5 });
    let rest = ["offset=3 len=5", "status=NFS3_OK count=5"];
    expect(&client, ["commit_start", "commit_done"], &file, rest);

    let readdir = ["readdir_enter", "readdir_exit"];
    let (cookie, verifier) = (0, CookieVerifier([0; 8]));
    client.call(Procedure::Readdir, &ReaddirArgs { dir: root, cookie, verifier, count: 4096 });
    // The file, and the directory's own two names.
    expect(&client, readdir, &root, ["offset=0 len=4096", "status=NFS3_OK count=3"]);
    let (dir_count, max_count) = (512, 8192);
    let args = ReaddirplusArgs { dir: root, cookie, verifier, dir_count, max_count };
    client.call(Procedure::Readdirplus, &args);
    expect(&client, readdir, &root, ["offset=0 len=8192", "status=NFS3_OK count=3"]);
    client.call(Procedure::Readdir, &ReaddirArgs { dir: root, cookie, verifier, count: 110 });
    expect(&client, readdir, &root, ["offset=0 len=110", "status=NFS3ERR_TOOSMALL count=0"]);
    running.stop(Signal::TERM);
}

/// The published trace of a stream of 47,008 bytes at a time, past a page cache that is not to be
/// filled, from a disk whose reads begin and end at multiples of 512.
#[test]
fn misaligned_reads_are_widened_as_in_the_published_trace() {
    let place = Place::new();
    make_file(&place);
    let align = io::dio_align(fs::File::open(place.path("a/file")).unwrap().as_fd()).unwrap();
    if align.is_none_or(|align| align.read_offset() != 512) {
        return skip_in_ci_too(format_args!(
            "the disk of temporary files has another alignment: {align:?}"
        ));
    }
    let mut command = serve_directory(&place);
    command.args(["--read-mode", "direct", "--no-read-ahead", "--trace", "read_vector_dio"]);
    let running = Running::start(command, 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    running.wait_for("mounted");
    let fh_hash = handle_hash(file.as_bytes());
    for (xid, offset, golden) in [
        (0x5dcf_019b, 0, "offset=0 len=47008 start=0+0 end=47104-96"),
        (0x5dcf_019c, 47008, "offset=47008 len=47008 start=46592+416 end=94208-192"),
    ] {
        client.xid = xid - 1;
        client.call(Procedure::Read, &ReadArgs { file, offset, count: 47008 });
        let line = format!("read_vector_dio: xid=0x{xid:08x} fh_hash=0x{fh_hash:08x} {golden}");
        assert_eq!(running.lines_to("read_vector_dio: "), [line]);
    }
    running.stop(Signal::TERM);
}

#[test]
fn events_are_switched_while_the_server_runs() {
    let place = Place::new();
    make_file(&place);
    let config = place.configure(ONE_EXPORT);
    let running = Running::start(serve_config(&config), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/a", "file");
    let read = ReadArgs { file, offset: 0, count: 10 };
    client.call(Procedure::Read, &read);

    place.configure(&format!("trace = [\"read_done\"]\n{ONE_EXPORT}"));
    running.signal(Signal::HUP);
    let before = running.lines_to("tracing read_done");
    assert!(before.iter().all(|line| !line.contains("xid=")), "{before:#?}");
    // The same connection: what is on is asked at each call.
    client.call(Procedure::Read, &read);
    let fh_hash = handle_hash(file.as_bytes());
    let expected = format!(
        "read_done: xid=0x{:08x} fh_hash=0x{fh_hash:08x} offset=0 len=10 status=NFS3_OK count=10",
        client.xid
    );
    assert_eq!(running.lines_to("read_done: "), [expected]);

    place.configure(ONE_EXPORT);
    running.signal(Signal::HUP);
    running.wait_for("tracing no event");
    client.call(Procedure::Read, &read);
    running.signal(Signal::HUP);
    let after = running.lines_to("no export changed");
    assert!(after.iter().all(|line| !line.contains("xid=")), "{after:#?}");
    running.stop(Signal::TERM);
}

#[test]
fn lines_of_many_connections_stay_whole() {
    const CLIENTS: u32 = 8;
    const READS: u32 = 200;
    let place = Place::new();
    make_file(&place);
    let mut command = serve_directory(&place);
    command.args(["--trace", "all"]);
    let running = Running::start(command, 1);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = Client::connect(&running);
            let (_, file) = client.find("/data", "file");
            running.wait_for("mounted");
            (client, file)
        })
        .collect();
    thread::scope(|scope| {
        for (mut client, file) in clients {
            scope.spawn(move || {
                for offset in 0..READS {
                    let args = ReadArgs { file, offset: offset.into(), count: 100 };
                    client.call(Procedure::Read, &args);
                }
            });
        }
    });
    running.signal(Signal::USR1);
    let lines = running.lines_to("calls ");
    let (_, events) = lines.split_last().unwrap();
    for line in events {
        assert_eq!(line.matches(": xid=0x").count(), 1, "{line}");
        assert_eq!(line.matches(" fh_hash=0x").count(), 1, "{line}");
    }
    let done = events.iter().filter(|line| line.starts_with("read_done: "));
    assert_eq!(done.count(), usize::try_from(CLIENTS * READS).unwrap());
    running.stop(Signal::TERM);
}

#[test]
fn the_counters_are_printed_on_sigusr1() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    client.call(Procedure::Read, &ReadArgs { file, offset: 0, count: 1234 });
    running.signal(Signal::USR1);
    // One piece, so nothing comes between the first and the last.
    let first = running.wait_for("calls ");
    let others = Counter::ALL.len() - 1;
    let rest = (0..others).map(|_| running.log.recv_timeout(PATIENCE).unwrap());
    let printed: Vec<(String, u64)> = std::iter::once(first)
        .chain(rest)
        .map(|line| {
            let (name, value) = line.split_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect();
    let names = printed.iter().map(|(name, _)| name.as_str());
    assert!(names.eq(Counter::ALL.iter().map(|counter| counter.name())), "{printed:#?}");
    let value = |counter: Counter| printed[counter as usize].1;
    assert_eq!(value(Counter::Calls), 3);
    assert_eq!(value(Counter::Connections), 1);
    assert_eq!(value(Counter::ReadBytes), 1234);
    running.assert_serving();
    running.stop(Signal::TERM);
}

#[test]
fn a_refused_mount_names_the_rule() {
    let place = Place::new();
    let config = place.configure(
        &format!(
            "{ONE_EXPORT}[[export.client]]\nhosts = [\"192.0.2.1\"]\n\
         [[export.client]]\nhosts = [\"127.0.0.0/8\"]\nsecure_ports = true\n\
         [[export]]\npath = \"$DIR/b\"\nname = \"/b\"\n[[export.client]]\nhosts = [\"192.0.2.1\"]\n\
         [[export]]\npath = \"$DIR\"\nname = \"/c\"\n"
        )
        .replace("state_dir = \"$DIR/state\"", &format!("state_dir = \"{}\"", "/nonexistent")),
    );
    fs::write(place.path("file"), "").unwrap();
    let mut command = serve_config(&config);
    let state = TempDir::new().unwrap();
    command.arg("--state-dir").arg(state.path());
    let running = Running::start(command, 3);
    let mut client = Client::connect(&running);
    let port = client.stream.local_addr().unwrap().port();
    let insecure = format!(
        "export /a: rule 2 of the export requires a source port below 1024 (secure_ports), and the \
         client's is {port}"
    );
    for (path, status, why) in [
        ("/nothing", "MNT3ERR_NOENT", "no export has this name"),
        ("/x\nINFO client=192.0.2.1", "MNT3ERR_NOENT", "no export has this name"),
        ("/a", "MNT3ERR_ACCES", &insecure),
        ("/b", "MNT3ERR_ACCES", "export /b: no rule of the export names this client"),
        ("/c/../x", "MNT3ERR_ACCES", "export /c: a path with `..` is not resolved"),
        ("/c/nothing", "MNT3ERR_NOENT", "export /c: LOOKUP of nothing: NoEntry"),
        ("/c/file", "MNT3ERR_NOTDIR", "export /c: LOOKUP of file: NotDirectory"),
    ] {
        client.exchange(MNT, &mount3::DirectoryArgs { directory: path.as_bytes() });
        let line = running.wait_for("mount refused");
        let shown = path.as_bytes().escape_ascii().to_string().replace(' ', "\\x20");
        let expected = format!(
            "mount refused client=127.0.0.1 path={shown} status=\"{status}\" refusal={why}"
        );
        assert!(line.ends_with(&expected), "{line}");
    }
    client.credential = Credential::Other { flavor: 6, body: b"" };
    client.send(MNT, &mount3::DirectoryArgs { directory: b"/c" });
    let line = running.wait_for("mount refused");
    let expected = "path=/c status=\"AUTH_REJECTEDCRED\" refusal=RPC flavour 6 is neither \
                    AUTH_NONE (0) nor AUTH_SYS (1)";
    assert!(line.ends_with(expected), "{line}");
    running.stop(Signal::TERM);
}

#[test]
fn a_name_hidden_by_version_4_names_the_rule() {
    let place = Place::new();
    let config = format!(
        "{ONE_EXPORT}[[export]]\npath = \"$DIR/b\"\nname = \"/srv/b\"\n\
         [[export.client]]\nhosts = [\"192.0.2.1\"]\n"
    );
    let running = Running::start(serve_config(&place.configure(&config)), 2);
    let mut client = Client::connect(&running);
    let mut session = Session::create(&mut client);
    let name = NameArgs { name: b"srv" };
    let reply = session
        .call(&[operation(OperationCode::Putrootfh, &()), operation(OperationCode::Lookup, &name)]);
    assert_eq!(Reader::new(&reply).u32("status"), Ok(Status::Noent.code()));
    let line = running.wait_for("mount refused");
    let expected = "mount refused client=127.0.0.1 path=/srv/b status=\"NFS4ERR_NOENT\" \
                    refusal=export /srv/b: no rule of the export names this client";
    assert!(line.ends_with(expected), "{line}");
    running.stop(Signal::TERM);
}

#[test]
fn a_client_that_version_4_admits_nowhere_is_logged_with_the_rule() {
    let place = Place::new();
    let rule = "[[export.client]]\nhosts = [\"192.0.2.1\"]\n";
    let config = format!("{ONE_EXPORT}{rule}");
    let insecure = "[[export.client]]\nhosts = [\"127.0.0.1\"]\nsecure_ports = true\n";
    let refused = |config: &str, refusal: &dyn Fn(u16) -> String| {
        let running = Running::start(serve_config(&place.configure(config)), 1);
        let mut client = Client::connect(&running);
        let port = client.stream.local_addr().unwrap().port();
        let reply = compound(&mut client, &[exchange_id()]);
        assert_eq!(Reader::new(&reply).u32("status"), Ok(Status::Access.code()));
        let line = running.wait_for("mount refused");
        let expected = format!(
            "mount refused client=127.0.0.1 status=\"NFS4ERR_ACCESS\" refusal={}",
            refusal(port)
        );
        assert!(line.ends_with(&expected), "{line}");
        running.stop(Signal::TERM);
    };
    refused(&config, &|_| "no rule of any export names this client".to_owned());
    refused(&format!("{config}{insecure}"), &|port| {
        format!(
            "export /a: rule 2 of the export requires a source port below 1024 (secure_ports), and the \
             client's is {port}"
        )
    });
}

#[test]
fn each_call_is_logged_with_v() {
    let place = Place::new();
    make_file(&place);
    let mut command = serve_directory(&place);
    command.arg("-v");
    let running = Running::start(command, 1);
    let mut client = Client::connect(&running);
    let address = client.stream.local_addr().unwrap();
    let (root, file) = client.find("/data", "file");
    client.call(Procedure::Read, &ReadArgs { file, offset: 47008, count: 10 });
    client.call(Procedure::Read, &ReadArgs { file: root, offset: 0, count: 10 });
    let forged = FileHandle::new(b"forged").unwrap();
    client.call(Procedure::Read, &ReadArgs { file: forged, offset: 0, count: 1 });
    client.exchange((nfs3::PROGRAM, nfs3::VERSION, 0), &());
    client.credential = Credential::Other { flavor: 6, body: b"" };
    client.send((nfs3::PROGRAM, nfs3::VERSION, 0), &());
    let hash = |handle: &FileHandle| format!("fh_hash=0x{:08x}", handle_hash(handle.as_bytes()));
    let (in_root, in_file, in_forged) = (hash(&root), hash(&file), hash(&forged));
    for (xid, procedure, rest) in [
        (1, "MNT", "path=/data status=MNT3_OK".to_owned()),
        (2, "LOOKUP", format!("export=/data {in_root} name=file status=NFS3_OK")),
        (3, "READ", format!("export=/data {in_file} offset=47008 count=10 status=NFS3_OK")),
        (4, "READ", format!("export=/data {in_root} offset=0 count=10 status=NFS3ERR_ISDIR")),
        (5, "READ", format!("{in_forged} offset=0 count=1 status=NFS3ERR_BADHANDLE")),
        (6, "NULL", "status=OK".to_owned()),
        (7, "NULL", "status=AuthError(RejectedCred)".to_owned()),
    ] {
        let line = running.wait_for(" xid=0x");
        let expected = format!(" {procedure} client={address} xid=0x{xid:08x} {rest} time_us=");
        assert!(line.contains("DEBUG") && line.contains(&expected), "{line}\n{expected}");
    }
    running.stop(Signal::TERM);
}

#[test]
fn each_step_is_logged_with_vv() {
    let place = Place::new();
    make_file(&place);
    let mut command = serve_directory(&place);
    command.arg("-vv");
    let running = Running::start(command, 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    client.call(Procedure::Read, &ReadArgs { file, offset: 0, count: 10 });
    let lines = running.lines_to("read_done: ");
    for step in ["begins", "resolved xid=0x00000002 ", "read_start: ", "read_io_done: "] {
        assert!(lines.iter().any(|line| line.contains(step)), "{step}: {lines:#?}");
    }
    running.stop(Signal::TERM);
}

/// The file is the server's own memory: the kernel answers a write to its first page with EIO.
#[test]
fn an_error_of_the_system_is_logged_with_its_place() {
    let place = Place::new();
    let config = place.configure(
        "listen = \"127.0.0.1:0\"\nstate_dir = \"$DIR/state\"\n[[export]]\npath = \"/proc/self\"\n\
         name = \"/memory\"\nanonymous_uid = 0\nanonymous_gid = 0\nio_cache_write = \"buffered\"\n",
    );
    let running = Running::start(serve_config(&config), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/memory", "mem");
    let stable = StableHow::Unstable;
    client.call(Procedure::Write, &WriteArgs { file, offset: 3, count: 5, stable, data: b"12345" });
    let line = running.wait_for("failed: ");
    let fh_hash = handle_hash(file.as_bytes());
    let (pid, address) = (running.child.id(), client.stream.local_addr().unwrap());
    let expected = format!(
        " WRITE failed: Input/output error (os error 5) client={address} xid=0x{:08x} \
         export=/memory fh_hash=0x{fh_hash:08x} path=/proc/{pid}/mem offset=3 count=5",
        client.xid
    );
    assert!(line.contains("ERROR") && line.ends_with(&expected), "{line}\n{expected}");
}

#[test]
fn a_flood_of_refused_calls_leaves_a_short_log() {
    const MOUNTS: u64 = 2000;
    const CONNECTIONS: u64 = 200;
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    for _ in 0..MOUNTS {
        client.exchange(MNT, &mount3::DirectoryArgs { directory: &[0xff; 1000] });
    }
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(running.address).unwrap();
        // The mark of a record that is too long.
        stream.write_all(&[0xff; 4]).unwrap();
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    }
    running.signal(Signal::USR1);
    let mut log = running.lines_to("suppressed_log_lines ");
    let count: u64 = log.pop().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    // All but two bursts, and what the time of the test lets through.
    assert!((MOUNTS + CONNECTIONS - 100..MOUNTS + CONNECTIONS).contains(&count), "{count}");
    running.signal(Signal::TERM);
    let reported = |lines: &[String], message: &str| {
        let is_report = |line: &&String| line.contains("similar messages suppressed");
        lines.iter().filter(is_report).any(|line| line.contains(message))
    };
    while !(reported(&log, "mount refused") && reported(&log, "connection closed")) {
        log.extend(running.lines_to("similar messages suppressed"));
    }
    let bytes: usize = log.iter().map(String::len).sum();
    assert!(bytes < 64 * 1024, "{bytes}");
    running.stop(Signal::TERM);
}

#[test]
fn a_reload_changes_modes_and_switches() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let mut command = serve_config(&config);
    command.args(["--write-mode", "dontcache"]);
    let running = Running::start(command, 1);
    place.configure(&format!(
        "splice = false\nwindow = \"8MiB\"\n{ONE_EXPORT}io_cache_read = \"direct\"\n"
    ));
    running.signal(Signal::HUP);
    let line = running.wait_for("restart");
    assert!(line.contains("window"), "{line}");
    let line = running.wait_for("reloaded");
    assert!(line.contains("changed /a, splice = false"), "{line}");

    // The flag stays in force, so this is no change.
    place.configure(&format!(
        "{ONE_EXPORT}io_cache_read = \"direct\"\nio_cache_write = \"buffered\"\n"
    ));
    running.signal(Signal::HUP);
    let line = running.wait_for("reloaded");
    assert!(line.contains("no export changed, splice = true"), "{line}");
    running.stop(Signal::TERM);
}
