//! The log lines of calls: at `debug` a line for each, and at `error` one for a call that ended in
//! an error of the system. A line is made from the arguments and results as they are on the wire,
//! and only if it is written.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};

use proto::mount3;
use proto::nfs3::{self, DirOp, FileHandle, Procedure};
use proto::nfs4;
use proto::xdr::{Decode, DecodeError, Reader};

use crate::call::Call;
use crate::fs::Status;
use crate::procedures::Operation;
use crate::request::{Handled, Peer, Refusal};
use crate::service::Service;
use crate::trace::handle_hash;

/// Bytes of a name or path that a line of the log shows.
const SHOWN_BYTES_MAX: usize = 256;

/// The beginning of a name or path that a client sent, in printable characters.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        let rest = if shown.len() < self.0.len() { "..." } else { "" };
        write!(f, "{}{rest}", shown.escape_ascii())
    }
}

/// The time that a call began, if its end is to be logged: one check of the level if not.
pub(crate) fn start() -> Option<Instant> {
    tracing::enabled!(tracing::Level::DEBUG).then(Instant::now)
}

/// Logs how a call ended that began at `start`. `results` are those written so far, and count if the
/// call was executed.
pub(crate) fn ended(
    line: &Line<'_>,
    start: Instant,
    done: &Result<Handled, Refusal>,
    results: &[u8],
) {
    let (status, time) = (line.status(done, results), start.elapsed());
    tracing::debug!("{line} status={status} time={}us", Duration::as_micros(&time));
}

/// Logs the fault that a call ended in. The limit on lines about one export holds.
pub(crate) fn failed(line: &Line<'_>, fault: Status) {
    let (client, export) = (line.peer.address, line.export().unwrap_or_default());
    let path = line.path().map(|path| format!(" path={path}")).unwrap_or_default();
    let procedure = line.procedure();
    let object = line.object().unwrap_or_default();
    tracing::error!(
        %client,
        export,
        "{procedure} failed: {fault}: xid=0x{:08x}{object}{path}",
        line.call.xid
    );
}

/// A call, to be shown: `READ client=192.0.2.1:700 xid=0x5dcf019c export=/data fh_hash=0xe4dadb60
/// offset=0 count=4096`, with `name=` for a name in a directory and `to=` for a second one.
pub(crate) struct Line<'a> {
    pub(crate) service: &'a Service,
    pub(crate) peer: Peer,
    pub(crate) call: &'a Call,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (client, xid) = (self.peer.address, self.call.xid);
        write!(f, "{} client={client} xid=0x{xid:08x}", self.procedure())?;
        if let Some(export) = self.export() {
            write!(f, " export={export}")?;
        }
        match self.object() {
            Some(object) => object.fmt(f),
            None => Ok(()),
        }
    }
}

impl Line<'_> {
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

    fn object(&self) -> Option<ObjectText> {
        let arguments = self.call.arguments();
        if self.is_mnt() {
            let path = Reader::new(arguments).opaque(mount3::PATH_BYTES_MAX, "path").ok()?;
            return Some(ObjectText(format!(" path={}", Shown(path))));
        }
        if self.call.is_compound() {
            return Some(ObjectText(compound_text(arguments)));
        }
        let arguments = Arguments::decode(self.call.nfs3()?, arguments).ok()?;
        Some(ObjectText(arguments.to_string()))
    }

    fn first_handle(&self) -> Option<FileHandle> {
        if self.call.is_compound() {
            return FileHandle::new(nfs4::Outline::of(self.call.arguments()).handle?);
        }
        let arguments = Arguments::decode(self.call.nfs3()?, self.call.arguments());
        arguments.ok().map(|arguments| arguments.handle)
    }

    /// The name of the export that the first handle belongs to.
    fn export(&self) -> Option<String> {
        let handle = self.first_handle()?;
        let handle = self.service.handle_key.open(handle.as_bytes())?;
        let exports = self.service.exports.load();
        exports.table.by_id(handle.export_id).map(|export| export.name.clone())
    }

    /// Where the object of the first handle is, if it is open.
    fn path(&self) -> Option<String> {
        self.service.path_of(self.first_handle()?.as_bytes())
    }

    fn status(&self, done: &Result<Handled, Refusal>, results: &[u8]) -> String {
        match done {
            Err(Refusal::Denied(stat)) => format!("{stat:?}"),
            Err(Refusal::NotExecuted(stat)) => format!("{stat:?}"),
            Ok(Handled::Duplicate) => "dropped, because the call is at work".to_owned(),
            Ok(Handled::Repeated(_)) => "answered from the reply cache".to_owned(),
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
        name.unwrap_or("done").to_owned()
    }
}

/// What a line shows of a COMPOUND: its first handle, and the first operation that works on files.
fn compound_text(arguments: &[u8]) -> String {
    let outline = nfs4::Outline::of(arguments);
    let hash = |handle| format!(" fh_hash=0x{:08x}", handle_hash(handle));
    let handle = outline.handle.map(hash).unwrap_or_default();
    let work = outline.work.map(|work| format!(" operation={}", work.name())).unwrap_or_default();
    handle + &work
}

/// Shown behind a space, or empty.
#[derive(Default)]
struct ObjectText(String);

impl fmt::Display for ObjectText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The parts of a procedure's arguments that lines of the log show.
struct Arguments<'a> {
    handle: FileHandle,
    names: [Option<&'a [u8]>; 2],
    /// Offset or cookie, and count.
    range: Option<(u64, u32)>,
}

impl<'a> Arguments<'a> {
    fn decode(procedure: Procedure, args: &'a [u8]) -> Result<Self, DecodeError> {
        use Procedure as P;
        let mut r = Reader::new(args);
        let (mut names, mut range) = ([None; 2], None);
        let handle = match procedure {
            P::Lookup
            | P::Create
            | P::Mkdir
            | P::Symlink
            | P::Mknod
            | P::Remove
            | P::Rmdir
            | P::Rename => {
                let DirOp { dir, name } = DirOp::decode(&mut r)?;
                names[0] = Some(name);
                dir
            }
            P::Null
            | P::Getattr
            | P::Setattr
            | P::Access
            | P::Readlink
            | P::Read
            | P::Write
            | P::Link
            | P::Readdir
            | P::Readdirplus
            | P::Fsstat
            | P::Fsinfo
            | P::Pathconf
            | P::Commit => FileHandle::decode(&mut r)?,
        };
        match procedure {
            P::Rename | P::Link => names[1] = Some(DirOp::decode(&mut r)?.name),
            P::Read | P::Write | P::Commit => range = Some((r.u64("offset")?, r.u32("count")?)),
            P::Readdir | P::Readdirplus => {
                let cookie = r.u64("cookie")?;
                r.u64("cookie verifier")?;
                range = Some((cookie, r.u32("count")?));
            }
            P::Null
            | P::Getattr
            | P::Setattr
            | P::Lookup
            | P::Access
            | P::Readlink
            | P::Create
            | P::Mkdir
            | P::Symlink
            | P::Mknod
            | P::Remove
            | P::Rmdir
            | P::Fsstat
            | P::Fsinfo
            | P::Pathconf => {}
        }
        Ok(Self { handle, names, range })
    }
}

impl fmt::Display for Arguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " fh_hash=0x{:08x}", handle_hash(self.handle.as_bytes()))?;
        for (key, name) in ["name", "to"].into_iter().zip(self.names) {
            if let Some(name) = name {
                write!(f, " {key}={}", Shown(name))?;
            }
        }
        match self.range {
            Some((offset, count)) => write!(f, " offset={offset} count={count}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::nfs3::{LinkArgs, LookupArgs, ReadArgs, ReaddirplusArgs, RenameArgs};
    use proto::xdr::{Encode, Writer};

    use super::*;

    fn shown(procedure: Procedure, args: &impl Encode) -> String {
        let mut w = Writer::new();
        args.encode(&mut w);
        Arguments::decode(procedure, w.as_slice()).unwrap().to_string()
    }

    #[test]
    fn arguments_are_shown_by_object_names_and_range() {
        let dir = FileHandle::new(b"directory").unwrap();
        let file = FileHandle::new(b"file").unwrap();
        let hash =
            |handle: &FileHandle| format!(" fh_hash=0x{:08x}", handle_hash(handle.as_bytes()));
        let (in_dir, in_file) = (hash(&dir), hash(&file));
        let read = ReadArgs { file, offset: 4096, count: 10 };
        assert_eq!(shown(Procedure::Read, &read), format!("{in_file} offset=4096 count=10"));
        let what = DirOp { dir, name: b"a b\xff" };
        let lookup = LookupArgs { what };
        assert_eq!(shown(Procedure::Lookup, &lookup), format!("{in_dir} name=a b\\xff"));
        let to = DirOp { dir, name: b"new" };
        let rename = RenameArgs { from: what, to };
        let expected = format!("{in_dir} name=a b\\xff to=new");
        assert_eq!(shown(Procedure::Rename, &rename), expected);
        let link = LinkArgs { file, link: to };
        assert_eq!(shown(Procedure::Link, &link), format!("{in_file} to=new"));
        let verifier = nfs3::CookieVerifier([0; 8]);
        let (dir_count, max_count) = (512, 8192);
        let readdir = ReaddirplusArgs { dir, cookie: 7, verifier, dir_count, max_count };
        let expected = format!("{in_dir} offset=7 count=512");
        assert_eq!(shown(Procedure::Readdirplus, &readdir), expected);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(Shown(&[b'a'; SHOWN_BYTES_MAX]).to_string(), "a".repeat(SHOWN_BYTES_MAX));
        let cut = format!("{}...", "\\n".repeat(SHOWN_BYTES_MAX));
        assert_eq!(Shown(&[b'\n'; 1024]).to_string(), cut);
    }
}
