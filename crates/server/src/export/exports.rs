//! The exports that are served now, with their directories, and the gate to the objects in them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use io::{IoPolicy, KernelHandle};

use super::table::{Access, Denied, Export, ExportTable, Flavor, Peer};
use super::{ExportRoot, FileHandle, FileSystems, PseudoRoot};
use crate::counters::Counters;
use crate::fs::Status;

/// One generation of the configuration: policy, and the directory behind each export.
pub(crate) struct Exports {
    pub(crate) table: Arc<ExportTable>,
    file_systems: Arc<FileSystems>,
    roots: BTreeMap<u32, (PathBuf, Arc<ExportRoot>)>,
    /// The directories above them.
    pub(crate) pseudo_root: PseudoRoot,
}

/// An export's directory that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {} as {name}: {error}", path.display())]
pub struct ExportError {
    /// The name clients would mount.
    pub name: String,
    /// The directory.
    pub path: PathBuf,
    /// The error of opening it.
    pub error: std::io::Error,
}

impl Exports {
    /// Opens the directories of `table`. One that an earlier generation has open under the same id
    /// is taken over, by whatever path it is found now, and so is the state of file systems.
    ///
    /// # Errors
    /// The first directory that cannot be served, or is not there any more.
    pub(crate) fn open(
        table: Arc<ExportTable>,
        earlier: Option<&Self>,
        counters: &Counters,
    ) -> Result<Self, ExportError> {
        let file_systems =
            earlier.map_or_else(Arc::default, |earlier| Arc::clone(&earlier.file_systems));
        let mut roots = BTreeMap::new();
        for export in table.iter() {
            let known = earlier.and_then(|earlier| earlier.roots.get(&export.id));
            let root = open_root(export, &file_systems, counters)?;
            let root = match known {
                Some((_, known)) if known.is_same_directory(&root) => Arc::clone(known),
                Some(_) | None => {
                    warn_of_fallback(export, &root);
                    Arc::new(root)
                }
            };
            roots.insert(export.id, (export.path.clone(), root));
        }
        for export in table.iter() {
            roots[&export.id].1.set_name(&export.name);
        }
        let pseudo_root = PseudoRoot::new(&table);
        Ok(Self { table, file_systems, roots, pseudo_root })
    }

    /// The same directories with another table of the same exports.
    ///
    /// # Panics
    /// The table has an export that this one does not have.
    pub(crate) fn with_table(&self, table: Arc<ExportTable>) -> Self {
        let is_known = |export: &Arc<Export>| self.roots.contains_key(&export.id);
        assert!(table.iter().all(is_known), "only the settings of exports differ");
        let (file_systems, roots) = (Arc::clone(&self.file_systems), self.roots.clone());
        let pseudo_root = PseudoRoot::new(&table);
        Self { table, file_systems, roots, pseudo_root }
    }

    /// Gives up the directories of an earlier generation that this one does not serve. Returns what
    /// to say of those whose path leads to another directory now.
    pub(crate) fn replace(&self, earlier: &Self) -> Vec<String> {
        let mut replaced = Vec::new();
        for (id, (path, root)) in &earlier.roots {
            let now = self.roots.get(id);
            if now.is_some_and(|(_, now)| Arc::ptr_eq(now, root)) {
                continue;
            }
            root.retire();
            if now.is_some_and(|(now, _)| now == path)
                && let Some(export) = self.table.by_id(*id)
            {
                let export = &export.name;
                tracing::info!(
                    export,
                    path = %path.display(),
                    "the path leads to another directory now, which is served in place of the old one"
                );
                replaced.push(format!("another directory behind {export}"));
            }
        }
        replaced
    }

    /// The gate: every operation of every program comes through here.
    ///
    /// # Errors
    /// [`Denied`] for a peer that the export does not admit.
    pub(crate) fn admit<'a>(
        &'a self,
        export: &'a Export,
        peer: &Peer,
        flavor: Flavor,
    ) -> Result<Admitted<'a>, Denied> {
        let access = export.admit(peer, flavor)?;
        Ok(Admitted { export, root: self.root(export), access })
    }

    /// Whether the exports lie on several devices.
    pub(crate) fn are_on_several_devices(&self) -> bool {
        let mut devices = self.roots.values().map(|(_, root)| root.device());
        let first = devices.next();
        devices.any(|device| Some(device) != first)
    }

    /// The root of an export of this generation.
    pub(crate) fn root(&self, export: &Export) -> &Arc<ExportRoot> {
        &self.roots[&export.id].1
    }
}

/// A peer that passed the gate of an export. Only [`Exports::admit`] makes one, and an [`Object`]
/// comes from it alone: no operation reaches an object past the gate.
pub(crate) struct Admitted<'a> {
    export: &'a Export,
    root: &'a Arc<ExportRoot>,
    access: Access,
}

impl Admitted<'_> {
    /// The rights of the peer, and the user that it acts as.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The root of the export.
    pub(crate) fn root(&self) -> Object {
        self.below(self.root.handle)
    }

    /// The object behind an authentic handle.
    ///
    /// # Errors
    /// `Stale` if the handle belongs to another directory that was exported under the same id.
    pub(crate) fn object(&self, handle: &FileHandle) -> Result<Object, Status> {
        if handle.tree == self.root.tree {
            Ok(self.below(handle.kernel))
        } else {
            Err(Status::Stale)
        }
    }

    fn below(&self, handle: KernelHandle) -> Object {
        let Export { sync, file_sync_writes, policy, limits, .. } = *self.export;
        let (root, is_limited) = (Arc::clone(self.root), limits.are_set());
        Object { root, handle, sync, file_sync_writes, policy, is_limited }
    }
}

/// An object that an authentic handle of a served export names, to a peer that the export admits.
#[derive(Clone)]
pub(crate) struct Object {
    root: Arc<ExportRoot>,
    handle: KernelHandle,
    /// Metadata operations are durable before they are answered.
    pub(crate) sync: bool,
    /// Each WRITE is FILE_SYNC.
    pub(crate) file_sync_writes: bool,
    /// How READs and WRITEs treat the page cache.
    pub(crate) policy: IoPolicy,
    /// The export has limits of calls or bytes.
    pub(crate) is_limited: bool,
}

impl Object {
    /// The export's root.
    pub(crate) fn root(&self) -> &Arc<ExportRoot> {
        &self.root
    }

    /// The kernel's handle.
    pub(crate) fn handle(&self) -> &KernelHandle {
        &self.handle
    }

    /// Another object of the same export, which an operation on this one found.
    pub(crate) fn found(&self, handle: KernelHandle) -> Self {
        Self { handle, ..self.clone() }
    }
}

fn open_root(
    export: &Export,
    file_systems: &FileSystems,
    counters: &Counters,
) -> Result<ExportRoot, ExportError> {
    let error = |error| ExportError { name: export.name.clone(), path: export.path.clone(), error };
    let counters = counters.of_export(export.id);
    ExportRoot::open_path(export.id, &export.path, file_systems, counters).map_err(error)
}

fn warn_of_fallback(export: &Export, root: &ExportRoot) {
    if !root.opens_by_handle() {
        tracing::warn!(
            export = export.name,
            "cannot open file handles here (CAP_DAC_READ_SEARCH is missing, or the file system does \
             not support them): serving by remembered paths"
        );
    }
}
