//! The log on stderr or in the system's log, with a bound on the lines that a peer can cause.
//!
//! Every line at `info` or above that does not come from the program itself, which reports to its
//! operator, passes [`Limited`]: no place in the libraries has to ask, and none can forget to. A
//! place that can be reached by a peer names it in a field `client` or `server`, or the export in
//! `export`, so that one peer's lines do not use up those about another.

mod format;
mod json;
pub(crate) mod levels;
mod limit;
pub(crate) mod system;

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

use format::Lines;
pub(crate) use format::LogFormat;
use limit::{Limit, Suppressed};
pub(crate) use system::{ERROR, WARNING};

/// The time from a suppressed line to the report of it.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// The fields that name a line's subject.
const SUBJECT_FIELDS: [&str; 3] = ["client", "server", "export"];
/// Address bits that one host of the Internet can choose freely are left out (RFC 4291 §2.5.4).
const IPV6_NETWORK_BITS: u32 = 64;

/// The lines written by the process, which shares one stderr.
static LIMIT: LazyLock<Mutex<Limit<Identifier>>> = LazyLock::new(|| Mutex::new(Limit::new()));
static SUPPRESSED: AtomicU64 = AtomicU64::new(0);
static REPORT_IS_COMING: AtomicBool = AtomicBool::new(false);

/// Sends events to stderr: those that `RUST_LOG` selects if it is set, else by the count of `-v`.
///
/// # Errors
/// A sentence about RUST_LOG.
pub(crate) fn start(verbose: u8, form: LogFormat) -> Result<(), String> {
    let has_colors = form == LogFormat::Text && stderr_has_colors();
    start_as(verbose, Lines::for_stderr(form, has_colors), has_colors)
}

/// As [`start`], for a process that will exchange its stderr for a file or for the system's log.
///
/// # Errors
/// A sentence about RUST_LOG.
pub(crate) fn start_in_background(verbose: u8) -> Result<(), String> {
    start_as(verbose, Lines::for_file(), false)
}

fn start_as(verbose: u8, form: Lines, has_colors: bool) -> Result<(), String> {
    let levels = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(text) if !text.is_empty() => {
            levels::start(&text).map_err(|error| format!("{}: {error}", EnvFilter::DEFAULT_ENV))?
        }
        _ => levels::start(match verbose {
            0 => "info",
            1 => "debug",
            _ => "trace",
        })?,
    };
    let lines = tracing_subscriber::fmt::layer()
        .event_format(form)
        .with_writer(system::Output)
        .with_ansi(has_colors);
    tracing_subscriber::registry().with(levels).with(lines).with(Limited).init();
    Ok(())
}

/// Whether escape sequences may go to stderr: only to a terminal, and not where `NO_COLOR` is set
/// to anything (<https://no-color.org>).
pub(crate) fn stderr_has_colors() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}

/// Lines suppressed since the start.
pub(crate) fn suppressed_lines() -> u64 {
    SUPPRESSED.load(Ordering::Relaxed)
}

/// Logs how many lines were suppressed since the last report: a line for each place in the code.
pub(crate) fn report_suppressed() {
    // The lock is not held while the lines are written.
    let suppressed = LIMIT.lock().unwrap_or_else(PoisonError::into_inner).take_suppressed();
    for Suppressed { message, count, last } in suppressed {
        warn!(message_of_all = message, last, "{count} similar messages suppressed");
    }
}

/// Suppresses the lines that are too many.
pub(crate) struct Limited;

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || is_of_the_program(metadata.target()) {
            return true;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let (site, now) = (metadata.callsite(), Instant::now());
        let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = limit.admits(site, &line.message, &line.subject, now);
        drop(limit);
        if !admitted {
            SUPPRESSED.fetch_add(1, Ordering::Relaxed);
            report_later();
        }
        admitted
    }
}

/// Whether lines of a target are about what the operator did, not about what a peer did.
fn is_of_the_program(target: &str) -> bool {
    target.split("::").next() == Some(env!("CARGO_CRATE_NAME"))
}

/// Starts a thread that reports suppressed lines after a while, unless one is running. If it cannot
/// start, the next report includes them.
fn report_later() {
    if REPORT_IS_COMING.swap(true, Ordering::Relaxed) {
        return;
    }
    let report = || {
        thread::sleep(REPORT_AFTER);
        REPORT_IS_COMING.store(false, Ordering::Relaxed);
        report_suppressed();
    };
    if thread::Builder::new().name("spillway-log".into()).spawn(report).is_err() {
        REPORT_IS_COMING.store(false, Ordering::Relaxed);
    }
}

/// The fields of an event that the limit needs.
#[derive(Default)]
struct Line {
    message: String,
    subject: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else if SUBJECT_FIELDS.contains(&field.name()) {
            self.subject = host_of(&format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if SUBJECT_FIELDS.contains(&field.name()) {
            self.subject = host_of(value);
        }
    }
}

/// A subject that is an address without what its host can change at will: the port, and the end of
/// an IPv6 address. Other subjects stay as they are.
fn host_of(subject: &str) -> String {
    let address = subject.parse::<SocketAddr>().map(|address| address.ip());
    match address.or_else(|_| subject.parse()).map(|address: IpAddr| address.to_canonical()) {
        Ok(IpAddr::V4(address)) => address.to_string(),
        Ok(IpAddr::V6(address)) => {
            let network = u128::from(address) & (u128::MAX << IPV6_NETWORK_BITS);
            format!("{}/{IPV6_NETWORK_BITS}", Ipv6Addr::from(network))
        }
        Err(_) => subject.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_subject_whatever_its_port() {
        for (subject, host) in [
            ("192.0.2.1:700", "192.0.2.1"),
            ("192.0.2.1", "192.0.2.1"),
            ("[::ffff:192.0.2.1]:700", "192.0.2.1"),
            ("[2001:db8::1:2:3:4]:700", "2001:db8::/64"),
            ("2001:db8::5", "2001:db8::/64"),
            ("/srv/data", "/srv/data"),
        ] {
            assert_eq!(host_of(subject), host);
        }
    }

    #[test]
    fn only_the_program_itself_speaks_without_a_limit() {
        for (target, own) in [
            ("spillway", true),
            ("spillway::serve", true),
            ("spillway_server::mount3", false),
            ("spillway_io::write_behind", false),
        ] {
            assert_eq!(is_of_the_program(target), own, "{target}");
        }
    }
}
