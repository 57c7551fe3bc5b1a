//! The kernel's answers on the rights of callers, for as long as it would answer the same.
//!
//! The answer follows from owner, group, mode, flags, access control list and label of an object,
//! and each change of one of them sets its ctime. So an answer lasts while the ctime is the one
//! that was read before the question, if that was [settled](Timestamp::is_settled) then: a change
//! after it has another one. A changed mount option or security policy sets no ctime: it takes
//! effect when the answers are [`AGE_MAX`] old.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io::Identity;
use rustix::fs::Access;

use crate::fs::Timestamp;

/// Callers whose rights to one object are remembered.
const CALLERS_MAX: usize = 4;

/// How long an answer is used. Asking again this often costs nothing measurable.
const AGE_MAX: Duration = Duration::from_secs(5);

/// Permissions, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessRights {
    /// Read data, list a directory.
    pub(crate) read: bool,
    /// Change data, add and remove names.
    pub(crate) write: bool,
    /// Execute a file, look names up in a directory.
    pub(crate) execute: bool,
}

/// The kernel's answer to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The permissions that were asked for.
    pub(super) asked: Access,
    /// Those of them that the caller has.
    pub(super) granted: Access,
}

/// The rights of some callers whom the kernel was asked for.
#[derive(Default)]
pub(super) struct KnownRights(Mutex<Vec<KnownCaller>>);

struct KnownCaller {
    identity: Identity,
    /// The object's ctime, read before the kernel was asked.
    ctime: Timestamp,
    asked_at: Instant,
    answer: Answer,
}

impl KnownCaller {
    fn lasts(&self, ctime: Timestamp, now: Instant) -> bool {
        self.ctime == ctime && now.saturating_duration_since(self.asked_at) < AGE_MAX
    }
}

impl KnownRights {
    /// Those of the permissions `wanted` that a caller has to the object with this ctime, if all of
    /// them were asked for.
    pub(super) fn find(
        &self,
        identity: &Identity,
        wanted: Access,
        ctime: Timestamp,
        now: Instant,
    ) -> Option<Access> {
        let callers = self.lock();
        let known = callers.iter().find(|known| known.identity == *identity)?;
        let is_known = known.answer.asked.contains(wanted) && known.lasts(ctime, now);
        is_known.then_some(known.answer.granted & wanted)
    }

    /// Whether an answer to this caller would be remembered. Another caller's is not replaced while
    /// it lasts, or callers in rotation would replace each other's and find none.
    pub(super) fn has_room(&self, identity: &Identity, ctime: Timestamp, now: Instant) -> bool {
        let others = |known: &&KnownCaller| known.identity != *identity && known.lasts(ctime, now);
        self.lock().iter().filter(others).count() < CALLERS_MAX
    }

    /// Remembers the answer to a caller, if there is [room](Self::has_room).
    pub(super) fn remember(
        &self,
        identity: &Identity,
        answer: Answer,
        ctime: Timestamp,
        now: Instant,
    ) {
        let mut callers = self.lock();
        callers.retain(|known| known.identity != *identity && known.lasts(ctime, now));
        if callers.len() < CALLERS_MAX {
            callers.reserve_exact(1);
            let identity = identity.clone();
            callers.push(KnownCaller { identity, ctime, asked_at: now, answer });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<KnownCaller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn user(uid: u32, groups: &[u32]) -> Identity {
        Identity::User { uid, gid: 100, groups: Arc::from(groups) }
    }

    fn time(nanoseconds: u32) -> Timestamp {
        Timestamp { seconds: 1_700_000_000, nanoseconds }
    }

    fn answer(asked: u32, granted: u32) -> Answer {
        Answer {
            asked: Access::from_bits_retain(asked),
            granted: Access::from_bits_retain(granted),
        }
    }

    const ALL: Access = Access::from_bits_retain(7);

    #[test]
    fn rights_are_those_of_one_caller_at_one_ctime() {
        let (known, now) = (KnownRights::default(), Instant::now());
        known.remember(&user(1, &[5]), answer(7, 3), time(7), now);
        assert_eq!(known.find(&user(1, &[5]), ALL, time(7), now), Some(answer(7, 3).granted));
        assert_eq!(known.find(&user(1, &[5]), ALL, time(8), now), None);
        assert_eq!(known.find(&user(1, &[6]), ALL, time(7), now), None, "other groups");
        assert_eq!(known.find(&user(2, &[5]), ALL, time(7), now), None);
        assert_eq!(known.find(&Identity::Server, ALL, time(7), now), None);
    }

    #[test]
    fn only_permissions_that_were_asked_for_are_known() {
        let (known, now) = (KnownRights::default(), Instant::now());
        known.remember(&user(1, &[]), answer(5, 4), time(7), now);
        let find = |wanted| known.find(&user(1, &[]), wanted, time(7), now);
        assert_eq!(find(Access::READ_OK), Some(Access::READ_OK));
        assert_eq!(find(Access::EXEC_OK), Some(Access::empty()));
        assert_eq!(find(Access::WRITE_OK), None);
        assert_eq!(find(ALL), None);
    }

    #[test]
    fn callers_in_rotation_do_not_replace_answers_that_last() {
        let (known, now) = (KnownRights::default(), Instant::now());
        let found = |now| {
            (0..8).filter(|uid| known.find(&user(*uid, &[]), ALL, time(7), now).is_some()).count()
        };
        for uid in (0..8).cycle().take(80) {
            known.remember(&user(uid, &[]), answer(7, 7), time(7), now);
        }
        assert_eq!(found(now), CALLERS_MAX);
        assert!(!known.has_room(&user(9, &[]), time(7), now));
        let later = now + AGE_MAX;
        assert_eq!(found(later), 0);
        assert!(known.has_room(&user(9, &[]), time(7), later));
        assert!(known.has_room(&user(9, &[]), time(8), now), "the object has changed");
    }

    proptest! {
        /// A search finds the answer that was remembered of that caller at this ctime, not too long
        /// ago, or none; and no more answers are kept than the bound.
        #[test]
        fn finds_what_was_remembered_or_nothing(
            steps in prop::collection::vec((0..8u32, 0..3u32, 0..8u32, 0..4u64), 0..60),
        ) {
            let (known, mut last) = (KnownRights::default(), HashMap::new());
            let mut now = Instant::now();
            for (uid, ctime, bits, seconds) in steps {
                now += Duration::from_secs(seconds);
                let has_room = known.has_room(&user(uid, &[]), time(ctime), now);
                known.remember(&user(uid, &[]), answer(7, bits), time(ctime), now);
                let found = known.find(&user(uid, &[]), ALL, time(ctime), now);
                prop_assert_eq!(found.is_some(), has_room);
                if has_room {
                    last.insert(uid, (ctime, bits, now));
                }
                prop_assert!(known.lock().len() <= CALLERS_MAX);
                for (uid, ctime) in (0..8).flat_map(|uid| (0..3).map(move |ctime| (uid, ctime))) {
                    let Some(found) = known.find(&user(uid, &[]), ALL, time(ctime), now) else {
                        continue;
                    };
                    let (remembered_at, bits, asked_at) = last[&uid];
                    prop_assert_eq!((remembered_at, bits), (ctime, found.bits()));
                    prop_assert!(now - asked_at < AGE_MAX);
                }
            }
        }
    }
}
