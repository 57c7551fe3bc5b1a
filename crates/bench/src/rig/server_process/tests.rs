use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A program that runs `script` instead of serving; `$listen` is its `--listen`.
fn stand_in(directory: &Path, script: &str) -> PathBuf {
    let program = directory.join("stand-in");
    let text = format!("#!/bin/sh\nlisten=$5\n{script}\n");
    // Written by another process: what is open for writing cannot be run, and a child that
    // another test starts just now would hold it open for a moment.
    let status = Command::new("sh")
        .args(["-c", "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(&program)
        .arg(text)
        .status()
        .unwrap();
    assert!(status.success());
    assert!(fs::metadata(&program).unwrap().permissions().mode() & 0o111 != 0);
    program
}

fn started(script: &str) -> (tempfile::TempDir, Result<ServerProcess>) {
    let directory = tempfile::tempdir().unwrap();
    let options = ServerOptions::new(stand_in(directory.path(), script), directory.path().into());
    let server = ServerProcess::start(&options);
    (directory, server)
}

/// Answers SIGUSR1 and SIGTERM.
const SERVES: &str = r#"
trap 'printf "2026 INFO a line\ncalls 7\nread_bytes 4096\n" >&2' USR1
trap 'exit 0' TERM
echo "listening on 127.0.0.1:40961"
echo 'export /bench'
while :; do sleep 0.01; done"#;

#[test]
fn a_server_reports_its_address_and_counters_and_stops() {
    let (_directory, server) = started(SERVES);
    let server = server.unwrap();
    assert_eq!(server.address(), "127.0.0.1:40961".parse().unwrap());
    assert_eq!(server.url(), "nfs://127.0.0.1/bench?version=3&nfsport=40961&mountport=40961");
    let expected = [("calls".to_owned(), 7), ("read_bytes".to_owned(), 4096)].into();
    assert_eq!(server.counters().unwrap(), expected);
    assert_eq!(server.counters().unwrap(), expected);
    assert!(server.watched().rss_bytes().unwrap() > 0);
    let words = fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap();
    let configuration = words.split('\0').skip_while(|word| *word != "--config").nth(1).unwrap();
    let state = Path::new(configuration).parent().unwrap().to_owned();
    assert!(state.exists());
    server.stop().unwrap();
    assert!(!state.exists());
}

#[test]
fn a_server_that_does_not_start_reports_why() {
    let (_directory, server) = started("echo 'error: no such thing' >&2; exit 1");
    let error = server.unwrap_err();
    assert!(matches!(error, Error::Server(_)));
    assert_eq!(error.to_string(), "the server did not start: error: no such thing");
}

#[test]
fn a_server_that_dies_is_reported() {
    let (_directory, server) = started(
        "echo 'listening on 127.0.0.1:40961'; echo 'out of luck' >&2; sleep 0.2; kill -KILL $$",
    );
    let server = server.unwrap();
    while server.check_alive().is_ok() {
        thread::sleep(Duration::from_millis(10));
    }
    let error = server.counters().unwrap_err().to_string();
    assert!(error.starts_with("the server died"), "{error}");
    assert!(error.contains("out of luck"), "{error}");
    assert!(server.stop().is_err());
}

#[test]
fn a_server_that_fails_while_stopping_is_reported() {
    let script = "trap 'echo lost >&2; exit 3' TERM\necho 'listening on 127.0.0.1:40961'\n\
        while :; do sleep 0.01; done";
    let (_directory, server) = started(script);
    let error = server.unwrap().stop().unwrap_err().to_string();
    assert!(error.starts_with("the server failed while it stopped, exit status: 3"), "{error}");
    assert!(error.contains("lost"), "{error}");
}

#[test]
fn a_dropped_server_is_killed() {
    let (_directory, server) = started(SERVES);
    let server = server.unwrap();
    let pid = server.pid();
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_program_that_is_missing_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let options = ServerOptions::new("/missing/program".into(), directory.path().into());
    let error = ServerProcess::start(&options).unwrap_err().to_string();
    // The rest is the shell's to say.
    assert!(error.starts_with("the server did not start: "), "{error}");
    assert!(error.contains("/missing/program: "), "{error}");
}

#[test]
fn the_command_line_is_as_asked() {
    let mut options = ServerOptions::new("/bin/spillway".into(), "/".into());
    options.read_mode = Some(IoMode::DontCache);
    options.write_mode = Some(IoMode::Direct);
    options.flags = vec!["--no-read-ahead".into()];
    options.address = "::1".parse().unwrap();
    let command = options.command(Path::new("/state"));
    let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
    let expected = "serve --config /state/spillway.toml --listen [::1]:0 --state-dir /state/state \
                    --read-mode dontcache --write-mode direct --no-read-ahead";
    assert_eq!(words[..4], ["-c", BEGIN, "sh", "/bin/spillway"]);
    assert_eq!(words[4..].join(" "), expected);
    assert_eq!(command.get_program(), "sh");
}

#[test]
fn odd_directories_are_quoted() {
    assert_eq!(toml_escaped("/srv/a \"b\" \\ é\n"), "/srv/a \\\"b\\\" \\\\ é\\u000A");
    assert_eq!(
        ServerProcess::url_at("[::1]:2049".parse().unwrap()),
        "nfs://[::1]/bench?version=3&nfsport=2049&mountport=2049"
    );
}

#[test]
fn figures_are_distinguished_from_other_lines() {
    assert_eq!(figure("read_bytes 12"), Some(("read_bytes", 12)));
    for line in ["2026-11-22T06:00:00Z  INFO stopped", "calls", "calls x", " 5", "Calls 5", ""] {
        assert_eq!(figure(line), None, "{line}");
    }
}

#[test]
fn lines_may_arrive_in_parts_and_last_words_are_bounded() {
    let mut words = Words::default();
    let mut begun = Vec::new();
    words.take(&mut begun, b"listening on 127.0.0.1");
    assert_eq!(words.address, None);
    words.take(&mut begun, b":1\nlistening on 127.0.0.1:2\ncalls 1");
    assert_eq!(words.address, Some("127.0.0.1:1".parse().unwrap()));
    assert_eq!((words.pieces, words.figures.len()), (0, 0));
    words.take(&mut begun, b"0\n");
    assert_eq!((words.pieces, words.figures["calls"]), (1, 10));
    for _ in 0..4 * WORDS_BYTES_MAX / 16 {
        words.take(&mut begun, "sixteen byteß!!\n".as_bytes());
    }
    assert!(words.text.len() <= WORDS_BYTES_MAX && words.text.ends_with("byteß!!\n"));
    words.take(&mut begun, &vec![b'x'; 2 * WORDS_BYTES_MAX]);
    assert!(begun.len() <= WORDS_BYTES_MAX);
}
