//! Clients, sessions and slots.

use proto::nfs4::*;
use proto::xdr::Decode;

use super::client::{
    ALL_VERSIONS, CHANNEL, Operations, Session, compound, create_session_args, exchange_id,
};
use crate::fixture::Fixture;

#[test]
fn minor_version_0_is_refused() {
    let fixture = Fixture::with(ALL_VERSIONS);
    for minor in [0, 3, u32::MAX] {
        let results = compound(&mut fixture.client(), minor, &Operations::new().root());
        let mismatch = Err(Status::MinorVersMismatch);
        assert_eq!((results.status, results.count), (mismatch, 0), "minor version {minor}");
    }
}

#[test]
fn version_4_is_served_unless_it_is_left_out() {
    let mismatch = proto::oncrpc::AcceptStat::ProgMismatch { low: 3, high: 3 };
    for (settings, stat) in
        [("", proto::oncrpc::AcceptStat::Success), ("nfs_versions = [\"3\"]", mismatch)]
    {
        let fixture = Fixture::with_settings(settings);
        let mut client = fixture.client();
        let target = (PROGRAM, VERSION, 0);
        let (header, _) = client.exchange(target, &[]);
        assert_eq!(header, proto::oncrpc::ReplyHeader::Accepted { xid: header.xid(), stat });
    }
}

#[test]
fn operations_need_a_session_unless_they_make_one() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut client = fixture.client();
    let mut results = compound(&mut client, 1, &Operations::new().root().getfh());
    assert_eq!(results.next::<()>(OperationCode::Putrootfh), Err(Status::OpNotInSession));
    assert_eq!(results.count, 1);

    let args = create_session_args(ClientId(7), SequenceId(1));
    let two = Operations::new().op(OperationCode::CreateSession, &args).root();
    let mut results = compound(&mut client, 1, &two);
    assert_eq!(results.next::<()>(OperationCode::CreateSession), Err(Status::NotOnlyOp));

    let alone = Operations::new().op(OperationCode::CreateSession, &args);
    let mut results = compound(&mut client, 1, &alone);
    assert_eq!(results.next::<()>(OperationCode::CreateSession), Err(Status::StaleClientid));
}

#[test]
fn clients_and_sessions_are_made_behind_sequence_too() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let owner = ClientOwner { verifier: Verifier([1; 8]), owner_id: b"another" };
    let args = ExchangeIdArgs { owner, flags: 0, protection: StateProtection::None };
    let exchange = Operations::new().op(OperationCode::ExchangeId, &args).root();
    let (client, sequence) = session
        .ok(&exchange)
        .next_with(OperationCode::ExchangeId, |r| {
            let ok = ExchangeIdOk::decode(r).unwrap();
            (ok.client, ok.sequence)
        })
        .unwrap();
    assert_ne!(client, session.client_id);
    let args = create_session_args(client, sequence);
    let create = Operations::new().op(OperationCode::CreateSession, &args);
    session.cache_this = true;
    session.sequence += 1;
    let call = session.sequenced(&create);
    let mut made = || {
        let mut results = compound(&mut session.client, 1, &call);
        results.next::<SequenceOk>(OperationCode::Sequence).unwrap();
        results.next::<CreateSessionOk>(OperationCode::CreateSession).unwrap().session
    };
    let id = made();
    assert_eq!(made(), id, "the slot keeps the reply");
    assert_ne!(id, session.id);
    // The retry of the operation, in another slot's call.
    let mut results = session.ok(&create);
    let again: CreateSessionOk = results.next(OperationCode::CreateSession).unwrap();
    assert_eq!(again.session, id);
    let destroy = |client| {
        Operations::new().op(OperationCode::DestroyClientid, &DestroyClientidArgs { client })
    };
    let mut results = session.call(&destroy(session.client_id));
    let busy = Err(Status::ClientidBusy);
    assert_eq!(results.next::<()>(OperationCode::DestroyClientid), busy, "its own");
    let args = DestroySessionArgs { session: id };
    session.ok(&Operations::new().op(OperationCode::DestroySession, &args));
    session.ok(&destroy(client));

    let bind = BindConnToSession {
        session: session.id,
        direction: ChannelDirection::Fore,
        use_rdma: false,
    };
    let mut results = session.call(&Operations::new().op(OperationCode::BindConnToSession, &bind));
    assert_eq!(results.next::<()>(OperationCode::BindConnToSession), Err(Status::NotOnlyOp));
}

#[test]
fn a_client_that_boots_anew_behind_its_old_session_ends_it() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::of(&fixture, b"client", 1);
    let owner = ClientOwner { verifier: Verifier([2; 8]), owner_id: b"client" };
    let args = ExchangeIdArgs { owner, flags: 0, protection: StateProtection::None };
    let exchange = Operations::new().op(OperationCode::ExchangeId, &args);
    let (client, sequence) = session
        .ok(&exchange)
        .next_with(OperationCode::ExchangeId, |r| {
            let ok = ExchangeIdOk::decode(r).unwrap();
            (ok.client, ok.sequence)
        })
        .unwrap();
    let args = create_session_args(client, sequence);
    session.ok(&Operations::new().op(OperationCode::CreateSession, &args));
    session.sequence += 1;
    let call = session.sequenced(&Operations::new());
    let mut results = compound(&mut session.client, 1, &call);
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::Badsession));
}

#[test]
fn sequence_comes_first_and_once() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    session.sequence += 1;
    let twice = session.sequenced(&session.sequenced(&Operations::new()));
    let mut results = compound(&mut session.client, 1, &twice);
    results.next::<SequenceOk>(OperationCode::Sequence).unwrap();
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::SequencePos));
}

#[test]
fn a_retry_gets_the_reply_that_was_kept() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    session.cache_this = true;
    session.sequence += 1;
    let args = NameArgs { name: b"gone" };
    std::fs::write(fixture.exported("gone"), b"x").unwrap();
    let remove = Operations::new().at(export).op(OperationCode::Remove, &args);
    let call = session.sequenced(&remove);
    let first = compound(&mut session.client, 1, &call);
    assert_eq!(first.status, Ok(()));
    let second = compound(&mut session.client, 1, &call);
    assert_eq!(second, first, "it does not run twice");

    let args = NameArgs { name: b"another" };
    let other = Operations::new().at(export).op(OperationCode::Remove, &args);
    let other = session.sequenced(&other);
    let mut results = compound(&mut session.client, 1, &other);
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::SeqFalseRetry));
}

/// Linux encodes a retry anew, with the highest slot that is in use by then.
#[test]
fn a_retry_is_the_same_call_whatever_slots_are_in_use() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    session.cache_this = true;
    session.sequence += 1;
    std::fs::write(fixture.exported("gone"), b"x").unwrap();
    let args = NameArgs { name: b"gone" };
    let remove = Operations::new().at(export).op(OperationCode::Remove, &args);
    let call = session.sequenced(&remove);
    let first = compound(&mut session.client, 1, &call);
    assert_eq!(first.status, Ok(()));
    let retry = session.sequenced_below(SlotId(1), &remove);
    assert_eq!(compound(&mut session.client, 1, &retry), first);
    assert_eq!(compound(&mut fixture.client(), 1, &retry), first, "over another connection");
}

#[test]
fn slots_refuse_numbers_out_of_order() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    session.ok(&Operations::new().root());
    let number = session.sequence;
    session.sequence = number + 2;
    let call = session.sequenced(&Operations::new().root());
    let mut results = compound(&mut session.client, 1, &call);
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::SeqMisordered));
    session.sequence = number;
    session.ok(&Operations::new().root());
}

#[test]
fn a_session_takes_as_many_operations_as_it_has_promised() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let many = (0..session.fore.operations_max).fold(Operations::new(), |ops, _| ops.root());
    session.sequence += 1;
    let call = session.sequenced(&many);
    let mut results = compound(&mut session.client, 1, &call);
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::TooManyOps));
}

#[test]
fn a_client_that_boots_again_loses_its_session() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let mut client = fixture.client();
    let (client_id, sequence, flags) = exchange_id(&mut client, b"a client", 2).unwrap();
    assert_ne!(client_id, session.client_id);
    assert_eq!(flags & EXCHGID_CONFIRMED_R, 0);
    session.ok(&Operations::new().root());
    let args = create_session_args(client_id, sequence);
    let create = Operations::new().op(OperationCode::CreateSession, &args);
    assert_eq!(compound(&mut client, 1, &create).status, Ok(()));
    session.sequence += 1;
    let call = session.sequenced(&Operations::new().root());
    let mut results = compound(&mut session.client, 1, &call);
    assert_eq!(results.next::<()>(OperationCode::Sequence), Err(Status::Badsession));
}

/// RFC 7862 §14.1: client and server may set it from minor version 2 on.
#[test]
fn the_flag_of_fencing_is_of_minor_version_2() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut client = fixture.client();
    let owner = ClientOwner { verifier: Verifier([1; 8]), owner_id: b"a client" };
    let mut status = |minor_version, flags| {
        let args = ExchangeIdArgs { owner, flags, protection: StateProtection::None };
        let call = Operations::new().op(OperationCode::ExchangeId, &args);
        compound(&mut client, minor_version, &call).status
    };
    assert_eq!(status(2, EXCHGID_SUPP_FENCE_OPS), Ok(()));
    assert_eq!(status(1, EXCHGID_SUPP_FENCE_OPS), Err(Status::Inval));
    assert_eq!(status(2, 0x8), Err(Status::Inval));
}

#[test]
fn destroyed_sessions_and_clients_are_unknown() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let client = DestroyClientidArgs { client: session.client_id };
    let client = Operations::new().op(OperationCode::DestroyClientid, &client);
    let mut results = compound(&mut session.client, 1, &client);
    assert_eq!(results.next::<()>(OperationCode::DestroyClientid), Err(Status::ClientidBusy));
    let destroy = DestroySessionArgs { session: session.id };
    let destroy = Operations::new().op(OperationCode::DestroySession, &destroy);
    let mut results = compound(&mut session.client, 1, &destroy);
    assert_eq!(results.next::<()>(OperationCode::DestroySession), Ok(()));
    let mut results = compound(&mut session.client, 1, &destroy);
    assert_eq!(results.next::<()>(OperationCode::DestroySession), Err(Status::Badsession));
    assert_eq!(compound(&mut session.client, 1, &client).status, Ok(()));
    let gone = Err(Status::StaleClientid);
    assert_eq!(compound(&mut session.client, 1, &client).status, gone);
}

#[test]
fn a_reply_that_must_be_kept_and_cannot_be_is_refused() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    std::fs::write(fixture.exported("file"), [7; 10_000]).unwrap();
    let export = session.export();
    session.cache_this = true;
    let stateid = Stateid::ANONYMOUS;
    let args = ReadArgs { stateid, offset: 0, count: 10_000 };
    let read = Operations::new().at(export).lookup(b"file").op(OperationCode::Read, &args);
    let mut results = session.call(&read);
    results.skip(&[OperationCode::Putfh, OperationCode::Lookup]);
    // A short reply is one that fits.
    let len = results.next_with(OperationCode::Read, |r| {
        use proto::xdr::Decode;
        ReadOk::decode(r).unwrap().data.len()
    });
    assert!(len.unwrap() < 2048, "{len:?}");
}

/// RFC 8881 §18.34.3.
#[test]
fn a_connection_is_bound_in_the_direction_that_the_client_asks_for() {
    use ChannelDirection::{Back, BackOrBoth, Both, Fore};
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut client = fixture.client();
    // With callbacks that the server can send, and with none but those of RPCSEC_GSS.
    let usable = [(Fore, Ok(Fore)), (Back, Ok(Back)), (Both, Ok(Both)), (BackOrBoth, Ok(Both))];
    let inval = Err(Status::Inval);
    let unusable = [(Fore, Ok(Fore)), (Back, inval), (Both, Ok(Fore)), (BackOrBoth, inval)];
    for (security, table) in
        [(CallbackSecurity::Sys { uid: 0, gid: 0 }, usable), (CallbackSecurity::Gss, unusable)]
    {
        let owner = if security == CallbackSecurity::Gss { b"gss" } else { b"sys" };
        let (client_id, sequence, _) = exchange_id(&mut client, owner, 1).unwrap();
        let security = [security];
        let args = CreateSessionArgs {
            callback_security: (&security[..]).into(),
            ..create_session_args(client_id, sequence)
        };
        let create = Operations::new().op(OperationCode::CreateSession, &args);
        let mut results = compound(&mut client, 1, &create);
        let made: CreateSessionOk = results.next(OperationCode::CreateSession).unwrap();
        for (direction, wanted) in table {
            let args = BindConnToSession { session: made.session, direction, use_rdma: false };
            let bind = Operations::new().op(OperationCode::BindConnToSession, &args);
            let mut results = compound(&mut client, 1, &bind);
            let bound: Reply<BindConnToSession> = results.next(OperationCode::BindConnToSession);
            assert_eq!(bound.map(|bound| bound.direction), wanted, "{direction:?} {owner:?}");
        }
    }
}

#[test]
fn a_sequence_whose_reply_cannot_be_kept_leaves_its_slot_as_it_was() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let fore = ChannelAttributes { cached_bytes_max: 0, ..CHANNEL };
    let mut session = Session::over(fixture.client(), b"a client", 1, fore);
    session.sequence += 1;
    let too_big = Err(Status::RepTooBigToCache);
    for (cache_this, wanted) in [(true, too_big), (true, too_big), (false, Ok(()))] {
        session.cache_this = cache_this;
        let call = session.sequenced(&Operations::new().root());
        let results = compound(&mut session.client, 1, &call);
        assert_eq!(results.status, wanted, "cache_this {cache_this}");
    }
}

#[test]
fn data_that_fills_a_kept_reply_leaves_room_for_an_operation() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    std::fs::write(fixture.exported("file"), [7; 10_000]).unwrap();
    let export = session.export();
    session.cache_this = true;
    let args = ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 10_000 };
    let read = Operations::new().at(export).lookup(b"file");
    let read = read.op(OperationCode::Read, &args).getattr(&[]);
    let mut results = session.call(&read);
    results.skip(&[OperationCode::Putfh, OperationCode::Lookup]);
    let read = results.next_with(OperationCode::Read, |r| ReadOk::decode(r).unwrap().eof);
    let found = results.next_with(OperationCode::Getattr, |_| ());
    assert_eq!((read, found), (Ok(false), Ok(())));
    let mut refused = 0;
    for len in (1000..2048).step_by(8) {
        let name = format!("to {len}");
        std::os::unix::fs::symlink("x".repeat(len), fixture.exported(&name)).unwrap();
        let call = Operations::new().at(export).lookup(name.as_bytes());
        let call = call.op(OperationCode::Readlink, &()).getattr(&[]);
        let mut results = session.call(&call);
        results.skip(&[OperationCode::Putfh, OperationCode::Lookup]);
        let got = results
            .next_with(OperationCode::Readlink, |r| ReadlinkOk::decode(r).unwrap().target.len());
        match got {
            Ok(_) => {
                let found = results.next_with(OperationCode::Getattr, |_| ());
                assert_eq!(found, Ok(()), "a target of {len} bytes");
            }
            status => {
                assert_eq!(status, Err(Status::RepTooBigToCache));
                refused += 1;
            }
        }
    }
    assert!((1..131).contains(&refused), "{refused} of 131 targets were refused");
}

/// A client goes on where the page before ended: it would ask for a page that fails for ever.
#[test]
fn a_listing_that_is_kept_goes_on_to_its_end() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let export = session.export();
    session.cache_this = true;
    for len in 1..=40 {
        let dir = fixture.exported(&len.to_string());
        std::fs::create_dir(&dir).unwrap();
        let mut wanted: Vec<_> = (0..90).map(|number| format!("{number:x>len$}")).collect();
        for name in &wanted {
            std::fs::write(dir.join(name), b"").unwrap();
        }
        let (mut listed, mut cookie) = (Vec::new(), Some(0));
        while let Some(next) = cookie {
            let args = ReaddirArgs {
                cookie: next,
                verifier: Verifier::default(),
                dir_bytes: 0,
                bytes_max: 8192,
                wanted: Bitmap::EMPTY,
            };
            let call = Operations::new().at(export).lookup(len.to_string().as_bytes());
            // The GETATTR behind the listing has room, too.
            let call = call.op(OperationCode::Readdir, &args).getattr(&[]);
            let mut results = session.call(&call);
            results.skip(&[OperationCode::Putfh, OperationCode::Lookup]);
            let page = results.next_with(OperationCode::Readdir, |r| {
                let ok = ReaddirOk::decode(r).unwrap();
                let name = |entry: Entry<'_>| String::from_utf8(entry.name.to_vec()).unwrap();
                listed.extend(ok.entries.iter().map(name));
                let last = ok.entries.iter().last().map(|entry| entry.cookie);
                if ok.eof { None } else { last }
            });
            cookie = page.unwrap_or_else(|status| panic!("{len}: {status:?} at {next}"));
            let found = results.next_with(OperationCode::Getattr, |_| ());
            assert_eq!(found, Ok(()), "{len}: at {next}");
        }
        listed.sort();
        wanted.sort();
        assert_eq!(listed, wanted);
    }
}

#[test]
fn a_session_is_asked_to_use_fewer_slots_while_there_are_many() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let target = |session: &mut Session| {
        session.sequence += 1;
        let call = session.sequenced(&Operations::new());
        let mut results = compound(&mut session.client, session.minor_version, &call);
        let sequenced: SequenceOk = results.next(OperationCode::Sequence).unwrap();
        (sequenced.highest_slot.0, sequenced.target_highest_slot.0)
    };
    assert_eq!(target(&mut session), (63, 63));
    // 8 MiB for one address are 4096 replies of 2 KiB, beside one for each session.
    let mut client = fixture.client();
    let mut ids = Vec::new();
    for owner in 0..4_u8 {
        let (client_id, mut sequence, _) = exchange_id(&mut client, &[owner], 1).unwrap();
        for _ in 0..63 {
            let args = create_session_args(client_id, sequence);
            let call = Operations::new().op(OperationCode::CreateSession, &args);
            let mut results = compound(&mut client, 1, &call);
            let made: CreateSessionOk = results.next(OperationCode::CreateSession).unwrap();
            ids.push(made.session);
            sequence = SequenceId(sequence.0 + 1);
        }
    }
    assert_eq!(target(&mut session), (63, 4096 / (4 * 63 + 1)));
    for id in ids {
        let args = DestroySessionArgs { session: id };
        let call = Operations::new().op(OperationCode::DestroySession, &args);
        assert_eq!(compound(&mut client, 1, &call).status, Ok(()));
    }
    assert_eq!(target(&mut session), (63, 63));
}
