//! The numbers of file systems in `f_type` of `statfs(2)`, from `linux/magic.h`.

use rustix::fs::FsWord;

/// btrfs.
pub const BTRFS: FsWord = 0x9123_683e;
/// ext4, and ext2 and ext3, which its driver serves.
pub const EXT4: FsWord = 0xef53;
/// F2FS.
pub const F2FS: FsWord = 0xf2f5_2010;
/// overlayfs.
pub const OVERLAYFS: FsWord = 0x794c_7630;
/// ramfs: tmpfs without a size or swap.
pub const RAMFS: FsWord = 0x8584_58f6;
/// tmpfs.
pub const TMPFS: FsWord = 0x0102_1994;
/// XFS.
pub const XFS: FsWord = 0x5846_5342;
