//! The modules of a crate and what each imports, read from the source with `syn`.
//!
//! Code under `#[cfg(test)]` is left out: a test may use what lies above its subject. An import
//! counts for the module that defines the item, so a re-export on the way changes nothing. A glob
//! counts for all that its module re-exports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemExternCrate, ItemMod, ItemUse, Macro, UseTree, Visibility};

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
    /// The names of the items that it defines.
    items: BTreeSet<String>,
    /// Paths that the module imports or names in full.
    paths: Vec<Names>,
    /// The paths of its `use` declarations, by the names that they bind.
    bindings: BTreeMap<String, Names>,
    /// Those of the bindings that others may import from here.
    exports: BTreeSet<String>,
    /// Modules whose items it imports with a glob.
    globs: Vec<Names>,
}

impl Module {
    /// The path behind a name that the module imports; `use name;` has none.
    fn binding(&self, name: &str) -> Option<&Names> {
        self.bindings.get(name).filter(|path| path.len() > 1 || path[0] != name)
    }
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
    read_source(krate, &source, directory, names);
}

fn read_source(krate: &mut Crate, source: &syn::File, directory: &Path, names: &Names) {
    let mut reader = Reader { krate, directory: directory.to_owned(), names: names.clone() };
    reader.krate.modules.insert(names.clone(), Module::default());
    reader.visit_file(source);
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

    fn note_use(&mut self, tree: &UseTree, mut path: Names, exported: bool) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.note_use(&part.tree, path, exported);
            }
            UseTree::Name(name) => self.bind(None, &name.ident.to_string(), path, exported),
            UseTree::Rename(name) => {
                let new = name.rename.to_string();
                self.bind(Some(new), &name.ident.to_string(), path, exported);
            }
            UseTree::Glob(_) => {
                self.module().globs.push(path.clone());
                self.module().paths.push(path);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.note_use(tree, path.clone(), exported);
                }
            }
        }
    }

    fn bind(&mut self, new: Option<String>, item: &str, mut path: Names, exported: bool) {
        if item != "self" {
            path.push(item.to_owned());
        }
        let name = new.or_else(|| path.last().cloned()).unwrap_or_default();
        if exported {
            self.module().exports.insert(name.clone());
        }
        self.module().bindings.insert(name, path.clone());
        self.module().paths.push(path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Mod(item) => (&item.attrs, None),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Use(item) => (&item.attrs, None),
            _ => (&Vec::new(), None),
        };
        if !attributes.iter().any(is_test) {
            self.module().items.extend(name.map(ToString::to_string));
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
        self.note_use(&item.tree, Vec::new(), !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_item_extern_crate(&mut self, item: &'ast ItemExternCrate) {
        let new = item.rename.as_ref().map(|(_, name)| name.to_string());
        self.bind(new, &item.ident.to_string(), Vec::new(), false);
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
        let text = item.tokens.to_string().replace(" :: ", "::").replace('$', "");
        for declaration in text.split(';').filter_map(|text| Some(text.rsplit_once("use ")?.1)) {
            if let Ok(item) = syn::parse_str::<ItemUse>(&format!("use {declaration};")) {
                self.visit_item_use(&item);
            }
        }
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
            let mut add = |to: ModuleId| {
                if to != from {
                    found.insert((from.clone(), to));
                }
            };
            for path in &module.paths {
                resolve(crates, &from, path, 0).map(&mut add);
            }
            for path in &module.globs {
                let Some(at) = resolve(crates, &from, path, 0) else { continue };
                for name in &crates[&at.krate].modules[&at.names].exports {
                    descend(crates, at.clone(), std::slice::from_ref(name), 0).map(&mut add);
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
            let modules = &crates[&from.krate].modules;
            let is_bound = modules[&from.names].binding(name).is_some()
                || modules.contains_key(&child(&from.names, name));
            if !is_bound && crates.contains_key(name) {
                at = ModuleId { krate: name.to_owned(), names: Names::new() };
            } else {
                return find(crates, from, name, rest, depth);
            }
        }
    }
    descend(crates, at, rest, depth)
}

/// Follows `rest` from the module `at`, through modules and re-exports.
fn descend(crates: &Crates, mut at: ModuleId, rest: &[String], depth: usize) -> Option<ModuleId> {
    let Some((name, behind)) = rest.split_first() else { return Some(at) };
    if name == "super" {
        at.names.pop()?;
        return descend(crates, at, behind, depth);
    }
    find(crates, &at, name, behind, depth).or(Some(at))
}

/// Follows `name` in the module `at`, and `behind` from there; `None` if it is neither a module,
/// nor imported.
fn find(
    crates: &Crates,
    at: &ModuleId,
    name: &str,
    behind: &[String],
    depth: usize,
) -> Option<ModuleId> {
    let modules = &crates[&at.krate].modules;
    let names = child(&at.names, name);
    if modules.contains_key(&names) {
        return descend(crates, ModuleId { krate: at.krate.clone(), names }, behind, depth);
    }
    if depth == REEXPORTS_MAX {
        return None;
    }
    let module = &modules[&at.names];
    if let Some(binding) = module.binding(name) {
        let whole: Names = binding.iter().chain(behind).cloned().collect();
        return resolve(crates, at, &whole, depth + 1);
    }
    // Through a glob comes what its module names: an item that it defines, a module, a re-export.
    module.globs.iter().find_map(|path| {
        let of = resolve(crates, at, path, depth + 1).filter(|of| of != at)?;
        let module = &crates[&of.krate].modules[&of.names];
        if module.items.contains(name) {
            return Some(of);
        }
        find(crates, &of, name, behind, depth + 1)
    })
}

fn child(names: &Names, name: &str) -> Names {
    names.iter().cloned().chain([name.to_owned()]).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The imports of a module `a` with this `text`, in a crate that also has `b`, `b::c` and `d`.
    fn imports_of(text: &str) -> Vec<String> {
        let common = "
            mod b {
                pub struct B;
                pub mod c { pub struct C; }
                pub use crate::d::D;
                pub use self::c::*;
            }
            mod d { pub struct D; pub fn run() {} }
        ";
        let source = syn::parse_file(&format!("{common} mod a {{ {text} }}")).expect("it is Rust");
        let mut krate = Crate::default();
        read_source(&mut krate, &source, Path::new(""), &Vec::new());
        let found = imports(&Crates::from([("x".to_owned(), krate)]));
        let of_a = found.iter().filter(|(from, _)| from.names.starts_with(&["a".to_owned()]));
        of_a.map(|(_, to)| to.to_string()).filter(|to| to != "x::a").collect()
    }

    #[test]
    fn each_form_of_an_import_is_found() {
        for (text, expected) in [
            ("use crate::b::B;", ["x::b"].as_slice()),
            ("use super::b::c::C;", &["x::b::c"]),
            ("use self::super::b::c::C;", &["x::b::c"]),
            ("use crate::{b::B, d::{self}};", &["x::b", "x::d"]),
            ("use crate::b::{self as e}; fn f() -> e::c::C {}", &["x::b", "x::b::c"]),
            ("use super::b as e; fn f(_: e::c::C) {}", &["x::b", "x::b::c"]),
            ("extern crate x as y; fn f() { y::d::run() }", &["x", "x::d"]),
            ("fn f() { crate::d::run() }", &["x::d"]),
            ("fn f() { use super::d::run; }", &["x::d"]),
            ("impl crate::d::D for u8 {}", &["x::d"]),
            ("fn f() -> <crate::d::D as Iterator>::Item {}", &["x::d"]),
            ("mod e { use super::super::d::D; }", &["x::d"]),
        ] {
            assert_eq!(imports_of(text), expected, "{text}");
        }
    }

    #[test]
    fn an_import_counts_for_the_module_that_defines_the_item() {
        assert_eq!(imports_of("use crate::b::D;"), ["x::d"]);
        assert_eq!(imports_of("use crate::b::C;"), ["x::b::c"]);
        assert_eq!(imports_of("use crate::b::*;"), ["x::b", "x::d"]);
        assert_eq!(imports_of("use crate::b::*; fn f() { c::new() }"), ["x::b", "x::b::c", "x::d"]);
    }

    #[test]
    fn paths_in_macros_are_found() {
        assert_eq!(imports_of("fn f() { println!(\"{}\", crate::d::run()) }"), ["x::d"]);
        assert_eq!(imports_of("macro_rules! m { () => { $crate::d::run() } }"), ["x::d"]);
        let text = "fn f() { m! { { use super::{b::c::C, d::D}; C } } }";
        assert_eq!(imports_of(text), ["x", "x::b::c", "x::d"]);
    }

    #[test]
    fn tests_may_import_anything() {
        assert!(imports_of("#[cfg(test)] mod tests { use crate::d::D; }").is_empty());
        assert!(imports_of("#[cfg(all(test, shuttle))] use crate::d::D;").is_empty());
        assert_eq!(imports_of("#[cfg(any(test, fuzzing))] use crate::d::D;"), ["x::d"]);
    }
}
