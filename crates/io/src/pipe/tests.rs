use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::thread;

use super::*;

const MIB: usize = 1 << 20;

fn range(offset: usize, len: usize) -> ByteRange {
    ByteRange::new(offset as u64, len as u64).unwrap()
}

/// Bytes that differ from one place to the next, and from page to page.
fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

fn file_of(data: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(data).unwrap();
    file
}

/// The sending end, non-blocking, and the receiving end.
fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sender.set_nonblocking(true).unwrap();
    (sender, listener.accept().unwrap().0)
}

/// Sends all that is in the pipe, and returns what arrived.
fn through_socket(pipe: &mut Pipe) -> Vec<u8> {
    let (sender, mut receiver) = connected();
    let mut received = vec![0; pipe.len()];
    thread::scope(|scope| {
        let reading = scope.spawn(|| receiver.read_exact(&mut received));
        while !pipe.is_empty() {
            match pipe.send_to(sender.as_fd(), false) {
                Ok(sent) => assert!(sent > 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        reading.join().unwrap().unwrap();
    });
    received
}

/// The kernel's unique name of the pipe.
fn name_of(pipe: &Pipe) -> PathBuf {
    let fd = ends(&pipe.ends).input.as_raw_fd();
    fs::read_link(format!("/proc/self/fd/{fd}")).unwrap()
}

/// Whether this process has a descriptor of the pipe.
fn is_open(name: &Path) -> bool {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    // Descriptors of other tests come and go meanwhile.
    entries.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == name))
}

#[test]
fn the_receiver_gets_the_range() {
    let data = pattern(2 * MIB);
    let file = file_of(&data);
    // Not more than any process may ask for, with the odd page.
    let pool = PipePool::new(1, MIB / 2);
    for (offset, len) in
        [(0, 1), (4095, 2), (1, 4095), (8192, 4096), (47008, 47008), (0, MIB / 2), (4097, MIB / 2)]
    {
        let mut pipe = pool.try_take(range(offset, len)).unwrap();
        assert_eq!(pipe.fill_from(file.as_fd(), range(offset, len)).unwrap(), len);
        assert!(through_socket(&mut pipe) == data[offset..offset + len], "{len} at {offset}");
    }
    assert_eq!(pool.pipes_open(), 1);
}

#[test]
fn the_reader_gets_the_range() {
    let data = pattern(10_000);
    let file = file_of(&data);
    let pool = PipePool::new(1, data.len());
    let mut pipe = pool.try_take(range(3, 9_000)).unwrap();
    pipe.fill_from(file.as_fd(), range(3, 9_000)).unwrap();
    let mut read: Vec<u8> = Vec::new();
    while !pipe.is_empty() {
        let mut part = [0; 700];
        let len = pipe.read(&mut part).unwrap();
        read.extend(&part[..len]);
        assert_eq!(pipe.len(), 9_000 - read.len());
    }
    assert_eq!(read, data[3..9_003]);
}

#[test]
fn the_receiver_gets_data_up_to_its_room() {
    let data = pattern(MIB);
    let pool = PipePool::new(1, MIB / 2);
    for (offset, len) in [(0, 1), (4095, 2), (1, 47_008), (4097, MIB / 4), (5, MIB - 5)] {
        let mut pipe = pool.try_take(range(0, MIB / 2)).unwrap();
        let room = ends(&pipe.ends).slots * page_size();
        let filled = pipe.fill_with(&data[offset..][..len]).unwrap();
        assert_eq!(pipe.len(), filled);
        assert!(
            filled == len || (room - page_size()..=room).contains(&filled),
            "{filled} of {len}"
        );
        assert!(through_socket(&mut pipe) == data[offset..][..filled], "{len} at {offset}");
    }
}

#[test]
fn the_end_of_the_file_is_the_end_of_what_is_in_the_pipe() {
    let data = pattern(10_000);
    let file = file_of(&data);
    let pool = PipePool::new(1, MIB / 2);
    let mut pipe = pool.try_take(range(5000, 100_000)).unwrap();
    assert_eq!(pipe.fill_from(file.as_fd(), range(5000, 100_000)).unwrap(), 5000);
    // Cut after the fact: what was announced still comes, whatever the pages hold by now.
    file.set_len(6000).unwrap();
    let received = through_socket(&mut pipe);
    assert_eq!(received.len(), 5000);
    assert!(received[..1000] == data[5000..6000]);
    let beyond = range(20_000, 10);
    assert_eq!(pipe.fill_from(file.as_fd(), beyond).unwrap(), 0);
}

#[test]
fn files_that_cannot_be_read_this_way_are_refused() {
    let pool = PipePool::new(2, MIB);
    let write_only = File::create(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
    let mut pipe = pool.try_take(range(0, 10)).unwrap();
    pipe.fill_from(write_only.as_fd(), range(0, 10)).unwrap_err();
    let directory = File::open("/").unwrap();
    pipe.fill_from(directory.as_fd(), range(0, 10)).unwrap_err();
    assert!(pipe.is_empty());
}

#[test]
fn a_full_socket_keeps_what_it_did_not_take() {
    let data = pattern(MIB);
    let file = file_of(&data);
    let pool = PipePool::new(100, MIB);
    let (sender, mut receiver) = connected();
    let mut sent = Vec::new();
    // The peer does not read, so the socket fills up.
    let stuck = loop {
        let mut pipe = pool.try_take(range(0, MIB)).unwrap();
        pipe.fill_from(file.as_fd(), range(0, MIB)).unwrap();
        let full = loop {
            match pipe.send_to(sender.as_fd(), true) {
                Ok(_) if pipe.is_empty() => break false,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    break true;
                }
            }
        };
        sent.extend_from_slice(&data[..MIB - pipe.len()]);
        if full {
            break pipe;
        }
    };
    assert_eq!(pool.pipes_open(), 1);
    let name = name_of(&stuck);
    assert!(is_open(&name));
    drop((stuck, sender));
    assert_eq!(pool.pipes_open(), 0, "a pipe with data in it is closed");
    assert!(!is_open(&name));
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).unwrap();
    assert!(received == sent);
}

#[test]
fn a_socket_that_the_peer_has_closed_is_an_error() {
    let file = file_of(&pattern(MIB));
    let pool = PipePool::new(1, MIB);
    let (sender, receiver) = connected();
    drop(receiver);
    let mut pipe = pool.try_take(range(0, MIB)).unwrap();
    pipe.fill_from(file.as_fd(), range(0, MIB)).unwrap();
    let error = loop {
        match pipe.send_to(sender.as_fd(), false) {
            Ok(_) => thread::yield_now(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => break error,
        }
    };
    let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    assert!(kinds.contains(&error.kind()), "{error}");
}

#[test]
fn pipes_are_used_again_and_never_more_than_allowed() {
    let pool = PipePool::new(2, 65536);
    let first = pool.try_take(range(0, 65536)).unwrap();
    let second = pool.try_take(range(1, 65536)).unwrap();
    assert!(pool.try_take(range(0, 1)).is_none());
    drop(first);
    assert_eq!(pool.pipes_open(), 2);
    drop(pool.try_take(range(0, 1)).unwrap());
    drop(second);
    assert_eq!(pool.pipes_open(), 2);
}

#[test]
fn ranges_of_more_pages_than_a_pipe_has_are_not_taken() {
    let pool = PipePool::new(2, 65536);
    let page = page_size();
    // Linux rounds 17 pages up to 32.
    assert!(pool.try_take(range(0, 32 * page)).is_some());
    assert!(pool.try_take(range(1, 32 * page)).is_none());
    assert!(pool.try_take(range(1, 31 * page)).is_some());
    let nothing = PipePool::new(0, 65536);
    assert!(nothing.try_take(range(0, 1)).is_none());
}

#[test]
fn pages_are_counted_as_a_file_has_them() {
    let page = page_size();
    for (offset, len, slots) in [
        (0, 0, 0),
        (0, 1, 1),
        (0, page, 1),
        (1, page, 2),
        (page - 1, 2, 2),
        (1, MIB, MIB / page + 1),
    ] {
        assert_eq!(slots_for(range(offset, len)), slots, "{len} at {offset}");
    }
}

#[test]
fn a_refused_pipe_is_not_retried_at_once() {
    // More than any pipe may have.
    let pool = PipePool::new(2, usize::MAX);
    assert!(pool.try_take(range(0, 1)).is_none());
    assert_eq!(pool.pipes_open(), 0);
    assert!(pool.lock().refused_at.is_some());
    let long_ago = Instant::now() - 2 * REFUSAL_LASTS;
    pool.lock().refused_at = Some(long_ago);
    assert!(pool.try_take(range(0, 1)).is_none());
    assert_ne!(pool.lock().refused_at, Some(long_ago), "asked again");
}
