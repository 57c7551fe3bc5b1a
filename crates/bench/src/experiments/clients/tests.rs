use super::*;
use crate::experiments::own_server::{OwnServer, options};
use crate::experiments::servers::Experiment as _;

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
            println!("skipped: {why}");
            None
        }
        Err(error) => panic!("{error}"),
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
fn copies_go_there_and_back() {
    let Some(all) = measured("--load nfs-cp") else { return };
    let phases: Vec<_> = all.iter().map(|one| (one.phase.as_str(), one.subject.as_str())).collect();
    assert_eq!(phases, [("copy-to", "nfs-cp"), ("copy-from", "nfs-cp")]);
}
