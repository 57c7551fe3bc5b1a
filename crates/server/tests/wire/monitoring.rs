//! The server's reports on its calls: trace events, samples and metrics.

use std::net::Ipv4Addr;
use std::time::Duration;

use proto::nfs4::*;
use proto::xdr::Writer;
use spillway_server::counters::Counter;
use spillway_server::report::{Sample, TraceFeed, TraceLine, TraceRequest};
use tokio::runtime::Runtime;

use crate::client::Client;
use crate::fixture::{Fixture, TRUSTING};
use crate::local_file::{eventually, is_open_below};
use crate::nfs4::client::{ALL_VERSIONS, Operations, Session, compound};

/// A command that follows events.
struct Following {
    feed: TraceFeed,
    runtime: Runtime,
}

impl Following {
    fn new(fixture: &Fixture, events: &[&str], request: TraceRequest) -> Self {
        let events = events.iter().map(|event| (*event).to_owned()).collect();
        let request = TraceRequest { events, ..request };
        let feed = fixture.server().monitor().follow(&request).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { feed, runtime }
    }

    /// The events since the last call of this, all of which have happened.
    fn lines(&self) -> Vec<TraceLine> {
        let next =
            async { tokio::time::timeout(Duration::from_millis(100), self.feed.next()).await };
        self.runtime.block_on(next).map_or_else(|_| Vec::new(), |(lines, _)| lines)
    }

    /// As [`Self::lines`]: each with its name, whether it is of an object, and its own fields.
    fn summaries(&self) -> Vec<(String, bool, String)> {
        let lines = self.lines().into_iter();
        lines.map(|line| (line.event, line.fh_hash != 0, line.detail)).collect()
    }
}

fn event(name: &str, is_of_object: bool, detail: &str) -> (String, bool, String) {
    (name.to_owned(), is_of_object, detail.to_owned())
}

#[test]
fn refused_operations_of_version_4_are_traced() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let (file, _) = session.open(export, b"f");
    let follow = ["read", "write", "commit", "readdir"];
    let following = Following::new(&fixture, &follow, TraceRequest::default());
    let stateid = Stateid { seqid: 1, other: [7; 12] };
    let read = ReadArgs { stateid, offset: 0, count: 100 };
    let write = WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: b"data" };
    let commit = CommitArgs { offset: 0, count: 0 };
    let listing = ReaddirArgs {
        cookie: 1,
        verifier: Verifier([0; 8]),
        dir_bytes: 4096,
        bytes_max: 4096,
        wanted: Bitmap::of(&[]),
    };
    let at_file = || Operations::new().at(file);
    let cases = [
        (
            at_file().op(OperationCode::Read, &read),
            ("read_start", "read_done"),
            true,
            Status::BadStateid,
        ),
        (
            at_file().op(OperationCode::Write, &write),
            ("write_start", "write_done"),
            true,
            Status::BadStateid,
        ),
        (
            Operations::new().root().op(OperationCode::Read, &read),
            ("read_start", "read_done"),
            true,
            Status::Isdir,
        ),
        (
            Operations::new().root().op(OperationCode::Commit, &commit),
            ("commit_start", "commit_done"),
            true,
            Status::Isdir,
        ),
        (
            Operations::new().op(OperationCode::Commit, &commit),
            ("commit_start", "commit_done"),
            false,
            Status::Nofilehandle,
        ),
        (
            Operations::new().at(export).op(OperationCode::Readdir, &listing),
            ("readdir_enter", "readdir_exit"),
            true,
            Status::BadCookie,
        ),
    ];
    for (operations, (start, done), is_of_object, status) in cases {
        assert_eq!(session.call(&operations).status, Err(status), "{start}");
        let end = format!("status={} count=0", status.name());
        let expected = [event(start, is_of_object, ""), event(done, is_of_object, &end)];
        assert_eq!(following.summaries(), expected);
    }
}

#[test]
fn a_repeated_compound_is_counted_and_recorded_as_replayed() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    session.cache_this = true;
    let call = Operations::new().at(export).getfh();
    session.ok(&call);
    let following = Following::new(&fixture, &["call_done"], TraceRequest::default());
    let repeated = session.sequenced(&call);
    let replays = fixture.counter(Counter::Replays);
    assert_eq!(compound(&mut session.client, 1, &repeated).status, Ok(()));
    assert_eq!(fixture.counter(Counter::Replays), replays + 1);
    let [line] = &following.lines()[..] else { panic!("one call") };
    assert!(line.detail.contains(" status=replayed "), "{line}");
    let last = fixture.server().monitor().requests().pop().unwrap();
    assert_eq!(last.status.as_deref(), Some("replayed"));
}

#[test]
fn strangers_have_no_metrics_of_their_own() {
    let admitting = format!("{TRUSTING}\n[[export.client]]\nhosts = [\"127.0.0.1\"]");
    let fixture = Fixture::with(&admitting);
    let (_client, _) = fixture.mounted();
    let mut stranger = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), fixture.address());
    stranger.null();
    let metrics = fixture.server().monitor().metrics();
    let connections: Vec<_> =
        metrics.lines().filter(|line| line.starts_with("spillway_client_connections{")).collect();
    let expected = ["client=\"127.0.0.1\"} 1", "client=\"others\"} 1"];
    assert_eq!(
        connections,
        expected.map(|labels| format!("spillway_client_connections{{{labels}"))
    );
}

#[test]
fn the_past_of_a_removed_export_is_no_new_work_on_none() {
    const B: &str = "[[export]]\npath = \"$DIR/b\"\nname = \"/b\"\nsquash = \"none\"\n";
    let fixture = Fixture::prepared(&format!("{TRUSTING}\n{B}"), |dir| {
        std::fs::create_dir(dir.join("b")).unwrap();
    });
    let mut client = fixture.client();
    let b = client.mnt("/b");
    let root = client.mnt("/export");
    (0..1000).for_each(|_| assert!(client.getattr(b).is_ok()));
    let of_none = |sample: &Sample| {
        let none = sample.exports.iter().find(|export| export.name.is_none()).unwrap();
        let calls = none.operations.iter().filter(|operation| operation.name == "GETATTR");
        calls.map(|operation| operation.calls).sum::<u64>()
    };
    let before = fixture.server().monitor().sample();
    assert_eq!(fixture.reload(TRUSTING), "removed /b");
    assert_eq!(client.getattr(b), Err(proto::nfs3::Status::Stale));
    client.getattr(root).unwrap();
    // The counts of `/b` move when the server drops its root.
    assert!(eventually(|| !is_open_below(&fixture.path("b"))));
    let after = fixture.server().monitor().sample().since(&before);
    assert_eq!(of_none(&after), 1, "the one that is stale");
}

#[test]
fn a_file_is_followed_through_each_export_that_contains_it() {
    let inner = "\n[[export]]\npath = \"$DIR/export/inner\"\nname = \"/inner\"\nsync = false\n";
    let config = format!("{TRUSTING}{inner}");
    let fixture = Fixture::prepared(&config, |dir| {
        std::fs::create_dir(dir.join("export/inner")).unwrap();
        std::fs::write(dir.join("export/inner/f"), "data").unwrap();
    });
    let (mut client, outer) = fixture.mounted();
    let inner = client.find(outer, "inner");
    let through_outer = client.find(inner, "f");
    let inner = client.mnt("/inner");
    let through_inner = client.find(inner, "f");
    assert_ne!(through_outer, through_inner);
    let path = fixture.exported("inner/f").to_str().unwrap().to_owned();
    let reads = |export: Option<&str>| {
        let export = export.map(str::to_owned);
        let request = TraceRequest { file: Some(path.clone()), export, ..TraceRequest::default() };
        Following::new(&fixture, &["read_done"], request)
    };
    let (both, by_outer, by_inner) = (reads(None), reads(Some("/export")), reads(Some("/inner")));
    client.read(through_outer, 0, 4).unwrap();
    client.read(through_inner, 0, 4).unwrap();
    let exports = |following: &Following| {
        let lines = following.lines().into_iter();
        lines.map(|line| line.export.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(exports(&both), ["/export", "/inner"]);
    assert_eq!(exports(&by_outer), ["/export"]);
    assert_eq!(exports(&by_inner), ["/inner"]);
}

#[test]
fn calls_that_are_refused_by_their_header_are_recorded_and_traced() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let call = |xid: u32, rpc_version: u32, flavor: u32, credential: &[u8]| {
        let mut w = Writer::new();
        let target = [proto::nfs3::PROGRAM, proto::nfs3::VERSION, 0];
        [&[xid, 0, rpc_version], &target[..], &[flavor]].concat().iter().for_each(|x| w.u32(*x));
        w.opaque(credential);
        w.u32(0);
        w.opaque(&[]);
        w.into_vec()
    };
    client.null();
    let sent_bytes = || {
        let clients = fixture.server().monitor().sample().clients;
        clients.iter().map(|client| client.sent_bytes).sum::<u64>()
    };
    let (mut sent, following) =
        (sent_bytes(), Following::new(&fixture, &["call"], TraceRequest::default()));
    // Another version of RPC, and an AUTH_SYS credential that is empty.
    for (xid, call) in [(71, call(71, 3, 0, &[])), (72, call(72, 2, 1, &[]))] {
        client.send_record(&call);
        let reply = client.receive_record().unwrap();
        let ends: Vec<_> = following.lines().into_iter().map(|l| (l.event, l.detail)).collect();
        assert_eq!(ends.len(), 2, "{ends:?}");
        assert_eq!((&*ends[0].0, &*ends[1].0), ("call_start", "call_done"));
        assert!(ends[1].1.contains("status=denied"), "{ends:?}");
        let last = fixture.server().monitor().requests().pop().unwrap();
        assert_eq!((last.xid, last.status.as_deref()), (xid, Some("denied")));
        // The mark of the record is part of it.
        sent += reply.len() as u64 + 4;
        assert_eq!(sent_bytes(), sent);
    }
}
