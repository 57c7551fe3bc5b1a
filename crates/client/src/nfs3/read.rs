//! READ: RFC 1813 §3.3.6.

use bytes::Bytes;
use proto::nfs3::{Attributes, FileHandle, Procedure, ReadArgs, ReadReply};
use proto::xdr::DecodeError;
use rpc::client::Route;

use super::{Nfs3, decode};
use crate::{Error, Result};

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadData {
    /// The attributes of the file, from the last reply.
    pub attributes: Option<Attributes>,
    /// Whether the file ends behind the data.
    pub eof: bool,
    /// As many bytes as were requested; fewer only at the end of the file.
    pub data: Bytes,
}

/// Result of one READ.
#[derive(Clone, Debug)]
pub(crate) struct ReadPart {
    /// The attributes of the file.
    pub(crate) attributes: Option<Attributes>,
    /// Whether the file ends behind the data, as the server claims.
    pub(crate) eof: bool,
    /// At most as many bytes as were requested, as a slice of the received record.
    pub(crate) data: Bytes,
}

impl Nfs3 {
    /// Reads `count` bytes from `offset` on; fewer only at the end of the file. The rest after a
    /// short reply is requested again. The first READ is sent before this returns.
    ///
    /// An end of file is confirmed by the file's size in the same reply, or by a second READ there
    /// that finds nothing: a server may return `eof` before the end of a file that is truncated and
    /// extended meanwhile.
    ///
    /// # Errors
    /// The server's status, and [`Error::Malformed`] if a reply has more bytes than were requested,
    /// or neither data nor `eof`.
    pub fn read(
        &self,
        file: FileHandle,
        offset: u64,
        count: u32,
    ) -> impl Future<Output = Result<ReadData>> + Send + use<> {
        let nfs = self.clone();
        read_whole(offset, count, move |offset, count| nfs.read_part(file, offset, count))
    }

    /// READ, RFC 1813 §3.3.6, of at most `count` bytes from `offset` on; for [`read_whole`].
    ///
    /// # Errors
    /// The server's status, and [`Error::Malformed`] if the reply has more than `count` bytes.
    pub(crate) fn read_part(
        &self,
        file: FileHandle,
        offset: u64,
        count: u32,
    ) -> impl Future<Output = Result<ReadPart>> + Send + use<> {
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
            Ok(Ok(ReadPart { attributes: ok.attributes, eof: ok.eof, data }))
        })
    }
}

/// As [`Nfs3::read`], by `read` for each READ.
///
/// The data of one reply is a part of its record, which may be much longer. So a short reply is
/// copied into memory of `count` bytes, and its record is not kept.
pub(crate) fn read_whole<F>(
    offset: u64,
    count: u32,
    read: impl Fn(u64, u32) -> F + Send,
) -> impl Future<Output = Result<ReadData>> + Send
where
    F: Future<Output = Result<ReadPart>> + Send,
{
    let mut reading = read(offset, count);
    async move {
        let mut joined = Vec::new();
        // Where the last reply ended, if it had `eof`.
        let mut claimed_end = None;
        loop {
            let ReadPart { attributes, eof, data } = reading.await?;
            // Otherwise a server could make the client retry for ever.
            if data.is_empty() && !eof && count > 0 {
                let error = DecodeError { what: "READ3resok without data or eof", at_byte: 0 };
                return Err(Error::Malformed { procedure: Procedure::Read.name(), error });
            }
            let got = u32::try_from(joined.len() + data.len()).expect("no more than `count`");
            let end = offset.saturating_add(got.into());
            let is_confirmed =
                claimed_end == Some(end) || attributes.is_some_and(|file| file.size <= end);
            let is_end = eof && is_confirmed;
            if is_end || got == count {
                let data = completed(joined, data);
                return Ok(ReadData { attributes, eof: is_end, data });
            }
            joined.reserve_exact(count as usize - joined.len());
            joined.extend_from_slice(&data);
            drop(data);
            claimed_end = eof.then_some(end);
            reading = read(end, count - got);
        }
    }
}

/// The data of all replies. That of a single one is not copied.
fn completed(mut joined: Vec<u8>, last: Bytes) -> Bytes {
    if joined.is_empty() {
        return last;
    }
    joined.extend_from_slice(&last);
    joined.shrink_to_fit();
    joined.into()
}
