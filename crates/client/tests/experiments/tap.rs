//! A relay that records the calls from a client to any server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use proto::nfs3::{FileHandle, PROGRAM, Procedure, ReaddirArgs, ReaddirplusArgs, WriteArgs};
use proto::oncrpc::{CallHeader, decode_call};
use proto::xdr::{Decode, Reader};
use rpc::record;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The relay. It ends with the runtime.
pub(crate) struct Tap {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

/// The calls of NFS version 3 since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    procedures: Vec<Procedure>,
    /// READDIRs and READDIRPLUSes from the beginning of a directory.
    pub(crate) from_start: usize,
    /// File, offset and length of each WRITE.
    pub(crate) writes: Vec<(FileHandle, u64, u32)>,
}

impl Tap {
    pub(crate) async fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Seen>>::default();
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = server.into_split();
                tokio::spawn(relay(from_client, to_server, Arc::clone(&noted)));
                tokio::spawn(async move {
                    // Either side may go away at any time, which the other finds out.
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                });
            }
        });
        Self { address, seen }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The calls since this was last asked.
    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl Seen {
    /// How many calls of a procedure there were.
    pub(crate) fn count(&self, procedure: Procedure) -> usize {
        self.procedures.iter().filter(|other| **other == procedure).count()
    }

    /// READDIRs and READDIRPLUSes.
    pub(crate) fn readdirs(&self) -> usize {
        self.count(Procedure::Readdir) + self.count(Procedure::Readdirplus)
    }

    /// All other calls.
    pub(crate) fn others(&self) -> usize {
        self.procedures.len() - self.readdirs()
    }

    /// WRITEs that begin before the end of an earlier one of the same file.
    pub(crate) fn late_writes(&self) -> usize {
        let mut ends = std::collections::HashMap::new();
        let is_late = |(file, offset, len): &&(FileHandle, u64, u32)| {
            let end = ends.entry(*file).or_insert(0);
            let is_late = offset < end;
            *end = (*end).max(offset + u64::from(*len));
            is_late
        };
        self.writes.iter().filter(is_late).count()
    }

    fn note(&mut self, record: &[u8]) {
        let mut r = Reader::new(record);
        let CallHeader { program, procedure, .. } = decode_call(&mut r).unwrap();
        if program != PROGRAM {
            return;
        }
        let procedure = Procedure::try_from(procedure).unwrap();
        self.procedures.push(procedure);
        let cookie = match procedure {
            Procedure::Readdir => ReaddirArgs::decode(&mut r).unwrap().cookie,
            Procedure::Readdirplus => ReaddirplusArgs::decode(&mut r).unwrap().cookie,
            Procedure::Write => {
                let WriteArgs { file, offset, count, .. } = WriteArgs::decode(&mut r).unwrap();
                return self.writes.push((file, offset, count));
            }
            _ => return,
        };
        self.from_start += usize::from(cookie == 0);
    }
}

/// Passes on record after record until either side is gone.
async fn relay(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    seen: Arc<Mutex<Seen>>,
) {
    while let Ok(call) = record::read(&mut from, CALL_BYTES_MAX).await {
        seen.lock().unwrap().note(&call);
        if to.write_all(&record::in_fragments(&call, &[])).await.is_err() {
            break;
        }
    }
}

/// More than any call of these tests.
const CALL_BYTES_MAX: usize = 64 << 20;
