//! Headers of replies (RFC 5531 §9).

use std::io::{self, ErrorKind};

use bytes::Bytes;
use proto::oncrpc::{AcceptStat, ReplyHeader};
use proto::xdr::{Decode, Reader};

use super::{Error, Result};

/// `REPLY`, RFC 5531 §9.
const REPLY: u32 = 1;

/// Takes a reply apart: the call it is for, and what follows the header or why nothing does.
///
/// # Errors
/// `InvalidData`: the record is no reply, so that nothing behind it can be trusted either.
pub(super) fn parse(record: Bytes) -> io::Result<(u32, Result<Bytes>)> {
    let mut r = Reader::new(&record);
    let xid = match (r.u32("xid"), r.u32("msg_type")) {
        (Ok(xid), Ok(REPLY)) => xid,
        _ => return Err(io::Error::new(ErrorKind::InvalidData, "the message is not a reply")),
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

    fn parse(words: &[u32]) -> io::Result<(u32, Result<Bytes>)> {
        super::parse(words.iter().flat_map(|word| word.to_be_bytes()).collect())
    }

    #[test]
    fn replies_are_distinguished_from_other_records() {
        let (xid, results) = parse(&[7, REPLY, 0, 0, 0, 0, 42]).unwrap();
        assert_eq!((xid, results.unwrap().as_ref()), (7, [0, 0, 0, 42].as_slice()));
        let (_, results) = parse(&[7, REPLY, 0, 0, 0, 1]).unwrap();
        assert!(matches!(results, Err(Error::Accept(AcceptStat::ProgUnavail))));
        let (_, results) = parse(&[7, REPLY, 1, 1, 5]).unwrap();
        assert!(matches!(results, Err(Error::Reject(_))));
        // The call that it answers fails: its reply cannot be decoded.
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
