//! How many lines of the log one place in the code may write, for one subject and for all.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Lines of one place about one client or export.
const OF_SUBJECT: Rate = Rate { burst: 20, interval: Duration::from_secs(10) };
/// Lines of one place about all subjects together: a peer may have many addresses.
const OF_SITE: Rate = Rate { burst: 100, interval: Duration::from_secs(1) };
/// Subjects remembered for each place.
const SUBJECTS_MAX: usize = 256;
/// Bytes of a subject's name that are compared and kept.
const SUBJECT_BYTES_MAX: usize = 64;

/// The lines written so far. `S` names a place in the code, of which there are finitely many.
pub(super) struct Limit<S>(HashMap<S, Site>);

/// The lines written by one place in the code.
struct Site {
    message: String,
    lines: Bucket,
    subjects: HashMap<String, Bucket>,
    suppressed: u64,
    suppressed_last: String,
}

/// The lines of one place that were suppressed since the last report.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Suppressed {
    /// The message of all of them.
    pub(super) message: String,
    /// How many.
    pub(super) count: u64,
    /// The subject of the last one, empty for none.
    pub(super) last: String,
}

impl<S: Eq + Hash> Limit<S> {
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Whether a line about `subject` may be written now. If not, it is counted.
    pub(super) fn admits(&mut self, site: S, message: &str, subject: &str, now: Instant) -> bool {
        let site = self.0.entry(site).or_insert_with(|| Site::new(message, now));
        let subject = &subject[..subject.floor_char_boundary(SUBJECT_BYTES_MAX)];
        let admitted = site.admits(subject, now);
        if !admitted {
            site.suppressed += 1;
            subject.clone_into(&mut site.suppressed_last);
        }
        admitted
    }

    /// The lines suppressed since the last call: at most one entry for each place.
    pub(super) fn take_suppressed(&mut self) -> Vec<Suppressed> {
        let sites = self.0.values_mut().filter(|site| site.suppressed > 0);
        sites
            .map(|site| Suppressed {
                message: site.message.clone(),
                count: std::mem::take(&mut site.suppressed),
                last: std::mem::take(&mut site.suppressed_last),
            })
            .collect()
    }
}

impl Site {
    fn new(message: &str, now: Instant) -> Self {
        Self {
            message: message.to_owned(),
            lines: Bucket::full(now),
            subjects: HashMap::new(),
            suppressed: 0,
            suppressed_last: String::new(),
        }
    }

    fn admits(&mut self, subject: &str, now: Instant) -> bool {
        let known = self.subjects.get(subject).copied();
        let mut of_subject = known.unwrap_or_else(|| Bucket::full(now));
        // The subject is asked first: one that is over its rate takes nothing from the others.
        if !of_subject.take(OF_SUBJECT, now) || !self.lines.take(OF_SITE, now) {
            return false;
        }
        if known.is_none() {
            self.make_room(now);
        }
        self.subjects.insert(subject.to_owned(), of_subject);
        true
    }

    /// Forgets subjects whose buckets are full again, which changes nothing; if none is, the one
    /// that is the next to be full.
    fn make_room(&mut self, now: Instant) {
        if self.subjects.len() < SUBJECTS_MAX {
            return;
        }
        self.subjects.retain(|_, bucket| bucket.full_at > now);
        if self.subjects.len() < SUBJECTS_MAX {
            return;
        }
        let fullest = self.subjects.iter().min_by_key(|(_, bucket)| bucket.full_at);
        if let Some(subject) = fullest.map(|(subject, _)| subject.clone()) {
            self.subjects.remove(&subject);
        }
    }
}

/// How many tokens a bucket holds, and how long one takes to come back.
#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    interval: Duration,
}

/// A token bucket.
#[derive(Clone, Copy)]
struct Bucket {
    full_at: Instant,
}

impl Bucket {
    fn full(now: Instant) -> Self {
        Self { full_at: now }
    }

    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + rate.interval;
        let has_token = full_at - now <= rate.interval * rate.burst;
        if has_token {
            self.full_at = full_at;
        }
        has_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(limit: &mut Limit<&'static str>, subject: &str, lines: u32, now: Instant) -> u32 {
        let lines = (0..lines).filter(|_| limit.admits("mount", "mount refused", subject, now));
        u32::try_from(lines.count()).unwrap()
    }

    #[test]
    fn a_flood_is_cut_to_a_burst_and_counted() {
        let (mut limit, now) = (Limit::new(), Instant::now());
        assert_eq!(admitted(&mut limit, "192.0.2.1", 50_000, now), OF_SUBJECT.burst);
        let (message, last) = ("mount refused".to_owned(), "192.0.2.1".to_owned());
        let count = u64::from(50_000 - OF_SUBJECT.burst);
        assert_eq!(limit.take_suppressed(), [Suppressed { message, count, last }]);
        assert_eq!(limit.take_suppressed(), []);
    }

    #[test]
    fn lines_come_back_with_time() {
        let (mut limit, start) = (Limit::new(), Instant::now());
        admitted(&mut limit, "192.0.2.1", 50_000, start);
        let later = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(admitted(&mut limit, "192.0.2.1", 10, later(9)), 0);
        assert_eq!(admitted(&mut limit, "192.0.2.1", 10, later(25)), 2);
        assert_eq!(admitted(&mut limit, "192.0.2.1", 50, later(86_400)), OF_SUBJECT.burst);
    }

    #[test]
    fn a_flood_silences_neither_other_peers_nor_other_places() {
        let (mut limit, now) = (Limit::new(), Instant::now());
        admitted(&mut limit, "192.0.2.1", 50_000, now);
        assert_eq!(admitted(&mut limit, "192.0.2.2", 1, now), 1);
        assert!(limit.admits("flush", "a flush failed", "192.0.2.1", now));
    }

    #[test]
    fn many_addresses_share_the_rate_of_a_place() {
        let (mut limit, start) = (Limit::new(), Instant::now());
        let flood = |limit: &mut _, now| -> u32 {
            (0..10_000).map(|i| admitted(limit, &format!("2001:db8::{i:x}"), 2, now)).sum()
        };
        assert_eq!(flood(&mut limit, start), OF_SITE.burst);
        assert_eq!(flood(&mut limit, start + Duration::from_secs(3)), 3);
    }

    #[test]
    fn the_subjects_that_are_remembered_are_bounded() {
        let (mut limit, start) = (Limit::new(), Instant::now());
        for i in 0..2_000_u64 {
            let now = start + OF_SITE.interval * u32::try_from(i).unwrap();
            assert!(limit.admits("mount", "", &format!("{i}{}", "x".repeat(1000)), now));
            assert!(limit.0["mount"].subjects.len() <= SUBJECTS_MAX);
        }
        // All at one time, so that no bucket is full again.
        let site = limit.0.get_mut("mount").unwrap();
        site.subjects.clear();
        for i in 0..2 * SUBJECTS_MAX {
            site.lines = Bucket::full(start);
            assert!(site.admits(&i.to_string(), start));
        }
        assert_eq!(site.subjects.len(), SUBJECTS_MAX);
        assert!(site.subjects.keys().all(|subject| subject.len() <= SUBJECT_BYTES_MAX));
    }
}
