//! `spillway cp`: copies files to a server, from it, or between servers.

mod copy;
mod entry;
mod file;
mod follow;
mod made_links;
mod progress;
mod resume;
mod sink;
pub(super) mod source;
mod target_name;
mod transfer;
mod write_locks;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use rustix::io::Errno;

use super::console::Console;
use super::destination::is_absent;
use super::failure::{Failure, Result};
use super::remote::{LastLink, without_end_slashes};
use super::session::{ConnectOptions, Session};
use super::target::{Shown, Target, is_remote};
use crate::exit::MISUSED;
use copy::Copier;
use entry::Entry;
use target_name::{Dir, TargetName};

/// Like coreutils' `cp`, with a URL on one side at least. The copies are on the server's disk when
/// the command ends with status 0.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// The files to copy and, last, the new name or the target directory: local files, or on
    /// servers as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    #[arg(value_parser = super::path_parser())]
    files: Vec<OsString>,

    /// Copy directories with their contents, and symbolic links as links
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,

    /// Preserve permissions, times to the nanosecond and, where that is permitted, owners; it is an
    /// error if root is refused, for example by a server that squashes root
    #[arg(short)]
    preserve: bool,

    /// Same as -r -p
    #[arg(short, long)]
    archive: bool,

    /// Remove a file that cannot be written, and try again
    #[arg(short, long)]
    force: bool,

    /// Do not overwrite existing files
    #[arg(short, long)]
    no_clobber: bool,

    /// Print each file that is copied
    #[arg(short, long)]
    verbose: bool,

    /// Continue an interrupted copy: keep the data of a shorter, newer file except for its end, if
    /// the megabyte before that end is the same; skip files that were copied with -p
    #[arg(long)]
    resume: bool,

    /// Files of a directory that are copied at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = parse_jobs)]
    jobs: u16,

    /// Do not show progress, even on a terminal
    #[arg(long)]
    no_progress: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

impl Options {
    fn recursive(&self) -> bool {
        self.recursive || self.archive
    }

    fn preserves(&self) -> bool {
        self.preserve || self.archive
    }
}

/// Copies all that was asked for.
pub(crate) async fn run(options: &Options, console: &Arc<Console>) -> io::Result<()> {
    let Some((to, from)) = options.files.split_last() else { return Ok(()) };
    if !options.files.iter().any(|file| is_remote(file)) {
        console.fail_with(MISUSED, "one of the files has to be a URL, nfs://HOST/PATH");
        return Ok(());
    }
    let mut session = Session::new(&options.connect);
    let destination = match CopyDestination::find(&mut session, to).await {
        Ok(destination) => destination,
        Err(failure) => {
            console.fail(format_args!("target {}: {failure}", Shown::argument(to)));
            return Ok(());
        }
    };
    if from.len() > 1 && !destination.is_dir() {
        let reason = if destination.found.is_some() { Errno::NOTDIR } else { Errno::NOENT };
        let (shown, reason) = (Shown::argument(to), Failure::refused(reason));
        console.fail(format_args!("target {shown}: {reason}"));
        return Ok(());
    }
    let mut copier = Copier::new(options, console);
    for file in from {
        let last = if options.recursive() { LastLink::Keep } else { LastLink::Follow };
        match Entry::find(&mut session, file, last).await {
            Ok(entry) => match destination.absent {
                None => {
                    copier
                        .argument(entry, destination.name_for(file), destination.must_become_dir())
                        .await
                }
                Some(errno) => {
                    let what = match entry.is_dir() {
                        _ if errno == Errno::NOTDIR => "stat",
                        true => "create directory",
                        false => "create regular file",
                    };
                    let (shown, reason) = (Shown::argument(to), Failure::refused(errno));
                    console.fail(format_args!("cannot {what} {shown}: {reason}"));
                }
            },
            Err(failure) => {
                console.fail(format_args!("cannot stat {}: {failure}", Shown::argument(file)));
            }
        }
    }
    copier.finish().await;
    Ok(())
}

/// The target that the last argument names.
struct CopyDestination {
    /// Its own name.
    name: TargetName,
    /// The existing file, links followed.
    found: Option<Entry>,
    ends_with_slash: bool,
    /// Why the directory above is not to be had.
    absent: Option<Errno>,
}

impl CopyDestination {
    async fn find(session: &mut Session, to: &OsStr) -> Result<Self> {
        let (shown, bytes) = (Shown::argument(to), to.as_bytes());
        if !is_remote(to) {
            let trimmed = match without_end_slashes(bytes) {
                b"" => bytes,
                trimmed => trimmed,
            };
            let (dir, name) = match trimmed.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => (&trimmed[..=slash], &trimmed[slash + 1..]),
                None => (&b"."[..], trimmed),
            };
            let path = Path::new(to).to_owned();
            let found = Entry::local(path, shown.clone(), LastLink::Follow).await;
            let dir = Dir::Local(Path::new(OsStr::from_bytes(dir)).to_owned());
            let name = TargetName { dir, name: name.to_vec(), shown };
            return Self::new(name, found, bytes.ends_with(b"/"));
        }
        let target = Target::parse(to).expect("it was read once before");
        let (remote, path) = session.reach(&target.url, LastLink::Keep).await?;
        let found = remote.resolve(&path, LastLink::Follow).await.map(|node| {
            let place = entry::Place::Remote(remote.clone(), node.handle);
            Entry { place, attributes: node.attributes, shown: shown.clone() }
        });
        let mut absent = None;
        let (dir, name) = match remote.resolve_parent(&path).await {
            Ok((parent, name)) => {
                let above = without_end_slashes(&path);
                let above = &above[..above.len() - name.len()];
                (Dir::Remote(remote, parent.handle, above.to_vec()), name)
            }
            // The root of the export has no name, and is there.
            Err(error) if found.is_ok() && error.errno() == Errno::BUSY => {
                let root = remote.root();
                (Dir::Remote(remote, root, Vec::new()), b".".to_vec())
            }
            Err(error) if is_absent(error.errno()) => {
                absent = Some(error.errno());
                let root = remote.root();
                (Dir::Remote(remote, root, Vec::new()), Vec::new())
            }
            Err(error) => return Err(error.into()),
        };
        let ends_with_slash = path.ends_with(b"/");
        let name = TargetName { dir, name, shown };
        let destination = Self::new(name, found.map_err(Failure::from), ends_with_slash)?;
        Ok(Self { absent, ..destination })
    }

    fn new(name: TargetName, found: Result<Entry>, ends_with_slash: bool) -> Result<Self> {
        let found = match found {
            Ok(entry) => Some(entry),
            Err(failure) if is_absent(failure.errno()) => None,
            Err(failure) => return Err(failure),
        };
        Ok(Self { name, found, ends_with_slash, absent: None })
    }

    fn is_dir(&self) -> bool {
        self.found.as_ref().is_some_and(Entry::is_dir)
    }

    /// Whether the name is given with a slash behind it, and is not that of a directory.
    fn must_become_dir(&self) -> bool {
        self.ends_with_slash && !self.is_dir()
    }

    /// Where a source goes: into the directory, or to the name.
    fn name_for(&self, source: &OsStr) -> TargetName {
        match &self.found {
            Some(entry) if entry.is_dir() => self.name.below(entry, &last_name(source)),
            _ => self.name.clone(),
        }
    }
}

/// The name of a source in the target directory; `.` for a source without a name of its own, whose
/// content is copied.
pub(super) fn last_name(source: &OsStr) -> Vec<u8> {
    let path = match Target::parse(source) {
        Ok(target) => target.url.path,
        Err(_) => source.as_bytes().to_vec(),
    };
    let path = without_end_slashes(&path);
    match path.rsplit(|byte| *byte == b'/').next() {
        None | Some(b"" | b"." | b"..") => b".".to_vec(),
        Some(name) => name.to_vec(),
    }
}

/// Reads the argument of `--jobs`.
fn parse_jobs(text: &str) -> std::result::Result<u16, String> {
    let jobs = text.parse().ok().filter(|jobs| (1..=JOBS_MAX).contains(jobs));
    jobs.ok_or_else(|| format!("`{text}` is not a whole number from 1 to {JOBS_MAX}"))
}

/// Files that are copied at once, at most.
const JOBS_MAX: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_keep_their_last_name() {
        for (source, expected) in [
            ("a", "a"),
            ("dir/a//", "a"),
            ("nfs://h/e/a%20b/", "a b"),
            ("nfs://h/e/a?uid=3", "a"),
            ("nfs://h/", "."),
            ("nfs://h", "."),
            (".", "."),
            ("dir/..", "."),
            ("/", "."),
            ("a?uid=3", "a?uid=3"),
        ] {
            assert_eq!(last_name(OsStr::new(source)), expected.as_bytes(), "{source}");
        }
    }
}
