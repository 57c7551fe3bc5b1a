//! Replacing a file as a whole, so that a crash leaves the old one or the new one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Why a file was not replaced for good.
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// It is as it was.
    Unchanged(io::Error),
    /// It is replaced, but its directory was not written to the disk: a crash may undo that.
    NotDurable(io::Error),
}

/// Puts `bytes` in the place of a file that holds `old`, with its owner and permissions.
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
    let metadata = fs::metadata(file)?;
    let new = unfinished(file);
    let written = write(&new, bytes, &metadata)
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
    if fs::read(file)? == old {
        Ok(())
    } else {
        Err(io::Error::other("the file was changed meanwhile"))
    }
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

fn write(new: &Path, bytes: &[u8], metadata: &fs::Metadata) -> io::Result<()> {
    // In a container each server has the same process number as one that was killed before its
    // rename.
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(bytes)?;
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (metadata.uid(), metadata.gid()) {
        fchown(&file, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    file.set_permissions(metadata.permissions())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::thread;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use tempfile::TempDir;

    use super::*;

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
