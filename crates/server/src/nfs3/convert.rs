//! Between the file operations' terms and NFSv3's.

use proto::nfs3::{self, DeviceSpec, FileType, StableHow, Time, WccAttributes, WccData};

use crate::export::Object;
use crate::fs::{Status, Timestamp};
use crate::inode_cache::{Attributes, Wcc};
use crate::vfs::{AttributeChange, SetTime, Stability};

/// The NFSv3 status of a refusal.
pub(super) fn status(status: Status) -> nfs3::Status {
    match status {
        Status::NotOwner => nfs3::Status::Perm,
        Status::NoEntry => nfs3::Status::Noent,
        Status::Io(_) => nfs3::Status::Io,
        Status::NoDevice => nfs3::Status::Nxio,
        Status::Access | Status::Busy => nfs3::Status::Acces,
        Status::Exists => nfs3::Status::Exist,
        Status::CrossDevice => nfs3::Status::Xdev,
        Status::NotDirectory => nfs3::Status::Notdir,
        Status::IsDirectory => nfs3::Status::Isdir,
        Status::Invalid => nfs3::Status::Inval,
        Status::TooLarge => nfs3::Status::Fbig,
        Status::NoSpace => nfs3::Status::Nospc,
        // Version 3 has no extended attributes.
        Status::NoAttribute | Status::AttributeTooLarge => nfs3::Status::Serverfault,
        Status::ReadOnly => nfs3::Status::Rofs,
        Status::TooManyLinks => nfs3::Status::Mlink,
        Status::NameTooLong => nfs3::Status::Nametoolong,
        Status::NotEmpty => nfs3::Status::Notempty,
        Status::Quota => nfs3::Status::Dquot,
        Status::Stale => nfs3::Status::Stale,
        Status::BadHandle => nfs3::Status::Badhandle,
        Status::NotSync => nfs3::Status::NotSync,
        Status::BadCookie => nfs3::Status::BadCookie,
        Status::NotSupported => nfs3::Status::Notsupp,
        Status::TooSmall => nfs3::Status::Toosmall,
        Status::ServerFault | Status::Identity(_) => nfs3::Status::Serverfault,
        Status::BadType => nfs3::Status::Badtype,
        Status::Delay | Status::Delegated | Status::NoDescriptor => nfs3::Status::Jukebox,
    }
}

/// `fattr3` of an object in an export. The file system id is the export's id: stable over restarts,
/// and different for each export whatever disk it is on.
pub(super) fn attributes(object: &Object, attributes: &Attributes) -> nfs3::Attributes {
    nfs3::Attributes {
        file_type: file_type(attributes),
        mode: attributes.mode,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        used: attributes.used,
        rdev: DeviceSpec { major: attributes.rdev.0, minor: attributes.rdev.1 },
        fsid: object.root().id.into(),
        fileid: attributes.fileid,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
    }
}

fn file_type(attributes: &Attributes) -> FileType {
    use rustix::fs::FileType as Kind;
    match attributes.file_type {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharacterDevice => FileType::CharacterDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::RegularFile | Kind::Unknown => FileType::Regular,
    }
}

/// NFSv3 has unsigned 32-bit seconds: what lies before 1970 or after 2106 is its nearest end.
pub(super) fn time(time: Timestamp) -> Time {
    let seconds = u32::try_from(time.seconds.clamp(0, u32::MAX.into())).expect("clamped");
    Time { seconds, nseconds: time.nanoseconds }
}

/// The other way round.
pub(super) fn timestamp(Time { seconds, nseconds }: Time) -> Timestamp {
    Timestamp { seconds: seconds.into(), nanoseconds: nseconds }
}

/// `wcc_data` (RFC 1813 §2.6) of a change to an object in an export.
pub(super) fn wcc(object: &Object, wcc: &Wcc) -> WccData {
    WccData {
        before: wcc.before.map(|before| WccAttributes {
            size: before.size,
            mtime: time(before.mtime),
            ctime: time(before.ctime),
        }),
        after: wcc.after.map(|after| attributes(object, &after)),
    }
}

/// The stability that a WRITE asks for.
pub(super) fn stability(asked: StableHow) -> Stability {
    match asked {
        StableHow::Unstable => Stability::Unstable,
        StableHow::DataSync => Stability::DataSync,
        StableHow::FileSync => Stability::FileSync,
    }
}

/// The stability that it has.
pub(super) fn committed(stability: Stability) -> StableHow {
    match stability {
        Stability::Unstable => StableHow::Unstable,
        Stability::DataSync => StableHow::DataSync,
        Stability::FileSync => StableHow::FileSync,
    }
}

/// The change that `sattr3` requests (RFC 1813 §2.6).
pub(super) fn change(set: &nfs3::SetAttributes) -> AttributeChange {
    AttributeChange {
        mode: set.mode,
        umask: 0,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set_time(set.atime),
        mtime: set_time(set.mtime),
    }
}

fn set_time(time: nfs3::SetTime) -> SetTime {
    match time {
        nfs3::SetTime::DontChange => SetTime::Keep,
        nfs3::SetTime::ToServerTime => SetTime::Now,
        nfs3::SetTime::ToClientTime(time) => SetTime::At(timestamp(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_range_take_the_nearest_end() {
        let at = |seconds| time(Timestamp { seconds, nanoseconds: 5 }).seconds;
        assert_eq!(at(-1), 0);
        assert_eq!(at(1), 1);
        assert_eq!(at(i64::from(u32::MAX) + 1), u32::MAX);
    }
}
