//! A connection on which names are created, used and removed: the COMPOUNDs of Linux,
//! or the calls of version 3 in their place.

use client::Identity;
use proto::nfs3::{
    ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_MODIFY, ACCESS_READ, AccessArgs, AccessOk, Attributes,
    CreateArgs, CreateHow, CreatedOk, DirOp, FileHandle, GetattrArgs, GetattrOk, LookupArgs,
    LookupOk, Procedure, RemoveArgs, RemovedOk, SetAttributes, WccData,
};
use proto::nfs4::{Bitmap, Handle, OpenHow, RawAttributes, ShareAccess, attribute};
use proto::oncrpc::AuthSys;

use super::super::export::Export;
use super::super::scratch_directory::ScratchDirectory;
use super::Operation;
use crate::load::{
    Broken, CallResult, Session, TIMEOUT, Xids, caller, from_reserved_port, nfs3, until_taken,
};
use crate::record_stream::RecordStream;
use crate::{Error, Result};

/// The connection, and the directory that it works in.
pub(super) struct Connection<'a> {
    /// Calls that the server put off.
    pub(super) put_off: u64,
    stream: RecordStream,
    calls: Calls<'a>,
}

enum Calls<'a> {
    V3(Calls3<'a>),
    V4(Box<Calls4<'a>>),
}

struct Calls3<'a> {
    caller: AuthSys<'a>,
    xids: Xids,
    directory: FileHandle,
    files: Vec<FileHandle>,
}

struct Calls4<'a> {
    session: Session<'a>,
    directory: Handle,
    files: Vec<Handle>,
}

impl<'a> Connection<'a> {
    /// Connects to the export's server, in the export's version.
    pub(super) fn begin(
        export: &Export<'_>,
        directory: &ScratchDirectory,
        identity: &'a Identity,
    ) -> Result<Self> {
        let address = directory.calls().address();
        let failed = |why: String| Error::Server(format!("no session with {address}: {why}"));
        let stream = from_reserved_port(address, TIMEOUT)
            .and_then(|stream| RecordStream::new(stream, 0, Some(TIMEOUT)));
        let mut stream = stream.map_err(|error| failed(error.to_string()))?;
        let caller = caller(identity);
        let calls = match export.version.minor() {
            None => Calls::V3(Calls3 {
                caller,
                xids: Xids::new(),
                directory: directory.handle(),
                files: Vec::new(),
            }),
            Some(minor_version) => {
                let path = [&export.url.path[..], directory.name().as_bytes()].join(&b'/');
                let begun = Calls4::begin(&mut stream, caller, minor_version, &path);
                Calls::V4(Box::new(begun.map_err(|Broken(why)| failed(why))?))
            }
        };
        Ok(Self { put_off: 0, stream, calls })
    }

    /// Performs an operation on the name with this number.
    pub(super) fn perform(
        &mut self,
        operation: Operation,
        number: u32,
        name: &[u8],
    ) -> CallResult<()> {
        let number = usize::try_from(number).expect("32 bits fit");
        let Self { stream, calls, put_off } = self;
        match calls {
            Calls::V3(calls) => {
                until_taken(TIMEOUT, put_off, || calls.perform(stream, operation, number, name))
            }
            Calls::V4(calls) => calls.perform(stream, operation, number, name, put_off),
        }
    }

    /// Ends it.
    pub(super) fn end(mut self) -> Result<()> {
        let Calls::V4(calls) = &mut self.calls else { return Ok(()) };
        match calls.session.end(&mut self.stream) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(refusal)) => Err(Error::Server(format!("cannot end the session: {refusal}"))),
            Err(Broken(why)) => Err(Error::Server(format!("cannot end the session: {why}"))),
        }
    }
}

impl Calls3<'_> {
    fn perform(
        &mut self,
        stream: &mut RecordStream,
        operation: Operation,
        number: usize,
        name: &[u8],
    ) -> CallResult<()> {
        let (caller, xid) = (&self.caller, self.xids.next(0));
        let what = DirOp { dir: self.directory, name };
        match operation {
            Operation::Create => {
                let attributes = SetAttributes { mode: Some(MODE), ..SetAttributes::default() };
                let args = CreateArgs { where_: what, how: CreateHow::Guarded(attributes) };
                let procedure = Procedure::Create;
                let made = nfs3::call::<CreatedOk, WccData>(stream, caller, xid, procedure, &args)?;
                Ok(made.map(drop))
            }
            Operation::Open | Operation::Lookup => {
                let (procedure, args) = (Procedure::Lookup, LookupArgs { what });
                let found = nfs3::call::<LookupOk, Option<Attributes>>(
                    stream, caller, xid, procedure, &args,
                )?;
                Ok(found.map(|found| {
                    if operation == Operation::Open {
                        put(&mut self.files, number, found.object);
                    }
                }))
            }
            Operation::Stat => {
                let args = GetattrArgs { object: self.files[number] };
                let procedure = Procedure::Getattr;
                let found = nfs3::call::<GetattrOk, ()>(stream, caller, xid, procedure, &args)?;
                Ok(found.map(drop))
            }
            Operation::Access => {
                let args = AccessArgs { object: self.files[number], access: FILE_ACCESS };
                let procedure = Procedure::Access;
                let known = nfs3::call::<AccessOk, Option<Attributes>>(
                    stream, caller, xid, procedure, &args,
                )?;
                Ok(known.map(drop))
            }
            Operation::Remove => {
                let (procedure, args) = (Procedure::Remove, RemoveArgs { object: what });
                let done = nfs3::call::<RemovedOk, WccData>(stream, caller, xid, procedure, &args)?;
                Ok(done.map(drop))
            }
        }
    }
}

impl<'a> Calls4<'a> {
    fn begin(
        stream: &mut RecordStream,
        caller: AuthSys<'a>,
        minor_version: u32,
        path: &[u8],
    ) -> std::result::Result<Self, Broken> {
        let mut session = Session::begin(stream, caller, minor_version, 1, 0, TIMEOUT)?;
        let directory = session.walk(stream, path)?;
        let directory = directory.map_err(|refusal| Broken(format!("LOOKUP: {refusal}")))?;
        Ok(Self { session, directory, files: Vec::new() })
    }

    fn perform(
        &mut self,
        stream: &mut RecordStream,
        operation: Operation,
        number: usize,
        name: &[u8],
        put_off: &mut u64,
    ) -> CallResult<()> {
        let Self { session, directory, files } = self;
        let (access, how) = match operation {
            Operation::Create => (ShareAccess::Write, OpenHow::Guarded(mode(&MODE_BYTES))),
            Operation::Open => (ShareAccess::Read, OpenHow::NoCreate),
            Operation::Stat => {
                return until_taken(TIMEOUT, put_off, || session.getattr(stream, &files[number]));
            }
            Operation::Lookup => {
                return until_taken(TIMEOUT, put_off, || session.lookup(stream, directory, name));
            }
            Operation::Access => {
                return until_taken(TIMEOUT, put_off, || session.access(stream, &files[number]));
            }
            Operation::Remove => {
                return until_taken(TIMEOUT, put_off, || session.remove(stream, directory, name));
            }
        };
        let opened =
            until_taken(TIMEOUT, put_off, || session.open(stream, directory, name, access, how))?;
        let (file, stateid) = match opened {
            Ok(opened) => opened,
            Err(refusal) => return Ok(Err(refusal)),
        };
        put(files, number, file);
        until_taken(TIMEOUT, put_off, || session.close(stream, &file, stateid))
    }
}

/// Keeps the handle of the file with this number; those before it are there.
fn put<T>(files: &mut Vec<T>, number: usize, file: T) {
    files.truncate(number);
    files.push(file);
}

/// The attributes of a new file.
fn mode(values: &[u8]) -> RawAttributes<'_> {
    RawAttributes { bitmap: Bitmap::of(&[attribute::MODE]), values }
}

/// Rights that Linux asks for in ACCESS to a file.
const FILE_ACCESS: u32 = ACCESS_READ | ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_EXECUTE;
/// Permission bits of new files.
const MODE: u32 = 0o644;
const MODE_BYTES: [u8; 4] = MODE.to_be_bytes();
