//! The limit on the size of files (`RLIMIT_FSIZE`).

use std::io;

/// Has a write past the process's limit on file sizes fail with `EFBIG`, as POSIX has it, and the
/// process live: by default the kernel sends `SIGXFSZ` too, which ends it.
///
/// # Errors
/// None that the system documents for this signal.
pub fn survive_file_size_limit() -> io::Result<()> {
    // SAFETY: SIG_IGN is a valid disposition for SIGXFSZ, and replaces no handler of ours.
    let old = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if old == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_is_ignored() {
        survive_file_size_limit().unwrap();
        // SAFETY: raising a signal that is ignored has no effect; one that is not ends the test.
        assert_eq!(unsafe { libc::raise(libc::SIGXFSZ) }, 0);
    }
}
