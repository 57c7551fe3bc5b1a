//! From a record to a reply: RPC header, program, procedure, reply cache (RFC 5531).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use proto::nfs3;
use proto::oncrpc::{
    AcceptStat, AuthStat, CallError, CallHeader, Credential, RPC_VERSION, RejectStat, ReplyHeader,
    decode_call, encode_success,
};
use proto::xdr::{DecodeError, Encode, Reader, Writer};
use proto::{mount3, portmap};

use crate::counters::Counter;
use crate::export_table;
use crate::payload::Payload;
use crate::receive::{Record, word};
use crate::reply_cache::{CallKey, Outcome, ReplyCache};
use crate::reply_queue::Reply;
use crate::service::Service;
use crate::{mount3 as mount, portmap as mapper};

/// Where a call's header has the program and, behind its version, the procedure (RFC 5531 §9).
const PROGRAM_AT: usize = 12;
const PROCEDURE_AT: usize = 20;
/// Room for the head of most replies.
const REPLY_HEAD_BYTES: usize = 512;

/// Who is at the other end, and what is served to them there.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) programs: Programs,
}

/// The programs that answer on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Programs {
    /// NFS and MOUNT.
    Files,
    /// The portmapper, saying that NFS and MOUNT are on this port.
    Portmapper {
        /// The port of the files.
        nfs_port: u16,
    },
}

/// What becomes of a record.
pub(crate) enum Verdict {
    /// Answer it.
    Reply(Reply),
    /// Say nothing: an earlier copy of the call is at work.
    Drop,
    /// It was no call; the peer does not speak this protocol.
    Close,
}

/// A call whose program and procedure are known, with what its credential says.
pub(crate) struct Request<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) xid: u32,
    pub(crate) peer: export_table::Peer,
    pub(crate) flavor: export_table::Flavor,
    pub(crate) credential: Option<export_table::Credential<'a>>,
}

/// Why a call is not answered with results.
pub(crate) enum Refusal {
    /// Refused at the door.
    Denied(RejectStat),
    /// Accepted and not executed.
    NotExecuted(AcceptStat),
    /// An earlier copy is at work.
    Running,
    /// Answered before: the whole reply from the transaction id on.
    Replayed(Vec<u8>),
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        tracing::debug!(%error, "arguments that cannot be decoded");
        Self::NotExecuted(AcceptStat::GarbageArgs)
    }
}

/// Where the work on a call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the connection's own thread: it is most likely done without waiting.
    Here,
    /// On the connection's own thread until it has to wait, then on a thread for file data.
    HereAtFirst,
    /// On a thread for file data.
    DataThread,
    /// On a thread for names and attributes.
    MetadataThread,
}

/// A READ up to this long is tried on the connection's thread whatever else is going on there: the
/// copy out of the page cache then costs less than a handover.
const READ_HERE_BYTES_MAX: u32 = 64 * 1024;

/// Where the work on a record begins. A guess from words of the call, which costs nothing but time
/// when it is wrong: each operation sees to it itself that it blocks only where it may.
///
/// `alone` says that the connection has no other call at work. A long READ is then tried on its
/// thread too, for nobody waits there: 1 MiB at a time from the page cache, one client, 2,209 to
/// 2,742 MiB/s instead of 1,930 to 2,244. With more READs at work the copies are better spread.
pub(crate) fn begins_on(record: &Record, alone: bool) -> Place {
    use nfs3::Procedure as P;
    let is_nfs = word(&record.head, PROGRAM_AT) == Some(nfs3::PROGRAM);
    let procedure = word(&record.head, PROCEDURE_AT).and_then(P::from_code);
    match procedure.filter(|_| is_nfs) {
        // Whose turn is next is known here, and the file may be another WRITE's for now.
        Some(P::Write) => Place::HereAtFirst,
        Some(P::Commit) => Place::DataThread,
        Some(
            P::Setattr
            | P::Lookup
            | P::Access
            | P::Readlink
            | P::Create
            | P::Mkdir
            | P::Symlink
            | P::Mknod
            | P::Remove
            | P::Rmdir
            | P::Rename
            | P::Link
            | P::Readdir
            | P::Readdirplus,
        ) => Place::MetadataThread,
        // The count is the last argument (RFC 1813 §3.3.6).
        Some(P::Read) => match word(&record.head, record.head.len().saturating_sub(4)) {
            Some(count) if alone || count <= READ_HERE_BYTES_MAX => Place::HereAtFirst,
            _ => Place::DataThread,
        },
        Some(P::Null | P::Getattr | P::Fsstat | P::Fsinfo | P::Pathconf) | None => Place::Here,
    }
}

/// Answers one record.
pub(crate) async fn answer(service: &Arc<Service>, peer: Peer, record: Record) -> Verdict {
    let Record { head, payload, trailing_bytes } = record;
    let mut args = Reader::new(&head);
    let call = match decode_call(&mut args) {
        Ok(call) => call,
        Err(CallError::Malformed(_) | CallError::NotACall) => return Verdict::Close,
        Err(CallError::RpcMismatch { xid }) => {
            return denied(xid, RejectStat::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION });
        }
        Err(CallError::BadCredential { xid, stat }) => {
            return denied(xid, RejectStat::AuthError(stat));
        }
    };
    let mut reply = Writer::with_capacity(REPLY_HEAD_BYTES);
    reply.array(&Reply::MARK);
    encode_success(&mut reply, call.xid);
    let args = &head[args.position()..];
    let done = if trailing_bytes > 0 {
        Err(Refusal::NotExecuted(AcceptStat::GarbageArgs))
    } else {
        execute(service, peer, &call, args, payload, &mut reply).await
    };
    match done {
        Ok(payload) => Verdict::Reply(Reply::new(reply.into_vec(), payload)),
        Err(Refusal::Denied(stat)) => denied(call.xid, stat),
        Err(Refusal::NotExecuted(stat)) => {
            if stat == AcceptStat::GarbageArgs {
                service.counters.add(Counter::GarbageCalls, 1);
            }
            plain(&ReplyHeader::Accepted { xid: call.xid, stat })
        }
        Err(Refusal::Running) => {
            service.counters.add(Counter::DroppedRetransmissions, 1);
            Verdict::Drop
        }
        Err(Refusal::Replayed(reply)) => {
            service.counters.add(Counter::Replays, 1);
            Verdict::Reply(Reply::new(reply, None))
        }
    }
}

fn denied(xid: u32, stat: RejectStat) -> Verdict {
    plain(&ReplyHeader::Denied(xid, stat))
}

fn plain(header: &ReplyHeader) -> Verdict {
    let mut w = Writer::with_capacity(64);
    w.array(&Reply::MARK);
    header.encode(&mut w);
    Verdict::Reply(Reply::new(w.into_vec(), None))
}

/// Runs the call and writes its results behind the reply header; the data of a READ is returned.
async fn execute(
    service: &Arc<Service>,
    peer: Peer,
    call: &CallHeader<'_>,
    args: &[u8],
    payload: Option<Payload>,
    reply: &mut Writer,
) -> Result<Option<Payload>, Refusal> {
    match (peer.programs, call.program) {
        (Programs::Files, nfs3::PROGRAM) => {
            version_is(call, nfs3::VERSION, nfs3::VERSION)?;
            let procedure = procedure(nfs3::Procedure::from_code(call.procedure))?;
            let request = request(service, peer, call)?;
            execute_once(&request, call, procedure, args, payload, reply).await
        }
        (Programs::Files, mount3::PROGRAM) => {
            version_is(call, mount3::VERSION, mount3::VERSION)?;
            let procedure = procedure(mount3::Procedure::from_code(call.procedure))?;
            mount::execute(&request(service, peer, call)?, procedure, args, reply).await?;
            Ok(None)
        }
        (Programs::Portmapper { nfs_port }, portmap::PROGRAM) => {
            version_is(call, mapper::VERSION_MIN, mapper::VERSION_MAX)?;
            mapper::execute(nfs_port, call.version, call.procedure, args, reply)?;
            Ok(None)
        }
        _ => Err(Refusal::NotExecuted(AcceptStat::ProgUnavail)),
    }
}

fn version_is(call: &CallHeader<'_>, low: u32, high: u32) -> Result<(), Refusal> {
    if (low..=high).contains(&call.version) {
        Ok(())
    } else {
        Err(Refusal::NotExecuted(AcceptStat::ProgMismatch { low, high }))
    }
}

fn procedure<P>(procedure: Option<P>) -> Result<P, Refusal> {
    procedure.ok_or(Refusal::NotExecuted(AcceptStat::ProcUnavail))
}

fn request<'a>(
    service: &'a Arc<Service>,
    peer: Peer,
    call: &'a CallHeader<'_>,
) -> Result<Request<'a>, Refusal> {
    let (flavor, credential) = match &call.credential {
        Credential::None => (export_table::Flavor::None, None),
        Credential::Sys(sys) => {
            let ids = export_table::Credential { uid: sys.uid, gid: sys.gid, groups: &sys.gids };
            (export_table::Flavor::Sys, Some(ids))
        }
        Credential::Other { .. } => {
            return Err(Refusal::Denied(RejectStat::AuthError(AuthStat::RejectedCred)));
        }
    };
    let peer = export_table::Peer { address: peer.address };
    Ok(Request { service, xid: call.xid, peer, flavor, credential })
}

/// Runs an NFSv3 procedure; one that must not run twice goes by way of the reply cache.
async fn execute_once(
    request: &Request<'_>,
    call: &CallHeader<'_>,
    procedure: nfs3::Procedure,
    args: &[u8],
    payload: Option<Payload>,
    reply: &mut Writer,
) -> Result<Option<Payload>, Refusal> {
    if is_idempotent(procedure) {
        return Ok(crate::nfs3::execute(request, procedure, args, payload, reply).await?);
    }
    let cache = &request.service.reply_cache;
    let key = CallKey {
        address: request.peer.address.ip(),
        xid: call.xid,
        procedure: call.procedure,
        content: cache.hash(request.credential, args),
    };
    match cache.begin(key, Instant::now()) {
        Outcome::Run => {}
        Outcome::Replay(reply) => return Err(Refusal::Replayed(reply)),
        Outcome::Drop => return Err(Refusal::Running),
    }
    let running = Running { cache, key };
    crate::nfs3::execute(request, procedure, args, payload, reply).await?;
    running.complete(reply.as_slice());
    Ok(None)
}

/// A call noted as running, which is forgotten if it ends without a reply.
struct Running<'a> {
    cache: &'a ReplyCache,
    key: CallKey,
}

impl Running<'_> {
    fn complete(self, reply: &[u8]) {
        self.cache.complete(self.key, reply, Instant::now());
        std::mem::forget(self);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.cache.abandon(&self.key);
    }
}

/// Whether running a call a second time gives the same result and does no harm (RFC 1813 §4.5).
fn is_idempotent(procedure: nfs3::Procedure) -> bool {
    use nfs3::Procedure as P;
    match procedure {
        P::Setattr
        | P::Create
        | P::Mkdir
        | P::Symlink
        | P::Mknod
        | P::Remove
        | P::Rmdir
        | P::Rename
        | P::Link => false,
        P::Null
        | P::Getattr
        | P::Lookup
        | P::Access
        | P::Readlink
        | P::Read
        | P::Write
        | P::Readdir
        | P::Readdirplus
        | P::Fsstat
        | P::Fsinfo
        | P::Pathconf
        | P::Commit => true,
    }
}
