//! A source of a copy: a file of any type, here or on a server.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use client::nfs3::Name;
use proto::nfs3::{Attributes, DeviceSpec, FileHandle, FileType, Time};
use rustix::fs::{AtFlags, Dir, FsWord, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use tokio::task::spawn_blocking;

use super::super::failure::{Failure, Result};
use super::super::remote::{LastLink, Listing, Node, Remote};
use super::super::session::Session;
use super::super::target::{Shown, Target, is_remote};
use super::source::{Buffers, Source};

/// A file by the numbers of its file system and its own, as stat(2) and GETATTR return them.
pub(super) type FileId = (u64, u64);

/// A file to copy.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) place: Place,
    /// Its attributes when it was found; those of local files converted to the protocol's.
    pub(super) attributes: Attributes,
    pub(super) shown: Shown,
}

#[derive(Clone)]
pub(super) enum Place {
    /// A path, whether the file was found through a link at its end, and the directory in which it
    /// was listed; none for an argument.
    Local(PathBuf, LastLink, Option<FileId>),
    Remote(Remote, FileHandle),
}

impl Entry {
    /// The file that an argument names.
    pub(super) async fn find(
        session: &mut Session,
        argument: &OsStr,
        last: LastLink,
    ) -> Result<Self> {
        let shown = Shown::argument(argument);
        if !is_remote(argument) {
            return Self::local(Path::new(argument).to_owned(), shown, last).await;
        }
        let target = Target::parse(argument).expect("it was read once before");
        let (remote, node) = session.find(&target.url, last).await?;
        Ok(Self { place: Place::Remote(remote, node.handle), attributes: node.attributes, shown })
    }

    pub(super) async fn local(path: PathBuf, shown: Shown, last: LastLink) -> Result<Self> {
        let (path, metadata) = blocking(move || {
            let metadata = match last {
                LastLink::Follow => fs::metadata(&path),
                LastLink::Keep => fs::symlink_metadata(&path),
            };
            metadata.map(|metadata| (path, metadata))
        })
        .await?;
        let attributes = local_attributes(&metadata);
        Ok(Self { place: Place::Local(path, last, None), attributes, shown })
    }

    pub(super) fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    pub(super) fn file_type(&self) -> FileType {
        self.attributes.file_type
    }

    /// The handle of a file on a server.
    pub(super) fn handle(&self) -> Option<FileHandle> {
        match &self.place {
            Place::Remote(_, handle) => Some(*handle),
            Place::Local(..) => None,
        }
    }

    /// Distinguishes the files of this machine, or of one server.
    pub(super) fn id(&self) -> FileId {
        file_id(&self.attributes)
    }

    /// Whether both are one file, as far as the addresses of their servers show.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_one_place = match (&self.place, &other.place) {
            (Place::Local(..), Place::Local(..)) => true,
            (Place::Remote(one, _), Place::Remote(other, _)) => one.shares_server(other),
            _ => false,
        };
        is_one_place && self.id() == other.id()
    }

    /// Whether `target`, which is to be changed, is this file or can be. Two addresses, two exports
    /// and a path of this machine can lead to one file of a server, which has the same number, size
    /// and change time by all of them, and may have another handle and fsid. So has a file in a
    /// copy of the server's disk: that is another file.
    pub(super) async fn is_also(&self, target: &Self) -> bool {
        if self.is_same(target) {
            return true;
        }
        let is_local = |file: &Self| matches!(file.place, Place::Local(..));
        if self.file_type() != target.file_type()
            || self.attributes.fileid != target.attributes.fileid
            || is_local(self) && is_local(target)
        {
            return false;
        }
        let can_be = if self.file_type() == FileType::Regular {
            let look =
                |file: Self| (file.attributes.size, file.attributes.mtime, file.attributes.ctime);
            match (self.again().await, target.again().await) {
                (Ok(source), Ok(target)) => look(source) == look(target),
                _ => true,
            }
        } else {
            self.handle().is_some() && self.handle() == target.handle() && self.id() == target.id()
        };
        // Without an answer it can be the same.
        can_be && !changes_alone(target, self).await.unwrap_or(false)
    }

    /// The attributes of now. Of a local file, those after open(2), with which a mount reads them
    /// anew.
    async fn attributes_now(&self) -> Result<Attributes> {
        match &self.place {
            Place::Remote(remote, file) => Ok(remote.nfs.getattr(*file).await?),
            Place::Local(..) => Ok(self.open().await?.1),
        }
    }

    /// The same file with its attributes of now.
    pub(super) async fn again(&self) -> Result<Self> {
        match &self.place {
            Place::Local(path, last, _) => {
                Self::local(path.clone(), self.shown.clone(), *last).await
            }
            Place::Remote(remote, file) => {
                let attributes = remote.node(*file).await?.attributes;
                Ok(Self { attributes, ..self.clone() })
            }
        }
    }

    /// Opens a file for its data. With its attributes of now, where that takes no call.
    pub(super) async fn open(&self) -> Result<(Source, Attributes)> {
        match &self.place {
            Place::Remote(remote, file) if self.file_type() == FileType::Regular => {
                let source = Source::remote(remote.nfs.clone(), *file);
                Ok((source, self.attributes))
            }
            Place::Remote(..) => Err(Failure::refused(Errno::NXIO)),
            Place::Local(path, last, above) => {
                let (path, above, found) = (path.clone(), *above, self.attributes);
                let opened = match last {
                    LastLink::Follow => blocking(|| opened(File::open(path)?)).await,
                    LastLink::Keep => {
                        blocking(move || open_found(&path, &found, above, OFlags::RDONLY)).await
                    }
                };
                let (file, attributes) = opened?;
                let file = Arc::new(file);
                let source = match attributes.file_type {
                    FileType::Regular => Source::Local { file, buffers: Buffers::default() },
                    _ => Source::Stream { file },
                };
                Ok((source, attributes))
            }
        }
    }

    /// Where a symbolic link leads.
    pub(super) async fn link_target(&self) -> Result<Bytes> {
        match &self.place {
            Place::Remote(remote, link) => Ok(remote.nfs.readlink(*link).await?.target),
            Place::Local(path, _, above) => {
                let (path, above, found) = (path.clone(), *above, self.attributes);
                let target = blocking(move || {
                    let (link, _) = open_found(&path, &found, above, OFlags::PATH)?;
                    Ok(rustix::fs::readlinkat(link, "", Vec::new())?)
                });
                Ok(target.await?.into_bytes().into())
            }
        }
    }

    /// The entries of a directory. With its attributes of now, where that takes no call.
    pub(super) async fn children(&self) -> Result<(Children, Attributes)> {
        match &self.place {
            Place::Remote(remote, dir) => {
                let listing = Box::new(remote.list(*dir, true));
                let children = Children::Remote { remote: remote.clone(), dir: *dir, listing };
                Ok((children, self.attributes))
            }
            Place::Local(path, _, above) => {
                let (path, above, found) = (path.clone(), *above, self.attributes);
                let open = move || {
                    let (dir, attributes) = open_found(&path, &found, above, OFlags::DIRECTORY)?;
                    Ok(((Dir::new(dir)?, path, file_id(&attributes)), attributes))
                };
                let (dir, attributes) = blocking(open).await?;
                Ok((Children::Local { dir: Some(dir) }, attributes))
            }
        }
    }
}

/// Whether a change of `target` leaves `source` unchanged, which are two files then. Sets the mode
/// of `target` to what it is.
///
/// # Errors
/// Those of SETATTR, which is refused to others than the owner, of GETATTR, and of open(2).
async fn changes_alone(target: &Entry, source: &Entry) -> Result<bool> {
    // In this order: the times of one file would be at least as far apart from the first to the
    // last as the two between them.
    let source_before = source.attributes_now().await?;
    let before = target.attributes_now().await?;
    target.set_mode(before.mode).await?;
    let after = target.attributes_now().await?;
    let source_after = source.attributes_now().await?;
    Ok(after.ctime != before.ctime && source_after.ctime == source_before.ctime)
}

/// A directory being read; one of this machine with its path and numbers.
pub(super) enum Children {
    Local { dir: Option<(Dir, PathBuf, FileId)> },
    Remote { remote: Remote, dir: FileHandle, listing: Box<Listing> },
}

/// A name in a directory, with the file or why that is not to be had.
pub(super) type Child = (Vec<u8>, Result<(Place, Attributes)>);

impl Children {
    /// Some more of the directory; nothing at its end.
    pub(super) async fn next(&mut self) -> Result<Vec<Child>> {
        match self {
            Self::Local { dir } => {
                let Some((mut reading, path, id)) = dir.take() else { return Ok(Vec::new()) };
                let (rest, children) = blocking(move || {
                    let mut children = Vec::new();
                    while children.len() < LOCAL_PAGE_LEN
                        && let Some(entry) = reading.read()
                    {
                        let entry = entry?;
                        let name = entry.file_name();
                        if !matches!(name.to_bytes(), b"." | b"..") {
                            children.push(local_child(&reading, &path, id, name));
                        }
                    }
                    Ok(((reading, path, id), children))
                })
                .await?;
                *dir = (!children.is_empty()).then_some(rest);
                Ok(children)
            }
            Self::Remote { remote, dir, listing } => loop {
                let Some(names) = listing.next().await? else { return Ok(Vec::new()) };
                let mut children = Vec::with_capacity(names.len());
                for name in names {
                    if !matches!(&name.name[..], b"." | b"..") {
                        children.push(remote_child(remote, *dir, name).await);
                    }
                }
                if !children.is_empty() {
                    return Ok(children);
                }
            },
        }
    }
}

async fn remote_child(remote: &Remote, dir: FileHandle, entry: Name) -> Child {
    let Name { name, attributes, handle, .. } = entry;
    let node = match handle.zip(attributes) {
        Some((handle, attributes)) => Ok(Node { handle, attributes }),
        None => remote.lookup(dir, &name).await,
    };
    let found = node.map(|node| (Place::Remote(remote.clone(), node.handle), node.attributes));
    (name.to_vec(), found.map_err(Failure::from))
}

/// The file `name` of the open directory of this path and these numbers.
fn local_child(dir: &Dir, path: &Path, id: FileId, name: &CStr) -> Child {
    let find = || {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (_, attributes) = opened(rustix::fs::openat(dir.fd()?, name, flags, Mode::empty())?)?;
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        Ok((Place::Local(path, LastLink::Keep, Some(id)), attributes))
    };
    (name.to_bytes().to_vec(), find().map_err(|error: io::Error| error.into()))
}

/// Opens a local file that was found with the attributes `found` in the directory `above`, and not
/// through a link at the end of `path`. Another user may have replaced it, or a directory above it,
/// by a link to what that user cannot read: its copy would have the owner and mode of the file that
/// was found.
///
/// # Errors
/// Those of open(2); without an error number when another file has the path by now.
fn open_found(
    path: &Path,
    found: &Attributes,
    above: Option<FileId>,
    flags: OFlags,
) -> io::Result<(File, Attributes)> {
    let replaced = || io::Error::other("it was replaced while being copied");
    // A pipe in the place of a regular file is opened without waiting for a writer.
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let (file, attributes) = match rustix::fs::open(path, flags | careful, Mode::empty()) {
        // Another program holds a lease of the file, and the kernel has asked for it back.
        Err(Errno::WOULDBLOCK) => {
            let (pinned, _) = open_found(path, found, above, OFlags::PATH)?;
            opened(File::open(path_of(&pinned))?)?
        }
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Err(replaced()),
        file => opened(file?)?,
    };
    if attributes.file_type != found.file_type
        || !is_found(&file, &attributes, found) && !is_mounted_in(&file, above)
    {
        return Err(replaced());
    }
    // It was meant for the open alone; some file systems and devices heed it in reads as well.
    if !flags.contains(OFlags::PATH) {
        rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    }
    Ok((file, attributes))
}

/// Whether an open file is the one that was found, as far as its file system distinguishes them.
fn is_found(file: &File, attributes: &Attributes, found: &Attributes) -> bool {
    if file_id(attributes) == file_id(found) {
        return true;
    }
    let lasting = |file: &Attributes| (file.fsid, file.uid, file.gid, file.mode);
    lasting(attributes) == lasting(found)
        && rustix::fs::fstatfs(file).is_ok_and(|stat| TRANSIENT_NUMBERS.contains(&stat.f_type))
}

/// Whether this is the root of a file system that is mounted on an entry of the directory `above`:
/// an automounter mounts one when the entry is opened. Always false on Linux before 5.8, which does
/// not report mount roots.
fn is_mounted_in(dir: &File, above: Option<FileId>) -> bool {
    let is_mount_root = rustix::fs::statx(dir, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    let parent =
        || opened(rustix::fs::openat(dir, "..", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    is_mount_root && parent().is_ok_and(|(_, parent)| Some(file_id(&parent)) == above)
}

fn file_id(attributes: &Attributes) -> FileId {
    (attributes.fsid, attributes.fileid)
}

fn opened(file: impl Into<File>) -> io::Result<(File, Attributes)> {
    let file = file.into();
    let attributes = local_attributes(&file.metadata()?);
    Ok((file, attributes))
}

/// The path of an open file, whatever becomes of its name.
pub(super) fn path_of(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    Ok(spawn_blocking(work).await.expect("it does not panic")?)
}

/// The attributes of a local file, converted to the protocol's.
pub(super) fn local_attributes(metadata: &Metadata) -> Attributes {
    let rdev = metadata.rdev();
    Attributes {
        file_type: local_type(metadata.file_type()),
        mode: metadata.mode() & 0o7777,
        nlink: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: metadata.size(),
        used: metadata.blocks().saturating_mul(512),
        rdev: DeviceSpec { major: rustix::fs::major(rdev), minor: rustix::fs::minor(rdev) },
        fsid: metadata.dev(),
        fileid: metadata.ino(),
        atime: local_time(metadata.atime(), metadata.atime_nsec()),
        mtime: local_time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: local_time(metadata.ctime(), metadata.ctime_nsec()),
    }
}

fn local_type(file_type: fs::FileType) -> FileType {
    if file_type.is_dir() {
        FileType::Directory
    } else if file_type.is_symlink() {
        FileType::Symlink
    } else if file_type.is_fifo() {
        FileType::Fifo
    } else if file_type.is_socket() {
        FileType::Socket
    } else if file_type.is_block_device() {
        FileType::BlockDevice
    } else if file_type.is_char_device() {
        FileType::CharacterDevice
    } else {
        FileType::Regular
    }
}

/// The nearest time that the protocol has: from 1970 to 2106.
fn local_time(seconds: i64, nseconds: i64) -> Time {
    let nseconds = u32::try_from(nseconds).unwrap_or(0);
    match u32::try_from(seconds) {
        Ok(seconds) => Time { seconds, nseconds },
        Err(_) if seconds < 0 => Time { seconds: 0, nseconds: 0 },
        Err(_) => Time { seconds: u32::MAX, nseconds: 999_999_999 },
    }
}

/// The file systems that may number a file anew once no program has it open, by `f_type` of
/// statfs(2): FAT, exFAT, FUSE, SMB of versions 1 and 2, and overlayfs.
const TRANSIENT_NUMBERS: [FsWord; 6] =
    [0x4d44, 0x2011_bab0, 0x6573_5546, 0xff53_4d42, 0xfe53_4d42, 0x794c_7630];

/// Entries of a local directory that are read at once.
const LOCAL_PAGE_LEN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_the_protocol_are_the_nearest_in_it() {
        assert_eq!(local_time(-5, 999), Time { seconds: 0, nseconds: 0 });
        assert_eq!(local_time(5, 999), Time { seconds: 5, nseconds: 999 });
        let last = Time { seconds: u32::MAX, nseconds: 999_999_999 };
        assert_eq!(local_time(1 << 33, 0), last);
    }

    #[test]
    fn only_a_mount_on_the_entry_may_take_the_place_of_a_directory_that_was_found() {
        let dir = tempfile::tempdir().unwrap();
        let [root, other] =
            [Path::new("/"), dir.path()].map(|path| local_attributes(&fs::metadata(path).unwrap()));
        let open = |path: &Path, above| open_found(path, &root, above, OFlags::DIRECTORY);
        let (listed, elsewhere) = (Some(file_id(&root)), Some(file_id(&other)));
        assert!(open(Path::new("/"), None).is_ok());
        assert!(open(Path::new("/proc"), listed).is_ok());
        let replacements =
            [(Path::new("/proc"), elsewhere), (Path::new("/proc"), None), (dir.path(), listed)];
        for (path, above) in replacements {
            let refusal = open(path, above).unwrap_err();
            assert_eq!(refusal.to_string(), "it was replaced while being copied");
        }
    }

    #[test]
    fn an_opened_file_blocks_its_reads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = local_attributes(&file.as_file().metadata().unwrap());
        let (opened, _) = open_found(file.path(), &found, None, OFlags::RDONLY).unwrap();
        assert!(!rustix::fs::fcntl_getfl(opened).unwrap().contains(OFlags::NONBLOCK));
    }
}
