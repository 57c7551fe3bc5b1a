//! `spillway mv`: renames within an export.

use std::io;

use clap::Args;
use rustix::io::Errno;

use super::console::Console;
use super::destination::{Destination, Place};
use super::failure::{Failure, Result};
use super::remote::{LastLink, Node, Remote};
use super::session::{ConnectOptions, Session};
use super::target::Target;

/// As coreutils' `mv`, but it never asks, and never copies: what is moved stays in its export.
#[derive(Args)]
pub(crate) struct Options {
    /// The files to rename and, last, the new name or the target directory, each as
    /// nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true, num_args = 2..)]
    targets: Vec<Target>,

    /// Do not overwrite an existing file. A file that another client makes between the check and
    /// the rename is overwritten: NFS version 3 has no rename that refuses to
    #[arg(short, long, overrides_with = "force")]
    no_clobber: bool,

    /// Replace an existing file of the new name; this is the default
    #[arg(short, long)]
    force: bool,

    /// Print each file that is renamed
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Renames all that was asked for.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let Some((to, from)) = options.targets.split_last() else { return Ok(()) };
    let mover = Mover { options, console };
    let mut session = Session::new(&options.connect);
    let found = Destination::find(&mut session, to, LastLink::Follow, from.len()).await;
    let mut destination = match found {
        Ok(destination) => destination,
        Err(failure) => {
            console.fail(format_args!("target {}: {failure}", to.shown));
            return Ok(());
        }
    };
    for source in from {
        mover.argument(&mut session, source, &mut destination).await;
    }
    Ok(())
}

struct Mover<'a> {
    options: &'a Options,
    console: &'a Console,
}

impl Mover<'_> {
    async fn argument(&self, session: &mut Session, from: &Target, to: &mut Destination) {
        let found = self.source(session, from).await;
        let (remote, source, place) = match found {
            Ok(found) => found,
            Err(failure) => {
                return self.console.fail(format_args!("cannot stat {}: {failure}", from.shown));
            }
        };
        let (from, to_place) = match to.place(&place.name).await {
            Ok(to_place) => (place, to_place),
            Err(failure) => {
                let (from, to) = (&place.shown, &to.shown);
                return self.console.fail(format_args!("cannot move {from} to {to}: {failure}"));
            }
        };
        if !remote.is_same(&to.remote) {
            self.console.fail(format_args!(
                "cannot move {} to {}: they are in different exports; `spillway cp -a` copies",
                from.shown, to_place.shown
            ));
            return;
        }
        match self.rename(to, &source, &from, &to_place).await {
            Ok(Renamed::Done) => to.note_made(to_place),
            Ok(Renamed::Perhaps(sentence)) => {
                to.note_made(to_place);
                self.console.fail(sentence);
            }
            Ok(Renamed::Kept) => {}
            Err(sentence) => self.console.fail(sentence),
        }
    }

    async fn source(&self, session: &mut Session, from: &Target) -> Result<(Remote, Node, Place)> {
        let (remote, path) = session.reach(&from.url, LastLink::Keep).await?;
        let (parent, name) = remote.resolve_parent(&path).await?;
        let node = remote.lookup(parent.handle, &name).await?;
        let ends_with_slash = path.ends_with(b"/");
        if ends_with_slash && !node.is_dir() {
            return Err(Failure::refused(Errno::NOTDIR));
        }
        let (dir, shown) = (parent.handle, from.shown.clone());
        Ok((remote, node, Place { dir, name, shown, ends_with_slash }))
    }

    /// Renames, or returns the reason as a sentence.
    async fn rename(
        &self,
        destination: &Destination,
        source: &Node,
        from: &Place,
        to: &Place,
    ) -> std::result::Result<Renamed, String> {
        let remote = &destination.remote;
        let (shown, to_shown) = (&from.shown, &to.shown);
        let cannot = |reason: Failure| format!("cannot move {shown} to {to_shown}: {reason}");
        match remote.lookup(to.dir, &to.name).await {
            // LINK and REMOVE would replace no file that is made after this check. But of two
            // clients that move one file at once both would succeed, and only one does by RENAME.
            Ok(_) if self.options.no_clobber => return Ok(Renamed::Kept),
            Ok(other) if other.is_same(source) => {
                return Err(format!("{shown} and {to_shown} are the same file"));
            }
            Ok(other) if source.is_dir() && !other.is_dir() => {
                return Err(format!(
                    "cannot overwrite non-directory {to_shown} with directory {shown}"
                ));
            }
            Ok(other) if !source.is_dir() && other.is_dir() => {
                return Err(format!("cannot overwrite directory {to_shown} with non-directory"));
            }
            // A file that is not to be replaced by what was meant for a directory.
            Ok(_) if to.ends_with_slash => return Err(cannot(Failure::refused(Errno::NOTDIR))),
            Ok(_) if source.is_dir() => {}
            Ok(_) => destination.may_replace(to, shown)?,
            Err(error)
                if error.errno() == Errno::NOENT && !source.is_dir() && to.ends_with_slash =>
            {
                return Err(cannot(Failure::refused(Errno::NOTDIR)));
            }
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(cannot(error.into())),
        }
        match from.rename(to, remote, to.is_of(source, remote)).await {
            Ok(()) => {
                if self.options.verbose {
                    self.console.say(format_args!("renamed {shown} -> {to_shown}"));
                }
                Ok(Renamed::Done)
            }
            // The one meaning that EINVAL has for rename(2).
            Err(failure) if failure.errno() == Errno::INVAL => {
                Err(format!("cannot move {shown} to a subdirectory of itself, {to_shown}"))
            }
            Err(failure) if failure.leaves_names() => Err(cannot(failure)),
            Err(failure) => Ok(Renamed::Perhaps(cannot(failure))),
        }
    }
}

/// The outcome for a source that was not refused.
enum Renamed {
    Done,
    /// The server may have executed the call; the reason why it failed, as a sentence.
    Perhaps(String),
    /// It stays where it is, because the new name is taken.
    Kept,
}
