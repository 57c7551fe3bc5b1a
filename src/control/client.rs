//! A command's end of the control socket.

use std::io::{self, BufRead, BufReader, Read as _, Take, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use server::report::TraceRequest;

use super::{Command, Outcome, REPLY_BYTES_MAX, Reply, Request, VERSION};

/// How long a server may take to change something: longer than its own limit.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(70);
/// How long it may take to report.
const REPORT_TIME_MAX: Duration = Duration::from_secs(10);

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
        /// What is wrong with it.
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
    let fail = |error| AskError::Socket { socket: socket.to_owned(), error };
    let answer = |error| AskError::Answer { socket: socket.to_owned(), error };
    let (line, _) = exchange(socket, command).map_err(fail)?;
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
    let (line, lines) = exchange(socket, Command::Trace(request)).map_err(fail)?;
    outcome(&line, socket)?;
    let mut lines = lines;
    lines.get_mut().set_limit(u64::MAX);
    lines.get_ref().get_ref().set_read_timeout(None).map_err(fail)?;
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

/// Sends a request. Returns the first line of the reply, and what follows it.
fn exchange(socket: &Path, command: Command) -> io::Result<(String, BufReader<Take<UnixStream>>)> {
    let request = Request { version: VERSION, command };
    let mut stream = UnixStream::connect(socket)?;
    let time_max = match request.command {
        Command::Status
        | Command::Sample { .. }
        | Command::Log { .. }
        | Command::Requests
        | Command::Trace(_) => REPORT_TIME_MAX,
        #[cfg(debug_assertions)]
        Command::Panic => REPORT_TIME_MAX,
        Command::Set { .. } | Command::Reload | Command::DropClient { .. } => CHANGE_TIME_MAX,
    };
    stream.set_read_timeout(Some(time_max))?;
    stream.set_write_timeout(Some(time_max))?;
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = String::new();
    let mut stream = BufReader::new(stream.take(REPLY_BYTES_MAX));
    stream.read_line(&mut reply)?;
    if reply.is_empty() {
        // It closes connections of other users, and those of which it has too many.
        return Err(io::Error::new(
            io::ErrorKind::ConnectionReset,
            "the server closed the connection",
        ));
    }
    Ok((reply, stream))
}
