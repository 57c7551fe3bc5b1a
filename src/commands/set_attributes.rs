//! SETATTR of a file or of all files of a tree, for `chmod` and `chown`.

use clap::Args;
use proto::nfs3::{SetAttributes, SetattrOk};
use rustix::io::Errno;

use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::{LastLink, Remote};
use super::session::{ConnectOptions, Session};
use super::target::{Shown, Target};
use super::walk::{Found, Step, Walk};
use super::window::Window;

/// The files to change, and the options that both commands have.
#[derive(Args)]
pub(super) struct Files {
    /// Files, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// Print a line for each file
    #[arg(short, long)]
    pub(super) verbose: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// The attributes that a command sets, and the messages for the outcome.
pub(super) trait Change {
    const ORDER: Order;

    /// The attributes to set; none if the file is to be left alone.
    fn attributes(&self, found: &Found) -> Option<SetAttributes>;

    /// Reports an outcome.
    fn report(&self, found: &Found, outcome: Result<()>);

    /// The complaint of a symbolic link that leads nowhere.
    fn dangling(shown: &Shown, failure: &Failure) -> String;
}

impl Files {
    /// Changes all of them, with `is_recursive` all files below directories as well.
    pub(super) async fn change<C: Change>(
        &self,
        change: &C,
        is_recursive: bool,
        last: LastLink,
        console: &Console,
    ) {
        let mut session = Session::new(&self.connect);
        for Target { url, shown } in &self.targets {
            let (remote, node) = match session.find(url, last).await {
                Ok(found) => found,
                Err(failure) => {
                    let is_absent = failure.errno() == Errno::NOENT;
                    if is_absent && session.find(url, LastLink::Keep).await.is_ok() {
                        console.fail(C::dangling(shown, &failure));
                    } else {
                        console.fail(format_args!("cannot access {shown}: {failure}"));
                    }
                    continue;
                }
            };
            let mut setter = Setter { remote: &remote, change, calls: Window::new(CALLS_MAX) };
            let found = Found { node, shown: shown.clone() };
            if is_recursive && node.is_dir() {
                setter.tree(found, console).await;
            } else {
                setter.file(found).await;
            }
        }
    }
}

/// When a directory of a tree is changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Before what is in it, because the change may be what makes that accessible.
    DirectoryFirst,
    /// After what is in it, because the change may be what makes that inaccessible.
    DirectoryLast,
}

/// Sets attributes of files, several at once.
struct Setter<'a, C> {
    remote: &'a Remote,
    change: &'a C,
    calls: Window<(Found, client::Result<SetattrOk>)>,
}

impl<C: Change> Setter<'_, C> {
    /// Changes one file.
    async fn file(&mut self, found: Found) {
        self.begin(found).await;
        self.settle().await;
    }

    /// Changes the directory `root` and all files in and below it.
    async fn tree(&mut self, root: Found, console: &Console) {
        let mut walk = Walk::new(self.remote, root, console);
        while let Some(step) = walk.next().await {
            match (step, C::ORDER) {
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
        let Some(attributes) = self.change.attributes(&found) else { return };
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
        self.change.report(&found, outcome.map(drop).map_err(Failure::from));
    }
}

/// SETATTR calls that are under way at once.
const CALLS_MAX: usize = 32;
