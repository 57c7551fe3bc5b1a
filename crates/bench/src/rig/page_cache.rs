//! The page cache: emptying it, and what the files of a directory occupy of it.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use io::{ByteRange, cache_state, resident_ranges};
use rustix::fs::OFlags;
use rustix::param::page_size;

use crate::{Error, Result};

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// The most files and directories that are examined.
const FILES_MAX: u64 = 100_000;
/// How far below the directory.
const DEPTH_MAX: usize = 64;

/// Writes everything back and empties the page, dentry and inode caches of the machine. What is
/// mapped, or used at this moment, stays.
///
/// # Errors
/// [`Error::Machine`]: only root may, and not where `/proc/sys` is read-only.
pub fn drop_caches() -> Result<()> {
    let what = || Error::machine(format!("cannot drop caches ({DROP_CACHES})"));
    let mut opened = open_to_drop().map_err(what())?;
    rustix::fs::sync();
    std::io::Write::write_all(&mut opened, b"3").map_err(what())
}

/// Whether [`drop_caches`] is possible: to root, but not in a container whose `/proc/sys` is
/// read-only.
#[must_use]
pub fn may_drop_caches() -> bool {
    open_to_drop().is_ok()
}

fn open_to_drop() -> std::io::Result<File> {
    OpenOptions::new().write(true).open(DROP_CACHES)
}

/// The page cache of the files below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedFiles {
    /// Regular files found.
    pub files: u64,
    /// Their sizes.
    pub size_bytes: u64,
    /// In the page cache, in whole pages; `None` if the kernel does not tell, or if there are
    /// `more` files: a part would pass for all of it.
    pub cached_bytes: Option<u64>,
    /// Of that, dirty or in write-back; `None` also if the kernel does not tell (before 6.5).
    pub dirty_bytes: Option<u64>,
    /// There are more files than are examined: 100,000, and 64 levels.
    pub more: bool,
}

/// Looks at all regular files below `directory` on its file system. Files that vanish meanwhile do
/// not count.
///
/// # Errors
/// [`Error::Machine`]: the directory, or a file in it, cannot be opened.
pub fn cached_files(directory: &Path) -> Result<CachedFiles> {
    let at = |path: &Path| Error::machine(format!("page cache of {}", path.display()));
    let file_system = fs::metadata(directory).map_err(at(directory))?.dev();
    let mut found =
        CachedFiles { cached_bytes: Some(0), dirty_bytes: Some(0), ..CachedFiles::default() };
    let mut seen = 0;
    let mut directories = vec![(directory.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Err(error) if depth > 0 && is_gone(&error) => continue,
            entries => entries.map_err(at(&directory))?,
        };
        for entry in entries {
            let path = entry.map_err(at(&directory))?.path();
            let metadata = match fs::symlink_metadata(&path) {
                Err(error) if is_gone(&error) => continue,
                metadata => metadata.map_err(at(&path))?,
            };
            seen += 1;
            if seen > FILES_MAX || depth == DEPTH_MAX {
                let (cached_bytes, dirty_bytes) = (None, None);
                return Ok(CachedFiles { cached_bytes, dirty_bytes, more: true, ..found });
            }
            if metadata.dev() != file_system {
                continue;
            }
            if metadata.is_dir() {
                directories.push((path, depth + 1));
            } else if metadata.is_file() {
                match found.add(&path) {
                    Err(error) if is_gone(&error) => {}
                    added => added.map_err(at(&path))?,
                }
            }
        }
    }
    Ok(found)
}

fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}

impl CachedFiles {
    /// Looks at a file. Nothing is read, so its access time stays.
    fn add(&mut self, path: &Path) -> std::io::Result<()> {
        // Should it have become a pipe or a symbolic link since, nothing hangs.
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).expect("the kernel's flags are an int");
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let size_bytes = file.metadata()?.len();
        let (cached, dirty) = cached_and_dirty(&file, size_bytes)?;
        self.files += 1;
        self.size_bytes += size_bytes;
        self.cached_bytes = self.cached_bytes.zip(cached).map(|(sum, bytes)| sum + bytes);
        self.dirty_bytes = self.dirty_bytes.zip(dirty).map(|(sum, bytes)| sum + bytes);
        Ok(())
    }
}

fn cached_and_dirty(file: &File, size_bytes: u64) -> std::io::Result<(Option<u64>, Option<u64>)> {
    let all = ByteRange::between(0, size_bytes);
    if let Some(state) = cache_state(file.as_fd(), all)? {
        let page_bytes = page_size() as u64;
        let dirty = (state.dirty + state.writeback) * page_bytes;
        return Ok((Some(state.cached * page_bytes), Some(dirty)));
    }
    let residency = resident_ranges(file.as_fd(), all)?;
    Ok((residency.map(|found| found.ranges().iter().map(|range| range.len()).sum()), None))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;
    use crate::skip::skip_in_ci_too;

    const MIB: usize = 1 << 20;

    #[test]
    fn written_files_are_dirty_until_synced_and_dropped() {
        // Not tmpfs: its files are all page cache and never leave it.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        let mut file = File::create(directory.path().join("below/file")).unwrap();
        file.write_all(&vec![1; MIB]).unwrap();
        fs::write(directory.path().join("small"), "one page").unwrap();

        let found = cached_files(directory.path()).unwrap();
        assert_eq!((found.files, found.size_bytes, found.more), (2, MIB as u64 + 8, false));
        let Some(cached_bytes) = found.cached_bytes else {
            return skip_in_ci_too("the kernel does not report what is cached");
        };
        let page_bytes = page_size() as u64;
        assert_eq!(cached_bytes, MIB as u64 + page_bytes);
        if let Some(dirty_bytes) = found.dirty_bytes {
            // Write-back may have begun by itself.
            assert!(dirty_bytes <= cached_bytes);
        }

        file.sync_all().unwrap();
        let all = ByteRange::between(0, MIB as u64);
        io::drop_clean(file.as_fd(), all).unwrap();
        let found = cached_files(directory.path()).unwrap();
        assert_eq!(found.cached_bytes, Some(page_bytes), "{found:?}");
        assert!(found.dirty_bytes.is_none_or(|bytes| bytes <= page_bytes), "{found:?}");
    }

    #[test]
    fn other_file_systems_and_symbolic_links_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).unwrap();
        assert_eq!(cached_files(directory.path()).unwrap().files, 0);
        let error = cached_files(&directory.path().join("missing")).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }

    #[test]
    fn the_page_cache_of_a_part_of_the_files_is_not_reported() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::write(directory.path().join("file"), vec![1; MIB]).unwrap();
        let levels = |count| directory.path().join(vec!["d"; count].join("/"));
        fs::create_dir_all(levels(DEPTH_MAX)).unwrap();
        let found = cached_files(directory.path()).unwrap();
        assert_eq!((found.files, found.more), (1, false));
        fs::create_dir(levels(DEPTH_MAX + 1)).unwrap();
        let found = cached_files(directory.path()).unwrap();
        assert_eq!((found.cached_bytes, found.dirty_bytes, found.more), (None, None, true));
    }

    #[test]
    fn only_root_may_drop() {
        if rustix::process::geteuid().is_root() {
            // Root would take the pages of other tests.
            let mut again = Command::new("/proc/self/exe");
            again.args(["--exact", "rig::page_cache::tests::only_root_may_drop"]);
            let output = again.uid(65_534).gid(65_534).output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
            return;
        }
        assert!(!may_drop_caches());
        let error = drop_caches().unwrap_err().to_string();
        assert_eq!(error, "cannot drop caches (/proc/sys/vm/drop_caches)");
    }
}
