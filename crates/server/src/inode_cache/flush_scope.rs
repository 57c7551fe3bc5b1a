//! The scope of a flush: the data alone, or all attributes too.

/// The scope of a flush, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flush {
    /// The data, and what is needed to read it back (`fdatasync`).
    Data,
    /// The data and all attributes (`fsync`).
    All,
}
