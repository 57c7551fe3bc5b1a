use std::sync::Weak;

use proptest::prelude::*;
use rpc::server::Socket;

use super::*;

const ADDRESS: &str = "192.0.2.1";

fn key(xid: u32) -> CallKey {
    key_of(ADDRESS, xid)
}

fn key_of(address: &str, xid: u32) -> CallKey {
    let (program, version, procedure) = (100_003, 3, 8);
    CallKey { address: address.parse().unwrap(), xid, program, version, procedure, content: 1 }
}

fn link(port: u16) -> Arc<Link> {
    link_to(&format!("{ADDRESS}:{port}"))
}

/// A link whose transport is gone.
fn link_to(peer: &str) -> Arc<Link> {
    let transport = Weak::<Socket>::new();
    Arc::new(Link::new(peer.parse().unwrap(), transport))
}

/// Runs a call to its end and gives its reply the place up to `end` among the link's bytes.
fn run(calls: &mut Calls, key: CallKey, link: &Arc<Link>, reply: &[u8], end: u64, now: Instant) {
    assert!(matches!(calls.begin(key, link, now), Step::Run));
    let receipt = Arc::new(Receipt::new(Arc::clone(link)));
    receipt.ends_at(end);
    calls.complete(key, reply, receipt, now);
}

fn replayed(step: Step) -> Vec<u8> {
    match step {
        Step::Replay(replay) => replay.reply,
        other => panic!("not replayed: {other:?}"),
    }
}

#[test]
fn same_connection_and_same_port_replay_an_acknowledged_reply() {
    let (mut calls, now, first) = (Calls::default(), Instant::now(), link(700));
    run(&mut calls, key(1), &first, b"done", 10, now);
    first.acknowledge(10);
    assert_eq!(replayed(calls.begin(key(1), &first, now)), b"done");
    first.end();
    assert_eq!(replayed(calls.begin(key(1), &link(700), now)), b"done");
}

#[test]
fn another_port_is_a_new_call_once_the_reply_was_acknowledged() {
    let (mut calls, now, first) = (Calls::default(), Instant::now(), link(700));
    run(&mut calls, key(1), &first, b"done", 10, now);
    let other = link(701);
    assert!(matches!(calls.begin(key(1), &other, now), Step::Wait(Wait::Delivery)));
    first.acknowledge(9);
    assert!(matches!(calls.begin(key(1), &other, now), Step::Wait(Wait::Delivery)));
    first.acknowledge(10);
    run(&mut calls, key(1), &other, b"again", 20, now);
    assert_eq!(replayed(calls.begin(key(1), &other, now)), b"again");
    assert_eq!(calls.bytes, ENTRY_BYTES + 5);
}

#[test]
fn another_port_replays_a_lost_reply() {
    let (mut calls, now, first) = (Calls::default(), Instant::now(), link(700));
    run(&mut calls, key(1), &first, b"done", 10, now);
    first.acknowledge(9);
    first.end();
    assert_eq!(replayed(calls.begin(key(1), &link(701), now)), b"done");
}

#[test]
fn another_port_replays_a_reply_that_a_silent_peer_does_not_acknowledge() {
    let (mut calls, now, first) = (Calls::default(), Instant::now(), link(700));
    run(&mut calls, key(1), &first, b"done", 10, now);
    let soon = now + ACKNOWLEDGED_WITHIN;
    assert!(matches!(calls.begin(key(1), &link(701), soon), Step::Wait(Wait::Delivery)));
    let later = soon + Duration::from_millis(1);
    assert_eq!(replayed(calls.begin(key(1), &link(701), later)), b"done");
}

#[test]
fn a_reply_that_was_not_sent_before_its_connection_ended_is_replayed() {
    let (mut calls, now, first) = (Calls::default(), Instant::now(), link(700));
    first.acknowledge(1000);
    first.end();
    run(&mut calls, key(1), &first, b"done", 0, now);
    assert_eq!(replayed(calls.begin(key(1), &link(701), now)), b"done");
}

#[test]
fn a_copy_on_another_connection_waits_for_the_first_to_end() {
    let (mut calls, now) = (Calls::default(), Instant::now());
    let (first, second) = (link(700), link(701));
    assert!(matches!(calls.begin(key(1), &first, now), Step::Run));
    assert!(matches!(calls.begin(key(1), &first, now), Step::Duplicate));
    let Step::Wait(Wait::End(mut ended)) = calls.begin(key(1), &second, now) else { panic!() };
    assert!(matches!(calls.begin(key(1), &second, now), Step::Duplicate));
    assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    calls.abandon(&key(1));
    assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert!(matches!(calls.begin(key(1), &second, now), Step::Run));
}

#[test]
fn any_difference_is_another_call() {
    let (mut calls, now, first) = (Calls::default(), Instant::now(), link(700));
    run(&mut calls, key(1), &first, b"done", 10, now);
    for other in [
        key_of("192.0.2.2", 1),
        key(2),
        CallKey { program: 100_005, ..key(1) },
        CallKey { version: 4, ..key(1) },
        CallKey { procedure: 9, ..key(1) },
        CallKey { content: 2, ..key(1) },
    ] {
        assert!(matches!(calls.begin(other, &first, now), Step::Run), "{other:?}");
    }
}

#[test]
fn replies_are_forgotten_after_their_lifetime() {
    let (mut calls, now, first) = (Calls::default(), Instant::now(), link(700));
    run(&mut calls, key(1), &first, b"done", 10, now);
    let later = now + LIFETIME + Duration::from_millis(1);
    assert!(matches!(calls.begin(key(1), &first, later), Step::Run));
    assert!(calls.shares.is_empty() && calls.by_age.is_empty() && calls.bytes == 0);
}

#[test]
fn a_hundred_thousand_calls_of_one_client_leave_the_reply_of_another() {
    let (mut calls, now, first) = (Calls::default(), Instant::now(), link(700));
    run(&mut calls, key(1), &first, b"kept", 10, now);
    let busy = link_to("192.0.2.9:800");
    for xid in 0..100_000 {
        run(&mut calls, key_of("192.0.2.9", xid), &busy, &[0; 300], 1, now);
    }
    assert!(calls.bytes <= SHARE_BYTES_MAX + ENTRY_BYTES + 4);
    assert_eq!(replayed(calls.begin(key(1), &first, now)), b"kept");
    let last = calls.begin(key_of("192.0.2.9", 99_999), &busy, now);
    assert_eq!(replayed(last).len(), 300);
}

#[test]
fn under_the_bound_for_all_the_largest_share_loses_its_oldest_reply() {
    let (mut calls, now) = (Calls::default(), Instant::now());
    let small = link(700);
    run(&mut calls, key(1), &small, b"kept", 10, now);
    let fill = SHARE_BYTES_MAX / (ENTRY_BYTES + 488);
    for client in 0..8 {
        let address = format!("198.51.100.{client}");
        let busy = link_to(&format!("{address}:800"));
        for xid in 0..u32::try_from(fill).unwrap() {
            run(&mut calls, key_of(&address, xid), &busy, &[0; 488], 1, now);
        }
    }
    assert!(calls.bytes <= BYTES_MAX);
    assert_eq!(replayed(calls.begin(key(1), &small, now)), b"kept");
}

/// One thing that happens to the registry.
#[derive(Clone, Debug)]
enum Event {
    /// Call `.0` of client `.1` comes over that client's link `.2`; if it is to run, it ends with a
    /// reply of `.3` bytes, or without one.
    Call(u32, usize, usize, Option<usize>),
    Acknowledge(usize, usize),
    /// The link breaks; another with the same port takes its place.
    Break(usize, usize),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let reply = prop::option::weighted(0.9, 0..300_000_usize);
    prop_oneof![
        8 => (0..6_u32, 0..3_usize, 0..3_usize, reply)
            .prop_map(|(xid, client, link, reply)| Event::Call(xid, client, link, reply)),
        2 => (0..3_usize, 0..3_usize).prop_map(|(client, link)| Event::Acknowledge(client, link)),
        1 => (0..3_usize, 0..3_usize).prop_map(|(client, link)| Event::Break(client, link)),
        2 => (0..50_000_u64).prop_map(Event::Pass),
    ]
}

/// The registry beside what was done with it.
struct Model {
    calls: Calls,
    now: Instant,
    links: Vec<Vec<Arc<Link>>>,
    /// The last reply to each call, when it was made, and where it was sent last.
    replies: HashMap<CallKey, (Vec<u8>, Instant, Arc<Link>, u64)>,
    sent: u64,
}

impl Model {
    fn new() -> Self {
        let port = |client, port| link_to(&format!("192.0.2.{client}:{}", 700 + port));
        let links = (0..3).map(|client| (0..3).map(|p| port(client, p)).collect()).collect();
        let (calls, replies) = (Calls::default(), HashMap::new());
        Self { calls, now: Instant::now(), links, replies, sent: 0 }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Call(xid, client, link, reply) => self.call(xid, client, link, reply),
            Event::Acknowledge(client, link) => self.links[client][link].acknowledge(self.sent),
            Event::Break(client, link) => {
                let link = &mut self.links[client][link];
                link.end();
                *link = link_to(&link.peer().to_string());
            }
            Event::Pass(millis) => self.now += Duration::from_millis(millis),
        }
    }

    fn call(&mut self, xid: u32, client: usize, link: usize, reply: Option<usize>) {
        let key = key_of(&format!("192.0.2.{client}"), xid);
        let link = Arc::clone(&self.links[client][link]);
        match self.calls.begin(key, &link, self.now) {
            Step::Run => match reply {
                Some(len) => {
                    self.sent += 1;
                    let reply = vec![u8::try_from(self.sent % 251).unwrap(); len];
                    let receipt = Arc::new(Receipt::new(Arc::clone(&link)));
                    receipt.ends_at(self.sent);
                    self.calls.complete(key, &reply, receipt, self.now);
                    self.replies.insert(key, (reply, self.now, link, self.sent));
                }
                None => self.calls.abandon(&key),
            },
            Step::Replay(replay) => {
                let known = self.replies.get_mut(&key).expect("a reply was stored");
                assert_eq!(replay.reply, known.0, "the last reply");
                assert!(self.now - known.1 <= LIFETIME);
                if known.2.peer() != link.peer() {
                    let receipt = Receipt::new(Arc::clone(&known.2));
                    receipt.ends_at(known.3);
                    assert_ne!(receipt.delivery(), Delivery::Acknowledged);
                }
                self.sent += 1;
                replay.receipt.ends_at(self.sent);
                (known.2, known.3) = (link, self.sent);
            }
            Step::Wait(Wait::Delivery) => {
                assert_ne!(self.replies[&key].2.peer(), link.peer());
            }
            other @ (Step::Duplicate | Step::Wait(Wait::End(_))) => panic!("{other:?}: none runs"),
        }
    }

    fn check(&self) {
        let calls = &self.calls;
        let stored = |address: Option<IpAddr>| -> usize {
            let of = |key: &CallKey| address.is_none_or(|address| address == key.address);
            let bytes = |(_, call): (_, &Call)| match call {
                Call::Done(done) => done.bytes(),
                Call::Running(_) => 0,
            };
            calls.calls.iter().filter(|(key, _)| of(key)).map(bytes).sum()
        };
        assert_eq!(calls.bytes, stored(None));
        assert!(calls.bytes <= BYTES_MAX);
        assert_eq!(calls.by_age.len(), calls.calls.len());
        assert_eq!(calls.by_bytes.len(), calls.shares.len());
        for (address, share) in &calls.shares {
            assert_eq!(share.bytes, stored(Some(*address)));
            assert!(share.bytes <= SHARE_BYTES_MAX && share.bytes > 0);
            assert!(calls.by_bytes.contains(&(share.bytes, *address)));
            assert!(share.calls.iter().all(|(number, key)| calls.by_age[number] == *key));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn replays_are_the_last_reply_and_the_books_are_right(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut model = Model::new();
        for event in events {
            model.apply(event);
            model.check();
        }
    }
}
