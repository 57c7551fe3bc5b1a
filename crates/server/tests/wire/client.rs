//! A blocking NFSv3 client for tests: typed calls for what is right, raw bytes for what is not.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use proto::mount3;
use proto::nfs3::{self, *};
use proto::oncrpc::{AcceptStat, AuthSys, CallHeader, Credential, Gids, ReplyHeader};
use proto::xdr::{Decode, Encode, Reader, Writer, decode_all};
pub(crate) use rpc::record::in_fragments;
use rpc::record::read_blocking;

/// How long a reply may take. Far beyond what any call needs, so that it only ends a hung test.
const PATIENCE: Duration = Duration::from_secs(20);

/// More than any reply that a test asks for.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// The credential of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Ids {
    pub(crate) fn user(id: u32) -> Self {
        Self { uid: id, gid: id, groups: Vec::new() }
    }

    pub(crate) fn root() -> Self {
        Self::user(0)
    }
}

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) next_xid: u32,
    /// `None` calls with AUTH_NONE.
    pub(crate) ids: Option<Ids>,
}

/// The result of READ.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReadData {
    pub(crate) attributes: Option<Attributes>,
    pub(crate) eof: bool,
    pub(crate) data: Vec<u8>,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) fileid: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) cookie: u64,
    pub(crate) attributes: Option<Attributes>,
    pub(crate) handle: Option<FileHandle>,
}

/// A part of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) attributes: Option<Attributes>,
    pub(crate) names: Vec<Name>,
    pub(crate) eof: bool,
    /// Length of `READDIR3resok` or `READDIRPLUS3resok`.
    pub(crate) bytes: usize,
}

impl Client {
    /// Connects as root, the user of most tests.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// Connects from another address of this machine.
    pub(crate) fn connect_from(source: Ipv4Addr, address: SocketAddr) -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddrV4::new(source, 0)).unwrap();
        connect(&socket, &address).unwrap();
        Self::over(TcpStream::from(socket))
    }

    /// Connects so that [`Self::reconnected`] can have the same port.
    pub(crate) fn connect_reusable(address: SocketAddr) -> Self {
        Self::over(connect_reusing(0, address, || ()))
    }

    /// Breaks the connection and connects again from the same port, as clients do that lost a
    /// reply.
    pub(crate) fn reconnected(self, address: SocketAddr) -> Self {
        use rustix::net::sockopt::set_socket_linger;
        let port = self.stream.local_addr().unwrap().port();
        // A reset leaves no trace of the old connection.
        set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
        let Self { stream, next_xid, ids } = self;
        let stream = connect_reusing(port, address, || drop(stream));
        Self { ids, next_xid, ..Self::over(stream) }
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        // Two clients of one address must not have transaction ids in common by chance.
        let port = u32::from(stream.local_addr().unwrap().port());
        Self { stream, next_xid: port << 16, ids: Some(Ids::root()) }
    }

    pub(crate) fn becoming(mut self, ids: Ids) -> Self {
        self.ids = Some(ids);
        self
    }

    /// A call as it goes into a record.
    pub(crate) fn encode(&self, xid: u32, target: (u32, u32, u32), args: &[u8]) -> Vec<u8> {
        let (program, version, procedure) = target;
        let credential = match &self.ids {
            None => Credential::None,
            Some(ids) => Credential::Sys(AuthSys {
                stamp: 0,
                machine_name: b"test",
                uid: ids.uid,
                gid: ids.gid,
                gids: Gids::new(&ids.groups).unwrap(),
            }),
        };
        let mut w = Writer::new();
        CallHeader { xid, program, version, procedure, credential, verifier_flavor: 0 }
            .encode(&mut w);
        // Not padded: the arguments may be cut anywhere.
        let mut call = w.into_vec();
        call.extend(args);
        call
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn send_record(&mut self, record: &[u8]) {
        self.send_bytes(&in_fragments(record, &[]));
    }

    /// Shuts down the sending side.
    pub(crate) fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// The next reply; `None` when the server has closed the connection.
    pub(crate) fn receive_record(&mut self) -> Option<Vec<u8>> {
        read_blocking(&mut self.stream, REPLY_BYTES_MAX).expect("a reply")
    }

    /// Whether the server closes the connection, without another reply.
    pub(crate) fn is_closed_by_server(&mut self) -> bool {
        self.receive_record().is_none()
    }

    pub(crate) fn xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.wrapping_add(1);
        self.next_xid
    }

    /// Calls any procedure of any program.
    pub(crate) fn exchange(
        &mut self,
        target: (u32, u32, u32),
        args: &[u8],
    ) -> (ReplyHeader, Vec<u8>) {
        let xid = self.xid();
        let call = self.encode(xid, target, args);
        self.send_record(&call);
        let (header, results) = split(&self.receive_record().expect("the server answers"));
        assert_eq!(header.xid(), xid);
        (header, results)
    }

    /// Calls a procedure and decodes its result, which must be all there is.
    pub(crate) fn call<R: for<'a> Decode<'a>>(
        &mut self,
        procedure: Procedure,
        args: &impl Encode,
    ) -> R {
        decode_all(&self.call_raw(procedure, args)).expect("a well-formed result")
    }

    pub(crate) fn call_raw(&mut self, procedure: Procedure, args: &impl Encode) -> Vec<u8> {
        let target = (nfs3::PROGRAM, nfs3::VERSION, procedure.code());
        let (header, results) = self.exchange(target, &encoded(args));
        match header {
            ReplyHeader::Accepted { stat: AcceptStat::Success, .. } => results,
            other => panic!("{}: {other:?}", procedure.name()),
        }
    }

    pub(crate) fn mount_raw(
        &mut self,
        procedure: mount3::Procedure,
        args: &impl Encode,
    ) -> Vec<u8> {
        let target = (mount3::PROGRAM, mount3::VERSION, procedure.code());
        let (header, results) = self.exchange(target, &encoded(args));
        match header {
            ReplyHeader::Accepted { stat: AcceptStat::Success, .. } => results,
            other => panic!("{}: {other:?}", procedure.name()),
        }
    }

    pub(crate) fn try_mnt(&mut self, path: &str) -> Result<FileHandle, mount3::MountStatus> {
        let args = mount3::DirectoryArgs { directory: path.as_bytes() };
        let results = self.mount_raw(mount3::Procedure::Mnt, &args);
        decode_all::<mount3::MountReply<'_>>(&results).unwrap().map(|ok| {
            assert!(ok.auth_flavors.iter().eq([1]), "AUTH_SYS is what exports take");
            ok.file_handle
        })
    }

    pub(crate) fn mnt(&mut self, path: &str) -> FileHandle {
        self.try_mnt(path).unwrap()
    }

    /// Calls NULL; `false` when the server has closed the connection.
    pub(crate) fn is_answered(&mut self) -> bool {
        let xid = self.xid();
        let null = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Null.code());
        let call = in_fragments(&self.encode(xid, null, &[]), &[]);
        self.stream.write_all(&call).is_ok() && self.receive_record().is_some()
    }

    pub(crate) fn null(&mut self) {
        assert!(self.call_raw(Procedure::Null, &()).is_empty());
    }

    pub(crate) fn getattr(&mut self, object: FileHandle) -> Result<Attributes, Status> {
        let reply: GetattrReply = self.call(Procedure::Getattr, &GetattrArgs { object });
        reply.map(|ok| ok.attributes).map_err(|failure| failure.status)
    }

    pub(crate) fn setattr(&mut self, object: FileHandle, set: SetAttributes) -> SetattrReply {
        let args = SetattrArgs { object, new_attributes: set, guard: None };
        self.call(Procedure::Setattr, &args)
    }

    pub(crate) fn lookup(&mut self, dir: FileHandle, name: &[u8]) -> LookupReply {
        self.call(Procedure::Lookup, &LookupArgs { what: DirOp { dir, name } })
    }

    /// The handle under a name that is known to be there.
    pub(crate) fn find(&mut self, dir: FileHandle, name: &str) -> FileHandle {
        ok(self.lookup(dir, name.as_bytes())).object
    }

    pub(crate) fn access(&mut self, object: FileHandle, access: u32) -> AccessReply {
        self.call(Procedure::Access, &AccessArgs { object, access })
    }

    pub(crate) fn readlink(&mut self, symlink: FileHandle) -> Result<Vec<u8>, Status> {
        let results = self.call_raw(Procedure::Readlink, &ReadlinkArgs { symlink });
        match decode_all::<ReadlinkReply<'_>>(&results).unwrap() {
            Ok(ok) => {
                assert!(ok.attributes.is_some());
                Ok(ok.target.to_vec())
            }
            Err(failure) => Err(failure.status),
        }
    }

    pub(crate) fn read(
        &mut self,
        file: FileHandle,
        offset: u64,
        count: u32,
    ) -> Result<ReadData, Status> {
        let results = self.call_raw(Procedure::Read, &ReadArgs { file, offset, count });
        match decode_all::<ReadReply<'_>>(&results).unwrap() {
            Ok(ok) => {
                let (attributes, eof) = (ok.attributes, ok.eof);
                Ok(ReadData { attributes, eof, data: ok.data.to_vec() })
            }
            Err(failure) => Err(failure.status),
        }
    }

    pub(crate) fn write(&mut self, file: FileHandle, offset: u64, data: &[u8]) -> WriteReply {
        self.write_stable(file, offset, data, StableHow::Unstable)
    }

    pub(crate) fn write_stable(
        &mut self,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> WriteReply {
        let count = u32::try_from(data.len()).unwrap();
        self.call(Procedure::Write, &WriteArgs { file, offset, count, stable, data })
    }

    pub(crate) fn commit(&mut self, file: FileHandle) -> CommitReply {
        self.call(Procedure::Commit, &CommitArgs { file, offset: 0, count: 0 })
    }

    pub(crate) fn create_how(
        &mut self,
        dir: FileHandle,
        name: &[u8],
        how: CreateHow,
    ) -> CreatedReply {
        self.call(Procedure::Create, &CreateArgs { where_: DirOp { dir, name }, how })
    }

    /// A new file that everyone may read and write.
    pub(crate) fn create(&mut self, dir: FileHandle, name: &str) -> FileHandle {
        let how = CreateHow::Guarded(mode(0o666));
        ok(self.create_how(dir, name.as_bytes(), how)).object.unwrap()
    }

    pub(crate) fn try_mkdir(
        &mut self,
        dir: FileHandle,
        name: &[u8],
        set: SetAttributes,
    ) -> CreatedReply {
        let args = MkdirArgs { where_: DirOp { dir, name }, attributes: set };
        self.call(Procedure::Mkdir, &args)
    }

    /// A new directory that everyone may use.
    pub(crate) fn mkdir(&mut self, dir: FileHandle, name: &str) -> FileHandle {
        ok(self.try_mkdir(dir, name.as_bytes(), mode(0o777))).object.unwrap()
    }

    pub(crate) fn symlink(&mut self, dir: FileHandle, name: &[u8], target: &[u8]) -> CreatedReply {
        self.symlink_with(dir, name, target, SetAttributes::default())
    }

    pub(crate) fn symlink_with(
        &mut self,
        dir: FileHandle,
        name: &[u8],
        target: &[u8],
        attributes: SetAttributes,
    ) -> CreatedReply {
        let args = SymlinkArgs { where_: DirOp { dir, name }, attributes, target };
        self.call(Procedure::Symlink, &args)
    }

    pub(crate) fn mknod(&mut self, dir: FileHandle, name: &[u8], what: MknodData) -> CreatedReply {
        self.call(Procedure::Mknod, &MknodArgs { where_: DirOp { dir, name }, what })
    }

    pub(crate) fn remove(&mut self, dir: FileHandle, name: &[u8]) -> RemovedReply {
        self.call(Procedure::Remove, &RemoveArgs { object: DirOp { dir, name } })
    }

    pub(crate) fn rmdir(&mut self, dir: FileHandle, name: &[u8]) -> RemovedReply {
        self.call(Procedure::Rmdir, &RmdirArgs { object: DirOp { dir, name } })
    }

    pub(crate) fn rename(
        &mut self,
        from: (FileHandle, &[u8]),
        to: (FileHandle, &[u8]),
    ) -> RenameReply {
        let op = |(dir, name)| DirOp { dir, name };
        self.call(Procedure::Rename, &RenameArgs { from: op(from), to: op(to) })
    }

    pub(crate) fn link(&mut self, file: FileHandle, dir: FileHandle, name: &[u8]) -> LinkReply {
        self.call(Procedure::Link, &LinkArgs { file, link: DirOp { dir, name } })
    }

    pub(crate) fn readdir(
        &mut self,
        dir: FileHandle,
        cookie: u64,
        count: u32,
    ) -> Result<Page, Status> {
        self.readdir_with(ReaddirArgs { dir, cookie, verifier: CookieVerifier::default(), count })
    }

    pub(crate) fn readdir_with(&mut self, args: ReaddirArgs) -> Result<Page, Status> {
        let results = self.call_raw(Procedure::Readdir, &args);
        let page = match decode_all::<ReaddirReply<'_>>(&results).unwrap() {
            Ok(page) => page,
            Err(failure) => return Err(failure.status),
        };
        let names = page.entries.iter().map(|entry| Name {
            fileid: entry.fileid,
            name: entry.name.to_vec(),
            cookie: entry.cookie,
            attributes: None,
            handle: None,
        });
        let names = names.collect();
        let (attributes, eof, bytes) = (page.dir_attributes, page.eof, results.len() - 4);
        Ok(Page { attributes, names, eof, bytes })
    }

    pub(crate) fn readdirplus(
        &mut self,
        dir: FileHandle,
        cookie: u64,
        (dir_count, max_count): (u32, u32),
    ) -> Result<Page, Status> {
        let verifier = CookieVerifier::default();
        let args = ReaddirplusArgs { dir, cookie, verifier, dir_count, max_count };
        let results = self.call_raw(Procedure::Readdirplus, &args);
        let page = match decode_all::<ReaddirplusReply<'_>>(&results).unwrap() {
            Ok(page) => page,
            Err(failure) => return Err(failure.status),
        };
        let names = page.entries.iter().map(|entry| Name {
            fileid: entry.fileid,
            name: entry.name.to_vec(),
            cookie: entry.cookie,
            attributes: entry.attributes,
            handle: entry.handle,
        });
        let names = names.collect();
        let (attributes, eof, bytes) = (page.dir_attributes, page.eof, results.len() - 4);
        Ok(Page { attributes, names, eof, bytes })
    }

    /// The names after `cookie` to the end of a directory, page by page. A reply also ends when it
    /// has taken too long: each can lack names, however few there are.
    pub(crate) fn list_by(
        &mut self,
        mut cookie: u64,
        mut page: impl FnMut(&mut Self, u64) -> Page,
    ) -> Vec<Name> {
        let mut names = Vec::new();
        loop {
            let page = page(self, cookie);
            assert!(page.attributes.is_some());
            assert!(page.eof || !page.names.is_empty(), "a page without names leads nowhere");
            cookie = page.names.last().map_or(cookie, |name| name.cookie);
            names.extend(page.names);
            if page.eof {
                return names;
            }
        }
    }

    /// All names of a directory, by READDIR.
    pub(crate) fn list(&mut self, dir: FileHandle) -> Vec<Name> {
        self.list_by(0, |client, cookie| client.readdir(dir, cookie, 1 << 20).unwrap())
    }

    /// All names of a directory, by READDIRPLUS.
    pub(crate) fn list_plus(&mut self, dir: FileHandle) -> Vec<Name> {
        let limits = (1 << 20, 1 << 20);
        self.list_by(0, |client, cookie| client.readdirplus(dir, cookie, limits).unwrap())
    }

    pub(crate) fn fsinfo(&mut self, fsroot: FileHandle) -> FsinfoReply {
        self.call(Procedure::Fsinfo, &FsinfoArgs { fsroot })
    }

    pub(crate) fn fsstat(&mut self, fsroot: FileHandle) -> FsstatReply {
        self.call(Procedure::Fsstat, &FsstatArgs { fsroot })
    }

    pub(crate) fn pathconf(&mut self, object: FileHandle) -> PathconfReply {
        self.call(Procedure::Pathconf, &PathconfArgs { object })
    }
}

/// Connects from a port, or from any if it is 0. The port is taken before `taken` is called, so
/// that no other program can have it in between.
fn connect_reusing(port: u16, address: SocketAddr, taken: impl FnOnce()) -> TcpStream {
    use rustix::io::Errno;
    use rustix::net::sockopt::set_socket_reuseaddr;
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
    taken();
    let deadline = Instant::now() + PATIENCE;
    // A program that another test is starting has all descriptors until it is executed: the old
    // connection ends with the last of them.
    while let Err(error) = connect(&socket, &address) {
        assert!(error == Errno::ADDRNOTAVAIL && Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
    TcpStream::from(socket)
}

/// The result of a call that has to succeed.
#[track_caller]
pub(crate) fn ok<O, F: std::fmt::Debug>(reply: Reply<O, F>) -> O {
    match reply {
        Ok(ok) => ok,
        Err(failure) => panic!("{failure:?}"),
    }
}

/// The status of a call that has to fail.
#[track_caller]
pub(crate) fn refusal<O: std::fmt::Debug, F>(reply: Reply<O, F>) -> Status {
    match reply {
        Ok(ok) => panic!("succeeded: {ok:?}"),
        Err(failure) => failure.status,
    }
}

/// Attributes that set nothing but the mode.
pub(crate) fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// Attributes that set nothing but the length.
pub(crate) fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

pub(crate) fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut w = Writer::new();
    value.encode(&mut w);
    w.into_vec()
}

/// Splits a reply into its header and the results.
pub(crate) fn split(record: &[u8]) -> (ReplyHeader, Vec<u8>) {
    let mut reader = Reader::new(record);
    let header = ReplyHeader::decode(&mut reader).expect("a reply header");
    (header, record[reader.position()..].to_vec())
}
