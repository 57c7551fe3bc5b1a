//! The directory: what is in it, and what a listing of it has to show.

use client::Nfs3;
use proto::nfs3::{CookieVerifier, CreateHow, FileHandle, SetAttributes, Status};
use tokio::task::JoinSet;

use super::Options;
use super::changer::{Change, Changes};
use crate::experiments::export::Export;
use crate::{Error, Result};

/// A directory of an export, made for the experiment.
pub(super) struct Directory {
    nfs: Nfs3,
    root: FileHandle,
    name: String,
    handle: FileHandle,
}

/// Calls that fill or empty a directory at once.
const CALLS_IN_FLIGHT: u32 = 32;
/// Where links lead.
const TARGET: &[u8] = b"nowhere";

/// The name of an entry.
pub(super) fn name(number: u32) -> String {
    format!("file{number}.bin")
}

/// The number of an entry by its name; `None` if it is not of this experiment.
pub(super) fn number(name: &[u8]) -> Option<u32> {
    let digits = name.strip_prefix(b"file")?.strip_suffix(b".bin")?;
    let is_canonical = digits == b"0" || !digits.starts_with(b"0");
    str::from_utf8(digits).ok().filter(|_| is_canonical)?.parse().ok()
}

/// Creates an entry.
pub(super) async fn create(
    nfs: &Nfs3,
    dir: FileHandle,
    number: u32,
    links: bool,
) -> client::Result<()> {
    let name = name(number);
    let made = if links {
        nfs.symlink(dir, name.as_bytes(), TARGET, SetAttributes::default()).await
    } else {
        let attributes = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
        nfs.create(dir, name.as_bytes(), CreateHow::Unchecked(attributes)).await
    };
    made.map(drop)
}

impl Directory {
    /// Makes it, empty.
    pub(super) async fn make(export: &Export<'_>) -> Result<Self> {
        let mounted = export.mount_plain().await?;
        let (nfs, root) = (mounted.nfs, mounted.root);
        let name = format!("spillway-bench-readdir-{}", std::process::id());
        let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let what = || Error::call(format!("cannot make the directory {name} at {}", export.url));
        let made = nfs.mkdir(root, name.as_bytes(), attributes).await.map_err(what())?;
        let handle = match made.object {
            Some(handle) => handle,
            None => nfs.lookup(root, name.as_bytes()).await.map_err(what())?.object,
        };
        Ok(Self { nfs, root, name, handle })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn handle(&self) -> FileHandle {
        self.handle
    }

    /// Makes all entries.
    pub(super) async fn fill(&self, options: &Options) -> Result<()> {
        let numbers: Vec<_> = (0..options.entries).collect();
        self.create_all(numbers, options.links).await
    }

    async fn create_all(&self, numbers: Vec<u32>, links: bool) -> Result<()> {
        let filled = self.for_each(numbers, move |nfs, dir, number| async move {
            create(&nfs, dir, number, links).await
        });
        filled.await.map_err(Error::call(format!("cannot fill {}", self.name)))
    }

    async fn remove_all(&self, names: Vec<Vec<u8>>) -> Result<()> {
        let emptied = self.for_each(names, |nfs, dir, name| async move {
            match nfs.remove(dir, &name).await {
                Err(error) if !error.is(Status::Noent) => Err(error),
                _ => Ok(()),
            }
        });
        emptied.await.map_err(Error::call(format!("cannot remove what is in {}", self.name)))
    }

    /// Makes a call for each item, several at once.
    async fn for_each<T, F>(
        &self,
        mut items: Vec<T>,
        call: impl Fn(Nfs3, FileHandle, T) -> F + Copy + Send + Sync + 'static,
    ) -> client::Result<()>
    where
        T: Send + 'static,
        F: Future<Output = client::Result<()>> + Send,
    {
        let part_len = items.len().div_ceil(CALLS_IN_FLIGHT as usize).max(1);
        let mut tasks = JoinSet::<client::Result<()>>::new();
        while !items.is_empty() {
            let part = items.split_off(items.len().saturating_sub(part_len));
            let (nfs, dir) = (self.nfs.clone(), self.handle);
            tasks.spawn(async move {
                for item in part {
                    call(nfs.clone(), dir, item).await?;
                }
                Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("the calls do not panic")?;
        }
        Ok(())
    }

    /// Makes it what it was before.
    pub(super) async fn undo(&self, changes: &Changes, options: &Options) -> Result<()> {
        let numbers = changes.numbers(changes.times.clone());
        match changes.change {
            Change::Add => {
                self.remove_all(numbers.map(|number| name(number).into_bytes()).collect()).await
            }
            Change::Remove => self.create_all(numbers.collect(), options.links).await,
        }
    }

    /// Removes it with all that is in it.
    pub(super) async fn remove(&self) -> Result<()> {
        loop {
            let names = self.some_names().await?;
            if names.is_empty() {
                break;
            }
            self.remove_all(names).await?;
        }
        let removed = self.nfs.rmdir(self.root, self.name.as_bytes()).await;
        removed.map(drop).map_err(Error::call(format!("cannot remove {}", self.name)))
    }

    /// Names that are there; none only when it is empty.
    async fn some_names(&self) -> Result<Vec<Vec<u8>>> {
        let (mut cookie, mut verifier, mut names) = (0, CookieVerifier::default(), Vec::new());
        loop {
            let listed = self.nfs.readdir(self.handle, cookie, verifier, NAMES_BYTES).await;
            let page = listed.map_err(Error::call(format!("cannot list {}", self.name)))?;
            names.extend(page.names.iter().map(|entry| entry.name.to_vec()));
            names.retain(|name| name != b"." && name != b"..");
            let last = page.names.last().map(|entry| entry.cookie);
            let (false, Some(last)) = (page.eof, last) else { return Ok(names) };
            (cookie, verifier) = (last, page.verifier);
        }
    }
}

const NAMES_BYTES: u32 = 64 << 10;

/// How often an entry may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    Once,
    AtMostOnce,
    Never,
}

/// Of what a listing showed, the entries that came twice or should not be there, and those that
/// stayed throughout and did not come. `shown` are their numbers, as far as they have one;
/// `changes` happened meanwhile to a directory of `entries`.
pub(super) fn wrong_entries(shown: &[Option<u32>], entries: u32, changes: Option<&Changes>) -> u32 {
    let mut comes = vec![Comes::Once; entries as usize];
    if let Some(changes) = changes {
        let Changes { change, times, .. } = changes;
        let before = match change {
            Change::Add => Comes::Once,
            Change::Remove => Comes::Never,
        };
        for (times, what) in [(0..times.start, before), (times.clone(), Comes::AtMostOnce)] {
            for number in changes.numbers(times) {
                match comes.get_mut(number as usize) {
                    Some(comes) => *comes = what,
                    None => comes.push(what),
                }
            }
        }
    }
    let mut came = vec![0_u32; comes.len()];
    let mut foreign = 0;
    for number in shown {
        match number.and_then(|number| came.get_mut(number as usize)) {
            Some(times) => *times += 1,
            None => foreign += 1,
        }
    }
    let wrong = comes.iter().zip(&came).map(|(comes, came)| match (comes, came) {
        (Comes::Once, 0) => 1,
        (Comes::Once | Comes::AtMostOnce, came) => came.saturating_sub(1),
        (Comes::Never, came) => *came,
    });
    foreign + wrong.sum::<u32>()
}
