//! WRITE and COMMIT.

use io::{BUFFER_ALIGN, WriteData};
use proto::nfs4::{
    CommitArgs, CommitOk, NFS4_OK, OperationCode, ShareAccess, Status, Verifier, WriteHead, WriteOk,
};
use proto::xdr::Reader;

use super::Outcome;
use super::compound::Compound;
use super::convert::{self, check_regular};
use super::operation::decoded;
use super::resolved_handle::Located;
use crate::trace::{Detail, Event};

impl Compound<'_> {
    /// WRITE, RFC 8881 §18.32. The data was received apart, unless it stands behind operations that
    /// do not usually come before a WRITE.
    pub(super) async fn write(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let head: WriteHead = match decoded(reader) {
            Ok(head) => head,
            Err(refused) => return self.put::<()>(OperationCode::Write, Err(refused)),
        };
        let range = (head.offset, head.data_len);
        self.trace_start(Event::WriteStart, range);
        let outcome = match self.data_behind(reader, head.data_len, head.offset).await {
            Ok(data) => self.write_data(&head, data).await,
            Err(refused) => Err(refused),
        };
        let count = outcome.as_ref().map_or(0, |done| done.count);
        let put = self.put(OperationCode::Write, outcome);
        self.trace_done(Event::WriteDone, range, put.map(|()| count));
        put
    }

    /// The `len` bytes of data that follow what was decoded, for `offset` in a file.
    pub(super) async fn data_behind(
        &mut self,
        reader: &mut Reader<'_>,
        len: u32,
        offset: u64,
    ) -> Outcome<Option<WriteData>> {
        let bytes_max = self.request.service.memory.transfer_bytes_max;
        if let Some(data) = self.take_payload(reader) {
            return match data {
                None if u64::from(len) > self.call_bytes() => Err(Status::Badxdr.into()),
                // More than the server takes was received and discarded.
                None if len > bytes_max => Err(Status::ReqTooBig.into()),
                None if len > 0 => Err(Status::Badxdr.into()),
                data => Ok(data),
            };
        }
        let len = usize::try_from(len).map_err(|_| Status::Badxdr)?;
        let bytes = reader.data(len, "data")?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.results.check_holds_none()?;
        let start = usize::try_from(offset % BUFFER_ALIGN as u64).expect("below a page");
        let taken = self.request.service.take_buffer(start + len).await;
        let mut buffer = taken.map_err(|_| Status::Delay)?;
        buffer.as_mut_slice()[start..start + len].copy_from_slice(bytes);
        Ok(Some(WriteData::new(buffer, start, len)))
    }

    async fn write_data(
        &mut self,
        args: &WriteHead,
        mut data: Option<WriteData>,
    ) -> Outcome<WriteOk> {
        let located = self.object_or(Status::Isdir)?;
        let WriteHead { stateid, offset, stable, .. } = args;
        let (caller, held) = self.check_io(&located, stateid, ShareAccess::Write).await?;
        check_regular(held.file_type())?;
        let stability = convert::stability(*stable);
        let (vfs, call) = (&self.request.service.vfs, self.call_id(&located.object));
        let object = (&located.object, &held);
        let answer = vfs.write(&caller, object, call, *offset, &mut data, stability).await;
        self.written = answer.attributes.after;
        let done = answer.result?;
        Ok(WriteOk {
            count: u32::try_from(done.count).expect("as sent"),
            committed: convert::committed(done.committed),
            verifier: Verifier(done.verifier),
        })
    }

    /// COMMIT, RFC 8881 §18.3.
    pub(super) async fn commit(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let args: CommitArgs = match decoded(reader) {
            Ok(args) => args,
            Err(refused) => return self.put::<()>(OperationCode::Commit, Err(refused)),
        };
        let range = (args.offset, args.count);
        self.trace_start(Event::CommitStart, range);
        let outcome = self.commit_data().await;
        let put = self.put(OperationCode::Commit, outcome);
        self.trace_done(Event::CommitDone, range, put.map(|()| args.count));
        put
    }

    async fn commit_data(&self) -> Outcome<CommitOk> {
        let mut located = self.object_or(Status::Isdir)?;
        // COMMIT has no stateid, but what the open let the client write must reach the disk.
        let (inode, file) = self.hold(&located).await?;
        check_regular(inode.file_type())?;
        let Located { caller, object } = &mut located;
        let service = self.request.service;
        caller.opened.writing = service.state.is_writer(self.client()?, file, caller.uid());
        let answer = service.vfs.commit(caller, object).await;
        Ok(CommitOk { verifier: Verifier(answer.result?) })
    }

    /// Traces that an operation on the current filehandle was decoded.
    pub(super) fn trace_start(&self, event: Event, range: (u64, u32)) {
        self.request.trace(event, || self.current_call_id(), range, format_args!("").into());
    }

    /// Traces the result of an operation on the current filehandle: its status, and how much of
    /// `range` was done.
    pub(super) fn trace_done(&self, event: Event, range: (u64, u32), result: Result<u32, Status>) {
        let (status, name, count) = match result {
            Ok(count) => (NFS4_OK, "NFS4_OK", count),
            Err(status) => (status.code(), status.name(), 0),
        };
        let detail = Detail::Done { status, name, count };
        self.request.trace(event, || self.current_call_id(), range, detail);
    }
}
