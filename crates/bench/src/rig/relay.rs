//! A slow network in this process: a relay between clients and a server, for TCP.
//!
//! It needs no privilege and no kernel module, and works in front of servers elsewhere. It has the
//! delay and the rate of a real network and no loss, and it accepts a connection before the server
//! does. netem ([`NetworkLink`](super::NetworkLink)) is closer to a real network.

mod pacer;
mod pipe;

use std::collections::HashMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::pacer::Pacer;
use self::pipe::Pipe;
use super::limits::NetworkLimits;
use crate::{Error, Result};

/// How long the server may take to accept.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Pause after cannot accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A relay to one address. Ends with all its connections when it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Relay {
    /// Connections at once; others wait to be accepted. With the bound of a [`Pipe`] it bounds the
    /// memory.
    pub const CONNECTIONS_MAX: usize = 256;

    /// Listens on a free port of loopback and connects each client to `server`. Every byte arrives
    /// later by the delay, in each direction. The rate is that of all connections together, in each
    /// direction.
    ///
    /// # Errors
    /// [`Error::Machine`]: no port or thread is available.
    pub fn start(server: SocketAddr, limits: &NetworkLimits) -> Result<Self> {
        let what = || Error::machine(format!("a relay to {server}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(what())?;
        let address = listener.local_addr().map_err(what())?;
        let rate = limits.rate.map(|rate| rate.0);
        let shared = Arc::new(Shared {
            server,
            delay: limits.delay.map_or(Duration::ZERO, |delay| delay.0),
            to_server: Pacer::new(rate),
            to_client: Pacer::new(rate),
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
            fewer: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || accepting.accept(&listener))
            .map_err(what())?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn end(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for ends in self.shared.lock().live.values() {
            ends.break_off();
        }
        self.shared.fewer.notify_all();
        // It checks for the end after each connection. If connecting fails it has ended.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    delay: Duration,
    to_server: Pacer,
    to_client: Pacer,
    stopping: AtomicBool,
    connections: Mutex<Connections>,
    /// A connection has ended, or all are to.
    fewer: Condvar,
}

#[derive(Debug, Default)]
struct Connections {
    live: HashMap<u64, Arc<Ends>>,
    /// How many there were.
    count: u64,
}

/// The two ends of a connection, and what is between them.
#[derive(Debug)]
struct Ends {
    client: TcpStream,
    server: TcpStream,
    to_server: Pipe,
    to_client: Pipe,
}

impl Ends {
    /// Ends all waiting for them.
    fn break_off(&self) {
        self.to_server.close();
        self.to_client.close();
        // Both fail only if the peer has done it already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Accepts until the relay stops, and then waits for the end of all connections.
    fn accept(&self, listener: &TcpListener) {
        thread::scope(|scope| {
            while !self.is_stopping() {
                match listener.accept() {
                    Ok(_) if self.is_stopping() => {}
                    Ok((client, _)) => {
                        scope.spawn(|| self.connect(client));
                        let full = |connections: &mut Connections| {
                            connections.live.len() >= Relay::CONNECTIONS_MAX && !self.is_stopping()
                        };
                        drop(self.fewer.wait_while(self.lock(), full));
                    }
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(_) => thread::sleep(ACCEPT_PAUSE),
                }
            }
        });
    }

    fn connect(&self, client: TcpStream) {
        let connected = TcpStream::connect_timeout(&self.server, CONNECT_MAX).and_then(|server| {
            server.set_nodelay(true)?;
            client.set_nodelay(true)?;
            Ok(server)
        });
        // The client sees its connection end.
        let Ok(server) = connected else { return };
        let (to_server, to_client) = (Pipe::default(), Pipe::default());
        let ends = Arc::new(Ends { client, server, to_server, to_client });
        let number = {
            let mut connections = self.lock();
            if self.is_stopping() {
                return;
            }
            connections.count += 1;
            let number = connections.count;
            connections.live.insert(number, Arc::clone(&ends));
            number
        };
        self.relay(&ends);
        self.lock().live.remove(&number);
        self.fewer.notify_all();
    }

    /// Carries bytes until both directions have ended.
    fn relay(&self, ends: &Ends) {
        thread::scope(|scope| {
            scope.spawn(|| self.fill(&ends.to_server, &ends.client, &self.to_server, ends));
            scope.spawn(|| self.drain(&ends.to_server, &ends.server, ends));
            scope.spawn(|| self.fill(&ends.to_client, &ends.server, &self.to_client, ends));
            self.drain(&ends.to_client, &ends.client, ends);
        });
    }

    /// Reads `from` until its end, as fast as the rate allows.
    fn fill(&self, pipe: &Pipe, mut from: &TcpStream, pacer: &Pacer, ends: &Ends) {
        let mut buffer = vec![0; pacer.chunk_bytes()];
        loop {
            let len = match from.read(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let departure = pacer.departure(len);
            // No bytes are the end of the stream, which takes its time as well.
            let taken = pipe.push(departure + self.delay, buffer[..len].to_vec());
            if !taken {
                break;
            }
            if len == 0 {
                return;
            }
            if let Some(pause_end) = Pacer::next_read(departure)
                && !pipe.pause_until(pause_end)
            {
                break;
            }
        }
        ends.break_off();
    }

    /// Writes to `to` what is due, until the end of the stream.
    fn drain(&self, pipe: &Pipe, mut to: &TcpStream, ends: &Ends) {
        while let Some(data) = pipe.pop() {
            let written = match data.len() {
                0 => return drop(to.shutdown(Shutdown::Write)),
                _ => to.write_all(&data),
            };
            if written.is_err() {
                break;
            }
        }
        ends.break_off();
    }
}

#[cfg(test)]
mod tests;
