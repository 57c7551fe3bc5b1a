//! The server's end of the control socket. It has a thread of its own, so that no local peer and no
//! request that is slow can hold up a call, nor the signals of the main thread.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;
use serde::Serialize;
use serde_json::Value;
use server::report::{DroppedClient, Monitor, TraceFeed, TraceRequest, path_text};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime;
use tokio::sync::{Semaphore, TryAcquireError, mpsc, oneshot};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::http;
use super::{Command, Outcome, REQUEST_BYTES_MAX, Reply, Request, SOCKET, TraceMessage, VERSION};
use crate::log;

/// Requests that are served at a time; others are refused at once, with a sentence.
const CONNECTIONS_MAX: usize = 16;
/// How long a peer may take to send its request, and again to take its reply.
const PEER_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a request may wait for a change and those before it, which resolve names and open
/// directories.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(60);
/// Changes that wait for the main thread.
const CHANGES_MAX: usize = 4;
/// Lookups of files to follow and drops of clients at a time, also those whose commands have ended:
/// they last for as long as a disk hangs.
const LOOKUPS_MAX: usize = 16;
/// How often a connection whose request takes time is checked for the end of its peer.
const PEER_CHECK: Duration = Duration::from_millis(500);
/// The pause after a failed accept, mostly for want of descriptors.
const RETRY: Duration = Duration::from_millis(100);

/// A request for the main thread, which owns the configuration.
pub(crate) struct Change {
    pub(crate) command: ChangeCommand,
    /// Takes the result, or why there is none.
    pub(crate) reply: oneshot::Sender<Result<Value, String>>,
}

/// The changes of the configuration that a request can make.
pub(crate) enum ChangeCommand {
    Set { export: Option<String>, settings: Vec<String>, save: bool },
    Reload,
}

/// The control socket of a server; it ends when this is dropped.
pub(crate) struct Control {
    /// Changes for the main thread to make. The channel stays open.
    pub(crate) changes: mpsc::Receiver<Change>,
    socket: Option<PathBuf>,
    /// The thread waits for this to be dropped.
    _ends: oneshot::Sender<()>,
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            // The next server of this state directory removes what is left.
            let _ = fs::remove_file(socket);
        }
    }
}

/// State that all requests share.
struct Service {
    monitor: Monitor,
    config: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    changes: mpsc::Sender<Change>,
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

/// Listens in the state directory, which this process has locked, and serves metrics at another
/// address if there is one. Without the socket, of which a warning reports the cause, the server
/// serves all the same.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn start(
    state_dir: &Path,
    monitor: Monitor,
    config: Option<PathBuf>,
    metrics: Option<TcpListener>,
) -> io::Result<Control> {
    let path = state_dir.join(SOCKET);
    let listener = bind(&path).inspect_err(|error| {
        warn!(%error, "no control socket: `spillway status`, `set`, `reload` and others cannot reach this server");
    });
    let (changes, received) = mpsc::channel(CHANGES_MAX);
    let (ends, ended) = oneshot::channel();
    let socket = listener.is_ok().then_some(path);
    let service = Arc::new(Service {
        monitor,
        config,
        metrics: metrics.as_ref().and_then(|metrics| metrics.local_addr().ok()),
        changes,
        connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
    });
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("spillway-ctl".to_owned()).spawn(move || {
        runtime.block_on(async move {
            if let Some(metrics) = metrics {
                tokio::spawn(http::serve(service.monitor.clone(), metrics));
            }
            if let Ok(listener) = listener {
                tokio::spawn(accept(Arc::clone(&service), listener));
            }
            // An error is the sender's drop, which is what is waited for.
            let _dropped = ended.await;
            drop(service);
        });
    })?;
    Ok(Control { changes: received, socket, _ends: ends })
}

fn bind(path: &Path) -> io::Result<StdListener> {
    // An earlier server of this directory may have left a socket. The lock excludes one that runs.
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = StdListener::bind(path)?;
    // Until here others may connect: each connection is checked.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn accept(service: Arc<Service>, listener: StdListener) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "cannot use the control socket"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => serve(&service, stream),
            Err(error) => {
                warn!(%error, "cannot accept a control connection");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Begins to serve a connection of root or of the server's user. Any other is closed, and one too
/// many is refused.
fn serve(service: &Arc<Service>, stream: UnixStream) {
    let peer = match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 || peer.uid() == geteuid().as_raw() => peer,
        Ok(peer) => return info!(uid = peer.uid(), "control connection refused: another user"),
        Err(error) => return warn!(%error, "control connection refused: no credentials"),
    };
    let Ok(place) = Arc::clone(&service.connections).try_acquire_owned() else {
        info!(uid = peer.uid(), "control connection refused: too many");
        return refuse(stream);
    };
    let service = Arc::clone(service);
    tokio::spawn(async move {
        let (uid, pid) = (peer.uid(), peer.pid().unwrap_or_default());
        if let Err(error) = converse(&service, stream, (uid, pid)).await {
            debug!(uid, pid, %error, "control connection closed");
        }
        drop(place);
    });
}

/// Answers a connection before its request. Nothing waits: a new socket has room for the line.
fn refuse(stream: UnixStream) {
    let why = format!("the server serves {CONNECTIONS_MAX} commands at a time already: try again");
    let refused = reply(Outcome::Error(why)).and_then(|line| stream.into_std()?.write_all(&line));
    if let Err(error) = refused {
        debug!(%error, "control connection closed");
    }
}

/// Takes one request and answers it. If the peer closes its end, the work goes on without it.
async fn converse(service: &Arc<Service>, stream: UnixStream, peer: (u32, i32)) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES_MAX));
    timeout(PEER_TIME_MAX, reader.read_line(&mut line)).await??;
    let outcome = match parse(&line) {
        Ok(Command::Trace(request)) => {
            let followed = tokio::select! {
                followed = follow(service, request, peer) => followed,
                () = closed(&writer) => return Ok(()),
            };
            match followed {
                Ok(feed) => return trace(&feed, reader.into_inner().into_inner(), writer).await,
                Err(why) => Err(why),
            }
        }
        Ok(command) => {
            let service = Arc::clone(service);
            let answering = tokio::spawn(async move { answer(&service, command, peer).await });
            tokio::select! {
                answered = answering => answered.unwrap_or_else(|error| Err(error.to_string())),
                () = closed(&writer) => return Ok(()),
            }
        }
        Err(why) => Err(why),
    };
    let outcome = outcome.map_or_else(Outcome::Error, Outcome::Result);
    timeout(PEER_TIME_MAX, writer.write_all(&reply(outcome)?)).await?
}

/// Waits until the peer has closed its end. One that has closed the direction of its request alone
/// takes the reply still.
async fn closed(stream: &OwnedWriteHalf) {
    loop {
        tokio::time::sleep(PEER_CHECK).await;
        let mut end = [PollFd::new(stream.as_ref(), PollFlags::empty())];
        let polled = poll(&mut end, Some(&Timespec::default()));
        if polled.is_ok() && end[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            return;
        }
    }
}

fn reply(outcome: Outcome) -> io::Result<Vec<u8>> {
    let mut reply = serde_json::to_vec(&Reply { version: VERSION, outcome })?;
    reply.push(b'\n');
    Ok(reply)
}

async fn follow(
    service: &Service,
    request: TraceRequest,
    (uid, pid): (u32, i32),
) -> Result<TraceFeed, String> {
    let (monitor, events) = (service.monitor.clone(), request.events.join(","));
    // A file named by its path is looked up on its disk.
    let place = request.file.as_ref().map(|_| Arc::clone(&service.lookups).try_acquire_owned());
    let place = place.transpose().map_err(disks_hang)?;
    let feed = tokio::task::spawn_blocking(move || {
        let feed = monitor.follow(&request);
        drop(place);
        feed
    });
    let feed = feed.await.map_err(|error| error.to_string())??;
    info!(uid, pid, "trace events followed: {}", events.escape_debug());
    Ok(feed)
}

fn disks_hang(_: TryAcquireError) -> String {
    format!("{LOOKUPS_MAX} lookups of files and drops of clients wait for disks already")
}

/// Sends events until the peer closes its end. One that takes none makes the feed lose events.
async fn trace(
    feed: &TraceFeed,
    mut reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
) -> io::Result<()> {
    timeout(PEER_TIME_MAX, writer.write_all(&reply(Outcome::Result(Value::Null))?)).await??;
    let send = async {
        loop {
            let (events, lost) = feed.next().await;
            let mut lines = Vec::new();
            let events = events.into_iter().map(TraceMessage::Event);
            let lost = (lost > 0).then_some(TraceMessage::Lost { lost });
            for message in events.chain(lost) {
                serde_json::to_writer(&mut lines, &message)?;
                lines.push(b'\n');
            }
            writer.write_all(&lines).await?;
        }
    };
    tokio::select! {
        ended = send => ended,
        closed = reader.read_u8() => match closed {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            closed => closed.map(drop),
        }
    }
}

fn parse(line: &str) -> Result<Command, String> {
    let is_whole = line.ends_with('\n');
    if !is_whole && line.len() as u64 >= REQUEST_BYTES_MAX {
        return Err(format!("the request is longer than {REQUEST_BYTES_MAX} bytes"));
    }
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let malformed = |error: serde_json::Error| format!("the request cannot be read: {error}");
    let Versioned { version } = serde_json::from_str(line).map_err(malformed)?;
    if version != VERSION {
        return Err(format!("this server supports requests of version {VERSION}, not {version}"));
    }
    let Request { command, .. } = serde_json::from_str(line).map_err(malformed)?;
    Ok(command)
}

async fn answer(
    service: &Service,
    command: Command,
    (uid, pid): (u32, i32),
) -> Result<Value, String> {
    let monitor = &service.monitor;
    match command {
        Command::Status => {
            let mut status = monitor.status();
            status.config = service.config.as_deref().map(path_text);
            status.metrics = service.metrics;
            Ok(value(&status))
        }
        Command::Sample { time_calls_seconds } => {
            if time_calls_seconds > 0 {
                monitor.time_calls_for(time_calls_seconds);
            }
            Ok(value(&monitor.sample()))
        }
        Command::Log { levels } => {
            let filter = log::levels::set(&levels)?;
            if !levels.is_empty() {
                info!(uid, pid, filter, "log levels set");
            }
            Ok(filter.into())
        }
        Command::Requests => Ok(value(&monitor.requests())),
        #[cfg(debug_assertions)]
        Command::Panic => panic!("as requested"),
        Command::Trace(_) => Err("events are followed on a connection of their own".to_owned()),
        Command::Set { export, settings, save } => {
            let (of, keys) = (export.as_deref().unwrap_or_default(), settings.join(" "));
            info!(uid, pid, export = of, save, "set {}", keys.escape_debug());
            change(service, ChangeCommand::Set { export, settings, save }).await
        }
        Command::Reload => {
            info!(uid, pid, "reload requested");
            change(service, ChangeCommand::Reload).await
        }
        Command::DropClient { address } => {
            let _place = service.lookups.try_acquire().map_err(disks_hang)?;
            let dropped = monitor.drop_client(address).await;
            let DroppedClient { connections, nfs4_clients, calls_in_progress } = dropped;
            info!(
                uid, pid, client = %address, connections, nfs4_clients, calls_in_progress,
                "client dropped"
            );
            Ok(value(&dropped))
        }
    }
}

fn value(result: &impl Serialize) -> Value {
    serde_json::to_value(result).expect("the types of reports have string keys and no paths")
}

/// Has the main thread change something.
async fn change(service: &Service, command: ChangeCommand) -> Result<Value, String> {
    let (reply, replied) = oneshot::channel();
    let sent = service.changes.try_send(Change { command, reply });
    sent.map_err(|_| "the server is busy with other changes".to_owned())?;
    match timeout(CHANGE_TIME_MAX, replied).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err("the server is stopping".to_owned()),
        Err(_) => {
            let seconds = CHANGE_TIME_MAX.as_secs();
            Err(format!("the change takes longer than {seconds} seconds and continues"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked() {
        let ok = "{\"version\":1,\"command\":\"status\"}\n";
        assert!(matches!(parse(ok), Ok(Command::Status)));
        let set =
            "{\"version\":1,\"command\":\"set\",\"export\":\"/a\",\"settings\":[\"sync=true\"]}\n";
        assert!(matches!(parse(set), Ok(Command::Set { save: false, .. })));
        for (line, expected) in [
            ("", "cannot be read"),
            ("{}\n", "missing field `version`"),
            ("{\"version\":2,\"command\":\"status\"}\n", "version 1, not 2"),
            ("{\"version\":1,\"command\":\"format_disk\"}\n", "unknown variant"),
            ("{\"version\":1,\"command\":\"drop_client\",\"address\":\"x\"}\n", "IP address"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        let long = "x".repeat(usize::try_from(REQUEST_BYTES_MAX).unwrap());
        assert!(parse(&long).unwrap_err().contains("longer than 65536 bytes"));
    }
}
