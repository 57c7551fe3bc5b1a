//! Errors of WRITE and COMMIT, until they are reported.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The latest error of a file.
#[derive(Default)]
pub(super) struct Errors {
    latest: Option<Error>,
    /// Number of errors so far.
    count: u64,
    /// Whether the latest error was reported to any open file.
    is_reported: bool,
}

/// The errors that an open file was shown.
#[derive(Debug)]
pub(super) struct ErrorCursor {
    /// The number of errors when the latest one was reported to it.
    reported: AtomicU64,
    /// The number when [`Errors::peek`] returned the latest one; 0 if it did not.
    peeked: AtomicU64,
}

impl Errors {
    pub(super) fn record(&mut self, error: Error) {
        self.latest = Some(error);
        self.count += 1;
        self.is_reported = false;
    }

    /// Whether the latest error was reported to no open file.
    pub(super) fn is_unreported(&self) -> bool {
        self.latest.is_some() && !self.is_reported
    }

    /// For a file opened now, to which later errors are reported, and the latest one if it was
    /// reported to none, so that no error is lost between a close and an open.
    pub(super) fn cursor(&self) -> ErrorCursor {
        let reported = self.count - u64::from(self.is_unreported());
        ErrorCursor { reported: AtomicU64::new(reported), peeked: AtomicU64::new(0) }
    }

    /// Whether [`check`](Self::check) would return an error.
    #[inline]
    pub(super) fn has(&self, cursor: &ErrorCursor) -> bool {
        cursor.reported.load(Ordering::Relaxed) != self.count
    }

    /// Returns the latest error, once for each cursor.
    #[inline]
    pub(super) fn check(&mut self, cursor: &ErrorCursor) -> Result<()> {
        if !self.has(cursor) {
            return Ok(());
        }
        cursor.reported.store(self.count, Ordering::Relaxed);
        self.is_reported = true;
        self.latest.clone().map_or(Ok(()), Err)
    }

    /// Returns what [`check`](Self::check) would, and leaves it for that.
    pub(super) fn peek(&self, cursor: &ErrorCursor) -> Result<()> {
        if !self.has(cursor) {
            return Ok(());
        }
        cursor.peeked.store(self.count, Ordering::Relaxed);
        self.latest.clone().map_or(Ok(()), Err)
    }

    /// The file of `cursor` is closed: the latest error counts as reported to it, if
    /// [`peek`](Self::peek) has returned it.
    pub(super) fn close(&mut self, cursor: &ErrorCursor) {
        if cursor.peeked.load(Ordering::Relaxed) == self.count {
            // `peek` has returned it.
            let _ = self.check(cursor);
        }
    }

    /// Returns the latest error if it was reported to none.
    pub(super) fn check_unreported(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_reported, true) {
            return Ok(());
        }
        self.latest.clone().map_or(Ok(()), Err)
    }
}

impl ErrorCursor {
    /// Undoes [`Errors::peek`].
    pub(super) fn unpeek(&self) {
        self.peeked.store(0, Ordering::Relaxed);
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
    fn each_open_file_is_reported_once() {
        let mut errors = Errors::default();
        let [first, second] = [errors.cursor(), errors.cursor()];
        assert!(errors.check(&first).is_ok());
        errors.record(error(Status::Io));
        errors.record(error(Status::Nospc));
        assert!(errors.check(&first).unwrap_err().is(Status::Nospc));
        assert!(errors.check(&first).is_ok());
        let late = errors.cursor();
        assert!(errors.check(&late).is_ok(), "it was opened after the error was reported");
        assert!(errors.check(&second).unwrap_err().is(Status::Nospc));
        assert!(errors.check(&second).is_ok());
        assert!(errors.check_unreported().is_ok());
    }

    #[test]
    fn an_error_that_is_peeked_at_is_reported_to_the_same_file_or_by_its_close() {
        let mut errors = Errors::default();
        let [first, second] = [errors.cursor(), errors.cursor()];
        errors.record(error(Status::Nospc));
        for _ in 0..2 {
            assert!(errors.peek(&first).unwrap_err().is(Status::Nospc));
        }
        assert!(errors.is_unreported());
        assert!(errors.check(&first).unwrap_err().is(Status::Nospc));
        assert!(errors.peek(&first).is_ok());
        assert!(errors.peek(&second).unwrap_err().is(Status::Nospc));
        errors.record(error(Status::Io));
        errors.close(&second);
        assert!(errors.is_unreported(), "`second` was shown the earlier error only");
        assert!(errors.peek(&second).unwrap_err().is(Status::Io));
        errors.close(&second);
        assert!(!errors.is_unreported());
        assert!(errors.check(&first).unwrap_err().is(Status::Io));
    }

    #[test]
    fn an_unreported_error_is_left_for_the_next_open() {
        let mut errors = Errors::default();
        errors.record(error(Status::Dquot));
        let next = errors.cursor();
        assert!(errors.check(&next).unwrap_err().is(Status::Dquot));
        errors.record(error(Status::Io));
        assert!(errors.check_unreported().unwrap_err().is(Status::Io));
        assert!(errors.check_unreported().is_ok());
        assert!(errors.check(&next).is_err(), "the open file gets each error");
    }
}
