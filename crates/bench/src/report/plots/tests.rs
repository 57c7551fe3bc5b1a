use super::*;
use crate::record::{Measurement, Record, Second};
use crate::results::Results;
use crate::samples::{listings, loads, measurement, records, sweep};

fn drawn(all: Vec<Measurement>) -> Vec<Plot> {
    let results = Results::group(&records("r", all));
    let subjects = results.subjects();
    let run = &results.runs[0];
    run.phases.iter().flat_map(|phase| plots(run, phase, &subjects)).collect()
}

/// The names of the plots. Their drawings are found to be XML with numbers in it.
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
        assert!(!plot.caption.is_empty());
    }
    plots.iter().map(|plot| plot.name.as_str()).collect()
}

fn texts(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).expect("XML");
    let texts = document.descendants().filter(|node| node.tag_name().name() == "text");
    texts.filter_map(|node| node.text().map(|text| text.trim().into())).collect()
}

#[test]
fn a_load_has_each_kind_of_plot() {
    let plots = drawn(loads("write", &["a", "b"], 3));
    assert_eq!(
        names(&plots),
        [
            "r-write-throughput",
            "r-write-over-time",
            "r-write-latency",
            "r-write-processor-time-of-the-server",
            "r-write-memory-at-its-most",
            "r-write-data-moved-by-the-device",
            "r-write-memory-over-time",
        ]
    );
}

#[test]
fn bars_are_labelled_with_the_medians_of_the_rounds() {
    let mut all = loads("write", &["a", "b"], 3);
    for (one, rate) in all.iter_mut().zip([300.0, 50.0, 100.0, 70.0, 200.0, 60.0]) {
        one.figures.insert(Figure::MibPerSec, rate);
    }
    let plots = drawn(all);
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
    let of_color = |place| {
        let RGBColor(red, green, blue) = color(place);
        let fill = format!("#{red:02X}{green:02X}{blue:02X}");
        let rectangles = document.descendants().filter(|node| node.tag_name().name() == "rect");
        let mut own = rectangles.filter(|node| node.attribute("fill") == Some(&fill));
        let width = own.next().and_then(|node| node.attribute("width")).expect("a bar");
        width.parse::<f64>().expect("a number")
    };
    let (a, b) = (of_color(0), of_color(1));
    assert!((a / b - 4.0).abs() < 0.05, "{a}, {b}");
}

#[test]
fn latency_is_that_of_all_calls_of_all_rounds() {
    let results = Results::group(&records("r", loads("write", &["a"], 3)));
    let points = latency(&results.runs[0].phases[0].cases[0]);
    // 15,000, 12,000, 2,700, 270 and 30 calls.
    let at = |longer: f64| {
        let nines = nines(longer);
        points.iter().rfind(|(x, _)| *x <= nines - 1e-9).expect("a point").1
    };
    assert_eq!(at(0.5), 500.0);
    assert_eq!(at(0.4), 1_000.0);
    assert_eq!(at(0.01), 2_000.0);
    assert_eq!(at(0.001), 20_000.0);
    assert_eq!(at(0.0009), 90_000.0);
    // Without the calls, the percentiles of the rounds.
    let mut all = loads("write", &["a"], 3);
    all.iter_mut().for_each(|one| one.latency.clear());
    let results = Results::group(&records("r", all));
    let points = latency(&results.runs[0].phases[0].cases[0]);
    assert_eq!(points.len(), 3);
    assert_eq!(points[0], (nines(0.5), 500.0));
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
    // Two values are rows of bars.
    let plots = drawn(sweep(&["a", "b"], "clients", &[1, 4]));
    assert!(texts(&plots[0].svg).contains(&"a, clients 4".into()));
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
    let rates = plots.iter().filter(|plot| plot.name.contains("throughput"));
    let rates: Vec<_> = rates.map(|one| &one.title).collect();
    assert_eq!(
        rates,
        ["sweep: throughput by record: workers 1", "sweep: throughput by record: workers 2"]
    );
    assert!(texts(&plots[0].svg).contains(&"16 MiB".into()));
}

#[test]
fn listings_show_the_cost_by_position() {
    let plots = drawn(listings(&["a", "b"]));
    assert_eq!(
        names(&plots),
        ["r-idle-time", "r-idle-last-tenth-to-first", "r-idle-cost-of-an-entry-by-its-position"]
    );
    let results = Results::group(&records("r", listings(&["a", "b"])));
    let costs = by_position(&results.runs[0].phases[0].cases[1]);
    assert_eq!(costs.len(), 10);
    assert_eq!((costs[9].0, costs[9].1.median), (9_000.0, 5.6));
}

#[test]
fn odd_records_are_drawn() {
    let twelve: Vec<String> = (1..=12).map(|n| format!("subject {n}")).collect();
    let twelve: Vec<&str> = twelve.iter().map(String::as_str).collect();
    assert_eq!(names(&drawn(loads("write", &twelve, 2))).len(), 7);
    assert_eq!(names(&drawn(loads("write", &["alone"], 1))).len(), 7);
    assert!(drawn(vec![measurement("p", "s", 1, &[])]).is_empty());
    let markup = "</title><script>alert('\"&\u{0}\u{1b}')</script>";
    for plot in drawn(loads("write", &[markup, "b"], 2)) {
        let document = roxmltree::Document::parse(&plot.svg).expect(&plot.name);
        assert!(document.descendants().all(|node| node.tag_name().name() != "script"));
    }

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
    let over_time = |all| {
        let plots = drawn(all);
        let found = plots.into_iter().find(|plot| plot.name.ends_with("write-over-time"));
        found.expect("a course").svg
    };
    let mut all = loads("write", &["a"], 1);
    all[0].seconds.truncate(1);
    assert!(over_time(all).contains("<circle"));

    let mut all = loads("write", &["a"], 1);
    all[0].seconds = (1..20_000_u32)
        .map(|at| Second { at_secs: f64::from(at), secs: 1.0, bytes: 1, ..Second::default() })
        .collect();
    assert!(over_time(all).len() < 40_000);
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
    let results = Results::group(&[evil]);
    let run = &results.runs[0];
    assert_eq!(plots(run, &run.phases[0], &[])[0].name, "r-x-throughput");
}
