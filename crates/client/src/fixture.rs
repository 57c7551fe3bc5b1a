//! Attributes and FSINFO for unit tests.

use proto::nfs3::{Attributes, DeviceSpec, FileType, FsinfoOk, Time};

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

/// FSINFO of a server that reads and writes [`TRANSFER_BYTES`] at a time.
pub(crate) fn fsinfo() -> FsinfoOk {
    FsinfoOk {
        attributes: None,
        rtmax: TRANSFER_BYTES,
        rtpref: TRANSFER_BYTES,
        rtmult: 1,
        wtmax: TRANSFER_BYTES,
        wtpref: TRANSFER_BYTES,
        wtmult: 1,
        dtpref: TRANSFER_BYTES,
        maxfilesize: u64::MAX,
        time_delta: Time { seconds: 0, nseconds: 1 },
        properties: 0,
    }
}

const TRANSFER_BYTES: u32 = 1 << 16;
