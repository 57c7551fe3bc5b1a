//! The last argument of `mv` and `ln`: a directory, or the name of the only source.

use std::collections::HashSet;

use proto::nfs3::FileHandle;
use rustix::io::Errno;

use super::failure::{Failure, Result};
use super::remote::{LastLink, Node, Remote, without_end_slashes};
use super::session::Session;
use super::target::{Shown, Target};

/// The target that the last argument names.
pub(super) struct Destination {
    pub(super) remote: Remote,
    pub(super) shown: Shown,
    path: Vec<u8>,
    existing_dir: Option<Node>,
    /// The names that earlier sources of the command have in the target directory now. A later
    /// source that replaced one would destroy what the command was to move or link.
    made: HashSet<Vec<u8>>,
}

/// A name in a directory.
pub(super) struct Place {
    pub(super) dir: FileHandle,
    pub(super) name: Vec<u8>,
    pub(super) shown: Shown,
    /// Whether a slash follows the name, as only a directory can have it.
    pub(super) ends_with_slash: bool,
}

impl Place {
    /// Whether this is a name at `place` too, of a file that may have several names.
    ///
    /// # Errors
    /// Those of GETATTR.
    pub(super) async fn is_same(&self, place: &Self, remote: &Remote) -> Result<bool> {
        if self.name != place.name {
            return Ok(false);
        }
        let (dir, other) = (remote.node(self.dir).await?, remote.node(place.dir).await?);
        Ok(dir.is_same(&other))
    }

    /// Renames the file of this name to `to`. NOENT can mean that an earlier copy of the call was
    /// executed, and its reply lost; `is_there` finds out whether the file has the name `to`.
    ///
    /// # Errors
    /// Those of RENAME.
    pub(super) async fn rename(
        &self,
        to: &Self,
        remote: &Remote,
        is_there: impl Future<Output = bool>,
    ) -> Result<()> {
        match remote.nfs.rename(self.dir, &self.name, to.dir, &to.name).await {
            Err(error) if error.errno() == Errno::NOENT && is_there.await => Ok(()),
            renamed => Ok(renamed.map(drop)?),
        }
    }

    /// Whether this is a name of `node`. False if that cannot be found out.
    pub(super) async fn is_of(&self, node: &Node, remote: &Remote) -> bool {
        remote.lookup(self.dir, &self.name).await.is_ok_and(|there| there.is_same(node))
    }

    /// Removes the name, which may be gone already.
    ///
    /// # Errors
    /// Those of REMOVE but `NOENT`.
    pub(super) async fn remove(&self, remote: &Remote) -> Result<()> {
        match remote.nfs.remove(self.dir, &self.name).await {
            Err(error) if error.errno() != Errno::NOENT => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl Destination {
    /// Finds the target of `sources` files. With [`LastLink::Keep`] a symbolic link to a directory
    /// is a name.
    ///
    /// # Errors
    /// `NOENT` or `NOTDIR` also when several sources need a directory, and there is none.
    pub(super) async fn find(
        session: &mut Session,
        to: &Target,
        last: LastLink,
        sources: usize,
    ) -> Result<Self> {
        let (remote, path) = session.reach(&to.url, LastLink::Keep).await?;
        let existing_dir = match remote.resolve(&path, last).await {
            Ok(node) if node.is_dir() => Some(node),
            Ok(_) if sources > 1 => return Err(Failure::refused(Errno::NOTDIR)),
            Err(error) if is_absent(error.errno()) && sources > 1 => {
                return Err(Failure::refused(Errno::NOENT));
            }
            Err(error) if !is_absent(error.errno()) => return Err(error.into()),
            Ok(_) | Err(_) => None,
        };
        let (shown, made) = (to.shown.clone(), HashSet::new());
        Ok(Self { remote, shown, path, existing_dir, made })
    }

    /// Where a source with this name goes: into the directory, or to the name of the argument.
    ///
    /// # Errors
    /// Those of [`Remote::resolve_parent`].
    pub(super) async fn place(&self, source_name: &[u8]) -> Result<Place> {
        if let Some(node) = self.existing_dir {
            let (name, shown) = (source_name.to_vec(), self.shown.join(source_name));
            return Ok(Place { dir: node.handle, name, shown, ends_with_slash: false });
        }
        let (parent, name) = self.remote.resolve_parent(without_end_slashes(&self.path)).await?;
        let (shown, ends_with_slash) = (self.shown.clone(), self.path.ends_with(b"/"));
        Ok(Place { dir: parent.handle, name, shown, ends_with_slash })
    }

    /// Records that a source has the name `place` now, which no later source may replace.
    pub(super) fn note_made(&mut self, place: Place) {
        self.made.insert(place.name);
    }

    /// Whether the source `from` may replace the file at `place`.
    ///
    /// # Errors
    /// A complete sentence if an earlier source has that name.
    pub(super) fn may_replace(
        &self,
        place: &Place,
        from: &Shown,
    ) -> std::result::Result<(), String> {
        if self.made.contains(&place.name) {
            return Err(format!("will not overwrite just-created {} with {from}", place.shown));
        }
        Ok(())
    }
}

/// Whether an error of a path means that it leads to no file.
pub(super) fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR)
}
