//! Weak cache consistency (RFC 1813 §2.6): attributes before and after each change. A client that
//! works alone must find its own last attributes in front of each of its changes, or it drops its
//! cache for nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use proto::nfs3::*;

use crate::client::{Client, mode, ok, size};
use crate::fixture::Fixture;

/// A client's cached attributes of one object.
struct Seen(WccAttributes);

impl Seen {
    fn of(client: &mut Client, object: FileHandle) -> Self {
        Self(WccAttributes::from(&client.getattr(object).unwrap()))
    }

    /// Holds the attributes before against those remembered, and remembers those after.
    #[track_caller]
    fn follow(&mut self, wcc: &WccData) {
        assert_eq!(wcc.before, Some(self.0), "before");
        self.0 = WccAttributes::from(&wcc.after.expect("after"));
    }
}

#[test]
fn changes_of_a_file_chain_together() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let mut seen = Seen::of(&mut client, file);
    for (round, bits) in (0..20u64).zip((0o600..0o610).cycle()) {
        let stable = [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync];
        for stable in stable {
            let wcc = ok(client.write_stable(file, round * 3000, &[1; 5000], stable)).wcc;
            assert_eq!(wcc.after.unwrap().size, round * 3000 + 5000);
            seen.follow(&wcc);
        }
        seen.follow(&ok(client.commit(file)).wcc);
        seen.follow(&ok(client.setattr(file, mode(bits))).wcc);
        seen.follow(&ok(client.setattr(file, size(round * 3000 + 5000))).wcc);
    }
    assert_eq!(Seen::of(&mut client, file).0, seen.0, "GETATTR returns the same");
}

#[test]
fn a_commit_claims_no_write_that_falls_into_it() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = fixture.client();
            for round in 0..300 {
                ok(writer.write(file, round * 10_000, &[1; 10_000]));
            }
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            let WccData { before, after } = ok(client.commit(file)).wcc;
            let after = WccAttributes::from(&after.expect("after"));
            assert!(before.is_none_or(|before| before == after), "{before:?}, {after:?}");
        }
    });
    let WccData { before, after } = ok(client.commit(file)).wcc;
    assert_eq!(before, after.as_ref().map(WccAttributes::from), "all writers have ended");
}

#[test]
fn changes_of_a_directory_chain_together() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (dir, other) = (client.mkdir(root, "d"), client.mkdir(root, "e"));
    let file = client.create(other, "elsewhere");
    let mut seen = Seen::of(&mut client, dir);
    let mut seen_other = Seen::of(&mut client, other);
    for _ in 0..5 {
        let how = CreateHow::Guarded(mode(0o600));
        seen.follow(&ok(client.create_how(dir, b"f", how)).dir_wcc);
        seen.follow(&ok(client.create_how(dir, b"x", CreateHow::Exclusive([1; 8]))).dir_wcc);
        let unchecked = CreateHow::Unchecked(size(0));
        seen.follow(&ok(client.create_how(dir, b"f", unchecked)).dir_wcc);
        seen.follow(&ok(client.try_mkdir(dir, b"s", mode(0o700))).dir_wcc);
        seen.follow(&ok(client.symlink(dir, b"l", b"t")).dir_wcc);
        seen.follow(&ok(client.mknod(dir, b"p", MknodData::Fifo(mode(0o600)))).dir_wcc);
        seen.follow(&ok(client.link(file, dir, b"hard")).dir_wcc);
        let within = ok(client.rename((dir, b"f"), (dir, b"g")));
        assert_eq!((within.from_wcc.before, within.to_wcc.after), {
            (within.to_wcc.before, within.from_wcc.after)
        });
        seen.follow(&within.from_wcc);
        let across = ok(client.rename((dir, b"g"), (other, b"g")));
        seen.follow(&across.from_wcc);
        seen_other.follow(&across.to_wcc);
        for name in [&b"x"[..], b"l", b"p", b"hard"] {
            seen.follow(&ok(client.remove(dir, name)).dir_wcc);
        }
        seen.follow(&ok(client.rmdir(dir, b"s")).dir_wcc);
        seen_other.follow(&ok(client.remove(other, b"g")).dir_wcc);
    }
    assert_eq!(Seen::of(&mut client, dir).0, seen.0);
}

#[test]
fn refusals_come_with_attributes_too() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (dir, file) = (client.mkdir(root, "d"), client.create(root, "f"));
    client.create(dir, "there");
    let mut seen = Seen::of(&mut client, dir);
    let long = [b'n'; 300];
    for name in [&b"there"[..], &long, b"a/b", b"."] {
        let how = CreateHow::Guarded(mode(0o600));
        seen.follow(&client.create_how(dir, name, how).unwrap_err().body);
        seen.follow(&client.try_mkdir(dir, name, mode(0o600)).unwrap_err().body);
        seen.follow(&client.symlink(dir, name, b"t").unwrap_err().body);
        seen.follow(&client.rmdir(dir, name).unwrap_err().body);
        seen.follow(&client.link(file, dir, name).unwrap_err().body.dir_wcc);
        let body = client.rename((dir, name), (dir, b"..")).unwrap_err().body;
        seen.follow(&body.from_wcc);
    }
    seen.follow(&client.remove(dir, b"nothing").unwrap_err().body);
    assert!(client.link(file, dir, b"there").unwrap_err().body.file_attributes.is_some());
    assert!(client.lookup(dir, b"nothing").unwrap_err().body.is_some());
    assert!(client.lookup(dir, &long).unwrap_err().body.is_some());
    let mut seen = Seen::of(&mut client, file);
    seen.follow(&client.write(file, u64::MAX, b"x").unwrap_err().body);
    seen.follow(&client.setattr(file, size(u64::MAX)).unwrap_err().body);
    let mut seen = Seen::of(&mut client, root);
    seen.follow(&client.setattr(root, size(0)).unwrap_err().body);
    seen.follow(&client.write(root, 0, b"x").unwrap_err().body);
    seen.follow(&client.commit(root).unwrap_err().body);
}

#[test]
fn concurrent_writes_of_two_clients_chain_as_a_whole() {
    // Each change must name the state that some other change has left: one order for all.
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let first = Seen::of(&mut client, file).0;
    let writer = |i: u64| {
        let mut client = fixture.client();
        move || -> Vec<WccData> {
            (0..40).map(|n| ok(client.write(file, (n * 4 + i) * 100, &[1; 100])).wcc).collect()
        }
    };
    let wccs: Vec<WccData> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4).map(|i| scope.spawn(writer(i))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let mut states: Vec<_> =
        wccs.iter().map(|wcc| WccAttributes::from(&wcc.after.unwrap())).collect();
    states.push(first);
    for wcc in &wccs {
        assert!(states.contains(&wcc.before.unwrap()), "{wcc:?} starts from an unknown state");
    }
}
