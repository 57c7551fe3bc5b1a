//! `spillway top`: the work of a server, refreshed in place.

mod device;
mod frame;
mod screen;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use server::report::Sample;
use tokio::runtime;

use super::{Done, Failure, Server};
use crate::announce::print;
use crate::control::Command;
use crate::control::client::ask;
use device::Devices;
use frame::{Frame, Size};
use screen::{Screen, Wake};

/// Watch a running server: throughput and latency by export and client, modes and reasons, memory
///
/// Shows the work of a server, refreshed in place: the exports with their rates, mean latency, I/O
/// modes and the reasons for each choice; the busiest clients; memory, the write-behind
/// window and the devices below. `q` ends it. Where standard output is no terminal, each view is
/// printed as plain lines. Programs read `spillway nfsstat INTERVAL --json` instead.
///
/// Latency is the mean from a call's last byte to its result; `ms` shows the mean of each phase of
/// the work, of the whole server, by export and by client. A `-` is a phase that did not occur.
/// Calls are timed while this command runs. A device is busy for the part of the time that it had
/// requests; the queue is the mean number of them.
///
/// Exit status: 0 when the command is ended, 1 if the server does not answer, or stops answering.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds between two views
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    delay: u32,

    /// Number of views [default: without end]
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,

    #[command(flatten)]
    server: Server,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let socket = options.server.find()?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(watch(options, &socket));
    // The thread that waits for a key is not waited for.
    runtime.shutdown_background();
    done
}

async fn watch(options: &Options, socket: &Path) -> Result<Done, Failure> {
    let mut watched = Watched::begin(socket, options.delay)?;
    let mut screen = if io::stdout().is_terminal() { Some(Screen::open()?) } else { None };
    let delay = Duration::from_secs(options.delay.into());
    let mut views = 0;
    loop {
        // The first view has the rates of a short while, so that it does not stay empty for long.
        let wait = if views == 0 { delay.min(FIRST_VIEW) } else { delay };
        let wake = match &mut screen {
            Some(screen) => screen.wait(wait).await,
            None => {
                tokio::time::sleep(wait).await;
                Wake::Time
            }
        };
        match wake {
            Wake::End => return Ok(Done::Printed(Ok(()))),
            Wake::Resized => {}
            Wake::Time => {
                watched.renew(socket, options.delay)?;
                views += 1;
            }
        }
        let written = match &mut screen {
            Some(screen) => screen.show(&watched.frame(Some(screen.size()))),
            None => print(&plain(&watched.frame(None))),
        };
        if written.is_err() || options.count.is_some_and(|count| views >= count) {
            return Ok(Done::Printed(written));
        }
    }
}

/// The time until the first view.
const FIRST_VIEW: Duration = Duration::from_millis(500);

fn plain(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect::<String>() + "\n"
}

/// The counters of the server and of its devices, at the latest sample and the one before.
struct Watched {
    before: Sample,
    now: Sample,
    devices_before: Devices,
    devices: Devices,
}

impl Watched {
    fn begin(socket: &Path, delay: u32) -> Result<Self, Failure> {
        let now = sample(socket, delay)?;
        let devices = Devices::of(&now);
        Ok(Self { before: now.clone(), now, devices_before: devices.clone(), devices })
    }

    fn renew(&mut self, socket: &Path, delay: u32) -> Result<(), Failure> {
        let now = sample(socket, delay)?;
        let devices = Devices::of(&now);
        self.before = std::mem::replace(&mut self.now, now);
        self.devices_before = std::mem::replace(&mut self.devices, devices);
        Ok(())
    }

    fn frame(&self, size: Option<Size>) -> Vec<String> {
        let work = self.now.since(&self.before);
        let devices = self.devices.since(&self.devices_before);
        Frame { work: &work, now: &self.now, devices: &devices }.lines(size)
    }
}

fn sample(socket: &Path, delay: u32) -> Result<Sample, Failure> {
    let time_calls_seconds = u64::from(delay) * 2 + 5;
    Ok(ask(socket, Command::Sample { time_calls_seconds })?)
}
