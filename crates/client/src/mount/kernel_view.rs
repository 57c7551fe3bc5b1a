//! The kernel's cached state of one file: attributes and pages.
//!
//! `FUSE_NOTIFY_INVAL_INODE` makes the kernel discard the reply to each GETATTR of that inode that
//! is under way (`fi->attr_version`, fs/fuse/inode.c). A read beyond the size that the kernel knows
//! begins with such a GETATTR, and without its reply ends at the old size. So after an OPEN, which
//! promises the size that the file has by then, no such notification may come before the read, and
//! none while a GETATTR is being answered. It is not needed soon either:
//!
//! - The kernel drops all pages itself when an OPEN is answered without `FOPEN_KEEP_CACHE`, and
//!   when attributes in a reply have another size.
//! - It asks for attributes itself if its cached ones have expired.
//!
//! A reply with another size does not settle the matter: the kernel discards it too if a write(2)
//! or another reply for the file overtakes it. The notification then follows once replies repeat
//! the size. It can still meet a GETATTR that the kernel has queued and this process has not read.
//!
//! Nor does the order of replies determine which attributes the kernel has in the end: each program
//! executes those to its own requests when it runs. So a file is opened with `FOPEN_DIRECT_IO`, and
//! its reads do not depend on the kernel's size, unless the kernel has the right one for certain
//! ([`KernelView::has_size`]). Asynchronous reads with `O_DIRECT` still do (`fuse_direct_IO`,
//! fs/fuse/file.c).
//!
//! The kernel also waits for the pages of READs and WRITEs that are not answered, and umount(2)
//! waits for the notification (`fc->killsb`). So none comes once the server has left one of them
//! without a reply for [`SETTLING`], and has answered no other meanwhile. A slow server delays no
//! notification.
//!
//! The kernel counts the links of a file itself: the reply to an UNLINK, or to a RENAME that
//! replaces the file, subtracts one from the `nlink` of the last attributes (`fuse_entry_unlinked`,
//! fs/fuse/dir.c). Attributes that have the removal already and arrive before that reply would
//! count it twice. At 0 the kernel refuses link(2), even if the file has names left.
//!
//! Callers pass the time, and this module makes no calls.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proto::nfs3::Attributes;

/// The kernel's state of one file, as it follows from replies and notifications.
#[derive(Debug, Default)]
pub(super) struct KernelView {
    /// The attributes of the last reply, unless a notification has discarded them.
    attributes: Option<Attributes>,
    /// Whether that reply let the kernel cache them.
    is_believed: bool,
    size: Option<Size>,
    /// As whom the kernel runs the file, by the attributes of the last reply.
    set_id: Option<SetId>,
    /// The links that the kernel counts.
    nlink: u32,
    /// A call that removes a name of the file has not been answered to the kernel.
    is_losing_name: bool,
    /// Another client has changed the file, and its pages were not dropped for certain: the time of
    /// the latest reply with another size since then, or of the change.
    stale_since: Option<Instant>,
    /// A task will drop the stale pages.
    is_drop_scheduled: bool,
    /// GETATTRs that are being answered.
    getattrs: usize,
    /// READs and WRITEs that are being answered, by number, with the time when each began.
    transfers: BTreeMap<u64, Instant>,
    next_transfer: u64,
    /// The last reply to a READ or WRITE.
    transferred_at: Option<Instant>,
    opened_at: Option<Instant>,
    /// The last reply to an OPEN that makes the kernel drop pages.
    dropped_at: Option<Instant>,
    /// The latest change by another client that was known then, by the time when it was noticed.
    dropped_change: Option<Instant>,
}

/// The size that the kernel has.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// `None` after a reply with a size that the kernel may not have taken.
    bytes: Option<u64>,
    /// A reply had another size than the one before. The kernel may execute them in another order.
    changed_at: Option<Instant>,
}

/// Set-id bits, and whose they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SetId {
    bits: u32,
    uid: u32,
    gid: u32,
}

impl SetId {
    /// `None` without the bits.
    fn of(attributes: &Attributes) -> Option<Self> {
        let Attributes { mode, uid, gid, .. } = *attributes;
        let bits = mode & SET_ID_BITS;
        (bits != 0).then_some(Self { bits, uid, gid })
    }
}

impl KernelView {
    /// Notes attributes in a reply, which the kernel caches for `ttl`.
    pub(super) fn learn(&mut self, attributes: &Attributes, ttl: Duration, now: Instant) {
        let has_new_size = self.attributes.is_some_and(|known| known.size != attributes.size);
        if has_new_size && let Some(since) = &mut self.stale_since {
            *since = now;
        }
        let bytes = Some(attributes.size);
        self.size = match self.size {
            None => Some(Size { bytes, changed_at: None }),
            Some(known) if known.bytes == bytes => Some(known),
            Some(_) => Some(Size { bytes, changed_at: Some(now) }),
        };
        (self.attributes, self.is_believed) = (Some(*attributes), !ttl.is_zero());
        (self.set_id, self.nlink) = (SetId::of(attributes), attributes.nlink);
    }

    /// Whether the kernel may run the file with rights that `now` does not give: those of the last
    /// reply, or those `before` the call that fetched `now`, of which a reply may be under way.
    pub(super) fn has_other_set_id(&self, before: &Attributes, now: &Attributes) -> bool {
        let now = SetId::of(now);
        [self.set_id, SetId::of(before)].into_iter().any(|known| known.is_some() && known != now)
    }

    /// Notes a write(2) up to `end`, by which the kernel extends the file with the reply. Returns
    /// whether it does: the file ended before.
    pub(super) fn note_written(&mut self, end: u64) -> bool {
        if let Some(attributes) = &mut self.attributes {
            attributes.size = attributes.size.max(end);
        }
        let bytes = self.size.as_mut().and_then(|size| size.bytes.as_mut());
        bytes.is_some_and(|bytes| std::mem::replace(bytes, end.max(*bytes)) < end)
    }

    /// Notes that the kernel may not have taken the size of a reply, because that was refused or
    /// is not sent.
    pub(super) fn unsettle_size(&mut self, now: Instant) {
        self.attributes = None;
        if let Some(size) = &mut self.size {
            *size = Size { bytes: None, changed_at: Some(now) };
        }
    }

    /// Notes that the kernel sets the size before a SETATTR returns.
    pub(super) fn note_cut(&mut self, bytes: u64) {
        if let Some(size) = &mut self.size {
            size.bytes = Some(bytes);
        }
    }

    /// Whether the kernel has a smaller size, as far as replies show.
    pub(super) fn ends_before(&self, offset: u64) -> bool {
        self.size.and_then(|known| known.bytes).is_some_and(|bytes| bytes < offset)
    }

    /// Whether the kernel has this size for certain: no reply of the last [`SIZE_SETTLING`] had
    /// another one, which it may execute yet.
    pub(super) fn has_size(&self, bytes: u64, now: Instant) -> bool {
        self.size.is_some_and(|known| {
            known.bytes == Some(bytes)
                && known.changed_at.is_none_or(|at| now >= at + SIZE_SETTLING)
        })
    }

    /// The minimum `nlink` in replies to requests that arrive now: while a name is being removed,
    /// they include it, because the kernel is about to subtract it. If it has done so before the
    /// reply arrives, it discards the reply's attributes as older (`fi->attr_version`).
    pub(super) fn nlink_min(&self) -> u32 {
        if self.is_losing_name { self.nlink } else { 0 }
    }

    /// A call that removes a name of the file begins. There is one at a time: the kernel holds the
    /// file's lock until it has the reply.
    pub(super) fn begin_name_removal(&mut self) {
        self.is_losing_name = true;
    }

    /// That call is about to be answered.
    pub(super) fn end_name_removal(&mut self, is_removed: bool) {
        self.is_losing_name = false;
        self.nlink = self.nlink.saturating_sub(is_removed.into());
    }

    /// Whether the kernel has cached other attributes than these.
    pub(super) fn believes_others(&self, attributes: &Attributes) -> bool {
        self.is_believed && self.attributes.as_ref() != Some(attributes)
    }

    /// Whether the kernel has cached attributes. If so, the caller invalidates them by a
    /// notification.
    pub(super) fn discard_believed(&mut self) -> bool {
        let is_believed = self.is_believed;
        if is_believed {
            self.discard_attributes();
        }
        is_believed
    }

    /// Notes a notification that invalidates the kernel's attributes and discards replies under
    /// way.
    pub(super) fn discard_attributes(&mut self) {
        (self.attributes, self.is_believed) = (None, false);
    }

    /// Notes a change by another client. Returns whether the caller has to start the task that
    /// drops the pages.
    pub(super) fn note_stale_pages(&mut self, now: Instant) -> bool {
        self.stale_since.get_or_insert(now);
        !std::mem::replace(&mut self.is_drop_scheduled, true)
    }

    /// A GETATTR is being answered, until [`end_getattr`](Self::end_getattr).
    pub(super) fn begin_getattr(&mut self) {
        self.getattrs += 1;
    }

    pub(super) fn end_getattr(&mut self) {
        self.getattrs -= 1;
    }

    /// A READ or WRITE is being answered, until [`end_transfer`](Self::end_transfer). Returns its
    /// number.
    pub(super) fn begin_transfer(&mut self, now: Instant) -> u64 {
        self.next_transfer += 1;
        self.transfers.insert(self.next_transfer, now);
        self.next_transfer
    }

    pub(super) fn end_transfer(&mut self, number: u64, now: Instant) {
        self.transfers.remove(&number);
        self.transferred_at = Some(now);
    }

    /// Whether the server has left a READ or WRITE without a reply for [`SETTLING`], and has
    /// answered no other meanwhile.
    fn has_silent_transfer(&self, now: Instant) -> bool {
        let is_long_ago = |at: Instant| now >= at + SETTLING;
        self.transfers.first_key_value().is_some_and(|(_, begun)| is_long_ago(*begun))
            && self.transferred_at.is_none_or(is_long_ago)
    }

    /// An OPEN is about to be answered; the latest change by another client was noticed at
    /// `changed_at`. Returns whether the kernel may keep its pages: not if no OPEN since that
    /// change was answered, whichever OPEN noticed it, and not while the kernel may not have
    /// executed an earlier reply that drops them.
    pub(super) fn open(&mut self, changed_at: Option<Instant>, now: Instant) -> bool {
        self.opened_at = Some(now);
        let is_dropping = self.dropped_at.is_some_and(|at| now < at + SETTLING);
        let is_changed = std::mem::replace(&mut self.dropped_change, changed_at) != changed_at;
        if self.stale_since.take().is_some() || is_changed {
            self.dropped_at = Some(now);
            return false;
        }
        !is_dropping
    }

    /// Whether stale pages can be dropped before the reply to a GETATTR that has `size`: the kernel
    /// discards that reply, so it must know the size, and no read may still wait for one.
    pub(super) fn can_drop_pages(&self, size: u64, now: Instant) -> bool {
        let is_settled = self.opened_at.is_none_or(|at| now >= at + SETTLING);
        is_settled
            && !self.has_silent_transfer(now)
            && self.attributes.is_some_and(|known| known.size == size)
    }

    /// The time until the task drops the stale pages, as far as it is known now. `None` if it has
    /// nothing left to do, and ends.
    pub(super) fn until_drop(&mut self, now: Instant) -> Option<Duration> {
        self.is_drop_scheduled = self.stale_since.is_some();
        let due_at = self.stale_since? + SETTLING;
        let must_wait = self.getattrs > 0 || self.has_silent_transfer(now);
        Some(if must_wait { SETTLING } else { due_at.saturating_duration_since(now) })
    }

    /// Returns whether pages are stale. If so, the caller drops them by a notification.
    pub(super) fn take_stale_pages(&mut self) -> bool {
        let were_stale = self.stale_since.take().is_some();
        if were_stale {
            self.discard_attributes();
        }
        were_stale
    }
}

/// `S_ISUID` and `S_ISGID`.
pub(super) const SET_ID_BITS: u32 = 0o6000;

/// The longest time of a program from open(2) to the end of the first GETATTR of a read(2).
pub(super) const SETTLING: Duration = Duration::from_secs(1);

/// The longest time until a program executes the reply to a request of its own, on a machine with
/// many more programs than processors.
const SIZE_SETTLING: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use proto::nfs3::Time;

    use super::*;
    use crate::fixture::file_attributes;

    const TTL: Duration = Duration::from_secs(3);

    fn attributes(size: u64) -> Attributes {
        file_attributes(size, Time { seconds: 1, nseconds: 0 })
    }

    #[test]
    fn only_believed_attributes_have_to_be_replaced() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        assert!(!view.believes_others(&attributes(1)));
        view.learn(&attributes(1), TTL, start);
        assert!(!view.believes_others(&attributes(1)));
        assert!(view.believes_others(&attributes(2)));
        view.learn(&attributes(1), Duration::ZERO, start);
        assert!(!view.believes_others(&attributes(2)));
        view.learn(&attributes(1), TTL, start);
        view.discard_attributes();
        assert!(!view.believes_others(&attributes(2)));
        assert!(!view.discard_believed());
        view.learn(&attributes(1), TTL, start);
        assert!(view.discard_believed());
        assert!(!view.discard_believed(), "they are invalid");
    }

    #[test]
    fn open_takes_over_the_drop_of_stale_pages() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        assert!(view.note_stale_pages(start));
        assert!(!view.note_stale_pages(start));
        assert!(!view.open(None, start));
        assert!(!view.note_stale_pages(start + SETTLING / 2));
        assert_eq!(view.until_drop(start + SETTLING), Some(SETTLING / 2));
        assert!(!view.open(None, start + SETTLING));
        assert_eq!(view.until_drop(start + SETTLING), None);
        assert!(view.note_stale_pages(start + SETTLING));
    }

    #[test]
    fn pages_are_kept_once_an_earlier_open_has_dropped_them() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        assert!(view.open(None, start));
        assert!(!view.open(Some(start), start));
        assert!(!view.open(Some(start), start + SETTLING / 2));
        assert!(view.open(Some(start), start + SETTLING));
    }

    #[test]
    fn pages_are_dropped_a_while_after_the_last_reply_with_another_size() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        view.learn(&attributes(1), TTL, start);
        view.note_stale_pages(start);
        let later = start + SETTLING / 2;
        view.learn(&attributes(2), Duration::ZERO, later);
        assert_eq!(view.until_drop(start + SETTLING), Some(SETTLING / 2));
        view.learn(&attributes(2), Duration::ZERO, start + SETTLING);
        assert_eq!(view.until_drop(later + SETTLING), Some(Duration::ZERO));
        assert!(view.take_stale_pages());
        assert!(!view.take_stale_pages());
        assert_eq!(view.until_drop(later + SETTLING), None);
    }

    #[test]
    fn own_growth_does_not_postpone_the_drop_of_stale_pages() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        view.learn(&attributes(1), TTL, start);
        view.note_stale_pages(start);
        view.note_written(5);
        view.learn(&attributes(5), TTL, start + SETTLING / 2);
        assert_eq!(view.until_drop(start + SETTLING), Some(Duration::ZERO));
    }

    #[test]
    fn size_is_unsettled_for_a_while_after_a_reply_with_another() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        assert!(!view.has_size(0, start));
        view.learn(&attributes(1), TTL, start);
        assert!(view.has_size(1, start));
        assert!(!view.has_size(2, start));
        view.learn(&attributes(2), TTL, start);
        assert!(!view.has_size(2, start));
        view.learn(&attributes(2), TTL, start + SIZE_SETTLING);
        assert!(view.has_size(2, start + SIZE_SETTLING));
        view.discard_attributes();
        assert!(view.has_size(2, start + SIZE_SETTLING));
    }

    #[test]
    fn own_writes_and_cuts_leave_the_size_settled() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        view.learn(&attributes(1), TTL, start);
        view.note_written(5);
        assert!(view.has_size(5, start));
        view.note_cut(2);
        view.learn(&attributes(2), TTL, start);
        assert!(view.has_size(2, start));
    }

    #[test]
    fn a_size_that_the_kernel_may_not_have_taken_is_unsettled_a_while_beyond_the_next_reply() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        view.learn(&attributes(1), TTL, start);
        assert!(!view.note_written(1), "the file ends there already");
        assert!(view.note_written(5));
        view.unsettle_size(start);
        let later = start + SIZE_SETTLING;
        assert!(!view.has_size(5, later) && !view.has_size(1, later));
        assert!(view.believes_others(&attributes(5)));
        view.learn(&attributes(5), TTL, later);
        assert!(!view.has_size(5, later));
        assert!(view.has_size(5, later + SIZE_SETTLING));
    }

    #[test]
    fn a_program_has_other_set_id_bits_if_it_lost_them_or_is_another_users() {
        let (mut view, now) = (KernelView::default(), Instant::now());
        let plain = attributes(1);
        let set_id = Attributes { mode: 0o4755, uid: 1, ..plain };
        let of_another = Attributes { uid: 2, ..set_id };
        assert!(!view.has_other_set_id(&plain, &set_id));
        view.learn(&plain, TTL, now);
        assert!(!view.has_other_set_id(&plain, &set_id), "the kernel gives no rights");
        assert!(view.has_other_set_id(&set_id, &plain), "a reply may be under way");
        view.learn(&set_id, Duration::ZERO, now);
        view.discard_attributes();
        let others = [plain, set_id, of_another].map(|now| view.has_other_set_id(&now, &now));
        assert_eq!(others, [true, false, true]);
    }

    #[test]
    fn pages_are_not_dropped_while_a_getattr_is_answered() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        view.note_stale_pages(start);
        view.begin_getattr();
        assert_eq!(view.until_drop(start + SETTLING), Some(SETTLING));
        view.end_getattr();
        assert_eq!(view.until_drop(start + SETTLING), Some(Duration::ZERO));
    }

    #[test]
    fn pages_are_not_dropped_while_the_server_is_silent() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        view.learn(&attributes(1), TTL, start);
        view.note_stale_pages(start);
        let read = view.begin_transfer(start);
        let later = start + SETTLING;
        assert_eq!(view.until_drop(later), Some(SETTLING));
        assert!(!view.can_drop_pages(1, later));
        view.end_transfer(read, later);
        assert_eq!(view.until_drop(later), Some(Duration::ZERO));
        assert!(view.can_drop_pages(1, later));
    }

    #[test]
    fn a_slow_server_delays_no_drop_of_pages() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        view.learn(&attributes(1), TTL, start);
        view.note_stale_pages(start);
        let read = view.begin_transfer(start);
        let write = view.begin_transfer(start);
        let later = start + SETTLING;
        view.end_transfer(read, later);
        // The other one is old too, but the server answers.
        assert_eq!(view.until_drop(later), Some(Duration::ZERO));
        assert!(view.can_drop_pages(1, later));
        assert_eq!(view.until_drop(later + SETTLING), Some(SETTLING));
        view.end_transfer(write, later + SETTLING);
        assert_eq!(view.until_drop(later + SETTLING), Some(Duration::ZERO));
    }

    #[test]
    fn replies_include_a_name_until_its_removal_is_answered() {
        let mut view = KernelView::default();
        view.learn(&Attributes { nlink: 3, ..attributes(1) }, TTL, Instant::now());
        assert_eq!(view.nlink_min(), 0);
        view.begin_name_removal();
        assert_eq!(view.nlink_min(), 3);
        view.end_name_removal(true);
        assert_eq!(view.nlink_min(), 0);
        view.begin_name_removal();
        assert_eq!(view.nlink_min(), 2);
        view.end_name_removal(false);
        view.begin_name_removal();
        assert_eq!(view.nlink_min(), 2);
    }

    #[test]
    fn getattr_drops_pages_only_if_its_reply_may_be_discarded() {
        let (mut view, start) = (KernelView::default(), Instant::now());
        assert!(!view.can_drop_pages(1, start));
        view.learn(&attributes(1), Duration::ZERO, start);
        assert!(view.can_drop_pages(1, start));
        assert!(!view.can_drop_pages(2, start));
        view.open(None, start);
        assert!(!view.can_drop_pages(1, start));
        assert!(view.can_drop_pages(1, start + SETTLING));
        view.note_stale_pages(start);
        view.take_stale_pages();
        assert!(!view.can_drop_pages(1, start + SETTLING));
    }
}
