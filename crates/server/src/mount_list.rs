//! The list that MOUNT's DUMP returns (RFC 1813 §5.2.2).

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use proto::mount3::MountEntry;
use proto::xdr::{Writer, encode_list};

/// Mounts remembered. The list is advisory: clients that crash never leave it, so the oldest make
/// room.
const MOUNTS_MAX: usize = 1024;

/// The mounts that clients have reported.
#[derive(Default)]
pub(crate) struct MountList(Mutex<VecDeque<Mounted>>);

#[derive(Clone, PartialEq, Eq)]
struct Mounted {
    hostname: String,
    directory: Vec<u8>,
}

impl MountList {
    /// Adds a mount, the oldest of which makes room.
    pub(crate) fn add(&self, hostname: String, directory: &[u8]) {
        let mounted = Mounted { hostname, directory: directory.to_vec() };
        self.change(|mounts| {
            mounts.retain(|other| *other != mounted);
            if mounts.len() == MOUNTS_MAX {
                mounts.pop_front();
            }
            mounts.push_back(mounted);
        });
    }

    /// Removes the mounts of a client: that of `directory`, or all.
    pub(crate) fn remove(&self, hostname: &str, directory: Option<&[u8]>) {
        self.change(|mounts| {
            mounts.retain(|mounted| {
                mounted.hostname != hostname
                    || directory.is_some_and(|directory| mounted.directory != directory)
            });
        });
    }

    /// Encodes `mountlist` (RFC 1813 §5.2.2).
    pub(crate) fn encode(&self, list: &mut Writer) {
        self.change(|mounts| {
            encode_list(
                list,
                mounts.iter().map(|mounted| MountEntry {
                    hostname: mounted.hostname.as_bytes(),
                    directory: &mounted.directory,
                }),
            );
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Mounted>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
