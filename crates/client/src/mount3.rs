//! MOUNT version 3 (RFC 1813 Appendix I): finds the ports of the services, the root handle and the
//! authentication flavor.

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
use proto::xdr::{DecodeError, Encode, decode_all};
use rpc::client::{Route, Rpc, RpcOptions, Target};
use rustix::io::Errno;

use crate::error::{Attempt, ServerName};
use crate::nfs3::{Flavor, Nfs3, check_handle, machine_name, sys_credential};
use crate::portmap::on_port;
use crate::{Error, Identity, MountOptions, NfsUrl, Recovery, Result, portmap};

/// The default port of NFS.
pub const NFS_PORT: u16 = 2049;
/// Maximum timeout of a MOUNT call, also with a larger `timeo`.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// A mounted directory.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The calls to its NFS service.
    pub nfs: Nfs3,
    /// The handle of the directory.
    pub root: FileHandle,
}

/// Mounts the directory of `url`: finds the services, fetches the root handle, and connects as
/// `identity`, or as the user in the URL.
///
/// A port in the URL overrides the one in the options.
///
/// # Errors
/// [`Error::Mount`] if the server refuses the path; [`Error::Connection`] if it cannot be reached;
/// [`Error::Flavor`]; and those of [`Rpc::call`].
pub async fn mount(
    url: &NfsUrl,
    options: &MountOptions,
    identity: &Arc<Identity>,
) -> Result<Mounted> {
    let identity = identity_for(url, identity);
    let service = Mount3::find(url, options, &identity).await?;
    service.mount(url, options, &identity).await
}

/// An entry of EXPORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// The exported directory.
    pub directory: Vec<u8>,
    /// The hosts, networks or netgroups that may mount it; all if empty.
    pub groups: Vec<Vec<u8>>,
}

/// An entry of DUMP: a mount that a client has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The client.
    pub hostname: Vec<u8>,
    /// The mounted directory.
    pub directory: Vec<u8>,
}

/// The MOUNT service of a server.
#[derive(Clone, Debug)]
pub struct Mount3 {
    rpc: Rpc,
    /// For errors.
    server: ServerName,
    identity: Arc<Identity>,
    machine_name: Arc<[u8]>,
    /// The address of the server's NFS service.
    nfs_address: SocketAddr,
}

impl Mount3 {
    /// Finds the MOUNT service of the host in `url`: on the port in the URL or the options, on the
    /// NFS port, as Spillway serves it, or on the port that the portmapper returns.
    ///
    /// # Errors
    /// [`Error::Connection`] if the host cannot be reached, or the service is not registered.
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
        Err(failure.unwrap_or_else(|| not_found(url, ErrorKind::NotFound.into())))
    }

    async fn find_at(
        host: SocketAddr,
        url: &NfsUrl,
        options: &MountOptions,
        identity: &Arc<Identity>,
    ) -> Result<Self> {
        let nfs_address = nfs_address(host, url, options).await;
        let connect = async |address: SocketAddr| {
            let server = url.server(Some(address.port()));
            let rpc = Rpc::connect(address, &rpc_options(options))
                .await
                .map_err(|error| Error::of_rpc(error, Attempt::Connect, &server))?;
            let (identity, machine_name) = (Arc::clone(identity), machine_name());
            Ok(Self { rpc, server, identity, machine_name, nfs_address })
        };
        if let Some(port) = url.mount_port.or(options.mount_port) {
            return connect(on_port(host, port)).await;
        }
        let on_nfs_port = connect(nfs_address).await?;
        let Err(refusal) = on_nfs_port.null().await else { return Ok(on_nfs_port) };
        match portmap::port_of(host, PROGRAM, VERSION).await {
            Ok(Some(port)) => connect(on_port(host, port)).await,
            // Most servers refuse it. The error of a silent one is better than the portmapper's.
            _ if !matches!(refusal, Error::Accept(_)) => Err(refusal),
            Ok(None) => {
                let text = "neither its NFS port nor its portmapper offers a MOUNT service";
                Err(not_found(url, io::Error::new(ErrorKind::NotFound, text)))
            }
            Err(error) => Err(error.at_host(&url.host)),
        }
    }

    /// The address of this service.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.rpc.address()
    }

    /// The address of the server's NFS service.
    #[must_use]
    pub fn nfs_address(&self) -> SocketAddr {
        self.nfs_address
    }

    /// Mounts the directory of `url`, as [`mount`] does, through this service of its host.
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
        let (address, server) = (self.nfs_address, url.server(Some(self.nfs_address.port())));
        let flavor = choose_flavor(&server, flavors)?;
        let nfs = Nfs3::connect_named(server, address, flavor, &identity, options).await?;
        Ok(Mounted { nfs, root })
    }

    /// NULL, RFC 1813 §5.2.0.
    ///
    /// # Errors
    /// Those of [`Rpc::call`].
    pub async fn null(&self) -> Result<()> {
        self.call(Procedure::Null, &(), |results| decode_all(results)).await
    }

    /// MNT, RFC 1813 §5.2.1: the handle of a directory and the flavors that can be used with it,
    /// best first.
    ///
    /// # Errors
    /// [`Error::Mount`] if the server refuses, [`Error::Refused`] with `NAMETOOLONG` if the path is
    /// longer than the protocol allows, and those of [`Rpc::call`].
    pub async fn mnt(&self, path: &[u8]) -> Result<(FileHandle, Vec<u32>)> {
        let directory = directory(path)?;
        let reply = self.call(Procedure::Mnt, &directory, |results| {
            let reply = decode_all::<MountReply<'_>>(results)?;
            check_handle(reply.as_ref().ok().map(|ok| ok.file_handle))?;
            Ok(reply.map(|ok| (ok.file_handle, ok.auth_flavors.iter().collect())))
        });
        match reply.await? {
            Ok(root_and_flavors) => Ok(root_and_flavors),
            Err(status) => Err(Error::Mount { status }),
        }
    }

    /// UMNT, RFC 1813 §5.2.3: removes the mount from the server's list.
    ///
    /// # Errors
    /// Those of [`Self::mnt`], without a refusal.
    pub async fn umnt(&self, path: &[u8]) -> Result<()> {
        self.call(Procedure::Umnt, &directory(path)?, |results| decode_all(results)).await
    }

    /// EXPORT, RFC 1813 §5.2.5: the list of exports.
    ///
    /// # Errors
    /// Those of [`Rpc::call`].
    pub async fn export(&self) -> Result<Vec<ExportEntry>> {
        let list = self.call(Procedure::Export, &(), |results| {
            let list = decode_all::<ExportList<'_>>(results)?;
            let entries = list.iter().map(|node| ExportEntry {
                directory: node.directory.to_vec(),
                groups: node.groups.iter().map(|group| group.name.to_vec()).collect(),
            });
            Ok(entries.collect())
        });
        list.await
    }

    /// DUMP, RFC 1813 §5.2.2: the mounts that clients have reported.
    ///
    /// # Errors
    /// Those of [`Rpc::call`].
    pub async fn dump(&self) -> Result<Vec<MountEntry>> {
        let list = self.call(Procedure::Dump, &(), |results| {
            let list = decode_all::<MountList<'_>>(results)?;
            let entries = list.iter().map(|entry| MountEntry {
                hostname: entry.hostname.to_vec(),
                directory: entry.directory.to_vec(),
            });
            Ok(entries.collect())
        });
        list.await
    }

    /// Makes a call and decodes its results with `read`.
    async fn call<O>(
        &self,
        procedure: Procedure,
        arguments: &dyn Encode,
        read: impl FnOnce(&[u8]) -> std::result::Result<O, DecodeError>,
    ) -> Result<O> {
        let target = Target { program: PROGRAM, version: VERSION, procedure: procedure.code() };
        let credential = sys_credential(&self.identity, &self.machine_name);
        let failed = |error| Error::of_rpc(error, Attempt::Call, &self.server);
        let call = self.rpc.call(Route::Any, target, &credential, arguments, Bytes::new());
        let results = call.map_err(failed)?.await.map_err(failed);
        let results = results.and_then(|results| Ok(read(&results)?));
        results.map_err(|error| error.in_reply_to(procedure.name()))
    }
}

fn directory(path: &[u8]) -> Result<DirectoryArgs<'_>> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::Refused(Errno::NAMETOOLONG));
    }
    Ok(DirectoryArgs { directory: path })
}

/// `identity`, with the user and group in the URL.
fn identity_for(url: &NfsUrl, identity: &Arc<Identity>) -> Arc<Identity> {
    let (uid, gid) = (url.uid.unwrap_or(identity.uid), url.gid.unwrap_or(identity.gid));
    if (uid, gid) == (identity.uid, identity.gid) {
        return Arc::clone(identity);
    }
    // The groups are those of another user.
    Arc::new(Identity { uid, gid, groups: Vec::new() })
}

async fn resolve(url: &NfsUrl) -> Result<Vec<SocketAddr>> {
    let addresses = tokio::net::lookup_host((url.host.as_str(), NFS_PORT)).await;
    Ok(addresses.map_err(|error| not_found(url, error))?.collect())
}

async fn nfs_address(host: SocketAddr, url: &NfsUrl, options: &MountOptions) -> SocketAddr {
    let port = match url.port.or(options.port) {
        Some(port) => port,
        // Without a portmapper, or if NFS is not registered, the default port is used.
        None => match portmap::port_of(host, nfs3::PROGRAM, nfs3::VERSION).await {
            Ok(Some(port)) => port,
            Ok(None) | Err(_) => NFS_PORT,
        },
    };
    on_port(host, port)
}

/// The options for MOUNT calls, which fail rather than being retried for ever.
fn rpc_options(options: &MountOptions) -> RpcOptions {
    let timeout = options.timeout.min(TIMEOUT_MAX);
    RpcOptions { connections: 1, timeout, recovery: Recovery::Soft, ..options.rpc() }
}

/// AUTH_SYS if the server accepts it, or returns no list; AUTH_NONE if it accepts only that.
fn choose_flavor(server: &ServerName, flavors: Vec<u32>) -> Result<Flavor> {
    if flavors.is_empty() || flavors.contains(&FLAVOR_SYS) {
        return Ok(Flavor::Sys);
    }
    if flavors.contains(&FLAVOR_NONE) {
        return Ok(Flavor::None);
    }
    Err(Error::Flavor { server: server.clone(), flavors })
}

/// The error of a host or a service that is not found.
fn not_found(url: &NfsUrl, source: io::Error) -> Error {
    let (attempt, server) = (Attempt::Find, url.server(url.port));
    Error::Connection { attempt, server, source: Arc::new(source) }
}
