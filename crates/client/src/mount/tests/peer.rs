//! An NFS server in memory whose replies a test holds or makes fail. Each name but that of the
//! directory and that of nothing leads to a file.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use proto::nfs3::{
    AccessArgs, AccessOk, AccessReply, Attributes, CommitOk, CommitReply, CookieVerifier,
    CreatedOk, CreatedReply, DirOp, EntryPlus, Failure, FileHandle, FileType, FsinfoReply,
    FsstatArgs, FsstatOk, FsstatReply, GetattrArgs, GetattrOk, GetattrReply, LinkArgs, LinkOk,
    LinkReply, LookupArgs, LookupOk, LookupReply, Procedure, ReaddirplusArgs, ReaddirplusOk,
    ReaddirplusReply, RemovedOk, RemovedReply, RenameOk, RenameReply, SetAttributes, SetattrArgs,
    SetattrOk, SetattrReply, StableHow, Status, Time, WccAttributes, WccData, WriteArgs, WriteOk,
    WriteReply, WriteVerifier,
};
use proto::oncrpc::{Credential, decode_call, encode_success};
use proto::xdr::{Decode as _, Encode, Reader, Writer, decode_all};
use rpc::record;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::super::operations::{Operations, Rules};
use crate::fixture::{file_attributes, fsinfo};
use crate::mount_options::LookupCache;
use crate::nfs3::{Flavor, Nfs3};
use crate::{FileSystem, Identity, MountOptions};

/// See the module.
#[derive(Default)]
pub(super) struct Peer {
    state: Mutex<State>,
    /// The procedure whose replies wait.
    held: watch::Sender<Option<Procedure>>,
    /// Notified of each call.
    arrived: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    calls: Vec<Received>,
    size: u64,
    /// The mode of all files, once it was set.
    mode: Option<u32>,
    /// The replies to SETATTR have no attributes.
    leaves_out_attributes: bool,
    /// `wcc_data` has no attributes from before the call.
    leaves_out_before: bool,
    /// The replies to calls that create have no handle.
    leaves_out_handles: bool,
    /// [`FILE`] leads to another file.
    is_replaced: bool,
    /// Changes of the root directory, each a second after the one before.
    root_changes: u32,
    refusal: Option<(Procedure, Status)>,
}

/// A call as the peer got it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) procedure: Procedure,
    pub(super) uid: u32,
    /// Those of a SETATTR.
    pub(super) new: Option<SetAttributes>,
}

/// The name of a file in the root directory.
pub(super) const FILE: &[u8] = b"file";

/// The name of a directory in any directory.
pub(super) const DIRECTORY: &[u8] = b"directory";

/// The name that is listed behind [`FILE`].
pub(super) const LAST: &[u8] = b"last";

/// A name that no directory has.
pub(super) const ABSENT: &[u8] = b"absent";

/// The handle of the root directory.
const ROOT: &[u8] = b"root";

/// The size of the file system that FSSTAT returns for the root directory, and for other objects.
pub(super) const ROOT_BYTES: u64 = 1 << 30;
pub(super) const NODE_BYTES: u64 = 1 << 20;

const NO_SPACE: FsstatOk = FsstatOk {
    attributes: None,
    tbytes: 0,
    fbytes: 0,
    abytes: 0,
    tfiles: 0,
    ffiles: 0,
    afiles: 0,
    invarsec: 0,
};

impl Peer {
    /// A peer, and the operations of a mount of it.
    pub(super) async fn mounted() -> (Arc<Self>, Arc<Operations>) {
        Self::mounted_with(MountOptions::default()).await
    }

    /// As [`mounted`](Self::mounted), with other options.
    pub(super) async fn mounted_with(options: MountOptions) -> (Arc<Self>, Arc<Operations>) {
        let peer = Arc::<Self>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Arc::clone(&peer);
        tokio::spawn(async move {
            // A client connects anew when a reply is overdue.
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&serving).serve(stream));
            }
        });
        let options = MountOptions { reserved_port: false, ..options };
        let root = Arc::new(Identity { uid: 0, gid: 0, groups: Vec::new() });
        let nfs = Nfs3::connect(address, Flavor::Sys, &root, &options).await.unwrap();
        let mounted = FileSystem::over(nfs, handle(ROOT), &options, Arc::default()).await;
        let rules = Rules {
            ask_before_search: false,
            lookup_cache: LookupCache::All,
            block_bytes: 4096,
            name_max: 255,
        };
        (peer, Arc::new(Operations::new(mounted.unwrap(), rules)))
    }

    /// Makes all calls of `procedure` fail from now on.
    pub(super) fn refuse(&self, procedure: Procedure, status: Status) {
        self.state().refusal = Some((procedure, status));
    }

    /// Ends what [`refuse`](Self::refuse) began.
    pub(super) fn permit(&self) {
        self.state().refusal = None;
    }

    /// Leaves the attributes out of all replies to SETATTR from now on.
    pub(super) fn leave_out_attributes(&self) {
        self.state().leaves_out_attributes = true;
    }

    /// Leaves the attributes from before the call out of all replies from now on.
    pub(super) fn leave_out_before(&self) {
        self.state().leaves_out_before = true;
    }

    /// Leaves the handle out of all replies to calls that create from now on.
    pub(super) fn leave_out_handles(&self) {
        self.state().leaves_out_handles = true;
    }

    /// Another client replaces [`FILE`].
    pub(super) fn replace_file(&self) {
        self.state().is_replaced = true;
    }

    /// Another client sets the mode of all files.
    pub(super) fn set_mode(&self, mode: u32) {
        self.state().mode = Some(mode);
    }

    /// Another client changes the root directory.
    pub(super) fn change_root(&self) {
        self.state().root_changes += 1;
    }

    /// Holds the replies to `procedure` until [`release`](Self::release).
    pub(super) fn hold(&self, procedure: Procedure) {
        self.held.send_replace(Some(procedure));
    }

    pub(super) fn release(&self) {
        self.held.send_replace(None);
    }

    /// The calls so far that are of one of `procedures`.
    pub(super) fn calls(&self, procedures: &[Procedure]) -> Vec<Received> {
        let calls = self.state().calls.clone();
        calls.into_iter().filter(|call| procedures.contains(&call.procedure)).collect()
    }

    /// The size of all files.
    pub(super) fn size(&self) -> u64 {
        self.state().size
    }

    /// Waits for a call of `procedure`.
    pub(super) async fn called(&self, procedure: Procedure) {
        let mut arrived = self.arrived.subscribe();
        while self.calls(&[procedure]).is_empty() {
            arrived.changed().await.unwrap();
        }
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let (mut calls, replies) = stream.into_split();
        let replies = Arc::new(tokio::sync::Mutex::new(replies));
        while let Ok(call) = record::read(&mut calls, CALL_BYTES_MAX).await {
            let (procedure, reply) = self.reply(&call);
            let (mut held, replies) = (self.held.subscribe(), Arc::clone(&replies));
            let sent = async move {
                held.wait_for(|held| *held != Some(procedure)).await.unwrap();
                let record = record::in_fragments(&reply, &[]);
                // The test may have ended.
                let _ = replies.lock().await.write_all(&record).await;
            };
            if *self.held.borrow() == Some(procedure) {
                tokio::spawn(sent);
            } else {
                sent.await;
            }
        }
    }

    fn reply(&self, call: &[u8]) -> (Procedure, Vec<u8>) {
        let mut r = Reader::new(call);
        let header = decode_call(&mut r).unwrap();
        let arguments = &call[r.position()..];
        let procedure = Procedure::from_code(header.procedure).unwrap();
        let Credential::Sys(caller) = header.credential else { panic!("a call without a user") };
        let mut state = self.state();
        let new = (procedure == Procedure::Setattr)
            .then(|| decode_all::<SetattrArgs>(arguments).unwrap().new_attributes);
        state.calls.push(Received { procedure, uid: caller.uid, new });
        let mut w = Writer::new();
        encode_success(&mut w, header.xid);
        match state.refusal {
            Some((refused, status)) if refused == procedure => {
                status.encode(&mut w);
                // The attributes and `wcc_data` behind the status are left out.
                let absent = match procedure {
                    Procedure::Getattr => 0,
                    Procedure::Lookup | Procedure::Read | Procedure::Readdirplus => 1,
                    Procedure::Rename => 4,
                    _ => 2,
                };
                (0..absent).for_each(|_| false.encode(&mut w));
            }
            _ => state.results(procedure, arguments, &mut w),
        }
        drop(state);
        self.arrived.send_replace(());
        (procedure, w.as_slice().to_vec())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn results(&mut self, procedure: Procedure, arguments: &[u8], w: &mut Writer) {
        let wcc = WccData::default();
        match procedure {
            Procedure::Fsinfo => FsinfoReply::Ok(fsinfo()).encode(w),
            Procedure::Fsstat => {
                let FsstatArgs { fsroot } = decode_all(arguments).unwrap();
                if self.is_replaced && fsroot == handle(FILE) {
                    Status::Stale.encode(w);
                    return false.encode(w);
                }
                let tbytes = if fsroot == handle(ROOT) { ROOT_BYTES } else { NODE_BYTES };
                FsstatReply::Ok(FsstatOk { tbytes, ..NO_SPACE }).encode(w);
            }
            Procedure::Getattr => {
                let GetattrArgs { object } = decode_all(arguments).unwrap();
                GetattrReply::Ok(GetattrOk { attributes: self.attributes(object) }).encode(w);
            }
            Procedure::Access => {
                let AccessArgs { object, access } = decode_all(arguments).unwrap();
                let attributes = Some(self.attributes(object));
                AccessReply::Ok(AccessOk { attributes, access }).encode(w);
            }
            Procedure::Lookup => self.look_up(arguments, w),
            Procedure::Write => {
                let WriteArgs { offset, count, .. } = decode_all(arguments).unwrap();
                self.size = self.size.max(offset + u64::from(count));
                let (committed, verifier) = (StableHow::Unstable, WriteVerifier::default());
                WriteReply::Ok(WriteOk { wcc, count, committed, verifier }).encode(w);
            }
            Procedure::Commit => {
                let verifier = WriteVerifier::default();
                CommitReply::Ok(CommitOk { wcc, verifier }).encode(w);
            }
            Procedure::Setattr => {
                let SetattrArgs { object, new_attributes, .. } = decode_all(arguments).unwrap();
                self.size = new_attributes.size.unwrap_or(self.size);
                self.mode = new_attributes.mode.or(self.mode);
                let after = (!self.leaves_out_attributes).then(|| self.attributes(object));
                let wcc = WccData { before: None, after };
                SetattrReply::Ok(SetattrOk { wcc }).encode(w);
            }
            Procedure::Readdirplus => self.list(arguments, w),
            Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
                let DirOp { name, dir } = DirOp::decode(&mut Reader::new(arguments)).unwrap();
                let object = (!self.leaves_out_handles).then(|| handle(name));
                let created = CreatedOk { object, attributes: None, dir_wcc: self.wcc(dir) };
                CreatedReply::Ok(created).encode(w);
            }
            Procedure::Rename => {
                RenameReply::Ok(RenameOk { from_wcc: wcc, to_wcc: wcc }).encode(w);
            }
            Procedure::Link => {
                let LinkArgs { link, .. } = decode_all(arguments).unwrap();
                let linked = LinkOk { file_attributes: None, dir_wcc: self.wcc(link.dir) };
                LinkReply::Ok(linked).encode(w);
            }
            Procedure::Remove | Procedure::Rmdir => {
                RemovedReply::Ok(RemovedOk { dir_wcc: wcc }).encode(w)
            }
            other => panic!("{} is not expected", other.name()),
        }
    }

    /// The results of LOOKUP.
    fn look_up(&self, arguments: &[u8], w: &mut Writer) {
        let LookupArgs { what } = decode_all(arguments).unwrap();
        if what.name == ABSENT {
            let body = Some(self.attributes(what.dir));
            return LookupReply::Err(Failure { status: Status::Noent, body }).encode(w);
        }
        let (object, dir_attributes) = (self.found(what.name), None);
        let object_attributes = Some(self.attributes(object));
        let found = LookupOk { object, object_attributes, dir_attributes };
        LookupReply::Ok(found).encode(w);
    }

    /// The results of READDIRPLUS of the root directory.
    fn list(&self, arguments: &[u8], w: &mut Writer) {
        let ReaddirplusArgs { cookie, .. } = decode_all(arguments).unwrap();
        let entries = [FILE, LAST].map(|name| EntryPlus {
            fileid: self.attributes(self.found(name)).fileid,
            name,
            cookie: if name == FILE { 1 } else { 2 },
            attributes: Some(self.attributes(self.found(name))),
            handle: Some(self.found(name)),
        });
        let behind = entries.iter().filter(|entry| entry.cookie > cookie);
        let entries: Vec<_> = behind.copied().collect();
        let listing = ReaddirplusOk {
            dir_attributes: Some(self.attributes(handle(ROOT))),
            verifier: CookieVerifier::default(),
            entries: entries.as_slice().into(),
            eof: true,
        };
        ReaddirplusReply::Ok(listing).encode(w);
    }

    /// The object under a name in the root directory.
    fn found(&self, name: &[u8]) -> FileHandle {
        if name == FILE && self.is_replaced { handle(b"another") } else { handle(name) }
    }

    /// That of a call that changes nothing.
    fn wcc(&self, object: FileHandle) -> WccData {
        let after = self.attributes(object);
        let Attributes { size, mtime, ctime, .. } = after;
        let before = (!self.leaves_out_before).then_some(WccAttributes { size, mtime, ctime });
        WccData { before, after: Some(after) }
    }

    fn attributes(&self, object: FileHandle) -> Attributes {
        let changes = if object.as_bytes() == ROOT { self.root_changes } else { 0 };
        let time = Time { seconds: 1 + changes, nseconds: 0 };
        let file = file_attributes(self.size, time);
        let fileid = match object.as_bytes() {
            ROOT => 1,
            DIRECTORY => 2,
            _ => return Attributes { mode: self.mode.unwrap_or(file.mode), ..file },
        };
        Attributes { file_type: FileType::Directory, mode: 0o755, fileid, ..file }
    }
}

fn handle(name: &[u8]) -> FileHandle {
    FileHandle::new(name).unwrap()
}

/// More than any call of these tests.
const CALL_BYTES_MAX: usize = 1 << 20;

/// Fails after a time that a passing test never takes.
pub(super) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens in time")
}

const PATIENCE: Duration = Duration::from_secs(20);
