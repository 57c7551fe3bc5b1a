//! Where an experiment takes place: directories, file systems made for it, and the way to servers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use client::{Identity, MountOptions, Nfs3, NfsUrl, Recovery, mount3};
use proto::nfs3::{FileHandle, SetAttributes, Status};
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};

use crate::record::Run;
use crate::rig::{FileSystem, NetworkLimits, Relay};
use crate::subject::{Running, Subject};
use crate::{Error, Result};

/// Slow networks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Surroundings")]
pub(crate) struct SurroundingsOptions {
    #[command(flatten)]
    network: NetworkLimits,
}

/// The surroundings of an experiment; undone when dropped.
pub(crate) struct Stage {
    network: NetworkLimits,
    /// Made in the directories that were given.
    directories: Vec<TempDir>,
    runtime: Runtime,
}

/// A slow way to a server.
#[derive(Debug)]
pub(crate) struct Relays {
    /// The server at its end.
    pub(crate) url: NfsUrl,
    _nfs: Relay,
    _mount: Relay,
}

/// A directory of a subject that is reached by calls.
pub(crate) struct Export {
    /// Calls to its server.
    pub(crate) nfs: Nfs3,
    /// Where files are made.
    pub(crate) directory: FileHandle,
}

impl Stage {
    /// Sets the stage that was asked for.
    ///
    /// # Errors
    /// [`Error::Machine`]: this machine, or this user, cannot have it.
    pub(crate) fn set(options: &SurroundingsOptions, run: &mut Run) -> Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::machine("cannot wait for the network"))?;
        let network = options.network;
        run.network = match network.is_none() {
            true => "loopback, or the servers' own".to_owned(),
            false => format!("a relay in this process: {network}"),
        };
        Ok(Self { network, directories: Vec::new(), runtime })
    }

    /// A new directory in the one that was given, which ends with the experiment.
    ///
    /// # Errors
    /// [`Error::Machine`]: it cannot be made.
    pub(crate) fn place(&mut self, directory: &Path) -> Result<PathBuf> {
        let made = tempfile::Builder::new().prefix("spillway-bench.").tempdir_in(directory);
        let what = format!("cannot make a directory in {}", directory.display());
        let made = made.map_err(Error::machine(what))?;
        let path = made.path().to_owned();
        self.directories.push(made);
        Ok(path)
    }

    /// Tells in the record what the stage is, and who is on it.
    ///
    /// # Errors
    /// [`Error::Machine`]: a directory cannot be looked at.
    pub(crate) fn describe(&self, subjects: &[Subject], run: &mut Run) -> Result<()> {
        let mut systems = Vec::new();
        for subject in subjects {
            let described = subject.described();
            run.subjects.insert(subject.name.clone(), described);
            let Some(files) = subject.files() else { continue };
            // The subject's own directory may not be there yet.
            let there = files.ancestors().find(|path| path.exists());
            let system = FileSystem::described(there.unwrap_or(files))?;
            if !systems.contains(&system) {
                systems.push(system);
            }
        }
        run.file_system = systems.join("; ");
        Ok(())
    }

    /// Makes the network in front of a server as slow as was asked for: where it is reached then.
    ///
    /// # Errors
    /// [`Error::Call`]: the server is not there. [`Error::Machine`]: no port is to be had.
    pub(crate) fn relays(&self, url: &NfsUrl) -> Result<Option<Relays>> {
        if self.network.is_none() {
            return Ok(None);
        }
        let nfs_address = self.mount_url(url)?.nfs.address();
        let nfs = Relay::start(nfs_address, &self.network)?;
        // Mounting is not measured.
        let mount_address =
            SocketAddr::new(nfs_address.ip(), url.mount_port.unwrap_or(nfs_address.port()));
        let mount = Relay::start(mount_address, &NetworkLimits::default())?;
        let url = NfsUrl {
            host: nfs.address().ip().to_string(),
            port: Some(nfs.address().port()),
            mount_port: Some(mount.address().port()),
            ..url.clone()
        };
        Ok(Some(Relays { url, _nfs: nfs, _mount: mount }))
    }

    /// Waits for calls.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Mounts a subject, and makes a directory in it if it is somebody else's.
    ///
    /// # Errors
    /// [`Error::Call`]: it does not let us.
    pub(crate) fn mount(&self, running: &Running) -> Result<Export> {
        let export = self.mount_url(&running.url)?;
        if running.is_ours() {
            return Ok(export);
        }
        let Export { nfs, directory } = export;
        let name = DIRECTORY;
        let directory = self.block_on(async {
            let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
            match nfs.mkdir(directory, name, attributes).await {
                Err(error) if !error.is(Status::Exist) => Err(error),
                Ok(_) | Err(_) => Ok(nfs.lookup(directory, name).await?.object),
            }
        });
        let directory = directory.map_err(Error::call("cannot make a directory on the server"))?;
        Ok(Export { nfs, directory })
    }

    /// Mounts what a URL names.
    ///
    /// # Errors
    /// [`Error::Call`]: the server is not there, or does not let us.
    pub(crate) fn mount_url(&self, url: &NfsUrl) -> Result<Export> {
        let me = Arc::new(Identity::of_process());
        let mounted = self.block_on(mount3::mount(url, &mount_options(), &me));
        let mounted = mounted.map_err(Error::call(format!("cannot mount {url}")))?;
        Ok(Export { nfs: mounted.nfs, directory: mounted.root })
    }

    /// Takes the directory away that was made on somebody else's server.
    ///
    /// # Errors
    /// [`Error::Call`]: it is not empty, or the server is gone.
    pub(crate) fn remove_directory(&self, url: &NfsUrl) -> Result<()> {
        let Export { nfs, directory } = self.mount_url(url)?;
        let removed = self.block_on(nfs.rmdir(directory, DIRECTORY));
        removed.map(drop).map_err(Error::call("cannot remove our directory from the server"))
    }
}

/// An experiment does not wait for a dead server for ever.
fn mount_options() -> MountOptions {
    MountOptions {
        timeout: Duration::from_secs(20),
        recovery: Recovery::Soft,
        ..MountOptions::default()
    }
}

/// On servers that others have started.
const DIRECTORY: &[u8] = b"spillway-bench";
