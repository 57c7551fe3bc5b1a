//! Finds the export in the path of a URL.
//!
//! In `nfs://host/a/b/c` only the server knows whether `/a` or `/a/b` is the export, below which
//! the rest is looked up name by name. MNT of `/a/b/c` itself often succeeds, but not for a file,
//! and it does not give access to the name in `/a/b`.

use std::sync::Arc;

use proto::mount3::MountStatus;

use crate::mount3::{Mount3, Mounted};
use crate::{Error, Identity, MountOptions, NfsUrl, Result};

/// A mounted export and its path on the server.
#[derive(Clone, Debug)]
pub struct Holding {
    /// Its calls and its root.
    pub mounted: Mounted,
    /// The mounted path: the URL's path or a prefix of it up to a slash.
    pub export: Vec<u8>,
}

/// Mounts the export that contains the object of `url`.
///
/// That is the longest path in the server's list of exports (EXPORT, RFC 1813 §5.2.5) that is a
/// prefix of the URL's path. Its refusal is final, so that a refused export is not entered from
/// above. If no listed path matches, as with servers that do not return a list, the whole path is
/// tried and then its parents. With `keep_name` the whole path is tried last, for a caller that
/// will look up its last name, to remove it for instance.
///
/// # Errors
/// Those of [`crate::mount3::mount`]. If no part of the path can be mounted, MNT3ERR_ACCES if it
/// was returned for any, otherwise the status for the first.
pub async fn mount_holding(
    url: &NfsUrl,
    keep_name: bool,
    options: &MountOptions,
    identity: &Arc<Identity>,
) -> Result<Holding> {
    let service = Mount3::find(url, options, identity).await?;
    let exports = service.export().await.unwrap_or_default();
    let listed = exports.iter().map(|entry| &entry.directory[..]);
    if let Some(export) = longest(listed, &url.path) {
        return mount(&service, url, export, options, identity).await;
    }
    let mut refusal = None;
    for export in prefixes(&url.path, keep_name) {
        match mount(&service, url, export, options, identity).await {
            Err(Error::Mount { status }) if is_about_the_path(status) => {
                if refusal.is_none() || status == MountStatus::Acces {
                    refusal = Some(status);
                }
            }
            result => return result,
        }
    }
    Err(Error::Mount { status: refusal.unwrap_or(MountStatus::Noent) })
}

async fn mount(
    service: &Mount3,
    url: &NfsUrl,
    export: &[u8],
    options: &MountOptions,
    identity: &Arc<Identity>,
) -> Result<Holding> {
    let url = NfsUrl { path: export.to_vec(), ..url.clone() };
    let mounted = service.mount(&url, options, identity).await?;
    Ok(Holding { mounted, export: url.path })
}

/// Whether the server may accept another path.
fn is_about_the_path(status: MountStatus) -> bool {
    match status {
        MountStatus::Noent
        | MountStatus::Acces
        | MountStatus::Perm
        | MountStatus::Notdir
        | MountStatus::Inval
        | MountStatus::Nametoolong => true,
        MountStatus::Io | MountStatus::Notsupp | MountStatus::Serverfault => false,
    }
}

/// The longest of `exports` that is `path` or a parent of it.
fn longest<'a>(exports: impl Iterator<Item = &'a [u8]>, path: &[u8]) -> Option<&'a [u8]> {
    exports.filter(|export| holds(export, path)).max_by_key(|export| export.len())
}

fn holds(export: &[u8], path: &[u8]) -> bool {
    let export = export.strip_suffix(b"/").unwrap_or(export);
    path.strip_prefix(export).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// The prefixes of `path` that may be exports, in the order in which they are tried.
fn prefixes(path: &[u8], keep_name: bool) -> Vec<&[u8]> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    let slashes = (0..path.len()).rev().filter(|index| path[*index] == b'/');
    let mut above: Vec<_> = slashes.map(|slash| &path[..slash.max(1)]).collect();
    if above.is_empty() {
        return vec![b"/"];
    }
    above.insert(if keep_name { above.len() } else { 0 }, path);
    above
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_export_is_found_by_whole_names() {
        let exports: [&[u8]; 4] = [b"/", b"/srv", b"/srv/data/", b"/srv/database"];
        for (path, expected) in [
            (&b"/srv/data/x"[..], Some(&b"/srv/data/"[..])),
            (b"/srv/data", Some(b"/srv/data/")),
            (b"/srv/databases", Some(b"/srv")),
            (b"/srv/", Some(b"/srv")),
            (b"/other", Some(b"/")),
        ] {
            assert_eq!(longest(exports.into_iter(), path), expected);
        }
        assert_eq!(longest([&b"/srv"[..]].into_iter(), b"/s"), None);
    }

    #[test]
    fn paths_are_tried_from_the_longest() {
        let tried = |path: &'static str, keep_name| {
            let prefixes = prefixes(path.as_bytes(), keep_name);
            prefixes.iter().map(|path| std::str::from_utf8(path).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(tried("/a/b/c", false), ["/a/b/c", "/a/b", "/a", "/"]);
        assert_eq!(tried("/a/b/c/", true), ["/a/b", "/a", "/", "/a/b/c"]);
        assert_eq!(tried("/", false), ["/"]);
    }
}
