//! Answers of NFS that a good server seldom gives: not now, too much, too little.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::nfs3::{
    Attributes, CookieVerifier, CreateHow, CreatedOk, CreatedReply, Entry, EntryPlus, Failure,
    FileHandle, FileType, GetattrOk, GetattrReply, LookupOk, LookupReply, MknodData, ReadArgs,
    ReadOk, ReadReply, ReaddirOk, ReaddirReply, ReaddirplusOk, ReaddirplusReply, SetAttributes,
    StableHow, Status, Time, WccData, WriteOk, WriteReply, WriteVerifier,
};
use proto::oncrpc::AcceptStat;
use proto::xdr::{Encode, List, Writer, decode_all};
use rpc::client::RpcOptions;
use rustix::io::Errno;
use spillway_client::nfs3::{Flavor, ReadData};
use spillway_client::{Error, MountOptions, Nfs3, Recovery};
use tokio::io::AsyncWriteExt as _;
use tracing::field::{Field, Visit};
use tracing::span;

use crate::fixture::root_user;
use crate::peer::{Connected, Peer, Received, answered, ask, hard, reply, within};

async fn connected(options: &MountOptions) -> (Peer, Nfs3, Connected) {
    let peer = Peer::new().await;
    let nfs = Nfs3::connect(peer.address(), Flavor::Sys, &root_user(), options).await.unwrap();
    let connected = peer.accept().await;
    (peer, nfs, connected)
}

fn options() -> MountOptions {
    MountOptions { reserved_port: false, ..MountOptions::default() }
}

fn encoded(results: &impl Encode) -> Vec<u8> {
    let mut w = Writer::new();
    results.encode(&mut w);
    w.into_vec()
}

fn some_file() -> FileHandle {
    FileHandle::new(b"some file").unwrap()
}

fn attributes() -> Attributes {
    Attributes {
        file_type: FileType::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 10,
        used: 10,
        rdev: Default::default(),
        fsid: 1,
        fileid: 2,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
    }
}

fn not_now() -> Vec<u8> {
    encoded(&GetattrReply::Err(Failure { status: Status::Jukebox, body: () }))
}

#[tokio::test]
async fn a_call_that_is_not_answered_now_is_made_anew() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    let call = tokio::spawn(nfs.getattr(some_file()));
    let begin = Instant::now();
    let mut calls: Vec<Received> = Vec::new();
    for _ in 0..3 {
        let received = connected.receive().await;
        connected.answer(&received, &not_now()).await;
        calls.push(received);
    }
    assert!(begin.elapsed() >= Duration::from_millis(300), "with pauses");
    let last = connected.receive().await;
    connected
        .answer(&last, &encoded(&GetattrReply::Ok(GetattrOk { attributes: attributes() })))
        .await;
    assert_eq!(within(call).await.unwrap().unwrap(), attributes());
    calls.push(last);
    assert!(calls.iter().all(|call| call.arguments == calls[0].arguments));
    let mut xids: Vec<_> = calls.iter().map(|call| call.xid).collect();
    xids.dedup();
    assert_eq!(xids.len(), 4, "each is a new call: the reply cache keeps the old answer");
}

#[tokio::test]
async fn a_soft_mount_gives_up_after_repeated_jukebox() {
    // Long against the time until this peer answers on a busy machine.
    let timeout = Duration::from_secs(2);
    let options =
        MountOptions { timeout, retransmissions: 1, recovery: Recovery::Soft, ..options() };
    let (_peer, nfs, mut connected) = connected(&options).await;
    let call = nfs.getattr(some_file());
    let refuse = async {
        loop {
            let received = connected.receive().await;
            connected.answer(&received, &not_now()).await;
        }
    };
    tokio::select! {
        result = within(call) => assert!(result.unwrap_err().is(Status::Jukebox)),
        () = refuse => unreachable!("it goes on"),
    }
}

/// The error of a call for a reply with these results.
async fn refused<T: std::fmt::Debug>(
    call: impl Future<Output = Result<T, Error>>,
    connected: &mut Connected,
    results: &[u8],
) -> &'static str {
    let answer = async {
        let received = connected.receive().await;
        connected.answer(&received, results).await;
    };
    let (result, ()) = tokio::join!(within(call), answer);
    match result.unwrap_err() {
        Error::Malformed { error, .. } => error.what,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn garbage_args_for_a_long_name_is_enametoolong() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    let (dir, how) = (some_file(), CreateHow::Unchecked(SetAttributes::default()));
    let attributes = SetAttributes::default();
    for (bytes, expected) in [(255, Errno::IO), (256, Errno::NAMETOOLONG)] {
        let name = vec![b'n'; bytes];
        let name = &name[..];
        let mut calls: Vec<Pin<Box<dyn Future<Output = Errno>>>> = Vec::new();
        let mut add = |call| calls.push(call);
        add(errno(nfs.lookup(dir, name)));
        add(errno(nfs.create(dir, name, how)));
        add(errno(nfs.mkdir(dir, name, attributes)));
        add(errno(nfs.symlink(dir, name, b"target", attributes)));
        add(errno(nfs.mknod(dir, name, MknodData::Fifo(attributes))));
        add(errno(nfs.remove(dir, name)));
        add(errno(nfs.rmdir(dir, name)));
        add(errno(nfs.rename(dir, name, dir, b"to")));
        add(errno(nfs.rename(dir, b"from", dir, name)));
        add(errno(nfs.link(dir, dir, name)));
        for call in calls {
            let answer = async {
                let received = connected.receive().await;
                connected.refuse(received.xid, AcceptStat::GarbageArgs).await;
                received.procedure
            };
            let (found, procedure) = tokio::join!(within(call), answer);
            assert_eq!(found, expected, "procedure {procedure}, {bytes} bytes");
        }
    }
}

/// The error number of a call that fails.
fn errno<T: std::fmt::Debug>(
    call: impl Future<Output = Result<T, Error>> + 'static,
) -> Pin<Box<dyn Future<Output = Errno>>> {
    Box::pin(async move { call.await.unwrap_err().errno() })
}

#[tokio::test]
async fn more_data_than_requested_is_refused() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    let file = some_file();
    let data = &[1; 11];
    let read = ReadReply::Ok(ReadOk { attributes: None, count: 11, eof: true, data });
    let what = refused(nfs.read(file, 0, 10), &mut connected, &encoded(&read)).await;
    assert_eq!(what, "ReadOk.count");
    for count in [0, 5] {
        let (wcc, verifier) = (WccData::default(), WriteVerifier::default());
        let committed = StableHow::Unstable;
        let written = WriteReply::Ok(WriteOk { wcc, count, committed, verifier });
        let write = nfs.write(file, 0, Bytes::from_static(b"data"), StableHow::Unstable);
        assert_eq!(refused(write, &mut connected, &encoded(&written)).await, "WriteOk.count");
    }
}

#[tokio::test]
async fn an_end_of_file_counts_where_the_size_or_a_second_read_confirms_it() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    let (whole, sized) = (b"0123456789", |size| Some(Attributes { size, ..attributes() }));
    // The attributes of both replies, the bytes of the second (the first has four), and `eof`.
    for (attributes, rest, is_end) in [
        (sized(4), None, true),
        (sized(10), Some(6), true),
        (sized(10), Some(0), true),
        (None, Some(6), false),
        (None, Some(0), true),
    ] {
        let call = tokio::spawn(nfs.read(some_file(), 0, 10));
        let mut end = 0_u32;
        for len in [Some(4), rest].into_iter().flatten() {
            let received = connected.receive().await;
            let args: ReadArgs = decode_all(&received.arguments).unwrap();
            assert_eq!((args.offset, args.count), (end.into(), 10 - end));
            let data = &whole[end as usize..][..len as usize];
            let ok = ReadOk { attributes, count: len, eof: true, data };
            connected.answer(&received, &encoded(&ReadReply::Ok(ok))).await;
            end += len;
        }
        let ReadData { eof, data, .. } = within(call).await.unwrap().unwrap();
        assert_eq!((eof, &data[..]), (is_end, &whole[..end as usize]), "{attributes:?} {rest:?}");
    }
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_is_not_taken() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    for name in [&b"../outside"[..], b"", b"a\0b"] {
        let names =
            [Entry { fileid: 1, name: b"good", cookie: 1 }, Entry { fileid: 2, name, cookie: 2 }];
        let (verifier, entries) = (CookieVerifier::default(), List::from(names.as_slice()));
        let page =
            ReaddirReply::Ok(ReaddirOk { dir_attributes: None, verifier, entries, eof: true });
        let list = nfs.readdir(some_file(), 0, verifier, 4096);
        assert_eq!(refused(list, &mut connected, &encoded(&page)).await, "filename3");
    }
}

#[tokio::test]
async fn results_that_end_early_or_late() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    let whole = encoded(&GetattrReply::Ok(GetattrOk { attributes: attributes() }));
    for len in [0, 3, 4, 40, whole.len() - 1] {
        refused(nfs.getattr(some_file()), &mut connected, &whole[..len]).await;
    }
    let longer = [&whole[..], b"more"].concat();
    let what = refused(nfs.getattr(some_file()), &mut connected, &longer).await;
    assert_eq!(what, "end of record");
    assert_eq!(refused(nfs.null(), &mut connected, b"more").await, "end of record");
}

#[tokio::test]
async fn a_malformed_reply_is_reported_with_the_name_of_its_procedure() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    let call = tokio::spawn(nfs.getattr(some_file()));
    let received = connected.receive().await;
    connected.answer(&received, b"").await;
    let message = within(call).await.unwrap().unwrap_err().to_string();
    let expected = "the server's reply to GETATTR is malformed: cannot decode nfsstat3 at byte 0";
    assert_eq!(message, expected);
}

#[tokio::test]
async fn handle_without_bytes_is_refused() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    let (dir, object) = (some_file(), FileHandle::new(b"").unwrap());
    let found = LookupOk { object, object_attributes: None, dir_attributes: None };
    let found = encoded(&LookupReply::Ok(found));
    assert_eq!(refused(nfs.lookup(dir, b"name"), &mut connected, &found).await, "nfs_fh3");

    let dir_wcc = WccData::default();
    let made = CreatedOk { object: Some(object), attributes: None, dir_wcc };
    let made = encoded(&CreatedReply::Ok(made));
    let mkdir = nfs.mkdir(dir, b"name", SetAttributes::default());
    assert_eq!(refused(mkdir, &mut connected, &made).await, "nfs_fh3");

    let (fileid, name, cookie) = (1, &b"name"[..], 1);
    let names = [EntryPlus { fileid, name, cookie, attributes: None, handle: Some(object) }];
    let (verifier, entries) = (CookieVerifier::default(), List::from(names.as_slice()));
    let page = ReaddirplusOk { dir_attributes: None, verifier, entries, eof: true };
    let page = encoded(&ReaddirplusReply::Ok(page));
    let list = nfs.readdirplus(dir, 0, verifier, 4096, 4096);
    assert_eq!(refused(list, &mut connected, &page).await, "nfs_fh3");
}

#[tokio::test]
async fn data_is_held_by_its_reader_alone() {
    let (_peer, nfs, mut connected) = connected(&options()).await;
    let call = tokio::spawn(nfs.read(some_file(), 0, 10));
    let received = connected.receive().await;
    let data = &[7; 10];
    let read = ReadReply::Ok(ReadOk { attributes: None, count: 10, eof: false, data });
    connected.answer(&received, &encoded(&read)).await;
    let data = within(call).await.unwrap().unwrap().data;
    assert_eq!(data, [7; 10].as_slice());
    assert!(data.is_unique(), "nothing else holds the record");
}

#[tokio::test]
async fn a_server_that_does_not_respond_is_reported_once_and_when_it_does() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    // Long against the time until this peer has read the calls on a busy machine.
    let timeout = Duration::from_secs(1);
    let options = RpcOptions { timeout, retransmissions: 1, ..hard() };
    let (peer, rpc, mut connected) = Peer::connected(&options).await;
    let calls = [ask(&rpc, 1), ask(&rpc, 2)];
    for _ in 0..4 {
        connected.receive_all(2).await;
        assert_eq!(connected.try_receive().await, None);
        connected = peer.accept().await;
    }
    let mut calls = (1..).zip(calls).map(|(number, call)| (number, Box::pin(answered(call))));
    let (mut one, mut other) = (calls.next().unwrap(), calls.next().unwrap());
    let serve = async {
        loop {
            // A reply that was held up for longer than the timeout is sent again.
            while let Some(received) = connected.try_receive().await {
                let reply = reply(received.xid, &received.arguments[..4]);
                // The client may have given the connection up meanwhile.
                drop(connected.stream.write_all(&reply).await);
            }
            connected = peer.accept().await;
        }
    };
    tokio::select! {
        (first, second) = async { tokio::join!(&mut one.1, &mut other.1) } => {
            assert_eq!((first.unwrap(), second.unwrap()), (one.0, other.0));
        }
        () = serve => unreachable!("it goes on"),
    }
    let address = peer.address();
    let expected = [
        format!("WARN server {address} not responding, still trying"),
        format!("INFO server {address} OK"),
    ];
    assert_eq!(*log.0.lock().unwrap(), expected);
}

/// The messages that are not for debugging.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO && metadata.target().starts_with("spillway")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(format!("{} {}", event.metadata().level(), message.0));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
