use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use proto::nfs3::{Procedure, Status, WccData, WriteVerifier};
use tokio::task::JoinSet;

use super::*;

/// A server in memory. It replies late, and loses uncommitted data in a restart.
#[derive(Clone)]
struct Target {
    server: Arc<Server>,
    user: u8,
}

#[derive(Default)]
struct Server {
    disk: Mutex<Disk>,
    /// Delays replies by other tasks' turns, depending on the ordinal of the call.
    patience: u64,
    /// Maximum count of a WRITE, if not 0.
    short: u64,
    /// The error of all WRITEs.
    refusal: Mutex<Option<Status>>,
    /// The users whose COMMITs fail, and the error.
    commit_refusal: Mutex<Option<(Vec<u8>, Status)>>,
    is_stuck: AtomicBool,
    /// Reports that data sent before a foreign change was committed.
    superseded: AtomicU64,
    calls: AtomicU64,
}

#[derive(Default)]
struct Disk {
    stable: Vec<u8>,
    now: Vec<u8>,
    verifier: u8,
    /// WRITEs in order of arrival, with `stable`.
    arrivals: Vec<(u64, u64, StableHow)>,
    commits: usize,
    /// WRITEs in flight.
    in_flight: BTreeMap<u64, u64>,
    in_flight_max: usize,
}

impl Disk {
    fn restart(&mut self) {
        self.now = self.stable.clone();
        self.verifier = self.verifier.wrapping_add(1);
    }

    /// WRITEs that arrived before data of lower offsets.
    fn out_of_order(&self) -> usize {
        self.arrivals.windows(2).filter(|pair| pair[1].0 < pair[0].0).count()
    }
}

fn store(file: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = usize::try_from(offset).unwrap();
    file.resize(file.len().max(start + data.len()), 0);
    file[start..start + data.len()].copy_from_slice(data);
}

impl Server {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    async fn think(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        // Some calls overtake others.
        for _ in 0..(self.patience * (call * 7 % 5)) {
            tokio::task::yield_now().await;
        }
        while self.is_stuck.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn refusal(&self, procedure: Procedure) -> Result<()> {
        let refusal = *self.refusal.lock().unwrap();
        refusal.map_or(Ok(()), |status| Err(Error::Nfs { procedure, status }))
    }
}

impl WriteTarget for Target {
    async fn write(&self, offset: u64, data: Bytes, stable: StableHow) -> Result<WriteOk> {
        let server = &self.server;
        let end = offset + data.len() as u64;
        {
            let mut disk = server.disk();
            disk.arrivals.push((offset, data.len() as u64, stable));
            let overlaps = |(start, until): (&u64, &u64)| *start < end && offset < *until;
            assert!(!disk.in_flight.iter().any(overlaps), "two WRITEs of the same bytes");
            disk.in_flight.insert(offset, end);
            disk.in_flight_max = disk.in_flight_max.max(disk.in_flight.len());
        }
        server.think().await;
        let mut disk = server.disk();
        disk.in_flight.remove(&offset);
        server.refusal(Procedure::Write)?;
        let count = match server.short {
            0 => data.len(),
            short => data.len().min(usize::try_from(short).unwrap()),
        };
        store(&mut disk.now, offset, &data[..count]);
        if stable != StableHow::Unstable {
            store(&mut disk.stable, offset, &data[..count]);
        }
        let verifier = WriteVerifier([disk.verifier; 8]);
        let count = u32::try_from(count).unwrap();
        Ok(WriteOk { wcc: WccData::default(), count, committed: stable, verifier })
    }

    async fn commit(&self, offset: u64, count: u32) -> Result<CommitOk> {
        assert_eq!((offset, count), (0, 0));
        self.server.think().await;
        let mut disk = self.server.disk();
        disk.commits += 1;
        self.server.refusal(Procedure::Commit)?;
        if let Some((users, status)) = &*self.server.commit_refusal.lock().unwrap()
            && users.contains(&self.user)
        {
            return Err(Error::Nfs { procedure: Procedure::Commit, status: *status });
        }
        disk.stable = disk.now.clone();
        let verifier = WriteVerifier([disk.verifier; 8]);
        Ok(CommitOk { wcc: WccData::default(), verifier })
    }

    fn superseded(&self) {
        self.server.superseded.fetch_add(1, Ordering::Relaxed);
    }

    fn same_user(&self, other: &Self) -> bool {
        self.user == other.user
    }
}

const BLOCK: u64 = 4096;

fn config(writes_in_flight: usize) -> WriteBackConfig {
    let write_bytes = u32::try_from(BLOCK).unwrap();
    WriteBackConfig { write_bytes, writes_in_flight, sync: false }
}

fn target(server: Server) -> Target {
    Target { server: Arc::new(server), user: 0 }
}

fn write_back(config: WriteBackConfig, budget: &WriteBudget) -> Arc<WriteBack<Target>> {
    let handle = FileHandle::new(b"file").unwrap();
    let traced = TracedFile { tracer: Arc::default(), fileid: 1, handle };
    Arc::new(WriteBack::new(config, budget, &KeptBudget::new(0), traced))
}

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
}

/// Reproducible pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequential_writes_arrive_in_order_with_any_number_in_flight() {
    let data = pattern(40 * BLOCK + 100);
    for (in_flight, size) in [1, 2, 4, 20, 64].into_iter().flat_map(|n| [(n, 1), (n, 512)]) {
        let target = target(Server { patience: 3, ..Server::default() });
        let file = write_back(config(in_flight), &WriteBudget::new(1 << 20));
        let opened = file.open(target.clone());
        for (at, part) in data.chunks(size).enumerate() {
            file.write(&opened, (at * size) as u64, part).await.unwrap();
        }
        file.sync(&opened).await.unwrap();
        assert!(file.is_clean());
        let disk = target.server.disk();
        assert_eq!(disk.stable, data);
        let wanted: Vec<_> = (0..41).map(|at| at * BLOCK).collect();
        let arrived: Vec<_> = disk.arrivals.iter().map(|(offset, ..)| *offset).collect();
        assert_eq!(arrived, wanted, "{in_flight} in flight, {size} at a time");
        assert!(disk.arrivals[..40].iter().all(|(_, len, _)| *len == BLOCK));
        assert!(disk.in_flight_max <= in_flight);
    }
}

/// Like kernel threads that write one stream: each takes the next part when it is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_writes_of_one_stream_are_sent_in_order() {
    for (in_flight, size) in [(1, 512), (4, 512), (20, 100), (64, BLOCK)] {
        let data = Arc::new(pattern(60 * BLOCK));
        let target = target(Server { patience: 3, ..Server::default() });
        let file = write_back(config(in_flight), &WriteBudget::new(1 << 20));
        let next = Arc::new(AtomicU64::new(0));
        let mut writers = JoinSet::new();
        for _ in 0..8 {
            let (file, data, next) = (Arc::clone(&file), Arc::clone(&data), Arc::clone(&next));
            let opened = file.open(target.clone());
            writers.spawn(async move {
                loop {
                    let offset = next.fetch_add(size, Ordering::Relaxed);
                    let rest = data.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
                    if rest.is_empty() {
                        return;
                    }
                    tokio::task::yield_now().await;
                    let part = &rest[..rest.len().min(usize::try_from(size).unwrap())];
                    file.write(&opened, offset, part).await.unwrap();
                }
            });
        }
        writers.join_all().await;
        file.commit().await;
        file.check_unreported().unwrap();
        let disk = target.server.disk();
        assert_eq!(disk.stable, *data);
        // A writer that is not scheduled for longer than the others wait is overtaken.
        let out_of_order = disk.out_of_order();
        assert!(out_of_order <= 6, "{out_of_order} with {in_flight} in flight, {size} at a time");
        assert!(disk.arrivals.len() <= 80, "{} WRITEs for 60 blocks", disk.arrivals.len());
    }
}

/// Random writes, flushes, syncs, restarts, short WRITEs and dropped futures, by writers that own
/// parts of the file. After each restart the server has all synced data, and at the end all data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_writes_are_not_lost() {
    for seed in 0..60 {
        let mut numbers = Numbers(seed);
        let short = [0, 0, 700][usize::try_from(numbers.below(3)).unwrap()];
        let target = target(Server { patience: numbers.below(4), short, ..Server::default() });
        let budget = WriteBudget::new([3000, 30_000, 1 << 20][usize::try_from(seed % 3).unwrap()]);
        let in_flight = usize::try_from(1 + numbers.below(8)).unwrap();
        let file = write_back(config(in_flight), &budget);
        let mut writers = JoinSet::new();
        for part in 0..3 {
            let file = Arc::clone(&file);
            let target = Target { user: part, ..target.clone() };
            let numbers = Numbers(seed * 100 + u64::from(part));
            writers.spawn(write_randomly(file, target, u64::from(part) * PART, numbers));
        }
        for _ in 0..numbers.below(6) {
            for _ in 0..numbers.below(400) {
                tokio::task::yield_now().await;
            }
            target.server.disk().restart();
        }
        let parts = writers.join_all().await;
        file.commit().await;
        file.check_unreported().unwrap();
        assert!(file.is_clean(), "seed {seed}");
        assert_eq!(budget.bytes(), 0, "seed {seed}");
        let stable = target.server.disk().stable.clone();
        for (base, wanted) in parts {
            let end = (base + wanted.len()).min(stable.len());
            let rest = wanted.len() - (end - base);
            assert!(stable[base..end] == wanted[..end - base], "seed {seed}");
            assert!(wanted[wanted.len() - rest..].iter().all(|byte| *byte == 0), "seed {seed}");
        }
    }
}

/// Bytes of the part of one random writer. The borders of parts lie within blocks.
const PART: u64 = 10 * BLOCK + 1000;

async fn write_randomly(
    file: Arc<WriteBack<Target>>,
    target: Target,
    base: u64,
    mut numbers: Numbers,
) -> (usize, Vec<u8>) {
    let opened = file.open(target.clone());
    let mut model = vec![0; usize::try_from(PART).unwrap()];
    for round in 0..200_u64 {
        match numbers.below(20) {
            0 => file.flush(&opened).await.unwrap(),
            1 => {
                file.sync(&opened).await.unwrap();
                let disk = target.server.disk();
                let start = usize::try_from(base).unwrap();
                let stable = disk.stable.get(start..).unwrap_or_default();
                let len = stable.len().min(model.len());
                assert!(stable[..len] == model[..len], "a sync lied");
                assert!(model[len..].iter().all(|byte| *byte == 0), "a sync lied");
            }
            2 => give_up(file.sync(&opened)).await,
            3 => {
                let mut seen = vec![0; 5000];
                let offset = numbers.below(PART - 5000);
                let mark = file.mark();
                read(&target, base + offset, &mut seen);
                let _ = tokio::join!(file.flush(&opened), give_up(file.sync(&opened)));
                let seen = mark.overlaid(base + offset, seen.len(), &seen);
                let start = usize::try_from(offset).unwrap();
                assert!(seen == model[start..start + 5000], "an old answer came through");
            }
            4 => tokio::task::yield_now().await,
            _ => {
                let len = 1 + numbers.below([10, 600, 9000][usize::try_from(round % 3).unwrap()]);
                let offset = numbers.below(PART - len);
                let byte = u8::try_from(1 + round).unwrap();
                let data = vec![byte; usize::try_from(len).unwrap()];
                store(&mut model, offset, &data);
                if numbers.below(10) == 0 {
                    give_up(file.write(&opened, base + offset, &data)).await;
                }
                // The second call completes what the dropped future has left.
                file.write(&opened, base + offset, &data).await.unwrap();
            }
        }
    }
    (usize::try_from(base).unwrap(), model)
}

/// Polls a future once and drops it.
async fn give_up(future: impl Future<Output = Result<()>>) {
    let _ = tokio::time::timeout(Duration::ZERO, future).await;
}

/// Reads the server's data at `offset`.
fn read(target: &Target, offset: u64, buf: &mut [u8]) {
    let disk = target.server.disk();
    let data = disk.now.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
    let len = data.len().min(buf.len());
    buf[..len].copy_from_slice(&data[..len]);
}

#[tokio::test]
async fn a_small_file_costs_one_call_and_concurrent_syncs_share_a_commit() {
    let target = target(Server { patience: 2, ..Server::default() });
    let file = write_back(config(4), &WriteBudget::new(1 << 20));
    let opened = file.open(target.clone());
    file.sync(&opened).await.unwrap();
    assert_eq!(target.server.calls.load(Ordering::Relaxed), 0, "there was nothing to sync");
    file.write(&opened, 0, b"small").await.unwrap();
    file.sync(&opened).await.unwrap();
    assert_eq!(target.server.disk().arrivals, [(0, 5, StableHow::FileSync)]);
    assert_eq!(target.server.disk().commits, 0);

    file.write(&opened, 0, &pattern(6 * BLOCK)).await.unwrap();
    let syncs = tokio::join!(file.sync(&opened), file.sync(&opened), file.sync(&opened));
    assert!(matches!(syncs, (Ok(()), Ok(()), Ok(()))));
    assert_eq!(target.server.disk().commits, 1);
}

#[tokio::test]
async fn each_open_file_gets_an_error_once() {
    let target = target(Server::default());
    let file = write_back(config(4), &WriteBudget::new(1 << 20));
    let [first, second] = [0; 2].map(|_| file.open(target.clone()));
    *target.server.refusal.lock().unwrap() = Some(Status::Nospc);
    file.write(&first, 0, b"lost").await.unwrap();
    assert!(file.flush(&first).await.unwrap_err().is(Status::Nospc));
    assert!(file.is_clean(), "it is not tried for ever");
    assert!(file.flush(&first).await.is_ok());
    // A program that only writes gets it by its next write.
    assert!(file.write(&second, 0, b"refused").await.unwrap_err().is(Status::Nospc));
    assert!(file.is_clean());
    *target.server.refusal.lock().unwrap() = None;
    file.write(&second, 0, b"taken").await.unwrap();
    file.sync(&second).await.unwrap();
    assert_eq!(target.server.disk().stable, b"taken");

    // No open file collects this error.
    drop((first, second));
    let last = file.open(target.clone());
    file.write(&last, 0, b"again").await.unwrap();
    *target.server.refusal.lock().unwrap() = Some(Status::Dquot);
    drop(last);
    file.drain().await;
    file.commit().await;
    assert!(file.check_unreported().unwrap_err().is(Status::Dquot));
    assert!(file.check_unreported().is_ok());
}

/// `cp` to a full disk. The kernel drops the error of a write(2) that has written a part, so the
/// error of other data must not be taken for the same.
#[tokio::test]
async fn data_that_is_refused_after_a_reported_error_has_an_error_of_its_own() {
    // The first WRITE is refused at once, the others later.
    let target = target(Server { patience: 3, ..Server::default() });
    let file = write_back(config(4), &WriteBudget::new(1 << 20));
    let opened = file.open(target.clone());
    *target.server.refusal.lock().unwrap() = Some(Status::Nospc);
    file.write(&opened, 0, &pattern(4 * BLOCK)).await.unwrap();
    let error = loop {
        tokio::task::yield_now().await;
        if let Err(error) = file.write(&opened, 4 * BLOCK, b"").await {
            break error;
        }
    };
    assert!(error.is(Status::Nospc));
    assert!(!file.is_clean(), "some data is under way");
    assert!(file.sync(&opened).await.unwrap_err().is(Status::Nospc), "and is refused");
    assert!(file.sync(&opened).await.is_ok());
}

#[tokio::test]
async fn a_sync_file_writes_through() {
    let target = target(Server { patience: 1, ..Server::default() });
    let sync = WriteBackConfig { sync: true, ..config(4) };
    let file = write_back(sync, &WriteBudget::new(1 << 20));
    let opened = file.open(target.clone());
    file.write(&opened, 3, b"abc").await.unwrap();
    assert_eq!(target.server.disk().stable, b"\0\0\0abc");
    *target.server.refusal.lock().unwrap() = Some(Status::Io);
    assert!(file.write(&opened, 3, b"abc").await.unwrap_err().is(Status::Io));
    assert!(file.check(&opened).is_ok());
    let beyond = file.write(&opened, OFFSET_MAX, b"x").await.unwrap_err();
    assert_eq!(beyond.errno(), Errno::FBIG);
}

#[tokio::test]
async fn a_commit_is_sent_as_another_writer_if_one_has_lost_the_permission() {
    let target = target(Server::default());
    let server = &target.server;
    let file = write_back(config(4), &WriteBudget::new(1 << 20));
    let of_user = |user| file.open(Target { user, ..target.clone() });
    let (first, second) = (of_user(0), of_user(1));
    let commits_of_both = async |refused: &[u8], status| {
        *server.commit_refusal.lock().unwrap() = Some((refused.to_vec(), status));
        server.disk().commits = 0;
        file.write(&first, 0, b"first").await.unwrap();
        file.write(&second, BLOCK, b"second").await.unwrap();
        let synced = file.sync(&second).await;
        assert!(file.is_clean());
        assert_eq!(file.check(&first).is_ok(), synced.is_ok());
        synced.map(|()| server.disk().commits)
    };
    for status in [Status::Acces, Status::Perm] {
        assert_eq!(commits_of_both(&[0], status).await.unwrap(), 2);
        let disk = server.disk();
        assert_eq!(disk.stable, disk.now);
    }
    assert_eq!(commits_of_both(&[1], Status::Acces).await.unwrap(), 1);
    assert!(commits_of_both(&[0, 1], Status::Acces).await.unwrap_err().is(Status::Acces));
    // An error of the disk is none of the user.
    assert!(commits_of_both(&[0], Status::Io).await.unwrap_err().is(Status::Io));
    assert_eq!(server.disk().commits, 1);
}

#[tokio::test]
async fn data_committed_during_a_read_replaces_its_reply() {
    let target = target(Server::default());
    let file = write_back(config(4), &WriteBudget::new(1 << 20));
    let opened = file.open(target.clone());
    file.write(&opened, 0, b"aaaa").await.unwrap();
    let mark = file.mark();
    let mut reply = [0; 4];
    assert!(mark.fill(0, &mut reply) && reply == *b"aaaa");
    assert!(!mark.fill(1, &mut reply), "the fourth byte is nowhere");
    // The server replied before the writes; the reply arrives after their data was dropped.
    let reply = [0; 6];
    file.sync(&opened).await.unwrap();
    file.write(&opened, 1, b"b").await.unwrap();
    file.sync(&opened).await.unwrap();
    assert!(file.is_clean());
    assert_eq!(mark.overlaid(0, 8, &reply), b"abaa\0\0"[..]);
    assert_eq!(mark.overlaid(0, 8, b""), b"abaa"[..], "what is held has an end");
    drop(mark);
    assert_eq!(file.mark().overlaid(0, 8, &reply), reply[..]);
}

/// An open that finds a foreign change waits until it can read it, and for nothing else.
#[tokio::test]
async fn a_foreign_change_is_readable_once_earlier_data_is_committed() {
    let target = target(Server { patience: 1, ..Server::default() });
    let file = write_back(config(4), &WriteBudget::new(1 << 20));
    let opened = file.open(target.clone());
    file.foreign_change_readable().await;
    file.write(&opened, 0, b"mine").await.unwrap();
    file.flush(&opened).await.unwrap();
    file.foreign_change_readable().await;
    file.write(&opened, BLOCK, b"unsent").await.unwrap();
    store(&mut target.server.disk().now, 0, b"them");
    file.note_foreign_change();
    file.foreign_change_readable().await;
    {
        let disk = target.server.disk();
        assert_eq!((disk.commits, disk.arrivals.len()), (1, 1));
    }
    assert_eq!(target.server.superseded.load(Ordering::Relaxed), 1);
    let mark = file.mark();
    assert!(!mark.covers(0, 1) && mark.covers(BLOCK, 6));

    // The change was a restart.
    file.flush(&opened).await.unwrap();
    target.server.disk().restart();
    file.note_foreign_change();
    file.foreign_change_readable().await;
    assert!(mark.covers(BLOCK, 6));
    file.sync(&opened).await.unwrap();
    assert_eq!(target.server.disk().stable[usize::try_from(BLOCK).unwrap()..], *b"unsent");
    assert_eq!(target.server.superseded.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn truncated_data_is_not_sent_again() {
    let target = target(Server { patience: 1, ..Server::default() });
    let file = write_back(config(4), &WriteBudget::new(1 << 20));
    let opened = file.open(target.clone());
    file.write(&opened, 0, &pattern(3 * BLOCK + 7)).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(file.end(), Some(3 * BLOCK + 7));
    target.server.is_stuck.store(true, Ordering::Relaxed);
    {
        let mut begun = std::pin::pin!(file.begin_truncation());
        let early = tokio::time::timeout(Duration::from_millis(5), begun.as_mut()).await;
        assert!(early.is_err(), "WRITEs beyond are under way");
        target.server.is_stuck.store(false, Ordering::Relaxed);
        let truncation = begun.await;
        target.server.disk().now.truncate(usize::try_from(BLOCK + 5).unwrap());
        truncation.finish(BLOCK + 5);
    }
    assert!(file.end().is_none_or(|end| end <= BLOCK + 5));
    file.sync(&opened).await.unwrap();
    assert_eq!(target.server.disk().now, pattern(BLOCK + 5));
}

/// Other data is written while the file is being truncated, and the server loses what it has.
#[tokio::test]
async fn nothing_is_sent_during_a_truncation() {
    let target = target(Server::default());
    let file = write_back(config(4), &WriteBudget::new(1 << 20));
    let opened = file.open(target.clone());
    file.write(&opened, 0, &pattern(3 * BLOCK + 7)).await.unwrap();
    let truncation = file.begin_truncation().await;
    let before = target.server.disk().arrivals.len();
    target.server.disk().restart();
    file.write(&opened, 0, &[1; 3]).await.unwrap();
    let mut synced = std::pin::pin!(file.sync(&opened));
    assert!(tokio::time::timeout(Duration::from_millis(5), synced.as_mut()).await.is_err());
    assert_eq!(target.server.disk().arrivals.len(), before);
    target.server.disk().now.resize(5, 0);
    truncation.finish(5);
    synced.await.unwrap();
    assert_eq!(target.server.disk().now, [&[1; 3], &pattern(5)[3..]].concat());

    // Given up, nothing is cut.
    file.write(&opened, 5, &[2; 3]).await.unwrap();
    drop(file.begin_truncation().await);
    file.sync(&opened).await.unwrap();
    assert_eq!(target.server.disk().now.len(), 8);
}

/// The budget stays within its bound, and no writer waits for ever: neither one whose file holds
/// all of it, nor many that hold a part of a block each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_share_a_budget_that_is_too_small() {
    let target = target(Server { patience: 1, ..Server::default() });
    for (files, budget) in [(1, 1000), (1, 3 * BLOCK), (30, 5 * BLOCK), (30, 700)] {
        let budget = WriteBudget::new(usize::try_from(budget).unwrap());
        let mut writers = JoinSet::new();
        for number in 0..files {
            let server = Server { patience: number % 3, ..Server::default() };
            let target = Target { server: Arc::new(server), ..target.clone() };
            let (file, watched) = (write_back(config(4), &budget), budget.clone());
            writers.spawn(async move {
                let opened = file.open(target.clone());
                let data = pattern(8 * BLOCK);
                for (at, part) in data.chunks(300).enumerate() {
                    file.write(&opened, at as u64 * 300, part).await.unwrap();
                    assert!(watched.bytes() <= watched.bytes_max());
                }
                file.sync(&opened).await.unwrap();
                assert!(target.server.disk().stable == data);
            });
        }
        tokio::time::timeout(Duration::from_secs(60), writers.join_all()).await.unwrap();
        assert_eq!(budget.bytes(), 0);
    }
}

/// A stream longer than the budget releases room by COMMITs while it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_stream_commits_in_the_background() {
    let target = target(Server::default());
    let file = write_back(config(4), &WriteBudget::new(usize::try_from(32 * BLOCK).unwrap()));
    let opened = file.open(target.clone());
    for block in 0..200 {
        file.write(&opened, block * BLOCK, &pattern(BLOCK)).await.unwrap();
    }
    file.sync(&opened).await.unwrap();
    let disk = target.server.disk();
    assert_eq!((disk.arrivals.len(), disk.out_of_order()), (200, 0));
    assert!((10..=60).contains(&disk.commits), "{} COMMITs", disk.commits);
}

#[tokio::test]
async fn a_dropped_file_is_still_written() {
    let target = target(Server { patience: 2, ..Server::default() });
    let budget = WriteBudget::new(1 << 20);
    let file = write_back(config(4), &budget);
    let opened = file.open(target.clone());
    file.write(&opened, 0, b"partial").await.unwrap();
    drop(file);
    for _ in 0..1000 {
        if budget.bytes() == 0 {
            assert_eq!(target.server.disk().stable, b"partial");
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it is still held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adopted_and_copied_blocks_arrive_in_order_within_the_budget() {
    let data = Bytes::from(pattern(40 * BLOCK + 100));
    let (block, odd) = (usize::try_from(BLOCK).unwrap(), 1000);
    for step in [block, odd, 2 * block, 3 * block / 2] {
        let target = target(Server { patience: 3, ..Server::default() });
        let budget = WriteBudget::new(5 * block);
        let file = write_back(config(4), &budget);
        let opened = file.open(target.clone());
        for at in (0..data.len()).step_by(step) {
            let part = data.slice(at..data.len().min(at + step));
            file.write_bytes(&opened, at as u64, &part).await.unwrap();
            assert!(budget.bytes() <= budget.bytes_max());
        }
        file.sync(&opened).await.unwrap();
        assert_eq!(budget.bytes(), 0);
        let disk = target.server.disk();
        assert!(disk.stable == data, "{step} at a time");
        assert_eq!(disk.out_of_order(), 0);
    }
}
