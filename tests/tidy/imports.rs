//! No circle between modules, and no import that the table in ARCHITECTURE.md does not allow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use crate::modules::{Crates, ModuleId, imports, read_crate};
use crate::table::Table;

/// A circle that is not untied yet: names of modules of one folder. The list may only shrink.
const KNOWN_CIRCLES: &[&str] = &["io::write_behind::file io::write_behind::shared"];

static ROOT: LazyLock<&Path> = LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")));

/// All crates of the workspace; the program itself is `src`.
static CRATES: LazyLock<Crates> = LazyLock::new(|| {
    let mut crates = Crates::new();
    for entry in std::fs::read_dir(ROOT.join("crates")).expect("the workspace has crates") {
        let entry = entry.expect("a directory that can be listed");
        let name = entry.file_name().into_string().expect("a name in UTF-8");
        crates.insert(name, read_crate(&entry.path().join("src/lib.rs")));
    }
    crates.insert("src".to_owned(), read_crate(&ROOT.join("src/main.rs")));
    crates
});

static IMPORTS: LazyLock<BTreeSet<(ModuleId, ModuleId)>> = LazyLock::new(|| imports(&CRATES));

/// The imports between the modules that stand directly in one folder, with what lies in them.
type Siblings = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_import_each_other_in_no_circle() {
    let mut folders: BTreeMap<String, Siblings> = BTreeMap::new();
    for (from, to) in IMPORTS.iter().filter(|(from, to)| from.krate == to.krate) {
        let common = from.names.iter().zip(&to.names).take_while(|(a, b)| a == b).count();
        // One lies in the other: a folder uses its parts, and they use what it defines for all.
        let (Some(a), Some(b)) = (from.names.get(common), to.names.get(common)) else { continue };
        let folder = ModuleId { krate: from.krate.clone(), names: from.names[..common].to_vec() };
        let siblings = folders.entry(folder.to_string()).or_default();
        siblings.entry(a.clone()).or_default().insert(b.clone());
        siblings.entry(b.clone()).or_default();
    }
    let known: Vec<BTreeSet<&str>> =
        KNOWN_CIRCLES.iter().map(|line| line.split_whitespace().collect()).collect();
    let mut circles = Vec::new();
    for (folder, siblings) in &folders {
        for circle in circles_of(siblings) {
            let names: Vec<_> = circle.iter().map(|name| format!("{folder}::{name}")).collect();
            let is_known =
                |known: &BTreeSet<&str>| names.iter().all(|n| known.contains(n.as_str()));
            if !known.iter().any(is_known) {
                circles.push(names.join(" "));
            }
        }
    }
    assert!(circles.is_empty(), "modules that import each other:\n{}", circles.join("\n"));
}

/// The groups of modules each of which reaches all others of its group.
fn circles_of(siblings: &Siblings) -> BTreeSet<BTreeSet<String>> {
    let reach = |start: &String| {
        let mut seen = BTreeSet::new();
        let mut unread = vec![start];
        while let Some(next) = unread.pop() {
            for to in siblings[next].iter() {
                if seen.insert(to.clone()) {
                    unread.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        siblings.keys().map(|name| (name, reach(name))).collect();
    let circle = |name: &String| -> BTreeSet<String> {
        reached[name].iter().filter(|other| reached[*other].contains(name)).cloned().collect()
    };
    siblings.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn imports_are_those_that_the_architecture_allows() {
    let text = std::fs::read_to_string(ROOT.join("ARCHITECTURE.md")).expect("it is in the project");
    let table = Table::parse(&text, &CRATES);
    let mut wrong: BTreeSet<String> = BTreeSet::new();
    for (from, to) in IMPORTS.iter() {
        if let Err(why) = table.check(from, to) {
            wrong.insert(why);
        }
    }
    let wrong: Vec<_> = wrong.into_iter().collect();
    assert!(
        wrong.is_empty(),
        "against \"Who may import whom\" in ARCHITECTURE.md:\n{}",
        wrong.join("\n")
    );
}
