//! Lost connections, lost replies, and peers that do not keep to the protocol.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::oncrpc::RecordMark;
use rpc::client::{REPLY_BYTES_MIN, Route, Rpc, RpcOptions};
use rustix::io::Errno;
use spillway_client::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::peer::{
    Connected, Peer, Received, answered, ask, ask_with, failed, hard, reply, soft, within,
};
use crate::skip::skip;

const SOON: Duration = Duration::from_millis(300);
/// Long against the pauses before a new connection and the delays of a busy machine.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Of tests in which the peer does something many times within it.
const SLOW_TIMEOUT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn replies_come_in_any_order() {
    let (_peer, rpc, mut connected) = Peer::connected(&hard()).await;
    let calls: Vec<_> = (0..50).map(|number| ask(&rpc, number)).collect();
    let mut received = connected.receive_all(50).await;
    received.reverse();
    received.swap(3, 30);
    for call in &received {
        connected.echo(call).await;
    }
    for (number, call) in (0..).zip(calls) {
        assert_eq!(answered(call).await.unwrap(), number);
    }
}

#[tokio::test]
async fn a_call_is_resent_from_the_same_port_after_a_reset() {
    let (peer, rpc, mut first) = Peer::connected(&hard()).await;
    let call = ask(&rpc, 1);
    let received = first.receive().await;
    let port = first.port;
    drop(first);
    let mut second = peer.accept().await;
    assert_eq!(second.receive().await, received, "the same call under the same id");
    second.echo(&received).await;
    assert_eq!(answered(call).await.unwrap(), 1);
    assert_eq!(second.port, port, "servers know a call by the port, too");
}

#[tokio::test]
async fn calls_come_from_a_reserved_port_and_from_it_again() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root has them");
    }
    let options = RpcOptions { reserved_port: true, ..hard() };
    let (peer, rpc, first) = Peer::connected(&options).await;
    let port = first.port;
    assert!((665..1024).contains(&port), "{port}");
    let call = ask(&rpc, 1);
    drop(first);
    let mut second = peer.accept().await;
    let received = second.receive().await;
    second.echo(&received).await;
    assert_eq!(answered(call).await.unwrap(), 1);
    assert_eq!(second.port, port);
}

#[tokio::test]
async fn no_other_socket_gets_the_port_of_a_lost_connection() {
    let (peer, rpc, first) = Peer::connected(&hard()).await;
    let port = first.port;
    // Nothing listens any more, so the connection cannot be made again.
    drop((peer, first));
    let call = ask(&rpc, 1);
    tokio::time::sleep(SOON).await;
    let other = TcpSocket::new_v4().unwrap();
    let taken = other.bind((Ipv4Addr::LOCALHOST, port).into()).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    drop(call);
}

#[tokio::test]
async fn answered_calls_are_not_sent_again() {
    let (peer, rpc, mut first) = Peer::connected(&hard()).await;
    let calls: Vec<_> = (0..6).map(|number| ask(&rpc, number)).collect();
    let received = first.receive_all(6).await;
    first.echo(&received[2]).await;
    first.echo(&received[5]).await;
    drop(first);
    let mut second = peer.accept().await;
    let again = second.receive_all(4).await;
    let unanswered = [0, 1, 3, 4].map(|place| received[place].clone());
    assert_eq!(again, unanswered, "in their order, under their ids");
    for call in again.iter().rev() {
        second.echo(call).await;
    }
    for (number, call) in (0..).zip(calls) {
        assert_eq!(answered(call).await.unwrap(), number);
    }
    assert!(second.is_quiet_for(SOON).await);
}

#[tokio::test]
async fn a_record_that_is_cut_anywhere_is_no_reply() {
    let (peer, rpc, mut connected) = Peer::connected(&hard()).await;
    let call = ask(&rpc, 1);
    let received = connected.receive().await;
    let whole = reply(received.xid, &received.arguments);
    // In the mark, behind it, in the header and in the results. Without a reply in between the
    // client waits longer each time.
    for cut in [1, 4, 20, whole.len() - 1] {
        connected.send(&whole[..cut]).await;
        drop(connected);
        connected = peer.accept().await;
        assert_eq!(connected.receive().await, received, "cut at {cut}");
    }
    connected.send(&whole).await;
    assert_eq!(answered(call).await.unwrap(), 1);
}

#[tokio::test]
async fn a_call_that_is_cut_is_sent_whole() {
    let (peer, rpc, mut first) = Peer::connected(&hard()).await;
    // More than sockets hold.
    let payload: Bytes = (0..16_000_001_u32).map(|i| i.to_le_bytes()[1]).collect();
    let call = ask_with(&rpc, Route::Any, 1, payload.clone());
    let mut some = vec![0; 100_000];
    within(first.stream.read_exact(&mut some)).await.unwrap();
    drop(first);
    let mut second = peer.accept().await;
    let received = second.receive().await;
    assert_eq!(received.arguments[4..16_000_005], payload);
    assert_eq!(received.arguments[16_000_005..], [0; 3]);
    second.echo(&received).await;
    assert_eq!(answered(call).await.unwrap(), 1);
}

#[tokio::test]
async fn an_unanswered_call_closes_the_connection_and_is_resent() {
    let options = RpcOptions { timeout: TIMEOUT, ..hard() };
    let (peer, rpc, mut first) = Peer::connected(&options).await;
    let lost = ask(&rpc, 1);
    let other = ask(&rpc, 2);
    let received = first.receive_all(2).await;
    first.echo(&received[1]).await;
    assert_eq!(answered(other).await.unwrap(), 2);
    // Without the timeout of this call nothing would break the connection.
    let mut second = peer.accept().await;
    assert_eq!(first.try_receive().await, None, "never twice over one connection");
    assert_eq!(second.receive().await, received[0]);
    second.echo(&received[0]).await;
    assert_eq!(answered(lost).await.unwrap(), 1);
}

#[tokio::test]
async fn replies_that_have_arrived_count_although_the_client_was_stopped_for_longer_than_timeo() {
    for options in [RpcOptions { timeout: SLOW_TIMEOUT, ..hard() }, soft(SLOW_TIMEOUT)] {
        let mut clients = Vec::new();
        // The order in which tasks are polled may be random.
        for number in 0..16 {
            let (peer, rpc, connected) = Peer::connected(&options).await;
            clients.push((peer, ask(&rpc, number), connected));
        }
        let mut received = Vec::new();
        for (.., connected) in &mut clients {
            received.push(connected.receive().await);
        }
        for ((.., connected), received) in clients.iter_mut().zip(&received) {
            connected.echo(received).await;
        }
        // The clients and their timers do not run meanwhile, as after SIGSTOP.
        std::thread::sleep(options.patience() + SLOW_TIMEOUT / 2);
        for (number, (_peer, call, _connected)) in (0..).zip(clients) {
            assert_eq!(answered(call).await.unwrap(), number);
        }
    }
}

#[tokio::test]
async fn a_server_whose_replies_take_longer_than_timeo_in_all_keeps_the_connection() {
    // Long against each pause: the peer and the client share a thread that may be held up.
    let (pause, timeout) = (SLOW_TIMEOUT, 4 * SLOW_TIMEOUT);
    let options = RpcOptions { timeout, ..hard() };
    let (_peer, rpc, mut connected) = Peer::connected(&options).await;
    let calls: Vec<_> = (0..6).map(|number| ask(&rpc, number)).collect();
    let mut received = connected.receive_all(6).await;
    // The oldest call is answered last.
    received[3..].reverse();
    received.rotate_left(1);
    for call in &received {
        tokio::time::sleep(pause).await;
        connected.echo(call).await;
    }
    for (number, call) in (0..).zip(calls) {
        assert_eq!(answered(call).await.unwrap(), number);
    }
    // A single reply may take as long.
    let call = ask(&rpc, 6);
    let received = connected.receive().await;
    for part in reply(received.xid, &[0; 176]).chunks(30) {
        tokio::time::sleep(pause).await;
        connected.send(part).await;
    }
    assert_eq!(within(call).await.unwrap(), [0; 176][..]);
}

/// How long a client takes to reset a connection over which the peer acts by `step` again and
/// again, but does not answer the first call.
async fn found_after(step: impl AsyncFn(&Rpc, &mut Connected, u32)) -> Duration {
    let options = RpcOptions { timeout: SLOW_TIMEOUT, ..hard() };
    let (peer, rpc, mut connected) = Peer::connected(&options).await;
    let began = Instant::now();
    let _lost = ask(&rpc, 0);
    let lost = connected.receive().await;
    while !peer.is_called_within(Duration::ZERO).await {
        step(&rpc, &mut connected, lost.xid).await;
        assert!(began.elapsed() < SLOW_TIMEOUT * 10, "the lost call is not found");
    }
    began.elapsed()
}

#[tokio::test]
async fn a_lost_call_is_found_beside_calls_that_are_answered() {
    let found = found_after(async |rpc, connected, _| {
        let call = ask(rpc, 1);
        if let Some(received) = connected.try_receive().await {
            // The client may have reset the connection.
            drop(connected.stream.write_all(&reply(received.xid, &[0; 4])).await);
            tokio::time::sleep(SLOW_TIMEOUT / 20).await;
        }
        drop(call);
    });
    let found = found.await;
    assert!(found >= SLOW_TIMEOUT, "{found:?}");
}

#[tokio::test]
async fn a_lost_call_is_found_beside_replies_to_no_call() {
    let found = found_after(async |_, connected, lost| {
        tokio::time::sleep(SLOW_TIMEOUT / 20).await;
        drop(connected.stream.write_all(&reply(lost.wrapping_add(7), &[0; 4])).await);
    });
    let found = found.await;
    assert!(found >= SLOW_TIMEOUT, "{found:?}");
}

#[tokio::test]
async fn a_soft_call_fails_in_its_time_and_its_late_reply_is_ignored() {
    // The last connection has to be made, and the call read from it, in this time.
    let timeout = Duration::from_secs(5);
    let (peer, rpc, mut connected) = Peer::connected(&soft(timeout)).await;
    let begin = Instant::now();
    let call = tokio::spawn(ask(&rpc, 1));
    let first = connected.receive().await;
    for _ in 0..2 {
        connected = peer.accept().await;
        assert_eq!(connected.receive().await, first);
    }
    // Bytes of a reply keep the last connection for long after the call has failed.
    let late = reply(first.xid, &first.arguments[..4]);
    tokio::time::sleep(timeout / 2).await;
    connected.send(&late[..4]).await;
    let error = within(call).await.unwrap().unwrap_err();
    assert!(begin.elapsed() >= timeout * 3);
    let error = failed(error);
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert_eq!(error.errno(), Errno::TIMEDOUT);
    // No call waits, so the connection stays.
    connected.send(&late[4..]).await;
    let call = ask(&rpc, 2);
    let second = connected.receive().await;
    assert_ne!(second.xid, first.xid);
    connected.echo(&second).await;
    assert_eq!(answered(call).await.unwrap(), 2);
}

#[tokio::test]
async fn a_soft_call_reports_an_absent_server() {
    let (peer, rpc, connected) = Peer::connected(&soft(SOON)).await;
    drop((peer, connected));
    let error = answered(ask(&rpc, 1)).await.unwrap_err();
    assert_eq!(error.errno(), Errno::CONNREFUSED);
}

#[tokio::test]
async fn the_late_reply_to_a_cancelled_call_is_dropped() {
    let (_peer, rpc, mut connected) = Peer::connected(&hard()).await;
    let payload = Bytes::from(vec![1; 1000]);
    let cancelled = ask_with(&rpc, Route::Any, 1, payload.clone());
    let kept = ask(&rpc, 2);
    let received = connected.receive_all(2).await;
    drop(cancelled);
    assert!(payload.is_unique(), "a cancelled call is not referenced");
    connected.echo(&received[0]).await;
    connected.echo(&received[0]).await;
    connected.echo(&received[1]).await;
    assert_eq!(answered(kept).await.unwrap(), 2);
}

#[tokio::test]
async fn a_call_that_is_cancelled_half_sent_does_not_cut_its_record() {
    let (_peer, rpc, mut connected) = Peer::connected(&hard()).await;
    let payload = Bytes::from(vec![1; 16_000_000]);
    let cancelled = ask_with(&rpc, Route::Any, 1, payload.clone());
    let in_line = ask_with(&rpc, Route::Any, 2, payload.clone());
    connected.begin().await;
    drop(cancelled);
    drop(in_line);
    let next = ask(&rpc, 3);
    assert_eq!(connected.receive().await.arguments.len(), 16_000_004);
    let received = connected.receive().await;
    assert_eq!(received.asked(), 3, "a cancelled call is not sent");
    connected.echo(&received).await;
    assert_eq!(answered(next).await.unwrap(), 3);
    assert!(payload.is_unique());
}

#[tokio::test]
async fn cancelled_calls_are_not_sent_again() {
    let (peer, rpc, mut first) = Peer::connected(&hard()).await;
    let cancelled = ask(&rpc, 1);
    let kept = ask(&rpc, 2);
    let received = first.receive_all(2).await;
    drop(cancelled);
    drop(first);
    let mut second = peer.accept().await;
    assert_eq!(second.receive().await, received[1]);
    second.echo(&received[1]).await;
    assert_eq!(answered(kept).await.unwrap(), 2);
}

/// The error for a peer that sends `bytes` as the reply to each call.
async fn complaint(bytes: &[u8]) -> String {
    let (peer, rpc, mut connected) = Peer::connected(&soft(TIMEOUT)).await;
    let garble = async {
        loop {
            connected.receive().await;
            connected.send(bytes).await;
            assert_eq!(connected.try_receive().await, None, "the client ends the connection");
            connected = peer.accept().await;
        }
    };
    tokio::select! {
        result = answered(ask(&rpc, 1)) => result.unwrap_err().to_string(),
        () = garble => unreachable!("it goes on"),
    }
}

#[tokio::test]
async fn a_message_that_is_not_a_reply_closes_the_connection() {
    let most = REPLY_BYTES_MIN + (64 << 10);
    let too_long = RecordMark { last: true, len: u32::try_from(most + 1).unwrap() }.to_bytes();
    let expected = format!("record of {} bytes exceeds the limit of {most} bytes", most + 1);
    let a_call = [&[0x80, 0, 0, 8][..], &[1, 2, 3, 4], &[0; 4]].concat();
    let (too_long, http, a_call, empty) = tokio::join!(
        complaint(&too_long),
        complaint(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        complaint(&a_call),
        complaint(&[0x80, 0, 0, 0]),
    );
    assert!(too_long.contains(&expected), "{too_long}");
    assert!(http.contains("a record of 1213486160 bytes"), "{http}");
    assert!(a_call.contains("the message is not a reply"), "{a_call}");
    assert!(empty.contains("the message is not a reply"), "{empty}");
}

#[tokio::test]
async fn a_reply_of_the_requested_length_is_accepted() {
    let (_peer, rpc, mut connected) = Peer::connected(&hard()).await;
    let bytes = u32::try_from(REPLY_BYTES_MIN * 2).unwrap();
    rpc.expect_reply_bytes(bytes);
    let call = ask(&rpc, 1);
    let received = connected.receive().await;
    let results = vec![7; REPLY_BYTES_MIN * 2];
    connected.answer(&received, &results).await;
    assert_eq!(within(call).await.unwrap(), results);
}

#[tokio::test]
async fn a_peer_that_hangs_up_is_not_called_without_pause() {
    let (peer, rpc, connected) = Peer::connected(&hard()).await;
    let _call = ask(&rpc, 1);
    drop(connected);
    let began = Instant::now();
    for _ in 0..5 {
        drop(peer.accept().await);
    }
    // At once, and after 100, 200, 400 and 800 ms more.
    let paused = began.elapsed();
    assert!(paused >= Duration::from_millis(1000), "five connections within {paused:?}");
}

#[tokio::test]
async fn replies_to_no_call_do_not_shorten_the_pauses() {
    let (peer, rpc, mut connected) = Peer::connected(&hard()).await;
    let _call = ask(&rpc, 1);
    let began = Instant::now();
    for _ in 0..5 {
        let received = connected.receive().await;
        connected.send(&reply(received.xid.wrapping_add(7), &[])).await;
        drop(connected);
        connected = peer.accept().await;
    }
    // As for a peer that hangs up.
    let paused = began.elapsed();
    assert!(paused >= Duration::from_millis(1000), "five connections within {paused:?}");
}

#[tokio::test]
async fn no_connection_is_tried_without_a_waiting_call() {
    let (peer, rpc, connected) = Peer::connected(&hard()).await;
    let address = peer.address();
    let call = ask(&rpc, 1);
    drop((peer, connected));
    tokio::time::sleep(SOON).await;
    drop(call);
    // One attempt may have been on its way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let peer = Peer::on(&address.to_string()).await;
    assert!(!peer.is_called_within(Duration::from_secs(1)).await);
    let _next = ask(&rpc, 2);
    assert_eq!(peer.accept().await.receive().await.asked(), 2);
}

#[tokio::test]
async fn an_idle_connection_that_is_closed_is_made_again_for_the_next_call() {
    let (peer, rpc, mut first) = Peer::connected(&hard()).await;
    let call = ask(&rpc, 1);
    let received = first.receive().await;
    first.echo(&received).await;
    assert_eq!(answered(call).await.unwrap(), 1);
    drop(first);
    assert!(!peer.is_called_within(SOON).await);
    let call = ask(&rpc, 2);
    let mut second = peer.accept().await;
    let received = second.receive().await;
    second.echo(&received).await;
    assert_eq!(answered(call).await.unwrap(), 2);
}

#[tokio::test]
async fn the_last_handle_closes_the_connection() {
    let (_peer, rpc, mut connected) = Peer::connected(&hard()).await;
    let other = rpc.clone();
    let call = ask(&rpc, 1);
    drop(rpc);
    drop(other);
    // A call is a handle, too.
    let received = connected.receive().await;
    connected.echo(&received).await;
    assert_eq!(answered(call).await.unwrap(), 1);
    assert_eq!(connected.try_receive().await, None);
}

#[tokio::test]
async fn no_more_than_the_window_is_in_flight() {
    let (_peer, rpc, mut connected) = Peer::connected(&hard()).await;
    let calls: Vec<_> = (0..130).map(|number| ask(&rpc, number)).collect();
    let received = connected.receive_all(128).await;
    assert!(connected.is_quiet_for(SOON).await);
    connected.echo(&received[77]).await;
    assert_eq!(connected.receive().await.asked(), 128);
    assert!(connected.is_quiet_for(SOON).await);
    drop(calls);
}

/// Accepts connections until a call of each key has arrived, and returns over which.
async fn by_connection(
    peer: &Peer,
    first: Connected,
    calls: usize,
) -> Vec<(Connected, Vec<Received>)> {
    let mut connections = vec![(first, Vec::new())];
    while connections.len() < 4 {
        connections.push((peer.accept().await, Vec::new()));
    }
    for (connected, received) in &mut connections {
        *received = connected.receive_all(calls).await;
    }
    connections
}

#[tokio::test]
async fn calls_of_one_key_keep_their_order_on_one_of_several_connections() {
    let options = RpcOptions { connections: 4, ..hard() };
    let (peer, rpc, first) = Peer::connected(&options).await;
    // The futures are polled in any order; the order of the calls is that of the text.
    let calls: Vec<_> = (0..40)
        .map(|number| ask_with(&rpc, Route::Pinned(u64::from(number % 4)), number, Bytes::new()))
        .collect();
    let waiting: Vec<_> =
        calls.into_iter().rev().map(|call| tokio::spawn(answered(call))).collect();
    let mut connections = by_connection(&peer, first, 10).await;
    let mut xids = Vec::new();
    for (_, received) in &connections {
        let key = received[0].asked();
        let asked: Vec<_> = received.iter().map(Received::asked).collect();
        assert_eq!(asked, (0..10).map(|i| key + 4 * i).collect::<Vec<_>>());
        xids.extend(received.iter().map(|call| call.xid));
    }
    xids.sort_unstable();
    xids.dedup();
    assert_eq!(xids.len(), 40, "no two connections use one id");
    // One of them breaks, and keeps its order.
    let (broken, received) = connections.pop().unwrap();
    drop(broken);
    let mut again = peer.accept().await;
    assert_eq!(again.receive_all(10).await, received);
    connections.push((again, received));
    for (connected, received) in &mut connections {
        for call in received {
            connected.echo(call).await;
        }
    }
    for (number, call) in (0..40).rev().zip(waiting) {
        assert_eq!(within(call).await.unwrap().unwrap(), number);
    }
}

#[tokio::test]
async fn other_calls_go_where_the_fewest_wait() {
    let options = RpcOptions { connections: 4, ..hard() };
    let (peer, rpc, first) = Peer::connected(&options).await;
    let calls: Vec<_> = (0..20).map(|number| ask(&rpc, number)).collect();
    let mut connections = by_connection(&peer, first, 5).await;
    let (free, received) = &mut connections[2];
    for call in received {
        free.echo(call).await;
    }
    let mut calls: Vec<_> = calls.into_iter().map(|call| tokio::spawn(answered(call))).collect();
    let number = calls.len();
    while calls.len() > number - 5 {
        calls.retain(|call| !call.is_finished());
        tokio::task::yield_now().await;
    }
    let _next = ask(&rpc, 99);
    assert_eq!(free.receive().await.asked(), 99);
}
