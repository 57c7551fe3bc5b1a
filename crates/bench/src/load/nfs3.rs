//! Calls of version 3 on the wire.

use proto::nfs3::{
    Attributes, CommitArgs, CommitOk, FileHandle, PROGRAM, Procedure, ReadArgs, Reply, StableHow,
    VERSION, WccData, WriteHead, WriteOk,
};
use proto::oncrpc::{AcceptStat, AuthSys, CallHeader, Credential, ReplyHeader};
use proto::xdr::{Decode, DecodeError, Encode, Reader, Writer};

use super::call::{Answer, Broken, CallResult, ReadHead, Refusal, Written, finish_call};
use crate::record_stream::RecordStream;

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

/// The calls of a connection on its file.
pub(super) struct FileCalls<'a> {
    pub(super) caller: AuthSys<'a>,
    pub(super) file: FileHandle,
}

impl FileCalls<'_> {
    pub(super) fn queue_read(&self, to: &mut RecordStream, xid: u32, offset: u64, count: u32) {
        let args = ReadArgs { file: self.file, offset, count };
        to.queue(0, |w| encode(w, &self.caller, xid, Procedure::Read, &args));
    }

    pub(super) fn queue_write(
        &self,
        to: &mut RecordStream,
        xid: u32,
        offset: u64,
        count: u32,
        stable: StableHow,
    ) -> &'static [u8] {
        let head = WriteHead { file: self.file, offset, count, stable, data_len: count };
        let payload_bytes = usize::try_from(count).expect("32 bits fit");
        to.queue(payload_bytes, |w| encode(w, &self.caller, xid, Procedure::Write, &head));
        &[]
    }

    pub(super) fn read_reply(&self, from: &mut RecordStream) -> Result<Answer<ReadHead>, Broken> {
        reply::<ReadHead, Option<Attributes>>(from)
    }

    pub(super) fn write_reply(&self, from: &mut RecordStream) -> Result<Answer<Written>, Broken> {
        let (xid, answer) = reply::<WriteOk, WccData>(from)?;
        let written = answer.map(|ok| Written {
            count: ok.count,
            committed: ok.committed,
            verifier: ok.verifier.0,
        });
        Ok((xid, written))
    }

    pub(super) fn commit(&self, stream: &mut RecordStream, xid: u32) -> CallResult<[u8; 8]> {
        let args = CommitArgs { file: self.file, offset: 0, count: 0 };
        let answer =
            call::<CommitOk, WccData>(stream, &self.caller, xid, Procedure::Commit, &args)?;
        Ok(answer.map(|ok| ok.verifier.0))
    }
}

/// Makes a call and waits for its reply; no other is in flight.
pub(crate) fn call<T, F>(
    stream: &mut RecordStream,
    caller: &AuthSys<'_>,
    xid: u32,
    procedure: Procedure,
    args: &impl Encode,
) -> CallResult<T>
where
    T: for<'r> Decode<'r>,
    F: for<'r> Decode<'r>,
{
    stream.queue(0, |w| encode(w, caller, xid, procedure, args));
    finish_call(stream, xid, reply::<T, F>)
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
fn reply<T, F>(from: &mut RecordStream) -> Result<Answer<T>, Broken>
where
    T: for<'r> Decode<'r>,
    F: for<'r> Decode<'r>,
{
    let decoded = from.decode(|r| match ReplyHeader::decode(r)? {
        ReplyHeader::Accepted { xid, stat: AcceptStat::Success } => {
            let reply = Reply::<T, F>::decode(r)?;
            Ok::<_, DecodeError>((xid, reply.map_err(|failure| Refusal::from(failure.status))))
        }
        other => Ok((other.xid(), Err(Refusal::Header(other)))),
    })?;
    Ok(decoded?)
}
