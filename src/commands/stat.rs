//! `spillway stat`: all attributes that a server returns for files.

use std::fmt::Write as _;
use std::io;

use clap::Args;
use jiff::tz::TimeZone;
use proto::nfs3::{Attributes, FileType};

use super::console::Console;
use super::failure::Result;
use super::output::{self, Output};
use super::remote::LastLink;
use super::session::{ConnectOptions, Session};
use super::target::Target;
use super::text::owners::Owners;
use super::text::{mode, quote, time};

/// As coreutils' `stat`.
#[derive(Args)]
pub(crate) struct Options {
    /// Files, as nfs://HOST[:PORT]/EXPORT/PATH; without any this is `spillway nfsstat`
    #[arg(value_name = "URL", required = true)]
    targets: Vec<Target>,

    /// Print this for each file, followed by a newline: %n name, %N name with the target of a link,
    /// %s size, %b blocks of %B bytes, %F type, %a %A permissions, %f mode in hex, %u %U owner, %g
    /// %G group, %i file number, %d file system, %h links, %t %T device, and %x %y %z times of
    /// access, modification and change, as %X %Y %Z in seconds
    #[arg(short = 'c', long, value_name = "FORMAT")]
    format: Option<String>,

    /// Show the targets of symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints each file.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let mut session = Session::new(&options.connect);
    let mut output = Output::default();
    let form = Form { owners: Owners::of_machine(), zone: TimeZone::system() };
    for target in &options.targets {
        match Subject::find(options, &mut session, target).await {
            Ok(subject) => {
                let text = match &options.format {
                    Some(format) => form.formatted(&subject, format) + "\n",
                    None => form.block(&subject),
                };
                output.text().extend_from_slice(text.as_bytes());
            }
            Err(failure) => {
                console.fail(format_args!("cannot statx {}: {failure}", target.shown));
            }
        }
    }
    output.finish().await
}

/// A file as it was found.
struct Subject {
    name: Vec<u8>,
    attributes: Attributes,
    link_target: Option<Vec<u8>>,
    /// The server's preferred transfer size.
    io_bytes: u32,
}

impl Subject {
    async fn find(options: &Options, session: &mut Session, target: &Target) -> Result<Self> {
        let last = if options.dereference { LastLink::Follow } else { LastLink::Keep };
        let (remote, node) = session.find(&target.url, last).await?;
        let link_target = match node.attributes.file_type {
            FileType::Symlink => Some(remote.nfs.readlink(node.handle).await?.target.to_vec()),
            _ => None,
        };
        let (name, io_bytes) = (target.shown.as_bytes().to_vec(), remote.info().wtpref);
        Ok(Self { name, attributes: node.attributes, link_target, io_bytes })
    }

    /// The name between quotes as needed, and where a link leads.
    fn described(&self, quoted: impl Fn(&[u8]) -> String) -> String {
        let name = quoted(&self.name);
        match &self.link_target {
            Some(target) => format!("{name} -> {}", quoted(target)),
            None => name,
        }
    }
}

/// The format of the output, besides the file.
struct Form {
    owners: Owners,
    zone: TimeZone,
}

impl Form {
    /// Coreutils' own form. The protocol knows no time of birth.
    fn block(&self, subject: &Subject) -> String {
        let Attributes { size, nlink, uid, gid, fileid, rdev, .. } = subject.attributes;
        let Attributes { file_type, mode, atime, mtime, ctime, .. } = subject.attributes;
        let device = match file_type {
            FileType::BlockDevice | FileType::CharacterDevice => {
                format!(" Device type: {},{}", rdev.major, rdev.minor)
            }
            _ => String::new(),
        };
        let links = if device.is_empty() { nlink.to_string() } else { format!("{nlink:<5}") };
        format!(
            "  File: {}\n  Size: {size:<10}\tBlocks: {:<10} IO Block: {:<6} {}\n\
             Device: {}\tInode: {fileid:<11} Links: {links}{device}\n\
             Access: ({:04o}/{})  Uid: ({uid:5}/{:>8})   Gid: ({gid:5}/{:>8})\n\
             Access: {}\nModify: {}\nChange: {}\n Birth: -\n",
            subject.described(printed),
            blocks(&subject.attributes),
            subject.io_bytes,
            mode::type_name(file_type, size),
            self.file_system(&subject.attributes),
            mode & 0o7777,
            mode::letters(file_type, mode),
            self.user(uid),
            self.group(gid),
            time::long(atime, &self.zone),
            time::long(mtime, &self.zone),
            time::long(ctime, &self.zone),
        )
    }

    /// `format` with its directives replaced. As in coreutils, one that is not known becomes `?`.
    fn formatted(&self, subject: &Subject, format: &str) -> String {
        let mut text = String::new();
        let mut letters = format.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                text.push(letter);
                continue;
            }
            match letters.next() {
                Some(directive) => self.directive(subject, directive, &mut text),
                None => text.push('%'),
            }
        }
        text
    }

    fn directive(&self, subject: &Subject, directive: char, text: &mut String) {
        let Attributes { file_type, mode, size, nlink, uid, gid, rdev, .. } = subject.attributes;
        let Attributes { fsid, fileid, atime, mtime, ctime, .. } = subject.attributes;
        let written = match directive {
            'a' => write!(text, "{:o}", mode & 0o7777),
            'A' => write!(text, "{}", mode::letters(file_type, mode)),
            'b' => write!(text, "{}", blocks(&subject.attributes)),
            'B' => write!(text, "{BLOCK_BYTES}"),
            'd' => write!(text, "{fsid}"),
            'D' => write!(text, "{fsid:x}"),
            'f' => write!(text, "{:x}", mode::with_type(file_type, mode)),
            'F' => write!(text, "{}", mode::type_name(file_type, size)),
            'g' => write!(text, "{gid}"),
            'G' => write!(text, "{}", self.group(gid)),
            'h' => write!(text, "{nlink}"),
            'i' => write!(text, "{fileid}"),
            'n' => write!(text, "{}", printed(&subject.name)),
            'N' => write!(text, "{}", subject.described(quote::always)),
            'o' => write!(text, "{}", subject.io_bytes),
            's' => write!(text, "{size}"),
            't' => write!(text, "{:x}", rdev.major),
            'T' => write!(text, "{:x}", rdev.minor),
            'u' => write!(text, "{uid}"),
            'U' => write!(text, "{}", self.user(uid)),
            'w' => write!(text, "-"),
            'W' => write!(text, "0"),
            'x' => write!(text, "{}", time::long(atime, &self.zone)),
            'X' => write!(text, "{}", atime.seconds),
            'y' => write!(text, "{}", time::long(mtime, &self.zone)),
            'Y' => write!(text, "{}", mtime.seconds),
            'z' => write!(text, "{}", time::long(ctime, &self.zone)),
            'Z' => write!(text, "{}", ctime.seconds),
            '%' => write!(text, "%"),
            _ => write!(text, "?"),
        };
        written.expect("a String takes all that is written");
    }

    /// The number of the file system, as the two halves that a device number has.
    fn file_system(&self, attributes: &Attributes) -> String {
        format!("{:x}h/{}d", attributes.fsid, attributes.fsid)
    }

    fn user(&self, uid: u32) -> &str {
        self.owners.user(uid).unwrap_or("UNKNOWN")
    }

    fn group(&self, gid: u32) -> &str {
        self.owners.group(gid).unwrap_or("UNKNOWN")
    }
}

/// A name without quotes, but for what a terminal would not show.
fn printed(name: &[u8]) -> String {
    String::from_utf8_lossy(&output::name(name)).into_owned()
}

/// Blocks of [`BLOCK_BYTES`] that the file takes, as a kernel would count them.
fn blocks(attributes: &Attributes) -> u64 {
    attributes.used.div_ceil(BLOCK_BYTES)
}

const BLOCK_BYTES: u64 = 512;
