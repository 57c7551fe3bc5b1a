//! Measures what handing a job to the engine costs: from the submitting task to a thread and back.
//!
//! `cargo run --release -p spillway-io --example handoff`

use std::sync::Arc;
use std::time::{Duration, Instant};

use io::{Engine, EngineConfig, Identity};
use spillway_io as io;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let config = EngineConfig { data_threads: 2, metadata_threads: 2, queue_max: 64 };
    let engine = Engine::new(config).expect("the first threads");
    runtime.block_on(async {
        report("data, one at a time", one_by_one(&engine).await);
        report("data, 16 at a time", sixteen_at_a_time(&engine).await);
        report("metadata, one identity", one_identity(&engine).await);
        if io::can_assume_users() {
            report("metadata, a new user each time", changing_users(&engine).await);
        } else {
            println!("metadata, a new user each time: skipped, cannot act as other users");
        }
    });
}

async fn one_by_one(engine: &Engine) -> Duration {
    let start = Instant::now();
    for _ in 0..JOBS {
        engine.data(|| ()).await;
    }
    start.elapsed()
}

async fn sixteen_at_a_time(engine: &Engine) -> Duration {
    let start = Instant::now();
    for _ in 0..JOBS / 16 {
        let four = || async { tokio::join!(job(engine), job(engine), job(engine), job(engine)) };
        tokio::join!(four(), four(), four(), four());
    }
    start.elapsed()
}

async fn job(engine: &Engine) {
    engine.data(|| ()).await;
}

async fn one_identity(engine: &Engine) -> Duration {
    let start = Instant::now();
    for _ in 0..JOBS {
        engine.metadata(Identity::Server, || ()).await.expect("the server may be itself");
    }
    start.elapsed()
}

async fn changing_users(engine: &Engine) -> Duration {
    let users: [Identity; 2] = [1000, 1001].map(|uid| {
        let groups = Arc::from_iter(2000..2016);
        Identity::User { uid, gid: uid, groups }
    });
    let start = Instant::now();
    for index in 0..JOBS {
        let user = users[index % 2].clone();
        engine.metadata(user, || ()).await.expect("probed before");
    }
    start.elapsed()
}

fn report(what: &str, elapsed: Duration) {
    println!("{what}: {:.2} us per job", elapsed.as_secs_f64() * 1e6 / JOBS as f64);
}

const JOBS: usize = 100_000;
