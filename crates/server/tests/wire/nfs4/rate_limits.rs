//! The limits of exports hold for each operation of a COMPOUND.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use proto::nfs4::*;
use spillway_server::counters::Counter;

use super::client::{CHANNEL, Operations, Session};
use crate::client::Client;
use crate::fixture::Fixture;

const MIB: u32 = 1 << 20;
/// The burst that a limit permits at once, and some more.
const BURST: Duration = Duration::from_millis(60);

/// The exports `/first` and `/second`, with these limits.
fn exports(first: &str, second: &str) -> Fixture {
    let export = "[[export]]\npath = \"$DIR/export\"\nsquash = \"none\"\nname =";
    let fixture = Fixture::with(&format!(
        "nfs_versions = [\"4.1\"]\n{export} \"/first\"\n{first}\n{export} \"/second\"\n{second}\n"
    ));
    std::fs::write(fixture.exported("f"), vec![1; MIB as usize]).unwrap();
    fixture
}

/// The handle of a file of an export, found without a use of the export's limits that matters.
fn file(session: &mut Session, export: &[u8]) -> FileHandle {
    let found = Operations::new().root().lookup(export).lookup(b"f").getfh();
    let ops = [OperationCode::Putrootfh, OperationCode::Lookup, OperationCode::Lookup];
    session.ok(&found).skip(&ops).handle()
}

/// READ of 1 MiB.
fn read(operations: Operations) -> Operations {
    let args = ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: MIB };
    operations.op(OperationCode::Read, &args)
}

/// The time that so many calls take.
fn time_of(calls: u32, session: &mut Session, operations: &Operations) -> Duration {
    let start = Instant::now();
    (0..calls).for_each(|_| drop(session.ok(operations)));
    start.elapsed()
}

/// A session from another address.
fn other_session(fixture: &Fixture) -> Session {
    let other = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), fixture.address());
    Session::over(other, b"another", 1, CHANNEL)
}

#[test]
fn reads_by_a_handle_are_limited() {
    let fixture = exports("bytes_per_sec = \"4MiB\"", "");
    let mut session = Session::new(&fixture);
    let reads = read(Operations::new().at(file(&mut session, b"first")));
    // The last one is not waited for.
    let elapsed = time_of(5, &mut session, &reads);
    assert!(elapsed + BURST >= Duration::from_secs(1), "{elapsed:?}");
}

#[test]
fn reads_of_files_that_are_looked_up_are_limited() {
    let fixture = exports("bytes_per_sec = \"4MiB\"", "");
    let mut session = Session::new(&fixture);
    let second = file(&mut session, b"second");
    let looked_up = |operations: Operations| read(operations.root().lookup(b"first").lookup(b"f"));
    // A GETATTR before does not hide which export the READ is of. What a call is charged is known
    // when it ends, so that the next one may have been received by then.
    let before = Operations::new().at(second).getattr(&[attribute::SIZE]);
    for reads in [looked_up(Operations::new()), looked_up(before)] {
        let elapsed = time_of(6, &mut session, &reads);
        assert!(elapsed + BURST >= Duration::from_secs(1), "{elapsed:?}");
    }
}

#[test]
fn an_operation_is_charged_to_the_export_that_it_works_on() {
    let fixture = exports("bytes_per_sec = \"512KiB\"", "bytes_per_sec = \"4MiB\"");
    let mut session = Session::new(&fixture);
    let (first, second) = (file(&mut session, b"first"), file(&mut session, b"second"));
    // Operations on the first one move few bytes.
    let reads = read(Operations::new().at(first).getattr(&[attribute::SIZE]).at(second));
    let elapsed = time_of(6, &mut session, &reads);
    assert!(elapsed + BURST >= Duration::from_secs(1), "{elapsed:?}");
    // 10 s, were they charged to the first.
    assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
}

#[test]
fn a_handle_without_work_on_it_is_not_charged() {
    let fixture = exports("calls_per_sec = 2", "");
    let mut session = Session::new(&fixture);
    let (first, second) = (file(&mut session, b"first"), file(&mut session, b"second"));
    let mut other = other_session(&fixture);
    let before = fixture.counter(Counter::LimitWaits);
    for _ in 0..20 {
        other.ok(&Operations::new().at(first).at(second).getattr(&[attribute::SIZE]));
    }
    assert_eq!(fixture.counter(Counter::LimitWaits), before);
    // Half a second passes before one of them on a busy machine.
    for _ in 0..3 {
        other.ok(&Operations::new().at(second).at(first).getattr(&[attribute::SIZE]));
    }
    let waits = fixture.counter(Counter::LimitWaits) - before;
    assert!((1..=2).contains(&waits), "{waits}");
}

#[test]
fn calls_on_the_directories_above_are_of_no_export_and_use_up_no_limit() {
    let fixture = exports("id = 0\ncalls_per_sec = 2", "");
    let mut session = Session::new(&fixture);
    let root = Operations::new().root().getfh();
    let root = session.ok(&root).skip(&[OperationCode::Putrootfh]).handle();
    let mut other = other_session(&fixture);
    for _ in 0..20 {
        other.ok(&Operations::new().at(root).getattr(&[attribute::TYPE]));
    }
    assert_eq!(fixture.counter(Counter::LimitWaits), 0);
    let requests = fixture.server().monitor().requests();
    assert!(requests.iter().filter(|request| request.fh_hash.is_some()).count() >= 20);
    let named = requests.iter().find(|request| request.export.is_some());
    assert!(named.is_none(), "{named:?}");
}

#[test]
fn a_forged_handle_uses_up_no_limit() {
    let fixture = exports("calls_per_sec = 2", "");
    let mut session = Session::new(&fixture);
    let first = file(&mut session, b"first");
    let mut forged = first.as_bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let forged = FileHandle::new(&forged).unwrap();
    let mut other = other_session(&fixture);
    let before = fixture.counter(Counter::LimitWaits);
    for _ in 0..20 {
        let done = other.call(&Operations::new().at(forged).getattr(&[attribute::SIZE]));
        assert_eq!(done.status, Err(Status::Stale));
    }
    assert_eq!(fixture.counter(Counter::LimitWaits), before);
}
