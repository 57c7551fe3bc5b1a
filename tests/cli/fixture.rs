//! The program, a temporary place for it, and a running server.

use std::fmt::Debug;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Generous: the machine may be busy, and a passing test never waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn spillway() -> Command {
    without_environment(Command::new(env!("CARGO_BIN_EXE_spillway")))
}

/// A command that does not inherit the variables by which the program is controlled.
pub(crate) fn without_environment(mut command: Command) -> Command {
    command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET").env_remove("RUST_BACKTRACE");
    command.env_remove("JOURNAL_STREAM");
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    spillway().args(args).output().expect("the program starts")
}

#[track_caller]
pub(crate) fn assert_exit(output: &Output, status: i32, sentence: &str) {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    let mut lines = stderr.lines();
    let first = lines.next().unwrap_or_default();
    assert!(first.starts_with(&format!("spillway: {sentence}")), "{stderr}");
    let hint: Vec<_> = lines.collect();
    match status {
        2 => assert!(matches!(hint[..], [line] if is_hint(line)), "{stderr}"),
        _ => assert!(hint.is_empty(), "{stderr}"),
    }
    assert!(output.stdout.is_empty());
}

/// Waits until a value is as expected.
#[track_caller]
pub(crate) fn eventually<T: PartialEq + Debug>(expected: T, mut find: impl FnMut() -> T) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = find();
        if found == expected || Instant::now() > deadline {
            assert_eq!(found, expected);
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Whether a line refers to the help of the program or of one of its commands.
fn is_hint(line: &str) -> bool {
    line.starts_with("Try `spillway") && line.ends_with(" --help`.")
}

/// A temporary place with the directories `a` and `b` and room for a configuration.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// Writes the configuration file; `$DIR` stands for this place.
    pub(crate) fn configure(&self, text: &str) -> String {
        let text = text.replace("$DIR", self.path("").to_str().unwrap().trim_end_matches('/'));
        fs::write(self.path("spillway.toml"), text).unwrap();
        self.text("spillway.toml")
    }

    pub(crate) fn check(&self, text: &str) -> Output {
        let file = self.configure(text);
        run(&["check", "--config", &file])
    }
}

/// A running server. Killed when dropped, should a test fail before it stops it.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// All it printed when it was ready.
    pub(crate) announced: String,
    pub(crate) address: SocketAddr,
    pub(crate) log: mpsc::Receiver<String>,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts `serve`, and waits as [`Running::once_ready`].
    pub(crate) fn start(command: Command, exports: usize) -> Self {
        Self::once_ready(spawn_serve(command), exports)
    }

    /// Waits for the address and for four lines of each export.
    pub(crate) fn once_ready(mut child: Child, exports: usize) -> Self {
        let log = lines(child.stderr.take().unwrap());
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut announced = String::new();
        for _ in 0..1 + 4 * exports {
            if stdout.read_line(&mut announced).unwrap() == 0 {
                panic!("stopped at its start: {:?}", log.iter().collect::<Vec<_>>());
            }
        }
        let address = announced.lines().next().unwrap().strip_prefix("listening on ").unwrap();
        let address = address.parse().unwrap();
        Self { child, announced, address, log, stdout }
    }

    /// The next line that it prints.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for a line of the log that contains `text`.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.lines_to(text).pop().expect("the line itself is one")
    }

    /// The lines of the log up to the first that contains `text`.
    #[track_caller]
    pub(crate) fn lines_to(&self, text: &str) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with `{text}` ({error}): {seen:#?}"),
            }
            if seen.last().is_some_and(|line| line.contains(text)) {
                return seen;
            }
        }
    }

    #[track_caller]
    pub(crate) fn assert_serving(&self) {
        TcpStream::connect_timeout(&self.address, PATIENCE).expect("the server listens");
    }

    #[track_caller]
    pub(crate) fn stop(mut self, signal: Signal) {
        self.signal(signal);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert_eq!(status.code(), Some(0));
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("still running after {signal:?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if it has been stopped and waited for, which is how it should be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a log as it comes, so that the pipe never fills.
fn lines(stderr: ChildStderr) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

/// Starts `serve` for [`Running::once_ready`].
pub(crate) fn spawn_serve(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn serve_directory(place: &Place) -> Command {
    let mut command = spillway();
    command.args(["serve", "--listen", "127.0.0.1:0", "--as", "/data", "--state-dir"]);
    command.arg(place.path("state")).arg(place.path("a"));
    command
}

pub(crate) fn serve_config(config: &str) -> Command {
    let mut command = spillway();
    command.args(["serve", "--config", config]);
    command
}

pub(crate) const ONE_EXPORT: &str = "listen = \"127.0.0.1:0\"\nstate_dir = \"$DIR/state\"\n\
                          [[export]]\npath = \"$DIR/a\"\nname = \"/a\"\n";
