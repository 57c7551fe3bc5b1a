//! The calls of a load and what comes back, on the wire.

use std::io;

use proto::nfs3::{
    Attributes, CommitArgs, FileHandle, PROGRAM, Procedure, ReadArgs, Reply, StableHow, VERSION,
    WriteHead,
};
use proto::oncrpc::{AcceptStat, AuthSys, CallHeader, Credential, ReplyHeader};
use proto::xdr::{Decode, DecodeError, Encode, Reader, Writer};
use rpc::blocking::RecordStream;

/// A reply: the call that it answers, and the results or a header that says why there are none.
pub(super) type Answer<T> = (u32, Result<T, ReplyHeader>);

/// Result of READ up to the data, which is still in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadHead {
    pub(super) count: u32,
    pub(super) eof: bool,
}

impl Decode<'_> for ReadHead {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Option::<Attributes>::decode(r)?;
        let count = r.u32("ReadOk.count")?;
        let eof = r.bool("ReadOk.eof")?;
        let at_byte = r.position();
        if r.u32("ReadOk.data")? != count {
            return Err(DecodeError { what: "ReadOk.data", at_byte });
        }
        Ok(Self { count, eof })
    }
}

/// `READ3res` up to the data.
pub(super) type ReadReplyHead = Reply<ReadHead, Option<Attributes>>;

/// Puts a READ in the queue.
pub(super) fn queue_read(to: &mut RecordStream, caller: &AuthSys<'_>, xid: u32, args: ReadArgs) {
    to.queue(0, |w| encode(w, caller, xid, Procedure::Read, &args));
}

/// Puts a WRITE's head in the queue; its data has to follow.
pub(super) fn queue_write(to: &mut RecordStream, caller: &AuthSys<'_>, xid: u32, head: WriteHead) {
    let payload_bytes = usize::try_from(head.data_len).expect("32 bits fit");
    to.queue(payload_bytes, |w| encode(w, caller, xid, Procedure::Write, &head));
}

/// Puts a COMMIT of a whole file in the queue.
pub(super) fn queue_commit(
    to: &mut RecordStream,
    caller: &AuthSys<'_>,
    xid: u32,
    file: FileHandle,
) {
    let args = CommitArgs { file, offset: 0, count: 0 };
    to.queue(0, |w| encode(w, caller, xid, Procedure::Commit, &args));
}

/// What a WRITE says of its data.
pub(super) const fn write_head(
    file: FileHandle,
    offset: u64,
    count: u32,
    stable: StableHow,
) -> WriteHead {
    WriteHead { file, offset, count, stable, data_len: count }
}

fn encode(
    w: &mut Writer,
    caller: &AuthSys<'_>,
    xid: u32,
    procedure: Procedure,
    args: &impl Encode,
) {
    CallHeader {
        xid,
        program: PROGRAM,
        version: VERSION,
        procedure: procedure.code(),
        credential: Credential::Sys(*caller),
        verifier_flavor: 0,
    }
    .encode(w);
    args.encode(w);
}

/// Takes in a reply's header and results; of READ, only what is in front of the data.
pub(super) fn reply<T: for<'a> Decode<'a>>(
    from: &mut RecordStream,
) -> io::Result<Result<Answer<T>, DecodeError>> {
    from.decode(|r| match ReplyHeader::decode(r)? {
        ReplyHeader::Accepted { xid, stat: AcceptStat::Success } => Ok((xid, Ok(T::decode(r)?))),
        other => Ok((other.xid(), Err(other))),
    })
}
