//! The last calls of a server as text, and the file that has them after a panic.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use jiff::{Timestamp, tz::TimeZone};
use server::report::{Monitor, RequestRecord};

/// The file in the state directory.
const FILE: &str = "requests-at-panic.txt";
/// Panics within this time after one that was recorded are not recorded.
const PAUSE: Duration = Duration::from_secs(60);
/// How long a panic waits for the file: the process may end with it.
const WRITE_TIME_MAX: Duration = Duration::from_secs(2);

/// A panic: what it said, the last calls, and where the end of the work is awaited.
struct Panic(String, Vec<RequestRecord>, Sender<()>);

/// A line for each call.
pub(crate) fn text(calls: &[RequestRecord]) -> String {
    calls.iter().map(|call| format!("{} {call}\n", time(call.received_us))).collect()
}

fn time(microseconds: u64) -> String {
    let time = i64::try_from(microseconds).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
    let time = time.unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC);
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// From now on, a panic writes the last calls into the state directory.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn write_at_panic(state_dir: &Path, monitor: Monitor) -> io::Result<()> {
    let file = state_dir.join(FILE);
    let (sender, panics) = sync_channel(1);
    // A thread that acts as a client's user may not write there.
    thread::Builder::new()
        .name("spillway-panic".to_owned())
        .spawn(move || write(&file, &panics))?;
    let (before, last) = (panic::take_hook(), Mutex::new(None));
    panic::set_hook(Box::new(move |panic| {
        before(panic);
        report(&panic.to_string(), &monitor, &last, &sender);
    }));
    Ok(())
}

fn report(
    panic: &str,
    monitor: &Monitor,
    last: &Mutex<Option<Instant>>,
    sender: &SyncSender<Panic>,
) {
    let Ok(mut last) = last.try_lock() else { return };
    if last.is_some_and(|last| last.elapsed() < PAUSE) {
        return;
    }
    *last = Some(Instant::now());
    let (done, written) = channel();
    if sender.try_send(Panic(panic.to_owned(), monitor.requests(), done)).is_ok() {
        // Without an answer there is nothing more to be done.
        let _ = written.recv_timeout(WRITE_TIME_MAX);
    }
}

fn write(path: &Path, panics: &Receiver<Panic>) {
    for Panic(panic, calls, _done) in panics {
        let written = create(path)
            .and_then(|mut file| file.write_all(format!("{panic}\n{}", text(&calls)).as_bytes()));
        // Not through the log: its locks may be held by the thread that panics.
        let sentence = match written {
            Ok(()) => format!("the last {} calls are in {}\n", calls.len(), path.display()),
            Err(error) => format!("the last calls are lost: {}: {error}\n", path.display()),
        };
        let _ = io::stderr().lock().write_all(sentence.as_bytes());
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}
