//! Metrics over HTTP.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use proto::nfs3::{CommitArgs, Procedure, ReadArgs, StableHow, WriteArgs};
use rustix::process::Signal;

use crate::client::{Client, make_file};
use crate::fixture::{
    ONE_EXPORT, PATIENCE, Place, Running, assert_exit, eventually, run, serve_config,
    serve_directory,
};

/// Starts a server with metrics; their address.
fn with_metrics(place: &Place) -> (Running, SocketAddr) {
    let mut command = serve_directory(place);
    command.args(["--metrics", "127.0.0.1:0"]);
    start(command, 1)
}

fn start(command: Command, exports: usize) -> (Running, SocketAddr) {
    let mut running = Running::start(command, exports);
    let line = running.next_line();
    let address =
        line.trim().strip_prefix("metrics http://").and_then(|line| line.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
    (running, address)
}

/// Sends a request, and returns all that comes back.
fn request(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server closes as soon as it has enough.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

fn metrics(address: SocketAddr) -> String {
    let reply = request(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    reply.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn metrics_count_the_calls_of_the_client() {
    let place = Place::new();
    make_file(&place);
    let (running, address) = with_metrics(&place);
    let mut client = Client::connect(&running);
    let (root, file) = client.find("/data", "file");
    for _ in 0..5 {
        client.call(Procedure::Read, &ReadArgs { file, offset: 0, count: 1000 });
    }
    client.call(Procedure::Read, &ReadArgs { file: root, offset: 0, count: 1000 });
    let text = metrics(address);
    let read = "export=\"/data\",program=\"nfs3\",operation=\"READ\"";
    for line in [
        format!("spillway_operations_total{{{read},status=\"OK\"}} 5"),
        format!("spillway_operations_total{{{read},status=\"NFS3ERR_ISDIR\"}} 1"),
        format!("spillway_operation_duration_seconds_count{{{read}}} 6"),
        format!("spillway_operation_duration_seconds_bucket{{{read},le=\"+Inf\"}} 6"),
        "spillway_read_bytes_total{export=\"/data\"} 5000".to_owned(),
        "spillway_client_connections{client=\"127.0.0.1\"} 1".to_owned(),
        "# TYPE spillway_operation_duration_seconds histogram".to_owned(),
        "# TYPE spillway_window_bytes gauge".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
    running.stop(Signal::TERM);
}

#[test]
fn phases_are_counted_by_export_and_kind_of_call() {
    let place = Place::new();
    make_file(&place);
    let other = "io_cache_read = \"buffered\"\n[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\n";
    let config = place.configure(&format!("metrics = \"127.0.0.1:0\"\n{ONE_EXPORT}{other}"));
    let (running, address) = start(serve_config(&config), 2);
    let mut client = Client::connect(&running);
    let (root, file) = client.find("/a", "file");
    // No thread stays with a client that pauses: its WRITEs have to ask for one.
    let pause = || std::thread::sleep(Duration::from_millis(2));
    for _ in 0..5 {
        pause();
        client.call(Procedure::Read, &ReadArgs { file, offset: 0, count: 9 });
    }
    // Refused before any I/O.
    client.call(Procedure::Read, &ReadArgs { file: root, offset: 0, count: 9 });
    for stable in [StableHow::Unstable, StableHow::FileSync, StableHow::Unstable] {
        pause();
        client
            .call(Procedure::Write, &WriteArgs { file, offset: 3, count: 2, stable, data: b"12" });
    }
    client.call(Procedure::Commit, &CommitArgs { file, offset: 0, count: 0 });
    let other_root = client.root("/b");
    client.call(Procedure::Getattr, &other_root);
    let expected = [
        "export=\"\",operation=\"other\",phase=\"send\"} 2",
        "export=\"/a\",operation=\"COMMIT\",phase=\"permission\"} 1",
        "export=\"/a\",operation=\"COMMIT\",phase=\"queue\"} 1",
        "export=\"/a\",operation=\"COMMIT\",phase=\"send\"} 1",
        "export=\"/a\",operation=\"COMMIT\",phase=\"sync\"} 1",
        "export=\"/a\",operation=\"READ\",phase=\"io\"} 5",
        "export=\"/a\",operation=\"READ\",phase=\"permission\"} 6",
        "export=\"/a\",operation=\"READ\",phase=\"send\"} 6",
        "export=\"/a\",operation=\"WRITE\",phase=\"io\"} 3",
        "export=\"/a\",operation=\"WRITE\",phase=\"permission\"} 3",
        "export=\"/a\",operation=\"WRITE\",phase=\"queue\"} 3",
        "export=\"/a\",operation=\"WRITE\",phase=\"send\"} 3",
        "export=\"/a\",operation=\"WRITE\",phase=\"sync\"} 1",
        "export=\"/a\",operation=\"other\",phase=\"queue\"} 1",
        "export=\"/a\",operation=\"other\",phase=\"send\"} 1",
        // GETATTR moved, because the root was not open.
        "export=\"/b\",operation=\"other\",phase=\"queue\"} 1",
        "export=\"/b\",operation=\"other\",phase=\"send\"} 1",
    ];
    // A client may have its reply before the server counts it as sent.
    eventually(expected.map(str::to_owned).to_vec(), || {
        let text = metrics(address);
        let prefix = "spillway_phase_duration_seconds_count{";
        let counts = text.lines().filter_map(|line| line.strip_prefix(prefix));
        let mut found: Vec<_> = counts.map(str::to_owned).collect();
        found.sort_unstable();
        found
    });
    running.stop(Signal::TERM);
}

#[test]
fn only_the_metrics_are_served() {
    let place = Place::new();
    let (running, address) = with_metrics(&place);
    for (bytes, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404 Not Found"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"\x16\x03\x01 TLS", "400 Bad Request"),
    ] {
        let reply = request(address, bytes);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{reply}");
    }
    // A head without end, and more peers than are served at a time.
    request(address, &vec![b'x'; 1 << 20]);
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    // No peer has to wait until they lose their places.
    metrics(address);
    running.assert_serving();
    drop(silent);
    running.stop(Signal::TERM);
}

#[test]
fn peers_that_do_not_read_their_answers_keep_no_scraper_out() {
    const EXPORTS: usize = 150;
    let place = Place::new();
    // Answers that are longer than what the sockets hold.
    let name = "n".repeat(1000);
    let export = |number| format!("[[export]]\npath = \"$DIR/a\"\nname = \"/{number}{name}\"\n");
    let exports: String = (0..EXPORTS).map(export).collect();
    let config = place.configure(&format!("metrics = \"127.0.0.1:0\"\n{ONE_EXPORT}{exports}"));
    let (running, address) = start(serve_config(&config), 1 + EXPORTS);
    let deaf: Vec<_> = (0..16).map(|_| TcpStream::connect(address).unwrap()).collect();
    for mut stream in &deaf {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    }
    // Each has the beginning of its answer.
    deaf.iter().for_each(|mut stream| stream.read_exact(&mut [0]).unwrap());
    let length = metrics(address).len();
    assert!(length > 6_000_000, "the sockets may hold {length} bytes");
    drop(deaf);
    running.stop(Signal::TERM);
}

#[test]
fn an_address_in_use_is_named() {
    let place = Place::new();
    let (running, address) = with_metrics(&place);
    let other = Place::new();
    let (b, state, address) = (other.text("b"), other.text("state"), address.to_string());
    let serve =
        ["serve", &b, "--listen", "127.0.0.1:0", "--state-dir", &state, "--metrics", &address];
    let sentence = format!("cannot serve metrics on {address}: Address already in use");
    assert_exit(&run(&serve), 1, &sentence);
    let text = format!("metrics = \"localhost\"\n{ONE_EXPORT}");
    let output = other.check(&text);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("is not an IP address with a port"), "{stderr}");
    let config = other.configure(&format!("metrics = \"127.0.0.1:0\"\n{ONE_EXPORT}"));
    let mut from_file = Running::start(serve_config(&config), 1);
    assert!(from_file.next_line().starts_with("metrics http://127.0.0.1:"));
    from_file.stop(Signal::TERM);
    running.stop(Signal::TERM);
}
