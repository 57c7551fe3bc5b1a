//! COMPOUNDs that no client should send.

use proptest::prelude::*;
use proto::nfs4::*;

use super::client::{ALL_VERSIONS, CHANNEL, Operations, Session, compound, exchange_id};
use crate::client::Client;
use crate::fixture::Fixture;

#[test]
fn numbers_that_are_no_operations_are_answered_as_illegal() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    for number in [0, 1, 2, 76, 10_044, u32::MAX] {
        let mut results = session.call(&Operations::new().raw(number, &()));
        assert_eq!(results.next::<()>(OperationCode::Illegal), Err(Status::OpIllegal), "{number}");
    }
    // Minor version 1 does not know the operations of minor version 2.
    let seek = SeekArgs { stateid: Stateid::ANONYMOUS, offset: 0, what: 0 };
    let mut results = session.call(&Operations::new().op(OperationCode::Seek, &seek));
    assert_eq!(results.next::<()>(OperationCode::Illegal), Err(Status::OpIllegal));
}

#[test]
fn operations_of_minor_version_0_are_not_supported() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    for operation in [
        OperationCode::OpenConfirm,
        OperationCode::Renew,
        OperationCode::Setclientid,
        OperationCode::SetclientidConfirm,
        OperationCode::ReleaseLockowner,
    ] {
        let mut results = session.call(&Operations::new().op(operation, &()));
        assert_eq!(results.next::<()>(operation), Err(Status::Notsupp), "{}", operation.name());
    }
}

#[test]
fn arguments_that_end_too_early_end_the_compound() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    let mut results =
        session.call(&Operations::new().at(export).op(OperationCode::Lookup, &()).getfh());
    results.skip(&[OperationCode::Putfh]);
    assert_eq!(results.next::<()>(OperationCode::Lookup), Err(Status::Badxdr));
    session.ok(&Operations::new().root());
}

#[test]
fn a_call_is_measured_by_the_bytes_that_came() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    // It claims more data than the session takes in one call, and has none.
    let write = Operations::new().root().raw(OperationCode::Write.code(), &Stateid::ANONYMOUS);
    let short = [0, 0, 0, CHANNEL.request_bytes_max + 1];
    let short = short.into_iter().fold(write, Operations::word);
    let mut results = session.call(&short);
    results.skip(&[OperationCode::Putrootfh]);
    assert_eq!(results.next::<()>(OperationCode::Write), Err(Status::Badxdr));

    let data = &[7; 1 << 20];
    let args =
        WriteArgs { stateid: Stateid::ANONYMOUS, offset: 0, stable: StableHow::Unstable, data };
    let write = Operations::new().root().op(OperationCode::Write, &args);
    let long = (0..400).fold(write.raw(76, &()), Operations::word);
    session.sequence += 1;
    let call = session.sequenced(&long);
    let mut results = compound(&mut session.client, session.minor_version, &call);
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::ReqTooBig));
    // The slot has not seen that call.
    session.sequence -= 1;
    session.ok(&Operations::new().root());
}

#[test]
fn operations_without_a_filehandle_are_refused() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    for operation in [OperationCode::Getfh, OperationCode::Savefh, OperationCode::Readlink] {
        let mut results = session.call(&Operations::new().op(operation, &()));
        assert_eq!(results.next::<()>(operation), Err(Status::Nofilehandle));
    }
    let forged = FileHandle::new(&[7; 40]).unwrap();
    let mut results = session.call(&Operations::new().at(forged));
    assert_eq!(results.next::<()>(OperationCode::Putfh), Err(Status::Badhandle));
}

#[test]
fn a_compound_that_claims_many_operations_takes_no_memory_for_them() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut client = fixture.client();
    let mut arguments = Operations::new().arguments(1);
    let at = arguments.len() - 4;
    arguments[at..].copy_from_slice(&u32::MAX.to_be_bytes());
    let (header, _) = client.exchange((PROGRAM, VERSION, 1), &arguments);
    assert!(matches!(header, proto::oncrpc::ReplyHeader::Accepted { .. }));
    client.null();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any operations behind a valid SEQUENCE and PUTROOTFH are answered.
    #[test]
    fn any_operations_are_answered(
        operations in proptest::collection::vec(
            (3_u32..76, proptest::collection::vec(any::<u32>(), 0..12)),
            1..6,
        ),
    ) {
        thread_local! {
            static RIG: (Fixture, std::cell::RefCell<Session>) = {
                let fixture = Fixture::with(ALL_VERSIONS);
                let session = Session::of(&fixture, b"fuzz", 2);
                (fixture, session.into())
            };
        }
        RIG.with(|(_, session)| {
            let mut session = session.borrow_mut();
            let mut call = Operations::new().root();
            for (number, words) in operations {
                // SEQUENCE, and what ends the session, are not what this is about.
                if [37, 44, 53, 57].contains(&number) {
                    continue;
                }
                call = words.iter().fold(call.raw(number, &()), |call, word| call.word(*word));
            }
            session.call(&call);
            session.ok(&Operations::new().root());
        });
    }
}

#[test]
fn tags_come_back_and_are_bounded() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut client = fixture.client();
    assert_eq!(compound(&mut client, 1, &Operations::new()).status, Ok(()));
    let mut arguments = 2000_u32.to_be_bytes().to_vec();
    arguments.resize(2012, 0);
    let (header, _) = client.exchange((PROGRAM, VERSION, 1), &arguments);
    let stat = proto::oncrpc::AcceptStat::GarbageArgs;
    assert_eq!(header, proto::oncrpc::ReplyHeader::Accepted { xid: header.xid(), stat });
}

#[test]
fn a_call_with_too_long_a_head_is_refused_before_sequence() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let long = (0..100).fold(Operations::new().root(), |call, _| call.lookup(&[b'x'; 200]));
    session.sequence += 1;
    let arguments = session.sequenced(&long).arguments(session.minor_version);
    let (header, _) = session.client.exchange((PROGRAM, VERSION, 1), &arguments);
    let stat = proto::oncrpc::AcceptStat::GarbageArgs;
    assert_eq!(header, proto::oncrpc::ReplyHeader::Accepted { xid: header.xid(), stat });
    // The slot waits for this number still.
    session.sequence -= 1;
    session.ok(&Operations::new().root());
}

#[test]
fn a_client_that_no_export_admits_gets_no_client_id() {
    let fixture = Fixture::with(
        r#"
        nfs_versions = ["3", "4.1", "4.2"]
        [[export]]
        path = "$DIR/export"
        name = "/export"
        [[export.client]]
        hosts = ["127.0.0.1"]
        "#,
    );
    let elsewhere = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let mut stranger = Client::connect_from(elsewhere, fixture.address());
    assert_eq!(exchange_id(&mut stranger, b"owner", 1).err(), Some(Status::Access));
    // Nor does it use another's session.
    let mut session = Session::new(&fixture);
    let call = session.sequenced(&Operations::new());
    let mut results = compound(&mut stranger, 1, &call);
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::Access));
    session.ok(&Operations::new().root());
}
