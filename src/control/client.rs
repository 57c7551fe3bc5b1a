//! A command's end of the control socket.

use std::io::{self, BufRead, BufReader, Read, Take, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use server::report::TraceRequest;

use super::{Command, Outcome, REPLY_BYTES_MAX, Reply, Request, VERSION};

/// How long a server may take to change something: longer than its own limit.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(70);
/// How long it may take to report.
pub(super) const REPORT_TIME_MAX: Duration = Duration::from_secs(10);

/// Bounds of a server's reply.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) time_max: Duration,
    pub(super) bytes_max: u64,
}

/// Why a server did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// It cannot be reached, or does not answer.
    #[error("cannot reach the server at {}: {}", socket.display(), crate::exit::io_reason(error))]
    Socket {
        /// Its control socket.
        socket: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The answer is none.
    #[error("cannot decode the reply of the server at {}: {error}", socket.display())]
    Answer {
        /// Its control socket.
        socket: PathBuf,
        /// The decoder's error.
        error: serde_json::Error,
    },
    /// It refused.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request to the server at `socket`, and waits for the result.
///
/// # Errors
/// See [`AskError`].
pub(crate) fn ask<T: DeserializeOwned>(socket: &Path, command: Command) -> Result<T, AskError> {
    let bounds = bounds_of(&command);
    ask_within(socket, command, bounds)
}

/// As [`ask`], of a server that may be anybody's.
pub(super) fn ask_within<T: DeserializeOwned>(
    socket: &Path,
    command: Command,
    bounds: Bounds,
) -> Result<T, AskError> {
    let fail = |error| AskError::Socket { socket: socket.to_owned(), error };
    let answer = |error| AskError::Answer { socket: socket.to_owned(), error };
    let (line, _) = exchange(socket, command, bounds).map_err(fail)?;
    serde_json::from_value(outcome(&line, socket)?).map_err(answer)
}

/// Follows the trace events of the server at `socket`: each line is a `TraceMessage`.
///
/// # Errors
/// See [`AskError`].
pub(crate) fn follow(
    socket: &Path,
    request: TraceRequest,
) -> Result<impl BufRead + use<>, AskError> {
    let fail = |error| AskError::Socket { socket: socket.to_owned(), error };
    let command = Command::Trace(request);
    let bounds = bounds_of(&command);
    let (line, lines) = exchange(socket, command, bounds).map_err(fail)?;
    outcome(&line, socket)?;
    let mut lines = lines;
    lines.get_mut().set_limit(u64::MAX);
    lines.get_mut().get_mut().wait_without_end().map_err(fail)?;
    Ok(lines)
}

fn outcome(line: &str, socket: &Path) -> Result<Value, AskError> {
    let answer = |error| AskError::Answer { socket: socket.to_owned(), error };
    let reply: Reply = serde_json::from_str(line).map_err(answer)?;
    match reply.outcome {
        Outcome::Result(value) => Ok(value),
        Outcome::Error(why) => Err(AskError::Refused(why)),
    }
}

fn bounds_of(command: &Command) -> Bounds {
    let time_max = match command {
        Command::Status
        | Command::Sample { .. }
        | Command::Log { .. }
        | Command::Requests
        | Command::Trace(_) => REPORT_TIME_MAX,
        #[cfg(debug_assertions)]
        Command::Panic => REPORT_TIME_MAX,
        Command::Set { .. } | Command::Reload | Command::DropClient { .. } => CHANGE_TIME_MAX,
    };
    Bounds { time_max, bytes_max: REPLY_BYTES_MAX }
}

/// Sends a request. Returns the first line of the reply, and what follows it.
fn exchange(
    socket: &Path,
    command: Command,
    bounds: Bounds,
) -> io::Result<(String, BufReader<Take<Answer>>)> {
    let request = Request { version: VERSION, command };
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    converse(socket, &line, bounds).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let sentence = format!("no answer within {} seconds", bounds.time_max.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, sentence)
        }
        _ => error,
    })
}

/// As [`exchange`], which takes at most `time_max` whatever the peer does.
fn converse(
    socket: &Path,
    line: &[u8],
    Bounds { time_max, bytes_max }: Bounds,
) -> io::Result<(String, BufReader<Take<Answer>>)> {
    let deadline = Instant::now() + time_max;
    let mut stream = connect(socket, Some(time_max))?;
    stream.set_write_timeout(Some(time_until(deadline)?))?;
    let written = stream.write_all(line);
    let mut reply = String::new();
    let answer = Answer { stream, deadline: Some(deadline) };
    let mut stream = BufReader::new(answer.take(bytes_max));
    // A server that refuses a connection answers before the request, which fails then.
    if stream.read_line(&mut reply)? == 0 {
        written?;
        // It closes connections of other users.
        return Err(io::Error::new(
            io::ErrorKind::ConnectionReset,
            "the server closed the connection",
        ));
    }
    Ok((reply, stream))
}

/// Connects to a socket. If its queue of connections is full, waits for `time_max`, or not at all;
/// then the error is `WouldBlock`. connect(2) without a limit would wait without end.
pub(super) fn connect(socket: &Path, time_max: Option<Duration>) -> io::Result<UnixStream> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, time_max.is_none());
    let stream = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&stream, sockopt::Timeout::Send, time_max)?;
    net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(stream.into())
}

/// # Errors
/// `TimedOut`, after the deadline.
fn time_until(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// The stream of a server's reply. One deadline holds for all reads together: a server that sends
/// its reply byte by byte has no more time than another.
struct Answer {
    stream: UnixStream,
    deadline: Option<Instant>,
}

impl Answer {
    fn wait_without_end(&mut self) -> io::Result<()> {
        self.deadline = None;
        self.stream.set_read_timeout(None)
    }
}

impl Read for Answer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline {
            self.stream.set_read_timeout(Some(time_until(deadline)?))?;
        }
        self.stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use tempfile::TempDir;

    use super::*;

    const TIME_MAX: Duration = Duration::from_millis(300);
    const BOUNDS: Bounds = Bounds { time_max: TIME_MAX, bytes_max: REPLY_BYTES_MAX };

    fn listening() -> (TempDir, PathBuf, UnixListener) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        (dir, path, listener)
    }

    fn assert_ends_in_time(socket: &Path) {
        let began = Instant::now();
        let Err(error) = converse(socket, b"request\n", BOUNDS) else { panic!("an answer") };
        let expected = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
        assert!(expected.contains(&error.kind()), "{error}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn an_answer_without_end_is_not_awaited() {
        let (_dir, path, listener) = listening();
        let trickle = thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            while peer.write_all(b"x").is_ok() {
                thread::sleep(TIME_MAX / 10);
            }
        });
        assert_ends_in_time(&path);
        trickle.join().unwrap();
    }

    #[test]
    fn a_socket_that_takes_no_connection_is_not_awaited() {
        let (_dir, path, listener) = listening();
        net::listen(&listener, 0).unwrap();
        let mut queue = Vec::new();
        while let Ok(connection) = connect(&path, None) {
            queue.push(connection);
        }
        assert!(!queue.is_empty());
        assert_ends_in_time(&path);
    }
}
