//! WRITE and COMMIT: RFC 8881 §18.32 and §18.3.

use super::OperationCode;
use super::compound::SEQUENCE_BYTES;
use super::types::{
    BITMAP_WORDS_MAX, FILE_HANDLE_BYTES_MAX, NAME_BYTES_MAX, OPAQUE_BYTES_MAX, SessionId,
    StableHow, Stateid, Verifier,
};
use crate::xdr::{Decode, DecodeError, Encode, Reader, Writer, padded, xdr_struct};

/// Arguments of WRITE up to the data: `data_len` bytes and their padding follow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WriteHead {
    /// The open or the lock that it belongs to.
    pub stateid: Stateid,
    /// Where the first byte goes.
    pub offset: u64,
    /// How durable the data must be before the reply.
    pub stable: StableHow,
    /// Length of the opaque data that follows.
    pub data_len: u32,
}

xdr_struct!(WriteHead { stateid, offset: u64, stable, data_len: u32 });

/// Arguments of WRITE with the data in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteArgs<'a> {
    /// The open or the lock that it belongs to.
    pub stateid: Stateid,
    /// Where the first byte goes.
    pub offset: u64,
    /// How durable the data must be before the reply.
    pub stable: StableHow,
    /// The data, borrowed from the record.
    pub data: &'a [u8],
}

impl<'a> Decode<'a> for WriteArgs<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let WriteHead { stateid, offset, stable, data_len } = WriteHead::decode(r)?;
        let failure = DecodeError { what: "WriteArgs.data", at_byte: r.position() };
        let data = r.data(usize::try_from(data_len).map_err(|_| failure)?, failure.what)?;
        Ok(Self { stateid, offset, stable, data })
    }
}

impl Encode for WriteArgs<'_> {
    fn encode(&self, w: &mut Writer) {
        self.stateid.encode(w);
        w.u64(self.offset);
        self.stable.encode(w);
        w.opaque(self.data);
    }
}

/// Result of WRITE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WriteOk {
    /// Bytes written, possibly fewer than sent.
    pub count: u32,
    /// How durable they are: at least what was asked.
    pub committed: StableHow,
    /// As long as this does not change, unstable data is not lost.
    pub verifier: Verifier,
}

xdr_struct!(WriteOk { count: u32, committed, verifier });

/// Arguments of COMMIT.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CommitArgs {
    /// First byte.
    pub offset: u64,
    /// Bytes from there on; zero means to the end of the file.
    pub count: u32,
}

xdr_struct!(CommitArgs { offset: u64, count: u32 });

/// Result of COMMIT.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CommitOk {
    /// Equal to the verifier of the WRITEs, or their data must be sent again.
    pub verifier: Verifier,
}

xdr_struct!(CommitOk { verifier });

/// Where the data of a COMPOUND's first WRITE, or the value of its first SETXATTR, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePayload {
    /// Its first byte, counted from the beginning of the COMPOUND's arguments.
    pub at: usize,
    /// Its length without padding.
    pub len: u32,
    /// Where in the file it goes; zero for a value.
    pub offset: u64,
    /// Where the handle of the latest PUTFH stands, if one came before a WRITE.
    file_at: Option<usize>,
    /// Where the session of SEQUENCE stands, if one came before.
    session_at: Option<usize>,
}

impl WritePayload {
    /// The session of the COMPOUND with these arguments, if it names one.
    #[must_use]
    pub fn session(&self, arguments: &[u8]) -> Option<SessionId> {
        SessionId::decode(&mut Reader::new(arguments.get(self.session_at?..)?)).ok()
    }

    /// The handle of the file that is written to, if the COMPOUND with these arguments names it.
    #[must_use]
    pub fn file<'a>(&self, arguments: &'a [u8]) -> Option<&'a [u8]> {
        let mut r = Reader::new(arguments.get(self.file_at?..)?);
        r.opaque(FILE_HANDLE_BYTES_MAX, "nfs_fh4").ok()
    }
}

/// The result of [`scan_payload`], from the first bytes of a COMPOUND's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadScan {
    /// At least this many bytes of the arguments are needed, more than there are.
    Needs(usize),
    /// The data of a WRITE or the value of a SETXATTR comes next.
    Found(WritePayload),
    /// Neither follows the operations that a scan passes over.
    Nothing,
}

/// Looks for the data of the first WRITE or SETXATTR while the arguments are being received; more
/// than they may have come.
///
/// Passes over [`SCAN_OPERATIONS_MAX`] operations of those that come before a WRITE in practice:
/// SEQUENCE, PUTFH, PUTROOTFH, SAVEFH, RESTOREFH, GETFH, GETATTR, ACCESS and LOOKUP.
#[must_use]
pub fn scan_payload(arguments: &[u8]) -> PayloadScan {
    match (Scan { arguments, at: 0, file_at: None, session_at: None }).find() {
        Ok(found) => found.map_or(PayloadScan::Nothing, PayloadScan::Found),
        Err(needed) => PayloadScan::Needs(needed),
    }
}

/// A walk over arguments. An `Err` is the length that it needs.
struct Scan<'a> {
    arguments: &'a [u8],
    at: usize,
    /// Where the handle of the latest PUTFH stands.
    file_at: Option<usize>,
    /// Where the session of SEQUENCE stands.
    session_at: Option<usize>,
}

impl Scan<'_> {
    fn find(&mut self) -> Result<Option<WritePayload>, usize> {
        // Minor version, number of operations and the least in front of data follow the tag's
        // length.
        let is_tag = self.skip_counted(1, OPAQUE_BYTES_MAX);
        if !is_tag.map_err(|needed| needed + 8 + DATA_HEAD_BYTES_MIN)? {
            return Ok(None);
        }
        self.at += 4;
        let operations = self.word().map_err(|needed| needed + DATA_HEAD_BYTES_MIN)?;
        for _ in 0..operations.min(SCAN_OPERATIONS_MAX) {
            let code = self.word().map_err(|needed| needed - 4 + DATA_HEAD_BYTES_MIN)?;
            let known = match OperationCode::from_code(code) {
                Some(OperationCode::Write) => return self.payload(),
                Some(OperationCode::Setxattr) => return self.value(),
                Some(OperationCode::Sequence) => {
                    self.session_at = Some(self.at);
                    self.skip(SEQUENCE_BYTES)
                }
                Some(OperationCode::Putfh) => {
                    self.file_at = Some(self.at);
                    self.skip_counted(1, FILE_HANDLE_BYTES_MAX)?
                }
                Some(OperationCode::Getattr) => self.skip_counted(4, BITMAP_WORDS_MAX)?,
                Some(OperationCode::Lookup) => self.skip_counted(1, NAME_BYTES_MAX)?,
                Some(OperationCode::Access) => self.skip(4),
                Some(
                    OperationCode::Putrootfh
                    | OperationCode::Savefh
                    | OperationCode::Restorefh
                    | OperationCode::Getfh,
                ) => true,
                Some(_) | None => false,
            };
            if !known {
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn payload(&self) -> Result<Option<WritePayload>, usize> {
        let end = self.at + WRITE_HEAD_BYTES;
        let head = self.arguments.get(self.at..end).ok_or(end)?;
        let found = WriteHead::decode(&mut Reader::new(head));
        Ok(found.ok().map(|WriteHead { data_len: len, offset, .. }| WritePayload {
            at: end,
            len,
            offset,
            file_at: self.file_at,
            session_at: self.session_at,
        }))
    }

    /// The value of a SETXATTR, behind its option and its name.
    fn value(&mut self) -> Result<Option<WritePayload>, usize> {
        self.at += 4;
        if !self.skip_counted(1, NAME_BYTES_MAX)? {
            return Ok(None);
        }
        let len = self.word()?;
        let session_at = self.session_at;
        Ok(Some(WritePayload { at: self.at, len, offset: 0, file_at: None, session_at }))
    }

    fn word(&mut self) -> Result<u32, usize> {
        let needed = self.at + 4;
        let word = self.arguments.get(self.at..needed).and_then(|bytes| bytes.first_chunk());
        self.at = needed;
        word.map(|word| u32::from_be_bytes(*word)).ok_or(needed)
    }

    fn skip(&mut self, bytes: usize) -> bool {
        self.at += bytes;
        true
    }

    /// Passes over a count and so many items; `false` if there are more than `items_max`.
    fn skip_counted(&mut self, item_bytes: usize, items_max: usize) -> Result<bool, usize> {
        let items = usize::try_from(self.word()?).unwrap_or(usize::MAX);
        Ok(items <= items_max && self.skip(padded(items * item_bytes)))
    }
}

/// Operations that a scan passes over before it gives up.
pub const SCAN_OPERATIONS_MAX: u32 = 16;
/// The least that an operation with data has in front of it: the number, the option and the empty
/// name of a SETXATTR, and the length of the value.
const DATA_HEAD_BYTES_MIN: usize = 16;
/// [`WriteHead`] on the wire.
const WRITE_HEAD_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs4::{
        Bitmap, CompoundHead, FileHandle, SequenceArgs, SequenceId, SessionId, SetxattrHead,
        SetxattrOption, SlotId,
    };

    /// The arguments of a COMPOUND as Linux sends it: SEQUENCE, PUTFH, WRITE, GETATTR. Returns the
    /// bytes up to and including the data's length, and those that follow the data.
    fn linux_write(data_len: u32) -> (Vec<u8>, Vec<u8>) {
        let mut w = Writer::new();
        CompoundHead { tag: b"tag", minor_version: 2, operations: 4 }.encode(&mut w);
        OperationCode::Sequence.encode(&mut w);
        SequenceArgs {
            session: SessionId([7; 16]),
            sequence: SequenceId(1),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: false,
        }
        .encode(&mut w);
        OperationCode::Putfh.encode(&mut w);
        FileHandle::new(&[9; 30]).unwrap().encode(&mut w);
        OperationCode::Write.encode(&mut w);
        let stateid = Stateid { seqid: 1, other: [1; 12] };
        let stable = StableHow::Unstable;
        WriteHead { stateid, offset: 4096, stable, data_len }.encode(&mut w);
        let head = w.into_vec();
        let mut w = Writer::new();
        OperationCode::Getattr.encode(&mut w);
        Bitmap::of(&[3, 4]).encode(&mut w);
        (head, w.into_vec())
    }

    #[test]
    fn a_scan_asks_for_the_head_of_a_write_and_no_more_in_few_steps() {
        let (head, _) = linux_write(100);
        let (mut have, mut steps) = (0, 0);
        loop {
            match scan_payload(&head[..have]) {
                PayloadScan::Needs(needed) => {
                    assert!(needed > have && needed <= head.len(), "{needed} of {}", head.len());
                    (have, steps) = (needed, steps + 1);
                }
                found => {
                    let PayloadScan::Found(payload) = found else { panic!("{found:?}") };
                    assert_eq!((payload.at, payload.len, payload.offset), (head.len(), 100, 4096));
                    assert_eq!(payload.file(&head), Some(&[9; 30][..]));
                    assert_eq!(payload.session(&head), Some(SessionId([7; 16])));
                    assert_eq!(steps, 4);
                    return;
                }
            }
        }
    }

    #[test]
    fn the_value_of_a_setxattr_is_found() {
        let mut w = Writer::new();
        CompoundHead { tag: b"", minor_version: 2, operations: 1 }.encode(&mut w);
        OperationCode::Setxattr.encode(&mut w);
        let option = SetxattrOption::Either;
        SetxattrHead { option, name: b"colour", value_len: 3 }.encode(&mut w);
        let head = w.into_vec();
        assert!(matches!(scan_payload(&head[..head.len() - 1]), PayloadScan::Needs(_)));
        let (file_at, session_at) = (None, None);
        let payload = WritePayload { at: head.len(), len: 3, offset: 0, file_at, session_at };
        assert_eq!(scan_payload(&head), PayloadScan::Found(payload));
    }

    #[test]
    fn other_compounds_have_no_payload() {
        let mut w = Writer::new();
        CompoundHead { tag: b"", minor_version: 1, operations: 2 }.encode(&mut w);
        OperationCode::Putrootfh.encode(&mut w);
        OperationCode::Getattr.encode(&mut w);
        Bitmap::of(&[3, 40]).encode(&mut w);
        assert_eq!(scan_payload(w.as_slice()), PayloadScan::Nothing);
        let mut w = Writer::new();
        CompoundHead { tag: b"", minor_version: 1, operations: u32::MAX }.encode(&mut w);
        (0..100).for_each(|_| OperationCode::Getfh.encode(&mut w));
        assert_eq!(scan_payload(w.as_slice()), PayloadScan::Nothing, "the walk is bounded");
        assert_eq!(scan_payload(&[0xff; 4]), PayloadScan::Nothing);
    }
}
