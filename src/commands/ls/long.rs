//! The lines of `ls -l`.

use std::io::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proto::nfs3::{Attributes, FileType};

use super::super::text::owners::Owners;
use super::super::text::{mode, quote, size, time};
use super::{Entry, aligned, push_name};

/// The columns in front of the names, each as wide as its widest text so far.
pub(super) struct Long {
    human: bool,
    owners: Owners,
    now: Timestamp,
    zone: TimeZone,
    widths: Widths,
}

#[derive(Default)]
struct Widths {
    nlink: usize,
    user: usize,
    group: usize,
    size: usize,
    major: usize,
    minor: usize,
}

impl Long {
    pub(super) fn new(human: bool, numeric: bool, now: Timestamp) -> Self {
        let owners = if numeric { Owners::default() } else { Owners::of_machine() };
        Self { human, owners, now, zone: TimeZone::system(), widths: Widths::default() }
    }

    /// Begins a list of its own, with columns as narrow as they can be.
    pub(super) fn start(&mut self) {
        self.widths = Widths::default();
    }

    /// Makes the columns wide enough for `entries`.
    pub(super) fn fit(&mut self, entries: &[Entry]) {
        for entry in entries {
            let Some(attributes) = entry.attributes() else { continue };
            let (user, group) = (self.user(attributes), self.group(attributes));
            let (nlink, size) = (attributes.nlink.to_string(), self.size(attributes));
            let widths = &mut self.widths;
            widths.nlink = widths.nlink.max(nlink.len());
            widths.user = widths.user.max(user.chars().count());
            widths.group = widths.group.max(group.chars().count());
            if is_device(attributes) {
                widths.major = widths.major.max(attributes.rdev.major.to_string().len());
                widths.minor = widths.minor.max(attributes.rdev.minor.to_string().len());
                widths.size = widths.size.max(widths.major + 2 + widths.minor);
            } else {
                widths.size = widths.size.max(size.len());
            }
        }
    }

    /// The line above a directory's entries: what they take of the disk, in KiB.
    pub(super) fn total(&self, entries: &[Entry], text: &mut Vec<u8>) {
        let used: u64 = entries.iter().filter_map(Entry::attributes).map(size::disk_bytes).sum();
        write(text, format_args!("total {}\n", size::kib(used, self.human)));
    }

    /// All of a line in front of the name; question marks for a file whose attributes could not be
    /// read.
    pub(super) fn line(&self, entry: &Entry, text: &mut Vec<u8>) {
        let Widths { nlink, user, group, size, .. } = self.widths;
        let Some(attributes) = entry.attributes() else {
            let mark = '?';
            return write(
                text,
                format_args!(
                    "?????????? {mark:>nlink$} {mark:<user$} {mark:<group$} {mark:>size$} {mark:>12} "
                ),
            );
        };
        write(
            text,
            format_args!(
                "{} {:>nlink$} {:<user$} {:<group$} {:>size$} {} ",
                mode::letters(attributes.file_type, attributes.mode),
                attributes.nlink,
                self.user(attributes),
                self.group(attributes),
                self.size(attributes),
                time::short(attributes.mtime, self.now, &self.zone),
            ),
        );
    }

    /// The name, with where it points to if it is a link, and the end of the line.
    pub(super) fn name(&self, entry: &Entry, quotes: bool, indented: bool, text: &mut Vec<u8>) {
        if quotes {
            let name = quote::as_needed(&entry.name);
            text.extend_from_slice(aligned(&name, indented).as_bytes());
        } else {
            text.extend_from_slice(&entry.name);
        }
        if let Some(target) = &entry.link_target {
            text.extend_from_slice(b" -> ");
            push_name(text, target, quotes);
        }
        text.push(b'\n');
    }

    fn user(&self, attributes: &Attributes) -> String {
        let uid = attributes.uid;
        self.owners.user(uid).map_or_else(|| uid.to_string(), str::to_owned)
    }

    fn group(&self, attributes: &Attributes) -> String {
        let gid = attributes.gid;
        self.owners.group(gid).map_or_else(|| gid.to_string(), str::to_owned)
    }

    fn size(&self, attributes: &Attributes) -> String {
        if is_device(attributes) {
            let Widths { major, minor, size, .. } = self.widths;
            // The comma of every device stands in the same place.
            let major = major.max(size.saturating_sub(minor + 2));
            return format!("{:>major$}, {:>minor$}", attributes.rdev.major, attributes.rdev.minor);
        }
        if self.human { size::human(attributes.size) } else { attributes.size.to_string() }
    }
}

fn is_device(attributes: &Attributes) -> bool {
    matches!(attributes.file_type, FileType::BlockDevice | FileType::CharacterDevice)
}

fn write(text: &mut Vec<u8>, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a Vec takes all that is written");
}
