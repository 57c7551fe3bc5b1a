//! Acting on the file system as another user.
//!
//! Linux keeps credentials per thread. A thread that takes on a user's file-system ids and groups
//! is held to that user's permissions by the kernel itself, which no check of our own could match
//! (ACLs, sticky directories, security modules). The C library hides this behind calls that change
//! *all* threads, so the raw calls are used.
//!
//! One side effect reaches the whole process: after the first change of a file-system id the kernel
//! treats it as one that changed privileges, so that it writes no core dump and only root may trace
//! it (`PR_SET_DUMPABLE`).

mod id_map;
mod probe;

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::process::{Gid, getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_thread_groups};

use id_map::IdMap;
pub use probe::{ProbeFailure, can_assume_users, probe_users};

/// Whom a thread acts as towards the file system.
///
/// Only the threads of the [`Engine`](crate::Engine) act as anyone but the server. While a thread
/// acts as a user other than 0 the kernel withholds the capabilities that override permissions, so
/// the user gets what its ids and groups allow and no more. Quotas and blocks reserved for root are
/// another capability's matter (CAP_SYS_RESOURCE), which the engine's threads give up for good.
///
/// A process that cannot assume users (see [`can_assume_users`]) acts as itself for everyone: it
/// must use [`Identity::Server`] throughout, and every file it creates belongs to it.
///
/// The file mode creation mask belongs to the whole process, not to a thread. A server that honours
/// the modes its clients ask for sets it to zero once at start (`rustix::process::umask`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Identity {
    /// The process's own effective ids and the groups it was started with.
    Server,
    /// A user, in the ids of the exported file system.
    User {
        /// User id; `u32::MAX` is refused.
        uid: u32,
        /// Primary group id; `u32::MAX` is refused.
        gid: u32,
        /// Supplementary group ids, at most 65,536. They replace the server's own completely.
        groups: Arc<[u32]>,
    },
}

impl Identity {
    /// A user whom a client names. `None` for a user or a primary group without a mapping in the
    /// process's user namespace; supplementary groups without one are left out. To the kernel no
    /// file there belongs to any of them, and setgroups(2) refuses them.
    pub fn of_client(uid: u32, gid: u32, groups: &[u32]) -> Option<Self> {
        let (user_map, group_map) = (IdMap::of_users(), IdMap::of_groups());
        if !user_map.contains(uid) || !group_map.contains(gid) {
            return None;
        }
        let is_mapped = |gid: &u32| group_map.contains(*gid);
        let groups = if groups.iter().all(is_mapped) {
            Arc::from(groups)
        } else {
            groups.iter().copied().filter(is_mapped).collect()
        };
        Some(Self::User { uid, gid, groups })
    }

    /// The user id that counts for access to files.
    pub fn uid(&self) -> u32 {
        match self {
            Self::Server => server().fsuid,
            Self::User { uid, .. } => *uid,
        }
    }

    /// The primary group id.
    pub fn gid(&self) -> u32 {
        match self {
            Self::Server => server().fsgid,
            Self::User { gid, .. } => *gid,
        }
    }

    /// Whether it is the user whom stat shows as the owner of a file. `None` where the kernel alone
    /// knows: in a user namespace one id stands for all that have no mapping.
    pub fn is_owner(&self, shown: u32) -> Option<bool> {
        let is_same = self.uid() == shown;
        (!is_same || IdMap::of_users().is_certain(shown)).then_some(is_same)
    }

    /// The same for the group of a file, and the groups of this identity. Also `None` where the
    /// group may be a supplementary one of the server.
    pub fn is_in_group(&self, shown: u32) -> Option<bool> {
        let (is_same, are_all_known) = match self {
            Self::Server => (server().fsgid == shown, false),
            Self::User { gid, groups, .. } => (*gid == shown || groups.contains(&shown), true),
        };
        let is_known = if is_same { IdMap::of_groups().is_certain(shown) } else { are_all_known };
        is_known.then_some(is_same)
    }

    /// Whether it is user 0, whom no permission of a file with this owner and group stops, as stat
    /// shows them: the kernel withholds the overrides for files of ids without a mapping.
    pub fn has_overrides(&self, owner: u32, group: u32) -> bool {
        let are_mapped =
            || IdMap::of_users().is_certain(owner) && IdMap::of_groups().is_certain(group);
        matches!(self, Self::User { uid: 0, .. }) && are_mapped()
    }
}

/// Makes the calling thread act as `identity` until the next call. Costs nothing when it does
/// already.
///
/// # Errors
/// `EINVAL` for an id of `u32::MAX`, which means "no change" to the system calls, and for an id
/// that has no mapping in the process's user namespace; `EPERM` for any user if
/// [`can_assume_users`] is false. A refused id leaves the thread as it was. After a change that
/// failed half-way the thread acts as the server, or as an unknown mixture, in which case the next
/// call sets everything anew. So after an error the caller must not do the work for which it needed
/// the identity.
pub(crate) fn assume(identity: &Identity) -> io::Result<()> {
    CURRENT.with_borrow_mut(|current| {
        if current.as_ref() == Some(identity) {
            return Ok(());
        }
        let credentials = Credentials::of(identity)?;
        if current.take().is_none() {
            withhold(CapabilitySet::SYS_RESOURCE)?;
        }
        // Without the right to change its ids every thread has the server's from the start.
        if can_assume_users()
            && let Err(error) = credentials.apply()
        {
            if server().apply().is_ok() {
                *current = Some(Identity::Server);
            }
            return Err(error.into());
        }
        *current = Some(identity.clone());
        Ok(())
    })
}

/// Runs `call` with the server's file-system user id, and so its overrides, on a thread that acts
/// as a user.
///
/// For single system calls that need a capability for every user. Groups and group id stay the
/// user's.
pub(crate) fn with_overrides<R>(call: impl FnOnce() -> R) -> R {
    /// Ends the process if the user's id cannot be restored: the thread would go on with every
    /// override.
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            if set_fsuid(self.0).is_err() {
                tracing::error!(uid = self.0, "cannot restore the identity of a thread");
                std::process::abort();
            }
        }
    }

    let user = CURRENT.with_borrow(|current| match current {
        Some(Identity::User { uid, .. }) => Some(*uid),
        Some(Identity::Server) | None => None,
    });
    let _restore = user.map(|uid| {
        // A refusal shows as the call's own permission error, which is the truth.
        let _ = set_fsuid(server().fsuid);
        Restore(uid)
    });
    call()
}

thread_local! {
    /// Whom this thread acts as; `None` when that is not known, as on a new thread, which inherits
    /// the credentials of whichever thread started it.
    static CURRENT: RefCell<Option<Identity>> = const { RefCell::new(None) };
}

/// The ids that the kernel consults for access to files.
#[derive(Debug)]
struct Credentials {
    fsuid: u32,
    fsgid: u32,
    groups: Vec<Gid>,
}

/// The credentials the process was started with. Only this module changes any, and it asks here
/// first, so the first caller sees them unchanged.
fn server() -> &'static Credentials {
    static SERVER: OnceLock<Credentials> = OnceLock::new();
    SERVER.get_or_init(|| {
        let mut groups = getgroups().expect("the kernel returns a thread's own groups");
        // With any other setgroups(2) refuses all. The others grant nothing: no file can belong to
        // them.
        groups.retain(|gid| IdMap::of_groups().contains(gid.as_raw()));
        Credentials { fsuid: geteuid().as_raw(), fsgid: getegid().as_raw(), groups }
    })
}

impl Credentials {
    fn of(identity: &Identity) -> Result<Self, Errno> {
        let server = server();
        match identity {
            Identity::Server => {
                Ok(Self { fsuid: server.fsuid, fsgid: server.fsgid, groups: server.groups.clone() })
            }
            Identity::User { uid, gid, groups } => {
                if *uid == u32::MAX || *gid == u32::MAX || groups.contains(&u32::MAX) {
                    return Err(Errno::INVAL);
                }
                if !can_assume_users() {
                    return Err(Errno::PERM);
                }
                let groups = groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
                Ok(Self { fsuid: *uid, fsgid: *gid, groups })
            }
        }
    }

    /// Sets the calling thread's groups, group id and user id, in this order, so that the user id,
    /// which decides over the overrides, changes when everything else is in place.
    ///
    /// CAP_SETUID and CAP_SETGID are not among the capabilities withheld from a user, so going from
    /// one user to another needs no step through the server's identity.
    fn apply(&self) -> Result<(), Errno> {
        set_thread_groups(&self.groups)?;
        set_fsgid(self.fsgid)?;
        set_fsuid(self.fsuid)
    }
}

/// Takes capabilities out of the calling thread's effective set.
///
/// Leaving user id 0 does this for the permission overrides alone. CAP_SYS_RESOURCE would remain,
/// and with it every user could write past its quota and into the blocks reserved for root.
fn withhold(unwanted: CapabilitySet) -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    if sets.effective.intersects(unwanted) {
        sets.effective -= unwanted;
        set_capabilities(None, sets)?;
    }
    Ok(())
}

/// Sets the calling thread's file-system user id. `EINVAL` if the kernel did not.
fn set_fsuid(uid: u32) -> Result<(), Errno> {
    set_and_read_back(libc::SYS_setfsuid, uid)
}

/// Sets the calling thread's file-system group id. `EINVAL` if the kernel did not.
fn set_fsgid(gid: u32) -> Result<(), Errno> {
    set_and_read_back(libc::SYS_setfsgid, gid)
}

/// Both calls return the previous id, and neither success nor failure. So they are called again
/// with the invalid id -1, which changes nothing.
fn set_and_read_back(call: libc::c_long, id: u32) -> Result<(), Errno> {
    // SAFETY: setfsuid and setfsgid, the only calls named here, take one integer and touch no
    // memory of ours.
    let in_force = unsafe {
        libc::syscall(call, id);
        libc::syscall(call, u32::MAX)
    };
    if in_force == libc::c_long::from(id) { Ok(()) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests;
