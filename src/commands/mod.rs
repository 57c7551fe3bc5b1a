//! What the program does beside serving: files on servers, named by URLs, in the manners of the Unix
//! commands of the same names.

mod cat;
mod console;
mod cp;
mod df;
mod exports;
mod failure;
mod ls;
mod mkdir;
pub(crate) mod mount;
mod mv;
mod output;
mod remote;
mod rm;
mod session;
mod stat;
mod target;
mod text;
mod window;

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use clap::Subcommand;
use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser};
use rustix::fs::Mode;
use tokio::runtime;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::cli::{self, MISUSED};
use console::Console;
use target::Target;

/// A command that works on files of servers.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// List directories of a server
    Ls(ls::Options),
    /// Write files of a server to standard output
    Cat(cat::Options),
    /// Copy files to a server, from it, or between servers
    Cp(cp::Options),
    /// Take away files of a server
    Rm(rm::Options),
    /// Make directories on a server
    Mkdir(mkdir::Options),
    /// Rename files of a server
    Mv(mv::Options),
    /// Show all that a server says of files
    Stat(stat::Options),
    /// Show how full the file systems of servers are
    Df(df::Options),
    /// List what a server exports
    Exports(exports::Options),
}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Self::Ls(_) => "ls",
            Self::Cat(_) => "cat",
            Self::Cp(_) => "cp",
            Self::Rm(_) => "rm",
            Self::Mkdir(_) => "mkdir",
            Self::Mv(_) => "mv",
            Self::Stat(_) => "stat",
            Self::Df(_) => "df",
            Self::Exports(_) => "exports",
        }
    }

    async fn carry_out(&self, console: &Arc<Console>) -> io::Result<()> {
        match self {
            Self::Ls(options) => ls::run(options, console).await,
            Self::Cat(options) => cat::run(options, console).await,
            Self::Cp(options) => cp::run(options, console).await,
            Self::Rm(options) => rm::run(options, console).await,
            Self::Mkdir(options) => mkdir::run(options, console).await,
            Self::Mv(options) => mv::run(options, console).await,
            Self::Stat(options) => stat::run(options, console).await,
            Self::Df(options) => df::run(options, console).await,
            Self::Exports(options) => exports::run(options, console).await,
        }
    }
}

/// Lets warnings of the client, as of a server that does not answer, read like the command's own
/// words; `RUST_LOG` shows more.
fn start_tracing(console: &Arc<Console>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let console = Arc::clone(console);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .event_format(Plain)
        .with_writer(move || Remark(Arc::clone(&console)))
        .init();
}

/// An event as its message and fields alone.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        context.field_format().format_fields(writer, event)
    }
}

/// Takes a formatted event, which comes in one piece, to the console.
struct Remark(Arc<Console>);

impl io::Write for Remark {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.remark(String::from_utf8_lossy(text));
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Carries a command out and tells what went wrong. SIGINT ends it at once, as it ends coreutils.
pub(crate) fn run(command: &Command) -> ExitCode {
    let console = Arc::new(Console::new(command.name()));
    start_tracing(&console);
    // One thread for the network: what blocks, on files or a slow reader, has threads of its own.
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return cli::failed(&error),
    };
    let output = runtime.block_on(command.carry_out(&console));
    // A thread that waits for a terminal would be waited for.
    runtime.shutdown_background();
    console.finish(output)
}

/// Reads an argument that names a file on a server, which may be of any bytes.
fn target_parser() -> ValueParser {
    OsStringValueParser::new().try_map(|argument| Target::parse(&argument)).into()
}

/// Permission bits that new files do not get.
fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        // It can only be read by setting it.
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        umask.as_raw_mode()
    })
}
