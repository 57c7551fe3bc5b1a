//! How a test ends early on a machine that lacks what it needs.

use std::fmt::Display;

/// Prints `TEST skipped: WHY`. For the lack of what the machine of CI has: a Debian, on which the
/// tests run as root, with loop devices, FUSE, `/dev/shm`, ext4, XFS and the programs of
/// `tests/system/install`.
///
/// # Panics
/// If `CI` is `true`: there a skip would hide that the test no longer runs anywhere.
#[track_caller]
pub(crate) fn skip(why: impl Display) {
    let in_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(!in_ci, "skipped with CI=true: {why}");
    skip_in_ci_too(why);
}

/// The same for what the machine of CI may lack for good: a feature of newer kernels or of another
/// file system for the temporary directory, IPv6, control groups, free memory.
pub(crate) fn skip_in_ci_too(why: impl Display) {
    let thread = std::thread::current();
    eprintln!("{} skipped: {why}", thread.name().unwrap_or("a test"));
}
