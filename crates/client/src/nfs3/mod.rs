//! The procedures of NFS version 3 (RFC 1813 §3.3) as typed calls, one file per subject.
//!
//! A method queues its call when it is called, before its future is polled: the calls of one
//! connection are sent in the order of the program text. The future owns all it needs, and dropping
//! it drops the call. Data and names are slices of the received record.
//!
//! WRITE, COMMIT and SETATTR of one file always use the same connection. After NFS3ERR_JUKEBOX a
//! call is made again with a new xid after a pause.
//!
//! ```
//! # use std::{path::Path, sync::Arc};
//! # use server::{Server, config::{Config, Overrides}};
//! use proto::nfs3::{CreateHow, SetAttributes, StableHow};
//! use spillway_client::{Identity, MountOptions, NfsUrl, mount3};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (dir, state) = (tempfile::tempdir()?, tempfile::tempdir()?);
//! # let text = format!(
//! #     "[[export]]\npath = {:?}\nname = \"/export\"\nsquash = \"none\"", dir.path()
//! # );
//! # let overrides = Overrides {
//! #     listen: vec![([127, 0, 0, 1], 0).into()],
//! #     // The server makes it: a server of another example may have set the umask to 0.
//! #     state_dir: Some(state.path().join("state")),
//! #     ..Overrides::default()
//! # };
//! # let server = Server::start(Config::parse(&text, Path::new("example"), &overrides)?).await?;
//! # let port = server.local_addrs()[0].port();
//! let url: NfsUrl = format!("nfs://localhost:{port}/export").parse()?;
//! let me = Arc::new(Identity::of_process());
//! let mounted = mount3::mount(&url, &MountOptions::default(), &me).await?;
//! let (nfs, root) = (mounted.nfs, mounted.root);
//!
//! let how = CreateHow::Unchecked(SetAttributes::default());
//! let file = match nfs.create(root, b"greeting", how).await?.object {
//!     Some(handle) => handle,
//!     None => nfs.lookup(root, b"greeting").await?.object,
//! };
//! // Both are in flight before the first reply.
//! let hello = nfs.write(file, 0, "hello, ".into(), StableHow::Unstable);
//! let world = nfs.write(file, 7, "world".into(), StableHow::Unstable);
//! let (hello, world) = tokio::try_join!(hello, world)?;
//! let committed = nfs.commit(file, 0, 0).await?;
//! // Otherwise the server has lost data, which has to be written again.
//! assert!([hello.verifier, world.verifier] == [committed.verifier; 2]);
//!
//! let read = nfs.read(file, 0, 100).await?;
//! assert_eq!((&read.data[..], read.eof), (&b"hello, world"[..], true));
//! # Ok(())
//! # }
//! ```

mod attr;
mod fsinfo;
mod namespace;
mod read;
mod readdir;
mod write;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{FileHandle, PROGRAM, Procedure, Reply, Status, VERSION};
use proto::oncrpc::{AuthSys, Credential, GIDS_MAX, Gids, MACHINE_NAME_BYTES_MAX};
use proto::xdr::{Decode, DecodeError, Encode, decode_all};
use rpc::client::{self, Call, Route, Rpc, RpcOptions};

pub use namespace::Target;
pub use read::ReadData;
pub(crate) use read::{ReadPart, read_whole};
pub use readdir::{Listing, Name, leave_out_rejected};

use crate::error::{Attempt, ServerName};
use crate::{Error, Identity, MountOptions, Recovery, Result};

/// The authentication flavor of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys,
}

/// Calls of one user to an NFS service. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Nfs3 {
    rpc: Rpc,
    /// For errors.
    server: Arc<ServerName>,
    flavor: Flavor,
    identity: Arc<Identity>,
    machine_name: Arc<[u8]>,
}

impl Nfs3 {
    /// Connects to an NFS service.
    ///
    /// # Errors
    /// [`Error::Connection`].
    pub async fn connect(
        address: SocketAddr,
        flavor: Flavor,
        identity: &Arc<Identity>,
        options: &MountOptions,
    ) -> Result<Self> {
        Self::connect_named(address.into(), address, flavor, identity, options).await
    }

    /// Like [`connect`](Self::connect), for errors that name the service `server`.
    pub(crate) async fn connect_named(
        server: ServerName,
        address: SocketAddr,
        flavor: Flavor,
        identity: &Arc<Identity>,
        options: &MountOptions,
    ) -> Result<Self> {
        let rpc = Rpc::connect(address, &options.rpc())
            .await
            .map_err(|error| Error::of_rpc(error, Attempt::Connect, &server))?;
        let (server, identity) = (Arc::new(server), Arc::clone(identity));
        Ok(Self { rpc, server, flavor, identity, machine_name: machine_name() })
    }

    /// The calls of another user to the same service.
    #[must_use]
    pub fn as_user(&self, identity: &Arc<Identity>) -> Self {
        Self { identity: Arc::clone(identity), ..self.clone() }
    }

    /// The user.
    #[must_use]
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The address of the service.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.rpc.address()
    }

    /// NULL, RFC 1813 §3.3.0.
    ///
    /// # Errors
    /// Those of [`Rpc::call`].
    pub fn null(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let call = self.hand_over(Procedure::Null, Route::Any, &(), Bytes::new());
        let server = Arc::clone(&self.server);
        async move {
            let results = call?.await.map_err(|error| Error::of_rpc(error, Attempt::Call, &server));
            let decoded = results.and_then(|results| Ok(decode::<()>(&results)?));
            decoded.map_err(|error| error.in_reply_to(Procedure::Null.name()))
        }
    }

    /// A call with owned results.
    fn ask<O, F>(
        &self,
        procedure: Procedure,
        route: Route,
        arguments: &dyn Encode,
    ) -> impl Future<Output = Result<O>> + Send + use<O, F>
    where
        O: for<'a> Decode<'a> + Send,
        F: for<'a> Decode<'a>,
    {
        self.ask_with(procedure, route, arguments, Bytes::new(), read_reply::<O, F>)
    }

    /// A call whose results `read` decodes from the bytes behind the reply's header.
    fn ask_with<O: Send, R: ReadResults<O>>(
        &self,
        procedure: Procedure,
        route: Route,
        arguments: &dyn Encode,
        payload: Bytes,
        read: R,
    ) -> impl Future<Output = Result<O>> + Send + use<O, R> {
        let call = self.hand_over(procedure, route, arguments, payload);
        let mut delays = Delays::new(self.rpc.options());
        let server = Arc::clone(&self.server);
        async move {
            let mut call = call?;
            loop {
                let reply = (&mut call)
                    .await
                    .map_err(|error| Error::of_rpc(error, Attempt::Call, &server))
                    .and_then(|results| Ok(read(&results)?));
                let status = match reply.map_err(|error| error.in_reply_to(procedure.name()))? {
                    Ok(results) => return Ok(results),
                    Err(status) => status,
                };
                if status != Status::Jukebox || !delays.wait().await {
                    return Err(Error::Nfs { procedure, status });
                }
                call = call.again();
            }
        }
    }

    fn hand_over(
        &self,
        procedure: Procedure,
        route: Route,
        arguments: &dyn Encode,
        payload: Bytes,
    ) -> Result<Call> {
        let procedure = procedure.code();
        let target = client::Target { program: PROGRAM, version: VERSION, procedure };
        self.rpc
            .call(route, target, &self.credential(), arguments, payload)
            .map_err(|error| Error::of_rpc(error, Attempt::Call, &self.server))
    }

    fn credential(&self) -> Credential<'_> {
        match self.flavor {
            Flavor::None => Credential::None,
            Flavor::Sys => sys_credential(&self.identity, &self.machine_name),
        }
    }
}

/// Decodes the results of a reply. The outer error is that of a malformed reply.
trait ReadResults<O>:
    Fn(&Bytes) -> std::result::Result<std::result::Result<O, Status>, DecodeError> + Send
{
}

impl<O, R> ReadResults<O> for R where
    R: Fn(&Bytes) -> std::result::Result<std::result::Result<O, Status>, DecodeError> + Send
{
}

/// The pauses of a call after NFS3ERR_JUKEBOX. The Linux client pauses for 5 s; most servers are
/// ready sooner.
struct Delays {
    next: Duration,
    /// When a soft mount gives up.
    until: Option<Instant>,
}

impl Delays {
    fn new(options: &RpcOptions) -> Self {
        let until = match options.recovery {
            Recovery::Hard => None,
            Recovery::Soft => Some(Instant::now() + options.patience()),
        };
        Self { next: JUKEBOX_PAUSE_MIN, until }
    }

    /// Pauses. Returns `false` at once if the call has to fail.
    async fn wait(&mut self) -> bool {
        let pause = self.next;
        if self.until.is_some_and(|until| Instant::now() + pause > until) {
            return false;
        }
        tokio::time::sleep(pause).await;
        self.next = (pause * 2).min(JUKEBOX_PAUSE_MAX);
        true
    }
}

/// Decodes a reply with owned results, of which a failure has the status alone.
fn read_reply<O, F>(
    results: &Bytes,
) -> std::result::Result<std::result::Result<O, Status>, DecodeError>
where
    O: for<'a> Decode<'a>,
    F: for<'a> Decode<'a>,
{
    Ok(decode::<Reply<O, F>>(results)?.map_err(|failure| failure.status))
}

/// Decodes results, which must end with the record: trailing bytes show that server and client
/// disagree about the layout, so that no field can be trusted.
fn decode<'a, T: Decode<'a>>(results: &'a Bytes) -> std::result::Result<T, DecodeError> {
    decode_all(results)
}

/// Rejects the empty handle. RFC 2055 defines it for calls; in a reply it identifies no file, and
/// all files with it would share one inode.
pub(crate) fn check_handle(handle: Option<FileHandle>) -> std::result::Result<(), DecodeError> {
    match handle {
        Some(handle) if handle.as_bytes().is_empty() => {
            Err(DecodeError { what: "nfs_fh3", at_byte: 0 })
        }
        _ => Ok(()),
    }
}

/// The connection for calls that change a file's data and length, so that they arrive in order.
fn pinned(file: FileHandle) -> Route {
    let mut hasher = DefaultHasher::new();
    file.hash(&mut hasher);
    Route::Pinned(hasher.finish())
}

/// The AUTH_SYS credential, with the first 16 groups.
pub(crate) fn sys_credential<'a>(identity: &Identity, machine_name: &'a [u8]) -> Credential<'a> {
    let groups = &identity.groups[..identity.groups.len().min(GIDS_MAX)];
    let gids = Gids::new(groups).expect("at most 16 groups");
    let (uid, gid) = (identity.uid, identity.gid);
    Credential::Sys(AuthSys { stamp: 0, machine_name, uid, gid, gids })
}

/// The name of this host, limited to the length in AUTH_SYS.
pub(crate) fn machine_name() -> Arc<[u8]> {
    let system = rustix::system::uname();
    let name = system.nodename().to_bytes();
    name[..name.len().min(MACHINE_NAME_BYTES_MAX)].into()
}

const JUKEBOX_PAUSE_MIN: Duration = Duration::from_millis(100);
const JUKEBOX_PAUSE_MAX: Duration = Duration::from_secs(5);
