//! Why an experiment could not be carried out, by whose fault it is.

use std::io;

/// A failure of an experiment, or of reading records.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments make no sense.
    #[error("{0}")]
    Misuse(String),
    /// This machine, or this user, cannot do it.
    #[error("{what}")]
    Machine {
        /// The operation, or its object.
        what: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The output could not be written to stdout.
    #[error("write error")]
    Stdout(#[source] io::Error),
    /// A program that is needed is missing or failed; with its last words.
    #[error("{0}")]
    Program(String),
    /// The server under test died, or does not answer as the protocol wants.
    #[error("{0}")]
    Server(String),
    /// A call to the server failed.
    #[error("{what}")]
    Call {
        /// The operation, or its object.
        what: String,
        /// How it failed.
        #[source]
        source: client::Error,
    },
    /// The user asked to stop.
    #[error("interrupted; the measurements until then are kept")]
    Interrupted,
    /// A file of records is not one.
    #[error("{file}, line {line}: {why}")]
    Record {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: usize,
        /// The fault of the line.
        why: String,
    },
}

/// A result of an experiment's parts.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err`: the machine refused `what`.
    pub fn machine(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Machine { what, source }
    }

    /// Whether a server that answers refused a call.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Call { source: client::Error::Nfs { .. }, .. })
    }

    /// For `map_err`: the call `what` failed.
    pub fn call(what: impl Into<String>) -> impl FnOnce(client::Error) -> Self {
        let what = what.into();
        move |source| Self::Call { what, source }
    }
}
