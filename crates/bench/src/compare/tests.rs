use super::*;
use crate::record::Record;
use crate::samples::{loads, records, run as sample_run};
use std::path::PathBuf;
use tempfile::TempDir;

fn file(directory: &TempDir, name: &str, records: &[Record]) -> PathBuf {
    let path = directory.path().join(name);
    let line = |one| serde_json::to_string(one).expect("plain data") + "\n";
    std::fs::write(&path, records.iter().map(line).collect::<String>()).expect("written");
    path
}

fn compared(base: &str, other: Option<&str>) -> Result<String> {
    let args = Args { base: base.into(), other: other.map(Into::into) };
    let mut out = Vec::new();
    run(&args, &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

fn row<'a>(text: &'a str, title: &str) -> &'a str {
    text.lines().find(|line| line.trim_start().starts_with(title)).expect(title)
}

#[test]
fn a_slower_server_is_reported_as_slower() {
    let directory = TempDir::new().expect("a directory");
    let base = file(&directory, "a", &records("a", loads("read", &["server"], 5)));
    let mut slow = loads("read", &["server"], 5);
    for one in &mut slow {
        for (figure, factor) in [(Figure::MibPerSec, 0.5), (Figure::LatencyP99Us, 3.0)] {
            *one.figures.get_mut(&figure).expect("measured") *= factor;
        }
    }
    let other = file(&directory, "b", &records("b", slow));
    let (base, other) = (base.to_str().expect("a path"), other.to_str().expect("a path"));

    let text = compared(base, Some(other)).expect("compared");
    let words = |title| row(&text, title).split_whitespace().collect::<Vec<_>>();
    assert_eq!(words("throughput")[4..5], ["0.500"]);
    assert!(row(&text, "throughput").ends_with("slower"), "{text}");
    assert!(row(&text, "latency p99 us").ends_with("slower"), "{text}");
    assert!(row(&text, "latency p50 us").ends_with("no difference"), "{text}");
    assert!(!text.contains("circumstances differ"), "{text}");

    let back = compared(other, Some(base)).expect("compared");
    assert!(row(&back, "throughput").ends_with("faster"), "{back}");
    let same = compared(base, Some(base)).expect("compared");
    assert!(!same.contains("slower") && !same.contains("faster"), "{same}");
}

#[test]
fn subjects_of_one_file_are_compared_with_the_first_or_the_named() {
    let directory = TempDir::new().expect("a directory");
    let file = file(&directory, "a", &records("a", loads("read", &["one", "two"], 3)));
    let file = file.to_str().expect("a path");
    let text = compared(file, None).expect("compared");
    assert!(text.contains("two by one (3 rounds, round by round)"), "{text}");
    assert!(row(&text, "throughput").ends_with("slower"), "{text}");
    assert!(row(&text, "server system").ends_with("dearer"), "{text}");
    // 0 by 900 MiB has no ratio, and is a difference.
    assert!(row(&text, "page cache").ends_with("worse"), "{text}");
    let named = compared(&format!("{file}:two"), None).expect("compared");
    assert!(row(&named, "throughput").ends_with("faster"), "{named}");
    let sides = compared(&format!("{file}:one"), Some(&format!("{file}:two"))).expect("compared");
    assert_eq!(row(&sides, "throughput"), row(&text, "throughput"));
}

#[test]
fn parameters_of_subjects_may_differ_between_them() {
    let directory = TempDir::new().expect("a directory");
    let changing = |interval_ms: u64| {
        let mut all = loads("list", &["idle", "adding"], 3);
        for one in all.iter_mut().filter(|one| one.subject == "adding") {
            one.parameters.insert("interval_ms".into(), interval_ms);
        }
        all
    };
    let ten = file(&directory, "a", &records("a", changing(10)));
    let twenty = file(&directory, "b", &records("b", changing(20)));
    let (ten, twenty) = (ten.to_str().expect("a path"), twenty.to_str().expect("a path"));
    let text = compared(ten, None).expect("compared");
    assert!(text.contains("adding by idle"), "{text}");
    // Of the same subject it is another load.
    let text = compared(ten, Some(twenty)).expect("compared");
    assert!(text.contains("idle (3 rounds)"), "{text}");
    assert!(text.contains("Only in the base: io; list; interval 10 ms, io 1 MiB"), "{text}");
    assert!(text.contains("Only in the other: io; list; interval 20 ms, io 1 MiB"), "{text}");
}

#[test]
fn few_errors_are_worse_than_none() {
    let directory = TempDir::new().expect("a directory");
    let failing = |name, failed: u32| {
        let mut all = loads("read", &["server"], 10);
        for one in &mut all {
            let errors = if one.round <= failed { 1.0 } else { 0.0 };
            one.figures.insert(Figure::Errors, errors);
        }
        let path = file(&directory, name, &records(name, all));
        path.to_str().expect("a path").to_owned()
    };
    // The medians are 0 on both sides; the means differ significantly.
    let (none, few) = (failing("a", 0), failing("b", 4));
    let text = compared(&none, Some(&few)).expect("compared");
    assert!(row(&text, "errors").ends_with("worse"), "{text}");
    let text = compared(&few, Some(&none)).expect("compared");
    assert!(row(&text, "errors").ends_with("better"), "{text}");
}

#[test]
fn calls_put_off_are_worse_than_none() {
    let directory = TempDir::new().expect("a directory");
    let putting_off = |name, put_off: Option<f64>| {
        let mut all = loads("read", &["server"], 3);
        for one in &mut all {
            one.figures.extend(put_off.map(|count| (Figure::PutOff, count)));
        }
        let path = file(&directory, name, &records(name, all));
        path.to_str().expect("a path").to_owned()
    };
    let many = putting_off("many", Some(900.0));
    // Earlier versions recorded no count of 0.
    for none in [putting_off("zero", Some(0.0)), putting_off("missing", None)] {
        let text = compared(&none, Some(&many)).expect("compared");
        assert!(row(&text, "put off").ends_with("worse"), "{text}");
        let text = compared(&many, Some(&none)).expect("compared");
        assert!(row(&text, "put off").ends_with("better"), "{text}");
    }
}

#[test]
fn two_rounds_are_too_few() {
    let directory = TempDir::new().expect("a directory");
    let file = file(&directory, "a", &records("a", loads("read", &["one", "two"], 2)));
    let text = compared(file.to_str().expect("a path"), None).expect("compared");
    assert!(row(&text, "throughput").ends_with("too few rounds"), "{text}");
    assert!(text.contains("17 have too few rounds to tell"), "{text}");
}

#[test]
fn one_sided_loads_and_other_circumstances_are_reported() {
    let directory = TempDir::new().expect("a directory");
    let mut all = loads("read", &["server"], 3);
    all.extend(loads("write", &["server"], 3));
    let base = file(&directory, "a", &records("a", all));
    let mut others = records("b", loads("read", &["server"], 3));
    others[0] = Record::Run(Run {
        kernel: "9.9.8".into(),
        memory_limit_bytes: Some(1 << 28),
        ..sample_run("b")
    });
    let other = file(&directory, "b", &others);
    let text = compared(base.to_str().expect("a path"), other.to_str()).expect("compared");
    assert!(text.contains("!! The circumstances differ: kernel: 9.9.9, but 9.9.8"), "{text}");
    assert!(text.contains("limit of memory: none, but 256.0 MiB"), "{text}");
    assert!(text.contains("Only in the base: io; write; io 1 MiB, ranks 4; server"), "{text}");
    assert!(!text.contains("Only in the other"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
}

#[test]
fn more_work_in_the_same_time_is_no_loss() {
    let directory = TempDir::new().expect("a directory");
    let sums = [
        "time s",
        "commit s",
        "page cache MiB",
        "dirty MiB",
        "page cache + RSS MiB",
        "cached at end MiB",
        "device read MiB",
        "device written MiB",
        "device writes",
    ];
    let table = [("limited", Some(3), true), ("within", Some(60), false), ("whole", None, false)];
    for (name, limit_secs, is_limited) in table {
        let mut all = loads("write", &["slow", "fast"], 3);
        for one in &mut all {
            one.parameters.extend(limit_secs.map(|secs| ("limit_secs".to_owned(), secs)));
            let work = if one.subject == "fast" { 2.0 } else { 1.0 };
            let figures = [
                (Figure::MibPerSec, 100.0 * work),
                (Figure::Secs, 3.0 + work / 100.0),
                (Figure::CommitSecs, work),
                (Figure::PageCacheMibMax, 300.0 * work),
                (Figure::DirtyMibMax, 30.0 * work),
                (Figure::HeldMibMax, 20.0 + 300.0 * work),
                (Figure::CachedAtEndMib, 300.0 * work),
                (Figure::DeviceReadMib, work),
                (Figure::DeviceWrittenMib, 300.0 * work),
                (Figure::DeviceWrites, 300.0 * work),
            ];
            one.figures.extend(figures);
        }
        let file = file(&directory, name, &records(name, all));
        let text = compared(file.to_str().expect("a path"), None).expect("compared");
        assert!(row(&text, "throughput").ends_with("faster"), "{text}");
        for title in sums {
            let found = text.lines().filter(|line| line.trim_start().starts_with(title)).count();
            assert_eq!(found, usize::from(!is_limited), "{title}: {text}");
        }
    }
}

/// Records of a run with such a limit of the servers' memory, in which each rate is `rate`.
fn limited(id: &str, limit_bytes: u64, subjects: &[&str], rate: f64) -> Vec<Record> {
    let mut all = loads("read", subjects, 3);
    for one in &mut all {
        one.figures.insert(Figure::MibPerSec, rate);
    }
    let mut records = records(id, all);
    records[0] = Record::Run(Run { memory_limit_bytes: Some(limit_bytes), ..sample_run(id) });
    records
}

#[test]
fn runs_of_one_file_in_different_circumstances_stay_apart() {
    let directory = TempDir::new().expect("a directory");
    let (small, large) = (128 << 20, 1 << 30);
    let both = ["one", "two"];
    let mut all = limited("a", small, &both, 100.0);
    all.extend(limited("b", large, &both, 500.0));
    all.extend(limited("c", small, &both, 100.0));
    let several = file(&directory, "several", &all);
    let several = several.to_str().expect("a path");
    let rates = |text: &str| -> Vec<(String, String)> {
        let rows = text.lines().filter(|line| line.trim_start().starts_with("throughput"));
        let words = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
        words.map(|words| (words[2].into(), words[3].into())).collect()
    };
    let pair = |base: &str, other: &str| (base.to_owned(), other.to_owned());

    let text = compared(several, None).expect("compared");
    assert_eq!(rates(&text), [pair("100", "100"), pair("500", "500")], "{text}");
    assert!(text.contains("two by one (6 rounds, round by round)"), "{text}");
    assert!(text.contains("limit of memory: 128.0 MiB\n"), "{text}");
    assert!(text.contains("limit of memory: 1.0 GiB\n"), "{text}");

    // Loads in the same circumstances are the pairs of two files.
    let one = file(&directory, "one", &limited("d", large, &["one"], 400.0));
    let one = one.to_str().expect("a path");
    let text = compared(one, Some(several)).expect("compared");
    assert_eq!(rates(&text), [pair("400", "500")], "{text}");
    let only = "Only in the other: io; read; io 1 MiB, ranks 4; limit of memory: 128.0 MiB; one";
    assert!(text.contains(only), "{text}");

    // A pair in others has the difference beside it.
    let mut all = limited("e", 2 << 30, &["one"], 200.0);
    all.extend(limited("f", large, &["one"], 400.0));
    let others = file(&directory, "others", &all);
    let text = compared(several, others.to_str()).expect("compared");
    assert_eq!(rates(&text), [pair("100", "200"), pair("500", "400")], "{text}");
    let differ = "ranks 4; limit of memory: 128.0 MiB\n!! The circumstances differ: limit of memory: \
                  128.0 MiB, but 2.0 GiB in the other\n";
    assert!(text.contains(differ), "{text}");
}

#[test]
fn loads_are_paired_with_those_that_differ_least() {
    let directory = TempDir::new().expect("a directory");
    let (small, large) = (128 << 20, 1 << 30);
    let mut newer = limited("c", large, &["one"], 501.0);
    newer.extend(limited("d", small, &["one"], 101.0));
    for record in &mut newer {
        if let Record::Run(run) = record {
            run.kernel = "9.9.8".into();
        }
    }
    let mut older = limited("a", small, &["one"], 100.0);
    older.extend(limited("b", large, &["one"], 500.0));
    let (older, newer) = (file(&directory, "older", &older), file(&directory, "newer", &newer));
    let text = compared(older.to_str().expect("a path"), newer.to_str()).expect("compared");
    assert!(row(&text, "throughput").contains("101"), "{text}");
    assert!(!text.contains("Only in"), "{text}");
}

#[test]
fn loads_of_other_sizes_are_no_pair() {
    let directory = TempDir::new().expect("a directory");
    let sized = |name: &str, mib: u64| {
        let mut all = loads("read", &["server"], 3);
        for one in &mut all {
            one.parameters.insert("data_bytes".into(), mib << 20);
        }
        let path = file(&directory, name, &records(name, all));
        path.to_str().expect("a path").to_owned()
    };
    let text = compared(&sized("a", 64), Some(&sized("b", 1024))).expect("compared");
    assert!(text.contains("Only in the base: io; read; data 64 MiB"), "{text}");
    assert!(text.contains("Only in the other: io; read; data 1 GiB"), "{text}");
    assert!(!text.contains("throughput"), "{text}");
}

#[test]
fn subjects_may_have_colons() {
    let directory = TempDir::new().expect("a directory");
    let file = file(&directory, "a:b", &records("a", loads("read", &["one", "host:2049"], 3)));
    let file = file.to_str().expect("a path");
    let text = compared(&format!("{file}:host:2049"), None).expect("compared");
    assert!(text.contains("one by host:2049"), "{text}");
}

#[test]
fn missing_subjects_are_named() {
    let directory = TempDir::new().expect("a directory");
    let file = file(&directory, "a", &records("a", loads("read", &["one", "two"], 3)));
    let file = file.to_str().expect("a path");
    let why = |argument: &str| compared(argument, None).expect_err("misuse").to_string();
    assert!(why("/nonexistent").contains("/nonexistent"));
    assert!(why(&format!("{file}:three")).ends_with("it has one, two"));
    let alone = Args { base: file.into(), other: Some(format!("{file}:two")) };
    let mut out = Vec::new();
    run(&alone, &mut out).expect("the subject of the same name is meant");
    assert!(!String::from_utf8(out).expect("text").contains("slower"));
}
