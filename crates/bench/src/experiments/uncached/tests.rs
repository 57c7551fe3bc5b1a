use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;

use ::io::BufferPool;

use super::*;
use crate::experiments::own_server;
use crate::skip::skip_in_ci_too;
use pattern::{Pattern, Verified};

fn options(directory: &Path, arguments: &str) -> Options {
    own_server::options(&format!("{} {arguments}", directory.display())).unwrap()
}

/// Not in memory: its files have no device, and no file system drops what it cannot write.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

#[test]
fn files_have_the_reported_bytes() {
    let directory = on_disk();
    let options = options(directory.path(), "--files 3 --block 5000B --size 1MiB --modes cached");
    let mut written = write(&options, Mode::Cached, directory.path(), &Stop::default()).unwrap();
    let sizes: u64 =
        fs::read_dir(&directory).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(sizes, 3 << 20);
    let measurement = measurement(&options, Mode::Cached, &written);
    let by_second: u64 = measurement.seconds.iter().map(|second| second.bytes).sum();
    assert_eq!(by_second, sizes);
    let writes: u64 = measurement.seconds.iter().map(|second| second.operations).sum();
    assert_eq!(writes, 3 * (1_u64 << 20).div_ceil(5000));
    let figure = |figure| measurement.figures[&figure];
    let expected = 3.0 / figure(Figure::Secs);
    assert!((figure(Figure::MibPerSec) - expected).abs() < 1e-6 * expected);
    assert!(figure(Figure::CommitSecs) < figure(Figure::Secs));
    assert_eq!(
        written.verify(&Stop::default()).unwrap(),
        Verified { bytes: sizes, wrong_bytes: 0 }
    );
}

#[test]
fn free_memory_is_touched_before_there_is_a_file() {
    let options = options(Path::new("/missing"), "--files 2 --size 1MiB");
    // Touching is what ends first with a request to stop.
    let measured = measure(&options, Mode::Cached, &Stop::wanted());
    assert!(matches!(measured, Err(Error::Interrupted)), "{measured:?}");
}

#[test]
fn wrong_bytes_are_counted() {
    let directory = on_disk();
    let options = options(directory.path(), "--files 2 --size 1MiB");
    let mut written = write(&options, Mode::Cached, directory.path(), &Stop::default()).unwrap();
    let file = File::options().write(true).open(directory.path().join("1")).unwrap();
    let mut byte = [0; 1];
    File::open(directory.path().join("1")).unwrap().read_exact_at(&mut byte, 70_000).unwrap();
    file.write_all_at(&[!byte[0]], 70_000).unwrap();
    file.set_len((1 << 20) - 10).unwrap();
    assert_eq!(
        written.verify(&Stop::default()).unwrap(),
        Verified { bytes: 2 << 20, wrong_bytes: 11 }
    );
}

#[test]
fn no_block_is_like_another() {
    let pool = BufferPool::new(usize::MAX);
    let block = || pool.try_take(8192).unwrap();
    let mut patterns = [0, 1].map(|file| Pattern::new(block(), 8192, file));
    let mut seen = std::collections::HashSet::new();
    for pattern in &mut patterns {
        for offset in [0, 8192, 1 << 40] {
            for page in pattern.block_at(offset, 8192).chunks(4096) {
                assert!(seen.insert(page.to_vec()), "at {offset}");
            }
        }
    }
}

#[test]
fn modes_take_turns_and_leave_nothing_behind() {
    let directory = on_disk();
    let options = options(directory.path(), "--files 2 --size 1MiB --rounds 2");
    let mut run_record = Run::default();
    options.describe(&mut run_record).unwrap();
    let mut measurements = Vec::new();
    run(&options, &Stop::default(), &mut |measurement| {
        measurements.push(measurement);
        Ok(())
    })
    .unwrap();
    let modes = run_record.subjects.len();
    assert_eq!(modes + run_record.left_out.len(), 3);
    let turns: Vec<_> = measurements.iter().map(|m| (m.round, m.order, &*m.subject)).collect();
    let (first, second) = turns.split_at(modes);
    let numbers = |round| (1..).map(move |order| (round, order)).take(modes);
    assert!(first.iter().map(|turn| (turn.0, turn.1)).eq(numbers(1)), "{turns:?}");
    assert!(second.iter().map(|turn| (turn.0, turn.1)).eq(numbers(2)), "{turns:?}");
    let next = first.iter().cycle().skip(1).map(|turn| turn.2).take(modes);
    assert!(second.iter().map(|turn| turn.2).eq(next), "{turns:?}");
    for measurement in &measurements {
        let figures = &measurement.figures;
        assert_eq!((figures[&Figure::VerifiedMib], figures[&Figure::WrongBytes]), (2.0, 0.0));
        let parameters =
            [("block_bytes", 65536), ("file_bytes", 1 << 20), ("files", 2), ("limit_secs", 60)];
        let mut parameters: BTreeMap<_, _> = parameters.map(|(n, v)| (n.to_owned(), v)).into();
        if measurement.subject == "window" {
            parameters.insert("window_bytes".to_owned(), 64 << 20);
        }
        assert_eq!(measurement.parameters, parameters);
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

/// The purpose of the modes: of 8 MiB less than 1 stays in the page cache with a window, and all
/// without one.
#[test]
fn the_modes_leave_different_page_caches() {
    let directory = on_disk();
    let options = options(directory.path(), "--files 2 --size 4MiB --no-verify");
    let left = |mode| {
        measure(&options, mode, &Stop::default())
            .unwrap()
            .figures
            .get(&Figure::CachedAtEndMib)
            .copied()
    };
    let Some(cached) = left(Mode::Cached) else {
        return skip_in_ci_too("the kernel does not report which pages are cached (cachestat)");
    };
    assert!((7.9..=8.1).contains(&cached), "{cached} MiB");
    let window = left(Mode::Window).unwrap();
    assert!(window < 1.0, "{window} MiB");
}

#[test]
fn sizes_and_lists_that_cannot_be_are_refused() {
    let directory = on_disk();
    let sizes = ["--size 0B", "--block 0B", "--block 5MiB", "--window 64KiB"];
    for arguments in sizes.into_iter().chain(["--modes cached,cached"]) {
        let refused = run(&options(directory.path(), arguments), &Stop::default(), &mut |_| Ok(()))
            .unwrap_err();
        assert!(matches!(refused, Error::Misuse(_)), "{arguments}: {refused}");
    }
    let nowhere = options(&directory.path().join("nowhere"), "--files 1 --size 1MiB");
    assert!(matches!(
        run(&nowhere, &Stop::default(), &mut |_| Ok(())).unwrap_err(),
        Error::Machine { .. }
    ));
}
