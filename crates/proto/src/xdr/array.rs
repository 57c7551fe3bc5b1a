//! Variable-length arrays, RFC 4506 §4.13.

use std::fmt;

use super::{Decode, DecodeError, Encode, Reader, Writer};

/// A count and so many items, at most `BOUND` (RFC 4506 §4.13).
///
/// As with [`List`](super::List), decoding walks the items once and keeps only where they lie. An
/// array to be sent is made from a slice. Neither allocates.
#[derive(Clone, Copy)]
pub struct Array<'a, T, const BOUND: usize> {
    items: Items<'a, T>,
}

#[derive(Clone, Copy)]
enum Items<'a, T> {
    /// Items that are known to decode, without their count.
    Wire(&'a [u8]),
    Slice(&'a [T]),
}

impl<'a, T: Decode<'a> + Copy, const BOUND: usize> Array<'a, T, BOUND> {
    /// The items in wire order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T, BOUND> {
        let (mut wire, mut slice) = match self.items {
            Items::Wire(bytes) => (Some(Reader::new(bytes)), [].iter()),
            Items::Slice(items) => (None, items.iter()),
        };
        std::iter::from_fn(move || match &mut wire {
            Some(r) if r.remaining() > 0 => T::decode(r).ok(),
            Some(_) => None,
            None => slice.next().copied(),
        })
    }
}

/// # Panics
/// There are more than `BOUND` items.
impl<'a, T, const BOUND: usize> From<&'a [T]> for Array<'a, T, BOUND> {
    fn from(items: &'a [T]) -> Self {
        assert!(items.len() <= BOUND, "an array of {} items", items.len());
        Self { items: Items::Slice(items) }
    }
}

impl<'a, T: Decode<'a>, const BOUND: usize> Decode<'a> for Array<'a, T, BOUND> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "array", at_byte: r.position() };
        let count = r.u32(failure.what)?;
        if usize::try_from(count).map_err(|_| failure)? > BOUND {
            return Err(failure);
        }
        let start = r.position();
        for _ in 0..count {
            T::decode(r)?;
        }
        Ok(Self { items: Items::Wire(r.since(start)) })
    }
}

impl<'a, T: Decode<'a> + Encode + Copy, const BOUND: usize> Encode for Array<'a, T, BOUND> {
    fn encode(&self, w: &mut Writer) {
        let count_at = w.len();
        w.u32(0);
        let mut count = 0;
        for item in self.iter() {
            item.encode(w);
            count += 1;
        }
        w.patch_u32(count_at, count);
    }
}

impl<'a, T: Decode<'a> + PartialEq + Copy, const BOUND: usize> PartialEq for Array<'a, T, BOUND> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Decode<'a> + Eq + Copy, const BOUND: usize> Eq for Array<'a, T, BOUND> {}

impl<'a, T: Decode<'a> + fmt::Debug + Copy, const BOUND: usize> fmt::Debug for Array<'a, T, BOUND> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    #[test]
    fn arrays_have_a_count_and_a_bound() {
        let two = [0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 9];
        let array: Array<'_, u32, 2> = decode_all(&two).unwrap();
        assert!(array.iter().eq([8, 9]));
        assert_eq!(array, Array::from([8, 9].as_slice()));
        let mut w = Writer::new();
        array.encode(&mut w);
        assert_eq!(w.as_slice(), two);
        let failure = Err(DecodeError { what: "array", at_byte: 0 });
        assert_eq!(decode_all::<Array<'_, u32, 1>>(&two), failure);
        assert!(decode_all::<Array<'_, u32, 2>>(&two[..8]).is_err());
    }
}
