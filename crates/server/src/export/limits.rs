//! How much an export serves per second.

use std::num::{NonZeroU32, NonZeroU64};

/// Rates that are not exceeded on average.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    /// RPC calls.
    pub calls_per_sec: Option<NonZeroU32>,
    /// Bytes of calls and replies.
    pub bytes_per_sec: Option<NonZeroU64>,
}

/// The limits of an export; see `docs/configuration.md`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of all clients together.
    pub all: Rate,
    /// Of each client: an IPv4 address, or an IPv6 network of 64 bits.
    pub client: Rate,
}

impl Rate {
    /// Whether there is a limit.
    fn is_limited(&self) -> bool {
        self.calls_per_sec.is_some() || self.bytes_per_sec.is_some()
    }
}

impl Limits {
    /// Whether there is any.
    #[must_use]
    pub fn are_set(&self) -> bool {
        self.all.is_limited() || self.client.is_limited()
    }
}
