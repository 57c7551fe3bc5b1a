use proptest::prelude::*;

use super::*;
use crate::byte_range::OFFSET_MAX;

const PAGE: u64 = 4096;

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, len).unwrap()
}

/// The same alignment for everything.
fn aligned_to(align: u32) -> DioAlign {
    DioAlign::new(align, align, align).unwrap()
}

#[test]
fn alignments_are_powers_of_two() {
    for align in [1, 2, 512, 4096, 1 << 31] {
        let all = aligned_to(align);
        assert_eq!((all.memory(), all.offset(), all.read_offset()), (align, align, align));
    }
    for bad in [0, 3, 511, 513, u32::MAX] {
        assert_eq!(DioAlign::new(bad, 512, 512), None, "{bad}");
        assert_eq!(DioAlign::new(512, bad, 512), None, "{bad}");
        assert_eq!(DioAlign::new(512, 512, bad), None, "{bad}");
    }
}

#[test]
fn memory_fits_by_the_address_of_its_first_byte() {
    #[repr(align(512))]
    struct Aligned([u8; 1024]);
    let memory = Aligned([0; 1024]);
    assert!(aligned_to(512).fits_memory(&memory.0[512..]));
    assert!(aligned_to(4).fits_memory(&memory.0[4..]));
    assert!(!aligned_to(512).fits_memory(&memory.0[4..]));
    assert!(aligned_to(1).fits_memory(&memory.0[1..]));
}

#[test]
fn reads_are_widened_at_both_ends() {
    for (align, offset, len, shown) in [
        (512, 0, 47_008, "start=0+0 end=47104-96"),
        (512, 47_008, 47_008, "start=46592+416 end=94208-192"),
        (4096, 47_008, 47_008, "start=45056+1952 end=94208-192"),
        (65_536, 47_008, 47_008, "start=0+47008 end=131072-37056"),
        (1, 47_008, 47_008, "start=47008+0 end=94016-0"),
        (512, 512, 512, "start=512+0 end=1024-0"),
        (512, 511, 2, "start=0+511 end=1024-511"),
        (512, 513, 1, "start=512+1 end=1024-510"),
        (4096, 4095, 1, "start=0+4095 end=4096-0"),
        (4096, 4096, 0, "start=4096+0 end=4096-0"),
        (4096, (1 << 62) + 1, 1, "start=4611686018427387904+1 end=4611686018427392000-4094"),
    ] {
        let widened = aligned_to(align).widen_read(range(offset, len)).unwrap();
        assert_eq!(widened.to_string(), shown, "{len} at {offset}, aligned to {align}");
        assert_eq!(widened.asked(), range(offset, len));
    }
}

#[test]
fn only_the_alignment_of_reads_widens_them() {
    let align = DioAlign::new(4, 4096, 512).unwrap();
    let widened = align.widen_read(range(47_008, 47_008)).unwrap();
    assert_eq!(widened.to_string(), "start=46592+416 end=94208-192");
}

#[test]
fn no_read_is_widened_past_the_largest_offset() {
    // The largest offset is odd, so the block that it lies in has no end that a file can have.
    for (align, offset, len, fits) in [
        (1, OFFSET_MAX, 0, true),
        (1, OFFSET_MAX - 10, 10, true),
        (512, OFFSET_MAX - 511, 0, true),
        (512, OFFSET_MAX - 1023, 512, true),
        (512, OFFSET_MAX - 511, 1, false),
        (512, OFFSET_MAX - 1, 1, false),
        (65_536, OFFSET_MAX - 65_535, 1, false),
        (1 << 31, OFFSET_MAX - 1, 1, false),
        (1 << 31, 0, OFFSET_MAX, false),
    ] {
        let widened = aligned_to(align).widen_read(range(offset, len));
        assert_eq!(widened.is_some(), fits, "{len} at {offset}, aligned to {align}");
    }
}

#[test]
fn bytes_beyond_the_request_are_not_counted() {
    let widened = aligned_to(512).widen_read(range(47_008, 47_008)).unwrap();
    for (got, asked) in [
        (0, 0),
        (415, 0),
        (416, 0),
        (417, 1),
        (47_423, 47_007),
        (47_424, 47_008),
        (47_425, 47_008),
        (47_616, 47_008),
        (u64::MAX, 47_008),
    ] {
        assert_eq!(widened.asked_of(got), asked, "of {got} bytes");
    }
}

#[test]
fn writes_are_split_at_whole_units() {
    // (alignment, page size, offset, length) -> lengths of head, middle and tail
    for (align, page, offset, len, parts) in [
        (512, PAGE, 0, 4096, (0, 4096, 0)),
        (512, PAGE, 0, 47_008, (0, 45_056, 1952)),
        (512, PAGE, 47_008, 47_008, (2144, 40_960, 3904)),
        (512, PAGE, 512, 4096, (4096, 0, 0)),
        (512, PAGE, 512, 8192, (3584, 4096, 512)),
        (512, PAGE, 1, 8190, (8190, 0, 0)),
        (512, PAGE, 1, 8191, (4095, 4096, 0)),
        (512, PAGE, 4095, 2, (2, 0, 0)),
        (512, PAGE, 4096, 4095, (4095, 0, 0)),
        (512, PAGE, 4096, 4097, (0, 4096, 1)),
        (512, PAGE, 100, 0, (0, 0, 0)),
        (1, PAGE, 4000, 5000, (96, 4096, 808)),
        (1, 1, 4000, 5000, (0, 5000, 0)),
        (65_536, PAGE, 4096, 65_536, (65_536, 0, 0)),
        (65_536, PAGE, 4096, 131_072, (61_440, 65_536, 4096)),
        (4096, 65_536, 4096, 131_072, (61_440, 65_536, 4096)),
        (4096, PAGE, OFFSET_MAX - 1, 1, (1, 0, 0)),
        (4096, PAGE, OFFSET_MAX - 4095, 4095, (4095, 0, 0)),
        (4096, PAGE, OFFSET_MAX - 8191, 8191, (0, 4096, 4095)),
        (4096, PAGE, OFFSET_MAX, 0, (0, 0, 0)),
        (1 << 31, PAGE, 1, OFFSET_MAX - 1, ((1 << 31) - 1, OFFSET_MAX + 1 - (2 << 31), 2147483647)),
    ] {
        let split = aligned_to(align).split_write(range(offset, len), page);
        let found = (split.head.len(), split.middle.len(), split.tail.len());
        assert_eq!(found, parts, "{len} at {offset}, aligned to {align}, pages of {page}");
    }
}

#[test]
fn the_alignment_of_reads_does_not_split_writes() {
    let align = DioAlign::new(4, 8192, 512).unwrap();
    let split = align.split_write(range(4096, 20_480), PAGE);
    assert_eq!(split.middle, range(8192, 16_384));
}

fn alignments() -> impl Strategy<Value = DioAlign> {
    let exponent = || prop_oneof![Just(0_u32), Just(9), Just(12), Just(16), 0..32_u32];
    (exponent(), exponent(), exponent()).prop_map(|(memory, offset, read_offset)| {
        DioAlign::new(1 << memory, 1 << offset, 1 << read_offset).unwrap()
    })
}

/// Small ranges at any offset, most of them near an alignment or the largest offset.
fn ranges() -> impl Strategy<Value = ByteRange> {
    let offset = prop_oneof![
        0..300_000_u64,
        OFFSET_MAX - 300_000..=OFFSET_MAX,
        (0..63_u32, 0..600_u64).prop_map(|(bit, add)| (1 << bit) + add - 300.min(1 << bit)),
        0..=OFFSET_MAX,
    ];
    let len = prop_oneof![Just(0), 0..1024_u64, 0..2_000_000_u64, 0..=OFFSET_MAX];
    (offset, len).prop_map(|(offset, len)| range(offset, len.min(OFFSET_MAX - offset)))
}

proptest! {
    #[test]
    fn a_widened_read_is_the_smallest_aligned_one(asked in ranges(), align in alignments()) {
        let unit = u64::from(align.read_offset());
        let Some(widened) = align.widen_read(asked) else {
            // In 128 bits nothing overflows.
            let end = u128::from(asked.end()).next_multiple_of(unit.into());
            prop_assert!(end > OFFSET_MAX.into(), "{asked:?} could be widened");
            return Ok(());
        };
        prop_assert!(widened.start.is_multiple_of(unit) && widened.end.is_multiple_of(unit));
        prop_assert!(widened.start_extra < unit && widened.end_extra < unit);
        prop_assert_eq!(widened.start + widened.start_extra, asked.offset());
        prop_assert_eq!(widened.end - widened.end_extra, asked.end());
        prop_assert!(widened.range().contains(asked));
        prop_assert_eq!(widened.asked(), asked);
        prop_assert_eq!(widened.asked_of(widened.range().len()), asked.len());
        prop_assert_eq!(widened.asked_of(widened.start_extra), 0);
    }

    /// The bytes that count are those in both what was read and what was asked for.
    #[test]
    fn short_reads_are_trimmed(asked in ranges(), align in alignments(), share in 0.0..1.0) {
        let Some(widened) = align.widen_read(asked) else { return Ok(()) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
        #[expect(clippy::cast_precision_loss, reason = "any number up to the length will do")]
        let got = ((widened.range().len() as f64 * share) as u64).min(widened.range().len());
        let common = range(widened.start, got).intersection(asked);
        prop_assert_eq!(widened.asked_of(got), common.len());
    }

    #[test]
    fn split_writes_cover_the_range_in_order(
        whole in ranges(),
        align in alignments(),
        page in prop_oneof![Just(PAGE), Just(65_536)],
    ) {
        let WriteSplit { head, middle, tail } = align.split_write(whole, page);
        prop_assert_eq!(head.offset(), whole.offset());
        prop_assert_eq!(head.end(), middle.offset());
        prop_assert_eq!(middle.end(), tail.offset());
        prop_assert_eq!(tail.end(), whole.end());
        let unit = page.max(align.offset().into());
        if middle.is_empty() {
            prop_assert_eq!(head, whole);
            // No unit fits in: the first one that begins in the range does not end in it.
            let first = u128::from(whole.offset()).next_multiple_of(unit.into());
            prop_assert!(first + u128::from(unit) > whole.end().into());
        } else {
            prop_assert!(middle.offset().is_multiple_of(unit) && middle.end().is_multiple_of(unit));
            prop_assert!(head.len() < unit && tail.len() < unit);
            prop_assert_eq!(head.widened_to(page).intersection(middle).len(), 0);
            prop_assert_eq!(middle.intersection(tail.widened_to(page)).len(), 0);
        }
    }
}
