//! `spillway serve`: one server from its start to its last reply.

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;

use sd_notify::NotifyState;
use server::Server;
use server::config::{self, Config, Setting};
use server::report::path_text;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::announce::{announcement, print};
use crate::cli::{self, ServeOptions};
use crate::control::listener::{Change, ChangeCommand, Control};
use crate::control::{self, ReloadDone, SetDone};
use crate::service_manager::{self, notify};
use crate::{exit, flight_record, log, privileges, replace_file};

/// Serves until SIGTERM or SIGINT. Returns [`ExitCode::SUCCESS`] only if everything that clients
/// wrote is on the disk then.
pub(crate) fn run(options: &ServeOptions) -> ExitCode {
    // Before the first thread: the one that counts repeated messages.
    let dropped = privileges::drop_unneeded();
    let sockets = service_manager::sockets();
    if let Err(sentence) = log::start(options.verbose, options.log_format) {
        return cli::misused(&sentence);
    }
    if let Err(error) = dropped {
        warn!(%error, "cannot drop privileges that the server does not need");
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
    let metrics = match config.metrics().map(listen_for_metrics).transpose() {
        Ok(metrics) => metrics,
        Err(sentence) => return exit::failed(&*sentence),
    };
    let mut server = match Server::start_on(config.clone(), sockets).await {
        Ok(server) => server,
        Err(error) => return exit::failed(&error),
    };
    let metrics_address = metrics.as_ref().and_then(|metrics| metrics.local_addr().ok());
    let mut control = match attend(&server, config.state_dir(), options, metrics) {
        Ok(control) => control,
        Err(error) => {
            // It may be registered with rpcbind. The error above is the one to report.
            drop(server.shutdown().await);
            return exit::failed(&error);
        }
    };
    let mut text = announcement(server.local_addrs(), config.exports(), config.nfs_versions());
    if let Some(address) = metrics_address {
        text += &format!("metrics http://{address}/metrics\n");
    }
    if let Err(error) = print(&text) {
        warn!(%error, "cannot print the addresses on stdout");
    }
    warn_of(&config);
    notify(&[NotifyState::Ready]);
    if let Some(period) = service_manager::watchdog_period() {
        server.watch(period, || notify(&[NotifyState::Watchdog]));
    }
    let mut serving = Serving { server, started: config.clone(), current: config, options };
    serving.until_stopped(&mut signals, &mut control).await;
    notify(&[NotifyState::Stopping]);
    drop(control);
    let stopped = serving.server.shutdown().await;
    log::report_suppressed();
    if let Err(error) = stopped {
        return exit::failed(&error);
    }
    info!("stopped");
    ExitCode::SUCCESS
}

fn warn_of(config: &Config) {
    for warning in config.warnings() {
        warn!("{warning}");
    }
}

/// Starts what a server has beside clients: its flight recorder's file, control socket and metrics.
///
/// # Errors
/// The system refuses a thread.
fn attend(
    server: &Server,
    state_dir: &Path,
    options: &ServeOptions,
    metrics: Option<TcpListener>,
) -> io::Result<Control> {
    flight_record::write_at_panic(state_dir, server.monitor())?;
    let config = options.config_file().and_then(|file| std::path::absolute(file).ok());
    control::listener::start(state_dir, server.monitor(), config, metrics)
}

/// The socket of the metrics.
///
/// # Errors
/// A sentence that names the address.
fn listen_for_metrics(address: SocketAddr) -> Result<TcpListener, Box<dyn Error>> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen()
        .map_err(|error: io::Error| format!("cannot serve metrics on {address}: {error}").into())
}

/// A server with its configuration.
struct Serving<'a> {
    server: Server,
    /// The configuration of the start: its settings that need a restart are the ones in force.
    started: Config,
    /// The configuration in force, but for these settings.
    current: Config,
    options: &'a ServeOptions,
}

impl Serving<'_> {
    /// Serves signals and the control socket until a signal to stop.
    async fn until_stopped(&mut self, signals: &mut Signals, control: &mut Control) {
        loop {
            let request = tokio::select! {
                signal = signals.next() => signal,
                Some(change) = control.changes.recv() => {
                    self.change(change);
                    continue;
                }
            };
            match request {
                // The log has all there is to report.
                Request::Reload => drop(self.reload()),
                Request::Figures => {
                    let mut figures = self.server.figures();
                    figures.push(("suppressed_log_lines", log::suppressed_lines()));
                    print_figures(&figures);
                }
                Request::Stop(signal) => return info!(signal, "stopping"),
            }
        }
    }

    fn change(&mut self, Change { command, reply }: Change) {
        let done = match command {
            ChangeCommand::Reload => self.reload().map(serde_json::to_value),
            ChangeCommand::Set { export, settings, save } => {
                self.set(export.as_deref(), &settings, save).map(serde_json::to_value)
            }
        };
        let done = done.and_then(|value| value.map_err(|error| error.to_string()));
        // The command may have been interrupted.
        drop(reply.send(done));
    }

    /// Applies the configuration as it is now, whole, or goes on with the one in force.
    ///
    /// # Errors
    /// Why it was refused.
    fn reload(&mut self) -> Result<ReloadDone, String> {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => {
                warn!(%error, "cannot read the clock to notify the service manager of the reload")
            }
        }
        // Blocks on directories and names. This is the main thread, which no request runs on.
        let done = self.try_reload();
        if let Err(error) = &done {
            warn!(%error, "reload refused, the old configuration stays in force");
        }
        notify(&[NotifyState::Ready]);
        done
    }

    fn try_reload(&mut self) -> Result<ReloadDone, String> {
        let config = self.options.load().map_err(|error| error.to_string())?;
        let keys = self.started.restart_only_changes(&config);
        if !keys.is_empty() {
            let keys = keys.join(", ");
            warn!(keys, "these keys changed but take effect only after a restart");
        }
        let changes = self.server.reload(config.clone()).map_err(|error| error.to_string())?;
        warn_of(&config);
        self.current = config;
        info!(summary = changes, "reloaded");
        let restart_only = keys.into_iter().map(str::to_owned).collect();
        Ok(ReloadDone { changes, restart_only })
    }

    /// Changes settings of an export, or of the server; all of them or none.
    ///
    /// # Errors
    /// Why nothing was changed.
    fn set(
        &mut self,
        export: Option<&str>,
        settings: &[String],
        save: bool,
    ) -> Result<SetDone, String> {
        let settings: Result<Vec<Setting>, _> =
            settings.iter().map(|setting| setting.parse()).collect();
        let settings = settings.map_err(|error| error.to_string())?;
        let config = self.current.with_settings(export, &settings);
        let config = config.map_err(|error| error.to_string())?;
        let (mut saved, mut overridden) = (None, Vec::new());
        if save {
            let Some(file) = self.options.config_file() else {
                return Err("there is no configuration file to save to: `serve` was started \
                            without --config"
                    .to_owned());
            };
            let kept = keep(file, export, &settings, self.options)?;
            overridden = kept.overridden_settings(export, &settings);
            saved = std::path::absolute(file).ok().as_deref().map(path_text);
        }
        let changes = self.server.switch(&config);
        self.current = config;
        Ok(SetDone { changes, saved, overridden })
    }
}

/// Writes settings to the configuration file, in place of the one that is there. Returns the
/// configuration that a reload would read then.
fn keep(
    file: &Path,
    export: Option<&str>,
    settings: &[Setting],
    options: &ServeOptions,
) -> Result<Config, String> {
    let fail = |error: &dyn Display| format!("nothing was changed: {}: {error}", file.display());
    // A link stays one.
    let file = fs::canonicalize(file).map_err(|error| fail(&error))?;
    let old = fs::read_to_string(&file).map_err(|error| fail(&error))?;
    let new = config::edited(&old, export, settings).map_err(|error| fail(&error))?;
    let config = options.load_text(&new).map_err(|error| fail(&error))?;
    replace_file::replace(&file, new.as_bytes()).map_err(|error| fail(&error))?;
    Ok(config)
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
