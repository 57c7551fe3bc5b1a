//! `spillway reload`: reads the configuration file again.

use clap::Args;

use super::{Done, Failure, Target};
use crate::control::{Command, ReloadDone};

/// Have a running server read its configuration again, and show what changed
///
/// Has the server read its configuration again, check all of it, and apply it as a whole or not at
/// all, as SIGHUP does; prints what changed, or why it was refused.
///
/// Exit status: 0 if it was applied, 1 if it was refused and the old configuration stays in force.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let done: ReloadDone = options.target.ask(Command::Reload)?;
    Ok(Done::Printed(options.target.show(&done, text)))
}

fn text(done: &ReloadDone) -> String {
    let mut text = format!("{}\n", done.changes);
    if !done.restart_only.is_empty() {
        let keys = done.restart_only.join(", ");
        text += &format!("these keys changed but take effect only after a restart: {keys}\n");
    }
    text
}
