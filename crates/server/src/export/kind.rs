//! What is known of the file systems of Linux by their kind.

use std::os::fd::BorrowedFd;

/// The kind of file system that a directory lies on, as numbered in `linux/magic.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(Option<u64>);

const BTRFS: Kind = Kind(Some(0x9123_683e));
const EXT4: Kind = Kind(Some(0xef53));
const F2FS: Kind = Kind(Some(0xf2f5_2010));
const OVERLAYFS: Kind = Kind(Some(0x794c_7630));
const TMPFS: Kind = Kind(Some(0x0102_1994));
const XFS: Kind = Kind(Some(0x5846_5342));

impl Kind {
    /// The kind of the file system of `directory`; one that nothing is known of if the kernel does
    /// not report it.
    pub(super) fn of(directory: BorrowedFd<'_>) -> Self {
        let stat = rustix::fs::fstatfs(directory).ok();
        Self(stat.and_then(|stat| u64::try_from(stat.f_type).ok()))
    }

    /// Files of overlayfs have the device of the layer that holds them where layers lie on different
    /// file systems, so that only the root of a mount shows that another one begins.
    pub(super) fn is_overlay(self) -> bool {
        self == OVERLAYFS
    }

    /// Whether `statx` of an open file never waits for a device or a daemon.
    pub(super) fn answers_from_memory(self) -> bool {
        [EXT4, XFS, BTRFS, TMPFS, F2FS].contains(&self)
    }

    /// Whether no file changes without a trace that this machine's kernel leaves. Not on tmpfs, where
    /// a store through a mapping leaves no trace; not where changes come from another machine, a
    /// daemon or the layers below. True for the local disk file systems known to record all.
    pub(super) fn shows_changes(self) -> bool {
        [EXT4, XFS, BTRFS, F2FS].contains(&self)
    }

    /// Whether an inode has one handle for life, and a birth time that comes from this machine's
    /// clock. True for those known to do so: FUSE may give out an inode number, birth time and handle
    /// in any combination, and the handles of tmpfs do not name the inode.
    pub(super) fn keeps_handles(self) -> bool {
        [EXT4, XFS, BTRFS].contains(&self)
    }

    /// Whether `f_fsid` is made of the UUID of the file system. Others make it of the device number,
    /// which may be another one after a restart of the machine.
    pub(super) fn has_lasting_id(self) -> bool {
        [EXT4, BTRFS].contains(&self)
    }
}
