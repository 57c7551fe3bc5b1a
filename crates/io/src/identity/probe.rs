//! Detects by a try whether this process can act as other users.

use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_thread_groups};

use super::id_map::IdMap;
use super::{server, set_fsgid, set_fsuid};

/// Why a process with user id 0, CAP_SETUID and CAP_SETGID cannot act as the other users that there
/// are: the step that failed. To serve all the same would give every client the rights of root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeFailure {
    /// No thread to try it on.
    #[error("the system refuses a thread: {0}. Raise the limit of threads")]
    Thread(Errno),
    /// There are other users, and no group but 0.
    #[error("its user namespace maps no other group. Map more of them (subgid(5))")]
    NoOtherGroup,
    /// setgroups(2).
    #[error("setgroups: {0}. Its user namespace has to permit that (user_namespaces(7))")]
    Groups(Errno),
    /// setfsgid(2).
    #[error("setfsgid does not set group {0}. See what confines the process")]
    Group(u32),
    /// setfsuid(2).
    #[error("setfsuid does not set user {0}. See what confines the process")]
    User(u32),
    /// capget(2).
    #[error("capget: {0}. See what confines the process")]
    Capabilities(Errno),
    /// The thread kept the capabilities that override permissions.
    #[error(
        "it keeps its capabilities as another user. Unset no-setuid-fixup of its securebits (capabilities(7))"
    )]
    KeepsOverrides,
    /// Back to the server's own ids.
    #[error(
        "it cannot return to its own user and groups: {0}. Start it in a group that its user \
         namespace maps"
    )]
    Restore(Errno),
}

/// Whether this process can act as other users, found out by trying it once on a thread of its own.
///
/// It takes effective user id 0 with CAP_SETUID and CAP_SETGID, and another user in the process's
/// user namespace. Capabilities alone, under another
/// user id, do not do: the kernel withholds the permission overrides only from a thread whose
/// file-system id leaves 0, so such a server would serve every user with its own overrides.
///
/// # Errors
/// It has these, and cannot.
pub fn probe_users() -> Result<bool, ProbeFailure> {
    static ANSWER: OnceLock<Result<bool, ProbeFailure>> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let probe = thread::Builder::new().name("spillway-probe".to_owned()).spawn(try_another);
        let thread = probe.map_err(|error| {
            ProbeFailure::Thread(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
        })?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// As [`probe_users`], without an error.
pub fn can_assume_users() -> bool {
    probe_users() == Ok(true)
}

/// Makes this thread another user, if it has what that takes.
pub(super) fn try_another() -> Result<bool, ProbeFailure> {
    // The server's own ids are recorded before anything changes.
    if server().fsuid != 0 {
        return Ok(false);
    }
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let effective = || Ok(capabilities(None).map_err(ProbeFailure::Capabilities)?.effective);
    if !effective()?.contains(needed) {
        return Ok(false);
    }
    let (users, groups) = (IdMap::of_users(), IdMap::of_groups());
    // Each file that the namespace maps is the server's own.
    let Some(uid) = users.other_than_root() else { return Ok(false) };
    let gid = groups.other_than_root().ok_or(ProbeFailure::NoOtherGroup)?;
    set_thread_groups(&[]).map_err(ProbeFailure::Groups)?;
    set_fsgid(gid).map_err(|_| ProbeFailure::Group(gid))?;
    set_fsuid(uid).map_err(|_| ProbeFailure::User(uid))?;
    let overrides = CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::CHOWN;
    if effective()?.intersects(overrides) {
        return Err(ProbeFailure::KeepsOverrides);
    }
    server().apply().map_err(ProbeFailure::Restore)?;
    Ok(true)
}
