//! The limits of exports: calls and bytes per second.

use spillway_server::counters::Counter;

use crate::fixture::Fixture;

const MIB: u32 = 1 << 20;

/// An export with these limits.
fn with_limits(limits: &str) -> String {
    format!("[[export]]\npath = \"$DIR/export\"\nname = \"/export\"\nsquash = \"none\"\n{limits}")
}

/// A file of 1 MiB.
fn file(fixture: &Fixture) {
    std::fs::write(fixture.exported("f"), vec![1; MIB as usize]).unwrap();
}

#[test]
fn a_wait_for_a_limit_is_counted_once() {
    let fixture = Fixture::with(&with_limits("bytes_per_sec = \"64KiB\""));
    file(&fixture);
    let (mut client, root) = fixture.mounted();
    let file = client.find(root, "f");
    // 4 s at the limit, and then what the first GETATTR takes.
    client.read(file, 0, MIB / 4).unwrap();
    client.getattr(root).unwrap();
    client.getattr(root).unwrap();
    let waits = fixture.counter(Counter::LimitWaits);
    assert!((1..=2).contains(&waits), "{waits}");
}
