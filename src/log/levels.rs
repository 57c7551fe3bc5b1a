//! The levels of the log by part of the program, while it runs.

use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The parts by the names that commands take, with the modules that they are.
const PARTS: [(&str, &str); 13] = [
    ("calls", "spillway_server::call_log"),
    ("connections", "spillway_server::connection"),
    ("export", "spillway_server::export"),
    ("inode_cache", "spillway_server::inode_cache"),
    ("io", "spillway_io"),
    ("mount3", "spillway_server::mount3"),
    ("nfs3", "spillway_server::nfs3"),
    ("nfs4", "spillway_server::nfs4"),
    // A filter takes a prefix: without the colons it would be all crates of the server too.
    ("program", "spillway::"),
    ("rpc", "spillway_rpc"),
    ("server", "spillway_server"),
    ("state", "spillway_server::state"),
    ("vfs", "spillway_server::vfs"),
];

static LEVELS: OnceLock<Levels> = OnceLock::new();

/// The filter of this process.
struct Levels {
    handle: reload::Handle<EnvFilter, Registry>,
    /// That of the start.
    first: String,
    /// Module and level of the changes since then, each module once.
    changed: Mutex<Vec<(String, String)>>,
}

/// Makes the filter of the log, which [`set`] changes.
///
/// # Errors
/// It is none.
pub(super) fn start(first: &str) -> Result<reload::Layer<EnvFilter, Registry>, String> {
    let filter = EnvFilter::try_new(first).map_err(|error| error.to_string())?;
    let (layer, handle) = reload::Layer::new(filter);
    let levels = Levels { handle, first: first.to_owned(), changed: Mutex::default() };
    LEVELS.set(levels).map_err(|_| "the log was started twice".to_owned())?;
    Ok(layer)
}

/// Sets levels: `PART=LEVEL`, `LEVEL` for all that have none of their own, or `default` for those
/// of the start. All or none. Returns the filter in force then.
///
/// # Errors
/// A sentence.
pub(crate) fn set(words: &[String]) -> Result<String, String> {
    let levels = LEVELS.get().ok_or("this process has no log")?;
    let mut changed = levels.changed.lock().unwrap_or_else(PoisonError::into_inner);
    let mut next = changed.clone();
    for word in words {
        if word == "default" {
            next.clear();
            continue;
        }
        let (target, level) = parse(word)?;
        next.retain(|(other, _)| *other != target);
        next.push((target, level));
    }
    let text = filter_text(&levels.first, &next);
    if !words.is_empty() {
        let filter = EnvFilter::try_new(&text).map_err(|error| error.to_string())?;
        levels.handle.reload(filter).map_err(|error| error.to_string())?;
        *changed = next;
    }
    Ok(text)
}

/// A module, or nothing for all, and its level.
fn parse(word: &str) -> Result<(String, String), String> {
    let (part, level) = word.split_once('=').unwrap_or(("", word));
    // LevelFilter takes numbers and, as "error", nothing.
    if level.is_empty() || level.parse::<LevelFilter>().is_err() || level.parse::<u8>().is_ok() {
        let levels = "off, error, warn, info, debug and trace";
        return Err(format!("`{}` is not a level; the levels are {levels}", level.escape_debug()));
    }
    if part.is_empty() && !word.contains('=') {
        return Ok((String::new(), level.to_ascii_lowercase()));
    }
    let known = PARTS.iter().find(|(name, _)| *name == part).map(|(_, module)| *module);
    let module = known.or_else(|| part.starts_with("spillway").then_some(part));
    let module = module.filter(|module| {
        module.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte))
    });
    let Some(module) = module else {
        let names: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
        let part = part.escape_debug();
        return Err(format!("there is no part {part}; the parts are {}", names.join(", ")));
    };
    Ok((module.to_owned(), level.to_ascii_lowercase()))
}

/// The first filter with changes behind it, of which the last for a module holds.
fn filter_text(first: &str, changed: &[(String, String)]) -> String {
    let all = changed.iter().find(|(target, _)| target.is_empty());
    let mut text = all.map_or(first, |(_, level)| level).to_owned();
    for (target, level) in changed.iter().filter(|(target, _)| !target.is_empty()) {
        text += &format!(",{target}={level}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_levels_are_those_of_the_table() {
        let ok = |module: &str, level: &str| Ok((module.to_owned(), level.to_owned()));
        assert_eq!(parse("vfs=debug"), ok("spillway_server::vfs", "debug"));
        assert_eq!(parse("WARN"), ok("", "warn"));
        assert_eq!(parse("spillway_server::trace=off"), ok("spillway_server::trace", "off"));
        for (wrong, sentence) in [
            ("vfs=loud", "`loud` is not a level; the levels are off, "),
            ("vfs=5", "`5` is not a level"),
            ("vfs=", "`` is not a level"),
            ("", "`` is not a level"),
            ("vsf=debug", "there is no part vsf; the parts are calls, "),
            ("=debug", "there is no part ; "),
            ("spillway[x]=debug", "there is no part spillway[x]; "),
        ] {
            assert!(parse(wrong).unwrap_err().starts_with(sentence), "{wrong}");
        }
    }

    #[test]
    fn changes_come_behind_the_first_filter() {
        let change = |part: &str| parse(part).unwrap();
        assert_eq!(filter_text("info", &[]), "info");
        let changed = [change("vfs=debug"), change("warn")];
        assert_eq!(
            filter_text("info,spillway_io=debug", &changed),
            "warn,spillway_server::vfs=debug"
        );
    }
}
