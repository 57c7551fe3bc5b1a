//! A load of name operations on any NFSv3 server: CREATE, LOOKUP or REMOVE, one call in flight on
//! each of a number of connections, each connection in a directory of its own, which it makes.
//!
//! ```text
//! cargo run --release --example names -- 127.0.0.1:2049 /export create --clients 2 --count 20000
//! ```
//!
//! Prints one line: the operation, calls per second over all connections, and the CPU time that
//! this program itself took for a call, so that a comparison can tell how much of a rate is its own.
//! `--mount-port` is for servers that answer MOUNT on another port than NFS.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use proto::mount3::{self, DirectoryArgs, MountReply};
use proto::nfs3::{
    self, CreateArgs, CreateHow, CreatedReply, DirOp, FileHandle, LookupArgs, LookupReply,
    MkdirArgs, Procedure, RemoveArgs, RemovedReply, SetAttributes, Status,
};
use proto::oncrpc::{AcceptStat, AuthSys, CallHeader, Credential, Gids, RecordMark, ReplyHeader};
use proto::xdr::{Decode, Encode, Reader, Writer};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Replies of these procedures are a few hundred bytes; more is not from an NFS server.
const REPLY_BYTES_MAX: usize = 64 * 1024;

fn main() -> Outcome<()> {
    let load = Load::from_args(std::env::args().skip(1).collect())?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..load.clients)
            .map(|client| {
                scope.spawn({
                    let load = &load;
                    move || load.run(client)
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))
    })?;
    let secs = began.elapsed().as_secs_f64();
    let calls = f64::from(load.clients) * f64::from(load.count);
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own_secs = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
    println!(
        "{} calls_per_sec={:.0} client_cpu_us_per_call={:.1}",
        load.operation,
        calls / secs,
        own_secs * 1e6 / calls
    );
    Ok(())
}

struct Load {
    address: String,
    mount_address: String,
    export: String,
    operation: String,
    clients: u32,
    count: u32,
}

impl Load {
    fn from_args(args: Vec<String>) -> Outcome<Self> {
        let usage = "names ADDRESS:PORT EXPORT create|lookup|remove [--clients N] [--count N] \
                     [--mount-port PORT]";
        let [address, export, operation, rest @ ..] = &args[..] else { return Err(usage.into()) };
        let mut load = Self {
            address: address.clone(),
            mount_address: address.clone(),
            export: export.clone(),
            operation: operation.clone(),
            clients: 2,
            count: 10_000,
        };
        for option in rest.chunks(2) {
            match option {
                [name, value] if name == "--clients" => load.clients = value.parse()?,
                [name, value] if name == "--count" => load.count = value.parse()?,
                [name, value] if name == "--mount-port" => {
                    let port: u16 = value.parse()?;
                    let (host, _) = address.rsplit_once(':').ok_or(usage)?;
                    load.mount_address = format!("{host}:{port}");
                }
                _ => return Err(usage.into()),
            }
        }
        Ok(load)
    }

    fn run(&self, client: u32) -> Outcome<()> {
        let root = Connection::open(&self.mount_address)?.mount(&self.export)?;
        let mut connection = Connection::open(&self.address)?;
        let dir = connection.directory(root, &format!("names-{client}"))?;
        for i in 0..self.count {
            let name = format!("file-{i:08}");
            let place = DirOp { dir, name: name.as_bytes() };
            match self.operation.as_str() {
                "create" => connection.create(place)?,
                "lookup" => connection.lookup(place).map(drop)?,
                "remove" => connection.remove(place)?,
                other => return Err(format!("no operation is called {other}").into()),
            }
        }
        Ok(())
    }
}

struct Connection {
    stream: TcpStream,
    xid: u32,
    /// `REPLY_BYTES_MAX` long, of which the latest reply fills the beginning.
    reply: Box<[u8]>,
}

impl Connection {
    fn open(address: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        // A run must not look like the retransmission of an earlier one.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let xid = u32::try_from(now.tv_nsec)? << 2;
        Ok(Self { stream, xid, reply: vec![0; REPLY_BYTES_MAX].into() })
    }

    fn mount(&mut self, export: &str) -> Outcome<FileHandle> {
        let args = DirectoryArgs { directory: export.as_bytes() };
        let number = mount3::Procedure::Mnt.code();
        let results = self.call(mount3::PROGRAM, number, &args)?;
        match MountReply::decode(&mut Reader::new(results))? {
            Ok(ok) => Ok(ok.file_handle),
            Err(status) => Err(status.name().into()),
        }
    }

    fn directory(&mut self, root: FileHandle, name: &str) -> Outcome<FileHandle> {
        let where_ = DirOp { dir: root, name: name.as_bytes() };
        let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let results = self.nfs(Procedure::Mkdir, &MkdirArgs { where_, attributes })?;
        match CreatedReply::decode(&mut Reader::new(results))? {
            Err(failure) if failure.status != Status::Exist => Err(failure.status.name().into()),
            _ => self.lookup(where_),
        }
    }

    fn create(&mut self, where_: DirOp<'_>) -> Outcome<()> {
        let attributes = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
        let how = CreateHow::Guarded(attributes);
        let results = self.nfs(Procedure::Create, &CreateArgs { where_, how })?;
        let reply = CreatedReply::decode(&mut Reader::new(results))?;
        reply.map(drop).map_err(|failure| failure.status.name().into())
    }

    fn lookup(&mut self, what: DirOp<'_>) -> Outcome<FileHandle> {
        let results = self.nfs(Procedure::Lookup, &LookupArgs { what })?;
        let reply = LookupReply::decode(&mut Reader::new(results))?;
        reply.map(|found| found.object).map_err(|failure| failure.status.name().into())
    }

    fn remove(&mut self, object: DirOp<'_>) -> Outcome<()> {
        let results = self.nfs(Procedure::Remove, &RemoveArgs { object })?;
        let reply = RemovedReply::decode(&mut Reader::new(results))?;
        reply.map(drop).map_err(|failure| failure.status.name().into())
    }

    fn nfs(&mut self, procedure: Procedure, args: &impl Encode) -> Outcome<&[u8]> {
        self.call(nfs3::PROGRAM, procedure.code(), args)
    }

    /// One call; returns its results, without the reply header.
    fn call(&mut self, program: u32, procedure: u32, args: &impl Encode) -> Outcome<&[u8]> {
        self.xid = self.xid.wrapping_add(1);
        let mut call = Writer::with_capacity(256);
        call.array(&[0; 4]);
        let gids = Gids::new(&[]).expect("an empty list is short enough");
        let sys = AuthSys { stamp: 0, machine_name: b"names", uid: 0, gid: 0, gids };
        CallHeader {
            xid: self.xid,
            program,
            version: 3,
            procedure,
            credential: Credential::Sys(sys),
            verifier_flavor: 0,
        }
        .encode(&mut call);
        args.encode(&mut call);
        let mut call = call.into_vec();
        let len = u32::try_from(call.len() - 4)?;
        call[..4].copy_from_slice(&RecordMark { last: true, len }.to_bytes());
        self.stream.write_all(&call)?;

        let mut got = 0;
        while got < 4 || got < 4 + record_len(&self.reply)? {
            match self.stream.read(&mut self.reply[got..])? {
                0 => return Err("the server closed the connection".into()),
                read => got += read,
            }
        }
        let record = &self.reply[4..got];
        let mut reader = Reader::new(record);
        match ReplyHeader::decode(&mut reader)? {
            ReplyHeader::Accepted { xid, stat: AcceptStat::Success } if xid == self.xid => {
                Ok(&record[reader.position()..])
            }
            other => Err(format!("the call was refused: {other:?}").into()),
        }
    }
}

fn record_len(bytes: &[u8]) -> Outcome<usize> {
    let mark = RecordMark::from_bytes(bytes[..4].try_into()?);
    let len = usize::try_from(mark.len)?;
    if mark.last && len <= REPLY_BYTES_MAX - 4 { Ok(len) } else { Err("a strange reply".into()) }
}
