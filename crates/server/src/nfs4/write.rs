//! WRITE and COMMIT.

use io::{BUFFER_ALIGN, WriteData};
use proto::nfs4::{
    CommitArgs, CommitOk, NFS4_OK, OperationCode, ShareAccess, StableHow, Status, Verifier,
    WriteHead, WriteOk,
};
use proto::xdr::Reader;

use super::compound::Compound;
use super::operation::decoded;
use super::{Outcome, convert};
use crate::fs;
use crate::trace::{CallId, Detail, Event};
use crate::vfs::{Stability, WriteDone};

impl Compound<'_> {
    /// WRITE, RFC 8881 §18.32. The data was received apart, unless it stands behind operations that
    /// do not usually come before a WRITE.
    pub(super) async fn write(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let outcome = match self.write_arguments(reader).await {
            Ok((head, data)) => self.write_data(&head, data).await,
            Err(refused) => Err(refused),
        };
        self.put(OperationCode::Write, outcome)
    }

    async fn write_arguments(
        &mut self,
        reader: &mut Reader<'_>,
    ) -> Outcome<(WriteHead, Option<WriteData>)> {
        let head: WriteHead = decoded(reader)?;
        let data = self.data_behind(reader, head.data_len, head.offset).await?;
        Ok((head, data))
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
        let WriteHead { stateid, offset, stable, data_len } = args;
        let (caller, held) = self.check_io(&located, stateid, ShareAccess::Write).await?;
        let stability = match stable {
            StableHow::Unstable => Stability::Unstable,
            StableHow::DataSync => Stability::DataSync,
            StableHow::FileSync => Stability::FileSync,
        };
        let (vfs, call) = (&self.request.service.vfs, self.call_id(&located.object));
        self.trace(Event::WriteStart, call, (*offset, *data_len), None);
        let object = (&located.object, &held);
        let answer = vfs.write(&caller, object, call, *offset, &mut data, stability).await;
        self.written = answer.attributes.after;
        let count = |done: &WriteDone| u32::try_from(done.count).expect("as sent");
        let result = answer.result.as_ref().map(count).map_err(|status| *status);
        self.trace(Event::WriteDone, call, (*offset, *data_len), Some(result));
        let done = answer.result?;
        Ok(WriteOk {
            count: count(&done),
            committed: match done.committed {
                Stability::Unstable => StableHow::Unstable,
                Stability::DataSync => StableHow::DataSync,
                Stability::FileSync => StableHow::FileSync,
            },
            verifier: Verifier(done.verifier),
        })
    }

    /// COMMIT, RFC 8881 §18.3.
    pub(super) async fn commit(&mut self, args: CommitArgs) -> Outcome<CommitOk> {
        let located = self.object_or(Status::Isdir)?;
        let range = (args.offset, args.count);
        let (vfs, call) = (&self.request.service.vfs, self.call_id(&located.object));
        self.trace(Event::CommitStart, call, range, None);
        let answer = vfs.commit(&located.caller, &located.object).await;
        let result = answer.result.as_ref().map(|_| args.count).map_err(|status| *status);
        self.trace(Event::CommitDone, call, range, Some(result));
        Ok(CommitOk { verifier: Verifier(answer.result?) })
    }

    /// Traces that a call was decoded, or how much of it was done.
    pub(super) fn trace(
        &self,
        event: Event,
        call: CallId,
        (offset, len): (u64, u32),
        result: Option<Result<u32, fs::Status>>,
    ) {
        let tracer = &self.request.service.tracer;
        if !tracer.is_on(event) {
            return;
        }
        let detail = match result {
            None => format_args!("").into(),
            Some(Ok(count)) => Detail::Done { status: NFS4_OK, name: "NFS4_OK", count },
            Some(Err(status)) => {
                let status = convert::status(status);
                Detail::Done { status: status.code(), name: status.name(), count: 0 }
            }
        };
        tracer.emit(event, call, offset, len.into(), detail);
    }
}
