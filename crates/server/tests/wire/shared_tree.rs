//! Exports that show the same files: what protects a file must be one for all of them.

use std::collections::HashSet;

use proto::nfs3::*;

use crate::client::{Client, ok};
use crate::fixture::{Fixture, set_mode};

/// One directory twice, and its subdirectory `sub`.
fn shared_tree(write_mode: &str) -> Fixture {
    let exports = ["/export", "/again", "/sub"].map(|name| {
        let path = if name == "/sub" { "$DIR/export/sub" } else { "$DIR/export" };
        format!(
            "[[export]]\npath = \"{path}\"\nname = \"{name}\"\nsquash = \"none\"\nsync = false\n\
             io_cache_write = \"{write_mode}\"\n"
        )
    });
    Fixture::prepared(&exports.join("\n"), |dir| {
        std::fs::create_dir(dir.join("export/sub")).unwrap();
        set_mode(&dir.join("export/sub"), 0o777);
    })
}

/// A new file in `sub`, by a client of each export.
fn clients_of_one_file(fixture: &Fixture) -> [(Client, FileHandle); 3] {
    let mut maker = fixture.client();
    let sub = maker.mnt("/sub");
    let file = maker.create(sub, "f");
    let [one, other] = ["/export", "/again"].map(|name| {
        let mut client = fixture.client();
        let root = client.mnt(name);
        let sub = client.find(root, "sub");
        let file = client.find(sub, "f");
        (client, file)
    });
    [one, other, (maker, file)]
}

/// Writes of all clients at once, `data_len` bytes each side by side. Returns the replies.
fn write_side_by_side(
    clients: &mut [(Client, FileHandle); 3],
    data_len: usize,
    rounds: u64,
) -> Vec<WriteOk> {
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1u8..)
            .zip(clients)
            .map(|(number, (client, file))| {
                scope.spawn(move || {
                    let data = vec![number; data_len];
                    let offset = u64::from(number - 1) * data_len as u64;
                    let write = |_| ok(client.write(*file, offset, &data));
                    (0..rounds).map(write).collect::<Vec<_>>()
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    })
}

#[test]
fn writes_through_several_exports_have_exact_pairs_and_lose_no_byte() {
    for (write_mode, data_len, rounds) in [("auto", 30_001, 60), ("direct", 700_001, 12)] {
        let fixture = shared_tree(write_mode);
        let mut clients = clients_of_one_file(&fixture);
        let first = WccAttributes::from(&clients[0].0.getattr(clients[0].1).unwrap());
        let replies = write_side_by_side(&mut clients, data_len, rounds);
        let state = |reply: &WriteOk| WccAttributes::from(&reply.wcc.after.unwrap());
        let mut left: Vec<_> = replies.iter().map(state).collect();
        left.push(first);
        let mut continued = HashSet::new();
        for reply in &replies {
            let before = reply.wcc.before.unwrap();
            assert!(left.contains(&before), "{write_mode}: {before:?} is the end of no change");
            let key = format!("{before:?}");
            assert!(continued.insert(key), "{write_mode}: two changes follow {before:?}");
        }
        for (client, file) in &mut clients {
            for number in 1u8..=3 {
                let offset = u64::from(number - 1) * data_len as u64;
                let read = client.read(*file, offset, u32::try_from(data_len).unwrap()).unwrap();
                assert_eq!(read.data.len(), data_len);
                assert!(read.data.iter().all(|byte| *byte == number), "{write_mode}: lost bytes");
            }
        }
    }
}

#[test]
fn exports_of_one_file_system_have_one_write_verifier() {
    let fixture = shared_tree("auto");
    let mut clients = clients_of_one_file(&fixture);
    let verifiers = clients.each_mut().map(|(client, file)| {
        let written = ok(client.write(*file, 0, b"data")).verifier;
        assert_eq!(written, ok(client.commit(*file)).verifier);
        written
    });
    assert!(verifiers.iter().all(|verifier| *verifier == verifiers[0]), "{verifiers:?}");
}
