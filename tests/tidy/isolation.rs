//! A test that is killed leaves nothing behind.

use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::root;
use crate::skip::skip;

/// Mounts, starts a process, and is killed.
const KILLED: &str =
    "mount -t tmpfs none \"$1\" || exit 3; touch \"$1/file\"; sleep 60 & kill -KILL $$";

#[test]
fn mounts_and_processes_of_a_killed_test_end_with_it() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root mounts");
    }
    let dir = TempDir::new().unwrap();
    let (tests, mounted) = (dir.path().join("deps"), dir.path().join("mounted"));
    std::fs::create_dir(&tests).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    symlink("/bin/sh", tests.join("test")).unwrap();
    let began = Instant::now();
    let mut test = Command::new(root().join("tests/isolate"));
    test.arg(tests.join("test")).args(["-c", KILLED, "test"]).arg(&mounted);
    // Its end is that of all processes that have its standard output.
    let ended = test.output().unwrap();
    if ended.status.code() == Some(3) {
        return skip(String::from_utf8_lossy(&ended.stderr));
    }
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "a process goes on");
    assert!(!mounted.join("file").exists(), "a mount stays");
}

#[test]
fn cargo_isolates_tests() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    assert!(read(".cargo/config.toml").contains("runner = [\"tests/isolate\"]"));
    // It replaces the runner of the configuration.
    assert!(read(".ci/run").contains("'$PWD/tests/isolate']"));
}
