//! Loop devices of tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device that is detached when this and all mounts of it are gone, even if the test is
/// killed.
pub(crate) struct LoopDevice {
    path: PathBuf,
    _opened: File,
}

impl LoopDevice {
    /// Attaches a device with sectors of so many bytes. The error is that of losetup.
    pub(crate) fn on(image: &Path, sector_bytes: u32) -> Result<Self, String> {
        let sector = format!("--sector-size={sector_bytes}");
        let path = losetup(&["--find", "--show", &sector, image.to_str().expect("UTF-8")])?;
        let opened = File::open(&path).map_err(|error| error.to_string())?;
        // The kernel detaches what is in use when its last user closes it.
        losetup(&["--detach", &path])?;
        Ok(Self { path: path.into(), _opened: opened })
    }

    /// The device's own path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Runs losetup; returns its output, or why it failed.
fn losetup(args: &[&str]) -> Result<String, String> {
    let output = Command::new("losetup").args(args).output().map_err(|error| error.to_string())?;
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
