//! The callers of the kernel's requests: their identity, and whether they were killed or exit.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::request::Head;
use crate::identity::Identity;

/// Reads the groups of callers, of which a request has only the first, and caches them for
/// [`BELIEVED_FOR`]. Bounds the time of their exits.
#[derive(Debug, Default)]
pub(super) struct Callers {
    known: Mutex<HashMap<Caller, (Instant, Arc<Identity>)>>,
    /// When threads that exit wait no longer, by pid.
    exits: Mutex<HashMap<u32, Instant>>,
    /// A caller without a PID was reported.
    reported: AtomicBool,
}

/// A change of a thread's user or group counts at once; a change of its supplementary groups alone
/// counts when the cached ones expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Caller {
    pid: u32,
    uid: u32,
    gid: u32,
}

impl Callers {
    /// The identity for a request. A caller without a visible process, as in a foreign PID
    /// namespace, has no supplementary groups; the first one of a user other than root is reported.
    pub(super) fn identity(&self, head: &Head) -> Arc<Identity> {
        let caller = Caller { pid: head.pid, uid: head.uid, gid: head.gid };
        if let Some((since, identity)) = self.known().get(&caller)
            && since.elapsed() < BELIEVED_FOR
        {
            return Arc::clone(identity);
        }
        if self.is_first_without_pid(caller) {
            tracing::warn!(
                "a program of user {} is outside the PID namespace of this mount: its calls carry \
                 no supplementary groups, and a signal does not end its wait for the server",
                caller.uid,
            );
        }
        let groups = status(head.pid).map(|status| groups(&status)).unwrap_or_default();
        let identity = Arc::new(Identity { uid: head.uid, gid: head.gid, groups });
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.retain(|_, (since, _)| since.elapsed() < BELIEVED_FOR);
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
        }
        known.insert(caller, (Instant::now(), Arc::clone(&identity)));
        identity
    }

    /// Whether this is the first program without a PID here, of a user other than root. The kernel
    /// itself calls as root, as the invalid user, or as the overflow user, to which it maps users
    /// that it does not know, and nfsd those that it squashes.
    fn is_first_without_pid(&self, caller: Caller) -> bool {
        let is_program = ![0, OVERFLOW_USER, INVALID_USER].contains(&caller.uid);
        caller.pid == 0 && is_program && !self.reported.swap(true, Ordering::Relaxed)
    }

    /// When the exit of the thread `pid` waits no longer: `wait_max` after the first call for it.
    /// One thread closes all files of a process that exits.
    pub(super) fn exit_deadline(&self, pid: u32, wait_max: Duration) -> Instant {
        let mut exits = self.exits.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_this_exit = |deadline: &Instant| deadline.elapsed() < DEADLINE_KEPT;
        if let Some(deadline) = exits.get(&pid).filter(|deadline| is_of_this_exit(deadline)) {
            return *deadline;
        }
        exits.retain(|pid, deadline| is_of_this_exit(deadline) && is_exiting(*pid));
        *exits.entry(pid).or_insert(Instant::now() + wait_max)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Caller, (Instant, Arc<Identity>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the thread `pid` is dying or dead, so that its request need not be completed. A fatal
/// signal shows as pending SIGKILL, whichever signal it was, until the thread acts on it, and in
/// the exit code from then on. An invisible thread counts as alive.
pub(super) fn is_killed(pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    match status(pid) {
        Some(status) => kill_is_pending(&status) || (exits(&status) && was_ended_by_signal(pid)),
        None => !exists(pid),
    }
}

/// Whether there is a thread `pid`, also if `/proc` is mounted with `hidepid` and hides it.
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// The process of the thread `pid`; `None` for an invisible one.
pub(super) fn process_of(pid: u32) -> Option<u32> {
    field(&status(pid)?, "Tgid")?.parse().ok()
}

/// Whether the thread `pid` exits, which closes its files and ignores their errors. `true` also for
/// a thread of the kernel, which ignores them too; `false` for an invisible one.
pub(super) fn is_exiting(pid: u32) -> bool {
    status(pid).is_some_and(|status| exits(&status))
}

/// Whether the thread `pid` exits because a signal ended its process. That is unknown, and
/// `false`, where this process may not trace it.
pub(super) fn is_exiting_by_signal(pid: u32) -> bool {
    is_exiting(pid) && was_ended_by_signal(pid)
}

/// A thread that exits drops its memory before it closes its files; execve(2) has memory when it
/// closes those with `O_CLOEXEC`. `/proc/PID/stat` has a flag of the exit, but in kernels with
/// 6650527444da ("proc: protect ptrace_may_access() with exec_update_lock") it waits for execve(2),
/// which waits for FLUSH.
fn exits(status: &str) -> bool {
    field(status, "VmSize").is_none()
}

/// Whether a signal has ended the process of `pid`, a thread that exits. Then `/proc/PID/stat` does
/// not wait, see [`exits`]: execve(2) takes the lock when all other threads of its process are
/// gone. The flag `PF_SIGNALED` does not decide: exit(2) of one thread sets it in the others.
fn was_ended_by_signal(pid: u32) -> bool {
    read(pid, "stat").is_some_and(|stat| exit_code(&stat) & SIGNAL_OF_EXIT_CODE != 0)
}

/// In `/proc/PID/stat`, counted behind the name, which can have spaces and brackets. 0 if this
/// process may not trace the other.
fn exit_code(stat: &str) -> u32 {
    let behind_name = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let code = behind_name.split_ascii_whitespace().nth(49);
    code.and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// `/proc/PID/status`; `None` if there is no such process, or it is not visible.
fn status(pid: u32) -> Option<String> {
    read(pid, "status")
}

fn read(pid: u32, name: &str) -> Option<String> {
    if pid == 0 {
        return None;
    }
    let bytes = fs::read(format!("/proc/{pid}/{name}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn groups(status: &str) -> Vec<u32> {
    let list = field(status, "Groups").unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|group| group.parse().ok()).collect()
}

fn kill_is_pending(status: &str) -> bool {
    ["SigPnd", "ShdPnd"]
        .iter()
        .filter_map(|name| u64::from_str_radix(field(status, name)?, 16).ok())
        .any(|pending| pending & SIGKILL_BIT != 0)
}

/// Short, because a process may drop groups on purpose; long enough for a program that opens many
/// files.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// Maximum of cached callers.
const KNOWN_MAX: usize = 1024;

/// The default of `/proc/sys/kernel/overflowuid`.
const OVERFLOW_USER: u32 = 65_534;

/// `FUSE_INVALID_UIDGID`.
const INVALID_USER: u32 = u32::MAX;

const SIGKILL_BIT: u64 = 1 << (9 - 1);

/// As in the status of wait(2).
const SIGNAL_OF_EXIT_CODE: u32 = 0x7f;

/// How long after its deadline an exit keeps it: then the pid can be of another thread.
const DEADLINE_KEPT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const STATUS: &str = "Name:\tGroups: x\nUid:\t1000\t1000\t1000\t1000\n\
        Groups:\t4 24 4294967294 \nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004002\n";

    #[test]
    fn groups_are_read_from_the_status() {
        assert_eq!(groups(STATUS), [4, 24, u32::MAX - 1]);
        assert_eq!(groups("Groups:\t\n"), []);
        assert_eq!(groups(""), []);
    }

    #[test]
    fn only_sigkill_kills() {
        assert!(!kill_is_pending(STATUS));
        assert!(kill_is_pending(&STATUS.replace("4002", "4102")));
        assert!(kill_is_pending("SigPnd:\t0000000000000100\n"));
    }

    #[test]
    fn exit_code_is_found_behind_any_name() {
        let line = format!("7 (a) b (c)) Z 1 7 7 0 -1 4227084{} 15\n", " 0".repeat(42));
        assert_eq!(exit_code(&line), 15);
        assert_eq!(exit_code("7 (a) Z"), 0);
        assert_eq!(exit_code(""), 0);
    }

    /// As a zombie, a process stays in the state in which the kernel closes its files.
    #[test]
    fn a_signal_that_ended_a_process_is_seen_while_it_exits() {
        for (end, by_signal) in [("exit 3", false), ("kill -TERM $$", true)] {
            let mut process = Command::new("sh").args(["-c", end]).spawn().unwrap();
            let pid = process.id();
            while !is_exiting(pid) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(is_exiting_by_signal(pid), by_signal, "{end}");
            assert_eq!(is_killed(pid), by_signal, "{end}");
            process.wait().unwrap();
        }
    }

    #[test]
    fn a_process_exists_until_its_parent_has_waited_for_it() {
        let mut process = Command::new("true").spawn().unwrap();
        let pid = process.id();
        assert!(exists(pid) && exists(std::process::id()));
        process.wait().unwrap();
        assert!(!exists(pid) && !exists(u32::MAX) && !exists(0));
    }

    #[test]
    fn a_pid_that_is_used_again_has_a_new_deadline() {
        let (callers, wait_max) = (Callers::default(), Duration::from_secs(5));
        let first = callers.exit_deadline(1, wait_max);
        assert_eq!(callers.exit_deadline(1, wait_max), first);
        let past = Instant::now().checked_sub(DEADLINE_KEPT).unwrap();
        callers.exits.lock().unwrap().insert(1, past);
        assert!(callers.exit_deadline(1, wait_max) > first);
    }

    #[test]
    fn only_the_first_program_without_a_pid_is_reported() {
        let callers = Callers::default();
        let is_reported = |pid, uid| callers.is_first_without_pid(Caller { pid, uid, gid: 0 });
        for (pid, uid) in [(7, 1000), (0, 0), (0, OVERFLOW_USER), (0, INVALID_USER)] {
            assert!(!is_reported(pid, uid), "{pid} {uid}");
        }
        assert!(is_reported(0, 1000));
        assert!(!is_reported(0, 1000) && !is_reported(0, 1001));
    }

    #[test]
    fn this_process_is_alive_and_has_its_own_groups() {
        let own = Identity::of_process();
        let pid = std::process::id();
        assert!(!is_killed(pid));
        assert!(is_killed(u32::MAX));
        assert!(!is_killed(0));
        assert!(!is_exiting(pid) && !is_exiting(u32::MAX) && !is_exiting(0));
        assert!(!is_exiting_by_signal(pid) && !is_exiting_by_signal(u32::MAX));
        let mut seen = groups(&status(pid).unwrap());
        let mut expected = own.groups;
        seen.sort_unstable();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }
}
