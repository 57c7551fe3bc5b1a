//! The COMPOUNDs of versions 4.1 and 4.2 that loads send, answered as those of version 3 are.

use std::io;

use proto::nfs4::{
    AccessArgs, AccessOk, Attributes, Bitmap, ClientId, CloseArgs, CommitArgs, CommitOk,
    CompoundHead, CompoundResult, CreateSessionArgs, CreateSessionOk, DestroyClientidArgs,
    DestroySessionArgs, ExchangeIdArgs, ExchangeIdOk, FileHandle, FileType, GetattrArgs, Handle,
    NFS4_OK, NameArgs, OneStateid, OpenArgs, OpenDelegation, OpenOk, OperationCode, ReadArgs,
    ReadOk, ReclaimCompleteArgs, SequenceArgs, SequenceId, SequenceOk, SessionId, SlotId,
    StateProtectHow, Stateid, Time, Verifier, WriteHead, WriteOk, encode_success, next_operation,
};
use proto::oncrpc;
use proto::xdr::{Decode, DecodeError, Encode, Reader, Writer};

use super::{DIRECTORY, FILE, FILE_BYTES, VERIFIER};
use crate::load::IO_BYTES_MAX;
use crate::record_stream::{COPIED_BYTES_MAX, RecordStream};

/// A COMPOUND up to the data of WRITE, behind which there is nothing but a GETATTR.
pub(super) struct Compound {
    /// Of the whole COMPOUND.
    count: u32,
    operations: [Operation; OPERATIONS_MAX],
}

/// Operations of a COMPOUND, as many as loads send.
const OPERATIONS_MAX: usize = 8;
/// Of each session: there is no limit.
const HIGHEST_SLOT: SlotId = SlotId(u32::MAX);

#[derive(Clone, Copy)]
enum Operation {
    /// None, or the GETATTR behind data.
    Behind,
    ExchangeId,
    CreateSession(CreateSessionOk),
    Sequence(SequenceArgs),
    Getfh,
    Getattr(Bitmap),
    Access(AccessArgs),
    Open,
    Close,
    Read(ReadArgs),
    Write(WriteHead),
    Commit,
    /// One whose result is a status alone.
    Plain(OperationCode),
}

impl Compound {
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = CompoundHead::decode(r)?.operations;
        let failure = DecodeError { what: "COMPOUND4args", at_byte: r.position() };
        let len = usize::try_from(count).map_err(|_| failure)?;
        let mut operations = [Operation::Behind; OPERATIONS_MAX];
        for operation in operations.get_mut(..len).ok_or(failure)? {
            *operation = Operation::decode(r)?;
            if let Operation::Write(_) = operation {
                break;
            }
        }
        Ok(Self { count, operations })
    }

    fn operations(&self) -> &[Operation] {
        &self.operations[..usize::try_from(self.count).expect("it was checked")]
    }

    /// Bytes of data that follow in the record.
    pub(super) fn data_len(&self) -> u32 {
        let lens = self.operations().iter().map(|operation| match operation {
            Operation::Write(head) => head.data_len,
            _ => 0,
        });
        lens.sum()
    }

    pub(super) fn answer(
        &self,
        stream: &mut RecordStream,
        xid: u32,
        data: &[u8],
    ) -> io::Result<()> {
        // The data of a READ is sent behind all results: loads send READ as the last operation.
        let read = match self.operations().last() {
            Some(Operation::Read(args)) => &data[..read_len(args)],
            _ => &[],
        };
        stream.queue(read.len(), |w| {
            oncrpc::encode_success(w, xid);
            CompoundResult { status: NFS4_OK, tag: b"", results: self.count }.encode(w);
            self.operations().iter().for_each(|operation| operation.answer(w));
        });
        if read.len() <= COPIED_BYTES_MAX {
            stream.queue_payload(read, &[]);
            Ok(())
        } else {
            stream.send_payload(read, &[])
        }
    }
}

impl Operation {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "nfs_opnum4", at_byte: r.position() };
        let code = next_operation(r)?.map_err(|_| failure)?;
        match code {
            OperationCode::ExchangeId => {
                return ExchangeIdArgs::decode(r).map(|_| Self::ExchangeId);
            }
            OperationCode::CreateSession => return CreateSessionArgs::decode(r).map(created),
            OperationCode::Sequence => return SequenceArgs::decode(r).map(Self::Sequence),
            OperationCode::Getfh => return Ok(Self::Getfh),
            OperationCode::Getattr => return Ok(Self::Getattr(GetattrArgs::decode(r)?.wanted)),
            OperationCode::Access => return AccessArgs::decode(r).map(Self::Access),
            OperationCode::Open => return OpenArgs::decode(r).map(|_| Self::Open),
            OperationCode::Close => return CloseArgs::decode(r).map(|_| Self::Close),
            OperationCode::Read => return ReadArgs::decode(r).map(Self::Read),
            OperationCode::Write => return WriteHead::decode(r).map(Self::Write),
            OperationCode::Commit => return CommitArgs::decode(r).map(|_| Self::Commit),
            OperationCode::Putrootfh => {}
            OperationCode::Putfh => drop(Handle::decode(r)?),
            OperationCode::Lookup => drop(NameArgs::decode(r)?),
            OperationCode::ReclaimComplete => drop(ReclaimCompleteArgs::decode(r)?),
            OperationCode::DestroySession => drop(DestroySessionArgs::decode(r)?),
            OperationCode::DestroyClientid => drop(DestroyClientidArgs::decode(r)?),
            _ => return Err(failure),
        }
        Ok(Self::Plain(code))
    }

    fn answer(&self, w: &mut Writer) {
        let code = self.code();
        encode_success(w, code);
        match self {
            Self::Behind => attributes(Bitmap::from_words([0x18, 0x0030_2000, 0])).encode(w),
            Self::ExchangeId => introduced().encode(w),
            Self::CreateSession(ok) => ok.encode(w),
            Self::Sequence(args) => sequenced(args).encode(w),
            Self::Getfh => {
                // Handles are as long as those of a real server.
                let object = FileHandle::new(&[FILE; 32]).expect("shorter than 128 bytes");
                Handle { object }.encode(w);
            }
            Self::Getattr(wanted) => attributes(*wanted).encode(w),
            Self::Access(args) => {
                AccessOk { supported: args.access, access: args.access }.encode(w);
            }
            Self::Open => opened().encode(w),
            Self::Close => OneStateid { stateid: Stateid::INVALID }.encode(w),
            Self::Read(args) => {
                let len = u32::try_from(read_len(args)).expect("no more than was asked for");
                let eof = u64::from(args.count) >= FILE_BYTES.saturating_sub(args.offset);
                ReadOk::encode_head(eof, len, w);
            }
            Self::Write(head) => {
                let verifier = Verifier(VERIFIER.0);
                WriteOk { count: head.data_len, committed: head.stable, verifier }.encode(w);
            }
            Self::Commit => CommitOk { verifier: Verifier(VERIFIER.0) }.encode(w),
            Self::Plain(_) => {}
        }
    }

    const fn code(&self) -> OperationCode {
        match self {
            Self::Behind | Self::Getattr(_) => OperationCode::Getattr,
            Self::ExchangeId => OperationCode::ExchangeId,
            Self::CreateSession(_) => OperationCode::CreateSession,
            Self::Sequence(_) => OperationCode::Sequence,
            Self::Getfh => OperationCode::Getfh,
            Self::Access(_) => OperationCode::Access,
            Self::Open => OperationCode::Open,
            Self::Close => OperationCode::Close,
            Self::Read(_) => OperationCode::Read,
            Self::Write(_) => OperationCode::Write,
            Self::Commit => OperationCode::Commit,
            Self::Plain(code) => *code,
        }
    }
}

fn read_len(args: &ReadArgs) -> usize {
    let left = FILE_BYTES.saturating_sub(args.offset);
    let count = u64::from(args.count.min(IO_BYTES_MAX)).min(left);
    usize::try_from(count).expect("32 bits fit")
}

/// Grants what is asked for.
fn created(args: CreateSessionArgs<'_>) -> Operation {
    let CreateSessionArgs { sequence, fore, back, .. } = args;
    let session = SessionId([DIRECTORY; 16]);
    Operation::CreateSession(CreateSessionOk { session, sequence, flags: 0, fore, back })
}

fn introduced() -> ExchangeIdOk<'static> {
    ExchangeIdOk {
        client: ClientId(1),
        sequence: SequenceId(1),
        flags: 0,
        protection: StateProtectHow::None,
        server_minor: 0,
        server_major: b"nothing",
        server_scope: b"nothing",
        implementation: None,
    }
}

fn sequenced(args: &SequenceArgs) -> SequenceOk {
    SequenceOk {
        session: args.session,
        sequence: args.sequence,
        slot: args.slot,
        highest_slot: HIGHEST_SLOT,
        target_highest_slot: HIGHEST_SLOT,
        status_flags: 0,
    }
}

fn opened() -> OpenOk {
    OpenOk {
        stateid: Stateid { seqid: 1, other: [FILE; 12] },
        change: Default::default(),
        flags: 0,
        attributes_set: Bitmap::EMPTY,
        delegation: OpenDelegation::None,
    }
}

/// Of those that are asked for, the attributes that every server has.
fn attributes(wanted: Bitmap) -> Attributes<'static> {
    let time = Some(Time::default());
    let mut attributes = Attributes {
        file_type: Some(FileType::Regular),
        change: Some(1),
        size: Some(FILE_BYTES),
        fileid: Some(FILE.into()),
        mode: Some(0o666),
        num_links: Some(1),
        space_used: Some(0),
        time_access: time,
        time_metadata: time,
        time_modify: time,
        ..Attributes::default()
    };
    attributes.keep(wanted);
    attributes
}
