//! The surroundings of an installed server: the watchdog and the sockets of a service manager, the
//! privileges that it keeps, and the files of `contrib`.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use crate::fixture::{
    PATIENCE, Place, Running, assert_exit, serve_directory, spillway, without_environment,
};

#[test]
fn the_watchdog_is_notified_by_a_running_server() {
    let place = Place::new();
    let path = place.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = serve_directory(&place);
    command.env("NOTIFY_SOCKET", Path::new(&path)).env("WATCHDOG_USEC", "2000000");
    let running = Running::start(command, 1);
    let next = || {
        let mut message = [0; 256];
        let len = manager.recv(&mut message)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&message[..len]).into_owned())
    };
    assert_eq!(next().unwrap(), "READY=1\n");
    for _ in 0..3 {
        assert_eq!(next().unwrap(), "WATCHDOG=1\n");
    }
    running.signal(Signal::STOP);
    // Once each thread has stopped.
    let status = waitpid(Some(Pid::from_child(&running.child)), WaitOptions::UNTRACED).unwrap();
    assert!(status.is_some_and(|(_, status)| status.stopped()), "{status:?}");
    manager.set_nonblocking(true).unwrap();
    while next().is_ok() {}
    manager.set_nonblocking(false).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let error = next().expect_err("a stopped process sent a sign of life");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    running.signal(Signal::CONT);
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(next().unwrap(), "WATCHDOG=1\n");
    running.stop(Signal::TERM);
}

#[test]
fn sockets_of_the_service_manager_take_the_place_of_listen() {
    let place = Place::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let running = Running::start(with_socket(&place, socket.into()), 1);
    assert_eq!(running.address, address);
    running.assert_serving();
    running.stop(Signal::TERM);
}

#[test]
fn a_socket_of_another_kind_is_refused() {
    let place = Place::new();
    let (socket, _peer) = UnixDatagram::pair().unwrap();
    let output = with_socket(&place, socket.into()).output().unwrap();
    assert_exit(&output, 1, "socket 3 of the service manager is not a TCP socket");
}

/// A server that finds `socket` as its third descriptor, and its own process id in the environment:
/// for that a shell is in between, which becomes the server.
fn with_socket(place: &Place, socket: OwnedFd) -> Command {
    let serve = serve_directory(place);
    let mut shell = without_environment(Command::new("sh"));
    shell.args(["-c", "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"", "sh"]);
    shell.arg(serve.get_program()).args(serve.get_args()).stdin(socket);
    shell
}

#[test]
fn no_thread_of_a_server_keeps_capabilities_that_it_does_not_need() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    running.assert_serving();
    // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID, NET_BIND_SERVICE, MKNOD
    // and LEASE, by their numbers in capability.h.
    let kept: u64 = [0, 1, 2, 3, 4, 6, 7, 10, 27, 28].iter().map(|bit| 1 << bit).sum();
    let mut threads = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", running.child.id())).unwrap() {
        // One may end meanwhile.
        let Ok(status) = fs::read_to_string(thread.unwrap().path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
        };
        let set = |name| u64::from_str_radix(&field(name), 16).unwrap();
        for name in ["CapPrm:", "CapEff:"] {
            assert_eq!(set(name) & !kept, 0, "{name} {status}");
        }
        assert_eq!((set("CapInh:"), set("CapAmb:")), (0, 0), "{status}");
        if rustix::process::geteuid().is_root() {
            assert_eq!(set("CapBnd:") & !kept, 0, "{status}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
        threads += 1;
    }
    assert!(threads > 2, "{threads} threads");
    running.stop(Signal::TERM);
}

/// Each line that begins with `#` and no space is a setting that is switched off.
#[test]
fn the_settings_in_the_preset_are_valid() {
    let preset = include_str!("../../contrib/spillway.toml");
    let settings: Vec<_> = preset
        .lines()
        .filter_map(|line| match line.strip_prefix('#') {
            Some(setting) => (!setting.is_empty() && !setting.starts_with(' ')).then_some(setting),
            None => Some(line),
        })
        .collect();
    let text = settings.join("\n").replace("\"/srv/", "\"$DIR/");
    assert!(text.contains("[[export]]") && text.contains("hosts"), "{text}");
    let place = Place::new();
    fs::create_dir(place.path("data")).unwrap();
    let output = place.check(&text);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}\n{text}");
}

#[test]
fn manual_pages_are_written_and_completions_printed() {
    let place = Place::new();
    let output = spillway().arg("man").arg(place.path("man")).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    for page in ["man1/spillway.1", "man5/spillway.toml.5", "man8/spillway-serve.8"] {
        assert!(place.path("man").join(page).is_file(), "{page}");
    }
    let below_a_file = place.path("man/man1/spillway.1");
    let output = spillway().arg("man").arg(below_a_file).output().unwrap();
    assert_exit(&output, 1, &format!("{}: Not a directory", place.text("man/man1/spillway.1")));
    let output = spillway().args(["completions", "bash"]).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("complete -F _spillway"));
}
