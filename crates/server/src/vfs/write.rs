//! WRITE and COMMIT.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use io::{ByteRange, IoMode};
use rustix::fs::{Access, FileType};

use super::io_plan::SPLIT_BYTES_MIN;
use super::read::must_be_regular;
use super::write_data::Written;
use super::{Answer, Attributes, Caller, Object, Status, Vfs, Wcc, attributes_of, no_identity};
use crate::counters::Counter;
use crate::data_descriptors::Use;
use crate::open_files::{Flush, OpenFile};
use crate::payload::Payload;
use crate::trace::Event;
use crate::turns::Turn;

/// How durable a WRITE is (RFC 1813 §3.3.7, `stable_how`), in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stability {
    /// A crash may lose it until COMMIT; the verifier tells.
    Unstable,
    /// The data is on stable storage.
    DataSync,
    /// The data and all attributes are.
    FileSync,
}

/// What a WRITE did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteDone {
    /// Bytes taken; fewer than sent when the disk filled up half-way.
    pub(crate) count: usize,
    /// What was made durable.
    pub(crate) committed: Stability,
    /// The verifier as it was before the data was written.
    pub(crate) verifier: [u8; 8],
}

impl Vfs {
    /// WRITE, RFC 1813 §3.3.7.
    ///
    /// Writes of one file take turns, so that the attributes before and after are those of this
    /// write; through the page cache the kernel would make them wait for each other all the same.
    /// Those past it share a turn. The flush that a stable WRITE asks for is outside the turn and
    /// shared with others.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `Invalid`, `Access`, `ReadOnly`, `TooLarge`, `NoSpace`, `Quota`, `Io`.
    pub(crate) async fn write(
        &self,
        caller: &Caller,
        object: &Object,
        offset: u64,
        payload: Option<Payload>,
        stability: Stability,
    ) -> Answer<Wcc, WriteDone> {
        let len = payload.as_ref().map_or(0, Payload::len);
        let (file, turn) = match self.take_write_turn(object, len).await {
            Ok(taken) => taken,
            Err(status) => return Answer::refused(status),
        };
        self.engine.ask_for_data_thread().await;
        let before = *turn.before();
        let unchanged = Wcc { before: Some(before), after: Some(before) };
        let verifier = file.root().verifier.current();
        let failures = file.failures();
        let refused = |status| Answer { attributes: unchanged, result: Err(status) };
        let (writer, range) = match self.may_write(caller, &file, &before, offset, len).await {
            Ok(allowed) => allowed,
            Err(status) => return refused(status),
        };
        let call = object.call_id(caller);
        let planned = match payload {
            None => None,
            Some(payload) => {
                let (writer, mode) = (Arc::clone(&writer), object.policy.write);
                match self.plan_write(&file, writer, range, mode, call).await {
                    Ok(job) => Some((job, payload)),
                    Err(status) => return refused(status),
                }
            }
        };
        let written = Arc::clone(&file);
        let job = move || {
            let done = planned.map_or_else(Written::nothing, |(job, payload)| job.run(&payload));
            written.note_change();
            (done, turn.end(|| attributes_of(&*writer).ok()))
        };
        // As the caller, so that quotas and reserved blocks count and the kernel clears
        // set-user-id bits.
        let (Written { result, refused_direct }, (before, after)) =
            match self.engine.data_as(caller.identity.clone(), job).await {
                Ok(done) => done,
                Err(error) => return refused(no_identity(&error)),
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
        Answer { attributes: Wcc { before: Some(before), after }, result }
    }

    /// The file and the turn for a WRITE of `len` bytes: shared if it goes past the page cache, where
    /// the kernel lets several at once.
    async fn take_write_turn(
        &self,
        object: &Object,
        len: usize,
    ) -> Result<(Arc<OpenFile>, Turn), Status> {
        if object.policy.write != IoMode::Direct || len < SPLIT_BYTES_MIN {
            return self.take_turn(object).await;
        }
        let file = self.open(object).await?;
        let can_share = file.file_type() == FileType::RegularFile
            && file.root().attributes_in_memory
            && self.direct(&file, Use::Write).await.is_ok_and(|direct| direct.is_some());
        if !can_share {
            return self.take_turn(object).await;
        }
        let turn = file.turns.shared(|| attributes_of(file.fd())).await.inspect_err(|status| {
            if *status == Status::Stale {
                self.open_files.forget(&file.key());
            }
        })?;
        Ok((file, turn))
    }

    /// COMMIT, RFC 1813 §3.3.21. Flushes the whole file, whatever the range: what the range leaves
    /// out would only be asked for next.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `Invalid`, `Access`, `ReadOnly`, and the flush's: `Io`, `NoSpace`,
    /// `Quota`.
    pub(crate) async fn commit(&self, caller: &Caller, object: &Object) -> Answer<Wcc, [u8; 8]> {
        let file = match self.open(object).await {
            Ok(file) => file,
            Err(status) => return Answer::refused(status),
        };
        let before = match self.attributes(&file).await {
            Ok(before) => before,
            Err(status) => return Answer::refused(status),
        };
        let result = match self.may_write(caller, &file, &before, 0, 0).await {
            Ok(_) => file.flush(&self.engine, Flush::All).await,
            Err(status) => Err(status),
        };
        self.counters.add(Counter::Commits, 1);
        // Read after the flush: had another flush failed meanwhile, this client must know too.
        let verifier = file.root().verifier.current();
        let after = self.attributes(&file).await.ok();
        // A flush changes nothing that a client sees. If something changed, a WRITE came between,
        // and a client that took it for its own COMMIT would miss or double it.
        let is_unchanged = |after: &Attributes| {
            (after.size, after.mtime, after.ctime) == (before.size, before.mtime, before.ctime)
        };
        let before = after.as_ref().is_some_and(is_unchanged).then_some(before);
        let attributes = Wcc { before, after };
        Answer { attributes, result: result.map(|()| verifier) }
    }

    /// The descriptor for writing, and the range, if `caller` may write `len` bytes at `offset`.
    async fn may_write(
        &self,
        caller: &Caller,
        file: &Arc<OpenFile>,
        attributes: &Attributes,
        offset: u64,
        len: usize,
    ) -> Result<(Arc<OwnedFd>, ByteRange), Status> {
        caller.may_change()?;
        must_be_regular(attributes)?;
        let range = ByteRange::new(offset, len as u64).ok_or(Status::TooLarge)?;
        let writer = self.writer(file).await?;
        self.authorize_data(caller, file, &*writer, attributes, Access::WRITE_OK).await?;
        Ok((writer, range))
    }

    /// Makes what was written as durable as `stability` asks. `failures` counts the file's failed
    /// flushes from before the data was written: one more may have lost it, whoever asked for that
    /// flush, and this one says nothing of it.
    async fn stabilize(
        &self,
        file: &Arc<OpenFile>,
        stability: Stability,
        failures: u64,
    ) -> Result<(), Status> {
        match stability {
            Stability::Unstable => return Ok(()),
            Stability::DataSync => file.flush(&self.engine, Flush::Data).await?,
            Stability::FileSync => file.flush(&self.engine, Flush::All).await?,
        }
        if file.failures() == failures { Ok(()) } else { Err(Status::Io) }
    }
}

/// A write that failed after some bytes is a short one: the client sends the rest again and then
/// hears the error.
fn accepted(result: Result<usize, io::WriteError>) -> Result<usize, Status> {
    match result {
        Ok(count) => Ok(count),
        Err(error) if error.written > 0 => Ok(error.written),
        Err(error) => Err(error.error.into()),
    }
}
