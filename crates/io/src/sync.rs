//! The locks and channels of the parts whose interleavings are checked.
//!
//! Built with `--cfg shuttle`, they are those of the [shuttle] checker, which runs a test many
//! times and chooses which thread continues at every use of one. So the shipped code is checked,
//! and not a model of it. In every other build they are the plain ones.
//!
//! [shuttle]: https://docs.rs/shuttle

#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

#[cfg(not(shuttle))]
pub(crate) use std::thread;

#[cfg(not(shuttle))]
pub(crate) use tokio::sync::oneshot;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

#[cfg(shuttle)]
pub(crate) use shuttle::thread;

#[cfg(shuttle)]
pub(crate) mod oneshot;

#[cfg(all(test, shuttle))]
pub(crate) mod checker;
