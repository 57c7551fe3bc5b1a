//! Exports on two devices, for tests of what one may not wait for on the other.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use io::{Engine, EngineConfig, Share};
use rustix::fs::{CWD, Mode, openat};
use tempfile::TempDir;

use super::busy_devices::Device;
use super::{InodeCache, InodeKey};
use crate::export::{ExportRoot, FileSystems};
use crate::fs::{PATH_ONLY, attributes_of};
use crate::skip::skip;

/// An export with a file and a directory, both open and not used.
pub(super) struct TestExport {
    pub(super) file: InodeKey,
    pub(super) directory: InodeKey,
    dir: TempDir,
}

impl TestExport {
    /// One on the disk of the temporary directory and one in memory; `None`, with the reason
    /// printed, where there are no two devices.
    pub(super) fn on_two_devices(cache: &InodeCache) -> Option<[Self; 2]> {
        let memory = Path::new("/dev/shm");
        if !memory.exists() {
            skip("no /dev/shm");
            return None;
        }
        let exports = [
            Self::in_directory(cache, 1, &std::env::temp_dir()),
            Self::in_directory(cache, 2, memory),
        ];
        if exports[0].device() == exports[1].device() {
            skip("/dev/shm is no device of its own");
            return None;
        }
        Some(exports)
    }

    pub(super) fn in_directory(cache: &InodeCache, id: u32, parent: &Path) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let root = ExportRoot::open_path(
            id,
            dir.path(),
            &FileSystems::default(),
            std::sync::Arc::default(),
        )
        .unwrap();
        let root = Arc::new(root);
        let [file, directory] = [dir.path().join("f"), dir.path().join("d")];
        std::fs::write(&file, "data").unwrap();
        std::fs::create_dir(&directory).unwrap();
        let [file, directory] = [file, directory].map(|path| open(cache, &root, &path));
        Self { file, directory, dir }
    }

    /// Opens the file if it is not open.
    pub(super) fn reopen(&self, cache: &InodeCache, root: &Arc<ExportRoot>) {
        if cache.find(&self.file).is_none() {
            assert!(open(cache, root, &self.dir.path().join("f")) == self.file);
        }
    }

    pub(super) fn file_path(&self) -> PathBuf {
        self.dir.path().join("f")
    }

    /// Removes the file, as a local program does.
    pub(super) fn remove_file(&self) {
        std::fs::remove_file(self.file_path()).unwrap();
    }

    pub(super) fn device(&self) -> Device {
        attributes_of(std::fs::File::open(self.dir.path()).unwrap()).unwrap().device
    }

    /// Occupies the only data thread of the device until the sender is dropped.
    pub(super) fn block_data_thread(&self, engine: &Engine) -> mpsc::Sender<()> {
        let _entered = Share::new(&engine.device(self.device()), 0).enter();
        let (release, blocked) = mpsc::channel::<()>();
        assert!(engine.leave_to_data(move || assert!(blocked.recv().is_err())));
        release
    }
}

fn open(cache: &InodeCache, root: &Arc<ExportRoot>, path: &Path) -> InodeKey {
    let fd = openat(CWD, path, PATH_ONLY, Mode::empty()).unwrap();
    let handle = root.identify(fd.as_fd()).unwrap();
    let file_type = attributes_of(&fd).unwrap().file_type;
    let room = cache.any_room();
    cache.add(Arc::clone(root), handle, file_type, (fd, room)).key()
}

pub(super) fn engine(data_threads: usize) -> Arc<Engine> {
    let config = EngineConfig { data_threads, metadata_threads: 1, queue_max: 16 };
    Arc::new(Engine::new(config).unwrap())
}
