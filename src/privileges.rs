//! The privileges that a server keeps once it runs: `docs/installation.md` lists them.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Capabilities for acting as a client's user, handles, delegations, and ports below 1024.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LEASE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// Drops every capability but [`KEPT`] from all sets of the calling thread, and the right to gain
/// privileges by a program that it executes. Threads inherit both, so this comes before the first.
///
/// # Errors
/// The kernel refuses a part of it; the rest is dropped.
pub(crate) fn drop_unneeded() -> Result<(), Errno> {
    // The bounding set first: it takes CAP_SETPCAP, which is not kept.
    [drop_bounding(), clear_ambient(), drop_own(), set_no_new_privs(true)].into_iter().collect()
}

/// Without CAP_SETPCAP the bounding set stays. It bounds what an executed program may gain, which
/// is nothing with `no_new_privs`.
fn drop_bounding() -> Result<(), Errno> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    (0..u64::BITS)
        .map(|bit| CapabilitySet::from_bits_retain(1 << bit))
        .filter(|capability| !KEPT.contains(*capability))
        // The numbers past the last that this kernel has are errors here.
        .filter(|capability| capability_is_in_bounding_set(*capability).unwrap_or(false))
        .try_for_each(remove_capability_from_bounding_set)
}

fn clear_ambient() -> Result<(), Errno> {
    clear_ambient_capability_set()
}

fn drop_own() -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    sets.effective &= KEPT;
    sets.permitted &= KEPT;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::thread::no_new_privs;

    use super::*;
    use crate::skip::skip;

    #[test]
    fn a_thread_keeps_what_a_server_needs() {
        // Capabilities are a thread's own; those of the others stay for their tests.
        let tested = thread::spawn(|| {
            let before = capabilities(None).unwrap();
            drop_unneeded().unwrap();
            let after = capabilities(None).unwrap();
            assert_eq!(after.effective, before.effective & KEPT);
            assert_eq!(after.permitted, before.permitted & KEPT);
            assert!(after.inheritable.is_empty());
            assert!(no_new_privs().unwrap());
            let bounding = |capability| capability_is_in_bounding_set(capability).unwrap();
            if before.effective.contains(CapabilitySet::SETPCAP) {
                assert!(!bounding(CapabilitySet::SYS_ADMIN) && !bounding(CapabilitySet::SETPCAP));
            } else {
                skip("CAP_SETPCAP is missing, so the bounding set stays");
            }
            drop_unneeded().expect("a second time changes nothing");
            assert_eq!(capabilities(None).unwrap(), after);
        });
        tested.join().unwrap();
    }
}
