use std::fs;
use std::time::Duration;

use super::*;
use crate::experiments::export::runtime;
use crate::experiments::own_server::{OwnServer, measure, options};
use crate::experiments::servers::Experiment as _;

#[test]
fn the_calls_reported_are_those_that_the_server_takes() {
    let server = OwnServer::start();
    let options: Options =
        options("--record-sizes 100,4096 --workers 1,20 --size 1MiB --wsize 64KiB").unwrap();
    let measurements = measure(&options, 1, &server.export());
    let parameters =
        measurements.iter().map(|m| (m.parameters["record_bytes"], m.parameters["workers"]));
    assert!(parameters.eq([(100, 1), (100, 20), (4096, 1), (4096, 20)]));
    for Measurement { phase, figures, counters, parameters, .. } in &measurements {
        assert_eq!(*phase, format!("record-{}", parameters["record_bytes"]));
        assert_eq!(counters["write_bytes"], 1 << 20);
        // A WRITE is counted by each way that its data can go.
        let ways = counters.iter().filter(|(name, _)| {
            ["writes_cached_", "writes_window_"].iter().any(|way| name.starts_with(way))
                || *name == "writes_direct"
        });
        let writes: u64 = ways.map(|(_, count)| count).sum();
        assert_eq!(figures[&Figure::Calls], writes as f64, "{counters:?}");
        assert_eq!(figures[&Figure::CallKib], 1024.0 / writes as f64);
        assert_eq!(figures[&Figure::OutOfOrder], 0.0);
        assert!(!counters.contains_key("writes_out_of_order"), "{counters:?}");
        assert_eq!((figures[&Figure::VerifiedMib], figures[&Figure::WrongBytes]), (1.0, 0.0));
        let records = 1_048_576_u64.div_ceil(parameters["record_bytes"]) as f64;
        let per_sec = records / figures[&Figure::Secs];
        assert!((figures[&Figure::OperationsPerSec] / per_sec - 1.0).abs() < 1e-9);
    }
    assert_eq!(fs::read_dir(server.path()).unwrap().count(), 0, "it is removed");
}

#[test]
fn the_file_on_disk_has_the_written_data() {
    let server = OwnServer::start();
    let options: Options = options("--record-sizes 999 --workers 4 --size 300000B").unwrap();
    let runtime = runtime().unwrap();
    let export = server.export();
    let directory = runtime.block_on(ScratchDirectory::make(&export, &export.directory)).unwrap();
    let data = data(300_000);
    let experiment = Experiment {
        options: &options,
        export: &export,
        directory: &directory,
        runtime: &runtime,
        data: &data,
    };
    let record_bytes = options.record_sizes[0];
    runtime.block_on(write(&experiment, "file", record_bytes, 4)).unwrap();
    let path = server.path().join(directory.name()).join("file");
    assert!(fs::read(&path).unwrap() == data);
    assert_eq!(runtime.block_on(verify(&experiment, "file")).unwrap(), 0);

    let mut spoilt = data.clone();
    spoilt[150_000] ^= 1;
    spoilt.truncate(299_990);
    fs::write(&path, &spoilt).unwrap();
    assert_eq!(runtime.block_on(verify(&experiment, "file")).unwrap(), 11);
}

#[test]
fn a_server_that_takes_its_time_is_reported_as_slower() {
    let server = OwnServer::start();
    let options: Options =
        options("--record-sizes 512 --workers 1 --size 512KiB --wsize 64KiB").unwrap();
    let secs = |export| {
        let measurements = measure(&options, 2, &export);
        measurements.iter().map(|m| m.figures[&Figure::Secs]).sum::<f64>() / 2.0
    };
    let fast = secs(server.export());
    // Long against what a busy machine adds to each of the calls.
    let delay = Duration::from_millis(20).max(Duration::from_secs_f64(fast / 4.0));
    let slow = secs(server.delayed(delay));
    // Eight WRITEs one after the other, and COMMIT: twice as slow, or more.
    assert!(slow > 8.0 * delay.as_secs_f64(), "{slow} s with {delay:?}, {fast} s without");
}

#[test]
fn writes_that_are_late_are_counted() {
    let mut seen = written::Seen::default();
    for offset in [0, 10, 30, 20, 40, 40] {
        seen.note(client::trace::Event::WriteCall, offset, 10);
    }
    assert_eq!((seen.writes, seen.bytes, seen.out_of_order), (6, 60, 1));
    assert_eq!(seen.commit_took(), None);
}

#[test]
fn sizes_and_lists_that_cannot_be_are_refused() {
    let server = OwnServer::start();
    let lists = ["--workers 1,4,1", "--record-sizes 512,512"];
    let sizes = ["--size 0B", "--size 2GiB", "--wsize 1B", "--wsize 8MiB"];
    for arguments in sizes.into_iter().chain(lists) {
        let options: Options = options(arguments).unwrap();
        let refused = options.carry_out(1..=1, &server.export(), &mut |_| Ok(())).unwrap_err();
        assert!(matches!(refused, Error::Misuse(_)), "{arguments}: {refused}");
    }
    assert!(options::<Options>("--record-sizes 0").is_err());
    assert!(options::<Options>("--workers 0").is_err());
}
