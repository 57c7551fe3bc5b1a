//! What COMPOUNDs of one client take from others: the threads of devices.

use std::net::Ipv4Addr;
use std::time::Duration;

use proto::nfs4::*;

use super::client::{CHANNEL, Operations, Session};
use crate::client::Client;
use crate::fixture::{Fixture, Frozen, Mounted, is_root};
use crate::local_file::eventually;

/// Two exports, of which the first lies on a file system that the test mounts.
const TWO_DEVICES: &str = r#"
    nfs_versions = ["3", "4.1", "4.2"]
    metadata_threads = 2
    [[export]]
    path = "$DIR/export"
    name = "/export"
    squash = "none"
    [[export]]
    path = "$DIR/other"
    name = "/other"
    squash = "none"
"#;

#[test]
fn a_disk_that_stands_still_holds_up_no_search_from_the_root_to_another() {
    let test = "a_disk_that_stands_still_holds_up_no_search_from_the_root_to_another";
    if !is_root(test) {
        return;
    }
    let mut mounted = None;
    let fixture = Fixture::prepared(TWO_DEVICES, |dir| {
        std::fs::create_dir_all(dir.join("other/below")).unwrap();
        mounted = Mounted::ext4_export(dir);
    });
    if mounted.is_none() {
        return eprintln!("{test} skipped: no loop device here");
    }
    // Two clients, because one alone does not get all threads.
    let mut stuck: Vec<_> = [[127, 0, 0, 2], [127, 0, 0, 3]]
        .map(|from| Client::connect_from(Ipv4Addr::from(from), fixture.address()))
        .into_iter()
        .zip([b"first".as_slice(), b"second"])
        .map(|(client, owner)| Session::over(client, owner, 1, CHANNEL))
        .collect();
    let mut other = Session::of(&fixture, b"third", 1);
    // One for each call, because changes of one directory wait for each other and hold no thread.
    let directories = ["d0", "d1", "d2", "d3", "d4", "d5"];
    directories.iter().for_each(|name| std::fs::create_dir(fixture.exported(name)).unwrap());
    let Some(frozen) = Frozen::at(&fixture.path("export")) else {
        return eprintln!("{test} skipped: fsfreeze");
    };
    for (session, directories) in stuck.iter_mut().zip(directories.chunks(3)) {
        for (slot, directory) in (1..).zip(directories) {
            let attributes = RawAttributes { bitmap: Bitmap::EMPTY, values: &[] };
            let args = CreateArgs { kind: CreateKind::Directory, name: b"new", attributes };
            let call = Operations::new().root().lookup(b"export").lookup(directory.as_bytes());
            session.send_on(slot, &call.op(OperationCode::Create, &args));
        }
    }
    // Each is answered within the patience of the test's client, while the disk stands still.
    for _ in 0..20 {
        let call = Operations::new().root().lookup(b"other").lookup(b"below").getfh();
        other.ok(&call);
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(frozen);
    let is_done = || directories.iter().all(|name| fixture.exported(name).join("new").exists());
    assert!(eventually(is_done), "what stood still is done");
}
