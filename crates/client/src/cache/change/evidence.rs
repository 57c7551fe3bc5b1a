//! The stamps in the reply to an own change, and what they prove.

use std::sync::atomic::{AtomicU32, Ordering};

use proto::nfs3::{
    Attributes, CreatedOk, LinkOk, RemovedOk, RenameOk, SetattrOk, WccData, WriteOk,
};

use super::Change;

/// The stamps of an object from the reply to a call that changes it.
///
/// Made only from the whole results of a procedure, because what a stamp proves depends on the
/// procedure: the stamp after a LINK proves nothing about the data, although it has the same type
/// as the one after a WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    stamps: Stamps,
    /// The attributes after the change, if the reply has them.
    attributes: Option<Attributes>,
}

/// See [`Evidence`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Stamps {
    /// The stamps immediately before and after the change.
    Pair(Change, Change),
    /// The stamp after a WRITE, from a server that never returns the one from before.
    TrustedAfter(Change),
    /// A stamp from after the change, which may include foreign changes.
    After(Change),
    /// A stamp from after a change of ctime alone.
    CtimeAfter(Change),
    /// Ctime has changed, size and mtime have not. The reply has no stamp of the object.
    CtimeMoved,
    /// The reply has no stamp from after the change.
    Nothing,
}

impl Evidence {
    /// For the file of a WRITE, RFC 1813 §3.3.7.
    #[must_use]
    pub(crate) fn of_write(written: &WriteOk, pairs: &WritePairs) -> Self {
        let evidence = Self::of_pair(&written.wcc);
        let trusted = pairs.trusts(&written.wcc);
        match evidence.stamps {
            Stamps::After(after) if trusted => {
                Self { stamps: Stamps::TrustedAfter(after), ..evidence }
            }
            _ => evidence,
        }
    }

    /// For the object of a SETATTR, RFC 1813 §3.3.2.
    #[must_use]
    pub(crate) fn of_setattr(set: &SetattrOk) -> Self {
        Self::of_pair(&set.wcc)
    }

    /// For the directory of a CREATE, MKDIR, SYMLINK or MKNOD, RFC 1813 §3.3.8 to §3.3.11.
    #[must_use]
    pub(crate) fn of_created_dir(created: &CreatedOk) -> Self {
        Self::of_pair(&created.dir_wcc)
    }

    /// For the directory of a REMOVE or RMDIR, RFC 1813 §3.3.12 and §3.3.13.
    #[must_use]
    pub(crate) fn of_removed_dir(removed: &RemovedOk) -> Self {
        Self::of_pair(&removed.dir_wcc)
    }

    /// For the file that lost a name by REMOVE.
    #[must_use]
    pub(crate) fn of_removed_file(_: &RemovedOk) -> Self {
        Self { stamps: Stamps::CtimeMoved, attributes: None }
    }

    /// For the directory that a RENAME took the name from, RFC 1813 §3.3.14.
    #[must_use]
    pub(crate) fn of_rename_from_dir(renamed: &RenameOk) -> Self {
        Self::of_pair(&renamed.from_wcc)
    }

    /// For the directory that a RENAME gave the name to.
    #[must_use]
    pub(crate) fn of_rename_to_dir(renamed: &RenameOk) -> Self {
        Self::of_pair(&renamed.to_wcc)
    }

    /// For the file that a RENAME moved.
    #[must_use]
    pub(crate) fn of_renamed_file(_: &RenameOk) -> Self {
        Self { stamps: Stamps::CtimeMoved, attributes: None }
    }

    /// For the file that lost its name by RENAME of another.
    #[must_use]
    pub(crate) fn of_replaced_file(_: &RenameOk) -> Self {
        Self { stamps: Stamps::CtimeMoved, attributes: None }
    }

    /// For the directory of a LINK, RFC 1813 §3.3.15.
    #[must_use]
    pub(crate) fn of_link_dir(linked: &LinkOk) -> Self {
        Self::of_pair(&linked.dir_wcc)
    }

    /// For the file of a LINK.
    #[must_use]
    pub(crate) fn of_linked_file(linked: &LinkOk) -> Self {
        let attributes = linked.file_attributes;
        let after = attributes.as_ref().map(Change::from);
        Self { stamps: after.map_or(Stamps::CtimeMoved, Stamps::CtimeAfter), attributes }
    }

    fn of_pair(wcc: &WccData) -> Self {
        let stamps = match (wcc.before, wcc.after.as_ref().map(Change::from)) {
            (Some(before), Some(after)) => Stamps::Pair(before, after),
            (None, Some(after)) => Stamps::After(after),
            (_, None) => Stamps::Nothing,
        };
        Self { stamps, attributes: wcc.after }
    }

    /// Whether the reply has both stamps of a directory. `None` if the procedure never returns them
    /// for it, as RENAME and RMDIR of the directory itself.
    #[must_use]
    pub(crate) fn is_pair(&self) -> Option<bool> {
        match self.stamps {
            Stamps::Pair(..) => Some(true),
            Stamps::After(_) | Stamps::Nothing => Some(false),
            Stamps::TrustedAfter(_) | Stamps::CtimeAfter(_) | Stamps::CtimeMoved => None,
        }
    }

    pub(super) fn stamps(&self) -> Stamps {
        self.stamps
    }

    /// The attributes after the change, if the reply has them.
    #[must_use]
    pub(crate) fn attributes(&self) -> Option<&Attributes> {
        self.attributes.as_ref()
    }
}

/// Whether the server of a mount returns the stamp from before a WRITE.
///
/// Stock Linux NFSD never does. A server that does, and omits it from one reply, could not exclude
/// foreign changes during that WRITE: the reply is not trusted.
#[derive(Debug, Default)]
pub(crate) struct WritePairs {
    /// Number of WRITE replies with the stamp from after alone; [`GIVEN`] once a reply had both.
    lone_afters: AtomicU32,
}

impl WritePairs {
    /// Notes a reply. Returns whether its stamp from after is trusted without the one from before.
    fn trusts(&self, wcc: &WccData) -> bool {
        let lone_afters = self.lone_afters.load(Ordering::Relaxed);
        match (wcc.before, &wcc.after) {
            (Some(_), _) => {
                if lone_afters != GIVEN {
                    self.lone_afters.store(GIVEN, Ordering::Relaxed);
                }
                false
            }
            (None, Some(_)) if lone_afters < LONE_AFTERS_UNTRUSTED => {
                // Not `fetch_add`: another thread may have seen both stamps meanwhile.
                let _ = self.lone_afters.compare_exchange(
                    lone_afters,
                    lone_afters + 1,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                false
            }
            (None, Some(_)) => lone_afters != GIVEN,
            (None, None) => false,
        }
    }
}

/// WRITE replies of a mount with the stamp from after alone, until the server counts as one that
/// never returns the other.
pub(super) const LONE_AFTERS_UNTRUSTED: u32 = 16;

const GIVEN: u32 = u32::MAX;
