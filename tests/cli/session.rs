//! A session of version 4.1 over one connection.

use proto::nfs4::{
    self, CallbackSecurity, ChannelAttributes, ClientOwner, CompoundHead, CompoundResult,
    CreateSessionArgs, CreateSessionOk, ExchangeIdArgs, ExchangeIdOk, NFS4_OK, OperationCode,
    SequenceArgs, SequenceId, SessionId, SlotId, StateProtection, Verifier,
};
use proto::xdr::{Decode, Encode, Reader, Writer};

use crate::client::Client;

/// A session with one slot.
pub(crate) struct Session<'a> {
    pub(crate) client: &'a mut Client,
    id: SessionId,
    sequence: u32,
}

impl<'a> Session<'a> {
    /// Introduces the client.
    pub(crate) fn create(client: &'a mut Client) -> Self {
        let reply = compound(client, &[exchange_id()]);
        let made: ExchangeIdOk<'_> = first_result(&reply);
        let channel = ChannelAttributes {
            header_pad_bytes: 0,
            request_bytes_max: 1 << 16,
            response_bytes_max: 1 << 16,
            cached_bytes_max: 1024,
            operations_max: 8,
            requests_max: 1,
            rdma_ird: None,
        };
        let args = CreateSessionArgs {
            client: made.client,
            sequence: made.sequence,
            flags: 0,
            fore: channel,
            back: channel,
            callback_program: 0x4000_0000,
            callback_security: (&[CallbackSecurity::None][..]).into(),
        };
        let reply = compound(client, &[operation(OperationCode::CreateSession, &args)]);
        let id = first_result::<CreateSessionOk>(&reply).session;
        Self { client, id, sequence: 0 }
    }

    /// The results of operations behind a SEQUENCE, with the status of the COMPOUND in front.
    pub(crate) fn call(&mut self, operations: &[Vec<u8>]) -> Vec<u8> {
        self.sequence += 1;
        let sequence = SequenceArgs {
            session: self.id,
            sequence: SequenceId(self.sequence),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: false,
        };
        let sequence = operation(OperationCode::Sequence, &sequence);
        compound(self.client, &[&[sequence], operations].concat())
    }

    /// As [`Self::call`]; all operations must succeed.
    #[track_caller]
    pub(crate) fn succeed(&mut self, operations: &[Vec<u8>]) {
        let reply = self.call(operations);
        let head = CompoundResult::decode(&mut Reader::new(&reply)).unwrap();
        assert_eq!(head.status, NFS4_OK, "behind {} results", head.results);
    }
}

/// An operation of a COMPOUND.
pub(crate) fn operation(code: OperationCode, args: &impl Encode) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(code.code());
    args.encode(&mut w);
    w.into_vec()
}

pub(crate) fn exchange_id() -> Vec<u8> {
    let owner = ClientOwner { verifier: Verifier([1; 8]), owner_id: b"a client" };
    let args = ExchangeIdArgs { owner, flags: 0, protection: StateProtection::None };
    operation(OperationCode::ExchangeId, &args)
}

/// The results of a COMPOUND of version 4.1, with its status in front.
pub(crate) fn compound(client: &mut Client, operations: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(operations.len()).unwrap();
    let mut w = Writer::new();
    CompoundHead { tag: b"", minor_version: 1, operations: count }.encode(&mut w);
    operations.iter().for_each(|operation| w.array(operation));
    let target = (nfs4::PROGRAM, nfs4::VERSION, nfs4::Procedure::Compound.code());
    client.exchange(target, &Encoded(w.into_vec()))
}

struct Encoded(Vec<u8>);

impl Encode for Encoded {
    fn encode(&self, w: &mut Writer) {
        w.array(&self.0);
    }
}

/// The result of the first operation, which has succeeded.
fn first_result<'a, T: Decode<'a>>(reply: &'a [u8]) -> T {
    let mut r = Reader::new(reply);
    let head = CompoundResult::decode(&mut r).unwrap();
    assert_eq!(head.status, NFS4_OK);
    // Its code and status.
    let _ = (r.u32("operation").unwrap(), r.u32("status").unwrap());
    T::decode(&mut r).unwrap()
}
