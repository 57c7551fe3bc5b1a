//! The calls of a connection on its file, in each version of NFS.

use proto::nfs3::StableHow;

use super::call::{Answer, Broken, CallResult, ReadHead, Written};
use super::{DEPTH_MAX, nfs3, nfs4};
use crate::record_stream::RecordStream;

/// The calls of a connection on its file.
pub(super) enum FileCalls<'a> {
    V3(nfs3::FileCalls<'a>),
    V4(Box<nfs4::FileCalls<'a>>),
}

impl FileCalls<'_> {
    /// The slots that the server has: calls are made on those with smaller numbers.
    pub(super) fn slots_max(&self) -> usize {
        match self {
            Self::V3(_) => DEPTH_MAX,
            Self::V4(calls) => calls.slots_max(),
        }
    }

    /// Puts a READ in the queue.
    pub(super) fn queue_read(&mut self, to: &mut RecordStream, xid: u32, offset: u64, count: u32) {
        match self {
            Self::V3(calls) => calls.queue_read(to, xid, offset, count),
            Self::V4(calls) => calls.queue_read(to, xid, offset, count),
        }
    }

    /// Puts a WRITE in the queue, up to its data. Returns what has to follow the data.
    pub(super) fn queue_write(
        &mut self,
        to: &mut RecordStream,
        xid: u32,
        offset: u64,
        count: u32,
        stable: StableHow,
    ) -> &'static [u8] {
        match self {
            Self::V3(calls) => calls.queue_write(to, xid, offset, count, stable),
            Self::V4(calls) => calls.queue_write(to, xid, offset, count, stable),
        }
    }

    /// Decodes a reply to READ up to the data.
    pub(super) fn read_reply(
        &mut self,
        from: &mut RecordStream,
    ) -> Result<Answer<ReadHead>, Broken> {
        match self {
            Self::V3(calls) => calls.read_reply(from),
            Self::V4(calls) => calls.read_reply(from),
        }
    }

    /// Decodes a reply to WRITE.
    pub(super) fn write_reply(
        &mut self,
        from: &mut RecordStream,
    ) -> Result<Answer<Written>, Broken> {
        match self {
            Self::V3(calls) => calls.write_reply(from),
            Self::V4(calls) => calls.write_reply(from),
        }
    }

    /// COMMIT of the whole file. No other call is in flight. Returns the verifier.
    pub(super) fn commit(&mut self, stream: &mut RecordStream, xid: u32) -> CallResult<[u8; 8]> {
        match self {
            Self::V3(calls) => calls.commit(stream, xid),
            Self::V4(calls) => calls.commit(stream, xid),
        }
    }

    /// Ends the state that the server holds for the connection. No other call is in flight.
    pub(super) fn end(&mut self, stream: &mut RecordStream) -> CallResult<()> {
        match self {
            Self::V3(_) => Ok(Ok(())),
            Self::V4(calls) => calls.end(stream),
        }
    }
}
