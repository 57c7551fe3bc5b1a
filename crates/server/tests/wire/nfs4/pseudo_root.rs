//! The directories above the exports.

use proto::nfs4::*;
use proto::xdr::Decode;

use spillway_server::counters::Counter;

use super::client::{ALL_VERSIONS, Operations, Session, exchange_id, open_args};
use crate::fixture::Fixture;

const SEVERAL: &str = r#"
    nfs_versions = ["4.1", "4.2"]
    [[export]]
    path = "$DIR/export"
    name = "/srv/one"
    squash = "none"
    [[export]]
    path = "$DIR/two"
    name = "/srv/deep/two"
    squash = "none"
    [[export]]
    path = "$DIR/hidden"
    name = "/hidden"
    [[export.client]]
    hosts = ["192.0.2.1"]
"#;

fn several() -> Fixture {
    Fixture::prepared(SEVERAL, |dir| {
        std::fs::create_dir(dir.join("two")).unwrap();
        std::fs::create_dir(dir.join("hidden")).unwrap();
        std::fs::write(dir.join("two/file"), b"two").unwrap();
    })
}

/// Those, and an export below that of `/srv/one`, with the keys `inner`; `names` are directories of
/// the outer export.
fn with_nested(inner: &str, names: &[&str]) -> Fixture {
    let nested = "[[export]]\npath = \"$DIR/two\"\nname = \"/srv/one/inner\"";
    Fixture::prepared(&format!("{SEVERAL}\n{nested}\n{inner}\n"), |dir| {
        for name in ["two", "hidden"] {
            std::fs::create_dir(dir.join(name)).unwrap();
        }
        for name in names {
            std::fs::create_dir(dir.join("export").join(name)).unwrap();
        }
    })
}

/// The names in a directory.
fn names(session: &mut Session, at: Operations) -> Vec<String> {
    let args = ReaddirArgs {
        cookie: 0,
        verifier: Verifier::default(),
        dir_bytes: 0,
        bytes_max: 4096,
        wanted: Bitmap::of(&[attribute::FILEID, attribute::RDATTR_ERROR]),
    };
    let lookups = at.clone();
    let mut results = session.ok(&at.op(OperationCode::Readdir, &args));
    results.skip(&lookups.codes());
    let body = results.next_with(OperationCode::Readdir, |r| {
        let ok = ReaddirOk::decode(r).unwrap();
        assert!(ok.eof);
        let names = ok.entries.iter();
        names.map(|entry| String::from_utf8_lossy(entry.name).into_owned()).collect()
    });
    body.unwrap()
}

#[test]
fn all_exports_lie_below_one_root() {
    let fixture = several();
    let mut session = Session::new(&fixture);
    assert_eq!(names(&mut session, Operations::new().root()), ["srv"], "others are not shown");
    let srv = Operations::new().root().lookup(b"srv");
    let mut below = names(&mut session, srv.clone());
    below.sort();
    assert_eq!(below, ["deep", "one"]);
    let two = srv.lookup(b"deep").lookup(b"two");
    assert_eq!(names(&mut session, two), ["file"]);
    let mut results = session.call(&Operations::new().root().lookup(b"hidden"));
    results.skip(&[OperationCode::Putrootfh]);
    assert_eq!(results.next::<()>(OperationCode::Lookup), Err(Status::Noent));
    assert_eq!(fixture.counter(Counter::DeniedCalls), 1);
}

/// The first entry of a directory behind a cookie, its cookie, and whether it is the last.
fn entry_behind(
    session: &mut Session,
    at: &Operations,
    cookie: u64,
) -> (Option<(String, u64)>, bool) {
    let (verifier, wanted) = (Verifier::default(), Bitmap::of(&[attribute::FILEID]));
    // Of short names, two do not fit.
    let args = ReaddirArgs { cookie, verifier, dir_bytes: 0, bytes_max: 80, wanted };
    let mut results = session.ok(&at.clone().op(OperationCode::Readdir, &args));
    let page = results.skip(&at.codes()).next_with(OperationCode::Readdir, |r| {
        let ok = ReaddirOk::decode(r).unwrap();
        let mut entries = ok.entries.iter();
        let entry =
            |entry: Entry<'_>| (String::from_utf8_lossy(entry.name).into_owned(), entry.cookie);
        let first = entries.next().map(entry);
        assert!(entries.next().is_none());
        (first, ok.eof)
    });
    page.unwrap()
}

#[test]
fn a_listing_above_the_exports_has_each_that_stays_once_while_others_come_and_go() {
    let export =
        |name: char| format!("[[export]]\npath = \"$DIR/export\"\nname = \"/srv/{name}\"\n");
    let with = |names: &str| {
        let exports: String = names.chars().map(export).collect();
        format!("nfs_versions = [\"4.1\"]\n{exports}")
    };
    let configs = [with("abcdstuv"), with("stuvefgh")];
    let fixture = Fixture::with(&configs[0]);
    let mut session = Session::new(&fixture);
    let srv = Operations::new().root().lookup(b"srv");
    let (mut names, mut cookie) = (Vec::new(), 0);
    for config in configs.iter().cycle() {
        fixture.reload(config);
        let (entry, eof) = entry_behind(&mut session, &srv, cookie);
        if let Some((name, behind)) = entry {
            assert!(behind > 2, "it is reserved");
            names.push(name);
            cookie = behind;
        }
        if eof {
            break;
        }
    }
    names.retain(|name| "stuv".contains(name.as_str()));
    names.sort();
    assert_eq!(names, ["s", "t", "u", "v"]);
}

#[test]
fn handles_of_the_root_last_over_a_restart() {
    let mut fixture = several();
    let mut session = Session::new(&fixture);
    let call = Operations::new().root().lookup(b"srv").getfh();
    let mut results = session.ok(&call);
    let srv = results.skip(&[OperationCode::Putrootfh, OperationCode::Lookup]).handle();
    fixture.restart();
    let mut session = Session::new(&fixture);
    session.ok(&Operations::new().at(srv).lookup(b"one"));
}

#[test]
fn lookupp_leads_from_an_export_to_the_root() {
    let fixture = several();
    let mut session = Session::new(&fixture);
    let up = |ops: Operations| ops.op(OperationCode::Lookupp, &());
    let root = Operations::new().root();
    let there_and_back = up(up(root.clone().lookup(b"srv").lookup(b"one"))).getfh();
    let mut results = session.ok(&there_and_back);
    let ops = [OperationCode::Putrootfh, OperationCode::Lookup, OperationCode::Lookup];
    let back = results.skip(&ops).skip(&[OperationCode::Lookupp; 2]).handle();
    let mut results = session.ok(&root.clone().getfh());
    assert_eq!(results.skip(&[OperationCode::Putrootfh]).handle(), back);
    let mut results = session.call(&up(root));
    results.skip(&[OperationCode::Putrootfh]);
    assert_eq!(results.next::<()>(OperationCode::Lookupp), Err(Status::Noent));
}

#[test]
fn changes_above_the_exports_are_refused() {
    let fixture = several();
    let mut session = Session::new(&fixture);
    let args = NameArgs { name: b"srv" };
    let mut results = session.call(&Operations::new().root().op(OperationCode::Remove, &args));
    results.skip(&[OperationCode::Putrootfh]);
    assert_eq!(results.next::<()>(OperationCode::Remove), Err(Status::Rofs));
    let access = AccessArgs { access: 0x1ff };
    let mut results = session.ok(&Operations::new().root().op(OperationCode::Access, &access));
    let granted: AccessOk =
        results.skip(&[OperationCode::Putrootfh]).next(OperationCode::Access).unwrap();
    assert_eq!(granted.access, ACCESS_READ | ACCESS_LOOKUP);
}

#[test]
fn file_systems_differ_at_the_root_of_an_export() {
    let fixture = Fixture::with(ALL_VERSIONS);
    let mut session = Session::new(&fixture);
    let wanted = [attribute::FSID, attribute::FILEID, attribute::MOUNTED_ON_FILEID];
    let call = Operations::new().root().getattr(&wanted).lookup(b"export").getattr(&wanted);
    let mut results = session.ok(&call);
    results.skip(&[OperationCode::Putrootfh]);
    let mut attributes = || {
        results.next_with(OperationCode::Getattr, |r| {
            let a = Attributes::decode(r).unwrap();
            (a.fsid.unwrap(), a.fileid.unwrap(), a.mounted_on_fileid.unwrap())
        })
    };
    let root = attributes().unwrap();
    assert_eq!(root.1, root.2);
    results.skip(&[OperationCode::Lookup]);
    let export = results
        .next_with(OperationCode::Getattr, |r| {
            let a = Attributes::decode(r).unwrap();
            (a.fsid.unwrap(), a.fileid.unwrap(), a.mounted_on_fileid.unwrap())
        })
        .unwrap();
    assert_ne!(root.0, export.0);
    assert_ne!(export.1, export.2, "the number below the mount is another");
}

type Identity = (Fsid, FileHandle, u64, u64);

const IDENTITY: [u32; 4] =
    [attribute::FSID, attribute::FILEHANDLE, attribute::FILEID, attribute::MOUNTED_ON_FILEID];

fn identity(a: &Attributes<'_>) -> Identity {
    (a.fsid.unwrap(), a.filehandle.unwrap(), a.fileid.unwrap(), a.mounted_on_fileid.unwrap())
}

/// The names in a directory with the attributes of the listing.
fn listed(session: &mut Session, at: &Operations) -> Vec<(Vec<u8>, Identity)> {
    let args = ReaddirArgs {
        cookie: 0,
        verifier: Verifier::default(),
        dir_bytes: 0,
        bytes_max: 8192,
        wanted: Bitmap::of(&IDENTITY),
    };
    let mut results = session.ok(&at.clone().op(OperationCode::Readdir, &args));
    results.skip(&at.codes());
    let listed = results.next_with(OperationCode::Readdir, |r| {
        let ok = ReaddirOk::decode(r).unwrap();
        assert!(ok.eof);
        let entry = |entry: Entry<'_>| (entry.name.to_vec(), identity(&entry.attributes));
        ok.entries.iter().map(entry).collect()
    });
    listed.unwrap()
}

/// A client that gets attributes with the names of a directory must see where a file system begins.
#[test]
fn a_listing_shows_exports_as_lookup_finds_them() {
    let fixture = with_nested("squash = \"none\"", &["inner", "other"]);
    let mut session = Session::new(&fixture);
    let root = Operations::new().root();
    let srv = root.clone().lookup(b"srv");
    let one = srv.clone().lookup(b"one");
    let mut all = Vec::new();
    for at in [root, srv.clone(), srv.lookup(b"deep"), one] {
        for (name, shown) in listed(&mut session, &at) {
            let call = at.clone().lookup(&name);
            let codes = call.codes();
            let mut results = session.ok(&call.getfh().getattr(&IDENTITY));
            let handle = results.skip(&codes).handle();
            let found = results
                .next_with(OperationCode::Getattr, |r| identity(&Attributes::decode(r).unwrap()));
            let name = String::from_utf8(name).unwrap();
            assert_eq!((shown, shown.1), (found.unwrap(), handle), "{name}");
            all.push(name);
        }
    }
    all.sort();
    assert_eq!(all, ["deep", "inner", "one", "other", "srv", "two"]);
}

/// The statuses of OPEN in all four ways, and of CREATE of a directory, by a name.
fn statuses(session: &mut Session, at: &Operations, name: &[u8]) -> [Reply<()>; 5] {
    let raw = RawAttributes { bitmap: Bitmap::EMPTY, values: &[] };
    let exclusive = OpenHow::Exclusive { verifier: Verifier([1; 8]), attributes: None };
    let ways = [OpenHow::NoCreate, OpenHow::Unchecked(raw), OpenHow::Guarded(raw), exclusive];
    let [no_create, unchecked, guarded, exclusive] = ways.map(|how| {
        let args = open_args(ShareAccess::Read, how, OpenClaim::Null(name));
        session.call(&at.clone().op(OperationCode::Open, &args)).status
    });
    let args = CreateArgs { kind: CreateKind::Directory, name, attributes: raw };
    let create = session.call(&at.clone().op(OperationCode::Create, &args)).status;
    [no_create, unchecked, guarded, exclusive, create]
}

/// A client that opens a name before it looks it up keeps in mind what does not exist.
#[test]
fn open_and_create_find_what_lookup_finds() {
    let fixture = with_nested("squash = \"none\"", &[]);
    let mut session = Session::new(&fixture);
    let root = Operations::new().root();
    let srv = root.clone().lookup(b"srv");
    let one = srv.clone().lookup(b"one");
    let (isdir, exist) = (Err(Status::Isdir), Err(Status::Exist));
    for (at, name) in [(&root, &b"srv"[..]), (&srv, b"deep"), (&srv, b"one"), (&one, b"inner")] {
        let found = statuses(&mut session, at, name);
        assert_eq!(found, [isdir, isdir, exist, exist, exist], "{}", name.escape_ascii());
    }
    assert!(!fixture.exported("inner").exists());
    let (noent, rofs) = (Err(Status::Noent), Err(Status::Rofs));
    for name in [&b"hidden"[..], b"missing"] {
        let found = statuses(&mut session, &root, name);
        assert_eq!(found, [noent, rofs, rofs, rofs, rofs], "{}", name.escape_ascii());
    }
}

#[test]
fn a_link_to_a_directory_is_refused_by_its_type() {
    let fixture = with_nested("squash = \"none\"", &["dir"]);
    let mut session = Session::new(&fixture);
    let root = Operations::new().root();
    let export = root.clone().lookup(b"srv").lookup(b"one");
    let codes = export.codes();
    let one = session.ok(&export.clone().getfh()).skip(&codes).handle();
    for directory in [root, export.clone(), export.lookup(b"dir")] {
        let saved = directory.op(OperationCode::Savefh, &()).at(one);
        let call = saved.op(OperationCode::Link, &NameArgs { name: b"new" });
        assert_eq!(session.call(&call).status, Err(Status::Isdir), "{:?}", call.codes());
    }
}

/// The entry that the export takes the place of would change, or hide what is moved onto it.
#[test]
fn the_name_of_an_export_below_another_is_as_fixed_as_that_of_a_mount_point() {
    let fixture = with_nested("squash = \"none\"", &["inner", "other"]);
    std::fs::write(fixture.exported("file"), "data").unwrap();
    let mut session = Session::new(&fixture);
    let path = Operations::new().root().lookup(b"srv").lookup(b"one");
    let codes = path.codes();
    let handle = session.ok(&path.getfh()).skip(&codes).handle();
    let one = Operations::new().at(handle);
    let saved = one.clone().op(OperationCode::Savefh, &());
    let rename = |old, new| saved.clone().op(OperationCode::Rename, &RenameArgs { old, new });
    let name = NameArgs { name: b"inner" };
    let file = one.clone().lookup(b"file").op(OperationCode::Savefh, &());
    let link = file.at(handle).op(OperationCode::Link, &name);
    for (call, status) in [
        (one.op(OperationCode::Remove, &name), Status::FileOpen),
        (rename(b"inner", b"moved"), Status::FileOpen),
        (rename(b"other", b"inner"), Status::FileOpen),
        (link, Status::Exist),
    ] {
        assert_eq!(session.call(&call).status, Err(status));
    }
    for name in ["inner", "other"] {
        assert!(fixture.exported(name).is_dir(), "{name}");
    }
}

#[test]
fn a_listing_does_not_show_an_export_that_refuses_the_client() {
    let fixture = with_nested("[[export.client]]\nhosts = [\"192.0.2.1\"]", &["inner", "other"]);
    let mut session = Session::new(&fixture);
    let one = Operations::new().root().lookup(b"srv").lookup(b"one");
    let names: Vec<_> = listed(&mut session, &one).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [b"other"]);
    assert_eq!(session.call(&one.clone().lookup(b"inner")).status, Err(Status::Access));
    assert_eq!(statuses(&mut session, &one, b"inner"), [Err(Status::Access); 5]);
}

/// In version 4 a client would keep what it has open, whatever owner and mode are by then.
#[test]
fn a_data_server_is_not_served_over_version_4() {
    let alone = r#"
        [[export]]
        path = "$DIR/export"
        name = "/export"
        profile = "data-server"
        metadata_servers = ["127.0.0.1"]
    "#;
    let fixture = Fixture::with(alone);
    let mut client = fixture.client();
    let refused = exchange_id(&mut client, b"client", 1).map(drop);
    assert_eq!(refused, Err(Status::Access));
    // Nor beside other exports.
    let other = "[[export]]\npath = \"$DIR/export\"\nname = \"/other\"";
    let fixture = Fixture::with(&format!("{alone}\n{other}"));
    let mut session = Session::new(&fixture);
    for name in [&b"export"[..], b"other"] {
        let call = Operations::new().root().lookup(name);
        let found = session.call(&call).status;
        let is_other = name == b"other";
        let wanted = if is_other { Ok(()) } else { Err(Status::Noent) };
        assert_eq!(found, wanted);
    }
}
