//! An export of a server as the commands see it: paths, listings and handles, nothing remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use client::export::Holding;
use client::mount3::Mounted;
use client::nfs3::{Listing as Page, Name, Nfs3};
use client::{Error, MountOptions, Result};
use proto::nfs3::{Attributes, CookieVerifier, FileHandle, FileType, FsinfoOk, Status};
use rustix::io::Errno;
use tokio::task::JoinHandle;

/// A mounted export. Cloned for each task that works on it.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) nfs: Nfs3,
    export: Arc<Export>,
}

/// What stays as it is while an export is mounted.
struct Export {
    root: FileHandle,
    info: FsinfoOk,
    path: Vec<u8>,
    /// Bytes of a READ and of a WRITE at most, as far as the options say.
    transfers_max: [Option<u32>; 2],
}

/// A file and what it was when it was last looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) handle: FileHandle,
    pub(crate) attributes: Attributes,
}

impl Node {
    pub(crate) fn is_dir(&self) -> bool {
        self.attributes.file_type == FileType::Directory
    }

    /// Whether both are one file.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let id = |node: &Self| (node.attributes.fsid, node.attributes.fileid);
        id(self) == id(other)
    }
}

/// What becomes of a symbolic link at the end of a path. Those before it are always followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

impl Remote {
    /// Asks what the export can do.
    pub(crate) async fn new(holding: Holding, options: &MountOptions) -> Result<Self> {
        let Holding { mounted: Mounted { nfs, root }, export: path } = holding;
        let info = nfs.fsinfo(root).await?;
        let transfers_max = [options.rsize, options.wsize];
        Ok(Self { nfs, export: Arc::new(Export { root, info, path, transfers_max }) })
    }

    pub(crate) fn root(&self) -> FileHandle {
        self.export.root
    }

    /// What was mounted: a path on the server, absolute.
    pub(crate) fn path(&self) -> &[u8] {
        &self.export.path
    }

    /// What the server says that it can do.
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

    /// The file that a path from the root of the export leads to. An absolute symbolic link leads
    /// to its place in the export if it points below that on the server, and else counts from the
    /// root of the export, which is all of the server that can be reached.
    ///
    /// # Errors
    /// What LOOKUP says; `NOTDIR` when something follows that is no directory, also a slash alone;
    /// `LOOP` past [`LINKS_MAX`] links.
    pub(crate) async fn resolve(&self, path: &[u8], last: LastLink) -> Result<Node> {
        let mut ahead = components(path);
        let must_be_dir = path.ends_with(b"/") || path.ends_with(b"/.");
        let mut trail = vec![self.node(self.root()).await?];
        let mut links = 0;
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
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::Refused(Errno::LOOP));
            }
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
        Ok(node)
    }

    /// The directory that holds what a path names, and the name in it.
    ///
    /// # Errors
    /// Those of [`Remote::resolve`]; `BUSY` when the path ends at the root of the export or with
    /// dots, which are no names that can be made or taken away.
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
        let mut listing = Listing { nfs: self.nfs.clone(), dir, count, plus, coming: None };
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
        let Some(Coming { page, cookie, verifier }) = self.coming.take() else { return Ok(None) };
        let page = match page.await.expect("a listing does not panic and is not aborted") {
            Err(error) if self.plus && error.is(Status::Notsupp) => {
                self.plus = false;
                self.ask(cookie, verifier);
                return Box::pin(self.next()).await;
            }
            page => page?,
        };
        match page.names.last() {
            Some(last) if !page.eof => self.ask(last.cookie, page.verifier),
            // A page without entries would be asked for for ever.
            None if !page.eof => return Err(Error::Refused(Errno::IO)),
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

/// What the server offers as far as it is wanted; a server that offers nothing is not believed.
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

/// The path without the slashes at its end.
pub(crate) fn without_end_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// What every server takes at once.
const TRANSFER_BYTES_MIN: u32 = 4096;
/// Symbolic links on the way to a file at most, as in the Linux kernel.
const LINKS_MAX: usize = 40;
/// What a page of a listing asks for, where READ's limit would allow less or more.
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
