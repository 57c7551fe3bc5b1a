//! Options that several experiments share: what is measured, and in what surroundings.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use client::NfsUrl;
use io::IoMode;
use server::config::ByteSize;

use crate::load::Version;
use crate::{Error, Result};

/// The servers to measure, and the modes, programs and arguments of those that are started.
#[derive(Args, Clone, Debug)]
pub(crate) struct TargetOptions {
    /// Directories that Spillway is started on, in each of --modes, and URLs of running servers;
    /// NAME= sets its name in the results
    #[arg(value_name = "[NAME=]DIR|URL", required = true)]
    pub(crate) targets: Vec<Target>,

    /// I/O modes for READ and WRITE of the servers that are started [default: auto]
    #[arg(long, value_name = "MODE[,MODE...]", value_delimiter = ',')]
    pub(crate) modes: Vec<IoMode>,

    /// Start this build of Spillway, repeatable to compare several; NAME= as above [default: this
    /// program]
    #[arg(long = "program", value_name = "[NAME=]FILE")]
    pub(crate) programs: Vec<Named<PathBuf>>,

    /// Start servers with one more argument, as in --server-arg=--no-splice; repeatable [default:
    /// none]
    #[arg(long = "server-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_args: Vec<String>,

    /// Limit the memory of each started server, including its page cache, by a memory cgroup; needs
    /// root [default: none]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_limit: Option<ByteSize>,

    /// Process of a server given by its URL, if it runs on this machine: its processor time and
    /// memory are measured; NAME is that of the URL, repeatable [default: none]
    #[arg(long = "pid", value_name = "NAME=PID")]
    pub(crate) pids: Vec<Named<u32>>,

    /// Directory on this machine whose files the server given by its URL exports: its page cache
    /// and device are measured; repeatable [default: none]
    #[arg(long = "files", value_name = "NAME=DIR")]
    pub(crate) files: Vec<Named<PathBuf>>,
}

impl TargetOptions {
    /// Whether every server is ours to start.
    pub(crate) fn are_directories(&self) -> bool {
        self.urls().next().is_none()
    }

    /// Options that were given and that multiply or change the subjects of directories alone.
    pub(crate) fn of_directories(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--modes", !self.modes.is_empty()),
            ("--program", !self.programs.is_empty()),
            ("--server-arg", !self.server_args.is_empty()),
        ];
        options.into_iter().filter_map(|(option, is_given)| is_given.then_some(option))
    }

    /// The servers that run already, with their names.
    pub(crate) fn urls(&self) -> impl Iterator<Item = (String, &NfsUrl)> {
        self.targets.iter().filter_map(|target| match &target.value {
            Place::Url(url) => Some((given_name(target.name.as_deref(), url), url)),
            Place::Directory(_) => None,
        })
    }

    /// The servers that may run on another machine: neither do their URLs name this one, nor was
    /// one of their processes or directories named.
    pub(crate) fn maybe_remote(&self) -> impl Iterator<Item = String> {
        let is_local = |url: &NfsUrl| match url.host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => url.host == "localhost",
        };
        let here = |name: &String| {
            let pids = self.pids.iter().map(|pid| &pid.name);
            let mut known = pids.chain(self.files.iter().map(|files| &files.name));
            known.any(|known| known.as_ref() == Some(name))
        };
        let urls = self.urls().filter(move |(name, url)| !is_local(url) && !here(name));
        urls.map(|(name, _)| name)
    }
}

/// The name in results of a running server, without the version.
pub(crate) fn given_name(name: Option<&str>, url: &NfsUrl) -> String {
    name.map(str::to_owned).unwrap_or_else(|| match url.port {
        Some(port) => format!("{}:{port}", url.host),
        None => url.host.clone(),
    })
}

/// How often an experiment is made.
#[derive(Args, Clone, Debug)]
pub(crate) struct RoundOptions {
    /// Number of rounds; the order of the subjects rotates with each round
    #[arg(long, value_name = "COUNT", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

/// The versions of NFS that loads speak.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct VersionOptions {
    /// Versions of NFS that the load speaks, each compared with the others: 3, 4.1, 4.2; files are
    /// created and removed over version 3 in any case [default: 3]
    #[arg(long, value_name = "VERSION[,VERSION...]", value_delimiter = ',')]
    pub(crate) nfs_versions: Vec<Version>,
}

/// A value with the name that results call it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named<T> {
    pub(crate) name: Option<String>,
    pub(crate) value: T,
}

impl<T: FromStr> FromStr for Named<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> std::result::Result<Self, T::Err> {
        let (name, value) = match text.split_once('=') {
            // The query of a URL has equals signs, too, but behind its slashes.
            Some((name, value)) if !name.is_empty() && !name.contains('/') => (Some(name), value),
            Some(_) | None => (None, text),
        };
        Ok(Self { name: name.map(str::to_owned), value: value.parse()? })
    }
}

/// Where the files of an experiment are.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A directory of this machine, on which a server is to be started.
    Directory(PathBuf),
    /// An export of a running server.
    Url(NfsUrl),
}

/// A place with its name.
pub(crate) type Target = Named<Place>;

impl FromStr for Place {
    type Err = client::nfs_url::UrlError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        if text.contains("://") {
            return Ok(Self::Url(text.parse()?));
        }
        Ok(Self::Directory(text.into()))
    }
}

/// Checks a list in which each value is a measurement: one that is there twice would count as a
/// further round.
///
/// # Errors
/// [`Error::Misuse`] if a value is there twice.
pub(crate) fn check_distinct<T: PartialEq>(option: &str, values: &[T]) -> Result<()> {
    let is_twice = |(at, value): (usize, &T)| values[..at].contains(value);
    if values.iter().enumerate().any(is_twice) {
        return Err(Error::Misuse(format!("{option} has the same value twice")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_front() {
        let named = |text: &str| text.parse::<Named<PathBuf>>().expect("every text is a path");
        let table = [
            ("a=/b", Some("a"), "/b"),
            ("/b", None, "/b"),
            ("/b=c", None, "/b=c"),
            ("=b", None, "=b"),
            ("a=b=c", Some("a"), "b=c"),
            ("b", None, "b"),
        ];
        for (text, name, value) in table {
            let expected = Named { name: name.map(str::to_owned), value: PathBuf::from(value) };
            assert_eq!(named(text), expected, "{text}");
        }
    }

    #[test]
    fn places_are_urls_or_directories() {
        let place = |text: &str| text.parse::<Target>().map(|target| (target.name, target.value));
        let Ok((name, Place::Url(url))) = place("ganesha=nfs://h:2050/x?mountport=2051") else {
            panic!("it is a URL with a name");
        };
        assert_eq!((name.as_deref(), url.mount_port), (Some("ganesha"), Some(2051)));
        assert!(matches!(place("nfs://h/x?mountport=1"), Ok((None, Place::Url(_)))));
        assert!(matches!(place("/srv"), Ok((None, Place::Directory(_)))));
        assert!(place("http://h/x").is_err());
    }

    #[test]
    fn a_value_that_is_given_twice_is_refused() {
        check_distinct("--depth", &[1, 8, 2]).unwrap();
        check_distinct::<u16>("--depth", &[]).unwrap();
        let refused = check_distinct("--depth", &[1, 8, 1]).unwrap_err().to_string();
        assert_eq!(refused, "--depth has the same value twice");
    }

    #[test]
    fn servers_that_may_be_remote_are_those_of_which_nothing_is_known_here() {
        use clap::Parser as _;

        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            targets: TargetOptions,
        }
        let words = "bench /srv nfs://nas/x a=nfs://b/x c=nfs://d/x e=nfs://127.0.0.1/x \
                     f=nfs://[::1]/x g=nfs://localhost/x --pid a=1 --files c=/y";
        let Cli { targets } = Cli::parse_from(words.split_whitespace());
        assert_eq!(targets.maybe_remote().collect::<Vec<_>>(), ["nas"]);
        assert!(!targets.are_directories());
    }
}
