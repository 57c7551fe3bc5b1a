//! Tests that skip do it in the one way that is a failure in CI.

use crate::{Source, assert_none, rust_sources};

#[test]
fn skips_are_failures_in_ci() {
    let violations: Vec<_> = rust_sources()
        .iter()
        .filter(|source| {
            !source.path.starts_with("tests/skip/") && !source.path.contains("/examples/")
        })
        .flat_map(printed_skips)
        .collect();
    assert_none("a test skips by `skip` or `skip_in_ci_too` of tests/skip", &violations);
}

/// The calls of `println!` and `eprintln!` that print the word, as `path:line`.
fn printed_skips(source: &Source) -> Vec<String> {
    let calls = source.text.match_indices("println!(");
    let skips = calls.filter(|(at, _)| {
        let call = source.text[*at..].split(';').next().unwrap_or_default();
        call.lines().take(3).any(|line| line.to_ascii_lowercase().contains("skipped"))
    });
    skips.map(|(at, _)| format!("{}:{}", source.path, source.text[..at].lines().count())).collect()
}

#[test]
fn printed_skips_are_found() {
    let call = |text: &str| format!("eprintln!({text})");
    let text = [call("\"skipped: no disk\""), call("\n\"{test} Skipped\",\n"), call("\"done\"")];
    let source = Source { path: "a.rs".to_owned(), text: text.join(";\n") + "; // skipped" };
    assert_eq!(printed_skips(&source), ["a.rs:1", "a.rs:2"]);
}
