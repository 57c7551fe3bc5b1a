//! A server of MOUNT, NFS version 3, and the loads of versions 4.1 and 4.2 that answers at once and
//! has no files: what a load costs beside it is the cost of the load.
//!
//! Every path can be mounted, every name that is looked up is a directory, and every file is there,
//! is [`FILE_BYTES`] long and takes all that is written, which is thrown away. What is read has no
//! meaning. It must not run where strangers can reach it: it trusts all clients, and
//! takes as many connections as come.

mod nfs4;

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use proto::mount3::{self, DirectoryArgs, ExportNode, Group, MountEntry, MountOk, MountReply};
use proto::nfs3::{
    self, AccessArgs, AccessOk, AccessReply, Attributes, CommitOk, CommitReply, CreatedOk,
    CreatedReply, DeviceSpec, FSF_HOMOGENEOUS, FileHandle, FileType, FsinfoOk, FsinfoReply,
    FsstatOk, FsstatReply, GetattrArgs, GetattrOk, GetattrReply, LookupOk, LookupReply, PathconfOk,
    PathconfReply, Procedure, ReadArgs, ReadOk, RemovedOk, RemovedReply, SetattrOk, SetattrReply,
    Time, WccData, WriteHead, WriteOk, WriteReply, WriteVerifier,
};
use proto::oncrpc::{AcceptStat, CallHeader, FLAVOR_SYS, ReplyHeader, decode_call, encode_success};
use proto::xdr::{Decode, DecodeError, Encode, List, Reader, Writer, encode_list, padded};

use crate::load::IO_BYTES_MAX;
use crate::load::send_unpaced;
use crate::record_stream::{COPIED_BYTES_MAX, RecordStream};
use nfs4::Compound;

/// The length of each file.
pub const FILE_BYTES: u64 = 1 << 40;

/// Accepts connections and serves each on a thread, until accepting fails.
///
/// # Errors
/// Why it does.
pub fn serve(listener: &TcpListener) -> io::Result<()> {
    let data = data();
    send_unpaced(listener)?;
    loop {
        let (stream, _) = listener.accept()?;
        let data = Arc::clone(&data);
        // A connection that ends or talks nonsense is its peer's business.
        thread::Builder::new().name("connection".into()).spawn(move || serve_one(stream, &data))?;
    }
}

/// The data of READ replies: [`IO_BYTES_MAX`] bytes, 0 to 255 over and over.
fn data() -> Arc<[u8]> {
    (0..=u8::MAX).cycle().take(usize::try_from(IO_BYTES_MAX).expect("32 bits fit")).collect()
}

fn serve_one(stream: TcpStream, data: &[u8]) -> io::Result<()> {
    let payload_bytes_max = padded(usize::try_from(IO_BYTES_MAX).expect("32 bits fit"));
    let mut stream = RecordStream::new(stream, payload_bytes_max, None)?;
    loop {
        // Calls that came together are answered together.
        if !stream.has_received() {
            stream.flush()?;
        }
        if !stream.next_record()? {
            return Ok(());
        }
        let call = stream.decode(Call::decode)?.map_err(|_| io::ErrorKind::InvalidData)?;
        let data_len = match &call.action {
            Action::Write(head) => head.data_len,
            Action::Compound(compound) => compound.data_len(),
            _ => 0,
        };
        stream.discard(usize::try_from(data_len).expect("32 bits fit"))?;
        stream.finish()?;
        answer(&mut stream, &call, data)?;
    }
}

/// A call, as far as the answer depends on it.
struct Call {
    xid: u32,
    action: Action,
}

enum Action {
    Null,
    Mnt,
    Dump,
    Export,
    Getattr(FileHandle),
    Setattr,
    Lookup,
    Access(u32),
    Read(ReadArgs),
    Write(WriteHead),
    Create,
    Mkdir,
    Remove,
    Fsstat,
    Fsinfo,
    Pathconf,
    Commit,
    Compound(Box<Compound>),
    Refuse(AcceptStat),
}

impl Call {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let malformed = |_| DecodeError { what: "call", at_byte: 0 };
        let header = decode_call(r).map_err(malformed)?;
        let action = match (header.program, header.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => Action::nfs(&header, r)?,
            (nfs3::PROGRAM, proto::nfs4::VERSION) if header.procedure != 0 => {
                Action::Compound(Box::new(Compound::decode(r)?))
            }
            (nfs3::PROGRAM, proto::nfs4::VERSION) => Action::Null,
            (mount3::PROGRAM, mount3::VERSION) => Action::mount(&header, r)?,
            (nfs3::PROGRAM | mount3::PROGRAM, _) => {
                Action::Refuse(AcceptStat::ProgMismatch { low: 3, high: 3 })
            }
            _ => Action::Refuse(AcceptStat::ProgUnavail),
        };
        Ok(Self { xid: header.xid, action })
    }
}

impl Action {
    fn nfs(header: &CallHeader<'_>, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let Some(procedure) = Procedure::from_code(header.procedure) else {
            return Ok(Self::Refuse(AcceptStat::ProcUnavail));
        };
        Ok(match procedure {
            Procedure::Null => Self::Null,
            Procedure::Getattr => Self::Getattr(GetattrArgs::decode(r)?.object),
            Procedure::Setattr => Self::Setattr,
            Procedure::Lookup => Self::Lookup,
            Procedure::Access => Self::Access(AccessArgs::decode(r)?.access),
            Procedure::Read => Self::Read(ReadArgs::decode(r)?),
            Procedure::Write => Self::Write(WriteHead::decode(r)?),
            Procedure::Create => Self::Create,
            Procedure::Mkdir => Self::Mkdir,
            Procedure::Remove | Procedure::Rmdir => Self::Remove,
            Procedure::Fsstat => Self::Fsstat,
            Procedure::Fsinfo => Self::Fsinfo,
            Procedure::Pathconf => Self::Pathconf,
            Procedure::Commit => Self::Commit,
            Procedure::Readlink
            | Procedure::Symlink
            | Procedure::Mknod
            | Procedure::Rename
            | Procedure::Link
            | Procedure::Readdir
            | Procedure::Readdirplus => Self::Refuse(AcceptStat::ProcUnavail),
        })
    }

    fn mount(header: &CallHeader<'_>, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        use mount3::Procedure;
        let Some(procedure) = Procedure::from_code(header.procedure) else {
            return Ok(Self::Refuse(AcceptStat::ProcUnavail));
        };
        Ok(match procedure {
            Procedure::Mnt => DirectoryArgs::decode(r).map(|_| Self::Mnt)?,
            Procedure::Dump => Self::Dump,
            Procedure::Export => Self::Export,
            Procedure::Null | Procedure::Umnt | Procedure::Umntall => Self::Null,
        })
    }
}

fn answer(stream: &mut RecordStream, call: &Call, data: &[u8]) -> io::Result<()> {
    let xid = call.xid;
    let mut results = |results: &dyn Encode| {
        stream.queue(0, |w| {
            encode_success(w, xid);
            results.encode(w);
        });
    };
    match &call.action {
        Action::Null => results(&()),
        Action::Mnt => results(&mounted()),
        Action::Dump => results(&List::<MountEntry<'_>>::from(&[][..])),
        Action::Export => stream.queue(0, |w| export(w, xid)),
        Action::Getattr(object) => {
            let attributes = attributes(object);
            results(&GetattrReply::Ok(GetattrOk { attributes }));
        }
        Action::Setattr => results(&SetattrReply::Ok(SetattrOk { wcc: WccData::default() })),
        Action::Lookup => results(&looked_up()),
        Action::Access(access) => {
            results(&AccessReply::Ok(AccessOk { attributes: None, access: *access }));
        }
        Action::Read(args) => return read(stream, xid, args, data),
        Action::Write(head) => results(&WriteReply::Ok(written(head))),
        Action::Create => results(&CreatedReply::Ok(created(FILE))),
        Action::Mkdir => results(&CreatedReply::Ok(created(DIRECTORY))),
        Action::Remove => results(&RemovedReply::Ok(RemovedOk { dir_wcc: WccData::default() })),
        Action::Fsstat => results(&FsstatReply::Ok(fsstat())),
        Action::Fsinfo => results(&FsinfoReply::Ok(fsinfo())),
        Action::Pathconf => results(&PathconfReply::Ok(pathconf())),
        Action::Commit => {
            let ok = CommitOk { wcc: WccData::default(), verifier: VERIFIER };
            results(&CommitReply::Ok(ok));
        }
        Action::Compound(compound) => return compound.answer(stream, xid, data),
        Action::Refuse(stat) => {
            stream.queue(0, |w| ReplyHeader::Accepted { xid, stat: *stat }.encode(w));
        }
    }
    Ok(())
}

fn read(stream: &mut RecordStream, xid: u32, args: &ReadArgs, data: &[u8]) -> io::Result<()> {
    let left = FILE_BYTES.saturating_sub(args.offset);
    let count = args.count.min(IO_BYTES_MAX).min(u32::try_from(left).unwrap_or(u32::MAX));
    let eof = u64::from(args.count) >= left;
    let len = usize::try_from(count).expect("32 bits fit");
    stream.queue(len, |w| {
        encode_success(w, xid);
        w.u32(NFS3_OK);
        ReadOk::encode_head(Some(&attributes(&args.file)), count, eof, w);
    });
    if len <= COPIED_BYTES_MAX {
        stream.queue_payload(&data[..len], &[]);
        Ok(())
    } else {
        stream.send_payload(&data[..len], &[])
    }
}

fn export(w: &mut Writer, xid: u32) {
    let groups = List::<Group<'_>>::from(&[][..]);
    encode_success(w, xid);
    encode_list(w, [ExportNode { directory: b"/", groups }]);
}

fn mounted() -> MountReply<'static> {
    Ok(MountOk { file_handle: handle(DIRECTORY), auth_flavors: [FLAVOR_SYS][..].into() })
}

fn looked_up() -> LookupReply {
    let object = handle(DIRECTORY);
    let object_attributes = Some(attributes(&object));
    Ok(LookupOk { object, object_attributes, dir_attributes: None })
}

fn created(kind: u8) -> CreatedOk {
    let object = handle(kind);
    let attributes = Some(attributes(&object));
    CreatedOk { object: Some(object), attributes, dir_wcc: WccData::default() }
}

fn written(head: &WriteHead) -> WriteOk {
    let wcc = WccData { before: None, after: Some(attributes(&head.file)) };
    WriteOk { wcc, count: head.count, committed: head.stable, verifier: VERIFIER }
}

/// Handles are as long as those of a real server, so that calls are.
fn handle(kind: u8) -> FileHandle {
    FileHandle::new(&[kind; 32]).expect("shorter than 64 bytes")
}

fn attributes(object: &FileHandle) -> Attributes {
    let directory = object.as_bytes().first() != Some(&FILE);
    let (file_type, mode) =
        if directory { (FileType::Directory, 0o777) } else { (FileType::Regular, 0o666) };
    Attributes {
        file_type,
        mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: FILE_BYTES,
        used: 0,
        rdev: DeviceSpec::default(),
        fsid: 1,
        fileid: object.as_bytes().first().copied().unwrap_or(DIRECTORY).into(),
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
    }
}

fn fsstat() -> FsstatOk {
    FsstatOk {
        attributes: None,
        tbytes: u64::MAX >> 1,
        fbytes: u64::MAX >> 1,
        abytes: u64::MAX >> 1,
        tfiles: 1 << 32,
        ffiles: 1 << 32,
        afiles: 1 << 32,
        invarsec: 0,
    }
}

fn fsinfo() -> FsinfoOk {
    FsinfoOk {
        attributes: None,
        rtmax: IO_BYTES_MAX,
        rtpref: 1 << 20,
        rtmult: 1,
        wtmax: IO_BYTES_MAX,
        wtpref: 1 << 20,
        wtmult: 1,
        dtpref: 1 << 16,
        maxfilesize: u64::MAX >> 1,
        time_delta: Time { seconds: 0, nseconds: 1 },
        properties: FSF_HOMOGENEOUS,
    }
}

fn pathconf() -> PathconfOk {
    PathconfOk {
        attributes: None,
        linkmax: 1,
        name_max: 255,
        no_trunc: true,
        chown_restricted: true,
        case_insensitive: false,
        case_preserving: true,
    }
}

/// The bytes of which handles consist.
const DIRECTORY: u8 = 1;
const FILE: u8 = 2;
const VERIFIER: WriteVerifier = WriteVerifier(*b"nothing.");
const NFS3_OK: u32 = 0;
