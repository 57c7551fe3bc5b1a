//! The modules of a crate and what each imports, read from the source with `syn`.
//!
//! Code under `#[cfg(test)]` is left out: a test may use what lies above its subject. An import
//! counts for the module that defines the item, so a re-export on the way changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, UseTree};

/// A path in the source: `["crate", "fs", "Status"]`, or the names of a module below its crate.
pub(crate) type Names = Vec<String>;

/// The crates of the workspace by the name that the source uses.
pub(crate) type Crates = BTreeMap<String, Crate>;

/// The modules of one crate by their names below it; its root has none.
#[derive(Default)]
pub(crate) struct Crate {
    modules: BTreeMap<Names, Module>,
}

#[derive(Default)]
struct Module {
    /// Paths that the module imports or names in full.
    paths: Vec<Names>,
    /// What its `use` declarations call things.
    bindings: BTreeMap<String, Names>,
    /// Modules whose items it imports with a glob.
    globs: Vec<Names>,
}

/// A module of the workspace: its crate and the names below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModuleId {
    pub(crate) krate: String,
    pub(crate) names: Names,
}

/// Re-exports that are followed to the definition of one name.
const REEXPORTS_MAX: usize = 8;

/// Reads the crate whose root is `file`.
pub(crate) fn read_crate(file: &Path) -> Crate {
    let mut krate = Crate::default();
    let directory = file.parent().expect("a file lies in a directory");
    read_module(&mut krate, file, directory, &Vec::new());
    krate
}

/// Reads the module `names` from `file`; the files of its children are in `directory`.
fn read_module(krate: &mut Crate, file: &Path, directory: &Path, names: &Names) {
    let text = std::fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
    let source = syn::parse_file(&text)
        .unwrap_or_else(|error| panic!("cannot parse {}: {error}", file.display()));
    let mut reader = Reader { krate, directory: directory.to_owned(), names: names.clone() };
    reader.krate.modules.insert(names.clone(), Module::default());
    reader.visit_file(&source);
}

/// Collects the paths of one module.
struct Reader<'a> {
    krate: &'a mut Crate,
    directory: PathBuf,
    names: Names,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        self.krate.modules.entry(self.names.clone()).or_default()
    }

    fn note_use(&mut self, tree: &UseTree, mut path: Names) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.note_use(&part.tree, path);
            }
            UseTree::Name(name) => {
                self.bind(&name.ident.to_string(), &name.ident.to_string(), path)
            }
            UseTree::Rename(name) => {
                self.bind(&name.rename.to_string(), &name.ident.to_string(), path);
            }
            UseTree::Glob(_) => {
                self.module().globs.push(path.clone());
                self.module().paths.push(path);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.note_use(tree, path.clone());
                }
            }
        }
    }

    fn bind(&mut self, name: &str, item: &str, mut path: Names) {
        let mut name = name.to_owned();
        if item == "self" {
            name = path.last().cloned().unwrap_or_default();
        } else {
            path.push(item.to_owned());
        }
        self.module().bindings.insert(name, path.clone());
        self.module().paths.push(path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !attributes.iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let name = item.ident.to_string();
        let mut names = self.names.clone();
        names.push(name.clone());
        let directory = self.directory.join(&name);
        match &item.content {
            Some((_, items)) => {
                let outer = std::mem::replace(&mut self.names, names);
                let outer_directory = std::mem::replace(&mut self.directory, directory);
                self.module();
                for item in items {
                    self.visit_item(item);
                }
                (self.names, self.directory) = (outer, outer_directory);
            }
            None => {
                let flat = self.directory.join(format!("{name}.rs"));
                let file = if flat.exists() { flat } else { directory.join("mod.rs") };
                read_module(self.krate, &file, &directory, &names);
            }
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_use(&item.tree, Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.module().paths.push(names);
        }
        visit::visit_path(self, path);
    }

    /// The arguments of a macro have no syntax of their own: their paths are found in the text.
    fn visit_macro(&mut self, item: &'ast Macro) {
        let text = item.tokens.to_string().replace(" :: ", "::");
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        for path in words.filter(|word| word.contains("::")) {
            let names = path.split("::").filter(|name| !name.is_empty());
            let names = names.map(str::to_owned).collect();
            self.module().paths.push(names);
        }
        self.visit_path(&item.path);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// Whether an item is compiled for tests alone: `#[cfg(test)]`, `#[cfg(all(test, …))]`.
fn is_test(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let text = list.tokens.to_string();
    attribute.path().is_ident("cfg") && (text == "test" || text.starts_with("all (test"))
}

/// Every import from one module of the workspace to another.
pub(crate) fn imports(crates: &Crates) -> BTreeSet<(ModuleId, ModuleId)> {
    let mut found = BTreeSet::new();
    for (name, krate) in crates {
        for (names, module) in &krate.modules {
            let from = ModuleId { krate: name.clone(), names: names.clone() };
            for path in &module.paths {
                if let Some(to) = resolve(crates, &from, path, 0).filter(|to| *to != from) {
                    found.insert((from.clone(), to));
                }
            }
        }
    }
    found
}

/// The module that a path in `from` leads to; `None` outside of the workspace.
fn resolve(crates: &Crates, from: &ModuleId, path: &[String], depth: usize) -> Option<ModuleId> {
    let (first, mut rest) = path.split_first()?;
    let mut at = from.clone();
    match first.as_str() {
        "crate" => at.names.clear(),
        "self" => {}
        "super" => {
            at.names.pop()?;
            while let Some((_, behind)) = rest.split_first().filter(|(next, _)| *next == "super") {
                at.names.pop()?;
                rest = behind;
            }
        }
        name => {
            let module = &crates[&from.krate].modules[&from.names];
            let mut child = from.names.clone();
            child.push(name.to_owned());
            if let Some(binding) = module.bindings.get(name).filter(|b| b.as_slice() != path) {
                if depth == REEXPORTS_MAX {
                    return None;
                }
                let whole: Names = binding.iter().chain(rest).cloned().collect();
                return resolve(crates, from, &whole, depth + 1);
            } else if crates[&from.krate].modules.contains_key(&child) {
                at.names = child;
            } else if crates.contains_key(name) {
                at = ModuleId { krate: name.to_owned(), names: Names::new() };
            } else {
                return None;
            }
        }
    }
    descend(crates, at, rest, depth)
}

/// Follows `rest` from the module `at`, through modules and re-exports.
fn descend(crates: &Crates, mut at: ModuleId, rest: &[String], depth: usize) -> Option<ModuleId> {
    for (index, name) in rest.iter().enumerate() {
        let modules = &crates[&at.krate].modules;
        let mut child = at.names.clone();
        child.push(name.clone());
        if modules.contains_key(&child) {
            at.names = child;
            continue;
        }
        let module = &modules[&at.names];
        if let Some(binding) = module.bindings.get(name).filter(|_| depth < REEXPORTS_MAX) {
            let whole: Names = binding.iter().chain(&rest[index + 1..]).cloned().collect();
            return resolve(crates, &at, &whole, depth + 1).or(Some(at));
        }
        return Some(at);
    }
    Some(at)
}

impl Crate {
    /// Whether there is a module of these names.
    pub(crate) fn has(&self, names: &[String]) -> bool {
        self.modules.contains_key(names)
    }
}

impl ModuleId {
    /// Whether this is `other` or lies in it.
    pub(crate) fn lies_in(&self, other: &Self) -> bool {
        self.krate == other.krate && self.names.starts_with(&other.names)
    }
}

impl fmt::Display for ModuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.krate)?;
        self.names.iter().try_for_each(|name| write!(f, "::{name}"))
    }
}
