//! Detects listings that never end.

use crate::error::{Error, Result};

/// The progress of a listing, by the last cookie of each reply.
///
/// A server with a defective file system can return a cookie that the listing has passed before, so
/// that it loops for ever. Brent's algorithm detects this with one cookie in memory, at the latest
/// when the entries have been read three times.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListingProgress {
    /// An earlier cookie, which later ones are compared with; 0 is the beginning.
    kept: u64,
    /// Replies since `kept`.
    steps: u64,
    /// Replies after which `kept` is replaced.
    steps_max: u64,
}

impl ListingProgress {
    /// Notes a reply that ends with `cookie` and without `eof`.
    ///
    /// # Errors
    /// [`Error::ListingLoop`] if the listing was at this cookie before.
    pub fn advance(&mut self, cookie: u64) -> Result<()> {
        if cookie == self.kept {
            return Err(Error::ListingLoop { cookie });
        }
        self.steps += 1;
        if self.steps > self.steps_max {
            self.kept = cookie;
            self.steps_max = self.steps.saturating_mul(2);
            self.steps = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies until the error, for these cookies, repeated from `again` on.
    fn replies_until_loop(cookies: &[u64], again: usize) -> usize {
        let mut progress = ListingProgress::default();
        let endless = cookies.iter().chain(cookies[again..].iter().cycle());
        let replies = endless.take(100_000).take_while(|cookie| progress.advance(**cookie).is_ok());
        replies.count()
    }

    #[test]
    fn repeated_cookies_are_an_error_within_three_rounds() {
        assert_eq!(replies_until_loop(&[0], 0), 0, "the beginning itself");
        assert_eq!(replies_until_loop(&[7], 0), 1, "one cookie for all");
        for len in [2, 3, 10, 100, 1000] {
            let cookies: Vec<_> = (1..=len).rev().collect();
            for again in [0, cookies.len() / 2, cookies.len() - 1] {
                let replies = replies_until_loop(&cookies, again);
                assert!(replies <= 3 * cookies.len() + 1, "{len} {again}: {replies}");
            }
        }
    }

    #[test]
    fn cookies_that_differ_are_progress() {
        let mut progress = ListingProgress::default();
        for step in 1..=10_000_u64 {
            progress.advance(step.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
        }
    }
}
