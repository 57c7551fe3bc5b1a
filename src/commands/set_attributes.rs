//! SETATTR of a file or of all files of a tree, for `chmod` and `chown`.

use proto::nfs3::{SetAttributes, SetattrOk};

use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::Remote;
use super::walk::{Found, Step, Walk};
use super::window::Window;

/// When a directory of a tree is changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Before what is in it, because the change may be what makes that accessible.
    DirectoryFirst,
    /// After what is in it, because the change may be what makes that inaccessible.
    DirectoryLast,
}

/// Sets attributes of files, several at once.
pub(super) struct Setter<'a, C, R> {
    remote: &'a Remote,
    /// What to set of a file; none if it is to be left alone.
    change: C,
    /// Is given each outcome.
    report: R,
    calls: Window<(Found, client::Result<SetattrOk>)>,
}

impl<'a, C, R> Setter<'a, C, R>
where
    C: Fn(&Found) -> Option<SetAttributes>,
    R: Fn(&Found, Result<()>),
{
    pub(super) fn new(remote: &'a Remote, change: C, report: R) -> Self {
        Self { remote, change, report, calls: Window::new(CALLS_MAX) }
    }

    /// Changes one file.
    pub(super) async fn file(&mut self, found: Found) {
        self.begin(found).await;
        self.settle().await;
    }

    /// Changes the directory `root` and all files in and below it.
    pub(super) async fn tree(&mut self, root: Found, order: Order, console: &Console) {
        let mut walk = Walk::new(self.remote, root, console);
        while let Some(step) = walk.next().await {
            match (step, order) {
                (Step::File(found), _) => self.begin(found).await,
                (Step::Enter(found), Order::DirectoryFirst)
                | (Step::Leave(found), Order::DirectoryLast) => {
                    self.settle().await;
                    self.file(found).await;
                }
                (Step::Enter(_), Order::DirectoryLast)
                | (Step::Leave(_), Order::DirectoryFirst) => {}
            }
        }
        self.settle().await;
    }

    async fn begin(&mut self, found: Found) {
        let Some(attributes) = (self.change)(&found) else { return };
        if let Some(outcome) = self.calls.make_room().await {
            self.end(outcome);
        }
        let call = self.remote.nfs.setattr(found.node.handle, attributes, None);
        self.calls.push(async move { (found, call.await) });
    }

    /// Waits for all calls.
    async fn settle(&mut self) {
        while let Some(outcome) = self.calls.next().await {
            self.end(outcome);
        }
    }

    fn end(&self, (found, outcome): (Found, client::Result<SetattrOk>)) {
        (self.report)(&found, outcome.map(drop).map_err(Failure::from));
    }
}

/// SETATTR calls that are under way at once.
const CALLS_MAX: usize = 32;
