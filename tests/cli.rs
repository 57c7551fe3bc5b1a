//! The built program from outside: exit status, the one sentence of each failure, and the life of
//! a server from its first line on stdout to its last signal.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Generous: the machine may be busy, and a passing test never waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

fn spillway() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET").env_remove("RUST_BACKTRACE");
    command
}

fn run(args: &[&str]) -> Output {
    spillway().args(args).output().expect("the program starts")
}

#[track_caller]
fn assert_told(output: &Output, status: i32, sentence: &str) {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    let mut lines = stderr.lines();
    let first = lines.next().unwrap_or_default();
    assert!(first.starts_with(&format!("spillway: {sentence}")), "{stderr}");
    let hint: Vec<_> = lines.collect();
    let expected: &[&str] = if status == 2 { &["Try `spillway --help`."] } else { &[] };
    assert_eq!(hint, expected, "{stderr}");
    assert!(output.stdout.is_empty());
}

/// A temporary place with the directories `a` and `b` and room for a configuration.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// Writes the configuration file; `$DIR` stands for this place.
    fn configure(&self, text: &str) -> String {
        let text = text.replace("$DIR", self.path("").to_str().unwrap().trim_end_matches('/'));
        fs::write(self.path("spillway.toml"), text).unwrap();
        self.text("spillway.toml")
    }

    fn check(&self, text: &str) -> Output {
        let file = self.configure(text);
        run(&["check", "--config", &file])
    }
}

#[test]
fn help_and_version_succeed_on_stdout() {
    for (args, expected) in [
        (&["--help"][..], "Commands:"),
        (&["serve", "--help"], "[default: 127.0.0.1:2049]"),
        (&["check", "--help"], "--config <FILE>"),
        (&["--version"], concat!("spillway ", env!("CARGO_PKG_VERSION"), "\n")),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(expected), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn misuse_exits_2_with_one_sentence_and_a_hint() {
    let place = Place::new();
    let (a, state) = (&place.text("a"), &place.text("state"));
    let config = &place.configure("state_dir = \"$DIR/state\"\n[[export]]\npath = \"$DIR/b\"");
    let cases: &[(&[&str], &str)] = &[
        (&[], "a command is missing: serve or check"),
        (&["sevre"], "unrecognized subcommand 'sevre'"),
        (&["check"], "the following required arguments were not provided: --config <FILE>"),
        (&["serve"], "DIR: give a directory to serve, or --config FILE"),
        (&["serve", a, "--color"], "unexpected argument '--color' found"),
        (&["serve", a, a], "unexpected argument "),
        (&["serve", a, "--memory", "3"], "invalid value '3' for '--memory <SIZE>': `3` is not a"),
        (&["serve", a, "--memory", "1MiB"], "--memory: 1MiB of memory is too little"),
        (&["serve", a, "--max-transfer", "1KiB"], "--max-transfer: 1KiB is not a multiple of"),
        (&["serve", a, "--window", "4MiB"], "--window: 4MiB is too little for the write-behind"),
        (
            &["serve", a, "--read-mode", "fast"],
            "invalid value 'fast' for '--read-mode <MODE>': `fast` is no I/O mode; the modes are \
             buffered, dontcache, direct and auto",
        ),
        (
            &["serve", a, "--trace", "read_start,reed"],
            "invalid value 'reed' for '--trace <EVENT[,EVENT...]>': `reed` is no trace event; the \
             events are all, read_start, read_vector_dio, ",
        ),
        (&["serve", a, "--trace", ""], "invalid value '' for '--trace "),
        (&["serve", a, "--listen", "127.0.0.1"], "invalid value '127.0.0.1' for '--listen"),
        (&["serve", a, "--as", "data"], "--as: the export name `data` does not begin with a"),
        (&["serve", a, "--client", "10.0.0.1/8"], "--client: `10.0.0.1/8` has bits beyond"),
        (&["serve", "--config", config, "--as", "/x"], "the following required arguments were"),
        (&["serve", a, "--config", config], &format!("DIR: {config} has exports of its own")),
        (&["serve", a, "--state-dir", a], "--state-dir: the state directory "),
    ];
    for (args, sentence) in cases {
        let state: &[&str] = match args.first() {
            Some(&"serve") if !args.contains(&"--state-dir") => &["--state-dir", state],
            _ => &[],
        };
        assert_told(&run(&[args, state].concat()), 2, sentence);
    }
}

#[test]
fn a_filter_that_cannot_be_read_is_misuse() {
    let place = Place::new();
    let output = spillway().args(["serve", &place.text("a")]).env("RUST_LOG", "=x=").output();
    assert_told(&output.unwrap(), 2, "RUST_LOG: ");
}

#[test]
fn what_is_not_there_exits_1() {
    let place = Place::new();
    let (gone, state) = (&place.text("gone"), &place.text("state"));
    let output = run(&["serve", gone, "--state-dir", state]);
    assert_told(&output, 1, &format!("cannot export {gone}: No such file or directory"));
    let output = run(&["check", "--config", gone]);
    assert_told(&output, 1, &format!("{gone}: cannot be read: No such file or directory"));
    let output = run(&["serve", "--config", gone]);
    assert_told(&output, 1, &format!("{gone}: cannot be read: No such file or directory"));
}

#[test]
fn check_prints_what_a_good_file_means() {
    let place = Place::new();
    let output = place.check(
        "listen = [\"0.0.0.0:2049\", \"[::]:2049\"]\nstate_dir = \"$DIR/state\"\n\
         window = \"8MiB\"\nread_ahead = false\ntrace = [\"read_done\", \"read_start\"]\n\
         [[export]]\npath = \"$DIR/a\"\nname = \"/a\"\nid = 7\nio_cache_read = \"direct\"\n\
         [[export.client]]\nhosts = [\"10.0.0.0/8\", \"localhost\"]\nsquash = \"all\"\n\
         [[export.client]]\nhosts = [\"*\"]\nread_only = true\nsecure_ports = true\n\
         [[export]]\npath = \"$DIR/b\"\nname = \"/b\"\nid = 8\nsync = false\n\
         io_cache_write = \"dontcache\"\n",
    );
    let expected = format!(
        "valid: 2 exports on 0.0.0.0:2049 and [::]:2049, 256MiB of memory, a window of 8MiB, \
         transfers up to 1MiB, no read-ahead, tracing read_start,read_done\n\
         /a from {}, sync, reads direct, writes auto, id 7\n    \
         10.0.0.0/8 localhost: read-write, all squashed to 65534:65534\n    \
         *: read-only, root squashed to 65534:65534, source ports below 1024 only\n\
         /b from {}, async, reads auto, writes dontcache, id 8\n    \
         127.0.0.0/8 ::1: read-write, root squashed to 65534:65534\n",
        place.text("a"),
        place.text("b"),
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
}

#[test]
fn check_tells_line_and_column_of_the_first_error() {
    let place = Place::new();
    let file = place.text("spillway.toml");
    let cases = [
        ("lisen = 1", "1:1: unknown key `lisen`, expected one of `listen`"),
        ("[[export]]\npath = \"$DIR/a\"\nreadonly = true", "3:1: unknown key `readonly`"),
        ("[[export]]\npath = \"$DIR/gone\"", "2:8: cannot export "),
        ("[[export]]\npath = \"$DIR/a\"\n[[export]]\npath = \"$DIR/a\"", "4:8: another export is"),
        (
            "[[export]]\npath = \"$DIR/a\"\nio_cache_write = \"fast\"",
            "3:18: `fast` is no I/O mode; the modes are buffered, dontcache, direct and auto",
        ),
        ("trace = [\"reed\"]", "1:10: `reed` is no trace event; the events are all, read_start, "),
        ("[[export]\n", "1:10: "),
    ];
    for (text, expected) in cases {
        let output = place.check(&format!("state_dir = \"/nonexistent\"\n{text}"));
        // The state directory is on the first line, so each place is one line further down.
        let (line, rest) = expected.split_once(':').unwrap();
        let line = line.parse::<u32>().unwrap() + 1;
        assert_told(&output, 1, &format!("{file}:{line}:{rest}"));
    }
    assert_told(&place.check(""), 1, &format!("{file}: there is no [[export]]"));
}

/// A running server. Killed when dropped, should a test fail before it stops it.
struct Running {
    child: Child,
    /// All it printed when it was ready.
    announced: String,
    address: SocketAddr,
    log: mpsc::Receiver<String>,
}

impl Running {
    /// Starts `serve` with `args` and a line of stdout per export to wait for.
    fn start(mut command: Command, exports: usize) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = lines(child.stderr.take().unwrap());
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut announced = String::new();
        for _ in 0..1 + 3 * exports {
            if stdout.read_line(&mut announced).unwrap() == 0 {
                panic!("stopped at its start: {:?}", log.iter().collect::<Vec<_>>());
            }
        }
        let address = announced.lines().next().unwrap().strip_prefix("listening on ").unwrap();
        let address = address.parse().unwrap();
        Self { child, announced, address, log }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for a line of the log that contains `text`.
    #[track_caller]
    fn wait_for(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with `{text}` ({error}): {seen:#?}"),
            }
        }
    }

    #[track_caller]
    fn assert_serving(&self) {
        TcpStream::connect_timeout(&self.address, PATIENCE).expect("the server listens");
    }

    #[track_caller]
    fn stop(mut self, signal: Signal) {
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

fn serve_directory(place: &Place) -> Command {
    let mut command = spillway();
    command.args(["serve", "--listen", "127.0.0.1:0", "--as", "/data", "--state-dir"]);
    command.arg(place.path("state")).arg(place.path("a"));
    command
}

fn serve_config(config: &str) -> Command {
    let mut command = spillway();
    command.args(["serve", "--config", config]);
    command
}

const ONE_EXPORT: &str = "listen = \"127.0.0.1:0\"\nstate_dir = \"$DIR/state\"\n\
                          [[export]]\npath = \"$DIR/a\"\nname = \"/a\"\n";

#[test]
fn a_free_port_is_announced_and_both_signals_stop_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let running = Running::start(serve_directory(&place), 1);
        let port = running.address.port();
        assert_ne!(port, 0);
        let expected = format!(
            "listening on 127.0.0.1:{port}\nexport /data\n    \
             mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock \
             127.0.0.1:/data /mnt\n    \
             nfs://127.0.0.1/data?version=3&nfsport={port}&mountport={port}\n"
        );
        assert_eq!(running.announced, expected);
        running.assert_serving();
        running.stop(signal);
    }
}

#[test]
fn a_client_that_says_nothing_does_not_hold_up_the_end() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let mut silent = TcpStream::connect(running.address).unwrap();
    running.stop(Signal::TERM);
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    // Closed, in order or by a reset; not left open.
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn an_address_in_use_exits_1_with_the_cause() {
    let place = Place::new();
    let running = Running::start(serve_directory(&place), 1);
    let address = running.address.to_string();
    let other = Place::new();
    let (b, state) = (other.text("b"), other.text("state"));
    let output = run(&["serve", &b, "--listen", &address, "--state-dir", &state]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let sentence = stderr.lines().find(|line| line.starts_with("spillway: ")).unwrap_or(&stderr);
    assert!(sentence.contains(&address) && sentence.contains("in use"), "{stderr}");
    running.stop(Signal::TERM);
}

#[test]
fn a_good_reload_is_applied_and_a_bad_one_is_refused() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let running = Running::start(serve_config(&config), 1);

    place.configure(&format!("{ONE_EXPORT}[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\n"));
    running.signal(Signal::HUP);
    let line = running.wait_for("reloaded");
    assert!(line.contains("INFO") && line.contains("added /b"), "{line}");

    place.configure(&format!("{ONE_EXPORT}colour = 1\n"));
    running.signal(Signal::HUP);
    let line = running.wait_for("reload refused");
    assert!(line.contains("WARN"), "{line}");
    assert!(line.contains("spillway.toml:6:1: unknown key `colour`"), "{line}");

    place.configure(ONE_EXPORT);
    running.signal(Signal::HUP);
    assert!(running.wait_for("reloaded").contains("removed /b"));
    running.assert_serving();
    running.stop(Signal::TERM);
}

#[test]
fn keys_that_need_a_restart_are_named() {
    let place = Place::new();
    let config = place.configure(ONE_EXPORT);
    let running = Running::start(serve_config(&config), 1);
    place.configure(&format!("memory = \"64MiB\"\ndata_threads = 2\n{ONE_EXPORT}"));
    running.signal(Signal::HUP);
    let line = running.wait_for("restart");
    assert!(line.contains("WARN") && line.contains("memory, data_threads"), "{line}");
    running.wait_for("reloaded");
    running.assert_serving();
    running.stop(Signal::TERM);
}

#[test]
fn the_service_manager_is_told() {
    let place = Place::new();
    let path = place.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = serve_directory(&place);
    command.env("NOTIFY_SOCKET", Path::new(&path));
    let running = Running::start(command, 1);
    let next = || {
        let mut message = [0; 256];
        let len = manager.recv(&mut message).expect("the server tells");
        String::from_utf8_lossy(&message[..len]).into_owned()
    };
    assert_eq!(next(), "READY=1\n");
    running.signal(Signal::HUP);
    let reloading = next();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(next(), "READY=1\n");
    running.signal(Signal::TERM);
    assert_eq!(next(), "STOPPING=1\n");
    running.stop(Signal::TERM);
}
