//! Standard output, which may be missing.

use std::io::{self, StdoutLock, Write};

use rustix::io::Errno;

/// Standard output, locked. Where the process was started without one, everything fails with EBADF,
/// as in a program in C; Rust's own standard output would report success.
pub(crate) struct Stdout(StdoutLock<'static>);

pub(crate) fn lock() -> Stdout {
    Stdout(io::stdout().lock())
}

/// # Errors
/// EBADF: the process was started without standard output.
pub(crate) fn check() -> io::Result<()> {
    if ::io::stdout_was_closed() { Err(Errno::BADF.into()) } else { Ok(()) }
}

/// Write errors of standard output that the kernel reports no earlier than at close(2).
///
/// # Errors
/// Those of [`::io::check_close`].
pub(crate) fn check_close() -> io::Result<()> {
    ::io::check_close(io::stdout())
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        check()?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
