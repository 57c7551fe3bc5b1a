use std::io::Write;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Weak;
use std::task::{Context, Waker};

use rpc::server::Socket;

use super::*;

const CALLS: usize = 4;

fn connections(all: usize) -> Arc<Connections> {
    Connections::new(all, CALLS, Arc::new(Counters::default()))
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, last), 700))
}

/// Enters and ends what is evicted for it at once, as the tasks of connections do.
async fn enter(
    connections: &Arc<Connections>,
    permits: &mut Vec<ConnectionPermit>,
    address: SocketAddr,
    is_stranger: bool,
) -> bool {
    let entering = connections.enter(address, || is_stranger);
    let mut entering = pin!(entering);
    let began = Instant::now();
    let permit = loop {
        let step = Duration::from_millis(5);
        if let Ok(permit) = tokio::time::timeout(step, entering.as_mut()).await {
            break permit;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "nothing is evicted, all permits are taken"
        );
        let state = connections.lock();
        let kept: Vec<_> = state.peers.values().flatten().cloned().collect();
        drop(state);
        permits.retain(|permit| kept.iter().any(|other| Arc::ptr_eq(other, &permit.activity)));
    };
    let entered = permit.is_some();
    if let Some(permit) = permit {
        permit.activity.begins(&link());
        permits.push(permit);
    }
    entered
}

/// Enters so many connections of a client, each with a call at work.
async fn enter_busy(
    connections: &Arc<Connections>,
    permits: &mut Vec<ConnectionPermit>,
    address: SocketAddr,
    count: usize,
) {
    for _ in 0..count {
        assert!(enter(connections, permits, address, false).await);
        permits.last().unwrap().activity.peer_wait.end();
    }
}

/// The slot of a call that has come over a connection.
async fn call_at_work(activity: &Activity) -> Slot {
    let mut slot = activity.slot(0).await.unwrap();
    slot.begin_call();
    slot
}

/// A link whose transport is gone.
fn link() -> Arc<Link> {
    Arc::new(Link::new(address(1), Weak::<Socket>::new()))
}

/// A server's connection and its client's end.
async fn connected(listener: &tokio::net::TcpListener) -> (std::net::TcpStream, Arc<Socket>) {
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (client, Socket::new(server.into_std().unwrap()).unwrap())
}

#[test]
fn limits_are_parts_of_all_connections() {
    assert_eq!(Limits::new(16384), Limits { all: 16384, peer: 4096, strangers: 1024 });
    assert_eq!(Limits::new(1024), Limits { all: 1024, peer: 256, strangers: 64 });
    assert_eq!(Limits::new(256), Limits { all: 256, peer: 192, strangers: 16 });
    assert_eq!(Limits::new(16), Limits { all: 16, peer: 12, strangers: 12 });
    assert_eq!(Limits::new(4), Limits { all: 4, peer: 3, strangers: 3 });
    assert_eq!(Limits::new(2), Limits { all: 2, peer: 2, strangers: 2 });
    assert_eq!(Limits::new(1), Limits { all: 1, peer: 1, strangers: 1 });
}

#[tokio::test(start_paused = true)]
async fn longest_idle_connection_of_the_same_peer_makes_room() {
    let connections = connections(1024);
    let mut permits = Vec::new();
    for _ in 0..256 {
        assert!(enter(&connections, &mut permits, address(1), false).await);
        tokio::time::sleep(Duration::from_micros(10)).await;
    }
    assert!(enter(&connections, &mut permits, address(2), false).await);
    let first = Arc::clone(&permits[0].activity);
    assert!(enter(&connections, &mut permits, address(1), false).await);
    tokio::time::timeout(Duration::from_secs(5), first.evicted()).await.unwrap();
    assert_eq!(connections.counters.value(Counter::ConnectionsEvicted), 1);
}

#[tokio::test(start_paused = true)]
async fn new_connections_of_an_evicted_peer_wait_for_the_end_of_the_eviction() {
    let connections = connections(16);
    let mut permits = Vec::new();
    assert!(enter(&connections, &mut permits, address(1), false).await);
    let [eviction, other] = [1, 1].map(|peer| connections.evict_peer(address(peer).ip()));
    let counts = [&eviction, &other].map(|eviction| eviction.evicted.len());
    assert_eq!(counts, [1, 1]);
    for peer in 1..=2 {
        assert!(enter(&connections, &mut permits, address(peer), false).await);
    }
    let takes_calls = async |permit: &ConnectionPermit| {
        let waiting = connections.may_take_calls(&permit.activity);
        tokio::time::timeout(Duration::from_secs(1), waiting).await.is_ok()
    };
    assert!(!takes_calls(&permits[1]).await && takes_calls(&permits[2]).await);
    drop(eviction);
    assert!(!takes_calls(&permits[1]).await, "there is another eviction");
    let (began, waiting) = (Instant::now(), connections.may_take_calls(&permits[1].activity));
    let end = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(other);
    };
    tokio::join!(waiting, end);
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn an_evicted_connection_gets_no_slot_once_its_calls_have_ended() {
    let connections = connections(16);
    let permit = connections.enter(address(1), || false).await.unwrap();
    let activity = &permit.activity;
    let call = call_at_work(activity).await;
    let _eviction = connections.evict_peer(address(1).ip());
    // The slot was taken first: the wait sees it, and the next call waits behind.
    let (mut ended, mut next) = (pin!(activity.calls_ended()), pin!(activity.slot(0)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(ended.as_mut().poll(&mut context).is_pending());
    assert!(next.as_mut().poll(&mut context).is_pending());
    drop(call);
    ended.await;
    assert!(next.await.is_none());
    // The slots were seen free first.
    assert!(activity.slot(0).await.is_none());
    activity.calls_ended().await;
}

#[tokio::test(start_paused = true)]
async fn busy_connections_are_not_evicted() {
    let connections = connections(2);
    let mut permits = Vec::new();
    for peer in 1..=2 {
        assert!(enter(&connections, &mut permits, address(peer), false).await);
    }
    let call = call_at_work(&permits[0].activity).await;
    permits[1].activity.peer_wait.end();
    assert!(!enter(&connections, &mut permits, address(3), true).await, "a stranger does not wait");
    let waiting = connections.enter(address(3), || false);
    assert!(tokio::time::timeout(Duration::from_millis(50), waiting).await.is_err());
    drop(call);
    let permit = tokio::time::timeout(Duration::from_secs(5), async {
        let evicted = permits[0].activity.clone();
        let (permit, ()) = tokio::join!(connections.enter(address(3), || false), async {
            evicted.evicted().await;
            permits.remove(0);
        });
        permit
    });
    assert!(permit.await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn strangers_make_room_first_and_then_the_peer_with_most_connections() {
    let connections = connections(20);
    let mut permits = Vec::new();
    for _ in 0..12 {
        assert!(enter(&connections, &mut permits, address(1), false).await);
    }
    for peer in 2..=7 {
        assert!(enter(&connections, &mut permits, address(peer), false).await);
    }
    for peer in 8..=9 {
        assert!(enter(&connections, &mut permits, address(peer), true).await);
    }
    let count = |permits: &[ConnectionPermit], peer| {
        let ip = address(peer).ip();
        permits.iter().filter(|permit| permit.activity.peer == ip).count()
    };
    for _ in 0..2 {
        assert!(enter(&connections, &mut permits, address(10), false).await);
    }
    assert_eq!(count(&permits, 8) + count(&permits, 9), 0);
    for _ in 0..3 {
        assert!(enter(&connections, &mut permits, address(11), false).await);
    }
    assert_eq!(count(&permits, 1), 9);
    assert_eq!(permits.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn all_strangers_share_one_limit() {
    let connections = connections(1024);
    let mut permits = Vec::new();
    for peer in 0..200 {
        assert!(enter(&connections, &mut permits, address(peer), true).await);
    }
    assert_eq!(connections.lock().strangers, 64);
    permits.clear();
    assert_eq!(connections.open(), 0);
    connections.all_ended().await;
}

#[tokio::test]
async fn many_connections_share_the_calls_and_strangers_have_few() {
    let connections = connections(CALLS_MAX);
    let client = connections.enter(address(1), || false).await.unwrap();
    let stranger = connections.enter(address(2), || true).await.unwrap();
    let withheld = |permit: &ConnectionPermit| connections.slots_withheld(&permit.activity);
    assert_eq!(withheld(&client), 0);
    assert_eq!(withheld(&stranger), CALLS - CALLS_MIN);
    connections.open.store(CALLS_MAX / 3, Ordering::Relaxed);
    assert_eq!(withheld(&client), CALLS - 3);
    connections.open.store(CALLS_MAX, Ordering::Relaxed);
    assert_eq!(withheld(&client), CALLS - CALLS_MIN);
}

#[tokio::test]
async fn calls_in_flight_are_exact_while_a_connection_waits_for_a_slot() {
    let connections = Connections::new(CALLS_MAX, 64, Arc::new(Counters::default()));
    let permit = connections.enter(address(1), || false).await.unwrap();
    let activity = &permit.activity;
    let mut calls = Vec::new();
    for _ in 0..8 {
        calls.push(call_at_work(activity).await);
    }
    let mut next = pin!(activity.slot(64 - 8));
    let mut context = Context::from_waker(Waker::noop());
    assert!(next.as_mut().poll(&mut context).is_pending());
    assert_eq!(connections.calls_in_flight(), 8);
    calls.pop();
    let mut next = next.await.unwrap();
    assert_eq!(connections.calls_in_flight(), 7, "the next call has not come");
    next.begin_call();
    assert_eq!(connections.calls_in_flight(), 8);
    let load = PeerLoad { address: address(1).ip(), connections: 1, calls: 8 };
    assert_eq!(connections.by_peer(), [load]);
    drop((calls, next));
    assert_eq!(connections.calls_in_flight(), 0);
    activity.calls_ended().await;
}

#[tokio::test(start_paused = true)]
async fn connection_with_unread_bytes_is_not_evicted() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let connections = connections(2);
    let mut permits = Vec::new();
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let (client, writer) = connected(&listener).await;
        let permit = connections.enter(client.local_addr().unwrap(), || false).await.unwrap();
        let transport = Arc::downgrade(&writer);
        permit.activity.begins(&Arc::new(Link::new(client.local_addr().unwrap(), transport)));
        permits.push(permit);
        sockets.push((client, writer));
    }
    let [first, second] = [0, 1].map(|i| Arc::clone(&permits[i].activity));
    (&sockets[0].0).write_all(b"call").unwrap();
    let link = first.link.get().unwrap();
    while link.unread_bytes() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(enter(&connections, &mut permits, address(3), false).await);
    assert!(permits.iter().any(|permit| Arc::ptr_eq(&permit.activity, &first)));
    assert!(!permits.iter().any(|permit| Arc::ptr_eq(&permit.activity, &second)));
}

/// A connection that waits for limits of exports, with a call in its socket.
async fn held_back(
    connections: &Arc<Connections>,
    listener: &tokio::net::TcpListener,
) -> (ConnectionPermit, (std::net::TcpStream, Arc<Socket>)) {
    let (client, socket) = connected(listener).await;
    let address = client.local_addr().unwrap();
    let permit = connections.enter(address, || false).await.unwrap();
    let transport = Arc::downgrade(&socket);
    let link = Arc::new(Link::new(address, transport));
    permit.activity.begins(&link);
    permit.activity.note_call();
    permit.activity.set_held_back(true);
    (&client).write_all(b"call").unwrap();
    while link.unread_bytes() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (permit, (client, socket))
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_call_makes_room_before_those_with_a_call_that_waits() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let connections = connections(3);
    let (mut permits, mut sockets) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (permit, connected) = held_back(&connections, &listener).await;
        permits.push(permit);
        sockets.push(connected);
    }
    let waiting = [0, 1].map(|at: usize| Arc::clone(&permits[at].activity));
    tokio::time::sleep(2 * IDLE_MIN).await;
    assert!(enter(&connections, &mut permits, address(2), false).await);
    let stays = |permits: &[ConnectionPermit], activity: &Arc<Activity>| {
        permits.iter().any(|permit| Arc::ptr_eq(&permit.activity, activity))
    };
    let idle = Arc::clone(&permits[2].activity);
    idle.note_call();
    tokio::time::sleep(2 * IDLE_MIN).await;
    assert!(enter(&connections, &mut permits, address(3), false).await);
    assert!(!stays(&permits, &idle));
    assert!(waiting.iter().all(|activity| stays(&permits, activity)));
    // No other one is idle, and the one that waits longest has a call at work.
    permits[2].activity.peer_wait.end();
    let call = call_at_work(&waiting[0]).await;
    assert!(enter(&connections, &mut permits, address(4), false).await);
    assert!(stays(&permits, &waiting[0]) && !stays(&permits, &waiting[1]));
    permits.iter().for_each(|permit| {
        if !Arc::ptr_eq(&permit.activity, &waiting[0]) {
            permit.activity.peer_wait.end();
        }
    });
    tokio::time::sleep(2 * IDLE_MIN).await;
    let evictions = || connections.counters.value(Counter::ConnectionsEvicted);
    assert!(matches!(connections.try_enter(address(5), || false), Entry::Full));
    assert_eq!(evictions(), 2);
    drop(call);
    assert!(matches!(connections.try_enter(address(5), || false), Entry::Full));
    assert_eq!(evictions(), 3);
}

#[tokio::test(start_paused = true)]
async fn connections_with_calls_that_wait_do_not_hide_an_idle_one() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let connections = connections(2 * SOCKETS_EXAMINED_MAX + 1);
    let (mut permits, mut sockets) = (Vec::new(), Vec::new());
    // As many as one client may have.
    for _ in 0..connections.limits.peer {
        let (permit, connected) = held_back(&connections, &listener).await;
        permits.push(permit);
        sockets.push(connected);
    }
    let waiting: Vec<_> = permits.iter().map(|permit| Arc::clone(&permit.activity)).collect();
    assert!(waiting.len() > SOCKETS_EXAMINED_MAX);
    while permits.len() < connections.max() {
        assert!(enter(&connections, &mut permits, address(2), false).await);
        permits.last().unwrap().activity.note_call();
    }
    tokio::time::sleep(2 * IDLE_MIN).await;
    assert!(enter(&connections, &mut permits, address(3), false).await);
    assert_eq!(connections.counters.value(Counter::ConnectionsEvicted), 1);
    let stays = |activity| permits.iter().any(|permit| Arc::ptr_eq(&permit.activity, activity));
    assert!(waiting.iter().all(stays));
}

#[tokio::test(start_paused = true)]
async fn connection_just_accepted_is_not_evicted() {
    let connections = connections(1);
    let permit = connections.enter(address(1), || false).await.unwrap();
    permit.activity.begins(&link());
    assert!(matches!(connections.try_enter(address(2), || false), Entry::Full));
    assert_eq!(connections.counters.value(Counter::ConnectionsEvicted), 0);
    tokio::time::sleep(2 * IDLE_MIN).await;
    assert!(matches!(connections.try_enter(address(2), || false), Entry::Full));
    assert_eq!(connections.counters.value(Counter::ConnectionsEvicted), 1);
}

#[tokio::test(start_paused = true)]
async fn peer_whose_limit_is_that_of_all_waits_for_a_place() {
    let connections = connections(2);
    let mut permits = Vec::new();
    enter_busy(&connections, &mut permits, address(1), 2).await;
    assert!(matches!(connections.try_enter(address(1), || false), Entry::Full));
    permits.pop();
    assert!(enter(&connections, &mut permits, address(1), false).await);
    assert_eq!(connections.counters.value(Counter::ConnectionsRefused), 0);
}

#[tokio::test(start_paused = true)]
async fn peer_with_hanging_calls_on_few_connections_leaves_places_to_others() {
    let connections = connections(16);
    let mut permits = Vec::new();
    enter_busy(&connections, &mut permits, address(1), 12).await;
    assert!(!enter(&connections, &mut permits, address(1), false).await, "none of its own is idle");
    for _ in 0..4 {
        assert!(enter(&connections, &mut permits, address(2), false).await);
    }
    assert_eq!(permits.len(), 16);
    assert_eq!(connections.counters.value(Counter::ConnectionsEvicted), 0);
}

#[tokio::test(start_paused = true)]
async fn connections_accepted_at_once_displace_no_other_client() {
    let connections = connections(4);
    let mut permits = Vec::new();
    assert!(enter(&connections, &mut permits, address(1), false).await);
    let client = Arc::clone(&permits[0].activity);
    client.note_call();
    tokio::time::sleep(2 * IDLE_MIN).await;
    for _ in 0..2 {
        assert!(enter(&connections, &mut permits, address(2), false).await);
    }
    let not_begun = connections.enter(address(2), || false).await.unwrap();
    assert!(matches!(connections.try_enter(address(3), || false), Entry::Full), "just accepted");
    permits[1..].iter().for_each(|permit| {
        permit.activity.note_call();
        permit.activity.peer_wait.end();
    });
    tokio::time::sleep(2 * IDLE_MIN).await;
    assert!(matches!(connections.try_enter(address(3), || false), Entry::Full), "not begun");
    assert_eq!(connections.counters.value(Counter::ConnectionsEvicted), 0);
    not_begun.activity.begins(&link());
    permits.push(not_begun);
    assert!(enter(&connections, &mut permits, address(3), false).await);
    assert_eq!(permits.len(), 4);
    assert!(permits.iter().any(|permit| Arc::ptr_eq(&permit.activity, &client)));
}

#[tokio::test(start_paused = true)]
async fn first_call_that_comes_by_the_byte_keeps_no_place() {
    let connections = connections(4);
    let mut permits = Vec::new();
    for peer in 1..=2 {
        assert!(enter(&connections, &mut permits, address(peer), false).await);
        permits.last().unwrap().activity.note_call();
    }
    assert!(enter(&connections, &mut permits, address(2), false).await);
    permits[2].activity.note_call();
    assert!(enter(&connections, &mut permits, address(4), true).await);
    let stranger = Arc::clone(&permits[3].activity);
    let trickle = tokio::spawn(async move {
        loop {
            stranger.peer_wait.begin(Instant::now());
            tokio::time::sleep(IDLE_MIN / 2).await;
        }
    });
    tokio::time::sleep(2 * IDLE_MIN).await;
    let clients: Vec<_> = permits[..3].iter().map(|permit| permit.activity.clone()).collect();
    assert!(enter(&connections, &mut permits, address(3), false).await);
    let stays = |activity| permits.iter().any(|permit| Arc::ptr_eq(&permit.activity, activity));
    assert!(clients.iter().all(stays));
    trickle.abort();
}

#[tokio::test(start_paused = true)]
async fn new_connection_takes_the_place_as_soon_as_it_is_free() {
    let connections = connections(1);
    let mut permits = Vec::new();
    assert!(enter(&connections, &mut permits, address(1), false).await);
    tokio::time::sleep(2 * IDLE_MIN).await;
    let evicted = Arc::clone(&permits[0].activity);
    let began = Instant::now();
    let (permit, ()) = tokio::join!(connections.enter(address(2), || false), async {
        evicted.evicted().await;
        permits.clear();
    });
    assert!(permit.is_some());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn one_evicted_connection_makes_room_even_if_it_ends_slowly() {
    let connections = connections(2);
    let mut permits = Vec::new();
    for peer in 1..=2 {
        assert!(enter(&connections, &mut permits, address(peer), false).await);
    }
    let mut slots = Vec::new();
    for permit in &permits {
        slots.push(permit.activity.slot(0).await.unwrap());
    }
    let evictions = || connections.counters.value(Counter::ConnectionsEvicted);
    let entering = connections.enter(address(3), || false);
    assert!(tokio::time::timeout(Duration::from_secs(5), entering).await.is_err());
    assert_eq!(evictions(), 1);
    // A call that came with the eviction is completed, which may take long.
    let evicted = Arc::clone(&connections.lock().evicted[0]);
    let at = permits.iter().position(|permit| Arc::ptr_eq(&permit.activity, &evicted));
    slots[at.unwrap()].begin_call();
    let entering = connections.enter(address(3), || false);
    assert!(tokio::time::timeout(Duration::from_secs(5), entering).await.is_err());
    assert_eq!(evictions(), 2);
}

#[tokio::test(start_paused = true)]
async fn strangers_are_those_that_the_exports_of_now_do_not_admit() {
    let connections = connections(1024);
    let mut permits = Vec::new();
    for last in 1..=6 {
        assert!(enter(&connections, &mut permits, address(last), last > 2).await);
    }
    let strangers = || {
        let of_all = permits.iter().filter(|permit| permit.activity.is_stranger()).count();
        assert_eq!(connections.lock().strangers, of_all);
        of_all
    };
    assert_eq!(strangers(), 4);
    connections.find_strangers(|peer| peer == address(1));
    assert_eq!(strangers(), 1);
    assert!(permits[0].activity.is_stranger());
    connections.find_strangers(|_| true);
    assert_eq!(strangers(), 6);
    drop(permits);
    assert_eq!(connections.lock().strangers, 0);
}
