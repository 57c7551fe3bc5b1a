//! The same promises without any privilege: handles are then names that the server remembers, and
//! everyone acts as the user it runs as.

use std::fs::File;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use proto::nfs3::{ACCESS_MODIFY, ACCESS_READ, StableHow};
use tempfile::TempDir;

use crate::client::{ok, size};
use crate::fixture::{Fixture, TRUSTING, is_root, set_mode};

/// The subjects that do not need other users, other hosts or mounts.
const SUBJECTS: [&str; 8] = [
    "durability::",
    "exports::",
    "handles::",
    "io_modes::a_file_that_forbids",
    "namespace::",
    "nfs4::delegations::closed_for_writing::a_file_is_written_after",
    "retransmission::",
    "wcc::",
];

/// Runs the tests of these subjects again, as a user.
#[track_caller]
fn run_as(id: u32) {
    // Not by its path: the user may not be allowed into the directory that it was built in.
    let mut tests = Command::new("/proc/self/exe");
    // Tests that need root are skipped, even in CI. The groups of root are given up with its id.
    tests.args(SUBJECTS).env_remove("CI").uid(id).gid(id);
    let output = tests.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "as user {id}: {text}");
}

#[test]
fn an_ordinary_user_can_serve() {
    if is_root() {
        run_as(12_345);
    }
}

/// The server acts as the anonymous user to detect whether it can change its identity.
#[test]
fn the_anonymous_user_can_serve() {
    if is_root() {
        run_as(65_534);
    }
}

/// The directory that a server serves whose user has further rights to it.
const GRANTED: &str = "SPILLWAY_TEST_GRANTED";

#[test]
fn groups_and_capabilities_of_the_server_grant_its_clients_the_data_of_files() {
    if let Some(dir) = std::env::var_os(GRANTED) {
        return use_what_is_granted(Path::new(&dir));
    }
    if !is_root() {
        return;
    }
    let dir = TempDir::new().unwrap();
    set_mode(dir.path(), 0o777);
    let path = dir.path().join("file");
    let overrides = ["--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"];
    let servers: [(_, _, &[_]); 2] = [(3000, 0o660, &["--groups=3000"]), (0, 0o600, &overrides)];
    for (group, mode, privileges) in servers {
        std::fs::write(&path, "content").unwrap();
        chown(&path, Some(0), Some(group)).unwrap();
        set_mode(&path, mode);
        let test = "unprivileged::groups_and_capabilities_of_the_server_grant_its_clients_the_data_of_files";
        let mut server = Command::new("setpriv");
        server.args(["--reuid=12345", "--regid=12345"]).args(privileges);
        // Not by its path, as above; and /proc/self is another program's here.
        server
            .args(["/proc/self/fd/0", "--exact", test])
            .stdin(File::open("/proc/self/exe").unwrap());
        let output = server.env(GRANTED, dir.path()).env_remove("CI").output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{privileges:?}: {text}");
        assert_eq!(std::fs::read(&path).unwrap(), b"Con");
    }
}

fn use_what_is_granted(dir: &Path) {
    let config = TRUSTING.replace("$DIR/export", dir.to_str().unwrap());
    let fixture = Fixture::with(&config);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "file");
    let wanted = ACCESS_READ | ACCESS_MODIFY;
    assert_eq!(ok(client.access(file, wanted)).access, wanted);
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"content");
    ok(client.write_stable(file, 0, b"C", StableHow::Unstable));
    ok(client.commit(file));
    ok(client.setattr(file, size(3)));
    assert_eq!(client.read(file, 0, 10).unwrap().data, b"Con");
}
