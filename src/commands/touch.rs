//! `spillway touch`: makes empty files, and sets times.

use std::io;

use clap::{ArgAction, Args};
use jiff::tz::TimeZone;
use proto::nfs3::{CreateHow, SetAttributes, SetTime, Time};
use rustix::io::Errno;

use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::{LastLink, Remote};
use super::session::{ConnectOptions, Session};
use super::target::Target;
use super::text::time;
use super::umask;

/// As coreutils' `touch`. Without -d and -r the time is that of the server's clock.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Files, as nfs://HOST[:PORT]/EXPORT/PATH; one that does not exist is made
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// Set the access time; with -m both times, which is the default
    #[arg(short = 'a')]
    atime: bool,

    /// Set the modification time
    #[arg(short = 'm')]
    mtime: bool,

    /// Do not make files
    #[arg(short = 'c', long)]
    no_create: bool,

    /// Set this time, like 2026-11-23, '2026-11-23 14:05:00.5 +0100', 2026-11-23T13:05Z or
    /// @SECONDS; without a zone it is local time
    #[arg(short, long, value_name = "TIME", value_parser = parse_time)]
    date: Option<Time>,

    /// Use the times of this file, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(short, long, value_name = "URL", conflicts_with = "date")]
    reference: Option<Target>,

    /// Set the times of symbolic links themselves, not of their targets; makes no file
    #[arg(short = 'h', long)]
    no_dereference: bool,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,

    #[command(flatten)]
    connect: ConnectOptions,
}

fn parse_time(text: &str) -> std::result::Result<Time, String> {
    time::parse(text, &TimeZone::system())
        .ok_or_else(|| format!("`{text}` is not a time between 1970 and 2106"))
}

/// Touches all that was asked for.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    let times = match times(options, &mut session).await {
        Ok(times) => times,
        Err(sentence) => {
            console.fail(sentence);
            return Ok(());
        }
    };
    for target in &options.targets {
        if let Err(sentence) = touch(options, &mut session, target, times).await {
            console.fail(sentence);
        }
    }
    Ok(())
}

/// The times to set.
async fn times(
    options: &Options,
    session: &mut Session,
) -> std::result::Result<SetAttributes, String> {
    let [atime, mtime] = match (&options.reference, options.date) {
        (Some(target), _) => {
            let found = reference(options, session, target).await;
            let shown = &target.shown;
            found.map_err(|failure| format!("failed to get attributes of {shown}: {failure}"))?
        }
        (None, Some(time)) => [SetTime::ToClientTime(time); 2],
        (None, None) => [SetTime::ToServerTime; 2],
    };
    let (has_atime, has_mtime) = (options.atime || !options.mtime, options.mtime || !options.atime);
    Ok(SetAttributes {
        atime: if has_atime { atime } else { SetTime::DontChange },
        mtime: if has_mtime { mtime } else { SetTime::DontChange },
        ..SetAttributes::default()
    })
}

async fn reference(
    options: &Options,
    session: &mut Session,
    target: &Target,
) -> Result<[SetTime; 2]> {
    let found = session.find(&target.url, last_link(options)).await?.1.attributes;
    Ok([found.atime, found.mtime].map(SetTime::ToClientTime))
}

fn last_link(options: &Options) -> LastLink {
    if options.no_dereference { LastLink::Keep } else { LastLink::Follow }
}

/// Sets the times of a file, which is made if it does not exist, or returns the reason as a
/// sentence.
async fn touch(
    options: &Options,
    session: &mut Session,
    target: &Target,
    times: SetAttributes,
) -> std::result::Result<(), String> {
    let shown = &target.shown;
    let cannot = |failure: Failure| format!("cannot touch {shown}: {failure}");
    let cannot_set = |failure: Failure| format!("setting times of {shown}: {failure}");
    let (remote, path) = session.reach(&target.url, LastLink::Keep).await.map_err(cannot)?;
    // Only a directory has a slash behind its name.
    let may_create = !options.no_create && !options.no_dereference && !path.ends_with(b"/");
    let node = match remote.resolve(&path, last_link(options)).await {
        Err(error) if error.errno() == Errno::NOENT && options.no_create => return Ok(()),
        Err(error) if error.errno() == Errno::NOENT && may_create => {
            match create(&remote, &path, times).await {
                // Another client made it meanwhile, or a dangling link has the name.
                Err(failure) if failure.errno() == Errno::EXIST => {
                    remote.resolve(&path, LastLink::Follow).await
                }
                made => return made.map_err(cannot),
            }
        }
        found => found,
    };
    let node = node.map_err(Failure::from);
    let node =
        node.map_err(|failure| if may_create { cannot(failure) } else { cannot_set(failure) })?;
    let set = remote.nfs.setattr(node.handle, times, None).await;
    set.map(drop).map_err(|error| cannot_set(error.into()))
}

/// Makes an empty file with the times.
async fn create(remote: &Remote, path: &[u8], times: SetAttributes) -> Result<()> {
    let (parent, name) = remote.resolve_parent(path).await?;
    let attributes = SetAttributes { mode: Some(0o666 & !umask()), ..times };
    remote.nfs.create(parent.handle, &name, CreateHow::Guarded(attributes)).await?;
    Ok(())
}
