//! `spillway exports`: what a server offers, as `showmount -e` prints it.

use std::io;
use std::sync::Arc;

use clap::Args;
use client::mount3::{ExportEntry, Mount3};
use client::{Identity, NfsUrl};

use super::console::Console;
use super::failure::Failure;
use super::output::{self, Output};
use super::session::ConnectOptions;

/// As `showmount -e`.
#[derive(Args)]
pub(crate) struct Options {
    /// The server, as HOST[:PORT] or nfs://HOST[:PORT]
    #[arg(value_name = "HOST", value_parser = clap::builder::ValueParser::new(Host::parse))]
    host: Host,

    /// Do not print the header line
    #[arg(long)]
    no_headers: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// A server as it was named.
#[derive(Clone, Debug)]
struct Host {
    url: NfsUrl,
    shown: String,
}

impl Host {
    fn parse(argument: &str) -> Result<Self, client::nfs_url::UrlError> {
        let shown = argument.strip_prefix("nfs://").unwrap_or(argument);
        // An IPv6 address without brackets is nothing but a host.
        let bare = shown.parse::<std::net::Ipv6Addr>().is_ok();
        let authority = if bare { format!("[{shown}]") } else { shown.to_owned() };
        let shown = shown.split(['/', '?']).next().unwrap_or_default().to_owned();
        Ok(Self { url: format!("nfs://{authority}").parse()?, shown })
    }
}

/// Prints the list.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let identity = Arc::new(Identity::of_process());
    let list = async {
        let service = Mount3::find(&options.host.url, &options.connect.mount(), &identity).await?;
        service.export().await
    };
    let mut exports = match list.await {
        Ok(exports) => exports,
        Err(error) => {
            console.fail(Failure::from(error));
            return Ok(());
        }
    };
    let names = exports
        .iter_mut()
        .flat_map(|entry| std::iter::once(&mut entry.directory).chain(&mut entry.groups));
    names.for_each(|name| *name = output::name(name).into_owned());
    let mut output = Output::default();
    if !options.no_headers {
        let line = format!("Export list for {}:\n", options.host.shown);
        output.text().extend_from_slice(line.as_bytes());
    }
    output.text().extend_from_slice(&table(&exports));
    output.finish().await
}

/// A line for each export: its path, as wide as the longest, and the hosts that may mount it.
fn table(exports: &[ExportEntry]) -> Vec<u8> {
    let width = exports.iter().map(|entry| entry.directory.len()).max().unwrap_or(0);
    let mut text = Vec::new();
    for ExportEntry { directory, groups } in exports {
        text.extend_from_slice(directory);
        text.resize(text.len() + width - directory.len() + 1, b' ');
        if groups.is_empty() {
            text.extend_from_slice(b"(everyone)");
        }
        text.extend_from_slice(&groups.join(&b','));
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_clients_stand_in_columns() {
        let entry = |directory: &[u8], groups: &[&[u8]]| ExportEntry {
            directory: directory.to_vec(),
            groups: groups.iter().map(|group| group.to_vec()).collect(),
        };
        let exports = [entry(b"/srv", &[]), entry(b"/srv/data", &[b"10.0.0.0/8", b"::1"])];
        let expected = b"/srv      (everyone)\n/srv/data 10.0.0.0/8,::1\n";
        assert_eq!(table(&exports), expected);
        assert_eq!(table(&[]), b"");
    }

    #[test]
    fn a_server_is_named_with_and_without_scheme() {
        for (argument, host, port, shown) in [
            ("filer", "filer", None, "filer"),
            ("filer:2050", "filer", Some(2050), "filer:2050"),
            ("nfs://filer/x", "filer", None, "filer"),
            ("::1", "::1", None, "::1"),
            ("[::1]:2050", "::1", Some(2050), "[::1]:2050"),
        ] {
            let parsed = Host::parse(argument).unwrap();
            assert_eq!((&parsed.url.host[..], parsed.url.port), (host, port), "{argument}");
            assert_eq!(parsed.shown, shown);
        }
    }
}
