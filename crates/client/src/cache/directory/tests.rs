mod properties;
mod readdirplus;
mod simulated;

use std::collections::BTreeSet;
use std::future::Future;

use proto::nfs3::{CookieVerifier, Status};
use rustix::io::Errno;
use tokio::time::Instant;

use super::page::{Page, Provenance};
use super::*;
use crate::cache::change::Change;
use crate::error::{Error, Result};
use crate::nfs3::{Listing, Name};
use simulated::{Cookies, FULL_REPLY_BYTES, Simulated, Verifiers, error, handle};

fn run<T>(test: impl Future<Output = T>) -> T {
    // On one thread, so that each run has the same order of tasks.
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test)
}

fn config(bytes_max: usize, readdirplus: UseReaddirplus) -> Arc<ListingConfig> {
    Arc::new(ListingConfig {
        budget: Arc::new(ListingBudget::new(bytes_max)),
        readdirplus,
        reply_bytes: FULL_REPLY_BYTES,
        names_believed: Duration::ZERO,
        unstamped_believed: Duration::from_secs(3600),
        tracer: Arc::default(),
    })
}

/// A directory with room for all entries, listed by READDIR.
fn cache() -> Arc<DirectoryCache> {
    DirectoryCache::new(&config(64 << 20, UseReaddirplus::Never), 2, handle(2))
}

/// The file ids behind `cookie` up to the end, in the order of the listing.
async fn rest(reader: &Reader<Simulated>, mut cookie: u64) -> Result<Vec<u64>> {
    let mut fileids = Vec::new();
    loop {
        let page = reader.entries_after(cookie).await?;
        fileids.extend(page.iter().map(|entry| entry.fileid));
        cookie = page.last_cookie();
        if page.is_empty() {
            assert!(page.eof());
            return Ok(fileids);
        }
    }
}

async fn list(cache: &Arc<DirectoryCache>, dir: &Simulated) -> Vec<u64> {
    rest(&cache.open(dir.clone(), dir.change()), 0).await.unwrap()
}

/// Lists while `on_call` happens with each call, and returns the calls.
fn calls_while(
    dir: &Simulated,
    on_call: impl FnMut(&mut simulated::Sim) + Send + 'static,
) -> (BTreeSet<u64>, Vec<ListingRequest>) {
    dir.lock().on_call = Some(Box::new(on_call));
    let fileids = run(list(&cache(), dir));
    let distinct: BTreeSet<_> = fileids.iter().copied().collect();
    assert_eq!(distinct.len(), fileids.len(), "nothing comes twice");
    (distinct, dir.take_calls())
}

fn assert_begins_once(calls: &[ListingRequest]) {
    assert_eq!(calls.iter().filter(|call| call.cookie == 0).count(), 1);
    assert_eq!(calls[0].cookie, 0);
}

#[test]
fn calls_are_linear_in_the_size() {
    for (len, calls) in [(0, 1), (1, 1), (99, 1), (100, 1), (101, 2), (5000, 50), (50_000, 500)] {
        let dir = Simulated::new(len, 100);
        let (fileids, made) = calls_while(&dir, |_| ());
        assert_eq!(fileids, (1..=len).collect());
        assert_eq!(made.len(), calls, "{len} entries");
        assert_begins_once(&made);
    }
}

#[test]
fn a_name_added_per_page_costs_no_extra_page() {
    let dir = Simulated::new(10_000, 100);
    let (fileids, calls) = calls_while(&dir, |sim| {
        sim.add();
    });
    assert!(fileids.is_superset(&(1..=10_000).collect()));
    assert_begins_once(&calls);
    // 100 pages for the old entries, and one for the hundred entries added meanwhile.
    assert!((100..=101).contains(&calls.len()), "{}", calls.len());
}

#[test]
fn a_name_removed_for_each_page_costs_nothing() {
    let dir = Simulated::new(10_000, 100);
    let (fileids, calls) = calls_while(&dir, |sim| {
        sim.remove_any();
    });
    assert!(fileids.is_superset(&dir.lock().fileids()));
    assert_begins_once(&calls);
    assert!((99..=100).contains(&calls.len()), "{}", calls.len());
}

#[test]
fn the_last_entry_of_a_page_may_be_removed() {
    let dir = Simulated::new(1000, 100);
    let mut last = 0;
    let (fileids, calls) = calls_while(&dir, move |sim| {
        if last > 0 {
            sim.remove(last);
        }
        last += 100;
    });
    assert_eq!(fileids, (1..=1000).collect());
    assert_eq!(calls.len(), 10);
}

#[test]
fn expired_attributes_restart_no_listing() {
    let dir = Simulated::new(1000, 100);
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        let mut cookie = 0;
        let mut fileids = Vec::new();
        loop {
            dir.lock().add();
            cache.invalidate("expired");
            // As an `ls` by another process does.
            drop(cache.open(dir.clone(), dir.change()));
            let page = reader.entries_after(cookie).await.unwrap();
            fileids.extend(page.iter().map(|entry| entry.fileid));
            cookie = page.last_cookie();
            if page.eof() {
                break;
            }
        }
        assert!(
            fileids.iter().copied().collect::<BTreeSet<_>>().is_superset(&(1..=1000).collect())
        );
        let calls = dir.take_calls();
        assert_begins_once(&calls);
        assert!((10..=11).contains(&calls.len()), "{}", calls.len());
    });
}

#[test]
fn an_unchanged_directory_is_listed_again_without_a_call() {
    let dir = Simulated::new(1000, 100);
    run(async {
        let cache = cache();
        let first = list(&cache, &dir).await;
        assert_eq!(dir.take_calls().len(), 10);
        assert_eq!(list(&cache, &dir).await, first);
        assert_eq!(dir.take_calls(), []);

        // The change stamp is unknown.
        rest(&cache.open(dir.clone(), None), 0).await.unwrap();
        assert_eq!(dir.take_calls().len(), 10);

        let added = dir.lock().add();
        assert!(list(&cache, &dir).await.contains(&added));
        // An eleventh page for the last name.
        assert_eq!(dir.take_calls().len(), 11);
    });
}

#[test]
fn own_changes_are_seen_at_once_even_under_a_coarse_clock() {
    let dir = Simulated::new(1000, 100);
    run(async {
        let cache = cache();
        list(&cache, &dir).await;
        let before = dir.change();
        let added = {
            let mut sim = dir.lock();
            let added = sim.add();
            // The clock has not moved since the listing.
            sim.time -= 1;
            added
        };
        assert_eq!(dir.change(), before);
        cache.note_own_change(&simulated::name(added), dir.change());
        assert!(list(&cache, &dir).await.contains(&added));
    });
}

#[test]
fn own_changes_do_not_disturb_a_listing() {
    let dir = Simulated::new(1000, 100);
    run(async {
        let cache = cache();
        list(&cache, &dir).await;
        let reader = cache.open(dir.clone(), dir.change());
        let others = cache.open(dir.clone(), None);
        dir.take_calls();
        let mut cookie = reader.entries_after(0).await.unwrap().last_cookie();
        while cookie < 500 << 16 {
            dir.lock().remove_any();
            cache.note_own_change(b"some name", dir.change());
            cookie = reader.entries_after(cookie).await.unwrap().last_cookie();
        }
        let calls = dir.take_calls();
        assert!(calls.iter().all(|call| call.cookie != 0), "{calls:?}");
        drop(others);
    });
}

/// Lists with concurrent readers, page by page.
async fn together(
    cache: &Arc<DirectoryCache>,
    dir: &Simulated,
    readers: usize,
) -> Vec<BTreeSet<u64>> {
    let tasks: Vec<_> = (0..readers)
        .map(|_| {
            let reader = cache.open(dir.clone(), dir.change());
            tokio::spawn(async move { rest(&reader, 0).await.unwrap() })
        })
        .collect();
    let mut lists = Vec::new();
    for task in tasks {
        let fileids = task.await.unwrap();
        let distinct: BTreeSet<_> = fileids.iter().copied().collect();
        assert_eq!(distinct.len(), fileids.len());
        lists.push(distinct);
    }
    lists
}

#[test]
fn four_readers_at_once_make_the_calls_of_one() {
    for changes in [false, true] {
        for cookies in [Cookies::Ascending, Cookies::High, Cookies::Scrambled] {
            let dir = Simulated::new(10_000, 100);
            dir.lock().cookies = cookies;
            dir.lock().on_call = Some(Box::new(move |sim| {
                if changes {
                    sim.add();
                    sim.remove(sim.time % 50 + 9000);
                }
            }));
            let lists = run(together(&cache(), &dir, 4));
            let stayed: BTreeSet<_> =
                (1..=10_000).filter(|fileid| !dir.lock().removed.contains_key(fileid)).collect();
            assert!(lists.iter().all(|list| list.is_superset(&stayed)));
            let calls = dir.take_calls().len();
            assert!((100..=104).contains(&calls), "{calls} with {cookies:?}, {changes}");
        }
    }
}

#[test]
fn a_reader_that_comes_later_joins_the_others() {
    let dir = Simulated::new(10_000, 100);
    dir.lock().on_call = Some(Box::new(|sim| {
        sim.add();
    }));
    run(async {
        let cache = cache();
        let first = cache.open(dir.clone(), dir.change());
        let half = first.entries_after(0).await.unwrap().last_cookie();
        let mut cookie = half;
        for _ in 0..49 {
            cookie = first.entries_after(cookie).await.unwrap().last_cookie();
        }
        tokio::task::yield_now().await;
        assert_eq!(dir.take_calls().len(), 51, "with one ahead");
        let late = cache.open(dir.clone(), dir.change());
        // The first goes on, then the late one, which fetches only the pages older than itself.
        rest(&first, cookie).await.unwrap();
        dir.take_calls();
        assert!(rest(&late, 0).await.unwrap().len() >= 10_000);
        let by_late = dir.take_calls().len();
        assert!((50..=53).contains(&by_late), "{by_late}");
    });
}

#[test]
fn any_cookie_can_be_sought() {
    for cookies in [Cookies::Ascending, Cookies::High, Cookies::Scrambled] {
        let dir = Simulated::new(500, 50);
        dir.lock().cookies = cookies;
        run(async {
            let cache = cache();
            let reader = cache.open(dir.clone(), dir.change());
            let mut places = vec![0];
            while let Some(last) = places.last().copied() {
                let page = reader.entries_after(last).await.unwrap();
                if page.is_empty() {
                    break;
                }
                places.extend(page.iter().map(|entry| entry.cookie));
            }
            assert_eq!(places.len(), 501);
            dir.take_calls();
            for nth in [500, 3, 250, 499, 50, 51, 449, 0, 120] {
                let expected: Vec<_> = (nth + 1..=500).collect();
                let cookie = places[usize::try_from(nth).unwrap()];
                assert_eq!(rest(&reader, cookie).await.unwrap(), expected, "{cookies:?} {nth}");
            }
            assert_eq!(dir.take_calls(), []);

            // Without a cached page the call begins at this cookie.
            let fresh = DirectoryCache::new(&config(0, UseReaddirplus::Never), 2, handle(2));
            let reader = fresh.open(dir.clone(), dir.change());
            let page = reader.entries_after(places[77]).await.unwrap();
            assert_eq!(page.iter().next().unwrap().fileid, 78);
            assert_eq!(dir.take_calls()[0].cookie, places[77]);
        });
    }
}

#[test]
fn a_rewound_reader_sees_changes() {
    let dir = Simulated::new(200, 50);
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        rest(&reader, 0).await.unwrap();
        dir.take_calls();
        reader.rewind(dir.change());
        assert_eq!(rest(&reader, 0).await.unwrap().len(), 200);
        assert_eq!(dir.take_calls(), []);
        let added = dir.lock().add();
        reader.rewind(dir.change());
        assert!(rest(&reader, 0).await.unwrap().contains(&added));
    });
}

#[test]
fn the_end_of_the_directory_is_fetched_once() {
    let dir = Simulated::new(10, 50);
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        let page = reader.entries_after(0).await.unwrap();
        assert!(page.eof() && page.len() == 10);
        for _ in 0..3 {
            assert!(reader.entries_after(page.last_cookie()).await.unwrap().is_empty());
        }
        // In the middle of a page, as after a full buffer.
        let fifth = page.iter().nth(4).unwrap().cookie;
        let behind = reader.entries_after(fifth).await.unwrap();
        assert_eq!(behind.iter().map(|entry| entry.fileid).collect::<Vec<_>>(), [6, 7, 8, 9, 10]);
        assert_eq!(dir.take_calls().len(), 1);
    });
}

#[test]
fn a_reader_that_stops_leaves_one_page_unread() {
    let dir = Simulated::new(1000, 10);
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        let page = reader.entries_after(0).await.unwrap();
        let second = reader.entries_after(page.last_cookie()).await.unwrap();
        for entry in second.iter().take(9) {
            reader.entries_after(entry.cookie).await.unwrap();
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(dir.take_calls().len(), 3);
    });
}

#[test]
fn the_next_page_is_fetched_while_one_is_read() {
    let dir = Simulated::new(1000, 10);
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        let mut cookie = 0;
        for pages in 1..20 {
            cookie = reader.entries_after(cookie).await.unwrap().last_cookie();
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!(dir.lock().calls.len(), pages + 1, "one ahead, from the first page on");
        }
    });
}

#[test]
fn a_cancelled_reader_cancels_nothing_for_others() {
    let dir = Simulated::new(100, 100);
    dir.lock().turns_max = 50;
    run(async {
        let cache = cache();
        let first = cache.open(dir.clone(), dir.change());
        let second = cache.open(dir.clone(), dir.change());
        let first = tokio::spawn(async move { first.entries_after(0).await });
        tokio::task::yield_now().await;
        let second = tokio::spawn(async move { second.entries_after(0).await });
        tokio::task::yield_now().await;
        first.abort();
        assert_eq!(second.await.unwrap().unwrap().len(), 100);
        assert_eq!(dir.take_calls().len(), 1);
    });
}

#[test]
fn a_dropped_directory_cancels_its_calls() {
    let dir = Simulated::new(100, 100);
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        dir.lock().turns_max = 1 << 40;
        let asking = tokio::time::timeout(Duration::from_millis(5), reader.entries_after(0));
        assert!(asking.await.is_err());
        let clones = dir.clones();
        drop((reader, cache));
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(dir.clones() < clones - 1, "the task has ended as well as the reader");
    });
}

#[test]
fn errors_are_shared_and_not_cached() {
    let dir = Simulated::new(100, 100);
    dir.lock().turns_max = 20;
    run(async {
        let cache = cache();
        dir.lock().failures.push(error(Status::Io));
        let readers: Vec<_> = (0..4).map(|_| cache.open(dir.clone(), dir.change())).collect();
        let tasks: Vec<_> = (readers.into_iter())
            .map(|reader| tokio::spawn(async move { (reader.entries_after(0).await, reader) }))
            .collect();
        let mut readers = Vec::new();
        for task in tasks {
            let (outcome, reader) = task.await.unwrap();
            assert!(outcome.unwrap_err().is(Status::Io));
            readers.push(reader);
        }
        assert_eq!(dir.take_calls().len(), 1);
        for reader in readers {
            assert_eq!(reader.entries_after(0).await.unwrap().len(), 100);
        }
        assert_eq!(dir.take_calls().len(), 1);
    });
}

#[test]
fn a_page_that_failed_ahead_is_fetched_again() {
    let dir = Simulated::new(100, 50);
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        let page = reader.entries_after(0).await.unwrap();
        dir.lock().failures.push(error(Status::Jukebox));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(dir.take_calls().len(), 2);
        assert_eq!(reader.entries_after(page.last_cookie()).await.unwrap().len(), 50);
        assert_eq!(dir.take_calls().len(), 1);
    });
}

#[test]
fn a_permission_error_of_one_user_is_retried_as_another() {
    let dir = Simulated::new(100, 100);
    dir.lock().turns_max = 20;
    run(async {
        let cache = cache();
        dir.lock().failures.push(error(Status::Acces));
        let readers = [(); 2].map(|()| cache.open(dir.clone(), dir.change()));
        let [first, second] =
            readers.map(|reader| tokio::spawn(async move { reader.entries_after(0).await }));
        assert!(first.await.unwrap().unwrap_err().is(Status::Acces));
        assert_eq!(second.await.unwrap().unwrap().len(), 100);
        assert_eq!(dir.take_calls().len(), 2);
    });
}

#[test]
fn a_rejected_verifier_is_replaced_by_zeros() {
    let dir = Simulated::new(1000, 100);
    dir.lock().verifiers = Verifiers::OfChange;
    let (fileids, calls) = calls_while(&dir, |sim| {
        // Not with each call, or the retry without a verifier would see another change.
        if sim.calls.len().is_multiple_of(3) {
            sim.add();
        }
    });
    assert!(fileids.is_superset(&(1..=1000).collect()));
    assert_begins_once(&calls);
    assert_eq!(calls[0].verifier, CookieVerifier::default(), "RFC 1813 §3.3.16");
    for pair in calls.windows(2).filter(|pair| pair[0].cookie == pair[1].cookie) {
        assert_ne!(pair[0].verifier, CookieVerifier::default());
        assert_eq!(pair[1].verifier, CookieVerifier::default());
    }
}

#[test]
fn a_rejected_cookie_is_an_error_and_restarts_nothing() {
    let dir = Simulated::new(1000, 100);
    dir.lock().verifiers = Verifiers::Forgetful;
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        let page = reader.entries_after(0).await.unwrap();
        let error = reader.entries_after(page.last_cookie()).await.unwrap_err();
        assert!(error.is(Status::BadCookie), "{error}");
        let calls = dir.take_calls();
        assert_begins_once(&calls);
        assert_eq!(calls.len(), 3, "the beginning, and with either verifier");
    });
}

#[test]
fn a_page_without_entries_or_eof_is_an_error() {
    let dir = Simulated::new(1000, 100);
    dir.lock().page_len = 0;
    run(async {
        let cache = cache();
        let reader = cache.open(dir.clone(), dir.change());
        let error = reader.entries_after(0).await.unwrap_err();
        assert!(matches!(error, Error::Malformed { procedure: "READDIR", .. }), "{error}");
    });
}

#[test]
fn memory_is_bounded_and_released() {
    let config = config(100_000, UseReaddirplus::Never);
    let dirs: Vec<_> = (0..10).map(|_| Simulated::new(1000, 100)).collect();
    let caches: Vec<_> = (0..10).map(|i| DirectoryCache::new(&config, i, handle(i))).collect();
    run(async {
        for _ in 0..2 {
            for (cache, dir) in caches.iter().zip(&dirs) {
                assert_eq!(list(cache, dir).await.len(), 1000);
                assert!(config.budget.bytes() <= 100_000);
            }
        }
        assert!(config.budget.bytes() > 90_000, "{}", config.budget.bytes());
        // The most recently used ones are still cached.
        for nth in [9, 8] {
            dirs[nth].take_calls();
            list(&caches[nth], &dirs[nth]).await;
            assert_eq!(dirs[nth].take_calls(), []);
        }
        dirs[0].take_calls();
        list(&caches[0], &dirs[0]).await;
        assert_eq!(dirs[0].take_calls().len(), 10);
    });
    drop(caches);
    assert_eq!(config.budget.bytes(), 0);
}

#[test]
fn a_reader_needs_no_room_in_the_cache() {
    for bytes_max in [0, 3000] {
        let dir = Simulated::new(1000, 100);
        let config = config(bytes_max, UseReaddirplus::Never);
        let cache = DirectoryCache::new(&config, 2, handle(2));
        assert_eq!(run(list(&cache, &dir)), (1..=1000).collect::<Vec<_>>());
        assert_eq!(dir.take_calls().len(), 10);
    }
}

/// A server that returns these cookies behind a cookie, and never `eof`.
#[derive(Clone)]
struct Endless(fn(u64) -> Vec<u64>);

impl ListingSource for Endless {
    async fn list(
        &self,
        request: ListingRequest,
        _note: impl FnOnce(Change) + Send,
    ) -> Result<Listing> {
        let names = (self.0)(request.cookie).into_iter().map(|cookie| Name {
            fileid: cookie + 1,
            name: format!("name {cookie}").into(),
            cookie,
            attributes: None,
            handle: None,
        });
        let (names, verifier) = (names.collect(), CookieVerifier::default());
        Ok(Listing { dir_attributes: None, verifier, names, eof: false })
    }
}

#[test]
fn an_endless_listing_is_an_error() {
    for cookies in [
        // The same page for each cookie.
        (|_| (1..=10).collect()) as fn(u64) -> Vec<u64>,
        |_| vec![0],
        |_| vec![5; 10],
        // The last cookie is that of the first entry.
        |_| vec![1, 2, 3, 1],
        // Two and three pages in turn.
        |cookie| if cookie == 10 { (11..=20).collect() } else { (1..=10).collect() },
        |cookie| vec![cookie % 30 + 10],
    ] {
        let error = run(async {
            let (cache, mut cookie) = (cache(), 0);
            let reader = cache.open(Endless(cookies), None);
            for _ in 0..100 {
                match reader.entries_after(cookie).await {
                    Ok(page) => cookie = page.last_cookie(),
                    Err(error) => return error,
                }
            }
            panic!("it goes on");
        });
        assert!(matches!(error, Error::ListingLoop { .. }), "{error}");
        assert_eq!(error.errno(), Errno::LOOP);
    }
}

#[test]
fn a_last_page_that_leads_back_is_an_error() {
    let page = |start_cookie, cookies: &[u64]| {
        let names = cookies.iter().map(|&cookie| Name {
            fileid: cookie,
            name: b"name".as_slice().into(),
            cookie,
            attributes: None,
            handle: None,
        });
        let (names, verifier) = (names.collect(), CookieVerifier::default());
        let listing = Listing { dir_attributes: None, verifier, names, eof: true };
        let provenance = Provenance {
            start_cookie,
            plus: false,
            stamp: None,
            issued: 0,
            sent_at: Instant::now(),
        };
        Page::new(&listing, provenance)
    };
    assert!(page(0, &[1, 2]).is_ok() && page(2, &[1, 3]).is_ok() && page(2, &[]).is_ok());
    // As from go-nfs, whose first entry is `.`. A reader continues behind the last.
    assert!(page(0, &[0, 1, 2]).is_ok() && page(2, &[2, 3]).is_ok());
    // The kernel takes 0 for a rewind.
    for (start, cookies) in [(0, &[1, 0][..]), (2, &[3, 0]), (2, &[3, 2])] {
        let error = page(start, cookies).unwrap_err();
        assert!(matches!(error, Error::ListingLoop { .. }), "{cookies:?} behind {start}: {error}");
    }
}
