//! READDIR and READDIRPLUS: each name once, in replies of any length.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proto::nfs3::*;

use crate::client::{Client, Name, ok};
use crate::fixture::Fixture;

/// Names in the large directory.
const NAMES: usize = 10_000;

fn large_directory() -> Fixture {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.exported("large")).unwrap();
    for i in 0..NAMES {
        std::fs::write(fixture.exported(&format!("large/{}", name_of(i))), "").unwrap();
    }
    fixture
}

/// Names of many lengths, so that replies end at every remainder.
fn name_of(i: usize) -> String {
    format!("{i:05}-{}", "x".repeat(i % 60))
}

#[track_caller]
fn each_name_once(names: &[Name]) {
    let mut seen: HashMap<&[u8], usize> = HashMap::new();
    for name in names {
        *seen.entry(&name.name).or_default() += 1;
    }
    assert!(seen.values().all(|times| *times == 1), "a name came twice");
    assert_eq!(names.len(), NAMES + 2);
    assert!(seen.contains_key(&b"."[..]) && seen.contains_key(&b".."[..]));
    assert!((0..NAMES).all(|i| seen.contains_key(name_of(i).as_bytes())));
}

#[test]
fn readdir_lists_each_name_once_with_any_count() {
    let fixture = large_directory();
    let (mut client, root) = fixture.mounted();
    let dir = client.find(root, "large");
    for count in [512, 1024, 4096, 32 * 1024, 65_537, 1 << 20, u32::MAX] {
        let names = client.list_by(0, |client, cookie| {
            let page = client.readdir(dir, cookie, count).unwrap();
            assert!(page.bytes <= count as usize, "{} bytes of {count}", page.bytes);
            page
        });
        each_name_once(&names);
    }
}

#[test]
fn readdirplus_lists_each_name_once_and_keeps_both_limits() {
    let fixture = large_directory();
    let (mut client, root) = fixture.mounted();
    let dir = client.find(root, "large");
    for (dir_count, max_count) in
        [(512, 4096), (8192, 1024), (1 << 20, 32 * 1024), (1 << 20, 1 << 20)]
    {
        let names = client.list_by(0, |client, cookie| {
            let page = client.readdirplus(dir, cookie, (dir_count, max_count)).unwrap();
            assert!(page.bytes <= max_count as usize);
            let dir_bytes: usize =
                page.names.iter().map(|name| 20 + name.name.len().next_multiple_of(4)).sum();
            assert!(dir_bytes <= dir_count as usize);
            page
        });
        each_name_once(&names);
        for name in names.iter().filter(|name| name.name.starts_with(b"000")) {
            let attributes = name.attributes.expect("attributes");
            assert_eq!(attributes.fileid, name.fileid);
            assert_eq!(client.getattr(name.handle.expect("handle")), Ok(attributes));
        }
    }
}

#[test]
fn a_listing_continues_after_any_name_also_after_a_restart() {
    let mut fixture = Fixture::new();
    for i in 0..300 {
        std::fs::write(fixture.exported(&format!("f{i}")), "").unwrap();
    }
    let (mut client, root) = fixture.mounted();
    let whole = client.list(root);
    for restarted in [false, true] {
        if restarted {
            fixture.restart();
            client = fixture.client();
        }
        for (i, name) in whole.iter().enumerate().step_by(7) {
            // The verifier is no reason to send a client back to the start.
            let verifier = CookieVerifier([u8::try_from(i % 256).unwrap(); 8]);
            let rest = client.list_by(name.cookie, |client, cookie| {
                client
                    .readdir_with(ReaddirArgs { dir: root, cookie, verifier, count: 1 << 20 })
                    .unwrap()
            });
            assert_eq!(rest, whole[i + 1..], "after name {i}");
        }
    }
    let end = whole.last().unwrap().cookie;
    let nothing = client.readdir(root, end, 4096).unwrap();
    assert_eq!((nothing.names.len(), nothing.eof), (0, true));
}

#[test]
fn names_present_throughout_come_exactly_once_while_others_come_and_go() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    for i in 0..600 {
        std::fs::write(fixture.exported(&format!("d/stays-{i}")), "").unwrap();
        std::fs::write(fixture.exported(&format!("d/goes-{i}")), "").unwrap();
    }
    let mut round = 0;
    let names = client.list_by(0, |client, cookie| {
        // Until the last of them is gone: a listing of short replies is not to grow without end.
        for i in (round * 10..round * 10 + 10).take_while(|i| *i < 600) {
            let _ = client.remove(dir, format!("goes-{i}").as_bytes());
            let how = CreateHow::Unchecked(SetAttributes::default());
            ok(client.create_how(dir, format!("comes-{i}").as_bytes(), how));
        }
        round += 1;
        client.readdirplus(dir, cookie, (2048, 4096)).unwrap()
    });
    assert!(round > 10, "the listing took many replies");
    let stayed: Vec<_> = names.iter().filter(|name| name.name.starts_with(b"stays-")).collect();
    let distinct: HashSet<_> = stayed.iter().map(|name| &name.name).collect();
    assert_eq!((stayed.len(), distinct.len()), (600, 600));
}

#[test]
fn a_reply_too_small_for_one_name_is_an_error() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    client.create(dir, &"n".repeat(255));
    for count in [0, 1, 100, 107] {
        assert_eq!(client.readdir(dir, 0, count).unwrap_err(), Status::Toosmall, "{count}");
        let limits = (4096, count);
        assert_eq!(client.readdirplus(dir, 0, limits).unwrap_err(), Status::Toosmall, "{count}");
    }
    // It may also become too small on the way.
    let mut cookie = 0;
    let status = loop {
        match client.readdir(dir, cookie, 200) {
            Ok(page) => {
                assert!(!page.eof, "255 bytes do not fit");
                cookie = page.names.last().unwrap().cookie;
            }
            Err(status) => break status,
        }
    };
    assert_eq!(status, Status::Toosmall);
    assert_eq!(client.list(dir).len(), 3);
}

#[test]
fn a_name_longer_than_dircount_does_not_end_a_listing() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    client.create(dir, &"n".repeat(255));
    for dir_count in [0, 100] {
        let names = client.list_by(0, |client, cookie| {
            client.readdirplus(dir, cookie, (dir_count, 4096)).unwrap()
        });
        assert_eq!(names.len(), 3, "{dir_count}");
    }
}

#[test]
fn cookies_that_lead_nowhere_do_no_harm() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    client.create(root, "f");
    for cookie in [1, 12345, u64::MAX, 1 << 63, (1 << 63) - 1] {
        match client.readdir(root, cookie, 4096) {
            Ok(page) => assert!(page.names.len() <= 3),
            Err(status) => assert_eq!(status, Status::BadCookie, "{cookie}"),
        }
    }
    assert_eq!(client.list(root).len(), 3);
    let file = client.find(root, "f");
    assert_eq!(client.readdir(file, 0, 4096).unwrap_err(), Status::Notdir);
}

#[test]
fn names_above_the_root_are_not_listed() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    let own = client.getattr(root).unwrap();
    let names = client.list_plus(root);
    for name in [&b"."[..], b".."] {
        let entry = names.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!(entry.fileid, own.fileid);
        assert_eq!(entry.handle, Some(root));
        assert_eq!(entry.attributes.unwrap().fileid, own.fileid);
    }
    let names = client.list(root);
    assert!(names.iter().filter(|e| e.name.starts_with(b".")).all(|e| e.fileid == own.fileid));
    let names = client.list_plus(dir);
    let parent = names.iter().find(|entry| entry.name == b"..").unwrap();
    assert_eq!((parent.fileid, parent.handle), (own.fileid, Some(root)));
}

/// How long an inode must have lived before the server remembers its handle, and a little more.
const SETTLED: Duration = Duration::from_millis(1200);

fn list_plus(client: &mut Client, dir: FileHandle) -> Vec<Name> {
    let mut names = client.list_plus(dir);
    names.retain(|name| !name.name.starts_with(b"."));
    names
}

/// Holds each listed handle against that of LOOKUP, which asks the kernel anew, and against the
/// object that it opens.
fn are_right(client: &mut Client, dir: FileHandle, names: &[Name]) {
    for name in names {
        let handle = name.handle.expect("handle");
        assert_eq!(client.lookup(dir, &name.name).unwrap().object, handle, "{name:?}");
        assert_eq!(client.getattr(handle).unwrap().fileid, name.fileid, "{name:?}");
    }
}

fn handles_of(names: &[Name]) -> HashSet<Vec<u8>> {
    names.iter().map(|name| name.handle.expect("handle").as_bytes().to_vec()).collect()
}

fn fileids_of(names: &[Name]) -> HashSet<u64> {
    names.iter().map(|name| name.fileid).collect()
}

#[test]
fn files_made_again_under_their_names_have_new_handles() {
    const FILES: usize = 2000;
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    let paths: Vec<_> = (0..FILES).map(|i| fixture.exported(&format!("d/{i}"))).collect();
    paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
    std::thread::sleep(SETTLED);
    let mut before = list_plus(&mut client, dir);
    let mut seen = handles_of(&before);
    let (mut fileids, mut reused) = (fileids_of(&before), 0);
    // Old ones give way to new ones, those to others before they are remembered, and so on.
    for wait in [false, true, true, false, true] {
        assert_eq!(list_plus(&mut client, dir), before, "the same, remembered or not");
        paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
        if wait {
            std::thread::sleep(SETTLED);
        }
        let after = list_plus(&mut client, dir);
        are_right(&mut client, dir, &after);
        reused += fileids.intersection(&fileids_of(&after)).count();
        fileids.extend(fileids_of(&after));
        seen.extend(handles_of(&after));
        before = after;
    }
    assert_eq!(seen.len(), 6 * FILES, "each file that ever was has a handle of its own");
    eprintln!("{reused} of {} inode numbers were used again", 5 * FILES);
}

#[test]
fn a_recreated_file_has_a_new_handle_each_time() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    std::fs::write(fixture.exported("stays"), "").unwrap();
    std::thread::sleep(SETTLED);
    let mut seen = HashSet::new();
    for round in 0..3000 {
        let path = fixture.exported("comes and goes");
        std::fs::write(&path, "").unwrap();
        let names = list_plus(&mut client, root);
        assert_eq!(names.len(), 2, "round {round}");
        let named = |wanted: &[u8]| names.iter().find(|name| name.name == wanted).unwrap();
        let handle = named(b"comes and goes").handle.unwrap();
        assert!(seen.insert(handle.as_bytes().to_vec()), "round {round}");
        assert_eq!(client.lookup(root, b"comes and goes").unwrap().object, handle);
        assert_eq!(client.find(root, "stays"), named(b"stays").handle.unwrap());
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_remembered_handle_follows_its_inode_to_other_names() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let path = |name: &str| fixture.exported(name);
    for name in ["a", "b", "c"] {
        std::fs::write(path(name), name).unwrap();
    }
    std::thread::sleep(SETTLED);
    let first = list_plus(&mut client, root);
    let handle = |names: &[Name], wanted: &str| {
        names.iter().find(|name| name.name == wanted.as_bytes()).unwrap().handle.unwrap()
    };
    // A second name, a name that passes to another inode, and two that change places.
    std::fs::hard_link(path("a"), path("link")).unwrap();
    std::fs::rename(path("b"), path("a")).unwrap();
    std::fs::rename(path("c"), path("b")).unwrap();
    for _ in 0..2 {
        let now = list_plus(&mut client, root);
        are_right(&mut client, root, &now);
        for (name, earlier) in [("link", "a"), ("a", "b"), ("b", "c")] {
            assert_eq!(handle(&now, name), handle(&first, earlier), "{name} was {earlier}");
        }
    }
}

#[test]
fn an_empty_directory_has_two_names() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dir = client.mkdir(root, "d");
    assert_eq!(client.list(dir).len(), 2);
    std::fs::remove_dir(fixture.exported("d")).unwrap();
    assert_eq!(client.readdir(dir, 0, 4096).unwrap_err(), Status::Stale);
}

#[test]
fn two_clients_list_one_directory_at_once() {
    let fixture = large_directory();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (mut client, root) = fixture.mounted();
                let dir = client.find(root, "large");
                let names =
                    client.list_by(0, |client, cookie| client.readdir(dir, cookie, 8192).unwrap());
                each_name_once(&names);
            });
        }
    });
}
