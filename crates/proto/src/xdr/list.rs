//! Lists of optional data, RFC 4506 §4.19.

use std::fmt;

use super::{Decode, DecodeError, Encode, Reader, Writer};

/// The RFC's idiom for a list: each item behind a `TRUE`, then a `FALSE` (RFC 4506 §4.19).
///
/// Decoding walks the list once, in a loop, and keeps only where it lies; [`List::iter`] then
/// decodes item by item. A list to be sent is made from a slice. Neither allocates.
#[derive(Clone, Copy)]
pub struct List<'a, T> {
    items: Items<'a, T>,
}

#[derive(Clone, Copy)]
enum Items<'a, T> {
    /// A whole list, terminator included, in which each item is known to decode.
    Wire(&'a [u8]),
    Slice(&'a [T]),
}

impl<'a, T: Decode<'a> + Copy> List<'a, T> {
    /// The items in wire order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (mut wire, mut slice) = match self.items {
            Items::Wire(bytes) => (Some(Reader::new(bytes)), [].iter()),
            Items::Slice(items) => (None, items.iter()),
        };
        std::iter::from_fn(move || match &mut wire {
            // Both steps succeeded when the list was decoded, and its bytes have not changed.
            Some(r) => r.bool("list").ok()?.then(|| T::decode(r).ok()).flatten(),
            None => slice.next().copied(),
        })
    }
}

impl<'a, T> From<&'a [T]> for List<'a, T> {
    fn from(items: &'a [T]) -> Self {
        Self { items: Items::Slice(items) }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for List<'a, T> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let start = r.position();
        while r.bool("list")? {
            T::decode(r)?;
        }
        Ok(Self { items: Items::Wire(r.since(start)) })
    }
}

impl<'a, T: Decode<'a> + Encode + Copy> Encode for List<'a, T> {
    fn encode(&self, w: &mut Writer) {
        encode_list(w, self.iter());
    }
}

impl<'a, T: Decode<'a> + PartialEq + Copy> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Decode<'a> + Eq + Copy> Eq for List<'a, T> {}

impl<'a, T: Decode<'a> + fmt::Debug + Copy> fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Appends a whole [`List`] from any source of items.
pub fn encode_list<T: Encode>(w: &mut Writer, items: impl IntoIterator<Item = T>) {
    for item in items {
        w.bool(true);
        item.encode(w);
    }
    w.bool(false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    #[test]
    fn lists_end_where_they_say() {
        let two = [0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0];
        let list: List<'_, u32> = decode_all(&two).unwrap();
        assert!(list.iter().eq([8, 9]));
        assert!(list.iter().eq([8, 9]), "iterating does not use the list up");
        assert_eq!(format!("{list:?}"), "[8, 9]");
        assert_eq!(list, List::from([8, 9].as_slice()));
        let unfinished = decode_all::<List<'_, u32>>(&two[..16]);
        assert_eq!(unfinished, Err(DecodeError { what: "list", at_byte: 16 }));
    }

    #[test]
    fn a_very_long_list_neither_recurses_nor_allocates() {
        let mut w = Writer::new();
        encode_list(&mut w, (0..1_000_000).map(|_| ()));
        let list: List<'_, ()> = decode_all(w.as_slice()).unwrap();
        assert_eq!(list.iter().count(), 1_000_000);
    }
}
