//! A Spillway server as a child process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use io::IoMode;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::memory_group::MemoryGroup;
use super::network_link::NetworkNamespace;
use super::process::Watched;
use super::program;
use super::undo::Undo;
use crate::{Error, Result};

/// The name under which the directory is exported.
const EXPORT: &str = "/bench";
/// How long a server may take to say where it listens.
const START_MAX: Duration = Duration::from_secs(30);
/// How long a busy server may take to tell its counters.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The counters come in one piece; a pause this long is its end.
const PIECE_PAUSE: Duration = Duration::from_millis(20);
/// A server that stops puts everything on the disk first.
const STOP_MAX: Duration = Duration::from_secs(60);
/// The most of a server's output that is kept.
const WORDS_BYTES_MAX: usize = 64 << 10;

/// Ends the server if it has its number, and removes the directory `$1`, in which a server that is
/// about to end may make a file yet.
const KILL: &str = r#"
[ -z "$word" ] || kill -KILL "$word" 2>/dev/null
rm -rf -- "$1" 2>/dev/null || { sleep 1; rm -rf -- "$1"; }"#;

/// Becomes the server once a line comes, and ends if none does: a server that no process would end
/// when this process is gone is never there.
const BEGIN: &str = r#"read -r begin && exec "$@" </dev/null"#;

/// Program, arguments and surroundings of a server to start.
#[derive(Clone, Debug)]
pub struct ServerOptions<'a> {
    /// The program, of this version or another.
    pub program: PathBuf,
    /// The directory of its one export.
    pub directory: PathBuf,
    /// How it reads, if not by its own default.
    pub read_mode: Option<IoMode>,
    /// How it writes, if not by its own default.
    pub write_mode: Option<IoMode>,
    /// Further arguments of `serve`.
    pub flags: Vec<OsString>,
    /// The group it runs in; as a clone that [`Watched`] shares.
    pub memory_group: Option<MemoryGroup>,
    /// The name space it runs in.
    pub namespace: Option<&'a NetworkNamespace>,
    /// Where it listens, on a free port: loopback, or its end of a link.
    pub address: IpAddr,
}

impl ServerOptions<'_> {
    /// A server on loopback with its own defaults.
    #[must_use]
    pub fn new(program: PathBuf, directory: PathBuf) -> Self {
        Self {
            program,
            directory,
            read_mode: None,
            write_mode: None,
            flags: Vec::new(),
            memory_group: None,
            namespace: None,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }

    /// The server's configuration: one export without squashing.
    fn configuration(&self) -> Result<String> {
        let path = fs::canonicalize(&self.directory)
            .map_err(Error::machine(self.directory.display().to_string()))?;
        let path = path.to_str().ok_or_else(|| {
            Error::Misuse(format!("the name of {} is not UTF-8", self.directory.display()))
        })?;
        Ok(format!(
            "[[export]]\npath = \"{}\"\nname = \"{EXPORT}\"\nsquash = \"none\"\n\n\
             [[export.client]]\nhosts = [\"*\"]\n",
            toml_escaped(path)
        ))
    }

    /// The whole command line; `state` is a directory of the server's own.
    fn command(&self, state: &Path) -> Command {
        let mut words: Vec<OsString> = ["sh", "-c", BEGIN, "sh"].map(Into::into).to_vec();
        if let Some(namespace) = self.namespace {
            words.extend(namespace.prefix());
        }
        words.extend([self.program.clone().into(), "serve".into()]);
        words.extend(["--config".into(), state.join("spillway.toml").into()]);
        words.extend(["--listen".into(), SocketAddr::new(self.address, 0).to_string().into()]);
        words.extend(["--state-dir".into(), state.join("state").into()]);
        for (flag, mode) in [("--read-mode", self.read_mode), ("--write-mode", self.write_mode)] {
            words.extend(mode.into_iter().flat_map(|mode| [flag.into(), mode.name().into()]));
        }
        words.extend(self.flags.iter().cloned());
        let mut command = match &self.memory_group {
            Some(group) => group.command(&words[0]),
            None => Command::new(&words[0]),
        };
        command.args(&words[1..]);
        command
    }
}

/// `text` inside a TOML basic string.
fn toml_escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped += &format!("\\u{:04X}", u32::from(c)),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A running server. Dropped without [`ServerProcess::stop`] it is killed; so it is when this
/// process ends in any way.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    /// Is given no number before the child is waited for: the number may become another's.
    undo: Undo,
    words: Arc<Printed>,
    address: SocketAddr,
    watched: Watched,
}

impl ServerProcess {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// [`Error::Program`] and [`Error::Machine`]: it cannot be started. [`Error::Server`]: it ends,
    /// or prints nothing for 30 s; with its last words.
    pub fn start(options: &ServerOptions<'_>) -> Result<Self> {
        let state = tempfile::Builder::new()
            .prefix("spillway-bench.")
            .tempdir()
            .map_err(Error::machine("a directory for the server's state"))?;
        let mut undo = Undo::new(KILL, &[state.path()])?;
        let state = state.keep();
        let configuration = state.join("spillway.toml");
        fs::write(&configuration, options.configuration()?)
            .map_err(Error::machine(configuration.display().to_string()))?;
        let mut child = options
            .command(&state)
            // Its output is parsed, so it must be that of a server without configuration.
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for this process, which stops it in order.
            .process_group(0)
            .spawn()
            .map_err(|error| program::not_run("sh", &error))?;
        let mut begin = child.stdin.take().expect("it is piped");
        let noted = undo.tell(&child.id().to_string());
        let begun = if noted.is_ok() { begin.write_all(b"\n") } else { Ok(()) };
        let printed = Arc::new(Printed::default());
        Printed::listen(&printed, child.stdout.take().expect("it is piped"));
        Printed::listen(&printed, child.stderr.take().expect("it is piped"));
        let watched = Watched { pid: child.id(), memory_group: options.memory_group.clone() };
        let address = SocketAddr::new(options.address, 0);
        let mut server = Self { child, undo, words: printed, address, watched };
        noted.map_err(Error::machine("the shell that stops the server"))?;
        // It can be killed before it is the server.
        begun.map_err(|_| server.failed("did not start"))?;
        server.address = server.announced_address()?;
        Ok(server)
    }

    fn announced_address(&self) -> Result<SocketAddr> {
        let words = self.words.wait(START_MAX, |words| words.address.is_some() || words.is_over());
        let address = words.address;
        drop(words);
        address.ok_or_else(|| self.failed("did not start"))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The export, by this server or by a relay at `address` that leads to it.
    #[must_use]
    pub fn url_at(address: SocketAddr) -> String {
        let port = address.port();
        let host = SocketAddr::new(address.ip(), 0).to_string();
        let host = host.trim_end_matches(":0");
        format!("nfs://{host}{EXPORT}?version=3&nfsport={port}&mountport={port}")
    }

    /// The export.
    #[must_use]
    pub fn url(&self) -> String {
        Self::url_at(self.address)
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// To look at it, also from other threads.
    #[must_use]
    pub fn watched(&self) -> &Watched {
        &self.watched
    }

    /// All that the server counted since its start, and what it holds now, by its own names.
    ///
    /// # Errors
    /// [`Error::Server`]: it died, or does not answer within 5 s.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>> {
        self.check_alive()?;
        let before = {
            let mut words = self.words.lock();
            words.figures.clear();
            words.pieces
        };
        self.signal(Signal::USR1)?;
        let mut pieces = before;
        let mut pause = ANSWER_MAX;
        loop {
            let words = self.words.wait(pause, |words| words.pieces > pieces || words.is_over());
            match words.pieces {
                now if now > pieces => (pieces, pause) = (now, PIECE_PAUSE),
                _ if pieces > before => return Ok(words.figures.clone()),
                _ => {
                    drop(words);
                    self.check_alive()?;
                    return Err(self.failed("does not print its counters"));
                }
            }
        }
    }

    /// That it still runs.
    ///
    /// # Errors
    /// [`Error::Server`]: it died; with its last words.
    pub fn check_alive(&self) -> Result<()> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(Pid::from_child(&self.child)), options) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(self.failed("died")),
            Err(error) => Err(Error::machine("waiting for the server")(error.into())),
        }
    }

    /// Ends it in order: it finishes what it accepted and puts all on the disk.
    ///
    /// # Errors
    /// [`Error::Server`]: it had died, failed while it stopped, or took more than a minute.
    pub fn stop(mut self) -> Result<()> {
        self.check_alive()?;
        self.signal(Signal::TERM)?;
        self.leave_to_itself();
        let status = self.wait(STOP_MAX)?.ok_or_else(|| self.failed("does not stop"))?;
        if status.success() {
            return Ok(());
        }
        Err(self.failed(&format!("failed while it stopped, {status}")))
    }

    /// Waits for its end; `None` if that takes longer.
    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.child.try_wait().map_err(Error::machine("waiting for the server"))?;
            if ended.is_some() || Instant::now() >= deadline {
                return Ok(ended);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Has only its directory removed, whatever becomes of this process.
    fn leave_to_itself(&mut self) {
        // A shell that has ended kills no process.
        let _ = self.undo.tell("");
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|error| Error::machine("a signal to the server")(error.into()))
    }

    /// An error with the server's last words.
    fn failed(&self, how: &str) -> Error {
        // They arrive a little after its end.
        let words = self.words.wait(PIECE_PAUSE, Words::is_over);
        let last = program::last_words(&words.text);
        let colon = if last.is_empty() { "" } else { ": " };
        Error::Server(format!("the server {how}{colon}{last}"))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It fails only if it has ended and was waited for; so does waiting.
        let _ = self.child.kill();
        self.leave_to_itself();
        let _ = self.child.wait();
    }
}

/// The output of a server so far; `more` is notified of each further piece and of the end.
#[derive(Debug, Default)]
struct Printed {
    words: Mutex<Words>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Words {
    /// The first address it listens on.
    address: Option<SocketAddr>,
    /// From lines `name value`, which are not repeated in `text`.
    figures: BTreeMap<String, u64>,
    /// Of output that had figures in it.
    pieces: u64,
    /// The end of all else.
    text: String,
    /// Of its stdout and stderr, how many have ended.
    ended: u8,
}

impl Printed {
    /// Reads `stream` to its end, so that the server never waits for us.
    fn listen(printed: &Arc<Self>, mut stream: impl Read + Send + 'static) {
        let printed = Arc::clone(printed);
        thread::spawn(move || {
            let mut piece = vec![0; WORDS_BYTES_MAX];
            let mut begun = Vec::new();
            loop {
                match stream.read(&mut piece) {
                    Ok(0) => break,
                    Ok(len) => printed.lock().take(&mut begun, &piece[..len]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
                printed.more.notify_all();
            }
            printed.lock().ended += 1;
            printed.more.notify_all();
        });
    }

    fn lock(&self) -> MutexGuard<'_, Words> {
        // A thread that panicked while it held this has left a whole piece or none.
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `enough`, or as long as `limit`.
    fn wait(&self, limit: Duration, enough: impl Fn(&Words) -> bool) -> MutexGuard<'_, Words> {
        let waited = self.more.wait_timeout_while(self.lock(), limit, |words| !enough(words));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Words {
    fn is_over(&self) -> bool {
        self.ended == 2
    }

    /// Takes in what was read at once; `begun` is the line that it goes on with, and ends with.
    fn take(&mut self, begun: &mut Vec<u8>, piece: &[u8]) {
        begun.extend_from_slice(piece);
        let mut figures = false;
        while let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = begun.drain(..=end).collect();
            figures |= self.line(String::from_utf8_lossy(&line).trim_end());
        }
        if begun.len() > WORDS_BYTES_MAX {
            begun.clear();
        }
        self.pieces += u64::from(figures);
    }

    /// Takes in a line and returns whether it was a figure.
    fn line(&mut self, line: &str) -> bool {
        if let Some((name, value)) = figure(line) {
            self.figures.insert(name.to_owned(), value);
            return true;
        }
        let address = line.strip_prefix("listening on ").and_then(|text| text.parse().ok());
        self.address = self.address.or(address);
        self.text += line;
        self.text.push('\n');
        if self.text.len() > WORDS_BYTES_MAX {
            let half = self.text.ceil_char_boundary(WORDS_BYTES_MAX / 2);
            self.text.drain(..half);
        }
        false
    }
}

/// A line `name value` as the server answers SIGUSR1.
fn figure(line: &str) -> Option<(&str, u64)> {
    let (name, value) = line.split_once(' ')?;
    let is_name = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    if name.is_empty() || !is_name { None } else { Some((name, value.parse().ok()?)) }
}

#[cfg(test)]
mod tests;
