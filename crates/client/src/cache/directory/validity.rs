//! Which cached pages are valid, and for which use.
//!
//! Time is counted in events of the directory: opens, calls and changes. A page is as old as its
//! call. A reader that was opened before that call is shown the page in any case. For other uses
//! the events since the call decide:
//!
//! | event | shown to later readers | handles, looked up by name |
//! | --- | --- | --- |
//! | none | if its stamp is the reader's | used |
//! | own change of a name | no | used, except for this name |
//! | own changes of more than [`CHANGED_NAMES_MAX`] names | no | not used |
//! | a reply with another stamp | if its stamp is the reader's | used for [`names_believed`] |
//! | [`Validity::invalidate`] | no | used for [`names_believed`] |
//!
//! The handles of a page without a stamp are used for [`unstamped_believed`] at most: it may lack
//! the change that happened during its call, and no later reply shows that change again. The time
//! counts from the sending of the call, as that of attributes: a reply can be late.
//!
//! [`names_believed`]: super::ListingConfig::names_believed
//! [`unstamped_believed`]: super::ListingConfig::unstamped_believed

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::page::Page;
use crate::cache::change::Change;

/// See the module. A page is "up to" an event if its call was sent before it.
#[derive(Debug, Default)]
pub(super) struct Validity {
    /// Number of events so far.
    clock: u64,
    /// The latest known change stamp of the directory.
    stamp: Option<Change>,
    /// Pages up to here are not shown to readers that were opened later.
    stale_until: u64,
    /// Handles in pages up to here are not used.
    names_stale_until: u64,
    /// Handles in pages up to here are used for a limited time.
    names_doubtful_until: u64,
    /// Names changed by this client, at most [`CHANGED_NAMES_MAX`]: their handles in pages up to
    /// here are not used.
    changed_names: HashMap<Box<[u8]>, u64>,
}

/// The condition for pages to be shown to a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// When it was opened or rewound: all pages fetched later are new enough for it.
    opened: u64,
    /// The change stamp of the directory at that time: older pages must have the same.
    stamp: Option<Change>,
}

/// How long handles are used that may be outdated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Believed {
    /// After a reply with another stamp.
    pub(super) after_change: Duration,
    /// In a page without a stamp.
    pub(super) unstamped: Duration,
}

impl Validity {
    /// Counts an event.
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The latest known change stamp.
    pub(super) fn stamp(&self) -> Option<Change> {
        self.stamp
    }

    /// The view of a reader that is opened or rewound now. `stamp` is the current change stamp, if
    /// it is known. Also returns whether it is another than before.
    pub(super) fn view(&mut self, stamp: Option<Change>) -> (View, bool) {
        let opened = self.tick();
        let is_changed = stamp.is_some_and(|stamp| self.note_stamp(stamp, opened));
        (View { opened, stamp }, is_changed)
    }

    /// Notes the change stamp in the reply to a call; handles fetched up to `until` may be outdated
    /// if it is another than before. Returns whether it is.
    pub(super) fn note_stamp(&mut self, stamp: Change, until: u64) -> bool {
        let known = self.stamp.replace(stamp);
        let is_changed = known.is_some_and(|known| known != stamp);
        if is_changed {
            self.names_doubtful_until = self.names_doubtful_until.max(until);
        }
        is_changed
    }

    /// Another client has changed the directory.
    pub(super) fn invalidate(&mut self) {
        let now = self.tick();
        (self.stale_until, self.names_doubtful_until) = (now, now);
    }

    /// This client has changed `name`; `after` is the change stamp, if no other client changed the
    /// directory too.
    pub(super) fn note_own_change(&mut self, name: &[u8], after: Option<Change>) {
        let now = self.tick();
        self.stale_until = now;
        if self.changed_names.len() == CHANGED_NAMES_MAX {
            self.changed_names.clear();
            self.names_stale_until = now;
        }
        self.changed_names.insert(name.into(), now);
        self.stamp = after.or(self.stamp);
    }

    /// Whether a reader may be shown `page`.
    pub(super) fn suits(&self, page: &Page, view: View) -> bool {
        page.issued > view.opened || self.is_unchanged(page, view.stamp)
    }

    /// Whether `page` can still be of use once no reader is open.
    pub(super) fn is_reusable(&self, page: &Page) -> bool {
        let names_stale_until = self.names_stale_until.max(self.names_doubtful_until);
        self.is_unchanged(page, self.stamp) || (page.plus && page.issued > names_stale_until)
    }

    fn is_unchanged(&self, page: &Page, stamp: Option<Change>) -> bool {
        page.issued > self.stale_until && page.stamp.is_some() && page.stamp == stamp
    }

    /// Returns how long the handle of `name` in a page may be used from `now` on.
    pub(super) fn handle_ttl(
        &self,
        name: &[u8],
        now: Instant,
        believed: Believed,
    ) -> impl Fn(&Page) -> Duration {
        let changed_at = self.changed_names.get(name).copied().unwrap_or_default();
        let stale_until = changed_at.max(self.names_stale_until);
        let doubtful_until = self.names_doubtful_until;
        move |page| {
            let believed = match page.stamp {
                _ if page.issued <= stale_until => Duration::ZERO,
                _ if page.issued <= doubtful_until => believed.after_change,
                None => believed.unstamped.max(believed.after_change),
                Some(_) => Duration::MAX,
            };
            believed.saturating_sub(now.saturating_duration_since(page.sent_at))
        }
    }
}

/// Names changed by this client that are remembered one by one.
pub(super) const CHANGED_NAMES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use proto::nfs3::{CookieVerifier, Time};

    use super::super::page::Provenance;
    use super::*;
    use crate::nfs3::Listing;

    const BELIEVED: Believed =
        Believed { after_change: Duration::from_secs(1), unstamped: Duration::from_secs(30) };

    fn stamp(seconds: u32) -> Change {
        let time = Time { seconds, nseconds: 0 };
        Change { size: 0, mtime: time, ctime: time }
    }

    /// An empty page whose call is sent now.
    fn page(validity: &mut Validity, stamp: Option<Change>) -> Page {
        let verifier = CookieVerifier::default();
        let listing = Listing { dir_attributes: None, verifier, names: Vec::new(), eof: true };
        let provenance = Provenance {
            start_cookie: 0,
            plus: true,
            stamp,
            issued: validity.tick(),
            sent_at: Instant::now(),
        };
        Page::new(&listing, provenance).unwrap()
    }

    /// Whether `page` is shown to a reader opened now, and whether the handle of `name` in it is
    /// used at once and after a change is believed no more.
    fn uses(validity: &mut Validity, page: &Page, name: &[u8]) -> [bool; 3] {
        let (view, _) = validity.view(validity.stamp());
        let used_at = |at| !validity.handle_ttl(name, at, BELIEVED)(page).is_zero();
        let at_once = used_at(page.sent_at);
        [validity.suits(page, view), at_once, used_at(page.sent_at + BELIEVED.after_change)]
    }

    #[test]
    fn pages_are_valid_as_in_the_table() {
        type Event = fn(&mut Validity);
        let events: [(Event, [bool; 3], [bool; 3]); 6] = [
            (|_| (), [true; 3], [true; 3]),
            (|v| v.note_own_change(b"own", None), [false; 3], [false, true, true]),
            (
                |v| {
                    for number in 0..=CHANGED_NAMES_MAX {
                        v.note_own_change(format!("{number}").as_bytes(), None);
                    }
                },
                [false; 3],
                [false; 3],
            ),
            (
                |v| {
                    v.view(Some(stamp(2)));
                },
                [false, true, false],
                [false, true, false],
            ),
            (
                |v| {
                    v.view(Some(stamp(2)));
                    v.view(Some(stamp(1)));
                },
                [true, true, false],
                [true, true, false],
            ),
            (Validity::invalidate, [false, true, false], [false, true, false]),
        ];
        for (number, (event, own, other)) in events.into_iter().enumerate() {
            let mut validity = Validity::default();
            let (view, _) = validity.view(Some(stamp(1)));
            let page = page(&mut validity, Some(stamp(1)));
            event(&mut validity);
            assert!(validity.suits(&page, view), "{number}: a reader opened before the call");
            assert_eq!(uses(&mut validity, &page, b"own"), own, "{number}");
            assert_eq!(uses(&mut validity, &page, b"other"), other, "{number}");
        }
    }

    #[test]
    fn handles_of_a_page_fetched_during_a_change_are_used_for_a_limited_time() {
        let mut validity = Validity::default();
        validity.view(Some(stamp(1)));
        let page = page(&mut validity, None);
        validity.note_stamp(stamp(2), page.issued - 1);
        assert_eq!(uses(&mut validity, &page, b"name"), [false, true, true]);
        let long_after = page.sent_at + BELIEVED.unstamped;
        assert!(validity.handle_ttl(b"name", long_after, BELIEVED)(&page).is_zero());
    }

    #[test]
    fn handles_that_may_be_outdated_are_used_until_their_page_is_too_old() {
        let mut validity = Validity::default();
        validity.view(Some(stamp(1)));
        let (stamped, unstamped) = (page(&mut validity, Some(stamp(1))), page(&mut validity, None));
        let ttl = |validity: &Validity, page: &Page| {
            let soon = page.sent_at + Duration::from_millis(400);
            validity.handle_ttl(b"name", soon, BELIEVED)(page)
        };
        assert!(ttl(&validity, &stamped) > BELIEVED.unstamped);
        assert_eq!(ttl(&validity, &unstamped), Duration::from_millis(29_600));
        validity.invalidate();
        for page in [&stamped, &unstamped] {
            assert_eq!(ttl(&validity, page), Duration::from_millis(600));
        }
        validity.note_own_change(b"name", None);
        assert_eq!(ttl(&validity, &stamped), Duration::ZERO);
    }
}
