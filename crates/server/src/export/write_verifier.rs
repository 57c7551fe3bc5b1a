//! The write verifier: eight bytes that change whenever unstable data may have been lost.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::random::random_u64;

/// The write verifier of one file system (RFC 1813 §3.3.7, `writeverf3`).
///
/// It is random at start, so that it differs after every restart, and renewed when a flush fails:
/// either way a client that compares it at COMMIT sends its unstable data again.
///
/// A WRITE takes the verifier *before* it touches the file, a COMMIT *after* its flush. With that
/// order a flush that fails between the two always shows as a difference.
#[derive(Debug)]
pub(crate) struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// A verifier that no earlier instance has used.
    ///
    /// # Errors
    /// The kernel has no random bytes to give.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(AtomicU64::new(random_u64()?)))
    }

    /// The verifier as it stands now.
    pub(crate) fn current(&self) -> [u8; 8] {
        self.0.load(Ordering::SeqCst).to_be_bytes()
    }

    /// Marks data as possibly lost. Adding an odd constant visits all 2^64 values, so that the new
    /// value is none of the earlier ones.
    pub(crate) fn renew(&self) {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differs_after_renewal_and_between_instances() {
        let verifier = WriteVerifier::new().unwrap();
        let first = verifier.current();
        verifier.renew();
        assert_ne!(verifier.current(), first);
        assert_ne!(WriteVerifier::new().unwrap().current(), first);
    }
}
