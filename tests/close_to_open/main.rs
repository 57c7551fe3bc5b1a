//! Close-to-open: no client that caches as NFSv3 permits reads bytes or names that are older than
//! what was acknowledged before it opened them.
//!
//! Raw clients keep what they read under the object's stamp (size, mtime and ctime), extend it over
//! own changes by the attributes in replies, and drop it otherwise; one kind believes only pairs,
//! the other, like Linux, also attributes from after a change that come alone. Beside them two FUSE
//! mounts (as root), and programs of this machine that write, cut, store and rename without the
//! server.
//!
//! Promises that no server outside of the kernel can keep are left out. The kernel gives a local
//! change its time when it begins, and no reader can see that its data is still to come; so raw
//! clients do not keep what they read or looked up while a local change of the same object was at
//! work, and files of the mounts get a new time behind each. Local changes and changes by clients
//! to one object exclude each other, since a time does not identify the change that it is of. Reads
//! that overlap a change are judged all the same. On a tmpfs, whose directories keep their times
//! over some changes, no names are cached, and nothing is stored through mappings.
//!
//! Each test prints its seed. `docs/testing.md` describes how to run for an hour and how to repeat.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::cast_possible_truncation, reason = "a cell shows the low byte of its version")]
#![expect(clippy::result_large_err, reason = "a refusal comes with attributes, as on the wire")]

#[expect(dead_code, reason = "the tests of procedures use all of it, these use little")]
#[path = "../../crates/server/tests/wire/client.rs"]
mod client;
#[path = "../torture/environment.rs"]
mod environment;
#[path = "../torture/journal.rs"]
mod journal;
#[expect(dead_code, reason = "nothing is read through mappings here")]
#[path = "../torture/mapping.rs"]
mod mapping;
#[path = "../torture/place.rs"]
mod place;
#[expect(dead_code, reason = "all choices here are of parts of a test")]
#[path = "../torture/random.rs"]
mod random;
#[expect(dead_code, reason = "each server here has settings of its own")]
#[path = "../torture/server.rs"]
mod server;
#[path = "../skip/mod.rs"]
mod skip;

mod file;
mod local;
mod mount;
mod names;
mod raw_client;
mod trust;
mod versions;
mod workload;

use std::sync::{Mutex, MutexGuard};

use place::Place;

const FUZZ_SECS: u64 = 5;
const MOUNTS: usize = 2;

/// Each test wants the machine for itself.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|failed| failed.into_inner())
}

mod nothing_stale {
    use super::*;

    #[test]
    fn in_a_directory() {
        let _alone = alone();
        workload::fuzz(&Place::in_directory(), 0, FUZZ_SECS);
    }

    #[test]
    fn on_xfs() {
        let _alone = alone();
        if let Some(place) = Place::on("xfs", &[]) {
            workload::fuzz(&place, 0, FUZZ_SECS);
        }
    }

    #[test]
    fn in_memory() {
        let _alone = alone();
        if let Some(place) = Place::in_memory() {
            workload::fuzz(&place, 0, FUZZ_SECS);
        }
    }
}

/// The same beside FUSE mounts.
mod nothing_stale_through_mounts {
    use super::*;

    #[test]
    fn others_append() {
        let _alone = alone();
        mount::read_what_others_append(&Place::in_directory());
    }

    #[test]
    fn others_overwrite_an_open_file() {
        let _alone = alone();
        mount::read_what_others_overwrite_in_an_open_file(&Place::in_directory());
    }

    #[test]
    fn others_overwrite_what_was_read_ahead() {
        let _alone = alone();
        mount::read_what_others_overwrite_behind_a_reader(&Place::in_directory());
    }

    #[test]
    fn others_cut() {
        let _alone = alone();
        mount::read_what_others_cut(&Place::in_directory());
    }

    #[test]
    fn others_append_between_own_appends() {
        let _alone = alone();
        mount::append_where_others_append(&Place::in_directory());
    }

    #[test]
    fn others_append_to_an_open_file() {
        let _alone = alone();
        mount::read_what_others_append_to_an_open_file(&Place::in_directory());
    }

    #[test]
    fn in_a_directory() {
        let _alone = alone();
        workload::fuzz(&Place::in_directory(), MOUNTS, FUZZ_SECS);
    }

    #[test]
    fn on_xfs() {
        let _alone = alone();
        if let Some(place) = Place::on("xfs", &[]) {
            workload::fuzz(&place, MOUNTS, FUZZ_SECS);
        }
    }
}
