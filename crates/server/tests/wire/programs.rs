//! Files that clients have written, as programs that this machine executes.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use proto::nfs3::Status;

use crate::client::{mode, ok, refusal};
use crate::fixture::Fixture;
use crate::local_file::eventually;

/// A program without an effect.
pub(crate) const PROGRAM: &[u8] = b"#!/bin/sh\n";

/// Whether the program can be executed: not while it is open for writing (`ETXTBSY`).
pub(crate) fn can_be_executed(path: &Path) -> bool {
    Command::new(path).status().is_ok_and(|status| status.success())
}

/// Whether the kernel refuses to execute a file, of whatever content, for being open for writing.
pub(crate) fn is_open_for_writing(path: &Path) -> bool {
    let executed = Command::new(path).status();
    executed.is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy)
}

#[test]
fn a_program_that_a_client_has_written_is_executed_while_clients_read_its_attributes() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    let (file, path) = (client.create(root, "program"), fixture.exported("program"));
    ok(client.setattr(file, mode(0o777)));
    let verifier = ok(client.write(file, 0, PROGRAM)).verifier;
    assert_eq!(ok(client.commit(file)).verifier, verifier);
    assert!(!can_be_executed(&path), "it is open for writing");
    assert!(eventually(|| {
        std::thread::sleep(Duration::from_millis(100));
        client.getattr(file).unwrap();
        can_be_executed(&path)
    }));
    // It is opened again when it is written again, and nothing was lost.
    assert_eq!(ok(client.write(file, PROGRAM.len() as u64, b"exit 1\n")).verifier, verifier);
    assert_eq!(ok(client.commit(file)).verifier, verifier);
    assert_eq!(std::fs::read(&path).unwrap(), [PROGRAM, b"exit 1\n"].concat());
}

/// A client whose WRITE is refused drops what it was to write.
#[test]
fn a_write_to_a_program_that_is_executed_after_its_file_was_closed_is_delayed() {
    let fixture = Fixture::new();
    let (mut client, root) = fixture.mounted();
    // Some systems have one program for many commands, which acts by its name.
    let (file, path) = (client.create(root, "sleep"), fixture.exported("sleep"));
    ok(client.setattr(file, mode(0o755)));
    let sleep = std::fs::read("/bin/sleep").unwrap();
    let offsets = (0..).step_by(1 << 19);
    for (offset, data) in offsets.zip(sleep.chunks(1 << 19)) {
        assert_eq!(ok(client.write(file, offset, data)).count as usize, data.len());
    }
    let mut executed = None;
    assert!(eventually(|| {
        client.getattr(file).unwrap();
        executed = Command::new(&path).arg("60").spawn().ok();
        executed.is_some()
    }));
    let mut executed = executed.unwrap();
    let status = refusal(client.write(file, 0, &sleep[..1]));
    executed.kill().unwrap();
    executed.wait().unwrap();
    assert_eq!(status, Status::Jukebox);
    ok(client.write(file, 0, &sleep[..1]));
}
