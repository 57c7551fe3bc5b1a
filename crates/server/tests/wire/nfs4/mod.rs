//! NFS version 4.1 and 4.2, RFC 8881 and RFC 7862.

mod callbacks;
pub(crate) mod client;
mod courtesy;
mod delegations;
mod extension;
mod files;
mod hostile;
mod locks;
mod opens;
mod pseudo_root;
mod rate_limits;
mod readdir;
mod restart;
mod sequences;
mod sessions;
mod shares;
mod stability;
mod xattr;
