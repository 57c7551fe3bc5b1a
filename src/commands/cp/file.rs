//! The copy of one file, in a job of its own.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use proto::nfs3::{Attributes, FileType, StableHow};
use rustix::io::Errno;

use super::super::console::Console;
use super::super::failure::{Failure, Result};
use super::super::remote::LastLink;
use super::super::umask;
use super::Options;
use super::entry::{Entry, Place};
use super::made_links::MadeLinks;
use super::progress::Progress;
use super::resume::{self, Start};
use super::sink::Sink;
use super::target_name::{Lacking, LinkedFile, TargetName};
use super::transfer::{Broken, Plan, transfer};
use super::write_locks::{WriteLock, WriteLocks};

/// Copies anything but directories, for all jobs.
pub(super) struct FileCopier {
    pub(super) options: Options,
    pub(super) console: Arc<Console>,
    pub(super) progress: Progress,
    made_links: MadeLinks,
    locks: WriteLocks,
}

/// The existing file at the destination.
struct ExistingFile {
    file: Entry,
    /// Keeps the path of [`ExistingFile::file`] valid, if that is the target of a link here.
    _pin: Option<OwnedFd>,
}

/// The file that is written.
struct Opened<'a> {
    to: Entry,
    sink: Sink,
    lock: WriteLock<'a>,
    /// Whether it holds nothing.
    is_new: bool,
}

/// A copy that is complete but for what `-p` keeps.
struct Written<'a> {
    /// The attributes of the file that was opened and read.
    like: Attributes,
    to: Entry,
    /// The open file, if data was written here.
    file: Option<Arc<File>>,
    /// No other job writes the file until it has its times.
    _lock: Option<WriteLock<'a>>,
}

/// The result of a step; the error is a complete sentence.
pub(super) type Reported<T> = std::result::Result<T, String>;

impl FileCopier {
    pub(super) fn new(options: &Options, console: &Arc<Console>) -> Self {
        let progress = Progress::new(!options.no_progress, console);
        let (options, console) = (options.clone(), Arc::clone(console));
        let made_links = MadeLinks::default();
        let locks = WriteLocks::default();
        Self { options, console, progress, made_links, locks }
    }

    pub(super) fn fail(&self, sentence: String) {
        self.console.fail(sentence);
    }

    pub(super) fn say(&self, from: &Entry, target: &TargetName) {
        if self.options.verbose {
            self.console.say(format_args!("{} -> {}", from.shown, target.shown));
        }
    }

    /// Gives a copy what `-p` keeps. As with coreutils, an owner that cannot be kept is an error
    /// for root alone, for whom a server that squashes root is the one reason.
    pub(super) async fn preserve(
        &self,
        like: &Attributes,
        to: &Entry,
        written: Option<Arc<File>>,
        what: &str,
    ) -> Reported<()> {
        match to.take_after(like, written).await {
            Ok(Some(Lacking::Owner(refusal))) if to.is_written_by_root() => {
                Err(format!("failed to preserve ownership for {}: {refusal}", to.shown))
            }
            Ok(Some(Lacking::SetId(failure))) => {
                Err(format!("failed to preserve set-id bits for {}: {failure}", to.shown))
            }
            Ok(_) => Ok(()),
            Err(failure) => Err(not_kept(what, to, &failure)),
        }
    }

    /// Copies anything but a directory. `is_empty_dir`: the target directory was made empty, so no
    /// lookup is needed.
    pub(super) async fn copy(
        &self,
        from: &Entry,
        target: &TargetName,
        is_empty_dir: bool,
    ) -> Reported<()> {
        // Links are followed where a file is written, and replaced where a link is.
        let is_data = from.file_type() == FileType::Regular || !self.options.recursive();
        let last = if is_data { LastLink::Follow } else { LastLink::Keep };
        let existing = if is_empty_dir { None } else { self.look(from, target, last).await? };
        if let Some(ExistingFile { file: existing, .. }) = &existing {
            if self.options.no_clobber {
                return Ok(());
            }
            let to = &target.shown;
            if existing.is_dir() {
                return Err(format!("cannot overwrite directory {to} with non-directory"));
            }
            // A file with data is compared again once it is certain that it is written.
            if from.is_same(existing) || !is_data && from.is_also(existing).await {
                return Err(same_file(from, target));
            }
        }
        let written = if is_data {
            self.data(from, target, existing).await?
        } else {
            if existing.is_some() {
                target.remove().await.map_err(|failure| target.cannot("remove", &failure))?;
            }
            let to = self.special(from, target).await?;
            Some(Written { like: from.attributes, to, file: None, _lock: None })
        };
        if let Some(Written { like, to, file, _lock }) = written {
            if self.options.preserves() {
                self.preserve(&like, &to, file, "times").await?;
            }
            self.say(from, target);
        }
        Ok(())
    }

    async fn look(
        &self,
        from: &Entry,
        target: &TargetName,
        last: LastLink,
    ) -> Reported<Option<ExistingFile>> {
        let look = async |last| {
            let found = target.look(last).await;
            found.map_err(|failure| target.cannot("stat", &failure))
        };
        let is_link = |file: &Entry| file.file_type() == FileType::Symlink;
        let itself = look(LastLink::Keep).await?;
        if last == LastLink::Keep || !itself.as_ref().is_some_and(is_link) {
            return Ok(itself.map(|file| ExistingFile { file, _pin: None }));
        }
        let dangling = || format!("not writing through dangling symlink {}", target.shown);
        // Without -r no links are made.
        if !self.options.recursive() {
            let file = look(last).await?.ok_or_else(dangling)?;
            return Ok(Some(ExistingFile { file, _pin: None }));
        }
        // Not held while the file is opened, which for a pipe waits for its reader.
        let mut following = self.made_links.follow().await;
        let refused = || {
            let (from, to) = (&from.shown, &target.shown);
            format!("will not copy {from} through just-created symlink {to}")
        };
        // Again, because it may have become another.
        if look(LastLink::Keep).await?.is_some_and(|link| following.is_made(link.id())) {
            return Err(refused());
        }
        let followed = target.follow().await.map_err(|failure| target.cannot("stat", &failure))?;
        // Writing through a dangling link would make a file that was not named.
        let LinkedFile { file, links, pin } = followed.ok_or_else(dangling)?;
        // A link that was there before may lead through one that was made.
        if links.into_iter().any(|link| following.is_made(link)) {
            return Err(refused());
        }
        Ok(Some(ExistingFile { file, _pin: pin }))
    }

    /// A symbolic link, a pipe, a socket or a device.
    async fn special(&self, from: &Entry, target: &TargetName) -> Reported<Entry> {
        if from.file_type() == FileType::Symlink {
            let leads_to = from.link_target().await.map_err(|failure| {
                format!("cannot read symbolic link {}: {failure}", from.shown)
            })?;
            let making = self.made_links.make().await;
            let made = target.make_link(leads_to).await;
            match &made {
                Ok(link) => making.remember(link),
                // The server may have made it and lost the reply.
                Err(_) => {
                    if let Ok(Some(link)) = target.look(LastLink::Keep).await {
                        making.remember(&link);
                    }
                }
            }
            let made = found_if_like(from, target, made).await;
            return made.map_err(|failure| target.cannot("create symbolic link", &failure));
        }
        let mode = from.attributes.mode & 0o777 & !umask();
        let made = target.make_node(&from.attributes, mode).await;
        let made = found_if_like(from, target, made).await;
        made.map_err(|failure| target.cannot("create special file", &failure))
    }

    /// The data of a file into a new one or the one that is there; none when all is there already,
    /// or what is there is kept.
    async fn data(
        &self,
        from: &Entry,
        target: &TargetName,
        existing: Option<ExistingFile>,
    ) -> Reported<Option<Written<'_>>> {
        let (source, attributes) = from
            .open()
            .await
            .map_err(|failure| format!("cannot open {} for reading: {failure}", from.shown))?;
        // It may have grown or shrunk since it was listed.
        let from = &Entry { attributes, ..from.clone() };
        let size = from.attributes.size;
        let resumes = self.options.resume;
        if resumes
            && existing.as_ref().is_some_and(|existing| resume::is_done(from, &existing.file))
        {
            self.progress.advance(size);
            return Ok(None);
        }
        if let Some(ExistingFile { file, .. }) = &existing
            && from.is_also(file).await
        {
            return Err(same_file(from, target));
        }
        let unreadable = |failure| format!("error reading {}: {failure}", from.shown);
        let chunk_bytes = chunk_bytes(from, target);
        // Before the target is made, emptied or removed.
        source.begin(if existing.is_some() { 1 } else { chunk_bytes }).await.map_err(unreadable)?;
        let is_small = size <= chunk_bytes.into();
        let stable =
            if source.is_stream() || is_small { StableHow::FileSync } else { StableHow::Unstable };
        let opened = self.open(from, target, existing.as_ref(), stable).await?;
        let Some(Opened { to, mut sink, lock, is_new }) = opened else { return Ok(None) };
        if !is_new {
            // It can be the source all the same, which is not cut to what was read.
            source.begin_over();
        }
        let start = if resumes && !is_new {
            // Under the lock: another job may have written the file since it was found.
            let start = resume::start(from, &source, &to).await;
            start.map_err(|failure| format!("error reading {}: {failure}", target.shown))?
        } else {
            Start::Over
        };
        let start = match start {
            Start::Done => {
                self.progress.advance(size);
                return Ok(None);
            }
            Start::At(start) => start,
            Start::Over if is_new => 0,
            Start::Over => {
                let emptied = sink.truncate().await;
                emptied.map_err(|failure| target.cannot("create regular file", &failure))?;
                0
            }
        };
        let is_empty = sink.is_empty();
        let plan = Plan::new(&from.attributes, &source, start, chunk_bytes, is_empty).await;
        self.progress.advance(start);
        let transferred = transfer(&source, &mut sink, &plan, &self.progress).await;
        transferred.map_err(|broken| match broken {
            Broken::Reading(failure) => unreadable(failure),
            Broken::Writing(failure) => format!("error writing {}: {failure}", target.shown),
        })?;
        let (like, file) = (from.attributes, sink.file());
        Ok(Some(Written { like, to, file, _lock: Some(lock) }))
    }

    /// Opens what is written to, which is made if it is not there; none if it is kept.
    async fn open(
        &self,
        from: &Entry,
        target: &TargetName,
        existing: Option<&ExistingFile>,
        stable: StableHow,
    ) -> Reported<Option<Opened<'_>>> {
        if let Some(ExistingFile { file, .. }) = existing {
            let opened = async {
                // A file left by an interrupted copy has the mode of its source, perhaps read-only.
                if !(self.options.resume && resume::may_go_on(from, file)) {
                    file.may_write().await?;
                }
                self.open_existing(file, stable).await
            };
            match opened.await {
                Ok(opened) => return Ok(Some(opened)),
                Err(failure) if self.options.force && failure.is_local_or(Errno::ACCESS) => {
                    target.remove().await.map_err(|failure| target.cannot("remove", &failure))?;
                }
                Err(failure) => return Err(target.cannot("create regular file", &failure)),
            }
        }
        // With -p, no other user can reach the data before it has its final owner.
        let reach = if self.options.preserves() { 0o700 } else { 0o777 };
        let mode = from.attributes.mode & reach & !umask();
        let made = self.create(target, mode, stable).await;
        made.map_err(|failure| target.cannot("create regular file", &failure))
    }

    async fn open_existing(&self, file: &Entry, stable: StableHow) -> Result<Opened<'_>> {
        let (to, sink) = file.sink(stable).await?;
        let lock = self.locks.lock_existing(&to).await;
        Ok(Opened { to, sink, lock, is_new: false })
    }

    /// Makes the file; none if there is one that is kept.
    async fn create(
        &self,
        target: &TargetName,
        mode: u32,
        stable: StableHow,
    ) -> Result<Option<Opened<'_>>> {
        let overwrites = self.locks.overwrites();
        match target.create(mode, stable, self.options.no_clobber).await {
            Ok((to, mut sink)) => {
                let lock = self.locks.lock(&to).await;
                // Another job may have found it by another name, and written it.
                if self.locks.overwrites() != overwrites {
                    sink.truncate().await?;
                }
                Ok(Some(Opened { to, sink, lock, is_new: true }))
            }
            // Made by another client since it was looked for; or by the own call, if the server has
            // no exclusive creation and was restarted.
            Err(exists) if exists.errno() == Errno::EXIST && self.options.no_clobber => Ok(None),
            // Or by the own call: a restarted server has lost its reply cache and returns EXIST
            // when the call is sent again.
            Err(exists) if exists.errno() == Errno::EXIST => {
                let Some(existing) = target.look(LastLink::Keep).await? else { return Err(exists) };
                match (existing.file_type(), existing.attributes.size) {
                    // Perhaps that of the own call, whose mode may be read-only.
                    (FileType::Regular, 0) => {}
                    (FileType::Regular, _) => existing.may_write().await?,
                    _ => return Err(exists),
                }
                self.open_existing(&existing, stable).await.map(Some)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// The file made like `from`, or, where the call was answered by EXIST, the existing one if it is
/// the same: a restarted server has lost its reply cache and returns EXIST when the call is sent
/// again.
async fn found_if_like(from: &Entry, target: &TargetName, made: Result<Entry>) -> Result<Entry> {
    match made {
        Err(exists) if exists.errno() == Errno::EXIST && target.is_remote() => {
            match target.look(LastLink::Keep).await? {
                Some(found) if is_like(&found, from).await => Ok(found),
                _ => Err(exists),
            }
        }
        made => made,
    }
}

/// Whether a file that is not copied by its data is as a copy of `from` is, but for its mode.
async fn is_like(found: &Entry, from: &Entry) -> bool {
    if found.file_type() != from.file_type() {
        return false;
    }
    match found.file_type() {
        FileType::Symlink => match (found.link_target().await, from.link_target().await) {
            (Ok(there), Ok(here)) => there == here,
            _ => false,
        },
        FileType::BlockDevice | FileType::CharacterDevice => {
            found.attributes.rdev == from.attributes.rdev
        }
        FileType::Fifo | FileType::Socket => true,
        FileType::Regular | FileType::Directory => false,
    }
}

fn same_file(from: &Entry, target: &TargetName) -> String {
    format!("{} and {} are the same file", from.shown, target.shown)
}

pub(super) fn not_kept(what: &str, to: &Entry, failure: &Failure) -> String {
    format!("preserving {what} for {}: {failure}", to.shown)
}

/// The bytes of one read or write: the most that each server takes, up to [`CHUNK_BYTES_MAX`].
fn chunk_bytes(from: &Entry, target: &TargetName) -> u32 {
    let read_max = match &from.place {
        Place::Remote(remote, _) => remote.read_bytes(),
        Place::Local(..) => CHUNK_BYTES_MAX,
    };
    read_max.min(target.write_bytes().unwrap_or(CHUNK_BYTES_MAX)).min(CHUNK_BYTES_MAX)
}

/// More in one call gains nothing, and holds up what shares the connection.
const CHUNK_BYTES_MAX: u32 = 1 << 20;
