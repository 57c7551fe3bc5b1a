//! The two experiments that this client has to stand: a large directory listed while it changes,
//! and files written in tiny pieces with many calls at once. Each prints what it measured.
//!
//! As they are they take seconds and assert what does not depend on the machine. At full size, and
//! against any server:
//!
//! ```text
//! SPILLWAY_LISTING_ENTRIES=500000 SPILLWAY_WRITE_MIB=64 \
//!     cargo test --release -p spillway-client --test experiments -- --nocapture --test-threads=1
//! ```
//!
//! `SPILLWAY_EXPERIMENT_URL=nfs://host/export` takes a server that is there in place of one in this
//! process; it must trust root.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;
mod tap;

mod listing;
mod writing;
