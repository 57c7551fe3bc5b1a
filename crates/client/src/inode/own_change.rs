//! Own modifying calls in flight, as their inodes see them.

use std::sync::Arc;
use std::time::Instant;

use super::{Attribution, Contents, Inode};
use crate::Result;
use crate::cache::attributes::{self, Effect};
use crate::cache::change::{Change, Evidence, OwnCall};

/// A modifying call of this client in flight. Dropped without [`finish`](Self::finish), it counts
/// as a call without a reply: its effect will be taken for a foreign change, and the attributes
/// expire.
#[derive(Debug)]
pub(crate) struct OwnChange {
    inode: Arc<Inode>,
    /// `None` once it has finished.
    call: Option<OwnCall>,
    sent: attributes::Sent,
}

impl OwnChange {
    /// The object that the call changes.
    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// Updates the inode from the outcome of the call; `evidence` is that of its results. Returns
    /// the change stamp of the object, unless the call failed or another client changed it too.
    pub(crate) fn finish<T>(
        mut self,
        outcome: &Result<T>,
        evidence: impl FnOnce(&T) -> Evidence,
    ) -> Option<Change> {
        let evidence = match outcome {
            Ok(results) => Some(evidence(results)),
            // Parts that a SETATTR has set before it was refused will count as a foreign change.
            Err(error) if error.leaves_names() => None,
            // The server may have executed the call.
            Err(_) => return None,
        };
        let call = self.call.take()?;
        let (inode, sent) = (&self.inode, self.sent);
        let mut known = inode.known();
        let from = known.tracker.known();
        let is_pair = evidence.as_ref().and_then(Evidence::is_pair);
        if let (Some(is_pair), Contents::Directory(_)) = (is_pair, &inode.contents) {
            known.is_attributing = is_pair;
        }
        let attribution = match &evidence {
            Some(evidence) => known.tracker.finish(call, evidence),
            None => known.tracker.refuse(call),
        };
        match evidence.as_ref().map(Evidence::attributes) {
            Some(Some(after)) => known.learn(after, sent, attribution),
            Some(None) => known.attributes.expire(),
            None => {}
        }
        known.disturbed_at = Instant::now();
        let to = known.tracker.known();
        inode.apply(known, attribution, from, to);
        inode.own_call_ended.notify_waiters();
        let is_own = matches!(attribution, Attribution::Own | Attribution::Unchanged);
        (evidence.is_some() && is_own).then_some(to)
    }
}

impl Drop for OwnChange {
    fn drop(&mut self) {
        if self.call.take().is_some() {
            self.inode.expire();
        }
    }
}

/// A call in flight that changes a name of a directory. Dropped without `finish`, the call has no
/// reply, and what the name refers to is unknown.
#[derive(Debug)]
pub(crate) struct NameChange<'a> {
    dir: &'a Inode,
    name: &'a [u8],
    /// The change of the directory; `None` for the second name of one RENAME.
    change: Option<OwnChange>,
    is_settled: bool,
}

impl NameChange<'_> {
    /// Updates the directory from the outcome of the call, as [`OwnChange::finish`] does.
    pub(crate) fn finish<T>(
        mut self,
        outcome: &Result<T>,
        evidence: impl FnOnce(&T) -> Evidence,
    ) -> Option<Change> {
        let after = self.change.take().and_then(|change| change.finish(outcome, evidence));
        self.finish_in(outcome, after);
        after
    }

    /// Like [`finish`](Self::finish), with the change stamp that the first name of the call has
    /// returned.
    pub(crate) fn finish_in<T>(mut self, outcome: &Result<T>, after: Option<Change>) {
        match outcome {
            Ok(_) => self.dir.name_changed(self.name, after),
            Err(error) => {
                self.dir.note_error(error);
                if !error.leaves_names() {
                    self.dir.name_changed(self.name, None);
                }
            }
        }
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

impl Inode {
    /// To be called before a call is sent that changes this object; for a WRITE,
    /// [`begin_write`](Self::begin_write).
    pub(crate) fn begin_change(self: &Arc<Self>) -> OwnChange {
        self.begin_call(Effect::Change)
    }

    /// To be called before a WRITE of this file is sent.
    pub(crate) fn begin_write(self: &Arc<Self>) -> OwnChange {
        self.begin_call(Effect::Growth)
    }

    fn begin_call(self: &Arc<Self>, effect: Effect) -> OwnChange {
        let mut known = self.known();
        let sent = known.attributes.sending(Instant::now(), effect);
        let call = known.tracker.begin();
        known.disturbed_at = Instant::now();
        OwnChange { inode: Arc::clone(self), call: Some(call), sent }
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
