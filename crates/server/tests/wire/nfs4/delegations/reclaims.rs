//! Delegations that are reclaimed after a restart of the server.

use super::super::restart;
use super::*;

#[test]
fn a_delegation_is_reclaimed_after_a_restart() {
    let mut fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let (file, before) = holder.delegated(b"a");
    fixture.restart();
    let session = restart::connect(&fixture, b"holder", 1);
    let back = bound(&fixture, &session);
    let mut holder = Holder { session, back, export: holder.export };
    let mut reclaim = |kind| {
        let claim = OpenClaim::Previous(kind);
        let args = open_args(ShareAccess::Read, OpenHow::NoCreate, claim);
        let call = Operations::new().at(file).op(OperationCode::Open, &args);
        let mut results = holder.session.ok(&call);
        let opened: OpenOk =
            results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
        opened.delegation
    };
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
