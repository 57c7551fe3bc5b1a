//! A client with one connection.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use proto::nfs3::{DirOp, FileHandle, LookupArgs, LookupReply, Procedure};
use proto::oncrpc::{CallHeader, Credential, ReplyHeader};
use proto::xdr::{Decode, Encode, Reader, Writer, decode_all};
use proto::{mount3, nfs3};
use rpc::record;

use crate::fixture::{PATIENCE, Place, Running};

/// One connection, as the anonymous user.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) xid: u32,
    pub(crate) credential: Credential<'static>,
}

/// More than any reply of these tests.
const REPLY_BYTES_MAX: usize = 1 << 20;

pub(crate) const MNT: (u32, u32, u32) =
    (mount3::PROGRAM, mount3::VERSION, mount3::Procedure::Mnt.code());

impl Client {
    pub(crate) fn connect(running: &Running) -> Self {
        Self::over(TcpStream::connect(running.address).unwrap())
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, xid: 0, credential: Credential::None }
    }

    /// Sends a call and returns the reply from its transaction id on.
    pub(crate) fn send(&mut self, target: (u32, u32, u32), args: &impl Encode) -> Vec<u8> {
        self.xid += 1;
        let (program, version, procedure) = target;
        let (xid, credential) = (self.xid, self.credential);
        let mut w = Writer::new();
        CallHeader { xid, program, version, procedure, credential, verifier_flavor: 0 }
            .encode(&mut w);
        args.encode(&mut w);
        self.stream.write_all(&record::in_fragments(w.as_slice(), &[])).unwrap();
        record::read_blocking(&mut self.stream, REPLY_BYTES_MAX).unwrap().expect("a reply")
    }

    /// Calls a procedure; the results with their status in front.
    pub(crate) fn exchange(&mut self, target: (u32, u32, u32), args: &impl Encode) -> Vec<u8> {
        let mut reply = self.send(target, args);
        let mut reader = Reader::new(&reply);
        assert_eq!(ReplyHeader::decode(&mut reader).unwrap().xid(), self.xid);
        reply.split_off(reader.position())
    }

    pub(crate) fn call(&mut self, procedure: Procedure, args: &impl Encode) -> Vec<u8> {
        self.exchange((nfs3::PROGRAM, nfs3::VERSION, procedure.code()), args)
    }

    /// The root of an export.
    pub(crate) fn root(&mut self, export: &str) -> FileHandle {
        let args = mount3::DirectoryArgs { directory: export.as_bytes() };
        let results = self.exchange(MNT, &args);
        decode_all::<mount3::MountReply<'_>>(&results).unwrap().unwrap().file_handle
    }

    /// The root of an export and the file `name` in it.
    pub(crate) fn find(&mut self, export: &str, name: &str) -> (FileHandle, FileHandle) {
        let root = self.root(export);
        let args = LookupArgs { what: DirOp { dir: root, name: name.as_bytes() } };
        let results = self.call(Procedure::Lookup, &args);
        let Ok(Ok(found)) = decode_all::<LookupReply>(&results) else { panic!("no {name}") };
        (root, found.object)
    }
}

/// Makes the file `a/file` of 100,000 bytes, which everybody may write.
pub(crate) fn make_file(place: &Place) {
    let file = place.path("a/file");
    fs::write(&file, [7; 100_000]).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
}
