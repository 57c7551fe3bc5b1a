//! Extended attributes of the namespace `user`, which is the only one that users may give meaning
//! to.
//!
//! All operations run as the caller: the kernel checks permissions, as for a local user.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use io::{Buffer, Lengths, Mtime, WriteData};
use rustix::fs::{Access, XattrFlags, getxattr, getxattr_query, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use siphasher::sip::SipHasher13;

use super::retry::Takes;
use super::{Answer, Caller, Object, Status, Vfs, Wcc};
use crate::fs::proc_path;
use crate::inode_cache::{Changing, Inode, kernel_allows};

/// Whether an attribute that is set may, or must, exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetXattr {
    Either,
    Create,
    Replace,
}

impl SetXattr {
    /// Checks the kernel's answer to a query for the attribute, as far as it has one.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `NotSupported`.
    fn check(self, found: rustix::io::Result<usize>) -> Result<(), Status> {
        match (self, found) {
            (Self::Create, Ok(_)) => Err(Status::Exists),
            (Self::Replace, Err(errno @ Errno::NODATA)) | (_, Err(errno @ Errno::OPNOTSUPP)) => {
                Err(status(errno))
            }
            (_, Ok(_) | Err(_)) => Ok(()),
        }
    }
}

/// A part of a list of attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XattrNames {
    /// Names without their namespace.
    pub(crate) names: Vec<Vec<u8>>,
    /// Where the list goes on; as it was given if there are no names.
    pub(crate) cookie: u64,
    pub(crate) eof: bool,
}

impl Vfs {
    /// GETXATTR, RFC 8276 §8.4.1: the value, in `buffer`, and its length.
    ///
    /// # Errors
    /// `NoAttribute`; `AttributeTooLarge` for a value that is longer than `bytes_max` or the
    /// buffer; `Access`, `NotSupported`, `Invalid` and `NameTooLong` for the name.
    pub(crate) async fn getxattr(
        &self,
        caller: &Caller,
        object: &Object,
        name: &[u8],
        mut buffer: Buffer,
        bytes_max: usize,
    ) -> Result<(Buffer, usize), Status> {
        let name = qualified(name)?;
        let file = self.hold(object).await?;
        let job = move || {
            let room = bytes_max.min(buffer.capacity());
            let value = &mut buffer.as_mut_slice()[..room];
            let len = getxattr(proc_path(file.fd()), &name, value).map_err(status)?;
            Ok((buffer, len))
        };
        self.in_metadata_lane(caller.identity.clone(), job).await
    }

    /// SETXATTR, RFC 8276 §8.4.2; no value is an empty one.
    ///
    /// # Errors
    /// `Exists` and `NoAttribute` as `how` demands; `AttributeTooLarge`, `NoSpace`, `Quota`,
    /// `ReadOnly`, `Access`, `NotOwner`, `NotSupported`, `Invalid` and `NameTooLong` for the name.
    pub(crate) async fn setxattr(
        &self,
        caller: &Caller,
        object: &Object,
        name: &[u8],
        value: Option<WriteData>,
        how: SetXattr,
    ) -> Answer<Wcc, ()> {
        let flags = match how {
            SetXattr::Either => XattrFlags::empty(),
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
        };
        let change = move |fd: BorrowedFd<'_>, name: &CString| {
            let value = value.as_ref().map_or(&[][..], WriteData::as_slice);
            setxattr(proc_path(fd), name, value, flags)
        };
        self.change_xattr(caller, object, (name, how), change).await
    }

    /// REMOVEXATTR, RFC 8276 §8.4.4.
    ///
    /// # Errors
    /// `NoAttribute`, `ReadOnly`, `Access`, `NotOwner`, `NotSupported`, `Invalid` and `NameTooLong`
    /// for the name.
    pub(crate) async fn removexattr(
        &self,
        caller: &Caller,
        object: &Object,
        name: &[u8],
    ) -> Answer<Wcc, ()> {
        let change = |fd: BorrowedFd<'_>, name: &CString| removexattr(proc_path(fd), name);
        self.change_xattr(caller, object, (name, SetXattr::Replace), change).await
    }

    /// LISTXATTRS, RFC 8276 §8.4.3: names behind `cookie`, as long as `fits` takes their lengths.
    ///
    /// A cookie is the hash of the last name, and the list is in the order of hashes. So an
    /// attribute that is there all the time is listed once, whatever becomes of the others
    /// meanwhile.
    ///
    /// # Errors
    /// `Access` for a caller that may not read, `TooSmall` if not even one name fits.
    pub(crate) async fn listxattrs(
        &self,
        caller: &Caller,
        object: &Object,
        cookie: u64,
        fits: impl FnMut(usize) -> bool + Send + 'static,
    ) -> Result<XattrNames, Status> {
        let file = self.hold(object).await?;
        let job = move || {
            if !kernel_allows(&file, Access::READ_OK)? {
                return Err(Status::Access);
            }
            page(hashed(&user_names(&file)?), cookie, fits)
        };
        self.in_metadata_lane(caller.identity.clone(), job).await
    }

    /// Whether the file system of an object has extended attributes, RFC 8276 §8.2.
    pub(crate) async fn supports_xattrs(&self, object: &Object) -> Result<bool, Status> {
        let file = self.hold(object).await?;
        let job = move || {
            let found = getxattr_query(proc_path(file.fd()), c"user.spillway");
            Ok(found != Err(Errno::OPNOTSUPP))
        };
        self.in_metadata_lane(io::Identity::Server, job).await
    }

    async fn change_xattr(
        &self,
        caller: &Caller,
        object: &Object,
        (name, how): (&[u8], SetXattr),
        change: impl Fn(BorrowedFd<'_>, &CString) -> rustix::io::Result<()> + Send + Sync + 'static,
    ) -> Answer<Wcc, ()> {
        let name = match caller.may_change().and_then(|()| qualified(name)) {
            Ok(name) => name,
            Err(status) => return Answer::refused(status),
        };
        let change = Arc::new(change);
        let attempt = || {
            let (name, change) = (name.clone(), Arc::clone(&change));
            self.change_xattr_once(caller, object, (name, how), move |fd, name| change(fd, name))
        };
        let Answer { attributes, result } =
            self.with_space(object, Takes::InodeSpace, attempt).await;
        let result = match result {
            Ok((file, failures)) => self.settle(&file, object.sync, failures).await,
            Err(status) => Err(status),
        };
        Answer { attributes, result }
    }

    /// An attempt: the object that was changed, and the number of its failed flushes before.
    async fn change_xattr_once(
        &self,
        caller: &Caller,
        object: &Object,
        (name, how): (CString, SetXattr),
        change: impl FnOnce(BorrowedFd<'_>, &CString) -> rustix::io::Result<()> + Send + 'static,
    ) -> Answer<Wcc, (Arc<Inode>, u64)> {
        let what = (Changing::Attributes, Lengths::KEPT);
        let asked = name.clone();
        let check = |file: Arc<Inode>, _| async move {
            let writable = Arc::clone(&file);
            let ask = move || Ok(io::check_access(writable.fd(), Access::WRITE_OK)?);
            self.in_metadata_lane(caller.identity.clone(), ask).await?;
            // As the server: the change shows whether it exists to a writer that may not read, too.
            let ask = move || how.check(getxattr_query(proc_path(file.fd()), &asked));
            self.in_metadata_lane(io::Identity::Server, ask).await
        };
        let (file, begun) = match self.begin_checked(caller, object, what, check).await {
            Ok(begun) => begun,
            Err(status) => return self.refuse_change(object, status).await,
        };
        let (changed, failures) = (Arc::clone(&file), file.failures());
        let job = move || {
            begun.system_calls().note();
            let result = change(changed.fd().as_fd(), &name).map_err(status);
            let wcc = match result {
                Ok(()) => {
                    changed.note_change();
                    begun.end(changed.fd(), Mtime::Kept)
                }
                Err(_) => begun.end_refused(changed.live_attributes().ok()),
            };
            Ok((wcc, result))
        };
        let done = self.in_metadata_lane(caller.identity.clone(), job).await;
        let (attributes, result) = match done {
            Ok(done) => done,
            Err(status) => return Answer::refused(status),
        };
        Answer { attributes, result: result.map(|()| (file, failures)) }
    }
}

/// The kernel's name of an attribute.
///
/// # Errors
/// `NameTooLong`; `Invalid` for what can be no name.
fn qualified(name: &[u8]) -> Result<CString, Status> {
    if name.is_empty() {
        return Err(Status::Invalid);
    }
    if NAMESPACE.len() + name.len() > NAME_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    CString::new([NAMESPACE, name].concat()).map_err(|_| Status::Invalid)
}

/// Errors have a meaning here that they do not have elsewhere: a disk returns `ENODATA` too.
fn status(errno: Errno) -> Status {
    match errno {
        Errno::NODATA => Status::NoAttribute,
        Errno::RANGE | Errno::TOOBIG => Status::AttributeTooLarge,
        other => other.into(),
    }
}

/// The kernel's list of all attributes, each with a NUL behind it.
fn user_names(file: &Inode) -> Result<Vec<u8>, Status> {
    let mut list = vec![0; LIST_BYTES_MAX];
    match listxattr(proc_path(file.fd()), &mut list[..]) {
        Ok(len) => list.truncate(len),
        Err(Errno::OPNOTSUPP) => list.clear(),
        Err(errno) => return Err(status(errno)),
    }
    Ok(list)
}

/// The names of the namespace, without it, by their hashes.
fn hashed(list: &[u8]) -> Vec<(u64, &[u8])> {
    let names = list.split(|byte| *byte == 0);
    let names = names.filter_map(|name| name.strip_prefix(NAMESPACE));
    // Zero is the beginning of the list.
    let mut hashed: Vec<_> =
        names.map(|name| (SipHasher13::new().hash(name).max(1), name)).collect();
    hashed.sort_unstable();
    hashed
}

/// The part of a list behind `cookie`. Names with one hash are not parted.
fn page(
    names: Vec<(u64, &[u8])>,
    cookie: u64,
    mut fits: impl FnMut(usize) -> bool,
) -> Result<XattrNames, Status> {
    let mut part = XattrNames { names: Vec::new(), cookie, eof: true };
    let rest = &names[names.partition_point(|(hash, _)| *hash <= cookie)..];
    for same in rest.chunk_by(|(one, _), (other, _)| one == other) {
        if !same.iter().all(|(_, name)| fits(name.len())) {
            part.eof = false;
            break;
        }
        part.names.extend(same.iter().map(|(_, name)| name.to_vec()));
        part.cookie = same[0].0;
    }
    if part.names.is_empty() && !part.eof { Err(Status::TooSmall) } else { Ok(part) }
}

const NAMESPACE: &[u8] = b"user.";
/// The longest name with its namespace (`XATTR_NAME_MAX`, limits.h).
const NAME_BYTES_MAX: usize = 255;
/// The longest list (`XATTR_LIST_MAX`, limits.h).
const LIST_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_the_namespace_once() {
        assert_eq!(qualified(b"colour"), Ok(c"user.colour".into()));
        assert_eq!(qualified(b"user.colour"), Ok(c"user.user.colour".into()));
        assert_eq!(qualified(b""), Err(Status::Invalid));
        assert_eq!(qualified(b"a\0b"), Err(Status::Invalid));
        assert!(qualified(&[b'a'; 250]).is_ok());
        assert_eq!(qualified(&[b'a'; 251]), Err(Status::NameTooLong));
    }

    #[test]
    fn a_list_goes_on_behind_its_cookie_while_other_names_come_and_go() {
        let list = |names: &[&str]| -> Vec<u8> {
            names.iter().flat_map(|name| format!("user.{name}\0").into_bytes()).collect()
        };
        let stays = ["a", "b", "c", "d", "e", "f"];
        let (mut cookie, mut seen) = (0, Vec::new());
        for round in 0.. {
            let changing = format!("changes {round}");
            let all = list(&[&stays[..], &[&changing]].concat());
            let mut room = 2;
            let two = move |_| {
                room -= 1;
                room >= 0
            };
            let part = page(hashed(&all), cookie, two).unwrap();
            cookie = part.cookie;
            seen.extend(part.names);
            if part.eof {
                break;
            }
        }
        seen.retain(|name| !name.starts_with(b"changes"));
        seen.sort_unstable();
        assert_eq!(seen, stays.map(|name| name.as_bytes().to_vec()));
    }

    #[test]
    fn names_of_one_hash_stay_together() {
        let names = || vec![(5, &b"a"[..]), (7, b"b"), (7, b"c")];
        let mut room = 2;
        let two = move |_| {
            room -= 1;
            room >= 0
        };
        let part = page(names(), 0, two).unwrap();
        assert_eq!((part.names.len(), part.cookie, part.eof), (1, 5, false));
        assert_eq!(page(names(), 5, |_| false), Err(Status::TooSmall));
        assert_eq!(page(names(), 5, |_| true).unwrap().names.len(), 2);
    }

    #[test]
    fn attributes_of_other_namespaces_are_not_listed() {
        let list = b"security.selinux\0user.colour\0trusted.x\0userland\0";
        let names: Vec<_> = hashed(list).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, [b"colour"]);
    }
}
