//! State that is kept when a lease has run out, until another client needs what it holds.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs4::*;

use super::client::{Operations, Session, compound};
use crate::fixture::{Fixture, Mounted};

const LEASE: Duration = Duration::from_secs(90);
const DISK_KIB: u32 = 2 << 10;

/// Exports, each of a file system of its own.
const EXPORTS: [&str; 5] = ["written", "allocated", "linked", "shared", "named"];

fn config() -> String {
    let mut config = String::from("nfs_versions = [\"3\", \"4.1\", \"4.2\"]\n");
    for name in EXPORTS {
        let paths = format!("path = \"$DIR/{name}\"\nname = \"/{name}\"");
        writeln!(config, "[[export]]\n{paths}\nsquash = \"none\"\nsync = false").unwrap();
    }
    config
}

fn mount(dir: &Path) -> Option<Vec<Mounted>> {
    let mount = |name| {
        let at = dir.join(name);
        std::fs::create_dir(&at).unwrap();
        Mounted::tmpfs(&at, DISK_KIB)
    };
    EXPORTS.into_iter().map(mount).collect()
}

/// A client that has the file `file` of an export open, and a lock in it.
struct Holder {
    name: &'static str,
    session: Session,
}

impl Holder {
    fn new(fixture: &Fixture, name: &'static str) -> Self {
        let mut session = Session::of(fixture, name.as_bytes(), 2);
        let root = root_of(&mut session, name);
        let (file, open) = session.open(root, b"file");
        let owner = LockOwner { client: ClientId(0), owner: b"locker" };
        let locker = Locker::New { open_seqid: 0, open, lock_seqid: 0, owner };
        let range = LockRange { offset: 0, length: 1 };
        let lock = LockArgs { kind: LockType::Write, reclaim: false, range, locker };
        session.ok(&Operations::new().at(file).op(OperationCode::Lock, &lock));
        Self { name, session }
    }

    /// Whether the server knows the client, whose lease this renews.
    fn is_known(&mut self) -> bool {
        self.session.sequence += 1;
        let call = self.session.sequenced(&Operations::new());
        match compound(&mut self.session.client, 2, &call).status {
            Ok(()) => true,
            Err(status) => {
                assert_eq!(status, Status::Badsession, "{}", self.name);
                false
            }
        }
    }
}

fn root_of(session: &mut Session, export: &str) -> FileHandle {
    let call = Operations::new().root().lookup(export.as_bytes()).getfh();
    let mut results = session.ok(&call);
    results.skip(&[OperationCode::Putrootfh, OperationCode::Lookup]).handle()
}

/// Calls of one client, which take space.
struct Caller {
    session: Session,
    /// A file in each export.
    files: Vec<(FileHandle, Stateid)>,
}

impl Caller {
    fn file(&self, export: &str) -> (FileHandle, Stateid) {
        self.files[EXPORTS.iter().position(|name| *name == export).unwrap()]
    }

    fn status(&mut self, call: &Operations) -> Reply<()> {
        self.session.call(call).status
    }

    fn write(&mut self, export: &str) -> Reply<()> {
        let (file, stateid) = self.file(export);
        let args = WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: &[7; 4096] };
        self.status(&Operations::new().at(file).op(OperationCode::Write, &args))
    }

    fn allocate(&mut self, export: &str, offset: u64, length: u64) -> Reply<()> {
        let (file, stateid) = self.file(export);
        let args = AllocateArgs { stateid, offset, length };
        self.status(&Operations::new().at(file).op(OperationCode::Allocate, &args))
    }

    /// Makes a symbolic link that takes a block.
    fn link(&mut self, export: &str) -> Reply<()> {
        let root = root_of(&mut self.session, export);
        let attributes = RawAttributes { bitmap: Bitmap::of(&[]), values: b"" };
        let target = [b'x'; 1000];
        let args = CreateArgs { kind: CreateKind::Symlink(&target), name: b"link", attributes };
        self.status(&Operations::new().at(root).op(OperationCode::Create, &args))
    }
}

#[test]
fn space_of_removed_files_that_expired_clients_alone_have_open_is_free_for_others() {
    let Some((fixture, _mounts)) = Fixture::over(&config(), mount) else { return };
    let path = |export: &str, name: &str| fixture.exported("../").join(export).join(name);
    let mut holders: Vec<_> = EXPORTS.into_iter().map(|name| Holder::new(&fixture, name)).collect();
    let mut session = Session::of(&fixture, b"caller", 2);
    let root = root_of(&mut session, "shared");
    session.open(root, b"file");
    let open = |name| {
        let root = root_of(&mut session, name);
        session.open(root, b"other")
    };
    let files = EXPORTS.into_iter().map(open).collect();
    let mut caller = Caller { session, files };
    let disk = u64::from(DISK_KIB) << 10;
    let quarter = vec![7; usize::try_from(disk / 4).unwrap()];
    std::fs::write(path("allocated", "other"), quarter).unwrap();
    for export in EXPORTS {
        let file = std::fs::OpenOptions::new().write(true).open(path(export, "file"));
        let mut file = file.unwrap();
        assert!((0..DISK_KIB).any(|_| file.write_all(&[7; 4096]).is_err()), "{export}");
    }
    // One by the server, the others by a local program.
    let root = root_of(&mut caller.session, "written");
    let remove = NameArgs { name: b"file" };
    caller.session.ok(&Operations::new().at(root).op(OperationCode::Remove, &remove));
    for export in ["allocated", "linked", "shared"] {
        std::fs::remove_file(path(export, "file")).unwrap();
    }
    assert_eq!(caller.write("written"), Err(Status::Nospc), "a lease is in force");
    let begun = Instant::now();
    while begun.elapsed() <= LEASE {
        thread::sleep(LEASE / 15);
        caller.session.ok(&Operations::new());
    }
    let more_than_held = disk * 7 / 8;
    let allocated = caller.allocate("allocated", disk / 4, more_than_held);
    assert_eq!(allocated, Err(Status::Nospc), "all of it is behind the file's size");
    let free = rustix::fs::statvfs(path("allocated", "")).unwrap().f_bfree;
    assert_eq!(free, 0, "and so no courtesy ends");
    assert_eq!(caller.write("shared"), Err(Status::Nospc));
    assert_eq!(caller.write("named"), Err(Status::Nospc));
    assert_eq!(caller.write("written"), Ok(()));
    assert_eq!(caller.allocate("allocated", disk / 4, disk / 2), Ok(()));
    assert_eq!(caller.link("linked"), Ok(()));
    let known = holders.iter_mut().filter_map(|holder| holder.is_known().then_some(holder.name));
    assert_eq!(known.collect::<Vec<_>>(), ["shared", "named"]);
}
