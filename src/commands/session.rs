//! Connections to servers for the life of a command, one for each export that it touches.

use std::collections::HashMap;
use std::sync::Arc;

use clap::Args;
use client::export::{Exports, Holding};
use client::mount_options::{MountRequest, OptionError};
use client::{Identity, MountOptions, NfsUrl};
use proto::nfs3::{FileHandle, FileType};
use rustix::io::Errno;

use super::failure::Result;
use super::remote::{LastLink, Node, Remote, below, without_end_slashes};

/// The end of the help of every command.
const URLS: &str = "\
URLs:
  nfs://HOST[:PORT]/PATH; in PATH, %XX is a byte: %3F a question mark, %25 a percent sign.
  Options follow a ? with & between them: nfsport= and mountport= for ports, uid= and gid=
  to call as another user and group, version=3.";

/// The options of every command.
#[derive(Args, Clone, Debug)]
#[command(after_help = URLS)]
pub(crate) struct ConnectOptions {
    /// How to reach the server and what to do when it does not answer, as in nfs(5): hard, soft,
    /// timeo=, retrans=, rsize=, wsize=, nconnect=, port=, mountport=, resvport, noresvport;
    /// repeatable
    #[arg(short = 'o', value_name = "OPTION[,OPTION...]", value_parser = checked)]
    #[arg(help_heading = "Connection")]
    options: Vec<String>,
}

/// A list in which every option is understood and has an effect on the commands.
fn checked(list: &str) -> std::result::Result<String, OptionError> {
    MountRequest::of_connection(list).map(|_| list.to_owned())
}

impl ConnectOptions {
    /// All options given; a later one overrides an earlier one.
    pub(crate) fn mount(&self) -> MountOptions {
        let list = self.options.join(",");
        MountRequest::of_connection(&list).expect("each part was checked when it was read")
    }
}

/// The servers that a command has reached so far.
pub(crate) struct Session {
    options: MountOptions,
    identity: Arc<Identity>,
    servers: Vec<Server>,
}

/// A server as one user.
struct Server {
    /// Its URL without a path.
    url: NfsUrl,
    exports: Exports,
    /// The exports mounted so far, by the paths that MNT was called with.
    mounted: HashMap<Vec<u8>, Remote>,
}

impl Session {
    pub(crate) fn new(options: &ConnectOptions) -> Self {
        let identity = Arc::new(Identity::of_process());
        Self { options: options.mount(), identity, servers: Vec::new() }
    }

    /// The export that holds what `url` names, and the path to it from the export's root. With
    /// [`LastLink::Keep`] the last name is looked up, and not mounted where the server does not
    /// list its exports. The URLs that were reached before have no influence on the choice.
    pub(crate) async fn reach(
        &mut self,
        url: &NfsUrl,
        last: LastLink,
    ) -> Result<(Remote, Vec<u8>)> {
        let place = NfsUrl { path: Vec::new(), ..url.clone() };
        let index = match self.servers.iter().position(|server| server.url == place) {
            Some(index) => index,
            None => {
                let exports = Exports::find(&place, &self.options, &self.identity).await?;
                self.servers.push(Server { url: place, exports, mounted: HashMap::new() });
                self.servers.len() - 1
            }
        };
        let remote = self.servers[index].mount(&url.path, last, &self.options).await?;
        let path = below(&url.path, remote.path()).unwrap_or_default().to_vec();
        Ok((remote, path))
    }

    /// The file that `url` names, and its export.
    pub(crate) async fn find(&mut self, url: &NfsUrl, last: LastLink) -> Result<(Remote, Node)> {
        let (remote, path) = self.reach(url, LastLink::Follow).await?;
        let is_mounted_itself = without_end_slashes(&path).is_empty();
        if last == LastLink::Keep
            && is_mounted_itself
            && let Some(link) = self.find_link(url).await?
        {
            return Ok(link);
        }
        let node = remote.resolve(&path, last).await?;
        Ok((remote, node))
    }

    /// The symbolic link that `url` names, if it is one. MNT of its path, where the server does not
    /// list its exports, mounts the directory that it leads to. The path can be hidden from the
    /// user in the directories above it, and has then no link that could be found.
    async fn find_link(&mut self, url: &NfsUrl) -> Result<Option<(Remote, Node)>> {
        let found: Result<_> = async {
            let (remote, path) = self.reach(url, LastLink::Keep).await?;
            let node = remote.resolve(&path, LastLink::Keep).await?;
            Ok((remote, node))
        }
        .await;
        match found {
            Err(failure) if is_hidden(failure.errno()) => Ok(None),
            found => {
                let is_link = |node: &Node| node.attributes.file_type == FileType::Symlink;
                Ok(Some(found?).filter(|(_, node)| is_link(node)))
            }
        }
    }
}

/// Whether an error of a path means that a name of it is not there, or not for this user.
fn is_hidden(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::ACCESS)
}

impl Server {
    /// The export that holds `path`, mounted now or before.
    async fn mount(
        &mut self,
        path: &[u8],
        last: LastLink,
        options: &MountOptions,
    ) -> Result<Remote> {
        let keep_name = last == LastLink::Keep;
        let is_mounted = |export: &[u8]| self.mounted.contains_key(export);
        let Holding { export, mounted } = self.exports.mount(path, keep_name, is_mounted).await?;
        let remote = match mounted {
            None => return Ok(self.mounted[&export].clone()),
            Some(mounted) => match self.containing(&export, mounted.root).await {
                Some(remote) => remote,
                None => Remote::new(export.clone(), mounted, options).await?,
            },
        };
        self.mounted.insert(export, remote.clone());
        Ok(remote)
    }

    /// The mounted export in which the path leads to the directory `root`. Where the server lists
    /// no exports, MNT may have returned a directory of it, from which files can be renamed.
    async fn containing(&self, path: &[u8], root: FileHandle) -> Option<Remote> {
        for remote in self.mounted.values() {
            let Some(path) = below(path, remote.path()) else { continue };
            let found = remote.resolve(path, LastLink::Keep).await;
            if found.is_ok_and(|node| node.handle == root) {
                return Some(remote.clone());
            }
        }
        None
    }
}
