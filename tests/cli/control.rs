//! The control socket and its commands, against servers that run.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::Output;

use proto::nfs3::{Procedure, ReadArgs, StableHow, WriteArgs, WriteReply};
use proto::xdr::decode_all;
use rustix::process::{Signal, geteuid};
use serde_json::json;

use crate::client::{Client, make_file};
use crate::fixture::{
    ONE_EXPORT, PATIENCE, Place, Running, assert_exit, eventually, run, serve_config,
    serve_directory, spillway,
};
use crate::skip::skip;

/// Runs a command for the server of a place.
fn operate(place: &Place, words: &[&str]) -> Output {
    let state = place.text("state");
    run(&[&words[..1], &["--socket", &state], &words[1..]].concat())
}

#[track_caller]
fn succeeded(output: Output) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap()
}

fn json(place: &Place, words: &[&str]) -> serde_json::Value {
    let text = succeeded(operate(place, &[words, &["--json"]].concat()));
    serde_json::from_str(&text).unwrap()
}

/// Reads 4 KiB of the file once.
fn read_once(client: &mut Client, file: proto::nfs3::FileHandle) {
    client.call(Procedure::Read, &ReadArgs { file, offset: 0, count: 4096 });
}

/// A counter of the first export.
fn counter(place: &Place, name: &str) -> u64 {
    let sample = json(place, &["nfsstat"]);
    sample["exports"][0]["counters"][name].as_u64().unwrap_or(0)
}

#[test]
fn status_shows_settings_and_use() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let _client = Client::connect(&running);
    let text = succeeded(operate(&place, &["status"]));
    let pid = running.child.id();
    for expected in [
        format!("process {pid}, up "),
        format!("listening on     {}, NFS version 3, 4.1, 4.2\n", running.address),
        "read-ahead on, splice on".to_owned(),
        "delegations".to_owned(),
        "of 512MiB".to_owned(),
        format!("/data   auto   auto    yes   {}", place.text("a")),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    let status = json(&place, &["status"]);
    assert_eq!(status["pid"], pid);
    assert_eq!(status["exports"][0]["io_cache_read"], "auto");
    assert_eq!(status["memory"]["budget_bytes"], 512 << 20);
    assert_eq!(status["nfs4"]["clients"], 0);
    assert_eq!((&status["trace"], &status["metrics"]), (&json!([]), &json!(null)));
    running.stop(Signal::TERM);
    assert!(!place.path("state/spillway.sock").exists());
}

#[test]
fn status_shows_read_only_exports_metrics_and_traced_events() {
    let place = Place::new();
    let rules = "read_only = true\n[[export.client]]\nhosts = [\"*\"]\n";
    let written = "[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\nread_only = true\n\
                   [[export.client]]\nhosts = [\"127.0.0.1\"]\nread_only = false\n";
    let head = "trace = [\"read_done\", \"read_start\"]\nmetrics = \"127.0.0.1:0\"\n";
    let config = place.configure(&format!("{head}{ONE_EXPORT}{rules}{written}"));
    let running = Running::start(serve_config(&config), 2);
    let status = json(&place, &["status"]);
    assert_eq!(status["trace"], json!(["read_start", "read_done"]));
    let read_only = [0, 1].map(|export| &status["exports"][export]["read_only"]);
    assert_eq!(read_only, [&json!(true), &json!(false)]);
    let metrics = status["metrics"].as_str().unwrap();
    assert!(metrics.starts_with("127.0.0.1:") && !metrics.ends_with(":0"), "{metrics}");
    let text = succeeded(operate(&place, &["status"]));
    for expected in [
        format!("http://{metrics}/metrics\n"),
        "read_start,read_done\n".to_owned(),
        "/a      auto   read-only  ".to_owned(),
        "/b      auto   auto       ".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    running.stop(Signal::TERM);
}

#[test]
fn set_changes_the_mode_of_the_next_request() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    for (mode, name) in [("buffered", "reads_cached_by_mode"), ("dontcache", "reads_dontcache")] {
        let text = succeeded(operate(&place, &["set", "/data", &format!("io_cache_read={mode}")]));
        assert_eq!(text, "changed /data\n");
        let before = counter(&place, name);
        read_once(&mut client, file);
        assert_eq!(counter(&place, name), before + 1, "{mode}");
        assert_eq!(json(&place, &["status"])["exports"][0]["io_cache_read"], mode);
    }
    assert_eq!(
        succeeded(operate(&place, &["set", "read_ahead=false", "splice=false"])),
        "read_ahead = false, splice = false\n"
    );
    assert_eq!(json(&place, &["status"])["splice"], false);
    assert_eq!(succeeded(operate(&place, &["set", "splice=false"])), "unchanged\n");
    running.stop(Signal::TERM);
}

#[test]
fn set_changes_the_stability_of_the_next_write() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    let args = WriteArgs { file, offset: 0, count: 4, stable: StableHow::Unstable, data: b"data" };
    for (on, committed) in [(true, StableHow::FileSync), (false, StableHow::Unstable)] {
        let text = succeeded(operate(&place, &["set", "/data", &format!("file_sync_writes={on}")]));
        assert_eq!(text, "changed /data\n");
        let results = client.call(Procedure::Write, &args);
        let reply = decode_all::<WriteReply>(&results).unwrap();
        assert_eq!(reply.unwrap().committed, committed);
        assert_eq!(json(&place, &["status"])["exports"][0]["file_sync_writes"], on);
        let text = succeeded(operate(&place, &["status"]));
        assert_eq!(text.contains("auto, FILE_SYNC"), on, "{text}");
    }
    running.stop(Signal::TERM);
}

#[test]
fn bad_settings_change_nothing_and_name_the_good_ones() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    for (words, sentence) in [
        (
            &["set", "/data", "io_cache_write=direct", "io_cache_read=drect"][..],
            "`drect` is not a value of io_cache_read; the values are buffered, dontcache, direct and \
             auto",
        ),
        (&["set", "/date", "sync=false"], "there is no export /date; the exports are /data"),
        (
            &["set", "/data", "memory=1GiB"],
            "`memory` cannot be set while the server runs; the keys",
        ),
        (&["set", "/data", "trace=all"], "trace is a key of the server, not of an export"),
        (&["set", "io_cache_read=direct"], "io_cache_read is a key of an export: name it"),
        (&["set", "/data", "sync"], "`sync` is not a setting; write KEY=VALUE"),
        (
            &["set", "data", "sync=false"],
            "`data` is not a setting; write KEY=VALUE, such as io_cache_read=direct; the name of \
             an export begins with a slash",
        ),
        (&["set", "/data", "sync=false", "sync=true"], "sync is given twice"),
        (&["set", "splice=false", "read_ahead=false", "splice=true"], "splice is given twice"),
        (&["set", "trace=read_done,read"], "`read` is not a value of trace; the values are `none`"),
        (
            &["set", "/data", "sync=false", "--save"],
            "there is no configuration file to save to: `serve` was started without --config",
        ),
    ] {
        assert_exit(&operate(&place, words), 1, sentence);
    }
    let export = &json(&place, &["status"])["exports"][0];
    assert_eq!((&export["io_cache_write"], &export["sync"]), (&"auto".into(), &true.into()));
    running.stop(Signal::TERM);
}

#[test]
fn saved_settings_outlive_a_reload_and_others_do_not() {
    let place = Place::new();
    let text = format!("# Ours.\n{ONE_EXPORT}sync = true # for now\n");
    let config = place.configure(&text);
    fs::set_permissions(&config, fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::read_to_string(&config).unwrap();
    let running = Running::start(serve_config(&config), 1);
    let set = ["set", "/a", "sync=false", "io_cache_read=direct", "--save"];
    let text = succeeded(operate(&place, &set));
    assert_eq!(text, format!("changed /a\nkept in {config}\n"));
    let after = before.replace("sync = true # for now\n", "sync = false # for now\n");
    assert_eq!(fs::read_to_string(&config).unwrap(), after + "io_cache_read = \"direct\"\n");
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o640);
    succeeded(operate(&place, &["set", "/a", "io_cache_write=direct"]));
    assert_eq!(succeeded(operate(&place, &["reload"])), "changed /a\n");
    let export = &json(&place, &["status"])["exports"][0];
    assert_eq!(
        (&export["io_cache_read"], &export["io_cache_write"]),
        (&"direct".into(), &"auto".into())
    );
    running.stop(Signal::TERM);
}

#[test]
fn reading_ahead_and_splicing_are_switched_for_one_export() {
    let place = Place::new();
    let config =
        place.configure(&format!("{ONE_EXPORT}[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\n"));
    let running = Running::start(serve_config(&config), 1);
    let switches = || {
        let status = json(&place, &["status"]);
        [0, 1].map(|i| ["read_ahead", "splice"].map(|key| status["exports"][i][key] == true))
    };
    assert_eq!(switches(), [[true, true], [true, true]]);
    let set = ["set", "/b", "read_ahead=false", "splice=false", "--save"];
    assert_eq!(succeeded(operate(&place, &set)), format!("changed /b\nkept in {config}\n"));
    assert_eq!(switches(), [[true, true], [false, false]]);
    let text = succeeded(operate(&place, &["status"]));
    assert!(text.contains("auto, no read-ahead, no splice"), "{text}");
    succeeded(operate(&place, &["set", "splice=false"]));
    assert_eq!(switches(), [[true, false], [false, false]]);
    succeeded(operate(&place, &["reload"]));
    assert_eq!(switches(), [[true, true], [false, false]]);
    running.stop(Signal::TERM);
}

#[test]
fn a_flag_that_overrides_what_is_saved_is_named() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let mut command = serve_config(&config);
    command.args(["--read-mode", "buffered"]);
    let running = Running::start(command, 1);
    let text = succeeded(operate(&place, &["set", "/a", "io_cache_read=direct", "--save"]));
    let expected = "flags of `spillway serve` override io_cache_read at the next reload\n";
    assert!(text.ends_with(expected), "{text}");
    running.stop(Signal::TERM);
}

#[test]
fn reload_reports_what_changed_or_why_not() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let running = Running::start(serve_config(&config), 1);
    place.configure(&format!(
        "memory = \"64MiB\"\n{ONE_EXPORT}[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\n"
    ));
    let text = succeeded(operate(&place, &["reload"]));
    assert_eq!(
        text,
        "added /b\nthese keys changed but take effect only after a restart: memory, window\n"
    );
    place.configure(&format!("{ONE_EXPORT}colour = 1\n"));
    let sentence = format!("{config}:6:1: unknown key `colour`");
    assert_exit(&operate(&place, &["reload"]), 1, &sentence);
    assert_eq!(json(&place, &["status"])["exports"][1]["name"], "/b");
    running.stop(Signal::TERM);
}

#[test]
fn clients_are_listed_and_dropped() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    (0..3).for_each(|_| read_once(&mut client, file));
    let clients = json(&place, &["clients"]);
    let of = clients.as_array().unwrap().iter().find(|c| c["address"] == "127.0.0.1").unwrap();
    assert_eq!((&of["connections"], &of["operations"]["nfs3 READ"]), (&1.into(), &3.into()));
    assert!(of["sent_bytes"].as_u64().unwrap() > 3 * 4096, "{of}");
    let text = succeeded(operate(&place, &["clients"]));
    assert!(text.contains("\n127.0.0.1            1"), "{text}");

    let text = succeeded(operate(&place, &["drop-client", "127.0.0.1"]));
    assert_eq!(text, "ended 1 connection, and 0 clients of NFS version 4\n");
    assert!(matches!(client.stream.read(&mut [0]), Ok(0) | Err(_)));
    let sentence = "the server has no connection and no state of 192.0.2.1";
    assert_exit(&operate(&place, &["drop-client", "192.0.2.1"]), 1, sentence);
    running.stop(Signal::TERM);
}

#[test]
fn nfsstat_counts_exactly_the_calls_of_the_client() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (root, file) = client.find("/data", "file");
    (0..7).for_each(|_| read_once(&mut client, file));
    // Of a directory.
    (0..2).for_each(|_| read_once(&mut client, root));
    let text = succeeded(operate(&place, &["stat"]));
    let line = text.lines().find(|line| line.starts_with("nfs3 READ ")).unwrap();
    let cells: Vec<_> = line.split_whitespace().collect();
    assert_eq!((cells[2], cells[4]), ("9", "2"), "{text}");
    let sample = json(&place, &["nfsstat", "--export", "/data"]);
    let operations = sample["exports"][0]["operations"].as_array().unwrap();
    let read = operations.iter().find(|operation| operation["name"] == "READ").unwrap();
    assert_eq!((&read["calls"], &read["failures"]["NFS3ERR_ISDIR"]), (&9.into(), &2.into()));
    let lines = succeeded(operate(&place, &["nfsstat", "1", "2", "--json"]));
    let second: serde_json::Value = serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
    assert_eq!(second["figures"]["calls"], 0);
    // Calls are timed since that command.
    (0..3).for_each(|_| read_once(&mut client, file));
    let text = succeeded(operate(&place, &["nfsstat", "--export", "/data"]));
    let row = text.lines().skip_while(|line| !line.starts_with("MS OF")).nth(1);
    assert!(row.is_some_and(|row| row.starts_with("READ")), "{text}");
    let timed = |phases: &serde_json::Value, name| {
        let mut phases = phases.as_array().unwrap().iter();
        phases.find(|phase| phase["name"] == name).map(|phase| phase["timed"].clone())
    };
    // A client may have its reply before the server counts it as sent.
    eventually([[3; 3]; 2].map(|of| of.map(|count| Some(json!(count)))), || {
        let sample = json(&place, &["nfsstat"]);
        let clients = sample["clients"].as_array().unwrap();
        let client = clients.iter().find(|client| client["address"] == "127.0.0.1").unwrap();
        let both = [&sample["exports"][0]["phases"]["READ"], &client["phases"]];
        both.map(|phases| ["permission", "io", "send"].map(|name| timed(phases, name)))
    });
    let seconds = second["uptime_us"].as_u64().unwrap();
    assert!((1_000_000..30_000_000).contains(&seconds), "{seconds}");
    let sentence = "there is no export /nope; the exports are /data";
    assert_exit(&operate(&place, &["nfsstat", "--export", "/nope"]), 1, sentence);
    running.stop(Signal::TERM);
}

#[test]
fn nfsstat_of_an_export_prints_no_other_as_json() {
    let place = Place::new();
    let other = "[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\n";
    let config = place.configure(&format!("{ONE_EXPORT}{other}"));
    let running = Running::start(serve_config(&config), 1);
    for wanted in ["/a", "/b"] {
        let sample = json(&place, &["nfsstat", "--export", wanted]);
        let exports = sample["exports"].as_array().unwrap();
        assert_eq!((exports.len(), &exports[0]["name"]), (1, &wanted.into()), "{sample}");
        assert!(sample["figures"].as_object().unwrap().is_empty(), "{sample}");
        assert!(sample["clients"].as_array().unwrap().is_empty(), "{sample}");
    }
    running.stop(Signal::TERM);
}

#[test]
fn several_servers_are_distinguished() {
    let (place, other) = (Place::new(), Place::new());
    let config = other.configure(ONE_EXPORT);
    let first = Running::start(serve_directory(&place), 1);
    let second = Running::start(serve_config(&config), 1);
    let pid = second.child.id().to_string();
    for which in [&pid, &config, &other.text("state"), &other.text("state/spillway.sock")] {
        let output = succeeded(run(&["status", "--socket", which, "--json"]));
        let status: serde_json::Value = serde_json::from_str(&output).unwrap();
        assert_eq!(status["pid"].to_string(), pid, "{which}");
    }
    let output = run(&["status"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.starts_with("spillway: several servers run; choose one with --socket: "),
        "{stderr}"
    );
    for expected in [
        format!("{} (process {})", place.text("state/spillway.sock"), first.child.id()),
        format!("{} (process {pid} of {config})", other.text("state/spillway.sock")),
    ] {
        assert!(stderr.contains(&expected), "{expected}: {stderr}");
    }
    let missing = place.text("missing");
    let stderr = String::from_utf8(run(&["status", "--socket", &missing]).stderr).unwrap();
    assert!(stderr.starts_with(&format!("spillway: no server matches {missing}; ")), "{stderr}");
    assert!(stderr.contains(" servers run: ") && stderr.contains(&config), "{stderr}");
    first.stop(Signal::TERM);
    second.stop(Signal::TERM);
}

#[test]
fn a_server_is_found_by_the_file_it_was_started_with() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let (link, dotted) = (place.text("link.toml"), place.text("a/../spillway.toml"));
    std::os::unix::fs::symlink(&config, &link).unwrap();
    for started in [&link, &dotted] {
        let running = Running::start(serve_config(started), 1);
        for which in [&config, &link, &dotted] {
            let output = succeeded(run(&["status", "--socket", which, "--json"]));
            let status: serde_json::Value = serde_json::from_str(&output).unwrap();
            assert_eq!(status["pid"], running.child.id(), "{started}: {which}");
        }
        running.stop(Signal::TERM);
    }
}

#[test]
fn servers_are_found_beside_sockets_with_names_of_any_bytes() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let pid = running.child.id().to_string();
    let name = SocketAddr::from_abstract_name([&b"\xff\x80"[..], pid.as_bytes()].concat()).unwrap();
    let _other = UnixListener::bind_addr(&name).unwrap();
    let output = succeeded(run(&["status", "--socket", &pid, "--json"]));
    let status: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(status["pid"], running.child.id());
    running.stop(Signal::TERM);
}

#[test]
fn commands_work_with_paths_that_are_not_utf_8() {
    let place = Place::new();
    let path = |name: &[u8]| place.path("").join(OsStr::from_bytes(name));
    let (export, config) = (path(b"caf\xe9"), path(b"caf\xe9.toml"));
    fs::create_dir(&export).unwrap();
    fs::write(&config, "listen = \"127.0.0.1:0\"\nsplice = true\n").unwrap();
    let mut command = spillway();
    command.args(["serve", "--as", "/data", "--config"]).arg(&config);
    command.arg("--state-dir").arg(path(b"\xe9tat")).arg(&export);
    let running = Running::start(command, 1);
    let pid = running.child.id().to_string();
    let succeeds = |words: &[&str]| succeeded(run(&[words, &["--socket", &pid]].concat()));
    let status: serde_json::Value = serde_json::from_str(&succeeds(&["status", "--json"])).unwrap();
    let text = |name| place.text(name);
    assert_eq!(status["exports"][0]["path"], text("caf\u{fffd}"));
    assert_eq!(status["config"], text("caf\u{fffd}.toml"));
    assert_eq!(status["state_dir"], text("\u{fffd}tat"));
    succeeds(&["nfsstat"]);
    let kept = format!("splice = false\nkept in {}\n", text("caf\u{fffd}.toml"));
    assert_eq!(succeeds(&["set", "splice=false", "--save"]), kept);
    assert!(fs::read_to_string(&config).unwrap().ends_with("splice = false\n"));
    running.stop(Signal::TERM);
}

#[test]
fn without_a_server_the_sentence_is_clear() {
    let place = Place::new();
    assert_exit(&operate(&place, &["top", "--json"]), 2, "unexpected argument '--json' found");
    assert_exit(
        &operate(&place, &["status"]),
        1,
        &format!("no server matches {}; ", place.text("state")),
    );
    // A killed server leaves its socket.
    let mut running = Running::start(serve_directory(&place), 1);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let socket = place.text("state/spillway.sock");
    assert_exit(
        &operate(&place, &["status"]),
        1,
        &format!("cannot reach the server at {socket}: "),
    );
    // The next one takes its place.
    let running = Running::start(serve_directory(&place), 1);
    succeeded(operate(&place, &["status"]));
    running.stop(Signal::TERM);
}

#[test]
fn other_users_are_refused() {
    if !geteuid().is_root() {
        return skip("only root can act as another user");
    }
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let socket = place.text("state/spillway.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    for path in ["", "state"] {
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }
    // A copy that any user may run. It is made by a process of its own: a child of another test
    // could inherit the descriptor that is open for writing, and then the copy cannot be executed.
    let program = place.path("spillway");
    let copied = std::process::Command::new("cp")
        .args([std::path::Path::new(env!("CARGO_BIN_EXE_spillway")), &program])
        .status();
    assert!(copied.unwrap().success());
    let status_as_other = || {
        std::process::Command::new(&program)
            .args(["status", "--socket", &socket])
            .uid(65534)
            .output()
    };
    let reason = format!("cannot reach the server at {socket}: Permission denied");
    assert_exit(&status_as_other().unwrap(), 1, &reason);
    // The credentials count too, should the permissions be changed.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let output = status_as_other().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = running.wait_for("control connection refused: another user");
    assert!(line.contains("uid=65534"), "{line}");
    running.stop(Signal::TERM);
}

/// Sends bytes to the control socket, and returns what comes back until the server closes.
fn say(place: &Place, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(place.path("state/spillway.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server closes as soon as it has enough.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

/// Whether the server neither answers nor closes.
fn is_held(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn hostile_peers_of_the_control_socket_delay_no_command() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    for (request, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "the request cannot be read: "),
        (b"\n", "the request cannot be read: "),
        (b"{\"version\":1,\"command\":\"halt\"}\n", "unknown variant `halt`"),
        (b"{\"version\":9,\"command\":\"status\"}\n", "supports requests of version 1, not 9"),
        (b"{\"version\":1,\"command\":\"set\",\"settings\":[\"\\u0000=1\"]}\n", "cannot be set"),
        (b"", "the request cannot be read: "),
    ] {
        let reply = say(&place, request);
        assert!(
            reply.starts_with("{\"version\":1,\"error\":\"") && reply.contains(expected),
            "{reply}"
        );
    }
    let reply = say(&place, &vec![b'['; 1 << 20]);
    assert!(reply.is_empty() || reply.contains("longer than 65536 bytes"), "{reply}");
    let connect = || UnixStream::connect(place.path("state/spillway.sock")).unwrap();
    let sentence = "the server serves 16 commands at a time already: try again";
    let refusal = format!("{{\"version\":1,\"error\":\"{sentence}\"}}\n");
    // A machine that stalls for as long as silent peers keep their places proves nothing.
    eventually((refusal, 16), || {
        // More than it serves at a time, all silent.
        let silent: Vec<_> = (0..40).map(|_| connect()).collect();
        let mut refusal = String::new();
        silent[39].set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(&silent[39]).read_line(&mut refusal).unwrap();
        (0..10).for_each(|_| read_once(&mut client, file));
        // Calls that waited for the socket would wait until the peers have lost their places.
        let held = silent.iter().take(16).filter(|stream| is_held(stream)).count();
        eventually(Some(0), || {
            let output = operate(&place, &["status"]);
            if !output.status.success() {
                assert_exit(&output, 1, sentence);
            }
            output.status.code()
        });
        (refusal, held)
    });
    running.stop(Signal::TERM);
}

#[test]
fn each_filter_of_a_trace_may_be_null() {
    let place = Place::new();
    make_file(&place);
    let running = Running::start(serve_directory(&place), 1);
    let stream = UnixStream::connect(place.path("state/spillway.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = r#"{"version":1,"command":"trace","events":["read_done"],"client":null,
        "export":null,"file":null,"xid":null,"latency_min_us":null}"#;
    (&stream).write_all(request.replace('\n', "").as_bytes()).unwrap();
    (&stream).write_all(b"\n").unwrap();
    let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), r#"{"version":1,"result":null}"#);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    read_once(&mut client, file);
    assert!(lines.next().unwrap().contains(r#""event":"read_done""#));
    running.stop(Signal::TERM);
}

#[test]
fn help_describes_each_command() {
    for command in ["status", "set", "clients", "reload", "drop-client", "nfsstat", "top"] {
        let help = succeeded(spillway().args([command, "--help"]).output().unwrap());
        assert!(help.contains("Exit status: 0") && help.contains("--socket <SERVER>"), "{help}");
        assert_eq!(help.contains("\n      --json\n"), command != "top", "{help}");
    }
}
