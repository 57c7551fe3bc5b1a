//! The directories of NFS version 4 above the exports (RFC 8881 §7.3): the components of their
//! names.
//!
//! They exist in the protocol alone. An export that is named below another one is found in that
//! one's root directory if its name has one component more; else it cannot be reached by LOOKUP.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use io::KernelHandle;
use siphasher::sip::SipHasher24;

use super::ExportTable;
use super::handle::{FileHandle, PSEUDO_HANDLE_KIND};

/// The directories above the exports of one generation.
#[derive(Debug)]
pub(crate) struct PseudoRoot {
    /// The root is the first.
    nodes: Vec<PseudoNode>,
    /// When the generation was made, in nanoseconds since 1970.
    made_ns: u64,
    /// The exports. Their roots are left out: a call in one of them that hangs may have a directory
    /// above as its saved filehandle, and would keep what is locked in all others.
    pub(crate) table: Arc<ExportTable>,
}

/// A directory above the exports, or the place of one.
#[derive(Debug)]
pub(crate) struct PseudoNode {
    /// Of its path, so that a handle of it lasts.
    pub(crate) id: u64,
    pub(crate) name: String,
    /// The root's is the root.
    pub(crate) parent: usize,
    /// By their places in the list of nodes, in the order of their cookies.
    pub(crate) children: Vec<usize>,
    /// The id of the export that is here.
    pub(crate) export: Option<u32>,
}

impl PseudoRoot {
    pub(super) fn new(table: &Arc<ExportTable>) -> Self {
        let root = PseudoNode {
            id: path_id(""),
            name: String::new(),
            parent: 0,
            children: Vec::new(),
            export: None,
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let made_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let mut tree = Self { nodes: vec![root], made_ns, table: Arc::clone(table) };
        for export in table.iter() {
            let mut node = 0;
            let mut path = String::new();
            for name in export.name.split('/').filter(|name| !name.is_empty()) {
                path = format!("{path}/{name}");
                node = tree
                    .child(node, name.as_bytes())
                    .unwrap_or_else(|| tree.add(node, name, path_id(&path)));
            }
            tree.nodes[node].export = Some(export.id);
        }
        for node in 0..tree.nodes.len() {
            let mut children = std::mem::take(&mut tree.nodes[node].children);
            children.sort_unstable_by_key(|child| tree.nodes[*child].cookie());
            tree.nodes[node].children = children;
        }
        tree
    }

    fn add(&mut self, parent: usize, name: &str, id: u64) -> usize {
        let place = self.nodes.len();
        let name = name.to_owned();
        self.nodes.push(PseudoNode { id, name, parent, children: Vec::new(), export: None });
        self.nodes[parent].children.push(place);
        place
    }

    /// The directory at this place.
    pub(crate) fn node(&self, place: usize) -> &PseudoNode {
        &self.nodes[place]
    }

    /// The place of a name.
    pub(crate) fn child(&self, place: usize, name: &[u8]) -> Option<usize> {
        let children = self.nodes[place].children.iter().copied();
        children.into_iter().find(|child| self.nodes[*child].name.as_bytes() == name)
    }

    /// The place of an export.
    pub(crate) fn place_of_export(&self, id: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.export == Some(id))
    }

    /// The place that a handle names; `None` if it names none of this generation.
    pub(crate) fn place_of(&self, handle: &FileHandle) -> Option<usize> {
        let id = pseudo_id(handle)?;
        self.nodes.iter().position(|node| node.id == id)
    }

    /// The exports at this place and below it.
    pub(crate) fn exports_below(&self, place: usize) -> Vec<u32> {
        let node = &self.nodes[place];
        let below = node.children.iter().flat_map(|child| self.exports_below(*child));
        node.export.into_iter().chain(below).collect()
    }

    /// When the generation was made, in nanoseconds since 1970.
    pub(crate) fn made_ns(&self) -> u64 {
        self.made_ns
    }
}

impl PseudoNode {
    /// Its cookie in the listing of its parent. It depends on no other directory, so a client that
    /// goes on behind it gets each entry that stays once, whatever a reload adds and removes. None
    /// is reserved, and none is negative as an offset, which Linux takes it for.
    pub(crate) fn cookie(&self) -> u64 {
        (self.id >> 1) | (1 << 62)
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> FileHandle {
        let kernel = KernelHandle::from_parts(PSEUDO_HANDLE_KIND, &self.id.to_be_bytes());
        FileHandle { export_id: 0, tree: 0, kernel: kernel.expect("8 bytes fit a handle") }
    }
}

/// The id in the handle of a directory above the exports.
pub(crate) fn pseudo_id(handle: &FileHandle) -> Option<u64> {
    if handle.kernel.kind() != PSEUDO_HANDLE_KIND {
        return None;
    }
    handle.kernel.bytes().try_into().ok().map(u64::from_be_bytes)
}

fn path_id(path: &str) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(path.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use io::IoPolicy;

    use super::*;
    use crate::export::{Export, Limits};

    fn export(id: u32, name: &str) -> Export {
        Export {
            id,
            name: name.to_owned(),
            path: PathBuf::from("/"),
            sync: true,
            file_sync_writes: false,
            policy: IoPolicy::default(),
            limits: Limits::default(),
            rules: Vec::new(),
            metadata_servers: None,
        }
    }

    #[test]
    fn names_of_exports_become_directories() {
        let names = [(1, "/srv/a"), (2, "/srv/b/c"), (3, "/d")];
        let exports = names.map(|(id, name)| export(id, name)).into();
        let tree = PseudoRoot::new(&Arc::new(ExportTable::new(exports).unwrap()));
        let srv = tree.child(0, b"srv").unwrap();
        assert_eq!(tree.node(srv).export, None);
        assert_eq!(tree.exports_below(srv), [1, 2]);
        let a = tree.child(srv, b"a").unwrap();
        assert_eq!((tree.node(a).export, tree.node(a).parent), (Some(1), srv));
        assert_eq!(tree.child(srv, b"c"), None);
        assert_eq!(tree.place_of(&tree.node(srv).handle()), Some(srv));
        assert_eq!(tree.place_of_export(3), tree.child(0, b"d"));
        let table = ExportTable::new(vec![export(7, "/")]).unwrap();
        let root = PseudoRoot::new(&Arc::new(table));
        assert_eq!(root.node(0).export, Some(7), "an export can be the root itself");
        assert_eq!(root.node(0).id, tree.node(0).id, "handles last");
    }
}
