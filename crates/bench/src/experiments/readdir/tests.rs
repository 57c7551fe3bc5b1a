use std::collections::HashSet;
use std::fs;

use super::*;
use crate::experiments::own_server::{OwnServer, measure, options};
use crate::experiments::servers::Experiment as _;
use changes::Changes;

fn of<'a>(all: &'a [Measurement], phase: &str, subject: &str) -> &'a Measurement {
    all.iter().find(|m| m.phase == phase && m.subject == subject).unwrap()
}

fn count(measurement: &Measurement, figure: Figure) -> f64 {
    measurement.figures[&figure]
}

#[test]
fn the_calls_reported_are_those_that_the_server_counts() {
    let server = OwnServer::start();
    for plus in ["", "--plus"] {
        let options: Options = options(&format!("--entries 2000 --reply 8KiB {plus}")).unwrap();
        let mut counted = Vec::new();
        let mut before = server.counters();
        options
            .carry_out(1..=1, &server.export(), &mut |measurement| {
                // A modified directory is made good by calls that are no READDIR.
                let now = server.counters();
                let added = |name: &str| now[name] - before[name];
                counted.push((measurement, added("readdirs"), added("readdirs_from_start")));
                before = now;
                Ok(())
            })
            .unwrap();
        assert_eq!(counted.len(), 6);
        for (measurement, readdirs, from_start) in &counted {
            let what = format!("{} {} {plus}", measurement.phase, measurement.subject);
            assert_eq!(count(measurement, Figure::Calls), *readdirs as f64, "{what}");
            assert_eq!(count(measurement, Figure::CallsFromStart), *from_start as f64, "{what}");
            assert_eq!(*from_start, 1, "{what}");
            let calls_min = if measurement.phase == "list-raw" { 8 } else { 2 };
            assert!(*readdirs >= calls_min, "{what}: {readdirs} calls");
        }
        assert_eq!(fs::read_dir(server.path()).unwrap().count(), 0, "it is removed");
    }
}

#[test]
fn each_entry_is_listed_once_while_another_client_changes_the_directory() {
    let server = OwnServer::start();
    let options: Options = options("--entries 3000 --reply 4KiB --change-interval 1ms").unwrap();
    let mut on_disk = HashSet::new();
    let mut measurements = Vec::new();
    options
        .carry_out(1..=2, &server.export(), &mut |measurement| {
            let dir = fs::read_dir(server.path()).unwrap().next().unwrap().unwrap().path();
            on_disk.insert(fs::read_dir(dir).unwrap().count());
            measurements.push(measurement);
            Ok(())
        })
        .unwrap();
    assert_eq!(on_disk, HashSet::from([3000]), "what was changed is made good each time");
    assert_eq!(measurements.len(), 12);
    for measurement in &measurements {
        let what = format!("{} {}", measurement.phase, measurement.subject);
        assert_eq!(count(measurement, Figure::WrongEntries), 0.0, "{what}");
        let entries = count(measurement, Figure::Entries);
        let changes = measurement.figures.get(&Figure::Changes).copied();
        match measurement.subject.as_str() {
            "idle" => assert_eq!((entries, changes), (3000.0, None)),
            _ => assert!(changes.is_some_and(|changes| changes >= 1.0), "{what}: {changes:?}"),
        }
        let first = measurement.positions.first().unwrap();
        assert_eq!(first.entry, 0, "{what}");
        assert!(measurement.positions.is_sorted_by(|a, b| a.entry < b.entry), "{what}");
        assert!(measurement.positions.len() <= 101, "{what}");
        // Each position is as wide as the next one is far; the time of all is that of the listing.
        let ends = measurement.positions.iter().skip(1).map(|position| position.entry as f64);
        let us: f64 = measurement
            .positions
            .iter()
            .zip(ends.chain([entries]))
            .map(|(position, end)| position.us_per_entry * (end - position.entry as f64))
            .sum();
        let secs = measurement.figures[&Figure::Secs];
        assert!(us <= secs * 1e6 * 1.001 && us > 0.0, "{what}: {us} us of {secs} s");
    }
    let turns: Vec<_> = measurements.iter().map(|m| (m.round, m.order, &*m.subject)).collect();
    assert_eq!(turns[..3], [(1, 1, "idle"), (1, 2, "adding"), (1, 3, "removing")]);
    assert_eq!(turns[6..9], [(2, 1, "removing"), (2, 2, "adding"), (2, 3, "idle")]);
}

#[test]
fn a_server_that_takes_its_time_is_reported_as_slower() {
    let server = OwnServer::start();
    let options: Options = options("--entries 300 --reply 4KiB --modified none").unwrap();
    let fast = measure(&options, 1, &server.export());
    for phase in ["list-raw", "list-client"] {
        let secs = |all| of(all, phase, "idle").figures[&Figure::Secs];
        // Long against what a busy machine adds to each of the calls, of which there are two or
        // more.
        let delay = Duration::from_millis(20).max(Duration::from_secs_f64(2.0 * secs(&fast)));
        let slow = measure(&options, 1, &server.delayed(delay));
        let calls = of(&slow, phase, "idle").figures[&Figure::Calls];
        // The client reads ahead, but does not skip the delay of any call.
        let least = calls * delay.as_secs_f64() * 0.5;
        assert!(secs(&slow) >= least, "{phase}: {} s for {calls} calls, {delay:?}", secs(&slow));
        assert!(secs(&slow) > 2.0 * secs(&fast), "{phase}: {} s", secs(&slow));
    }
}

#[test]
fn a_failed_experiment_is_cleaned_up() {
    let server = OwnServer::start();
    let options: Options = options("--entries 50").unwrap();
    let failed = options
        .carry_out(1..=1, &server.export(), &mut |_| Err(Error::Misuse("enough".to_owned())));
    assert_eq!(failed.unwrap_err().to_string(), "enough");
    assert_eq!(fs::read_dir(server.path()).unwrap().count(), 0);
    let keeping = Options { keep: true, ..options };
    measure(&keeping, 1, &server.export());
    let kept = fs::read_dir(server.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(kept).unwrap().count(), 50);
}

#[test]
fn wrong_entries_are_counted() {
    let shown = |numbers: &[u32]| numbers.iter().copied().map(Some).collect::<Vec<_>>();
    let idle = |numbers: &[u32]| wrong_entries(&shown(numbers), 4, None);
    assert_eq!(idle(&[2, 0, 1, 3]), 0);
    assert_eq!(idle(&[0, 1, 3]), 1, "2 is missing");
    assert_eq!(idle(&[0, 1, 1, 1, 2, 3]), 2, "1 comes twice too often");
    assert_eq!(idle(&[0, 1, 2, 3, 4]), 1, "4 was never there");
    assert_eq!(wrong_entries(&[None, Some(0)], 1, None), 1, "a foreign name");

    // 4 was added before the listing, 5 and 6 while it was made.
    let added = Changes { change: Change::Add, entries: 4, times: 1..3 };
    let adding = |numbers: &[u32]| wrong_entries(&shown(numbers), 4, Some(&added));
    assert_eq!((adding(&[0, 1, 2, 3, 4]), adding(&[0, 1, 2, 3, 4, 6])), (0, 0));
    assert_eq!(adding(&[0, 1, 2, 3]), 1, "4 was there throughout");
    assert_eq!(adding(&[0, 1, 2, 3, 4, 5, 5, 7]), 2, "5 comes twice, 7 came later");

    let removed = Changes { change: Change::Remove, entries: 4, times: 1..3 };
    let order: Vec<_> = removed.numbers(0..4).collect();
    assert_eq!(order.iter().collect::<HashSet<_>>().len(), 4, "each once: {order:?}");
    let removing = |numbers: &[u32]| wrong_entries(&shown(numbers), 4, Some(&removed));
    assert_eq!((removing(&[order[3]]), removing(&[order[1], order[3]])), (0, 0));
    assert_eq!(removing(&order), 1, "the first was gone before");
    assert_eq!(removing(&order[1..3]), 1, "the last was never removed");
}

#[test]
fn times_have_a_unit_and_bounds() {
    assert_eq!(parse_time("1ms"), Ok(Duration::from_millis(1)));
    assert_eq!(parse_time("3600s"), Ok(Duration::from_secs(3600)));
    for wrong in ["", "1", "ms", "1h", "-1s", "99999999999999999999s", "0ms", "0s", "3601s"] {
        assert!(parse_time(wrong).is_err(), "{wrong}");
    }
}
