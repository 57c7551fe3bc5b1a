//! The state directory: where it is by default, and where it must not be.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::Overrides;
use super::error::{ConfigError, Given, Origin, Source};
use crate::export::ExportTable;

pub(super) fn state_dir(
    raw: Option<Spanned<PathBuf>>,
    overrides: &Overrides,
    exports: &ExportTable,
    source: Source<'_>,
) -> Result<PathBuf, ConfigError> {
    let flag = overrides.state_dir.clone().map(|path| ("--state-dir", path));
    let default =
        if flag.is_some() || raw.is_some() { PathBuf::new() } else { system_state_dir()? };
    let Given { value, origin } = Given::pick(flag, raw, default);
    if matches!(origin, Origin::Text(_)) && !value.is_absolute() {
        return Err(source.blame(&origin, format!("`{}` is not an absolute path", value.display())));
    }
    let path = std::path::absolute(&value)
        .map_err(|error| source.blame(&origin, format!("{}: {error}", value.display())))?;
    let real = resolve_existing(&path);
    if let Some(export) = exports.containing(&real) {
        let why = format!(
            "the state directory {} lies inside the export {}, whose clients could read the key \
             of all file handles; choose another with state_dir or --state-dir",
            path.display(),
            export.name
        );
        return Err(source.blame(&origin, why));
    }
    Ok(path)
}

/// `path` with the part of it that exists freed from symbolic links.
fn resolve_existing(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let Ok(real) = fs::canonicalize(ancestor) {
            let missing = path.strip_prefix(ancestor).expect("an ancestor is a prefix");
            return real.join(missing);
        }
    }
    path.to_owned()
}

/// The state directory of this user's servers whose configuration names none.
///
/// # Errors
/// The environment has no home directory.
pub fn system_state_dir() -> Result<PathBuf, ConfigError> {
    let root = rustix::process::geteuid().is_root();
    let path = default_state_dir(root, env::var_os("XDG_STATE_HOME"), env::var_os("HOME"));
    path.ok_or_else(|| ConfigError::System {
        why: "no state directory: neither XDG_STATE_HOME nor HOME holds an absolute path; choose \
              one with state_dir or --state-dir"
            .to_owned(),
    })
}

/// A relative path in either variable is ignored, as the XDG base directory specification asks.
pub(super) fn default_state_dir(
    root: bool,
    xdg_state_home: Option<OsString>,
    home: Option<OsString>,
) -> Option<PathBuf> {
    if root {
        return Some(PathBuf::from("/var/lib/spillway"));
    }
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute(xdg_state_home)
        .or_else(|| absolute(home).map(|home| home.join(".local/state")))?;
    Some(base.join("spillway"))
}
