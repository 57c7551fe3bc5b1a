//! XDR, RFC 4506: a cursor over a borrowed record, an appending writer, and the two traits that tie
//! them to types.

use std::fmt;

mod array;
mod list;
mod macros;

pub use array::Array;
pub use list::{List, encode_list};
pub(crate) use macros::{xdr_enum, xdr_file_handle, xdr_struct};

/// The peer's bytes violate the protocol.
///
/// `what` names the missing or wrong item; `at_byte` is the reader's position at that item, counted
/// from the first byte the reader was given.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("cannot decode {what} at byte {at_byte}")]
pub struct DecodeError {
    /// The item that could not be decoded, as `Type.field` or the RFC's name.
    pub what: &'static str,
    /// Where that item begins, in bytes from the start of the reader.
    pub at_byte: usize,
}

/// A number that an enumeration of the protocol does not contain.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("{value} is not a value of {what}")]
pub struct UnknownValue {
    /// The enumeration's RFC name.
    pub what: &'static str,
    /// The number that it does not contain.
    pub value: u32,
}

/// A type that can be read from XDR. Borrowed parts point into the record.
pub trait Decode<'a>: Sized {
    /// Reads one value and leaves the reader behind it.
    ///
    /// # Errors
    /// Names the first item that is missing, out of its bound or not a value of its type. The
    /// reader's position is then meaningless.
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// A type that can be written as XDR.
pub trait Encode {
    /// Appends the value to `w`.
    fn encode(&self, w: &mut Writer);
}

/// Decodes a value that must fill `bytes` exactly.
///
/// # Errors
/// As [`Decode::decode`], and when bytes trail behind the value.
pub fn decode_all<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut r = Reader::new(bytes);
    let value = T::decode(&mut r)?;
    r.finish()?;
    Ok(value)
}

/// Bytes that `len` bytes of opaque data take on the wire after their length word: `len` rounded up
/// to a multiple of four.
#[must_use]
pub const fn padded(len: usize) -> usize {
    len.next_multiple_of(UNIT_BYTES)
}

/// The bound of an RFC `opaque<>` that has none of its own: only the bytes present limit it.
pub const UNBOUNDED: usize = u32::MAX as usize;

/// A cursor over one record. It never reads past the record and never copies out of it.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    /// `0 <= position <= bytes.len()`.
    position: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes consumed so far.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Bytes not yet consumed.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Unsigned integer, RFC 4506 §4.2.
    ///
    /// # Errors
    /// Fewer than four bytes remain.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(*self.chunk(what)?))
    }

    /// Integer, RFC 4506 §4.1.
    ///
    /// # Errors
    /// Fewer than four bytes remain.
    pub fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(*self.chunk(what)?))
    }

    /// Unsigned hyper integer, RFC 4506 §4.5.
    ///
    /// # Errors
    /// Fewer than eight bytes remain.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(*self.chunk(what)?))
    }

    /// Boolean, RFC 4506 §4.4. Only 0 and 1 exist.
    ///
    /// # Errors
    /// Fewer than four bytes remain, or another number.
    pub fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        let at_byte = self.position;
        match self.u32(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError { what, at_byte }),
        }
    }

    /// Fixed-length opaque data, RFC 4506 §4.9, with its padding.
    ///
    /// # Errors
    /// Fewer bytes remain than data and padding take.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let failure = DecodeError { what, at_byte: self.position };
        self.data(N, what)?.try_into().map_err(|_| failure)
    }

    /// Variable-length opaque data or string of at most `bound` bytes, RFC 4506 §4.10 and §4.11.
    ///
    /// Padding that is not zero is accepted: the RFC asks the sender for zeros, and nothing is
    /// gained by refusing a sender that forgot.
    ///
    /// # Errors
    /// The length exceeds `bound`, or data and padding exceed what remains.
    pub fn opaque(&mut self, bound: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let failure = DecodeError { what, at_byte: self.position };
        let len = usize::try_from(self.u32(what)?).map_err(|_| failure)?;
        if len > bound {
            return Err(failure);
        }
        self.data(len, what).map_err(|_| failure)
    }

    /// `len` bytes of opaque data and their padding, whose length word was read before.
    ///
    /// # Errors
    /// Data and padding exceed what remains.
    pub fn data(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let failure = DecodeError { what, at_byte: self.position };
        let on_wire = len.checked_next_multiple_of(UNIT_BYTES).ok_or(failure)?;
        let data = self.bytes[self.position..].get(..on_wire).ok_or(failure)?;
        self.position += on_wire;
        Ok(&data[..len])
    }

    /// Passes over exactly `len` bytes; the caller includes any padding.
    ///
    /// # Errors
    /// Fewer than `len` bytes remain.
    pub fn skip(&mut self, len: usize, what: &'static str) -> Result<(), DecodeError> {
        if len > self.remaining() {
            return Err(DecodeError { what, at_byte: self.position });
        }
        self.position += len;
        Ok(())
    }

    /// Checks that nothing trails.
    ///
    /// # Errors
    /// Bytes remain.
    pub const fn finish(&self) -> Result<(), DecodeError> {
        if self.remaining() == 0 {
            Ok(())
        } else {
            Err(DecodeError { what: "end of record", at_byte: self.position })
        }
    }

    /// The bytes consumed since `start`, an earlier [`Reader::position`].
    fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.position]
    }

    fn chunk<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N], DecodeError> {
        let failure = DecodeError { what, at_byte: self.position };
        let chunk = self.bytes[self.position..].first_chunk().ok_or(failure)?;
        self.position += N;
        Ok(chunk)
    }
}

/// Appends XDR to a vector. Growth is the caller's own doing: what it writes, never what a peer
/// said.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer that has not allocated.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// An empty writer with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity) }
    }

    /// Continues behind what `bytes` already holds; [`Writer::len`] counts that too.
    #[must_use]
    pub const fn from_vec(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Appends an unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends an integer.
    pub fn i32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends an unsigned hyper integer.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends a boolean.
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Appends fixed-length opaque data and its padding, without a length.
    pub fn array(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        self.bytes.extend_from_slice(&ZEROS[..padded(data.len()) - data.len()]);
    }

    /// Appends variable-length opaque data: length, data, padding.
    ///
    /// # Panics
    /// `data` is 4 GiB or longer, which XDR cannot say.
    pub fn opaque(&mut self, data: &[u8]) {
        self.u32(u32::try_from(data.len()).expect("opaque data is shorter than 4 GiB"));
        self.array(data);
    }

    /// Bytes held, including those of [`Writer::from_vec`].
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes back everything behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Overwrites the word at byte `at`, for a length or discriminant known only later.
    ///
    /// # Panics
    /// No whole word was written at `at`.
    pub fn patch_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + UNIT_BYTES].copy_from_slice(&value.to_be_bytes());
    }

    /// The bytes written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives the vector back.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

/// Shows opaque bytes as an escaped byte string, cut after the first 64, so that file names read as
/// names and a payload does not fill a log.
#[derive(Clone, Copy)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Debug for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(ESCAPED_BYTES_MAX)];
        write!(f, "b\"{}\"", shown.escape_ascii())?;
        if shown.len() < self.0.len() {
            write!(f, " and {} bytes more", self.0.len() - shown.len())?;
        }
        Ok(())
    }
}

/// Bytes to be shown in hexadecimal.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Optional data, RFC 4506 §4.19: a boolean, then the value if it is `TRUE`.
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        r.bool("optional data")?.then(|| T::decode(r)).transpose()
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, w: &mut Writer) {
        w.bool(self.is_some());
        if let Some(value) = self {
            value.encode(w);
        }
    }
}

impl<T: Encode> Encode for &T {
    fn encode(&self, w: &mut Writer) {
        (**self).encode(w);
    }
}

/// `void`, RFC 4506 §4.16.
impl Decode<'_> for () {
    fn decode(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Writer) {}
}

macro_rules! primitive {
    ($($primitive:ident),*) => { $(
        impl Decode<'_> for $primitive {
            fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                r.$primitive(stringify!($primitive))
            }
        }

        impl Encode for $primitive {
            fn encode(&self, w: &mut Writer) {
                w.$primitive(*self);
            }
        }
    )* };
}

primitive!(u32, i32, u64, bool);

const UNIT_BYTES: usize = 4;
const ZEROS: [u8; UNIT_BYTES] = [0; UNIT_BYTES];
const ESCAPED_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn failure<T>(what: &'static str, at_byte: usize) -> Result<T, DecodeError> {
        Err(DecodeError { what, at_byte })
    }

    #[test]
    fn opaque_data_and_padding() {
        type Data<'a> = Result<&'a [u8], DecodeError>;
        let table: [(&[u8], usize, Data<'_>, usize); 10] = [
            (&[0, 0, 0, 0], 0, Ok(b""), 0),
            (&[0, 0, 0, 1, b'a', 0, 0, 0], 9, Ok(b"a"), 0),
            (&[0, 0, 0, 3, b'a', b'b', b'c', 0xff], 3, Ok(b"abc"), 0),
            (&[0, 0, 0, 4, 1, 2, 3, 4, 9], 4, Ok(&[1, 2, 3, 4]), 1),
            // One byte over the bound, though it is all there.
            (&[0, 0, 0, 4, 1, 2, 3, 4], 3, failure("x", 0), 0),
            // The data is there, its padding is not.
            (&[0, 0, 0, 1, b'a', 0, 0], 9, failure("x", 0), 0),
            (&[0, 0, 0, 5, 1, 2, 3, 4], 9, failure("x", 0), 0),
            // Lengths that no record holds; the last wraps when it is rounded up in 32 bits.
            (&[0x80, 0, 0, 0], UNBOUNDED, failure("x", 0), 0),
            (&[0xff, 0xff, 0xff, 0xff], UNBOUNDED, failure("x", 0), 0),
            (&[0, 0, 0], 9, failure("x", 0), 0),
        ];
        for (bytes, bound, expected, remaining) in table {
            let mut r = Reader::new(bytes);
            let got = r.opaque(bound, "x");
            assert_eq!(got, expected, "{bytes:?}");
            if got.is_ok() {
                assert_eq!(r.remaining(), remaining, "{bytes:?}");
            }
        }
    }

    #[test]
    fn borrowed_data_lies_in_the_record() {
        let record = [0, 0, 0, 2, 7, 8, 0, 0];
        let data = Reader::new(&record).opaque(2, "x").unwrap();
        assert!(std::ptr::eq(data.as_ptr(), &raw const record[4]));
    }

    #[test]
    fn booleans_are_zero_or_one() {
        for (word, expected) in
            [(0, Ok(false)), (1, Ok(true)), (2, failure("x", 0)), (u32::MAX, failure("x", 0))]
        {
            assert_eq!(Reader::new(&word.to_be_bytes()).bool("x"), expected);
        }
    }

    #[test]
    fn numbers_are_big_endian() {
        let mut w = Writer::with_capacity(16);
        w.u32(0x0102_0304);
        w.i32(-2);
        w.u64(0x0102_0304_0506_0708);
        assert_eq!(w.as_slice(), [1, 2, 3, 4, 255, 255, 255, 254, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mut r = Reader::new(w.as_slice());
        assert_eq!(r.u32("x"), Ok(0x0102_0304));
        assert_eq!(r.i32("x"), Ok(-2));
        assert_eq!(r.clone().u64("x"), Ok(0x0102_0304_0506_0708));
        assert_eq!(r.u64("x").and_then(|_| r.u32("y")), failure("y", 16));
    }

    #[test]
    fn fixed_arrays_are_padded_too() {
        let mut w = Writer::new();
        w.array(&[1, 2, 3, 4, 5]);
        assert_eq!(w.as_slice(), [1, 2, 3, 4, 5, 0, 0, 0]);
        assert_eq!(Reader::new(w.as_slice()).array("x"), Ok([1, 2, 3, 4, 5]));
        assert_eq!(Reader::new(&w.as_slice()[..7]).array::<5>("x"), failure("x", 0));
    }

    #[test]
    fn skip_stays_within_the_record() {
        let mut r = Reader::new(&[0; 6]);
        assert_eq!(r.skip(5, "x"), Ok(()));
        assert_eq!(r.finish(), failure("end of record", 5));
        assert_eq!(r.skip(2, "x"), failure("x", 5));
        assert_eq!(r.skip(usize::MAX, "x"), failure("x", 5));
        assert_eq!(r.skip(1, "x"), Ok(()));
        assert_eq!(r.finish(), Ok(()));
    }

    #[test]
    fn writer_patches_and_takes_back() {
        let mut w = Writer::from_vec(vec![0xee; 4]);
        w.u32(0);
        w.bool(true);
        w.patch_u32(4, 0xdead_beef);
        w.truncate(8);
        assert_eq!(w.len(), 8);
        assert_eq!(w.into_vec(), [0xee, 0xee, 0xee, 0xee, 0xde, 0xad, 0xbe, 0xef]);
    }

    #[test]
    fn escaped_bytes_are_cut() {
        assert_eq!(format!("{:?}", Escaped(b"a\0\xff\"")), r#"b"a\x00\xff\"""#);
        let long = format!("{:?}", Escaped(&[b'x'; 100]));
        assert_eq!(long, format!("b\"{}\" and 36 bytes more", "x".repeat(64)));
    }
}
