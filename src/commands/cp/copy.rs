//! Files and trees, one entry at a time or several.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use proto::nfs3::{FileType, StableHow};
use rustix::io::Errno;
use tokio::task::JoinSet;

use super::super::ancestors::Ancestors;
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
use super::slot::{Behind, Slot};
use super::transfer::{Broken, Plan, transfer};
use super::write_locks::{WriteLock, WriteLocks};

/// Copies its arguments, and reports each failure itself.
pub(super) struct Copier {
    shared: Arc<Shared>,
    jobs: JoinSet<()>,
    jobs_max: usize,
    /// The arguments that are no directories, by their names in the target directory.
    arguments: HashMap<Vec<u8>, Entry>,
    /// Directories whose permissions and times are set once nothing is put into them any more; a
    /// directory comes before those in it.
    dirs: Vec<Made>,
}

/// The state that every file's job needs.
struct Shared {
    options: Options,
    console: Arc<Console>,
    progress: Progress,
    made_links: MadeLinks,
    locks: WriteLocks,
}

/// The existing file at the destination.
struct There {
    file: Entry,
    /// Whether it may be opened through a link.
    last: LastLink,
    /// What [`There::file`] names, if that is a link's target here.
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
    to: Entry,
    /// The open file, if data was written here.
    file: Option<Arc<File>>,
    /// No other job writes the file until it has its times.
    _lock: Option<WriteLock<'a>>,
}

/// A directory that was copied, but for what is in it.
struct Made {
    from: Entry,
    to: Entry,
    ancestors: Arc<Ancestors>,
    is_new: bool,
}

impl Copier {
    pub(super) fn new(options: &Options, console: &Arc<Console>) -> Self {
        let progress = Progress::new(!options.no_progress, console);
        let (options, console) = (options.clone(), Arc::clone(console));
        let jobs_max = usize::from(options.jobs);
        let made_links = MadeLinks::default();
        let locks = WriteLocks::default();
        let shared = Arc::new(Shared { options, console, progress, made_links, locks });
        let arguments = HashMap::new();
        Self { shared, jobs: JoinSet::new(), jobs_max, arguments, dirs: Vec::new() }
    }

    /// Copies an argument to `slot`. `must_be_dir`: only a directory can be there.
    pub(super) async fn argument(&mut self, from: Entry, slot: Slot, must_be_dir: bool) {
        if from.is_dir() && !self.shared.options.recursive() {
            let shown = &from.shown;
            self.shared.fail(format!("-r not specified; omitting directory {shown}"));
            return;
        }
        if !from.is_dir() {
            if must_be_dir {
                let (shown, reason) = (&slot.shown, Failure::refused(Errno::NOTDIR));
                self.shared.fail(format!("cannot create regular file {shown}: {reason}"));
                return;
            }
            if self.is_first(&from, &slot).await {
                self.file(from, slot, false).await;
            }
            return;
        }
        // What is in a tree replaces what is there, also the copies of the arguments before it:
        // they have to be complete.
        self.wait().await;
        let ancestors = Arc::new(Ancestors::root(from.handle(), &from.attributes));
        if let Some(made) = self.dir(from, ancestors, &slot).await {
            self.tree(made, slot).await;
        }
        self.wait().await;
    }

    /// Whether no other argument was copied to the same name; reports if one was.
    async fn is_first(&mut self, from: &Entry, slot: &Slot) -> bool {
        let Some(first) = self.arguments.insert(slot.name.clone(), from.clone()) else {
            return true;
        };
        let shown = &from.shown;
        if self.shared.options.no_clobber {
            // The job finds the file of the first one then.
            self.wait().await;
            return true;
        }
        let is_link = |file: &Entry| file.file_type() == FileType::Symlink;
        let to = &slot.shown;
        if first.is_same(from) {
            let what = format!("warning: source file {shown} specified more than once");
            self.shared.console.remark(what);
        } else if is_link(&first) && !is_link(from) {
            let what = format!("will not copy {shown} through just-created symlink {to}");
            self.shared.fail(what);
        } else {
            self.shared.fail(format!("will not overwrite just-created {to} with {shown}"));
        }
        false
    }

    /// Waits for all files.
    async fn wait(&mut self) {
        while let Some(job) = self.jobs.join_next().await {
            job.expect("copying does not panic");
        }
    }

    /// Waits for all files, then sets the modes and times of directories.
    pub(super) async fn finish(mut self) {
        self.wait().await;
        // Lower directories first: setting the times of a directory needs search permission on
        // those above.
        while let Some(made) = self.dirs.pop() {
            self.shared.finish_dir(&made).await;
        }
        self.shared.progress.finish();
    }

    async fn file(&mut self, from: Entry, slot: Slot, is_new_dir: bool) {
        while self.jobs.len() >= self.jobs_max {
            if let Some(job) = self.jobs.join_next().await {
                job.expect("copying does not panic");
            }
        }
        if from.file_type() == FileType::Regular {
            self.shared.progress.expect(from.attributes.size);
        }
        let shared = Arc::clone(&self.shared);
        self.jobs.spawn(async move {
            if let Err(sentence) = shared.copy(&from, &slot, is_new_dir).await {
                shared.console.fail(sentence);
            }
        });
    }

    /// All that is in a directory and those below it.
    async fn tree(&mut self, root: Made, slot: Slot) {
        let goal = root.to.clone();
        let mut ahead = vec![(root, slot)];
        while let Some((dir, slot)) = ahead.pop() {
            let mut below = self.content(&dir, &slot, &goal).await;
            self.dirs.push(dir);
            ahead.append(&mut below);
        }
    }

    /// Copies the content of a directory and returns the directories in it, whose content remains.
    async fn content(&mut self, dir: &Made, slot: &Slot, goal: &Entry) -> Vec<(Made, Slot)> {
        let mut below = Vec::new();
        let shown = &dir.from.shown;
        let mut children = match dir.from.children().await {
            Ok(children) => children,
            Err(failure) => {
                self.shared.fail(format!("cannot access {shown}: {failure}"));
                return below;
            }
        };
        let mut has_begun = false;
        loop {
            let page = match children.next().await {
                Ok(page) if page.is_empty() => return below,
                Ok(page) => page,
                // Of a server's directory, the first READDIR finds what opendir(3) does of others.
                Err(failure) if !has_begun => {
                    self.shared.fail(format!("cannot access {shown}: {failure}"));
                    return below;
                }
                Err(failure) => {
                    self.shared.fail(format!("error reading {shown}: {failure}"));
                    return below;
                }
            };
            has_begun = true;
            for (name, found) in page {
                let shown = shown.join(&name);
                let from = match found {
                    Ok((place, attributes)) => Entry { place, attributes, shown },
                    Err(failure) => {
                        self.shared.fail(format!("cannot stat {shown}: {failure}"));
                        continue;
                    }
                };
                let slot = slot.below(&dir.to, &name);
                if from.is_same(goal) {
                    let (above, goal) = (&dir.from.shown, &goal.shown);
                    let what = format!("cannot copy a directory, {above}, into itself, {goal}");
                    self.shared.fail(what);
                } else if !from.is_dir() {
                    self.file(from, slot, dir.is_new).await;
                } else if let Some(made) = self.dir_below(dir, from, &slot).await {
                    below.push((made, slot));
                }
            }
        }
    }

    /// As [`Copier::dir`], for a directory in `above`, which must not contain itself.
    async fn dir_below(&mut self, above: &Made, from: Entry, slot: &Slot) -> Option<Made> {
        match above.ancestors.below(from.handle(), &from.attributes) {
            Ok(ancestors) => self.dir(from, Arc::new(ancestors), slot).await,
            Err(why) => {
                self.shared.fail(format!("cannot copy directory {}: {why}", from.shown));
                None
            }
        }
    }

    /// Makes a directory at `slot`, or takes the one that is there, but not through a link.
    async fn dir(&mut self, from: Entry, ancestors: Arc<Ancestors>, slot: &Slot) -> Option<Made> {
        let shared = &self.shared;
        let to_shown = &slot.shown;
        match slot.look(LastLink::Keep).await {
            Ok(Some(to)) if to.is_dir() && to.is_same(&from) => {
                let shown = &from.shown;
                let what = format!("cannot copy a directory, {shown}, into itself, {to_shown}");
                shared.fail(what);
                None
            }
            Ok(Some(to)) if to.is_dir() => Some(Made { from, to, ancestors, is_new: false }),
            Ok(Some(_)) => {
                let shown = &from.shown;
                shared.fail(format!(
                    "cannot overwrite non-directory {to_shown} with directory {shown}"
                ));
                None
            }
            Ok(None) => {
                // Its owner has to be able to fill it, whatever it is to be at the end.
                let mode = from.attributes.mode & 0o777 & !umask() | 0o700;
                let made = match slot.make_dir(mode).await {
                    // As for files: it may be our own, of a call that was sent twice.
                    Err(failure) if failure.errno() == Errno::EXIST => {
                        let there = slot.look(LastLink::Keep).await;
                        there.and_then(|there| there.filter(Entry::is_dir).ok_or(failure))
                    }
                    made => made,
                };
                match made {
                    Ok(to) => {
                        shared.say(&from, slot);
                        Some(Made { from, to, ancestors, is_new: true })
                    }
                    Err(failure) => {
                        shared.fail(slot.cannot("create directory", &failure));
                        None
                    }
                }
            }
            Err(failure) => {
                shared.fail(format!("cannot stat {to_shown}: {failure}"));
                None
            }
        }
    }
}

/// The result of a step; the error is a complete sentence.
type Reported<T> = std::result::Result<T, String>;

impl Shared {
    fn fail(&self, sentence: String) {
        self.console.fail(sentence);
    }

    fn say(&self, from: &Entry, slot: &Slot) {
        if self.options.verbose {
            self.console.say(format_args!("{} -> {}", from.shown, slot.shown));
        }
    }

    async fn finish_dir(&self, Made { from, to, is_new, .. }: &Made) {
        let wanted = from.attributes.mode & 0o777 & !umask();
        let kept = if self.options.preserves() {
            self.preserve(from, to, None, "permissions").await
        } else if *is_new && wanted & 0o700 != 0o700 {
            to.set_mode(wanted).await.map_err(|failure| not_kept("permissions", to, &failure))
        } else {
            Ok(())
        };
        if let Err(sentence) = kept {
            self.fail(sentence);
        }
    }

    /// Gives a copy what `-p` keeps. As with coreutils, an owner that cannot be kept is an error
    /// for root alone, for whom a server that squashes root is the one reason.
    async fn preserve(
        &self,
        from: &Entry,
        to: &Entry,
        written: Option<Arc<File>>,
        what: &str,
    ) -> Reported<()> {
        match to.take_after(&from.attributes, written).await {
            Ok(Some(refusal)) if to.is_written_by_root() => {
                Err(format!("failed to preserve ownership for {}: {refusal}", to.shown))
            }
            Ok(_) => Ok(()),
            Err(failure) => Err(not_kept(what, to, &failure)),
        }
    }

    /// Copies anything but a directory. `is_new_dir`: the target directory is new, so no lookup is
    /// needed.
    async fn copy(&self, from: &Entry, slot: &Slot, is_new_dir: bool) -> Reported<()> {
        // Links are followed where a file is written, and replaced where a link is.
        let is_data = from.file_type() == FileType::Regular || !self.options.recursive();
        let last = if is_data { LastLink::Follow } else { LastLink::Keep };
        let there = if is_new_dir { None } else { self.look(from, slot, last).await? };
        if let Some(There { file: there, .. }) = &there {
            if self.options.no_clobber {
                return Ok(());
            }
            let (shown, to) = (&from.shown, &slot.shown);
            if there.is_dir() {
                return Err(format!("cannot overwrite directory {to} with non-directory"));
            }
            if there.is_same(from) {
                return Err(format!("{shown} and {to} are the same file"));
            }
        }
        let written = if is_data {
            self.data(from, slot, there).await?
        } else {
            if there.is_some() {
                slot.remove().await.map_err(|failure| slot.cannot("remove", &failure))?;
            }
            let to = self.special(from, slot).await?;
            Some(Written { to, file: None, _lock: None })
        };
        if let Some(Written { to, file, _lock }) = written {
            if self.options.preserves() {
                self.preserve(from, &to, file, "times").await?;
            }
            self.say(from, slot);
        }
        Ok(())
    }

    async fn look(&self, from: &Entry, slot: &Slot, last: LastLink) -> Reported<Option<There>> {
        let look = async |last| {
            let found = slot.look(last).await;
            found.map_err(|failure| slot.cannot("stat", &failure))
        };
        let is_link = |file: &Entry| file.file_type() == FileType::Symlink;
        let itself = look(LastLink::Keep).await?;
        if last == LastLink::Keep || !itself.as_ref().is_some_and(is_link) {
            return Ok(itself.map(|file| There { file, last: LastLink::Keep, _pin: None }));
        }
        let dangling = || format!("not writing through dangling symlink {}", slot.shown);
        // Without -r no links are made.
        if !self.options.recursive() {
            let file = look(last).await?.ok_or_else(dangling)?;
            return Ok(Some(There { file, last, _pin: None }));
        }
        // Not held while the file is opened, which for a pipe waits for its reader.
        let mut following = self.made_links.follow().await;
        let refused = || {
            let (from, to) = (&from.shown, &slot.shown);
            format!("will not copy {from} through just-created symlink {to}")
        };
        // Again, because it may have become another.
        if look(LastLink::Keep).await?.is_some_and(|link| following.is_made(link.id())) {
            return Err(refused());
        }
        let followed = slot.follow().await.map_err(|failure| slot.cannot("stat", &failure))?;
        // Writing through a dangling link would make a file that was not named.
        let Behind { file, links, pin } = followed.ok_or_else(dangling)?;
        // A link that was there before may lead through one that was made.
        if links.into_iter().any(|link| following.is_made(link)) {
            return Err(refused());
        }
        Ok(Some(There { file, last, _pin: pin }))
    }

    /// A symbolic link, a pipe, a socket or a device.
    async fn special(&self, from: &Entry, slot: &Slot) -> Reported<Entry> {
        if from.file_type() == FileType::Symlink {
            let target = from.link_target().await.map_err(|failure| {
                format!("cannot read symbolic link {}: {failure}", from.shown)
            })?;
            let making = self.made_links.make().await;
            let made = slot.make_link(target).await;
            match &made {
                Ok(link) => making.remember(link),
                // The server may have made it and lost the reply.
                Err(_) => {
                    if let Ok(Some(link)) = slot.look(LastLink::Keep).await {
                        making.remember(&link);
                    }
                }
            }
            return made.map_err(|failure| slot.cannot("create symbolic link", &failure));
        }
        let mode = from.attributes.mode & 0o777 & !umask();
        let made = slot.make_node(&from.attributes, mode).await;
        made.map_err(|failure| slot.cannot("create special file", &failure))
    }

    /// The data of a file into a new one or the one that is there; none when all is there already.
    async fn data(
        &self,
        from: &Entry,
        slot: &Slot,
        there: Option<There>,
    ) -> Reported<Option<Written<'_>>> {
        let (source, attributes) = from
            .open()
            .await
            .map_err(|failure| format!("cannot open {} for reading: {failure}", from.shown))?;
        // It may have grown or shrunk since it was listed.
        let from = &Entry { attributes, ..from.clone() };
        let size = from.attributes.size;
        let resumes = self.options.resume;
        if resumes && there.as_ref().is_some_and(|there| resume::is_done(from, &there.file)) {
            self.progress.advance(size);
            return Ok(None);
        }
        let unreadable = |failure| format!("error reading {}: {failure}", from.shown);
        // Before what is there is emptied or removed.
        if there.is_some() {
            source.try_read().await.map_err(unreadable)?;
        }
        let chunk_bytes = chunk_bytes(from, slot);
        let is_small = size <= chunk_bytes.into();
        let stable =
            if source.is_stream() || is_small { StableHow::FileSync } else { StableHow::Unstable };
        let Opened { to, mut sink, lock, is_new } =
            self.open(from, slot, there.as_ref(), stable).await?;
        let start = match is_new {
            // Under the lock: another job may have written the file since it was found.
            false if resumes => resume::start(from, &source, &to)
                .await
                .map_err(|failure| format!("error reading {}: {failure}", slot.shown))?,
            _ => Start::Over,
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
                emptied.map_err(|failure| slot.cannot("create regular file", &failure))?;
                0
            }
        };
        let is_empty = sink.is_empty();
        let plan = Plan::new(&from.attributes, &source, start, chunk_bytes, is_empty).await;
        self.progress.advance(start);
        match transfer(&source, &mut sink, &plan, &self.progress).await {
            Ok(_) => Ok(Some(Written { to, file: sink.file(), _lock: Some(lock) })),
            Err(Broken::Reading(failure)) => Err(unreadable(failure)),
            Err(Broken::Writing(failure)) => {
                Err(format!("error writing {}: {failure}", slot.shown))
            }
        }
    }

    /// Opens what is written to, which is made if it is not there.
    async fn open(
        &self,
        from: &Entry,
        slot: &Slot,
        there: Option<&There>,
        stable: StableHow,
    ) -> Reported<Opened<'_>> {
        if let Some(There { file, last, .. }) = there {
            let opened = async {
                // What an interrupted copy has left has the mode of its source, perhaps read-only.
                if !(self.options.resume && resume::may_go_on(from, file)) {
                    file.may_write().await?;
                }
                self.open_existing(file, *last, stable).await
            };
            match opened.await {
                Ok(opened) => return Ok(opened),
                Err(failure) if self.options.force && failure.is_local_or(Errno::ACCESS) => {
                    slot.remove().await.map_err(|failure| slot.cannot("remove", &failure))?;
                }
                Err(failure) => return Err(slot.cannot("create regular file", &failure)),
            }
        }
        // With -p, no other user can reach the data before it has its final owner.
        let reach = if self.options.preserves() { 0o700 } else { 0o777 };
        let mode = from.attributes.mode & reach & !umask();
        let made = self.create(slot, mode, stable).await;
        made.map_err(|failure| slot.cannot("create regular file", &failure))
    }

    async fn open_existing(
        &self,
        file: &Entry,
        last: LastLink,
        stable: StableHow,
    ) -> Result<Opened<'_>> {
        let (to, sink) = file.sink(stable, last).await?;
        let lock = self.locks.lock_existing(&to).await;
        Ok(Opened { to, sink, lock, is_new: false })
    }

    async fn create(&self, slot: &Slot, mode: u32, stable: StableHow) -> Result<Opened<'_>> {
        let overwrites = self.locks.overwrites();
        match slot.create(mode, stable).await {
            Ok((to, mut sink)) => {
                let lock = self.locks.lock(&to).await;
                // Another job may have found it by another name, and written it.
                if self.locks.overwrites() != overwrites {
                    sink.truncate().await?;
                }
                Ok(Opened { to, sink, lock, is_new: true })
            }
            // A restarted server has lost its reply cache and returns EXIST when the call is sent
            // again.
            Err(exists) if exists.errno() == Errno::EXIST => {
                match slot.look(LastLink::Keep).await? {
                    Some(there) if there.file_type() == FileType::Regular => {
                        // That of the own call is empty, and its mode may be read-only.
                        if there.attributes.size > 0 {
                            there.may_write().await?;
                        }
                        self.open_existing(&there, LastLink::Keep, stable).await
                    }
                    _ => Err(exists),
                }
            }
            Err(failure) => Err(failure),
        }
    }
}

fn not_kept(what: &str, to: &Entry, failure: &Failure) -> String {
    format!("preserving {what} for {}: {failure}", to.shown)
}

/// The bytes of one read or write: the most that each server takes, up to [`CHUNK_BYTES_MAX`].
fn chunk_bytes(from: &Entry, slot: &Slot) -> u32 {
    let read_max = match &from.place {
        Place::Remote(remote, _) => remote.read_bytes(),
        Place::Local(_) => CHUNK_BYTES_MAX,
    };
    read_max.min(slot.write_bytes().unwrap_or(CHUNK_BYTES_MAX)).min(CHUNK_BYTES_MAX)
}

/// More in one call gains nothing, and holds up what shares the connection.
const CHUNK_BYTES_MAX: u32 = 1 << 20;
