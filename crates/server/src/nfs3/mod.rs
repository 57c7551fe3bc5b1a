//! NFS version 3 (RFC 1813): each procedure takes arguments, makes one call of `vfs`, and answers.
//!
//! A procedure returns an [`Outcome`], so that `?` ends it with the status of what failed.
//! [`Results`] makes replies of outcomes.

mod attr;
mod convert;
mod fsinfo;
mod namespace;
mod read;
mod readdir;
mod write;

use io::{Payload, WriteData};
use proto::nfs3::{Failure, FileHandle, Procedure, Reply, WriteHead};
use proto::xdr::{DecodeError, Encode, Reader, Writer, decode_all};

use crate::call::Call;
use crate::export::Object;
use crate::fs::{Caller, Status};
use crate::request::Request;
use crate::trace::{Detail, Event};

/// The status in front of the results of a success (RFC 1813 §2.6), where they are written piece by
/// piece.
const NFS3_OK: u32 = 0;

/// The outcome of a call.
pub(crate) enum Executed {
    /// The procedure ran, whatever its result. Long data is to be sent behind the reply.
    Done(Option<Payload>),
    /// The procedure was refused before it began: the handle is not one of this server, or its
    /// export does not admit the client. A copy of the call is refused alike.
    NotAdmitted,
}

impl Executed {
    /// The data to be sent behind the reply.
    pub(crate) fn payload(self) -> Option<Payload> {
        match self {
            Self::Done(payload) => payload,
            Self::NotAdmitted => None,
        }
    }
}

/// The results of a procedure, or why there are none.
type Outcome<O, F> = Result<O, Refused<F>>;

/// Why a procedure has no results.
struct Refused<F> {
    status: Status,
    /// The procedure's `resfail` (RFC 1813 §3.3).
    body: F,
    /// Whether the gate admitted the call.
    is_admitted: bool,
}

impl<F> Refused<F> {
    /// A refusal of an admitted call, with a body.
    fn with(body: F) -> impl FnOnce(Status) -> Self {
        |status| Self { status, body, is_admitted: true }
    }
}

impl<F: Default> From<Status> for Refused<F> {
    fn from(status: Status) -> Self {
        Self::with(F::default())(status)
    }
}

/// The gate refused a call; from [`Request::resolve`].
struct NotAdmitted(Status);

impl<F: Default> From<NotAdmitted> for Refused<F> {
    fn from(NotAdmitted(status): NotAdmitted) -> Self {
        Self { status, body: F::default(), is_admitted: false }
    }
}

/// The arguments of a call.
pub(crate) struct Arguments<'a> {
    /// As they were received, without the payload.
    pub(crate) bytes: &'a [u8],
    /// The decoded arguments of WRITE.
    pub(crate) write: &'a Option<WriteHead>,
    pub(crate) payload: Option<WriteData>,
}

impl<'a> Arguments<'a> {
    /// The arguments of a call, without a payload.
    pub(crate) fn of(call: &'a Call) -> Self {
        Self { bytes: call.arguments(), write: &call.write, payload: None }
    }
}

/// Decodes the arguments, runs the procedure and appends its result to `reply`. Long data (of a
/// READ, the entries of a listing, the target of a link) is returned in memory of the budget, to be
/// sent behind it.
///
/// # Errors
/// The arguments are not those of the procedure.
pub(crate) async fn execute(
    request: &Request<'_>,
    procedure: Procedure,
    arguments: &mut Arguments<'_>,
    reply: &mut Writer,
) -> Result<Executed, DecodeError> {
    let Arguments { bytes: args, write, payload } = arguments;
    let results = Results { request, reply };
    // The work on a call is as large as its largest part, and moved some times: what is not called
    // all the time lies elsewhere.
    Ok(match procedure {
        Procedure::Null => {
            Reader::new(args).finish()?;
            Executed::Done(None)
        }
        Procedure::Getattr => results.put(attr::getattr(request, decode_all(args)?).await),
        Procedure::Setattr => {
            results.put(Box::pin(attr::setattr(request, decode_all(args)?)).await)
        }
        Procedure::Lookup => results.put(namespace::lookup(request, decode_all(args)?).await),
        Procedure::Access => results.put(attr::access(request, decode_all(args)?).await),
        Procedure::Readlink => Box::pin(namespace::readlink(results, decode_all(args)?)).await,
        Procedure::Read => read::read(results, decode_all(args)?).await,
        Procedure::Write => {
            let transfer_bytes_max = request.service.memory.transfer_bytes_max;
            let write = check_write(write.as_ref(), payload.as_ref(), transfer_bytes_max)?;
            results.put(write::write(request, write, payload).await)
        }
        Procedure::Create => {
            results.put(Box::pin(namespace::create(request, decode_all(args)?)).await)
        }
        Procedure::Mkdir => {
            results.put(Box::pin(namespace::mkdir(request, decode_all(args)?)).await)
        }
        Procedure::Symlink => {
            results.put(Box::pin(namespace::symlink(request, decode_all(args)?)).await)
        }
        Procedure::Mknod => {
            results.put(Box::pin(namespace::mknod(request, decode_all(args)?)).await)
        }
        Procedure::Remove => {
            results.put(Box::pin(namespace::remove(request, decode_all(args)?)).await)
        }
        Procedure::Rmdir => {
            results.put(Box::pin(namespace::rmdir(request, decode_all(args)?)).await)
        }
        Procedure::Rename => {
            results.put(Box::pin(namespace::rename(request, decode_all(args)?)).await)
        }
        Procedure::Link => results.put(Box::pin(namespace::link(request, decode_all(args)?)).await),
        Procedure::Readdir => Box::pin(readdir::readdir(results, decode_all(args)?)).await,
        Procedure::Readdirplus => Box::pin(readdir::readdirplus(results, decode_all(args)?)).await,
        Procedure::Fsstat => {
            results.put(Box::pin(fsinfo::fsstat(request, decode_all(args)?)).await)
        }
        Procedure::Fsinfo => {
            results.put(Box::pin(fsinfo::fsinfo(request, decode_all(args)?)).await)
        }
        Procedure::Pathconf => {
            results.put(Box::pin(fsinfo::pathconf(request, decode_all(args)?)).await)
        }
        Procedure::Commit => results.put(Box::pin(write::commit(request, decode_all(args)?)).await),
    })
}

/// Where the results of a call go.
struct Results<'a> {
    request: &'a Request<'a>,
    reply: &'a mut Writer,
}

impl Results<'_> {
    /// Appends the results, or why there are none.
    fn put<O: Encode, F: Encode>(self, outcome: Outcome<O, F>) -> Executed {
        self.put_with(outcome, |ok, reply| {
            reply.u32(NFS3_OK);
            ok.encode(reply);
            None
        })
    }

    /// As [`Self::put`]; `encode` appends the results of a success with the status in front of
    /// them, and returns what is to be sent behind them.
    fn put_with<O, F: Encode>(
        self,
        outcome: Outcome<O, F>,
        encode: impl FnOnce(O, &mut Writer) -> Option<Payload>,
    ) -> Executed {
        let Refused { status, body, is_admitted } = match outcome {
            Ok(ok) => return Executed::Done(encode(ok, self.reply)),
            Err(refused) => refused,
        };
        // `dispatch` logs a fault with all of the call.
        self.request.fault.note(status);
        let failure = Failure { status: convert::status(status), body };
        Reply::<(), F>::Err(failure).encode(self.reply);
        if is_admitted { Executed::Done(None) } else { Executed::NotAdmitted }
    }
}

/// The arguments of WRITE up to the data, which was received apart from them. A record that ends
/// before the data does is no call; data beyond `transfer_bytes_max` was not kept.
fn check_write<'a>(
    write: Option<&'a WriteHead>,
    payload: Option<&WriteData>,
    transfer_bytes_max: u32,
) -> Result<&'a WriteHead, DecodeError> {
    let malformed = |what| DecodeError { what, at_byte: 0 };
    let head = write.ok_or(malformed("WriteArgs"))?;
    let is_here = usize::try_from(head.data_len) == Ok(payload.map_or(0, WriteData::len));
    if is_here || head.data_len > transfer_bytes_max {
        Ok(head)
    } else {
        Err(malformed("WriteArgs.data"))
    }
}

impl Request<'_> {
    /// The object behind a handle, and the caller as its export sees them.
    fn resolve(&self, handle: &FileHandle) -> Result<(Caller, Object), NotAdmitted> {
        let handle = handle.as_bytes();
        let resolved =
            self.service.resolve(self.xid, handle, &self.peer, self.flavor, self.credential);
        let resolved = resolved.map_err(NotAdmitted)?;
        self.tally.note_export(&resolved.1.root().counters);
        Ok(resolved)
    }

    /// Traces that a call was decoded.
    fn trace_start(&self, event: Event, handle: &FileHandle, range: (u64, u32)) {
        self.trace(event, || self.call_id(|| *handle), range, format_args!("").into());
    }

    /// Traces the answer: the status, and how much of `range` was done.
    fn trace_done<O, F>(
        &self,
        event: Event,
        handle: &FileHandle,
        range: (u64, u32),
        outcome: &Outcome<O, F>,
        count: impl FnOnce(&O) -> u32,
    ) {
        let (status, name, count) = match outcome {
            Ok(ok) => (NFS3_OK, "NFS3_OK", count(ok)),
            Err(refused) => {
                let status = convert::status(refused.status);
                (status.code(), status.name(), 0)
            }
        };
        let detail = Detail::Done { status, name, count };
        self.trace(event, || self.call_id(|| *handle), range, detail);
    }
}
