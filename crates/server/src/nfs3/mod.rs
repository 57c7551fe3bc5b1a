//! NFS version 3 (RFC 1813): each procedure takes arguments, makes one call of `vfs`, and answers.

mod attr;
mod convert;
mod fsinfo;
mod namespace;
mod read;
mod readdir;
mod write;

use std::fmt;

use proto::nfs3::{self, Failure, FileHandle, Procedure, Reply, WriteHead};
use proto::xdr::{Decode, DecodeError, Encode, Reader, Writer, decode_all};

use crate::dispatch::Request;
use crate::payload::Payload;
use crate::trace::{CallId, Event, handle_hash};
use crate::vfs::{Caller, Object, Status};

/// The status in front of the results of a success (RFC 1813 §2.6), where they are written piece by
/// piece.
const NFS3_OK: u32 = 0;

/// Decodes the arguments, runs the procedure and appends its result to `reply`. The data of a READ
/// is returned, to be sent behind it.
///
/// # Errors
/// The arguments are not those of the procedure.
pub(crate) async fn execute(
    request: &Request<'_>,
    procedure: Procedure,
    args: &[u8],
    payload: Option<Payload>,
    reply: &mut Writer,
) -> Result<Option<Payload>, DecodeError> {
    match procedure {
        Procedure::Null => Reader::new(args).finish()?,
        Procedure::Getattr => attr::getattr(request, decode_all(args)?).await.encode(reply),
        Procedure::Setattr => attr::setattr(request, decode_all(args)?).await.encode(reply),
        Procedure::Lookup => namespace::lookup(request, decode_all(args)?).await.encode(reply),
        Procedure::Access => attr::access(request, decode_all(args)?).await.encode(reply),
        Procedure::Readlink => namespace::readlink(request, decode_all(args)?, reply).await,
        Procedure::Read => return Ok(read::read(request, decode_all(args)?, reply).await),
        Procedure::Write => {
            let transfer_bytes_max = request.service.vfs.transfer_bytes_max;
            let args = write_args(args, payload.as_ref(), transfer_bytes_max)?;
            write::write(request, args, payload).await.encode(reply);
        }
        Procedure::Create => namespace::create(request, decode_all(args)?).await.encode(reply),
        Procedure::Mkdir => namespace::mkdir(request, decode_all(args)?).await.encode(reply),
        Procedure::Symlink => namespace::symlink(request, decode_all(args)?).await.encode(reply),
        Procedure::Mknod => namespace::mknod(request, decode_all(args)?).await.encode(reply),
        Procedure::Remove => namespace::remove(request, decode_all(args)?).await.encode(reply),
        Procedure::Rmdir => namespace::rmdir(request, decode_all(args)?).await.encode(reply),
        Procedure::Rename => namespace::rename(request, decode_all(args)?).await.encode(reply),
        Procedure::Link => namespace::link(request, decode_all(args)?).await.encode(reply),
        Procedure::Readdir => readdir::readdir(request, decode_all(args)?, reply).await,
        Procedure::Readdirplus => readdir::readdirplus(request, decode_all(args)?, reply).await,
        Procedure::Fsstat => fsinfo::fsstat(request, decode_all(args)?).await.encode(reply),
        Procedure::Fsinfo => fsinfo::fsinfo(request, decode_all(args)?).await.encode(reply),
        Procedure::Pathconf => fsinfo::pathconf(request, decode_all(args)?).await.encode(reply),
        Procedure::Commit => write::commit(request, decode_all(args)?).await.encode(reply),
    }
    Ok(None)
}

/// The arguments of WRITE up to the data, which was received apart from them. A record that ends
/// before the data does is no call; data beyond `transfer_bytes_max` was not kept.
fn write_args(
    args: &[u8],
    payload: Option<&Payload>,
    transfer_bytes_max: u32,
) -> Result<WriteHead, DecodeError> {
    let mut reader = Reader::new(args);
    let head = WriteHead::decode(&mut reader)?;
    let is_here = usize::try_from(head.data_len) == Ok(payload.map_or(0, Payload::len));
    if !is_here && head.data_len <= transfer_bytes_max {
        return Err(DecodeError { what: "WriteArgs.data", at_byte: reader.position() });
    }
    reader.finish()?;
    Ok(head)
}

impl Request<'_> {
    /// The object behind a handle, and the caller as its export sees them.
    fn resolve(&self, handle: &FileHandle) -> Result<(Caller, Object), Status> {
        let handle = handle.as_bytes();
        self.service.resolve(self.xid, handle, &self.peer, self.flavor, self.credential)
    }

    /// Traces that a call was decoded.
    fn trace_start(&self, event: Event, handle: &FileHandle, offset: u64, len: u32) {
        self.trace(event, handle, offset, len, format_args!(""));
    }

    /// Traces the answer: the status, and how much of `len` was done.
    fn trace_done(
        &self,
        event: Event,
        handle: &FileHandle,
        offset: u64,
        len: u32,
        result: Result<u32, nfs3::Status>,
    ) {
        match result {
            Ok(count) => {
                self.trace(event, handle, offset, len, format_args!("status=NFS3_OK count={count}"))
            }
            Err(status) => {
                let status = status.name();
                self.trace(event, handle, offset, len, format_args!("status={status} count=0"))
            }
        }
    }

    fn trace(
        &self,
        event: Event,
        handle: &FileHandle,
        offset: u64,
        len: u32,
        detail: fmt::Arguments<'_>,
    ) {
        let tracer = &self.service.vfs.tracer;
        if tracer.is_on(event) {
            let call = CallId { xid: self.xid, fh_hash: handle_hash(handle.as_bytes()) };
            tracer.emit(event, call, offset, len.into(), detail);
        }
    }
}

/// A reply that tells only why.
fn refused<O, F: Default>(status: Status) -> Reply<O, F> {
    failed(status, F::default())
}

fn failed<O, F>(status: Status, body: F) -> Reply<O, F> {
    Err(Failure { status: convert::status(status), body })
}
