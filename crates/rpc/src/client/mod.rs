//! Calls over TCP (RFC 5531 §11) to one address: any number of calls at once, over one connection
//! or several, through lost connections and lost replies.
//!
//! A call is handed over once and keeps its transaction id until it is answered. Over TCP nothing
//! is lost while a connection stands, so a call is sent again only over a new one: when the
//! connection broke, and when a reply is overdue by [`RpcOptions::timeout`], which breaks it. All
//! unanswered calls then go out again in the order in which they were handed over, from the same
//! port where that is to be had, so that a server's reply cache knows those it has carried out.

mod calls;
mod connect;
mod connection;
mod error;
mod reply;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use proto::oncrpc::{CallHeader, Credential, FLAVOR_NONE};
use proto::xdr::{Encode, Writer};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::record::MARK_ROOM;
use calls::{Draft, Message};
pub use connect::RESERVED_PORTS;
use connection::{Connection, SILENCE_MAX, Shared};
pub use error::{Error, Result};

/// How calls reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcOptions {
    /// TCP connections, 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// How long no byte of a reply may come while a call is unanswered, until the connection is
    /// made anew and the call sent again; this also happens when a call is answered that was sent
    /// so much later. And how long the making of a connection may take. At least 100 ms and at most
    /// a day.
    pub timeout: Duration,
    /// How often a call is sent again until it fails ([`Recovery::Soft`]): after this many times
    /// `timeout` and one. A silent server is reported then at the latest (`Hard`), or after 5 s.
    pub retransmissions: u32,
    /// The handling of a call that has no reply by then.
    pub recovery: Recovery,
    /// Call from a port below 1024 where that is permitted.
    pub reserved_port: bool,
}

impl RpcOptions {
    /// How long an unanswered call is waited for before its loss is reported.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.timeout.saturating_mul(self.retransmissions.saturating_add(1))
    }
}

/// The handling of calls without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// They are retransmitted for ever.
    Hard,
    /// They fail with [`Error::TimedOut`] after the retransmissions.
    Soft,
}

/// Which connection a call goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The one with the fewest calls outstanding.
    Any,
    /// Calls with one key share a connection and are sent in the order in which they were handed
    /// over.
    Pinned(u64),
}

/// A procedure of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The program's number.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure of that version.
    pub procedure: u32,
}

/// The connections to one server. Clones share them; the last of them and of their calls to go
/// closes them.
#[derive(Clone, Debug)]
pub struct Rpc {
    connections: Arc<[Connection]>,
}

impl Rpc {
    /// Connects to `address`. The first connection is made at once, each other when a call is on
    /// it. They live on the runtime that this is called on.
    ///
    /// # Errors
    /// [`Error::Connection`] names the address.
    pub async fn connect(address: SocketAddr, options: &RpcOptions) -> Result<Self> {
        let shared = Arc::new(Shared::new(address, options.clone()));
        let first = connect_first(&shared).await.map_err(|source| {
            let what = format!("cannot connect to {address}");
            Error::Connection { what, source: Arc::new(source) }
        })?;
        let others = options.connections.clamp(1, CONNECTIONS_MAX) - 1;
        let streams = std::iter::once(Some(first)).chain((0..others).map(|_| None));
        let connections =
            streams.map(|stream| Connection::start(Arc::clone(&shared), stream)).collect();
        Ok(Self { connections })
    }

    /// The address of the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared().address
    }

    /// How calls reach the server.
    #[must_use]
    pub fn options(&self) -> &RpcOptions {
        &self.shared().options
    }

    /// Replies of `bytes` and a head will be taken from now on, as those of [`REPLY_BYTES_MIN`]
    /// always are. A longer one ends the connection: it is not what was asked for.
    pub fn expect_reply_bytes(&self, bytes: u32) {
        self.shared().expect_reply_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    fn shared(&self) -> &Shared {
        self.connections.first().expect("there is at least one").shared()
    }

    /// Hands a call over: it takes its place in the order before this returns. The result is what
    /// follows the reply's header.
    ///
    /// `payload` is opaque data behind `arguments`, which end with its length. It is padded and
    /// sent from where it lies.
    ///
    /// # Errors
    /// [`Error::TooLong`] when the call does not fit into a record. Awaiting the call
    /// yields [`Error::Accept`] or [`Error::Reject`] when the server did not carry it out,
    /// [`Error::Decode`] when the reply has no sound header, and [`Error::TimedOut`] or
    /// [`Error::Connection`] when a soft mount gives up.
    pub fn call(
        &self,
        route: Route,
        target: Target,
        credential: &Credential<'_>,
        arguments: &dyn Encode,
        payload: Bytes,
    ) -> Result<Call> {
        let Target { program, version, procedure } = target;
        let mut w = Writer::with_capacity(HEAD_BYTES);
        w.array(&MARK_ROOM);
        let (credential, verifier_flavor) = (*credential, FLAVOR_NONE);
        CallHeader { xid: 0, program, version, procedure, credential, verifier_flavor }
            .encode(&mut w);
        arguments.encode(&mut w);
        let draft = Draft::new(w.into_vec(), payload)?;
        Ok(self.hand_over(route, draft))
    }

    fn hand_over(&self, route: Route, draft: Draft) -> Call {
        let connection = match route {
            Route::Any => self.least_busy(),
            Route::Pinned(key) => {
                let count = u64::try_from(self.connections.len()).expect("at most 16");
                usize::try_from(key % count).expect("at most 16")
            }
        };
        let (number, message, reply) = self.connections[connection].add(draft);
        Call { rpc: self.clone(), route, connection, number, message, reply }
    }

    fn least_busy(&self) -> usize {
        let busy = |connection: &Connection| connection.outstanding();
        let least = self.connections.iter().enumerate().min_by_key(|(_, c)| busy(c));
        least.map_or(0, |(index, _)| index)
    }
}

/// Connects, and reports a server that takes long to accept.
async fn connect_first(shared: &Shared) -> io::Result<TcpStream> {
    let mut connecting = pin!(connect::connect(shared.address, None, &shared.options));
    match tokio::time::timeout(SILENCE_MAX, &mut connecting).await {
        Ok(connected) => connected,
        Err(_) => {
            shared.note_silence();
            connecting.await
        }
    }
}

/// A call that was handed over. Dropping it forgets the call: its memory is free and a late reply
/// is ignored, but the server may carry it out all the same.
#[derive(Debug)]
#[must_use = "a call that is dropped is forgotten"]
pub struct Call {
    rpc: Rpc,
    route: Route,
    connection: usize,
    number: u64,
    message: Message,
    reply: oneshot::Receiver<Result<Bytes>>,
}

impl Call {
    /// Hands the same call over once more, as a new one: for a server that said "not now".
    pub fn again(&self) -> Self {
        self.rpc.hand_over(self.route, self.message.draft())
    }
}

impl Future for Call {
    type Output = Result<Bytes>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.reply)
            .poll(context)
            .map(|reply| reply.expect("a call stays in the table until it is answered or dropped"))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.rpc.connections[self.connection].release(self.number);
    }
}

/// A number that no peer can guess.
fn random() -> u64 {
    // The standard library seeds each hasher with one.
    RandomState::new().hash_one(())
}

/// Connections to one server at most, as in the Linux kernel's client.
pub const CONNECTIONS_MAX: usize = 16;

/// Replies up to this many bytes and a head are always taken: more than servers give or clients ask
/// for in one call today.
pub const REPLY_BYTES_MIN: usize = 4 << 20;

/// Room for the head of nearly every call: marks and header, a credential with a long machine name
/// and 16 groups, a handle and a name.
const HEAD_BYTES: usize = 512;
