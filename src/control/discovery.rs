//! Which servers run on this machine. The kernel lists the sockets that are listened on, so nothing
//! is left over from servers that are gone.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::Deserialize;

use super::client::{self, AskError, ask};
use super::{Command, SOCKET};

/// The kernel's table of Unix sockets.
const TABLE: &str = "/proc/net/unix";
/// In the table's flags of a socket that is listened on (`__SO_ACCEPTCON`).
const ACCEPTS: &[u8] = b"00010000";

/// Servers that are asked at a time: each takes a thread.
const ASKED_AT_ONCE: usize = 32;

/// Why no server is found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// The table cannot be read.
    #[error("cannot read {}: {}", TABLE, crate::exit::io_reason(.0))]
    Table(io::Error),
    /// None runs.
    #[error("no server runs on this machine, or it has no control socket")]
    None,
    /// None with this socket, state directory, configuration file or process.
    #[error("no server matches {which}; {}", those_that_run(running))]
    NoSuch {
        /// The socket, directory, file or process of the command line.
        which: String,
        /// Those that run.
        running: Vec<Running>,
    },
    /// More than one runs.
    #[error("several servers run; choose one with --socket: {}", listed(running))]
    Several {
        /// All of them.
        running: Vec<Running>,
    },
    /// Those that run belong to other users.
    #[error("permission denied: the server of {} accepts commands only from root and its own user", state_dir.display())]
    Denied {
        /// Its state directory.
        state_dir: PathBuf,
    },
}

/// A process that listens on a control socket, as the kernel reports it.
struct Listener {
    socket: PathBuf,
    user: u32,
    pid: i32,
}

/// Of the status of a server: all that is needed here, so that another version can be asked too.
#[derive(Deserialize)]
struct ConfigOf {
    config: Option<String>,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Running {
    socket: PathBuf,
    pid: i32,
    /// Its configuration file, if it has one. A server that hangs gives none, and is listed all
    /// the same: it may be the one that is meant.
    config: Result<Option<String>, AskError>,
}

impl Running {
    fn of(listener: &Listener) -> Self {
        let status: Result<ConfigOf, AskError> = ask(&listener.socket, Command::Status);
        let config = status.map(|status| status.config);
        Self { socket: listener.socket.clone(), pid: listener.pid, config }
    }
}

fn those_that_run(running: &[Running]) -> String {
    match running {
        [] => "no server runs".to_owned(),
        [one] => format!("one server runs: {}", listed(std::slice::from_ref(one))),
        several => format!("{} servers run: {}", several.len(), listed(several)),
    }
}

fn listed(running: &[Running]) -> String {
    let described = running.iter().map(|Running { socket, pid, config }| {
        let rest = match config {
            Ok(Some(file)) => format!(" of {file}"),
            Ok(None) => String::new(),
            Err(AskError::Refused(why)) => format!(", answers: {why}"),
            Err(_) => ", does not answer".to_owned(),
        };
        format!("{} (process {pid}{rest})", socket.display())
    });
    described.collect::<Vec<_>>().join(", ")
}

/// The control socket of the server that `which` names by its socket, state directory,
/// configuration file or process id; without it, of the only one that runs for this user.
///
/// Any user can listen on a socket of that name and answer as a server. So only root asks servers
/// of other users, and only if none of its own matches; and process ids are those that the kernel
/// reports, not those that a server states.
///
/// # Errors
/// See [`FindError`].
pub(crate) fn find(which: Option<&str>) -> Result<PathBuf, FindError> {
    if let Some(socket) = which.and_then(as_socket) {
        return Ok(socket);
    }
    let mut denied = None;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let user = geteuid();
    for socket in listening().map_err(FindError::Table)? {
        match listener_of(&socket) {
            Ok(listener) if listener.user == user.as_raw() => own.push(listener),
            Ok(listener) if user.is_root() => others.push(listener),
            Ok(_) => denied = socket.parent().map(Path::to_owned),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                denied = socket.parent().map(Path::to_owned);
            }
            // It ended meanwhile, takes no connection, or lives where this process cannot reach it.
            Err(_) => {}
        }
    }
    let found = match which {
        None => only(if own.is_empty() { &others } else { &own }),
        Some(which) => named(which, &own, &others),
    };
    found.map_err(|error| match (error, denied) {
        // The server that is not found may be one of those that this user may not ask.
        (FindError::None, Some(state_dir)) => FindError::Denied { state_dir },
        (FindError::NoSuch { running, .. }, Some(state_dir)) if running.is_empty() => {
            FindError::Denied { state_dir }
        }
        (error, _) => error,
    })
}

fn only(listeners: &[Listener]) -> Result<PathBuf, FindError> {
    match listeners {
        [] => Err(FindError::None),
        [one] => Ok(one.socket.clone()),
        several => Err(FindError::Several { running: running(several) }),
    }
}

fn named(which: &str, own: &[Listener], others: &[Listener]) -> Result<PathBuf, FindError> {
    let is_process = |listener: &&Listener| listener.pid.to_string() == which;
    if let Some(listener) = own.iter().chain(others).find(is_process) {
        return Ok(listener.socket.clone());
    }
    let file = fs::canonicalize(which).ok();
    // The server has its paths as they were given to it, with links and `..`.
    let is_config = |server: &Running| {
        let config = server.config.as_ref().ok().and_then(Option::as_ref);
        let config = config.and_then(|config| fs::canonicalize(config).ok());
        config.is_some() && config == file
    };
    let mut asked = Vec::new();
    for listeners in [own, others] {
        let running = running(listeners);
        let (matching, rest): (Vec<_>, Vec<_>) = running.into_iter().partition(is_config);
        match matching.as_slice() {
            [] => asked.extend(rest),
            [one] => return Ok(one.socket.clone()),
            _ => return Err(FindError::Several { running: matching }),
        }
        // One of its own that does not answer may be the one that is meant.
        if asked.iter().any(|server| server.config.is_err()) {
            break;
        }
    }
    Err(FindError::NoSuch { which: which.to_owned(), running: asked })
}

/// All of them, asked together, so that several that are silent take the time of one.
fn running(listeners: &[Listener]) -> Vec<Running> {
    let ask = |some: &[Listener]| {
        thread::scope(|scope| {
            let ask = |listener| scope.spawn(move || Running::of(listener));
            let asked: Vec<_> = some.iter().map(ask).collect();
            asked.into_iter().map(|asked| asked.join().expect("no panic")).collect::<Vec<_>>()
        })
    };
    listeners.chunks(ASKED_AT_ONCE).flat_map(ask).collect()
}

/// A path that is a socket, or a state directory with one.
fn as_socket(which: &str) -> Option<PathBuf> {
    use std::os::unix::fs::FileTypeExt as _;
    let paths = [PathBuf::from(which), Path::new(which).join(SOCKET)];
    let is_socket = |path: &PathBuf| fs::metadata(path).is_ok_and(|f| f.file_type().is_socket());
    paths.into_iter().find(is_socket)
}

/// The process that listens on a socket of the table.
///
/// # Errors
/// It takes no connection at once, or the path leads to another socket than that of the table.
fn listener_of(socket: &Path) -> io::Result<Listener> {
    let stream = client::connect(socket, None)?;
    // A link here would pass another user's server off as the one of this path.
    if stream.peer_addr()?.as_pathname() != Some(socket) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let peer = socket_peercred(&stream)?;
    let (user, pid) = (peer.uid.as_raw(), peer.pid.as_raw_pid());
    Ok(Listener { socket: socket.to_owned(), user, pid })
}

/// The control sockets that are listened on, in order. The table has a path twice if it leads to
/// different sockets in different mount name spaces.
fn listening() -> io::Result<Vec<PathBuf>> {
    let mut sockets = sockets_in(&fs::read(TABLE)?);
    sockets.sort();
    sockets.dedup();
    Ok(sockets)
}

/// The names in the table are bytes of any value: each user chooses those of sockets.
fn sockets_in(table: &[u8]) -> Vec<PathBuf> {
    // Num: RefCount Protocol Flags Type State Inode Path
    let socket = |line: &[u8]| {
        let at = line.windows(2).position(|bytes| bytes == b" /")?;
        let (fields, path) = line.split_at(at);
        let path = Path::new(OsStr::from_bytes(&path[1..]));
        let mut fields = fields.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let accepts = fields.nth(3) == Some(ACCEPTS);
        (accepts && path.file_name()? == SOCKET).then(|| path.to_owned())
    };
    table.split(|byte| *byte == b'\n').filter_map(socket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_found_by_their_name() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21004 /var/lib/spillway/spillway.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 21005 /var/lib/spillway/spillway.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21006 /tmp/with space/spillway.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21007 @/spillway.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21010 @\xff\x80\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21011 /srv/caf\xe9/spillway.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21008 /run/other.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21009\n";
        let expected: [&[u8]; 3] = [
            b"/var/lib/spillway/spillway.sock",
            b"/tmp/with space/spillway.sock",
            b"/srv/caf\xe9/spillway.sock",
        ];
        assert_eq!(sockets_in(table), expected.map(|path| Path::new(OsStr::from_bytes(path))));
    }
}
