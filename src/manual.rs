//! `spillway man` and `spillway completions`: manual pages and completions of shells.
//!
//! Both come from the definition of the command line, as `--help` does. The pages for the
//! configuration file and the FUSE mount also take their text from the documents that describe
//! them.

mod markdown;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgAction, Args, Command, Subcommand as _};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Inline, Roff, bold, italic, roman};

use crate::{commands, exit, stdout};

#[derive(Args)]
pub(crate) struct ManOptions {
    /// Directory of manual pages, as /usr/local/share/man; man1, man5 and man8 are made in it
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Args)]
pub(crate) struct CompletionsOptions {
    /// The shell that will read them
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Writes all manual pages, in place of those of the same names.
pub(crate) fn write(root: Command, options: &ManOptions) -> ExitCode {
    let written = pages(root)
        .and_then(|pages| pages.iter().try_for_each(|page| page.write_below(&options.directory)));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let directory = options.directory.display();
            exit::failed(&io::Error::other(format!("{directory}: {}", exit::io_reason(&error))))
        }
    }
}

/// Prints the completions for one shell.
pub(crate) fn complete(mut root: Command, options: &CompletionsOptions) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut root, PROGRAM, &mut text);
    let mut stdout = stdout::lock();
    exit::written(stdout.write_all(&text).and_then(|()| stdout.flush()))
}

/// A manual page: its name without the section, and its roff source.
struct Page {
    name: String,
    section: &'static str,
    text: Vec<u8>,
}

impl Page {
    fn write_below(&self, directory: &Path) -> io::Result<()> {
        let directory = directory.join(format!("man{}", self.section));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("{}.{}", self.name, self.section)), &self.text)
    }
}

fn pages(root: Command) -> io::Result<Vec<Page>> {
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add_command(&root, &mut pages)?;
    pages.push(configuration()?);
    pages.extend(["mount.spillway", "mount.fuse.spillway"].map(|name| Page {
        name: name.to_owned(),
        section: "8",
        text: b".so man8/spillway-mount.8\n".to_vec(),
    }));
    Ok(pages)
}

/// Adds the page of `command`, then those of the commands in it.
fn add_command(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(PROGRAM).to_owned();
    let section = section(&name);
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section(section)
        .date(NO_DATE)
        .source(format!("Spillway {}", env!("CARGO_PKG_VERSION")))
        .manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    text.extend(synopsis(command).to_roff().into_bytes());
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let mut rest = Roff::new();
    add_subcommands(command, &mut rest);
    add_after_help(command, &mut rest);
    if name == "spillway-mount" {
        markdown::append(include_str!("../docs/mount.md"), &mut rest);
    }
    add_references(&name, &mut rest);
    text.extend(rest.to_roff().into_bytes());
    pages.push(Page { name, section, text });
    visible(command).try_for_each(|inner| add_command(inner, pages))
}

/// The command with its options and arguments, and the names of their values.
fn synopsis(command: &Command) -> Roff {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = vec![bold(name)];
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        if !argument.is_positional() {
            push_argument(argument, &mut line);
        }
    }
    for argument in command.get_positionals().filter(|argument| !argument.is_hide_set()) {
        push_argument(argument, &mut line);
    }
    if visible(command).next().is_some() {
        line.extend([roman(" "), italic("COMMAND")]);
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text(line);
    roff
}

/// Adds `[-s|--long VALUE]`, or `VALUE` of an argument that must be given; `...` if it may be
/// repeated.
fn push_argument(argument: &Arg, line: &mut Vec<Inline>) {
    let (open, close) = if argument.is_required_set() { ("", "") } else { ("[", "]") };
    line.push(roman(format!(" {open}")));
    let flags = [argument.get_short().map(String::from), argument.get_long().map(String::from)];
    let flags = flags.into_iter().zip(["-", "--"]).filter_map(|(flag, dash)| Some((dash, flag?)));
    let mut follows = false;
    for (dash, flag) in flags {
        line.extend([roman(if follows { "|" } else { "" }), bold(format!("{dash}{flag}"))]);
        follows = true;
    }
    if argument.get_action().takes_values() {
        let id = argument.get_id().as_str().to_uppercase();
        let values = argument.get_value_names().map_or(id, |names| names.join(" "));
        line.extend([roman(if follows { " " } else { "" }), italic(values)]);
    }
    let values = argument.get_num_args().map_or(1, |range| range.max_values());
    let is_repeated = matches!(argument.get_action(), ArgAction::Append | ArgAction::Count);
    line.push(roman(format!("{close}{}", if is_repeated || values > 1 { "..." } else { "" })));
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set())
}

/// Each command within `command`, with the section of its own page.
fn add_subcommands(command: &Command, roff: &mut Roff) {
    for (index, inner) in visible(command).enumerate() {
        if index == 0 {
            roff.control("SH", ["COMMANDS"]);
        }
        let name = inner.get_display_name().unwrap_or_else(|| inner.get_name());
        let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
        roff.control("TP", []);
        roff.text([bold(name), roman(format!("({})", section(name)))]);
        roff.text([roman(about)]);
    }
}

/// The text at the end of the help, `Heading:` and lines, as a section.
fn add_after_help(command: &Command, roff: &mut Roff) {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let Some((heading, lines)) = text.split_once(":\n") else { return };
    roff.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line.trim_start())]);
    }
    roff.control("fi", []);
}

fn add_references(name: &str, roff: &mut Roff) {
    let others = [("spillway", "1"), ("spillway-mount", "8"), (CONFIGURATION, "5")];
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (other, section) in others.into_iter().filter(|(other, _)| *other != name) {
        let separator = if line.is_empty() { "" } else { ", " };
        line.extend([roman(separator), bold(other), roman(format!("({section})"))]);
    }
    roff.text(line);
}

/// The page of the configuration file.
fn configuration() -> io::Result<Page> {
    let mut roff = Roff::new();
    let source = format!("Spillway {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [&CONFIGURATION.to_uppercase(), "5", NO_DATE, &source, MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{CONFIGURATION} - configuration file of the NFS server Spillway"))]);
    roff.control("SH", ["DESCRIPTION"]);
    markdown::append(include_str!("../docs/configuration.md"), &mut roff);
    add_references(CONFIGURATION, &mut roff);
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    Ok(Page { name: CONFIGURATION.to_owned(), section: "5", text })
}

/// The section of the page of a command: 1 for those that any user calls, 8 for an administrator's.
fn section(name: &str) -> &'static str {
    let command = name.strip_prefix("spillway-").unwrap_or_default();
    let outermost = command.split('-').next().unwrap_or_default();
    let is_of_users = USERS.contains(&outermost) || commands::Command::has_subcommand(outermost);
    if is_of_users { "1" } else { "8" }
}

const PROGRAM: &str = "spillway";
const CONFIGURATION: &str = "spillway.toml";
const MANUAL: &str = "Spillway Manual";
/// An empty argument of roff. A page has the date of its build nowhere, so that two builds are
/// equal.
const NO_DATE: &str = "\"\"";
/// The commands of users beside those for files; the program itself is the first.
const USERS: [&str; 4] = ["", "bench", "man", "completions"];

#[cfg(test)]
mod tests;
