//! Work of a client that has all its threads of a lane at work, beside that of another client.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use io::{IoMode, LaneKind, Share, WriteData};
use proto::nfs4::{ClientId, FileHandle};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::readable::{block_threads, object, open, root_caller};
use super::retry::RETURN_PAUSES;
use super::{Allocation, AttributeChange, EntryName, Stability};
use crate::counters::Counter;
use crate::export::Object;
use crate::fs::Status;
use crate::held_files::{export_id, file_id};
use crate::inode_cache::{Flush, Holders, Inode};
use crate::server::Server;
use crate::service::Service;
use crate::skip::skip_in_ci_too;
use crate::state::Delegate;
use crate::test_server::{config, directory};
use crate::trace::CallId;

const PATIENCE: Duration = Duration::from_secs(20);
const WRITE_BYTES: usize = 4096;
/// Fewer than the jobs in the queue of the busy client: a task behind them gets no thread.
const FREED_MAX: usize = 8;

struct Rig {
    server: Server,
    busy: Share,
    other: Share,
    /// Dropped, the threads of the busy client are free, one after the other.
    blocked: Vec<Sender<()>>,
    dir: TempDir,
}

impl Rig {
    async fn new() -> Self {
        Self::with_blocked(LaneKind::Data).await
    }

    /// One whose busy client has all its threads of this lane at work.
    async fn with_blocked(lane: LaneKind) -> Self {
        let dir = directory();
        let server = Server::start(config(dir.path(), "", "")).await.unwrap();
        let root = crate::test_server::root(&server);
        let device = server.service().engine.device(root.device());
        let [busy, other] = [1, 2].map(|client| Share::new(&device, client));
        let blocked = block_threads(&busy, lane);
        Self { server, busy, other, blocked, dir }
    }

    fn service(&self) -> Arc<Service> {
        Arc::clone(self.server.service())
    }

    /// A file of 1 MiB.
    async fn file(&self) -> (Object, Arc<Inode>) {
        let path: PathBuf = self.dir.path().join("export/f");
        std::fs::File::create_new(&path).unwrap().set_len(1 << 20).unwrap();
        let file = open(&self.server, &path).await;
        (object(&self.server, &file), file)
    }

    /// Begins a WRITE as a connection of `client` does.
    fn begin_write(&self, client: &Share, file: &(Object, Arc<Inode>)) -> oneshot::Receiver<()> {
        let (service, (object, file)) = (self.service(), file.clone());
        let (ended, end) = oneshot::channel();
        client.begin_here(async move {
            let (caller, call, target) = (root_caller(), CallId::local(1, 1), (&object, &file));
            let buffer = service.take_buffer(WRITE_BYTES).await.unwrap();
            let data = &mut Some(WriteData::new(buffer, 0, WRITE_BYTES));
            let write = service.vfs.write(&caller, target, call, 0, data, Stability::Unstable);
            assert_eq!(write.await.result.map(|done| done.count), Ok(WRITE_BYTES));
            ended.send(()).unwrap();
        });
        end
    }

    /// Begins `work` as a task of the busy client that goes on on a metadata thread, as a COMPOUND
    /// with other operations before it.
    fn begin<T>(&self, work: impl Future<Output = T> + Send + 'static) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
    {
        let (ended, end) = oneshot::channel();
        self.busy.begin_metadata_here(async move {
            drop(ended.send(work.await));
        });
        end
    }

    /// Begins a SETATTR of the length on behalf of the busy client.
    fn begin_setattr(&self, object: &Object) -> oneshot::Receiver<Result<(), Status>> {
        let (service, object) = (self.service(), object.clone());
        let size = AttributeChange { size: Some(4096), ..AttributeChange::default() };
        self.begin(async move {
            service.vfs.setattr(&root_caller(), &object, size, None, |_| false).await.result
        })
    }

    /// Frees threads of the busy client, one after the other, until a task has ended: the
    /// first one may take a job before the task that holds something is in the queue.
    async fn ends_before_the_backlog<T>(&mut self, mut end: oneshot::Receiver<T>) -> T {
        for _ in 0..FREED_MAX {
            drop(self.blocked.remove(0));
            if let Ok(ended) = tokio::time::timeout(PATIENCE / 10, &mut end).await {
                return ended.unwrap();
            }
        }
        panic!("it waits for the backlog of the busy client");
    }
}

async fn ended<T>(end: oneshot::Receiver<T>, reason: &str) -> T {
    tokio::time::timeout(PATIENCE, end).await.expect(reason).unwrap()
}

async fn wait_until_locked(file: &Inode) {
    let locked = async {
        while file.lock.try_exclusive().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, locked).await.expect("the file is locked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn write_that_has_locked_its_file_does_not_wait_for_the_backlog_of_its_client() {
    let mut rig = Rig::new().await;
    let file = rig.file().await;
    let write = rig.begin_write(&rig.busy, &file);
    wait_until_locked(&file.1).await;
    let others = rig.begin_write(&rig.other, &file);
    rig.ends_before_the_backlog(others).await;
    ended(write, "it has ended").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn deallocate_that_has_locked_its_file_does_not_wait_for_the_backlog_of_its_client() {
    let mut rig = Rig::new().await;
    let (service, file) = (rig.service(), rig.file().await);
    let object = file.0.clone();
    let deallocate = rig.begin(async move {
        let (range, allocation) = ((0, 4096), Allocation::Deallocate);
        service.vfs.allocate(&root_caller(), &object, range, allocation).await
    });
    wait_until_locked(&file.1).await;
    let others = rig.begin_write(&rig.other, &file);
    rig.ends_before_the_backlog(others).await;
    ended(deallocate, "it has ended").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn flush_that_others_wait_for_does_not_wait_for_the_backlog_of_its_client() {
    let mut rig = Rig::new().await;
    let (_, file) = rig.file().await;
    file.note_change();
    let flush = || {
        let (service, file) = (rig.service(), Arc::clone(&file));
        async move { file.flush(&service.engine, Flush::All).await }
    };
    // It has the lock of flushes when this returns, and would have handed its job over.
    let flushed = rig.begin(flush());
    let (sender, others) = oneshot::channel();
    let work = flush();
    rig.other.begin_here(async move { sender.send(work.await).unwrap() });
    rig.ends_before_the_backlog(others).await.unwrap();
    ended(flushed, "it has ended").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn delegation_that_waits_for_a_thread_locks_no_file() {
    let mut rig = Rig::new().await;
    let (service, file) = (rig.service(), rig.file().await);
    if !service.gives_delegations() {
        return skip_in_ci_too("no delegations are given here");
    }
    let inode = Arc::clone(&file.1);
    let call = Delegate {
        client: ClientId(1),
        file: file_id(&inode),
        export: export_id(&inode),
        object: FileHandle::new(b"handle").unwrap(),
        user: 0,
        is_reclaim: false,
    };
    // Its job is in the queue when this returns.
    let delegation = rig.begin(async move { service.delegate(&inode, call).await.is_ok() });
    let others = rig.begin_write(&rig.other, &file);
    ended(others, "nothing is locked").await;
    rig.blocked.clear();
    ended(delegation, "it goes on").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn changes_of_names_and_attributes_lock_nothing_while_they_wait_for_a_thread() {
    let mut rig = Rig::with_blocked(LaneKind::Metadata).await;
    let (object, file) = rig.file().await;
    let path = rig.dir.path().join("export");
    let directory = open(&rig.server, &path).await;
    let parent = self::object(&rig.server, &directory);
    let dirs = [parent.clone(), parent.clone()];
    // The jobs of all are in the queue when this returns.
    let changed = rig.begin_setattr(&object);
    assert!(file.lock.try_exclusive().is_some());
    let service = rig.service();
    let renamed = rig.begin(async move {
        let [from, to] = dirs.each_ref().map(|dir| EntryName { dir, name: b"f" });
        service.vfs.rename(&root_caller(), from, EntryName { name: b"g", ..to }).await.result
    });
    assert!(directory.lock.try_exclusive().is_some());
    let service = rig.service();
    let removed = rig.begin(async move {
        service.vfs.remove(&root_caller(), &parent, b"missing", false).await.result
    });
    assert!(directory.lock.try_exclusive().is_some());
    rig.blocked.clear();
    assert_eq!(ended(changed, "it goes on").await, Ok(()));
    assert_eq!(ended(renamed, "it goes on").await, Ok(()));
    assert_eq!(ended(removed, "it goes on").await, Err(Status::NoEntry));
    assert_eq!(std::fs::metadata(path.join("g")).unwrap().len(), 4096);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn change_that_waited_for_a_thread_waits_for_the_return_of_a_new_delegation() {
    loop {
        let mut rig = Rig::with_blocked(LaneKind::Metadata).await;
        let (object, file) = rig.file().await;
        let changed = rig.begin_setattr(&object);
        file.set_holders(Holders::Several);
        let began = Instant::now();
        rig.blocked.clear();
        tokio::time::sleep(RETURN_PAUSES[1]).await;
        file.set_holders(Holders::None);
        let is_in_time = began.elapsed() < RETURN_PAUSES.iter().sum();
        let changed = ended(changed, "it goes on").await;
        // On a busy machine the change may give up first.
        if is_in_time {
            assert_eq!(changed, Ok(()));
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn writes_that_come_while_a_change_waits_for_a_thread_share_a_batch() {
    let mut rig = Rig::with_blocked(LaneKind::Metadata).await;
    let file = rig.file().await;
    let locked = file.1.lock.exclusive().await;
    let wait = async |writes| {
        while file.1.writes().unwrap().len() < writes {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let first = rig.begin_write(&rig.other, &file);
    tokio::time::timeout(PATIENCE, wait(1)).await.expect("it waits");
    let changed = rig.begin_setattr(&file.0);
    let second = rig.begin_write(&rig.other, &file);
    tokio::time::timeout(PATIENCE, wait(2)).await.expect("it waits");
    drop(locked);
    ended(first, "the file is free").await;
    ended(second, "the file is free").await;
    assert_eq!(rig.server.counters().value(Counter::WritesInBatches), 2);
    rig.blocked.clear();
    assert_eq!(ended(changed, "it goes on").await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn uncached_read_has_no_buffer_while_it_waits_for_a_thread() {
    let mut rig = Rig::new().await;
    let (mut object, file) = rig.file().await;
    for mode in [IoMode::DontCache, IoMode::Direct] {
        object.policy.read = mode;
        let read = |client: &Share| {
            let (service, object, file) = (rig.service(), object.clone(), Arc::clone(&file));
            let (ended, end) = oneshot::channel();
            client.begin_here(async move {
                let (caller, call) = (root_caller(), CallId::local(1, 1));
                let read = service.vfs.read(&caller, (&object, &file), call, 512 << 10, 4096);
                ended.send(read.await.result.map(|done| done.count())).unwrap();
            });
            end
        };
        // Opens what is read through.
        assert_eq!(ended(read(&rig.other), "its threads are free").await, Ok(4096));
        // It is in the queue when this returns.
        let mut queued = read(&rig.busy);
        assert!(queued.try_recv().is_err());
        assert_eq!(rig.service().buffers.bytes_in_use(), 0, "{mode}");
        rig.blocked.clear();
        assert_eq!(ended(queued, "it goes on").await, Ok(4096));
        rig.blocked = block_threads(&rig.busy, LaneKind::Data);
    }
}
