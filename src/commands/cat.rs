//! `spillway cat`: writes files to standard output.

use std::ffi::OsStr;
use std::io;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser};
use client::nfs_url::UrlError;
use proto::nfs3::FileType;
use rustix::io::Errno;
use tokio::task::spawn_blocking;

use super::console::Console;
use super::cp::source::{Chunk, Source};
use super::failure::{Failure, Result};
use super::output;
use super::remote::LastLink;
use super::session::{ConnectOptions, Session};
use super::target::Target;
use super::window::Window;
use crate::stdout;

/// As coreutils' `cat`.
#[derive(Args)]
pub(crate) struct Options {
    /// Files, as nfs://HOST[:PORT]/EXPORT/PATH; - is standard input
    #[arg(value_name = "URL", required = true, value_parser = input_parser())]
    inputs: Vec<Input>,

    #[command(flatten)]
    connect: ConnectOptions,
}

#[derive(Clone, Debug)]
enum Input {
    Stdin,
    Target(Target),
}

fn input_parser() -> ValueParser {
    let parse = |argument: &OsStr| -> std::result::Result<Input, UrlError> {
        if argument == "-" { Ok(Input::Stdin) } else { Target::parse(argument).map(Input::Target) }
    };
    OsStringValueParser::new().try_map(move |argument| parse(&argument)).into()
}

/// Writes all that was asked for, one after the other.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    for input in &options.inputs {
        let copied = match input {
            Input::Stdin => spawn_blocking(copy_stdin).await.expect("copying does not panic"),
            Input::Target(target) => copy(&mut session, target).await,
        };
        let shown = match input {
            Input::Stdin => "-".to_owned(),
            Input::Target(target) => target.shown.plain(),
        };
        match copied {
            Ok(()) => {}
            Err(Broken::Reading(failure)) => console.fail(format_args!("{shown}: {failure}")),
            Err(Broken::Writing(error)) => return Err(error),
        }
    }
    Ok(())
}

/// The failure of a file, or of standard output, which ends the command.
enum Broken {
    Reading(Failure),
    Writing(io::Error),
}

impl<E: Into<Failure>> From<E> for Broken {
    fn from(failure: E) -> Self {
        Self::Reading(failure.into())
    }
}

fn copy_stdin() -> std::result::Result<(), Broken> {
    let mut buffer = vec![0; STDIN_BYTES];
    loop {
        let count = match io::Read::read(&mut io::stdin().lock(), &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let mut stdout = stdout::lock();
        let written = io::Write::write_all(&mut stdout, &buffer[..count]);
        written.and_then(|()| io::Write::flush(&mut stdout)).map_err(Broken::Writing)?;
    }
}

/// Copies a file with enough READs under way to keep the connection busy.
async fn copy(session: &mut Session, target: &Target) -> std::result::Result<(), Broken> {
    let (source, chunk_bytes, size) = open(session, target).await?;
    let mut reads = Window::new(source.reads_max(chunk_bytes));
    let mut asked = 0;
    loop {
        // Data beyond the size that the file had is read when that size is reached.
        while !reads.is_full() && (reads.is_empty() || asked < size) {
            reads.push(source.read(asked, chunk_bytes));
            asked += u64::from(chunk_bytes);
        }
        let Some(chunk) = reads.next().await else { return Ok(()) };
        let Chunk { data, eof } = chunk?;
        output::write(data).await.map_err(Broken::Writing)?;
        if eof {
            return Ok(());
        }
    }
}

/// The file, how much of it to ask for at once, and its size.
async fn open(session: &mut Session, target: &Target) -> Result<(Source, u32, u64)> {
    let (remote, node) = session.find(&target.url, LastLink::Follow).await?;
    match node.attributes.file_type {
        FileType::Regular => {}
        FileType::Directory => return Err(Failure::refused(Errno::ISDIR)),
        // Pipes and devices live in the machine that opens them, and this is not the server.
        _ => return Err(Failure::refused(Errno::NXIO)),
    }
    let source = Source::remote(remote.nfs.clone(), node.handle);
    Ok((source, remote.read_bytes().min(CHUNK_BYTES_MAX), node.attributes.size))
}

const CHUNK_BYTES_MAX: u32 = 1 << 20;
const STDIN_BYTES: usize = 64 << 10;
