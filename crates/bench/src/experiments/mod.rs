//! The experiments, each with its options.

mod course;
pub mod uncached;
