//! Changes that are counted, and so flushed on an export that is `sync`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use io::Identity;
use tempfile::TempDir;

use super::readable::{object, open, root_caller, serve};
use super::{AttributeChange, Caller, CreateMode, EntryName, SetXattr, Vfs};
use crate::export::Object;
use crate::fs::Status;
use crate::inode_cache::Inode;
use crate::server::Server;
use crate::test_server::directory;

/// A server of a directory with the file `f`.
struct Rig {
    server: Server,
    dir: TempDir,
}

impl Rig {
    async fn new() -> Self {
        let dir = directory();
        let path = dir.path().join("export/f");
        std::fs::write(&path, "data").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        Self { server: serve(dir.path()).await, dir }
    }

    fn vfs(&self) -> &Vfs {
        &self.server.service().vfs
    }

    /// The object at a path in the export.
    async fn open(&self, path: &str) -> (Object, Arc<Inode>) {
        let inode = open(&self.server, &self.dir.path().join("export").join(path)).await;
        (object(&self.server, &inode), inode)
    }

    async fn create(&self, dir: &Object, name: &[u8]) {
        let mode = CreateMode::Unchecked(AttributeChange::default());
        self.vfs().create(&root_caller(), dir, name, mode).await.result.map(drop).unwrap();
    }
}

/// A user who owns nothing.
fn stranger() -> Caller {
    let identity = Identity::User { uid: 1000, gid: 1000, groups: [].into() };
    Caller { identity, ..root_caller() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn rename_counts_once_in_each_directory() {
    let rig = Rig::new().await;
    std::fs::create_dir(rig.dir.path().join("export/d")).unwrap();
    let (parent, directory) = rig.open(".").await;
    let (other_parent, other) = rig.open("d").await;
    let rename = async |dir, name: &'static [u8]| {
        let (from, to) = (EntryName { dir: &parent, name: b"f" }, EntryName { dir, name });
        rig.vfs().rename(&root_caller(), from, to).await.result
    };
    assert_eq!(rename(&parent, b"missing/").await, Err(Status::Invalid));
    assert_eq!(directory.changes(), 0);
    assert_eq!(rename(&parent, b"g").await, Ok(()));
    assert_eq!((directory.changes(), directory.is_dirty()), (1, false));
    std::fs::write(rig.dir.path().join("export/f"), "other").unwrap();
    assert_eq!(rename(&other_parent, b"f").await, Ok(()));
    assert_eq!((directory.changes(), directory.is_dirty()), (2, false));
    assert_eq!((other.changes(), other.is_dirty()), (1, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn create_of_an_existing_file_flushes_only_what_no_flush_has_covered() {
    let rig = Rig::new().await;
    let (parent, directory) = rig.open(".").await;
    rig.create(&parent, b"f").await;
    assert_eq!(
        (directory.changes(), directory.is_dirty()),
        (1, false),
        "the name may be of a server that was killed"
    );
    rig.create(&parent, b"f").await;
    assert_eq!(directory.changes(), 1, "it is clean");
    rig.create(&parent, b"new").await;
    assert_eq!((directory.changes(), directory.is_dirty()), (2, false));
    // Another call has made a name, and is still to flush it.
    directory.note_change();
    rig.create(&parent, b"f").await;
    assert_eq!((directory.changes(), directory.is_dirty()), (3, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn refused_change_of_attributes_flushes_nothing() {
    if !io::can_assume_users() {
        return;
    }
    let rig = Rig::new().await;
    let (object, file) = rig.open("f").await;
    // Data that was written, of another client perhaps.
    file.note_change();
    let mode = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
    let owner = AttributeChange { uid: Some(1000), ..AttributeChange::default() };
    for change in [mode, owner] {
        let done = rig.vfs().setattr(&stranger(), &object, change, None, |_| false).await;
        assert_eq!(done.result, Err(Status::NotOwner));
    }
    let removed = rig.vfs().removexattr(&stranger(), &object, b"a").await.result;
    let set = rig.vfs().setxattr(&stranger(), &object, b"a", None, SetXattr::Either).await.result;
    assert!(removed.is_err() && set.is_err(), "{removed:?} {set:?}");
    assert_eq!((file.changes(), file.is_dirty()), (1, true));
    let done = rig.vfs().setattr(&root_caller(), &object, mode, None, |_| false).await;
    assert_eq!(done.result, Ok(()));
    assert_eq!((file.changes(), file.is_dirty()), (2, false));
}
