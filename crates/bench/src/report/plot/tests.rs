use super::*;
use crate::record::{Measurement, Record, Second};
use crate::recorded::Recorded;
use crate::samples::{listings, loads, measurement, records, sweep};

fn drawn(all: Vec<Measurement>) -> Vec<Plot> {
    let recorded = Recorded::group(&records("r", all));
    let subjects = recorded.subjects();
    let run = &recorded.runs[0];
    run.phases.iter().flat_map(|phase| plots(run, phase, &subjects)).collect()
}

/// The names of the plots, after their drawings were found to be XML with numbers in it.
fn names(plots: &[Plot]) -> Vec<&str> {
    for plot in plots {
        let document = roxmltree::Document::parse(&plot.svg).expect(&plot.name);
        let root = document.root_element();
        assert_eq!(root.tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        let title = root.first_element_child().expect("a title");
        assert_eq!((title.tag_name().name(), title.text()), ("title", Some(plot.title.as_str())));
        for text in ["NaN", "inf", "http://www.w3.org/1999/xlink"] {
            assert!(!plot.svg.contains(text), "{}: {text}", plot.name);
        }
        let columns = plot.table.header.len();
        assert!(!plot.table.rows.is_empty(), "{}", plot.name);
        assert!(plot.table.rows.iter().all(|row| row.len() == columns), "{}", plot.name);
        assert!(!plot.caption.is_empty());
    }
    plots.iter().map(|plot| plot.name.as_str()).collect()
}

fn texts(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).expect("XML");
    let texts = document.descendants().filter(|node| node.tag_name().name() == "text");
    texts.filter_map(|node| node.text().map(Into::into)).collect()
}

#[test]
fn a_load_has_a_plot_for_each_question() {
    let plots = drawn(loads("write", &["a", "b"], 3));
    assert_eq!(
        names(&plots),
        [
            "r-write-throughput",
            "r-write-over-time",
            "r-write-latency",
            "r-write-cpu",
            "r-write-memory",
            "r-write-memory-over-time",
            "r-write-device"
        ]
    );
}

#[test]
fn the_numbers_are_medians_of_the_rounds() {
    let mut all = loads("write", &["a", "b"], 3);
    for (one, rate) in all.iter_mut().zip([300.0, 50.0, 100.0, 70.0, 200.0, 60.0]) {
        one.figures.insert(Figure::MibPerSec, rate);
    }
    let plots = drawn(all);
    assert_eq!(plots[0].table.rows[0][2..], ["200", "100", "300", "300; 100; 200"]);
    assert_eq!(plots[0].table.rows[1][2..], ["60.0", "50.0", "70.0", "50.0; 70.0; 60.0"]);
    let texts = texts(&plots[0].svg);
    for text in ["a", "b", "200", "60.0", "throughput, MiB/s"] {
        assert!(texts.iter().any(|one| one == text), "{text} is not in {texts:?}");
    }
}

#[test]
fn bars_are_as_long_as_their_values() {
    let one = |subject: &str, rate| measurement("p", subject, 1, &[(Figure::MibPerSec, rate)]);
    let plots = drawn(vec![one("a", 100.0), one("b", 25.0)]);
    let document = roxmltree::Document::parse(&plots[0].svg).expect("XML");
    let widths: Vec<f64> = document
        .descendants()
        .filter(|node| node.tag_name().name() == "rect")
        .filter_map(|node| node.attribute("width").and_then(|width| width.parse().ok()))
        .collect();
    let [a, b] = widths.as_slice() else { panic!("{widths:?}") };
    assert!((a / b - 4.0).abs() < 0.01, "{widths:?}");
}

#[test]
fn latency_is_told_by_all_calls_of_all_rounds() {
    let plots = drawn(loads("write", &["a"], 3));
    let latency = plots.iter().find(|plot| plot.name.ends_with("latency")).expect("measured");
    assert_eq!(latency.table.rows[0], ["a", "500 us", "1 ms", "2 ms", "20 ms", "90 ms", "-"]);
    // Without the calls, from the figures of the rounds.
    let mut all = loads("write", &["a"], 3);
    for one in &mut all {
        one.latency.clear();
    }
    let plots = drawn(all);
    let latency = plots.iter().find(|plot| plot.name.ends_with("latency")).expect("measured");
    assert_eq!(latency.table.rows[0], ["a", "500 us", "-", "2.04 ms", "20 ms", "-", "-"]);
}

#[test]
fn a_parameter_of_several_values_is_swept() {
    let plots = drawn(sweep(&["a", "b"], "clients", &[1, 4, 16]));
    let names = names(&plots);
    assert!(names.contains(&"r-sweep-throughput-by-clients"), "{names:?}");
    assert!(names.contains(&"r-sweep-latency-p99-by-clients"), "{names:?}");
    assert!(!names.contains(&"r-sweep-over-time"), "{names:?}");
    let rate = texts(&plots[0].svg);
    for text in ["1", "4", "16", "clients", "a", "b"] {
        assert!(rate.iter().any(|one| one == text), "{text} is not in {rate:?}");
    }
    // Two values are rows below headings.
    let plots = drawn(sweep(&["a", "b"], "clients", &[1, 4]));
    assert!(texts(&plots[0].svg).contains(&"clients 4".into()));
}

#[test]
fn two_swept_parameters_make_a_plot_for_each_value_of_the_one() {
    let mut all = Vec::new();
    for workers in [1, 2] {
        for mut one in sweep(&["a"], "record_bytes", &[1 << 16, 1 << 20, 1 << 24]) {
            one.parameters.insert("workers".into(), workers);
            all.push(one);
        }
    }
    let plots = drawn(all);
    let rates: Vec<_> = plots
        .iter()
        .filter(|plot| plot.name.contains("throughput"))
        .map(|one| &one.title)
        .collect();
    assert_eq!(
        rates,
        ["sweep: throughput by record, workers 1", "sweep: throughput by record, workers 2"]
    );
    assert!(texts(&plots[0].svg).contains(&"16 MiB".into()));
}

#[test]
fn listings_tell_the_cost_by_position() {
    let plots = drawn(listings(&["a", "b"]));
    assert_eq!(
        names(&plots),
        ["r-idle-time", "r-idle-last-tenth-to-first", "r-idle-cost-of-an-entry-by-its-position"]
    );
    let costs = &plots[2].table.rows;
    assert_eq!(costs.len(), 20);
    assert_eq!(costs[0], ["a", "0", "1.00", "1.00", "1.00"]);
    assert_eq!(costs[19], ["b", "9,000", "5.60", "5.60", "5.60"]);
}

#[test]
fn odd_records_are_drawn_all_the_same() {
    let twelve: Vec<String> = (1..=12).map(|n| format!("subject {n}")).collect();
    let twelve: Vec<&str> = twelve.iter().map(String::as_str).collect();
    assert_eq!(names(&drawn(loads("write", &twelve, 2))).len(), 7);
    assert_eq!(names(&drawn(loads("write", &["alone"], 1))).len(), 7);
    assert!(drawn(vec![measurement("p", "s", 1, &[])]).is_empty());

    for value in [0.0, -1.0, 1e300, f64::MAX, 1e-300] {
        let mut all = loads("write", &["a", "b"], 3);
        for one in &mut all {
            for figure in one.figures.values_mut() {
                *figure = value;
            }
            for bucket in &mut one.latency {
                (bucket.us_max, bucket.count) = (value, u64::MAX);
            }
            one.seconds = vec![Second { at_secs: value, secs: value, ..Second::default() }];
        }
        names(&drawn(all));
        let mut all = sweep(&["a"], "clients", &[0, 1, u64::MAX]);
        for one in &mut all {
            one.figures.insert(Figure::MibPerSec, value);
            one.figures.insert(Figure::LatencyP99Us, value);
        }
        names(&drawn(all));
        let mut all = listings(&["a"]);
        for position in all.iter_mut().flat_map(|one| &mut one.positions) {
            position.us_per_entry = value;
        }
        names(&drawn(all));
    }
}

#[test]
fn a_single_second_and_a_long_run_are_drawn() {
    let mut all = loads("write", &["a"], 1);
    all[0].seconds.truncate(1);
    let plots = drawn(all);
    let course = plots.iter().find(|plot| plot.name.ends_with("write-over-time"));
    assert!(course.expect("a second").svg.contains("<circle"));

    let mut all = loads("write", &["a"], 1);
    all[0].seconds = (1..20_000_u32)
        .map(|at| Second { at_secs: f64::from(at), secs: 1.0, bytes: 1, ..Second::default() })
        .collect();
    let plots = drawn(all);
    let course = plots.iter().find(|plot| plot.name.ends_with("write-over-time"));
    assert!(course.expect("seconds").svg.len() < 40_000);
}

#[test]
fn names_of_files_are_harmless() {
    assert_eq!(slug("../../etc/Passwd -- x"), "etc-passwd-x");
    assert_eq!(slug("é/\0"), "");
    assert!(slug(&"x".repeat(1000)).len() <= 120);
    let evil = Record::Measurement(Measurement {
        figures: [(Figure::MibPerSec, 1.0)].into(),
        phase: "../x".into(),
        run: "/r".into(),
        ..Measurement::default()
    });
    let recorded = Recorded::group(&[evil]);
    let run = &recorded.runs[0];
    assert_eq!(plots(run, &run.phases[0], &[])[0].name, "r-x-throughput");
}
