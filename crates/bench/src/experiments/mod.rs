//! The experiments, each with its options.

mod course;
pub mod export;
pub mod readdir;
mod scratch_directory;
pub mod uncached;
pub mod writeback;

#[cfg(test)]
mod own_server;
