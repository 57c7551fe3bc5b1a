//! `spillway rm`: takes files and directories away.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use client::nfs3::Name;
use proto::nfs3::{FileHandle, Status};
use rustix::io::Errno;
use tokio::task::JoinError;

use super::ancestors::Ancestors;
use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::{LastLink, Node, Remote};
use super::session::{ConnectOptions, Session};
use super::target::{Shown, Target};
use super::window::Window;

/// As coreutils' `rm`, but it never asks.
#[derive(Args)]
pub(crate) struct Options {
    /// The files to remove, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required_unless_present = "force")]
    targets: Vec<Target>,

    /// Remove directories and their contents
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,

    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,

    /// Remove empty directories
    #[arg(short, long)]
    dir: bool,

    /// Print each file that is removed
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// REMOVE calls of one directory that are under way at once.
const REMOVES_MAX: usize = 32;

/// Readings of one directory at most, each of which removed something. Where cookies are positions,
/// each reading finds half of what is left; only a directory that others fill takes more.
const PASSES_MAX: u32 = 64;

/// Removes all targets.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    let remover = Remover { options, console };
    for target in &options.targets {
        let shown = &target.shown;
        let last = target.url.path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        if matches!(last, Some(b"." | b"..")) {
            console
                .fail(format_args!("refusing to remove '.' or '..' directory: skipping {shown}"));
            continue;
        }
        if let Err(failure) = remover.argument(&mut session, target).await {
            let is_missing = matches!(failure.errno(), Errno::NOENT | Errno::NOTDIR);
            if !(options.force && is_missing) {
                remover.complain(shown, &failure);
            }
        }
    }
    Ok(())
}

struct Remover<'a> {
    options: &'a Options,
    console: &'a Console,
}

impl Remover<'_> {
    async fn argument(&self, session: &mut Session, target: &Target) -> Result<()> {
        let (remote, path) = session.reach(&target.url, LastLink::Keep).await?;
        let (parent, name) = remote.resolve_parent(&path).await?;
        let node = remote.lookup(parent.handle, &name).await?;
        if path.ends_with(b"/") && !node.is_dir() {
            return Err(Failure::refused(Errno::NOTDIR));
        }
        let place = Place { dir: parent.handle, name: name.into(), shown: target.shown.clone() };
        if !node.is_dir() {
            remote.nfs.remove(place.dir, &place.name).await?;
            self.say("removed", &place.shown);
        } else if self.options.recursive {
            let ancestors = Arc::new(Ancestors::root(Some(node.handle), &node.attributes));
            self.tree(&remote, &place, node.handle, &ancestors).await?;
        } else if self.options.dir {
            remote.nfs.rmdir(place.dir, &place.name).await?;
            self.say("removed directory", &place.shown);
        } else {
            return Err(Failure::refused(Errno::ISDIR));
        }
        Ok(())
    }

    /// Removes a directory with all its content; returns whether it is gone. Of the entries below
    /// it reports the failures itself, because each ends only a part of the work.
    ///
    /// # Errors
    /// Those of the directory itself: of its listing and of RMDIR.
    async fn tree(
        &self,
        remote: &Remote,
        place: &Place,
        handle: FileHandle,
        ancestors: &Arc<Ancestors>,
    ) -> Result<bool> {
        let mut passes = 0;
        loop {
            passes += 1;
            let emptied = self.pass(remote, place, handle, ancestors).await;
            let Emptied { removed, kept, read } = emptied;
            let may_repeat = removed && !kept && passes < PASSES_MAX;
            match read {
                // Other servers reject the cookies once something is removed.
                Err(error) if may_repeat && error.is(Status::BadCookie) => continue,
                Err(error) if !is_gone(error.errno()) => return Err(error.into()),
                // RMDIR finds out whether the name is still there.
                _ => {}
            }
            // The entries that could not be removed have been reported.
            if kept {
                return Ok(false);
            }
            match remote.nfs.rmdir(place.dir, &place.name).await {
                Ok(_) => {
                    self.say("removed directory", &place.shown);
                    return Ok(true);
                }
                // Some servers' cookies are positions: what is removed behind a reader hides
                // entries from it. So the directory is read again as long as that finds any.
                Err(error) if may_repeat && is_not_empty(error.errno()) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads a directory once and takes away what it finds.
    async fn pass(
        &self,
        remote: &Remote,
        place: &Place,
        handle: FileHandle,
        ancestors: &Arc<Ancestors>,
    ) -> Emptied {
        let mut listing = remote.list(handle, true);
        let mut removes = Window::new(REMOVES_MAX);
        let mut emptied = Emptied { removed: false, kept: false, read: Ok(()) };
        let mut dirs = Vec::new();
        loop {
            let names = match listing.next().await {
                Ok(Some(names)) => names,
                Ok(None) => break,
                Err(error) => {
                    emptied.read = Err(error);
                    break;
                }
            };
            for Name { name, attributes, handle: found, .. } in names {
                if matches!(&name[..], b"." | b"..") {
                    continue;
                }
                if let Some(done) = removes.make_room().await {
                    self.settle(place, done, &mut emptied, &mut dirs);
                }
                let node = found.zip(attributes);
                let node = node.map(|(handle, attributes)| Node { handle, attributes });
                removes.push(tokio::spawn(remove(remote.clone(), handle, name, node)));
            }
        }
        while let Some(done) = removes.next().await {
            self.settle(place, done, &mut emptied, &mut dirs);
        }
        for (name, found) in dirs {
            let shown = place.shown.join(&name);
            let chain = match ancestors.below(Some(found.handle), &found.attributes) {
                Ok(chain) => chain,
                Err(why) => {
                    self.console.fail(format_args!("cannot remove {shown}: {why}"));
                    emptied.kept = true;
                    continue;
                }
            };
            let (below, chain) = (Place { dir: handle, name, shown }, Arc::new(chain));
            let gone = match Box::pin(self.tree(remote, &below, found.handle, &chain)).await {
                Ok(gone) => gone,
                // It counts neither as removed, which would be a reason for another pass, nor as
                // kept.
                Err(failure) if is_gone(failure.errno()) => continue,
                Err(failure) => {
                    self.complain(&below.shown, &failure);
                    false
                }
            };
            emptied.removed |= gone;
            emptied.kept |= !gone;
        }
        emptied
    }

    fn settle(
        &self,
        place: &Place,
        done: std::result::Result<(Bytes, client::Result<Removal>), JoinError>,
        emptied: &mut Emptied,
        dirs: &mut Vec<(Bytes, Node)>,
    ) {
        let (name, removal) = done.expect("removing does not panic");
        match removal {
            Ok(Removal::Done) => {
                emptied.removed = true;
                self.say("removed", &place.shown.join(&name));
            }
            Ok(Removal::Directory(node)) => dirs.push((name, node)),
            Err(error) if is_gone(error.errno()) => {}
            Err(error) => {
                emptied.kept = true;
                self.complain(&place.shown.join(&name), &error.into());
            }
        }
    }

    fn say(&self, what: &str, shown: &Shown) {
        if self.options.verbose {
            self.console.say(format_args!("{what} {shown}"));
        }
    }

    /// Reports why a file is still there.
    fn complain(&self, shown: &Shown, failure: &Failure) {
        self.console.fail(format_args!("cannot remove {shown}: {failure}"));
    }
}

/// A name in a directory.
struct Place {
    dir: FileHandle,
    name: Bytes,
    shown: Shown,
}

/// The outcome of one reading of a directory.
struct Emptied {
    /// Something was taken away.
    removed: bool,
    /// Something cannot be.
    kept: bool,
    /// Whether it was read to its end.
    read: client::Result<()>,
}

enum Removal {
    Done,
    Directory(Node),
}

/// Takes an entry away, unless it is a directory. `node` is what the listing said of it.
async fn remove(
    remote: Remote,
    dir: FileHandle,
    name: Bytes,
    node: Option<Node>,
) -> (Bytes, client::Result<Removal>) {
    let removal = async {
        let node = match node {
            Some(node) => node,
            None => remote.lookup(dir, &name).await?,
        };
        if node.is_dir() {
            return Ok(Removal::Directory(node));
        }
        remote.nfs.remove(dir, &name).await.map(|_| Removal::Done)
    };
    let removal = removal.await;
    (name, removal)
}

/// Whether an entry of a directory need not be removed any more: another client was first, or a
/// call that was sent twice to a server that was restarted meanwhile. STALE if that is true of the
/// directory as well. RMDIR of the argument, where this is an error, has the last word.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE)
}

/// Whether this is why a directory stays.
pub(super) fn is_not_empty(errno: Errno) -> bool {
    // POSIX permits either.
    matches!(errno, Errno::NOTEMPTY | Errno::EXIST)
}
