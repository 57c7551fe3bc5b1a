//! The access cache of a file.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use proto::nfs3::Time;

use crate::identity::Identity;

/// Results of ACCESS for one file. Each is valid for its user until the file's ctime changes, as it
/// does with owner, mode and access list.
#[derive(Debug, Default)]
pub(super) struct Grants {
    newest_first: Mutex<VecDeque<Grant>>,
}

#[derive(Debug)]
struct Grant {
    identity: Arc<Identity>,
    ctime: Time,
    access: Access,
}

/// The result of ACCESS: sums of `ACCESS_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) asked: u32,
    pub(super) granted: u32,
}

impl Grants {
    /// The access granted to `identity` while the file had this `ctime`, if the server was asked
    /// for all of `wanted`.
    pub(super) fn find(&self, identity: &Identity, ctime: Time, wanted: u32) -> Option<u32> {
        let grants = self.newest_first.lock().unwrap_or_else(PoisonError::into_inner);
        let found = grants.iter().find(|grant| *grant.identity == *identity)?;
        let Access { asked, granted } = found.access;
        (found.ctime == ctime && asked & wanted == wanted).then_some(granted)
    }

    /// Adds a result, in place of an older one for the same user, or to it if it is as valid.
    pub(super) fn learn(&self, identity: &Arc<Identity>, ctime: Time, mut access: Access) {
        let mut grants = self.newest_first.lock().unwrap_or_else(PoisonError::into_inner);
        grants.retain(|grant| {
            let is_of_same = grant.identity == *identity;
            if is_of_same && grant.ctime == ctime {
                access.granted |= grant.access.granted & !access.asked;
                access.asked |= grant.access.asked;
            }
            !is_of_same
        });
        grants.truncate(USERS_MAX - 1);
        grants.push_front(Grant { identity: Arc::clone(identity), ctime, access });
    }
}

/// Maximum of users of a file.
const USERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Time = Time { seconds: 1, nseconds: 0 };
    const AFTER: Time = Time { seconds: 1, nseconds: 1 };

    /// All that was asked for is granted.
    const READ: Access = Access { asked: 1, granted: 1 };

    fn user(uid: u32, groups: &[u32]) -> Arc<Identity> {
        Arc::new(Identity { uid, gid: 100, groups: groups.to_vec() })
    }

    #[test]
    fn a_grant_is_for_one_user_with_its_groups() {
        let grants = Grants::default();
        grants.learn(&user(1, &[4]), BEFORE, READ);
        assert_eq!(grants.find(&user(1, &[4]), BEFORE, 1), Some(1));
        assert_eq!(grants.find(&user(1, &[]), BEFORE, 1), None);
        assert_eq!(grants.find(&user(2, &[4]), BEFORE, 1), None);
    }

    #[test]
    fn a_grant_ends_with_a_change_of_the_file() {
        let grants = Grants::default();
        grants.learn(&user(1, &[]), BEFORE, READ);
        assert_eq!(grants.find(&user(1, &[]), AFTER, 1), None);
        grants.learn(&user(1, &[]), AFTER, READ);
        assert_eq!(grants.find(&user(1, &[]), AFTER, 1), Some(1));
        assert_eq!(grants.find(&user(1, &[]), BEFORE, 1), None);
    }

    #[test]
    fn results_for_other_bits_are_added_while_the_file_does_not_change() {
        let grants = Grants::default();
        let user = user(1, &[]);
        grants.learn(&user, BEFORE, Access { asked: 0b011, granted: 0b001 });
        assert_eq!(grants.find(&user, BEFORE, 0b100), None, "the server was not asked");
        grants.learn(&user, BEFORE, Access { asked: 0b110, granted: 0b110 });
        assert_eq!(grants.find(&user, BEFORE, 0b111), Some(0b111));
        grants.learn(&user, AFTER, Access { asked: 0b100, granted: 0 });
        assert_eq!(grants.find(&user, AFTER, 0b100), Some(0));
        assert_eq!(grants.find(&user, AFTER, 0b001), None);
    }

    #[test]
    fn the_oldest_user_is_evicted_first() {
        let grants = Grants::default();
        let users: Vec<_> = (0..10).map(|uid| user(uid, &[])).collect();
        for user in &users {
            grants.learn(user, BEFORE, READ);
        }
        let known = users.iter().map(|user| grants.find(user, BEFORE, 1).is_some());
        assert_eq!(known.collect::<Vec<_>>(), [[false; 2].as_slice(), &[true; 8]].concat());
    }
}
