//! The exports that are served now, with their directories, and the gate to the objects in them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use io::{IoPolicy, KernelHandle};

use super::table::{Access, Denied, Export, ExportTable, Flavor, Peer};
use super::{ExportRoot, FileHandle, FileSystems, PseudoRoot};
use crate::counters::Counters;
use crate::fs::Status;

/// One generation of the configuration: policy, and the directory behind each export.
pub(crate) struct Exports {
    pub(crate) table: Arc<ExportTable>,
    file_systems: Arc<FileSystems>,
    roots: BTreeMap<u32, (PathBuf, Arc<Served>)>,
    /// Those that this generation does not serve, until the calls in them have ended.
    left: Vec<Weak<Served>>,
    /// The directories above them.
    pub(crate) pseudo_root: Arc<PseudoRoot>,
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
    /// is taken over, by whatever path it is found now, and so is the state of file systems. So is
    /// one that was given up with calls at work in it: opens and locks in it are those of the
    /// directory that is served again, and must not end with the calls.
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
            let root = open_root(export, &file_systems, counters)?;
            let mut known = earlier.into_iter().flat_map(|earlier| earlier.known(export.id));
            let same = known.find(|known| known.0.is_same_directory(&root));
            let root = same.unwrap_or_else(|| {
                warn_of_fallback(export, &root);
                Arc::new(Served(Arc::new(root)))
            });
            roots.insert(export.id, (export.path.clone(), root));
        }
        for export in table.iter() {
            roots[&export.id].1.0.set_name(&export.name);
        }
        let left = earlier.map_or_else(Vec::new, |earlier| earlier.left_by(&roots));
        let pseudo_root = Arc::new(PseudoRoot::new(&table));
        Ok(Self { table, file_systems, roots, left, pseudo_root })
    }

    /// The roots of an export that calls can reach.
    fn known(&self, id: u32) -> impl Iterator<Item = Arc<Served>> {
        let served = self.roots.get(&id).map(|(_, root)| Arc::clone(root));
        let left = self.left.iter().filter_map(Weak::upgrade);
        served.into_iter().chain(left.filter(move |root| root.0.id == id))
    }

    /// The roots that calls can reach, without those that are among `served`.
    fn left_by(&self, served: &BTreeMap<u32, (PathBuf, Arc<Served>)>) -> Vec<Weak<Served>> {
        let now = self.roots.values().map(|(_, root)| Arc::clone(root));
        let known = now.chain(self.left.iter().filter_map(Weak::upgrade));
        let is_served = |root: &Arc<Served>| {
            served.get(&root.0.id).is_some_and(|(_, served)| Arc::ptr_eq(served, root))
        };
        known.filter(|root| !is_served(root)).map(|root| Arc::downgrade(&root)).collect()
    }

    /// The same directories with another table of the same exports.
    ///
    /// # Panics
    /// The table has an export that this one does not have.
    pub(crate) fn with_table(&self, table: Arc<ExportTable>) -> Self {
        let is_known = |export: &Arc<Export>| self.roots.contains_key(&export.id);
        assert!(table.iter().all(is_known), "only the settings of exports differ");
        let (file_systems, roots) = (Arc::clone(&self.file_systems), self.roots.clone());
        let left = self.left.clone();
        let pseudo_root = Arc::new(PseudoRoot::new(&table));
        Self { table, file_systems, roots, left, pseudo_root }
    }

    /// Logs and returns the exports of an earlier generation whose path leads to another directory
    /// now.
    pub(crate) fn replaced(&self, earlier: &Self) -> Vec<String> {
        let mut replaced = Vec::new();
        for (id, (path, root)) in &earlier.roots {
            let now = self.roots.get(id);
            if now.is_some_and(|(_, now)| Arc::ptr_eq(now, root)) {
                continue;
            }
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
        Ok(Admitted { export, root: &self.roots[&export.id].1, access })
    }

    /// Whether the exports lie on several devices.
    pub(crate) fn are_on_several_devices(&self) -> bool {
        let mut devices = self.roots.values().map(|(_, root)| root.0.device());
        let first = devices.next();
        devices.any(|device| Some(device) != first)
    }

    /// The root of an export of this generation.
    pub(crate) fn root(&self, export: &Export) -> &Arc<ExportRoot> {
        &self.roots[&export.id].1.0
    }
}

/// A root that calls can reach. It is shared by the generations that serve it and by the objects of
/// calls; the last of them retires it. So what clients have locked in it ends after the calls that
/// rely on the locks, not at the reload: a WRITE must not go on after another client has taken its
/// lock.
struct Served(Arc<ExportRoot>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// A peer that passed the gate of an export. Only [`Exports::admit`] makes one, and an [`Object`]
/// comes from it alone: no operation reaches an object past the gate.
pub(crate) struct Admitted<'a> {
    export: &'a Export,
    root: &'a Arc<Served>,
    access: Access,
}

impl Admitted<'_> {
    /// The rights of the peer, and the user that it acts as.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The root of the export.
    pub(crate) fn root(&self) -> Object {
        self.below(self.root.0.handle)
    }

    /// The object behind an authentic handle.
    ///
    /// # Errors
    /// `Stale` if the handle belongs to another directory that was exported under the same id.
    pub(crate) fn object(&self, handle: &FileHandle) -> Result<Object, Status> {
        if handle.tree == self.root.0.tree {
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
    root: Arc<Served>,
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
        &self.root.0
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
