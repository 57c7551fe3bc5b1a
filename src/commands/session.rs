//! Connections to servers for the life of a command, one for each export that it touches.

use std::str::FromStr as _;
use std::sync::Arc;

use clap::Args;
use client::export;
use client::mount_options::{MountRequest, OptionError};
use client::{Identity, MountOptions, NfsUrl};

use super::failure::Result;
use super::remote::{LastLink, Node, Remote, below};

/// The options of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectOptions {
    /// How to reach the server and what to do when it does not answer, as in nfs(5): soft, timeo=,
    /// retrans=, rsize=, wsize=, nconnect=, port=, mountport=, resvport and others; repeatable
    #[arg(short = 'o', value_name = "OPTION[,OPTION...]", value_parser = checked)]
    #[arg(help_heading = "Connection")]
    options: Vec<String>,
}

/// A list in which every option is understood.
fn checked(list: &str) -> std::result::Result<String, OptionError> {
    MountRequest::from_str(list).map(|_| list.to_owned())
}

impl ConnectOptions {
    /// All options given; a later one overrides an earlier one.
    pub(crate) fn mount(&self) -> MountOptions {
        let list = self.options.join(",");
        MountRequest::from_str(&list).expect("each part was checked when it was read").nfs
    }
}

/// The exports that a command has mounted so far.
pub(crate) struct Session {
    options: MountOptions,
    identity: Arc<Identity>,
    exports: Vec<(NfsUrl, Remote)>,
}

impl Session {
    pub(crate) fn new(options: &ConnectOptions) -> Self {
        let identity = Arc::new(Identity::of_process());
        Self { options: options.mount(), identity, exports: Vec::new() }
    }

    /// The export that holds what `url` names, and the path to it from the export's root. With
    /// [`LastLink::Keep`] the last name is looked up, and not mounted where the server does not
    /// list its exports.
    pub(crate) async fn reach(
        &mut self,
        url: &NfsUrl,
        last: LastLink,
    ) -> Result<(Remote, Vec<u8>)> {
        for (known, remote) in &self.exports {
            let place = |url: &NfsUrl| NfsUrl { path: Vec::new(), ..url.clone() };
            if place(known) == place(url)
                && let Some(path) = below(&url.path, remote.path())
            {
                return Ok((remote.clone(), path.to_vec()));
            }
        }
        let keep_name = last == LastLink::Keep;
        let holding = export::mount_holding(url, keep_name, &self.options, &self.identity).await?;
        let remote = Remote::new(holding, &self.options).await?;
        let path = below(&url.path, remote.path()).unwrap_or_default().to_vec();
        self.exports.push((url.clone(), remote.clone()));
        Ok((remote, path))
    }

    /// The file that `url` names, and its export.
    pub(crate) async fn find(&mut self, url: &NfsUrl, last: LastLink) -> Result<(Remote, Node)> {
        let (remote, path) = self.reach(url, LastLink::Follow).await?;
        let node = remote.resolve(&path, last).await?;
        Ok((remote, node))
    }
}
