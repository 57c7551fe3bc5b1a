//! A disk that fails: the replies, the lines of the log, and that nothing is left of the error.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fuser::{
    AccessFlags, BackgroundSession, Config, Errno, FileHandle as OpenHandle, Filesystem,
    Generation, INodeNo, ReplyAttr, ReplyDirectory, ReplyEmpty, ReplyEntry, Request, SessionACL,
    spawn_mount,
};
use proto::nfs3::{
    AccessArgs, AccessReply, Attributes, CookieVerifier, FileHandle, GetattrArgs, GetattrReply,
    Procedure, ReaddirplusArgs, ReaddirplusReply, Status,
};
use proto::xdr::decode_all;
use rustix::process::Signal;
use serde_json::json;
use server::trace::handle_hash;

use crate::client::Client;
use crate::fixture::{
    PATIENCE, Place, Running, assert_exit, eventually, run, serve_config, serve_directory,
    without_environment,
};
use crate::fuse::attributes;
use crate::skip::skip;

const FILE: INodeNo = INodeNo(2);

/// A request that a disk can fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failing {
    Access,
    Lookup,
    /// It does not answer one.
    HangingLookup,
}

type Switch = Arc<Mutex<Option<Failing>>>;

/// A mounted file system with one file, `file`, that answers a kind of request with EIO at will.
struct Disk {
    failing: Switch,
    _session: BackgroundSession,
}

impl Disk {
    /// Mounts it; `None` where that is not allowed.
    fn mount(at: &Path) -> Option<Self> {
        let failing = Switch::default();
        let mut config = Config::default();
        config.acl = SessionACL::All;
        match spawn_mount(Files { failing: Arc::clone(&failing) }, at, &config) {
            Ok(session) => Some(Self { failing, _session: session }),
            Err(error) => {
                skip(format_args!("FUSE cannot be mounted here: {error}"));
                None
            }
        }
    }

    fn fail(&self, failing: Failing) {
        *self.failing.lock().unwrap() = Some(failing);
    }

    fn mend(&self) {
        *self.failing.lock().unwrap() = None;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Before the end of the session, which waits for what hangs.
        self.mend();
    }
}

struct Files {
    failing: Switch,
}

impl Files {
    fn fails(&self, request: Failing) -> bool {
        *self.failing.lock().unwrap() == Some(request)
    }
}

/// The kernel keeps nothing: each use is a request.
impl Filesystem for Files {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        while self.fails(Failing::HangingLookup) {
            thread::sleep(Duration::from_millis(5));
        }
        match name.to_str() {
            _ if self.fails(Failing::Lookup) => reply.error(Errno::EIO),
            Some("file") => reply.entry(&Duration::ZERO, &attributes(FILE), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<OpenHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &attributes(inode));
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        if self.fails(Failing::Access) { reply.error(Errno::EIO) } else { reply.ok() }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: OpenHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [(INodeNo::ROOT, "."), (INodeNo::ROOT, ".."), (FILE, "file")];
        for (place, (inode, name)) in (1..).zip(entries) {
            let kind = attributes(inode).kind;
            if place > offset && reply.add(inode, place, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

impl Client {
    fn status_of_getattr(&mut self, object: FileHandle) -> Result<Attributes, Status> {
        let results = self.call(Procedure::Getattr, &GetattrArgs { object });
        let reply = decode_all::<GetattrReply>(&results).unwrap();
        reply.map(|ok| ok.attributes).map_err(|failure| failure.status)
    }

    fn status_of_access(&mut self, object: FileHandle) -> Result<u32, Status> {
        let results = self.call(Procedure::Access, &AccessArgs { object, access: 0x3f });
        let reply = decode_all::<AccessReply>(&results).unwrap();
        reply.map(|ok| ok.access).map_err(|failure| failure.status)
    }

    /// Attributes and handle of `file` as READDIRPLUS shows them. On a busy machine a reply can end
    /// before it.
    fn listed_file(&mut self, dir: FileHandle) -> (Option<Attributes>, Option<FileHandle>) {
        let (mut cookie, verifier) = (0, CookieVerifier::default());
        loop {
            let args = ReaddirplusArgs { dir, cookie, verifier, dir_count: 8192, max_count: 8192 };
            let results = self.call(Procedure::Readdirplus, &args);
            let page = decode_all::<ReaddirplusReply<'_>>(&results).unwrap().unwrap();
            for entry in page.entries.iter() {
                if entry.name == b"file" {
                    return (entry.attributes, entry.handle);
                }
                cookie = entry.cookie;
            }
            assert!(!page.eof, "no file");
        }
    }

    /// The end of the line that the log has of the failed call that was sent last.
    fn failed_call(&self, what: &str, object: FileHandle, path: &str, export: &str) -> String {
        let (address, xid) = (self.stream.local_addr().unwrap(), self.xid);
        let fh_hash = handle_hash(object.as_bytes());
        format!(
            " {what} failed: Input/output error (os error 5) client={address} xid=0x{xid:08x} \
             export={export} fh_hash=0x{fh_hash:08x}{path}"
        )
    }
}

/// Waits for the first line of the log that reports an error of the disk. `expected` is its end.
#[track_caller]
fn assert_next_error(running: &Running, expected: &str) {
    let line = running.wait_for("Input/output error");
    assert!(line.contains("ERROR") && line.ends_with(expected), "{line}\n{expected}");
}

#[test]
fn access_reports_an_error_of_the_disk() {
    let place = Place::new();
    let Some(disk) = Disk::mount(&place.path("a")) else { return };
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (_, file) = client.find("/data", "file");
    let path = format!(" path={}", place.text("a/file"));
    // Each is logged once: the next line is that of the next call.
    for _ in 0..2 {
        disk.fail(Failing::Access);
        assert_eq!(client.status_of_access(file), Err(Status::Io));
        assert_next_error(&running, &client.failed_call("ACCESS", file, &path, "/data"));
        disk.mend();
        assert_ne!(client.status_of_access(file).unwrap(), 0, "nothing is left of the error");
    }
    running.stop(Signal::TERM);
}

#[test]
fn traces_of_a_file_on_a_hanging_disk_leave_their_places_when_their_commands_end() {
    let place = Place::new();
    let Some(disk) = Disk::mount(&place.path("a")) else { return };
    let running = Running::start(serve_directory(&place), 1);
    // Dropped before the server, whose end waits for what hangs.
    let disk = disk;
    let request = json!({
        "version": 1, "command": "trace", "events": ["read"], "file": place.text("a/file"),
    });
    let trace = || {
        let mut stream = UnixStream::connect(place.path("state/spillway.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        BufReader::new(stream)
    };
    let reply = |mut trace: BufReader<UnixStream>| {
        let mut reply = String::new();
        trace.read_line(&mut reply).unwrap();
        reply
    };
    let state = place.text("state");
    let status = || run(&["status", "--socket", &state]);
    disk.fail(Failing::HangingLookup);
    let traces: Vec<_> = (0..16).map(|_| trace()).collect();
    assert_exit(&status(), 1, "the server serves 16 commands at a time already");
    drop(traces);
    eventually(Some(0), || status().status.code());
    let refused = "16 lookups of files and drops of clients wait for disks already";
    assert_eq!(reply(trace()), format!("{{\"version\":1,\"error\":\"{refused}\"}}\n"));
    assert_exit(&run(&["drop-client", "192.0.2.1", "--socket", &state]), 1, refused);
    disk.mend();
    eventually("{\"version\":1,\"result\":null}\n".to_owned(), || reply(trace()));
    running.stop(Signal::TERM);
}

#[test]
fn readdirplus_lists_unreadable_entries_without_their_objects() {
    let place = Place::new();
    let Some(disk) = Disk::mount(&place.path("a")) else { return };
    let running = Running::start(serve_directory(&place), 1);
    let mut client = Client::connect(&running);
    let (root, _) = client.find("/data", "file");
    for _ in 0..2 {
        disk.fail(Failing::Lookup);
        assert_eq!(client.listed_file(root), (None, None));
        let path = place.text("a");
        let shown = format!(
            "cannot read an object to list export=\"/data\" path=\"{path}\" name=file \
             error=Input/output error (os error 5)"
        );
        assert_next_error(&running, &shown);
        disk.mend();
        let (attributes, handle) = client.listed_file(root);
        assert!(attributes.is_some() && handle.is_some(), "nothing is left of the error");
    }
    running.stop(Signal::TERM);
}

/// Without CAP_DAC_READ_SEARCH a handle stands for a path that the server remembers, or finds by a
/// walk of the tree after a restart.
#[test]
fn a_remembered_path_survives_a_disk_error() {
    let place = Place::new();
    let Some(disk) = Disk::mount(&place.path("a")) else { return };
    if Command::new("setpriv").arg("--version").output().is_err() {
        return skip("no setpriv");
    }
    let config = place.configure(
        "listen = \"127.0.0.1:0\"\nstate_dir = \"$DIR/state\"\n\
         [[export]]\npath = \"$DIR/a\"\nname = \"/data\"\n",
    );
    let serve = || {
        let server = serve_config(&config);
        let mut command = without_environment(Command::new("setpriv"));
        command.args(["--bounding-set", "-dac_read_search"]);
        command.arg(server.get_program()).args(server.get_args());
        Running::start(command, 1)
    };
    let mut file = None;
    for restarted in [false, true] {
        let running = serve();
        let mut client = Client::connect(&running);
        let file = *file.get_or_insert_with(|| {
            let root = client.root("/data");
            client.listed_file(root).1.unwrap()
        });
        // The server has the path, or nothing, but not the file.
        disk.fail(Failing::Lookup);
        assert_eq!(client.status_of_getattr(file), Err(Status::Io), "restarted: {restarted}");
        assert_next_error(&running, &client.failed_call("GETATTR", file, "", "/data"));
        disk.mend();
        let attributes = client.status_of_getattr(file).unwrap();
        assert_eq!(attributes.fileid, FILE.0, "nothing is left of the error");
        running.stop(Signal::TERM);
    }
}
