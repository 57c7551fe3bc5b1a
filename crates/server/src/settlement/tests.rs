//! Work that waits for a disk that hangs, and work that does not.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use io::{EngineConfig, OfdLock};
use proto::nfs4::{ClientId, LockType, ShareAccess};
use tempfile::TempDir;

use super::*;
use crate::held_files::tests::{ALL, Bed, locally, new};
use crate::skip::skip;
use crate::state::Step;

/// A file on a disk that hangs, and one on another.
struct Disks {
    bed: Bed,
    settlement: Arc<Settlement>,
    records: TempDir,
    slow: Arc<Inode>,
    slow_dir: TempDir,
    /// Ends the hang when it is dropped.
    hang: Option<mpsc::Sender<()>>,
}

impl Disks {
    /// `None`, with the reason printed, where there are no two devices.
    fn new() -> Option<Self> {
        let (bed, memory) = (Bed::new(), Path::new("/dev/shm"));
        if !memory.exists() {
            skip("no /dev/shm");
            return None;
        }
        let slow_dir = tempfile::tempdir_in(memory).unwrap();
        let slow = bed.elsewhere(slow_dir.path());
        if slow.root().device() == bed.inode.root().device() {
            skip("/dev/shm is no device of its own");
            return None;
        }
        let config = EngineConfig { data_threads: 1, metadata_threads: 1, queue_max: 16 };
        let engine = Arc::new(Engine::new(config).unwrap());
        let records = TempDir::new().unwrap();
        let (recovery, _) = Recovery::open(records.path()).unwrap();
        let tasks = Handle::current();
        let settlement = Settlement::new(&bed.state, &bed.held, Some(recovery), &engine, tasks);
        let (hang, hung) = mpsc::channel::<()>();
        let entered = Share::new(&engine.device(slow.root().device()), 0).enter();
        assert!(engine.leave_to_data(move || assert!(hung.recv().is_err())));
        drop(entered);
        Some(Self { bed, settlement, records, slow, slow_dir, hang: Some(hang) })
    }

    /// A client that has both files open and locked.
    fn holder(&self) -> ClientId {
        let client = self.bed.client(b"holder");
        for inode in [&self.slow, &self.bed.inode] {
            let open = self.bed.open_in(client, inode, ShareAccess::Both);
            self.bed.lock_in(client, inode, new(&open), LockType::Write, ALL).unwrap();
        }
        client
    }

    fn slow_file(&self) -> File {
        let path = self.slow_dir.path().join("file");
        OpenOptions::new().read(true).write(true).open(path).unwrap()
    }

    fn records(&self) -> usize {
        let names = std::fs::read_dir(self.records.path().join("nfs4")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("client-")).count()
    }
}

/// Waits for what another thread does.
async fn eventually(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not come to pass");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn is_free(file: &File) -> bool {
    let is_free = locally(file, (0, u64::MAX), OfdLock::Write);
    if is_free {
        assert!(locally(file, (0, u64::MAX), OfdLock::Unlock));
    }
    is_free
}

#[tokio::test]
async fn a_hanging_disk_delays_no_cleanup_on_another() {
    let Some(mut disks) = Disks::new() else { return };
    disks.holder();
    // Its lease has run out, and its courtesy.
    let mut step = Step::new(Duration::from_secs(100_000));
    disks.bed.state.expire(&mut step);
    disks.settlement.settle_later(step.into_effects());
    let (quick, slow) = (disks.bed.local_file(), disks.slow_file());
    eventually(|| is_free(&quick)).await;
    assert!(!is_free(&slow), "its thread hangs");
    // Others get state, with records, and expire; nothing more waits on threads.
    for number in 0..3_u8 {
        let mut step = Step::new(Duration::ZERO);
        let client = disks.bed.boot(&[number], 0, &mut step);
        let done = disks.bed.state.reclaim_complete(client, false, &mut step);
        done.unwrap();
        let settled = disks.settlement.settle(step.into_effects());
        tokio::time::timeout(Duration::from_secs(20), settled).await.expect("it does not hang");
        assert_eq!(disks.records(), 1);
        let open = disks.bed.open_in(client, &disks.bed.inode, ShareAccess::Both);
        let locked = disks.bed.lock_in(client, &disks.bed.inode, new(&open), LockType::Write, ALL);
        locked.expect("it is free");
        let mut step = Step::new(Duration::from_secs(100_000));
        disks.bed.state.expire(&mut step);
        disks.settlement.settle_later(step.into_effects());
        eventually(|| is_free(&quick) && disks.records() == 0).await;
    }
    disks.hang = None;
    eventually(|| is_free(&slow)).await;
    eventually(|| disks.settlement.lock().is_empty()).await;
}

#[tokio::test]
async fn local_programs_get_what_a_client_has_lost_after_its_record_is_removed() {
    let Some(disks) = Disks::new() else { return };
    disks.holder();
    let engine = Arc::clone(&disks.settlement.engine);
    let (hang, hung) = mpsc::channel::<()>();
    let entered = Share::new(engine.own_device(), 0).enter();
    assert!(engine.leave_to_data(move || assert!(hung.recv().is_err())));
    drop(entered);
    let mut step = Step::new(Duration::from_secs(100_000));
    disks.bed.state.expire(&mut step);
    disks.settlement.settle_later(step.into_effects());
    let quick = disks.bed.local_file();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!is_free(&quick), "after a crash the client could reclaim its lock");
    drop(hang);
    eventually(|| is_free(&quick)).await;
}

#[tokio::test]
async fn a_call_waits_for_files_of_its_own_device_only() {
    let Some(disks) = Disks::new() else { return };
    disks.holder();
    let mut step = Step::new(Duration::ZERO);
    disks.bed.boot(b"holder", 1, &mut step);
    let quick = disks.bed.local_file();
    let settlement = Arc::clone(&disks.settlement);
    let device = settlement.engine.device(disks.bed.inode.root().device());
    let call =
        Share::new(&device, 7).run(async move { settlement.settle(step.into_effects()).await });
    tokio::time::timeout(Duration::from_secs(20), call).await.expect("it does not hang");
    assert!(is_free(&quick), "it was waited for");
    assert!(!is_free(&disks.slow_file()));
}

#[tokio::test]
async fn the_last_reference_to_an_inode_is_closed_by_its_device() {
    let Some(disks) = Disks::new() else { return };
    let Disks { bed, settlement, slow, slow_dir, hang, .. } = disks;
    let path = slow_dir.path().join("file");
    let is_open = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut paths = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        paths.any(|open| open == path)
    };
    bed.forget(&slow);
    settlement.close(Arc::clone(&slow));
    settlement.close(slow);
    assert!(is_open(), "it waits for its device's thread");
    drop(hang);
    eventually(|| !is_open()).await;
}
