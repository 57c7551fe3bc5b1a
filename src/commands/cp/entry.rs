//! A source of a copy: a file of any type, here or on a server.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use client::nfs3::Name;
use proto::nfs3::{Attributes, DeviceSpec, FileHandle, FileType, Time};
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
    Local(PathBuf),
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
        Ok(Self { place: Place::Local(path), attributes: local_attributes(&metadata), shown })
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
            Place::Local(_) => None,
        }
    }

    /// Distinguishes the files of this machine, or of one server.
    pub(super) fn id(&self) -> FileId {
        (self.attributes.fsid, self.attributes.fileid)
    }

    /// Whether both are one file.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_one_place = match (&self.place, &other.place) {
            (Place::Local(_), Place::Local(_)) => true,
            (Place::Remote(one, _), Place::Remote(other, _)) => one.shares_server(other),
            _ => false,
        };
        is_one_place && self.id() == other.id()
    }

    /// The same file with its attributes of now.
    pub(super) async fn again(&self) -> Result<Self> {
        match &self.place {
            Place::Local(path) => {
                Self::local(path.clone(), self.shown.clone(), LastLink::Follow).await
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
                let source = Source::Remote { nfs: remote.nfs.clone(), file: *file };
                Ok((source, self.attributes))
            }
            Place::Remote(..) => Err(Failure::refused(Errno::NXIO)),
            Place::Local(path) => {
                let path = path.clone();
                let open = move || {
                    let file = File::open(path)?;
                    let metadata = file.metadata()?;
                    Ok((Arc::new(file), local_attributes(&metadata)))
                };
                let (file, attributes) = blocking(open).await?;
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
            Place::Local(path) => {
                let path = path.clone();
                let target = blocking(move || fs::read_link(path)).await?;
                Ok(target.into_os_string().into_vec().into())
            }
        }
    }

    /// The entries of a directory.
    pub(super) async fn children(&self) -> Result<Children> {
        match &self.place {
            Place::Remote(remote, dir) => {
                let listing = Box::new(remote.list(*dir, true));
                Ok(Children::Remote { remote: remote.clone(), dir: *dir, listing })
            }
            Place::Local(path) => {
                let path = path.clone();
                Ok(Children::Local { dir: Some(blocking(|| fs::read_dir(path)).await?) })
            }
        }
    }
}

/// A directory being read.
pub(super) enum Children {
    Local { dir: Option<fs::ReadDir> },
    Remote { remote: Remote, dir: FileHandle, listing: Box<Listing> },
}

/// A name in a directory, with the file or why that is not to be had.
pub(super) type Child = (Vec<u8>, Result<(Place, Attributes)>);

impl Children {
    /// Some more of the directory; nothing at its end.
    pub(super) async fn next(&mut self) -> Result<Vec<Child>> {
        match self {
            Self::Local { dir } => {
                let Some(mut reading) = dir.take() else { return Ok(Vec::new()) };
                let (rest, children) = blocking(move || {
                    let names = reading.by_ref().take(LOCAL_PAGE_LEN);
                    let children = names.map(local_child).collect::<io::Result<Vec<_>>>()?;
                    Ok((reading, children))
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

fn local_child(entry: io::Result<fs::DirEntry>) -> io::Result<Child> {
    let entry = entry?;
    let found =
        entry.metadata().map(|metadata| (Place::Local(entry.path()), local_attributes(&metadata)));
    Ok((entry.file_name().as_bytes().to_vec(), found.map_err(Failure::from)))
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
}
