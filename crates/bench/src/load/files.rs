//! The files of loads: made before, removed afterwards.

use client::Nfs3;
use proto::nfs3::{CreateHow, FileHandle, SetAttributes, Status};

use super::{LoadFile, Service, Version};
use crate::{Error, Result};

impl Service {
    /// The service that `nfs` calls, in version 3, with its identity and the limits of the file
    /// system of `root`.
    ///
    /// # Errors
    /// [`Error::Call`]: FSINFO failed.
    pub async fn of(nfs: &Nfs3, root: FileHandle) -> Result<Self> {
        let limits = nfs.fsinfo(root).await.map_err(Error::call("FSINFO"))?;
        Ok(Self {
            address: nfs.address(),
            source: None,
            identity: (**nfs.identity()).clone(),
            read_bytes_max: limits.rtmax,
            write_bytes_max: limits.wtmax,
            version: Version::V3,
            path: Vec::new(),
        })
    }
}

/// Makes empty files in a directory, or empties those that are there; their numbers count from 0.
///
/// # Errors
/// [`Error::Call`] with the name.
pub async fn create_files(
    nfs: &Nfs3,
    dir: FileHandle,
    names: impl IntoIterator<Item = String>,
) -> Result<Vec<LoadFile>> {
    let mut files = Vec::new();
    for (id, name) in (0..).zip(names) {
        let attributes =
            SetAttributes { mode: Some(0o644), size: Some(0), ..SetAttributes::default() };
        let how = CreateHow::Unchecked(attributes);
        let created = nfs.create(dir, name.as_bytes(), how).await;
        let handle = match created.map_err(Error::call(format!("CREATE {name}")))?.object {
            Some(handle) => handle,
            None => {
                let found = nfs.lookup(dir, name.as_bytes()).await;
                found.map_err(Error::call(format!("LOOKUP {name}")))?.object
            }
        };
        files.push(LoadFile::new(name, handle, id));
    }
    Ok(files)
}

/// Removes files from a directory, also after one that the server refuses to remove. One that is
/// not there is as good as removed.
///
/// # Errors
/// [`Error::Call`] with the name of the first file that is still there.
pub async fn remove_files(
    nfs: &Nfs3,
    dir: FileHandle,
    names: impl IntoIterator<Item = String>,
) -> Result<()> {
    let mut removed = Ok(());
    for name in names {
        match nfs.remove(dir, name.as_bytes()).await {
            Err(error) if !error.is(Status::Noent) => {
                let is_refusal = matches!(error, client::Error::Nfs { .. });
                removed = removed.and(Err(Error::call(format!("REMOVE {name}"))(error)));
                // Each further call to a server that is gone would wait for its timeout.
                if !is_refusal {
                    break;
                }
            }
            Ok(_) | Err(_) => {}
        }
    }
    removed
}
