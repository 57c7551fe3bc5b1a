//! COPY, slice by slice.

use std::path::PathBuf;

use rustix::fs::Mode;
use tempfile::TempDir;

use super::*;
use crate::export::{Flavor, Peer, Purpose};
use crate::server::Server;
use crate::test_server::{config, directory, root};

/// Slices of the source.
const SLICES: u64 = 4;

/// A server of the files `source` and `target`.
struct Rig {
    server: Server,
    dir: TempDir,
}

impl Rig {
    async fn new() -> Self {
        Self::with("").await
    }

    /// With these settings of the export.
    async fn with(settings: &str) -> Self {
        let dir = directory();
        let config = config(dir.path(), "", &format!("squash = \"none\"\n{settings}"));
        let rig = Self { server: Server::start(config).await.unwrap(), dir };
        for (name, content) in [("source", content()), ("target", Vec::new())] {
            std::fs::write(rig.path(name), content).unwrap();
            rig.let_all_use(name);
        }
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("export").join(name)
    }

    fn let_all_use(&self, name: &str) {
        use std::os::unix::fs::PermissionsExt;
        let permissions = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(self.path(name), permissions).unwrap();
    }

    fn find(&self, name: &str) -> (Caller, Object) {
        let (service, root) = (self.server.service(), root(&self.server));
        let opened = rustix::fs::open(self.path(name), crate::fs::PATH_ONLY, Mode::empty());
        let handle = service.seal(&root, root.identify(opened.unwrap().as_fd()).unwrap());
        let peer = Peer { address: "127.0.0.1:700".parse().unwrap(), purpose: Purpose::Data };
        service.resolve(7, handle.as_bytes(), &peer, Flavor::Sys, None).unwrap()
    }

    async fn target(&self) -> Arc<Inode> {
        self.server.service().vfs.hold(&self.find("target").1).await.unwrap()
    }

    /// Has all of the source copied. Returns the slices that were, and how long that took.
    async fn copy<F: Future<Output = bool>>(&self, may_go_on: impl Fn() -> F) -> (u64, Duration) {
        let (source, target) = (self.find("source"), self.find("target"));
        let source = CopyEnd { caller: &source.0, object: &source.1 };
        let target = CopyEnd { caller: &target.0, object: &target.1 };
        let range = CopyRange { from: 0, to: 0, count: 0 };
        let vfs = &self.server.service().vfs;
        let begun = Instant::now();
        let CopyDone { count, .. } = vfs.copy(source, target, range, may_go_on).await.unwrap();
        let took = begun.elapsed();
        let copied = std::fs::read(self.path("target")).unwrap();
        assert_eq!(copied.len() as u64, count);
        assert!(content().starts_with(&copied));
        (count / COPY_SLICE_BYTES, took)
    }
}

/// That of the source: each slice has other bytes.
fn content() -> Vec<u8> {
    let byte = |at: u64| (at / COPY_SLICE_BYTES).to_le_bytes()[0] + 1;
    (0..SLICES * COPY_SLICE_BYTES).map(byte).collect()
}

#[tokio::test]
async fn a_copy_of_a_long_range_goes_on_behind_its_first_slice_without_locks() {
    let rig = Rig::new().await;
    let inode = rig.target().await;
    let (copied, took) = rig
        .copy(async || {
            drop(inode.lock.try_exclusive().expect("another call may change the file"));
            true
        })
        .await;
    assert!(copied == SLICES || took >= COPY_TIME_MAX, "{copied} slices");
}

#[tokio::test]
async fn a_copy_ends_at_the_slice_after_its_time() {
    let rig = Rig::new().await;
    let takes_long = async || {
        tokio::time::sleep(COPY_TIME_MAX).await;
        true
    };
    let (copied, _) = rig.copy(takes_long).await;
    assert!((1..=2).contains(&copied), "{copied} slices");
}

#[tokio::test]
async fn a_copy_ends_at_the_slice_after_which_it_is_not_allowed_any_more() {
    let rig = Rig::new().await;
    assert_eq!(rig.copy(async || false).await.0, 1);
}

#[tokio::test]
async fn a_copy_is_flushed_before_its_reply_by_file_sync_writes() {
    for is_promoted in [false, true] {
        let rig = Rig::with(&format!("file_sync_writes = {is_promoted}")).await;
        let inode = rig.target().await;
        rig.copy(async || false).await;
        assert_eq!(inode.is_dirty(), !is_promoted);
    }
}
