//! A walk through a tree of a server, as fts(3) goes through a local one. Symbolic links are not
//! followed.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use client::nfs3::Name;

use super::ancestors::Ancestors;
use super::console::Console;
use super::failure::Failure;
use super::remote::{Listing, Node, Remote};
use super::target::Shown;
use super::window::Window;

/// A file of the tree.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) node: Node,
    pub(super) shown: Shown,
}

/// A file that a walk yields.
pub(super) enum Step {
    /// A directory, before what is in it. It is not read before the next step is asked for.
    Enter(Found),
    /// Any other file.
    File(Found),
    /// A directory, after all that is in it.
    Leave(Found),
}

/// A walk, which yields the files of a directory before it enters the directories in it. A failure
/// is reported and ends only a part of the walk.
pub(super) struct Walk<'a> {
    remote: Remote,
    console: &'a Console,
    /// The root, until it is entered.
    root: Option<Found>,
    /// The directories that the walk is in, the root first.
    entered: Vec<Directory>,
    /// Files of the innermost directory that are known and not yet yielded.
    files: VecDeque<Found>,
}

struct Directory {
    found: Found,
    ancestors: Arc<Ancestors>,
    progress: Progress,
    /// The directories in it that are not entered yet, the next one last.
    below: Vec<Found>,
}

enum Progress {
    Entered,
    Reading(Listing),
    Read,
}

impl Directory {
    fn new(found: Found, ancestors: Ancestors) -> Self {
        let ancestors = Arc::new(ancestors);
        Self { found, ancestors, progress: Progress::Entered, below: Vec::new() }
    }
}

impl<'a> Walk<'a> {
    /// A walk that begins with the directory `root`.
    pub(super) fn new(remote: &Remote, root: Found, console: &'a Console) -> Self {
        let (remote, root) = (remote.clone(), Some(root));
        Self { remote, console, root, entered: Vec::new(), files: VecDeque::new() }
    }

    /// The next step; none at the end.
    pub(super) async fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(file) = self.files.pop_front() {
                return Some(Step::File(file));
            }
            let Some(dir) = self.entered.last_mut() else {
                let root = self.root.take()?;
                let node = &root.node;
                let ancestors = Ancestors::root(Some(node.handle), &node.attributes);
                return Some(self.enter(root, ancestors));
            };
            match &mut dir.progress {
                Progress::Entered => {
                    let listing = self.remote.list(dir.found.node.handle, true);
                    dir.progress = Progress::Reading(listing);
                }
                Progress::Reading(listing) => match listing.next().await {
                    Ok(Some(names)) => self.page(names).await,
                    outcome => {
                        if let Err(error) = outcome {
                            self.console.fail(unreadable(&dir.found.shown, &Failure::from(error)));
                        }
                        dir.progress = Progress::Read;
                        dir.below.reverse();
                    }
                },
                Progress::Read => match dir.below.pop() {
                    Some(found) => {
                        let node = &found.node;
                        match dir.ancestors.below(Some(node.handle), &node.attributes) {
                            Ok(ancestors) => return Some(self.enter(found, ancestors)),
                            Err(why) => self.console.fail(unreadable(&found.shown, &why)),
                        }
                    }
                    None => return self.entered.pop().map(|dir| Step::Leave(dir.found)),
                },
            }
        }
    }

    fn enter(&mut self, found: Found, ancestors: Ancestors) -> Step {
        self.entered.push(Directory::new(found.clone(), ancestors));
        Step::Enter(found)
    }

    /// Takes the entries of a page; those whose attributes the server leaves out are looked up,
    /// several at once.
    async fn page(&mut self, names: Vec<Name>) {
        let mut lookups = Window::new(LOOKUPS_MAX);
        for Name { name, attributes, handle, .. } in names {
            if matches!(&name[..], b"." | b"..") {
                continue;
            }
            if let Some((handle, attributes)) = handle.zip(attributes) {
                self.take(&name, Ok(Node { handle, attributes }));
                continue;
            }
            if let Some((name, found)) = lookups.make_room().await {
                self.take(&name, found);
            }
            let (remote, dir) = (self.remote.clone(), self.innermost().found.node.handle);
            let lookup = tokio::spawn(async move {
                let found = remote.lookup(dir, &name).await;
                (name, found)
            });
            lookups.push(async { lookup.await.expect("a lookup does not panic") });
        }
        while let Some((name, found)) = lookups.next().await {
            self.take(&name, found);
        }
    }

    fn take(&mut self, name: &Bytes, node: client::Result<Node>) {
        let shown = self.innermost().found.shown.join(name);
        match node {
            Ok(node) if node.is_dir() => self.innermost().below.push(Found { node, shown }),
            Ok(node) => self.files.push_back(Found { node, shown }),
            Err(error) => {
                let failure = Failure::from(error);
                self.console.fail(format_args!("cannot access {shown}: {failure}"));
            }
        }
    }

    fn innermost(&mut self) -> &mut Directory {
        self.entered.last_mut().expect("a page is that of a directory that was entered")
    }
}

fn unreadable(shown: &Shown, why: &dyn std::fmt::Display) -> String {
    format!("cannot read directory {shown}: {why}")
}

/// Entries that are looked up at once.
const LOOKUPS_MAX: usize = 32;
