//! File handles of the kernel: names for files that survive a rename and a restart.

use std::ffi::CStr;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::OFlags;

/// The longest handle kept, in bytes. The kernel allows 128; ext4, XFS, btrfs and tmpfs use at most
/// 40.
pub const KERNEL_HANDLE_BYTES_MAX: usize = 40;

/// An odd number without a pattern: the golden ratio in 64 bits.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// How often, and how long apart, a handle is opened while its inode number is being given to a new
/// file.
const OPENS_MAX: u32 = 64;
const OPENS_APART: Duration = Duration::from_millis(1);

/// A file's handle within its file system, as `name_to_handle_at(2)` gives it.
///
/// Opaque: the file system chooses the content and checks it when the handle is opened. Equal
/// handles mean the same file. A deleted file's handle goes stale and is not given to a later file
/// that reuses the inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KernelHandle {
    kind: i32,
    len: u8,
    /// Zero past `len`, so that derived equality is that of the handle.
    bytes: [u8; KERNEL_HANDLE_BYTES_MAX],
}

impl Hash for KernelHandle {
    /// Hashes a sum of the words of the handle. A keyed hash of all of its 40 bytes takes a tenth
    /// of the instructions of a small READ, and the kernel makes the handles, not a peer.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (words, _) = self.bytes.as_chunks::<8>();
        let add = |sum: u64, word: &[u8; 8]| {
            (sum ^ u64::from_ne_bytes(*word)).wrapping_mul(HASH_FACTOR).rotate_left(32)
        };
        state.write_u64(words.iter().fold(self.len.into(), add));
    }
}

impl KernelHandle {
    /// A handle from its stored parts; `None` if `bytes` is empty or longer than
    /// [`KERNEL_HANDLE_BYTES_MAX`].
    ///
    /// The parts may come from anywhere: a handle that no file has is refused when it is opened.
    pub fn from_parts(kind: i32, bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok().filter(|&len| len > 0)?;
        let mut inline = [0; KERNEL_HANDLE_BYTES_MAX];
        inline.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { kind, len, bytes: inline })
    }

    /// The kernel's handle type.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// The inode number in the handle, for the handle types whose content is known: those of ext4
    /// and most others (`FILEID_INO32_GEN`), XFS with 64-bit inodes, and btrfs.
    pub fn inode(&self) -> Option<u64> {
        const FILEID_INO32_GEN: i32 = 1;
        const XFS_FILEID_INO64_GEN: i32 = 0x81;
        const FILEID_BTRFS_WITHOUT_PARENT: i32 = 0x4d;
        match self.kind {
            FILEID_INO32_GEN => {
                let (inode, _generation) = self.bytes().split_first_chunk()?;
                Some(u32::from_ne_bytes(*inode).into())
            }
            XFS_FILEID_INO64_GEN | FILEID_BTRFS_WITHOUT_PARENT => {
                let (inode, _generation) = self.bytes().split_first_chunk()?;
                Some(u64::from_ne_bytes(*inode))
            }
            _ => None,
        }
    }

    /// The opaque content, 1 to [`KERNEL_HANDLE_BYTES_MAX`] bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for KernelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelHandle({}, ", self.kind)?;
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// The handle of the entry `name` in `dir`, or with `None` of the file behind the descriptor itself
/// (which may be an `O_PATH` one). A symbolic link is not followed: the handle is the link's own.
///
/// # Errors
/// As `name_to_handle_at(2)`: `ENOENT` and the like for the name, `EOPNOTSUPP` for a file system
/// without handles, `EOVERFLOW` for one whose handles are longer than [`KERNEL_HANDLE_BYTES_MAX`].
pub fn name_to_handle(dir: BorrowedFd<'_>, name: Option<&CStr>) -> io::Result<KernelHandle> {
    let flags = if name.is_some() { 0 } else { libc::AT_EMPTY_PATH };
    let name = name.unwrap_or(c"");
    let mut raw =
        RawHandle { bytes_len: RAW_BYTES_MAX, kind: 0, bytes: [0; KERNEL_HANDLE_BYTES_MAX] };
    let mut mount_id: libc::c_int = 0;
    // SAFETY: `dir` is open while borrowed; `name` is NUL-terminated; `raw` has the kernel's layout
    // with room for the `bytes_len` content bytes it announces, and `mount_id` is an int; all
    // outlive the call, and the kernel keeps no pointer.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags,
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    let content = raw.bytes.get(..raw.bytes_len as usize);
    content
        .and_then(|content| KernelHandle::from_parts(raw.kind, content))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EOVERFLOW))
}

/// Opens the file that `handle` names on the file system that holds `mount` (any descriptor on it,
/// not an `O_PATH` one). The new descriptor closes on exec.
///
/// The call needs CAP_DAC_READ_SEARCH, which a thread that acts as a user does not have, and checks
/// no permission: open as the server with `O_PATH`, and reopen as the user (through
/// `/proc/self/fd`) where permission matters. `O_PATH` also neither blocks on a FIFO nor starts a
/// device.
///
/// May block.
///
/// # Errors
/// As `open_by_handle_at(2)`: `ESTALE` when the file is gone or the handle is not one of this file
/// system, `EPERM` when the thread lacks the capability, `ELOOP` for a symbolic link without
/// `O_PATH`.
pub fn open_by_handle(
    mount: BorrowedFd<'_>,
    handle: &KernelHandle,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    for _ in 1..OPENS_MAX {
        match open_by_handle_once(mount, handle, flags) {
            // The handle of a deleted file whose inode number a new file is about to get: until
            // that is made, `iget_locked` returns no inode, as if there were no memory (ext4,
            // f2fs).
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                std::thread::sleep(OPENS_APART);
            }
            opened => return opened,
        }
    }
    open_by_handle_once(mount, handle, flags)
}

fn open_by_handle_once(
    mount: BorrowedFd<'_>,
    handle: &KernelHandle,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let mut raw =
        RawHandle { bytes_len: u32::from(handle.len), kind: handle.kind, bytes: handle.bytes };
    let flags = flags | OFlags::CLOEXEC;
    // SAFETY: `mount` is open while borrowed; `raw` has the kernel's layout, announces no more
    // content than it has, and outlives the call, which keeps no pointer.
    let outcome = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags.bits())
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = i32::try_from(outcome).expect("a descriptor is an int");
    // SAFETY: the kernel has just made this descriptor for us, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Whether the file system under `dir` has handles and this process may open them, found out by
/// trying.
pub fn can_open_by_handle(dir: BorrowedFd<'_>) -> bool {
    name_to_handle(dir, None).and_then(|handle| open_by_handle(dir, &handle, OFlags::PATH)).is_ok()
}

/// `struct file_handle` of the kernel with room for the longest handle kept.
#[repr(C)]
struct RawHandle {
    /// Room before `name_to_handle_at`, used length after it.
    bytes_len: u32,
    kind: i32,
    bytes: [u8; KERNEL_HANDLE_BYTES_MAX],
}

#[expect(clippy::cast_possible_truncation, reason = "40 fits")]
const RAW_BYTES_MAX: u32 = KERNEL_HANDLE_BYTES_MAX as u32;

#[cfg(test)]
mod tests;
