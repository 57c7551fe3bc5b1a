//! `spillway mkdir`: makes directories.

use std::io;

use clap::Args;
use client::NfsUrl;
use proto::nfs3::{FileHandle, Procedure, SetAttributes};
use rustix::io::Errno;

use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::{LastLink, Node, Remote, without_end_slashes};
use super::session::{ConnectOptions, Session};
use super::target::{Shown, Target};
use super::text::mode;
use super::text::mode_change::ModeChange;
use super::umask;

/// As coreutils' `mkdir`.
#[derive(Args)]
pub(crate) struct Options {
    /// The directories to make, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// Make parent directories as needed; existing directories are no error
    #[arg(short, long)]
    parents: bool,

    /// Permissions as for chmod, like 700 or u=rwx,go=rx [default: 777 less the umask]
    #[arg(short, long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<ModeChange>,

    /// Print each directory that is made
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

fn parse_mode(text: &str) -> std::result::Result<ModeChange, String> {
    ModeChange::parse(text).ok_or_else(|| format!("`{text}` is not a mode"))
}

/// Makes all that was asked for.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    for target in &options.targets {
        let maker = Maker { options, console, shown: &target.shown };
        if let Err(failure) = maker.argument(&mut session, target).await {
            maker.complain(&target.shown, &failure);
        }
    }
    Ok(())
}

struct Maker<'a> {
    options: &'a Options,
    console: &'a Console,
    shown: &'a Shown,
}

impl Maker<'_> {
    async fn argument(&self, session: &mut Session, target: &Target) -> Result<()> {
        let (remote, path) = session.reach(&target.url, LastLink::Keep).await?;
        if self.options.parents {
            let url = NfsUrl {
                path: without_end_slashes(&target.url.path).to_vec(),
                ..target.url.clone()
            };
            self.with_parents(&remote, &url, without_end_slashes(&path)).await;
            return Ok(());
        }
        let (parent, name) = match remote.resolve_parent(&path).await {
            // The root of the export, and what ends with dots, can only be there.
            Err(error) if error.errno() == Errno::BUSY => {
                return Err(Failure::refused(Errno::EXIST));
            }
            found => found?,
        };
        self.make(&remote, parent.handle, &name, &self.mode(), self.shown).await
    }

    /// The path with all its parents. A new parent can be written and searched by its owner
    /// whatever the umask, so that the next can be made in it.
    async fn with_parents(&self, remote: &Remote, url: &NfsUrl, path: &[u8]) {
        let above = url.path.len() - path.len();
        let ends = path.iter().enumerate().filter(|(index, byte)| **byte == b'/' && *index > 0);
        for (end, _) in ends {
            let shown =
                Shown::url(&NfsUrl { path: url.path[..above + end].to_vec(), ..url.clone() });
            let mode = Mode::Default(0o777 & !umask() | 0o300);
            if let Err(failure) = self.unless_there(remote, &path[..end], &mode, &shown).await {
                // The existing file is no directory, so nothing can be made below it.
                let in_the_way = failure.errno() == Errno::EXIST;
                let not_dir = Failure::refused(Errno::NOTDIR);
                return self.complain(&shown, if in_the_way { &not_dir } else { &failure });
            }
        }
        if let Err(failure) = self.unless_there(remote, path, &self.mode(), self.shown).await {
            self.complain(self.shown, &failure);
        }
    }

    async fn unless_there(
        &self,
        remote: &Remote,
        path: &[u8],
        mode: &Mode<'_>,
        shown: &Shown,
    ) -> Result<()> {
        match remote.resolve(path, LastLink::Follow).await {
            Ok(node) if node.is_dir() => return Ok(()),
            Ok(_) => return Err(Failure::refused(Errno::EXIST)),
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(error.into()),
        }
        let (parent, name) = remote.resolve_parent(path).await?;
        match self.make(remote, parent.handle, &name, mode, shown).await {
            // Another client made it meanwhile, or a dangling link has the name.
            Err(failure) if failure.errno() == Errno::EXIST => {
                let node = remote.resolve(path, LastLink::Follow).await;
                if !node.is_ok_and(|node| node.is_dir()) {
                    return Err(failure);
                }
                // An own one may be that of an earlier copy of the call, whose reply was lost.
                if let Ok(node) = remote.lookup(parent.handle, &name).await
                    && node.is_dir()
                    && node.attributes.uid == remote.nfs.identity().uid
                {
                    self.set_mode(remote, async { Ok(node) }, mode, shown).await;
                }
                Ok(())
            }
            made => made,
        }
    }

    async fn make(
        &self,
        remote: &Remote,
        parent: FileHandle,
        name: &[u8],
        mode: &Mode<'_>,
        shown: &Shown,
    ) -> Result<()> {
        let attributes = with_mode(mode.of_call());
        let made = remote.nfs.mkdir(parent, name, attributes).await?;
        if self.options.verbose {
            self.console.say(format_args!("spillway mkdir: created directory {shown}"));
        }
        let node = remote.made(parent, name, Procedure::Mkdir, made);
        self.set_mode(remote, node, mode, shown).await;
        Ok(())
    }

    async fn set_mode(
        &self,
        remote: &Remote,
        node: impl Future<Output = client::Result<Node>>,
        mode: &Mode<'_>,
        shown: &Shown,
    ) {
        if matches!(mode, Mode::Exactly(_))
            && let Err(failure) = set_mode(remote, node, mode).await
        {
            self.console.fail(format_args!("cannot change permissions of {shown}: {failure}"));
        }
    }

    fn mode(&self) -> Mode<'_> {
        match &self.options.mode {
            Some(change) => Mode::Exactly(change),
            None => Mode::Default(0o777 & !umask()),
        }
    }

    fn complain(&self, shown: &Shown, failure: &Failure) {
        self.console.fail(format_args!("cannot create directory {shown}: {failure}"));
    }
}

/// The permissions of a new directory.
enum Mode<'a> {
    /// These, less what the server takes away.
    Default(u32),
    /// Those of `-m`.
    Exactly(&'a ModeChange),
}

impl Mode<'_> {
    /// That of MKDIR. As with coreutils, only its owner can write to a directory that may still
    /// lack a special bit, such as the sticky one.
    fn of_call(&self) -> u32 {
        let mode = self.of_new(0);
        let is_special = mode & !0o777 != 0;
        if is_special { mode & !WRITABLE_BY_OTHERS } else { mode }
    }

    /// `inherited`: the set-id bits that the server gives to the directory by itself. It keeps
    /// those that `-m` does not name, as with coreutils.
    fn of_new(&self, inherited: u32) -> u32 {
        match self {
            Self::Default(mode) => *mode,
            Self::Exactly(change) => change.apply(0o777 | inherited, true, umask()),
        }
    }
}

/// Gives the directory that MKDIR has made the bits of `mode` that it lacks: Linux leaves out the
/// set-id bits, and a default ACL of the directory above takes others.
async fn set_mode(
    remote: &Remote,
    node: impl Future<Output = client::Result<Node>>,
    mode: &Mode<'_>,
) -> Result<()> {
    let node = node.await?;
    // Without a handle in the reply it was looked up, and another file can have the name by now.
    if !node.is_dir() {
        return Err(Failure::refused(Errno::NOTDIR));
    }
    let found = node.attributes.mode & mode::ALL;
    let wanted = mode.of_new(found & mode::SET_ID);
    if found != wanted {
        remote.nfs.setattr(node.handle, with_mode(wanted), None).await?;
    }
    Ok(())
}

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// S_IWGRP and S_IWOTH.
const WRITABLE_BY_OTHERS: u32 = 0o022;
