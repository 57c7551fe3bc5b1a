//! WRITE and COMMIT.

use std::os::fd::AsFd;
use std::sync::Arc;

use io::{ByteRange, Clients, IoMode, Lengths, Share, WriteData};
use rustix::fs::FileType;

use super::io_plan::SPLIT_BYTES_MIN;
use super::write_data::{PermittedWrite, WriteTarget, Written, unperformed};
use super::{Answer, Attributes, Caller, LiveAttributes, Object, Status, Vfs, Wcc};
use crate::counters::{CallKind, Counter, PhaseTimer};
use crate::inode_cache::{Change, Changing, Flush, Inode, WriteRequest, WriteTurn, Writing};
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

impl Stability {
    /// That of a WRITE or COPY to an object whose client asks for this one. Decided here alone, for
    /// all versions, and before WRITEs are put into batches.
    pub(super) fn promoted(self, object: &Object) -> Self {
        if object.file_sync_writes { Self::FileSync } else { self }
    }

    /// The flush that it takes.
    pub(super) fn flush(self) -> Option<Flush> {
        match self {
            Self::Unstable => None,
            Self::DataSync => Some(Flush::Data),
            Self::FileSync => Some(Flush::All),
        }
    }
}

/// The result of a WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteDone {
    /// Bytes taken; fewer than sent when the disk filled up half-way.
    pub(crate) count: usize,
    /// The stability that they have.
    pub(crate) committed: Stability,
    /// The verifier as it was before the data was written.
    pub(crate) verifier: [u8; 8],
}

impl Vfs {
    /// WRITE to an object that is [held](Self::hold), RFC 1813 §3.3.7.
    ///
    /// A WRITE has the file to itself, so that the attributes before and after are its own; through
    /// the page cache the kernel would make WRITEs wait for each other all the same. Those that
    /// wait for it are performed together when it is free. Those past the page cache share the
    /// file. The flush of a stable WRITE comes after, and is shared with others. A WRITE that
    /// succeeds has the `stability` that it asked for, or FILE_SYNC where the export has no other.
    ///
    /// # Errors
    /// `Stale`, `Delegated`, `IsDirectory`, `Invalid`, `Access`, `ReadOnly`, `TooLarge`, `NoSpace`,
    /// `Quota`, `Io`.
    pub(crate) async fn write(
        &self,
        caller: &Caller,
        (object, file): (&Object, &Arc<Inode>),
        call: CallId,
        offset: u64,
        data: &mut Option<WriteData>,
        stability: Stability,
    ) -> Answer<Wcc, WriteDone> {
        let committed = stability.promoted(object);
        let (caller, mode, flush) = (caller.clone(), object.policy.write, committed.flush());
        let (client, data) = (Share::current_client(), data.take());
        let request = Box::new(WriteRequest { caller, client, call, mode, offset, data, flush });
        let turn = match self.write_in_turn(file, request).await {
            Ok(turn) => turn,
            Err(status) => return Box::pin(self.refuse_change(object, status)).await,
        };
        let WriteTurn { attributes, result, verifier, failures, flush } = turn;
        let result = match (result, flush) {
            (Ok(_), Some(flush)) => {
                let flushed = self.make_durable(file, flush, failures, CallKind::Write);
                Box::pin(flushed).await.and(result)
            }
            _ => result,
        };
        let result = result.map(|count| WriteDone { count, committed, verifier });
        if let Ok(done) = &result {
            let count = done.count as u64;
            self.tracer.emit(Event::WriteIoDone, call, offset, count, format_args!(""));
        }
        Answer { attributes, result }
    }

    /// The outcome of a WRITE's turn: shared if it goes past the page cache, where the
    /// kernel lets several at once. The first one has the file to itself, and opens the direct
    /// descriptor once it is permitted to.
    ///
    /// A WRITE that may have to wait, for others or for the return of delegations, is checked
    /// before it does: one that will be refused has nothing to wait for. One that is permitted is
    /// checked again, with the attributes then.
    async fn write_in_turn(
        &self,
        file: &Arc<Inode>,
        request: Box<WriteRequest>,
    ) -> Result<WriteTurn, Status> {
        if !file.admits(request.caller.client, Changing::Data) {
            self.check_waiting(file, &request.caller).await?;
        }
        self.wait_for_return(file, &request.caller, Changing::Data).await?;
        let lengths = Lengths::up_to(request.end());
        let can_share = request.mode == IoMode::Direct
            && request.len() >= SPLIT_BYTES_MIN
            && file.file_type() == FileType::RegularFile
            && file.root().attributes_in_memory
            && file.has_direct_writer();
        let change = match if can_share { None } else { file.lock.try_exclusive() } {
            Some(guard) => self.begin_exclusive(file, guard, lengths).await?,
            None => {
                self.check_waiting(file, &request.caller).await?;
                range_of(&request)?;
                if !can_share {
                    return self.write_in_batch(file, request).await;
                }
                self.begin_shared(file, lengths).await?
            }
        };
        Ok(self.take_turn(file, change, request).await)
    }

    /// Checks a WRITE that may have to wait, unless the last one of its user was permitted.
    ///
    /// # Errors
    /// As [`Self::permit`].
    async fn check_waiting(&self, file: &Arc<Inode>, caller: &Caller) -> Result<(), Status> {
        if file.expects_writer(caller) {
            return Ok(());
        }
        let now = self.live_attributes(file).await?;
        let timer = &mut self.timer(file.root(), CallKind::Write);
        self.permit::<Writing>(caller, file, &now, timer).await.map(drop)
    }

    /// Performs a WRITE within a change, which it ends.
    pub(super) async fn take_turn(
        &self,
        file: &Arc<Inode>,
        change: Change,
        request: Box<WriteRequest>,
    ) -> WriteTurn {
        self.engine.move_to_data_thread().await;
        let turn = unperformed(file, &change, request.flush);
        match self.perform_alone(file, change, request).await {
            Ok((attributes, result)) => WriteTurn { attributes, result, ..turn },
            Err(status) => WriteTurn { result: Err(status), ..turn },
        }
    }

    /// Performs a WRITE and ends its change by the same job, so that the call is handed over once.
    ///
    /// # Errors
    /// It was not performed.
    async fn perform_alone(
        &self,
        file: &Arc<Inode>,
        change: Change,
        request: Box<WriteRequest>,
    ) -> Result<(Wcc, Result<usize, Status>), Status> {
        let mut timer = self.timer(file.root(), CallKind::Write);
        let (target, range) = self.may_write(file, change.before(), &request, &mut timer).await?;
        let write = [PermittedWrite::new(0, range, request)];
        let (calls, writer) = (change.system_calls(), Arc::clone(&target.writer));
        let end = move |written: Written, write: [PermittedWrite; 1]| {
            if written.lacks_space() {
                return Err(Box::new((change, written, write)));
            }
            let end = write[0].written_up_to(written.count());
            let by = Clients::None.and(write[0].request.client);
            Ok((change.end_written(writer.as_fd(), end, by), written.bytes()))
        };
        match self.perform_as_one(&target, calls, write, timer, end).await? {
            Ok(done) => Ok(done),
            Err(lacking) => Box::pin(self.end_lacking(target, *lacking)).await,
        }
    }

    /// Ends the change of a WRITE that has lacked space, after another attempt if there is some
    /// now.
    async fn end_lacking(
        &self,
        target: WriteTarget,
        (change, written, write): (Change, Written, [PermittedWrite; 1]),
    ) -> Result<(Wcc, Result<usize, Status>), Status> {
        let (written, [write]) = self.repeat_lacking(&target, &change, (written, write)).await?;
        let end = write.written_up_to(written.count());
        let by = (write.request.caller.identity.clone(), Clients::None.and(write.request.client));
        let attributes = self.end_written(target, change, by, end).await;
        Ok((attributes, written.bytes()))
    }

    /// A change of an open file that it shares with others.
    async fn begin_shared(&self, file: &Arc<Inode>, lengths: Lengths) -> Result<Change, Status> {
        file.close_write_batch();
        let change = file.lock.share(lengths, || file.live_attributes()).await;
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
        let file = match self.hold(object).await {
            Ok(file) => file,
            Err(status) => return Answer::refused(status),
        };
        let before = match self.attributes(&file).await {
            Ok(before) => before,
            Err(status) => return Answer::refused(status),
        };
        let timer = &mut self.timer(file.root(), CallKind::Commit);
        let result = match self.permit::<Writing>(caller, &file, &before, timer).await {
            Ok(_) => self.flush(&file, Flush::All, CallKind::Commit).await,
            Err(status) => Err(status),
        };
        file.root().counters.add(Counter::Commits, 1);
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

    /// The permission to perform a WRITE of a file with these attributes.
    pub(super) async fn may_write(
        &self,
        file: &Arc<Inode>,
        attributes: &LiveAttributes,
        request: &WriteRequest,
        timer: &mut PhaseTimer<'_>,
    ) -> Result<(WriteTarget, ByteRange), Status> {
        // Under the lock, so that no client gets a delegation meanwhile.
        file.may_change(request.caller.client, Changing::Data)?;
        let file = self.permit(&request.caller, file, attributes, timer).await?;
        let range = range_of(request)?;
        let writer = self.writer(&file).await?;
        Ok((WriteTarget { file, writer }, range))
    }
}

/// The range of a WRITE.
///
/// # Errors
/// `TooLarge` if it ends behind the largest offset of a file.
fn range_of(request: &WriteRequest) -> Result<ByteRange, Status> {
    ByteRange::new(request.offset, request.len() as u64).ok_or(Status::TooLarge)
}
