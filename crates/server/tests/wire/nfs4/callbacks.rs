//! Callbacks over the client's own connection.

use proto::nfs4::*;
use proto::oncrpc::{AcceptStat, Credential, ReplyHeader, decode_call};
use proto::xdr::{Decode, Encode, Reader, Writer};
use spillway_server::counters::Counter;

use super::client::{ALL_VERSIONS, Operations, Session, compound, open_args};
use crate::fixture::Fixture;

const OWNER: &[u8] = b"a waiting owner";

/// A client with a backchannel that waits for a lock of another.
struct Bed {
    fixture: Fixture,
    waiting: Session,
    holder: Session,
    file: FileHandle,
    /// The open of the one that waits.
    open: Stateid,
    /// The lock of the other.
    held: Stateid,
}

impl Bed {
    fn new() -> Self {
        let again = "[[export]]\npath = \"$DIR/export\"\nname = \"/again\"\nsquash = \"none\"";
        let fixture = Fixture::with(&format!("{ALL_VERSIONS}\n{again}"));
        let mut waiting = Session::of(&fixture, b"waits", 1);
        let mut holder = Session::of(&fixture, b"holds", 1);
        let export = waiting.export();
        // The first open is by another export, where the file has another handle.
        let mut found = holder.ok(&Operations::new().root().lookup(b"again").getfh());
        let again = found.skip(&[OperationCode::Putrootfh, OperationCode::Lookup]).handle();
        let (by_holder, opened) = open(&mut holder, again);
        assert_eq!(opened.flags & OPEN_RESULT_MAY_NOTIFY_LOCK, 0, "it has no backchannel");
        assert_eq!(bind(&mut waiting), ChannelDirection::Both);
        let (file, open) = open(&mut waiting, export);
        assert_ne!(open.flags & OPEN_RESULT_MAY_NOTIFY_LOCK, 0);
        assert_ne!(file, by_holder);
        let held = lock(&mut holder, by_holder, opened.stateid, b"h", LockType::Write).unwrap();
        let mut bed = Self { fixture, waiting, holder, file, open: open.stateid, held };
        assert!(bed.wait().is_err(), "it is locked");
        bed
    }

    fn wait(&mut self) -> Reply<Stateid> {
        lock(&mut self.waiting, self.file, self.open, OWNER, LockType::WriteBlocking)
    }

    fn unlock(&mut self) {
        let range = LockRange { offset: 0, length: 10 };
        let args = LockuArgs { kind: LockType::Write, seqid: 0, stateid: self.held, range };
        let call = Operations::new().at(self.file).op(OperationCode::Locku, &args);
        self.holder.ok(&call);
    }

    /// Takes the lock that was free, gives it up, and waits for another of the holder.
    fn wait_again(&mut self) {
        let locked = self.wait().expect("it is free");
        let close = CloseArgs { seqid: 0, stateid: self.open };
        self.waiting.ok(&Operations::new().at(self.file).op(OperationCode::Close, &close));
        assert_ne!(locked, self.held);
        let export = self.holder.export();
        let (file, opened) = open(&mut self.holder, export);
        self.held =
            lock(&mut self.holder, file, opened.stateid, b"again", LockType::Write).unwrap();
        self.open = open(&mut self.waiting, export).1.stateid;
        assert!(self.wait().is_err(), "it is locked");
    }

    /// Whether SEQUENCE reports that no connection is bound.
    fn has_path_down(&mut self) -> bool {
        let session = &mut self.waiting;
        session.sequence += 1;
        let call = session.sequenced(&Operations::new());
        let mut results = compound(&mut session.client, session.minor_version, &call);
        let done: SequenceOk = results.next(OperationCode::Sequence).unwrap();
        let down = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;
        assert!([0, down].contains(&done.status_flags), "{:#x}", done.status_flags);
        done.status_flags == down
    }

    /// Receives a callback, and checks it. Returns its transaction id.
    fn receive(&mut self, sequence: u32) -> u32 {
        let record = self.waiting.client.receive_record().expect("a callback");
        let mut r = Reader::new(&record);
        let header = decode_call(&mut r).unwrap();
        let target = (header.program, header.version, header.procedure);
        assert_eq!(target, (0x4000_0000, CALLBACK_VERSION, CB_COMPOUND));
        assert!(matches!(header.credential, Credential::Sys(_)), "{header:?}");
        let head = CallbackHead::decode(&mut r).unwrap();
        assert_eq!((head.minor_version, head.operations), (1, 2));
        assert_eq!(r.u32("operation"), Ok(CB_SEQUENCE));
        let args = CallbackSequenceArgs::decode(&mut r).unwrap();
        let slot = (args.session, args.sequence, args.slot);
        assert_eq!(slot, (self.waiting.id, SequenceId(sequence), SlotId(0)));
        assert_eq!(r.u32("operation"), Ok(CB_NOTIFY_LOCK));
        let notice = CallbackNotifyLockArgs::decode(&mut r).unwrap();
        assert_eq!((notice.object, notice.owner.owner), (self.file, OWNER));
        r.finish().unwrap();
        header.xid
    }

    fn answer(&mut self, xid: u32, status: u32, results: u32) {
        let mut w = Writer::new();
        ReplyHeader::Accepted { xid, stat: AcceptStat::Success }.encode(&mut w);
        CompoundResult { status, tag: b"", results }.encode(&mut w);
        self.waiting.client.send_record(w.as_slice());
    }
}

fn bind(session: &mut Session) -> ChannelDirection {
    let direction = ChannelDirection::Both;
    let args = BindConnToSession { session: session.id, direction, use_rdma: false };
    let call = Operations::new().op(OperationCode::BindConnToSession, &args);
    let mut results = compound(&mut session.client, 1, &call);
    let bound: BindConnToSession = results.next(OperationCode::BindConnToSession).unwrap();
    bound.direction
}

fn open(session: &mut Session, dir: FileHandle) -> (FileHandle, OpenOk) {
    let none = RawAttributes { bitmap: Bitmap::EMPTY, values: &[] };
    let claim = OpenClaim::Null(b"file");
    let args = open_args(ShareAccess::Both, OpenHow::Unchecked(none), claim);
    let call = Operations::new().at(dir).op(OperationCode::Open, &args).getfh();
    let mut results = session.ok(&call);
    let opened = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
    (results.handle(), opened)
}

fn lock(
    session: &mut Session,
    file: FileHandle,
    open: Stateid,
    owner: &[u8],
    kind: LockType,
) -> Reply<Stateid> {
    let owner = LockOwner { client: ClientId(0), owner };
    let locker = Locker::New { open_seqid: 0, open, lock_seqid: 0, owner };
    let range = LockRange { offset: 0, length: 10 };
    let args = LockArgs { kind, reclaim: false, range, locker };
    let mut results = session.call(&Operations::new().at(file).op(OperationCode::Lock, &args));
    results.skip(&[OperationCode::Putfh]);
    results.next::<OneStateid>(OperationCode::Lock).map(|locked| locked.stateid)
}

#[test]
fn a_client_is_notified_when_a_lock_that_it_waits_for_is_free() {
    let mut bed = Bed::new();
    bed.unlock();
    let xid = bed.receive(1);
    bed.answer(xid, NFS4_OK, 2);
    // And once more, with the slot's next number.
    bed.wait_again();
    bed.unlock();
    bed.receive(2);
}

#[test]
fn a_client_that_does_not_answer_holds_nothing_up() {
    let mut bed = Bed::new();
    bed.unlock();
    let xid = bed.receive(1);
    assert!(bed.wait().is_ok(), "no answer is waited for");
    let calls = bed.fixture.counter(Counter::Calls);
    // An answer twice, and one to no callback.
    for xid in [xid, xid, xid.wrapping_add(7)] {
        bed.answer(xid, NFS4_OK, 2);
    }
    bed.waiting.ok(&Operations::new().root());
    assert_eq!(bed.fixture.counter(Counter::Calls) - calls, 1, "answers are no calls");
}

#[test]
fn a_client_whose_slot_is_in_disorder_loses_the_path_and_binds_another() {
    let mut bed = Bed::new();
    bed.unlock();
    let xid = bed.receive(1);
    bed.answer(xid, Status::SeqMisordered.code(), 1);
    while !bed.has_path_down() {
        std::thread::yield_now();
    }
    assert_eq!(bind(&mut bed.waiting), ChannelDirection::Both);
    assert!(!bed.has_path_down());
}

/// Linux answers so: CB_SEQUENCE of a replay succeeds, and the operation behind it is refused.
#[test]
fn a_notice_that_is_refused_as_a_replay_comes_again_at_once() {
    let mut bed = Bed::new();
    bed.unlock();
    bed.receive(1);
    // The connection breaks before the answer. The next callback has one of its own, because the
    // lost notice may come over it before the calls are done.
    bed.waiting.client = bed.fixture.client();
    while !bed.has_path_down() {
        std::thread::yield_now();
    }
    let calls = std::mem::replace(&mut bed.waiting.client, bed.fixture.client());
    assert_eq!(bind(&mut bed.waiting), ChannelDirection::Both);
    let bound = std::mem::replace(&mut bed.waiting.client, calls);
    bed.wait_again();
    bed.unlock();
    let calls = std::mem::replace(&mut bed.waiting.client, bound);
    let xid = bed.receive(1);
    bed.answer(xid, Status::RetryUncachedRep.code(), 2);
    let xid = bed.receive(2);
    bed.answer(xid, NFS4_OK, 2);
    let _bound = std::mem::replace(&mut bed.waiting.client, calls);
    assert!(!bed.has_path_down());
}

#[test]
fn an_answer_to_no_callback_ends_a_connection_without_a_backchannel() {
    let mut bed = Bed::new();
    let mut w = Writer::new();
    ReplyHeader::Accepted { xid: 1, stat: AcceptStat::Success }.encode(&mut w);
    bed.holder.client.send_record(w.as_slice());
    assert!(bed.holder.client.is_closed_by_server());
    drop(bed.fixture);
}
