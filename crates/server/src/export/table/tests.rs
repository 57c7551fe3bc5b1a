use proptest::prelude::*;

use super::*;

fn export(name: &str, id: u32) -> Export {
    let path = PathBuf::from("/srv");
    let rules = vec![Rule::loopback(Access::default())];
    Export {
        id,
        name: name.to_owned(),
        path,
        sync: true,
        file_sync_writes: false,
        policy: IoPolicy::default(),
        limits: Limits::default(),
        rules,
        metadata_servers: None,
    }
}

fn table(names: &[&str]) -> ExportTable {
    let exports = names.iter().zip(1..).map(|(name, id)| export(name, id)).collect();
    ExportTable::new(exports).unwrap()
}

fn network(text: &str) -> HostSpec {
    let network = text.parse::<IpNet>().or_else(|_| text.parse().map(|a: IpAddr| a.into()));
    HostSpec::network(network.unwrap())
}

fn name(name: &str, addresses: &[&str]) -> HostSpec {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    HostSpec::Name { name: name.to_owned(), addresses }
}

fn peer(address: &str) -> Peer {
    Peer { address: address.parse().unwrap(), purpose: Purpose::Data }
}

fn read_only() -> Access {
    Access { read_only: true, ..Access::default() }
}

#[test]
fn a_name_is_found_exactly_or_with_slashes_at_its_end() {
    let table = table(&["/data", "/data/deep"]);
    let cases: [(&[u8], Option<u32>); 9] = [
        (b"/data", Some(1)),
        (b"/data/", Some(1)),
        (b"/data//", Some(1)),
        (b"/data/deep", Some(2)),
        (b"/dat", None),
        (b"/database", None),
        (b"data", None),
        (b"/", None),
        (b"", None),
    ];
    for (name, id) in cases {
        assert_eq!(table.by_name(name).map(|export| export.id), id, "{}", name.escape_ascii());
    }
}

#[test]
fn the_export_named_slash_is_found_only_by_slashes() {
    let table = table(&["/"]);
    assert!(table.by_name(b"/").is_some());
    assert!(table.by_name(b"//").is_some());
    assert!(table.by_name(b"").is_none());
    assert!(table.by_name(b"/x").is_none());
}

#[test]
fn the_longest_prefix_ends_at_a_component() {
    let table = table(&["/data", "/data/deep", "/"]);
    type Found<'a> = Option<(u32, &'a [u8])>;
    let cases: [(&[u8], Found<'_>); 9] = [
        (b"/data", Some((1, b""))),
        (b"/data/", Some((1, b""))),
        (b"/data/x/y/", Some((1, b"x/y"))),
        (b"/data//x", Some((1, b"x"))),
        (b"/data/deep/z", Some((2, b"z"))),
        (b"/data/deeper", Some((1, b"deeper"))),
        (b"/database", Some((3, b"database"))),
        (b"/", Some((3, b""))),
        (b"data/x", None),
    ];
    for (path, expected) in cases {
        let found = table.longest_prefix(path).map(|(export, rest)| (export.id, rest));
        assert_eq!(found, expected, "{}", path.escape_ascii());
    }
}

#[test]
fn no_prefix_is_no_export() {
    assert_eq!(table(&["/data"]).longest_prefix(b"/other/data"), None);
}

#[test]
fn ids_are_found_whatever_their_order() {
    let exports = vec![export("/c", 9), export("/a", 0), export("/b", u32::MAX)];
    let table = ExportTable::new(exports).unwrap();
    for (id, name) in [(9, "/c"), (0, "/a"), (u32::MAX, "/b")] {
        assert_eq!(table.by_id(id).unwrap().name, name);
    }
    assert!(table.by_id(1).is_none());
}

#[test]
fn shared_names_and_ids_are_conflicts() {
    let conflict = ExportTable::new(vec![export("/a", 1), export("/b", 2), export("/a", 3)]);
    assert_eq!(conflict, Err(Conflict { first: 0, second: 2, shared: Shared::Name }));
    let conflict = ExportTable::new(vec![export("/a", 1), export("/b", 2), export("/c", 2)]);
    assert_eq!(conflict, Err(Conflict { first: 1, second: 2, shared: Shared::Id }));
}

#[test]
fn the_first_rule_that_names_the_peer_decides() {
    let mut export = export("/a", 1);
    export.rules = vec![
        Rule { hosts: vec![network("10.1.0.0/16")], access: read_only() },
        Rule { hosts: vec![network("10.0.0.0/8")], access: Access::default() },
    ];
    assert!(export.admit(&peer("10.1.2.3:900"), Flavor::Sys).unwrap().read_only);
    assert!(!export.admit(&peer("10.2.2.3:900"), Flavor::Sys).unwrap().read_only);
    assert_eq!(export.admit(&peer("11.2.2.3:900"), Flavor::Sys), Err(Denied::NotAllowed));
}

#[test]
fn each_kind_of_host_names_its_peers_only() {
    let cases = [
        (HostSpec::Any, "203.0.113.9:1", true),
        (HostSpec::Any, "[2001:db8::1]:1", true),
        (network("192.168.1.5"), "192.168.1.5:1", true),
        (network("192.168.1.5"), "192.168.1.6:1", false),
        (network("192.168.1.5"), "[::ffff:192.168.1.5]:1", true),
        (network("::ffff:192.168.1.5"), "192.168.1.5:1", true),
        (network("::ffff:10.0.0.0/104"), "10.9.9.9:1", true),
        (network("::ffff:10.0.0.0/104"), "11.9.9.9:1", false),
        (network("fd00::/8"), "[fdaa::1]:1", true),
        (network("fd00::/8"), "[fe80::1]:1", false),
        (network("0.0.0.0/0"), "[2001:db8::1]:1", false),
        (network("::/0"), "10.0.0.1:1", false),
        (name("a.example", &["10.0.0.1", "fd00::1"]), "10.0.0.1:1", true),
        (name("a.example", &["10.0.0.1", "fd00::1"]), "[fd00::1]:1", true),
        (name("a.example", &["10.0.0.1", "fd00::1"]), "10.0.0.2:1", false),
    ];
    for (host, address, admitted) in cases {
        let mut export = export("/a", 1);
        export.rules = vec![Rule { hosts: vec![host.clone()], access: Access::default() }];
        let answer = export.admit(&peer(address), Flavor::Sys);
        assert_eq!(answer.is_ok(), admitted, "{host} {address}");
    }
}

#[test]
fn loopback_is_this_machine_in_both_families() {
    let export = export("/a", 1);
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(export.admit(&peer(address), Flavor::Sys).is_ok(), "{address}");
    }
    for address in ["10.0.0.1:1", "[::2]:1", "0.0.0.0:1"] {
        let answer = export.admit(&peer(address), Flavor::Sys);
        assert_eq!(answer, Err(Denied::NotAllowed), "{address}");
    }
}

#[test]
fn a_rule_may_ask_for_a_privileged_port_and_is_not_skipped_for_lack_of_one() {
    let secure = Access { require_privileged_port: true, ..Access::default() };
    let mut export = export("/a", 1);
    export.rules = vec![
        Rule { hosts: vec![network("10.0.0.1")], access: secure },
        Rule { hosts: vec![HostSpec::Any], access: Access::default() },
    ];
    assert!(export.admit(&peer("10.0.0.1:1023"), Flavor::Sys).is_ok());
    let answer = export.admit(&peer("10.0.0.1:1024"), Flavor::Sys);
    assert_eq!(answer, Err(Denied::InsecurePort { port: 1024, rule: RulePlace::Listed(0) }));
    assert!(export.admit(&peer("10.0.0.2:1024"), Flavor::Sys).is_ok());
}

#[test]
fn a_data_server_gives_names_to_metadata_servers_alone_and_nothing_to_version_4() {
    let mut export = export("/a", 1);
    let data_only = Access { data_only: true, ..Access::default() };
    export.rules = vec![Rule { hosts: vec![HostSpec::Any], access: data_only }];
    let unsquashed = Access { squash: Squash::None, ..Access::default() };
    export.metadata_servers = Some(Rule { hosts: vec![network("10.0.0.1")], access: unsquashed });
    let admit = |address: &str, purpose| {
        let peer = Peer { purpose, ..peer(address) };
        export.admit(&peer, Flavor::Sys)
    };
    let rule = RulePlace::Listed(0);
    assert_eq!(admit("10.0.0.2:1", Purpose::Data), Ok(data_only));
    assert_eq!(admit("10.0.0.2:1", Purpose::Names), Err(Denied::DataOnly { rule }));
    for purpose in [Purpose::Data, Purpose::Names] {
        assert_eq!(admit("10.0.0.1:1", purpose), Ok(unsquashed));
    }
    for address in ["10.0.0.1:1", "10.0.0.2:1"] {
        assert_eq!(admit(address, Purpose::Version4), Err(Denied::Version4));
    }
}

#[test]
fn auth_none_is_anonymous_even_with_ids_and_without_squash() {
    let mut export = export("/a", 1);
    export.rules[0].access.squash = Squash::None;
    let access = export.admit(&peer("127.0.0.1:1"), Flavor::None).unwrap();
    let credential = Credential { uid: 0, gid: 0, groups: &[0, 5] };
    for credential in [None, Some(credential)] {
        let ids = access.identity(credential);
        assert_eq!((ids.uid, ids.gid, &*ids.groups), (ANONYMOUS_ID, ANONYMOUS_ID, &[][..]));
    }
}

#[test]
fn squash_maps_the_ids_it_names() {
    const MINUS_ONE: u32 = u32::MAX;
    type Ids<'a> = (u32, u32, &'a [u32]);
    let cases: [(Squash, Ids<'_>, Ids<'_>); 9] = [
        (Squash::Root, (1000, 1000, &[4, 27]), (1000, 1000, &[4, 27])),
        (Squash::Root, (0, 0, &[0, 4]), (70, 71, &[71, 4])),
        (Squash::Root, (0, 5, &[]), (70, 5, &[])),
        (Squash::Root, (5, 0, &[0, 71, 0]), (5, 71, &[71])),
        (Squash::None, (0, 0, &[0, 4]), (0, 0, &[0, 4])),
        (Squash::None, (MINUS_ONE, MINUS_ONE, &[MINUS_ONE]), (70, 71, &[71])),
        (Squash::Root, (MINUS_ONE, 5, &[5, MINUS_ONE]), (70, 5, &[5, 71])),
        (Squash::All, (1000, 1000, &[4, 27]), (70, 71, &[])),
        (Squash::All, (0, 0, &[0]), (70, 71, &[])),
    ];
    for (squash, (uid, gid, groups), expected) in cases {
        let access = Access { squash, anonymous_uid: 70, anonymous_gid: 71, ..Access::default() };
        let ids = access.identity(Some(Credential { uid, gid, groups }));
        assert_eq!((ids.uid, ids.gid, &*ids.groups), expected, "{squash:?} {uid} {gid} {groups:?}");
    }
}

#[test]
fn at_most_sixteen_different_groups_are_kept() {
    let sent: Vec<u32> = (1..=20).flat_map(|id| [id, id]).collect();
    let ids = Access::default().identity(Some(Credential { uid: 1, gid: 1, groups: &sent }));
    assert_eq!(&*ids.groups, (1..=16).collect::<Vec<u32>>());
}

proptest! {
    #[test]
    fn minus_one_and_squashed_root_never_pass(
        uid in prop_oneof![Just(0), Just(u32::MAX), any::<u32>()],
        gid in prop_oneof![Just(0), Just(u32::MAX), any::<u32>()],
        groups in prop::collection::vec(prop_oneof![Just(0), Just(u32::MAX), any::<u32>()], 0..40),
        squash in prop_oneof![Just(Squash::None), Just(Squash::Root), Just(Squash::All)],
    ) {
        let access = Access { squash, ..Access::default() };
        let ids = access.identity(Some(Credential { uid, gid, groups: &groups }));
        let mut all = vec![ids.uid, ids.gid];
        all.extend_from_slice(&ids.groups);
        prop_assert!(!all.contains(&u32::MAX));
        prop_assert!(squash == Squash::None || !all.contains(&0));
    }
}

#[test]
fn hosts_are_shown_as_written() {
    let mut export = export("/a", 1);
    let second = vec![name("a.example", &["10.0.0.1"]), network("fd00::/8"), HostSpec::Any];
    export.rules = vec![
        Rule { hosts: vec![network("10.0.0.0/8"), network("10.0.0.1")], access: read_only() },
        Rule { hosts: second, access: read_only() },
    ];
    let shown: Vec<_> = export.host_specs().collect();
    assert_eq!(shown, ["10.0.0.0/8", "10.0.0.1", "a.example", "fd00::/8", "*"]);
}

#[test]
fn a_reload_is_summarised_in_one_line() {
    let old = table(&["/a", "/b", "/c"]);
    let mut changed = export("/c", 3);
    changed.rules[0].access.read_only = true;
    let new = ExportTable::new(vec![export("/d", 4), export("/a", 1), changed]).unwrap();
    assert_eq!(new.changes_since(&old), "added /d, changed /c, removed /b");
    assert_eq!(new.changes_since(&new), "no export changed");
}
