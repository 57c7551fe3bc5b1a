//! MOUNT version 3 (RFC 1813 Appendix I) and all that comes before the first call of NFS: finding
//! the ports, the root handle, and a flavor of authentication.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proto::mount3::{
    DirectoryArgs, ExportList, MountList, MountReply, PATH_BYTES_MAX, PROGRAM, Procedure, VERSION,
};
use proto::nfs3::{self, FileHandle};
use proto::oncrpc::{FLAVOR_NONE, FLAVOR_SYS};
use proto::xdr::{Decode, Encode, Reader};
use rustix::io::Errno;

use crate::nfs3::{Flavor, Nfs3, machine_name, sys_credential};
use crate::rpc::{Route, Rpc, RpcOptions, Target};
use crate::{Error, Identity, MountOptions, NfsUrl, Recovery, Result, portmap};

/// Where NFS is when nobody says otherwise.
pub const NFS_PORT: u16 = 2049;
/// A MOUNT call is not waited for longer at a time, however patient the mount is.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// A mounted directory.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// Calls to its file system.
    pub nfs: Nfs3,
    /// The directory.
    pub root: FileHandle,
}

/// Mounts the directory that `url` names: finds the server and its services, asks for the root
/// handle, and connects as `identity` or who the URL says.
///
/// A port in the URL comes before one in the options.
///
/// # Errors
/// [`Error::Mount`] when the server refuses the path; [`Error::Connection`] names host and port
/// that cannot be reached, or says that the server wants an authentication that is not spoken here;
/// and those of [`Rpc::call`].
pub async fn mount(
    url: &NfsUrl,
    options: &MountOptions,
    identity: &Arc<Identity>,
) -> Result<Mounted> {
    let identity = identity_for(url, identity);
    let service = Mount3::find(url, options, &identity).await?;
    service.mount(url, options, &identity).await
}

/// A line of EXPORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// The exported directory.
    pub directory: Vec<u8>,
    /// Who may mount it, as hosts, networks or netgroups; everybody when empty.
    pub groups: Vec<Vec<u8>>,
}

/// A line of DUMP: what a client said that it mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The client.
    pub hostname: Vec<u8>,
    /// What it mounted.
    pub directory: Vec<u8>,
}

/// The MOUNT service of a server.
#[derive(Clone, Debug)]
pub struct Mount3 {
    rpc: Rpc,
    identity: Arc<Identity>,
    machine_name: Arc<[u8]>,
    /// Where the server's NFS service is.
    nfs_address: SocketAddr,
}

impl Mount3 {
    /// Finds the MOUNT service of the host in `url`: on the port that URL or options give, on that
    /// of NFS, where Spillway answers it, or where the portmapper says.
    ///
    /// # Errors
    /// [`Error::Connection`] names host and port that cannot be reached, or the service that the
    /// portmapper does not know.
    pub async fn find(
        url: &NfsUrl,
        options: &MountOptions,
        identity: &Arc<Identity>,
    ) -> Result<Self> {
        let mut failure = None;
        for address in resolve(url).await? {
            match Self::find_at(address, url, options, identity).await {
                Ok(found) => return Ok(found),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| unreachable(url, ErrorKind::NotFound.into())))
    }

    async fn find_at(
        host: SocketAddr,
        url: &NfsUrl,
        options: &MountOptions,
        identity: &Arc<Identity>,
    ) -> Result<Self> {
        let nfs_address = nfs_address(host, url, options).await;
        let connect = async |address| {
            let rpc = Rpc::connect(address, &rpc_options(options))
                .await
                .map_err(|error| named(error, url, address))?;
            let (identity, machine_name) = (Arc::clone(identity), machine_name());
            Ok(Self { rpc, identity, machine_name, nfs_address })
        };
        if let Some(port) = url.mount_port.or(options.mount_port) {
            return connect(with_port(host, port)).await;
        }
        let on_nfs_port = connect(nfs_address).await?;
        let Err(refusal) = on_nfs_port.null().await else { return Ok(on_nfs_port) };
        match portmap::port_of(host.ip(), PROGRAM, VERSION).await {
            Ok(Some(port)) => connect(with_port(host, port)).await,
            // Most servers say no; one that was silent has more to say than its portmapper.
            _ if !matches!(refusal, Error::Accept(_)) => Err(named(refusal, url, nfs_address)),
            Ok(None) => {
                let text = "neither its NFS port nor its portmapper knows a MOUNT service";
                Err(unreachable(url, io::Error::new(ErrorKind::NotFound, text)))
            }
            Err(error) => Err(named(error, url, with_port(host, proto::portmap::PORT))),
        }
    }

    /// Where the server's NFS service is.
    #[must_use]
    pub fn nfs_address(&self) -> SocketAddr {
        self.nfs_address
    }

    /// Mounts the directory that `url` names, as [`mount`] does, through this service of its host.
    ///
    /// # Errors
    /// Those of [`mount`].
    pub async fn mount(
        &self,
        url: &NfsUrl,
        options: &MountOptions,
        identity: &Arc<Identity>,
    ) -> Result<Mounted> {
        let identity = identity_for(url, identity);
        let (root, flavors) = self.mnt(&url.path).await?;
        let flavor = choose_flavor(url, &flavors)?;
        let nfs = Nfs3::connect(self.nfs_address, flavor, &identity, options)
            .await
            .map_err(|error| named(error, url, self.nfs_address))?;
        Ok(Mounted { nfs, root })
    }

    /// NULL, RFC 1813 §5.2.0: whether the service answers.
    ///
    /// # Errors
    /// Those of [`Rpc::call`].
    pub async fn null(&self) -> Result<()> {
        self.call(Procedure::Null, &()).await.map(drop)
    }

    /// MNT, RFC 1813 §5.2.1: the handle of a directory and the flavors that can be used with it,
    /// best first.
    ///
    /// # Errors
    /// [`Error::Mount`] when the server refuses, [`Error::Refused`] with `NAMETOOLONG` when the
    /// path is longer than the protocol allows, and those of [`Rpc::call`].
    pub async fn mnt(&self, path: &[u8]) -> Result<(FileHandle, Vec<u32>)> {
        let results = self.call(Procedure::Mnt, &directory(path)?).await?;
        match MountReply::decode(&mut Reader::new(&results))? {
            Ok(ok) => Ok((ok.file_handle, ok.auth_flavors.iter().collect())),
            Err(status) => Err(Error::Mount { status }),
        }
    }

    /// UMNT, RFC 1813 §5.2.3: tells the server's list that the directory is no longer used.
    ///
    /// # Errors
    /// Those of [`Self::mnt`], without a refusal.
    pub async fn umnt(&self, path: &[u8]) -> Result<()> {
        self.call(Procedure::Umnt, &directory(path)?).await.map(drop)
    }

    /// EXPORT, RFC 1813 §5.2.5: what can be mounted.
    ///
    /// # Errors
    /// Those of [`Rpc::call`].
    pub async fn export(&self) -> Result<Vec<ExportEntry>> {
        let results = self.call(Procedure::Export, &()).await?;
        let list = ExportList::decode(&mut Reader::new(&results))?;
        let entries = list.iter().map(|node| ExportEntry {
            directory: node.directory.to_vec(),
            groups: node.groups.iter().map(|group| group.name.to_vec()).collect(),
        });
        Ok(entries.collect())
    }

    /// DUMP, RFC 1813 §5.2.2: who mounted what, as far as clients said.
    ///
    /// # Errors
    /// Those of [`Rpc::call`].
    pub async fn dump(&self) -> Result<Vec<MountEntry>> {
        let results = self.call(Procedure::Dump, &()).await?;
        let list = MountList::decode(&mut Reader::new(&results))?;
        let entries = list.iter().map(|entry| MountEntry {
            hostname: entry.hostname.to_vec(),
            directory: entry.directory.to_vec(),
        });
        Ok(entries.collect())
    }

    async fn call(&self, procedure: Procedure, arguments: &dyn Encode) -> Result<Bytes> {
        let procedure = procedure.code();
        let target = Target { program: PROGRAM, version: VERSION, procedure };
        let credential = sys_credential(&self.identity, &self.machine_name);
        self.rpc.call(Route::Any, target, &credential, arguments, Bytes::new())?.await
    }
}

fn directory(path: &[u8]) -> Result<DirectoryArgs<'_>> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::Refused(Errno::NAMETOOLONG));
    }
    Ok(DirectoryArgs { directory: path })
}

/// Whoever the URL names instead of `identity`.
fn identity_for(url: &NfsUrl, identity: &Arc<Identity>) -> Arc<Identity> {
    let (uid, gid) = (url.uid.unwrap_or(identity.uid), url.gid.unwrap_or(identity.gid));
    if (uid, gid) == (identity.uid, identity.gid) {
        return Arc::clone(identity);
    }
    // The groups are those of somebody else.
    Arc::new(Identity { uid, gid, groups: Vec::new() })
}

async fn resolve(url: &NfsUrl) -> Result<Vec<SocketAddr>> {
    let addresses = tokio::net::lookup_host((url.host.as_str(), NFS_PORT)).await;
    Ok(addresses.map_err(|error| unreachable(url, error))?.collect())
}

async fn nfs_address(host: SocketAddr, url: &NfsUrl, options: &MountOptions) -> SocketAddr {
    let port = match url.port.or(options.port) {
        Some(port) => port,
        // Without a portmapper, or with one that does not know, it is where it nearly always is.
        None => match portmap::port_of(host.ip(), nfs3::PROGRAM, nfs3::VERSION).await {
            Ok(Some(port)) => port,
            Ok(None) | Err(_) => NFS_PORT,
        },
    };
    with_port(host, port)
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// MOUNT is asked by somebody who waits: it fails rather than trying for ever.
fn rpc_options(options: &MountOptions) -> RpcOptions {
    let timeout = options.timeout.min(TIMEOUT_MAX);
    RpcOptions { connections: 1, timeout, recovery: Recovery::Soft, ..options.into() }
}

/// AUTH_SYS if the server takes it, or does not say; AUTH_NONE if it takes only that.
fn choose_flavor(url: &NfsUrl, flavors: &[u32]) -> Result<Flavor> {
    if flavors.is_empty() || flavors.contains(&FLAVOR_SYS) {
        return Ok(Flavor::Sys);
    }
    if flavors.contains(&FLAVOR_NONE) {
        return Ok(Flavor::None);
    }
    let path = url.path.escape_ascii();
    let what = format!("cannot mount {}:{path}", url.bracketed_host());
    let text = format!("the server wants one of the flavors {flavors:?}, of which none is spoken");
    Err(Error::Connection { what, source: Arc::new(io::Error::new(ErrorKind::Unsupported, text)) })
}

/// Names the host as the user did, beside the address that was tried.
fn named(error: Error, url: &NfsUrl, address: SocketAddr) -> Error {
    match error {
        Error::Connection { source, .. } => {
            let what = format!("cannot connect to {}:{}", url.bracketed_host(), address.port());
            Error::Connection { what, source }
        }
        other => other,
    }
}

fn unreachable(url: &NfsUrl, source: io::Error) -> Error {
    let what = format!("cannot reach {}", url.bracketed_host());
    Error::Connection { what, source: Arc::new(source) }
}
