//! Directories that a walk does not enter: those that contain themselves, and those without end.

use std::fmt;
use std::sync::Arc;

use proto::nfs3::{Attributes, FileHandle};

/// Directories above one at most: as many as fit into the longest path (`PATH_MAX`) with names of
/// one byte. fts(3), by which coreutils walk, ends at such a path too.
const DEPTH_MAX: u32 = 4096 / 2;

/// Why a walk does not enter a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endless {
    /// It contains itself.
    Circular,
    /// It is too deep.
    TooDeep,
}

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Circular => "circular directory structure",
            Self::TooDeep => "File name too long",
        })
    }
}

/// A directory of a walk through a tree and those above it. A defective or hostile server can show
/// one of them below itself, or a new one below each, where the walk would never end.
pub(crate) struct Ancestors {
    depth: u32,
    fsid: u64,
    fileid: u64,
    /// None for a directory of this machine.
    handle: Option<FileHandle>,
    above: Option<Arc<Ancestors>>,
}

impl Ancestors {
    /// The directory at which a walk begins.
    pub(crate) fn root(handle: Option<FileHandle>, attributes: &Attributes) -> Self {
        Self { depth: 0, fsid: attributes.fsid, fileid: attributes.fileid, handle, above: None }
    }

    /// A directory below.
    ///
    /// # Errors
    /// `Circular` when it is this one or above it: it has the handle of one of them, or its number
    /// in the same file system. `TooDeep` below [`DEPTH_MAX`] others.
    pub(crate) fn below(
        self: &Arc<Self>,
        handle: Option<FileHandle>,
        attributes: &Attributes,
    ) -> Result<Self, Endless> {
        let depth = self.depth + 1;
        let above = Some(Arc::clone(self));
        let (fsid, fileid) = (attributes.fsid, attributes.fileid);
        let found = Self { depth, fsid, fileid, handle, above };
        let mut chain = std::iter::successors(Some(self), |dir| dir.above.as_ref());
        if chain.any(|dir| dir.is_same(&found)) {
            return Err(Endless::Circular);
        }
        if depth > DEPTH_MAX { Err(Endless::TooDeep) } else { Ok(found) }
    }

    fn is_same(&self, other: &Self) -> bool {
        let is_same_handle = self.handle.is_some() && self.handle == other.handle;
        is_same_handle || (self.fsid, self.fileid) == (other.fsid, other.fileid)
    }
}

impl Drop for Ancestors {
    /// Frees the chain link by link: freed by each other, thousands would overflow the stack.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut dir) = above.and_then(Arc::into_inner) {
            above = dir.above.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::nfs3::{FileType, Time};

    use super::super::fixture::attributes;
    use super::*;

    fn directory(fsid: u64, fileid: u64) -> Attributes {
        Attributes { fsid, fileid, ..attributes(FileType::Directory, Time::default()) }
    }

    #[test]
    fn directory_that_contains_itself_is_detected() {
        let handle = |byte: u8| FileHandle::new(&[byte]);
        let root = Arc::new(Ancestors::root(handle(1), &directory(1, 1)));
        let middle = Arc::new(root.below(handle(2), &directory(1, 2)).unwrap());
        let last = Arc::new(middle.below(handle(3), &directory(1, 3)).unwrap());
        for (found, attributes) in [
            (handle(1), directory(1, 1)),
            (handle(3), directory(1, 3)),
            // A new number, or a new handle, for a directory above.
            (handle(2), directory(1, 9)),
            (handle(9), directory(1, 2)),
            (None, directory(1, 1)),
        ] {
            let outcome = last.below(found, &attributes).map(drop);
            assert_eq!(outcome, Err(Endless::Circular), "{found:?}");
        }
        assert!(last.below(handle(9), &directory(2, 1)).is_ok(), "another file system");
        assert!(middle.below(handle(4), &directory(1, 3)).is_ok(), "beside, not above");
        assert!(last.below(None, &directory(1, 9)).is_ok());
    }

    #[test]
    fn chain_of_new_directories_ends() {
        let mut dir = Arc::new(Ancestors::root(None, &directory(1, 0)));
        let mut depth = 0;
        let why = loop {
            depth += 1;
            match dir.below(None, &directory(1, depth)) {
                Ok(below) => dir = Arc::new(below),
                Err(why) => break why,
            }
        };
        assert_eq!((depth, why), (u64::from(DEPTH_MAX) + 1, Endless::TooDeep));
    }
}
