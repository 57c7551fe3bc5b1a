//! Directories of an export that are made for an experiment.

use client::Nfs3;
use proto::nfs3::{CookieVerifier, FileHandle, SetAttributes, Status};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::export::{Export, runtime};
use crate::{Error, Result};

/// A directory at the root of an export.
pub(super) struct ScratchDirectory {
    nfs: Nfs3,
    root: FileHandle,
    name: String,
    handle: FileHandle,
}

/// Calls that fill or empty a directory at once.
const CALLS_IN_FLIGHT: usize = 32;
/// Bytes of a listing when it is emptied.
const NAMES_BYTES: u32 = 64 << 10;

impl ScratchDirectory {
    /// Makes the directory of the export, has `work` done in it, and removes it with all that is in
    /// it, also after an error, unless it is to be kept.
    pub(super) fn lend(
        export: &Export<'_>,
        keep: bool,
        work: impl FnOnce(&Runtime, &Self) -> Result<()>,
    ) -> Result<()> {
        let runtime = runtime()?;
        let directory =
            runtime.block_on(export.unless_gone(Self::make(export, &export.directory)))?;
        let done = work(&runtime, &directory);
        if keep {
            return done;
        }
        let removed = runtime.block_on(export.unless_gone(directory.remove()));
        done.and(removed)
    }

    /// Makes it, empty.
    ///
    /// # Errors
    /// [`Error::Call`]: the server refuses; also if a directory of this name is there.
    pub(super) async fn make(export: &Export<'_>, name: &str) -> Result<Self> {
        let mounted = export.mount_plain().await?;
        let (nfs, root) = (mounted.nfs, mounted.root);
        let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let what = || Error::call(format!("cannot make the directory {name} at {}", export.url));
        let made = nfs.mkdir(root, name.as_bytes(), attributes).await.map_err(what())?;
        let handle = match made.object {
            Some(handle) => handle,
            None => nfs.lookup(root, name.as_bytes()).await.map_err(what())?.object,
        };
        Ok(Self { nfs, root, name: name.to_owned(), handle })
    }

    /// In the root of the export.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Calls over the connection that made it.
    pub(super) fn calls(&self) -> &Nfs3 {
        &self.nfs
    }

    /// Its handle.
    pub(super) fn handle(&self) -> FileHandle {
        self.handle
    }

    /// Makes a call for each item, several at once.
    pub(super) async fn for_each<T, F>(
        &self,
        mut items: Vec<T>,
        call: impl Fn(Nfs3, FileHandle, T) -> F + Copy + Send + Sync + 'static,
    ) -> client::Result<()>
    where
        T: Send + 'static,
        F: Future<Output = client::Result<()>> + Send,
    {
        let part_len = items.len().div_ceil(CALLS_IN_FLIGHT).max(1);
        let mut tasks = JoinSet::<client::Result<()>>::new();
        while !items.is_empty() {
            let part = items.split_off(items.len().saturating_sub(part_len));
            let (nfs, dir) = (self.nfs.clone(), self.handle);
            tasks.spawn(async move {
                for item in part {
                    call(nfs.clone(), dir, item).await?;
                }
                Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("the calls do not panic")?;
        }
        Ok(())
    }

    /// Removes names, those that are gone included.
    pub(super) async fn remove_all(&self, names: Vec<Vec<u8>>) -> Result<()> {
        let emptied = self.for_each(names, |nfs, dir, name| async move {
            match nfs.remove(dir, &name).await {
                Err(error) if !error.is(Status::Noent) => Err(error),
                _ => Ok(()),
            }
        });
        emptied.await.map_err(Error::call(format!("cannot remove the contents of {}", self.name)))
    }

    /// Removes it with all that is in it.
    pub(super) async fn remove(&self) -> Result<()> {
        loop {
            let names = self.some_names().await?;
            if names.is_empty() {
                break;
            }
            self.remove_all(names).await?;
        }
        let removed = self.nfs.rmdir(self.root, self.name.as_bytes()).await;
        removed.map(drop).map_err(Error::call(format!("cannot remove {}", self.name)))
    }

    /// Names that are there; none only when it is empty.
    async fn some_names(&self) -> Result<Vec<Vec<u8>>> {
        let (mut cookie, mut verifier, mut names) = (0, CookieVerifier::default(), Vec::new());
        loop {
            let listed = self.nfs.readdir(self.handle, cookie, verifier, NAMES_BYTES).await;
            let page = listed.map_err(Error::call(format!("cannot list {}", self.name)))?;
            names.extend(page.names.iter().map(|entry| entry.name.to_vec()));
            names.retain(|name| name != b"." && name != b"..");
            let last = page.names.last().map(|entry| entry.cookie);
            let (false, Some(last)) = (page.eof, last) else { return Ok(names) };
            (cookie, verifier) = (last, page.verifier);
        }
    }
}
