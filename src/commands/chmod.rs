//! `spillway chmod`: changes permissions.

use std::io;

use clap::Args;
use proto::nfs3::{FileType, SetAttributes};

use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::{LastLink, Node};
use super::set_attributes::{Change, Files, Order};
use super::target::Shown;
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

    /// Change directories and their contents
    #[arg(short = 'R', long)]
    recursive: bool,

    #[command(flatten)]
    files: Files,
}

fn parse_mode(text: &str) -> std::result::Result<ModeChange, String> {
    ModeChange::parse(text).ok_or_else(|| format!("`{text}` is not a mode"))
}

/// Changes all that was asked for.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let changer = Changer { options, console };
    options.files.change(&changer, options.recursive, LastLink::Follow, console).await;
    Ok(())
}

struct Changer<'a> {
    options: &'a Options,
    console: &'a Console,
}

impl Change for Changer<'_> {
    const ORDER: Order = Order::DirectoryFirst;

    fn attributes(&self, found: &Found) -> Option<SetAttributes> {
        if found.node.attributes.file_type == FileType::Symlink {
            if self.options.files.verbose {
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

    fn report(&self, Found { node, shown }: &Found, outcome: Result<()>) {
        if let Err(failure) = outcome {
            self.console.fail(format_args!("changing permissions of {shown}: {failure}"));
            return;
        }
        let letters = |mode| mode::letters(node.attributes.file_type, mode)[1..].to_owned();
        let (old, new) = (node.attributes.mode & mode::ALL, self.mode(node, umask()));
        if self.options.files.verbose {
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

    fn dangling(shown: &Shown, _: &Failure) -> String {
        format!("cannot operate on dangling symlink {shown}")
    }
}

impl Changer<'_> {
    /// The permissions that a file is to have.
    fn mode(&self, Node { attributes, .. }: &Node, umask: u32) -> u32 {
        let is_dir = attributes.file_type == FileType::Directory;
        self.options.mode.apply(attributes.mode, is_dir, umask)
    }
}
