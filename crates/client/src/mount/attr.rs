//! GETATTR, SETATTR, ACCESS and STATFS.

use std::time::{Duration, Instant};

use proto::nfs3::{
    ACCESS_DELETE, ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ,
    SetAttributes, SetTime, Status, Time,
};
use rustix::io::Errno;

use super::grants::Access;
use super::operations::{Node, Operations, Outcome, Refusal, changed_ttl_max};
use super::reply::{Answer, MODE_BITS};
use super::request::{Head, Setattr, When};
use crate::file_system::FileSystem;

impl Operations {
    pub(super) async fn getattr(&self, head: &Head) -> Outcome {
        let node = self.node(head.node)?;
        let _answered = node.begin_getattr();
        let nlink_min = node.nlink_min();
        let caller = self.as_caller(head);
        caller.attributes(&node.inode).await?;
        if !self.links_are_known(&node) {
            caller.revalidate(&node.inode).await?;
        }
        // After an fstat(2) that shows a change, read(2) returns the new data.
        let size = node.inode.attributes().size;
        self.drop_stale_pages(head.node, &node, |view| view.can_drop_pages(size, Instant::now()))
            .await;
        Ok(self.attributes(head.node, &node, nlink_min, Duration::MAX))
    }

    pub(super) async fn setattr(&self, head: &Head, set: &Setattr) -> Outcome {
        let node = self.node(head.node)?;
        let mut wanted = SetAttributes {
            mode: set.mode.map(|mode| mode & MODE_BITS),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set_time(set.atime),
            mtime: set_time(set.mtime),
        };
        let caller = self.as_caller(head);
        // truncate(2), or open(2) with O_TRUNC: the kernel checks no permission, and SETATTR would
        // succeed for an owner without write permission. OPEN has checked that of ftruncate(2).
        if set.size.is_some() && set.fh.is_none() {
            may(&caller, &node, ACCESS_MODIFY | ACCESS_EXTEND).await?;
        }
        let was_open = node.is_dir() && !self.must_ask(&node.inode);
        let opened = set.fh.and_then(|fh| self.files.get(fh)).filter(|_| set.size.is_some());
        if let Some(open) = &opened {
            // The caller can have changed its user since OPEN, or have got the file from another.
            let size = SetAttributes { size: wanted.size.take(), ..SetAttributes::default() };
            let opener = self.file_system.as_user(open.file.nfs().identity());
            opener.set_attributes(&node.inode, size).await?;
        }
        if wanted != SetAttributes::default() {
            caller.set_attributes(&node.inode, wanted).await?;
        } else if opened.is_none() {
            caller.attributes(&node.inode).await?;
        }
        if was_open && self.must_ask(&node.inode) {
            self.forget_names(head.node, &node.inode);
        }
        // Not after an error, with which the kernel keeps its size.
        if let Some(size) = set.size {
            node.view().note_cut(size);
        }
        Ok(self.attributes(head.node, &node, 0, changed_ttl_max(&node.inode)))
    }

    /// access(2) and chdir(2): the server decides.
    pub(super) async fn access(&self, head: &Head, mask: u32) -> Outcome {
        let node = self.node(head.node)?;
        let wanted = access_bits(mask, node.is_dir());
        if wanted != 0 && self.as_caller(head).access(&node.inode, wanted).await? & wanted != wanted
        {
            return Err(Refusal(Errno::ACCESS));
        }
        Ok(Answer::done())
    }

    pub(super) async fn statfs(&self, head: &Head) -> Outcome {
        let caller = self.as_caller(head);
        let stat = match caller.statfs(&self.node(head.node)?.inode).await {
            // fstatfs(2) of a file that another client has removed.
            Err(error) if error.is(Status::Stale) => caller.statfs(&caller.root()).await?,
            answered => answered?,
        };
        Ok(Answer::statfs(&stat, self.rules().name_max))
    }
}

/// Fails with EACCES unless the server grants the caller all of `wanted`, a sum of `ACCESS_*`. One
/// call asks for all bits. Its result is used as long as the attributes are valid, as by the
/// kernel's NFS client.
pub(super) async fn may(caller: &FileSystem, node: &Node, wanted: u32) -> Result<(), Refusal> {
    if wanted == 0 {
        return Ok(());
    }
    let identity = caller.nfs().identity();
    let ctime = node.inode.attributes().ctime;
    let is_believed = !node.inode.attributes_ttl().is_zero();
    let known = is_believed.then(|| node.grants.find(identity, ctime, wanted)).flatten();
    let granted = match known {
        Some(granted) => granted,
        None => {
            let granted = caller.access(&node.inode, ACCESS_ALL).await?;
            node.note_access(caller, ctime, Access { asked: ACCESS_ALL, granted });
            granted
        }
    };
    if granted & wanted == wanted { Ok(()) } else { Err(Refusal(Errno::ACCESS)) }
}

impl Node {
    /// Notes that an ACCESS, before which the file had this `ctime`, has granted the caller all of
    /// `access`.
    pub(super) fn note_granted(&self, caller: &FileSystem, ctime: Time, access: u32) {
        self.note_access(caller, ctime, Access { asked: access, granted: access });
    }

    fn note_access(&self, caller: &FileSystem, ctime: Time, access: Access) {
        // A reply with another ctime may be from before a change or after it.
        if self.inode.attributes().ctime == ctime {
            self.grants.learn(caller.nfs().identity(), ctime, access);
        }
    }
}

/// The bits of ACCESS for those of access(2), as in the kernel's NFS client.
pub(super) fn access_bits(mask: u32, is_dir: bool) -> u32 {
    let mut bits = 0;
    if mask & MAY_READ != 0 {
        bits |= ACCESS_READ;
    }
    if mask & MAY_WRITE != 0 {
        bits |= ACCESS_MODIFY | ACCESS_EXTEND;
        if is_dir {
            bits |= ACCESS_DELETE;
        }
    }
    if mask & MAY_EXECUTE != 0 {
        bits |= if is_dir { ACCESS_LOOKUP } else { ACCESS_EXECUTE };
    }
    bits
}

/// The protocol's times have unsigned 32-bit seconds. Times outside that range are set to its
/// nearest end, as by the kernel's NFS client.
fn set_time(when: Option<When>) -> SetTime {
    match when {
        None => SetTime::DontChange,
        Some(When::Now) => SetTime::ToServerTime,
        Some(When::At { seconds, nseconds }) => {
            let time = match u32::try_from(seconds) {
                Ok(seconds) => Time { seconds, nseconds },
                Err(_) if seconds < 0 => Time { seconds: 0, nseconds: 0 },
                Err(_) => Time { seconds: u32::MAX, nseconds: 0 },
            };
            SetTime::ToClientTime(time)
        }
    }
}

/// All bits of ACCESS.
const ACCESS_ALL: u32 =
    ACCESS_READ | ACCESS_LOOKUP | ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE | ACCESS_EXECUTE;

/// `R_OK`.
pub(super) const MAY_READ: u32 = 4;

/// `W_OK`.
pub(super) const MAY_WRITE: u32 = 2;

/// `X_OK`.
pub(super) const MAY_EXECUTE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_bits_are_those_of_the_kernels_client() {
        assert_eq!(access_bits(0, false), 0);
        assert_eq!(access_bits(MAY_READ, false), ACCESS_READ);
        assert_eq!(access_bits(MAY_WRITE, false), ACCESS_MODIFY | ACCESS_EXTEND);
        assert_eq!(access_bits(MAY_WRITE, true), ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE);
        assert_eq!(access_bits(MAY_EXECUTE, false), ACCESS_EXECUTE);
        assert_eq!(access_bits(MAY_READ | MAY_EXECUTE, true), ACCESS_READ | ACCESS_LOOKUP);
    }

    #[test]
    fn times_out_of_range_become_the_nearest() {
        let at = |seconds, nseconds| set_time(Some(When::At { seconds, nseconds }));
        let time = |seconds, nseconds| SetTime::ToClientTime(Time { seconds, nseconds });
        assert_eq!(at(7, 8), time(7, 8));
        assert_eq!(at(-1, 5), time(0, 0));
        assert_eq!(at(i64::from(u32::MAX) + 1, 5), time(u32::MAX, 0));
        assert_eq!(set_time(Some(When::Now)), SetTime::ToServerTime);
        assert_eq!(set_time(None), SetTime::DontChange);
    }
}
