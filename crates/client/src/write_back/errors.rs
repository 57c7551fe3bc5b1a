//! Errors of WRITE and COMMIT that nobody waited for.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The latest error of a file, and who has been told.
#[derive(Default)]
pub(super) struct Errors {
    latest: Option<Error>,
    /// How many errors there were.
    count: u64,
    /// Somebody has been told of the latest.
    is_told: bool,
}

/// Up to which error an open file has been told.
#[derive(Debug)]
pub(super) struct ErrorCursor(AtomicU64);

impl Errors {
    pub(super) fn record(&mut self, error: Error) {
        self.latest = Some(error);
        self.count += 1;
        self.is_told = false;
    }

    /// For a file that is opened now. It is told of the errors to come; and of the latest if nobody
    /// has been, so that none is lost between a close and an open.
    pub(super) fn cursor(&self) -> ErrorCursor {
        let unheard = self.latest.is_some() && !self.is_told;
        ErrorCursor(AtomicU64::new(self.count - u64::from(unheard)))
    }

    /// The latest error, once for each cursor.
    #[inline]
    pub(super) fn check(&mut self, cursor: &ErrorCursor) -> Result<()> {
        if cursor.0.load(Ordering::Relaxed) == self.count {
            return Ok(());
        }
        cursor.0.store(self.count, Ordering::Relaxed);
        self.is_told = true;
        self.latest.clone().map_or(Ok(()), Err)
    }

    /// The latest error if nobody has been told.
    pub(super) fn check_unheard(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_told, true) {
            return Ok(());
        }
        self.latest.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use proto::nfs3::{Procedure, Status};

    use super::*;

    fn error(status: Status) -> Error {
        Error::Nfs { procedure: Procedure::Write, status }
    }

    #[test]
    fn each_open_file_is_told_once() {
        let mut errors = Errors::default();
        let [first, second] = [errors.cursor(), errors.cursor()];
        assert!(errors.check(&first).is_ok());
        errors.record(error(Status::Io));
        errors.record(error(Status::Nospc));
        assert!(errors.check(&first).unwrap_err().is(Status::Nospc));
        assert!(errors.check(&first).is_ok());
        let late = errors.cursor();
        assert!(errors.check(&late).is_ok(), "it was opened after the error was told");
        assert!(errors.check(&second).unwrap_err().is(Status::Nospc));
        assert!(errors.check(&second).is_ok());
        assert!(errors.check_unheard().is_ok());
    }

    #[test]
    fn an_error_that_nobody_heard_is_kept_for_the_next() {
        let mut errors = Errors::default();
        errors.record(error(Status::Dquot));
        let next = errors.cursor();
        assert!(errors.check(&next).unwrap_err().is(Status::Dquot));
        errors.record(error(Status::Io));
        assert!(errors.check_unheard().unwrap_err().is(Status::Io));
        assert!(errors.check_unheard().is_ok());
        assert!(errors.check(&next).is_err(), "the open file was promised to be told");
    }
}
