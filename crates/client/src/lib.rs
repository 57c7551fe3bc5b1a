//! An NFS version 3 client in user space: typed calls, a file API with write-back and cached
//! listings above them, and a FUSE mount.
//!
//! [`FileSystem`] mounts an export of any server and operates on its objects; [`File`] and
//! [`Directory`] are open objects. [`Nfs3`] has the calls themselves, without caches.
//!
//! ```
//! use std::sync::Arc;
//! use spillway_client::{FileSystem, Identity, MountOptions, NfsUrl, OpenFlags};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use server::config::{Config, Overrides};
//! # let (dir, state) = (tempfile::tempdir()?, tempfile::tempdir()?);
//! # let overrides = Overrides {
//! #     listen: vec!["127.0.0.1:0".parse()?],
//! #     state_dir: Some(state.path().join("state")),
//! #     ..Overrides::default()
//! # };
//! # let toml = format!("[[export]]\npath = {:?}\nname = '/data'\nsquash = 'none'", dir.path());
//! # let config = Config::parse(&toml, std::path::Path::new("example.toml"), &overrides)?;
//! # let server = server::Server::start(config).await?;
//! # let address = server.local_addrs()[0];
//! let url: NfsUrl = format!("nfs://{address}/data").parse()?;
//! let me = Arc::new(Identity::of_process());
//! let options = MountOptions::default();
//! let file_system = FileSystem::mount(&url, &me, &options, Arc::default()).await?;
//! let root = file_system.root();
//!
//! let inode = file_system.create(&root, b"greeting", 0o644, true).await?;
//! let file = file_system.open_created(&inode, OpenFlags { write: true, ..Default::default() })?;
//! file.write_at(0, b"hello").await?;
//! // All data is on the server's stable storage, or this returns the error.
//! file.close().await?;
//!
//! let file = file_system.open(&inode, OpenFlags { read: true, ..Default::default() }).await?;
//! assert_eq!(file.read_at(0, 100).await?, b"hello"[..]);
//!
//! let directory = file_system.open_dir(&root).await?;
//! let page = directory.entries_after(0).await?;
//! assert!(page.iter().any(|entry| entry.name == b"greeting"));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod cache;
mod directory;
pub mod error;
pub mod export;
mod file;
mod file_system;
#[cfg(test)]
mod fixture;
mod identity;
mod inode;
mod listing_progress;
pub mod mount;
pub mod mount3;
pub mod mount_options;
pub mod nfs3;
pub mod nfs_url;
mod options;
pub mod portmap;
pub mod trace;

pub use cache::directory::{Entry, PageSlice};
pub use directory::Directory;
pub use error::{Error, Result};
pub use file::{File, OpenFlags};
pub use file_system::FileSystem;
pub use identity::Identity;
pub use inode::Inode;
pub use listing_progress::ListingProgress;
pub use mount_options::{FuseOptions, MountRequest};
pub use nfs_url::NfsUrl;
pub use nfs3::Nfs3;
pub use options::{MountOptions, Recovery, UseReaddirplus};
