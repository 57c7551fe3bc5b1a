//! An export of a server as the commands see it: paths, listings and handles, nothing remembered.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Instant;

use client::mount3::Mounted;
use client::nfs3::{Listing as Page, Name, Nfs3, leave_out_rejected};
use client::{Error, ListingProgress, MountOptions, Result};
use proto::nfs3::{
    Attributes, CookieVerifier, CreatedOk, FileHandle, FileType, FsinfoOk, Procedure, SetAttributes,
};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use super::text::mode::SET_ID;

/// A mounted export. Cloned for each task that works on it.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) nfs: Nfs3,
    export: Arc<Export>,
}

/// The constant state of a mounted export.
struct Export {
    root: FileHandle,
    info: FsinfoOk,
    path: Vec<u8>,
    /// The most bytes of a READ and of a WRITE, if the options limit them.
    transfers_max: [Option<u32>; 2],
}

/// A file and its last known attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) handle: FileHandle,
    pub(crate) attributes: Attributes,
}

impl Node {
    pub(crate) fn is_dir(&self) -> bool {
        self.attributes.file_type == FileType::Directory
    }

    /// The numbers of its file system and its own.
    pub(crate) fn id(&self) -> (u64, u64) {
        (self.attributes.fsid, self.attributes.fileid)
    }

    /// Whether both are one file.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

/// Whether a symbolic link at the end of a path is followed. Earlier ones always are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

impl Remote {
    /// The export mounted at `path`, with its FSINFO.
    pub(crate) async fn new(
        path: Vec<u8>,
        mounted: Mounted,
        options: &MountOptions,
    ) -> Result<Self> {
        let Mounted { nfs, root } = mounted;
        let info = nfs.fsinfo(root).await?;
        let transfers_max = [options.rsize, options.wsize];
        Ok(Self { nfs, export: Arc::new(Export { root, info, path, transfers_max }) })
    }

    pub(crate) fn root(&self) -> FileHandle {
        self.export.root
    }

    /// The mounted path on the server, absolute.
    pub(crate) fn path(&self) -> &[u8] {
        &self.export.path
    }

    /// The server's FSINFO.
    pub(crate) fn info(&self) -> &FsinfoOk {
        &self.export.info
    }

    /// Whether both are exports of one server, where numbers of file systems and files can be
    /// compared.
    pub(crate) fn shares_server(&self, other: &Self) -> bool {
        self.nfs.address() == other.nfs.address()
    }

    /// Whether both are one export, within which files can be renamed.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.shares_server(other) && self.root() == other.root()
    }

    /// Bytes of a READ at most.
    pub(crate) fn read_bytes(&self) -> u32 {
        transfer_bytes(self.info().rtmax, self.export.transfers_max[0])
    }

    /// Bytes of a WRITE at most.
    pub(crate) fn write_bytes(&self) -> u32 {
        transfer_bytes(self.info().wtmax, self.export.transfers_max[1])
    }

    /// The file of a handle.
    pub(crate) async fn node(&self, handle: FileHandle) -> Result<Node> {
        Ok(Node { handle, attributes: self.nfs.getattr(handle).await? })
    }

    /// The file `name` of a directory; its attributes are asked for where the server leaves them
    /// out.
    pub(crate) async fn lookup(&self, dir: FileHandle, name: &[u8]) -> Result<Node> {
        let found = self.nfs.lookup(dir, name).await?;
        match found.object_attributes {
            Some(attributes) => Ok(Node { handle: found.object, attributes }),
            None => self.node(found.object).await,
        }
    }

    /// The object `name` that `procedure` has created in `dir`; looked up where the server leaves
    /// it out.
    ///
    /// # Errors
    /// [`Error::CreatedUnseen`] if that fails.
    pub(crate) async fn made(
        &self,
        dir: FileHandle,
        name: &[u8],
        procedure: Procedure,
        made: CreatedOk,
    ) -> Result<Node> {
        let node = match (made.object, made.attributes) {
            (Some(handle), Some(attributes)) => Ok(Node { handle, attributes }),
            (Some(handle), None) => self.node(handle).await,
            (None, _) => self.lookup(dir, name).await,
        };
        node.map_err(|error| error.after_creation(procedure, name))
    }

    /// SETATTR, RFC 1813 §3.3.2. Set-id bits that come with an owner are set by a second call: some
    /// servers set the mode first, so that the file would lend the rights of its old owner, and
    /// Linux takes the bits away when it sets an owner, as chown(2) does, and returns NFS3_OK.
    /// Returns the error of the second call, without which the file lacks the bits.
    ///
    /// # Errors
    /// Those of the first call.
    pub(crate) async fn set_attributes(
        &self,
        file: FileHandle,
        new: SetAttributes,
    ) -> Result<Option<Error>> {
        let has_owner = new.uid.is_some() || new.gid.is_some();
        let Some(mode) = new.mode.filter(|mode| has_owner && mode & SET_ID != 0) else {
            self.nfs.setattr(file, new, None).await?;
            return Ok(None);
        };
        let first = SetAttributes { mode: Some(mode & !SET_ID), ..new };
        self.nfs.setattr(file, first, None).await?;
        let second = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        Ok(self.nfs.setattr(file, second, None).await.err())
    }

    /// The file that a path from the root of the export leads to. An absolute symbolic link leads
    /// to its place in the export if it points below that on the server, and else counts from the
    /// root of the export, which is all of the server that can be reached.
    ///
    /// # Errors
    /// The errors of LOOKUP; `NOTDIR` when a name or a slash follows anything but a directory;
    /// `LOOP` past [`LINKS_MAX`] links.
    pub(crate) async fn resolve(&self, path: &[u8], last: LastLink) -> Result<Node> {
        Ok(self.resolve_links(path, last).await?.0)
    }

    /// As [`Remote::resolve`], also returns the links that were followed.
    pub(crate) async fn resolve_links(
        &self,
        path: &[u8],
        last: LastLink,
    ) -> Result<(Node, Vec<Node>)> {
        let mut ahead = components(path);
        let must_be_dir = path.ends_with(b"/") || path.ends_with(b"/.");
        let mut trail = vec![self.node(self.root()).await?];
        let mut links = Vec::new();
        while let Some(name) = ahead.pop_front() {
            let here = trail.last().expect("the root is never taken off");
            if !here.is_dir() {
                return Err(Error::Refused(Errno::NOTDIR));
            }
            if name == b".." {
                // Above the root of the export there is nothing, as above that of a machine.
                trail.truncate((trail.len() - 1).max(1));
                continue;
            }
            let node = self.lookup(here.handle, &name).await?;
            let kept = last == LastLink::Keep && ahead.is_empty() && !must_be_dir;
            if node.attributes.file_type != FileType::Symlink || kept {
                trail.push(node);
                continue;
            }
            if links.len() == LINKS_MAX {
                return Err(Error::Refused(Errno::LOOP));
            }
            links.push(node);
            let target = self.nfs.readlink(node.handle).await?.target;
            if target.starts_with(b"/") {
                trail.truncate(1);
            }
            for name in components(self.within_export(&target)).into_iter().rev() {
                ahead.push_front(name);
            }
        }
        let node = trail.pop().expect("the root is never taken off");
        if must_be_dir && !node.is_dir() {
            return Err(Error::Refused(Errno::NOTDIR));
        }
        Ok((node, links))
    }

    /// The directory of the file that a path names, and the name in it.
    ///
    /// # Errors
    /// Those of [`Remote::resolve`]; `BUSY` when the path ends at the root of the export or with
    /// dots, which cannot be created or removed.
    pub(crate) async fn resolve_parent(&self, path: &[u8]) -> Result<(Node, Vec<u8>)> {
        let trimmed = without_end_slashes(path);
        let (dir, name) = match trimmed.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => trimmed.split_at(slash + 1),
            None => (&b""[..], trimmed),
        };
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::Refused(Errno::BUSY));
        }
        let parent = self.resolve(dir, LastLink::Follow).await?;
        if !parent.is_dir() {
            return Err(Error::Refused(Errno::NOTDIR));
        }
        Ok((parent, name.to_vec()))
    }

    /// An absolute path of the server as one from the export's root.
    fn within_export<'a>(&self, target: &'a [u8]) -> &'a [u8] {
        below(target, self.path()).unwrap_or(target)
    }

    /// The entries of a directory from the first; with attributes and handles where the server
    /// gives them, if `plus`.
    pub(crate) fn list(&self, dir: FileHandle, plus: bool) -> Listing {
        let count = self.info().rtmax.clamp(LISTING_BYTES_MIN, LISTING_BYTES_MAX);
        let mut listing = Listing {
            nfs: self.nfs.clone(),
            dir,
            count,
            plus,
            progress: ListingProgress::default(),
            coming: None,
        };
        listing.ask(0, CookieVerifier::default());
        listing
    }
}

/// A directory being read, a page ahead of its reader.
pub(crate) struct Listing {
    nfs: Nfs3,
    dir: FileHandle,
    count: u32,
    plus: bool,
    progress: ListingProgress,
    /// With the cookie and verifier it was asked with; none at the end.
    coming: Option<Coming>,
}

struct Coming {
    page: JoinHandle<Result<Page>>,
    cookie: u64,
    verifier: CookieVerifier,
}

impl Listing {
    /// The next entries, in the order of the server; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Name>>> {
        let Some(coming) = self.coming.take() else { return Ok(None) };
        let Coming { page, cookie, mut verifier } = coming;
        let page = match page.await.expect("a listing does not panic and is not aborted") {
            Err(error) if leave_out_rejected(&error, &mut verifier, &mut self.plus) => {
                self.ask(cookie, verifier);
                return Box::pin(self.next()).await;
            }
            page => page?,
        };
        match page.names.last() {
            Some(last) if !page.eof => {
                self.progress.advance(last.cookie)?;
                self.ask(last.cookie, page.verifier);
            }
            // The same page would be asked for again.
            None if !page.eof => return Err(Error::ListingLoop { cookie }),
            _ => {}
        }
        Ok(Some(page.names))
    }

    fn ask(&mut self, cookie: u64, verifier: CookieVerifier) {
        let (nfs, dir, count, plus) = (self.nfs.clone(), self.dir, self.count, self.plus);
        let page = tokio::spawn(async move {
            if plus {
                nfs.readdirplus(dir, cookie, verifier, count, count).await
            } else {
                nfs.readdir(dir, cookie, verifier, count).await
            }
        });
        self.coming = Some(Coming { page, cookie, verifier });
    }
}

/// The server's offer, limited by the options; an offer of 0 is ignored.
fn transfer_bytes(offered: u32, wanted: Option<u32>) -> u32 {
    offered.min(wanted.unwrap_or(u32::MAX)).max(TRANSFER_BYTES_MIN)
}

/// `path` from `dir` on, when it is that directory or below it.
pub(crate) fn below<'a>(path: &'a [u8], dir: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(without_end_slashes(dir))?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec).collect()
}

/// Bytes that no other process uses, for a name or a verifier.
pub(crate) fn random_bytes() -> [u8; 8] {
    RandomState::new().hash_one(Instant::now()).to_ne_bytes()
}

/// The path without the slashes at its end.
pub(crate) fn without_end_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// The transfer size that every server takes.
const TRANSFER_BYTES_MIN: u32 = 4096;
/// Symbolic links on the way to a file at most, as in the Linux kernel.
const LINKS_MAX: usize = 40;
/// The bytes requested for a page of a listing, where READ's limit is less or more.
const LISTING_BYTES_MIN: u32 = 32 << 10;
const LISTING_BYTES_MAX: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_a_directory_by_whole_names() {
        for (path, dir, expected) in [
            (&b"/srv/a"[..], &b"/srv"[..], Some(&b"/a"[..])),
            (b"/srv", b"/srv/", Some(b"")),
            (b"/srv/", b"/srv", Some(b"/")),
            (b"/srvx", b"/srv", None),
            (b"/", b"/srv", None),
            (b"/a", b"/", Some(b"/a")),
        ] {
            assert_eq!(below(path, dir), expected);
        }
    }
}
