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
        if record.is_empty() {
            record.reserve_exact(len);
        } else {
            // Not exactly: a peer that sends many small fragments would have it moved for each.
            record.reserve(len);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u32 = 1 << 31;

    /// What a mark says, and what follows it.
    type Fragment<'a> = (u32, &'a [u8]);

    fn wire(fragments: &[Fragment<'_>]) -> Vec<u8> {
        let bytes = |(mark, data): &Fragment<'_>| [&mark.to_be_bytes(), *data].concat();
        fragments.iter().flat_map(bytes).collect()
    }

    #[tokio::test]
    async fn fragments_make_a_record() {
        let table: [(&[Fragment<'_>], &[u8]); 4] = [
            (&[(LAST | 3, b"abc")], b"abc"),
            (&[(LAST, b"")], b""),
            (&[(1, b"a"), (0, b""), (LAST | 2, b"bc")], b"abc"),
            (&[(5, b"abcde"), (4, b"fghi"), (LAST | 1, b"j")], b"abcdefghij"),
        ];
        for (fragments, expected) in table {
            let bytes = [&wire(fragments), b"next".as_slice()].concat();
            let mut from = &bytes[..];
            assert_eq!(read_record(&mut from, 10).await.unwrap(), expected);
            assert_eq!(from, b"next");
        }
    }

    #[tokio::test]
    async fn a_record_that_is_too_long_is_refused_at_its_mark() {
        let table: [&[Fragment<'_>]; 4] = [
            &[(LAST | 11, b"")],
            &[(LAST | (LAST - 1), b"")],
            &[(10, b"abcdefghij"), (LAST | 1, b"")],
            &[(5, b"abcde"), (5, b"fghij"), (LAST - 1, b"")],
        ];
        for fragments in table {
            // The rest never comes, and is not waited for.
            let error = read_record(&mut wire(fragments).as_slice(), 10).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{fragments:?}");
        }
    }

    #[tokio::test]
    async fn a_record_that_ends_early_is_none() {
        let whole = wire(&[(3, b"abc"), (LAST | 3, b"def")]);
        for len in 0..whole.len() {
            let error = read_record(&mut &whole[..len], 10).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}");
        }
    }

    fn parse(words: &[u32]) -> io::Result<(u32, Result<Bytes>)> {
        parse_reply(words.iter().flat_map(|word| word.to_be_bytes()).collect())
    }

    #[test]
    fn replies_are_told_from_other_records() {
        let (xid, results) = parse(&[7, REPLY, 0, 0, 0, 0, 42]).unwrap();
        assert_eq!((xid, results.unwrap().as_ref()), (7, [0, 0, 0, 42].as_slice()));
        let (_, results) = parse(&[7, REPLY, 0, 0, 0, 1]).unwrap();
        assert!(matches!(results, Err(Error::Accept(AcceptStat::ProgUnavail))));
        let (_, results) = parse(&[7, REPLY, 1, 1, 5]).unwrap();
        assert!(matches!(results, Err(Error::Reject(_))));
        // The call it is for can be told that its reply makes no sense.
        for header in [&[7, REPLY][..], &[7, REPLY, 0], &[7, REPLY, 2], &[7, REPLY, 0, 0, 0, 9]] {
            let (xid, results) = parse(header).unwrap();
            assert_eq!(xid, 7);
            assert!(matches!(results, Err(Error::Decode(_))), "{header:?}");
        }
        for record in [&[][..], &[7], &[7, 0], &[7, 2]] {
            assert_eq!(parse(record).unwrap_err().kind(), ErrorKind::InvalidData, "{record:?}");
        }
    }
}
