//! Files of a server in this process that tests READ without a connection.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use io::{ByteRange, FileVersion, Identity, IoMode, IoPolicy, LaneKind, Share};
use rustix::fs::Mode;

use super::Vfs;
use super::read_data::Read;
use crate::export::{Flavor, Object, Peer, Purpose};
use crate::fs::{Caller, OpenedFor, PATH_ONLY, attributes_of};
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
        let caller = Caller { read_only: true, ..root_caller() };
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
    let file_type = attributes_of(&opened).unwrap().file_type;
    let room = vfs.room(&InodeKey::new(&root, handle), root.device()).await;
    vfs.inode_cache.add(root, handle, file_type, (opened, room))
}

/// An open object as the export of the server shows it to this machine.
pub(super) fn object(server: &Server, file: &Inode) -> Object {
    let exports = server.service().exports.load_full();
    let export = exports.table.iter().next().unwrap();
    let peer = Peer { address: "127.0.0.1:700".parse().unwrap(), purpose: Purpose::Data };
    exports.admit(export, &peer, Flavor::Sys).unwrap().root().found(*file.handle())
}

/// The server's own user.
pub(super) fn root_caller() -> Caller {
    let (identity, opened) = (Identity::Server, OpenedFor::default());
    Caller { identity, read_only: false, opened, client: None }
}

/// Occupies the threads of a lane that a client may have with jobs of it that end when the senders
/// are dropped; more of them wait in its queue. No thread is free for the client when this returns.
pub(super) fn block_threads(client: &Share, lane: LaneKind) -> Vec<Sender<()>> {
    let (taken, reports) = channel();
    let block = |_| {
        let ((release, blocked), taken) = (channel::<()>(), taken.clone());
        let job = move || {
            // The reports of jobs that come from the queue later are not waited for.
            let _ = taken.send(());
            assert!(blocked.recv().is_err());
        };
        assert!(client.leave_to(lane, job));
        release
    };
    let threads = match lane {
        LaneKind::Data => DATA_THREADS,
        LaneKind::Metadata => METADATA_THREADS,
    };
    let releases = (0..threads).map(block).collect();
    // So many are given to one client.
    for _ in 0..threads - threads / 4 {
        reports.recv_timeout(Duration::from_secs(20)).expect("a thread takes the job");
    }
    releases
}

/// Those of a server by default.
const DATA_THREADS: usize = 44;
const METADATA_THREADS: usize = 22;
