//! A call that is sent again is answered again and done once (RFC 1813 §4.5).

use std::net::Ipv4Addr;

use proto::nfs3::{self, *};
use proto::xdr::{Encode, decode_all};
use spillway_server::counters::Counter;

use crate::client::{Client, Ids, encoded, in_fragments, mode, ok, refusal, split};
use crate::fixture::{Fixture, is_root};

/// A record of a call that can be sent many times.
fn call(client: &mut Client, procedure: Procedure, args: &impl Encode) -> Vec<u8> {
    let xid = client.xid();
    let target = (nfs3::PROGRAM, nfs3::VERSION, procedure.code());
    client.encode(xid, target, &encoded(args))
}

fn send(client: &mut Client, record: &[u8]) -> Vec<u8> {
    client.send_record(record);
    client.receive_record().expect("a reply")
}

/// Sends a call, again, and again over a new connection from the same port.
#[track_caller]
fn thrice(fixture: &Fixture, client: &mut Option<Client>, record: &[u8]) -> Vec<u8> {
    let mut connected = client.take().unwrap();
    let first = send(&mut connected, record);
    assert_eq!(send(&mut connected, record), first, "again");
    let mut connected = connected.reconnected(fixture.address());
    assert_eq!(send(&mut connected, record), first, "over a new connection");
    *client = Some(connected);
    split(&first).1
}

#[test]
fn every_change_is_done_once_and_answered_alike() {
    let fixture = Fixture::new();
    let mut client = Client::connect_reusable(fixture.address());
    let root = client.mnt("/export");
    let mut client = Some(client);
    let op = |name| DirOp { dir: root, name };
    let attributes = mode(0o600);
    let how = CreateHow::Guarded(attributes);
    let create =
        call(client.as_mut().unwrap(), Procedure::Create, &CreateArgs { where_: op(b"f"), how });
    let made: CreatedReply = decode_all(&thrice(&fixture, &mut client, &create)).unwrap();
    let file = ok(made).object.unwrap();
    let args = MkdirArgs { where_: op(b"d"), attributes };
    let mkdir = call(client.as_mut().unwrap(), Procedure::Mkdir, &args);
    ok(decode_all::<CreatedReply>(&thrice(&fixture, &mut client, &mkdir)).unwrap());
    let args = SymlinkArgs { where_: op(b"l"), attributes, target: b"t" };
    let symlink = call(client.as_mut().unwrap(), Procedure::Symlink, &args);
    ok(decode_all::<CreatedReply>(&thrice(&fixture, &mut client, &symlink)).unwrap());
    let args = MknodArgs { where_: op(b"p"), what: MknodData::Fifo(attributes) };
    let mknod = call(client.as_mut().unwrap(), Procedure::Mknod, &args);
    ok(decode_all::<CreatedReply>(&thrice(&fixture, &mut client, &mknod)).unwrap());
    let args = LinkArgs { file, link: op(b"g") };
    let link = call(client.as_mut().unwrap(), Procedure::Link, &args);
    ok(decode_all::<LinkReply>(&thrice(&fixture, &mut client, &link)).unwrap());
    let args = RenameArgs { from: op(b"g"), to: op(b"h") };
    let rename = call(client.as_mut().unwrap(), Procedure::Rename, &args);
    ok(decode_all::<RenameReply>(&thrice(&fixture, &mut client, &rename)).unwrap());
    let remove =
        call(client.as_mut().unwrap(), Procedure::Remove, &RemoveArgs { object: op(b"h") });
    ok(decode_all::<RemovedReply>(&thrice(&fixture, &mut client, &remove)).unwrap());
    let rmdir = call(client.as_mut().unwrap(), Procedure::Rmdir, &RmdirArgs { object: op(b"d") });
    ok(decode_all::<RemovedReply>(&thrice(&fixture, &mut client, &rmdir)).unwrap());
    // The guard no longer fits after the first time.
    let guard = Some(client.as_mut().unwrap().getattr(file).unwrap().ctime);
    let args = SetattrArgs { object: file, new_attributes: mode(0o640), guard };
    let setattr = call(client.as_mut().unwrap(), Procedure::Setattr, &args);
    ok(decode_all::<SetattrReply>(&thrice(&fixture, &mut client, &setattr)).unwrap());
    assert_eq!(fixture.counter(Counter::Replays), 2 * 9);
}

#[test]
fn a_refusal_is_remembered_too() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let object = DirOp { dir: root, name: b"f" };
    let remove = call(&mut client, Procedure::Remove, &RemoveArgs { object });
    let refused = send(&mut client, &remove);
    client.create(root, "f");
    assert_eq!(send(&mut client, &remove), refused);
    ok(client.lookup(root, b"f"));
}

#[test]
fn another_call_with_the_same_number_is_done() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    for name in [&b"a"[..], b"b"] {
        client.next_xid = 77;
        ok(client.try_mkdir(root, name, mode(0o700)));
    }
    client.next_xid = 77;
    ok(client.rmdir(root, b"a"));
    client.next_xid = 77;
    ok(client.rename((root, b"b"), (root, b"a")));
    assert_eq!(fixture.counter(Counter::Replays), 0);
}

#[test]
fn another_user_with_the_same_number_is_another_call() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let made_by = |id| {
        let mut client = fixture.client().becoming(Ids::user(id));
        client.next_xid = 99;
        let made = ok(client.create_how(root, b"f", CreateHow::Unchecked(mode(0o666))));
        ok(client.remove(root, b"f"));
        made.attributes.unwrap().uid
    };
    assert_eq!(made_by(1001), 1001);
    assert_eq!(made_by(1002), 1002);
    client.null();
}

#[test]
fn repeated_idempotent_calls_return_the_current_state() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let getattr = call(&mut client, Procedure::Getattr, &GetattrArgs { object: file });
    let first = send(&mut client, &getattr);
    ok(client.write(file, 0, b"longer now"));
    assert_ne!(send(&mut client, &getattr), first);
    assert_eq!(fixture.counter(Counter::Replays), 0);
}

#[test]
fn copies_that_come_during_the_call_are_dropped_or_answered_alike() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (replays, drops) = (Counter::Replays, Counter::DroppedRetransmissions);
    let mut copies = 0;
    let mut replayed_before = 0;
    for i in 0..50 {
        let name = format!("d{i}");
        let where_ = DirOp { dir: root, name: name.as_bytes() };
        let args = MkdirArgs { where_, attributes: mode(0o700) };
        let mkdir = call(&mut client, Procedure::Mkdir, &args);
        client.send_bytes(&in_fragments(&mkdir, &[]).repeat(4));
        copies += 3;
        while fixture.counter(replays) + fixture.counter(drops) < copies {
            std::thread::yield_now();
        }
        let replayed = fixture.counter(replays) - replayed_before;
        replayed_before += replayed;
        let first = client.receive_record().unwrap();
        ok(decode_all::<CreatedReply>(&split(&first).1).unwrap());
        for _ in 0..replayed {
            assert_eq!(client.receive_record().unwrap(), first);
        }
    }
    client.null();
}

#[test]
fn another_process_with_the_same_call_is_not_answered_with_an_old_reply() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let how = CreateHow::Guarded(mode(0o600));
    let args = CreateArgs { where_: DirOp { dir: root, name: b"lock" }, how };
    let create = call(&mut client, Procedure::Create, &args);
    let result = |reply: Vec<u8>| decode_all::<CreatedReply>(&split(&reply).1).unwrap();
    ok(result(send(&mut client, &create)));
    // Its reply was read, so its TCP has it, or will have acknowledged it soon.
    drop(client);
    let mut other = fixture.client();
    assert_eq!(refusal(result(send(&mut other, &create))), Status::Exist);
    ok(other.remove(root, b"lock"));
    ok(result(send(&mut fixture.client(), &create)));
    assert!(fixture.exported("lock").exists());
    assert_eq!(fixture.counter(Counter::Replays), 0);
}

/// An export that admits one address.
fn for_one_address() -> Fixture {
    Fixture::with(
        r#"
        [[export]]
        path = "$DIR/export"
        name = "/export"
        sync = false
        [[export.client]]
        hosts = ["127.0.0.1"]
        squash = "none"
        "#,
    )
}

#[test]
fn refusal_of_mknod_of_a_file_is_remembered_for_admitted_peers_alone() {
    let fixture = for_one_address();
    let (mut client, root) = fixture.mounted();
    let mut stranger = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), fixture.address());
    let forged = FileHandle::new(&[0xff; 32]).unwrap();
    for (is_stranger, dir, status, replays) in [
        (true, root, Status::Acces, 0),
        (false, forged, Status::Badhandle, 0),
        (false, root, Status::Badtype, 1),
    ] {
        let client = if is_stranger { &mut stranger } else { &mut client };
        let what = MknodData::Other(FileType::Regular);
        let args = MknodArgs { where_: DirOp { dir, name: b"f" }, what };
        let mknod = call(client, Procedure::Mknod, &args);
        let reply = send(client, &mknod);
        assert_eq!(send(client, &mknod), reply);
        let failure = decode_all::<CreatedReply>(&split(&reply).1).unwrap().unwrap_err();
        assert_eq!(failure.status, status);
        assert_eq!(failure.body.after.is_some(), status == Status::Badtype);
        assert_eq!(fixture.counter(Counter::Replays), replays, "{status:?}");
    }
}

#[test]
fn calls_that_no_export_admits_leave_the_replies_of_others() {
    let fixture = for_one_address();
    let (mut client, root) = fixture.mounted();
    let object = DirOp { dir: root, name: b"f" };
    let remove = call(&mut client, Procedure::Remove, &RemoveArgs { object });
    let refused = send(&mut client, &remove);
    client.create(root, "f");
    let mut stranger = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), fixture.address());
    for _ in 0..90 {
        let calls = |_| {
            let remove = call(&mut stranger, Procedure::Remove, &RemoveArgs { object });
            in_fragments(&remove, &[])
        };
        let calls: Vec<u8> = (0..100).flat_map(calls).collect();
        stranger.send_bytes(&calls);
        for _ in 0..100 {
            let reply = stranger.receive_record().unwrap();
            let result = decode_all::<RemovedReply>(&split(&reply).1).unwrap();
            assert_eq!(refusal(result), Status::Acces);
        }
    }
    assert_eq!(send(&mut client, &remove), refused);
}
