//! `spillway rmdir`: takes empty directories away.

use std::io;

use clap::Args;
use client::NfsUrl;

use super::console::Console;
use super::failure::Result;
use super::remote::{LastLink, Remote, without_end_slashes};
use super::rm::is_not_empty;
use super::session::{ConnectOptions, Session};
use super::target::{Shown, Target};

/// As coreutils' `rmdir`.
#[derive(Args)]
pub(crate) struct Options {
    /// The directories to remove, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// Remove parent directories as well, up to the export, as long as they are empty
    #[arg(short, long)]
    parents: bool,

    /// Ignore directories that are not empty
    #[arg(long)]
    ignore_fail_on_non_empty: bool,

    /// Print each directory before it is removed
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Removes all targets.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    for target in &options.targets {
        let shown = &target.shown;
        match session.reach(&target.url, LastLink::Keep).await {
            Ok((remote, path)) => {
                let is_gone = remove(options, console, &remote, &path, shown, "").await;
                if is_gone && options.parents {
                    parents(options, console, &remote, target, &path).await;
                }
            }
            Err(failure) => console.fail(format_args!("failed to remove {shown}: {failure}")),
        }
    }
    Ok(())
}

/// Takes away the directories above `path`, the innermost first, up to one that has to stay.
async fn parents(
    options: &Options,
    console: &Console,
    remote: &Remote,
    target: &Target,
    path: &[u8],
) {
    let export_len = target.url.path.len() - path.len();
    let mut path = without_end_slashes(path);
    while let Some(slash) = path.iter().rposition(|byte| *byte == b'/') {
        path = without_end_slashes(&path[..slash]);
        if path.is_empty() {
            return;
        }
        let url_path = target.url.path[..export_len + path.len()].to_vec();
        let shown = Shown::url(&NfsUrl { path: url_path, ..target.url.clone() });
        if !remove(options, console, remote, path, &shown, "directory ").await {
            return;
        }
    }
}

/// Removes a directory; returns whether it is gone. `what` names it in the complaint if it is not.
async fn remove(
    options: &Options,
    console: &Console,
    remote: &Remote,
    path: &[u8],
    shown: &Shown,
    what: &str,
) -> bool {
    if options.verbose {
        console.say(format_args!("spillway rmdir: removing directory, {shown}"));
    }
    let removal: Result<()> = async {
        let (parent, name) = remote.resolve_parent(path).await?;
        remote.nfs.rmdir(parent.handle, &name).await?;
        Ok(())
    }
    .await;
    match removal {
        Ok(()) => true,
        Err(failure) => {
            if !(options.ignore_fail_on_non_empty && is_not_empty(failure.errno())) {
                console.fail(format_args!("failed to remove {what}{shown}: {failure}"));
            }
            false
        }
    }
}
