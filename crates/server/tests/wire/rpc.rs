//! RFC 5531: headers, refusals, records, and many calls at once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use proto::mount3;
use proto::nfs3::{self, *};
use proto::oncrpc::{AcceptStat, AuthStat, RejectStat, ReplyHeader};
use proto::xdr::{Writer, decode_all};
use spillway_server::counters::Counter;

use crate::client::{Client, encoded, in_fragments, split};
use crate::fixture::Fixture;

const NULL: (u32, u32, u32) = (nfs3::PROGRAM, nfs3::VERSION, 0);

fn accepted(client: &mut Client, target: (u32, u32, u32), args: &[u8]) -> AcceptStat {
    match client.exchange(target, args) {
        (ReplyHeader::Accepted { stat, .. }, _) => stat,
        (denied @ ReplyHeader::Denied(..), _) => panic!("{denied:?}"),
    }
}

/// A call of NULL whose credential and verifier are given byte for byte.
fn with_auth(xid: u32, flavor: u32, body: &[u8], verifier: &[u8]) -> Vec<u8> {
    null_with_auth((nfs3::PROGRAM, nfs3::VERSION), xid, flavor, body, verifier)
}

/// As [`with_auth`], of any program.
fn null_with_auth(
    (program, version): (u32, u32),
    xid: u32,
    flavor: u32,
    body: &[u8],
    verifier: &[u8],
) -> Vec<u8> {
    let mut w = Writer::new();
    for word in [xid, 0, 2, program, version, 0, flavor] {
        w.u32(word);
    }
    w.opaque(body);
    w.u32(0);
    w.opaque(verifier);
    w.into_vec()
}

fn denial(client: &mut Client, record: &[u8]) -> RejectStat {
    client.send_record(record);
    match split(&client.receive_record().expect("a refusal is an answer")) {
        (ReplyHeader::Denied(_, stat), rest) => {
            assert!(rest.is_empty());
            stat
        }
        (header, _) => panic!("{header:?}"),
    }
}

#[test]
fn null_answers_auth_none_and_auth_sys() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.null();
    client.ids = None;
    client.null();
    let mount = (mount3::PROGRAM, mount3::VERSION, 0);
    assert_eq!(accepted(&mut client, mount, &[]), AcceptStat::Success);
}

#[test]
fn unknown_programs_versions_and_procedures_are_distinguished() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mismatch = AcceptStat::ProgMismatch { low: 3, high: 3 };
    let of_nfs = AcceptStat::ProgMismatch { low: 3, high: 4 };
    let cases = [
        ((100_000, 2, 0), AcceptStat::ProgUnavail),
        ((0, 0, 0), AcceptStat::ProgUnavail),
        ((nfs3::PROGRAM, 2, 0), of_nfs),
        ((nfs3::PROGRAM, 5, 0), of_nfs),
        ((nfs3::PROGRAM, u32::MAX, 1), of_nfs),
        ((mount3::PROGRAM, 1, 0), mismatch),
        ((mount3::PROGRAM, 4, 1), mismatch),
        ((nfs3::PROGRAM, 3, 22), AcceptStat::ProcUnavail),
        ((nfs3::PROGRAM, 3, u32::MAX), AcceptStat::ProcUnavail),
        ((mount3::PROGRAM, 3, 6), AcceptStat::ProcUnavail),
    ];
    for (target, stat) in cases {
        assert_eq!(accepted(&mut client, target, &[]), stat, "{target:?}");
    }
    client.null();
}

#[test]
fn calls_of_other_versions_are_refused_whatever_their_procedure_and_arguments() {
    let fixture = Fixture::with_settings("nfs_versions = [\"3\"]");
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let stable = StableHow::FileSync;
    let data = vec![7; 70_000];
    let write = encoded(&WriteArgs { file, offset: 0, count: 70_000, stable, data: &data });
    let getattr = encoded(&GetattrArgs { object: file });
    let mismatch = AcceptStat::ProgMismatch { low: 3, high: 3 };
    let before = fixture.counter(Counter::PayloadBytes);
    for version in [2, 4] {
        for procedure in Procedure::ALL {
            let target = (nfs3::PROGRAM, version, procedure.code());
            for args in [&write, &getattr] {
                let stat = accepted(&mut client, target, args);
                assert_eq!(stat, mismatch, "version {version} {}", procedure.name());
            }
        }
    }
    assert_eq!(fixture.counter(Counter::PayloadBytes), before, "nothing is received as data");
    assert_eq!(client.getattr(file).unwrap().size, 0);
}

#[test]
fn arguments_must_be_whole_and_nothing_may_follow() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    for procedure in Procedure::ALL.iter().filter(|p| **p != Procedure::Null) {
        let target = (nfs3::PROGRAM, nfs3::VERSION, procedure.code());
        let stat = accepted(&mut client, target, &[]);
        assert_eq!(stat, AcceptStat::GarbageArgs, "{} without arguments", procedure.name());
        let stat = accepted(&mut client, target, &[0xff; 64]);
        assert_eq!(stat, AcceptStat::GarbageArgs, "{} with nonsense", procedure.name());
    }
    assert_eq!(accepted(&mut client, NULL, &[0; 4]), AcceptStat::GarbageArgs);
    let getattr = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Getattr.code());
    let mut args = encoded(&GetattrArgs { object: root });
    assert_eq!(accepted(&mut client, getattr, &args), AcceptStat::Success);
    args.extend([0; 4]);
    assert_eq!(accepted(&mut client, getattr, &args), AcceptStat::GarbageArgs);
    args.extend([0; 40_000]);
    assert_eq!(accepted(&mut client, getattr, &args), AcceptStat::GarbageArgs);
    client.null();
}

#[test]
fn a_write_must_bring_the_data_that_it_announces() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let stable = StableHow::FileSync;
    let args = encoded(&WriteArgs { file, offset: 0, count: 10, stable, data: &[7; 10] });
    // Ten bytes are padded to twelve; missing data is garbage, and so is missing padding.
    for missing in [1, 2, 4, 12] {
        let cut = &args[..args.len() - missing];
        let stat = accepted(&mut client, write, cut);
        assert_eq!(stat, AcceptStat::GarbageArgs, "{missing} bytes are missing");
    }
    let longer = [&args[..], &[0; 4]].concat();
    assert_eq!(accepted(&mut client, write, &longer), AcceptStat::GarbageArgs);
    assert_eq!(client.getattr(file).unwrap().size, 0, "nothing of these was written");
    assert_eq!(accepted(&mut client, write, &args), AcceptStat::Success);
    assert_eq!(client.read(file, 0, 100).unwrap().data, [7; 10]);
}

#[test]
fn a_write_of_more_than_the_server_takes_does_no_harm() {
    let fixture = Fixture::with_settings("max_transfer = \"64KiB\"");
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    assert_eq!(client.fsinfo(root).unwrap().wtmax, 65_536);
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let stable = StableHow::FileSync;
    let data = vec![7; 70_000];
    let args = encoded(&WriteArgs { file, offset: 0, count: 70_000, stable, data: &data });
    let (header, results) = client.exchange(write, &args);
    assert_eq!(header, ReplyHeader::Accepted { xid: header.xid(), stat: AcceptStat::Success });
    let failure = decode_all::<WriteReply>(&results).unwrap().unwrap_err();
    assert_eq!(failure.status, Status::Inval);
    assert_eq!(client.getattr(file).unwrap().size, 0);
    assert_eq!(crate::client::ok(client.write(file, 0, &data[..65_536])).count, 65_536);
}

#[test]
fn another_rpc_version_is_refused_with_the_supported_one() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for version in [0, 1, 3, u32::MAX] {
        let mut call = client.encode(9, NULL, &[]);
        call[8..12].copy_from_slice(&version.to_be_bytes());
        let stat = denial(&mut client, &call);
        assert_eq!(stat, RejectStat::RpcMismatch { low: 2, high: 2 }, "version {version}");
    }
    client.null();
}

#[test]
fn bad_credentials_are_refused_and_the_connection_stays_open() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let seventeen_groups = {
        let mut w = Writer::new();
        w.u32(0);
        w.opaque(b"host");
        w.u32(0);
        w.u32(0);
        w.u32(17);
        (0..17).for_each(|group| w.u32(group));
        w.into_vec()
    };
    let long_machine_name = {
        let mut w = Writer::new();
        w.u32(0);
        w.opaque(&[b'h'; 256]);
        (0..3).for_each(|_| w.u32(0));
        w.into_vec()
    };
    let bad_credential = RejectStat::AuthError(AuthStat::BadCred);
    let cases = [
        (with_auth(1, 1, &[0; 404], &[]), bad_credential),
        (with_auth(2, 1, &[0; 401], &[]), bad_credential),
        (with_auth(3, 1, &seventeen_groups, &[]), bad_credential),
        (with_auth(4, 1, &long_machine_name, &[]), bad_credential),
        (with_auth(5, 1, &[], &[]), bad_credential),
        (with_auth(6, 0, &[0; 4], &[]), bad_credential),
        (with_auth(7, 0, &[], &[0; 404]), RejectStat::AuthError(AuthStat::BadVerf)),
        (with_auth(8, 6, &[0; 20], &[]), RejectStat::AuthError(AuthStat::RejectedCred)),
        (with_auth(9, 77, &[], &[]), RejectStat::AuthError(AuthStat::RejectedCred)),
    ];
    for (call, stat) in cases {
        assert_eq!(denial(&mut client, &call), stat);
    }
    client.null();
}

#[test]
fn null_of_every_program_is_denied_to_flavors_that_are_not_interpreted() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let rejected = RejectStat::AuthError(AuthStat::RejectedCred);
    for target in [(nfs3::PROGRAM, 3), (nfs3::PROGRAM, 4), (mount3::PROGRAM, 3)] {
        let call = null_with_auth(target, 1, 6, &[0; 20], &[]);
        assert_eq!(denial(&mut client, &call), rejected, "{target:?}");
    }
    client.null();
}

#[test]
fn a_message_that_is_not_a_call_closes_the_connection() {
    let fixture = Fixture::new();
    let reply = {
        let mut call = fixture.client().encode(1, NULL, &[]);
        call[4..8].copy_from_slice(&1u32.to_be_bytes());
        call
    };
    for record in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 8], &[], &reply] {
        let mut client = fixture.client();
        client.send_record(record);
        assert!(client.is_closed_by_server(), "{record:?}");
    }
    // A fragment of no bytes that is not the last could go on forever.
    let mut client = fixture.client();
    client.send_bytes(&[0; 4]);
    assert!(client.is_closed_by_server());
    let mut client = fixture.client();
    client.send_bytes(&[0xff; 4]);
    assert!(client.is_closed_by_server(), "a record of 2 GiB");
    fixture.client().null();
}

#[test]
fn a_record_may_come_in_any_fragments() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let data: Vec<u8> = (0..251).collect();
    let stable = StableHow::Unstable;
    let args = encoded(&WriteArgs { file, offset: 3, count: 251, stable, data: &data });
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let call = client.encode(5, write, &args);
    let every: Vec<usize> = (1..call.len()).collect();
    let last_empty = vec![call.len()];
    for cuts in [every, vec![1], vec![call.len() - 1], last_empty] {
        client.send_bytes(&in_fragments(&call, &cuts));
        let (header, results) = split(&client.receive_record().unwrap());
        assert_eq!(header, ReplyHeader::Accepted { xid: 5, stat: AcceptStat::Success });
        assert_eq!(decode_all::<WriteReply>(&results).unwrap().unwrap().count, 251);
    }
    assert_eq!(client.read(file, 3, 1000).unwrap().data, data);
}

#[test]
fn pipelined_calls_are_all_answered_once() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let mut bytes = Vec::new();
    let mut expected = HashSet::new();
    for i in 0..500 {
        let args = match i % 3 {
            0 => encoded(&GetattrArgs { object: root }),
            1 => encoded(&LookupArgs { what: DirOp { dir: root, name: b"nothing" } }),
            _ => encoded(&ReadArgs { file: root, offset: 0, count: 10 }),
        };
        let procedure = [Procedure::Getattr, Procedure::Lookup, Procedure::Read][i % 3];
        let xid = client.xid();
        expected.insert(xid);
        let target = (nfs3::PROGRAM, nfs3::VERSION, procedure.code());
        bytes.extend(in_fragments(&client.encode(xid, target, &args), &[]));
    }
    client.send_bytes(&bytes);
    while !expected.is_empty() {
        let (header, _) = split(&client.receive_record().unwrap());
        assert!(expected.remove(&header.xid()), "{header:?} was not asked for");
    }
    client.null();
}

#[test]
fn a_slow_call_delays_no_fast_one() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    // On a busy machine the disk may be quicker than this thread and the server's. A server that
    // answers in the order of the calls never lets any of them pass.
    assert!((0..50).any(|_| fast_calls_pass_a_slow_one(&mut client, file)));
}

/// Sends a WRITE that has to be flushed, and five calls that are answered from memory behind it.
fn fast_calls_pass_a_slow_one(client: &mut Client, file: FileHandle) -> bool {
    let data = vec![1; 1 << 20];
    let stable = StableHow::FileSync;
    let args = encoded(&WriteArgs { file, offset: 0, count: 1 << 20, stable, data: &data });
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let slow = client.xid();
    let mut bytes = in_fragments(&client.encode(slow, write, &args), &[]);
    let fast: HashSet<u32> = (0..5).map(|_| client.xid()).collect();
    for xid in &fast {
        bytes.extend(in_fragments(&client.encode(*xid, NULL, &[]), &[]));
    }
    client.send_bytes(&bytes);
    let order: Vec<u32> =
        (0..6).map(|_| split(&client.receive_record().unwrap()).0.xid()).collect();
    assert!(order.iter().all(|xid| *xid == slow || fast.contains(xid)), "{order:?}");
    order.last() == Some(&slow)
}

#[test]
fn a_half_closed_connection_still_gets_its_replies() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let data = vec![1; 512 * 1024];
    let count = u32::try_from(data.len()).unwrap();
    let stable = StableHow::FileSync;
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    for i in 0..8 {
        let offset = u64::from(count) * i;
        let args = encoded(&WriteArgs { file, offset, count, stable, data: &data });
        let xid = client.xid();
        let call = client.encode(xid, write, &args);
        client.send_record(&call);
    }
    client.half_close();
    for _ in 0..8 {
        let (_, results) = split(&client.receive_record().expect("all are answered"));
        assert_eq!(decode_all::<WriteReply>(&results).unwrap().unwrap().count, count);
    }
    assert!(client.is_closed_by_server());
}

#[test]
fn idle_connection_is_closed_as_no_fault_and_a_busy_one_is_not() {
    let fixture = Fixture::with_settings("idle_timeout = \"1s\"");
    let attempts = 10;
    for _ in 0..attempts {
        let (mut idle, mut busy) = (fixture.client(), fixture.client());
        let start = Instant::now();
        let mut called = start;
        let mut pause_max = Duration::ZERO;
        while start.elapsed() < Duration::from_millis(1500) {
            if !busy.is_answered() {
                break;
            }
            pause_max = pause_max.max(called.elapsed());
            called = Instant::now();
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(idle.is_closed_by_server());
        assert_eq!(fixture.counter(Counter::BrokenConnections), 0);
        if busy.is_answered() {
            return;
        }
        // A test that was held up for that long was as silent as the other connection.
        pause_max = pause_max.max(called.elapsed());
        assert!(pause_max > Duration::from_millis(900), "closed after a pause of {pause_max:?}");
    }
    panic!("the test was held up {attempts} times");
}
