//! The procedures of NFS version 3 (RFC 1813 §3.3) as typed calls. The files part them by subject.
//!
//! A method hands its call over when it is called, before the future it returns is polled: calls
//! that go over one connection are sent in the order of the program text. The future owns all it
//! needs, and dropping it forgets the call. Data and names are slices of the received record.
//!
//! WRITE, COMMIT and SETATTR of one file always go over the same connection. A call that the server
//! answers with NFS3ERR_JUKEBOX is made anew after a pause.
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
//! #     state_dir: Some(state.path().to_owned()),
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
//! // Both are on their way before the first is answered.
//! let hello = nfs.write(file, 0, "hello, ".into(), StableHow::Unstable);
//! let world = nfs.write(file, 7, "world".into(), StableHow::Unstable);
//! let (hello, world) = tokio::try_join!(hello, world)?;
//! let committed = nfs.commit(file, 0, 0).await?;
//! // Otherwise the server has forgotten data in between, and it has to be written again.
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
use proto::xdr::{Decode, DecodeError, Encode, Reader};

pub use namespace::Target;
pub use read::ReadData;
pub use readdir::{Listing, Name};

use crate::rpc::{self, Route, Rpc};
use crate::{Error, Identity, MountOptions, Recovery, Result};

/// How the server is told who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// AUTH_NONE: not at all.
    None,
    /// AUTH_SYS.
    Sys,
}

/// Calls of one user to an NFS service. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Nfs3 {
    rpc: Rpc,
    flavor: Flavor,
    identity: Arc<Identity>,
    machine_name: Arc<[u8]>,
}

impl Nfs3 {
    /// Connects to an NFS service.
    ///
    /// # Errors
    /// [`Error::Connection`] names the address.
    pub async fn connect(
        address: SocketAddr,
        flavor: Flavor,
        identity: &Arc<Identity>,
        options: &MountOptions,
    ) -> Result<Self> {
        let rpc = Rpc::connect(address, &options.into()).await?;
        let identity = Arc::clone(identity);
        Ok(Self { rpc, flavor, identity, machine_name: machine_name() })
    }

    /// The same service, called as another user.
    #[must_use]
    pub fn as_user(&self, identity: &Arc<Identity>) -> Self {
        Self { identity: Arc::clone(identity), ..self.clone() }
    }

    /// Who calls.
    #[must_use]
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The address of the service.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.rpc.address()
    }

    /// NULL, RFC 1813 §3.3.0: whether the service answers.
    ///
    /// # Errors
    /// Those of [`Rpc::call`].
    pub fn null(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let call = self.hand_over(Procedure::Null, Route::Any, &(), Bytes::new());
        async move { call?.await.map(drop) }
    }

    /// A call whose results own what they hold.
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
        self.ask_with(procedure, route, arguments, Bytes::new(), |results| {
            Ok(decode::<Reply<O, F>>(results)?.map_err(|failure| failure.status))
        })
    }

    /// A call whose results `read` makes of the bytes behind the reply's header.
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
        async move {
            let mut call = call?;
            loop {
                let results = (&mut call).await?;
                let status = match read(&results)? {
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
    ) -> Result<rpc::Call> {
        let procedure = procedure.code();
        let target = rpc::Target { program: PROGRAM, version: VERSION, procedure };
        self.rpc.call(route, target, &self.credential(), arguments, payload)
    }

    fn credential(&self) -> Credential<'_> {
        match self.flavor {
            Flavor::None => Credential::None,
            Flavor::Sys => sys_credential(&self.identity, &self.machine_name),
        }
    }
}

/// What makes results of a reply: the outer error is a malformed one.
trait ReadResults<O>:
    Fn(&Bytes) -> std::result::Result<std::result::Result<O, Status>, DecodeError> + Send
{
}

impl<O, R> ReadResults<O> for R where
    R: Fn(&Bytes) -> std::result::Result<std::result::Result<O, Status>, DecodeError> + Send
{
}

/// The pauses of a call that a server answers with NFS3ERR_JUKEBOX: not now. The Linux client
/// pauses for 5 s; most servers are ready sooner.
struct Delays {
    next: Duration,
    /// A soft mount gives up then.
    until: Option<Instant>,
}

impl Delays {
    fn new(options: &rpc::RpcOptions) -> Self {
        let until = match options.recovery {
            Recovery::Hard => None,
            Recovery::Soft => Some(Instant::now() + options.patience()),
        };
        Self { next: JUKEBOX_PAUSE_MIN, until }
    }

    /// Pauses. `false`, at once, when it is time to give up.
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

/// Reads results. What trails behind them is left alone, as other clients do.
fn decode<'a, T: Decode<'a>>(results: &'a Bytes) -> std::result::Result<T, DecodeError> {
    T::decode(&mut Reader::new(results))
}

/// The connection for what changes a file's data and length, so that a server gets it in order.
fn pinned(file: FileHandle) -> Route {
    let mut hasher = DefaultHasher::new();
    file.hash(&mut hasher);
    Route::Pinned(hasher.finish())
}

/// The AUTH_SYS credential; groups beyond the first 16 do not fit.
pub(crate) fn sys_credential<'a>(identity: &Identity, machine_name: &'a [u8]) -> Credential<'a> {
    let groups = &identity.groups[..identity.groups.len().min(GIDS_MAX)];
    let gids = Gids::new(groups).expect("at most 16 groups");
    let (uid, gid) = (identity.uid, identity.gid);
    Credential::Sys(AuthSys { stamp: 0, machine_name, uid, gid, gids })
}

/// The name of this host, cut to what AUTH_SYS carries.
pub(crate) fn machine_name() -> Arc<[u8]> {
    let system = rustix::system::uname();
    let name = system.nodename().to_bytes();
    name[..name.len().min(MACHINE_NAME_BYTES_MAX)].into()
}

const JUKEBOX_PAUSE_MIN: Duration = Duration::from_millis(100);
const JUKEBOX_PAUSE_MAX: Duration = Duration::from_secs(5);
