//! Files of a server in this process that tests READ without a connection.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use io::{ByteRange, FileVersion, Identity, IoMode, IoPolicy};
use rustix::fs::Mode;

use super::Vfs;
use super::read_data::Read;
use crate::fs::{Caller, OpenedFor, PATH_ONLY};
use crate::inode_cache::{Attributes, Inode, InodeKey, Permitted, Reading};
use crate::server::Server;
use crate::test_server::{config, root};
use crate::trace::CallId;

/// A file that may be read.
pub(super) struct Readable {
    permitted: Permitted<Reading>,
    reader: Arc<OwnedFd>,
    attributes: Attributes,
    version: FileVersion,
}

impl Readable {
    /// A file as it is now.
    pub(super) async fn of(vfs: &Vfs, file: &Arc<Inode>) -> Self {
        let live = vfs.live_attributes(file).await.unwrap();
        let (groups, opened, identity) = ([].into(), OpenedFor::default(), Identity::Server);
        let caller =
            Caller { uid: 0, gid: 0, groups, read_only: true, opened, client: None, identity };
        let permitted = Permitted::check(&caller, file, &live, &vfs.engine).await.unwrap();
        let changed = (live.ctime.seconds, live.ctime.nanoseconds);
        let version = FileVersion { changed, size: live.size, changes: file.changes() };
        let reader = vfs.reader(&permitted).await.unwrap();
        Self { permitted, reader, attributes: file.lock.attributes(live), version }
    }

    /// A READ of the file.
    pub(super) fn read(&self, mode: IoMode, range: ByteRange) -> Read<'_> {
        Read {
            file: &self.permitted,
            reader: Arc::clone(&self.reader),
            call: CallId::local(1, 1),
            policy: IoPolicy { read: mode, ..IoPolicy::default() },
            range,
            attributes: self.attributes,
            version: self.version,
        }
    }
}

/// A server of the directory `export` in `dir`.
pub(super) async fn serve(dir: &Path) -> Server {
    Server::start(config(dir, "", "")).await.unwrap()
}

/// Opens the object at `path` of its only export.
pub(super) async fn open(server: &Server, path: &Path) -> Arc<Inode> {
    let (vfs, root) = (&server.service().vfs, root(server));
    let opened = rustix::fs::open(path, PATH_ONLY, Mode::empty()).unwrap();
    let handle = root.identify(opened.as_fd()).unwrap();
    let (fd, attributes) = root.open(&handle).unwrap();
    let room = vfs.room(&InodeKey::new(&root, handle), root.device()).await;
    vfs.inode_cache.add(root, handle, attributes.file_type, (fd, room))
}
