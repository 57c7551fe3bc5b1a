//! Which servers run on this machine. The kernel lists the sockets that are listened on, so nothing
//! is left over from servers that are gone.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use server::report::Status;

use super::client::{AskError, ask};
use super::{Command, SOCKET};

/// The kernel's table of Unix sockets.
const TABLE: &str = "/proc/net/unix";
/// In the table's flags of a socket that is listened on (`__SO_ACCEPTCON`).
const ACCEPTS: &[u8] = b"00010000";

/// Why no server is found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// The table cannot be read.
    #[error("cannot read {TABLE}: {0}")]
    Table(io::Error),
    /// None runs.
    #[error("no server runs on this machine, or it has no control socket")]
    None,
    /// None with this socket, state directory, configuration file or process.
    #[error("no server matches {which}; {}", those_that_run(running))]
    NoSuch {
        /// What was given.
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
    /// The one that runs does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) socket: PathBuf,
    status: Status,
}

impl Running {
    fn is_called(&self, which: &str) -> bool {
        let given = fs::canonicalize(which).ok();
        // The server has its paths as they were given to it, with links and `..`.
        let is_at = |path: &Path| given.is_some() && fs::canonicalize(path).ok() == given;
        let config = self.status.config.as_deref();
        self.status.pid.to_string() == which
            || is_at(&self.status.state_dir)
            || config.is_some_and(is_at)
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
    let described = running.iter().map(|Running { socket, status }| {
        let config = status.config.as_ref().map(|file| format!(" of {}", file.display()));
        format!("{} (process {}{})", socket.display(), status.pid, config.unwrap_or_default())
    });
    described.collect::<Vec<_>>().join(", ")
}

/// The control socket of the server that `which` names by its socket, state directory,
/// configuration file or process id; without it, of the only one that runs for this user.
///
/// # Errors
/// See [`FindError`].
pub(crate) fn find(which: Option<&str>) -> Result<PathBuf, FindError> {
    if let Some(socket) = which.and_then(as_socket) {
        return Ok(socket);
    }
    let sockets = listening().map_err(FindError::Table)?;
    let mut denied = None;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for socket in sockets {
        match owner_of(&socket) {
            Ok(user) if user == geteuid().as_raw() => own.push(socket),
            // Of another user a server is believed by root alone, and only if root has none.
            Ok(_) => others.push(socket),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                denied = socket.parent().map(Path::to_owned);
            }
            // It ended meanwhile, or lives where this process cannot reach it.
            Err(_) => {}
        }
    }
    let candidates = if own.is_empty() || which.is_some() { [own, others].concat() } else { own };
    match (candidates.as_slice(), which) {
        ([], None) => {
            Err(denied.map_or(FindError::None, |state_dir| FindError::Denied { state_dir }))
        }
        ([socket], None) => Ok(socket.clone()),
        _ => match choose(candidates, which) {
            // What is not found may be one of those that this user may not ask.
            Err(FindError::NoSuch { which, running }) => Err(match denied {
                Some(state_dir) if running.is_empty() => FindError::Denied { state_dir },
                _ => FindError::NoSuch { which, running },
            }),
            chosen => chosen,
        },
    }
}

fn choose(candidates: Vec<PathBuf>, which: Option<&str>) -> Result<PathBuf, FindError> {
    let mut running = Vec::new();
    for socket in candidates {
        if let Ok(status) = ask(&socket, Command::Status) {
            running.push(Running { socket, status });
        }
    }
    running.sort_by(|a, b| a.socket.cmp(&b.socket));
    let Some(which) = which else { return Err(FindError::Several { running }) };
    match running.iter().find(|server| server.is_called(which)) {
        Some(server) => Ok(server.socket.clone()),
        None => Err(FindError::NoSuch { which: which.to_owned(), running }),
    }
}

/// A path that is a socket, or a state directory with one.
fn as_socket(which: &str) -> Option<PathBuf> {
    use std::os::unix::fs::FileTypeExt as _;
    let paths = [PathBuf::from(which), Path::new(which).join(SOCKET)];
    let is_socket = |path: &PathBuf| fs::metadata(path).is_ok_and(|f| f.file_type().is_socket());
    paths.into_iter().find(is_socket)
}

/// The user whose process listens on a socket.
fn owner_of(socket: &Path) -> io::Result<u32> {
    let stream = UnixStream::connect(socket)?;
    Ok(socket_peercred(&stream)?.uid.as_raw())
}

/// The control sockets that are listened on.
fn listening() -> io::Result<Vec<PathBuf>> {
    Ok(sockets_in(&fs::read(TABLE)?))
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
