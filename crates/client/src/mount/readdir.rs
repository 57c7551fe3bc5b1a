//! OPENDIR, READDIR and READDIRPLUS.

use std::sync::Arc;
use std::time::Duration;

use proto::nfs3::ACCESS_READ;
use rustix::io::Errno;

use super::attr::may;
use super::operations::{Node, Operations, Outcome, Refusal};
use super::reply::{Answer, Dirent, Dirents};
use super::request::Head;
use crate::cache::directory;
use crate::error::Error;
use crate::inode::Inode;

impl Operations {
    /// OPENDIR. ACCESS checks that the caller may read the names, because READDIR may be answered
    /// from the cache.
    pub(super) async fn opendir(&self, head: &Head) -> Outcome {
        let node = self.node(head.node)?;
        let caller = self.as_caller(head);
        may(&caller, &node, ACCESS_READ).await?;
        let directory = caller.open_dir(&node.inode).await?;
        let fh = self.dirs.insert(directory).ok_or(Refusal(Errno::NOTCONN))?;
        Ok(Answer::opened_dir(fh, 0))
    }

    /// READDIR, or READDIRPLUS if `plus`. The kernel's offset is the server's cookie, so that a
    /// listing continues at its place after changes of the directory.
    pub(super) async fn readdir(
        &self,
        head: &Head,
        fh: u64,
        cookie: u64,
        size: u32,
        plus: bool,
    ) -> Outcome {
        let node = self.node(head.node)?;
        let directory = self.dirs.get(fh).ok_or(Refusal(Errno::BADF))?;
        if cookie == 0 {
            // rewinddir(3): the listing has to show the current names.
            // A program that has closed a removed file does not expect its silly name.
            node.inode.silly_removals_ended().await;
            directory.rewind().await.map_err(listing_failed)?;
        }
        let names = directory.entries_after(cookie).await.map_err(listing_failed)?;
        node.notified().await;
        let caller = self.as_caller(head);
        let bytes_max = usize::try_from(size).expect("a usize has at least 32 bits");
        let mut listing = Dirents::new(bytes_max);
        // From before the times of the names, as in `lookup`.
        let ttl_max = self.name_ttl(&node.inode);
        for name in names.iter() {
            if !listing.has_room(name.name.len(), plus) {
                if listing.is_empty() {
                    return Err(Refusal(Errno::INVAL));
                }
                break;
            }
            if plus {
                // The kernel takes it for the answer to a LOOKUP.
                let ttl = directory.handle_ttl(&names, name.name);
                let sent_at = names.sent_at();
                let inode = if ttl.is_zero() { None } else { caller.listed(&name, sent_at) };
                self.add_plus(&mut listing, &node, &name, inode, ttl.min(ttl_max));
            } else {
                listing.add(&dirent(&name));
            }
        }
        Ok(Answer::names(listing))
    }

    fn add_plus(
        &self,
        listing: &mut Dirents,
        dir: &Node,
        name: &directory::Entry<'_>,
        inode: Option<Arc<Inode>>,
        ttl: Duration,
    ) {
        match inode {
            // The kernel has the directory and its parent already, with other numbers.
            Some(inode) if !matches!(name.name, b"." | b"..") => {
                dir.inode.name_found(name.name, &inode);
                let entry = self.entry(&dir.inode, &inode, ttl, Duration::MAX);
                listing.add_plus(&dirent(name), Some(&entry));
            }
            _ => listing.add_plus(&dirent(name), None),
        }
    }
}

/// The error of a READDIR. readdir(3) takes ENOENT for the end of the directory.
fn listing_failed(error: Error) -> Refusal {
    match Refusal::from(error) {
        Refusal(Errno::NOENT) => Refusal(Errno::IO),
        other => other,
    }
}

fn dirent<'a>(name: &directory::Entry<'a>) -> Dirent<'a> {
    Dirent {
        fileid: name.fileid,
        cookie: name.cookie,
        file_type: name.attributes.map(|attributes| attributes.file_type),
        name: name.name,
    }
}
