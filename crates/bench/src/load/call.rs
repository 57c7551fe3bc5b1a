//! The calls of a load and what comes back, in each version of NFS.

use std::fmt;
use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs3::StableHow;
use proto::oncrpc::ReplyHeader;
use proto::xdr::DecodeError;
use proto::{nfs3, nfs4};
use rustix::time::{ClockId, clock_gettime};

use crate::record_stream::RecordStream;

/// The pause before a call is made anew that the server put off.
pub(super) const PUT_OFF_PAUSE: Duration = Duration::from_millis(100);
/// The number of a call's slot lies in the low bits of its transaction id.
const SLOT_BITS: u32 = 8;

/// A reply: the call that it answers, and the results or why there are none.
pub(super) type Answer<T> = (u32, Result<T, Refusal>);

/// Result of READ up to the data, which is still in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadHead {
    pub(super) count: u32,
    pub(super) eof: bool,
}

/// Result of WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) count: u32,
    pub(super) committed: StableHow,
    pub(super) verifier: [u8; 8],
}

/// Why a call was not performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server wants the call again later: JUKEBOX, DELAY or GRACE.
    PutOff(&'static str),
    /// Any other status.
    Status(&'static str),
    /// The call was not accepted.
    Header(ReplyHeader),
}

impl From<nfs3::Status> for Refusal {
    fn from(status: nfs3::Status) -> Self {
        match status {
            nfs3::Status::Jukebox => Self::PutOff(status.name()),
            _ => Self::Status(status.name()),
        }
    }
}

impl From<nfs4::Status> for Refusal {
    fn from(status: nfs4::Status) -> Self {
        match status {
            nfs4::Status::Delay | nfs4::Status::Grace => Self::PutOff(status.name()),
            _ => Self::Status(status.name()),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PutOff(name) | Self::Status(name) => f.write_str(name),
            Self::Header(header) => write!(f, "the server refuses the call: {header:?}"),
        }
    }
}

/// Why a connection is given up.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self(match error.kind() {
            ErrorKind::TimedOut => "the server does not answer".into(),
            ErrorKind::UnexpectedEof => "the server closed the connection within a reply".into(),
            _ => format!("the connection broke: {error}"),
        })
    }
}

impl From<DecodeError> for Broken {
    fn from(error: DecodeError) -> Self {
        Self(format!("the server's reply is malformed: {error}"))
    }
}

/// The result of a call. A [`Refusal`] leaves the connection usable, [`Broken`] ends it.
pub(crate) type CallResult<T> = Result<Result<T, Refusal>, Broken>;

/// The transaction ids of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Xids(pub(super) u32);

impl Xids {
    /// Ids that do not look like retransmissions of an earlier run.
    pub(crate) fn new() -> Self {
        let now = clock_gettime(ClockId::Monotonic).tv_nsec;
        Self(u32::try_from(now).expect("less than 10^9"))
    }

    /// The id of the next call, on `slot`, which is less than 256.
    pub(crate) fn next(&mut self, slot: usize) -> u32 {
        self.0 = self.0.wrapping_add(1);
        self.0 << SLOT_BITS | u32::try_from(slot).expect("less than 256")
    }
}

/// The slot in a transaction id.
pub(super) fn slot_of(xid: u32) -> usize {
    usize::try_from(xid & ((1 << SLOT_BITS) - 1)).expect("less than 256")
}

/// Sends what is queued, and waits for the reply to the one call in flight.
pub(super) fn finish_call<T>(
    stream: &mut RecordStream,
    xid: u32,
    reply: impl FnOnce(&mut RecordStream) -> Result<Answer<T>, Broken>,
) -> CallResult<T> {
    stream.flush()?;
    if !stream.next_record()? {
        return Err(Broken("the server closed the connection".into()));
    }
    let (answered, answer) = reply(stream)?;
    stream.finish()?;
    if answered != xid {
        return Err(Broken(format!("the server answers call {answered:#010x}, not {xid:#010x}")));
    }
    Ok(answer)
}

/// Makes a call again as long as the server puts it off, for at most `timeout`, and adds to `again`
/// how often.
pub(crate) fn until_taken<T>(
    timeout: Duration,
    again: &mut u64,
    mut call: impl FnMut() -> CallResult<T>,
) -> CallResult<T> {
    let began = Instant::now();
    loop {
        match call()? {
            Err(Refusal::PutOff(_)) if began.elapsed() < timeout => {
                *again += 1;
                thread::sleep(PUT_OFF_PAUSE);
            }
            answer => return Ok(answer),
        }
    }
}
