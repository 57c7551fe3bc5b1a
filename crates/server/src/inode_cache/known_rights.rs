//! What the kernel permitted a caller, for as long as it would answer the same.
//!
//! The answer follows from owner, group, mode, flags, access control list and label of an object,
//! and each change of one of them sets its ctime. So an answer lasts while the ctime is the one that
//! was read before the question, if that was [settled](Timestamp::is_settled) then: a change after it
//! has another one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use io::Identity;

use crate::fs::Timestamp;

/// Callers whose rights to one object are remembered.
const CALLERS_MAX: usize = 4;

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

/// The rights of the last callers that the kernel was asked for.
#[derive(Default)]
pub(super) struct KnownRights(Mutex<Vec<KnownCaller>>);

struct KnownCaller {
    identity: Identity,
    /// The object's ctime, read before the kernel was asked.
    ctime: Timestamp,
    rights: AccessRights,
}

impl KnownRights {
    /// The rights of a caller to the object while it has this ctime.
    pub(super) fn find(&self, identity: &Identity, ctime: Timestamp) -> Option<AccessRights> {
        let callers = self.lock();
        let known = callers.iter().find(|known| known.identity == *identity)?;
        (known.ctime == ctime).then_some(known.rights)
    }

    /// Remembers the rights of a caller, in place of older ones.
    pub(super) fn remember(&self, identity: &Identity, ctime: Timestamp, rights: AccessRights) {
        let mut callers = self.lock();
        callers.retain(|known| known.ctime == ctime && known.identity != *identity);
        if callers.len() == CALLERS_MAX {
            callers.remove(0);
        }
        callers.reserve_exact(1);
        callers.push(KnownCaller { identity: identity.clone(), ctime, rights });
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

    fn rights(bits: u8) -> AccessRights {
        AccessRights { read: bits & 1 > 0, write: bits & 2 > 0, execute: bits & 4 > 0 }
    }

    #[test]
    fn rights_are_those_of_one_caller_at_one_ctime() {
        let known = KnownRights::default();
        known.remember(&user(1, &[5]), time(7), rights(3));
        assert_eq!(known.find(&user(1, &[5]), time(7)), Some(rights(3)));
        assert_eq!(known.find(&user(1, &[5]), time(8)), None);
        assert_eq!(known.find(&user(1, &[6]), time(7)), None, "other groups");
        assert_eq!(known.find(&user(2, &[5]), time(7)), None);
        assert_eq!(known.find(&Identity::Server, time(7)), None);
    }

    proptest! {
        /// What is found is what was remembered last of that caller, at this ctime; and no more is
        /// kept than the bound.
        #[test]
        fn finds_the_last_or_nothing(
            steps in prop::collection::vec((0..8u32, 0..3u32, 0..8u8), 0..60),
        ) {
            let (known, mut last) = (KnownRights::default(), HashMap::new());
            for (uid, ctime, bits) in steps {
                known.remember(&user(uid, &[]), time(ctime), rights(bits));
                last.insert(uid, (ctime, bits));
                prop_assert_eq!(known.find(&user(uid, &[]), time(ctime)), Some(rights(bits)));
                prop_assert!(known.lock().len() <= CALLERS_MAX);
                for (uid, ctime) in (0..8).flat_map(|uid| (0..3).map(move |ctime| (uid, ctime))) {
                    let Some(found) = known.find(&user(uid, &[]), time(ctime)) else { continue };
                    let (remembered_at, bits) = last[&uid];
                    prop_assert_eq!((remembered_at, rights(bits)), (ctime, found));
                }
            }
        }
    }
}
