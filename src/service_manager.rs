//! The service manager: its sockets, its watchdog, and the notifications that it waits for.
//!
//! The protocols are systemd's: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tracing::warn;

/// The sockets that the service manager has bound for this process, in its order; none without one.
/// To be called before the first thread, because it takes the variables that name them from the
/// environment.
///
/// # Errors
/// One of them is not a TCP socket.
pub(crate) fn sockets() -> io::Result<Vec<TcpListener>> {
    let mut inherited = ListenFd::from_env();
    let count = inherited.len();
    let mut take = |index| match inherited.take_tcp_listener(index) {
        Ok(socket) => socket.map(Ok),
        Err(error) => {
            let number = index + FIRST_SOCKET;
            let why =
                format!("socket {number} of the service manager is not a TCP socket: {error}");
            Some(Err(io::Error::new(error.kind(), why)))
        }
    };
    (0..count).filter_map(&mut take).collect()
}

/// How often the service manager has to hear from a server that lives: twice in the time after
/// which it takes the server for dead. `None` if it does not watch.
pub(crate) fn watchdog_period() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|timeout| timeout / 2)
}

/// Notifies the service manager, if there is one. Serving continues without it.
pub(crate) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot notify the service manager");
    }
}

/// The descriptor of the first inherited socket (`SD_LISTEN_FDS_START`).
const FIRST_SOCKET: usize = 3;
