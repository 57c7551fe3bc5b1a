//! Records: a message in one fragment or several, each behind a mark (RFC 5531 §11).

use std::io::{self, ErrorKind, Read};

use bytes::{BufMut, Bytes};
use proto::oncrpc::RecordMark;
use proto::xdr::Writer;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Room for the mark in front of a message that is sent as one fragment; see [`put_mark`].
pub const MARK_ROOM: [u8; RecordMark::BYTES] = [0; RecordMark::BYTES];

/// A record or message of more bytes than it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The bytes that it has, or its fragments so far.
    pub bytes: u64,
    /// The bytes that it may have.
    pub bytes_max: u64,
}

impl From<TooLong> for io::Error {
    fn from(TooLong { bytes, bytes_max }: TooLong) -> Self {
        let text = format!("a record of {bytes} bytes exceeds the limit of {bytes_max} bytes");
        Self::new(ErrorKind::InvalidData, text)
    }
}

/// The way through the fragments of a record. No I/O: the receiver reports marks and bytes.
#[derive(Clone, Copy, Debug)]
pub struct Fragments {
    /// Bytes of the current fragment that are not taken yet.
    left: u64,
    is_last: bool,
    /// Bytes that the marks have announced so far.
    bytes: u64,
    bytes_max: u64,
}

/// The next part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A mark.
    Mark,
    /// At least so many bytes of the message.
    Bytes(usize),
    /// The end.
    End,
}

impl Fragments {
    /// At the beginning of a record of at most `bytes_max` bytes, marks not counted.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self { left: 0, is_last: false, bytes: 0, bytes_max }
    }

    /// The part behind those taken so far.
    #[must_use]
    pub fn next(&self) -> Next {
        match self.left {
            0 if self.is_last => Next::End,
            0 => Next::Mark,
            left => Next::Bytes(usize::try_from(left).unwrap_or(usize::MAX)),
        }
    }

    /// Takes the mark that was next.
    ///
    /// # Errors
    /// The record is too long: nothing of the fragment need be received.
    pub fn take_mark(&mut self, mark: RecordMark) -> Result<(), TooLong> {
        debug_assert!(self.left == 0 && !self.is_last, "a mark is next");
        self.left = mark.len.into();
        self.is_last = mark.last;
        self.bytes += self.left;
        if self.bytes > self.bytes_max {
            return Err(TooLong { bytes: self.bytes, bytes_max: self.bytes_max });
        }
        Ok(())
    }

    /// Bytes that the marks have announced so far: at the end, the length of the message.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes bytes of the message, at most as many as are next.
    pub fn take(&mut self, bytes: usize) {
        self.left -= bytes as u64;
    }
}

/// Puts the mark of a record with one fragment in the first bytes of `record`, which ends where
/// `bytes_behind` bytes follow that are sent from elsewhere.
///
/// # Errors
/// A fragment cannot be that long.
pub fn put_mark(record: &mut [u8], bytes_behind: usize) -> Result<(), TooLong> {
    let (mark, head) = record.split_at_mut(RecordMark::BYTES);
    let bytes = (head.len() as u64).saturating_add(bytes_behind as u64);
    let len = u32::try_from(bytes).ok().filter(|len| *len <= FRAGMENT_BYTES_MAX);
    let len = len.ok_or(TooLong { bytes, bytes_max: FRAGMENT_BYTES_MAX.into() })?;
    mark.copy_from_slice(&RecordMark { last: true, len }.to_bytes());
    Ok(())
}

/// A whole record of one fragment.
///
/// # Panics
/// The message has 2 GiB or more.
pub fn encode(message: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::with_capacity(RECORD_BYTES);
    w.array(&MARK_ROOM);
    message(&mut w);
    let mut record = w.into_vec();
    put_mark(&mut record, 0).expect("a message that is held in memory as a whole is short");
    record
}

/// A record in fragments, cut at the given places in order.
///
/// # Panics
/// The cuts are not in order, or beyond the end.
#[must_use]
pub fn in_fragments(message: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut record = Vec::with_capacity(message.len() + RecordMark::BYTES * (cuts.len() + 1));
    let mut start = 0;
    for (i, end) in cuts.iter().copied().chain([message.len()]).enumerate() {
        let len = u32::try_from(end - start).expect("a fragment is shorter than 2 GiB");
        record.extend(RecordMark { last: i == cuts.len(), len }.to_bytes());
        record.extend(&message[start..end]);
        start = end;
    }
    record
}

/// Receives a record of at most `bytes_max` bytes, all fragments of it, into memory of its size.
///
/// # Errors
/// Those of the stream, `UnexpectedEof` where it ends, and `InvalidData` for a longer record.
pub async fn read(from: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> io::Result<Bytes> {
    let mut fragments = Fragments::new(bytes_max as u64);
    let mut record = Vec::new();
    loop {
        match fragments.next() {
            Next::End => return Ok(record.into()),
            Next::Mark => {
                let mut mark = MARK_ROOM;
                from.read_exact(&mut mark).await?;
                fragments.take_mark(RecordMark::from_bytes(mark))?;
                reserve(&mut record, &fragments);
            }
            Next::Bytes(len) => {
                let received = from.read_buf(&mut (&mut record).limit(len)).await?;
                if received == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                fragments.take(received);
            }
        }
    }
}

/// Like [`read`], on a blocking stream. `None` where the stream ends, or is reset, between two
/// records.
///
/// # Errors
/// Those of [`read`].
pub fn read_blocking(from: &mut impl Read, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut fragments = Fragments::new(bytes_max as u64);
    let mut record = Vec::new();
    let mut has_begun = false;
    loop {
        match fragments.next() {
            Next::End => return Ok(Some(record)),
            Next::Mark => {
                let mut mark = MARK_ROOM;
                match from.read_exact(&mut mark) {
                    Err(error) if !has_begun && is_closed(&error) => return Ok(None),
                    read => read?,
                }
                has_begun = true;
                fragments.take_mark(RecordMark::from_bytes(mark))?;
                reserve(&mut record, &fragments);
            }
            Next::Bytes(len) => {
                // Without optimization, filling the room with zeros takes longer than the rest.
                if from.take(len as u64).read_to_end(&mut record)? < len {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                fragments.take(len);
            }
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Makes room for the fragment that comes next.
fn reserve(record: &mut Vec<u8>, fragments: &Fragments) {
    if let Next::Bytes(len) = fragments.next() {
        if record.is_empty() {
            record.reserve_exact(len);
        } else {
            // Not exactly: a peer that sends many small fragments would have it moved for each.
            record.reserve(len);
        }
    }
}

/// The longest fragment (RFC 5531 §11).
const FRAGMENT_BYTES_MAX: u32 = (1 << 31) - 1;
/// Room for most messages without a payload.
const RECORD_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u32 = 1 << 31;

    /// A mark, and what follows it.
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
            assert_eq!(read(&mut from, 10).await.unwrap(), expected);
            assert_eq!(from, b"next");
            let mut from = &bytes[..];
            assert_eq!(read_blocking(&mut from, 10).unwrap().unwrap(), expected);
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
            let error = read(&mut wire(fragments).as_slice(), 10).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{fragments:?}");
            let error = read_blocking(&mut wire(fragments).as_slice(), 10).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{fragments:?}");
        }
    }

    #[tokio::test]
    async fn a_record_that_ends_early_is_none() {
        let whole = wire(&[(3, b"abc"), (LAST | 3, b"def")]);
        for len in 0..whole.len() {
            let error = read(&mut &whole[..len], 10).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}");
            match read_blocking(&mut &whole[..len], 10) {
                Ok(None) => assert!(len < RecordMark::BYTES, "{len}"),
                Ok(Some(_)) => panic!("{len} bytes are no record"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}"),
            }
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_encoded() {
        let record = encode(|w| w.u32(7));
        assert_eq!(record, in_fragments(&[0, 0, 0, 7], &[]));
        assert_eq!(read_blocking(&mut record.as_slice(), 4).unwrap().unwrap(), [0, 0, 0, 7]);
        let cut = in_fragments(b"abcdef", &[0, 2, 6]);
        assert_eq!(read_blocking(&mut cut.as_slice(), 6).unwrap().unwrap(), b"abcdef");
    }

    #[test]
    fn a_mark_covers_what_is_sent_from_elsewhere() {
        let mut head = [&MARK_ROOM[..], b"head"].concat();
        put_mark(&mut head, 8).unwrap();
        assert_eq!(head, [&[0x80, 0, 0, 12], &b"head"[..]].concat());
        let most = usize::try_from(FRAGMENT_BYTES_MAX).unwrap() - 4;
        put_mark(&mut head, most).unwrap();
        assert!(put_mark(&mut head, most + 1).is_err());
        assert!(put_mark(&mut head, usize::MAX).is_err());
    }
}
