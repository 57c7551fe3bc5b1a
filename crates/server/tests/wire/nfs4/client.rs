//! A blocking NFSv4.1 client for tests: COMPOUNDs as they are wanted, right or wrong.

use proto::nfs4::*;
use proto::oncrpc::{AcceptStat, ReplyHeader};
use proto::xdr::{Decode, Encode, Reader, Writer};

use crate::client::Client;
use crate::fixture::Fixture;

/// An export that trusts its clients, served by versions 3, 4.1 and 4.2.
pub(crate) const ALL_VERSIONS: &str = r#"
    nfs_versions = ["3", "4.1", "4.2"]
    [[export]]
    path = "$DIR/export"
    name = "/export"
    squash = "none"
    sync = false
"#;

/// The operations of a COMPOUND.
#[derive(Clone, Default)]
pub(crate) struct Operations {
    encoded: Vec<u8>,
    count: u32,
    codes: Vec<OperationCode>,
}

impl Operations {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// An operation with its arguments.
    pub(crate) fn op(self, operation: OperationCode, args: &impl Encode) -> Self {
        self.raw(operation.code(), args)
    }

    /// An operation by its number, which may be none.
    pub(crate) fn raw(self, operation: u32, args: &impl Encode) -> Self {
        let mut w = Writer::from_vec(self.encoded);
        w.u32(operation);
        args.encode(&mut w);
        let mut codes = self.codes;
        codes.extend(OperationCode::from_code(operation));
        Self { encoded: w.into_vec(), count: self.count + 1, codes }
    }

    /// The operations that are there.
    pub(crate) fn codes(&self) -> Vec<OperationCode> {
        self.codes.clone()
    }

    /// A word behind what is there.
    pub(crate) fn word(mut self, word: u32) -> Self {
        self.encoded.extend(word.to_be_bytes());
        self
    }

    pub(crate) fn root(self) -> Self {
        self.op(OperationCode::Putrootfh, &())
    }

    pub(crate) fn at(self, object: FileHandle) -> Self {
        self.op(OperationCode::Putfh, &Handle { object })
    }

    pub(crate) fn lookup(self, name: &[u8]) -> Self {
        self.op(OperationCode::Lookup, &NameArgs { name })
    }

    pub(crate) fn getfh(self) -> Self {
        self.op(OperationCode::Getfh, &())
    }

    pub(crate) fn getattr(self, wanted: &[u32]) -> Self {
        self.op(OperationCode::Getattr, &GetattrArgs { wanted: Bitmap::of(wanted) })
    }

    /// The arguments of the COMPOUND.
    pub(crate) fn arguments(&self, minor_version: u32) -> Vec<u8> {
        let mut w = Writer::new();
        CompoundHead { tag: b"test", minor_version, operations: self.count }.encode(&mut w);
        w.array(&self.encoded);
        w.into_vec()
    }
}

/// The results of a COMPOUND.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) status: Reply<()>,
    /// How many there are.
    pub(crate) count: u32,
    bytes: Vec<u8>,
    at: usize,
}

impl Results {
    fn parse(bytes: Vec<u8>) -> Self {
        let mut r = Reader::new(&bytes);
        let head = CompoundResult::decode(&mut r).expect("a result");
        assert_eq!(head.tag, b"test");
        let status = if head.status == NFS4_OK {
            Ok(())
        } else {
            Err(Status::from_code(head.status).expect("a status"))
        };
        let (count, at) = (head.results, r.position());
        Self { status, count, bytes, at }
    }

    /// The next result.
    pub(crate) fn next<T: for<'a> Decode<'a>>(&mut self, operation: OperationCode) -> Reply<T> {
        self.next_with(operation, |r| T::decode(r).expect("a body"))
    }

    /// The next result; `decode` takes the body of a success.
    pub(crate) fn next_with<T>(
        &mut self,
        operation: OperationCode,
        decode: impl FnOnce(&mut Reader<'_>) -> T,
    ) -> Reply<T> {
        let mut r = Reader::new(&self.bytes[self.at..]);
        assert_eq!(r.u32("operation"), Ok(operation.code()), "the result is that of another");
        let status = r.u32("status").unwrap();
        let result = match Status::from_code(status) {
            None => Ok(decode(&mut r)),
            Some(status) => Err(status),
        };
        self.at += r.position();
        result
    }

    /// Passes over results without a body.
    pub(crate) fn skip(&mut self, operations: &[OperationCode]) -> &mut Self {
        for operation in operations {
            self.next::<()>(*operation).expect("it succeeded");
        }
        self
    }

    /// The body of a result that is the last.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// The next result, which is that of GETFH.
    pub(crate) fn handle(&mut self) -> FileHandle {
        self.next::<Handle>(OperationCode::Getfh).unwrap().object
    }
}

/// A client with a session.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) id: SessionId,
    pub(crate) minor_version: u32,
    pub(crate) client_id: ClientId,
    pub(crate) fore: ChannelAttributes,
    pub(crate) sequence: u32,
    pub(crate) cache_this: bool,
}

/// Sends a COMPOUND without SEQUENCE.
pub(crate) fn compound(client: &mut Client, minor: u32, operations: &Operations) -> Results {
    let target = (PROGRAM, VERSION, Procedure::Compound.code());
    let (header, results) = client.exchange(target, &operations.arguments(minor));
    match header {
        ReplyHeader::Accepted { stat: AcceptStat::Success, .. } => Results::parse(results),
        other => panic!("COMPOUND: {other:?}"),
    }
}

pub(crate) fn exchange_id(
    client: &mut Client,
    owner_id: &[u8],
    verifier: u8,
) -> Reply<(ClientId, SequenceId, u32)> {
    let owner = ClientOwner { verifier: Verifier([verifier; 8]), owner_id };
    let args = ExchangeIdArgs { owner, flags: 0, protection: StateProtection::None };
    let call = Operations::new().op(OperationCode::ExchangeId, &args);
    compound(client, 1, &call).next_with(OperationCode::ExchangeId, |r| {
        let ok = ExchangeIdOk::decode(r).unwrap();
        assert!(ok.server_major.starts_with(b"spillway-"));
        (ok.client, ok.sequence, ok.flags)
    })
}

/// The channel attributes of a client that reads and writes a megabyte at a time.
pub(crate) const CHANNEL: ChannelAttributes = ChannelAttributes {
    header_pad_bytes: 0,
    request_bytes_max: 1_049_620,
    response_bytes_max: 1_049_480,
    cached_bytes_max: 2048,
    operations_max: 8,
    requests_max: 64,
    rdma_ird: None,
};

pub(crate) fn create_session_args(
    client: ClientId,
    sequence: SequenceId,
) -> CreateSessionArgs<'static> {
    CreateSessionArgs {
        client,
        sequence,
        flags: 0,
        fore: CHANNEL,
        back: CHANNEL,
        callback_program: 0x4000_0000,
        callback_security: (&[CallbackSecurity::Sys { uid: 0, gid: 0 }][..]).into(),
    }
}

impl Session {
    /// Of a new client, which has nothing to reclaim.
    pub(crate) fn new(fixture: &Fixture) -> Self {
        Self::of(fixture, b"a client", 1)
    }

    pub(crate) fn of(fixture: &Fixture, owner: &[u8], minor_version: u32) -> Self {
        Self::with_replies(fixture, owner, minor_version, CHANNEL.response_bytes_max)
    }

    /// As [`Self::of`], with a bound of the replies.
    pub(crate) fn with_replies(
        fixture: &Fixture,
        owner: &[u8],
        minor_version: u32,
        response_bytes_max: u32,
    ) -> Self {
        let fore = ChannelAttributes { response_bytes_max, ..CHANNEL };
        Self::over(fixture.client(), owner, minor_version, fore)
    }

    /// Over a connection, with a fore channel.
    pub(crate) fn over(
        mut client: Client,
        owner: &[u8],
        minor_version: u32,
        fore: ChannelAttributes,
    ) -> Self {
        let (client_id, sequence, _) = exchange_id(&mut client, owner, 1).unwrap();
        let args = CreateSessionArgs { fore, ..create_session_args(client_id, sequence) };
        let call = Operations::new().op(OperationCode::CreateSession, &args);
        let mut results = compound(&mut client, 1, &call);
        let made: CreateSessionOk = results.next(OperationCode::CreateSession).unwrap();
        let (id, fore) = (made.session, made.fore);
        let mut session =
            Self { client, id, minor_version, client_id, fore, sequence: 0, cache_this: false };
        let done = ReclaimCompleteArgs { one_fs: false };
        let done = Operations::new().op(OperationCode::ReclaimComplete, &done);
        session.ok(&done);
        session
    }

    /// Sends a COMPOUND on a slot that was not used before, and does not wait for the reply.
    pub(crate) fn send_on(&mut self, slot: u32, operations: &Operations) {
        let call = self.on_slot(SlotId(slot), 1, SlotId(slot), operations);
        let call = call.arguments(self.minor_version);
        let xid = self.client.xid();
        let call = self.client.encode(xid, (PROGRAM, VERSION, Procedure::Compound.code()), &call);
        self.client.send_record(&call);
    }

    /// SEQUENCE on slot 0, in front of `operations`.
    pub(crate) fn sequenced(&self, operations: &Operations) -> Operations {
        self.sequenced_below(SlotId(0), operations)
    }

    /// As [`Self::sequenced`], while slots up to `highest_slot` are in use.
    pub(crate) fn sequenced_below(
        &self,
        highest_slot: SlotId,
        operations: &Operations,
    ) -> Operations {
        self.on_slot(SlotId(0), self.sequence, highest_slot, operations)
    }

    fn on_slot(
        &self,
        slot: SlotId,
        sequence: u32,
        highest_slot: SlotId,
        operations: &Operations,
    ) -> Operations {
        let sequence = SequenceArgs {
            session: self.id,
            sequence: SequenceId(sequence),
            slot,
            highest_slot,
            cache_this: self.cache_this,
        };
        let first = Operations::new().op(OperationCode::Sequence, &sequence);
        let encoded = [first.encoded, operations.encoded.clone()].concat();
        let codes = [first.codes, operations.codes.clone()].concat();
        Operations { encoded, count: first.count + operations.count, codes }
    }

    /// The results behind that of SEQUENCE.
    pub(crate) fn call(&mut self, operations: &Operations) -> Results {
        self.sequence += 1;
        let call = self.sequenced(operations);
        let mut results = compound(&mut self.client, self.minor_version, &call);
        results.next::<SequenceOk>(OperationCode::Sequence).unwrap();
        results
    }

    /// As [`Self::call`]; every operation succeeds.
    pub(crate) fn ok(&mut self, operations: &Operations) -> Results {
        let results = self.call(operations);
        assert_eq!(results.status, Ok(()), "{results:?}");
        assert_eq!(results.count, operations.count + 1);
        results
    }

    /// The root of the export.
    pub(crate) fn export(&mut self) -> FileHandle {
        let call = Operations::new().root().lookup(b"export").getfh();
        let mut results = self.ok(&call);
        results.skip(&[OperationCode::Putrootfh, OperationCode::Lookup]).handle()
    }

    /// Opens a file by its name, which is made if it is not there.
    pub(crate) fn open(&mut self, dir: FileHandle, name: &[u8]) -> (FileHandle, Stateid) {
        let attributes = encoded_mode();
        let raw = RawAttributes { bitmap: Bitmap::of(&[attribute::MODE]), values: &attributes };
        let args = open_args(ShareAccess::Both, OpenHow::Unchecked(raw), OpenClaim::Null(name));
        let call = Operations::new().at(dir).op(OperationCode::Open, &args).getfh();
        let mut results = self.ok(&call);
        let opened: OpenOk =
            results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
        (results.handle(), opened.stateid)
    }
}

fn encoded_mode() -> Vec<u8> {
    0o644_u32.to_be_bytes().to_vec()
}

pub(crate) fn open_args<'a>(
    access: ShareAccess,
    how: OpenHow<'a>,
    claim: OpenClaim<'a>,
) -> OpenArgs<'a> {
    let owner = OpenOwner { client: ClientId(0), owner: b"an owner" };
    OpenArgs { seqid: 0, share_access: access.code(), share_deny: 0, owner, how, claim }
}
