//! Tables and properties of the bookkeeping.
