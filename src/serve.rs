//! `spillway serve`: one server from its start to its last reply.

use std::io::{self, Write as _};
use std::net::TcpListener;
use std::process::ExitCode;

use sd_notify::NotifyState;
use server::Server;
use server::config::Config;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::announce::{announcement, print};
use crate::cli::{self, ServeOptions};
use crate::service_manager::{self, notify};
use crate::{exit, log, privileges};

/// Serves until SIGTERM or SIGINT. Returns [`ExitCode::SUCCESS`] only if everything that clients
/// wrote is on the disk then.
pub(crate) fn run(options: &ServeOptions) -> ExitCode {
    // Before the first thread: the one that counts repeated messages.
    let dropped = privileges::drop_unneeded();
    let sockets = service_manager::sockets();
    if let Err(sentence) = log::start(options.verbose) {
        return cli::misused(&sentence);
    }
    if let Err(error) = dropped {
        warn!(%error, "privileges that the server does not need could not be dropped");
    }
    let sockets = match sockets {
        Ok(sockets) => sockets,
        Err(error) => return exit::failed(&error),
    };
    let config = match options.load() {
        Ok(config) => config,
        Err(error) => return cli::refused(&error),
    };
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::failed(&error),
    };
    runtime.block_on(serve(config, sockets, options))
}

async fn serve(config: Config, sockets: Vec<TcpListener>, options: &ServeOptions) -> ExitCode {
    // Before the server exists, so that a signal during its start is not the default one: death.
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return exit::failed(&error),
    };
    let mut server = match Server::start_on(config.clone(), sockets).await {
        Ok(server) => server,
        Err(error) => return exit::failed(&error),
    };
    let text = announcement(server.local_addrs(), config.exports(), config.nfs_versions());
    if let Err(error) = print(&text) {
        warn!(%error, "stdout did not take the addresses");
    }
    notify(&[NotifyState::Ready]);
    if let Some(period) = service_manager::watchdog_period() {
        server.watch(period, || notify(&[NotifyState::Watchdog]));
    }
    loop {
        match signals.next().await {
            Request::Reload => reload(&server, &config, options),
            Request::Figures => {
                let mut figures = server.figures();
                figures.push(("suppressed_log_lines", log::suppressed_lines()));
                print_figures(&figures);
            }
            Request::Stop(signal) => {
                info!(signal, "stopping");
                break;
            }
        }
    }
    notify(&[NotifyState::Stopping]);
    let stopped = server.shutdown().await;
    log::report_suppressed();
    if let Err(error) = stopped {
        return exit::failed(&error);
    }
    info!("stopped");
    ExitCode::SUCCESS
}

/// Applies the configuration as it is now, whole, or goes on with the one in force. `started` is
/// the configuration of the start: its settings outside the exports are the ones still in force.
fn reload(server: &Server, started: &Config, options: &ServeOptions) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => warn!(%error, "no clock to notify the service manager of the reload"),
    }
    // Blocks on directories and names. This is the main thread, which no request runs on.
    match options.load() {
        Err(error) => warn!(%error, "reload refused, the old configuration stays in force"),
        Ok(config) => {
            let keys = started.restart_only_changes(&config);
            if !keys.is_empty() {
                let keys = keys.join(", ");
                warn!(keys, "these keys changed but take effect only after a restart");
            }
            match server.reload(config) {
                Ok(summary) => info!(summary, "reloaded"),
                Err(error) => warn!(%error, "reload refused, the old configuration stays in force"),
            }
        }
    }
    notify(&[NotifyState::Ready]);
}

/// Prints every figure to stderr, a line `name value` each, all in one piece.
fn print_figures(figures: &[(&str, u64)]) {
    let text: String = figures.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
    // A closed stderr leaves no way to report it.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// The request that a signal makes.
enum Request {
    Reload,
    /// The counters, and what is held now, on stderr.
    Figures,
    /// With the name of the signal.
    Stop(&'static str),
}

struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
    user1: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            user1: signal(SignalKind::user_defined1())?,
        })
    }

    async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.interrupt.recv() => Request::Stop("SIGINT"),
            _ = self.terminate.recv() => Request::Stop("SIGTERM"),
            _ = self.hangup.recv() => Request::Reload,
            _ = self.user1.recv() => Request::Figures,
        }
    }
}
