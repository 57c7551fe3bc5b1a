//! Replacing a file as a whole, so that a crash leaves the old one or the new one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;

/// Puts `bytes` in the place of a file that exists, with its owner and permissions.
///
/// # Errors
/// The file stays as it was.
pub(crate) fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let metadata = fs::metadata(file)?;
    let directory = file.parent().unwrap_or(Path::new("/"));
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    let new = directory.join(name);
    let written = write(&new, bytes, &metadata).and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        // What there is of it; the error above is the one to report.
        let _ = fs::remove_file(&new);
    }
    written?;
    File::open(directory)?.sync_all()
}

fn write(new: &Path, bytes: &[u8], metadata: &fs::Metadata) -> io::Result<()> {
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

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn permissions_stay_and_nothing_is_left() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("a.toml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&file, b"new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace(&dir.path().join("missing"), b"").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
