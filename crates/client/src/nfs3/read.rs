//! READ: RFC 1813 §3.3.6.

use bytes::Bytes;
use proto::nfs3::{Attributes, FileHandle, Procedure, ReadArgs, ReadReply};
use proto::xdr::DecodeError;
use rpc::client::Route;

use super::{Nfs3, decode};
use crate::Result;

/// Result of READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadData {
    /// The attributes of the file.
    pub attributes: Option<Attributes>,
    /// Whether the data ends at the end of the file.
    pub eof: bool,
    /// At most `count` bytes, as a slice of the received record.
    pub data: Bytes,
}

impl Nfs3 {
    /// READ, RFC 1813 §3.3.6: at most `count` bytes from `offset` on. A server may return fewer
    /// before the end of the file.
    ///
    /// # Errors
    /// The server's status, and [`Error::Malformed`](crate::Error::Malformed) if the reply has more
    /// than `count` bytes.
    pub fn read(
        &self,
        file: FileHandle,
        offset: u64,
        count: u32,
    ) -> impl Future<Output = Result<ReadData>> + Send + use<> {
        self.rpc.expect_reply_bytes(count);
        let args = ReadArgs { file, offset, count };
        self.ask_with(Procedure::Read, Route::Any, &args, Bytes::new(), move |results| {
            let ok = match decode::<ReadReply<'_>>(results)? {
                Ok(ok) => ok,
                Err(failure) => return Ok(Err(failure.status)),
            };
            if ok.count > count {
                return Err(DecodeError { what: "ReadOk.count", at_byte: 0 });
            }
            let data = results.slice_ref(ok.data);
            Ok(Ok(ReadData { attributes: ok.attributes, eof: ok.eof, data }))
        })
    }
}
