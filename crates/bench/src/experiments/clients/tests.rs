use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::experiments::own_server::{OwnServer, options};
use crate::experiments::servers::Experiment as _;
use crate::rig::Watched;
use crate::skip::{skip, skip_in_ci_too};

/// `None`, and why, where the program is not there.
fn measured(programs: &str) -> Option<Vec<Measurement>> {
    let server = OwnServer::start();
    let line = format!("--size 3MiB --random-size 64KiB --cache found {programs}");
    let options: Options = options(&line).unwrap();
    let mut all = Vec::new();
    let done = options.carry_out(1..=1, &server.export(), &mut |measurement| {
        all.push(measurement);
        Ok(())
    });
    assert_eq!(std::fs::read_dir(server.path()).unwrap().count(), 0, "the directory is left");
    match done {
        Ok(()) => Some(all),
        Err(Error::Program(why)) => {
            skip(why);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn warm_caches_are_refused() {
    let refused = options::<Options>("--cache warm").unwrap_err().to_string();
    assert!(refused.contains("[possible values: cold, found]"), "{refused}");
    for (word, state) in [("cold", CacheState::Cold), ("found", CacheState::Found)] {
        let options: Options = options(&format!("--cache {word}")).unwrap();
        assert_eq!(options.cache(), state);
    }
}

#[test]
fn a_program_that_is_named_twice_is_refused() {
    let targets: TargetOptions = crate::experiments::own_server::options("/srv").unwrap();
    let described = |line| {
        let options: Options = options(line).unwrap();
        options.describe(&targets, &mut Run::default())
    };
    described("--cache found --load fio,cp").unwrap();
    let refused = described("--cache found --load fio,cp,fio");
    assert!(matches!(refused, Err(Error::Misuse(_))), "{refused:?}");
}

#[test]
fn the_page_cache_of_the_files_before_a_measurement_is_recorded() {
    let server = OwnServer::start();
    std::fs::write(server.path().join("file"), vec![1; 1 << 20]).unwrap();
    let options: Options = options("--size 1MiB --cache found").unwrap();
    let export = server.export();
    let experiment = Experiment { options: &options, export: &export, directory: "bench" };
    let done = || Ok(Done { bytes: 1, operations: None, secs: 1.0, latencies: Vec::new() });
    let measurement = experiment.measure("phase", "program", done).unwrap();
    match measurement.figures.get(&Figure::CachedAtStartMib) {
        Some(mib) => assert_eq!(*mib, 1.0),
        None => skip_in_ci_too("the kernel does not report what is cached"),
    }
}

#[test]
fn fio_writes_and_reads_all_of_its_file() {
    let Some(all) = measured("--load fio") else { return };
    let phases: Vec<_> = all.iter().map(|one| one.phase.as_str()).collect();
    let expected = [
        "fio-write-47008",
        "fio-read-47008",
        "fio-write-1048576",
        "fio-read-1048576",
        "fio-randread-4096",
    ];
    assert_eq!(phases, expected);
    for (one, bytes) in all.iter().zip([66 * 47_008, 66 * 47_008, 3 << 20, 3 << 20, 256 << 10]) {
        let moved = one.figures[&Figure::MibPerSec] * one.figures[&Figure::Secs];
        assert!((moved - mib(bytes)).abs() < 1e-6, "{}: {moved} MiB", one.phase);
    }
}

#[test]
fn each_round_begins_with_no_file() {
    let server = OwnServer::start();
    let options: Options = options("--size 1MiB --random-size 4KiB --cache found").unwrap();
    let mut files = Vec::new();
    let done = options.carry_out(1..=2, &server.export(), &mut |_| {
        files.push(std::fs::read_dir(server.path().join("bench")).unwrap().count());
        Ok(())
    });
    if let Err(Error::Program(why)) = done {
        return skip(why);
    }
    done.unwrap();
    assert_eq!(files, [1, 1, 2, 2, 2].repeat(2), "of one size of blocks, then of both");
}

#[test]
fn fio_that_is_stopped_takes_its_jobs_along() {
    let server = OwnServer::start();
    let (url, bytes) = (server.url(), 1 << 30);
    let url = format!("{url}?version=3&nfsport={port}&mountport={port}", port = url.port.unwrap());
    let url = url.replacen(&format!(":{}", server.url().port.unwrap()), "", 1);
    let job = Job {
        operation: "write",
        block_bytes: 512,
        jobs: 2,
        file_bytes: bytes,
        bytes_by_job: bytes,
    };
    let words = format!("--nfs_url={url}");
    let processes = move || {
        let is_ours = |entry: std::io::Result<std::fs::DirEntry>| {
            let line = std::fs::read(entry.unwrap().path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&words)
        };
        std::fs::read_dir("/proc").unwrap().map(is_ours).filter(|is_ours| *is_ours).count()
    };
    let stop = Stop::default();
    let (wanted, running) = (stop.clone(), processes.clone());
    let returned = Arc::new(AtomicBool::new(false));
    let has_returned = Arc::clone(&returned);
    let asking = thread::spawn(move || {
        let began = Instant::now();
        // fio, and its jobs.
        let is_waiting = || running() < 3 && !has_returned.load(Ordering::Relaxed);
        while is_waiting() && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(20));
        }
        wanted.want();
    });
    std::fs::create_dir(server.path().join("bench")).unwrap();
    let done = fio::run(&job, &url, "bench", &|| stop.check()).map(drop);
    returned.store(true, Ordering::Relaxed);
    asking.join().unwrap();
    if let Err(Error::Program(why)) = done {
        return skip(why);
    }
    assert!(matches!(done, Err(Error::Interrupted)), "{done:?}");
    assert_eq!(processes(), 0, "jobs go on");
}

#[test]
fn files_are_the_same_byte_by_byte() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, data: &[u8]| {
        std::fs::write(directory.path().join(name), data).unwrap();
        directory.path().join(name)
    };
    let mut data = vec![7; PIECE_BYTES + 9];
    let whole = file("whole", &data);
    let compared = |other: &Path, stop| wrong_bytes(&whole, other, &stop);
    let wrong = |other: &Path| compared(other, Stop::default()).unwrap();
    assert_eq!(wrong(&file("again", &data)), 0);
    assert_eq!(wrong(&file("shorter", &data[2..])), 2);
    *data.last_mut().unwrap() = 8;
    assert_eq!(wrong(&file("other", &data)), 1);
    assert!(matches!(compared(&whole, Stop::wanted()), Err(Error::Interrupted)));
}

#[test]
fn a_file_to_copy_has_its_size_and_is_not_written_after_a_request_to_stop() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    let of = (Client::Cp, 1);
    for bytes in [4096, 4099] {
        fill(&file, bytes, of, &Stop::default()).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), bytes);
    }
    assert!(matches!(fill(&file, 4096, of, &Stop::wanted()), Err(Error::Interrupted)));
}

#[test]
fn each_program_and_round_copies_other_data() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    let mut words = std::collections::BTreeSet::new();
    for of in [(Client::NfsCp, 1), (Client::NfsCp, 2), (Client::Cp, 1), (Client::Cp, 2)] {
        fill(&file, 4096, of, &Stop::default()).unwrap();
        words.extend(std::fs::read(&file).unwrap().chunks(8).map(<[u8]>::to_vec));
    }
    assert_eq!(words.len(), 4 * 4096 / 8);
}

/// The results of copies by a shell script, and how it ended.
fn copied_by(script: &str) -> (Vec<Measurement>, Result<()>) {
    let server = OwnServer::start();
    let options: Options = options("--size 1MiB --cache found").unwrap();
    let (export, directory) = (server.export(), tempfile::tempdir().unwrap());
    let experiment = Experiment { options: &options, export: &export, directory: "bench" };
    let copies = Copies {
        client: Client::NfsCp,
        program: Path::new("sh"),
        words: &["-c", script, "sh"],
        remote: directory.path().join("remote").to_str().unwrap().to_owned(),
        round: 1,
    };
    let mut all = Vec::new();
    let mut record = |measurement| {
        all.push(measurement);
        Ok(())
    };
    let done = experiment.copies(copies, &mut record);
    (all, done)
}

#[test]
fn copies_that_come_back_wrong_are_recorded_as_wrong() {
    let (all, done) = copied_by("head -c -7 <\"$1\" >\"$2\"");
    assert!(matches!(done, Err(Error::Server(_))), "{done:?}");
    let phases: Vec<_> = all.iter().map(|one| one.phase.as_str()).collect();
    assert_eq!(phases, ["copy-to", "copy-from"]);
    for one in &all {
        assert_eq!(one.figures[&Figure::WrongBytes], 14.0, "both copies left 7 bytes out");
        assert!(one.first_error.as_ref().is_some_and(|why| why.contains("other data")), "{one:?}");
    }
    let (all, done) = copied_by("cp \"$1\" \"$2\"");
    done.unwrap();
    for one in &all {
        assert_eq!((one.figures[&Figure::VerifiedMib], &one.first_error), (1.0, &None));
        assert_eq!(one.figures[&Figure::WrongBytes], 0.0);
    }
}

#[test]
fn a_copy_stays_in_the_records_if_the_way_back_fails() {
    let (all, done) = copied_by("test \"${1##*/}\" = source && cp \"$1\" \"$2\"");
    assert!(matches!(done, Err(Error::Program(_))), "{done:?}");
    let [copied] = &all[..] else { panic!("{all:?}") };
    assert_eq!(copied.phase, "copy-to");
    assert_eq!(copied.figures.get(&Figure::VerifiedMib), None);
}

#[test]
fn programs_are_in_process_groups_of_their_own() {
    let mut leader = Command::new("sh");
    leader.args(["-c", "read -r _ _ _ _ group _ </proc/$$/stat; test $group = $$"]);
    timed(leader, &|| Ok(())).unwrap();
}

#[test]
fn programs_end_with_a_request_to_stop_or_fail() {
    let mut asleep = Command::new("sleep");
    asleep.arg("60");
    assert!(matches!(timed(asleep, &|| Stop::wanted().check()), Err(Error::Interrupted)));
    let failure = timed(Command::new("false"), &|| Ok(()));
    assert!(matches!(failure, Err(Error::Program(_))), "{failure:?}");
}

#[test]
fn programs_end_with_the_server_that_they_call() {
    let server = OwnServer::start();
    let mut process = Command::new("sleep").arg("0.2").spawn().unwrap();
    let watched = Watched::new(process.id()).unwrap();
    let export = Export { watched: Some(&watched), ..server.export() };
    let began = Instant::now();
    // Neither ends by itself while this test is waited for.
    let mut asleep = Command::new("sleep");
    asleep.arg("60");
    let ended = timed(asleep, &|| export.check());
    assert!(matches!(ended, Err(Error::Server(_))), "{ended:?}");
    let job = Job {
        operation: "write",
        block_bytes: 512,
        jobs: 1,
        file_bytes: 1 << 30,
        bytes_by_job: 1 << 30,
    };
    std::fs::create_dir(server.path().join("bench")).unwrap();
    let experiment = Experiment { options: &options("").unwrap(), export: &export, directory: "" };
    let ended = fio::run(&job, &experiment.libnfs_url(b""), "bench", &|| export.check());
    process.wait().unwrap();
    match ended.map(drop) {
        Err(Error::Program(why)) => return skip(why),
        ended => assert!(matches!(ended, Err(Error::Server(_))), "{ended:?}"),
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn copies_go_there_and_back() {
    let Some(all) = measured("--load nfs-cp") else { return };
    let phases: Vec<_> = all.iter().map(|one| (one.phase.as_str(), one.subject.as_str())).collect();
    assert_eq!(phases, [("copy-to", "nfs-cp"), ("copy-from", "nfs-cp")]);
}
