//! Read delegations: grants, conflicts with clients of both versions and with local programs,
//! recalls, and what becomes of those that are not returned.

mod closed_for_writing;
mod creations;
mod local_leases;
mod quick_returns;
mod reclaims;
mod refusals;
mod retries;
mod sequences;
mod unknown;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs3;
use proto::nfs4::*;
use proto::oncrpc::{AcceptStat, Credential, ReplyHeader, decode_call};
use proto::xdr::{Decode, Encode, Reader, Writer};

use super::client::{ALL_VERSIONS, CHANNEL, Operations, Session, compound, open_args};
use crate::client::{self, Client, Ids};
use crate::fixture::{Fixture, is_root, set_mode};
use crate::local_file::eventually;

/// Longer than a recall takes to be repeated, and much shorter than a client has to return a
/// delegation.
const SOON: Duration = Duration::from_secs(15);
/// `O_NONBLOCK`: a local open does not wait for the holder of a lease.
const NONBLOCK: i32 = 0o4000;

/// A client whose callbacks come over connections of their own.
struct Holder {
    session: Session,
    back: Client,
    export: FileHandle,
}

/// The request of the server in a callback to a client.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Recall { stateid: Stateid, object: FileHandle },
}

fn fixture() -> Fixture {
    with_files(Fixture::with(ALL_VERSIONS))
}

fn with_files(fixture: Fixture) -> Fixture {
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        fs::write(fixture.exported(name), "data").unwrap();
    }
    fixture
}

impl Holder {
    /// A client that has answered a callback.
    fn new(fixture: &Fixture, owner: &[u8]) -> Self {
        Self::with(fixture, Session::of(fixture, owner, 1))
    }

    fn with(fixture: &Fixture, mut session: Session) -> Self {
        let export = session.export();
        let back = bound(fixture, &session);
        let mut holder = Self { session, back, export };
        // The first OPEN finds out whether it answers.
        let opened = holder.open(b"g", ShareAccess::Read).unwrap().1;
        assert_eq!(opened.delegation, OpenDelegation::None);
        assert_eq!(holder.answer(), Asked::Nothing);
        holder
    }

    fn becoming(self, ids: Ids) -> Self {
        let client = self.session.client.becoming(ids);
        Self { session: Session { client, ..self.session }, ..self }
    }

    fn open(&mut self, name: &[u8], access: ShareAccess) -> Reply<(FileHandle, OpenOk)> {
        open(&mut self.session, self.export, name, access)
    }

    /// Opens a file for reading, until it comes with a delegation.
    fn delegated(&mut self, name: &[u8]) -> (FileHandle, Stateid) {
        let began = Instant::now();
        while began.elapsed() < SOON {
            let (file, opened) = self.open(name, ShareAccess::Read).unwrap();
            if let OpenDelegation::Read { stateid, recall } = opened.delegation {
                assert!(!recall);
                return (file, stateid);
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("no delegation");
    }

    /// Receives a callback and answers it.
    fn answer(&mut self) -> Asked {
        answer(&mut self.back, self.session.id)
    }

    /// Answers a recall, perhaps repeated, and returns the delegation.
    fn obey(&mut self, file: FileHandle, delegation: Stateid) {
        assert_eq!(self.answer(), Asked::Recall { stateid: delegation, object: file });
        assert_eq!(self.give_back(file, delegation), Ok(()));
    }

    fn give_back(&mut self, file: FileHandle, stateid: Stateid) -> Reply<()> {
        let args = OneStateid { stateid };
        let call = Operations::new().at(file).op(OperationCode::Delegreturn, &args);
        self.session.call(&call).skip(&[OperationCode::Putfh]).next(OperationCode::Delegreturn)
    }

    fn test(&mut self, stateid: Stateid) -> u32 {
        let stateids = [stateid];
        let args = TestStateidArgs { stateids: (&stateids[..]).into() };
        let mut results =
            self.session.call(&Operations::new().op(OperationCode::TestStateid, &args));
        let status = |r: &mut Reader<'_>| {
            let ok = TestStateidOk::decode(r).unwrap();
            ok.statuses.iter().next().unwrap()
        };
        results.next_with(OperationCode::TestStateid, status).unwrap()
    }

    /// `sr_status_flags` of a SEQUENCE.
    fn status_flags(&mut self) -> u32 {
        self.session.sequence += 1;
        let call = self.session.sequenced(&Operations::new());
        let mut results = compound(&mut self.session.client, self.session.minor_version, &call);
        results.next::<SequenceOk>(OperationCode::Sequence).unwrap().status_flags
    }
}

/// A connection that is bound to the backchannel.
fn bound(fixture: &Fixture, session: &Session) -> Client {
    let mut back = fixture.client();
    let direction = ChannelDirection::Both;
    let args = BindConnToSession { session: session.id, direction, use_rdma: false };
    let call = Operations::new().op(OperationCode::BindConnToSession, &args);
    let mut results = compound(&mut back, 1, &call);
    let bound: BindConnToSession = results.next(OperationCode::BindConnToSession).unwrap();
    assert_eq!(bound.direction, ChannelDirection::Both);
    back
}

/// The transaction id of a callback, and what it asks for.
fn decode(record: &[u8], session: SessionId) -> (u32, Asked) {
    let mut r = Reader::new(record);
    let header = decode_call(&mut r).unwrap();
    assert!(matches!(header.credential, Credential::Sys(_)), "{header:?}");
    let head = CallbackHead::decode(&mut r).unwrap();
    assert_eq!(r.u32("operation"), Ok(CB_SEQUENCE));
    assert_eq!(CallbackSequenceArgs::decode(&mut r).unwrap().session, session);
    let asked = if head.operations == 1 {
        Asked::Nothing
    } else {
        assert_eq!(r.u32("operation"), Ok(CB_RECALL));
        let CallbackRecallArgs { stateid, object, .. } = Decode::decode(&mut r).unwrap();
        Asked::Recall { stateid, object }
    };
    r.finish().unwrap();
    (header.xid, asked)
}

fn receive(back: &mut Client, session: SessionId) -> (u32, Asked) {
    decode(&back.receive_record().expect("a callback"), session)
}

fn answer(back: &mut Client, session: SessionId) -> Asked {
    let record = back.receive_record().expect("a callback");
    answer_record(back, session, &record)
}

fn answer_record(back: &mut Client, session: SessionId, record: &[u8]) -> Asked {
    let (xid, asked) = decode(record, session);
    let mut w = Writer::new();
    ReplyHeader::Accepted { xid, stat: AcceptStat::Success }.encode(&mut w);
    let results = if asked == Asked::Nothing { 1 } else { 2 };
    CompoundResult { status: NFS4_OK, tag: b"", results }.encode(&mut w);
    back.send_record(w.as_slice());
    asked
}

fn open(
    session: &mut Session,
    dir: FileHandle,
    name: &[u8],
    access: ShareAccess,
) -> Reply<(FileHandle, OpenOk)> {
    let args = open_args(access, OpenHow::NoCreate, OpenClaim::Null(name));
    let call = Operations::new().at(dir).op(OperationCode::Open, &args).getfh();
    let mut results = session.call(&call);
    let opened = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open)?;
    Ok((results.handle(), opened))
}

/// SETATTR of the mode.
fn chmod(file: FileHandle, mode: u32) -> Operations {
    let (bitmap, mode) = (Bitmap::of(&[attribute::MODE]), mode.to_be_bytes());
    let attributes = RawAttributes { bitmap, values: &mode };
    let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attributes };
    Operations::new().at(file).op(OperationCode::Setattr, &args)
}

/// Repeats a call while its status is `delay`.
fn patiently<T, E: PartialEq>(delay: &E, mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let began = Instant::now();
    loop {
        match call() {
            Err(status) if status == *delay && began.elapsed() < SOON => {
                thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

#[test]
fn a_client_that_answers_gets_a_delegation_that_it_reads_with_and_returns() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let (file, stateid) = holder.delegated(b"a");
    let read = ReadArgs { stateid, offset: 0, count: 10 };
    let call = Operations::new().at(file).op(OperationCode::Read, &read);
    let mut results = holder.session.ok(&call);
    let data = results
        .skip(&[OperationCode::Putfh])
        .next_with(OperationCode::Read, |r| ReadOk::decode(r).unwrap().data.to_vec());
    assert_eq!(data, Ok(b"data".to_vec()));
    assert_eq!(holder.test(stateid), NFS4_OK);
    assert_eq!(fixture.figure("nfs4_delegations"), 1);
    let opened = holder.open(b"a", ShareAccess::Read).unwrap().1;
    assert_eq!(opened.delegation, OpenDelegation::None, "it has one");
    let elsewhere = holder.delegated(b"b").0;
    assert_eq!(holder.give_back(elsewhere, stateid), Err(Status::BadStateid));
    assert_eq!(holder.give_back(file, stateid), Ok(()));
    assert_eq!(holder.test(stateid), Status::BadStateid.code());
    assert_eq!(fixture.figure("nfs4_delegations_returned"), 1);
    assert_eq!(fixture.figure("nfs4_delegations_granted"), 2);
}

#[test]
fn a_file_with_a_writer_is_not_delegated() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut other = Session::of(&fixture, b"other", 1);
    holder.delegated(b"a");
    open(&mut other, holder.export, b"b", ShareAccess::Write).unwrap();
    let _local = OpenOptions::new().append(true).open(fixture.exported("c")).unwrap();
    for name in [b"b", b"c"] {
        let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(name));
        let args =
            OpenArgs { share_access: args.share_access | SHARE_WANT_READ_DELEGATION, ..args };
        let call = Operations::new().at(holder.export).op(OperationCode::Open, &args);
        let mut results = holder.session.ok(&call);
        let opened: OpenOk =
            results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
        assert_eq!(opened.delegation, OpenDelegation::Why(WhyNoDelegation::Contention));
    }
}

#[test]
fn a_server_without_delegations_sends_no_callbacks_for_them() {
    let fixture = Fixture::with(&format!("delegations = false\n{ALL_VERSIONS}"));
    fs::write(fixture.exported("a"), "data").unwrap();
    let mut session = Session::of(&fixture, b"holder", 1);
    let export = session.export();
    let back = bound(&fixture, &session);
    for _ in 0..3 {
        let opened = open(&mut session, export, b"a", ShareAccess::Read).unwrap().1;
        assert_eq!(opened.delegation, OpenDelegation::None);
    }
    back.stream.set_nonblocking(true).unwrap();
    let nothing = back.stream.peek(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn an_open_for_writing_waits_for_the_return() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut other = Session::of(&fixture, b"other", 1);
    let (file, delegation) = holder.delegated(b"a");
    let export = holder.export;
    open(&mut other, export, b"a", ShareAccess::Read).expect("reading does not conflict");
    let mut write = || open(&mut other, export, b"a", ShareAccess::Write).map(drop);
    assert_eq!(write(), Err(Status::Delay));
    holder.obey(file, delegation);
    assert_eq!(write(), Ok(()));
    // The holder's own writing too.
    let (file, delegation) = holder.delegated(b"b");
    assert_eq!(holder.open(b"b", ShareAccess::Both).map(drop), Err(Status::Delay));
    holder.obey(file, delegation);
    holder.open(b"b", ShareAccess::Both).unwrap();
}

#[test]
fn a_holder_opens_by_its_delegation_while_it_is_recalled() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut other = Session::of(&fixture, b"other", 1);
    let (file, delegation) = holder.delegated(b"a");
    let (elsewhere, _) = holder.delegated(b"b");
    let denied = open(&mut other, holder.export, b"a", ShareAccess::Write).map(drop);
    assert_eq!(denied, Err(Status::Delay));
    assert_eq!(holder.answer(), Asked::Recall { stateid: delegation, object: file });
    let mut open = |at: FileHandle, claim: OpenClaim<'_>| {
        let args = open_args(ShareAccess::Read, OpenHow::NoCreate, claim);
        let call = Operations::new().at(at).op(OperationCode::Open, &args);
        let mut results = holder.session.call(&call);
        let opened: OpenOk = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open)?;
        assert_eq!(opened.delegation, OpenDelegation::None);
        Ok(())
    };
    let export = holder.export;
    assert_eq!(open(file, OpenClaim::DelegateCurrentHandle(delegation)), Ok(()));
    assert_eq!(open(export, OpenClaim::DelegateCurrent(delegation, b"a")), Ok(()));
    let wrong = OpenClaim::DelegateCurrent(delegation, b"b");
    assert_eq!(open(export, wrong), Err(Status::BadStateid));
    let wrong = OpenClaim::DelegateCurrentHandle(delegation);
    assert_eq!(open(elsewhere, wrong), Err(Status::BadStateid));
    assert_eq!(open(file, OpenClaim::DelegatePreviousHandle), Err(Status::Notsupp));
    assert_eq!(holder.give_back(file, delegation), Ok(()));
}

/// A client that cannot open it keeps the delegation, and what conflicts with it waits for 90 s.
#[test]
fn a_holder_opens_by_its_delegation_after_a_chmod_that_forbids_it() {
    if !is_root() {
        return;
    }
    let fixture = fixture();
    let user = fixture.client().becoming(Ids::user(4321));
    let session = Session::over(user, b"holder", 1, CHANNEL);
    let mut holder = Holder::with(&fixture, session);
    let mut other = Session::of(&fixture, b"other", 1);
    let (file, delegation) = holder.delegated(b"a");
    let denied = open(&mut other, holder.export, b"a", ShareAccess::Write).map(drop);
    assert_eq!(denied, Err(Status::Delay));
    assert_eq!(holder.answer(), Asked::Recall { stateid: delegation, object: file });
    set_mode(&fixture.exported("a"), 0);
    assert_eq!(holder.open(b"a", ShareAccess::Read).map(drop), Err(Status::Access));
    let claim = |holder: &mut Holder, owner, access| {
        let claim = OpenClaim::DelegateCurrentHandle(delegation);
        let owner = OpenOwner { client: ClientId(0), owner };
        let args = OpenArgs { owner, ..open_args(access, OpenHow::NoCreate, claim) };
        let call = Operations::new().at(file).op(OperationCode::Open, &args);
        let mut results = holder.session.call(&call);
        let opened = results.skip(&[OperationCode::Putfh]).next::<OpenOk>(OperationCode::Open);
        opened.map(|opened| opened.stateid)
    };
    let read = |holder: &mut Holder, stateid| {
        let read = ReadArgs { stateid, offset: 0, count: 10 };
        holder.session.call(&Operations::new().at(file).op(OperationCode::Read, &read)).status
    };
    assert_eq!(claim(&mut holder, b"one", ShareAccess::Both), Err(Status::Access));
    let stateid = claim(&mut holder, b"one", ShareAccess::Read).unwrap();
    // Another user of the client can return it too, and gets no right to read by that.
    let mut holder = holder.becoming(Ids::user(1234));
    let others = claim(&mut holder, b"two", ShareAccess::Read).unwrap();
    assert_eq!(read(&mut holder, others), Err(Status::Access));
    assert_eq!(read(&mut holder, stateid), Err(Status::Access));
    let stateid = claim(&mut holder, b"one", ShareAccess::Read).unwrap();
    let mut holder = holder.becoming(Ids::user(4321));
    assert_eq!(holder.give_back(file, delegation), Ok(()));
    assert_eq!(read(&mut holder, stateid), Ok(()));
    assert_eq!(read(&mut holder, others), Err(Status::Access));
}

#[test]
fn calls_of_version_3_wait_for_the_return() {
    type Call = fn(&mut Client, nfs3::FileHandle, nfs3::FileHandle) -> Result<(), nfs3::Status>;
    fn status<O, F>(reply: nfs3::Reply<O, F>) -> Result<(), nfs3::Status> {
        reply.map(drop).map_err(|failure| failure.status)
    }
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let (mut other, root) = fixture.mounted();
    let calls: [(&str, Call); 6] = [
        ("a", |client, _, file| status(client.write(file, 0, b"new"))),
        ("b", |client, _, file| status(client.setattr(file, client::size(1)))),
        ("c", |client, _, file| status(client.setattr(file, client::mode(0o600)))),
        ("d", |client, root, file| status(client.link(file, root, b"again"))),
        ("e", |client, root, _| status(client.rename((root, b"e"), (root, b"moved")))),
        ("f", |client, root, _| status(client.remove(root, b"f"))),
    ];
    for (name, call) in calls {
        let (file, delegation) = holder.delegated(name.as_bytes());
        let object = other.find(root, name);
        assert_eq!(call(&mut other, root, object), Err(nfs3::Status::Jukebox), "{name}");
        holder.obey(file, delegation);
        assert_eq!(call(&mut other, root, object), Ok(()), "{name}");
    }
    assert_eq!(fs::read(fixture.exported("a")).unwrap(), b"newa");
    assert_eq!(fixture.figure("nfs4_delegations_recalled"), 6);
    assert_eq!(fixture.figure("nfs4_delegations_revoked"), 0);
}

#[test]
fn a_holder_changes_attributes_and_names_beside_its_delegation() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let (file, delegation) = holder.delegated(b"a");
    assert_eq!(holder.session.call(&chmod(file, 0o600)).status, Ok(()));
    let call = Operations::new().at(holder.export);
    let call = call.op(OperationCode::Remove, &NameArgs { name: b"a" });
    assert_eq!(holder.session.call(&call).status, Ok(()));
    assert_eq!(fixture.figure("nfs4_delegations_recalled"), 0);
    assert_eq!(holder.give_back(file, delegation), Ok(()));
    // Not beside that of another.
    let mut second = Holder::new(&fixture, b"second");
    let (file, delegation) = holder.delegated(b"b");
    let (_, other) = second.delegated(b"b");
    let call = chmod(file, 0o600);
    assert_eq!(holder.session.call(&call).status, Err(Status::Delay));
    holder.obey(file, delegation);
    second.obey(file, other);
    assert_eq!(holder.session.call(&call).status, Ok(()));
}

/// An object in two exports has two filehandles, so it is two files to a client.
#[test]
fn a_holder_that_changes_a_file_through_another_export_returns_its_delegation() {
    let again = "[[export]]\npath = \"$DIR/export\"\nname = \"/again\"\nsquash = \"none\"";
    let fixture = with_files(Fixture::with(&format!("{ALL_VERSIONS}\n{again}")));
    let mut holder = Holder::new(&fixture, b"holder");
    let (file, delegation) = holder.delegated(b"a");
    let path = Operations::new().root().lookup(b"again");
    let call = path.op(OperationCode::Remove, &NameArgs { name: b"a" });
    assert_eq!(holder.session.call(&call).status, Err(Status::Delay));
    holder.obey(file, delegation);
    assert_eq!(holder.session.call(&call).status, Ok(()));
}

#[test]
fn a_local_program_that_writes_waits_for_the_return() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let (file, delegation) = holder.delegated(b"a");
    let path = fixture.exported("a");
    fs::read(&path).expect("reading does not wait");
    let open = {
        let path = path.clone();
        move || OpenOptions::new().write(true).open(path)
    };
    let writing = thread::spawn(move || {
        let began = Instant::now();
        open().unwrap();
        began.elapsed()
    });
    holder.obey(file, delegation);
    assert!(writing.join().unwrap() < SOON);
    let again = OpenOptions::new().write(true).custom_flags(NONBLOCK).open(&path);
    again.expect("there is no lease any more");
}

/// The lease does not detect them: a holder would go on with old attributes, and open the file that
/// a name had before.
#[test]
fn a_local_program_that_changes_attributes_or_names_recalls_the_delegation() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let run = |program, arguments: &[&str]| {
        let paths = arguments.iter().map(|name| fixture.exported(name));
        assert!(Command::new(program).args(paths).status().unwrap().success());
    };
    for (name, program, arguments) in [
        ("a", "touch", &["a"][..]),
        ("b", "mv", &["b", "other"]),
        ("c", "mv", &["d", "c"]),
        ("e", "ln", &["e", "link"]),
        ("f", "rm", &["f"]),
    ] {
        let (file, delegation) = holder.delegated(name.as_bytes());
        run(program, arguments);
        holder.obey(file, delegation);
    }
}

/// The kernel would let the program pass after 45 s, while the client still reads what it has
/// cached.
#[test]
fn the_delegation_of_a_silent_client_is_revoked_before_a_local_program_passes() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let (file, delegation) = holder.delegated(b"a");
    let path = fixture.exported("a");
    let writing = thread::spawn(move || {
        let began = Instant::now();
        OpenOptions::new().write(true).open(path).unwrap();
        began.elapsed()
    });
    let waited = writing.join().unwrap();
    let least = Duration::from_secs(25);
    assert!(waited > least && waited < Duration::from_secs(40), "{waited:?}");
    assert_eq!(holder.test(delegation), Status::DelegRevoked.code());
    assert_ne!(holder.status_flags() & SEQ4_STATUS_RECALLABLE_STATE_REVOKED, 0);
    assert_eq!(holder.give_back(file, delegation), Err(Status::DelegRevoked));
    let free = OneStateid { stateid: delegation };
    holder.session.ok(&Operations::new().op(OperationCode::FreeStateid, &free));
    assert_eq!(holder.status_flags() & SEQ4_STATUS_RECALLABLE_STATE_REVOKED, 0);
    assert_eq!(holder.test(delegation), Status::BadStateid.code());
    assert_eq!(fixture.figure("nfs4_delegations_revoked"), 1);
    assert_eq!(fixture.figure("nfs4_delegations"), 0);
}

#[test]
fn a_recall_is_not_lost_with_its_connection() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut other = Session::of(&fixture, b"other", 1);
    let (file, delegation) = holder.delegated(b"a");
    let mut second = bound(&fixture, &holder.session);
    let export = holder.export;
    let mut write = || open(&mut other, export, b"a", ShareAccess::Write).map(drop);
    assert_eq!(write(), Err(Status::Delay));
    // The proved connection breaks, and the other takes over.
    let recall = Asked::Recall { stateid: delegation, object: file };
    assert_eq!(receive(&mut holder.back, holder.session.id).1, recall);
    holder.back = fixture.client();
    assert_eq!(receive(&mut second, holder.session.id).1, recall);
    drop(second);
    let has_path_down = |holder: &mut Holder| holder.status_flags() & SEQ4_STATUS_CB_PATH_DOWN != 0;
    let began = Instant::now();
    while !has_path_down(&mut holder) {
        assert!(began.elapsed() < SOON, "no connection is bound");
        thread::sleep(Duration::from_millis(10));
    }
    // Without a path it waits for the next.
    holder.back = bound(&fixture, &holder.session);
    assert!(!has_path_down(&mut holder));
    holder.obey(file, delegation);
    assert_eq!(patiently(&Status::Delay, write), Ok(()));
}

#[test]
fn a_departed_client_leaves_no_lease() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    holder.delegated(b"a");
    let destroy = DestroySessionArgs { session: holder.session.id };
    let busy = |holder: &mut Holder| {
        let destroy = DestroyClientidArgs { client: holder.session.client_id };
        let call = Operations::new().op(OperationCode::DestroyClientid, &destroy);
        compound(&mut holder.back, 1, &call).status
    };
    holder.session.ok(&Operations::new().op(OperationCode::DestroySession, &destroy));
    assert_eq!(busy(&mut holder), Err(Status::ClientidBusy));
    // It boots.
    let (mut client, owner) = (fixture.client(), b"holder");
    let (id, sequence, _) = super::client::exchange_id(&mut client, owner, 2).unwrap();
    let args = super::client::create_session_args(id, sequence);
    let call = Operations::new().op(OperationCode::CreateSession, &args);
    assert_eq!(compound(&mut client, 1, &call).status, Ok(()));
    assert_eq!(fixture.figure("nfs4_delegations"), 0);
    // CREATE_SESSION has no file, so its reply does not wait for the device of the lease.
    let path = fixture.exported("a");
    let open = || OpenOptions::new().write(true).custom_flags(NONBLOCK).open(&path).is_ok();
    assert!(eventually(open), "there is no lease any more");
}
