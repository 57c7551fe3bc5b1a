//! Experiments on NFS servers and file systems that anybody can repeat: `spillway bench`.
//!
//! An experiment puts loads on subjects (servers or I/O modes) in turns, watches
//! processes, caches and devices meanwhile, and leaves records ([`record`]). All that is
//! shown, tables, reports and comparisons, is made from records alone.
#![forbid(unsafe_code)]

pub mod compare;
mod error;
pub mod experiments;
pub mod figure;
pub mod load;
pub mod null_server;
pub mod numeral;
pub mod record;
mod record_stream;
pub mod recorded;
pub mod rig;
#[cfg(test)]
mod samples;
pub mod statistics;
pub mod table;

pub use error::{Error, Result};
