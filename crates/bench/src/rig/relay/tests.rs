use std::time::Instant;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

use super::*;

const MIB: usize = 1 << 20;

fn limits(delay: &str, rate: &str) -> NetworkLimits {
    NetworkLimits { delay: delay.parse().ok(), rate: rate.parse().ok() }
}

/// A server that does `serve` with each of `count` connections.
fn server(count: usize, serve: fn(TcpStream)) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || {
        thread::scope(|scope| {
            for _ in 0..count {
                let (stream, _) = listener.accept().unwrap();
                scope.spawn(move || serve(stream));
            }
        });
    });
    (address, accepting)
}

/// Answers with what it gets, and ends with the client.
fn echo(mut stream: TcpStream) {
    let mut back = stream.try_clone().unwrap();
    std::io::copy(&mut stream, &mut back).unwrap();
}

/// Bytes that show where a part is missing, or out of place.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    let bytes = (salt..salt + len).map(|at| at.wrapping_mul(0x9E37_79B9) >> 16);
    bytes.map(|value| u8::try_from(value & 0xFF).unwrap()).collect()
}

/// Sends `data`, in parts, then the end, and returns all that comes back.
fn exchange(address: SocketAddr, data: &[u8], part: usize) -> Vec<u8> {
    let stream = TcpStream::connect(address).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for part in data.chunks(part) {
                (&stream).write_all(part).unwrap();
            }
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        (&stream).read_to_end(&mut back).unwrap();
        back
    })
}

#[test]
fn many_connections_each_get_their_own_bytes() {
    let (server, serving) = server(16, echo);
    let relay = Relay::start(server, &limits("1ms", "")).unwrap();
    thread::scope(|scope| {
        for salt in 0..16 {
            let address = relay.address();
            scope.spawn(move || {
                let data = pattern(MIB, salt * 1_000);
                assert!(exchange(address, &data, 47_008) == data, "client {salt}");
            });
        }
    });
    serving.join().unwrap();
    drop(relay);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn bytes_arrive_unchanged(len in 0..300_000_usize, part in 1..200_000_usize, slow: bool) {
        let (server, serving) = server(1, echo);
        let relay = Relay::start(server, &limits("", if slow { "1gbit" } else { "" })).unwrap();
        let data = pattern(len, part);
        prop_assert!(exchange(relay.address(), &data, part.max(len / 100)) == data);
        serving.join().unwrap();
    }
}

#[test]
fn every_byte_is_late_by_the_delay_each_way() {
    let (server, serving) = server(1, echo);
    let relay = Relay::start(server, &limits("20ms", "")).unwrap();
    let stream = TcpStream::connect(relay.address()).unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        (&stream).write_all(b"x").unwrap();
        (&stream).read_exact(&mut [0]).unwrap();
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(40), "{took:?}");
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
    drop(stream);
    serving.join().unwrap();
}

#[test]
fn the_end_of_a_stream_is_late_too_and_leaves_the_other_direction_open() {
    let (server, serving) = server(1, |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all.len().to_string().into_bytes()).unwrap();
    });
    let relay = Relay::start(server, &limits("20ms", "")).unwrap();
    let start = Instant::now();
    assert_eq!(exchange(relay.address(), &[7; 1_000], 100), b"1000");
    assert!(start.elapsed() >= Duration::from_millis(40));
    serving.join().unwrap();
}

#[test]
fn the_rate_is_that_of_all_connections_and_of_each_direction() {
    let (server, serving) = server(4, echo);
    let relay = Relay::start(server, &limits("", "20MiB/s")).unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        for salt in 0..4 {
            let address = relay.address();
            scope.spawn(move || {
                let data = pattern(MIB, salt);
                assert!(exchange(address, &data, MIB) == data);
            });
        }
    });
    let took = start.elapsed();
    serving.join().unwrap();
    // 4 MiB each way. One direction after the other would take twice as long, and so would a
    // machine that is very busy.
    assert!(took >= Duration::from_millis(200), "{took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_server_that_does_not_read_stops_its_client() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let relay = Relay::start(listener.local_addr().unwrap(), &limits("", "")).unwrap();
    let client = TcpStream::connect(relay.address()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let block = pattern(MIB, 0);
    let mut sent = 0;
    // The pipe, and the buffers of four sockets: with the usual settings they stay below this.
    let held_max = pipe::BYTES_MAX + 64 * MIB;
    let error = loop {
        match (&client).write(&block[sent % MIB..]) {
            Ok(len) => sent += len,
            Err(error) => break error,
        }
        assert!(sent <= held_max, "without a reader, {sent} bytes were taken");
    };
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    assert!(sent >= pipe::BYTES_MAX / 2, "{sent}");
    // And none of it is lost.
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), sent);
    assert!(received.chunks(MIB).all(|part| *part == block[..part.len()]));
}

#[test]
fn the_relay_ends_at_once_with_bytes_in_flight() {
    let (server, serving) = server(1, |mut stream| {
        let mut all = Vec::new();
        // It ends, with the bytes lost or with an error.
        let _ = stream.read_to_end(&mut all);
        assert!(all.is_empty());
    });
    let relay = Relay::start(server, &limits("10s", "1000B/s")).unwrap();
    let client = TcpStream::connect(relay.address()).unwrap();
    (&client).write_all(&[1; 100_000]).unwrap();
    let start = Instant::now();
    thread::sleep(Duration::from_millis(20));
    drop(relay);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    serving.join().unwrap();
    assert!(matches!((&client).read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn a_missing_server_ends_the_connection() {
    // Bound, so that the port is not given away meanwhile, but not listening.
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let server: SocketAddr = getsockname(&bound).unwrap().try_into().unwrap();
    let relay = Relay::start(server, &limits("", "")).unwrap();
    let client = TcpStream::connect(relay.address()).unwrap();
    assert!(matches!((&client).read(&mut [0]), Ok(0) | Err(_)));
}
