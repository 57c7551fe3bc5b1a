use super::*;
use crate::samples::{loads, measurement, records, run};
use std::io::Write as _;

fn lines(records: &[Record]) -> String {
    let line = |one| serde_json::to_string(one).expect("plain data") + "\n";
    records.iter().map(line).collect()
}

fn read(text: &str) -> Result<Results> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    Results::read(&[file.path()])
}

fn fault(text: &str) -> (usize, String) {
    match read(text) {
        Err(Error::Record { line, why, .. }) => (line, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_are_read_and_grouped() {
    let mut all = loads("write", &["b", "a"], 3);
    all.extend(loads("read", &["a", "b"], 3));
    let records = records("r", all);
    let found = read(&lines(&records)).expect("whole");
    assert_eq!(found, Results::group(&records));
    let [run] = found.runs.as_slice() else { panic!("{found:?}") };
    assert_eq!(run.subjects(), ["b", "a"]);
    let names: Vec<_> = run.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["write", "read"]);
    assert_eq!(run.phases[1].subjects(), ["b", "a"]);
    assert_eq!(run.phases[0].fixed.get("ranks"), Some(&4));
    assert_eq!(run.phases[0].settings(), [&Parameters::new()]);
    let case = run.phases[0].case("a", &Parameters::new()).expect("measured");
    assert_eq!(case.rounds.iter().map(|one| one.round).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn varying_parameters_become_settings_in_numeric_order() {
    let all = [16, 1, 128].map(|clients| {
        let mut one = measurement("p", "s", 1, &[(Figure::Secs, 1.0)]);
        one.parameters = [("clients".into(), clients), ("io_bytes".into(), 4096)].into();
        one
    });
    let found = Results::group(&records("r", all.into()));
    let phase = &found.runs[0].phases[0];
    let clients: Vec<_> = phase.settings().iter().map(|at| at["clients"]).collect();
    assert_eq!(clients, [1, 16, 128]);
    assert_eq!(phase.fixed, Parameters::from([("io_bytes".into(), 4096)]));
}

#[test]
fn parameters_of_the_subject_are_not_settings() {
    let all =
        [("idle", 1, None), ("adding", 1, Some(10)), ("idle", 2, None), ("adding", 2, Some(10))]
            .map(|(subject, round, interval_ms)| {
                let mut one = measurement("list", subject, round, &[(Figure::Secs, 1.0)]);
                one.parameters = [("entries".into(), 100)].into();
                one.parameters.extend(interval_ms.map(|ms| ("interval_ms".to_owned(), ms)));
                one
            });
    let found = Results::group(&records("r", all.into()));
    let phase = &found.runs[0].phases[0];
    assert_eq!(phase.settings(), [&Parameters::new()]);
    assert_eq!(phase.fixed, Parameters::from([("entries".into(), 100)]));
    let [idle, adding] = phase.cases.as_slice() else { panic!("{phase:?}") };
    assert_eq!((idle.rounds.len(), &idle.own), (2, &Parameters::new()));
    assert_eq!(adding.own, Parameters::from([("interval_ms".into(), 10)]));
}

#[test]
fn a_truncated_line_is_skipped_and_reported() {
    let whole = lines(&records("r", loads("write", &["a"], 2)));
    let cut = &whole[..whole.len() - 10];
    let found = read(cut).expect("the rest is whole");
    assert_eq!(found.runs[0].phases[0].rounds(), 1);
    assert!(found.remarks[0].contains("truncated in line 3"), "{:?}", found.remarks);
    let all = read(whole.trim_end()).expect("a whole line without its end is whole");
    assert_eq!((all.runs[0].phases[0].rounds(), all.remarks.len()), (2, 0));
}

#[test]
fn an_invalid_record_is_named_by_its_line() {
    let whole = lines(&records("r", loads("write", &["a"], 1)));
    assert_eq!(fault(&format!("{whole}nonsense\n{whole}")).0, 3);
    assert_eq!(fault(&whole.replace("\"secs\":", "\"parsecs\":")).0, 2);
    assert_eq!(fault(&whole.replace("1024.0", "null")).0, 2);
    assert_eq!(fault(&whole.replace("1024.0", "1e999")).0, 2);
    let (line, why) = fault(&format!("{whole}{whole}"));
    assert_eq!(line, 3);
    assert!(why.contains("already"), "{why}");
    let orphan = lines(&[Record::Measurement(measurement("p", "s", 1, &[]))]);
    assert_eq!(fault(&orphan).0, 1);
    assert_eq!(fault("").0, 1);
    assert!(matches!(Results::read(&["/nonexistent"]), Err(Error::Machine { .. })));
}

#[test]
fn measurements_without_their_run_are_grouped_all_the_same() {
    let orphan = [Record::Measurement(measurement("p", "s", 1, &[]))];
    let found = Results::group(&orphan);
    assert_eq!(found.runs[0].run.id, "sample");
    assert_eq!(found.runs[0].run.kernel, "");
    assert_eq!(Results::group(&[Record::Run(run("r"))]).runs[0].phases, []);
}

#[test]
fn faults_name_the_round_and_the_first_error() {
    let mut all = loads("write", &["a"], 2);
    all[1].figures.insert(Figure::Errors, 3.0);
    all[1].figures.insert(Figure::WrongBytes, 4096.0);
    all[1].first_error = Some("WRITE: NFS3ERR_IO".into());
    let found = Results::group(&records("r", all));
    let case = &found.runs[0].phases[0].cases[0];
    assert!(!case.is_sound());
    assert_eq!(
        case.faults(),
        ["round 2: 3 calls failed, 4096 bytes were wrong; first: WRITE: NFS3ERR_IO"]
    );
}

#[test]
fn a_file_without_records_is_reported_as_such() {
    let error = parse("notes", "hello\n", &mut Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("notes, line 1: not a record of spillway bench: "), "{error}");
}
