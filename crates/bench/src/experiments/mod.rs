//! The experiments, each with its options.

mod course;
pub mod export;
pub mod readdir;
pub mod uncached;

#[cfg(test)]
mod own_server;
