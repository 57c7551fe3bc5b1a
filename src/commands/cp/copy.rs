//! Files and trees, one entry at a time or several.

use std::collections::HashMap;
use std::sync::Arc;

use proto::nfs3::FileType;
use rustix::io::Errno;
use tokio::task::JoinSet;

use super::super::ancestors::Ancestors;
use super::super::console::Console;
use super::super::failure::Failure;
use super::super::remote::LastLink;
use super::super::umask;
use super::Options;
use super::entry::Entry;
use super::file::{FileCopier, not_kept};
use super::target_name::TargetName;

/// Copies its arguments, and reports each failure itself.
pub(super) struct Copier {
    files: Arc<FileCopier>,
    jobs: JoinSet<()>,
    jobs_max: usize,
    /// The arguments that are no directories, by their names in the target directory.
    arguments: HashMap<Vec<u8>, Entry>,
    /// Directories whose permissions and times are set once nothing is put into them any more; a
    /// directory comes before those in it.
    dirs: Vec<PendingDir>,
}

/// A directory that was copied, but for what is in it.
struct PendingDir {
    from: Entry,
    to: Entry,
    ancestors: Arc<Ancestors>,
    /// Made by this copy, or found where a call to make it was answered by EXIST.
    is_new: bool,
    /// No other program has had time to put anything into it.
    is_empty: bool,
}

impl Copier {
    pub(super) fn new(options: &Options, console: &Arc<Console>) -> Self {
        let files = Arc::new(FileCopier::new(options, console));
        let (jobs_max, arguments) = (usize::from(options.jobs), HashMap::new());
        Self { files, jobs: JoinSet::new(), jobs_max, arguments, dirs: Vec::new() }
    }

    /// Copies an argument to `target`. `must_be_dir`: only a directory can be there.
    pub(super) async fn argument(&mut self, from: Entry, target: TargetName, must_be_dir: bool) {
        if from.is_dir() && !self.files.options.recursive() {
            let shown = &from.shown;
            self.files.fail(format!("-r not specified; omitting directory {shown}"));
            return;
        }
        if !from.is_dir() {
            if must_be_dir {
                let (shown, reason) = (&target.shown, Failure::refused(Errno::NOTDIR));
                self.files.fail(format!("cannot create regular file {shown}: {reason}"));
                return;
            }
            if self.is_first(&from, &target).await {
                self.file(from, target, false).await;
            }
            return;
        }
        // The files of a tree replace existing ones, also the copies of the arguments before it:
        // those have to be complete.
        self.wait().await;
        let ancestors = Arc::new(Ancestors::root(from.handle(), &from.attributes));
        if let Some(pending) = self.dir(from, ancestors, &target).await {
            self.tree(pending, target).await;
        }
        self.wait().await;
    }

    /// Whether no other argument was copied to the same name; reports if one was.
    async fn is_first(&mut self, from: &Entry, target: &TargetName) -> bool {
        let Some(first) = self.arguments.insert(target.name.clone(), from.clone()) else {
            return true;
        };
        let shown = &from.shown;
        if self.files.options.no_clobber {
            // The job finds the file of the first one then.
            self.wait().await;
            return true;
        }
        let is_link = |file: &Entry| file.file_type() == FileType::Symlink;
        let to = &target.shown;
        if first.is_same(from) {
            let what = format!("warning: source file {shown} specified more than once");
            self.files.console.remark(what);
        } else if is_link(&first) && !is_link(from) {
            let what = format!("will not copy {shown} through just-created symlink {to}");
            self.files.fail(what);
        } else {
            self.files.fail(format!("will not overwrite just-created {to} with {shown}"));
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
        while let Some(pending) = self.dirs.pop() {
            self.finish_dir(&pending).await;
        }
        self.files.progress.finish();
    }

    async fn finish_dir(&self, PendingDir { from, to, is_new, .. }: &PendingDir) {
        let wanted = from.attributes.mode & 0o777 & !umask();
        let kept = if self.files.options.preserves() {
            self.files.preserve(&from.attributes, to, None, "permissions").await
        } else if *is_new && wanted & 0o700 != 0o700 {
            to.set_mode(wanted).await.map_err(|failure| not_kept("permissions", to, &failure))
        } else {
            Ok(())
        };
        if let Err(sentence) = kept {
            self.files.fail(sentence);
        }
    }

    async fn file(&mut self, from: Entry, target: TargetName, is_empty_dir: bool) {
        while self.jobs.len() >= self.jobs_max {
            if let Some(job) = self.jobs.join_next().await {
                job.expect("copying does not panic");
            }
        }
        if from.file_type() == FileType::Regular {
            self.files.progress.expect(from.attributes.size);
        }
        let files = Arc::clone(&self.files);
        self.jobs.spawn(async move {
            if let Err(sentence) = files.copy(&from, &target, is_empty_dir).await {
                files.console.fail(sentence);
            }
        });
    }

    /// All that is in a directory and those below it.
    async fn tree(&mut self, root: PendingDir, target: TargetName) {
        let destination = root.to.clone();
        let mut ahead = vec![(root, target)];
        while let Some((mut dir, target)) = ahead.pop() {
            let mut below = self.content(&mut dir, &target, &destination).await;
            self.dirs.push(dir);
            ahead.append(&mut below);
        }
    }

    /// Copies the content of a directory and returns the directories in it, whose content remains.
    async fn content(
        &mut self,
        dir: &mut PendingDir,
        target: &TargetName,
        destination: &Entry,
    ) -> Vec<(PendingDir, TargetName)> {
        let mut below = Vec::new();
        let (mut children, attributes) = match dir.from.children().await {
            Ok(opened) => opened,
            Err(failure) => {
                self.files.fail(format!("cannot access {}: {failure}", dir.from.shown));
                return below;
            }
        };
        // Its owner may have restricted it since it was listed.
        dir.from.attributes = attributes;
        let (dir, shown) = (&*dir, &dir.from.shown);
        let mut has_begun = false;
        loop {
            let page = match children.next().await {
                Ok(page) if page.is_empty() => return below,
                Ok(page) => page,
                // Of a server's directory, the first READDIR finds what opendir(3) does of others.
                Err(failure) if !has_begun => {
                    self.files.fail(format!("cannot access {shown}: {failure}"));
                    return below;
                }
                Err(failure) => {
                    self.files.fail(format!("error reading {shown}: {failure}"));
                    return below;
                }
            };
            has_begun = true;
            for (name, found) in page {
                let shown = shown.join(&name);
                let from = match found {
                    Ok((place, attributes)) => Entry { place, attributes, shown },
                    Err(failure) => {
                        self.files.fail(format!("cannot stat {shown}: {failure}"));
                        continue;
                    }
                };
                let target = target.below(&dir.to, &name);
                if from.is_also(destination).await {
                    let (above, destination) = (&dir.from.shown, &destination.shown);
                    let what =
                        format!("cannot copy a directory, {above}, into itself, {destination}");
                    self.files.fail(what);
                } else if !from.is_dir() {
                    self.file(from, target, dir.is_empty).await;
                } else if let Some(pending) = self.dir_below(dir, from, &target).await {
                    below.push((pending, target));
                }
            }
        }
    }

    /// As [`Copier::dir`], for a directory in `above`, which must not contain itself.
    async fn dir_below(
        &mut self,
        above: &PendingDir,
        from: Entry,
        target: &TargetName,
    ) -> Option<PendingDir> {
        match above.ancestors.below(from.handle(), &from.attributes) {
            Ok(ancestors) => self.dir(from, Arc::new(ancestors), target).await,
            Err(why) => {
                self.files.fail(format!("cannot copy directory {}: {why}", from.shown));
                None
            }
        }
    }

    /// Makes a directory at `target`, or takes the one that is there, but not through a link.
    async fn dir(
        &mut self,
        from: Entry,
        ancestors: Arc<Ancestors>,
        target: &TargetName,
    ) -> Option<PendingDir> {
        let files = &self.files;
        let to_shown = &target.shown;
        match target.look(LastLink::Keep).await {
            Ok(Some(to)) if to.is_dir() && from.is_also(&to).await => {
                let shown = &from.shown;
                let what = format!("cannot copy a directory, {shown}, into itself, {to_shown}");
                files.fail(what);
                None
            }
            Ok(Some(to)) if to.is_dir() => {
                Some(PendingDir { from, to, ancestors, is_new: false, is_empty: false })
            }
            Ok(Some(_)) => {
                let shown = &from.shown;
                files.fail(format!(
                    "cannot overwrite non-directory {to_shown} with directory {shown}"
                ));
                None
            }
            Ok(None) => {
                // Its owner has to be able to fill it, whatever it is to be at the end.
                let mode = from.attributes.mode & 0o777 & !umask() | 0o700;
                let mut is_empty = true;
                let made = match target.make_dir(mode).await {
                    // As for files: it may be our own, of a call that was sent twice.
                    Err(failure) if failure.errno() == Errno::EXIST => {
                        is_empty = false;
                        let existing = target.look(LastLink::Keep).await;
                        existing.and_then(|existing| existing.filter(Entry::is_dir).ok_or(failure))
                    }
                    made => made,
                };
                match made {
                    Ok(to) => {
                        files.say(&from, target);
                        Some(PendingDir { from, to, ancestors, is_new: true, is_empty })
                    }
                    Err(failure) => {
                        files.fail(target.cannot("create directory", &failure));
                        None
                    }
                }
            }
            Err(failure) => {
                files.fail(format!("cannot stat {to_shown}: {failure}"));
                None
            }
        }
    }
}
