//! In any run, entries that exist all the time are listed once, and removed ones are not.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::simulated::{Random, Simulated, name};
use super::*;

/// A world to list in.
#[derive(Clone, Copy, Debug)]
struct World {
    len: u64,
    page_len: usize,
    budget_bytes: usize,
    cookies: Cookies,
    verifiers: Verifiers,
    readdirplus: UseReaddirplus,
    /// Approximate turns between two changes of the directory.
    calm: u64,
    seed: u64,
}

fn worlds() -> impl Strategy<Value = World> {
    let cookies = [Cookies::Ascending, Cookies::High, Cookies::Scrambled];
    let policies = [UseReaddirplus::Learned, UseReaddirplus::Always, UseReaddirplus::Never];
    (
        0_u64..300,
        1_usize..40,
        prop::sample::select(vec![0, 2000, 8000, 1 << 20]),
        prop::sample::select(cookies.to_vec()),
        prop::sample::select(vec![Verifiers::Constant, Verifiers::OfChange]),
        prop::sample::select(policies.to_vec()),
        prop::sample::select(vec![1, 5, 50, 1000]),
        any::<u64>(),
    )
        .prop_map(
            |(len, page_len, budget_bytes, cookies, verifiers, readdirplus, calm, seed)| World {
                len,
                page_len,
                budget_bytes,
                cookies,
                verifiers,
                readdirplus,
                calm,
                seed,
            },
        )
}

/// Reads the directory to the end, in steps of any size, and checks the entries.
async fn read_and_check(reader: &Reader<Simulated>, dir: &Simulated, random: &mut Random) {
    let (opened_at, there) = {
        let sim = dir.lock();
        (sim.time, sim.fileids())
    };
    let mut listed = BTreeMap::<u64, u32>::new();
    let mut cookie = 0;
    loop {
        let page = match reader.entries_after(cookie).await {
            Ok(page) => page,
            // The directory changed between the call and its retry without a verifier.
            Err(error) if error.is(Status::BadCookie) => continue,
            Err(error) => panic!("{error}"),
        };
        if page.is_empty() {
            break;
        }
        let consumed = usize::try_from(random.below(page.len() as u64)).unwrap() + 1;
        for entry in page.iter().take(consumed) {
            assert_eq!(entry.name, name(entry.fileid));
            *listed.entry(entry.fileid).or_default() += 1;
            cookie = entry.cookie;
        }
        if random.below(4) == 0 {
            tokio::task::yield_now().await;
        }
    }
    let sim = dir.lock();
    for (fileid, times) in &listed {
        assert_eq!(*times, 1, "{fileid} came {times} times");
        let gone_before = sim.removed.get(fileid).is_some_and(|removed| *removed <= opened_at);
        assert!(!gone_before, "{fileid} was gone before the directory was opened");
    }
    for fileid in there.intersection(&sim.fileids()) {
        assert!(listed.contains_key(fileid), "{fileid} was there throughout");
    }
}

async fn change_now_and_then(cache: Arc<DirectoryCache>, dir: Simulated, world: World) {
    let mut random = Random::new(world.seed ^ 0x5555);
    loop {
        for _ in 0..random.below(2 * world.calm) + 1 {
            tokio::task::yield_now().await;
        }
        let fileid = match random.below(2) {
            0 => Some(dir.lock().add()),
            _ => dir.lock().remove_any(),
        };
        match (random.below(3), fileid) {
            (0, Some(fileid)) => cache.note_own_change(&name(fileid), dir.change()),
            (1, _) => cache.invalidate("test"),
            // A foreign change that is not reported.
            _ => {}
        }
        if let Some(fileid) = fileid {
            let _ = cache.lookup(&name(fileid));
        }
    }
}

async fn live(world: World) {
    let dir = Simulated::new(world.len, world.page_len);
    {
        let mut sim = dir.lock();
        sim.cookies = world.cookies;
        sim.verifiers = world.verifiers;
        sim.short_replies = world.seed.is_multiple_of(2);
        sim.random = Random::new(world.seed);
    }
    let config = config(world.budget_bytes, world.readdirplus);
    let cache = DirectoryCache::new(&config, 2, handle(2));
    let changes = tokio::spawn(change_now_and_then(Arc::clone(&cache), dir.clone(), world));
    let tasks: Vec<_> = (0..4)
        .map(|nth| {
            let (cache, dir, config) = (Arc::clone(&cache), dir.clone(), Arc::clone(&config));
            tokio::spawn(async move {
                let mut random = Random::new(world.seed ^ nth << 40);
                for _ in 0..3 {
                    let reader = cache.open(dir.clone(), dir.change());
                    read_and_check(&reader, &dir, &mut random).await;
                    reader.rewind(dir.change());
                    read_and_check(&reader, &dir, &mut random).await;
                    assert!(config.budget.bytes() <= world.budget_bytes);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    changes.abort();
    let _ = changes.await;
    // Four readers, three times each, at the beginning and after rewinding.
    let beginnings = dir.lock().calls.iter().filter(|call| call.cookie == 0).count();
    assert!(beginnings <= 4 * 3 * 2 * 2, "{beginnings}: at most again for the attributes");
    drop(cache);
    assert_eq!(config.budget.bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn each_entry_that_stays_is_listed_once(world in worlds()) {
        run(live(world));
    }
}
