//! An NFS version 3 client in user space: typed calls, a file API with write-back and cached
//! listings above them, and a FUSE mount.
#![forbid(unsafe_code)]

pub mod attribute_cache;
pub mod change;
pub mod directory;
pub mod directory_cache;
pub mod error;
pub mod export;
pub mod file;
pub mod file_system;
pub mod identity;
pub mod inode;
mod inode_table;
pub mod mount;
pub mod mount3;
pub mod mount_options;
pub mod nfs3;
pub mod nfs_url;
pub mod options;
pub mod portmap;
pub mod read_ahead;
mod read_calls;
pub mod rpc;
pub mod trace;
pub mod write_back;
mod write_calls;

pub use directory::Directory;
pub use error::{Error, Result};
pub use file::{File, OpenFlags};
pub use file_system::FileSystem;
pub use identity::Identity;
pub use inode::Inode;
pub use mount_options::{FuseOptions, MountRequest};
pub use nfs_url::NfsUrl;
pub use nfs3::Nfs3;
pub use options::{MountOptions, Recovery, UseReaddirplus};
pub use write_back::{WriteBack, WriteBackConfig, WriteBudget};
