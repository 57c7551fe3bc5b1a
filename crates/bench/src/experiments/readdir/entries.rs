//! The entries: what the directory is filled with, and what a listing of it has to show.

use client::Nfs3;
use proto::nfs3::{CreateHow, FileHandle, SetAttributes};

use super::Options;
use super::changes::{Change, Changes};
use crate::experiments::scratch_directory::ScratchDirectory;
use crate::{Error, Result};

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

/// Makes all entries.
pub(super) async fn fill(directory: &ScratchDirectory, options: &Options) -> Result<()> {
    create_all(directory, (0..options.entries).collect(), options.links).await
}

async fn create_all(directory: &ScratchDirectory, numbers: Vec<u32>, links: bool) -> Result<()> {
    let filled = directory.for_each(numbers, move |nfs, dir, number| async move {
        create(&nfs, dir, number, links).await
    });
    filled.await.map_err(Error::call(format!("cannot fill {}", directory.name())))
}

/// Makes the directory what it was before.
pub(super) async fn undo(
    directory: &ScratchDirectory,
    changes: &Changes,
    options: &Options,
) -> Result<()> {
    let numbers = changes.numbers(changes.times.clone());
    match changes.change {
        Change::Add => {
            let names = numbers.map(|number| name(number).into_bytes()).collect();
            directory.remove_all(names).await
        }
        Change::Remove => create_all(directory, numbers.collect(), options.links).await,
    }
}

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
