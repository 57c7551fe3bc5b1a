//! Finds the export in the path of a URL.
//!
//! In `nfs://host/a/b/c` only the server knows whether `/a` or `/a/b` is the export, below which
//! the rest is looked up name by name. MNT of `/a/b/c` itself often succeeds, but not for a file,
//! and it does not give access to the name in `/a/b`.

use std::sync::Arc;

use proto::mount3::MountStatus;

use crate::mount3::{Mount3, Mounted};
use crate::{Error, Identity, MountOptions, NfsUrl, Result};

/// The exports of a server.
#[derive(Debug)]
pub struct Exports {
    service: Mount3,
    /// A URL of the server, with any path.
    url: NfsUrl,
    /// The paths that EXPORT (RFC 1813 §5.2.5) has returned, none if it failed.
    listed: Vec<Vec<u8>>,
    options: MountOptions,
    identity: Arc<Identity>,
}

/// The export that contains an object.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The mounted path: the object's path or a prefix of it up to a slash.
    pub export: Vec<u8>,
    /// Its calls and its root; none if it was mounted before.
    pub mounted: Option<Mounted>,
}

impl Exports {
    /// Finds the exports of the host in `url`, whose path is ignored. They are mounted as
    /// `identity`, or as the user in the URL.
    ///
    /// # Errors
    /// Those of [`Mount3::find`].
    pub async fn find(
        url: &NfsUrl,
        options: &MountOptions,
        identity: &Arc<Identity>,
    ) -> Result<Self> {
        let service = Mount3::find(url, options, identity).await?;
        let entries = service.export().await.unwrap_or_default();
        let listed = entries.into_iter().map(|entry| entry.directory).collect();
        let (url, options, identity) = (url.clone(), options.clone(), Arc::clone(identity));
        Ok(Self { service, url, listed, options, identity })
    }

    /// Mounts the export that contains the object at `path`, unless `is_mounted` returns true for
    /// its path.
    ///
    /// That is the longest path in the server's list of exports that is a prefix of `path`. Its
    /// refusal is final, so that a refused export is not entered from above. If no listed path
    /// matches, as with servers that do not return a list, the whole path is tried and then its
    /// parents. With `keep_name` the whole path is tried last, for a caller that will look up its
    /// last name, to remove it for instance.
    ///
    /// # Errors
    /// Those of [`crate::mount3::mount`]. If no part of the path can be mounted, MNT3ERR_ACCES if
    /// it was returned for any, otherwise the status for the first.
    pub async fn mount(
        &self,
        path: &[u8],
        keep_name: bool,
        is_mounted: impl Fn(&[u8]) -> bool,
    ) -> Result<Holding> {
        let listed = self.listed.iter().map(Vec::as_slice);
        let candidates = match longest(listed, path) {
            Some(export) => vec![export],
            None => prefixes(path, keep_name),
        };
        let mut refusal = None;
        for export in candidates {
            if is_mounted(export) {
                return Ok(Holding { export: export.to_vec(), mounted: None });
            }
            let url = NfsUrl { path: export.to_vec(), ..self.url.clone() };
            match self.service.mount(&url, &self.options, &self.identity).await {
                Ok(mounted) => return Ok(Holding { export: url.path, mounted: Some(mounted) }),
                Err(Error::Mount { status }) if is_about_the_path(status) => {
                    if refusal.is_none() || status == MountStatus::Acces {
                        refusal = Some(status);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Mount { status: refusal.unwrap_or(MountStatus::Noent) })
    }
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
