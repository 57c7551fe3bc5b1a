//! The state directory: made for its owner alone, checked, and held by one server at a time.
//!
//! It holds the key of all file handles. A user with write permission on the directory could plant
//! a key, and two servers on one directory would replace each other's files.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// File name of the lock in the state directory. It holds the number of the process that has it.
const LOCK_FILE: &str = "lock";
/// The kernel's table of locks.
const LOCKS: &str = "/proc/locks";
/// The longest process number in decimal, with its newline.
const PID_BYTES_MAX: u64 = 11;
/// Writing by group and others.
const SHARED_WRITE: u32 = 0o022;

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// It could not be made, read or locked.
    #[error("cannot use the state directory {}: {error}", path.display())]
    Io {
        /// The directory, or the lock in it.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// It is no directory.
    #[error(
        "the state directory {} is not a directory; choose another with state_dir or --state-dir",
        path.display()
    )]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Another user could change what is in it.
    #[error(
        "the state directory {path} is writable by other users (mode {mode:04o}), who could replace \
         the key of all file handles; run `chmod go-w {path}`", path = path.display()
    )]
    Writable {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user could change what is in it.
    #[error(
        "the state directory {path} belongs to user {owner}, who could replace the key of all file \
         handles; run `chown {user} {path}` or choose another with state_dir or --state-dir",
        path = path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user that this process runs as.
        user: u32,
    },
    /// Another server has it.
    #[error(
        "the state directory {} is in use by process {holder}; stop that server, or choose another \
         directory with state_dir or --state-dir", path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds the lock, if the lock names it.
        holder: String,
    },
    /// Clients could read the key.
    #[error(
        "the state directory {} of this server lies inside the export {export}, whose clients could \
         read the key of all file handles; another state_dir takes effect at the next start",
        path.display()
    )]
    Exported {
        /// The directory.
        path: PathBuf,
        /// The name of the export.
        export: String,
    },
}

/// A state directory that no other server uses while this lives.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    /// Locked by flock(2), which ends with the process at the latest.
    _lock: File,
}

impl StateDir {
    /// Makes the directory if it is missing, checks who can change it, and locks it.
    ///
    /// # Errors
    /// See [`StateDirError`].
    pub(crate) fn open(path: &Path) -> Result<Self, StateDirError> {
        make_checked(path)?;
        Ok(Self { path: path.to_owned(), _lock: lock(path)? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it if it is missing, and checks who can change that.
    ///
    /// # Errors
    /// See [`StateDirError`].
    pub(crate) fn make_directory(&self, name: &str) -> Result<(), StateDirError> {
        make_checked(&self.path.join(name))
    }
}

fn make_checked(path: &Path) -> Result<(), StateDirError> {
    let fail = |error| StateDirError::Io { path: path.to_owned(), error };
    // The server's umask is 0, so the mode is explicit.
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => StateDirError::NotADirectory { path: path.to_owned() },
        _ => fail(error),
    })?;
    check_directory(path, &fs::metadata(path).map_err(fail)?)
}

fn check_directory(path: &Path, metadata: &Metadata) -> Result<(), StateDirError> {
    let path = path.to_owned();
    if !metadata.is_dir() {
        return Err(StateDirError::NotADirectory { path });
    }
    if !is_trusted(metadata) {
        let user = rustix::process::geteuid().as_raw();
        return Err(StateDirError::Foreign { path, owner: metadata.uid(), user });
    }
    let mode = metadata.mode() & 0o7777;
    // Of a directory with the sticky bit others cannot replace a file, but they can add the first.
    if mode & SHARED_WRITE != 0 {
        return Err(StateDirError::Writable { path, mode });
    }
    Ok(())
}

/// Whether the owner of a file is this process's user or root.
pub(crate) fn is_trusted(metadata: &Metadata) -> bool {
    let owner = metadata.uid();
    owner == 0 || owner == rustix::process::geteuid().as_raw()
}

fn lock(directory: &Path) -> Result<File, StateDirError> {
    let path = directory.join(LOCK_FILE);
    let fail = |error| StateDirError::Io { path: path.clone(), error };
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open(2) is an int");
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600).custom_flags(no_follow);
    let mut file = options.open(&path).map_err(fail)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let holder = holder(&mut file).map_err(fail)?;
            return Err(StateDirError::InUse { path: directory.to_owned(), holder });
        }
        Err(errno) => return Err(fail(errno.into())),
    }
    if let Err(error) = unless_full(write_holder(&mut file)).map_err(fail)? {
        let path = path.display();
        // On some file systems the old number is left, which is not that of the lock's holder.
        tracing::warn!(%path, %error, "a second server here will not name this process");
    }
    Ok(file)
}

fn write_holder(file: &mut File) -> io::Result<()> {
    let line = format!("{}\n", std::process::id());
    // Before the end is cut off: a full disk still has the space of the last number.
    file.write_all(line.as_bytes())?;
    file.set_len(line.len() as u64)
}

/// The result inside reports a full disk or a used-up quota, which may pass where a start can do
/// without the file.
///
/// # Errors
/// Every other one.
pub(crate) fn unless_full<T>(written: io::Result<T>) -> io::Result<io::Result<T>> {
    match written {
        Err(error)
            if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
        {
            Err(error)
        }
        written => Ok(written),
    }
}

/// The process that has written its number into the lock, if it is the one that has the lock: a
/// full disk may leave the number of an earlier one.
fn holder(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    file.take(PID_BYTES_MAX).read_to_string(&mut text)?;
    let number = text.trim();
    let inode = file.metadata()?.ino().to_string();
    let locks = fs::read_to_string(LOCKS).unwrap_or_default();
    let is_holder = locks.lines().any(|line| {
        // Number, kind, strictness, access, process, and the file as major:minor:inode. The device
        // is not that of stat(2) on every file system.
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some("FLOCK")
            && fields.nth(2) == Some(number)
            && fields.next().and_then(|place| place.rsplit(':').next()) == Some(&*inode)
    });
    Ok(if is_holder { number } else { "of unknown number" }.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::thread;
    use std::time::{Duration, Instant};

    use tempfile::TempDir;

    use super::*;
    use crate::skip::skip;

    fn open(path: &Path) -> Result<StateDir, String> {
        StateDir::open(path).map_err(|error| error.to_string())
    }

    fn directory(mode: u32) -> TempDir {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        dir
    }

    #[test]
    fn a_missing_directory_is_made_for_its_owner_alone() {
        let dir = directory(0o755);
        let path = dir.path().join("deep/state");
        let state = open(&path).unwrap();
        assert_eq!(fs::metadata(state.path()).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::metadata(path.join(LOCK_FILE)).unwrap().mode() & 0o7777, 0o600);
    }

    #[test]
    fn directories_that_others_can_write_are_refused() {
        for mode in [0o777, 0o1777, 0o775, 0o702] {
            let dir = directory(mode);
            let error = open(dir.path()).unwrap_err();
            let path = dir.path().display();
            assert!(error.contains(&format!("{path} is writable by other users")), "{error}");
            assert!(error.contains(&format!("(mode {mode:04o})")), "{error}");
            assert!(error.ends_with(&format!("run `chmod go-w {path}`")), "{error}");
        }
        for mode in [0o700, 0o755, 0o750] {
            open(directory(mode).path()).unwrap();
        }
    }

    #[test]
    fn a_directory_in_it_that_others_can_write_is_refused() {
        let dir = directory(0o700);
        let state = open(dir.path()).unwrap();
        state.make_directory("nfs4").unwrap();
        let inner = dir.path().join("nfs4");
        assert_eq!(fs::metadata(&inner).unwrap().mode() & 0o7777, 0o700);
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).unwrap();
        let error = state.make_directory("nfs4").unwrap_err().to_string();
        assert!(error.contains("nfs4 is writable by other users"), "{error}");
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make one");
        }
        let dir = directory(0o700);
        chown(dir.path(), Some(1234), None).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(error.contains("belongs to user 1234") && error.contains("chown 0 "), "{error}");
    }

    #[test]
    fn a_directory_has_one_server_at_a_time() {
        let dir = directory(0o700);
        let first = open(dir.path()).unwrap();
        let error = open(dir.path()).unwrap_err();
        let holder = format!("is in use by process {};", std::process::id());
        assert!(error.contains(&holder), "{error}");
        drop(first);
        // A program that another test is starting keeps what is closed until it is executed.
        let began = Instant::now();
        while let Err(error) = open(dir.path()) {
            assert!(began.elapsed() < Duration::from_secs(10), "{error}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_number_of_an_earlier_process_is_not_named() {
        let dir = directory(0o700);
        let _state = open(dir.path()).unwrap();
        // As a full disk may leave it, on which no file can be overwritten.
        fs::write(dir.path().join(LOCK_FILE), "1\n").unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(error.contains("is in use by process of unknown number;"), "{error}");
    }

    #[test]
    fn a_file_is_no_state_directory() {
        let dir = directory(0o700);
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(open(&path).err().unwrap().contains("is not a directory; choose another"));
    }
}
