//! Commands that find a server among several.

use std::process::Stdio;

use rustix::process::Signal;

use crate::fixture::{ONE_EXPORT, Place, Running, serve_config, serve_directory, spillway};

#[test]
fn a_server_that_does_not_answer_is_listed_among_those_that_run() {
    let (place, other) = (Place::new(), Place::new());
    let config = other.configure(ONE_EXPORT);
    let hangs = Running::start(serve_directory(&place), 1);
    let answers = Running::start(serve_config(&config), 1);
    hangs.signal(Signal::STOP);
    let missing = place.text("missing");
    // At once: each waits for the server until its time is over.
    let started = [&["status"][..], &["status", "--socket", &missing]].map(|words| {
        spillway().args(words).stderr(Stdio::piped()).spawn().expect("the program starts")
    });
    for command in started {
        let output = command.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for (place, pid, rest) in [
            (&place, hangs.child.id(), ", does not answer".to_owned()),
            (&other, answers.child.id(), format!(" of {config}")),
        ] {
            let expected = format!("{} (process {pid}{rest})", place.text("state/spillway.sock"));
            assert!(stderr.contains(&expected), "{expected}: {stderr}");
        }
    }
    hangs.signal(Signal::CONT);
    hangs.stop(Signal::TERM);
    answers.stop(Signal::TERM);
}
