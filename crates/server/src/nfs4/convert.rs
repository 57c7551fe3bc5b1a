//! Between the file operations' terms and NFSv4's.

use proto::nfs4::{
    self, Bitmap, ChangeInfo, FileType, KNOWN_ATTRIBUTES, RawAttributes, Time, attribute,
};

use super::{Outcome, Refused};
use crate::fs::{Status, Timestamp};
use crate::inode_cache::{Attributes, Wcc};
use crate::vfs::{AttributeChange, SetTime};

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
pub(super) fn file_type(attributes: &Attributes) -> FileType {
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

/// The attributes that can be set.
const SETTABLE: Bitmap = Bitmap::of(&[
    attribute::SIZE,
    attribute::MODE,
    attribute::OWNER,
    attribute::OWNER_GROUP,
    attribute::TIME_ACCESS_SET,
    attribute::TIME_MODIFY_SET,
]);

/// The change that a SETATTR asks for.
///
/// # Errors
/// `Inval` for an attribute that is only read, or only set at creation; `Attrnotsupp` for one that is
/// not supported; `Badowner` for a user or group that is no number; `Badxdr`.
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
