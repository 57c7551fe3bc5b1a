//! Tests whose memory, limits or descriptors must not be those of the tests beside them.

use std::process::Command;

/// Set in the process of such a test.
const OWN_PROCESS: &str = "SPILLWAY_TEST_IN_OWN_PROCESS";

/// Runs the test of this path in a process of its own, and shows why it was skipped. False in that
/// process: the test goes on.
///
/// # Panics
/// The test has failed.
#[track_caller]
pub(crate) fn ran_in_own_process(test: &str) -> bool {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return false;
    }
    let output = Command::new("/proc/self/exe")
        .args(["--exact", test, "--nocapture"])
        .env(OWN_PROCESS, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text.lines().filter(|line| line.contains("skipped:")).for_each(|line| eprintln!("{line}"));
    true
}
