//! A directory of its own for an experiment, in one that is there.

use std::fs;
use std::path::{Path, PathBuf};

use super::undo::Undo;
use crate::{Error, Result};

const REMOVE: &str = r#"rm -rf -- "$1""#;

/// A new directory. Removed with all that is in it when dropped, also if this process is killed.
#[derive(Debug)]
pub struct WorkDirectory {
    path: PathBuf,
    undo: Undo,
}

impl WorkDirectory {
    /// Makes one in `parent`.
    ///
    /// # Errors
    /// [`Error::Machine`]: that is not there, or not ours to write in.
    pub fn create(parent: &Path) -> Result<Self> {
        let what = || Error::machine(format!("cannot make a directory in {}", parent.display()));
        // The most frequent mistake gets the system's words.
        fs::metadata(parent).map_err(what())?;
        let made = tempfile::Builder::new().prefix("spillway-bench.").tempdir_in(parent);
        // The error names the new directory, whose name does not help the user.
        let made = made.map_err(|error| what()(error.kind().into()))?;
        let undo = Undo::new(REMOVE, &[made.path()])?;
        Ok(Self { path: made.keep(), undo })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it now.
    ///
    /// # Errors
    /// [`Error::Machine`]: something in it cannot be removed.
    pub fn remove(self) -> Result<()> {
        let what = format!("cannot remove {}", self.path.display());
        fs::remove_dir_all(&self.path).map_err(Error::machine(what))?;
        self.undo.revoke();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_directory_is_removed_with_its_contents() {
        let parent = tempfile::tempdir().unwrap();
        let make = || {
            let directory = WorkDirectory::create(parent.path()).unwrap();
            fs::create_dir(directory.path().join("a directory")).unwrap();
            fs::write(directory.path().join("a directory/file"), "").unwrap();
            directory
        };
        drop(make());
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
        make().remove().unwrap();
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
    }

    #[test]
    fn a_parent_that_is_missing_is_named_once() {
        let error = WorkDirectory::create(Path::new("/missing/parent")).unwrap_err();
        assert_eq!(error.to_string(), "cannot make a directory in /missing/parent");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with("No such file or directory"), "{source}");
        assert!(!source.contains("/missing"), "{source}");
    }
}
