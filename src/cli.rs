//! The command line: flags to typed commands, and how every failure is told.
//!
//! Exit status: 0 for success, [`FAILED`] when what was asked for could not be done, [`MISUSED`]
//! when it was not asked for properly. Each failure is one sentence on stderr.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, Subcommand};
use io::IoMode;
use server::config::{ByteSize, Config, ConfigError, DirectoryExport, ListenAddress, Overrides};
use server::trace::Events;

use crate::commands;
use crate::commands::mount::MountCommand;

#[derive(Parser)]
#[command(name = "spillway", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve a directory, or the exports of a configuration file, until SIGTERM or SIGINT
    Serve(ServeOptions),
    /// Check a configuration file without serving: exit status 0 if it is valid, 1 if not
    Check(CheckOptions),
    /// Mount an export on a directory; end it with `umount DIR` or `fusermount -u DIR`
    Mount(MountCommand),
    #[command(flatten)]
    Files(commands::Command),
    /// Measure servers, I/O modes and file systems: experiments that anybody can repeat
    Bench {
        #[command(subcommand)]
        experiment: bench::Command,
    },
}

#[derive(Args)]
pub(crate) struct ServeOptions {
    /// The directory to serve, read-write and to this machine only unless --client says otherwise
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Configuration file, read again on SIGHUP; flags win over it [default: none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address and TCP port to listen on, repeatable; port 0 is any free port [default:
    /// 127.0.0.1:2049]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<ListenAddress>,

    /// Name under which clients mount DIR [default: its absolute path]
    #[arg(long = "as", value_name = "NAME", requires = "directory")]
    name: Option<String>,

    /// Address, network, host name or * that may mount DIR, repeatable [default: this machine
    /// only]
    #[arg(long = "client", value_name = "HOST", requires = "directory")]
    clients: Vec<String>,

    /// Refuse every change, also where the configuration file allows it [default: off]
    #[arg(long)]
    read_only: bool,

    /// Let clients find the server through the portmapper on port 111 [default: off]
    #[arg(long)]
    portmap: bool,

    /// Largest READ and WRITE, 64KiB to 4MiB in steps of 4KiB [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    max_transfer: Option<ByteSize>,

    /// Memory for all requests together, at least 8 times --max-transfer [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,

    /// How READs treat the page cache: buffered, dontcache, direct or auto; of every export,
    /// whatever the configuration file says [default: auto]
    #[arg(long, value_name = "MODE")]
    read_mode: Option<IoMode>,

    /// How WRITEs treat the page cache: buffered, dontcache, direct or auto; of every export,
    /// whatever the configuration file says [default: auto]
    #[arg(long, value_name = "MODE")]
    write_mode: Option<IoMode>,

    /// Memory that written data may occupy in the page cache until it is on the disk, in modes that
    /// leave nothing there; at least 8MiB [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    window: Option<ByteSize>,

    /// Do not read ahead of sequential READs that go past the page cache [default: read ahead]
    #[arg(long)]
    no_read_ahead: bool,

    /// Copy the data of buffered READs instead of splicing it from the page cache to the socket
    /// [default: splice]
    #[arg(long)]
    no_splice: bool,

    /// Print these events to stderr as they happen, each with the call it belongs to; `all` for all
    /// of them, repeatable [default: none]
    #[arg(long, value_name = "EVENT[,EVENT...]", value_delimiter = ',')]
    trace: Vec<Events>,

    /// Directory of the key that signs file handles [default: /var/lib/spillway for root, else
    /// ~/.local/state/spillway]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Log more: -v each request, -vv each step; RUST_LOG, if set, decides instead [default: life
    /// cycle and problems only]
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Args)]
pub(crate) struct CheckOptions {
    /// Configuration file to check
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

impl ServeOptions {
    /// Builds the configuration; called again for each reload. Blocks on files and names.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let overrides = self.overrides();
        match &self.config {
            Some(file) => Config::load(file, &overrides),
            None => Config::from_flags(&overrides),
        }
    }

    fn overrides(&self) -> Overrides {
        Overrides {
            directory: self.directory.as_ref().map(|path| DirectoryExport {
                path: path.clone(),
                name: self.name.clone(),
                clients: self.clients.clone(),
            }),
            listen: self.listen.iter().map(|&ListenAddress(address)| address).collect(),
            state_dir: self.state_dir.clone(),
            memory: self.memory,
            max_transfer: self.max_transfer,
            read_only: self.read_only,
            portmap: self.portmap,
            read_mode: self.read_mode,
            write_mode: self.write_mode,
            window: self.window,
            no_read_ahead: self.no_read_ahead,
            no_splice: self.no_splice,
            trace: (!self.trace.is_empty()).then(|| self.trace.iter().copied().collect()),
        }
    }
}

/// Reads the arguments of this process.
///
/// # Errors
/// The exit status, once help, the version or a complaint has been printed.
pub(crate) fn parse() -> Result<Command, ExitCode> {
    Cli::try_parse_from(arguments(env::args_os())).map(|cli| cli.command).map_err(|error| {
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                // Nobody is left to tell if stdout is closed.
                let _ = error.print();
                ExitCode::SUCCESS
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                misused("a command is missing, like serve, mount or cp")
            }
            _ => misused(&sentence(&error)),
        }
    })
}

/// The arguments, with the command in its place where the program is called as the helper of
/// mount(8) for `-t spillway`, which it finds by its name.
fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = given.collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    if name.is_some_and(|name| name == "mount.spillway") {
        arguments.insert(1, "mount".into());
    }
    arguments
}

/// Tells why a configuration was refused; a flag at fault is misuse, the file or machine a failure.
pub(crate) fn refused(error: &ConfigError) -> ExitCode {
    match error {
        ConfigError::Flag { .. } => misused(&error.to_string()),
        ConfigError::Text { .. } | ConfigError::File { .. } | ConfigError::System { .. } => {
            failed(error)
        }
    }
}

/// Tells an error with its causes, each once: many errors repeat their source in their own text.
pub(crate) fn failed(error: &dyn Error) -> ExitCode {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !sentence.contains(&text) {
            sentence = format!("{sentence}: {text}");
        }
        cause = error.source();
    }
    eprintln!("spillway: {sentence}");
    ExitCode::from(FAILED)
}

pub(crate) fn misused(sentence: &str) -> ExitCode {
    eprintln!("spillway: {sentence}\nTry `spillway --help`.");
    ExitCode::from(MISUSED)
}

/// The first paragraph of clap's report as one line; the usage that follows is what --help prints.
fn sentence(error: &clap::Error) -> String {
    let report = error.render().to_string();
    let paragraph = report.split("\n\n").next().unwrap_or_default();
    let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

pub(crate) const FAILED: u8 = 1;
pub(crate) const MISUSED: u8 = 2;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_helper_of_mount_mounts() {
        let given = |name: &str| [name, "nfs://h/e", "/mnt", "-o", "rw"].map(OsString::from);
        let helper = arguments(given("/sbin/mount.spillway").into_iter());
        let command = Cli::try_parse_from(helper).map(|cli| cli.command);
        assert!(matches!(command, Ok(Command::Mount(_))));
        assert_eq!(arguments(given("/usr/bin/spillway").into_iter()), given("/usr/bin/spillway"));
    }

    #[test]
    fn each_serve_flag_tells_its_default() {
        for arg in Cli::command().find_subcommand("serve").expect("it is defined").get_arguments() {
            let id = arg.get_id().as_str();
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let exempt = ["help", "directory"].contains(&id);
            assert!(exempt || help.contains("[default: "), "{id}: {help}");
        }
    }
}
