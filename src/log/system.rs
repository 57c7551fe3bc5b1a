//! The system's log, for a process that has left its caller's stderr: syslog(3), by its socket.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::panic;
use std::path::Path;
use std::process;
use std::sync::OnceLock;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Where the daemon of syslog(3), or journald, receives messages.
const SOCKET: &str = "/dev/log";
/// The facility `daemon` (RFC 3164 §4.1.1).
const DAEMON: u8 = 3 << 3;

/// Set once lines go to the system's log.
static SENDER: OnceLock<UnixDatagram> = OnceLock::new();

/// Sends lines and reports of this process to the system's log from now on.
///
/// # Errors
/// There can be no socket; a missing receiver shows at each message alone.
pub(crate) fn open() -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    // A daemon that does not read must not stop the mount.
    socket.set_nonblocking(true)?;
    if SENDER.set(socket).is_ok() {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            send(ERROR, &info.to_string());
            hook(info);
        }));
    }
    Ok(())
}

/// Whether lines go to the system's log.
pub(super) fn is_open() -> bool {
    SENDER.get().is_some()
}

/// Sends a message, unless this process uses stderr: then returns false. A message that cannot be
/// received now is dropped.
pub(crate) fn send(priority: u8, text: &str) -> bool {
    let Some(socket) = SENDER.get() else { return false };
    // By name each time: the daemon may have been started again.
    let _ = send_to(socket, Path::new(SOCKET), priority, text);
    true
}

/// The receiver adds the time.
fn send_to(socket: &UnixDatagram, path: &Path, priority: u8, text: &str) -> io::Result<usize> {
    let (priority, pid, text) = (DAEMON | priority, process::id(), text.trim_end());
    socket.send_to(format!("<{priority}>spillway[{pid}]: {text}").as_bytes(), path)
}

/// Writes lines to stderr, or to the system's log once that is open.
pub(super) struct Output;

/// Takes one line.
pub(super) struct LineWriter {
    priority: u8,
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter { priority: ERROR }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter {
        LineWriter { priority: priority(*metadata.level()) }
    }
}

impl Write for LineWriter {
    /// The subscriber writes each line in one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !send(self.priority, &String::from_utf8_lossy(line)) {
            io::stderr().write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Priorities of syslog(3).
pub(crate) const ERROR: u8 = 3;
pub(crate) const WARNING: u8 = 4;

/// The priority of a line.
pub(super) fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => ERROR,
        Level::WARN => WARNING,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_priority_program_and_process() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("log");
        let (receiver, socket) =
            (UnixDatagram::bind(&path).unwrap(), UnixDatagram::unbound().unwrap());
        send_to(&socket, &path, 4, "WARN server 192.0.2.1 not responding\n").unwrap();
        let mut message = [0; 100];
        let len = receiver.recv(&mut message).unwrap();
        let expected =
            format!("<28>spillway[{}]: WARN server 192.0.2.1 not responding", process::id());
        assert_eq!(String::from_utf8_lossy(&message[..len]), expected);
    }
}
