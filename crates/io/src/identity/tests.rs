use std::fs::Permissions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, statat};
use rustix::thread::{CapabilitiesSecureBits, set_capabilities_secure_bits};

use super::probe::try_another;
use super::*;
use crate::skip::skip;
use crate::user_namespace;

/// Runs on a thread of its own, so that no test leaves its identity to another.
fn on_own_thread<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(body).join().unwrap())
}

/// Runs `body` as root, or prints why not.
fn as_root(body: impl FnOnce() + Send) {
    if can_assume_users() {
        on_own_thread(body);
    } else {
        skip("acting as other users takes root with CAP_SETUID and CAP_SETGID");
    }
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> Identity {
    Identity::User { uid, gid, groups: Arc::from(groups) }
}

/// Whether these are the groups, in any order.
fn same_groups(mut current: Vec<Gid>, wanted: &[Gid]) -> bool {
    let mut wanted = wanted.to_vec();
    current.sort_unstable_by_key(|gid| gid.as_raw());
    wanted.sort_unstable_by_key(|gid| gid.as_raw());
    current == wanted
}

#[track_caller]
fn assert_passed(output: &std::process::Output) {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// As [`user_namespace::ran_in_user_namespace`], for a test of this module.
#[track_caller]
fn ran_in_user_namespace(test: &str, maps: [&str; 2], setgroups: &str) -> bool {
    let test = format!("identity::tests::{test}");
    user_namespace::ran_in_user_namespace(&test, maps, setgroups, |_| {})
}

struct Fixture {
    directory: tempfile::TempDir,
    fd: OwnedFd,
}

impl Fixture {
    /// A directory that everyone may search and write.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        let fd = openat(CWD, directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        Self { fd: fd.unwrap(), directory }
    }

    fn file(&self, name: &str, mode: u32, uid: u32, gid: u32) {
        let path = self.directory.path().join(name);
        std::fs::write(&path, b"content").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(uid), Some(gid)).unwrap();
    }

    fn open(&self, name: &str) -> Result<OwnedFd, Errno> {
        openat(&self.fd, name, OFlags::RDONLY, Mode::empty())
    }
}

#[test]
fn a_user_is_held_to_its_permissions_and_the_server_is_not() {
    as_root(|| {
        let fixture = Fixture::new();
        fixture.file("root", 0o600, 0, 0);
        fixture.file("mine", 0o600, 1000, 1000);
        fixture.file("theirs", 0o600, 1001, 1001);
        fixture.open("root").unwrap();

        assume(&user(1000, 1000, &[])).unwrap();
        assert_eq!(fixture.open("root").unwrap_err(), Errno::ACCESS);
        assert_eq!(fixture.open("theirs").unwrap_err(), Errno::ACCESS);
        fixture.open("mine").unwrap();

        assume(&user(1001, 1001, &[])).unwrap();
        assert_eq!(fixture.open("mine").unwrap_err(), Errno::ACCESS);
        fixture.open("theirs").unwrap();

        assume(&Identity::Server).unwrap();
        for name in ["root", "mine", "theirs"] {
            fixture.open(name).unwrap();
        }
    });
}

#[test]
fn groups_apply_and_replace_the_servers_own() {
    as_root(|| {
        let fixture = Fixture::new();
        fixture.file("primary", 0o640, 0, 2000);
        fixture.file("root", 0o640, 0, 0);
        assume(&user(1000, 2000, &[])).unwrap();
        fixture.open("primary").unwrap();
        assume(&user(1000, 1000, &[3000, 2000])).unwrap();
        fixture.open("primary").unwrap();
        assert_eq!(fixture.open("root").unwrap_err(), Errno::ACCESS, "the server's group is gone");
        assume(&user(1000, 1000, &[3000])).unwrap();
        assert_eq!(fixture.open("primary").unwrap_err(), Errno::ACCESS);
        assert_eq!(getgroups().unwrap(), [Gid::from_raw(3000)]);
        assume(&Identity::Server).unwrap();
        assert!(same_groups(getgroups().unwrap(), &server().groups));
    });
}

#[test]
fn created_files_belong_to_the_assumed_user() {
    as_root(|| {
        let fixture = Fixture::new();
        assume(&user(1000, 2000, &[])).unwrap();
        mkdirat(&fixture.fd, "made", Mode::from_raw_mode(0o700)).unwrap();
        assume(&Identity::Server).unwrap();
        let made = std::fs::metadata(fixture.directory.path().join("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (1000, 2000));
    });
}

/// The way from a handle to an open file: found by the server, opened as the user.
#[test]
fn a_user_reopens_a_descriptor_with_its_own_rights() {
    as_root(|| {
        let fixture = Fixture::new();
        fixture.file("root", 0o600, 0, 0);
        fixture.file("mine", 0o600, 1000, 1000);
        let paths = ["root", "mine"]
            .map(|name| openat(&fixture.fd, name, OFlags::PATH, Mode::empty()).unwrap());
        assume(&user(1000, 1000, &[])).unwrap();
        let [root, mine] = paths.map(|fd| {
            let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
            openat(CWD, link, OFlags::RDONLY, Mode::empty())
        });
        assert_eq!(root.unwrap_err(), Errno::ACCESS);
        mine.unwrap();
    });
}

#[test]
fn overrides_last_for_one_call() {
    as_root(|| {
        let fixture = Fixture::new();
        fixture.file("root", 0o600, 0, 0);
        assume(&user(1000, 1000, &[])).unwrap();
        with_overrides(|| fixture.open("root")).unwrap();
        assert_eq!(fixture.open("root").unwrap_err(), Errno::ACCESS);
        let panicked = std::panic::catch_unwind(|| with_overrides(|| panic!("within the call")));
        assert!(panicked.is_err());
        assert_eq!(fixture.open("root").unwrap_err(), Errno::ACCESS);
    });
}

#[test]
fn minus_one_is_refused_and_changes_nothing() {
    on_own_thread(|| {
        let before = getgroups().unwrap();
        for identity in [user(u32::MAX, 1, &[]), user(1, u32::MAX, &[]), user(1, 1, &[5, u32::MAX])]
        {
            let error = assume(&identity).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{identity:?}");
        }
        assert_eq!(getgroups().unwrap(), before);
        assert!(statat(CWD, "/", rustix::fs::AtFlags::empty()).is_ok());
    });
}

/// More groups than the kernel takes fail in the middle of a change.
#[test]
fn a_failed_change_leaves_the_server() {
    as_root(|| {
        let fixture = Fixture::new();
        fixture.file("root", 0o600, 0, 0);
        assume(&user(1000, 1000, &[])).unwrap();
        let error = assume(&user(1001, 1001, &vec![7; 65_537])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        CURRENT.with_borrow(|current| assert_eq!(current.as_ref(), Some(&Identity::Server)));
        fixture.open("root").unwrap();
        assert!(same_groups(getgroups().unwrap(), &server().groups));
    });
}

/// A thread started by one that acts as a user inherits the user's credentials, not our record of
/// them.
#[test]
fn a_thread_started_by_a_user_returns_to_the_server() {
    as_root(|| {
        let fixture = Fixture::new();
        fixture.file("root", 0o600, 0, 0);
        assume(&user(1000, 1000, &[])).unwrap();
        on_own_thread(|| {
            assert_eq!(fixture.open("root").unwrap_err(), Errno::ACCESS);
            assume(&Identity::Server).unwrap();
            fixture.open("root").unwrap();
        });
        assert_eq!(fixture.open("root").unwrap_err(), Errno::ACCESS);
    });
}

#[test]
fn other_threads_keep_their_identity() {
    as_root(|| {
        let fixture = Fixture::new();
        fixture.file("root", 0o600, 0, 0);
        let (changed, wait) = std::sync::mpsc::channel();
        let (checked, hold) = std::sync::mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                assume(&user(1000, 1000, &[4000])).unwrap();
                changed.send(()).unwrap();
                let _ = hold.recv();
            });
            wait.recv().unwrap();
            fixture.open("root").unwrap();
            assert!(!getgroups().unwrap().contains(&Gid::from_raw(4000)));
            checked.send(()).unwrap();
        });
    });
}

#[test]
fn withheld_capabilities_are_gone_on_this_thread_alone() {
    as_root(|| {
        let fixture = Fixture::new();
        fixture.file("root", 0o600, 0, 0);
        let path = fixture.directory.path().join("root");
        on_own_thread(|| {
            withhold(CapabilitySet::CHOWN).unwrap();
            let error = chown(&path, Some(1000), None).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        });
        chown(&path, Some(1000), None).unwrap();
        assume(&user(1000, 1000, &[])).unwrap();
        let effective = capabilities(None).unwrap().effective;
        assert!(!effective.contains(CapabilitySet::SYS_RESOURCE));
    });
}

/// An ordinary user's server acts as itself alone.
#[test]
fn the_servers_identity_needs_no_privilege() {
    if can_assume_users() {
        let mut test = Command::new("/proc/self/exe");
        test.args(["--exact", "identity::tests::the_servers_identity_needs_no_privilege"]);
        return assert_passed(&test.uid(12_345).gid(12_345).output().unwrap());
    }
    on_own_thread(|| {
        assume(&Identity::Server).unwrap();
        assert!(assume(&user(1000, 1000, &[])).is_err());
        assert!(assume(&user(1000, server().fsgid, &[])).is_err());
        CURRENT.with_borrow(|current| assert_eq!(current.as_ref(), Some(&Identity::Server)));
    });
}

#[test]
fn root_without_the_capabilities_for_it_acts_as_itself() {
    as_root(|| {
        for missing in [CapabilitySet::SETUID, CapabilitySet::SETGID] {
            on_own_thread(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective -= missing;
                set_capabilities(None, sets).unwrap();
                assert_eq!(try_another(), Ok(false));
            });
        }
    });
}

#[test]
fn root_that_keeps_its_overrides_as_another_user_is_an_error() {
    as_root(|| {
        set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP).unwrap();
        assert_eq!(try_another(), Err(ProbeFailure::KeepsOverrides));
    });
}

#[test]
fn root_of_a_namespace_with_no_other_user_acts_as_itself() {
    let test = "root_of_a_namespace_with_no_other_user_acts_as_itself";
    if !ran_in_user_namespace(test, ["0 0 1"; 2], "allow") {
        assert_eq!(probe_users(), Ok(false));
        on_own_thread(|| assume(&Identity::Server).unwrap());
    }
}

#[test]
fn root_of_a_namespace_with_no_other_group_is_an_error() {
    let test = "root_of_a_namespace_with_no_other_group_is_an_error";
    if !ran_in_user_namespace(test, ["0 0 2000", "0 0 1"], "allow") {
        assert_eq!(probe_users(), Err(ProbeFailure::NoOtherGroup));
    }
}

#[test]
fn root_of_a_namespace_that_denies_setgroups_is_an_error() {
    let test = "root_of_a_namespace_that_denies_setgroups_is_an_error";
    if !ran_in_user_namespace(test, ["0 0 2000"; 2], "deny") {
        assert_eq!(probe_users(), Err(ProbeFailure::Groups(Errno::PERM)));
    }
}

/// There is no user 65534 in it.
#[test]
fn groups_that_a_namespace_does_not_map_are_left_out_and_its_other_users_are_refused() {
    let test = "groups_that_a_namespace_does_not_map_are_left_out_and_its_other_users_are_refused";
    if ran_in_user_namespace(test, ["0 0 2000"; 2], "allow") {
        return;
    }
    assert_eq!(probe_users(), Ok(true));
    on_own_thread(|| {
        let client = Identity::of_client(1000, 1000, &[1500, 200_000]);
        assert_eq!(client, Some(user(1000, 1000, &[1500])));
        assume(&client.unwrap()).unwrap();
        assert_eq!(getgroups().unwrap(), [Gid::from_raw(1500)]);
        assert_eq!(Identity::of_client(200_000, 1000, &[]), None);
        assert_eq!(Identity::of_client(1000, 200_000, &[]), None);
        assume(&Identity::Server).unwrap();
    });
}

#[test]
fn root_whose_own_group_its_namespace_does_not_map_is_an_error() {
    let test = "root_whose_own_group_its_namespace_does_not_map_is_an_error";
    if !ran_in_user_namespace(test, ["0 0 2000", "1 1 2000"], "allow") {
        assert_eq!(probe_users(), Err(ProbeFailure::Restore(Errno::INVAL)));
    }
}

#[test]
fn an_id_that_stands_for_those_without_a_mapping_proves_nothing() {
    let test = "an_id_that_stands_for_those_without_a_mapping_proves_nothing";
    let (anonymous, root) = (user(65_534, 65_534, &[]), user(0, 0, &[65_534]));
    let answers = || {
        let groups = [anonymous.is_in_group(65_534), root.is_in_group(65_534), root.is_in_group(5)];
        ((anonymous.is_owner(65_534), anonymous.is_owner(5)), groups, root.has_overrides(0, 65_534))
    };
    if ran_in_user_namespace(test, ["0 0 65535"; 2], "allow") {
        let groups = [Some(true), Some(true), Some(false)];
        return assert_eq!(answers(), ((Some(true), Some(false)), groups, true));
    }
    assert_eq!(answers(), ((None, Some(false)), [None, None, Some(false)], false));
    assert!(root.has_overrides(0, 0));
}
