//! How long a thread is meant to stay on a processor: its slice of Linux's fair scheduler
//! (`sched_runtime` of `sched_setattr(2)`, since Linux 6.12; before, it is ignored).
//!
//! A thread that wakes waits until the slice of the one at work is used, unless its own is the
//! shorter one. Threads have the same share of the processor all the same: who preempts others more
//! often is preempted more often. Threads that answer calls have short slices, so that a call does
//! not wait for what else the machine computes, write-back among it.

use std::io;

/// The shortest slice that the kernel takes.
const SHORT_NS: u64 = 100_000;
/// The kernel's own (`base_slice_ns`): some milliseconds.
const USUAL_NS: u64 = 0;

/// Gives this thread, which answers calls, slices of 100 us. Threads that it starts inherit them.
/// Under another policy than `SCHED_OTHER`, an administrator's choice, nothing changes.
pub fn take_short_slices() {
    take_slices(SHORT_NS);
}

/// Gives this thread the kernel's default slices in place of those that it has inherited. Exception
/// as for [`take_short_slices`].
pub(crate) fn take_usual_slices() {
    take_slices(USUAL_NS);
}

fn take_slices(slice_ns: u64) {
    let outcome = scheduling().and_then(|mut scheduling| {
        if scheduling.sched_policy != number(libc::SCHED_OTHER) {
            return Ok(());
        }
        scheduling.sched_runtime = slice_ns;
        set_scheduling(&scheduling)
    });
    if let Err(error) = outcome {
        // A sandbox that does not know the calls.
        tracing::debug!(%error, slice_ns, "cannot set the slice of a thread");
    }
}

fn number(policy: libc::c_int) -> u32 {
    u32::try_from(policy).expect("policies are small numbers")
}

/// `struct sched_attr` as of Linux 3.14, which later kernels take too.
const SCHEDULING_BYTES: u32 = 48;
const _: () = assert!(size_of::<libc::sched_attr>() == SCHEDULING_BYTES as usize);

/// How this thread is scheduled.
///
/// # Errors
/// Those of a sandbox.
fn scheduling() -> io::Result<libc::sched_attr> {
    let mut scheduling = libc::sched_attr {
        size: SCHEDULING_BYTES,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let attributes = &raw mut scheduling;
    // SAFETY: the kernel writes at most the bytes that it is given, which the structure has, and
    // the structure outlives the call.
    let outcome =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes, SCHEDULING_BYTES, 0) };
    if outcome == 0 { Ok(scheduling) } else { Err(io::Error::last_os_error()) }
}

/// # Errors
/// Those of a sandbox; `EPERM` for what this user may not have.
fn set_scheduling(scheduling: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the structure gives as its size, and keeps no
    // pointer.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *scheduling, 0) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(shuttle))]
#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::skip::skip_in_ci_too;

    /// The slice of a thread that `change` was called in; `None` where it cannot be set.
    fn slice_after(change: impl FnOnce() + Send) -> Option<u64> {
        let can_be_set = |scheduling: &libc::sched_attr| {
            scheduling.sched_policy == number(libc::SCHED_OTHER) && scheduling.sched_runtime > 0
        };
        thread::scope(|scope| {
            let changed = scope.spawn(|| {
                let before = scheduling().ok().filter(can_be_set)?;
                set_scheduling(&before).ok()?;
                change();
                Some(scheduling().unwrap().sched_runtime)
            });
            changed.join().unwrap()
        })
    }

    #[test]
    fn threads_have_the_slices_that_they_take() {
        let Some(usual_ns) = slice_after(take_usual_slices) else {
            return skip_in_ci_too("a kernel, policy or sandbox without slices of threads");
        };
        assert!(usual_ns > SHORT_NS);
        assert_eq!(slice_after(take_short_slices), Some(SHORT_NS));
        let of_child = slice_after(|| {
            take_short_slices();
            let child = thread::spawn(|| {
                let inherited = scheduling().unwrap().sched_runtime;
                take_usual_slices();
                (inherited, scheduling().unwrap().sched_runtime)
            });
            assert_eq!(child.join().unwrap(), (SHORT_NS, usual_ns));
        });
        assert_eq!(of_child, Some(SHORT_NS));
    }

    #[test]
    fn another_policy_is_kept() {
        let changed = slice_after(|| {
            let mut batch = scheduling().unwrap();
            batch.sched_policy = number(libc::SCHED_BATCH);
            batch.sched_runtime = 5_000_000;
            set_scheduling(&batch).unwrap();
            take_short_slices();
            assert_eq!(scheduling().unwrap().sched_policy, number(libc::SCHED_BATCH));
        });
        match changed {
            Some(slice_ns) => assert_eq!(slice_ns, 5_000_000),
            None => skip_in_ci_too("a kernel, policy or sandbox without slices of threads"),
        }
    }
}
