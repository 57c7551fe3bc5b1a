//! Attributes for unit tests.

use proto::nfs3::{Attributes, DeviceSpec, FileType, Time};

/// Those of an empty file of root, with all its times at `time`.
pub(super) fn attributes(file_type: FileType, time: Time) -> Attributes {
    Attributes {
        file_type,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 0,
        used: 0,
        rdev: DeviceSpec::default(),
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
}
