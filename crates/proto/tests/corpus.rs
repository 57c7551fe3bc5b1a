//! Replays the fuzz targets' seeds, and noise made from them, so that plain `cargo test` finds what
//! a fuzzer would find in its first seconds.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use proto::fuzz::TARGETS;

/// Mutated inputs for each target. All targets together take a second or two in a debug build.
const NOISE_INPUTS: usize = 20_000;
const NOISE_BYTES_MAX: usize = 2048;

#[test]
fn seeds_and_noise_pass_every_target() {
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        if let Err(input) = replay(*target, &seeds) {
            panic!("{name} panicked on {input:02x?}");
        }
    }
}

#[test]
fn the_fuzzer_has_every_target() {
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        let shim = fuzz_folder().join(format!("fuzz_targets/{name}.rs"));
        let text = fs::read_to_string(&shim).unwrap_or_default();
        assert!(text.contains(&format!("proto::fuzz::{name}(")), "{} is wrong", shim.display());
        assert!(manifest.contains(&format!("fuzz_targets/{name}.rs")), "{name} is not built");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}

/// `vectors.rs` has tables of the arguments and the results of each procedure and operation.
#[test]
fn all_arguments_and_results_are_decoded_by_a_target() {
    let source = |path| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    let (tables, targets) = (source("tests/vectors.rs").unwrap(), source("src/fuzz.rs").unwrap());
    let rows = tables.lines().filter_map(|line| line.strip_suffix(';')?.split_once(" => "));
    let types = rows.flat_map(|(left, result)| [left.rsplit(' ').next().unwrap(), result]);
    let types: Vec<_> = types.filter(|name| name.contains("::")).collect();
    assert!(types.contains(&"nfs4::CopyOk") && types.contains(&"nfs3::WriteArgs<'_>"));
    for name in types {
        assert!(targets.contains(name), "no target decodes {name}");
    }
}

/// Were this to pass in silence, so would every broken decoder.
#[test]
fn a_failing_canary_is_detected() {
    let seeds = seeds("nfs3_read");
    let on_a_seed = seeds.last().unwrap().clone();
    let dies_on_a_seed = |input: &[u8]| assert_ne!(input, on_a_seed);
    assert_eq!(replay(dies_on_a_seed, &seeds), Err(on_a_seed.clone()));

    let dies_on_noise = |input: &[u8]| assert!(seeds.iter().any(|seed| seed == input));
    let found = replay(dies_on_noise, &seeds).expect_err("noise differs from the seeds");
    assert!(!seeds.contains(&found));
}

/// Feeds the seeds, then noise. The error is the input on which the target panicked.
fn replay(target: impl Fn(&[u8]), seeds: &[Vec<u8>]) -> Result<(), Vec<u8>> {
    let survives = |input: &[u8]| {
        panic::catch_unwind(AssertUnwindSafe(|| target(input))).map_err(|_| input.to_vec())
    };
    for seed in seeds {
        survives(seed)?;
    }
    let mut random = Random(0x5911_1117);
    for _ in 0..NOISE_INPUTS {
        survives(&mutated(seeds, &mut random))?;
    }
    Ok(())
}

/// A seed with one to four changes, such as break parsers: other bytes, lengths at the edges of
/// their range, a piece of another seed, a cut, a repetition.
fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(6) {
            0 => input.truncate(at),
            1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.byte();
                }
            }
            2 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            3 => {
                let word = EDGES[random.below(EDGES.len())].to_be_bytes();
                // XDR's words are aligned to the record, which may begin behind a choosing byte.
                let at = at / 4 * 4 + random.below(2);
                if let Some(place) = input.get_mut(at..at + 4) {
                    place.copy_from_slice(&word);
                }
            }
            4 => {
                let other = &seeds[random.below(seeds.len())];
                input.truncate(at);
                input.extend_from_slice(&other[random.below(other.len() + 1)..]);
            }
            _ => input.extend_from_within(at..),
        }
        input.truncate(NOISE_BYTES_MAX);
    }
    input
}

const EDGES: [u32; 14] =
    [0, 1, 2, 7, 64, 65, 255, 1024, 4096, 4097, 0x7fff_ffff, 0x8000_0000, u32::MAX - 3, u32::MAX];

/// SplitMix64: the same numbers on each machine and in each year.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

/// Sorted by name, so that the noise does not depend on the order in a directory.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = fuzz_folder().join("seeds").join(target);
    let listed = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut paths: Vec<_> =
        listed.expect("the seeds can be listed").iter().map(fs::DirEntry::path).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed can be read")).collect()
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}
