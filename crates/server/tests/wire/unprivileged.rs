//! The same promises without any privilege: handles are then names that the server remembers, and
//! everyone acts as the user it runs as.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::fixture::is_root;

/// The subjects that do not need other users, other hosts or mounts.
const SUBJECTS: [&str; 8] = [
    "durability::",
    "exports::",
    "handles::",
    "io_modes::a_file_that_forbids",
    "namespace::",
    "nfs4::delegations::closed_for_writing::a_file_is_written_after",
    "retransmission::",
    "wcc::",
];

/// Runs the tests of these subjects again, as a user.
#[track_caller]
fn run_as(id: u32) {
    // Not by its path: the user may not be allowed into the directory that it was built in.
    let mut tests = Command::new("/proc/self/exe");
    // Tests that need root are skipped, even in CI. The groups of root are given up with its id.
    tests.args(SUBJECTS).env_remove("CI").uid(id).gid(id);
    let output = tests.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "as user {id}: {text}");
}

#[test]
fn an_ordinary_user_can_serve() {
    if is_root() {
        run_as(12_345);
    }
}

/// The server acts as the anonymous user to detect whether it can change its identity.
#[test]
fn the_anonymous_user_can_serve() {
    if is_root() {
        run_as(65_534);
    }
}
