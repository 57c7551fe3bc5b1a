//! Mounts a FUSE file system and negotiates its features with the kernel (FUSE_INIT).

use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::os::fd::AsFd as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use fuser::SessionACL;
use fuser::{Config, Filesystem, INodeNo, InitFlags, KernelConfig, MountOption, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tracing::debug;

use super::mount_table::{MountLine, MountTable};
use crate::error::errno_text;
use crate::mount_options::FuseOptions;
use crate::options::{MountOptions, UseReaddirplus};

/// A mounted file system, unmounted on drop. A session has to answer its requests.
pub(super) struct Kernel {
    /// Never dropped, because fuser would unmount again, and end another mount on the same
    /// directory.
    session: ManuallyDrop<fuser::Session<Agreement>>,
    dir: PathBuf,
    /// Its line in the kernel's table of mounts, if that could be read.
    line: Option<MountLine>,
    maps_direct_files: bool,
}

/// Why the file system cannot be mounted on a directory. The message is for the user.
#[derive(thiserror::Error, Debug)]
pub enum MountError {
    /// The path is not a directory, or cannot be accessed.
    #[error("{}: {}", dir.display(), errno_text(*errno))]
    Directory {
        /// Where to mount.
        dir: PathBuf,
        /// The error of accessing it.
        errno: Errno,
    },
    /// The mount point has a FUSE mount whose process has ended.
    #[error(
        "{0}: a file system whose program has ended is mounted there; unmount what is mounted \
         below it, then end it with `fusermount -u {0}`", dir.display()
    )]
    Dead {
        /// Where to mount.
        dir: PathBuf,
    },
    /// /dev/fuse cannot be opened.
    #[error("/dev/fuse: {source}")]
    Device {
        /// The error of opening it.
        source: io::Error,
    },
    /// `auto_unmount` without `allow_other`.
    #[error("option auto_unmount: requires allow_other")]
    AutoUnmountAlone,
    /// Without CAP_SYS_ADMIN mounting needs fusermount, which is not installed.
    #[error("no permission to mount: neither fusermount3 nor fusermount is installed")]
    NoFusermount,
    /// No mount of this program is there to be changed.
    #[error("{}: not a mount of spillway", dir.display())]
    NotMounted {
        /// The directory.
        dir: PathBuf,
    },
    /// The kernel or `fusermount` refuses.
    #[error("{}: {why}", dir.display())]
    Refused {
        /// Where to mount.
        dir: PathBuf,
        /// Its message.
        why: String,
    },
}

impl Kernel {
    /// Mounts on `dir` and negotiates with the kernel. Blocks.
    pub(super) fn mount(
        dir: &Path,
        source: &str,
        nfs: &MountOptions,
        fuse: &FuseOptions,
    ) -> Result<Self, MountError> {
        let dir = check(dir)?;
        if fuse.auto_unmount && !fuse.allow_other {
            return Err(MountError::AutoUnmountAlone);
        }
        // Checked for fusermount too, which opens the device as this user.
        let device = fs::File::options().read(true).write(true).open("/dev/fuse");
        device.map_err(|source| MountError::Device { source })?;
        let by_fusermount = fuse.auto_unmount || !may_mount(&dir);
        if by_fusermount && fusermount().is_none() {
            return Err(MountError::NoFusermount);
        }
        let capabilities = Arc::default();
        let agreement =
            Agreement { readdirplus: nfs.readdirplus, capabilities: Arc::clone(&capabilities) };
        let session =
            fuser::Session::new(agreement, &dir, &config(source, nfs, fuse, by_fusermount))
                .map_err(|error| refused(&dir, &error))?;
        let maps_direct_files = capabilities
            .get()
            .is_some_and(|flags: &InitFlags| flags.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP));
        let session = ManuallyDrop::new(session);
        let line = MountTable::read().ok().and_then(|table| table.topmost_on(&dir).cloned());
        Ok(Self { session, dir, line, maps_direct_files })
    }

    /// The device of the kernel's requests and our replies.
    pub(super) fn device(&self) -> io::Result<OwnedFd> {
        self.session.as_fd().try_clone_to_owned()
    }

    /// Whether a program can map a file shared that was opened with `FOPEN_DIRECT_IO`: since Linux
    /// 6.6.
    pub(super) fn maps_direct_files(&self) -> bool {
        self.maps_direct_files
    }

    /// Sends notifications of changes to the kernel.
    pub(super) fn notifier(&self) -> io::Result<Notifier> {
        Ok(Notifier { fuser: self.session.notifier(), device: Arc::new(self.device()?) })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts; a file system in use is detached. Leaves all other mounts alone, on the directory
    /// and below it. Blocks.
    ///
    /// Not through fuser: with `auto_unmount` it leaves that to fusermount, which waits for the end
    /// of this process, and it ignores a refusal of fusermount.
    pub(super) fn unmount(&self) -> io::Result<Unmounted> {
        if self.is_ended() {
            return Ok(Unmounted::Gone);
        }
        // umount(2) takes the topmost mount on a path.
        if let Some(line) = &self.line
            && let Ok(table) = MountTable::read()
        {
            let Some(now) = table.find(line) else { return Ok(Unmounted::Detached) };
            if now.dir != self.dir {
                let sentence = format!("it has been moved to {}", now.dir.display());
                return Err(io::Error::other(sentence));
            }
            if table.is_covered(now) {
                return Ok(Unmounted::Covered);
            }
        }
        match unmount(&self.dir, UnmountFlags::empty()) {
            Ok(()) => Ok(Unmounted::Gone),
            // MNT_DETACH would take them with it.
            Err(Errno::BUSY) if self.has_mounts_below() => Ok(Unmounted::Parent),
            Err(Errno::BUSY) => {
                unmount(&self.dir, UnmountFlags::DETACH)?;
                Ok(Unmounted::Detached)
            }
            Err(Errno::PERM) => self.unmount_by_fusermount(),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Unmounts with the rights of fusermount, which ordinary users need.
    fn unmount_by_fusermount(&self) -> io::Result<Unmounted> {
        let program = fusermount().ok_or(Errno::PERM)?;
        let run = |options: &[&str]| {
            Command::new(&program).args(options).arg("--").arg(&self.dir).output()
        };
        if run(&["-u"])?.status.success() {
            return Ok(Unmounted::Gone);
        }
        if self.has_mounts_below() {
            return Ok(Unmounted::Parent);
        }
        let done = run(&["-u", "-z"])?;
        if done.status.success() {
            return Ok(Unmounted::Detached);
        }
        Err(io::Error::other(words_of_fusermount(&String::from_utf8_lossy(&done.stderr))))
    }

    /// Whether file systems are mounted on directories of this one, as far as it is known.
    fn has_mounts_below(&self) -> bool {
        let Some(line) = &self.line else { return false };
        MountTable::read().is_ok_and(|table| table.has_mounts_below(line))
    }

    /// Whether it is unmounted already. Another mount can be on its directory then.
    fn is_ended(&self) -> bool {
        let mut device = [PollFd::new(&*self.session, PollFlags::empty())];
        poll(&mut device, Some(&Timespec::default())).is_ok()
            && device[0].revents().contains(PollFlags::ERR)
    }

    /// Forgets a file system that is unmounted.
    pub(super) fn leave(self) {
        mem::forget(self);
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            debug!(%error, "cannot unmount");
        }
    }
}

/// Notifies the kernel of changes.
#[derive(Clone, Debug)]
pub(super) struct Notifier {
    fuser: fuser::Notifier,
    device: Arc<OwnedFd>,
}

impl Notifier {
    /// Drops the attributes of `node` and its pages from `offset` on; no pages if `offset` is
    /// negative. Waits for requests that hold these pages.
    pub(super) fn invalidate(&self, node: u64, offset: i64) -> io::Result<()> {
        self.fuser.inval_inode(INodeNo(node), offset, 0)
    }

    /// Makes the kernel look up the name `name` of the directory `dir` again before its next use.
    /// Waits for requests that hold the directory.
    ///
    /// Before Linux 6.2 the kernel ignores the flag and drops the name, and with it what is mounted
    /// there.
    pub(super) fn expire_name(&self, dir: u64, name: &[u8]) -> io::Result<()> {
        let name_bytes = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        // Two heads and the NUL behind the name.
        let length = 2 * NOTICE_HEAD_BYTES + name_bytes + 1;
        let mut notice = Vec::with_capacity(length as usize);
        for field in [length, FUSE_NOTIFY_INVAL_ENTRY] {
            notice.extend(field.to_ne_bytes());
        }
        // `unique`, which is 0 in notifications.
        notice.extend(0_u64.to_ne_bytes());
        notice.extend(dir.to_ne_bytes());
        for field in [name_bytes, FUSE_EXPIRE_ONLY] {
            notice.extend(field.to_ne_bytes());
        }
        notice.extend(name);
        notice.push(0);
        rustix::io::write(&*self.device, &notice)?;
        Ok(())
    }
}

/// The outcome of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The file system is unmounted.
    Gone,
    /// Programs still use it. It has no path any more, and ends with this process.
    Detached,
    /// It stays mounted below another mount on the same directory, and fails with ENOTCONN once
    /// this process has ended.
    Covered,
    /// It stays mounted, with other file systems on its directories, and fails with ENOTCONN once
    /// this process has ended.
    Parent,
}

/// Sets the kernel's read-ahead of `dir` to `bytes`, if that is permitted: with the default of 128
/// KiB a read of 1 MiB takes eight requests. Asks for the attributes of the
/// root, so that requests must be answered. Blocks.
pub(super) fn widen_read_ahead(dir: &Path, bytes: u32) {
    let widen = || {
        let device = fs::metadata(dir)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        fs::write(path, (bytes / 1024).to_string())
    };
    if let Err(error) = widen() {
        debug!(%error, "cannot set the kernel's read-ahead");
    }
}

/// The absolute path of `dir`, which must be a directory.
pub(super) fn check(dir: &Path) -> Result<PathBuf, MountError> {
    let failure = |error: io::Error| match Errno::from_io_error(&error) {
        Some(Errno::NOTCONN) => MountError::Dead { dir: dir.to_owned() },
        errno => {
            MountError::Directory { dir: dir.to_owned(), errno: errno.unwrap_or(Errno::INVAL) }
        }
    };
    let path = fs::canonicalize(dir).map_err(failure)?;
    if fs::metadata(&path).map_err(failure)?.is_dir() {
        Ok(path)
    } else {
        Err(MountError::Directory { dir: dir.to_owned(), errno: Errno::NOTDIR })
    }
}

/// Whether mount(2) is permitted on `dir`. If it returns EPERM, fuser runs fusermount: for users,
/// but also for root without CAP_SYS_ADMIN, as in containers.
fn may_mount(dir: &Path) -> bool {
    // This call mounts nothing: without options FUSE returns EINVAL.
    let (flags, options) = (MountFlags::empty(), None::<&CStr>);
    mount("none", dir, "fuse", flags, options) != Err(Errno::PERM)
}

/// The fusermount that fuser will use.
fn fusermount() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FUSERMOUNT_PATH") {
        return Some(PathBuf::from(path)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<_> = std::env::split_paths(&path).collect();
    dirs.extend(["/bin", "/sbin"].map(PathBuf::from));
    let in_dir = |dir: &PathBuf| ["fusermount3", "fusermount"].map(|name| dir.join(name));
    dirs.iter().flat_map(in_dir).find(|path| path.exists())
}

fn config(source: &str, nfs: &MountOptions, fuse: &FuseOptions, by_fusermount: bool) -> Config {
    let mut name = fuse.fs_name.as_deref().unwrap_or(source).to_owned();
    if by_fusermount {
        // It gets all options in one list, in which fuser escapes nothing.
        name = name.replace('\\', r"\\").replace(',', r"\,");
    }
    let flags = fuse.flags;
    let mut options = vec![
        MountOption::FSName(name),
        // A custom option reaches the kernel with and without fusermount.
        MountOption::CUSTOM(format!("subtype={SUBTYPE}")),
        if nfs.read_only { MountOption::RO } else { MountOption::RW },
        if flags.dev { MountOption::Dev } else { MountOption::NoDev },
        if flags.suid { MountOption::Suid } else { MountOption::NoSuid },
        if flags.exec { MountOption::Exec } else { MountOption::NoExec },
    ];
    if nfs.sync {
        // The kernel sends FSYNC after each write(2) and returns its error, also behind a first
        // part; with `FOPEN_DIRECT_IO` it sets O_DSYNC in each WRITE instead.
        options.push(MountOption::Sync);
    }
    if fuse.default_permissions {
        options.push(MountOption::DefaultPermissions);
    }
    if fuse.auto_unmount {
        options.push(MountOption::AutoUnmount);
    }
    if let Some(bytes) = fuse.max_read {
        options.push(MountOption::CUSTOM(format!("max_read={bytes}")));
    }
    let mut config = Config::default();
    config.mount_options = options;
    config.acl = if fuse.allow_other { SessionACL::All } else { SessionACL::Owner };
    config
}

pub(super) fn refused(dir: &Path, error: &io::Error) -> MountError {
    let dir = dir.to_owned();
    match Errno::from_io_error(error) {
        Some(Errno::NOTCONN) => MountError::Dead { dir },
        Some(errno) => MountError::Refused { dir, why: errno_text(errno) },
        None => MountError::Refused { dir, why: words_of_fusermount(&error.to_string()) },
    }
}

/// The first line of fusermount's message, without its name or path in front.
fn words_of_fusermount(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    match line.split_once(": ") {
        Some((name, words)) if name.contains("fusermount") => words.to_owned(),
        _ => line.to_owned(),
    }
}

/// The answer to FUSE_INIT. `session` answers all other requests.
struct Agreement {
    readdirplus: UseReaddirplus,
    /// Those of the kernel, set by FUSE_INIT.
    capabilities: Arc<OnceLock<InitFlags>>,
}

impl Filesystem for Agreement {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let capabilities = *self.capabilities.get_or_init(|| config.capabilities());
        for flag in self.wanted(capabilities).iter() {
            // An old kernel does not have all capabilities; the mount works without them.
            let _ = config.add_capabilities(flag);
        }
        let refused =
            |nearest| io::Error::other(format!("the kernel allows no more than {nearest}"));
        config.set_max_write(REQUEST_BYTES_MAX).map_err(refused)?;
        config.set_max_background(BACKGROUND_MAX).map_err(|at_least| {
            io::Error::other(format!("the kernel requires at least {at_least} requests"))
        })?;
        Ok(())
    }
}

impl Agreement {
    /// Not among these: `WRITEBACK_CACHE`, because write-back is done here, in file order and with
    /// its errors reported; `AUTO_INVAL_DATA`, because the kernel would take our own changes for
    /// foreign ones and drop the pages just written; `EXPLICIT_INVAL_DATA`, without which the
    /// kernel drops a file's pages when it learns another size, of which own changes are none;
    /// `ATOMIC_O_TRUNC`, with which the kernel does not lock the file until its size is 0: a
    /// write(2) with `O_APPEND` would come with the old size as its offset; remote locks, which
    /// hold on this machine.
    fn wanted(&self, capabilities: InitFlags) -> InitFlags {
        let mut flags = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_EXPORT_SUPPORT;
        match self.readdirplus {
            UseReaddirplus::Learned => {
                flags |= InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO;
            }
            UseReaddirplus::Always => flags |= InitFlags::FUSE_DO_READDIRPLUS,
            UseReaddirplus::Never => {}
        }
        // The server takes set-id bits away. A kernel that did it would ask as a user who may
        // write, and not change the mode.
        flags |= if capabilities.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2) {
            InitFlags::FUSE_HANDLE_KILLPRIV_V2
        } else {
            InitFlags::FUSE_HANDLE_KILLPRIV
        };
        flags
    }
}

/// mount(8) shows the type `fuse.spillway`.
pub(super) const SUBTYPE: &str = "spillway";

/// Bytes of `struct fuse_out_header` of the kernel (the length, a code, the number of a request),
/// and of `struct fuse_notify_inval_entry_out` (the directory, the length of the name, flags).
const NOTICE_HEAD_BYTES: u32 = 16;

/// A code of `enum fuse_notify_code`.
const FUSE_NOTIFY_INVAL_ENTRY: u32 = 3;

/// A flag with it, which fuser does not set.
const FUSE_EXPIRE_ONLY: u32 = 1;

/// Bytes of a READ or WRITE of the kernel at most, which is what it takes by default.
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Maximum of background requests of the kernel, mainly read-ahead.
const BACKGROUND_MAX: u16 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_options::MountRequest;

    fn config_of(options: &str) -> Config {
        let request: MountRequest = options.parse().unwrap();
        config("host:/export", &request.nfs, &request.fuse, false)
    }

    #[test]
    fn options_reach_the_kernel() {
        let plain = config_of("");
        assert_eq!(plain.acl, SessionACL::Owner);
        for option in [MountOption::RW, MountOption::NoDev, MountOption::NoSuid, MountOption::Exec]
        {
            assert!(plain.mount_options.contains(&option), "{option:?}");
        }
        assert!(plain.mount_options.contains(&MountOption::FSName("host:/export".to_owned())));
        let list = "ro,sync,allow_other,default_permissions,auto_unmount,max_read=8192,suid";
        let asked = config_of(list);
        assert_eq!(asked.acl, SessionACL::All);
        for option in [
            MountOption::RO,
            MountOption::Sync,
            MountOption::Suid,
            MountOption::DefaultPermissions,
            MountOption::AutoUnmount,
            MountOption::CUSTOM("max_read=8192".to_owned()),
        ] {
            assert!(asked.mount_options.contains(&option), "{option:?}");
        }
    }

    #[test]
    fn a_source_is_escaped_for_fusermount_alone() {
        let MountRequest { nfs, fuse, .. } = MountRequest::default();
        for (by_fusermount, name) in [(false, r"h:/a, b\c"), (true, r"h:/a\, b\\c")] {
            let made = config(r"h:/a, b\c", &nfs, &fuse, by_fusermount);
            assert!(made.mount_options.contains(&MountOption::FSName(name.to_owned())));
        }
    }

    #[test]
    fn write_back_and_locks_stay_here_and_an_open_cuts_no_file() {
        let agreement = |readdirplus| Agreement { readdirplus, capabilities: Arc::default() };
        let flags = agreement(UseReaddirplus::Learned).wanted(InitFlags::all());
        for never in [
            InitFlags::FUSE_WRITEBACK_CACHE,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
        ] {
            assert!(!flags.intersects(never), "{never:?}");
        }
        let never = agreement(UseReaddirplus::Never).wanted(InitFlags::all());
        assert!(!never.contains(InitFlags::FUSE_DO_READDIRPLUS));
    }

    #[test]
    fn the_error_names_a_path_that_is_no_directory() {
        let sentence = |path: &str| check(Path::new(path)).unwrap_err().to_string();
        assert_eq!(sentence("/nonexistent/x"), "/nonexistent/x: No such file or directory");
        assert_eq!(sentence("/dev/null"), "/dev/null: Not a directory");
    }

    #[test]
    fn fusermount_speaks_without_its_name() {
        let text = "fusermount3: user has no write access to mountpoint /mnt\n";
        assert_eq!(words_of_fusermount(text), "user has no write access to mountpoint /mnt");
        let text = "/bin/fusermount: mountpoint is not empty\nfusermount: if you are sure";
        assert_eq!(words_of_fusermount(text), "mountpoint is not empty");
        assert_eq!(words_of_fusermount("Unexpected EOF"), "Unexpected EOF");
    }
}
