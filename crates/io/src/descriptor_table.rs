//! The table of open descriptors: its limit, and its room.

use std::io;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's soft limit on open descriptors to its hard limit and returns the limit now
/// in force (`u64::MAX` when there is none).
///
/// The usual soft limit of 1024 exists for programs that still call `select`; a file server that
/// keeps files open outgrows it at once. A refused raise is not an error: the old limit is returned
/// and the caller sizes its caches by it.
pub fn raise_open_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, "cannot raise the soft limit on open files to the hard limit");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Gives the kernel's table room for at least `descriptors`, which lie below the limit.
///
/// The kernel doubles a full table while a thread waits in `accept4`, `openat2` or another call,
/// and in a process with threads that call, and each other call for a new descriptor, waits for an
/// RCU grace period: seconds on busy processors (`expand_fdtable` in the kernel's `fs/file.c`). A
/// table never shrinks, so only a call of this function waits. The room costs 8 bytes for each
/// descriptor.
///
/// # Errors
/// `descriptors` is beyond the limit, or memory is short.
pub fn reserve_descriptors(descriptors: usize) -> io::Result<()> {
    let last = i32::try_from(descriptors.saturating_sub(1)).unwrap_or(i32::MAX);
    fcntl_dupfd_cloexec(eventfd(0, EventfdFlags::CLOEXEC)?, last)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn soft_limit_reaches_hard_limit() {
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        assert_eq!(raise_open_file_limit(), hard);
        assert_eq!(raise_open_file_limit(), hard, "a second call changes nothing");
    }

    #[test]
    fn table_has_the_room_that_was_reserved() {
        let room = || -> usize {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
            line.trim().parse().unwrap()
        };
        let wanted = usize::try_from(raise_open_file_limit().min(1 << 14)).unwrap();
        assert!(room() < wanted, "the table has room for {} already", room());
        reserve_descriptors(wanted).unwrap();
        assert!(room() >= wanted, "room for {} of {wanted}", room());
    }

    #[test]
    fn room_beyond_the_limit_is_refused() {
        let limit = usize::try_from(raise_open_file_limit()).unwrap();
        assert!(reserve_descriptors(limit.saturating_add(1)).is_err());
    }
}
