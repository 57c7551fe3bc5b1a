//! LOOKUP, READLINK, SYMLINK, MKDIR, MKNOD, UNLINK, RMDIR, RENAME and LINK.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::nfs3::{ACCESS_LOOKUP, Attributes, DeviceSpec, FileType, MknodData, SetAttributes};
use rustix::io::Errno;

use super::attr::may;
use super::operations::{Operations, Outcome, Refusal, changed_ttl_max};
use super::reply::{Answer, MODE_BITS, decode_device, type_of_mode};
use super::request::{Head, Name};
use crate::file_system::{FileSystem, Found};
use crate::inode::{Inode, KnownBefore};
use crate::mount_options::LookupCache;

impl Operations {
    pub(super) async fn lookup(&self, head: &Head, Name(name): &Name) -> Outcome {
        let dir = self.node(head.node)?;
        let caller = self.as_caller(head);
        // A name from a listing is found without a LOOKUP by which the server would check it.
        let is_listed = || dir.inode.is_listed(name);
        if self.rules().ask_before_search && (self.must_ask(&dir.inode) || is_listed()) {
            may(&caller, &dir, ACCESS_LOOKUP).await?;
        }
        let before = dir.inode.before_call();
        let ttl_by =
            |in_reply: Option<Attributes>| self.believed_ttl(&dir.inode, before, in_reply.as_ref());
        let found = caller.find(&dir.inode, name).await?;
        // Before the wait for attributes, in which a reply can show that the directory has changed
        // and make its attributes valid for longer.
        let found_at = Instant::now();
        let (inode, ttl, is_listed) = match found {
            Found::Listed(inode) => (inode, self.name_ttl(&dir.inode), true),
            Found::Replied(inode, dir_attributes) => (inode, ttl_by(dir_attributes), false),
            Found::Absent(dir_attributes) => {
                let believed = self.rules().lookup_cache == LookupCache::All;
                let ttl = if believed { ttl_by(dir_attributes) } else { Duration::ZERO };
                dir.notified().await;
                return Ok(Answer::no_entry(ttl));
            }
        };
        // Unsent data is not waited for: the kernel holds the directory. It gets the attributes of
        // such a file for no time, and stat(2) sends the data by its GETATTR.
        caller.last_attributes(&inode).await?;
        dir.notified().await;
        let mut ttl = ttl.saturating_sub(found_at.elapsed());
        if is_listed {
            ttl = ttl.min(dir.inode.listed_ttl(name, inode.handle()));
        }
        Ok(Answer::entry(&self.entry(&dir.inode, &inode, ttl, Duration::MAX)))
    }

    /// How long the kernel may use a name in `dir` by a LOOKUP or a call that gives it, of which
    /// `before` was known before, and whose reply had the attributes `in_reply` of the directory.
    /// Not at all if the latest attributes can be of a later state: other clients may have changed
    /// the name by then, and the attributes do not expire any sooner for it.
    pub(super) fn believed_ttl(
        &self,
        dir: &Inode,
        before: KnownBefore,
        in_reply: Option<&Attributes>,
    ) -> Duration {
        // Before the check, after which further attributes can arrive.
        let ttl = self.name_ttl(dir);
        if dir.is_latest(before, in_reply) { ttl } else { Duration::ZERO }
    }

    /// The answer that a call has given `inode` a name in `dir`, of which `before` was known before
    /// it. That is done, whatever becomes of a GETATTR for its attributes.
    async fn named(
        &self,
        caller: &FileSystem,
        dir: &Inode,
        before: KnownBefore,
        inode: &Arc<Inode>,
    ) -> Answer {
        // As in `lookup`.
        let (ttl, named_at) = (self.believed_ttl(dir, before, None), Instant::now());
        let _ = caller.last_attributes(inode).await;
        let ttl = ttl.saturating_sub(named_at.elapsed());
        Answer::entry(&self.entry(dir, inode, ttl, changed_ttl_max(inode)))
    }

    pub(super) async fn readlink(&self, head: &Head) -> Outcome {
        let node = self.node(head.node)?;
        Ok(Answer::data(self.as_caller(head).read_link(&node.inode).await?))
    }

    pub(super) async fn symlink(&self, head: &Head, name: &Name, target: &Name) -> Outcome {
        let dir = self.node(head.node)?;
        let caller = self.as_caller(head);
        let before = dir.inode.before_call();
        let inode = caller.symlink(&dir.inode, &name.0, &target.0).await?;
        Ok(self.named(&caller, &dir.inode, before, &inode).await)
    }

    pub(super) async fn mkdir(&self, head: &Head, Name(name): &Name, mode: u32) -> Outcome {
        let dir = self.node(head.node)?;
        let caller = self.as_caller(head);
        let before = dir.inode.before_call();
        let inode = caller.make_dir(&dir.inode, name, mode & MODE_BITS).await?;
        Ok(self.named(&caller, &dir.inode, before, &inode).await)
    }

    pub(super) async fn mknod(
        &self,
        head: &Head,
        Name(name): &Name,
        mode: u32,
        rdev: u32,
    ) -> Outcome {
        let dir = self.node(head.node)?;
        let caller = self.as_caller(head);
        let before = dir.inode.before_call();
        let attributes = SetAttributes { mode: Some(mode & MODE_BITS), ..Default::default() };
        let (major, minor) = decode_device(rdev);
        let spec = DeviceSpec { major, minor };
        let what = match type_of_mode(mode) {
            Some(FileType::BlockDevice) => MknodData::BlockDevice { attributes, spec },
            Some(FileType::CharacterDevice) => MknodData::CharacterDevice { attributes, spec },
            Some(FileType::Socket) => MknodData::Socket(attributes),
            Some(FileType::Fifo) => MknodData::Fifo(attributes),
            // mknod(2) of a regular file, which must not exist yet.
            Some(FileType::Regular) => {
                let inode = caller.create(&dir.inode, name, mode & MODE_BITS, true).await?;
                return Ok(self.named(&caller, &dir.inode, before, &inode).await);
            }
            Some(FileType::Directory | FileType::Symlink) | None => {
                return Err(Refusal(Errno::INVAL));
            }
        };
        let inode = caller.make_node(&dir.inode, name, what).await?;
        Ok(self.named(&caller, &dir.inode, before, &inode).await)
    }

    pub(super) async fn unlink(&self, head: &Head, Name(name): &Name) -> Outcome {
        let dir = self.node(head.node)?;
        let removal = self.begin_name_removal(&dir.inode, name);
        self.as_caller(head).remove(&dir.inode, name).await?;
        self.name_removed();
        removal.finish();
        Ok(Answer::done())
    }

    pub(super) async fn rmdir(&self, head: &Head, Name(name): &Name) -> Outcome {
        let dir = self.node(head.node)?;
        self.as_caller(head).remove_dir(&dir.inode, name).await?;
        Ok(Answer::done())
    }

    pub(super) async fn rename(
        &self,
        head: &Head,
        Name(name): &Name,
        new_dir: u64,
        Name(new_name): &Name,
        flags: u32,
    ) -> Outcome {
        // NFS version 3 has neither RENAME_NOREPLACE nor RENAME_EXCHANGE. On this error programs
        // use rename(2).
        if flags != 0 {
            return Err(Refusal(Errno::INVAL));
        }
        let (from, to) = (self.node(head.node)?, self.node(new_dir)?);
        let removal = self.begin_name_removal(&to.inode, new_name);
        self.as_caller(head).rename(&from.inode, name, &to.inode, new_name).await?;
        self.name_removed();
        removal.finish();
        Ok(Answer::done())
    }

    pub(super) async fn link(&self, head: &Head, node: u64, Name(new_name): &Name) -> Outcome {
        let (file, dir) = (self.node(node)?, self.node(head.node)?);
        let caller = self.as_caller(head);
        let before = dir.inode.before_call();
        caller.link(&file.inode, &dir.inode, new_name).await?;
        Ok(self.named(&caller, &dir.inode, before, &file.inode).await)
    }
}
