//! Tests that run as root of a user namespace.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::skip::skip;

/// Set in the process of such a test.
const IN_NAMESPACE: &str = "SPILLWAY_TEST_IN_USER_NAMESPACE";

/// Runs the test of this path again as root of a user namespace with these maps of users and of
/// groups, in a directory that `prepare` has filled outside of it. False in there: the test goes
/// on. `setgroups` is what the namespace does with this call.
///
/// # Panics
/// The test has failed.
#[track_caller]
pub(crate) fn ran_in_user_namespace(
    test: &str,
    [users, groups]: [&str; 2],
    setgroups: &str,
    prepare: impl FnOnce(&Path),
) -> bool {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        skip("a map of several users takes root");
        return true;
    }
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    // A program that is executed after the map was written has the capabilities of root.
    let command = "echo && read -r _ && exec \"$@\"";
    let mut namespace = Command::new("unshare")
        .args(["--user", "sh", "-c", command, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(IN_NAMESPACE, "1")
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(namespace.stdout.take().unwrap());
    let mut text = String::new();
    if stdout.read_line(&mut text).unwrap() == 0 {
        namespace.wait().unwrap();
        skip("there are no user namespaces");
        return true;
    }
    let write =
        |file: &str, text: &str| fs::write(format!("/proc/{}/{file}", namespace.id()), text);
    if let Err(error) = write("uid_map", users) {
        drop(namespace.stdin.take());
        namespace.wait().unwrap();
        skip(format!("a map of several users: {error}"));
        return true;
    }
    write("setgroups", setgroups).unwrap();
    write("gid_map", groups).unwrap();
    namespace.stdin.take().unwrap().write_all(b"\n").unwrap();
    stdout.read_to_string(&mut text).unwrap();
    assert!(namespace.wait().unwrap().success() && text.contains("1 passed"), "{text}");
    true
}
