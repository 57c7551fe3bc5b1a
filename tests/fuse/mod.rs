//! Attributes that the FUSE file systems of tests share.

use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};

/// The attributes of the root directory, or of an empty file.
pub(crate) fn attributes(inode: INodeNo) -> FileAttr {
    let (kind, perm) = match inode {
        INodeNo::ROOT => (FileType::Directory, 0o777),
        _ => (FileType::RegularFile, 0o666),
    };
    FileAttr {
        ino: inode,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
