//! `spillway ls`: what is in directories.

mod long;

use std::cmp::{Ordering, Reverse};
use std::io::{self, IsTerminal as _};
use std::sync::Arc;

use clap::{ArgAction, Args};
use client::nfs3::Name;
use jiff::Timestamp;
use proto::nfs3::{Attributes, FileHandle, FileType};

use super::ancestors::Ancestors;
use super::console::Console;
use super::failure::{Failure, Result};
use super::output::Output;
use super::remote::{LastLink, Listing, Node, Remote};
use super::session::{ConnectOptions, Session};
use super::target::{Shown, Target};
use super::text::{columns, quote};
use super::window::Window;
use crate::exit::FAILED;
use long::Long;

/// As coreutils' `ls`, sorted by the bytes of names.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Directories and files, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// List names that begin with a dot as well
    #[arg(short, long)]
    all: bool,

    /// Like -a, but without `.` and `..`
    #[arg(short = 'A', long)]
    almost_all: bool,

    /// Show type and permissions, links, owners, size and time of each file
    #[arg(short, overrides_with = "in_columns")]
    long: bool,

    /// List one name per line; the default where stdout is no terminal
    #[arg(short = '1', overrides_with = "in_columns")]
    one_per_line: bool,

    /// List names in columns; the default on a terminal
    #[arg(short = 'C', overrides_with_all = ["one_per_line", "long"])]
    in_columns: bool,

    /// List directories themselves, not their contents
    #[arg(short, long)]
    directory: bool,

    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Do not sort: print names as the server returns them, so that a directory of any size takes
    /// no memory; with -l columns widen as needed, and no total is printed
    #[arg(short = 'U')]
    unsorted: bool,

    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,

    /// Sort by time of change, newest first
    #[arg(short = 't', overrides_with = "by_size")]
    by_time: bool,

    /// Sort by size, largest first
    #[arg(short = 'S')]
    by_size: bool,

    /// With -l, print sizes like 1.5K and 12M
    #[arg(short, long)]
    human_readable: bool,

    /// Like -l, but with numbers instead of names of owners
    #[arg(short, long)]
    numeric_uid_gid: bool,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,

    #[command(flatten)]
    connect: ConnectOptions,
}

impl Options {
    /// Whether more than names is shown.
    fn is_long(&self) -> bool {
        self.long || self.numeric_uid_gid
    }

    fn has_columns(&self) -> bool {
        !self.is_long()
            && !self.one_per_line
            && (self.in_columns || io::stdout().is_terminal() && !self.unsorted)
    }

    /// Whether the attributes of entries are needed beside their names.
    fn wants_attributes(&self) -> bool {
        self.is_long() || self.recursive || self.sorts_by_attributes()
    }

    fn sorts_by_attributes(&self) -> bool {
        !self.unsorted && (self.by_time || self.by_size)
    }

    fn shows(&self, name: &[u8]) -> bool {
        self.all || !name.starts_with(b".") || self.almost_all && !matches!(name, b"." | b"..")
    }
}

/// Exit status for an argument that cannot be listed; what fails inside a directory is a lesser
/// failure.
const ARGUMENT_FAILED: u8 = 2;

/// The exit status for an argument, as coreutils' where there is a counterpart: not for a server
/// that cannot be reached.
fn argument_status(failure: &Failure) -> u8 {
    match failure {
        Failure::Remote(client::Error::Connection { .. }) => FAILED,
        Failure::Remote(_) | Failure::Local(_) => ARGUMENT_FAILED,
    }
}

fn fail_argument(console: &Console, shown: &Shown, failure: &Failure) {
    let sentence = format!("cannot access {shown}: {failure}");
    console.fail_with(argument_status(failure), sentence);
}

/// Symbolic links of a page that are read at once, and entries that are looked up.
const LOOKUPS_MAX: usize = 32;

/// Lists all that was asked for.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    for target in &options.targets {
        match find(options, &mut session, target).await {
            Ok((remote, node)) if node.is_dir() && !options.directory => {
                let (handle, shown) = (node.handle, target.shown.clone());
                let ancestors = Arc::new(Ancestors::root(Some(handle), &node.attributes));
                dirs.push(Directory { remote, handle, shown, ancestors, is_argument: true });
            }
            Ok((remote, node)) => {
                let name = target.shown.as_bytes().to_vec();
                let entry = Entry { name, node: Some(Box::new(node)), link_target: None };
                files.push((remote, &target.shown, entry));
            }
            Err(failure) => fail_argument(console, &target.shown, &failure),
        }
    }
    let mut printer = Printer::new(options, console);
    printer.files(files).await?;
    dirs.sort_by(|a, b| a.shown.as_bytes().cmp(b.shown.as_bytes()));
    if options.reverse {
        dirs.reverse();
    }
    printer.has_headers = options.recursive || options.targets.len() > 1;
    for dir in dirs {
        printer.tree(dir).await?;
    }
    printer.output.finish().await
}

/// The file of an argument. A link to a directory stands for the directory unless it is to be shown
/// itself.
async fn find(options: &Options, session: &mut Session, target: &Target) -> Result<(Remote, Node)> {
    let (remote, node) = session.find(&target.url, LastLink::Keep).await?;
    let is_link = node.attributes.file_type == FileType::Symlink;
    if is_link && !options.is_long() && !options.directory {
        // A link that leads nowhere is shown as what it is.
        if let Ok(found) = session.find(&target.url, LastLink::Follow).await {
            return Ok(found);
        }
    }
    Ok((remote, node))
}

struct Directory {
    remote: Remote,
    handle: FileHandle,
    shown: Shown,
    ancestors: Arc<Ancestors>,
    is_argument: bool,
}

/// A name with what is known of it.
struct Entry {
    name: Vec<u8>,
    /// Elsewhere, so that a name alone takes little. Absent where it is not wanted, and where it
    /// could not be had.
    node: Option<Box<Node>>,
    link_target: Option<Vec<u8>>,
}

impl From<Name> for Entry {
    fn from(name: Name) -> Self {
        let node = name.handle.zip(name.attributes);
        let node = node.map(|(handle, attributes)| Box::new(Node { handle, attributes }));
        Self { name: name.name.to_vec(), node, link_target: None }
    }
}

impl Entry {
    fn is_link(&self) -> bool {
        self.attributes().is_some_and(|found| found.file_type == FileType::Symlink)
    }

    fn is_quoted(&self) -> bool {
        quote::as_needed(&self.name).starts_with(['\'', '"'])
    }

    fn attributes(&self) -> Option<&Attributes> {
        self.node.as_ref().map(|node| &node.attributes)
    }
}

/// Writes entries in the form that was asked for.
struct Printer<'a> {
    options: &'a Options,
    console: &'a Console,
    output: Output,
    long: Long,
    quotes: bool,
    has_headers: bool,
    /// Whether anything stands above, which a blank line parts from what follows.
    is_below: bool,
}

impl<'a> Printer<'a> {
    fn new(options: &'a Options, console: &'a Console) -> Self {
        Self {
            options,
            console,
            output: Output::default(),
            long: Long::new(options.human_readable, options.numeric_uid_gid, Timestamp::now()),
            quotes: io::stdout().is_terminal(),
            has_headers: false,
            is_below: false,
        }
    }

    /// The arguments that are no directories, in one list.
    async fn files(&mut self, files: Vec<(Remote, &Shown, Entry)>) -> io::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut entries = Vec::new();
        for (remote, shown, mut entry) in files {
            if self.options.is_long()
                && let Some(node) = &entry.node
                && node.attributes.file_type == FileType::Symlink
            {
                match remote.nfs.readlink(node.handle).await {
                    Ok(link) => entry.link_target = Some(link.target.to_vec()),
                    Err(error) => fail_argument(self.console, shown, &error.into()),
                }
            }
            entries.push(entry);
        }
        self.sort(&mut entries);
        self.print(&entries);
        self.is_below = true;
        self.output.settle().await
    }

    /// A directory and, if wanted, those in it.
    async fn tree(&mut self, root: Directory) -> io::Result<()> {
        // The directories still to be listed, the next one last.
        let mut ahead = vec![root];
        while let Some(dir) = ahead.pop() {
            let mut below = self.directory(&dir).await?;
            below.reverse();
            ahead.append(&mut below);
        }
        Ok(())
    }

    /// Lists a directory and returns those in it, if they are wanted.
    async fn directory(&mut self, dir: &Directory) -> io::Result<Vec<Directory>> {
        let mut listing = dir.remote.list(dir.handle, self.options.wants_attributes());
        let first = match listing.next().await {
            Ok(page) => page.unwrap_or_default(),
            Err(error) => {
                let failure = Failure::from(error);
                let status = if dir.is_argument { argument_status(&failure) } else { FAILED };
                let sentence = format!("cannot open directory {}: {failure}", dir.shown);
                self.console.fail_with(status, sentence);
                return Ok(Vec::new());
            }
        };
        self.header(dir);
        self.long.start();
        let mut below = Vec::new();
        if self.options.unsorted {
            self.stream(dir, first, &mut listing, &mut below).await?;
        } else {
            let mut entries = self.entries(dir, first).await;
            while let Some(page) = self.next_page(dir, &mut listing).await {
                entries.append(&mut self.entries(dir, page).await);
            }
            self.sort(&mut entries);
            if self.options.is_long() {
                self.long.total(&entries, self.output.text());
            }
            self.print(&entries);
            self.descend(dir, &entries, &mut below);
        }
        self.output.settle().await?;
        Ok(below)
    }

    /// The rest of a directory as it comes.
    async fn stream(
        &mut self,
        dir: &Directory,
        first: Vec<Name>,
        listing: &mut Listing,
        below: &mut Vec<Directory>,
    ) -> io::Result<()> {
        let mut page = Some(first);
        while let Some(names) = page {
            let entries = self.entries(dir, names).await;
            self.print(&entries);
            self.descend(dir, &entries, below);
            self.output.settle().await?;
            page = self.next_page(dir, listing).await;
        }
        Ok(())
    }

    async fn next_page(&self, dir: &Directory, listing: &mut Listing) -> Option<Vec<Name>> {
        listing.next().await.unwrap_or_else(|error| {
            let reason = Failure::from(error);
            self.console.fail(format!("reading directory {}: {reason}", dir.shown));
            None
        })
    }

    fn header(&mut self, dir: &Directory) {
        if self.has_headers {
            if self.is_below {
                self.output.text().push(b'\n');
            }
            let text = self.output.text();
            push_name(text, dir.shown.as_bytes(), self.quotes);
            text.extend_from_slice(b":\n");
        }
        self.is_below = true;
    }

    /// The entries of a page that are shown, with the attributes they need.
    async fn entries(&self, dir: &Directory, names: Vec<Name>) -> Vec<Entry> {
        let shown = names.into_iter().filter(|name| self.options.shows(&name.name));
        let mut entries: Vec<_> = shown.map(Entry::from).collect();
        if self.options.wants_attributes() {
            let nodeless = |entry: &Entry| entry.node.is_none();
            for (index, node) in asked(&entries, nodeless, |entry| {
                let (remote, dir, name) = (dir.remote.clone(), dir.handle, entry.name.clone());
                tokio::spawn(async move { remote.lookup(dir, &name).await })
            })
            .await
            {
                let entry = &mut entries[index];
                let node = node.expect("a lookup does not panic");
                entry.node = self.or_report(dir, entry, node).map(Box::new);
            }
        }
        if self.options.is_long() {
            for (index, target) in asked(&entries, Entry::is_link, |entry| {
                let node = entry.node.as_ref().expect("a link is known as one by its node");
                dir.remote.nfs.readlink(node.handle)
            })
            .await
            {
                let entry = &mut entries[index];
                entry.link_target =
                    self.or_report(dir, entry, target).map(|link| link.target.to_vec());
            }
        }
        entries
    }

    /// The result for an entry, or nothing after its error has been reported.
    fn or_report<T>(&self, dir: &Directory, entry: &Entry, found: client::Result<T>) -> Option<T> {
        let failure = match found {
            Ok(found) => return Some(found),
            Err(error) => Failure::from(error),
        };
        self.console.fail(format!("cannot access {}: {failure}", dir.shown.join(&entry.name)));
        None
    }

    fn sort(&self, entries: &mut [Entry]) {
        if self.options.unsorted {
            return;
        }
        let by_time = |entry: &Entry| Reverse(entry.attributes().map(|found| found.mtime));
        let by_size = |entry: &Entry| Reverse(entry.attributes().map(|found| found.size));
        entries.sort_unstable_by(|a, b| {
            let order = if self.options.by_size {
                by_size(a).cmp(&by_size(b))
            } else if self.options.by_time {
                by_time(a).cmp(&by_time(b))
            } else {
                Ordering::Equal
            };
            let order = order.then_with(|| a.name.cmp(&b.name));
            if self.options.reverse { order.reverse() } else { order }
        });
    }

    fn print(&mut self, entries: &[Entry]) {
        let text = self.output.text();
        if self.options.is_long() {
            self.long.fit(entries);
            let indented = self.quotes && entries.iter().any(|entry| entry.is_quoted());
            for entry in entries {
                self.long.line(entry, text);
                self.long.name(entry, self.quotes, indented, text);
            }
        } else if self.options.has_columns() {
            let width = terminal_width();
            let names: Vec<_> = entries.iter().map(|entry| quote::as_needed(&entry.name)).collect();
            let indented = entries.iter().any(Entry::is_quoted);
            let names: Vec<_> = names.iter().map(|name| aligned(name, indented)).collect();
            text.extend_from_slice(columns::fill(&names, width).as_bytes());
        } else {
            for entry in entries {
                push_name(text, &entry.name, self.quotes);
                text.push(b'\n');
            }
        }
    }

    /// The directories among the entries, for `-R`.
    fn descend(&self, dir: &Directory, entries: &[Entry], below: &mut Vec<Directory>) {
        if !self.options.recursive {
            return;
        }
        for entry in entries.iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")) {
            if let Some(node) = entry.node.as_ref().filter(|node| node.is_dir()) {
                let (remote, shown) = (dir.remote.clone(), dir.shown.join(&entry.name));
                let handle = node.handle;
                match dir.ancestors.below(Some(handle), &node.attributes) {
                    Ok(ancestors) => {
                        let ancestors = Arc::new(ancestors);
                        let is_argument = false;
                        below.push(Directory { remote, handle, shown, ancestors, is_argument });
                    }
                    Err(why) => self.console.fail(format!("cannot list {shown}: {why}")),
                }
            }
        }
    }
}

/// Asks for something of each entry that `lacks` it, several at once. With the index of the entry.
async fn asked<T, F>(
    entries: &[Entry],
    lacks: impl Fn(&Entry) -> bool,
    ask: impl Fn(&Entry) -> F,
) -> Vec<(usize, T)>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut answers = Vec::new();
    let mut window = Window::new(LOOKUPS_MAX);
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| lacks(entry)) {
        answers.extend(window.make_room().await);
        let answer = ask(entry);
        window.push(async move { (index, answer.await) });
    }
    while let Some(answer) = window.next().await {
        answers.push(answer);
    }
    answers
}

/// Quotes stand to the left of names that have none, so that the names begin in one column.
fn aligned(quoted: &str, indented: bool) -> String {
    let has_quote = quoted.starts_with(['\'', '"']);
    if indented && !has_quote { format!(" {quoted}") } else { quoted.to_owned() }
}

/// The name, raw for a program and readable for a terminal.
fn push_name(text: &mut Vec<u8>, name: &[u8], quotes: bool) {
    if quotes {
        text.extend_from_slice(quote::as_needed(name).as_bytes());
    } else {
        text.extend_from_slice(name);
    }
}

/// `COLUMNS`, or the terminal's own width, or the classic one.
fn terminal_width() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(io::stdout()).map(|size| size.ws_col.into()).ok();
    set.or_else(asked).filter(|columns| *columns > 0).unwrap_or(80)
}
