//! `spillway chmod`: changes permissions.

use std::io;

use clap::Args;
use proto::nfs3::{FileType, SetAttributes};
use rustix::io::Errno;

use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::{LastLink, Node};
use super::session::{ConnectOptions, Session};
use super::set_attributes::{Order, Setter};
use super::target::Target;
use super::text::mode;
use super::text::mode_change::ModeChange;
use super::umask;
use super::walk::Found;

/// As coreutils' `chmod`. A symbolic link stands for what it leads to, and is left alone below a
/// directory.
#[derive(Args)]
pub(crate) struct Options {
    /// Permissions like 644, u=rwX,go=rX or -w
    #[arg(value_name = "MODE", allow_hyphen_values = true, value_parser = parse_mode)]
    mode: ModeChange,

    /// Files, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// Change directories with all that is in them
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Print a line for each file
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

fn parse_mode(text: &str) -> std::result::Result<ModeChange, String> {
    ModeChange::parse(text).ok_or_else(|| format!("`{text}` is no mode"))
}

/// Changes all that was asked for.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    let changer = Changer { options, console };
    for target in &options.targets {
        if let Err(sentence) = changer.argument(&mut session, target).await {
            console.fail(sentence);
        }
    }
    Ok(())
}

struct Changer<'a> {
    options: &'a Options,
    console: &'a Console,
}

impl Changer<'_> {
    /// Changes an argument, or returns the reason as a sentence.
    async fn argument(
        &self,
        session: &mut Session,
        target: &Target,
    ) -> std::result::Result<(), String> {
        let shown = &target.shown;
        let (remote, path) = session
            .reach(&target.url, LastLink::Follow)
            .await
            .map_err(|failure| format!("cannot access {shown}: {failure}"))?;
        let node = match remote.resolve(&path, LastLink::Follow).await {
            Ok(node) => node,
            Err(error) => {
                let is_absent = error.errno() == Errno::NOENT;
                if is_absent && remote.resolve(&path, LastLink::Keep).await.is_ok() {
                    return Err(format!("cannot operate on dangling symlink {shown}"));
                }
                return Err(format!("cannot access {shown}: {}", Failure::from(error)));
            }
        };
        let change = |found: &Found| self.change(found);
        let report = |found: &Found, outcome| self.report(found, outcome);
        let mut setter = Setter::new(&remote, change, report);
        let found = Found { node, shown: shown.clone() };
        if self.options.recursive && node.is_dir() {
            setter.tree(found, Order::DirectoryFirst, self.console).await;
        } else {
            setter.file(found).await;
        }
        Ok(())
    }

    fn change(&self, found: &Found) -> Option<SetAttributes> {
        if found.node.attributes.file_type == FileType::Symlink {
            if self.options.verbose {
                let shown = &found.shown;
                let unchanged = format!("neither symbolic link {shown} nor referent");
                self.console.say(format_args!("{unchanged} has been changed"));
            }
            return None;
        }
        Some(SetAttributes {
            mode: Some(self.mode(&found.node, umask())),
            ..SetAttributes::default()
        })
    }

    /// The permissions that a file is to have.
    fn mode(&self, Node { attributes, .. }: &Node, umask: u32) -> u32 {
        let is_dir = attributes.file_type == FileType::Directory;
        self.options.mode.apply(attributes.mode, is_dir, umask)
    }

    fn report(&self, Found { node, shown }: &Found, outcome: Result<()>) {
        if let Err(failure) = outcome {
            self.console.fail(format_args!("changing permissions of {shown}: {failure}"));
            return;
        }
        let letters = |mode| mode::letters(node.attributes.file_type, mode)[1..].to_owned();
        let (old, new) = (node.attributes.mode & mode::ALL, self.mode(node, umask()));
        if self.options.verbose {
            let described = |mode| format!("{mode:04o} ({})", letters(mode));
            let (old_shown, new_shown) = (described(old), described(new));
            if old == new {
                self.console.say(format_args!("mode of {shown} retained as {old_shown}"));
            } else {
                let change = format_args!("from {old_shown} to {new_shown}");
                self.console.say(format_args!("mode of {shown} changed {change}"));
            }
        }
        // As `-w` does, which leaves the bits of the umask: rarely what is meant.
        let meant = self.mode(node, 0);
        if new & !meant != 0 {
            let (shown, new, meant) = (shown.plain(), letters(new), letters(meant));
            self.console.fail(format_args!("{shown}: new permissions are {new}, not {meant}"));
        }
    }
}
