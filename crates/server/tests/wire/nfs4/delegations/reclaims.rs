//! Delegations that are reclaimed after a restart of the server.

use super::super::restart;
use super::*;
use crate::local_file::settle;

/// With files that are older than the records of clients.
fn settled_fixture() -> Fixture {
    let fixture = fixture();
    settle();
    fixture
}

/// The same client, which has noticed the restart.
fn back(fixture: &Fixture, holder: &Holder) -> Holder {
    let session = restart::connect(fixture, b"holder", 1);
    let back = bound(fixture, &session);
    Holder { session, back, export: holder.export }
}

fn reclaim(holder: &mut Holder, file: FileHandle, kind: DelegationType) -> OpenDelegation {
    let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Previous(kind));
    let call = Operations::new().at(file).op(OperationCode::Open, &args);
    let mut results = holder.session.ok(&call);
    let opened: OpenOk = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
    opened.delegation
}

#[test]
fn a_delegation_is_reclaimed_after_a_restart() {
    let mut fixture = settled_fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let (file, before) = holder.delegated(b"a");
    fixture.restart();
    let mut holder = back(&fixture, &holder);
    let mut reclaim = |kind| reclaim(&mut holder, file, kind);
    assert_eq!(reclaim(DelegationType::None), OpenDelegation::None);
    let OpenDelegation::Read { stateid, recall } = reclaim(DelegationType::Read) else {
        panic!("it is not given back");
    };
    assert!(!recall);
    assert_eq!(holder.answer(), Asked::Nothing, "does it answer?");
    restart::reclaim_complete(&mut holder.session);
    assert_eq!(holder.test(before), Status::BadStateid.code());
    let (mut other, root) = fixture.mounted();
    let object = other.find(root, "a");
    assert_eq!(client::refusal(other.write(object, 0, b"new")), nfs3::Status::Jukebox);
    holder.obey(file, stateid);
    client::ok(other.write(object, 0, b"new"));
}

/// The client would read the data that it has in its cache for as long as it has the delegation.
#[test]
fn a_file_that_has_changed_since_a_restart_is_not_delegated_by_a_reclaim() {
    let mut fixture = settled_fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let files = [b"a", b"b", b"c", b"d", b"e", b"f"].map(|name| holder.delegated(name).0);
    fixture.stop();
    fs::write(fixture.exported("a"), "other data").unwrap();
    fixture.start();
    set_mode(&fixture.exported("b"), 0o600);
    let (mut other, root) = fixture.mounted();
    let [write, mode, link] = ["c", "d", "e"].map(|name| other.find(root, name));
    client::ok(other.write(write, 0, b"new"));
    client::ok(other.setattr(mode, client::mode(0o600)));
    client::ok(other.link(link, root, b"again"));
    let mut holder = back(&fixture, &holder);
    let delegations = files.map(|file| reclaim(&mut holder, file, DelegationType::Read));
    let is_given = delegations.map(|delegation| delegation != OpenDelegation::None);
    assert_eq!(is_given, [false, false, false, false, false, true]);
}
