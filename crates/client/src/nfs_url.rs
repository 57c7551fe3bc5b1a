//! `nfs://host[:port]/path`, and `host:/path` as in mount(8).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use crate::error::ServerName;

/// The characters of a path that have to be escaped.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'?');
/// The scheme of a URL.
const SCHEME: &str = "nfs://";

/// A directory or file of a server.
///
/// Options follow a `?`, separated by `&`. These of libnfs are supported: `version=3`, `nfsport=`,
/// `mountport=`, `uid=` and `gid=`. Any other is an error rather than ignored. `#` is an ordinary
/// character.
///
/// ```
/// use spillway_client::NfsUrl;
///
/// let url: NfsUrl = "nfs://filer:2050/export/a%20b?uid=1000".parse()?;
/// assert_eq!((url.host.as_str(), url.port), ("filer", Some(2050)));
/// assert_eq!(url.path, b"/export/a b");
/// assert_eq!(NfsUrl::from_mount_source(b"[::1]:/export")?.to_string(), "nfs://[::1]/export");
/// # Ok::<(), spillway_client::nfs_url::UrlError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsUrl {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// TCP port of the NFS service.
    pub port: Option<u16>,
    /// Absolute, in bytes, without NUL. Names on a server need not be UTF-8.
    pub path: Vec<u8>,
    /// `mountport`: TCP port of the MOUNT service.
    pub mount_port: Option<u16>,
    /// `uid`: call as this user.
    pub uid: Option<u32>,
    /// `gid`: call as this group.
    pub gid: Option<u32>,
}

/// Why a text is not a URL or a mount source. The message is for the user.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("the URL does not begin with nfs://")]
    Scheme,
    /// Not `host:/path`.
    #[error("the source must have the form host:/path")]
    Source,
    /// Empty, not UTF-8, or an invalid IPv6 address in brackets.
    #[error("invalid host `{host}`")]
    Host {
        /// The invalid host.
        host: String,
    },
    /// Not a number, or out of range.
    #[error("invalid {what} `{value}`")]
    Number {
        /// `port` or the option.
        what: String,
        /// The invalid text.
        value: String,
    },
    /// A port before the path and another one in the options.
    #[error("the port is given twice")]
    TwoPorts,
    /// No file name contains NUL.
    #[error("the path contains a NUL byte")]
    Nul,
    /// An unknown option, or one without value.
    #[error("unknown option `{option}`; a URL has version, nfsport, mountport, uid, gid")]
    Option {
        /// The whole option.
        option: String,
    },
    /// `version` is not 3.
    #[error("NFS version {version} is not supported, only 3")]
    Version {
        /// The requested version.
        version: String,
    },
}

impl NfsUrl {
    /// Parses `host:/path` or `[ipv6]:/path`, without escapes.
    ///
    /// # Errors
    /// There is no colon before a slash, or no host before the colon.
    pub fn from_mount_source(source: &[u8]) -> Result<Self, UrlError> {
        let colon = source.windows(2).position(|two| two == b":/").ok_or(UrlError::Source)?;
        let (host, path) = (&source[..colon], &source[colon + 1..]);
        Self::new(&String::from_utf8_lossy(host), path.to_vec())
    }

    fn new(host: &str, path: Vec<u8>) -> Result<Self, UrlError> {
        if path.contains(&0) {
            return Err(UrlError::Nul);
        }
        let host = parse_host(host)?;
        Ok(Self { host, port: None, path, mount_port: None, uid: None, gid: None })
    }

    fn set(&mut self, option: &str) -> Result<(), UrlError> {
        let unknown = || UrlError::Option { option: option.to_owned() };
        let (name, value) = option.split_once('=').ok_or_else(unknown)?;
        match name {
            "version" if value == "3" => {}
            "version" => return Err(UrlError::Version { version: value.to_owned() }),
            "nfsport" if self.port.is_some() => return Err(UrlError::TwoPorts),
            "nfsport" => self.port = Some(parse_port(name, value)?),
            "mountport" => self.mount_port = Some(parse_port(name, value)?),
            "uid" => self.uid = Some(parse_number(name, value)?),
            "gid" => self.gid = Some(parse_number(name, value)?),
            _ => return Err(unknown()),
        }
        Ok(())
    }

    /// A service on `port` of the host.
    pub(crate) fn server(&self, port: Option<u16>) -> ServerName {
        ServerName { host: self.host.clone(), port }
    }
}

impl FromStr for NfsUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix(SCHEME).ok_or(UrlError::Scheme)?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // The colon of a port follows those of an IPv6 address.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(parse_port("port", port)?)),
            _ => (authority, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        let mut url = Self::new(host, percent_decode_str(path).collect())?;
        url.port = port;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            url.set(option)?;
        }
        Ok(url)
    }
}

/// Formats the URL so that it parses to the same value.
impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.server(self.port))?;
        write!(f, "{}", percent_encode(&self.path, ESCAPED))?;
        let options =
            [("mountport", self.mount_port.map(u32::from)), ("uid", self.uid), ("gid", self.gid)];
        let given = options.iter().filter_map(|(name, value)| Some((name, (*value)?)));
        for (i, (name, value)) in given.enumerate() {
            let mark = if i == 0 { '?' } else { '&' };
            write!(f, "{mark}{name}={value}")?;
        }
        Ok(())
    }
}

fn parse_host(text: &str) -> Result<String, UrlError> {
    let refused = || UrlError::Host { host: text.to_owned() };
    if let Some(rest) = text.strip_prefix('[') {
        let address = rest.strip_suffix(']').ok_or_else(refused)?;
        // A scope, as in fe80::1%eth0, is left to the resolver.
        let unscoped = address.split_once('%').map_or(address, |(address, _)| address);
        unscoped.parse::<Ipv6Addr>().map_err(|_| refused())?;
        return Ok(address.to_owned());
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || byte >= 0x80;
    if text.is_empty() || !text.bytes().all(is_name) || text.contains('\u{fffd}') {
        return Err(refused());
    }
    Ok(text.to_owned())
}

fn parse_port(what: &str, value: &str) -> Result<u16, UrlError> {
    match parse_number(what, value)? {
        0 => Err(UrlError::Number { what: what.to_owned(), value: value.to_owned() }),
        port => Ok(port),
    }
}

/// Parses digits alone: `from_str` accepts a plus sign too.
fn parse_number<T: FromStr>(what: &str, value: &str) -> Result<T, UrlError> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| value.parse().ok()).flatten();
    number.ok_or_else(|| UrlError::Number { what: what.to_owned(), value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(host: &str, port: Option<u16>, path: &[u8]) -> NfsUrl {
        let (host, path) = (host.to_owned(), path.to_vec());
        NfsUrl { host, port, path, mount_port: None, uid: None, gid: None }
    }

    #[test]
    fn urls_are_parsed_and_formatted() {
        let table = [
            ("nfs://filer/export", url("filer", None, b"/export")),
            ("nfs://filer", url("filer", None, b"/")),
            ("nfs://filer/", url("filer", None, b"/")),
            ("nfs://filer:2050/a/b", url("filer", Some(2050), b"/a/b")),
            ("nfs://10.0.0.1:1/a", url("10.0.0.1", Some(1), b"/a")),
            ("nfs://[fe80::1]/a", url("fe80::1", None, b"/a")),
            ("nfs://[fe80::1%eth0]:65535/a", url("fe80::1%eth0", Some(65535), b"/a")),
            ("nfs://filer/a%20b%2Fc%3f%ff%25", url("filer", None, b"/a b/c?\xff%")),
            // An incomplete escape is not decoded.
            ("nfs://filer/100%", url("filer", None, b"/100%")),
            ("nfs://filer/a:b@c#d", url("filer", None, b"/a:b@c#d")),
            ("nfs://filer/a?version=3&nfsport=2050", url("filer", Some(2050), b"/a")),
            (
                "nfs://filer/a?mountport=2051&uid=1&gid=4294967295",
                NfsUrl {
                    mount_port: Some(2051),
                    uid: Some(1),
                    gid: Some(u32::MAX),
                    ..url("filer", None, b"/a")
                },
            ),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string().parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_invalid_url_is_rejected_with_a_reason() {
        let table = [
            ("http://filer/a", "the URL does not begin with nfs://"),
            ("filer:/a", "the URL does not begin with nfs://"),
            ("nfs:///a", "invalid host ``"),
            ("nfs://:2049/a", "invalid host ``"),
            ("nfs://user@filer/a", "invalid host `user@filer`"),
            ("nfs://fe80::1/a", "invalid host `fe80:`"),
            ("nfs://[fe80::1/a", "invalid host `[fe80:`"),
            ("nfs://[filer]/a", "invalid host `[filer]`"),
            ("nfs://filer:0/a", "invalid port `0`"),
            ("nfs://filer:65536/a", "invalid port `65536`"),
            ("nfs://filer:+1/a", "invalid port `+1`"),
            ("nfs://filer:/a", "invalid port ``"),
            ("nfs://filer/a%00b", "the path contains a NUL byte"),
            ("nfs://filer:1/a?nfsport=2", "the port is given twice"),
            ("nfs://filer/a?uid=root", "invalid uid `root`"),
            ("nfs://filer/a?version=4", "NFS version 4 is not supported, only 3"),
            (
                "nfs://filer/a?readahead=1",
                "unknown option `readahead=1`; a URL has version, nfsport, mountport, uid, \
                 gid",
            ),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse::<NfsUrl>().unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn mount_sources_are_parsed_without_escapes() {
        let read = NfsUrl::from_mount_source;
        assert_eq!(read(b"filer:/a%20\xff"), Ok(url("filer", None, b"/a%20\xff")));
        assert_eq!(read(b"[::1]:/"), Ok(url("::1", None, b"/")));
        assert_eq!(read(b"10.0.0.1:/a:/b"), Ok(url("10.0.0.1", None, b"/a:/b")));
        for source in [b"filer".as_slice(), b"filer:", b"/export", b"filer:export"] {
            assert_eq!(read(source), Err(UrlError::Source), "{source:?}");
        }
        for source in [b":/a".as_slice(), b"::1:/a", b"\xff:/a"] {
            assert!(matches!(read(source), Err(UrlError::Host { .. })), "{source:?}");
        }
        assert_eq!(read(b"filer:/a\0"), Err(UrlError::Nul));
    }

    proptest::proptest! {
        #[test]
        fn any_path_survives(path in proptest::collection::vec(1_u8.., 0..40)) {
            let path = [b"/", path.as_slice()].concat();
            let url = url("filer", None, &path);
            assert_eq!(url.to_string().parse(), Ok(url));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = format!("nfs://{text}").parse::<NfsUrl>();
            let _ = NfsUrl::from_mount_source(text.as_bytes());
        }
    }
}
