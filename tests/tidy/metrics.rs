//! The metrics: the page that explains them, and the dashboard that shows them, have those of the
//! code.

use std::collections::BTreeSet;
use std::fs;

use server::counters::Counter;
use server::report::metric_names;

use crate::root;

/// The suffixes of a histogram's series.
const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

fn names() -> BTreeSet<String> {
    metric_names().into_iter().collect()
}

/// The words of a text that begin as metrics do.
fn mentioned(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    words.filter(|word| word.starts_with("spillway_")).map(str::to_owned).collect()
}

#[test]
fn each_metric_is_explained() {
    let text = fs::read_to_string(root().join("docs/metrics.md")).expect("the page exists");
    // A row of a table begins with the name.
    let explained: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    let (names, mentioned) = (names(), mentioned(&text));
    let missing: Vec<_> = names.difference(&explained).collect();
    assert!(missing.is_empty(), "docs/metrics.md has no row for {missing:?}");
    let unknown: Vec<_> = mentioned.difference(&names).collect();
    assert!(unknown.is_empty(), "docs/metrics.md names what there is not: {unknown:?}");
}

#[test]
fn each_way_of_a_read_or_write_is_explained_beside_its_counter() {
    let text = fs::read_to_string(root().join("docs/io-modes.md")).expect("the page exists");
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let missing = Counter::ALL.iter().filter(|counter| {
        let (family, labels) = counter.metric();
        // The direction is in the name.
        let shown = labels.iter().filter(|(label, _)| *label != "direction");
        let way = shown.map(|(_, value)| *value).collect::<Vec<_>>().join(":");
        let is_explained = |row: &&str| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            cells[1].contains(&format!("`{}`", counter.name()))
                && cells[2].contains(&format!("`{way}`"))
        };
        ["read_choices", "write_choices", "io_bytes"].contains(&family)
            && !rows.iter().any(is_explained)
    });
    let missing: Vec<_> = missing.map(|counter| counter.name()).collect();
    assert!(missing.is_empty(), "docs/io-modes.md has no row with the labels of {missing:?}");
}

#[test]
fn the_dashboard_queries_existing_metrics() {
    let path = root().join("contrib/grafana-dashboard.json");
    let text = fs::read_to_string(path).expect("the dashboard exists");
    let parsed: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert!(parsed["panels"].as_array().is_some_and(|panels| !panels.is_empty()));
    let names = names();
    for name in mentioned(&text) {
        let whole = PARTS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(&name);
        assert!(names.contains(&name) || names.contains(whole), "no metric {name}");
    }
}
