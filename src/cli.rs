//! The command line: flags to typed commands.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::io::IoMode;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ErrorKind};
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};
use server::config::{
    ByteSize, Config, ConfigError, DirectoryExport, ListenAddress, NfsVersions, Overrides,
};
use server::trace::{Event, Events};

use crate::commands::mount::MountCommand;
use crate::log::LogFormat;
use crate::manual::{CompletionsOptions, ManOptions};
use crate::{arguments, commands, exit, operate, stdout};

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
    Operate(operate::Command),
    #[command(flatten)]
    Files(commands::Command),
    /// Measure servers, I/O modes and file systems by repeatable experiments
    Bench {
        #[command(subcommand)]
        experiment: bench::Command,
    },
    /// Write the manual pages into a directory
    Man(ManOptions),
    /// Print completions of the command line for a shell
    Completions(CompletionsOptions),
}

#[derive(Args)]
pub(crate) struct ServeOptions {
    /// The directory to serve, read-write and to this machine only unless --client is given
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Configuration file, read again on SIGHUP; flags override it [default: none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address and TCP port to listen on, repeatable; port 0 is any free port [default:
    /// 127.0.0.1:2049]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<ListenAddress>,

    /// Name under which clients mount DIR [default: its absolute path]
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,

    /// Address, network, host name or * that may mount DIR, repeatable [default: this machine
    /// only]
    #[arg(long = "client", value_name = "HOST")]
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

    /// Memory for all requests together, at least 8 times --max-transfer [default: 512MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,

    /// How READs use the page cache; overrides the configuration file for every export [default:
    /// auto]
    #[arg(long, value_name = "MODE", value_parser = io_mode())]
    read_mode: Option<IoMode>,

    /// How WRITEs use the page cache; overrides the configuration file for every export [default:
    /// auto]
    #[arg(long, value_name = "MODE", value_parser = io_mode())]
    write_mode: Option<IoMode>,

    /// Memory that written data may occupy in the page cache until it is on the disk, in modes that
    /// leave nothing there; at least 8MiB [default: 256MiB, less with little memory]
    #[arg(long, value_name = "SIZE")]
    window: Option<ByteSize>,

    /// Do not read ahead of sequential READs that go past the page cache [default: read ahead]
    #[arg(long)]
    no_read_ahead: bool,

    /// Copy the data of buffered READs instead of splicing it from the page cache to the socket
    /// [default: splice]
    #[arg(long)]
    no_splice: bool,

    /// Versions of NFS to serve: 3, 4.1, 4.2 [default: all]
    #[arg(long, value_name = "VERSION[,VERSION...]")]
    nfs_versions: Option<NfsVersions>,

    /// Print these events to stderr as they happen, each with the call it belongs to; `all` for all
    /// of them, repeatable [default: none]
    #[arg(long, value_name = "EVENT[,EVENT...]", value_delimiter = ',')]
    trace: Vec<Events>,

    /// Address and TCP port to serve metrics on, for Prometheus, over HTTP; any peer that reaches
    /// it can read them [default: none]
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<ListenAddress>,

    /// Directory of the key that signs file handles [default: /var/lib/spillway for root, else
    /// $XDG_STATE_HOME/spillway or ~/.local/state/spillway]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Log more: -v a line for each call, -vv also its steps, with all trace events unless --trace
    /// is given; RUST_LOG, if set, decides instead of the count [default: life cycle and problems
    /// only]
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Form of the lines that the log has on stderr: text or json [default: text]
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(crate) log_format: LogFormat,
}

#[derive(Args)]
pub(crate) struct CheckOptions {
    /// Configuration file to check
    #[arg(value_name = "FILE", required_unless_present = "config", conflicts_with = "config")]
    file: Option<PathBuf>,

    /// Configuration file to check, as with `serve`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The name of an I/O mode; help and completions list all.
fn io_mode() -> impl TypedValueParser<Value = IoMode> {
    PossibleValuesParser::new(IoMode::ALL.map(IoMode::name)).try_map(|name| name.parse())
}

impl CheckOptions {
    pub(crate) fn file(&self) -> &Path {
        self.file.as_ref().or(self.config.as_ref()).expect("one of the two is required")
    }
}

impl ServeOptions {
    /// Builds the configuration; called again for each reload. Blocks on files and names.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        self.check_flags_of_directory()?;
        let overrides = self.overrides();
        match &self.config {
            Some(file) => Config::load(file, &overrides),
            None => Config::from_flags(&overrides),
        }
    }

    /// As [`Self::load`], of a file with this text.
    pub(crate) fn load_text(&self, text: &str) -> Result<Config, ConfigError> {
        let file = self.config.as_deref().unwrap_or(Path::new("(no file)"));
        Config::parse(text, file, &self.overrides())
    }

    pub(crate) fn config_file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Refuses flags about DIR for the exports of a file, which have keys for the same.
    fn check_flags_of_directory(&self) -> Result<(), ConfigError> {
        let (None, Some(file)) = (&self.directory, &self.config) else { return Ok(()) };
        let file = file.display();
        let refused = |flag, why| Err(ConfigError::Flag { flag, why });
        if self.name.is_some() {
            refused("--as", format!("it names DIR; write `name` in an [[export]] of {file}"))
        } else if !self.clients.is_empty() {
            let rule = "[[export.client]]";
            refused("--client", format!("it is for DIR; write hosts in a rule {rule} of {file}"))
        } else {
            Ok(())
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
            nfs_versions: self.nfs_versions,
            read_mode: self.read_mode,
            write_mode: self.write_mode,
            window: self.window,
            no_read_ahead: self.no_read_ahead,
            no_splice: self.no_splice,
            metrics: self.metrics,
            trace: self.events(),
        }
    }

    /// The trace events to print, if the command line selects any: those of `--trace`, else all of
    /// them for `-vv`, as they are the steps of a call.
    fn events(&self) -> Option<Events> {
        match (self.trace.is_empty(), self.verbose) {
            (false, _) => Some(self.trace.iter().copied().collect()),
            (true, 0 | 1) => None,
            (true, _) => Some(Event::ALL.iter().map(|event| Events::from(*event)).collect()),
        }
    }
}

/// The definition of the command line, from which help, manual pages and completions come.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

/// Reads the arguments of this process.
///
/// # Errors
/// The exit status, once help, the version or a complaint has been printed.
pub(crate) fn parse() -> Result<Command, ExitCode> {
    let arguments = arguments::of_process();
    Cli::try_parse_from(&arguments).map(|cli| cli.command).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = stdout::check().and_then(|()| error.print());
            let printed = printed.and_then(|()| io::stdout().flush());
            exit::written(printed)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => misused(&missing(&arguments)),
        _ => misused(&sentence(&error)),
    })
}

/// The subcommands that could follow the given commands.
fn missing(arguments: &[OsString]) -> String {
    let root = Cli::command();
    let (path, command) = asked_for(&root, arguments);
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<_> = visible.map(clap::Command::get_name).collect();
    match (path.split_once(' '), names.split_last()) {
        (Some((_, path)), Some((last, names))) => {
            format!("{path}: one of {} or {last} is missing", names.join(", "))
        }
        _ => "a command is missing, like serve, mount or cp".to_owned(),
    }
}

/// The innermost command that arguments name, and its path from the program's name on.
fn asked_for<'a>(root: &'a clap::Command, arguments: &[OsString]) -> (String, &'a clap::Command) {
    let (mut path, mut command) = (root.get_name().to_owned(), root);
    for argument in arguments.iter().skip(1) {
        let Some(inner) = command.find_subcommand(argument) else { break };
        path = format!("{path} {}", inner.get_name());
        command = inner;
    }
    (path, command)
}

/// Reports why a configuration was refused; a wrong flag is misuse, a wrong file or machine a
/// failure.
pub(crate) fn refused(error: &ConfigError) -> ExitCode {
    match error {
        ConfigError::Flag { .. } => misused(&error.to_string()),
        ConfigError::Text { .. } | ConfigError::File { .. } | ConfigError::System { .. } => {
            exit::failed(error)
        }
    }
}

/// Reports that the command line is wrong, and where its help is.
pub(crate) fn misused(sentence: &str) -> ExitCode {
    let root = Cli::command();
    let (path, _) = asked_for(&root, &arguments::of_process());
    exit::misused(&path, sentence)
}

/// The first paragraph of clap's report as one line; the usage that follows is what --help prints.
/// For a number that cannot be read, the words of the standard library are replaced.
fn sentence(error: &clap::Error) -> String {
    if error.source().is_some_and(|source| source.is::<ParseIntError>()) {
        let of = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
        let (value, argument) = (of(ContextKind::InvalidValue), of(ContextKind::InvalidArg));
        return format!("invalid value '{value}' for '{argument}': a whole number is expected");
    }
    let report = error.render().to_string();
    let paragraph = report.split("\n\n").next().unwrap_or_default();
    let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_of_mount_8_are_those_of_the_command() {
        let words = "spillway mount h:/e /mnt -sfnv -o rw,noauto -t fuse.spillway".split(' ');
        let command = Cli::try_parse_from(words).map(|cli| cli.command);
        assert!(matches!(command, Ok(Command::Mount(_))));
    }

    #[test]
    fn the_help_of_each_serve_flag_names_its_default() {
        for arg in Cli::command().find_subcommand("serve").expect("it is defined").get_arguments() {
            let id = arg.get_id().as_str();
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let exempt = ["help", "directory"].contains(&id);
            assert!(exempt || help.contains("[default: "), "{id}: {help}");
        }
    }
}
