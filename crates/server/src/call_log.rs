//! The log lines of calls: at `debug` a line for each, and at `error` one for a call that ended in
//! an error of the system. A line is made from the arguments and results as they are on the wire,
//! and only if it is written.

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use proto::mount3;
use proto::nfs3::{self, DirOp, FileHandle, Procedure};
use proto::nfs4;
use proto::xdr::{Decode, DecodeError, Reader};

use crate::call::Call;
use crate::export::claimed_export_id;
use crate::fs::{Shown, Status};
use crate::procedures::Operation;
use crate::request::{Handled, Peer, Refusal};
use crate::service::Service;
use crate::trace::handle_hash;

/// The time that a call began, if its end is to be logged: one check of the level if not.
pub(crate) fn start() -> Option<Instant> {
    tracing::enabled!(tracing::Level::DEBUG).then(Instant::now)
}

/// An event of a call with what is known of it, in the order of the fields of a line.
macro_rules! call_event {
    ($level:ident, $line:expr, $subject:expr, $message:expr $(, $field:ident = $value:expr)*) => {{
        let (line, Subject { export, fh_hash, operation, name, to, path, range }) =
            ($line, $subject);
        tracing::$level!(
            client = %line.peer.address,
            xid = %Hex(line.call.xid),
            // Behind the client: the limit on lines is by the last of the two.
            export = export.map(display),
            fh_hash = fh_hash.map(display),
            operation = operation.map(display),
            name = name.map(display),
            to = to.map(display),
            path = path.map(display),
            offset = range.map(|(offset, _)| offset),
            count = range.map(|(_, count)| count),
            $($field = $value,)*
            "{}", $message
        );
    }};
}

/// Logs that a call begins.
pub(crate) fn begins(line: &Line<'_>) {
    if tracing::enabled!(tracing::Level::TRACE) {
        call_event!(trace, line, line.subject(), format_args!("{} begins", line.procedure()));
    }
}

/// Logs how a call ended that began at `start`. `results` are those written so far, and count if
/// the call was executed.
pub(crate) fn ended(
    line: &Line<'_>,
    start: Instant,
    done: &Result<Handled, Refusal>,
    results: &[u8],
) {
    let (status, time) = (line.status(done, results), start.elapsed());
    let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let procedure = line.procedure();
    call_event!(
        debug,
        line,
        line.subject(),
        procedure,
        status = display(status),
        time_us = time_us
    );
}

/// Logs the fault that a call ended in. The limit on lines about one export holds.
pub(crate) fn failed(line: &Line<'_>, fault: Status) {
    let mut subject = line.subject();
    subject.path = line.path().or(subject.path);
    call_event!(error, line, subject, format_args!("{} failed: {fault}", line.procedure()));
}

/// A call that lines are about.
pub(crate) struct Line<'a> {
    pub(crate) service: &'a Service,
    pub(crate) peer: Peer,
    pub(crate) call: &'a Call,
}

/// The part of a call's arguments that log lines show.
struct Subject<'a> {
    /// The name of the export that the first handle belongs to.
    export: Option<String>,
    /// Of the first handle.
    fh_hash: Option<Hex>,
    /// Of a COMPOUND: the first operation that works on files.
    operation: Option<&'static str>,
    /// In a directory.
    name: Option<Shown<'a>>,
    /// The new name of RENAME and LINK.
    to: Option<Shown<'a>>,
    /// The argument of MNT, or where the object of a call that failed is.
    path: Option<String>,
    /// Offset or cookie, and count.
    range: Option<(u64, u32)>,
}

/// A number of the wire, as packet captures show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hex(u32);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

impl Hex {
    fn hash_of(handle: &[u8]) -> Self {
        Self(handle_hash(handle))
    }
}

impl<'a> Line<'a> {
    fn is_mnt(&self) -> bool {
        let mnt = Operation::Mount3(mount3::Procedure::Mnt);
        self.call.procedure.is_ok_and(|row| row.operation == mnt)
    }

    fn procedure(&self) -> Cow<'static, str> {
        match self.call.procedure {
            Ok(row) => row.name.into(),
            Err(_) => {
                let Call { program, version, code, .. } = self.call;
                format!("program {program} version {version} procedure {code}").into()
            }
        }
    }

    fn subject(&self) -> Subject<'a> {
        let (outline, arguments) = (self.call.outline(), self.call.arguments());
        let names = self.call.nfs3().and_then(|procedure| names(procedure, arguments).ok());
        let [name, to] = names.unwrap_or_default().map(|name| name.map(Shown));
        let path = || Reader::new(arguments).opaque(mount3::PATH_BYTES_MAX, "path").ok();
        Subject {
            export: self.export(),
            fh_hash: outline.handle.map(Hex::hash_of),
            operation: outline.work.map(nfs4::OperationCode::name),
            name,
            to,
            path: self.is_mnt().then(path).flatten().map(|path| Shown(path).to_string()),
            range: outline.range,
        }
    }

    /// The name of the export that the first handle belongs to.
    fn export(&self) -> Option<String> {
        let handle = self.call.outline().handle?;
        self.service.handle_key.open(handle).ok()?;
        let exports = self.service.exports.load();
        exports.table.by_id(claimed_export_id(handle)?).map(|export| export.name.clone())
    }

    /// Where the object of the first handle is, if it is open.
    fn path(&self) -> Option<String> {
        let path = self.service.path_of(self.call.outline().handle?)?;
        Some(path.replace(' ', "\\x20"))
    }

    fn status(&self, done: &Result<Handled, Refusal>, results: &[u8]) -> String {
        match done {
            Err(Refusal::Denied(stat)) => format!("{stat:?}"),
            Err(Refusal::NotExecuted(stat)) => format!("{stat:?}"),
            Ok(Handled::InProgress) => "dropped, because the call is at work".to_owned(),
            Ok(Handled::FromReplyCache(_)) => "answered from the reply cache".to_owned(),
            Ok(Handled::FromSlot) => "answered from the slot of a session".to_owned(),
            Ok(Handled::Executed { .. }) => self.result_status(results),
        }
    }

    /// The status in front of the results, by its name in RFC 1813; most procedures have one.
    fn result_status(&self, results: &[u8]) -> String {
        let code = Reader::new(results).u32("status").unwrap_or(0);
        if self.call.is_compound() {
            let status = nfs4::Status::from_code(code).map(nfs4::Status::name);
            return status.unwrap_or("NFS4_OK").to_owned();
        }
        let name = match self.call.nfs3() {
            Some(Procedure::Null) => None,
            Some(_) if code == 0 => Some("NFS3_OK"),
            Some(_) => nfs3::Status::from_code(code).map(nfs3::Status::name),
            None if self.is_mnt() && code == 0 => Some("MNT3_OK"),
            None if self.is_mnt() => {
                mount3::MountStatus::from_code(code).map(mount3::MountStatus::name)
            }
            None => None,
        };
        name.unwrap_or("OK").to_owned()
    }
}

/// The names in the arguments of a procedure: one in a directory, and the new one of RENAME and
/// LINK.
fn names(procedure: Procedure, arguments: &[u8]) -> Result<[Option<&[u8]>; 2], DecodeError> {
    use Procedure as P;
    let mut r = Reader::new(arguments);
    Ok(match procedure {
        P::Lookup | P::Create | P::Mkdir | P::Symlink | P::Mknod | P::Remove | P::Rmdir => {
            [Some(DirOp::decode(&mut r)?.name), None]
        }
        P::Rename => [Some(DirOp::decode(&mut r)?.name), Some(DirOp::decode(&mut r)?.name)],
        P::Link => {
            FileHandle::decode(&mut r)?;
            [None, Some(DirOp::decode(&mut r)?.name)]
        }
        P::Null
        | P::Getattr
        | P::Setattr
        | P::Access
        | P::Readlink
        | P::Read
        | P::Write
        | P::Readdir
        | P::Readdirplus
        | P::Fsstat
        | P::Fsinfo
        | P::Pathconf
        | P::Commit => [None, None],
    })
}

#[cfg(test)]
mod tests {
    use proto::nfs3::{LinkArgs, LookupArgs, ReadArgs, RenameArgs};
    use proto::xdr::{Encode, Writer};

    use super::*;

    /// Encodes arguments and checks the names that lines show of them.
    #[track_caller]
    fn assert_names(procedure: Procedure, args: &impl Encode, expected: [Option<&[u8]>; 2]) {
        let mut w = Writer::new();
        args.encode(&mut w);
        assert_eq!(names(procedure, w.as_slice()), Ok(expected));
    }

    #[test]
    fn names_are_found_in_arguments() {
        let dir = FileHandle::new(b"directory").unwrap();
        let file = FileHandle::new(b"file").unwrap();
        let (what, to) = (DirOp { dir, name: b"a b\xff" }, DirOp { dir, name: b"new" });
        assert_names(Procedure::Read, &ReadArgs { file, offset: 4096, count: 10 }, [None, None]);
        assert_names(Procedure::Lookup, &LookupArgs { what }, [Some(what.name), None]);
        let both = [Some(what.name), Some(to.name)];
        assert_names(Procedure::Rename, &RenameArgs { from: what, to }, both);
        assert_names(Procedure::Link, &LinkArgs { file, link: to }, [None, Some(to.name)]);
    }
}
