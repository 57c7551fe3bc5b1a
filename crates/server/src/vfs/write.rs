//! WRITE and COMMIT.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use io::{ByteRange, IoMode, Lengths, WriteData};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::{
    Answer, Attributes, Caller, LiveAttributes, Object, Status, Vfs, Wcc, attributes_of,
    io_plan::SPLIT_BYTES_MIN, write_data::Written,
};
use crate::counters::Counter;
use crate::inode_cache::{Change, Flush, Inode, Permitted, Writing};
use crate::trace::{CallId, Event};

/// How durable a WRITE is (RFC 1813 §3.3.7, `stable_how`), in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stability {
    /// A crash may lose it until COMMIT; the verifier then changes.
    Unstable,
    /// The data is on stable storage.
    DataSync,
    /// The data and all attributes are.
    FileSync,
}

/// The result of a WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteDone {
    /// Bytes taken; fewer than sent when the disk filled up half-way.
    pub(crate) count: usize,
    /// The stability reached.
    pub(crate) committed: Stability,
    /// The verifier as it was before the data was written.
    pub(crate) verifier: [u8; 8],
}

impl Vfs {
    /// WRITE, RFC 1813 §3.3.7.
    ///
    /// A WRITE has the file to itself, so that the attributes before and after are its own; through
    /// the page cache the kernel would make WRITEs wait for each other all the same. Those past it
    /// share the file. The flush of a stable WRITE comes after, and is shared with others.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `Invalid`, `Access`, `ReadOnly`, `TooLarge`, `NoSpace`, `Quota`, `Io`.
    pub(crate) async fn write(
        &self,
        caller: &Caller,
        object: &Object,
        call: CallId,
        offset: u64,
        payload: Option<WriteData>,
        stability: Stability,
    ) -> Answer<Wcc, WriteDone> {
        let len = payload.as_ref().map_or(0, WriteData::len);
        let (file, change) = match self.begin_write(caller, object, offset, len).await {
            Ok(begun) => begun,
            Err(status) => return self.refuse_change(object, status).await,
        };
        self.engine.ask_for_data_thread().await;
        let (before, unchanged) = (*change.before(), change.refused());
        let verifier = file.root().file_system.verifier.current();
        let failures = file.failures();
        let refused = |status| Answer { attributes: unchanged, result: Err(status) };
        let (permitted, writer, range) =
            match self.may_write(caller, &file, &before, offset, len).await {
                Ok(allowed) => allowed,
                Err(status) => return refused(status),
            };
        let acquired = match payload {
            None => None,
            Some(payload) => {
                let plan = self.write_facts(&permitted, range, object.policy.write).plan();
                let writer = Arc::clone(&writer);
                match self.acquire_write(&permitted, writer, range, plan, call).await {
                    Ok(job) => Some((job, payload)),
                    Err(status) => return refused(status),
                }
            }
        };
        let written = Arc::clone(&file);
        let job = move || {
            change.note_start();
            let done =
                acquired.map_or_else(Written::nothing, |(job, payload)| job.perform(&payload));
            written.note_change();
            (done, change.end(writer.as_fd()))
        };
        // As the caller, so that quotas and reserved blocks count and the kernel clears
        // set-user-id bits.
        let (Written { result, refused_direct }, attributes) =
            match self.engine.data_as(caller.identity.clone(), job).await {
                Ok(done) => done,
                Err(error) => return refused(Status::no_identity(&error)),
            };
        if refused_direct {
            self.note_refused(&file);
        }
        let result = match accepted(result) {
            Ok(count) => self.stabilize(&file, stability, failures).await.map(|()| WriteDone {
                count,
                committed: stability,
                verifier,
            }),
            Err(status) => Err(status),
        };
        if let Ok(done) = &result {
            let count = done.count as u64;
            self.counters.add(Counter::WriteBytes, count);
            self.tracer.emit(Event::WriteIoDone, call, offset, count, format_args!(""));
        }
        Answer { attributes, result }
    }

    /// The file and a WRITE of `len` bytes at `offset` that begins: shared if it goes past the page
    /// cache, where the kernel lets several at once. The first one has the file to itself, and opens
    /// the direct descriptor once it is permitted to.
    ///
    /// A WRITE that may have to wait for others is checked before it does: one that will be refused
    /// has nothing to wait for. One that is permitted is checked again, with the attributes then.
    async fn begin_write(
        &self,
        caller: &Caller,
        object: &Object,
        offset: u64,
        len: usize,
    ) -> Result<(Arc<Inode>, Change), Status> {
        let lengths = Lengths::up_to(offset.saturating_add(len as u64));
        let file = self.inode(object).await?;
        let can_share = object.policy.write == IoMode::Direct
            && len >= SPLIT_BYTES_MIN
            && file.file_type() == FileType::RegularFile
            && file.root().attributes_in_memory
            && file.has_direct_writer();
        let change = match if can_share { None } else { file.lock.try_alone() } {
            Some(alone) => self.begin_alone(&file, alone, lengths).await,
            None => {
                let now = self.live_attributes(&file).await?;
                self.may_write(caller, &file, &now, offset, len).await?;
                if can_share {
                    self.begin_shared(&file, lengths).await
                } else {
                    self.begin_alone(&file, file.lock.alone().await, lengths).await
                }
            }
        };
        Ok((file, change?))
    }

    /// A change of an open file that it shares with others.
    async fn begin_shared(&self, file: &Arc<Inode>, lengths: Lengths) -> Result<Change, Status> {
        let change = file.lock.share(lengths, || attributes_of(file.fd())).await;
        if matches!(change, Err(Status::Stale)) {
            self.inode_cache.forget(&file.key());
        }
        change
    }

    /// COMMIT, RFC 1813 §3.3.21. Flushes the whole file, whatever the range: what the range leaves
    /// out would only be asked for next.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `Invalid`, `Access`, `ReadOnly`, and the flush's: `Io`, `NoSpace`,
    /// `Quota`.
    pub(crate) async fn commit(&self, caller: &Caller, object: &Object) -> Answer<Wcc, [u8; 8]> {
        let file = match self.inode(object).await {
            Ok(file) => file,
            Err(status) => return Answer::refused(status),
        };
        let before = match self.attributes(&file).await {
            Ok(before) => before,
            Err(status) => return Answer::refused(status),
        };
        let result = match self.permit::<Writing>(caller, &file, &before).await {
            Ok(_) => self.flush(&file, Flush::All).await,
            Err(status) => Err(status),
        };
        self.counters.add(Counter::Commits, 1);
        // Read after the flush: had another flush failed meanwhile, this client must know too.
        let verifier = file.root().file_system.verifier.current();
        let after = self.attributes(&file).await.ok();
        // A flush changes nothing that a client sees. If something changed, a WRITE came between,
        // and a client that took it for its own COMMIT would miss or double it.
        let is_unchanged = |after: &Attributes| after.stamp() == before.stamp();
        let before = after.as_ref().is_some_and(is_unchanged).then_some(before);
        let attributes = Wcc { before, after };
        Answer { attributes, result: result.map(|()| verifier) }
    }

    /// The permission to write `len` bytes at `offset`.
    async fn may_write(
        &self,
        caller: &Caller,
        file: &Arc<Inode>,
        attributes: &LiveAttributes,
        offset: u64,
        len: usize,
    ) -> Result<(Permitted<Writing>, Arc<OwnedFd>, ByteRange), Status> {
        let permitted = self.permit(caller, file, attributes).await?;
        let range = ByteRange::new(offset, len as u64).ok_or(Status::TooLarge)?;
        let writer = self.writer(&permitted).await?;
        Ok((permitted, writer, range))
    }

    /// Makes the written data as durable as `stability` requires. `failures` counts the file's
    /// failed flushes from before the data was written: one more may have lost it, also one of
    /// another call, which this flush does not report.
    async fn stabilize(
        &self,
        file: &Arc<Inode>,
        stability: Stability,
        failures: u64,
    ) -> Result<(), Status> {
        match stability {
            Stability::Unstable => return Ok(()),
            Stability::DataSync => self.flush(file, Flush::Data).await?,
            Stability::FileSync => self.flush(file, Flush::All).await?,
        }
        if file.failures() == failures { Ok(()) } else { Err(Status::Io(Errno::IO)) }
    }
}

/// A write that failed after some bytes is a short one: the client sends the rest again and then
/// gets the error.
fn accepted(result: Result<usize, io::WriteError>) -> Result<usize, Status> {
    match result {
        Ok(count) => Ok(count),
        Err(error) if error.written > 0 => Ok(error.written),
        Err(error) => Err(error.error.into()),
    }
}
