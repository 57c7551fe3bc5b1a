//! The real program, on a free port, with I/O modes that change while it runs.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs3::FileHandle;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::client::Client;

/// Generous: the machine may be busy, and a passing test never waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server's one message about a file system that reports no alignment for direct I/O.
const NO_DIRECT: &str = "direct I/O is not supported";

pub(crate) const MODES: [&str; 4] = ["buffered", "dontcache", "direct", "auto"];

/// `io_cache_read` and `io_cache_write`.
pub(crate) type ModePair = (&'static str, &'static str);

/// All pairs of a mode for READ and one for WRITE.
pub(crate) fn mode_pairs() -> impl Iterator<Item = ModePair> {
    MODES.into_iter().flat_map(|read| MODES.into_iter().map(move |write| (read, write)))
}

/// The rest of a configuration, besides the directory and the modes.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// Lines that stand before the exports.
    pub(crate) global: &'static str,
    /// Names under which the directory is exported. The modes of every other one are exchanged.
    pub(crate) exports: &'static [&'static str],
}

/// A server of one directory.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    directory: PathBuf,
    settings: Settings,
    /// The configuration file and the state.
    own: TempDir,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(directory: &Path, modes: ModePair) -> Self {
        Self::start_with(directory, modes, Settings { global: "", exports: &["/export"] })
    }

    /// Starts one with other settings.
    pub(crate) fn start_with(directory: &Path, modes: ModePair, settings: Settings) -> Self {
        let own = TempDir::new().unwrap();
        write_config(own.path(), directory, settings, modes);
        let mut child = Command::new(program())
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(own.path().join("spillway.toml"))
            .env_remove("RUST_LOG")
            .env_remove("NOTIFY_SOCKET")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let reader = keep_lines(child.stderr.take().unwrap(), &log);
        let mut first = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        if stdout.read_line(&mut first).unwrap() == 0 {
            reader.join().unwrap();
            panic!("the server stopped at its start: {:#?}", log.lock().unwrap());
        }
        // It prints a few lines more, which fit into the pipe.
        let address = first.trim_end().strip_prefix("listening on ").unwrap().parse().unwrap();
        Self { child, address, directory: directory.to_owned(), settings, own, log }
    }

    /// A new connection and the root of the export.
    pub(crate) fn mounted(&self) -> (Client, FileHandle) {
        self.mounted_at(0)
    }

    /// The same by one of the names of the export, counted around.
    pub(crate) fn mounted_at(&self, number: usize) -> (Client, FileHandle) {
        let mut client = Client::connect(self.address);
        let root = client.mnt(self.settings.exports[number % self.settings.exports.len()]);
        (client, root)
    }

    /// Where a client mounts it.
    pub(crate) fn url(&self) -> String {
        format!("nfs://{}/export", self.address)
    }

    /// Switches the modes, for the next request of every connection.
    #[track_caller]
    pub(crate) fn switch(&self, modes: ModePair) {
        let seen = self.log.lock().unwrap().len();
        write_config(self.own.path(), &self.directory, self.settings, modes);
        self.signal(Signal::HUP);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = self.log.lock().unwrap();
            let new = log.get(seen..).unwrap_or_default();
            if new.iter().any(|line| line.contains("reloaded")) {
                return;
            }
            assert!(!new.iter().any(|line| line.contains("refused")), "{new:#?}");
            assert!(Instant::now() < deadline, "not reloaded: {new:#?}");
            drop(log);
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the server, which must have had nothing to complain about but, where it may be so, a
    /// file system without direct I/O.
    #[track_caller]
    pub(crate) fn stop(mut self, may_lack_direct: bool) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "still running after SIGTERM");
            thread::sleep(Duration::from_millis(10));
        };
        let log = self.log.lock().unwrap();
        assert_eq!(status.code(), Some(0), "{:#?}", log.last());
        let known = |line: &&String| may_lack_direct && line.contains(NO_DIRECT);
        let complaint = |line: &&String| line.contains("WARN") || line.contains("ERROR");
        let complaints: Vec<_> = log.iter().filter(complaint).filter(|line| !known(line)).collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has been stopped and waited for, which is how it should be.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking()
            && let Ok(log) = self.log.lock()
        {
            let last = &log[log.len().saturating_sub(10)..];
            eprintln!("the server's last words: {last:#?}");
        }
    }
}

/// The program that was built with this test, or the one in `SPILLWAY_TORTURE_PROGRAM`.
pub(crate) fn program() -> OsString {
    env::var_os("SPILLWAY_TORTURE_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_spillway").into())
}

/// Replaces the configuration as a whole, so that no reload reads half of it.
///
/// The memory is little, so that buffers are waited for.
fn write_config(own: &Path, directory: &Path, settings: Settings, modes: ModePair) {
    let mut text = String::new();
    writeln!(text, "memory = \"48MiB\"\nstate_dir = {:?}", own.join("state")).unwrap();
    writeln!(text, "{}", settings.global).unwrap();
    for (number, name) in settings.exports.iter().enumerate() {
        let (read, write) = if number % 2 == 0 { modes } else { (modes.1, modes.0) };
        writeln!(text, "[[export]]\npath = {directory:?}\nname = \"{name}\"").unwrap();
        writeln!(text, "squash = \"none\"\nsync = false").unwrap();
        writeln!(text, "io_cache_read = \"{read}\"\nio_cache_write = \"{write}\"").unwrap();
    }
    fs::write(own.join("new.toml"), text).unwrap();
    fs::rename(own.join("new.toml"), own.join("spillway.toml")).unwrap();
}

/// Reads a log as it comes, so that the pipe never fills.
fn keep_lines(
    stderr: impl Read + Send + 'static,
    log: &Arc<Mutex<Vec<String>>>,
) -> thread::JoinHandle<()> {
    let log = Arc::clone(log);
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            log.lock().unwrap().push(line);
        }
    })
}
