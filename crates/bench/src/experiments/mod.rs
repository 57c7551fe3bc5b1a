//! The experiments, each with its options.

mod cache_state;
pub mod clients;
mod course;
mod export;
pub mod io;
mod load_meter;
mod meter;
pub mod names;
pub mod readdir;
mod scratch_directory;
pub mod servers;
pub mod threads;
pub mod uncached;
pub mod writeback;

#[cfg(test)]
pub(crate) mod own_server;

/// The order of a round: with each, another begins.
fn turned(count: usize, round: u32) -> impl Iterator<Item = usize> {
    let first = usize::try_from(round - 1).expect("32 bits fit");
    (0..count).map(move |at| (first + at) % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_subject_rotates() {
        let orders: Vec<Vec<_>> = (1..=4).map(|round| turned(3, round).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    }
}
