//! Peers that speak nonsense: the server answers or hangs up, never falls over, and has lost
//! nothing afterwards.

use std::io::{Read, Write};
use std::net::Shutdown;

use proto::nfs3::{self, *};
use proto::oncrpc::RecordMark;

use crate::client::{Client, encoded, in_fragments, mode, ok};
use crate::fixture::Fixture;

/// A small generator, so that each run sends the same nonsense (xorshift64*, Vigna 2016).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}

/// A server with so little memory that a leak of a few buffers stops it.
fn small_server() -> Fixture {
    Fixture::with_settings("memory = \"8MiB\"\nmax_transfer = \"1MiB\"")
}

/// Uses every buffer there is, many times.
#[track_caller]
fn still_serves(fixture: &Fixture) {
    std::thread::scope(|scope| {
        for i in 0..4 {
            scope.spawn(move || {
                let (mut client, root) = fixture.mounted();
                let how = CreateHow::Unchecked(mode(0o666));
                let name = format!("still-{i}");
                let file = ok(client.create_how(root, name.as_bytes(), how)).object.unwrap();
                for _ in 0..6 {
                    assert_eq!(ok(client.write(file, 0, &[9; 1 << 20])).count, 1 << 20);
                    assert_eq!(client.read(file, 0, 1 << 20).unwrap().data.len(), 1 << 20);
                }
            });
        }
    });
}

#[test]
fn random_bytes_end_the_connection_and_no_more() {
    let fixture = small_server();
    let mut noise = Noise(1);
    for round in 0..600 {
        let mut client = fixture.client();
        let len = noise.below(400);
        let mut bytes = noise.bytes(len);
        if round % 2 == 0 {
            // A mark that fits, so that the nonsense gets past the receiver.
            let len = u32::try_from(bytes.len()).unwrap();
            bytes.splice(..0, RecordMark { last: true, len }.to_bytes());
        }
        // The server may hang up before all is sent.
        drop(client.stream.write_all(&bytes));
        drop(client.stream.shutdown(Shutdown::Write));
        drop(client.stream.read_to_end(&mut Vec::new()));
    }
    still_serves(&fixture);
}

/// One valid call of each procedure.
fn valid_calls(client: &mut Client, root: FileHandle) -> Vec<Vec<u8>> {
    let dir = client.mkdir(root, "d");
    let file = client.create(dir, "f");
    ok(client.write(file, 0, &[5; 5000]));
    let link = ok(client.symlink(dir, b"l", b"target")).object.unwrap();
    let op = |name| DirOp { dir, name };
    let attributes = SetAttributes { size: Some(100), ..mode(0o640) };
    let data = &[3; 1000];
    let verifier = CookieVerifier::default();
    let (stable, max_count) = (StableHow::Unstable, 4096);
    let fifo = MknodData::Fifo(mode(0o600));
    let calls = [
        (Procedure::Null, encoded(&())),
        (Procedure::Getattr, encoded(&GetattrArgs { object: file })),
        (
            Procedure::Setattr,
            encoded(&SetattrArgs { object: file, new_attributes: attributes, guard: None }),
        ),
        (Procedure::Lookup, encoded(&LookupArgs { what: op(b"f") })),
        (Procedure::Access, encoded(&AccessArgs { object: file, access: 0x3f })),
        (Procedure::Readlink, encoded(&ReadlinkArgs { symlink: link })),
        (Procedure::Read, encoded(&ReadArgs { file, offset: 0, count: 5000 })),
        (Procedure::Write, encoded(&WriteArgs { file, offset: 7, count: 1000, stable, data })),
        (
            Procedure::Create,
            encoded(&CreateArgs { where_: op(b"c"), how: CreateHow::Unchecked(attributes) }),
        ),
        (Procedure::Mkdir, encoded(&MkdirArgs { where_: op(b"m"), attributes })),
        (Procedure::Symlink, encoded(&SymlinkArgs { where_: op(b"s"), attributes, target: b"t" })),
        (Procedure::Mknod, encoded(&MknodArgs { where_: op(b"p"), what: fifo })),
        (Procedure::Remove, encoded(&RemoveArgs { object: op(b"c") })),
        (Procedure::Rmdir, encoded(&RmdirArgs { object: op(b"m") })),
        (Procedure::Rename, encoded(&RenameArgs { from: op(b"s"), to: op(b"r") })),
        (Procedure::Link, encoded(&LinkArgs { file, link: op(b"h") })),
        (Procedure::Readdir, encoded(&ReaddirArgs { dir, cookie: 0, verifier, count: 4096 })),
        (
            Procedure::Readdirplus,
            encoded(&ReaddirplusArgs { dir, cookie: 0, verifier, dir_count: 4096, max_count }),
        ),
        (Procedure::Fsstat, encoded(&FsstatArgs { fsroot: root })),
        (Procedure::Fsinfo, encoded(&FsinfoArgs { fsroot: root })),
        (Procedure::Pathconf, encoded(&PathconfArgs { object: file })),
        (Procedure::Commit, encoded(&CommitArgs { file, offset: 0, count: 0 })),
    ];
    calls
        .into_iter()
        .map(|(procedure, args)| {
            let target = (nfs3::PROGRAM, nfs3::VERSION, procedure.code());
            let xid = client.xid();
            client.encode(xid, target, &args)
        })
        .collect()
}

fn mutate(noise: &mut Noise, call: &[u8]) -> Vec<u8> {
    let mut call = call.to_vec();
    for _ in 0..=noise.below(3) {
        let at = noise.below(call.len());
        match noise.below(5) {
            0 => call[at] = noise.bytes(1)[0],
            1 => call[at] ^= 1 << noise.below(8),
            2 => {
                // Lengths and numbers at their ends.
                let word = [0, 1, u32::MAX, 0x7fff_ffff, 1 << 20, 65][noise.below(6)];
                let at = at / 4 * 4;
                let word: [u8; 4] = u32::to_be_bytes(word);
                call[at..].iter_mut().zip(word).for_each(|(byte, new)| *byte = new);
            }
            3 => call.truncate(at.max(1)),
            _ => {
                let more = noise.below(100);
                call.extend(noise.bytes(more));
            }
        }
    }
    call
}

#[test]
fn mutated_calls_are_answered_or_hung_up_on() {
    let fixture = small_server();
    let (mut client, root) = fixture.mounted();
    let calls = valid_calls(&mut client, root);
    let mut noise = Noise(2);
    let (mut answered, mut closed) = (0, 0);
    for round in 0..4000 {
        let call = mutate(&mut noise, &calls[round % calls.len()]);
        let cut = noise.below(call.len());
        let cuts = if cut > 0 && round % 5 == 0 { vec![cut] } else { vec![] };
        client.send_bytes(&in_fragments(&call, &cuts));
        // A call after it distinguishes the two outcomes at once, and a dropped one as well.
        let xid = client.xid();
        let null = client.encode(xid, (nfs3::PROGRAM, nfs3::VERSION, 0), &[]);
        drop(client.stream.write_all(&in_fragments(&null, &[])));
        loop {
            match client.receive_record() {
                Some(reply) if reply[..4] == null[..4] => break answered += 1,
                Some(_) => {}
                None => {
                    closed += 1;
                    client = fixture.client();
                    break;
                }
            }
        }
    }
    assert!(answered > 1000 && closed > 10, "{answered} answered, {closed} closed");
    still_serves(&fixture);
}

#[test]
fn records_cut_at_any_byte_leave_nothing_behind() {
    let fixture = small_server();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    let write = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write.code());
    let stable = StableHow::Unstable;
    let data = vec![1; 100_000];
    let args = encoded(&WriteArgs { file, offset: 0, count: 100_000, stable, data: &data });
    let record = in_fragments(&client.encode(1, write, &args), &[]);
    for len in (0..200).chain((200..record.len()).step_by(997)) {
        let mut client = fixture.client();
        client.send_bytes(&record[..len]);
        client.half_close();
        assert!(client.is_closed_by_server(), "{len} bytes");
    }
    assert_eq!(client.getattr(file).unwrap().size, 0);
    still_serves(&fixture);
}

#[test]
fn clients_that_vanish_in_the_middle_leave_nothing_behind() {
    let fixture = small_server();
    let (mut client, root) = fixture.mounted();
    let file = client.create(root, "f");
    ok(client.write(file, 0, &[1; 1 << 20]));
    let read = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Read.code());
    let args = encoded(&ReadArgs { file, offset: 0, count: 1 << 20 });
    for round in 0..60 {
        let mut client = fixture.client();
        for _ in 0..8 {
            let xid = client.xid();
            let call = client.encode(xid, read, &args);
            client.send_record(&call);
        }
        if round % 3 > 0 {
            drop(client.stream.read(&mut [0; 100]));
        }
    }
    still_serves(&fixture);
}
