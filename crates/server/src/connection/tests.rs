//! Leases and recalls of clients whose calls are being received.

use std::io::{Read, Write};
use std::iter;
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use proto::nfs4::{
    self, CompoundHead, FileHandle, OperationCode, SequenceArgs, SequenceId, SessionId, SlotId,
    StableHow, Stateid, WriteHead,
};
use proto::oncrpc::{CallHeader, Credential};
use proto::xdr::{Encode, Writer};
use rpc::record::in_fragments;
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};

use super::*;
use crate::held_files::tests::boot;
use crate::server::Server;
use crate::state::{Principal, Session, Step};
use crate::test_server::{config, directory};

const PATIENCE: Duration = Duration::from_secs(20);
const DATA_BYTES: u32 = 1024;

/// A COMPOUND with a WRITE, without its data.
fn write_head(session: SessionId) -> Vec<u8> {
    let (program, version) = (nfs4::PROGRAM, nfs4::VERSION);
    let procedure = nfs4::Procedure::Compound.code();
    let credential = Credential::None;
    let mut w = Writer::new();
    CallHeader { xid: 1, program, version, procedure, credential, verifier_flavor: 0 }
        .encode(&mut w);
    CompoundHead { tag: b"", minor_version: 1, operations: 3 }.encode(&mut w);
    OperationCode::Sequence.encode(&mut w);
    let (sequence, slot) = (SequenceId(1), SlotId(0));
    SequenceArgs { session, sequence, slot, highest_slot: slot, cache_this: false }.encode(&mut w);
    OperationCode::Putfh.encode(&mut w);
    FileHandle::new(&[9; 30]).unwrap().encode(&mut w);
    OperationCode::Write.encode(&mut w);
    let (stateid, stable) = (Stateid::ANONYMOUS, StableHow::Unstable);
    WriteHead { stateid, offset: 0, stable, data_len: DATA_BYTES }.encode(&mut w);
    w.into_vec()
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A server, a client of version 4 with this session, and its connection.
struct Rig {
    client: TcpStream,
    session: Arc<Session>,
    server: Server,
    _runtime: Runtime,
    _dir: TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = directory();
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let server = runtime.block_on(Server::start(config(dir.path(), "", ""))).unwrap();
        let state = &server.service().state;
        let (_, id) = boot(state, b"client", 1, Principal::User(0), &mut Step::new(Duration::ZERO));
        let session = state.session(id).unwrap();
        let client = TcpStream::connect(server.local_addrs()[0]).unwrap();
        Self { client, session, server, _runtime: runtime, _dir: dir }
    }

    /// Sends a COMPOUND with a WRITE, without its data.
    fn send_write_head(&mut self) {
        let head = write_head(self.session.id());
        let whole = [&head[..], &[0; DATA_BYTES as usize]].concat();
        let sent = in_fragments(&whole, &[]);
        self.client.write_all(&sent[..sent.len() - DATA_BYTES as usize]).unwrap();
        eventually(|| self.session.has_calls());
    }
}

/// It may wait for memory, and the calls that would renew the lease wait behind it.
#[test]
fn the_lease_of_a_client_does_not_run_out_while_its_write_is_received() {
    let mut rig = Rig::new();
    rig.send_write_head();
    let Rig { client, session, server, .. } = &rig;
    let (state, id) = (&server.service().state, session.id());
    let late = || state.expire(&mut Step::new(Duration::from_secs(1000)));
    late();
    assert!(state.session(id).is_ok(), "a call of its client is being received");
    client.shutdown(Shutdown::Both).unwrap();
    eventually(|| !session.has_calls());
    late();
    assert!(state.session(id).is_err(), "nothing keeps its client");
}

/// A client that sends data slowly must not put the recalls of its delegations off.
#[test]
fn a_write_waits_for_memory_until_its_data_is_received() {
    let mut rig = Rig::new();
    let buffers = &rig.server.service().buffers;
    let take = |len| iter::from_fn(move || buffers.try_take(len));
    let all: Vec<_> = [1 << 20, 4096].into_iter().flat_map(take).collect();
    rig.send_write_head();
    let Rig { mut client, session, server, .. } = rig;
    let callbacks = &server.service().callbacks;
    eventually(|| session.waits_for_memory() && callbacks.wait_for_memory());
    drop(all);
    eventually(|| !session.waits_for_memory() && !callbacks.wait_for_memory());
    assert!(session.has_calls(), "its data is awaited");
    client.write_all(&[0; DATA_BYTES as usize]).unwrap();
    eventually(|| !session.has_calls());
}

#[test]
fn a_write_whose_session_ends_while_it_is_received_is_refused() {
    let mut rig = Rig::new();
    rig.send_write_head();
    rig.server.service().state.destroy_session(rig.session.id()).unwrap();
    rig.client.write_all(&[0; DATA_BYTES as usize]).unwrap();
    rig.client.set_read_timeout(Some(PATIENCE)).unwrap();
    // The mark of the record, the head of the reply, and the status of the COMPOUND.
    let mut reply = [0; 32];
    rig.client.read_exact(&mut reply).unwrap();
    assert_eq!(reply[28..], nfs4::Status::Badsession.code().to_be_bytes());
}
