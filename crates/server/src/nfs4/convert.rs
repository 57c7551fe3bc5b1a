//! Between the file operations' terms and NFSv4's.

use proto::nfs4::{
    self, Bitmap, ChangeInfo, FileType, KNOWN_ATTRIBUTES, RawAttributes, StableHow, Time, attribute,
};

use super::{Outcome, Refused};
use crate::fs::{Status, Timestamp};
use crate::inode_cache::{Attributes, Wcc};
use crate::vfs::{Applied, AttributeChange, SetTime, Stability};

/// The attributes that are supported by minor version 2.
pub(super) const SUPPORTED: Bitmap = KNOWN_ATTRIBUTES;

const NANOSECONDS: i64 = 1_000_000_000;

/// The NFSv4 status of a refusal.
pub(super) fn status(status: Status) -> nfs4::Status {
    match status {
        Status::NotOwner => nfs4::Status::Perm,
        Status::NoEntry => nfs4::Status::Noent,
        Status::Io(_) => nfs4::Status::Io,
        Status::NoDevice => nfs4::Status::Nxio,
        Status::Access => nfs4::Status::Access,
        Status::Busy => nfs4::Status::FileOpen,
        Status::Exists => nfs4::Status::Exist,
        Status::CrossDevice => nfs4::Status::Xdev,
        Status::NotDirectory => nfs4::Status::Notdir,
        Status::IsDirectory => nfs4::Status::Isdir,
        Status::Invalid | Status::NotSync => nfs4::Status::Inval,
        Status::TooLarge => nfs4::Status::Fbig,
        Status::NoSpace => nfs4::Status::Nospc,
        Status::NoAttribute => nfs4::Status::Noxattr,
        Status::AttributeTooLarge => nfs4::Status::Xattr2Big,
        Status::ReadOnly => nfs4::Status::Rofs,
        Status::TooManyLinks => nfs4::Status::Mlink,
        Status::NameTooLong => nfs4::Status::Nametoolong,
        Status::NotEmpty => nfs4::Status::Notempty,
        Status::Quota => nfs4::Status::Dquot,
        Status::Stale => nfs4::Status::Stale,
        Status::BadHandle => nfs4::Status::Badhandle,
        Status::BadCookie => nfs4::Status::BadCookie,
        Status::NotSupported => nfs4::Status::Notsupp,
        Status::TooSmall => nfs4::Status::Toosmall,
        Status::ServerFault | Status::Identity(_) => nfs4::Status::Serverfault,
        Status::BadType => nfs4::Status::Badtype,
        Status::Delay | Status::Delegated | Status::NoDescriptor => nfs4::Status::Delay,
    }
}

/// `nfs_ftype4` of an object.
pub(super) fn file_type(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Kind;
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharacterDevice => FileType::CharacterDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::RegularFile | Kind::Unknown => FileType::Regular,
    }
}

/// Refuses all but regular files, as OPEN and the operations on data of RFC 8881 do.
///
/// # Errors
/// `Isdir`, `Symlink`, and `WrongType` for others.
pub(super) fn check_regular(file_type: rustix::fs::FileType) -> Outcome<()> {
    use rustix::fs::FileType as Kind;
    match file_type {
        Kind::RegularFile => Ok(()),
        Kind::Directory => Err(nfs4::Status::Isdir.into()),
        Kind::Symlink => Err(nfs4::Status::Symlink.into()),
        Kind::Fifo | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice | Kind::Unknown => {
            Err(nfs4::Status::WrongType.into())
        }
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

/// The stability that a WRITE or COPY has.
pub(super) fn committed(stability: Stability) -> StableHow {
    match stability {
        Stability::Unstable => StableHow::Unstable,
        Stability::DataSync => StableHow::DataSync,
        Stability::FileSync => StableHow::FileSync,
    }
}

pub(super) fn time(time: Timestamp) -> Time {
    Time { seconds: time.seconds, nseconds: time.nanoseconds }
}

/// The change attribute: the ctime in nanoseconds (`NFS4_CHANGE_TYPE_IS_TIME_METADATA`).
pub(super) fn change(attributes: &Attributes) -> u64 {
    let Timestamp { seconds, nanoseconds } = attributes.ctime;
    seconds.wrapping_mul(NANOSECONDS).wrapping_add(nanoseconds.into()).cast_unsigned()
}

/// `change_info4` of a directory that an operation has changed.
pub(super) fn change_info(wcc: &Wcc) -> ChangeInfo {
    match (&wcc.before, &wcc.after) {
        (Some(before), Some(after)) => {
            ChangeInfo { atomic: true, before: change(before), after: change(after) }
        }
        (before, after) => {
            let known = after.as_ref().or(before.as_ref()).map_or(0, change);
            ChangeInfo { atomic: false, before: known, after: known }
        }
    }
}

/// The times to be set, which have numbers of their own.
pub(super) const SET_TIMES: Bitmap =
    Bitmap::of(&[attribute::TIME_ACCESS_SET, attribute::TIME_MODIFY_SET]);
/// The attributes that can be set.
const SETTABLE: Bitmap =
    Bitmap::of(&[attribute::SIZE, attribute::MODE]).union(OWNERS).union(SET_TIMES);

/// The change that a SETATTR asks for.
///
/// # Errors
/// `Inval` for an attribute that is only read, or only set at creation; `Attrnotsupp` for one that
/// is not supported; `Badowner` for a user or group that is no number; `Badxdr`.
pub(super) fn attribute_change(raw: &RawAttributes<'_>) -> Outcome<AttributeChange> {
    change_within(SETTABLE, raw)
}

/// The attributes of an object that a CREATE or OPEN makes.
///
/// # Errors
/// As [`attribute_change`]; `Inval` for two modes (RFC 8275 §5).
pub(super) fn new_attributes(raw: &RawAttributes<'_>) -> Outcome<AttributeChange> {
    if raw.bitmap.contains(attribute::MODE) && raw.bitmap.contains(attribute::MODE_UMASK) {
        return Err(nfs4::Status::Inval.into());
    }
    change_within(SETTABLE.union(Bitmap::of(&[attribute::MODE_UMASK])), raw)
}

/// Owner and group.
const OWNERS: Bitmap = Bitmap::of(&[attribute::OWNER, attribute::OWNER_GROUP]);
/// The attributes that the creation of a symbolic link ignores, beside the length.
const OF_NO_LINK: Bitmap = Bitmap::of(&[attribute::MODE, attribute::MODE_UMASK]).union(SET_TIMES);

/// The attributes that a SETATTR of `requested` ones has set.
pub(super) fn set_by(applied: Applied, requested: Bitmap) -> Bitmap {
    let part = |is_done: bool, of: Bitmap| if is_done { of } else { Bitmap::EMPTY };
    let done = part(applied.size, Bitmap::of(&[attribute::SIZE]))
        .union(part(applied.owner, OWNERS))
        .union(part(applied.mode, Bitmap::of(&[attribute::MODE])))
        .union(part(applied.times, SET_TIMES));
    requested.intersection(done)
}

/// The attributes among `requested` ones that a new object has got: an owner or group that the
/// caller may not give is ignored, as are the mode and times of a symbolic link, and a length of
/// all but files.
pub(super) fn set_at_creation(
    change: &AttributeChange,
    requested: Bitmap,
    made: &Attributes,
) -> Bitmap {
    use rustix::fs::FileType as Kind;
    let kind = match made.file_type {
        Kind::RegularFile => Bitmap::EMPTY,
        Kind::Symlink => OF_NO_LINK.union(Bitmap::of(&[attribute::SIZE])),
        _ => Bitmap::of(&[attribute::SIZE]),
    };
    let is_given = |wanted: Option<u32>, is: u32| wanted.is_none_or(|wanted| wanted == is);
    let unless =
        |is_given: bool, number| if is_given { Bitmap::EMPTY } else { Bitmap::of(&[number]) };
    requested
        .difference(kind)
        .difference(unless(is_given(change.uid, made.uid), attribute::OWNER))
        .difference(unless(is_given(change.gid, made.gid), attribute::OWNER_GROUP))
}

fn change_within(settable: Bitmap, raw: &RawAttributes<'_>) -> Outcome<AttributeChange> {
    let others = raw.bitmap.difference(settable);
    if !others.is_empty() {
        let is_known = others.difference(SUPPORTED).is_empty();
        let status = if is_known { nfs4::Status::Inval } else { nfs4::Status::Attrnotsupp };
        return Err(status.into());
    }
    let set = raw.parse()?;
    let mode = set.mode.or(set.mode_umask.map(|both| both.mode));
    Ok(AttributeChange {
        mode: mode.map(checked_mode).transpose()?,
        umask: set.mode_umask.map_or(0, |both| both.umask & 0o777),
        uid: set.owner.map(id).transpose()?,
        gid: set.owner_group.map(id).transpose()?,
        size: set.size,
        atime: set_time(set.time_access_set),
        mtime: set_time(set.time_modify_set),
    })
}

/// Bits beyond the twelve of a mode are refused (RFC 8881 §6.2.4).
fn checked_mode(mode: u32) -> Outcome<u32> {
    if mode & !0o7777 == 0 { Ok(mode) } else { Err(nfs4::Status::Inval.into()) }
}

fn id(principal: nfs4::Principal<'_>) -> Outcome<u32> {
    match principal {
        nfs4::Principal::Id(id) => Ok(id),
        nfs4::Principal::Name(_) => Err(Refused::from(nfs4::Status::Badowner)),
    }
}

fn set_time(time: Option<nfs4::SetTime>) -> SetTime {
    match time {
        None => SetTime::Keep,
        Some(nfs4::SetTime::ToServerTime) => SetTime::Now,
        Some(nfs4::SetTime::ToClientTime(Time { seconds, nseconds })) => {
            SetTime::At(Timestamp { seconds, nanoseconds: nseconds })
        }
    }
}
