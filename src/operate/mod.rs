//! The commands that see and change a running server on this machine, through its control socket.

mod clients;
mod drop_client;
mod log;
mod nfsstat;
mod reload;
mod requests;
mod set;
mod status;
mod table;
mod text;
mod top;
mod trace;

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::announce::print;
use crate::control::client::ask;
use crate::control::{self, discovery};
use crate::exit;
use crate::printable::for_stdout;

/// A command for a running server.
#[derive(Subcommand)]
pub(crate) enum Command {
    Status(status::Options),
    Set(set::Options),
    Clients(clients::Options),
    Reload(reload::Options),
    DropClient(drop_client::Options),
    Nfsstat(nfsstat::Options),
    Top(top::Options),
    Trace(trace::Options),
    Log(log::Options),
    Requests(requests::Options),
}

/// Which server is meant.
#[derive(Args)]
struct Server {
    /// The server, where several run: its state directory, control socket, configuration file or
    /// process id [default: the only one that runs as this user]
    #[arg(long, value_name = "SERVER")]
    socket: Option<String>,
}

/// Which server is meant, and how to show what it answers.
#[derive(Args)]
struct Target {
    #[command(flatten)]
    server: Server,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Why a command has failed.
type Failure = Box<dyn Error>;

/// How far a command has come.
enum Done {
    /// The result of writing its output.
    Printed(io::Result<()>),
    /// It has failed after it had printed.
    Failed(Failure),
    /// The command line of the command with this name is wrong.
    Misused(&'static str, &'static str),
}

impl Server {
    fn find(&self) -> Result<PathBuf, Failure> {
        Ok(discovery::find(self.socket.as_deref())?)
    }
}

impl Target {
    fn find(&self) -> Result<PathBuf, Failure> {
        self.server.find()
    }

    /// Finds the server, and asks it.
    fn ask<T: DeserializeOwned>(&self, command: control::Command) -> Result<T, Failure> {
        Ok(ask(&self.find()?, command)?)
    }

    /// Prints an answer: `text` of it, or the whole as JSON.
    fn show<T: Serialize>(&self, answer: &T, text: impl FnOnce(&T) -> String) -> io::Result<()> {
        if !self.json {
            return print(&for_stdout(&text(answer)));
        }
        let mut json = serde_json::to_string_pretty(answer)?;
        json.push('\n');
        print(&json)
    }
}

/// Carries a command out.
pub(crate) fn run(command: &Command) -> ExitCode {
    let done = match command {
        Command::Status(options) => status::run(options),
        Command::Set(options) => set::run(options),
        Command::Clients(options) => clients::run(options),
        Command::Reload(options) => reload::run(options),
        Command::DropClient(options) => drop_client::run(options),
        Command::Nfsstat(options) => nfsstat::run(options),
        Command::Top(options) => top::run(options),
        Command::Trace(options) => trace::run(options),
        Command::Log(options) => log::run(options),
        Command::Requests(options) => requests::run(options),
    };
    match done {
        Ok(Done::Printed(written)) => exit::written(written),
        Ok(Done::Misused(command, sentence)) => exit::misused(command, sentence),
        Ok(Done::Failed(failure)) | Err(failure) => exit::failed(&*failure),
    }
}
