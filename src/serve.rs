//! `spillway serve`: one server from its start to its last reply.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use sd_notify::NotifyState;
use server::Server;
use server::config::{self, Config, Setting};
use server::report::path_text;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::announce::{announcement, print};
use crate::cli::{self, ServeOptions};
use crate::control::listener::{Change, ChangeCommand, Control};
use crate::control::{self, ReloadDone, SetDone};
use crate::replace_file::{self, ReplaceError};
use crate::service_manager::{self, notify};
use crate::{exit, flight_record, log, privileges};

/// Serves until SIGTERM or SIGINT. Returns [`ExitCode::SUCCESS`] only if everything that clients
/// wrote is on the disk then.
pub(crate) fn run(options: ServeOptions) -> ExitCode {
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
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::failed(&error),
    };
    let status = runtime.block_on(start(sockets, Arc::new(options)));
    // The start may still wait for a name or a disk.
    runtime.shutdown_background();
    status
}

async fn start(sockets: Vec<TcpListener>, options: Arc<ServeOptions>) -> ExitCode {
    // Before files and names are waited for, so that a signal during the start is not the default
    // one: death. SIGHUP and SIGUSR1 wait until the server runs.
    let (mut signals, hangup) = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return exit::failed(&error),
    };
    let loading = Arc::clone(&options);
    let loaded = tokio::select! {
        loaded = spawn_blocking(move || loading.load()) => loaded,
        signal = signals.stop.recv() => {
            info!(signal, "stopped before the configuration was read");
            return ExitCode::SUCCESS;
        }
    };
    match loaded {
        Ok(Ok(config)) => serve(config, sockets, options, signals, hangup).await,
        Ok(Err(error)) => cli::refused(&error),
        Err(error) => exit::failed(&error),
    }
}

async fn serve(
    config: Config,
    sockets: Vec<TcpListener>,
    options: Arc<ServeOptions>,
    mut signals: Signals,
    mut hangup: Signal,
) -> ExitCode {
    let metrics = match config.metrics().map(listen_for_metrics).transpose() {
        Ok(metrics) => metrics,
        Err(sentence) => return exit::failed(&*sentence),
    };
    let prepared = tokio::select! {
        prepared = Server::prepare(config.clone(), sockets) => prepared,
        signal = signals.stop.recv() => {
            info!(signal, "stopped before the server was ready");
            return ExitCode::SUCCESS;
        }
    };
    let started = match prepared {
        Ok(prepared) => prepared.start().await,
        Err(error) => Err(error),
    };
    let mut server = match started {
        Ok(server) => server,
        Err(error) => return exit::failed(&error),
    };
    let metrics_address = metrics.as_ref().and_then(|metrics| metrics.local_addr().ok());
    let mut control = match attend(&server, config.state_dir(), &options, metrics) {
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
    let mut changes =
        Changes { server: &server, started: config.clone(), current: config, options };
    // A signal to stop drops a change that waits for files and names, as if it had not begun.
    tokio::select! {
        signal = signals.until_stop(&server) => info!(signal, "stopping"),
        never = changes.make(&mut hangup, &mut control.changes) => match never {},
    }
    notify(&[NotifyState::Stopping]);
    drop(control);
    let stopped = server.shutdown().await;
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

/// Changes of a running server, one at a time. What blocks on files and names runs on threads of
/// the runtime, so that signals are served meanwhile.
struct Changes<'a> {
    server: &'a Server,
    /// The configuration of the start: its settings that need a restart are the ones in force.
    started: Config,
    /// The configuration in force, but for these settings.
    current: Config,
    options: Arc<ServeOptions>,
}

impl Changes<'_> {
    /// Makes those that SIGHUP and the control socket ask for.
    async fn make(
        &mut self,
        hangup: &mut Signal,
        requested: &mut mpsc::Receiver<Change>,
    ) -> Infallible {
        loop {
            tokio::select! {
                // The log has all there is to report.
                _ = hangup.recv() => drop(self.reload().await),
                Some(change) = requested.recv() => self.change(change).await,
            }
        }
    }

    async fn change(&mut self, Change { command, reply }: Change) {
        let done = match command {
            ChangeCommand::Reload => self.reload().await.map(serde_json::to_value),
            ChangeCommand::Set { export, settings, save } => {
                self.set(export.as_deref(), &settings, save).await.map(serde_json::to_value)
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
    async fn reload(&mut self) -> Result<ReloadDone, String> {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => {
                warn!(%error, "cannot read the clock to notify the service manager of the reload")
            }
        }
        let done = self.try_reload().await;
        if let Err(error) = &done {
            warn!(%error, "reload refused, the old configuration stays in force");
        }
        notify(&[NotifyState::Ready]);
        done
    }

    async fn try_reload(&mut self) -> Result<ReloadDone, String> {
        let options = Arc::clone(&self.options);
        let config = blocking(move || options.load()).await?;
        let keys = self.started.restart_only_changes(&config);
        if !keys.is_empty() {
            let keys = keys.join(", ");
            warn!(keys, "these keys changed but take effect only after a restart");
        }
        let changes = self.server.reload(&config).await.map_err(|error| error.to_string())?;
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
    async fn set(
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
            saved = std::path::absolute(file).ok().as_deref().map(path_text);
            let kept = self.keep(file, export, &settings).await?;
            overridden = kept.overridden_settings(export, &settings);
        }
        let changes = self.server.switch(&config);
        self.current = config;
        Ok(SetDone { changes, saved, overridden })
    }

    /// Writes settings to the configuration file, in place of the one that is there. Returns the
    /// configuration that a reload would read then.
    async fn keep(
        &self,
        file: &Path,
        export: Option<&str>,
        settings: &[Setting],
    ) -> Result<Config, String> {
        let refused = |error: String| format!("nothing was changed: {}: {error}", file.display());
        let edit = Edit {
            file: file.to_owned(),
            export: export.map(str::to_owned),
            settings: settings.to_vec(),
            options: Arc::clone(&self.options),
        };
        let Edited { file, old, new, config } =
            blocking(move || edit.make()).await.map_err(refused)?;
        // Not beside the main thread: a signal to stop would leave the new file unfinished.
        match replace_file::replace(&file, old.as_bytes(), new.as_bytes()) {
            Ok(()) => Ok(config),
            Err(ReplaceError::Unchanged(error)) => Err(refused(error.to_string())),
            Err(ReplaceError::NotDurable(error)) => Err(format!(
                "the settings are in {0} but not in force, and a crash may remove them from there: \
                 the directory of {0} cannot be synced: {error}",
                file.display()
            )),
        }
    }
}

/// Settings to write to the configuration file.
struct Edit {
    file: PathBuf,
    export: Option<String>,
    settings: Vec<Setting>,
    options: Arc<ServeOptions>,
}

impl Edit {
    fn make(self) -> Result<Edited, Box<dyn Error + Send + Sync>> {
        let file = fs::canonicalize(self.file)?;
        if !file.metadata()?.is_file() {
            return Err("it is no regular file, which could be replaced".into());
        }
        let old = fs::read_to_string(&file)?;
        let new = config::edited(&old, self.export.as_deref(), &self.settings)?;
        let config = self.options.load_text(&new)?;
        Ok(Edited { file, old, new, config })
    }
}

/// A configuration file with its new text, which is not written yet.
struct Edited {
    /// The file behind all links, so that these stay.
    file: PathBuf,
    /// The text that was edited.
    old: String,
    new: String,
    /// The meaning of the new text.
    config: Config,
}

/// Does work that waits for files and names on another thread.
async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    E: Display + Send + 'static,
{
    let done = spawn_blocking(work).await.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

/// Prints every figure to stderr, a line `name value` each, all in one piece.
fn print_figures(figures: &[(&str, u64)]) {
    let text: String = figures.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
    // A closed stderr leaves no way to report it.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Signals that are served at once, also during a change. SIGHUP waits for the change before it.
struct Signals {
    stop: StopSignals,
    user1: Signal,
}

impl Signals {
    /// These, and SIGHUP.
    fn listen() -> io::Result<(Self, Signal)> {
        let stop = StopSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        };
        let signals = Self { stop, user1: signal(SignalKind::user_defined1())? };
        Ok((signals, signal(SignalKind::hangup())?))
    }

    /// Prints the counters, and what is held now, at each SIGUSR1, until a signal to stop; returns
    /// its name.
    async fn until_stop(&mut self, server: &Server) -> &'static str {
        loop {
            tokio::select! {
                signal = self.stop.recv() => return signal,
                _ = self.user1.recv() => {
                    let mut figures = server.figures();
                    figures.push(("suppressed_log_lines", log::suppressed_lines()));
                    print_figures(&figures);
                }
            }
        }
    }
}

/// Signals to stop.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Waits for one; returns its name.
    async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
