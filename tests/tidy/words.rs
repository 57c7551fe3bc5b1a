//! Words: the English of CONTRIBUTING.md in comments, names, messages and documents.

use crate::{Source, assert_none, documents, files, rust_sources};

/// Words that stand for the field's own, and what to write.
const FORBIDDEN: &[(&str, &str)] = &[
    ("whoever", "name the client, thread or caller"),
    ("nobody", "name it: no client, no other task"),
    ("somebody", "name it: another client, a local process"),
    ("told", "reported, returned, passed, notified"),
    ("tells", "reports, returns, shows, distinguishes"),
    ("says", "reports, specifies, means, is"),
    ("for who", "for the client that"),
    ("fixme", "repair it, or describe the limit"),
    ("todo", "do it, or describe the limit"),
];

#[test]
fn forbidden_words_are_not_used() {
    assert_none("a word that CONTRIBUTING.md forbids", &uses_of(checked().iter()));
}

/// Sources and documents whose English is checked. Decisions and records are of their date; this
/// file lists the words, and CONTRIBUTING.md shows them.
fn checked() -> Vec<Source> {
    let mut sources = rust_sources();
    sources.extend(documents());
    sources.extend(files("", "py"));
    sources.retain(|source| {
        !["docs/decisions/", "CONTRIBUTING.md", "tests/tidy/words.rs"]
            .iter()
            .any(|unchecked| source.path.starts_with(unchecked))
    });
    sources
}

/// The uses of forbidden words, as `path:line: word: what to write`.
fn uses_of<'a>(sources: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let mut uses = Vec::new();
    for source in sources {
        for (line, text) in source.text.lines().enumerate() {
            let text = text.to_ascii_lowercase();
            for (word, instead) in FORBIDDEN {
                let count =
                    text.match_indices(word).filter(|(at, _)| is_use(&text, *at, word)).count();
                let use_ = format!("{}:{}: {word}: {instead}", source.path, line + 1);
                uses.extend(std::iter::repeat_n(use_, count));
            }
        }
    }
    uses
}

/// A comment begins with its subject: a noun of the RFC, of the kernel or of the code.
#[test]
fn no_comment_begins_with_what_or_who() {
    let mut violations = Vec::new();
    for source in rust_sources() {
        let lines = source.text.lines().enumerate();
        let without = lines.filter(|(_, text)| lacks_subject(text));
        violations.extend(without.map(|(line, _)| format!("{}:{}", source.path, line + 1)));
    }
    assert_none("a comment's first word is its subject, not `What` or `Who`", &violations);
}

fn lacks_subject(line: &str) -> bool {
    let comment = line.trim_start().strip_prefix("//");
    let words = comment.map(|comment| comment.trim_start_matches(['/', '!']).trim_start());
    words.is_some_and(|words| words.starts_with("What ") || words.starts_with("Who "))
}

#[test]
fn comments_without_a_subject_are_found() {
    let bad = ["/// What is measured.", "    //! What a client owes.", "// Who waits for it."];
    let good = ["/// The loads.", "    /// Whatever", "let what = 1; // What", "//", "/// Whose"];
    assert!(bad.into_iter().all(lacks_subject));
    assert!(!good.into_iter().any(lacks_subject));
}

/// Whether the word at `at` is a word of a sentence or of a name, and neither a part of a longer
/// word nor quoted, as the user `nobody` is.
fn is_use(text: &str, at: usize, word: &str) -> bool {
    let (before, after) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric());
    let is_quote = |c: Option<char>| c.is_some_and(|c| c == '`' || c == '"');
    let (is_part, is_quoted) =
        (is_letter(before) || is_letter(after), is_quote(before) && is_quote(after));
    !is_part && !is_quoted
}

#[test]
fn words_are_found_in_sentences_and_names() {
    let text = "fn a_client_is_told() // `nobody` Whoever foretold retold_told";
    let sources = [Source { path: "a.rs".to_owned(), text: text.to_owned() }];
    let uses = uses_of(sources.iter());
    assert_eq!(uses.len(), 3, "{uses:?}");
}

/// A panic while a lock is held ends one call. If the next one panicked over the poison, it would
/// end the server.
#[test]
fn locks_ignore_poison() {
    let mut violations = Vec::new();
    for source in rust_sources().iter().filter(|source| !source.is_test()) {
        for (line, text) in source.without_unit_tests().lines().enumerate() {
            if text.contains(".lock().expect(") || text.contains(".lock().unwrap()") {
                violations.push(format!("{}:{}", source.path, line + 1));
            }
        }
    }
    assert_none("a lock is taken with `unwrap_or_else(PoisonError::into_inner)`", &violations);
}
