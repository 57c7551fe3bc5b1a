//! Loads of versions 4.1 and 4.2.

use proto::nfs4::{
    CompoundHead, CompoundResult, NFS4_OK, OperationCode, SequenceArgs, SequenceOk, SlotId, Status,
    encode_result, encode_success, next_operation,
};
use proto::oncrpc;

use super::*;
use crate::load::call::PUT_OFF_PAUSE;

const VERSIONS: [Version; 2] = [Version::V4_1, Version::V4_2];

impl Real {
    fn service_in(&self, version: Version) -> Service {
        Service { version, path: b"/data".to_vec(), ..self.service.clone() }
    }
}

#[test]
fn loads_of_all_patterns_on_the_null_server() {
    let service = Service { version: Version::V4_2, path: b"/any/path".to_vec(), ..null() };
    let random = Pattern::Random { units: 70, seed: 1 };
    for pattern in [Pattern::EasySequential, Pattern::HardInterleaved, random] {
        for io_bytes in [1, 4096, 47_001, 1 << 20] {
            let mut files = null_files(2);
            let write = write_load(pattern, &[70, 30], io_bytes);
            assert_done(&put(&write, &service, &mut files), 100, io_bytes);
            let read = read_load(pattern, &[70, 30], io_bytes);
            assert_done(&put(&read, &service, &mut null_files(2)), 100, io_bytes);
        }
    }
}

#[test]
fn files_are_those_of_version_3_and_the_server_counts_the_same_calls() {
    for (version, io_bytes) in VERSIONS.into_iter().zip([4096, 47_001]) {
        let real = Real::start();
        let service = real.service_in(version);
        let mut files = real.create(3);
        let write = write_load(Pattern::EasySequential, &[9, 5, 1], io_bytes);
        let outcome = put(&write, &service, &mut files);
        assert_done(&outcome, 15, io_bytes);
        assert_eq!(outcome.put_off, 0);
        assert!(outcome.commit_time > Duration::ZERO);
        assert_eq!(real.counter("write_bytes"), outcome.bytes);
        assert_eq!(real.counter("writes_cached_by_mode"), 15);
        assert_eq!(real.counter("commits"), 3);
        for (number, operations) in [(0, 9), (1, 5), (2, 1)] {
            let units = (0..operations).flat_map(|index| unit(number, index, 0, io_bytes));
            let expected: Vec<_> = units.copied().collect();
            assert!(std::fs::read(real.path(number)).unwrap() == expected, "file {number}");
        }
        let read = read_load(Pattern::EasySequential, &[9, 5, 1], io_bytes);
        let outcome = put(&read, &service, &mut files);
        assert_done(&outcome, 15, io_bytes);
        assert_eq!(outcome.verified_bytes, outcome.bytes);
        assert_eq!(real.counter("read_bytes"), outcome.bytes);

        let file = OpenOptions::new().write(true).open(real.path(0)).unwrap();
        file.write_all_at(&[unit(0, 0, 0, io_bytes)[7] ^ 1], 7).unwrap();
        let outcome = verify(&service, &mut files);
        assert_eq!((outcome.wrong_bytes, outcome.first_wrong), (1, Some((0, 7))));
        // A client is left neither with state nor without.
        for held in ["nfs4_clients", "nfs4_sessions", "nfs4_opens"] {
            assert_eq!(real.counter(held), 0, "{held}");
        }
        real.stop();
    }
}

#[test]
fn shared_files_and_random_places_are_compared() {
    let real = Real::start();
    let service = real.service_in(Version::V4_2);
    let mut files = real.create(2);
    let hard = write_load(Pattern::HardInterleaved, &[8; 3], 47_008);
    assert_done(&put(&hard, &service, &mut files), 24, 47_008);
    let read = read_load(Pattern::HardInterleaved, &[8; 3], 47_008);
    assert_done(&put(&read, &real.service, &mut files), 24, 47_008);
    let (mut files, random) = (real.create(2), Pattern::Random { units: 40, seed: 7 });
    put(&write_load(Pattern::EasySequential, &[4; 2], 40_960), &service, &mut files);
    let overwrite = Load { generation: 1, ..write_load(random, &[25, 10], 4096) };
    assert_done(&put(&overwrite, &service, &mut files), 35, 4096);
    let outcome = verify(&service, &mut files);
    assert_eq!((outcome.verified_bytes, outcome.wrong_bytes), (2 * 4 * 40_960, 0));
    real.stop();
}

#[test]
fn sessions_that_cannot_be_are_refused() {
    let real = Real::start();
    let mut files = real.create(1);
    let read = read_load(Pattern::EasySequential, &[1], 4096);
    let wide = Load { depth: 200, ..read.clone() };
    let service = real.service_in(Version::V4_2);
    let elsewhere = Service { path: b"/data/nowhere".to_vec(), ..service.clone() };
    for (load, service, words) in [
        (&wide, &service, "the server grants 64 slots, not 200"),
        (&read, &elsewhere, "LOOKUP: NFS4ERR_NOENT"),
    ] {
        let error = run(pool(), load, service, &mut files, &mut Watch::none());
        let text = error.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
    real.stop();
}

/// The answer of a server that does not pass a call on.
#[derive(Clone, Copy)]
enum Instead {
    /// SEQUENCE fails, so the slot is not used.
    Sequence(Status),
    /// PUTFH fails, behind SEQUENCE.
    Putfh(Status),
    /// SEQUENCE names another slot.
    OtherSlot,
}

/// The null server behind one that answers calls itself whose number in the connection is in
/// `script`, and holds the client to the sequence of its slot.
fn interrupted(script: &'static [(u32, Instead)]) -> Service {
    let upstream = null().address;
    let service = misbehaving(move |mut client| {
        let mut upstream = TcpStream::connect(upstream).unwrap();
        let (mut calls, mut next) = (0, 1);
        while let Some(call) = record::read_blocking(&mut client, RECORD_BYTES_MAX).unwrap() {
            let mut reader = Reader::new(&call);
            let header = decode_call(&mut reader).unwrap();
            let instead = script.iter().find(|(number, _)| *number == calls);
            calls += 1;
            let sequence = sequence(&mut reader);
            if let Some(args) = sequence {
                assert_eq!((args.sequence.0, args.slot.0), (next, 0), "call {}", calls - 1);
                next += u32::from(!matches!(instead, Some((_, Instead::Sequence(_)))));
            }
            let reply = match (instead, sequence) {
                (Some((_, instead)), Some(args)) => {
                    record::encode(|w| answer_instead(w, header.xid, *instead, &args))
                }
                _ => record::encode(|w| w.array(&forwarded(&mut upstream, &call))),
            };
            client.write_all(&reply).unwrap();
        }
    });
    Service { version: Version::V4_2, ..service }
}

/// The reply of another server to a call.
fn forwarded(to: &mut TcpStream, call: &[u8]) -> Vec<u8> {
    to.write_all(&record::encode(|w| w.array(call))).unwrap();
    record::read_blocking(to, RECORD_BYTES_MAX).unwrap().unwrap()
}

fn sequence(r: &mut Reader<'_>) -> Option<SequenceArgs> {
    CompoundHead::decode(r).unwrap();
    let is_sequence = next_operation(r).unwrap() == Ok(OperationCode::Sequence);
    is_sequence.then(|| SequenceArgs::decode(r).unwrap())
}

fn answer_instead(w: &mut Writer, xid: u32, instead: Instead, args: &SequenceArgs) {
    let mut ok = SequenceOk {
        session: args.session,
        sequence: args.sequence,
        slot: args.slot,
        highest_slot: args.highest_slot,
        target_highest_slot: args.highest_slot,
        status_flags: 0,
    };
    oncrpc::encode_success(w, xid);
    let mut head = |status: u32, results| CompoundResult { status, tag: b"", results }.encode(w);
    match instead {
        Instead::Sequence(status) => {
            head(status.code(), 1);
            encode_result::<()>(w, OperationCode::Sequence, &Err(status));
        }
        Instead::Putfh(status) => {
            head(status.code(), 2);
            encode_success(w, OperationCode::Sequence);
            ok.encode(w);
            encode_result::<()>(w, OperationCode::Putfh, &Err(status));
        }
        Instead::OtherSlot => {
            head(NFS4_OK, 1);
            ok.slot = SlotId(1);
            encode_success(w, OperationCode::Sequence);
            ok.encode(w);
            encode_result::<()>(w, OperationCode::Putfh, &Err(Status::Stale));
        }
    }
}

/// EXCHANGE_ID, CREATE_SESSION, RECLAIM_COMPLETE, PUTROOTFH, OPEN.
const SETUP_CALLS: u32 = 5;

#[test]
fn calls_that_the_server_puts_off_are_made_again_and_counted() {
    let service = interrupted(&[
        (2, Instead::Sequence(Status::Delay)),
        (SETUP_CALLS + 2, Instead::Sequence(Status::Delay)),
        (SETUP_CALLS + 3, Instead::Putfh(Status::Grace)),
        (SETUP_CALLS + 6, Instead::Putfh(Status::Delay)),
    ]);
    let load = Load { depth: 1, ..write_load(Pattern::EasySequential, &[3], 20_000) };
    let outcome = put(&load, &service, &mut null_files(1));
    // The first was before the load; of the others two were WRITEs and one COMMIT.
    assert_done(&outcome, 3, 20_000);
    assert_eq!(outcome.put_off, 3);
}

#[test]
fn refusals_and_answers_for_other_slots_are_errors() {
    for (instead, errors, words) in [
        (Instead::Putfh(Status::Stale), 1, "READ 0, file 0 at 0: NFS4ERR_STALE"),
        (Instead::OtherSlot, 1, "the server answers for a slot that was not used"),
    ] {
        let script: &'static [_] = Box::leak(Box::new([(SETUP_CALLS, instead)]));
        let load = Load { depth: 1, ..read_load(Pattern::EasySequential, &[3], 4096) };
        let outcome = put(&load, &interrupted(script), &mut null_files(1));
        check_errors(&outcome, errors, words);
    }
}

/// The highest slot that the server of [`lowering`] wants to be used from its reply to the call
/// with this number on.
fn target(call: usize) -> u32 {
    if (20..40).contains(&call) { 1 } else { 3 }
}

/// The null server behind one with a [`target`], which notes the slot and the highest slot of each
/// call of a session and puts one of eight off. None is put off any more when the target rises, so
/// that no slot is kept for one.
fn lowering(calls: Arc<Mutex<Vec<(u32, u32)>>>) -> Service {
    let upstream = null().address;
    let service = misbehaving(move |mut client| {
        let mut upstream = TcpStream::connect(upstream).unwrap();
        while let Some(call) = record::read_blocking(&mut client, RECORD_BYTES_MAX).unwrap() {
            let mut reader = Reader::new(&call);
            let header = decode_call(&mut reader).unwrap();
            let mut reply = forwarded(&mut upstream, &call);
            if let Some(args) = sequence(&mut reader) {
                let mut calls = calls.lock().unwrap();
                if calls.len() == 40 {
                    thread::sleep(PUT_OFF_PAUSE);
                }
                if calls.len() % 8 == 7 && calls.len() < 32 {
                    let mut w = Writer::new();
                    answer_instead(&mut w, header.xid, Instead::Putfh(Status::Delay), &args);
                    reply = w.into_vec();
                }
                reply[TARGET_AT..][..4].copy_from_slice(&target(calls.len()).to_be_bytes());
                calls.push((args.slot.0, args.highest_slot.0));
            }
            client.write_all(&record::encode(|w| w.array(&reply))).unwrap();
        }
    });
    Service { version: Version::V4_2, ..service }
}

/// Where a reply has its target.
const TARGET_AT: usize = 72;

#[test]
fn no_call_is_made_on_a_slot_that_the_server_has_given_up() {
    let calls = Arc::default();
    let service = lowering(Arc::clone(&calls));
    let load = Load { depth: 4, ..read_load(Pattern::EasySequential, &[60], 4096) };
    let outcome = put(&load, &service, &mut null_files(1));
    assert_done(&outcome, 60, 4096);
    assert!(outcome.put_off > 2, "{}", outcome.put_off);
    let calls = calls.lock().unwrap();
    for (number, (slot, highest)) in calls.iter().enumerate().skip(4) {
        // The reply to the fourth call before it has come, and perhaps later ones.
        let targets = (number - 4..number).map(target);
        assert!(*slot <= targets.max().unwrap(), "call {number}: {slot}");
        let highest_max = if (28..40).contains(&number) { 1 } else { 3 };
        assert!((*slot..=highest_max).contains(highest), "call {number}: {slot} {highest}");
    }
    assert!(calls[44..].iter().any(|(slot, _)| *slot == 3), "the slots are used again: {calls:?}");
}
