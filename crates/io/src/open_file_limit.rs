//! The limit on open descriptors.

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
        tracing::warn!(%error, "the soft limit on open files stays below the hard limit");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_reaches_hard_limit() {
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        assert_eq!(raise_open_file_limit(), hard);
        assert_eq!(raise_open_file_limit(), hard, "a second call changes nothing");
    }
}
