//! The I/O modes never give a wrong byte: the real program, in every mode and in all mixtures of
//! them, against models of what may be read.
//!
//! Each test prints its seed. `docs/testing.md` describes how to run for hours and how to repeat.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::result_large_err, reason = "a refusal comes with attributes, as on the wire")]

#[expect(dead_code, reason = "the tests of procedures use all of it, these use little")]
#[path = "../../crates/server/tests/wire/client.rs"]
mod client;

mod cutter;
mod environment;
mod exerciser;
mod journal;
mod layout;
mod local_worker;
mod mapping;
mod nfs_worker;
mod oracle;
#[expect(dead_code, reason = "`close_to_open` uses what is not used here")]
mod place;
mod race;
mod random;
#[expect(dead_code, reason = "`close_to_open` uses what is not used here")]
mod server;
#[path = "../skip/mod.rs"]
mod skip;
mod workload;

use std::sync::{Mutex, MutexGuard};

use place::Place;

/// Of a minute for each run of all tests.
const TORTURE_SECS: u64 = 12;
const OPERATIONS: usize = 400;
/// As long as a server that is broken on purpose may hide it.
const BROKEN_SECS: u64 = 120;

type Held = MutexGuard<'static, ()>;

/// For tests with calls at the same time: two of them at once would find less, not more.
fn calls_at_once() -> Held {
    static CALLS_AT_ONCE: Mutex<()> = Mutex::new(());
    CALLS_AT_ONCE.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// For tests with one call after the other, which use one processor.
fn calls_in_turn() -> Held {
    static CALLS_IN_TURN: Mutex<()> = Mutex::new(());
    CALLS_IN_TURN.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// For tests that find the more, the more of the machine they have.
fn alone() -> (Held, Held) {
    (calls_at_once(), calls_in_turn())
}

mod torture {
    use super::*;

    #[test]
    fn in_a_directory() {
        let _alone = alone();
        workload::torture(&Place::in_directory(), TORTURE_SECS);
    }

    #[test]
    fn on_xfs() {
        let _alone = alone();
        if let Some(place) = Place::on("xfs", &[]) {
            workload::torture(&place, TORTURE_SECS);
        }
    }

    #[test]
    fn on_btrfs() {
        let _alone = alone();
        if let Some(place) = Place::on("btrfs", &[]) {
            workload::torture(&place, TORTURE_SECS);
        }
    }
}

/// The proof that the tests above can fail, to be run by hand: `docs/testing.md` describes how.
mod broken_server {
    use super::*;

    #[test]
    #[ignore = "SPILLWAY_TORTURE_PROGRAM has to name a server that is broken on purpose"]
    fn is_found() {
        let _alone = alone();
        assert!(std::env::var_os("SPILLWAY_TORTURE_PROGRAM").is_some());
        let found = std::panic::catch_unwind(|| {
            workload::torture(&Place::in_directory(), BROKEN_SECS);
        });
        let failure = found.expect_err("no wrong byte from a server that loses some");
        assert!(workload::is_about_wrong_bytes(&*failure), "it failed for another reason");
    }
}

mod race_of_two_writers {
    use super::*;

    #[test]
    fn in_a_directory() {
        let _held = calls_at_once();
        race::race(&Place::in_directory());
    }

    #[test]
    fn on_ext4_with_blocks_of_1_kib() {
        let _held = calls_at_once();
        if let Some(place) = Place::on("ext4", &["-b", "1024"]) {
            race::race(&place);
        }
    }
}

mod random_operations {
    use super::*;

    #[test]
    fn in_a_directory() {
        let _held = calls_in_turn();
        exerciser::exercise(&Place::in_directory(), OPERATIONS);
    }

    #[test]
    fn on_xfs() {
        let _held = calls_in_turn();
        if let Some(place) = Place::on("xfs", &[]) {
            exerciser::exercise(&place, OPERATIONS);
        }
    }

    #[test]
    fn on_btrfs() {
        let _held = calls_in_turn();
        if let Some(place) = Place::on("btrfs", &[]) {
            exerciser::exercise(&place, OPERATIONS);
        }
    }
}
