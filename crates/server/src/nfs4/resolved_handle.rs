//! Filehandles, resolved to a directory above the exports or to an object of one.

use std::sync::Arc;

use proto::nfs4::Stateid;

use crate::export::{Object, PseudoNode, PseudoRoot};
use crate::fs::Caller;
use crate::vfs::{CopyEnd, Found};

/// A filehandle, taken apart.
#[derive(Clone)]
pub(super) enum ResolvedHandle {
    /// A directory above the exports.
    Pseudo(Pseudo),
    /// An object of an export.
    Object(Located),
}

/// A directory above the exports of one generation.
#[derive(Clone)]
pub(super) struct Pseudo {
    pub(super) tree: Arc<PseudoRoot>,
    pub(super) place: usize,
}

impl Pseudo {
    pub(super) fn node(&self) -> &PseudoNode {
        self.tree.node(self.place)
    }

    /// The child of this name, whether the client may see it or not.
    pub(super) fn child(&self, name: &[u8]) -> Option<Self> {
        self.tree.child(self.place, name).map(|place| self.at(place))
    }

    /// Another directory of the same generation.
    pub(super) fn at(&self, place: usize) -> Self {
        Self { tree: Arc::clone(&self.tree), place }
    }
}

/// An object, and the caller as its export sees them.
#[derive(Clone)]
pub(super) struct Located {
    pub(super) caller: Caller,
    pub(super) object: Object,
}

impl Located {
    /// Another object of the same export.
    pub(super) fn found(&self, found: &Found) -> Self {
        Self { caller: self.caller.clone(), object: self.object.found(found.handle) }
    }

    /// It as one of the files of a copy.
    pub(super) fn end(&self) -> CopyEnd<'_> {
        CopyEnd { caller: &self.caller, object: &self.object }
    }

    /// Whether it is the directory that is exported.
    pub(super) fn is_root(&self) -> bool {
        *self.object.handle() == self.object.root().handle
    }
}

/// A filehandle with the stateid that belongs to it (RFC 8881 §16.2.3.1.2).
#[derive(Clone)]
pub(super) struct Current {
    pub(super) handle: ResolvedHandle,
    pub(super) stateid: Option<Stateid>,
}
