//! Metrics over HTTP: `GET /metrics`, and nothing else (RFC 9112, as far as a scraper needs it).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use server::report::Monitor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tracing::{debug, warn};

/// Connections that are served at a time. One more ends the oldest whose request is not whole, or
/// else the oldest: peers that are silent or do not read their answers keep no scraper out.
const CONNECTIONS_MAX: usize = 16;
/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// How long a peer may take to send its request, and again to take the answer.
const PEER_TIME_MAX: Duration = Duration::from_secs(5);
/// The pause after a failed accept, mostly for want of descriptors.
const RETRY: Duration = Duration::from_millis(100);
/// The text format of Prometheus.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves metrics until the runtime ends.
pub(super) async fn serve(monitor: Monitor, listener: StdListener) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "cannot use the address of the metrics"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Oldest first.
    let mut open: VecDeque<Open> = VecDeque::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept a connection to the metrics");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        open.retain(|connection| !connection.end.is_closed());
        if places.available_permits() == 0 {
            let lacks_request = |connection: &Open| !connection.has_request.load(Ordering::Relaxed);
            open.remove(open.iter().position(lacks_request).unwrap_or(0));
        }
        // Of a connection that has just been ended, once its task has run.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (end, mut ended) = oneshot::channel();
        let has_request = Arc::new(AtomicBool::new(false));
        open.push_back(Open { end, has_request: Arc::clone(&has_request) });
        let monitor = monitor.clone();
        tokio::spawn(async move {
            if let Err(error) = converse(&monitor, stream, &has_request, &mut ended).await {
                debug!(client = %peer, %error, "connection to the metrics closed");
            }
            // Before `ended`: no place is taken by a connection that is not in the list.
            drop(place);
        });
    }
}

/// An open connection, which ends with its sender.
struct Open {
    end: oneshot::Sender<Infallible>,
    /// Its request is whole.
    has_request: Arc<AtomicBool>,
}

/// Takes one request and answers it, unless `ended` ends that.
async fn converse(
    monitor: &Monitor,
    mut stream: TcpStream,
    has_request: &AtomicBool,
    ended: &mut oneshot::Receiver<Infallible>,
) -> io::Result<()> {
    let head = step(head(&mut stream), ended).await?;
    has_request.store(true, Ordering::Relaxed);
    let (status, body) = answer(&head, || monitor.metrics());
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    let reply = [head.as_bytes(), body.as_bytes()].concat();
    step(stream.write_all(&reply), ended).await?;
    // So that the answer is not lost by a reset, if the peer has sent more than was read.
    step(stream.shutdown(), ended).await
}

/// Waits for a peer's part in a connection, at most [`PEER_TIME_MAX`] and until `ended`.
async fn step<T>(
    done: impl Future<Output = io::Result<T>>,
    ended: &mut oneshot::Receiver<Infallible>,
) -> io::Result<T> {
    tokio::select! {
        // A request that has arrived meanwhile is answered, if the peer takes the answer at once.
        biased;
        done = timeout(PEER_TIME_MAX, done) => done?,
        _ = ended => Err(io::Error::other("its place is needed")),
    }
}

/// The bytes of a request up to its empty line, or as many as are taken.
async fn head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    while head.len() < HEAD_BYTES_MAX && !ends(&head) {
        let room = HEAD_BYTES_MAX - head.len();
        if (&mut *stream).take(room as u64).read_buf(&mut head).await? == 0 {
            break;
        }
    }
    Ok(head)
}

fn ends(head: &[u8]) -> bool {
    head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n")
}

/// Status and body of the answer to a request.
fn answer(head: &[u8], metrics: impl FnOnce() -> String) -> (&'static str, String) {
    if !ends(head) {
        let status = if head.len() >= HEAD_BYTES_MAX {
            "431 Request Header Fields Too Large"
        } else {
            "400 Bad Request"
        };
        return (status, String::new());
    }
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let (method, target, version) = (words.next(), words.next(), words.next());
    let path = target.map(|target| target.split('?').next().unwrap_or_default());
    match (method, path, version) {
        (Some("GET"), Some("/metrics"), Some("HTTP/1.0" | "HTTP/1.1")) => ("200 OK", metrics()),
        (Some("GET"), Some(_), Some("HTTP/1.0" | "HTTP/1.1")) => {
            ("404 Not Found", "metrics are at /metrics\n".to_owned())
        }
        (Some(_), Some(_), Some("HTTP/1.0" | "HTTP/1.1")) => {
            ("405 Method Not Allowed", String::new())
        }
        _ => ("400 Bad Request", String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_of_the_metrics_is_answered_with_them() {
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; HEAD_BYTES_MAX]].concat();
        for (head, status) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..], "200 OK"),
            (b"GET /metrics?a=b HTTP/1.0\n\n", "200 OK"),
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"GET /metrics\r\n\r\n", "400 Bad Request"),
            (b"\x80\x00\x00\x28 binary", "400 Bad Request"),
            (b"", "400 Bad Request"),
            (&long[..HEAD_BYTES_MAX], "431 Request Header Fields Too Large"),
        ] {
            let (found, body) = answer(head, || "m".to_owned());
            assert_eq!((found, body == "m"), (status, status == "200 OK"));
        }
    }
}
