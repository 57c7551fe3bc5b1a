//! Replacing a file as a whole, so that a crash leaves the old one or the new one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

/// Why a file was not replaced for good.
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// It is as it was.
    Unchanged(io::Error),
    /// It is replaced, but its directory was not written to the disk: a crash may undo that.
    NotDurable(io::Error),
}

/// Puts `bytes` in the place of a file that holds `old`, with its owner, permissions
/// and access control list.
///
/// # Errors
/// See [`ReplaceError`]; the file holds something else than `old`.
pub(crate) fn replace(file: &Path, old: &[u8], bytes: &[u8]) -> Result<(), ReplaceError> {
    let directory = exchange(file, old, bytes).map_err(ReplaceError::Unchanged)?;
    directory.sync_all().map_err(ReplaceError::NotDurable)
}

/// As [`replace`], but for the sync of the directory, which it returns.
fn exchange(file: &Path, old: &[u8], bytes: &[u8]) -> io::Result<File> {
    // Before the rename: a directory that may be written but not read cannot be synced.
    let directory = File::open(directory_of(file))?;
    let access = Access::of(&open(file)?)?;
    let new = unfinished(file);
    let written = write(&new, bytes, &access)
        // As late as possible: an editor does not know of this process.
        .and_then(|()| check_unchanged(file, old))
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        // The new file may be there; the error above is the one to report.
        let _ = fs::remove_file(&new);
    }
    written.map(|()| directory)
}

fn check_unchanged(file: &Path, old: &[u8]) -> io::Result<()> {
    let mut now = Vec::new();
    open(file)?.read_to_end(&mut now)?;
    if now == old { Ok(()) } else { Err(io::Error::other("the file was changed meanwhile")) }
}

/// Opens a file for reading. In the place of a FIFO it waits for no writer.
fn open(file: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(file)
}

fn directory_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("/"))
}

/// Where the new file is written: a name that no other process uses at the same time.
fn unfinished(file: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    directory_of(file).join(name)
}

fn write(new: &Path, bytes: &[u8], access: &Access) -> io::Result<()> {
    // In a container each server has the same process number as one that was killed before its
    // rename.
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(bytes)?;
    access.give_to(&file)?;
    file.sync_all()
}

/// The users that may use a file.
struct Access {
    metadata: fs::Metadata,
    /// The POSIX access control list, as its extended attribute has it.
    list: Option<Vec<u8>>,
}

impl Access {
    fn of(file: &File) -> io::Result<Self> {
        let mut list = vec![0; XATTR_BYTES_MAX];
        let list = match fgetxattr(file, ACCESS_LIST, &mut list[..]) {
            Ok(len) => Some(list[..len].to_vec()),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self { metadata: file.metadata()?, list })
    }

    /// Makes the access to `file` the same. Until the last step it is the owner's and that of the
    /// users in the list.
    fn give_to(&self, file: &File) -> io::Result<()> {
        let own = file.metadata()?;
        let (uid, gid) = (self.metadata.uid(), self.metadata.gid());
        if (own.uid(), own.gid()) != (uid, gid) {
            fchown(file, Some(uid), Some(gid))?;
        }
        // Before the mode, whose bits of the group are the mask of a list if there is one.
        match &self.list {
            Some(list) => fsetxattr(file, ACCESS_LIST, list, XattrFlags::empty())?,
            // A new file has the default list of its directory.
            None => match fremovexattr(file, ACCESS_LIST) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            },
        }
        file.set_permissions(self.metadata.permissions())
    }
}

const ACCESS_LIST: &str = "system.posix_acl_access";
/// The kernel's `XATTR_SIZE_MAX`.
const XATTR_BYTES_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::thread;

    use rustix::fs::{getxattr, setxattr};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use tempfile::TempDir;

    use super::*;
    use crate::skip::skip_in_ci_too;

    /// A list as in linux/posix_acl_xattr.h: user 12345 has `user`, the group nothing, the mask is
    /// `user`, and others have nothing.
    fn list_for_a_user(user: u16) -> Vec<u8> {
        const NO_ID: u32 = u32::MAX;
        let entries: [(u16, u16, u32); 5] =
            [(1, 6, NO_ID), (2, user, 12345), (4, 0, NO_ID), (0x10, user, NO_ID), (0x20, 0, NO_ID)];
        let bytes = entries.iter().flat_map(|(tag, permissions, id)| {
            let tag = tag.to_le_bytes().into_iter().chain(permissions.to_le_bytes());
            tag.chain(id.to_le_bytes())
        });
        2u32.to_le_bytes().into_iter().chain(bytes).collect()
    }

    /// Sets a list; false, with the reason printed, where there are none.
    fn set_list(path: &Path, name: &str, list: &[u8]) -> bool {
        match setxattr(path, name, list, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => {
                skip_in_ci_too("the file system has no access control lists");
                false
            }
            set => {
                set.unwrap();
                true
            }
        }
    }

    fn list_of(file: &Path) -> Result<Vec<u8>, Errno> {
        let mut list = vec![0; XATTR_BYTES_MAX];
        getxattr(file, ACCESS_LIST, &mut list[..]).map(|len| list[..len].to_vec())
    }

    #[test]
    fn the_access_control_list_stays() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "old").unwrap();
        let list = list_for_a_user(6);
        if !set_list(&file, ACCESS_LIST, &list) {
            return;
        }
        replace(&file, b"old", b"new").unwrap();
        assert_eq!(list_of(&file), Ok(list));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o660, "with the mask");
    }

    #[test]
    fn the_default_list_of_the_directory_opens_the_file_to_no_more_users() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
        if !set_list(dir.path(), "system.posix_acl_default", &list_for_a_user(6)) {
            return;
        }
        replace(&file, b"old", b"new").unwrap();
        assert_eq!(list_of(&file), Err(Errno::NODATA));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o660);
    }

    #[test]
    fn permissions_stay_and_nothing_is_left() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&file, b"old", b"new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // A process of the same number was killed here.
        fs::write(unfinished(&file), "half").unwrap();
        replace(&file, b"new", b"newer").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace(&dir.path().join("missing"), b"", b"").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_was_changed_meanwhile_stays() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "edited").unwrap();
        let replaced = replace(&file, b"old", b"new");
        let Err(ReplaceError::Unchanged(error)) = replaced else { panic!("{replaced:?}") };
        assert_eq!(error.to_string(), "the file was changed meanwhile");
        assert_eq!(fs::read_to_string(&file).unwrap(), "edited");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_whose_directory_cannot_be_synced_stays_as_it_was() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o300)).unwrap();
        // Capabilities are a thread's own; those of the others stay for their tests.
        let replaced = thread::scope(|scope| {
            let as_ordinary_user = || {
                let mut sets = capabilities(None).unwrap();
                sets.effective = CapabilitySet::empty();
                set_capabilities(None, sets).unwrap();
                replace(&file, b"old", b"new")
            };
            scope.spawn(as_ordinary_user).join().unwrap()
        });
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let Err(ReplaceError::Unchanged(error)) = replaced else { panic!("{replaced:?}") };
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
