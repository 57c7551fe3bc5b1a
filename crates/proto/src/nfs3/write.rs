//! WRITE and COMMIT: RFC 1813 §3.3.7 and §3.3.21.

use std::fmt;

use super::types::{FILE_HANDLE_BYTES_MAX, FileHandle, Reply, StableHow, WccData, WriteVerifier};
use crate::xdr::{
    Decode, DecodeError, Encode, Escaped, Reader, Writer, decode_all, padded, xdr_struct,
};

/// Arguments of WRITE, RFC 1813 §3.3.7, with the data in the record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WriteArgs<'a> {
    /// The file to write.
    pub file: FileHandle,
    /// Where the first byte goes.
    pub offset: u64,
    /// Bytes to write; always the length of `data`.
    pub count: u32,
    /// How durable the data must be before the reply.
    pub stable: StableHow,
    /// The data, borrowed from the record.
    pub data: &'a [u8],
}

impl<'a> Decode<'a> for WriteArgs<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let WriteHead { file, offset, count, stable, data_len } = WriteHead::decode(r)?;
        let failure = DecodeError { what: "WriteArgs.data", at_byte: r.position() };
        let data = r.data(usize::try_from(data_len).map_err(|_| failure)?, failure.what)?;
        Ok(Self { file, offset, count, stable, data })
    }
}

/// # Panics
/// `count` is not the length of `data`.
impl Encode for WriteArgs<'_> {
    fn encode(&self, w: &mut Writer) {
        let Self { file, offset, count, stable, data } = *self;
        assert_eq!(u32::try_from(data.len()), Ok(count), "count is the data's length");
        WriteHead { file, offset, count, stable, data_len: count }.encode(w);
        w.array(data);
    }
}

impl fmt::Debug for WriteArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteArgs")
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("count", &self.count)
            .field("stable", &self.stable)
            .field("data", &Escaped(self.data))
            .finish()
    }
}

/// Arguments of WRITE up to the data, which is still in the socket.
///
/// `data_len` bytes and their padding follow. Nothing has been checked against them: the receiver
/// holds `data_len` against the record's length and its own limit before it takes a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// The file to write.
    pub file: FileHandle,
    /// Where the first byte goes.
    pub offset: u64,
    /// Bytes to write; always equal to `data_len`.
    pub count: u32,
    /// How durable the data must be before the reply.
    pub stable: StableHow,
    /// Length of the opaque data that follows.
    pub data_len: u32,
}

/// The result of [`WriteHead::scan`], from the first bytes of a WRITE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteScan {
    /// At least this many bytes of the arguments are needed, more than there are.
    Needs(usize),
    /// All of the arguments but the data, which comes next.
    Head(WriteHead),
    /// The arguments cannot be decoded.
    Malformed(DecodeError),
}

impl WriteHead {
    /// Length on the wire: the data begins behind it.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        4 + padded(self.file.as_bytes().len()) + BEHIND_HANDLE_BYTES
    }

    /// Decodes the arguments while they are being received; data may follow them.
    #[must_use]
    pub fn scan(arguments: &[u8]) -> WriteScan {
        let Some(len) = arguments.first_chunk() else {
            return WriteScan::Needs(4 + BEHIND_HANDLE_BYTES);
        };
        let len = usize::try_from(u32::from_be_bytes(*len)).unwrap_or(usize::MAX);
        if len > FILE_HANDLE_BYTES_MAX {
            return WriteScan::Malformed(DecodeError { what: "WriteArgs.file", at_byte: 0 });
        }
        let needed = 4 + padded(len) + BEHIND_HANDLE_BYTES;
        let Some(head) = arguments.get(..needed) else { return WriteScan::Needs(needed) };
        match decode_all(head) {
            Ok(head) => WriteScan::Head(head),
            Err(error) => WriteScan::Malformed(error),
        }
    }
}

/// Behind the handle: offset, count, `stable_how`, the data's length.
const BEHIND_HANDLE_BYTES: usize = 8 + 4 + 4 + 4;

/// The length appears twice on the wire. A call in which the two differ is refused, as Linux does:
/// writing either number of bytes could be wrong.
impl Decode<'_> for WriteHead {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let file = Decode::decode(r)?;
        let offset = r.u64("WriteArgs.offset")?;
        let count = r.u32("WriteArgs.count")?;
        let stable = Decode::decode(r)?;
        let at_byte = r.position();
        let data_len = r.u32("WriteArgs.data")?;
        if data_len != count {
            return Err(DecodeError { what: "WriteArgs.data", at_byte });
        }
        Ok(Self { file, offset, count, stable, data_len })
    }
}

impl Encode for WriteHead {
    fn encode(&self, w: &mut Writer) {
        self.file.encode(w);
        w.u64(self.offset);
        w.u32(self.count);
        self.stable.encode(w);
        w.u32(self.data_len);
    }
}

/// Result of WRITE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WriteOk {
    /// The file on both sides of the change.
    pub wcc: WccData,
    /// Bytes written, possibly fewer than asked.
    pub count: u32,
    /// How durable they are: at least what was asked.
    pub committed: StableHow,
    /// As long as this does not change, unstable data is not lost.
    pub verifier: WriteVerifier,
}

xdr_struct!(WriteOk { wcc, count: u32, committed, verifier });

/// `WRITE3res`.
pub type WriteReply = Reply<WriteOk, WccData>;

/// Arguments of COMMIT, RFC 1813 §3.3.21.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CommitArgs {
    /// The file to make durable.
    pub file: FileHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes from there on; zero means to the end of the file.
    pub count: u32,
}

xdr_struct!(CommitArgs { file, offset: u64, count: u32 });

/// Result of COMMIT.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CommitOk {
    /// The file on both sides.
    pub wcc: WccData,
    /// Equal to the verifier of the WRITEs, or their data must be sent again.
    pub verifier: WriteVerifier,
}

xdr_struct!(CommitOk { wcc, verifier });

/// `COMMIT3res`.
pub type CommitReply = Reply<CommitOk, WccData>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Handle 0x42, offset 1, count, FILE_SYNC, the length of the data, and two bytes of it.
    const fn call(count: u8, data_len: u8) -> [u8; 32] {
        [
            0, 0, 0, 1, 0x42, 0, 0, 0, // file
            0, 0, 0, 0, 0, 0, 0, 1, // offset
            0, 0, 0, count, 0, 0, 0, 2, // count, stable
            0, 0, 0, data_len, 7, 8, 0, 0, // data
        ]
    }

    #[test]
    fn both_lengths_have_to_agree() {
        let file = FileHandle::new(&[0x42]).unwrap();
        let stable = StableHow::FileSync;
        let args = WriteArgs { file, offset: 1, count: 2, stable, data: &[7, 8] };
        assert_eq!(decode_all::<WriteArgs<'_>>(&call(2, 2)), Ok(args));
        for (count, data_len) in [(1, 2), (3, 2), (2, 1), (0, 2)] {
            let failure = DecodeError { what: "WriteArgs.data", at_byte: 24 };
            let bytes = call(count, data_len);
            assert_eq!(decode_all::<WriteArgs<'_>>(&bytes), Err(failure));
            assert_eq!(WriteHead::decode(&mut Reader::new(&bytes)), Err(failure));
        }
    }

    #[test]
    fn a_scan_asks_for_the_head_and_no_more() {
        let bytes = call(2, 2);
        let needs: Vec<_> = (0..28)
            .map(|len| match WriteHead::scan(&bytes[..len]) {
                WriteScan::Needs(needed) => needed,
                other => panic!("{len} bytes: {other:?}"),
            })
            .collect();
        assert_eq!(needs, [[24; 4].as_slice(), &[28; 24]].concat());
        let head = WriteHead::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(WriteHead::scan(&bytes[..28]), WriteScan::Head(head));
        assert_eq!(WriteHead::scan(&bytes), WriteScan::Head(head), "with the data");
        assert_eq!(head.wire_bytes(), 28);
        assert!(matches!(WriteHead::scan(&call(2, 3)), WriteScan::Malformed(_)));
        assert!(matches!(WriteHead::scan(&[0, 0, 0, 65]), WriteScan::Malformed(_)));
        assert!(matches!(WriteHead::scan(&[0xff; 4]), WriteScan::Malformed(_)));
    }

    #[test]
    fn the_head_ends_where_the_data_begins() {
        let bytes = call(200, 200);
        let mut r = Reader::new(&bytes);
        let head = WriteHead::decode(&mut r).unwrap();
        assert_eq!((head.count, head.data_len, r.position()), (200, 200, 28));
        let failure = DecodeError { what: "WriteArgs.data", at_byte: 28 };
        assert_eq!(decode_all::<WriteArgs<'_>>(&bytes), Err(failure), "200 bytes are not there");
    }
}
