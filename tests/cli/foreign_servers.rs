//! Servers of other users, which choose the names of their sockets and what they answer.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;

use rustix::process::Signal;

use crate::fixture::{Place, Running, assert_exit, run, spillway};
use crate::skip::skip;

/// Answers each request on the control socket of a state directory; returns the path of the socket.
fn answering(place: &Place, state_dir: &str, reply: &'static str) -> String {
    fs::create_dir(place.path(state_dir)).unwrap();
    let socket = place.text(&format!("{state_dir}/spillway.sock"));
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut request = String::new();
            stream.read_line(&mut request).unwrap();
            // A command that only looks for servers has left already.
            let _ = writeln!(stream.get_mut(), "{reply}");
        }
    });
    socket
}

#[test]
fn names_of_sockets_do_not_control_the_terminal() {
    let place = Place::new();
    let mut command = spillway();
    command.args(["serve", "--listen", "127.0.0.1:0", "--as", "/data", "--state-dir"]);
    command.arg(place.path("\x1b[31mstate")).arg(place.path("a"));
    let running = Running::start(command, 1);
    let output = run(&["status", "--socket", &place.text("missing\nspillway: forged")]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let missing = place.text("missing\\nspillway: forged");
    assert!(stderr.starts_with(&format!("spillway: no server matches {missing}; ")), "{stderr}");
    let socket = place.text("\\u{1b}[31mstate/spillway.sock");
    let listed = format!("{socket} (process {})", running.child.id());
    assert!(stderr.contains(&listed), "{stderr}");
    assert!(!stderr.contains('\x1b') && stderr.lines().count() == 1, "{stderr:?}");
    running.stop(Signal::TERM);
}

#[test]
fn refusals_are_one_line_in_printable_characters() {
    let place = Place::new();
    let reply = r#"{"version":1,"error":"no\nspillway: \u001b[31mforged"}"#;
    let socket = answering(&place, "\x1b[31mred", reply);
    let output = run(&["reload", "--socket", &socket]);
    assert_exit(&output, 1, "no\\nspillway: \\u{1b}[31mforged");
    let socket = answering(&place, "\x1b[32mgreen", "{}");
    let shown = place.text("\\u{1b}[32mgreen/spillway.sock");
    let sentence = format!("cannot decode the reply of the server at {shown}: ");
    assert_exit(&run(&["reload", "--socket", &socket]), 1, &sentence);
}

#[test]
fn answers_are_raw_for_a_program_and_printable_on_a_terminal() {
    let place = Place::new();
    let socket = answering(&place, "state", r#"{"version":1,"result":"\u001b[31minfo"}"#);
    let output = run(&["log", "--socket", &socket]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "\x1b[31minfo\n");
    let command = format!("{} log --socket '{socket}'", env!("CARGO_BIN_EXE_spillway"));
    let Ok(script) = Command::new("script").args(["-qec", &command, "/dev/null"]).output() else {
        return skip("there is no script(1) to make a terminal with");
    };
    assert_eq!(String::from_utf8(script.stdout).unwrap(), "\\u{1b}[31minfo\r\n");
}
