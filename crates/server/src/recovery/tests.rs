use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use proto::nfs4::{ClientId, SessionId};
use tempfile::TempDir;

use super::*;
use crate::held_files::tests::boot;
use crate::state::{Limits, Step};

const NOW: Duration = Duration::ZERO;

fn state_of(recovered: Recovered) -> State {
    State::new(Limits::default(), recovered.epoch, (1, 2), recovered.clients, NOW)
}

fn owner(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// EXCHANGE_ID, CREATE_SESSION and RECLAIM_COMPLETE.
fn add_client(state: &State, owner: &[u8], uid: u32) -> (ClientId, SessionId) {
    let mut step = Step::new(Duration::ZERO);
    let (client, session) = boot(state, owner, 0, Principal::User(uid), &mut step);
    state.reclaim_complete(client, false, &mut step).unwrap();
    (client, session)
}

fn remove_client(state: &State, (client, session): (ClientId, SessionId), uid: u32) {
    let mut step = Step::new(Duration::ZERO);
    state.destroy_session(session).unwrap();
    state.destroy_clientid(client, Principal::User(uid), &mut step).unwrap();
}

fn recover(dir: &TempDir) -> Recovered {
    Recovery::open(dir.path()).unwrap().1
}

/// The clients that may reclaim.
fn recorded(dir: &TempDir) -> Vec<ClientRecord> {
    recover(dir).clients.into_iter().map(|(client, _)| client).collect()
}

fn file(dir: &TempDir, name: &str) -> PathBuf {
    dir.path().join(DIRECTORY).join(name)
}

fn files(dir: &TempDir) -> BTreeSet<String> {
    let entries = fs::read_dir(dir.path().join(DIRECTORY)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn records_last_until_their_clients_go() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    assert!(recovered.clients.is_empty());
    let state = state_of(recovered);
    let long = [0xff; OPAQUE_BYTES_MAX];
    let first = add_client(&state, b"first\n", 0);
    add_client(&state, &long, u32::MAX);
    recovery.settle(&state);
    assert!(state.record_changes().is_empty());

    let record =
        |owner: &[u8], uid| ClientRecord { owner: owner.into(), principal: Principal::User(uid) };
    let (first_record, long_record) = (record(b"first\n", 0), record(&long, u32::MAX));
    assert_eq!(recorded(&dir), [first_record, long_record.clone()]);
    remove_client(&state, first, 0);
    recovery.settle(&state);
    assert_eq!(recorded(&dir), [long_record]);
    assert_eq!(files(&dir).len(), 3, "the epoch, the boot and a record");
}

#[test]
fn no_file_is_older_than_a_record_after_a_start_of_the_machine_or_with_a_clock_set_back() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    let state = state_of(recovered);
    wait_for_a_tick();
    add_client(&state, b"client", 0);
    recovery.settle(&state);
    let written = || recover(&dir).clients[0].1;
    let noted = fs::metadata(file(&dir, "client-0")).unwrap().modified().unwrap();
    assert_eq!(written(), noted);

    let set = |time| {
        let record = fs::File::options().write(true).open(file(&dir, "client-0")).unwrap();
        record.set_modified(time).unwrap();
    };
    set(SystemTime::now() + Duration::from_secs(1000));
    assert_eq!(written(), SystemTime::UNIX_EPOCH);
    assert_eq!(written(), SystemTime::UNIX_EPOCH, "whatever the clock is at the next start");

    set(noted);
    assert_eq!(written(), noted);
    wait_for_a_tick();
    fs::write(file(&dir, "boot"), "another boot\n").unwrap();
    assert_eq!(written(), SystemTime::UNIX_EPOCH);
    assert_eq!(written(), SystemTime::UNIX_EPOCH, "at the next start of the server too");

    wait_for_a_tick();
    add_client(&state, b"later", 0);
    recovery.settle(&state);
    let noted = fs::metadata(file(&dir, "client-1")).unwrap().modified().unwrap();
    assert_eq!(recover(&dir).clients[1].1, noted);
    let boot = fs::File::options().write(true).open(file(&dir, "boot")).unwrap();
    boot.set_modified(SystemTime::now() + Duration::from_secs(1000)).unwrap();
    for _ in 0..2 {
        assert_eq!(recover(&dir).clients[1].1, SystemTime::UNIX_EPOCH, "the clock was set back");
    }
}

#[test]
fn no_file_is_older_than_a_record_of_an_earlier_boot_if_the_clock_is_set_back_in_a_start() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    let state = state_of(recovered);
    add_client(&state, b"client", 0);
    recovery.settle(&state);
    fs::write(file(&dir, "boot"), "another boot\n").unwrap();
    // The clock that compares the records is ahead of that of the files.
    let ahead = |seconds| SystemTime::now() + Duration::from_secs(seconds);
    let record = fs::File::options().write(true).open(file(&dir, "client-0")).unwrap();
    record.set_modified(ahead(500)).unwrap();
    for now in [ahead(1000), ahead(2000)] {
        let (_, recovered) = Recovery::open_at(dir.path(), now).unwrap();
        assert_eq!(recovered.clients[0].1, SystemTime::UNIX_EPOCH);
    }
}

/// Sleeps for longer than a step of the kernel's clock, by which files get their times.
fn wait_for_a_tick() {
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn a_start_after_one_of_the_machine_writes_no_record() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    let state = state_of(recovered);
    add_client(&state, b"client", 0);
    recovery.settle(&state);
    let changed = || {
        let metadata = fs::metadata(file(&dir, "client-0")).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let before = changed();
    wait_for_a_tick();
    fs::write(file(&dir, "boot"), "another boot\n").unwrap();
    assert_eq!(recover(&dir).clients[0].1, SystemTime::UNIX_EPOCH);
    assert_eq!(changed(), before);
}

#[test]
fn a_record_that_cannot_be_removed_is_tried_again() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    let state = state_of(recovered);
    let client = add_client(&state, b"first", 0);
    recovery.settle(&state);
    let record = file(&dir, "client-0");
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    remove_client(&state, client, 0);
    add_client(&state, b"second", 0);
    recovery.settle(&state);
    assert_eq!(state.record_changes(), [RecordChange::Remove(b"first".as_slice().into())]);
    assert_eq!(read(&file(&dir, "client-1")).unwrap().unwrap().owner[..], *b"second");
    fs::remove_dir(&record).unwrap();
    recovery.settle(&state);
    assert_eq!(state.record_changes().len(), 1, "not at once");
    recovery.settle_at(&state, Instant::now() + RETRY_PERIOD);
    assert!(state.record_changes().is_empty());
    assert_eq!(recorded(&dir).len(), 1);
}

#[test]
fn boots_of_a_client_whose_record_cannot_be_removed_leave_one_change() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    let state = state_of(recovered);
    let (mut client, mut uid) = (add_client(&state, b"first", 0), 0);
    recovery.settle(&state);
    let record = file(&dir, "client-0");
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    for _ in 0..1000 {
        remove_client(&state, client, uid);
        recovery.settle(&state);
        (client, uid) = (add_client(&state, b"first", 1), 1);
        assert_eq!(state.record_changes().len(), 1);
    }
    recovery.settle(&state);
    assert_eq!(state.record_changes().len(), 1, "the old record is still to be replaced");
    fs::remove_dir(&record).unwrap();
    recovery.settle_at(&state, Instant::now() + RETRY_PERIOD);
    assert!(state.record_changes().is_empty());
    let owner = b"first".as_slice().into();
    assert_eq!(recorded(&dir), [ClientRecord { owner, principal: Principal::User(1) }]);
}

#[test]
fn a_record_of_another_principal_is_removed_if_it_cannot_be_replaced() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    let state = state_of(recovered);
    let client = add_client(&state, b"first", 0);
    recovery.settle(&state);
    // As on a full disk: no new file can be made.
    fs::create_dir(file(&dir, "client-0.new")).unwrap();
    remove_client(&state, client, 0);
    add_client(&state, b"first", 1);
    recovery.settle(&state);
    assert!(!file(&dir, "client-0").exists());
    assert!(state.record_changes().is_empty());
}

#[test]
fn an_epoch_is_used_once() {
    let dir = TempDir::new().unwrap();
    let first = recover(&dir).epoch;
    assert_eq!(recover(&dir).epoch, first.wrapping_add(1));
    assert_eq!(recover(&dir).epoch, first.wrapping_add(2));
    for garbage in [b"".as_slice(), b"4294967296\n", b"\xff\xfe", b"-1"] {
        fs::write(file(&dir, EPOCH_FILE), garbage).unwrap();
        let epoch = recover(&dir).epoch;
        assert_eq!(recover(&dir).epoch, epoch.wrapping_add(1));
    }
}

#[test]
fn an_epoch_that_a_full_disk_does_not_take_is_random_and_not_counted() {
    let dir = TempDir::new().unwrap();
    let first = recover(&dir).epoch;
    // A disk that is full for this file.
    std::os::unix::fs::symlink("/dev/full", file(&dir, "epoch.new")).unwrap();
    let random = recover(&dir).epoch;
    assert!(random.wrapping_sub(first) > 2, "{random} follows {first}");
    assert_eq!(recover(&dir).epoch, first.wrapping_add(1));
}

#[test]
fn an_epoch_that_cannot_be_written_for_another_reason_ends_the_start() {
    let dir = TempDir::new().unwrap();
    recover(&dir);
    std::os::unix::fs::symlink("/proc/missing/file", file(&dir, "epoch.new")).unwrap();
    assert!(Recovery::open(dir.path()).is_err());
}

#[test]
fn garbage_is_removed_and_does_not_hide_the_other_records() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    let state = state_of(recovered);
    add_client(&state, b"good", 5);
    recovery.settle(&state);
    let long = vec![b'0'; 5000];
    let garbage: [&[u8]; 9] = [
        b"",
        b"user 5",
        b"user 5\n",
        b"user -1\n00\n",
        b"user 5\n0\n",
        b"user 5\n0g\n",
        b"root\n00\n",
        b"\xff\n00\n",
        &long,
    ];
    for (number, bytes) in garbage.iter().enumerate() {
        fs::write(file(&dir, &format!("client-{}", 10 + number)), bytes).unwrap();
    }
    fs::write(file(&dir, "client-99"), b"user 5\n676f6f64\n").unwrap();
    for foreign in ["notes", "client-x", "client-99999999999"] {
        fs::write(file(&dir, foreign), b"not ours").unwrap();
    }
    let clients = recorded(&dir);
    assert_eq!(clients.len(), 1);
    assert_eq!(*clients[0].owner, *b"good");
    let kept = ["boot", "client-0", "client-99999999999", "client-x", "epoch", "notes"];
    assert_eq!(files(&dir), kept.map(str::to_owned).into());
}

#[test]
fn numbers_of_records_are_not_used_twice() {
    let dir = TempDir::new().unwrap();
    for round in 0..3u32 {
        let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
        // Clients on record are in their grace period; each round adds one.
        let state = state_of(recovered);
        add_client(&state, &owner(round), 0);
        recovery.settle(&state);
    }
    assert_eq!(recorded(&dir).len(), 3);
}

/// A kill leaves a prefix of the steps of `replace`.
#[test]
fn a_kill_between_the_steps_leaves_the_old_record_or_the_new_one() {
    let dir = TempDir::new().unwrap();
    let (recovery, recovered) = Recovery::open(dir.path()).unwrap();
    let state = state_of(recovered);
    add_client(&state, b"old", 1);
    recovery.settle(&state);
    let old = fs::read(file(&dir, "client-0")).unwrap();
    let new = b"user 2\n6e6577\n";
    let unfinished = file(&dir, "client-0.new");
    for written in 0..=new.len() {
        fs::write(&unfinished, &new[..written]).unwrap();
        let clients = recorded(&dir);
        assert_eq!(clients.len(), 1);
        assert_eq!(*clients[0].owner, *b"old");
        assert!(!unfinished.exists());
    }
    assert_eq!(fs::read(file(&dir, "client-0")).unwrap(), old);
    fs::write(&unfinished, new).unwrap();
    fs::rename(&unfinished, file(&dir, "client-0")).unwrap();
    assert_eq!(*recorded(&dir)[0].owner, *b"new");
}

/// Where the process that is killed keeps its records.
const CHILD_DIRECTORY: &str = "SPILLWAY_TEST_RECOVERY";

/// Run by the test below in a process of its own: adds and removes clients for ever, and reports
/// each change that is settled.
#[test]
fn child_changes_records_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let (recovery, recovered) = Recovery::open(Path::new(&dir)).unwrap();
    let state = State::new(Limits::default(), recovered.epoch, (1, 2), Vec::new(), NOW);
    let mut clients = Vec::new();
    for number in 0.. {
        clients.push(add_client(&state, &owner(number), 0));
        recovery.settle(&state);
        println!("\n+{number}");
        if let Some(old) = number.checked_sub(2) {
            remove_client(&state, clients[old as usize], 0);
            recovery.settle(&state);
            println!("\n-{old}");
        }
    }
}

#[test]
fn a_killed_server_has_every_record_that_it_reported() {
    for lines in [1, 2, 3, 4, 7, 12, 25] {
        let dir = TempDir::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "recovery::tests::child_changes_records_until_it_is_killed"])
            .arg("--nocapture")
            .env(CHILD_DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (mut expected, mut reported, mut next) = (BTreeSet::new(), 0, (true, 0));
        for line in output.lines().map(|line| line.unwrap()) {
            let Some(number) = line.get(1..).and_then(|number| number.parse::<u32>().ok()) else {
                continue;
            };
            match line.as_bytes()[0] {
                b'+' => {
                    expected.insert(number);
                    let old = number.checked_sub(2);
                    next = old.map_or((true, number + 1), |old| (false, old));
                }
                b'-' => {
                    expected.remove(&number);
                    next = (true, number + 3);
                }
                _ => continue,
            }
            reported += 1;
            if reported == lines {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(reported >= lines, "{reported} changes");
        let clients = recorded(&dir);
        let found = clients.iter().map(|client| {
            u32::from_be_bytes(client.owner[..].try_into().expect("an owner of the child"))
        });
        let mut found: BTreeSet<u32> = found.collect();
        // The change that the kill interrupted may have happened or not.
        match next {
            (true, number) if found.contains(&number) => drop(expected.insert(number)),
            (false, number) if !found.contains(&number) => drop(expected.remove(&number)),
            _ => {}
        }
        assert_eq!(std::mem::take(&mut found), expected, "after {reported} changes");
    }
}
