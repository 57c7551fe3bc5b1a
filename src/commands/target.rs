//! Arguments that name files on servers, and how messages name them.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;

use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser, ValueParserFactory};
use client::nfs_url::{NfsUrl, UrlError};

use super::text::quote;

/// A file on a server as an argument names it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) url: NfsUrl,
    pub(crate) shown: Shown,
}

impl Target {
    /// Reads an argument, which may be of any bytes.
    ///
    /// # Errors
    /// It is no URL, or not one of NFS.
    pub(crate) fn parse(argument: &OsStr) -> Result<Self, UrlError> {
        Ok(Self { url: url(argument)?, shown: Shown::argument(argument) })
    }
}

impl ValueParserFactory for Target {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|argument| Self::parse(&argument)).into()
    }
}

/// Reads a URL of any bytes: those that are no text are taken as if they were escaped.
fn url(argument: &OsStr) -> Result<NfsUrl, UrlError> {
    let mut text = String::new();
    for chunk in argument.as_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text += &format!("%{byte:02X}"));
    }
    text.parse()
}

/// Whether an argument of `cp` means a file on a server.
pub(crate) fn is_remote(argument: &OsStr) -> bool {
    argument.as_bytes().starts_with(b"nfs://")
}

/// How a file is named to the user: as the argument that led to it, with the names below it.
/// Displayed between quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    bytes: Vec<u8>,
    /// Whether names that are added have to be escaped.
    remote: bool,
}

impl Shown {
    pub(crate) fn argument(argument: &OsStr) -> Self {
        Self { bytes: argument.as_bytes().to_vec(), remote: is_remote(argument) }
    }

    /// A URL that no argument had.
    pub(crate) fn url(url: &NfsUrl) -> Self {
        Self { bytes: url.to_string().into_bytes(), remote: true }
    }

    /// The file `name` in this directory. On a server it is escaped, so that what is shown can be
    /// given to another command.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let end = if self.remote { self.bytes.iter().position(|b| *b == b'?') } else { None };
        let mut bytes = self.bytes[..end.unwrap_or(self.bytes.len())].to_vec();
        if !bytes.ends_with(b"/") {
            bytes.push(b'/');
        }
        for &byte in name {
            match byte {
                b'%' | b'?' if self.remote => bytes.extend(format!("%{byte:02X}").bytes()),
                byte => bytes.push(byte),
            }
        }
        if let Some(end) = end {
            bytes.extend_from_slice(&self.bytes[end..]);
        }
        Self { bytes, remote: self.remote }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Without quotes, for where coreutils writes none, if a terminal would show all of it so.
    pub(crate) fn plain(&self) -> String {
        String::from_utf8_lossy(&quote::if_unprintable(&self.bytes)).into_owned()
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote::always(&self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_may_hold_any_byte() {
        let target = Target::parse(OsStr::from_bytes(b"nfs://h:2050/e/\xff\xc3\xbc%41")).unwrap();
        assert_eq!(target.url.path, b"/e/\xff\xc3\xbcA");
        assert_eq!(target.shown.to_string(), r"'nfs://h:2050/e/'$'\377''ü%41'");
        assert!(Target::parse(OsStr::new("/e/x")).is_err());
    }

    #[test]
    fn displayed_urls_can_be_parsed() {
        let shown = Shown::argument(OsStr::new("nfs://h/e?uid=7")).join(b"50%").join(b"what?");
        assert_eq!(shown.as_bytes(), b"nfs://h/e/50%25/what%3F?uid=7");
        let url = url(OsStr::from_bytes(shown.as_bytes())).unwrap();
        assert_eq!((&url.path[..], url.uid), (&b"/e/50%/what?"[..], Some(7)));
        let local = Shown::argument(OsStr::new("dir/")).join(b"50%").join(b"what?");
        assert_eq!(local.as_bytes(), b"dir/50%/what?");
    }
}
