//! What the kernel takes to send and to receive the replies to READs on one loopback connection:
//! without RPC, from a file in the page cache, thrown away without being copied. A measure for what
//! a load costs, which may be less where it receives more at a time.
//!
//!     cargo run --release -p spillway-bench --example tcp_floor -- BYTES COUNT

use std::fs::File;
use std::io::{self, Error, Read, Seek, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::num::NonZero;
use std::thread;

use rustix::fs::sendfile;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::{ClockId, clock_gettime};

/// Bytes of a call, and of what is in front of the data of a reply.
const CALL_BYTES: usize = 128;
/// Calls in flight.
const DEPTH: usize = 4;

fn main() -> io::Result<()> {
    let numbers = std::env::args().skip(1).map(|arg| arg.parse::<NonZero<usize>>().ok());
    let numbers: Option<Vec<_>> = numbers.collect();
    let Some(&[len, count]) = numbers.as_deref() else {
        eprintln!("usage: tcp_floor BYTES COUNT");
        std::process::exit(2);
    };
    let (len, count) = (len.get(), count.get());
    let mut file = tempfile::tempfile()?;
    file.write_all(&vec![7; len])?;
    for calls in [false, true] {
        let (sender, receiver) = measure(&mut file, len, count, calls)?;
        let how = if calls { "called for, 4 at a time" } else { "one after the other" };
        println!("{len} bytes, {how}: receiving {receiver:.2} us, sending {sender:.2} us");
    }
    Ok(())
}

/// Processor time of a reply in microseconds, for who sends and for who receives.
fn measure(file: &mut File, len: usize, count: usize, calls: bool) -> io::Result<(f64, f64)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // As `bench` and its server that does nothing: unpaced.
    set_tcp_congestion(&listener, "reno")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        set_tcp_congestion(stream, "reno")?;
        stream.set_nodelay(true)?;
    }
    thread::scope(|scope| {
        // Whoever fails ends the connection, so that the other does not wait for ever.
        let sending = scope.spawn(|| {
            let sent = timed(count, || answer(&server, file, len, calls));
            server.shutdown(Shutdown::Write).and(sent)
        });
        let _ended = Ended(&client);
        if calls {
            (&client).write_all(&[0; CALL_BYTES * DEPTH])?;
        }
        let mut unread = vec![0; len + CALL_BYTES];
        let received = timed(count, || {
            let mut left = unread.len();
            while left > 0 {
                let flags = RecvFlags::WAITALL | RecvFlags::TRUNC;
                let (_, took) = recv(&client, &mut unread[..left], flags)?;
                if took == 0 {
                    return Err(Error::other("the sender ended"));
                }
                left -= took;
            }
            if calls { (&client).write_all(&[0; CALL_BYTES]) } else { Ok(()) }
        })?;
        let sent = sending.join().expect("it does not panic")?;
        Ok((sent, received))
    })
}

/// Ends a connection when dropped.
struct Ended<'a>(&'a TcpStream);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Sends one reply, after a call has come if there are any.
fn answer(mut socket: &TcpStream, file: &mut File, len: usize, calls: bool) -> io::Result<()> {
    if calls {
        socket.read_exact(&mut [0; CALL_BYTES])?;
    }
    send(socket, &[0; CALL_BYTES], SendFlags::MORE)?;
    file.rewind()?;
    let mut left = len;
    while left > 0 {
        match sendfile(socket, &*file, None, left)? {
            0 => return Err(Error::other("the file ended")),
            sent => left -= sent,
        }
    }
    Ok(())
}

/// The thread's processor time of one of `count` turns, in microseconds.
fn timed(count: usize, mut turn: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        std::time::Duration::try_from(time).expect("it is positive").as_secs_f64()
    };
    let before = now();
    for _ in 0..count {
        turn()?;
    }
    let turns = u32::try_from(count).map_err(Error::other)?;
    Ok((now() - before) * 1e6 / f64::from(turns))
}
