//! The keys of the configuration file, options of URLs, events of mounts, and their descriptions.

use std::collections::BTreeSet;
use std::fs;

use client::trace::Event;
use syn::{Fields, Item};

use crate::{assert_none, root};

/// The structures that the file is read into, and the section of the document that describes each.
const TABLES: [(&str, &str); 3] = [
    ("RawConfig", "Global keys"),
    ("RawExport", "Exports: `[[export]]`"),
    ("RawClient", "Client rules: `[[export.client]]`"),
];

/// The fields that hold tables, which have sections of their own.
const NESTED: [&str; 2] = ["exports", "clients"];

#[test]
fn each_key_of_the_configuration_file_is_described() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("it exists");
    let source = syn::parse_file(&read("crates/server/src/config/raw.rs")).expect("it is Rust");
    let document = read("docs/configuration.md");
    let mut violations = Vec::new();
    for (structure, section) in TABLES {
        let (keys, described) = (fields(&source, structure), headings(&document, section));
        assert!(!keys.is_empty(), "no structure {structure}");
        violations.extend(keys.difference(&described).map(|key| format!("{key}: not described")));
        violations.extend(described.difference(&keys).map(|key| format!("{key}: no such key")));
    }
    assert_none("docs/configuration.md describes each key in its section", &violations);
}

#[test]
fn each_option_of_a_url_is_described() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("it exists");
    let (source, document) = (read("crates/client/src/nfs_url.rs"), read("README.md"));
    let (_, arms) = source.split_once("        match name {\n").expect("it reads options");
    let (arms, _) = arms.split_once("            _ =>").expect("the others are refused");
    let arms = arms.lines().filter_map(|arm| arm.trim().strip_prefix('"'));
    let names: BTreeSet<_> = arms.filter_map(|arm| arm.split('"').next()).collect();
    assert!(names.contains("nfsport"), "{names:?}");
    let is_described = |name: &&str| document.contains(&format!("`{name}="));
    let violations: Vec<_> =
        names.into_iter().filter(|name| !is_described(name)).map(str::to_owned).collect();
    assert_none("README.md describes each option of a URL", &violations);
}

#[test]
fn each_trace_event_of_a_mount_is_described() {
    let document = fs::read_to_string(root().join("docs/mount.md")).expect("it exists");
    let lines = document.lines().skip_while(|line| *line != "## Trace events").skip(1);
    let rows = lines.take_while(|line| !line.starts_with("## ")).filter(|l| l.starts_with("| `"));
    let described: BTreeSet<_> =
        rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`')).collect();
    let missing = Event::ALL.iter().map(|event| event.name()).filter(|e| !described.contains(e));
    let violations: Vec<_> = missing.map(str::to_owned).collect();
    assert_none("docs/mount.md describes each trace event", &violations);
}

/// The names of the fields of `structure` but for [`NESTED`].
fn fields(source: &syn::File, structure: &str) -> BTreeSet<String> {
    let structures = source.items.iter().filter_map(|item| match item {
        Item::Struct(item) if item.ident == structure => Some(&item.fields),
        _ => None,
    });
    structures
        .filter_map(|fields| match fields {
            Fields::Named(fields) => Some(&fields.named),
            _ => None,
        })
        .flatten()
        .filter_map(|field| field.ident.as_ref().map(ToString::to_string))
        .filter(|name| !NESTED.contains(&name.as_str()))
        .collect()
}

/// The keys that headings of level 3 within the section of level 2 name.
fn headings(document: &str, section: &str) -> BTreeSet<String> {
    let lines = document.lines().skip_while(|line| line.strip_prefix("## ") != Some(section));
    lines
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("### "))
        .flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned))
        .collect()
}
