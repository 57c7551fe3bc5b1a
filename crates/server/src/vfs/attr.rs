//! GETATTR and SETATTR.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use io::{ByteRange, Lengths, Mtime, RangeUse};
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::access::may_be_owner;
use super::retry::Takes;
use super::{Answer, Attributes, Caller, LiveAttributes, Object, Status, Timestamp, Vfs, Wcc};
use crate::counters::CallKind;
use crate::fs::proc_path;
use crate::inode_cache::{Change, Changing, Inode, Writing};

/// A time to be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// The server's clock.
    Now,
    /// This very time.
    At(Timestamp),
}

/// The attributes to be changed; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttributeChange {
    /// The low 12 mode bits.
    pub(crate) mode: Option<u32>,
    /// Mode bits that a new object loses, unless its directory has a default access control list.
    pub(crate) umask: u32,
    /// Owner.
    pub(crate) uid: Option<u32>,
    /// Group.
    pub(crate) gid: Option<u32>,
    /// Length; shorter cuts, longer leaves a hole.
    pub(crate) size: Option<u64>,
    /// Last read.
    pub(crate) atime: SetTime,
    /// Last change of the data.
    pub(crate) mtime: SetTime,
}

/// The parts of an [`AttributeChange`] that are done, also where a later one has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// The length.
    pub(crate) size: bool,
    /// Owner and group, which are set together.
    pub(crate) owner: bool,
    /// The mode.
    pub(crate) mode: bool,
    /// Both times, which are set together.
    pub(crate) times: bool,
}

impl Applied {
    /// The mtime that these parts of a change leave; `None` if none of them was asked for.
    fn mtime(self, change: &AttributeChange) -> Option<Mtime> {
        let sets_times = change.atime != SetTime::Keep || change.mtime != SetTime::Keep;
        let sets_owner = change.uid.is_some() || change.gid.is_some();
        if self.times && change.mtime != SetTime::Keep {
            Some(Mtime::Set)
        } else if self.size {
            Some(Mtime::Renewed)
        } else {
            let has_changed = self.owner && sets_owner
                || self.mode && change.mode.is_some()
                || self.times && sets_times;
            has_changed.then_some(Mtime::Kept)
        }
    }
}

impl AttributeChange {
    /// Whether it takes the owner. A writer may set the length, and both times to now.
    fn takes_owner(&self) -> bool {
        let times = (self.atime, self.mtime);
        self.mode.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || !matches!(times, (SetTime::Keep, SetTime::Keep | SetTime::Now) | BOTH_NOW)
    }

    /// Whether it takes the right to write, unless it takes the owner.
    fn takes_writer(&self) -> bool {
        self.size.is_some() || self.mtime == SetTime::Now
    }

    /// Whether a server without privileges may not open its own file for writing afterwards.
    fn forbids_opening(&self) -> bool {
        let is_forbidding = |mode| mode & OWNER_READS_AND_WRITES != OWNER_READS_AND_WRITES;
        self.mode.is_some_and(is_forbidding)
    }

    /// Refuses what no object can have. Two times and one id mean something else to the kernel
    /// ("now", "leave it as it is"), so they must not get there.
    ///
    /// # Errors
    /// `Invalid`, and `TooLarge` for a length.
    pub(super) fn check(&self) -> Result<(), Status> {
        let is_time = |time| !matches!(time, SetTime::At(at) if at.nanoseconds > NANOSECONDS_MAX);
        if self.size.is_some_and(|size| i64::try_from(size).is_err()) {
            return Err(Status::TooLarge);
        }
        let ids = [self.uid, self.gid];
        let valid = !ids.contains(&Some(u32::MAX)) && is_time(self.atime) && is_time(self.mtime);
        if valid { Ok(()) } else { Err(Status::Invalid) }
    }
}

impl Vfs {
    /// GETATTR, RFC 1813 §3.3.1.
    pub(crate) async fn getattr(&self, object: &Object) -> Result<Attributes, Status> {
        Ok(self.open_with_attributes(object).await?.1)
    }

    /// The object with its attributes.
    pub(super) async fn open_with_attributes(
        &self,
        object: &Object,
    ) -> Result<(Arc<Inode>, Attributes), Status> {
        let (file, live) = self.open_inode(object).await?;
        let attributes = match live {
            Some(live) => file.lock.attributes(live),
            None => self.attributes(&file).await?,
        };
        Ok((file, attributes))
    }

    /// SETATTR, RFC 1813 §3.3.2, as the caller. `guard`, when given, must be the ctime before.
    /// `has_writer`: whether a client of version 4 has a file open for writing. The answer has the
    /// parts that are done with the attributes.
    ///
    /// The parts are applied in the order length, owner, mode, times, for each may undo the next
    /// when applied after it; a failure leaves the earlier ones done, as the RFC allows.
    ///
    /// # Errors
    /// `Stale`, `Delegated`, `ReadOnly`, `NotSync` (the guard), `NotOwner`, `Access`, `Invalid`,
    /// `IsDirectory` and `TooLarge` (the length), `NotSupported` (the mode of a symbolic link),
    /// `NoSpace`, `Quota`, `Io`.
    pub(crate) async fn setattr(
        &self,
        caller: &Caller,
        object: &Object,
        change: AttributeChange,
        guard: Option<Timestamp>,
        has_writer: impl FnOnce(&Inode) -> bool,
    ) -> Answer<(Wcc, Applied), ()> {
        let forbids_opening = !io::can_assume_users() && change.forbids_opening();
        let changing = changing(&change, forbids_opening);
        let check = |file: Arc<Inode>, now: LiveAttributes| async move {
            check_guard(&now, guard)?;
            self.check_setattr(caller, &file, &now, &change).await
        };
        let begun = match change.check() {
            Ok(()) => self.begin_checked(caller, object, changing, check).await,
            Err(status) => Err(status),
        };
        let (file, begun) = match begun {
            Ok(begun) => begun,
            Err(status) => {
                let Answer { attributes, result } = self.refuse_change(object, status).await;
                return Answer { attributes: (attributes, Applied::default()), result };
            }
        };
        let (before, failures) = (*begun.before(), file.failures());
        let mut change = change;
        let mut checked = check_guard(&before, guard);
        if checked.is_ok()
            && let Some(size) = change.size
        {
            checked = self.truncate(caller, &file, &begun, size).await;
            // Done with it. Both times remain, for the kernel lets a writer set both to now.
            if change.mtime == SetTime::Now && change.atime == SetTime::Keep {
                change.mtime = SetTime::Keep;
            }
        }
        if let Err(status) = checked {
            let wcc = begun.end_refused(self.live_attributes(&file).await.ok());
            return Answer { attributes: (wcc, Applied::default()), result: Err(status) };
        }
        if forbids_opening {
            self.keep_writable(&file, has_writer).await;
        }
        let given = self.give(caller, object, &file, &begun, &change).await;
        let changed = Arc::clone(&file);
        let cut = Applied { size: change.size.is_some(), ..Applied::default() };
        let job = move || {
            begun.system_calls().note();
            let mut applied = cut;
            let rest = AttributeChange { uid: None, gid: None, ..change };
            let result = given.and_then(|()| apply(changed.fd(), &rest, &mut applied));
            let wcc = end(begun, &changed, applied.mtime(&change));
            Ok(((wcc, applied), result))
        };
        let (attributes, result) = match self.in_metadata_lane(caller.identity.clone(), job).await {
            Ok(done) => done,
            Err(status) => {
                return Answer { attributes: (Wcc::default(), cut), result: Err(status) };
            }
        };
        // Also when a part failed: the others are done.
        let settled = match attributes.1.mtime(&change) {
            Some(_) => self.settle(&file, object.sync, failures).await,
            None => Ok(()),
        };
        Answer { attributes, result: settled.and(result) }
    }

    /// Sets owner and group as a part of `change`; again if space is lacking, in the quota of the
    /// new ones perhaps, and there is some after all.
    async fn give(
        &self,
        caller: &Caller,
        object: &Object,
        file: &Arc<Inode>,
        begun: &Change,
        change: &AttributeChange,
    ) -> Result<(), Status> {
        let (uid, gid) = (change.uid, change.gid);
        if uid.is_none() && gid.is_none() {
            return Ok(());
        }
        let attempt = || {
            let (file, calls) = (Arc::clone(file), begun.system_calls());
            self.in_metadata_lane(caller.identity.clone(), move || {
                calls.note();
                set_owner(file.fd(), uid, gid)?;
                // The rest may not be carried out.
                file.note_change();
                Ok(())
            })
        };
        Box::pin(self.with_space(object, Takes::InodeSpace, attempt)).await
    }

    /// Checks a SETATTR that would wait for others, by the attributes now.
    ///
    /// # Errors
    /// `NotOwner`; as [`Self::permit`].
    async fn check_setattr(
        &self,
        caller: &Caller,
        file: &Arc<Inode>,
        now: &LiveAttributes,
        change: &AttributeChange,
    ) -> Result<(), Status> {
        if change.takes_owner() && !may_be_owner(&caller.identity, now.uid) {
            return Err(Status::NotOwner);
        }
        if change.takes_writer() {
            let timer = &mut self.timer(file.root(), CallKind::Other);
            self.permit::<Writing>(caller, file, now, timer).await?;
        }
        Ok(())
    }

    /// Sets the length in bytes as a part of `change`. The owner may with any mode bits, as with
    /// WRITE.
    async fn truncate(
        &self,
        caller: &Caller,
        file: &Arc<Inode>,
        change: &Change,
        size: u64,
    ) -> Result<(), Status> {
        let attributes = change.before();
        let timer = &mut self.timer(file.root(), CallKind::Other);
        let permitted = self.permit::<Writing>(caller, file, attributes, timer).await?;
        let writer = self.writer(&permitted).await?;
        // As the caller: the kernel then clears set-user-id bits and counts quotas as it should. No
        // call may read or write past the new end, or in the page that it cuts, meanwhile.
        let rest = ByteRange::starting_at(size.min(attributes.size));
        let pages = permitted.data().ranges.lock(rest, RangeUse::Exclusive).await;
        let cut = Arc::clone(file);
        let calls = change.system_calls();
        self.in_metadata_lane(caller.identity.clone(), move || {
            calls.note();
            let result = rustix::fs::ftruncate(&*writer, size);
            // Before another change may begin: the end of the last page is written.
            cut.note_change();
            result?;
            cut.note_truncated(size);
            drop(pages);
            Ok(())
        })
        .await
    }
}

/// The part of a file that SETATTR is to change, and its lengths after that. `forbids_opening`: it
/// may be opened for writing first.
fn changing(change: &AttributeChange, forbids_opening: bool) -> (Changing, Lengths) {
    match change.size {
        None if !change.takes_owner() && !change.takes_writer() => {
            (Changing::Nothing, Lengths::KEPT)
        }
        None if forbids_opening => (Changing::Data, Lengths::KEPT),
        None => (Changing::Attributes, Lengths::KEPT),
        Some(size) => (Changing::Data, Lengths::set_to(size)),
    }
}

fn check_guard(before: &LiveAttributes, guard: Option<Timestamp>) -> Result<(), Status> {
    if guard.is_none_or(|guard| guard == before.ctime) { Ok(()) } else { Err(Status::NotSync) }
}

/// Ends a change of an object that leaves such an mtime; `None` if nothing of it is done.
fn end(change: Change, object: &Inode, mtime: Option<Mtime>) -> Wcc {
    match mtime {
        Some(mtime) => {
            object.note_change();
            change.end(object.fd(), mtime)
        }
        None => change.end_refused(object.live_attributes().ok()),
    }
}

/// Applies all but the length of a change that was checked, as the identity of this thread, and
/// notes what is done.
pub(super) fn apply(
    fd: BorrowedFd<'_>,
    change: &AttributeChange,
    applied: &mut Applied,
) -> Result<(), Status> {
    set_owner(fd, change.uid, change.gid)?;
    applied.owner = true;
    if let Some(mode) = change.mode {
        // chmod takes no O_PATH descriptor before Linux 6.6.
        let mode = Mode::from_raw_mode(mode & 0o7777);
        rustix::fs::chmodat(CWD, proc_path(fd), mode, AtFlags::empty())?;
    }
    applied.mode = true;
    if change.atime != SetTime::Keep || change.mtime != SetTime::Keep {
        set_times(fd, change.atime, change.mtime)?;
    }
    applied.times = true;
    Ok(())
}

/// Sets the times, as the identity of this thread. mtime "now" alone is what a client sends that
/// truncates a file to the length it has. That takes a writer, and utimensat takes an owner for one
/// time alone: a writer gets both.
fn set_times(fd: BorrowedFd<'_>, atime: SetTime, mtime: SetTime) -> Result<(), Errno> {
    let set = |atime, mtime| {
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        rustix::fs::utimensat(CWD, proc_path(fd), &times, AtFlags::empty())
    };
    match (set(atime, mtime), (atime, mtime)) {
        (Err(Errno::PERM), (SetTime::Keep, SetTime::Now)) => set(SetTime::Now, SetTime::Now),
        (result, _) => result,
    }
}

/// Sets owner and group, as the identity of this thread.
pub(super) fn set_owner(
    fd: BorrowedFd<'_>,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<(), Errno> {
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)
}

fn timespec(time: SetTime) -> Timespec {
    match time {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::At(at) => Timespec { tv_sec: at.seconds, tv_nsec: at.nanoseconds.into() },
    }
}

/// Times that a writer may set, too.
const BOTH_NOW: (SetTime, SetTime) = (SetTime::Now, SetTime::Now);
/// The mode bits that a server without privileges needs to open its own file for writing.
const OWNER_READS_AND_WRITES: u32 = 0o600;
const NANOSECONDS_MAX: u32 = 999_999_999;
