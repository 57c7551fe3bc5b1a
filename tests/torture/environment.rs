//! The variables that say how to run.

use std::env;

/// `SPILLWAY_TORTURE_SEED`, or another one each time; printed, since a failure wants it again.
pub(crate) fn seed() -> u64 {
    let seed = number_from("SPILLWAY_TORTURE_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::from(now.unwrap().subsec_nanos())
    });
    println!("SPILLWAY_TORTURE_SEED={seed}");
    seed
}

/// The number that a variable of the environment holds.
pub(crate) fn number_from(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}
