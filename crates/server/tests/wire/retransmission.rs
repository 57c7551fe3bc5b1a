//! A call that is sent again is answered again and done once (RFC 1813 §4.5).

use proto::nfs3::{self, *};
use proto::xdr::{Encode, decode_all};
use spillway_server::counters::Counter;

use crate::client::{Client, Ids, encoded, in_fragments, mode, ok, split};
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

/// Sends a call, again, and again on a new connection.
#[track_caller]
fn thrice(fixture: &Fixture, client: &mut Client, record: &[u8]) -> Vec<u8> {
    let first = send(client, record);
    assert_eq!(send(client, record), first, "again");
    assert_eq!(send(&mut fixture.client(), record), first, "on a new connection");
    split(&first).1
}

#[test]
fn every_change_is_done_once_and_answered_alike() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let op = |name| DirOp { dir: root, name };
    let attributes = mode(0o600);
    let how = CreateHow::Guarded(attributes);
    let create = call(&mut client, Procedure::Create, &CreateArgs { where_: op(b"f"), how });
    let made: CreatedReply = decode_all(&thrice(&fixture, &mut client, &create)).unwrap();
    let file = ok(made).object.unwrap();
    let args = MkdirArgs { where_: op(b"d"), attributes };
    let mkdir = call(&mut client, Procedure::Mkdir, &args);
    ok(decode_all::<CreatedReply>(&thrice(&fixture, &mut client, &mkdir)).unwrap());
    let args = SymlinkArgs { where_: op(b"l"), attributes, target: b"t" };
    let symlink = call(&mut client, Procedure::Symlink, &args);
    ok(decode_all::<CreatedReply>(&thrice(&fixture, &mut client, &symlink)).unwrap());
    let args = MknodArgs { where_: op(b"p"), what: MknodData::Fifo(attributes) };
    let mknod = call(&mut client, Procedure::Mknod, &args);
    ok(decode_all::<CreatedReply>(&thrice(&fixture, &mut client, &mknod)).unwrap());
    let args = LinkArgs { file, link: op(b"g") };
    let link = call(&mut client, Procedure::Link, &args);
    ok(decode_all::<LinkReply>(&thrice(&fixture, &mut client, &link)).unwrap());
    let args = RenameArgs { from: op(b"g"), to: op(b"h") };
    let rename = call(&mut client, Procedure::Rename, &args);
    ok(decode_all::<RenameReply>(&thrice(&fixture, &mut client, &rename)).unwrap());
    let remove = call(&mut client, Procedure::Remove, &RemoveArgs { object: op(b"h") });
    ok(decode_all::<RemovedReply>(&thrice(&fixture, &mut client, &remove)).unwrap());
    let rmdir = call(&mut client, Procedure::Rmdir, &RmdirArgs { object: op(b"d") });
    ok(decode_all::<RemovedReply>(&thrice(&fixture, &mut client, &rmdir)).unwrap());
    // The guard no longer fits after the first time.
    let guard = Some(client.getattr(file).unwrap().ctime);
    let args = SetattrArgs { object: file, new_attributes: mode(0o640), guard };
    let setattr = call(&mut client, Procedure::Setattr, &args);
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
    if !is_root("another_user_with_the_same_number_is_another_call") {
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
fn what_may_be_repeated_is_answered_as_things_are_now() {
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
