//! The COMPOUNDs that Linux sends for work on files. Delegations are refused.

use std::time::Duration;

use proto::nfs3::StableHow;
use proto::nfs4::{
    ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_MODIFY, ACCESS_READ, AccessArgs, AccessOk, Attributes,
    Bitmap, ChangedOk, CloseArgs, CommitArgs, CommitOk, GetattrArgs, Handle, NameArgs, OpenArgs,
    OpenClaim, OpenHow, OpenOk, OpenOwner, OperationCode, ReadArgs, SHARE_WANT_NO_DELEGATION,
    ShareAccess, ShareDeny, Stateid, WriteHead, WriteOk,
};
use proto::xdr::{Decode, DecodeError, Reader};

use super::call::{Answer, Broken, CallResult, ReadHead, Written, finish_call, until_taken};
use super::session::{BEHIND_DATA, Operation, Session, named};
use crate::record_stream::RecordStream;

/// Attributes that Linux asks for in GETATTR.
const ALL_ATTRIBUTES: GetattrArgs =
    GetattrArgs { wanted: Bitmap::from_words([0x0010_011a, 0x0030_a23a, 0]) };

/// Rights that Linux asks for in ACCESS to a file.
const FILE_ACCESS: u32 = ACCESS_READ | ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_EXECUTE;

impl Session<'_> {
    /// The directory at a path below the pseudo root.
    pub(crate) fn walk(&mut self, stream: &mut RecordStream, path: &[u8]) -> CallResult<Handle> {
        let found = self.call(
            stream,
            false,
            &[(OperationCode::Putrootfh, &()), (OperationCode::Getfh, &())],
            |results| {
                results.next::<()>(OperationCode::Putrootfh)?;
                results.next(OperationCode::Getfh)
            },
        )?;
        let Ok(mut handle): Result<Handle, _> = found else { return Ok(found) };
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let name = NameArgs { name };
            let operations: [Operation<'_>; 3] = [
                (OperationCode::Putfh, &handle),
                (OperationCode::Lookup, &name),
                (OperationCode::Getfh, &()),
            ];
            let found = self.call(stream, false, &operations, |results| {
                results.put()?;
                results.next::<()>(OperationCode::Lookup)?;
                results.next(OperationCode::Getfh)
            })?;
            let Ok(next) = found else { return Ok(found) };
            handle = next;
        }
        Ok(Ok(handle))
    }

    /// OPEN of a name in a directory, as Linux does it.
    pub(crate) fn open(
        &mut self,
        stream: &mut RecordStream,
        directory: &Handle,
        name: &[u8],
        access: ShareAccess,
        how: OpenHow<'_>,
    ) -> CallResult<(Handle, Stateid)> {
        let args = OpenArgs {
            seqid: 0,
            share_access: access.code() | SHARE_WANT_NO_DELEGATION,
            share_deny: ShareDeny::None.code(),
            owner: OpenOwner { client: self.client, owner: b"owner" },
            how,
            claim: OpenClaim::Null(name),
        };
        let operations: [Operation<'_>; 5] = [
            (OperationCode::Putfh, directory),
            (OperationCode::Open, &args),
            (OperationCode::Getfh, &()),
            (OperationCode::Access, &AccessArgs { access: FILE_ACCESS }),
            (OperationCode::Getattr, &ALL_ATTRIBUTES),
        ];
        self.call(stream, true, &operations, |results| {
            results.put()?;
            let opened: OpenOk = results.next(OperationCode::Open)?;
            Ok((results.next(OperationCode::Getfh)?, opened.stateid))
        })
    }

    /// CLOSE.
    pub(crate) fn close(
        &mut self,
        stream: &mut RecordStream,
        file: &Handle,
        stateid: Stateid,
    ) -> CallResult<()> {
        let args = CloseArgs { seqid: 0, stateid };
        let operations: [Operation<'_>; 2] =
            [(OperationCode::Putfh, file), (OperationCode::Close, &args)];
        self.call(stream, true, &operations, |results| {
            results.put()?;
            results.next(OperationCode::Close)
        })
    }

    /// GETATTR.
    pub(crate) fn getattr(&mut self, stream: &mut RecordStream, object: &Handle) -> CallResult<()> {
        let operations: [Operation<'_>; 2] =
            [(OperationCode::Putfh, object), (OperationCode::Getattr, &ALL_ATTRIBUTES)];
        self.call(stream, false, &operations, |results| {
            results.put()?;
            results.next::<Attributes<'_>>(OperationCode::Getattr).map(drop)
        })
    }

    /// LOOKUP of a name in a directory, as Linux does it.
    pub(crate) fn lookup(
        &mut self,
        stream: &mut RecordStream,
        directory: &Handle,
        name: &[u8],
    ) -> CallResult<()> {
        let name = NameArgs { name };
        let operations: [Operation<'_>; 4] = [
            (OperationCode::Putfh, directory),
            (OperationCode::Lookup, &name),
            (OperationCode::Getfh, &()),
            (OperationCode::Getattr, &ALL_ATTRIBUTES),
        ];
        self.call(stream, false, &operations, |results| {
            results.put()?;
            results.next::<()>(OperationCode::Lookup)?;
            results.next::<Handle>(OperationCode::Getfh)?;
            results.next::<Attributes<'_>>(OperationCode::Getattr).map(drop)
        })
    }

    /// ACCESS, as Linux does it.
    pub(crate) fn access(&mut self, stream: &mut RecordStream, object: &Handle) -> CallResult<()> {
        let operations: [Operation<'_>; 3] = [
            (OperationCode::Putfh, object),
            (OperationCode::Access, &AccessArgs { access: FILE_ACCESS }),
            (OperationCode::Getattr, &ALL_ATTRIBUTES),
        ];
        self.call(stream, false, &operations, |results| {
            results.put()?;
            results.next::<AccessOk>(OperationCode::Access)?;
            results.next::<Attributes<'_>>(OperationCode::Getattr).map(drop)
        })
    }

    /// REMOVE of a name in a directory.
    pub(crate) fn remove(
        &mut self,
        stream: &mut RecordStream,
        directory: &Handle,
        name: &[u8],
    ) -> CallResult<()> {
        let args = NameArgs { name };
        let operations: [Operation<'_>; 2] =
            [(OperationCode::Putfh, directory), (OperationCode::Remove, &args)];
        self.call(stream, true, &operations, |results| {
            results.put()?;
            results.next::<ChangedOk>(OperationCode::Remove).map(drop)
        })
    }
}

/// The calls of a connection on its file, which is open.
pub(super) struct FileCalls<'a> {
    session: Session<'a>,
    file: Handle,
    opened: Stateid,
}

impl<'a> FileCalls<'a> {
    /// Opens `name` in the directory at `path`.
    ///
    /// # Errors
    /// Why it is not open.
    pub(super) fn open(
        mut session: Session<'a>,
        stream: &mut RecordStream,
        path: &[u8],
        name: &str,
        access: ShareAccess,
        timeout: Duration,
    ) -> Result<Self, Broken> {
        let directory = named("LOOKUP", session.walk(stream, path))?;
        let mut again = 0;
        let opened = until_taken(timeout, &mut again, || {
            session.open(stream, &directory, name.as_bytes(), access, OpenHow::NoCreate)
        });
        let (file, opened) = named(&format!("OPEN {name}"), opened)?;
        Ok(Self { session, file, opened })
    }

    /// As [`Session::slots_max`].
    pub(super) fn slots_max(&self) -> usize {
        self.session.slots_max()
    }

    /// The stateid of READ and WRITE: the latest state of the open.
    fn stateid(&self) -> Stateid {
        Stateid { seqid: 0, ..self.opened }
    }

    pub(super) fn queue_read(&mut self, to: &mut RecordStream, xid: u32, offset: u64, count: u32) {
        let args = ReadArgs { stateid: self.stateid(), offset, count };
        let operations: [Operation<'_>; 2] =
            [(OperationCode::Putfh, &self.file), (OperationCode::Read, &args)];
        self.session.queue(to, xid, false, &operations, 0);
    }

    pub(super) fn queue_write(
        &mut self,
        to: &mut RecordStream,
        xid: u32,
        offset: u64,
        count: u32,
        stable: StableHow,
    ) -> &'static [u8] {
        let stable = proto::nfs4::StableHow::from_code(stable.code()).expect("they are the same");
        let head = WriteHead { stateid: self.stateid(), offset, stable, data_len: count };
        let operations: [Operation<'_>; 2] =
            [(OperationCode::Putfh, &self.file), (OperationCode::Write, &head)];
        let data_bytes = usize::try_from(count).expect("32 bits fit");
        self.session.queue(to, xid, false, &operations, data_bytes);
        &BEHIND_DATA
    }

    pub(super) fn read_reply(
        &mut self,
        from: &mut RecordStream,
    ) -> Result<Answer<ReadHead>, Broken> {
        self.session.reply(from, |results| {
            results.put()?;
            let WireReadHead(head) = results.next(OperationCode::Read)?;
            Ok(head)
        })
    }

    pub(super) fn write_reply(
        &mut self,
        from: &mut RecordStream,
    ) -> Result<Answer<Written>, Broken> {
        self.session.reply(from, |results| {
            results.put()?;
            let ok: WriteOk = results.next(OperationCode::Write)?;
            let committed = StableHow::from_code(ok.committed.code()).expect("they are the same");
            Ok(Written { count: ok.count, committed, verifier: ok.verifier.0 })
        })
    }

    pub(super) fn commit(&mut self, stream: &mut RecordStream, xid: u32) -> CallResult<[u8; 8]> {
        let args = CommitArgs { offset: 0, count: 0 };
        let operations: [Operation<'_>; 2] =
            [(OperationCode::Putfh, &self.file), (OperationCode::Commit, &args)];
        self.session.queue(stream, xid, false, &operations, 0);
        finish_call(stream, xid, |stream| {
            self.session.reply(stream, |results| {
                results.put()?;
                let ok: CommitOk = results.next(OperationCode::Commit)?;
                Ok(ok.verifier.0)
            })
        })
    }

    pub(super) fn end(&mut self, stream: &mut RecordStream) -> CallResult<()> {
        match self.session.close(stream, &self.file, self.opened)? {
            Ok(()) => self.session.end(stream),
            Err(refusal) => Ok(Err(refusal)),
        }
    }
}

/// Result of READ up to the data.
struct WireReadHead(ReadHead);

impl Decode<'_> for WireReadHead {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let eof = r.bool("ReadOk.eof")?;
        Ok(Self(ReadHead { eof, count: r.u32("ReadOk.data")? }))
    }
}
