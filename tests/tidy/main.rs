//! The rules of CONTRIBUTING.md that no compiler and no lint checks, held against the files of the
//! repository; that the tests in Python fail when they should, and that killed tests leave nothing.

mod documents;
mod harnesses;
mod imports;
mod isolation;
mod keys;
mod lengths;
mod metrics;
mod modules;
#[path = "../skip/mod.rs"]
mod skip;
mod skips;
mod table;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the repository.
struct Source {
    /// Its path below the root of the repository, with `/` between the parts.
    path: String,
    text: String,
}

impl Source {
    /// The text up to the unit tests at the foot of the file.
    fn without_unit_tests(&self) -> &str {
        self.text.find("\n#[cfg(test)]\nmod tests {").map_or(&self.text, |at| &self.text[..=at])
    }

    /// Whether the file holds tests only.
    fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        self.path.starts_with("tests/")
            || ["/tests/", "/tests.rs", "/simulated"].iter().any(|part| self.path.contains(part))
            || name == "interleavings.rs"
    }
}

/// All Rust sources, in the order of their paths.
fn rust_sources() -> Vec<Source> {
    ["crates", "src", "tests", "examples", "fuzz"].iter().flat_map(|dir| files(dir, "rs")).collect()
}

/// All Markdown documents, in the order of their paths.
fn documents() -> Vec<Source> {
    files("", "md")
}

/// The files below `directory` whose names end in `.extension`, without what is built or hidden.
fn files(directory: &str, extension: &str) -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root().join(directory), extension, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(directory: &Path, extension: &str, found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.map(|entry| entry.expect("a directory of the repository is readable")) {
        let (path, name) = (entry.path(), entry.file_name());
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if path.is_dir() {
            if !is_hidden && name != "target" && name != "__pycache__" {
                collect(&path, extension, found);
            }
        } else if path.extension().is_some_and(|own| own == extension) {
            let text = fs::read_to_string(&path).expect("a source is UTF-8");
            let path = path.strip_prefix(root()).expect("it was found below the root");
            found.push(Source { path: path.to_string_lossy().into_owned(), text });
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Fails with all `violations`, if there are any, under the `rule` that they break.
fn assert_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}\n", violations.join("\n  "));
}
