//! The commands' output: pure functions from values to coreutils' text.

pub(crate) mod columns;
pub(crate) mod mode;
pub(crate) mod mode_change;
pub(crate) mod owners;
pub(crate) mod quote;
pub(crate) mod size;
pub(crate) mod time;
