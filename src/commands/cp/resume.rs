//! Where to go on with a copy that was interrupted.

use proto::nfs3::{Attributes, FileType, Time};

use super::super::failure::Result;
use super::entry::{Entry, Place};
use super::sink::{LOCAL_UNSAFE_BYTES_MAX, REMOTE_UNSAFE_BYTES_MAX};
use super::source::Source;

/// Where to begin with a file of which something is there already.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// At the beginning, with an empty file: what is there is not the beginning of the source.
    Over,
    /// At this offset. The bytes before it are kept.
    At(u64),
    /// Nowhere: all is there.
    Done,
}

/// Whether `there` is complete, by its attributes when it was found.
pub(super) fn is_done(from: &Entry, there: &Entry) -> bool {
    guess(&from.attributes, &there.attributes, 0) == Start::Done
}

/// Whether `there` may be what an interrupted copy has left, by its attributes when it was found.
pub(super) fn may_go_on(from: &Entry, there: &Entry) -> bool {
    let is_empty = there.attributes.size == 0;
    is_empty || matches!(guess(&from.attributes, &there.attributes, 0), Start::At(_))
}

/// Finds out how much of `there` can be kept. Another job may have written it since it was found,
/// but does not write it now.
///
/// An interrupted copy leaves a file that is shorter than its source and was changed after it. Of
/// such a file all is kept but the end, where data was still under way or not committed when the
/// copy ended: [`unsettled_bytes`]. The last [`COMPARED_BYTES`] before that are read from both and
/// must be the same. A file of the size and exact time of its source was copied with `-p` and is
/// done.
///
/// A source that was changed since is noticed by its time alone, which is then later than that of
/// the copy; the clocks of the two machines are taken to be right.
pub(super) async fn start(from: &Entry, source: &Source, there: &Entry) -> Result<Start> {
    let guess =
        |there: &Entry| guess(&from.attributes, &there.attributes, unsettled_bytes(&there.place));
    let at = match guess(there) {
        Start::At(_) => match guess(&there.again().await?) {
            Start::At(at) => at,
            decided => return Ok(decided),
        },
        decided => return Ok(decided),
    };
    let (copy, _) = there.open().await?;
    let compared = u64::from(COMPARED_BYTES).min(at);
    let len = u32::try_from(compared).expect("it is at most a u32");
    let (ours, theirs) = (source.read(at - compared, len), copy.read(at - compared, len));
    let same = ours.await?.data == theirs.await?.data;
    Ok(if same { Start::At(at) } else { Start::Over })
}

/// The decision by sizes and times alone.
fn guess(source: &Attributes, there: &Attributes, unsettled_bytes: u64) -> Start {
    if source.file_type != FileType::Regular || there.file_type != FileType::Regular {
        return Start::Over;
    }
    if there.size == source.size && there.mtime == source.mtime {
        return Start::Done;
    }
    if there.size > source.size || is_earlier(there.mtime, source.mtime) {
        return Start::Over;
    }
    match there.size.saturating_sub(unsettled_bytes) / ALIGNMENT * ALIGNMENT {
        0 => Start::Over,
        at => Start::At(at),
    }
}

/// Compares as coarse clocks allow: some file systems keep whole seconds.
fn is_earlier(copy: Time, source: Time) -> bool {
    copy.seconds < source.seconds
}

/// The bytes that may be incomplete at the end of an interrupted copy.
const fn unsettled_bytes(place: &Place) -> u64 {
    match place {
        Place::Local(..) => LOCAL_UNSAFE_BYTES_MAX,
        Place::Remote(..) => REMOTE_UNSAFE_BYTES_MAX,
    }
}

/// The bytes that are compared.
const COMPARED_BYTES: u32 = 1 << 20;
/// Copies go on at a multiple of this, so that chunks lie as in a copy from the beginning.
const ALIGNMENT: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::attributes;
    use super::*;

    fn file(size: u64, seconds: u32, nseconds: u32) -> Attributes {
        Attributes { size, ..attributes(FileType::Regular, Time { seconds, nseconds }) }
    }

    #[test]
    fn sizes_and_times_decide_what_may_be_kept() {
        const MIB: u64 = 1 << 20;
        let source = file(1000 * MIB, 50, 7);
        for (there, expected) in [
            (file(1000 * MIB, 50, 7), Start::Done),
            (file(1000 * MIB, 50, 8), Start::At(808 * MIB)),
            (file(500 * MIB, 60, 0), Start::At(308 * MIB)),
            (file(500 * MIB + 12_345, 60, 0), Start::At(308 * MIB)),
            (file(500 * MIB, 49, 0), Start::Over),
            (file(1001 * MIB, 60, 0), Start::Over),
            (file(192 * MIB, 60, 0), Start::Over),
            (file(0, 60, 0), Start::Over),
        ] {
            assert_eq!(
                guess(&source, &there, 192 * MIB),
                expected,
                "{} {:?}",
                there.size,
                there.mtime
            );
        }
    }
}
