//! Documents: headings, links, paths, length, and the constants of the code that they name.

use std::collections::BTreeSet;

use crate::{Source, assert_none, documents, root, rust_sources};

/// The most words of ARCHITECTURE.md, as `wc -w` counts them.
const ARCHITECTURE_WORDS_MAX: usize = 2000;

/// Documents whose text is of their date. Their links are checked, their facts are not.
const DATED: [&str; 2] = ["docs/decisions/", "CHANGELOG.md"];

#[test]
fn each_document_has_one_h1() {
    let violations: Vec<_> = documents()
        .iter()
        .map(|document| (document, prose(&document.text)))
        .map(|(document, text)| (document, text.lines().filter(|l| l.starts_with("# ")).count()))
        .filter(|(_, count)| *count != 1)
        .map(|(document, count)| format!("{}: {count} headings of level 1", document.path))
        .collect();
    assert_none("a document has one heading of level 1", &violations);
}

#[test]
fn architecture_is_short() {
    let documents = documents();
    let architecture = documents.iter().find(|document| document.path == "ARCHITECTURE.md");
    let words = architecture.expect("it exists").text.split_whitespace().count();
    assert!(words <= ARCHITECTURE_WORDS_MAX, "{words} words, at most {ARCHITECTURE_WORDS_MAX}");
}

#[test]
fn relative_links_lead_somewhere() {
    let documents = documents();
    let mut violations = Vec::new();
    for document in &documents {
        for link in links(&prose(&document.text)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let path = join(&document.path, path);
            let target = documents.iter().find(|other| other.path == path);
            let is_dead = match target {
                Some(target) => !anchor.is_empty() && !anchors(&target.text).contains(anchor),
                None => !anchor.is_empty() || !root().join(&path).exists(),
            };
            if is_dead {
                violations.push(format!("{}: {link}", document.path));
            }
        }
    }
    assert_none("a relative link leads to a file and to one of its headings", &violations);
}

#[test]
fn each_subject_of_the_system_tests_is_in_the_table() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("it exists");
    let (run, document) = (read("tests/system/run"), read("docs/testing.md"));
    let subjects = run.split("SUBJECTS = [").nth(1).and_then(|rest| rest.split(']').next());
    let subjects = subjects.expect("it lists its subjects").split('"').skip(1).step_by(2);
    let missing = subjects.filter(|name| !document.contains(&format!("\n| `{name}` | ")));
    let violations: Vec<_> = missing.map(str::to_owned).collect();
    assert_none("docs/testing.md describes each subject", &violations);
}

#[test]
fn paths_of_the_repository_exist() {
    const ROOMS: [&str; 8] =
        ["crates/", "src/", "tests/", "bench/", "docs/", "fuzz/", "examples/", "contrib/"];
    let mut violations = Vec::new();
    for document in documents().iter().filter(|document| !is_dated(document)) {
        for code in document.text.split('`').skip(1).step_by(2) {
            let is_path = ROOMS.iter().any(|room| code.starts_with(room))
                && code.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c));
            // The module `x` is the file `x.rs`.
            let exists = |end: &str| root().join(format!("{code}{end}")).exists();
            if is_path && !exists("") && !exists(".rs") {
                violations.push(format!("{}: {code}", document.path));
            }
        }
    }
    assert_none("a path in a document exists", &violations);
}

/// A document names a constant of the code in a comment behind its value, as in
/// `512 KiB<!-- SPLIT_BYTES_MIN -->`, or `<!-- reply_cache::LIFETIME -->` where the name alone is
/// ambiguous.
#[test]
fn documented_constants_have_their_values() {
    let sources: Vec<_> = rust_sources().into_iter().filter(|source| !source.is_test()).collect();
    let (mut violations, mut checked) = (Vec::new(), 0);
    for document in documents() {
        for (at, comment) in document.text.match_indices("<!-- ") {
            let name = document.text[at + comment.len()..].split(" -->").next().unwrap_or("");
            if !is_constant_name(name) {
                continue;
            }
            checked += 1;
            let written = written_value(&document.text[..at]);
            let actual = constant(&sources, name);
            if written.is_none() || written != actual {
                let line = document.text[..at].lines().count();
                let path = &document.path;
                violations.push(format!("{path}:{line}: {name}: {written:?}, not {actual:?}"));
            }
        }
    }
    assert_none("a documented constant has the value it has in the code", &violations);
    assert!(checked > 0, "no document names a constant");
}

/// A count, bytes, or nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Number(u128),
    Time(u128),
}

/// The value at the end of `text`: digits and a unit.
fn written_value(text: &str) -> Option<Value> {
    let text = text.trim_end_matches(['`', '"', '*']);
    let unit_at = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (number, unit) = (text[..unit_at].trim_end_matches([' ', '\n']), &text[unit_at..]);
    let digits_at = number.trim_end_matches(|c: char| c.is_ascii_digit() || c == ',').len();
    let number: u128 = number[digits_at..].replace(',', "").parse().ok()?;
    Some(match unit {
        "KiB" => Value::Number(number << 10),
        "MiB" => Value::Number(number << 20),
        "GiB" => Value::Number(number << 30),
        "ms" | "milliseconds" => Value::Time(number * NANOS_PER_MILLI),
        "s" | "second" | "seconds" => Value::Time(number * NANOS_PER_SECOND),
        "min" | "minute" | "minutes" => Value::Time(number * 60 * NANOS_PER_SECOND),
        _ => Value::Number(number),
    })
}

/// The value of the constant `name`, or `module::name`, if exactly one value has that name.
fn constant(sources: &[Source], name: &str) -> Option<Value> {
    let (module, name) = name.rsplit_once("::").unwrap_or(("", name));
    let is_of_module = |path: &str| {
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let mut parts = path.rsplit('/');
        let mut modules = module.rsplit("::").filter(|part| !part.is_empty());
        modules.next().is_none_or(|last| parts.next() == Some(last))
            && modules.all(|outer| parts.any(|part| part == outer))
    };
    let declaration = format!("const {name}: ");
    let mut values = sources
        .iter()
        .filter(|source| is_of_module(&source.path))
        .flat_map(|source| {
            let text = source.without_unit_tests();
            text.match_indices(&declaration).map(|(at, _)| &text[at + declaration.len()..])
        })
        .map(|rest| {
            let (_, expression) = rest.split_once(" = ")?;
            evaluate(sources, expression.split(';').next()?)
        });
    let value = values.next()??;
    values.all(|other| other == Some(value)).then_some(value)
}

/// A product or a shift of integers and constants, or a `Duration` of one.
fn evaluate(sources: &[Source], expression: &str) -> Option<Value> {
    let expression = expression.trim();
    for (constructor, nanos) in [
        ("Duration::from_secs(", NANOS_PER_SECOND),
        ("Duration::from_millis(", NANOS_PER_MILLI),
        ("ByteSize::from_bytes(", 0),
    ] {
        if let Some(argument) = expression.strip_prefix(constructor) {
            let Value::Number(number) = evaluate(sources, argument.strip_suffix(')')?)? else {
                return None;
            };
            return Some(match nanos {
                0 => Value::Number(number),
                _ => Value::Time(number * nanos),
            });
        }
    }
    if let Some((left, right)) = expression.rsplit_once(" * ") {
        return match (evaluate(sources, left)?, evaluate(sources, right)?) {
            (Value::Number(left), Value::Number(right)) => Some(Value::Number(left * right)),
            _ => None,
        };
    }
    if let Some((left, right)) = expression.split_once(" << ") {
        let Value::Number(left) = evaluate(sources, left)? else { return None };
        return Some(Value::Number(left << right.parse::<u32>().ok()?));
    }
    if is_constant_name(expression) {
        return constant(sources, expression);
    }
    let digits = expression.replace('_', "");
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(Value::Number(number))
}

fn is_constant_name(text: &str) -> bool {
    let name = text.rsplit("::").next().unwrap_or("");
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn is_dated(document: &Source) -> bool {
    DATED.iter().any(|path| document.path.starts_with(path))
}

/// The text without blocks of code and code in a line.
fn prose(text: &str) -> String {
    let mut is_fenced = false;
    let lines: Vec<_> = text
        .lines()
        .filter(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_fenced ^= is_fence;
            !is_fence && !is_fenced && !line.starts_with("    ")
        })
        .collect();
    lines.join("\n").split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The targets of the links in `prose`.
fn links(prose: &str) -> Vec<String> {
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// The anchors of the headings of `text`, made as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
    };
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().chars().filter_map(kept).collect())
        .collect()
}

/// `relative` as it is meant in the document at `path`.
fn join(path: &str, relative: &str) -> String {
    if relative.is_empty() {
        return path.to_owned();
    }
    let mut parts: Vec<_> = path.split('/').collect();
    parts.pop();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

const NANOS_PER_MILLI: u128 = 1_000_000;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[test]
fn values_are_read_from_documents_and_code() {
    let code = "const SPLIT_BYTES_MIN: usize = 512 * KIB;\nconst KIB: usize = 1 << 10;\n\
                pub(crate) const STALL_MAX: Duration = Duration::from_secs(2 * 60);\n";
    let sources = [Source { path: "crates/io/src/plan.rs".to_owned(), text: code.to_owned() }];
    assert_eq!(constant(&sources, "SPLIT_BYTES_MIN"), written_value("from 512 KiB"));
    assert_eq!(constant(&sources, "plan::SPLIT_BYTES_MIN"), Some(Value::Number(512 << 10)));
    assert_eq!(constant(&sources, "other::SPLIT_BYTES_MIN"), None);
    assert_eq!(constant(&sources, "STALL_MAX"), written_value("for 2 minutes"));
    assert_eq!(written_value("- Default: `\"64KiB\"`"), Some(Value::Number(64 << 10)));
    assert_eq!(written_value("at most 16,384"), Some(Value::Number(16384)));
    assert_eq!(written_value("a second"), None);
}
