//! The commands for files on servers: named by URLs, after the Unix commands of the same names.

mod ancestors;
mod cat;
mod chmod;
mod chown;
mod console;
mod cp;
mod destination;
mod df;
mod du;
mod exports;
mod failure;
#[cfg(test)]
mod fixture;
mod ln;
mod ls;
mod mkdir;
pub(crate) mod mount;
mod mv;
mod output;
mod remote;
mod rm;
mod rmdir;
mod session;
mod set_attributes;
mod stat;
mod target;
mod text;
mod touch;
mod walk;
mod window;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::panic;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread;

use clap::Subcommand;
use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser};
use rustix::fs::Mode;
use tokio::runtime;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::exit;
use crate::log;
use console::Console;
use target::{Target, is_remote};

/// A command that works on files of servers.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// List directories of a server
    Ls(ls::Options),
    /// Write files of a server to standard output
    Cat(cat::Options),
    /// Copy files to a server, from it, or between servers
    Cp(cp::Options),
    /// Remove files of a server
    Rm(rm::Options),
    /// Make directories on a server
    Mkdir(mkdir::Options),
    /// Remove empty directories of a server
    Rmdir(rmdir::Options),
    /// Rename files of a server
    Mv(mv::Options),
    /// Make hard and symbolic links on a server
    Ln(ln::Options),
    /// Make files on a server, and set their times
    Touch(touch::Options),
    /// Change permissions of files of a server
    Chmod(chmod::Options),
    /// Change owners and groups of files of a server
    Chown(chown::Options),
    /// Show all attributes that a server returns for files
    Stat(stat::Options),
    /// Show the space that directories on servers take
    Du(du::Options),
    /// Show the total, used and free space of file systems on servers
    Df(df::Options),
    /// List the exports of a server
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
            Self::Rmdir(_) => "rmdir",
            Self::Mv(_) => "mv",
            Self::Ln(_) => "ln",
            Self::Touch(_) => "touch",
            Self::Chmod(_) => "chmod",
            Self::Chown(_) => "chown",
            Self::Stat(_) => "stat",
            Self::Du(_) => "du",
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
            Self::Rmdir(options) => rmdir::run(options, console).await,
            Self::Mv(options) => mv::run(options, console).await,
            Self::Ln(options) => ln::run(options, console).await,
            Self::Touch(options) => touch::run(options, console).await,
            Self::Chmod(options) => chmod::run(options, console).await,
            Self::Chown(options) => chown::run(options, console).await,
            Self::Stat(options) => stat::run(options, console).await,
            Self::Du(options) => du::run(options, console).await,
            Self::Df(options) => df::run(options, console).await,
            Self::Exports(options) => exports::run(options, console).await,
        }
    }
}

/// The filter for the client's log: a server that does not respond is a warning, its recovery is
/// information.
const REMARKS: &str = "warn,spillway_rpc=info";

/// Enough for walks that are as deep as `ancestors` allows. The system allocates what is used of
/// it.
const STACK_BYTES: usize = 256 << 20;

/// Lets warnings of the client, as of a server that does not answer, read like the command's own
/// words; `RUST_LOG` shows more.
fn start_tracing(console: &Arc<Console>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(REMARKS));
    let console = Arc::clone(console);
    remarks(filter, move || Remark(Arc::clone(&console))).init();
}

/// The subscriber that writes the client's events. Those that one server causes are limited in
/// number as in the server's log.
fn remarks<W>(filter: EnvFilter, writer: W) -> impl Subscriber
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(log::stderr_has_colors())
        .event_format(Plain)
        .with_writer(writer)
        .finish()
        .with(log::Limited)
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
        self.0.log(&String::from_utf8_lossy(text));
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Carries a command out and reports its failures. SIGINT ends it at once, as it ends coreutils.
pub(crate) fn run(command: &Command) -> ExitCode {
    let console = Arc::new(Console::new(command.name()));
    start_tracing(&console);
    // One thread for the network: what blocks, on files or a slow reader, has threads of its own.
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::failed(&error),
    };
    let carry_out = || runtime.block_on(command.carry_out(&console));
    let output = thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        Ok::<_, io::Error>(thread.spawn_scoped(scope, carry_out)?.join())
    });
    let output = match output {
        Ok(Ok(output)) => output,
        Ok(Err(panic)) => panic::resume_unwind(panic),
        Err(error) => return exit::failed(&error),
    };
    // A thread that waits for a terminal would be waited for.
    runtime.shutdown_background();
    log::report_suppressed();
    console.finish(output)
}

/// Reads an argument that names a file of this machine or of a server.
fn path_parser() -> ValueParser {
    let parse = |argument: OsString| {
        if is_remote(&argument) { Target::parse(&argument).map(|_| argument) } else { Ok(argument) }
    };
    OsStringValueParser::new().try_map(parse).into()
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

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Everything written so far.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn server_that_causes_many_remarks_is_limited() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = remarks(EnvFilter::new(REMARKS), move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..1000 {
                tracing::warn!(target: "spillway_client::rpc", server = "192.0.2.1:2049", "lost");
            }
        });
        let written = lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = String::from_utf8_lossy(&written).matches("lost").count();
        assert!((1..100).contains(&written), "{written} of 1000 lines");
    }
}
