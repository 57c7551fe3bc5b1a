//! The life of a server: start, reload, stop, and the service manager.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{
    ONE_EXPORT, PATIENCE, Place, Running, assert_exit, eventually, run, serve_config,
    serve_directory, spawn_serve, without_environment,
};
use crate::skip::skip;

#[test]
fn a_free_port_is_announced_and_both_signals_stop_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let running = Running::start(serve_directory(&place), 1);
        let port = running.address.port();
        assert_ne!(port, 0);
        let expected = format!(
            "listening on 127.0.0.1:{port}\nexport /data\n    \
             mount -t nfs -o port={port} 127.0.0.1:/data /mnt\n    \
             mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock \
             127.0.0.1:/data /mnt\n    \
             nfs://127.0.0.1/data?version=3&nfsport={port}&mountport={port}\n"
        );
        assert_eq!(running.announced, expected);
        running.assert_serving();
        running.stop(signal);
    }
}

#[test]
fn a_silent_client_does_not_delay_the_end() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let mut silent = TcpStream::connect(running.address).unwrap();
    running.stop(Signal::TERM);
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    // Closed, in order or by a reset; not left open.
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn an_address_in_use_exits_1_with_the_cause() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let address = running.address.to_string();
    let other = Place::new();
    let (b, state) = (other.text("b"), other.text("state"));
    let output = run(&["serve", &b, "--listen", &address, "--state-dir", &state]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let sentence = stderr.lines().find(|line| line.starts_with("spillway: ")).unwrap_or(&stderr);
    let expected = format!(
        "spillway: cannot listen on {address}: Address already in use (os error 98); choose \
         another with listen or --listen"
    );
    assert_eq!(sentence, expected);
    running.stop(Signal::TERM);
}

#[test]
fn second_server_on_a_state_directory_exits_1_with_the_first_ones_process() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let (b, state) = (place.text("b"), place.text("state"));
    let output = run(&["serve", &b, "--listen", "127.0.0.1:0", "--state-dir", &state]);
    let first = running.child.id();
    assert_exit(&output, 1, &format!("the state directory {state} is in use by process {first};"));
    running.assert_serving();
    running.stop(Signal::TERM);
}

#[test]
fn state_open_to_others_exits_1_and_names_the_remedy() {
    let place = Place::new();
    let (a, state) = (place.text("a"), place.text("state"));
    let serve = ["serve", &a, "--listen", "127.0.0.1:0", "--state-dir", &state];
    Running::start(serve_directory(&place), 1).stop(Signal::TERM);
    let key = place.path("state/handle-key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let sentence =
        format!("the handle key {} is accessible to other users (mode 0644)", key.display());
    assert_exit(&run(&serve), 1, &sentence);
    fs::set_permissions(&state, fs::Permissions::from_mode(0o1777)).unwrap();
    let sentence = format!("the state directory {state} is writable by other users (mode 1777)");
    assert_exit(&run(&serve), 1, &sentence);
}

#[test]
fn a_good_reload_is_applied_and_a_bad_one_is_refused() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let running = Running::start(serve_config(&config), 1);

    place.configure(&format!("{ONE_EXPORT}[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\n"));
    running.signal(Signal::HUP);
    let line = running.wait_for("reloaded");
    assert!(line.contains("INFO") && line.contains("added /b"), "{line}");

    place.configure(&format!("{ONE_EXPORT}colour = 1\n"));
    running.signal(Signal::HUP);
    let line = running.wait_for("reload refused");
    assert!(line.contains("WARN"), "{line}");
    assert!(line.contains("spillway.toml:6:1: unknown key `colour`"), "{line}");

    place.configure(ONE_EXPORT);
    running.signal(Signal::HUP);
    assert!(running.wait_for("reloaded").contains("removed /b"));
    running.assert_serving();
    running.stop(Signal::TERM);
}

#[test]
fn signals_are_served_while_a_reload_waits() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let running = Running::start(serve_config(&config), 1);
    // Of a FIFO the reload reads without end, as from a disk that does not answer.
    fs::remove_file(&config).unwrap();
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    running.signal(Signal::HUP);
    let _writer = once_it_is_read(&config);
    running.signal(Signal::USR1);
    running.wait_for("suppressed_log_lines");
    running.stop(Signal::TERM);
}

/// The writing end of a FIFO, once there is a reader.
fn once_it_is_read(fifo: &str) -> File {
    let mut writer = OpenOptions::new();
    writer.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let deadline = Instant::now() + PATIENCE;
    loop {
        match writer.open(fifo) {
            Ok(writer) => return writer,
            Err(error) => assert!(Instant::now() < deadline, "it is not read: {error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_link_local_address_of_a_machine_without_another_is_printed_with_its_scope() {
    let place = Place::new();
    let text = format!("{ONE_EXPORT}[[export.client]]\nhosts = [\"*\"]\n");
    let serve = serve_config(&place.configure(&text));
    let mut command = without_environment(Command::new("unshare"));
    let set_up = "ip link set lo up && ip -6 address add fe80::1/64 dev lo nodad && \
                  ip -6 route add default dev lo && exec \"$@\"";
    command.args(["--net", "sh", "-c", set_up, "sh"]);
    if !command.output().is_ok_and(|output| output.status.success()) {
        return skip("a network name space cannot be made here");
    }
    command.arg(serve.get_program()).args(serve.get_args()).args(["--listen", "[::]:0"]);
    let running = Running::start(command, 1);
    assert!(running.announced.contains("'[fe80::1%1]:/a' /mnt"), "{}", running.announced);
    running.stop(Signal::TERM);
}

#[test]
fn signals_to_stop_end_a_start_that_waits_for_a_disk() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let state = place.path("state");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        // Without a writer, a FIFO is opened as slowly as a file on a disk that hangs.
        assert!(Command::new("mkfifo").arg(state.join("handle-key")).status().unwrap().success());
        let mut child = spawn_serve(serve_directory(&place));
        let number = format!("{}\n", child.id());
        // The key is opened next.
        eventually(true, || fs::read_to_string(state.join("lock")).ok() == Some(number.clone()));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = (0..100).find_map(|_| {
            thread::sleep(Duration::from_millis(100));
            child.try_wait().unwrap()
        });
        child.kill().unwrap();
        assert_eq!(ended.and_then(|status| status.code()), Some(0));
    }
}

#[test]
fn signals_while_the_first_configuration_is_read_wait_for_the_server() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let text = fs::read(&config).unwrap();
    fs::remove_file(&config).unwrap();
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    let child = spawn_serve(serve_config(&config));
    let mut writer = once_it_is_read(&config);
    fs::remove_file(&config).unwrap();
    place.configure(&format!("{ONE_EXPORT}[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\n"));
    for signal in [Signal::HUP, Signal::USR1] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    writer.write_all(&text).unwrap();
    drop(writer);
    let running = Running::once_ready(child, 1);
    let lines = running.lines_to("reloaded");
    assert!(lines[lines.len() - 1].contains("added /b"), "{lines:?}");
    if !lines.iter().any(|line| line.contains("suppressed_log_lines")) {
        running.wait_for("suppressed_log_lines");
    }
    running.stop(Signal::TERM);
}

#[test]
fn a_signal_stops_a_server_whose_configuration_cannot_be_read_yet() {
    let place = Place::new();
    let config = place.text("spillway.toml");
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    let mut child = spawn_serve(serve_config(&config));
    let _writer = once_it_is_read(&config);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    eventually(Some(Some(0)), || child.try_wait().unwrap().map(|status| status.code()));
}

#[test]
fn keys_that_need_a_restart_are_named() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let running = Running::start(serve_config(&config), 1);
    place.configure(&format!("memory = \"64MiB\"\ndata_threads = 2\n{ONE_EXPORT}"));
    running.signal(Signal::HUP);
    let line = running.wait_for("restart");
    assert!(line.contains("WARN") && line.contains("memory, data_threads"), "{line}");
    running.wait_for("reloaded");
    running.assert_serving();
    running.stop(Signal::TERM);
}

#[test]
fn the_service_manager_is_notified() {
    let place = Place::new();
    let path = place.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = serve_directory(&place);
    command.env("NOTIFY_SOCKET", Path::new(&path));
    let running = Running::start(command, 1);
    let next = || {
        let mut message = [0; 256];
        let len = manager.recv(&mut message).expect("the server notifies");
        String::from_utf8_lossy(&message[..len]).into_owned()
    };
    assert_eq!(next(), "READY=1\n");
    running.signal(Signal::HUP);
    let reloading = next();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(next(), "READY=1\n");
    running.signal(Signal::TERM);
    assert_eq!(next(), "STOPPING=1\n");
    running.stop(Signal::TERM);
}
