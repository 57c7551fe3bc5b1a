//! Many clients at once: each change is atomic, none is lost, and no call waits forever.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proto::nfs3::*;

use crate::client::{mode, ok, refusal, size};
use crate::fixture::Fixture;

const CLIENTS: usize = 6;

/// Runs `body` in several clients that begin together.
fn together<T: Send>(
    fixture: &Fixture,
    body: impl Fn(usize, &mut crate::client::Client, FileHandle) -> T + Sync,
) -> Vec<T> {
    let barrier = Barrier::new(CLIENTS);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|i| {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || {
                    let (mut client, root) = fixture.mounted();
                    barrier.wait();
                    body(i, &mut client, root)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

#[test]
fn one_of_many_creates_a_name() {
    let fixture = Fixture::new();
    for round in 0..20u64 {
        let name = format!("f{round}");
        let won = together(&fixture, |i, client, root| {
            let unique = (round * 100 + i as u64).to_be_bytes();
            let how = if round % 2 == 0 {
                CreateHow::Guarded(mode(0o600))
            } else {
                CreateHow::Exclusive(unique)
            };
            match client.create_how(root, name.as_bytes(), how) {
                Ok(_) => true,
                Err(failure) => {
                    assert_eq!(failure.status, Status::Exist);
                    false
                }
            }
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "round {round}");
    }
}

#[test]
fn create_beside_a_local_program_with_the_same_name_never_misses_it() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (is_over, lasts) = (AtomicBool::new(false), Duration::from_millis(700));
    let path = fixture.exported("lock");
    thread::scope(|scope| {
        scope.spawn(|| {
            let started = Instant::now();
            while started.elapsed() < lasts {
                // The client may have it.
                let _ = std::fs::File::create_new(&path);
                let _ = std::fs::remove_file(&path);
            }
            is_over.store(true, Ordering::Release);
        });
        let attributes = SetAttributes::default();
        let ways = [
            CreateHow::Unchecked(attributes),
            CreateHow::Guarded(attributes),
            CreateHow::Exclusive([7; 8]),
        ];
        for (nth, how) in ways.iter().cycle().enumerate() {
            if nth.is_multiple_of(ways.len()) && is_over.load(Ordering::Acquire) {
                break;
            }
            match client.create_how(root, b"lock", *how) {
                Ok(_) => drop(client.remove(root, b"lock")),
                // Too many lost races in a row are a matter of time too.
                Err(refused) => assert!(
                    matches!(refused.status, Status::Exist | Status::Jukebox),
                    "{how:?}: {:?}",
                    refused.status
                ),
            }
        }
    });
}

#[test]
fn renames_in_opposite_directions_do_not_wait_for_each_other() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let dirs = [client.mkdir(root, "a"), client.mkdir(root, "b"), client.mkdir(root, "c")];
    for i in 0..CLIENTS {
        client.create(dirs[i % 3], &format!("f{i}"));
    }
    together(&fixture, |i, client, _| {
        let name = format!("f{i}");
        for step in i..i + 60 {
            let (from, to) = (dirs[step % 3], dirs[(step + 1) % 3]);
            ok(client.rename((from, name.as_bytes()), (to, name.as_bytes())));
            ok(client.lookup(to, name.as_bytes()));
        }
    });
    let left: usize = dirs.iter().map(|dir| client.list(*dir).len()).sum();
    assert_eq!(left, CLIENTS + 3 * 2, "each file is still there once");
}

#[test]
fn concurrent_changes_of_one_name_get_correct_answers() {
    let fixture = Fixture::new();
    together(&fixture, |i, client, root| {
        for round in 0..60 {
            let how = CreateHow::Unchecked(mode(0o666));
            match (i + round) % 6 {
                0 | 1 => {
                    let reply = client.create_how(root, b"x", how);
                    let status = reply.err().map(|failure| failure.status);
                    // Another client may have removed it between the two steps, or put a
                    // directory there.
                    let fair =
                        [None, Some(Status::Noent), Some(Status::Isdir), Some(Status::Stale)];
                    assert!(fair.contains(&status), "CREATE: {status:?}");
                }
                2 => {
                    let status = client.remove(root, b"x").err().map(|failure| failure.status);
                    let fair = [None, Some(Status::Noent), Some(Status::Isdir)];
                    assert!(fair.contains(&status), "REMOVE: {status:?}");
                }
                3 => {
                    let status = client.rename((root, b"x"), (root, b"y")).err().map(|f| f.status);
                    let fair =
                        [None, Some(Status::Noent), Some(Status::Isdir), Some(Status::Notdir)];
                    assert!(fair.contains(&status), "RENAME: {status:?}");
                }
                4 => {
                    if let Ok(found) = client.lookup(root, b"x") {
                        for status in [
                            client.getattr(found.object).err(),
                            client.write(found.object, 0, b"data").err().map(|f| f.status),
                            client.commit(found.object).err().map(|f| f.status),
                        ] {
                            let fair = [None, Some(Status::Stale), Some(Status::Isdir)];
                            assert!(fair.contains(&status), "{status:?}");
                        }
                    }
                }
                _ => {
                    let status = client.try_mkdir(root, b"x", mode(0o777)).err().map(|f| f.status);
                    assert!([None, Some(Status::Exist)].contains(&status), "MKDIR: {status:?}");
                    let status = client.rmdir(root, b"x").err().map(|f| f.status);
                    let fair = [None, Some(Status::Noent), Some(Status::Notdir)];
                    assert!(fair.contains(&status), "RMDIR: {status:?}");
                }
            }
        }
    });
}

#[test]
fn writers_of_one_file_do_not_tear_each_others_blocks() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    const BLOCK: usize = 10_000;
    together(&fixture, |i, client, _| {
        let data = vec![u8::try_from(i + 1).unwrap(); BLOCK];
        for round in 0..30 {
            // All write the same block, and each one of its own.
            ok(client.write(file, 0, &data));
            let own = (i + 1) * BLOCK * 30 + round * BLOCK;
            ok(client.write(file, own as u64, &data));
        }
        ok(client.commit(file));
    });
    let shared = client.read(file, 0, 10_000).unwrap().data;
    assert!(shared.iter().all(|byte| *byte == shared[0]), "one writer's data is there, whole");
    for i in 0..CLIENTS {
        let start = ((i + 1) * BLOCK * 30) as u64;
        let own = client.read(file, start, 300_000).unwrap().data;
        assert!(own.iter().all(|byte| usize::from(*byte) == i + 1) && own.len() == 300_000);
    }
}

#[test]
fn readers_see_old_or_new_length_while_a_file_is_cut() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    ok(client.write(file, 0, &[7; 200_000]));
    together(&fixture, |i, client, _| {
        for _ in 0..60 {
            if i == 0 {
                ok(client.setattr(file, size(100_000)));
                ok(client.write(file, 100_000, &[7; 100_000]));
            } else {
                let read = client.read(file, 0, 200_000).unwrap();
                assert!((100_000..=200_000).contains(&read.data.len()));
                // Of the page that a cut goes through the kernel may show the zeroes for a moment.
                let (kept, cut) = read.data.split_at(100_000);
                assert!(kept.iter().all(|byte| *byte == 7), "what is never cut is never a hole");
                assert!(cut.iter().all(|byte| matches!(byte, 0 | 7)));
                // Short without being the end: it has grown again since.
                let len = read.data.len() as u64;
                assert!(len == 200_000 || read.eof || read.attributes.unwrap().size > len);
            }
        }
    });
}

#[test]
fn a_file_removed_under_its_readers_is_stale_for_all() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    for _ in 0..10 {
        let file = client.create(root, "f");
        ok(client.write(file, 0, &[7; 100_000]));
        together(&fixture, |i, client, _| {
            if i == 0 {
                ok(client.remove(root, b"f"));
            }
            for _ in 0..10 {
                match client.read(file, 0, 100_000) {
                    Ok(read) => assert_eq!(read.data.len(), 100_000),
                    Err(status) => assert_eq!(status, Status::Stale),
                }
            }
        });
        assert_eq!(refusal(client.write(file, 0, b"x")), Status::Stale);
    }
}
