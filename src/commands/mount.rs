//! `spillway mount`: an export as a directory of this machine, from the first call to the server to
//! the last WRITE.
//!
//! Without `--foreground` there are two processes. The first starts the second, waits for its
//! message that the mount answers, and ends; failures before that are reported on its stderr. The
//! second is a new process of this program and not a fork, because threads do not survive a fork.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use client::mount::{Mount, Unmounted, remount};
use client::mount_options::{MountRequest, OptionError, Unknown};
use client::mount3::Mount3;
use client::trace::{Events, Tracer};
use client::{FileSystem, Identity, NfsUrl};
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, info, warn};

use crate::announce::print;
use crate::arguments;
use crate::exit;
use crate::log::{self, LogFormat};

#[derive(Args)]
pub(crate) struct MountCommand {
    /// The export to mount: nfs://HOST[:PORT]/PATH, or HOST:/PATH
    #[arg(value_name = "SOURCE")]
    source: OsString,

    /// The directory on which to mount it
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Mount options as in nfs(5) and mount.fuse(8), repeatable; mounts by root have `allow_other`,
    /// with which the modes of FIFOs, sockets and devices are checked only with
    /// `default_permissions` [default: those of nfs(5)]
    #[arg(short = 'o', value_name = "OPTION[,OPTION...]")]
    options: Vec<String>,

    /// Stay in the foreground, and unmount on SIGTERM or SIGINT [default: go to the background once
    /// mounted]
    #[arg(long)]
    foreground: bool,

    /// Append messages and events to FILE when in the background; `-o log=FILE` does the same
    /// [default: messages to the system log, no events]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Print these events as they happen; `all` for all of them, repeatable; needs --foreground or
    /// --log [default: none]
    #[arg(long, value_name = "EVENT[,EVENT...]", value_delimiter = ',')]
    trace: Vec<Events>,

    /// Log more: -v each request, -vv each step; RUST_LOG, if set, decides instead [default: life
    /// cycle and problems only]
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,

    /// mount(8) passes this to its helpers; it has no effect, because there is no mtab
    #[arg(short = 'n', hide = true)]
    _no_mtab: bool,

    /// For mount(8): ignore unknown options
    #[arg(short, hide = true)]
    sloppy: bool,

    /// For mount(8): check the command line only
    #[arg(short, hide = true)]
    fake: bool,

    /// For mount(8), which passes `fuse.spillway`
    #[arg(short = 't', hide = true, value_name = "TYPE")]
    _type: Option<String>,
}

/// Mounts, and in the foreground serves until it is unmounted; or changes a mounted file system.
/// Returns [`ExitCode::SUCCESS`] only if the mount answers, or if all written data is at the
/// server.
pub(crate) fn run(command: &MountCommand) -> ExitCode {
    let request = match command.request() {
        Ok(request) => request,
        Err(error) => return exit::misused("spillway mount", &error.to_string()),
    };
    // Before the source is read, which can be a name of the user's choice then.
    if request.remount {
        let done = if command.fake { Ok(()) } else { remount(&command.directory, &request) };
        return done.map_or_else(|error| exit::failed(&error), |()| ExitCode::SUCCESS);
    }
    let plan = match Plan::new(command, request) {
        Ok(plan) => plan,
        Err(sentence) => return exit::misused("spillway mount", &sentence),
    };
    if command.fake {
        return ExitCode::SUCCESS;
    }
    let in_background = env::var_os(BACKGROUND).is_some();
    if !command.foreground && !in_background {
        return start_in_background().unwrap_or_else(|error| exit::failed(&error));
    }
    let started = if in_background {
        log::start_in_background(command.verbose)
    } else {
        log::start(command.verbose, LogFormat::Text)
    };
    if let Err(sentence) = started {
        return exit::misused("spillway mount", &sentence);
    }
    let runtime = match runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::failed(&error),
    };
    let log = command.log.as_deref().or(plan.request.log.as_deref());
    let background = in_background.then(|| Background::new(log)).transpose();
    let background = match background {
        Ok(background) => background,
        Err(sentence) => return failed(sentence),
    };
    let status = runtime.block_on(plan.carry_out(background));
    // Not before what waits for a server that is gone has ended: it does not.
    runtime.shutdown_background();
    status
}

impl MountCommand {
    /// The options, checked.
    fn request(&self) -> Result<MountRequest, OptionError> {
        let mut request = MountRequest::default();
        // As with mount(8), what root mounts is for everybody.
        request.fuse.allow_other = rustix::process::geteuid().is_root();
        let unknown = if self.sloppy { Unknown::Ignored } else { Unknown::Refused };
        self.options.iter().try_for_each(|list| request.apply(list, unknown))?;
        Ok(request)
    }
}

/// The checked command line.
struct Plan {
    source: String,
    url: NfsUrl,
    directory: PathBuf,
    request: MountRequest,
    trace: Events,
}

impl Plan {
    /// # Errors
    /// A sentence about a source that cannot be meant, or about events that nothing would print.
    fn new(command: &MountCommand, request: MountRequest) -> Result<Self, String> {
        let source = command.source.to_string_lossy().into_owned();
        let url = parse_source(&command.source)?;
        if url.uid.is_some() || url.gid.is_some() {
            let why = "a mount makes each call as the user of the program that uses it";
            return Err(format!("{source}: uid and gid cannot be set: {why}"));
        }
        let has_place = command.foreground || command.log.is_some() || request.log.is_some();
        if !command.trace.is_empty() && !has_place {
            let why = "a mount in the background prints events to a file only";
            return Err(format!("--trace: {why}: add --log FILE, or --foreground"));
        }
        Ok(Self {
            source,
            url,
            directory: command.directory.clone(),
            request,
            trace: command.trace.iter().copied().collect(),
        })
    }

    /// Mounts and serves, from `background` if there is one.
    async fn carry_out(self, background: Option<Background>) -> ExitCode {
        // Before there is anything to leave behind.
        let mut signals = match Signals::listen() {
            Ok(signals) => signals,
            Err(error) => return exit::failed(&error),
        };
        let mut mounting = pin!(self.mount());
        let mounted = tokio::select! {
            mounted = &mut mounting => mounted,
            signal = signals.next() => {
                // The kernel may have mounted already. Both the outcome and `mounting` unmount when
                // they are dropped.
                drop(tokio::time::timeout(MOUNTED_WITHIN, mounting).await);
                return failed(format!("not mounted: {signal}"));
            }
        };
        let mut mount = match mounted {
            Ok(mount) => mount,
            Err(sentence) => return failed(sentence),
        };
        let answered = match background {
            None => print(&format!("{} on {}\n", self.source, mount.dir().display())),
            Some(background) => {
                signals.ignore_hangup();
                background.detach()
            }
        };
        if let Err(error) = answered {
            return exit::failed(&error);
        }
        info!(source = self.source, dir = %mount.dir().display(), "mounted");
        let status = serve(&mut mount, &mut signals).await;
        if status == ExitCode::SUCCESS {
            let leaving = self.leave_list_of_mounts();
            let left = tokio::time::timeout(LEFT_WITHIN, leaving).await;
            debug!(?left, "UMNT");
        }
        status
    }

    /// Removes the mount from the server's list of mounts (RFC 1813 §5.2.3), on which nothing but
    /// that list depends.
    async fn leave_list_of_mounts(&self) -> client::Result<()> {
        let identity = Arc::new(Identity::of_process());
        let service = Mount3::find(&self.url, &self.request.nfs, &identity).await?;
        service.umnt(&self.url.path).await
    }

    async fn mount(&self) -> Result<Mount, String> {
        let tracer = Arc::new(Tracer::default());
        tracer.set(self.trace);
        let identity = Arc::new(Identity::of_process());
        let file_system = FileSystem::mount(&self.url, &identity, &self.request.nfs, tracer)
            .await
            .map_err(|error| format!("{}: {error}", self.source))?;
        Mount::new(file_system, &self.source, &self.directory, &self.request)
            .await
            .map_err(|error| error.to_string())
    }
}

/// A URL, or what mount.nfs(8) takes.
fn parse_source(source: &OsString) -> Result<NfsUrl, String> {
    use std::os::unix::ffi::OsStrExt as _;
    let text = source.to_string_lossy();
    let parsed = if text.contains("://") {
        text.parse()
    } else {
        NfsUrl::from_mount_source(source.as_bytes())
    };
    parsed.map_err(|error| format!("{text}: {error}"))
}

/// Serves until the file system is unmounted, by a signal or by another process, and all written
/// data is at the server.
async fn serve(mount: &mut Mount, signals: &mut Signals) -> ExitCode {
    let (mut synced, mut refused, mut stays) = (Ok(()), None, false);
    let ended = tokio::select! {
        ended = mount.ended() => ended,
        signal = signals.next() => {
            info!(signal, "unmounting");
            let flushed = tokio::select! {
                flushed = mount.sync() => {
                    // Each loss is reported once: `finish` can succeed after this.
                    synced = flushed.map_err(|error| error.to_string());
                    synced.clone()
                }
                signal = signals.next() => {
                    let why = format!("received {signal} again");
                    // The unmount might wait for what the kernel writes.
                    if mount.abandon().await {
                        synced = Err(why.clone());
                    }
                    Err(why)
                }
            };
            if let Err(why) = flushed {
                warn!(why, "not all data has been written to the server");
            }
            match tokio::task::block_in_place(|| mount.unmount()) {
                Ok(Unmounted::Gone) => {}
                Ok(Unmounted::Detached) => {
                    warn!("programs still use the directory; their operations fail from now on");
                }
                Ok(Unmounted::Covered) => {
                    stays = true;
                    let dir = mount.dir().display();
                    warn!(%dir, "another mount covers this one, which stays below it, dead");
                }
                Ok(Unmounted::Parent) => {
                    stays = true;
                    let dir = mount.dir().display();
                    warn!(%dir, "file systems are mounted below this one, which stays, dead");
                }
                // The data is written to the server all the same.
                Err(error) => refused = Some(error),
            }
            Ok(())
        }
    };
    if let Err(error) = ended {
        warn!(%error, "the FUSE connection failed");
    }
    let finished = tokio::select! {
        finished = mount.finish() => finished.map_err(|error| error.to_string()),
        signal = signals.next() => outcome_without(mount, format!("received {signal}")).await,
        () = tokio::time::sleep(FINISH_WITHIN) => {
            outcome_without(mount, "the server does not answer".to_owned()).await
        }
    };
    match (synced.and(finished), refused) {
        (Ok(()), None) => {
            info!("{}", if stays { "ended" } else { "unmounted" });
            ExitCode::SUCCESS
        }
        (Ok(()), Some(error)) => failed(format!("not unmounted: {error}")),
        (Err(why), None) => failed(format!("written data is lost: {why}")),
        (Err(why), Some(error)) => {
            failed(format!("not unmounted: {error}; and written data is lost: {why}"))
        }
    }
}

/// The outcome of a mount whose end is not waited for because of `why`.
async fn outcome_without(mount: &Mount, why: String) -> Result<(), String> {
    let outcome = mount.outcome();
    mount.abandon().await;
    let outcome = outcome.ok_or_else(|| why.clone())?;
    warn!(why, "removals and renames may be unfinished: their files may be on the server as .nfs*");
    outcome.map_err(|error| error.to_string())
}

fn failed(sentence: String) -> ExitCode {
    exit::failed(&*Box::<dyn Error>::from(sentence))
}

/// Starts this program again, and waits for it to mount or to fail.
fn start_in_background() -> io::Result<ExitCode> {
    let mut arguments = arguments::of_process().into_iter();
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let mut child = command
        .args(arguments)
        .env(BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut said)?;
    if said == MOUNTED {
        return Ok(ExitCode::SUCCESS);
    }
    // It has reported the reason.
    let status = child.wait()?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILED).into())
}

/// Where the standard files of a process in the background lead.
struct Background {
    null: File,
    /// For messages; they go to the system's log if there is none.
    log: Option<File>,
}

impl Background {
    /// # Errors
    /// A sentence about the file that cannot be opened.
    fn new(log: Option<&Path>) -> Result<Self, String> {
        let open = |options: &OpenOptions, path: &Path| {
            options.open(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let null = open(OpenOptions::new().read(true).write(true), Path::new("/dev/null"))?;
        let log = log.map(|path| open(OpenOptions::new().append(true).create(true), path));
        let log = log.transpose()?;
        Ok(Self { null, log })
    }

    /// Leaves the caller's terminal, directory and files, and notifies it that the mount answers.
    fn detach(self) -> io::Result<()> {
        // The leader of a new session gets no signals of the terminal.
        rustix::process::setsid()?;
        env::set_current_dir("/")?;
        rustix::stdio::dup2_stderr(self.log.as_ref().unwrap_or(&self.null))?;
        if self.log.is_none() {
            log::system::open()?;
        }
        print(MOUNTED)?;
        Ok(rustix::stdio::dup2_stdout(&self.null)?)
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    is_hangup_ignored: bool,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        // Servers print counters at SIGUSR1. Sent to all processes of the program, it must not end
        // a mount with unsent data. Once caught, it is never again handled by default.
        drop(signal(SignalKind::user_defined1())?);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            is_hangup_ignored: false,
        })
    }

    /// In the background there is no terminal that could hang up, and servers reload at SIGHUP.
    fn ignore_hangup(&mut self) {
        self.is_hangup_ignored = true;
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv(), if !self.is_hangup_ignored => "SIGHUP",
        }
    }
}

/// Set in the process that serves in the background.
const BACKGROUND: &str = "SPILLWAY_MOUNT_IN_BACKGROUND";

/// Its message when the mount answers.
const MOUNTED: &str = "mounted\n";

/// How long a mount that a signal ended may go on until it can be undone. The kernel and fusermount
/// need less; what takes longer waits for the server, and has mounted nothing or unmounts on drop.
const MOUNTED_WITHIN: Duration = Duration::from_secs(2);

/// How long the server may take to reply to outstanding WRITEs after the unmount.
const FINISH_WITHIN: Duration = Duration::from_secs(60);
/// To leave the server's list of mounts. umount(8) does not wait for it.
const LEFT_WITHIN: Duration = Duration::from_secs(2);
