//! Which servers run on this machine. The kernel lists the sockets that are listened on, so nothing
//! is left over from servers that are gone.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::Deserialize;
use server::config::system_state_dir;

use super::client::{self, AskError, Bounds};
use super::{Command, REPLY_BYTES_MAX, SOCKET};

/// The kernel's table of Unix sockets.
const TABLE: &str = "/proc/net/unix";
/// In the table's flags of a socket that is listened on (`__SO_ACCEPTCON`).
const ACCEPTS: &[u8] = b"00010000";

/// How long connecting to all sockets may take, of the time that a report may.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// Sockets that are connected to at a time: each takes a thread.
const ASKED_AT_ONCE: usize = 32;
/// Servers of users other than root that root asks. Any user can listen on any number of sockets.
const STRANGERS_MAX: usize = 8;
/// The longest status of theirs that is read, and the longest name of a configuration file in it.
const STATUS_BYTES_MAX: u64 = 1 << 20;
const CONFIG_BYTES_MAX: usize = 4096;
/// Characters of a server's refusal that are listed.
const REFUSAL_CHARS_MAX: usize = 200;

/// Why no server is found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// The table cannot be read.
    #[error("cannot read {}: {}", TABLE, crate::exit::io_reason(.0))]
    Table(io::Error),
    /// None runs.
    #[error("no server runs on this machine, or it has no control socket")]
    None,
    /// None of this user is found, and one may be among those that take no connection.
    #[error("found no server of this user{}", silent(*unreached))]
    Unreached {
        /// Sockets that could not be connected to in time.
        unreached: usize,
    },
    /// None with this socket, state directory, configuration file or process.
    #[error("no server matches {which}; {}", those_that_run(running))]
    NoSuch {
        /// The socket, directory, file or process of the command line.
        which: String,
        /// Those that run.
        running: Servers,
    },
    /// More than one runs.
    #[error("several servers run; choose one with --socket: {}", listed(running))]
    Several {
        /// All of them.
        running: Servers,
    },
    /// Those that run belong to other users.
    #[error("permission denied: the server of {} accepts commands only from root and its own user", state_dir.display())]
    Denied {
        /// Its state directory.
        state_dir: PathBuf,
    },
}

/// Servers that run.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    asked: Vec<Running>,
    /// Servers of other users that were not asked.
    left_out: usize,
    /// Sockets that could not be connected to in time.
    unreached: usize,
}

/// A process that listens on a control socket, as the kernel reports it.
#[derive(Clone)]
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
    fn of(listener: Listener, bounds: Bounds) -> Self {
        let asked = client::ask_within(&listener.socket, Command::Status, bounds);
        let config = asked.map(|ConfigOf { config }| config);
        Self { config, ..Self::silent(listener) }
    }

    /// One that has not answered in time.
    fn silent(Listener { socket, pid, .. }: Listener) -> Self {
        let error = io::ErrorKind::TimedOut.into();
        Self { config: Err(AskError::Socket { socket: socket.clone(), error }), socket, pid }
    }
}

fn those_that_run(running: &Servers) -> String {
    match running.asked.len() {
        0 if running.left_out + running.unreached > 0 => {
            format!("no server of this user runs{}", rest(running))
        }
        0 => "no server runs".to_owned(),
        1 => format!("one server runs: {}", listed(running)),
        several => format!("{several} servers run: {}", listed(running)),
    }
}

fn listed(running: &Servers) -> String {
    let described = running.asked.iter().map(|Running { socket, pid, config }| {
        let rest = match config {
            Ok(Some(file)) if file.len() <= CONFIG_BYTES_MAX => format!(" of {file}"),
            Ok(_) => String::new(),
            Err(AskError::Refused(why)) => {
                format!(", answers: {}", why.chars().take(REFUSAL_CHARS_MAX).collect::<String>())
            }
            Err(_) => ", does not answer".to_owned(),
        };
        format!("{} (process {pid}{rest})", socket.display())
    });
    described.collect::<Vec<_>>().join(", ") + &rest(running)
}

fn rest(Servers { left_out, unreached, .. }: &Servers) -> String {
    let left_out = match left_out {
        0 => String::new(),
        _ => format!("; {left_out} more sockets of that name were left out"),
    };
    left_out + &silent(*unreached)
}

fn silent(unreached: usize) -> String {
    match unreached {
        0 => String::new(),
        _ => format!(
            "; {unreached} more sockets of that name did not answer within {} seconds: choose one \
             with --socket and its path",
            CONNECT_TIME_MAX.as_secs()
        ),
    }
}

/// The control socket of the server that `which` names by its socket, state directory,
/// configuration file or process id; without it, of the only one that runs for this user.
///
/// Any user can listen on a socket of that name and answer as a server. So only root asks servers
/// of other users, and only if none of its own matches and each socket has taken a connection: one
/// that has not may be its own. Process ids are those that the kernel reports, not those that a
/// server states.
///
/// # Errors
/// See [`FindError`].
pub(crate) fn find(which: Option<&str>) -> Result<PathBuf, FindError> {
    if let Some(socket) = which.and_then(as_socket) {
        return Ok(socket);
    }
    let began = Instant::now();
    let deadline = began + client::REPORT_TIME_MAX;
    let mut denied = None;
    let mut found = Found::default();
    let user = geteuid();
    let sockets = listening().map_err(FindError::Table)?;
    let listeners =
        in_time(sockets.clone(), began + CONNECT_TIME_MAX, |socket| listener_of(&socket));
    for (socket, listener) in sockets.iter().zip(listeners) {
        match listener {
            Some(Ok(listener)) if listener.user == user.as_raw() => found.own.push(listener),
            Some(Ok(listener)) if user.is_root() => found.others.push(listener),
            Some(Ok(_)) => denied = socket.parent().map(Path::to_owned),
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                denied = socket.parent().map(Path::to_owned);
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => found.unreached += 1,
            // It ended meanwhile, or lives where this process cannot reach it.
            Some(Err(_)) => {}
            None => found.unreached += 1,
        }
    }
    let found = match which {
        None => found.only(deadline),
        Some(which) => found.named(which, deadline),
    };
    found.map_err(|error| match (error, denied) {
        // The server that is not found may be one of those that this user may not ask.
        (FindError::None, Some(state_dir)) => FindError::Denied { state_dir },
        (FindError::NoSuch { running, .. }, Some(state_dir)) if running.asked.is_empty() => {
            FindError::Denied { state_dir }
        }
        (error, _) => error,
    })
}

/// The processes that listen on control sockets.
#[derive(Default)]
struct Found {
    /// Of this user.
    own: Vec<Listener>,
    /// Of other users, if this one is root.
    others: Vec<Listener>,
    /// Sockets that could not be connected to in time.
    unreached: usize,
}

impl Found {
    fn only(self, deadline: Instant) -> Result<PathBuf, FindError> {
        let unreached = self.unreached;
        let has_own = !self.own.is_empty();
        if !has_own && unreached > 0 {
            return Err(FindError::Unreached { unreached });
        }
        let mut found = if has_own { self.own } else { self.others };
        match found.as_slice() {
            [] => Err(FindError::None),
            [_] => Ok(found.remove(0).socket),
            _ => {
                let left_out = if has_own { 0 } else { leave_out(&mut found) };
                let bytes_max = if has_own { REPLY_BYTES_MAX } else { STATUS_BYTES_MAX };
                let asked = running(found, deadline, bytes_max);
                let running = Servers { asked, left_out, unreached };
                Err(FindError::Several { running })
            }
        }
    }

    fn named(mut self, which: &str, deadline: Instant) -> Result<PathBuf, FindError> {
        let is_process = |listener: &&Listener| listener.pid.to_string() == which;
        if let Some(listener) = self.own.iter().chain(&self.others).find(is_process) {
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
        let unreached = self.unreached;
        let mut left_out = leave_out(&mut self.others);
        let groups = [(self.own, REPLY_BYTES_MAX, 0), (self.others, STATUS_BYTES_MAX, unreached)];
        for (listeners, bytes_max, unreached) in groups {
            // One of its own that does not answer may be the one that is meant.
            if unreached > 0 || asked.iter().any(|server: &Running| server.config.is_err()) {
                left_out += listeners.len();
                break;
            }
            let running = running(listeners, deadline, bytes_max);
            let (matching, rest): (Vec<_>, Vec<_>) = running.into_iter().partition(is_config);
            match matching.as_slice() {
                [] => asked.extend(rest),
                [one] => return Ok(one.socket.clone()),
                _ => {
                    let running = Servers { asked: matching, ..Servers::default() };
                    return Err(FindError::Several { running });
                }
            }
        }
        let running = Servers { asked, left_out, unreached };
        Err(FindError::NoSuch { which: which.to_owned(), running })
    }
}

/// Keeps [`STRANGERS_MAX`] of the listeners of other users, the first of each user before the
/// second of one. Returns the number of the others.
fn leave_out(listeners: &mut Vec<Listener>) -> usize {
    let mut of_user: HashMap<u32, usize> = HashMap::new();
    let turns = listeners.drain(..).map(|listener| {
        let turn = of_user.entry(listener.user).or_default();
        *turn += 1;
        (*turn, listener)
    });
    let mut turns: Vec<_> = turns.collect();
    turns.sort_by_key(|(turn, listener)| (*turn, listener.user));
    let left_out = turns.len().saturating_sub(STRANGERS_MAX);
    listeners.extend(turns.into_iter().take(STRANGERS_MAX).map(|(_, listener)| listener));
    left_out
}

/// All of them, asked together, so that several that are silent take the time of one.
fn running(listeners: Vec<Listener>, deadline: Instant, bytes_max: u64) -> Vec<Running> {
    let asked = in_time(listeners.clone(), deadline, move |listener| {
        let time_max = deadline.saturating_duration_since(Instant::now());
        Running::of(listener, Bounds { time_max, bytes_max })
    });
    let asked = listeners.into_iter().zip(asked);
    asked.map(|(listener, asked)| asked.unwrap_or_else(|| Running::silent(listener))).collect()
}

/// Does work for each item, in threads, and returns the results of those that are done in time. A
/// thread that hangs, as in the path of a socket on a disk that does, is left behind.
fn in_time<T: Send + 'static, R: Send + 'static>(
    items: Vec<T>,
    deadline: Instant,
    work: impl Fn(T) -> R + Copy + Send + 'static,
) -> Vec<Option<R>> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let threads = items.len().min(ASKED_AT_ONCE);
    let queue = Arc::new(Mutex::new(items.into_iter().enumerate()));
    let (done, all_done) = mpsc::channel();
    for _ in 0..threads {
        let (queue, done) = (Arc::clone(&queue), done.clone());
        let next = move || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        thread::spawn(move || {
            while let Some((index, item)) = next() {
                // An error is the end of the time.
                if done.send((index, work(item))).is_err() {
                    return;
                }
            }
        });
    }
    drop(done);
    let left = || deadline.saturating_duration_since(Instant::now());
    while let Ok((index, result)) = all_done.recv_timeout(left()) {
        results[index] = Some(result);
    }
    results
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

/// The control sockets that are listened on, in order, that of the usual state directory first: any
/// user can listen on sockets whose paths hang. The table has a path twice if it leads to
/// different sockets in different mount name spaces.
fn listening() -> io::Result<Vec<PathBuf>> {
    let mut sockets = sockets_in(&fs::read(TABLE)?);
    put_in_order(&mut sockets, system_state_dir().ok());
    Ok(sockets)
}

fn put_in_order(sockets: &mut Vec<PathBuf>, usual: Option<PathBuf>) {
    sockets.sort();
    sockets.dedup();
    sockets.sort_by_key(|socket| socket.parent() != usual.as_deref());
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
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    use tempfile::TempDir;

    use super::*;

    const USER: u32 = 1000;

    /// A socket that answers with `answer`, or is silent.
    fn listener(dir: &TempDir, name: usize, answer: Option<Vec<u8>>) -> (Listener, UnixListener) {
        let socket = dir.path().join(name.to_string());
        let listening = UnixListener::bind(&socket).unwrap();
        if let Some(answer) = answer {
            let listening = listening.try_clone().unwrap();
            thread::spawn(move || {
                let (mut peer, _) = listening.accept().unwrap();
                // A peer that has enough closes its end.
                let _ = peer.write_all(&answer);
            });
        }
        (Listener { socket, user: USER, pid: 1 }, listening)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(500)
    }

    #[test]
    fn silent_sockets_of_another_user_take_the_time_of_one_and_are_left_out() {
        let dir = TempDir::new().unwrap();
        let (others, _silent): (Vec<_>, Vec<_>) =
            (0..200).map(|name| listener(&dir, name, None)).unzip();
        let (began, deadline) = (Instant::now(), soon());
        let found = Found { others, ..Found::default() };
        let error = found.only(deadline).unwrap_err().to_string();
        assert!(began.elapsed() < Duration::from_secs(10));
        assert_eq!(error.matches(", does not answer").count(), STRANGERS_MAX);
        assert!(error.ends_with("; 192 more sockets of that name were left out"), "{error}");
    }

    #[test]
    fn own_servers_are_asked_whatever_other_users_listen_on() {
        let dir = TempDir::new().unwrap();
        let config = dir.path().join("config");
        fs::write(&config, "").unwrap();
        let status = format!("{{\"version\":1,\"result\":{{\"config\":{config:?}}}}}\n");
        let (others, _silent): (Vec<_>, Vec<_>) =
            (0..200).map(|name| listener(&dir, name, None)).unzip();
        let (own, _socket) = listener(&dir, 200, Some(status.into_bytes()));
        let socket = own.socket.clone();
        let found = Found { own: vec![own], others, unreached: 0 };
        let deadline = Instant::now() + Duration::from_secs(20);
        assert_eq!(found.named(config.to_str().unwrap(), deadline).unwrap(), socket);
    }

    #[test]
    fn a_server_of_another_user_is_neither_taken_nor_asked_while_a_socket_takes_no_connection() {
        let dir = TempDir::new().unwrap();
        let config = dir.path().join("config");
        fs::write(&config, "").unwrap();
        let status = format!("{{\"version\":1,\"result\":{{\"config\":{config:?}}}}}\n");
        let (other, _socket) = listener(&dir, 0, Some(status.into_bytes()));
        let (silent, _silent) = listener(&dir, 1, None);
        let found = |others| Found { others, unreached: 32, ..Found::default() };
        let advice = "; 32 more sockets of that name did not answer within 3 seconds: choose one \
                      with --socket and its path";
        for others in [vec![other.clone()], vec![other.clone(), silent.clone()]] {
            let error = found(others.clone()).only(soon()).unwrap_err().to_string();
            assert_eq!(error, format!("found no server of this user{advice}"));
            let error = found(others).named(config.to_str().unwrap(), soon()).unwrap_err();
            assert!(error.to_string().ends_with(advice), "{error}");
        }
        let found = Found { own: vec![silent.clone()], ..found(vec![other]) };
        assert_eq!(found.only(soon()).unwrap(), silent.socket);
    }

    #[test]
    fn the_socket_of_the_usual_state_directory_is_the_first() {
        let mut sockets = ["/b/spillway.sock", "/a/spillway.sock", "/c/spillway.sock"];
        sockets.reverse();
        let mut sockets = sockets.map(PathBuf::from).to_vec();
        put_in_order(&mut sockets, Some(PathBuf::from("/c")));
        let expected = ["/c/spillway.sock", "/a/spillway.sock", "/b/spillway.sock"];
        assert_eq!(sockets, expected.map(PathBuf::from));
    }

    #[test]
    fn long_answers_of_own_servers_are_read_whole() {
        let dir = TempDir::new().unwrap();
        let config = dir.path().join("config");
        fs::write(&config, "").unwrap();
        let long = "x".repeat(2 << 20);
        let status = format!(
            "{{\"version\":1,\"result\":{{\"config\":{config:?},\"exports\":\"{long}\"}}}}\n"
        );
        let (own, _socket) = listener(&dir, 0, Some(status.into_bytes()));
        let socket = own.socket.clone();
        let found = Found { own: vec![own], ..Found::default() };
        let deadline = Instant::now() + Duration::from_secs(20);
        assert_eq!(found.named(config.to_str().unwrap(), deadline).unwrap(), socket);
    }

    #[test]
    fn each_user_has_a_server_asked_before_another_has_a_second() {
        let of = |user| Listener { socket: PathBuf::new(), user, pid: 1 };
        let mut listeners: Vec<_> = [7; 100].into_iter().chain(2000..2005).map(of).collect();
        assert_eq!(leave_out(&mut listeners), 105 - STRANGERS_MAX);
        let users: Vec<_> = listeners.iter().map(|listener| listener.user).collect();
        assert_eq!(users, [7, 2000, 2001, 2002, 2003, 2004, 7, 7]);
        assert_eq!(leave_out(&mut listeners), 0);
    }

    #[test]
    fn long_answers_are_neither_read_nor_listed_whole() {
        let dir = TempDir::new().unwrap();
        let long = |bytes: usize| "x".repeat(bytes);
        let answers = [
            format!("{{\"version\":1,\"error\":\"{}\"}}\n", long(100_000)),
            format!("{{\"version\":1,\"result\":{{\"config\":\"{}\"}}}}\n", long(100_000)),
            long(2 << 20),
        ];
        let answers = answers.into_iter().enumerate();
        let (others, _sockets): (Vec<_>, Vec<_>) =
            answers.map(|(name, text)| listener(&dir, name, Some(text.into_bytes()))).unzip();
        let found = Found { others, ..Found::default() };
        let error = found.only(Instant::now() + Duration::from_secs(20)).unwrap_err().to_string();
        assert!(error.contains(", answers: x") && error.len() < 2000, "{}", error.len());
        assert_eq!(error.matches(", does not answer").count(), 1);
    }

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
