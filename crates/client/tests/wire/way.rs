//! A way to a server on which a test holds replies.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proto::nfs3::{Procedure, Status};
use proto::oncrpc::{AcceptStat, ReplyHeader};
use proto::xdr::{Encode as _, Writer};
use rpc::record;
use spillway_client::{FileSystem, MountOptions};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::fixture::{Fixture, root_user};
use crate::peer::reply;

/// More than any message of these tests.
const RECORD_BYTES_MAX: usize = 2 << 20;

/// A way to a server on which replies to some procedures wait, and calls of some are refused.
#[derive(Default)]
pub(crate) struct Way {
    pub(crate) setattrs: Hold,
    pub(crate) accesses: Hold,
    pub(crate) commits: Hold,
    pub(crate) reads: Hold,
    pub(crate) writes: Hold,
    pub(crate) renames: Hold,
    pub(crate) links: Hold,
    pub(crate) creates: Hold,
    /// REMOVEs: the calls wait, not the replies.
    pub(crate) removes: Hold,
    /// Procedures whose calls do not reach the server, and the status in place of its reply.
    refused: Mutex<HashMap<u32, Status>>,
    /// The procedure whose next call does not reach the server, which cannot execute it.
    failing: Mutex<Option<u32>>,
    /// The procedure whose next reply is lost, with the connection.
    losing: Mutex<Option<u32>>,
}

/// Replies that wait.
#[derive(Default)]
pub(crate) struct Hold {
    pub(crate) is_holding: AtomicBool,
    pub(crate) held: Notify,
    pub(crate) released: Notify,
    /// The replies have another write verifier than the server's, as after a restart.
    pub(crate) is_restarted: AtomicBool,
}

impl Hold {
    /// From now on, replies wait.
    pub(crate) fn begin(&self) {
        self.is_holding.store(true, Ordering::SeqCst);
    }

    /// Sends the replies that wait. Later ones do not wait.
    pub(crate) fn end(&self) {
        self.is_holding.store(false, Ordering::SeqCst);
        self.released.notify_waiters();
    }
}

impl Way {
    /// Carries one connection after the other. Returns the port.
    async fn to(server: std::net::SocketAddr) -> (Arc<Self>, u16) {
        let way = Arc::new(Self::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let carrying = Arc::clone(&way);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (calls, to_client) = client.into_split();
                let (replies, to_server) = TcpStream::connect(server).await.unwrap().into_split();
                let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
                let (sent, calls_sent) = tokio::sync::mpsc::unbounded_channel();
                let (way, at_calls) = (Arc::clone(&carrying), Arc::clone(&to_client));
                tokio::select! {
                    () = way.carry_calls(calls, to_server, at_calls, sent) => {}
                    () = Arc::clone(&carrying).carry_replies(replies, to_client, calls_sent) => {}
                }
            }
        });
        (way, port)
    }

    async fn carry_replies(
        self: Arc<Self>,
        mut replies: OwnedReadHalf,
        to_client: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
        mut calls: tokio::sync::mpsc::UnboundedReceiver<(u32, u32)>,
    ) {
        let mut procedures = HashMap::new();
        while let Ok(reply) = record::read(&mut replies, RECORD_BYTES_MAX).await {
            while let Ok((xid, procedure)) = calls.try_recv() {
                procedures.insert(xid, procedure);
            }
            let procedure = procedures.remove(&word(&reply, 0));
            if self.losing.lock().unwrap().take_if(|losing| procedure == Some(*losing)).is_some() {
                return;
            }
            let (way, to_client) = (Arc::clone(&self), Arc::clone(&to_client));
            if !self.hold(procedure).is_some_and(|hold| hold.is_holding.load(Ordering::SeqCst)) {
                let record = record::in_fragments(&reply, &[]);
                if to_client.lock().await.write_all(&record).await.is_err() {
                    return;
                }
                continue;
            }
            tokio::spawn(async move {
                let hold = way.hold(procedure).unwrap();
                let released = hold.released.notified();
                hold.held.notify_one();
                released.await;
                let mut reply = reply.to_vec();
                if hold.is_restarted.load(Ordering::SeqCst) {
                    // The verifier comes last.
                    *reply.last_mut().unwrap() ^= 1;
                }
                to_client.lock().await.write_all(&record::in_fragments(&reply, &[])).await
            });
        }
    }

    /// Answers the next call of `procedure` with SYSTEM_ERR in place of the server.
    pub(crate) fn fail_next(&self, procedure: Procedure) {
        *self.failing.lock().unwrap() = Some(procedure.code());
    }

    /// Answers LOOKUPs, LINKs, WRITEs, RENAMEs or REMOVEs with `status` in place of the server.
    pub(crate) fn refuse(&self, procedure: Procedure, status: Status) {
        self.refused.lock().unwrap().insert(procedure.code(), status);
    }

    /// Loses the next reply to `procedure` and its connection. The server takes the repeated call
    /// for a new one.
    pub(crate) fn lose(&self, procedure: Procedure) {
        *self.losing.lock().unwrap() = Some(procedure.code());
    }

    /// Ends the effect of [`refuse`](Self::refuse).
    pub(crate) fn permit(&self, procedure: Procedure) {
        self.refused.lock().unwrap().remove(&procedure.code());
    }

    /// Carries calls, and reports the xid and the procedure of each before it is sent.
    async fn carry_calls(
        self: Arc<Self>,
        mut calls: OwnedReadHalf,
        to_server: OwnedWriteHalf,
        to_client: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
        sent: tokio::sync::mpsc::UnboundedSender<(u32, u32)>,
    ) {
        let to_server = Arc::new(tokio::sync::Mutex::new(to_server));
        while let Ok(call) = record::read(&mut calls, RECORD_BYTES_MAX).await {
            // xid, CALL, the version of RPC, program, version, procedure.
            let (xid, procedure) = (word(&call, 0), word(&call, 5));
            let refusal = self.refused.lock().unwrap().get(&procedure).copied();
            let is_failing =
                self.failing.lock().unwrap().take_if(|failing| *failing == procedure).is_some();
            let carried = if is_failing {
                let mut w = Writer::new();
                ReplyHeader::Accepted { xid, stat: AcceptStat::SystemErr }.encode(&mut w);
                to_client.lock().await.write_all(&record::in_fragments(w.as_slice(), &[])).await
            } else if let Some(status) = refusal {
                // The attributes behind the status are left out.
                let absent = match Procedure::from_code(procedure) {
                    Some(Procedure::Lookup) => 1,
                    Some(Procedure::Remove | Procedure::Write) => 2,
                    Some(Procedure::Link) => 3,
                    _ => 4,
                };
                let words = std::iter::once(status.code()).chain(std::iter::repeat_n(0, absent));
                let results: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
                to_client.lock().await.write_all(&reply(xid, &results)).await
            } else if procedure == Procedure::Remove.code()
                && self.removes.is_holding.load(Ordering::SeqCst)
            {
                let (way, to_server) = (Arc::clone(&self), Arc::clone(&to_server));
                tokio::spawn(async move {
                    let released = way.removes.released.notified();
                    way.removes.held.notify_one();
                    released.await;
                    to_server.lock().await.write_all(&record::in_fragments(&call, &[])).await
                });
                Ok(())
            } else {
                let _ = sent.send((xid, procedure));
                to_server.lock().await.write_all(&record::in_fragments(&call, &[])).await
            };
            if carried.is_err() {
                return;
            }
        }
    }

    fn hold(&self, procedure: Option<u32>) -> Option<&Hold> {
        let holds = [
            (Procedure::Setattr, &self.setattrs),
            (Procedure::Access, &self.accesses),
            (Procedure::Commit, &self.commits),
            (Procedure::Read, &self.reads),
            (Procedure::Write, &self.writes),
            (Procedure::Rename, &self.renames),
            (Procedure::Link, &self.links),
            (Procedure::Create, &self.creates),
        ];
        holds.into_iter().find(|(held, _)| procedure == Some(held.code())).map(|(_, hold)| hold)
    }
}

/// A word of a message.
fn word(message: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(message[4 * at..4 * at + 4].try_into().unwrap())
}

/// A mount whose calls take a way to the server.
pub(crate) async fn mount_on_a_way(
    fixture: &Fixture,
    options: &MountOptions,
) -> (Arc<Way>, FileSystem) {
    let (way, port) = Way::to(fixture.address()).await;
    let (host, own_port) = (fixture.address().ip(), fixture.address().port());
    let url = format!("nfs://{host}/export?nfsport={port}&mountport={own_port}");
    let url = url.parse().unwrap();
    let mounted = FileSystem::mount(&url, &root_user(), options, Arc::default()).await;
    (way, mounted.unwrap())
}
