use client::nfs3::Name;
use proto::nfs3::{Entry, EntryPlus, FileHandle, ReaddirOk, ReaddirplusOk};
use proto::xdr::{Encode, List, Writer};

use super::*;

fn listed(parts: &[(usize, u64)]) -> Listed {
    let mut first = 0;
    let part = |&(entries, took_us): &(usize, u64)| {
        let part = Part { first, entries, took: Duration::from_micros(took_us) };
        first += entries;
        part
    };
    let parts: Vec<_> = parts.iter().map(part).collect();
    Listed {
        numbers: vec![Some(0); first],
        changes: None,
        reply_bytes_max: 0,
        calls: parts.len() as u64,
        calls_from_start: 1,
        reply_bytes: Some(0),
        spent: Spent::default(),
        parts,
    }
}

#[test]
fn costs_are_recorded_by_position() {
    let even = listed(&[(50, 500), (50, 500)]);
    assert_eq!(even.figures().get(&Figure::LastTenthToFirst), None, "half is no tenth");
    assert_eq!(listed(&[(10, 100); 10]).figures()[&Figure::LastTenthToFirst], 1.0);
    let [first, second] = even.positions()[..] else { panic!("a position for each call") };
    assert_eq!(first, Position { entry: 0, us_per_entry: 10.0 });
    assert_eq!(second, Position { entry: 50, us_per_entry: 10.0 });

    // The seed's client: each call costs more than the one before.
    let parts: Vec<_> = (1..=1000).map(|nth| (10, nth * 100)).collect();
    let rising = listed(&parts);
    let positions = rising.positions();
    assert_eq!((positions.len(), positions[1].entry), (100, 100));
    assert_eq!(positions[0].us_per_entry, (1..=10).sum::<u64>() as f64 * 100.0 / 100.0);
    // Calls 901 to 1,000 beside calls 1 to 100.
    let expected = (901..=1000).sum::<u64>() as f64 / (1..=100).sum::<u64>() as f64;
    let ratio = rising.figures()[&Figure::LastTenthToFirst];
    assert!((ratio - expected).abs() < 1e-9, "{ratio}, not {expected}");
}

#[test]
fn latencies_are_those_of_calls() {
    let parts: Vec<_> = (1..=100).rev().map(|nth| (1, nth)).collect();
    let figures = listed(&parts).figures();
    let of = |figure: Figure| figures[&figure].round();
    assert_eq!(of(Figure::LatencyP50Us), 50.0);
    assert_eq!(of(Figure::LatencyP95Us), 95.0);
    assert_eq!(of(Figure::LatencyMaxUs), 100.0);
    assert_eq!(figures[&Figure::Calls], 100.0);
    assert!((figures[&Figure::Secs] - 5050e-6).abs() < 1e-9);
}

/// The protocol's own encoder knows.
#[test]
fn replies_are_as_long_as_they_are_encoded() {
    let entry = |name: &'static [u8], handle: Option<&[u8]>| Name {
        fileid: 7,
        name: name.into(),
        cookie: 8,
        attributes: None,
        handle: handle.map(|bytes| FileHandle::new(bytes).unwrap()),
    };
    let names = vec![entry(b"a", Some(b"12345")), entry(b"four", None), entry(b"fives", Some(b""))];
    let verifier = CookieVerifier::default();
    let listing = Listing { dir_attributes: None, verifier, names, eof: true };
    const STATUS_BYTES: u64 = 4;

    let dir_attributes = None;
    let entries: Vec<Entry<'_>> = listing
        .names
        .iter()
        .map(|name| Entry { fileid: name.fileid, name: &name.name, cookie: name.cookie })
        .collect();
    let mut w = Writer::new();
    let entries = List::from(&entries[..]);
    ReaddirOk { dir_attributes, verifier, entries, eof: true }.encode(&mut w);
    assert_eq!(result_bytes(&listing, false), STATUS_BYTES + w.len() as u64);

    let entries: Vec<EntryPlus<'_>> = listing
        .names
        .iter()
        .map(|Name { fileid, name, cookie, attributes, handle }| EntryPlus {
            fileid: *fileid,
            name,
            cookie: *cookie,
            attributes: *attributes,
            handle: *handle,
        })
        .collect();
    let mut w = Writer::new();
    let entries = List::from(&entries[..]);
    ReaddirplusOk { dir_attributes, verifier, entries, eof: true }.encode(&mut w);
    assert_eq!(result_bytes(&listing, true), STATUS_BYTES + w.len() as u64);
}
