//! Leases of clients whose calls are being received.

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use proto::nfs4::{
    self, CompoundHead, FileHandle, OperationCode, SequenceArgs, SequenceId, SessionId, SlotId,
    StableHow, Stateid, WriteHead,
};
use proto::oncrpc::{CallHeader, Credential};
use proto::xdr::{Encode, Writer};
use rpc::record::in_fragments;

use super::*;
use crate::held_files::tests::boot;
use crate::server::Server;
use crate::state::{Principal, Step};
use crate::test_server::{config, directory};

const PATIENCE: Duration = Duration::from_secs(20);
const DATA_BYTES: u32 = 4096;

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

/// It may wait for memory, and the calls that would renew the lease wait behind it.
#[test]
fn the_lease_of_a_client_does_not_run_out_while_its_write_is_received() {
    let dir = directory();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let server = runtime.block_on(Server::start(config(dir.path(), "", ""))).unwrap();
    let state = &server.service().state;
    let (_, id) = boot(state, b"client", 1, Principal::User(0), &mut Step::new(Duration::ZERO));
    let session = state.session(id).unwrap();
    let mut client = TcpStream::connect(server.local_addrs()[0]).unwrap();
    let head = write_head(id);
    let whole = [&head[..], &[0; DATA_BYTES as usize]].concat();
    let sent = in_fragments(&whole, &[]);
    client.write_all(&sent[..sent.len() - DATA_BYTES as usize]).unwrap();
    eventually(|| session.has_calls());
    let late = || state.expire(&mut Step::new(Duration::from_secs(1000)));
    late();
    assert!(state.session(id).is_ok(), "a call of its client is being received");
    drop(client);
    eventually(|| !session.has_calls());
    late();
    assert!(state.session(id).is_err(), "nothing keeps its client");
}
