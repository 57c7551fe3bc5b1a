//! `spillway set`: changes settings of a running server.

use clap::Args;

use super::{Done, Failure, Target};
use crate::control::{Command, SetDone};

/// Change settings of a running server, from the next request on
///
/// Changes settings of an export, or of the server if no export is named. They are in force from
/// the next request of every client on, and until the next reload or restart, unless --save keeps
/// them in the configuration file.
///
/// Of an export: io_cache_read and io_cache_write (buffered, dontcache, direct, auto), sync and
/// file_sync_writes (true, false). Of an export or of the server: read_ahead and splice (true,
/// false); a false of the server applies to every export. Of the server: trace (none, all, or
/// events with commas between them).
///
/// Either all settings are changed or none. Exit status: 0 if they are in force, 1 if not.
#[derive(Args)]
#[command(after_help = "Examples:\n  spillway set /data io_cache_read=direct\n  \
                        spillway set /data io_cache_write=dontcache --save\n  \
                        spillway set /data read_ahead=false")]
pub(crate) struct Options {
    /// The export's name (omitted for settings of the server), and settings
    #[arg(value_name = "[EXPORT] KEY=VALUE", required = true, num_args = 1..=MOST)]
    words: Vec<String>,

    /// Keep the settings in the configuration file too; its comments stay
    #[arg(long)]
    save: bool,

    #[command(flatten)]
    target: Target,
}

/// More than there are settings.
const MOST: usize = 16;

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let (export, settings) = split(&options.words);
    if settings.is_empty() {
        return Ok(Done::Misused(
            "spillway set",
            "a setting is missing, such as io_cache_read=direct",
        ));
    }
    let command = Command::Set { export, settings: settings.to_vec(), save: options.save };
    let done: SetDone = options.target.ask(command)?;
    Ok(Done::Printed(options.target.show(&done, text)))
}

/// The export, if the first word is one, and the settings.
fn split(words: &[String]) -> (Option<String>, &[String]) {
    match words.split_first() {
        Some((export, settings)) if export.starts_with('/') => (Some(export.clone()), settings),
        _ => (None, words),
    }
}

fn text(done: &SetDone) -> String {
    let changes = if done.changes.is_empty() { "unchanged" } else { &done.changes };
    let mut text = format!("{changes}\n");
    if let Some(file) = &done.saved {
        text += &format!("kept in {file}\n");
    }
    if !done.overridden.is_empty() {
        let keys = done.overridden.join(", ");
        text += &format!("flags of `spillway serve` override {keys} at the next reload\n");
    }
    text
}
