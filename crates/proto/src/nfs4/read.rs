//! READ and SEEK: RFC 8881 §18.22 and RFC 7862 §15.11.

use std::fmt;

use super::types::Stateid;
use crate::xdr::{
    Decode, DecodeError, Encode, Escaped, Reader, UNBOUNDED, Writer, xdr_enum, xdr_struct,
};

/// Arguments of READ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReadArgs {
    /// The open or the lock that it belongs to.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Bytes from there on.
    pub count: u32,
}

xdr_struct!(ReadArgs { stateid, offset: u64, count: u32 });

/// Result of READ, with the data in the record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReadOk<'a> {
    /// The range reached the end of the file.
    pub eof: bool,
    /// The bytes read, borrowed from the record.
    pub data: &'a [u8],
}

impl ReadOk<'_> {
    /// Appends all but the data, of which there are `len` bytes, and their padding.
    pub fn encode_head(eof: bool, len: u32, w: &mut Writer) {
        w.bool(eof);
        w.u32(len);
    }
}

impl<'a> Decode<'a> for ReadOk<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self { eof: r.bool("ReadOk.eof")?, data: r.opaque(UNBOUNDED, "ReadOk.data")? })
    }
}

impl Encode for ReadOk<'_> {
    fn encode(&self, w: &mut Writer) {
        w.bool(self.eof);
        w.opaque(self.data);
    }
}

impl fmt::Debug for ReadOk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data = Escaped(self.data);
        f.debug_struct("ReadOk").field("eof", &self.eof).field("data", &data).finish()
    }
}

xdr_enum! {
    /// `data_content4`, RFC 7862 §11.4: what SEEK looks for.
    pub enum Content: "data_content4" {
        /// Data.
        Data = 0 "NFS4_CONTENT_DATA",
        /// A hole.
        Hole = 1 "NFS4_CONTENT_HOLE",
    }
}

/// Arguments of SEEK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SeekArgs {
    /// The open or the lock that it belongs to.
    pub stateid: Stateid,
    /// Where to begin.
    pub offset: u64,
    /// A [`Content`]; another number is answered with UNION_NOTSUPP.
    pub what: u32,
}

xdr_struct!(SeekArgs { stateid, offset: u64, what: u32 });

/// Result of SEEK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SeekOk {
    /// There is none before the end of the file.
    pub eof: bool,
    /// Where it is.
    pub offset: u64,
}

xdr_struct!(SeekOk { eof: bool, offset: u64 });
