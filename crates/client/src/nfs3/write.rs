//! WRITE and COMMIT: RFC 1813 §3.3.7 and §3.3.21.

use bytes::Bytes;
use proto::nfs3::{
    CommitArgs, CommitOk, FileHandle, Procedure, StableHow, WccData, WriteHead, WriteOk, WriteReply,
};
use proto::xdr::DecodeError;
use rustix::io::Errno;

use super::{Nfs3, decode, pinned};
use crate::{Error, Result};

impl Nfs3 {
    /// WRITE, RFC 1813 §3.3.7. The data is sent without a copy, and referenced until the reply or
    /// until the future is dropped.
    ///
    /// The server may write only a part of the data, at least one byte; the caller writes the rest.
    /// `committed` in the result may be less than `stable`.
    ///
    /// # Errors
    /// The server's status; [`Error::Malformed`] if `count` in the reply is 0 or more than was
    /// sent; [`Error::Refused`] with `INVAL` if the data does not fit in a record.
    pub fn write(
        &self,
        file: FileHandle,
        offset: u64,
        data: Bytes,
        stable: StableHow,
    ) -> impl Future<Output = Result<WriteOk>> + Send + use<> {
        // A longer record is rejected below.
        let count = u32::try_from(data.len()).map_err(|_| Error::Refused(Errno::INVAL));
        let reply =
            count.map(|count| {
                let args = WriteHead { file, offset, count, stable, data_len: count };
                self.ask_with(Procedure::Write, pinned(file), &args, data, move |results| {
                    match decode::<WriteReply>(results)? {
                        Ok(ok) if ok.count > count || (ok.count == 0 && count > 0) => {
                            Err(DecodeError { what: "WriteOk.count", at_byte: 0 })
                        }
                        reply => Ok(reply.map_err(|failure| failure.status)),
                    }
                })
            });
        async move { reply?.await }
    }

    /// COMMIT, RFC 1813 §3.3.21: `count` bytes from `offset` on; 0 is up to the end of the file.
    ///
    /// # Errors
    /// The server's status.
    pub fn commit(
        &self,
        file: FileHandle,
        offset: u64,
        count: u32,
    ) -> impl Future<Output = Result<CommitOk>> + Send + use<> {
        let args = CommitArgs { file, offset, count };
        self.ask::<_, WccData>(Procedure::Commit, pinned(file), &args)
    }
}
