//! Replies as they come from a socket: record marks (RFC 5531 §11), then the header (§9).

use std::io::{self, ErrorKind};

use bytes::{BufMut, Bytes};
use proto::oncrpc::{AcceptStat, RecordMark, ReplyHeader};
use proto::xdr::{Decode, Reader};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::{Error, Result};

/// `REPLY`, RFC 5531 §9.
const REPLY: u32 = 1;

/// Receives a record of at most `bytes_max` bytes, all fragments of it, into memory of its size.
///
/// # Errors
/// The connection ended, or `InvalidData`: the record is longer.
pub(super) async fn read_record(
    from: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
) -> io::Result<Bytes> {
    let mut record = Vec::new();
    loop {
        let mut mark = [0; RecordMark::BYTES];
        from.read_exact(&mut mark).await?;
        let RecordMark { last, len } = RecordMark::from_bytes(mark);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > bytes_max - record.len() {
            let text =
                format!("it sends a record of {len} bytes, {bytes_max} are the most allowed");
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        record.reserve_exact(len);
        let end = record.len() + len;
        while record.len() < end {
            let rest = end - record.len();
            if from.read_buf(&mut (&mut record).limit(rest)).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        if last {
            return Ok(record.into());
        }
    }
}

/// Takes a reply apart: the call it is for, and what follows the header or why nothing does.
///
/// # Errors
/// `InvalidData`: the record is no reply, so that nothing behind it can be trusted either.
pub(super) fn parse_reply(record: Bytes) -> io::Result<(u32, Result<Bytes>)> {
    let mut r = Reader::new(&record);
    let xid = match (r.u32("xid"), r.u32("msg_type")) {
        (Ok(xid), Ok(REPLY)) => xid,
        _ => return Err(io::Error::new(ErrorKind::InvalidData, "what it sends is no reply")),
    };
    let mut r = Reader::new(&record);
    let stat = match ReplyHeader::decode(&mut r) {
        Ok(ReplyHeader::Accepted { stat, .. }) => stat,
        Ok(ReplyHeader::Denied(_, stat)) => return Ok((xid, Err(Error::Reject(stat)))),
        Err(error) => return Ok((xid, Err(error.into()))),
    };
    let results = match stat {
        AcceptStat::Success => Ok(record.slice(r.position()..)),
        stat => Err(Error::Accept(stat)),
    };
    Ok((xid, results))
}
