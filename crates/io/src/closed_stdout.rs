//! Whether this process was started without standard output.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether standard output was closed when the process started. Rust's runtime then opens
/// `/dev/null` in its place, and all that is written there seems to succeed.
#[must_use]
pub fn stdout_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn note_stdout() {
    // SAFETY: the call takes a number, which need not be that of an open descriptor, and no memory.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: the section holds pointers to functions that the C library calls before `main`, and so
// before Rust's runtime, with arguments that a function without parameters ignores. `note_stdout`
// uses nothing that the runtime has to prepare.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_STDOUT: extern "C" fn() = note_stdout;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdout_of_this_test_is_open() {
        assert!(!stdout_was_closed());
    }
}
