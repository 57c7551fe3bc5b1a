//! Where a copy goes: a name in a directory, here or on a server.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use client::Error;
use proto::nfs3::{
    ACCESS_EXTEND, ACCESS_MODIFY, Attributes, CreateHow, FileHandle, FileType, MknodData,
    Procedure, SetAttributes, SetTime, StableHow, Status,
};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::super::failure::{Failure, Result};
use super::super::remote::{LastLink, Node, Remote, random_bytes};
use super::super::target::Shown;
use super::super::text::mode::SET_ID;
use super::entry::{Entry, FileId, Place, blocking, local_attributes, path_of};
use super::follow::{Followed, follow};
use super::sink::{RemoteSink, Sink};

/// A directory that is copied into.
#[derive(Clone)]
pub(super) enum Dir {
    Local(PathBuf),
    /// With the path to it from the root of the export.
    Remote(Remote, FileHandle, Vec<u8>),
}

impl Dir {
    /// That of an entry which is one. `target` is where it is.
    pub(super) fn of(entry: &Entry, target: &TargetName) -> Self {
        match (&entry.place, &target.dir) {
            (Place::Remote(remote, dir), Self::Remote(_, _, path)) => {
                Self::Remote(remote.clone(), *dir, join(path, &target.name))
            }
            (Place::Remote(remote, dir), Self::Local(_)) => {
                Self::Remote(remote.clone(), *dir, Vec::new())
            }
            (Place::Local(path, ..), _) => Self::Local(path.clone()),
        }
    }
}

/// A name in a directory. The name `.` is the directory itself.
#[derive(Clone)]
pub(super) struct TargetName {
    pub(super) dir: Dir,
    pub(super) name: Vec<u8>,
    pub(super) shown: Shown,
}

/// The file behind a symbolic link.
pub(super) struct LinkedFile {
    /// Here, with a path that leads to it for as long as `pin` is open, whatever becomes of the
    /// links.
    pub(super) file: Entry,
    /// The links on the way to it.
    pub(super) links: Vec<FileId>,
    pub(super) pin: Option<OwnedFd>,
}

impl TargetName {
    /// Whether it is on a server, to which a call may be sent twice.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self.dir, Dir::Remote(..))
    }

    /// The name of `child` in the directory that `entry`, found by this name, is.
    pub(super) fn below(&self, entry: &Entry, child: &[u8]) -> Self {
        let (dir, name) = (Dir::of(entry, self), child.to_vec());
        Self { dir, name, shown: self.shown.join(child) }
    }

    /// The sentence that the step `what` has failed here.
    pub(super) fn cannot(&self, what: &str, failure: &Failure) -> String {
        let shown = &self.shown;
        match failure {
            Failure::Remote(Error::CreatedUnseen { cause, .. }) => {
                let why = Failure::from((**cause).clone());
                format!("{shown} was created, but cannot be looked at: {why}")
            }
            _ => format!("cannot {what} {shown}: {failure}"),
        }
    }

    fn local_path(dir: &Path, name: &[u8]) -> PathBuf {
        dir.join(OsStr::from_bytes(name))
    }

    /// The file that has the name already.
    pub(super) async fn look(&self, last: LastLink) -> Result<Option<Entry>> {
        let found = match &self.dir {
            Dir::Local(dir) => {
                let path = Self::local_path(dir, &self.name);
                Entry::local(path, self.shown.clone(), last).await
            }
            Dir::Remote(remote, dir, path) => {
                let node = if self.name == b"." {
                    remote.node(*dir).await
                } else {
                    remote.lookup(*dir, &self.name).await
                };
                let node = match node {
                    Ok(node) if is_link(&node) && last == LastLink::Follow => {
                        remote.resolve(&join(path, &self.name), last).await
                    }
                    node => node,
                };
                node.map(|node| self.entry(remote, node)).map_err(Failure::from)
            }
        };
        match found {
            Err(failure) if failure.errno() == Errno::NOENT => Ok(None),
            found => found.map(Some),
        }
    }

    /// The file that the symbolic link of the name leads to.
    pub(super) async fn follow(&self) -> Result<Option<LinkedFile>> {
        let found = match &self.dir {
            Dir::Local(dir) => {
                let (dir, name) = (dir.clone(), self.name.clone());
                let followed = blocking(move || {
                    let Followed { pin, links } = follow(&dir, name)?;
                    let pin = File::from(pin);
                    let metadata = pin.metadata()?;
                    Ok((OwnedFd::from(pin), links, metadata))
                });
                followed.await.map(|(pin, links, metadata)| {
                    let place = Place::Local(path_of(&pin).into(), LastLink::Follow, None);
                    let attributes = local_attributes(&metadata);
                    let file = Entry { place, attributes, shown: self.shown.clone() };
                    LinkedFile { file, links, pin: Some(pin) }
                })
            }
            Dir::Remote(remote, _, path) => {
                let found = remote.resolve_links(&join(path, &self.name), LastLink::Follow).await;
                found.map_err(Failure::from).map(|(node, links)| {
                    let links = links.iter().map(Node::id).collect();
                    LinkedFile { file: self.entry(remote, node), links, pin: None }
                })
            }
        };
        match found {
            Err(failure) if failure.errno() == Errno::NOENT => Ok(None),
            found => found.map(Some),
        }
    }

    fn entry(&self, remote: &Remote, node: Node) -> Entry {
        let (place, shown) = (Place::Remote(remote.clone(), node.handle), self.shown.clone());
        Entry { place, attributes: node.attributes, shown }
    }

    /// Makes a directory.
    pub(super) async fn make_dir(&self, mode: u32) -> Result<Entry> {
        match &self.dir {
            Dir::Local(dir) => {
                let path = Self::local_path(dir, &self.name);
                let made = path.clone();
                blocking(move || DirBuilder::new().mode(mode).create(made)).await?;
                Entry::local(path, self.shown.clone(), LastLink::Keep).await
            }
            Dir::Remote(remote, dir, _) => {
                let made = remote.nfs.mkdir(*dir, &self.name, with_mode(mode)).await?;
                let node = remote.made(*dir, &self.name, Procedure::Mkdir, made).await?;
                Ok(self.entry(remote, node))
            }
        }
    }

    /// Makes an empty file. `exclusive`: where the server can, by calls that find the file which an
    /// earlier copy of them has made.
    ///
    /// # Errors
    /// `EXIST` when there is anything by that name.
    pub(super) async fn create(
        &self,
        mode: u32,
        stable: StableHow,
        exclusive: bool,
    ) -> Result<(Entry, Sink)> {
        match &self.dir {
            Dir::Local(dir) => {
                let path = Self::local_path(dir, &self.name);
                let made = path.clone();
                let (sink, metadata) = blocking(move || {
                    let file =
                        OpenOptions::new().write(true).create_new(true).mode(mode).open(made)?;
                    let metadata = file.metadata()?;
                    Ok((Sink::local(file)?, metadata))
                })
                .await?;
                let attributes = local_attributes(&metadata);
                let (place, shown) = (Place::Local(path, LastLink::Keep, None), self.shown.clone());
                Ok((Entry { place, attributes, shown }, sink))
            }
            Dir::Remote(remote, dir, _) => {
                let entry = self.create_on_server(remote, *dir, mode, exclusive).await?;
                entry.sink(stable).await
            }
        }
    }

    async fn create_on_server(
        &self,
        remote: &Remote,
        dir: FileHandle,
        mode: u32,
        exclusive: bool,
    ) -> Result<Entry> {
        if exclusive {
            let how = CreateHow::Exclusive(random_bytes());
            match remote.nfs.create(dir, &self.name, how).await {
                // Exclusive creation is optional (RFC 1813 §3.3.8).
                Err(error) if error.is(Status::Notsupp) => {}
                made => {
                    let node = remote.made(dir, &self.name, Procedure::Create, made?).await?;
                    // The server has stored the verifier in place of attributes, usually in the
                    // times.
                    let now = SetTime::ToServerTime;
                    let new = SetAttributes { atime: now, mtime: now, ..with_mode(mode) };
                    remote.nfs.setattr(node.handle, new, None).await?;
                    return Ok(self.entry(remote, node));
                }
            }
        }
        let how = CreateHow::Guarded(with_mode(mode));
        let made = remote.nfs.create(dir, &self.name, how).await?;
        let node = remote.made(dir, &self.name, Procedure::Create, made).await?;
        Ok(self.entry(remote, node))
    }

    /// Makes a symbolic link.
    pub(super) async fn make_link(&self, target: Bytes) -> Result<Entry> {
        match &self.dir {
            Dir::Local(dir) => {
                let path = Self::local_path(dir, &self.name);
                let made = path.clone();
                blocking(move || std::os::unix::fs::symlink(OsStr::from_bytes(&target), made))
                    .await?;
                Entry::local(path, self.shown.clone(), LastLink::Keep).await
            }
            Dir::Remote(remote, dir, _) => {
                let attributes = SetAttributes::default();
                let made = remote.nfs.symlink(*dir, &self.name, &target, attributes).await?;
                let node = remote.made(*dir, &self.name, Procedure::Symlink, made).await?;
                Ok(self.entry(remote, node))
            }
        }
    }

    /// Makes a pipe, socket or device like the one with these attributes.
    pub(super) async fn make_node(&self, like: &Attributes, mode: u32) -> Result<Entry> {
        match &self.dir {
            Dir::Local(dir) => {
                let path = Self::local_path(dir, &self.name);
                let (made, like) = (path.clone(), *like);
                blocking(move || make_local_node(&made, &like, mode)).await?;
                Entry::local(path, self.shown.clone(), LastLink::Keep).await
            }
            Dir::Remote(remote, dir, _) => {
                let (attributes, spec) = (with_mode(mode), like.rdev);
                let what = match like.file_type {
                    FileType::BlockDevice => MknodData::BlockDevice { attributes, spec },
                    FileType::CharacterDevice => MknodData::CharacterDevice { attributes, spec },
                    FileType::Socket => MknodData::Socket(attributes),
                    FileType::Fifo => MknodData::Fifo(attributes),
                    other => MknodData::Other(other),
                };
                let made = remote.nfs.mknod(*dir, &self.name, what).await?;
                let node = remote.made(*dir, &self.name, Procedure::Mknod, made).await?;
                Ok(self.entry(remote, node))
            }
        }
    }

    /// Bytes of a WRITE at most, if it is on a server.
    pub(super) fn write_bytes(&self) -> Option<u32> {
        match &self.dir {
            Dir::Local(_) => None,
            Dir::Remote(remote, ..) => Some(remote.write_bytes()),
        }
    }

    /// Removes the destination, which is not a directory. It may be gone already, as when the call
    /// was sent again to a server that was restarted.
    pub(super) async fn remove(&self) -> Result<()> {
        let removed = match &self.dir {
            Dir::Local(dir) => {
                let path = Self::local_path(dir, &self.name);
                blocking(move || fs::remove_file(path)).await
            }
            Dir::Remote(remote, dir, _) => {
                remote.nfs.remove(*dir, &self.name).await.map(|_| ()).map_err(Failure::from)
            }
        };
        match removed {
            Err(failure) if failure.errno() == Errno::NOENT => Ok(()),
            removed => removed,
        }
    }
}

impl Entry {
    /// Opens an existing file to write, through a link only if it was found so. Returns it as it
    /// is now, where that takes no call; its data is still there.
    ///
    /// # Errors
    /// `LOOP` when the name has become a link since.
    pub(super) async fn sink(&self, stable: StableHow) -> Result<(Self, Sink)> {
        match &self.place {
            Place::Local(path, last, _) => {
                let path = path.clone();
                let flags = match last {
                    LastLink::Follow => OFlags::empty(),
                    LastLink::Keep => OFlags::NOFOLLOW,
                };
                let open = move || {
                    let mut options = OpenOptions::new();
                    options.write(true).custom_flags(flags.bits().cast_signed());
                    let file = options.open(path)?;
                    let metadata = file.metadata()?;
                    Ok((Sink::local(file)?, metadata))
                };
                let (sink, metadata) = blocking(open).await?;
                Ok((Self { attributes: local_attributes(&metadata), ..self.clone() }, sink))
            }
            Place::Remote(remote, file) if self.file_type() == FileType::Regular => {
                let is_empty = self.attributes.size == 0;
                let sink = RemoteSink::new(remote.nfs.clone(), *file, stable, is_empty);
                Ok((self.clone(), Sink::Remote(Box::new(sink))))
            }
            Place::Remote(..) => Err(Failure::refused(Errno::NXIO)),
        }
    }

    /// Checks that an existing file may be written. Here, opening it checks that; a server lets
    /// the owner of a file write in any mode (RFC 1813 §4.4), so that it has to be asked.
    ///
    /// # Errors
    /// `ACCESS` when the server does not grant it.
    pub(super) async fn may_write(&self) -> Result<()> {
        let Place::Remote(remote, file) = &self.place else { return Ok(()) };
        let wanted = ACCESS_MODIFY | ACCESS_EXTEND;
        if remote.nfs.access(*file, wanted).await?.access & wanted != wanted {
            return Err(Failure::refused(Errno::ACCESS));
        }
        Ok(())
    }

    /// Gives the file the permissions `mode`.
    pub(super) async fn set_mode(&self, mode: u32) -> Result<()> {
        match &self.place {
            Place::Local(path, ..) => {
                let (path, file_type) = (path.clone(), self.file_type());
                blocking(move || {
                    let file = pin(&path, file_type)?;
                    fs::set_permissions(path_of(&file), fs::Permissions::from_mode(mode))
                })
                .await
            }
            Place::Remote(remote, file) => {
                remote.nfs.setattr(*file, with_mode(mode), None).await?;
                Ok(())
            }
        }
    }

    /// Whether it is root who writes it.
    pub(super) fn is_written_by_root(&self) -> bool {
        match &self.place {
            Place::Local(..) => rustix::process::geteuid().is_root(),
            Place::Remote(remote, _) => remote.nfs.identity().uid == 0,
        }
    }

    /// Gives the file the permissions, times and owners of another. Owners only where that is
    /// permitted; where it is not, leaves out the bits that lend their rights to others. Returns
    /// what the file lacks. `written`: the file itself, if its data was written here; its name may
    /// be that of a link to it.
    pub(super) async fn take_after(
        &self,
        like: &Attributes,
        written: Option<Arc<File>>,
    ) -> Result<Option<Lacking>> {
        let like = *like;
        match &self.place {
            Place::Local(path, ..) => {
                let (path, file_type) = (path.clone(), self.file_type());
                let refusal = blocking(move || match written {
                    Some(file) => take_after_open(&file, &like),
                    None if file_type == FileType::Symlink => take_after_link(&path, &like),
                    None => take_after_pinned(&pin(&path, file_type)?, &like),
                });
                let refusal = refusal.await?;
                Ok(refusal.map(|errno| Lacking::Owner(errno.into())))
            }
            Place::Remote(remote, file) => {
                let all = preserved(&like, true);
                match remote.set_attributes(*file, all).await {
                    Err(error) if matches!(error.errno(), Errno::PERM | Errno::INVAL) => {
                        remote.nfs.setattr(*file, preserved(&like, false), None).await?;
                        Ok(Some(Lacking::Owner(error.into())))
                    }
                    set => Ok(set?.map(|error| Lacking::SetId(error.into()))),
                }
            }
        }
    }
}

/// An attribute that a file could not take from another, and the reason.
pub(super) enum Lacking {
    /// The owners, and the set-id bits with them.
    Owner(Failure),
    SetId(Failure),
}

/// The attributes that SETATTR has to set for `-p`.
fn preserved(like: &Attributes, with_owner: bool) -> SetAttributes {
    let mode = if with_owner { like.mode } else { like.mode & !SET_ID };
    SetAttributes {
        mode: (like.file_type != FileType::Symlink).then_some(mode),
        uid: with_owner.then_some(like.uid),
        gid: with_owner.then_some(like.gid),
        size: None,
        atime: SetTime::ToClientTime(like.atime),
        mtime: SetTime::ToClientTime(like.mtime),
    }
}

fn take_after_open(file: &File, like: &Attributes) -> io::Result<Option<Errno>> {
    let (uid, gid) = owner(like);
    let (mode, refusal) = mode_after(rustix::fs::fchown(file, uid, gid), like)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    rustix::fs::futimens(file, &times(like))?;
    Ok(refusal)
}

fn take_after_link(path: &Path, like: &Attributes) -> io::Result<Option<Errno>> {
    let ((uid, gid), itself) = (owner(like), AtFlags::SYMLINK_NOFOLLOW);
    let (_, refusal) = mode_after(rustix::fs::chownat(CWD, path, uid, gid, itself), like)?;
    rustix::fs::utimensat(CWD, path, &times(like), itself)?;
    Ok(refusal)
}

fn take_after_pinned(file: &OwnedFd, like: &Attributes) -> io::Result<Option<Errno>> {
    // fchmod(2) does not take the descriptor of a pinned file.
    let (path, (uid, gid)) = (path_of(file), owner(like));
    let changed = rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::empty());
    let (mode, refusal) = mode_after(changed, like)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    rustix::fs::utimensat(CWD, &path, &times(like), AtFlags::empty())?;
    Ok(refusal)
}

/// The mode to set after a change of owner, which takes the set-id bits away, and the refusal of
/// that change.
fn mode_after(
    changed: rustix::io::Result<()>,
    like: &Attributes,
) -> io::Result<(u32, Option<Errno>)> {
    match changed {
        Ok(()) => Ok((like.mode, None)),
        Err(error @ (Errno::PERM | Errno::INVAL)) => Ok((like.mode & !SET_ID, Some(error))),
        Err(error) => Err(error.into()),
    }
}

fn owner(like: &Attributes) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(like.uid)), Some(Gid::from_raw(like.gid)))
}

fn times(like: &Attributes) -> Timestamps {
    let time = |time: proto::nfs3::Time| Timespec {
        tv_sec: time.seconds.into(),
        tv_nsec: time.nseconds.min(999_999_999).into(),
    };
    Timestamps { last_access: time(like.atime), last_modification: time(like.mtime) }
}

/// Holds a file that cannot be opened for its data, so that all is set on one and the same.
///
/// # Errors
/// `STALE` when the name has become that of another type of file, such as a link.
fn pin(path: &Path, file_type: FileType) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if local_attributes(&file.metadata()?).file_type != file_type {
        return Err(Errno::STALE.into());
    }
    Ok(file.into())
}

fn make_local_node(path: &Path, like: &Attributes, mode: u32) -> io::Result<()> {
    let file_type = match like.file_type {
        FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
        FileType::CharacterDevice => rustix::fs::FileType::CharacterDevice,
        FileType::Socket => rustix::fs::FileType::Socket,
        FileType::Fifo => rustix::fs::FileType::Fifo,
        FileType::Regular | FileType::Directory | FileType::Symlink => {
            return Err(Errno::INVAL.into());
        }
    };
    let device = rustix::fs::makedev(like.rdev.major, like.rdev.minor);
    Ok(rustix::fs::mknodat(CWD, path, file_type, Mode::from_raw_mode(mode), device)?)
}

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn is_link(node: &Node) -> bool {
    node.attributes.file_type == FileType::Symlink
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    [path, b"/", name].concat()
}
