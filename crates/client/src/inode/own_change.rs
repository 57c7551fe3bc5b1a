//! Own modifying calls in flight, as their inodes see them.

use std::sync::Arc;
use std::time::Instant;

use proto::nfs3::Status;

use super::{Attribution, Inode};
use crate::cache::attributes;
use crate::cache::change::{Change, Evidence, OwnCall};
use crate::{Error, Result};

/// A modifying call of this client in flight. Dropped without [`finish`](Self::finish), it counts
/// as a call without a reply: its effect will be taken for a foreign change.
#[derive(Debug)]
pub(crate) struct OwnChange {
    inode: Arc<Inode>,
    call: OwnCall,
    sent: attributes::Sent,
}

impl OwnChange {
    /// The object that the call changes.
    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// Updates the inode from the reply. Returns the change stamp of the object, unless another
    /// client changed it too.
    pub(crate) fn finish(self, evidence: &Evidence) -> Option<Change> {
        let Self { inode, call, sent } = self;
        let mut known = inode.known();
        let from = known.tracker.known();
        let attribution = known.tracker.finish(call, evidence);
        match evidence.attributes() {
            Some(after) if known.tracker.is_past(after) => {}
            Some(after) => {
                known.attributes.learn(after, sent);
            }
            None => known.attributes.expire(),
        }
        known.disturbed_at = Instant::now();
        let to = known.tracker.known();
        inode.apply(known, attribution, from, to);
        inode.own_call_ended.notify_waiters();
        matches!(attribution, Attribution::Own | Attribution::Unchanged).then_some(to)
    }
}

/// A call in flight that changes a name of a directory. Dropped without `finish`, the call failed
/// or has no reply, and what the name refers to is unknown, unless the error shows that it is the
/// same as before.
#[derive(Debug)]
pub(crate) struct NameChange<'a> {
    dir: &'a Inode,
    name: &'a [u8],
    /// The change of the directory; `None` for the second name of one RENAME.
    change: Option<OwnChange>,
    is_settled: bool,
}

impl NameChange<'_> {
    /// Takes note of the outcome of the call, as [`Inode::note_outcome`] of the directory does.
    pub(crate) fn note_outcome<T>(&mut self, outcome: Result<T>) -> Result<T> {
        self.is_settled = outcome.as_ref().is_err_and(leaves_names);
        self.dir.note_outcome(outcome)
    }

    /// Updates the directory from the reply. Returns its change stamp, unless another client
    /// changed it too.
    pub(crate) fn finish(mut self, evidence: &Evidence) -> Option<Change> {
        let after = self.change.take().and_then(|change| change.finish(evidence));
        self.finish_in(after);
        after
    }

    /// Like [`finish`](Self::finish), with the change stamp that the first name of the call has
    /// returned.
    pub(crate) fn finish_in(mut self, after: Option<Change>) {
        self.dir.name_changed(self.name, after);
        self.is_settled = true;
    }
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.dir.name_changed(self.name, None);
        }
    }
}

/// Whether the names of a call that failed with `error` refer to the same objects as before. Not
/// with NFS3ERR_NOENT and NFS3ERR_EXIST, which can be the answer to a retransmission, or show that
/// another client has changed the name; nor with errors of the disk, which can follow the change.
fn leaves_names(error: &Error) -> bool {
    let refusals = [
        Status::Perm,
        Status::Acces,
        Status::Xdev,
        Status::Inval,
        Status::Rofs,
        Status::Mlink,
        Status::Nametoolong,
        Status::Notempty,
        Status::Notsupp,
        Status::Jukebox,
    ];
    refusals.into_iter().any(|refusal| error.is(refusal))
}

impl Inode {
    /// To be called before a call is sent that changes this object.
    pub(crate) fn begin_change(self: &Arc<Self>) -> OwnChange {
        let mut known = self.known();
        let (call, sent) = (known.tracker.begin(), known.attributes.sending(Instant::now()));
        known.disturbed_at = Instant::now();
        OwnChange { inode: Arc::clone(self), call, sent }
    }

    /// To be called before a call is sent that changes `name` in this directory.
    pub(crate) fn begin_name_change<'a>(self: &'a Arc<Self>, name: &'a [u8]) -> NameChange<'a> {
        NameChange { dir: self, name, change: Some(self.begin_change()), is_settled: false }
    }

    /// Like [`begin_name_change`](Self::begin_name_change), for the second name of a RENAME within
    /// one directory.
    pub(crate) fn begin_other_name_change<'a>(&'a self, name: &'a [u8]) -> NameChange<'a> {
        NameChange { dir: self, name, change: None, is_settled: false }
    }

    /// The change of the object that `name` is known to refer to, by a call that moves or removes
    /// the name.
    pub(crate) fn begin_child_change(&self, name: &[u8]) -> Option<OwnChange> {
        self.child(name).map(|child| child.begin_change())
    }
}
