//! `spillway mkdir`: makes directories.

use std::io;

use clap::Args;
use client::NfsUrl;
use proto::nfs3::{FileHandle, SetAttributes};
use rustix::io::Errno;

use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::{LastLink, Remote, without_end_slashes};
use super::session::{ConnectOptions, Session};
use super::target::{Shown, Target};
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
    mode: Option<u32>,

    /// Print each directory that is made
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

fn parse_mode(text: &str) -> std::result::Result<u32, String> {
    let change = ModeChange::parse(text).ok_or_else(|| format!("`{text}` is not a mode"))?;
    Ok(change.apply(0o777, true, umask()))
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
        self.make(&remote, parent.handle, &name, self.mode(), self.shown).await
    }

    /// The path with all its parents. A new parent can be written and searched by its owner
    /// whatever the umask, so that the next can be made in it.
    async fn with_parents(&self, remote: &Remote, url: &NfsUrl, path: &[u8]) {
        let above = url.path.len() - path.len();
        let ends = path.iter().enumerate().filter(|(index, byte)| **byte == b'/' && *index > 0);
        for (end, _) in ends {
            let shown =
                Shown::url(&NfsUrl { path: url.path[..above + end].to_vec(), ..url.clone() });
            let mode = 0o777 & !umask() | 0o300;
            if let Err(failure) = self.unless_there(remote, &path[..end], mode, &shown).await {
                // The existing file is no directory, so nothing can be made below it.
                let in_the_way = failure.errno() == Errno::EXIST;
                let not_dir = Failure::refused(Errno::NOTDIR);
                return self.complain(&shown, if in_the_way { &not_dir } else { &failure });
            }
        }
        if let Err(failure) = self.unless_there(remote, path, self.mode(), self.shown).await {
            self.complain(self.shown, &failure);
        }
    }

    async fn unless_there(
        &self,
        remote: &Remote,
        path: &[u8],
        mode: u32,
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
                if node.is_ok_and(|node| node.is_dir()) { Ok(()) } else { Err(failure) }
            }
            made => made,
        }
    }

    async fn make(
        &self,
        remote: &Remote,
        parent: FileHandle,
        name: &[u8],
        mode: u32,
        shown: &Shown,
    ) -> Result<()> {
        let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        remote.nfs.mkdir(parent, name, attributes).await?;
        if self.options.verbose {
            self.console.say(format_args!("spillway mkdir: created directory {shown}"));
        }
        Ok(())
    }

    fn mode(&self) -> u32 {
        self.options.mode.unwrap_or(0o777 & !umask())
    }

    fn complain(&self, shown: &Shown, failure: &Failure) {
        self.console.fail(format_args!("cannot create directory {shown}: {failure}"));
    }
}
