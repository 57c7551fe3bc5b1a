//! Properties of the file systems of Linux, by their kind (`f_type`).

use std::os::fd::BorrowedFd;

use io::file_system_magic::{BTRFS, EXT4, F2FS, OVERLAYFS, TMPFS, XFS};
use rustix::fs::FsWord;

/// The kind of file system that a directory lies on; `None` if the kernel does not report it.
#[derive(Clone, Copy)]
pub(super) struct Kind(Option<FsWord>);

impl Kind {
    /// The kind of the file system of `directory`.
    pub(super) fn of(directory: BorrowedFd<'_>) -> Self {
        Self(rustix::fs::fstatfs(directory).ok().map(|stat| stat.f_type))
    }

    /// Files of overlayfs have the device of the layer that holds them where layers lie on
    /// different file systems, so that only the root of a mount shows that another one begins.
    pub(super) fn is_overlay(self) -> bool {
        self.0 == Some(OVERLAYFS)
    }

    /// Whether `statx` of an open file never waits for a device or a daemon.
    pub(super) fn answers_from_memory(self) -> bool {
        self.is_one_of(&[EXT4, XFS, BTRFS, TMPFS, F2FS])
    }

    /// Whether no file changes without a trace that this machine's kernel leaves. Not on tmpfs,
    /// where a store through a mapping leaves no trace; not where changes come from another
    /// machine, a daemon or the layers below. True for the local disk file systems known to record
    /// all.
    pub(super) fn shows_changes(self) -> bool {
        self.is_one_of(&[EXT4, XFS, BTRFS, F2FS])
    }

    /// Whether an inode has one handle for life, and a birth time that comes from this machine's
    /// clock. True for those known to do so: FUSE may give out an inode number, birth time and
    /// handle in any combination, and the handles of tmpfs do not name the inode.
    pub(super) fn keeps_handles(self) -> bool {
        self.is_one_of(&[EXT4, XFS, BTRFS])
    }

    /// Whether `f_fsid` is made of the UUID of the file system. Others make it of the device
    /// number, which may be another one after a restart of the machine.
    pub(super) fn has_lasting_id(self) -> bool {
        self.is_one_of(&[EXT4, BTRFS])
    }

    fn is_one_of(self, kinds: &[FsWord]) -> bool {
        self.0.is_some_and(|kind| kinds.contains(&kind))
    }
}
