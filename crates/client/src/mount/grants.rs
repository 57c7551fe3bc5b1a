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
    access: u32,
}

impl Grants {
    /// The access granted to `identity` while the file had this `ctime`: a sum of `ACCESS_*`.
    pub(super) fn find(&self, identity: &Identity, ctime: Time) -> Option<u32> {
        let grants = self.newest_first.lock().unwrap_or_else(PoisonError::into_inner);
        let found = grants.iter().find(|grant| *grant.identity == *identity)?;
        (found.ctime == ctime).then_some(found.access)
    }

    /// Adds a result, in place of an older one for the same user.
    pub(super) fn learn(&self, identity: &Arc<Identity>, ctime: Time, access: u32) {
        let mut grants = self.newest_first.lock().unwrap_or_else(PoisonError::into_inner);
        grants.retain(|grant| grant.identity != *identity);
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

    fn user(uid: u32, groups: &[u32]) -> Arc<Identity> {
        Arc::new(Identity { uid, gid: 100, groups: groups.to_vec() })
    }

    #[test]
    fn a_grant_is_for_one_user_with_its_groups() {
        let grants = Grants::default();
        grants.learn(&user(1, &[4]), BEFORE, 0x1F);
        assert_eq!(grants.find(&user(1, &[4]), BEFORE), Some(0x1F));
        assert_eq!(grants.find(&user(1, &[]), BEFORE), None);
        assert_eq!(grants.find(&user(2, &[4]), BEFORE), None);
    }

    #[test]
    fn a_grant_ends_with_a_change_of_the_file() {
        let grants = Grants::default();
        grants.learn(&user(1, &[]), BEFORE, 0x1F);
        assert_eq!(grants.find(&user(1, &[]), AFTER), None);
        grants.learn(&user(1, &[]), AFTER, 1);
        assert_eq!(grants.find(&user(1, &[]), AFTER), Some(1));
        assert_eq!(grants.find(&user(1, &[]), BEFORE), None);
    }

    #[test]
    fn the_oldest_user_is_evicted_first() {
        let grants = Grants::default();
        let users: Vec<_> = (0..10).map(|uid| user(uid, &[])).collect();
        for user in &users {
            grants.learn(user, BEFORE, 1);
        }
        let known = users.iter().map(|user| grants.find(user, BEFORE).is_some());
        assert_eq!(known.collect::<Vec<_>>(), [[false; 2].as_slice(), &[true; 8]].concat());
    }
}
