//! Attributes for unit tests.

use proto::nfs3::{Attributes, DeviceSpec, FileType, Time};

/// A regular file of `size` bytes with all its times at `time`.
pub(crate) fn file_attributes(size: u64, time: Time) -> Attributes {
    Attributes {
        file_type: FileType::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size,
        used: size,
        rdev: DeviceSpec::default(),
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
}
