//! The choice between READDIR and READDIRPLUS, and lookups in listings.

use tokio::time::Instant;

use super::super::learned::Learned;
use super::simulated::{Simulated, attributes, name};
use super::*;

fn cache_with(readdirplus: UseReaddirplus) -> Arc<DirectoryCache> {
    DirectoryCache::new(&config(64 << 20, readdirplus), 2, handle(2))
}

/// A cache in which handles are used for `names_believed` after a foreign change, and those of a
/// page without a stamp no longer.
fn cache_believing(names_believed: Duration) -> Arc<DirectoryCache> {
    let config = Arc::into_inner(config(64 << 20, UseReaddirplus::Always)).unwrap();
    let config = ListingConfig { names_believed, unstamped_believed: Duration::ZERO, ..config };
    DirectoryCache::new(&Arc::new(config), 2, handle(2))
}

/// For each call since the last use of this, whether it was READDIRPLUS.
fn plus_calls(dir: &Simulated) -> Vec<bool> {
    dir.take_calls().iter().map(|call| call.plus).collect()
}

/// Lists, and looks up the first `lookups` names of each page.
async fn list_and_look_up(cache: &Arc<DirectoryCache>, dir: &Simulated, lookups: usize) {
    let reader = cache.open(dir.clone(), dir.change());
    let mut cookie = 0;
    loop {
        let page = reader.entries_after(cookie).await.unwrap();
        for entry in page.iter().take(lookups) {
            let found = cache.lookup(entry.name);
            assert_eq!(found.map(|found| found.handle), entry.handle);
        }
        // As after a buffer of entries, and not a whole page.
        let consumed = page.iter().take(lookups.max(1)).last();
        cookie = consumed.map_or(page.last_cookie(), |entry| entry.cookie);
        if page.is_empty() {
            break;
        }
    }
}

#[test]
fn always_and_never_are_obeyed() {
    let dir = Simulated::new(400, 100);
    for (policy, plus) in [(UseReaddirplus::Always, true), (UseReaddirplus::Never, false)] {
        let cache = cache_with(policy);
        run(list_and_look_up(&cache, &dir, 20));
        assert_eq!(plus_calls(&dir), [plus; 4]);
    }
}

#[test]
fn a_listing_without_lookups_takes_only_a_sample() {
    let dir = Simulated::new(425, 100);
    run(async {
        let cache = cache_with(UseReaddirplus::Learned);
        list(&cache, &dir).await;
        let calls = dir.take_calls();
        let plus: Vec<_> = calls.iter().map(|call| call.plus).collect();
        assert_eq!(plus, [true, false, false, false, false]);
        assert!(calls[0].bytes_max < calls[1].bytes_max, "{calls:?}");
        // No lookups: the next listing does not even take a sample.
        dir.lock().add();
        list(&cache, &dir).await;
        assert_eq!(plus_calls(&dir), [false; 5]);
    });
}

#[test]
fn lookups_switch_a_listing_to_readdirplus() {
    let dir = Simulated::new(1000, 100);
    run(async {
        let cache = cache_with(UseReaddirplus::Learned);
        list_and_look_up(&cache, &dir, 10).await;
        let calls = dir.take_calls();
        let plus: Vec<_> = calls.iter().map(|call| call.plus).collect();
        // The sample of 25, the page fetched ahead by READDIR, and the same again by READDIRPLUS.
        assert_eq!(plus[..3], [true, false, true]);
        assert_eq!(calls[1].cookie, calls[2].cookie);
        assert!(plus[2..].iter().all(|plus| *plus));
        assert!(calls.len() <= 13, "{}", calls.len());

        // The next listing needs attributes from the beginning, and they are cached.
        list_and_look_up(&cache, &dir, 10).await;
        assert_eq!(plus_calls(&dir), [true; 0]);
        dir.lock().add();
        list_and_look_up(&cache, &dir, 0).await;
        assert_eq!(plus_calls(&dir), [true; 11]);
        // That listing used none of them.
        dir.lock().add();
        list_and_look_up(&cache, &dir, 0).await;
        assert_eq!(plus_calls(&dir), [false; 11]);
    });
}

#[test]
fn a_page_without_attributes_is_fetched_again_when_they_are_needed() {
    let dir = Simulated::new(1000, 500);
    run(async {
        let cache = cache_with(UseReaddirplus::Learned);
        let reader = cache.open(dir.clone(), dir.change());
        let sample = reader.entries_after(0).await.unwrap();
        assert!(sample.plus());
        let plain = reader.entries_after(sample.last_cookie()).await.unwrap();
        assert!(!plain.plus());
        let consumed: Vec<_> = plain.iter().take(20).collect();
        for entry in &consumed {
            assert_eq!(cache.lookup(entry.name), None);
        }
        let rest = reader.entries_after(consumed[19].cookie).await.unwrap();
        assert!(rest.plus());
        let first = rest.iter().next().unwrap();
        assert_eq!(first.fileid, consumed[19].fileid + 1);
        assert_eq!(first.attributes, Some(&attributes(first.fileid, first.fileid)));
        assert_eq!(first.handle, Some(handle(first.fileid)));
    });
}

#[test]
fn readdirplus_is_tried_once_at_a_server_without_it() {
    let dir = Simulated::new(400, 100);
    dir.lock().refuses_plus = true;
    for policy in [UseReaddirplus::Always, UseReaddirplus::Learned] {
        let cache = cache_with(policy);
        run(async {
            assert_eq!(list(&cache, &dir).await.len(), 400);
            assert_eq!(plus_calls(&dir).iter().filter(|plus| **plus).count(), 1);
        });
    }
}

#[test]
fn names_are_found_until_they_may_refer_to_other_files() {
    let dir = Simulated::new(1000, 100);
    run(async {
        let cache = cache_with(UseReaddirplus::Always);
        assert_eq!(cache.lookup(&name(1)), None);
        list(&cache, &dir).await;
        for fileid in [1000, 1, 2, 3, 99, 100, 101, 500, 7] {
            let found = cache.lookup(&name(fileid)).unwrap();
            assert_eq!(found.handle, handle(fileid));
            assert_eq!(found.attributes, Some(attributes(fileid, fileid)));
            assert!(found.sent_at.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(cache.lookup(b"no such file"), None);

        // An own change is of one name.
        dir.lock().remove(5);
        cache.note_own_change(&name(5), dir.change());
        assert_eq!(cache.lookup(&name(5)), None);
        assert!(cache.lookup(&name(6)).is_some());
        drop(cache.open(dir.clone(), dir.change()));
        assert!(cache.lookup(&name(6)).is_some(), "the state is that after the own change");

        // A foreign change may be of any name.
        dir.lock().remove(6);
        drop(cache.open(dir.clone(), dir.change()));
        assert_eq!(cache.lookup(&name(7)), None);
        list(&cache, &dir).await;
        assert!(cache.lookup(&name(7)).is_some());
        assert_eq!(cache.lookup(&name(6)), None);
        cache.invalidate("test");
        assert_eq!(cache.lookup(&name(7)), None);
    });
}

#[test]
fn many_own_changes_invalidate_all_names() {
    let dir = Simulated::new(100, 100);
    run(async {
        let cache = cache_with(UseReaddirplus::Always);
        list(&cache, &dir).await;
        for nth in 0..5000 {
            cache.note_own_change(&name(nth % 3000 + 2), dir.change());
        }
        assert_eq!(cache.lookup(&name(1)), None);
        list(&cache, &dir).await;
        assert!(cache.lookup(&name(1)).is_some());
        assert!(cache.lookup(&name(2)).is_some());
    });
}

#[test]
fn the_page_whose_reply_shows_a_change_stays_valid() {
    let dir = Simulated::new(300, 100);
    run(async {
        let cache = cache_with(UseReaddirplus::Always);
        let reader = cache.open(dir.clone(), dir.change());
        let page = reader.entries_after(0).await.unwrap();
        let first = page.iter().next().unwrap();
        dir.lock().add();
        let behind = reader.entries_after(page.last_cookie()).await.unwrap();
        assert_eq!(cache.lookup(first.name), None);
        assert!(cache.lookup(behind.iter().next().unwrap().name).is_some());
    });
}

#[test]
fn a_page_fetched_during_a_change_is_not_believed_without_a_time_limit() {
    let dir = Simulated::new(300, 100);
    run(async {
        let cache = cache_believing(Duration::ZERO);
        let reader = cache.open(dir.clone(), dir.change());
        let page = reader.entries_after(0).await.unwrap();
        let first = page.iter().next().unwrap();
        assert!(cache.lookup(first.name).is_some());
        dir.lock().add();
        let behind = reader.entries_after(page.last_cookie()).await.unwrap();
        assert_eq!(cache.lookup(behind.iter().next().unwrap().name), None);
    });
}

#[test]
fn a_name_just_listed_is_found_in_a_busy_directory() {
    let dir = Simulated::new(300, 100);
    run(async {
        let cache = cache_believing(Duration::from_secs(3600));
        let reader = cache.open(dir.clone(), dir.change());
        let page = reader.entries_after(0).await.unwrap();
        dir.lock().add();
        reader.entries_after(page.last_cookie()).await.unwrap();
        cache.invalidate("test");
        assert!(page.iter().all(|entry| cache.lookup(entry.name).is_some()));
        // An own change of a name is known exactly.
        cache.note_own_change(&name(5), dir.change());
        assert_eq!(cache.lookup(&name(5)), None);
        assert!(cache.lookup(&name(6)).is_some());
    });
}

#[test]
fn names_in_a_late_reply_are_believed_from_the_sending_of_the_call_on() {
    const BELIEVED: Duration = Duration::from_millis(100);
    let dir = Simulated::new(10, 100);
    dir.lock().on_call = Some(Box::new(|_| std::thread::sleep(BELIEVED)));
    run(async {
        let cache = cache_believing(BELIEVED);
        let reader = cache.open(dir.clone(), dir.change());
        reader.entries_after(0).await.unwrap();
        assert!(cache.lookup(&name(1)).is_some(), "the directory has not changed");
        cache.invalidate("test");
        assert_eq!(cache.lookup(&name(1)), None);
    });
}

#[test]
fn lookups_long_after_a_listing_do_not_count() {
    let mut learned = Learned::new(UseReaddirplus::Learned);
    let start = Instant::now();
    let seconds = |count| start + Duration::from_secs(count);
    assert!(learned.samples(0) && !learned.samples(9));
    learned.begin();
    learned.hand_out(start);
    for _ in 0..20 {
        learned.look_up(seconds(2));
    }
    assert!(!learned.wants_plus());
    // The lookups of a slow program count: each follows the one before.
    learned.hand_out(seconds(3));
    for nth in 4..11 {
        learned.look_up(seconds(nth));
        assert!(!learned.wants_plus());
    }
    learned.look_up(seconds(11));
    assert!(learned.wants_plus());
    learned.begin();
    assert!(learned.wants_plus());
    learned.begin();
    assert!(!learned.wants_plus() && !learned.samples(0));
    // Two lookups: the next listing takes a sample.
    learned.hand_out(seconds(20));
    learned.look_up(seconds(20));
    learned.begin();
    assert!(!learned.wants_plus() && learned.samples(0));
}
