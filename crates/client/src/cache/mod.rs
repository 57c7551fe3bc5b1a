//! The caches of a mount: attributes, directory listings, data read ahead and data to be written
//! back, and the detection of the changes that invalidate them.
//!
//! The caches know no inodes. They make calls through a trait each, which the inodes and open files
//! implement.

pub(crate) mod attributes;
pub(crate) mod change;
pub(crate) mod directory;
pub(crate) mod read_ahead;
pub(crate) mod write_back;
