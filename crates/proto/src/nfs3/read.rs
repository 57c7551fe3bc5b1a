//! READ: RFC 1813 §3.3.6.

use std::fmt;

use super::types::{Attributes, FileHandle, Reply};
use crate::xdr::{Decode, DecodeError, Encode, Escaped, Reader, UNBOUNDED, Writer, xdr_struct};

/// Arguments of READ, RFC 1813 §3.3.6.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReadArgs {
    /// The file to read.
    pub file: FileHandle,
    /// First byte wanted.
    pub offset: u64,
    /// Bytes wanted. The client's wish: the server clamps it before it reserves memory.
    pub count: u32,
}

xdr_struct!(ReadArgs { file, offset: u64, count: u32 });

/// Result of READ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReadOk<'a> {
    /// The file as it is.
    pub attributes: Option<Attributes>,
    /// Bytes read; always the length of `data`.
    pub count: u32,
    /// Whether the last of them is the last of the file.
    pub eof: bool,
    /// The bytes read, borrowed from the record or from the reply's buffer.
    pub data: &'a [u8],
}

impl ReadOk<'_> {
    /// Appends everything in front of the data: a transport that sends the payload from where it
    /// lies puts `count` bytes and their padding (see [`crate::xdr::padded`]) behind it.
    pub fn encode_head(attributes: Option<&Attributes>, count: u32, eof: bool, w: &mut Writer) {
        attributes.encode(w);
        w.u32(count);
        w.bool(eof);
        w.u32(count);
    }
}

/// The length appears twice on the wire. A reply in which the two differ is refused, because no
/// reading of it is safe.
impl<'a> Decode<'a> for ReadOk<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let attributes = Decode::decode(r)?;
        let count = r.u32("ReadOk.count")?;
        let eof = r.bool("ReadOk.eof")?;
        let at_byte = r.position();
        let data = r.opaque(UNBOUNDED, "ReadOk.data")?;
        if u32::try_from(data.len()) != Ok(count) {
            return Err(DecodeError { what: "ReadOk.data", at_byte });
        }
        Ok(Self { attributes, count, eof, data })
    }
}

/// # Panics
/// `count` is not the length of `data`.
impl Encode for ReadOk<'_> {
    fn encode(&self, w: &mut Writer) {
        assert_eq!(u32::try_from(self.data.len()), Ok(self.count), "count is the data's length");
        Self::encode_head(self.attributes.as_ref(), self.count, self.eof, w);
        w.array(self.data);
    }
}

impl fmt::Debug for ReadOk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOk")
            .field("attributes", &self.attributes)
            .field("count", &self.count)
            .field("eof", &self.eof)
            .field("data", &Escaped(self.data))
            .finish()
    }
}

/// `READ3res`.
pub type ReadReply<'a> = Reply<ReadOk<'a>, Option<Attributes>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    #[test]
    fn both_lengths_have_to_agree() {
        // No attributes, count, eof, then the length of the data and the data.
        let reply = |count| [0, 0, 0, 0, 0, 0, 0, count, 0, 0, 0, 1, 0, 0, 0, 2, 7, 8, 0, 0];
        let ok = ReadOk { attributes: None, count: 2, eof: true, data: &[7, 8] };
        assert_eq!(decode_all::<ReadOk<'_>>(&reply(2)), Ok(ok));
        for count in [0, 1, 3, 4] {
            let failure = DecodeError { what: "ReadOk.data", at_byte: 12 };
            assert_eq!(decode_all::<ReadOk<'_>>(&reply(count)), Err(failure));
        }
    }
}
