//! `spillway du`: how much space directories take.

use std::collections::HashSet;
use std::io;

use clap::{ArgAction, Args};

use super::console::Console;
use super::output::{self, Output};
use super::remote::{LastLink, Node, Remote};
use super::session::{ConnectOptions, Session};
use super::target::Target;
use super::text::size;
use super::walk::{Found, Step, Walk};

/// As coreutils' `du`. A file with several names counts once.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Directories and files, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// Print a line for each file as well, not only for directories
    #[arg(short, long)]
    all: bool,

    /// Print a line for each argument only
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,

    /// Print lines for at most N levels below an argument
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,

    /// Print the sum of all arguments last
    #[arg(short = 'c', long)]
    total: bool,

    /// Print sizes like 1.5K and 12M instead of numbers of KiB
    #[arg(short, long)]
    human_readable: bool,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints what each argument takes.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    let mut usage = Usage { options, seen: HashSet::new(), output: Output::default() };
    let mut total: u64 = 0;
    for target in &options.targets {
        let shown = &target.shown;
        match session.find(&target.url, LastLink::Keep).await {
            Ok((remote, node)) => {
                let found = Found { node, shown: shown.clone() };
                total = total.saturating_add(usage.argument(&remote, found, console).await?);
            }
            Err(failure) => console.fail(format_args!("cannot access {shown}: {failure}")),
        }
    }
    if options.total {
        usage.line(total, b"total");
    }
    usage.output.finish().await
}

struct Usage<'a> {
    options: &'a Options,
    /// File systems and numbers of files that may come again.
    seen: HashSet<(u64, u64)>,
    output: Output,
}

/// A directory whose content is being counted.
struct Sum {
    bytes: u64,
    /// It was counted with an earlier argument.
    is_seen: bool,
}

impl Usage<'_> {
    /// Prints the lines of an argument, and returns what it takes in bytes.
    async fn argument(
        &mut self,
        remote: &Remote,
        found: Found,
        console: &Console,
    ) -> io::Result<u64> {
        if !found.node.is_dir() {
            return Ok(self.file(&found, 0));
        }
        let mut walk = Walk::new(remote, found, console);
        // Of the directories that the walk is in, the argument first.
        let mut sums: Vec<Sum> = Vec::new();
        let mut total = 0;
        while let Some(step) = walk.next().await {
            let below = match step {
                Step::Enter(found) => {
                    let bytes = self.count(&found.node);
                    sums.push(Sum { bytes: bytes.unwrap_or(0), is_seen: bytes.is_none() });
                    continue;
                }
                Step::File(found) => self.file(&found, sums.len()),
                Step::Leave(found) => {
                    let sum = sums.pop().expect("a directory is entered before it is left");
                    if !sum.is_seen && self.is_shown(sums.len()) {
                        self.line(sum.bytes, found.shown.as_bytes());
                    }
                    sum.bytes
                }
            };
            let sum = sums.last_mut().map_or(&mut total, |sum| &mut sum.bytes);
            *sum = sum.saturating_add(below);
            self.output.settle().await?;
        }
        Ok(total)
    }

    /// Counts a file at `depth` below an argument, and prints its line if there is one.
    fn file(&mut self, Found { node, shown }: &Found, depth: usize) -> u64 {
        let Some(bytes) = self.count(node) else { return 0 };
        if depth == 0 || self.options.all && self.is_shown(depth) {
            self.line(bytes, shown.as_bytes());
        }
        bytes
    }

    /// The bytes of a file alone; none if it was counted before. With one argument only a file with
    /// several names can be.
    fn count(&mut self, node: &Node) -> Option<u64> {
        let Node { attributes, .. } = node;
        let may_come_again =
            self.options.targets.len() > 1 || !node.is_dir() && attributes.nlink > 1;
        let is_new = !may_come_again || self.seen.insert((attributes.fsid, attributes.fileid));
        is_new.then(|| size::disk_bytes(attributes))
    }

    fn is_shown(&self, depth: usize) -> bool {
        let depth_max = if self.options.summarize { Some(0) } else { self.options.max_depth };
        depth_max.is_none_or(|max| depth <= max)
    }

    fn line(&mut self, bytes: u64, shown: &[u8]) {
        let size = size::kib(bytes, self.options.human_readable);
        let text = self.output.text();
        text.extend_from_slice(size.as_bytes());
        text.push(b'\t');
        text.extend_from_slice(&output::name(shown));
        text.push(b'\n');
    }
}
