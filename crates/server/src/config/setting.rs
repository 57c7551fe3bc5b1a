//! Settings that a running server can change one by one, and keep in its configuration file.

use std::iter::repeat_n;
use std::str::FromStr;
use std::sync::Arc;

use io::IoMode;
use toml_edit::{DocumentMut, Item, TableLike};

use super::Config;
use super::export::default_name;
use crate::export::{Export, ExportTable};
use crate::trace::{Event, Events};

/// A key with a value that is in force from the next request on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `io_cache_read` of an export.
    ReadMode(IoMode),
    /// `io_cache_write` of an export.
    WriteMode(IoMode),
    /// `sync` of an export.
    Sync(bool),
    /// `file_sync_writes` of an export.
    FileSyncWrites(bool),
    /// `read_ahead` of an export or of the server.
    ReadAhead(bool),
    /// `splice` of an export or of the server.
    Splice(bool),
    /// `trace` of the server.
    Trace(Events),
}

/// Why a setting is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// It is not written as one.
    #[error(
        "`{0}` is not a setting; write KEY=VALUE, such as io_cache_read=direct; the name of an export \
         begins with a slash"
    )]
    NoSetting(String),
    /// Two settings have one key.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A running server cannot change it.
    #[error("`{0}` cannot be set while the server runs; the keys that can are {KEYS}")]
    NoKey(String),
    /// The key has other values.
    #[error("`{value}` is not a value of {key}; the values are {accepted}")]
    NoValue {
        /// The key.
        key: String,
        /// The value that was given.
        value: String,
        /// The values of the key, as a list in English.
        accepted: &'static str,
    },
    /// The key belongs to an export, and none is named.
    #[error("{0} is a key of an export: name it, as in `spillway set /data {0}=...`")]
    NeedsExport(&'static str),
    /// The key belongs to the server, and an export is named.
    #[error("{0} is a key of the server, not of an export: omit the export")]
    NeedsNoExport(&'static str),
    /// There is no such export.
    #[error("there is no export {name}; the exports are {exports}")]
    NoExport {
        /// The name that was given.
        name: String,
        /// The names that there are.
        exports: String,
    },
    /// The configuration file cannot be edited.
    #[error("cannot save it in the configuration file: {0}")]
    Document(String),
}

const KEYS: &str = "io_cache_read, io_cache_write, sync and file_sync_writes of an export, read_ahead \
                    and splice of an export or the server, and trace of the server";
const MODES: &str = "buffered, dontcache, direct and auto";
const SWITCHES: &str = "true and false";
const EVENTS: &str =
    "`none`, `all`, and names of events with commas between them, which `spillway trace` lists";

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let Some((key, value)) = text.split_once('=') else {
            return Err(SettingError::NoSetting(text.escape_debug().to_string()));
        };
        let (key, value) = (key.trim(), value.trim());
        let refuse_value = |value: &str, accepted| SettingError::NoValue {
            key: key.to_owned(),
            value: value.escape_debug().to_string(),
            accepted,
        };
        let refuse = |accepted| refuse_value(value, accepted);
        let mode = || value.parse().map_err(|_| refuse(MODES));
        let switch = || value.parse().map_err(|_| refuse(SWITCHES));
        match key {
            "io_cache_read" => mode().map(Self::ReadMode),
            "io_cache_write" => mode().map(Self::WriteMode),
            "sync" => switch().map(Self::Sync),
            "file_sync_writes" => switch().map(Self::FileSyncWrites),
            "read_ahead" => switch().map(Self::ReadAhead),
            "splice" => switch().map(Self::Splice),
            "trace" => events(value).map(Self::Trace).map_err(|event| refuse_value(event, EVENTS)),
            _ => Err(SettingError::NoKey(key.escape_debug().to_string())),
        }
    }
}

/// The events, or the word that is none.
fn events(value: &str) -> Result<Events, &str> {
    if value == "none" {
        return Ok(Events::default());
    }
    value
        .split(',')
        .map(str::trim)
        .map(|event| event.parse::<Events>().map_err(|_| event))
        .collect()
}

impl Setting {
    /// The key as the configuration file has it.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::ReadMode(_) => "io_cache_read",
            Self::WriteMode(_) => "io_cache_write",
            Self::Sync(_) => "sync",
            Self::FileSyncWrites(_) => "file_sync_writes",
            Self::ReadAhead(_) => "read_ahead",
            Self::Splice(_) => "splice",
            Self::Trace(_) => "trace",
        }
    }

    fn may_be_of_export(&self) -> bool {
        match self {
            Self::ReadMode(_) | Self::WriteMode(_) => true,
            Self::Sync(_) | Self::FileSyncWrites(_) => true,
            Self::ReadAhead(_) | Self::Splice(_) => true,
            Self::Trace(_) => false,
        }
    }

    fn value(&self) -> Item {
        match self {
            Self::ReadMode(mode) | Self::WriteMode(mode) => toml_edit::value(mode.name()),
            Self::Sync(on) | Self::FileSyncWrites(on) | Self::ReadAhead(on) | Self::Splice(on) => {
                toml_edit::value(*on)
            }
            Self::Trace(events) => {
                let on = Event::ALL.iter().filter(|event| events.contains(**event));
                toml_edit::value(on.map(|event| event.name()).collect::<toml_edit::Array>())
            }
        }
    }

    fn change(&self, export: &mut Export) {
        match self {
            Self::ReadMode(mode) => export.policy.read = *mode,
            Self::WriteMode(mode) => export.policy.write = *mode,
            Self::Sync(on) => export.sync = *on,
            Self::FileSyncWrites(on) => export.file_sync_writes = *on,
            Self::ReadAhead(on) => export.policy.read_ahead = *on,
            Self::Splice(on) => export.policy.splice = *on,
            Self::Trace(_) => {}
        }
    }
}

impl Config {
    /// The configuration with other settings of an export, or of the server if none is named. Only
    /// what a [`Setting`] is differs, so [`crate::Server::switch`] can put it in force.
    ///
    /// # Errors
    /// The export does not exist, the settings belong to the other of the two, or two settings have
    /// one key.
    pub fn with_settings(
        &self,
        export: Option<&str>,
        settings: &[Setting],
    ) -> Result<Self, SettingError> {
        let is_twice = |(place, setting): (usize, &Setting)| {
            let mut before = settings[..place].iter();
            before.any(|other| other.key() == setting.key()).then(|| setting.key())
        };
        if let Some(key) = settings.iter().enumerate().find_map(is_twice) {
            return Err(SettingError::Twice(key));
        }
        let mut config = self.clone();
        let Some(name) = export else {
            for setting in settings {
                match setting {
                    Setting::ReadAhead(on) => config.read_ahead = *on,
                    Setting::Splice(on) => config.splice = *on,
                    Setting::Trace(events) => config.trace = *events,
                    _ => return Err(SettingError::NeedsExport(setting.key())),
                }
            }
            return Ok(config);
        };
        if let Some(other) = settings.iter().find(|setting| !setting.may_be_of_export()) {
            return Err(SettingError::NeedsNoExport(other.key()));
        }
        let found = self.exports.by_name(name.as_bytes()).ok_or_else(|| {
            let names: Vec<_> = self.exports.iter().map(|export| export.name.as_str()).collect();
            let name = name.escape_debug().to_string();
            SettingError::NoExport { name, exports: names.join(", ") }
        })?;
        let changed = self.exports.iter().map(|export| {
            let mut changed = Export::clone(export);
            if Arc::ptr_eq(export, found) {
                settings.iter().for_each(|setting| setting.change(&mut changed));
            }
            changed
        });
        let table = ExportTable::new(changed.collect()).expect("names and ids are as they were");
        config.exports = Arc::new(table);
        Ok(config)
    }
}

impl Config {
    /// The keys of those settings that this configuration does not have, or that have no effect
    /// because a flag holds for every export.
    #[must_use]
    pub fn overridden_settings(&self, export: Option<&str>, settings: &[Setting]) -> Vec<String> {
        let has = |setting: &&Setting| {
            let with = self.with_settings(export, &[**setting]);
            with.is_ok_and(|with| {
                with.exports == self.exports
                    && (with.read_ahead, with.splice) == (self.read_ahead, self.splice)
                    && with.trace == self.trace
            })
        };
        let is_off_by_flag = |setting: &Setting| match setting {
            Setting::ReadAhead(on) => *on && self.no_read_ahead,
            Setting::Splice(on) => *on && self.no_splice,
            _ => false,
        };
        let overridden = settings.iter().filter(|s| !has(s) || is_off_by_flag(s));
        overridden.map(|setting| setting.key().to_owned()).collect()
    }
}

/// The text of a configuration file with other settings of an export, or of the server if none is
/// named. All else stays as it is: comments, order and the ends of lines.
///
/// # Errors
/// The text is not TOML, or does not have the export.
pub fn edited(
    text: &str,
    export: Option<&str>,
    settings: &[Setting],
) -> Result<String, SettingError> {
    settings.iter().try_fold(text.to_owned(), |text, setting| {
        Ok(with_line_ends(&text, &edited_once(&text, export, setting)?))
    })
}

/// As [`edited`], with an LF at the end of each line.
fn edited_once(
    text: &str,
    export: Option<&str>,
    setting: &Setting,
) -> Result<String, SettingError> {
    let mut document: DocumentMut =
        text.parse().map_err(|_| SettingError::Document("it is not valid TOML".to_owned()))?;
    match export {
        None => put(document.as_table_mut(), setting),
        Some(name) => {
            let exports = document.get_mut("export");
            let tables: Vec<&mut dyn TableLike> = match exports {
                Some(Item::ArrayOfTables(tables)) => {
                    tables.iter_mut().map(|table| table as &mut dyn TableLike).collect()
                }
                Some(Item::Value(toml_edit::Value::Array(values))) => values
                    .iter_mut()
                    .filter_map(|value| Some(value.as_inline_table_mut()? as &mut dyn TableLike))
                    .collect(),
                _ => Vec::new(),
            };
            let table = tables.into_iter().find(|table| is_called(&**table, name));
            let table = table.ok_or_else(|| {
                SettingError::Document(format!(
                    "the export {name} is not in it: it comes from a flag, or the file was changed \
                     since the last reload"
                ))
            })?;
            put(table, setting);
        }
    }
    Ok(document.to_string())
}

/// `edited` with the line ends of `text`, from which it differs in adjacent lines. These, and a
/// last line that has none, get the line end of the first line.
fn with_line_ends(text: &str, edited: &str) -> String {
    let (old, new) = (lines(text), lines(edited));
    let is_same = |((old, _), (new, _)): &(&Line<'_>, &Line<'_>)| old == new;
    let head = old.iter().zip(&new).take_while(is_same).count();
    let (old_rest, new_rest) = (&old[head..], &new[head..]);
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(is_same).count();
    let changed = repeat_n(&("", ""), new_rest.len() - tail);
    let ends = old[..head].iter().chain(changed).chain(&old_rest[old_rest.len() - tail..]);
    let default = old.first().map_or("", |(_, end)| end);
    let default = if default.is_empty() { "\n" } else { default };
    let ends = ends.map(|(_, end)| if end.is_empty() { default } else { end });
    new.iter().zip(ends).flat_map(|((line, _), end)| [*line, end]).collect()
}

/// A line and its end.
type Line<'a> = (&'a str, &'a str);

fn lines(text: &str) -> Vec<Line<'_>> {
    let lines = text.split_inclusive('\n');
    lines.map(|line| line.split_at(line.trim_end_matches(['\r', '\n']).len())).collect()
}

/// Sets a key, and keeps the comments around the value that it has.
fn put(table: &mut dyn TableLike, setting: &Setting) {
    let mut item = setting.value();
    let old = table.get(setting.key()).and_then(Item::as_value).map(|value| value.decor().clone());
    if let (Some(value), Some(decor)) = (item.as_value_mut(), old) {
        *value.decor_mut() = decor;
    }
    match table.get_mut(setting.key()) {
        Some(place) => *place = item,
        None => drop(table.insert(setting.key(), item)),
    }
}

fn is_called(export: &dyn TableLike, name: &str) -> bool {
    let text = |key| export.get(key).and_then(Item::as_str);
    match text("name") {
        Some(own) => own.trim_end_matches('/') == name.trim_end_matches('/'),
        None => text("path").is_some_and(|path| {
            default_name(path.as_ref()).is_ok_and(|own| own == name.trim_end_matches('/'))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# The server.\nsplice = true # as ever\n\n# Data.\n[[export]]\npath = \"/srv/a\"\n\
        io_cache_read = \"auto\"   # until we know more\n\n[[export.client]]\nhosts = [\"*\"]\n\n\
        [[export]]\npath = \"/srv/b/\" # the other\nname = \"/b\"\n";

    fn setting(text: &str) -> Setting {
        text.parse().unwrap()
    }

    #[test]
    fn bad_settings_are_refused_with_the_accepted_ones() {
        for (text, expected) in [
            ("io_cache_read=drect", "the values are buffered, dontcache, direct and auto"),
            ("io_cache_write=", "the values are buffered, dontcache, direct and auto"),
            ("splice=on", "the values are true and false"),
            ("trace=reads", "`none`, `all`, and names of events"),
            ("memory=1GiB", "the keys that can are io_cache_read, io_cache_write, sync and file"),
            ("io_cache_read", "write KEY=VALUE"),
        ] {
            let error = text.parse::<Setting>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn values_are_read() {
        assert_eq!(setting("io_cache_read=direct"), Setting::ReadMode(IoMode::Direct));
        assert_eq!(setting("io_cache_write = dontcache"), Setting::WriteMode(IoMode::DontCache));
        assert_eq!(setting("file_sync_writes=true"), Setting::FileSyncWrites(true));
        assert_eq!(setting("read_ahead=false"), Setting::ReadAhead(false));
        assert_eq!(setting("trace=none"), Setting::Trace(Events::default()));
    }

    #[test]
    fn comments_and_order_are_kept() {
        let settings = [setting("io_cache_read=direct"), setting("sync=false")];
        let text = edited(FILE, Some("/srv/a"), &settings).unwrap();
        let expected = FILE.replace(
            "\"auto\"   # until we know more\n",
            "\"direct\"   # until we know more\nsync = false\n",
        );
        assert_eq!(text, expected);
        let text = edited(FILE, Some("/b"), &[setting("io_cache_write=direct")]).unwrap();
        let expected =
            FILE.replace("name = \"/b\"\n", "name = \"/b\"\nio_cache_write = \"direct\"\n");
        assert_eq!(text, expected);
        for (events, kept) in
            [("none", "[]"), ("read_done,read_start", "[\"read_start\", \"read_done\"]")]
        {
            let text = edited("", None, &[setting(&format!("trace={events}"))]).unwrap();
            assert_eq!(text, format!("trace = {kept}\n"));
        }
        let text = edited(FILE, None, &[setting("splice=false")]).unwrap();
        assert_eq!(text, FILE.replace("splice = true # as", "splice = false # as"));
    }

    #[test]
    fn the_ends_of_lines_are_kept() {
        let settings = [setting("io_cache_read=direct"), setting("sync=false")];
        let edited_by = |file: &str| edited(file, Some("/srv/a"), &settings).unwrap();
        let crlf = |text: &str| text.replace('\n', "\r\n");
        assert_eq!(edited_by(&crlf(FILE)), crlf(&edited_by(FILE)));
        // A file with both, and without one at the end.
        let (head, tail) = FILE.split_at(FILE.find("[[export.client]]").unwrap());
        let (head, tail) = (crlf(head), tail.trim_end());
        let both = edited_by(&format!("{head}{tail}"));
        assert_eq!(both, format!("{}{tail}\r\n", edited_by(&head)));
        let many = "# Set.\r\ntrace = [\r\n  \"read_start\",\r\n]\r\nsplice = true\r\n";
        assert_eq!(
            edited(many, None, &[setting("trace=none")]).unwrap(),
            "# Set.\r\ntrace = []\r\nsplice = true\r\n"
        );
    }

    #[test]
    fn exports_in_one_line_are_edited_too() {
        let file = "export = [{ path = \"/srv/a\", name = \"/a\" }] # short\n";
        let text = edited(file, Some("/a"), &[setting("io_cache_read=direct")]).unwrap();
        assert!(text.contains("io_cache_read = \"direct\""), "{text}");
        assert!(text.ends_with("] # short\n"), "{text}");
    }

    #[test]
    fn an_export_that_the_file_does_not_have_is_refused() {
        let error = edited(FILE, Some("/c"), &[setting("sync=false")]).unwrap_err();
        assert!(
            error.to_string().contains("export /c is not in it: it comes from a flag, or"),
            "{error}"
        );
        assert!(edited("[[export", None, &[setting("splice=false")]).is_err());
    }
}
