//! The shares that COMPOUNDs of one client leave to others: memory, and the threads of devices.

use std::net::Ipv4Addr;
use std::time::Duration;

use proto::nfs4::*;

use super::client::{ALL_VERSIONS, CHANNEL, Operations, Session};
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
fn a_stalled_disk_delays_no_lookup_from_the_root_to_another() {
    if !is_root() {
        return;
    }
    let over = Fixture::over(TWO_DEVICES, |dir| {
        std::fs::create_dir_all(dir.join("other/below")).unwrap();
        Mounted::ext4_export(dir)
    });
    let Some((fixture, _mount)) = over else { return };
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
    let Some(frozen) = Frozen::at(&fixture.path("export")) else { return };
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

#[test]
fn long_results_that_are_not_read_are_charged_to_their_client() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let fore = ChannelAttributes { operations_max: 64, ..CHANNEL };
    let mut session = Session::over(fixture.client(), b"a client", 2, fore);
    let export = session.export();
    let wanted: Vec<u32> = (0..84).collect();
    let all = Bitmap::of(&wanted).intersection(KNOWN_ATTRIBUTES);
    let call = Operations::new().at(export).getattr(&[]);
    let long = (0..61).fold(call, |call, _| {
        call.op(OperationCode::Getattr, &GetattrArgs { wanted: readable(all) })
    });
    let length = session.ok(&long).rest().len();
    assert!(length > 16 << 10, "{length} bytes");
    assert!(eventually(|| fixture.figure("buffers_in_use_bytes") == 0), "the reply was read");
    // Some 6 MiB for each connection, more than its sockets take.
    let mut unread = Vec::new();
    for connection in 0..4_u8 {
        let mut session = Session::over(fixture.client(), &[connection, 0], 2, fore);
        let mut ids = vec![session.id];
        for number in 1..6 {
            session = Session::over(session.client, &[connection, number], 2, fore);
            ids.push(session.id);
        }
        rustix::net::sockopt::set_socket_recv_buffer_size(&session.client.stream, 4096).unwrap();
        for id in ids {
            session.id = id;
            (1..64).for_each(|slot| session.send_on(slot, &long));
        }
        unread.push(session);
    }
    let charged = || fixture.figure("buffers_in_use_bytes");
    assert!(eventually(|| charged() > 1 << 20), "{} bytes are charged", charged());
    drop(unread);
    assert!(eventually(|| charged() == 0), "{} bytes stay charged", charged());
}

/// Those of the attributes that can be read.
fn readable(all: Bitmap) -> Bitmap {
    let write_only =
        [attribute::TIME_ACCESS_SET, attribute::TIME_MODIFY_SET, attribute::MODE_UMASK];
    all.difference(Bitmap::of(&write_only))
}

#[test]
fn data_is_read_in_a_compound_without_long_results() {
    let fixture = Fixture::with(ALL_VERSIONS);
    std::fs::write(fixture.exported("f"), "data").unwrap();
    let fore = ChannelAttributes { operations_max: 64, ..CHANNEL };
    let mut session = Session::over(fixture.client(), b"a client", 2, fore);
    let export = session.export();
    let read = ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 10 };
    let with = |getattrs: usize| {
        let call = Operations::new().at(export).lookup(b"f");
        let wanted = readable(KNOWN_ATTRIBUTES);
        let call = (0..getattrs)
            .fold(call, |call, _| call.op(OperationCode::Getattr, &GetattrArgs { wanted }));
        call.op(OperationCode::Read, &read)
    };
    assert_eq!(session.ok(&with(1)).status, Ok(()));
    // It holds memory already, and so waits for none.
    assert_eq!(session.call(&with(20)).status, Err(Status::RepTooBig));
    assert_eq!(session.ok(&with(0)).status, Ok(()));
}
