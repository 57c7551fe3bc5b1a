use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;

use rustix::fs::FileType;

use super::*;
use crate::identity::{self, Identity};
use crate::skip::{skip, skip_in_ci_too};

struct Fixture {
    directory: tempfile::TempDir,
    fd: File,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { fd: File::open(directory.path()).unwrap(), directory }
    }

    fn handle(&self, name: &str) -> io::Result<KernelHandle> {
        name_to_handle(self.fd.as_fd(), Some(&CString::new(name).unwrap()))
    }

    fn open(&self, handle: &KernelHandle, flags: OFlags) -> io::Result<OwnedFd> {
        open_by_handle(self.fd.as_fd(), handle, flags)
    }

    fn read(&self, handle: &KernelHandle) -> String {
        let mut content = String::new();
        File::from(self.open(handle, OFlags::RDONLY).unwrap())
            .read_to_string(&mut content)
            .unwrap();
        content
    }

    /// Opening handles takes a capability that an ordinary user lacks.
    fn with(body: impl FnOnce(&Self, &std::path::Path)) {
        let fixture = Self::new();
        if can_open_by_handle(fixture.fd.as_fd()) {
            body(&fixture, fixture.directory.path());
        } else {
            skip_in_ci_too("no CAP_DAC_READ_SEARCH, or no handles on this file system");
        }
    }
}

#[test]
fn parts_are_kept_within_bounds() {
    for len in [1, 8, KERNEL_HANDLE_BYTES_MAX] {
        let bytes = vec![0xa5; len];
        let handle = KernelHandle::from_parts(-7, &bytes).unwrap();
        assert_eq!((handle.kind(), handle.bytes()), (-7, bytes.as_slice()));
    }
    for len in [0, KERNEL_HANDLE_BYTES_MAX + 1, 256, 300] {
        assert!(KernelHandle::from_parts(1, &vec![0; len]).is_none(), "{len} bytes");
    }
    let handles = [(1, &[0][..]), (1, &[0, 0]), (2, &[0])];
    let distinct: HashSet<_> =
        handles.iter().map(|&(kind, bytes)| KernelHandle::from_parts(kind, bytes)).collect();
    assert_eq!(distinct.len(), 3, "length and kind count");
    assert_eq!(
        format!("{:?}", KernelHandle::from_parts(1, &[1, 0xab]).unwrap()),
        "KernelHandle(1, 01ab)"
    );
}

#[test]
fn a_handle_opens_the_file_it_was_made_from() {
    Fixture::with(|fixture, path| {
        fs::write(path.join("file"), "content").unwrap();
        let handle = fixture.handle("file").unwrap();
        let stored = KernelHandle::from_parts(handle.kind(), handle.bytes()).unwrap();
        assert_eq!(stored, handle);
        assert_eq!(fixture.read(&stored), "content");
        let file = File::open(path.join("file")).unwrap();
        assert_eq!(name_to_handle(file.as_fd(), None).unwrap(), handle, "by descriptor");
        let opened = fixture.open(&handle, OFlags::PATH).unwrap();
        assert!(rustix::io::fcntl_getfd(&opened).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(name_to_handle(opened.as_fd(), None).unwrap(), handle, "by O_PATH descriptor");
    });
}

#[test]
fn a_handle_survives_renames_and_is_shared_by_hard_links() {
    Fixture::with(|fixture, path| {
        fs::create_dir(path.join("sub")).unwrap();
        fs::write(path.join("old"), "content").unwrap();
        let handle = fixture.handle("old").unwrap();
        fs::rename(path.join("old"), path.join("sub/new")).unwrap();
        assert_eq!(fixture.read(&handle), "content");
        assert_eq!(fixture.handle("old").unwrap_err().kind(), io::ErrorKind::NotFound);

        fs::hard_link(path.join("sub/new"), path.join("link")).unwrap();
        assert_eq!(fixture.handle("link").unwrap(), handle);
        fs::remove_file(path.join("sub/new")).unwrap();
        assert_eq!(fixture.read(&handle), "content");
    });
}

#[test]
fn a_deleted_files_handle_is_stale_even_when_its_inode_is_reused() {
    Fixture::with(|fixture, path| {
        fs::write(path.join("file"), "content").unwrap();
        let handle = fixture.handle("file").unwrap();
        fs::remove_file(path.join("file")).unwrap();
        for index in 0..20 {
            fs::write(path.join(format!("later-{index}")), "other").unwrap();
        }
        let error = fixture.open(&handle, OFlags::PATH).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    });
}

/// Enough for a few to be under way when the handle is opened.
const REUSES: usize = 15_000;

#[test]
fn a_deleted_files_handle_is_stale_while_its_inode_is_being_reused() {
    Fixture::with(|fixture, path| {
        let make = || fs::write(path.join("file"), "").unwrap();
        let remove = || fs::remove_file(path.join("file")).unwrap();
        make();
        let handle = fixture.handle("file").unwrap();
        remove();
        std::thread::scope(|scope| {
            let reuse = scope.spawn(|| {
                for _ in 0..REUSES {
                    make();
                    remove();
                }
            });
            let mut errors = HashSet::new();
            while !reuse.is_finished() {
                let opened = fixture.open(&handle, OFlags::PATH);
                errors.insert(opened.err().and_then(|error| error.raw_os_error()));
            }
            assert_eq!(errors, HashSet::from([Some(libc::ESTALE)]));
        });
    });
}

#[test]
fn handles_of_no_file_are_refused() {
    Fixture::with(|fixture, path| {
        fs::write(path.join("file"), "content").unwrap();
        let real = fixture.handle("file").unwrap();
        let mut forged = real.bytes().to_vec();
        forged.fill(0xff);
        for (kind, bytes) in
            [(real.kind(), forged.as_slice()), (real.kind(), &[1]), (250, &[1; 40])]
        {
            let handle = KernelHandle::from_parts(kind, bytes).unwrap();
            let error = fixture.open(&handle, OFlags::PATH).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{handle:?}");
        }
    });
}

#[test]
fn directories_and_links_have_handles_of_their_own() {
    Fixture::with(|fixture, path| {
        fs::create_dir(path.join("directory")).unwrap();
        symlink("directory", path.join("link")).unwrap();
        let directory = fixture.handle("directory").unwrap();
        let link = fixture.handle("link").unwrap();
        assert_ne!(directory, link, "the link is not followed");
        let opened =
            File::from(fixture.open(&directory, OFlags::RDONLY | OFlags::DIRECTORY).unwrap());
        let expected = fs::metadata(path.join("directory")).unwrap();
        assert_eq!(opened.metadata().unwrap().ino(), expected.ino());
        let opened = fixture.open(&link, OFlags::PATH).unwrap();
        let mode = rustix::fs::fstat(&opened).unwrap().st_mode;
        assert_eq!(FileType::from_raw_mode(mode), FileType::Symlink);
        let error = fixture.open(&link, OFlags::RDONLY).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    });
}

#[test]
fn a_thread_acting_as_a_user_opens_no_handle() {
    if !crate::can_assume_users() {
        return skip("cannot act as other users");
    }
    Fixture::with(|fixture, path| {
        fs::write(path.join("file"), "content").unwrap();
        let handle = fixture.handle("file").unwrap();
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                let user = Identity::User { uid: 1000, gid: 1000, groups: Arc::from([]) };
                identity::assume(&user).unwrap();
                let error = fixture.open(&handle, OFlags::PATH).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            });
            opener.join().unwrap();
        });
    });
}

#[test]
fn a_file_system_without_handles_is_reported() {
    let proc = File::open("/proc/self").unwrap();
    let error = name_to_handle(proc.as_fd(), None).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert!(!can_open_by_handle(proc.as_fd()));
}
