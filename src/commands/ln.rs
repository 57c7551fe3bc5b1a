//! `spillway ln`: makes links.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use clap::Args;
use proto::nfs3::SetAttributes;
use rustix::io::Errno;

use super::console::Console;
use super::cp::last_name;
use super::destination::{Destination, Place};
use super::failure::{Failure, Result};
use super::remote::{LastLink, Node, Remote, random_bytes};
use super::session::{ConnectOptions, Session};
use super::target::{Shown, Target, is_remote};
use super::text::quote;
use crate::exit::MISUSED;

/// As coreutils' `ln`. Hard links stay in their export.
#[derive(Args)]
pub(crate) struct Options {
    /// The files to link to and, last, the new name or the target directory, each as
    /// nfs://HOST[:PORT]/EXPORT/PATH; with -s, the files are paths that are stored in the links
    /// unchanged
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    #[arg(value_parser = super::path_parser())]
    files: Vec<OsString>,

    /// Make symbolic links
    #[arg(short, long)]
    symbolic: bool,

    /// Replace an existing file of the new name
    #[arg(short, long)]
    force: bool,

    /// Treat a symbolic link to a directory as the new name, not as the target directory
    #[arg(short, long)]
    no_dereference: bool,

    /// Print each link that is made
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Makes all that was asked for.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let Some((to, from)) = options.files.split_last() else { return Ok(()) };
    if !is_remote(to) || !options.symbolic && !from.iter().all(|file| is_remote(file)) {
        let which = if options.symbolic { "the new name has" } else { "all files have" };
        console.fail_with(MISUSED, format_args!("{which} to be a URL, nfs://HOST/PATH"));
        return Ok(());
    }
    if options.symbolic && from.iter().any(|file| is_remote(file)) {
        console.fail_with(MISUSED, "a symbolic link holds a path of the server, not a URL");
        return Ok(());
    }
    let to = Target::parse(to).expect("it was read once before");
    let mut session = Session::new(&options.connect);
    let last = if options.no_dereference { LastLink::Keep } else { LastLink::Follow };
    let mut destination = match Destination::find(&mut session, &to, last, from.len()).await {
        Ok(destination) => destination,
        Err(failure) => {
            console.fail(format_args!("target {}: {failure}", to.shown));
            return Ok(());
        }
    };
    let linker = Linker { options, console };
    for source in from {
        if let Err(sentence) = linker.argument(&mut session, source, &mut destination).await {
            console.fail(sentence);
        }
    }
    Ok(())
}

struct Linker<'a> {
    options: &'a Options,
    console: &'a Console,
}

/// The target of a link.
enum Source {
    /// A file of the export, and its path there.
    File(Node, Vec<u8>),
    /// Any path.
    Path(Vec<u8>),
}

impl Linker<'_> {
    /// Makes a link, or returns the reason as a sentence.
    async fn argument(
        &self,
        session: &mut Session,
        from: &OsStr,
        to: &mut Destination,
    ) -> std::result::Result<(), String> {
        let shown = Shown::argument(from);
        let source = if self.options.symbolic {
            Source::Path(from.as_bytes().to_vec())
        } else {
            let (node, path) = self.file(session, from, &to.remote).await?;
            Source::File(node, path)
        };
        let place = to.place(&last_name(from)).await;
        let place = place.map_err(|failure| cannot(&source, &shown, &to.shown, &failure))?;
        let made = match source.link(&to.remote, &place).await {
            Err(failure) if failure.errno() == Errno::EXIST && self.options.force => {
                self.replace(&source, &shown, to, &place).await?
            }
            made => made,
        };
        made.map_err(|failure| cannot(&source, &shown, &place.shown, &failure))?;
        if self.options.verbose {
            let arrow = if self.options.symbolic { "->" } else { "=>" };
            self.console.say(format_args!("{} {arrow} {shown}", place.shown));
        }
        // A symbolic link that is replaced takes no file's last name.
        if matches!(source, Source::File(..)) {
            to.note_made(place);
        }
        Ok(())
    }

    /// The file that a hard link is made to, which may itself be a symbolic link.
    async fn file(
        &self,
        session: &mut Session,
        from: &OsStr,
        goal: &Remote,
    ) -> std::result::Result<(Node, Vec<u8>), String> {
        let target = Target::parse(from).expect("it was read once before");
        let shown = &target.shown;
        let found: Result<_> = async {
            let (remote, path) = session.reach(&target.url, LastLink::Keep).await?;
            let node = remote.resolve(&path, LastLink::Keep).await?;
            Ok((remote, node, path))
        }
        .await;
        let (remote, node, path) =
            found.map_err(|failure| format!("failed to access {shown}: {failure}"))?;
        if node.is_dir() {
            return Err(format!("{}: hard link not allowed for directory", shown.plain()));
        }
        if !remote.is_same(goal) {
            return Err(format!("cannot link to {shown}: it is in another export"));
        }
        Ok((node, path))
    }

    /// Makes the link where another file has the name.
    async fn replace(
        &self,
        source: &Source,
        from: &Shown,
        to: &Destination,
        place: &Place,
    ) -> std::result::Result<Result<()>, String> {
        let (remote, shown) = (&to.remote, &place.shown);
        let there = remote.lookup(place.dir, &place.name).await;
        let there =
            there.map_err(|error| format!("failed to access {shown}: {}", Failure::from(error)))?;
        if there.is_dir() {
            return Err(format!("{}: cannot overwrite directory", shown.plain()));
        }
        to.may_replace(place, from)?;
        // Removed, it might have no other name, and a link would lead to itself.
        match source.is(&there, place, remote).await {
            Ok(true) => return Err(format!("{from} and {shown} are the same file")),
            // It is a link to the file already.
            Ok(false) if matches!(source, Source::File(node, _) if node.is_same(&there)) => {
                return Ok(Ok(()));
            }
            Ok(false) => {}
            Err(failure) => return Err(format!("failed to access {from}: {failure}")),
        }
        // The name leads to the file until it leads to the link, also where none can be made.
        let name = format!(".ln.{:016x}", u64::from_ne_bytes(random_bytes())).into_bytes();
        let temporary =
            Place { dir: place.dir, name, shown: shown.clone(), ends_with_slash: false };
        if let Err(failure) = source.link_once(remote, &temporary).await {
            // The reply may have been lost.
            let _ = temporary.remove(remote).await;
            return Ok(Err(failure));
        }
        let renamed = temporary.rename(place, remote, source.is_at(place, remote)).await;
        // RENAME leaves both names of one file as they are.
        let remains = renamed.is_err() || matches!(source, Source::File(..));
        match if remains { temporary.remove(remote).await } else { Ok(()) } {
            Ok(()) => Ok(renamed),
            Err(failure) => {
                let renamed = renamed.map_err(|failure| cannot(source, from, shown, &failure));
                let renamed = renamed.map_or_else(|sentence| sentence + "; ", |()| String::new());
                let name = quote::always(&temporary.name);
                Err(format!("{renamed}cannot remove {name} beside {shown}: {failure}"))
            }
        }
    }
}

impl Source {
    async fn link(&self, remote: &Remote, place: &Place) -> Result<()> {
        let Place { dir, name, ends_with_slash, .. } = place;
        if *ends_with_slash {
            return Err(Failure::refused(Errno::NOENT));
        }
        match self {
            Self::File(node, _) => {
                remote.nfs.link(node.handle, *dir, name).await?;
            }
            Self::Path(path) => {
                remote.nfs.symlink(*dir, name, path, SetAttributes::default()).await?;
            }
        }
        Ok(())
    }

    /// Makes the link by a name that no other program uses: EXIST means that an earlier copy of the
    /// call was executed, and its reply lost.
    async fn link_once(&self, remote: &Remote, place: &Place) -> Result<()> {
        match self.link(remote, place).await {
            Err(failure) if failure.errno() != Errno::EXIST => Err(failure),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Whether the link has this name.
    async fn is_at(&self, place: &Place, remote: &Remote) -> bool {
        match self {
            Self::File(node, _) => place.is_of(node, remote).await,
            Self::Path(path) => {
                let Ok(there) = remote.lookup(place.dir, &place.name).await else { return false };
                let link = remote.nfs.readlink(there.handle).await;
                link.is_ok_and(|link| link.target == path)
            }
        }
    }

    /// Whether the link would lead to the name that it is to replace.
    async fn is(&self, there: &Node, place: &Place, remote: &Remote) -> Result<bool> {
        match self {
            Self::File(node, _) if !node.is_same(there) => Ok(false),
            // As it is now: the LINK that was answered EXIST may have been executed before.
            Self::File(_, path) if there.attributes.nlink > 1 => {
                let (parent, name) = remote.resolve_parent(path).await?;
                let dir = parent.handle;
                let (shown, ends_with_slash) = (place.shown.clone(), false);
                let source = Place { dir, name, shown, ends_with_slash };
                source.is_same(place, remote).await
            }
            Self::File(..) => Ok(true),
            Self::Path(path) => Ok(*path == place.name),
        }
    }
}

fn cannot(source: &Source, from: &Shown, to: &Shown, failure: &Failure) -> String {
    let is_of_target =
        matches!(failure.errno(), Errno::EXIST | Errno::DQUOT | Errno::NOSPC | Errno::ROFS);
    match source {
        Source::Path(_) => format!("failed to create symbolic link {to}: {failure}"),
        Source::File(..) if is_of_target => format!("failed to create hard link {to}: {failure}"),
        Source::File(..) => format!("failed to create hard link {to} => {from}: {failure}"),
    }
}
