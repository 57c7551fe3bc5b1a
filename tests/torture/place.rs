//! Where the files lie: a temporary directory, or a file system of its own on a loop device.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::skip::skip;

const IMAGE_BYTES: u64 = 1 << 30;

/// A directory to serve, removed in the end.
pub(crate) struct Place {
    mounted: Option<PathBuf>,
    export: PathBuf,
    may_lack_direct: bool,
    in_memory: bool,
    _dir: TempDir,
}

impl Place {
    /// A directory below `SPILLWAY_TORTURE_DIR`, or else below the system's temporary directory.
    pub(crate) fn in_directory() -> Self {
        let dir = scratch();
        let export = made(&dir.path().join("export"));
        Self { mounted: None, export, may_lack_direct: true, in_memory: false, _dir: dir }
    }

    /// A directory of a tmpfs; `None`, with the reason printed, where there is none.
    pub(crate) fn in_memory() -> Option<Self> {
        match TempDir::new_in("/dev/shm") {
            Ok(dir) => {
                let export = made(&dir.path().join("export"));
                Some(Self {
                    mounted: None,
                    export,
                    may_lack_direct: true,
                    in_memory: true,
                    _dir: dir,
                })
            }
            Err(error) => {
                skip(format_args!("/dev/shm: {error}"));
                None
            }
        }
    }

    /// Whether stores through a mapping change a file's times: a tmpfs does not see them.
    pub(crate) fn keeps_times_of_mappings(&self) -> bool {
        !self.in_memory
    }

    /// Whether each change of a directory that was looked at gives it another time. A tmpfs gives
    /// it that of the file whose name came or went, which may be the same for some milliseconds;
    /// nor does it list names in one order after renames over names (Linux 6.18).
    pub(crate) fn renews_times_of_directories(&self) -> bool {
        !self.in_memory
    }

    /// A new file system of `kind`; `None`, with the reason printed, where that cannot be had.
    pub(crate) fn on(kind: &str, mkfs_options: &[&str]) -> Option<Self> {
        let skipped = |why: &str| skip(format_args!("{kind}: {why}"));
        if !rustix::process::geteuid().is_root() {
            skipped("a loop mount needs root");
            return None;
        }
        if !Path::new("/dev/loop-control").exists() {
            skipped("this machine has no loop devices");
            return None;
        }
        let dir = scratch();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
        let force = if kind == "ext4" { "-F" } else { "-f" };
        let mkfs = format!("mkfs.{kind}");
        let image = image.to_str().unwrap();
        if let Err(why) = run(&mkfs, &[&["-q", force], mkfs_options, &[image]].concat()) {
            skipped(&why);
            return None;
        }
        let mount = made(&dir.path().join("mount"));
        if let Err(why) = run("mount", &["-o", "loop", image, mount.to_str().unwrap()]) {
            skipped(&why);
            return None;
        }
        let export = made(&mount.join("export"));
        // btrfs does direct I/O, but as of Linux 6.18 it does not tell at which alignment.
        let may_lack_direct = kind == "btrfs";
        Some(Self { mounted: Some(mount), export, may_lack_direct, in_memory: false, _dir: dir })
    }

    /// The directory that is served.
    pub(crate) fn export(&self) -> &Path {
        &self.export
    }

    /// Whether the server may find that this file system reports no direct I/O.
    pub(crate) fn may_lack_direct(&self) -> bool {
        self.may_lack_direct
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mount) = &self.mounted {
            // Not lazily: the image is removed next, and must not be in use then.
            if let Err(why) = run("umount", &[mount.to_str().unwrap()]) {
                eprintln!("{why}");
                let _ = run("umount", &["--lazy", mount.to_str().unwrap()]);
            }
        }
    }
}

fn scratch() -> TempDir {
    match env::var_os("SPILLWAY_TORTURE_DIR") {
        Some(below) => TempDir::new_in(below).unwrap(),
        None => TempDir::new().unwrap(),
    }
}

/// A directory that everyone may use.
fn made(path: &Path) -> PathBuf {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    path.to_owned()
}

/// Runs a program of the system, which Debian keeps where an ordinary PATH does not lead.
fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let path = env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin:/sbin";
    match Command::new(program).args(args).env("PATH", path).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}
