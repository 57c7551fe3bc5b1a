//! A peer whose handling of each call a test defines.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use proto::oncrpc::{AcceptStat, CallHeader, Credential, ReplyHeader, decode_call, encode_success};
use proto::xdr::{Encode as _, Reader, Writer};
use rpc::client::{Call, Route, Rpc, RpcOptions, Target};
use rpc::record;
use spillway_client::error::{Attempt, ServerName};
use spillway_client::{Error, Recovery, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Generous: the machine may be busy, and a passing test never waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// More than any call of these tests.
const CALL_BYTES_MAX: usize = 64 << 20;

/// Something to connect to.
pub(crate) struct Peer {
    listener: TcpListener,
}

impl Peer {
    pub(crate) async fn new() -> Self {
        Self::on("127.0.0.1:0").await
    }

    pub(crate) async fn on(address: &str) -> Self {
        Self { listener: TcpListener::bind(address).await.unwrap() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// The next connection that is made to it.
    pub(crate) async fn accept(&self) -> Connected {
        let accepted = within(self.listener.accept()).await;
        let (stream, address) = accepted.unwrap();
        stream.set_nodelay(true).unwrap();
        Connected { stream, port: address.port() }
    }

    /// A client and its first connection.
    pub(crate) async fn connected(options: &RpcOptions) -> (Self, Rpc, Connected) {
        let peer = Self::new().await;
        let rpc = Rpc::connect(peer.address(), options).await.unwrap();
        let connected = peer.accept().await;
        (peer, rpc, connected)
    }

    /// Whether a connection is made in so much time.
    pub(crate) async fn is_called_within(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.listener.accept()).await.is_ok()
    }
}

/// A connection as the peer has it. Dropping it closes it.
pub(crate) struct Connected {
    pub(crate) stream: TcpStream,
    /// The client's.
    pub(crate) port: u16,
}

/// A call as the peer got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) procedure: u32,
    /// Of the credential.
    pub(crate) flavor: u32,
    pub(crate) arguments: Vec<u8>,
}

impl Received {
    /// The number that [`ask`] was given.
    pub(crate) fn asked(&self) -> u32 {
        Reader::new(&self.arguments).u32("argument").unwrap()
    }
}

impl Connected {
    /// The next call; `None` when the client has closed the connection.
    pub(crate) async fn try_receive(&mut self) -> Option<Received> {
        let record = within(record::read(&mut self.stream, CALL_BYTES_MAX)).await.ok()?;
        let mut r = Reader::new(&record);
        let CallHeader { xid, program, procedure, credential, .. } = decode_call(&mut r).unwrap();
        let (flavor, arguments) = (credential.flavor(), record[r.position()..].to_vec());
        Some(Received { xid, program, procedure, flavor, arguments })
    }

    pub(crate) async fn receive(&mut self) -> Received {
        self.try_receive().await.expect("the client calls")
    }

    pub(crate) async fn receive_all(&mut self, count: usize) -> Vec<Received> {
        let mut calls = Vec::new();
        for _ in 0..count {
            calls.push(self.receive().await);
        }
        calls
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn answer(&mut self, call: &Received, results: &[u8]) {
        self.send(&reply(call.xid, results)).await;
    }

    /// Answers a call with an error of RPC.
    pub(crate) async fn refuse(&mut self, xid: u32, stat: AcceptStat) {
        let reply = ReplyHeader::Accepted { xid, stat };
        self.send(&record::encode(|w| reply.encode(w))).await;
    }

    /// Answers with the number that was asked.
    pub(crate) async fn echo(&mut self, call: &Received) {
        self.answer(call, &call.arguments[..4]).await;
    }

    /// Whether no call comes in so much time.
    pub(crate) async fn is_quiet_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.begin()).await.is_err()
    }

    /// Waits for something of a call.
    pub(crate) async fn begin(&mut self) {
        assert_eq!(self.stream.peek(&mut [0]).await.unwrap(), 1);
    }
}

/// A successful reply with its mark.
pub(crate) fn reply(xid: u32, results: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    encode_success(&mut w, xid);
    // Not padded: results may be cut anywhere.
    record::in_fragments(&[w.as_slice(), results].concat(), &[])
}

/// Calls with a number for an argument, and opaque data behind it.
pub(crate) fn ask_with(rpc: &Rpc, route: Route, number: u32, payload: Bytes) -> Call {
    let target = Target { program: 7, version: 8, procedure: 9 };
    rpc.call(route, target, &Credential::None, &number, payload).unwrap()
}

pub(crate) fn ask(rpc: &Rpc, number: u32) -> Call {
    ask_with(rpc, Route::Any, number, Bytes::new())
}

/// The number that a call was answered with.
pub(crate) async fn answered(call: Call) -> Result<u32> {
    let results = within(call).await.map_err(failed)?;
    Ok(Reader::new(&results).u32("results")?)
}

/// The client's error for that of a call.
pub(crate) fn failed(error: rpc::client::Error) -> Error {
    Error::of_rpc(error, Attempt::Call, &ServerName { host: "peer".to_owned(), port: None })
}

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens in time")
}

/// A client that never gives up and hardly ever tries again by itself.
pub(crate) fn hard() -> RpcOptions {
    RpcOptions {
        connections: 1,
        timeout: PATIENCE,
        retransmissions: 2,
        recovery: Recovery::Hard,
        reserved_port: false,
    }
}

/// A client that gives up after three times this.
pub(crate) fn soft(timeout: Duration) -> RpcOptions {
    RpcOptions { timeout, recovery: Recovery::Soft, ..hard() }
}
