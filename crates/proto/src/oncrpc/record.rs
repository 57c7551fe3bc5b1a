//! The record mark of RPC over a stream, RFC 5531 §11.

/// The four bytes in front of each fragment of a record.
///
/// `len` is the peer's claim: the receiver bounds it before it reserves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMark {
    /// Whether this fragment ends the record.
    pub last: bool,
    /// Bytes of the fragment behind the mark, below 2^31.
    pub len: u32,
}

impl RecordMark {
    /// Bytes that a mark takes.
    pub const BYTES: usize = 4;

    /// Reads a mark; each four bytes are one.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 4]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self { last: word & LAST_FRAGMENT != 0, len: word & !LAST_FRAGMENT }
    }

    /// Writes the mark.
    ///
    /// # Panics
    /// `len` needs the bit that marks the last fragment.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 4] {
        assert!(self.len & LAST_FRAGMENT == 0, "a fragment is shorter than 2 GiB");
        let last = if self.last { LAST_FRAGMENT } else { 0 };
        (last | self.len).to_be_bytes()
    }
}

const LAST_FRAGMENT: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_splits_into_flag_and_length() {
        let table = [
            ([0, 0, 0, 0], false, 0),
            ([0x80, 0, 0, 0], true, 0),
            ([0x80, 0, 0, 0x7c], true, 124),
            ([0, 0x10, 0, 0x84], false, 0x0010_0084),
            ([0xff, 0xff, 0xff, 0xff], true, 0x7fff_ffff),
        ];
        for (bytes, last, len) in table {
            let mark = RecordMark::from_bytes(bytes);
            assert_eq!(mark, RecordMark { last, len });
            assert_eq!(mark.to_bytes(), bytes);
        }
    }

    #[test]
    #[should_panic(expected = "shorter than 2 GiB")]
    fn length_must_leave_the_flag_alone() {
        let _ = RecordMark { last: false, len: 1 << 31 }.to_bytes();
    }
}
