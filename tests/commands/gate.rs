//! A relay in front of a server, which stops when a set number of bytes has passed: a transfer
//! through it is in the middle, and cannot end, until the gate is opened.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::fixture::Server;

/// A relay on a port of its own.
pub(crate) struct Gate {
    port: u16,
    passage: Arc<Passage>,
    accepting: Option<JoinHandle<()>>,
}

/// The bytes that may still pass.
struct Passage {
    /// Bytes, of all connections and both directions.
    left: Mutex<u64>,
    opened: Condvar,
    is_removed: AtomicBool,
}

impl Gate {
    /// A relay to `server` that lets so many bytes pass.
    pub(crate) fn new(server: &Server, bytes: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let passage = Passage {
            left: Mutex::new(bytes),
            opened: Condvar::new(),
            is_removed: AtomicBool::new(false),
        };
        let passage = Arc::new(passage);
        let (accepted, target) = (Arc::clone(&passage), server.port());
        let accepting = thread::spawn(move || {
            for client in listener.incoming() {
                if accepted.is_removed.load(Ordering::Acquire) {
                    return;
                }
                // A server that was killed refuses; the client learns it by the closed connection.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) {
                    relay(&accepted, &client.unwrap(), &server);
                }
            }
        });
        Self { port, passage, accepting: Some(accepting) }
    }

    /// The URL of a path, which needs no escapes, by way of the relay.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("nfs://127.0.0.1:{}/e/{path}", self.port)
    }

    /// Lets everything pass from now on.
    pub(crate) fn open(&self) {
        *self.passage.left.lock().unwrap() = u64::MAX;
        self.passage.opened.notify_all();
    }

    /// Removes the relay's port, so that connections are refused.
    pub(crate) fn remove(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        self.passage.is_removed.store(true, Ordering::Release);
        // Wakes the thread, which closes the port.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        accepting.join().unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.remove();
        self.open();
    }
}

/// Copies both ways on threads of their own. The end of one is the end of both.
fn relay(passage: &Arc<Passage>, client: &TcpStream, server: &TcpStream) {
    for (from, to) in [(client, server), (server, client)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let passage = Arc::clone(passage);
        thread::spawn(move || {
            let mut buffer = vec![0; 256 << 10];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if passage.write(&mut to, &buffer[..count]).is_err() {
                    break;
                }
            }
            // One that is closed already is as good.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

impl Passage {
    /// Writes `data` as far as it may pass, and the rest when it may.
    fn write(&self, to: &mut TcpStream, mut data: &[u8]) -> std::io::Result<()> {
        while !data.is_empty() {
            let count = self.take(data.len());
            to.write_all(&data[..count])?;
            data = &data[count..];
        }
        Ok(())
    }

    /// Waits until something may pass; how many of `count` bytes.
    fn take(&self, count: usize) -> usize {
        let left = self.left.lock().unwrap();
        let mut left = self.opened.wait_while(left, |left| *left == 0).unwrap();
        let count = usize::try_from(*left).map_or(count, |left| left.min(count));
        if *left != u64::MAX {
            *left -= count as u64;
        }
        count
    }
}
