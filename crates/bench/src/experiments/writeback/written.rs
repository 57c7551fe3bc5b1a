//! Writing one file, and reading it back.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use client::trace::{Event, Events, Tracer};
use client::{FileSystem, Inode, MountOptions, OpenFlags};
use server::config::ByteSize;

use super::Experiment;
use crate::experiments::meter::Spent;
use crate::stage::mount_options;
use crate::{Error, Result};

/// The time, calls and cost of writing a file.
pub(super) struct Written {
    /// From the first record until the file was closed, which waits for COMMIT.
    pub(super) took: Duration,
    /// Bytes of a WRITE at most.
    pub(super) wsize_bytes: u32,
    pub(super) seen: Seen,
    pub(super) spent: Spent,
}

/// The calls that the client has sent for the file: all on one connection, so that it is in this
/// order that the server gets them.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// WRITEs.
    pub(super) writes: u64,
    /// Their data.
    pub(super) bytes: u64,
    /// WRITEs that came after one of a higher offset.
    pub(super) out_of_order: u64,
    offset_max: u64,
    write_answered: Option<Instant>,
    commit_answered: Option<Instant>,
}

impl Seen {
    pub(super) fn note(&mut self, event: Event, offset: u64, len: u64) {
        match event {
            Event::WriteCall => {
                self.writes += 1;
                self.bytes += len;
                self.out_of_order += u64::from(offset < self.offset_max);
                self.offset_max = self.offset_max.max(offset);
            }
            Event::WriteReply => self.write_answered = Some(Instant::now()),
            Event::CommitReply => self.commit_answered = Some(Instant::now()),
            // The others are off.
            _ => {}
        }
    }

    /// From the last answer to a WRITE to that to COMMIT.
    pub(super) fn commit_took(&self) -> Option<Duration> {
        self.commit_answered?.checked_duration_since(self.write_answered?)
    }
}

/// A tracer that notes calls.
fn tracer(seen: &Arc<Mutex<Seen>>) -> Arc<Tracer> {
    let (tracer, seen) = (Tracer::default(), Arc::clone(seen));
    let events = [Event::WriteCall, Event::WriteReply, Event::CommitReply];
    tracer.set(events.map(Events::from).into_iter().collect());
    tracer.listen(move |event, offset, len| lock(&seen).note(event, offset, len));
    Arc::new(tracer)
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the file and writes it record by record.
pub(super) async fn write(
    experiment: &Experiment<'_>,
    name: &str,
    record_bytes: NonZeroU32,
    workers: u16,
) -> Result<Written> {
    let refused = || Error::call(format!("cannot write {name}"));
    let seen = Arc::<Mutex<Seen>>::default();
    let wsize = experiment.options.wsize;
    let options = MountOptions {
        writes_in_flight: workers.into(),
        wsize: wsize.map(|ByteSize(bytes)| u32::try_from(bytes).expect("it is at most 4 MiB")),
        ..mount_options()
    };
    let file_system = experiment.export.mount(&options, tracer(&seen)).await?;
    let dir = directory(experiment, &file_system).await?;
    let inode = file_system.create(&dir, name.as_bytes(), 0o644, false).await.map_err(refused())?;
    let file = file_system.open_created(&inode, WRITE).map_err(refused())?;
    let meter = experiment.export.begin()?;
    let (begun, mut offset) = (Instant::now(), 0);
    for (nth, record) in (1_u64..).zip(experiment.data.chunks(record_bytes.get() as usize)) {
        // The text of an error is made only when there is one: it costs more than a record.
        file.write_at(offset, record).await.map_err(|error| refused()(error))?;
        offset += record.len() as u64;
        if nth.is_multiple_of(RECORDS_AT_A_STRETCH) {
            // Records that only go into a buffer wait for nothing, so a signal would not be
            // noticed.
            tokio::task::yield_now().await;
        }
    }
    file.close().await.map_err(refused())?;
    let took = begun.elapsed();
    let spent = meter.end()?;
    let seen = lock(&seen).clone();
    Ok(Written { took, wsize_bytes: file_system.info().wtmax, seen, spent })
}

/// Some hundred microseconds.
const RECORDS_AT_A_STRETCH: u64 = 1024;

/// Reads the file as another client does. How many of its bytes are not what was written.
pub(super) async fn verify(experiment: &Experiment<'_>, name: &str) -> Result<u64> {
    let refused = || Error::call(format!("cannot read {name}"));
    let options = mount_options();
    let file_system = experiment.export.mount(&options, Arc::default()).await?;
    let dir = directory(experiment, &file_system).await?;
    let inode = file_system.lookup(&dir, name.as_bytes()).await.map_err(refused())?;
    let file = file_system.open(&inode, READ).await.map_err(refused())?;
    let (mut wrong, mut offset) = (0, 0);
    while offset < experiment.data.len() {
        let read = file.read_at(offset as u64, READ_BYTES).await.map_err(refused())?;
        if read.is_empty() {
            break;
        }
        let expected = &experiment.data[offset..];
        wrong += expected.iter().zip(&read).filter(|(a, b)| a != b).count();
        offset += read.len();
    }
    file.close().await.map_err(refused())?;
    Ok((wrong + experiment.data.len().saturating_sub(offset)) as u64)
}

async fn directory(experiment: &Experiment<'_>, file_system: &FileSystem) -> Result<Arc<Inode>> {
    let name = experiment.directory.name();
    let found = file_system.lookup(&file_system.root(), name.as_bytes()).await;
    found.map_err(Error::call(format!("cannot find {name}")))
}

const READ_BYTES: usize = 1 << 20;
const READ: OpenFlags = OpenFlags { read: true, write: false, sync: false, direct: false };
const WRITE: OpenFlags = OpenFlags { read: false, write: true, ..READ };
