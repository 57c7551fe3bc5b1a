//! The table "Who may import whom" of ARCHITECTURE.md.
//!
//! Only what stands in code spans counts: in the first column the modules that a row is about, in
//! the second what they may import. `server::{nfs3, mount3}` means two modules, and a name without
//! a crate a module of the row's own crate. A name stands for all that lies in it. Of several rows
//! that a module lies in, the one that names it most closely holds.

use crate::modules::{Crates, ModuleId};

const HEADING: &str = "## Who may import whom";

pub(crate) struct Table {
    rows: Vec<Row>,
}

struct Row {
    module: ModuleId,
    imports: Vec<ModuleId>,
}

impl Table {
    /// Reads the table in `text`.
    pub(crate) fn parse(text: &str, crates: &Crates) -> Self {
        let (_, section) = text.split_once(HEADING).expect("ARCHITECTURE.md has the section");
        let lines = section.lines().skip_while(|line| !line.starts_with('|'));
        let mut rows = Vec::new();
        for line in lines.take_while(|line| line.starts_with('|')).skip(2) {
            let mut columns = line.trim_matches('|').split('|');
            let (modules, imports) = (columns.next(), columns.next());
            let (modules, imports) = (names(modules, None, crates), imports);
            for module in modules {
                let imports = names(imports, Some(&module.krate), crates);
                rows.push(Row { module, imports });
            }
        }
        assert!(!rows.is_empty(), "the section {HEADING:?} has no table");
        Self { rows }
    }

    /// Whether the module `from` may import from `to`.
    pub(crate) fn check(&self, from: &ModuleId, to: &ModuleId) -> Result<(), String> {
        // The root of a crate declares its modules and exports them.
        if from.names.is_empty() && from.krate == to.krate {
            return Ok(());
        }
        let Some(row) = self.row(from) else { return Err(format!("{from} is in no row")) };
        let own =
            to.lies_in(&row.module) && self.row(to).is_some_and(|other| other.module == row.module);
        if own || row.imports.iter().any(|allowed| to.lies_in(allowed)) {
            return Ok(());
        }
        Err(format!("{from} imports {to}, and {} may not", row.module))
    }

    fn row(&self, module: &ModuleId) -> Option<&Row> {
        let rows = self.rows.iter().filter(|row| module.lies_in(&row.module));
        rows.max_by_key(|row| row.module.names.len())
    }
}

/// The modules that the code spans of a cell name.
fn names(cell: Option<&str>, own: Option<&str>, crates: &Crates) -> Vec<ModuleId> {
    let spans = cell.unwrap_or_default().split('`').skip(1).step_by(2);
    let names = spans.flat_map(|span| match span.split_once('{') {
        None => vec![span.to_owned()],
        Some((before, list)) => {
            let list = list.trim_end_matches('}').split(',');
            list.map(|name| format!("{before}{}", name.trim())).collect()
        }
    });
    names.map(|name| module(&name, own, crates)).collect()
}

fn module(name: &str, own: Option<&str>, crates: &Crates) -> ModuleId {
    let mut names: Vec<String> =
        name.trim_end_matches('/').split("::").map(str::to_owned).collect();
    let krate = match own {
        Some(own) if !crates.contains_key(&names[0]) => own.to_owned(),
        _ => names.remove(0),
    };
    let module = ModuleId { krate, names };
    let known = crates.get(&module.krate).is_some_and(|krate| krate.has(&module.names));
    assert!(known, "the table in ARCHITECTURE.md names `{name}`, and there is no such module");
    module
}
