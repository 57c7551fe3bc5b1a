//! A server on a temporary directory, and the program to call it with.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::skip::skip;

/// Generous: the machine may be busy, and a passing test never waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program, in a locale and a time zone that other programs know as well.
pub(crate) fn spillway() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    command.env_remove("RUST_LOG").env_remove("COLUMNS").env_remove("NOTIFY_SOCKET");
    command.env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3").stdin(Stdio::null());
    command
}

/// A program of coreutils, likewise.
pub(crate) fn coreutils(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("LC_ALL", "C").env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3").env_remove("COLUMNS");
    command.env_remove("LS_COLORS").env_remove("BLOCK_SIZE").stdin(Stdio::null());
    command
}

/// Runs the program with its arguments.
pub(crate) fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    spillway().args(args).output().unwrap()
}

/// The program's output on a terminal; `None` where none can be made.
pub(crate) fn on_terminal(args: &[&str]) -> Option<String> {
    let words = args.iter().map(|word| format!(" '{word}'")).collect::<String>();
    let command = format!("{}{words}", env!("CARGO_BIN_EXE_spillway"));
    match Command::new("script").args(["-qec", &command, "/dev/null"]).output() {
        Ok(script) => Some(String::from_utf8(script.stdout).unwrap()),
        Err(_) => {
            skip("there is no script(1) to make a terminal with");
            None
        }
    }
}

/// The output as text, which it must be.
pub(crate) fn text(output: &[u8]) -> &str {
    std::str::from_utf8(output).unwrap()
}

/// Expects success and silence on stderr; returns stdout.
#[track_caller]
pub(crate) fn succeeded(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap()
}

/// Expects nothing but one complaint.
#[track_caller]
pub(crate) fn assert_exit(output: &Output, status: i32, line: &str) {
    assert_eq!(text(&output.stderr), format!("{line}\n"));
    assert_eq!(output.status.code(), Some(status));
    assert_eq!(text(&output.stdout), "");
}

/// A running server that exports one directory as `/e`. Killed when dropped.
pub(crate) struct Server {
    dir: TempDir,
    root: PathBuf,
    /// The exports in its configuration.
    exports: String,
    child: Child,
    port: u16,
}

impl Server {
    /// One of a fresh directory.
    pub(crate) fn start() -> Self {
        Self::squashing("none")
    }

    /// The same, which squashes these users.
    pub(crate) fn squashing(squash: &str) -> Self {
        let (dir, root) = fresh();
        let exports = export("/e", &root, squash);
        Self::with(dir, root, exports)
    }

    /// One that also exports the directory `name` beside `/e`, as `/e/NAME`.
    pub(crate) fn nesting(name: &str) -> Self {
        let (dir, root) = fresh();
        let nested = root.with_file_name(name);
        fs::create_dir(&nested).unwrap();
        let exports = export("/e", &root, "none") + &export(&format!("/e/{name}"), &nested, "none");
        Self::with(dir, root, exports)
    }

    /// One that also exports the directory `name` in `/e`, as `/s`.
    pub(crate) fn overlapping(name: &str) -> Self {
        let (dir, root) = fresh();
        let below = root.join(name);
        fs::create_dir(&below).unwrap();
        let exports = export("/e", &root, "none") + &export("/s", &below, "none");
        Self::with(dir, root, exports)
    }

    /// One of `root`, which is to stay for as long as `dir` does.
    pub(crate) fn of(dir: TempDir, root: PathBuf) -> Self {
        let exports = export("/e", &root, "none");
        Self::with(dir, root, exports)
    }

    fn with(dir: TempDir, root: PathBuf, exports: String) -> Self {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (child, port) = serve(dir.path(), &exports, 0);
        Self { dir, root, exports, child, port }
    }

    /// The URL of a path, which needs no escapes.
    pub(crate) fn url(&self, path: &str) -> String {
        let slash = if path.is_empty() { "" } else { "/" };
        format!("nfs://127.0.0.1:{}/e{slash}{path}", self.port)
    }

    /// The URL of a path of any bytes, in which nothing is escaped.
    pub(crate) fn raw_url(&self, path: &[u8]) -> OsString {
        let mut url = self.url("").into_bytes();
        url.push(b'/');
        url.extend_from_slice(path);
        OsString::from_vec(url)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where a path is on this machine.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// A place beside what is exported.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file.
    pub(crate) fn put(&self, path: impl AsRef<Path>, data: impl AsRef<[u8]>) {
        fs::write(self.path(path), data).unwrap();
    }

    /// Ends the server as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it anew where it was.
    pub(crate) fn restart(&mut self) {
        (self.child, _) = serve(self.dir.path(), &self.exports, self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory to export, and what it is in.
fn fresh() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let root = fs::canonicalize(dir.path()).unwrap().join("e");
    fs::create_dir(&root).unwrap();
    (dir, root)
}

/// An export as the configuration has it.
fn export(name: &str, path: &Path, squash: &str) -> String {
    format!(
        "[[export]]\npath = {path:?}\nname = {name:?}\n\
         [[export.client]]\nhosts = [\"127.0.0.1\"]\nsquash = {squash:?}\n"
    )
}

fn serve(dir: &Path, exports: &str, port: u16) -> (Child, u16) {
    let config = dir.join("spillway.toml");
    let text =
        format!("listen = \"127.0.0.1:{port}\"\nstate_dir = {:?}\n{exports}", dir.join("state"),);
    fs::write(&config, text).unwrap();
    let mut command = spillway();
    command.arg("serve").arg("--config").arg(&config);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on ").unwrap();
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    // The rest has to go somewhere, or the server would wait for a reader.
    thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    (child, port)
}

/// Waits until `found` has something.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what} does not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes of which no two blocks of 8 are the same, so that none can be taken for another.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(len + 8);
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    while data.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        data.extend_from_slice(&word.to_le_bytes());
    }
    data.truncate(len);
    data
}

/// Expects two files of the same bytes, and does not print them.
#[track_caller]
pub(crate) fn assert_same_data(one: impl AsRef<Path>, other: impl AsRef<Path>) {
    let (one, other) = (fs::read(one).unwrap(), fs::read(other).unwrap());
    assert_eq!(one.len(), other.len());
    if one == other {
        return;
    }
    let difference = one.iter().zip(&other).position(|(one, other)| one != other);
    assert_eq!(difference, None, "the first byte that differs");
}

/// Gives a program its standard input.
pub(crate) fn feed(mut command: Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// A path of any bytes.
pub(crate) fn bytes_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
