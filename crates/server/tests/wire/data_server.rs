//! An export of a pNFS data server with the flexible file layout, loosely coupled (RFC 8435): a
//! metadata server makes files with ids of its own and fences clients by changing them.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proto::mount3::MountStatus;
use proto::nfs3::*;

use crate::client::{Client, Ids, mode, ok, refusal, size};
use crate::fixture::{Fixture, is_root};
use crate::local_file::MODES;

const METADATA_SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The ids that the metadata server gives out: readers are of the group.
const WRITER: Ids = Ids { uid: 19_452, gid: 28_418, groups: Vec::new() };
const READER: Ids = Ids { uid: 19_453, gid: 28_418, groups: Vec::new() };
const OTHERS: u32 = 19_999;
const ROUNDS: usize = 20;

struct Bed {
    fixture: Fixture,
    metadata_server: Client,
    root: FileHandle,
}

impl Bed {
    fn new(modes: &str) -> Self {
        let fixture = Fixture::with(&format!(
            r#"
            [[export]]
            path = "$DIR/export"
            name = "/export"
            profile = "data-server"
            metadata_servers = ["{METADATA_SERVER}"]
            {modes}
            [[export.client]]
            hosts = ["127.0.0.1"]
            "#
        ));
        let metadata_server = Client::connect_from(METADATA_SERVER, fixture.address());
        let mut metadata_server = metadata_server.becoming(Ids::user(0));
        let root = metadata_server.mnt("/export");
        Self { fixture, metadata_server, root }
    }

    fn client(&self, ids: Ids) -> Client {
        self.fixture.client().becoming(ids)
    }

    /// A file of the writer, which its group may read.
    fn file(&mut self, name: &str) -> FileHandle {
        let file = self.metadata_server.create(self.root, name);
        let (uid, gid) = (Some(WRITER.uid), Some(WRITER.gid));
        let attributes = SetAttributes { mode: Some(0o640), uid, gid, ..SetAttributes::default() };
        ok(self.metadata_server.setattr(file, attributes));
        file
    }

    /// Gives the file to other ids.
    fn fence(&mut self, file: FileHandle) {
        let (uid, gid) = (Some(OTHERS), Some(OTHERS));
        let attributes = SetAttributes { uid, gid, ..SetAttributes::default() };
        ok(self.metadata_server.setattr(file, attributes));
    }
}

#[test]
fn clients_use_the_ids_that_the_metadata_server_has_given_out() {
    if !is_root() {
        return;
    }
    let mut bed = Bed::new("");
    let file = bed.file("f");
    let (mut writer, mut reader) = (bed.client(WRITER), bed.client(READER));
    ok(writer.write(file, 0, b"data"));
    ok(writer.commit(file));
    assert_eq!(writer.read(file, 0, 10).unwrap().data, b"data");
    assert_eq!(reader.read(file, 0, 10).unwrap().data, b"data");
    assert_eq!(refusal(reader.write(file, 0, b"D")), Status::Acces);
    assert_eq!(reader.getattr(file).unwrap().size, 4);
    let local = fs::metadata(bed.fixture.exported("f")).unwrap();
    assert_eq!((local.uid(), local.gid()), (WRITER.uid, WRITER.gid));
    for ids in [Ids::user(OTHERS), Ids::user(0)] {
        let mut other = bed.client(ids);
        assert_eq!(other.read(file, 0, 10).unwrap_err(), Status::Acces);
        assert_eq!(refusal(other.write(file, 0, b"D")), Status::Acces);
    }
}

/// A client that could change the mode of its file would undo a fence before it comes.
#[test]
fn clients_reach_no_names_and_change_no_attributes() {
    if !is_root() {
        return;
    }
    let mut bed = Bed::new("");
    let (file, root) = (bed.file("f"), bed.root);
    let mut writer = bed.client(WRITER);
    assert_eq!(writer.try_mnt("/export").unwrap_err(), MountStatus::Acces);
    for (procedure, status) in [
        ("SETATTR", refusal(writer.setattr(file, mode(0o666)))),
        ("SETATTR of the length", refusal(writer.setattr(file, size(0)))),
        ("LOOKUP", refusal(writer.lookup(root, b"f"))),
        ("CREATE", refusal(writer.create_how(root, b"x", CreateHow::Guarded(mode(0o600))))),
        ("REMOVE", refusal(writer.remove(root, b"f"))),
        ("RENAME", refusal(writer.rename((root, b"f"), (root, b"g")))),
        ("LINK", refusal(writer.link(file, root, b"g"))),
    ] {
        assert_eq!(status, Status::Acces, "{procedure}");
    }
    let entries = fs::read_dir(bed.fixture.exported("")).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["f"]);
}

#[test]
fn a_fence_refuses_what_begins_after_its_reply_and_waits_for_what_began_before() {
    if !is_root() {
        return;
    }
    for io_mode in MODES {
        let modes = format!("io_cache_read = \"{io_mode}\"\nio_cache_write = \"{io_mode}\"");
        let mut bed = Bed::new(&modes);
        for round in 0..ROUNDS {
            let name = format!("f{round}");
            let (file, path) = (bed.file(&name), bed.fixture.exported(&name));
            let bytes = if round % 2 == 0 { 4096 } else { 700_000 };
            let (mut writers, is_fenced) =
                ([0, 1].map(|_| bed.client(WRITER)), AtomicBool::new(false));
            ok(writers[0].write(file, 0, &vec![1; bytes]));
            let at_reply = thread::scope(|scope| {
                for writer in &mut writers {
                    scope.spawn(|| {
                        for value in (1..=u8::MAX).cycle() {
                            let begins_after = is_fenced.load(Ordering::SeqCst);
                            match writer.write(file, 0, &vec![value; bytes]) {
                                Ok(_) => assert!(!begins_after, "{io_mode}: it was not fenced"),
                                Err(failure) => {
                                    assert_eq!(failure.status, Status::Acces);
                                    return;
                                }
                            }
                        }
                    });
                }
                thread::sleep(std::time::Duration::from_millis(3));
                bed.fence(file);
                is_fenced.store(true, Ordering::SeqCst);
                fs::read(&path).unwrap()
            });
            assert_eq!(
                fs::read(&path).unwrap(),
                at_reply,
                "{io_mode}: a WRITE came after the fence"
            );
            assert!(
                at_reply.iter().all(|byte| *byte == at_reply[0]),
                "{io_mode}: a part of a WRITE"
            );
            let mut reader = bed.client(READER);
            assert_eq!(reader.read(file, 0, 10).unwrap_err(), Status::Acces);
            assert_eq!(refusal(writers[0].commit(file)), Status::Acces);
        }
    }
}
