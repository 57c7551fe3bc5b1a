//! This program once more, in the place where the experiment is to be: a cgroup, a name space.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::stop::Stop;
use crate::{Error, Result};

/// How soon its end, or a signal to us, is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Carries the experiment out by `command`, and ends it in order if the user wants no more of it.
///
/// # Errors
/// [`Error::Machine`]: it cannot be started.
pub(crate) fn carry_out(mut command: Command) -> Result<ExitStatus> {
    let stop = Stop::on_signals()?;
    let program = command.get_program().to_string_lossy().into_owned();
    // Ctrl-C is for this process, which passes it on: a second one would end it at once.
    let child = command.process_group(0).spawn();
    let mut child = child.map_err(Error::machine(format!("cannot run {program}")))?;
    let mut is_passed_on = false;
    loop {
        let ended = child.try_wait().map_err(Error::machine("waiting for the experiment"))?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if stop.is_wanted() && !is_passed_on {
            is_passed_on = true;
            tell(&child);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The arguments for `command`: those of this process, `bench` and the name of the experiment
/// first, and `option` right after them. Behind a `--` of the user it would be a target.
pub(crate) fn arguments_with(arguments: &[OsString], option: &[&str]) -> Vec<OsString> {
    let (experiment, own) = arguments.split_at(arguments.len().min(2));
    let option: Vec<_> = option.iter().map(OsString::from).collect();
    [experiment, &option, own].concat()
}

fn tell(child: &Child) {
    // It was not waited for, so the number is its own; it may have ended by itself.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

/// For the one that was started: it ends in order if the one that started it is killed.
///
/// # Errors
/// [`Error::Machine`]: the kernel refuses.
pub(crate) fn follow() -> Result<()> {
    let refused = Error::machine("cannot follow the process that started this one");
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|error| refused(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments_of(line: &str, option: &[&str]) -> String {
        let arguments: Vec<_> = line.split(' ').map(OsString::from).collect();
        let words = arguments_with(&arguments, option);
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_option_is_placed_before_the_end_of_options() {
        assert_eq!(
            arguments_of("bench io --net-delay 5ms -- /srv", &["--server-namespace", "s"]),
            "bench io --server-namespace s --net-delay 5ms -- /srv"
        );
        assert_eq!(
            arguments_of("bench uncached -- /srv", &["--in-memory-group"]),
            "bench uncached --in-memory-group -- /srv"
        );
    }
}
