//! The NFSv3 server: configuration, exports and the programs that serve them.

pub mod config;
pub mod export_table;
