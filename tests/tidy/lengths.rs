//! Lengths of functions, files and lines of comments. A file that is listed here may not grow; one
//! that is not listed keeps to the limit of CONTRIBUTING.md.

use crate::{Source, assert_none, rust_sources};

/// The most lines of a file, without its unit tests.
const FILE_LINES_MAX: usize = 600;

/// The most lines of a function, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// The most columns of a comment, as rustfmt has it for code.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Files that are longer, with the lines they may have.
const LONG_FILES: &[(&str, usize)] = &[("crates/io/src/write_behind/runs.rs", 615)];

#[test]
fn files_are_short() {
    let violations: Vec<_> = rust_sources()
        .iter()
        .filter(|source| !source.path.ends_with("/tests.rs"))
        .map(|source| (&source.path, source.without_unit_tests().lines().count()))
        .filter(|(path, lines)| *lines > file_lines_max(path))
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert_none("a file has at most 600 lines without its tests", &violations);
}

#[test]
fn comments_are_wrapped() {
    let is_long = |line: &str| {
        line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS_MAX
    };
    let violations: Vec<_> = rust_sources()
        .iter()
        .flat_map(|source| {
            let lines = source.text.lines().enumerate().filter(|(_, line)| is_long(line));
            lines.map(|(at, _)| format!("{}:{}", source.path, at + 1)).collect::<Vec<_>>()
        })
        .collect();
    assert_none("a comment has at most 100 columns", &violations);
}

#[test]
fn functions_are_short() {
    let violations: Vec<_> = rust_sources()
        .iter()
        .flat_map(functions)
        .filter(|(_, lines)| *lines > FUNCTION_LINES_MAX)
        .map(|(name, lines)| format!("{name}: {lines} lines"))
        .collect();
    assert_none("a function has at most 70 lines", &violations);
}

fn file_lines_max(path: &str) -> usize {
    LONG_FILES.iter().find(|(listed, _)| *listed == path).map_or(FILE_LINES_MAX, |(_, max)| *max)
}

/// The functions of a source, as `path: name`, with their lines. rustfmt puts the closing brace
/// under the beginning of the first line.
fn functions(source: &Source) -> Vec<(String, usize)> {
    let lines: Vec<_> = source.text.lines().collect();
    let mut functions = Vec::new();
    for (begin, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some(name) = function_name(code) else { continue };
        let closing = format!("{}}}", &line[..line.len() - code.len()]);
        // Declarations and functions of one line have no closing brace of their own.
        if line.ends_with(';') || line.ends_with('}') {
            continue;
        }
        if let Some(end) = lines[begin..].iter().position(|line| **line == closing) {
            functions.push((format!("{}: {name}", source.path), end + 1));
        }
    }
    functions
}

/// The name of the function that `code` begins, if it begins one.
fn function_name(code: &str) -> Option<&str> {
    let is_qualifier = |word: &str| {
        word.starts_with("pub")
            || ["in", "const", "async", "unsafe", "extern", "\"C\""].contains(&word)
    };
    let (before, after) = code.split_once("fn ")?;
    let is_beginning = before
        .split_whitespace()
        .all(|word| is_qualifier(word) || (word.ends_with(')') && before.starts_with("pub(in")));
    is_beginning.then(|| after.split(['(', '<']).next().unwrap_or(after))
}
