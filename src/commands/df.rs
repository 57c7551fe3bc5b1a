//! `spillway df`: how full file systems are.

use std::io;

use clap::Args;
use proto::nfs3::FsstatOk;

use super::console::Console;
use super::failure::Result;
use super::output::Output;
use super::remote::LastLink;
use super::session::{ConnectOptions, Session};
use super::target::Target;
use super::text::{quote, size};

/// As coreutils' `df`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Exports, or files in them, as nfs://HOST[:PORT]/EXPORT/PATH
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// Print sizes like 1.5K and 12M instead of numbers of KiB
    #[arg(short, long)]
    human_readable: bool,

    /// Print numbers of files instead of space
    #[arg(short, long)]
    inodes: bool,

    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints a line for each argument.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    let mut rows = Vec::new();
    for target in &options.targets {
        match row(options, &mut session, target).await {
            Ok(row) => rows.push(row),
            Err(failure) => console.fail(format_args!("{}: {failure}", target.shown.plain())),
        }
    }
    // As coreutils has it: no header above nothing.
    if rows.is_empty() {
        return Ok(());
    }
    rows.insert(0, headers(options));
    let mut output = Output::default();
    output.text().extend_from_slice(table(&rows).as_bytes());
    output.finish().await
}

type Row = [String; 6];

fn headers(options: &Options) -> Row {
    let headers = match (options.inodes, options.human_readable) {
        (true, _) => ["Filesystem", "Inodes", "IUsed", "IFree", "IUse%", "Mounted on"],
        (_, true) => ["Filesystem", "Size", "Used", "Avail", "Use%", "Mounted on"],
        _ => ["Filesystem", "1K-blocks", "Used", "Available", "Use%", "Mounted on"],
    };
    headers.map(str::to_owned)
}

async fn row(options: &Options, session: &mut Session, target: &Target) -> Result<Row> {
    let (remote, node) = session.find(&target.url, LastLink::Follow).await?;
    let found = remote.nfs.fsstat(node.handle).await?;
    // As coreutils has it, no control character breaks a line, also not for a program.
    let export = quote::if_unprintable(remote.path());
    let export = String::from_utf8_lossy(&export);
    let file_system = format!("{}:{export}", target.url.host);
    let [all, used, free, part] = numbers(options, &found);
    Ok([file_system, all, used, free, part, target.shown.plain()])
}

fn numbers(options: &Options, found: &FsstatOk) -> [String; 4] {
    let FsstatOk { tbytes, fbytes, abytes, tfiles, ffiles, .. } = *found;
    if options.inodes {
        let number = |n: u64| if options.human_readable { size::human(n) } else { n.to_string() };
        let used = tfiles.saturating_sub(ffiles);
        return [number(tfiles), number(used), number(ffiles), size::percent(used, ffiles)];
    }
    let number = |bytes| size::kib(bytes, options.human_readable);
    let used = tbytes.saturating_sub(fbytes);
    // Space reserved for root counts as neither, so the percentage is of the space that a user can
    // have.
    [number(tbytes), number(used), number(abytes), size::percent(used, abytes)]
}

/// The rows with every column as wide as its widest text; names to the left, numbers to the right.
fn table(rows: &[Row]) -> String {
    let mut widths = WIDTHS_MIN;
    for row in rows {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = (*width).max(text.chars().count());
        }
    }
    let [name, all, used, free, part] = widths;
    let lines = rows.iter().map(|[a, b, c, d, e, f]| {
        format!("{a:<name$} {b:>all$} {c:>used$} {d:>free$} {e:>part$} {f}\n")
    });
    lines.collect()
}

/// The least widths of the columns but the last, as in coreutils.
const WIDTHS_MIN: [usize; 5] = [14, 5, 5, 5, 4];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_coreutils() {
        let row = |texts: [&str; 6]| texts.map(str::to_owned);
        let rows = [
            row(["Filesystem", "1K-blocks", "Used", "Available", "Use%", "Mounted on"]),
            row(["/dev/vda", "264212084", "39630480", "55870784", "42%", "/"]),
        ];
        assert_eq!(
            table(&rows),
            "Filesystem     1K-blocks     Used Available Use% Mounted on\n\
             /dev/vda       264212084 39630480  55870784  42% /\n",
        );
    }
}
