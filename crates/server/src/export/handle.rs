//! File handles: the kernel's own, with the export they belong to, under a keyed MAC.
//!
//! ```text
//! 0        1        2            6          10            14            14+n          22+n
//! | format | n      | export id  | tree     | kernel type | kernel bytes | SipHash-2-4 |
//! ```
//!
//! A handle is a pure function of the export, the inode and the key: it stays the same over
//! restarts, renames and hard links, and a client cannot make one that it was not given. `tree` is
//! of the directory that the export led to (`ExportRoot::tree`): on another file system at the same
//! path another file can have the same kernel handle.

use std::fs;
use std::hash::Hasher;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use io::KernelHandle;
use siphasher::sip::SipHasher24;

use crate::fs::Status;
use crate::random::random_bytes;
use crate::state_dir::is_trusted;

/// The longest handle that NFSv3 carries (RFC 1813 §2.4, `NFS3_FHSIZE`).
pub(crate) const HANDLE_BYTES_MAX: usize = 64;

/// The type of the handles of the directories above the exports, which no file system's handles
/// have (`FILEID_*`, exportfs.h).
pub(super) const PSEUDO_HANDLE_KIND: i32 = i32::MIN;

const FORMAT: u8 = 2;
const HEAD_BYTES: usize = 14;
const MAC_BYTES: usize = 8;
const _: () = assert!(HEAD_BYTES + io::KERNEL_HANDLE_BYTES_MAX + MAC_BYTES <= HANDLE_BYTES_MAX);
/// File name of the key in the state directory.
const KEY_FILE: &str = "handle-key";
/// File name of a key that is not complete.
const UNFINISHED_FILE: &str = "handle-key.new";
const KEY_BYTES: usize = 16;
/// Any access by group and others.
const SHARED_ACCESS: u32 = 0o077;

/// An authentic handle, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileHandle {
    /// The export it was given out for.
    pub(crate) export_id: u32,
    /// The directory tree that the export led to then.
    pub(crate) tree: u32,
    /// The kernel's name for the inode.
    pub(crate) kernel: KernelHandle,
}

/// A handle on the wire.
#[derive(Clone, Copy)]
pub(crate) struct HandleBytes {
    bytes: [u8; HANDLE_BYTES_MAX],
    len: usize,
}

impl HandleBytes {
    /// The bytes as a client sees them, at most [`HANDLE_BYTES_MAX`].
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The export that a handle names, authentic or not: only for choosing the threads that open the
/// handle, and for reports. `None` for a directory above the exports, whose handle has the id 0,
/// which an export can have too.
pub(crate) fn claimed_export_id(bytes: &[u8]) -> Option<u32> {
    let (head, _) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let [_, _, e0, e1, e2, e3, _, _, _, _, k0, k1, k2, k3] = *head;
    let is_pseudo = i32::from_be_bytes([k0, k1, k2, k3]) == PSEUDO_HANDLE_KIND;
    (!is_pseudo).then(|| u32::from_be_bytes([e0, e1, e2, e3]))
}

/// The key that handles are sealed with.
#[derive(Clone)]
pub(crate) struct HandleKey([u8; KEY_BYTES]);

impl HandleKey {
    /// Reads the key from `state_dir`, or makes one there on the first start. No other process may
    /// do so at the same time: [`StateDir`](crate::state_dir::StateDir) holds a lock.
    ///
    /// # Errors
    /// The file cannot be made or read, is not a key, or others can read or write it.
    pub(crate) fn load_or_create(state_dir: &Path) -> Result<Self, HandleKeyError> {
        let path = state_dir.join(KEY_FILE);
        let fail = |error| HandleKeyError::Io { path: path.clone(), error };
        match fs::File::open(&path) {
            Ok(file) => Self::read(file, &path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Self::create(state_dir, &path).map_err(fail)
            }
            Err(error) => Err(fail(error)),
        }
    }

    fn read(file: fs::File, path: &Path) -> Result<Self, HandleKeyError> {
        check_key_file(&file, path)?;
        let mut bytes = Vec::with_capacity(KEY_BYTES + 1);
        file.take(KEY_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| HandleKeyError::Io { path: path.to_owned(), error })?;
        let key =
            bytes.try_into().map_err(|_| HandleKeyError::NotAKey { path: path.to_owned() })?;
        Ok(Self(key))
    }

    /// The key reaches the disk under another name first: a crash leaves a whole key or none. The
    /// caller has the lock of the state directory, so a file by that name is left from a crash.
    fn create(state_dir: &Path, path: &Path) -> std::io::Result<Self> {
        let mut key = [0; KEY_BYTES];
        random_bytes(&mut key)?;
        let unfinished = state_dir.join(UNFINISHED_FILE);
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(&key)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        fs::File::open(state_dir)?.sync_all()?;
        Ok(Self(key))
    }

    /// Makes the wire form of a handle.
    pub(crate) fn seal(&self, handle: &FileHandle) -> HandleBytes {
        let kernel = handle.kernel.bytes();
        let mut bytes = [0; HANDLE_BYTES_MAX];
        bytes[0] = FORMAT;
        bytes[1] = u8::try_from(kernel.len()).expect("a kernel handle holds at most 40 bytes");
        bytes[2..6].copy_from_slice(&handle.export_id.to_be_bytes());
        bytes[6..10].copy_from_slice(&handle.tree.to_be_bytes());
        bytes[10..14].copy_from_slice(&handle.kernel.kind().to_be_bytes());
        let end = HEAD_BYTES + kernel.len();
        bytes[HEAD_BYTES..end].copy_from_slice(kernel);
        let mac = self.mac(&bytes[..end]);
        bytes[end..end + MAC_BYTES].copy_from_slice(&mac);
        HandleBytes { bytes, len: end + MAC_BYTES }
    }

    /// Takes a wire handle apart.
    ///
    /// # Errors
    /// `BadHandle` for bytes that no server of this kind has made. `Stale` for what has the form of
    /// a handle: a server with another key may have made it, or an older one, and a client gives up
    /// such a handle, where it reports a fault for one that is bad.
    pub(crate) fn open(&self, bytes: &[u8]) -> Result<FileHandle, Status> {
        let (sealed, mac) = bytes.split_last_chunk::<MAC_BYTES>().ok_or(Status::BadHandle)?;
        let (head, kernel) = sealed.split_first_chunk::<HEAD_BYTES>().ok_or(Status::BadHandle)?;
        let [format, len, e0, e1, e2, e3, t0, t1, t2, t3, k0, k1, k2, k3] = *head;
        if (1..FORMAT).contains(&format) {
            return Err(Status::Stale);
        }
        let kind = i32::from_be_bytes([k0, k1, k2, k3]);
        let kernel_handle = KernelHandle::from_parts(kind, kernel).ok_or(Status::BadHandle)?;
        if format != FORMAT || usize::from(len) != kernel.len() {
            return Err(Status::BadHandle);
        }
        if !equal_in_constant_time(mac, &self.mac(sealed)) {
            return Err(Status::Stale);
        }
        Ok(FileHandle {
            export_id: u32::from_be_bytes([e0, e1, e2, e3]),
            tree: u32::from_be_bytes([t0, t1, t2, t3]),
            kernel: kernel_handle,
        })
    }

    fn mac(&self, sealed: &[u8]) -> [u8; MAC_BYTES] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(sealed);
        hasher.finish().to_be_bytes()
    }
}

/// Refuses a key that another user can know or has chosen: with it they can make a handle of any
/// file.
fn check_key_file(file: &fs::File, path: &Path) -> Result<(), HandleKeyError> {
    let path = path.to_owned();
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return Err(HandleKeyError::Io { path, error }),
    };
    if !metadata.is_file() {
        return Err(HandleKeyError::NotAKey { path });
    }
    if !is_trusted(&metadata) {
        return Err(HandleKeyError::Foreign { path, owner: metadata.uid() });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & SHARED_ACCESS != 0 {
        return Err(HandleKeyError::Exposed { path, mode });
    }
    Ok(())
}

/// Compares without telling by its duration where the first difference is.
fn equal_in_constant_time(a: &[u8; MAC_BYTES], b: &[u8; MAC_BYTES]) -> bool {
    a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

/// Why the server has no key to seal handles with.
#[derive(Debug, thiserror::Error)]
pub enum HandleKeyError {
    /// The file could not be read or made.
    #[error("cannot read or make the handle key {}: {error}", path.display())]
    Io {
        /// The key file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file has the wrong length.
    #[error("{} is not a handle key: it must hold {KEY_BYTES} bytes", path.display())]
    NotAKey {
        /// The key file.
        path: PathBuf,
    },
    /// Other users know the key, or can change it.
    #[error(
        "the handle key {path} is accessible to other users (mode {mode:04o}), who could forge \
         handles; run `chmod 600 {path}`, or remove it if they may have read it: the server then \
         makes a new one, and clients must mount again", path = path.display()
    )]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user has made the file.
    #[error(
        "the handle key {path} belongs to user {owner}, who could forge handles; remove it: the \
         server then makes a new one, and clients must mount again", path = path.display()
    )]
    Foreign {
        /// The key file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::skip::skip;

    fn handle(len: usize) -> FileHandle {
        let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i).unwrap()).collect();
        let kernel = KernelHandle::from_parts(0x81, &bytes).unwrap();
        FileHandle { export_id: 7, tree: 0x0102_0304, kernel }
    }

    #[test]
    fn sealed_handles_open_again_and_fit() {
        let key = HandleKey([3; KEY_BYTES]);
        for len in [1, 8, 20, io::KERNEL_HANDLE_BYTES_MAX] {
            let sealed = key.seal(&handle(len));
            assert!(sealed.as_bytes().len() <= HANDLE_BYTES_MAX);
            assert_eq!(key.open(sealed.as_bytes()), Ok(handle(len)));
        }
    }

    #[test]
    fn a_handle_claims_its_export_unless_it_is_of_a_directory_above_the_exports() {
        let key = HandleKey([3; KEY_BYTES]);
        let claimed = |handle: &FileHandle| claimed_export_id(key.seal(handle).as_bytes());
        assert_eq!(claimed(&handle(8)), Some(7));
        let of_zero = FileHandle { export_id: 0, ..handle(8) };
        assert_eq!(claimed(&of_zero), Some(0), "an export can have the id 0");
        let kernel = KernelHandle::from_parts(PSEUDO_HANDLE_KIND, &[0; 8]).unwrap();
        assert_eq!(claimed(&FileHandle { kernel, ..of_zero }), None);
        assert_eq!(claimed_export_id(&[0; HEAD_BYTES - 1]), None);
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_refused() {
        let key = HandleKey([3; KEY_BYTES]);
        let sealed = key.seal(&handle(8));
        let bytes = sealed.as_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut forged = bytes.to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            // Format and length are first.
            let status = if bit < 16 { Status::BadHandle } else { Status::Stale };
            assert_eq!(key.open(&forged), Err(status), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(key.open(&bytes[..len]), Err(Status::BadHandle), "length {len}");
        }
    }

    #[test]
    fn a_handle_of_another_key_or_an_older_format_is_stale() {
        let sealed = HandleKey([3; KEY_BYTES]).seal(&handle(8));
        let other_key = HandleKey([4; KEY_BYTES]);
        assert_eq!(other_key.open(sealed.as_bytes()), Err(Status::Stale));
        let mut older = sealed.as_bytes().to_vec();
        older[0] = FORMAT - 1;
        assert_eq!(HandleKey([3; KEY_BYTES]).open(&older), Err(Status::Stale));
    }

    #[test]
    fn only_the_owner_reaches_the_key() {
        let dir = tempfile::tempdir().unwrap();
        HandleKey::load_or_create(dir.path()).unwrap();
        let mode = fs::metadata(dir.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn the_key_survives_and_a_broken_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let first = HandleKey::load_or_create(dir.path()).unwrap();
        let again = HandleKey::load_or_create(dir.path()).unwrap();
        assert_eq!(first.0, again.0);
        fs::write(dir.path().join(KEY_FILE), b"short").unwrap();
        assert!(matches!(
            HandleKey::load_or_create(dir.path()),
            Err(HandleKeyError::NotAKey { .. })
        ));
    }

    #[test]
    fn what_a_crash_left_does_not_prevent_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let unfinished = dir.path().join(UNFINISHED_FILE);
        fs::write(&unfinished, [0; KEY_BYTES + 1]).unwrap();
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o444)).unwrap();
        let key = HandleKey::load_or_create(dir.path()).unwrap();
        assert_eq!(fs::read(dir.path().join(KEY_FILE)).unwrap(), key.0);
        let mode = fs::metadata(dir.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(!unfinished.exists());
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KEY_FILE);
        HandleKey::load_or_create(dir.path()).unwrap();
        for mode in [0o604, 0o640, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let Err(error) = HandleKey::load_or_create(dir.path()) else { panic!("{mode:o}") };
            let error = error.to_string();
            let mend = format!("(mode {mode:04o}), who could forge handles; run `chmod");
            assert!(error.contains(&mend) && error.contains(path.to_str().unwrap()), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        HandleKey::load_or_create(dir.path()).unwrap();
    }

    #[test]
    fn a_key_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can give a file away");
        }
        let dir = tempfile::tempdir().unwrap();
        HandleKey::load_or_create(dir.path()).unwrap();
        std::os::unix::fs::chown(dir.path().join(KEY_FILE), Some(1234), None).unwrap();
        let error = HandleKey::load_or_create(dir.path());
        assert!(matches!(error, Err(HandleKeyError::Foreign { owner: 1234, .. })));
    }
}
