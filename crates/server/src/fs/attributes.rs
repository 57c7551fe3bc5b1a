//! The attributes of an object: one `statx`, in a form that every protocol version can use. Replies
//! take `Attributes`, which only the lock of an inode makes of it.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Statx, StatxAttributes, StatxFlags, StatxTimestamp, statx};

use io::{ChangeClock, Moment, Stamp, StampTime};

use super::Status;

/// Counts the changes that this process has ended. One for all inodes, because a name is looked up
/// before its inode is known.
pub(crate) static CLOCK: ChangeClock = ChangeClock::new();

/// The age from which a stamp differs from all later ones. File systems stamp with a clock that
/// moves in steps of at most 10 ms (CONFIG_HZ=100), so what happens after a moment has a stamp less
/// than that before it; the rest is margin for a clock that is being slewed.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// A point in time as the file system keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp {
    /// Seconds since 1970, negative before.
    pub(crate) seconds: i64,
    /// 0 to 999,999,999.
    pub(crate) nanoseconds: u32,
}

impl Timestamp {
    /// Whether nothing that happens after `now` has the same stamp. Not if it is a whole second,
    /// which may come from a file system with that resolution, and not if it lies before 1970 or
    /// after `now`.
    pub(crate) fn is_settled(self, now: SystemTime) -> bool {
        self.nanoseconds != 0 && self.is_older(now, SETTLED_AFTER)
    }

    /// Whether it lies `age` or more before `now`, and not before 1970.
    pub(crate) fn is_older(self, now: SystemTime, age: Duration) -> bool {
        let since = u64::try_from(self.seconds).ok();
        let since = since.map(|seconds| Duration::new(seconds, self.nanoseconds));
        let at = since.and_then(|since| UNIX_EPOCH.checked_add(since));
        at.and_then(|at| now.duration_since(at).ok()).is_some_and(|found| found >= age)
    }
}

/// The attributes of an object as the kernel shows them. While a change is at work they may have
/// the times that the change leaves behind, and the size of the moment: good for decisions, not for
/// replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveAttributes {
    /// Regular file, directory, …
    pub(crate) file_type: FileType,
    /// Permission bits with set-user-id, set-group-id and sticky: the low 12 bits of `st_mode`.
    pub(crate) mode: u32,
    /// Hard links.
    pub(crate) nlink: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Length in bytes.
    pub(crate) size: u64,
    /// Bytes allocated on disk.
    pub(crate) used: u64,
    /// Major and minor number of a device node.
    pub(crate) rdev: (u32, u32),
    /// Major and minor number of the device that holds the object.
    pub(crate) device: (u32, u32),
    /// Inode number.
    pub(crate) fileid: u64,
    /// Last read.
    pub(crate) atime: Timestamp,
    /// Last change of the data.
    pub(crate) mtime: Timestamp,
    /// Last change of data or attributes.
    pub(crate) ctime: Timestamp,
    /// Another file system is mounted here, whose root this is.
    pub(crate) is_mount_root: bool,
    /// Programs map its medium itself, past the page cache (`STATX_ATTR_DAX`).
    pub(crate) is_dax: bool,
    /// A moment before they were read.
    pub(crate) since: Moment,
}

impl LiveAttributes {
    /// Whether the object is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// The attributes by which a client detects a change.
    pub(crate) fn stamp(&self) -> Stamp {
        let time = |time: Timestamp| (time.seconds, time.nanoseconds);
        Stamp { size: self.size, mtime: time(self.mtime), ctime: time(self.ctime) }
    }

    /// The same with another stamp.
    pub(crate) fn with_stamp(self, stamp: Stamp) -> Self {
        let time = |(seconds, nanoseconds): StampTime| Timestamp { seconds, nanoseconds };
        Self { size: stamp.size, mtime: time(stamp.mtime), ctime: time(stamp.ctime), ..self }
    }

    /// Whether the object is a regular file, the only kind that READ and WRITE take.
    pub(crate) fn is_regular(&self) -> bool {
        self.file_type == FileType::RegularFile
    }
}

/// Reads the attributes of an open descriptor (`O_PATH` ones too).
///
/// # Errors
/// As `statx`; `Stale` when the last link is gone, for no client can reach such an object again.
pub(crate) fn attributes_of(fd: impl AsFd) -> Result<LiveAttributes, Status> {
    let attributes = attributes_of_linked_or_not(fd)?;
    if attributes.nlink == 0 { Err(Status::Stale) } else { Ok(attributes) }
}

/// As [`attributes_of`], but an object without a name left is an answer too.
pub(crate) fn attributes_of_linked_or_not(fd: impl AsFd) -> Result<LiveAttributes, Status> {
    let since = CLOCK.now();
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(from_statx(&stat, since))
}

/// The attributes of `name` in `directory` and, where the file system keeps it, when the inode was
/// made; a symbolic link is not followed, and nothing is mounted for it (automount).
///
/// # Errors
/// As `statx`.
pub(crate) fn attributes_and_birth_at(
    directory: impl AsFd,
    name: &std::ffi::CStr,
) -> Result<(LiveAttributes, Option<Timestamp>), Status> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let since = CLOCK.now();
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = statx(directory, name, flags, wanted)?;
    Ok((from_statx(&stat, since), birth(&stat)))
}

/// The attributes of an open descriptor (`O_PATH` ones too), with or without a name left, and when
/// the inode was made, where the file system keeps it.
///
/// # Errors
/// As `statx`.
pub(crate) fn attributes_and_birth_of(
    fd: impl AsFd,
) -> Result<(LiveAttributes, Option<Timestamp>), Status> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let since = CLOCK.now();
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, wanted)?;
    Ok((from_statx(&stat, since), birth(&stat)))
}

fn birth(stat: &Statx) -> Option<Timestamp> {
    (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| timestamp(stat.stx_btime))
}

fn from_statx(stat: &Statx, since: Moment) -> LiveAttributes {
    LiveAttributes {
        file_type: FileType::from_raw_mode(u32::from(stat.stx_mode)),
        mode: u32::from(stat.stx_mode) & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        // st_blocks counts 512-byte units whatever the file system's block size (stat(2)).
        used: stat.stx_blocks.saturating_mul(512),
        rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
        device: (stat.stx_dev_major, stat.stx_dev_minor),
        fileid: stat.stx_ino,
        atime: timestamp(stat.stx_atime),
        mtime: timestamp(stat.stx_mtime),
        ctime: timestamp(stat.stx_ctime),
        is_mount_root: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        is_dax: stat.stx_attributes.contains(StatxAttributes::DAX),
        since,
    }
}

fn timestamp(time: StatxTimestamp) -> Timestamp {
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_settled_after_a_second() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let is_settled =
            |seconds, nanoseconds, now| Timestamp { seconds, nanoseconds }.is_settled(at(now));
        for (now, settled) in [
            (0, false),
            (1_000_500, false),
            (1_001_499, false),
            (1_001_500, true),
            (9_000_000_000, true),
        ] {
            assert_eq!(is_settled(1_000, 500_000_000, now), settled, "{now} ms");
        }
        assert!(!is_settled(1_000, 0, 9_000_000_000), "of which resolution is unknown");
        assert!(!is_settled(-5, 1, 9_000_000_000), "before 1970");
        assert!(!is_settled(i64::MAX, 1, 9_000_000_000));
    }
}
